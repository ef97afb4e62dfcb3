"""Quantisation-aware training: a float model and samples in, a trained quantised model out.

    model, report = qat(float_model, pictures, "int8", weights="int4")

It is `train` with `Quantisation` as the last constraint, judged and reported like `quantize`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..evaluate.paired_statistics import paired
from ..format import load
from ..ir import Array, Model
from ..optimize.apply import Quantised
from ..optimize.judge import Judge
from ..optimize.layer_error import layer_rows
from ..optimize.report import Report
from ..optimize.scheme import MODES, TRAINED, mode_of
from ..runtime.session import Session
from .batches import Batches
from .constraint import Constraint
from .judging import check_float
from .losses import Loss
from .quantisation import Quantisation
from .samples import Given, TrainingData, read_training_data
from .train import Schedule, Trained, train
from .twin import Twin

SCHEMA = "sanderling.qat/1"
WEIGHTS = ("int8", "int4", "int2")
COMPARED = 512  # samples on which the forward pass in training is held against the file's answers
# The mode of each kind of activations, for weights of each type.
BY_WEIGHTS = {
    "int8": ("int8", "int8x4", "int8x2"),
    "int16x8": ("int16x8", "int16x4", None),
    "weight": ("weight-int8", "weight-int4", "weight-int2"),
    "dynamic": ("dynamic", "dynamic-int4", None),
}
# Modes that nothing can be trained for here, and why.
REFUSED = {
    "float": "it leaves all as it is",
    "float16": "16 bits lose nothing that training would bring back",
    "block-int4": "scales of blocks are not learnt here",
}
# Adam's highest rate: few bits have a longer way to go.
RATES = {8: 3e-4, 4: 1e-3, 2: 2e-3}


@dataclass
class QatReport(Report):
    """As that of `quantize`, and how training went. faithful: how far the forward pass in training
    is what the file answers, as shares of equal output codes and of equal first classes. judged:
    right answers before and after on the samples that were held out, with paired statistics."""

    mode: str = ""
    constraints: list[str] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    kept: int = 0
    frozen: dict[str, str] = field(default_factory=dict)
    faithful: dict[str, float] = field(default_factory=dict)
    judged: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"schema": SCHEMA}


def chosen_mode(mode: str, weights: str = "") -> str:
    """The mode of these activations with weights of this type; a mode's own name is taken too."""
    if mode in REFUSED:
        raise InputError(f"{mode} needs no training: {REFUSED[mode]}", where="mode", fix=_offered())
    if not weights:
        name = BY_WEIGHTS[mode][0] if mode in BY_WEIGHTS else mode
        return mode_of(str(name)).name
    if weights not in WEIGHTS or mode not in BY_WEIGHTS:
        raise InputError(
            f"no mode is {mode} with {weights} weights",
            where="weights",
            fix=f"{', '.join(WEIGHTS)} with {', '.join(BY_WEIGHTS)}",
        )
    found = BY_WEIGHTS[mode][WEIGHTS.index(weights)]
    if found is None:
        raise InputError(
            f"no kernel takes {weights} weights with {mode}", where="weights", fix="int8 or int4"
        )
    return found


def _offered() -> str:
    return f"one of {', '.join(m for m in (*MODES, *TRAINED) if m not in REFUSED)}"


def usual_schedule(mode: str) -> Schedule:
    """What suits most models: one to two minutes a thousand pictures of a small network."""
    grid = mode_of(mode).weights
    return Schedule(rate=RATES[8 if grid is None else grid.bits], batch=64)


def qat(
    model: Model | str | os.PathLike[str],
    data: Given,
    mode: str = "int8",
    *,
    weights: str = "",
    labels: str | os.PathLike[str] | Array | None = None,
    loss: Loss | None = None,
    constraints: Sequence[Constraint] = (),
    scales: str = "learned",
    damping: float = 0.1,
    recipe: Sequence[Any] = (),
    ranges: str = "auto",
    corrections: str = "auto",
    inputs: str = "float32",
    outputs: str = "float32",
    minimum: int = 1024,
    schedule: Schedule | None = None,
    checkpoint: str | Path | None = None,
) -> tuple[Model, QatReport]:
    """Train a float model for its quantised form, and write that.

    mode: int8, int16x8, dynamic or weight; weights: int8, int4 or int2. data, labels: arrays or
    files (see read_training_data); without labels it learns to answer as the float model does.
    constraints: others that hold too, such as Sparsity and Clusters. scales, damping: see
    Quantisation; recipe, ranges, corrections, inputs, outputs, minimum: see quantize.
    """
    source = model if isinstance(model, Model) else load(model)
    given = read_training_data(data, source, labels)
    return qat_on(
        source,
        given,
        chosen_mode(mode, weights),
        loss=loss,
        constraints=constraints,
        scales=scales,
        damping=damping,
        recipe=recipe,
        ranges=ranges,
        corrections=corrections,
        inputs=inputs,
        outputs=outputs,
        minimum=minimum,
        schedule=schedule,
        checkpoint=checkpoint,
    )


def qat_on(
    source: Model,
    given: TrainingData,
    mode: str,
    *,
    loss: Loss | None = None,
    constraints: Sequence[Constraint] = (),
    schedule: Schedule | None = None,
    checkpoint: str | Path | None = None,
    **options: Any,
) -> tuple[Model, QatReport]:
    """As `qat`, on samples that have been read. mode: as `chosen_mode` has it; options: fields of
    `Quantisation`."""
    check_float(source)
    rule, plan = Quantisation(mode, **options), schedule or usual_schedule(mode)
    rules = [*constraints, rule]
    found = train(source, given.inputs, rules, given.labels, loss, plan, checkpoint)
    return found.model, _report(source, found, rules, rule, given, plan)


# -- the report -----------------------------------------------------------------------------------


def _report(
    source: Model,
    found: Trained,
    rules: Sequence[Constraint],
    rule: Quantisation,
    given: TrainingData,
    plan: Schedule,
) -> QatReport:
    start, made = rule.started, rule.written
    report = QatReport.of(source, made, start.quantiser.recipe)
    assert isinstance(report, QatReport)
    report.mode, report.constraints = rule.mode, [repr(c) for c in rules]
    report.epochs, report.kept = [asdict(e) for e in found.epochs], found.kept
    report.frozen, report.notes = dict(found.frozen), list(start.notes)
    report.problems = [text for c in rules for text in c.problems(found.model)]
    held = Batches(given.inputs, plan.batch, plan.held_out, plan.seed)
    feeds = held.take(held.held[:COMPARED])
    report.faithful = faithful(found.twin, found.model, feeds)
    report.judged = judged(source, found.model, held, given.labels)
    if start.calibrated is not None:
        _measure(report, start.calibrated, made, start.candidates)
    return report


def _measure(report: QatReport, calibrated: Any, made: Quantised, tried: Sequence[Any]) -> None:
    """The rows of layers, and the trained model beside the post-training ones."""
    judge = Judge(calibrated)
    report.samples, report.held_out = calibrated.samples, calibrated.away
    report.kinds = {n: {"kind": k.name, "why": k.why} for n, k in judge.kinds.items()}
    before = [replaced for c in tried if (replaced := _unchosen(c)) is not None]
    after = judge.judge("trained", made.model)
    after.chosen = True
    report.candidates = [*before, after]
    report.layers = layer_rows(calibrated, made)


def _unchosen(candidate: Any) -> Any:
    candidate.name = f"{candidate.name} (start)" if candidate.chosen else candidate.name
    candidate.chosen = False
    return candidate


def _outputs(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """What the runtime answers, sample by sample."""
    plain = model.copy()
    plain.signatures = []  # inputs and outputs go by the names of their tensors
    session = Session(plain, threads=1)
    names, found = [t.name for t in model.main.inputs], []
    types = [t.dtype.numpy for t in model.main.inputs]
    for i in range(len(inputs[0])):
        feeds = {n: x[i : i + 1].astype(d) for n, x, d in zip(names, inputs, types, strict=True)}
        answers = session.run(feeds)
        found.append([np.array(answers[t.name]) for t in model.main.outputs])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def faithful(twin: Twin, model: Model, inputs: Sequence[Array]) -> dict[str, float]:
    """How far the forward pass in training is what the written file answers: the share of equal
    first outputs (within a thousandth of their range), and of equal first classes."""
    if any(not t.dtype.is_float for t in (*model.main.inputs, *model.main.outputs)):
        return {}  # the interface is of codes: nothing to hold side by side
    with torch.no_grad():
        ours = twin.outputs_and(list(inputs), [])[0][0].numpy()
    theirs = _outputs(model, inputs)[0].reshape(ours.shape)
    near = 1e-3 * max(float(np.ptp(theirs)), 1e-12)
    rows = ours.reshape(len(ours), -1), theirs.reshape(len(ours), -1)
    return {
        "samples": float(len(ours)),
        "equal": float((np.abs(ours - theirs) <= near).mean()),
        "same_class": float((rows[0].argmax(1) == rows[1].argmax(1)).mean()),
    }


def judged(source: Model, made: Model, held: Batches, labels: Array | None) -> dict[str, Any]:
    """Answers before and after on samples that were not trained on: right ones with labels, and
    the same first class in any case."""
    if any(not t.dtype.is_float for t in (*made.main.inputs, *made.main.outputs)):
        return {}
    inputs = held.take(held.held)
    before, after = (_outputs(m, inputs)[0].reshape(len(held.held), -1) for m in (source, made))
    classes = before.argmax(1), after.argmax(1)
    found: dict[str, Any] = {
        "samples": len(held.held),
        "agreement": float((classes[0] == classes[1]).mean()),
    }
    if labels is None or before.shape[1] < 2:
        return found
    truth = np.asarray(labels)[held.held]
    if truth.dtype.kind in "iu" and truth.size == len(truth):  # a class for each sample
        truth = truth.reshape(-1)
        found |= paired(classes[1] == truth, classes[0] == truth)
    return found
