"""What becomes of a tile's accumulators: bias, scale, residual, activation, store.

A sink reads numbers for each column from its panel's params (arrays of 32-bit words, one after the
other, each as long as the panel is wide), and numbers that hold for the whole step from `common`:
code is shared between steps, so that it must not depend on them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .....ir import Array
from .....ir.expr import inputs_of
from ...codegen.bfloat import narrow
from ...codegen.emit import F32, I8, I16, I32, I64, PTR, Emitter, Type, Value, vector
from ...codegen.render import render_vector
from ...codegen.rounding import Rounding, load_factors, rescaled
from ...isa.targets import Target
from ..elementwise.planes import Plane
from .tiles import Panels, Tile


@dataclass(frozen=True)
class Ends:
    """The addresses that a sink works with. residual and rows only where the sink asks for them."""

    params: Value
    common: Value
    c: Value
    ldc: Value  # bytes from row to row
    residual: Value | None = None
    rows: Value | None = None
    ldr: Value | None = None  # of the residual, if not ldc


class Sink(Protocol):
    """residual: a tensor of the output's type and shape is added. rows: words for each row."""

    @property
    def name(self) -> str: ...
    @property
    def arrays(self) -> int: ...  # words for each column
    @property
    def c_bytes(self) -> int: ...
    @property
    def residual(self) -> bool: ...
    @property
    def rows(self) -> int: ...  # words for each row
    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]: ...
    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None: ...  # fmt: skip


def params_of(panels: Panels, *arrays: Array) -> Array:
    """The arrays [n] of 32- or 64-bit numbers, panel by panel."""
    parts = []
    for first, columns in panels.spans():
        for array in arrays:
            mine = np.zeros(columns, array.dtype)
            mine[: len(array[first:])] = array[first : first + columns]
            parts.append(mine.view(np.int32))
    return np.concatenate(parts)


def words(*values: float | int | np.generic) -> Array:
    """Numbers for `common`: ints as int32, floats as float32."""
    return np.array([np.int32(v) if isinstance(v, int | np.integer)
                     else np.float32(v).view(np.int32) for v in values], np.int32)  # fmt: skip


def _column(e: Emitter, params: Value, array: int, v: int, tile: Tile, t: Type) -> Value:
    """Vector v of an array of the params."""
    return e.load(e.at(params, array * tile.columns + v * tile.lanes, t), vector(t, tile.lanes), 4)


def _common(e: Emitter, ends: Ends, word: int, lanes: int, t: Type = F32) -> Value:
    return e.splat(e.load(e.at(ends.common, word, I32), t, 4), lanes)


def _place(e: Emitter, base: Value, ends: Ends, row: int, v: int, tile: Tile, size: int) -> Value:
    apart = base is ends.residual and ends.ldr is not None
    step = e.mul(ends.ldr if apart else ends.ldc, row)
    return e.at(e.at(base, step, I8), v * tile.lanes * size, I8)


@dataclass(frozen=True)
class FloatSink:
    """float32: the accumulators start with the bias. common: low, high (the largest finite values
    where there is no bound, as in LiteRT's kernels); NaN stays NaN.

    map: an expression of the result, applied last; its text is part of the name. Where it reads
    a second input, that is the residual, which then is not added. c_bytes: 2 for bfloat16.
    """

    residual: bool = False
    map: Any = None
    arrays: int = 1
    c_bytes: int = 4
    rows: int = 0

    @property
    def name(self) -> str:
        kind = "bf16" if self.c_bytes == 2 else "f32"
        return kind + "_add" * self.residual + _map_name(self.map)

    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]:
        return [_column(e, params, 0, v, tile, F32) for v in range(tile.vectors)] * tile.rows

    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None:  # fmt: skip
        store_floats(e, self, tile, columns, acc, ends)


def store_floats(e: Emitter, sink: FloatSink | HybridSink, tile: Tile, columns: int,
                 values: Sequence[Value], ends: Ends) -> None:  # fmt: skip
    """Residual, bounds, expression, store."""
    low, high = (_common(e, ends, i, tile.lanes) for i in (0, 1))
    for i, value in enumerate(values):
        row, v = divmod(i, tile.vectors)
        count = columns - v * tile.lanes
        if count <= 0:
            continue
        inputs = []
        if ends.residual is not None:
            there = _place(e, ends.residual, ends, row, v, tile, 4)
            inputs.append(e.load_part(there, value.type, count))
        if inputs and not maps_two(sink.map):
            value = e.b.fadd(value, inputs.pop())
        value = e.fmin(high, e.fmax(low, value))
        if sink.map is not None:
            value = render_vector(e, sink.map, [value, *inputs])
        if sink.c_bytes == 2:
            value = narrow(e, value)
        e.store_part(value, _place(e, ends.c, ends, row, v, tile, sink.c_bytes), count)


def maps_two(expression: Any) -> bool:
    return expression is not None and 1 in inputs_of(expression)


def _map_name(expression: Any) -> str:
    if expression is None:
        return ""
    return "_map" + hashlib.blake2b(repr(expression).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class ByteSink:
    """Sums to 8- or 16-bit codes.

    params: bias (which holds the zero points' share, and rounding.Rescale's start), then the
    rounding's numbers. common: zero point, low, high, and for a residual sum_words. rows: 1 if each
    row has a number to add to its sums. wild: results may leave 32 bits before they are clamped.
    full: low and high are the type's ends. away: the residual's sum has two heights (sums.Plane).
    """

    signed: bool = False
    residual: bool = False
    rows: int = 0
    wild: bool = False
    c_bytes: int = 1
    rounding: Rounding = Rounding.FIXED_AWAY
    full: bool = False
    away: bool = False

    @property
    def arrays(self) -> int:
        return 1 + self.rounding.arrays

    @property
    def name(self) -> str:
        kind = ("s" if self.signed else "u") + str(8 * self.c_bytes) + self.rounding.value
        added = "_add" * self.residual + "_away" * self.away
        return kind + added + "_row" * self.rows + "_wild" * self.wild + "_full" * self.full

    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]:
        return [_column(e, params, 0, v, tile, I32) for v in range(tile.vectors)] * tile.rows

    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None:  # fmt: skip
        used = math.ceil(columns / tile.lanes)
        numbers = e.at(ends.params, tile.columns, I32)
        factors = [load_factors(e, self.rounding, numbers, tile.columns, v * tile.lanes, tile.lanes)
                   for v in range(used)]  # fmt: skip
        extra = [_common(e, ends, i, tile.lanes, I32) for i in range(3, 11)] * self.residual
        whole = vector(I32, tile.lanes)
        bounds = extra[:2] or ([e.const(whole, -WILD), e.const(whole, WILD)] if self.wild else None)
        rows = []
        for row in range(tile.rows):
            sums = list(acc[row * tile.vectors : row * tile.vectors + used])
            if ends.rows is not None:
                more = e.splat(e.load(e.at(ends.rows, row, I32), I32, 4), tile.lanes)
                sums = [e.b.add(s, more) for s in sums]
            found = [rescaled(e, self.rounding, total, mine, bounds)
                     for total, mine in zip(sums, factors, strict=True)]  # fmt: skip
            if ends.residual is not None:
                found = [self._added(e, tile, columns, row, v, mine, ends, extra[2:])
                         for v, mine in enumerate(found)]  # fmt: skip
            rows.append(found)
        Codes(e, ends, tile, self).store(columns, rows)

    def _added(self, e: Emitter, tile: Tile, columns: int, row: int, v: int, mine: Value,
               ends: Ends, extra: Sequence[Value]) -> Value:  # fmt: skip
        """The product as it would be stored, and the residual, in units of the output."""
        there = _place(e, ends.residual, ends, row, v, tile, 1)
        raw = e.load_part(there, vector(I8, tile.lanes), columns - v * tile.lanes)
        other = e.b.sext(raw, mine.type) if self.signed else e.b.zext(raw, mine.type)
        first, second, plus, shift, above, less = extra
        total = e.b.add(_pair_products(e, mine, other, first, second), plus)
        if self.away:
            negative = e.b.icmp_signed("<", total, above)
            total = e.b.add(total, e.b.select(negative, less, e.const(total.type, 0)))
        return e.b.ashr(total, shift)


# Far beyond all codes.
WILD = 1 << 20


def sum_words(plane: Plane, zero: int, bounds: tuple[int, int], target: Target) -> list[int]:
    """What a sink is told of a residual with this zero point; bounds: of the product itself,
    without its zero point. Ints for `words`."""
    a, b = plane.a, plane.b
    if target.triple.startswith("x86"):  # _pair_products
        first, second = (np.array(pair, np.int16).view(np.int32).item()
                         for pair in ((a >> 9, b >> 9), (a & 511, b & 511)))  # fmt: skip
    else:
        first, second = a, b
    less = plane.below - plane.above
    return [*bounds, first, second, plane.above - zero * b, plane.shift, plane.above, less]


def _pair_products(e: Emitter, x: Value, y: Value, first: Value, second: Value) -> Value:
    """a * x + b * y. x86 multiplies 32-bit numbers slowly, pairs of 16-bit ones fast: there a and b
    are in two parts, side by side as x and y."""
    if not e.target.triple.startswith("x86"):
        return e.b.add(e.b.mul(x, first), e.b.mul(y, second))
    t = x.type
    low = e.b.and_(x, e.const(t, 0xFFFF))
    pairs = e.b.or_(low, e.b.shl(y, e.const(t, 16)))
    high, rest = (e.multiply_pairs(pairs, part) for part in (first, second))
    return e.b.add(e.b.shl(high, e.const(t, 9)), rest)


class Codes:
    """Whole numbers to codes in memory: zero point, bounds, narrow, store a row at a time."""

    def __init__(self, e: Emitter, ends: Ends, tile: Tile, sink: ByteSink) -> None:
        self.e, self.ends, self.tile, self.size = e, ends, tile, sink.c_bytes
        self.packs = e.target.triple.startswith("x86") and sink.signed == (self.size == 2)
        self.vectors = 4 // self.size  # that a pack takes
        # A residual's result is without it.
        self.shifts = sink.residual or not sink.rounding.has_zero
        self.full = sink.full
        zero, low, high = (e.load(e.at(ends.common, i, I32), I32, 4) for i in range(3))
        lanes = tile.lanes
        if self.packs:
            words = self.size == 2
            self.zero = e.splat(zero, lanes) if words else e.splat(e.b.trunc(zero, I16), 2 * lanes)
            code, count = (I16, 2 * lanes) if words else (I8, 4 * lanes)
            self.low, self.high = (e.splat(e.b.trunc(x, code), count) for x in (low, high))
        else:
            self.zero, self.low, self.high = (e.splat(x, lanes) for x in (zero, low, high))

    def store(self, columns: int, rows: Sequence[Sequence[Value]]) -> None:
        """A pack makes codes of several vectors: of several rows, where these are short."""
        used, most = len(rows[0]), self.vectors
        if self.packs and 2 * used <= most:
            for row in range(0, len(rows), most // used):
                self._store_rows(row, columns, rows[row : row + most // used])
            return
        for row, values in enumerate(rows):
            for first in range(0, used, most):
                group = values[first : first + most]
                code = self._packed(group) if self.packs else self._narrow(group)
                self._store(row, first, columns, code)

    def _store_rows(self, row: int, columns: int, rows: Sequence[Sequence[Value]]) -> None:
        code = self._packed([value for found in rows for value in found])
        width = len(rows[0]) * self.tile.lanes
        for i in range(len(rows)):
            whole = len(rows) == 1
            piece = code if whole else self.e.shuffle(code, None, range(i * width, (i + 1) * width))
            self._store(row + i, 0, columns, piece)

    def _store(self, row: int, first: int, columns: int, code: Value) -> None:
        e, tile = self.e, self.tile
        there = _place(e, self.ends.c, self.ends, row, first, tile, self.size)
        e.store_part(code, there, min(columns - first * tile.lanes, code.type.count))

    def _packed(self, values: Sequence[Value]) -> Value:
        """x86: saturating packs, which work on each 16 bytes apart; then the order is mended.
        Saturation does the clamping to the type."""
        e, lanes = self.e, self.tile.lanes
        codes = self._words(values) if self.size == 2 else self._bytes(values)
        # Four codes of a vector are together.
        count = codes.type.count // 4
        order = [self.vectors * i + j for j in range(len(values)) for i in range(lanes // 4)]
        fours = e.b.bitcast(codes, vector(I32 if self.size == 1 else I64, count))
        if order != list(range(count)):
            fours = e.shuffle(fours, None, order)
        return e.b.bitcast(fours, vector(codes.type.element, 4 * len(order)))

    def _words(self, values: Sequence[Value]) -> Value:
        e = self.e
        if self.shifts:
            values = [e.b.add(v, self.zero) for v in values]
        codes = e.pack_words(values[0], values[-1])
        return codes if self.full else e.smin(e.smax(codes, self.low), self.high)

    def _bytes(self, values: Sequence[Value]) -> Value:
        e, lanes = self.e, self.tile.lanes
        words = [e.pack_words(values[i], values[min(i + 1, len(values) - 1)])
                 for i in range(0, len(values), 2)]  # fmt: skip
        if self.shifts:
            words = [e.call(f"llvm.sadd.sat.v{2 * lanes}i16", w.type, w, self.zero) for w in words]
        codes = e.pack_bytes(words[0], words[-1])
        return codes if self.full else e.umin(e.umax(codes, self.low), self.high)

    def _narrow(self, values: Sequence[Value]) -> Value:
        e = self.e
        t = vector(I8 if self.size == 1 else I16, self.tile.lanes)
        shifted = [e.b.add(v, self.zero) for v in values] if self.shifts else values
        codes = [e.b.trunc(e.smin(e.smax(v, self.low), self.high), t) for v in shifted]
        return e.join(codes)


@dataclass(frozen=True)
class HybridSink:
    """Sums of codes to float32: (sum - zero[row] * total[column]) * step[row] * scale + bias.

    params: sums of the weights, scale, bias. rows: zero point, step (a float's bits). common: low,
    high. scales_first: the order of the two factors, which decides the last bit.
    """

    residual: bool = False
    scales_first: bool = False
    map: Any = None
    arrays: int = 3
    c_bytes: int = 4
    rows: int = 2

    @property
    def name(self) -> str:
        more = "_add" * self.residual + "_scales" * self.scales_first
        return "hybrid" + more + _map_name(self.map)

    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]:
        return [e.const(vector(I32, tile.lanes), 0)] * (tile.rows * tile.vectors)

    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None:  # fmt: skip
        totals = [_column(e, ends.params, 0, v, tile, I32) for v in range(tile.vectors)]
        scales = [_column(e, ends.params, 1, v, tile, F32) for v in range(tile.vectors)]
        biases = [_column(e, ends.params, 2, v, tile, F32) for v in range(tile.vectors)]
        reals = []
        for row in range(tile.rows):
            there = e.at(ends.rows, 2 * row, I32)
            zero = e.splat(e.load(there, I32, 4), tile.lanes)
            step = e.splat(e.load(e.at(there, 1, I32), F32, 4), tile.lanes)
            for v in range(tile.vectors):
                total = e.b.sub(acc[row * tile.vectors + v], e.b.mul(zero, totals[v]))
                whole = e.b.sitofp(total, vector(F32, tile.lanes))
                real = (e.b.fmul(e.b.fmul(whole, scales[v]), step) if self.scales_first
                        else e.b.fmul(whole, e.b.fmul(step, scales[v])))  # fmt: skip
                reals.append(e.b.fadd(real, biases[v]))
        store_floats(e, self, tile, columns, reals, ends)


@dataclass(frozen=True)
class BlockSink(HybridSink):
    """Sums that cores.BlockCore has scaled to float32: sum * step[row] + bias. params: bias."""

    arrays: int = 1

    @property
    def name(self) -> str:
        return "blocks" + "_add" * self.residual + _map_name(self.map)

    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]:
        return [e.const(vector(F32, tile.lanes), 0)] * (tile.rows * tile.vectors)

    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None:  # fmt: skip
        biases = [_column(e, ends.params, 0, v, tile, F32) for v in range(tile.vectors)]
        steps = [e.splat(e.load(e.at(ends.rows, 2 * row + 1, I32), F32, 4), tile.lanes)
                 for row in range(tile.rows)]  # fmt: skip
        reals = [e.b.fadd(e.b.fmul(value, steps[i // tile.vectors]), biases[i % tile.vectors])
                 for i, value in enumerate(acc)]  # fmt: skip
        store_floats(e, self, tile, columns, reals, ends)


@dataclass(frozen=True)
class RawSink:
    """The 32-bit sums themselves."""

    name: str = "i32"
    arrays: int = 1
    c_bytes: int = 4
    residual: bool = False
    rows: int = 0

    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]:
        return [_column(e, params, 0, v, tile, I32) for v in range(tile.vectors)] * tile.rows

    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None:  # fmt: skip
        for i, value in enumerate(acc):
            row, v = divmod(i, tile.vectors)
            if columns > v * tile.lanes:
                there = _place(e, ends.c, ends, row, v, tile, 4)
                e.store_part(value, there, columns - v * tile.lanes)


@dataclass(frozen=True)
class PartSink:
    """float32 sums as they are, whole vectors: a part of a result. Neither params nor common."""

    name: str = "part"
    arrays: int = 0
    c_bytes: int = 4
    residual: bool = False
    rows: int = 0

    def start(self, e: Emitter, params: Value, tile: Tile) -> list[Value]:
        return [e.const(vector(F32, tile.lanes), 0)] * (tile.rows * tile.vectors)

    def store(self, e: Emitter, tile: Tile, columns: int, acc: Sequence[Value],
              ends: Ends) -> None:  # fmt: skip
        for i, value in enumerate(acc):
            row, v = divmod(i, tile.vectors)
            e.store(value, _place(e, ends.c, ends, row, v, tile, 4), 4)


def pointer_args(sink: Sink) -> list[Type]:
    return [PTR] * (sink.residual + bool(sink.rows))
