"""Products that are faster without their zeros are marked (Fused.zeros)."""

from __future__ import annotations

from collections import Counter

from ....ir import Graph
from ....passes import Fired
from ..dialect.fused import fuse, operator
from ..isa.targets import Target
from ..kernels.products.zeros import judge
from ..table import operators_fusing

PRODUCTS = operators_fusing("zeros")


def leave_zeros_out(graph: Graph, target: Target) -> Fired:
    fired: Fired = Counter()
    for op in [op for op in graph.ops if operator(op) in PRODUCTS]:
        found = judge(op, target)
        if found is not None and found.pays:
            fuse(op, zeros=True)
            fired[f"{operator(op)} without zeros"] += 1
    return fired
