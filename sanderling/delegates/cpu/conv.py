"""Convolutions and fully connected layers as matrix products."""

from __future__ import annotations

import numpy as np

from ...ir import Array, DType, Op, Tensor
from ...ops.base import attr, quant, scale_zero
from ...ops.fixed import ACTIVATION_BOUNDS, fused_range
from .emit import F32, I8
from .gemm import (
    ByteFlavour,
    DirectRows,
    FloatFlavour,
    PatchRows,
    Product,
    Tile,
    Window,
    choose_tile,
    padded_bias,
    walk,
)  # fmt: skip
from .program import Kernel, StepEmitter
from .targets import Target


def data(tensor: Tensor | None) -> Array:
    assert tensor is not None and tensor.data is not None
    return tensor.data


def window(op: Op) -> Window:
    x, w = op.inputs[0], op.inputs[1]
    assert x is not None and w is not None
    batch, height, width, channels = x.shape
    _, out_h, out_w, _ = op.outputs[0].shape
    kernel = (w.shape[1], w.shape[2])
    stride = (attr(op, "stride_h"), attr(op, "stride_w"))
    dilation = (attr(op, "dilation_h_factor"), attr(op, "dilation_w_factor"))
    same = attr(op, "padding") == "SAME"

    def before(axis: int, size: int, out: int) -> int:
        reach = (out - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1
        return max(reach - size, 0) // 2 if same else 0

    pad = (before(0, height, out_h), before(1, width, out_w))
    return Window(batch, height, width, channels, out_h, out_w, kernel, stride, dilation, pad)


def is_plain(w: Window) -> bool:
    """Each output pixel reads just the input pixel of its place."""
    return w.kernel == (1, 1) and w.stride == (1, 1) and w.pad == (0, 0)


def emit_conv(k: StepEmitter, op: Op) -> None:
    weights = data(op.inputs[1])
    w = window(op)
    size = (w.batch * w.out_height * w.out_width, weights.shape[0], weights[0].size)
    matrix = weights.reshape(size[1], size[2])
    emit_product(k, op, size, matrix, None if is_plain(w) else w)


def emit_fully_connected(k: StepEmitter, op: Op) -> None:
    weights = data(op.inputs[1])
    n, depth = weights.shape
    out = op.outputs[0]
    rows = int(np.prod(out.shape, dtype=np.int64)) // n
    emit_product(k, op, (rows, n, depth), weights, None)


def emit_product(k: StepEmitter, op: Op, size: tuple[int, int, int], weights: Array,
                 patches: Window | None) -> None:  # fmt: skip
    """One product with bias, activation and, for integers, requantisation."""
    m, n, depth = size
    x = op.inputs[0]
    assert x is not None
    tile = choose_tile(k.target, m, n)
    flavour, params, outside = _flavour(op, tile, n, weights)
    padded = -(-depth // flavour.depth) * flavour.depth
    element, item = (F32, 4) if isinstance(flavour, FloatFlavour) else (I8, 1)
    source = k.ptr(x)
    rows = (
        DirectRows(source, depth, element)
        if patches is None
        else PatchRows(source, patches, element, item, padded, outside)
    )
    walk(k, flavour, tile, Product(m, n, padded), rows, k.constant(flavour.pack(weights, tile)),
         k.constant(params), params[0].nbytes, k.ptr(op.outputs[0]))  # fmt: skip


def _flavour(op: Op, tile: Tile, n: int,
             weights: Array) -> tuple[FloatFlavour | ByteFlavour, Array, int]:  # fmt: skip
    """The element types, the epilogue's parameters by panel, and what padding holds."""
    bias = op.input(2)
    x, out = op.inputs[0], op.outputs[0]
    assert x is not None
    if x.dtype is DType.FLOAT32:
        low, high = ACTIVATION_BOUNDS[attr(op, "fused_activation_function")]
        values = padded_bias(None if bias is None else data(bias), n, tile, np.float32)
        return FloatFlavour(low, high), values, 0
    zero_in = scale_zero(x)[1]
    total = -zero_in * weights.astype(np.int64).sum(axis=1)
    if bias is not None:
        total = total + data(bias)
    low, high = fused_range(op)
    scale = scale_zero(x)[0] * quant(op.inputs[1]).scale.astype(np.float64) / scale_zero(out)[0]
    biases = padded_bias(total.astype(np.int32), n, tile, np.int32)
    scales = padded_bias(np.broadcast_to(scale, n).astype(np.float32), n, tile, np.float32)
    params = np.concatenate([biases, scales.view(np.int32)], axis=1)
    return ByteFlavour(low, high, scale_zero(out)[1]), params, zero_in


BOUNDED = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")


def refuses_product(op: Op, target: Target) -> str | None:
    x, w = op.inputs[0], op.inputs[1]
    assert x is not None and w is not None
    if x.dtype not in (DType.FLOAT32, DType.INT8):
        return f"input type {x.dtype.short} has no kernel"
    if not w.is_constant:
        return "the weights are computed at run time"
    if w.dtype is not x.dtype:
        return f"{x.dtype.short} with weights of {w.dtype.short} has no kernel"
    if op.name == "CONV_2D" and w.shape[3] != x.shape[3]:
        return "grouped convolution has no kernel"
    if attr(op, "fused_activation_function") not in BOUNDED:
        return f"activation {attr(op, 'fused_activation_function')} has no kernel"
    return None


KERNELS = {
    "CONV_2D": Kernel(emit_conv, refuses_product),
    "FULLY_CONNECTED": Kernel(emit_fully_connected, refuses_product),
}
