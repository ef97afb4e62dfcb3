"""`sanderling compare`: the front, budgets, and the verb on two small models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sanderling.choose.candidates import Budgets, Candidate, answer, front, mark_front
from sanderling.choose.compare import compare
from sanderling.errors import InputError

from .support.command_line import call
from .support.eval_command import F32, INT8, LIKE_DIGITS, digits

__all__ = ["digits"]  # a fixture
QUICK = ("--launches", "1", "--min-secs", "0.02")


def one(name: str, accuracy: float, ms: float, kb: int = 100, **more: Any) -> Candidate:
    return Candidate(
        name,
        f"{name}.tflite",
        "s",
        accuracy,
        latency=ms * 1e-3,
        size=kb * 1024,
        quantisation="none",
        **more,
    )


def marked(*candidates: Candidate) -> Sequence[Candidate]:
    mark_front(candidates)
    return candidates


def test_who_is_beaten_and_by_whom() -> None:
    best, fast, small, poor = marked(
        one("best", 0.9, 10, 500),
        one("fast", 0.7, 1, 400),
        one("small", 0.6, 5, 50),
        one("poor", 0.65, 6, 450),
    )
    assert [c.is_on_front for c in (best, fast, small, poor)] == [True, True, True, False]
    assert poor.beaten_by == ["fast (s)"]
    assert [c.model for c in front([best, fast, small, poor], ("accuracy", "latency"))] == [
        "fast",
        "best",
    ]


def test_equals_do_not_beat_each_other() -> None:
    assert all(c.is_on_front for c in marked(one("a", 0.5, 1), one("b", 0.5, 1)))


def test_the_most_accurate_within_the_budget_is_taken() -> None:
    found = answer([one("best", 0.9, 10), one("fast", 0.7, 1)], Budgets(max_latency=5e-3))
    assert found.chosen == "fast (s)" and "1 of 2 keep the budgets" in found.why


def test_of_those_that_cannot_be_told_apart_the_fastest_is_taken() -> None:
    none = {"value": 0.0, "low": 0.0, "high": 0.0}
    near = {"value": -0.01, "low": -0.03, "high": 0.01}
    best, other = one("best", 0.9, 10, against_best=none), one("other", 0.89, 2, against_best=near)
    found = answer([best, other], Budgets(min_accuracy=0.5))
    assert found.chosen == "other (s)" and "cannot be told from that of best" in found.why
    far = one("far", 0.8, 1, against_best={"value": -0.1, "low": -0.13, "high": -0.07})
    assert answer([best, far], Budgets(min_accuracy=0.5)).chosen == "best (s)"


def test_the_best_that_keeps_the_budgets_is_paired_with_the_others() -> None:
    """Also where the most accurate of all is too slow."""
    whole, first, second = one("whole", 0.95, 99), one("first", 0.9, 9), one("second", 0.89, 2)
    known = {"second (s)": {"value": -0.01, "low": -0.02, "high": 0.01}}
    asked: list[tuple[str, str]] = []

    def difference(a: Candidate, b: Candidate) -> dict[str, float] | None:
        asked.append((a.name, b.name))
        return known.get(a.name)

    found = answer([whole, first, second], Budgets(max_latency=1e-2), difference)
    assert found.chosen == "second (s)" and asked == [("second (s)", "first (s)")]
    known["second (s)"] = {"value": -0.01, "low": -0.02, "high": -0.005}
    few = Budgets(max_latency=1e-2)
    assert answer([whole, first, second], few, difference).chosen == "first (s)"


def test_memory_that_was_not_measured_keeps_no_budget() -> None:
    found = answer([one("a", 0.9, 1), one("b", 0.8, 1)], Budgets(max_memory=1 << 30))
    assert found.chosen is None and "memory that was not measured" in found.why


@pytest.mark.parametrize(
    ("budgets", "miss", "command"),
    [
        (Budgets(max_size=1024), "has 50 KiB, 1 KiB at most", "quantize small.tflite --suggest"),
        (Budgets(max_latency=1e-4), "0.1 ms at most", "tune"),
        (Budgets(min_accuracy=0.95, max_size=60 << 10), "0.95 at least", "quantize best.tflite"),
        (Budgets(max_memory=1), "of memory", "profile best.tflite"),
    ],
)
def test_what_is_missed_and_what_to_do(budgets: Budgets, miss: str, command: str) -> None:
    small = one("small", 0.9, 1, 50, memory=1 << 20)
    found = answer([one("best", 0.94, 9, 500, memory=2 << 20), small], budgets)
    assert found.chosen is None and miss in found.why
    assert any(command in step for step in found.next_steps), found.next_steps


def test_codes_that_are_too_large_have_a_next_step() -> None:
    codes = one("codes", 0.9, 1, 13)
    codes.quantisation = "full integer i8"
    few = Budgets(max_size=1024)
    found = answer([one("float", 0.9, 2, 40), codes], few)
    assert found.next_steps == [
        "sanderling prune float.tflite --structure channels --data SAMPLES -o SMALLER.tflite"
    ]
    assert answer([codes], few).next_steps == ["sanderling profile codes.tflite"]


def task_words(folder: Path) -> list[str]:
    settings = {"images": folder / "img", "labels": folder / "labels.txt"} | LIKE_DIGITS
    return ["--task", "imagenet", *(w for k, v in settings.items() for w in ("--set", f"{k}={v}"))]


def test_the_verb(digits: Path, tmp_path: Path) -> None:
    page, text = tmp_path / "c.html", tmp_path / "c.md"
    words = ["compare", F32, INT8, *task_words(digits), *QUICK, "--max-size", "1GB"]
    done = call(*words, "-o", page, "-o", text, "--json", tmp_path / "c.json")
    assert "on the front:" in done.stdout and "take digits_" in done.stdout
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["schema"] == "sanderling.compare/1" and record["samples"] == 40
    for found in record["candidates"]:
        low, high = found["accuracy_interval"]
        assert low <= found["accuracy"] <= high and found["latency"] > 0 and found["size"] > 0
        assert found["against_best"]["low"] <= found["against_best"]["value"]
    assert "<svg" in page.read_text() and "| model |" in text.read_text()


def test_a_budget_that_nothing_keeps_is_status_1(digits: Path) -> None:
    words = ["compare", F32, INT8, *task_words(digits), *QUICK, "--min-accuracy", "101%"]
    assert "none keeps the budgets" in call(*words, status=1).stdout


def test_latencies_of_a_record(digits: Path, tmp_path: Path) -> None:
    record = tmp_path / "phone.json"
    call("bench", F32, INT8, *QUICK, "--warmup-secs", "0", "--json", record)
    content = json.loads(record.read_text())
    for row in content["results"]:
        row["setting"]["device"] = "android:1234"
    record.write_text(json.dumps(content))
    settings = {"images": digits / "img", "labels": digits / "labels.txt"} | LIKE_DIGITS
    found = compare([F32, INT8], "imagenet", task_settings=settings, records=[record])
    assert all(c.setting.startswith("android:1234") for c in found.candidates)
    assert len(found.candidates) == 2
    assert all(c.is_judged_elsewhere for c in found.candidates)
    assert "judged by this machine's CPU" in found.notes[0] and "android:1234" in found.notes[0]
    for row in content["results"][1:]:
        row["model"] = "other"
    record.write_text(json.dumps(content))
    found = compare([F32, INT8], "imagenet", task_settings=settings, records=[record])
    assert found.left_out == {"digits_int8": "no record has its latency"}


WRONG = {
    "one model": (["compare", F32], "two models or more"),
    "no such setting": (["compare", F32, INT8, "--set", "colour=red"], "has no setting 'colour'"),
    "no model named": (["compare", F32, INT8, "--model-set", "preset=unit"], "names no model"),
    "no quantity": (["compare", F32, INT8, "--max-latency", "soon"], "'soon' is not a quantity"),
    "no figure": (["compare", F32, INT8, "--min-accuracy", "good"], "'good' is not a figure"),
    "no plot": (["compare", F32, INT8, "-o", "x.doc"], "x.doc"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what: str, digits: Path) -> None:
    words, message = WRONG[what]
    done = call(*words, *task_words(digits), status=2)
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_file_that_is_no_record(digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema": "other"}')
    settings = {"images": digits / "img", "labels": digits / "labels.txt"} | LIKE_DIGITS
    with pytest.raises(InputError, match="no record of bench"):
        compare([F32, INT8], "imagenet", task_settings=settings, records=[path])


def test_a_model_that_cannot_be_evaluated_is_left_out(digits: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tflite"
    bad.write_bytes(b"no model")
    settings = {"images": digits / "img", "labels": digits / "labels.txt"} | LIKE_DIGITS
    found = compare(
        [F32, bad], "imagenet", task_settings=settings, launches=1, min_secs=0.02, warmup_secs=0.0
    )
    assert [c.model for c in found.candidates] == ["digits_f32"] and "bad" in found.left_out
