"""Convolutions: CONV_2D, DEPTHWISE_CONV_2D, CONV_3D, and the transposed ones.

All are one scheme over any number of spatial axes: operands as floats in which integer sums are
exact, a product block by block (so that temporaries stay in the cache), and a finish of each block:
requantisation, scaling, bias, activation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..ir import Array, Op, Shape
from . import gemm
from .base import (
    Infer,
    Spec,
    Specs,
    attr,
    define,
    elements,
    ints,
    on,
    operand,
    out_spec,
    require,
    scale_zero,
    sized,
)
from .gemm import Finish
from .geometry import Axis, axis, pad_into, row_blocks, windows


class Operands(NamedTuple):
    """A convolution's operands, ready for a float product, and what follows the product."""

    x: Array  # [N, spatial..., C], the zero point not yet subtracted
    zero: Array | int  # what to subtract: one number, or one for each image
    w: Array  # [O, taps..., C], offset already subtracted
    finish: Finish
    dtype: type[np.floating]


# -- shapes -------------------------------------------------------------------------------------

_SPATIAL = {1: "w", 2: "hw", 3: "dhw"}


def window_axes(op: Op, sizes: Sequence[int], taps: Sequence[int]) -> list[Axis]:
    """The spatial axes of an op whose attributes name strides and dilations by letter."""
    letters, padding = _SPATIAL[len(sizes)], attr(op, "padding")
    return [
        axis(op, padding, size, tap, attr(op, f"stride_{c}"), _dilation(op, c))
        for c, size, tap in zip(letters, sizes, taps, strict=True)
    ]


def _dilation(op: Op, letter: str) -> int:
    name = f"dilation_{letter}_factor"
    return 1 if op.name == "TRANSPOSE_CONV" else int(attr(op, name))


def _check_channels(op: Op, bias: Shape | None, channels: int) -> None:
    """Bias and scales are there for each output channel."""
    fits = bias is None or elements(bias) == channels
    require(fits, op, f"bias of shape {bias} for {channels} output channels")
    gemm.check_scales(op, op.input(1), channels)


def _conv_shape(op: Op, x: Shape, w: Shape, bias: Shape | None) -> Shape:
    """w is [O, taps..., C]; C divides the input's channels (grouped convolution)."""
    rank = len(w)
    require(len(x) == rank and rank in (4, 5), op, f"input {x} and filter {w} have wrong ranks")
    fits = w[-1] > 0 and x[-1] > 0 and x[-1] % w[-1] == 0
    require(fits, op, f"{x[-1]} input channels are no multiple of the filter's {w[-1]}")
    groups = x[-1] // w[-1]
    require(w[0] % groups == 0, op, f"{w[0]} output channels in {groups} groups")
    _check_channels(op, bias, w[0])
    return (x[0], *(a.out for a in window_axes(op, x[1:-1], w[1:-1])), w[0])


def _shape_of(bias: Array | None) -> Shape | None:
    return None if bias is None else bias.shape


Three = tuple[Shape, Shape, "Shape | None"]


def _shapes(op: Op, specs: Specs, indices: tuple[int, int] = (0, 1)) -> Three | None:
    """Shapes of input, filter and bias; None if one is not known."""
    x, w = (operand(op, specs, i) for i in indices)
    b = specs[max(indices) + 1] if len(specs) > max(indices) + 1 else None
    if x.shape is None or w.shape is None or (b is not None and b.shape is None):
        return None
    return x.shape, w.shape, None if b is None else b.shape


def _infer(rule: Callable[..., Shape]) -> Infer:
    """infer: by a rule over the shapes of input, filter and bias."""

    def infer(op: Op, specs: Specs) -> Spec:
        shapes = _shapes(op, specs)
        return out_spec(op, None if shapes is None else rule(op, *shapes))

    return infer


def _conv3d_shape(op: Op, x: Shape, w: Shape, bias: Shape | None) -> Shape:
    """w is [taps..., C, O], and there are no groups."""
    require(len(x) == 5 and len(w) == 5 and x[4] == w[3], op, f"input {x}, filter {w} do not fit")
    return _conv_shape(op, x, (w[4], *w[:4]), bias)


def _depthwise_shape(op: Op, x: Shape, w: Shape, bias: Shape | None) -> Shape:
    require(len(x) == 4 and len(w) == 4 and w[0] == 1, op, f"input {x} and filter {w} do not fit")
    fits = x[3] > 0 and w[3] % x[3] == 0
    require(fits, op, f"{w[3]} output channels are no multiple of the {x[3]} input channels")
    _check_channels(op, bias, w[3])
    return (x[0], *(a.out for a in window_axes(op, x[1:3], w[1:3])), w[3])


# -- operands and finish by type ----------------------------------------------------------------


def _operands(
    op: Op, x: Array, w: Array, bias: Array | None, at: tuple[int, int] = (0, 1)
) -> Operands:
    """w is [O, taps..., C]; `at`: places of input and filter among the op's inputs."""
    bias = None if bias is None else bias.reshape(-1)
    if x.dtype == np.float32 and w.dtype == np.float32:
        return Operands(x, 0, w, gemm.float_finish(op, bias), np.float32)
    if x.dtype == np.float32:
        return _hybrid(op, x, gemm.signed(w), bias, at)
    return _quantized(op, x, w, bias, at)


def _quantized(op: Op, x: Array, w: Array, bias: Array | None, at: tuple[int, int]) -> Operands:
    tx, tw = op.input(at[0]), op.input(at[1])
    gemm.weight_scales(op, tw, w.shape[0])
    fits = w.dtype == (np.uint8 if x.dtype == np.uint8 else np.int8)
    require(fits, op, f"filter type {w.dtype} with input type {x.dtype}")
    zero, real = scale_zero(tx)[1], gemm.window_multiplier(op, tx, tw)
    if x.dtype == np.uint8:
        w = np.subtract(w, scale_zero(tw)[1], dtype=np.int16)
    bound = gemm.product_bound(w.reshape(w.shape[0], -1), gemm.largest(x.dtype, zero))
    wide = x.dtype == np.int16 and gemm.wide_accumulator(op, bias)
    finish = gemm.requantizer64(op, real, bias) if wide else gemm.requantizer(op, real, bias, bound)
    return Operands(x, zero, w, finish, gemm.exact_type(op, bound))


def _hybrid(op: Op, x: Array, w: Array, bias: Array | None, at: tuple[int, int]) -> Operands:
    """Per image int8 codes: symmetric for one weight scale, else with a zero point."""
    scales = gemm.weight_scales(op, op.input(at[1]), w.shape[0])
    require(w.dtype == np.int8, op, f"filter type {w.dtype} with input type {x.dtype}")
    rows = x.reshape(x.shape[0], -1)
    groups = x.shape[-1] // w.shape[-1]
    symmetric = op.name == "CONV_2D" and groups == 1 and bool(np.all(scales == scales[0]))
    codes, steps, zero = gemm.quantize_rows(rows, not symmetric)
    scales = scales[:1] if symmetric else scales
    bound = gemm.product_bound(w.reshape(w.shape[0], -1), 255)
    finish = gemm.hybrid_finish(
        op, steps, scales, bias, scales_first=op.name == "CONV_2D" and not symmetric
    )
    return Operands(codes.reshape(x.shape), zero, w, finish, gemm.exact_type(op, bound))


def _padded(o: Operands, axes: Sequence[Axis]) -> Array:
    """The input as floats without zero point, with zeros around it where windows reach out."""
    zero = np.asarray(o.zero, o.dtype)
    zero = zero.reshape(-1, *(1,) * (o.x.ndim - 1)) if zero.ndim else zero
    if all(a.before <= 0 and a.after == 0 for a in axes):
        same = o.x.dtype == o.dtype and not zero.any()
        return o.x if same else np.subtract(o.x, zero, dtype=o.dtype)
    full, inside = pad_into(o.x.shape, axes, o.dtype)
    np.subtract(o.x, zero, out=inside, dtype=o.dtype)
    return full


# -- convolution --------------------------------------------------------------------------------


def _convolve(op: Op, o: Operands) -> Array:
    """[N, spatial..., G * C] with [O, taps..., C] to [N, out..., O]."""
    axes = window_axes(op, o.x.shape[1:-1], o.w.shape[1:-1])
    channels, groups = o.w.shape[0], o.x.shape[-1] // o.w.shape[-1]
    shape = (o.x.shape[0], *(a.out for a in axes), channels)
    result = np.empty(shape, op.outputs[0].dtype.numpy)
    if result.size == 0:
        return result
    live = [a.live_taps() for a in axes]
    w = o.w[(slice(None), *(slice(r.start, r.stop) for r in live))]
    axes = [a.trim(r) for a, r in zip(axes, live, strict=True)]
    matrix = w.reshape(groups, channels // groups, -1).astype(o.dtype, copy=False)
    view = windows(_padded(o, axes), axes)
    row = elements(shape[2:-1])
    cost = row * max(matrix.shape[-1] * groups, channels)
    for image, rows in row_blocks(shape[0], shape[1], cost):
        block = _multiply(view[image, rows], matrix, (rows.stop - rows.start) * row)
        result[image, rows] = o.finish(block, image).reshape(result[image, rows].shape)
    return result


def _multiply(patches: Array, matrix: Array, rows: int) -> Array:
    """[rows..., taps..., G * C] with [G, O / G, K] to [rows, O]."""
    groups, channels, depth = matrix.shape
    if groups == 1:
        plain: Array = patches.reshape(rows, depth) @ matrix[0].T
        return plain
    split = patches.reshape(rows, -1, groups, patches.shape[-1] // groups)
    by_group = split.transpose(2, 0, 1, 3).reshape(groups, rows, depth)
    product: Array = by_group @ matrix.transpose(0, 2, 1)
    return product.transpose(1, 0, 2).reshape(rows, groups * channels)


def _evaluate_conv(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    _conv_shape(op, x.shape, w.shape, _shape_of(bias))
    return _convolve(op, _operands(op, x, w, bias))


def _evaluate_conv3d(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    _conv3d_shape(op, x.shape, w.shape, _shape_of(bias))
    return _convolve(op, _operands(op, x, np.ascontiguousarray(w.transpose(4, 0, 1, 2, 3)), bias))


# -- depthwise ----------------------------------------------------------------------------------


def _evaluate_depthwise(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array:
    shape = _depthwise_shape(op, x.shape, w.shape, _shape_of(bias))
    # As seen by quantisation: one filter of taps for each output channel.
    o = _operands(op, x, np.moveaxis(w, -1, 0).reshape(shape[-1], w.shape[1], w.shape[2], 1), bias)
    result = np.empty(shape, op.outputs[0].dtype.numpy)
    if result.size:
        _depthwise(op, o, result)
    return result


def _depthwise(op: Op, o: Operands, result: Array) -> None:
    axes = window_axes(op, o.x.shape[1:3], o.w.shape[1:3])
    live = [a.live_taps() for a in axes]
    axes = [a.trim(r) for a, r in zip(axes, live, strict=True)]
    w = o.w[:, live[0].start : live[0].stop, live[1].start : live[1].stop, 0].astype(o.dtype)
    depth, channels = o.x.shape[-1], result.shape[-1]
    taps = w.reshape(depth, channels // depth, -1).transpose(2, 0, 1)  # [taps, C, M]
    view = windows(_padded(o, axes), axes)
    for image, rows in row_blocks(result.shape[0], result.shape[1], result.shape[2] * channels):
        block = _sum_taps(view[image, rows], taps)
        done = o.finish(block.reshape(-1, channels), image)
        result[image, rows] = done.reshape(result[image, rows].shape)


def _sum_taps(view: Array, taps: Array) -> Array:
    """[rows, cols, ky, kx, C] with [ky * kx, C, M] to [rows, cols * C, M]."""
    rows, cols, height, width, depth = view.shape
    # With stride 1 a row is one piece of memory: long inner loops instead of one for each pixel.
    merge = view.strides[1] == depth * view.strides[4]
    shape = (rows, cols * depth, 1) if merge else (rows, cols, depth, 1)
    total = np.zeros((*shape[:-1], taps.shape[2]), taps.dtype)
    term = np.empty_like(total)
    for index in range(height * width):
        values = view[:, :, index // width, index % width].reshape(shape)
        weights = np.tile(taps[index], (cols, 1)) if merge else taps[index]
        np.multiply(values, weights, out=term)
        total += term
    return total


# -- transposed ---------------------------------------------------------------------------------


def _target(op: Op, wanted: list[int], x: Shape, w: Shape, bias: Shape | None) -> Shape:
    """The output shape that the first input states; w is [O, taps..., C]."""
    require(len(x) == len(w) and len(w) in (4, 5), op, f"input {x}, filter {w}: wrong ranks")
    require(x[-1] == w[-1], op, f"{x[-1]} input channels, the filter has {w[-1]}")
    _check_channels(op, bias, w[0])
    target = sized(op, wanted)
    require(len(target) == len(x), op, f"output shape {target} for input {x}")
    fits = target[0] == x[0] and target[-1] == w[0]
    require(fits, op, f"output shape {target} for input {x} and filter {w}")
    fits = tuple(a.out for a in window_axes(op, target[1:-1], w[1:-1])) == x[1:-1]
    require(fits, op, f"output shape {target} does not belong to input {x}")
    return target


# Filter layouts to [O, taps..., C].
_TRANSPOSED_FILTER = {"TRANSPOSE_CONV": (0, 1, 2, 3), "CONV_3D_TRANSPOSE": (3, 0, 1, 2, 4)}


def _infer_transposed(op: Op, specs: Specs) -> Spec:
    shapes, wanted = _shapes(op, specs, (2, 1)), operand(op, specs).value
    if shapes is None or wanted is None:
        return out_spec(op, None)
    x, w, bias = shapes
    order = _TRANSPOSED_FILTER[op.name]
    require(len(w) == len(order), op, f"filter {w} has the wrong rank")
    return out_spec(op, _target(op, ints(wanted), x, tuple(w[i] for i in order), bias))


def _evaluate_transposed(
    op: Op, wanted: Array, w: Array, x: Array, bias: Array | None = None
) -> Array:
    order = _TRANSPOSED_FILTER[op.name]
    require(w.ndim == len(order), op, f"filter {w.shape} has the wrong rank")
    w = np.ascontiguousarray(w.transpose(order))
    shape = _target(op, ints(wanted), x.shape, w.shape, _shape_of(bias))
    o = _operands(op, x, w, bias, (2, 1))
    # The geometry is that of the convolution from the output to the input.
    axes = window_axes(op, shape[1:-1], w.shape[1:-1])
    result = np.empty(shape, op.outputs[0].dtype.numpy)
    for image in range(shape[0]):
        total = _scatter(o, axes, image, shape)
        result[image] = o.finish(total.reshape(-1, shape[-1]), image).reshape(shape[1:])
    return result


def _scatter(o: Operands, axes: Sequence[Axis], image: int, shape: Shape) -> Array:
    """Sum each input pixel's stamp of the filter into the output."""
    zero = np.asarray(o.zero, o.dtype)
    pixels = np.subtract(o.x[image], zero[image] if zero.ndim else zero, dtype=o.dtype)
    w = o.w.astype(o.dtype, copy=False)
    total = np.zeros(shape[1:], o.dtype)
    for taps in np.ndindex(*w.shape[1:-1]):
        places = [a.slices(tap) for a, tap in zip(axes, taps, strict=True)]
        source = pixels[tuple(inside for inside, _ in places)]
        if source.size:
            stamp: Array = w[(slice(None), *taps)]  # type: ignore[arg-type, unused-ignore]
            total[tuple(outside for _, outside in places)] += source @ stamp.T
    return total


# -- cost and rows ------------------------------------------------------------------------------


def _conv_macs(op: Op) -> int:
    """Each output sums over its filter: [O, taps..., C]."""
    w = op.inputs[1]
    return 0 if w is None else elements(op.outputs[0].shape) * elements(w.shape[1:])


def _conv3d_macs(op: Op) -> int:
    w = op.inputs[1]
    return 0 if w is None else elements(op.outputs[0].shape) * elements(w.shape[:-1])


def _depthwise_macs(op: Op) -> int:
    w = op.inputs[1]
    return 0 if w is None else elements(op.outputs[0].shape) * elements(w.shape[1:3])


def _transposed_macs(op: Op) -> int:
    """Each input pixel meets the whole filter once."""
    w, x = op.inputs[1], op.inputs[2]
    return 0 if w is None or x is None else elements(x.shape[:-1]) * elements(w.shape)


# Input, weights and bias of the convolutions; narrow weights are unpacked to int8.
_FLOAT = "x: f32, w: f32 i8Q i4Q i2Q u8Q, bias?: f32 -> f32"
_CODES = (
    "x: u8q, w: u8q, bias?: i32 -> u8q | x: i8q, w: i8Q i4Q i2Q, bias?: i32 -> i8q | "
    "x: i16q, w: i8Q i4Q i2Q, bias?: i32 i64 -> i16q"
)
_CONV = f"{_FLOAT} | {_CODES}"
_TRANSPOSED = (
    "shape: i32, w: f32 i8Q i4Q i2Q u8Q, x: f32, bias?: f32 -> f32 | "
    "shape: i32, w: u8q, x: u8q, bias?: i32 -> u8q | "
    "shape: i32, w: i8Q i4Q i2Q, x: i8q, bias?: i32 -> i8q | "
    "shape: i32, w: i8Q i4Q i2Q, x: i16q, bias?: i32 i64 -> i16q"
)
_HYBRID = "hybrid (float activations, quantised weights)"

define(
    "CONV_2D",
    infer=_infer(_conv_shape),
    evaluate=on(_evaluate_conv, needs=2),
    family="conv",
    takes=_CONV,
    macs=_conv_macs,
    notes=f"grouped; i8/i4 weights per channel; {_HYBRID} i8 i4",
)
define(
    "DEPTHWISE_CONV_2D",
    infer=_infer(_depthwise_shape),
    evaluate=on(_evaluate_depthwise, needs=2),
    family="conv",
    takes=_CONV,
    macs=_depthwise_macs,
    notes=f"i8/i4 weights per channel; {_HYBRID} i8",
)
define(
    "CONV_3D",
    infer=_infer(_conv3d_shape),
    evaluate=on(_evaluate_conv3d, needs=2),
    family="conv",
    takes="x[5]: f32, w[5]: f32, bias?: f32 -> f32",
    macs=_conv3d_macs,
)
define(
    "TRANSPOSE_CONV",
    infer=_infer_transposed,
    evaluate=on(_evaluate_transposed, needs=3),
    family="conv",
    takes=_TRANSPOSED,
    macs=_transposed_macs,
    notes=f"{_HYBRID} i8",
)
define(
    "CONV_3D_TRANSPOSE",
    infer=_infer_transposed,
    evaluate=on(_evaluate_transposed, needs=3),
    family="conv",
    takes="shape: i32, w[5]: f32, x[5]: f32, bias?: f32 -> f32",
    macs=_transposed_macs,
)
