"""TRANSPOSE_CONV: for each phase of the stride one convolution with the taps that reach it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...ir import DType, Op
from ...ops.base import attr, quant, scale_zero
from ...ops.geometry import padding_before
from .conv import Spread, data, emit_product, refuses_product
from .emit import Int
from .program import Kernel, StepEmitter
from .rows import Window
from .targets import Target


@dataclass(frozen=True)
class Phase:
    """Outputs first, first + stride, ... of an axis: which taps reach them, from which inputs."""

    first: int
    count: int
    taps: tuple[int, ...]
    pad: int


def phases(out: int, size: int, kernel: int, stride: int, same: bool) -> Iterator[Phase]:
    """Output o sums input i with tap t where o = i * stride + t - before."""
    before = padding_before(out, kernel, stride, 1, size) if same else 0
    for first in range(min(stride, out)):
        tap = (first + before) % stride
        taps = tuple(range(tap, kernel, stride))
        base = (first + before - tap) // stride
        yield Phase(first, -(-(out - first) // stride), taps[::-1], max(len(taps), 1) - 1 - base)


def as_conv(op: Op) -> Op:
    """The op with a convolution's operands, in no graph: it tells types and scales."""
    bias = [op.inputs[3]] if len(op.inputs) > 3 else []
    names = ("fused_activation_function", "quantized_bias_type")
    attrs = {name: op.attrs[name] for name in names if name in op.attrs}
    return Op("CONV_2D", [op.inputs[2], op.inputs[1], *bias], op.outputs, attrs)


def emit_transposed(k: StepEmitter, op: Op) -> None:
    made, x, out = as_conv(op), op.inputs[2], op.outputs[0]
    assert x is not None
    weights, same = data(op.inputs[1]), attr(op, "padding") == "SAME"
    batch, height, width, channels = x.shape
    _, out_h, out_w, units = out.shape
    stride = (attr(op, "stride_h"), attr(op, "stride_w"))
    pixel = units * out.dtype.numpy.itemsize
    # Where no tap reaches, one tap that says nothing stands in: the result is the bias.
    tw = op.inputs[1]
    empty = scale_zero(tw)[1] if weights.dtype == np.uint8 else 0
    for ys in phases(out_h, height, weights.shape[1], stride[0], same):
        for xs in phases(out_w, width, weights.shape[2], stride[1], same):
            part = weights[:, ys.taps][:, :, xs.taps]
            if not part.size:
                shape = (units, max(len(ys.taps), 1), max(len(xs.taps), 1), channels)
                part = np.full(shape, empty, weights.dtype)
            w = Window(batch, height, width, channels, ys.count, xs.count,
                       (part.shape[1], part.shape[2]), pad=(ys.pad, xs.pad))  # fmt: skip

            def place(k: StepEmitter, row: Int, ys: Phase = ys, xs: Phase = xs) -> Int:
                line, x = k.div(row, xs.count), k.rem(row, xs.count)
                n, y = k.div(line, ys.count), k.rem(line, ys.count)
                down = k.add(k.mul(n, out_h), k.add(k.mul(y, stride[0]), ys.first))
                across = k.add(k.mul(x, stride[1]), xs.first)
                return k.mul(k.add(k.mul(down, out_w), across), pixel)

            emit_product(k, made, part.reshape(units, -1), w, spread=Spread(stride[1], place))


def refuses_transposed(op: Op, target: Target) -> str | None:
    shape, w, x = op.inputs[0], op.inputs[1], op.inputs[2]
    assert shape is not None and w is not None and x is not None
    if not shape.is_constant:
        return "the output's shape is computed at run time"
    if x.dtype is DType.FLOAT32 and w.dtype is not DType.FLOAT32:
        return f"a product of {x.dtype.short} x {w.dtype.short} has no kernel"
    if w.dtype is DType.UINT8 and quant(w).scale.size != 1:
        return "uint8 weights with a scale for each channel have no kernel"
    return refuses_product(as_conv(op), target)


KERNELS = {"TRANSPOSE_CONV": Kernel(emit_transposed, refuses_transposed)}
