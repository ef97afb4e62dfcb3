"""The values that clustered elements may have, and what each of them costs in a zipped file.

What deflate needs for an element depends on how often its value occurs. So a value may have a
price: the bits that tell it, times a factor. An element takes the value with the least sum of error
and price; values that are hardly used die out, and others are used more. The factor is the largest
with which errors grow by no more than a share, the slack.

At equal errors that saves about 2 % against plainly fewer values: deflate codes elements as copies
of earlier runs, so that its 7 bits for one of 32 values stay far from the entropy of 4.7. Tried
beside it: values of fewer significant bits (no gain, up to a tenth lost: matches then end in bytes
of zero), low bytes that many values share (5 to 15 % lost), elements that choose what continues a
copy (2 % gained, at equal errors again).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..constraints.clusters import nearest

WRITTEN = 32  # bits: a value is written out where it occurs first
LOOKED_AT = 1 << 15  # elements at most by which prices are found
FACTORS = (1e-4, 1e2)  # of prices: for a bit, in units of the mean error of an element
HALVINGS, ROUNDS = 8, 6  # of the search for the factor; in which values and prices settle
CHUNK = 1 << 22  # elements times values that are compared at once


@dataclass
class Table:
    """values: [rows, values], a row for each row of elements, or one for all. prices: what each
    value costs, in units of error; without any, an element takes the nearest value."""

    values: torch.Tensor
    prices: torch.Tensor | None = None

    def of_rows(self, count: int) -> Table:
        """The same with so many rows."""
        prices = None if self.prices is None else self.prices.expand(count, -1)
        return Table(self.values.expand(count, -1), prices)

    def places(self, rows: torch.Tensor, worth: torch.Tensor) -> torch.Tensor:
        """The place of each element's value. worth: what the square of its error counts."""
        prices = self.prices
        if prices is None:
            return nearest(rows, self.values)
        step = max(1, CHUNK // self.values.numel())
        pieces = zip(rows.split(step, 1), worth.split(step, 1), strict=True)
        return torch.cat([self._cheapest(r, w, prices) for r, w in pieces], 1)

    def chosen(self, rows: torch.Tensor, worth: torch.Tensor) -> torch.Tensor:
        """The value that each element gets."""
        return self.values.gather(1, self.places(rows, worth))

    def _cheapest(
        self, rows: torch.Tensor, worth: torch.Tensor, prices: torch.Tensor
    ) -> torch.Tensor:
        apart = (rows[:, :, None] - self.values[:, None, :]).square_()
        return apart.mul_(worth[:, :, None]).add_(prices[:, None, :]).argmin(2)

    def error(self, rows: torch.Tensor, worth: torch.Tensor) -> float:
        apart = self.chosen(rows, worth) - rows
        return float((apart.square() * worth).double().sum())


def stacked(tables: Sequence[Table]) -> Table:
    """One table with the rows of these, which all have prices or none."""
    prices = [t.prices for t in tables if t.prices is not None]
    return Table(torch.cat([t.values for t in tables]), torch.cat(prices) if prices else None)


def priced(
    values: torch.Tensor, elements: torch.Tensor, worth: torch.Tensor, slack: float, moves: bool
) -> Table:
    """A table of one row whose prices make errors of these elements grow by the slack at most.
    moves: values become the means of their elements; one that is zero stays."""
    if not len(elements):
        return Table(values[None], torch.zeros(1, len(values)))
    step = -(-len(elements) // LOOKED_AT)
    some = _Some(elements[None, ::step], worth[None, ::step], step, moves)
    best = start = Table(values[None], torch.zeros(1, len(values)))
    plain = start.error(some.rows, some.worth)
    low, high = np.log(FACTORS)
    for _ in range(HALVINGS if plain > 0 else 0):
        middle = (low + high) / 2
        table = some.settled(start, plain / some.rows.numel() * float(np.exp(middle)))
        if table.error(some.rows, some.worth) <= (1 + slack) * plain:
            best, low = table, middle
        else:
            high = middle
    return best


@dataclass
class _Some:
    """Elements by which prices are found: every so many-th of all."""

    rows: torch.Tensor
    worth: torch.Tensor
    step: int
    moves: bool

    def settled(self, table: Table, factor: float) -> Table:
        """By turns elements choose, values become their means, and prices what their numbers tell.
        factor: the price of a bit."""
        for _ in range(ROUNDS):
            places = table.places(self.rows, self.worth)[0]
            values = self._means(table.values[0], places) if self.moves else table.values[0]
            counts = torch.bincount(places, minlength=len(values)) * float(self.step)
            table = Table(values[None], factor * _bits(counts)[None])
        return table

    def _means(self, values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        count = len(values)
        sums = torch.bincount(places, (self.rows * self.worth)[0].double(), minlength=count)
        masses = torch.bincount(places, self.worth[0].double(), minlength=count)
        means = torch.where(masses > 0, sums / masses.clamp(min=1e-300), values.double())
        return torch.where(values == 0, values, means.to(values.dtype))


def _bits(counts: torch.Tensor) -> torch.Tensor:
    """That tell an element of a value which so many have; its share of writing the value down."""
    used = counts.clamp(min=1)
    return torch.log2(used.sum() / used) + WRITTEN / used
