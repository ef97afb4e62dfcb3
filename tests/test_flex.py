"""The delegate `flex`: what a file may ask TensorFlow for, and that TensorFlow runs it.

TensorFlow is large: `make test-flex` installs it and runs all of this; without it the tests of
what is decided before TensorFlow is asked still run.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers
from typer.testing import CliRunner

import sanderling
from sanderling import (
    DelegateError,
    InputError,
    MissingExtraError,
    ModelError,
    UnsupportedError,
    protobuf,
)
from sanderling.cli.app import app
from sanderling.delegates import extras
from sanderling.delegates.flex import calls
from sanderling.delegates.flex import delegate as flex_delegate
from sanderling.delegates.flex.allowed import ALLOWED
from sanderling.delegates.flex.delegate import FlexDelegate
from sanderling.delegates.flex.node import flex_node, refusal
from sanderling.ir import DType, Graph, Model, Op

NEEDS = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="tensorflow is not installed: make test-flex"
)


def options(name: str, node_def: bytes) -> bytes:
    """Custom options as the converter writes them. Python's builder writes only text: the message
    takes the place of a text of its length."""
    stand_in = "?" * len(node_def)
    builder = flexbuffers.Builder()
    with builder.Vector():
        builder.String(name)
        builder.String(stand_in)
    return bytes(builder.Finish()).replace(stand_in.encode(), node_def, 1)


def attribute(name: str, value: bytes) -> bytes:
    """An entry of NodeDef.attr, which is a map: fields 1 and 2 of a message in field 5."""
    entry = b"\x0a" + bytes([len(name)]) + name.encode() + b"\x12" + bytes([len(value)]) + value
    return b"\x2a" + bytes([len(entry)]) + entry


FLOAT = attribute("T", b"\x30\x01")  # AttrValue.type = DT_FLOAT


def flex_model(
    name: str,
    inputs: Sequence[tuple[DType, tuple[int, ...]]] = ((DType.FLOAT32, (2,)),),
    outputs: Sequence[DType] = (DType.FLOAT32,),
    attributes: bytes = b"",
    given: bytes | None = None,
) -> Model:
    """A graph of one Flex operator. given: custom options, where they are not the right ones."""
    graph = Graph()
    fed = [graph.input(f"x{i}", dtype, shape) for i, (dtype, shape) in enumerate(inputs)]
    made = [graph.tensor(f"y{i}", dtype, (2,)) for i, dtype in enumerate(outputs)]
    node = protobuf.encode("NodeDef", {"name": "n", "op": name}) + attributes
    raw = options(name, node) if given is None else given
    graph.add(f"custom.Flex{name}", fed, made, options=raw)
    graph.outputs = made
    return Model([graph])


def first_op(model: Model) -> Op:
    return model.main.ops[0]


@pytest.fixture(name="installed")
def as_if_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refused is refused before TensorFlow is asked."""
    monkeypatch.setattr(flex_delegate, "require_extra", lambda *names: None)
    monkeypatch.setattr(calls, "_tensorflow", lambda: pytest.fail("TensorFlow was asked"))


# -- what a file may ask for ----------------------------------------------------------------------


def test_options_are_read_without_tensorflow() -> None:
    node = flex_node(first_op(flex_model("Erf", attributes=FLOAT + b"\x22\x04/\xff\xfe:")))
    assert node.name == "Erf" and node.node_def.endswith(b"\xff\xfe:"), "bytes, not UTF-8"


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\xff" * 40,
        options("Erf", b"\xff\xff\xff"),
        options("Erf", protobuf.encode("NodeDef", {"op": "WriteFile"})),
        options("WriteFile", protobuf.encode("NodeDef", {"op": "WriteFile"})),
        options("Erf", b""),
        options("Erf", b"\x12\x03Erf\x92\x80\x80\x80\x10\x08ReadFile"),
        options("Erf", b"\x12\x03Erf\x02\x08ReadFile"),
        options("Erf", b"\x12\x03Erf\x18" + b"\xff" * 9 + b"\x02"),
    ],
    ids=[
        "none",
        "noise",
        "no message",
        "another operator",
        "another name",
        "no operator",
        "field of 33 bits",
        "field 0",
        "number of 65 bits",
    ],
)
def test_damaged_options_are_the_files_fault(given: bytes, installed: None) -> None:
    model = flex_model("Erf", given=given)
    with pytest.raises(ModelError, match=r"custom.FlexErf 'y0': its options"):
        model.compile(["flex"]).plan()
    assert "its options" in (refusal(first_op(model)) or "")


HOSTILE = ["ReadFile", "WriteFile", "PyFunc", "PyFuncStateless", "EagerPyFunc", "Save", "SaveV2",
           "RestoreV2", "MatchingFiles", "ImmutableConst", "Abort", "DecodeProtoV2", "EncodeProto",
           "DebugIdentity", "RemoteCall", "XlaCustomCall", "XlaCustomCallV2", "TFRecordDataset",
           "MapDataset", "PartitionedCall", "StatefulPartitionedCall", "If", "While",
           "GenerateVocabRemapping", "Send", "Recv", "PrintV2", "LookupTableFindV2",
           "InitializeTableFromTextFileV2", "VarHandleOp", "DebugNanCount", "_Send",
           "ConfigureDistributedTPU", "CollectiveReduceV2", "RpcCall", "WholeFileReaderV2",
           "DecodeCompressed", "Nonsense"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_is_not_trusted(name: str, installed: None) -> None:
    """Whatever does more than compute is refused by name, and with the way out."""
    assert name not in ALLOWED
    model = flex_model(name, [(DType.STRING, ()), (DType.STRING, ())], [DType.STRING])
    with pytest.raises(UnsupportedError, match=f"TensorFlow's {name} may do more") as caught:
        model.compile(["flex"]).plan()
    assert f"'trusted': '{name}'" in caught.value.fix
    assert refusal(first_op(model), {name}) is None


@pytest.mark.parametrize("dtype", [DType.RESOURCE, DType.VARIANT])
def test_handles_are_refused(dtype: DType, installed: None) -> None:
    model = flex_model("Identity", [(dtype, ())], [DType.FLOAT32])
    with pytest.raises(UnsupportedError, match="which no array can hold") as caught:
        model.compile(["flex"]).plan()
    assert "without this operator" in caught.value.fix


def test_an_absent_operand_is_refused() -> None:
    op = first_op(flex_model("Erf"))
    op.inputs.append(None)
    assert refusal(op) == "an operand is absent"


def test_only_flex_operators_are_taken(installed: None) -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (2,))
    graph.outputs = [graph.tensor("y", DType.FLOAT32, (2,))]
    graph.add("NEG", [x], graph.outputs)
    session = Model([graph]).compile(["flex", "reference"])
    assert "flex refuses: NEG is no Flex operator" in session.explain()
    assert session(np.float32([1, -2])).tolist() == [-1, 2]


def test_without_the_delegate_it_is_named() -> None:
    with pytest.raises(UnsupportedError) as caught:
        flex_model("Erf").compile()(np.float32([1, 2]))
    assert "delegates=['flex']" in caught.value.fix and "sanderling[flex]" in caught.value.fix


def test_without_tensorflow_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="'flex' needs the package 'tensorflow'") as caught:
        flex_model("Erf").compile(["flex"])
    assert "pip install 'sanderling[flex]'" in caught.value.fix


def test_trusted_operators_are_an_option(installed: None) -> None:
    some = sanderling.load_delegate("flex", {"trusted": "ReadFile, WriteFile"})
    assert isinstance(some, FlexDelegate) and some.trusted == {"ReadFile", "WriteFile"}
    assert sanderling.load_delegate("flex", {"trusted": ["ReadFile"]}).trusted == {"ReadFile"}  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="no option threads"):
        sanderling.load_delegate("flex", {"threads": 2})


# -- TensorFlow runs it ---------------------------------------------------------------------------


def same(found: Any, expected: Any) -> None:
    if expected.dtype == object:
        assert found.tolist() == expected.tolist()
    elif expected.dtype.kind == "f":
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    else:
        np.testing.assert_array_equal(found, expected)


@NEEDS
@pytest.mark.parametrize("name", ["spectral filter", "hashed words", "distinct classes"])
def test_answers_are_tensorflows(name: str) -> None:
    from .support.flex_models import MODELS

    made = MODELS[name]()
    model = sanderling.load(made.content)
    assert any(op.name.startswith("custom.Flex") for op in model.main.ops)
    session = model.compile(["flex"])
    feeds = dict(zip(session.entry(None).inputs, made.inputs, strict=True))
    for _ in range(3):  # the first run, and those that are prepared
        found = list(session.run(feeds).values())
        for got, wanted in zip(found, made.expected(), strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
            same(got, wanted)
    owners = {p.delegate.name for p in session.plan().partition.parts}
    assert {"flex", "cpu"} <= owners


@NEEDS
def test_shapes_come_from_tensorflow() -> None:
    """What follows a Flex operator is compiled, because its shapes are known before the run."""
    from .support.flex_models import spectral_filter

    session = sanderling.load(spectral_filter().content).compile(["flex"])
    last = session.plan().partition.parts[-1]
    assert last.delegate.name == "cpu" and last.ops[-1].name == "CONV_2D"
    assert not any(t.is_dynamic for t in session.plan().graph.tensors)


LISTS = {
    "ConcatV2": lambda tf, a, b: tf.raw_ops.ConcatV2(values=[a, b], axis=0),
    "AddN": lambda tf, a, b: tf.raw_ops.AddN(inputs=[a, b]),
    "IdentityN": lambda tf, a, b: tf.raw_ops.IdentityN(input=[a, tf.cast(b, tf.int32)]),
    "Einsum": lambda tf, a, b: tf.raw_ops.Einsum(inputs=[a, b], equation="ij,kj->ik"),
    "Unpack": lambda tf, a, b: tf.raw_ops.Unpack(value=a, num=2),
    "TopKV2": lambda tf, a, b: tf.raw_ops.TopKV2(input=a, k=2),
    "ResizeArea": lambda tf, a, b: tf.raw_ops.ResizeArea(
        images=a[None, :, :, None], size=[3, 3], align_corners=True
    ),
    "StringFormat": lambda tf, a, b: tf.raw_ops.StringFormat(inputs=[a, b], template="{} of {}",
                                                             placeholder="{}"),
}  # fmt: skip


@NEEDS
@pytest.mark.parametrize("name", LISTS)
def test_lists_and_attributes_arrive(name: str) -> None:
    """Arguments and results that are lists, and attributes of all kinds, as TensorFlow writes
    them."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        LISTS[name](tf, tf.zeros([2, 3]), tf.zeros([2, 3]))
        node = next(op for op in graph.get_operations() if op.type == name)
    kinds = [(DType[t.dtype.name.upper()], tuple(t.shape)) for t in node.inputs]
    results = [DType[t.dtype.name.upper()] for t in node.outputs]
    raw = options(name, node.node_def.SerializeToString())
    values = [np.arange(np.prod(s)).reshape(s).astype(d.numpy) % 3 + 1 for d, s in kinds]
    found = flex_model(name, kinds, results, given=raw).compile(["flex", "reference"])(*values)
    with tf.Graph().as_default() as graph, tf.compat.v1.Session() as session:
        fed = [tf.compat.v1.placeholder(d.name.lower(), s) for d, s in kinds]
        names = {node.inputs[i].name: t for i, t in enumerate(fed)}
        message = tf.compat.v1.GraphDef(node=[node.node_def])
        again = tf.graph_util.import_graph_def(message, names, [t.name for t in node.outputs])
        wanted = session.run(again, dict(zip(fed, values, strict=True)))
    for got, expected in zip(found if len(results) > 1 else [found], wanted, strict=True):
        same(got, np.asarray(expected))


@NEEDS
def test_the_list_names_operators_that_only_compute() -> None:
    """TensorFlow's own registry agrees, but for random numbers, which it calls stateful."""
    import tensorflow as tf
    from tensorflow.python.framework import op_def_registry

    found = {name: op_def_registry.get(name) for name in ALLOWED}
    stateful = {name for name, row in found.items() if row is not None and row.is_stateful}
    assert all("Random" in n or n in RANDOM for n in stateful), stateful
    functions = {
        name
        for name, row in found.items()
        if row is not None and any("func" in a.type for a in row.attr)
    }
    assert not functions
    assert not {name for name, row in found.items() if row and not hasattr(tf.raw_ops, name)}


RANDOM = {"Multinomial", "ParameterizedTruncatedNormal", "SampleDistortedBoundingBox",
          "SampleDistortedBoundingBoxV2", "TruncatedNormal"}  # fmt: skip


@NEEDS
def test_a_hostile_file_does_nothing(tmp_path: Path) -> None:
    target = tmp_path / "written"
    model = flex_model("WriteFile", [(DType.STRING, ()), (DType.STRING, ())], [])
    feeds = {"x0": np.array(str(target).encode(), object), "x1": np.array(b"boo", object)}
    with pytest.raises(UnsupportedError, match="WriteFile may do more"):
        model.compile(["flex"]).run(feeds)
    assert not target.exists()


@NEEDS
def test_a_trusted_operator_runs(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"read")
    model = flex_model("ReadFile", [(DType.STRING, ())], [DType.STRING])
    trusting = sanderling.load_delegate("flex", {"trusted": "ReadFile"})
    found = model.compile([trusting])(np.array(str(tmp_path / "text").encode(), object))
    assert found.item() == b"read"


@NEEDS
def test_what_the_file_says_wrongly_is_its_fault() -> None:
    with pytest.raises(ModelError, match="it gives f32"):
        flex_model("Erf", outputs=[DType.INT32], attributes=FLOAT).compile(["flex"]).plan()
    with pytest.raises(ModelError, match="2 outputs, it gives 1"):
        flex_model("Erf", outputs=[DType.FLOAT32] * 2, attributes=FLOAT).compile(["flex"]).plan()
    with pytest.raises(ModelError, match="TensorFlow does not take it"):
        flex_model("Erf", attributes=attribute("T", b"\x30\x03")).compile(["flex"]).plan()
    with pytest.raises(ModelError, match="TensorFlow does not take it"):  # not UTF-8
        flex_model("Erf", attributes=FLOAT + b"\x22\x02\xff\xfe").compile(["flex"]).plan()


@NEEDS
def test_a_failure_in_the_run_is_told() -> None:
    model = flex_model("MatrixInverse", [(DType.FLOAT32, (2, 2))], attributes=FLOAT)
    with pytest.raises(DelegateError, match=r"TensorFlow failed: .*not invertible"):
        model.compile(["flex"])(np.zeros((2, 2), np.float32))
    same(model.compile(["flex"])(np.float32([[2, 0], [0, 4]])), np.float32([[0.5, 0], [0, 0.25]]))


@NEEDS
def test_other_shapes_make_other_plans() -> None:
    session = flex_model("Erf", attributes=FLOAT).compile(["flex"])
    for shape in ((2,), (3,)):
        assert session.run({"x0": np.ones(shape, np.float32)})["y0"].shape == shape


def test_inspect_names_the_delegate(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    sanderling.save(flex_model("Erf", attributes=FLOAT), path)
    done = CliRunner().invoke(app, ["inspect", str(path)])
    assert "custom.FlexErf (for the delegate flex)" in done.stdout
