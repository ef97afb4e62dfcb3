"""The file format: all of the schema, round trips, zero copies, atomic saves, clear refusals."""

from __future__ import annotations

import errno
import importlib.resources
import mmap
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from sanderling import (
    FormatWarning,
    InputError,
    ModelError,
    SanderlingError,
    dump,
    load,
    save,
    verify,
)
from sanderling.format import flatbuf, schema
from sanderling.format.flatbuf import Reader, Writer
from sanderling.format.schema import ENUMS
from sanderling.ir import DType, ExternalData, Graph, Model, Tensor
from sanderling.ir.compare import models_equal

from .support import format_models, shared_models

# -- the schema table ------------------------------------------------------------------------------


def example(field: schema.Field, depth: int = 0) -> Any:
    """A value for a field that differs from its default."""
    if field.kind in ("scalar", "graph"):
        return not field.default if field.type == "bool" else 3
    if field.kind == "enum":
        return schema.ENUMS[field.type][-1]
    if field.kind == "string":
        return "text"
    if field.kind == "table":
        return rows_for(field.type, depth + 1)
    if field.element == "scalar":
        return np.array([1, 0, 1], bool if field.type == "bool" else field.type)
    if field.element == "graph":
        return [1, 0]
    if field.element == "enum":
        return [schema.ENUMS[field.type][-1]]
    return [rows_for(field.type, depth + 1)]


def rows_for(table: str, depth: int = 0) -> dict[str, Any]:
    if depth > 2:
        return {}
    return {
        f.name: example(f, depth)
        for f in schema.TABLES[table]
        if f.kind != "union" and not f.name.endswith("_type")
    }


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(w.capitalize() for w in rest)


def plain(field: schema.Field, value: Any) -> Any:
    """Our value as LiteRT's generated code shows it."""
    if isinstance(value, str):
        return value.encode() if field.kind == "string" else schema.ENUMS[field.type].index(value)
    if field.element == "enum":
        return [schema.ENUMS[field.type].index(v) for v in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


# LiteRT has no reader of the metadata.
TABLES = [name for name in schema.TABLES if name not in schema.METADATA_TABLES]


@pytest.mark.parametrize("table", TABLES)
def test_litert_reads_every_field_we_write(table: str) -> None:
    """Each table with a value in every field, read back by LiteRT's own generated code."""
    theirs = pytest.importorskip("ai_edge_litert.schema_py_generated")
    row = rows_for(table)
    content = Writer().finish(table, row)
    found = getattr(theirs, f"{table}T").InitFromPackedBuf(content, 0)
    for field in schema.TABLES[table]:
        if field.name not in row or field.kind == "table" or field.element in ("table", "string"):
            continue
        value = getattr(found, camel(field.name))
        value = value.tolist() if isinstance(value, np.ndarray) else value
        assert value == plain(field, row[field.name]), field.name


def test_no_table_or_enum_of_litert_is_missing() -> None:
    theirs = pytest.importorskip("ai_edge_litert.schema_py_generated")
    tables = {
        n[:-1] for n in vars(theirs) if n.endswith("T") and hasattr(getattr(theirs, n), "Pack")
    }
    assert tables == set(TABLES)
    for name, members in schema.ENUMS.items():
        if name in schema.METADATA_ENUMS:
            continue
        codes = [v for k, v in vars(getattr(theirs, name)).items() if not k.startswith("_")]
        assert len(codes) == len(members), name


def test_fields_and_defaults_are_litert_s() -> None:
    theirs = pytest.importorskip("ai_edge_litert.schema_py_generated")
    for table in TABLES:
        fields = schema.TABLES[table]
        made = vars(getattr(theirs, f"{table}T")())
        assert set(made) == {camel(f.name) for f in fields}, table
        for field in fields:
            if field.kind in ("scalar", "enum"):
                assert made[camel(field.name)] == plain(field, field.default), (table, field.name)


# -- round trips -----------------------------------------------------------------------------------


def test_everything_survives() -> None:
    model = format_models.everything()
    content = dump(model)
    again = load(content)
    assert models_equal(model, again) is None
    assert dump(again) == content
    assert again.main.find("one").buffer is again.main.find("one_again").buffer


@pytest.mark.parametrize("dtype", [d for d in DType if d not in (DType.RESOURCE, DType.VARIANT)])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (2, 0, 3)], ids=str)
def test_constants_of_every_type(dtype: DType, shape: tuple[int, ...]) -> None:
    data = format_models.values(dtype, shape)
    graph = Graph()
    graph.constant("c", data, dtype)
    found = load(dump(Model([graph]))).main.tensors[0]
    assert found.shape == shape
    np.testing.assert_array_equal(found.data, data)


def test_sub_byte_types_are_packed() -> None:
    graph = Graph()
    four = graph.constant("four", np.int8([-8, 7, 1]), DType.INT4)
    two = graph.constant("two", np.int8([-2, -1, 0, 1, 1]), DType.INT2)
    assert bytes(four.buffer.raw) == b"\x78\x01"
    assert bytes(two.buffer.raw) == b"\x4e\x01"


def test_strings_cannot_be_sparse() -> None:
    tensor, _ = format_models.sparse_tensor()
    tensor.dtype = DType.STRING
    with pytest.raises(ModelError, match="cannot be sparse"):
        _ = tensor.data


def test_sparse_values_are_expanded() -> None:
    tensor, dense = format_models.sparse_tensor()
    np.testing.assert_array_equal(tensor.data, dense)


@pytest.mark.parametrize("outside", [False, True])
def test_weights_inside_or_behind_the_flatbuffer(outside: bool) -> None:
    model = format_models.everything()
    model.weights_outside = outside
    again = load(dump(model))
    assert again.weights_outside == outside
    assert models_equal(model, again) is None


def test_weights_are_aligned() -> None:
    for outside in (False, True):
        model = format_models.everything()
        model.weights_outside = outside
        content = dump(model)
        base = np.frombuffer(content, np.uint8).ctypes.data
        for tensor in load(content).main.constants:
            if len(tensor.buffer):
                start = np.frombuffer(tensor.buffer.raw, np.uint8).ctypes.data - base
                assert start % flatbuf.DATA_ALIGNMENT == 0


def test_external_buffers(tmp_path: Path) -> None:
    data = np.arange(6, dtype=np.float32)
    (tmp_path / "weights.bin").write_bytes(b"pad!" + data.tobytes())
    graph = Graph()
    tensor = Tensor("w", DType.FLOAT32, (6,))
    tensor.buffer = build_external("weights.bin", 4, 24)
    graph.tensors.append(tensor)
    save(Model([graph]), tmp_path / "m.tflite")
    found = load(tmp_path / "m.tflite").main.tensors[0]
    np.testing.assert_array_equal(found.data, data)
    moved = load(dump(Model([graph])), external={"weights.bin": tmp_path / "weights.bin"})
    np.testing.assert_array_equal(moved.main.tensors[0].data, data)
    with pytest.raises(ModelError, match=r"external file group 'weights\.bin'"):
        _ = load(dump(Model([graph]))).main.tensors[0].data


def build_external(group: str, offset: int, length: int) -> Any:
    from sanderling.ir import Buffer

    return Buffer(memoryview(b""), ExternalData(group, offset, length))


def test_an_external_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    inner = tmp_path / "models"
    inner.mkdir()
    graph = Graph()
    tensor = Tensor("w", DType.UINT8, (4,))
    tensor.buffer = build_external("../secret", 0, 4)
    graph.tensors.append(tensor)
    save(Model([graph]), inner / "m.tflite")
    with pytest.raises(ModelError, match="external"):
        _ = load(inner / "m.tflite").main.tensors[0].data


def test_files_are_mapped_not_copied(tmp_path: Path) -> None:
    graph = Graph()
    graph.constant("w", np.zeros(1 << 20, np.float32))
    save(Model([graph]), tmp_path / "m.tflite")
    data = load(tmp_path / "m.tflite").main.tensors[0].data
    assert not data.flags.writeable and not data.flags.owndata
    owner = data
    while not isinstance(owner, mmap.mmap):
        owner = owner.obj if isinstance(owner, memoryview) else owner.base


def test_a_newer_schema_is_reported_not_lost_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = (*schema.TABLES["Tensor"], schema.Field("novelty", 11, "scalar", "int32", default=0))
    with monkeypatch.context() as patch:
        patch.setitem(schema.TABLES, "Tensor", newer)
        patch.setitem(schema.SLOTS, "Tensor", 12)
        tensor = {"name": "t", "shape": [1], "type": "FLOAT32", "novelty": 5}
        row = {"version": 3, "buffers": [{}], "subgraphs": [{"tensors": [tensor]}]}
        content = bytes(Writer().finish("Model", row))
    model = load(content)
    assert model.unknown == ["Model.subgraphs.0.tensors.0: field 11 of Tensor"]
    with pytest.warns(FormatWarning, match="field 11 of Tensor"):
        dump(model)


def test_an_unknown_operator_loads_and_saves() -> None:
    row = {
        "version": 3,
        "buffers": [{}],
        "operator_codes": [{"builtin_code": 999, "deprecated_builtin_code": 127}],
        "subgraphs": [
            {
                "tensors": [{"name": "t", "shape": [1]}],
                "inputs": [0],
                "operators": [{"inputs": [0], "outputs": []}],
            }
        ],
    }
    model = load(bytes(Writer().finish("Model", row)))
    assert model.main.ops[0].name == "unknown.999"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        assert load(dump(model)).main.ops[0].name == "unknown.999"


def test_old_one_byte_operator_codes() -> None:
    row = {
        "version": 3,
        "buffers": [{}],
        "operator_codes": [{"deprecated_builtin_code": 3}],
        "subgraphs": [{"operators": [{}]}],
    }
    assert load(bytes(Writer().finish("Model", row))).main.ops[0].name == "CONV_2D"


# -- saving ----------------------------------------------------------------------------------------


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.tflite"
    save(format_models.everything(), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="No space left"):
        save(Model([Graph()]), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_saving_over_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    save(format_models.everything(), path)
    model = load(path)
    save(model, path)
    assert models_equal(load(path), model) is None


def test_saving_nowhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        save(Model([Graph()]), tmp_path / "missing" / "m.tflite")


def test_wrong_attributes_are_named() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1,))
    graph.add("ADD", [x, x], [graph.tensor("y", DType.FLOAT32, (1,))], activation="RELU")
    with pytest.raises(ModelError, match="no attribute activation"):
        dump(Model([graph]))


@pytest.mark.parametrize("value", [[1, 2], "one", 2**40, 0.5])
def test_an_attribute_of_another_type_is_named(value: object) -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1,))
    graph.add("SOFTMAX", [x], [graph.tensor("y", DType.FLOAT32, (1,))], beta=1.0)
    graph.add("CONCATENATION", [x], [graph.tensor("z", DType.FLOAT32, (1,))], axis=value)
    with pytest.raises(ModelError, match="axis cannot be stored as int32"):
        dump(Model([graph]))


def test_what_cannot_be_stored_is_named() -> None:
    graph = Graph()
    x = graph.input("x", DType.BOOL, (2**31,))
    with pytest.raises(ModelError, match="shape cannot be stored as int32"):
        dump(Model([graph]))
    x.shape = (1,)
    graph.add("IF", [x], [graph.tensor("y", DType.BOOL, (1,))], then_subgraph_index=0)
    with pytest.raises(ModelError, match="IfOptions names 0, no graph of the model"):
        dump(Model([graph]))


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"abc", "3 bytes"),
        (b"\x10\0\0\0TFL2" + bytes(64), "not b'TFL3'"),
        (b"\xff\xff\xff\xffTFL3" + bytes(64), "outside the file"),
        (b"\x10\0\0\0TFL3" + bytes(64), "bad table header"),
    ],
)
def test_damaged_headers(content: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "schema version 2"),
        ({"subgraphs": []}, "no subgraph"),
        ({"subgraphs": [{"inputs": [4]}]}, r"inputs: tensor 4 of 0"),
        ({"subgraphs": [{"operators": [{"opcode_index": 3}]}]}, "operator code 3 of 0"),
        ({"subgraphs": [{"tensors": [{"shape": [-2]}]}]}, "negative dimension"),
        ({"subgraphs": [{"tensors": [{"buffer": 9}]}]}, "buffer 9 of 1"),
        ({"subgraphs": [{"tensors": [{"shape": [4], "buffer": 1}]}],
          "buffers": [{}, {"data": b"xyz"}]}, "needs 16 bytes, its buffer has 3"),
        ({"buffers": [{"offset": 10**9, "size": 8}]}, "outside the file"),
        ({"signature_defs": [{"subgraph_index": 5}]}, "subgraph 5 of 1"),
        ({"metadata": [{"name": "x", "buffer": 4}]}, "buffer 4 of 1"),
        ({"subgraphs": [{"tensors": [{"shape": [2], "sparsity": {"traversal_order": [7]}}]}]},
         "sparsity"),
        ({"subgraphs": [{"tensors": [{"quantization": {"scale": [1, 2], "zero_point": [1] * 3}}]}]},
         "2 scales but 3 zero points"),
    ],
)  # fmt: skip
def test_illegal_contents_name_their_place(changes: dict[str, Any], message: str) -> None:
    row: dict[str, Any] = {"version": 3, "buffers": [{}], "subgraphs": [{}]} | changes
    with pytest.raises(ModelError, match=message) as caught:
        load(bytes(Writer().finish("Model", row)))
    assert caught.value.fix or "schema" in str(caught.value)


EMPTY: list[dict[str, Any]] = [
    {"shape_signature": []},
    {"quantization": {"scale": [], "zero_point": [], "min": [], "max": []}},
    {"quantization": {"zero_point": [3]}},
    {"quantization": {}},
    {"variant_tensors": []},
    {"name": ""},
]


@pytest.mark.parametrize("field", EMPTY, ids=[str(row) for row in EMPTY])
def test_an_empty_vector_says_nothing(field: dict[str, Any]) -> None:
    """As TFLite takes it: the tensor is as if the vector was not there."""
    tensors = [{"shape": [1, 2, 2, 1]} | field, {"shape": [1, 2, 2, 1]}]
    graph = {
        "tensors": tensors,
        "inputs": [0],
        "outputs": [1],
        "name": "",
        "operators": [{"inputs": [0], "outputs": [1]}],
    }
    code = {"builtin_code": ENUMS["BuiltinOperator"].index("NEG")}
    row = {
        "version": 3,
        "buffers": [{}, {"data": b""}],
        "subgraphs": [graph],
        "operator_codes": [code],
        "signature_defs": [],
        "metadata": [],
    }
    made = load(bytes(Writer().finish("Model", row)))
    verify(made)
    x = np.ones((1, 2, 2, 1), np.float32)
    np.testing.assert_array_equal(made.compile("reference")(x), -x)


def test_a_file_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.tflite"
    path.write_bytes(b"\x10\0\0\0TFL3" + bytes(64))
    with pytest.raises(ModelError, match=r"broken\.tflite: Model"):
        load(path)
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "absent.tflite")


def test_a_table_bomb_is_refused() -> None:
    """Many references to the same tables must not multiply into unbounded work."""
    writer = Writer()
    builder = writer.builder
    tensor = writer.table("Tensor", {"name": "t", "shape": [1]})
    builder.StartVector(4, 4000, 4)
    for _ in range(4000):
        builder.PrependUOffsetTRelative(tensor)
    tensors = builder.EndVector()
    builder.StartObject(schema.SLOTS["SubGraph"])
    builder.PrependUOffsetTRelativeSlot(0, tensors, 0)
    graph = builder.EndObject()
    builder.StartVector(4, 4000, 4)
    for _ in range(4000):
        builder.PrependUOffsetTRelative(graph)
    graphs = builder.EndVector()
    builder.StartObject(schema.SLOTS["Model"])
    builder.PrependUint32Slot(0, 3, 0)
    builder.PrependUOffsetTRelativeSlot(2, graphs, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"TFL3")
    with pytest.raises(ModelError, match="more often than it has bytes"):
        load(bytes(builder.Output()))


# -- structure-aware fuzzing -----------------------------------------------------------------------

HOSTILE = st.one_of(
    st.integers(-(2**31), 2**31 - 1), st.integers(-3, 12), st.sampled_from([0, -1, 2**31 - 1, 127])
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every leaf of a decoded file, as a path of keys."""
    if isinstance(value, dict):
        return [p for k, v in value.items() for p in places(v, (*path, k))]
    if isinstance(value, list):
        return [p for i, v in enumerate(value) for p in places(v, (*path, i))]
    return [path]


def hostile(value: Any, data: st.DataObject) -> Any:
    """Another value of the leaf's kind."""
    if isinstance(value, np.ndarray):
        return data.draw(st.lists(HOSTILE, max_size=6).map(lambda v: _fit(v, value.dtype)))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return data.draw(HOSTILE)
    if isinstance(value, float):
        return data.draw(st.floats(width=32))
    if isinstance(value, str):
        enums = [e for e in schema.ENUMS.values() if value in e]
        return data.draw(st.sampled_from(enums[0])) if enums else data.draw(st.text(max_size=5))
    return value


def _fit(numbers: list[int], dtype: Any) -> np.ndarray:
    return np.array(numbers, np.int64).astype(dtype)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["digits_int8", "digits_f32"]))
def test_mutated_structures_are_refused_or_run(data: st.DataObject, name: str) -> None:
    path = Path(str(importlib.resources.files("sanderling") / "data" / f"{name}.tflite"))
    root = Reader(memoryview(path.read_bytes())).root("Model")
    leaves = places(root)
    for _ in range(data.draw(st.integers(1, 4))):
        *walk, last = data.draw(st.sampled_from(leaves))
        target = root
        for key in walk:
            target = target[key]
        target[last] = hostile(target[last], data)
    try:
        content = bytes(Writer().finish("Model", root))
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError, struct.error):
        reject()  # a value that cannot be written is no file; hypothesis complains if most are so
    try:
        model = load(content)
        verify(model)
        model.compile(["reference"]).plan()
    except SanderlingError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        assert models_equal(load(dump(model)), model) is None


def test_a_short_fuzz_run_finds_nothing() -> None:
    from .support.fuzz_bytes import fuzz, report

    found = fuzz(200, first_seed=10**6, workers=1)
    assert not report(found)


# -- real files ------------------------------------------------------------------------------------


@shared_models.NEEDS
@pytest.mark.parametrize("path", shared_models.MODELS, ids=lambda p: p.stem)
def test_real_models_survive(path: Path) -> None:
    model = load(path)
    verify(model)
    content = dump(model)
    assert models_equal(load(content), model) is None
    assert len(content) < path.stat().st_size * 1.1 + 1024
