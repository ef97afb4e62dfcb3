"""How a run is divided: between how many workers, and into how many chunks each phase is cut. Needs
no LLVM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import Array
from ....processors import usable_cpu_count
from .abi import WAKES

# Nanoseconds of work, as the compiler estimates it (steps/estimates.py). benchmarks/fit_workers.py
# measures what sharing costs: on Zen 4 (RESULTS.md, "What a worker is worth") a hand-over 0.4 to
# 0.8 us, so that a chunk breaks even at an estimate of 0.5 us (8-bit products) to 1.8 us (floats,
# which are faster than estimated); Zen 5 is twice as fast as estimated at the same hand-over. A
# worker that sleeps gains from about 100 us of a run on, here; on Zen 5 runs with estimates of 66
# and 124 us lost. The fits of the two machines are 1626 and 3803 for a chunk, 60181 and 87095 for a
# wake; a smaller chunk costs a large step nothing and lets small ones be shared with whoever is
# awake, and these hold for both. What else there is, steps/choice.py finds out by itself.
WORK_OF_WORKER = 10_000
WORK_OF_CHUNK = 1000
WORK_THAT_WAKES = 200_000  # of a run, from a phase on
# So many for each worker, if there is work for them: who is late leaves the others its last ones.
CHUNKS_OF_WORKER = 4
# Whether runs are shared whatever they gain (steps/choice.py); tests of workers say so.
ALWAYS_SHARED = False


def most_workers(works: Sequence[int]) -> int:
    """How many workers a run's work is worth."""
    return max(1, sum(works) // WORK_OF_WORKER)


def workers_of(works: Sequence[int], threads: int) -> int:
    """How many of these threads take part. No more than there are CPUs: more do not compute faster,
    and take turns on them."""
    return max(1, min(threads, most_workers(works), usable_cpu_count()))


def limits(units: Sequence[int], works: Sequence[int]) -> list[int]:
    """By phase: how many chunks are worthwhile, with WAKES if it is worth waking a worker for it
    and what can be shared behind it."""
    found = [
        max(1, min(unit, work // WORK_OF_CHUNK, WAKES - 1))
        for unit, work in zip(units, works, strict=True)
    ]
    left = 0
    for place in reversed(range(len(found))):
        if found[place] > 1:
            left += works[place]
            found[place] |= WAKES if left >= WORK_THAT_WAKES else 0
    return found


def chunks(limit: int, workers: int) -> int:
    """As many as there are workers, or a multiple, so that all own as many; with WAKES."""
    most, wakes = limit % WAKES, limit & WAKES
    if most < 2 or workers < 2:
        return 0
    if most < workers:
        return most | wakes
    return min(most // workers, CHUNKS_OF_WORKER) * workers | wakes


def table(found: Sequence[int], workers: int) -> Array:
    """What CHUNKS leads to, for these limits."""
    return np.array([*(chunks(limit, workers) for limit in found), 0], np.int32)
