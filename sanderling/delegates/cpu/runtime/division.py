"""How a run is divided: between how many workers, and into how many chunks each step is cut. Needs
no LLVM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ir import Array
from ....processors import usable_cpu_count
from .abi import WAKES

# Nanoseconds of work, as the compiler estimates it (steps/estimates.py).
WORK_OF_WORKER = 10_000
WORK_OF_CHUNK = 1000
WORK_THAT_WAKES = 20_000
# So many for each worker, if there is work for them: who is late leaves the others its last ones.
CHUNKS_OF_WORKER = 4


def most_workers(works: Sequence[int]) -> int:
    """How many workers a run's work is worth."""
    return max(1, sum(works) // WORK_OF_WORKER)


def workers_of(works: Sequence[int], threads: int) -> int:
    """How many of these threads take part. No more than there are CPUs: more do not compute faster,
    and take turns on them."""
    return max(1, min(threads, most_workers(works), usable_cpu_count()))


def limits(units: Sequence[int], works: Sequence[int]) -> list[int]:
    """By step: how many chunks are worthwhile, with WAKES if it is worth waking a worker."""
    most = WAKES - 1
    return [
        max(1, min(unit, work // WORK_OF_CHUNK, most)) | (WAKES if work >= WORK_THAT_WAKES else 0)
        for unit, work in zip(units, works, strict=True)
    ]


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
