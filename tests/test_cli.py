"""The command line: what goes in, what comes out, and a sentence where something is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import sanderling
from sanderling import load, save
from sanderling.cli import main
from sanderling.cli.app import app
from sanderling.cli.common import shorten
from sanderling.ir import DType, Graph, Model, Quant, Signature, Tensor
from sanderling.ir.compare import models_equal
from sanderling.ir.text import from_text
from sanderling.measure import inspect as describe
from sanderling.runtime.inputs import Picture, dequantize_array, quantize_array, read_array
from sanderling.runtime.session import Session
from sanderling.tables import table

from .conformance.cases_control import binary, emit, graph
from .support.diff_command import restless

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")
RNG = np.random.default_rng(5)
DIGIT = RNG.random((1, 8, 8, 1)).astype(np.float32)
F = np.float32


def call(*words: object, status: int = 0) -> Result:
    """The verb in this process; anything but a status is a defect."""
    result = CliRunner().invoke(app, [str(w) for w in words])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def answer(*words: object) -> Any:
    return json.loads(call(*words, "--json", "-").stdout)


@pytest.fixture
def digit(tmp_path: Path) -> Path:
    np.save(tmp_path / "digit.npy", DIGIT)
    return tmp_path / "digit.npy"


def run_f32(x: Any = DIGIT) -> Any:
    return load(F32).compile()(x)


def stored(tmp_path: Path, model: Model) -> Path:
    save(model, tmp_path / "model.tflite")
    return tmp_path / "model.tflite"


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


# -- inspect ------------------------------------------------------------------------------------


def test_inspect_shows_a_table() -> None:
    text = call("inspect", INT8).stdout
    for word in ("CONV_2D", "MACs", "parameters", "arena", "full integer", "input", "output"):
        assert word in text
    assert "zero point" in text and "role" not in text and "#  op" not in text
    assert "role" in call("inspect", INT8, "--tensors").stdout
    assert "#  op" in call("inspect", INT8, "--ops").stdout
    assert not any(line.endswith(" ") for line in text.splitlines())


@pytest.mark.parametrize("target", ["-", "file"])
def test_inspect_json_is_the_same_content(tmp_path: Path, target: str) -> None:
    path = tmp_path / "record.json"
    result = call("inspect", INT8, "--json", "-" if target == "-" else path)
    record = json.loads(result.stdout if target == "-" else path.read_text())
    assert record == json.loads(json.dumps(describe(INT8)))
    assert record["schema"] == "sanderling.inspect/1" and record["macs"] > 0
    assert target == "-" or "CONV_2D" in result.stdout


@pytest.mark.parametrize("option", ["--ops", "--tensors", "--arena", "--delegate=reference"])
def test_inspect_fits_the_terminal(
    tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "/".join(["scope"] * 30)
    g = Graph()
    x = g.input(name, DType.FLOAT32, (1, 4))
    y = g.tensor(f"first/{name}/last;second/{name}", DType.FLOAT32, (1, 4))
    g.add("ABS", [x], [y])
    g.outputs = [y]
    path = stored(tmp_path, Model([g]))
    monkeypatch.delenv("COLUMNS", raising=False)
    whole = call("inspect", path, option).stdout
    if option == "--arena":
        assert name in whole
        return
    # In a file there is no width to keep to, but a name takes no more than its share.
    assert name not in whole and max(map(len, whole.splitlines()[8:])) < 60 + 90
    assert name in call("inspect", path, option, "--json", "-").stdout
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    lines = call("inspect", path.name, option).stdout.splitlines()
    assert max(map(len, lines)) <= 80 and not any(line.endswith(" ") for line in lines)
    assert any("..." in line for line in lines)


@pytest.mark.parametrize(
    "text, room, short",
    [
        ("short", 5, "short"),
        ("conv/Relu;conv/Bias", 14, "conv/Relu;..."),
        ("abcdefghijklmnopqrst", 12, "abc...opqrst"),
        ("abcdef/ghijkl/mnopqr;second", 12, "abc...qr;..."),
        ("[model/conv/Relu;model/conv/Bias]:12", 20, "[mod.../Relu;...]:12"),
    ],
)
def test_names_are_shortened(text: str, room: int, short: str) -> None:
    assert shorten(text, room) == short and len(shorten(text, room)) <= room


@pytest.mark.parametrize(
    "names, short",
    [
        (["mlp_large_f32.tflite", "mlp_large_int8.tflite"], ["...f32.tf...", "...int8.t..."]),
        (
            ["net/block_1/expand/conv/out", "net/block_2/expand/conv/out"],
            ["...1/expa...", "...2/expa..."],
        ),
        (
            ["abc/x1/bbbbbb/one/cccccc", "abc/x1/bbbbbb/two/cccccc", "abc/x2/bbbbbb/two/cccccc"],
            ["...one/cc...", "...two/cc...", "...2/bbbb..."],
        ),
        (["the same twice in a row"] * 2, ["the... a row"] * 2),
    ],
)
def test_names_that_differ_look_different(
    names: list[str], short: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "16")
    lines = table(["~name", "ms"], [[name, "1"] for name in names]).splitlines()[2:]
    assert [line.split("  ")[0] for line in lines] == short


def test_the_first_values_are_whole_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = call("run", INT8, "--random", 0).stdout.splitlines()[2]
    words = line.split()[6:]
    assert words[-1] == "..." and len(words) > 1 and len(line) <= 60
    monkeypatch.setenv("COLUMNS", "200")
    whole = call("run", INT8, "--random", 0).stdout.splitlines()[2].split()[6:]
    assert whole[: len(words) - 1] == words[:-1] and "..." not in whole


def test_names_in_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in a file is not as wide as its widest name; $COLUMNS asks for more."""
    monkeypatch.delenv("COLUMNS", raising=False)
    row = ["a" * 300, "b " * 50]
    lines = table(["~name", "because"], [row]).splitlines()
    assert {len(line) for line in lines[1:]} == {60 + 2 + 99, 60 + 2 + 100}
    assert "60 letters" in " ".join(call("--help").stdout.split())
    monkeypatch.setenv("COLUMNS", "500")
    assert "a" * 300 in table(["~name", "because"], [row])


def test_a_wide_table_goes_on_below_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, row = ["what", ">peak of runs", ">size", ">in all"], ["a setting", "1 K", "2 K", "3 K"]
    monkeypatch.delenv("COLUMNS", raising=False)
    assert table(columns, [row]).splitlines()[0] == "what       peak of runs  size  in all"
    monkeypatch.setenv("COLUMNS", "28")
    assert table(columns, [row], labels=1).splitlines() == [
        "           peak",
        "             of         in",
        "what       runs  size  all",
        "---------  ----  ----  ---",
        "a setting   1 K   2 K  3 K",
    ]
    monkeypatch.setenv("COLUMNS", "22")
    first, second = table(columns, [row], labels=1).split("\n\n")
    assert first.splitlines()[-1] == "a setting   1 K   2 K"
    assert second.splitlines()[-1] == "a setting  3 K"


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    g = Graph("\x1b[2J")
    g.outputs = [g.input("\x1b[31mred\n", DType.FLOAT32, (1,))]
    text = call("inspect", stored(tmp_path, Model([g])), "--tensors").stdout
    assert "\x1b" not in text and "\\x1b[31mred\\n" in text and "op type" not in text


STEERS = "\x1b]0;title\x07\x1b[31mred\r"


def test_nor_in_an_error_or_a_warning(tmp_path: Path) -> None:
    g = Graph()
    g.outputs = [g.input(STEERS, DType.FLOAT32, (1,))]
    model = stored(tmp_path, Model([g]))
    for words, status in (
        (["inspect", model, "--shape", "x=1"], 2),
        (["run", model], 2),
        (["inspect", f"{tmp_path}/{STEERS}"], 2),
        (["inspect", model, "--json", f"{tmp_path}/{STEERS}.json"], 0),
    ):
        told = call(*words, status=status).stderr
        assert "\x1b" not in told and "\x07" not in told and "\\x1b]0;title\\x07" in told, told


def test_shapes_that_the_file_does_not_state(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (2, 3))
    absolute, places, total = (
        g.tensor(n, t)
        for n, t in (("abs", DType.FLOAT32), ("places", DType.INT64), ("sum", DType.FLOAT32))
    )
    g.add("ABS", [x], [absolute])
    g.add("WHERE", [absolute], [places])
    g.add("SUM", [absolute, g.constant("axes", np.int32([0, 1]))], [total], keep_dims=False)
    g.outputs = [places, total]
    path = stored(tmp_path, Model([g]))
    text = call("inspect", path, "--ops").stdout
    for shown in ("f32[2,3]", "i64[?]", "f32[]"):
        assert shown in text
    record = answer("inspect", path)
    assert [t["shape"] for t in record["graphs"][0]["tensors"]] == [[2, 3], [2, 3], None, [], [2]]
    assert record["graphs"][0]["ops"][2]["parameters"] == 0 == record["parameters"]  # axes
    assert record["graphs"][0]["ops"][0]["bytes_written"] == 24


def test_inspect_sums_by_type() -> None:
    record = answer("inspect", F32)
    (main,) = record["graphs"]
    first = main["types"][0]
    assert (first["name"], first["count"]) == ("CONV_2D", 2)
    assert sum(t["macs"] for t in main["types"]) == record["macs"]
    assert sum(t["parameters"] for t in main["types"]) == record["parameters"]


def nested(tmp_path: Path, branches: int) -> Path:
    """IFs with branches that are the same but for their names."""
    model = Model([Graph()])
    for number in range(branches):
        model.graphs.append(multiplied(f"branch_{number}"))
    g = model.main
    x, on = g.input("x", DType.FLOAT32, (1, 4)), g.input("on", DType.BOOL, ())
    for number in range(branches):
        y = g.tensor(f"y{number}", DType.FLOAT32, (1, 4))
        same = model.graphs[1 + number]
        g.add("IF", [on, x], [y], then_subgraph_index=same, else_subgraph_index=same)
        x = y
    g.outputs = [x]
    return stored(tmp_path, model)


def multiplied(name: str) -> Graph:
    g = Graph(name)
    x = g.input(f"{name}/x", DType.FLOAT32, (1, 4))
    y = g.tensor(f"{name}/y", DType.FLOAT32, (1, 4))
    g.add("FULLY_CONNECTED", [x, g.constant(f"{name}/w", np.ones((4, 4), np.float32)), None], [y])
    g.outputs = [y]
    return g


def test_inspect_shows_graphs_that_are_alike_once(tmp_path: Path) -> None:
    path = nested(tmp_path, 5)
    text = call("inspect", path, "--ops", "--tensors").stdout
    assert "graph 0 'main'" in text and "graph 1 'branch_0': 1 op" in text
    assert "branch_1" not in text
    assert "graphs 2 to 5 are the same as graph 1 but for names (1 op each)" in text
    every = call("inspect", path, "--ops", "--tensors", "--all").stdout
    assert all(f"graph {n + 1} 'branch_{n}'" in every for n in range(5)) and "same" not in every
    assert "graph 1 is the same" not in call("inspect", nested(tmp_path, 1)).stdout


def test_inspect_counts_what_is_called_once(tmp_path: Path) -> None:
    record = json.loads(call("inspect", nested(tmp_path, 3), "--json", "-").stdout)
    assert record["macs"] == record["graphs"][0]["macs"] == 3 * 16


def test_inspect_text_parses_back() -> None:
    text = call("inspect", INT8, "--text").stdout
    assert models_equal(load(INT8), from_text(text, weights=load(INT8))) is None


def test_inspect_arena() -> None:
    text = call("inspect", INT8, "--arena").stdout
    assert "offset" in text and "in all" in text and "graph main" in text


def test_inspect_delegate(tmp_path: Path) -> None:
    assert (
        "delegation: 1 part: 5 ops on reference"
        in call("inspect", INT8, "--delegate", "reference").stdout
    )
    path = stored(
        tmp_path,
        Model([graph("main", lambda g, x: [emit(g, "custom.Mystery", [x], (3,))], ("f32", (3,)))]),
    )
    text = call("inspect", path, "--delegate", "reference").stdout
    assert "1 op on reference" in text and "not supported" in text and "custom.Mystery" in text
    record = answer("inspect", path, "--delegate", "reference")
    assert "not supported" in record["delegates"][0]["ops"][0]["refusals"][0]["reason"]


def test_inspect_an_accelerator_by_its_rules() -> None:
    text = call("inspect", F32, "--delegate", "nnapi:29").stdout
    assert "1 part: 5 ops on nnapi:29" in text and "borders: 2 tensors" in text
    text = call("inspect", F32, "--delegate", "hexagon", "--delegate", "gpu", "--ops").stdout
    assert "only where input 0 is u8 or i8" in text and "tflite/delegates/hexagon/utils.cc" in text
    assert "5 ops on gpu" in text and "yes" in text
    record = answer("inspect", F32, "--delegate", "coreml:3")["accelerators"][0][0]
    assert record["taken"] == 4 and record["ops"][2]["refusals"][0]["kind"] == "level"


def test_inspect_all_accelerators() -> None:
    text = call("inspect", F32, "--delegate", "all").stdout
    assert "model types (this file: float32)" in text and "quantisation-aware" in text
    rows = answer("inspect", INT8, "--delegate", "all")["model_types"]["rows"]
    assert len(rows) == 1 and rows[0]["cells"]["Edge TPU"]["taken"]


# -- the others ---------------------------------------------------------------------------------


def test_demo() -> None:
    text = call("demo").stdout
    assert "it is a" in text and "held-out pictures right" in text
    record = answer("demo", "--digit", 3)
    assert record["schema"] == "sanderling.demo/1" and record["right"] > 340


def test_version_and_help() -> None:
    assert call("--version").stdout == f"sanderling {sanderling.__version__}\n"
    assert all(verb in call("--help").stdout for verb in ("run", "inspect", "demo"))


@pytest.mark.parametrize("verb", ["run", "inspect", "demo"])
def test_help_of_every_verb(verb: str) -> None:
    text = call(verb, "--help").stdout
    assert "Usage" in text and "--json" in text


# -- what is wrong ------------------------------------------------------------------------------


def corrupt(folder: Path) -> Path:
    path = folder / "corrupt.tflite"
    path.write_bytes(Path(F32).read_bytes()[:700])
    return path


def not_a_picture(folder: Path) -> Path:
    path = folder / "broken.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"junk" * 20)
    return path


def array(folder: Path, value: Any) -> Path:
    np.save(folder / "x.npy", value)
    return folder / "x.npy"


def text_file(folder: Path, text: str, name: str = "text") -> Path:
    (folder / name).write_text(text)
    return folder / name


def pickled(folder: Path) -> Path:
    return array(folder, np.array([{}], object))


def picture(folder: Path) -> Path:
    Image.new("RGB", (4, 4)).save(folder / "p.png")
    return folder / "p.png"


Words = Callable[[Path], list[object]]
R = ["--random", 0]
# what is wrong -> the command, and words of the message
WRONG: dict[str, tuple[Words, str]] = {
    "no model": (lambda d: ["run", d / "none.tflite"], "none.tflite|No such file|check the path"),
    "corrupt model": (lambda d: ["inspect", corrupt(d)], "corrupt.tflite|damaged"),
    "no model at all": (lambda d: ["inspect", array(d, DIGIT)], "x.npy|not a .tflite model"),
    "folder as model": (lambda d: ["inspect", d], "directory|give the .tflite file in it"),
    "input not given": (lambda d: ["run", F32], "is not given|--input|--random 0"),
    "input not there": (lambda d: ["run", F32, "-i", d / "no.npy"], "no.npy|no such file"),
    "input name": (lambda d: ["run", F32, "-i", f"y={array(d, DIGIT)}"],
        "no input 'y'|the inputs are"),
    "output twice": (lambda d: ["run", F32, *R, "-o", "a=1", "-o", "a=2"],
        "--output a is given twice"),
    "output twice, once by name": (lambda d: ["run", F32, *R, "-o", d / "y.npy", "-o",
        f"probabilities={d / 'z.npy'}"], "output 'probabilities' is given twice"),
    "input shape": (lambda d: ["run", F32, "-i", array(d, np.ones(5))],
        "x.npy|[5]|f32[|[1, 8, 8, 1]"),
    "input size": (lambda d: ["run", F32, "-i", array(d, np.ones((1, 9, 9, 1), F))],
        "input 'image' from |x.npy: it has the shape [1, 9, 9, 1], not [1, 8, 8, 1]|f32[1,8,8,1]"),
    "input channels": (lambda d: ["run", INT8, "-i", array(d, np.ones((1, 8, 8, 3), F))],
        "input 'image' from |x.npy: it has the shape [1, 8, 8, 3], not [1, 8, 8, 1]"),
    "input type": (lambda d: ["run", F32, "-i", array(d, DIGIT + 1j)], "complex|float32"),
    "input range": (lambda d: ["run", INT8, "-i", array(d, np.full((1, 8, 8, 1), 300))],
        "int64|int8"),
    "pickle": (lambda d: ["run", F32, "-i", pickled(d)],
        "x.npy|not a readable .npy|Python objects"),
    "a text as array": (lambda d: ["run", F32, "-i", text_file(d, "1 2 3\n", "x.npy")],
        "x.npy|not a readable .npy file: it is not a NumPy file|np.save"),
    "an empty array file": (lambda d: ["run", F32, "-i", text_file(d, "", "x.npz")],
        "x.npz|not a readable .npz file: it is empty|np.savez"),
    "a text as arrays": (lambda d: ["eval", "arrays", F32, "--data",
        text_file(d, "a text\n", "text.tflite")],
        "text.tflite|it is not a NumPy file|np.savez(file"),
    "one array for many": (lambda d: ["eval", "arrays", F32, "--data", array(d, DIGIT)],
        "x.npy|not a readable .npz file: it is a .npy|np.savez(file"),
    "empty input": (lambda d: ["run", F32, "-i", "image="], "--input|nothing stands after image="),
    "negative seed": (lambda d: ["run", F32, "--random", -1], "--random"),
    "number of sizes": (lambda d: ["run", F32, *R, "--shape", "1,8,8"],
        "1,8,8 has 3 sizes|f32[1,8,8,1]|4 sizes"),
    "no file type": (lambda d: ["run", F32, *R, "-o", d / "y"], "without a file type|.npy"),
    "one file for two": (lambda d: ["run", F32, *R, "-o", d / "y.npy", "--json", d / "y.npy"],
        "two results"),
    "bytes to stdout": (lambda d: ["diff", F32, "--output_file_path", "-"],
        "-: this is not written to stdout|give a file's name"),
    "nearly a verb": (lambda d: ["inspekt", F32], "'inspekt'|did you mean inspect?"),
    "file type": (lambda d: ["run", F32, "-i", corrupt(d)],
        "unknown file type '.tflite'|.npy, .npz|.png"),
    "NaN for integers": (lambda d: ["run", INT8, "-i", array(d, DIGIT * np.nan)],
        "input 'image'|64 of 64 values are NaN"),
    "no label": (lambda d: ["run", F32, *R, "--labels", text_file(d, "\n")],
        "text|there is no label in it|one class name a line"),
    "labels of a table": (lambda d: ["run", F32, *R, "--labels", text_file(d,
        'index,mid,display_name\n0,/m/09x0r,Speech\n1,/m/0ytgt,"Child speech, kid"\n')],
        "it is a CSV with the columns index, mid, display_name|without the line of headings"),
    "two forms": (lambda d: ["inspect", F32, "--text", "--json", "-"],
        "--text and --json -|choose one"),
    "no plugin": (lambda d: ["run", F32, *R, "--plugin", d / "no.py"], "no.py|no such file"),
    "plugin that is a folder": (lambda d: ["run", F32, *R, "--plugin", d],
        "--plugin|it is a folder or a pipe, not a file"),
    "plugin that fails": (lambda d: ["inspect", F32, "--plugin", text_file(d, "a = 1\n1 / 0")],
        "--plugin|ZeroDivisionError|line 2"),
    "plugin that is none": (lambda d: ["inspect", F32, "--plugin", text_file(d, "def (")],
        "SyntaxError|line 1"),
    "plugin with a mistake": (lambda d: ["inspect", F32, "--plugin", text_file(
        d, "import sanderling as s\ns.register_custom('A', evaluate=1, infer=len)")],
        "InputError: evaluate is 1, not a function|line 2"),
    "bad picture": (lambda d: ["run", F32, "-i", not_a_picture(d)],
        "broken.png|not a readable picture"),
    "bad mean": (lambda d: ["run", F32, *R, "--mean", "a"], "--mean|'a'|127.5"),
    "zero std": (lambda d: ["run", F32, *R, "--std", "0"], "--std|above 0"),
    "too many means": (lambda d: ["run", F32, "-i", picture(d), "--mean", "1,2,3"],
        "3 numbers|1 colours"),
    "bad resampling": (lambda d: ["run", F32, "-i", picture(d), "--resample", "x"], "'x'|bilinear"),
    "bad shape": (lambda d: ["run", F32, *R, "--shape", "-1,3"], "'-1,3'|1,224,224,3"),
    "huge shape": (lambda d: ["run", F32, *R, "--shape", f"{1 << 40},8,8,1"],
        "SANDERLING_MAX_MEMORY"),
    "shape without random": (lambda d: ["run", F32, "-i", array(d, DIGIT), "--shape", "1,8,8,1"],
                             "--shape is for random inputs"),
    "no labels": (lambda d: ["run", F32, *R, "--labels", d / "no.txt"], "no.txt|labels"),
    "no folder": (lambda d: ["run", F32, *R, "-o", d / "no" / "y.npy"], "no/y.npy|no folder"),
    "folder as output": (lambda d: ["run", F32, *R, "--json", d], "it is a folder"),
    "output kind": (lambda d: ["run", F32, *R, "-o", d / "y.csv"], "'.csv'|.npy"),
    "output name": (lambda d: ["run", F32, *R, "-o", f"no={d / 'y.npy'}"],
        "no output 'no'|outputs are"),
    "signature": (lambda d: ["run", F32, *R, "--signature", "no"], "no signature 'no'"),
    "delegate": (lambda d: ["run", F32, *R, "--delegate", "npu"],
        "'npu'|known delegates: cpu, reference"),
    "delegate to inspect": (lambda d: ["inspect", F32, "--delegate", "npu"], "'npu'"),
    "threads": (lambda d: ["run", F32, *R, "--threads", 0],
        "sanderling: --threads is 0|leave it out"),
    "json folder": (lambda d: ["inspect", F32, "--json", d / "no" / "r.json"], "no folder"),
    "no verb": (lambda d: ["fly"], "fly"),
    "no such option": (lambda d: ["run", F32, "--fast"], "--fast"),
    "top": (lambda d: ["run", F32, *R, "--top", 0], "--top"),
    "digit": (lambda d: ["demo", "--digit", 360], "--digit"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what: str, tmp_path: Path) -> None:
    words, message = WRONG[what]
    command = words(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    result = call(*command, status=2)
    for word in message.split("|"):
        assert word in result.stderr, result.stderr
    assert not result.stdout and "Traceback" not in result.stderr
    assert sorted(tmp_path.rglob("*")) == before  # nothing half-written is left


def test_pillow_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = picture(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    error = call("run", F32, "-i", path, status=2).stderr
    assert "pillow" in error and "pip install 'sanderling[image]'" in error
    assert "in a clone: pip install -e '.[image]'" in error


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    call("run", "--help")  # the verb is imported when it is called
    monkeypatch.setattr(sys.modules["sanderling.cli.run"], "load", exhausted)
    assert "not enough memory" in call("run", F32, "--random", 0, status=2).stderr


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        error = call("run", F32, *R, "-o", tmp_path / "y.npy", status=2).stderr
        assert "cannot write" in error
    finally:
        tmp_path.chmod(0o700)


# -- as a process -------------------------------------------------------------------------------


def process(*words: object, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sanderling", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **more)


def test_the_command_itself() -> None:
    done = process("run", INT8, "--random", 0, "--json", "-")
    assert done.returncode == 0 and json.loads(done.stdout)["outputs"] and not done.stderr


def test_the_command_fails_with_a_sentence(tmp_path: Path) -> None:
    done = process("inspect", tmp_path / "none.tflite")
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("sanderling: ") and "Traceback" not in done.stderr


def test_a_reader_that_goes_away() -> None:
    """`sanderling inspect ... | head`: no traceback when the pipe closes."""
    command = [sys.executable, "-m", "sanderling", "inspect", INT8, "--json", "-"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert running.stdout is not None and running.stderr is not None
    running.stdout.close()
    error = running.stderr.read()
    running.wait(60)
    running.stderr.close()
    assert b"Traceback" not in error
    assert running.returncode in (0, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [["--version"], ["inspect", INT8], ["inspect", INT8, "--json", "-"], ["demo"]],
    ids=" ".join,
)
def test_a_full_disk(words: list[str]) -> None:
    command = [sys.executable, "-m", "sanderling", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("sanderling: cannot write the output: No space left on dev")


def test_interrupted_while_it_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sanderling.cli.app.start", interrupt)
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code == 130


def test_interrupted_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    call("run", "--help")
    monkeypatch.setattr(sys.modules["sanderling.cli.run"], "load", interrupt)
    assert "interrupted" in call("run", F32, "--random", 0, status=130).stderr


def test_the_version_does_not_wait_for_numpy() -> None:
    code = (
        "import sys; from sanderling.cli.app import app; app(['--version'], standalone_mode=False);"
        "print(*sorted(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "rich", "llvmlite"} & set(done.stdout.split())


def test_lists_of_verbs_are_whole_sentences() -> None:
    for words in (["--help"], ["eval", "--help"]):
        assert "..." not in call(*words).stdout.replace("[ARGS]...", "")


# -- open dimensions and shared weights ------------------------------------------------------------


def test_inspect_advises_shapes_only_where_they_are_the_problem(tmp_path: Path) -> None:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        return [emit(g, "SQUEEZE", [x], (4,), dtype="bool", squeeze_dims=[])]

    save(Model([graph("main", body, ("f64", (1, 4)))]), tmp_path / "m.tflite")
    text = " ".join(call("inspect", tmp_path / "m.tflite").stdout.split())
    assert "it does not run, so its MACs" in text and "--shape" not in text
    assert "is bool: it gives" in text  # with what is right


def test_inspect_has_no_figures_of_shapes_that_do_not_run(tmp_path: Path) -> None:
    path = stored(tmp_path, restless())
    text = call("inspect", path).stdout
    assert "it does not run on these shapes" in text and "SLICE 'y'" in text
    assert re.search(r"MACs +not known", text) and "--shape" in text and "arena 0" not in text
    record = json.loads(call("inspect", path, "--json", "-").stdout)
    assert record["macs"] is None and record["graphs"][0]["arena_bytes"] is None
    assert "not known" in call("inspect", path, "--arena").stdout
    text = call("inspect", path, "--shape", "1,3,4,2").stdout
    assert "f32[1,6,8,2]" in call("inspect", path, "--shape", "x=1,3,4,2", "--tensors").stdout
    assert "arena" in text and "does not run" not in text and "f32[1,2,3,2]" in text
    assert "no input 'z'" in call("inspect", path, "--shape", "z=1,3,4,2", status=2).stderr


def test_inspect_says_that_sizes_are_open(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, 4), signature=(-1, 4))
    y = g.tensor("y", DType.FLOAT32, (1, 4))
    g.add("ABS", [x], [y])
    g.outputs = [y]
    path = stored(tmp_path, Model([g]))
    assert "figures are those of input 'x' f32[-1,4] at [1, 4]" in call("inspect", path).stdout
    text = call("inspect", path, "--shape", "x=8,4").stdout
    assert "sizes are open" not in text and "f32[8,4]" in text


def test_inspect_counts_shared_weights_once_and_shape_reads_nothing(tmp_path: Path) -> None:
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, 8))
    weights = g.constant("w", np.ones((8, 8), np.float32))
    a, b = g.tensor("a", DType.FLOAT32, (1, 8)), g.tensor("b", DType.FLOAT32, (1, 8))
    n, row = g.tensor("n", DType.INT32, (2,)), g.tensor("row", DType.FLOAT32, (1, 8))
    g.add("FULLY_CONNECTED", [x, weights, None], [a])
    g.add("FULLY_CONNECTED", [a, weights, None], [b])
    g.add("SHAPE", [b], [n], out_type="INT32")
    g.add("GATHER", [weights, g.constant("at", np.array([3], np.int32))], [row], axis=0)
    g.outputs = [b, n, row]
    record = json.loads(call("inspect", stored(tmp_path, Model([g])), "--json", "-").stdout)
    types = {t["name"]: t for t in record["graphs"][0]["types"]}
    assert sum(t["parameters"] for t in types.values()) == record["parameters"] == 64
    assert types["SHAPE"]["bytes_read"] == 0 and types["GATHER"]["bytes_read"] == 32 + 4


@pytest.mark.parametrize("verb", ["run", "bench", "profile", "trace", "diff", "inspect",
                                  "quantize", "eval imagenet"])  # fmt: skip
def test_every_verb_that_needs_a_shape_takes_one(verb: str) -> None:
    assert "--shape" in call(*verb.split(), "--help").stdout


def test_open_sizes_of_pictures_are_stated_to_eval_and_quantize(tmp_path: Path) -> None:
    """A classifier of pictures of any size; the file's stand-in is one pixel."""
    g = Graph()
    x = g.input("x", DType.FLOAT32, (1, 1, 1, 3), signature=(1, -1, -1, 3))
    mean, out = g.tensor("mean", DType.FLOAT32, (1, 3)), g.tensor("scores", DType.FLOAT32, (1, 3))
    g.add("MEAN", [x, g.constant("axes", np.array([1, 2], np.int32))], [mean], keep_dims=False)
    g.add("SOFTMAX", [mean], [out], beta=9.0)
    g.outputs = [out]
    path = stored(tmp_path, Model([g]))
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, colour in enumerate(("red", "lime", "blue")):
        image = Image.new("RGB", (8, 8), "white")
        image.paste(colour, (0, 0, 8, 7))
        image.save(pictures / f"{number}.png")
    (tmp_path / "labels.txt").write_text("0\n1\n2\n")
    words = path, "--images", pictures, "--labels", tmp_path / "labels.txt", "--shape", "1,8,8,3"
    text = call("eval", "imagenet", *words, "--preset", "unit", "--delegate", "reference").stdout
    assert "Top-1 Accuracy: 1" in text
    made = tmp_path / "made.tflite"
    call(
        "quantize",
        path,
        "-o",
        made,
        "--data",
        pictures,
        "--shape",
        "x=1,8,8,3",
        "--corrections",
        "none",
        "--ranges",
        "minmax",
        "--weights",
        "max",
    )
    assert load(made).main.inputs[0].shape == (1, 8, 8, 3)
