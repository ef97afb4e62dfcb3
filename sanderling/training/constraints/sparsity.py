"""Zeros: a share of each weight's elements, of any structure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...ir import Array, Model, Tensor
from ..constraint import Constraint, is_chosen, stored_values, weights_of
from .structure import UNSTRUCTURED, Structure, all_but_smallest

POLYNOMIAL, CONSTANT, PRESENT = "polynomial", "constant", "present"
GROWTH = (POLYNOMIAL, CONSTANT, PRESENT)


@dataclass
class Sparsity(Constraint):
    """A share of each weight's elements is zero.

    share: of the zeros, at the end; shares: of single weights, by name, in place of it. structure:
    "unstructured", m:n such as "2:4" (which says the share itself), or a block such as "1x4".
    growth: how zeros come, as in TFMOT. "polynomial": from none at the step `begin_share` of all
    steps to the whole share at `end_share`, with a decay of this power; "constant": the whole share
    at once. The smallest are chosen anew every `every` steps until `end_share`. "present": the
    zeros that are there stay, and no others come; the share says nothing then.
    whole_model: one threshold for all weights, in place of one for each. only: words, one of which
    a weight's name has; names: whole names of the weights, in place of words.
    """

    share: float = 0.5
    structure: str = UNSTRUCTURED
    growth: str = POLYNOMIAL
    begin_share: float = 0.0
    end_share: float = 0.7
    power: float = 3.0
    every: int = 10
    whole_model: bool = False
    only: Sequence[str] = ()
    names: Sequence[str] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    masks: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for share in (self.share, *self.shares.values()):
            if not 0 <= share < 1 or (share == 0 and not self.shares):
                raise InputError(f"a sparsity of {share}", fix="give a share between 0 and 1")
        if self.growth not in GROWTH:
            raise InputError(
                f"zeros cannot grow by '{self.growth}'", where="growth", fix=", ".join(GROWTH)
            )
        self.pattern = Structure.of(self.structure)
        if self.whole_model and (self.pattern.is_grouped or self.shares):
            raise InputError(
                "one threshold for all weights contradicts a share for each",
                where="whole_model",
                fix="leave it out for m:n structures and for shares by name",
            )

    @property
    def complete_at(self) -> float:
        return self.end_share if self.growth == POLYNOMIAL else 0.0

    def share_of(self, name: str) -> float:
        """What a weight is to have at the end."""
        return self.pattern.share or self.shares.get(name, self.share)

    def _is_named(self, tensor: Tensor) -> bool:
        return not self.names or tensor.name in self.names

    def refused(self, tensors: Iterable[Tensor]) -> dict[str, str]:
        """The weights that cannot have the structure, with the reasons."""
        found = {t.name: self.pattern.refuses(t.shape) for t in tensors}
        return {name: why for name, why in found.items() if why}

    # -- training ---------------------------------------------------------------------------------

    def begin(self, weights: dict[Tensor, torch.Tensor], steps: int) -> None:
        super().begin(weights, steps)
        chosen = [t for t in weights if is_chosen(t, self.only) and self._is_named(t)]
        refused = self.refused(chosen)
        left = [t for t in chosen if t.name not in refused]
        if not left:
            raise InputError(
                f"no weight can have the structure {self.structure}: "
                f"{next(iter(refused.values()), 'there is no product')}",
                where="sparsity",
                fix="choose a smaller block, or unstructured zeros",
            )
        if self.masks:
            return
        self.masks = {t.name: torch.ones_like(weights[t]) for t in left}
        if self.growth == PRESENT:
            self.masks = {t.name: (weights[t].detach() != 0).float() for t in left}
        elif steps == 0 or self.growth == CONSTANT:
            self._update(weights, 1.0)

    def applied(self, tensor: Tensor, weight: torch.Tensor) -> torch.Tensor:
        mask = self.masks.get(tensor.name)
        return weight if mask is None else weight * mask

    def after_step(self, weights: dict[Tensor, torch.Tensor], step: int) -> None:
        last = int(self.steps * self.end_share)
        is_due = step % max(1, self.every) == 0 or step == last
        if self.growth != PRESENT and step <= last and is_due:
            self._update(weights, self._part(step, last))

    def _part(self, step: int, last: int) -> float:
        """The part of the way to the share at the end that is behind."""
        first = self.steps * self.begin_share
        if self.growth == CONSTANT or last <= first:
            return 1.0 if step >= first else 0.0
        gone = min(1.0, max(0.0, (step - first) / (last - first)))
        return float(1 - (1 - gone) ** self.power)

    def _update(self, weights: dict[Tensor, torch.Tensor], part: float) -> None:
        chosen = {t: w.detach() for t, w in weights.items() if t.name in self.masks}
        sizes = {t: w.reshape(w.shape[0], -1).abs() for t, w in chosen.items()}
        kept = (
            self._kept_together(sizes, part * self.share)
            if self.whole_model
            else {
                t: self.pattern.kept(s, part * self.share_of(t.name), t.shape[-1])
                for t, s in sizes.items()
            }
        )
        self.masks |= {t.name: kept[t].reshape(w.shape).to(w.dtype) for t, w in chosen.items()}

    def _kept_together(
        self, sizes: Mapping[Tensor, torch.Tensor], share: float
    ) -> dict[Tensor, torch.Tensor]:
        """By one threshold for the blocks of all weights."""
        blocks = {t: self.pattern.blocks(s) for t, s in sizes.items()}
        together = all_but_smallest(torch.cat([b.reshape(-1) for b in blocks.values()]), share)
        parts = together.split([b.numel() for b in blocks.values()])
        return {
            t: self.pattern.spread(part.reshape(b.shape), sizes[t])
            for (t, b), part in zip(blocks.items(), parts, strict=True)
        }

    def state(self) -> dict[str, Any]:
        return {"masks": self.masks}

    def restore(self, state: dict[str, Any]) -> None:
        self.masks = state["masks"]

    # -- checking ---------------------------------------------------------------------------------

    def problems(self, model: Model) -> list[str]:
        tensors = [t for t in weights_of(model, self.only) if self._is_named(t)]
        refused = self.refused(tensors)
        known = [(t, _matrix(t)) for t in tensors if t.name not in refused]
        matrices = [(t, m) for t, m in known if m is not None]
        if self.growth == PRESENT:
            return [text for t, m in matrices if (text := self._filled(t.name, m))]
        if self.whole_model:
            return self._problem_of_all([m for _, m in matrices])
        found = (
            (t.name, self.pattern.problem(m, self.share_of(t.name), t.shape[-1]))
            for t, m in matrices
        )
        return [f"'{name}' {text}" for name, text in found if text]

    def _filled(self, name: str, matrix: torch.Tensor) -> str | None:
        mask = self.masks.get(name)
        count = 0 if mask is None else int((matrix[mask.reshape(matrix.shape) == 0] != 0).sum())
        return f"'{name}' has {count} values where zeros were" if count else None

    def _problem_of_all(self, matrices: Sequence[torch.Tensor]) -> list[str]:
        blocks = torch.cat([self.pattern.blocks(m.abs()).reshape(-1) for m in matrices])
        zeros = float((blocks == 0).double().mean())
        is_enough = zeros >= self.share - 1 / blocks.numel()
        return [] if is_enough else [f"{zeros:.1%} of the weights are zero, not {self.share:.0%}"]


def _matrix(tensor: Tensor) -> torch.Tensor | None:
    data: Array | None = stored_values(tensor)
    if data is None:
        return None
    return torch.from_numpy(np.array(data, np.float32).reshape(data.shape[0], -1))
