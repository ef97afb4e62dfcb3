"""Where tensors lie: the caller's arrays, or blocks of one arena.

Tensors that show the same bytes share a block, at an offset: a view and its source, a slice that is
contiguous and what it is cut from, the parts of a concatenation along its outermost axis (their
producers write straight into it), an element by element result and an input that dies with it. What
then lies where it should is not copied: `is_free`.

Blocks that are not alive at the same time share memory (runtime.arena).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...ir import Graph, Op, Tensor
from ...runtime.arena import Item, plan
from .abi import ARENA, FIRST_ARG
from .mapping import Map, lengthen
from .move import MOVES, in_place, pairs_of, rescales
from .prepare import VIEWS
from .program import Place
from .strided import collapse, offset_of

# A map whose rows are whole vectors computes every element once, so that it may overwrite what it
# reads; of other rows the last vector reaches back. This many elements are whole on any target.
WHOLE = 64


@dataclass(eq=False)
class Block:
    """Bytes that tensors share. slot: the caller's array that it is, if it is one."""

    size: int
    slot: int | None = None
    given: bool = False  # the caller's input: not to be written
    members: dict[Tensor, int] = field(default_factory=dict)  # tensor -> offset


@dataclass(frozen=True)
class Alias:
    """`inner` can lie in `outer` at this offset."""

    inner: Tensor
    outer: Tensor
    offset: int


def place(part: Graph) -> tuple[dict[Tensor, Place], int]:
    """The place of every tensor that is not a constant, and the bytes of the arena."""
    planner = _Planner(part)
    planner.share()
    return planner.places()


def is_free(op: Op, places: dict[Tensor, Place]) -> bool:
    """Nothing is left to do: all elements lie where they should."""
    if op.name in VIEWS:
        x = op.inputs[0]
        return x is not None and places.get(x) == places[op.outputs[0]]
    return op.name in MOVES and all(in_place(op, pair, places) for pair in pairs_of(op))


def shows(op: Op) -> Iterator[Alias]:
    """Outputs that are contiguous parts of an input."""
    if op.name in VIEWS:
        x = op.inputs[0]
        if x is not None:
            yield Alias(op.outputs[0], x, 0)
        return
    for y, to, x, by, length in _runs(op):
        if length == y.nbytes:
            yield Alias(y, x, by - to)


def joins(op: Op) -> Iterator[Alias]:
    """Inputs that are contiguous parts of an output."""
    for y, to, x, by, length in _runs(op):
        if length == x.nbytes < y.nbytes:
            yield Alias(x, y, to - by)


def _runs(op: Op) -> Iterator[tuple[Tensor, int, Tensor, int, int]]:
    """Pairs that are one run of bytes: output, offset, input, offset, bytes."""
    for index, to, source, by in pairs_of(op) if op.name in MOVES else ():
        x = op.inputs[source] if isinstance(source, int) else None
        if x is None or x.is_constant or rescales(op, x) or to.size == 0:
            continue
        walk = collapse(to, by)
        if not walk.dims:
            yield op.outputs[index], offset_of(to), x, offset_of(by), walk.run


class _Planner:
    def __init__(self, part: Graph) -> None:
        self.part = part
        self.block: dict[Tensor, Block] = {}
        self.born: dict[Tensor, int] = {}
        self.last: dict[Tensor, int] = {}
        for index, tensor in enumerate((*part.inputs, *part.outputs)):
            self._add(tensor, FIRST_ARG + index, index < len(part.inputs))
        for step, op in enumerate(part.ops):
            for tensor in op.outputs:
                self._add(tensor)
                self.born[tensor] = self.last[tensor] = step
            for used in op.inputs:
                if used is not None:
                    self.last[used] = step
        self.last |= dict.fromkeys(part.outputs, len(part.ops))

    def _add(self, tensor: Tensor, slot: int | None = None, given: bool = False) -> None:
        if tensor not in self.block:
            self.block[tensor] = Block(tensor.nbytes, slot, given, {tensor: 0})

    # -- sharing --------------------------------------------------------------------------------

    def share(self) -> None:
        """Views first: what they show must not be torn apart by a concatenation."""
        for op in self.part.ops:
            for alias in shows(op):
                self._put(alias)
        for op in self.part.ops:
            for alias in joins(op):
                self._put(alias)
        for step, op in enumerate(self.part.ops):
            self._overwrite(op, step)

    def _put(self, alias: Alias) -> bool:
        """Make the two share, if one of their blocks is free to move.

        The inner tensor must be all of its block: what else the block holds would lie upon whatever
        the outer one has beside it.
        """
        if alias.inner not in self.block or alias.outer not in self.block:
            return False
        inner, outer = self.block[alias.inner], self.block[alias.outer]
        shift = outer.members[alias.outer] + alias.offset
        if inner is outer or inner.size != alias.inner.nbytes:
            return False
        if inner.slot is None:
            self._move(inner, outer, shift)
        elif outer.slot is None and not inner.given and inner.size == outer.size:
            self._move(outer, inner, 0)
        else:
            return False
        return True

    def _move(self, block: Block, into: Block, shift: int) -> None:
        for tensor, offset in block.members.items():
            into.members[tensor] = offset + shift
            self.block[tensor] = into

    # -- in place ---------------------------------------------------------------------------------

    def _overwrite(self, op: Op, step: int) -> None:
        """Let the result take the place of an input that is of no use afterwards."""
        for x in _overwritable(op):
            if self._dies(x, op, step) and self._put(Alias(op.outputs[0], x, 0)):
                return

    def _dies(self, x: Tensor, op: Op, step: int) -> bool:
        """Nobody reads these bytes after the op, nor does the op read them at other places."""
        block = self.block.get(x)
        if block is None or block.given or self.last[x] != step:
            return False
        begin = block.members[x]
        end = begin + x.nbytes
        over = [t for t, at in block.members.items() if at < end and at + t.nbytes > begin]
        if any(self.last.get(t, 0) > step or self.born.get(t, 0) > step for t in over):
            return False
        return all(t is None or t is x or t not in over for t in op.inputs)

    # -- the arena --------------------------------------------------------------------------------

    def places(self) -> tuple[dict[Tensor, Place], int]:
        blocks = list(dict.fromkeys(self.block.values()))
        inner = [b for b in blocks if b.slot is None]
        # A kernel may read past the end: into the next block, or into what the arena has behind it.
        layout = plan([Item(b, b.size, *self._life(b)) for b in inner])
        found: dict[Tensor, Place] = {}
        for block in blocks:
            slot, start = (ARENA, layout.offsets[block]) if block.slot is None else (block.slot, 0)
            found |= {t: Place(slot, start + at) for t, at in block.members.items()}
        return found, layout.size

    def _life(self, block: Block) -> tuple[int, int]:
        return (min(self.born[t] for t in block.members), max(self.last[t] for t in block.members))


def _overwritable(op: Op) -> list[Tensor]:
    """Inputs whose bytes the op may overwrite while it reads them."""
    given = [t for t in op.inputs[:1] if t is not None]
    if op.name == "cpu.MAP":
        return _mapped(op)
    if op.name == "cpu.LUT":
        return [t for t in given if t.nbytes % WHOLE == 0]
    return given if op.name in ("cpu.FLIP", "DYNAMIC_UPDATE_SLICE") else []


def _mapped(op: Op) -> list[Tensor]:
    """Operands of a map that go along with its result, element by element."""
    m, y = lengthen(Map.of(op)), op.outputs[0]
    if 0 in y.shape or not m.layout.sizes or m.layout.sizes[-1] % WHOLE:
        return []
    spread = {o.tensor for o in m.operands if math.prod(o.shape) != math.prod(y.shape)}
    along = dict.fromkeys(o.tensor for o in m.operands)
    return [t for t in along if t is not None and t not in spread and t.nbytes == y.nbytes]
