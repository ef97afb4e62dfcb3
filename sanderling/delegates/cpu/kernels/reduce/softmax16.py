"""SOFTMAX of int16 codes: exponentials by a table, the row's reciprocal as defined."""

from __future__ import annotations

import math

import numpy as np

from .....ir import Array, DType, Op
from .....ops.activation import EXP16, INVERSE16
from .....ops.base import attr, scale_zero
from .....ops.fixed import multiply, quantize_multiplier
from .....ops.lut import lookup16
from ...codegen.emit import I1, I16, I32, I64, PTR, Emitter, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..elementwise.tables16 import CODES
from ..row import Kernel

LONGEST = 1 << 15  # elements of a row whose sum and rounding stay below 2**31


def is_words(op: Op) -> bool:
    x, y = op.input(0), op.outputs[0]
    return x is not None and x.dtype is y.dtype is DType.INT16


def powers_of(op: Op) -> Array:
    """Exponentials of the differences -65535 to 0 from the row's largest code."""
    scale = np.float32(scale_zero(op.inputs[0])[0]) * np.float32(attr(op, "beta"))
    scaled = multiply(np.arange(1 - CODES, 1), *quantize_multiplier(float(scale) / (10 / 65535)))
    return lookup16(np.clip(scaled + 32767, -32768, 32767), EXP16).astype(np.int16)


def emit_softmax(k: StepEmitter, op: Op) -> None:
    x, y = op.operand(0), op.outputs[0]
    length = x.shape[-1]
    places = [
        k.at(k.constant(powers_of(op)), CODES - 1, I16),
        k.constant(INVERSE16.astype(np.int32)),
    ]
    source, target, memory = k.ptr(x), k.ptr(y), k.scratch(2 * length)
    function = k.program.function("softmax_i16", [PTR] * 5 + [I64], _build_softmax)
    begin, end = k.share(math.prod(x.shape[:-1]))
    with k.loop(begin, end) as row:
        at = k.mul(row, length)
        k.b.call(
            function, [k.at(target, at, I16), k.at(source, at, I16), memory, *places, I64(length)]
        )


def _build_softmax(e: Emitter) -> None:
    """(to, by, powers, table, inverses, count): a row."""
    to, by, powers, table, inverses, count = e.args
    top = _largest(e, by, count)
    with e.loop(0, count, carry=[I32(0)]) as (i, (total,)):
        code = e.b.sext(e.load(e.at(by, i, I16), I16), I64)
        power = e.load(e.at(table, e.b.sub(code, top), I16), I16, 2)
        e.store(power, e.at(powers, i, I16), 2)
        e.carry([e.b.add(total, e.b.sext(power, I32))])
    total = e.smax(e.carried[0], I32(1))
    zeros = e.call("llvm.ctlz.i32", I32, total, I1(0))
    inverse = _inverse(e, total, zeros, inverses)
    right = e.b.sub(I32(31), zeros)
    half = e.b.shl(I32(1), e.b.sub(right, I32(1)))
    whole = e.mul(e.div(count, e.target.lanes), e.target.lanes)
    for start, stop, n in ((0, whole, e.target.lanes), (whole, count, 1)):
        wide, narrow = vector(I32, n), vector(I16, n)
        with e.loop(start, stop, n) as i:
            power = e.b.sext(e.load(e.at(powers, i, I16), narrow, 2), wide)
            product = e.b.add(e.b.mul(power, e.splat(inverse, n)), e.splat(half, n))
            found = e.b.ashr(product, e.splat(right, n))
            found = e.smin(e.smax(found, e.const(wide, 0)), e.const(wide, 32767))
            e.store(e.b.trunc(found, narrow), e.at(to, i, I16))


def _largest(e: Emitter, by: Value, count: Value) -> Value:
    lanes = e.target.width // 2
    t, least = vector(I16, lanes), -CODES // 2
    whole = e.mul(e.div(count, lanes), lanes)
    with e.loop(0, whole, lanes, carry=[e.const(t, least)]) as (i, (top,)):
        e.carry([e.smax(top, e.load(e.at(by, i, I16), t))])
    start = horizontal(e, e.carried[0], e.smax)
    with e.loop(whole, count, carry=[start]) as (i, (top,)):
        e.carry([e.smax(top, e.load(e.at(by, i, I16), I16))])
    return e.b.sext(e.carried[0], I64)


def _inverse(e: Emitter, total: Value, zeros: Value, table: Value) -> Value:
    """1 / (1 + x) of the sum's mantissa: nine bits choose from the table, seven interpolate."""
    b = e.b
    mantissa = b.ashr(b.add(b.shl(total, b.sub(zeros, I32(1))), I32(1 << 13)), I32(14))
    x = b.sub(mantissa, I32((1 << 15) + (1 << 16)))
    x = e.smin(e.smax(x, I32(-32768)), I32(32767))
    index = b.sext(b.add(I32(256), b.ashr(x, I32(7))), I64)
    first, second = (e.load(e.at(table, e.add(index, i), I32), I32, 4) for i in (0, 1))
    slope = b.sext(b.trunc(b.sub(second, first), I16), I32)
    step = b.ashr(b.add(b.mul(slope, b.and_(x, I32(127))), I32(64)), I32(7))
    return b.sext(b.trunc(b.add(first, step), I16), I32)


def refuses_softmax(op: Op, target: Target) -> str | None:
    tensors = (op.operand(0), op.outputs[0])
    if any(t.quant is None or t.quant.scale.size != 1 or scale_zero(t)[1] for t in tensors):
        return "int16 codes with a zero point, or without a scale"
    if not op.operand(0).shape or 0 in op.operand(0).shape or op.operand(0).shape[-1] > LONGEST:
        return f"rows of none or of more than {LONGEST} elements"
    return None


KERNELS = {"SOFTMAX": Kernel(emit_softmax, refuses_softmax, handles=is_words)}
