"""The float view of a quantised graph: tensors of codes become floats, and between ops stand
simulators that round as codes would, so that the bounds which a model has learned still hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from ....ir import Array, Blockwise, DType, Graph, Op, Tensor
from ....passes import Fired
from ....passes.common import same_quant
from ..layout import CODES

# The rounding of codes, on floats.
SIMULATE = "gpu.SIMULATE"
# Their results are elements of their inputs.
MOVES = frozenset({
    "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "SLICE", "STRIDED_SLICE", "SPLIT", "SPLIT_V",
    "PACK", "UNPACK", "CONCATENATION", "GATHER", "GATHER_ND", "TILE", "REVERSE_V2", "PAD", "PADV2",
    "MIRROR_PAD", "BROADCAST_TO", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "BATCH_TO_SPACE_ND",
    "SPACE_TO_BATCH_ND", "MAX_POOL_2D", "RESIZE_NEAREST_NEIGHBOR", "EMBEDDING_LOOKUP",
})  # fmt: skip

# Where products have their input, weights and bias.
BIASED = {
    "CONV_2D": (0, 1, 2),
    "DEPTHWISE_CONV_2D": (0, 1, 2),
    "FULLY_CONNECTED": (0, 1, 2),
    "TRANSPOSE_CONV": (2, 1, 3),
}


@dataclass(frozen=True)
class Border:
    """A tensor of the part's border: as the caller has it, and as the device does."""

    outside: Tensor
    inside: Tensor


def is_codes(tensor: Tensor) -> bool:
    return tensor.dtype in CODES and tensor.quant is not None and tensor.quant.is_set


def float_view(graph: Graph) -> tuple[Fired, list[Border], list[Border]]:
    """Change the graph; tell what the borders were and what they are."""
    fired: Fired = Counter()
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    for op in graph.ops:
        _make_bias_float(graph, op)
        _make_symmetric(graph, op)
    twins = {t: _float_twin(t) for t in graph.tensors if _needs_twin(t)}
    for op in list(graph.ops):
        _rebuild(graph, op, twins, fired)
    graph.inputs[:] = [twins.get(t, t) for t in inputs]
    graph.outputs[:] = [twins.get(t, t) for t in outputs]
    graph.enlist(*graph.inputs)
    ins, outs = ([_border(a, twins) for a in side] for side in (inputs, outputs))
    return fired, ins, outs


def _border(tensor: Tensor, twins: dict[Tensor, Tensor]) -> Border:
    """Two tensors in any case: they have memory of their own."""
    outside = Tensor(tensor.name, tensor.dtype, tensor.shape, quant=tensor.quant)
    return Border(outside, twins.get(tensor, tensor))


def _needs_twin(tensor: Tensor) -> bool:
    return is_codes(tensor) or _is_narrow(tensor) or tensor.dtype is DType.COMPLEX64


def _is_narrow(tensor: Tensor) -> bool:
    """Constants of fewer bits than a byte has."""
    return tensor.is_constant and tensor.dtype.bits < 8 and tensor.quant is not None


def _make_bias_float(graph: Graph, op: Op) -> None:
    """The unit of a bias is the product of the input's and the weights', whatever its own scale."""
    if op.name not in BIASED:
        return
    x, weights, bias = (op.input(place) for place in BIASED[op.name])
    if x is None or weights is None or bias is None or not (is_codes(x) and bias.is_constant):
        return
    unit = x.quantisation.scale.astype(np.float32) * weights.quantisation.scale.astype(np.float32)
    made = graph.constant(f"{bias.name}/float", bias.values.astype(np.float32) * unit)
    graph.set_input(op, BIASED[op.name][2], made)


def _make_symmetric(graph: Graph, op: Op) -> None:
    """Kernels do not look at the zero points of int8 weights, where the scale may be one for each
    channel; those of FULLY_CONNECTED do where it is not."""
    weights = op.input(BIASED[op.name][1]) if op.name in BIASED else None
    if weights is None or weights.dtype is not DType.INT8 or not is_codes(weights):
        return
    quant = weights.quantisation
    alone = op.name == "FULLY_CONNECTED" and quant.scale.size == 1
    if alone or not weights.is_constant or not quant.zero_point.any():
        return
    made = weights.copy()
    made.quant = replace(quant, zero_point=np.zeros_like(quant.zero_point))
    graph.enlist(made)
    graph.set_input(op, BIASED[op.name][1], made)


def _float_twin(tensor: Tensor) -> Tensor:
    if tensor.dtype is DType.COMPLEX64:
        return _complex_twin(tensor)
    if not tensor.is_constant:
        return Tensor(tensor.name, DType.FLOAT32, tensor.shape)
    return Tensor(tensor.name, DType.FLOAT32, tensor.shape, data=real_values(tensor))


def _complex_twin(tensor: Tensor) -> Tensor:
    """A last dimension more, of the real and the imaginary part."""
    shape = (*tensor.shape, 2)
    if not tensor.is_constant:
        return Tensor(tensor.name, DType.FLOAT32, shape)
    parts = np.stack([tensor.values.real, tensor.values.imag], axis=-1)
    return Tensor(tensor.name, DType.FLOAT32, shape, data=parts.astype(np.float32))


def real_values(tensor: Tensor) -> Array:
    """What the codes of a constant stand for."""
    quant, codes = tensor.quantisation, tensor.values.astype(np.float32)
    if quant.block is not None:
        return _real_blocks(codes, quant.block)
    shape = [1] * codes.ndim
    if quant.scale.size > 1:
        shape[quant.axis] = -1
    scale, zero = (
        x.astype(np.float32).reshape(shape or ()) for x in (quant.scale, quant.zero_point)
    )
    found: Array = (codes - zero) * scale
    return found


def _real_blocks(codes: Array, block: Blockwise) -> Array:
    """Of a matrix with a scale for each block of a row."""
    assert block.scales is not None, "the op has been checked"
    scales = block.scales.values.astype(np.float32).reshape(len(codes), -1)
    found: Array = codes * np.repeat(scales, block.block_size, axis=1)
    return found


def _rebuild(graph: Graph, op: Op, twins: dict[Tensor, Tensor], fired: Fired) -> None:
    if not any(t in twins for t in (*op.inputs, *op.outputs) if t is not None):
        return
    ins = [None if t is None else twins.get(t, t) for t in op.inputs]
    outs = [twins.get(t, t) for t in op.outputs]
    exact = [is_codes(t) and not _keeps_codes(op, t) for t in op.outputs]
    made = [
        graph.tensor(f"{t.name}/exact", t.dtype, t.shape) if rounded else t
        for t, rounded in zip(outs, exact, strict=True)
    ]
    for t in (*ins, *outs):
        if t is not None and t not in graph.tensors:
            graph.enlist(t)
    name = {"QUANTIZE": "gpu.COPY", "DEQUANTIZE": "gpu.COPY"}.get(op.name, op.name)
    new = Op(name, ins[:1] if name == "gpu.COPY" else ins, made, dict(op.attrs))
    graph.insert(new, before=op)
    for code, exactly, rounded in zip(op.outputs, made, outs, strict=True):
        if exactly is not rounded:
            graph.insert(Op(SIMULATE, [exactly], [rounded], {"codes": code}), before=op)
            fired["simulator"] += 1
    _drop(graph, op)


def _keeps_codes(op: Op, output: Tensor) -> bool:
    codes = [t for t in op.inputs if t is not None and is_codes(t)]
    return op.name in MOVES and bool(codes) and all(same_quant(t, output) for t in codes)


def _drop(graph: Graph, op: Op) -> None:
    for place in range(len(op.inputs)):
        graph.set_input(op, place, None)
    graph.ops.remove(op)
    for tensor in op.outputs:
        if tensor.producer is op:
            tensor.producer = None


def bounds(codes: Tensor) -> tuple[float, int, int, int]:
    """Scale, zero point, least and greatest code."""
    quant = codes.quantisation
    low, high = codes.dtype.bounds
    return float(quant.scale[0]), int(quant.zero_point[0]), low, high
