"""Graphs that are called are put in the place of the calls: composites and branches.

An IF of pure branches becomes their ops, each under a guard (dialect/guards.py). The branches are
prepared apart from what surrounds them, so that no pass joins ops of different guards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ....ir import Graph, Op, Tensor
from ....passes import Fired
from ....passes.common import reshape
from ..dialect.guards import GUARD, Guard, guard_of
from ..isa.targets import Target
from ..kernels.control import BRANCHES, COMPOSITE, DECOMPOSITION, bound


def inline_composites(graph: Graph, target: Target) -> Fired:
    """Composites become what they stand for, those inside of them too."""
    fired: Fired = Counter()
    while calls := [op for op in graph.ops if op.name == COMPOSITE]:
        for op in calls:
            branch, given = bound(op.attrs[DECOMPOSITION], op.inputs)
            results = _splice(graph, op, branch, dict(zip(branch.inputs, given, strict=True)), ())
            for found, y in zip(results, op.outputs, strict=True):
                graph.insert(reshape(graph, found, y), before=op)
            graph.erase(op)
            fired["composite put in place"] += 1
    return fired


Prepare = Callable[[Graph, Target], object]


def inline_branches(graph: Graph, target: Target, prepare: Prepare) -> Fired:
    """IFs become the ops of their branches, under guards. prepare(branch, target) runs all passes
    on a branch before."""
    fired: Fired = Counter()
    for op in [op for op in graph.ops if op.name == "IF"]:
        condition = op.operand(0)
        known = None if condition.data is None else bool(condition.data.reshape(-1)[0])
        results = []
        for polarity, name in BRANCHES:
            if known in (None, polarity):
                guard = ((condition, polarity),) if known is None else ()
                branch, given = bound(op.attrs[name], op.inputs[1:])
                if branch.ops:
                    prepare(branch, target)
                outer = dict(zip(branch.inputs, given, strict=True))
                results.append(_splice(graph, op, branch, outer, guard))
                fired["branch put in place"] += 1
        for index, found in enumerate(zip(*results, strict=True)):
            y = op.outputs[index]
            graph.insert(
                Op("cpu.MERGE", [condition, *found], [y])
                if known is None
                else reshape(graph, found[0], y),
                before=op,
            )
        graph.erase(op)
    return fired


def _splice(
    graph: Graph, before: Op, branch: Graph, outer: dict[Tensor, Tensor], guard: Guard
) -> list[Tensor]:
    ops = list(branch.ops)
    for tensor in branch.tensors:
        tensor.users, tensor.producer = [], None

    def insert(op: Op) -> None:
        inner = tuple((outer.get(t, t), holds) for t, holds in guard_of(op))
        if guard or inner:
            op.attrs[GUARD] = guard + inner
        graph.insert(op, before=before)

    for op in ops:
        inputs = [outer.get(t, t) if t is not None else None for t in op.inputs]
        insert(op.copy(inputs, op.outputs, op.intermediates))
    results: list[Tensor] = []
    for tensor in branch.outputs:
        theirs = tensor.producer is None or tensor in results
        if theirs and guard:  # the place of the result is not to be somebody else's
            copy = Tensor(f"{tensor.name}/copy", tensor.dtype, tensor.shape, quant=tensor.quant)
            insert(Op("cpu.COPY", [outer.get(tensor, tensor)], [copy]))
            tensor = copy
        results.append(outer.get(tensor, tensor))
    return results
