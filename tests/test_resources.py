"""Resource variables that a plan keeps as arrays: the same values in every plan, graph and run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sanderling.errors import ModelError
from sanderling.format import save
from sanderling.ir import Array, DType, Graph, Model, Op, Signature, Tensor
from sanderling.ops.execute import new_state
from sanderling.runtime.interpreter import Interpreter
from sanderling.runtime.resources import lift
from sanderling.runtime.session import Session
from sanderling.runtime.specialise import specialise

from .conformance.cases_control import (
    X,
    accumulator,
    assign,
    const,
    emit,
    graph,
    numbered,
    read,
    variable,
)
from .support.fake_delegates import Some

ONE = np.arange(6, dtype=np.float32).reshape(2, 3)
# What takes the state's ops beside the reference: nobody, one of them, most, or those of one kind.
SHARES: list[Sequence[str]] = [
    ["NEG"],
    ["READ_VARIABLE"],
    ["ASSIGN_VARIABLE"],
    ["READ_VARIABLE", "ASSIGN_VARIABLE", "ADD"],
    ["ADD"],
]


def signatures(*graphs: Graph) -> Model:
    """Each graph under its own name."""
    made = [
        Signature(
            g.name,
            g,
            {f"x{i}": t for i, t in enumerate(g.inputs)},
            {f"y{i}": t for i, t in enumerate(g.outputs)},
        )
        for g in graphs
    ]
    return Model(list(graphs), signatures=made)


def call(session: Session, name: str, *arrays: Array) -> list[Array]:
    feeds = {f"x{i}": a for i, a in enumerate(arrays)}
    return list(session.run(feeds, signature=name).values())


def lifted(g: Graph) -> tuple[Graph, Any]:
    own, _ = specialise(g, [t.shape for t in g.inputs])
    return own, lift(own, new_state())


def writer(name: str = "write") -> Graph:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", emit(g, "NEG", [x], x.shape))
        return [emit(g, "ABS", [x], x.shape)]

    return graph(name, body, X)


def reader(name: str = "read", op: str = "ABS") -> Graph:
    return graph(name, lambda g, x: [emit(g, op, [read(g, "v", (2, 3))], (2, 3))], X)


def starter() -> Graph:
    g = Graph("init")
    assign(g, "v", const(g, ONE))
    return g


# -- what becomes of a graph ----------------------------------------------------------------------


def test_handles_and_first_calls_vanish() -> None:
    own, found = lifted(accumulator("f32", (2, 3))[0])
    assert [op.name for op in own.ops] == ["READ_VARIABLE", "ADD", "ASSIGN_VARIABLE"]
    assert [op.name for op in found.once] == ["CALL_ONCE"]
    (held,) = found.names
    assert held.is_variable and held.shape == (2, 3) and found.names[held] == ("", "v")
    assert own.ops[0].inputs[0] is own.ops[2].inputs[0] is held


def test_a_number_is_a_handle_too() -> None:
    own, found = lifted(numbered()[0])
    assert list(found.names.values()) == [("", 3)] and len(own.ops) == 2


@pytest.mark.parametrize("delegate", ["reference", "cpu"])
def test_a_scalar_that_is_stated_is_a_scalar(delegate: str) -> None:
    """An error of the model, whoever runs what reads it."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", x)
        stated = read(g, "v", ())
        stated.has_rank = True
        return [emit(g, "ADD", [stated, x], (2, 3), fused_activation_function="NONE")]

    with pytest.raises(ModelError, match=r"has shape \[2, 3\], the output \[\]"):
        Model([graph("main", body, X)]).compile([delegate])(ONE)


def names_after(body: Any, *inputs: tuple[str, tuple[int, ...]]) -> list[str]:
    own, _ = lifted(graph("main", body, *inputs))
    return [op.name for op in own.ops]


def test_not_where_shapes_differ() -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", x)
        assign(g, "v", emit(g, "RESHAPE", [x, const(g, [3, 2], "i32")], (3, 2)))
        return [read(g, "v", (2, 3))]

    assert names_after(body, X).count("VAR_HANDLE") == 3


def test_not_where_a_shape_is_unknown() -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", emit(g, "WHERE", [x], (0, 2), "i64"))
        return [read(g, "v", (2, 2), "i64")]

    assert "VAR_HANDLE" in names_after(body, X)


def test_not_where_a_handle_is_passed_around() -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        inner = graph(
            "inner", lambda h, key: [emit(h, "READ_VARIABLE", [key], (2, 3))], ("resource", ())
        )
        assign(g, "v", x)
        return [
            emit(
                g,
                "STABLEHLO_COMPOSITE",
                [variable(g)],
                (2, 3),
                name="c",
                decomposition_subgraph_index=inner,
            )
        ]

    assert names_after(body, X).count("VAR_HANDLE") == 2


def test_not_where_a_called_graph_touches_it() -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", x)
        assign(g, "w", x)
        return [
            emit(
                g,
                "STABLEHLO_COMPOSITE",
                [x],
                (2, 3),
                name="c",
                decomposition_subgraph_index=reader("inner"),
            )
        ]

    own, found = lifted(graph("main", body, X))
    assert list(found.names.values()) == [("", "w")]
    assert [op.name for op in own.ops].count("VAR_HANDLE") == 1


def test_a_call_behind_a_use_stays() -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", x)
        init = starter()
        g.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
        return [read(g, "v", (2, 3))]

    own, found = lifted(graph("main", body, X))
    assert "CALL_ONCE" in [op.name for op in own.ops] and found is None
    main = graph("main", body, X)
    session = Model([main, main.ops[2].subgraphs[0]]).compile(["cpu"])
    assert np.array_equal(session(2 * ONE), ONE)
    assert np.array_equal(session(2 * ONE), 2 * ONE)


# -- runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", SHARES, ids="+".join)
@pytest.mark.parametrize("more", [{}, {"preserve_all_tensors": True}], ids=["parts", "single ops"])
def test_whoever_runs_what(share: Sequence[str], more: dict[str, Any]) -> None:
    model = Model(accumulator("f32", (2, 3), ("a", "b")))
    theirs = model.compile(["reference"], **more)
    for ours in (model.compile([Some(share), "reference"], **more), model.compile(["cpu"], **more)):
        theirs = model.compile(["reference"], **more)
        for run in range(3):
            for a, b in zip(ours(ONE + run), theirs(ONE + run), strict=True):
                assert np.array_equal(a, b)


def test_the_state_is_one_part_on_the_cpu() -> None:
    session = Model(accumulator("f32", (2, 3), ("a", "b"))).compile(["cpu"])
    assert [p.delegate.name for p in session.plan().partition.parts] == ["cpu"]


def test_bound_runs_and_sessions_have_their_own_state() -> None:
    model = Model(accumulator("f32", (2, 3)))
    first, second = model.compile(["cpu"]), model.compile(["cpu"])
    bound = first.bind({"main_in0": ONE})
    for run in range(1, 4):
        bound.run()
        assert np.array_equal(next(iter(bound.outputs.values())), run * ONE)
    assert np.array_equal(second(ONE), ONE)
    assert np.array_equal(first(ONE), 4 * ONE)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_reading_before_assignment_is_an_error(name: str) -> None:
    session = signatures(reader(), writer()).compile([name])
    for _ in range(2):
        with pytest.raises(ModelError, match="read before it is assigned") as caught:
            call(session, "read", ONE)
        assert "READ_VARIABLE" in str(caught.value)
    call(session, "write", ONE)
    assert np.array_equal(call(session, "read", ONE)[0], ONE)


def test_signatures_share_a_variable() -> None:
    session = signatures(reader(), writer(), reader("other", "NEG")).compile(["cpu"])
    for scale in (1, 3, 5):
        call(session, "write", scale * ONE)
        assert np.array_equal(call(session, "read", ONE)[0], scale * ONE)
        assert np.array_equal(call(session, "other", ONE)[0], scale * ONE)


def test_an_array_of_another_shape_is_noticed() -> None:
    """A resized run assigns another shape; runs that were bound before see it."""
    session = signatures(reader(), writer()).compile(["cpu"])
    call(session, "write", ONE)
    bound = session.bind({"x0": ONE}, signature="read")
    bound.run()
    call(session, "write", np.ones((4, 3), np.float32))
    with pytest.raises(ModelError, match=r"has shape \[4, 3\]"):
        bound.run()
    call(session, "write", 7 * ONE)
    bound.run()
    assert np.array_equal(bound.outputs["y0"], 7 * ONE)


def test_calls_are_made_once_whatever_the_shapes() -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        init = starter()
        g.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
        now = read(g, "v", (2, 3))
        assign(g, "v", emit(g, "ADD", [now, now], (2, 3)))
        return [now, emit(g, "NEG", [x], x.shape)]

    main = graph("main", body, X)
    session = Model([main, main.ops[0].subgraphs[0]]).compile(["cpu"])
    assert np.array_equal(session(ONE)[0], ONE)
    assert np.array_equal(session(np.ones((5, 3), np.float32))[0], 2 * ONE)
    assert np.array_equal(session(ONE)[0], 4 * ONE)


def test_a_read_is_what_was_there_before_the_assignment() -> None:
    """Old values, results and a second read after the assignment, all as outputs."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        before = read(g, "v", (2, 3))
        assign(g, "v", x)
        after = read(g, "v", (2, 3))
        return [
            emit(g, "NEG", [before], (2, 3)),
            before,
            after,
            emit(g, "ADD", [after, before], (2, 3)),
        ]

    session = signatures(graph("main", body, X), writer()).compile(["cpu"])
    call(session, "write", ONE)
    for scale in (2, 3, 4):
        old, x = -ONE if scale == 2 else (scale - 1) * ONE, scale * ONE
        got = call(session, "main", x)
        for a, b in zip(got, [-old, old, x, x + old], strict=True):
            assert np.array_equal(a, b)


def test_graphs_that_only_call() -> None:
    """Nothing is left to run but the call."""
    init = starter()
    start = Graph("start")
    start.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
    model = signatures(reader(), start)
    model.graphs.append(init)
    session = model.compile(["cpu"])
    call(session, "start")
    assert np.array_equal(call(session, "read", ONE)[0], ONE)


def test_interpreter_keeps_resources_on_reset(tmp_path: Any) -> None:
    path = tmp_path / "state.tflite"
    save(Model(accumulator("f32", (2, 3))), path)
    interpreter = Interpreter(str(path), experimental_delegates=["cpu"])
    interpreter.allocate_tensors()
    where = (
        interpreter.get_input_details()[0]["index"],
        interpreter.get_output_details()[0]["index"],
    )
    for run in range(1, 4):
        interpreter.set_tensor(where[0], ONE)
        interpreter.invoke()
        assert np.array_equal(interpreter.get_tensor(where[1]), run * ONE)
        interpreter.reset_all_variables()
        interpreter.allocate_tensors()


def test_types_of_tensors_that_show_a_variable() -> None:
    """Bits that do not fill bytes are left to the reference."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        assign(g, "v", const(g, np.zeros((2, 3)), "i4"))
        return [emit(g, "NEG", [x], (2, 3))]

    assert DType.INT4.bits == 4
    assert "VAR_HANDLE" in names_after(body, X)
