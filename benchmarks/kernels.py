"""Each kernel's share of the machine's measured peak, beside LiteRT's time for the same op.

    python -m benchmarks.kernels [NAME...] [--target avx2] [--rounds 30] [--no-litert] [--write]
    python -m benchmarks.kernels --delegate gpu     layers and networks there: gpu_kernels.py

A row is a model of one op at the shape of a layer of a real network, one thread. Ours is the best
time of the op's step alone (what stands at the border of the part is not counted; in a network it
is not there); LiteRT's is its best `invoke`. The peak is that of a loop of multiply-adds on
registers, measured beside each row: on a shared machine believe ratios, not figures. (A 3x3 layer
of floats may exceed it: Winograd's way needs fewer products.) LiteRT cannot be held to a target:
its time is that on all that the machine has. `--write` keeps the table in RESULTS.md by type of
machine.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import Target
from sanderling.delegates.cpu.limit_loops import Work, multiply, ticks, timed
from sanderling.delegates.cpu.runtime.executable import aligned
from sanderling.format import dump
from sanderling.ir import DType, Graph, Model, Quant, Tensor
from sanderling.measure.machine import machine_line
from sanderling.measure.roofline import best
from sanderling.ops import cost

from . import gpu_kernels
from .common import machine_type, table, write_machine_section


@dataclass(frozen=True)
class Row:
    """A layer. kind: f32 or i8; a FULLY_CONNECTED has height 0 (then width is the batch)."""

    kind: str
    height: int
    width: int
    depth: int
    units: int
    kernel: int = 1
    stride: int = 1

    @property
    def name(self) -> str:
        if not self.height:
            return f"fc_{self.kind}_{self.width}x{self.depth}_{self.units}"
        size = f"{self.height}x{self.width}x{self.depth}_{self.units}"
        more = f"_k{self.kernel}" * (self.kernel > 1) + f"_s{self.stride}" * (self.stride > 1)
        return f"conv_{self.kind}_{size}{more}"

    def model(self) -> Model:
        graph, rng = Graph("main"), np.random.default_rng(1)
        plain = (self.units, self.depth)
        shape = (
            (1, self.height, self.width, self.depth) if self.height else (self.width, self.depth)
        )
        filters = (self.units, self.kernel, self.kernel, self.depth) if self.height else plain
        x, w, b = self._operands(graph, shape, filters, rng)
        out = Tensor("y", x.dtype, self._out(), quant=Quant.of(0.05, 3) if x.quant else None)
        attrs: dict[str, Any] = {"fused_activation_function": "RELU6"}
        if self.height:
            attrs |= {"padding": "SAME", "stride_h": self.stride, "stride_w": self.stride}
        graph.tensors.append(out)
        graph.add("CONV_2D" if self.height else "FULLY_CONNECTED", [x, w, b], [out], **attrs)
        graph.outputs = [out]
        return Model([graph])

    def _out(self) -> tuple[int, ...]:
        if not self.height:
            return (self.width, self.units)
        return (1, -(-self.height // self.stride), -(-self.width // self.stride), self.units)

    def _operands(
        self,
        graph: Graph,
        shape: tuple[int, ...],
        filters: tuple[int, ...],
        rng: np.random.Generator,
    ) -> tuple[Tensor, Tensor, Tensor]:
        if self.kind == "f32":
            return (
                graph.input("x", DType.FLOAT32, shape),
                graph.constant("w", _filters(rng, filters)),
                graph.constant("b", np.ones(self.units, np.float32)),
            )
        scales = rng.uniform(0.001, 0.01, self.units).astype(np.float32)
        codes = rng.integers(-127, 128, filters).astype(np.int8)
        bias = rng.integers(-1000, 1000, self.units).astype(np.int32)
        return (
            graph.input("x", DType.INT8, shape, quant=Quant.of(0.02, -3)),
            graph.constant("w", codes, quant=Quant.of(scales)),
            graph.constant("b", bias, quant=Quant.of(scales * np.float32(0.02))),
        )


def _filters(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Results of about the size of the inputs, so that the activation's bounds cut few of them."""
    return (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


# Layers of MobileNetV2, EfficientNet-Lite0, ResNet, Darknet, and the small networks of MLPerf Tiny.
_BOTH = [
    (112, 112, 32, 16), (112, 112, 16, 96), (56, 56, 96, 24), (56, 56, 24, 144), (56, 56, 144, 24),
    (28, 28, 144, 32), (28, 28, 32, 192), (28, 28, 192, 32), (28, 28, 240, 40), (14, 14, 192, 64),
    (14, 14, 64, 384), (14, 14, 384, 96), (14, 14, 480, 80), (14, 14, 112, 672), (14, 14, 576, 96),
    (7, 7, 576, 160), (7, 7, 160, 960), (7, 7, 960, 320), (7, 7, 320, 1280), (7, 7, 1024, 1024),
    (224, 224, 3, 32, 3, 2), (56, 56, 64, 64, 3), (28, 28, 128, 128, 3), (14, 14, 256, 256, 3),
    (7, 7, 512, 512, 3), (64, 64, 16, 32, 3), (32, 32, 16, 16, 3), (56, 56, 64, 128, 1, 2),
    (0, 1, 1280, 1001), (0, 1, 640, 128), (0, 1, 128, 8), (0, 1, 8, 128), (0, 128, 384, 1536),
]  # fmt: skip
KINDS = ("f32", "i8")
ROWS = [Row(kind, *shape) for kind in KINDS for shape in _BOTH]


@cache
def worker(target: Target, kind: str) -> Work:
    make = multiply(target, kind)
    assert make is not None
    return make()


def peak(target: Target, kind: str) -> float:
    """Multiply-adds a second of one core, in units of 1e9."""
    return best([worker(target, kind)], tries=10) / 1e9


class Ours:
    """The best time of the op's step; the answer is checked against the reference."""

    def __init__(self, model: Model, target: str | None, x: np.ndarray, rate: float) -> None:
        session = model.compile([CpuDelegate(target, timed=True)], threads=1)
        answer = aligned_copy(np.array(session(x)))
        expected = np.array(model.compile(["reference"])(x))
        top = np.abs(expected.astype(np.float64)).max()
        gap = np.abs(answer.astype(np.float64) - expected).max()
        assert gap <= (1 if answer.dtype == np.int8 else 1e-4 * top), f"wrong by {gap}"
        self.bound = session.bind({"x": x}, {"y": answer})
        plan: Any = self.bound.plan
        self.executable = plan.steps[0].executable
        names = self.executable.compiled.steps
        self.step = next(i for i, n in enumerate(names) if "conv" in n or "fully" in n)
        self.rate = rate

    def run(self) -> float:
        self.executable.times[:] = 0
        self.bound.run()
        return float(self.executable.times[0, self.step]) / self.rate


class Litert:
    def __init__(self, model: Model, x: np.ndarray) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.interpreter = Interpreter(model_content=dump(model), num_threads=1)
        self.interpreter.allocate_tensors()
        self.interpreter.set_tensor(self.interpreter.get_input_details()[0]["index"], x)

    def run(self) -> float:
        return timed(self.interpreter.invoke)


def aligned_copy(values: np.ndarray) -> np.ndarray:
    """In a network activations lie in the arena, on whole cache lines; NumPy's arrays need not."""
    room = aligned(values.nbytes)[: values.nbytes].view(values.dtype).reshape(values.shape)
    room[...] = values
    return room


def feed(row: Row, shape: tuple[int, ...]) -> np.ndarray:
    rng = np.random.default_rng(2)
    if row.kind == "f32":
        return rng.normal(size=shape).astype(np.float32)
    return rng.integers(-128, 128, shape).astype(np.int8)


def measure(row: Row, options: argparse.Namespace, rate: float) -> tuple[float, float, int]:
    """Seconds of ours, of LiteRT, and multiply-adds; rounds are interleaved."""
    model = row.model()
    x = aligned_copy(feed(row, model.main.inputs[0].shape))
    engines: list[Any] = [Ours(model, options.target, x, rate)]
    engines += [] if options.no_litert else [Litert(model, x)]
    best = [float("inf")] * 2
    stop = time.perf_counter() + options.budget
    rounds = 0
    while rounds < options.rounds or time.perf_counter() < stop:
        rounds += 1
        for i, engine in enumerate(engines):
            engine.run()
            best[i] = min(best[i], engine.run(), engine.run())
    return best[0], best[1], cost(model.main.ops[0]).macs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of rows (default: all)")
    parser.add_argument("--target", help="force a target of the compiler")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=0.15, help="least seconds for a row")
    parser.add_argument("--no-litert", action="store_true")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    parser.add_argument("--delegate", choices=("cpu", "gpu"), default="cpu")
    gpu_kernels.add_arguments(parser.add_argument_group("with --delegate gpu"))
    options = parser.parse_args()
    if options.delegate == "gpu":
        gpu_kernels.main(options)
        return
    target = CpuDelegate(options.target).target
    text = measure_all(target, options)
    if options.write:
        title = f"## Kernels: {machine_type(target.name)}"
        write_machine_section("kernels", target.name, f"{title}\n\n{machine_line()}\n\n{text}")


HEADER = ["kernel", "us", "of peak", "LiteRT us", "ratio"]
# Seconds of a step that its ticks can tell: reading the clock takes a quarter of it.
SHORTEST = 1e-7


def measure_all(target: Target, options: argparse.Namespace) -> str:
    """The table, which is printed as it grows, with what stands around it."""
    rate = ticks(target)
    loops = {kind: partial(peak, target, kind) for kind in KINDS}
    tops = ", ".join(f"{loop():.0f} {kind}" for kind, loop in loops.items())
    lines = [
        f"{target.name}: peak in GMAC/s {tops}; one thread, `python -m benchmarks.kernels`.",
        "",
    ]
    lines += table(HEADER, []).splitlines()
    print("\n".join(lines))
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    shares: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for row in ROWS:
        if options.names and not any(n in row.name for n in options.names):
            continue
        before = loops[row.kind]()
        ours, theirs, macs = measure(row, options, rate)
        top = max(before, loops[row.kind]())
        lines.append(_line(row.name, ours, theirs, macs / 1e9 / top))
        print(lines[-1], flush=True)
        if ours >= SHORTEST:
            ratios[row.kind].append(theirs / ours)
            shares[row.kind].append(macs / 1e9 / top / ours)
    ends = [_mean(kind, shares[kind], ratios[kind], options) for kind in KINDS if ratios[kind]]
    print("\n" + "\n".join(ends))
    return "\n".join([*lines, "", *ends])


def _line(name: str, ours: float, theirs: float, least: float) -> str:
    """A row of the table. least: seconds that the multiply-adds take at the peak."""
    peer = f"{theirs * 1e6:.1f}" if np.isfinite(theirs) else "-"
    if ours < SHORTEST:
        return f"| {name} | < {SHORTEST * 1e6:.1f} | - | {peer} | - |"
    ratio = f"{theirs / ours:.2f}" if np.isfinite(theirs) else "-"
    return f"| {name} | {ours * 1e6:.1f} | {least / ours:.0%} | {peer} | {ratio} |"


def _mean(kind: str, shares: list[float], ratios: list[float], options: argparse.Namespace) -> str:
    share, ratio = (np.exp(np.mean(np.log(found))) for found in (shares, ratios))
    against = "" if options.no_litert else f", {ratio:.2f}x LiteRT"
    return f"- {kind}, geometric mean: {share:.0%} of the peak{against}"


if __name__ == "__main__":
    main()
