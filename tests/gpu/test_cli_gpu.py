"""`--delegate gpu` of every verb, what is said where something is missing or fails, and LiteRT's
CompiledModel on our device."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import DelegateError, FallbackWarning
from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.delegates.gpu.devices.device import Device
from sanderling.delegates.gpu.executable import GpuExecutable
from sanderling.delegates.gpu.peaks import Peaks
from sanderling.errors import CacheWarning, UnsupportedError
from sanderling.ir import DType, Graph, Model, Tensor
from sanderling.litert.compiled_model import CompiledModel, GpuOptions, Options
from sanderling.litert.hardware_accelerator import HardwareAccelerator
from tests.support.command_line import DATA, DIGIT, F32, INT8, answer, call, stored

pytest.importorskip("pyopencl", reason="pyopencl is not installed")
pytestmark = pytest.mark.skipif(bool(GpuDelegate().lacks()), reason="there is no OpenCL device")
DEVICE = GpuDelegate()
QUICK = ("--num_runs=2", "--min_secs=0.01", "--warmup_min_secs=0.01", "--use_gpu=true")


def picture() -> Model:
    """CONV_2D of an RGB picture to five channels, ABS, RELU."""
    graph, rng = Graph(), np.random.default_rng(0)
    x = graph.input("rgb", DType.FLOAT32, (1, 8, 8, 3))
    weights = graph.constant("w", rng.normal(size=(5, 3, 3, 3)), DType.FLOAT32)
    bias = graph.constant("b", np.zeros(5), DType.FLOAT32)

    def add(name: str, *given: Tensor, **attrs: object) -> Tensor:
        made = graph.tensor(name.lower(), DType.FLOAT32, (1, 8, 8, 5))
        graph.add(name, list(given), [made], **attrs)
        return made

    y = add("CONV_2D", x, weights, bias, padding="SAME", stride_h=1, stride_w=1)
    graph.outputs = [add("RELU", add("ABS", y))]
    return Model([graph])


def refusing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As if there were no kernel for an operator."""
    refuses = GpuDelegate.refuses

    def more(self: GpuDelegate, op: Any) -> str | None:
        return "it has no kernel" if op.name == name else refuses(self, op)

    monkeypatch.setattr(GpuDelegate, "refuses", more)


def warned(*words: object) -> str:
    """What a verb prints, and the warnings that the command shows on stderr."""
    with pytest.warns(FallbackWarning) as caught:
        result = call(*words)
    assert "Traceback" not in result.output
    return "\n".join([result.output, *(str(w.message) for w in caught)])


# -- verbs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model, near", [(F32, 1e-5), (INT8, 2)])
def test_run(model: str, near: float, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DIGIT)
    for place, delegate in enumerate(("cpu", "gpu")):
        out = tmp_path / f"{place}.npy"
        call("run", model, "--input", tmp_path / "x.npy", "--delegate", delegate, "-o", out)
    ours, theirs = (np.load(tmp_path / f"{i}.npy").astype(np.float64) for i in (0, 1))
    np.testing.assert_allclose(ours, theirs, atol=near)


def test_options_behind_the_name() -> None:
    record = answer("run", F32, "--random", 0, "--delegate", "gpu:precision=f32_f16;device=0")
    plain = answer("run", F32, "--random", 0, "--delegate", "gpu")
    a, b = ([o["mean"] for o in r["outputs"].values()] for r in (record, plain))
    np.testing.assert_allclose(a, b, rtol=1e-2)


def test_diff() -> None:
    record = answer("diff", F32, "--delegate", "gpu", "--runs", 5)
    assert record["schema"].startswith("sanderling.diff/") and "gpu" in json.dumps(record)
    said = call("diff", F32, "--delegate", "gpu", "--runs", 5).stdout
    assert "sanderling gpu" in said


def test_eval() -> None:
    data = DATA / "digits_test.npz"
    words = ("eval", "arrays", F32, "--data", data, "--limit", 40, "--std", 16)
    ours, theirs = (answer(*words, "--delegate", name) for name in ("gpu", "cpu"))
    assert ours["metrics"] == theirs["metrics"]


def test_profile_has_the_devices_steps_and_roof(tmp_path: Path) -> None:
    record = answer("profile", F32, "--delegate", "gpu", "--runs", 5)
    kernels = [row["kernel"] for row in record["steps"]]
    assert {"import", "export", "softmax"} <= set(kernels)
    assert record["method"] == "timers of the device" and record["accounted"] == 1
    assert all(row["delegate"] == "gpu" and row["ms"] > 0 for row in record["steps"])
    assert record["macs"] == sum(node["macs"] for node in record["nodes"])
    roof = record["device_rooflines"]["gpu"]
    assert roof["cpu"] == DEVICE.device().offers.name and roof["peaks"]["f32"] > 0
    assert {row["share"] is not None for row in record["steps"] if row["macs"]} == {True}
    said = call("profile", F32, "--delegate", "gpu", "--runs", 5, "--html", tmp_path / "p.html")
    assert "launches and waits for the device" in said.stdout and roof["cpu"] in said.stdout
    assert (tmp_path / "p.html").stat().st_size > 10_000


def test_a_device_without_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(DEVICE.device()), "timed", Device.timed)
    record = sanderling.profile(F32, delegates=["gpu"], runs=2, with_roofline=False)
    assert record["method"] == "the clock around each launch"
    assert len(record["steps"]) == 6 and all(row["ms"] > 0 for row in record["steps"])


def test_trace_has_the_queue_as_a_track(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    call("trace", F32, "--delegate", "gpu", "--runs", 3, "-o", out)
    events = json.loads(out.read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    (queue,) = [t for t, n in names.items() if n == f"queue of {DEVICE.device().offers.name}"]
    steps = [e for e in events if e.get("tid") == queue and e["ph"] == "X"]
    parts = [e for e in events if e["ph"] == "X" and e["name"] == "part 0 on gpu"]
    assert [e["args"]["node"] for e in steps if e["name"] == "CONV_2D"] == [0, 1] * 3
    # In its part: the device's clock was brought to the host's.
    last = [e for e in steps if e["name"] == "SOFTMAX"]
    for part, step in zip(parts, last, strict=True):
        assert part["ts"] <= step["ts"] and step["ts"] + step["dur"] <= part["ts"] + part["dur"]


def test_bench() -> None:
    record = answer(
        "bench",
        F32,
        "--delegates",
        "gpu,cpu",
        "--runs",
        2,
        "--min-secs",
        0.01,
        "--max-secs",
        1,
        "--warmup-secs",
        0.01,
        "--launches",
        1,
    )
    told = json.dumps(record)
    assert "gpu" in told and not any(row["error"] for row in record["results"])


def test_benchmark_model_says_what_tensorflow_lite_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, "ABS")
    path, kept = stored(tmp_path, picture()), tmp_path / "kept"
    kept.mkdir(mode=0o700)
    flags = ("--gpu_backend=cl", "--gpu_precision_loss_allowed=false",
             "--gpu_experimental_enable_quant=true", "--gpu_inference_for_sustained_speed=false",
             f"--delegate_serialize_dir={kept}", "--delegate_serialize_token=mine")  # fmt: skip
    text = call("benchmark_model", f"--graph={path}", *QUICK, *flags).stdout
    assert "WARNING: op code #101 cannot be handled by this delegate." in text
    assert "ERROR: Following operations are not supported by GPU delegate:" in text
    assert "ERROR: ABS: it has no kernel" in text
    assert (
        "1 operations will run on the GPU, and the remaining 2 operations will run on the CPU."
        in text
    )
    assert "Replacing 1 out of 3 node(s) with delegate (gpu) node, yielding 2 partitions" in text
    assert "partially executed by the delegate w/ 1 delegate kernels." in text
    assert "has no effect" not in text and list(kept.rglob("*.gpu"))
    whole = call("benchmark_model", f"--graph={F32}", *QUICK).stdout
    assert "completely executed by the delegate." in whole and "WARNING" not in whole
    alone = call("benchmark_model", f"--graph={F32}", *QUICK[:-1], flags[-2]).stdout
    assert "--delegate_serialize_dir has no effect without --use_gpu=true" in alone


def test_the_tools_own_default_is_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag table has it, and a delegate's own default is another."""
    asked: list[object] = []
    compiles = GpuDelegate.compile

    def told(self: GpuDelegate, *about: Any) -> Any:
        asked.append(self.chosen.get("is_precision_loss_allowed"))
        return compiles(self, *about)

    monkeypatch.setattr(GpuDelegate, "compile", told)
    call("benchmark_model", f"--graph={F32}", *QUICK)
    call("benchmark_model", f"--graph={F32}", *QUICK, "--gpu_precision_loss_allowed=false")
    call("diff", F32, "--use_gpu=true", "--runs", 1)
    call("diff", F32, "--delegate", "gpu", "--runs", 1)
    assert [v for v, _ in groupby(asked)] == [True, False, True, None]


def test_benchmark_model_refuses_what_is_not_there() -> None:
    said = call("benchmark_model", f"--graph={F32}", *QUICK, "--gpu_backend=gl", status=2).output
    assert "there is no backend 'gl'" in said and "cl (OpenCL) or webgpu" in said


# -- inspect --------------------------------------------------------------------------------------


def test_inspect_explains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "ABS")
    path = stored(tmp_path, picture())
    (record,) = answer("inspect", path, "--delegate", "gpu")["delegates"]
    assert [(p["delegate"], p["ops"]) for p in record["parts"]] == [("gpu", 1), ("cpu", 2)]
    crossing = record["crossing"]
    assert (crossing["tensors"], crossing["inner_bytes"]) == (2, 4 * 8 * 8 * 5)
    found = record["estimate"]
    assert found["cpu_is_faster"] and found["whole"] > found["kernels"] > 0
    hints = {h["tensor"]: h for h in record["hints"]}
    assert hints["rgb"]["costs"] == 4 and "RGBX, [1, 8, 8, 4]" in hints["rgb"]["text"]
    (five,) = [h for name, h in hints.items() if name != "rgb"]
    assert five["text"] == "5 channels cost what 8 do: 3 more would be free"
    text = " ".join(call("inspect", path, "--delegate", "gpu").stdout.split())
    assert "it has no kernel" in text and "only because ops are refused" in text
    assert "the CPU alone would be faster; `sanderling bench --sweep` measures it" in text
    assert "5 channels cost what 8 do" in text and "RGBX" in text


def test_the_estimate_is_of_the_parts_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the bytes, and the device's own peak for halves; codes become floats there."""
    device = DEVICE.device()
    known = Peaks({"f32": 1e6, "f16": 4e6}, 1e9, 1e9, 0.0, 1e9)
    monkeypatch.setattr("sanderling.delegates.gpu.peaks.peaks_of", lambda *about: known)
    monkeypatch.setattr(device, "offers", replace(device.offers, half=True))

    def kernels(model: str, delegate: str) -> float:
        (record,) = answer("inspect", model, "--delegate", delegate)["delegates"]
        return record["estimate"]["kernels"]

    whole, kept, half = (kernels(F32, f"gpu:precision={p}") for p in ("f32", "f32_f16", "f16"))
    assert half == pytest.approx(whole / 4, rel=0.05) and half < kept <= whole
    slow = replace(known, peaks={"f32": 1e12, "f16": 1e12})
    monkeypatch.setattr("sanderling.delegates.gpu.peaks.peaks_of", lambda *about: slow)
    assert kernels(F32, "gpu:precision=f32_f16") == pytest.approx(kernels(F32, "gpu") / 2)
    assert kernels(INT8, "gpu") == pytest.approx(kernels(F32, "gpu"), rel=0.3)


def test_inspect_names_a_rewrite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, "LOG_SOFTMAX")
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 8))
    graph.outputs = [graph.tensor("y", DType.FLOAT32, (1, 8))]
    graph.add("LOG_SOFTMAX", [x], graph.outputs)
    path = stored(tmp_path, Model([graph]))
    text = " ".join(call("inspect", path, "--delegate", "gpu").stdout.split())
    assert "`sanderling rewrite MODEL --for gpu:sanderling`" in text
    assert "LOG_SOFTMAX as sums" in text


def test_inspect_tries_half_precision() -> None:
    (record,) = answer("inspect", F32, "--delegate", "gpu:precision=auto")["delegates"]
    assert "precision auto: 5 of 5 results in 16 bits" in record["remarks"][0]


def test_inspect_on_a_device_that_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: object, refresh: bool = False) -> None:
        raise DelegateError("it does not build a kernel")

    monkeypatch.setattr("sanderling.delegates.gpu.peaks.peaks_of", broken)
    said = call("inspect", F32, "--delegate", "gpu").stdout
    assert "nothing can be measured: it does not build a kernel" in said


def test_inspect_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be taken is known all the same, and that nothing is."""
    monkeypatch.setattr(GpuDelegate, "devices", lambda self: ())
    said = call("inspect", F32, "--delegate", "gpu").stdout
    assert "delegation: 'gpu' runs nothing here: there is no OpenCL device\n" in said
    assert "by its rules alone: 1 part: 5 ops on gpu\n" in said and "estimated" not in said


def test_inspect_with_options_that_nothing_here_fulfils(monkeypatch: pytest.MonkeyPatch) -> None:
    said = call("inspect", F32, "--delegate", "gpu:99").stdout
    assert "delegation: 'gpu' runs nothing here: there is no device 99: this machine has" in said
    offers = replace(DEVICE.device().offers, half=False)
    monkeypatch.setattr(DEVICE.device(), "offers", offers)
    said = call("inspect", F32, "--delegate", "gpu:precision=f16").stdout
    assert "'gpu' runs nothing here: " in said and "which precision=f16 needs" in said
    assert "delegation: 1 part" not in said


# -- what goes wrong ------------------------------------------------------------------------------


def test_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuDelegate, "devices", lambda self: ())
    said = warned("run", F32, "--random", 0, "--delegate", "gpu")
    assert "there is no OpenCL device" in said and "pip install 'sanderling[gpu]'" in said
    said = call("benchmark_model", f"--graph={F32}", *QUICK).output
    assert "there is no OpenCL device" in said.replace("There", "there")


def test_a_number_that_no_device_has() -> None:
    said = warned("run", F32, "--random", 0, "--delegate", "gpu:device=99;backend=opencl")
    assert "there is no device 99: this machine has" in said and "number" in said
    assert "pip install" not in said


@pytest.mark.skipif(DEVICE.lacks() == "" and DEVICE.device().offers.half, reason="it has halves")
def test_a_device_without_half_arithmetic() -> None:
    said = warned("run", F32, "--random", 0, "--delegate", "gpu:precision=f16")
    assert "has no half-precision arithmetic (the extension cl_khr_fp16)" in said
    assert "precision=f32_f16" in said


def test_a_build_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own words, cut short, and the model runs elsewhere."""
    kind = type(DEVICE.device())
    build = kind.build

    def broken(self: Any, sources: Any) -> Any:
        return build(self, [f"{source}\n#error not today" for source in sources])

    monkeypatch.setattr(kind, "build", broken)
    words = ("run", F32, "--random", 0, "--delegate", "gpu:cache=false")
    said = warned(*words)
    assert "does not build the kernel" in said and "not today" in said
    assert "float32[1, 10]" in said
    with pytest.raises(DelegateError, match="does not build the kernel"):
        sanderling.load(F32).compile([GpuDelegate(cache=False)], require_full_delegation=True)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be kept is compiled again the next time."""

    def full(*args: Any, **more: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sanderling.store._write_beside", full)
    words = ("run", F32, "--random", 0, "--delegate", f"gpu:serialization_dir={tmp_path}")
    with pytest.warns(CacheWarning, match="compiled code cannot be kept in .*No space left"):
        said = call(*words).output
    assert "float32[1, 10]" in said and "Traceback" not in said
    assert not list(tmp_path.rglob("*.gpu"))


def test_a_model_of_other_types(tmp_path: Path) -> None:
    graph = Graph()
    x = graph.input("x", DType.INT64, (1, 4))
    graph.outputs = [graph.tensor("y", DType.INT64, (1, 4))]
    graph.add("NEG", [x], graph.outputs)
    path = stored(tmp_path, Model([graph]))
    assert "type i64 has no kernel" in call("inspect", path, "--delegate", "gpu").stdout
    assert "int64[1, 4]" in call("run", path, "--random", 0, "--delegate", "gpu").output


@pytest.mark.parametrize("options, said", [
    ("precision=f8", "its option 'precision' cannot be 'f8'"),
    ("speed=1", "it has no option 'speed'"),
    ("precision=f16;is_precision_loss_allowed=false", "precision=f16 loses precision"),
    ("inference_priority2=min_latency", "'inference_priority1' is left open"),
    ("device", "its option 'device' needs a value"),
    ("samples=x.npz", "'samples' is of use with precision=auto only"),
])  # fmt: skip
def test_bad_options(options: str, said: str) -> None:
    told = call("run", F32, "--random", 0, "--delegate", f"gpu:{options}", status=2).output
    assert said in " ".join(told.split()) and "Traceback" not in told


# -- LiteRT's CompiledModel -----------------------------------------------------------------------


def compiled(accelerator: HardwareAccelerator, **options: Any) -> CompiledModel:
    given = Options(hardware_accelerators=accelerator, gpu_options=GpuOptions(**options))
    return CompiledModel.from_file(F32, options=given)


def answers(model: CompiledModel, run: Callable[..., Any]) -> Any:
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    inputs[0].write(DIGIT)
    run(model, inputs, outputs)
    return outputs[0].read(10, np.float32)


def test_compiled_model_on_the_device() -> None:
    expected = sanderling.load(F32).compile()(DIGIT).reshape(-1)
    model = compiled(HardwareAccelerator.GPU, enforce_f32=True)
    found = answers(model, lambda m, i, o: m.run_by_index(0, i, o))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert model.is_fully_accelerated() and model.ops_by_delegate() == {"gpu": 5}


def test_runs_that_are_waited_for_later() -> None:
    expected = sanderling.load(F32).compile()(DIGIT).reshape(-1)
    model = compiled(HardwareAccelerator.GPU, enforce_f32=True)
    found = answers(model, lambda m, i, o: m.run_async_by_index(0, i, o).result())
    np.testing.assert_allclose(found, expected, atol=1e-5)

    async def several() -> list[Any]:
        pairs = [(model.create_input_buffers(0), model.create_output_buffers(0)) for _ in range(4)]
        for inputs, _ in pairs:
            inputs[0].write(DIGIT)
        await asyncio.gather(*(model.run_async_by_index(0, *pair) for pair in pairs))
        return [outputs[0].read(10, np.float32) for _, outputs in pairs]

    for each in asyncio.run(several()):
        np.testing.assert_allclose(each, expected, atol=1e-5)


@pytest.mark.skipif(
    not DEVICE.lacks() and not DEVICE.is_software, reason="the device is no processor"
)
def test_a_processor_is_no_gpu_beside_the_cpu() -> None:
    with pytest.warns(FallbackWarning, match="the only device is the processor itself"):
        model = compiled(HardwareAccelerator.GPU | HardwareAccelerator.CPU)
    assert model.ops_by_delegate() == {"cpu": 5}


def test_an_option_that_changes_answers_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints are; LiteRT's own accelerator has the option, if it is here."""
    monkeypatch.setattr("sanderling.litert.accelerators.GPUS", ("gpu",))
    with pytest.raises(UnsupportedError, match="'gpu' does not cap infinite floats"):
        compiled(HardwareAccelerator.GPU, infinite_float_capping=True)
    with pytest.warns(FallbackWarning, match="'gpu' does not cap infinite floats"):
        model = compiled(
            HardwareAccelerator.GPU | HardwareAccelerator.CPU, infinite_float_capping=True
        )
    assert model.ops_by_delegate() == {"cpu": 5}
    hints = {"benchmark_mode": True, "constant_tensor_sharing": True}
    assert compiled(HardwareAccelerator.GPU, **hints).ops_by_delegate() == {"gpu": 5}


def test_precision_loss_is_allowed_as_in_litert() -> None:
    """f16 where the device has it, half storage where it has not."""
    model = compiled(HardwareAccelerator.GPU)
    expected = sanderling.load(F32).compile()(DIGIT).reshape(-1)
    found = answers(model, lambda m, i, o: m.run_by_index(0, i, o))
    assert 1e-7 < np.abs(found - expected).max() < 1e-2


def test_two_sessions_on_one_device() -> None:
    """Each has memory of its own."""
    first, second = (sanderling.load(F32).compile(["gpu"]) for _ in range(2))
    other = DIGIT[:, ::-1]
    a, b = first.run({"image": DIGIT}), second.run({"image": other})
    np.testing.assert_array_equal(first.run({"image": DIGIT})["probabilities"], a["probabilities"])
    assert not np.array_equal(a["probabilities"], b["probabilities"])
    steps = [s.plan().steps[0].executable for s in (first, second)]
    assert all(isinstance(e, GpuExecutable) for e in steps) and steps[0] is not steps[1]


def test_sessions_of_several_threads() -> None:
    """They share the device, and nobody sees what is another's."""
    given = [np.roll(DIGIT, i, axis=1) for i in range(4)]
    expected = [sanderling.load(F32).compile()(x) for x in given]

    def some(x: Any) -> list[Any]:
        session = sanderling.load(F32).compile(["gpu"])
        return [session(x) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(some, given), expected, strict=True):
            np.testing.assert_allclose(found, [right] * 20, atol=1e-5)
