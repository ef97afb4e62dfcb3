"""What goes on in an engine's process: load, run, and give samples when asked."""

from __future__ import annotations

import math
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from ..ir.types import Array
from ..runtime.plugins import load_plugins
from . import process_memory
from .engines import ENGINES, EngineJob, LoadedEngine, import_engine
from .part_times import PartTime

BLOCK = 200e-6  # seconds a sample takes at least: the clock and the loop must not count
WARM = 2e-3  # seconds of untimed runs at the beginning of a turn: caches, clock, woken threads
# Warm-up compares windows of so many runs and seconds, at least. It is over when two in a row have
# the same median within the share.
WINDOW_RUNS, WINDOW_SECONDS, WINDOW_SHARE = 3, 0.02, 0.03
Run = Callable[[], object]


@dataclass(frozen=True)
class Pace:
    """How runs follow each other: without a pause; with one; or at a fixed rate, a run starting at
    once if the one before came too late. Only without a pause may a sample be several runs."""

    block: float = BLOCK
    frequency: float = 0.0  # runs a second
    delay: float = 0.0  # seconds

    @property
    def is_free(self) -> bool:
        return self.frequency <= 0 and self.delay <= 0


@dataclass(frozen=True)
class Order:
    """What a turn is to give: so many seconds and runs at least, but no start after the limit."""

    seconds: float
    runs: int = 0
    limit: float = math.inf
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class Turn:
    samples: list[float]  # seconds of one run
    block: int = 1  # runs that a sample is the mean of
    cpu: float = 0.0  # seconds that all threads of the process spent on a run


@dataclass(frozen=True)
class Warmed:
    samples: list[float] = field(default_factory=list)
    stable: bool = True


@dataclass
class Usage:
    """What all runs after the first took of the machine; peaks where the kernel tells them."""

    memory: dict[str, int] = field(default_factory=dict)
    cpu_seconds: float = 0.0
    switches: int = 0  # times that the scheduler took the CPU away
    parts: list[PartTime] = field(default_factory=list)


@dataclass(frozen=True)
class Ready:
    """What is known when the model was loaded and run."""

    note: str
    answers: list[Array]
    once: float  # seconds of the second run
    imports: float  # of the engine's package: paid once by a program, not by a model
    init: float  # load, delegate, compile, allocate
    first: float  # the first run
    memory: dict[str, int]
    facts: dict[str, object] = field(default_factory=dict)


def main(pipe: Connection) -> None:
    """Do the whole work of an engine's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The parent may go away at any moment, in the middle of a message too: that is no error here.
    with suppress(EOFError, OSError, KeyboardInterrupt):
        serve(pipe, pipe.recv())


def serve(pipe: Connection, job: EngineJob) -> None:
    """Load, run, send the answers; then do what the parent asks for, until it says None."""
    _quieten(job)
    try:
        loaded, ready = start(job)
        pipe.send(("ready", ready))
        process_memory.reset_peak()
        since = _used()
        asked: dict[str, Callable[[Order], object]] = {
            "turn": lambda order: take(loaded.run, order),
            "warm": lambda order: warm_up(loaded.run, order),
            "usage": lambda _: replace(usage(since), parts=loaded.parts()),
        }
        while (message := pipe.recv()) is not None:
            what, content = message
            pipe.send((what, asked[what](content)))
    except EOFError:
        return  # the parent is gone
    except Exception as error:
        pipe.send(("error", sentence(error)))


def _quieten(job: EngineJob) -> None:
    """What engines print must not get into the table, nor between the steps of a progress bar."""
    if job.verbose:
        os.dup2(sys.stderr.fileno(), 1)
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


def start(job: EngineJob) -> tuple[LoadedEngine, Ready]:
    if job.cpus:
        os.sched_setaffinity(0, job.cpus)
    load_plugins(job.plugins)
    begin = time.perf_counter()
    import_engine(job.setting.engine)
    imported = time.perf_counter()
    held: dict[str, int] = process_memory.staged("start", process_memory.snapshot())
    away = 0.0  # seconds spent in looking

    def mark(stage: str) -> None:
        nonlocal away
        looked = time.perf_counter()
        held.update(process_memory.staged(stage, process_memory.snapshot()))
        away += time.perf_counter() - looked

    may_reset = process_memory.reset_peak()
    loading = time.perf_counter()
    loaded = ENGINES[job.setting.engine](job, mark)
    init = time.perf_counter() - loading - away
    highest = process_memory.peak()
    mark("ready")
    if may_reset and highest is not None:
        held["peak.init"] = process_memory.at_least(highest, held.get("ready.rss"))
    first = once(loaded.run)
    mark("first")
    answers = loaded.answers()
    held.update(loaded.memory())
    return loaded, Ready(
        loaded.note, answers, once(loaded.run), imported - begin, init, first, held, loaded.facts
    )


def once(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _used() -> tuple[float, int]:
    found = resource.getrusage(resource.RUSAGE_SELF)
    return found.ru_utime + found.ru_stime, found.ru_nivcsw


def usage(since: tuple[float, int]) -> Usage:
    seconds, switches = _used()
    held = process_memory.staged("end", process_memory.snapshot())
    highest = process_memory.peak()
    if highest is not None and process_memory.reset_peak():
        held["peak.runs"] = process_memory.at_least(highest, held.get("end.rss"))
    return Usage(held, seconds - since[0], switches - since[1])


# -- samples ------------------------------------------------------------------------------------


def turn(run: Run, seconds: float) -> list[float]:
    """Seconds a run, in samples of enough runs to be measured, for about this long."""
    return take(run, Order(seconds)).samples


def take(run: Run, order: Order) -> Turn:
    """Samples as ordered. A turn has as many runs as fit into its seconds undisturbed: one that
    lost its CPU for half of them would otherwise have next to none, and the fewest samples in the
    worst rounds."""
    if not order.pace.is_free:
        spent = time.process_time()
        paced = _paced(run, order)
        return Turn(paced, cpu=(time.process_time() - spent) / len(paced))
    fastest = max(warm(run), 1e-7)
    block = max(1, round(order.pace.block / fastest))
    order = replace(order, runs=max(order.runs, int(order.seconds / fastest)))
    samples: list[float] = []
    start, spent = time.perf_counter(), time.process_time()
    while _goes_on(samples, block, start, order):
        begin = time.perf_counter()
        for _ in range(block):
            run()
        samples.append((time.perf_counter() - begin) / block)
    return Turn(samples, block, (time.process_time() - spent) / (len(samples) * block))


def _goes_on(samples: list[float], block: int, start: float, order: Order) -> bool:
    if not samples:
        return True
    gone = time.perf_counter() - start
    return (gone < order.seconds or len(samples) * block < order.runs) and gone <= order.limit


def _paced(run: Run, order: Order) -> list[float]:
    samples: list[float] = []
    pace, start = order.pace, time.perf_counter()
    while _goes_on(samples, 1, start, order):
        samples.append(once(run))
        wait = pace.delay
        if pace.frequency > 0:
            wait = start + len(samples) / pace.frequency - time.perf_counter()
        time.sleep(max(0.0, wait))
    return samples


def warm(run: Run) -> float:
    """Run without measuring for a moment; the fastest run's seconds: any other may have been
    interrupted."""
    end = time.perf_counter() + WARM
    best = once(run)
    while time.perf_counter() < end:
        best = min(best, once(run))
    return best


def warm_up(run: Run, order: Order) -> Warmed:
    """Run until two windows in a row agree, and for the order's runs and seconds at least."""
    samples: list[float] = []
    before, start = math.inf, time.perf_counter()
    while True:
        window = _window(run)
        samples += window
        gone = time.perf_counter() - start
        middle = statistics.median(window)
        stable = abs(middle / before - 1) <= WINDOW_SHARE
        enough = gone >= order.seconds and len(samples) >= order.runs
        if (stable and enough) or gone >= order.limit:
            return Warmed(samples, stable)
        before = middle


def _window(run: Run) -> list[float]:
    made: list[float] = []
    end = time.perf_counter() + WINDOW_SECONDS
    while len(made) < WINDOW_RUNS or time.perf_counter() < end:
        made.append(once(run))
    return made


def sentence(error: BaseException, most: int = 200) -> str:
    """An error as one line of a table."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # OpenVINO says where in its source it was before it says what is wrong.
    lines = [n for n in lines if not n.startswith(("Exception from", "Check '"))] or lines
    text = " ".join(lines).replace("|", "/") or "no message"
    return f"{type(error).__name__}: {text[:most]}{'...' if len(text) > most else ''}"
