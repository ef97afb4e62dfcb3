"""Where the rows of A come from: memory as it is, or patches of a picture packed into scratch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np

from .....ir import Array
from ...codegen.bfloat import narrow
from ...codegen.emit import (
    F32,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Emitter,
    Int,
    Type,
    Value,
    llvm_type,
    vector,
)
from ...codegen.program import StepEmitter
from ...isa.base import isa_of

# Bytes that may be written past a packed row: the next row's, or the margin behind the last.
MARGIN = 64


class RowSource(Protocol):
    """stride: bytes from row to row. A source that packs has its block of rows filled into memory
    before its addresses are asked for."""

    @property
    def packs(self) -> bool: ...
    @property
    def stride(self) -> int: ...
    def memory(self, rows: int) -> int: ...  # bytes for a block of packed rows
    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None: ...
    def address(self, k: StepEmitter, memory: Value, row: Int, start: Int, group: Int) -> Value: ...


class PackedRows:
    """Rows that lie `stride` bytes apart in the memory that they are packed into."""

    @property
    def stride(self) -> int:
        raise NotImplementedError

    def memory(self, rows: int) -> int:
        return rows * self.stride

    def address(self, k: StepEmitter, memory: Value, row: Int, start: Int, group: Int) -> Value:
        return k.at(memory, k.mul(k.sub(row, start), self.stride), I8)


@dataclass(frozen=True)
class DirectRows:
    """Rows of A lie in memory as they are; a group's begin `group` bytes further on."""

    pointer: Value
    stride: int
    group: int = 0
    packs: bool = False

    def memory(self, rows: int) -> int:
        return 0

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        return None

    def address(self, k: StepEmitter, memory: Value, row: Int, start: Int, group: Int) -> Value:
        place = k.add(k.mul(row, self.stride), k.mul(group, self.group))
        return k.at(self.pointer, place, I8)


@dataclass(frozen=True)
class RoundedRows(PackedRows):
    """Rows of float32, `apart` bytes from one to the next, rounded to bfloat16 block by block."""

    pointer: Value
    apart: int
    channels: int
    packs: bool = True

    @property
    def stride(self) -> int:
        return packed_stride(-(-self.channels // 2) * 4)

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        left = self.channels % (k.target.width // 2)
        name = f"round_rows_{left}"
        function = k.program.function(name, [PTR, PTR] + [I64] * 4, partial(_build_rounded, left))
        across = k.add(k.mul(start, self.apart), k.mul(group, 4 * self.channels))
        k.b.call(
            function,
            [
                memory,
                k.at(self.pointer, across, I8),
                k.i64(k.sub(end, start)),
                I64(self.apart),
                I64(self.stride),
                I64(self.channels - left),
            ],
        )


def _build_rounded(left: int, e: Emitter) -> None:
    """(target, source, rows, bytes from row to row of both, whole): `whole` elements in vectors,
    then `left`, with a zero behind them if they are odd."""
    target, source, rows, apart, stride, whole = e.args
    lanes = e.target.width // 2
    with e.loop(0, rows) as row:
        here, there = e.at(target, e.mul(row, stride), I8), e.at(source, e.mul(row, apart), I8)
        with e.loop(0, whole, lanes) as i:
            value = e.load(e.at(there, i, F32), vector(F32, lanes))
            e.store(narrow(e, value), e.at(here, i, I16))
        transfer(e, Round(), e.at(here, whole, I16), e.at(there, whole, F32), I32(0), left)
        if left % 2:  # nothing times NaN is NaN
            e.store(I16(0), e.at(here, e.add(whole, left), I16))


@dataclass(frozen=True)
class Window:
    """A convolution's geometry, NHWC. pixel: elements from pixel to pixel (groups: more than the
    channels that are read)."""

    batch: int
    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    pad: tuple[int, int] = (0, 0)  # before, vertically and horizontally
    pixel: int = 0

    @property
    def step(self) -> int:
        return self.pixel or self.channels

    @property
    def pixels(self) -> int:
        return self.out_height * self.out_width

    @property
    def is_rows(self) -> bool:
        """Each output pixel reads just the input pixel of its place."""
        plain = self.kernel == self.stride == (1, 1) and self.pad == (0, 0)
        return plain and (self.out_height, self.out_width) == (self.height, self.width)

    @property
    def inside(self) -> bool:
        """No window reaches over an edge."""
        sizes = ((self.height, self.out_height), (self.width, self.out_width))
        ends = [
            (out - 1) * self.stride[a] + (self.kernel[a] - 1) * self.dilation[a] - self.pad[a]
            for a, (_, out) in enumerate(sizes)
        ]
        return (
            self.pad[0] <= 0
            and self.pad[1] <= 0
            and all(end < size for end, (size, _) in zip(ends, sizes, strict=True))
        )

    @property
    def name(self) -> str:
        w = self
        pairs = "_".join(
            f"{c}{p[0]}x{p[1]}"
            for c, p in (("k", w.kernel), ("s", w.stride), ("d", w.dilation), ("p", w.pad))
        )
        size = f"{w.height}x{w.width}x{w.channels}of{w.step}_to{w.out_height}x{w.out_width}"
        return f"{size}_{pairs}".replace("-", "m")


@dataclass(frozen=True)
class Copy:
    """Elements as they are. What hangs over the edge is `zero` (0 for floats)."""

    element: Type
    bytes: int

    @property
    def name(self) -> str:
        return f"copy{self.bytes}"

    @property
    def out_bytes(self) -> int:
        return self.bytes

    def convert(self, e: Emitter, value: Value, zero: Value) -> Value:
        return value

    def outside(self, e: Emitter, zero: Value, count: int) -> Value:
        if self.bytes == 4:
            return e.const(vector(self.element, count), 0)
        return e.splat(e.b.trunc(zero, self.element), count)


@dataclass(frozen=True)
class Widen:
    """8-bit codes to 16 bits without their zero point."""

    signed: bool
    element: Type = I8
    bytes: int = 1
    out_bytes: int = 2

    @property
    def name(self) -> str:
        return "widen_" + ("s8" if self.signed else "u8")

    def convert(self, e: Emitter, value: Value, zero: Value) -> Value:
        t = vector(I16, value.type.count)
        wide = e.b.sext(value, t) if self.signed else e.b.zext(value, t)
        return e.b.sub(wide, e.splat(e.b.trunc(zero, I16), value.type.count))

    def outside(self, e: Emitter, zero: Value, count: int) -> Value:
        return e.const(vector(I16, count), 0)


@dataclass(frozen=True)
class Round:
    """float32 to bfloat16."""

    name: str = "round"
    element: Type = F32
    bytes: int = 4
    out_bytes: int = 2

    def convert(self, e: Emitter, value: Value, zero: Value) -> Value:
        return narrow(e, value)

    def outside(self, e: Emitter, zero: Value, count: int) -> Value:
        return e.const(vector(I16, count), 0)


Change: TypeAlias = Copy | Widen | Round


def copy_of(dtype: np.dtype[np.generic] | type) -> Copy:
    return Copy(llvm_type(dtype), np.dtype(dtype).itemsize)


@dataclass(frozen=True)
class PatchRows(PackedRows):
    """Patches of a picture, packed into scratch block by block.

    zeros: address of the zero points, `zeros_step` words apart from image to image.
    """

    pointer: Value
    window: Window
    change: Change
    depth: int  # elements of a packed row
    zeros: Value
    zeros_step: int = 0
    group: int = 0  # bytes from group to group
    packs: bool = True

    @property
    def stride(self) -> int:
        return packed_stride(self.depth * self.change.out_bytes)

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        name = f"patches_{self.change.name}_{self.window.name}_{self.stride}_z{self.zeros_step}"
        packer = Packer(self.window, self.change, self.stride, self.zeros_step)
        function = k.program.function(name, [PTR, PTR, PTR, I64, I64], packer.build)
        source = k.at(self.pointer, k.mul(group, self.group), I8)
        k.b.call(function, [memory, source, self.zeros, k.i64(start), k.i64(end)])


def packed_stride(size: int) -> int:
    """Rows a multiple of 4096 bytes apart would share a few sets of the first cache."""
    return size + 64 if size % 4096 == 0 else size


@dataclass(frozen=True)
class Packer:
    """Writes the function (target, source, zeros, start, end): pack the patches of these pixels."""

    window: Window
    change: Change
    stride: int
    zeros_step: int

    def build(self, e: Emitter) -> None:
        w = self.window
        target, source, zeros, start, end = e.args
        line = e.div(start, w.out_width)
        places = (e.rem(start, w.out_width), e.rem(line, w.out_height), e.div(start, w.pixels))
        carry = [e.i64(v) for v in places]
        with e.loop(start, end, carry=carry) as (pixel, (x, y, n)):
            zero = e.load(e.at(zeros, e.mul(n, self.zeros_step), I32), I32, 4)
            picture = e.at(source, e.mul(n, w.height * w.width * w.step * self.change.bytes), I8)
            here = e.at(target, e.mul(e.sub(pixel, start), self.stride), I8)
            self._patch(e, here, picture, zero, y, x)
            size = w.kernel[0] * w.kernel[1] * w.channels
            if isinstance(self.change, Round) and size % 2:  # nothing times NaN is NaN
                e.store(I16(0), e.at(here, size * self.change.out_bytes, I8))
            e.carry(_next(e, w, x, y, n))

    def _patch(
        self, e: Emitter, target: Value, picture: Value, zero: Value, y: Int, x: Int
    ) -> None:
        w = self.window
        top = e.sub(e.mul(y, w.stride[0]), w.pad[0])
        left = e.sub(e.mul(x, w.stride[1]), w.pad[1])
        if w.inside:
            self._whole(e, target, picture, zero, top, left)
            return
        reach = [(w.kernel[a] - 1) * w.dilation[a] for a in (0, 1)]
        tests = [
            e.b.icmp_signed(">=", e.i64(top), I64(0)),
            e.b.icmp_signed(">=", e.i64(left), I64(0)),
            e.less(e.add(top, reach[0]), w.height),
            e.less(e.add(left, reach[1]), w.width),
        ]
        inside = e.b.and_(e.b.and_(tests[0], tests[1]), e.b.and_(tests[2], tests[3]))
        with e.b.if_else(inside) as (then, otherwise):
            with then:
                self._whole(e, target, picture, zero, top, left)
            with otherwise:
                self._edge(e, target, picture, zero, top, left)

    def _whole(
        self, e: Emitter, target: Value, picture: Value, zero: Value, top: Int, left: Int
    ) -> None:
        """A patch inside the picture: a line of taps is one run, unless dilated or grouped."""
        w = self.window
        runs, length = pieces(w)

        def line(ky: Int) -> None:
            row = e.mul(e.add(top, e.mul(ky, w.dilation[0])), w.width)

            def one(kx: Int) -> None:
                pixel = e.add(row, e.add(left, e.mul(kx, w.dilation[1])))
                source = e.at(picture, e.mul(pixel, w.step * self.change.bytes), I8)
                place = e.mul(e.add(e.mul(ky, runs), kx), length * self.change.out_bytes)
                transfer(e, self.change, e.at(target, place, I8), source, zero, length)

            _count(e, runs, one)

        _count(e, w.kernel[0], line)

    def _edge(
        self, e: Emitter, target: Value, picture: Value, zero: Value, top: Int, left: Int
    ) -> None:
        """A patch that hangs over: tap by tap."""
        w = self.window
        with e.loop(0, w.kernel[0]) as ky, e.loop(0, w.kernel[1]) as kx:
            line = e.add(top, e.mul(ky, w.dilation[0]))
            column = e.add(left, e.mul(kx, w.dilation[1]))
            tap = e.add(e.mul(ky, w.kernel[1]), kx)
            here = e.at(target, e.mul(tap, w.channels * self.change.out_bytes), I8)
            pixel = e.add(e.mul(line, w.width), column)
            source = e.at(picture, e.mul(pixel, w.step * self.change.bytes), I8)
            # Negative numbers are large when read without sign.
            inside = e.b.and_(
                e.b.icmp_unsigned("<", e.i64(line), I64(w.height)),
                e.b.icmp_unsigned("<", e.i64(column), I64(w.width)),
            )
            with e.b.if_else(inside) as (then, otherwise):
                with then:
                    transfer(e, self.change, here, source, zero, w.channels)
                with otherwise:
                    fill(e, self.change, here, zero, w.channels)


def transfer(
    e: Emitter, change: Change, target: Value, source: Value, zero: Value, length: int
) -> None:
    """Elements in a row. Reads nothing else; may write up to MARGIN bytes more."""

    def piece(place: Int, count: int) -> None:
        there = e.at(source, e.mul(place, change.bytes), I8)
        size = _full(count, change) if e.target.masks(1) else count
        value = e.load_part(there, vector(change.element, size), count)
        e.store(change.convert(e, value, zero), e.at(target, e.mul(place, change.out_bytes), I8))

    _pieces(e, change, length, piece)


def fill(e: Emitter, change: Change, target: Value, zero: Value, length: int) -> None:
    """What lies beyond the edge."""

    def piece(place: Int, count: int) -> None:
        there = e.at(target, e.mul(place, change.out_bytes), I8)
        e.store(change.outside(e, zero, count), there)

    _pieces(e, change, length, piece)


def _pieces(e: Emitter, change: Change, length: int, piece: Callable[[Int, int], None]) -> None:
    """Cut a run: whole vectors, then what is left (in one masked piece where there are such)."""
    most = e.target.width // change.out_bytes
    whole = length // most
    if whole > 4:
        with e.loop(0, whole) as i:
            piece(e.mul(i, most), most)
    else:
        for i in range(whole):
            piece(i * most, most)
    done = whole * most
    while done < length:
        left = length - done
        count = left if e.target.masks(1) else 1 << (left.bit_length() - 1)
        piece(done, count)
        done += count


def _full(count: int, change: Change) -> int:
    """Lanes of the masked load for a piece: at least 16 bytes, a power of two."""
    return max(1 << (count - 1).bit_length(), 16 // change.bytes)


def _next(e: Emitter, w: Window, x: Value, y: Value, n: Value) -> list[Value]:
    """The next pixel of the output."""
    across = e.b.add(x, I64(1))
    wrap = e.b.icmp_signed("==", across, I64(w.out_width))
    down = e.b.select(wrap, e.b.add(y, I64(1)), y)
    over = e.b.icmp_signed("==", down, I64(w.out_height))
    return [
        e.b.select(wrap, I64(0), across),
        e.b.select(over, I64(0), down),
        e.b.select(over, e.b.add(n, I64(1)), n),
    ]


def _count(e: Emitter, times: int, body: Callable[[Int], None]) -> None:
    """A loop, unrolled if it is short."""
    if times <= 3:
        for i in range(times):
            body(i)
    else:
        with e.loop(0, times) as i:
            body(i)


# -- lines of the picture -------------------------------------------------------------------------


@dataclass(frozen=True)
class LineRows:
    """A window's taps are read where they lie: a row of A is one piece for each line of taps.

    The lines of the picture that a block of output lines needs are copied with what hangs over its
    edges, or, where nothing does and the type is right, read as they are.
    """

    pointer: Value
    window: Window
    change: Change
    zeros: Value
    zeros_step: int = 0
    group: int = 0  # bytes from group to group, in the copy
    packs: bool = True

    @property
    def width(self) -> int:
        """Pixels of a line."""
        w = self.window
        reach = (w.out_width - 1) * w.stride[1] + (w.kernel[1] - 1) * w.dilation[1] + 1
        return reach if self.packs else w.width

    @property
    def pixel(self) -> int:
        return self.window.step * self.change.out_bytes

    @property
    def stride(self) -> int:
        return self.window.stride[1] * self.pixel

    def offsets(self) -> Array:
        """Where the pieces of a row begin: lines of taps, or single taps."""
        w = self.window
        taps = [0] if joined(w) else [x * w.dilation[1] * self.pixel for x in range(w.kernel[1])]
        lines = [y * w.dilation[0] * self.width * self.pixel for y in range(w.kernel[0])]
        return np.array([y + x for y in lines for x in taps], np.int64)

    def memory(self, rows: int) -> int:
        w = self.window
        lines = -(-rows // w.out_width)
        reach = (lines - 1) * w.stride[0] + (w.kernel[0] - 1) * w.dilation[0] + 1
        return reach * self.width * self.pixel

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        if not self.packs:
            return
        w = self.window
        packer = LinePacker(w, self.change, self.width, self.zeros_step)
        name = f"lines_{self.change.name}_{w.name}_z{self.zeros_step}"
        function = k.program.function(name, [PTR] * 3 + [I64] * 2, packer.build)
        first, last = k.div(start, w.out_width), k.div(end, w.out_width)
        k.b.call(function, [memory, self.pointer, self.zeros, k.i64(first), k.i64(last)])

    def address(self, k: StepEmitter, memory: Value, row: Int, start: Int, group: Int) -> Value:
        w = self.window
        line, x = k.div(row, w.out_width), k.rem(row, w.out_width)
        across = k.add(k.mul(x, self.stride), k.mul(group, self.group))
        if self.packs:
            down = k.mul(k.sub(line, k.div(start, w.out_width)), w.stride[0] * self.width)
            return k.at(memory, k.add(k.mul(down, self.pixel), across), I8)
        y, n = k.rem(line, w.out_height), k.div(line, w.out_height)
        place = k.add(k.mul(k.sub(k.mul(y, w.stride[0]), w.pad[0]), w.width), -w.pad[1])
        place = k.add(place, k.mul(n, w.height * w.width))
        return k.at(self.pointer, k.add(k.mul(place, self.pixel), across), I8)


def pieces(w: Window) -> tuple[int, int]:
    """Into how many runs of how many elements a line of taps falls."""
    return (1, w.kernel[1] * w.channels) if joined(w) else (w.kernel[1], w.channels)


def joined(w: Window) -> bool:
    """Whether a line of taps is one run of elements."""
    return w.dilation[1] == 1 and w.step == w.channels


@dataclass(frozen=True)
class LinePacker:
    """Writes the function (target, source, zeros, first, last): copy the lines of the picture that
    these lines of the output need, all of one image."""

    window: Window
    change: Change
    width: int
    zeros_step: int

    def build(self, e: Emitter) -> None:
        w = self.window
        target, source, zeros, first, last = e.args
        n = e.div(first, w.out_height)
        zero = e.load(e.at(zeros, e.mul(n, self.zeros_step), I32), I32, 4)
        picture = e.at(source, e.mul(n, w.height * w.width * w.step * self.change.bytes), I8)
        top = e.sub(e.mul(e.rem(first, w.out_height), w.stride[0]), w.pad[0])
        span = e.mul(e.sub(e.sub(last, first), 1), w.stride[0])
        count = e.add(span, (w.kernel[0] - 1) * w.dilation[0] + 1)
        with e.loop(0, count) as i:
            line = e.add(top, i)
            here = e.at(target, e.mul(i, self.width * w.step * self.change.out_bytes), I8)
            inside = e.b.icmp_unsigned("<", e.i64(line), I64(w.height))
            with e.b.if_else(inside) as (then, otherwise):
                with then:
                    there = e.mul(e.mul(line, w.width), w.step * self.change.bytes)
                    self._line(e, here, e.at(picture, there, I8), zero)
                with otherwise:
                    fill(e, self.change, here, zero, self.width * w.step)

    def _line(self, e: Emitter, target: Value, source: Value, zero: Value) -> None:
        w = self.window
        left = max(w.pad[1], 0)
        taken = min(self.width - left, w.width - max(-w.pad[1], 0))
        size = w.step * self.change.out_bytes
        fill(e, self.change, target, zero, left * w.step)
        begin = e.at(source, max(-w.pad[1], 0) * w.step * self.change.bytes, I8)
        transfer(e, self.change, e.at(target, left * size, I8), begin, zero, taken * w.step)
        right = self.width - left - taken
        fill(e, self.change, e.at(target, (left + taken) * size, I8), zero, right * w.step)


# -- numbers for each row -----------------------------------------------------------------------


class RowWords(Protocol):
    """Words that the epilogue wants for each row, written for a block of rows."""

    @property
    def count(self) -> int: ...  # words a row
    def fill(
        self, k: StepEmitter, memory: Value, start: Int, end: Int, a: Value, stride: int
    ) -> None: ...


@dataclass(frozen=True)
class SumWords:
    """factor * the sum of a row of bytes: what weights that are shifted to fit 8 bits leave."""

    depth: int
    factor: int
    count: int = 1

    def fill(
        self, k: StepEmitter, memory: Value, start: Int, end: Int, a: Value, stride: int
    ) -> None:
        width = k.target.width
        steps = -(-self.depth // width)
        ones = np.zeros(steps * width, np.int8)
        ones[: self.depth] = 1
        function = k.program.function("row_sums", [PTR, PTR, PTR, I64, I64, I64, I32], _build_sums)
        k.b.call(
            function,
            [
                memory,
                a,
                k.constant(ones),
                k.i64(k.sub(end, start)),
                I64(stride),
                I64(steps),
                I32(self.factor),
            ],
        )


def _build_sums(e: Emitter) -> None:
    memory, a, ones, rows, stride, steps, factor = e.args
    width = e.target.width
    t, total = vector(I8, width), vector(I32, width // 4)
    with e.loop(0, rows) as row:
        line = e.at(a, e.mul(row, stride), I8)
        with e.loop(0, steps, carry=[e.const(total, 0)]) as (i, (acc,)):
            place = e.mul(i, width)
            x, one = e.load(e.at(line, place, I8), t), e.load(e.at(ones, place, I8), t, width)
            e.carry([isa_of(e.target).dot_bytes(e, acc, x, one)])
        whole = e.call(f"llvm.vector.reduce.add.v{width // 4}i32", I32, e.carried[0])
        e.store(e.b.mul(whole, factor), e.at(memory, row, I32), 4)


@dataclass(frozen=True)
class TableWords:
    """Two words from a table: row r has those of entry r / per."""

    pointer: Value
    per: int
    count: int = 2

    def fill(
        self, k: StepEmitter, memory: Value, start: Int, end: Int, a: Value, stride: int
    ) -> None:
        with k.loop(start, end) as row:
            entry = k.load(k.at(self.pointer, k.div(row, self.per), I64), I64, 4)
            k.store(entry, k.at(memory, k.sub(row, start), I64), 4)
