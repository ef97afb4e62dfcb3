"""Engines in processes of their own, measured in turns.

Each engine gets a process for a model, so that a crash, a thread pool or an allocator of one does
not touch another. The parent gives turns in random order: in a turn one engine runs and the others
sleep on their pipes. All samples are kept.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ..errors import SanderlingError
from ..ir.types import Array
from .engines import ENGINES, Job

BLOCK = 200e-6  # seconds a sample takes at least: the clock and the loop must not count
WARM = 2e-3  # seconds of untimed runs at the beginning of a turn: caches, clock, woken threads
REST = 3e-3  # between turns: thread pools spin for a while after their last run
FEWEST_ROUNDS, MOST_ROUNDS = 5, 25
Samples = list[list[float]]  # by round


class EngineError(SanderlingError):
    """An engine cannot run a model; the message is the sentence for the table."""


# -- in the engine's process --------------------------------------------------------------------


def serve(pipe: Connection, job: Job) -> None:
    """Load, run once, send the answers; then samples for every number of seconds received."""
    os.dup2(sys.stderr.fileno(), 1)  # what engines print must not get into the table
    try:
        loaded = ENGINES[job.setting.engine](job)
        loaded.run()
        pipe.send(("ready", (loaded.note, loaded.answers(), _once(loaded.run))))
        while (seconds := pipe.recv()) is not None:
            pipe.send(("samples", turn(loaded.run, seconds)))
    except Exception as error:
        pipe.send(("error", sentence(error)))


def _once(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def turn(run: Callable[[], object], seconds: float) -> list[float]:
    """Seconds a run, in samples of enough runs to be measured, for about this long."""
    once = warm(run)
    count = max(1, round(BLOCK / max(once, 1e-7)))
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while not samples or time.perf_counter() < end:
        begin = time.perf_counter()
        for _ in range(count):
            run()
        samples.append((time.perf_counter() - begin) / count)
    return samples


def warm(run: Callable[[], object]) -> float:
    """Run without measuring for a moment; the fastest run's seconds: any other may have been
    interrupted."""
    end = time.perf_counter() + WARM
    best = _once(run)
    while time.perf_counter() < end:
        best = min(best, _once(run))
    return best


def sentence(error: BaseException, most: int = 200) -> str:
    """An error as one line of a table."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # OpenVINO says where in its source it was before it says what is wrong.
    lines = [n for n in lines if not n.startswith(("Exception from", "Check '"))] or lines
    text = " ".join(lines).replace("|", "/") or "no message"
    return f"{type(error).__name__}: {text[:most]}{'...' if len(text) > most else ''}"


# -- in the parent ------------------------------------------------------------------------------


class Worker:
    """An engine's process, seen from the parent."""

    def __init__(self, job: Job, timeout: float = 180) -> None:
        context = multiprocessing.get_context("spawn")
        self.timeout = timeout
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, job), daemon=True)
        self.process.start()
        theirs.close()

    def ready(self) -> tuple[str, list[Array], float]:
        """Note, first answers, and the seconds of the second run."""
        return self._receive()

    def samples(self, seconds: float) -> list[float]:
        self.pipe.send(seconds)
        return self._receive()

    def _receive(self) -> Any:
        if not self.pipe.poll(self.timeout):
            self.process.kill()
            raise EngineError(f"no answer within {self.timeout:.0f} s")
        try:
            kind, content = self.pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise EngineError(self._death()) from error
        if kind == "error":
            raise EngineError(content)
        return content

    def _death(self) -> str:
        self.process.join(5)
        code = self.process.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else f"status {code}"
        return f"the process died with {name}"

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it may be dead already
            self.pipe.send(None)
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
        self.pipe.close()


@dataclass
class Measured:
    """What came out of one run of several engines on one model."""

    samples: dict[str, Samples] = field(default_factory=dict)
    answers: dict[str, list[Array]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def measure(jobs: Mapping[str, Job], seconds: float, seed: int = 0) -> Measured:
    """Run subjects in turns for about this many seconds in all."""
    result = Measured()
    workers = {name: Worker(job) for name, job in jobs.items()}
    try:
        once: dict[str, float] = {}
        for name, worker in workers.items():
            found = _try(result, name, worker.ready)
            if found is not None:
                result.notes[name], result.answers[name], once[name] = found
        _rounds(result, {n: workers[n] for n in once}, once, seconds, random.Random(seed))
    finally:
        for worker in workers.values():
            worker.close()
    return result


def _rounds(result: Measured, workers: dict[str, Worker], once: Mapping[str, float],
            seconds: float, rng: random.Random) -> None:  # fmt: skip
    rounds, share = schedule(once.values(), seconds)
    for _ in range(rounds):
        names = [n for n in workers if n not in result.errors]
        for name in rng.sample(names, len(names)):
            time.sleep(REST)
            samples = _try(result, name, partial(workers[name].samples, share))
            if samples is not None:
                result.samples.setdefault(name, []).append(samples)
    for name in result.errors:
        result.samples.pop(name, None)


def schedule(once: Iterable[float], seconds: float) -> tuple[int, float]:
    """How many rounds, and each turn's seconds. Slow engines get fewer rounds, never too few."""
    times = list(once)
    if not times:
        return 0, 0.0
    # A turn warms up with one run at least and measures one at least.
    least = sum(2 * t + WARM + REST for t in times)
    rounds = int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, seconds / (1.5 * least))))
    return rounds, max(0.0, seconds / rounds - least) / len(times)


def _try(result: Measured, name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except EngineError as error:
        result.errors[name] = str(error)
        return None
