"""Resizing images: tables of places and weights are constants, rows are shared between workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import numpy as np

from .....errors import SanderlingError
from .....ir import Array, DType, Op
from .....ops.base import DATA_ERRORS, attr
from .....ops.image import fixed_taps, float_taps, nearest_places
from ...codegen.emit import F32, I8, I16, I32, I64, PTR, Emitter, Int, Type, Value, bytes_of, vector
from ...codegen.program import StepEmitter
from ...codegen.rounding import as_double, away
from ...dialect.fused import Fused, either
from ...isa.targets import Target
from ..move.gather import gather_rows
from ..move.views import unmovable
from ..row import Kernel


def _sizes(op: Op) -> tuple[tuple[int, int], tuple[int, int]]:
    """(old, new) of height and width."""
    (_, h, w, _), (_, height, width, _) = op.operand(0).shape, op.outputs[0].shape
    return (h, height), (w, width)


def _empty(op: Op) -> bool:
    return 0 in op.outputs[0].shape


# -- nearest neighbour ------------------------------------------------------------------------


def emit_nearest(k: StepEmitter, op: Op) -> None:
    x, y = op.operand(0), op.outputs[0]
    if _empty(op):
        return
    n, h, w, c = x.shape
    (_, height), (_, width) = _sizes(op)
    size = c * x.dtype.bits // 8
    pixel, made = k.pitch(x, size), k.pitch(y, size)
    rows, columns = (nearest_places(op, *s) for s in _sizes(op))
    # Twice the size as a broadcasting strided copy was tried: slower, it does not write in order.
    row_table, column_table = (k.constant(t.astype(np.int32)) for t in (rows, columns))
    target, source = k.ptr(y), k.ptr(x)
    begin, end = k.share(n * height)
    with k.loop(begin, end) as i:
        row = k.b.sext(k.load(k.at(row_table, k.rem(i, height), I32), I32, 4), I64)
        row = k.add(k.mul(k.div(i, height), h), row)
        gather_rows(
            k,
            k.at(target, k.mul(i, width * made), I8),
            k.at(source, k.mul(row, w * pixel), I8),
            column_table,
            I32,
            width,
            w,
            size,
            pixel,
            made,
        )


def refuses_nearest(op: Op, target: Target) -> str | None:
    if 0 in op.operand(0).shape[1:3]:
        return "an image without pixels"
    return unmovable(op, [op.operand(0)], (1,))


# -- bilinear ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flavour:
    """How elements are loaded, blended and stored.

    fixed: weights have 10 fractional bits, as the definition has it for int8 and int16; it is
    exact. signed: how codes are kept, which need not be how the user has them.
    """

    element: Type
    fixed: bool = False
    signed: bool = False

    @property
    def name(self) -> str:
        if self.element == F32:
            return "f32"
        if self.is_wide:
            return "i16"
        return f"{'i8' if self.signed else 'u8'}{'_fixed' if self.fixed else ''}"

    @property
    def is_wide(self) -> bool:
        """Sums leave 32 bits; they are in float64."""
        return self.element == I16

    @property
    def weight(self) -> Type:
        return I16 if self.fixed else F32

    @property
    def zero(self) -> int:
        """The code that means the user's code 0, for the definition that rounds away from it."""
        return 0 if self.signed else 128

    def loaded(self, e: Emitter, place: Value, lanes: int, count: int) -> Value:
        raw = e.load_part(place, vector(self.element, lanes), count)
        if self.element == F32:
            return raw
        if self.fixed:
            return (e.b.sext if self.signed else e.b.zext)(raw, vector(I32, lanes))
        codes = e.b.xor(raw, e.const(raw.type, -128)) if self.signed else raw
        return e.b.sitofp(e.b.zext(codes, vector(I32, lanes)), vector(F32, lanes))

    def blend(
        self, e: Emitter, corners: list[Value], rows: list[Value], columns: list[Value]
    ) -> Value:
        """corners: top left, bottom left, top right, bottom right."""
        if self.element == I8 and not self.fixed:
            return _in_order(e, corners, rows, columns)
        sides = [self._sum(e, corners[i : i + 2], rows) for i in (0, 2)]
        if self.is_wide:
            sides, columns = ([as_double(e, v) for v in vs] for vs in (sides, columns))
            return e.fma(sides[1], columns[1], e.b.fmul(sides[0], columns[0]))
        return self._sum(e, sides, columns)

    def _sum(self, e: Emitter, parts: list[Value], weights: list[Value]) -> Value:
        (a, b), (near, far) = parts, weights
        if self.fixed:
            return e.b.add(e.b.mul(a, near), e.b.mul(b, far))
        return e.fma(b, far, e.b.fmul(a, near))

    def stored(self, e: Emitter, value: Value, place: Value, count: int) -> None:
        lanes = value.type.count
        t = value.type
        if self.element == F32:
            e.store_part(value, place, count)
            return
        if self.is_wide:
            whole = away(e, e.b.fmul(value, e.const(t, 0.5**20)))
            e.store_part(e.b.trunc(whole, vector(I16, lanes)), place, count)
            return
        if self.fixed:
            # Halves away from zero, as seen from the code that means zero.
            value = e.b.sub(value, e.const(t, self.zero << 20))
            value = e.b.add(e.b.add(value, e.const(t, 1 << 19)), e.b.ashr(value, e.const(t, 31)))
            value = e.b.add(e.b.ashr(value, e.const(t, 20)), e.const(t, self.zero))
        else:
            value = e.b.fptosi(e.b.fadd(value, e.const(t, 0.5)), vector(I32, lanes))
            value = e.b.xor(value, e.const(value.type, 128 * self.signed))
        e.store_part(e.b.trunc(value, vector(I8, lanes)), place, count)


def _in_order(e: Emitter, corners: list[Value], rows: list[Value], columns: list[Value]) -> Value:
    """As the definition has it, each product rounded: a code may hang on the last bit."""
    terms = [
        e.b.fmul(e.b.fmul(corner, rows[i % 2]), columns[i // 2]) for i, corner in enumerate(corners)
    ]
    return reduce(e.b.fadd, terms)


def flavour_of(op: Op) -> Flavour:
    x = op.operand(0)
    if x.dtype is DType.FLOAT32:
        return Flavour(F32)
    if x.dtype is DType.INT16:
        return Flavour(I16, fixed=True, signed=True)
    return Flavour(I8, Fused.of(op).signed, x.dtype is DType.INT8)


def _table(op: Op, flavour: Flavour, size: tuple[int, int], step: int) -> Array:
    """Records of 16 bytes: places (times step) of the two neighbours, then their weights."""
    taps = fixed_taps if flavour.fixed else float_taps
    low, high, near, far = taps(op, *size)
    table = np.zeros((size[1], 4), np.int32)
    table[:, 0], table[:, 1] = (np.clip(p, 0, size[0] - 1) * step for p in (low, high))
    if flavour.fixed:
        table[:, 2] = (near & 0xFFFF) | (far << 16)
    else:
        table[:, 2:] = np.stack([near, far], 1).astype(np.float32).view(np.int32)
    return table


def _weights(e: Emitter, flavour: Flavour, record: Value, lanes: int) -> list[Value]:
    t = flavour.weight
    found = [e.load(e.at(e.at(record, 8, I8), i, t), t) for i in range(2)]
    if flavour.fixed:  # known to have 16 bits: the products need no 32-bit multiplication
        found = [e.b.sext(v, I32) for v in found]
    return [e.splat(v, lanes) for v in found]


def _place(e: Emitter, record: Value, index: int) -> Value:
    return e.b.sext(e.load(e.at(record, index, I32), I32), I64)


@dataclass(frozen=True)
class Channels:
    """How a pixel's channels are walked: in vectors, the last of which reaches back or is a part.

    Up to MOST vectors are unrolled, then the number of channels is known to the function.
    """

    lanes: int
    count: int  # of lanes that are used
    known: int = 0

    MOST: ClassVar[int] = 4

    @classmethod
    def of(cls, target: Target, flavour: Flavour, channels: int) -> Channels:
        below = 1 << (channels.bit_length() - 1)
        # Where a part of a vector costs no more than the whole.
        size = bytes_of(flavour.element)
        if target.masks(size) and below < channels < target.lanes:
            return cls(2 * below, channels, channels)
        widths = [n for n in (64, 32, 16, 8, 4, 2, 1) if n <= min(below, target.lanes)]
        # Pixels do not begin at vector boundaries: a wide store often meets two cache lines. The 3
        # was fitted to 21 floats, which take 0.53 ms in two vectors of 16, 0.33 in three of 8.
        lanes = min(widths, key=lambda n: -(-channels // n) * (1 + 3 * n * size / 64))
        return cls(lanes, lanes, channels if channels <= cls.MOST * lanes else 0)

    @property
    def name(self) -> str:
        return f"c{self.known}" if self.known else f"x{self.lanes}"

    def walk(self, e: Emitter, channels: Value, body: Callable[[Int], None]) -> None:
        """Call body(first channel) for every vector."""
        if self.known:
            for c in range(0, self.known, self.count):
                body(min(c, self.known - self.count))
            return
        end = e.b.sub(channels, I64(self.lanes))
        with e.loop(0, channels, self.lanes) as c:
            body(e.min(c, end))


def row_function(k: StepEmitter, flavour: Flavour, shape: Channels) -> Value:
    """(to, top, bottom, columns, row, n, channels, pixel): one row of the result, whose pixels are
    `pixel` elements apart."""

    def build(e: Emitter) -> None:
        to, top, bottom, columns, row, n, channels, pixel = e.args
        rows = _weights(e, flavour, row, shape.lanes)
        with e.loop(0, n) as x:
            record = e.at(columns, e.mul(x, 16), I8)
            weights = _weights(e, flavour, record, shape.lanes)
            places = [_place(e, record, i) for i in (0, 1)]
            begin = e.mul(x, pixel)

            def blend(c: Int) -> None:
                corners = [
                    flavour.loaded(
                        e, e.at(line, e.add(p, c), flavour.element), shape.lanes, shape.count
                    )
                    for p in places
                    for line in (top, bottom)
                ]
                value = flavour.blend(e, corners, rows, weights)
                flavour.stored(e, value, e.at(to, e.add(begin, c), flavour.element), shape.count)

            shape.walk(e, channels, blend)

    name = f"bilinear_{flavour.name}_{shape.name}"
    return k.program.function(name, [PTR, PTR, PTR, PTR, PTR, I64, I64, I64], build)


def emit_bilinear(k: StepEmitter, op: Op) -> None:
    x, y = op.operand(0), op.outputs[0]
    if _empty(op):
        return
    n, h, w, c = x.shape
    (_, height), (_, width) = sizes = _sizes(op)
    flavour = flavour_of(op)
    rows = k.constant(_table(op, flavour, sizes[0], 1))
    item = x.dtype.bits // 8
    pixel, made = (k.pitch(t, c * item) // item for t in (x, y))
    columns = k.constant(_table(op, flavour, sizes[1], pixel))
    function = row_function(k, flavour, Channels.of(k.target, flavour, c))
    target, source, line = k.ptr(y), k.ptr(x), w * pixel
    begin, end = k.share(n * height)
    with k.loop(begin, end) as i:
        picture = k.at(source, k.mul(k.div(i, height), h * line), flavour.element)
        record = k.at(rows, k.mul(k.rem(i, height), 16), I8)
        top, bottom = (
            k.at(picture, k.mul(_place(k, record, j), line), flavour.element) for j in (0, 1)
        )
        to = k.at(target, k.mul(i, width * made), flavour.element)
        k.b.call(function, [to, top, bottom, columns, record, I64(width), I64(c), I64(made)])


def refuses_bilinear(op: Op, target: Target) -> str | None:
    x = op.operand(0)
    if x.dtype.short not in ("f32", "u8", "i8", "i16"):
        return f"elements of type {x.dtype.short}"
    if 0 in x.shape[1:3] or (attr(op, "align_corners") and attr(op, "half_pixel_centers")):
        return "an image without pixels, or options that exclude each other"
    try:
        flavour = Flavour(F32, fixed=x.dtype in (DType.INT8, DType.INT16))
        for size in _sizes(op):
            _table(op, flavour, size, 1)
    except (SanderlingError, *DATA_ERRORS) as error:
        return f"the sizes do not fit together: {error}"
    return unmovable(op, [x], (1,))


KERNELS = {
    name: Kernel(emit, refuses, reads=lambda op: (0,), writes=lambda op: True, sign_matters=matters)
    for names, emit, refuses, matters in (
        (("RESIZE_NEAREST_NEIGHBOR",), emit_nearest, refuses_nearest, False),
        (either("RESIZE_BILINEAR"), emit_bilinear, refuses_bilinear, True),
    )
    for name in names
}
