"""What each part of a plan takes, and what it takes to carry tensors over its border."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from ..ir import Array
from ..runtime.binding import Binding
from ..runtime.plan import Plan
from ..runtime.registry import FALLBACK

FOREIGN_OPS = "foreign ops"  # the fact: how many ops run on delegates of others
MOST_RUNS = 50
MOST_SECONDS = 0.1  # a slow model is run once


@dataclass(frozen=True)
class PartTime:
    """A part: who runs it, its ops, the tensors at its border with their bytes, the seconds of a
    run, and those of one copy of the border, which is what a conversion takes at least."""

    delegate: str
    ops: int
    tensors: int
    nbytes: int
    seconds: float
    copying: float

    @property
    def is_foreign(self) -> bool:
        return self.delegate not in FALLBACK


def foreign_ops(plan: Plan) -> int:
    """Ops on delegates of others, whether or not these can be timed."""
    parts = (step.part for step in plan.steps)
    return sum(len(part.nodes) for part in parts if part.delegate.name not in FALLBACK)


def part_times(binding: Binding) -> list[PartTime]:
    """The times of the parts of a binding that has run; none where no delegate of others takes
    part, or where a shape is known in the run only."""
    parts = [step.part for step in binding.plan.steps]
    calls: list[Callable[[], object]] = []
    borders: list[list[Array]] = []
    for executable, inputs, outputs in binding.steps:
        read = [a for a in inputs if a is not None]
        border = read + [a for a in outputs if a is not None]
        if len(border) < len(inputs) + len(outputs):
            return []
        calls.append(executable.bind(read, outputs))
        borders.append(border)
    if all(part.delegate.name in FALLBACK for part in parts):
        return []
    seconds, copying = _timed(calls), _timed([_copy(border) for border in borders])
    return [
        PartTime(p.delegate.name, len(p.nodes), len(b), sum(a.nbytes for a in b), time, copy)
        for p, b, time, copy in zip(parts, borders, seconds, copying, strict=True)
    ]


def _copy(border: Sequence[Array]) -> Callable[[], object]:
    pairs = [(np.empty_like(array), array) for array in border]

    def copy() -> None:
        for target, source in pairs:
            np.copyto(target, source)

    return copy


def _timed(calls: Sequence[Callable[[], object]]) -> list[float]:
    """The median seconds of each, in runs of all of them one after the other."""
    samples: list[list[float]] = [[] for _ in calls]
    end = perf_counter() + MOST_SECONDS
    while not samples[0] or (len(samples[0]) < MOST_RUNS and perf_counter() < end):
        for call, taken in zip(calls, samples, strict=True):
            begin = perf_counter()
            call()
            taken.append(perf_counter() - begin)
    return [median(taken) for taken in samples]
