"""8-bit depthwise convolutions in words: input rows are widened and interleaved by twos in memory.

A product of words (`multiply_pairs`) takes two kernel rows of a channel side by side. Every input
pixel is in as many windows as the kernel has taps, and to interleave it takes more instructions
than to multiply it. So a strip of all the row tile's input rows is written to memory once, with
what lies around the picture. Then one vector of channels after the other goes along each row of
results: its weights and the epilogue's numbers stay in registers, the products read the pairs from
memory, and neighbouring results are packed together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .....ir import Array
from ...codegen.emit import I8, I16, I32, PTR, ArgumentList, Arguments, Emitter, Int, Value, vector
from ...isa.base import isa_of
from ...isa.targets import Target
from ..epilogue.contract import Numbers, Output, Sums
from .channel_blocks import ByteKind, Shape, unpack
from .row_tiles import TileCode

# Bytes of interleaved rows: with weights and input they stay in a first cache of 32 kB.
STRIP = 16 * 1024


@dataclass(frozen=True)
class PairKind(ByteKind):
    """Pairs of kernel rows in words. Output rows and vectors of channels are loops in the code of a
    tile, its columns are written out."""

    depth: int = 2

    @property
    def name(self) -> str:
        return super().name.replace("madd", "pair")

    @property
    def row_counts(self) -> tuple[int, ...]:
        return (1, 2, 3, 4, 6)

    @property
    def unit(self) -> int:
        return self.lanes

    def results(self, shape: Shape) -> int:
        return shape.columns

    @property
    def pixel_bytes(self) -> int:
        """The bytes of an interleaved pair of pixels."""
        return 4 * self.channels

    @property
    def vector_bytes(self) -> int:
        return 4 * self.lanes

    def fits(self, shape: Shape, target: Target) -> bool:
        return shape.columns <= 8

    def groups(self, shape: Shape) -> int:
        """Pairs of input rows that an output row reads."""
        return math.ceil((shape.kernel[0] + len(self.starts(shape)) - 1) / 2)

    def taps(self, shape: Shape) -> list[tuple[int, int]]:
        """(kernel column, pair) of the products of a result, in the order of their weights."""
        return [(kx, g) for kx in range(shape.kernel[1]) for g in range(self.groups(shape))]

    def starts(self, shape: Shape) -> range:
        """With which row of its first pair an output row may begin: each has weights of its own."""
        return range(1 + (shape.rows > 1 and shape.stride[0] % 2))

    def pairs(self, shape: Shape) -> int:
        """How many pairs of rows a row tile reads; the last may be of rows that are not there,
        times zero."""
        return (shape.rows - 1) * shape.stride[0] // 2 + self.groups(shape)

    def cost(self, shape: Shape) -> float:
        packs = math.ceil(shape.columns / 4) * 4 / shape.columns
        products = 2 * self.quarters * len(self.taps(shape))
        made = math.ceil(shape.lines / 2) * shape.stride[1] * 14 / shape.rows
        return products + made + 24 + 10 * packs + 16 / shape.columns

    def pack(self, taps: Array, shape: Shape) -> Array:
        """[vectors, starts, products, channels, 2]."""
        depth = 2 * self.groups(shape)
        found = np.zeros((len(self.starts(shape)), depth, *taps.shape[1:]), taps.dtype)
        for start in self.starts(shape):
            found[start, start : start + len(taps)] = taps
        split = found.reshape(len(found), depth // 2, 2, taps.shape[1], self.quarters, self.lanes)
        return split.transpose(4, 0, 3, 1, 5, 2).reshape(-1).astype(np.int16)

    def order(self, values: Array) -> Array:
        return values

    def numbers(self, block: Value, table: Value) -> Numbers:
        return replace(super().numbers(block, table), rows=None)

    def spread(self, e: Emitter, lines: Sequence[Value], numbers: Numbers) -> list[Value]:
        """Two rows of a column -> vectors of neighbouring channels, both rows' side by side."""
        pieces = self.channels // 16
        order = [pieces * unit + piece for piece in range(pieces) for unit in range(4)]
        four = vector(I32, self.channels // 4)
        zero = e.const(self.load_type, 0)
        rows = [
            e.b.bitcast(e.shuffle(e.b.bitcast(line, four), None, order), self.load_type)
            for line in lines
        ]
        a, b = (*rows, zero)[:2]
        pairs = [unpack(e, a, b, 1, high) for high in (0, 1)]
        return [unpack(e, pair, zero, 1, high) for pair in pairs for high in (0, 1)]

    def sums(
        self, e: Emitter, shape: Shape, pitch: int, rows: Value, weights: Value, numbers: Numbers
    ) -> list[Value]:
        """The sums of neighbouring results, for a vector of channels. rows: the first of the
        interleaved pixels; pitch: from one pair of rows to the next, in bytes."""
        taps = self.taps(shape)
        own = [self._words(e, weights, i * self.vector_bytes) for i in range(len(taps))]
        found = []
        for c in range(shape.columns):
            total = self.epilogue.start(e, numbers, 0, self.lanes)
            for (kx, group), w in zip(taps, own, strict=True):
                column = c * shape.stride[1] + kx * shape.dilation[1]
                x = self._words(e, rows, group * pitch + column * self.pixel_bytes)
                total = e.b.add(total, isa_of(e.target).multiply_pairs(e, x, w))
            found.append(total)
        return found

    def _words(self, e: Emitter, place: Value, offset: int) -> Value:
        t = vector(I16, 2 * self.lanes)
        return e.load(e.at(place, offset, I8), t, self.vector_bytes)


@dataclass(frozen=True)
class PairCode(TileCode):
    """strip: output columns whose input is interleaved at a time."""

    strip: int = 0

    @property
    def name(self) -> str:
        return f"{super().name}_w{self.strip}"

    @property
    def own(self) -> PairKind:
        assert isinstance(self.kind, PairKind)
        return self.kind

    @property
    def arguments(self) -> ArgumentList:
        """pairs: memory of buffer_bytes."""
        return ArgumentList(super().arguments.types | {"pairs": PTR})

    @property
    def buffer_bytes(self) -> int:
        return self.own.pairs(self.shape) * self.pitch

    @cached_property
    def columns(self) -> int:
        """Input columns of a strip."""
        return input_columns(self.shape, self.strip)

    @property
    def pitch(self) -> int:
        """Bytes from one pair of rows to the next."""
        return self.columns * self.own.pixel_bytes

    def build(self, e: Emitter, given: Arguments) -> None:
        """Block by block, so that few channels are interleaved at a time."""
        given["out"].add_attribute("noalias")
        strips = e.b.udiv(e.add(given["out_width"], self.strip - 1), e.i64(self.strip))
        with e.loop(0, given["blocks"]) as block, e.loop(0, strips) as index:
            here = e.mul(block, self.kind.channels)
            x = e.min(e.mul(index, self.strip), e.sub(given["out_width"], self.strip))
            lines = [e.at(given[line], here, I8) for line in self.lines]
            self._interleave(e, lines, e.sub(e.mul(x, self.shape.stride[1]), given["left"]), given)
            place = e.add(here, e.mul(x, given["out_pitch"]))
            own = given | {
                "out": e.at(given["out"], place, I8),
                "params": e.at(given["params"], e.mul(block, self.params_bytes), I8),
                "weights": e.at(given["weights"], e.mul(block, self.weight_bytes), I8),
            }
            whole, rest = divmod(self.stored, self.own.unit)
            with e.loop(0, whole) as number:
                self._channels(e, number, self.own.unit, own)
            if rest:
                self._channels(e, whole, rest, own)

    def _interleave(
        self, e: Emitter, lines: Sequence[Value], first: Value, given: Arguments
    ) -> None:
        """Pairs of the lines from their column `first` on; what is outside is read from zeros."""
        inner = e.max(0, e.min(e.sub(0, first), self.columns))
        last = e.max(inner, e.min(e.sub(given["width"], first), self.columns))
        outside = [given["zeros"]] * len(lines)
        spans = ((0, inner, outside), (inner, last, lines), (last, self.columns, outside))
        for start, stop, rows in spans:
            with e.loop(start, stop) as i:
                offset = 0 if rows is outside else e.mul(e.add(first, i), given["pitch"])
                to = e.at(given["pairs"], e.mul(i, self.own.pixel_bytes), I8)
                self._column(e, [e.at(row, offset, I8) for row in rows], to, given)

    def _column(self, e: Emitter, rows: Sequence[Value], to: Value, given: Arguments) -> None:
        kind, size = self.own, self.own.vector_bytes
        used = math.ceil(self.stored / kind.unit)
        for number in range(math.ceil(len(rows) / 2)):
            pair = [self._pixel(e, row) for row in rows[2 * number : 2 * number + 2]]
            found = kind.spread(e, pair, kind.numbers(to, given["table"]))[:used]
            for q, value in enumerate(found):
                e.store(value, e.at(to, number * self.pitch + q * size, I8), size)

    def _pixel(self, e: Emitter, place: Value) -> Value:
        if self.is_exact:
            return e.load_part(place, self.kind.load_type, self.stored)
        return e.load(place, self.kind.load_type)

    def _channels(self, e: Emitter, number: Int, stored: int, given: Arguments) -> None:
        """All results of a vector of channels."""
        kind, shape, parts = self.own, self.shape, self.own.quarters
        params = e.at(given["params"], e.mul(number, self.params_bytes // parts), I8)
        weights = e.at(given["weights"], e.mul(number, self.weight_bytes // parts), I8)
        pairs = e.at(given["pairs"], e.mul(number, kind.vector_bytes), I8)
        out = e.at(given["out"], e.mul(number, kind.unit), I8)
        starts = len(kind.starts(shape))
        with e.loop(0, shape.rows) as row:
            first = e.mul(row, shape.stride[0])
            own = given | {
                "pairs": e.at(pairs, e.mul(e.div(first, 2), self.pitch), I8),
                "weights": e.at(
                    weights,
                    e.mul(e.rem(first, starts), self.weight_bytes // parts // starts),
                    I8,
                ),
                "out": e.at(out, e.mul(row, given["out_row"]), I8),
            }
            self._row(e, kind.numbers(params, given["table"]), stored, own)

    def _row(self, e: Emitter, numbers: Numbers, stored: int, given: Arguments) -> None:
        kind, shape, columns = self.own, self.shape, self.shape.columns
        with e.loop(0, math.ceil(self.strip / columns)) as index:
            x = e.min(e.mul(index, columns), self.strip - columns)
            here = e.at(given["pairs"], e.mul(x, shape.stride[1] * kind.pixel_bytes), I8)
            there = e.at(given["out"], e.mul(x, given["out_pitch"]), I8)
            values = kind.sums(e, shape, self.pitch, here, given["weights"], numbers)
            sums = Sums(values, columns, 1, kind.lanes, stored)
            kind.epilogue.store(e, sums, numbers, Output(there, given["out_pitch"]))


def input_columns(shape: Shape, columns: int) -> int:
    """How many input columns so many neighbouring results read."""
    return (columns - 1) * shape.stride[1] + (shape.kernel[1] - 1) * shape.dilation[1] + 1


def strip(kind: PairKind, shape: Shape, width: int) -> int:
    """Output columns of a strip, of `width`: equal parts that fit."""
    most = STRIP // (kind.pairs(shape) * kind.pixel_bytes) - input_columns(shape, 1)
    most = max(most // shape.stride[1] + 1, shape.columns)
    return max(math.ceil(width / math.ceil(width / most)), shape.columns)
