"""Tables and fixed-point functions of the quantised kernels: exp, log, reciprocal, logistic, tanh.

A fixed-point number with m integer bits in a word of 16 or 32 bits is raw / 2**(bits - 1 - m).
Raw numbers are int64 arrays here; `bits` says which word the kernel computes in, because rounding
and saturation depend on it. The functions follow gemmlowp step by step: every rounding counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..ir import Array, DType
from .fixed import divide_by_pot, high_mul, round_away, wrap32

Function = Callable[[Array], Array]

# -- 8-bit tables -------------------------------------------------------------------------------


def through_double(function: Function) -> Function:
    """A float32 function computed in float64: what a good libm returns, to the last bit.

    NumPy's own float32 functions may be off by an ulp, which can turn a table entry.
    """
    return lambda x: function(x.astype(np.float64)).astype(x.dtype)


def to_int32(x: Array) -> Array:
    """C's cast from float as x86 does it: what does not fit (and NaN) becomes the smallest."""
    fits = (x >= -(2.0**31)) & (x < 2.0**31)
    return np.where(fits, np.where(fits, x, 0).astype(np.int64), -(2**31))


def table8(
    function: Function, source: tuple[float, int], target: tuple[float, int], dtype: DType
) -> Array:
    """The function of every code of an 8-bit type; source and target are (scale, zero point).

    The table is ordered by code, smallest first.
    """
    low, high = dtype.bounds
    inverse = np.float32(1) / np.float32(target[0])
    codes = np.arange(low, high + 1)
    with np.errstate(all="ignore"):
        real = np.float32(source[0]) * (codes - source[1]).astype(np.float32)
        found = round_away(function(real) * inverse) + np.float32(target[1])
    return np.clip(found, low, high).astype(dtype.numpy)


def lookup8(x: Array, table: Array) -> Array:
    return table[x.astype(np.int64) - np.iinfo(table.dtype).min]


# -- 16-bit tables: 512 steps with interpolation ------------------------------------------------


def table16(
    function: Function,
    source: tuple[float, int],
    target: tuple[float, int],
    kind: type[np.floating[Any]] = np.float32,
) -> Array:
    """513 samples of the function over the int16 range, each biased by half its midpoint's error.

    kind is the type the kernel computes the table in.
    """
    scale, zero = kind(source[0]), source[1]
    low, high = scale * kind(-32768 - zero), scale * kind(32767 - zero)
    out_low = kind(target[0]) * kind(-32768 - target[1])
    out_high = kind(target[0]) * kind(32767 - target[1])
    step = (high - low) / kind(512)
    inverse = kind(65536) / (out_high - out_low)
    index = np.arange(513).astype(kind)
    with np.errstate(all="ignore"):
        at = function(low + index[:-1] * step) * inverse
        middle = round_away(function(low + index[:-1] * step + step / kind(2)) * inverse)
        after = function(low + index[1:] * step) * inverse
        error = round_away((after + round_away(at)) / kind(2)) - middle
        samples = round_away(at) - round_away(error / kind(2))
        last = round_away(function(np.atleast_1d(high)) * inverse)
    found: Array = np.clip(np.concatenate([samples, last]), -32768, 32767).astype(np.int64)
    return found


def lookup16(x: Array, table: Array) -> Array:
    """Nine bits choose the sample, seven interpolate. The slope is an int16 and wraps."""
    x = x.astype(np.int64)
    index = 256 + (x >> 7)
    slope = _wrap(table[index + 1] - table[index], 16)
    return _wrap(table[index] + ((slope * (x & 0x7F) + 64) >> 7), 16)


def _sigmoid_table() -> Array:
    """sigmoid(i / 24) in 16 fractional bits, raised by half the midpoint's interpolation error."""
    at = 65536 / (1 + np.exp(-np.arange(0, 256.5, 0.5) / 24))
    samples = at[:-1:2] + (at[1::2] - (at[:-1:2] + at[2::2]) / 2) / 2
    table = np.rint(samples).astype(np.int64)
    table[-1] = 65535  # TFLite's table ends a little higher than its rule
    return table


SIGMOID = _sigmoid_table()


def input_scale16(scale: float, shifts: tuple[int, ...]) -> tuple[int, int]:
    """(multiplier, left shift) that bring an int16 input to 1/4096 steps, or 3/4096 in general.

    A power of two that needs no more than the given shifts has multiplier 0, which logistic16 and
    tanh16 know.
    """
    log2 = np.log2(np.float64(scale))
    shift = 12 + int(np.rint(log2)) if np.isfinite(log2) else -1
    if np.isfinite(log2) and abs(log2 - np.rint(log2)) < 1e-3 and shift in shifts:
        return 0, shift
    multiplier, shift = scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and shift <= 30:
        multiplier, shift = multiplier * 2, shift + 1
    return int(multiplier), shift


def _scale16(x: Array, multiplier: int, shift: int) -> Array:
    if multiplier == 0:
        multiplier, shift = 3 << shift, 0
    rounding = 1 << (shift - 1) if shift > 0 else 0
    return wrap32(x.astype(np.int64) * multiplier + rounding) >> shift


def logistic16(x: Array, multiplier: int, shift: int) -> Array:
    """int16 in, int16 with 15 fractional bits out, by the sigmoid table."""
    scaled = _scale16(x, multiplier, shift)
    result = _interpolate(np.abs(scaled), 9, 0x7FFF << 10)
    result = np.where(scaled >= 0, result + (1 << 9), (1 << 25) - result + (1 << 9) - 1)
    return (result >> 10).astype(np.int16)


def tanh16(x: Array, multiplier: int, shift: int) -> Array:
    """int16 in, int16 with 15 fractional bits out, by the sigmoid table."""
    scaled = _scale16(x, multiplier, shift)
    result = _interpolate(np.abs(scaled), 8, 0xFFFF << 8)
    half = 1 << 23
    result = np.where(scaled >= 0, result - half + 128, -result + half + 127)
    return (result >> 8).astype(np.int16)


def _interpolate(x: Array, bits: int, saturated: int) -> Array:
    """The sigmoid table at x / 2**bits, with `bits` more fractional bits than the table."""
    index = np.minimum(x >> bits, 255)
    low, high = SIGMOID[index], SIGMOID[np.minimum(index + 1, 255)]
    return np.where(index >= 255, saturated, (low << bits) + (x & ((1 << bits) - 1)) * (high - low))


# -- fixed point --------------------------------------------------------------------------------


def _wrap(x: Array, bits: int) -> Array:
    """Keep the low bits as a signed number."""
    return x.astype(np.int16).astype(np.int64) if bits == 16 else wrap32(x)


def shift_left(x: Array, exponent: Array | int, bits: int = 32) -> Array:
    """gemmlowp's SaturatingRoundingMultiplyByPOT: x * 2**exponent, saturated or rounded."""
    x, exponent = np.asarray(x, np.int64), np.asarray(exponent, np.int64)
    up, down = np.maximum(exponent, 0), np.maximum(-exponent, 0)
    most = 2 ** (bits - 1) - 1
    limit = (np.int64(1) << (bits - 1 - up)) - 1
    wide = np.where(x > limit, most, np.where(x < -limit, -most - 1, x << up))
    return np.where(exponent > 0, wide, divide_by_pot(x, down))


def _half_sum(a: Array, b: int) -> Array:
    """gemmlowp's RoundingHalfSum: (a + b) / 2, ties away from zero."""
    return divide_by_pot(a + b, 1)


def _constant(value: int, bits: int) -> int:
    """Constants are written for 32 bits and rounded to the word."""
    return int(divide_by_pot(np.asarray(value), 32 - bits))


# exp(-2**k) with 31 fractional bits, k = -2 .. 4
EXP_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)


def exp_negative(x: Array, integer_bits: int, bits: int = 32) -> Array:
    """exp of a number <= 0 with this many integer bits; the result has none."""
    x = np.asarray(x, np.int64)
    fraction = bits - 1 - integer_bits
    quarter = 1 << (fraction - 2)
    reduced = (x & (quarter - 1)) - quarter
    result = _exp_quarter(shift_left(reduced, integer_bits, bits), bits)
    rest = reduced - x
    for k, power in enumerate(EXP_POWERS, -2):
        if integer_bits > k:
            factor = _constant(power, bits)
            result = np.where(rest >> (fraction + k) & 1, high_mul(result, factor, bits), result)
    if integer_bits > 5:
        result = np.where(x < _constant(-(1 << (36 - integer_bits)), bits), 0, result)
    return np.where(x == 0, 2 ** (bits - 1) - 1, result)


def _exp_quarter(x: Array, bits: int) -> Array:
    """exp on [-1/4, 0): a Taylor expansion around -1/8."""
    base, third = _constant(1895147668, bits), _constant(715827883, bits)
    x = x + (1 << (bits - 4))
    x2 = high_mul(x, x, bits)
    x3, x4 = high_mul(x2, x, bits), high_mul(x2, x2, bits)
    tail = divide_by_pot(high_mul(divide_by_pot(x4, 2) + x3, third, bits) + x2, 1)
    result = base + high_mul(x + tail, base, bits)
    return np.minimum(result, 32767) if bits == 16 else result


def _reciprocal_newton(x: Array, bits: int) -> Array:
    """2 / (1 + x) for x in [0, 1), with two integer bits: three Newton-Raphson steps."""
    half = _half_sum(x, 2 ** (bits - 1) - 1)
    one = 1 << (bits - 3)
    y = _constant(1515870810, bits) + high_mul(half, _constant(-1010580540, bits), bits)
    for _ in range(3):
        y = _wrap(y + shift_left(high_mul(y, one - high_mul(half, y, bits), bits), 2, bits), bits)
    return y


def one_over_one_plus(x: Array, bits: int = 32) -> Array:
    """1 / (1 + x) for x in [0, 1); no integer bits in or out."""
    return shift_left(_reciprocal_newton(x, bits), 1, bits)


def reciprocal(x: Array, integer_bits: int) -> tuple[Array, Array]:
    """1 / x for positive 32-bit x: (raw with no integer bits, right shift still to be done)."""
    zeros = leading_zeros(x)
    return one_over_one_plus((x << zeros) - (1 << 31)), integer_bits - zeros


def inverse_sqrt(x: Array) -> tuple[Array, Array]:
    """1 / sqrt(x) of positive 32-bit integers: (32-bit multiplier, right shift), by Newton-Raphson.

    TFLite's GetInvSqrtQuantizedMultiplierExp; 0 counts as 1.
    """
    x = np.maximum(np.asarray(x, np.int64), 1)
    down = np.maximum((4 - leading_zeros(x)) // 2, 0)  # pairs of bits, to get below 2**29
    x = x >> (2 * down)
    up = (leading_zeros(x) - 1) // 2 - 1
    right = 11 + down - up
    value = (x << (2 * up)) >> 1  # three integer bits from here on
    half = divide_by_pot(value, 1)
    root = np.full(x.shape, 1 << 28, np.int64)
    for _ in range(5):
        cube = shift_left(high_mul(high_mul(root, root), root), 6)
        root = shift_left(high_mul(np.asarray(3 << 27), root) - high_mul(half, cube), 3)
    root = high_mul(root, 1518500250)
    # A negative shift is put into the multiplier.
    root, right = root << np.maximum(-right, 0), np.maximum(right, 0)
    return np.where(x <= 1, 2**31 - 1, root), np.where(x <= 1, 0, right)


def leading_zeros(x: Array) -> Array:
    """The leading zeros of a non-negative 32-bit number."""
    # frexp is exact here: 32 bits fit into a double
    return 32 - np.frexp(np.asarray(x, np.float64))[1].astype(np.int64)


def logistic_fixed(x: Array, integer_bits: int) -> Array:
    """gemmlowp's logistic of 16-bit words: raw with no integer bits. The LSTM has 3 of them."""
    return _looked_up(_logistic, x, integer_bits)


def tanh_fixed(x: Array, integer_bits: int) -> Array:
    """gemmlowp's tanh of 16-bit words: raw with no integer bits."""
    return _looked_up(_tanh, x, integer_bits)


Fixed = Callable[[Array, int, int], Array]


def _looked_up(function: Fixed, x: Array, integer_bits: int) -> Array:
    """From a table: a hundred operations on arrays take long for a few cells."""
    found: Array = _every(function, integer_bits)[np.asarray(x, np.int64) + 2**15]
    return found


@cache
def _every(function: Fixed, integer_bits: int) -> Array:
    return function(np.arange(-(2**15), 2**15), integer_bits, 16)


def _logistic(x: Array, integer_bits: int, bits: int) -> Array:
    x = np.asarray(x, np.int64)
    most = 2 ** (bits - 1) - 1
    positive = one_over_one_plus(exp_negative(-np.abs(x), integer_bits, bits), bits)
    found = np.where(x > 0, positive, most - positive)
    return np.where(x == 0, 1 << (bits - 2), found)


def _tanh(x: Array, integer_bits: int, bits: int) -> Array:
    x = np.asarray(x, np.int64)
    # 2x costs nothing: it is the same raw number with one integer bit more
    decay = exp_negative(-np.abs(x), integer_bits + 1, bits)
    size = shift_left(_reciprocal_newton(decay, bits) - (1 << (bits - 3)), 2, bits)
    return np.where(x == 0, 0, np.where(x < 0, -size, size))


def log_fixed(x: Array, input_bits: int, output_bits: int) -> Array:
    """log of a 32-bit x >= 1 with input_bits integer bits; the result has output_bits."""
    accumulator = output_bits + 1
    sqrt_half, root4_half = 1518500250, 1805811301  # 2**-1/2 and 2**-1/4
    quarter = divide_by_pot(np.asarray(1 << 29), accumulator)
    zeros_a = leading_zeros(x)
    r_a = shift_left(high_mul(shift_left(x, zeros_a - 1), sqrt_half), 1)
    power_a = _saturate(shift_left(input_bits - zeros_a, 31 - accumulator) + quarter)
    headroom_b = leading_zeros(high_mul(x, sqrt_half)) - 1
    r_b = shift_left(x, headroom_b)
    power_b = _saturate(shift_left(input_bits - headroom_b, 31 - accumulator) - quarter)
    r, power = np.minimum(r_a, r_b), np.maximum(power_a, power_b)
    p = _half_sum(r, root4_half)
    q = _wrap(2 * (r - root4_half), 32)
    q2 = high_mul(q, q)
    numerator = _wrap(high_mul(q, r) + high_mul(high_mul(q, q2), 117049297), 32)
    bracket = _wrap(1057819769 + q + high_mul(q2, 127690142), 32)
    denominator = _wrap(high_mul(p, bracket) + high_mul(q, 638450708), 32)
    ratio = high_mul(divide_by_pot(numerator, accumulator), one_over_one_plus(denominator))
    return shift_left(_wrap(high_mul(power, 1488522236) + ratio, 32), 1)


def _saturate(x: Array) -> Array:
    return np.clip(x, -(2**31), 2**31 - 1)


# -- floating point -----------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)  # a plain 1 makes a scalar float64 in NumPy 1
    result: Array = one / (one + np.exp(-x))
    return result


def _erfc_exponent(t: float) -> float:
    """log(erfc(x) * exp(x * x) / t) at x = 2 / t - 2, for large x by a continued fraction."""
    x = 2 / t - 2
    if x < 5:
        return math.log(math.erfc(x) / t) + x * x
    fraction = x
    for n in range(60, 0, -1):
        fraction = x + n / 2 / fraction
    return -math.log(math.sqrt(math.pi) * fraction * t)


@cache
def _erfc_polynomial() -> Array:
    """Coefficients in 2 * t - 1, the highest first, of the interpolation at Chebyshev's points."""
    chebyshev = np.polynomial.chebyshev
    places = chebyshev.chebpts1(27)
    values = np.array([_erfc_exponent((y + 1) / 2) for y in places])
    found: Array = chebyshev.cheb2poly(chebyshev.chebfit(places, values, 26))[::-1]
    return found


ERFC_BLOCK = 1 << 13  # elements: three arrays of doubles stay in the L2 cache


def erfc(x: Array) -> Array:
    """The complementary error function in float64, to about 1e-12 (NumPy has none)."""
    first, *rest = _erfc_polynomial()
    flat = np.asarray(x, np.float64).reshape(-1)
    result = np.empty_like(flat)
    for start in range(0, flat.size, ERFC_BLOCK):
        part = flat[start : start + ERFC_BLOCK]
        size = np.abs(part)
        t = 2 / (2 + size)
        y = 2 * t - 1
        total = np.full_like(y, first)
        for coefficient in rest:
            total *= y
            total += coefficient
        positive = t * np.exp(total - size * size)
        result[start : start + ERFC_BLOCK] = np.where(part < 0, 2 - positive, positive)
    return result.reshape(np.shape(x))
