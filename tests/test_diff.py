"""`sanderling diff`: errors are what NumPy says they are, the layer or op to blame is named, and
bad input is a sentence."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import sanderling
from sanderling import InputError, Model, Quant, diff, load, register_delegate, save
from sanderling.cli.app import app
from sanderling.evaluate.bisect import minimal
from sanderling.evaluate.diff_inputs import couple, gaussian, translated
from sanderling.evaluate.match import match, name_pieces
from sanderling.evaluate.measures import Limits, Tally, TopTally
from sanderling.ir import DType, Graph, Tensor
from sanderling.runtime.inputs import dequantize_array

from . import shared
from .conformance.cases_sequence import _svdf
from .cpu.models import stack
from .twins import WEIGHTS, Twin, Wrong, calibrated

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")
F = np.float32
# Both on the definitions: where it does not matter who computes, nothing is compiled.
EXACT: Any = {"delegate_a": ["reference"], "delegate_b": ["reference"]}
BY_DEFINITION = ("--delegate-a", "reference", "--delegate-b", "reference")
RNG = np.random.default_rng(8)


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["diff", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


@pytest.fixture(scope="module")
def ranges() -> dict[str, tuple[float, float]]:
    return calibrated()


@pytest.fixture
def wrong() -> Iterator[Any]:
    """Register a delegate that computes the ops with these outputs wrongly."""
    yield lambda *names: register_delegate("wrong", lambda: Wrong(names))
    sanderling.runtime.delegate._registered.pop("wrong", None)


# -- figures --------------------------------------------------------------------------------------


def test_errors_are_what_numpy_says() -> None:
    runs = [(RNG.normal(size=(2, 6)), RNG.normal(size=(2, 6))) for _ in range(3)]
    tally = Tally()
    for a, b in runs:
        tally.add(a, b, channels=True)
    found = tally.errors()
    a, b = (np.stack(side) for side in zip(*runs, strict=True))
    means = [np.abs(x - y).mean() for x, y in runs]
    for value, wanted in (
        (found.avg_error, np.mean(means)), (found.std_dev, np.std(means)),
        (found.max_error, np.abs(a - b).max()), (found.rmse, np.sqrt(np.mean((a - b) ** 2))),
        (found.relative, np.linalg.norm(a - b) / np.linalg.norm(a)),
        (found.cosine, np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)),
        (found.snr_db, 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())),
        (found.min_error, min(means)), (found.max_mean_error, max(means)),
    ):  # fmt: skip
        assert value == pytest.approx(wanted)
    by_channel = tally.channel_rmse()
    assert by_channel is not None
    assert by_channel == pytest.approx(np.sqrt(((a - b) ** 2).mean(axis=(0, 1))))


def test_equal_arrays_have_no_error() -> None:
    tally = Tally()
    tally.add(np.ones((1, 3)), np.ones((1, 3)))
    found = tally.errors()
    assert (found.max_error, found.relative, found.cosine, found.equal) == (0, 0, 1, 1)
    assert found.snr_db == np.inf


def test_what_is_not_finite_is_counted_and_not_averaged() -> None:
    tally = Tally()
    nan, inf = np.nan, np.inf
    tally.add(np.array([1, nan, nan, inf, inf, 2.0]), np.array([1.5, nan, 3, inf, -inf, nan]))
    found = tally.errors()
    assert (found.nan_reference, found.nan_test, found.unlike) == (2, 2, 3)
    assert found.avg_error == 0.5  # of the only pair of numbers
    assert list(Limits(max_error=9).broken("o", found, None, {}))  # a NaN never holds


def test_other_shapes_and_strings_are_told_apart() -> None:
    tally = Tally()
    tally.add(np.zeros(3), np.zeros(4))
    assert tally.errors().unlike == 4
    words = Tally()
    words.add(np.array([b"a", b"b"], object), np.array([b"a", b"c"], object))
    assert words.errors().equal == 0.5


def test_best_classes_agree_also_in_a_tie() -> None:
    top = TopTally()
    top.add(np.array([[1, 5, 4, 3, 2, 0, 0]]), np.array([[9, 9, 1, 1, 0, 0, 0]]))
    top.add(np.array([[1, 5, 4, 3, 2, 0, 0]]), np.array([[9, 8, 7, 6, 5, 0, 0]]))
    assert top.shares() == {1: 0.5, 5: 1.0}


# -- inputs ---------------------------------------------------------------------------------------


def test_random_inputs_are_the_guides() -> None:
    """Gaussian of mean 0.5 and deviation 1/3, cut to [0, 1), stretched over the type's range."""
    shape = (4, 50, 50)
    floats = gaussian(Tensor("x", DType.FLOAT32, shape), np.random.default_rng(0))
    assert floats.dtype == F and -1 <= floats.min() < -0.99 and 0.99 < floats.max() < 1
    drawn = np.random.default_rng(1).normal(0.5, 1 / 3, 200_000)
    kept = drawn[(drawn >= 0) & (drawn < 1)]
    assert np.std(floats / 2 + 0.5) == pytest.approx(kept.std(), abs=0.01)
    codes = gaussian(Tensor("x", DType.UINT8, shape), np.random.default_rng(0))
    assert codes.dtype == np.uint8 and codes.min() == 0 and codes.max() == 255
    words = gaussian(Tensor("x", DType.INT32, shape), np.random.default_rng(0))
    assert words.min() >= 0 and words.max() < 100
    wide = Tensor("x", DType.INT16, shape, quant=Quant.of(0.1))
    assert gaussian(wide, np.random.default_rng(0)).min() < -30_000


def test_both_sides_get_the_same_reals_and_errors_are_of_reals() -> None:
    found = diff(F32, INT8, runs=4, seed=3, **EXACT)
    small = load(INT8)
    x, y = small.main.inputs[0], small.main.outputs[0]
    errors = []
    for run in range(4):
        codes = gaussian(x, np.random.default_rng([3, run, 0]))
        reals = dequantize_array(codes, x)
        floats, integers = (m.compile("reference") for m in (load(F32), small))
        answers = floats(reals), dequantize_array(integers(codes), y)
        errors.append(np.abs(answers[0] - answers[1]).mean())
    output = found.outputs[0]
    assert output.real.avg_error == pytest.approx(np.mean(errors), rel=1e-4)
    assert output.raw is None  # float against int8: there is no common unit
    assert output.top[1] == 1
    assert diff(F32, INT8, runs=4, seed=3, **EXACT).outputs[0].real == output.real
    assert diff(F32, INT8, runs=4, seed=4, **EXACT).outputs[0].real != output.real


def test_raw_units_where_types_and_parameters_are_the_same(wrong: Any) -> None:
    wrong("probabilities")
    output = diff(INT8, delegate_b=["wrong"], runs=3).outputs[0]
    scale = float(load(INT8).main.outputs[0].quant.scale[0])  # type: ignore[union-attr]
    assert output.raw is not None and output.raw.max_error >= 1
    assert output.raw.max_error * scale == pytest.approx(output.real.max_error, rel=1e-5)
    assert output.guide is output.raw


def test_values_change_type() -> None:
    codes = Tensor("q", DType.INT8, (3,), quant=Quant.of(0.5, 10))
    reals = Tensor("r", DType.FLOAT32, (3,))
    assert translated(np.int8([10, 12, 0]), codes, reals).tolist() == [0, 1, -5]
    assert translated(F([0, 1, 100]), reals, codes).tolist() == [10, 12, 127]
    assert translated(F([np.nan, 0, 0]), reals, codes)[0] == 10


def test_data_of_the_user(tmp_path: Path) -> None:
    samples = RNG.random((3, 8, 8, 1)).astype(F)
    np.save(tmp_path / "x.npy", samples)
    np.savez(tmp_path / "x.npz", image=samples, other=1)
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, sample in enumerate(samples):
        np.save(folder / f"{number}.npy", sample)
    found = [diff(F32, INT8, data=tmp_path / n) for n in ("x.npy", "x.npz", "folder")]
    found.append(diff(F32, INT8, data=samples))
    assert {d.runs for d in found} == {3}
    assert len({d.outputs[0].real for d in found}) == 1
    assert diff(F32, INT8, data=samples, runs=2).runs == 2
    one = diff(F32, data=samples[:1])
    assert one.runs == 1 and one.reference["delegates"] == ["reference"]


def test_names_of_the_signature_fit_too() -> None:
    model = load(F32)
    assert model.main.ops
    model.main.inputs[0].name = "serving_default_image:0"
    samples = RNG.random((2, 8, 8, 1)).astype(F)
    assert diff(model, INT8, data={"image": samples, "more": samples}, **EXACT).runs == 2


@pytest.mark.parametrize("data", [None, np.float32([[0, 1.4, 200, 7]])])
def test_plain_integers_against_floats(data: Any) -> None:
    """A model that takes pixels as they are, and one that takes them as floats."""
    graph = Graph()
    x = graph.input("x", DType.UINT8, (1, 4))
    y, z = (graph.tensor(n, DType.FLOAT32, (1, 4)) for n in "yz")
    graph.add("CAST", [x], [y], in_data_type="UINT8", out_data_type="FLOAT32")
    graph.add("ABS", [y], [z])
    graph.outputs = [z]
    output = diff(small(), Model([graph]), data=data, runs=3, **EXACT).outputs[0].real
    # Random ones are whole and fill the range of the integers; given ones are rounded for them.
    assert output.max_error == pytest.approx(0 if data is None else 0.4)


def test_pictures(tmp_path: Path) -> None:
    from PIL import Image

    for number in range(2):
        pixels = RNG.integers(0, 256, (9, 7)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    assert diff(F32, INT8, data=tmp_path).runs == 2
    text = call(F32, INT8, "--data", tmp_path / "0.png", "--mean", "0", "--std", "255").stdout
    assert "Num evaluation runs: 1\n" in text


def test_outputs_are_coupled_by_name_or_shape() -> None:
    def two(first: str, second: str, swap: bool = False) -> Model:
        graph = Graph()
        x = graph.input("x", DType.FLOAT32, (1, 4))
        y = graph.tensor(first, DType.FLOAT32, (1, 4))
        z = graph.tensor(second, DType.FLOAT32, (4, 1))
        graph.add("ABS", [x], [y])
        graph.add("RESHAPE", [x, graph.constant("s", np.int32([4, 1]))], [z])
        graph.outputs = [z, y] if swap else [y, z]
        return Model([graph])

    for other in (two("a", "b", swap=True), two("c", "d", swap=True)):
        couples = couple(two("a", "b"), other, "outputs")
        assert [a.shape for a, _ in couples] == [b.shape for _, b in couples]
        assert diff(two("a", "b"), other, runs=2).outputs[1].real.max_error == 0


# -- the guide's tool -----------------------------------------------------------------------------


def test_the_guides_command_prints_its_lines(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "result.pb"
    text = call(f"--model_file={INT8}", "--delegate=xnnpack", "--num_runs=7",
                "--num_interpreter_threads=2", f"--output_file_path={path}").stdout  # fmt: skip
    number = r"[-+.\de]+"
    assert re.match(
        "Num evaluation runs: 7\n"
        rf"Reference run latency: avg={number}\(us\), std_dev=\d+\(us\)" "\n"
        rf"Test run latency: avg={number}\(us\), std_dev=\d+\(us\)" "\n"
        rf"OutputDiff\[0\]: avg_error={number}, std_dev={number}" "\n", text
    )  # fmt: skip
    metrics = dict(fields(path.read_bytes()))
    profile = list(fields(dict(fields(metrics[2]))[5]))
    assert metrics[1] == 7 and [n for n, _ in profile] == [1, 2, 3]
    average = struct.unpack("<d", dict(fields(profile[2][1]))[3])[0]
    assert f"avg_error={average:g}," in text


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
    if name in sanderling.delegate_names():
        pytest.skip(f"{name} is here")
    for words in ([f"--delegate={name}"], [f"--use_{name}=true"]):
        said = call(f"--model_file={F32}", *words, status=2).stderr
        assert f"there is no delegate '{name}'" in said and "the delegates here are" in said
    call(f"--model_file={F32}", f"--use_{name}=false", "--num_runs=1")


def test_flags_of_delegates_are_known() -> None:
    said = call(f"--model_file={F32}", "--num_runs=1", "--nnapi_accelerator_name", "edgetpu").stderr
    assert "--nnapi_accelerator_name has no effect without --use_nnapi=true" in said
    said = call(f"--model_file={F32}", "--use_nnapi=true", "--nnapi_accelerator_name=edgetpu",
                status=2).stderr  # fmt: skip
    assert "there is no delegate 'nnapi'" in said
    text = call(f"--model_file={F32}", "--num_runs=1", "--external_delegate_path=reference").stdout
    assert re.search(r"test +\S+ +sanderling reference", text)


def test_open_dimensions_do_not_hide_another_network() -> None:
    first, second = small(), small()
    for model, size in ((first, 4), (second, 5)):
        model.main.inputs[0].signature = (-1, size)
    with pytest.raises(InputError, match=r"f32\[-1,4\] .* against f32\[-1,5\]"):
        diff(first, second, runs=1)


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


def test_json_holds_it_all(tmp_path: Path) -> None:
    words = (F32, INT8, *BY_DEFINITION, "--runs", 3, "--per-tensor", "--bisect",
             "--max-relative", 1)  # fmt: skip
    record = json.loads(call(*words, "--json", "-").stdout)
    assert record["schema"] == "sanderling.diff/1" and record["ok"] is True
    assert record["outputs"][0]["real"]["runs"] == 3
    assert record["latency"]["test"]["count"] == 3
    assert [r["name"] for r in record["layers"]["layers"]] == [
        "hidden1", "hidden2", "flat", "logits", "probabilities"]  # fmt: skip
    assert record["bisect"]["verdict"] == "right already"


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_plots(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"error.{kind}"
    call(F32, INT8, *BY_DEFINITION, "--runs", 2, "--plot", path)
    content = path.read_bytes()
    assert {"png": b"\x89PNG", "svg": b"<?xml", "html": b"<!doctype"}[kind] == content[: 4 + (
        kind != "png") + 4 * (kind == "html")]  # fmt: skip
    if kind == "html":
        assert b"hidden2" in content and b"<svg" in content


# -- layers ---------------------------------------------------------------------------------------


def damaged(path: str, layer: int, noise: float = 0.1, channel: int | None = None) -> Model:
    """A copy with one layer's weights perturbed."""
    model = load(path)
    weights = model.main.ops[layer].inputs[1]
    assert weights is not None and weights.data is not None
    old = weights.data.astype(np.float64)
    change = np.random.default_rng(0).normal(size=old.shape) * noise * np.abs(old).max()
    if channel is not None:
        change[np.arange(len(old)) != channel] = 0
    limits = weights.dtype.bounds if weights.dtype.is_integer else (-np.inf, np.inf)
    new = np.clip(old + change, *limits)
    weights.data = np.rint(new) if weights.dtype.is_integer else new
    return model


@pytest.mark.parametrize("path", [F32, INT8])
@pytest.mark.parametrize("layer", [0, 1, 3])
def test_the_damaged_layer_is_named(path: str, layer: int) -> None:
    found = diff(path, damaged(path, layer), runs=3, per_tensor=True, **EXACT).layers
    assert found is not None
    assert found.first_divergence is not None and found.first_divergence.index == layer
    assert found.first_difference is not None and found.first_difference.index == layer
    assert [r.index for r in found.rows if r.suspect] == [layer]  # and no other
    assert found.worst[0].index == layer
    assert found.rows[layer].weights_relative > 0.01  # type: ignore[operator]
    assert found.rows[-1].accumulated.relative > 0 and found.rows[-1].local.relative == 0


@pytest.mark.parametrize("path", [F32, INT8])
def test_a_damaged_channel_is_named(path: str) -> None:
    found = diff(path, damaged(path, 1, channel=7), runs=3, per_tensor=True, **EXACT).layers
    assert found is not None
    assert [c for c, _ in found.rows[1].worst_channels] == [7]


def test_a_slight_damage_is_the_first_difference() -> None:
    found = diff(F32, damaged(F32, 1, noise=1e-5), runs=2, per_tensor=True, **EXACT).layers
    assert found is not None and found.first_divergence is None
    assert found.first_difference is not None and found.first_difference.index == 1


def test_damage_is_named_on_the_command_line(tmp_path: Path) -> None:
    save(damaged(F32, 1), tmp_path / "bad.tflite")
    text = call(F32, tmp_path / "bad.tflite", "--per-tensor", "--bisect", "--runs", 3).stdout
    assert "first divergence: CONV_2D 'hidden2' (op 1): local relative error" in text
    assert "bisect: 1 of 5 ops must be taken from the reference" in text
    assert text.rstrip().endswith("CONV_2D 'hidden2' (op 1)")


def test_sound_quantisation_is_rounding_alone() -> None:
    """RMSE over scale of a layer that is right is near 1/sqrt(12)."""
    found = diff(F32, INT8, runs=5, per_tensor=True).layers
    assert found is not None and not any(r.suspect for r in found.rows)
    for row in found.rows[:2]:
        assert row.local_rmse_scale == pytest.approx(12**-0.5, abs=0.05)
    assert found.rows[2].local_rmse_scale == 0  # a reshape moves values


def test_a_layer_that_lost_its_scale_is_suspect(ranges: dict[str, tuple[float, float]]) -> None:
    cut = ranges | {"sum": (0.0, ranges["sum"][1] / 4)}  # three quarters of the range are cut off
    good, bad = (Twin(ranges=r, prefix="z").model for r in (ranges, cut))
    sound, cut_off = (diff(Twin().model, m, runs=3, per_tensor=True, **EXACT).layers
                      for m in (good, bad))  # fmt: skip
    assert sound is not None and cut_off is not None
    assert not any(r.suspect for r in sound.rows)
    assert sound.rows[0].op == "QUANTIZE" and sound.rows[-1].op == "DEQUANTIZE"
    assert sound.rows[-1].local.relative < 1e-6  # the rounding before it is not its own
    assert [r.op for r in cut_off.rows if r.suspect] == ["ADD"]
    assert (
        cut_off.first_divergence is not None and "RMSE/scale" in cut_off.first_divergence.reasons[0]
    )


def test_wrong_ops_of_a_delegate_are_seen_one_by_one(wrong: Any) -> None:
    wrong("hidden1", "logits")
    found = diff(F32, delegate_b=["wrong"], runs=2, per_tensor=True).layers
    assert found is not None
    assert [r.name for r in found.rows if r.suspect] == ["hidden1", "logits"]
    assert found.rows[1].local.relative < 1e-6 < found.rows[1].accumulated.relative


def test_state_does_not_confuse_layers() -> None:
    model = _svdf("f32", 1, 4, 3, 1, 3).model()
    found = diff(model, runs=4, per_tensor=True)
    assert found.layers is not None and found.outputs[0].real.relative < 1e-5
    assert not any(r.suspect for r in found.layers.rows)


def test_an_engine_is_looked_into_op_by_op(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    found = diff(F32, engine_b="litert", runs=2, per_tensor=True)
    assert found.outputs[0].real.relative < 1e-5
    assert found.layers is not None and len(found.layers.rows) == 5
    assert found.layers.rows[0].local.max_error < 1e-5
    save(damaged(F32, 1), tmp_path / "bad.tflite")
    bad = diff(F32, tmp_path / "bad.tflite", engine_b="litert", runs=2, per_tensor=True).layers
    assert bad is not None and [r.index for r in bad.rows if r.suspect] == [1]


def test_ops_that_quantise_on_the_fly_get_more_room() -> None:
    """int8 weights, floats in and out: how the floats are rounded is the engine's own affair."""

    def dense(scale: float) -> Model:
        graph = Graph()
        x = graph.input("x", DType.FLOAT32, (1, 16))
        y = graph.tensor("y", DType.FLOAT32, (1, 4))
        codes = np.random.default_rng(0).integers(-127, 128, (4, 16))
        w = graph.constant("w", codes, DType.INT8, quant=Quant.of(scale))
        graph.add("FULLY_CONNECTED", [x, w, None], [y], fused_activation_function="NONE")
        graph.outputs = [y]
        return Model([graph])

    suspects = []
    for change in (1.01, 1.1):
        found = diff(dense(0.01), dense(0.01 * change), runs=2, per_tensor=True, **EXACT).layers
        assert found is not None
        suspects.append(found.rows[0].suspect)
    assert suspects == [False, True]


@shared.NEEDS
def test_a_real_twin_is_matched_throughout() -> None:
    a, b = (shared.model(f"mlperftiny_resnet8_cifar10_{t}") for t in ("f32", "int8"))
    found = diff(a, b, runs=2, per_tensor=True, layer_runs=1, delegate_a=["reference"],
                 delegate_b=["reference"]).layers  # fmt: skip
    assert found is not None and len(found.rows) == 16
    assert not found.unmatched_test and not found.unmatched_reference


# -- matching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("fused", [(True, True), (True, False), (False, True), (False, False)])
def test_tensors_are_matched_under_other_names(
    fused: tuple[bool, bool], swap: bool, quantised: bool, ranges: dict[str, tuple[float, float]]
) -> None:
    a = Twin(fused[0])
    b = Twin(fused[1], ranges if quantised else None, prefix="z", swap=swap)
    pairs = match(a.graph, b.graph, zip(a.graph.inputs, b.graph.inputs, strict=True),
                  zip(a.graph.outputs, b.graph.outputs, strict=True))  # fmt: skip
    assert all(a.holds[p.a] == b.holds[p.b] for p in pairs)
    common = set(a.holds.values()) & set(b.holds.values())
    assert {b.holds[p.b] for p in pairs} >= common - {"x"}
    made = [t for op in b.graph.ops for t in op.outputs]
    assert [p.b for p in pairs] == [t for t in made if b.holds[t] in common]


@pytest.mark.parametrize("fused", [True, False])
def test_an_activation_may_be_in_a_range(
    fused: bool, ranges: dict[str, tuple[float, float]]
) -> None:
    a, b = Twin(fused), Twin(True, ranges, prefix="z", clamped=True)
    pairs = match(a.graph, b.graph, zip(a.graph.inputs, b.graph.inputs, strict=True),
                  zip(a.graph.outputs, b.graph.outputs, strict=True))  # fmt: skip
    assert {b.holds[p.b]: a.holds[p.a] for p in pairs} == {h: h for h in b.holds.values()}
    assert {p.how for p in pairs if b.holds[p.b] in ("stem", "sum", "down")} == {"range"}


def test_weights_tell_trained_siblings_apart_and_neighbours_the_damaged_one() -> None:
    a, b = Twin(), Twin(prefix="z", swap=True)
    ruined = next(t for t in b.graph.tensors if t.name == "zdown_w")
    ruined.data = RNG.normal(size=WEIGHTS["down"].shape)
    pairs = match(a.graph, b.graph, zip(a.graph.inputs, b.graph.inputs, strict=True),
                  zip(a.graph.outputs, b.graph.outputs, strict=True))  # fmt: skip
    how = {b.holds[p.b]: p.how for p in pairs if a.holds[p.a] == b.holds[p.b]}
    assert how["left"] == how["right"] == "weights" and how["down"] == "structure"


def test_a_normalisation_belongs_to_its_product() -> None:
    """CONV_2D, MUL, ADD, RELU against one CONV_2D with all of it folded in."""

    def net(folded: bool) -> tuple[Model, dict[str, str]]:
        graph, scale, shift = Graph(), RNG0.random(8) + 0.5, RNG0.normal(size=8)
        x = graph.input("in", DType.FLOAT32, (1, 4, 4, 4))
        w = RNG0.normal(size=(8, 1, 1, 4))
        made = w * scale.reshape(-1, 1, 1, 1) if folded else w
        bias = shift if folded else np.zeros(8)
        y = graph.tensor("conv" if not folded else "all", DType.FLOAT32, (1, 4, 4, 8))
        graph.add("CONV_2D", [x, graph.constant("w", made, DType.FLOAT32),
                              graph.constant("b", bias, DType.FLOAT32)], [y], padding="SAME",
                  stride_w=1, stride_h=1, fused_activation_function="NONE")  # fmt: skip
        for kind, constant in () if folded else (("MUL", scale), ("ADD", shift)):
            z = graph.tensor(kind.lower(), DType.FLOAT32, y.shape)
            graph.add(kind, [y, graph.constant(f"{kind} by", constant, DType.FLOAT32)], [z],
                      fused_activation_function="NONE")  # fmt: skip
            y = z
        end = graph.tensor("end", DType.FLOAT32, y.shape)
        graph.add("LOGISTIC", [y], [end])
        graph.outputs = [end]
        return Model([graph]), {}

    RNG0 = np.random.default_rng(1)
    a = net(False)[0]
    RNG0 = np.random.default_rng(1)
    b = net(True)[0]
    found = diff(a, b, runs=2, per_tensor=True, **EXACT)
    assert found.outputs[0].real.relative < 1e-5
    assert found.layers is not None
    assert [(r.reference_name, r.name) for r in found.layers.rows] == [
        ("add", "all"), ("end", "end")]  # fmt: skip
    assert found.layers.unmatched_reference == ["CONV_2D 'conv'", "MUL 'mul'"]


def test_names_lose_what_converters_add() -> None:
    assert name_pieces("a/Relu;b/BiasAdd;a/conv1") == {"a/Relu", "b/BiasAdd", "a/conv"}
    assert name_pieces("input_1_int8") == name_pieces("input_1:0") == {"input_1"}
    assert not name_pieces("Identity") and not name_pieces("StatefulPartitionedCall:0")


# -- bisecting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count,culprits", [
    (1, {0}), (40, {17}), (40, {0, 39}), (37, {3, 4, 30}), (5, {0, 1, 2, 3, 4}),
])  # fmt: skip
def test_the_search_finds_the_smallest_set(count: int, culprits: set[int]) -> None:
    asked: list[frozenset[int]] = []

    def right(chosen: frozenset[int]) -> bool:
        asked.append(chosen)
        return culprits <= chosen

    assert set(minimal(range(count), right)) == culprits
    assert len(asked) <= (len(culprits) + 1) * (np.ceil(np.log2(count + 1)) + 2)


def test_the_search_leaves_nothing_out_where_ops_depend_on_each_other() -> None:
    """Two faults that cancel out, or one of two is enough: still no op of the set can go."""

    def right(chosen: frozenset[int]) -> bool:
        return (3 in chosen or 9 in chosen) and (1 in chosen) == (6 in chosen)

    found = frozenset(minimal(range(12), right))
    assert right(found) and not any(right(found - {i}) for i in found)


@pytest.mark.parametrize("names", [["hidden2"], ["hidden1", "logits"], ["probabilities"]])
def test_bisect_finds_the_ops_of_a_wrong_delegate(names: list[str], wrong: Any) -> None:
    wrong(*names)
    found = diff(F32, delegate_a=["reference"], delegate_b=["wrong"], runs=3, bisect=True,
                 max_relative=1e-3)  # fmt: skip
    assert not found.ok and found.bisection is not None
    assert [o["name"] for o in found.bisection.ops] == names
    assert found.bisection.kind == "delegate" and found.bisection.candidates == 5
    assert 0 < found.bisection.tests <= 12


def test_bisect_in_a_long_chain_of_a_delegate(wrong: Any) -> None:
    wrong("y3", "y9")
    model = stack(quantised=False, layers=12, size=4, channels=8)
    sides: Any = {"delegate_a": ["reference"], "delegate_b": ["wrong"]}
    found = diff(model, **sides, runs=2, bisect=True, max_relative=1e-4)
    assert found.bisection is not None
    assert [o["index"] for o in found.bisection.ops] == [3, 9]
    # With the layers compared first, the search starts from the suspects.
    quick = diff(model, **sides, runs=2, bisect=True, per_tensor=True, max_relative=1e-4).bisection
    assert quick is not None and [o["index"] for o in quick.ops] == [3, 9]
    assert quick.tests < found.bisection.tests


@dataclass(eq=False)
class Sometimes(Wrong):
    """Wrong where its inputs are large."""

    def compile(self, part: Graph, options: Any) -> Any:
        good, bad = (Wrong(names).compile(part, options) for names in ((), self.names))
        return SimpleNamespace(run=lambda inputs, outputs: (
            bad if max(a.max() for a in inputs) > 0.5 else good).run(inputs, outputs))  # fmt: skip


def test_bisect_looks_at_the_worst_samples() -> None:
    samples = RNG.random((9, 8, 8, 1)).astype(F) / 3
    samples[6] *= 3
    found = diff(F32, delegate_a="reference", delegate_b=Sometimes(["hidden1"]), data=samples,
                 bisect=True, bisect_runs=1, max_relative=1e-3).bisection  # fmt: skip
    assert found is not None and [o["name"] for o in found.ops] == ["hidden1"]


PLUGIN = """
import numpy as np
import sanderling
from sanderling.delegates.reference import ReferenceExecutable


class Twisted:
    '''Computes FULLY_CONNECTED upside down.'''

    name = "twisted"

    def refuses(self, op):
        return None if op.name in ("CONV_2D", "FULLY_CONNECTED") else "not a product"

    def compile(self, part, options):
        return Run(part, ReferenceExecutable(part, options.state))


class Run:
    def __init__(self, part, right):
        self.part, self.right = part, right

    def run(self, inputs, outputs):
        self.right.run(inputs, outputs)
        if any(op.name == "FULLY_CONNECTED" for op in self.part.ops):
            outputs[-1][...] = -outputs[-1]


sanderling.register_delegate("twisted", Twisted)
"""


def test_bisect_with_a_plugin(tmp_path: Path) -> None:
    (tmp_path / "twisted.py").write_text(PLUGIN)
    words = (F32, "--plugin", tmp_path / "twisted.py", "--delegate-b", "twisted", "--bisect",
             "--runs", 2, "--min-cosine", 0.999)  # fmt: skip
    result = call(*words, status=1)
    assert "bisect: 1 of 3 ops must leave the delegate" in result.stdout
    assert "FULLY_CONNECTED 'logits' (op 3)" in result.stdout
    assert "does not hold: output 0 'probabilities': cosine" in result.stderr
    sanderling.runtime.delegate._registered.pop("twisted")


def test_bisect_says_when_there_is_nothing_to_find(wrong: Any) -> None:
    wrong()
    found = diff(F32, delegate_b=["wrong"], runs=2, bisect=True).bisection
    assert found is not None and found.verdict == "right already"
    assert "nothing to bisect" in str(found)


@pytest.mark.parametrize("layers", [[1], [0, 3]])
def test_bisect_names_the_layers_to_take_from_the_reference(layers: list[int]) -> None:
    bad = damaged(F32, layers[0], noise=0.3)
    for layer in layers[1:]:
        mine, other = (
            bad.main.ops[layer].inputs[1],
            damaged(F32, layer, 0.3).main.ops[layer].inputs[1],
        )
        assert mine is not None and other is not None
        mine.data = other.data  # type: ignore[assignment]
    found = diff(F32, bad, runs=3, bisect=True, max_relative=1e-3, **EXACT).bisection
    assert found is not None and found.kind == "layers"
    assert [o["index"] for o in found.ops] == layers


def test_bisect_of_float_against_int8(ranges: dict[str, tuple[float, float]]) -> None:
    """The layer whose range was cut must stay float; that alone makes the answer right."""
    cut = ranges | {"down": (0.0, ranges["down"][1] / 10)}
    bad = Twin(ranges=cut, prefix="z")
    found = diff(Twin(fused=False).model, bad.model, runs=2, bisect=True, max_relative=0.1,
                 **EXACT)  # fmt: skip
    assert not found.ok and found.bisection is not None
    names = {t.name: holds for t, holds in bad.holds.items()}
    # The mean reads it: it has to be float too, or the cut is only made later.
    assert {names[o["name"]] for o in found.bisection.ops} <= {"down", "mean"}
    assert "down" in {names[o["name"]] for o in found.bisection.ops}


def test_an_interrupted_search_keeps_what_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sanderling.evaluate.diff.bisect_layers", stop)
    result = call(F32, INT8, *BY_DEFINITION, "--runs", 2, "--bisect", status=130)
    assert "Num evaluation runs: 2\n" in result.stdout and "interrupted" in result.stderr


# -- bad input ------------------------------------------------------------------------------------


def small(inputs: int = 1, shape: tuple[int, ...] = (1, 4)) -> Model:
    graph = Graph()
    xs = [graph.input(f"x{i}", DType.FLOAT32, shape) for i in range(inputs)]
    y = graph.tensor("y", DType.FLOAT32, shape)
    graph.add("ABS", [xs[0]], [y])
    graph.outputs = [y]
    return Model([graph])


@pytest.mark.parametrize("words,said", [
    ([], "no model is given"),
    ([F32, "--model_file", F32], "both name the reference"),
    (["nowhere.tflite"], "nowhere.tflite"),
    ([F32, "two.tflite"], "the models have 1 and 2 inputs"),
    ([F32, "other.tflite"], "f32[1,8,8,1] 'image' against f32[1,4] 'x0'"),
    ([F32, "broken.tflite"], "broken.tflite"),
    ([F32, "--runs", "0"], "0 runs compare nothing"),
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


def test_networks_that_have_nothing_in_common() -> None:
    other = small()
    other.main.ops[0].name = "FLOOR"
    with pytest.raises(InputError, match="no tensor of one model was recognised"):
        diff(small(), other, runs=1, per_tensor=True)


def test_an_unknown_limit() -> None:
    with pytest.raises(InputError, match="no limit 'max_eror'"):
        diff(F32, max_eror=1.0)
