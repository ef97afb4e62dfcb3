"""A session's arrays: buffers in place, batches, shapes that depend on data, plans, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling import InputError, Session
from sanderling.config import MAX_MEMORY
from sanderling.ir import Array, DType, Graph, Model, Tensor
from sanderling.runtime.plans import MOST_PLANS

from .conformance.cases_control import const, emit
from .support.fake_delegates import Some
from .support.session_models import F, X, double, model

# -- buffers ------------------------------------------------------------------------------------


def test_arrays_are_read_and_written_in_place() -> None:
    seen: list[Array] = []
    spy = Some(["ADD"], watch=lambda part, ins, outs: seen.extend([*ins, *outs]))
    y, x = np.empty((2, 3), F), X.copy()
    session = double().compile([spy])
    result = session.run({"main_in0": x}, outputs={session_output(session): y})
    assert seen[0] is x and seen[1] is y and next(iter(result.values())) is y
    np.testing.assert_array_equal(y, 2 * X)


def session_output(session: Session) -> str:
    return next(iter(session.entry(None).outputs))


def test_results_are_the_callers_to_keep() -> None:
    session = double().compile()
    first, second = session(X), session(X + 1)
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, 2 * X)


def test_a_binding_runs_again_on_changed_values() -> None:
    session, x, y = double().compile(), X.copy(), np.empty((2, 3), F)
    run = session.bind({"main_in0": x}, {session_output(session): y})
    assert run.outputs == {}
    for step in range(3):
        x[...] = X + step
        run.run()
        np.testing.assert_array_equal(y, 2 * (X + step))
    assert next(iter(run.outputs.values())) is y
    session(X * 100)  # another run of the same plan leaves the bound arrays alone
    np.testing.assert_array_equal(y, 2 * (X + 2))


@pytest.mark.parametrize("delegate", ["cpu", "reference"])
@pytest.mark.parametrize("runs", [0, 1, 3])
def test_bound_arrays_cannot_be_taken_away(delegate: str, runs: int) -> None:
    """NumPy would free their memory, or shrink it, and compiled code would write past its end."""
    session, x, y = double().compile([delegate]), X.copy(), np.empty((2, 3), F)
    run = session.bind({"main_in0": x}, {session_output(session): y})
    for _ in range(runs):
        run.run()
    for array in (x, y, *run.outputs.values()):
        for size in (1, 1000):
            with pytest.raises(ValueError, match="cannot resize"):
                array.resize(size, refcheck=False)
    run.run()
    np.testing.assert_array_equal(y, 2 * X)
    del run
    for array in (x, y):
        array.resize(1, refcheck=False)


def test_arrays_that_were_fed_are_the_callers_again() -> None:
    session, x = double().compile(["cpu"]), X.copy()
    y = session.run({"main_in0": x})
    session.run({"main_in0": x})
    for array in (x, *y.values()):
        array.resize(1, refcheck=False)


def passing() -> Model:
    """Outputs: an input, a constant, a variable, a result, and the result again."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        state = g.tensor("state", DType.FLOAT32, (2, 3), is_variable=True)
        y = emit(g, "ADD", [x, x], (2, 3))
        return [x, const(g, np.full((2, 3), 7)), state, y, y]

    return model(body)


def test_outputs_that_no_op_computes() -> None:
    session, x = passing().compile(), X.copy()
    for _ in range(2):
        results = session(x)
        for result, wanted in zip(results, (X, 7, 0, 2 * X, 2 * X), strict=True):
            np.testing.assert_array_equal(result, np.broadcast_to(F(wanted), (2, 3)))
            assert not np.shares_memory(result, x)
            result += 1  # every one is the caller's own, and writable
    assert not np.shares_memory(results[3], results[4])


def test_every_name_of_a_repeated_output_can_be_bound() -> None:
    session = passing().compile()
    buffers = {n: np.zeros((2, 3), F) for n in session.entry(None).outputs}
    results = session.run({"main_in0": X}, outputs=buffers)
    for name, wanted in zip(buffers, (X, 7, 0, 2 * X, 2 * X), strict=True):
        assert results[name] is buffers[name]
        np.testing.assert_array_equal(buffers[name], np.broadcast_to(F(wanted), (2, 3)))


def test_strings_are_fed_as_text_or_bytes() -> None:
    session = model(
        lambda g, x: [x, emit(g, "SHAPE", [x], (1,), "i32", out_type="INT32")], ("str", (2,))
    ).compile()
    for fed in (["a", "bc"], np.array([b"a", b"bc"]), np.array(["a", "bc"], object)):
        text, shape = session(fed)
        assert text.tolist() == [b"a", b"bc"] and shape.tolist() == [2]
    with pytest.raises(InputError, match="not a string"):
        session([1, 2])


# -- shapes -------------------------------------------------------------------------------------


def test_batch_is_what_is_fed() -> None:
    session = model(lambda g, x: [emit(g, "SUM", [x, const(g, [1], "i32")], (2,))]).compile()
    for batch in (1, 2, 5, 2):
        x = np.arange(batch * 3, dtype=F).reshape(batch, 3)
        np.testing.assert_array_equal(session(x), x.sum(1))


def where(g: Graph, x: Tensor) -> list[Tensor]:
    """Indices of elements above zero, doubled: the shape depends on the data."""
    flag = emit(g, "GREATER", [x, const(g, 0)], (6,), "bool")
    found = emit(g, "WHERE", [flag], (6, 1), "i64")
    return [emit(g, "ADD", [found, found], (6, 1), "i64")]


def unique(g: Graph, x: Tensor) -> list[Tensor]:
    values, places = g.tensor("v", DType.FLOAT32, (6,)), g.tensor("i", DType.INT32, (6,))
    g.add("UNIQUE", [x], [values, places], idx_out_type="INT32")
    return [emit(g, "NEG", [values], (6,)), places]


def reshaped(g: Graph, x: Tensor) -> list[Tensor]:
    """RESHAPE to [count of positives, -1]: computed in the run; then the input's place is used
    again, so a result that is only a view would be lost."""
    y = emit(g, "ADD", [x, x], (6,))
    flag = emit(g, "GREATER", [x, const(g, 0)], (6,), "bool")
    ones = emit(g, "CAST", [flag], (6,), "i32")
    count = emit(g, "SUM", [ones, const(g, [0], "i32")], (1,), "i32", keep_dims=True)
    shape = emit(g, "CONCATENATION", [count, const(g, [-1], "i32")], (2,), "i32")
    view = emit(g, "RESHAPE", [y, shape], (3, 2))
    later = emit(g, "MUL", [emit(g, "MUL", [x, x], (6,)), x], (6,))
    return [emit(g, "NEG", [view], (3, 2)), later]


def suppressed(g: Graph, x: Tensor) -> list[Tensor]:
    boxes = const(g, np.float32([[i, 0, i + 1, 1] for i in range(6)]))
    picked, count = g.tensor("p", DType.INT32, (6,)), g.tensor("n", DType.INT32, ())
    g.add(
        "NON_MAX_SUPPRESSION_V4",
        [boxes, x, const(g, 6, "i32"), const(g, 0.5), const(g, 0.5)],
        [picked, count],
    )
    size = emit(g, "RESHAPE", [count, const(g, [1], "i32")], (1,), "i32")
    kept = emit(g, "SLICE", [picked, const(g, [0], "i32"), size], (6,), "i32")
    return [emit(g, "GATHER", [x, kept], (6,), axis=0)]


V = np.float32([3, -1, 2, 3, -2, -5])
DYNAMIC: dict[str, tuple[Any, list[Any]]] = {
    "where": (where, [[[0], [4], [6]]]),
    "unique": (unique, [[-3, 1, -2, 2, 5], [0, 1, 2, 0, 3, 4]]),
    "reshape": (reshaped, [-2 * V.reshape(3, 2), V**3]),
    "non-max suppression": (suppressed, [[3, 3, 2]]),
}
PARTS: dict[str, dict[str, Any]] = {
    "one part": {},
    "a part an op": {"preserve_all_tensors": True},
    "two delegates": {"delegates": [Some(["RESHAPE", "MUL", "ADD"])]},
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", DYNAMIC)
def test_shapes_that_depend_on_data(name: str, parts: str) -> None:
    body, wanted = DYNAMIC[name]
    session = model(body, ("f32", (6,))).compile(**PARTS[parts])
    for _ in range(2):
        results = session.run({"main_in0": V}).values()
        for result, expected in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(result, expected)


def test_a_result_of_unknown_shape_is_no_view_of_the_input() -> None:
    """RESHAPE hands its operand's memory on; the caller must not see its own array change."""

    def body(g: Graph, x: Tensor) -> list[Tensor]:
        shape = g.input("shape", DType.INT32, (2,))
        return [emit(g, "RESHAPE", [x, shape], (3, 2))]

    x, session = V.copy(), model(body, ("f32", (6,))).compile()
    result = session(x, np.int32([3, 2]))
    np.testing.assert_array_equal(result, V.reshape(3, 2))
    assert not np.shares_memory(result, x)


def test_plans_are_kept_and_bounded() -> None:
    session = double().compile(["reference"])
    session(X)
    kept = session.plan()
    for batch in range(3, 3 + 4 * MOST_PLANS):
        session(np.ones((batch, 3), F))
        assert session.plan() is kept  # asked for again and again, so never dropped
    assert len(session._plans) == MOST_PLANS


@pytest.mark.parametrize(
    "limit, words",
    [
        ("1k", "tensor|bytes|limit of 1024|SANDERLING_MAX_MEMORY"),
        ("9m", "graph 'main'|bytes|SANDERLING_MAX_MEMORY"),
        ("lots", "'lots' is not a size|SANDERLING_MAX_MEMORY|4g"),
    ],
)
def test_memory_limit(monkeypatch: pytest.MonkeyPatch, limit: str, words: str) -> None:
    monkeypatch.setenv(MAX_MEMORY.name, limit)
    session = double().compile()
    with pytest.raises(InputError) as caught:
        session.plan(shapes=[(1 << 18 if limit == "9m" else 1 << 20, 5)])
    for word in words.split("|"):
        assert word in str(caught.value)


def test_a_hostile_shape_costs_nothing() -> None:
    with pytest.raises(InputError, match="SANDERLING_MAX_MEMORY"):
        double().compile().plan(shapes=[(1 << 40, 1 << 40)])
