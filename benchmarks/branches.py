"""What could two threads gain if independent steps were one unit of work? From plans, no clock.

    python -m benchmarks.branches [MODEL.tflite ...] [--write]

Steps in a row that need nothing of each other form a group. Today each is shared by itself: it
takes its work, as the compiler estimates it, on the worker with most units, and a hand-over. A
group would take half of all its work, or its largest unit, and one hand-over. The first gain is
that of groups whose tensors lie apart in the arena as it is; the second one leaves the arena aside,
as if it grew for the sake of groups. Both are bounds from above: the order of steps stays, chunks
of a group are perfectly even.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.common import model_paths, table, write_section
from sanderling import load
from sanderling.delegates.cpu import build
from sanderling.delegates.cpu.codegen.program import Program, Step
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime.abi import WAKES
from sanderling.delegates.cpu.runtime.division import chunks, limits
from sanderling.delegates.cpu.steps.estimates import nanoseconds
from sanderling.errors import DelegateError
from sanderling.ir import Op, Tensor

HAND_OVER = 800  # estimated nanoseconds, as fit_workers.py measures it
Span = tuple[int, int, int]  # slot, first byte, byte behind the last
Meet = Callable[["Work", "Work"], bool]


@dataclass(frozen=True)
class Work:
    """A step: nanoseconds, units, what it reads and writes."""

    op: Op
    time: int
    units: int
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]

    @property
    def shared(self) -> float:
        """Nanoseconds on two workers."""
        cut = chunks(limits([self.units], [self.time])[0], 2) % WAKES
        if cut < 2:
            return self.time
        most = -(-self.units // 2) if self.units < 16 else self.units / 2
        return self.time * most / self.units + HAND_OVER


@dataclass(frozen=True)
class Found:
    """Nanoseconds of a model on two workers."""

    model: str
    steps: int
    now: float
    as_placed: float
    apart: float
    grouped: int


def works(program: Program) -> list[Work]:
    def spans(tensors: Sequence[Tensor | None]) -> tuple[Span, ...]:
        return tuple(_span(program, t) for t in tensors if t in program.places)

    def work(step: Step) -> Work:
        op = step.op
        time = nanoseconds(op, program.target)
        return Work(op, time, step.units, spans(op.inputs), spans(op.outputs))

    return [work(step) for step in program.steps]


def _span(program: Program, tensor: Tensor | None) -> Span:
    assert tensor is not None
    place = program.places[tensor]
    rows = 1 if not place.pitch else tensor.nbytes  # rows that lie apart: beyond any other
    return place.slot, place.offset, place.offset + max(tensor.nbytes, 1) * rows


def _overlap(a: Sequence[Span], b: Sequence[Span]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)


def meet_in_memory(first: Work, then: Work) -> bool:
    return (
        _overlap(first.writes, then.reads)
        or _overlap(first.writes, then.writes)
        or _overlap(first.reads, then.writes)
    )


def depends(first: Work, then: Work) -> bool:
    return bool({t for t in then.op.inputs if t is not None} & set(first.op.outputs))


def groups(steps: Sequence[Work], meet: Meet) -> Iterator[list[Work]]:
    """Steps in a row of which none meets another."""
    group: list[Work] = []
    for step in steps:
        if any(meet(before, step) for before in group):
            yield group
            group = []
        group.append(step)
    yield group


def grouped(group: Sequence[Work]) -> float:
    """Nanoseconds of a group as one unit of work, if that is less than one by one."""
    alone = sum(w.shared for w in group)
    if len(group) < 2:
        return alone
    largest = max(w.time / w.units for w in group)
    return min(alone, max(sum(w.time for w in group) / 2 + HAND_OVER, largest))


def programs(path: Path) -> list[Program]:
    """A model's parts, placed and written, but not compiled."""
    found: list[Program] = []
    lower = build.lower

    def stop(*given: object) -> None:
        found.append(lower(*given)[0])  # type: ignore[arg-type]
        raise DelegateError("no code is wanted")

    with patch.object(build, "lower", stop), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(path).compile([CpuDelegate(cache=False)], threads=1).plan()
    return found


def judge(path: Path) -> Found:
    parts = [works(p) for p in programs(path)]
    made = [[list(groups(p, meet)) for p in parts] for meet in (meet_in_memory, depends)]
    placed, apart = (sum(grouped(g) for p in found for g in p) for found in made)
    now = sum(w.shared for p in parts for w in p)
    several = sum(len(g) for p in made[0] for g in p if len(g) > 1)
    return Found(path.stem, sum(map(len, parts)), now, placed, apart, several)


def report(found: Sequence[Found]) -> str:
    header = ["model", "steps", "in groups", "two threads, us", "gain", "arena aside"]
    rows = [
        [f.model, str(f.steps), str(f.grouped), f"{f.now / 1000:.1f}"]
        + [f"{100 * (1 - t / f.now):.1f} %" for t in (f.as_placed, f.apart)]
        for f in found
        if f.now
    ]
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL.tflite")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    options = parser.parse_args(arguments)
    text = report([judge(path) for path in model_paths(options.models)])
    print(text)
    if options.write:
        title = "## Independent steps as one unit of work"
        write_section("branches", f"{title}\n\n`python -m benchmarks.branches --write`\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
