"""`benchmark_model`: TensorFlow Lite's flags, loop, lines and files; a reader of its logs reads
ours."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import sanderling
from sanderling.cli.app import app
from sanderling.errors import DelegateError, InputError
from sanderling.ir import DType, Graph, Model, Signature, Tensor
from sanderling.measure.compat import flags, ops, proto, tool
from sanderling.measure.compat.inputs import RANGES, Source, name_and_file
from sanderling.measure.compat.loop import Clock, Pace, repeat
from sanderling.measure.compat.stat import Stat
from sanderling.measure.devices import log
from sanderling.runtime import delegate as delegates

from .shared import NEEDS
from .shared import model as shared_model
from .test_devices import NEW, Phone, phone  # noqa: F401
from .wire import SCHEMAS, decode

INT8 = str(files("sanderling") / "data" / "digits_int8.tflite")
F32 = str(files("sanderling") / "data" / "digits_f32.tflite")
# The loop's rule is tested by itself; whole commands need not take its second and a half.
SHORT = ("--num_runs=3", "--min_secs=0", "--warmup_min_secs=0")


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["benchmark_model", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def stored(folder: Path, model: Model, name: str = "model.tflite") -> str:
    sanderling.save(model, folder / name)
    return str(folder / name)


def binary(op: str, dtype: DType = DType.FLOAT32) -> Graph:
    made = Graph(op.lower())
    inputs = [made.input(f"{op}_{name}", dtype, (2, 3)) for name in "ab"]
    result = made.tensor(f"{op}_y", dtype, (2, 3))
    made.add(op, inputs, [result], fused_activation_function="NONE")
    made.outputs = [result]
    return made


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
    assert log.parse(text).inference["count"] == 3


def test_the_table_has_the_tools_flags_and_defaults() -> None:
    """Names and defaults of the tool's source, a row of each kind."""
    for name, default in {
        "num_runs": 50, "min_secs": 1.0, "max_secs": 150.0, "run_delay": -1.0, "num_threads": -1,
        "warmup_runs": 1, "warmup_min_secs": 0.5, "memory_footprint_check_interval_ms": 50,
        "op_profiling_output_mode": "stdout", "max_profiling_buffer_entries": 1024,
        "disable_nnapi_cpu": True, "hexagon_lib_path": "/data/local/tmp", "use_xnnpack": False,
        "gpu_precision_loss_allowed": True, "perf_options_list": "all",
        "random_shuffle_benchmark_runs": True, "tensor_name_display_length": 25,
    }.items():  # fmt: skip
        assert flags.FLAGS[name].default == default
    assert len(flags.FLAGS) == sum(map(len, flags.GROUPS.values()))  # no name twice


def test_the_documentation_has_the_table() -> None:
    page = Path(__file__).parent.parent / "docs" / "benchmark_model.md"
    assert flags.markdown() in page.read_text()


@pytest.mark.parametrize("words", [["--help"], ["--help=true"], []])
def test_help_lists_every_flag(words: list[str]) -> None:
    text = call(*words).stdout
    assert "Usage" in text and all(f"--{name}=" in text for name in flags.FLAGS)


# -- arithmetic and loop --------------------------------------------------------------------------


def test_stat_lines_have_the_tools_arithmetic() -> None:
    stat = Stat([10, 1, 5, 2, 8, 3, 9, 4, 7, 6])
    assert stat.line() == ("count=10 first=10 curr=6 min=1 max=10 avg=5.5 std=2 "
                           "p5=1 median=6 p95=10")  # fmt: skip
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


def loop(run: float, runs: int, least: float, most: float, pace: Pace = Pace()) -> FakeClock:  # noqa: B008
    clock = FakeClock(run)
    samples: list[float] = []
    repeat(clock.run, samples, runs, least, most, pace,
           clock=Clock(lambda: clock.time, clock.sleep))  # fmt: skip
    assert samples == pytest.approx([run] * len(samples))
    clock.runs = len(samples)  # type: ignore[attr-defined]
    return clock


@pytest.mark.parametrize("run, runs, least, most, expected", [
    (1.0, 5, 0.0, 100.0, 5),  # the number of runs
    (0.25, 5, 2.0, 100.0, 8),  # raised by the seconds
    (1.0, 50, 1.0, 3.0, 4),  # lowered by the limit: one may start exactly at it
    (1.0, 0, -1.0, 150.0, 0),  # dry run
])  # fmt: skip
def test_the_loop_rule(run: float, runs: int, least: float, most: float, expected: int) -> None:
    assert loop(run, runs, least, most).runs == expected  # type: ignore[attr-defined]


def test_delay_and_frequency() -> None:
    assert loop(0.5, 3, 0, 99, Pace(delay=0.25)).slept == [0.25] * 3
    assert loop(0.25, 3, 0, 99, Pace(frequency=2.0)).slept == pytest.approx([0.25] * 3)
    assert loop(0.75, 3, 0, 99, Pace(delay=9, frequency=2.0)).slept == []  # it is behind


# -- inputs ---------------------------------------------------------------------------------------


def test_random_floats_are_those_of_a_fresh_mt19937() -> None:
    """std::mt19937 begins with 3499211612, 581869302."""
    made = Source().random(Tensor("x", DType.FLOAT32, (2,)), (2,), None)
    expected = np.float32([3499211612, 581869302]) / np.float32(2**32) - np.float32(0.5)
    np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("dtype", RANGES, ids=lambda d: d.short)
def test_random_values_fill_the_range_of_their_type(dtype: DType) -> None:
    made = Source().random(Tensor("x", dtype, (40, 50)), (40, 50), None)
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
        f"--graph={path}", *SHORT, f"--input_layer={first},other", "--input_layer_shape=2,4:2,4",
        f"--input_layer_value_range={first},5,5", f"--output_filepath={out}",
        f"--input_layer_value_files=other:{tmp_path / 'b.raw'}",
    ).stdout  # fmt: skip
    assert f"WARN: Tensor # 1 is named {second} but flags call it other" in text
    np.testing.assert_array_equal(np.fromfile(out, np.int32), np.arange(8) + 5)


def test_a_colon_in_a_name_is_written_twice() -> None:
    assert name_and_file("in::0:/tmp/a::b") == ("in:0", "/tmp/a:b")


# -- a whole run, read by a parser for the tool's log ---------------------------------------------


def test_the_guides_command_and_a_parser_of_its_output(tmp_path: Path) -> None:
    """`benchmark_model --graph=your_model.tflite --num_threads=4`, with a shorter loop."""
    text = call(f"--graph={F32}", "--num_threads=4", "--warmup_runs=1", "--num_runs=50",
                "--min_secs=0.01", "--warmup_min_secs=0.01", "--report_peak_memory_footprint=true"
                ).stdout  # fmt: skip
    found = log.parse(text)
    assert found.is_complete and found.crash == "" and found.errors == []
    assert found.parameters["Num threads"] == "4" and found.parameters["Graph"] == F32
    assert found.inference["count"] >= 50 and found.warmup["count"] >= 1
    assert found.first == found.warmup["first" if "first" in found.warmup else "curr"]
    assert found.inference["min"] <= found.inference["median"] <= found.inference["max"]
    assert found.inference["p5"] <= found.inference["p95"]
    assert found.model_size_mb == pytest.approx(Path(F32).stat().st_size / 1e6, rel=1e-4)
    assert found.memory.keys() >= {"init", "overall", "peak"} and found.memory["peak"] > 1
    new, old = (log.parse(next(n for n in text.splitlines() if n.startswith(f"INFO: {start}")))
                for start in ("Inference timings", "Average inference timings"))  # fmt: skip
    assert new.init == old.init and new.inference == old.inference and new.warmup == old.warmup
    assert log.result(found, F32, sanderling.measure.record.Setting()).error == ""


def test_lines_come_in_the_tools_order() -> None:
    lines = call(f"--graph={INT8}", *SHORT).stdout.splitlines()
    order = ["INFO: STARTING!", "INFO: Log parameter values verbosely: [0]",
             f"INFO: Graph: [{INT8}]", "INFO: Signature to run: []", f"INFO: Loaded model {INT8}",
             "INFO: The input model file size (MB): 0.013328", "INFO: Initialized session in",
             "INFO: Running benchmark for at least 1 iterations and at least 0 seconds but "
             "terminate if exceeding 150 seconds.", "INFO: count=1 curr=",
             "INFO: Running benchmark for at least 3 iterations", "INFO: count=3",
             "INFO: Inference timings in us: Init: ", "INFO: Average inference timings in us: "
             "Warmup: ", "INFO: Note: as the benchmark tool itself",
             "INFO: Memory footprint delta from the start of the tool (MB): init="]  # fmt: skip
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
    outcome = sanderling.benchmark_model(INT8, say=lambda *line: lines.append(line), num_runs=2,
                                         min_secs=0.0, warmup_min_secs=0.0)  # fmt: skip
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
        model.signatures.append(Signature(key, g, dict(zip("ab", g.inputs, strict=True)),
                                          {"y": g.outputs[0]}))  # fmt: skip
    path = stored(tmp_path, model)
    out = tmp_path / "out"
    listed = call(f"--graph={path}", "--list_signatures=true").stdout
    assert "The Model contains 2 signature key(s)." in listed and "-> Signature Key: mul" in listed
    for key, op in (("add", np.add), ("mul", np.multiply)):
        text = call(f"--graph={path}", *SHORT, f"--signature_to_run_for={key}",
                    f"--output_filepath={out}").stdout  # fmt: skip
        assert f"INFO: Using signature: {key}" in text
        source, x = Source(), Tensor("x", DType.FLOAT32, (2, 3))
        fed = [source.random(x, (2, 3), None) for _ in "ab"]
        np.testing.assert_allclose(np.fromfile(out, np.float32), op(*fed).ravel(), rtol=1e-6)
    said = call(f"--graph={path}", *SHORT, status=2).stderr
    assert "Signature not specified or incorrect" in said and "add, mul" in said


def test_state_before_and_after() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--print_preinvoke_state=true",
                "--print_postinvoke_state=1", "--tensor_name_display_length=9").stdout  # fmt: skip
    for when in ("pre-invoke", "post-invoke"):
        assert f"====Printing out TfLite interpreter {when} state begins====" in text
    assert "Subgraph-0 main has 13 tensors and 5 nodes" in text and "kTfLiteMmapRo" in text
    assert "...lities" in text  # probabilities, cut to nine


def listen() -> None:
    """To Ctrl-C, which background jobs ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted_it_says_what_it_has() -> None:
    words = ["benchmark_model", f"--graph={INT8}", "--min_secs=60", "--warmup_min_secs=0"]
    process = subprocess.Popen([sys.executable, "-um", "sanderling", *words], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               preexec_fn=listen)  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if "at least 60 seconds" in line:
            break
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "interrupted" in err
    assert "Interrupted" in out and log.parse(out).inference["avg"] > 0


# -- delegates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flag, says", [
    ("use_gpu", "GPU acceleration is unsupported on this platform. There is no delegate 'gpu'"),
    ("use_nnapi", "NNAPI acceleration is unsupported on this platform."),
    ("use_hexagon", "Could not create Hexagon delegate"),
    ("use_coreml", "CoreML acceleration is unsupported on this platform."),
])  # fmt: skip
def test_delegates_that_are_not_there(flag: str, says: str) -> None:
    if flag.removeprefix("use_") in sanderling.delegate_names():
        pytest.skip("this delegate exists")
    text = call(f"--graph={INT8}", *SHORT, f"--{flag}=true").stdout
    assert f"WARN: {says}" in text and log.parse(text).is_complete


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Delegates registered for one test."""
    table = dict(delegates._registered)
    monkeypatch.setattr(delegates, "_registered", table)
    yield table


class Picky:
    """A delegate that takes some types of ops."""

    def __init__(self, name: str, takes: set[str], fails: bool = False) -> None:
        self.name, self.takes, self.fails = name, takes, fails
        self.flags: dict[str, Any] = {}

    def take_flags(self, given: dict[str, Any]) -> None:
        self.flags = given

    def refuses(self, op: Any) -> str | None:
        return None if op.name in self.takes else "not mine"

    def compile(self, part: Graph, options: Any) -> Any:
        if self.fails:
            raise DelegateError("it cannot")
        return delegates.find_delegate("reference").compile(part, options)


def test_a_registered_delegate_takes_effect(named: dict[str, Any]) -> None:
    gpu = Picky("gpu", {"CONV_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"})
    named["gpu"] = lambda: gpu
    text = call(f"--graph={F32}", *SHORT, "--use_gpu=true", "--gpu_backend=cl").stdout
    assert ("Explicitly applied GPU delegate, and the model graph will be completely executed by "
            "the delegate.") in text  # fmt: skip
    assert gpu.flags == {"gpu_backend": "cl"} and "has no effect" not in text


def test_several_delegates_in_the_order_of_their_flags(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D"})
    text = call(f"--graph={F32}", *SHORT, "--use_gpu=true", "--use_xnnpack=true").stdout
    assert "Going to apply 2 delegates one after another." in text
    assert (
        "GPU delegate, and the model graph will be partially executed by the delegate w/ 1" in text
    )
    text = call(f"--graph={F32}", *SHORT, "--use_xnnpack=true", "--use_gpu=true").stdout
    assert "Though GPU delegate is explicitly applied, the model graph will not be executed" in text


def test_use_xnnpack_is_the_cpu_delegate_or_plain_kernels() -> None:
    def parts(*words: str) -> list[Any]:
        found = json.loads(call(f"--graph={F32}", *SHORT, "--json=-", *words).stdout)
        return found["runs"][0]["delegates"]

    assert parts() == parts("--use_xnnpack=true") == [{"name": "cpu", "parts": 1}]
    assert parts("--use_xnnpack=false") == [{"name": "reference", "parts": 1}]
    assert "takes the part of XNNPACK" in call(f"--graph={F32}", *SHORT, "--use_xnnpack").stdout


def test_full_delegation_is_a_check(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", {"CONV_2D"})
    must = f"--graph={F32}", *SHORT, "--require_full_delegation=true"
    assert "completely" in call(*must, "--use_xnnpack=true").stdout
    for words in ([], ["--use_gpu=true"]):
        assert "Disallowed CPU fallback detected" in call(*must, *words, status=1).stderr


def test_flags_without_effect_are_answered() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--use_caching=true", "--nnapi_allow_fp16=1",
                "--xnnpack_weight_cache_file_path=w", "--allow_fp16=false").stdout  # fmt: skip
    assert "WARN: --use_caching has no effect: weights are always packed once" in text
    assert "WARN: --nnapi_allow_fp16 has no effect without --use_nnapi=true" in text
    assert "--xnnpack_weight_cache_file_path has no effect" in text and "--allow_fp16" not in text


def test_external_delegates_are_registered_names(named: dict[str, Any]) -> None:
    named["mine"] = lambda: Picky("mine", {"SOFTMAX"})
    text = call(f"--graph={F32}", *SHORT, "--external_delegate_path=mine").stdout
    assert "Explicitly applied EXTERNAL delegate" in text
    said = call(f"--graph={F32}", *SHORT, "--external_delegate_path=libx.so", status=2).stderr
    assert "Failed to load delegate from libx.so" in said


# -- several settings -----------------------------------------------------------------------------


def test_all_options_are_measured_and_failures_survive() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--perf_options_list=all").stdout
    found = log.parse(text)
    cpu = {f"cpu w/ {n} threads{x}" for n in (1, 2, 4) for x in ("", " (xnnpack)")}
    assert cpu <= found.options.keys() and all(found.options[name] for name in cpu)
    if "gpu" not in sanderling.delegate_names():
        assert found.options["gpu-default"] is None and "there is no delegate 'gpu'" in text
        assert list(found.options)[-1] == "gpu-default"
    means = [s["avg"] for s in found.options.values() if s]
    assert means == sorted(means)
    assert "              gpu-default: " in text or "gpu-default" not in text  # 26 wide


def test_one_failing_option_does_not_end_the_others(named: dict[str, Any]) -> None:
    named["gpu"] = lambda: Picky("gpu", set())
    named["nnapi"] = lambda: (_ for _ in ()).throw(DelegateError("driver crashed"))
    text = call(f"--graph={INT8}", *SHORT, "--perf_options_list=gpu,nnapi",
                "--random_shuffle_benchmark_runs=false").stdout  # fmt: skip
    found = log.parse(text).options
    assert found["gpu-default"] and found["nnapi(w/o accel name)"] is None
    assert "failed: driver crashed" in text


def test_none_is_the_given_flags_once() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--perf_options_list=none", "--num_threads=2").stdout
    assert list(log.parse(text).options) == ["cpu w/ 2 threads"]


def test_settings_are_shuffled_unless_told_not_to(monkeypatch: pytest.MonkeyPatch) -> None:
    from sanderling.measure.compat import options

    seen: list[list[Any]] = []
    monkeypatch.setattr(options.random, "shuffle", lambda x: seen.append(list(x)))
    call(f"--graph={INT8}", *SHORT, "--perf_options_list=cpu")
    call(f"--graph={INT8}", *SHORT, "--perf_options_list=cpu", "--random_shuffle_benchmark_runs=0")
    assert len(seen) == 1 and len(seen[0]) == 6


# -- files ----------------------------------------------------------------------------------------


def profiled(*words: str) -> tuple[str, log.Log]:
    text = call(f"--graph={INT8}", *SHORT, "--enable_op_profiling=true", *words).stdout
    return text, log.parse(text)


def test_op_profiling_prints_the_tools_tables() -> None:
    text, found = profiled()
    assert text.count("============================== Run Order =====") == 2
    assert "Profiling Info for Benchmark Initialization:" in text and "AllocateTensors/0" in text
    assert [o.type for o in found.ops if o.type.isupper()] == [
        "CONV_2D", "CONV_2D", "FULLY_CONNECTED", "SOFTMAX"]  # fmt: skip
    assert sum(o.share for o in found.ops) == pytest.approx(100, abs=0.1)
    assert sum(o.share for o in found.types) == pytest.approx(100, abs=0.1)
    assert next(o.name for o in found.ops if o.type == "SOFTMAX") == "[probabilities]:4"


def test_plain_kernels_are_profiled_op_by_op() -> None:
    _, found = profiled("--use_xnnpack=false")
    assert [o.type for o in found.ops] == [
        "CONV_2D", "CONV_2D", "RESHAPE", "FULLY_CONNECTED", "SOFTMAX"]  # fmt: skip


def test_the_csv_is_one_table(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    profiled("--op_profiling_output_mode=csv", f"--op_profiling_output_file={path}")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    assert set(rows[0]) == set(ops.CSV_COLUMNS)
    order = [r for r in rows if r["table"] == "run order" and r["stage"] == "run"]
    assert sum(float(r["%"]) for r in order) == pytest.approx(100, abs=0.01)
    kinds = [r for r in rows if r["table"] == "by type" and r["stage"] == "run"]
    assert {r["node type"]: int(r["count"]) for r in kinds}["CONV_2D"] == 2
    assert float(order[-1]["cdf%"]) == pytest.approx(100, abs=0.01)
    profiled(f"--profiling_output_csv_file={path}", "--op_profiling_csv_layout=tflite")
    text = path.read_text()
    assert "node type, first, avg_ms, %, cdf%, mem KB, times called, name" in text
    assert "============================== Run Order ==" in text and "%, " in text


def test_a_name_with_a_comma_is_quoted_or_loses_it() -> None:
    profile = ops.Profile([ops.Node("SPLIT", "[a, b]:0", [2.0])], runs=1)
    (row, *_) = csv.DictReader(io.StringIO(ops.csv_table({"run": profile})))
    assert row["name"] == "[a, b]:0"
    assert "[a\t b]:0" in ops.csv_tflite(profile)


def test_profile_as_json(tmp_path: Path) -> None:
    path = tmp_path / "ops.json"
    profiled("--op_profiling_output_mode=json", f"--op_profiling_output_file={path}")
    nodes = json.loads(path.read_text())["run"]["nodes"]
    assert sum(n["share"] for n in nodes) == pytest.approx(1) and nodes[0]["times_called"] == 1


def test_the_result_file(tmp_path: Path) -> None:
    path = tmp_path / "result.pb"
    text = call(f"--graph={INT8}", *SHORT, f"--result_file_path={path}", "--benchmark_name=x",
                "--report_peak_memory_footprint=1").stdout  # fmt: skip
    found, printed = decode("BenchmarkResult", path.read_bytes()), log.parse(text)
    assert found["name"] == "x" and found["misc_metrics"]["num_runs"] == 3
    assert found["latency_metrics"]["avg_ms"] == pytest.approx(
        printed.inference["avg"] / 1e3,
        rel=1e-4,  # the line has six digits
    )
    assert found["latency_metrics"]["init_ms"] == pytest.approx((printed.init or 0) / 1e3, rel=1e-3)
    assert found["memory_metrics"]["peak_mem_mb"] == pytest.approx(printed.memory["peak"], rel=1e-4)
    assert f"INFO: Saved benchmark result to: {path}" in text


def test_the_profile_file(tmp_path: Path) -> None:
    path = tmp_path / "profile.pb"
    profiled("--op_profiling_output_mode=proto", f"--op_profiling_output_file={path}")
    found = decode("BenchmarkProfilingData", path.read_bytes())
    (subgraph,) = found["runtime_profile"]["subgraph_profiles"]
    softmax = next(o for o in subgraph["per_op_profiles"] if o["node_type"] == "SOFTMAX")
    assert softmax["inference_microseconds"]["count"] == 3 and softmax["name"].endswith(":4")
    text, _ = profiled("--op_profiling_output_mode=proto")
    assert 'node_type: "SOFTMAX"' in text


def test_runtime_details_say_who_runs_what(tmp_path: Path) -> None:
    path = tmp_path / "details.pb"
    call(f"--graph={INT8}", *SHORT, "--export_model_runtime_info=true",
         f"--model_runtime_info_output_file={path}")  # fmt: skip
    (subgraph,) = decode("ModelRuntimeDetails", path.read_bytes())["subgraphs"]
    part = subgraph["nodes"][-1]
    replaced = [0, 1, 2, 3, 4]
    details = {"delegate_name": "cpu", "tflite_node_ids_replaced": replaced}
    assert part["delegate_node_details"] == details
    assert [n["delegated_to_node_id"] for n in subgraph["nodes"][:-1]] == [5] * 5
    assert subgraph["execution_plan"] == [5] and len(subgraph["edges"]) == 13


def test_outputs_as_example(tmp_path: Path) -> None:
    path, raw = tmp_path / "example.pb", tmp_path / "raw"
    call(f"--graph={F32}", *SHORT, f"--output_proto_filepath={path}", f"--output_filepath={raw}")
    (entry,) = decode("Example", path.read_bytes())["features"]["feature"]
    assert entry["key"] == "probabilities"
    np.testing.assert_array_equal(entry["value"]["float_list"]["value"], np.fromfile(raw, "f4"))
    assert sum(entry["value"]["float_list"]["value"]) == pytest.approx(1, abs=1e-5)


def test_protobuf_reads_what_we_write() -> None:
    """Google's own reader, where it is installed."""
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto2")
    for message in ("BenchmarkResult", "LatencyMetrics", "MemoryMetrics", "MiscMetrics"):
        made = file.message_type.add(name=message)
        for number, text in SCHEMAS[message].items():
            kind, name = text.split()
            code = {"f": 2, "i": 3, "s": 9}.get(kind, 11)
            more = {"type_name": f".t.{kind}"} if code == 11 else {}
            made.field.add(name=name, number=number, label=1, type=code, **more)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.BenchmarkResult"))
    found = kind.FromString(proto.encode("BenchmarkResult", {
        "name": "ü", "latency_metrics": {"avg_ms": 1.5}, "misc_metrics": {"num_runs": 300},
        "memory_metrics": {"init_footprint_kb": -7}}))  # fmt: skip
    assert (found.name, found.latency_metrics.avg_ms, found.misc_metrics.num_runs,
            found.memory_metrics.init_footprint_kb) == ("ü", 1.5, 300, -7)  # fmt: skip


# -- what is wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("words, says", [
    (["--num_runs=3"], "Please specify the name of your TF Lite input file with --graph"),
    (["--graph=/nowhere.tflite"], "/nowhere.tflite"),
    ([f"--graph={INT8}", "--num_threads=0"], "num_threads is 0"),
    ([f"--graph={INT8}", "--num_threads=-2"], "num_threads is -2"),
    ([f"--graph={INT8}", "--num_runs=many"], "Failed to parse flag 'num_runs'"),
    (["--graph=fd:9"], "Failed to parse model file size"),
    (["--graph=fd:99:0:9"], "the descriptor cannot be read"),
    ([f"--graph={INT8}", "--input_layer=a"], "The number of items in --input_layer_shape"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,-1,8,1"],
     "Any unknown sizes in the shapes"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8"],
     "Input tensor #0 should have 4 dimensions!"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,9,1"],
     "the model does not run on this shape"),
    ([f"--graph={INT8}", "--input_layer=a,b", "--input_layer_shape=1:1"], "Inputs mismatch"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,x"], "Incorrect size"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      "--input_layer_value_range=image,5,2"], "Wrong low and high value"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      "--input_layer_value_range=image,0,300"], "0 to 300 is not a range of i8"),
    ([f"--graph={INT8}", "--input_layer_value_range=image,0"], "Wrong input value range item"),
    ([f"--graph={INT8}", "--input_layer_value_range=image,0,1"], "Cannot find the corresponding"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      f"--input_layer_value_files=image:{INT8}"], "It should be 64 bytes"),
    ([f"--graph={INT8}", "--input_layer=image", "--input_layer_shape=1,8,8,1",
      "--input_layer_value_files=image:/nowhere"], "Failed to read the input_layer_value_file"),
    ([f"--graph={INT8}", "--signature_to_run_for=x"], "Signature not specified or incorrect"),
    ([f"--graph={INT8}", "--enable_op_profiling=1", "--op_profiling_output_mode=xml"],
     "Output mode xml is not supported"),
    ([f"--graph={INT8}", "--result_file_path=/nowhere/r.pb"], "cannot write"),
    ([f"--graph={INT8}", "--output_filepath=/"], "it is a folder"),
    ([f"--graph={INT8}", "--output_filepath=same", "--result_file_path=same"],
     "two results would go into this file"),
    ([f"--graph={INT8}", "--json=/nowhere/r.json"], "cannot write"),
    ([f"--graph={INT8}", "--perf_options_list=cpu,tpu"], "There are invalid perf options"),
    ([f"--graph={INT8}", "--perf_options_list=none,cpu"], "The 'none' option can not be used"),
    (["--graph=/nowhere.tflite", "--perf_options_list=cpu"], "/nowhere.tflite"),
    ([f"--graph={INT8}", "--perf_options_list=dsp"], "no setting could be measured"),
    ([f"--graph={INT8}", "--precision=f8"], "no precision 'f8'"),
    ([f"--graph={INT8}", "--plugin=/nowhere.py"], "there is no such file"),
    ([f"--graph={INT8}", "--device=fridge"], "there is no device 'fridge'"),
    ([f"--graph={INT8}", "--device=android", "--adb=no_such_adb"],
     "the command 'no_such_adb' is not there"),
    ([f"--graph={INT8}", "--device=ios"], "needs its parameters, or its log"),
])  # fmt: skip
def test_bad_input_is_a_sentence_and_status_2(words: list[str], says: str) -> None:
    found = call(*words, status=2)
    assert says in found.stderr and "Traceback" not in found.stderr
    assert found.stderr.count("sanderling: ") == 1


def test_an_unwritable_file_is_said_before_the_run(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    if os.access(tmp_path, os.W_OK):
        pytest.skip("this user may write everywhere")
    found = call(f"--graph={INT8}", f"--output_filepath={tmp_path / 'x'}", status=2)
    assert "cannot write" in found.stderr and "Running benchmark" not in found.stdout


def test_a_file_without_its_switch_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ops.csv"
    text = call(f"--graph={INT8}", *SHORT, f"--op_profiling_output_file={path}").stdout
    assert "has no effect without --enable_op_profiling=true" in text and not path.exists()


def test_a_failed_run_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    call(f"--graph={INT8}", f"--output_filepath={out}", "--signature_to_run_for=no", status=2)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_interval_is_warned_of() -> None:
    text = call(f"--graph={INT8}", *SHORT, "--memory_footprint_check_interval_ms=0").stdout
    assert "This value is invalid, and it will be set to the default value 50 (ms)." in text


# -- devices --------------------------------------------------------------------------------------


def test_the_flags_go_to_the_tool_on_a_device(phone: Any) -> None:  # noqa: F811
    device: Phone = phone()
    found = call(f"--graph={INT8}", "--num_threads=4", "--use_gpu=true", "--max_secs=20",
                 "--device=android", f"--device_binary={device.tool(NEW)}", "--json=-")  # fmt: skip
    (run,) = json.loads(found.stdout)["runs"]
    assert run["setting"]["device"] == "android:PHONE1" and run["summary"]["count"] == 82
    line = next(c[-1] for c in device.calls if "--graph" in c[-1])
    assert "--num_threads=4 --use_gpu=true --max_secs=20" in line
    assert "Inference (avg): 12200.2" in found.stderr


def test_a_device_that_fails_is_status_2(phone: Any) -> None:  # noqa: F811
    device: Phone = phone(full=True)
    found = call(f"--graph={INT8}", "--device=android", f"--device_binary={device.tool()}",
                 status=2)  # fmt: skip
    assert "the device's disk is full" in found.stderr


# -- a real model ---------------------------------------------------------------------------------


@NEEDS
def test_a_shared_model() -> None:
    path = shared_model("coral_mobilenet_v1_0.25_128_quant")
    text = call(f"--graph={path}", *SHORT, "--num_threads=2", "--enable_op_profiling=true").stdout
    found = log.parse(text)
    assert found.is_complete and "DEPTHWISE_CONV_2D" in {o.type for o in found.types}


def test_threads_are_used() -> None:
    """The session gets the number that was asked for."""
    run = tool.run_once(flags.Values({"graph": INT8, "num_threads": 2, "num_runs": 1,
                                      "min_secs": 0.0, "warmup_min_secs": 0.0}),
                        lambda *_: None)  # fmt: skip
    assert run.result.setting.threads == 2
