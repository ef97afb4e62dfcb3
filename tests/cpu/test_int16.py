"""Products and functions of int16 codes: the definitions' answers bit for bit, on every target,
however large the sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.codegen.rounding import Rounding, short
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, runnable
from sanderling.delegates.cpu.kernels.products.cores import PairCore, WordCore, chunk_of, far
from sanderling.ir import Array, DType, Graph, Model, Quant
from tests.conformance.harness import Case, T, case, const, i16, weights
from tests.support.aarch64_qemu import QEMU
from tests.support.cpu_conformance import (
    RUNNABLE,
    TARGET_NAMES,
    check_cpu,
    cpu_for,
    reasons_against,
    refused,
    run,
    run_emulated,
)

EMULATED = [name for name in TARGET_NAMES if TARGETS[name].triple.startswith("aarch64") and QEMU]
TRIED = [*RUNNABLE, *EMULATED]
WINDOW: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}


def _exact(model: Model, target: str, arrays: list[Array]) -> Array:
    """All ops are compiled, and the answer is the definition's."""
    delegate = cpu_for(target)
    if runnable(delegate.target):
        session = model.compile([delegate])
        ours = run(session, arrays)
        assert refused(session, delegate, arrays) == ""
    else:
        ours = run_emulated(model.main, delegate, arrays)
    wanted = run(model.compile(["reference"]), arrays)
    for a, b in zip(ours, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    return wanted[0]


def _check(row: Case, target: str) -> Array:
    model = row.model()
    return _exact(
        model, target, [np.asarray(a) for a in row.arrays(model, np.random.default_rng(3))]
    )


# -- products -----------------------------------------------------------------------------------


def _scales(units: int, top: float = -9.0) -> Array:
    """As trained models have them; powers of two, which tie; and ones of dead channels."""
    found = np.exp2(np.random.default_rng(units).uniform(top - 7, top, units))
    found[1::7] = 2.0**-11
    found[2::7] = np.exp2(-29.7)
    return found.astype(np.float32)


def _bias(units: int, kind: str, by: Array) -> T | None:
    """Within the range of codes, whatever the scale: dead channels have biases of 46 bits."""
    if not kind:
        return None
    codes = np.random.default_rng(5).uniform(-30000, 30000, units)
    most = 2**28 if kind == "i32" else 2**46
    return const(np.clip(np.rint(codes / by), -most, most), kind, scale=by)


def _product(
    op: str,
    kind: str,
    taps: int,
    depth: int,
    units: int,
    *,
    top: float = -9.0,
    weights_of: str = "any",
    **more: Any,
) -> Case:
    scales = _scales(units, top)
    bias = _bias(units, kind, scales)
    bounds = {"any": {"low": -127, "high": 127}, "large": {"low": 126, "high": 127}}[weights_of]
    attrs = WINDOW | more
    if op == "FULLY_CONNECTED":
        x, attrs = i16(5, depth, scale=1.0), more
        w = weights(units, depth, dtype="i8", scale=scales, **bounds)
    elif op == "DEPTHWISE_CONV_2D":
        x, attrs = i16(1, 6, 7, units, scale=1.0), attrs | {"depth_multiplier": 1}
        w = weights(1, taps, taps, units, dtype="i8", scale=scales, axis=3, **bounds)
    else:
        x = i16(1, 6, 7, depth, scale=1.0)
        w = weights(units, taps, taps, depth, dtype="i8", scale=scales, **bounds)
    return case(
        op,
        x,
        w,
        bias,
        out=[i16(scale=1.0)],
        name=f"{kind}{taps}x{depth}to{units}",
        version=4,
        **attrs,
    )


PRODUCTS = {
    "pointwise": _product("CONV_2D", "i64", 1, 19, 37),
    "window, clamped": _product("CONV_2D", "i64", 3, 8, 16, fused_activation_function="RELU"),
    "window, stem": _product("CONV_2D", "i64", 3, 3, 32),
    "no bias": _product("CONV_2D", "", 1, 12, 9, top=-8.0),
    "32-bit bias": _product("CONV_2D", "i32", 1, 12, 40),
    "scales of a half and more": _product("CONV_2D", "i64", 1, 2, 24, top=0.9),
    "sums beyond 32 bits": _product("CONV_2D", "i64", 1, 1201, 20, top=-15.0, weights_of="large"),
    "the same in lines": _product("CONV_2D", "i64", 3, 160, 33, top=-15.0, weights_of="large"),
    "depthwise": _product("DEPTHWISE_CONV_2D", "i64", 3, 1, 43),
    "depthwise, clamped": _product("DEPTHWISE_CONV_2D", "i64", 5, 1, 72,
                                   fused_activation_function="RELU"),
    "depthwise, 32-bit bias": _product("DEPTHWISE_CONV_2D", "i32", 3, 1, 24),
    "depthwise, large scales": _product("DEPTHWISE_CONV_2D", "i64", 3, 1, 17, top=0.9),
    "connected": _product("FULLY_CONNECTED", "i64", 1, 130, 33),
    "connected, beyond 32 bits": _product("FULLY_CONNECTED", "i64", 1, 1500, 21, top=-15.0,
                                          weights_of="large"),
    "connected, 32-bit bias": _product("FULLY_CONNECTED", "i32", 1, 40, 10),
}  # fmt: skip


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, target: str) -> None:
    codes = _check(PRODUCTS[name], target)
    assert len(np.unique(codes)) > 20  # they are not all at the ends


@pytest.mark.parametrize("target", TRIED)
def test_sums_at_the_ends(target: str) -> None:
    """All codes the smallest, all weights the largest: the sums that the bound is made for. 516
    weights of 127 are the last that 32 bits hold."""
    for depth in (515, 516, 517, 1033):
        x = T((2, depth), "i16", scale=1.0, data=np.full((2, depth), -32768), fed=True)
        filters = np.full((5, depth), 127) * np.array([1, -1, 1, -1, 1])[:, None]
        scales = np.array([2e-6, 2e-6, 1e-6, 3e-6, 5e-7], np.float32)
        for op, shape in (("FULLY_CONNECTED", (5, depth)), ("CONV_2D", (5, 1, 1, depth))):
            w = const(filters.reshape(shape), "i8", scale=scales)
            b = const(np.arange(5) * 70000, "i64", scale=scales)
            given = (
                x
                if op == "FULLY_CONNECTED"
                else T(
                    (2, 1, 1, depth),
                    "i16",
                    scale=1.0,
                    data=x.data.reshape(2, 1, 1, depth),
                    fed=True,
                )
            )
            more = {} if op == "FULLY_CONNECTED" else WINDOW
            _check(case(op, given, w, b, out=[i16(scale=1.0)], version=4, **more), target)


def test_how_sums_are_kept() -> None:
    """By the weights, not by their number."""
    for core in (PairCore(), WordCore()):
        assert chunk_of(far(core, 65534, 127)) == 0
        chunk = chunk_of(far(core, 65535, 127))
        assert chunk * core.depth * 127 << 15 < 2**31 <= (chunk + 1) * core.depth * 127 << 15
    small, large = (short(np.array([s]), np.zeros(1, np.int64), 0, True).kind for s in (0.49, 0.5))
    assert (small, large) == (Rounding.SPLIT, Rounding.SHORT)


def test_results_that_would_wrap_are_refused() -> None:
    """The definition keeps the lower 32 bits of a result."""
    row = _product("CONV_2D", "i64", 1, 300, 8, top=7.0, weights_of="large")
    assert "64 bits" in check_cpu(row)
    zero = case(
        "CONV_2D",
        i16(1, 2, 2, 3, scale=1.0, zp=7),
        weights(4, 1, 1, 3, dtype="i8", scale=0.01),
        out=[i16(scale=1.0)],
        **WINDOW,
    )
    assert "zero point" in check_cpu(zero)


# -- products of two activations ----------------------------------------------------------------


@pytest.mark.parametrize("target", TRIED)
@pytest.mark.parametrize("kind", ["i16", "i8"])
def test_batch_matmul(kind: str, target: str) -> None:
    for (m, k, n), (adj_x, adj_y) in (
        ((7, 33, 40), (False, False)),
        ((5, 700, 9), (False, True)),
        ((18, 257, 20), (True, False)),
    ):
        x = (3, k, m) if adj_x else (3, m, k)
        y = (1, n, k) if adj_y else (1, k, n)
        row = case(
            "BATCH_MATMUL",
            i16(*x, scale=0.01),
            T(y, kind, scale=0.01, zp=0),
            out=[i16(scale=90.0 if kind == "i16" else 0.4)],
            adj_x=adj_x,
            adj_y=adj_y,
            version=4,
        )
        assert len(np.unique(_check(row, target))) > 20


# -- others -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TRIED)
def test_bilinear(target: str) -> None:
    for half in (False, True):
        row = case(
            "RESIZE_BILINEAR",
            i16(1, 5, 4, 19, scale=0.1),
            const([9, 11], "i32"),
            out=[i16(scale=0.1)],
            half_pixel_centers=half,
            version=4,
        )
        _check(row, target)


@pytest.mark.parametrize("target", TRIED)
def test_floats_become_words(target: str) -> None:
    """Halves, what is next to them, and what is no number."""
    halves = (np.arange(-40, 40) + 0.5).astype(np.float32)
    near = [np.nextafter(halves, np.float32(s)) for s in (-100, 100)]
    ends = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 0, 32767.5, -32768.5])
    for scale in (1.0, 0.0371):
        values = np.concatenate([halves, *near, ends]).astype(np.float32) * np.float32(scale)
        row = case(
            "QUANTIZE", T(values.shape, "f32", data=values, fed=True), out=[i16(scale=scale)]
        )
        _check(row, target)


def _root(proven: bool) -> Model:
    """1 / sqrt(variance), or of an input."""
    graph = Graph()
    x = graph.input("x", DType.INT16, (3, 40), quant=Quant.of(0.001))
    given = x
    if proven:
        square = graph.tensor("square", DType.INT16, x.shape, quant=Quant.of(0.02))
        graph.add("MUL", [x, x], [square])
        given = graph.tensor("moved", DType.INT16, x.shape, quant=Quant.of(0.021))
        some = graph.constant("some", [5], DType.INT16, quant=Quant.of(0.001))
        graph.add("ADD", [square, some], [given], pot_scale_int16=False)
    y = graph.tensor("y", DType.INT16, x.shape, quant=Quant.of(0.001))
    graph.add("RSQRT", [given], [y])
    graph.outputs = [y]
    return Model([graph])


def test_roots_of_what_is_positive() -> None:
    codes = np.random.default_rng(2).integers(-32768, 32768, (3, 40)).astype(np.int16)
    _exact(_root(True), RUNNABLE[0], [codes])
    (reason,) = reasons_against(_root(False).main, CpuDelegate(cache=False)).values()
    assert "negative" in reason


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_table_of_words(size: int) -> None:
    _check(case("LOGISTIC", i16(size, scale=1 / 4096), out=[i16(scale=1 / 32768)]), RUNNABLE[0])
