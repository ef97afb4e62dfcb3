"""LOCAL_RESPONSE_NORMALIZATION: each number by the squares of its neighbours among the channels."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .....ir import DType, Op
from .....ops.base import attr
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, I64, PTR, Emitter, Value, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel


def emit_response(k: StepEmitter, op: Op) -> None:
    """A row's squares are laid out with zeros at both ends, then each window is added up."""
    x, y = op.operand(0), op.outputs[0]
    depth = x.shape[-1]
    radius = min(int(attr(op, "radius")), depth)
    lanes = k.target.lanes if depth >= k.target.lanes else 1
    beta = float(np.float32(attr(op, "beta")))
    numbers = k.constant(np.array([attr(op, "bias"), attr(op, "alpha"), -beta], np.float32))
    source, target = k.ptr(x), k.ptr(y)
    memory = k.scratch(4 * (depth + 2 * radius))
    for side in (0, depth + radius):
        k.fill(k.at(memory, side, F32), 4 * radius, 0)
    name = f"response_x{lanes}_b{np.float32(beta).view(np.uint32):x}"
    function = k.program.function(
        name, [PTR] * 4 + [I64] * 2, partial(_build, lanes=lanes, beta=beta)
    )
    begin, end = k.share(math.prod(x.shape[:-1]))
    with k.loop(begin, end) as row:
        place = k.mul(row, depth)
        k.b.call(
            function,
            [
                k.at(target, place, F32),
                k.at(source, place, F32),
                memory,
                numbers,
                I64(depth),
                I64(radius),
            ],
        )


def _build(e: Emitter, lanes: int, beta: float) -> None:
    """(to, by, squares, numbers, depth, radius): a row; the last vector reaches back."""
    to, by, squares, numbers, depth, radius = e.args
    t = vector(F32, lanes)
    inner, last = e.at(squares, radius, F32), e.sub(depth, lanes)
    with e.loop(0, depth, lanes) as i:
        place = e.min(i, last)
        value = e.load(e.at(by, place, F32), t)
        e.store(e.b.fmul(value, value), e.at(inner, place, F32))
    bias, alpha, power = (e.splat(e.load(e.at(numbers, j, F32), F32, 4), lanes) for j in range(3))
    window = e.add(e.mul(radius, 2), 1)
    with e.loop(0, depth, lanes) as i:
        place = e.min(i, last)
        with e.loop(0, window, carry=[e.const(t, 0)]) as (j, (total,)):
            e.carry([e.b.fadd(total, e.load(e.at(squares, e.add(place, j), F32), t))])
        base = e.b.fadd(bias, e.b.fmul(alpha, e.carried[0]))
        value = e.load(e.at(by, place, F32), t)
        e.store(_divided(e, value, base, beta, power), e.at(to, place, F32))


def _divided(e: Emitter, value: Value, base: Value, beta: float, power: Value) -> Value:
    """value / base ** beta, by roots where they will do."""
    if beta == 1:
        return e.b.fdiv(value, base)
    if beta in (0.5, 0.75):
        root = vmath.sqrt(e, base)
        return e.b.fdiv(value, root if beta == 0.5 else e.b.fmul(root, vmath.sqrt(e, root)))
    return e.b.fmul(value, vmath.power(e, base, power))


def refuses_response(op: Op, target: Target) -> str | None:
    x = op.operand(0)
    if x.dtype is not DType.FLOAT32 or len(x.shape) != 4 or 0 in x.shape:
        return f"{x.dtype.short} of {len(x.shape)} dimensions has no kernel"
    if not all(0 <= attr(op, name) < math.inf for name in ("bias", "alpha")):
        return "the bias or alpha is negative or infinite: roots and powers differ below zero"
    return "a negative radius" if int(attr(op, "radius")) < 0 else None


KERNELS = {"LOCAL_RESPONSE_NORMALIZATION": Kernel(emit_response, refuses_response)}
