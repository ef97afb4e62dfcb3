"""`sanderling run`: what goes in, what comes out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import sanderling
from sanderling import load
from sanderling.ir import DType, Graph, Model, Quant, Signature, Tensor
from sanderling.runtime.inputs import Picture, dequantize_array, quantize_array, read_array
from sanderling.runtime.session import Session

from .conformance.cases_control import binary, emit, graph
from .support.command_line import (
    DIGIT,
    F32,
    INT8,
    RNG,
    F,
    R,
    answer,
    array,
    call,
    run_f32,
    stored,
    text_file,
)


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    np.save(tmp_path / "digit.npy", DIGIT)
    return tmp_path / "digit.npy"


# -- run ----------------------------------------------------------------------------------------


def test_run_reads_npy_and_writes_npy(digit: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    text = call("run", F32, "--input", digit, "-o", out).stdout
    np.testing.assert_array_equal(np.load(out), run_f32())
    assert "float32[1, 10]" in text and "one run took" in text


def test_run_reads_npz_by_name_or_the_only_one(tmp_path: Path) -> None:
    name = load(F32).main.inputs[0].name
    np.savez(tmp_path / "two.npz", other=np.zeros(3), **{name: DIGIT[0]})
    np.savez(tmp_path / "one.npz", whatever=DIGIT)
    for source in ("two.npz", "one.npz"):
        record = answer("run", F32, "-i", f"{name}={tmp_path / source}")
        (output,) = record["outputs"].values()
        np.testing.assert_allclose(output["first"], run_f32()[0, :8], rtol=1e-6)


def test_run_writes_npz_with_any_names(tmp_path: Path) -> None:
    g = graph("main", binary("ADD"), ("f32", (2, 3)), ("f32", (2, 3)))
    model = Model(
        [g], [Signature("s", g, dict(zip("ab", g.inputs, strict=True)), {"file": g.outputs[0]})]
    )
    out = tmp_path / "all.npz"
    call("run", stored(tmp_path, model), "--random", 0, "-o", out)
    with np.load(out) as found:
        assert found.files == ["file"] and found["file"].shape == (2, 3)


def test_reals_are_quantised_for_an_integer_model(digit: Path, tmp_path: Path) -> None:
    out, real = tmp_path / "codes.npy", tmp_path / "reals.npy"
    model = load(INT8)
    call("run", INT8, "-i", digit, "-o", out)
    codes = model.compile()(quantize_array(DIGIT, model.main.inputs[0]))
    np.testing.assert_array_equal(np.load(out), codes)
    call("run", INT8, "-i", digit, "-o", real, "--dequantize")
    np.testing.assert_array_equal(np.load(real), dequantize_array(codes, model.main.outputs[0]))


@pytest.mark.parametrize("kind", ["png", "jpg"])
def test_run_reads_pictures(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"picture.{kind}"
    Image.fromarray(RNG.integers(0, 255, (21, 33, 3), np.uint8)).save(path)
    for model, how in (
        (F32, []),
        (INT8, []),
        (F32, ["--mean", "127.5", "--std", "127.5"]),
        (F32, ["--resample", "nearest", "--bgr"]),
    ):
        record = answer("run", model, "-i", path, *how)
        (output,) = record["outputs"].values()
        assert output["shape"] == [1, 10]


def picture_input(dtype: str, *shape: int, signature: Sequence[int] | None = None) -> Tensor:
    return Tensor("x", DType.parse(dtype), shape, signature=signature, quant=Quant.of(0.5, 0))


@pytest.mark.parametrize("tensor, how, expected", [
    (picture_input("f32", 1, 2, 2, 3), Picture(), [10 / 255, 20 / 255, 30 / 255]),
    (picture_input("u8", 1, 2, 2, 3), Picture(), [10, 20, 30]),
    (picture_input("i8", 1, 2, 2, 3), Picture(), [-118, -108, -98]),
    (picture_input("f32", 1, 2, 2, 3), Picture(bgr=True), [30 / 255, 20 / 255, 10 / 255]),
    (picture_input("f32", 1, 2, 2, 3), Picture((10,), (5,)), [0, 2, 4]),
    (picture_input("f32", 1, 2, 2, 3), Picture((10, 20, 30), (1, 2, 3)), [0, 0, 0]),
    (picture_input("i8", 1, 2, 2, 3), Picture((10,), (10,)), [0, 2, 4]),  # reals, quantised
    (picture_input("f32", 1, 1, 1, 3, signature=(-1, -1, -1, 3)), Picture(), [10 / 255,
        20 / 255, 30 / 255]),
], ids=["f32", "u8", "i8", "bgr", "mean", "mean a colour", "quantised", "open size"])  # fmt: skip
def test_pixels_become_the_inputs_values(
    tmp_path: Path, tensor: Tensor, how: Picture, expected: list[float]
) -> None:
    path = tmp_path / "flat.png"
    Image.new("RGB", (4, 6), (10, 20, 30)).save(path)
    found = read_array(path, tensor, how)
    assert found.dtype == tensor.dtype.numpy
    assert found.shape == ((1, 6, 4, 3) if tensor.is_dynamic else (1, 2, 2, 3))
    np.testing.assert_allclose(found[0, 1, 1], expected, rtol=1e-6)


def test_a_picture_for_channels_first(tmp_path: Path) -> None:
    path = tmp_path / "flat.png"
    Image.new("RGB", (4, 6), (10, 20, 30)).save(path)
    found = read_array(path, picture_input("u8", 1, 3, 5, 7))
    assert found.shape == (1, 3, 5, 7) and found[0, :, 0, 0].tolist() == [10, 20, 30]


def test_labels_and_top(digit: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("zero\none\ntwo\nthree\nfour\nfive\nsix\nseven\neight")  # no tenth name
    record = answer("run", F32, "-i", digit, "--labels", labels, "--top", 3)
    (best,) = record["top"].values()
    order = np.argsort(-run_f32()[0], kind="stable")[:3]
    assert [b["class"] for b in best] == order.tolist()
    names = [*labels.read_text().split(), "class 9"]
    assert [b["label"] for b in best] == [names[i] for i in order]
    text = call("run", F32, "-i", digit, "--labels", labels, "--top", 3).stdout
    assert all(b["label"] in text for b in best)


@pytest.mark.parametrize("count, more, shown, said", [
    (10, [], True, ""),
    (9, [], True, "has 9 names|has 10 classes|background|--label-offset 1"),
    (11, [], True, "has 11 names|has 10 classes|background|--label-offset -1"),
    (9, ["--label-offset", 1], True, ""),
    (11, ["--label-offset", -1], True, ""),
    (10, ["--label-offset", 1], True, "need no --label-offset"),
    (12, [], False, "has 12 names|float32[1, 10]|none are shown"),
])  # fmt: skip
def test_labels_that_do_not_fit(
    tmp_path: Path, count: int, more: list[object], shown: bool, said: str
) -> None:
    labels = text_file(tmp_path, "".join(f"name {i}\n" for i in range(count)))
    result = call("run", F32, "--random", 0, "--labels", labels, "--json", "-", *more)
    top = json.loads(result.stdout)["top"]
    assert bool(top) == shown and all(word in result.stderr for word in said.split("|"))
    offset = more[1] if more else 0
    for best in top.get("probabilities", ()):
        known = 0 <= best["class"] - offset < count
        assert best["label"] == (
            f"name {best['class'] - offset}" if known else f"class {best['class']}"
        )
    assert said or not result.stderr


def test_labels_of_a_batch(tmp_path: Path) -> None:
    labels = text_file(tmp_path, "\n".join("0123456789"))
    record = answer("run", F32, *R, "--shape", "3,8,8,1", "--labels", labels, "--top", 1)
    assert list(record["top"]) == [f"probabilities[{i}]" for i in range(3)]


@pytest.mark.parametrize(
    "words, said",
    [
        (["run", F32, "--random", 0, "--mean", 1, "--bgr"], "--mean, --bgr have no effect"),
        (["run", F32, "--random", 0, "--top", 3], "--top has no effect"),
        (["run", F32, "--random", 0, "--dequantize"], "--dequantize has no effect"),
        (["inspect", F32, "--text", "--ops"], "--ops has no effect"),
    ],
)
def test_options_without_effect(words: list[object], said: str) -> None:
    assert f"warning: {said}" in call(*words).stderr
    assert "no effect" not in call(*words[: 4 if words[0] == "run" else 2]).stderr


def test_what_was_written_is_said(tmp_path: Path) -> None:
    out, record = tmp_path / "y.npy", tmp_path / "r.json"
    said = call("run", F32, *R, "-o", out, "--json", record).stderr
    assert said == f"wrote {out}\nwrote {record}\n"
    assert sorted(tmp_path.iterdir()) == [record, out]


def test_nan_in_an_input_is_said(tmp_path: Path) -> None:
    result = call("run", F32, "-i", array(tmp_path, DIGIT * np.nan))
    assert "input 'image' holds 64 NaN of 64 values" in result.stderr


def test_targets_are_opened_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    real = Session.run

    def run(self: Session, *args: Any, **more: Any) -> Any:
        seen.extend(tmp_path.iterdir())
        return real(self, *args, **more)

    monkeypatch.setattr(Session, "run", run)
    call("run", F32, *R, "-o", tmp_path / "y.npy")
    assert len(seen) == 1 and sorted(tmp_path.iterdir()) == [tmp_path / "y.npy"]


def test_a_link_and_a_device_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    call("run", F32, *R, "--json", tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and json.loads((tmp_path / "real").read_text())
    call("run", F32, *R, "--json", os.devnull)
    assert Path(os.devnull).is_char_device()


PLUGIN = """
import sanderling
sanderling.register_custom("Mystery", evaluate=lambda op, x: 2 * x[0], infer=lambda op, s: s[0])
"""


def test_plugin(tmp_path: Path) -> None:
    path = stored(
        tmp_path,
        Model([graph("main", lambda g, x: [emit(g, "custom.Mystery", [x], (3,))], ("f32", (3,)))]),
    )
    assert "--plugin" in call("run", path, *R, status=2).stderr
    try:
        np.save(tmp_path / "x.npy", F([1, 2, 3]))
        plugin = text_file(tmp_path, PLUGIN)
        record = answer("run", path, "-i", tmp_path / "x.npy", "--plugin", plugin)
        assert next(iter(record["outputs"].values()))["first"] == [2, 4, 6]
    finally:
        sanderling.OPS.pop("custom.Mystery", None)


def test_json_to_a_file_comes_beside_the_table(digit: Path, tmp_path: Path) -> None:
    target = tmp_path / "record.json"
    text = call("run", F32, "-i", digit, "--json", target).stdout
    record = json.loads(target.read_text())
    assert record["schema"] == "sanderling.run/1" and record["model"] == F32
    (name,) = record["outputs"]
    assert name in text and "one run took" in text


def test_random_inputs_follow_the_seed_and_the_shape() -> None:
    first, again, other = (answer("run", F32, "--random", s) for s in (1, 1, 2))
    assert first["outputs"] == again["outputs"] != other["outputs"]
    wide = answer("run", F32, "--random", 1, "--shape", "4,8,8,1")
    assert next(iter(wide["outputs"].values()))["shape"] == [4, 10]


def test_signature(tmp_path: Path) -> None:
    plus, times = (
        graph(n, binary(op), ("f32", (2, 3)), ("f32", (2, 3)))
        for n, op in (("plus", "ADD"), ("times", "MUL"))
    )
    model = Model(
        [plus, times],
        [
            Signature(g.name, g, dict(zip("ab", g.inputs, strict=True)), {"y": g.outputs[0]})
            for g in (plus, times)
        ],
    )
    path = stored(tmp_path, model)
    np.save(tmp_path / "x.npy", np.full((2, 3), 3, F))
    feeds = ["-i", f"a={tmp_path / 'x.npy'}", "-i", f"b={tmp_path / 'x.npy'}"]
    for key, wanted in (("plus", 6), ("times", 9)):
        record = answer("run", path, *feeds, "--signature", key)
        assert record["outputs"]["y"]["first"] == [wanted] * 6


def odd_outputs(tmp_path: Path) -> Path:
    """Names that look like markup; values that are text, bfloat16, NaN, or not there at all."""
    g = Graph()
    x = g.input("[/red]", DType.FLOAT32, (2,))
    s = g.input(":smile:", DType.STRING, (2,))
    b = g.tensor("[bold]b", DType.BFLOAT16, (2,))
    log = g.tensor("log", DType.FLOAT32, (2,))
    g.add("CAST", [x], [b], in_data_type="FLOAT32", out_data_type="BFLOAT16")
    g.add("LOG", [x], [log])
    g.outputs = [b, s, log]
    return stored(tmp_path, Model([g]))


def test_odd_names_and_values(tmp_path: Path) -> None:
    path, out = odd_outputs(tmp_path), tmp_path / "all.npz"
    np.save(tmp_path / "x.npy", F([-1, 0]))
    np.save(tmp_path / "s.npy", np.array(["one", "three"]))
    feeds = ["-i", f"[/red]={tmp_path / 'x.npy'}", "-i", f":smile:={tmp_path / 's.npy'}"]
    labels = tmp_path / "labels"
    labels.write_text("a\nb")
    result = call("run", path, *feeds, "-o", out, "--labels", labels)
    assert "[bold]b" in result.stdout and ":smile:" in result.stdout and "three" in result.stdout
    with np.load(out) as found:
        assert found["[bold]b"].dtype == F and found[":smile:"].tolist() == [b"one", b"three"]
    record = answer("run", path, *feeds)
    assert record["outputs"]["log"]["first"] == [None, None]  # JSON has no NaN
    assert record["outputs"][":smile:"]["first"] == ["one", "three"]
    assert "[/red]" in call("inspect", path, "--tensors").stdout
