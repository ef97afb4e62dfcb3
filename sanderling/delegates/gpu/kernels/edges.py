"""Windows at the edges of an image: which points of a block have an input at which tap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ....ops.geometry import Axis
from ..language import KernelText, Value


@dataclass(frozen=True)
class Edges:
    """Blocks of `rows` neighbouring points along an axis, the last of which begins early enough to
    be full. All is known when the kernel is written, so that blocks inside ask for nothing."""

    axis: Axis
    rows: int

    @property
    def count(self) -> int:
        return -(-self.axis.out // self.rows)

    def points(self, block: int, tap: int) -> range:
        """Points of a block whose tap lies inside of the input."""
        x, shift = self.axis, self._shift(block, tap)
        first = max(0, -(shift // x.stride))
        last = min(self.rows - 1, (x.size - 1 - shift) // x.stride)
        return range(first, max(first, last + 1))

    def _shift(self, block: int, tap: int) -> int:
        """The input at which this tap of the block's first point lies."""
        x = self.axis
        start = min(block * self.rows, x.out - self.rows)
        return start * x.stride + tap * x.dilation - x.before

    def is_inner(self, block: int) -> bool:
        last = self._shift(block, self.axis.taps - 1) + (self.rows - 1) * self.axis.stride
        return self._shift(block, 0) >= 0 and last < self.axis.size

    @cached_property
    def outer(self) -> list[int]:
        """Blocks some of whose points have a tap outside."""
        return [block for block in range(self.count) if not self.is_inner(block)]

    def full(self, block: int) -> range:
        """Taps that lie inside for all points of a block; they are neighbours."""
        every = [n for n in range(self.axis.taps) if self.points(block, n) == range(self.rows)]
        return range(every[0], every[-1] + 1) if every else range(0)

    def partial(self, block: int) -> Iterator[tuple[int, range]]:
        """Taps that lie inside for some points of a block, and for which."""
        for tap in range(self.axis.taps):
            points = self.points(block, tap)
            if points and points != range(self.rows):
                yield tap, points

    def bound(self, k: KernelText, block: Value, end: bool) -> Value:
        """Where the taps that lie inside for all points of a block begin, or where they end."""
        found = k.value(self.axis.taps if end else 0)
        for number in self.outer:
            full = self.full(number)
            found = k.select(block.equals(number), full.stop if end else full.start, found)
        return k.let(found)
