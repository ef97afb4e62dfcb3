"""Devices: logs of the tool in all their forms; an Android device behind a scripted adb."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app
from sanderling.errors import InputError
from sanderling.measure.devices import DeviceOptions, android, check, ios, run, tool_log
from sanderling.measure.devices.adb import Adb, DeviceError
from sanderling.measure.record import Result, Setting

from .support import scripted_adb

MODEL = str(files("sanderling") / "data" / "digits_int8.tflite")
SETTING = Setting(threads=4)

# -- logs -----------------------------------------------------------------------------------------

NEW = """\
INFO: STARTING!
INFO: Log parameter values verbosely: [0]
INFO: Num threads: [4]
INFO: Graph: [/data/local/tmp/m.tflite]
INFO: #threads used for CPU inference: [4]
WARN: Tensor # 0 is named input but flags call it in0
INFO: Loaded model /data/local/tmp/m.tflite
INFO: Explicitly applied XNNPACK delegate, and the model graph will be completely executed by the delegate.
INFO: The input model file size (MB): 3.57776
INFO: Initialized session in 12.345ms.
INFO: Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
INFO: count=40 first=15200 curr=12100 min=12000 max=15200 avg=12350.5 std=600 p5=12010 median=12200 p95=13900

INFO: Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
INFO: count=82 first=12111 curr=12222 min=11900 max=13333 avg=12200.25 std=210 p5=11950 median=12180 p95=12600

INFO: Inference timings in us: Init: 12345, First inference: 15200, Warmup (avg): 12350.5, Inference (avg): 12200.25
INFO: Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE
INFO: Memory footprint delta from the start of the tool (MB): init=2.5 overall=7.25
INFO: Overall peak memory footprint (MB) via periodic monitoring: 20.5
"""  # noqa: E501
PROFILE = """\
INFO: Profiling Info for Benchmark Initialization:
============================== Run Order ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t         AllocateTensors\t    0.500\t    0.500\t100.000%\t100.000%\t     0.000\t        1\tAllocateTensors/0

INFO: Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t                 CONV_2D\t    4.269\t    4.000\t 80.000%\t 80.000%\t     0.000\t        1\t[a, b]:0
\t                 SOFTMAX\t    1.200\t    1.000\t 20.000%\t100.000%\t     0.000\t        1\t[c]:1

============================== Top by Computation Time ==============================
\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]\t  [mem KB]\t[times called]\t[Name]
\t                 CONV_2D\t    4.269\t    4.000\t 80.000%\t 80.000%\t     0.000\t        1\t[a, b]:0

Number of nodes executed: 2
============================== Summary by node type ==============================
\t             [Node type]\t  [count]\t  [avg ms]\t    [avg %]\t    [cdf %]\t  [mem KB]\t[times called]
\t                 CONV_2D\t        1\t     4.000\t    80.000%\t    80.000%\t     0.000\t        1
\t                 SOFTMAX\t        1\t     1.000\t    20.000%\t   100.000%\t     0.000\t        1

Timings (microseconds): count=82 first=5400 curr=5000 min=4900 max=5500 avg=5000 std=100
Memory (bytes): count=0
2 nodes observed
"""  # noqa: E501
PREFIX = "11-16 02:00:02.000  4242  4242 I tflite  : "


def as_logcat(text: str) -> str:
    lines = (line.removeprefix("INFO: ").removeprefix("WARN: ") for line in text.splitlines())
    return "".join(f"{PREFIX}{line}\n" for line in lines)


def check_new(found: tool_log.Log) -> None:
    assert found.is_complete and found.init == 12345 and found.first == 15200
    assert found.inference["avg"] == 12200.25 and found.inference["median"] == 12180
    assert found.warmup["avg"] == 12350.5 and found.warmup["count"] == 40
    assert found.memory == {"init": 2.5, "overall": 7.25, "peak": 20.5}
    assert found.parameters["Num threads"] == "4" and found.model_size_mb == 3.57776


def test_the_log_of_the_binary() -> None:
    found = tool_log.parse(NEW)
    check_new(found)
    assert found.warnings == ["Tensor # 0 is named input but flags call it in0"]
    assert len(found.delegation) == 1


@pytest.mark.parametrize(
    "prefix",
    [
        PREFIX,
        "I/tflite  ( 4242): ",
        "I/tflite: ",
        "2026-11-16 02:00:02.049363-0700 TFLiteBenchmark[546:4020] INFO: ",
    ],
)
def test_what_stands_before_a_line_is_dropped(prefix: str) -> None:
    check_new(
        tool_log.parse("\n".join(prefix + line.removeprefix("INFO: ") for line in NEW.splitlines()))
    )


def test_the_profile_of_the_regular_runs() -> None:
    found = tool_log.parse(NEW + PROFILE)
    check_new(found)  # "Timings" is no stat of a loop
    assert [(o.type, o.name, o.avg_ms, o.share) for o in found.ops] == [
        ("CONV_2D", "[a, b]:0", 4.0, 80.0),
        ("SOFTMAX", "[c]:1", 1.0, 20.0),
    ]
    assert [(o.type, o.count) for o in found.types] == [("CONV_2D", 1), ("SOFTMAX", 1)]


def test_the_profile_of_older_versions_has_a_start_column() -> None:
    row = "\t CONV_2D\t 0.000\t 4.269\t 4.000\t 0.107%\t 0.107%\t 0.000\t 0\t[a]"
    text = f"Operator-wise Profiling Info for Regular Benchmark Runs:\n= Run Order =\n{row}"
    (op,) = tool_log.parse(text).ops
    assert (op.first_ms, op.avg_ms, op.share, op.name) == (4.269, 4.0, 0.107, "[a]")


def test_the_lines_that_the_guide_shows() -> None:
    found = tool_log.parse(
        "... tflite  : Average inference timings in us: Warmup: 91471, "
        "Init: 4108, Inference: 80660.1"
    )
    assert (found.init, found.warmup["avg"], found.inference["avg"]) == (4108, 91471, 80660.1)
    result = tool_log.result(found, "m", SETTING)
    assert result.summary is not None and result.summary.mean == pytest.approx(0.0806601)
    assert not result.error and "no percentiles" in " ".join(result.notes)


def test_a_log_of_the_first_versions() -> None:
    found = tool_log.parse(
        "Initialized session in 9.933ms\n"
        "Running benchmark for at least 4 iterations and at least 0.5 seconds\n"
        "count=7 first=127425 curr=66709 min=66709 max=127425 avg=76605.9 std=20944\n\n"
        "count=15 first=66753 curr=66800 min=66699 max=66838 avg=66767.6 std=39\n\n"
        "Average inference timings in us: Warmup: 76605.9, Init: 9933, no stats: 66767.6\n"
    )
    assert found.is_complete and found.inference["min"] == 66699 and found.first is None
    assert tool_log.result(found, "m", SETTING).first == pytest.approx(0.127425)


@pytest.mark.parametrize(
    "line, avg",
    [
        ("count=1 curr=500 p5=500 median=500 p95=500", 500),
        ("count=3 curr=7(all same) p5=7 median=7 p95=7", 7),
        ("count=9 first=2 curr=1 min=1 max=2 avg=1.23457e+06 std=3", 1.23457e6),
    ],
)
def test_short_stat_lines(line: str, avg: float) -> None:
    assert tool_log.stats(line)["avg"] == avg


def test_a_dry_run_has_no_average() -> None:
    text = "count=0 p5=0 median=0 p95=0\n\ncount=0 p5=0 median=0 p95=0\n"
    assert "avg" not in tool_log.parse(text).inference


def test_the_summary_of_several_options() -> None:
    found = tool_log.parse(
        "INFO: \n==============Summary of All Runs w/ Different Performance Options==============\n"
        "INFO: cpu w/ 4 threads (xnnpack): count=50 first=9 curr=8 min=7 max=9 avg=8.5 std=0\n"
        "INFO:                gpu-default:  failed!\n"
    )
    assert found.options["cpu w/ 4 threads (xnnpack)"] is not None
    assert found.options["gpu-default"] is None


def test_the_screen_of_the_ios_app() -> None:
    found = tool_log.parse(
        "Startup latency: 20.5 ms\n\nInference:\n - Num runs: 20\n - Average: 14.8 ms\n"
        " - Min: 14.1 ms \n - Max: 15.9 ms \n - Std deviation: 0.3 ms\n\nWarmup:\n"
        " - Num runs: 1\n - Average: 30 ms\n - Min: 30 ms \n - Max: 30 ms \n"
        " - Std deviation: 0 ms\n"
    )
    assert found.is_complete and found.init == 20500
    assert found.inference["count"] == 20 and found.inference["avg"] == pytest.approx(14800)
    assert found.warmup["avg"] == 30000


@pytest.mark.parametrize(
    "line, says",
    [
        ("F/libc: Fatal signal 11 (SIGSEGV), code 1 (SEGV_MAPERR)", "SIGSEGV"),
        ("ERROR: Failed to apply GPU delegate.", "Failed to apply GPU delegate"),
        ("INFO: STARTING!", "ends before the result"),
    ],
)
def test_a_log_without_result_says_why(line: str, says: str) -> None:
    result = tool_log.result(tool_log.parse(line), "m", SETTING)
    assert says in result.error and result.summary is None


def test_a_device_result_survives_json() -> None:
    result = tool_log.result(tool_log.parse(NEW), "m", SETTING)
    assert result.memory["device.overall"] == round(7.25 * 2**20)
    record = json.loads(json.dumps(result.to_json()))
    assert record["summary"]["median"] == pytest.approx(0.01218)
    assert Result.from_json(record) == result


# -- Android --------------------------------------------------------------------------------------


class Phone:
    """The scripted adb's device, seen from a test."""

    def __init__(self, folder: Path, **scenario: Any) -> None:
        self.folder = folder
        self.temp = scripted_adb.install(folder, **scenario)

    def tool(self, text: str = NEW, status: int = 0, before: str = "") -> str:
        """A benchmark_model for this device: it says its words, then the log."""
        (self.folder / "log").write_text(text)
        path = self.folder / "tool"
        path.write_text(
            f'#!/bin/sh\n{before}\necho "words: $*"\ncat {self.folder / "log"}\nexit {status}\n'
        )
        path.chmod(0o755)
        return str(path)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    @property
    def left(self) -> list[str]:
        return [p.name for p in self.temp.iterdir() if p.name.startswith("sanderling-")]


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Phone]]:
    folder = tmp_path / "phone"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(android, "POLL", 0.01)
    yield lambda **scenario: Phone(folder, **scenario)


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
    device = phone(full=True)
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


# -- bench ---------------------------------------------------------------------------------------


def bench(*words: object, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["bench", MODEL, *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    return result


def test_bench_measures_settings_on_a_device(phone: Callable[..., Phone]) -> None:
    device = phone()
    words = [
        "--device",
        "android",
        "--device-binary",
        device.tool(),
        "--threads",
        "1,4",
        "--delegates",
        "gpu",
        "--launches",
        2,
        "--cpus",
        "4-7",
        "--runs",
        20,
        "--device-flag",
        "gpu_backend=cl",
    ]
    record = json.loads(bench(*words, "--json", "-").stdout)
    one, four = record["results"]
    assert [r["setting"]["threads"] for r in (one, four)] == [1, 4]
    assert one["setting"]["device"] == "android:PHONE1" and one["setting"]["delegates"] == ["gpu"]
    assert one["summary"]["count"] == 2 * 82 and one["rounds"] == [[0.01218], [0.01218]]
    line = next(c[-1] for c in device.calls if "--graph" in c[-1])
    for flag in ("taskset f0", "--use_gpu=true", "--num_runs=20", "--gpu_backend=cl"):
        assert flag in line
    assert len([c for c in device.calls if "--graph" in c[-1]]) == 4


def test_bench_compares_a_device_with_an_earlier_result(
    phone: Callable[..., Phone], tmp_path: Path
) -> None:
    device = phone()
    words = ["--device", "android", "--device-binary", device.tool(), "--launches", 2]
    bench(*words, "--json", tmp_path / "old.json")
    slower = NEW.replace("median=12180", "median=24360").replace("avg=12200.25", "avg=24400")
    device.tool(slower)
    result = bench(*words, "--baseline", tmp_path / "old.json", "--max-regression", "5%", status=1)
    assert "2.0" in result.stdout


def test_bench_keeps_what_a_device_did_before_it_failed(phone: Callable[..., Phone]) -> None:
    device = phone()
    once = f"[ -f {device.folder}/ran ] && exit 1; touch {device.folder}/ran"
    words = ["--device", "android", "--device-binary", device.tool(before=once), "--launches", 3]
    text = bench(*words, "--json", device.folder / "r.json").stdout
    assert "android:PHONE1 tflite, 1 thread" in text and "12.18" in text
    (found,) = json.loads((device.folder / "r.json").read_text())["results"]
    assert found["summary"]["count"] == 82 and "only 1 of 3 launches" in found["notes"][-1]


@pytest.mark.parametrize(
    "words, says",
    [
        (["--device", "toaster"], "there is no device 'toaster'"),
        (["--device", "android", "--adb", "no_such_adb"], "the command 'no_such_adb' is not there"),
        (["--device", "android", "--device-binary", "/nowhere"], "there is no file '/nowhere'"),
        (["--device", "android", "--threads", "0"], "threads is 0"),
        (["--device", "ios"], "needs its parameters, or its log"),
    ],
)
def test_bench_says_what_is_wrong(phone: Callable[..., Phone], words: list[str], says: str) -> None:
    phone()
    assert says in bench(*words, status=2).stderr


def test_bench_of_a_device_that_fails(phone: Callable[..., Phone]) -> None:
    device = phone(full=True)
    said = bench("--device", "android", "--device-binary", device.tool(), status=2).stderr
    assert "the device's disk is full" in said


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


# -- iOS ------------------------------------------------------------------------------------------


def test_ios_parameters_and_model_go_into_the_project(tmp_path: Path) -> None:
    setting = Setting(threads=2, delegates=("gpu",))
    options = DeviceOptions(folder=str(tmp_path), flags={"gpu_wait_type": "aggressive"})
    result = run("ios", MODEL, setting, options)
    assert "not measured yet" in result.error and "--device-log" in result.error
    written = json.loads((tmp_path / "benchmark_params.json").read_text())
    assert written == {
        "benchmark_name": "digits_int8_benchmark",
        "graph": "digits_int8.tflite",
        "num_threads": "2",
        "use_gpu": "1",
        "gpu_wait_type": "aggressive",
    }
    assert (tmp_path / "digits_int8.tflite").read_bytes() == Path(MODEL).read_bytes()
    ios.prepare(str(tmp_path / "digits_int8.tflite"), setting, options)  # it lies there already


def test_preparing_for_ios_is_no_failure(tmp_path: Path) -> None:
    text = bench("--device", "ios", "--device-folder", tmp_path).stdout
    assert "not measured yet" in text and (tmp_path / "benchmark_params.json").exists()


def test_ios_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "xcode.log"
    path.write_text(
        "2026-11-16 02:00:02.0-0700 TFLiteBenchmark[5:4] Created TensorFlow Lite\n" + NEW
    )
    result = run("ios", MODEL, SETTING, DeviceOptions(log=str(path)))
    assert result.setting.device == "ios" and result.init == pytest.approx(0.012345)


@pytest.mark.parametrize(
    "options, says",
    [
        (DeviceOptions(), "needs its parameters, or its log"),
        (DeviceOptions(folder="/nowhere"), "there is no folder '/nowhere'"),
        (DeviceOptions(log="/nowhere.log"), "there is no log '/nowhere.log'"),
    ],
)
def test_ios_without_what_it_needs(options: DeviceOptions, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run("ios", MODEL, SETTING, options)
