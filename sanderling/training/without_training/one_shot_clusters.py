"""Clusters without training: values chosen by what elements are worth, and errors made up for.

As in `one_shot.py`, H is the sum of x x^T over samples of what a layer reads. Values are found by a
k-means in which an element counts by the power of what it is multiplied with. Then elements are
given a value column by column, the nearest or one that zips better (`value_table.py`), and what the
columns behind can make up for of the error is put on them, as H tells (the order and the update are
those of GPTQ).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...ir import Array, Model, Op
from ..constraints.clusters import GRID, Clusters, kmeans
from .one_shot import DAMPING, Moments, OneShot, change_by, damped, factored
from .value_table import Table, priced, stacked

SHORTER = (-0x100, -0x10000)  # masks of the bits that stay: one byte fewer, two
HIDDEN = 0.1  # of a channel's error: a bias may be rounded by as much
BLOCK = 64  # columns that are done before their errors are put on those behind


def cluster_at_once(
    model: Model,
    data: Sequence[Array],
    names: Sequence[str],
    rule: Clusters,
    seed: int = 0,
    slack: float = 0.0,
) -> OneShot:
    """Cluster these weights. data: samples along the first axis, for each input. slack: the share
    by which errors may grow, for a smaller zipped file."""

    def change(op: Op, weights: torch.Tensor, moments: Moments, has_bias: bool) -> torch.Tensor:
        return _clustered(op, weights, moments, rule, has_bias, slack)

    def plain(op: Op, weights: torch.Tensor) -> torch.Tensor:
        return by_weights_alone(op.operand(1).name, weights, rule, slack)

    return change_by(model, data, names, change, seed, plain)


def by_weights_alone(
    name: str, matrix: torch.Tensor, rule: Clusters, slack: float = 0.0
) -> torch.Tensor:
    """Clustered without knowing what elements are multiplied with: all are worth the same."""
    power = torch.ones(matrix.shape[1])
    return to_values(matrix, power, table_of(name, matrix, power, rule, slack), rule)


def to_values(
    matrix: torch.Tensor, power: torch.Tensor, table: Table, rule: Clusters
) -> torch.Tensor:
    """Every element becomes one of the values, and no other makes up for it."""
    rows, worth = (_rows(x, rule) for x in (matrix, power.expand_as(matrix)))
    found = table.chosen(rows, worth).reshape(matrix.shape)
    return found * (matrix != 0) if rule.keep_zeros else found


def _clustered(
    op: Op,
    weights: torch.Tensor,
    moments: Moments,
    rule: Clusters,
    has_bias: bool,
    slack: float,
) -> torch.Tensor:
    matrix = weights[:, :-1]
    power = torch.diagonal(moments.inner)[:-1]
    if slack > 0:  # what is hardly ever multiplied would take the cheapest value, however far
        power = power + DAMPING * power.mean()
    table = table_of(op.operand(1).name, matrix, power, rule, slack)
    made = weights.clone()
    made[:, :-1] = _by_columns(matrix, moments, power, table, rule.keep_zeros)
    if has_bias:  # what is left of the mean error
        _, wanted = damped(weights, moments)
        made[:, -1] = (wanted[:, -1] - made[:, :-1] @ moments.inner[:-1, -1]) / moments.inner[
            -1, -1
        ]
        if slack > 0:
            made[:, -1] = _shorter(made[:, -1], _mean_errors(made - weights, moments))
    return made


def _mean_errors(apart: torch.Tensor, moments: Moments) -> torch.Tensor:
    """The root of the mean square over samples, for each channel."""
    power = (apart @ moments.inner * apart).sum(1).clamp(min=0)
    return torch.sqrt(power / moments.inner[-1, -1])


def _shorter(bias: torch.Tensor, errors: torch.Tensor) -> torch.Tensor:
    """Biases whose last bytes are zero, which zip, where a channel's error hides that."""
    made = bias.clone()
    for mask in SHORTER:
        rounded = (bias.view(torch.int32) + (~mask + 1) // 2 & mask).view(torch.float32)
        made = torch.where((rounded - bias).abs() <= HIDDEN * errors, rounded, made)
    return made


def table_of(
    name: str, matrix: torch.Tensor, power: torch.Tensor, rule: Clusters, slack: float
) -> Table:
    """The values of this weight, with prices where errors may grow."""
    values = values_of(name, matrix, power, rule)
    if not slack:
        return Table(values)
    tables = []
    for own, row, worth in zip(
        values, _rows(matrix, rule), _rows(power.expand_as(matrix), rule), strict=True
    ):
        free = row != 0 if rule.keep_zeros else torch.ones_like(row, dtype=torch.bool)
        tables.append(priced(own, row[free], worth[free], slack, moves=rule.start != GRID))
    return stacked(tables)


def _rows(matrix: torch.Tensor, rule: Clusters) -> torch.Tensor:
    """A row for each set of values."""
    return matrix if rule.per_channel else matrix.reshape(1, -1)


def values_of(name: str, matrix: torch.Tensor, power: torch.Tensor, rule: Clusters) -> torch.Tensor:
    """The values of each row, or of all rows: [rows or 1, values]."""
    rows = _rows(matrix, rule)
    if rule.start != "kmeans++":
        first = torch.from_numpy(rule.table(name, rows.numpy()))
        if rule.start == GRID:
            reach = max(1, (rule.count_of(name) - 1) // 2)
            return first * torch.arange(-reach, reach + 1)
    else:
        worth = power.expand_as(matrix).reshape(rows.shape).numpy()
        first = _by_worth(rows.numpy(), worth, rule, name)
    return torch.cat([first, torch.zeros(len(first), 1)], 1) if rule.keep_zeros else first


def _by_worth(rows: Array, worth: Array, rule: Clusters, name: str) -> torch.Tensor:
    count = rule.count_of(name) - (1 if rule.keep_zeros else 0)
    made = []
    for number, (row, weight) in enumerate(zip(rows, worth, strict=True)):
        own = row != 0 if rule.keep_zeros else np.ones_like(row, bool)
        chosen = (row[own], weight[own]) if own.any() else (row, weight)
        made.append(kmeans(chosen[0], count, rule.seed + number, weights=chosen[1] + 1e-12))
    return torch.from_numpy(np.stack(made))


def _by_columns(
    matrix: torch.Tensor,
    moments: Moments,
    power: torch.Tensor,
    table: Table,
    keep_zeros: bool,
) -> torch.Tensor:
    """Each column to its values; its error is put on the columns behind it."""
    inner, _ = damped(torch.cat([matrix, torch.zeros(len(matrix), 1)], 1), moments)
    mean = moments.inner[-1, :-1] / moments.inner[-1, -1]
    centred = inner[:-1, :-1] - torch.outer(mean, mean) * moments.inner[-1, -1]
    inverse = torch.cholesky_inverse(factored(centred))
    upper = factored(inverse, upper=True)
    work, made = matrix.clone(), torch.zeros_like(matrix)
    tables = table.of_rows(len(matrix))
    for first in range(0, matrix.shape[1], BLOCK):
        end = min(first + BLOCK, matrix.shape[1])
        errors = torch.zeros(len(matrix), end - first)
        for column in range(first, end):
            own = work[:, column : column + 1]
            found = tables.chosen(own, power[column].expand_as(own))[:, 0]
            if keep_zeros:
                found = found * (matrix[:, column] != 0)
            made[:, column] = found
            error = (own[:, 0] - found) / upper[column, column]
            errors[:, column - first] = error
            work[:, column:end] -= torch.outer(error, upper[column, column:end])
        work[:, end:] -= errors @ upper[first:end, end:]
    return made
