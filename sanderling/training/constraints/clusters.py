"""Few values: each weight, or each of its output channels, has so many different ones at most.

Depthwise layers are left alone unless they are asked for: they have few weights, a channel's result
depends on the nine or so of its own alone, and with shared values what is lost there cannot be made
up for elsewhere. TensorFlow's toolkit leaves them out for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...ir import Array, Model, Tensor
from ..constraint import PRODUCTS, Constraint, stored_values, weights_of

GRID = "grid"
STARTS = ("kmeans++", "linear", "density", "random", GRID)
DEPTHWISE = "DEPTHWISE_CONV_2D"


@dataclass
class Clusters(Constraint):
    """Each weight has so many different values at most.

    count: of the values, zero among them if keep_zeros. counts: of single weights, by name, in
    place of it. per_channel: a set of values for each output channel. start: where they begin.
    "kmeans++": k-means with these starts; "linear": spread evenly from the least to the largest;
    "density": as many elements to each; "random": by chance; "grid": whole multiples of one number,
    which is all that int4 and int2 can say. An element belongs to the nearest value; the gradients
    of its elements move a value, and an element that its own gradients move changes to another.
    keep_zeros: what is zero stays zero. depthwise: depthwise layers too.
    """

    count: int = 16
    start: str = "kmeans++"
    per_channel: bool = False
    keep_zeros: bool = True
    depthwise: bool = False
    only: Sequence[str] = ()
    counts: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    values: dict[str, torch.nn.Parameter] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for count in (self.count, *self.counts.values()):
            if count < 2:
                raise InputError(f"{count} clusters", where="clusters", fix="give 2 or more")
        if self.start not in STARTS:
            raise InputError(
                f"clusters cannot start from '{self.start}'",
                where="start",
                fix=f"one of {', '.join(STARTS)}",
            )

    # -- training ---------------------------------------------------------------------------------

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        super().begin(weights, steps)
        self._sizes: dict[str, float] = {}
        for tensor, weight in weights.items():
            if not self._takes(tensor):
                continue
            matrix = self._matrix(tensor, weight.detach())
            # In units of the weight's own size: the optimiser's steps are absolute ones.
            size = float(matrix.square().mean().sqrt().clamp(min=1e-12))
            self._sizes[tensor.name] = size
            if tensor.name not in self.values:
                first = self.table(tensor.name, matrix.numpy()) / size
                self.values[tensor.name] = torch.nn.Parameter(torch.from_numpy(first))

    def _takes(self, tensor: Tensor) -> bool:
        names = (*PRODUCTS, DEPTHWISE) if self.depthwise else PRODUCTS
        users = [op for op in tensor.users if op.name in names and op.input(1) is tensor]
        return bool(users) and (not self.only or any(word in tensor.name for word in self.only))

    def _matrix(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A row for each set of values."""
        if not self.per_channel:
            return weight.reshape(1, -1)
        if any(op.name == DEPTHWISE for op in tensor.users):  # channels are its last axis
            return weight.reshape(-1, weight.shape[-1]).T
        return weight.reshape(weight.shape[0], -1)

    def _back(self, tensor: Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.per_channel and any(op.name == DEPTHWISE for op in tensor.users):
            return rows.T.reshape(tensor.shape)
        return rows.reshape(tensor.shape)

    def count_of(self, name: str) -> int:
        return self.counts.get(name, self.count)

    def table(self, name: str, matrix: Array) -> Array:
        """The first values of each row: [rows, values], or one step for each row of a grid."""
        if self.start == GRID:
            return np.stack([_step(row, self.count_of(name)) for row in matrix]).astype(np.float32)
        wanted = self.count_of(name) - (1 if self.keep_zeros else 0)
        made = [
            starting_values(row, wanted, self.start, self.seed + i) for i, row in enumerate(matrix)
        ]
        return np.stack(made).astype(np.float32)

    def _all(self, name: str) -> torch.Tensor:
        """The values of each row, zero among them if it is kept."""
        values = self.values[name] * self._sizes[name]
        if self.start == GRID:
            return values * torch.arange(
                -_reach(self.count_of(name)), _reach(self.count_of(name)) + 1
            )
        if not self.keep_zeros:
            return values
        return torch.cat([values, torch.zeros(len(values), 1)], 1)

    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        if tensor.name not in self.values:
            return weight
        rows, table = self._matrix(tensor, weight), self._all(tensor.name)
        found = table.gather(1, nearest(rows.detach(), table.detach()))
        if self.keep_zeros:
            found = found * (rows.detach() != 0)
        # The value's gradient goes to the value, and straight through to the element.
        return self._back(tensor, found + (rows - rows.detach()))

    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.values.values())

    def state(self) -> dict[str, Any]:
        return {"values": {name: p.detach() for name, p in self.values.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, values in state["values"].items():
                self.values[name].copy_(values)

    # -- checking ---------------------------------------------------------------------------------

    def problems(self, model: Model) -> list[str]:
        found = []
        for tensor in weights_of(model, self.only, self.depthwise):
            data = stored_values(tensor)
            if data is None:
                continue
            rows = self._matrix(tensor, torch.from_numpy(np.array(data, np.float32))).numpy()
            most = max(len(np.unique(row)) for row in rows)
            if most > self.count_of(tensor.name):
                where = " in a channel" if self.per_channel else ""
                count = self.count_of(tensor.name)
                found.append(f"'{tensor.name}' has {most} values{where}, not {count}")
        return found


def nearest(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The place of the nearest value for each element, row by row."""
    ordered, order = table.sort(1)
    middles = ((ordered[:, 1:] + ordered[:, :-1]) / 2).contiguous()
    return order.gather(1, torch.searchsorted(middles, rows.contiguous()))


# -- where values begin ---------------------------------------------------------------------------


def starting_values(elements: Array, count: int, start: str, seed: int) -> Array:
    """So many values for these elements."""
    numbers = np.sort(np.asarray(elements, np.float64))
    if start == "linear":
        return np.linspace(numbers[0], numbers[-1], count)
    if start == "density":
        return np.asarray(np.quantile(numbers, (np.arange(count) + 0.5) / count))
    if start == "random":
        return np.sort(np.random.default_rng(seed).uniform(numbers[0], numbers[-1], count))
    return kmeans(elements, count, seed)


def _reach(count: int) -> int:
    """The multiples on either side of zero, in a grid of so many values."""
    return max(1, (count - 1) // 2)


def _step(elements: Array, count: int) -> Array:
    """The step of a grid with the least error; a few steps are tried."""
    reach, largest = _reach(count), float(np.abs(elements).max()) or 1.0
    steps = largest / reach * np.linspace(0.5, 1.0, 26)
    codes = [np.clip(np.rint(elements / s), -reach, reach) for s in steps]
    errors = [float(np.square(elements - c * s).sum()) for c, s in zip(codes, steps, strict=True)]
    return np.array([steps[int(np.argmin(errors))]])


def kmeans(
    elements: Array, count: int, seed: int, rounds: int = 30, weights: Array | None = None
) -> Array:
    """The centres of a one-dimensional k-means: k-means++ starts, then Lloyd's rounds on sorted
    numbers, where a cluster is a run between two bounds. weights: what each number counts."""
    given = np.asarray(elements, np.float64).reshape(-1)
    order = np.argsort(given, kind="stable")
    numbers = given[order]
    if len(np.unique(numbers)) <= count:
        return np.resize(np.unique(numbers), count).astype(np.float32)
    counted = np.ones_like(numbers) if weights is None else weights.reshape(-1)[order]
    sums, masses = (np.concatenate([[0.0], np.cumsum(x)]) for x in (numbers * counted, counted))
    centres = _spread_starts(numbers, count, np.random.default_rng(seed))
    for _ in range(rounds):
        bounds = np.searchsorted(numbers, (centres[1:] + centres[:-1]) / 2)
        edges = np.concatenate([[0], bounds, [len(numbers)]])
        sizes = np.diff(masses[edges])
        means = np.diff(sums[edges]) / np.where(sizes > 0, sizes, 1)
        moved = np.sort(np.where(sizes > 0, means, centres))
        if np.array_equal(moved, centres):
            break
        centres = moved
    found: Array = centres.astype(np.float32)
    return found


def _spread_starts(numbers: Array, count: int, rng: np.random.Generator) -> Array:
    """k-means++: each next centre by chance, more likely where no centre is near."""
    centres = [float(rng.choice(numbers))]
    distances = (numbers - centres[0]) ** 2
    while len(centres) < count:
        total = distances.sum()
        chance = None if total == 0 else distances / total
        centres.append(float(rng.choice(numbers, p=chance)))
        distances = np.minimum(distances, (numbers - centres[-1]) ** 2)
    return np.sort(np.asarray(centres))
