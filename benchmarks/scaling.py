"""Does cost grow as it should? A convolution stack, scaled along one axis at a time, with LiteRT.

    python -m benchmarks.scaling [--axes channels,threads] [--kinds f32,int8] [--seconds 1]
                                 [--json FILE] [--write]

The stack is `depth` convolutions of 3x3 with a ReLU, channels to channels, on a square input. Along
an axis the others stay at BASE. A cliff is flagged where a smaller problem takes longer than the
next larger one, where the rate (MAC a second) falls and LiteRT's does not, or where more threads
take longer than fewer; the best samples decide, and the table shows medians.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

from benchmarks.common import fresh_cache, table, write_json, write_section
from sanderling import DType, Graph, Model, Quant, Tensor, save
from sanderling.measure.bench_tables import milliseconds
from sanderling.measure.engines import job_for
from sanderling.measure.inputs import feeds
from sanderling.measure.interleaving import Samples, measure
from sanderling.measure.machine import machine_line
from sanderling.measure.record import Setting
from sanderling.measure.sample_statistics import median_of_rounds, ratio

SCHEMA = "sanderling.scaling/1"
ENGINES = ("sanderling", "litert")
# Round numbers, one below and one above a vector's width, and real networks' sizes. Each grows.
AXES: dict[str, tuple[int, ...]] = {
    "channels": (4, 8, 15, 16, 17, 24, 32, 33, 48, 64, 96, 128),
    "resolution": (7, 8, 14, 15, 28, 33, 56, 112),
    "depth": (1, 2, 4, 8, 16),
    "batch": (1, 2, 3, 4, 8),
    "threads": (1, 2, 3, 4),
}
SLOWER = 1.15  # a smaller problem may take this much longer than a larger one: noise
FALL = 1.6  # and the rate may fall by so much more than LiteRT's from one point to the next
THREADS_WITHIN, THREADS_BEYOND = 1.15, 2.0  # cost of one more thread: with a core, without one


@dataclass(frozen=True)
class Point:
    channels: int = 32
    resolution: int = 28
    depth: int = 4
    batch: int = 1
    threads: int = 1

    @property
    def macs(self) -> int:
        return self.batch * self.depth * self.resolution**2 * 9 * self.channels**2


BASE = Point()


@dataclass
class Found:
    """A point of an axis, measured."""

    kind: str
    axis: str
    point: Point
    samples: dict[str, Samples] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    cliff: str = ""

    def seconds(self, engine: str) -> float:
        rounds = self.samples.get(engine)
        return median_of_rounds(rounds) if rounds else float("nan")

    def rate(self, engine: str) -> float:
        return self.point.macs / self.seconds(engine)

    def fastest(self, engine: str) -> float:
        """The best sample: a cliff is a property of the code, and a disturbance is not one."""
        return min((t for r in self.samples.get(engine, ()) for t in r), default=float("nan"))


# -- the stack ----------------------------------------------------------------------------------


def stack(point: Point, kind: str) -> Model:
    graph, rng = Graph("main"), np.random.default_rng(0)
    shape = (point.batch, point.resolution, point.resolution, point.channels)
    dtype = DType.FLOAT32 if kind == "f32" else DType.INT8
    quant = None if kind == "f32" else Quant.of(0.05, 3)
    last = graph.input("x", dtype, shape, quant=quant)
    for index in range(point.depth):
        made = graph.tensor(f"y{index}", dtype, shape, quant=quant)
        graph.add(
            "CONV_2D",
            [last, *_weights(graph, point.channels, kind, index, rng)],
            [made],
            padding="SAME",
            stride_w=1,
            stride_h=1,
            dilation_w_factor=1,
            dilation_h_factor=1,
            fused_activation_function="RELU",
        )
        last = made
    graph.outputs = [last]
    return Model([graph])


def _weights(
    graph: Graph, channels: int, kind: str, index: int, rng: np.random.Generator
) -> list[Tensor]:
    """Filter and bias that keep the signal's size from layer to layer."""
    reals = rng.standard_normal((channels, 3, 3, channels)) * np.sqrt(2 / (9 * channels))
    if kind == "f32":
        return [
            graph.constant(f"w{index}", reals.astype(np.float32)),
            graph.constant(f"b{index}", np.zeros(channels, np.float32)),
        ]
    scale = np.abs(reals).max(axis=(1, 2, 3)) / 127
    codes = np.round(reals / scale[:, None, None, None]).astype(np.int8)
    zeros = np.zeros(channels, np.int64)
    bias = Quant.of(0.05 * scale, zeros, 0)
    return [
        graph.constant(f"w{index}", codes, quant=Quant.of(scale, zeros, 0)),
        graph.constant(f"b{index}", np.zeros(channels, np.int32), quant=bias),
    ]


# -- measuring ----------------------------------------------------------------------------------


def run_axis(kind: str, axis: str, seconds: float, folder: Path) -> list[Found]:
    found = [run_point(kind, axis, value, seconds, folder) for value in AXES[axis]]
    flag(axis, found)
    return found


def run_point(kind: str, axis: str, value: int, seconds: float, folder: Path) -> Found:
    point = replace(BASE, **{axis: value})
    model = stack(point, kind)
    path = folder / f"{kind}_{axis}_{value}.tflite"
    save(model, path)
    model.source, inputs = str(path), feeds(model)
    jobs = {e: job_for(model, Setting(e, point.threads), inputs) for e in ENGINES}
    made = measure(jobs, seconds)
    return Found(kind, axis, point, made.samples, made.errors)


def flag(axis: str, found: Sequence[Found]) -> None:
    """Name the cliffs between neighbours."""
    for one, two in itertools.pairwise(found):
        growth = two.fastest("sanderling") / one.fastest("sanderling")
        if axis == "threads":
            limit = THREADS_WITHIN if two.point.threads <= (os.cpu_count() or 1) else THREADS_BEYOND
            two.cliff = "one more thread is slower" if growth > limit else ""
        elif 1 / growth > SLOWER:
            one.cliff = "slower than the next larger"
        elif _fall(one, two, "sanderling") > FALL * max(1.0, _fall(one, two, "litert")):
            two.cliff = "the rate falls"


def _fall(one: Found, two: Found, engine: str) -> float:
    """By what factor MAC a second are fewer at the second point."""
    growth = two.fastest(engine) / one.fastest(engine)
    return growth * one.point.macs / two.point.macs


# -- tables -------------------------------------------------------------------------------------


def report(found: Sequence[Found]) -> str:
    header = [
        "kind",
        "axis",
        "value",
        "MMAC",
        "sanderling ms",
        "LiteRT ms",
        "LiteRT / ours",
        "GMAC/s",
        "LiteRT's",
        "cliff",
    ]
    errors = [
        f"- {f.kind} {f.axis} {getattr(f.point, f.axis)}, {engine}: {why}"
        for f in found
        for engine, why in f.errors.items()
    ]
    cliffs = sum(bool(f.cliff) for f in found)
    about = f"BASE: {', '.join(f'{k} {v}' for k, v in asdict(BASE).items())}."
    verdict = (
        f"{cliffs} cliff{'s' * (cliffs != 1)} in {len(found)} points." if cliffs else "No cliff."
    )
    text = [about, table(header, map(_cells, found), left=2), verdict, "\n".join(errors)]
    return "\n\n".join(t for t in text if t)


def _cells(one: Found) -> list[str]:
    head = [one.kind, one.axis, str(getattr(one.point, one.axis)), f"{one.point.macs / 1e6:.1f}"]
    if len(one.samples) < len(ENGINES):
        return [*head, "-", "-", "-", "-", "-", "failed"]
    times = [milliseconds(one.seconds(e)) for e in ENGINES]
    rates = [f"{one.rate(e) / 1e9:.1f}" for e in ENGINES]
    return [
        *head,
        *times,
        str(ratio(one.samples["litert"], one.samples["sanderling"])),
        *rates,
        one.cliff,
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    found: list[Found] = []
    with fresh_cache(), tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds.split(","):
            for axis in options.axes.split(","):
                print(f"{kind} {axis}", file=sys.stderr, flush=True)
                found += run_axis(kind, axis, options.seconds, Path(folder))
    text = report(found)
    if options.json != "-":
        print(text)
    if options.json:
        write_json(options.json, SCHEMA, {"points": [asdict(f) for f in found]})
    if options.write:
        write_section("scaling", f"## Scaling\n\n{machine_line()}\n\n{text}")
    return int(any(f.cliff for f in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axes", default=",".join(AXES))
    parser.add_argument("--kinds", default="f32,int8")
    parser.add_argument("--seconds", type=float, default=1, help="a point")
    parser.add_argument("--json", metavar="FILE", help="all samples; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
