"""Convolutions and products in every way that the delegate has for them: all windows by all kernels
that take them, on all kinds of devices, and every tile. Many layers are one graph: what takes time
is to build programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.kernels import convolution, products, winograd
from sanderling.delegates.gpu.kernels.convolution import merged
from sanderling.delegates.gpu.kernels.edges import Edges
from sanderling.delegates.gpu.kernels.tiles import choose_tile, tiles
from sanderling.delegates.gpu.lower import lower
from sanderling.delegates.gpu.options import CLASSES, CPU, DeviceClass
from sanderling.delegates.gpu.program_sources import build_programs
from sanderling.delegates.gpu.recipe import recipe_of
from sanderling.ir import Array, DType, Graph, Model
from sanderling.ir.graph import copy_graph
from sanderling.ops.geometry import Axis

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
needs_device = pytest.mark.skipif(
    bool(GpuDelegate().lacks()), reason="there is no OpenCL device on this machine"
)


@dataclass(frozen=True)
class Layer:
    """kernel: [out, high, wide, in], or [high, wide, out] of a depthwise layer, or [out, in]."""

    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int = 1
    padding: str = "SAME"
    dilation: int = 1
    activation: str = "NONE"

    @property
    def op(self) -> str:
        return {4: "CONV_2D", 3: "DEPTHWISE_CONV_2D", 2: "FULLY_CONNECTED"}[len(self.kernel)]

    @property
    def out(self) -> tuple[int, ...]:
        if self.op == "FULLY_CONNECTED":
            return (*self.shape[:-1], self.kernel[0])
        taps = self.kernel[1:3] if self.op == "CONV_2D" else self.kernel[:2]
        reach = [(n - 1) * self.dilation for n in taps]
        same = self.padding == "SAME"
        sizes = [
            -(-(size - (0 if same else less)) // self.stride)
            for size, less in zip(self.shape[1:3], reach, strict=True)
        ]
        return (self.shape[0], *sizes, self.kernel[0] if self.op == "CONV_2D" else self.kernel[-1])

    def add(self, graph: Graph, number: int, rng: np.random.Generator) -> None:
        x = graph.input(f"x{number}", DType.FLOAT32, self.shape)
        size = (1, *self.kernel) if self.op == "DEPTHWISE_CONV_2D" else self.kernel
        w = graph.constant(f"w{number}", rng.normal(size=size), DType.FLOAT32)
        b = graph.constant(f"b{number}", rng.normal(size=self.out[-1]), DType.FLOAT32)
        y = graph.tensor(f"y{number}", DType.FLOAT32, self.out)
        attrs: dict[str, object] = {"fused_activation_function": self.activation}
        if self.op != "FULLY_CONNECTED":
            attrs |= {
                "padding": self.padding,
                "stride_h": self.stride,
                "stride_w": self.stride,
                "dilation_h_factor": self.dilation,
                "dilation_w_factor": self.dilation,
            }
        if self.op == "DEPTHWISE_CONV_2D":
            attrs["depth_multiplier"] = self.out[-1] // self.shape[-1]
        graph.add(self.op, [x, w, b], [y], **attrs)
        graph.outputs.append(y)


CONVOLUTIONS = [
    Layer((1, 7, 5, 6), (12, 1, 1, 6)), Layer((2, 3, 3, 8), (24, 1, 1, 8), activation="RELU6"),
    Layer((1, 7, 9, 5), (6, 3, 3, 5)), Layer((1, 6, 17, 8), (16, 3, 3, 8), activation="RELU"),
    Layer((1, 9, 8, 3), (8, 3, 3, 3), stride=2), Layer((2, 5, 6, 4), (4, 3, 3, 4), padding="VALID"),
    Layer((1, 9, 9, 4), (5, 3, 3, 4), dilation=2), Layer((1, 5, 5, 4), (4, 3, 3, 4), dilation=7),
    Layer((1, 20, 20, 4), (4, 3, 3, 4), dilation=4), Layer((1, 3, 2, 4), (4, 7, 7, 4)),
    Layer((1, 5, 6, 7), (8, 2, 2, 7)), Layer((1, 4, 9, 9), (4, 1, 5, 9), stride=2),
    Layer((1, 7, 7, 8), (8, 1, 1, 8), stride=2), Layer((1, 6, 6, 16), (8, 3, 3, 8)),
    Layer((1, 5, 5, 8), (16, 3, 3, 2)), Layer((1, 4, 4, 6), (6, 1, 1, 2)),
]  # fmt: skip
OTHERS = [
    Layer((1, 7, 9, 8), (3, 3, 8)), Layer((2, 8, 17, 16), (3, 3, 16), stride=2, activation="RELU6"),
    Layer((1, 6, 6, 5), (5, 5, 5)), Layer((1, 9, 9, 4), (3, 3, 4), dilation=2),
    Layer((1, 5, 5, 3), (3, 3, 6)), Layer((1, 5, 5, 1), (3, 3, 8), padding="VALID"),
    Layer((1, 3, 30, 4), (1, 20, 4)), Layer((1, 3, 2, 4), (5, 5, 4)),
    Layer((1, 30, 30, 4), (3, 3, 4), dilation=9),
    Layer((1, 5), (7, 5)), Layer((3, 16), (24, 16), activation="RELU_N1_TO_1"),
    Layer((7, 6), (5, 6)), Layer((9, 5), (24, 5)), Layer((11, 8), (12, 8), activation="RELU"),
]  # fmt: skip
THREES = [
    Layer((1, 4, 4, 4), (4, 3, 3, 4)), Layer((2, 7, 10, 5), (6, 3, 3, 5), activation="RELU"),
    Layer((1, 6, 6, 8), (16, 3, 3, 8), padding="VALID"), Layer((1, 2, 3, 4), (4, 3, 3, 4)),
    Layer((1, 9, 8, 32), (16, 3, 3, 32)),
]  # fmt: skip
KINDS = {
    "class": {}, "gpu": {"lanes": 4, "rows": 4, "columns": 2, "scalars": False},
    "small": {"lanes": 8, "rows": 2, "columns": 1, "registers": 16},
}  # fmt: skip


def graph_of(layers: Sequence[Layer]) -> Graph:
    graph, rng = Graph(), np.random.default_rng(7)
    for number, layer in enumerate(layers):
        layer.add(graph, number, rng)
    return graph


def check(layers: Sequence[Layer], **changes: object) -> list[str]:
    """Run the layers on a device of this kind; the names of the kernels."""
    graph = graph_of(layers)
    rng = np.random.default_rng(8)
    given: list[Array] = [rng.normal(size=t.shape).astype(np.float32) for t in graph.inputs]
    feeds = dict(zip([t.name for t in graph.inputs], given, strict=True))
    expected = Model([graph]).compile(["reference"]).run(feeds)
    device = GpuDelegate().device()
    offers = replace(device.offers, kind=replace(device.offers.kind, **changes))  # type: ignore[arg-type]
    part, _ = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    lowered = lower(part, offers, device.dialect, "f32")
    recipe = recipe_of(lowered, (1, 1, 1))
    made = GpuExecutable(device, recipe, build_programs(device, lowered, recipe))
    outputs: list[Array | None] = [np.full(t.shape, np.nan, np.float32) for t in graph.outputs]
    made.run(given, outputs)
    for layer, tensor, found in zip(layers, graph.outputs, outputs, strict=True):
        assert found is not None
        answer = expected[tensor.name]
        scale = float(np.abs(answer).max()) or 1.0
        np.testing.assert_allclose(found / scale, answer / scale, atol=1e-4, err_msg=str(layer))
    return [call.name for call in recipe.calls]


# -- kernels --------------------------------------------------------------------------------------


@needs_device
@pytest.mark.parametrize("kind", KINDS)
def test_windows(kind: str) -> None:
    names = check(CONVOLUTIONS, winograd=None, **KINDS[kind])
    assert names.count("product") == 4  # groups became one, and other taps see padding only
    assert names.count("conv") == len(CONVOLUTIONS) - 4


@needs_device
@pytest.mark.parametrize("kind", ["class", "gpu"])
def test_depthwise_and_fully_connected(kind: str) -> None:
    names = check(OTHERS, **KINDS[kind])
    assert {"depthwise", "product"} <= set(names)


@needs_device
@pytest.mark.parametrize("kind", ["class", "gpu"])
def test_winograd(kind: str) -> None:
    names = check(THREES, winograd=(1, 1, 1), **KINDS[kind])
    assert names.count("winograd_product") == len(THREES)
    assert "conv" not in names


@needs_device
@pytest.mark.parametrize(
    ("module", "layer"),
    [(products, Layer((5, 5), (24, 5))), (convolution, Layer((1, 2, 5, 3), (24, 1, 2, 3)))],
    ids=["product", "window"],
)
def test_every_tile(module: Any, layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """On vectors of eight lanes: halves of vectors are among them."""
    kind = replace(CPU, lanes=8, rows=5, columns=2, registers=16)
    wanted = list(tiles(kind, 5, 6))
    assert any(tile.has_half for tile in wanted)
    queue = iter(wanted)
    monkeypatch.setattr(module, "choose_tile", lambda *given, **named: next(queue))
    check([layer] * len(wanted), lanes=8)


# -- what needs no device -------------------------------------------------------------------------


def test_matrices_of_winograd_convolve() -> None:
    patch, window, result = winograd.matrices()
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(6, 6)), rng.normal(size=(3, 3))
    found = result @ ((window @ w @ window.T) * (patch @ x @ patch.T)) @ result.T
    expected = [[(x[i : i + 3, j : j + 3] * w).sum() for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
def test_thresholds_of_winograd_are_the_classes(kind: DeviceClass) -> None:
    assert kind.winograd is not None
    source, target, count = kind.winograd
    side = Axis(4 * count, 3, 1, 1, 4 * count, 1)
    line = Axis(4, 3, 1, 1, 4, 1)
    weights = np.zeros((4 * target, 3, 3, 4 * source), np.float32)
    shape = (1, side.out, line.out, 4 * target)

    def uses(weights: Array, y: Axis = side) -> bool:
        return winograd.is_winograd(kind, shape, weights, y, line)

    assert uses(weights)
    assert not uses(weights[4:])
    assert not uses(weights[..., 4:])
    assert not uses(weights, replace(side, out=side.out - 4))
    assert not uses(weights, replace(side, stride=2))
    assert not uses(weights, replace(side, dilation=2))
    never = replace(kind, winograd=None)
    assert not winograd.is_winograd(never, shape, weights, side, line)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
def test_a_tile_divides_the_channels_and_fits(kind: DeviceClass) -> None:
    for channels in (1, 3, 4, 24, 40, 100, 116, 1000, 1280):
        for points in (1, 2, 7, 49, 3136):
            tile = choose_tile(kind, points, channels, 64)
            assert -(-channels // 4) % tile.slices == 0
            assert tile.rows <= min(points, kind.rows)
            assert len(tile.widths) <= kind.columns
            assert all(width <= kind.lanes for width in tile.widths)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize(
    "axis",
    [
        Axis(5, 3, 1, 1, 5, 1),
        Axis(9, 3, 2, 1, 5, 1),
        Axis(8, 3, 1, 3, 8, 3),
        Axis(2, 5, 1, 1, 5, 3),
    ],
)
def test_edges(axis: Axis, rows: int) -> None:
    """Every tap of every point of every block, against the definition."""
    edges = Edges(axis, rows)
    for block in range(edges.count):
        start = min(block * rows, axis.out - rows)
        taps = [
            [
                0 <= (start + m) * axis.stride + tap * axis.dilation - axis.before < axis.size
                for m in range(rows)
            ]
            for tap in range(axis.taps)
        ]
        assert [
            [m in edges.points(block, t) for m in range(rows)] for t in range(axis.taps)
        ] == taps
        assert edges.is_inner(block) == all(map(all, taps))
        assert list(edges.full(block)) == [t for t in range(axis.taps) if all(taps[t])]
        partial = [t for t in range(axis.taps) if any(taps[t]) and not all(taps[t])]
        assert [t for t, _ in edges.partial(block)] == partial


@pytest.mark.parametrize(
    ("out", "depth", "groups", "expected"), [(4, 4, 3, 3), (2, 2, 6, 3), (3, 1, 5, 1), (8, 2, 2, 1)]
)
def test_groups_are_merged_until_channels_fill_slices(
    out: int, depth: int, groups: int, expected: int
) -> None:
    weights = np.arange(out * groups * depth, dtype=np.float32).reshape(-1, 1, 1, depth) + 1
    found, left = merged(weights, groups)
    assert left == expected
    assert found.shape == (out * groups, 1, 1, depth * groups // left)
    assert (found != 0).sum() == weights.size
