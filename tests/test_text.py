"""The text form gives back what was printed, and says where a text is wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sanderling.errors import TextError
from sanderling.ir import (
    Blockwise,
    Buffer,
    DType,
    ExternalData,
    Graph,
    Model,
    Op,
    Quant,
    Signature,
    SparseDim,
    Sparsity,
    Tensor,
)
from sanderling.ir.compare import models_equal
from sanderling.ir.text import content_hash, from_text, to_text, weights_of

ANY_TEXT = st.text(max_size=6)
SIZED = [d for d in DType if d.is_fixed_size]


# -- a graph with everything -----------------------------------------------------------------


def everything() -> Model:
    called = Graph("called")
    called.outputs = [called.input("in", DType.FLOAT32, (2,))]
    graph = Graph("main", debug_index=4)
    x = graph.input("serving_default_x:0", DType.FLOAT32, (1, 4), signature=(-1, 4))
    scale, zero = np.array([0.1, 1e-30], np.float32), np.array([3, -4])
    quant = Quant(scale, zero, 1, np.float32([-1.5, 0]), np.float32([1, 2]), custom=b"\0\xff")
    graph.constant("weights", [[1, -8, 7], [0, 1, 2]], DType.INT4, quant=quant)
    scales = Tensor("scales", DType.FLOAT32, data=[1.0, math.inf])
    block = Blockwise(scales, None, 32, (1, 32), (0, 1), "MultiAxisQuantization")
    graph.tensor("blocked", DType.INT8, (64,), quant=replace(Quant.of([]), block=block))
    graph.tensors.append(scales)
    graph.constant("labels", np.array(["a b", b"\xff\0", "é\n"], object))
    dims = (SparseDim(2), SparseDim(0, np.int32([0, 1, 2]), np.uint8([1, 0])))
    graph.tensor(
        "sparse",
        DType.FLOAT32,
        (2, 2),
        sparsity=Sparsity((0, 1), (), dims),
        buffer=Buffer(memoryview(np.float32([5, 6]).tobytes())),
    )
    graph.tensor(
        "away",
        DType.INT8,
        (9,),
        buffer=Buffer(memoryview(b""), ExternalData("g.bin", 16, 9, "zip")),
    )
    state = graph.tensor("state", DType.FLOAT32, (4,), is_variable=True, has_rank=False)
    graph.tensor("list", DType.VARIANT, variant_types=(Tensor("", DType.INT32, (1,)), state))
    y, y2 = graph.tensor("y", DType.FLOAT32, (1, 4)), graph.tensor("y", DType.FLOAT32, (1, 4))
    graph.add(
        "ADD",
        [x, None],
        [y],
        alpha=0.1,
        tiny=5e-324,
        nan=math.nan,
        big=10**12,
        on=True,
        text='q"\n\\',
        none=None,
        raw=b"\x01",
        list=[1, 2.0, [True]],
        pair=(1, "a"),
        array=np.int64([[1, 2], [3, 4]]),
        strings=np.array([b"s"], object),
        cond=called,
        calls=[called, called],
        half=np.float16(0.1),
        table={"a b": 1, "c": []},
    )
    graph.insert(
        Op(
            "custom.My Op",
            [y, x],
            [y2],
            {"options": b"abc"},
            version=3,
            options="Foo",
            intermediates=[state],
            mutating=[True, False],
            debug_index=7,
        )
    )
    graph.insert(Op("version", [y2], []))
    graph.outputs = [y2, y2]
    signatures = [
        Signature("call", called, {"": called.inputs[0]}, {}),
        Signature("serve", graph, {"x y": x}, {"out": y2}),
    ]
    return Model(
        [graph, called],
        signatures,
        {"m": b"\0\1", "long": bytes(200)},
        "a\nmodel",
        3,
        ["Thing"],
        True,
    )


def test_everything_survives() -> None:
    model = everything()
    for limit in (0, 16, 1000):
        text = to_text(model, limit)
        again = from_text(text, model)
        assert to_text(again, limit) == text
        assert models_equal(model, again) is None
    assert models_equal(model, from_text(to_text(model, 1000))) is None


def test_reads_well() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 2), signature=(-1, 2))
    w = graph.constant("w", np.float32([0.1, 2]), quant=None)
    y = graph.tensor("y", DType.INT8, (1, 2), quant=Quant.of(0.5, 3))
    graph.add("ADD", [x, w], [y], fused_activation_function="RELU")
    graph.outputs = [y]
    assert (
        to_text(graph)
        == """\
model version=3

graph @main(%x) -> (%y) {
  %x: f32[1,2] signature=[-1, 2]
  %w: f32[2] = [0.1, 2.0]
  %y: i8[1,2] quant={scale: [0.5], zero_point: [3]}

  %y = ADD(%x, %w) {fused_activation_function: "RELU"}
}
"""
    )


def test_links_are_true_after_parsing() -> None:
    graph = from_text(to_text(everything(), 1000)).main
    add, custom, _ = graph.ops
    assert custom.inputs[0].producer is add and custom.inputs[0].users == [custom]
    assert add.attrs["calls"][0] is add.attrs["cond"]


def test_shared_buffers_stay_shared_and_equal_ones_apart() -> None:
    first, second = Graph("a"), Graph("b")
    data = np.zeros(100, np.float32)
    one = first.constant("one", data)
    first.tensor("two", DType.FLOAT32, (100,), buffer=one.buffer)
    second.tensor("three", DType.FLOAT32, (100,), buffer=one.buffer)
    second.constant("other", data)
    model = Model([first, second])
    a, b = from_text(to_text(model), weights_of(model)).graphs
    assert a.tensors[0].buffer is a.tensors[1].buffer is b.tensors[0].buffer
    assert b.tensors[1].buffer is not a.tensors[0].buffer


def test_a_malformed_graph_can_still_be_printed() -> None:
    graph = Graph()
    stray = Tensor("stray", DType.INT8, (-2,), buffer=Buffer(memoryview(b"123")))
    graph.ops.append(Op("NEG", [stray], [stray]))
    text = to_text(graph)
    assert to_text(from_text(text)) == text


def test_graph_prints_with_what_it_calls() -> None:
    model = everything()
    assert [g.name for g in from_text(to_text(model.main, 1000)).graphs] == ["main", "called"]


# -- elided constants ------------------------------------------------------------------------


def test_elided_constant_needs_weights() -> None:
    graph = Graph()
    graph.constant("w", np.arange(17, dtype=np.int32))
    text, raw = to_text(graph), np.arange(17, dtype=np.int32).tobytes()
    assert f"#{content_hash(raw)}" in text
    with pytest.raises(TextError, match="weights=model"):
        from_text(text)
    with pytest.raises(TextError, match="hold no constant"):
        from_text(text, {})
    for weights in (graph, Model([graph]), {content_hash(raw): raw}):
        again = from_text(text, weights).main.tensors[0]
        np.testing.assert_array_equal(again.data, np.arange(17))


# -- errors ----------------------------------------------------------------------------------

HEAD = "graph @main() -> () {\n  "
WRONG = [
    ("graph main", r"line 1: graph main: expected a graph such as @main, found 'main'"),
    ("grph @main", "expected 'graph', 'signature' or 'metadata'"),
    (HEAD + "%x: f31[1]", r"line 2: %x: f31\[1\]: expected a type: unknown type 'f31'"),
    (HEAD + "%x: f32[a]", "expected an integer, found 'a'"),
    (HEAD + "%x: f32[1.5]", "expected an integer, found '1.5'"),
    (HEAD + "%x: i4[1] = [8]", "expected values of i4, -8 to 7"),
    (HEAD + "%x: i4[1] = [1.0]", "expected an integer"),
    (HEAD + "%x: bool[1] = [1]", "expected true or false"),
    (HEAD + "%x: variant[] = [1]", "expected bytes"),
    (HEAD + "%x: f32[1] = same @main %y", "expected a constant that is declared above"),
    (HEAD + "%x: f32[1] quant={scales: [1]}", "expected one of axis, custom, block, scale"),
    (HEAD + "%x: f32[1] quant={axis: 1}", "expected legal values"),
    (HEAD + "%x: f32[1]\n  %x: f32[1]", "line 3: .*a new tensor name"),
    (HEAD + "%y = ADD(%x)\n}", "expected a tensor that the graph declares, found '%y'"),
    (HEAD + "ADD(%x)\n}", "expected a tensor of this graph, found '%x'"),
    (HEAD + "ADD() {a: @b}\n}", "expected a definition of graph @b"),
    (HEAD + "ADD() {a: i32[2] [1]}\n}", r"expected as many values as i32\[2\] has"),
    (HEAD + "ADD() {a: ?}\n}", r"expected a value, found '\?'"),
    (HEAD + 'ADD() {a: "open}\n}', "expected a value"),
    (HEAD + "ADD(", "expected a tensor such as %x, found 'end of text'"),
    (HEAD + "ADD() {a: " + "[" * 5000, "expected legal values"),
    (HEAD + f"ADD() {{a: {'9' * 5000}}}", "expected legal values"),
    (HEAD + '%x: u8[1] = x"0"', "pairs of digits"),
    (HEAD + "}\n" + HEAD + "}", "line 3: .*a new graph name"),
    ('signature "s" @main() -> ()', "a graph that is defined above"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_errors_name_line_and_expectation(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as caught:
        from_text(text)
    assert caught.value.where.startswith("line ")


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_text_raises_nothing_but_text_errors(data: st.DataObject) -> None:
    text = to_text(everything(), 1000)
    start = data.draw(st.integers(0, len(text)))
    stop = data.draw(st.integers(start, min(len(text), start + 8)))
    damaged = text[:start] + data.draw(st.text('%@"{}[](),=:~#x1-. ', max_size=4)) + text[stop:]
    try:
        again = from_text(damaged)
    except TextError:
        return
    assert isinstance(again, Model)


# -- random models ---------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.binary(max_size=4)
ARRAYS = st.sampled_from([d for d in SIZED if d.bits >= 8]).flatmap(
    lambda d: st.binary(max_size=32).map(
        lambda raw: np.frombuffer(raw[: len(raw) // d.numpy.itemsize * d.numpy.itemsize], d.numpy)
    )
)
VALUES = st.recursive(
    SCALARS | ARRAYS.filter(lambda a: a.dtype != bool),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(ANY_TEXT, inner, max_size=3)
        | st.tuples(inner, inner)
    ),
)
SHAPES = st.lists(st.integers(-1, 4), max_size=3)
SCALES = hnp.arrays(np.float32, st.integers(0, 3), elements=st.floats(width=32))
QUANTS = st.builds(
    Quant,
    SCALES,
    hnp.arrays(np.int64, st.integers(0, 3)),
    st.integers(-2, 5),
    st.none() | SCALES,
    st.none() | SCALES,
    st.none(),
    st.none() | st.binary(max_size=3),
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    # Bytes are drawn without regard to type and shape: what is illegal must survive as well.
    raw = draw(st.none() | st.binary(max_size=24))
    return Tensor(
        draw(ANY_TEXT),
        draw(st.sampled_from(DType)),
        draw(SHAPES),
        buffer=None if raw is None else Buffer(memoryview(raw)),
        quant=draw(st.none() | QUANTS),
        signature=draw(st.none() | SHAPES),
        is_variable=draw(st.booleans()),
        has_rank=draw(st.booleans()),
    )


@st.composite
def models(draw: st.DrawFn) -> Model:
    graphs = [Graph(draw(ANY_TEXT)) for _ in range(draw(st.integers(1, 3)))]
    for graph in graphs:
        graph.tensors = draw(st.lists(tensors(), min_size=1, max_size=5))
        some = st.lists(st.sampled_from(graph.tensors), max_size=3)
        graph.inputs, graph.outputs = draw(some), draw(some)
        for _ in range(draw(st.integers(0, 3))):
            attrs: dict[str, Any] = draw(st.dictionaries(ANY_TEXT, VALUES, max_size=3))
            if draw(st.booleans()):
                attrs["graph"] = draw(st.sampled_from(graphs))
            graph.insert(
                Op(
                    draw(ANY_TEXT),
                    [*draw(some), None],
                    draw(some),
                    attrs,
                    version=draw(st.integers(0, 2)),
                    options=draw(ANY_TEXT),
                    intermediates=draw(some),
                )
            )
    named = st.dictionaries(ANY_TEXT, st.sampled_from(graphs[0].tensors), max_size=2)
    signatures = [
        Signature(key, graphs[0], draw(named), draw(named))
        for key in draw(st.lists(ANY_TEXT, max_size=2))
    ]
    metadata = draw(st.dictionaries(ANY_TEXT, st.binary(max_size=5), max_size=2))
    return Model(graphs, signatures, metadata, draw(ANY_TEXT))


@given(models(), st.sampled_from([0, 2, 16]))
@settings(max_examples=120, deadline=None)
def test_random_models_survive(model: Model, limit: int) -> None:
    text = to_text(model, limit)
    again = from_text(text, model)
    assert to_text(again, limit) == text
    assert models_equal(model, again) is None


# -- models_equal ----------------------------------------------------------------------------

CHANGES = {
    "model: version": lambda m: setattr(m, "version", 4),
    "metadata 'm': content": lambda m: m.metadata.update(m=b"\0\2"),
    "model: metadata names": lambda m: m.metadata.update(n=b""),
    "number of graphs": lambda m: m.graphs.append(Graph()),
    "graph 0: outputs": lambda m: m.main.outputs.pop(),
    "tensor 0 'serving_default_x:0': signature": lambda m: setattr(
        m.main.tensors[0], "signature", None
    ),
    "tensor 1 'weights': quant": lambda m: setattr(m.main.tensors[1], "quant", Quant.of(1.0)),
    "tensor 1 'weights': content": lambda m: setattr(m.main.tensors[1], "data", np.ones((2, 3))),
    "tensor 5 'sparse': sparsity": lambda m: m.main.tensors[5].sparsity.dims[1].indices.fill(0),
    "tensor 6 'away': external": lambda m: setattr(m.main.tensors[6].buffer.external, "offset", 1),
    "op 0 ADD: attribute 'alpha'": lambda m: m.main.ops[0].attrs.update(alpha=0.2),
    "op 0 ADD: attribute names": lambda m: m.main.ops[0].attrs.pop("alpha"),
    "op 1 custom.My Op: options table": lambda m: setattr(m.main.ops[1], "options", "Bar"),
    "op 1 custom.My Op: inputs": lambda m: m.main.set_input(m.main.ops[1], 0, None),
    "model: signatures": lambda m: m.signatures.pop(),
    "signature 'serve': inputs": lambda m: m.signatures[1].inputs.clear(),
}


@pytest.mark.parametrize("expected", CHANGES)
def test_models_equal_names_the_first_difference(expected: str) -> None:
    changed = everything()
    CHANGES[expected](changed)
    assert expected in (models_equal(everything(), changed) or "")


def test_models_equal_ignores_what_a_file_does_not_hold() -> None:
    model = everything()
    add = model.main.ops[0]
    add.attrs["alpha"] = float(np.float32(0.1))  # the file's field has 32 bits
    add.attrs["pair"] = [1, "a"]
    model.main.ops[1].options = ""
    assert models_equal(everything(), model) is None
