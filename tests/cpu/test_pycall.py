"""Compiled code as a builtin function: the same answers as through ctypes, and no way to break it
from Python."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import BusyError, SanderlingError, dump
from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.runtime import executable as home
from sanderling.delegates.cpu.runtime.abi import FAULT
from sanderling.delegates.cpu.runtime.executable import TINY, CpuExecutable
from sanderling.delegates.cpu.runtime.pycall import fits
from sanderling.ir import DType, Graph, Model
from sanderling.ir.graph import copy_graph
from sanderling.runtime.session import Session
from tests.support.conv_stacks import feed, stack

from ..conformance.cases_control import binary, emit, graph

F = np.float32
X = np.arange(6, dtype=F).reshape(2, 3)


def total() -> Model:
    return Model([graph("main", binary("ADD"), ("f32", (2, 3)), ("f32", (2, 3)))])


def made() -> Session:
    return total().compile([CpuDelegate()])


def executable(session: Session) -> CpuExecutable:
    found = session.plan().steps[0].executable
    assert isinstance(found, CpuExecutable)
    return found


@pytest.fixture(params=["builtin", "ctypes"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways: Pythons without a GIL, and others than CPython, have the second alone."""
    if request.param == "ctypes":
        monkeypatch.setattr(home, "fits", lambda: False)
    elif not fits():
        pytest.skip("this Python's objects lie otherwise in memory")
    return str(request.param)


def test_every_way_to_run_gives_the_same(way: str) -> None:
    session = made()
    bound = session.bind({"main_in0": X, "main_in1": X + 1})
    interpreter = sanderling.Interpreter(model_content=dump(total()))
    interpreter.allocate_tensors()
    for place, value in enumerate((X, X + 1)):
        interpreter.set_tensor(place, value)
    for _ in range(3):
        bound.run()
        interpreter.invoke()
        ran = session.run({"main_in0": X, "main_in1": X + 1})
        for found in (*bound.outputs.values(), interpreter.get_tensor(2), *ran.values()):
            np.testing.assert_array_equal(found, 2 * X + 1)
    assert (executable(session)._builtin is not None) is (way == "builtin")


def test_a_fault_that_nobody_reported_is_not_the_next_runs(way: str) -> None:
    """Ctrl-C may come between the run that notes it and the error."""
    session = made()
    feeds = {"main_in0": X, "main_in1": X + 1}
    session.run(feeds)
    executable(session)._context[FAULT] = 1
    (found,) = session.run(feeds).values()
    np.testing.assert_array_equal(found, 2 * X + 1)


def test_bindings_do_not_disturb_each_other(way: str) -> None:
    session = made()
    bindings = [session.bind({"main_in0": X + i, "main_in1": X}) for i in range(3)]
    for _ in range(3):
        for number, bound in enumerate(bindings):
            bound.run()
            np.testing.assert_array_equal(next(iter(bound.outputs.values())), 2 * X + number)


WRONG: dict[str, Any] = {
    "nothing": [X, X, None],
    "a list": [X, X.tolist(), X.copy()],
    "a number": [X, X, 3],
    "too few": [X, X],
    "too many": [X, X, X.copy(), X.copy()],
    "none at all": [],
}


@pytest.mark.parametrize("arrays", WRONG.values(), ids=WRONG)
def test_what_is_no_array_is_an_error(way: str, arrays: list[Any]) -> None:
    session = made()
    run = executable(session)
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, AttributeError)):
            run.run(arrays, [])
    np.testing.assert_array_equal(session(X, X), 2 * X)


def test_arrays_of_other_classes(way: str, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "x", F, "w+", shape=(2, 3))
    mapped[:] = X
    still = X.copy()
    still.flags.writeable = False
    bound = made().bind({"main_in0": mapped, "main_in1": still})
    for _ in range(3):
        bound.run()
        np.testing.assert_array_equal(next(iter(bound.outputs.values())), 2 * X)


def test_nothing_is_counted_twice_or_forgotten(way: str) -> None:
    session = made()
    feeds = {"main_in0": X, "main_in1": X + 1}
    bound = session.bind(feeds)
    for _ in range(3):
        bound.run()
        session.run(feeds)
    gc.collect()
    watched = None, X, np.ndarray, bound.binding.steady, *bound.outputs.values()
    before = [sys.getrefcount(w) for w in watched]
    for _ in range(1000):
        bound.run()
        session.run(feeds)
    gc.collect()
    after = [sys.getrefcount(w) for w in watched]
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True)), (before, after)


def test_a_bound_run_keeps_what_it_needs(way: str) -> None:
    session = made()
    bound = session.bind({"main_in0": X, "main_in1": X})
    bound.run()
    bound.run()
    call, code = bound.binding.steady, weakref.ref(executable(session))
    assert call is not None
    del session, bound
    gc.collect()
    call()
    assert code() is not None
    del call
    gc.collect()
    assert code() is None


def test_a_busy_session_is_not_entered(way: str) -> None:
    session = made()
    bound = session.bind({"main_in0": X, "main_in1": X})
    interpreter = sanderling.Interpreter(model_content=dump(total()))
    interpreter.allocate_tensors()
    acts = bound.run, lambda: session(X, X), interpreter.invoke
    for _ in range(2):
        for act in acts:
            act()
    with session._alone(), interpreter._session._alone():
        for act in acts:
            with pytest.raises(BusyError):
                act()
    for act in acts:
        act()


def picks() -> Model:
    def body(g: Graph, x: Any, i: Any) -> Any:
        return [emit(g, "GATHER", [x, i], (2, 3), axis=0)]

    return Model([graph("main", body, ("f32", (4, 3)), ("i32", (2,)))])


def test_faults_are_raised_and_forgotten(way: str) -> None:
    """An index that only the run knows: each run that meets it raises, the next one is well."""
    rows, index = np.arange(12, dtype=F).reshape(4, 3), np.int32([1, 2])
    bound = picks().compile([CpuDelegate()]).bind({"main_in0": rows, "main_in1": index})
    interpreter = sanderling.Interpreter(model_content=dump(picks()))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, rows)
    for turn in range(4):
        index[1] = 9 if turn % 2 else 3
        interpreter.set_tensor(1, index)
        if turn % 2:
            with pytest.raises(SanderlingError, match="9"):
                bound.run()
            with pytest.raises(RuntimeError, match="9"):
                interpreter.invoke()
        else:
            bound.run()
            interpreter.invoke()
            np.testing.assert_array_equal(next(iter(bound.outputs.values())), rows[index])
            np.testing.assert_array_equal(interpreter.get_tensor(2), rows[index])


@pytest.mark.skipif(not fits(), reason="there is no builtin on this Python")
def test_only_tiny_runs_keep_the_gil() -> None:
    small, large = made(), stack(layers=4, size=56, channels=64).compile([CpuDelegate()])
    found = []
    for session in (small, large):
        code = executable(session)
        code._caller()
        assert code._record is not None
        found.append((code.compiled.macs <= TINY, code._record.save == 0))
    assert found == [(True, True), (False, False)]


def test_other_threads_go_on_during_a_long_run(way: str) -> None:
    """A thread that only Python can stop runs beside: with the GIL kept, it would not begin."""
    model = stack(layers=4, size=56, channels=64)
    session, x = model.compile([CpuDelegate()]), feed(model)
    expected = session(x)
    over, turns = threading.Event(), [0]

    def count() -> None:
        while not over.is_set():
            turns[0] += 1

    beside = threading.Thread(target=count)
    beside.start()
    for _ in range(5):
        np.testing.assert_array_equal(session(x), expected)
    over.set()
    beside.join(30)
    assert turns[0] and not beside.is_alive()


def test_recording_begins_and_ends(way: str) -> None:
    interpreter = sanderling.Interpreter(model_content=dump(total()))
    interpreter.allocate_tensors()
    for place in range(2):
        interpreter.set_tensor(place, X)
    bound = made().bind({"main_in0": X, "main_in1": X})
    for _ in range(2):
        bound.run()
        interpreter.invoke()
    with sanderling.trace.record() as trace:
        bound.run()
        interpreter.invoke()
    assert len(trace.of_kind("run")) == 2
    for _ in range(2):
        bound.run()
        interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(2), 2 * X)
    ready = interpreter._ready[interpreter._main]
    assert bound.binding.steady is not None and ready.binding.steady is not None


def test_inputs_without_elements(way: str) -> None:
    empty = Graph()
    x = empty.input("x", DType.FLOAT32, (0, 3))
    y = empty.tensor("y", DType.FLOAT32, (0, 3))
    empty.add("NEG", [x], [y])
    empty.outputs = [y]
    session = Model([empty]).compile([CpuDelegate()])
    for _ in range(3):
        assert session(np.zeros((0, 3), F)).shape == (0, 3)


@pytest.mark.parametrize("target", ["generic", "avx2", "neon"])
def test_every_target_has_the_entry(target: str) -> None:
    """It calls through addresses that it is given, so no target needs a relocation for it."""
    main = total().main
    part, _ = copy_graph(main, main.ops, main.inputs, main.outputs)
    assert "call" in CpuDelegate(target, cache=False).compiled(part).image.entries


class Interrupt(BaseException):
    """What a signal raises, like KeyboardInterrupt; pytest has a meaning for that one."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends a signal")
def test_an_interrupt_leaves_nothing_busy(way: str) -> None:
    """Ctrl-C at any place of a loop of short runs: between taking the lock and noting so, too."""

    def interrupt(*_: object) -> None:
        raise Interrupt

    session = made()
    feeds = {"main_in0": X, "main_in1": X}
    bound = session.bind(feeds)
    interpreter = sanderling.Interpreter(model_content=dump(total()))
    interpreter.allocate_tensors()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for act in (bound.run, lambda: session.run(feeds), interpreter.invoke):
            for _ in range(60):
                with pytest.raises(Interrupt):
                    signal.setitimer(signal.ITIMER_REAL, 0.001)
                    while True:
                        act()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
