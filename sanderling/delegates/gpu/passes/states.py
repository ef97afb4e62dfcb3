"""Variable tensors, which operators update in place: a device is given their values, and gives back
what becomes of them beside the part's results."""

from __future__ import annotations

from ....ir import Graph, Op, Tensor
from .float_view import drop


def expose_states(graph: Graph) -> list[Tensor]:
    """Change the graph: what variables hold after a run stands behind its outputs, in the order of
    the variables that are returned."""
    now: dict[Tensor, Tensor] = {}
    for op in list(graph.ops):
        if any(t is not None and t.is_variable for t in op.inputs):
            now |= _exposed(graph, op, now)
    graph.outputs += now.values()
    return list(now)


def _exposed(graph: Graph, op: Op, now: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """The op with its states as results; of each variable, its value then."""
    variables = [t for t in op.inputs if t is not None and t.is_variable]
    inputs = [None if t is None else now.get(t, t) for t in op.inputs]
    after = _shown(op) or [_next(t) for t in variables]
    made = Op(
        op.name,
        inputs,
        list(dict.fromkeys([*op.outputs, *after])),
        op.attrs,
        version=op.version,
        intermediates=op.intermediates,
    )
    graph.insert(made, before=op)
    drop(graph, op)
    return dict(zip(variables, after, strict=True))


def _shown(op: Op) -> list[Tensor]:
    """The basic cell shows both of its states as results already."""
    return op.outputs[:2] if op.attrs.get("kernel_type") == "BASIC" else []


def _next(variable: Tensor) -> Tensor:
    name = f"{variable.name}/next"
    return Tensor(name, variable.dtype, variable.shape, quant=variable.quant, is_variable=True)
