"""Matrix products on the cpu delegate: the conformance table on every target, and shapes that reach
every kind of tile, panel, block and row source."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate, build
from sanderling.delegates.cpu.dialect.fused import fuse
from sanderling.delegates.cpu.isa.targets import TARGETS, host_target
from sanderling.delegates.cpu.kernels.products import conv, winograd
from sanderling.delegates.cpu.kernels.products.conv import plain_cycles
from sanderling.delegates.cpu.kernels.products.cores import dot_core
from sanderling.delegates.cpu.kernels.products.sources import Window
from sanderling.delegates.cpu.kernels.products.tiles import Panels, choose
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.ir import Array, DType, Graph, Op, Quant, Tensor
from sanderling.ir.expr import Expr, Input, apply
from sanderling.ops.base import scale_zero
from sanderling.ops.execute import evaluate, new_state
from tests.conformance.cases import CASES
from tests.conformance.harness import Case, T, case, f32, i8, u8, weights
from tests.support.aarch64_qemu import QEMU
from tests.support.cpu_conformance import (
    EVERYTHING,
    RUNNABLE,
    TARGET_NAMES,
    cases_of,
    check_cpu,
    cpu_for,
)

OPS = ("CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", "TRANSPOSE_CONV")
SAME: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
STRIDED: dict[str, Any] = {"padding": "SAME", "stride_h": 2, "stride_w": 2}


# Every case on the host's target; on each other target every fifth, beginning elsewhere, so that
# the suite stays short. `make test-all` runs them all.
EVERY = 1 if EVERYTHING else 5
TABLE = [
    pytest.param(row, name, id=f"{name}|{row.id}")
    for place, name in enumerate(TARGET_NAMES)
    for index, row in enumerate(cases_of(*OPS))
    if name == host_target().name or index % EVERY == place % EVERY
]


@pytest.mark.parametrize(("row", "target"), TABLE)
def test_conformance(row: Case, target: str) -> None:
    check_cpu(row, target)


BLOCKS = [row for row in CASES if row.name.startswith("block") and row.op == "FULLY_CONNECTED"]
TABLES = [row for row in CASES if row.name == "blocks to f32"]


@pytest.mark.parametrize("target", ("avx2", "generic", "neondot"))
@pytest.mark.parametrize("row", BLOCKS + TABLES, ids=lambda row: row.name)
def test_weights_in_blocks_are_compiled(row: Case, target: str) -> None:
    """As AI Edge Quantizer writes language models: they ran on the reference, 13 times slower."""
    assert check_cpu(row, target) == ""


@pytest.mark.parametrize("target", ("avx2", "generic", "neondot"))
@pytest.mark.parametrize("row", [c for c in CASES if c.name == "by_column"], ids=lambda row: row.id)
def test_scales_of_columns_are_compiled(row: Case, target: str) -> None:
    assert check_cpu(row, target) == ""


def _scales(count: int) -> list[float]:
    values = np.random.default_rng(count).uniform(0.002, 0.02, count).astype(np.float32)
    return values.tolist()  # type: ignore[no-any-return]


def _conv(kind: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> Case:
    """A convolution in floats, int8, or uint8 with a zero point of the weights."""
    units = w[0]
    if kind == "f32":
        return case("CONV_2D", f32(*x), weights(*w), weights(units), tol=1e-5, **attrs)
    bias = weights(units, dtype="i32", low=-2000, high=2000, scale=0.0003)
    if kind == "i8":
        filters = weights(*w, dtype="i8", scale=_scales(units))
        return case(
            "CONV_2D",
            i8(*x, scale=0.03, zp=-5),
            filters,
            bias,
            out=[i8(scale=0.2, zp=3)],
            version=3,
            **attrs,
        )
    filters = weights(*w, dtype="u8", scale=0.01, zp=151)
    out: list[T] = [u8(scale=0.5, zp=99)]
    return case("CONV_2D", u8(*x, scale=0.03, zp=130), filters, bias, out=out, **attrs)


# Heights of tiles and widths of panels with and without remainder; blocks of rows; narrow and wide
# pictures; few channels; rows 4096 bytes apart; several images.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 7, 7, 32), (160, 1, 1, 32), SAME),
    ((1, 3, 3, 5), (17, 1, 1, 5), SAME),
    ((1, 29, 31, 24), (41, 1, 1, 24), SAME),
    ((1, 1, 1, 70), (129, 1, 1, 70), SAME),
    ((1, 5, 5, 1024), (33, 1, 1, 1024), SAME),
    ((1, 33, 35, 3), (32, 3, 3, 3), STRIDED),
    ((2, 12, 9, 16), (24, 3, 3, 16), SAME),
    ((1, 40, 2, 8), (16, 5, 1, 8), SAME),
    ((1, 14, 14, 64), (20, 3, 3, 64), SAME | {"dilation_w_factor": 2, "dilation_h_factor": 3}),
    ((1, 16, 16, 32), (64, 1, 1, 32), STRIDED),
    ((2, 9, 9, 24), (48, 3, 3, 6), SAME),
]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kind", ["f32", "i8", "u8"])
@pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda s: "_".join("x".join(map(str, d)) for d in s[:2])
)
def test_shapes(shape: Any, kind: str, target: str) -> None:
    assert check_cpu(_conv(kind, *shape), target) == ""


@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed")
@pytest.mark.parametrize("target", ["i8mm", "neondot"])
@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_shapes_on_aarch64(kind: str, target: str) -> None:
    """u8: weights that do not fit 8 bits without their zero point."""
    for shape in SHAPES if EVERYTHING else SHAPES[: 9 if target == "i8mm" else 2]:
        assert check_cpu(_conv(kind, *shape), target, emulate=True) == ""


# Of tiles: odd and even rows, one column to several vectors, depths around a step.
PAIRS = [(1, 1, 1), (2, 3, 8), (3, 5, 7), (5, 2, 9), (7, 13, 24), (4, 16, 64), (9, 31, 33)]


@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64 is not installed")
def test_pairs_of_rows_and_columns() -> None:
    """The largest codes and weights too: a sum of their products is exact."""
    for rows, units, depth in PAIRS:
        filters = weights(units, depth, dtype="i8", scale=0.02, low=-128, high=127)
        x, out = i8(rows, depth, scale=0.03, zp=-128), i8(scale=0.9, zp=3)
        row = case("FULLY_CONNECTED", x, filters, None, out=[out], version=4)
        assert check_cpu(row, "i8mm", emulate=True) == ""


def test_products_of_bytes_take_the_widest_instruction() -> None:
    """Known by the code itself: smmla and sdot of AArch64. What fits no 8 bits is shifted."""
    found = {}
    for kind, target in product(("i8", "u8"), ("neon", "neondot", "i8mm")):
        row = _conv(kind, (1, 4, 4, 16), (16, 1, 1, 16), SAME)
        code = cpu_for(target).compiled(row.model().main).image.code
        words = np.frombuffer(code[: len(code) // 4 * 4], "<u4") & 0xFFE0FC00
        found[kind, target] = [bool((words == first).any()) for first in (0x4E80A400, 0x4E809400)]
    for kind in ("i8", "u8"):
        assert found[kind, "neon"] == [False, False]
        assert found[kind, "neondot"] == [False, True]
    assert found["i8", "i8mm"] == [True, False]
    assert found["u8", "i8mm"] == [True, True]  # the sums of rows


@pytest.mark.parametrize("kind", ["f32", "i8", "u8"])
@pytest.mark.parametrize("shape", SHAPES[2:7], ids=lambda s: "x".join(map(str, s[0])))
def test_threads_change_nothing(shape: Any, kind: str) -> None:
    row = _conv(kind, *shape)
    model = row.model()
    feed = row.arrays(model, np.random.default_rng(0))[0]
    answers = [np.array(model.compile([CpuDelegate()], threads=n)(feed)) for n in (1, 2, 3)]
    assert all(np.array_equal(answers[0], a) for a in answers[1:])


# -- what the fusion passes ask for -------------------------------------------------------------


def _run(graph: Graph, target: str, *arrays: Array) -> Array:
    """The graph as it stands, on the delegate alone."""
    out = graph.outputs[0]
    result = np.empty(out.shape, out.dtype.numpy)
    CpuExecutable(build(cpu_for(target), graph), 1).run(arrays, [result])
    return result


def _graph(kind: str, height: int, depth: int, units: int) -> tuple[Graph, list[Tensor]]:
    """Input, filter, bias, residual and output of a convolution."""
    graph, rng = Graph("main"), np.random.default_rng(3)
    shape, wide = (1, height, height, depth), (1, height, height, units)
    filters = (units, 1, 1, depth)
    if kind == "f32":
        x, r = graph.input("x", DType.FLOAT32, shape), graph.input("r", DType.FLOAT32, wide)
        w = graph.constant("w", rng.normal(size=filters).astype(np.float32))
        b = graph.constant("b", rng.normal(size=units).astype(np.float32))
        return graph, [x, w, b, r, graph.tensor("y", DType.FLOAT32, wide)]
    dtype = DType.parse(kind)
    x = graph.input("x", dtype, shape, quant=Quant.of(0.02, 3))
    r = graph.input("r", dtype, wide, quant=Quant.of(0.03, -7 if kind == "i8" else 120))
    codes = rng.integers(-127, 128, filters) if kind == "i8" else rng.integers(0, 256, filters)
    quant = Quant.of(0.004, 0 if kind == "i8" else 131)
    w = graph.constant("w", codes.astype(dtype.numpy), quant=quant)
    b = graph.constant("b", rng.integers(-500, 500, units).astype(np.int32), quant=Quant.of(8e-5))
    return graph, [x, w, b, r, graph.tensor("y", dtype, wide, quant=Quant.of(0.05, 5))]


def _feed(tensor: Tensor, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if tensor.dtype is DType.FLOAT32:
        return rng.normal(size=tensor.shape).astype(np.float32)
    low, high = tensor.dtype.bounds
    return rng.integers(low, high + 1, tensor.shape).astype(tensor.dtype.numpy)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kind", ["f32", "i8", "u8"])
@pytest.mark.parametrize("size", [(5, 16, 24), (9, 33, 70)])
def test_residual(size: tuple[int, int, int], kind: str, target: str) -> None:
    """conv + residual in one step, with the activation after the sum: as one after the other."""
    graph, (x, w, b, r, y) = _graph(kind, *size)
    op = graph.add("CONV_2D", [x, w, b, r], [y], fused_activation_function="RELU", **SAME)
    fuse(op, residual=True)
    graph.outputs = [y]
    between = y.copy()
    if y.quant is not None:
        between.quant = Quant.of(1.7 * y.quant.scale[0], y.quant.zero_point[0])
        fuse(op, inner=scale_zero(between))
    feeds = _feed(x, 0), _feed(r, 1)
    state = new_state()
    product = evaluate(Op("CONV_2D", [x, w, b], [between], SAME), [feeds[0], w.data, b.data], state)
    add = Op("ADD", [between, r], [y], {"fused_activation_function": "RELU"})
    (expected,) = evaluate(add, [*product, feeds[1]], state)
    gap = np.abs(_run(graph, target, *feeds).astype(np.float64) - expected)
    assert gap.max() <= (1 if kind != "f32" else 1e-4)
    assert kind == "f32" or np.mean(gap > 0) < 0.1  # halves are frequent with these scales


@pytest.mark.parametrize("target", TARGET_NAMES)
@pytest.mark.parametrize("second", [False, True])
def test_map(second: bool, target: str) -> None:
    """A function of the result, of one or of two inputs."""
    graph, (x, w, b, r, y) = _graph("f32", 5, 16, 24)
    value, other = Input(0, DType.FLOAT32), Input(1, DType.FLOAT32)
    expr: Expr = value * other if second else apply("maximum", value * 0.25, value)
    alone = Op("CONV_2D", [x, w, b], [y], SAME)
    plain = evaluate(alone, [_feed(x, 0), w.data, b.data], new_state())[0]
    op = graph.add("CONV_2D", [x, w, b, *([r] if second else [])], [y], **SAME)
    fuse(op, map=expr, residual=second)
    graph.outputs = [y]
    if target not in RUNNABLE:
        build(cpu_for(target), graph)
        return
    feeds = (_feed(x, 0), _feed(r, 1))
    ours = _run(graph, target, *feeds)
    expected = plain * feeds[1] if second else np.where(plain > 0, plain, plain * 0.25)
    assert np.abs(ours - expected).max() < 1e-4


# -- choosing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_chosen_tiles_fit_the_registers(target: str) -> None:
    """Tiles of three rows or more leave one to spare: 4x24 floats on AVX2 spilled in each step."""
    row = TARGETS[target]
    for m in (1, 2, 7, 49, 196, 12544):
        for n in (1, 16, 24, 96, 384, 1001):
            _, tile = choose(row, m, n, 64)
            assert 1 <= tile.rows <= m
            assert tile.rows * tile.vectors * tile.chains + 1 <= row.registers
            assert tile.rows < 3 or (tile.rows + 1) * tile.vectors + 1 < row.registers


def test_panels_cover_the_columns_once() -> None:
    for n in range(1, 200, 7):
        for vectors in (1, 2, 3, 4):
            panels = Panels(n, vectors, 16)
            spans = list(panels.spans())
            assert spans[0][0] == 0 and len(spans) == panels.count
            assert sum(columns for _, columns in spans) == panels.padded >= n
            assert panels.padded - n < 16


# -- Winograd -----------------------------------------------------------------------------------

# Tiles that fit and that hang over, either way; one block and several; panels that are not full;
# several images; no padding; a picture that is one tile; channels that do not fill a vector.
WINOGRAD: list[tuple[tuple[int, ...], int, str]] = [
    ((1, 16, 16, 16), 32, "SAME"),
    ((1, 14, 13, 32), 20, "SAME"),
    ((2, 9, 31, 16), 33, "SAME"),
    ((1, 11, 22, 48), 64, "VALID"),
    ((1, 4, 4, 64), 17, "SAME"),
    ((3, 5, 6, 16), 70, "VALID"),
    ((1, 12, 8, 12), 16, "SAME"),
    ((1, 9, 8, 27), 24, "SAME"),
]


def _winograd(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take this form, whatever it costs."""
    form = winograd.form(m)
    plan = lambda target, w, n, plain, kind: winograd.blocking_for(target, w, n, form, kind)[1]  # noqa: E731
    monkeypatch.setattr("sanderling.delegates.cpu.kernels.products.conv.choose_blocking", plan)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("m", winograd.POINTS)
@pytest.mark.parametrize("size", WINOGRAD, ids=lambda s: "x".join(map(str, s[0])))
def test_winograd(size: Any, m: int, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _winograd(m, monkeypatch)
    shape, units, padding = size
    row = _conv("f32", shape, (units, 3, 3, shape[3]), SAME | {"padding": padding})
    assert check_cpu(row, target) == ""


# The largest input codes and weights that there are, and channels that are no whole pair.
WINOGRAD_CODES = [*WINOGRAD, ((1, 6, 5, 33), 9, "SAME"), ((1, 8, 8, 128), 16, "SAME")]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("kind", ["i8", "u8"])
@pytest.mark.parametrize("size", WINOGRAD_CODES, ids=lambda s: "x".join(map(str, s[0])))
def test_winograd_of_codes(
    size: Any, kind: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exact, to the last code."""
    _winograd(2, monkeypatch)
    taken = []
    emit = conv.emit_winograd
    monkeypatch.setattr(conv, "emit_winograd", lambda *a: (taken.append(1), emit(*a)))
    shape, units, padding = size
    row = _conv(kind, shape, (units, 3, 3, shape[3]), SAME | {"padding": padding})
    assert check_cpu(row, target) == ""
    here = TARGETS[target]
    large = min(shape[1:3]) - 2 * (padding == "VALID") >= 4
    assert bool(taken) == (large and shape[3] >= here.lanes and dot_core(here) is None)


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_winograd_of_the_largest_codes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums wrap around on the way, and come out right."""
    _winograd(2, monkeypatch)
    signed = kind == "i8"
    dtype, (low, high) = (DType.INT8, (-128, 127)) if signed else (DType.UINT8, (0, 255))
    graph, rng = Graph("main"), np.random.default_rng(7)
    x = graph.input("x", dtype, (1, 6, 6, 64), quant=Quant.of(0.1, high))
    codes = rng.choice([-127, 127] if signed else [0, 255], (8, 3, 3, 64)).astype(dtype.numpy)
    w = graph.constant("w", codes, dtype, quant=Quant.of(0.1, 0 if signed else 128))
    b = graph.constant("b", np.zeros(8, np.int32), DType.INT32, quant=Quant.of(0.01, 0))
    y = graph.tensor("y", dtype, (1, 6, 6, 8), quant=Quant.of(12.0, 0 if signed else 128))
    op = graph.add("CONV_2D", [x, w, b], [y], **SAME)
    graph.outputs = [y]
    fed = np.where(codes[:1, :1, :1] > codes.mean(), low, high) * np.ones((1, 6, 6, 1), int)
    fed = fed.astype(dtype.numpy)
    (expected,) = evaluate(op, [fed, w.data, b.data], new_state())
    assert len(np.unique(expected)) > 2
    np.testing.assert_array_equal(_run(graph, "generic", fed), expected)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("shape", [(1, 18, 22, 3), (2, 12, 16, 2)], ids=str)
def test_winograd_on_squares_of_pixels(
    shape: tuple[int, ...], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6x6 of stride two; padding is two before and after."""
    _winograd(4, monkeypatch)
    taken = []
    emit = conv.emit_winograd
    monkeypatch.setattr(conv, "emit_winograd", lambda *a: (taken.append(1), emit(*a)))
    row = _conv("f32", shape, (19, 6, 6, shape[3]), STRIDED)
    assert check_cpu(row, target) == ""
    assert taken or 8 * shape[3] < TARGETS[target].lanes


@pytest.mark.parametrize("m", winograd.POINTS)
def test_winograd_is_the_same_on_any_number_of_threads(
    m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _winograd(m, monkeypatch)
    row = _conv("f32", (2, 21, 18, 32), (70, 3, 3, 32), SAME)
    model = row.model()
    feed = row.arrays(model, np.random.default_rng(0))[0]
    answers = [np.array(model.compile([CpuDelegate()], threads=n)(feed)) for n in (1, 2, 3)]
    assert all(np.array_equal(answers[0], a) for a in answers[1:])


@pytest.mark.parametrize("m", winograd.POINTS)
def test_winograd_with_a_residual(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _winograd(m, monkeypatch)
    graph, rng = Graph("main"), np.random.default_rng(4)
    x = graph.input("x", DType.FLOAT32, (1, 10, 7, 16))
    r = graph.input("r", DType.FLOAT32, (1, 10, 7, 24))
    w = graph.constant("w", rng.normal(size=(24, 3, 3, 16)).astype(np.float32))
    b = graph.constant("b", rng.normal(size=24).astype(np.float32))
    y = graph.tensor("y", DType.FLOAT32, (1, 10, 7, 24))
    op = graph.add("CONV_2D", [x, w, b, r], [y], fused_activation_function="RELU", **SAME)
    fuse(op, residual=True)
    graph.outputs = [y]
    feeds = _feed(x, 0), _feed(r, 1)
    alone = Op("CONV_2D", [x, w, b], [y], dict(SAME))
    sums = evaluate(alone, [feeds[0], w.data, b.data], new_state())[0]
    expected = np.maximum(sums + feeds[1], 0)
    ours = _run(graph, host_target().name, *feeds)
    assert np.abs(ours - expected).max() <= 1e-5 * np.abs(expected).max()


def test_winograd_is_taken_where_it_pays() -> None:
    """Large pictures take large tiles, large weights small ones or none."""
    target = TARGETS["avx512vnni"]

    def taken(size: int, channels: int, units: int) -> int | None:
        w = Window(1, size, size, channels, size, size, (3, 3), pad=(1, 1))
        plan = winograd.choose_blocking(target, w, units, plain_cycles(target, w, units))
        return None if plan is None else plan.form.m

    assert [taken(56, 64, 64), taken(14, 64, 512), taken(4, 512, 512)] == [4, 2, None]
