"""What --print_preinvoke_state prints: tensors and memory; and which delegate has which node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ir import DType, Graph, Tensor
from ...runtime.arena import plan_graph
from ...runtime.plan import Plan
from ...units import MIB
from .flags import Values
from .ready_model import ReadyModel

# Codes of Edge.DataType; every other type is unknown to it.
_EDGE_TYPES = {
    DType.FLOAT32: 1, DType.INT32: 2, DType.UINT8: 3, DType.INT64: 4, DType.STRING: 5,
    DType.BOOL: 6, DType.INT16: 7, DType.COMPLEX64: 8, DType.INT8: 9, DType.FLOAT16: 10,
    DType.FLOAT64: 11, DType.COMPLEX128: 12, DType.UINT64: 13, DType.RESOURCE: 14,
    DType.VARIANT: 15, DType.UINT32: 16, DType.UINT16: 17, DType.INT4: 18, DType.BFLOAT16: 19,
}  # fmt: skip
_TFLITE_SUBGRAPH = 1


def lines(subject: ReadyModel) -> Iterator[str]:
    """The state of a session, graph by graph."""
    values, plan = subject.values, _whole(subject)
    graphs = subject.model.graphs
    yield f"Interpreter has {len(graphs)} subgraphs."
    for number, graph in enumerate(graphs):
        shown = plan.graph if graph is subject.entry.graph else graph
        yield ""
        yield (
            f"-----------Subgraph-{number} {graph.name} has {len(shown.tensors)} tensors and "
            f"{len(shown.ops)} nodes------------"
        )
        yield from _tensors(shown, values)
    for step, held in _held(plan):
        yield f"{step}: " + ", ".join(f"{k} {v} bytes" for k, v in held.items())
    yield f"Arena between parts: {plan.arena.size} bytes ({plan.arena.size / MIB:.2f} MB)"


def _whole(subject: ReadyModel) -> Plan:
    """The plan with its real ops: one that was remembered has none."""
    if subject.plan.is_whole:
        return subject.plan
    return subject.session.plan(subject.entry.graph, [a.shape for a in subject.inputs])


def _held(plan: Plan) -> Iterator[tuple[str, dict[str, int]]]:
    for index, step in enumerate(plan.steps):
        memory = step.executable.memory()
        if memory:
            yield f"Part {index} ({len(step.part.ops)} ops on {step.part.delegate.name})", memory


def _tensors(graph: Graph, values: Values) -> Iterator[str]:
    name, kind, home = (
        values.number(f"{what}_display_length")
        for what in ("tensor_name", "tensor_type", "alloc_type")
    )
    for title, tensors in (("Inputs", graph.inputs), ("Outputs", graph.outputs)):
        size = sum(t.nbytes or 0 for t in tensors)
        places = [graph.tensors.index(t) for t in tensors]
        yield f"{len(tensors)} {title}: {places} -> {size}B ({size / MIB:.2f}MB)"
    offsets = plan_graph(graph).offsets
    yield (
        f"Tensor {'ID':>3} {'Name':<{name}} {'Type':<{kind}} {'AllocType':<{home}} "
        "Size (Bytes/MB)    Shape      MemAddr-Offset"
    )
    for index, tensor in enumerate(graph.tensors):
        size = tensor.nbytes or 0
        place = offsets.get(tensor)
        span = "[-1, -1)" if place is None else f"[{place}, {place + size})"
        yield (
            f"Tensor {index:>3} {_cut(tensor.name, name)} {_cut(_type(tensor), kind)} "
            f"{_cut(allocation(tensor), home)} {size:<8} / {size / MIB:.2f} "
            f"{list(tensor.shape)} {span}"
        )


def _type(tensor: Tensor) -> str:
    return f"kTfLite{tensor.dtype.name.capitalize()}"


def _cut(text: str, width: int) -> str:
    """To this width; what is too long keeps its end."""
    shown = text if len(text) <= width else "..." + text[len(text) - width + 3 :]
    return f"{shown:<{width}}"


def allocation(tensor: Tensor) -> str:
    """The tool's word for where a tensor lives."""
    if tensor.is_constant:
        return "kTfLiteMmapRo"
    if tensor.is_variable:
        return "kTfLiteArenaRwPersistent"
    return "kTfLiteDynamic" if tensor.is_dynamic else "kTfLiteArenaRw"


def runtime_details(subject: ReadyModel) -> dict[str, Any]:
    """As ModelRuntimeDetails: the nodes of the file, and one more for each delegate's part."""
    plan = _whole(subject)
    graph = plan.graph
    places = {t: i for i, t in enumerate(graph.tensors)}
    numbers = {op: i for i, op in enumerate(graph.ops)}
    homes = {op: len(numbers) + i for i, step in enumerate(plan.steps) for op in step.part.ops}
    nodes = [
        {
            "id": number,
            "name": op.outputs[0].name if op.outputs else "",
            "type": op.name,
            "inputs": [-1 if t is None else places[t] for t in op.inputs],
            "outputs": [places[t] for t in op.outputs],
            "delegated_to_node_id": homes.get(op),
        }
        for op, number in numbers.items()
    ]
    parts = [
        {
            "id": len(numbers) + i,
            "name": "",
            "type": "DELEGATE",
            "inputs": [places[t] for t in step.inputs if t in places],
            "outputs": [places[t] for t in step.outputs if t in places],
            "delegate_node_details": {
                "delegate_name": step.part.delegate.name,
                "tflite_node_ids_replaced": [numbers[op] for op in step.part.ops if op in numbers],
            },
        }
        for i, step in enumerate(plan.steps)
    ]
    return {
        "model_name": subject.values.text("graph"),
        "subgraphs": [
            {
                "subgraph_id": 0,
                "edges": [_edge(t, i) for t, i in places.items()],
                "nodes": [*nodes, *parts],
                "execution_plan": [p["id"] for p in parts],
                "subgraph_type": _TFLITE_SUBGRAPH,
            }
        ],
    }


def _edge(tensor: Tensor, place: int) -> dict[str, Any]:
    return {
        "id": place,
        "name": tensor.name,
        "data_type": _EDGE_TYPES.get(tensor.dtype, 0),
        "shape": list(tensor.shape),
        "allocation_type": allocation(tensor),
        "size": tensor.nbytes or 0,
    }
