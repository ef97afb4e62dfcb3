"""Tensors and ops as the dictionaries that LiteRT's interpreter gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ir import Array, DType, Op, Quant, Shape, Tensor

Details = dict[str, Any]
# Types that TFLite's binding shows otherwise than as they are held here.
_OWN_TYPES: dict[DType, Any] = {DType.STRING: np.bytes_}


def tensor_details(tensor: Tensor, index: int, shape: Shape, compress: bool) -> Details:
    """compress: equal zero points are shown as one."""
    return {
        "name": tensor.name,
        "index": index,
        "shape": np.array(shape, np.int32),
        "shape_signature": np.array(tensor.signature or shape, np.int32),
        "dtype": _type(tensor),
        "quantization": _per_tensor(tensor),
        "quantization_parameters": _quantization(tensor.quant, compress),
        "sparsity_parameters": _sparsity(tensor),
    }


def op_details(op: Op, index: int, places: Mapping[Tensor, int]) -> Details:
    """places: the graph's tensors by index."""
    inputs = [-1 if t is None else places[t] for t in op.inputs]
    return {
        "index": int(index),
        "op_name": op.name.removeprefix("custom."),
        "inputs": np.array(inputs, np.int32),
        "outputs": np.array([places[t] for t in op.outputs], np.int32),
        "operand_types": [_type(t) for t in op.inputs if t is not None],
        "result_types": [_type(t) for t in op.outputs],
    }


def _type(tensor: Tensor) -> Any:
    return _OWN_TYPES.get(tensor.dtype, tensor.dtype.numpy.type)


def _quantization(quant: Quant | None, compress: bool) -> Details:
    scales, zeros = _scales(quant)
    if compress and zeros.size > 1 and (zeros == zeros[0]).all():
        zeros = zeros[:1]
    return {
        "scales": np.array(scales),
        "zero_points": zeros,
        "quantized_dimension": 0 if quant is None else quant.axis,
        "block_size": quant.block.block_size if quant is not None and quant.block else 0,
    }


def _scales(quant: Quant | None) -> tuple[Array, Array]:
    """Scales and zero points; those of blocks lie in tensors of their own."""
    if quant is None:
        return np.zeros(0, np.float32), np.zeros(0, np.int32)
    if quant.block is None:
        return quant.scale, quant.zero_point.astype(np.int32)
    scales, zeros = (
        None if t is None else t.data for t in (quant.block.scales, quant.block.zero_points)
    )
    flat = quant.scale if scales is None else scales.reshape(-1)
    return flat, np.zeros(flat.size, np.int32) if zeros is None else zeros.reshape(-1).astype("i4")


def _per_tensor(tensor: Tensor) -> tuple[float, int]:
    if tensor.quant is None or tensor.quant.scale.size != 1:
        return 0.0, 0
    return float(tensor.quant.scale[0]), int(tensor.quant.zero_point[0])


def _sparsity(tensor: Tensor) -> Details:
    if tensor.sparsity is None:
        return {}
    found: Details = {"traversal_order": np.array(tensor.sparsity.traversal_order, np.int32)}
    if tensor.sparsity.block_map:
        found["block_map"] = np.array(tensor.sparsity.block_map, np.int32)
    return found | {"dim_metadata": [_sparse_dim(d) for d in tensor.sparsity.dims]}


def _sparse_dim(dim: Any) -> Details:
    if dim.is_dense:
        return {"format": 0, "dense_size": dim.dense_size}
    return {
        "format": 1,
        "array_segments": np.array(dim.segments, np.int32),
        "array_indices": np.array(dim.indices, np.int32),
    }
