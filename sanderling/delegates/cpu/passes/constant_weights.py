"""Products rewritten as those that have a kernel for constant weights.

BATCH_MATMUL by one constant matrix is FULLY_CONNECTED: its weights are packed at compile time, and
bias and activation fuse. TRANSPOSE_CONV of floats with integer weights becomes cpu.TRANSPOSE_CONV
with a convolution's operands (x, weights, bias), which is how dynamic_range.py knows products.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ....ir import DType, Graph, Op, Quant, Tensor
from ....ops.base import attr
from ..codegen.program import Kernel, StepEmitter
from ..dialect.fused import Inputs, fuse
from ..isa.targets import Target
from ..kernels.products.conv import data, refuses_product
from ..kernels.products.dynamic_range import UPSAMPLE, is_integer
from ..kernels.products.transposed import emit_upsampled


def use_constant_weights(graph: Graph, target: Target) -> Counter[str]:
    """The pass."""
    fired: Counter[str] = Counter()
    for op in list(graph.ops):
        made = connected(op) or upsampled(op)
        if made is not None:
            graph.insert(made, before=op)
            graph.erase(op)
            fired[f"{op.name} to {made.name}"] += 1
    return fired


def connected(op: Op) -> Op | None:
    """BATCH_MATMUL as FULLY_CONNECTED, if its right side is one constant matrix."""
    if op.name != "BATCH_MATMUL" or attr(op, "adj_x"):
        return None
    x, y = op.inputs[0], op.inputs[1]
    if x is None or y is None or y.data is None or x.dtype is not DType.FLOAT32:
        return None
    if len(y.shape) > len(x.shape) or any(n != 1 for n in y.shape[:-2]):
        return None
    if y.dtype is not DType.FLOAT32 and not is_integer(y):
        return None
    attrs = {"keep_num_dims": True, "fused_activation_function": "NONE",
             "asymmetric_quantize_inputs": attr(op, "asymmetric_quantize_inputs")}  # fmt: skip
    return Op("FULLY_CONNECTED", [x, _matrix(op, y)], op.outputs, attrs)


def _matrix(op: Op, y: Tensor) -> Tensor:
    """[N, K], with the scales that belong to N."""
    matrix = data(y).reshape(y.shape[-2:])
    matrix = matrix if attr(op, "adj_y") else matrix.T
    made = y.copy()
    made.name = f"{y.name}/matrix"
    made.shape = matrix.shape
    made.data = np.ascontiguousarray(matrix)
    if y.quant is not None and y.quant.is_set:
        made.quant = Quant.of(y.quant.scale, y.quant.zero_point)
    return made


def refuses_connected(op: Op, target: Target) -> str | None:
    """Of a BATCH_MATMUL that has no kernel as it is."""
    made = connected(op)
    if made is None:
        kinds = [t.dtype.short for t in op.inputs[:2] if t is not None]
        return f"a product of {' x '.join(kinds)} has no kernel"
    return refuses_product(made, target)


def upsampled(op: Op) -> Op | None:
    """TRANSPOSE_CONV of floats with integer weights."""
    if op.name != "TRANSPOSE_CONV":
        return None
    x, w, bias, *_ = Inputs.of(op)
    if x is None or w is None or x.dtype is not DType.FLOAT32 or not is_integer(w):
        return None
    return fuse(op.copy([x, w, bias], op.outputs))


def emit_hybrid(k: StepEmitter, op: Op) -> None:
    emit_upsampled(k, op, op)


KERNELS = {UPSAMPLE: Kernel(emit_hybrid, name=lambda op: "transpose_conv")}
