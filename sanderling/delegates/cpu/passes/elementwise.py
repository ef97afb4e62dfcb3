"""Elementwise operators become tables and expressions, and chains of expressions one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from ....ir import DType, Graph, Op, Shape, Tensor
from ....ir import expr as X
from ....ir.expr import Const, Expr, Input
from ....passes import Fired
from ..isa.targets import Target
from ..kernels.elementwise.activations import flip
from ..kernels.elementwise.maps import rebuild
from ..kernels.elementwise.operands import BYTES, MOST_INPUTS
from ..kernels.elementwise.operators import EXPRESSIONS, lower
from ..kernels.elementwise.tables16 import is_tabled, table_of


def tabulate(graph: Graph, target: Target) -> Fired:
    """Functions of 16-bit codes become tables."""
    fired: Fired = Counter()
    for op in [o for o in graph.ops if is_tabled(o)]:
        data = table_of(op)
        table = Tensor(f"{op.outputs[0].name}/table", DType.INT16, data.shape, data=data)
        graph.insert(Op("cpu.LUT16", [op.inputs[0], table], op.outputs), before=op)
        graph.erase(op)
        fired[op.name] += 1
    return fired


def lower_elementwise(graph: Graph, target: Target) -> None:
    """Elementwise operators become maps and tables."""
    for op in list(graph.ops):
        if op.name in EXPRESSIONS:
            graph.insert(lower(op, target), before=op)
            graph.erase(op)


# A fused expression may have so many operators: beyond, registers spill.
MOST_NODES = 150


def fuse_chains(graph: Graph, target: Target) -> None:
    """A map whose result only one other map reads, element by element, becomes part of that; a flip
    at the border becomes part of a table."""
    for op in list(graph.ops):
        if op.name == "cpu.LUT":
            _fuse_flips(graph, op)
        if op.name != "cpu.MAP" or op not in graph.ops:
            continue
        while (producer := _fusable(graph, op)) is not None:
            op = _fuse(graph, producer, op)


def _fusable(graph: Graph, op: Op) -> Op | None:
    for tensor in op.inputs:
        producer = None if tensor is None else tensor.producer
        if producer is None or producer.name != "cpu.MAP" or tensor in graph.outputs:
            continue
        alone = tensor is not None and all(user is op for user in tensor.users)
        same = tensor is not None and _trimmed(tensor.shape) == _trimmed(op.outputs[0].shape)
        plain = "shapes" not in op.attrs and "shapes" not in producer.attrs
        inputs = len({*producer.inputs, *op.inputs}) - 1
        nodes = sum(1 for e in (producer, op) for _ in X.walk(e.attrs["expr"]))
        if alone and same and plain and inputs <= MOST_INPUTS and nodes <= MOST_NODES:
            return producer
    return None


def _fuse_flips(graph: Graph, op: Op) -> None:
    source, result = op.inputs[0], op.outputs[0]
    before = None if source is None else source.producer
    if before is not None and source is not None and _is_flip(before) and len(source.users) == 1:
        op.attrs["table"] = op.attrs["table"][np.arange(256) ^ 128]
        graph.set_input(op, 0, before.inputs[0])
        graph.erase(before)
    after = result.users[0] if len(result.users) == 1 and result not in graph.outputs else None
    if after is not None and _is_flip(after):
        flipped = op.attrs["table"] ^ np.uint8(128)
        new = Op("cpu.LUT", op.inputs, after.outputs, {"table": flipped})
        graph.insert(new, before=op)
        graph.erase(after)
        graph.erase(op)


def _is_flip(op: Op) -> bool:
    source = op.inputs[0]
    if op.name != "cpu.MAP" or len(op.inputs) != 1 or source is None or source.dtype not in BYTES:
        return False
    return op.attrs["expr"] is flip(op)


def _trimmed(shape: Shape) -> Shape:
    """Without leading ones, which broadcasting ignores."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def _fuse(graph: Graph, producer: Op, op: Op) -> Op:
    tensor = producer.outputs[0]
    inputs = list(dict.fromkeys(t for t in (*producer.inputs, *op.inputs) if t is not tensor))
    place = {t: i for i, t in enumerate(inputs)}

    def numbered(source: Op) -> Callable[[Expr], Expr]:
        def leaf(node: Expr) -> Expr:
            if node.op != "input":
                return node
            read = source.inputs[node.value]
            return inner if read is tensor else Input(place[read], node.dtype)

        return leaf

    inner = Const(0, tensor.dtype)
    inner = _unclamped(rebuild(producer.attrs["expr"], numbered(producer)))
    expr = X.simplify(rebuild(op.attrs["expr"], numbered(op)))
    fused = Op("cpu.MAP", inputs, op.outputs, {"expr": expr})
    graph.insert(fused, before=op)
    graph.erase(op)
    graph.erase(producer)
    return fused


def _unclamped(expr: Expr) -> Expr:
    """Without the clamp to finite numbers, which in the middle of a chain costs more than it says:
    only sums that overflow would tell the difference."""
    most = float(np.finfo(np.float32).max)
    for name, end in (("minimum", most), ("maximum", -most)):
        if expr.op == name and expr.args[1].is_const and expr.args[1].value == end:
            expr = expr.args[0]
    return expr
