"""Runs that are given up: they go on in the driver's threads, and nobody may notice."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.gpu import peaks
from sanderling.delegates.gpu.devices import failures
from sanderling.delegates.gpu.devices.abandoned import Abandoned
from sanderling.errors import DelegateError, FallbackWarning
from sanderling.ir import Array
from tests.support.gpu_devices import (
    Gated,
    Pinned,
    devices_of,
    given,
    needs_opencl,
    needs_webgpu,
    small_model,
    twin,
)

LATE = 0.2  # seconds that a run may take
BOUND = 20.0  # seconds after which a wait has no end


@pytest.fixture(name="device")
def _device() -> Iterator[Any]:
    """The last OpenCL device, with a queue of its own; the gate is open in the end."""
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    found = devices_of("opencl")
    if not found:
        pytest.skip("there is no OpenCL device")
    made = twin(found[-1])
    made._queue = made.cl.CommandQueue(made.context, made.device)
    made._timed_queue, made.abandoned = None, Abandoned()
    made.cl = Gated(made.cl, made.context)
    queue = made._queue
    yield made
    made.cl.open()
    queue.finish()


def open_gate(device: Any) -> None:
    """And wait until the device has nothing to do."""
    device.cl.open()
    device._queue.finish()


class Case:
    """The small model, bound on a device that ran it once."""

    def __init__(self, device: Any) -> None:
        self.model = small_model()
        self.x = given(self.model)["x"]
        self.outputs = {t.name: np.zeros(t.shape, np.float32) for t in self.model.main.outputs}
        self.session = self.model.compile([Pinned(device), "reference"])
        self.bound = self.session.bind({"x": self.x}, self.outputs)
        self.run = self.bound.run

    def warm(self) -> Case:
        """The first runs: compiled, and bound to the arrays. Those that follow are to be fast."""
        for _ in range(2):
            self.run()
        self.check()
        self.executable.timeout = LATE
        return self

    @property
    def executable(self) -> Any:
        (step,) = self.session.plan().steps
        return step.executable

    def check(self) -> None:
        expected = self.model.compile(["reference"]).run({"x": self.x})
        for name, answer in expected.items():
            np.testing.assert_allclose(self.outputs[name], answer, atol=1e-4)


def test_what_a_device_does_at_best_is_not_waited_for_without_end(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`inspect` and `profile` measure it."""
    monkeypatch.setattr(peaks, "TIMEOUT", LATE)
    device.cl.is_to_shut = True
    with pytest.raises(DelegateError, match=r"did not finish a run within 0\.2 s"):
        bounded(lambda: peaks.peaks_of(device, refresh=True))
    assert device.is_lost


def bounded(run: Callable[[], Any]) -> None:
    failures.within(BOUND, run, lambda: AssertionError("the time-out did not hold"))


@pytest.mark.parametrize("shares", [True, False])
def test_a_run_that_was_given_up_writes_to_no_array_of_the_caller(
    shares: bool, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shares:
        monkeypatch.setattr(device, "share", lambda *about, **more: None)
    case = Case(device).warm()
    device.cl.is_to_shut = True
    case.x[:] += 1
    with pytest.warns(FallbackWarning, match=r"did not finish a run within 0\.2 s"):
        bounded(case.run)
    case.check()
    for array in case.outputs.values():
        array[:] = -7
    open_gate(device)
    assert all((array == -7).all() for array in case.outputs.values())
    bounded(case.run)
    case.check()


@pytest.mark.parametrize("shares", [True, False])
def test_the_timeout_holds_behind_the_work_of_another_session(
    shares: bool, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not shares:
        monkeypatch.setattr(device, "share", lambda *about, **more: None)
    case = Case(device).warm()
    device.cl.shut(device._queue)
    begin = time.monotonic()
    with pytest.warns(FallbackWarning, match=r"did not finish a run within 0\.2 s"):
        bounded(case.run)
    assert time.monotonic() - begin < BOUND / 2
    assert not device.cl.forgotten
    case.check()


def test_the_timeout_holds_for_what_is_timed_behind_another_session(device: Any) -> None:
    case = Case(device).warm()
    case.executable.step_times().count(True)
    device.cl.shut(device._queue)
    with pytest.warns(FallbackWarning, match=r"did not finish a run within 0\.2 s"):
        bounded(case.run)
    case.check()


def test_what_a_device_may_still_use_stays_until_it_has_finished(device: Any) -> None:
    case = Case(device).warm()
    device.cl.is_to_shut = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bounded(case.run)
    shared = weakref.ref(case.x)
    del case
    gc.collect()
    device.release()
    assert shared() is not None, "the device has not finished"
    open_gate(device)
    device.release()
    gc.collect()
    assert shared() is None and not device.abandoned.held


def test_what_was_interrupted_is_kept_too(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    case = Case(device).warm()
    device.cl.is_to_shut = True
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(device, "wait", interrupt)
        case.run()
    assert len(device.abandoned.held) == 1
    open_gate(device)
    case.run()
    case.check()
    assert not device.abandoned.held


def test_a_driver_that_says_nothing_more_keeps_what_it_has(device: Any) -> None:
    def fails(queue: Any) -> Any:
        raise device.cl.RuntimeError("clEnqueueMarker failed: DEVICE_NOT_AVAILABLE")

    device.cl.enqueue_marker = fails
    with pytest.raises(DelegateError), device.keeping("a thing"):
        device.wait(1.0)
    device.release()
    assert [things for things, _ in device.abandoned.held] == [["a thing"]]


CHILD = """
import gc, sys, time
import numpy as np
from sanderling.ir import DType, Graph, Model
from tests.support.gpu_devices import Gated, Pinned, devices_of

SIDE, LAYERS = 512, 40
how, end = sys.argv[1:]
graph, rng = Graph(), np.random.default_rng(0)
x = h = graph.input("x", DType.FLOAT32, (SIDE, SIDE))
w = graph.constant("w", rng.normal(0, SIDE ** -0.5, (SIDE, SIDE)).astype(np.float32))
for n in range(LAYERS):
    y = graph.tensor(f"y{n}", DType.FLOAT32, (SIDE, SIDE))
    graph.add("FULLY_CONNECTED", [h, w, None], [y])
    h = y
graph.outputs = [h]
device = devices_of("opencl")[-1]
device.cl = Gated(device.cl, device.context)
session = Model([graph]).compile([Pinned(device, cache=True)], require_full_delegation=True)
x, out = np.ones((SIDE, SIDE), np.float32), np.zeros((SIDE, SIDE), np.float32)
bound = session.bind({"x": x}, {h.name: out}) if how == "bound" else None
run = bound.run if bound else lambda: session.run({"x": x})
run()
session.plan().steps[0].executable.timeout = 0.05
device.cl.is_to_shut = True
try:
    run()
except Exception as error:
    assert "did not finish a run within" in str(error), error
else:
    raise AssertionError
del session, bound, run, x, out, graph, w, h, y
gc.collect()
if end != "hangs":
    device.cl.open()
if end == "finishes":
    device._queue.finish()
print("end", flush=True)
"""


@needs_opencl
@pytest.mark.parametrize(
    ("how", "end"), [("bound", "finishes"), ("unbound", "is at work"), ("bound", "hangs")]
)
def test_a_process_outlives_a_run_that_was_given_up(
    how: str, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are mapped from a file, arrays are the caller's; the caller has forgotten both when
    the device goes on. end: what the device does when the interpreter ends."""
    monkeypatch.setenv("SANDERLING_CACHE", str(tmp_path))
    command = [sys.executable, "-X", "faulthandler", "-c", CHILD, how, end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


# -- WebGPU ---------------------------------------------------------------------------------------


@needs_webgpu
def test_the_timeout_holds_while_another_thread_waits_for_the_device() -> None:
    """Who waits for a device that hangs has its lock, and never gives it back."""
    device = twin(devices_of("webgpu")[0])
    device._lock, device._adding, device._work = threading.RLock(), threading.Lock(), []
    case, waits, hangs = Case(device).warm(), threading.Event(), threading.Event()

    def hang() -> None:
        with device._lock:
            waits.set()
            hangs.wait(BOUND)

    thread = threading.Thread(target=hang)
    thread.start()
    waits.wait()
    case.x[:] += 1
    with pytest.warns(FallbackWarning, match=r"did not finish a run within 0\.2 s"):
        bounded(case.run)
    case.check()
    with pytest.raises(DelegateError, match="was given up after a run that did not end"):
        bounded(lambda: device.allocate(16))
    hangs.set()
    thread.join()
    case.check()


@needs_webgpu
def test_what_webgpu_collects_stays_in_order() -> None:
    """Writes and launches of a run, and what another run makes of them."""
    device = twin(devices_of("webgpu")[0])
    memory, found = device.allocate(16), np.zeros(4, np.float32)
    for value in (1.0, 2.0):
        device.write(memory, np.full(4, value, np.float32))
    device.read([(memory, found)])
    np.testing.assert_array_equal(found, np.full(4, 2.0, np.float32))
    nothing: Array = np.empty(0, np.float32)
    device.read([(memory, nothing)])
