"""Engines in processes of their own, measured in turns.

Each engine gets a process for a model, so that a crash, a thread pool or an allocator of one does
not touch another. The parent gives turns in random order: in a turn one engine runs and the others
sleep on their pipes. All samples are kept. engine_process.py is what
runs in an engine's process.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..child_process import ChildProcess
from ..config import TRACE
from ..errors import SanderlingError
from ..ir.types import Array
from . import process_memory
from .engine_process import (
    BLOCK,
    WARM,
    Order,
    Pace,
    Ready,
    Turn,
    Usage,
    Warmed,
    main,
    sentence,
    turn,
    warm,
)
from .engines import EngineJob

__all__ = [
    "BLOCK", "Budget", "EngineError", "Launch", "Measured", "Pace", "Ready", "Samples", "WARM",
    "Worker", "launch", "measure", "schedule", "sentence", "turn", "warm",
]  # fmt: skip

REST = 3e-3  # between turns: thread pools spin for a while after their last run
FEWEST_ROUNDS, MOST_ROUNDS = 5, 25
POLL = 0.01  # between two looks at a process whose peak the kernel does not keep for us
Samples = list[list[float]]  # by round
Beside = Callable[[], AbstractContextManager[object]]  # what goes on beside a turn


class EngineError(SanderlingError):
    """An engine cannot run a model; the message is the sentence for the table."""


class Worker:
    """An engine's process, seen from the parent."""

    def __init__(self, job: EngineJob, timeout: float = 180) -> None:
        self.timeout = timeout
        self.highest = 0  # resident bytes, where only looking tells
        self._watched = False
        # A trace is of the parent: an engine that records is slower.
        environment = {k: v for k, v in os.environ.items() if k != TRACE.name}
        self.child = ChildProcess(main, environment=environment)
        self.pipe, self.process = self.child.pipe, self.child.process
        with contextlib.suppress(OSError):  # who asks it next is told that it died
            self.pipe.send(job)

    def ready(self) -> Ready:
        """What the process has to say once it has loaded the model and run it."""
        made: Ready = self._receive()
        self._watched = "peak.init" not in made.memory and bool(made.memory)
        return made

    def samples(self, seconds: float) -> list[float]:
        return self.turn(Order(seconds)).samples

    def turn(self, order: Order) -> Turn:
        return self._ask("turn", order)

    def warm_up(self, order: Order) -> Warmed:
        return self._ask("warm", order)

    def usage(self) -> Usage:
        """What the runs took of the machine."""
        found: Usage = self._ask("usage", None)
        if self._watched:
            found.memory["peak.runs"] = self.highest
        return found

    def _ask(self, what: str, content: object) -> Any:
        try:
            self.pipe.send((what, content))
        except OSError as error:
            raise EngineError(self._death()) from error
        return self._receive()

    def _receive(self) -> Any:
        if not self._wait():
            self.process.kill()
            raise EngineError(f"no answer within {self.timeout:.0f} s")
        try:
            kind, content = self.pipe.recv()
        except (EOFError, ConnectionResetError) as error:
            raise EngineError(self._death()) from error
        if kind == "error":
            raise EngineError(content)
        return content

    def _wait(self) -> bool:
        if not self._watched:
            return self.pipe.poll(self.timeout)
        end = time.monotonic() + self.timeout
        while not self.pipe.poll(POLL):
            self.highest = max(self.highest, process_memory.resident(self.process.pid or 0))
            if time.monotonic() > end:
                return False
        return True

    def _death(self) -> str:
        return f"the process died with {self.child.how_it_ended() or 'status 0'}"

    def leave(self) -> None:
        """Let it end, without waiting for that."""
        with contextlib.suppress(OSError):  # it may be dead already
            self.pipe.send(None)

    def close(self) -> None:
        self.leave()
        self.child.end()
        self.pipe.close()


# -- one launch: fresh processes, then turns ----------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """How long one configuration is measured in one launch: rounds of turns, which have so many
    runs and seconds together at least, and no more seconds than the limit."""

    seconds: float
    runs: int = 1
    limit: float = math.inf
    rounds: int = FEWEST_ROUNDS
    warm_seconds: float = 0.0
    warm_limit: float = 0.0
    warm_runs: int = 1
    pace: Pace = field(default_factory=Pace)

    def rounds_for(self, once: float) -> int:
        """A turn has one run that is not measured and one that is, at least: a slow model gets
        fewer rounds."""
        room = int(self.limit / (2 * once)) if math.isfinite(self.limit) else self.rounds
        return max(1, min(self.rounds, room))

    def order(self, rounds: int) -> Order:
        """What is asked for in each of so many rounds."""
        return Order(
            self.seconds / rounds, math.ceil(self.runs / rounds), self.limit / rounds, self.pace
        )

    @property
    def warm_order(self) -> Order:
        return Order(self.warm_seconds, self.warm_runs, self.warm_limit, self.pace)


@dataclass
class Launch:
    """What one process gave; `error` and no rounds if it failed."""

    ready: Ready | None = None
    warm: Warmed = field(default_factory=Warmed)
    rounds: Samples = field(default_factory=list)
    begun: list[float] = field(default_factory=list)  # when each round began, on one clock for all
    block: int = 1  # inferences in a sample
    cpu: list[float] = field(default_factory=list)  # seconds of an inference, by round
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    cut: bool = False  # interrupted


def launch(
    jobs: Mapping[str, EngineJob],
    budget: Budget,
    rng: random.Random,
    tick: Callable[[str], None] = lambda what: None,
    beside: Mapping[str, Beside] | None = None,
    timeout: float = 180,
    found: dict[str, Launch] | None = None,
    at_once: int = 1,
) -> dict[str, Launch]:
    """Each job in a fresh process, measured in turns. Processes start one after the other, in
    random order, so that nothing runs beside their loading; at_once: or so many together, which is
    sooner done where nobody asks how long loading takes. found: what is measured goes in here
    meanwhile, for those who interrupt it."""
    found = {} if found is None else found
    found |= {name: Launch() for name in jobs}
    workers: dict[str, Worker] = {}
    try:
        order = rng.sample(list(jobs), len(jobs))
        for first in range(0, len(order), at_once):
            together = order[first : first + at_once]
            with _all_beside(together, beside or {}):
                for name in together:
                    tick(f"{name}: load")
                    workers[name] = Worker(jobs[name], timeout)
                for name in together:
                    _try(found[name], partial(_receive, found[name], workers[name]))
                for name in together:
                    _try(found[name], partial(_warm_up, found[name], workers[name], budget))
        _rounds(found, workers, budget, rng, tick, beside or {})
        for name, worker in workers.items():
            _try(found[name], partial(_end, found[name], worker))
    except BaseException:  # nobody waits for what they are doing
        for made in found.values():
            made.cut = True
        for worker in workers.values():
            worker.process.kill()
        raise
    finally:
        for worker in workers.values():
            worker.leave()  # all of them first: they end at the same time
        for worker in workers.values():
            worker.close()
    return found


@contextlib.contextmanager
def _all_beside(names: Iterable[str], beside: Mapping[str, Beside]) -> Iterator[None]:
    """What goes on beside any of them; what is beside several goes on once."""
    with contextlib.ExitStack() as opened:
        for one in {beside[name] for name in names if name in beside}:
            opened.enter_context(one())
        yield


def _receive(made: Launch, worker: Worker) -> None:
    made.ready = worker.ready()


def _warm_up(made: Launch, worker: Worker, budget: Budget) -> None:
    if budget.warm_limit > 0:
        made.warm = worker.warm_up(budget.warm_order)


def _end(made: Launch, worker: Worker) -> None:
    made.usage = worker.usage()


def _rounds(
    found: dict[str, Launch],
    workers: Mapping[str, Worker],
    budget: Budget,
    rng: random.Random,
    tick: Callable[[str], None],
    beside: Mapping[str, Beside],
) -> None:
    living = [n for n in workers if not found[n].error]
    slowest = max((_once(found[n]) for n in living), default=0.0)
    rounds = budget.rounds_for(slowest) if living else 0
    for _ in range(rounds):
        names = [n for n in living if not found[n].error]
        for name in rng.sample(names, len(names)):
            tick(name)
            time.sleep(REST)
            with beside.get(name, nullcontext)():
                order = budget.order(rounds)
                _try(found[name], partial(_turn, found[name], workers[name], order))


def _once(made: Launch) -> float:
    assert made.ready is not None, "a launch without an error is ready"
    return min([made.ready.once, *made.warm.samples[-3:]])


def _turn(made: Launch, worker: Worker, order: Order) -> None:
    begun = time.perf_counter()
    done = worker.turn(order)
    made.begun.append(begun)
    made.rounds.append(done.samples)
    made.cpu.append(done.cpu)
    made.block = max(made.block, done.block)


def _try(made: Launch, call: Callable[[], object]) -> None:
    if made.error:
        return
    try:
        call()
    except EngineError as error:
        made.error = str(error)
        made.rounds, made.begun, made.cpu = [], [], []


# -- the short way: one launch, a total of seconds ----------------------------------------------


@dataclass
class Measured:
    """What came out of one run of several engines on one model."""

    samples: dict[str, Samples] = field(default_factory=dict)
    answers: dict[str, list[Array]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def measure(jobs: Mapping[str, EngineJob], seconds: float, seed: int = 0) -> Measured:
    """Run subjects in turns for about this many seconds in all."""
    result = Measured()
    workers = {name: Worker(job) for name, job in jobs.items()}
    found = {name: Launch() for name in jobs}
    try:
        for name, worker in workers.items():
            _try(found[name], partial(_receive, found[name], worker))
        once = [found[n].ready.once for n in jobs if found[n].ready]  # type: ignore[union-attr]
        rounds, share = schedule(once, seconds)
        budget = Budget(share * rounds, runs=0, rounds=rounds)
        _rounds(found, workers, budget, random.Random(seed), lambda what: None, {})
    finally:
        for worker in workers.values():
            worker.close()
    for name, made in found.items():
        if made.ready is not None:
            result.notes[name], result.answers[name] = made.ready.note, made.ready.answers
        if made.error:
            result.errors[name] = made.error
        elif made.rounds:
            result.samples[name] = made.rounds
    return result


def schedule(once: Iterable[float], seconds: float) -> tuple[int, float]:
    """How many rounds, and each turn's seconds. Slow engines get fewer rounds, never too few."""
    times = list(once)
    if not times:
        return 0, 0.0
    # A turn warms up with one run at least and measures one at least.
    least = sum(2 * t + WARM + REST for t in times)
    rounds = int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, seconds / (1.5 * least))))
    return rounds, max(0.0, seconds / rounds - least) / len(times)
