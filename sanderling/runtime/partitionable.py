"""A graph as delegates are asked about it: shapes are inferred, constants computed, and resources
variable tensors. A session partitions it, and so does whoever says what a session would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..config import MAX_MEMORY
from ..errors import InputError
from ..ir import Graph, Op, Shape, Tensor
from ..ops import State
from ..passes.simplify import fold_constants
from ..spans import span
from .delegate import Delegate
from .resources import Resources, lift
from .specialise import specialise


@dataclass(eq=False)
class Partitionable:
    """graph: what is shared out. twins: the given graph's tensors, and theirs here. ops: those of
    the given graph in its order, also those that `graph` has no longer. folded: those of them that
    were computed from constants. resources: what the plan shares with the session's state."""

    graph: Graph
    twins: dict[Tensor, Tensor]
    ops: list[Op]
    folded: set[Op] = field(default_factory=set)
    resources: Resources | None = None


def partitionable(
    graph: Graph,
    shapes: Sequence[Shape],
    delegates: Sequence[Delegate],
    state: State,
    single_ops: bool = False,
) -> Partitionable:
    """The graph at these input shapes, made ready for these delegates. single_ops: each op runs by
    itself, so that none may go."""
    with span("infer shapes", "plan", {"ops": len(graph.ops)}):
        special, twins = specialise(graph, shapes, delegates)
    _check_memory(special)
    found = Partitionable(special, twins, list(special.ops))
    if single_ops:
        return found
    # Weights that are stored as float16 or sparse are constants to every delegate.
    with span("fold constants", "pass"):
        fold_constants(special)
    found.folded = set(found.ops).difference(special.ops)
    if len(delegates) > 1:
        found.resources = lift(special, state)
    return found


def _check_memory(graph: Graph) -> None:
    most = MAX_MEMORY.size()
    for tensor in graph.tensors:
        size = tensor.dtype.nbytes(tensor.shape)
        if size > most:
            raise InputError(
                f"it would take {size} bytes, more than the limit of {most}",
                where=f"tensor '{tensor.name}' {tensor.type_text}",
                fix=f"use smaller input shapes, or set {MAX_MEMORY.name}",
            )
