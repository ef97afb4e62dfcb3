"""What convolutions and matrix products share: exact integer products on BLAS, requantisation of
accumulators, and the quantisation of float activations on the fly ("hybrid" kernels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedError
from ..ir import Array, Blockwise, DType, Op, Shape, Tensor
from . import fixed
from .base import attr, elements, quant, require, scale_zero, unfit

# What becomes of a block of accumulators [rows, outputs] of one image (its batch index).
Finish = Callable[[Array, int], Array]


def signed(weights: Array) -> Array:
    """Weights of a hybrid kernel: stored as uint8 by old converters, read as int8."""
    return weights.view(np.int8) if weights.dtype == np.uint8 else weights


def largest(array_type: np.dtype[Any], zero: int) -> int:
    """The largest magnitude of (value - zero) for any value of an integer type."""
    info = np.iinfo(array_type)
    return max(abs(int(info.min) - zero), abs(int(info.max) - zero))


def product_bound(weights: Array, top: int) -> int:
    """No sum of products of a row of weights [O, K] with values up to `top` is larger."""
    if weights.size == 0:
        return 0
    peak = max(int(weights.max()), -int(weights.min()))
    simple = int(weights.shape[1]) * peak * top
    if simple < 2**24:  # float32 will do: no need to look closer
        return simple
    sums = np.abs(weights.astype(np.float32)).sum(axis=1, dtype=np.float64)
    return int(sums.max()) * top


def exact_type(op: Op, bound: int) -> type[np.floating]:
    """The float type in which integer sums up to `bound` are exact in any order."""
    if bound < 2**24:
        return np.float32
    if bound < 2**53:
        return np.float64
    raise UnsupportedError(
        "the sums do not fit 53 bits",
        where=op.where,
        fix="no kernel accumulates that many products exactly",
    )


def centered(array: Array, zero: int, dtype: type[np.floating]) -> Array:
    """array - zero as floats, in one pass."""
    return np.subtract(array, dtype(zero), dtype=dtype)


# -- requantisation -----------------------------------------------------------------------------


def conv_multiplier(op: Op, x: Tensor | None, w: Tensor | None) -> Array:
    """Accumulator units to output units, one for each output channel or one for all."""
    scales = quant(w).scale.astype(np.float64)
    return scale_zero(x)[0] * scales / scale_zero(op.outputs[0])[0]


def tensor_multiplier(op: Op, x: Tensor | None, w: Tensor | None) -> Array:
    """As conv_multiplier for per-tensor scales, whose product the kernels round to float32."""
    product = np.float32(scale_zero(x)[0]) * np.float32(scale_zero(w)[0])
    return np.atleast_1d(np.float64(product) / scale_zero(op.outputs[0])[0])


def window_multiplier(op: Op, x: Tensor | None, w: Tensor | None) -> Array:
    """The multiplier of convolutions: uint8 kernels know a scale for all channels only."""
    single = w is not None and w.dtype is DType.UINT8 and quant(w).scale.size == 1
    return (tensor_multiplier if single else conv_multiplier)(op, x, w)


def product_multiplier(op: Op) -> Array:
    """As either, by the number of scales that the second operand has."""
    x, w = op.inputs[0], op.inputs[1]
    return (conv_multiplier if quant(w).scale.size > 1 else tensor_multiplier)(op, x, w)


def wide_accumulator(op: Op, bias: Array | None) -> bool:
    """16-bit activations sum in the bias's type: 64 bits unless the model says 32."""
    if bias is not None:
        return bool(bias.dtype == np.int64)
    return op.name == "DEPTHWISE_CONV_2D" or attr(op, "quantized_bias_type") != "INT32"


def requantizer(
    op: Op, real: Array, bias: Array | None, bound: int, limits: tuple[int, int] | None = None
) -> Finish:
    """32-bit accumulators to output codes: round, round again, add the zero point, clamp.

    bound: what the accumulators without bias do not exceed.
    """
    m, shift = fixed.quantize_multiplier(real)
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    low, high = limits or fixed.fused_range(op)
    zero, dtype = scale_zero(op.outputs[0])[1], op.outputs[0].dtype.numpy
    add = np.zeros(1, np.int64) if bias is None else bias.astype(np.int64)
    top = (bound + int(np.abs(add).max(initial=0))) << int(left.max(initial=0))
    if top >= 2**31:
        return _wrapping(m, shift, add, zero, low, high, dtype)
    # No 32-bit step overflows: shift, bias, roundings and zero point fold into constants.
    factor = m << left
    nudge = add * factor + (1 << 30)
    tail = ((np.int64(1) << right) >> 1) + (np.int64(zero) << right)
    # Ties round away from zero: one less for negative values, where there is a shift at all.
    tie = -np.minimum(right, 1) if right.min(initial=1) == 0 else None

    def finish(acc: Array, image: int) -> Array:
        t = acc.astype(np.int64)
        t *= factor
        t += nudge
        t >>= 31
        sign = t >> 63
        if tie is not None:
            sign &= tie
        t += sign
        t += tail
        t >>= right
        return np.clip(t, low, high, out=t).astype(dtype)

    return finish


def _wrapping(
    m: Array, shift: Array, bias: Array, zero: int, low: int, high: int, dtype: np.dtype[Any]
) -> Finish:
    def finish(acc: Array, image: int) -> Array:
        scaled = fixed.multiply(fixed.wrap32(acc.astype(np.int64) + bias), m, shift)
        return np.clip(fixed.wrap32(scaled + zero), low, high).astype(dtype)

    return finish


def requantizer64(
    op: Op, real: Array, bias: Array | None, limits: tuple[int, int] | None = None
) -> Finish:
    """64-bit accumulators (16-bit activations) to output codes."""
    m, shift = fixed.quantize_multiplier(real)
    limits = limits or fixed.fused_range(op)
    add = np.zeros(1, np.int64) if bias is None else bias.astype(np.int64)

    def finish(acc: Array, image: int) -> Array:
        return fixed.to_codes(op, fixed.multiply64(acc.astype(np.int64) + add, m, shift), limits)

    return finish


def rescaler(op: Op, real: Array, bias: Array | None, wraps: bool) -> Finish:
    """Accumulators to output codes with one multiplication in float64. wraps: sums with their bias
    have 32 bits."""
    limits = fixed.fused_range(op)
    add = 0 if bias is None else bias.astype(np.float64)

    def finish(acc: Array, image: int) -> Array:
        total = fixed.wrap32(acc + add) if wraps else acc + add
        return fixed.to_codes(op, fixed.round_away(total * real), limits)

    return finish


# -- float results ------------------------------------------------------------------------------


def float_finish(op: Op, bias: Array | None) -> Finish:
    """Add the bias and apply the fused activation, in place."""

    def finish(acc: Array, image: int) -> Array:
        if bias is not None:
            acc += bias
        return fixed.fused_clamp(op, acc, out=acc)

    return finish


# -- hybrid: activations quantised on the fly ---------------------------------------------------


def quantize_symmetric(rows: Array) -> tuple[Array, Array]:
    """Each row [B, K] to int8 codes in +-127 and its scale."""
    span = np.abs(rows).max(axis=1, initial=0).astype(np.float32)
    zero = span == 0
    inverse = np.float32(127) / np.where(zero, np.float32(1), span)
    codes = fixed.round_away(rows * np.where(zero, np.float32(0), inverse)[:, None])
    scale = np.where(zero, np.float32(1), span / np.float32(127))
    return np.clip(codes, -127, 127), scale.astype(np.float32)


def quantize_asymmetric(rows: Array) -> tuple[Array, Array, Array]:
    """Each row [B, K] to int8 codes, its scale and its zero point."""
    low = np.minimum(rows.min(axis=1, initial=0), np.float32(0))
    high = np.maximum(rows.max(axis=1, initial=0), np.float32(0))
    flat = low == high
    # The span is rounded to float32, the rest is computed in float64.
    step = np.where(flat, 1.0, (high - low).astype(np.float64) / 255.0)
    from_low, from_high = -128 - low / step, 127 - high / step
    nearer = 128 + np.abs(low / step) < 127 + np.abs(high / step)
    zero = np.clip(fixed.round_away(np.where(nearer, from_low, from_high)), -128, 127)
    zero = np.where(flat, 0, zero)
    scale = step.astype(np.float32)
    inverse = np.where(flat, np.float32(0), np.float32(1) / scale)
    # The zero point is added after rounding: before it, ties would fall elsewhere.
    codes = fixed.round_away(rows * inverse[:, None]) + zero.astype(np.float32)[:, None]
    return np.clip(codes, -128, 127), scale, zero.astype(np.int64)


def quantize_rows(rows: Array, asymmetric: bool) -> tuple[Array, Array, Array]:
    """Each row [B, K] to int8 codes, its scale and its zero point."""
    if asymmetric:
        return quantize_asymmetric(rows)
    return *quantize_symmetric(rows), np.zeros(len(rows), np.int64)


def weight_scales(op: Op, w: Tensor | None, channels: int) -> npt.NDArray[np.float32]:
    """Scales of the output channels: one for all, or one for each."""
    check_scales(op, w, channels)
    return quant(w).scale


def check_scales(op: Op, w: Tensor | None, channels: int) -> None:
    """Codes have one scale, or one for each channel."""
    if w is None or w.quant is None or not w.dtype.is_integer or w.quant.block is not None:
        return
    count = w.quant.scale.size
    require(count in (1, channels), op, f"'{w.name}' has {count} scales for {channels} channels")


def check_blocks(op: Op, block: Blockwise, shape: Shape) -> Shape:
    """The shape of the scales of a matrix that is quantised in blocks along its rows."""
    scales = block.scales
    if len(shape) != 2 or scales is None or not scales.is_constant:
        raise unfit(op, "blockwise weights are no matrix with scales")
    zeros = None if block.zero_points is None else block.zero_points.data
    require(
        zeros is None or not zeros.any(),
        op,
        "blockwise weights have zero points",
        fix="kernels take weights in blocks as symmetric",
    )
    rows, depth = shape
    fits = block.block_size > 0 and depth % block.block_size == 0
    require(fits, op, f"depth {depth} is no whole number of blocks of {block.block_size}")
    blocks, count = depth // block.block_size, elements(scales.shape)
    require(count == rows * blocks, op, f"{count} scales for {rows * blocks} blocks")
    return rows, blocks


def block_scales(op: Op, block: Blockwise, w: Array) -> npt.NDArray[np.float32]:
    """Scales [rows, blocks] of a matrix that is quantised in blocks along its rows."""
    shape = check_blocks(op, block, w.shape)
    assert block.scales is not None  # check_blocks has looked
    return block.scales.values.reshape(shape).astype(np.float32)


def hybrid_finish(
    op: Op,
    steps: Array,
    scales: Array,
    bias: Array | None,
    activate: Callable[[Op, Array], Array] = fixed.fused_clamp,
    scales_first: bool = False,
) -> Finish:
    """Accumulators of int8 codes to floats; steps: the activations' scale, one an image.

    scales_first: the order of the two factors, which decides the last bit, and with it codes of
    the next layer.
    """

    def finish(acc: Array, image: int) -> Array:
        whole = acc.astype(np.float32)
        result = whole * scales * steps[image] if scales_first else whole * (steps[image] * scales)
        if bias is not None:
            result += bias
        return activate(op, result)

    return finish
