"""Models of several graphs: branches and loops keep a float interface, within they are quantised
like the main graph.

Their constants often come through the call as arguments; they are moved inside, where they are
weights. Their values are seen while the main graph runs: what it passes to a call is fed to a
watcher of the called graph.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ..ir import Array, DType, Graph, Model, Op, Tensor
from . import recurrent
from .calibrate import (
    Calibration,
    Progress,
    Sample,
    Statistics,
    Watcher,
    calibrate,
    glance,
)

# Marks ranges of a branch that no sample took: what it would have seen.
UNTAKEN = "?"
OPAQUE = (DType.RESOURCE, DType.VARIANT)
_STATEFUL = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE", "CALL_ONCE")


# -- constants into the graphs that read them -----------------------------------------------------


def sink_constants(model: Model) -> None:
    """Constant arguments of a call become constants of the graphs that it calls."""
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
    """What goes round a loop unchanged."""
    body, condition = (op.attrs[k] for k in ("body_subgraph_index", "cond_subgraph_index"))
    for place in reversed(range(len(op.inputs))):
        constant, out = op.inputs[place], op.outputs[place]
        if constant is None or not constant.is_constant or body.outputs.count(
            body.inputs[place]) != 1 or body.outputs[place] is not body.inputs[place]:  # fmt: skip
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


# -- seeing every graph ---------------------------------------------------------------------------


class Nest(Watcher):
    """A watcher that also sees the graphs that its graph calls, and the states of its recurrent
    ops."""

    def __init__(self, model: Model, threads: int | None = None, by_channel: Collection[str] = (),
                 nests: dict[int, Nest] | None = None,
                 numbers: Sequence[int] = ()) -> None:  # fmt: skip
        """nests: those of graphs that are watched already, by the graphs' numbers in the outermost
        model; numbers: of this model's graphs."""
        nests, numbers = {} if nests is None else nests, numbers or range(len(model.graphs))
        self.calls = [op for op in model.main.ops if op.name in _SINKS and _plain(op)]
        self.recurrent = [op for op in model.main.ops if recurrent.has_states(op)]
        places = {id(g): i for i, g in enumerate(model.graphs)}
        self.inner: dict[int, Nest] = {}
        for graph in (g for op in self.calls for g in op.subgraphs):
            place = places[id(graph)]
            number = numbers[place]
            if number not in nests:
                rest = [n for n in numbers if n != number]
                nests[number] = Nest(_entered(model, place), threads, by_channel, nests,
                                     [number, *rest])  # fmt: skip
            self.inner[id(graph)] = nests[number]
        fed = set(model.main.inputs)
        more = [t for op in self.calls for t in op.inputs
                if t is not None and not t.is_constant and t not in fed]  # fmt: skip
        model.main.outputs = list(dict.fromkeys([*model.main.outputs, *more]))
        super().__init__(model, threads, by_channel)

    def observe(self, feeds: Mapping[str, Array], phase: int, number: int,
                found: dict[str, Statistics]) -> None:  # fmt: skip
        super().observe(feeds, phase, number, found)
        values = self.last
        for op in self.recurrent:
            _note(recurrent.states(op, values), phase, found)
        for op in self.calls:
            for inner, args, taken in self._runs(op, values):
                if taken:
                    inner.observe(args, phase, number, found)
                else:
                    _note(inner.run(args), phase, found, UNTAKEN)

    def _runs(self, op: Op, values: Mapping[str, Array],
              ) -> Iterator[tuple[Nest, dict[str, Array], bool]]:  # fmt: skip
        """What the call runs: (graph's watcher, its inputs, whether it really ran). A loop goes on
        from what the watchers saw last."""
        given = [_value(t, values) for t in op.inputs]
        if op.name == "IF":
            chosen = op.attrs["then_subgraph_index" if given[0].item() else "else_subgraph_index"]
            for graph in dict.fromkeys(op.subgraphs):  # both may be one
                yield self.inner[id(graph)], _named(graph, given[1:]), graph is chosen
            return
        condition, body = (op.attrs[k] for k in ("cond_subgraph_index", "body_subgraph_index"))
        asked, done = self.inner[id(condition)], self.inner[id(body)]
        while True:
            yield asked, _named(condition, given), True
            if not _value(condition.outputs[0], asked.last).item():
                return
            yield done, _named(body, given), True
            given = [np.array(_value(t, done.last)) for t in body.outputs]


def untaken(model: Model, seen: Calibration | None) -> list[str]:
    """Notes on branches that no sample took."""
    known = seen.tensors if seen is not None else {}
    guessed = [g.name for g in model.graphs[1:] if g.ops
               and any(t.name + UNTAKEN in known and t.name not in known for t in g.inputs)
               ]  # fmt: skip
    return [f"No sample took the branch '{name}'; its ranges are of what it would have seen."
            for name in guessed]  # fmt: skip


def _plain(op: Op) -> bool:
    """Calls that can be repeated apart: what they do depends on their arguments alone."""
    return all(
        t.dtype not in OPAQUE for g in op.subgraphs for t in g.inputs
    ) and not any(
        inner.name in _STATEFUL or any(t is not None and t.is_variable for t in inner.inputs)
        for g in op.subgraphs for inner in g.ops
    )  # fmt: skip


def _entered(model: Model, place: int) -> Model:
    """A copy of the model whose main graph is the one at this place."""
    copy = model.copy()
    copy.graphs.insert(0, copy.graphs.pop(place))
    copy.signatures = [s for s in copy.signatures if s.graph is copy.main]
    return copy


def entry_statistics(model: Model, key: str, data: Iterable[Sample], threads: int | None = None,
                     progress: Progress | None = None) -> dict[str, Statistics]:  # fmt: skip
    """What the samples of a signature show of the graph that it runs, if that is not the main one;
    names are unique over all graphs."""
    graph = model.signature(key).graph
    place = next(i for i, g in enumerate(model.graphs) if g is graph)
    return calibrate(Nest(_entered(model, place), threads), data, progress=progress).tensors


def _named(graph: Graph, arrays: list[Array]) -> dict[str, Array]:
    return {t.name: a for t, a in zip(graph.inputs, arrays, strict=True)}


def _value(tensor: Tensor | None, values: Mapping[str, Array]) -> Array:
    assert tensor is not None
    return tensor.data if tensor.data is not None else np.asarray(values[tensor.name])


def _note(values: Mapping[str, Array], phase: int, found: dict[str, Statistics],
          mark: str = "") -> None:  # fmt: skip
    for name, array in values.items():
        seen = glance(array, phase)
        if seen is not None and math.isfinite(seen.high - seen.low):
            found.setdefault(name + mark, Statistics()).add(seen)
