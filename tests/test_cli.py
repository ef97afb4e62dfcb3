"""The command line: what goes in, what comes out, and a sentence where something is wrong."""

from __future__ import annotations

import json
import os
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
from sanderling.cli import app
from sanderling.evaluate.inputs import Picture, dequantize_array, quantize_array, read_array
from sanderling.ir import DType, Graph, Model, Quant, Signature, Tensor
from sanderling.ir.compare import models_equal
from sanderling.ir.text import from_text
from sanderling.measure import inspect as describe

from .conformance.cases_control import binary, emit, graph

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
    model = Model([g], [Signature("s", g, dict(zip("ab", g.inputs, strict=True)),
                                  {"file": g.outputs[0]})])  # fmt: skip
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
    for model, how in ((F32, []), (INT8, []), (F32, ["--mean", "127.5", "--std", "127.5"]),
                       (F32, ["--resample", "nearest", "--bgr"])):  # fmt: skip
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
    plus, times = (graph(n, binary(op), ("f32", (2, 3)), ("f32", (2, 3)))
                   for n, op in (("plus", "ADD"), ("times", "MUL")))  # fmt: skip
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
    assert "zero point" in text and "role" not in text
    assert "role" in call("inspect", INT8, "--tensors").stdout


@pytest.mark.parametrize("target", ["-", "file"])
def test_inspect_json_is_the_same_content(tmp_path: Path, target: str) -> None:
    path = tmp_path / "record.json"
    result = call("inspect", INT8, "--json", "-" if target == "-" else path)
    record = json.loads(result.stdout if target == "-" else path.read_text())
    assert record == json.loads(json.dumps(describe(INT8)))
    assert record["schema"] == "sanderling.inspect/1" and record["macs"] > 0
    assert target == "-" or "CONV_2D" in result.stdout


def test_inspect_text_parses_back() -> None:
    text = call("inspect", INT8, "--text").stdout
    assert models_equal(load(INT8), from_text(text, weights=load(INT8))) is None


def test_inspect_arena() -> None:
    text = call("inspect", INT8, "--arena").stdout
    assert "offset" in text and "in all" in text and "graph main" in text


def test_inspect_delegate(tmp_path: Path) -> None:
    assert (
        "delegation: 1 parts: 5 ops on reference"
        in call("inspect", INT8, "--delegate", "reference").stdout
    )
    path = stored(tmp_path, Model([graph(
        "main", lambda g, x: [emit(g, "custom.Mystery", [x], (3,))], ("f32", (3,)))]))  # fmt: skip
    text = call("inspect", path, "--delegate", "reference").stdout
    assert "not supported" in text and "custom.Mystery" in text
    record = answer("inspect", path, "--delegate", "reference")
    assert "not supported" in record["delegates"][0]["ops"][0]["refusals"][0]["reason"]


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
    "folder as model": (lambda d: ["inspect", d], "directory"),
    "input not given": (lambda d: ["run", F32], "is not given|--input|--random 0"),
    "input not there": (lambda d: ["run", F32, "-i", d / "no.npy"], "no.npy|no such file"),
    "input name": (lambda d: ["run", F32, "-i", f"y={array(d, DIGIT)}"],
        "no input 'y'|the inputs are"),
    "input twice": (lambda d: ["run", F32, "-i", "a=1", "-i", "a=2"], "--input a is given twice"),
    "input shape": (lambda d: ["run", F32, "-i", array(d, np.ones(5))], "[5]|f32[|4 dimensions"),
    "input size": (lambda d: ["run", F32, "-i", array(d, np.ones((1, 9, 9, 1), F))],
                   "[1, 9, 9, 1]"),
    "input type": (lambda d: ["run", F32, "-i", array(d, DIGIT + 1j)], "complex|float32"),
    "input range": (lambda d: ["run", INT8, "-i", array(d, np.full((1, 8, 8, 1), 300))],
        "int64|int8"),
    "pickle": (lambda d: ["run", F32, "-i", pickled(d)], "x.npy|not a readable .npy"),
    "no array": (lambda d: ["run", F32, "-i", corrupt(d)], "not a readable .npy"),
    "bad picture": (lambda d: ["run", F32, "-i", not_a_picture(d)],
        "broken.png|not a readable picture"),
    "bad mean": (lambda d: ["run", F32, *R, "--mean", "a"], "--mean|'a'|127.5"),
    "zero std": (lambda d: ["run", F32, *R, "--std", "0"], "--std|0"),
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
        "'npu'|known delegates: reference"),
    "delegate to inspect": (lambda d: ["inspect", F32, "--delegate", "npu"], "'npu'"),
    "threads": (lambda d: ["run", F32, *R, "--threads", 0], "threads is 0"),
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


def test_memory_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

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
