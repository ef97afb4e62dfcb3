"""Clustering: a float model in, one whose weights have few different values, and a report out.

    made, report = cluster(model, pictures, count=16)

The file is no smaller as it is, but what zip makes of it is: a quarter and less. Values that are
whole multiples of one number for each channel can be stored as int4 or int2 instead.
"""

from __future__ import annotations

import math
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
from .constraint import weights_of
from .constraints.clusters import DEPTHWISE, GRID, Clusters
from .loop.judging import Sought
from .loop.samples import Given, TrainingData
from .loop.started_from import StartedFrom
from .loop.train import Schedule
from .report import TrainingReport
from .shrinking import Job, Levels, Made, Terms, carried_out
from .without_training.allocation import pruned_layers
from .without_training.one_shot import layer_moments, no_statistics
from .without_training.one_shot_clusters import (
    by_weights_alone,
    cluster_at_once,
    table_of,
    to_values,
)
from .without_training.segments import home_of, store, weight_values

STORAGE = {"float": 0, "int4": 15, "int2": 3}  # the values that each can say; 0: any number
COUNTS = (256, 128, 64, 32, 24, 16, 12, 8, 6, 4, 3, 2)  # that a search tries
ERRORS = [float(e) for e in np.geomspace(1e-5, 0.2, 16)]  # of a layer's sums, the same in each


@dataclass(frozen=True)
class Clustering:
    """How to cluster; see Clusters. storage: "int4" or "int2" store the values as such, behind an
    op that expands them; they need 15 or 3 values of a grid for each channel, and set that.
    depthwise_count: values of depthwise weights, which are left alone otherwise: 256, as many as 8
    bits have, lose next to nothing. slack: the share by which the square of a layer's errors may
    grow where that makes the zipped file smaller: some values are used more, others less or not at
    all, and biases whose channels have larger errors lose their last bytes."""

    count: int = 16
    start: str = "kmeans++"
    per_channel: bool = False
    keep_zeros: bool = True
    depthwise: bool = False
    only: Sequence[str] = ()
    storage: str = "float"
    seed: int = 0
    depthwise_count: int = 0
    slack: float = 0.0

    def __post_init__(self) -> None:
        if self.storage not in STORAGE:
            raise InputError(
                f"no storage '{self.storage}'", where="storage", fix=f"one of {', '.join(STORAGE)}"
            )
        Clusters(self.count, self.start)  # it checks these
        if not 0 <= self.slack < math.inf:
            fix = "0.5 lets the square of errors grow by half"
            raise InputError(f"a slack of {self.slack}", where="slack", fix=fix)
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
            self.count,
            self.start,
            self.per_channel,
            self.keep_zeros,
            self.depthwise or bool(deep),
            self.only,
            deep | (counts or {}),
            self.seed,
        )

    def depthwise_weights(self, model: Model) -> list[Tensor]:
        """The depthwise weights, where they have a number of values of their own."""
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
    terms = Terms(
        labels, schedule, held_out, max_drop, task, task_limit, checkpoint, latency, threads
    )
    asked = replace(how or Clustering(), **settings).settled
    fix = "give some; labels are not needed"
    return carried_out(_Job, source, data, asked, terms, terms.needs, fix)


def check_clustered(model: Model, how: Clustering) -> list[str]:
    """What a finished model breaks of the values that were asked, a sentence each."""
    return how.settled.rule(model).problems(model)


class _Job(Job):
    """Clusters one model."""

    verb = "cluster"

    def __init__(self, model: Model, data: TrainingData, how: Clustering, terms: Terms) -> None:
        super().__init__(model, data, how, terms)
        tensors = weights_of(model, how.only, how.depthwise)
        self.names = [t.name for t in tensors if home_of(t) is not None]

    def begun(self, level: float | None) -> Made:
        counts = {} if level is None else self._counts(level)
        rule = self.how.rule(self.model, counts)
        errors: dict[str, float | None] = {}
        if len(self.data) and not self.how.depthwise:
            found = cluster_at_once(
                self.model, self.seen, self.names, rule, self.how.seed, self.how.slack
            )
            errors = {x.tensor: x.error for x in found.layers}
            # Depthwise layers have no statistics here.
            model = self._by_weights_alone(found.model, self.how.depthwise_weights, rule)
        else:
            model = self._by_weights_alone(self.model, self._all, rule)
        # Constraints remember weights: the one that is trained has none of these yet.
        again = self.how.rule(self.model, counts)
        return Made(model, rule, [StartedFrom(model), again], errors)

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
            found = by_weights_alone(tensor.name, matrix, rule, self.how.slack)
            store(tensor, found.T if is_deep else found)
        return made

    # -- a target -------------------------------------------------------------------------------

    def _counts(self, level: float) -> dict[str, int]:
        """The fewest values for each layer whose error is at most this."""
        most = STORAGE[self.how.storage] or max(COUNTS)
        return {
            name: min([c for c, e in found.items() if e <= level], default=most)
            for name, found in self._errors.items()
        }

    def levels(self) -> Levels:
        def name(level: float) -> str:
            chosen = self._counts(level).values()
            return f"{min(chosen)} to {max(chosen)} values, errors of {level:.1e}"

        return Levels(ERRORS, name)

    @cached_property
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

    def stored(self, made: Made) -> list[str]:
        has_deep = self.how.depthwise or self.how.depthwise_count > 0
        notes = [] if has_deep else _left_out(self.model)
        if self.how.storage == "float":
            return notes
        assert isinstance(made.rule, Clusters)
        made.model = stored_as_codes(made.model, made.rule, self.names)
        return [*notes, f"Values are stored as {self.how.storage}, with a scale for each channel."]

    def tell(self, report: TrainingReport, made: Made, sought: Sought | None) -> None:
        if sought is not None:
            report.settings["counts"] = self.how.rule(self.model, self._counts(sought.level)).counts


def _error_of(
    op: Op, matrix: torch.Tensor, power: torch.Tensor, how: Clustering
) -> Callable[[int], float]:
    def error(count: int) -> float:
        # An element's error alone is asked: no weight has a number of its own.
        rule = Clusters(count, how.start, how.per_channel, how.keep_zeros, seed=how.seed)
        table = table_of(op.operand(1).name, matrix, power, rule, how.slack)
        apart = to_values(matrix, power, table, rule) - matrix
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
    """The number, for each row, that all its values are whole multiples of."""
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
