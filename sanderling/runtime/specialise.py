"""A graph at given input shapes: every other shape follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..ir import Graph, Op, Shape, Tensor
from ..ir.graph import copy_graph
from .delegate import Delegate

if TYPE_CHECKING:
    from ..ops import Spec

# What operators mean is not needed to run what is planned already: it is imported in functions.
UNKNOWN_SHAPE = (-1,)


def specialise(
    graph: Graph, shapes: Sequence[Shape], delegates: Sequence[Delegate] = ()
) -> tuple[Graph, dict[Tensor, Tensor]]:
    """A copy of the graph with every tensor's shape worked out from these input shapes.

    A tensor whose shape depends on data is marked dynamic. Also returns original -> copy.
    delegates: they are asked about operators that the operator table does not have.
    """
    from ..ops import Spec

    made, twins = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    specs: dict[Tensor, Spec] = {}
    for tensor, shape in zip(made.inputs, shapes, strict=True):
        # It is what the caller gives, whatever the file holds for it.
        tensor.shape, tensor.signature = tuple(shape), None
        tensor.buffer, tensor.sparsity = None, None
        specs[tensor] = Spec(tensor.dtype, tensor.shape)
    for op in made.ops:
        # A constant or a variable is as the file says.
        given = [
            None if t is None else specs.get(t) or Spec(t.dtype, t.shape, t.data) for t in op.inputs
        ]
        for tensor, spec in zip(op.outputs, _infer(op, given, delegates), strict=True):
            specs[tensor] = spec
            tensor.is_variable = False  # it is computed in every run
            _set_shape(tensor, spec)
    return made, twins


def _infer(op: Op, given: Sequence[Spec | None], delegates: Sequence[Delegate]) -> Sequence[Spec]:
    from ..ops import OPS, infer

    if op.name not in OPS:
        for delegate in delegates:
            found = delegate.infer(op, given)
            if found is not None:
                return found
    return infer(op, given)


def _set_shape(tensor: Tensor, spec: Spec) -> None:
    if spec.shape is None:
        tensor.shape, tensor.signature = (0,), UNKNOWN_SHAPE
    else:
        tensor.shape, tensor.signature = spec.shape, None
