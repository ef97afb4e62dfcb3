"""The GPU delegate's layers and networks as shares of the device's peak, which is measured beside
them: `python -m benchmarks.kernels --delegate gpu [--units 1] [--layers MODEL] [--write]`.

The peak is what a product of two matrices in the cache reaches with the best register block, of
some that are tried. Layers and whole networks take turns with it; the best of each counts.
`--units 1` makes PoCL use one core: on a machine that others use, the time of two is that of the
one which somebody else had. Multiply-adds are those of the operator, whatever way they are computed
in. `--fit` prints the factors of the cost model in kernels/tiles.py.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np

from sanderling import load
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices.device import Device
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.kernels import products
from sanderling.delegates.gpu.kernels.tiles import BEGIN, LEAST, LOAD, SUMS, Tile
from sanderling.delegates.gpu.lower import lower
from sanderling.delegates.gpu.program_sources import build_programs
from sanderling.delegates.gpu.recipe import recipe_of
from sanderling.delegates.gpu.steps import Node
from sanderling.errors import SanderlingError
from sanderling.ir import DType, Graph, Op
from sanderling.ir.graph import copy_graph
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line
from sanderling.ops import cost

from .common import SHARED, model_paths, table, write_section

LAYERS = "efficientnet_lite0_224_f32"
PRODUCTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
# Blocks of the peak: rows of points, vectors of channels.
SAMPLE = 4e-4  # seconds: shorter than what a scheduler gives to somebody else
ROUNDS = 400  # of a layer and the peak: most are disturbed on a machine that others use
BLOCKS = ((4, 6), (6, 4), (8, 3), (10, 2), (12, 2), (5, 4), (4, 3), (6, 2), (8, 1), (4, 1))


def add_arguments(parser: argparse._ArgumentGroup) -> None:
    parser.add_argument("--units", type=int, help="cores that PoCL may use (default: all)")
    parser.add_argument("--layers", default=LAYERS, help="the model whose layers are shown")
    parser.add_argument("--only", default="", help="words, one of which a network's name has")
    parser.add_argument("--fit", action="store_true", help="print the factors of the cost model")


def main(options: argparse.Namespace) -> None:
    if options.units:  # before the driver is loaded
        os.environ["POCL_MAX_PTHREAD_COUNT"] = str(options.units)
    device = GpuDelegate().device()
    if options.fit:
        print(fitted(device))
        return
    peak = Peak(device)
    texts = [layers_text(peak, options), networks_text(peak, options)]
    for text in texts:
        print(text, flush=True)
    if options.write:
        for name, text in zip(("layers", "networks"), texts, strict=True):
            write_section(f"gpu_{name}" + f"_{options.units}" * bool(options.units), text)


# -- time -----------------------------------------------------------------------------------------


def seconds(device: Device, launches: Sequence[Callable[[], Any]], times: int = 1) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        for launch in launches:
            launch()
    device.finish()
    return (time.perf_counter() - begin) / times


def matrices(device: Device, size: tuple[int, int, int], tile: Tile) -> GpuExecutable:
    """[points, depth] times [depth, channels], in this block."""
    points, depth, channels = size
    graph, rng = Graph(), np.random.default_rng(0)
    x = graph.input("x", DType.FLOAT32, (points, depth))
    w = graph.constant("w", rng.normal(size=(channels, depth)).astype(np.float32))
    y = graph.tensor("y", DType.FLOAT32, (points, channels))
    graph.add("FULLY_CONNECTED", [x, w], [y])
    graph.outputs = [y]
    with patch.object(products, "choose_tile", lambda *_, **__: tile):
        lowered = lower(graph, device.offers, device.dialect, "f32")
    recipe = recipe_of(lowered, device.offers.kind.group)
    made = GpuExecutable(device, recipe, build_programs(device, lowered, recipe))
    made.warm_up()
    return made


class Peak:
    """What the best register block reaches."""

    SIZE = (240, 256, 384)

    def __init__(self, device: Device) -> None:
        kind, self.device = device.offers.kind, device
        tiles = [
            Tile(rows, (kind.lanes,) * columns)
            for rows, columns in BLOCKS
            if rows * columns <= SUMS * kind.registers
        ]
        self.macs = int(np.prod(self.SIZE))
        made = {tile: matrices(device, self.SIZE, tile).launches for tile in tiles}
        best = dict.fromkeys(made, float("inf"))
        for tile in list(made) * 20:
            best[tile] = min(best[tile], seconds(device, made[tile]))
        self.tile = min(best, key=lambda tile: best[tile])
        self.launches, self.best = made[self.tile], best[self.tile]

    def seconds(self, like: float) -> float:
        """Of one product, in a sample that takes about as long as this."""
        spent = seconds(self.device, self.launches, max(1, round(like / self.best)))
        self.best = min(self.best, spent)
        return spent

    def rate(self, spent: float) -> float:
        """GFLOP/s."""
        return 2 * self.macs / spent / 1e9

    def beside(
        self, launches: Sequence[Callable[[], Any]], rounds: int, budget: float
    ) -> tuple[float, float]:
        """The best seconds of launches, and of the peak's beside them and before."""
        ours = min(seconds(self.device, launches) for _ in range(3))
        times, stop = max(1, round(SAMPLE / ours)), time.perf_counter() + budget
        while rounds > 0 or time.perf_counter() < stop:
            rounds -= 1
            self.seconds(SAMPLE)
            ours = min(ours, seconds(self.device, launches, times))
        return ours, self.best

    def __str__(self) -> str:
        offers = self.device.offers
        block = f"{self.tile.rows} points of {len(self.tile.widths)} vectors"
        return (
            f"{offers.name}, {offers.platform}, {offers.units} units; peak "
            f"{self.rate(self.best):.0f} GFLOP/s with a block of {block} of "
            f"{self.tile.widths[0]} lanes; {machine_line()}"
        )


# -- layers ---------------------------------------------------------------------------------------


@dataclass
class Layer:
    """A node, and what launches its kernels."""

    node: Node
    kernels: list[str]
    launches: list[Callable[[], Any]]

    @property
    def macs(self) -> int:
        return cost(self.node.op, lowered=True).macs

    @property
    def kind(self) -> str:
        op = self.node.op
        if op.name not in PRODUCTS or op.name == "FULLY_CONNECTED":
            return op.name.lower()
        high, wide = op.operand(1).shape[1:3]
        dense = "depthwise" if op.name == "DEPTHWISE_CONV_2D" else "dense"
        return "pointwise" if (high, wide) == (1, 1) else f"{dense} {high}x{wide}"

    @property
    def name(self) -> str:
        read = [self.node.first()] if self.node.op.inputs else []
        return " to ".join("x".join(map(str, t.shape[1:])) for t in (*read, self.node.output))


def parts_of(name: str, given: Any) -> list[tuple[GpuExecutable, Graph, list[Op]]]:
    """The parts of a model that are on the device, ready to run."""
    session = given.compile([GpuDelegate(), "cpu"])
    session(*feeds(given))
    found, plan = [], session.plan()
    for step in plan.steps:
        if step.part.delegate.name == "gpu" and isinstance(step.executable, GpuExecutable):
            part = step.part
            graph, _ = copy_graph(plan.graph, part.ops, part.inputs, part.outputs)
            found.append((step.executable, graph, part.ops))
    return found


def layers_of(made: GpuExecutable, graph: Graph) -> list[Layer]:
    lowered = lower(graph, made.device.offers, made.device.dialect, "f32")
    found: dict[Any, Layer] = {}
    for step, launch, call in zip(lowered.steps, made.launches, made.recipe.calls, strict=True):
        layer = found.setdefault(step.node, Layer(step.node, [], []))
        layer.launches.append(launch)
        layer.kernels.append(call.kernel)
    return list(found.values())


def layers_text(peak: Peak, options: argparse.Namespace) -> str:
    given = load(SHARED / "models" / f"{options.layers}.tflite")
    layers = [
        y for made, graph, _ in parts_of(options.layers, given) for y in layers_of(made, graph)
    ]
    times: dict[tuple[str, ...], int] = {}
    for layer in layers:
        times[tuple(layer.kernels)] = times.get(tuple(layer.kernels), 0) + 1
    rows = []
    for layer in {tuple(layer.kernels): layer for layer in layers}.values():
        ours, theirs = peak.beside(layer.launches, rounds=ROUNDS, budget=0.3)
        rate = 2 * layer.macs / ours / 1e9
        rows.append(
            [
                layer.name,
                layer.kind,
                times[tuple(layer.kernels)],
                " ".join(layer.kernels),
                f"{ours * 1e6:.0f}",
                f"{rate:.0f}",
                f"{rate / peak.rate(theirs):.0%}" if layer.macs else "-",
            ]
        )
    head = (
        f"## Layers of {options.layers} on a software device\n\n"
        f"`python -m benchmarks.kernels --delegate gpu{_units(options)} --write`: {peak}\n\n"
    )
    columns = ["layer", "kind", "times", "kernels", "us", "GFLOP/s", "of peak"]
    return head + table(columns, rows, left=4)


def _units(options: argparse.Namespace) -> str:
    return f" --units {options.units}" * bool(options.units)


# -- networks -------------------------------------------------------------------------------------


def networks_text(peak: Peak, options: argparse.Namespace) -> str:
    rows = []
    for path in model_paths([], options.only):
        print(path.stem, file=sys.stderr, flush=True)
        rows.append([path.stem, *_network(peak, path.stem, load(path))])
    head = (
        "## Networks on a software device\n\n"
        f"`python -m benchmarks.kernels --delegate gpu{_units(options)} --write`: {peak}\n\n"
    )
    columns = ["model", "ops on the device", "kernels", "MMAC", "ms", "GFLOP/s", "of peak"]
    return head + table(columns, rows)


def _network(peak: Peak, name: str, given: Any) -> list[object]:
    try:
        parts = parts_of(name, given)
    except SanderlingError as error:
        return ["-", "-", "-", "-", "-", error.what]
    launches = [launch for made, _, _ in parts for launch in made.launches]
    ops = [op for _, _, ops in parts for op in ops]
    macs = sum(cost(op).macs for op in ops)
    if not launches:
        return [0, "-", "-", "-", "-", "-"]
    ours, theirs = peak.beside(launches, rounds=40, budget=1.0)
    rate = 2 * macs / ours / 1e9
    return [len(ops), len(launches), f"{macs / 1e6:.1f}", f"{ours * 1e3:.2f}", f"{rate:.0f}",
            f"{rate / peak.rate(theirs):.0%}"]  # fmt: skip


# -- the cost model -------------------------------------------------------------------------------


def fitted(device: Device) -> str:
    """The factors of kernels/tiles.py from the times of many tiles, by least squares of relative
    errors: seconds = unit * (depth * (max(sums, LEAST) + LOAD * loads) + BEGIN) for a run."""
    kind = device.offers.kind
    points, channels = 240, 60 * kind.lanes
    rows, found = [], []
    for (high, wide), depth in product(BLOCKS, (16, 64, 256)):
        if high * wide > SUMS * kind.registers or channels % (wide * kind.lanes):
            continue
        made = matrices(device, (points, depth, channels), Tile(high, (kind.lanes,) * wide))
        spent = min(seconds(device, made.launches) for _ in range(40))
        runs = -(-points // high) * channels // (wide * kind.lanes)
        rows.append([depth * max(high * wide, LEAST), depth * (high + wide), 1.0])
        found.append(spent / runs)
    matrix, target = np.array(rows), np.array(found)
    unit, load_, begin = np.linalg.lstsq(
        matrix / target[:, None], np.ones(len(target)), rcond=None
    )[0]
    off = matrix @ [unit, load_, begin] / target - 1
    return (
        f"LOAD {load_ / unit:.2f} (is {LOAD}), BEGIN {begin / unit:.0f} (is {BEGIN}), with LEAST "
        f"{LEAST}; a product of vectors takes {unit * 1e9:.3f} ns; the middle error is "
        f"{np.median(np.abs(off)):.0%}, the worst {np.abs(off).max():.0%}, of {len(found)} tiles"
    )
