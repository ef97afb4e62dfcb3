"""Clusters without training: values chosen by what elements are worth, and errors made up for.

As in `one_shot.py`, H is the sum of x x^T over samples of what a layer reads. Values are found by a
k-means in which an element counts by the power of what it is multiplied with. Then elements are
given their nearest value column by column, and what the columns behind can make up for of the error
is put on them, as H tells (the order and the update are those of GPTQ).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..ir import Array, Model, Op
from .clusters import GRID, Clusters, kmeans, nearest
from .one_shot import Moments, OneShot, change_by, damped, factored

BLOCK = 64  # columns that are done before their errors are put on those behind


def cluster_at_once(
    model: Model, data: Sequence[Array], names: Sequence[str], rule: Clusters, seed: int = 0
) -> OneShot:
    """Cluster these weights. data: samples along the first axis, for each input."""

    def change(op: Op, weights: torch.Tensor, moments: Moments, has_bias: bool) -> torch.Tensor:
        return _clustered(op, weights, moments, rule, has_bias)

    def plain(op: Op, weights: torch.Tensor) -> torch.Tensor:
        table = values_of(op.operand(1).name, weights, torch.ones(weights.shape[1]), rule)
        return to_nearest(weights, table, rule.keep_zeros)

    return change_by(model, data, names, change, seed, plain)


def to_nearest(matrix: torch.Tensor, table: torch.Tensor, keep_zeros: bool) -> torch.Tensor:
    """Every element becomes the value that is nearest."""
    rows = matrix if len(table) == len(matrix) else matrix.reshape(1, -1)
    found = table.gather(1, nearest(rows, table)).reshape(matrix.shape)
    return found * (matrix != 0) if keep_zeros else found


def _clustered(
    op: Op, weights: torch.Tensor, moments: Moments, rule: Clusters, has_bias: bool
) -> torch.Tensor:
    matrix = weights[:, :-1]
    power = torch.diagonal(moments.inner)[:-1]
    table = values_of(op.operand(1).name, matrix, power, rule)
    made = weights.clone()
    made[:, :-1] = _by_columns(matrix, moments, table, rule.keep_zeros)
    if has_bias:  # what is left of the mean error
        _, wanted = damped(weights, moments)
        made[:, -1] = (wanted[:, -1] - made[:, :-1] @ moments.inner[:-1, -1]) / moments.inner[
            -1, -1
        ]
    return made


def values_of(name: str, matrix: torch.Tensor, power: torch.Tensor, rule: Clusters) -> torch.Tensor:
    """The values of each row, or of all rows: [rows or 1, values]."""
    rows = matrix if rule.per_channel else matrix.reshape(1, -1)
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
    matrix: torch.Tensor, moments: Moments, table: torch.Tensor, keep_zeros: bool
) -> torch.Tensor:
    """Each column to its nearest values; its error is put on the columns behind it."""
    inner, _ = damped(torch.cat([matrix, torch.zeros(len(matrix), 1)], 1), moments)
    mean = moments.inner[-1, :-1] / moments.inner[-1, -1]
    centred = inner[:-1, :-1] - torch.outer(mean, mean) * moments.inner[-1, -1]
    inverse = torch.cholesky_inverse(factored(centred))
    upper = factored(inverse, upper=True)
    work, made = matrix.clone(), torch.zeros_like(matrix)
    tables = table.expand(len(matrix), -1)
    for first in range(0, matrix.shape[1], BLOCK):
        end = min(first + BLOCK, matrix.shape[1])
        errors = torch.zeros(len(matrix), end - first)
        for column in range(first, end):
            own = work[:, column : column + 1]
            found = tables.gather(1, nearest(own, tables))[:, 0]
            if keep_zeros:
                found = found * (matrix[:, column] != 0)
            made[:, column] = found
            error = (own[:, 0] - found) / upper[column, column]
            errors[:, column - first] = error
            work[:, column:end] -= torch.outer(error, upper[column, column:end])
        work[:, end:] -= errors @ upper[first:end, end:]
    return made
