"""Where tensors lie: the caller's arrays, or blocks of one arena.

Tensors that show the same bytes share a block, at an offset: a view and its source, a slice that is
contiguous and what it is cut from, the parts of a concatenation along its outermost axis (their
producers write straight into it), an element by element result and an input that dies with it.
Parts along the last axis lie there too, rows in rows, where all who write and read them can
(Kernel.reads, Kernel.writes). What then lies where it should is not copied: `is_free`.

Blocks that are not alive at the same time share memory (runtime.arena). Scratch lies behind what is
alive in the steps that use it: `free_from`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ....ir import Graph, Op, Tensor
from ....runtime.arena import Item, plan
from ..codegen.program import Place, extent_of, row_bytes
from ..dialect.guards import Condition, guard_of
from ..kernels.move.strided import Dim, collapse, offset_of
from ..kernels.move.views import in_place, pairs_at, pitches, rescales
from ..kernels.row import Shared
from ..runtime.abi import ALIGN, ARENA, FIRST_ARG
from ..table import row_of


@dataclass(frozen=True)
class Spot:
    """Where a tensor lies in its block. pitch: bytes from row to row where rows lie apart."""

    offset: int
    pitch: int = 0


@dataclass(eq=False)
class Block:
    """Bytes that tensors share. slot: the caller's array that it is, if it is one."""

    size: int
    slot: int | None = None
    given: bool = False  # the caller's input: not to be written
    members: dict[Tensor, Spot] = field(default_factory=dict)


@dataclass(frozen=True)
class Alias:
    """`inner` can lie in `outer` at this offset; by_rows: each of its rows in one of outer's."""

    inner: Tensor
    outer: Tensor
    offset: int
    by_rows: bool = False


def place(part: Graph) -> tuple[dict[Tensor, Place], int]:
    """The place of every tensor that is not a constant, and the bytes of the arena."""
    planner = _Planner(part)
    planner.share()
    return planner.places()


def free_from(part: Graph, places: Mapping[Tensor, Place], ops: Collection[Op]) -> int:
    """The offset in the arena behind everything that lives while one of these ops runs."""
    born, last = lifetimes(part)
    steps = [i for i, op in enumerate(part.ops) if op in ops]
    end = 0
    for tensor, spot in places.items():
        first = bisect_left(steps, born.get(tensor, 0))
        if spot.slot == ARENA and first < len(steps) and steps[first] <= last[tensor]:
            end = max(end, spot.offset + extent_of(tensor, spot.pitch))
    return -(-end // ALIGN) * ALIGN


def lifetimes(part: Graph) -> tuple[dict[Tensor, int], dict[Tensor, int]]:
    """The number of the op that computes a tensor, and of the last that reads it."""
    born: dict[Tensor, int] = {}
    last: dict[Tensor, int] = {}
    for step, op in enumerate(part.ops):
        for tensor in op.outputs:
            born[tensor] = last[tensor] = step
        last |= dict.fromkeys((t for t in op.inputs if t is not None), step)
    return born, last | dict.fromkeys(part.outputs, len(part.ops))


def is_free(op: Op, places: dict[Tensor, Place]) -> bool:
    """Nothing is left to do: all elements lie where they should."""
    if row_of(op).is_view:
        x = op.inputs[0]
        return x is not None and places.get(x) == places[op.outputs[0]]
    if found := row_of(op).lies_with(op):
        return all(places.get(shared.tensor) == places[op.outputs[0]] for shared in found)
    if row_of(op).pairs is None:
        return False
    return all(in_place(op, pair, places) for pair in pairs_at(op, pitches(places)))


def shows(op: Op) -> Iterator[Alias]:
    """Outputs that are contiguous parts of an input."""
    if row_of(op).is_view:
        x = op.inputs[0]
        if x is not None:
            yield Alias(op.outputs[0], x, 0)
        return
    for run in _runs(op):
        if not run.rows and run.length == run.y.nbytes:
            yield Alias(run.y, run.x, run.by - run.to)


def joins(op: Op) -> Iterator[Alias]:
    """Inputs that are contiguous parts of an output."""
    for run in _runs(op):
        if not run.rows and run.length == run.x.nbytes < run.y.nbytes:
            yield Alias(run.x, run.y, run.to - run.by)


def columns(op: Op) -> Iterator[Alias]:
    """Inputs whose rows are parts of an output's rows, or outputs whose rows are parts of those of
    an input."""
    for run in _runs(op):
        if run.rows is None:
            continue
        whole, part = row_bytes(run.y), row_bytes(run.x)
        if (run.rows.to, run.rows.by) == (whole, run.length) and run.length == part:
            yield Alias(run.x, run.y, run.to, by_rows=True)
        elif (run.rows.by, run.rows.to) == (part, run.length) and run.length == whole:
            yield Alias(run.y, run.x, run.by, by_rows=True)


@dataclass(frozen=True)
class ByteRun:
    """A pair of an op that is one run of bytes, or equal rows of them: output, offset, input,
    offset, bytes."""

    y: Tensor
    to: int
    x: Tensor
    by: int
    length: int
    rows: Dim | None


def _runs(op: Op) -> Iterator[ByteRun]:
    pairs = row_of(op).pairs
    for index, to, source, by in pairs(op) if pairs is not None else ():
        x = op.inputs[source] if isinstance(source, int) else None
        if x is None or x.is_constant or rescales(op, x) or to.size == 0:
            continue
        traversal = collapse(to, by)
        if len(traversal.dims) < 2:
            rows = traversal.dims[0] if traversal.dims else None
            yield ByteRun(op.outputs[index], offset_of(to), x, offset_of(by), traversal.run, rows)


class _Planner:
    def __init__(self, part: Graph) -> None:
        self.part = part
        self.block: dict[Tensor, Block] = {}
        self.born, self.last = lifetimes(part)
        for index, tensor in enumerate((*part.inputs, *part.outputs)):
            self._add(tensor, FIRST_ARG + index, index < len(part.inputs))
        for tensor in self.born:
            self._add(tensor)

    def _add(self, tensor: Tensor, slot: int | None = None, given: bool = False) -> None:
        if tensor not in self.block:
            self.block[tensor] = Block(tensor.nbytes, slot, given, {tensor: Spot(0)})

    # -- sharing --------------------------------------------------------------------------------

    def share(self) -> None:
        """Views first: what they show must not be torn apart by a concatenation."""
        for op in self.part.ops:
            for alias in shows(op):
                self._put(alias)
        for op in self.part.ops:
            for alias in joins(op):
                self._put(alias)
        for op in self.part.ops:
            for alias in columns(op):
                self._put_rows(alias)
        for step, op in enumerate(self.part.ops):
            for tensor, condition in row_of(op).lies_with(op):
                if condition is None:
                    self._read_in_place(tensor, op.outputs[0], step)
                elif self._is_within(tensor, condition):
                    self._put(Alias(tensor, op.outputs[0], 0))
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
        spot = outer.members[alias.outer]
        if inner is outer or inner.size != alias.inner.nbytes or spot.pitch:
            return False
        if inner.slot is None:
            self._move(inner, outer, spot.offset + alias.offset)
        elif outer.slot is None and not inner.given and inner.size == outer.size:
            self._move(outer, inner, 0)
        else:
            return False
        return True

    def _move(self, block: Block, into: Block, shift: int) -> None:
        self._settle({t: Spot(s.offset + shift, s.pitch) for t, s in block.members.items()}, into)

    def _settle(self, spots: dict[Tensor, Spot], block: Block) -> None:
        block.members |= spots
        self.block |= dict.fromkeys(spots, block)

    # -- rows in rows -----------------------------------------------------------------------------

    def _put_rows(self, alias: Alias) -> bool:
        """Put the inner tensor, which must be all of its block, where its rows belong."""
        if alias.inner not in self.block or alias.outer not in self.block:
            return False
        inner, outer = self.block[alias.inner], self.block[alias.outer]
        if inner is outer or inner.size != alias.inner.nbytes or inner.slot is not None:
            return False
        row = row_bytes(alias.inner)
        if not all(self._may_lie_apart(t, spot, row) for t, spot in inner.members.items()):
            return False
        there = outer.members[alias.outer]
        pitch = there.pitch or row_bytes(alias.outer)
        spots = {}
        for tensor, spot in inner.members.items():
            line, column = divmod(spot.offset, row)
            spots[tensor] = Spot(there.offset + alias.offset + line * pitch + column, pitch)
        self._settle(spots, outer)
        return True

    def _may_lie_apart(self, tensor: Tensor, spot: Spot, row: int) -> bool:
        """Its rows are those of its block, or parts of them; and all who touch it can do so."""
        if (spot.pitch or row_bytes(tensor)) != row:
            return False
        made = tensor.producer
        if made is None or not self._writes_apart(made, tensor):
            return False
        return all(self._reads_apart(user, tensor) for user in tensor.users)

    def _writes_apart(self, op: Op, tensor: Tensor) -> bool:
        if row_of(op).is_view:
            return op.inputs[0] is not None and self._together(op.inputs[0], tensor)
        return row_of(op).writes(op)

    def _reads_apart(self, op: Op, tensor: Tensor) -> bool:
        if row_of(op).is_view:
            return self._together(tensor, op.outputs[0])
        able = row_of(op).reads(op)
        return all(i in able for i, t in enumerate(op.inputs) if t is tensor)

    def _together(self, a: Tensor, b: Tensor) -> bool:
        return self.block.get(a) is not None and self.block.get(a) is self.block.get(b)

    # -- state and branches -----------------------------------------------------------------------

    def _read_in_place(self, variable: Tensor, y: Tensor, step: int) -> None:
        """Read a variable where it lies, if nobody looks at it once it is assigned."""
        end = max(self.last[t] for t in self.block[y].members)
        later = self.part.ops[step : end + 1]
        written = any(variable in o.inputs and not _reads_alone(o, variable) for o in later)
        if variable.dtype is y.dtype and not written:
            self._put(Alias(y, variable, 0))

    def _is_within(self, tensor: Tensor, condition: Condition) -> bool:
        """A branch writes it, and all that shares its bytes: not what came before the branch, nor a
        view of that."""
        makers = [t.producer for t in self.block[tensor].members]
        return all(made is not None and condition in guard_of(made) for made in makers)

    # -- in place ---------------------------------------------------------------------------------

    def _overwrite(self, op: Op, step: int) -> None:
        """Let the result take the place of an input that is of no use afterwards."""
        for x in row_of(op).overwrites(op):
            free = self._dies(x, op, step) and self._is_new(op.outputs[0], step)
            if free and self._put(Alias(op.outputs[0], x, 0)):
                return

    def _is_new(self, tensor: Tensor, step: int) -> bool:
        """No other branch has written these bytes by then."""
        return all(self.born.get(t, 0) >= step for t in self.block[tensor].members)

    def _dies(self, x: Tensor, op: Op, step: int) -> bool:
        """Nobody reads these bytes after the op, nor does the op read them at other places."""
        block = self.block.get(x)
        if block is None or block.given or self.last[x] != step:
            return False
        if block.members[x].pitch:
            return False
        begin = block.members[x].offset
        end = begin + x.nbytes
        over = [
            t
            for t, s in block.members.items()
            if s.offset < end and s.offset + extent_of(t, s.pitch) > begin
        ]
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
            found |= {t: Place(slot, start + s.offset, s.pitch) for t, s in block.members.items()}
        return found, layout.size

    def _life(self, block: Block) -> tuple[int, int]:
        return (min(self.born[t] for t in block.members), max(self.last[t] for t in block.members))


def _reads_alone(op: Op, variable: Tensor) -> bool:
    """The op copies the variable and leaves it as it is."""
    return Shared(variable) in row_of(op).lies_with(op)
