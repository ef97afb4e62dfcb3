"""WGSL: every kernel can be written in it, and answers on a WebGPU device are right."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices.device import Offers
from sanderling.delegates.gpu.devices.webgpu import WebGpuDevice, chunks
from sanderling.delegates.gpu.dialects.wgsl import Wgsl, arguments_of
from sanderling.delegates.gpu.language import KernelText, Storage
from sanderling.delegates.gpu.lower import lower
from sanderling.delegates.gpu.options import SOFTWARE
from sanderling.errors import DelegateError
from sanderling.ir import DType, Graph, Model, Quant
from tests.conformance.harness import Case
from tests.support import gpu_nets as nets
from tests.support.gpu_conformance import EVERYTHING, cases_of, check_gpu, is_taken, part_of
from tests.support.gpu_devices import (
    Pinned,
    check_answers,
    devices_of,
    given,
    needs_webgpu,
    small_model,
    twin,
)

# What the language promises nothing about, or devices may round to zero.
EXCUSED = {
    "SIN|special|f32|14": "angles of 3e38",
    "COS|special|f32|14": "angles of 3e38",
    "LOG|special|f32|14": "numbers below 2**-126",
    "FLOOR_MOD|special|f32-f32|10x10_10x10": "remainders of 3e38",
}
ROWS = [row for row in cases_of() if row.id not in EXCUSED]
OFFERS = Offers("no device", "webgpu", "", "", SOFTWARE, 0, 1 << 30, True, False, False)


# -- texts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["f32", "f32_f16", "f16"])
def test_every_kernel_is_written_in_wgsl(precision: str) -> None:
    """No vector has more than four lanes, and arguments have names of their own."""
    for row in ROWS[:: 1 if precision == "f32" else 5]:
        if not is_taken(row):
            continue
        lowered = lower(part_of(row), OFFERS, Wgsl, precision)
        assert lowered.steps, row.id
        for step in lowered.steps:
            text = step.kernel.source()
            assert not re.search(r"vec(8|16)<|float4|convert_|__global|\?", text), text
            assert len(arguments_of(text, step.kernel.name)) == len(step.arguments)
            assert text.count("{") == text.count("}") and text.count("(") == text.count(")")


def kernel(element: str, single: bool) -> str:
    k = KernelText("copy", Wgsl())
    x, y = k.argument("x", Storage(element)), k.argument("y", Storage(element), written=True)
    (i,) = k.grid(8)
    if single:
        k.store_one(y, i, k.load_one(x, i))
    else:
        k.store(y, i, k.load(x, i))
    return k.source()


def test_parts_of_words_are_stored_by_atomic_operations() -> None:
    """Neighbours in a word belong to other threads."""
    for element in ("u8", "i8", "bool", "i16", "u16", "f16"):
        assert "array<atomic<u32>>" in kernel(element, True), element
        assert "atomicOr" in kernel(element, True)
    assert "array<f32>" in kernel("f32", True) and "atomic" not in kernel("f32", True)
    assert "array<vec4<f32>>" in kernel("f32", False)


def test_arguments_that_are_written_are_known() -> None:
    assert arguments_of(kernel("f32", True), "copy") == [False, True]
    assert arguments_of(kernel("f32", True), "other") == []


def test_spaces_that_are_too_large_are_cut() -> None:
    assert chunks((8, 4, 1), (8, 4, 1), 65535) == [((0, 0, 0), (1, 1, 1))]
    expected = [
        ((0, 0, 0), (20, 1, 20)), ((0, 0, 20), (20, 1, 20)), ((0, 0, 40), (20, 1, 20)),
        ((0, 0, 60), (20, 1, 10)), ((80, 0, 0), (5, 1, 20)), ((80, 0, 20), (5, 1, 20)),
        ((80, 0, 40), (5, 1, 20)), ((80, 0, 60), (5, 1, 10)),
    ]  # fmt: skip
    assert chunks((100, 1, 70), (4, 1, 1), 20) == expected


class Queue:
    """Of a device that takes no memory called `bad`."""

    def __init__(self) -> None:
        self.written: list[object] = []

    def write_buffer(self, memory: object, offset: int, data: object) -> None:
        if memory == "bad":
            raise RuntimeError("it is not valid")
        self.written.append(memory)

    def read_buffer(self, memory: object, offset: int, size: int) -> bytes:
        return bytes(size)


def test_work_that_was_lost_is_not_answered_with_older_results() -> None:
    """Another session's work is submitted together with this one's, and whoever waits first is told
    what failed."""
    device: Any = object.__new__(WebGpuDevice)
    device.offers, device.wgpu = OFFERS, SimpleNamespace(GPUError=OSError)
    device._opened, device._is_foreign, device._work = SimpleNamespace(queue=Queue()), False, []
    device._lock, device._adding = threading.RLock(), threading.Lock()
    data = np.ones(4, np.float32)
    for memory in ("own", "bad", "another's"):
        device.write(memory, data)
    with pytest.raises(DelegateError, match="it is not valid"):
        device.read([("own", data)], 10.0)
    assert device._opened.queue.written == ["own"]
    with pytest.raises(DelegateError, match="was given up after a run that did not end or failed"):
        device.read([("another's", data)], 10.0)


# -- on a device ----------------------------------------------------------------------------------


@needs_webgpu
@pytest.mark.parametrize("row", ROWS if EVERYTHING else ROWS[::8], ids=lambda row: row.id)
def test_case(row: Case) -> None:
    check_gpu(row, backend="webgpu")


@needs_webgpu
@pytest.mark.parametrize("precision", ["f32", "f32_f16"])
@pytest.mark.parametrize("channels", [5, 8])
def test_answers(precision: str, channels: int) -> None:
    tolerance = 1e-4 if precision == "f32" else 2e-2
    delegate = GpuDelegate(backend="webgpu", precision=precision)
    check_answers(delegate, tolerance, channels)


@needs_webgpu
@pytest.mark.parametrize("dtype", [DType.UINT8, DType.INT8, DType.BOOL, DType.INT32, DType.FLOAT16])
def test_elements_of_the_border(dtype: DType) -> None:
    """Arrays whose bytes fill no whole number of words, nor of vectors."""
    graph = Graph()
    x = graph.input("x", dtype, (3, 7))
    y = graph.tensor("y", dtype, (7, 3))
    order = graph.constant("order", [1, 0], DType.INT32)
    if dtype in (DType.UINT8, DType.INT8):
        x.quant = y.quant = Quant(np.array([0.5], np.float32), np.array([3], np.int64))
    graph.add("TRANSPOSE", [x, order], [y])
    graph.outputs = [y]
    session = Model([graph]).compile([GpuDelegate(backend="webgpu")], require_full_delegation=True)
    data = np.random.default_rng(0).integers(0, 100, (3, 7)).astype(dtype.numpy)
    np.testing.assert_array_equal(session.run({"x": data})["y"], data.T)


@needs_webgpu
def test_a_space_with_more_groups_than_a_device_has_runs_in_pieces() -> None:
    device = twin(devices_of("webgpu")[0])
    limits = dict(device.adapter.limits)
    limits["max-compute-workgroups-per-dimension"] = 2

    class Adapter:
        def __init__(self) -> None:
            self.limits = limits

    device.adapter, device._opened = Adapter(), devices_of("webgpu")[0].device  # type: ignore[attr-defined]
    step = check_answers(Pinned(device))
    pieces = [len(launch.dispatches) for launch in step.executable.launches]
    assert max(pieces) > 1


@needs_webgpu
def test_a_kernel_with_too_many_memory_objects_is_refused_with_a_sentence() -> None:
    device = twin(devices_of("webgpu")[0])
    device.offers = replace(device.offers, operands=2)
    with pytest.raises(DelegateError, match=r"memory objects, and .* takes 2 at most"):
        check_answers(Pinned(device))


@needs_webgpu
def test_fusion_respects_the_number_of_memory_objects() -> None:
    device = twin(devices_of("webgpu")[0])
    kind = replace(device.offers.kind, operands=3)
    device.offers = replace(device.offers, kind=kind)
    graph = Graph()
    inputs = [graph.input(f"x{i}", DType.FLOAT32, (2, 8)) for i in range(7)]
    total = inputs[0]
    for i, x in enumerate(inputs[1:]):
        made = graph.tensor(f"s{i}", DType.FLOAT32, (2, 8))
        graph.add("ADD", [total, x], [made])
        total = made
    graph.outputs = [total]
    model = Model([graph])
    session = model.compile([Pinned(device)], require_full_delegation=True)
    feeds = given(model)
    np.testing.assert_allclose(session.run(feeds)[total.name], sum(feeds.values()), rtol=1e-5)
    (step,) = session.plan().steps
    assert all(len(call.arguments) <= 4 for call in step.executable.recipe.calls)


@needs_webgpu
def test_a_kernel_that_does_not_build_is_named() -> None:
    device = devices_of("webgpu")[0]
    text = Wgsl().preamble() + kernel("f32", True).replace("= x_0_copy", "= nobody")
    with pytest.raises(DelegateError, match="does not build the kernel copy") as caught:
        device.build([text])
    assert "nobody" in caught.value.what


@needs_webgpu
def test_programs_are_kept_as_sources(tmp_path: object) -> None:
    options = {"backend": "webgpu", "serialization_dir": str(tmp_path)}
    first = check_answers(GpuDelegate(**options)).executable
    again = check_answers(GpuDelegate(**options)).executable
    assert first.key and first.key == again.key
    assert [p.source for p in first.programs] == [p.source for p in again.programs]


@needs_webgpu
def test_a_session_runs_again_and_again() -> None:
    model = small_model()
    session = model.compile([GpuDelegate(backend="webgpu")])
    expected = model.compile(["reference"])
    for seed in range(3):
        found, wanted = session.run(given(model, seed)), expected.run(given(model, seed))
        for name, answer in wanted.items():
            np.testing.assert_allclose(found[name], answer, atol=1e-4)


@needs_webgpu
def test_a_pipeline_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that differ in their weights alone share it, and so do all executables of a start."""
    compiled: list[tuple[object, ...]] = []
    made = WebGpuDevice._compiled

    def counted(
        self: WebGpuDevice,
        device: Any,
        program: Any,
        kernel: str,
        layout: Any,
        group: Sequence[int],
        first: Sequence[int],
    ) -> Any:
        compiled.append((kernel, *group, *first))
        return made(self, device, program, kernel, layout, group, first)

    monkeypatch.setattr(WebGpuDevice, "_compiled", counted)
    _, executable = nets.compiled(nets.dense(layers=5), backend="webgpu", cache=False)
    assert len(executable.recipe.calls) == 5
    assert len(compiled) == len(set(compiled)) < 5


@needs_webgpu
@pytest.mark.parametrize("name", ["SIN", "COS"])
def test_angles_of_many_turns(name: str) -> None:
    """WGSL promises one turn, to 2**-11."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 400))
    graph.outputs = [graph.tensor("y", DType.FLOAT32, (1, 400))]
    graph.add(name, [x], graph.outputs)
    angles = np.linspace(-2000, 2000, 400, dtype=np.float32)[None]
    found = Model([graph]).compile([GpuDelegate(backend="webgpu", cache=False)])(angles)
    exact = {"SIN": np.sin, "COS": np.cos}[name](angles.astype(np.float64))
    np.testing.assert_allclose(found, exact, atol=2e-6)
