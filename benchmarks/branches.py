"""What do two threads gain where branches that need nothing of each other are shared together?

    python -m benchmarks.branches [MODEL.tflite ...] [--threads 2] [--seconds 3] [--write]

Steps in a row that need nothing of each other are one phase, one unit of work, if they are small
(sanderling/delegates/cpu/steps/phases.py). Each model that has such phases is
compiled twice, with them and with every step by itself, and both run in turns in one process.
Above 1: it is faster with them. A model without such phases is the same code twice and left out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from benchmarks.common import machine_type, model_paths, table, write_machine_section
from sanderling import load
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.delegates.cpu.runtime.executable import CpuExecutable
from sanderling.delegates.cpu.steps import phases
from sanderling.measure.inputs import feeds
from sanderling.measure.machine import machine_line

TITLE = "Branches that are shared together"


class Found(NamedTuple):
    model: str
    steps: int
    phases: int
    ratios: list[float]  # a turn's time with every step by itself, over that with phases

    @property
    def row(self) -> list[str]:
        low, middle, high = np.quantile(self.ratios, (0.25, 0.5, 0.75))
        ratio = f"{middle:.3f} [{low:.3f}, {high:.3f}]"
        return [self.model, str(self.steps), str(self.phases), ratio]


@contextmanager
def one_by_one(on: bool) -> Iterator[None]:
    """Every step is large: it is shared by itself."""
    if not on:
        yield
        return
    with patch.object(phases, "LARGE", 0):
        yield


def compiled(path: Path, threads: int, apart: bool) -> tuple[Callable[[], object], CpuExecutable]:
    """A run that is bound, and its largest compiled part."""
    with one_by_one(apart):
        model = load(path)
        session = model.compile([CpuDelegate(cache=False)], threads=threads)
        bound = session.bind(dict(zip(session.entry(None).inputs, feeds(model), strict=True)))
        bound.run()
    parts = [s.executable for s in session.plan().steps]
    return bound.run, max(
        (p for p in parts if isinstance(p, CpuExecutable)), key=lambda p: len(p.compiled.steps)
    )


def judge(path: Path, threads: int, seconds: float) -> Found | None:
    together, part = compiled(path, threads, apart=False)
    steps, count = len(part.compiled.steps), len(part.compiled.units)
    if count == steps:
        return None
    apart, _ = compiled(path, threads, apart=True)
    ratios: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ratios.append(_turn(apart) / _turn(together))
    return Found(path.stem, steps, count, ratios)


def _turn(run: Callable[[], object], least: float = 0.02) -> float:
    """The median of runs that follow each other for so many seconds."""
    times, end = [], time.perf_counter() + least
    while (begin := time.perf_counter()) < end or len(times) < 5:
        run()
        times.append(time.perf_counter() - begin)
    return float(np.median(times))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="MODEL.tflite")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="for a model")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    options = parser.parse_args(arguments)
    found = [judge(p, options.threads, options.seconds) for p in model_paths(options.models)]
    header = ["model", "steps", "phases", f"steps one by one / phases, {options.threads} threads"]
    text = table(header, [f.row for f in found if f is not None])
    print(text)
    if options.write:
        target = host_target().name
        title = f"## {TITLE}: {machine_type(target)}"
        about = f"`python -m benchmarks.branches --write`; {machine_line()}. Median and quartiles."
        write_machine_section("branches", target, f"{title}\n\n{about}\n\n{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
