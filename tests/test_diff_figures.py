"""`sanderling diff`: errors are what NumPy says they are, of inputs that both sides get alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling import Model, Quant, diff, load
from sanderling.evaluate.differences.diff_inputs import couple, gaussian, translated
from sanderling.evaluate.error_measures import ErrorLimits, Tally, TopTally
from sanderling.evaluate.images.preprocess import load_pipeline
from sanderling.ir import DType, Graph, Tensor
from sanderling.runtime.inputs import dequantize_array

from .support.diff_command import BY_DEFINITION, EXACT, F32, INT8, F, call, small

RNG = np.random.default_rng(8)


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
        (found.avg_error, np.mean(means)),
        (found.std_dev, np.std(means)),
        (found.max_error, np.abs(a - b).max()),
        (found.rmse, np.sqrt(np.mean((a - b) ** 2))),
        (found.relative, np.linalg.norm(a - b) / np.linalg.norm(a)),
        (found.cosine, np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b)),
        (found.snr_db, 10 * np.log10((a**2).sum() / ((a - b) ** 2).sum())),
        (found.min_error, min(means)),
        (found.max_mean_error, max(means)),
    ):
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
    assert list(ErrorLimits(max_error=9).broken("o", found, None, {}))  # a NaN never holds


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


def test_pictures_by_a_preset(tmp_path: Path) -> None:
    """The same as the arrays that the preset makes of them."""
    from PIL import Image

    Image.fromarray(RNG.integers(0, 256, (20, 30)).astype(np.uint8)).save(tmp_path / "a.png")
    preset = load_pipeline("unit")
    made = preset(tmp_path / "a.png", load(F32).main.inputs[0])[0]
    answers = [
        diff(F32, INT8, data=given, picture=how, **EXACT).outputs[0].real.avg_error
        for given, how in ((tmp_path, preset), (made, None), (tmp_path, None))
    ]
    assert answers[0] == pytest.approx(answers[1], rel=0.05) and answers[0] != answers[2]
    call(F32, INT8, "--data", tmp_path, "--preset", "unit", *BY_DEFINITION)
    said = call(F32, INT8, "--data", tmp_path, "--preset", "untidy", status=2).stderr
    assert "there is no preset 'untidy'" in said


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
