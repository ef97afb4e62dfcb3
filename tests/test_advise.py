"""`sanderling advise`: what is advised, what is not, and that following it is possible."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.choose.advise as driver
import sanderling.choose.evidence as looking
import sanderling.choose.trials as home
from sanderling.choose.advice import MEASURED, Advised, Cost, Gain
from sanderling.choose.advice_rules import RULES as MODEL_RULES
from sanderling.choose.advice_table import TABLE
from sanderling.choose.advise import advise
from sanderling.errors import ArgumentError, InputError, MissingExtraError, SanderlingError
from sanderling.ir import DType, Graph, Model
from sanderling.measure.bench import BenchedModel
from sanderling.measure.bench_results import Bench, Gap
from sanderling.measure.profiling import profile
from sanderling.measure.trace_insights import RULES as TRACE_RULES
from sanderling.optimize.suggest import TREE

from .support.bench_command import measured
from .support.command_line import DATA, F32, INT8, call, stored

DIGITS = DATA / "digits_test.npz"
HAS_LITERT = importlib.util.find_spec("ai_edge_litert") is not None


class Ruler:
    """Stands in for the clock: milliseconds by the name of a trial or a setting; others take 1."""

    def __init__(self, times: Mapping[str, float], noise: float = 0.01) -> None:
        self.times, self.noise = times, noise
        self.rounds: list[int] = []

    def __call__(self, subjects: Sequence[BenchedModel], *_: object, **__: object) -> Bench:
        made = Bench()
        for subject in subjects:
            for setting in subject.settings:
                name = setting.name.removeprefix("sanderling, ").removeprefix("litert, ")
                key = subject.name if subject.name in self.times else name
                ms = self.times.get(key, 1.0) * setting.batch
                result = measured(subject.name, ms, setting, self.noise)
                result.facts["batch"] = "0"
                made.results.append(result)
                if key == "1 thread, bf16" and self.times.get("off"):
                    made.answers.append(Gap(subject.name, setting.name, "0.3 off", fits=False))
        self.rounds.append(len(made.results))
        return made


@cache
def _quantised(mode: str) -> tuple[Model, object]:
    """The digits once for all tests."""
    plain = {"ranges": "minmax", "weights": "max", "corrections": "none"}
    with np.load(DIGITS) as held:
        images = held["images"][:16].astype(np.float32)[..., None] / 16
    return sanderling.quantize(F32, mode, images, **plain)  # type: ignore[arg-type]


def ruled(monkeypatch: pytest.MonkeyPatch, noise: float = 0.01, **times: float) -> Ruler:
    """No clock, no profile and no trace: what is measured is known."""
    ruler = Ruler({name.replace("_", " "): ms for name, ms in times.items()}, noise)
    monkeypatch.setattr(home, "measure_models", ruler)
    monkeypatch.setattr(looking, "profile", _no_profile)
    monkeypatch.setattr(looking.Evidence, "facts", None)
    monkeypatch.setattr("sanderling.choose.advice_rules.delegate_choices", lambda: [("cpu",)])
    monkeypatch.setattr(
        "sanderling.choose.advice_rules.quantize", lambda model, mode, *_, **__: _quantised(mode)
    )
    return ruler


def _no_profile(*_: object, **__: object) -> None:
    raise SanderlingError("not in this test")


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    with np.load(DIGITS) as held:
        images = held["images"][:64].astype(np.float32)[..., None] / 16
    path = tmp_path / "samples.npy"
    np.save(path, images)
    return path


def names(found: Advised) -> list[str]:
    return [a.name for a in found.advice]


# -- what is advised --------------------------------------------------------------------------


def test_the_largest_gain_comes_first(monkeypatch: pytest.MonkeyPatch, samples: Path) -> None:
    ruler = ruled(monkeypatch, int8=0.3, dynamic=0.5, pruning=0.6)
    ruler.times |= {"1 thread, batch 8": 0.8}  # type: ignore[operator]
    found = advise(F32, data=samples)
    assert names(found) == ["int8", "batch of 8"]
    first = found.advice[0]
    assert first.gain.value == pytest.approx(0.3, rel=0.02) and first.gain.high < 0.35
    assert "of first classes agree, on" in first.cost
    assert found.verdict.startswith("most is gained by int8: 0.3")
    told = {one.name: one.why for one in found.looked_at}
    assert told["dynamic"] == "int8 gains more"
    assert {one.name for one in found.wants} == {"pruning"}  # answers need training
    assert ruler.rounds[1] < ruler.rounds[0]  # only what seemed to gain was measured again


def test_nothing_to_gain_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ruler = ruled(monkeypatch)
    found = advise(INT8)
    assert not found.advice and not found.wants and found.verdict.startswith("nothing to gain")
    assert len(ruler.rounds) == 1
    assert all(one.gain is not None for one in found.looked_at if not one.why.startswith("it "))
    assert not any(one.kind == "quantise" for one in found.looked_at)  # it is quantised already


def test_what_the_interval_does_not_tell_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled(monkeypatch, noise=0.25, dynamic=0.95)
    found = advise(F32)
    assert "dynamic" not in names(found)
    gain = Gain(0.9, 0.7, 1.1)
    assert gain.is_unsure and not gain.is_worth_it and "interval holds 1" in driver._why_not(gain)
    assert not Gain(0.99, 0.98, 0.995).is_worth_it  # too little to change a model for


def test_without_samples_int8_is_wanted_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled(monkeypatch, int8=0.3, dynamic=0.5)
    found = advise(F32)
    assert names(found) == ["dynamic"] and "random inputs" in found.advice[0].cost
    wanted = {one.name: one for one in found.wants}["int8"]
    assert "samples" in wanted.why and "--data FOLDER_OR_NPZ" in wanted.command


def test_answers_that_change_too_much_are_not_advised(
    monkeypatch: pytest.MonkeyPatch, samples: Path
) -> None:
    ruled(monkeypatch, int8=0.3)
    monkeypatch.setattr(home, "cost_of", lambda result, has: Cost(0.6, 3.0, "on 24 samples"))
    found = advise(F32, data=samples)
    assert "int8" not in names(found)
    told = {one.name: one.why for one in found.looked_at}["int8"]
    assert "changes the answers too much: 60.0% of first classes agree" in told


def test_a_setting_with_other_answers_is_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    ruler = ruled(monkeypatch, off=1.0)
    ruler.times |= {"1 thread, bf16": 0.5}  # type: ignore[operator]
    monkeypatch.setattr("sanderling.choose.advice_rules.why_not", lambda setting, kind: "")
    found = advise(F32)
    assert "bf16" not in names(found)
    assert {o.name: o.why for o in found.looked_at}["bf16"] == "its answers are off: 0.3 off"


def test_the_goal_decides_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled(monkeypatch)
    found = advise(F32, goal="size")
    by_name = {a.name: a for a in found.advice}
    (best,) = [a for a in found.advice if a.kind == "quantise"]
    assert best.figure == "size" and best.gain.low == best.gain.high < 0.6
    assert "of its size" in by_name[best.name].text
    assert advise(F32, goal="memory").advice == []  # the ruler holds the same of all


# -- commands can be followed -----------------------------------------------------------------


def test_a_command_does_what_was_tried(
    monkeypatch: pytest.MonkeyPatch, samples: Path, tmp_path: Path
) -> None:
    ruled(monkeypatch, int8=0.3)
    monkeypatch.chdir(tmp_path)
    (advice,) = [a for a in advise(F32, data=samples).advice if a.kind == "quantise"]
    verb, *words = shlex.split(advice.command)
    assert verb == "sanderling"
    call(*words, "--corrections", "none", "--ranges", "minmax", "--weights", "max")
    made = tmp_path / "digits_f32_int8.tflite"
    assert sanderling.load(made).main.ops[0].name == "QUANTIZE"
    assert made.stat().st_size / Path(F32).stat().st_size == pytest.approx(
        advice.gains["size"].value, rel=0.02
    )


def transposed(folder: Path) -> Path:
    """A convolution as a converter from NCHW leaves it, and an op that nobody reads."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4, 8, 8))
    there = graph.constant("there", np.array([0, 2, 3, 1], np.int32))
    back = graph.constant("back", np.array([0, 3, 1, 2], np.int32))
    rng = np.random.default_rng(0)
    weights = graph.constant("w", rng.standard_normal((4, 1, 1, 4)).astype(np.float32))
    bias = graph.constant("b", np.zeros(4, np.float32))
    at = x
    for number in range(3):
        inner, product, outer = (
            graph.tensor(f"{name}{number}", DType.FLOAT32, shape)
            for name, shape in (
                ("in", (1, 8, 8, 4)),
                ("conv", (1, 8, 8, 4)),
                ("out", (1, 4, 8, 8)),
            )
        )
        graph.add("TRANSPOSE", [at, there], [inner])
        graph.add("CONV_2D", [inner, weights, bias], [product], stride_w=1, stride_h=1)
        graph.add("TRANSPOSE", [product, back], [outer])
        at = outer
    graph.add("RELU", [x], [graph.tensor("dead", DType.FLOAT32, (1, 4, 8, 8))])
    graph.outputs = [at]
    return stored(folder, Model([graph]))


def test_fewer_ops_answer_the_same(tmp_path: Path) -> None:
    path = transposed(tmp_path)
    before = path.read_bytes()
    made = sanderling.simplify(path)
    left = [op.name for op in made.model.main.ops]
    assert left.count("TRANSPOSE") == 2 and "RELU" not in left and made.ops == (10, len(left))
    assert "TRANSPOSE 6 -> 2" in made.notes[0]
    again = sanderling.simplify(made.model)
    assert not again.changes and len(again.model.main.ops) == len(left)
    target = tmp_path / "simple.tflite"
    done = call("rewrite", path, "--simplify", "-o", target, "--json", "-")
    record = json.loads(done.stdout)
    assert record["for"] == "any runtime" and all(one["ok"] for one in record["answers"])
    assert path.read_bytes() == before
    text = call("rewrite", path, "--simplify").stdout
    assert "fired" in text and "ops    10 -> " in text


def test_copies_are_proposed_with_their_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ruled(monkeypatch, fewer_ops=0.7)
    found = advise(transposed(tmp_path))
    (one,) = [a for a in found.advice if a.kind == "copies"]
    assert "of 10 ops can go" in one.evidence and "--simplify" in one.command
    assert one.cost == "answers differ by rounding at most"


# -- targets ----------------------------------------------------------------------------------


def refused(folder: Path) -> Path:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (2, 6))
    y = graph.tensor("y", DType.FLOAT32, (2, 6))
    graph.add("LOG_SOFTMAX", [x], [y])
    graph.outputs = [y]
    return stored(folder, Model([graph]))


def test_an_accelerator_is_judged_by_its_rules(tmp_path: Path) -> None:
    found = advise(refused(tmp_path), target="gpu")
    (one,) = found.advice
    assert one.figure == "refused" and one.gain.value == 0 and "refuses 1 of 1 op" in one.evidence
    assert "--for gpu" in one.command and one.text == "no op is refused any more"
    again = advise(F32, target="gpu", goal="size")
    assert [(a.name, a.figure) for a in again.advice] == [("float16", "size")]
    assert [one.why for one in again.looked_at if one.kind == "refused"] == ["gpu takes every op"]


def test_a_rewrite_whose_answers_fail_is_not_advised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "_answers", lambda e, made: ("SNR is 3 dB", ""))
    found = advise(refused(tmp_path), target="gpu")
    (one,) = found.wants
    assert not found.advice and "it needs samples" in one.why and "--data" in one.command


@pytest.mark.skipif(not HAS_LITERT, reason="ai-edge-litert is not installed")
def test_a_phone_is_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled(monkeypatch, dynamic=0.5)
    found = advise(F32, target="phone")
    assert names(found) == ["dynamic"] and found.target.engine == "litert"
    assert not any(one.kind in ("threads", "delegate") for one in found.looked_at)


def test_a_phone_without_litert_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "is_installed", lambda engine: False)
    with pytest.raises(MissingExtraError, match="pip install"):
        advise(F32, target="phone")


# -- the table, bad input, the command --------------------------------------------------------


def test_there_is_one_table() -> None:
    assert set(TRACE_RULES) < set(TABLE) and set(TREE) < set(TABLE)
    assert {rule.looks_at for rule in TABLE} == {"a model", "a trace", "a situation"}
    assert all(rule.kind and rule.says for rule in TABLE)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "goal": ({"goal": "speed"}, "no goal 'speed'"),
    "target": ({"target": "toaster"}, "no target 'toaster'"),
    "data": ({"data": "none.npz"}, "no such file or folder"),
    "preset": ({"data": DIGITS, "preset": "none"}, "none"),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_said(what: str) -> None:
    given, message = WRONG[what]
    with pytest.raises(InputError, match=message):
        advise(F32, **given)


def test_bad_numbers_and_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="`seconds` is 0"):
        advise(F32, seconds=0)
    with pytest.raises(InputError, match="No such file"):
        advise(tmp_path / "none.tflite")
    broken = tmp_path / "broken.tflite"
    broken.write_bytes(Path(F32).read_bytes()[:500])
    with pytest.raises(SanderlingError):
        advise(broken)
    told = call("advise", F32, "--report", tmp_path / "a.txt", status=2).output
    assert "ends in .html or .md" in told
    told = call("advise", F32, "--report", tmp_path / "none" / "a.md", status=2).output
    assert "no folder" in told and not list(tmp_path.glob("a.*"))


def test_a_trial_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ruled(monkeypatch)

    def fails(*_: object, **__: object) -> None:
        raise SanderlingError("no room for ranges")

    monkeypatch.setattr("sanderling.choose.advice_rules.quantize", fails)
    found = advise(F32)
    assert {o.why for o in found.looked_at if o.kind == "quantise"} == {"no room for ranges"}


def test_an_interruption_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    ruled(monkeypatch)
    monkeypatch.setattr(home, "measure_models", interrupted)
    found = advise(F32)
    assert found.interrupted and "interrupted" in found.verdict
    assert call("advise", F32, status=130).stdout.startswith("model")


def test_the_command_writes_all_forms(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, samples: Path
) -> None:
    ruled(monkeypatch, int8=0.3)
    page, notes, record = (tmp_path / name for name in ("a.html", "a.md", "a.json"))
    done = call("advise", F32, "--data", samples, "--report", page, "--json", record)
    assert "run next:" in done.stdout and "$ sanderling quantize" in done.stdout
    kept = json.loads(record.read_text())
    assert kept["schema"] == "sanderling.advise/1" and kept["advice"][0]["name"] == "int8"
    assert kept["advice"][0]["gain"]["high"] < 1 and kept["looked_at"]
    assert "<table" in page.read_text() and "run next" in page.read_text()
    call("advise", F32, "--data", samples, "--report", notes)
    assert "```console" in notes.read_text()


def test_a_real_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stands in for the clock here; figures are not judged."""
    monkeypatch.setattr("sanderling.choose.advice_rules.delegate_choices", list)
    monkeypatch.setattr("sanderling.choose.advice_rules.thread_counts", lambda: [1, 2])
    monkeypatch.setattr(home, "LAUNCHES", 1)  # a process takes a second to start
    monkeypatch.setattr(
        looking, "profile", lambda model, **how: profile(model, **how | {"with_roofline": False})
    )
    found = advise(INT8, seconds=0.1)
    assert {n.kind for n in found.noted} >= {"time"}
    assert {one.name for one in [*found.looked_at, *found.advice]} == {"2 threads", "batch of 8"}
    assert all(one.gains for one in found.advice)


# -- what is noted ----------------------------------------------------------------------------


def noted(rule: str, path: Path, **given: Any) -> list[str]:
    """What one rule finds in a model."""
    evidence = looking.Evidence(path, sanderling.load(path), MEASURED["cpu"], "latency")
    for name, value in given.items():
        setattr(evidence, name, value)
    (row,) = [r for r in MODEL_RULES if r.kind == rule]
    return [found.what for found in row.find(evidence)]


def plain(folder: Path, **changes: Any) -> Path:
    """A graph of one softmax, with what a test wants to be noted."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 100))
    if "signature" in changes:
        x.signature = changes["signature"]
    if "idle" in changes:
        graph.input("idle", DType.FLOAT32, (1, 4))
    y = graph.tensor("scores", DType.FLOAT32, (1, 100))
    graph.add("SOFTMAX", [x], [y], beta=1.0)
    graph.outputs = [y]
    return stored(folder, Model([graph]))


def test_open_sizes_and_unused_inputs_are_noted(tmp_path: Path) -> None:
    assert noted("open sizes", plain(tmp_path)) == noted("unused", plain(tmp_path)) == []
    (text,) = noted("open sizes", plain(tmp_path, signature=(-1, 100)))
    assert "'x' f32[-1,100]" in text
    assert noted("unused", plain(tmp_path, idle=True)) == ["no op reads the input 'idle'"]


def test_classes_that_no_sample_names_are_noted(tmp_path: Path) -> None:
    rows = np.eye(100, dtype=np.float32)
    few = [rows[i % 3] for i in range(60)]
    (text,) = noted("too large", plain(tmp_path), answers=few)
    assert text == "the answers to 60 samples name 3 of 100 classes"
    assert not noted("too large", plain(tmp_path), answers=few[:40])  # too few to tell
    assert not noted("too large", plain(tmp_path), answers=list(rows))


def test_float16_weights_are_noted(tmp_path: Path) -> None:
    half = tmp_path / "half.tflite"
    sanderling.save(sanderling.quantize(F32, "float16")[0], half)
    (text,) = noted("float16", half, profile=None)
    assert "DEQUANTIZE ops expand float16 weights" in text
    assert not noted("float16", Path(F32), profile=None)


def test_a_batch_is_proposed_where_results_are_of_samples(tmp_path: Path) -> None:
    assert noted("batch", Path(F32)) == ["a run takes 1 sample"]
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 8))
    sizes = graph.constant("sizes", np.array([1, -1], np.int32))
    y = graph.tensor("y", DType.FLOAT32, (1, 8))
    graph.add("RESHAPE", [x, sizes], [y], new_shape=[1, -1])
    graph.outputs = [y]
    assert noted("batch", stored(tmp_path, Model([graph]))) == []
