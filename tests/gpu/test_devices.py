"""Devices: what they offer, what goes wrong on them, who uses them at once, and who lists them."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app
from sanderling.delegates.gpu import options
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices import failures, finding, opencl, pocl
from sanderling.delegates.gpu.devices.device import Offers
from sanderling.errors import DelegateError, FallbackWarning, MissingExtraError
from sanderling.ir import Array
from sanderling.measure.devices.at_hand import at_hand
from sanderling.runtime.registry import resolve
from tests.support.gpu_devices import (
    Pinned,
    check_answers,
    devices_of,
    given,
    needs_opencl,
    small_model,
    twin,
)
from tests.support.phones import Phone, scripted_phone  # noqa: F401

pytest.importorskip("pyopencl", reason="pyopencl is not installed")


@pytest.fixture(name="device")
def _device() -> Any:
    """The first OpenCL device, with a state of its own."""
    found = devices_of("opencl")
    if not found:
        pytest.skip("there is no OpenCL device")
    return twin(found[0])


# -- what they offer ------------------------------------------------------------------------------

NAMES = [
    ("Qualcomm", "Adreno (TM) 740", "adreno"),
    ("ARM", "Mali-G78", "mali"),
    ("Imagination", "PowerVR B-Series", "powervr"),
    ("NVIDIA Corporation", "NVIDIA A10", "nvidia"),
    ("Advanced Micro Devices, Inc.", "gfx1100", "amd"),
    ("Intel(R) Corporation", "Intel(R) Arc(TM)", "intel"),
    ("Apple", "Apple M3", "apple"),
    ("somebody", "something", "unknown"),
]


@pytest.mark.parametrize(("vendor", "name", "row"), NAMES, ids=lambda text: text.split()[0])
def test_a_device_has_the_row_of_its_class(vendor: str, name: str, row: str) -> None:
    assert options.class_of(False, vendor, name).name == row
    assert options.class_of(True, vendor, name, lanes=8).lanes == 8


def offers(**facts: Any) -> Offers:
    usual = Offers("x", "opencl", "", "", options.ADRENO, 1, 1 << 30, False, True, False)
    return replace(usual, **{"image_vectors": 1 << 16, "texture": (512, 512), **facts})


def test_the_form_of_storage_is_that_of_the_class_or_the_one_asked_for() -> None:
    assert offers().storage("f16")[0].form == "texture"
    assert offers().storage("f16") == (offers().storage("f16")[0], 512 * 512)
    assert offers().in_form("image").storage("f32")[1] == 1 << 16
    assert offers(images=False).storage("f32")[0].form == "buffer"
    with pytest.raises(DelegateError, match="x has no images, which storage=image needs"):
        offers(images=False).in_form("image")


def test_free_memory_does_not_tell_devices_apart() -> None:
    """Some drivers say how much is free just now; programs on disk are bound to the device."""
    assert offers(memory=1) == offers(memory=2) and repr(offers(memory=1)) == repr(offers(memory=2))


# -- finding them ---------------------------------------------------------------------------------


def test_interfaces_are_counted_one_behind_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def found(backend: str) -> Any:
        asked.append(backend)
        return {"opencl": ("a", "b"), "webgpu": ("c",)}[backend]

    monkeypatch.setattr(finding, "_devices", found)
    monkeypatch.setattr(finding, "find_spec", lambda package: package)
    assert finding.devices() == ("a", "b", "c") and finding.devices("webgpu") == ("c",)
    asked.clear()
    assert finding.devices(number=1) == ("a", "b")
    assert asked == ["opencl"], "an interface that is not needed costs time"
    assert finding.devices(number=2) == ("a", "b", "c")


def test_without_a_package_the_error_has_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.delegates.extras.find_spec", lambda package: None)
    monkeypatch.setattr(finding, "find_spec", lambda package: None)
    monkeypatch.setattr(opencl, "devices", opencl.devices.__wrapped__)
    with pytest.raises(MissingExtraError, match=r"pip install 'sanderling\[gpu\]'"):
        GpuDelegate().device()


def test_without_a_driver_the_error_has_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise real.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    real = opencl.opencl()
    monkeypatch.setattr(
        opencl, "opencl", lambda: SimpleNamespace(get_platforms=none, Error=real.Error)
    )
    monkeypatch.setattr(opencl, "devices", opencl.devices.__wrapped__)
    with pytest.raises(DelegateError, match="there is no OpenCL device") as caught:
        GpuDelegate(backend="opencl").device()
    assert "pip install 'sanderling[gpu]'" in caught.value.fix


@needs_opencl
def test_a_number_behind_the_colon_is_a_device() -> None:
    assert isinstance(chosen := resolve("gpu:0")[0], GpuDelegate)
    assert chosen.device() is devices_of("opencl")[0]
    with pytest.raises(DelegateError, match="there is no device 99: this machine has"):
        GpuDelegate(device=99).device()


def test_a_processor_that_pocl_does_not_know_gets_the_nearest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is described by memory which points at the word."""
    import ctypes

    word = ctypes.create_string_buffer(b"generic", 8)
    described = (ctypes.c_uint64 * (pocl.FIELD // 8 + 1))()
    described[pocl.FIELD // 8] = ctypes.addressof(word)
    device = SimpleNamespace(
        platform=SimpleNamespace(version=pocl.BUILD),
        version=f"{pocl.VERSION} ",
        int_ptr=ctypes.addressof(described),
    )
    monkeypatch.setattr(pocl.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(pocl.platform, "system", lambda: "Linux")
    monkeypatch.setattr(pocl, "cpu_features", lambda: frozenset({"avx2", "fma", "bmi2"}))
    if not Path("/proc/self/maps").is_file():
        pytest.skip("this system does not say which memory is its own")
    assert pocl.name_the_processor(device) and word.value == b"haswell"
    assert not pocl.name_the_processor(device), "the name is known now"
    word.value = b"generic"
    newer = SimpleNamespace(version=pocl.BUILD.replace("rc2", "rc3"))
    for others in ({"version": pocl.VERSION.replace("generic", "skx")}, {"platform": newer}):
        other = SimpleNamespace(**{**vars(device), **others})
        assert not pocl.name_the_processor(other) and word.value == b"generic"
    described[pocl.FIELD // 8] = 8
    assert not pocl.name_the_processor(device), "the field points at no memory of ours"


@needs_opencl
def test_a_driver_that_fails_costs_no_devices_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it lists its devices, or where one is asked what it is; and it is named."""
    real = opencl.opencl()
    sound = real.get_platforms()
    (first, *_) = sound[-1].get_devices()

    class Silent:
        """A device that says nothing of its memory."""

        global_mem_size = property(raising("OUT_OF_RESOURCES"))

        def __getattr__(self, name: str) -> Any:
            return getattr(first, name)

    none = SimpleNamespace(name="None", get_devices=raising("OUT_OF_HOST_MEMORY"))
    silent = SimpleNamespace(name="Silent", get_devices=lambda: [Silent()])
    broken = Broken(real, get_platforms=lambda: [none, silent, *sound])
    monkeypatch.setattr(opencl, "opencl", lambda: broken)
    with pytest.warns(FallbackWarning, match="is left out, since it fails") as caught:
        found = opencl.devices.__wrapped__()
    assert [d.offers for d in found] == [d.offers for d in devices_of("opencl")]
    said = [str(each.message) for each in caught]
    assert "driver 'None'" in said[0] and "OUT_OF_HOST_MEMORY" in said[0]
    assert "driver 'Silent'" in said[1] and len(said) == 2


# -- what goes wrong ------------------------------------------------------------------------------


class Broken:
    """pyopencl, but for some names."""

    def __init__(self, cl: Any, **instead: Any) -> None:
        self._cl, self._instead = cl, instead

    def __getattr__(self, name: str) -> Any:
        return self._instead[name] if name in self._instead else getattr(self._cl, name)


def raising(word: str) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        import pyopencl

        raise pyopencl.RuntimeError(f"clSomething failed: {word}")

    return call


PROBLEMS = {
    "no context": ("Context", "DEVICE_NOT_AVAILABLE", "gives no context", "the device was lost"),
    "no memory": ("Buffer", "MEM_OBJECT_ALLOCATION_FAILURE", "bytes left", "smaller input shapes"),
    "no launch": ("enqueue_nd_range_kernel", "OUT_OF_RESOURCES", "does not run a kernel",
                  "took too long or too much"),
    "no input": ("enqueue_copy", "OUT_OF_HOST_MEMORY", "takes no input", "close other programs"),
    "no end": ("enqueue_marker", "DEVICE_NOT_AVAILABLE", "did not finish a run",
               "the device was lost"),
    "no kernel": ("Kernel", "INVALID_KERNEL_NAME", "has no kernel", "choose another device"),
}  # fmt: skip


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_drivers_error_is_ours(problem: str, device: Any) -> None:
    name, word, what, fix = PROBLEMS[problem]
    device.cl = Broken(device.cl, **{name: raising(word)})
    if name == "Context":
        device._context = None
    model = small_model()
    with pytest.raises(DelegateError, match=what) as caught:
        model.compile([Pinned(device)], require_full_delegation=True).run(given(model))
    assert device.offers.name in str(caught.value) and fix in str(caught.value)


@pytest.mark.parametrize("problem", ["no memory", "no launch", "no end"])
def test_what_fails_runs_elsewhere(problem: str, device: Any) -> None:
    """With a warning, once; unless full delegation was required."""
    name, word, _, _ = PROBLEMS[problem]
    model = small_model()
    expected = model.compile(["reference"]).run(given(model))
    device.cl = Broken(device.cl, **{name: raising(word)})
    with pytest.warns(FallbackWarning):
        session = model.compile([Pinned(device), "reference"])
        found = session.run(given(model))
    for key, answer in expected.items():
        np.testing.assert_allclose(found[key], answer, atol=1e-5)


def test_a_failure_of_a_later_run_moves_the_part(device: Any) -> None:
    model = small_model()
    session = model.compile([Pinned(device), "reference"])
    expected = session.run(given(model))
    device.cl = Broken(device.cl, enqueue_copy=raising("DEVICE_NOT_AVAILABLE"))
    with pytest.warns(FallbackWarning, match="DEVICE_NOT_AVAILABLE"):
        found = session.run(given(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = session.run(given(model))
    for key, answer in expected.items():
        np.testing.assert_allclose(found[key], answer, atol=1e-4)
        np.testing.assert_array_equal(found[key], again[key])


def test_a_build_failure_names_the_kernel(device: Any) -> None:
    sound = "__kernel void good(__global float* y)\n{\n  y[0] = 1;\n}\n"
    source = sound + sound.replace("good", "bad").replace("= 1;", "= nobody;")
    with pytest.raises(DelegateError, match="does not build the kernel bad") as caught:
        device.build([source])
    assert "nobody" in caught.value.what and "report it" in caught.value.fix
    assert len(caught.value.what.splitlines()) <= failures.MOST_LINES


def test_pyopencl_keeps_no_programs(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does for drivers that it knows no cache of, in a folder whose lock may be left behind."""
    asked = []
    monkeypatch.setattr("pyopencl.characterize.has_src_build_cache", lambda device: False)
    monkeypatch.setattr(
        "pyopencl.cache._create_built_program_from_source_cached", lambda *a, **b: asked.append(a)
    )
    check_answers(Pinned(device))
    assert not asked


LOG = "program.cl:7:9: error: use of undeclared identifier"


@pytest.mark.parametrize(
    ("text", "name"), [(LOG, "bad"), ("<kernel>:2:1: error", "good"), ("no line is named", "")]
)
def test_the_kernel_around_a_line(text: str, name: str) -> None:
    source = "__kernel void good(x)\n{\n}\n\n__kernel void bad(x)\n{\n  y\n}\n"
    assert failures.kernel_at(source, text) == name
    assert failures.kernel_at("@compute\nfn one(id) {\n}\n", "wgsl:3:1") == "one"


class Never:
    """An event of a queue that hangs."""

    command_execution_status = 3


def test_a_device_that_hangs_is_given_up(device: Any) -> None:
    """The watchdog ends the wait; from then on the device is not asked any more."""
    model = small_model()
    expected = model.compile(["reference"]).run(given(model))
    session = model.compile([Pinned(device, timeout=0.2), "reference"])
    device.cl = Broken(device.cl, enqueue_marker=lambda queue: Never())
    begin = time.monotonic()
    with pytest.warns(FallbackWarning, match=r"did not finish a run within 0\.2 s"):
        found = session.run(given(model))
    assert time.monotonic() - begin < 30
    for key, answer in expected.items():
        np.testing.assert_allclose(found[key], answer, atol=1e-5)
    with pytest.raises(DelegateError, match="was given up after a run that did not end"):
        device.allocate(16)


@pytest.mark.parametrize(
    ("options", "sound"),
    [({}, 0), ({"tuning": "fast"}, 1), ({"precision": "auto"}, 0)],
    ids=["first run", "tuning", "trial of half precision"],
)
def test_a_device_that_hangs_is_given_up_while_it_compiles(
    options: dict[str, Any], sound: int, device: Any
) -> None:
    """The user's time-out holds from the first launch on. sound: waits that end."""
    cl, waits = device.cl, iter(range(100))
    device.cl = Broken(
        cl, enqueue_marker=lambda q: cl.enqueue_marker(q) if next(waits) < sound else Never()
    )
    model = small_model()
    expected = model.compile(["reference"]).run(given(model))
    with pytest.warns(FallbackWarning, match=r"did not finish a run within 0\.2 s"):
        session = model.compile([Pinned(device, timeout=0.2, **options), "reference"])
        found = session.run(given(model))
    assert device.is_lost and "on gpu" not in session.explain()
    for key, answer in expected.items():
        np.testing.assert_allclose(found[key], answer, atol=1e-5)


def test_pocl_is_not_asked_to_compile_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: Any
) -> None:
    """Its compiler would end the process; so the model runs elsewhere, from the cache too."""
    asked = []

    def usage(folder: Path) -> Any:
        asked.append(folder)
        return SimpleNamespace(free=pocl.LEAST_ROOM - 1)

    device.offers = replace(device.offers, platform=pocl.BUILD)
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "not" / "there"))
    monkeypatch.setattr(pocl.shutil, "disk_usage", usage)
    model = small_model()
    with pytest.warns(FallbackWarning, match="would end the program where the disk is full"):
        found = model.compile([Pinned(device, cache=False), "reference"]).run(given(model))
    for key, answer in model.compile(["reference"]).run(given(model)).items():
        np.testing.assert_allclose(found[key], answer, atol=1e-5)
    assert set(asked) == {tmp_path}, "the nearest folder that is there"
    with pytest.raises(DelegateError, match="32 MiB that it may need") as caught:
        device.load([b"binary"])
    assert "POCL_CACHE_DIR" in caught.value.fix
    pocl.check_room("another driver", "a device")


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"POCL_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/pocl"),
        ({"HOME": "/c"}, "/c/.cache/pocl"),
        ({}, "/tmp"),
    ],
)
def test_where_pocl_compiles(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(pocl._cache_folder()) == folder


def test_a_call_that_never_returns_is_left_behind() -> None:
    gate, late = threading.Event(), DelegateError("too late")
    with pytest.raises(DelegateError, match="too late"):
        failures.within(0.05, gate.wait, lambda: late)
    gate.set()
    with pytest.raises(ZeroDivisionError):
        failures.within(5, lambda: 1 // 0, lambda: late)
    failures.within(5, gate.wait, lambda: late)


# -- several at once ------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failed: list[BaseException] = []

    def guarded(place: int) -> None:
        try:
            work(place)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


@needs_opencl
def test_sessions_of_several_threads_share_a_device() -> None:
    """Each compiles and runs its own, on inputs of its own."""
    model = small_model()
    fed = [given(model, seed) for seed in range(4)]
    wanted = [model.compile(["reference"]).run(feed) for feed in fed]

    def work(place: int) -> None:
        session = small_model().compile([GpuDelegate()], require_full_delegation=True)
        for _ in range(10):
            found = session.run(fed[place])
            for key, answer in wanted[place].items():
                np.testing.assert_allclose(found[key], answer, atol=1e-4)

    in_threads(len(fed), work)


@needs_opencl
def test_who_is_timed_does_not_touch_others(device: Any) -> None:
    """Launches that are timed have a queue of their own; other threads stay in theirs."""
    seen = []
    with device.timed() as has_timers:
        thread = threading.Thread(target=lambda: seen.append(device.queue))
        thread.start()
        thread.join()
        mine = device.queue
    assert has_timers and seen == [device.queue] and mine != device.queue
    with device.timed():
        assert device.queue == mine


@needs_opencl
def test_a_profile_beside_runs_of_other_threads() -> None:
    model, rounds = small_model(), 30
    fed = given(model, 1)
    wanted = model.compile(["reference"]).run(fed)

    def work(place: int) -> None:
        session = small_model().compile([GpuDelegate()], require_full_delegation=True)
        times = session.plan().steps[0].executable.step_times() if place == 0 else None
        for number in range(rounds):
            if times is not None:
                times.count(number % 2 == 0)
            found = session.run(fed)
            for key, answer in wanted.items():
                np.testing.assert_allclose(found[key], answer, atol=1e-4)
        assert times is None or times.times.sum() > 0

    in_threads(3, work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_computes_elsewhere(device: Any) -> None:
    """Drivers have threads, which a child has not: it must not wait for them."""
    model = small_model()
    session = model.compile([Pinned(device), "reference"])
    expected = session.run(given(model))
    child = os.fork()
    if not child:
        os._exit(_in_child(device, session, given(model), expected))
    assert os.waitpid(child, 0)[1] == 0
    for key, answer in session.run(given(model)).items():
        np.testing.assert_array_equal(answer, expected[key])


def _in_child(device: Any, session: Any, feed: dict[str, Array], expected: Any) -> int:
    """0: the device says what it is, and the part runs on the other delegate."""
    try:
        device.renew_lock()  # what the real device does by itself; this is a test's twin
        try:
            device.allocate(16)
            return 2
        except DelegateError as error:
            if "when this process was forked" not in str(error):
                return 3
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = session.run(feed)
        return 0 if all(np.allclose(found[k], a, atol=1e-4) for k, a in expected.items()) else 4
    except BaseException:
        return 5


# -- memory that is shared ------------------------------------------------------------------------


@needs_opencl
@pytest.mark.parametrize("number", range(len(devices_of("opencl"))))
def test_inputs_that_a_device_shares_are_not_copied(number: int) -> None:
    device = devices_of("opencl")[number]
    step = check_answers(Pinned(device))
    made, feeds = step.executable, given(small_model())
    inputs: list[Array] = [feeds["x"]]
    outputs: list[Array] = [np.empty(t.shape, np.float32) for t in step.outputs]
    before = made.copies.runs, made.copies.tensors
    run = made.bind(inputs, outputs)
    first = run_and_copy(run, outputs)
    shared = [device.share(array.reshape(-1), rewritten=True) is not None for array in inputs]
    assert made.copies.runs == before[0] + 1
    assert made.copies.tensors - before[1] == shared.count(False) + len(outputs)
    if device.offers.shares_memory and "PoCL" in device.offers.platform:
        assert shared == [a.ctypes.data % opencl.SHARED_ALIGNMENT == 0 for a in inputs]
    expected = small_model().compile(["reference"]).run(feeds)
    for tensor, array in zip(step.outputs, first, strict=True):
        np.testing.assert_allclose(array, expected[tensor.name], atol=1e-4)
    inputs[0][:] = 0.0  # the host's writes are seen by the next run
    assert not any(
        np.allclose(a, b) for a, b in zip(run_and_copy(run, outputs), first, strict=True)
    )


def test_a_driver_that_may_keep_a_copy_is_given_whole_pages_only(device: Any) -> None:
    """It would put the copy back over what the host wrote. Weights are never written again."""
    if not device.offers.shares_memory:
        pytest.skip("the device has memory of its own")
    room = np.zeros(3 * opencl.PAGE, np.uint8)
    page = room[-room.ctypes.data % opencl.PAGE :]
    within, odd, whole = page[64:128], page[:100], page[:128]
    device.offers = replace(device.offers, platform="OpenCL 3.0 of somebody")
    assert device.share(whole, rewritten=True) is not None
    assert device.share(within, rewritten=True) is None
    assert device.share(odd, rewritten=True) is None
    assert device.share(within) is not None


def test_what_the_device_has_of_shared_memory_is_never_put_back(device: Any) -> None:
    asked, cl = [], device.cl

    def mapped(queue: Any, memory: Any, flags: int, *about: Any, **more: Any) -> Any:
        asked.append(flags)
        return cl.enqueue_map_buffer(queue, memory, flags, *about, **more)

    memory = device.allocate(64)
    device.cl = Broken(cl, enqueue_map_buffer=mapped)
    device.give(memory)
    assert asked == [cl.map_flags.WRITE_INVALIDATE_REGION]


def run_and_copy(run: Callable[[], None], outputs: list[Array]) -> list[Array]:
    run()
    return [np.array(array) for array in outputs]


# -- the list -------------------------------------------------------------------------------------


def test_the_list_has_gpus_and_phones(phone: Callable[..., Phone], tmp_path: Path) -> None:
    phone()
    found = at_hand()
    assert [gpu.number for gpu in found.gpus] == list(range(len(found.gpus)))
    assert [(p.serial, p.state, p.model, p.android) for p in found.phones] == [
        ("PHONE1", "device", "Pixel 9", "16")
    ]
    path = tmp_path / "devices.json"
    result = CliRunner().invoke(app, ["devices", "--json", str(path)])
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text())
    assert record["schema"] == "sanderling.devices/1"
    assert [row["name"] for row in record["gpus"]] == [gpu.name for gpu in found.gpus]
    assert all({"memory", "group", "half", "storage", "kind"} <= set(g) for g in record["gpus"])
    shown = CliRunner().invoke(app, ["devices"])
    assert shown.exit_code == 0 and "PHONE1" in shown.stdout
    assert all(gpu.name in shown.stdout for gpu in found.gpus)


def test_what_is_not_installed_is_a_remark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sanderling.measure.devices.at_hand.find_spec", lambda package: None)
    monkeypatch.setenv("PATH", "/nowhere")
    found = at_hand()
    assert not found.gpus
    said = "\n".join(found.remarks)
    assert "pip install 'sanderling[gpu]'" in said and "pip install 'sanderling[webgpu]'" in said


def test_a_wrong_adb_is_an_error() -> None:
    result = CliRunner().invoke(app, ["devices", "--adb", "/nowhere/adb"])
    assert result.exit_code == 2
