"""Products of floats with integer weights: their activations are quantised on the fly."""

from __future__ import annotations

import math
from collections import Counter

from ....ir import DType, Graph, Op, Tensor
from ....ops.base import elements
from ....passes import Fired
from ..dialect.fused import DYNAMIC, TABLE, fuse, operator
from ..isa.targets import Target
from ..kernels.products.dynamic_range import CHUNK, CHUNKS, is_hybrid, is_symmetric


def quantise_on_the_fly(graph: Graph, target: Target) -> Fired:
    """Products that read the same tensor in the same way share its codes."""
    fired: Fired = Counter()
    known: dict[tuple[Tensor, int, bool], tuple[Tensor, Tensor]] = {}
    for op in [o for o in graph.ops if is_hybrid(o)]:
        x, w = op.operand(0), op.operand(1)
        rows = operator(op) == "FULLY_CONNECTED"
        groups = elements(x.shape) // w.shape[1] if rows else x.shape[0]
        key = (x, groups, is_symmetric(op))
        if key not in known:
            known[key] = _insert(graph, op, *key, target)
        codes, table = known[key]
        graph.set_input(op, 0, codes)
        op.inputs += [None] * (TABLE + 1 - len(op.inputs))
        graph.set_input(op, TABLE, table)
        fuse(op, precision=DYNAMIC)
        fired[f"hybrid {op.name}"] += 1
    return fired


def _insert(
    graph: Graph, before: Op, x: Tensor, groups: int, symmetric: bool, target: Target
) -> tuple[Tensor, Tensor]:
    size = elements(x.shape) // groups
    chunks = max(min(math.ceil(size / CHUNK), CHUNKS), 1)
    ranges = graph.tensor(f"{x.name}/range", DType.FLOAT32, (groups, chunks, 2))
    dtype = DType.UINT8 if target.activation == "u8" else DType.INT8
    codes = graph.tensor(f"{x.name}/codes", dtype, x.shape)
    table = graph.tensor(f"{x.name}/table", DType.INT32, (groups, 2))
    graph.insert(Op("cpu.RANGE", [x], [ranges]), before)
    attrs = {"symmetric": symmetric}
    graph.insert(Op("cpu.ENCODE", [x, ranges], [codes, table], attrs), before)
    return codes, table
