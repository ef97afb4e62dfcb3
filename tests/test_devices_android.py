"""A benchmark on an Android device behind a scripted adb; complaints of the real one."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sanderling.errors import InputError
from sanderling.measure.devices import DeviceOptions, check, run
from sanderling.measure.devices.adb import Adb, DeviceError

from .support.phones import (  # noqa: F401
    MODEL,
    NEW,
    PROFILE,
    SETTING,
    Phone,
    as_logcat,
    scripted_phone,
)


def test_the_binary_is_pushed_run_and_removed(phone: Callable[..., Phone]) -> None:
    device = phone()
    setting = replace(SETTING, delegates=("gpu", "xnnpack"))
    result = run(
        "android",
        MODEL,
        setting,
        DeviceOptions(
            binary=device.tool(NEW + PROFILE),
            cpu_mask="0xF0",
            op_profiling=True,
            flags={"num_runs": "10"},
        ),
    )
    assert not result.error and result.setting.device == "android:PHONE1"
    assert result.setting.engine == "tflite" and result.summary is not None
    assert result.summary.p95 == pytest.approx(0.0126) and result.init == pytest.approx(0.012345)
    assert [o["type"] for o in result.facts["ops"]] == ["CONV_2D", "SOFTMAX"]
    assert result.facts["device"] == {
        "serial": "PHONE1",
        "model": "Pixel 9",
        "abi": "arm64-v8a",
        "android": "16",
    }
    line = next(c[-1] for c in device.calls if "--graph" in c[-1])
    assert "taskset f0 " in line and "--use_gpu=true --use_xnnpack=true" in line
    assert "--num_threads=4" in line and "--enable_op_profiling=true --num_runs=10" in line
    assert device.left == [] and "[s]anderling-" in (device.folder / "killed").read_text()


def test_a_binary_that_lies_on_the_device(phone: Callable[..., Phone]) -> None:
    device = phone()
    shutil.copy(device.tool(), device.temp / "benchmark_model")
    assert not run("android:PHONE1", MODEL, SETTING).error
    assert (device.temp / "benchmark_model").exists() and device.left == []


def test_no_binary_is_explained(phone: Callable[..., Phone]) -> None:
    device = phone()
    with pytest.raises(InputError, match="android_aarch64_benchmark_model") as caught:
        run("android", MODEL, SETTING)
    assert "--device-binary" in caught.value.fix and device.left == []


def test_inputs_are_pushed_too(phone: Callable[..., Phone], tmp_path: Path) -> None:
    device = phone()
    (tmp_path / "in.raw").write_bytes(b"x" * 64)
    flags = {"input_layer_value_files": f"in::0:{tmp_path / 'in.raw'}"}
    run("android", MODEL, SETTING, DeviceOptions(binary=device.tool(), flags=flags))
    line = next(c[-1] for c in device.calls if "--graph" in c[-1])
    assert "--input_layer_value_files=in::0:/data/local/tmp/sanderling-" in line
    pushed = [Path(c[-2]).name for c in device.calls if "push" in c]
    assert pushed == ["digits_int8.tflite", "in.raw", "tool"]


@pytest.mark.parametrize("devices, serial, says", [
    ({}, "", "no device is connected"),
    ({"A": "device", "B": "device"}, "", "several devices are connected: A, B"),
    ({"A": "unauthorized"}, "", "has not authorised this computer"),
    ({"A": "offline"}, "", "the device is offline"),
    ({"A": "offline"}, "A", "the device is offline"),
    ({"A": "device"}, "X", "there is no device 'X'"),
    ({"A": "no permissions (user in plugdev group; are your udev rules wrong?)"}, "",
     "may not use the USB device"),
])  # fmt: skip
def test_devices_that_cannot_be_used(
    phone: Callable[..., Phone], devices: dict[str, str], serial: str, says: str
) -> None:
    device = phone(devices=devices)
    with pytest.raises((InputError, DeviceError), match=says):
        run(
            f"android:{serial}" if serial else "android",
            MODEL,
            SETTING,
            DeviceOptions(binary=device.tool()),
        )


def test_the_one_that_is_ready_is_taken(phone: Callable[..., Phone]) -> None:
    device = phone(devices={"A": "offline", "B": "device"})
    result = run("android", MODEL, SETTING, DeviceOptions(binary=device.tool()))
    assert result.setting.device == "android:B" and not result.error


def test_a_phone_that_disconnects_half_way(phone: Callable[..., Phone]) -> None:
    device = phone(disconnects=True)
    result = run("android", MODEL, SETTING, DeviceOptions(binary=device.tool()))
    assert "disconnected while it worked" in result.error and result.summary is None
    assert any("rm -rf" in c[-1] for c in device.calls)  # it was tried


def test_a_full_disk(phone: Callable[..., Phone]) -> None:
    device = phone(room=0)
    result = run("android", MODEL, SETTING, DeviceOptions(binary=device.tool()))
    assert "the device's disk is full" in result.error and device.left == []


@pytest.mark.parametrize(
    "before, says",
    [
        ("kill -SEGV $$", "signal 11"),
        ("exit 126", "another CPU"),
        ("echo 'ERROR: Failed to load model'; exit 1", "Failed to load model"),
    ],
)
def test_a_benchmark_that_fails(phone: Callable[..., Phone], before: str, says: str) -> None:
    device = phone()
    result = run("android", MODEL, SETTING, DeviceOptions(binary=device.tool(before=before)))
    assert says in result.error and device.left == []


def test_a_benchmark_that_does_not_end(phone: Callable[..., Phone]) -> None:
    device = phone()
    options = DeviceOptions(binary=device.tool(before="exec sleep 3"), timeout=0.3)
    result = run("android", MODEL, SETTING, options)
    assert "no answer within 0.3 s" in result.error and device.left == []


def test_interrupted_it_leaves_nothing(phone: Callable[..., Phone], tmp_path: Path) -> None:
    device = phone()
    words = [
        f"--graph={MODEL}",
        "--device=android",
        f"--device_binary={device.tool(before='exec sleep 20')}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "sanderling", "benchmark_model", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Background jobs ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 30
    while not any("--graph" in c[-1] for c in (device.calls if device.left else [])):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in said and device.left == []


def test_the_app_is_installed_started_and_read(phone: Callable[..., Phone]) -> None:
    device = phone()
    apk = device.folder / "app.apk"
    apk.write_bytes(b"apk")
    stale = as_logcat(NEW.replace("12200.25", "99999"))  # an earlier run's: not ours
    (device.folder / "logcat").write_text(stale)
    other = "11-16 02:00:01.500  99  99 E AndroidRuntime: FATAL EXCEPTION: somebody else's\n"
    (device.folder / "app_log").write_text(other + as_logcat(NEW))
    (device.folder / "slow").touch()
    setting = replace(SETTING, delegates=("nnapi",))
    result = run("android", MODEL, setting, DeviceOptions(app=str(apk)))
    assert result.summary is not None and result.summary.mean == pytest.approx(0.01220025)
    started = (device.folder / "started").read_text()
    assert "-S -n org.tensorflow.lite.benchmark/.BenchmarkModelActivity --es args" in started
    assert (
        " --es args --graph=/data/local/tmp/".replace("/data", f"{device.folder}/data") in started
    )
    assert "--use_nnapi=true" in started
    assert ["install", "-r", "-d", "-g", str(apk)] in [c[2:] for c in device.calls]
    # It was not there before, and is not there now; nor is the model.
    assert not (device.folder / "packages").exists() and device.left == []


def test_an_app_that_was_there_stays(phone: Callable[..., Phone]) -> None:
    device = phone()
    (device.folder / "packages").write_text("package:org.tensorflow.lite.benchmark\n")
    (device.folder / "app_log").write_text(as_logcat(NEW))
    assert not run("android", MODEL, SETTING, DeviceOptions(app="installed")).error
    assert (device.folder / "packages").exists() and (device.folder / "stopped").exists()


def test_an_app_that_crashes(phone: Callable[..., Phone]) -> None:
    device = phone()
    (device.folder / "packages").write_text("package:org.tensorflow.lite.benchmark\n")
    crash = "11-16 02:00:02.000  4242  4250 F libc    : Fatal signal 6 (SIGABRT), code -1\n"
    (device.folder / "app_log").write_text(crash)
    assert "SIGABRT" in run("android", MODEL, SETTING, DeviceOptions(app="installed")).error


def test_an_app_that_says_nothing(phone: Callable[..., Phone]) -> None:
    device = phone()
    (device.folder / "packages").write_text("package:org.tensorflow.lite.benchmark\n")
    result = run("android", MODEL, SETTING, DeviceOptions(app="installed", timeout=0.2))
    assert "no result within 0.2 s" in result.error and device.left == []


def test_a_phone_that_disconnects_while_the_app_runs(phone: Callable[..., Phone]) -> None:
    device = phone(disconnects=True)
    (device.folder / "packages").write_text("package:org.tensorflow.lite.benchmark\n")
    result = run("android", MODEL, SETTING, DeviceOptions(app="installed"))
    assert "there is no device 'PHONE1'" in result.error


def test_an_app_that_cannot_be_installed(phone: Callable[..., Phone]) -> None:
    device = phone(refuses_app=True)
    apk = device.folder / "app.apk"
    apk.write_bytes(b"apk")
    result = run("android", MODEL, SETTING, DeviceOptions(app=str(apk)))
    assert "INSTALL_FAILED_NO_MATCHING_ABIS" in result.error and device.left == []


def test_files_that_the_tool_writes_are_fetched(
    phone: Callable[..., Phone], tmp_path: Path
) -> None:
    device = phone()
    write = 'for w in "$@"; do case $w in --result_file_path=*) echo hi > ${w#*=} ;; esac; done'
    flags = {"result_file_path": str(tmp_path / "r.pb"), "output_filepath": str(tmp_path / "o")}
    result = run(
        "android", MODEL, SETTING, DeviceOptions(binary=device.tool(before=write), flags=flags)
    )
    assert not result.error and (tmp_path / "r.pb").read_text() == "hi\n"
    assert not (tmp_path / "o").exists() and device.left == []  # it wrote no such file
    with pytest.raises(InputError, match="the app cannot write files"):
        run("android", MODEL, SETTING, DeviceOptions(app="installed", flags=flags))


def test_words_that_the_app_would_split(phone: Callable[..., Phone]) -> None:
    device = phone()
    (device.folder / "packages").write_text("package:org.tensorflow.lite.benchmark\n")
    with pytest.raises(InputError, match="splits its words at spaces"):
        run("android", MODEL, SETTING, DeviceOptions(app="installed", flags={"input_layer": "a b"}))
    assert device.left == []


def test_an_app_that_is_not_installed(phone: Callable[..., Phone]) -> None:
    phone()
    with pytest.raises(InputError, match="is not installed"):
        run("android", MODEL, SETTING, DeviceOptions(app="installed"))


@pytest.mark.parametrize(
    "options, says",
    [
        (DeviceOptions(binary="/nowhere/tool"), "there is no file '/nowhere/tool'"),
        (DeviceOptions(app="/nowhere/app.apk"), "there is no file '/nowhere/app.apk'"),
        (DeviceOptions(cpu_mask="big"), "'big' is not a mask of cores"),
        (DeviceOptions(cpu_mask="f0", app="installed"), "an app cannot be bound to cores"),
        (DeviceOptions(adb="no_such_adb"), "the command 'no_such_adb' is not there"),
    ],
)
def test_options_that_are_wrong(
    phone: Callable[..., Phone], options: DeviceOptions, says: str
) -> None:
    phone()
    with pytest.raises(InputError, match=says):
        run("android", MODEL, SETTING, options)


@pytest.mark.parametrize("device", ["phone", "ios:1", "", "androids"])
def test_names_that_are_no_device(device: str) -> None:
    with pytest.raises(InputError, match="there is no device"):
        check(device)


def test_a_delegate_that_devices_do_not_have(phone: Callable[..., Phone]) -> None:
    phone()
    with pytest.raises(InputError, match="devices have no delegate 'reference'"):
        run("android", MODEL, replace(SETTING, delegates=("reference",)))


# -- the real adb ---------------------------------------------------------------------------------


@pytest.fixture
def real_adb(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Debian's, with a server of its own; without a phone only its complaints can be tested."""
    path = shutil.which("adb")
    if path is None:
        pytest.skip("adb is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(free.getsockname()[1]))
    listed = subprocess.run([path, "devices"], capture_output=True, text=True, timeout=30)
    try:
        if len(listed.stdout.split("attached")[-1].split()) or listed.returncode:
            pytest.skip("a device is connected, or adb does not start")
        yield path
    finally:
        subprocess.run([path, "kill-server"], capture_output=True, timeout=30)


def test_complaints_of_the_real_adb(real_adb: str) -> None:
    for device, says in (
        ("android", "no device is connected"),
        ("android:nosuch", "there is no device 'nosuch'"),
    ):
        with pytest.raises(InputError, match=says):
            run(device, MODEL, SETTING, DeviceOptions(adb=real_adb))
    lost = Adb(real_adb, "nosuch", timeout=0.5)
    for act in (
        lambda: lost.shell("ls"),
        lambda: lost.push(Path(MODEL), "/data/local/tmp/m"),
        lambda: lost("logcat", "-d"),
    ):  # it waits for the device, forever
        with pytest.raises(DeviceError, match=r"no device 'nosuch'|no answer within"):
            act()
