"""Epilogues of codes: whole sums to 8- or 16-bit numbers with a zero point."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from ...codegen.emit import I8, I32, I64, PTR, Emitter, Type, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.rounding import FLOORS, Rounding, load_factors, rescaled
from ...isa.base import isa_of
from ...isa.targets import Target
from ..elementwise.planes import Plane
from .contract import Epilogue, Numbers, Output, Sums
from .packing import RowPacker

# Far beyond all codes.
WILD = 1 << 20


@dataclass(frozen=True)
class CodeEpilogue:
    """Sums to 8- or 16-bit codes.

    columns: bias (which holds the zero points' share, and rounding.Rescale's start), then the
    rounding's numbers. common: zero point, low, high, and for a residual sum_words. row_words: 1 if
    each row has a number to add to its sums. wild: results may leave 32 bits before they are
    clamped. full: low and high are the type's ends. away: the residual's sum has two heights
    (planes.Plane).
    """

    signed: bool = False
    residual: bool = False
    row_words: int = 0
    wild: bool = False
    out_bytes: int = 1
    rounding: Rounding = Rounding.FIXED_AWAY
    full: bool = False
    away: bool = False

    @property
    def arrays(self) -> int:
        return 1 + self.rounding.arrays

    @property
    def name(self) -> str:
        kind = ("s" if self.signed else "u") + str(8 * self.out_bytes) + self.rounding.value
        added = "_add" * self.residual + "_away" * self.away
        return kind + added + "_row" * self.row_words + "_wild" * self.wild + "_full" * self.full

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        return numbers.column(e, 0, first, lanes, I32)

    def result(self, e: Emitter, total: Value, numbers: Numbers, first: int) -> Value:
        """What one vector of accumulators becomes: whole numbers with their zero point."""
        lanes = total.type.count
        (factors,) = self._factors(e, numbers, [first], lanes)
        found = rescaled(e, self.rounding, total, factors, self._far(e, total.type))
        if self.rounding.has_zero:
            return found
        return e.b.add(found, numbers.everywhere(e, numbers.code_words[0], lanes, I32))

    def store(self, e: Emitter, sums: Sums, numbers: Numbers, output: Output) -> None:
        used = math.ceil(sums.columns / sums.lanes)
        factors = self._factors(e, numbers, sums.firsts[:used], sums.lanes)
        added = ResidualSum.read(e, self, numbers, sums.lanes) if self.residual else None
        far = self._far(e, vector(I32, sums.lanes)) if added is None else added.bounds
        rows = []
        for row in range(sums.rows):
            totals = list(sums.values[row * sums.vectors : row * sums.vectors + used])
            if numbers.rows is not None:
                more = e.splat(e.load(e.at(numbers.rows, row, I32), I32, 4), sums.lanes)
                totals = [e.b.add(total, more) for total in totals]
            found = [
                rescaled(e, self.rounding, total, mine, far)
                for total, mine in zip(totals, factors, strict=True)
            ]
            if added is not None:
                found = [
                    added.add(e, mine, output.beside(e, row, first, 1), sums.columns - first)
                    for mine, first in zip(found, sums.firsts[:used], strict=True)
                ]
            rows.append(found)
        # A residual's result is without the zero point.
        shifts = self.residual or not self.rounding.has_zero
        packer = RowPacker(e, numbers, sums.lanes, self.out_bytes, self.signed, shifts, self.full)
        packer.store(rows, sums.columns, output)

    def _factors(
        self, e: Emitter, numbers: Numbers, firsts: Sequence[int], lanes: int
    ) -> list[list[Value]]:
        there = e.at(numbers.columns, numbers.width, I32)
        return [load_factors(e, self.rounding, there, numbers.width, f, lanes) for f in firsts]

    def _far(self, e: Emitter, t: Type) -> list[Value] | None:
        """Bounds that keep results in 32 bits, where they need some."""
        return [e.const(t, -WILD), e.const(t, WILD)] if self.wild else None


@contextmanager
def rounding(k: StepEmitter, epilogue: Epilogue) -> Iterator[None]:
    """Around what a step does with the epilogue: some targets are told once how to round."""
    isa = isa_of(k.target)
    floors = isinstance(epilogue, CodeEpilogue) and epilogue.rounding in FLOORS
    if not (floors and isa.rounds_by_mode):
        yield
        return
    kept = k.b.bitcast(k.b.alloca(I32), PTR)
    down, back = (
        k.program.function(change.__name__, [PTR], _changing(change), trusted=True)
        for change in (isa.round_down, isa.round_back)
    )
    k.b.call(down, [kept])
    yield
    k.b.call(back, [kept])


def _changing(change: Callable[[Emitter, Value], None]) -> Callable[[Emitter], None]:
    return lambda e: change(e, e.args[0])


@dataclass(frozen=True)
class ResidualSum:
    """The product as it would be stored, and the residual, in units of the output: sum_words in all
    lanes. bounds: of the product."""

    signed: bool
    away: bool
    bounds: list[Value]
    first: Value
    second: Value
    plus: Value
    shift: Value
    above: Value
    less: Value

    @classmethod
    def read(cls, e: Emitter, codes: CodeEpilogue, numbers: Numbers, lanes: int) -> ResidualSum:
        words = [numbers.everywhere(e, word, lanes, I32) for word in range(3, 11)]
        return cls(codes.signed, codes.away, words[:2], *words[2:])

    def add(self, e: Emitter, mine: Value, there: Value, count: int) -> Value:
        """there: the address of the residual's codes, of which `count` are read."""
        raw = e.load_part(there, vector(I8, mine.type.count), count)
        other = e.b.sext(raw, mine.type) if self.signed else e.b.zext(raw, mine.type)
        total = e.b.add(_pair_products(e, mine, other, self.first, self.second), self.plus)
        if self.away:
            negative = e.b.icmp_signed("<", total, self.above)
            total = e.b.add(total, e.b.select(negative, self.less, e.const(total.type, 0)))
        return e.b.ashr(total, self.shift)


def sum_words(plane: Plane, zero: int, bounds: tuple[int, int], target: Target) -> list[int]:
    """What `CodeEpilogue` is told of a residual with this zero point; bounds: of the product alone,
    without its zero point. Ints for `words`."""
    a, b = plane.a, plane.b
    if isa_of(target).has_pairs:  # _pair_products
        first, second = (
            np.array(pair, np.int16).view(np.int32).item()
            for pair in ((a >> 9, b >> 9), (a & 511, b & 511))
        )
    else:
        first, second = a, b
    less = plane.below - plane.above
    return [*bounds, first, second, plane.above - zero * b, plane.shift, plane.above, less]


def _pair_products(e: Emitter, x: Value, y: Value, first: Value, second: Value) -> Value:
    """a * x + b * y. Pairs of 16-bit numbers are multiplied faster than 32-bit ones, where they can
    be: there a and b are in two parts, side by side as x and y."""
    isa = isa_of(e.target)
    if not isa.has_pairs:
        return e.b.add(e.b.mul(x, first), e.b.mul(y, second))
    t = x.type
    low = e.b.and_(x, e.const(t, 0xFFFF))
    pairs = e.b.or_(low, e.b.shl(y, e.const(t, 16)))
    high, rest = (isa.multiply_pairs(e, pairs, part) for part in (first, second))
    return e.b.add(e.b.shl(high, e.const(t, 9)), rest)


@dataclass(frozen=True)
class LongEpilogue:
    """Sums, or the neighbouring sums of low and high bytes, as 64-bit integers for CodeEpilogue."""

    inner: CodeEpilogue
    parts: int
    residual: bool = False
    row_words: int = 0

    @property
    def name(self) -> str:
        return f"sum{self.parts}_{self.inner.name}"

    @property
    def arrays(self) -> int:
        return self.inner.arrays

    @property
    def out_bytes(self) -> int:
        return self.inner.out_bytes

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        return e.const(vector(I32, lanes), 0)

    def store(self, e: Emitter, sums: Sums, numbers: Numbers, output: Output) -> None:
        t, vectors = vector(I64, sums.lanes), sums.vectors // self.parts
        totals = [(e.b.sext if v.type.element == I32 else e.b.fptosi)(v, t) for v in sums.values]
        if self.parts == 2:
            byte = e.const(t, 8)
            totals = [
                e.b.add(low, e.b.shl(high, byte))
                for low, high in zip(totals[::2], totals[1::2], strict=True)
            ]
        sums = replace(sums, values=totals, vectors=vectors)
        self.inner.store(e, sums, replace(numbers, width=vectors * sums.lanes), output)
