"""From a graph to nodes: elementwise chains go into the kernels before them, padding into those
behind it, and reshapes that move nothing vanish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...ir import Graph, Op, Tensor
from ...ir import expr as X
from ...ir.expr import Expr, Input
from . import layout
from .expressions import ELEMENTWISE, expression
from .kernels.row import Row
from .steps import Node

# A kernel reads so many tensors at most, and computes an expression of so many operators.
MOST_OPERANDS = 8
MOST_OPERATORS = 120
VIEWS = frozenset({"RESHAPE", "SQUEEZE", "EXPAND_DIMS"})


@dataclass
class Nodes:
    """A graph as nodes in order. aliases: tensors that are another one's memory."""

    nodes: list[Node] = field(default_factory=list)
    aliases: dict[Tensor, Tensor] = field(default_factory=dict)

    def home(self, tensor: Tensor) -> Tensor:
        """The tensor in whose memory this one lies."""
        while tensor in self.aliases:
            tensor = self.aliases[tensor]
        return tensor


def plan_nodes(graph: Graph, table: Mapping[str, Row], operands: int = MOST_OPERANDS) -> Nodes:
    """operands: tensors that a kernel of this device reads at most."""
    found = Nodes()
    for op in graph.ops:
        if op.name in VIEWS and _is_free(graph, op):
            found.aliases[op.outputs[0]] = op.operand(0)
        else:
            found.nodes.append(_node(op))
    _fold_padding(graph, found)
    _fuse(graph, found, table, operands)
    return found


def _is_free(graph: Graph, op: Op) -> bool:
    source, result = op.operand(0), op.outputs[0]
    inside = result not in graph.outputs and source not in graph.inputs and not source.is_constant
    return inside and layout.same_place(source.shape, result.shape)


def _node(op: Op) -> Node:
    if op.name not in ELEMENTWISE:
        return Node(op, list(op.outputs), ops=[op])
    made = expression(op)
    assert not isinstance(made, str), made
    expr, inputs = made
    return Node(
        op, list(op.outputs), expr, inputs[1:], source=inputs[0] if inputs else None, ops=[op]
    )


# -- padding --------------------------------------------------------------------------------------

PADDED = ("CONV_2D", "DEPTHWISE_CONV_2D")


def _fold_padding(graph: Graph, found: Nodes) -> None:
    made = {t: node for node in found.nodes for t in node.outputs}
    for node in found.nodes[:]:
        source = node.op.input(0)
        before = None if source is None else made.get(source)
        if node.op.name not in PADDED or before is None or before.op.name != "PAD":
            continue
        pads = _spatial_pads(before.op)
        alone = all(user is node.op for user in node.op.operand(0).users)
        if pads is None or not alone or node.op.operand(0) in graph.outputs:
            continue
        node.pads, node.source = pads, before.op.operand(0)
        node.ops = [*before.ops, *node.ops]
        found.nodes.remove(before)


def _spatial_pads(op: Op) -> tuple[int, int, int, int] | None:
    pads = op.operand(1).data
    if pads is None or pads.shape != (4, 2) or pads[[0, 3]].any() or (pads < 0).any():
        return None
    top, bottom, left, right = (int(p) for p in np.asarray(pads)[1:3].reshape(-1))
    return top, bottom, left, right


# -- elementwise chains ---------------------------------------------------------------------------


def is_map(node: Node) -> bool:
    return node.op.name in ELEMENTWISE


def _fuse(graph: Graph, found: Nodes, table: Mapping[str, Row], operands: int) -> None:
    """Producers go into the maps that alone read them. What is merged stands where the map stood:
    all that it reads has been made there."""
    made = {t: node for node in found.nodes for t in node.outputs}
    kept = set(graph.outputs) | set(found.aliases.values())
    for node in [n for n in found.nodes if is_map(n)]:
        while (before := _fusable(node, made, kept, table, operands)) is not None:
            _merge(before, node)
            found.nodes.remove(before)
            made.pop(before.output)


def _fusable(
    node: Node,
    made: Mapping[Tensor, Node],
    kept: set[Tensor],
    table: Mapping[str, Row],
    operands: int,
) -> Node | None:
    """A node that can become part of this one."""
    for tensor in _slots(node):
        before = None if tensor is None else made.get(tensor)
        if tensor is None or before is None or tensor in kept or len(before.outputs) != 1:
            continue
        into = is_map(before) or (is_map(node) and table[before.op.name].fuses)
        alone = all(user in node.ops for user in tensor.users)
        same = layout.dims(tensor.shape) == layout.dims(node.output.shape)
        if into and alone and same and _is_small(before, node, operands):
            return before
    return None


def _is_small(before: Node, node: Node, most: int) -> bool:
    operands = {*before.reads(), *node.reads()} - {before.output}
    operators = sum(1 for n in (before, node) if n.expr is not None for _ in X.walk(n.expr))
    return len(operands) <= most and operators <= MOST_OPERATORS


def _slots(node: Node) -> list[Tensor | None]:
    """What the inputs of a node's expression are: tensors, and None, the result of its kernel."""
    if is_map(node):
        return [*([] if node.source is None else [node.source]), *node.operands]
    return [None, *node.operands]


def _merge(before: Node, node: Node) -> None:
    """The later node computes what the earlier one did, too."""
    assert node.expr is not None, "only maps, and kernels with maps in them, take others in"
    inner, outer = _slots(before), _slots(node)
    result: list[Tensor | None] = [] if is_map(before) and is_map(node) else [None]
    rest = [t for t in outer if t is not before.output]
    order = list(dict.fromkeys([*result, *inner, *rest]))
    value = Input(0, before.output.dtype)
    if before.expr is not None:
        value = X.substitute(before.expr, _places(before.expr, inner, order))
    places = _places(node.expr, outer, [*order, before.output])
    here = {i: value if outer[i] is before.output else e for i, e in places.items()}
    node.expr = X.simplify(X.substitute(node.expr, here))
    node.ops = [*before.ops, *node.ops]
    _set_slots(node, before, order)


def _set_slots(node: Node, before: Node, order: list[Tensor | None]) -> None:
    tensors = [t for t in order if t is not None]
    if is_map(before) and is_map(node):
        node.source, node.operands = tensors[0] if tensors else None, tensors[1:]
        return
    node.operands = tensors
    if not is_map(before):
        node.op, node.pads, node.source = before.op, before.pads, before.source


def _places(expr: Expr, old: list[Tensor | None], new: list[Tensor | None]) -> dict[int, Expr]:
    """The inputs of an expression at their new places."""
    return {i: Input(new.index(old[i]), dtype) for i, dtype in X.inputs_of(expr).items()}
