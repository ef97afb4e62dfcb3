"""`sanderling diff`, the command: the guide's lines, limits and status, files, bad input."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
import sanderling.delegates.cpu.delegate as cpu
from sanderling import InputError, Model, diff, load, save
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.evaluate.setting_delegates import as_computed
from sanderling.ir import DType, Graph
from sanderling.measure.benchmark_model.providers import PROVIDERS, stand_in
from sanderling.measure.record import Setting
from sanderling.runtime.coverage import runs_on

from .support.diff_command import BY_DEFINITION, EXACT, F32, INT8, F, call, restless, small
from .support.fake_delegates import Some

# -- the guide's tool -----------------------------------------------------------------------------


def test_the_guides_command_prints_its_lines(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "result.pb"
    text = call(
        f"--model_file={INT8}",
        "--delegate=xnnpack",
        "--num_runs=7",
        "--num_interpreter_threads=2",
        f"--output_file_path={path}",
    ).stdout
    number = r"[-+.\de]+"
    assert re.match(
        "Num evaluation runs: 7\n"
        rf"Reference run latency: avg={number}\(us\), std_dev=\d+\(us\)"
        "\n"
        rf"Test run latency: avg={number}\(us\), std_dev=\d+\(us\)"
        "\n"
        rf"OutputDiff\[0\]: avg_error={number}, std_dev={number}"
        "\n",
        text,
    )
    metrics = dict(fields(path.read_bytes()))
    profile = list(fields(dict(fields(metrics[2]))[5]))
    assert metrics[1] == 7 and [n for n, _ in profile] == [1, 2, 3]
    average = struct.unpack("<d", dict(fields(profile[2][1]))[3])[0]
    assert f"avg_error={average:g}," in text


@pytest.mark.filterwarnings("ignore:.*has no bf16 instructions")
def test_the_precision_is_what_was_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """f32, where the machine has no instructions for bf16 or a delegate has no such precision."""
    monkeypatch.setattr(cpu, "host_target", lambda: replace(host_target(), bf16=False))
    found = diff(F32, precision_b="bf16", runs=1)
    assert found.reference["delegates"] == [] and found.test["precision"] == "f32"
    assert diff(F32, delegate_b="reference", precision_b="bf16", runs=1).test["precision"] == "f32"
    emulated = cpu.CpuDelegate(precision="bf16", emulate=True)
    assert as_computed(Setting(delegates=(emulated,))).precision == "bf16"  # type: ignore[arg-type]


def test_a_delegate_that_took_no_op_is_not_who_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, takes in {"none": (), "softmax": ("SOFTMAX",)}.items():
        one = Some(takes, name)
        monkeypatch.setitem(sanderling.runtime.registry._registered, name, lambda one=one: one)
    test = json.loads(call(F32, "--delegate", "none", "--runs", 1, "--json", "-").stdout)["test"]
    count = len(load(F32).main.ops)
    assert test["delegates"] == ["none"] and test["ops_by_delegate"] == {"none": 0, "cpu": count}
    text = call(F32, "--delegate", "none", "--runs", 1).stdout
    assert f"sanderling cpu (none took 0 of {count} ops)" in text
    found = diff(F32, delegate_b="softmax", runs=1).test
    assert runs_on(found["delegates"], found["ops_by_delegate"]) == (
        f"softmax+cpu (softmax took 1, cpu took {count - 1} of {count} ops)"
    )


@pytest.mark.parametrize(
    "spelled, shown",
    [
        ("litert:threads=2", "litert:threads=2"),
        ("external:path=/opt/vendor/libnpu.so.1;device=usb", "external:libnpu.so.1"),
        ("litert:threads=2;isolated=true;isolated_timeout=5", "litert"),
    ],
)
def test_a_long_delegate_is_shown_by_its_name_and_file(spelled: str, shown: str) -> None:
    assert runs_on([spelled], {}) == shown


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of a protocol buffer, blocks and floats as bytes."""
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            value, shift, place = value | (byte & 127) << shift, shift + 7, place + 1
            if byte < 128:
                return value

    while place < len(message):
        key = varint()
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = varint() if size is None else size
        yield key >> 3, message[place : place + size]
        place += size


@pytest.mark.parametrize("name", ["gpu", "nnapi", "hexagon", "coreml"])
def test_delegates_that_are_elsewhere(name: str) -> None:
    row = next(p for p in PROVIDERS if p.flag == f"use_{name}")
    found, problems = stand_in(row)
    if found is not None:
        pytest.skip(f"{name} is here")
    for words in ([f"--delegate={name}"], [f"--use_{name}=true"]):
        result = call(f"--model_file={F32}", *words, "--num_runs=1")
        assert "; ".join(problems)[1:] in result.stderr and " (there are " in result.stderr
        assert "its ops run on the CPU" in result.stderr
        assert re.search(r"test +\S+ +sanderling cpu ", result.stdout)
    call(f"--model_file={F32}", f"--use_{name}=false", "--num_runs=1")


def test_flags_of_delegates_are_known() -> None:
    said = call(f"--model_file={F32}", "--num_runs=1", "--nnapi_accelerator_name", "edgetpu").stderr
    assert "--nnapi_accelerator_name has no effect without --use_nnapi=true" in said
    said = call(
        f"--model_file={F32}",
        "--use_nnapi=true",
        "--nnapi_accelerator_name=edgetpu",
        "--num_runs=1",
    ).stderr
    assert "NNAPI acceleration is unsupported on this platform. There is no delegate" in said
    assert "no effect" not in said
    text = call(f"--model_file={F32}", "--num_runs=1", "--external_delegate_path=reference").stdout
    assert re.search(r"test +\S+ +sanderling reference", text)


def test_open_dimensions_do_not_hide_another_network() -> None:
    first, second = small(), small()
    for model, size in ((first, 4), (second, 5)):
        model.main.inputs[0].signature = (-1, size)
    with pytest.raises(InputError, match=r"f32\[-1,4\] .* against f32\[-1,5\]"):
        diff(first, second, runs=1)


def test_open_dimensions_are_stated(tmp_path: Path) -> None:
    save(restless(), tmp_path / "m.tflite")
    words = tmp_path / "m.tflite", "--runs", 1, *BY_DEFINITION, "--per-tensor"
    said = call(*words, status=2).stderr
    assert "sizes are left open" in said and "--shape x=1,64,64,2" in said
    assert "tensors matched" in call(*words, "--shape", "x=1,3,4,2").stdout
    assert "no input 'z'" in call(*words, "--shape", "z=1,3,4,2", status=2).stderr
    np.save(tmp_path / "x.npy", np.ones((5, 3, 4, 2), np.float32))  # data has sizes of its own
    text = call(*words, "--data", tmp_path / "x.npy", "--runs", 5).stdout
    assert "Num evaluation runs: 5" in text


def test_scalars_stay_scalars() -> None:
    graph = Graph()
    x, n = graph.input("x", DType.FLOAT32, (2,)), graph.input("n", DType.INT32, ())
    index, y = graph.tensor("index", DType.INT32, ()), graph.tensor("y", DType.FLOAT32, ())
    graph.add("ABS", [n], [index])
    graph.add("GATHER", [x, index], [y], axis=0)
    graph.outputs = [y]
    data = {"x": np.ones((1, 2), np.float32), "n": np.zeros(1, np.int32)}
    found = diff(Model([graph]), **EXACT, data=data, per_tensor=True, bisect=True)
    assert found.outputs[0].real.elements == 1 and found.layers is not None


def test_an_outputs_kind_decides_what_is_shown() -> None:
    assert diff(F32, INT8, runs=1).outputs[0].kind.name == "scores"
    plain = diff(small(), **EXACT, runs=1).outputs[0]
    assert plain.kind.name == "values" and "nothing tells" in plain.kind.why
    text = call(F32, INT8, "--runs", 1, "--output-kind", "embedding").stdout
    assert "taken for embedding (stated): what counts is cosine" in text


# -- settings and limits --------------------------------------------------------------------------


def test_settings_of_one_model() -> None:
    found = diff(F32, threads_b=2, runs=2)
    assert found.reference["threads"] == 1 and found.test["threads"] == 2
    assert found.outputs[0].real.max_error == 0  # any number of threads gives the same answer
    for default in ((), "cpu"):
        assert diff(F32, delegate_b=default, runs=1).reference["delegates"] == ["reference"]
    assert diff(F32, delegate_a="cpu", runs=1).reference["delegates"] == ["cpu"]
    exact = diff(F32, runs=2)
    assert exact.reference["delegates"] == ["reference"]
    assert exact.outputs[0].real.relative < 1e-5
    assert exact.latency[0].count == 2


@pytest.mark.parametrize("words,status,said", [
    (["--max-relative", "1"], 0, ""),
    (["--max-relative", "0.001"], 1, "relative error 0."),
    (["--min-snr", "99"], 1, "SNR (dB)"),
    (["--min-cosine", "1", "--min-top1", "1"], 1, "cosine 0.99"),
    (["--max-error", "1e-9", "--max-avg-error", "1e-9"], 1, "largest error"),
    (["--min-top5", "0.5", "--max-raw-error", "0"], 0, ""),
])  # fmt: skip
def test_limits_make_the_status(words: list[str], status: int, said: str) -> None:
    result = call(F32, INT8, "--runs", 4, *words, status=status)
    assert ("does not hold: output 0 'probabilities'" in result.stderr) == bool(status)
    unjudged = "no largest error in raw units to judge" in result.stderr
    assert unjudged == ("--max-raw-error" in words)  # float against int8: there is no common unit
    assert said in result.stderr


def test_nan_is_said_and_breaks_limits() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 8))
    y = graph.tensor("y", DType.FLOAT32, (1, 8))
    graph.add("LOG", [x], [y])
    graph.outputs = [y]
    other = load(sanderling.dump(Model([graph])))
    other.main.ops[0].name = "ABS"
    found = diff(Model([graph]), other, runs=3, max_error=100.0)
    counted = found.outputs[0].real
    assert counted.nan_reference > 0 and counted.nan_test == 0
    assert any(f"{counted.nan_reference} are NaN in the reference" in n for n in found.notes)
    assert not found.ok and "cannot be compared" in found.failed[0]


def test_nan_that_a_delegate_alone_makes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(part: Graph, inputs: object, outputs: Any) -> None:
        outputs[0][0, 3] = np.nan

    names = {"spoils": lambda: Some({"SOFTMAX"}, "spoils", watch=spoil)}
    monkeypatch.setattr("sanderling.runtime.registry._registered", names)
    words = F32, "--delegate-a=reference", "--delegate=spoils", "--delegate=reference", "--runs=2"
    said = call(*words).stderr
    assert "of 20 values 0 are NaN in the reference and 2 in the test; 2 cannot be compared" in said
    assert "NaN is made by the test alone" in said
    assert "cannot be compared" in call(*words, "--max-error=1", status=1).stderr


def test_json_holds_it_all(tmp_path: Path) -> None:
    words = (
        F32,
        INT8,
        *BY_DEFINITION,
        "--runs",
        3,
        "--per-tensor",
        "--bisect",
        "--max-relative",
        1,
    )
    record = json.loads(call(*words, "--json", "-").stdout)
    assert record["schema"] == "sanderling.diff/1" and record["ok"] is True
    assert record["outputs"][0]["real"]["runs"] == 3
    assert record["latency"]["test"]["count"] == 3
    assert [r["name"] for r in record["layers"]["layers"]] == [
        "hidden1",
        "hidden2",
        "flat",
        "logits",
        "probabilities",
    ]
    assert record["bisect"]["verdict"] == "right already"


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_plots(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"error.{kind}"
    call(F32, INT8, *BY_DEFINITION, "--runs", 2, "--plot", path)
    content = path.read_bytes()
    assert {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype"}[kind] == content[
        : 4 + (kind != "png") + 4 * (kind == "html")
    ]
    if kind == "html":
        assert b"hidden2" in content and b"<svg" in content


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words,said", [
    ([], "no model is given"),
    ([F32, "--model_file", F32], "both name the reference"),
    (["nowhere.tflite"], "nowhere.tflite"),
    ([F32, "two.tflite"], "the models have 1 and 2 inputs"),
    ([F32, "other.tflite"], "f32[1,8,8,1] 'image' against f32[1,4] 'x0'"),
    ([F32, "broken.tflite"], "broken.tflite"),
    ([F32, "--runs", "0"], "--runs is 0"),
    ([F32, "--threads-b", "0"], "0 threads run nothing"),
    ([F32, "--delegate-b", "abacus"], "there is no delegate 'abacus'"),
    ([F32, "--engine-b", "abacus"], "there is no engine 'abacus'"),
    ([F32, "--engine-b", "onnxruntime"], "does not read .tflite"),
    ([F32, "--engine-b", "litert", "--delegate-b", "cpu"], "takes no delegate"),
    ([F32, "--precision-b", "f8"], "no precision 'f8'"),
    ([F32, "--max-error", "-1"], "below 0"),
    ([F32, "--min-cosine", "2"], "more than 1"),
    ([F32, "--data", "nowhere.npy"], "no such file or folder"),
    ([F32, "--data", "broken.npy"], "not a readable .npy or .npz"),
    ([F32, "--data", "shape.npy"], "an array of shape [3, 5]"),
    ([F32, "--data", "empty"], "no picture and no .npy"),
    ([F32, "--data", "zero.npy"], "no sample"),
    (["two.tflite", "--data", "shape.npy"], "one array for 2 inputs"),
    (["two.tflite", "--data", "some.npz"], "no array 'x1'"),
    (["two.tflite", "--data", "uneven.npz"], "unequal numbers of samples"),
    ([F32, "--plot", "error.pdf"], "is not a kind of picture"),
    ([F32, "--use_gpu=perhaps"], "it takes true, false, 1 or 0"),
    ([F32, "other.tflite", "--json", "no/where.json"], "no/where.json"),
])  # fmt: skip
def test_bad_input_is_a_sentence(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(small(inputs=2), "two.tflite")
    save(small(), "other.tflite")
    Path("broken.tflite").write_bytes(b"not a model")
    Path("broken.npy").write_bytes(b"not an array")
    np.save("shape.npy", np.zeros((3, 5), F))
    np.save("zero.npy", np.zeros((0, 8, 8, 1), F))
    np.savez("some.npz", x0=np.zeros((1, 4), F), y=1)
    np.savez("uneven.npz", x0=np.zeros((2, 4), F), x1=np.zeros((3, 4), F))
    Path("empty").mkdir()
    before = sorted(tmp_path.iterdir())
    result = call(*words, status=2)
    assert said in result.stderr and "Traceback" not in result.output
    assert sorted(tmp_path.iterdir()) == before


def test_a_peer_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    said = call(F32, "--engine-b", "litert", status=2).stderr
    assert "ai-edge-litert" in said and "pip install" in said


def test_other_engines_need_a_file() -> None:
    pytest.importorskip("ai_edge_litert")
    with pytest.raises(InputError, match="in memory"):
        diff(small(), engine_b="litert")


def test_litert_says_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ai_edge_litert")
    diff(F32, engine_b="litert", runs=1)
    assert "INFO" not in capfd.readouterr().err


def test_networks_that_have_nothing_in_common() -> None:
    other = small()
    other.main.ops[0].name = "FLOOR"
    with pytest.raises(InputError, match="no tensor of one model was recognised"):
        diff(small(), other, runs=1, per_tensor=True)


def test_an_unknown_limit() -> None:
    with pytest.raises(InputError, match="no limit 'max_eror'"):
        diff(F32, max_eror=1.0)
