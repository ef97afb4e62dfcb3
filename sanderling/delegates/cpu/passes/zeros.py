"""Products that are faster without their zeros are marked (Fused.zeros)."""

from __future__ import annotations

from collections import Counter

from ....ir import Graph
from ....passes import Fired
from ..dialect.fused import either, fuse, operator
from ..isa.targets import Target
from ..kernels.products.zeros import judge

PRODUCTS = either("CONV_2D", "FULLY_CONNECTED")


def leave_zeros_out(graph: Graph, target: Target) -> Fired:
    fired: Fired = Counter()
    for op in [op for op in graph.ops if op.name in PRODUCTS]:
        found = judge(op, target)
        if found is not None and found.pays:
            fuse(op, zeros=True)
            fired[f"{operator(op)} without zeros"] += 1
    return fired
