"""Workers: the same answer from any number of them, parked when idle, gone when not needed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime import division
from sanderling.delegates.cpu.runtime.executable import Crew
from sanderling.errors import DelegateError
from sanderling.ir import Array, DType, Graph, Model
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack
from tests.support.every_worker import share_everything

COUNTS = (1, 2, 3, 8)
pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="threads are counted through /proc"
)


@pytest.fixture(autouse=True)
def every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are small here; they get the workers that are asked for."""
    share_everything(monkeypatch)


def threads_now() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def session(threads: int, quantised: bool = True, **more: int) -> Session:
    return stack(quantised, **more).compile([CpuDelegate()], threads=threads)


@pytest.mark.parametrize("quantised", [True, False])
def test_the_answer_does_not_depend_on_the_workers(quantised: bool) -> None:
    x = feed(stack(quantised))
    answers = [session(n, quantised)(x) for n in COUNTS]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])


@pytest.mark.parametrize("threads", COUNTS[1:])
def test_many_runs_in_a_row(threads: int) -> None:
    """Barriers hold under repetition, with and without a pause that puts the workers to sleep."""
    model = stack()
    x = feed(model)
    bound = model.compile([CpuDelegate()], threads=threads).bind({"x": x})
    bound.run()
    (y,) = bound.outputs.values()
    expected = y.copy()
    for turn in range(300):
        y[...] = 0
        bound.run()
        np.testing.assert_array_equal(y, expected)
        if turn % 100 == 0:
            time.sleep(0.01)


def test_tiny_numbers_are_zero_inside_and_not_outside() -> None:
    """Results that a core computes slowly are flushed; the caller's thread keeps its mode."""
    graph = Graph("tiny")
    x = graph.input("x", DType.FLOAT32, (64,))
    factor = graph.constant("factor", np.array([1e-20]), DType.FLOAT32)
    y = graph.tensor("y", DType.FLOAT32, (64,))
    graph.add("MUL", [x, factor], [y])
    graph.outputs = [y]
    tiny = np.full(64, 1e-20, np.float32)
    run = Model([graph]).compile([CpuDelegate("generic")], require_full_delegation=True)
    np.testing.assert_array_equal(run(tiny), 0)
    assert (tiny * np.float32(1e-20) > 0).all()


def test_two_sessions_in_two_threads() -> None:
    models = [stack(seed=seed) for seed in (1, 2)]
    feeds = [feed(m, seed) for seed, m in enumerate(models)]
    expected = [m.compile([CpuDelegate()])(x) for m, x in zip(models, feeds, strict=True)]
    wrong: list[int] = []

    def work(index: int) -> None:
        mine = models[index].compile([CpuDelegate()], threads=2)
        for _ in range(200):
            if not np.array_equal(mine(feeds[index]), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


def test_an_idle_session_burns_no_cpu() -> None:
    made = session(3)
    made(feed(made.model))
    time.sleep(0.1)  # workers fall asleep
    begin = time.process_time()
    time.sleep(1)
    assert time.process_time() - begin < 0.02


def test_workers_leave_with_their_session() -> None:
    gc.collect()
    before = threads_now()
    made = session(4)
    assert threads_now() == before, "workers start with the first run"
    made(feed(made.model))
    assert threads_now() == before + 3
    del made
    gc.collect()
    assert threads_now() == before


def test_a_closed_executable_starts_again() -> None:
    made = session(2)
    x = feed(made.model)
    expected: Array = made(x).copy()
    executable = made.plan().steps[0].executable
    executable.close()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(made(x), expected)


class Interrupt(BaseException):
    """As KeyboardInterrupt, for which pytest has a use of its own."""


@pytest.mark.parametrize("problem", [Interrupt, DelegateError])
def test_workers_start_together_or_not_at_all(
    problem: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or a limit on threads, in the midst of starting them: the next run starts anew."""
    start, x = Crew._start, feed(stack())

    def one(crew: Crew, *given: int) -> None:
        start(crew, *given)
        raise problem("in between")

    made, expected = session(3), session(1)(x)
    gc.collect()
    before = threads_now()
    with monkeypatch.context() as patch, pytest.raises(problem):
        patch.setattr(Crew, "_start", one)
        made(x)
    assert threads_now() == before
    for _ in range(3):
        np.testing.assert_array_equal(made(x), expected)
    assert threads_now() == before + 2


def test_small_models_run_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(division, "usable_cpu_count", lambda: 2)
    small = session(8, layers=1, size=2)
    large = session(2, layers=4, size=56, channels=64)
    workers = [s.plan().steps[0].executable.workers for s in (small, large)]  # type: ignore[attr-defined]
    assert workers == [1, 2]


def run_python(code: str) -> str:
    head = """
        import os, sys, time
        import numpy as np
        from sanderling.delegates.cpu import delegate as cpu
        from sanderling.delegates.cpu.runtime import division
        division.WORK_OF_WORKER = division.WORK_OF_CHUNK = division.WORK_THAT_WAKES = 1
        division.usable_cpu_count, division.ALWAYS_SHARED = lambda: 1024, True
        from sanderling.delegates.cpu.delegate import CpuDelegate
        from tests.support.conv_stacks import feed, stack
        model = stack()
        x = feed(model)
        session = model.compile([CpuDelegate()], threads=3)
        expected = session(x).copy()
    """
    text = textwrap.dedent(head) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_no_hang_at_exit() -> None:
    """With workers alive, held by a global and by a cycle."""
    run_python("keep = [session]; keep.append(keep)")


@pytest.mark.parametrize("turn", range(4))
def test_no_hang_at_exit_in_the_midst_of_a_run(turn: int) -> None:
    """Daemon threads run models, and the program ends."""
    code = f"""
        import threading, time
        sessions = [model.compile([CpuDelegate()], threads=3) for _ in range(2)]
        def work(mine):
            bound = mine.bind({{"x": x}})
            while True:
                bound.run()
        for mine in sessions:
            threading.Thread(target=work, args=(mine,), daemon=True).start()
        time.sleep(0.02 + 0.003 * {turn})
    """
    run_python(code)


def test_a_forked_child_runs() -> None:
    """Workers do not come along; the child starts its own, and the parent goes on."""
    code = """
        import warnings
        warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            os._exit(0 if np.array_equal(session(x), expected) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert np.array_equal(session(x), expected)
        print("done")
    """
    assert run_python(code) == "done\n"


def test_forked_in_the_midst_of_a_run() -> None:
    """Another thread is in native code with its workers: the child has neither, and runs."""
    code = """
        import signal, threading, warnings
        warnings.simplefilter("ignore")
        over = threading.Event()
        def work():
            while not over.is_set():
                assert np.array_equal(session(x), expected)
        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                right = all(np.array_equal(session(x), expected) for _ in range(3))
                os._exit(0 if right else 1)
            assert os.waitpid(child, 0)[1] == 0
        over.set()
        thread.join()
        print("done")
    """
    assert run_python(code) == "done\n"


def test_signals_reach_python() -> None:
    """Ctrl-C is the main thread's business, whatever the workers do."""
    code = f"""
        import signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), {int(signal.SIGINT)})).start()
            time.sleep(5)
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert run_python(code) == "interrupted\n"
