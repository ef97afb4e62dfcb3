"""TRANSPOSE_CONV: for each phase of the stride one convolution with the taps that reach it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import DType, Op
from .....ops.base import attr, quant
from .....ops.geometry import padding_before
from ...codegen.emit import Int
from ...codegen.program import StepEmitter
from ...dialect.fused import Inputs, fuse
from ...isa.targets import Target
from ..row import Kernel
from .conv import Spread, emit_product, refuses_product, weight_zero
from .dynamic_range import UPSAMPLE, is_integer
from .sources import Window

# Each phase is a product of its own, of some 60 instructions; beyond, LLVM takes many seconds.
MOST_PHASES = 256


@dataclass(frozen=True)
class StridePhase:
    """Outputs first, first + stride, ... of an axis: which taps reach them, from which inputs."""

    first: int
    count: int
    taps: tuple[int, ...]
    pad: int


def phases(out: int, kernel: int, stride: int, before: int) -> Iterator[StridePhase]:
    """Output o sums input i with tap t where o = i * stride + t - before."""
    for first in range(min(stride, out)):
        tap = (first + before) % stride
        taps = tuple(range(tap, kernel, stride))
        base = (first + before - tap) // stride
        yield StridePhase(
            first, -(-(out - first) // stride), taps[::-1], max(len(taps), 1) - 1 - base
        )


def refuses_phases(op: Op, outs: Sequence[int], strides: Sequence[int]) -> str | None:
    count = math.prod(map(min, outs, strides))
    if count > MOST_PHASES:
        return f"its strides make {count} convolutions"
    w = op.operand(1)
    known = w.dtype is DType.FLOAT32 and w.data is not None
    # Taps that reach no input are multiplied by zeros, of which infinity makes NaN.
    finite = not known or bool(np.isfinite(w.values).all())
    return None if finite else "its weights are not all finite"


def as_conv(op: Op) -> Op:
    """The op with a convolution's operands, in no graph: it tells types and scales."""
    names = ("fused_activation_function", "quantized_bias_type")
    attrs = {name: op.attrs[name] for name in names if name in op.attrs}
    return Op("CONV_2D", Inputs.of(op).listed(), op.outputs, attrs)


def emit_transposed(k: StepEmitter, op: Op) -> None:
    emit_upsampled(k, op, as_conv(op))


def emit_upsampled(k: StepEmitter, op: Op, made: Op) -> None:
    """op tells strides and padding; made is the op with a convolution's operands."""
    x, w = made.operand(0), made.operand(1)
    stride = _strides(op)
    same = attr(op, "padding") == "SAME"
    top, left = (
        padding_before(op.outputs[0].shape[a], w.shape[a], stride[a - 1], 1, x.shape[a])
        if same
        else 0
        for a in (1, 2)
    )
    emit_phases(k, made, stride, (top, left))


def is_float(op: Op) -> bool:
    """Its weights are floats, or codes without a zero point for floats."""
    return op.outputs[0].dtype is DType.FLOAT32


def _strides(op: Op) -> tuple[int, int]:
    return int(attr(op, "stride_h")), int(attr(op, "stride_w"))


def emit_phases(k: StepEmitter, made: Op, stride: tuple[int, int], before: tuple[int, int]) -> None:
    x, out = made.operand(0), made.outputs[0]
    weights = made.operand(1).values
    batch, height, width, channels = x.shape
    _, out_h, out_w, units = out.shape
    pixel = units * out.dtype.numpy.itemsize
    # Where no tap reaches, one tap that says nothing stands in: the result is the bias.
    empty = 0 if is_float(made) else weight_zero(made)
    for ys in phases(out_h, weights.shape[1], stride[0], before[0]):
        for xs in phases(out_w, weights.shape[2], stride[1], before[1]):
            part = weights[:, ys.taps][:, :, xs.taps]
            if not part.size:
                shape = (units, max(len(ys.taps), 1), max(len(xs.taps), 1), channels)
                part = np.full(shape, empty, weights.dtype)
            w = Window(
                batch,
                height,
                width,
                channels,
                ys.count,
                xs.count,
                (part.shape[1], part.shape[2]),
                pad=(ys.pad, xs.pad),
            )

            def place(k: StepEmitter, row: Int, ys: StridePhase = ys, xs: StridePhase = xs) -> Int:
                line, x = k.div(row, xs.count), k.rem(row, xs.count)
                n, y = k.div(line, ys.count), k.rem(line, ys.count)
                down = k.add(k.mul(n, out_h), k.add(k.mul(y, stride[0]), ys.first))
                across = k.add(k.mul(x, stride[1]), xs.first)
                return k.mul(k.add(k.mul(down, out_w), across), pixel)

            emit_product(k, made, part.reshape(units, -1), w, spread=Spread(stride[1], place))


def refuses_transposed(op: Op, target: Target) -> str | None:
    shape, w, x = op.operand(0), op.operand(1), op.operand(2)
    if not shape.is_constant:
        return "the output's shape is computed at run time"
    if x.dtype is DType.FLOAT32 and w.dtype not in (DType.FLOAT32, DType.INT8):
        return f"a product of {x.dtype.short} x {w.dtype.short} has no kernel"
    if w.dtype is DType.UINT8 and quant(w).scale.size != 1:
        return "uint8 weights with a scale for each channel have no kernel"
    said = refuses_phases(op, op.outputs[0].shape[1:3], _strides(op))
    return said or refuses_product(as_conv(op), target)


def upsampled(op: Op) -> Op | None:
    """TRANSPOSE_CONV of floats with integer weights."""
    if op.name != "TRANSPOSE_CONV":
        return None
    x, w, bias, *_ = Inputs.of(op)
    if x is None or w is None or x.dtype is not DType.FLOAT32 or not is_integer(w):
        return None
    return fuse(op.copy([x, w, bias], op.outputs))


def emit_upsample(k: StepEmitter, op: Op) -> None:
    emit_upsampled(k, op, op)


KERNELS = {
    "TRANSPOSE_CONV": Kernel(
        emit_transposed, refuses_transposed, weights=(1,), fuses=frozenset({"dynamic", "bf16"})
    ),
    UPSAMPLE: Kernel(emit_upsample, name=lambda op: "transpose_conv", weights=(1,)),
}
