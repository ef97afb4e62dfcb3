"""`sanderling trace --device android`: the scripted phone records, and is left as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app
from sanderling.errors import InputError
from sanderling.measure.devices import DeviceOptions, device_trace
from sanderling.measure.devices.adb import DeviceError
from sanderling.measure.devices.device_trace import PROPERTY, TracedWork, trace_android

from .support import captured_traces as captured
from .support.captured_traces import gpu_story
from .support.phones import MODEL, SETTING, Phone, scripted_phone  # noqa: F401

WAIT = TracedWork(seconds=0.05)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_trace, "BEGINNING", 0.0)
    monkeypatch.setattr(device_trace, "POLL", 0.02)


@pytest.fixture
def recording(phone: Callable[..., Phone]) -> Phone:
    """A phone whose perfetto records the story of GPU and CPU."""
    device = phone()
    (device.folder / "recorded").write_bytes(captured.perfetto(gpu_story()))
    return device


def properties(device: Phone) -> list[str]:
    path = device.folder / "properties"
    return path.read_text().splitlines() if path.exists() else []


def check_left_as_it_was(device: Phone, before: str = "0") -> None:
    assert properties(device) == [f"{PROPERTY}=1", f"{PROPERTY}={before}"]
    assert device.left == []
    assert not list((device.folder / "data" / "misc" / "perfetto-traces").iterdir())


def call(*words: object, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["trace", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def test_the_benchmark_is_recorded(recording: Phone, tmp_path: Path) -> None:
    out = tmp_path / "phone.perfetto-trace"
    seen = f"getprop {PROPERTY} > {recording.folder}/seen"
    tool = recording.tool(before=seen)
    words = ["--device-binary", tool, "--threads", 4, "--delegate", "gpu", "--runs", 7]
    text = call(MODEL, "--device", "android", *words, "-o", out).stdout
    assert f"{MODEL}" in text and "GATHER_ND" in text and "take turns: 2 and 3 parts" in text
    assert out.read_bytes() == (recording.folder / "recorded").read_bytes()
    assert (recording.folder / "seen").read_text() == "1\n"
    line = next(c[-1] for c in recording.calls if "--graph" in c[-1])
    assert "--num_runs=7 --num_threads=4 --use_gpu=true" in line
    check_left_as_it_was(recording)


def test_the_configuration_is_perfettos(recording: Phone) -> None:
    """Read by its own schema: nothing in it is unknown there."""
    messages = captured.messages()
    from google.protobuf import text_format

    trace_android("", WAIT, SETTING, DeviceOptions())
    config = text_format.Parse((recording.folder / "config").read_text(), messages.TraceConfig())
    first = config.data_sources[0].config
    assert first.name == "linux.ftrace" and first.ftrace_config.atrace_apps == ["*"]
    assert "sched/sched_switch" in first.ftrace_config.ftrace_events
    assert config.duration_ms >= 20_000


def test_an_app_of_the_user_is_started(recording: Phone, tmp_path: Path) -> None:
    (recording.folder / "packages").write_text("package:com.example\n")
    words = ["--app", "com.example/.Main", "--seconds", 0.05, "-o", tmp_path / "x.pb"]
    found = json.loads(call("--device", "android", *words, "--json", "-").stdout)
    assert found["of"] == "com.example/.Main" and found["runs"] == 3
    started = (recording.folder / "started").read_text()
    assert started == "start -S -n com.example/.Main trace=1\n"
    check_left_as_it_was(recording)


def test_the_property_is_what_it_was(recording: Phone) -> None:
    (recording.folder / f"property-{PROPERTY}").write_text("1\n")
    trace_android("", WAIT, SETTING, DeviceOptions())
    check_left_as_it_was(recording, before="1")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_it_leaves_the_phone_as_it_was(
    recording: Phone, tmp_path: Path, how: signal.Signals
) -> None:
    """Nobody is there to clean up but the shell on the phone."""
    words = ["--device", "android", "--seconds", "60", "-o", str(tmp_path / "x.pb")]
    process = subprocess.Popen(
        [sys.executable, "-m", "sanderling", "trace", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        recorder = recording.folder / "recorder"
        wait_for(lambda: recorder.exists() and recorder.read_text().strip() != "")
        assert properties(recording) == [f"{PROPERTY}=1"]
        os.kill(process.pid, how)
        process.wait(timeout=30)
        wait_for(lambda: len(properties(recording)) == 2)
        wait_for(lambda: recording.left == [])
        check_left_as_it_was(recording)
        with pytest.raises(ProcessLookupError):
            os.kill(int(recorder.read_text()), 0)
        assert not (tmp_path / "x.pb").exists()
    finally:
        process.kill()
        process.wait()


def wait_for(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_benchmark_that_fails(recording: Phone) -> None:
    tool = recording.tool("ERROR: Failed to apply GPU delegate.\n", status=1)
    with pytest.raises(DeviceError, match="Failed to apply GPU delegate"):
        trace_android("", TracedWork(MODEL), SETTING, DeviceOptions(binary=tool))
    check_left_as_it_was(recording)


def test_a_phone_that_disconnects_while_it_records(phone: Callable[..., Phone]) -> None:
    device = phone(disconnects=True)
    with pytest.raises(DeviceError, match="disconnected while it worked"):
        trace_android("", TracedWork(MODEL), SETTING, DeviceOptions(binary=device.tool()))
    check_left_as_it_was(device)  # by itself: adb does not reach it any more


@pytest.mark.parametrize(
    "prepare, work, says",
    [
        (lambda d: (d.folder / "bin" / "perfetto").unlink(), WAIT, "the device has no perfetto"),
        (lambda d: (d.folder / "traced_is_off").touch(), WAIT, "recorded nothing: Could not conn"),
        (lambda d: (d.folder / "recorded").write_bytes(b""), WAIT, "perfetto recorded nothing"),
        (lambda d: None, TracedWork(app="no/.App"), "the app does not start: Error type 3"),
        (lambda d: None, TracedWork(MODEL), "no benchmark_model was given"),
        (lambda d: None, TracedWork("none.tflite"), "there is no model 'none.tflite'"),
    ],
)
def test_what_is_wrong_is_said(
    recording: Phone, prepare: Callable[[Phone], None], work: TracedWork, says: str
) -> None:
    prepare(recording)
    with pytest.raises((InputError, DeviceError), match=says):
        trace_android("", work, SETTING, DeviceOptions())
    assert device_was_left(recording) and recording.left == []


def device_was_left(device: Phone) -> bool:
    return not properties(device) or properties(device)[-1] == f"{PROPERTY}=0"


@pytest.mark.parametrize("devices, says", [
    ({}, "no device is connected"),
    ({"A": "device", "B": "device"}, "several devices are connected: A, B"),
    ({"A": "unauthorized"}, "has not authorised this computer"),
])  # fmt: skip
def test_devices_that_cannot_be_used(
    phone: Callable[..., Phone], tmp_path: Path, devices: dict[str, str], says: str
) -> None:
    phone(devices=devices)
    result = call("--device", "android", "-o", tmp_path / "x.pb", status=2)
    assert says in result.stderr and list(tmp_path.iterdir()) == [tmp_path / "phone"]


@pytest.mark.parametrize(
    "words, says",
    [
        (["--device", "toaster", "-o", "x.pb"], "there is no device 'toaster'"),
        (["--device", "ios", "-o", "x.pb"], "iOS records with Instruments"),
        (["--device", "android"], "it is not said where the trace goes"),
        (["--device", "android", "-o", "x.json"], "'.json' is not a kind of trace of a device"),
        ([MODEL, "--device", "android", "--app", "a/.B", "-o", "x.pb"], "a model and an app"),
        (["--device", "android", "--adb", "no_adb", "-o", "x.pb"], "command 'no_adb' is not there"),
    ],
)
def test_options_that_are_wrong(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in call(*words, status=2).stderr and not list(tmp_path.iterdir())
