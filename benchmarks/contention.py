"""What do threads gain where others use the cores, too? With LiteRT, in turns.

    python -m benchmarks.contention [MODEL.tflite ...] [--threads 1,2,3,4] [--busy 0,1,2]
                                    [--seconds 4] [--json FILE] [--write]
    python -m benchmarks.contention --runs 10000 [MODEL.tflite ...]

Beside each measurement so many processes compute without end. The table has the median and the 95th
percentile of a run's time. A line is flagged where two threads are slower than one or than LiteRT's
two, or more threads than CPUs slower than as many. With --runs: so many runs on 1 to 8 workers with
two busy processes beside them, each compared with the answer of one thread; exit status 1 if one
differs.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from benchmarks.common import (
    fresh_cache,
    machine_type,
    model_paths,
    table,
    write_json,
    write_machine_section,
)
from sanderling import load
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.delegates.cpu.runtime import division
from sanderling.measure.engines import job_for
from sanderling.measure.inputs import feeds
from sanderling.measure.interleaving import measure
from sanderling.measure.machine import machine_line
from sanderling.measure.record import Setting
from sanderling.processors import usable_cpu_count

SCHEMA = "sanderling.contention/1"
ENGINES = ("sanderling", "litert")
# Of the shared models, if no path is given: quantised and float, small and large steps.
MODELS = "tf2_mobilenet_v2,efficientnet_lite0,deeplabv3_257,minilm,pose,movenet"
WORKERS = range(1, 9)
SLOWER = 1.05  # a median may be so much above another: noise


@dataclass(frozen=True)
class Point:
    model: str
    busy: int
    threads: int
    engine: str


@dataclass(frozen=True)
class Found:
    """Milliseconds."""

    median: float
    p95: float
    runs: int


Table = dict[Point, Found]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Others that use the cores."""
    code = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(code) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


# -- measuring ----------------------------------------------------------------------------------


def measure_model(path: Path, options: argparse.Namespace) -> Iterator[tuple[Point, Found]]:
    model = load(path)
    inputs = feeds(model)
    points = list(itertools.product(_numbers(options.threads), ENGINES))
    jobs = {f"{e} {n}": job_for(model, Setting(e, n), inputs) for n, e in points}
    for busy in _numbers(options.busy):
        print(f"{path.stem}, {busy} busy", file=sys.stderr, flush=True)
        with busy_processes(busy):
            made = measure(jobs, options.seconds)
        for threads, engine in points:
            samples = made.samples.get(f"{engine} {threads}", [])
            times = [1000 * t for turn in samples for t in turn]
            if times:
                yield Point(path.stem, busy, threads, engine), found_of(times)


def found_of(times: Sequence[float]) -> Found:
    return Found(float(np.median(times)), float(np.percentile(times, 95)), len(times))


def flags(found: Table, point: Point, cpus: int) -> list[str]:
    """What should not be, of our own lines."""
    mine = found[point].median

    def slower_than(threads: int, engine: str = "sanderling") -> bool:
        other = found.get(Point(point.model, point.busy, threads, engine))
        return other is not None and mine > SLOWER * other.median

    said = {
        "slower than one thread": 1 < point.threads <= cpus and slower_than(1),
        "slower than LiteRT": slower_than(point.threads, "litert"),
        f"slower than {cpus} threads": point.threads > cpus and slower_than(cpus),
    }
    return [text for text, holds in said.items() if holds]


def report(found: Table, cpus: int) -> str:
    header = ["model", "busy", "threads", "ours, median ms", "p95", "LiteRT, median ms", "p95",
              "LiteRT / ours", "flag"]  # fmt: skip
    rows = []
    for point in (p for p in found if p.engine == "sanderling"):
        ours = found[point]
        theirs = found.get(Point(point.model, point.busy, point.threads, "litert"))
        cells = [f"{theirs.median:.3f}", f"{theirs.p95:.3f}"] if theirs else ["-", "-"]
        ratio = f"{theirs.median / ours.median:.2f}" if theirs else "-"
        said = "; ".join(flags(found, point, cpus))
        rows.append(
            [
                point.model,
                str(point.busy),
                str(point.threads),
                f"{ours.median:.3f}",
                f"{ours.p95:.3f}",
                *cells,
                ratio,
                said,
            ]
        )
    return table(header, rows)


# -- answers ------------------------------------------------------------------------------------


def check_answers(path: Path, runs: int) -> int:
    """How many of so many runs, on all numbers of workers in turn, differ from one thread's."""
    model = load(path)
    alone = model.compile(["cpu"], threads=1)
    entry = alone.entry(None)
    names = {tensor: name for name, tensor in entry.inputs.items()}
    arrays = zip(entry.graph.inputs, feeds(model), strict=True)
    inputs = {names[tensor]: array for tensor, array in arrays}
    expected = alone.run(inputs)
    sessions = [model.compile(["cpu"], threads=n) for n in WORKERS]
    wrong = 0
    begin = time.perf_counter()
    with busy_processes(2):
        for turn in range(runs):
            found = sessions[turn % len(sessions)].run(inputs)
            wrong += any(not np.array_equal(found[k], expected[k]) for k in expected)
    seconds = time.perf_counter() - begin
    print(
        f"{path.stem}: {runs} runs on 1 to {max(WORKERS)} workers, {wrong} differ ({seconds:.0f} s)"
    )
    return wrong


def _check_all(paths: Sequence[Path], runs: int) -> int:
    # Workers without a core of their own are what is tried here.
    division.usable_cpu_count = lambda: max(WORKERS)
    division.WORK_OF_CHUNK = division.WORK_THAT_WAKES = 1
    division.WORK_OF_WORKER, division.ALWAYS_SHARED = 1, True
    return sum(check_answers(path, runs) for path in paths)


# -- the command --------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    paths = model_paths(options.models, "" if options.models else MODELS)
    paths = paths or [Path(str(files("sanderling") / "data")) / "digits_int8.tflite"]
    with fresh_cache():
        if options.runs:
            return int(_check_all(paths, options.runs) > 0)
        found = {p: f for path in paths for p, f in measure_model(path, options)}
    cpus = usable_cpu_count()
    text = report(found, cpus)
    if options.json != "-":
        print(text)
    if options.json:
        rows = [asdict(p) | asdict(f) for p, f in found.items()]
        write_json(options.json, SCHEMA, {"cpus": cpus, "points": rows})
    if options.write:
        target = host_target().name
        about = "Each line beside so many busy processes; engines and numbers of threads in turns."
        title = f"## Contention: {machine_type(target)}\n\n{machine_line()}\n\n{about}"
        write_machine_section("contention", target, f"{title}\n\n{text}")
    return 0


def _numbers(text: str) -> list[int]:
    return [int(n) for n in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL.tflite")
    parser.add_argument("--threads", default="1,2,3,4")
    parser.add_argument("--busy", default="0,1,2", help="processes beside it")
    parser.add_argument("--seconds", type=float, default=4, help="a model and number of processes")
    parser.add_argument("--runs", type=int, default=0, help="compare the answers of so many runs")
    parser.add_argument("--json", metavar="FILE", help="all figures; '-' for stdout")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
