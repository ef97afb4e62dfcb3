"""Products rewritten as those that have a kernel for constant weights.

BATCH_MATMUL by one constant matrix is FULLY_CONNECTED: its weights are packed at compile time, and
bias and activation fuse. TRANSPOSE_CONV of floats with integer weights becomes cpu.TRANSPOSE_CONV
with a convolution's operands (x, weights, bias), which is how dynamic_range.py knows products.
"""

from __future__ import annotations

from collections import Counter

from ....ir import Graph
from ....passes import Fired
from ..isa.targets import Target
from ..kernels.products.matmul import connected
from ..kernels.products.transposed import upsampled


def use_constant_weights(graph: Graph, target: Target) -> Fired:
    fired: Fired = Counter()
    for op in list(graph.ops):
        made = connected(op) or upsampled(op)
        if made is not None:
            graph.insert(made, before=op)
            graph.erase(op)
            fired[f"{op.name} to {made.name}"] += 1
    return fired
