"""Which steps are shared together: branches that do not wait for each other are one phase.

Workers share the steps of a part phase by phase. A phase is one step, or several in a row that need
nothing of each other: then a worker that is done with one of them goes on with the next, and there
is one hand-over instead of one for each. That pays where steps are small, such as the heads of a
detector; a large step keeps all workers busy by itself.

Steps need nothing of each other if none writes what another reads or writes. Memory tells that, not
the graph: what lies in the same bytes of the arena one after the other must stay so. A variable is
written by whoever is given it: an assignment and the ops that keep a state have it as an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from ....ir import Op, Tensor
from ..codegen.program import Phase, Program, Step, extent_of, row_bytes
from ..dialect.guards import guard_of
from ..runtime import division
from ..runtime.abi import ARENA
from .estimates import nanoseconds
from .placement import free_from

# Nanoseconds from which a step is large. (Large steps of few units were joined with others, too: a
# chunk of theirs is as long as many of a small step's, and the last one kept one worker waiting for
# the other. MiniLM took 1.10 times as long with two threads, SqueezeNet 1.02.)
LARGE = 50_000
# Pieces of a phase of several steps at most, so that chunks of them are about equally long.
PIECES = 64


@dataclass(frozen=True)
class Span:
    """Bytes of a slot: all between the first and the last, or equal rows of them."""

    slot: int
    first: int
    behind: int
    pitch: int = 0
    row: int = 0

    def meets(self, other: Span) -> bool:
        if self.slot != other.slot or self.first >= other.behind or other.first >= self.behind:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        # Rows of one block side by side: columns that do not wrap around.
        mine, its = self.first % self.pitch, other.first % self.pitch
        whole = max(mine + self.row, its + other.row) <= self.pitch
        return not whole or (mine < its + other.row and its < mine + self.row)


@dataclass(frozen=True)
class Work:
    """A step: its number, what it takes, what it touches. scratch: where that of all workers is."""

    number: int
    step: Step
    nanoseconds: int
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    scratch: tuple[Span, ...]

    @property
    def is_small(self) -> bool:
        return self.nanoseconds < LARGE

    def goes_with(self, other: Work) -> bool:
        """Either may run before, after or beside the other."""
        mine, its = self.reads + self.writes, other.reads + other.writes
        return not (
            _meet(self.writes, its)
            or _meet(mine, other.writes)
            or _meet(self.scratch, its)
            or _meet(mine, other.scratch)
        )


def _meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    return any(a.meets(b) for a, b in product(some, others))


def phases(program: Program) -> list[Phase]:
    """All steps of a program. Code that tells of its steps has one in each phase: times of several
    at once would not add up."""
    if program.timed or program.traced:
        return [_phase([w]) for w in works(program)]
    same_guard = groupby(works(program), lambda w: guard_of(w.step.op))
    return [_phase(group) for _, members in same_guard for group in _groups(list(members))]


def works(program: Program) -> list[Work]:
    floor = free_from(program.graph, program.places, {s.op for s in program.steps if s.scratch})
    scratch = (Span(ARENA, floor, 1 << 62),)
    return [
        Work(
            number,
            step,
            nanoseconds(step.op, program.target),
            _spans(program, step.op.inputs),
            _spans(program, [*step.op.outputs, *_variables(step.op)]),
            scratch if step.scratch else (),
        )
        for number, step in enumerate(program.steps)
    ]


def _variables(op: Op) -> list[Tensor]:
    return [t for t in op.inputs if t is not None and t.is_variable]


def _spans(program: Program, tensors: Sequence[Tensor | None]) -> tuple[Span, ...]:
    return tuple(_span(program, t) for t in tensors if t is not None and t in program.places)


def _span(program: Program, tensor: Tensor) -> Span:
    place = program.places[tensor]
    behind = place.offset + extent_of(tensor, place.pitch)
    return Span(place.slot, place.offset, behind, place.pitch, row_bytes(tensor))


def _groups(members: Sequence[Work]) -> Iterator[list[Work]]:
    group: list[Work] = []
    for work in members:
        if group and not (work.is_small and all(work.goes_with(w) for w in group)):
            yield group
            group = []
        group.append(work)
        if not work.is_small:
            yield group
            group = []
    if group:
        yield group


def _phase(group: Sequence[Work]) -> Phase:
    """Pieces of about the same length; a step by itself is cut as finely as it can be."""
    total = sum(w.nanoseconds for w in group)
    each = max(division.WORK_OF_CHUNK, total / PIECES)
    pieces = [max(1, min(w.step.units, round(w.nanoseconds / each))) for w in group]
    if len(group) == 1:
        pieces = [group[0].step.units]
    return Phase(tuple(w.number for w in group), tuple(pieces), total)
