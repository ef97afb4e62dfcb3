"""Graphs that call graphs: work grows with the file, not with the ways that lead through it."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import ModelError, SanderlingError, verify
from sanderling.delegates.cpu.kernels.control import inlined_size
from sanderling.delegates.cpu.runtime.cache import fingerprint
from sanderling.ir import Graph, Model, Tensor, reachable
from sanderling.ir.verify import MOST_NESTED
from sanderling.ops import control, cost

from .conformance.cases_control import SCALAR, X, binary, const, emit, graph
from .support.quantize_engines import nested

F = np.float32
ENGINES = [["reference"], ["cpu", "reference"]]


def branches(depth: int) -> Model:
    """IFs inside IFs: both branches of each are the same graph, the next."""
    graphs = [graph("inner", binary("ADD"), X, X)]
    for level in range(depth):

        def body(g: Graph, a: Tensor, b: Tensor) -> list[Tensor]:
            flag = const(g, [True], "bool")
            called = graphs[-1]
            return [
                emit(
                    g,
                    "IF",
                    [flag, a, b],
                    (2, 3),
                    then_subgraph_index=called,
                    else_subgraph_index=called,
                )
            ]

        graphs.append(graph(f"level{level}", body, X, X))
    return Model(graphs[::-1])


def doubling(depth: int) -> Model:
    """Composites that call the next graph with another value at each of two places."""
    graphs = [graph("inner", lambda g, a: [emit(g, "NEG", [a], (), "i32")], SCALAR)]

    def call(g: Graph, x: Tensor) -> Tensor:
        return emit(
            g,
            "STABLEHLO_COMPOSITE",
            [x],
            (),
            "i32",
            name="c",
            decomposition_subgraph_index=graphs[-1],
        )

    def body(g: Graph, a: Tensor) -> list[Tensor]:
        even = emit(g, "MUL", [a, const(g, 2, "i32")], (), "i32")
        odd = emit(g, "ADD", [even, const(g, 1, "i32")], (), "i32")
        return [emit(g, "ADD", [call(g, even), call(g, odd)], (), "i32")]

    for level in range(depth):
        graphs.append(graph(f"level{level}", body, SCALAR))
    main = graph("main", lambda g: [call(g, const(g, 0, "i32"))])
    return Model([main, *graphs[::-1]])


@pytest.mark.parametrize("delegates", ENGINES)
def test_nested_branches_are_planned_and_run(delegates: list[str]) -> None:
    x = np.ones((2, 3), F)
    np.testing.assert_array_equal(branches(40).compile(delegates)(x, x), x + x)


def test_what_looks_at_called_graphs_looks_once() -> None:
    model = branches(40)
    verify(model)
    (op,) = model.main.ops
    assert len(reachable([model.main])) == 41
    assert cost(op).macs == 0
    assert inlined_size(op) == (2**41 - 1, 40)
    assert fingerprint([op], (), ()) != fingerprint(model.graphs[1].ops, (), ())


def test_quantising_watches_a_graph_once() -> None:
    x = np.ones((2, 3), F)
    nested(branches(5), [[x, x]], "int8")


@pytest.mark.parametrize("delegates", ENGINES)
def test_calls_that_multiply_are_refused(
    delegates: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MOST_INFERRED", 2000)
    with pytest.raises(ModelError, match="more than 2000 ops"):
        doubling(40).compile(delegates).plan()


def test_depth_has_a_limit() -> None:
    verify(branches(MOST_NESTED))
    with pytest.raises(ModelError, match=f"more than {MOST_NESTED} deep"):
        verify(branches(MOST_NESTED + 1))
    with pytest.raises(SanderlingError, match="deep"):
        branches(3000).compile("reference")


def test_a_list_of_branches_counts_in_the_key() -> None:
    def key(name: str) -> bytes:
        called = graph("called", binary(name), X, X)
        made = graph(
            "main",
            lambda g, i, a, b: [
                emit(g, "STABLEHLO_CASE", [i, a, b], (2, 3), branch_subgraph_indices=[called])
            ],
            ("i32", ()),
            X,
            X,
        )
        return fingerprint(made.ops, made.inputs, made.outputs)

    assert key("ADD") != key("MUL")
