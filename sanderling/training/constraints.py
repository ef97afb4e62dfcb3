"""Constraints on weights: what training has to keep, as data that combine.

    train(model, data, constraints=[Sparsity(0.8), Clusters(16)])

A constraint sees each weight on its way into the forward pass (`applied`), is told of every step
(`after_step`), and can say of a finished file whether it really holds (`problems`). Constraints are
applied in the order of their list, so that those behind see what those before have done: clusters
of a pruned weight keep its zeros.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ..errors import InputError
from ..ir import Array, Model, Tensor

# Operators whose second operand is worth pruning and clustering. Depthwise weights are few and each
# of them matters: zeros and clusters there cost accuracy and save nothing.
PRODUCTS = ("CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")


def weights_of(model: Model, only: Sequence[str] = (), depthwise: bool = False) -> list[Tensor]:
    """The weights of products, as the ops read them; `only`: names, or parts of names."""
    names = (*PRODUCTS, "DEPTHWISE_CONV_2D") if depthwise else PRODUCTS
    found = dict.fromkeys(op.operand(1) for op in model.main.ops if op.name in names)
    chosen = [t for t in found if not only or any(word in t.name for word in only)]
    if not chosen:
        raise InputError(
            f"no weight has a name with {' or '.join(only)}" if only else "there is no product",
            where=f"graph '{model.main.name}'",
            fix="see the names with `sanderling inspect MODEL --tensors`",
        )
    return chosen


class Constraint(ABC):
    """What weights, or those of some names, must be when training ends."""

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        """Before the first step: the weights that are trained, and how many steps there will be."""
        self.steps = steps

    @abstractmethod
    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The weight as the forward pass sees it; gradients go through it."""

    def after_step(self, weights: dict[Tensor, torch.Tensor], step: int) -> None:  # noqa: B027
        """The optimiser has made a step."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to keep. Tensors by name."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:  # noqa: B027
        """From a checkpoint."""

    @abstractmethod
    def problems(self, model: Model) -> list[str]:
        """What a finished model breaks of it, a sentence each; none if it holds."""


# -- zeros ----------------------------------------------------------------------------------------


@dataclass
class Sparsity(Constraint):
    """A share of each weight's elements is zero.

    share: of the zeros, at the end. structure: (1, 1) for any element; (2, 4): two of four
    neighbours along the input channels are zero, whatever `share` says; another pair is a block of
    so many output channels and input elements that is zero as a whole. Zeros grow from the step
    `begin_share` of all steps to `end_share` as TFMOT's polynomial decay of power 3, every
    `every` steps. whole_model: one threshold for all weights, in place of one for each.
    """

    share: float = 0.5
    structure: tuple[int, int] = (1, 1)
    begin_share: float = 0.0
    end_share: float = 0.7
    every: int = 10
    whole_model: bool = False
    only: Sequence[str] = ()
    masks: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"a sparsity of {self.share}", fix="give a share between 0 and 1")

    @property
    def is_m_of_n(self) -> bool:
        return self.structure == (2, 4)

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        super().begin(weights, steps)
        chosen = [t for t in weights if _is_chosen(t, self.only)]
        self.masks = self.masks or {t.name: torch.ones_like(weights[t]) for t in chosen}
        if steps == 0 or self.every <= 0:
            self._update(weights, self.share)

    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        mask = self.masks.get(tensor.name)
        return weight if mask is None else weight * mask

    def after_step(self, weights: dict[Tensor, torch.Tensor], step: int) -> None:
        last = int(self.steps * self.end_share)
        if step <= last and (step % max(1, self.every) == 0 or step == last):
            self._update(weights, self._share_at(step, last))

    def _share_at(self, step: int, last: int) -> float:
        first = self.steps * self.begin_share
        if step < first:
            return 0.0
        part = 1.0 if last <= first else min(1.0, (step - first) / (last - first))
        return self.share * (1 - (1 - part) ** 3)

    def _update(self, weights: dict[Tensor, torch.Tensor], share: float) -> None:
        chosen = {t: w.detach() for t, w in weights.items() if t.name in self.masks}
        scores = {t: self._blocks(w) for t, w in chosen.items()}
        if self.whole_model and not self.is_m_of_n:
            together = torch.cat([s.reshape(-1) for s in scores.values()])
            threshold = _smallest(together, share)
            self.masks = {t.name: self._spread(scores[t] > threshold, w) for t, w in chosen.items()}
            return
        for tensor, weight in chosen.items():
            self.masks[tensor.name] = self._mask(scores[tensor], weight, share)

    def _blocks(self, weight: torch.Tensor) -> torch.Tensor:
        """Magnitudes, of blocks the mean of their elements'."""
        rows = weight.reshape(weight.shape[0], -1).abs()
        if self.is_m_of_n or self.structure == (1, 1):
            return rows
        high, wide = self.structure
        padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % wide, 0, -rows.shape[0] % high))
        blocks = padded.reshape(padded.shape[0] // high, high, padded.shape[1] // wide, wide)
        return blocks.mean((1, 3))

    def _mask(self, scores: torch.Tensor, weight: torch.Tensor, share: float) -> torch.Tensor:
        if self.is_m_of_n:
            return self._two_of_four(scores, weight) if share > 0 else torch.ones_like(weight)
        return self._spread(scores > _smallest(scores.reshape(-1), share), weight)

    def _two_of_four(self, scores: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Of every four neighbouring input channels the two largest stay."""
        last = weight.shape[-1]
        rows = scores.reshape(-1, last)
        room = -last % 4
        fours = torch.nn.functional.pad(rows, (0, room), value=-1.0).reshape(rows.shape[0], -1, 4)
        order = torch.sort(fours, dim=-1, descending=True, stable=True).indices
        kept = (torch.argsort(order, -1) < 2).reshape(rows.shape[0], -1)[:, :last]
        return kept.reshape(weight.shape).to(weight.dtype)

    def _spread(self, kept: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """A mask of blocks as one of elements."""
        if self.structure != (1, 1):
            high, wide = self.structure
            kept = kept.repeat_interleave(high, 0).repeat_interleave(wide, 1)
        rows = kept[: weight.shape[0], : weight.numel() // weight.shape[0]]
        return rows.reshape(weight.shape).to(weight.dtype)

    def state(self) -> dict[str, Any]:
        return {"masks": self.masks}

    def restore(self, state: dict[str, Any]) -> None:
        self.masks = state["masks"]

    def problems(self, model: Model) -> list[str]:
        found = []
        for tensor in weights_of(model, self.only):
            data = _stored_values(tensor)
            reason = self._problem(data) if data is not None else None
            if reason and not self.whole_model:
                found.append(f"'{tensor.name}' {reason}")
        return found + (self._problem_of_all(model) if self.whole_model else [])

    def _problem_of_all(self, model: Model) -> list[str]:
        arrays = [_stored_values(t) for t in weights_of(model, self.only)]
        known = [a for a in arrays if a is not None]
        zeros = sum(int((a == 0).sum()) for a in known)
        size = sum(a.size for a in known)
        enough = zeros >= int(self.share * size)
        return (
            [] if enough else [f"{zeros / size:.1%} of the weights are zero, not {self.share:.0%}"]
        )

    def _problem(self, data: Array) -> str | None:
        if self.is_m_of_n:
            last = data.shape[-1]
            fours = data.reshape(-1, last)[:, : last - last % 4].reshape(-1, 4)
            full = int(((fours != 0).sum(1) > 2).sum())
            return f"has {full} fours with more than two values" if full else None
        blocks = self._blocks(torch.from_numpy(np.abs(data).astype(np.float32)))
        zeros = float((blocks == 0).float().mean())
        is_enough = zeros >= self.share - 1 / blocks.numel()  # whole blocks are counted
        return None if is_enough else f"has {zeros:.1%} zeros, not {self.share:.0%}"


def _smallest(scores: torch.Tensor, share: float) -> torch.Tensor:
    """The largest of the smallest scores that make up this share; below all for a share of 0."""
    count = round(share * scores.numel())
    if count == 0:
        return torch.tensor(-1.0)
    return torch.kthvalue(scores, count).values


# -- few values -----------------------------------------------------------------------------------


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
            if _is_chosen(tensor, self.only) and tensor.name not in self.values:
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
            data = _stored_values(tensor)
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


def _is_chosen(tensor: Tensor, only: Sequence[str]) -> bool:
    """The second operand of a product, whose name has one of the words."""
    is_weight = any(
        op.name in PRODUCTS and len(op.inputs) > 1 and op.inputs[1] is tensor for op in tensor.users
    )
    return is_weight and (not only or any(word in tensor.name for word in only))


def _stored_values(tensor: Tensor) -> Array | None:
    """Of a constant, as the file has them; codes less their zero point."""
    source = tensor
    if tensor.producer is not None and tensor.producer.name == "DEQUANTIZE":
        source = tensor.producer.operand(0)
    if not source.is_constant:
        return None
    data = np.asarray(source.values)
    if source.quant is None or source.quant.scale.size == 0:
        return data
    shape = [1] * data.ndim
    if source.quant.scale.size > 1:
        shape[source.quant.axis] = -1
    found: Array = data.astype(np.int64) - source.quant.zero_point.reshape(shape)
    return found
