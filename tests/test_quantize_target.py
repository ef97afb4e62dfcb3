"""Accuracy targets: as few finer ops as needed, chosen by some samples and judged by others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import Target, TargetMissedError, load, make_task, quantize, save
from sanderling.ir import DType, Model
from sanderling.optimize.judging.finer_ops import MOST_GIVEN_BACK, FinerSearch, mark_pareto
from sanderling.optimize.judging.report import Trial
from sanderling.optimize.judging.target import LEAST_HALF

from .support.quantize_command import F32, FAST, PLAIN, call, digits, parents, samples


def test_a_target_that_holds_at_once_keeps_nothing() -> None:
    _, report = quantize(F32, data=samples(), target=Target(min_agreement=0.5), **PLAIN)
    assert report.target["met"] and report.target["kept"] == []
    assert report.trials[0].name == "float" and len(report.trials) == 2


def test_a_target_in_between_keeps_as_few_as_needed() -> None:
    _, base = quantize(F32, data=samples(), **PLAIN)
    reach = base.candidates[0].snr + 1.5
    model, report = quantize(F32, data=samples(), target=Target(min_snr=reach), **PLAIN)
    chosen = next(t for t in report.trials if t.chosen)
    assert chosen.meets and chosen.score >= reach and 0 < len(chosen.kept) < 5
    assert all(len(t.kept) >= len(chosen.kept) for t in report.trials if t.meets and t.kept)
    finer = [r for r in report.rules if r["name"] in chosen.kept]
    assert [r["mode"] for r in finer] == ["int16x8"] * len(chosen.kept)
    kinds = {t.name: t.dtype for op in model.main.ops for t in op.outputs}
    assert DType.INT16 in kinds.values(), "what the rules say is in the file"
    again, _ = quantize(F32, data=samples(), recipe=report.rules, **PLAIN)
    assert sanderling.dump(again) == sanderling.dump(model), "the rules make it again"


def test_a_missed_target_is_an_error_with_what_was_reached() -> None:
    with pytest.raises(TargetMissedError, match="was not reached") as caught:
        quantize(F32, data=samples(), target=Target(min_snr=119, finer=("int16x8",)), **PLAIN)
    reached = caught.value.report.target
    assert not reached["met"] and 30 < reached["reached"] < 119
    assert isinstance(caught.value.model, Model)


def test_targets_on_the_command_line(tmp_path: Path) -> None:
    save(parents("TANH", "LOGISTIC"), tmp_path / "m.tflite")
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    out, page = tmp_path / "q.tflite", tmp_path / "page.html"
    base = (tmp_path / "m.tflite", "-o", out, "--data", tmp_path / "x.npy", *FAST)
    missed = (*base, "--min-snr", 118, "--finer", "int16x8")
    result = call(*missed, "--report", page, status=1)
    assert not out.exists() and "--anyway writes" in result.stderr
    assert "missed with" in result.stdout and "Pareto" in result.stdout
    assert "Pareto" in page.read_text(), "what was reached is told"
    call(*missed, "--anyway", status=1)
    assert {op.outputs[0].dtype for op in load(out).main.ops} >= {DType.INT16}
    text = call(*base, "--min-agreement", 0.1).stdout
    assert "agreement of 0.1 with float: met" in text


def test_a_drop_on_a_task(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    rows, labelled = digits(tmp_path, 0, 40), digits(tmp_path / "task", 100, 180)
    out = tmp_path / "q.tflite"
    record = json.loads(
        call(
            F32,
            "-o",
            out,
            "--data",
            rows,
            "--max-drop",
            0.05,
            "--task",
            "arrays",
            "--task-option",
            f"data={labelled}",
            "--task-limit",
            60,
            "--json",
            "-",
            *FAST,
        ).stdout
    )
    target = record["target"]
    assert target["met"] and target["figure"] == "top1" and target["float"] > 0.9
    assert record["trials"][0]["name"] == "float" and out.is_file()
    assert target["apart"] and (target["chosen_on"], target["judged_on"]) == (30, 30)
    first = record["trials"][0]
    assert record["accuracy"]["before"]["top1"] == pytest.approx(
        (first["choice"] + first["score"]) / 2
    )
    assert record["accuracy"]["compared"]["agreement"]["value"] > 0.9
    task = make_task("arrays", data=labelled)
    with pytest.raises(sanderling.InputError, match="gives no figure 'top7'"):
        quantize(
            F32, data=samples(), target=Target(max_drop=0.1, task=task, metric="top7"), **PLAIN
        )


def test_stretches_are_given_back() -> None:
    """Of ten ops two are needed: long stretches go at once, and the two stay."""
    search = object.__new__(FinerSearch)
    tried: list[list[str]] = []

    def attempt(_: str, kept: list[str], how: str) -> Trial:
        tried.append(list(kept))
        return Trial(how, 1.0, 1, 1.0, meets={"c", "d"} <= set(kept))

    search.attempt = attempt  # type: ignore[method-assign, assignment]
    search._give_back("int16x8", list("abcdefghij"))
    held = [kept for kept in tried if {"c", "d"} <= set(kept)]
    assert held[0] == list("abcde") and held[-1] == ["c", "d"]
    assert len(tried) <= MOST_GIVEN_BACK and [] not in tried


def test_one_half_chooses_and_the_other_judges() -> None:
    _, report = quantize(F32, data=samples(180), target=Target(min_snr=20), **PLAIN)
    found, trial = report.target, report.trials[1]
    assert found["apart"] and found["met"] and found["judged"] == 1 and found["refused"] == 0
    chosen, judged = found["chosen_on"], found["judged_on"]
    assert min(chosen, judged) >= LEAST_HALF and abs(chosen - judged) <= 1
    assert trial.choice is not None and trial.choice != trial.score == found["reached"]
    whole = (trial.choice * chosen + trial.score * judged) / (chosen + judged)
    assert whole == pytest.approx(report.candidates[0].snr), "together they are all held out"
    assert any("holds on both halves" in note for note in report.notes)


def test_the_half_that_judges_can_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked about models that suit the other half, and the search goes on if it says no."""
    answers = iter([[1.0, 1.0], [1.0, 0.5], *([[0.6, 1.0]] * 2)])  # float, plain, two more
    monkeypatch.setattr(Target, "_on_held", lambda *_: next(answers, [1.0, 0.9]))
    _, report = quantize(F32, data=samples(), target=Target(min_agreement=0.8), **PLAIN)
    found, plain = report.target, report.trials[1]
    assert not plain.meets and plain.choice == 1.0 and plain.score == 0.5
    assert found["met"] and found["kept"] and found["reached"] == 0.9
    assert found["refused"] == 1 and found["judged"] == found["tried"] - 2, "two suited neither"
    assert any("1 of them refused" in note for note in report.notes)


def test_few_samples_choose_and_judge_and_it_is_said() -> None:
    _, base = quantize(F32, data=samples(), **PLAIN)
    target = Target(min_snr=base.candidates[0].snr + 1.5)
    _, report = quantize(F32, data=samples(), target=target, **PLAIN)
    assert not report.target["apart"] and report.trials[1].choice is None
    assert report.target["chosen_on"] == report.target["judged_on"] < 2 * LEAST_HALF
    assert any("that chose are those that judge" in note for note in report.notes)


def test_a_target_that_leaves_little_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.optimize.judging.target.LITTLE_LEFT", 0.5)
    target = Target(min_snr=44, finer=("float",))
    _, report = quantize(F32, data=samples(), target=target, **PLAIN)
    assert report.target["met"] and report.modes["int8"] > 0, "something is left of it"
    assert any("Little is left" in note for note in report.notes)


def test_weight_modes_have_targets_too() -> None:
    _, report = quantize(F32, "weight-int4", samples(), target=Target(min_snr=20), **PLAIN)
    assert report.target["met"] and {r["mode"] for r in report.rules[1:]} <= {"weight-int8"}


def test_pareto_marks_what_nothing_beats() -> None:
    trials = [
        Trial("a", 1.0, 100, 3.0),
        Trial("b", 0.9, 50, 1.0),
        Trial("c", 0.8, 60, 2.0),
        Trial("d", 0.9, 50, 1.0),
    ]
    mark_pareto(trials)
    assert [t.pareto for t in trials] == [True, True, False, True]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"min_agreement": 2.0},
        {"max_drop": 0.1},
        {"min_agreement": 0.9, "min_snr": 30},
        {"min_agreement": 0.9, "finer": ["int9"]},
    ],
)
def test_strange_targets_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(sanderling.InputError):
        Target(**given)
