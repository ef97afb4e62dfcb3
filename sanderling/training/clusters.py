"""Few values: each weight has so many different ones at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..ir import Array, Model, Tensor
from .constraint import Constraint, is_chosen, stored_values, weights_of


@dataclass
class Clusters(Constraint):
    """Each weight has so many different values at most.

    count: of the values, zero among them if keep_zeros. Values begin with k-means of the weight
    (k-means++ with the seed; or `linear`: spread evenly), an element belongs to the nearest value,
    and gradients of the elements are added up at their values.
    """

    count: int = 16
    start: str = "kmeans++"
    keep_zeros: bool = True
    only: Sequence[str] = ()
    seed: int = 0
    values: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.count < 2:
            raise InputError(f"{self.count} clusters", fix="give 2 or more")
        if self.start not in ("kmeans++", "linear"):
            raise InputError(f"clusters cannot start from '{self.start}'", fix="kmeans++ or linear")

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        super().begin(weights, steps)
        for tensor, weight in weights.items():
            if is_chosen(tensor, self.only) and tensor.name not in self.values:
                self.values[tensor.name] = self._start(weight.detach().reshape(-1))

    def _start(self, elements: torch.Tensor) -> torch.Tensor:
        wanted = self.count - 1 if self.keep_zeros else self.count
        if self.start == "linear":
            return torch.linspace(float(elements.min()), float(elements.max()), wanted)
        return torch.from_numpy(kmeans(elements.numpy(), wanted, self.seed))

    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        values = self.values.get(tensor.name)
        if values is None:
            return weight
        found = self._nearest(weight, self._all(values))
        # Straight through: the gradient reaches the element as if nothing had been done.
        return weight + (found - weight).detach()

    def _all(self, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values, torch.zeros(1)]) if self.keep_zeros else values

    def _nearest(self, weight: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ordered = values.sort().values
        middles = (ordered[1:] + ordered[:-1]) / 2
        found = ordered[torch.bucketize(weight.detach(), middles)]
        return torch.where(weight.detach() == 0, 0.0, found) if self.keep_zeros else found

    def after_step(self, weights: dict[Tensor, torch.Tensor], step: int) -> None:
        """Each value moves to the mean of its elements, which the optimiser has moved."""
        for tensor, weight in weights.items():
            values = self.values.get(tensor.name)
            if values is not None:
                self.values[tensor.name] = self._moved(weight.detach().reshape(-1), values)

    def _moved(self, elements: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        whole = self._all(values)
        ordered, order = whole.sort()
        places = order[torch.bucketize(elements, (ordered[1:] + ordered[:-1]) / 2)]
        if self.keep_zeros:
            places = torch.where(elements == 0, len(whole) - 1, places)
        sums = torch.zeros_like(whole).index_add_(0, places, elements)
        counts = torch.bincount(places, minlength=len(whole))
        means = torch.where(counts > 0, sums / counts.clamp(min=1), whole)
        return means[: len(values)]

    def state(self) -> dict[str, Any]:
        return {"values": self.values}

    def restore(self, state: dict[str, Any]) -> None:
        self.values = state["values"]

    def problems(self, model: Model) -> list[str]:
        found = []
        for tensor in weights_of(model, self.only):
            data = stored_values(tensor)
            count = 0 if data is None else len(np.unique(data))
            if count > self.count:
                found.append(f"'{tensor.name}' has {count} values, not {self.count}")
        return found


def kmeans(elements: Array, count: int, seed: int, rounds: int = 30) -> Array:
    """The centres of a one-dimensional k-means: k-means++ starts, then Lloyd's rounds on sorted
    numbers, where a cluster is a run between two bounds."""
    numbers = np.sort(np.asarray(elements, np.float64))
    if len(np.unique(numbers)) <= count:
        return np.resize(np.unique(numbers), count).astype(np.float32)
    sums = np.concatenate([[0.0], np.cumsum(numbers)])
    centres = _spread_starts(numbers, count, np.random.default_rng(seed))
    for _ in range(rounds):
        bounds = np.searchsorted(numbers, (centres[1:] + centres[:-1]) / 2)
        edges = np.concatenate([[0], bounds, [len(numbers)]])
        sizes = np.diff(edges)
        means = np.diff(sums[edges]) / np.maximum(sizes, 1)
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
