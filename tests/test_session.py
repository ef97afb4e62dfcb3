"""A session: names, types, shapes, buffers in place, dynamic shapes, state, threads, limits."""

from __future__ import annotations

import threading
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sanderling import (
    OPS,
    BusyError,
    InputError,
    ModelError,
    SanderlingError,
    Session,
    Spec,
    dequantize_array,
    dump,
    load,
    quantize_array,
    register_custom,
)
from sanderling.config import MAX_MEMORY
from sanderling.ir import Array, DType, Graph, Model, Quant, Signature, Tensor
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
from .support.fake_delegates import Some

F = np.float32
X = np.arange(6, dtype=F).reshape(2, 3)


def model(body: Callable[..., Any], *inputs: tuple[str, tuple[int, ...]]) -> Model:
    """A model of one graph whose inputs are main_in0, main_in1 ..."""
    return Model([graph("main", body, *(inputs or [("f32", (2, 3))]))])


def add_mul() -> Model:
    """a + b and a * b, with a signature that names them."""
    made = model(
        lambda g, a, b: [emit(g, "ADD", [a, b], (2, 3)), emit(g, "MUL", [a, b], (2, 3))],
        ("f32", (2, 3)),
        ("f32", (2, 3)),
    )
    g = made.main
    names = Signature(
        "serve",
        g,
        dict(zip("ab", g.inputs, strict=True)),
        {"sum": g.outputs[0], "product": g.outputs[1]},
    )
    made.signatures.append(names)
    return made


def double() -> Model:
    return model(lambda g, x: [emit(g, "ADD", [x, x], (2, 3))])


def quantised() -> Model:
    g = Graph()
    x = g.input("x", DType.INT8, (1, 4), quant=Quant.of(0.5, -3))
    y = g.tensor("y", DType.INT8, (1, 4), quant=Quant.of(0.5, -3))
    g.add("RELU", [x], [y])
    g.outputs = [y]
    return Model([g])


# -- names, types, shapes -----------------------------------------------------------------------


def test_runs_by_name_by_place_and_mixed() -> None:
    session = add_mul().compile()
    by_name = session.run({"a": X, "b": X + 1})
    assert list(by_name) == ["sum", "product"]
    for total, product in (
        by_name.values(),
        session(X, X + 1),
        session(X, b=X + 1),
        session.run({"b": X + 1, "a": X}, signature="serve").values(),
    ):
        np.testing.assert_array_equal(total, 2 * X + 1)
        np.testing.assert_array_equal(product, X * (X + 1))
    np.testing.assert_array_equal(double().compile()(X), 2 * X)


def test_takes_what_converts_without_loss() -> None:
    session = double().compile()
    for fed in (
        X.tolist(),
        X.astype(int).tolist(),
        X.astype(np.float64),
        X[:, ::-1][:, ::-1],
        np.asfortranarray(X),
        X.astype(">f4"),
        X.astype(np.float16),
    ):
        np.testing.assert_array_equal(session(fed), 2 * X)
    relu = quantised().compile()
    np.testing.assert_array_equal(relu([[5, -5, 127, -128]]), [[5, -3, 127, -3]])
    assert echo("i32")(np.uint8([3])) == 3 and echo("i64")(np.int32([3])) == 3


def echo(kind: str, quant: Quant | None = None) -> Session:
    made = model(lambda g, x: [emit(g, "RESHAPE", [x], (1,), kind, new_shape=[1])], (kind, (1,)))
    made.main.inputs[0].quant = made.main.outputs[0].quant = quant
    return made.compile(["reference"])


# Types decide, not values: 0 and 1 would fit everywhere. Input, whether it is quantised, what is
# given, words of the refusal.
REFUSED = [
    ("i8", True, np.uint8, r"an array of uint8, the model takes int8\n.*x\.astype\(np\.int8\)"),
    ("i8", True, np.int64, r"round\(x / 0\.5\) \+ 3"),
    ("i8", True, np.float32, "quantise it first"),
    ("i8", True, np.bool_, r"x\.astype\(np\.int8\)"),
    ("u8", True, np.int8, "quantise the reals that it stands for"),
    ("i16", True, np.uint8, "quantise the reals that it stands for"),
    ("i8", False, np.uint8, r"x\.astype\(np\.int8\)"),
    ("i32", False, np.int64, r"x\.astype\(np\.int32\)"),
    ("i32", False, np.float32, r"x\.astype\(np\.int32\)"),
    ("i32", False, np.bool_, r"x\.astype\(np\.int32\)"),
    ("f32", False, np.uint8, r"scale it as the model expects: x\.astype\(np\.float32\)"),
    ("f32", False, np.bool_, r"x\.astype\(np\.float32\)"),
    ("f32", False, np.complex64, r"x\.astype\(np\.float32\)"),
    ("bool", False, np.uint8, r"x\.astype\(np\.bool\)"),
]


@pytest.mark.parametrize(("kind", "quantised", "given", "words"), REFUSED)
@pytest.mark.parametrize("value", [0, 1])
def test_types_are_checked_not_values(
    kind: str, quantised: bool, given: type, words: str, value: int
) -> None:
    session = echo(kind, Quant.of(0.5, 3) if quantised else None)
    with pytest.raises(InputError, match=rf"input 'main_in0': (.|\n)*{words}"):
        session(np.array([value], given))


def test_python_numbers_have_no_type() -> None:
    assert echo("i8", Quant.of(0.5, 3))([5]) == 5 and echo("f32")([5]) == 5
    for wrong in ([300], [2**70], [True], [0.5], [np.uint8(5)]):
        with pytest.raises(InputError, match="input 'main_in0'"):
            echo("i8", Quant.of(0.5, 3))(wrong)


def test_strings_keep_their_nuls() -> None:
    session = echo("str")
    for fed in ([b"ab\0"], np.array([b"ab\0"], object), ["ab\0"]):
        assert session(fed).tolist() == [b"ab\0"]


def feed(a: Any = X, b: Any = X, **more: Any) -> Callable[[], object]:
    return lambda: add_mul().compile().run({"a": a, "b": b} | more)


def bound(**outputs: Any) -> Callable[[], object]:
    return lambda: add_mul().compile().run({"a": X, "b": X}, outputs=outputs)


def read_only() -> Array:
    array = np.empty((2, 3), F)
    array.flags.writeable = False
    return array


# what is done -> the words the message must have
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "unknown name": (feed(c=X), "no input 'c'|a f32[2,3], b f32[2,3]"),
    "missing name": (lambda: add_mul().compile().run({"a": X}), "'b' is missing|the inputs are"),
    "too many": (lambda: double().compile()(X, X), "2 arrays for 1|main_in0"),
    "twice": (lambda: double().compile()(X, main_in0=X), "main_in0|once"),
    "rank": (feed(a=X[0]), "input 'a'|[3]|f32[2,3]|2 dimensions"),
    "size": (feed(a=np.ones((2, 4), F)), "input 'a' [2, 4]|ADD|it takes 'a' f32[2,3]"),
    "complex": (feed(a=X + 1j), "input 'a'|complex64|float32|astype"),
    "text": (feed(a=[["x"] * 3] * 2), "input 'a'|of type list|give an array of numbers"),
    "nothing": (feed(a=None), "of type NoneType|np.zeros((2, 3), np.float32)"),
    "ragged": (feed(a=[[1], [2, 3]]), "input 'a'|equal length"),
    "reals for int8": (lambda: quantised().compile()(np.ones((1, 4), F)),
                       "input 'x'|int8|quantise|round(x / 0.5) - 3"),
    "integers that do not fit": (lambda: quantised().compile()([[1, 2, 3, 300]]), "input 'x'|int8"),
    "output name": (bound(total=np.empty((2, 3), F)), "output 'total'|sum, product"),
    "output type": (bound(sum=np.empty((2, 3))), "output 'sum'|float64|float32"),
    "output shape": (bound(sum=np.empty((3, 2), F)), "output 'sum'|[3, 2]|[2, 3]"),
    "output layout": (bound(sum=np.empty((3, 2), F).T), "output 'sum'|contiguous"),
    "output read-only": (bound(sum=read_only()), "output 'sum'|read-only"),
    "output is an input": (bound(sum=X), "output 'sum'|overlaps"),
    "output is no array": (bound(sum=[1]), "output 'sum'|list"),
    "signature": (lambda: add_mul().compile().run({}, signature="train"), "'train'|'serve'"),
    "threads": (lambda: double().compile(threads=0), "`threads` is 0|1 or more"),
    "threads type": (lambda: double().compile(threads="2"), "`threads` is '2'"),
    "delegate": (lambda: double().compile(["npu"]), "'npu'|reference"),
    "delegate type": (lambda: double().compile([3]), "3|reference"),
    "bind type": (lambda: double().compile().bind({"main_in0": X.astype(np.float64)}), "float64"),
    "bind layout": (lambda: double().compile().bind({"main_in0": np.asfortranarray(X)}),
                    "contiguous|ascontiguousarray"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_wrong_input_is_explained(what: str) -> None:
    act, words = WRONG[what]
    with pytest.raises(InputError) as caught:
        act()
    assert caught.value.fix
    for word in words.split("|"):
        assert word in str(caught.value)


def test_a_single_delegate_needs_no_list() -> None:
    assert double().compile("reference").delegates[0].name == "reference"
    assert double().compile(Some(["ADD"])).delegates[0].name == "some"


def test_delegates_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDERLING_DELEGATES", "npu")
    with pytest.raises(InputError, match="npu"):
        double().compile()


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
    session = double().compile()
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


# -- signatures ---------------------------------------------------------------------------------


def two_entries() -> Model:
    """Two graphs, each with a signature; the second's names are not in the graph's order."""
    graphs = [
        graph(n, binary(op), ("f32", (2, 3)), ("f32", (2, 3)))
        for n, op in (("plus", "ADD"), ("minus", "SUB"))
    ]
    made = Model(graphs)
    for g, names in zip(graphs, ("xy", "yx"), strict=True):
        inputs = dict(zip(names, g.inputs if names == "xy" else g.inputs[::-1], strict=True))
        made.signatures.append(Signature(g.name, g, inputs, {"out": g.outputs[0]}))
    return made


@pytest.mark.parametrize("saved", [False, True])
def test_several_signatures(saved: bool) -> None:
    made = load(dump(two_entries())) if saved else two_entries()
    session = made.compile()
    feeds = {"x": X, "y": np.ones((2, 3), F)}
    np.testing.assert_array_equal(session.run(feeds, signature="plus")["out"], X + 1)
    np.testing.assert_array_equal(session.run(feeds, signature="minus")["out"], X - 1)
    run = session.bind(feeds, signature="minus")
    run.run()
    np.testing.assert_array_equal(run.outputs["out"], X - 1)


def test_a_signature_that_leaves_an_input_out() -> None:
    made = two_entries()
    del made.signatures[0].inputs["y"]
    with pytest.raises(InputError, match="no name for tensor 'plus_in1'"):
        made.compile().run({"x": X}, signature="plus")


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


# -- threads, memory ----------------------------------------------------------------------------


def test_a_second_thread_gets_a_clear_error() -> None:
    inside, go = threading.Event(), threading.Event()
    spy = Some(["ADD"], watch=lambda *_: (inside.set(), go.wait(10)))
    session = double().compile([spy])
    thread = threading.Thread(target=session, args=(X,))
    thread.start()
    inside.wait(10)
    try:
        for act in (
            lambda: session(X),
            session.plan,
            session.reset_variables,
            lambda: session.bind({"main_in0": X}),
        ):
            with pytest.raises(BusyError, match=r"another thread(.|\n)*its own session"):
                act()
    finally:
        go.set()
        thread.join()
    np.testing.assert_array_equal(session(X), 2 * X)


def test_an_error_leaves_the_session_usable() -> None:
    session = double().compile()
    with pytest.raises(SanderlingError):
        session(X[0])
    np.testing.assert_array_equal(session(X), 2 * X)


def test_two_sessions_in_two_threads() -> None:
    made, wrong = Model(accumulator("f32", (3,))), []

    def work(seed: int) -> None:
        session, total = made.compile(), np.zeros(3, F)
        for step in np.random.default_rng(seed).integers(0, 9, (50, 3)).astype(F):
            total += step
            if not np.array_equal(session(step), total):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_many_runs_do_not_grow_memory() -> None:
    """Arrays of 16 KiB: one kept a run would be 8 MB (Python's own free lists take some 100 KB)."""
    session = Model(accumulator("f32", (64, 64))).compile()
    x = np.ones((64, 64), F)
    session(x)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            session(x)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1 << 18


# -- what users get wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("feeds", [X, [X], 3], ids=["array", "list", "number"])
def test_feeds_that_are_not_by_name(feeds: Any) -> None:
    with pytest.raises(InputError, match=r"session\.run\(\{'main_in0': array"):
        model(lambda g, x: [emit(g, "ABS", [x], (2, 3))]).compile().run(feeds)


def test_the_hint_to_quantise_is_for_reals() -> None:
    made = model(
        lambda g, x: [emit(g, "RESHAPE", [x], (2, 3), "i8", new_shape=[2, 3])], ("i8", (2, 3))
    )
    made.main.inputs[0].quant = made.main.outputs[0].quant = Quant.of(0.5, 3)
    session = made.compile()
    with pytest.raises(InputError, match=r"sanderling\.quantize_array\(x, session\.entry\(None\)"):
        session(X)
    with pytest.raises(InputError, match="its values must be -128 to 127"):
        session([[300] * 3] * 2)
    codes = quantize_array(X, session.entry(None).inputs["main_in0"])
    np.testing.assert_array_equal(dequantize_array(session(codes), made.main.outputs[0]), X)


def test_an_output_of_another_type_than_the_graph_states() -> None:
    wrong = model(lambda g, x: [emit(g, "RESHAPE", [x], (2, 3), new_shape=[2, 3])], ("i8", (2, 3)))
    with pytest.raises(SanderlingError, match=r"RESHAPE 'main_1': .*is f32\n.*it gives i8"):
        wrong.compile(delegates=["reference"])(np.zeros((2, 3), np.int8))


def _same(op: Any, specs: Any) -> Any:
    return specs[0]


# evaluate, infer -> words of the message
MISTAKES: dict[str, tuple[Any, Any, str]] = {
    "nothing": (lambda op, a: None, _same, "evaluate returned None, not an array"),
    "type": (lambda op, a: a[0].astype("f8"), _same, "an array of float64 .* which is float32"),
    "shape": (lambda op, a: a[0][:1], _same, r"shape \[1, 3\] .* infer said \[2, 3\]"),
    "count": (lambda op, a: [a[0]] * 2, _same, "2 arrays for 1 outputs"),
    "exception": (lambda op, a: {}["key"], _same, "evaluate raised KeyError: 'key'"),
    "os": (lambda op, a: np.load("/none"), _same, "evaluate raised FileNotFoundError"),
    "no spec": (lambda op, a: a[0], lambda op, s: (2, 3), r"infer returned \(2, 3\), not a Spec"),
    "no specs": (lambda op, a: a[0], lambda op, s: None, "infer returned None"),
    "specs": (lambda op, a: a[0], lambda op, s: [*s, *s], "2 specs for 1 outputs"),
    "spec type": (lambda op, a: a[0], lambda op, s: Spec(DType.INT8, (2, 3)), "infer says i8"),
    "infer": (lambda op, a: a[0], lambda op, s: s.shape, "infer raised AttributeError"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_of_a_custom_operator_are_its_own(what: str) -> None:
    evaluate, infer, message = MISTAKES[what]
    register_custom("custom.Wrong", evaluate=evaluate, infer=infer)  # the prefix is taken too
    try:
        made = model(lambda g, x: [emit(g, "custom.Wrong", [x], (2, 3))])
        with pytest.raises(SanderlingError, match=f"custom operator Wrong: .*{message}"):
            made.compile()(X)
    finally:
        del OPS["custom.Wrong"]


def test_a_custom_operator_takes_any_batch() -> None:
    register_custom("Fine", evaluate=lambda op, a: 2 * a[0], infer=_same)
    try:
        session = model(lambda g, x: [emit(g, "custom.Fine", [x], (2, 3))]).compile()
        np.testing.assert_array_equal(session(np.ones((5, 3), F)), np.full((5, 3), 2, F))
    finally:
        del OPS["custom.Fine"]
    with pytest.raises(InputError, match="evaluate is None, not a function"):
        register_custom("Fine", evaluate=None, infer=_same)  # type: ignore[arg-type]
