"""Fixed-point arithmetic on vectors, bit by bit as ops/fixed.py and ops/lut.py define it.

Numbers of 16 bits stay in 16-bit lanes: gemmlowp's functions were made for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....ir import Array
from ....ops.fixed import divide_by_pot as divided
from ....ops.lut import EXP_POWERS
from ..isa.base import isa_of
from .emit import I1, I16, I32, I64, Emitter, Value, like, vector

MOST16 = 2**15 - 1

# -- 32 bits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """A quantised multiplier, in vectors: x -> x * m * 2**(left - right - 31)."""

    m: Value
    left: Value
    right: Value

    @classmethod
    def load(cls, e: Emitter, place: Value, lanes: int) -> Scale:
        """From memory, where scale_words put it."""
        return cls(*(e.splat(e.load(e.at(place, i, I32), I32, 4), lanes) for i in range(3)))

    def __call__(self, e: Emitter, x: Value) -> Value:
        """MultiplyByQuantizedMultiplier of 32-bit numbers."""
        return divide_by_pot(e, high_mul(e, e.b.shl(x, self.left), self.m), self.right)


def scale_words(multiplier: Array | int, shift: Array | int) -> list[int]:
    return [int(multiplier), max(int(shift), 0), max(-int(shift), 0)]


def high_mul(e: Emitter, x: Value, m: Value) -> Value:
    """x * m / 2**31 to the nearest, ties up. Not for two times the smallest number.

    Products of even and odd lanes apart: 64-bit lanes hold a pair.
    """
    pairs = vector(I64, x.type.count // 2)
    half, nudge = e.const(pairs, 32), e.const(pairs, 1 << 30)
    a, b = e.b.bitcast(x, pairs), e.b.bitcast(m, pairs)

    def product(p: Value, q: Value) -> Value:
        return e.b.add(e.b.mul(p, q), nudge)

    even = product(*(e.b.ashr(e.b.shl(v, half), half) for v in (a, b)))
    odd = product(*(e.b.ashr(v, half) for v in (a, b)))
    even = e.b.bitcast(e.b.lshr(even, e.const(pairs, 31)), x.type)
    odd = e.b.bitcast(e.b.shl(odd, e.const(pairs, 1)), x.type)
    low = e.const(like(x.type, I1), [i % 2 == 0 for i in range(x.type.count)])
    return e.b.select(low, even, odd)


def divide_by_pot(e: Emitter, x: Value, exponent: Value | int) -> Value:
    """x / 2**exponent, ties away from zero; nothing overflows on the way."""
    t = x.type
    one = e.const(t, 1)
    by = e.const(t, exponent) if isinstance(exponent, int) else exponent
    mask = e.b.sub(e.b.shl(one, by), one)
    negative = e.b.lshr(x, e.const(t, t.element.width - 1))
    limit = e.b.add(e.b.lshr(mask, one), negative)
    up = e.b.icmp_signed(">", e.b.and_(x, mask), limit)
    return e.b.add(e.b.ashr(x, by), e.b.zext(up, t))


def clamp(e: Emitter, x: Value, low: int, high: int) -> Value:
    return e.smin(e.smax(x, e.const(x.type, low)), e.const(x.type, high))


def clamp16(e: Emitter, x: Value) -> Value:
    return clamp(e, x, -MOST16 - 1, MOST16)


def narrow16(e: Emitter, x: Value) -> Value:
    return e.b.trunc(clamp16(e, x), like(x.type, I16))


def widen(e: Emitter, x: Value) -> Value:
    return e.b.sext(x, like(x.type, I32))


# -- 16 bits ------------------------------------------------------------------------------------


def high_mul16(e: Emitter, x: Value, y: Value) -> Value:
    return isa_of(e.target).high_mul16(e, x, y)


def add_saturated(e: Emitter, x: Value, y: Value) -> Value:
    return e.call(f"llvm.sadd.sat.v{x.type.count}i16", x.type, x, y)


def _short(value: int) -> int:
    """A constant of the 32-bit functions in 16 bits."""
    return int(divided(np.asarray(value), 16))


def _exp_negative(e: Emitter, x: Value, integer_bits: int) -> Value:
    """exp of x <= 0 with this many integer bits; the result has none."""
    t, b = x.type, e.b
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    reduced = b.sub(b.and_(x, e.const(t, quarter - 1)), e.const(t, quarter))
    result = _exp_quarter(e, b.shl(reduced, e.const(t, integer_bits)))
    rest = b.sub(reduced, x)
    for place, power in enumerate(EXP_POWERS, -2):
        if integer_bits > place:
            bit = b.and_(rest, e.const(t, 1 << (fraction + place)))
            smaller = high_mul16(e, result, e.const(t, _short(power)))
            result = b.select(b.icmp_signed("!=", bit, e.const(t, 0)), smaller, result)
    if integer_bits > 5:
        end = e.const(t, _short(-(1 << (36 - integer_bits))))
        result = b.select(b.icmp_signed("<", x, end), e.const(t, 0), result)
    return b.select(b.icmp_signed("==", x, e.const(t, 0)), e.const(t, MOST16), result)


def _exp_quarter(e: Emitter, x: Value) -> Value:
    """exp on [-1/4, 0): a Taylor expansion around -1/8."""
    t, b = x.type, e.b
    base, third = (e.const(t, _short(v)) for v in (1895147668, 715827883))
    x = b.add(x, e.const(t, 1 << 12))
    x2 = high_mul16(e, x, x)
    x3, x4 = high_mul16(e, x2, x), high_mul16(e, x2, x2)
    tail = b.add(high_mul16(e, b.add(divide_by_pot(e, x4, 2), x3), third), x2)
    tail = divide_by_pot(e, tail, 1)
    return add_saturated(e, base, high_mul16(e, b.add(x, tail), base))


def _reciprocal(e: Emitter, x: Value) -> Value:
    """2 / (1 + x) for x in [0, 1), with two integer bits: three Newton-Raphson steps."""
    t, b = x.type, e.b
    half = b.add(b.lshr(x, e.const(t, 1)), e.const(t, 1 << 14))
    y = high_mul16(e, half, e.const(t, _short(-1010580540)))
    y = b.add(y, e.const(t, _short(1515870810)))
    for _ in range(3):
        error = b.sub(e.const(t, 1 << 13), high_mul16(e, half, y))
        y = b.add(y, b.shl(high_mul16(e, y, error), e.const(t, 2)))
    return y


def _minus_size(e: Emitter, x: Value) -> Value:
    """-|x|, which the smallest number has, too."""
    return e.smin(x, e.b.sub(e.const(x.type, 0), x))


def logistic(e: Emitter, x: Value, integer_bits: int) -> Value:
    """The 16-bit logistic: the result has no integer bits."""
    t, b = x.type, e.b
    y = _reciprocal(e, _exp_negative(e, _minus_size(e, x), integer_bits))
    positive = add_saturated(e, y, y)
    zero = e.const(t, 0)
    found = b.select(b.icmp_signed(">", x, zero), positive, b.sub(e.const(t, MOST16), positive))
    return b.select(b.icmp_signed("==", x, zero), e.const(t, 1 << 14), found)


def tanh(e: Emitter, x: Value, integer_bits: int) -> Value:
    """The 16-bit tanh: the result has no integer bits."""
    t, b = x.type, e.b
    y = _reciprocal(e, _exp_negative(e, _minus_size(e, x), integer_bits + 1))
    size = b.sub(y, e.const(t, 1 << 13))
    for _ in range(2):
        size = add_saturated(e, size, size)
    zero = e.const(t, 0)
    found = b.select(b.icmp_signed("<", x, zero), b.sub(zero, size), size)
    return b.select(b.icmp_signed("==", x, zero), zero, found)


# -- scalars ------------------------------------------------------------------------------------


def inverse_sqrt(e: Emitter, x: Value) -> tuple[Value, Value]:
    """1 / sqrt(x) of a positive 32-bit number in an i64: multiplier and right shift."""
    b = e.b
    zeros = _leading_zeros(e, x)
    down = e.smax(b.ashr(b.sub(I64(4), zeros), I64(1)), I64(0))  # pairs of bits
    x = b.ashr(x, b.shl(down, I64(1)))
    up = b.sub(b.ashr(b.sub(_leading_zeros(e, x), I64(1)), I64(1)), I64(1))
    right = b.sub(b.add(down, I64(11)), up)
    value = b.ashr(b.shl(x, b.shl(up, I64(1))), I64(1))  # three integer bits from here on
    half = b.ashr(b.add(value, I64(1)), I64(1))
    root = I64(1 << 28)
    for _ in range(5):
        square = _high_mul_one(e, root, root)
        cube = _shift_left_one(e, _high_mul_one(e, square, root), 6)
        three_halves = _high_mul_one(e, root, I64(3 << 27))
        root = _shift_left_one(e, b.sub(three_halves, _high_mul_one(e, half, cube)), 3)
    root = _high_mul_one(e, root, I64(1518500250))
    root = b.shl(root, e.smax(b.sub(I64(0), right), I64(0)))
    one = b.icmp_signed("<=", x, I64(1))
    return b.select(one, I64(2**31 - 1), root), b.select(one, I64(0), e.smax(right, I64(0)))


def reciprocal(e: Emitter, x: Value) -> tuple[Value, Value]:
    """1 / x of a positive 32-bit number in an i64: with no integer bits, and x's leading zeros."""
    zeros = _leading_zeros(e, x)
    return _reciprocal_twice(e, e.b.ashr(e.b.shl(x, zeros), I64(1))), zeros


def _reciprocal_twice(e: Emitter, half: Value) -> Value:
    """1 / (2 * half) of [1/2, 1), without integer bits in or out: three Newton-Raphson steps."""
    b = e.b
    y = b.add(_high_mul_one(e, half, I64(-1010580540)), I64(1515870810))
    for _ in range(3):
        error = b.sub(I64(1 << 29), _high_mul_one(e, half, y))
        y = b.add(y, _shift_left_one(e, _high_mul_one(e, y, error), 2))
    return _shift_left_one(e, y, 1)


def log(e: Emitter, x: Value, input_bits: int, output_bits: int) -> Value:
    """The logarithm of a positive 32-bit number in an i64, as lut.log_fixed has it."""
    b, accumulator = e.b, output_bits + 1
    quarter, whole = 1 << (29 - accumulator), I64(31 - accumulator)
    zeros = _leading_zeros(e, x)
    first = _high_mul_one(e, b.shl(x, b.sub(zeros, I64(1))), I64(SQRT_HALF))
    room = b.sub(_leading_zeros(e, _high_mul_one(e, x, I64(SQRT_HALF))), I64(1))
    r = e.smin(_shift_left_one(e, first, 1), b.shl(x, room))
    powers = [
        b.add(b.shl(b.sub(I64(input_bits), by), whole), I64(more))
        for by, more in ((zeros, quarter), (room, -quarter))
    ]
    ratio = _log_ratio(e, r, accumulator)
    power = _high_mul_one(e, e.smax(*powers), I64(1488522236))
    return _shift_left_one(e, _wrap(e, b.add(power, ratio)), 1)


SQRT_HALF, ROOT4_HALF = 1518500250, 1805811301  # 2**-1/2 and 2**-1/4


def _log_ratio(e: Emitter, r: Value, accumulator: int) -> Value:
    """The logarithm of r / ROOT4_HALF by a quotient of polynomials."""
    b = e.b
    p = b.ashr(b.add(r, I64(ROOT4_HALF + 1)), I64(1))
    q = _wrap(e, b.shl(b.sub(r, I64(ROOT4_HALF)), I64(1)))
    q2 = _high_mul_one(e, q, q)
    cubic = _high_mul_one(e, _high_mul_one(e, q, q2), I64(117049297))
    numerator = _wrap(e, b.add(_high_mul_one(e, q, r), cubic))
    bracket = b.add(b.add(I64(1057819769), q), _high_mul_one(e, q2, I64(127690142)))
    denominator = b.add(_high_mul_one(e, p, _wrap(e, bracket)), _high_mul_one(e, q, I64(638450708)))
    half = b.ashr(b.add(_wrap(e, denominator), I64(1 << 31)), I64(1))
    return _high_mul_one(e, divide_one(e, numerator, accumulator), _reciprocal_twice(e, half))


def multiply_one(e: Emitter, x: Value, m: Value, left: Value, right: Value) -> Value:
    """MultiplyByQuantizedMultiplier of a 32-bit number in an i64; scale_words has the others."""
    return divide_one(e, _high_mul_one(e, _wrap(e, e.b.shl(x, left)), m), right)


def divide_one(e: Emitter, x: Value, exponent: Value | int) -> Value:
    """divide_by_pot of one number in an i64."""
    by = I64(exponent) if isinstance(exponent, int) else exponent
    half = e.b.lshr(e.b.shl(I64(1), by), I64(1))
    # A negative tie would round up: take one off, unless there is nothing to divide.
    less = e.b.and_(e.b.ashr(x, I64(63)), e.b.sub(I64(0), e.smin(by, I64(1))))
    return e.b.ashr(e.b.add(e.b.add(x, half), less), by)


def _wrap(e: Emitter, x: Value) -> Value:
    return e.b.sext(e.b.trunc(x, I32), I64)


def _leading_zeros(e: Emitter, x: Value) -> Value:
    """The leading zeros of a 32-bit number in an i64."""
    return e.b.sub(e.call("llvm.ctlz.i64", I64, x, I1(0)), I64(32))


def _high_mul_one(e: Emitter, x: Value, y: Value) -> Value:
    product = e.b.ashr(e.b.add(e.b.mul(x, y), I64(1 << 30)), I64(31))
    return e.smin(product, I64(2**31 - 1))


def _shift_left_one(e: Emitter, x: Value, by: int) -> Value:
    return e.smin(e.smax(e.b.shl(x, I64(by)), I64(-(2**31))), I64(2**31 - 1))
