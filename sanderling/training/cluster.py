"""Clustering: a float model in, one whose weights have few different values, and a report out.

    made, report = cluster(model, pictures, count=16)

The file is no smaller as it is, but what zip makes of it is: a quarter and less. Values that are
whole multiples of one number for each channel can be stored as int4 or int2 instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..evaluate.task import Task
from ..format import load
from ..ir import Array, DType, Model, Op, Quant, Tensor
from ..optimize.judging.accuracy import compare_accuracy
from ..optimize.judging.latency import compare_latency
from .allocation import pruned_layers
from .clusters import DEPTHWISE, GRID, Clusters
from .constraint import Constraint, weights_of
from .judging import (
    Judging,
    Sought,
    check_float,
    check_judged,
    furthest,
    split,
    torch_threads,
    with_classes,
)
from .one_shot import layer_moments, no_statistics
from .one_shot_clusters import cluster_at_once, to_nearest, values_of
from .report import TrainingReport
from .samples import Given, TrainingData, no_samples, read_training_data
from .segments import home_of, store, weight_values
from .started import StartedFrom
from .train import Schedule, train

STORAGE = {"float": 0, "int4": 15, "int2": 3}  # the values that each can say; 0: any number
LOOKED_AT = 512  # samples at most whose statistics are taken; all are trained on
COUNTS = (256, 128, 64, 32, 24, 16, 12, 8, 6, 4, 3, 2)  # that a search tries
ERRORS = [float(e) for e in np.geomspace(1e-5, 0.2, 16)]  # of a layer's sums, the same in each


@dataclass(frozen=True)
class Clustering:
    """How to cluster; see Clusters. storage: "int4" or "int2" store the values as such, behind an
    op that expands them; they need 15 or 3 values of a grid for each channel, and set that.
    depthwise_count: values of depthwise weights, which are left alone otherwise: 256, as many as 8
    bits have, lose next to nothing."""

    count: int = 16
    start: str = "kmeans++"
    per_channel: bool = False
    keep_zeros: bool = True
    depthwise: bool = False
    only: Sequence[str] = ()
    storage: str = "float"
    seed: int = 0
    depthwise_count: int = 0

    def __post_init__(self) -> None:
        if self.storage not in STORAGE:
            raise InputError(
                f"no storage '{self.storage}'", where="storage", fix=f"one of {', '.join(STORAGE)}"
            )
        Clusters(self.count, self.start)  # it checks these
        if self.depthwise_count:
            Clusters(self.depthwise_count, self.start)

    @property
    def settled(self) -> Clustering:
        """With what the storage needs."""
        most = STORAGE[self.storage]
        if not most:
            return self
        return replace(self, count=min(self.count, most), start=GRID, per_channel=True)

    def rule(self, model: Model, counts: dict[str, int] | None = None) -> Clusters:
        """What the model is to hold. counts: of some weights, by name."""
        deep = {t.name: self.depthwise_count for t in self.depthwise_weights(model)}
        return Clusters(
            self.count, self.start, self.per_channel, self.keep_zeros, self.depthwise or bool(deep),
            self.only, deep | (counts or {}), self.seed,
        )  # fmt: skip

    def depthwise_weights(self, model: Model) -> list[Tensor]:
        """Those that have a number of values of their own."""
        if not self.depthwise_count:
            return []
        return [t for t in weights_of(model, self.only, True) if _is_depthwise(t.users)]


def cluster(
    model: Model | str | os.PathLike[str],
    data: Given | TrainingData | None = None,
    how: Clustering | None = None,
    *,
    labels: str | os.PathLike[str] | Array | None = None,
    schedule: Schedule | None = None,
    held_out: float = 0.2,
    max_drop: float | None = None,
    task: Task | None = None,
    task_limit: int = 0,
    checkpoint: str | Path | None = None,
    latency: bool = False,
    threads: int = 1,
    **settings: Any,
) -> tuple[Model, TrainingReport]:
    """Cluster the weights of a float model.

    how, or settings by name: see Clustering. data: samples; with them values are chosen by what
    layers read and errors are made up for, without them by the weights alone. schedule: of the
    training afterwards; its epochs are 0 unless it is given. max_drop: find the fewest values,
    layer by layer, with which the figure (of the task; else the accuracy, with labels; else the
    agreement with float) falls by no more.
    """
    source = model if isinstance(model, Model) else load(model)
    asked = replace(how or Clustering(), **settings).settled
    check_float(source)
    schedule = schedule or Schedule(epochs=0)
    given = with_classes(_data(source, data, labels, schedule, max_drop), source)
    own, away = split(given, held_out, asked.seed) if len(given) else (given, given)
    check_judged(away, max_drop, task)
    with torch_threads(threads):
        job = _Job(source, own, asked, schedule, checkpoint)
        judging = Judging(source, away, task, task_limit)
        sought = None if max_drop is None else job.searched(judging, max_drop)
        made = job.clustered({}) if sought is None else sought.made
        report = job.report(made, judging, sought)
    report.samples = len(own)
    if task is not None:
        report.accuracy = compare_accuracy(source, made.model, task, task_limit)
    if latency:
        report.latency = compare_latency(source, made.model, threads)
    return made.model, report


def check_clustered(model: Model, how: Clustering) -> list[str]:
    """What a finished model breaks of the values that were asked, a sentence each."""
    return how.settled.rule(model).problems(model)


def _data(
    model: Model,
    data: Given | TrainingData | None,
    labels: str | os.PathLike[str] | Array | None,
    schedule: Schedule,
    max_drop: float | None,
) -> TrainingData:
    if isinstance(data, TrainingData):
        return data
    if data is not None:
        return read_training_data(data, model, labels)
    if schedule.epochs or max_drop is not None:
        what = "training needs some" if schedule.epochs else "a target is judged on some"
        raise InputError(
            f"there are no samples: {what}", where="data", fix="give some; labels are not needed"
        )
    return no_samples(model, labels)


@dataclass
class Made:
    """A clustered model, errors of its layers, and what it is to hold."""

    model: Model
    rule: Clusters
    errors: dict[str, float | None]
    epochs: list[dict[str, float]]


class _Job:
    """Clusters one model, perhaps several times."""

    def __init__(
        self,
        model: Model,
        data: TrainingData,
        how: Clustering,
        schedule: Schedule,
        checkpoint: str | Path | None,
    ) -> None:
        self.model, self.data, self.how = model, data, how
        self.schedule, self.checkpoint = schedule, checkpoint
        tensors = weights_of(model, how.only, how.depthwise)
        self.names = [t.name for t in tensors if home_of(t) is not None]

    @cached_property
    def seen(self) -> list[Array]:
        """Samples whose statistics are taken."""
        return self.data.spread(LOOKED_AT)

    def clustered(self, counts: dict[str, int]) -> Made:
        rule = self.how.rule(self.model, counts)
        if len(self.data) and not self.how.depthwise:
            found = cluster_at_once(self.model, self.seen, self.names, rule, self.how.seed)
            errors = {x.tensor: x.error for x in found.layers}
            # Depthwise layers have no statistics here.
            whole = self._by_weights_alone(found.model, self.how.depthwise_weights, rule)
            made = Made(whole, rule, errors, [])
        else:
            made = Made(self._by_weights_alone(self.model, self._all, rule), rule, {}, [])
        return self._trained(made, self.how.rule(self.model, counts))

    def _all(self, model: Model) -> list[Tensor]:
        is_deep = self.how.depthwise or self.how.depthwise_count > 0
        return weights_of(model, self.how.only, is_deep)

    def _by_weights_alone(
        self, model: Model, weights: Callable[[Model], list[Tensor]], rule: Clusters
    ) -> Model:
        made = model.copy()
        for tensor in weights(made):
            if home_of(tensor) is None:
                continue
            values, is_deep = weight_values(tensor), _is_depthwise(tensor.users)
            rows = values.reshape(-1, values.shape[-1]).T if is_deep else values
            matrix = rows.reshape(len(rows), -1)
            table = values_of(tensor.name, matrix, torch.ones(matrix.shape[1]), rule)
            found = to_nearest(matrix, table, rule.keep_zeros)
            store(tensor, found.T if is_deep else found)
        return made

    def _trained(self, made: Made, rule: Clusters) -> Made:
        if not self.schedule.epochs:
            return made
        constraints: list[Constraint] = [StartedFrom(made.model), rule]
        found = train(
            self.model,
            self.data.inputs,
            constraints,
            self.data.labels,
            schedule=self.schedule,
            checkpoint=self.checkpoint,
        )
        made.model, made.epochs = found.model, [dict(vars(e)) for e in found.epochs]
        return made

    # -- a target -------------------------------------------------------------------------------

    def searched(self, judging: Judging, max_drop: float) -> Sought:
        errors = self._errors()
        most = STORAGE[self.how.storage] or max(COUNTS)

        def counts(level: float) -> dict[str, int]:
            """Of each layer the fewest values whose error is at most this."""
            return {
                name: min([c for c, e in found.items() if e <= level], default=most)
                for name, found in errors.items()
            }

        def make(level: float) -> tuple[Model, Made]:
            made = self.clustered(counts(level))
            return made.model, made

        def name(level: float) -> str:
            chosen = counts(level).values()
            return f"{min(chosen)} to {max(chosen)} values, errors of {level:.1e}"

        return furthest(judging, make, name, max_drop, ERRORS)

    def _errors(self) -> dict[str, dict[int, float]]:
        """By weight and number of values: the error of the layer's sums, of their power, if errors
        of elements are independent."""
        layers = [op for op in pruned_layers(self.model, self.names) if not no_statistics(op)]
        moments = layer_moments(self.model, layers, self.seen, self.how.seed)
        allowed = [c for c in COUNTS if c <= (STORAGE[self.how.storage] or max(COUNTS))]
        found: dict[str, dict[int, float]] = {}
        for op in layers:
            values = weight_values(op.operand(1))
            matrix = values.reshape(len(values), -1)
            power = torch.diagonal(moments[op].inner)[:-1]
            whole = float((matrix.square() * power).sum().clamp(min=1e-30))
            errors = _error_of(op, matrix, power, self.how)
            found[op.operand(1).name] = {c: errors(c) / whole for c in allowed}
        return found

    # -- telling --------------------------------------------------------------------------------

    def report(self, made: Made, judging: Judging, sought: Sought | None) -> TrainingReport:
        compared, problems = judging.compared(made.model), made.rule.problems(made.model)
        has_deep = self.how.depthwise or self.how.depthwise_count > 0
        notes = [] if has_deep else _left_out(self.model)
        if self.how.storage != "float":
            made.model = stored_as_codes(made.model, made.rule, self.names)
            notes.append(f"Values are stored as {self.how.storage}, with a scale for each channel.")
        settings = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self.how).items()}
        report = TrainingReport.of("cluster", self.model, made.model, settings)
        report.compared, report.problems, report.epochs = compared, problems, made.epochs
        report.notes = notes
        for row in report.layers:
            row.error = made.errors.get(row.name)
        if sought is not None:
            report.target, report.trials = sought.target, sought.trials
            report.settings["counts"] = made.rule.counts
        return report


def _error_of(
    op: Op, matrix: torch.Tensor, power: torch.Tensor, how: Clustering
) -> Callable[[int], float]:
    def error(count: int) -> float:
        # An element's error alone is asked: no weight has a number of its own.
        rule = Clusters(count, how.start, how.per_channel, how.keep_zeros, seed=how.seed)
        table = values_of(op.operand(1).name, matrix, power, rule)
        apart = to_nearest(matrix, table, rule.keep_zeros) - matrix
        return float((apart.square() * power).sum())

    return error


def _is_depthwise(users: Sequence[Op]) -> bool:
    return any(op.name == DEPTHWISE for op in users)


def _left_out(model: Model) -> list[str]:
    count = sum(op.name == DEPTHWISE for op in model.main.ops)
    if not count:
        return []
    return [
        f"{count} depthwise layers were left as they are: they have few weights, each of which "
        "matters, and clustering them costs more than it saves; 256 values (depthwise_count) lose "
        "next to nothing."
    ]


# -- codes ----------------------------------------------------------------------------------------


def stored_as_codes(model: Model, rule: Clusters, names: Sequence[str]) -> Model:
    """Weights as whole multiples of a step for each channel, expanded again before use."""
    made = model.copy()
    for tensor in weights_of(made, rule.only, rule.depthwise):
        if tensor.name not in names or not tensor.is_constant:
            continue
        axis = len(tensor.shape) - 1 if _is_depthwise(tensor.users) else 0
        values = np.array(tensor.values, np.float32)
        reach = max(1, (rule.count_of(tensor.name) - 1) // 2)
        steps = _steps(np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1), reach)
        shape = [-1 if i == axis else 1 for i in range(values.ndim)]
        codes = np.rint(values / steps.reshape(shape)).astype(np.int8)
        kind = DType.INT4 if reach > 1 else DType.INT2
        quant = Quant.of(steps, 0, axis)
        stored = made.main.constant(f"{tensor.name}/codes", codes, kind, quant=quant)
        wide = made.main.tensor(f"{tensor.name}/wide", tensor.dtype, tensor.shape)
        made.main.replace_uses(tensor, wide)
        made.main.insert(Op("DEQUANTIZE", [stored], [wide]), before=made.main.ops[0])
    made.main.prune()
    return made


def _steps(rows: Array, reach: int) -> Array:
    """Of each row the number that all its values are whole multiples of."""
    found = np.ones(len(rows), np.float32)
    for number, row in enumerate(rows):
        values = np.unique(np.abs(row[row != 0]))
        if values.size:
            found[number] = _step_of(values, reach)
    return found


def _step_of(values: Array, reach: int) -> float:
    """The least of the values is 1 to `reach` steps: the division that makes all of them whole."""
    for times in range(1, reach + 1):
        step = float(values[0]) / times
        counts = values / step
        if np.allclose(counts, np.rint(counts), atol=1e-3) and counts.max() < reach + 0.5:
            return float(values[-1] / np.rint(counts[-1]))
    raise InputError(
        "values are no multiples of one number", where="storage", fix="store them as float"
    )
