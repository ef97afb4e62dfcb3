"""`sanderling bench --device`, and the iOS app's parameters and log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sanderling.cli.app import app
from sanderling.errors import InputError
from sanderling.measure.devices import DeviceOptions, ios, run
from sanderling.measure.record import Setting

from .support.phones import (  # noqa: F401
    MODEL,
    NEW,
    SETTING,
    Phone,
    scripted_phone,
)

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
    device = phone(room=0)
    said = bench("--device", "android", "--device-binary", device.tool(), status=2).stderr
    assert "the device's disk is full" in said


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
