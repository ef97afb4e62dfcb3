"""A session's state: variables, flags of files, branches and loops."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from sanderling import ModelError, dump, load
from sanderling.ir import Array, Model
from sanderling.runtime.plans import MOST_PLANS

from .conformance.cases_control import (
    accumulator,
    binary,
    choose,
    const,
    emit,
    fibonacci,
    graph,
    growing,
    loop,
)
from .conformance.cases_sequence import _svdf
from .support.session_models import F, X, model

# -- state and control flow ---------------------------------------------------------------------


def test_variable_tensors_persist_and_reset() -> None:
    session = _svdf("f32", 1, 4, 3, 1, 3).model().compile()
    x = np.random.default_rng(0).normal(size=(3, 1, 4)).astype(F)
    first = [session(step) for step in x]
    again = session(x[0])
    assert not np.allclose(again, first[0])
    session.reset_variables()
    for step, wanted in zip(x, first, strict=True):
        np.testing.assert_array_equal(session(step), wanted)


def test_variables_outlive_a_plan_but_not_a_session() -> None:
    made = Model(accumulator("f32", (3,)))
    one, two = made.compile(), made.compile()
    for step in range(1, 4):
        np.testing.assert_array_equal(one(F([1, 2, 3])), step * F([1, 2, 3]))
    np.testing.assert_array_equal(two(F([1, 1, 1])), [1, 1, 1])


@pytest.mark.parametrize("delegates", [["reference"], ["cpu", "reference"]])
def test_an_input_that_is_a_variable_is_the_callers(delegates: list[str]) -> None:
    """Also one that the model writes: a run starts from what is fed, which stays as it is."""
    plain = model(binary("SUB"), ("f32", (3,)), ("f32", (3,)))
    plain.main.inputs[1].is_variable = True
    session = plain.compile(delegates)
    np.testing.assert_array_equal(session(F([5, 6, 7]), F([1, 2, 3])), [4, 4, 4])
    np.testing.assert_array_equal(session(F([5, 6, 7, 8]), F([1, 2, 3, 4])), [4, 4, 4, 4])
    svdf = _svdf("f32", 1, 4, 3, 1, 3).model()
    svdf.main.inputs += [t for t in svdf.main.tensors if t.is_variable]
    session, x, state = svdf.compile(delegates), np.ones((1, 4), F), np.full((1, 9), 0.5, F)
    first = session(x, state)
    np.testing.assert_array_equal(session(x, state), first)
    np.testing.assert_array_equal(state, np.full((1, 9), 0.5, F))
    assert not np.allclose(session(x, np.zeros((1, 9), F)), first)


@pytest.mark.parametrize("delegates", [["reference"], ["cpu", "reference"]])
def test_flags_that_a_file_may_set_anywhere(delegates: list[str]) -> None:
    """An input with values in the file is the caller's; a computed variable is computed."""
    made = model(binary("SUB"), ("f32", (3,)), ("f32", (3,)))
    made.main.inputs[1].data = F([9, 9, 9])
    for content in (made, load(bytes(dump(made)))):
        session = content.compile(delegates)
        for y in (F([1, 2, 3]), F([2, 3, 4])):
            np.testing.assert_array_equal(session(F([5, 6, 7]), y), F([5, 6, 7]) - y)
    made = model(lambda g, a: [emit(g, "NEG", [emit(g, "ABS", [a], (2, 3))], (2, 3))])
    for op in made.main.ops:
        op.outputs[0].is_variable = True
    np.testing.assert_array_equal(made.compile(delegates)(-X), -X)


@pytest.mark.parametrize("delegates", [["reference"], ["cpu", "reference"]])
def test_a_variable_of_another_shape_than_the_reader_says(delegates: list[str]) -> None:
    made = Model(accumulator("f32", (3,)))
    for op in (op for g in made.graphs for op in g.ops if op.name == "READ_VARIABLE"):
        op.outputs[0].shape = (1, 3)
    with pytest.raises(ModelError, match=r"has shape \[3\], the output \[1, 3\]"):
        made.compile(delegates)(F([1, 2, 3]))


def test_a_constant_without_elements_compiles() -> None:
    empty = graph("main", lambda g: [emit(g, "EXP", [const(g, np.zeros((3, 0, 2)))], (3, 0, 2))])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Model([empty]).compile(["cpu"])().shape == (3, 0, 2)


@pytest.mark.parametrize(
    "op, attrs",
    [
        ("MAX_POOL_2D", {"filter_height": 2, "filter_width": 2, "stride_h": 1, "stride_w": 1}),
        ("RELU", {}),
    ],
)
def test_an_op_of_constants_alone_gives_an_output(op: str, attrs: dict[str, int]) -> None:
    x = np.arange(16, dtype=F).reshape(1, 4, 4, 1)
    made = graph("main", lambda g: [emit(g, op, [const(g, x)], (1, 4, 4, 1), **attrs)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [Model([made]).compile(d)() for d in ("reference", "cpu")]
    np.testing.assert_array_equal(*found)


def test_a_reduction_of_a_scalar_compiles() -> None:
    made = model(
        lambda g, a: [emit(g, "REDUCE_MIN", [a, const(g, [0], "i32")], (1,), keep_dims=True)],
        ("f32", ()),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = [made.compile(d)(np.array(2.5, F)) for d in ("reference", "cpu")]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("flag, wanted", [(True, 2 * X), (False, X * X)])
def test_if(flag: bool, wanted: Array) -> None:
    session = Model(choose(binary("ADD"), binary("MUL"))).compile()
    np.testing.assert_array_equal(session(np.array(flag), X, X), wanted)


def test_while() -> None:
    session = Model(loop(5, fibonacci, ("f32", (2, 3)), ("f32", (2, 3)))).compile()
    count, a, b = session(np.int32(0), np.zeros((2, 3), F), np.ones((2, 3), F))
    assert int(count) == 5 and a[0, 0] == 5 and b[0, 0] == 8
    for fed in (session(np.int32(9), X, X)[1], session(np.int32(9), X, X)[2]):
        assert not np.shares_memory(fed, X)  # a loop that never runs still gives copies


def test_while_with_growing_shapes_keeps_few_plans() -> None:
    made = Model(loop(40, growing, ("f32", (2, 3))))
    session = made.compile(["reference"])
    assert session(np.int32(0), X)[1].shape == (42, 43)
    assert len(session._plans) <= MOST_PLANS * len(made.graphs)
