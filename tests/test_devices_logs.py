"""Logs of TensorFlow Lite's benchmark in all their forms."""

from __future__ import annotations

import json

import pytest

from sanderling.measure.devices import tool_log
from sanderling.measure.record import Result

from .support.phones import NEW, PREFIX, PROFILE, SETTING


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
