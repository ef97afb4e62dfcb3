"""Whole numbers to codes: zero point, bounds, and vectors that become narrower.

Saturating packs do the clamping to the type; they work on each 16 bytes apart. Where there are none
numbers are clamped in 32 bits, and the low bits are kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.emit import I8, I16, I32, I64, Emitter, Type, Value, vector
from ...isa.base import isa_of
from .contract import Numbers, Output


class RowPacker:
    """Codes of rows of vectors, stored a row at a time. size: bytes of a code. shifts: the zero
    point is still to be added. full: the type's own bounds are all there are."""

    def __init__(
        self,
        e: Emitter,
        numbers: Numbers,
        lanes: int,
        size: int,
        signed: bool,
        shifts: bool,
        full: bool,
    ) -> None:
        self.e, self.lanes, self.size, self.shifts, self.full = e, lanes, size, shifts, full
        self.isa = isa_of(e.target)
        self.packs = self.isa.has_packs and signed == (self.size == 2)
        self.vectors = 4 // self.size  # that a pack takes
        zero, low, high = (numbers.word(e, word) for word in numbers.code_words)
        if self.packs:
            words = self.size == 2
            self.zero = e.splat(zero, lanes) if words else e.splat(e.b.trunc(zero, I16), 2 * lanes)
            code, count = (I16, 2 * lanes) if words else (I8, 4 * lanes)
            self.low, self.high = (e.splat(e.b.trunc(x, code), count) for x in (low, high))
        else:
            self.zero, self.low, self.high = (e.splat(x, lanes) for x in (zero, low, high))

    def store(self, rows: Sequence[Sequence[Value]], columns: int, output: Output) -> None:
        """A pack makes codes of several vectors: of several rows, where these are short."""
        used, most = len(rows[0]), self.vectors
        if self.packs and 2 * used <= most:
            for row in range(0, len(rows), most // used):
                self._store_rows(rows[row : row + most // used], row, columns, output)
            return
        for row, values in enumerate(rows):
            for first in range(0, used, most):
                group = values[first : first + most]
                code = self._packed(group) if self.packs else self._narrow(group)
                self._store(code, row, first * self.lanes, columns, output)

    def _store_rows(
        self, rows: Sequence[Sequence[Value]], row: int, columns: int, output: Output
    ) -> None:
        code = self._packed([value for found in rows for value in found])
        width = len(rows[0]) * self.lanes
        for i in range(len(rows)):
            whole = len(rows) == 1
            piece = code if whole else self.e.shuffle(code, None, range(i * width, (i + 1) * width))
            self._store(piece, row + i, 0, columns, output)

    def _store(self, code: Value, row: int, first: int, columns: int, output: Output) -> None:
        there = output.result(self.e, row, first, self.size)
        self.e.store_part(code, there, min(columns - first, code.type.count))

    def _packed(self, values: Sequence[Value]) -> Value:
        """By packs, whose order is then mended."""
        e = self.e
        codes = self._words(values) if self.size == 2 else self._bytes(values)
        # Four codes of a vector are together.
        count = codes.type.count // 4
        order = [self.vectors * i + j for j in range(len(values)) for i in range(self.lanes // 4)]
        fours = e.b.bitcast(codes, vector(I32 if self.size == 1 else I64, count))
        if order != list(range(count)):
            fours = e.shuffle(fours, None, order)
        return e.b.bitcast(fours, vector(codes.type.element, 4 * len(order)))

    def _words(self, values: Sequence[Value]) -> Value:
        e = self.e
        if self.shifts:
            values = [e.b.add(v, self.zero) for v in values]
        codes = self.isa.pack_words(e, values[0], values[-1])
        return codes if self.full else e.smin(e.smax(codes, self.low), self.high)

    def _bytes(self, values: Sequence[Value]) -> Value:
        e, last = self.e, len(values) - 1
        words = [
            self.isa.pack_words(e, values[i], values[min(i + 1, last)])
            for i in range(0, len(values), 2)
        ]
        if self.shifts:
            name = f"llvm.sadd.sat.v{2 * self.lanes}i16"
            words = [e.call(name, w.type, w, self.zero) for w in words]
        codes = self.isa.pack_bytes(e, words[0], words[-1])
        return codes if self.full else e.umin(e.umax(codes, self.low), self.high)

    def _narrow(self, values: Sequence[Value]) -> Value:
        e = self.e
        t = vector(I8 if self.size == 1 else I16, self.lanes)
        shifted = [e.b.add(v, self.zero) for v in values] if self.shifts else values
        codes = [e.b.trunc(e.smin(e.smax(v, self.low), self.high), t) for v in shifted]
        return e.join(codes)


# -- one vector of codes, its zero point in it ----------------------------------------------------


def limits(e: Emitter, numbers: Numbers, t: Type) -> tuple[Value, Value]:
    """The codes' low and high in all lanes."""
    found = []
    for word in numbers.code_words[1:]:
        scalar = numbers.word(e, word)
        scalar = scalar if t.element == I32 else e.b.trunc(scalar, t.element)
        found.append(e.splat(scalar, t.count))
    return found[0], found[1]


def cut(e: Emitter, whole: Sequence[Value], numbers: Numbers, t: Type) -> Value:
    """The vectors end to end, clamped in 32 bits, their low bits."""
    joined = e.join(whole)
    return e.b.trunc(limited(e, joined, numbers), t)


def limited(e: Emitter, value: Value, numbers: Numbers) -> Value:
    low, high = limits(e, numbers, value.type)
    value = e.b.select(e.b.icmp_signed("<", value, low), low, value)
    return e.b.select(e.b.icmp_signed(">", value, high), high, value)


def limited_bytes(e: Emitter, codes: Value, numbers: Numbers) -> Value:
    """Codes without sign."""
    low, high = limits(e, numbers, codes.type)
    return e.umin(e.umax(codes, low), high)
