"""32-bit sums to codes, rounded as the definition rounds.

The definition multiplies by 31 bits, rounds, divides by a power of two and rounds again, halves
away from zero. Seen from outside that is a staircase: the code k begins at a sum T(k), which can be
computed. What meets all 255 steps is the definition:

    FLOOR    (AVX2, AVX512) the whole part of a line through the steps. The slope is a sum of two
             floats and so has all bits; the last multiply-add rounds down, which moves no number
             past a whole one. Most of the line's height is in the start of the sums, so that what
             is left is small and exact enough. AVX2's instructions cannot be told how to round:
             there the whole step does (kernels/epilogue/codes.py: rounding).
    LINE     (likewise, where sums leave float32) one multiply-add of a float64 that holds the sum
             in its low bits, to the nearest whole number. The slope is a bit above the
             definition's, which settles ties; that it moves no step is checked for each channel
             and code.
    FIXED    (AArch64, plain vectors; where the others do not hold; 16-bit codes of 32-bit sums) the
             definition's own arithmetic.

16-bit codes:

    SPLIT    64-bit sums, by 15 bits: those that 32 bits hold are multiplied in halves of 16 bits
    SHORT    those that leave 32 bits, in float64, which is exact
    LONG     in 64-bit integers, where both operands have 16 bits and float64 would not hold it
    ONCE     FULLY_CONNECTED: the definition itself multiplies in float64
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np

from ....ir import Array
from ....ops.fixed import quantize_multiplier
from ..isa.base import isa_of
from ..isa.targets import Target
from .emit import F32, F64, I1, I32, Emitter, Type, Value, like, suffix, vector
from .fixedpoint import divide_by_pot, high_mul


class Rounding(Enum):
    """_UP: negative results are clamped away. _AWAY: they are not, and halves go away from zero."""

    FLOOR_UP = "_floor"
    FLOOR_AWAY = "_floors"
    LINE_UP = "_line"
    LINE_AWAY = "_lines"
    FIXED_UP = "_fixed"
    FIXED_AWAY = "_fixeds"
    FIXED_LEFT = "_left"  # likewise, and some scales are 1 or more
    SPLIT = "_split"
    SHORT = "_short"
    LONG = "_long"
    ONCE = "_once"

    @property
    def types(self) -> tuple[Type, ...]:
        """The types of the numbers that each column has."""
        return _TYPES[self]

    @property
    def arrays(self) -> int:
        """The numbers' 32-bit words."""
        return sum(map(word_count, self.types))

    @property
    def has_zero(self) -> bool:
        """Results come with the zero point in them."""
        return self in (Rounding.FLOOR_UP, Rounding.LINE_UP, Rounding.SPLIT, Rounding.SHORT)

    @property
    def has_bias(self) -> bool:
        """Sums are given without the bias."""
        return self in (Rounding.SPLIT, Rounding.SHORT, Rounding.ONCE)

    @property
    def is_fixed(self) -> bool:
        return self in (Rounding.FIXED_UP, Rounding.FIXED_AWAY, Rounding.FIXED_LEFT)


_TYPES = {Rounding.FLOOR_UP: (F32,) * 3, Rounding.FLOOR_AWAY: (F32,) * 4,
          Rounding.FIXED_UP: (I32,) * 2, Rounding.FIXED_AWAY: (I32,) * 2,
          Rounding.FIXED_LEFT: (I32,) * 3,
          Rounding.LINE_UP: (F64,) * 2, Rounding.LINE_AWAY: (F64,) * 2,
          Rounding.SPLIT: (I32,) * 6, Rounding.SHORT: (F64, F64, I32), Rounding.LONG: (I32,) * 2,
          Rounding.ONCE: (F64, F64)}  # fmt: skip


FLOORS = (Rounding.FLOOR_UP, Rounding.FLOOR_AWAY)


def word_count(t: Type) -> int:
    return 2 if t == F64 else 1


def load_factors(
    e: Emitter, kind: Rounding, place: Value, width: int, first: int, lanes: int
) -> list[Value]:
    """The numbers of `lanes` columns from `first` on: place holds arrays of `width` of them, one
    after the other."""
    found, at = [], 0
    for t in kind.types:
        there = e.at(place, at + first * word_count(t), I32)
        found.append(e.load(there, vector(t, lanes), 4))
        at += width * word_count(t)
    return found


@dataclass(frozen=True)
class Rescale:
    """start: to be added to the sums. factors: arrays of numbers, as the kind has it."""

    kind: Rounding
    start: Array
    factors: list[Array]

    def leaves_32_bits(self, reach: Array) -> bool:
        """Whether results could, before they are clamped; reach: their sizes. Integer arithmetic
        wraps around as the definition's does, and a line's slope is below a half."""
        exact = self.kind.is_fixed or self.kind in _LINES
        return not exact and bool(np.max(reach, initial=0) >= 2**31)


# -- numbers ------------------------------------------------------------------------------------


def rescale(
    scale: Array, bounds: tuple[int, int], zero: int, most: Array | int, target: Target
) -> Rescale:
    """For sums of these scales, whose sizes go up to `most`; bounds: what codes are clamped to."""
    numbers = np.asarray(scale, np.float64)
    reach = np.broadcast_to(most, numbers.shape).astype(np.float64)
    return _rescale(
        numbers.tobytes(), reach.tobytes(), bounds[0] - zero, bounds[1] - zero, zero, target
    )


@lru_cache(4)  # who asks for the kind, asks for the numbers soon after
def _rescale(scales: bytes, most: bytes, low: int, high: int, zero: int, target: Target) -> Rescale:
    scale, reach = np.frombuffer(scales), np.frombuffer(most)
    isa = isa_of(target)
    exact = isa.rounds_down and not _wraps(scale, reach)
    if exact and _floor_holds(scale, reach, low, high, zero):
        return _floor(scale, low, high, zero)
    tries = target.fma and not isa.has_high_mul
    line = _line_of(scale, reach, low, high, zero) if tries else None
    return fixed(scale, low) if line is None else line


def _wraps(scale: Array, most: Array) -> bool:
    """Whether sums could leave 32 bits where the definition shifts them to the left, for scales of
    1 and more: what it makes of them then, no line has."""
    _, shift = quantize_multiplier(scale)
    return bool((most * 2.0**shift >= 2**31)[shift > 0].any())


def fixed(scale: Array, low: int) -> Rescale:
    """The definition's own steps; low: of codes without their zero point."""
    m, shift = quantize_multiplier(scale)
    kind = Rounding.FIXED_UP if low >= 0 else Rounding.FIXED_AWAY
    arrays = [m, np.minimum(shift, 0)]
    if (shift > 0).any():
        kind, arrays = Rounding.FIXED_LEFT, [*arrays, np.maximum(shift, 0)]
    return Rescale(kind, np.zeros(len(scale), np.int64), [a.astype(np.int32) for a in arrays])


def _fifteen(scale: Array) -> tuple[Array, Array]:
    """m and n of the scale m / 2**n, as the definition has it for 64-bit sums."""
    m, shift = quantize_multiplier(scale)
    return np.where(m < 0x7FFF0000, (m + (1 << 15)) >> 16, 0x7FFF), 15 - shift


def long(scale: Array) -> Rescale:
    """For 64-bit sums without bias."""
    factors = [a.astype(np.int32) for a in _fifteen(scale)]
    return Rescale(Rounding.LONG, np.zeros(len(scale), np.int64), factors)


def short(scale: Array, bias: Array, zero: int, near: bool) -> Rescale:
    """For 64-bit sums: floor((sum * m + c) / 2**n). near: of sums that 32 bits hold."""
    reduced, bits = _fifteen(scale)
    height = bias * reduced + (np.int64(1) << (bits - 1))
    rest = height & ((np.int64(1) << bits) - 1)
    whole = (height >> bits) + zero
    if near and bits.min(initial=16) >= 16:
        words = [reduced << 16, reduced, rest >> 16, rest & 0xFFFF, bits - 16, whole]
        start = np.full(len(scale), 1 << 15)
        return Rescale(Rounding.SPLIT, start, [w.astype(np.int32) for w in words])
    # The nearest of (sum * m + rest) / 2**n - 1/2 + half a unit: that is never between two.
    above = (2 * rest + 1) * 0.5 ** (bits + 1.0) - 0.5
    return Rescale(
        Rounding.SHORT,
        np.zeros(len(scale), np.int64),
        [reduced * 0.5**bits, above, whole.astype(np.int32)],
    )


# How far a result of `short` may go, which the definition wraps around at 2**31; and its sums.
SHORT_REACH, SHORT_SUMS = 1 << 30, 1 << 36


def once(scale: Array, bias: Array) -> Rescale:
    """As FULLY_CONNECTED has it."""
    start = np.zeros(len(scale), np.int64)
    return Rescale(Rounding.ONCE, start, [scale.astype(np.float64), bias.astype(np.float64)])


# A float64 with a whole number in its low bits: what is added to it, and what its results have.
HOLDS, MIDDLE = 2.0**52, 1.5 * 2.0**52


def _line_of(scale: Array, most: Array, low: int, high: int, zero: int) -> Rescale | None:
    """Result k begins at the sum T(k) = ceil((k * 2**unit - above) / m). In units of 2**(-unit-22)
    the line is (m * 2**22 + 1) * sum + above * 2**22 there: `above` is half of 2**unit and 2**30,
    which is what the 1 makes of HOLDS. None where that is not the definition for all sums."""
    m, shift = quantize_multiplier(scale)
    # Channels whose results are all 0 need no line.
    m = np.where(most * scale < 0.25, 0, m)
    right = np.where(m > 0, -shift, 1)
    if right.min(initial=1) < 1 or right.max(initial=1) > 21 or most.max(initial=0) > 2**62:
        return None
    unit, up = right + 31, low >= 0
    parts = range(0, len(scale), 128)  # what is computed for each channel and code stays in cache
    if not all(_line_holds(m[i : i + 128], unit[i : i + 128], low, high) for i in parts):
        return None
    slope = np.where(m > 0, m * 2.0**22 + 1, 0) * 0.5 ** (unit + 22.0)
    height = MIDDLE + zero * up - m * 2.0 ** (52 - unit)
    kind = Rounding.LINE_UP if up else Rounding.LINE_AWAY
    return Rescale(kind, np.zeros(len(scale), np.int64), [slope, height])


def _line_holds(m: Array, unit: Array, low: int, high: int) -> bool:
    """At T(k) the line has reached k, a sum before it has not; and where negative sums have the
    results of positive ones, nothing ties in the first rounding, which goes up."""
    m, unit = m[m > 0, None], unit[m > 0, None]
    k = np.arange(1, max(high, -low + 1) + 1)
    distance = (k << unit) - (np.int64(1) << (unit - 1)) - (1 << 30)
    first = -(-distance // m)
    over = first * m - distance
    not_before = (m - over) << 22 > first - 1
    return bool(not_before.all() and (low >= 0 or over.all()))


# Sums beyond this are not exact in float32.
EXACT = 1 << 24


@dataclass(frozen=True)
class Stairs:
    """Where codes begin, channel by channel: T(k) = ceil((k * 2**unit - height) / rise); the height
    depends on k's sign only. Whole numbers as float64, which has bits enough where near is set;
    elsewhere steps are out of the sums' reach, or the sums have no room between them."""

    rise: Array
    unit: Array
    above: Array  # the height for k > 0
    below: Array  # for others
    near: Array

    @classmethod
    def of(cls, scale: Array) -> Stairs:
        m, shift = quantize_multiplier(scale)
        near = (shift >= -21) & (shift <= 8) & (m > 0)
        left, right = (np.where(near, np.maximum(v, 0), 0) for v in (shift, -shift))
        half, nudge = 2.0 ** (right + 30), 2.0**30
        above, below = (np.where(right > 0, half + more, nudge) for more in (nudge, -nudge))
        return cls(np.maximum(m << left, 1).astype(float), 2.0 ** (right + 31), above, below, near)

    def least(self, k: Array) -> Array:
        """[channels, k]: the least height at which a line of this rise is at k when the sum is
        T(k). One rise more, and it is there a sum too early."""
        # All parts modulo the rise first: a quotient of small numbers rounds past no whole number.
        step, rise = np.fmod(self.unit, self.rise)[:, None], self.rise[:, None]
        found = []
        for height, mine in ((self.below, k[k <= 0]), (self.above, k[k > 0])):
            rest = np.fmod(height, self.rise)[:, None] - step * mine
            rest -= np.floor(rest / rise) * rise
            found.append(height[:, None] - rest)
        return np.concatenate(found, axis=1)

    def first(self) -> Array:
        """T(0)."""
        return -np.floor(self.below / self.rise)


def _floor(scale: Array, low: int, high: int, zero: int) -> Rescale:
    """Channels by the hundred: what is computed for each of them and each code stays in cache."""
    parts = [_lines(scale[i : i + 128], low, high, zero) for i in range(0, len(scale), 128)]
    start, *numbers = (np.concatenate(column) for column in zip(*parts, strict=True))
    kind = Rounding.FLOOR_UP if low >= 0 else Rounding.FLOOR_AWAY
    return Rescale(kind, start.astype(np.int64), [n.astype(np.float32) for n in numbers])


def _floor_holds(scale: Array, most: Array, low: int, high: int, zero: int) -> bool:
    """Float32 tells all sums apart, or at least those at which codes begin, beyond which the
    others are clamped."""
    stairs, slope = Stairs.of(scale), _slope(scale)
    start = _start(stairs, slope, low, zero)
    last = max(high, -low) + 1
    reached = stairs.near & (last < (EXACT - start) * slope)
    return bool(np.all((reached & (most + start < 2**31)) | (most + start < EXACT)))


def _slope(scale: Array) -> Array:
    m, shift = quantize_multiplier(scale)
    return np.asarray(m * 2.0 ** (shift - 31))


def _start(stairs: Stairs, slope: Array, low: int, zero: int) -> Array:
    up = low >= 0
    with np.errstate(divide="ignore"):
        start = np.rint(np.minimum((zero * up + 0.5) / slope, EXACT // 2))
    if up:
        return start
    # The sums' sign is to tell on which side of the step to 0 they are.
    return np.where(stairs.near, np.minimum(-stairs.first(), EXACT // 2), start)


def _lines(scale: Array, low: int, high: int, zero: int) -> list[Array]:
    """Start, slope in two parts, and one height or two."""
    stairs, slope, up = Stairs.of(scale), _slope(scale), low >= 0
    start = _start(stairs, slope, low, zero)
    k = np.arange(low + 1, high + 1)
    least = stairs.least(k)
    # Steps that are out of reach bind nothing.
    seen = stairs.near[:, None] & (np.abs(k) + 1 < ((EXACT - start) * slope)[:, None])
    least = least if seen.all() else np.where(seen, least, np.nan)
    # Halves that go away from zero need two lines.
    sides = (
        [(stairs.above, k > low, k > low)]
        if up
        else [(stairs.above, k >= 0, k > 0), (stairs.below, k < 0, k <= 0)]
    )
    heights = [
        _height(usual, stairs.rise, least[:, at], least[:, before]) / stairs.unit
        for usual, at, before in sides
    ]
    first = slope.astype(np.float32)
    return [start, first, slope - first, *(h + zero * up - start * slope for h in heights)]


def _height(usual: Array, rise: Array, at: Array, before: Array) -> Array:
    """The line's height in the middle of what the steps allow: at those of `at` it has reached k,
    one sum before those of `before` it has not. usual: where no step binds it."""
    low = np.fmax.reduce(at, axis=1, initial=-np.inf)
    high = np.fmin.reduce(before, axis=1, initial=np.inf)
    low = np.where(np.isinf(low), usual - rise, low)
    high = np.where(np.isinf(high), usual, high)
    return np.asarray((low + high + rise) / 2)


# -- code ---------------------------------------------------------------------------------------


def rescaled(
    e: Emitter,
    kind: Rounding,
    total: Value,
    factors: Sequence[Value],
    bounds: Sequence[Value] | None = None,
) -> Value:
    """The sums as whole numbers of the result's units. bounds: what they are clamped to; needed
    where a result could leave 32 bits."""
    if kind in _WORDS:
        return _WORDS[kind](e, total, *factors)
    if kind.is_fixed or kind in _LINES:
        found = (_fixed if kind.is_fixed else _held)(e, kind, total, *factors)
        return found if bounds is None else e.smin(e.smax(found, bounds[0]), bounds[1])
    real = _real(e, kind, total, factors)
    if bounds is not None:
        low, high = (e.b.sitofp(bound, real.type) for bound in bounds)
        real = e.fmin(e.fmax(real, low), high)
    if kind is Rounding.ONCE:
        return away(e, real)
    return isa_of(e.target).convert_down(e, real)


def _real(e: Emitter, kind: Rounding, total: Value, factors: Sequence[Value]) -> Value:
    if kind is Rounding.ONCE:
        scale, bias = factors
        return e.b.fmul(e.b.fadd(as_double(e, total), bias), scale)
    return _line(e, total, *factors)


def as_double(e: Emitter, total: Value) -> Value:
    t = like(total.type, F64)
    return total if total.type == t else e.b.sitofp(total, t)


def _split(
    e: Emitter,
    total: Value,
    m_high: Value,
    m: Value,
    c_high: Value,
    c: Value,
    shift: Value,
    whole: Value,
) -> Value:
    """With 2**15 in it, the sum's upper half is rounded, and what is left has 16 bits with sign."""
    t, half = total.type, e.const(total.type, 16)
    rest = e.b.xor(total, e.const(t, 1 << 15))
    isa = isa_of(e.target)
    if isa.has_pairs:
        high, low = isa.multiply_pairs(e, total, m_high), isa.multiply_pairs(e, rest, m)
    else:
        high = e.b.mul(e.b.ashr(total, half), m)
        low = e.b.mul(e.b.ashr(e.b.shl(rest, half), half), m)
    high, low = e.b.add(high, c_high), e.b.add(low, c)
    return e.b.add(e.b.ashr(e.b.add(high, e.b.ashr(low, half)), shift), whole)


def _short(e: Emitter, total: Value, factor: Value, above: Value, whole: Value) -> Value:
    """Nothing is rounded before the end, with or without a fused multiply-add."""
    near = isa_of(e.target).round_int(e, e.fma(as_double(e, total), factor, above))
    return e.b.add(near, whole)


def _long(e: Emitter, total: Value, m: Value, bits: Value) -> Value:
    t = total.type
    m, bits = (e.b.zext(v, t) for v in (m, bits))
    half = e.b.lshr(e.b.shl(e.const(t, 1), bits), e.const(t, 1))
    return e.b.trunc(e.b.ashr(e.b.add(e.b.mul(total, m), half), bits), like(t, I32))


_WORDS: dict[Rounding, Callable[..., Value]] = {
    Rounding.SPLIT: _split,
    Rounding.SHORT: _short,
    Rounding.LONG: _long,
}


def away(e: Emitter, real: Value) -> Value:
    """To the nearest, halves away from zero. What is added is less than a half, so that the number
    below a half does not become 1; where that counts, the sum is rounded up."""
    half = e.const(real.type, float(np.nextafter(0.5, 0)))
    more = e.call(f"llvm.copysign.{suffix(real.type)}", real.type, half, real)
    return e.b.fptosi(e.b.fadd(real, more), like(real.type, I32))


def _fixed(
    e: Emitter, kind: Rounding, total: Value, m: Value, shift: Value, left: Value | None = None
) -> Value:
    """shift: how far to the right, negative."""
    t, isa = total.type, isa_of(e.target)
    total = total if left is None else e.b.shl(total, left)
    if not isa.has_high_mul:
        return divide_by_pot(e, high_mul(e, total, m), e.b.sub(e.const(t, 0), shift))
    high = isa.high_mul(e, total, m)
    if kind is not Rounding.FIXED_UP:
        # A negative half would go up. Where nothing is shifted there are no halves.
        high = e.b.add(high, e.b.ashr(e.b.and_(high, shift), e.const(t, 31)))
    return isa.rounding_shift(e, high, shift)


_LINES = (Rounding.LINE_UP, Rounding.LINE_AWAY)


def _held(e: Emitter, kind: Rounding, total: Value, slope: Value, height: Value) -> Value:
    """Sums beside the upper half of HOLDS are float64. Results are in the low halves."""
    t, n = total.type, total.type.count
    size = (
        e.smax(total, e.const(t, 0))
        if kind is Rounding.LINE_UP
        else e.call(f"llvm.abs.{suffix(t)}", t, total, I1(0))
    )
    upper = e.const(t, int(np.float64(HOLDS).view(np.int64)) >> 32)
    halves = []
    for half in (0, 2):  # of each four lanes, as x86 puts two vectors together
        lanes = [i + j for i in range(half, n, 4) for j in (0, 1)]
        pairs = e.shuffle(size, upper, [v for i in lanes for v in (i, n + i)])
        real, a, b = (
            e.b.bitcast(pairs, vector(F64, n // 2)),
            *(e.shuffle(v, None, lanes) for v in (slope, height)),
        )
        halves.append(e.b.bitcast(e.fma(real, a, b), t))
    order = [v + 4 * i for i in range(n // 4) for v in (0, 2, n, n + 2)]
    found = e.shuffle(halves[0], halves[1], order)
    return found if kind is Rounding.LINE_UP else isa_of(e.target).with_sign(e, found, total)


def _line(
    e: Emitter, total: Value, first: Value, second: Value, height: Value, below: Value | None = None
) -> Value:
    if below is not None:
        negative = e.b.icmp_signed("<", total, e.const(total.type, 0))
        height = e.b.select(negative, below, height)
    whole = e.b.sitofp(total, first.type)
    return isa_of(e.target).fma_down(e, whole, first, e.fma(whole, second, height))
