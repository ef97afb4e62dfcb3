"""Mathematical functions of float32 vectors, as polynomials: nothing outside the module is called.

Coefficients are minimax fits (Lawson's reweighted least squares, error in units of 2**-24 beside
each); in float32 a function is right to a few units in the last place. Infinities and NaN come out
as C's functions have them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .emit import (
    F32,
    F64,
    I16,
    I32,
    I64,
    Emitter,
    Type,
    Value,
    element_type,
    is_vector,
    suffix,
    vector,
)
from .targets import Target

# (e**r - 1) / r for |r| <= ln(2) / 2: 1.6
EXP = (1.0, 0.4999912977218628, 0.16666357219219208, 0.041899967938661575, 0.008379485458135605)
# (log(1 + f) - f + f**2 / 2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2): 0.02
LOG = (0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
       0.14219550788402557, -0.12405591458082199, 0.11888174712657928, -0.11675640940666199,
       0.06746601313352585)  # fmt: skip
# (sin(x) - x) / x**3 and (cos(x) - 1 + x**2 / 2) / x**4 in x**2, for |x| <= pi / 4: below 0.01
SIN = (-0.1666666716337204, 0.008333329111337662, -0.0001983933470910415, 2.7183041311218403e-06)
COS = (0.04166664555668831, -0.0013887366512790322, 2.4438377295155078e-05)
# tanh(x) / x = P(x**2) / Q(x**2) up to where it is 1 in float32: 0.4
TANH_P = (0.9999999790410538, 0.13379715601777728, 0.0034940317996432755, 2.0583437526644827e-05,
          1.3319015373888085e-08)  # fmt: skip
TANH_Q = (1.0, 0.46713030848544607, 0.025871062634607922, 0.00032830883901705015,
          7.761995403757541e-07)  # fmt: skip
TANH_END = 9.02
# erf(x) / x likewise: 0.4
ERF_P = (1.1283791457703003, 0.1905940661573994, 0.05276934195806853, 0.003772564053550883,
         0.0002848439716247005, 2.046026781956298e-06)  # fmt: skip
ERF_Q = (1.0, 0.5022423237129016, 0.11418285241402328, 0.014983225836327062,
         0.0011638613758671195, 3.804779097418256e-05)  # fmt: skip
ERF_END = 3.925

LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094172e-06  # the first has 14 bits
ROUNDING = 1.5 * 2**23  # x + ROUNDING has the rounded x in its low bits, for |x| < 2**22
ROUNDING64 = 1.5 * 2**52


# -- pieces -----------------------------------------------------------------------------------


def has_round(target: Target) -> bool:
    """Instructions that round to whole numbers; SSE2 has none, and LLVM would call libm."""
    return target.fma


def is_zmm(e: Emitter, x: Value) -> bool:
    """One whole AVX512 vector of floats."""
    return e.target.width == 64 and is_vector(x.type) and x.type == vector(F32, 16)


def like(t: Type, element: Type) -> Type:
    """The type with as many lanes."""
    return vector(element, t.count) if is_vector(t) else element


def polynomial(e: Emitter, x: Value, coefficients: Sequence[float]) -> Value:
    """By Horner's rule, the constant first."""
    total = e.const(x.type, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = e.fma(total, x, e.const(x.type, c))
    return total


def absolute(e: Emitter, x: Value) -> Value:
    bits = _bits(e, x)
    return e.b.bitcast(e.b.and_(bits, e.const(bits.type, _sign_bit(x) - 1)), x.type)


def copy_sign(e: Emitter, x: Value, sign: Value) -> Value:
    mask = e.const(_bits(e, x).type, _sign_bit(x))
    bits = e.b.or_(_bits(e, absolute(e, x)), e.b.and_(_bits(e, sign), mask))
    return e.b.bitcast(bits, x.type)


def _bits(e: Emitter, x: Value) -> Value:
    return e.b.bitcast(x, like(x.type, I64 if element_type(x.type) == F64 else I32))


def _sign_bit(x: Value) -> int:
    return 1 << (63 if element_type(x.type) == F64 else 31)


def is_nan(e: Emitter, x: Value) -> Value:
    return e.b.fcmp_unordered("uno", x, x)


def quotient(e: Emitter, a: Value | None, b: Value) -> Value:
    """a / b (or 1 / b) to two units, for b neither tiny nor huge: AVX512 has a fast reciprocal."""
    one = e.const(b.type, 1.0)
    if not is_zmm(e, b):
        return e.b.fdiv(one if a is None else a, b)
    name = "llvm.x86.avx512.rcp14.ps.512"
    inverse = e.call(name, b.type, b, e.const(b.type, 0), _all_lanes(e))
    q = inverse if a is None else e.b.fmul(a, inverse)
    rest = e.fma(e.b.fneg(q), b, one if a is None else a)
    return e.fma(inverse, rest, q)


def _all_lanes(e: Emitter) -> Value:
    return e.const(I16, -1)


# -- whole numbers ------------------------------------------------------------------------------


def round_even(e: Emitter, x: Value) -> Value:
    if has_round(e.target):
        return e.round_even(x)
    # Adding a number whose unit is 1 rounds; beyond its range everything is whole already.
    shift = e.const(x.type, 2.0**23 if element_type(x.type) == F32 else 2.0**52)
    size = absolute(e, x)
    rounded = copy_sign(e, e.b.fsub(e.b.fadd(size, shift), shift), x)
    return e.b.select(e.b.fcmp_ordered("<", size, shift), rounded, x)


def floor(e: Emitter, x: Value) -> Value:
    return _whole(e, x, "floor", ">", -1.0)


def ceil(e: Emitter, x: Value) -> Value:
    return _whole(e, x, "ceil", "<", 1.0)


def _whole(e: Emitter, x: Value, name: str, beyond: str, step: float) -> Value:
    if has_round(e.target):
        return e.call(f"llvm.{name}.{suffix(x.type)}", x.type, x)
    near = round_even(e, x)
    moved = copy_sign(e, e.b.fadd(near, e.const(x.type, step)), x)
    return e.b.select(e.b.fcmp_ordered(beyond, near, x), moved, near)


def trunc(e: Emitter, x: Value) -> Value:
    return copy_sign(e, floor(e, absolute(e, x)), x)


# -- exponential, logarithm, power --------------------------------------------------------------


def exp(e: Emitter, x: Value) -> Value:
    # Beyond these the result is 0 or infinity; NaN passes both.
    bounded = e.fmin(e.const(x.type, 89.0), e.fmax(e.const(x.type, -104.0), x))
    value, shifted = _exp_parts(e, bounded)
    n = e.b.fsub(shifted, e.const(x.type, ROUNDING))
    return _scalef(e, value, n) if is_zmm(e, x) else _scale_twice(e, value, n)


def exp_normal(e: Emitter, x: Value) -> Value:
    """For x between -87 and 88, so that the result is a normal number. NaN passes. Right to four
    units at the ends."""
    value, shifted = _exp_parts(e, x, rough=True)
    if is_zmm(e, x):
        return _scalef(e, value, e.b.fsub(shifted, e.const(x.type, ROUNDING)))
    t = like(x.type, I32)
    n = e.b.shl(e.b.bitcast(shifted, t), e.const(t, 23))  # the other bits fall out
    return e.b.bitcast(e.b.add(e.b.bitcast(value, t), n), x.type)


def _exp_parts(e: Emitter, x: Value, rough: bool = False) -> tuple[Value, Value]:
    """e**x is the first * 2**n; the second is n + ROUNDING. rough: ln(2) is a float."""
    t = x.type
    shifted = e.fma(x, e.const(t, 1 / math.log(2)), e.const(t, ROUNDING))
    n = e.b.fsub(shifted, e.const(t, ROUNDING))
    if rough and e.target.fma:
        r = e.fma(n, e.const(t, -math.log(2)), x)
    else:
        r = e.fma(n, e.const(t, -LN2_LOW), e.fma(n, e.const(t, -LN2_HIGH), x))
    return e.fma(r, polynomial(e, r, EXP), e.const(t, 1.0)), shifted


def _scalef(e: Emitter, x: Value, n: Value) -> Value:
    """x * 2**n, whatever n."""
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    return e.call(name, x.type, x, n, x, _all_lanes(e), I32(4))


def _scale_twice(e: Emitter, x: Value, n: Value) -> Value:
    """In two steps: 2**n itself may be too small or too large for a float."""
    t = like(x.type, I32)
    whole = e.b.fptosi(_where_number(e, n), t)
    half = e.b.ashr(whole, e.const(t, 1))
    for part in (half, e.b.sub(whole, half)):
        bits = e.b.shl(e.b.add(part, e.const(t, 127)), e.const(t, 23))
        x = e.b.fmul(x, e.b.bitcast(bits, x.type))
    return x


def _where_number(e: Emitter, x: Value) -> Value:
    """NaN becomes 0, so that a conversion is defined."""
    return e.b.select(is_nan(e, x), e.const(x.type, 0), x)


def log(e: Emitter, x: Value) -> Value:
    t = x.type
    tiny = e.b.fcmp_ordered("<", x, e.const(t, 2.0**-126))
    scaled = e.b.select(tiny, e.b.fmul(x, e.const(t, 2.0**23)), x)
    bias = e.b.select(tiny, e.const(t, -23.0), e.const(t, 0.0))
    mantissa, exponent = _split(e, scaled)
    n = e.b.fadd(exponent, bias)
    f = e.b.fsub(mantissa, e.const(t, 1.0))
    square = e.b.fmul(f, f)
    tail = e.b.fmul(e.b.fmul(square, f), polynomial(e, f, LOG))
    tail = e.fma(n, e.const(t, LN2_LOW), tail)
    tail = e.fma(square, e.const(t, -0.5), tail)
    value = e.fma(n, e.const(t, LN2_HIGH), e.b.fadd(f, tail))
    return _log_edges(e, x, value)


def _split(e: Emitter, x: Value) -> tuple[Value, Value]:
    """A positive normal number as a mantissa in [sqrt(1/2), sqrt(2)) and an exponent."""
    t = like(x.type, I32)
    bits = e.b.bitcast(x, t)
    # Counted from sqrt(1/2), the exponent field steps where the mantissa should wrap.
    moved = e.b.sub(bits, e.const(t, int(np.float32(math.sqrt(0.5)).view(np.int32))))
    power = e.b.ashr(moved, e.const(t, 23))
    mantissa = e.b.sub(bits, e.b.shl(power, e.const(t, 23)))
    return e.b.bitcast(mantissa, x.type), e.b.sitofp(power, x.type)


def _log_edges(e: Emitter, x: Value, value: Value) -> Value:
    t = x.type
    infinite = e.b.fcmp_unordered(">=", x, e.const(t, np.inf))  # NaN stays what it is, too
    value = e.b.select(infinite, x, value)
    value = e.b.select(e.b.fcmp_ordered("==", x, e.const(t, 0)), e.const(t, -np.inf), value)
    return e.b.select(e.b.fcmp_ordered("<", x, e.const(t, 0)), e.const(t, np.nan), value)


def power(e: Emitter, x: Value, y: Value) -> Value:
    """Through doubles, as an error of the logarithm is multiplied by y."""
    t, wide = x.type, like(x.type, F64)
    size = absolute(e, x)
    product = e.b.fmul(e.b.fpext(y, wide), _log2_wide(e, e.b.fpext(size, wide)))
    value = e.b.fptrunc(_exp2_wide(e, product), t)
    one, zero = e.const(t, 1.0), e.const(t, 0.0)
    whole = e.b.fcmp_ordered("==", floor(e, y), y)
    half = e.b.fmul(y, e.const(t, 0.5))
    odd = e.b.and_(whole, e.b.fcmp_ordered("!=", floor(e, half), half))
    negative = e.b.icmp_signed("<", _bits(e, x), e.const(_bits(e, x).type, 0))
    value = e.b.select(e.b.and_(odd, negative), e.b.fneg(value), value)
    rootless = e.b.and_(e.b.fcmp_ordered("<", x, zero), e.b.not_(whole))
    finite = e.b.fcmp_ordered("<", size, e.const(t, np.inf))
    value = e.b.select(e.b.and_(rootless, finite), e.const(t, np.nan), value)
    value = e.b.select(e.b.or_(is_nan(e, x), is_nan(e, y)), e.const(t, np.nan), value)
    bounded = e.b.fcmp_ordered("==", size, one)
    endless = e.b.fcmp_ordered("==", absolute(e, y), e.const(t, np.inf))
    unit = e.b.or_(e.b.fcmp_ordered("==", x, one), e.b.and_(bounded, endless))
    unit = e.b.or_(unit, e.b.fcmp_ordered("==", y, zero))
    return e.b.select(unit, one, value)


def _log2_wide(e: Emitter, x: Value) -> Value:
    """log2 of non-negative doubles that are floats: 2 * atanh((m - 1) / (m + 1)) and the exponent.
    Zero gives -infinity."""
    t, bits_t = x.type, like(x.type, I64)
    bits = e.b.bitcast(x, bits_t)
    moved = e.b.sub(bits, e.const(bits_t, int(np.float64(math.sqrt(0.5)).view(np.int64))))
    power = e.b.ashr(moved, e.const(bits_t, 52))
    m = e.b.bitcast(e.b.sub(bits, e.b.shl(power, e.const(bits_t, 52))), t)
    one = e.const(t, 1.0)
    z = e.b.fdiv(e.b.fsub(m, one), e.b.fadd(m, one))
    series = [2 / math.log(2) / (2 * i + 1) for i in range(10)]  # z**2 <= 0.03
    exponent = e.b.sitofp(e.b.trunc(power, like(t, I32)), t)
    value = e.fma(z, polynomial(e, e.b.fmul(z, z), series), exponent)
    edge = e.const(t, np.inf)
    value = e.b.select(e.b.fcmp_ordered("==", x, e.const(t, 0)), e.b.fneg(edge), value)
    return e.b.select(e.b.fcmp_ordered("==", x, e.const(t, np.inf)), edge, value)


def _exp2_wide(e: Emitter, x: Value) -> Value:
    t, bits_t = x.type, like(x.type, I64)
    x = e.fmin(e.fmax(x, e.const(t, -300.0)), e.const(t, 300.0))
    magic = e.const(t, ROUNDING64)
    shifted = e.b.fadd(x, magic)
    r = e.b.fsub(x, e.b.fsub(shifted, magic))
    series = [math.log(2) ** i / math.factorial(i) for i in range(11)]
    value = polynomial(e, r, series)
    n = e.b.shl(e.b.bitcast(shifted, bits_t), e.const(bits_t, 52))  # the other bits fall out
    return e.b.bitcast(e.b.add(e.b.bitcast(value, bits_t), n), t)


# -- the others ---------------------------------------------------------------------------------


def tanh(e: Emitter, x: Value) -> Value:
    return _odd_rational(e, x, TANH_P, TANH_Q, TANH_END, 1.0)


def erf(e: Emitter, x: Value) -> Value:
    """Exactly +-1 from ERF_END on: GELU multiplies what is left of 1 by x."""
    near = e.b.fcmp_unordered("<", absolute(e, x), e.const(x.type, ERF_END))
    inside = _odd_rational(e, x, ERF_P, ERF_Q, ERF_END, None)
    return e.b.select(near, inside, copy_sign(e, e.const(x.type, 1.0), x))


def _odd_rational(
    e: Emitter,
    x: Value,
    top: Sequence[float],
    bottom: Sequence[float],
    end: float,
    most: float | None,
) -> Value:
    """x * P(x**2) / Q(x**2), which is +-1 from `end` on, and at most `most`. NaN passes."""
    t = x.type
    bounded = e.fmin(e.const(t, end), e.fmax(e.const(t, -end), x))
    square = e.b.fmul(bounded, bounded)
    above = e.b.fmul(bounded, polynomial(e, square, top))
    value = quotient(e, above, polynomial(e, square, bottom))
    if most is None:
        return value
    return e.fmin(e.const(t, most), e.fmax(e.const(t, -most), value))


def sigmoid(e: Emitter, x: Value, sign: int) -> Value:
    """1 / (1 + e**(sign * x))."""
    t = x.type
    bounded = e.fmin(e.const(t, 87.0), e.fmax(e.const(t, -87.0), x))
    bounded = bounded if sign > 0 else e.b.fneg(bounded)  # becomes part of the products
    return quotient(e, None, e.b.fadd(exp_normal(e, bounded), e.const(t, 1.0)))


def sin(e: Emitter, x: Value) -> Value:
    return _circular(e, x, 0)


def cos(e: Emitter, x: Value) -> Value:
    return _circular(e, x, 1)


# pi / 2 in parts of 24 bits, so that products with whole numbers are exact in double.
_HALF_PI = (1.570796251296997, 7.549789415861596e-08, 5.390302858158119e-15)


def _circular(e: Emitter, x: Value, turn: int) -> Value:
    """sin(x + turn * pi / 2). The reduction is in double: right for |x| up to about 2**29."""
    t, wide = x.type, like(x.type, F64)
    magic = e.const(wide, ROUNDING64)
    angle = e.b.fpext(x, wide)
    shifted = e.b.fadd(e.b.fmul(angle, e.const(wide, 2 / math.pi)), magic)
    n = e.b.fsub(shifted, magic)
    for part in _HALF_PI:
        angle = e.b.fsub(angle, e.b.fmul(n, e.const(wide, part)))
    quarter = e.b.trunc(e.b.bitcast(shifted, like(t, I64)), like(t, I32))
    quarter = e.b.add(quarter, e.const(quarter.type, turn))
    # Far beyond, where nothing is left of the angle, the answer is at least between -1 and 1.
    r = e.fmin(e.const(t, 1.0), e.fmax(e.const(t, -1.0), e.b.fptrunc(angle, t)))
    square = e.b.fmul(r, r)
    sine = e.fma(e.b.fmul(square, r), polynomial(e, square, SIN), r)
    cosine = e.fma(square, e.const(t, -0.5), e.const(t, 1.0))
    cosine = e.fma(e.b.fmul(square, square), polynomial(e, square, COS), cosine)
    one = e.const(quarter.type, 1)
    odd = e.b.icmp_signed("==", e.b.and_(quarter, one), one)
    value = e.b.select(odd, cosine, sine)
    sign = e.b.shl(e.b.and_(quarter, e.const(quarter.type, 2)), e.const(quarter.type, 30))
    return e.b.bitcast(e.b.xor(e.b.bitcast(value, quarter.type), sign), t)


def sqrt(e: Emitter, x: Value) -> Value:
    return e.call(f"llvm.sqrt.{suffix(x.type)}", x.type, x)


def rsqrt(e: Emitter, x: Value) -> Value:
    return e.b.fdiv(e.const(x.type, 1.0), sqrt(e, x))
