"""Matrix products on the cpu delegate: the conformance table on every target, and shapes that reach
every kind of tile, panel, block and row source."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate, build
from sanderling.delegates.cpu.executable import CpuExecutable
from sanderling.delegates.cpu.jit import host_target, runnable
from sanderling.delegates.cpu.targets import TARGETS
from sanderling.delegates.cpu.tiles import Panels, choose
from sanderling.ir import Array, DType, Graph, Op, Quant, Tensor
from sanderling.ir.expr import Expr, Input, apply
from sanderling.ops.execute import evaluate, new_state
from tests.conformance.harness import Case, T, case, f32, i8, u8, weights

from .harness import EVERYTHING, TARGET_NAMES, cases_of, check_cpu

OPS = ("CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL", "TRANSPOSE_CONV")
RUNNABLE = tuple(name for name, t in TARGETS.items() if runnable(t))
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
        return case("CONV_2D", i8(*x, scale=0.03, zp=-5), filters, bias,
                    out=[i8(scale=0.2, zp=3)], version=3, **attrs)  # fmt: skip
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
    CpuExecutable(build(CpuDelegate(target), graph), 1).run(arrays, [result])
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
    """conv + residual in one step, with the activation after the sum."""
    graph, (x, w, b, r, y) = _graph(kind, *size)
    op = graph.add("CONV_2D", [x, w, b, r], [y], fused_activation_function="RELU", **SAME)
    graph.outputs = [y]
    feeds = _feed(x, 0), _feed(r, 1)
    expected = _sum_by_definition(op, feeds)
    ours = _run(graph, target, *feeds)
    gap = np.abs(ours.astype(np.float64) - expected).max()
    assert gap <= (1 if kind != "f32" else 1e-4)


def _sum_by_definition(op: Any, feeds: tuple[Array, Array]) -> Array:
    """In reals: the product without requantisation, the residual, the activation."""
    x, w, b, r = op.inputs
    real = [_real(t, a) for t, a in ((x, feeds[0]), (w, w.data), (b, b.data), (r, feeds[1]))]
    total = real[0] @ real[1].reshape(len(real[1]), -1).T + real[2] + real[3]
    total = np.maximum(total, 0)
    out = op.outputs[0]
    if out.quant is None:
        return total
    codes = np.round(total / out.quant.scale[0]) + out.quant.zero_point[0]
    return np.clip(codes, *out.dtype.bounds)


def _real(tensor: Tensor, values: Array) -> Array:
    if tensor.quant is None:
        return values.astype(np.float64)
    zero, scale = tensor.quant.zero_point[0], tensor.quant.scale[0]
    return (values.astype(np.float64) - zero) * np.float64(scale)


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
    op.attrs["cpu_map"] = expr
    graph.outputs = [y]
    if not runnable(TARGETS[target]):
        build(CpuDelegate(target), graph)
        return
    feeds = (_feed(x, 0), _feed(r, 1))
    ours = _run(graph, target, *feeds)
    expected = plain * feeds[1] if second else np.where(plain > 0, plain, plain * 0.25)
    assert np.abs(ours - expected).max() < 1e-4


# -- choosing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGET_NAMES)
def test_chosen_tiles_fit_the_registers(target: str) -> None:
    row = TARGETS[target]
    for m in (1, 2, 7, 49, 196, 12544):
        for n in (1, 16, 24, 96, 1001):
            _, tile = choose(row, m, n, 64)
            assert 1 <= tile.rows <= m
            assert tile.rows * tile.vectors * tile.chains + 1 <= row.registers


def test_panels_cover_the_columns_once() -> None:
    for n in range(1, 200, 7):
        for vectors in (1, 2, 3, 4):
            panels = Panels(n, vectors, 16)
            spans = list(panels.spans())
            assert spans[0][0] == 0 and len(spans) == panels.count
            assert sum(columns for _, columns in spans) == panels.padded >= n
            assert panels.padded - n < 16
