"""Matrix products: FULLY_CONNECTED and BATCH_MATMUL, over every mix of types LiteRT runs."""

from __future__ import annotations

import numpy as np

from ..ir import Array, Blockwise, Op, Shape
from . import fixed, gemm
from .base import (
    Spec,
    Specs,
    attr,
    broadcast_shapes,
    define,
    elements,
    on,
    operand,
    out_spec,
    quant,
    require,
    scale_zero,
    shaped,
)

# -- FULLY_CONNECTED ----------------------------------------------------------------------------


def _fc_shape(op: Op, x: Shape, w: Shape, bias: Shape | None) -> Shape:
    require(len(w) == 2, op, f"weights of shape {w} are no matrix")
    units, depth = w
    require(bias is None or elements(bias) == units, op, f"bias of shape {bias} for {units} units")
    _check_scales(op, w)
    if attr(op, "keep_num_dims"):
        require(len(x) > 0 and x[-1] == depth, op, f"input {x} does not end in {depth}")
        return (*x[:-1], units)
    if depth == 0:
        return (elements(x[:-1]), units)
    require(elements(x) % depth == 0, op, f"input {x} is no whole number of rows of {depth}")
    return (elements(x) // depth, units)


def _check_scales(op: Op, w: Shape) -> None:
    weights = op.inputs[1]
    if weights is not None and weights.quant is not None and weights.quant.block is not None:
        gemm.check_blocks(op, weights.quant.block, w)
    gemm.check_scales(op, weights, w[0])


def _is_shuffled(op: Op) -> bool:
    return str(attr(op, "weights_format")) == "SHUFFLED4x16INT8"


def _infer_fc(op: Op, specs: Specs) -> list[Spec]:
    x, w = operand(op, specs, 0), operand(op, specs, 1)
    b = specs[2] if len(specs) > 2 else None
    known = x.shape is not None and w.shape is not None
    shape = _fc_shape(op, x.known, w.known, b.shape if b is not None else None) if known else None
    outputs = [out_spec(op, shape)]
    if _is_shuffled(op):  # the second output is scratch space for the shuffled input
        require(len(op.outputs) == 2, op, "shuffled weights need a second output")
        outputs.append(out_spec(op, x.shape, 1))
    return outputs


def _evaluate_fc(op: Op, x: Array, w: Array, bias: Array | None = None) -> Array | list[Array]:
    shape = _fc_shape(op, x.shape, w.shape, None if bias is None else bias.shape)
    if elements(shape) == 0 or w.shape[1] == 0:
        return np.zeros(shape, op.outputs[0].dtype.numpy)
    rows = x.reshape(-1, w.shape[1])
    if _is_shuffled(op):
        return _shuffled(op, rows, w, bias, shape)
    return _rows_by_weights(op, rows, w, bias).reshape(shape)


def _rows_by_weights(op: Op, rows: Array, w: Array, bias: Array | None) -> Array:
    """[B, K] with [O, K] to [B, O], by the operands' types."""
    bias = None if bias is None else bias.reshape(-1)
    if rows.dtype != np.float32:
        return _fc_quantized(op, rows, w, bias)
    if w.dtype == np.float32:
        return gemm.float_finish(op, bias)(rows @ w.T, 0)
    weights = op.inputs[1]
    if weights is not None and weights.quant is not None and weights.quant.block is not None:
        return _fc_blockwise(op, rows, w, bias, weights.quant.block)
    return _fc_hybrid(op, rows, gemm.signed(w), bias)


def _fc_quantized(op: Op, rows: Array, w: Array, bias: Array | None) -> Array:
    tx, tw = op.inputs[0], op.inputs[1]
    scales = gemm.weight_scales(op, tw, w.shape[0])
    zero = scale_zero(tx)[1]
    # Scales for each channel imply symmetric weights: the kernels do not look at zero points.
    offset = 0 if scales.size > 1 else scale_zero(tw)[1]
    centered = w if offset == 0 else np.subtract(w, offset, dtype=np.int32)
    bound = gemm.product_bound(centered, gemm.largest(rows.dtype, zero))
    dtype = gemm.exact_type(op, bound)
    acc = gemm.centered(rows, zero, dtype) @ centered.T.astype(dtype)
    if w.dtype == np.int16:
        return gemm.requantizer64(op, gemm.product_multiplier(op), bias)(acc, 0)
    if tw is not None and tw.sparsity is not None:  # the kernel for sparse weights is an old one
        return gemm.requantizer(op, gemm.product_multiplier(op), bias, bound)(acc, 0)
    wraps = rows.dtype != np.int16
    return gemm.rescaler(op, gemm.conv_multiplier(op, tx, tw), bias, wraps)(acc, 0)


def _fc_hybrid(op: Op, rows: Array, w: Array, bias: Array | None) -> Array:
    scales = gemm.weight_scales(op, op.inputs[1], w.shape[0])
    codes, steps = _quantize_rows(rows, attr(op, "asymmetric_quantize_inputs"))
    dtype = gemm.exact_type(op, gemm.product_bound(w, 255))
    acc = codes.astype(dtype) @ w.T.astype(dtype)
    return gemm.hybrid_finish(op, steps[None, :, None], scales, bias, fixed.fused_float)(acc, 0)


def _quantize_rows(rows: Array, asymmetric: bool) -> tuple[Array, Array]:
    """Int8 codes without zero point (so up to +-255) and the scale of each row."""
    codes, steps, zero = gemm.quantize_rows(rows, asymmetric)
    return codes - zero[:, None].astype(np.float32), steps


def _fc_blockwise(op: Op, rows: Array, w: Array, bias: Array | None, block: Blockwise) -> Array:
    """Weights with a scale for each block along the depth. LiteRT's default kernels run it
    (its reference kernels do not): always with asymmetric inputs, block sums added in float32."""
    scales = gemm.block_scales(op, block, w)
    units, blocks = scales.shape
    codes, steps = _quantize_rows(rows, asymmetric=True)
    dtype = gemm.exact_type(op, gemm.product_bound(w.reshape(-1, block.block_size), 255))
    by_block = codes.reshape(-1, blocks, block.block_size).transpose(1, 0, 2).astype(dtype)
    weights = w.reshape(units, blocks, block.block_size).transpose(1, 2, 0).astype(dtype)
    sums = (by_block @ weights).astype(np.float32)
    acc = (sums * scales.T[:, None]).sum(axis=0)
    one = np.ones(1, np.float32)
    return gemm.hybrid_finish(op, steps[None, :, None], one, bias, fixed.fused_float)(acc, 0)


def _shuffled(op: Op, rows: Array, w: Array, bias: Array | None, shape: Shape) -> list[Array]:
    """Weights stored in blocks of 4 rows x 16 columns, sign bits flipped; zero points are 128."""
    units, depth = w.shape
    fits = rows.dtype == np.uint8 and units % 4 == 0 and depth % 16 == 0 and len(rows) in (1, 4)
    require(fits and bias is not None, op, f"shuffled {rows.shape} with {w.shape} is not supported")
    plain = w.reshape(units // 4, depth // 16, 4, 16).transpose(0, 2, 1, 3).reshape(units, depth)
    dtype = gemm.exact_type(op, 2**14 * depth)
    x = rows ^ np.uint8(0x80)
    acc = x.view(np.int8).astype(dtype) @ plain.view(np.int8).T.astype(dtype)
    real = gemm.tensor_multiplier(op, op.inputs[0], op.inputs[1])
    result = gemm.requantizer(op, real, bias, 2**14 * depth)(acc, 0)
    scratch = x.reshape(-1, depth // 16, 16).transpose(1, 0, 2) if len(rows) == 4 else x
    return [result.reshape(shape), np.ascontiguousarray(scratch).reshape(rows.shape)]


# -- BATCH_MATMUL -------------------------------------------------------------------------------


def _bmm_shape(op: Op, x: Shape, y: Shape) -> Shape:
    require(min(len(x), len(y)) >= 2 and max(len(x), len(y)) <= 5, op, f"ranks of {x} and {y}")
    rows, depth = (x[-1], x[-2]) if attr(op, "adj_x") else (x[-2], x[-1])
    columns, other = (y[-2], y[-1]) if attr(op, "adj_y") else (y[-1], y[-2])
    require(depth == other, op, f"{x} and {y} do not fit: {depth} against {other}")
    gemm.check_scales(op, op.inputs[1], columns)
    return (*broadcast_shapes(op, x[:-2], y[:-2]), rows, columns)


def _evaluate_bmm(op: Op, x: Array, y: Array) -> Array:
    _bmm_shape(op, x.shape, y.shape)
    x = x.swapaxes(-1, -2) if attr(op, "adj_x") else x
    y = y.swapaxes(-1, -2) if attr(op, "adj_y") else y
    if x.dtype == np.float32 and y.dtype == np.float32:
        return x @ y
    return _bmm_hybrid(op, x, y) if x.dtype == np.float32 else _bmm_quantized(op, x, y)


def _columns(y: Array) -> Array:
    """[..., K, N] as rows of K, for bounds."""
    return y.swapaxes(-1, -2).reshape(-1, y.shape[-2])


def _bmm_hybrid(op: Op, x: Array, y: Array) -> Array:
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1])
    codes, steps = _quantize_rows(rows, attr(op, "asymmetric_quantize_inputs"))
    scales = gemm.weight_scales(op, op.inputs[1], y.shape[-1])
    dtype = gemm.exact_type(op, gemm.product_bound(_columns(y), 255))
    acc = codes.reshape(x.shape).astype(dtype) @ y.astype(dtype)
    return acc.astype(np.float32) * (steps.reshape(*x.shape[:-1], 1) * scales)


def has_column_scales(op: Op) -> bool:
    """Whether the right side has one scale, or one for each column of the result and no zero
    points. LiteRT 2.3 answers zeros where there are several."""
    y = op.operand(1)
    found = quant(y)
    axis = len(y.shape) - (2 if attr(op, "adj_y") else 1)
    by_column = found.axis == axis and found.scale.size == y.shape[axis]
    return found.scale.size == 1 or (by_column and not found.zero_point.any())


def _bmm_quantized(op: Op, x: Array, y: Array) -> Array:
    out = op.outputs[0].dtype
    plain = out.numpy == np.int32  # the bare sums of int8 products, zero points ignored
    zx, zy = (0, 0) if plain else (scale_zero(op.inputs[0])[1], scale_zero(op.inputs[1])[1])
    y = np.subtract(y, zy, dtype=np.int32)
    bound = gemm.product_bound(_columns(y), gemm.largest(x.dtype, zx))
    dtype = gemm.exact_type(op, bound)
    acc = gemm.centered(x, zx, dtype) @ y.astype(dtype)
    if plain:
        return acc.astype(np.int64).astype(np.int32)
    require(out.numpy == x.dtype, op, f"output type {out.short} for {x.dtype} input")
    require(has_column_scales(op), op, "the right side's scales are not those of its columns")
    real = gemm.product_multiplier(op)
    finish = (
        gemm.requantizer64(op, real, None, out.bounds)
        if x.dtype == np.int16
        else gemm.requantizer(op, real, None, bound, out.bounds)
    )
    return finish(acc, 0)


# -- cost and rows ------------------------------------------------------------------------------


def _fc_macs(op: Op) -> int:
    w = op.inputs[1]
    return 0 if w is None or not w.shape else elements(op.outputs[0].shape) * w.shape[-1]


def _bmm_macs(op: Op) -> int:
    x = op.inputs[0]
    if x is None or len(x.shape) < 2:
        return 0
    return elements(op.outputs[0].shape) * x.shape[-2 if attr(op, "adj_x") else -1]


_FC = (
    "x: f32, w: f32 i8Q i4Q i2Q u8Q, bias?: f32 -> f32 | "
    "x: u8q, w: u8q, bias?: i32 -> u8q i16q, shuffled?: u8 | "
    "x: i8q, w: i8Q i4Q i2Q, bias?: i32 -> i8q | "
    "x: i16q, w: i8Q i4Q i2Q i16Q, bias?: i32 i64 -> i16q"
)
_BMM = (
    "x: f32, y: f32 i8Q i4Q -> f32 | x: i8q, y: i8Q i4Q -> i8q | x: i8, y: i8 -> i32 | "
    "x: i16q, y: i16q i8Q i4Q -> i16q"
)
define(
    "FULLY_CONNECTED",
    infer=_infer_fc,
    evaluate=on(_evaluate_fc, needs=2),
    family="matmul",
    takes=_FC,
    macs=_fc_macs,
    notes="i8/i4/i2 weights per channel; i16 with i8 or i16 weights; hybrid i8/i4/i2, also "
    "blockwise; sparse; shuffled 4x16",
)
define(
    "BATCH_MATMUL",
    infer=shaped(_bmm_shape, data=[0, 1]),
    evaluate=on(_evaluate_bmm),
    family="matmul",
    takes=_BMM,
    macs=_bmm_macs,
    notes="hybrid i8; i16 with i8; i8 to i32; a scale for each column, where LiteRT gives zeros",
)
