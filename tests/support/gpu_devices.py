"""Devices for tests of the gpu delegate: those of this machine, and some that misbehave."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices.device import Device
from sanderling.errors import SanderlingError
from sanderling.ir import Array, DType, Graph, Model


@cache
def devices_of(backend: str) -> tuple[Device, ...]:
    """Those that a test can use; () where the package or a driver is missing."""
    try:
        return GpuDelegate(backend=backend).devices()
    except (SanderlingError, ImportError):
        return ()


needs_opencl = pytest.mark.skipif(
    not devices_of("opencl"), reason="there is no OpenCL device: pip install 'pyopencl[pocl]'"
)
needs_webgpu = pytest.mark.skipif(
    not devices_of("webgpu"), reason="wgpu is not installed, or it finds no adapter"
)


class Pinned(GpuDelegate):
    """The delegate on a device that the test hands to it. Nothing is kept on disk."""

    def __init__(self, device: Device, **options: Any) -> None:
        super().__init__(**{"cache": False, **options})
        self._device = device

    def device(self) -> Device:
        return self._device


def twin(device: Device) -> Any:
    """The same device with a state of its own, which a test may break."""
    made = copy.copy(device)
    made.is_lost = False
    return made


class Gated:
    """pyopencl, whose launches wait for a gate once it is shut: a device that is slow.

    forgotten: copies to the device that nobody kept until they were over. pyopencl waits for the
    device then, and holds Python's lock, so that a test could not even be ended.
    """

    def __init__(self, cl: Any, context: Any) -> None:
        self._cl, self._gate = cl, cl.UserEvent(context)
        self.is_to_shut = False  # before the next launch
        self.is_shut = False
        self.forgotten: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cl, name)

    def shut(self, queue: Any) -> None:
        """What is enqueued from now on waits."""
        self.is_to_shut, self.is_shut = False, True
        self._cl.enqueue_barrier(queue, wait_for=[self._gate])

    def open(self) -> None:
        if self._gate.command_execution_status != self._cl.command_execution_status.COMPLETE:
            self._gate.set_status(self._cl.command_execution_status.COMPLETE)
        self.is_shut = False

    def enqueue_nd_range_kernel(self, queue: Any, *about: Any) -> Any:
        if self.is_to_shut:
            self.shut(queue)
        return self._cl.enqueue_nd_range_kernel(queue, *about)

    def enqueue_map_buffer(self, *about: Any, is_blocking: bool) -> Any:
        assert not (is_blocking and self.is_shut), "a map that waits without a limit"
        return self._cl.enqueue_map_buffer(*about, is_blocking=is_blocking)

    def enqueue_copy(self, *about: Any, is_blocking: bool) -> Any:
        assert not (is_blocking and self.is_shut), "a copy that waits without a limit"
        return Copy(self, self._cl.enqueue_copy(*about, is_blocking=is_blocking))


class Copy:
    """The event of a copy to the device."""

    def __init__(self, cl: Gated, event: Any) -> None:
        self._cl, self._event = cl, event

    def __del__(self) -> None:
        if self._cl.is_shut:
            self._cl.forgotten.append(self._event)


def small_model(channels: int = 8) -> Model:
    """A convolution, a sum that goes around it, a mean and a product: all kinds of memory."""
    graph, rng = Graph(), np.random.default_rng(3)
    shape = (1, 6, 5, channels)
    x = graph.input("x", DType.FLOAT32, shape)

    def constant(*size: int) -> Any:
        name = f"c{len(graph.tensors)}"
        return graph.constant(name, rng.normal(size=size) * 0.3, DType.FLOAT32)

    def op(name: str, *inputs: Any, shape: tuple[int, ...], **attrs: Any) -> Any:
        made = graph.tensor(f"t{len(graph.tensors)}", DType.FLOAT32, shape)
        graph.add(name, list(inputs), [made], **attrs)
        return made

    window = constant(channels, 3, 3, channels)
    steps = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
    y = op("CONV_2D", x, window, constant(channels), shape=shape, **steps)
    y = op("RELU6", op("ADD", y, x, shape=shape), shape=shape)
    axes = graph.constant("axes", [1, 2], DType.INT32)
    mean = op("MEAN", y, axes, shape=(1, channels), keep_dims=False)
    z = op("FULLY_CONNECTED", mean, constant(7, channels), constant(7), shape=(1, 7))
    graph.outputs = [op("SOFTMAX", z, shape=(1, 7), beta=1.0), y]
    return Model([graph])


def given(model: Model, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {t.name: rng.normal(size=t.shape).astype(np.float32) for t in model.main.inputs}


def check_answers(delegate: GpuDelegate, tolerance: float = 1e-4, channels: int = 8) -> Any:
    """The small model on this delegate and nowhere else, against the reference; its only step."""
    model = small_model(channels)
    feeds = given(model)
    session = model.compile([delegate], require_full_delegation=True)
    found, expected = session.run(feeds), model.compile(["reference"]).run(feeds)
    for name, answer in expected.items():
        np.testing.assert_allclose(found[name], answer, rtol=tolerance, atol=tolerance)
    (step,) = session.plan().steps
    return step
