"""`benchmark_model`: TensorFlow Lite's flags, loop and lines; a reader of its logs reads ours."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import sanderling
from sanderling.errors import InputError
from sanderling.ir import DType, Model, Signature, Tensor
from sanderling.measure.benchmark_model import flags, tool_run
from sanderling.measure.benchmark_model.inputs import RANGES, InputMaker, name_and_file
from sanderling.measure.benchmark_model.run_loop import Clock, ToolPace, repeat
from sanderling.measure.benchmark_model.tool_statistics import Stat
from sanderling.measure.devices import tool_log

from .support.benchmark_model_command import (
    F32,
    INT8,
    SHORT,
    binary,
    call,
    named_delegates,  # noqa: F401
    stored,
)

# -- the flags ------------------------------------------------------------------------------------


@pytest.mark.parametrize("words, name, value", [
    (["--num_runs=7"], "num_runs", 7),
    (["--num_runs", "7"], "num_runs", 7),
    (["--run_delay", "-1.5"], "run_delay", -1.5),
    (["--use_gpu=1"], "use_gpu", True),
    (["--use_gpu=false"], "use_gpu", False),
    (["--use_gpu", "true", "--verbose"], "use_gpu", True),
    (["--use_gpu", "--num_runs=1"], "use_gpu", True),
    (["--input_layer=a=b"], "input_layer", "a=b"),
    (["--graph="], "graph", ""),
    (["--num_runs=1", "--num_runs=2"], "num_runs", 1),  # as in the tool
    (["--stable_delegate_loader_settings=f"], "stable_delegate_settings_file", "f"),
    ([], "max_secs", 150.0),
])  # fmt: skip
def test_words_become_values(words: list[str], name: str, value: object) -> None:
    found = flags.parse(words)[0][name]
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("word", ["--num_runs=x", "--num_runs=4x", "--num_runs=", "--min_secs=a",
                                  "--use_gpu=yes", "--graph"])  # fmt: skip
def test_words_that_cannot_be_read(word: str) -> None:
    with pytest.raises(InputError, match="Failed to parse flag"):
        flags.parse([word])


def test_unknown_words_are_warned_of_and_the_run_goes_on() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--num_thread=2", "--bogus", "--num_runs=9").stdout
    assert "WARN: Unconsumed cmdline flags: --num_thread=2 --bogus --num_runs=9\n" in text
    assert "did you mean --num_threads?" in text and "only the first one counts" in text
    assert tool_log.parse(text).inference["count"] == 3


def test_the_table_has_the_tools_flags_and_defaults() -> None:
    """Names and defaults of the tool's source, a row of each kind."""
    for name, default in {
        "num_runs": 50,
        "min_secs": 1.0,
        "max_secs": 150.0,
        "run_delay": -1.0,
        "num_threads": -1,
        "warmup_runs": 1,
        "warmup_min_secs": 0.5,
        "memory_footprint_check_interval_ms": 50,
        "op_profiling_output_mode": "stdout",
        "max_profiling_buffer_entries": 1024,
        "disable_nnapi_cpu": True,
        "hexagon_lib_path": "/data/local/tmp",
        "use_xnnpack": False,
        "gpu_precision_loss_allowed": True,
        "perf_options_list": "all",
        "random_shuffle_benchmark_runs": True,
        "tensor_name_display_length": 25,
    }.items():
        assert flags.FLAGS[name].default == default
    assert len(flags.FLAGS) == sum(map(len, flags.GROUPS.values()))  # no name twice


def test_the_documentation_has_the_table() -> None:
    page = Path(__file__).parent.parent / "docs" / "benchmark_model.md"
    assert flags.markdown() in page.read_text()


@pytest.mark.parametrize("words, status", [(["--help"], 0), (["--help=true"], 0), ([], 1)])
def test_help_lists_every_flag(words: list[str], status: int) -> None:
    """Without any flag it is an error, as the tool's: nothing goes to stdout."""
    ran = call(*words, status=status)
    text = ran.stderr if status else ran.stdout
    assert "Usage" in text and all(f"--{name}=" in text for name in flags.FLAGS)
    assert ("Please specify the name of your TF Lite input file" in text) == bool(status)
    assert not (status and ran.stdout)


# -- arithmetic and loop --------------------------------------------------------------------------


def test_stat_lines_have_the_tools_arithmetic() -> None:
    stat = Stat([10, 1, 5, 2, 8, 3, 9, 4, 7, 6])
    assert stat.line() == (
        "count=10 first=10 curr=6 min=1 max=10 avg=5.5 std=2 p5=1 median=6 p95=10"
    )
    assert stat.percentile(100) == 10 and stat.std == int(math.sqrt(8.25))
    assert Stat().line() == "count=0 p5=0 median=0 p95=0"
    assert Stat([7]).line() == "count=1 curr=7 p5=7 median=7 p95=7"
    assert Stat([7, 7]).line() == "count=2 curr=7(all same) p5=7 median=7 p95=7"
    assert "avg=1.23457e+06" in Stat([1234567, 1234568]).line()


class FakeClock:
    """A run takes so long, and nothing else takes any time."""

    def __init__(self, run: float) -> None:
        self.time, self.run_time, self.slept = 0.0, run, list[float]()

    def run(self) -> None:
        self.time += self.run_time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


def loop(
    run: float,
    runs: int,
    least: float,
    most: float,
    pace: ToolPace = ToolPace(),  # noqa: B008
) -> FakeClock:
    clock = FakeClock(run)
    samples: list[float] = []
    repeat(
        clock.run, samples, runs, least, most, pace, clock=Clock(lambda: clock.time, clock.sleep)
    )
    assert samples == pytest.approx([run] * len(samples))
    clock.runs = len(samples)  # type: ignore[attr-defined]
    return clock


@pytest.mark.parametrize(
    "run, runs, least, most, expected",
    [
        (1.0, 5, 0.0, 100.0, 5),  # the number of runs
        (0.25, 5, 2.0, 100.0, 8),  # raised by the seconds
        (1.0, 50, 1.0, 3.0, 4),  # lowered by the limit: one may start exactly at it
        (1.0, 0, -1.0, 150.0, 0),  # dry run
    ],
)
def test_the_loop_rule(run: float, runs: int, least: float, most: float, expected: int) -> None:
    assert loop(run, runs, least, most).runs == expected  # type: ignore[attr-defined]


def test_delay_and_frequency() -> None:
    assert loop(0.5, 3, 0, 99, ToolPace(delay=0.25)).slept == [0.25] * 3
    assert loop(0.25, 3, 0, 99, ToolPace(frequency=2.0)).slept == pytest.approx([0.25] * 3)
    assert loop(0.75, 3, 0, 99, ToolPace(delay=9, frequency=2.0)).slept == []  # it is behind


# -- inputs ---------------------------------------------------------------------------------------


def test_random_floats_are_those_of_a_fresh_mt19937() -> None:
    """std::mt19937 begins with 3499211612, 581869302."""
    made = InputMaker().random(Tensor("x", DType.FLOAT32, (2,)), (2,), None)
    expected = np.float32([3499211612, 581869302]) / np.float32(2**32) - np.float32(0.5)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("dtype", RANGES, ids=lambda d: d.short)
def test_random_values_fill_the_range_of_their_type(dtype: DType) -> None:
    made = InputMaker().random(Tensor("x", dtype, (40, 50)), (40, 50), None)
    low, high = RANGES[dtype]
    assert made.dtype == dtype.numpy and made.shape == (40, 50)
    reals = np.real(made).astype(np.float64)
    assert low <= reals.min() < low + (high - low) / 4 and high >= reals.max() > high / 2
    assert len(np.unique(reals)) > 1


def test_inputs_by_range_file_and_shape(tmp_path: Path) -> None:
    path = stored(tmp_path, Model([binary("ADD", DType.INT32)]))
    (tmp_path / "b.raw").write_bytes(np.arange(8, dtype=np.int32).tobytes())
    first, second = (t.name for t in sanderling.load(path).main.inputs)
    out = tmp_path / "out"
    text = call(
        f"--graph={path}",
        *SHORT,
        f"--input_layer={first},other",
        "--input_layer_shape=2,4:2,4",
        f"--input_layer_value_range={first},5,5",
        f"--output_filepath={out}",
        f"--input_layer_value_files=other:{tmp_path / 'b.raw'}",
    ).stdout
    assert f"WARN: Tensor # 1 is named {second} but flags call it other" in text
    np.testing.assert_array_equal(np.fromfile(out, np.int32), np.arange(8) + 5)


def test_a_colon_in_a_name_is_written_twice() -> None:
    assert name_and_file("in::0:/tmp/a::b") == ("in:0", "/tmp/a:b")


# -- a whole run, read by a parser for the tool's log ---------------------------------------------


def test_the_guides_command_and_a_parser_of_its_output(tmp_path: Path) -> None:
    """`benchmark_model --graph=your_model.tflite --num_threads=4`, with a shorter loop."""
    text = call(
        f"--graph={F32}",
        "--num_threads=4",
        "--warmup_runs=1",
        "--num_runs=50",
        "--min_secs=0.01",
        "--warmup_min_secs=0.01",
        "--report_peak_memory_footprint=true",
    ).stdout
    found = tool_log.parse(text)
    assert found.is_complete and found.crash == "" and found.errors == []
    assert found.parameters["Num threads"] == "4" and found.parameters["Graph"] == F32
    assert found.inference["count"] >= 50 and found.warmup["count"] >= 1
    assert found.first == found.warmup["first" if "first" in found.warmup else "curr"]
    assert found.inference["min"] <= found.inference["median"] <= found.inference["max"]
    assert found.inference["p5"] <= found.inference["p95"]
    assert found.model_size_mb == pytest.approx(Path(F32).stat().st_size / 1e6, rel=1e-4)
    assert found.memory.keys() >= {"init", "overall", "peak"} and found.memory["peak"] > 1
    new, old = (
        tool_log.parse(next(n for n in text.splitlines() if n.startswith(f"INFO: {start}")))
        for start in ("Inference timings", "Average inference timings")
    )
    assert new.init == old.init and new.inference == old.inference and new.warmup == old.warmup
    assert tool_log.result(found, F32, sanderling.measure.record.Setting()).error == ""


def test_lines_come_in_the_tools_order() -> None:
    lines = call(f"--graph={INT8}", *SHORT).stdout.splitlines()
    order = [
        "INFO: STARTING!",
        "INFO: Log parameter values verbosely: [0]",
        f"INFO: Graph: [{INT8}]",
        "INFO: Signature to run: []",
        f"INFO: Loaded model {INT8}",
        "INFO: The input model file size (MB): 0.013328",
        "INFO: Initialized session in",
        "INFO: Running benchmark for at least 1 iterations and at least 0 seconds but "
        "terminate if exceeding 150 seconds.",
        "INFO: count=1 curr=",
        "INFO: Running benchmark for at least 3 iterations",
        "INFO: count=3",
        "INFO: Inference timings in us: Init: ",
        "INFO: Average inference timings in us: Warmup: ",
        "INFO: Note: as the benchmark tool itself",
        "INFO: Memory footprint delta from the start of the tool (MB): init=",
    ]
    places = [next(i for i, n in enumerate(lines) if n.startswith(start)) for start in order]
    assert places == sorted(places)


def test_verbose_logs_every_parameter() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--verbose=1").stdout
    assert "INFO: Log parameter values verbosely: [1]" in text
    assert "INFO: Max runs duration (seconds): [150]" in text and "INFO: Use NNAPI: [0]" in text


def test_a_dry_run_runs_nothing() -> None:
    text = call(f"--graph={INT8}", "--dry_run=true").stdout
    assert text.count("INFO: count=0 p5=0 median=0 p95=0") == 2 and "(avg): nan" in text


def test_json_has_the_samples(tmp_path: Path) -> None:
    record = json.loads(call(f"--graph={INT8}", *SHORT, "--json=-", "--benchmark_name=b").stdout)
    (run,) = record["runs"]
    assert record["schema"] == "sanderling.benchmark_model/1" and run["name"] == "b"
    assert len(run["rounds"][0]) == 3 and run["inference_us"]["count"] == 3
    assert run["delegates"] == [{"name": "cpu", "parts": 1}] and run["summary"]["count"] == 3
    call(f"--graph={INT8}", *SHORT, f"--json={tmp_path / 'r.json'}")
    assert json.loads((tmp_path / "r.json").read_text())["model"] == INT8


def test_the_python_function_has_the_same_flags() -> None:
    lines: list[tuple[str, str]] = []
    outcome = sanderling.benchmark_model(
        INT8, say=lambda *line: lines.append(line), num_runs=2, min_secs=0.0, warmup_min_secs=0.0
    )
    assert len(outcome.runs[0].result.samples) == 2 and ("INFO", f"Loaded model {INT8}") in lines
    with pytest.raises(InputError, match="no flag 'runs': did you mean"):
        sanderling.benchmark_model(INT8, runs=2)


def test_a_model_by_its_descriptor() -> None:
    with Path(INT8).open("rb") as file:
        place = f"fd:{file.fileno()}:0:{Path(INT8).stat().st_size}"
        assert f"INFO: Loaded model {place}" in call(f"--graph={place}", *SHORT).stdout


def test_signatures(tmp_path: Path) -> None:
    model = Model([binary("ADD"), binary("MUL")])
    for key, g in zip(("add", "mul"), model.graphs, strict=True):
        model.signatures.append(
            Signature(key, g, dict(zip("ab", g.inputs, strict=True)), {"y": g.outputs[0]})
        )
    path = stored(tmp_path, model)
    out = tmp_path / "out"
    listed = call(f"--graph={path}", "--list_signatures=true").stdout
    assert "The Model contains 2 signature key(s)." in listed and "-> Signature Key: mul" in listed
    for key, op in (("add", np.add), ("mul", np.multiply)):
        text = call(
            f"--graph={path}", *SHORT, f"--signature_to_run_for={key}", f"--output_filepath={out}"
        ).stdout
        assert f"INFO: Using signature: {key}" in text
        source, x = InputMaker(), Tensor("x", DType.FLOAT32, (2, 3))
        fed = [source.random(x, (2, 3), None) for _ in "ab"]
        np.testing.assert_allclose(np.fromfile(out, np.float32), op(*fed).ravel(), rtol=1e-6)
    said = call(f"--graph={path}", *SHORT, status=2).stderr
    assert "Signature not specified or incorrect" in said and "add, mul" in said


def test_state_before_and_after() -> None:
    text = call(
        f"--graph={INT8}",
        *SHORT,
        "--print_preinvoke_state=true",
        "--print_postinvoke_state=1",
        "--tensor_name_display_length=9",
    ).stdout
    for when in ("pre-invoke", "post-invoke"):
        assert f"====Printing out TfLite interpreter {when} state begins====" in text
    assert "Subgraph-0 main has 13 tensors and 5 nodes" in text and "kTfLiteMmapRo" in text
    assert "...lities" in text  # probabilities, cut to nine


def listen() -> None:
    """To Ctrl-C, which background jobs ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_in_the_warm_up_it_has_no_average(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(run: object, samples: list[float], *_: object, **__: object) -> None:
        samples.append(2e-6)
        raise KeyboardInterrupt

    monkeypatch.setattr(tool_run, "repeat", interrupted)
    text = call(f"--graph={INT8}", status=130).stdout
    assert "WARN: Interrupted in the warm-up (count=1 curr=2): no inference was measured." in text
    assert "nan" not in text and "Inference" not in text


def test_interrupted_it_says_what_it_has() -> None:
    words = ["benchmark_model", f"--graph={INT8}", "--min_secs=60", "--warmup_min_secs=0"]
    process = subprocess.Popen(
        [sys.executable, "-um", "sanderling", *words],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "at least 60 seconds" in line:
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in err
    assert "Interrupted" in out and tool_log.parse(out).inference["avg"] > 0
