"""Calibration: exact whatever the order, continued after an interruption, clear about bad data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from sanderling import dump
from sanderling.errors import InputError, ModelError
from sanderling.ir import Array, DType, Graph, Model, Op, Signature
from sanderling.optimize.calibration import calibrate as module
from sanderling.optimize.calibration.calibrate import (
    Observer,
    Statistics,
    calibrate,
    sample_statistics,
)
from sanderling.optimize.calibration.ranges import METHODS
from sanderling.optimize.correcting.calibrated import DataWarning
from sanderling.optimize.correcting.parallel import in_parallel, one_thread_each
from sanderling.optimize.modes.scheme import Grid
from sanderling.optimize.quantize import quantize

from .support.mobile_net import mobile, samples

pytestmark = pytest.mark.usefixtures("uncompiled")
DATA = samples(20)
QUICK: dict[str, Any] = {"ranges": "mse", "weights": "max", "corrections": "adaround,bias"}


def statistics(*arrays: Array) -> Statistics:
    made = Statistics()
    for i, array in enumerate(arrays):
        one = sample_statistics(array, i, by_channel=True)
        assert one is not None
        made.add(one)
    return made


# -- the same, whatever the order -----------------------------------------------------------------


def test_any_order_gives_the_same_file() -> None:
    model = mobile()
    first, report = quantize(model, "int8", DATA)
    order = np.random.default_rng(1).permutation(len(DATA))
    second, _ = quantize(model, "int8", (DATA[i] for i in order))  # once through, and no length
    assert bytes(dump(first)) == bytes(dump(second))
    assert 0 < report.samples < len(DATA)  # some were held out


class Stop(KeyboardInterrupt):
    pass


def stopping(count: int) -> Iterator[Array]:
    yield from DATA[:count]
    raise Stop


def test_an_interruption_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, keep = mobile(), tmp_path / "statistics.npz"
    whole, _ = quantize(model, "int8", DATA, **QUICK)
    with pytest.raises(Stop):
        quantize(model, "int8", stopping(9), keep=keep, **QUICK)
    assert keep.is_file()
    runs: list[int] = []
    observe = Observer.observe

    def counted(self: Observer, feeds: Any, phase: int, number: int, found: Any) -> None:
        runs.append(number)
        observe(self, feeds, phase, number, found)

    monkeypatch.setattr(Observer, "observe", counted)
    resumed, report = quantize(model, "int8", DATA[::-1], keep=keep, **QUICK)
    assert bytes(dump(resumed)) == bytes(dump(whole))
    assert 0 < len(runs) < report.samples  # what was seen is not run again
    runs.clear()
    again, _ = quantize(model, "int8", DATA, keep=keep, **QUICK)
    assert bytes(dump(again)) == bytes(dump(whole)) and not runs


def test_a_sample_that_comes_twice_counts_twice(tmp_path: Path) -> None:
    keep, x = tmp_path / "kept.npz", DATA[0]
    for data in ([x], [x, x, DATA[1]]):
        kept = calibrate(Observer(mobile(), 1), data, keep)
    plain = calibrate(Observer(mobile(), 1), [DATA[1], x, x])
    for name, seen in plain.tensors.items():
        assert np.array_equal(seen.counts, kept.tensors[name].counts)
        assert seen.mean_extremes == kept.tensors[name].mean_extremes


def test_kept_statistics_are_of_one_model(tmp_path: Path) -> None:
    keep = tmp_path / "kept.npz"
    quantize(mobile(), "int8", DATA[:3], keep=keep, **QUICK)
    with pytest.raises(InputError, match="of another model"):
        quantize(mobile(seed=6), "int8", DATA[:3], keep=keep, **QUICK)
    keep.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="cannot be read"):
        quantize(mobile(), "int8", DATA[:3], keep=keep, **QUICK)


# -- statistics -----------------------------------------------------------------------------------


def test_statistics_are_exact_and_bounded() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 10.0**k, (300, 7)).astype(np.float32) for k in (-3, 0, 3)]
    seen, other = statistics(*arrays), Statistics()
    for i in (2, 0, 1):
        one = sample_statistics(arrays[i], i, by_channel=True)
        assert one is not None
        other.add(one)
    everything = np.concatenate(arrays)
    assert (seen.low, seen.high) == (float(everything.min()), float(everything.max()))
    assert seen.mean_extremes == other.mean_extremes
    assert seen.mean_extremes[0] == math.fsum(float(a.min()) for a in arrays) / 3
    assert seen.lows is not None
    assert np.array_equal(seen.lows, np.min([a.min(0) for a in arrays], 0))
    values, counts = seen.values()
    assert counts.sum() == 3 * 2100 and (np.diff(values) > 0).all()
    # A bucket is as wide as 1/128 of its value.
    exact = np.sort(everything.reshape(-1))
    np.testing.assert_allclose(np.repeat(values, counts), exact, rtol=1 / 128, atol=1e-30)


def test_a_large_tensor_is_counted_in_part_but_its_extremes_are_exact() -> None:
    values = np.arange(64 * 64 * 96, dtype=np.float32).reshape(1, 64, 64, 96) % 96
    values[0, 17, 3, 5], values[0, 1, 1, 1] = 1e6, -1e6
    seen = sample_statistics(values, phase=12345)
    assert seen is not None and (seen.low, seen.high) == (-1e6, 1e6)
    assert seen.counts.sum() <= module.MOST_COUNTED
    held = np.flatnonzero(seen.counts)
    assert len(held) >= 80  # of every channel, not of those at one place


def test_the_higher_the_power_the_less_is_clipped() -> None:
    tails = np.random.default_rng(0).laplace(0, 1, (200, 500)).astype(np.float32)
    ends = [METHODS[m](statistics(tails), Grid(8, symmetric=False))[1] for m in ("mse", "l3")]
    assert 3 < ends[0] < ends[1] < tails.max()


@pytest.mark.parametrize("method", METHODS)
def test_methods_find_ranges(method: str) -> None:
    rng = np.random.default_rng(0)
    grid = Grid(8, symmetric=False)
    plain = rng.normal(1, 1, (200, 50)).astype(np.float32)
    low, high = METHODS[method](statistics(plain), grid)
    assert -6 < low < -1.5 and 3 < high < 7
    outlier = plain.copy()
    outlier[3, 4] = 100.0
    far = METHODS[method](statistics(outlier, *[plain] * 9), grid)[1]
    # One value of a hundred thousand: cubed, its error outweighs nearly everybody's steps.
    assert far == 100 if method == "minmax" else far < (100 if method == "l3" else 95)
    zeros = METHODS[method](statistics(np.zeros((4, 4), np.float32)), grid)
    assert zeros == (0.0, 0.0)


def blas_threads() -> list[int]:
    return [x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"]


def test_products_take_one_thread_each() -> None:
    before = blas_threads()
    with one_thread_each():
        assert blas_threads() == [1] * len(before)
        assert in_parallel(lambda i: i * i, range(9)) == [i * i for i in range(9)]
    assert blas_threads() == before


# -- bad data -------------------------------------------------------------------------------------


def spoilt(what: float) -> Iterator[Array]:
    yield from DATA[:2]
    bad = DATA[2].copy()
    bad[0, 4, 4, 1] = what
    yield bad


@pytest.mark.parametrize(("what", "word"), [(math.nan, "NaN"), (math.inf, "infinite")])
def test_values_that_are_not_real_are_named(what: float, word: str) -> None:
    with pytest.raises(ModelError, match=rf"sample 3: tensor 'x'.*{word}"):
        calibrate(Observer(mobile(), 1), spoilt(what))


def test_an_op_that_makes_nan_is_named(tmp_path: Path) -> None:
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, 4))
    y = graph.tensor("root", DType.FLOAT32, (1, 4))
    graph.append(Op("SQRT", [x], [y]))
    graph.outputs = [y]
    good, keep = np.ones((1, 4), np.float32), tmp_path / "kept.npz"
    with pytest.raises(ModelError, match=r"sample 2: tensor 'root'.*NaN"):
        calibrate(Observer(Model([graph]), 1), [good, -good], keep)
    # What was good is kept, and nothing of what was not.
    kept = calibrate(Observer(Model([graph]), 1), [good], keep)
    assert kept.tensors["x"].low == 1 and kept.tensors["x"].samples == 1


@pytest.mark.parametrize(
    ("sample", "word"),
    [
        (np.zeros((1, 5, 5, 3), np.float32), "shape"),
        (np.zeros((1, 12, 12, 3), np.complex64), "complex64"),
        ({"y": DATA[0]}, "there is no input 'y'"),
        ([DATA[0], DATA[0]], "2 arrays"),
    ],
)
def test_a_sample_that_does_not_fit_is_numbered(sample: Any, word: str) -> None:
    with pytest.raises(InputError, match="sample 2") as caught:
        quantize(mobile(), "int8", [DATA[0], sample])
    assert word in str(caught.value)


def test_no_samples() -> None:
    with pytest.raises(InputError, match="not a single sample"):
        quantize(mobile(), "int8", [])
    with pytest.warns(DataWarning, match="noise"):
        _, report = quantize(mobile(), "int8", **QUICK)
    assert any("do not ship" in note for note in report.notes)


def test_every_number_of_samples_is_enough() -> None:
    for x in DATA[:6]:  # one that would be held out, too
        _, report = quantize(
            mobile(), "int8", [x[0]], ranges="minmax", weights="max", corrections="none"
        )
        assert report.samples == 1


# -- signatures -----------------------------------------------------------------------------------


def test_samples_by_signature() -> None:
    plain, _ = quantize(mobile(), "int8", DATA[:6], **QUICK)
    model = mobile()
    graph = model.main
    model.signatures = [
        Signature("look", graph, {"picture": graph.inputs[0]}, {"y": graph.outputs[0]})
    ]
    by_name = [{"picture": x} for x in DATA[:6]]
    for data in ({"look": by_name}, by_name):
        made, _ = quantize(model, "int8", data, **QUICK)
        assert _constants(made) == _constants(plain)
    with pytest.raises(InputError, match="no signature 'see'"):
        quantize(model, "int8", {"see": by_name}, **QUICK)


def _constants(model: Model) -> list[bytes]:
    return [
        t.data.tobytes()
        for op in model.main.ops
        for t in op.inputs
        if t is not None and t.data is not None
    ]


def test_a_signature_of_another_graph() -> None:
    model, other = mobile(), mobile()
    model.graphs.append(other.main)
    keys = zip(("one", "other"), model.graphs, strict=True)
    model.signatures = [
        Signature(key, graph, {"x": graph.inputs[0]}, {"y": graph.outputs[0]})
        for key, graph in keys
    ]
    made, report = quantize(model, "int8", {"one": DATA[:6], "other": DATA[:6]}, **QUICK)
    assert not report.stayed_float
    for key in ("one", "other"):
        graph = made.signature(key).graph
        assert [t.dtype.short for t in (*graph.inputs, *graph.outputs)] == ["f32", "f32"]
        assert "i8" in {t.dtype.short for op in graph.ops for t in op.outputs}
    _, report = quantize(model, "int8", {"one": DATA[:6]}, **QUICK)
    assert all("never reached" in row["reason"] for row in report.stayed_float)
    assert report.stayed_float
