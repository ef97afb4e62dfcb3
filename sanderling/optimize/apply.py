"""A recipe applied to a model: each of its graphs solved and rewritten."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from ..ir import Buffer, DType, Graph, Model
from .interface import Interface, Ranges, open_inputs
from .recipe import Choice, all_modes
from .solve import Solution, solve
from .write import WeightOptions, Writer, Written

SHARED_BYTES = 256  # constants of fewer bytes are not worth a look


def solve_model(model: Model, recipe: Sequence[Choice], ranges: Ranges) -> list[Solution]:
    """One solution a graph."""
    chosen = all_modes(model.graphs, recipe)
    return [solve(g, {op: chosen[op] for op in g.ops}, ranges) for g in model.graphs]


def together(solutions: Sequence[Solution]) -> Solution:
    """What became of all graphs' ops, for reports."""
    whole = Solution({}, {})
    for one in solutions:
        whole.modes |= one.modes
        whole.reasons |= one.reasons
        whole.home |= one.home
        whole.groups |= one.groups
        whole.apart |= one.apart
    return whole


def rewrite(
    model: Model,
    recipe: Sequence[Choice],
    ranges: Ranges,
    weights: WeightOptions,
    inputs: DType = DType.FLOAT32,
    outputs: DType = DType.FLOAT32,
) -> tuple[Solution, Written]:
    """Quantises the model in place. Graphs that others call keep a float interface."""
    solutions = solve_model(model, recipe, ranges)
    whole = Written()
    _check_interface(solutions, inputs, outputs)
    for graph, solution in zip(model.graphs, solutions, strict=True):
        ends = (inputs, outputs) if _is_entry(model, graph) else (DType.FLOAT32, DType.FLOAT32)
        if ends[0] is not DType.FLOAT32:
            open_inputs(graph, solution, inputs, ranges)
        writer = Writer(graph, solution, weights, ranges)
        written = writer.run()
        Interface(model, writer, ranges).finish(*ends)
        graph.prune()
        whole.weights |= written.weights
        whole.became |= written.became
        whole.reasons |= written.reasons
        whole.repaired += written.repaired
    _share(model)
    return together(solutions), whole


def _is_entry(model: Model, graph: Graph) -> bool:
    return graph is model.main or any(s.graph is graph for s in model.signatures)


def _check_interface(solutions: Sequence[Solution], inputs: DType, outputs: DType) -> None:
    asked = inputs is not DType.FLOAT32 or outputs is not DType.FLOAT32
    if asked and not any(m.is_integer for s in solutions for m in s.modes.values()):
        raise InputError("integer inputs and outputs need an integer mode, and no op has one",
                         where="--inputs, --outputs", fix="mode int8 or int16x8, or leave the "
                         "interface float32")  # fmt: skip


def _share(model: Model) -> None:
    """Equal constants of several graphs are stored once."""
    known: dict[bytes, Buffer] = {}
    for graph in model.graphs:
        for tensor in graph.constants:
            buffer = tensor.buffer
            if buffer is None or buffer.external is not None or len(buffer) < SHARED_BYTES:
                continue
            if len(model.graphs) > 1:
                tensor.buffer = known.setdefault(bytes(buffer.raw), buffer)
