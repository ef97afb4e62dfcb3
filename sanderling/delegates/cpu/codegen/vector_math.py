"""Mathematical functions of float32 vectors, as polynomials: nothing outside the module is called.

Coefficients are minimax fits (Lawson's reweighted least squares, error in units of 2**-24 beside
each); in float32 a function is right to a few units in the last place. Infinities and NaN come out
as C's functions have them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..isa.base import isa_of
from ..isa.targets import Target
from .emit import (
    F32,
    F64,
    I32,
    I64,
    Emitter,
    Value,
    element_type,
    like,
    suffix,
)

# (e**r - 1) / r for |r| <= ln(2) / 2: 1.6
EXP = (1.0, 0.4999912977218628, 0.16666357219219208, 0.041899967938661575, 0.008379485458135605)
# The same for |r| <= ln(2) / 64, beside a table of 2**(i / 32): 0.9
EXP_32 = (1.0000146901637366, 0.5000045207530184)
POWERS_32 = tuple(2 ** (i / 32) for i in range(32))
# (log(1 + f) - f + f**2 / 2) / f**3 for sqrt(1/2) <= 1 + f <= sqrt(2): 0.02; and to 3/2: 0.7
LOG = (0.3333331346511841, -0.25000008940696716, 0.2000211924314499, -0.1666799634695053,
       0.14219550788402557, -0.12405591458082199, 0.11888174712657928, -0.11675640940666199,
       0.06746601313352585)  # fmt: skip
LOG_SHORT = (0.33333471417427063, -0.24996361136436462, 0.19982320070266724, -0.16788822412490845,
             0.14904437959194183, -0.12114088982343674, 0.05559667944908142)  # fmt: skip
# tanh(x) / x = P(x**2) / Q(x**2) up to where it is 1 in float32: 0.4
TANH_P = (
    0.9999999790410538,
    0.13379715601777728,
    0.0034940317996432755,
    2.0583437526644827e-05,
    1.3319015373888085e-08,
)
TANH_Q = (
    1.0,
    0.46713030848544607,
    0.025871062634607922,
    0.00032830883901705015,
    7.761995403757541e-07,
)
TANH_END = 9.02
# erf(x) / x likewise: 0.4
ERF_P = (1.1283791457703003, 0.1905940661573994, 0.05276934195806853, 0.003772564053550883,
         0.0002848439716247005, 2.046026781956298e-06)  # fmt: skip
ERF_Q = (1.0, 0.5022423237129016, 0.11418285241402328, 0.014983225836327062,
         0.0011638613758671195, 3.804779097418256e-05)  # fmt: skip
ERF_END = 3.925
# (the normal distribution - 1/2) / x likewise; at the end it is a little above 1/2, and is cut.
PHI_P = (0.3989422619342804, 0.0334443636238575, 0.004651031922549009, 0.00016446490189991891,
         6.305423994490411e-06, 2.298075685303047e-08)  # fmt: skip
PHI_Q = (1.0, 0.2504989802837372, 0.028408927842974663, 0.0018600878538563848,
         7.215276127681136e-05, 1.200673182211176e-06)  # fmt: skip
PHI_END = 5.5

LN2_HIGH, LN2_LOW = 0.693145751953125, 1.4286068203094172e-06  # the first has 14 bits
ROUNDING = 1.5 * 2**23  # x + ROUNDING has the rounded x in its low bits, for |x| < 2**22
ROUNDING64 = 1.5 * 2**52


# -- pieces -----------------------------------------------------------------------------------


def has_round(target: Target) -> bool:
    """Instructions that round to whole numbers; SSE2 has none, and LLVM would call libm."""
    return target.fma


def _has_parts(e: Emitter, x: Value) -> bool:
    return isa_of(e.target).has_float_parts(x.type)


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


def bounded(e: Emitter, x: Value, end: float) -> Value:
    """Between -end and end. NaN passes."""
    return e.fmin(e.const(x.type, end), e.fmax(e.const(x.type, -end), x))


def cut(e: Emitter, x: Value, end: float) -> Value:
    """The same, but of NaN comes any such number."""
    return isa_of(e.target).cut(e, x, end) if _has_parts(e, x) else bounded(e, x, end)


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
    near = e.fmin(e.const(x.type, 89.0), e.fmax(e.const(x.type, -104.0), x))
    n, r = _whole_and_rest(e, near)
    value = e.fma(r, polynomial(e, r, EXP), e.const(x.type, 1.0))
    return _scaled(e, value, n)


def exp_normal(e: Emitter, x: Value, sign: int = 1) -> Value:
    """e**(sign * x) for x between -87 and 87, so that the result is a normal number. NaN passes.
    Right to four units at the ends."""
    if _has_parts(e, x):
        return _exp_by_table(e, x, sign)
    t, whole = x.type, like(x.type, I32)
    shifted = e.fma(x, e.const(t, sign / math.log(2)), e.const(t, ROUNDING))
    n = e.b.fsub(shifted, e.const(t, ROUNDING))
    r = e.fma(n, e.const(t, -sign * math.log(2)), x)
    if not e.target.fma:
        high = e.fma(n, e.const(t, -sign * LN2_HIGH), x)
        r = e.fma(n, e.const(t, -sign * LN2_LOW), high)
    # A sign is part of the coefficients: LLVM turns the negation of a bounded x into more.
    signed = [c * sign ** (i + 1) for i, c in enumerate(EXP)]
    value = e.fma(r, polynomial(e, r, signed), e.const(t, 1.0))
    power = e.b.shl(e.b.bitcast(shifted, whole), e.const(whole, 23))  # the other bits fall out
    return e.b.bitcast(e.b.add(e.b.bitcast(value, whole), power), t)


def _exp_by_table(e: Emitter, x: Value, sign: int) -> Value:
    """By 2**(i / 32) from registers, which leaves little to a polynomial, and 2**floor."""
    t, rounding = x.type, ROUNDING / 32
    shifted = e.fma(x, e.const(t, sign / math.log(2)), e.const(t, rounding))
    n = e.b.fsub(shifted, e.const(t, rounding))
    low, high = e.const(t, POWERS_32[:16]), e.const(t, POWERS_32[16:])
    index = e.b.bitcast(shifted, like(t, I32))
    power = isa_of(e.target).permute_two(e, low, index, high)
    r = e.fma(n, e.const(t, -sign * math.log(2)), x)
    rest = e.fma(r, e.const(t, EXP_32[1]), e.const(t, sign * EXP_32[0]))
    return _scaled(e, e.fma(rest, e.b.fmul(power, r), power), n)


def expm1(e: Emitter, x: Value) -> Value:
    """e**x - 1 for x up to 0, without cancellation."""
    n, r = _whole_and_rest(e, e.fmax(e.const(x.type, -87.0), x))
    one = e.const(x.type, 1.0)
    rest = e.b.fmul(r, polynomial(e, r, EXP))
    power = _scaled(e, one, n)
    return e.fma(power, rest, e.b.fsub(power, one))


def _whole_and_rest(e: Emitter, x: Value) -> tuple[Value, Value]:
    """n and r of x = n * ln(2) + r."""
    t, rounding = x.type, e.const(x.type, ROUNDING)
    n = e.b.fsub(e.fma(x, e.const(t, 1 / math.log(2)), rounding), rounding)
    return n, e.fma(n, e.const(t, -LN2_LOW), e.fma(n, e.const(t, -LN2_HIGH), x))


def _scaled(e: Emitter, x: Value, n: Value) -> Value:
    """x * 2**n. In two steps: 2**n itself may be too small or too large for a float."""
    if _has_parts(e, x):
        return isa_of(e.target).scale_by_power(e, x, n)
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
    if _has_parts(e, x):
        mantissa, n = _parts(e, x)
        return _log_sum(e, mantissa, n, LOG_SHORT)
    tiny = e.b.fcmp_ordered("<", x, e.const(t, 2.0**-126))
    scaled = e.b.select(tiny, e.b.fmul(x, e.const(t, 2.0**23)), x)
    bias = e.b.select(tiny, e.const(t, -23.0), e.const(t, 0.0))
    mantissa, exponent = _split(e, scaled)
    n = e.b.fadd(exponent, bias)
    return _log_edges(e, x, _log_sum(e, mantissa, n, LOG))


def _log_sum(e: Emitter, mantissa: Value, n: Value, coefficients: Sequence[float]) -> Value:
    t = mantissa.type
    f = e.b.fsub(mantissa, e.const(t, 1.0))
    square = e.b.fmul(f, f)
    tail = e.b.fmul(e.b.fmul(square, f), polynomial(e, f, coefficients))
    tail = e.fma(n, e.const(t, LN2_LOW), tail)
    tail = e.fma(square, e.const(t, -0.5), tail)
    return e.fma(n, e.const(t, LN2_HIGH), e.b.fadd(f, tail))


def _parts(e: Emitter, x: Value) -> tuple[Value, Value]:
    """A mantissa in [3/4, 3/2) and an exponent by instructions: of 0 and infinity the exponent is
    infinite, of negative numbers the mantissa is NaN."""
    isa, one = isa_of(e.target), e.const(x.type, 1.0)
    mantissa, exponent = isa.mantissa(e, x), isa.exponent(e, x)
    halved = e.b.fcmp_ordered("<", mantissa, one)
    return mantissa, e.b.select(halved, e.b.fadd(exponent, one), exponent)


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


def exp_wide(e: Emitter, x: Value) -> Value:
    """The exponential of doubles, to about 14 digits, within the range of floats."""
    return _exp2_wide(e, e.b.fmul(x, e.const(x.type, 1 / math.log(2))))


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
    near = bounded(e, x, end)
    value = _ratio(e, near, top, bottom)
    return value if most is None else bounded(e, value, most)


def _ratio(e: Emitter, x: Value, top: Sequence[float], bottom: Sequence[float]) -> Value:
    square = e.b.fmul(x, x)
    return e.b.fdiv(e.b.fmul(x, polynomial(e, square, top)), polynomial(e, square, bottom))


def gauss_share(e: Emitter, x: Value) -> Value:
    """x * (1 + erf(x / sqrt(2))) / 2. Exactly 0 or x from PHI_END on."""
    phi = cut(e, _ratio(e, cut(e, x, PHI_END), PHI_P, PHI_Q), 0.5)
    return e.b.fmul(x, e.b.fadd(phi, e.const(x.type, 0.5)))


def sigmoid(e: Emitter, x: Value, sign: int) -> Value:
    """1 / (1 + e**(sign * x))."""
    one = e.const(x.type, 1.0)
    return e.b.fdiv(one, e.b.fadd(exp_normal(e, bounded(e, x, 87.0), sign), one))


def sigmoid_share(e: Emitter, y: Value, x: Value, sign: int, both: bool) -> Value:
    """y / (1 + e**(sign * x)); both: y is NaN where x is."""
    near = cut(e, x, 87.0) if both else bounded(e, x, 87.0)
    return e.b.fdiv(y, e.b.fadd(exp_normal(e, near, sign), e.const(x.type, 1.0)))


def sqrt(e: Emitter, x: Value) -> Value:
    isa = isa_of(e.target)
    if not isa.has_float_parts(x.type):
        return e.call(f"llvm.sqrt.{suffix(x.type)}", x.type, x)
    y = isa.rough_rsqrt(e, x)
    root, half = e.b.fmul(x, y), e.b.fmul(y, e.const(x.type, 0.5))
    rest = e.fma(e.b.fneg(root), root, x)
    return e.b.select(isa.is_zero_or_infinite(e, x), x, e.fma(rest, half, root))


def rsqrt(e: Emitter, x: Value) -> Value:
    """One step of Newton's, which fails at zeros and infinity."""
    isa = isa_of(e.target)
    if not isa.has_float_parts(x.type):
        return e.b.fdiv(e.const(x.type, 1.0), sqrt(e, x))
    y = isa.rough_rsqrt(e, x)
    root, half = e.b.fmul(x, y), e.b.fmul(y, e.const(x.type, 0.5))
    rest = e.fma(e.b.fneg(root), y, e.const(x.type, 1.0))
    return e.b.select(isa.is_zero_or_infinite(e, x), y, e.fma(rest, half, y))
