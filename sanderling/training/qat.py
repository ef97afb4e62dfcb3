"""Quantisation-aware training: a float model and samples in, a trained quantised model out.

    model, report = qat(float_model, pictures, "int8", weights="int4")

It is `train` with `Quantisation` as the last constraint, judged and reported like `quantize`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..evaluate.task import Task
from ..format import load
from ..ir import Array, Model
from ..optimize.judging.judge import Judge
from ..optimize.judging.layer_error import layer_rows
from ..optimize.judging.report import Report
from ..optimize.modes.scheme import MODES, TRAINED, mode_of
from ..optimize.writing.apply import Quantised
from .bits import levels
from .constraint import Constraint
from .constraints.quantisation import Quantisation
from .differentiable.twin import Twin
from .loop.batches import Batches, checked_rows
from .loop.checkpoint import Journal, identity, of_trial
from .loop.judging import Judging, Sought, check_float, furthest, runtime_answers
from .loop.losses import Loss
from .loop.samples import Given, TrainingData, read_training_data
from .loop.train import Schedule, Trained, train

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
LOOKED_AT = 256  # samples at most that layers' errors are computed on
UNBEATEN = (
    "No epoch was better than the start on the held-out samples: the model is the post-training "
    "result. More samples, more epochs or another rate may help."
)
CANDIDATES_ON = (
    "The candidates are compared on samples of the calibration, of which training has seen most; "
    "which epoch is kept is decided on the samples that were held out."
)
# Adam's highest rate: few bits have a longer way to go.
RATES = {8: 3e-4, 4: 1e-3, 2: 2e-3}


@dataclass
class QatReport(Report):
    """As that of `quantize`, and how training went. kept: the epoch whose weights the model has; 0:
    the start, since no epoch was better on held-out samples. start: what the start is worth on
    these. faithful: how far the forward pass in training is what the file answers, as shares of
    equal output codes and of equal first classes. compared: with the float model on held-out
    samples, as that of `prune`. bits: of the weights of layers that a search gave fewer than 8."""

    mode: str = ""
    constraints: list[str] = field(default_factory=list)
    start: dict[str, float | None] | None = None
    epochs: list[dict[str, float | None]] = field(default_factory=list)
    kept: int = 0
    frozen: dict[str, str] = field(default_factory=dict)
    faithful: dict[str, float] = field(default_factory=dict)
    compared: dict[str, Any] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)
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


def searched_mode(mode: str, weights: str = "") -> str:
    """The mode that a search for the fewest bits begins with."""
    if weights:
        raise InputError(
            f"a target finds the bits of the weights, and {weights} is given",
            where="weights",
            fix="leave one of them out",
        )
    if mode not in BY_WEIGHTS:
        raise InputError(
            f"no bits are searched for in the mode {mode}",
            where="mode",
            fix=f"one of {', '.join(BY_WEIGHTS)}",
        )
    return chosen_mode(mode)


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
    max_drop: float | None = None,
    task: Task | None = None,
    task_limit: int = 0,
) -> tuple[Model, QatReport]:
    """Train a float model for its quantised form, and write that.

    mode: int8, int16x8, dynamic or weight; weights: int8, int4 or int2. data, labels: arrays or
    files (see read_training_data); without labels it learns to answer as the float model does.
    constraints: others that hold too, such as Sparsity and Clusters. scales, damping: see
    Quantisation; recipe, ranges, corrections, inputs, outputs, minimum: see quantize. max_drop:
    find the fewest bits, layer by layer, with which the figure (of the task; else the accuracy,
    with labels; else the agreement with float) falls by no more; each trial is a whole training.
    """
    source = model if isinstance(model, Model) else load(model)
    given = read_training_data(data, source, labels)
    return qat_on(
        source,
        given,
        searched_mode(mode, weights) if max_drop is not None else chosen_mode(mode, weights),
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
        max_drop=max_drop,
        task=task,
        task_limit=task_limit,
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
    max_drop: float | None = None,
    task: Task | None = None,
    task_limit: int = 0,
    **options: Any,
) -> tuple[Model, QatReport]:
    """As `qat`, on samples that have been read. mode: as `chosen_mode` has it, or `searched_mode`
    with max_drop; options: fields of `Quantisation`."""
    check_float(source)
    plan = schedule or usual_schedule(mode)
    job = _Job(source, given, mode, loss, constraints, plan, checkpoint, options)
    judging = Judging(source, job.held_out, task, task_limit, answer=runtime_answers)
    sought = None if max_drop is None else job.searched(judging, max_drop)
    made = job.made(options.get("recipe", ()), checkpoint) if sought is None else sought.made
    report = made.report(job, judging)
    if sought is not None:
        report.target, report.trials = sought.target, sought.trials
        report.bits = made.bits
    return made.trained.model, report


@dataclass
class _Job:
    """Trains one model, perhaps several times."""

    source: Model
    given: TrainingData
    mode: str
    loss: Loss | None
    constraints: Sequence[Constraint]
    plan: Schedule
    checkpoint: str | Path | None
    options: dict[str, Any]

    @property
    def held_out(self) -> TrainingData:
        """The samples that `train` keeps away under the same schedule."""
        rows = checked_rows(self.source.main, self.given.inputs)
        held = Batches(rows, self.plan.batch, self.plan.held_out, self.plan.seed).held
        part = self.given.part(held)
        return part if self.loss is None and _are_classes(part.labels) else _without_labels(part)

    def made(self, recipe: Sequence[Any], checkpoint: str | Path | None) -> _Made:
        rule = Quantisation(self.mode, **(self.options | {"recipe": recipe}))
        # Constraints remember weights: each run has its own.
        rules = [*copy.deepcopy(list(self.constraints)), rule]
        found = train(
            self.source,
            self.given.inputs,
            rules,
            self.given.labels,
            self.loss,
            self.plan,
            checkpoint,
        )
        return _Made(found, rules, rule)

    def searched(self, judging: Judging, max_drop: float) -> Sought:
        kind = next(k for k, modes in BY_WEIGHTS.items() if modes[0] == self.mode)
        minimum = self.options.get("minimum", Quantisation.minimum)
        seen = self.given.spread(LOOKED_AT)
        found = levels(self.source, seen, kind, minimum, self.plan.seed)

        def make(number: float) -> tuple[Model, _Made]:
            level = found[int(number)]
            # What the user states about an op comes later, and wins.
            rules = [*level.rules, *self.options.get("recipe", ())]
            made = self.made(rules, of_trial(self.checkpoint, str(len(level.steps))))
            made.bits = level.bits
            return made.trained.model, made

        def name(number: float) -> str:
            return found[int(number)].name

        journal = Journal.of(self.checkpoint, self._identity(judging))
        return furthest(judging, make, name, max_drop, range(len(found)), journal)

    def _identity(self, judging: Judging) -> str:
        """What a search is known by. How far the figure may fall does not change what was tried."""
        settings = {
            "mode": self.mode,
            "options": self.options,
            "plan": asdict(self.plan) | {"loss": self.loss is not None},
            "judged": [judging.task and judging.task.name, judging.limit],
        }
        return identity(
            self.source, self.given.inputs, self.given.labels, self.constraints, settings
        )


def _are_classes(labels: Array | None) -> bool:
    return labels is None or (labels.dtype.kind in "iu" and labels.size == len(labels))


def _without_labels(data: TrainingData) -> TrainingData:
    """Without labels: what they say only the user's own loss knows."""
    return replace(data, labels=None)


# -- the report -----------------------------------------------------------------------------------


@dataclass
class _Made:
    """A trained model, with its constraints. bits: that a search chose."""

    trained: Trained
    rules: Sequence[Constraint]
    rule: Quantisation
    bits: dict[str, int] = field(default_factory=dict)

    def report(self, job: _Job, judging: Judging) -> QatReport:
        start, found = self.rule.started, self.trained
        report = QatReport.of(job.source, self.rule.written, start.quantiser.recipe)
        assert isinstance(report, QatReport)
        report.mode, report.constraints = self.rule.mode, [repr(c) for c in self.rules]
        report.epochs, report.kept = [asdict(e) for e in found.epochs], found.kept
        report.start = None if found.start is None else asdict(found.start)
        report.frozen, report.notes = dict(found.frozen), list(start.notes)
        report.problems = [text for c in self.rules for text in c.problems(found.model)]
        some = judging.data.part(slice(0, COMPARED)).inputs
        report.faithful = faithful(found.twin, found.model, [np.asarray(x[:]) for x in some])
        report.compared = judging.compared(found.model)
        if start.calibrated is not None:
            _measure(report, start.calibrated, self.rule.written, start.candidates)
        if found.start is not None and found.epochs and not found.kept:
            report.notes.append(UNBEATEN)
        return report


def _measure(report: QatReport, calibrated: Any, made: Quantised, tried: Sequence[Any]) -> None:
    """The rows of layers, and the trained model beside the post-training ones."""
    judge = Judge(calibrated)
    report.samples, report.held_out = calibrated.samples, calibrated.away
    report.kinds = {n: {"kind": k.name, "why": k.why} for n, k in judge.kinds.items()}
    report.candidates = list(tried)
    if report.kept:
        after = judge.judge("trained", made.model)
        after.chosen = True
        report.candidates = [*(_unchosen(c) for c in tried), after]
        report.notes.append(CANDIDATES_ON)
    report.layers = layer_rows(calibrated, made)


def _unchosen(candidate: Any) -> Any:
    name = f"{candidate.name} (start)" if candidate.chosen else candidate.name
    return replace(candidate, name=name, chosen=False)


def faithful(twin: Twin, model: Model, inputs: Sequence[Array]) -> dict[str, float]:
    """How far the forward pass in training is what the written file answers: the share of equal
    first outputs (within a thousandth of their range), and of equal first classes."""
    if any(not t.dtype.is_float for t in (*model.main.inputs, *model.main.outputs)):
        return {}  # the interface is of codes: nothing to hold side by side
    with torch.no_grad():
        ours = twin.outputs_and(list(inputs), [])[0][0].numpy()
    theirs = runtime_answers(model, inputs)[0].reshape(ours.shape)
    near = 1e-3 * max(float(np.ptp(theirs)), 1e-12)
    found = {
        "samples": float(len(ours)),
        "equal": float((np.abs(ours - theirs) <= near).mean()),
    }
    rows = ours.reshape(len(ours), -1), theirs.reshape(len(ours), -1)
    if rows[0].shape[1] > 1:  # one number alone has no first class
        found["same_class"] = float((rows[0].argmax(1) == rows[1].argmax(1)).mean())
    return found
