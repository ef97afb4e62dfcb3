"""The gpu delegate's options, by TensorFlow Lite's names and rules; limits; who is there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import DelegateError, FallbackWarning, InputError, MissingExtraError
from sanderling.delegates.gpu import delegate as module
from sanderling.delegates.gpu.delegate import OPTIONS, GpuDelegate
from sanderling.delegates.gpu.devices.device import Device, Offers
from sanderling.delegates.gpu.options import CPU, MALI, UNKNOWN, DeviceClass
from sanderling.delegates.gpu.precision import settled, wanted
from sanderling.ir import DType, Graph, Model, Tensor
from sanderling.measure.sweep import delegate_choices
from sanderling.runtime.registry import find_delegate, load_delegate, usable_delegate

OFFERS = Offers(
    "a device",
    "opencl",
    "a platform",
    "1",
    UNKNOWN,
    1,
    1 << 30,
    half=True,
    images=False,
    shares_memory=False,
)
FIRST, SECOND, THIRD = (f"inference_priority{i}" for i in (1, 2, 3))


# -- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options, expected", [
    ({}, "f32"),
    ({"precision": "f32_f16"}, "f32_f16"),
    ({"is_precision_loss_allowed": True}, "f16"),
    ({"is_precision_loss_allowed": "0"}, "f32"),
    ({"is_precision_loss_allowed": True, "precision": "f32"}, "f32"),
    ({FIRST: "max_precision"}, "f32"),
    ({FIRST: "min_latency"}, "f16"),
    ({FIRST: "min_memory_usage"}, "f32_f16"),
    ({FIRST: "min_latency", SECOND: "max_precision"}, "f32_f16"),
    ({FIRST: "min_memory_usage", SECOND: "min_latency"}, "f16"),
    ({FIRST: "min_memory_usage", SECOND: "min_latency", THIRD: "max_precision"}, "f16"),
    ({FIRST: "auto", SECOND: "auto"}, "f32"),
])  # fmt: skip
def test_the_rank_of_precision_decides(options: dict[str, Any], expected: str) -> None:
    assert wanted(GpuDelegate(**options).chosen) == expected


@pytest.mark.parametrize("options, what", [
    ({"precision": "f16", FIRST: "min_latency"}, "both choose the precision"),
    ({"is_precision_loss_allowed": True, FIRST: "min_latency"}, "both choose the precision"),
    ({"precision": "f16", "is_precision_loss_allowed": False}, "precision=f16 loses precision"),
    ({FIRST: "min_latency", SECOND: "min_latency"}, "given twice: min_latency, min_latency"),
    ({SECOND: "min_latency"}, "'inference_priority1' is left open"),
    ({FIRST: "min_latency", THIRD: "max_precision"}, "'inference_priority2' is left open"),
    ({"samples": {"x": np.zeros(1)}}, "'samples' is of use with precision=auto only"),
    ({"precision_bound": 0.1}, "'precision_bound' is of use with precision=auto only"),
    ({"precision": "f8"}, "its option 'precision' cannot be 'f8'"),
    ({"precision": "auto", "precision_bound": 2}, "cannot be 2"),
    ({"precision": "auto", "samples": "x.txt"}, "cannot be 'x.txt'"),
    ({"max_delegated_partitions": -1}, "cannot be -1"),
    ({"device": -1}, "its option 'device' cannot be -1"),
    ({"fast": True}, "it has no option 'fast'"),
    ({"serialization_dir": "x", "cache": False}, "cache=false keeps nothing"),
    ({"serialization_dir": None}, "its option 'serialization_dir' cannot be None"),
    ({"model_token": b"x"}, "its option 'model_token' cannot be b'x'"),
])  # fmt: skip
def test_contradictions_are_errors(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError) as caught:
        GpuDelegate(**options)
    assert what in caught.value.what and caught.value.fix
    assert caught.value.where == "delegate 'gpu'"


def test_names_of_options_are_text() -> None:
    with pytest.raises(InputError, match="3 cannot be the name of an option"):
        GpuDelegate().configure({3: 4})  # type: ignore[dict-item]


def test_a_device_without_half_arithmetic() -> None:
    """It keeps floats in 16 bits where halves are welcome, and refuses who insists on them."""
    without = replace(OFFERS, half=False)
    assert settled({"is_precision_loss_allowed": True}, OFFERS) == "f16"
    assert settled({"is_precision_loss_allowed": True}, without) == "f32_f16"
    with pytest.raises(DelegateError, match=r"no half-precision arithmetic .*cl_khr_fp16"):
        settled({"precision": "f16"}, without)


def test_options_from_text_and_again() -> None:
    made = load_delegate("gpu", {"precision": "f32_f16", "max_delegated_partitions": "3"})
    assert isinstance(made, GpuDelegate) and made.max_delegated_partitions == 3
    again = made.configure({"quantized": "false"})
    assert again.chosen == {**made.chosen, "quantized": False} and not again.quantized
    assert all(row.about and row.takes for row in OPTIONS.values())


@pytest.mark.parametrize("spelled, what, fix", [
    ("gpu:-1", "'device' cannot be '-1'", "devices are numbered from 0, `sanderling devices`"),
    ("gpu:device=-1", "'device' cannot be '-1'", "devices are numbered from 0"),
    ("gpu:device=1;device=0", "its option 'device' is given twice", "give it once"),
    ("gpu:1;device=0", "its option 'device' is given twice", "give it once"),
    ("gpu:0;1", "its option 'device' is given twice", "give it once"),
    ("gpu:cache;cache=false", "its option 'cache' is given twice", "give it once"),
])  # fmt: skip
def test_spellings_that_are_refused(spelled: str, what: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        find_delegate(spelled)
    assert what in caught.value.what and fix in caught.value.fix


def test_flags_of_the_tool() -> None:
    made = GpuDelegate()
    made.take_flags(
        {
            "gpu_precision_loss_allowed": True,
            "gpu_experimental_enable_quant": False,
            "gpu_inference_for_sustained_speed": True,
            "gpu_backend": "cl",
            "gpu_wait_type": "",
            "delegate_serialize_dir": "there",
            "delegate_serialize_token": "",
        }
    )
    assert made.chosen == {
        "is_precision_loss_allowed": True,
        "quantized": False,
        "backend": "opencl",
        "inference_preference": "sustained_speed",
        "serialization_dir": "there",
    }
    with pytest.raises(InputError, match="no backend 'gl'"):
        made.take_flags({"gpu_backend": "gl"})


# -- devices --------------------------------------------------------------------------------------


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: GpuDelegate) -> tuple[Device, ...]:
        return ()

    monkeypatch.setattr(GpuDelegate, "devices", none)
    assert usable_delegate("gpu") == (None, "there is no OpenCL device")
    model = chain("ABS")
    with pytest.warns(FallbackWarning, match="there is no OpenCL device"):
        session = model.compile(["gpu"])
    assert "on cpu" in session.explain()
    with pytest.raises(DelegateError, match="there is no OpenCL device"):
        model.compile(["gpu"], require_full_delegation=True)


def test_a_device_that_is_not_there() -> None:
    pytest.importorskip("pyopencl")
    delegate = GpuDelegate(device=999)
    assert "there is no device 999: this machine has" in delegate.lacks()


class Stub(Device):
    """A device that is only looked at."""

    def __init__(self, kind: DeviceClass, interface: str = "opencl") -> None:
        self.offers = replace(OFFERS, kind=kind, interface=interface)


def test_a_gpu_of_any_interface_goes_before_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stub, "__abstractmethods__", frozenset())
    processor, gpu = Stub(CPU), Stub(MALI, "webgpu")
    found = {"opencl": (processor,), "webgpu": (gpu,)}

    def listed(backend: str | None = None, number: int | None = None) -> tuple[Device, ...]:
        return found[backend] if backend else (processor, gpu)

    monkeypatch.setattr("sanderling.delegates.gpu.devices.finding.devices", listed)
    assert GpuDelegate().device() is gpu and not GpuDelegate().is_software
    assert GpuDelegate(device=0).device() is processor
    assert GpuDelegate(backend="opencl").device() is processor
    assert GpuDelegate(backend="opencl").is_software
    # A number counts over all interfaces, with a backend too.
    assert GpuDelegate(backend="webgpu", device=1).device() is gpu
    assert GpuDelegate(backend="opencl", device=0).device() is processor
    for backend, number in (("webgpu", 0), ("opencl", 1)):
        wrong = GpuDelegate(backend=backend, device=number)
        for asked in (wrong.device, wrong.lacks):
            with pytest.raises(InputError, match=f"device {number} .*, not {backend}: numbers"):
                asked()
    said = GpuDelegate(backend="webgpu", device=2).lacks()
    assert said == "there is no device 2: this machine has 2, numbers are 0 and 1"


def test_a_wrong_number_lacks_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stub, "__abstractmethods__", frozenset())
    for count, numbers in ((1, "number 0"), (2, "numbers are 0 and 1"), (3, "are 0, 1 and 2")):
        monkeypatch.setattr(GpuDelegate, "devices", lambda self, n=count: (Stub(CPU),) * n)
        with pytest.raises(DelegateError) as caught:
            GpuDelegate(device=7).device()
        assert caught.value.what.endswith(numbers) and "pip" not in caught.value.fix


def test_a_precision_that_the_device_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known before anything is compiled."""
    monkeypatch.setattr(Stub, "__abstractmethods__", frozenset())
    device = Stub(CPU)
    device.offers = replace(device.offers, half=False)
    monkeypatch.setattr(GpuDelegate, "devices", lambda self: (device,))
    assert "no half-precision arithmetic" in GpuDelegate(precision="f16").lacks()
    assert not GpuDelegate(precision="f32_f16").lacks()
    assert not GpuDelegate(is_precision_loss_allowed=True).lacks()


def test_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(self: GpuDelegate) -> tuple[Device, ...]:
        raise MissingExtraError("pyopencl", "gpu", "the delegate 'gpu'")

    monkeypatch.setattr(module.GpuDelegate, "devices", absent)
    found, problem = usable_delegate("gpu")
    assert found is None and "pyopencl" in problem


# -- parts ----------------------------------------------------------------------------------------


def chain(*ops: str) -> Model:
    """Ops in a row on [1,4]."""
    graph = Graph()
    x: Tensor = graph.input("x", DType.FLOAT32, (1, 4))
    for i, name in enumerate(ops):
        y = graph.tensor(f"y{i}", DType.FLOAT32, (1, 4))
        graph.add(name, [x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])


class Choosy(GpuDelegate):
    def refuses(self, op: Any) -> str | None:
        return "it is not to be taken" if op.name == "SIN" else None


needs_device = pytest.mark.skipif(bool(GpuDelegate().lacks()), reason="there is no OpenCL device")
PARTS = chain("ABS", "SIN", "ABS", "NEG", "SIN", "ABS")


@needs_device
@pytest.mark.parametrize("options, limits, parts", [
    ({}, {}, [2]),
    ({"max_delegated_partitions": 0}, {}, [1, 2, 1]),
    ({"max_delegated_partitions": 0, "min_nodes_per_partition": 2}, {}, [2]),
    ({}, {"max_delegated_partitions": 2}, [1, 2]),
    ({"min_nodes_per_partition": 3}, {}, []),
])  # fmt: skip
def test_its_own_limits_hold_where_the_session_has_none(
    options: dict[str, Any], limits: dict[str, Any], parts: list[int]
) -> None:
    session = PARTS.compile([Choosy(cache=False, **options)], **limits)
    found = [len(p.ops) for p in session.plan().partition.parts if p.delegate.name == "gpu"]
    assert found == parts
    if not options and not limits:
        assert "only the largest part is kept" in session.explain()


@needs_device
def test_every_op_can_still_be_looked_at() -> None:
    """Limits of parts do not bind where each op is one."""
    session = chain("ABS", "NEG", "ABS").compile(
        [GpuDelegate(cache=False)], preserve_all_tensors=True
    )
    names = [p.delegate.name for p in session.plan().partition.parts]
    assert names == ["gpu"] * 3


def test_unsupported_types_are_refused_with_a_sentence() -> None:
    graph = Graph()
    x, y = graph.input("x", DType.INT16, (1, 4)), graph.tensor("y", DType.INT16, (1, 4))
    graph.add("ABS", [x], [y])
    graph.outputs = [y]
    assert GpuDelegate().refuses(graph.ops[0]) == "type i16 has no kernel"
    codes = sanderling.load(sanderling.__path__[0] + "/data/digits_int8.tflite").main.ops
    assert not any(map(GpuDelegate().refuses, codes))
    assert all(
        "quantized=false" in (GpuDelegate(quantized=False).refuses(op) or "")
        for op in codes
        if op.name == "CONV_2D"
    )


@needs_device
def test_a_processor_is_no_choice_beside_the_cpu() -> None:
    assert (("gpu",) in delegate_choices()) is not GpuDelegate().is_software
