"""Operators of several operands as expressions: arithmetic, comparison, logic, selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from .....ir import DType, Op, Tensor
from .....ir import expr as X
from .....ir.expr import Expr, Input, cast, clamp, select
from .....ops.arith import shifts_of_two
from .....ops.execute import evaluate, new_state
from .....ops.fixed import fused_bounds, fused_range
from .operands import (
    BYTES,
    F32,
    F64,
    I32,
    I64,
    MOST_INPUTS,
    TYPES,
    Lowered,
    centred,
    coded,
    coded_whole,
    is_quantized,
    need,
    need_alike,
    need_divisor,
    operand,
    product_of,
    real_product,
    result,
    scales,
    sloped,
    tensor_at,
    whole_codes,
)
from .planes import Plane, Side, clamped, plane

# -- arithmetic ---------------------------------------------------------------------------------


def activated(op: Op, x: Expr) -> Expr:
    """The fused activation of plain numbers. Floats are clamped to the finite range, as LiteRT's
    kernels have it."""
    low, high = fused_bounds(op)
    out = op.outputs[0].dtype
    if out.is_float:
        ends = np.finfo(out.numpy)
        return clamp(x, max(low, float(ends.min)), min(high, float(ends.max)))
    x = x if np.isinf(low) else X.maximum(x, int(low))
    return x if np.isinf(high) else X.minimum(x, int(high))


def plus(sign: int) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        if not is_quantized(op.outputs[0]):
            a, b = operand(op, 0), operand(op, 1)
            return result(op, activated(op, a + b if sign > 0 else a - b))
        for tensor in (tensor_at(op, 0), tensor_at(op, 1), op.outputs[0]):
            need(tensor.dtype is op.outputs[0].dtype, "its operands differ in type")
            scales(tensor)
        if op.outputs[0].dtype is DType.INT16:
            return _plus16(op, sign)
        found = plane(Side.of(op.operand(0)), Side.of(op.operand(1)), clamped(op), sign)
        return _on_plane(op, found) if found.exact else _plus_fixed(op, sign, 20)

    return expression


def _on_plane(op: Op, found: Plane) -> Expr:
    a, b = (cast(operand(op, i), I32) * factor for i, factor in enumerate((found.a, found.b)))
    zeros = (scales(op.inputs[i])[1] * factor for i, factor in enumerate((found.a, found.b)))
    total = a + b + (found.above - sum(zeros))
    if found.above != found.below:
        total = select(total < found.above, total + (found.below - found.above), total)
    return coded_whole(op, total >> found.shift)


def _plus16(op: Op, sign: int) -> Expr:
    """float32 has too few bits for sums of 16-bit codes."""
    shifts = shifts_of_two(op)
    if shifts is not None:
        a, b = (
            cast(X.rounding_shift_right(cast(operand(op, i), I32), n), I64)
            for i, n in enumerate(shifts)
        )
        return coded_whole(op, a + b if sign > 0 else a - b)
    return _plus_fixed(op, sign, 15)


def _plus_fixed(op: Op, sign: int, left: int) -> Expr:
    """In the kernels' own fixed point, with so many bits of fraction."""
    s1, s2 = (float(np.float32(scales(t)[0])) for t in op.inputs)
    twice = 2 * max(s1, s2)
    a, b = (real_product(whole_codes(op, i) << left, s / twice) for i, s in enumerate((s1, s2)))
    real = twice / (2.0**left * scales(op.outputs[0])[0])
    return coded_whole(op, real_product(a + b if sign > 0 else a - b, real))


def mul(op: Op) -> Expr:
    first, out = tensor_at(op, 0), op.outputs[0]
    if first.dtype is DType.INT16 and out.dtype in BYTES:
        return _mul_to_8bit(op)
    if not is_quantized(out):
        return result(op, activated(op, operand(op, 0) * operand(op, 1)))
    s1, s2, s3 = (np.float32(scales(t)[0]) for t in (*op.inputs, out))
    real = float(s1 * s2 / s3)
    if out.dtype is DType.INT16:
        return coded_whole(op, real_product(whole_codes(op, 0) * whole_codes(op, 1), real))
    return coded_whole(op, sloped(op, *product_of(op, 0, 1), real))


def _mul_to_8bit(op: Op) -> Expr:
    """int16 x int16 in fixed point, 15 fractional bits down to 7; scales do not count."""
    product = cast(operand(op, 0), I32) * cast(operand(op, 1), I32)
    high = X.minimum((product + (1 << 14)) >> 15, 32767)
    low, top = fused_range(op)
    code = X.rounding_shift_right(high, 8) + scales(op.outputs[0])[1]
    return cast(clamp(code, low, top), op.outputs[0].dtype)


def div(op: Op) -> Expr:
    if not is_quantized(op.outputs[0]):
        if not op.outputs[0].dtype.is_float:
            need_divisor(op)
        return result(op, activated(op, operand(op, 0) / operand(op, 1)))
    need_divisor(op)
    out, zero = scales(op.outputs[0])
    factor = scales(op.inputs[0])[0] / scales(op.inputs[1])[0] / out
    found = coded(op, centred(op, 0) / centred(op, 1) * factor + zero)
    need(_is_right(op, found), "its quotients are not the definition's for all pairs of codes")
    return found


def _is_right(op: Op, expr: Expr) -> bool:
    """Whether it is the definition, for all pairs of 8-bit codes but divisors of zero."""
    x, y = (tensor_at(op, i) for i in (0, 1))
    if x.dtype not in BYTES or y.dtype not in BYTES:
        return False
    first, second = (np.arange(t.dtype.bounds[0], t.dtype.bounds[1] + 1) for t in (x, y))
    second = second[second != scales(y)[1]]
    pairs = [first.astype(x.dtype.numpy)[:, None], second.astype(y.dtype.numpy)[None]]
    return np.array_equal(X.evaluate(expr, pairs), evaluate(op, pairs, new_state())[0])


def squared_difference(op: Op) -> Expr:
    out = op.outputs[0]
    if not is_quantized(out):
        difference = operand(op, 0) - operand(op, 1)
        return result(op, difference * difference)
    s1, s2 = (float(np.float32(scales(t)[0])) for t in op.inputs)
    twice, left = 2 * max(s1, s2), 7
    a, b = (real_product(whole_codes(op, i) << left, s / twice) for i, s in enumerate((s1, s2)))
    real = twice * twice / (2.0 ** (2 * left) * scales(out)[0])
    return coded_whole(op, real_product((a - b) * (a - b), real))


def extreme(choose: Callable[[Expr, Expr], Expr]) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        need_alike(op)
        return result(op, choose(operand(op, 0), operand(op, 1)))

    return expression


def floor_div(op: Op) -> Expr:
    need_divisor(op)
    a, b = operand(op, 0), operand(op, 1)
    if a.dtype is F32:  # in double: a float32 quotient may round up to the next whole
        return result(op, cast(X.floor(cast(a, F64) / cast(b, F64)), F32))
    return result(op, a // b)


def floor_mod(op: Op) -> Expr:
    a, b = operand(op, 0), operand(op, 1)
    if a.dtype is not F32:
        need_divisor(op)
        need(a.dtype is not I64, "vectors do not divide i64")
    return result(op, a % b)


def power(op: Op) -> Expr:
    a, exponent = operand(op, 0), tensor_at(op, 1)
    need(a.dtype is F32, "powers of integers have no kernel")
    if math.prod(exponent.shape) != 1 or tensor_at(op, 0).shape == exponent.shape:
        return result(op, a ** operand(op, 1))
    # A single exponent next to a whole number stands for that.
    need(exponent.data is not None, "a single exponent is computed at run time")
    value = float(exponent.values.reshape(()))
    if value == 0.5:
        return result(op, X.sqrt(a))
    whole = 0.5 <= value < 2**31 and abs(value - round(value)) < 1e-5
    return result(op, _repeated(a, round(value)) if whole else a**value)


def atan2(op: Op) -> Expr:
    need(tensor_at(op, 0).shape == tensor_at(op, 1).shape, "its inputs differ in shape")
    y = operand(op, 0)
    need(y.dtype is F32, f"type {y.dtype.short} has no kernel")
    return result(op, X.atan2(y, operand(op, 1)))


def _repeated(a: Expr, exponent: int) -> Expr:
    """Repeated squaring; LiteRT clamps every product to the finite range."""
    if exponent == 1:
        return a
    half = _repeated(a, exponent // 2)
    square = _finite(half * half)
    return _finite(square * a) if exponent % 2 else square


def _finite(x: Expr) -> Expr:
    most = float(np.finfo(np.float32).max)
    return clamp(x, -most, most)


def add_n(op: Op) -> Expr:
    need(len(op.inputs) <= MOST_INPUTS, f"more than {MOST_INPUTS} operands")
    return result(op, reduce(lambda a, b: a + b, [operand(op, i) for i in range(len(op.inputs))]))


# -- comparison, logic, selection ---------------------------------------------------------------


def compare(name: str, int16_codes: bool) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        a, b = operand(op, 0), operand(op, 1)
        tensors = [tensor_at(op, i) for i in (0, 1)]
        scaled = all(t.quant is not None and is_quantized(t) for t in tensors)
        if scaled and not (int16_codes and tensors[0].dtype is DType.INT16):
            a, b = (_real_steps(x, t) for x, t in zip((a, b), tensors, strict=True))
        else:
            need_alike(op)
        return result(op, X.apply(name, a, b))

    return expression


def _real_steps(x: Expr, tensor: Tensor) -> Expr:
    """The real value in steps of 1/256: a bool has no near miss."""
    scale, zero = scales(tensor)
    return real_product((cast(x, I64) - zero) << 8, scale)


def logical(name: str) -> Callable[[Op], Expr]:
    return lambda op: result(op, X.apply(name, *(operand(op, i) for i in range(len(op.inputs)))))


def bitwise_xor(op: Op) -> Expr:
    return result(op, operand(op, 0) ^ operand(op, 1))


def right_shift(op: Op) -> Expr:
    a, b = operand(op, 0), operand(op, 1)
    b = b if a.dtype.numpy.kind == "u" else X.maximum(b, 0)
    return result(op, a >> X.minimum(b, a.dtype.bits - 1))


def choose(op: Op) -> Lowered:
    need_alike(op, first=1)
    x, y = (Input(i, tensor_at(op, i).dtype) for i in (1, 2))
    need(x.dtype in TYPES, f"type {x.dtype.short} has no kernel")
    shapes = [tensor_at(op, i).shape for i in range(3)]
    if op.name == "SELECT" and len(shapes[0]) == 1:
        shapes[0] = (*shapes[0], *(1,) * (len(shapes[1]) - 1))
    expr = select(operand(op, 0), x, y)
    need(expr.dtype is op.outputs[0].dtype, "its operands differ in type")
    return Lowered(list(op.inputs), expr, shapes)
