"""A session: names, types, signatures, threads, memory, and what users get wrong."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sanderling import (
    OPS,
    BusyError,
    InputError,
    SanderlingError,
    Session,
    Spec,
    dequantize_array,
    dump,
    load,
    quantize_array,
    register_custom,
)
from sanderling.ir import Array, DType, Model, Quant, Signature

from .conformance.cases_control import accumulator, binary, emit, graph
from .support.fake_delegates import Some
from .support.session_models import F, X, add_mul, double, model, quantised

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
