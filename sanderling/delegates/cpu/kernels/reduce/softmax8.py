"""SOFTMAX of 8-bit codes in the definition's fixed point.

A code counts by its difference from the row's largest one: 256 exponentials, which the definition
computes beforehand. What is left are their sum, its reciprocal and a product for each code.
"""

from __future__ import annotations

import math

import numpy as np

from .....errors import SanderlingError
from .....ir import Array, DType, Op, Tensor
from .....ops.activation import SUM_BITS, exp_rows
from .....ops.base import attr
from .....ops.fixed import divide_by_pot
from ...codegen.emit import I8, I16, I32, I64, PTR, Emitter, Value, vector
from ...codegen.fixedpoint import reciprocal
from ...codegen.program import StepEmitter
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..elementwise.operands import BYTES
from ..row import Kernel
from . import rowwise

# Elements of a row whose sum stays below 2**31, whatever they are.
LONGEST = (1 << SUM_BITS) - 1


def is_bytes(op: Op) -> bool:
    x = op.input(0)
    return x is not None and x.dtype in BYTES


def tables_of(op: Op) -> Array:
    """For the differences 0 to 255 from the largest code: exponentials, and their share of a
    sum."""
    codes = np.stack([np.zeros(256, np.int64), -np.arange(256)], axis=1)
    powers = exp_rows(op, codes, float(np.float32(attr(op, "beta"))))[2][:, 1]
    return np.concatenate([powers, divide_by_pot(powers, SUM_BITS)]).astype(np.int32)


def emit_softmax(k: StepEmitter, op: Op) -> None:
    x, y = _operand(op), op.outputs[0]
    length, size = x.shape[-1], y.dtype.numpy.itemsize
    table, source, target = k.constant(tables_of(op)), k.ptr(x), k.ptr(y)
    name = f"softmax_{x.dtype.short}_{y.dtype.short}"
    function = k.program.function(name, [PTR] * 3 + [I64], lambda e: _build(e, x.dtype, y.dtype))
    begin, end = k.share(math.prod(x.shape[:-1]))
    with k.loop(begin, end) as row:
        at = k.mul(row, length)
        places = [k.at(target, k.mul(at, size), I8), k.at(source, at, I8), table]
        k.b.call(function, [*places, I64(length)])


def _build(e: Emitter, given: DType, made: DType) -> None:
    """(to, by, table, count): a row."""
    to, by, table, count = e.args
    top = _largest(e, by, count, given)

    def below(i: Value) -> Value:
        return e.b.sub(top, _widened(e, e.load(e.at(by, i, I8), I8), given))

    with e.loop(0, count, carry=[I64(0)]) as (i, (total,)):
        share = e.load(e.at(table, e.b.add(below(i), I64(256)), I32), I32, 4)
        e.carry([e.b.add(total, e.b.sext(share, I64))])
    inverse, zeros = reciprocal(e, e.smax(e.carried[0], I64(1)))
    right = e.b.sub(I64(SUM_BITS + 31 - made.bits), zeros)
    half = e.b.lshr(e.b.shl(I64(1), right), I64(1))
    low, high = made.bounds
    with e.loop(0, count) as i:
        power = e.b.sext(e.load(e.at(table, below(i), I32), I32, 4), I64)
        product = e.b.ashr(e.b.add(e.b.mul(power, inverse), I64(1 << 30)), I64(31))
        code = e.b.add(e.b.ashr(e.b.add(product, half), right), I64(low))
        kind = I8 if made.bits == 8 else I16
        e.store(e.b.trunc(e.smin(code, I64(high)), kind), e.at(to, i, kind))


def _widened(e: Emitter, code: Value, dtype: DType) -> Value:
    return (e.b.sext if dtype is DType.INT8 else e.b.zext)(code, I64)


def _largest(e: Emitter, by: Value, count: Value, dtype: DType) -> Value:
    lanes, larger = e.target.width, e.smax if dtype is DType.INT8 else e.umax
    t = vector(I8, lanes)
    whole = e.mul(e.div(count, lanes), lanes)
    with e.loop(0, whole, lanes, carry=[e.const(t, dtype.bounds[0])]) as (i, (top,)):
        e.carry([larger(top, e.load(e.at(by, i, I8), t))])
    start = horizontal(e, e.carried[0], larger)
    with e.loop(whole, count, carry=[start]) as (i, (top,)):
        e.carry([larger(top, e.load(e.at(by, i, I8), I8))])
    return _widened(e, e.carried[0], dtype)


def refuses_softmax(op: Op, target: Target) -> str | None:
    found = rowwise.refuses_softmax(op, target)
    if found is not None:
        return found
    x = _operand(op)
    if 0 in x.shape or x.shape[-1] > LONGEST:
        return f"rows of none or of more than {LONGEST} elements"
    try:
        tables_of(op)
    except SanderlingError as error:
        return f"it cannot be evaluated: {error.what}"
    return None


def _operand(op: Op) -> Tensor:
    x = op.inputs[0]
    assert x is not None
    return x


KERNELS = {"SOFTMAX": Kernel(emit_softmax, refuses_softmax, handles=is_bytes)}
