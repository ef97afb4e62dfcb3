"""bf16: products of floats in bfloat16, summed in float32.

The pass marks such products (BF16_ATTR): their weights are rounded when they are packed, their
activations when rows are (rows.Round). What only such products read is written in bfloat16 by its
producer: half the bytes, and rows that need no packing. Biases, residuals, activations, depthwise
convolutions and everything else compute in float32.
"""

from __future__ import annotations

from collections import Counter

from ....ir import DType, Graph, Op, Tensor
from ..isa.targets import Target
from ..kernels.depthwise.with_pointwise import BEFORE, parts
from ..kernels.products.conv import BF16_ATTR, winograd_plan
from ..kernels.products.cores import BfloatCore

# Where a product has its activations; the weights are its second operand.
DATA = {"CONV_2D": 0, "FULLY_CONNECTED": 0, "TRANSPOSE_CONV": 2}
BOTH_COMPUTED = "BATCH_MATMUL"


def round_products(graph: Graph, target: Target) -> Counter[str]:
    """The pass; after those that fuse, so that it sees who really writes and reads a tensor."""
    fired: Counter[str] = Counter()
    if target.precision != "bf16":
        return fired
    for op in graph.ops:
        if _is_product(op) and not _is_better_off(op, target):
            op.attrs[BF16_ATTR] = True
            fired[f"{op.name} in bf16"] += 1
    for op in graph.ops:
        [out] = op.outputs if len(op.outputs) == 1 else [None]
        if out is not None and _writes(op) and _is_private(graph, out):
            out.dtype = DType.BFLOAT16
            fired["tensor in bf16"] += 1
    return fired


def _is_product(op: Op) -> bool:
    if op.name not in (*DATA, BOTH_COMPUTED):
        return False
    x, w = op.input(DATA.get(op.name, 0)), op.input(1)
    floats = all(t is not None and t.dtype is DType.FLOAT32 for t in (x, w, op.outputs[0]))
    return floats and w is not None and (w.data is not None or op.name == BOTH_COMPUTED)


def _is_better_off(op: Op, target: Target) -> bool:
    """Fewer products in float32 can be faster than all of them in bf16."""
    return op.name == "CONV_2D" and winograd_plan(op, target, BfloatCore()) is not None


def _writes(op: Op) -> bool:
    """Whether the kernel can write bfloat16; what is added would have to lie as the result does."""
    if BF16_ATTR in op.attrs and op.name in DATA:
        return op.input(3) is None or op.name == "TRANSPOSE_CONV"
    if op.name not in ("DEPTHWISE_CONV_2D", BEFORE):
        return False
    _, depthwise, _ = parts(op)
    floats = all(t is not None and t.dtype is DType.FLOAT32 for t in depthwise.inputs[:2])
    return floats and depthwise.input(3) is None


def _is_private(graph: Graph, tensor: Tensor) -> bool:
    """Nobody but such products reads it, and in whole pairs: a number too many would count."""
    if tensor in graph.outputs or not tensor.users:
        return False
    return all(_reads_pairs(op, tensor) for op in tensor.users)


def _reads_pairs(op: Op, tensor: Tensor) -> bool:
    if BF16_ATTR not in op.attrs or op.name not in DATA:
        return False
    places = [i for i, t in enumerate(op.inputs) if t is tensor]
    w = op.inputs[1]
    return places == [DATA[op.name]] and w is not None and w.shape[-1] % 2 == 0
