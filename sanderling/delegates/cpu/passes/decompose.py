"""Operators become others that mean the same and have kernels."""

from __future__ import annotations

from collections import Counter

from ....ir import Graph
from ....passes import Fired
from ..isa.targets import Target
from ..table import row_of


def decompose(graph: Graph, target: Target) -> Fired:
    fired: Fired = Counter()
    for op in list(graph.ops):
        becomes = row_of(op).becomes
        chain = None if becomes is None else becomes(op)
        if chain is None:
            continue
        for made in chain:
            graph.insert(made, before=op)
        graph.erase(op)
        fired[op.name] += 1
    return fired
