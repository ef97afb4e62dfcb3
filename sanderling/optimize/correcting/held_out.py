"""Which samples calibrate, which judge, and which the corrections look at.

What judges calibrated nothing: a part of the samples is held out, and which ones depends on what
they hold, not on when they come.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...ir import Array, Graph

# Samples that the corrections look at, and bytes that their values may take: in either model a few
# of the largest tensors are alive at a time, as float32 and as codes.
CORRECTING, LEAST_CORRECTING = 64, 8
CORRECTING_BYTES = 1 << 30
ALIVE = 3 * (4 + 1)
# A sample has one chance in so many to be held out, by what it holds: it judges the candidates and
# calibrates nothing, whatever else is given beside it, also when a kept calibration goes on with
# more samples. Of few samples it may therefore be more or fewer than this share.
HELD_OUT = 5
MOST_HELD = 64  # of more that are held out these judge
# Ranges of fewer samples than FEW are guesses, and hardly one of them is held out. Beyond ENOUGH,
# more change little.
FEW, ENOUGH = 10, 100

Feeds = dict[str, Array]


class SampleSplit:
    """Holds samples out while they are read, and keeps some of either part."""

    def __init__(self, graph: Graph) -> None:
        self.away = 0  # samples that were held out
        self._judging = _SmallestDigests(MOST_HELD)
        self._calibrating = _SmallestDigests(_correcting(graph))

    def take(self, digest: str, feeds: Feeds) -> bool:
        """Say whether the sample calibrates."""
        held = int(digest, 16) % HELD_OUT == 0
        self.away += held
        (self._judging if held else self._calibrating).add(digest, feeds)
        return not held

    @property
    def held(self) -> list[Feeds]:
        return self._judging.sorted()

    @property
    def judging(self) -> list[Feeds]:
        """The samples held out; if none were, some that calibrated."""
        return self.held or self._calibrating.sorted()

    @property
    def correcting(self) -> list[Feeds]:
        """Some samples that calibrated, all of the same shapes: means are taken over them."""
        return _alike(self._calibrating.sorted() or self.held)


def _correcting(graph: Graph) -> int:
    """How many samples the corrections can look at."""
    largest = max((math.prod(t.shape) for op in graph.ops for t in op.outputs), default=1)
    return min(max(CORRECTING_BYTES // max(ALIVE * largest, 1), LEAST_CORRECTING), CORRECTING)


def _alike(feeds: Sequence[Feeds]) -> list[Feeds]:
    """Keep the samples that have the shapes of the first."""
    shapes = [{n: a.shape for n, a in f.items()} for f in feeds]
    return [f for f, s in zip(feeds, shapes, strict=True) if s == shapes[0]]


class _SmallestDigests:
    """Keeps the few samples with the smallest digests: a choice that no order changes."""

    def __init__(self, most: int) -> None:
        self.most, self.items = most, dict[str, Feeds]()

    def add(self, digest: str, feeds: Feeds) -> None:
        if len(self.items) == self.most and digest > max(self.items):
            return
        self.items[digest] = {n: np.array(a) for n, a in feeds.items()}
        if len(self.items) > self.most:
            del self.items[max(self.items)]

    def sorted(self) -> list[Feeds]:
        return [self.items[digest] for digest in sorted(self.items)]
