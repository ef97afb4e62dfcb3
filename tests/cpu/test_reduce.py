"""Reductions, softmax, norms and arg max on the cpu delegate."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.delegates.cpu.kernels.reduce import along_axis, reductions, rowwise
from sanderling.delegates.cpu.passes.pipeline import prepare
from sanderling.ir import Array, DType, Graph, Model
from tests.conformance.harness import Case, case, const, f32, i8, i16, i32, i64, u8
from tests.support.aarch64_qemu import QEMU
from tests.support.cpu_conformance import (
    EVERYTHING,
    RUNNABLE,
    TARGET_NAMES,
    cases_of,
    check_cpu,
    cpu_for,
    in_turns,
    run,
    share_of,
)

EMULATED = QEMU is not None

OPS = [name for module in (reductions, rowwise, along_axis) for name in module.KERNELS]
# Every case runs on the cpu, unless one of these is the reason.
EXCUSES = (
    "has no kernel",
    "shape is not known",
    "bools are not",
    "run time",
    "rows of none",
    "negative beta",
)


@pytest.mark.parametrize(("row", "target"), in_turns(cases_of(*OPS)))
def test_conformance(row: Case, target: str) -> None:
    said = check_cpu(row, target, emulate=EMULATED and target.startswith("neon"))
    assert not said or any(e in said for e in EXCUSES), said


# -- shapes around every vector --------------------------------------------------------------------

AXES = [((5, 200), [1]), ((5, 17), [1]), ((200, 5), [0]), ((40, 70), [0]), ((3, 20, 33), [1]),
        ((3, 20, 33), [0, 2]), ((2, 3, 4, 150), [0, 2]), ((2, 3, 4, 5), [1, 3]), ((6, 7), [0, 1]),
        ((2, 9, 9, 24), [1, 2])]  # fmt: skip


@pytest.mark.parametrize("target", TARGET_NAMES if EVERYTHING else TARGET_NAMES[:1])
def test_axes(target: str) -> None:
    names = ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_PROD")
    every = [*product(AXES, names, (f32, i32, i8))]
    for (shape, axes), name, make in share_of(every, target, host=5):
        scale = {"scale": 0.1, "zp": 4} if make is i8 else {}
        if make is i8 and name == "REDUCE_PROD":
            continue
        small = {"low": -2, "high": 2} if name == "REDUCE_PROD" else {}
        row = case(
            name,
            make(*shape, **scale, **small),
            const(axes, "i32"),
            out=[make(**scale)],
            keep_dims=False,
        )
        assert check_cpu(row, target, threads=2) == ""


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("name", ["SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"])
def test_rows(name: str, target: str) -> None:
    codes = {
        "SOFTMAX": (1 / 256, -128),
        "LOG_SOFTMAX": (1 / 16, 127),
        "L2_NORMALIZATION": (1 / 128, 0),
    }
    scale, zero = codes[name]
    more: dict[str, Any] = {"beta": 1.0} if name == "SOFTMAX" else {}
    for shape in share_of(((3, 2), (7, 15), (5, 16), (4, 65), (2, 1001)), target):
        assert check_cpu(case(name, f32(*shape), **more), target, threads=2) == ""
        row = case(name, i8(*shape, scale=0.1), out=[i8(scale=scale, zp=zero)], **more)
        assert check_cpu(row, target) == ""
        row = case(
            name, u8(*shape, scale=0.1, zp=100), out=[u8(scale=scale, zp=zero + 128)], **more
        )
        assert check_cpu(row, target) == ""


@pytest.mark.parametrize("name", ["REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"])
def test_codes_on_one_side_only(name: str) -> None:
    """Only the side with a scale would move to the other 8-bit type."""
    for x, y in ((i8(4, 3), i8(scale=0.1)), (i8(4, 3, scale=0.1), i8())):
        if name != "REDUCE_PROD" or x.scale is None:
            assert "only one of" in check_cpu(case(name, x, const([1], "i32"), out=[y]))


@pytest.mark.parametrize("target", RUNNABLE)
def test_what_is_no_number_has_no_length(target: str) -> None:
    for length in (3, 20, 100):
        x = np.linspace(-2, 2, 2 * length, dtype=np.float32).reshape(2, length)
        x[1, 2] = np.nan
        row = case("L2_NORMALIZATION", const(x, fed=True), tol=1e-6)
        assert check_cpu(row, target) == ""


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_places(target: str) -> None:
    rows = (((3, 9), 1), ((4, 50), 1), ((50, 4), 0), ((2, 6, 70), 1), ((1000,), 0))
    for shape, axis in share_of(rows, target):
        for source in (f32(*shape), i8(*shape, scale=0.1), i32(*shape, low=-3, high=3)):
            for name, out in (("ARG_MAX", i32()), ("ARG_MIN", i64())):
                row = case(name, source, const(axis, "i32"), out=[out])
                assert check_cpu(row, target, threads=2) == ""


@pytest.mark.parametrize("target", RUNNABLE)
def test_softmax_makes_no_denormal_numbers(target: str) -> None:
    """They would slow down whatever reads them; NaN still spoils its row, and only that."""
    for length in (20, 100, 1000):
        model = case("SOFTMAX", f32(3, length), beta=1.0).model()
        x = np.linspace(-200, 0, 3 * length).reshape(3, length).astype(np.float32)
        x[1, 3], x[2, 5] = np.nan, -np.inf
        found = np.asarray(model.compile([cpu_for(target)])(x))
        assert np.all(np.isnan(found[1]))
        rows = found[::2]
        assert not np.any((rows > 0) & (rows < np.finfo(np.float32).tiny))
        np.testing.assert_allclose(rows.sum(axis=1), 1, rtol=1e-5)
        np.testing.assert_allclose(rows, _softmax(x[::2]), atol=1e-6)


@pytest.mark.parametrize("beta", [-0.3, -100.0, -1e30])
def test_softmax_of_a_negative_beta_is_the_definitions(beta: float) -> None:
    """Its powers overflow, and LiteRT's answer is then no number."""
    for length in (5, 100):
        row = case("SOFTMAX", f32(3, length, low=-3, high=3), beta=beta)
        assert "negative beta" in check_cpu(row)


def _softmax(x: Array) -> Array:
    powers = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    found: Array = powers / powers.sum(axis=-1, keepdims=True)
    return found


SELECTIONS = [(20, 9), (17, 17), (100, 64), (100, 65), (300, 130), (1000, 100), (700, 700)]


@pytest.mark.parametrize("target", RUNNABLE)
def test_the_largest_in_order(target: str) -> None:
    """By selection and by a list; among ties, zeros and NaN the first come first."""
    rng = np.random.default_rng(7)
    for n, k in [*SELECTIONS, (50, 3)]:
        for make, dtype in ((f32, np.float32), (i32, np.int32), (i8, np.int8), (i64, np.int64)):
            model = case("TOPK_V2", make(3, n), const(k, "i32"), out=[make(), i32()]).model()
            x = rng.integers(-60, 60, (3, n)).astype(dtype)
            if dtype is np.float32:
                for first, value in enumerate((np.nan, 0.0, -0.0, -np.inf, np.inf)):
                    x.reshape(-1)[first :: 7 + first] = value
            values, places = model.compile([cpu_for(target)])(x)
            wanted = model.compile(["reference"])(x)
            np.testing.assert_array_equal(places, wanted[1])
            np.testing.assert_array_equal(values, wanted[0])


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("name", ["SUM", "MEAN"])
def test_sums_of_codes_are_exact(name: str, target: str) -> None:
    """To the last unit of the definition's fixed point."""
    for make, zero in ((i8, 3), (i16, 0)):
        for shape, axes, scale in (((40, 70), [0], 0.07), ((5, 200), [1], 0.013)):
            row = case(
                name,
                make(*shape, scale=0.05, zp=zero),
                const(axes, "i32"),
                out=[make(scale=scale, zp=zero)],
                keep_dims=False,
            )
            model = row.model()
            feeds = row.arrays(model, np.random.default_rng(8))
            found, wanted = (run(model.compile([d]), feeds) for d in (cpu_for(target), "reference"))
            np.testing.assert_array_equal(found[0], wanted[0])


# -- layer normalisation ---------------------------------------------------------------------------


def _layer_norm(shape: tuple[int, ...]) -> Model:
    """As converters write it."""
    graph, f = Graph(), DType.FLOAT32
    rng = np.random.default_rng(0)
    rows, length = (*shape[:-1], 1), shape[-1]
    x = graph.input("x", f, shape)
    last = graph.constant("last", np.array([len(shape) - 1], np.int32))
    gamma, beta = (graph.constant(n, rng.normal(size=length).astype(np.float32)) for n in "gb")
    mean, var, eps, inv, both, minus = (
        graph.tensor(n, f, rows) for n in ("mean", "var", "eps", "inv", "both", "minus")
    )
    sq, a, b, c, y = (graph.tensor(n, f, shape) for n in ("sq", "a", "b", "c", "y"))
    graph.add("MEAN", [x, last], [mean], keep_dims=True)
    graph.add("SQUARED_DIFFERENCE", [x, mean], [sq])
    graph.add("MEAN", [sq, last], [var], keep_dims=True)
    graph.add("ADD", [var, graph.constant("epsilon", np.float32(1e-5))], [eps])
    graph.add("RSQRT", [eps], [inv])
    graph.add("MUL", [inv, mean], [both])
    graph.add("SUB", [graph.constant("zero", np.float32(0)), both], [minus])
    graph.add("MUL", [x, inv], [a])
    graph.add("ADD", [a, minus], [b])
    graph.add("MUL", [b, gamma], [c])
    graph.add("ADD", [c, beta], [y])
    graph.outputs = [y]
    return Model([graph])


def test_layer_norm_is_one_step() -> None:
    graph = _layer_norm((4, 384)).main
    prepare(graph, host_target())
    assert [op.name for op in graph.ops] == ["cpu.LAYER_NORM"]


@pytest.mark.parametrize("target", RUNNABLE)
def test_layer_norm(target: str) -> None:
    for shape in ((1, 5, 384), (7, 30), (3, 5)):
        model = _layer_norm(shape)
        x = np.random.default_rng(1).normal(2, 3, shape).astype(np.float32)
        wanted = model.compile(["reference"])(x)
        found = model.compile([cpu_for(target)])(x)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
