"""Activations: float formulas, and the quantised kernels bit for bit.

Tables and fixed-point functions are in lut.py. The reference kernels' arithmetic is what counts:
for some operators LiteRT's optimised kernels use other tables and differ by a code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np

from ..ir import Array, DType, Op, Shape
from .base import (
    attr,
    broadcast_shapes,
    define,
    on,
    require,
    same_as_input,
    scale_zero,
    shaped,
)
from .fixed import (
    clamp_to,
    code_range,
    divide_by_pot,
    high_mul,
    limits,
    multiply,
    quantize_multiplier,
    to_codes,
    truncated,
    without_zero,
    wrap32,
)
from .lut import (
    erfc,
    exp_negative,
    input_scale16,
    leading_zeros,
    log_fixed,
    logistic16,
    lookup16,
    reciprocal,
    sigmoid,
    table16,
    tanh16,
    through_double,
)
from .unary import by_table

NARROW = (np.float16, ml_dtypes.bfloat16)


def _ratio(*factors: float, over: float) -> tuple[Array, Array]:
    """A product of scales over another as (multiplier, shift); the kernels use float32 here."""
    real = np.float32(factors[0])
    for factor in factors[1:]:
        real = real * np.float32(factor)
    return quantize_multiplier(real / np.float32(over))


def _symmetric16(op: Op, x: Array) -> None:
    if x.dtype == np.int16:
        zeros = (scale_zero(op.inputs[0])[1], scale_zero(op.outputs[0])[1])
        require(zeros == (0, 0), op, "int16 needs zero points of 0")


# -- clamps -------------------------------------------------------------------------------------


def _clamp(op: Op, x: Array, low: float, high: float) -> Array:
    if x.dtype == np.float32:
        return np.clip(x, np.float32(low), np.float32(high))
    _symmetric16(op, x)
    ratio = _ratio(scale_zero(op.inputs[0])[0], over=scale_zero(op.outputs[0])[0])
    codes = multiply(without_zero(op.inputs[0], x), *ratio)
    return to_codes(op, codes, code_range(op.outputs[0], (low, high)))


# name: bounds, types
CLAMPS: dict[str, tuple[float, float, str]] = {
    "RELU": (0, np.inf, "f32 i8q u8q i16q"),
    "RELU6": (0, 6, "f32 i8q u8q i16q"),
    "RELU_N1_TO_1": (-1, 1, "f32 i8q u8q"),
    "RELU_0_TO_1": (0, 1, "f32 i8q u8q"),
}
for _name, (_low, _high, _types) in CLAMPS.items():
    define(
        _name,
        infer=same_as_input,
        evaluate=on(partial(_clamp, low=_low, high=_high)),
        family="activation",
        takes=f"x: {_types} -> x",
    )


# -- smooth functions ---------------------------------------------------------------------------


def _wide(function: Callable[[Array], Array], x: Array) -> Array:
    """A float16 or bfloat16 function is computed in float32 and rounded once."""
    return function(x.astype(np.float32)).astype(x.dtype)


def _logistic(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        return sigmoid(x)
    if x.dtype in NARROW:
        return _wide(sigmoid, x)
    _symmetric16(op, x)
    scale = 1 / 32768 if x.dtype == np.int16 else 1 / 256
    stated = scale_zero(op.outputs[0])[0]
    require(stated == scale, op, f"the output's scale must be 1/{1 / scale:g}")
    if x.dtype == np.int16:
        return logistic16(x, *input_scale16(scale_zero(op.inputs[0])[0], (0,)))
    exp = through_double(np.exp)
    return by_table(op, x, lambda v: np.float32(1) / (np.float32(1) + exp(-v)))


def _tanh(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        return np.tanh(x)
    if x.dtype in NARROW:
        return _wide(np.tanh, x)
    if x.dtype != np.int16:
        return by_table(op, x, through_double(np.tanh))
    _symmetric16(op, x)
    near = _near(scale_zero(op.outputs[0])[0], 1 / 32768)
    require(near, op, "the output's scale must be 1/32768")
    return tanh16(x, *input_scale16(scale_zero(op.inputs[0])[0], (0, 1)))


def _near(scale: float, wanted: float) -> bool:
    """The kernels compare some scales with a tolerance of one in a thousand."""
    return abs(scale - wanted) <= 0.001 * wanted


def _elu(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        return np.where(x < 0, np.expm1(x), x)
    expm1 = through_double(np.expm1)
    return by_table(op, x, lambda v: np.where(v < 0, expm1(v), v))


def _gelu_exact(x: Array) -> Array:
    # By erfc: 1 + erf cancels where x is far below zero.
    root = erfc(x * np.float32(-np.sqrt(0.5))).astype(np.float32)
    return np.float32(0.5) * x * root


def _gelu_tanh(x: Array) -> Array:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (np.float32(1) + through_double(np.tanh)(inner))


def _gelu(op: Op, x: Array) -> Array:
    function = _gelu_tanh if attr(op, "approximate") else _gelu_exact
    if x.dtype == np.float32:
        return function(x)
    return _wide(function, x) if x.dtype in NARROW else by_table(op, x, function)


define(
    "LOGISTIC",
    infer=same_as_input,
    evaluate=on(_logistic),
    family="activation",
    takes="x: f32 f16 bf16 i8q u8q i16q -> x",
)
define(
    "TANH",
    infer=same_as_input,
    evaluate=on(_tanh),
    family="activation",
    takes="x: f32 f16 bf16 i8q u8q i16q -> x",
)
define("ELU", infer=same_as_input, evaluate=on(_elu), family="activation", takes="x: f32 i8q -> x")
define(
    "GELU",
    infer=same_as_input,
    evaluate=on(_gelu),
    family="activation",
    takes="x: f32 f16 i8q u8q i16q -> x",
)


# -- hard swish ---------------------------------------------------------------------------------


def _int16_multiplier(real: np.float32) -> tuple[int, int]:
    m, exponent = quantize_multiplier(real)
    short = 32767 if m >= 2**31 - 1 - (1 << 15) else (int(m) + (1 << 15)) >> 16
    return short, int(exponent)


def _shift16(x: Array, amount: int) -> Array:
    found: Array = np.clip(x << amount, -32768, 32767)
    return found


def _hard_swish(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        bounded = np.minimum(np.float32(6), np.maximum(np.float32(0), x + np.float32(3)))
        swish: Array = x * bounded / np.float32(6)
        return swish
    fine = np.float32(1 / 128) * np.float32(scale_zero(op.inputs[0])[0])
    out, out_exponent = _int16_multiplier(fine / np.float32(scale_zero(op.outputs[0])[0]))
    require(-31 <= out_exponent <= 0, op, "the output's scale does not fit the input's")
    slope, exponent = _int16_multiplier(fine / (np.float32(3) / np.float32(32768)))
    codes = without_zero(op.inputs[0], x) << 7
    # The value in units of 3 / 32768, saturated: -3..3 becomes -1..1, then 0..1.
    gate = _shift16(codes, min(exponent, 17) - 1) if exponent > 0 else codes
    gate = high_mul(gate, slope, 16)
    gate = _shift16(gate, 1) if exponent > 0 else divide_by_pot(gate, -exponent)
    gate = (gate + 32768) >> 1
    product = gate * high_mul(codes, out, 16)
    # This product is truncated on purpose: it cancels the bias of the rounding above.
    return to_codes(op, divide_by_pot(truncated(product, 1 << 15), -out_exponent))


define(
    "HARD_SWISH",
    infer=same_as_input,
    evaluate=on(_hard_swish),
    family="activation",
    takes="x: f32 i8q u8q -> x",
)


# -- slopes below zero --------------------------------------------------------------------------


def _leaky_relu(op: Op, x: Array) -> Array:
    alpha = float(np.float32(attr(op, "alpha")))
    if x.dtype == np.float32:
        return np.where(x > 0, x, x * np.float32(alpha))
    _symmetric16(op, x)
    codes = without_zero(op.inputs[0], x)
    scale, out_scale = scale_zero(op.inputs[0])[0], scale_zero(op.outputs[0])[0]
    m, shift = _ratio(scale, abs(alpha), over=out_scale)
    below = multiply(codes, m, shift) * (-1 if alpha < 0 else 1)
    above = multiply(codes, *_ratio(scale, over=out_scale))
    return to_codes(op, np.where(codes >= 0, above, below))


define(
    "LEAKY_RELU",
    infer=same_as_input,
    evaluate=on(_leaky_relu),
    family="activation",
    takes="x: f32 i8q u8q i16q -> x",
)


def _prelu_shape(op: Op, shape: Shape, alpha: Shape) -> Shape:
    fits = broadcast_shapes(op, shape, alpha) == shape
    require(fits, op, f"alpha of shape {alpha} does not fit input {shape}")
    return shape


def _prelu(op: Op, x: Array, alpha: Array) -> Array:
    _prelu_shape(op, x.shape, alpha.shape)
    if x.dtype == np.float32:
        return np.where(x >= 0, x, x * alpha)
    codes, slopes = without_zero(op.inputs[0], x), without_zero(op.inputs[1], alpha)
    slope = scale_zero(op.inputs[1])[0]
    scale, out_scale = scale_zero(op.inputs[0])[0], scale_zero(op.outputs[0])[0]
    above = multiply(codes, *_ratio(scale, over=out_scale))
    below = multiply(wrap32(codes * slopes), *_ratio(scale, slope, over=out_scale))
    return to_codes(op, np.where(codes >= 0, above, below))


define(
    "PRELU",
    infer=shaped(_prelu_shape, data=[0, 1]),
    evaluate=on(_prelu),
    family="activation",
    takes="x: f32 i8q u8q, alpha: x -> x | x: i16q, alpha: i8q i16q -> x",
    notes="an int16 input goes with an int8 alpha; LiteRT misreads an int16 one",
)


# -- softmax ------------------------------------------------------------------------------------

DIFF_BITS, SUM_BITS = 5, 12  # integer bits of differences from the row's maximum, and of sums


def _below_max(x: Array) -> Array:
    """Each row minus its maximum (empty rows stay empty)."""
    wide = x.astype(np.int64) if x.dtype.kind in "iu" else x
    found: Array = wide - np.max(wide, axis=-1, keepdims=True, initial=limits(wide.dtype)[0])
    return found


def diff_scale(op: Op, beta: float) -> tuple[int, int, int]:
    """Multiplier and shift of the differences, and the smallest one that still counts."""
    scale = beta * scale_zero(op.inputs[0])[0] * 2.0 ** (31 - DIFF_BITS)
    require(scale > 1, op, f"beta {beta} is too small for the input's scale")
    m, shift = quantize_multiplier(min(scale, 2.0**31 - 1))
    radius = int(np.floor((2.0**DIFF_BITS - 1) * 2.0 ** (31 - DIFF_BITS - int(shift))))
    return int(m), int(shift), -radius


def exp_rows(op: Op, x: Array, beta: float) -> tuple[Array, Array, Array, Array]:
    """Differences, scaled differences, their exponentials, and the rows' sums."""
    m, shift, least = diff_scale(op, beta)
    diff = _below_max(x)
    counts = diff >= least
    scaled = multiply(np.where(counts, diff, 0), m, shift)
    powers = np.where(counts, exp_negative(scaled, DIFF_BITS), 0)
    total = np.sum(np.where(counts, divide_by_pot(powers, SUM_BITS), 0), axis=-1, keepdims=True)
    require(bool(np.all(total < 2**31)), op, f"rows of {x.shape[-1]} overflow the kernel's sum")
    return diff, scaled, powers, total


def _softmax(op: Op, x: Array) -> Array:
    target = op.outputs[0].dtype
    beta = float(np.float32(attr(op, "beta")))
    if x.dtype.kind == "f":
        return _softmax_float(x.astype(np.float32), np.float32(beta)).astype(target.numpy)
    if x.dtype == np.int16:
        return _softmax16(op, x, beta)
    _, _, powers, total = exp_rows(op, x, beta)
    inverse, over = reciprocal(np.maximum(total, 1), SUM_BITS)
    shifted = divide_by_pot(high_mul(inverse, powers), over + 31 - target.bits)
    low, high = target.bounds
    return clamp_to(shifted + low, low, high, target)


def _softmax_float(x: Array, beta: np.float32) -> Array:
    powers = np.exp(_below_max(x) * beta)
    found: Array = powers / np.sum(powers, axis=-1, keepdims=True)
    return found


RANGE16 = 65535
EXP16 = table16(np.exp, (10.0 / RANGE16, 32767), (2.0 / RANGE16, 0), np.float64)
INVERSE16 = table16(lambda v: 1 / (1 + v), (1.0 / RANGE16, -32768), (2.0 / RANGE16, 0), np.float64)


def _softmax16(op: Op, x: Array, beta: float) -> Array:
    """exp and 1 / (1 + x) by interpolated tables; -10..0 is the range of the first."""
    _symmetric16(op, x)
    scale = float(np.float32(scale_zero(op.inputs[0])[0]) * np.float32(beta)) / (10.0 / 65535.0)
    scaled = multiply(_below_max(x), *quantize_multiplier(scale))
    powers = lookup16(np.clip(scaled + 32767, -32768, 32767), EXP16)
    total = np.maximum(np.sum(powers, axis=-1, keepdims=True), 1)
    zeros = leading_zeros(total)
    mantissa = ((total << (zeros - 1)) + (1 << 13)) >> 14
    inverse = lookup16(np.clip(mantissa - (1 << 15) - (1 << 16), -32768, 32767), INVERSE16)
    right = 31 - zeros
    found = (powers * inverse + (np.int64(1) << (right - 1))) >> right
    return clamp_to(found, 0, 32767, DType.INT16)


define(
    "SOFTMAX",
    infer=same_as_input,
    evaluate=on(_softmax),
    family="activation",
    takes="x[1-]: f32 f16 i8q u8q i16q -> x | x[1-]: i8q u8q -> i16",
    notes="i8 and u8 to i16 too",
)


def log_bound(op: Op) -> tuple[Array, Array]:
    """Multiplier and shift by which differences in fixed point become differences of codes."""
    m, shift, _ = diff_scale(op, 1.0)
    return quantize_multiplier(2.0 ** (31 - shift) / m)


def _log_softmax(op: Op, x: Array) -> Array:
    target = op.outputs[0].dtype
    if x.dtype == np.float32:
        diff = _below_max(x)
        logs: Array = diff - np.log(np.sum(np.exp(diff), axis=-1, keepdims=True))
        return logs
    low, high = target.bounds
    fits = scale_zero(op.outputs[0]) == (1 / 16, high)
    require(fits, op, f"the output must have scale 1/16 and zero point {high}")
    diff, _, _, total = exp_rows(op, x, 1.0)
    m, shift, least = diff_scale(op, 1.0)
    log_total = log_fixed(np.maximum(total, 1), SUM_BITS, DIFF_BITS)
    # Differences so large that subtracting the logarithm would leave 32 bits are the smallest code.
    limit = np.maximum(least - 1, multiply(log_total - 2**31, *log_bound(op)))
    found = divide_by_pot(multiply(diff, m, shift) - log_total, 31 - DIFF_BITS - 4) + high
    return np.where(diff > limit, np.clip(found, low, high), low).astype(target.numpy)


define(
    "LOG_SOFTMAX",
    infer=same_as_input,
    evaluate=on(_log_softmax),
    family="activation",
    takes="x[1-]: f32 i8q u8q -> x",
)
