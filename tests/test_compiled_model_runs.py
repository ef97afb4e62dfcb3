"""`sanderling.litert` beyond LiteRT: accelerators, and runs that nobody waits for."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import Graph
from sanderling.errors import (
    DelegateError,
    FallbackWarning,
    UnsupportedError,
)
from sanderling.litert.compiled_model import CompiledModel, Options
from sanderling.litert.cpu_options import CpuKernelMode, CpuOptions
from sanderling.litert.hardware_accelerator import HardwareAccelerator
from sanderling.litert.tensor_buffer import TensorBuffer

from .support.compiled_models import TEN, adder, ready, sets
from .support.compiled_models import gpu_of_fakes as gpu_of_fakes

DIGITS = Path(sanderling.__file__).parent / "data" / "digits_f32.tflite"

# -- ours: accelerators ---------------------------------------------------------------------------


BESIDE = HardwareAccelerator.GPU | HardwareAccelerator.CPU


def test_a_gpu_that_takes_all_is_full_acceleration(gpu: Any) -> None:
    gpu("ADD")
    model, inputs, outputs = ready(CompiledModel)
    assert model.ops_by_delegate() == {"cpu": 1} and model.is_fully_accelerated()
    for asked in (HardwareAccelerator.GPU, BESIDE):
        model = CompiledModel.from_buffer(adder(), asked)
        model.run_by_index(0, inputs, outputs)
        assert model.is_fully_accelerated() and model.ops_by_delegate() == {"gpu": 1}


def test_a_gpu_that_takes_a_part_is_none(gpu: Any) -> None:
    gpu("CONV_2D")
    model = CompiledModel.from_file(DIGITS, BESIDE)
    assert not model.is_fully_accelerated()
    assert {"gpu", "cpu"} == set(model.ops_by_delegate())
    told = model.explain()
    assert "on gpu" in told and "gpu refuses: SOFTMAX is not on its list" in told
    with pytest.raises(DelegateError, match="'gpu' does not run the whole graph"):
        CompiledModel.from_file(DIGITS, HardwareAccelerator.GPU)


def test_the_proof_is_of_every_shape_that_ran(gpu: Any) -> None:
    """A delegate may take an op at one shape and not at another."""
    delegate = gpu("ADD")
    plain = delegate.refuses
    delegate.refuses = lambda op: "odd rows" if op.outputs[0].shape[0] % 2 else plain(op)
    model = CompiledModel.from_buffer(adder(shape=(2, 3), open_rows=True), BESIDE)
    model.run_by_index(0, model.create_input_buffers(0), model.create_output_buffers(0))
    assert model.is_fully_accelerated()
    for index in range(2):
        model.resize_input_tensor(index, [5, 3])
    model.run_by_index(0, model.create_input_buffers(0), model.create_output_buffers(0))
    assert not model.is_fully_accelerated() and model.ops_by_delegate() == {"gpu": 1, "cpu": 1}


def test_what_is_not_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.litert.accelerators.GPUS", ("no-gpu",))
    for lone, word in ((HardwareAccelerator.NPU, "NPU"), (HardwareAccelerator.GPU, "GPU")):
        with pytest.raises(UnsupportedError, match=f"there is no {word} here"):
            CompiledModel.from_buffer(adder(), lone)
        with pytest.warns(FallbackWarning, match=f"there is no {word} here.*the CPU runs"):
            model = CompiledModel.from_buffer(adder(), lone | HardwareAccelerator.CPU)
        assert not model.is_fully_accelerated() and model.ops_by_delegate() == {"cpu": 1}


def test_reference_kernels_are_the_reference() -> None:
    options = Options(cpu_options=CpuOptions(kernel_mode=CpuKernelMode.REFERENCE))
    model = CompiledModel.from_buffer(adder(), options=options)
    assert model.ops_by_delegate() == {"reference": 1} and not model.is_fully_accelerated()


def test_no_copy_is_made_between_a_buffer_and_a_delegate(gpu: Any) -> None:
    seen: list[bool] = []
    own, result = np.ones(4, np.float32), np.zeros(4, np.float32)

    def watch(part: Graph, inputs: Any, outputs: Any) -> None:
        seen.append(np.shares_memory(inputs[0], own) and np.shares_memory(outputs[0], result))

    gpu("ADD", watch=watch)
    model = CompiledModel.from_buffer(adder(), HardwareAccelerator.GPU)
    inputs = [TensorBuffer.create_from_host_memory(own), model.create_input_buffers(0)[1]]
    outputs = [TensorBuffer.create_from_host_memory(result)]
    inputs[1].write(TEN)
    for value in (1, 2):
        own[:] = value
        model.run_by_index(0, inputs, outputs)
        assert result.tolist() == (TEN + value).tolist()
    assert seen == [True, True]


def test_a_profile_has_the_steps() -> None:
    model = CompiledModel.from_file(DIGITS)
    found = model.profile(runs=2)
    assert {row["delegate"] for row in found["steps"]} == {"cpu"}


# -- ours: asynchronous runs ----------------------------------------------------------------------


class Gate:
    """A delegate's runs wait for it."""

    def __init__(self) -> None:
        self.open, self.order = threading.Event(), list[float]()

    def watch(self, part: Graph, inputs: Any, outputs: Any) -> None:
        assert self.open.wait(20)
        self.order.append(float(outputs[0][0]))


@pytest.fixture
def gated(gpu: Any) -> tuple[Gate, CompiledModel]:
    gate = Gate()
    gpu("ADD", watch=gate.watch)
    return gate, CompiledModel.from_buffer(adder(), HardwareAccelerator.GPU)


def test_runs_are_queued_in_order(gated: Any) -> None:
    gate, model = gated
    several = [sets(model, n) for n in range(3)]
    runs = [model.run_async_by_index(0, *io) for io in several]
    assert not any(run.done() for run in runs)
    gate.open.set()
    for run in runs:
        run.result(20)
    assert gate.order == [0, 2, 4]
    assert [float(o[0].read(1, np.float32)[0]) for _, o in several] == [0, 2, 4]


def test_a_plain_run_waits_for_its_turn(gated: Any) -> None:
    gate, model = gated
    first, second = sets(model, 1), sets(model, 2)
    run = model.run_async_by_index(0, *first)
    threading.Timer(0.05, gate.open.set).start()
    model.run_by_index(0, *second)
    assert run.done() and gate.order == [2, 4]


def test_reading_and_writing_wait_for_the_run(gated: Any) -> None:
    gate, model = gated
    inputs, outputs = sets(model, 1)
    named = {"x": inputs[0], "y": inputs[1]}
    model.run_async_by_name("<placeholder signature>", named, {"z": outputs[0]})
    threading.Timer(0.05, gate.open.set).start()
    inputs[0].write(TEN)
    assert outputs[0].read(4, np.float32).tolist() == [2] * 4


def test_models_wait_for_each_others_buffers(gated: Any) -> None:
    gate, model = gated
    other = CompiledModel.from_buffer(adder())
    inputs, outputs = sets(model, 1)
    result = other.create_output_buffers(0)
    model.run_async_by_index(0, inputs, outputs)
    run = other.run_async_by_index(0, [outputs[0], inputs[0]], result)
    threading.Timer(0.05, gate.open.set).start()
    run.result(20)
    assert result[0].read(4, np.float32).tolist() == [3] * 4


def test_runs_are_awaited(gated: Any) -> None:
    gate, model = gated
    several = [sets(model, n) for n in range(4)]

    async def all_of_them() -> None:
        asyncio.get_running_loop().call_later(0.01, gate.open.set)
        await asyncio.gather(*(model.run_async_by_index(0, *io) for io in several))

    asyncio.run(all_of_them())
    assert gate.order == [0, 2, 4, 6]


def test_an_error_is_the_runs_own(gpu: Any) -> None:
    gpu("ADD", fails="run")
    model = CompiledModel.from_buffer(adder(), HardwareAccelerator.GPU)
    run = model.run_async_by_index(0, *sets(model, 1))
    with pytest.raises(DelegateError, match="out of luck"):
        run.result(20)
    with pytest.raises(RuntimeError, match="0 input buffers"):
        model.run_async_by_index(0, [], [])


def test_closing_waits_and_a_waiting_run_can_be_cancelled(gated: Any) -> None:
    gate, model = gated
    runs = [model.run_async_by_index(0, *sets(model, n)) for n in range(3)]
    assert runs[2].cancel()
    gate.open.set()
    model.close()
    assert runs[1].done() and gate.order == [0, 2]


def test_what_is_done_after_a_run_may_use_the_model(gated: Any, caplog: Any) -> None:
    gate, model = gated
    first, second, third = (sets(model, n) for n in (1, 2, 3))
    seen: list[float] = []

    def after(run: object) -> None:
        model.run_by_index(0, *third)  # behind the second run
        seen.extend(float(o[0].read(1, np.float32)[0]) for _, o in (second, third))
        model.close()

    run = model.run_async_by_index(0, *first)
    run.add_done_callback(after)
    run.add_done_callback(lambda _: [][0])
    last = model.run_async_by_index(0, *second)
    gate.open.set()
    last.result(20)
    model._queue._callbacks.close()
    assert seen == [4, 6]
    assert [r.getMessage()[:30] for r in caplog.records] == ["exception calling callback for"]
    run.add_done_callback(lambda _: seen.append(0))  # it is over: at once
    assert seen == [4, 6, 0]


def test_a_forked_child_does_not_wait_for_its_parents_runs(gated: Any) -> None:
    gate, model = gated
    pending, over = sets(model, 1), sets(model, 2)
    run = model.run_async_by_index(0, *pending)
    cancelled = model.run_async_by_index(0, *over)
    assert cancelled.cancel()
    forked = os.fork()
    if not forked:
        status = 1
        try:
            status = _in_the_child(gate, model, run, pending, over)
        finally:
            os._exit(status)
    gate.open.set()
    assert os.waitpid(forked, 0)[1] == 0
    assert pending[1][0].read(1, np.float32).tolist() == [2]


def _in_the_child(gate: Gate, model: CompiledModel, run: Any, pending: Any, over: Any) -> int:
    uses: list[Any] = [
        run.result,
        run.exception,
        lambda: pending[0][0].write(TEN),
        lambda: pending[1][0].read(4, np.float32),
        lambda: model.run_by_index(0, over[0], pending[1]),
        lambda: model.run_async_by_index(0, *pending).result(20),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match="not over when this process was forked"):
            use()
    pending[1][0].destroy()
    gate.open.set()
    model.run_by_index(0, *over)
    return int(over[1][0].read(1, np.float32).tolist() != [4])


def test_a_number_of_no_accelerator_is_said() -> None:
    with pytest.raises(RuntimeError, match="no hardware accelerator is chosen by 64"):
        CompiledModel.from_buffer(adder(), HardwareAccelerator(64))
