"""Counter-based random bits (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

The numbers of a block are a function of the key and the block's counter, so that all blocks are
computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import Array

_MASK = 2**32 - 1
AT_ONCE = 1 << 14  # blocks whose rounds are computed together: they take ten times the result


def threefry(key: Array, counter: Sequence[Array]) -> Array:
    """Threefry2x32 with 20 rounds: uint32[blocks, 2]."""
    a, b = (c.astype(np.uint32) for c in counter)
    keys = [key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA)]
    a, b = a + keys[0], b + keys[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            a = a + b
            b = (b << np.uint32(turn) | b >> np.uint32(32 - turn)) ^ a
        a, b = a + keys[(group + 1) % 3], b + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.stack([a, b], axis=1)


def philox(key: Sequence[int] | Array, counter: Sequence[Array]) -> Array:
    """Philox4x32 with 10 rounds: uint32[blocks, 4]."""
    c = [x.astype(np.uint64) for x in counter]
    low, high = np.uint64(_MASK), np.uint64(32)
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [q >> high ^ c[1] ^ k0, q & low, p >> high ^ c[3] ^ k1, p & low]
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(c, axis=1).astype(np.uint32)


class Philox:
    """A stream of Philox blocks, as TensorFlow seeds it: the first seed is the key, the second the
    upper half of the 128-bit counter."""

    def __init__(self, seed: int, seed2: int) -> None:
        self.key = seed & _MASK, seed >> 32 & _MASK
        self.counter = (seed2 & (2**64 - 1)) << 64

    def blocks(self, count: int) -> Array:
        """The next count blocks of four 32-bit words, one a row."""
        made = np.empty((count, 4), np.uint32)
        for begin in range(0, count, AT_ONCE):
            made[begin : begin + AT_ONCE] = self._next(min(AT_ONCE, count - begin))
        return made

    def _next(self, count: int) -> Array:
        first = np.uint64(self.counter & (2**64 - 1))
        low = first + np.arange(count, dtype=np.uint64)
        high = np.uint64(self.counter >> 64) + (low < first)  # the carry
        self.skip(count)
        mask, half = np.uint64(_MASK), np.uint64(32)
        return philox(self.key, [low & mask, low >> half, high & mask, high >> half])

    def skip(self, count: int) -> None:
        self.counter = (self.counter + count) % 2**128
