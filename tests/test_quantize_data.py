"""Samples for `sanderling quantize`: folders, arrays, rows of several signatures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sanderling
from sanderling import load, quantize, read_samples, save
from sanderling.ir import Array, DType, Graph, Model

from .support.quantize_command import F32, FAST, PLAIN, call, digits, refused
from .support.quantize_nets import Net


def picture_model(channels: int = 3) -> Model:
    graph = Graph()
    x = graph.input("image", DType.FLOAT32, (1, 4, 4, channels))
    y = graph.tensor("y", DType.FLOAT32, (1, 4, 4, channels))
    graph.add("RELU", [x], [y])
    graph.outputs = [y]
    return Model([graph])


def test_pictures_of_class_folders_are_spread(tmp_path: Path) -> None:
    for i in range(12):
        folder = tmp_path / f"class{i // 4}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(folder / f"{i:02}.png")
    found = read_samples(tmp_path, picture_model(), samples=3, preset="unit")
    assert len(found) == 3 and [round(float(s["image"][0, 0, 0, 0] * 255)) for s in found] == [
        0,
        80,
        160,
    ]
    plain = read_samples(tmp_path, picture_model(), mean="10", std="2")
    assert len(plain) == 12 and plain[1]["image"][0, 0, 0].tolist() == [5, -5, -5]
    assert len(plain[2:4]) == 2


def two_inputs() -> Model:
    graph = Graph()
    a = graph.input("a", DType.FLOAT32, (1, 2))
    b = graph.input("b", DType.FLOAT32, (1, 2))
    y = graph.tensor("y", DType.FLOAT32, (1, 2))
    graph.add("ADD", [a, b], [y])
    graph.outputs = [y]
    model = Model([graph])
    model.signatures = [sanderling.Signature("serve", graph, {"left": a, "right": b}, {"sum": y})]
    return model


def test_several_inputs_by_either_name(tmp_path: Path) -> None:
    left, right = np.ones((5, 2)), np.zeros((5, 1, 2), np.float32)
    for names in (("a", "b"), ("left", "right")):
        found = read_samples(dict(zip(names, (left, right), strict=True)), two_inputs())
        assert len(found) == 5 and found[0].keys() == {"a", "b"}
        assert found[0]["a"].shape == (1, 2) and found[0]["a"].dtype == np.float32
    for name in ("0.npz", "1.npz"):
        np.savez(tmp_path / name, left=left[:1], right=right[0])
    assert len(read_samples(tmp_path, two_inputs(), signature="serve")) == 2
    with pytest.raises(sanderling.InputError, match="no array for the input 'b'"):
        read_samples({"a": left, "other": right}, two_inputs())
    with pytest.raises(sanderling.InputError, match="unequal numbers of samples: 'a' 5, 'b' 4"):
        read_samples({"a": left, "b": right[:4]}, two_inputs())
    with pytest.raises(sanderling.InputError, match="sreve"):
        read_samples({"a": left, "b": right}, two_inputs(), signature="sreve")


def test_rows_of_several_signatures() -> None:
    model = two_inputs()
    first = model.signatures[0]
    model.signatures.append(
        sanderling.Signature(
            "swapped",
            first.graph,
            {"left": first.inputs["right"], "right": first.inputs["left"]},
            first.outputs,
        )
    )
    ones, zeros = np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32)
    found = read_samples(
        {
            "serve/left": ones,
            "serve/right": zeros,
            "swapped/left": ones[:2],
            "swapped/right": zeros[:2],
        },
        model,
    )
    assert [s["a"][0, 0] for s in found] == [1, 1, 1, 0, 0]
    _, report = quantize(model, data=found, **PLAIN)
    assert report.modes == {"int8": 1}


def coder() -> Model:
    """Two signatures, each with a graph of its own; both call their input "value"."""
    one, two = Net(1, 8), Net(1, 4)
    model = one.model(one.dense(one.x, 4, "codes"))
    model.graphs.append(two.model(two.dense(two.x, 8, "back")).main)
    model.signatures = [
        sanderling.Signature(key, graph, {"value": graph.inputs[0]}, {"made": graph.outputs[0]})
        for key, graph in zip(("encode", "decode"), model.graphs, strict=True)
    ]
    return model


def by_litert(path: Path, key: str, rows: Array) -> Array:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(str(path)).get_signature_runner(key)
    return np.concatenate([runner(value=row[None])["made"] for row in rows])


@pytest.mark.parametrize("how", ["a file each", "prefixes", "a folder each"])
def test_signatures_with_graphs_of_their_own(how: str, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    model, rng = coder(), np.random.default_rng(0)
    values = {"encode": rng.normal(size=(20, 8)), "decode": 3 * rng.random((15, 4))}
    rows = {key: array.astype(np.float32) for key, array in values.items()}
    save(model, tmp_path / "coder.tflite")
    np.savez(tmp_path / "both.npz", **{f"{key}/value": array for key, array in rows.items()})
    for key, array in rows.items():
        np.savez(tmp_path / f"{key}.npz", value=array)
        (tmp_path / key).mkdir()
        for i, row in enumerate(array):
            np.save(tmp_path / key / f"{i}.npy", row[None])
    end = ".npz" if how == "a file each" else ""
    words = [w for key in rows for w in ("--data", f"{key}={tmp_path / key}{end}")]
    words = ["--data", str(tmp_path / "both.npz")] if how == "prefixes" else words
    out = tmp_path / "q.tflite"
    text = call(tmp_path / "coder.tflite", "-o", out, "--strict", *words, *FAST).stdout
    assert "2 ops int8" in text and "20 of 20" in text and "15 of 15" in text
    for key, array in rows.items():
        exact, made = (by_litert(path, key, array) for path in (tmp_path / "coder.tflite", out))
        # Most: one that was held out may lie beyond the ranges of the others.
        assert 0 < np.quantile(np.abs(made - exact), 0.9) < 0.02 * np.abs(exact).max()
    kinds = [{op.name for op in graph.ops} for graph in load(out).graphs]
    assert kinds == [{"QUANTIZE", "FULLY_CONNECTED", "DEQUANTIZE"}] * 2


def test_signatures_without_samples(tmp_path: Path) -> None:
    save(coder(), tmp_path / "coder.tflite")
    np.savez(tmp_path / "rows.npz", value=np.ones((6, 4), np.float32))
    np.savez(tmp_path / "wide.npz", value=np.ones((6, 8), np.float32))
    rows, words = (
        tmp_path / "rows.npz",
        (tmp_path / "coder.tflite", "-o", tmp_path / "q.tflite", "--data"),
    )
    said = refused(tmp_path, *words, f"decode={rows}")
    assert "no samples for the model's main graph" in said and "'encode'" in said
    said = refused(tmp_path, *words, rows, "--data", tmp_path / "wide.npz")
    assert "SIGNATURE=PATH" in said and "encode, decode" in said
    assert "[6, 4]" in refused(tmp_path, *words, f"encode={rows}")
    # Alone it is the main graph's, and what nobody reached stays float.
    _, report = quantize(coder(), data=tmp_path / "wide.npz", **PLAIN)
    assert [row["output"] for row in report.stayed_float] == ["back"]


def test_a_path_is_data_for_the_function_too(tmp_path: Path) -> None:
    _, report = quantize(F32, data=digits(tmp_path, 0, 40), **PLAIN)
    assert report.samples > 20


def test_folders_without_samples(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("a")
    out = tmp_path / "q.tflite"
    assert "the folder is empty" in refused(tmp_path, F32, "-o", out, "--data", tmp_path / "empty")
    assert "no picture" in refused(tmp_path, F32, "-o", out, "--data", tmp_path / "texts")
    save(two_inputs(), tmp_path / "two.tflite")
    Image.new("RGB", (4, 4)).save(tmp_path / "texts" / "a.png")
    text = refused(tmp_path, tmp_path / "two.tflite", "-o", out, "--data", tmp_path / "texts")
    assert "the model has 2" in text
