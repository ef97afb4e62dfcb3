"""MediaPipe's operators: a transposed convolution, pooling that keeps places, and the way back."""

from __future__ import annotations

import math

from .....errors import SanderlingError
from .....ir import DType, Op
from .....ops.custom import pool_axes, pool_options, transposed_sizes
from .....ops.fixed import ACTIVATION_BOUNDS, finite_bounds
from .....ops.geometry import Axis, padding_before
from ...codegen.emit import F32, I64, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..products.conv import refuses_product
from ..products.transposed import emit_phases, refuses_phases
from ..row import Kernel

# -- transposed convolution ---------------------------------------------------------------------


def _as_conv(op: Op) -> Op:
    return Op("CONV_2D", op.inputs, op.outputs, {"fused_activation_function": "NONE"})


def emit_transposed(k: StepEmitter, op: Op) -> None:
    (sy, _, top), (sx, _, left) = transposed_sizes(op, op.operand(0).shape, op.operand(1).shape)
    emit_phases(k, _as_conv(op), (sy, sx), (top, left))


def refuses_transposed(op: Op, target: Target) -> str | None:
    tensors = [op.operand(0), op.operand(1), *op.outputs]
    if any(t.dtype is not DType.FLOAT32 or len(t.shape) != 4 for t in tensors):
        return "only a product of floats has a kernel"
    return _wrong(op) or _refuses_strides(op) or refuses_product(_as_conv(op), target)


def _refuses_strides(op: Op) -> str | None:
    sizes = transposed_sizes(op, op.operand(0).shape, op.operand(1).shape)
    return refuses_phases(op, op.outputs[0].shape[1:3], [stride for stride, _, _ in sizes])


def _wrong(op: Op) -> str | None:
    """What the definition says against its options."""
    try:
        if op.name == "custom.Convolution2DTransposeBias":
            transposed_sizes(op, op.operand(0).shape, op.operand(1).shape)
        else:
            pool_axes(op, op.operand(0).shape)
    except SanderlingError as error:
        return f"its operands do not fit together: {error}"
    return None


# -- pooling with places ------------------------------------------------------------------------


def emit_argmax_pool(k: StepEmitter, op: Op) -> None:
    """The last channels reach back; of a window only the taps inside the input are walked."""
    x, (best, where) = op.operand(0), op.outputs
    high, wide = pool_axes(op, x.shape)
    depth, (_, _, (_, columns), activation) = x.shape[3], pool_options(op)
    lanes = k.target.lanes if depth >= k.target.lanes else 1
    low, top = finite_bounds(ACTIVATION_BOUNDS[activation])
    lowest, _ = finite_bounds(ACTIVATION_BOUNDS["NONE"])
    source, targets = k.ptr(x), [k.ptr(best), k.ptr(where)]
    t = vector(F32, lanes)
    begin, end = k.share(x.shape[0] * high.out * wide.out)
    with k.loop(begin, end) as pixel:
        line, column = k.div(pixel, wide.out), k.rem(pixel, wide.out)
        image, row = k.div(line, high.out), k.rem(line, high.out)
        picture = k.at(source, k.mul(image, high.size * wide.size * depth), F32)
        with k.loop(0, depth, lanes) as i:
            channel = k.min(i, depth - lanes)
            start = [k.const(t, float(lowest)), k.const(t, 0)]
            with k.loop(*_inside(k, high, row), carry=start) as (ky, found):
                down = k.mul(_place(k, high, row, ky), wide.size)
                with k.loop(*_inside(k, wide, column), carry=found) as (kx, (value, tap)):
                    at = k.add(k.mul(k.add(down, _place(k, wide, column, kx)), depth), channel)
                    seen = k.load(k.at(picture, at, F32), t)
                    better = k.b.fcmp_ordered(">", seen, value)
                    number = k.b.sitofp(k.i64(k.add(k.mul(ky, columns), kx)), F32)
                    k.carry(
                        [
                            k.b.select(better, seen, value),
                            k.b.select(better, k.splat(number, lanes), tap),
                        ]
                    )
                k.carry(k.carried)
            value, tap = k.carried
            value = k.fmin(k.fmax(value, k.const(t, low)), k.const(t, top))
            to = k.add(k.mul(pixel, depth), channel)
            k.store(value, k.at(targets[0], to, F32))
            k.store(k.b.fadd(tap, k.const(t, 0.1)), k.at(targets[1], to, F32))


def _place(e: Emitter, axis: Axis, out: Int, tap: Int) -> Int:
    return e.sub(e.add(e.mul(out, axis.stride), tap), axis.before)


def _inside(e: Emitter, axis: Axis, out: Int) -> tuple[Int, Int]:
    """The taps that lie inside the input."""
    first = _place(e, axis, out, 0)
    return e.max(e.sub(0, first), 0), e.min(e.sub(axis.size, first), axis.taps)


def refuses_pool(op: Op, target: Target) -> str | None:
    x = op.operand(0)
    if x.dtype is not DType.FLOAT32 or len(x.shape) != 4 or 0 in x.shape:
        return f"{x.dtype.short} of {len(x.shape)} dimensions has no kernel"
    if len(op.inputs) > 1 and op.operand(1).shape != x.shape:
        return "its inputs differ in shape"
    return _wrong(op)


# -- and back -----------------------------------------------------------------------------------

REACH = float(2**31)  # indices beyond it name no place


def emit_unpool(k: StepEmitter, op: Op) -> None:
    """An image at a time, in order: of values for one place the last stays."""
    x, y = op.operand(0), op.outputs[0]
    _, strides, taps, _ = pool_options(op)
    batch, rows, columns, depth = x.shape
    sizes = y.shape[1:3]
    before = [
        padding_before(size, f, s, 1, count)
        for count, s, size, f in zip((rows, columns), strides, sizes, taps, strict=True)
    ]
    source, places, target = k.ptr(x), k.ptr(op.operand(1)), k.ptr(y)
    begin, end = k.share(batch)
    with k.loop(begin, end) as image:
        picture = k.at(target, k.mul(image, math.prod(y.shape[1:])), F32)
        k.fill(picture, 4 * math.prod(y.shape[1:]), 0)
        with k.loop(0, rows) as row, k.loop(0, columns) as column:
            first = [
                k.sub(k.mul(i, s), b)
                for i, s, b in zip((row, column), strides, before, strict=True)
            ]
            pixel = k.add(k.mul(k.add(k.mul(image, rows), row), columns), column)
            with k.loop(0, depth) as channel:
                at = k.add(k.mul(pixel, depth), channel)
                index = k.load(k.at(places, at, F32), F32)
                down, across, good = _named(k, index, first, taps[1], sizes)
                with k.when(good):
                    to = k.add(k.mul(k.add(k.mul(down, sizes[1]), across), depth), channel)
                    k.store(k.load(k.at(source, at, F32), F32), k.at(picture, to, F32))


def _named(
    e: Emitter, index: Value, first: list[Int], width: int, sizes: tuple[int, ...]
) -> tuple[Value, Value, Value]:
    """The place that an index names, and whether it is inside; division is toward zero."""
    size = e.b.and_(
        e.b.fcmp_ordered("<", index, e.const(F32, REACH)),
        e.b.fcmp_ordered(">", index, e.const(F32, -REACH)),
    )
    whole = e.b.fptosi(e.b.select(size, index, e.const(F32, 0)), I64)
    down = e.add(first[0], e.b.sdiv(whole, I64(width)))
    across = e.add(first[1], e.b.srem(whole, I64(width)))
    good = e.b.and_(
        e.b.icmp_unsigned("<", e.i64(down), I64(sizes[0])),
        e.b.icmp_unsigned("<", e.i64(across), I64(sizes[1])),
    )
    return down, across, e.b.and_(size, good)


KERNELS = {
    "custom.Convolution2DTransposeBias": Kernel(
        emit_transposed, refuses_transposed, lambda op: "transpose_conv_bias"
    ),
    "custom.MaxPoolingWithArgmax2D": Kernel(
        emit_argmax_pool, refuses_pool, lambda op: "max_pool_argmax"
    ),
    "custom.MaxUnpooling2D": Kernel(emit_unpool, refuses_pool, lambda op: "max_unpool"),
}
