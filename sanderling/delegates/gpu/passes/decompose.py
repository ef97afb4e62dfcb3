"""Operators become others that mean the same and have kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ....ir import Graph
from ....passes import Fired
from ..kernels.row import Row


def decompose(graph: Graph, table: Mapping[str, Row]) -> Fired:
    """Until every op stands for itself: a chain may hold ops that become others, too."""
    fired: Fired = Counter()
    waiting = list(graph.ops)
    while waiting:
        op = waiting.pop()
        chain = table[op.name].becomes(op)
        if chain is None:
            continue
        for made in chain:
            graph.insert(made, before=op)
        graph.erase(op)
        waiting += chain
        fired[op.name] += 1
    return fired
