"""Zeros: a share of each weight's elements, of any structure."""

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

    @property
    def complete_at(self) -> float:
        return self.end_share

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        super().begin(weights, steps)
        chosen = [t for t in weights if is_chosen(t, self.only)]
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
            data = stored_values(tensor)
            reason = self._problem(data) if data is not None else None
            if reason and not self.whole_model:
                found.append(f"'{tensor.name}' {reason}")
        return found + (self._problem_of_all(model) if self.whole_model else [])

    def _problem_of_all(self, model: Model) -> list[str]:
        arrays = [stored_values(t) for t in weights_of(model, self.only)]
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
