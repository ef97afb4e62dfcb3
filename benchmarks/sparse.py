"""What zeros among the weights are worth: products without them against the same model with all.

    python -m benchmarks.sparse [NAMES...] [--rounds 40] [--threads 1,2] [--targets host,avx2]
                                [--fit] [--no-litert] [--rows FILE] [--cache FOLDER] [--write]

Networks of ../shared/models whose weights are set to zero here by magnitude (answers do not matter
for speed), SqueezeNet as it is stored, MediaPipe's sparse models, and one that meets XNNPACK's
conditions for sparse inference. Sessions with and without sparse kernels (and LiteRT) run in turns
in one process; a figure is a ratio of low quantiles. --fit measures single layers in many cuts and
fits the costs of sparse_plan.py. Most of the time goes into compilation, which needs no quiet
machine: `--rounds 1 --cache FOLDER` leaves the code in a folder for the run that counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.common import SHARED, fresh_cache, table, write_section
from benchmarks.kernels import Row, aligned_copy, feed
from sanderling import load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.kernels.products import sparse, sparse_plan, zeros
from sanderling.delegates.cpu.limit_loops import ticks, timed
from sanderling.format import dump
from sanderling.ir import Array, DType, Graph, Model, Tensor
from sanderling.measure.machine import machine_line
from sanderling.training.without_training.sparse_storage import stored_sparse, xnnpack_conditions

PRODUCTS = ("CONV_2D", "FULLY_CONNECTED")
TURN = 5  # runs of a turn, of which the fastest counts


# -- models ---------------------------------------------------------------------------------------


def by_blocks(share: float, rows: int = 1, columns: int = 1) -> Callable[[Array], Array]:
    """Blocks of the smallest magnitude become zero."""

    def keep(matrix: Array) -> Array:
        n, k = matrix.shape
        full = np.zeros((-(-n // rows) * rows, -(-k // columns) * columns))
        full[:n, :k] = np.abs(matrix.astype(np.float64))
        sizes = full.reshape(len(full) // rows, rows, -1, columns).sum(axis=(1, 3))
        kept = sizes > np.quantile(sizes, share)
        found: Array = kept.repeat(rows, 0).repeat(columns, 1)[:n, :k]
        return found

    return keep


def two_of_four(matrix: Array) -> Array:
    n, k = matrix.shape
    if k % 4:
        return np.ones((n, k), bool)
    order = np.abs(matrix.astype(np.float64)).reshape(n, -1, 4).argsort(axis=2).argsort(axis=2)
    found: Array = (order >= 2).reshape(n, k)
    return found


def pruned(name: str, keep: Callable[[Array], Array] | None) -> Model:
    """A shared model; products of more than four channels are pruned."""
    model = load(SHARED / "models" / f"{name}.tflite")
    for op in model.main.ops if keep is not None else ():
        weights = op.input(1) if op.name in PRODUCTS else None
        if weights is None or weights.data is None or weights.shape[-1] <= 4:
            continue
        matrix = weights.values.reshape(weights.shape[0], -1)
        kept = np.where(keep(matrix), matrix, 0).astype(matrix.dtype)
        weights.data = np.ascontiguousarray(kept.reshape(weights.shape))
    return model


def conforming(share: float = 0.8) -> Model:
    """A network as XNNPACK's sparse inference wants it: 3x3 of stride two over a picture, 1x1 and
    depthwise convolutions with symmetric padding, a mean at the end."""
    graph, rng = Graph("main"), np.random.default_rng(5)
    count = iter(range(1000))

    def tensor(*shape: int) -> Tensor:
        return graph.tensor(f"t{next(count)}", DType.FLOAT32, shape)

    def constant(values: Array) -> Tensor:
        return graph.constant(f"c{next(count)}", values)

    def conv(x: Tensor, units: int, act: str = "RELU") -> Tensor:
        channels = x.shape[3]
        w = rng.normal(size=(units, channels)) / np.sqrt(channels * (1 - share))
        w = (w * by_blocks(share)(w)).astype(np.float32).reshape(units, 1, 1, channels)
        y = tensor(*x.shape[:3], units)
        bias = constant(np.zeros(units, np.float32))
        window = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
        graph.add("CONV_2D", [x, constant(w), bias], [y], fused_activation_function=act, **window)
        return y

    def around(x: Tensor) -> Tensor:
        n, height, width, channels = x.shape
        y = tensor(n, height + 2, width + 2, channels)
        pads = graph.constant(
            f"c{next(count)}", np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32)
        )
        graph.add("PAD", [x, pads], [y])
        return y

    def depthwise(x: Tensor, stride: int) -> Tensor:
        n, height, width, channels = x.shape
        w = constant((rng.normal(size=(1, 3, 3, channels)) / 3).astype(np.float32))
        y = tensor(n, height // stride, width // stride, channels)
        bias = constant(np.zeros(channels, np.float32))
        window = {"stride_h": stride, "stride_w": stride, "depth_multiplier": 1}
        x, padding = (around(x), "VALID") if stride == 2 else (x, "SAME")
        graph.add(
            "DEPTHWISE_CONV_2D",
            [x, w, bias],
            [y],
            padding=padding,
            fused_activation_function="RELU",
            **window,
        )
        return y

    picture = graph.input("picture", DType.FLOAT32, (1, 224, 224, 3))
    first = constant((rng.normal(size=(32, 3, 3, 3)) / 5).astype(np.float32))
    x = tensor(1, 112, 112, 32)
    bias = constant(np.zeros(32, np.float32))
    window = {"padding": "VALID", "stride_h": 2, "stride_w": 2}
    graph.add(
        "CONV_2D", [around(picture), first, bias], [x], **window, fused_activation_function="RELU"
    )
    for units, stride, times in ((64, 1, 1), (128, 2, 2), (256, 2, 2), (512, 2, 6), (1024, 2, 2)):
        for number in range(times):
            x = conv(depthwise(x, stride if number == 0 else 1), units)
    y = tensor(1, 1, 1, x.shape[3])
    axes = graph.constant("axes", np.array([1, 2], np.int32))
    graph.add("MEAN", [x, axes], [y], keep_dims=True)
    graph.outputs = [y]
    return Model([graph])


@dataclass(frozen=True)
class Subject:
    name: str
    make: Callable[[], Model]


SUBJECTS = (
    Subject(
        "EfficientNet-Lite0 f32, 80 % of single weights",
        partial(pruned, "efficientnet_lite0_224_f32", by_blocks(0.8)),
    ),
    Subject(
        "EfficientNet-Lite0 f32, 80 % in blocks of 4x1",
        partial(pruned, "efficientnet_lite0_224_f32", by_blocks(0.8, 4, 1)),
    ),
    Subject(
        "EfficientNet-Lite0 f32, 2:4", partial(pruned, "efficientnet_lite0_224_f32", two_of_four)
    ),
    Subject("SqueezeNet f32 as it is", partial(pruned, "squeezenet_v1.0_deepcompressed_f32", None)),
    Subject(
        "MobileNetV2 int8, 80 % in blocks of 1x4",
        partial(pruned, "coral_tf2_mobilenet_v2_1.0_224_ptq", by_blocks(0.8, 1, 4)),
    ),
    Subject(
        "MobileNetV2 int8, 80 % of single weights",
        partial(pruned, "coral_tf2_mobilenet_v2_1.0_224_ptq", by_blocks(0.8)),
    ),
)
BESIDE = (
    Subject(
        "MediaPipe face detection, full range, sparse",
        partial(pruned, "mediapipe_face_detection_full_range_f16sparse", None),
    ),
    Subject(
        "MediaPipe pose detection, sparse",
        partial(pruned, "mediapipe_pose_detection_f16sparse", None),
    ),
    Subject("MobileNet-like that meets XNNPACK's conditions, 80 %", conforming),
)


# -- sessions -------------------------------------------------------------------------------------


def feeds_of(model: Model) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        t.name: rng.normal(size=t.shape).astype(np.float32)
        if t.dtype is DType.FLOAT32
        else rng.integers(0, 100, t.shape).astype(t.dtype.numpy)
        for t in model.main.inputs
    }


class Ours:
    """A session whose steps are counted."""

    def __init__(self, model: Model, target: str | None, threads: int, sparse: bool) -> None:
        delegate = CpuDelegate(target, sparse=sparse, timed=True)
        self.rate = ticks(delegate.target)
        self.session = model.compile([delegate], threads=threads)
        self.bound = self.session.bind(feeds_of(model))
        self.bound.run()
        plan: Any = self.bound.plan
        self.executables = [s.executable for s in plan.steps if hasattr(s.executable, "times")]
        self.whole: list[float] = []
        self.steps: list[Array] = []

    def run(self) -> None:
        """A turn: the fastest of a few runs, since others use the machine as well."""
        seconds, steps = min((self._once() for _ in range(TURN)), key=lambda run: run[0])
        self.whole.append(seconds)
        self.steps.append(steps)

    def _once(self) -> tuple[float, Array]:
        for executable in self.executables:
            executable.times[:] = 0
        begin = time.perf_counter()
        self.bound.run()
        seconds = time.perf_counter() - begin
        found = [e.times.max(axis=0)[: len(e.compiled.report)] for e in self.executables]
        assert any(times.any() for times in found), "no step was counted"
        return seconds, np.concatenate(found).astype(float) / self.rate

    @property
    def report(self) -> list[dict[str, str]]:
        return [row for e in self.executables for row in e.compiled.report]

    def pointwise(self) -> dict[str, float]:
        """Seconds of 1x1 convolutions that are steps of their own, by the op."""
        times = low(self.steps)
        return {
            row["op"]: seconds
            for row, seconds in zip(self.report, times, strict=True)
            if row["kernel"].startswith("conv_2d")
        }


class Litert:
    def __init__(self, model: Model, threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.interpreter = Interpreter(model_content=dump(model), num_threads=threads)
        self.interpreter.allocate_tensors()
        for held, array in zip(
            self.interpreter.get_input_details(), feeds_of(model).values(), strict=True
        ):
            self.interpreter.set_tensor(held["index"], array)
        self.whole: list[float] = []

    def run(self) -> None:
        self.whole.append(min(timed(self.interpreter.invoke) for _ in range(TURN)))


def in_turns(runners: Sequence[Any], rounds: int) -> None:
    for _ in range(rounds):
        for runner in runners:
            runner.run()


def low(samples: Any) -> Array:
    """What a fifth of the samples stays below: a machine that others use disturbs the rest."""
    return np.quantile(samples, 0.2, axis=0)


def clock(runner: Any) -> float:
    return float(low(runner.whole))


# -- figures --------------------------------------------------------------------------------------


def compared(subject: Subject, target: str | None, threads: int, rounds: int) -> list[object]:
    """A row: how many products without zeros, the ratios of pointwise layers and of the whole."""
    model = subject.make()
    dense, thin = (Ours(model, target, threads, on) for on in (False, True))
    in_turns((dense, thin), rounds)
    before, after = dense.pointwise(), thin.pointwise()
    sparse_ops = {row["op"] for row in thin.report if row["kernel"].endswith("_sparse")}
    both = [op for op in after if op in before and op in sparse_ops]
    pointwise = sum(before[op] for op in both) / max(sum(after[op] for op in both), 1e-9)
    steps = low(dense.steps).sum() / low(thin.steps).sum()
    told = [row["zeros"] for row in thin.report if row["zeros"]]
    return [
        subject.name,
        target or "host",
        threads,
        f"{len(sparse_ops)} of {len(told)}",
        f"{pointwise:.2f} ({len(both)})" if pointwise else "-",
        f"{steps:.2f}",
        f"{clock(dense) / clock(thin):.2f}",
        f"{1e3 * clock(thin):.2f}",
    ]


def beside(subject: Subject, threads: int, rounds: int) -> list[object]:
    """A row: LiteRT's time over ours, with and without sparse kernels."""
    model = subject.make()
    stored = model
    densified = any(op.name == "DENSIFY" for op in model.main.ops)
    runners: list[Any] = [Ours(model, None, threads, on) for on in (True, False)]
    if not densified:
        stored, _ = stored_sparse(model)
        broken = xnnpack_conditions(stored)
        assert not broken, broken
        runners.append(Litert(model, threads))
    runners.append(Litert(stored, threads))
    in_turns(runners, rounds)
    ours, dense, *theirs = map(clock, runners)
    gain = "-" if densified else f"{theirs[0] / theirs[-1]:.2f}"
    return [
        subject.name,
        threads,
        f"{1e3 * ours:.2f}",
        f"{dense / ours:.2f}",
        gain,
        f"{theirs[-1] / ours:.2f}",
    ]


# -- the fit --------------------------------------------------------------------------------------

LAYERS = [(56, 56, 24, 144), (56, 56, 144, 24), (28, 28, 40, 240), (28, 28, 240, 40),
          (14, 14, 112, 672), (14, 14, 480, 80), (7, 7, 192, 1152), (7, 7, 1152, 320),
          (27, 27, 64, 256)]  # fmt: skip


def layer_model(shape: tuple[int, ...], share: float) -> Model:
    model = Row("f32", *shape).model()
    weights = next(t for t in model.main.tensors if t.name == "w")
    matrix = weights.values.reshape(weights.shape[0], -1)
    weights.data = np.where(by_blocks(share)(matrix), matrix, 0).reshape(weights.shape)
    return model


def measured(model: Model, cut: sparse_plan.Cut, rate: float, rounds: int) -> float:
    """Seconds of the layer in this cut: the fastest of some runs, one thread."""
    shape = model.main.inputs[0].shape
    x = aligned_copy(feed(Row("f32", *shape[1:], 1), shape))
    always = property(lambda judgement: judgement.sparse is not None)
    with (
        mock.patch.object(sparse, "best_cut", lambda *given: (0.0, cut)),
        mock.patch.object(zeros.Judgement, "pays", always),
    ):
        session = model.compile([CpuDelegate(timed=True, cache=False)], threads=1)
        bound = session.bind({"x": x})
        bound.run()
    plan: Any = bound.plan
    executable = plan.steps[0].executable
    best = np.inf
    for _ in range(rounds):
        executable.times[:] = 0
        bound.run()
        best = min(best, float(executable.times[0, 0]))
    return best / rate


def points(rounds: int) -> Iterator[tuple[Array, float]]:
    """(how often each cost is paid, cycles)."""
    target = CpuDelegate().target
    rate = ticks(target)
    hertz = clock_of(target)
    for number, shape in enumerate(LAYERS):
        for share in (0.5, 0.8, 0.9):
            model = layer_model(shape, share)
            weights = model.main.ops[0].operand(1).values
            used = weights.reshape(weights.shape[0], -1) != 0
            entries, m = int(used.sum()), shape[0] * shape[1]
            able = [c for c in sparse_plan.cuts(target, m, *used.shape) if c.together == 1]
            for cut in islice(able, number % 4, None, 4):
                seconds = measured(model, cut, rate, rounds)
                yield sparse_plan.terms(cut, entries), seconds * hertz


def clock_of(target: Any) -> float:
    """Cycles a second: two multiply-adds of whole vectors go in one."""
    from benchmarks.kernels import peak

    return peak(target, "f32") * 1e9 / (2 * target.lanes)


def fit(rounds: int) -> str:
    """Least squares of relative errors, no cost below nothing."""
    found = list(points(rounds))
    terms, cycles = np.array([t for t, _ in found]), np.array([c for _, c in found])
    costs = fitted(terms / cycles[:, None])
    names = ("entry", "bundle of entries", "load", "end of a bundle", "sum", "square in", "out")
    rows = [
        (name, f"{old:.2f}", f"{new:.2f}")
        for name, old, new in zip(names, sparse_plan.COSTS, costs, strict=True)
    ]
    errors = [np.abs(terms @ c / cycles - 1) for c in (sparse_plan.COSTS, costs)]
    told = ", ".join(f"{np.median(e):.1%} and {np.quantile(e, 0.9):.1%}" for e in errors)
    about = f"{len(cycles)} layers and cuts. Errors, median and 90 %, as set and as fitted: {told}."
    return f"{table(('cycles of', 'set', 'fitted'), rows)}\n\n{about}"


def fitted(relative: Array) -> Array:
    """Non-negative least squares: what comes out negative is left out, and the rest is fitted."""
    active = list(range(relative.shape[1]))
    while True:
        costs = np.zeros(relative.shape[1])
        solved = np.linalg.lstsq(relative[:, active], np.ones(len(relative)), rcond=None)[0]
        costs[active] = solved
        if (solved >= 0).all():
            return costs
        active = [a for a, c in zip(active, solved, strict=True) if c >= 0]


# -- output ---------------------------------------------------------------------------------------

HEADER = ("network", "target", "threads", "sparse products", "pointwise", "steps", "clock",
          "ms")  # fmt: skip
BESIDE_HEADER = ("network", "threads", "ms", "ours dense / sparse", "LiteRT dense / sparse",
                 "LiteRT / ours")  # fmt: skip


def wanted(subjects: Sequence[Subject], names: Sequence[str]) -> list[Subject]:
    return [s for s in subjects if not names or any(n in s.name for n in names)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of networks (default: all)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--targets", default="host,avx2")
    parser.add_argument("--fit", action="store_true", help="fit the costs instead")
    parser.add_argument("--no-litert", action="store_true")
    parser.add_argument("--rows", help="a file of rows that are kept, and not measured again")
    parser.add_argument("--cache", help="a folder of code that is compiled once")
    parser.add_argument("--write", action="store_true", help="into RESULTS.md")
    options = parser.parse_args()
    if options.fit:
        finish("sparse-fit", fit(options.rounds), options.write)
        return
    threads = [int(n) for n in options.threads.split(",")]
    targets = [None if t == "host" else t for t in options.targets.split(",")]
    kept = Kept(Path(options.rows) if options.rows else None)
    others = [] if options.no_litert else wanted(BESIDE, options.names)
    with fresh_cache(options.cache):
        for subject, target in product(wanted(SUBJECTS, options.names), targets):
            for count in threads:
                key = f"{subject.name} {target} {count}"
                kept.add("networks", key, partial(compared, subject, target, count, options.rounds))
        for subject, count in product(others, threads):
            key = f"{subject.name} {count}"
            kept.add("beside", key, partial(beside, subject, count, options.rounds))
    text = f"{table(HEADER, kept.rows('networks'))}\n\n{NOTES}"
    text += f"\n\n{table(BESIDE_HEADER, kept.rows('beside'))}\n\n{BESIDE_NOTES}"
    finish("sparse", text, options.write)


class Kept:
    """Rows as they are measured, on the terminal and in a file: a run that is interrupted goes on
    from there."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text("utf-8").splitlines() if path and path.is_file() else []
        self.found: list[dict[str, Any]] = [json.loads(line) for line in lines]

    def add(self, kind: str, key: str, measure: Callable[[], list[object]]) -> None:
        if any(row["key"] == key for row in self.found):
            return
        self.found.append({"kind": kind, "key": key, "row": measure()})
        line = json.dumps(self.found[-1])
        print(line, file=sys.stderr, flush=True)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def rows(self, kind: str) -> list[list[object]]:
        return [row["row"] for row in self.found if row["kind"] == kind]


NOTES = (
    "Time of the model with all its weights over the time without its zeros. Turns of five runs, "
    "of which the fastest counts; of all turns, what a fifth stays below. sparse products: how "
    "many were chosen, of those with 30 % zeros or more. pointwise: over the convolutions that "
    "were chosen and are steps of their own in both (how many). steps: all steps of the network. "
    "clock: around the run, with whatever else ran on the machine; ms is that of the sparse one."
)
BESIDE_NOTES = (
    "ms: ours. LiteRT dense / sparse: the same network stored dense and stored sparse, in LiteRT. "
    "LiteRT / ours: the sparse files. XNNPACK has sparse kernels for x86 without AVX alone (on "
    "processors with AVX it expects its dense ones to be faster), so LiteRT multiplies all zeros "
    "here: a profile by samples (`perf record -e cpu-clock`) of the sparse MediaPipe model and of "
    "the conforming network has `xnn_f32_gemm` and no `spmm`."
)


TITLES = {"sparse": "## Zeros left out", "sparse-fit": "### Sparse products: the fitted costs"}


def finish(name: str, text: str, write: bool) -> None:
    print(text)
    if write:
        write_section(name, f"{TITLES[name]}\n\n{machine_line()}\n\n{text}")


if __name__ == "__main__":
    main()
