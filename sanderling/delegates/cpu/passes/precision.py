"""bf16: products of floats in bfloat16, summed in float32.

The pass marks such products (Fused.precision): their weights are rounded when they are packed,
their activations when rows are (sources.Round). What only such products read is written in bfloat16
by its producer: half the bytes, and rows that need no packing. Biases, residuals, activations,
depthwise convolutions and everything else compute in float32.
"""

from __future__ import annotations

from collections import Counter

from ....ir import DType, Graph, Op, Tensor
from ..dialect.chains import BEFORE, parts
from ..dialect.fused import BF16, Fused, Inputs, either, fuse, operator
from ..isa.targets import Target
from ..kernels.products.conv import is_bf16, winograd_blocking
from ..kernels.products.cores import BfloatCore
from ..table import operators_fusing

PRODUCTS = operators_fusing("bf16")
BOTH_COMPUTED = "BATCH_MATMUL"  # neither operand has to be constant


def round_products(graph: Graph, target: Target) -> Counter[str]:
    """The pass; after those that fuse, so that it sees who really writes and reads a tensor."""
    fired: Counter[str] = Counter()
    if target.precision != "bf16":
        return fired
    for op in list(graph.ops):
        if _is_product(op) and not _is_better_off(op, target):
            fuse(_in_order(graph, op), precision=BF16)
            fired[f"{operator(op)} in bf16"] += 1
    for op in graph.ops:
        [out] = op.outputs if len(op.outputs) == 1 else [None]
        if out is not None and _writes(op) and _is_private(graph, out):
            out.dtype = DType.BFLOAT16
            fired["tensor in bf16"] += 1
    return fired


def _is_product(op: Op) -> bool:
    if operator(op) not in PRODUCTS:
        return False
    x, w, *_ = Inputs.of(op)
    floats = all(t is not None and t.dtype is DType.FLOAT32 for t in (x, w, op.outputs[0]))
    return floats and w is not None and (w.data is not None or op.name == BOTH_COMPUTED)


def _in_order(graph: Graph, op: Op) -> Op:
    """The op with the operands that something can be fused into."""
    if op.name != "TRANSPOSE_CONV":
        return op
    made = graph.insert(op.copy(Inputs.of(op).listed(), op.outputs), before=op)
    graph.erase(op)
    return made


def _is_better_off(op: Op, target: Target) -> bool:
    """Fewer products in float32 can be faster than all of them in bf16."""
    if Fused.of(op).zeros:
        return True
    return operator(op) == "CONV_2D" and winograd_blocking(op, target, BfloatCore()) is not None


def _writes(op: Op) -> bool:
    """Whether the kernel can write bfloat16; what is added would have to lie as the result does."""
    if is_bf16(op) and operator(op) != BOTH_COMPUTED:
        return not Fused.of(op).residual
    if op.name not in (*either("DEPTHWISE_CONV_2D"), BEFORE):
        return False
    _, depthwise, _ = parts(op)
    floats = all(t is not None and t.dtype is DType.FLOAT32 for t in depthwise.inputs[:2])
    return floats and not Fused.of(depthwise).residual


def _is_private(graph: Graph, tensor: Tensor) -> bool:
    """Nobody but such products reads it, and in whole pairs: a number too many would count."""
    if tensor in graph.outputs or not tensor.users:
        return False
    return all(_reads_pairs(op, tensor) for op in tensor.users)


def _reads_pairs(op: Op, tensor: Tensor) -> bool:
    if not is_bf16(op) or operator(op) == BOTH_COMPUTED:
        return False
    found = Inputs.of(op)
    read = [name for name, t in zip(found._fields, found, strict=True) if t is tensor]
    return read == ["data"] and found.weights is not None and found.weights.shape[-1] % 2 == 0
