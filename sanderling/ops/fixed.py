"""Fixed-point arithmetic exactly as TFLite's reference kernels do it, over whole arrays.

Values are int32 in meaning; arrays are int64 here so that products do not overflow, and `wrap32`
stands where the kernels rely on 32-bit wrap-around.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir import Array, DType, Op, Tensor
from .base import attr, scale_zero

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def round_away(x: npt.ArrayLike) -> Array:
    """Round half away from zero, as C's std::round does (NumPy rounds half to even)."""
    x = np.asarray(x)
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.sign(x), 0).astype(x.dtype)


def wrap32(x: Array) -> Array:
    """Keep the low 32 bits as a signed number."""
    return np.asarray(x).astype(np.int64, copy=False).astype(np.int32).astype(np.int64)


def quantize_multiplier(real: npt.ArrayLike) -> tuple[Array, Array]:
    """real ~ m * 2**(shift - 31) with int32 m: TFLite's QuantizeMultiplier, element by element."""
    fraction, shift = np.frexp(np.asarray(real, np.float64))
    m = round_away(fraction * 2.0**31).astype(np.int64)
    shift = shift.astype(np.int64)
    full = m == 2**31
    m, shift = np.where(full, m // 2, m), np.where(full, shift + 1, shift)
    lost = shift < -31
    return np.where(lost, 0, m), np.where(lost, 0, shift)


def high_mul(a: Array, b: npt.ArrayLike, bits: int = 32) -> Array:
    """gemmlowp's SaturatingRoundingDoublingHighMul: a * b / 2**(bits - 1) to the nearest, ties up.

    Its nudge is one less for negative products and its division goes toward zero: together that
    is one addition and an arithmetic shift.
    """
    product = np.asarray(a, np.int64) * np.asarray(b, np.int64)
    product += 1 << (bits - 2)
    product >>= bits - 1
    return np.minimum(product, 2 ** (bits - 1) - 1)


def divide_by_pot(x: Array, exponent: npt.ArrayLike) -> Array:
    """gemmlowp's RoundingDivideByPOT: x / 2**exponent, ties away from zero."""
    x, exponent = np.asarray(x, np.int64), np.asarray(exponent, np.int64)
    # A negative tie would round up: take one off, unless there is nothing to divide.
    result = (x >> 63) & -np.minimum(exponent, 1)
    result += x
    result += (np.int64(1) << exponent) >> 1
    return result >> exponent


def multiply(x: Array, m: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
    """MultiplyByQuantizedMultiplier for a 32-bit accumulator (double rounding)."""
    shift = np.asarray(shift, np.int64)
    if not shift.ndim and not np.ndim(m) and m != INT32_MIN:
        return _multiply_one(x, int(m), int(shift))  # type: ignore[arg-type]
    if np.any(shift > 0):
        x = np.asarray(x, np.int64) << np.maximum(shift, 0)
    return divide_by_pot(high_mul(wrap32(x), m), np.maximum(-shift, 0))


def _multiply_one(x: Array, m: int, shift: int) -> Array:
    """As multiply by one multiplier for all, which does not saturate: a third of the operations,
    which is what counts where arrays are small."""
    result = wrap32(np.asarray(x, np.int64) << shift if shift > 0 else x)
    result = result * m
    result += 1 << 30
    result >>= 31
    if shift < 0:
        result += result >> 63  # a negative tie would round up
        result += 1 << (-shift - 1)
        result >>= -shift
    return result


def multiply64(x: Array, m: npt.ArrayLike, shift: npt.ArrayLike) -> Array:
    """MultiplyByQuantizedMultiplier for a 64-bit accumulator: a 16-bit multiplier."""
    m, shift = np.asarray(m, np.int64), np.asarray(shift, np.int64)
    reduced = np.where(m < 0x7FFF0000, (m + (1 << 15)) >> 16, 0x7FFF)
    total = 15 - shift
    return wrap32((np.asarray(x, np.int64) * reduced + (np.int64(1) << (total - 1))) >> total)


@cache
def limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Smallest and largest value of a NumPy type; of a float, the finite ones."""
    if dtype.kind == "b":
        return False, True
    info: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    return info.min, info.max


def truncated(x: Array, by: npt.ArrayLike) -> Array:
    """Integer division toward zero, as C does it."""
    quotient = np.abs(x) // np.abs(by)
    return np.where((x < 0) != (np.asarray(by) < 0), -quotient, quotient)


# Bounds in reals of the fused activations.
ACTIVATION_BOUNDS = {
    "NONE": (-np.inf, np.inf),
    "RELU": (0.0, np.inf),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}


def fused_bounds(op: Op) -> tuple[float, float]:
    """Bounds of the fused activation; one that is no clamp (TANH, SIGN_BIT) has none."""
    name = attr(op, "fused_activation_function")
    return ACTIVATION_BOUNDS.get(name, ACTIVATION_BOUNDS["NONE"])


def finite_bounds(bounds: tuple[float, float]) -> tuple[np.float32, np.float32]:
    """Bounds of float32 as kernels have them that always clamp: at most the finite range."""
    ends = np.finfo(np.float32)
    return max(np.float32(bounds[0]), ends.min), min(np.float32(bounds[1]), ends.max)


def code_range(tensor: Tensor, bounds: tuple[float, float]) -> tuple[int, int]:
    """Real bounds in a tensor's codes, within its type's range. The kernels divide in float32."""
    scale, zero = scale_zero(tensor)
    low, high = tensor.dtype.bounds
    with np.errstate(invalid="ignore"):  # an infinite bound is none
        least, most = (round_away(np.float32(bound) / np.float32(scale)) for bound in bounds)
    return (
        max(low, zero + int(least)) if np.isfinite(least) else low,
        min(high, zero + int(most)) if np.isfinite(most) else high,
    )


def fused_range(op: Op) -> tuple[int, int]:
    """Clamp bounds of an integer output: its type's range and the fused activation's."""
    return code_range(op.outputs[0], fused_bounds(op))


def fused_float(op: Op, x: Array) -> Array:
    """Apply a float output's fused activation."""
    name = attr(op, "fused_activation_function")
    if name == "NONE":
        return x
    if name == "TANH":
        return np.tanh(x)
    if name == "SIGN_BIT":
        return np.signbit(x).astype(x.dtype)
    low, high = ACTIVATION_BOUNDS[name]
    return np.clip(x, x.dtype.type(low), x.dtype.type(high))


def fused_clamp(op: Op, x: Array, out: Array | None = None) -> Array:
    """Clamp plain numbers to the fused activation, as kernels do that know no other activations.

    Trap: they clamp floats to the finite range even without activation, so that an overflow or a
    division by zero gives the largest float, not infinity. NaN passes through.
    """
    low, high = (
        x.dtype.type(end) if np.isinf(bound) else np.asarray(int(bound)).astype(x.dtype)
        for bound, end in zip(fused_bounds(op), limits(x.dtype), strict=True)
    )
    return np.clip(x, low, high, out=out)


def clamp_to(x: Array, low: int, high: int, dtype: DType) -> Array:
    return np.clip(x, low, high).astype(dtype.numpy)


def without_zero(tensor: Tensor | None, x: Array) -> Array:
    """A tensor's codes without their zero point."""
    return x.astype(np.int64) - scale_zero(tensor)[1]


def to_codes(op: Op, x: Array, bounds: tuple[int, int] | None = None) -> Array:
    """Add the output's zero point and clamp to these bounds, or to the output's type."""
    target = op.outputs[0]
    return clamp_to(x + scale_zero(target)[1], *(bounds or target.dtype.bounds), target.dtype)
