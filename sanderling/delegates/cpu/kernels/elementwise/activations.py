"""Operators of one operand as expressions: functions, clamps, slopes, conversions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .....ir import Array, DType, Op, Quant, Shape, Tensor
from .....ir import expr as X
from .....ir.expr import Const, Expr, Input, cast, clamp, select
from .....ops.base import attr, quant
from .....ops.fixed import code_range
from .operands import (
    BYTES,
    F32,
    I32,
    I64,
    TYPES,
    Lowered,
    centred,
    coded_whole,
    codes,
    encode,
    larger,
    need,
    operand,
    product_of,
    real_product,
    result,
    scales,
    sloped,
    smaller,
    tensor_at,
    whole_codes,
)

# -- one operand --------------------------------------------------------------------------------


def unary(function: Callable[[Expr], Expr]) -> Callable[[Op], Expr]:
    """A function of plain numbers; codes go through tables."""

    def expression(op: Op) -> Expr:
        x = operand(op, 0)
        wide = x.dtype is DType.INT16 and tensor_at(op, 0).quant is not None
        need(x.dtype not in BYTES and not wide, f"type {x.dtype.short} has no kernel")
        return result(op, function(x))

    return expression


def bounded(low: float, high: float) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        out = op.outputs[0]
        if out.dtype.is_float:
            x = X.maximum(operand(op, 0), low)
            return result(op, x if np.isinf(high) else X.minimum(x, high))
        factor = scales(op.inputs[0])[0] / scales(out)[0]
        zero = scales(out)[1]
        least, most = code_range(out, (low, high))
        need(least <= most, "the activation's bounds leave no code")
        if out.dtype is DType.INT16:
            return cast(clamp(_rescaled16(op, 1.0), least, most), out.dtype)
        return encode(centred(op, 0) * factor + zero, least, most, out.dtype)

    return expression


def leaky_relu(op: Op) -> Expr:
    out, alpha = op.outputs[0], float(np.float32(attr(op, "alpha")))
    if out.dtype.is_float:
        x = operand(op, 0)
        return result(op, select(x > 0, x, x * alpha))
    if out.dtype is DType.INT16:
        below = _rescaled16(op, abs(alpha))
        below = -below if alpha < 0 else below
        return coded_whole(op, select(operand(op, 0) >= 0, _rescaled16(op, 1.0), below))
    # An approximation, which lower() takes where it is right for all codes.
    factor, zero = scales(op.inputs[0])[0] / scales(out)[0], scales(out)[1]
    x = centred(op, 0)
    return encode(select(x >= 0, x, x * alpha) * factor + zero, *out.dtype.bounds, out.dtype)


def _rescaled16(op: Op, factor: float) -> Expr:
    """Codes without zero points in the output's units; the kernels combine scales in float32."""
    need(scales(op.inputs[0])[1] == 0 == scales(op.outputs[0])[1], "int16 with a zero point")
    first, last = (np.float32(scales(t)[0]) for t in (op.inputs[0], op.outputs[0]))
    return real_product(whole_codes(op, 0), float(first * np.float32(factor) / last))


def prelu(op: Op) -> Expr:
    if op.outputs[0].dtype.is_float:
        x = operand(op, 0)
        return result(op, select(x >= 0, x, x * operand(op, 1)))
    s1, s2, s3 = (np.float32(scales(t)[0]) for t in (*op.inputs, op.outputs[0]))
    kinds = [tensor_at(op, i).dtype for i in (0, 1)]
    if any(kind not in BYTES for kind in kinds):
        x = whole_codes(op, 0)
        above = real_product(x, float(s1 / s3))
        below = real_product(x * whole_codes(op, 1), float(s1 * s2 / s3))
        return coded_whole(op, select(x >= 0, above, below))
    above = sloped(op, *product_of(op, 0), float(s1 / s3))
    below = sloped(op, *product_of(op, 0, 1), float(s1 * s2 / s3))
    return coded_whole(op, select(product_of(op, 0)[0] >= 0, above, below))


def elu(x: Expr) -> Expr:
    return select(x < 0, X.exp(x) - 1, x)


def hard_swish(x: Expr) -> Expr:
    return x * clamp(x + 3, 0, 6) * (1 / 6)


def gelu(op: Op) -> Expr:
    if attr(op, "approximate"):
        return unary(_gelu_tanh)(op)
    return unary(lambda x: x * (X.erf(x * math.sqrt(0.5)) * 0.5 + 0.5))(op)


def _gelu_tanh(x: Expr) -> Expr:
    """(1 + tanh(y)) / 2 is the logistic function of 2 * y."""
    slope = 2 * math.sqrt(2 / math.pi)
    return x * X.logistic(x * (x * x * (0.044715 * slope) + slope))


def fake_quant(op: Op) -> Expr:
    bits, low, high = attr(op, "num_bits"), np.float32(attr(op, "min")), np.float32(attr(op, "max"))
    need(2 <= bits <= 16 and bool(low < high), "its range is empty")
    first, last = np.float32(bool(attr(op, "narrow_range"))), np.float32(2**bits - 1)
    scale = (high - low) / (last - first)
    zero = np.clip(np.floor(first - low / scale + np.float32(0.5)), first, last)
    least, most = float((first - zero) * scale), float((last - zero) * scale)
    steps = (clamp(operand(op, 0), least, most) - least) * float(np.float32(1) / scale)
    whole = X.floor(steps)
    return result(op, select(steps - whole < 0.5, whole, whole + 1) * float(scale) + least)


# -- conversions --------------------------------------------------------------------------------


def conversion(op: Op) -> Expr:
    """C's conversions, except that a float that does not fit saturates, and NaN is the largest."""
    x, target = operand(op, 0), op.outputs[0].dtype
    need(target in TYPES, f"type {target.short} has no kernel")
    if not (x.dtype.is_float and target.is_integer):
        return cast(x, target)
    low, high = target.bounds
    # The largest float32 below high + 1: high itself may not be one.
    most = float(np.nextafter(np.float32(high + 1), np.float32(0))) if target.bits > 16 else high
    inside = cast(clamp(x, float(low), float(most)), target)
    return select(x < float(high + 1), inside, Const(high, target))


def along(op: Op, q: Quant, shape: Shape, *arrays: Array) -> list[Tensor]:
    """Values along the quantised axis, as constants that broadcast over the shape."""
    need(0 <= q.axis < len(shape) and shape[q.axis] == q.scale.size, "the scales do not fit")
    spread = [q.scale.size if i == q.axis else 1 for i in range(len(shape))]
    name = op.outputs[0].name
    return [
        Tensor(f"{name}/{i}", F32, spread, data=a.astype(np.float32).reshape(spread))
        for i, a in enumerate(arrays)
    ]


def _nearest(units: Expr, zero: Expr | float, dtype: DType) -> Expr:
    """As the definition has it: halves away from zero (what is added is the float below a half, so
    that less than a half stays 0)."""
    low, high = dtype.bounds
    bounded = smaller(larger(units, low - zero), high - zero)
    half = float(np.nextafter(np.float32(0.5), np.float32(0)))
    whole = cast(bounded + select(bounded < 0.0, Const(-half, F32), Const(half, F32)), I32)
    return cast(whole + (cast(zero, I32) if isinstance(zero, Expr) else int(zero)), dtype)


def quantize(op: Op) -> Lowered | Expr:
    x, out = tensor_at(op, 0), op.outputs[0]
    words = x.dtype is DType.INT16 and out.dtype is I32
    known = out.dtype in (*BYTES, DType.INT16) or words
    need(known, f"output type {out.dtype.short} has no kernel")
    low, high = out.dtype.bounds
    if x.dtype is not F32:
        (s1, z1), (s2, z2) = scales(x), scales(out)
        if x.dtype in BYTES and out.dtype is x.dtype and (s1, z1) == (s2, z2):
            return Input(0, x.dtype)
        if x.dtype in (I32, DType.INT16) or out.dtype is DType.INT16:
            steps = real_product(cast(cast(Input(0, x.dtype), I32) - z1, I64), s1 / s2)
            return cast(clamp(cast(steps, I32) + z2, low, high), out.dtype)
        return encode((codes(op, 0) - z1) * (s1 / s2) + z2, low, high, out.dtype)
    q = quant(out)
    if not q.per_axis:
        scale, zero = scales(out)
        return _nearest(Input(0, F32) / float(np.float32(scale)), float(zero), out.dtype)
    params = along(op, q, x.shape, q.scale, np.resize(q.zero_point, q.scale.size))
    units = Input(0, F32) / Input(1, F32)
    return Lowered([x, *params], _nearest(units, Input(2, F32), out.dtype))


def dequantize(op: Op) -> Lowered | Expr:
    x = tensor_at(op, 0)
    if x.dtype in (DType.FLOAT16, F32):
        return cast(Input(0, x.dtype), F32)
    need(x.dtype in (*BYTES, DType.INT16), f"type {x.dtype.short} has no kernel")
    q = quant(x)
    if not q.per_axis:
        scale, zero = scales(x)
        return (codes(op, 0) - zero) * scale
    params = along(op, q, x.shape, q.scale, np.resize(q.zero_point, q.scale.size))
    return Lowered([x, *params], (codes(op, 0) - Input(2, F32)) * Input(1, F32))


def flip(op: Op) -> Expr:
    """int8 <-> uint8 at the border of a part."""
    x, out = tensor_at(op, 0), op.outputs[0]
    top = 128 if x.dtype is DType.UINT8 else -128
    return cast(Input(0, x.dtype) ^ top, out.dtype)
