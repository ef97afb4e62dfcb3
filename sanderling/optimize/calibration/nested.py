"""Observes models of several graphs. Branches and loops keep a float interface; within they are
quantised like the main graph.

Their values are seen while the main graph runs: what it passes to a call is fed to an observer of
the called graph.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...ir import Array, DType, Graph, Model, Op, Tensor
from ..modes import recurrent
from .calibrate import (
    Calibration,
    Observer,
    Progress,
    Sample,
    Statistics,
    calibrate,
    sample_statistics,
)

# Marks ranges of a branch that no sample took: what it would have seen.
UNTAKEN = "?"
CALLS = ("IF", "WHILE")
OPAQUE = (DType.RESOURCE, DType.VARIANT)
_STATEFUL = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "HASHTABLE", "CALL_ONCE")


class NestedObserver(Observer):
    """An observer that also sees the graphs that its graph calls, and the states of its recurrent
    ops."""

    def __init__(
        self,
        model: Model,
        threads: int | None = None,
        by_channel: Collection[str] = (),
        known: dict[int, NestedObserver] | None = None,
        numbers: Sequence[int] = (),
    ) -> None:
        """known: the observers of graphs that are observed already, by the graphs' numbers in the
        outermost model; numbers: of this model's graphs."""
        known, numbers = {} if known is None else known, numbers or range(len(model.graphs))
        self.calls = [op for op in model.main.ops if op.name in CALLS and _plain(op)]
        self.recurrent = [op for op in model.main.ops if recurrent.has_states(op)]
        places = {id(g): i for i, g in enumerate(model.graphs)}
        self.inner: dict[int, NestedObserver] = {}
        for graph in (g for op in self.calls for g in op.subgraphs):
            place = places[id(graph)]
            number = numbers[place]
            if number not in known:
                order = [number, *(n for n in numbers if n != number)]
                inner = _entered(model, place)
                known[number] = NestedObserver(inner, threads, by_channel, known, order)
            self.inner[id(graph)] = known[number]
        fed = set(model.main.inputs)
        more = [
            t
            for op in self.calls
            for t in op.inputs
            if t is not None and not t.is_constant and t not in fed
        ]
        model.main.outputs = list(dict.fromkeys([*model.main.outputs, *more]))
        super().__init__(model, threads, by_channel)

    def observe(
        self, feeds: Mapping[str, Array], phase: int, number: int, found: dict[str, Statistics]
    ) -> None:
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

    def _runs(
        self,
        op: Op,
        values: Mapping[str, Array],
    ) -> Iterator[tuple[NestedObserver, dict[str, Array], bool]]:
        """Yield what the call runs: (graph's observer, its inputs, whether it really ran). A loop
        goes on from what the observers saw last."""
        given = [_value(op.operand(i), values) for i in range(len(op.inputs))]
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
    """Note the branches that no sample took."""
    known = seen.tensors if seen is not None else {}
    guessed = [
        g.name
        for g in model.graphs[1:]
        if g.ops and any(t.name + UNTAKEN in known and t.name not in known for t in g.inputs)
    ]
    return [
        f"No sample took the branch '{name}'; its ranges are of what it would have seen."
        for name in guessed
    ]


def _plain(op: Op) -> bool:
    """Say whether the call can be repeated apart: what it does depends on its arguments alone."""
    return all(t.dtype not in OPAQUE for g in op.subgraphs for t in g.inputs) and not any(
        inner.name in _STATEFUL or any(t is not None and t.is_variable for t in inner.inputs)
        for g in op.subgraphs
        for inner in g.ops
    )


def _entered(model: Model, place: int) -> Model:
    """A copy of the model whose main graph is the one at this place."""
    copy = model.copy()
    copy.graphs.insert(0, copy.graphs.pop(place))
    copy.signatures = [s for s in copy.signatures if s.graph is copy.main]
    return copy


def entry_statistics(
    model: Model,
    key: str,
    data: Iterable[Sample],
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Statistics]:
    """What the samples of a signature show of the graph that it runs, if that is not the main one;
    names are unique over all graphs."""
    graph = model.signature(key).graph
    place = next(i for i, g in enumerate(model.graphs) if g is graph)
    return calibrate(
        NestedObserver(_entered(model, place), threads), data, progress=progress
    ).tensors


def _named(graph: Graph, arrays: list[Array]) -> dict[str, Array]:
    return {t.name: a for t, a in zip(graph.inputs, arrays, strict=True)}


def _value(tensor: Tensor, values: Mapping[str, Array]) -> Array:
    return tensor.data if tensor.data is not None else np.asarray(values[tensor.name])


def _note(
    values: Mapping[str, Array], phase: int, found: dict[str, Statistics], mark: str = ""
) -> None:
    for name, array in values.items():
        seen = sample_statistics(array, phase)
        if seen is not None and math.isfinite(seen.high - seen.low):
            found.setdefault(name + mark, Statistics()).add(seen)
