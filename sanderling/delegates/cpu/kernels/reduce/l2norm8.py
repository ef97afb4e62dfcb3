"""L2_NORMALIZATION of 8-bit codes in the definition's fixed point: the sum of a row's squares, the
inverse of its root as a quantised multiplier, and a product for each code."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from .....ir import DType, Op
from .....ops.base import attr, scale_zero
from ...codegen.emit import I8, I32, I64, PTR, Emitter, Int, Value, vector
from ...codegen.fixedpoint import Scale, clamp, inverse_sqrt
from ...codegen.program import StepEmitter
from ...codegen.vectors import first_lanes, horizontal, sweep
from ...dialect.fused import Fused, either
from ...isa.targets import Target
from ..elementwise.operands import tensor_at
from ..row import Kernel
from .softmax8 import is_bytes


def emit_l2(k: StepEmitter, op: Op) -> None:
    x = tensor_at(op, 0)
    length, signed = x.shape[-1], Fused.of(op).signed
    tail = length % k.target.lanes
    zero = k.constant(np.array([scale_zero(x)[1]], np.int32))
    source, target = k.ptr(x), k.ptr(op.outputs[0])
    name = f"l2_{x.dtype.short}_t{tail}" + "_signed" * signed
    function = k.program.function(
        name, [PTR] * 3 + [I64], lambda e: _build(e, x.dtype, tail, signed)
    )
    begin, end = k.share(math.prod(x.shape[:-1]) if length else 0)
    with k.loop(begin, end) as row:
        at = k.mul(row, length)
        k.b.call(function, [k.at(target, at, I8), k.at(source, at, I8), zero, I64(length - tail)])


def _build(e: Emitter, dtype: DType, tail: int, signed: bool) -> None:
    """(to, by, zero, whole): a row, of which `whole` are in full vectors. signed: the definition is
    that of int8, whatever the codes' type is here."""
    to, by, place, whole = e.args
    lanes = e.target.lanes
    t = vector(I32, lanes)
    zero, none = e.splat(e.load(place, I32, 4), lanes), e.const(t, 0)
    low, high = dtype.bounds
    middle = e.const(t, 128 if dtype is DType.UINT8 else 0)

    def centred(i: Int, count: int) -> Value:
        raw = e.load_part(e.at(by, i, I8), vector(I8, lanes), count)
        wide = (e.b.sext if dtype is DType.INT8 else e.b.zext)(raw, t)
        return e.b.sub(wide, zero)

    def square(i: Int, count: int, held: list[Value]) -> list[Value]:
        x = first_lanes(e, centred(i, count), count, none)
        return [e.b.add(held[0], e.b.mul(x, x))]

    def plus(a: Value, b: Value) -> Value:
        return e.b.add(a, b)

    total = horizontal(e, sweep(e, whole, tail, lanes, [none], square, plus)[0], plus)
    scale = _scale(e, e.b.sext(total, I64), signed)

    def finish(i: Int, count: int, held: list[Value]) -> list[Value]:
        code = clamp(e, e.b.add(scale(e, centred(i, count)), middle), low, high)
        e.store_part(e.b.trunc(code, vector(I8, lanes)), e.at(to, i, I8), count)
        return held

    sweep(e, whole, tail, lanes, [], finish)


def _scale(e: Emitter, total: Value, signed: bool) -> Scale:
    """128 / sqrt(total). The kernels of int8 and uint8 place the factor 128 differently, and so
    round differently."""
    m, right = inverse_sqrt(e, e.smax(total, I64(1)))
    left = I64(7)
    if signed:
        shift = e.b.sub(I64(7), right)
        left, right = e.smax(shift, I64(0)), e.smax(e.b.sub(I64(0), shift), I64(0))
    return Scale(*(e.splat(e.b.trunc(v, I32), e.target.lanes) for v in (m, left, right)))


def refuses_l2(op: Op, target: Target) -> str | None:
    out = op.outputs[0]
    if attr(op, "fused_activation_function") != "NONE":
        return "it has no fused activation"
    middle = 128 if out.dtype is DType.UINT8 else 0
    return None if scale_zero(out) == (1 / 128, middle) else "the output's scale is not 1/128"


CODES = Kernel(emit_l2, refuses_l2, sign_matters=True)
PLAIN, SIGNED = either("L2_NORMALIZATION")
KERNELS = {PLAIN: replace(CODES, handles=is_bytes), SIGNED: CODES}
