"""Shared work: a worker that is late, slow or absent costs its own chunk and changes no answer."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime import division
from sanderling.delegates.cpu.runtime.abi import (
    ALWAYS,
    CLAIM,
    CREW,
    FOR_ASLEEP,
    FOR_AWAKE,
    HABITS,
    LINE,
    OF_WORKER,
    STATE,
    WAKES,
)
from sanderling.delegates.cpu.runtime.division import chunks, limits, table, workers_of
from sanderling.delegates.cpu.runtime.executable import CpuExecutable, Crew
from sanderling.delegates.cpu.steps import choice
from sanderling.delegates.cpu.steps.choice import ALONE, NEVER, SHARED
from sanderling.ir import Array, DType, Graph, Model
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack
from tests.support.every_worker import share_everything

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="threads are found through /proc"
)
SEVERAL = (2, 3, 8)


@pytest.fixture(autouse=True)
def every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    share_everything(monkeypatch)


def answer_of_one(model: Model, x: Array) -> Array:
    return model.compile([CpuDelegate()], threads=1)(x).copy()


def executable(session: Session) -> CpuExecutable:
    found = session.plan().steps[0].executable
    assert isinstance(found, CpuExecutable)
    return found


def threads_now() -> set[int]:
    return {int(p.name) for p in Path("/proc/self/task").iterdir()}


# -- workers that are not there -------------------------------------------------------------------


@pytest.mark.parametrize("quantised", [True, False])
@pytest.mark.parametrize("threads", SEVERAL)
def test_workers_that_never_come(
    threads: int, quantised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their threads are not started: the caller takes all of their chunks, from the back."""
    monkeypatch.setattr(Crew, "_start", lambda *_: None)
    model = stack(quantised)
    x = feed(model)
    session = model.compile([CpuDelegate()], threads=threads)
    assert executable(session).workers == threads
    for _ in range(20):
        np.testing.assert_array_equal(session(x), answer_of_one(model, x))


def test_one_of_them_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    start = Crew._start

    def all_but_the_second(crew: Crew, serve: int, record: int) -> None:
        if record != crew.records[1].ctypes.data:
            start(crew, serve, record)

    monkeypatch.setattr(Crew, "_start", all_but_the_second)
    model = stack()
    x, before = feed(model), threads_now()
    session = model.compile([CpuDelegate()], threads=4)
    expected = answer_of_one(model, x)
    for _ in range(200):
        np.testing.assert_array_equal(session(x), expected)
    assert len(threads_now() - before) == 2


# -- workers that are slow ------------------------------------------------------------------------


@contextmanager
def busy(core: int) -> Iterator[None]:
    """Somebody else computes on this core."""
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("nice", [0, 19])
def test_workers_without_a_core_of_their_own(nice: int) -> None:
    """All workers on one core, which they share with another process: they are descheduled in the
    midst of chunks, come late to steps and to whole runs."""
    model = stack(size=28)
    x, before = feed(model), threads_now()
    expected = answer_of_one(model, x)
    session = model.compile([CpuDelegate()], threads=4)
    session(x)
    core = min(os.sched_getaffinity(0))
    for thread in threads_now() - before:
        os.sched_setaffinity(thread, {core})
        os.setpriority(os.PRIO_PROCESS, thread, nice)
    with busy(core):
        for _ in range(100):
            np.testing.assert_array_equal(session(x), expected)
    assert all(os.sched_getaffinity(t) == {core} for t in threads_now() - before)


def test_who_is_woken_may_still_go_anywhere() -> None:
    """A worker is kept off the core of whoever wakes it only while it is woken."""
    model = stack(size=28)
    x, before = feed(model), threads_now()
    session = model.compile([CpuDelegate()], threads=3)
    session(x)
    workers = threads_now() - before
    allowed = {t: os.sched_getaffinity(t) for t in workers}
    for _ in range(20):
        time.sleep(0.003)  # they sleep
        session(x)
    assert {t: os.sched_getaffinity(t) for t in workers} == allowed


def test_the_thread_that_calls_may_go_anywhere_all_the_time() -> None:
    """What it starts meanwhile inherits where it may go: workers that wake it leave that alone."""
    model = stack(size=28)
    x = feed(model)
    session = model.compile([CpuDelegate()], threads=3)
    session(x)
    mine = os.sched_getaffinity(0)
    caller, over, seen = threading.get_native_id(), threading.Event(), set[frozenset[int]]()

    def look() -> None:
        while not over.is_set():
            seen.add(frozenset(os.sched_getaffinity(caller)))

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        with busy(min(mine)):
            for _ in range(300):
                session(x)
    finally:
        over.set()
        watcher.join()
    assert seen == {frozenset(mine)}


def test_nobody_writes_when_the_run_is_over() -> None:
    """The caller may do with its arrays what it likes, whatever late workers do."""
    model = stack()
    x = feed(model)
    runner = executable(model.compile([CpuDelegate()], threads=4))
    outputs = [np.zeros_like(answer_of_one(model, x)) for _ in range(2)]
    expected = answer_of_one(model, x)
    core = min(os.sched_getaffinity(0))
    with busy(core):
        for turn in range(300):
            mine, other = outputs[turn % 2], outputs[1 - turn % 2]
            other[...] = 77
            runner.run([x], [mine])
            np.testing.assert_array_equal(mine, expected)
            assert (other == 77).all()


# -- the protocol ---------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", SEVERAL)
def test_hundreds_of_tiny_steps(threads: int) -> None:
    """Every one of them shared: hand-overs in quick succession."""
    graph = Graph("many")
    t = graph.input("x", DType.FLOAT32, (1, 16, 8))
    for step in range(150):
        turned = graph.tensor(f"t{step}", DType.FLOAT32, (1, t.shape[2], t.shape[1]))
        order = graph.constant(f"order{step}", np.array([0, 2, 1]), DType.INT32)
        graph.add("TRANSPOSE", [t, order], [turned])
        t = graph.tensor(f"y{step}", DType.FLOAT32, turned.shape)
        axis = graph.constant(f"axis{step}", np.array([1]), DType.INT32)
        graph.add("REVERSE_V2", [turned, axis], [t])
    graph.outputs = [t]
    model = Model([graph])
    x = np.arange(128, dtype=np.float32).reshape(1, 16, 8)
    session = model.compile([CpuDelegate()], threads=threads, require_full_delegation=True)
    expected = answer_of_one(model, x)
    assert len(executable(session).compiled.steps) > 100
    for _ in range(100):
        np.testing.assert_array_equal(session(x), expected)


def test_after_many_runs_and_with_old_claims() -> None:
    """The state has grown beyond 32 bits; words of workers say something of long ago."""
    model = stack()
    x = feed(model)
    session = model.compile([CpuDelegate()], threads=3)
    runner = executable(session)
    state = (len(runner.compiled.steps) + 1) * 10**12
    runner._sync[STATE : STATE + 2].view(np.int64)[0] = state
    for worker in range(3):
        at = CREW + worker * OF_WORKER + CLAIM
        runner._sync[at : at + 2].view(np.int64)[0] = (state - 1 - worker) << 16 | 0x0301
    expected = answer_of_one(model, x)
    for _ in range(50):
        np.testing.assert_array_equal(session(x), expected)
    assert runner._sync[STATE : STATE + 2].view(np.int64)[0] > state


# -- whether a run is shared ----------------------------------------------------------------------


class Habits:
    """What an executable has learnt of runs, both of those after a pause and of close ones."""

    def __init__(self, runner: CpuExecutable) -> None:
        self.sync = runner._sync
        self.sync[ALWAYS] = 0
        self.lines = self.sync[HABITS : HABITS + 2 * LINE].view(np.int64).reshape(2, -1)

    def set(self, **words: int) -> None:
        for name, value in words.items():
            self.lines[:, getattr(choice, name)] = value

    def know(self, shared: int, alone: int) -> None:
        """The usual ticks of a run."""
        self.lines[:, choice.USUAL + SHARED], self.lines[:, choice.USUAL + ALONE] = shared, alone

    @property
    def state(self) -> int:
        return int(self.sync[STATE : STATE + 2].view(np.int64)[0])


LONG = 10**15


def test_the_manner_that_was_faster_is_preferred() -> None:
    model = stack()
    x = feed(model)
    expected = answer_of_one(model, x)
    session = model.compile([CpuDelegate()], threads=2)
    session(x)
    habits = Habits(executable(session))
    habits.set(TRIAL=0, SINCE=-100)
    habits.know(shared=LONG, alone=1)
    session(x)  # it looks at what is known when it is over
    assert choice.ALONE in habits.lines[:, choice.PREFERRED]
    habits.set(PREFERRED=ALONE, SINCE=-100)
    habits.know(shared=0, alone=0)
    before = habits.state
    np.testing.assert_array_equal(session(x), expected)
    assert habits.state == before, "nothing was announced"
    assert {int(habits.sync[w]) for w in (FOR_AWAKE, FOR_ASLEEP)} == {NEVER}
    habits.know(shared=1, alone=LONG)
    session(x)
    assert choice.SHARED in habits.lines[:, choice.PREFERRED]
    habits.set(PREFERRED=SHARED, SINCE=-100)
    np.testing.assert_array_equal(session(x), expected)
    assert habits.state > before


def test_the_other_manner_is_tried_and_seldomer_if_it_does_not_gain() -> None:
    model = stack()
    x = feed(model)
    session = model.compile([CpuDelegate()], threads=2)
    session(x)
    habits = Habits(executable(session))
    habits.set(PREFERRED=SHARED, TRIAL=0, EVERY=64, SINCE=64)
    habits.know(shared=1, alone=1)
    session(x)
    (line,) = np.flatnonzero(habits.lines[:, choice.TRIAL])
    assert habits.lines[line, choice.TRIAL] == choice.TRIAL_ALONE
    assert habits.lines[line, choice.USUAL + ALONE] == 0, "what was known before is forgotten"
    habits.set(TRIAL=1, EVERY=64)
    habits.know(shared=1, alone=0)
    before = habits.state
    session(x)
    assert habits.state == before, "the trial was alone"
    (line,) = np.flatnonzero(habits.lines[:, choice.EVERY] != 64)
    assert habits.lines[line, choice.EVERY] == 128
    assert habits.lines[line, choice.TRIAL] == 0
    assert habits.lines[line, choice.PREFERRED] == SHARED


def test_one_interrupted_run_says_little() -> None:
    """What is usual moves by an eighth at most."""
    model = stack()
    x = feed(model)
    session = model.compile([CpuDelegate()], threads=2)
    session(x)
    habits = Habits(executable(session))
    habits.set(PREFERRED=SHARED, TRIAL=0, SINCE=-100)
    habits.know(shared=LONG, alone=0)
    session(x)
    assert LONG - LONG // 8 in habits.lines[:, choice.USUAL + SHARED]


# -- how work is divided --------------------------------------------------------------------------


def test_chunks_are_even_and_no_more_than_worthwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("WORK_OF_CHUNK", 1000), ("WORK_THAT_WAKES", 95_000)):
        monkeypatch.setattr(division, name, value)
    units, works = [1, 3, 100, 100, 100], [90_000, 90_000, 1500, 5000, 90_000]
    found = limits(units, works)
    assert found == [1, 3 | WAKES, 1, 5 | WAKES, 90], "what is left is enough, or not"
    assert table(found, 1).tolist() == [0] * 6
    assert table(found, 2).tolist() == [0, 2 | WAKES, 0, 4 | WAKES, 8, 0]
    assert table(found, 4).tolist() == [0, 3 | WAKES, 0, 4 | WAKES, 16, 0]
    assert chunks(WAKES - 1, 1024) == 4 * 1024


def test_no_more_workers_than_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "usable_cpu_count", lambda: 2)
    assert [workers_of([10**6], n) for n in (1, 2, 3, 8)] == [1, 2, 2, 2]
    assert workers_of([0], 8) == 1
