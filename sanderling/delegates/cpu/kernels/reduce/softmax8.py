"""SOFTMAX and LOG_SOFTMAX of 8-bit codes in the definition's fixed point.

A code counts by its difference from the row's largest one: 256 exponentials, which the definition
computes beforehand. What is left are their sum, its reciprocal and a product for each code; or its
logarithm and a difference.
"""

from __future__ import annotations

import math

import numpy as np

from .....errors import SanderlingError
from .....ir import Array, DType, Op, Tensor
from .....ops.activation import DIFF_BITS, SUM_BITS, diff_scale, exp_rows, log_bound
from .....ops.base import attr, scale_zero
from .....ops.fixed import divide_by_pot
from ...codegen.emit import I8, I16, I32, I64, PTR, Emitter, Value, vector
from ...codegen.fixedpoint import divide_one, log, multiply_one, reciprocal, scale_words
from ...codegen.program import StepEmitter
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..elementwise.operands import BYTES
from ..row import Kernel

# Elements of a row whose sum stays below 2**31, whatever they are.
LONGEST = (1 << SUM_BITS) - 1


def is_bytes(op: Op) -> bool:
    x = op.input(0)
    return x is not None and x.dtype in BYTES


def tables_of(op: Op) -> Array:
    """For the differences 0 to 255 from the largest code: exponentials (of a logarithm, the
    differences themselves), and their share of a sum; then the numbers of `_limit`."""
    codes = np.stack([np.zeros(256, np.int64), -np.arange(256)], axis=1)
    logs = op.name == "LOG_SOFTMAX"
    beta = 1.0 if logs else float(np.float32(attr(op, "beta")))
    scaled, powers = (table[:, 1] for table in exp_rows(op, codes, beta)[1:3])
    shares, rest = divide_by_pot(powers, SUM_BITS), []
    if logs:
        rest = [diff_scale(op, beta)[2] - 1, *scale_words(*log_bound(op))]
    return np.concatenate([scaled if logs else powers, shares, rest]).astype(np.int32)


def emit_softmax(k: StepEmitter, op: Op) -> None:
    x, y = _operand(op), op.outputs[0]
    length, size = x.shape[-1], y.dtype.numpy.itemsize
    table, source, target = k.constant(tables_of(op)), k.ptr(x), k.ptr(y)
    name = f"{op.name.lower()}_{x.dtype.short}_{y.dtype.short}"
    build = _build_log if op.name == "LOG_SOFTMAX" else _build
    function = k.program.function(name, [PTR] * 3 + [I64], lambda e: build(e, x.dtype, y.dtype))
    begin, end = k.share(math.prod(x.shape[:-1]) if length else 0)
    with k.loop(begin, end) as row:
        at = k.mul(row, length)
        places = [k.at(target, k.mul(at, size), I8), k.at(source, at, I8), table]
        k.b.call(function, [*places, I64(length)])


class _Row:
    """(to, by, table, count): a row's differences from its largest code, and their sum."""

    def __init__(self, e: Emitter, given: DType) -> None:
        self.e, self.given = e, given
        self.to, self.by, self.table, self.count = e.args
        self.top = _largest(e, self.by, self.count, given)
        with e.loop(0, self.count, carry=[I64(0)]) as (i, (total,)):
            share = self.look(e.b.add(self.below(i), I64(256)))
            e.carry([e.b.add(total, share)])
        self.total = e.smax(e.carried[0], I64(1))

    def below(self, i: Value) -> Value:
        """How far a code is below the largest."""
        e = self.e
        return e.b.sub(self.top, _widened(e, e.load(e.at(self.by, i, I8), I8), self.given))

    def look(self, place: Value | int) -> Value:
        """A number of the table."""
        return self.e.b.sext(self.e.load(self.e.at(self.table, place, I32), I32, 4), I64)


def _build(e: Emitter, given: DType, made: DType) -> None:
    row = _Row(e, given)
    inverse, zeros = reciprocal(e, row.total)
    right = e.b.sub(I64(SUM_BITS + 31 - made.bits), zeros)
    half = e.b.lshr(e.b.shl(I64(1), right), I64(1))
    low, high = made.bounds
    with e.loop(0, row.count) as i:
        power = row.look(row.below(i))
        product = e.b.ashr(e.b.add(e.b.mul(power, inverse), I64(1 << 30)), I64(31))
        code = e.b.add(e.b.ashr(e.b.add(product, half), right), I64(low))
        kind = I8 if made.bits == 8 else I16
        e.store(e.b.trunc(e.smin(code, I64(high)), kind), e.at(row.to, i, kind))


def _build_log(e: Emitter, given: DType, made: DType) -> None:
    row = _Row(e, given)
    log_total = log(e, row.total, SUM_BITS, DIFF_BITS)
    limit = _limit(e, row, log_total)
    low, high = made.bounds
    with e.loop(0, row.count) as i:
        below = row.below(i)
        difference = e.b.sub(row.look(below), log_total)
        found = e.b.add(divide_one(e, difference, 31 - DIFF_BITS - 4), I64(high))
        code = e.smin(e.smax(found, I64(low)), I64(high))
        near = e.b.icmp_signed(">", e.b.sub(I64(0), below), limit)
        e.store(e.b.trunc(e.b.select(near, code, I64(low)), I8), e.at(row.to, i, I8))


def _limit(e: Emitter, row: _Row, log_total: Value) -> Value:
    """The difference from which on a code's result is the smallest."""
    least, *scale = (row.look(512 + i) for i in range(4))
    return e.smax(least, multiply_one(e, e.b.sub(log_total, I64(1 << 31)), *scale))


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
    if _operand(op).shape[-1] > LONGEST:
        return f"rows of more than {LONGEST} elements"
    logs, out = op.name == "LOG_SOFTMAX", op.outputs[0]
    if logs and scale_zero(out) != (1 / 16, out.dtype.bounds[1]):
        return "the output's scale is not 1/16"
    try:
        tables_of(op)
    except SanderlingError as error:
        return f"it cannot be evaluated: {error.what}"
    return None


def _operand(op: Op) -> Tensor:
    x = op.operand(0)
    return x


KERNELS = {
    name: Kernel(emit_softmax, refuses_softmax, handles=is_bytes)
    for name in ("SOFTMAX", "LOG_SOFTMAX")
}
