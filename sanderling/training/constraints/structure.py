"""Which elements of a weight become zero together.

A weight is seen as a matrix: a row for each output channel, in the row all elements that the
channel is made of, input channels last. Written as text:

    unstructured    any element
    2:4             two of every four neighbouring input channels are zero (m:n, as TFMOT counts)
    1x4, 16x1       blocks of so many output channels and elements of a row
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...errors import InputError

UNSTRUCTURED = "unstructured"
KNOWN = "unstructured, m:n (2:4) or a block (1x4, 4x1, 1x16)"


@dataclass(frozen=True)
class Structure:
    """zeros of every group: m:n; high x wide: a block; 1 x 1 and no group: unstructured."""

    text: str
    zeros: int = 0
    group: int = 0
    high: int = 1
    wide: int = 1

    @staticmethod
    def of(given: str | Structure, others: str = "") -> Structure:
        """others: what the caller takes besides, for the message."""
        if isinstance(given, Structure):
            return given
        if given == UNSTRUCTURED:
            return Structure(given)
        if found := re.fullmatch(r"(\d+):(\d+)", given):
            zeros, group = int(found[1]), int(found[2])
            if 0 < zeros < group:
                return Structure(given, zeros, group)
        if (found := re.fullmatch(r"(\d+)x(\d+)", given)) and int(found[1]) * int(found[2]) > 0:
            return Structure(given, high=int(found[1]), wide=int(found[2]))
        raise InputError(
            f"there is no structure '{given}'", where="structure", fix=f"give {KNOWN}{others}"
        )

    @property
    def is_grouped(self) -> bool:
        return self.group > 0

    @property
    def share(self) -> float | None:
        """The share of zeros, where the structure states it."""
        return self.zeros / self.group if self.is_grouped else None

    def refuses(self, shape: tuple[int, ...]) -> str | None:
        """Why a weight of this shape cannot have it; None if it can."""
        rows, inner = shape[0], shape[-1]
        elements = 1
        for size in shape[1:]:
            elements *= size
        if self.is_grouped and inner < self.group:
            return f"it has {inner} input channels, and {self.text} needs {self.group} at least"
        if self.high > rows or self.wide > elements:
            return f"it is smaller than a block: {rows}x{elements}, not {self.text}"
        return None

    def kept(self, scores: torch.Tensor, share: float, inner: int) -> torch.Tensor:
        """The elements that stay, those of the largest scores. scores: a matrix, of magnitudes or
        of what an element is worth; inner: the number of input channels."""
        if share <= 0:
            return torch.ones_like(scores, dtype=torch.bool)
        if self.is_grouped:
            return self._best_of_groups(scores, inner)
        blocks = self.blocks(scores)
        return self.spread(all_but_smallest(blocks, share), scores)

    def _best_of_groups(self, scores: torch.Tensor, inner: int) -> torch.Tensor:
        rows = scores.reshape(-1, inner)
        # What is added at the end counts as zeros: of a last group that is not whole fewer go.
        padded = F.pad(rows, (0, -inner % self.group), value=-torch.inf)
        groups = padded.reshape(rows.shape[0], -1, self.group)
        ranks = torch.argsort(torch.argsort(groups, dim=-1, stable=True), dim=-1)
        kept = (ranks >= self.zeros).reshape(rows.shape[0], -1)[:, :inner]
        return kept.reshape(scores.shape)

    def blocks(self, scores: torch.Tensor) -> torch.Tensor:
        """The mean score of each block; those at the edges may be smaller."""
        if self.high == self.wide == 1:
            return scores
        sums, counts = (self._summed(x) for x in (scores, torch.ones_like(scores)))
        return sums / counts

    def _summed(self, x: torch.Tensor) -> torch.Tensor:
        high, wide = self.high, self.wide
        padded = F.pad(x, (0, -x.shape[1] % wide, 0, -x.shape[0] % high))
        return padded.reshape(padded.shape[0] // high, high, -1, wide).sum((1, 3))

    def spread(self, kept: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A mask of blocks as one of elements."""
        if self.high == self.wide == 1:
            return kept
        whole = kept.repeat_interleave(self.high, 0).repeat_interleave(self.wide, 1)
        return whole[: like.shape[0], : like.shape[1]]

    def problem(self, matrix: torch.Tensor, share: float, inner: int) -> str | None:
        """What a finished weight breaks of it; None if it holds."""
        if self.is_grouped:
            rows = matrix.reshape(-1, inner)[:, : inner - inner % self.group]
            values = (rows.reshape(-1, self.group) != 0).sum(1)
            full = int((values > self.group - self.zeros).sum())
            most = self.group - self.zeros
            return (
                f"has {full} groups of {self.group} with more than {most} values" * bool(full)
                or None
            )
        blocks = self.blocks(matrix.abs())
        zeros = float((blocks == 0).double().mean())
        is_enough = zeros >= share - 1 / blocks.numel()  # whole blocks are counted
        what = "zeros" if self.high == self.wide == 1 else f"zero blocks of {self.text}"
        return None if is_enough else f"has {zeros:.1%} {what}, not {share:.0%}"


def all_but_smallest(scores: torch.Tensor, share: float) -> torch.Tensor:
    """Everything but this share of the smallest; of equal ones the first go."""
    flat = scores.reshape(-1)
    order = torch.argsort(flat, stable=True)
    kept = torch.ones_like(flat, dtype=torch.bool)
    kept[order[: round(share * flat.numel())]] = False
    return kept.reshape(scores.shape)
