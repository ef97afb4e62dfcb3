"""Products whose weights are mostly zero, as sparse_plan.py cuts and packs them.

Names: spread_<unit>_<pitch>, sparse_<core>_<channels together>x<pixels>, finish_<epilogue>_<lanes>.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from .....ir import Op
from ...codegen.emit import (
    F32,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    ArgumentList,
    Arguments,
    Callee,
    Emitter,
    Int,
    Value,
    vector,
)
from ...codegen.program import StepEmitter
from ...codegen.vectors import transpose
from ...dialect.fused import Inputs
from ..epilogue.contract import Epilogue, Numbers, Output, Sums, column_words
from .cores import Core, column_type, unit_type
from .gemm import Arithmetic
from .sources import MARGIN, RowSource, RowWords
from .sparse_plan import SPARE, TABLE_WORDS, Cut, Packing, best_cut, units_of, used_units
from .tiles import Panels

# Bytes of the stream that are fetched ahead.
AHEAD = 2048


@dataclass(frozen=True)
class Places:
    """The addresses of a product's operands, as gemm.Operands has them."""

    params: Value
    common: Value
    c: Value
    ldc: int
    residual: Value | None = None
    ldr: int = 0


@dataclass(frozen=True)
class Room:
    """Where in scratch things lie: packed rows of A, their words, the transposed tile, sums."""

    rows: Value
    words: Value
    tile: Value
    sums: Value


@dataclass
class SparseProduct:
    """Emits a product."""

    k: StepEmitter
    core: Core
    epilogue: Epilogue
    cut: Cut
    rows: RowSource
    at: Places
    words: RowWords | None

    def emit(self, packing: Packing) -> None:
        """A unit of work is a tile of pixels x some spans. A worker transposes a tile once."""
        k, cut = self.k, self.cut
        lists = packing.lists()
        self.stream, self.table, self.ranges = (
            k.constant(a) for a in (lists.stream, lists.table, lists.ranges)
        )
        parts, each = cut.parts, cut.spans_of_part
        room = self.room()
        begin, end = k.share(cut.tiles * parts, max(cut.tiles, 2))
        with k.loop(begin, end, carry=[I64(-1)]) as (unit, (before,)):
            tile, part = k.div(unit, parts), k.rem(unit, parts)
            first = k.mul(part, each)
            stop = k.min(k.add(first, each), cut.spans)
            for vectors in dict.fromkeys((cut.vectors, cut.last)):
                with k.when(self.has(tile, vectors)):
                    with k.when(k.b.icmp_signed("!=", k.i64(tile), before)):
                        self.fill(room, tile, vectors)
                    with k.loop(first, stop) as span:
                        self.multiply(room, span, vectors)
                        self.finish(room, span, tile, vectors)
            k.carry([k.i64(tile)])

    def has(self, tile: Int, vectors: int) -> Value:
        """Whether a tile has so many vectors."""
        k, cut = self.k, self.cut
        if cut.last == cut.vectors:
            return k.b.icmp_signed(">=", k.i64(tile), I64(0))
        is_last = k.b.icmp_signed("==", k.i64(tile), I64(cut.tiles - 1))
        return is_last if vectors == cut.last else k.b.not_(is_last)

    def room(self) -> Room:
        k, cut = self.k, self.cut
        pixels = cut.vectors * cut.lanes
        sizes = [
            self.rows.memory(pixels) + MARGIN if self.rows.packs else 0,
            0 if self.words is None else pixels * self.words.count * 4,
            cut.units * cut.pitch,
            (cut.span + SPARE) * cut.pitch,
        ]
        ends = np.cumsum([-(-size // 64) * 64 for size in sizes]).tolist()
        memory = k.scratch(ends[-1])
        return Room(*(k.at(memory, place, I8) for place in (0, *ends[:-1])))

    def row(self, tile: Int, group: Int) -> Int:
        """The first pixel of a group. The last begins earlier, instead of being smaller."""
        k, cut = self.k, self.cut
        number = k.add(k.mul(tile, cut.vectors), group)
        return k.min(k.mul(number, cut.lanes), cut.m - cut.lanes)

    def fill(self, room: Room, tile: Int, vectors: int) -> None:
        """Rows of A, packed if they must be, and transposed."""
        k, cut = self.k, self.cut
        start = self.row(tile, 0)
        end = k.add(self.row(tile, vectors - 1), cut.lanes)
        self.rows.fill(k, room.rows, start, end, 0)
        if self.words is not None:
            a = self.rows.address(k, room.rows, start, start, 0)
            self.words.fill(k, room.words, start, end, a, self.rows.stride)
        spread = spread_function(k, self.core, cut)
        with k.loop(0, vectors) as group:
            source = self.rows.address(k, room.rows, self.row(tile, group), start, 0)
            target = k.at(room.tile, k.mul(group, 4 * cut.lanes), I8)
            k.b.call(spread, [target, source, I64(self.rows.stride)])

    def multiply(self, room: Room, span: Int, vectors: int) -> None:
        k, cut = self.k, self.cut
        for chunk in range(cut.chunks):
            function = list_function(k, self.core, cut, vectors, chunk > 0)
            place = k.at(self.ranges, k.mul(k.add(k.mul(span, cut.chunks), chunk), 2), I32)
            first, last = (k.b.zext(k.load(k.at(place, i, I32), I32, 4), I64) for i in (0, 1))
            function.call(
                k,
                x=room.tile,
                stream=self.stream,
                table=self.table,
                first=first,
                last=last,
                sums=room.sums,
            )

    def finish(self, room: Room, span: Int, tile: Int, vectors: int) -> None:
        """The epilogue, square by square: `lanes` channels of `lanes` pixels, and then the channels
        that lie beside them."""
        k, cut = self.k, self.cut
        blocks = math.ceil(cut.n / cut.lanes)
        per_span = cut.span // cut.lanes
        left = cut.n - (blocks - 1) * cut.lanes
        whole = blocks if left == cut.lanes else blocks - 1
        first = k.mul(span, per_span)
        stop = k.min(k.add(first, per_span), blocks)
        with k.loop(0, vectors) as group:
            with k.loop(first, k.min(stop, whole)) as block:
                self.square(room, tile, group, block, k.sub(block, first), cut.lanes)
            if whole < blocks:
                with k.when(k.b.icmp_signed("==", k.i64(stop), I64(blocks))):
                    place = k.sub(blocks - 1, first)
                    self.square(room, tile, group, blocks - 1, place, left)

    def square(
        self, room: Room, tile: Int, group: Int, block: Int, place: Int, columns: int
    ) -> None:
        """place: of the block among those of its span."""
        k, cut, at, epilogue = self.k, self.cut, self.at, self.epilogue
        function = finish_function(k, self.core, epilogue, cut, columns)
        row = self.row(tile, group)
        across = k.mul(block, cut.lanes * epilogue.out_bytes)
        sums = k.add(k.mul(place, cut.lanes * cut.pitch), k.mul(group, 4 * cut.lanes))
        given = {
            "sums": k.at(room.sums, sums, I8),
            "params": k.at(at.params, k.mul(block, 4 * epilogue.arrays * cut.lanes), I8),
            "common": at.common,
            "c": k.at(at.c, k.add(k.mul(row, at.ldc), across), I8),
            "ldc": I64(at.ldc),
        }
        if at.residual is not None:
            there = k.add(k.mul(row, at.ldr), across)
            given |= {"residual": k.at(at.residual, there, I8), "ldr": I64(at.ldr)}
        if self.words is not None:
            mine = k.mul(k.sub(row, self.row(tile, 0)), 4 * self.words.count)
            given["rows"] = k.at(room.words, mine, I8)
        function.call(k, **given)


def emit_sparse(
    k: StepEmitter, op: Op, kind: Arithmetic, rows: RowSource, words: RowWords | None, m: int
) -> None:
    """The step of a product of m rows whose zeros are left out."""
    found = best_cut(k.target, kind.core, used_units(kind.core, kind.matrix != 0), m)
    assert found is not None
    cut = found[1]
    out, residual = op.outputs[0], Inputs.of(op).residual
    dense = cut.n * kind.epilogue.out_bytes
    at = Places(
        k.constant(column_words(Panels(cut.n, 1, cut.lanes).spans(), *kind.columns)),
        k.constant(kind.common),
        k.ptr(out),
        k.pitch(out, dense),
        None if residual is None else k.ptr(residual),
        0 if residual is None else k.pitch(residual, dense),
    )
    product = SparseProduct(k, kind.core, kind.epilogue, cut, rows, at, words)
    product.emit(Packing(cut, units_of(kind.core, kind.matrix)))


# -- functions ------------------------------------------------------------------------------------


def spread_function(k: StepEmitter, core: Core, cut: Cut) -> Value:
    """(target, source, bytes from row to row): `lanes` rows, transposed."""
    name = f"spread_{core.depth * core.a_bytes}_{cut.units}x{cut.pitch}"
    build = partial(_build_spread, core=core, cut=cut)
    return k.program.function(name, [PTR, PTR, I64], build)


def _build_spread(e: Emitter, core: Core, cut: Cut) -> None:
    target, source, stride = e.args
    lanes, unit, size = cut.lanes, unit_type(core), core.depth * core.a_bytes

    def square(first: Int, count: int) -> None:
        rows = [
            e.load_part(
                e.at(source, e.add(e.mul(stride, row), e.mul(first, size)), I8),
                vector(unit, lanes),
                count,
            )
            for row in range(lanes)
        ]
        for i, value in enumerate(transpose(e, rows)[:count]):
            there = e.at(target, e.mul(e.add(first, i), cut.pitch), I8)
            e.store(value, there, size)

    whole = cut.units // lanes
    with e.loop(0, whole * lanes, lanes) as first:
        square(first, lanes)
    if cut.units % lanes:
        square(whole * lanes, cut.units % lanes)


LIST_ARGUMENTS = ArgumentList(
    {"x": PTR, "stream": PTR, "table": PTR, "first": I64, "last": I64, "sums": PTR}
)


def list_function(k: StepEmitter, core: Core, cut: Cut, vectors: int, adds: bool) -> Callee:
    """The sums of the bundles [first, last). adds: to what is there."""
    name = f"sparse_{core.name}_{cut.together}x{vectors * cut.lanes}_b{cut.bundle}_p{cut.pitch}"
    build = partial(_build_lists, core=core, cut=cut, vectors=vectors, adds=adds)
    return k.program.declared(name + "_adds" * adds, LIST_ARGUMENTS, build)


def _build_lists(
    e: Emitter, given: Arguments, core: Core, cut: Cut, vectors: int, adds: bool
) -> None:
    width, t = 4 * cut.lanes, vector(core.acc, cut.lanes)
    offsets = [c * cut.pitch + v * width for c in range(cut.together) for v in range(vectors)]
    with e.loop(given["first"], given["last"]) as number:
        row = e.at(given["table"], e.mul(number, TABLE_WORDS), I32)
        rounds, start, *places = (
            e.b.zext(e.load(e.at(row, i, I32), I32, 4), I64) for i in range(2 + cut.bundle)
        )
        sums = [
            e.at(given["sums"], e.add(place, offset), I8) for place in places for offset in offsets
        ]
        begin = [e.load(p, t, width) if adds else e.const(t, 0) for p in sums]
        stream = e.at(given["stream"], start, I8)
        with e.loop(0, rounds, carry=begin) as (i, acc):
            here = e.at(stream, e.mul(i, cut.round_bytes), I8)
            e.call("llvm.prefetch.p0", VOID, e.at(here, AHEAD, I8), I32(0), I32(3), I32(1))
            e.carry(_round(e, core, cut, vectors, given["x"], here, list(acc)))
        for value, pointer in zip(e.carried, sums, strict=True):
            e.store(value, pointer, width)


def _round(
    e: Emitter, core: Core, cut: Cut, vectors: int, x: Value, here: Value, acc: list[Value]
) -> list[Value]:
    """An entry of each list: places, then weights. Both are read at once: loads are what this loop
    waits for."""
    t, unit = column_type(core, cut.lanes), unit_type(core)
    size, count = core.depth * core.a_bytes, cut.bundle * cut.together
    words = e.load(e.at(here, cut.place_bytes, I8), vector(I32, count), 4)
    words = e.b.bitcast(words, vector(F32, count)) if unit == F32 else words
    wide = I64 if cut.place_bytes > 4 else I32
    packed = e.load(here, wide, 4)
    for number in range(cut.bundle):
        place = e.b.and_(e.b.lshr(packed, wide(16 * number)), wide(0xFFFF))
        there = e.at(x, place if wide == I64 else e.b.zext(place, I64), I64)
        pixels = [
            e.load(e.at(there, v * 4 * cut.lanes, I8), t, size * cut.lanes) for v in range(vectors)
        ]
        for channel in range(cut.together):
            lane = number * cut.together + channel
            weight = e.shuffle(words, None, [lane] * cut.lanes)
            weight = weight if weight.type == t else e.b.bitcast(weight, t)
            for v, value in enumerate(pixels):
                place = lane * vectors + v
                acc[place] = core.step(e, value, weight, acc[place])
    return acc


def finish_function(
    k: StepEmitter, core: Core, epilogue: Epilogue, cut: Cut, columns: int
) -> Callee:
    """A square of sums through the epilogue. columns: how many channels are stored."""
    types = {"sums": PTR, "params": PTR, "common": PTR, "c": PTR, "ldc": I64}
    if epilogue.residual:
        types |= {"residual": PTR, "ldr": I64}
    if epilogue.row_words:
        types |= {"rows": PTR}
    name = f"finish_{epilogue.name}_{core.acc}_{cut.lanes}_p{cut.pitch}"
    name += f"_n{columns}" * (columns < cut.lanes)
    build = partial(_build_finish, core=core, epilogue=epilogue, cut=cut, columns=columns)
    return k.program.declared(name, ArgumentList(types), build)


def _build_finish(
    e: Emitter, given: Arguments, core: Core, epilogue: Epilogue, cut: Cut, columns: int
) -> None:
    lanes, t = cut.lanes, vector(core.acc, cut.lanes)
    add = e.b.fadd if core.acc == F32 else e.b.add
    numbers = Numbers(given["params"], lanes, given["common"], given.get("rows"))
    output = Output(given["c"], given["ldc"], given.get("residual"), given.get("ldr"))
    sums = [
        e.load(e.at(given["sums"], i * cut.pitch, I8), t, 4 * lanes)
        if i < columns
        else e.const(t, 0)
        for i in range(lanes)
    ]
    start = epilogue.start(e, numbers, 0, lanes)
    totals = [add(start, value) for value in transpose(e, sums)]
    epilogue.store(e, Sums(totals, lanes, 1, lanes, columns), numbers, output)
