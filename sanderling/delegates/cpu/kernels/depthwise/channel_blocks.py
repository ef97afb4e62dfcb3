"""Blocks of channels of a depthwise convolution, with their arithmetic.

    f32x16      fused multiply-adds on one vector
    dot64       8-bit dot products: up to four kernel rows of a column are interleaved byte by byte,
                so that a 32-bit lane holds four taps of one channel; interleaving leaves four
                vectors of 16 channels in an order that packing the results undoes
    unit16, 32  the same for 16 or 32 channels, for what is left of the channels
    short32     16-bit codes: products of pairs of kernel rows
    madd32      pairs of kernel rows widened to 16 bits, for targets without the dot product
    pair32      the same, the rows interleaved in memory first (paired_rows.py)
    wide16      one kernel row at a time, widened: NEON without the dot product

Neighbouring results share the interleaved columns, and two rows of results share interleaved rows:
the weights are packed once for each row of the tile, moved down by as many taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from .....ir import Array
from ...codegen.emit import F32, I8, I16, I32, I64, Emitter, Type, Value, vector
from ...isa.base import isa_of
from ...isa.targets import Target
from ..epilogue.codes import CodeEpilogue
from ..epilogue.contract import Epilogue, Numbers
from ..epilogue.floats import FloatEpilogue, HybridEpilogue
from ..epilogue.packing import cut, limited, limited_bytes


@dataclass(frozen=True)
class Shape:
    """The geometry that a tile's code depends on: rows x columns outputs of a window."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    rows: int = 1
    columns: int = 1

    @property
    def name(self) -> str:
        (kh, kw), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        return f"{kh}x{kw}_s{sh}x{sw}_d{dh}x{dw}_t{self.rows}x{self.columns}"

    @property
    def lines(self) -> int:
        """Input rows that a tile reads."""
        return self.kernel[0] + (self.rows - 1) * self.stride[0]

    def tap(self, line: int, row: int) -> int | None:
        """The kernel row with which an output row reads an input row."""
        ky = line - row * self.stride[0]
        return ky if 0 <= ky < self.kernel[0] else None

    @cached_property
    def uses(self) -> dict[int, list[tuple[int, int]]]:
        """Input column -> the (output column, kernel column) pairs that read it."""
        found: dict[int, list[tuple[int, int]]] = {}
        for t in range(self.columns):
            for kx in range(self.kernel[1]):
                at = t * self.stride[1] + kx * self.dilation[1]
                found.setdefault(at, []).append((t, kx))
        return dict(sorted(found.items()))

    def products(self, depth: int) -> dict[tuple[int, int, int], int]:
        """(kernel column, group of `depth` input rows, output row) -> its place in the weights."""
        live = [
            (kx, group, row)
            for kx in range(self.kernel[1])
            for group in range(math.ceil(self.lines / depth))
            for row in range(self.rows)
            if any(self.tap(line, row) is not None for line in self.group(group, depth))
        ]
        return {key: place for place, key in enumerate(live)}

    def group(self, index: int, depth: int) -> range:
        return range(index * depth, min((index + 1) * depth, self.lines))


Load = Callable[[int, int], Value]  # (line, column) -> the block's vector there


class Kind(Protocol):
    """A block of channels with its arithmetic."""

    @property
    def name(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def unit(self) -> int: ...  # channels whose numbers lie together
    @property
    def item(self) -> int: ...  # bytes of an element of the input
    @property
    def epilogue(self) -> Epilogue: ...
    @property
    def load_type(self) -> Type: ...
    @property
    def row_counts(self) -> tuple[int, ...]: ...  # output rows that a tile may have
    def results(self, shape: Shape) -> int: ...  # that the code of a tile writes out
    def fits(self, shape: Shape, target: Target) -> bool: ...
    def cost(self, shape: Shape) -> float: ...  # instructions for an output
    def pack(self, taps: Array, shape: Shape) -> Array: ...  # [kh, kw, channels] of one block
    def numbers(self, block: Value, table: Value) -> Numbers: ...  # table: of the picture
    def tile(
        self, e: Emitter, shape: Shape, load: Load, weights: Value, numbers: Numbers
    ) -> dict[tuple[int, int], list[Value]]: ...
    def order(self, values: Array) -> Array: ...  # of channels, as the accumulators have them
    def finish(
        self, e: Emitter, acc: Sequence[Value], numbers: Numbers, beside: Sequence[Value]
    ) -> list[Value]: ...  # in the order of the channels, as they are stored


class WrittenOut:
    """A kind whose code has each result of a tile apart, all channels at once."""

    channels: int

    @property
    def unit(self) -> int:
        return int(self.channels)

    @property
    def row_counts(self) -> tuple[int, ...]:
        return (1, 2, 3)

    def results(self, shape: Shape) -> int:
        return shape.rows * shape.columns


# -- float --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FloatKind(WrittenOut):
    channels: int
    epilogue: FloatEpilogue
    item: int = 4

    @property
    def name(self) -> str:
        return f"f32x{self.channels}{float_name(self.epilogue)}"

    @property
    def load_type(self) -> Type:
        return vector(F32, self.channels)

    def fits(self, shape: Shape, target: Target) -> bool:
        return shape.rows * shape.columns + len(shape.uses) + 2 <= target.registers

    def cost(self, shape: Shape) -> float:
        taps = shape.kernel[0] * shape.kernel[1]
        loads = shape.lines * len(shape.uses) + taps * shape.rows
        return taps + 3 + 0.6 * loads / (shape.rows * shape.columns)

    def pack(self, taps: Array, shape: Shape) -> Array:
        return taps.astype(np.float32).reshape(-1)

    def numbers(self, block: Value, table: Value) -> Numbers:
        return Numbers(block, self.channels, block, table)

    def tile(
        self, e: Emitter, shape: Shape, load: Load, weights: Value, numbers: Numbers
    ) -> dict[tuple[int, int], list[Value]]:
        """Row by row: the row's vectors stay in registers while each weight is read once."""
        t = self.load_type
        bias = self.epilogue.start(e, numbers, 0, self.channels)
        acc = {(r, c): bias for r in range(shape.rows) for c in range(shape.columns)}
        for line in range(shape.lines):
            x = {at: load(line, at) for at in shape.uses}
            for row in range(shape.rows):
                ky = shape.tap(line, row)
                if ky is None:
                    continue
                for kx in range(shape.kernel[1]):
                    place = (ky * shape.kernel[1] + kx) * self.channels
                    w = e.load(e.at(weights, place, F32), t, 4)
                    for c in range(shape.columns):
                        at = c * shape.stride[1] + kx * shape.dilation[1]
                        acc[row, c] = e.fma(x[at], w, acc[row, c])
        return {key: [value] for key, value in acc.items()}

    def order(self, values: Array) -> Array:
        return values

    def finish(
        self, e: Emitter, acc: Sequence[Value], numbers: Numbers, beside: Sequence[Value]
    ) -> list[Value]:
        limits = self.epilogue.limits(e, numbers, self.channels)
        return [self.epilogue.finish(e, acc[0], beside, limits)]


def float_name(epilogue: FloatEpilogue) -> str:
    return "_bf16" * (epilogue.out_bytes == 2) + epilogue.stages


# -- bytes --------------------------------------------------------------------------------------

# Words that hold for the whole step lie behind the arrays of each block: low, high, zero point.
TAIL = 16
CODES = CodeEpilogue(full=True)


def tail(zero: int, low: int, high: int) -> Array:
    values = np.zeros(TAIL, np.int32)
    values[:3] = low, high, zero
    return values


@dataclass(frozen=True)
class ByteKind(WrittenOut):
    """channels: a vector's codes; depth: taps that one product takes (4, 2 or 1).

    halves: 2 where weights less their zero point leave 8 bits, so that they are split in two.
    quarters: vectors of sums that a vector of codes makes.
    """

    channels: int
    depth: int
    epilogue: CodeEpilogue | HybridEpilogue = CODES
    halves: int = 1
    signed: bool = False
    item: int = 1
    quarters: int = 4

    @property
    def name(self) -> str:
        base = {4: "dot", 2: "madd", 1: "wide"}[self.depth]
        split = "_x2" * (self.halves > 1)
        return f"{'s' * self.signed}{base}{self.channels}{split}{self.epilogue_name}"

    @property
    def epilogue_name(self) -> str:
        """How an epilogue is told in the names of these functions."""
        epilogue = self.epilogue
        if isinstance(epilogue, HybridEpilogue):
            return "_hybrid" + float_name(epilogue)
        return "_far" * epilogue.wild + "_clamp" * (not epilogue.full) + epilogue.rounding.value

    @property
    def load_type(self) -> Type:
        return vector(I8, self.channels)

    @property
    def lanes(self) -> int:
        return self.channels // self.quarters

    @property
    def firsts(self) -> range:
        """Where the numbers of each vector of accumulators begin."""
        return range(0, self.channels, self.lanes)

    @property
    def array_words(self) -> int:
        """The words of a block's arrays, which come first among its numbers."""
        return self.unit * self.epilogue.arrays

    @property
    def words(self) -> int:
        """The words of all numbers that the epilogue reads of a block."""
        return self.array_words + TAIL * isinstance(self.epilogue, CodeEpilogue)

    def numbers(self, block: Value, table: Value) -> Numbers:
        low, high, zero = range(self.array_words, self.array_words + 3)
        return Numbers(block, self.unit, block, table, (zero, low, high))

    def fits(self, shape: Shape, target: Target) -> bool:
        """Larger tiles spill, which costs more than they save."""
        outputs = shape.rows * shape.columns
        if len(shape.uses) > 7 and outputs > 1:
            return False
        return outputs * self.quarters <= (16 if target.registers > 16 else 12)

    def cost(self, shape: Shape) -> float:
        outputs = shape.rows * shape.columns
        dots = len(shape.products(self.depth)) * shape.columns * self.quarters * self.halves
        spread = 8 if self.depth == 4 else 6
        columns = len(shape.uses) * math.ceil(shape.lines / self.depth) * spread
        each = 1 if self.depth == 4 else 2
        return (dots * each + columns) / outputs + 18

    def pack(self, taps: Array, shape: Shape) -> Array:
        """[products, halves, quarters, 128-bit lanes, 4 channels, depth]."""
        low = np.clip(taps, -128, 127) if self.halves > 1 else taps
        parts = (low, taps - low)[: self.halves]
        rows = []
        for kx, group, row in shape.products(self.depth):
            lines = shape.group(group, self.depth)
            rows += [
                self.arrange(_lines(part, kx, row, lines, shape, self.depth)) for part in parts
            ]
        return np.concatenate(rows).astype(np.int8 if self.depth == 4 else np.int16)

    def arrange(self, block: Array) -> Array:
        """[depth, channels] of a product in the order of the interleaved vectors."""
        split = block.reshape(self.depth, self.channels // 16, 4, 4)
        return split.transpose(2, 1, 3, 0).reshape(-1)

    def order(self, values: Array) -> Array:
        """Values of the channels in the order of the accumulators."""
        return values.reshape(self.channels // 16, 4, 4).transpose(1, 0, 2).reshape(-1)

    def tile(
        self, e: Emitter, shape: Shape, load: Load, weights: Value, numbers: Numbers
    ) -> dict[tuple[int, int], list[Value]]:
        bias = [self.epilogue.start(e, numbers, first, self.lanes) for first in self.firsts]
        acc = {(r, c): list(bias) for r in range(shape.rows) for c in range(shape.columns)}
        spread: dict[tuple[int, int], list[Value]] = {}
        for at, group, q, row, c, place in self.work(shape):
            if (at, group) not in spread:
                lines = [load(line, at) for line in shape.group(group, self.depth)]
                spread[at, group] = self.spread(e, lines, numbers)
            self.add(e, acc[row, c], q, spread[at, group][q], weights, place)
        return acc

    def work(self, shape: Shape) -> list[tuple[int, int, int, int, int, int]]:
        """(input column, group, quarter, output row and column, place of the weights).

        Column by column for small kernels. Where there are more weights than registers, weight by
        weight, so that each is read once: 5x5 ran 1.3 times as fast, 3x3 a little slower.
        """
        found = [
            (c * shape.stride[1] + kx * shape.dilation[1], group, q, row, c, place)
            for (kx, group, row), place in shape.products(self.depth).items()
            for c in range(shape.columns)
            for q in range(self.quarters)
        ]
        if shape.lines <= self.depth:
            return sorted(found)
        return sorted(found, key=lambda w: (w[2], w[5]))

    def add(
        self, e: Emitter, acc: list[Value], q: int, x: Value, weights: Value, place: int
    ) -> None:
        for half in range(self.halves):
            index = (place * self.halves + half) * self.quarters + q
            acc[q] = self.product(e, acc[q], x, weights, index)

    def product(self, e: Emitter, acc: Value, x: Value, weights: Value, index: int) -> Value:
        """acc += the taps of x with vector `index` of the weights."""
        lanes = self.lanes
        if self.depth == 4:
            w = e.load(e.at(weights, index * lanes, I32), vector(I8, 4 * lanes), 4 * lanes)
            return isa_of(e.target).dot_bytes(e, acc, x, w)
        if self.depth == 2:
            t = vector(I16, 2 * lanes)
            w = e.load(e.at(weights, index * lanes, I32), t, 4 * lanes)
            return e.b.add(acc, isa_of(e.target).multiply_pairs(e, x, w))
        w = e.load(e.at(weights, index * lanes, I16), vector(I16, lanes), 2 * lanes)
        return e.b.add(acc, e.b.mul(e.b.sext(x, acc.type), e.b.sext(w, acc.type)))

    def spread(self, e: Emitter, lines: Sequence[Value], numbers: Numbers) -> list[Value]:
        """Rows of a column -> four vectors, the taps of a channel side by side."""
        zero = e.const(self.load_type, 0)
        rows = [*lines, *[zero] * (self.depth - len(lines))]
        if self.depth == 1:
            grow = e.b.sext if self.signed else e.b.zext
            wide = grow(rows[0], vector(I16, self.channels))
            return [e.shuffle(wide, None, range(4 * q, 4 * q + 4)) for q in range(4)]
        if self.depth == 2:
            pairs = [unpack(e, rows[0], rows[1], 1, high) for high in (0, 1)]
            return [unpack(e, pair, zero, 1, high) for pair in pairs for high in (0, 1)]
        pairs = [
            (unpack(e, rows[0], rows[1], 1, high), unpack(e, rows[2], rows[3], 1, high))
            for high in (0, 1)
        ]
        return [unpack(e, a, b, 2, high) for a, b in pairs for high in (0, 1)]

    def finish(
        self, e: Emitter, acc: Sequence[Value], numbers: Numbers, beside: Sequence[Value]
    ) -> list[Value]:
        epilogue = self.epilogue
        found = [
            epilogue.result(e, total, numbers, first)
            for total, first in zip(acc, self.firsts, strict=True)
        ]
        if isinstance(epilogue, CodeEpilogue):
            return [self.codes(e, found, numbers, epilogue.full)]
        limits = epilogue.limits(e, numbers, self.lanes)
        return [
            epilogue.finish(e, real, beside[i : i + 1], limits)
            for i, real in enumerate(weave(e, found))
        ]

    def codes(self, e: Emitter, whole: Sequence[Value], numbers: Numbers, full: bool) -> Value:
        """The block's codes in the channels' order. full: the type's own bounds are all."""
        isa = isa_of(e.target)
        if not isa.has_packs:  # 128-bit vectors: the four in a row are in order
            return cut(e, whole, numbers, self.load_type)
        low, high = (isa.pack_words(e, *pair) for pair in (whole[:2], whole[2:]))
        codes = isa.pack_bytes(e, low, high)
        return codes if full else limited_bytes(e, codes, numbers)

    def behind(self) -> Array:
        """Words behind the numbers that the kind itself needs."""
        return np.zeros(0, np.int32)


@dataclass(frozen=True)
class UnitKind(ByteKind):
    """16 or 32 channels: four kernel rows of them in one or two 512-bit vectors, transposed.

    LLVM takes shuffles that it understands apart into twice as many: the permutations' indices are
    in memory, behind the parameters, where it cannot look.
    """

    channels: int = 16
    depth: int = 4
    quarters: int = 1

    @property
    def name(self) -> str:
        return super().name.replace("dot", "unit")

    def fits(self, shape: Shape, target: Target) -> bool:
        return shape.rows * shape.columns * self.quarters <= 16

    def cost(self, shape: Shape) -> float:
        outputs = shape.rows * shape.columns
        dots = len(shape.products(4)) * shape.columns * self.quarters * self.halves
        columns = len(shape.uses) * math.ceil(shape.lines / 4) * (4 + self.quarters)
        return (dots + columns) / outputs + 3 + 4 * self.quarters

    def arrange(self, block: Array) -> Array:
        return block.reshape(4, 4, self.quarters, 4).transpose(2, 1, 3, 0).reshape(-1)

    def order(self, values: Array) -> Array:
        return values.reshape(4, self.quarters, 4).transpose(1, 0, 2).reshape(-1)

    def behind(self) -> Array:
        """The bytes of a 4x4 transpose, and dwords that bring rows together."""
        turn = np.arange(64).reshape(4, 4, 4).transpose(0, 2, 1).reshape(-1).astype(np.uint8) & 15
        each = 4 * self.quarters  # dwords of a row
        gather = [
            row * each + self.quarters * lane + unit
            for unit in range(self.quarters)
            for lane in range(4)
            for row in range(4)
        ]
        return np.concatenate([turn.view(np.int32), np.array(gather, np.int32)])

    def spread(self, e: Emitter, lines: Sequence[Value], numbers: Numbers) -> list[Value]:
        rows = [*lines, *[e.const(self.load_type, 0)] * (4 - len(lines))]
        isa, t, raw = isa_of(e.target), vector(I32, 16), vector(I8, 64)
        behind = e.at(numbers.columns, self.words, I32)
        turn = e.load(behind, raw, 4)
        order = [e.load(e.at(behind, 16 + 16 * u, I32), t, 4) for u in range(self.quarters)]
        pairs = [e.join(rows[i : i + 2]) for i in (0, 2)]
        if self.quarters == 1:
            whole = e.b.bitcast(e.join(pairs), t)
            units = [isa.permute(e, whole, order[0])]
        else:
            a, b = (e.b.bitcast(pair, t) for pair in pairs)
            units = [isa.permute_two(e, a, o, b) for o in order]
        return [isa.shuffle_bytes(e, e.b.bitcast(unit, raw), turn) for unit in units]

    def codes(self, e: Emitter, whole: Sequence[Value], numbers: Numbers, full: bool) -> Value:
        if self.quarters == 1:
            return cut(e, whole, numbers, self.load_type)
        isa = isa_of(e.target)
        words = isa.pack_words(e, *whole)
        pairs = e.b.bitcast(isa.pack_bytes(e, words, words), vector(I64, 8))
        codes = e.b.bitcast(e.shuffle(pairs, None, (0, 2, 4, 6)), self.load_type)
        return codes if full else limited_bytes(e, codes, numbers)


@dataclass(frozen=True)
class ShortKind(ByteKind):
    """16-bit codes: two kernel rows of a column side by side, or one where there is no product of
    pairs."""

    item: int = 2
    quarters: int = 2

    @property
    def name(self) -> str:
        return f"short{self.channels}_{self.depth}{self.epilogue_name}"

    @property
    def load_type(self) -> Type:
        return vector(I16, self.channels)

    def arrange(self, block: Array) -> Array:
        split = block.reshape(self.depth, self.channels // 8, 2, 4)
        return split.transpose(2, 1, 3, 0).reshape(-1)

    def order(self, values: Array) -> Array:
        return values.reshape(self.channels // 8, 2, 4).transpose(1, 0, 2).reshape(-1)

    def spread(self, e: Emitter, lines: Sequence[Value], numbers: Numbers) -> list[Value]:
        if self.depth == 1:
            return [e.shuffle(lines[0], None, range(4 * q, 4 * q + 4)) for q in range(2)]
        raw = vector(I8, 2 * self.channels)
        rows = [e.b.bitcast(line, raw) for line in (*lines, e.const(self.load_type, 0))[:2]]
        return [unpack(e, rows[0], rows[1], 2, high) for high in (0, 1)]

    def codes(self, e: Emitter, whole: Sequence[Value], numbers: Numbers, full: bool) -> Value:
        if self.depth == 1:
            return cut(e, whole, numbers, self.load_type)
        codes = isa_of(e.target).pack_words(e, *whole)
        return codes if full else limited(e, codes, numbers)


def weave(e: Emitter, vectors: Sequence[Value]) -> list[Value]:
    """Pieces of 128 bits, first all vectors' first ones, then their second ones, and so on."""
    count, lanes = len(vectors), vectors[0].type.count
    if count == 1 or lanes == 4:
        return list(vectors)
    if count == lanes // 4 == 4:  # each result has a piece of four vectors: by twos
        low, high = (
            [
                e.shuffle(a, b, _pieces(order))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            for order in ((0, 1, 4, 5), (2, 3, 6, 7))
        )
        return [
            e.shuffle(pair[0], pair[1], _pieces(order))
            for pair in (low, high)
            for order in ((0, 2, 4, 6), (1, 3, 5, 7))
        ]
    per = lanes // 4
    wanted = [(v, piece) for piece in range(per) for v in range(count)]
    found = []
    for first in range(0, len(wanted), per):
        mine = wanted[first : first + per]
        a, b = sorted({v for v, _ in mine})
        order = _pieces([piece + per * (v == b) for v, piece in mine])
        found.append(e.shuffle(vectors[a], vectors[b], order))
    return found


def _pieces(order: Sequence[int]) -> list[int]:
    return [4 * piece + i for piece in order for i in range(4)]


def unpack(e: Emitter, a: Value, b: Value, size: int, high: int) -> Value:
    """Interleave elements of `size` bytes of the low or high halves of all 128-bit lanes."""
    t = a.type
    lanes, each = t.count // 16, 16 // size
    wide = vector(I8 if size == 1 else I16, t.count // size)
    order = [
        lane * each + high * each // 2 + i // 2 + (i % 2) * wide.count
        for lane in range(lanes)
        for i in range(each)
    ]
    return e.b.bitcast(e.shuffle(e.b.bitcast(a, wide), e.b.bitcast(b, wide), order), t)


def _lines(taps: Array, kx: int, row: int, lines: range, shape: Shape, depth: int) -> Array:
    """[depth, channels]: the taps of an output row for a group of input rows."""
    block = np.zeros((depth, taps.shape[2]), taps.dtype)
    for i, line in enumerate(lines):
        ky = shape.tap(line, row)
        if ky is not None:
            block[i] = taps[ky, kx]
    return block
