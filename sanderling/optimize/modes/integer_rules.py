"""Whether a finished model keeps the rules of integer kernels: scales, zero points and types.

The quantiser writes by these rules; this reads a file and says what breaks them, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...ir import DType, Model, Op, Tensor
from .rules import RULES, OpRule

CODES = (DType.INT8, DType.INT16)
NEAR = 1e-5  # of a scale: float32 products of scales differ in their last bit


def broken(model: Model) -> list[str]:
    """A sentence for each rule that an op of the model breaks; none if all hold."""
    return [
        f"{op.where}: {what}"
        for graph in model.graphs
        for op in graph.ops
        if op.name in RULES and op.outputs and op.outputs[0].dtype in CODES
        for what in _broken(op, RULES[op.name])
    ]


def _broken(op: Op, row: OpRule) -> Iterator[str]:
    bits = op.outputs[0].dtype.bits
    values = [*row.flowing(op), *(op.outputs if row.real_out else [])]
    for tensor in values:
        if not _is_coded(tensor):
            yield f"'{tensor.name}' has no scale"
            return
        if bits == 16 and tensor.quantisation.zero_point.any():
            yield f"'{tensor.name}' has a zero point, with 16 bits"
    if row.same and not all(_equal(values[0], t) for t in values[1:]):
        yield "its operands and results have different scales"
    if bits in row.fixed and row.real_out:
        scale, zero = row.fixed[bits]
        quant = op.outputs[0].quantisation
        if quant.scale[0] != np.float32(scale) or quant.zero_point[0] != zero:
            yield f"its result has the scale {quant.scale[0]}, not {scale}"
    if not row.recurrent:
        yield from _broken_weights(op, row, bits)


def _is_coded(tensor: Tensor) -> bool:
    return tensor.quant is not None and tensor.quant.scale.size > 0


def _equal(one: Tensor, other: Tensor) -> bool:
    a, b = one.quantisation, other.quantisation
    return a.scale[0] == b.scale[0] and a.zero_point[0] == b.zero_point[0]


def _broken_weights(op: Op, row: OpRule, bits: int) -> Iterator[str]:
    for place, axis in row.weights.items():
        weights = op.operand(place)
        if not _is_coded(weights) or weights.dtype.is_float:
            yield f"its weights '{weights.name}' are no codes"
            continue
        quant = weights.quantisation
        if quant.zero_point.any():
            yield f"its weights '{weights.name}' have a zero point"
        if quant.scale.size > 1 and quant.axis != axis:
            yield f"its weights have their scales along axis {quant.axis}, not {axis}"
        if weights.is_constant and weights.values.min(initial=0) < -weights.dtype.bounds[1]:
            yield f"its weights '{weights.name}' use the lowest code"
        if row.bias is not None and (bias := op.input(row.bias)) is not None:
            yield from _broken_bias(op.operand(row.data[0]), weights, bias, bits)


def _broken_bias(source: Tensor, weights: Tensor, bias: Tensor, bits: int) -> Iterator[str]:
    allowed = (DType.INT32,) if bits == 8 else (DType.INT32, DType.INT64)
    if bias.dtype not in allowed:
        yield f"its bias '{bias.name}' is {bias.dtype.short}"
        return
    wanted = source.quantisation.scale[0] * weights.quantisation.scale
    found = bias.quantisation.scale
    if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=NEAR, atol=0):
        yield f"the scale of its bias '{bias.name}' is not that of its sums"
