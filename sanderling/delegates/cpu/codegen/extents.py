"""The checked build: every load and store is tested against the memory that its address is made of.

Beside each pointer goes its extent: the address of a record that says where its tensor, constant or
scratch begins and how much of it may be read and written. Addresses that are computed of a pointer
inherit its extent, functions are given the extents of their pointers behind their other arguments,
and those of pointers that are stored lie in a shadow of the scratch. An access outside is noted in
the context as wild indices are (index_checks.py), and goes to a few bytes of the step's own
instead: the run ends as any other, and its caller raises (faults.py).

All of it hangs on the builder that kernels emit through, so that no kernel can leave it out: a
pointer whose extent nobody knows cannot be loaded from. Prefetches touch nothing and are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import llvmlite.ir as ir

from ..isa.targets import Target
from ..runtime.abi import SLACK
from .emit import I8, I64, PTR, Budget, Builder, Emitter, Type, Value, bytes_of, plain
from .fault_notes import Functions, note

# The words of a record. SITE: of a read that leaves it; the next one is of a write. SINK: where
# accesses go that leave it. SHADOW: bytes from a stored pointer to its extent.
LOW, READ, WRITE, PITCH, ROW, SITE, CONTEXT, SINK, SHADOW, WORDS = range(10)
# Bytes of the widest access.
WIDEST = 4096


@dataclass(frozen=True)
class Extent:
    """size: bytes from the first to behind the last. readable: whether SLACK more may be read.
    pitch, row: of rows that lie apart, only the row itself is the tensor's."""

    what: str
    size: int
    slack: bool = False
    writable: bool = False
    pitch: int = 0
    row: int = 0
    shadow: int = 0

    @property
    def readable(self) -> int:
        return self.size + SLACK * self.slack


class CheckedFunctions(Functions, Protocol):
    """What a checked build asks of its program (program.py). told: the functions that are given the
    extents of their pointers."""

    module: ir.Module
    target: Target
    told: set[str]
    budget: Budget


class CheckedBuilder(Builder):
    """Writes a function whose pointers have extents. None is the context's: the compiler reads it
    at places of its own choice."""

    def __init__(self, program: CheckedFunctions, block: ir.Block) -> None:
        super().__init__(block, program.budget)
        self.program = program
        self.extents: dict[Value, Value | None] = {}
        self._sink: Value | None = None
        self.context = self._nothing = None

    # -- where extents come from ----------------------------------------------------------------

    def trust(self, context: Value, table: Value, site: int) -> None:
        """Give a step its context, and its table of places, which is the compiler's own as well.
        Whom the step passes the context on to must not touch it."""
        self.extents[table] = None
        self.context = context
        self.own(context, Extent("the context", 0), site)
        self._nothing, self.extents[context] = self.extents[context], None

    def take(self, pointers: Sequence[Value], extents: Sequence[Value]) -> None:
        self.extents |= dict(zip(pointers, extents, strict=True))

    def own(self, pointer: Value, extent: Extent, site: int) -> Value:
        """The pointer, which is the first byte of this extent."""
        words = {
            LOW: self.ptrtoint(pointer, I64),
            READ: I64(extent.readable),
            WRITE: I64(extent.size * extent.writable),
            PITCH: I64(extent.pitch),
            ROW: I64(extent.row),
            SITE: I64(site),
            CONTEXT: self.context,
            SINK: self._entry_memory(WIDEST),
            SHADOW: I64(extent.shadow),
        }
        record = self._entry_memory(8 * WORDS)
        for place, word in words.items():
            super().store(word, super().gep(record, [I64(place)], source_etype=I64), align=8)
        self.extents[pointer] = record
        return pointer

    def _entry_memory(self, size: int) -> Value:
        """Once a call, wherever it is asked for; all sinks are one."""
        if size == WIDEST and self._sink is not None:
            return self._sink
        with self.goto_entry_block():
            found = self.alloca(ir.ArrayType(I64, size // 8))
            found.type = PTR  # of words and of pointers
        if size == WIDEST:
            self._sink = found
        return found

    # -- how they are inherited -------------------------------------------------------------------

    def gep(self, ptr: Value, indices: Sequence[Value], **more: Any) -> Value:
        made = super().gep(ptr, indices, **more)
        if ptr in self.extents:
            self.extents[made] = self.extents[ptr]
        return made

    def select(self, cond: Value, lhs: Value, rhs: Value, **more: Any) -> Value:
        made = super().select(cond, lhs, rhs, **more)
        if made.type == PTR:
            self.extents[made] = super().select(cond, self._extent(lhs), self._extent(rhs))
        return made

    def phi(self, typ: Type, **more: Any) -> Value:
        if typ != PTR:
            return super().phi(typ, **more)
        made = _PointerPhi(self, typ)
        self._insert(made)
        self.extents[made] = made.extent = super().phi(PTR)
        return made

    def call(self, fn: Value, args: Sequence[Value], **more: Any) -> Value:
        given = [*args]
        if fn.name in self.program.told:
            given += [self._extent(a) for a in args if a.type == PTR]
        return super().call(fn, given, **more)

    def _extent(self, pointer: Value) -> Value:
        found = self.extents[pointer]
        return self._nothing if found is None else found

    # -- accesses ---------------------------------------------------------------------------------

    def touched(self, pointer: Value, size: int, writes: bool) -> Value:
        """Where to access these bytes: there, or where it does no harm."""
        extent = self.extents[pointer]
        if extent is None:
            assert not writes, "a step writes the context"
            return pointer
        assert size <= WIDEST
        args = [extent, pointer, I64(size), I64(int(writes))]
        return super().call(_check(self.program), args)

    def load(self, ptr: Value, typ: Type, **more: Any) -> Value:
        there = self.touched(ptr, bytes_of(typ), False)
        made = super().load(there, typ=typ, **more)
        record = self.extents[ptr]
        if typ == PTR and record is not None:
            found, shadow = self._shadow(ptr, there)
            kept = super().load(shadow, typ=PTR, align=8)
            self.extents[made] = super().select(found, kept, record)
        return made

    def store(self, value: Value, ptr: Value, **more: Any) -> None:
        there = self.touched(ptr, bytes_of(value.type), True)
        super().store(value, there, **more)
        if value.type == PTR:
            super().store(self._extent(value), self._shadow(ptr, there)[1], align=8)

    def _shadow(self, pointer: Value, there: Value) -> tuple[Value, Value]:
        """Whether the access is a good one, and where the extent of the pointer there lies."""
        word = super().gep(self.extents[pointer], [I64(SHADOW)], source_etype=I64)
        far = super().load(word, typ=I64, align=8)
        good = self.icmp_unsigned("==", pointer, there)
        away = super().select(good, far, I64(0))
        return good, super().gep(there, [away], source_etype=I8)


class _PointerPhi(ir.PhiInstr):  # type: ignore[misc]
    """A pointer that depends on where control came from, with its extent."""

    extent: Value

    def __init__(self, builder: CheckedBuilder, typ: Type) -> None:
        super().__init__(builder.block, typ, name="")
        self.builder = builder

    def add_incoming(self, value: Value, block: Value) -> None:
        super().add_incoming(value, block)
        self.extent.add_incoming(self.builder._extent(value), block)


def _check(program: CheckedFunctions) -> ir.Function:
    """check(extent, pointer, bytes, writes): the pointer, or the sink."""
    found = program.module.globals.get("check")
    if found is not None:
        return found
    found = ir.Function(program.module, ir.FunctionType(PTR, [PTR, PTR, I64, I64]), "check")
    found.linkage = "internal"
    e = Emitter(program.module, plain(found), program.target)
    record, pointer, size, writes = e.args

    def word(place: int, t: Type = I64) -> Value:
        return e.load(e.at(record, place, I64), t, 8)

    writing = e.b.icmp_signed("!=", writes, I64(0))
    offset = e.b.sub(e.b.ptrtoint(pointer, I64), word(LOW))
    most = e.b.select(writing, word(WRITE), word(READ))
    pitch = word(PITCH)
    apart = e.b.icmp_signed("!=", pitch, I64(0))
    column = e.b.urem(offset, e.b.select(apart, pitch, I64(1)))
    row = e.b.add(word(ROW), e.b.select(writing, I64(0), I64(SLACK)))
    in_row = e.b.or_(e.b.not_(apart), e.b.icmp_signed("<=", e.b.add(column, size), row))
    within = e.b.and_(
        e.b.icmp_signed(">=", offset, I64(0)), e.b.icmp_signed("<=", e.b.add(offset, size), most)
    )
    inside = e.b.and_(within, in_row)
    with e.b.if_then(inside):
        e.b.ret(pointer)
    number = e.b.add(word(SITE), writes)
    e.b.call(note(program), [word(CONTEXT, PTR), number, offset, size])
    e.b.ret(word(SINK, PTR))
    return found
