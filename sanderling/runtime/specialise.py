"""A plan's own copies of a graph: of some of its ops, or of all at given input shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..ir import Graph, Op, Quant, Shape, Tensor

if TYPE_CHECKING:
    from ..ops import Spec

# What operators mean is not needed to run what is planned already: it is imported in functions.
UNKNOWN_SHAPE = (-1,)


def specialise(graph: Graph, shapes: Sequence[Shape]) -> tuple[Graph, dict[Tensor, Tensor]]:
    """A copy of the graph with every tensor's shape worked out from these input shapes.

    A tensor whose shape depends on data is marked dynamic. Also returns original -> copy.
    """
    from ..ops import Spec, infer

    made, twins = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    specs: dict[Tensor, Spec] = {}
    for tensor, shape in zip(made.inputs, shapes, strict=True):
        # It is what the caller gives, whatever the file holds for it.
        tensor.shape, tensor.signature = tuple(shape), None
        tensor.buffer, tensor.sparsity = None, None
        specs[tensor] = Spec(tensor.dtype, tensor.shape)
    for op in made.ops:
        # A constant or a variable is as the file says.
        given = [None if t is None else specs.get(t) or Spec(t.dtype, t.shape, t.data)
                 for t in op.inputs]  # fmt: skip
        for tensor, spec in zip(op.outputs, infer(op, given), strict=True):
            specs[tensor] = spec
            tensor.is_variable = False  # it is computed in every run
            _set_shape(tensor, spec)
    return made, twins


def _set_shape(tensor: Tensor, spec: Spec) -> None:
    if spec.shape is None:
        tensor.shape, tensor.signature = (0,), UNKNOWN_SHAPE
    else:
        tensor.shape, tensor.signature = spec.shape, None


def copy_graph(graph: Graph, ops: Sequence[Op], inputs: Sequence[Tensor],
               outputs: Sequence[Tensor]) -> tuple[Graph, dict[Tensor, Tensor]]:  # fmt: skip
    """A graph of its own with these ops; constants share their buffers with the original."""
    twins: dict[Tensor, Tensor] = {}
    made = Graph(graph.name)

    def twin(tensor: Tensor) -> Tensor:
        if tensor not in twins:
            twins[tensor] = made_twin = tensor.copy()
            made.tensors.append(made_twin)
            made_twin.quant = _copy_block(tensor.quant, twin)
        return twins[tensor]

    made.inputs = [twin(t) for t in inputs]
    for op in ops:
        made.append(op.copy([t and twin(t) for t in op.inputs], [twin(t) for t in op.outputs],
                            [twin(t) for t in op.intermediates]))  # fmt: skip
    made.outputs = [twin(t) for t in outputs]
    return made, twins


def _copy_block(quant: Quant | None, twin: Callable[[Tensor], Tensor]) -> Quant | None:
    """Blockwise scales are tensors too: they move with the tensor they describe."""
    if quant is None or quant.block is None:
        return quant
    old = quant.block
    block = replace(
        old,
        scales=old.scales and twin(old.scales),
        zero_points=old.zero_points and twin(old.zero_points),
    )
    return replace(quant, block=block)
