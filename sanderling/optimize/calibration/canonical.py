"""The canonical form of a float model, which is quantised: a copy of its own with plain constants,
fused clamps and unique names.

Constants of branches and loops often come through the call as arguments; they are moved inside,
where they are weights.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from ...errors import InputError
from ...ir import DType, Graph, Model, Op, Tensor
from ...ir.verify import verify
from ...measure.inspection import quantisation_kind
from ...ops.base import check_known
from ...passes import CLEAN, FOLD, FUSE, MERGE, run_passes

PASSES = (FOLD, FUSE, MERGE, CLEAN)
QUANTISED = ("full integer", "dynamic range", "int16x8")


def canonical(model: Model) -> Model:
    """Make the canonical form; the given model is not touched."""
    kind = quantisation_kind(model)
    if any(word in kind for word in QUANTISED):
        raise InputError(
            f"the model is quantised already: {kind}",
            where=model.source,
            fix="start from the float model it was made from",
        )
    verify(model)
    copy = model.copy()
    for graph in copy.graphs:
        check_known(graph)
    for graph in copy.graphs:
        _plain_constants(graph)
    sink_constants(copy)
    for graph in copy.graphs:
        run_passes(graph, PASSES)
        _whole_sizes(graph)
    _unique_names(copy)
    return copy


def _plain_constants(graph: Graph) -> None:
    """Fold away what expands float16 and sparse weights: they stand for float32 ones."""
    for op in list(graph.ops):
        source = op.input(0)
        if op.name not in ("DEQUANTIZE", "DENSIFY") or source is None or source.data is None:
            continue
        if source.quant is not None and source.quant.is_set:
            continue
        out = op.outputs[0]
        plain = graph.constant(out.name, np.asarray(source.data, np.float32), DType.FLOAT32)
        graph.replace_uses(out, plain)
        graph.erase(op)


def _whole_sizes(graph: Graph) -> None:
    """Replace a SLICE's size of -1, which stands for the rest: XNNPACK does not take it."""
    for op in graph.ops:
        source, begin, sizes = (op.input(i) for i in range(3))
        if op.name != "SLICE" or source is None or source.is_dynamic:
            continue
        if begin is None or sizes is None or begin.data is None or sizes.data is None:
            continue
        if (sizes.data < 0).any():
            rest = np.array(source.shape, sizes.data.dtype) - begin.data
            whole = np.where(sizes.data < 0, rest, sizes.data)
            graph.set_input(op, 2, graph.constant(f"{sizes.name}/whole", whole, sizes.dtype))


def _unique_names(model: Model) -> None:
    """Make names unique over all graphs, since statistics are kept by name."""
    seen: Counter[str] = Counter()
    for tensor in (t for graph in model.graphs for t in graph.tensors):
        base = tensor.name or "unnamed"
        seen[base] += 1
        if seen[base] > 1:
            tensor.name = f"{base}#{seen[base]}"


# -- constants into the graphs that read them -----------------------------------------------------


def sink_constants(model: Model) -> None:
    """Make constant arguments of a call constants of the graphs that it calls."""
    callers = Counter(id(g) for graph in model.graphs for op in graph.ops for g in op.subgraphs)
    entries = {id(s.graph) for s in model.signatures} | {id(model.main)}
    for graph in model.graphs:
        for op in graph.ops:
            called = {id(g): g for g in op.subgraphs}
            own = all(callers[key] == 1 and key not in entries for key in called)
            if own and op.name in _SINKS:
                _SINKS[op.name](graph, op)


def _sink_branches(graph: Graph, op: Op) -> None:
    for place in reversed(range(1, len(op.inputs))):
        constant = op.inputs[place]
        arguments = [branch.inputs[place - 1] for branch in op.subgraphs]
        passed_on = any(a in b.outputs for a, b in zip(arguments, op.subgraphs, strict=True))
        if constant is None or not constant.is_constant or passed_on:
            continue
        for branch in op.subgraphs:
            _fix(branch, place - 1, constant)
        _drop_input(graph, op, place)


def _sink_loop(graph: Graph, op: Op) -> None:
    """Sink the constants that go round a loop unchanged."""
    body, condition = (op.attrs[k] for k in ("body_subgraph_index", "cond_subgraph_index"))
    for place in reversed(range(len(op.inputs))):
        constant, out = op.inputs[place], op.outputs[place]
        if (
            constant is None
            or not constant.is_constant
            or body.outputs.count(body.inputs[place]) != 1
            or body.outputs[place] is not body.inputs[place]
        ):
            continue
        if len(op.inputs) == 1 or condition.inputs[place] in condition.outputs:
            continue
        graph.replace_uses(out, constant)
        del body.outputs[place]
        for inner in (condition, body):
            _fix(inner, place, constant)
        out.producer = None
        del op.outputs[place]
        _drop_input(graph, op, place)


_SINKS = {"IF": _sink_branches, "WHILE": _sink_loop}


def _fix(graph: Graph, place: int, constant: Tensor) -> None:
    argument = graph.inputs.pop(place)
    held = constant.copy()
    graph.enlist(held)
    graph.replace_uses(argument, held)


def _drop_input(graph: Graph, op: Op, place: int) -> None:
    graph.set_input(op, place, None)
    del op.inputs[place]
