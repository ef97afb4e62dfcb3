"""One run of the tool: parameters, initialisation, warm-up, runs, and what is printed of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import protobuf
from ...errors import SanderlingError, one_line
from ...format import AtomicFile
from ...units import MIB
from .. import process_memory
from ..record import Result, Setting
from . import op_profile, preinvoke_state
from .flags import Values, parameter_lines
from .outputs import example, raw_bytes
from .providers import described, unused
from .ready_model import ReadyModel, Say, model_bytes
from .run_loop import ToolPace, repeat
from .tool_statistics import Stat, microseconds

SCHEMA = "sanderling.benchmark_model/1"
# Files that the flags name, with what must be on for them to be written.
FILES = {
    "op_profiling_output_file": "enable_op_profiling",
    "model_runtime_info_output_file": "export_model_runtime_info",
    "output_filepath": "",
    "output_proto_filepath": "",
    "result_file_path": "",
}


@dataclass
class ToolRun:
    """What one setting gave."""

    name: str
    result: Result
    warmup: Stat = field(default_factory=Stat)
    stat: Stat = field(default_factory=Stat)
    model_size_mb: float = 0.0
    throughput: float = 0.0
    delegates: list[Any] = field(default_factory=list)
    profiles: dict[str, op_profile.NodeProfile] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return bool(self.result.error)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.result.to_json(),
            "name": self.name or self.result.setting.name,
            "warmup_us": self.warmup.to_json(),
            "inference_us": self.stat.to_json(),
            "model_size_mb": self.model_size_mb,
            "throughput_mb_per_s": self.throughput,
            "delegates": self.delegates,
            "profile": {stage: p.to_json() for stage, p in self.profiles.items()},
        }


@dataclass
class ToolOutcome:
    """All runs of a command, in the order in which they were made; and its parameters."""

    values: Values
    runs: list[ToolRun] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.values.text("graph"),
            "parameters": dict(self.values.given),
            "runs": [run.to_json() for run in self.runs],
        }


# -- one run --------------------------------------------------------------------------------------


def run_once(values: Values, say: Say, name: str = "") -> ToolRun:
    """Load, warm up, run; all lines and files of the tool."""
    for line in parameter_lines(values):
        say("INFO", line)
    for line in unused(values):
        say("WARN", line)
    named = {flag: needs for flag, needs in FILES.items() if values.text(flag)}
    idle = [flag for flag, needs in named.items() if needs and not values.on(needs)]
    for flag in idle:
        say("WARN", f"--{flag} has no effect without --{named[flag]}=true")
    with ExitStack() as opened:
        files = {
            flag: opened.enter_context(AtomicFile(Path(values.text(flag))))
            for flag in named
            if flag not in idle
        }
        peak = opened.enter_context(_watched(values))
        return _run(values, say, name, files, peak)


def _run(
    values: Values, say: Say, name: str, files: dict[str, AtomicFile], peak: Callable[[], int]
) -> ToolRun:
    if values.on("enable_op_profiling"):
        op_profile.tick_rate()
    held = process_memory.staged("start", process_memory.snapshot())
    subject = ReadyModel(values, say)
    held |= process_memory.staged("ready", process_memory.snapshot())
    run = ToolRun(name or values.text("benchmark_name"), _result(values, subject, held))
    run.model_size_mb = model_bytes(values.text("graph")) / 1e6
    run.delegates = list(described(subject.chosen, subject.plan))
    say("INFO", f"The input model file size (MB): {run.model_size_mb:g}")
    say("INFO", f"Initialized session in {subject.init * 1e3:g}ms.")
    if values.on("print_preinvoke_state"):
        _say_state(subject, say, "pre-invoke")
    if "model_runtime_info_output_file" in files:
        details = preinvoke_state.runtime_details(subject)
        files["model_runtime_info_output_file"].write(
            protobuf.encode("ModelRuntimeDetails", details)
        )
    try:
        _loops(values, subject, run, say)
    except KeyboardInterrupt:
        if run.result.samples:
            say("WARN", "Interrupted: what was measured until now follows.")
            _finish(subject, run, say, held, peak)
        else:
            done = microseconds(run.result.warmup).short_line()
            say("WARN", f"Interrupted in the warm-up ({done}): no inference was measured.")
        raise
    _finish(subject, run, say, held, peak)
    _write(values, subject, run, say, files)
    if values.on("print_postinvoke_state"):
        _say_state(subject, say, "post-invoke")
    return run


def _result(values: Values, subject: ReadyModel, held: dict[str, int]) -> Result:
    names = tuple(d.name for d in subject.chosen.delegates)
    setting = Setting("sanderling", subject.session.threads, names, values.text("precision"))
    return Result(values.text("graph"), setting, init=subject.init, memory=held)


def _loops(values: Values, subject: ReadyModel, run: ToolRun, say: Say) -> None:
    """The warm-up and the runs. Samples are kept as they come: an interrupt loses none."""
    if values.on("dry_run"):
        values = values.but(warmup_runs=0, warmup_min_secs=-1.0, num_runs=0, min_secs=-1.0)
    samples = run.result.rounds
    samples.append([])
    _loop(values, subject, say, run.result.warmup, "warmup_")
    _loop(values, subject, say, samples[0], "")


def _loop(values: Values, subject: ReadyModel, say: Say, kept: list[float], prefix: str) -> None:
    runs = values.number(f"{prefix}runs" if prefix else "num_runs")
    min_secs, max_secs = values.seconds(f"{prefix}min_secs"), values.seconds("max_secs")
    say(
        "INFO",
        f"Running benchmark for at least {runs} iterations and at least {min_secs:g} "
        f"seconds but terminate if exceeding {max_secs:g} seconds.",
    )
    pace = ToolPace(values.seconds("run_delay"), values.seconds("run_frequency"))
    repeat(
        subject.bound.run,
        kept,
        runs,
        min_secs,
        max_secs,
        pace,
        before=subject.reset_inputs,
        after=_taker(subject, keep=not prefix),
    )
    say("INFO", microseconds(kept).line() + "\n")


def _taker(subject: ReadyModel, keep: bool) -> Callable[[], None]:
    """After each run: the times of its steps. Warm-up runs are not profiled."""
    recorder = subject.recorder
    return (lambda: None) if recorder is None else (lambda: recorder.take(keep))


def _finish(
    subject: ReadyModel, run: ToolRun, say: Say, held: dict[str, int], peak: Callable[[], int]
) -> None:
    """The figures, and the lines that parsers look for."""
    result = run.result
    held |= process_memory.staged("end", process_memory.snapshot())
    run.warmup, run.stat = microseconds(result.warmup), microseconds(result.samples)
    result.first = result.warmup[0] if result.warmup else None
    total = sum(result.samples)
    run.throughput = subject.input_bytes * run.stat.count / total / MIB if total else 0.0
    init = round(subject.init * 1e6)
    say(
        "INFO",
        f"Inference timings in us: Init: {init}, First inference: {run.warmup.first}, "
        f"Warmup (avg): {run.warmup.avg:g}, Inference (avg): {run.stat.avg:g}",
    )
    # The line of older versions, which the guide shows.
    say(
        "INFO",
        f"Average inference timings in us: Warmup: {run.warmup.avg:g}, Init: {init}, "
        f"Inference: {run.stat.avg:g}",
    )
    _say_memory(run, say, peak())


def _say_memory(run: ToolRun, say: Say, peak: int) -> None:
    held = run.result.memory
    grown = [process_memory.growth(held, until) for until in ("ready.rss", "end.rss")]
    if None in grown:
        return
    init, overall = (g / MIB for g in grown if g is not None)
    say(
        "INFO",
        "Note: as the benchmark tool itself affects memory footprint, the following is "
        "only APPROXIMATE to the actual memory footprint of the model at runtime. Take the "
        "information at your discretion.",
    )
    say(
        "INFO",
        f"Memory footprint delta from the start of the tool (MB): init={init:g} "
        f"overall={overall:g}",
    )
    if not peak:
        return
    held["peak.runs"] = peak
    rss, anonymous = held["end.rss"] // MIB, held["end.anonymous"] // MIB
    say("INFO", f"Overall peak memory footprint (MB) via periodic monitoring: {peak / MIB:g}")
    say("INFO", "Memory status at the end of exeution:")  # the tool's spelling
    say("INFO", f"- VmRSS              : {rss} MB")
    say("INFO", f"+ RssAnnon           : {anonymous} MB")
    say("INFO", f"+ RssFile + RssShmem : {rss - anonymous} MB")


@contextmanager
def _watched(values: Values) -> Iterator[Callable[[], int]]:
    """The most bytes that a thread has seen resident; 0 where none looks."""
    seen = [0]
    if not values.on("report_peak_memory_footprint"):
        yield lambda: 0
        return
    done = threading.Event()
    pause = values.number("memory_footprint_check_interval_ms") / 1e3

    def look() -> None:
        seen[0] = max(seen[0], process_memory.resident())
        while not done.wait(pause):
            seen[0] = max(seen[0], process_memory.resident())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: max(seen[0], process_memory.resident())
    finally:
        done.set()
        thread.join()


def _say_state(subject: ReadyModel, say: Say, when: str) -> None:
    say("INFO", f"\n====Printing out TfLite interpreter {when} state begins====")
    for line in preinvoke_state.lines(subject):
        say("INFO", line)
    say("INFO", f"====Printing out TfLite interpreter {when} state ends====\n")


# -- files ----------------------------------------------------------------------------------------


def _write(
    values: Values, subject: ReadyModel, run: ToolRun, say: Say, files: dict[str, AtomicFile]
) -> None:
    if subject.recorder is not None:
        run.profiles = {"init": subject.init_profile, "run": subject.recorder.profile}
        _write_profile(values, subject, run, say, files.get("op_profiling_output_file"))
    if "result_file_path" in files:
        path = values.text("result_file_path")
        say("INFO", f"Saving benchmark result to: {path}")
        files["result_file_path"].write(protobuf.encode("BenchmarkResult", result_record(run)))
        say("INFO", f"Saved benchmark result to: {path}")
    if "output_filepath" in files:
        files["output_filepath"].write(raw_bytes(subject.outputs))
    if "output_proto_filepath" in files:
        record, skipped = example(subject.outputs)
        for name in skipped:
            say("WARN", f"Output {name} has a type that a tf.Example cannot hold; left out.")
        files["output_proto_filepath"].write(protobuf.encode("Example", record))


def _write_profile(
    values: Values, subject: ReadyModel, run: ToolRun, say: Say, file: AtomicFile | None
) -> None:
    mode = values.text("op_profiling_output_mode")
    text, blob = _profile_forms(values, subject, run)[mode]
    if file is None:
        say("INFO", text)
    else:
        file.write(blob)
        say("INFO", f"Saved op profile to: {file.path}")


def _profile_forms(
    values: Values, subject: ReadyModel, run: ToolRun
) -> dict[str, tuple[str, bytes]]:
    """The profile by mode: for the log, and for a file."""
    import json

    init, runs = run.profiles["init"], run.profiles["run"]
    titled = ((op_profile.INIT_TITLE, init), (op_profile.RUN_TITLE, runs))
    plain = "\n".join(f"{title}\n{op_profile.report(p)}" for title, p in titled)
    if values["op_profiling_csv_layout"] == "tflite":
        table = "\n".join(f"{title}\n{op_profile.csv_tflite(p)}" for title, p in titled)
    else:
        table = op_profile.csv_table(run.profiles)
    name = subject.entry.graph.name
    record = {
        "model_name": values.text("graph"),
        "init_profile": op_profile.record(init, name),
        "runtime_profile": op_profile.record(runs, name),
    }
    found = json.dumps({stage: p.to_json() for stage, p in run.profiles.items()}, indent=2)
    return {
        "stdout": (plain, plain.encode()),
        "csv": (table, table.encode()),
        "proto": (
            protobuf.text("BenchmarkProfilingData", record),
            protobuf.encode("BenchmarkProfilingData", record),
        ),
        "json": (found, found.encode()),
    }


def result_record(run: ToolRun) -> dict[str, Any]:
    """As BenchmarkResult; times in milliseconds."""
    stat, held = run.stat, run.result.memory
    grown = {
        name: process_memory.growth(held, until)
        for name, until in (("init_footprint_kb", "ready.rss"), ("overall_footprint_kb", "end.rss"))
    }
    times = {
        "avg_ms": stat.avg if stat.count else None,
        "min_ms": stat.min,
        "max_ms": stat.max,
        "stddev_ms": stat.std,
        "median_ms": stat.percentile(50),
        "p5_ms": stat.percentile(5),
        "p95_ms": stat.percentile(95),
        "init_ms": (run.result.init or 0.0) * 1e6,
        "first_inference_ms": run.warmup.first,
        "average_warm_up_ms": run.warmup.avg if run.warmup.count else None,
    }
    peak = held.get("peak.runs")
    return {
        "name": run.name or None,
        "latency_metrics": {k: v / 1e3 for k, v in times.items() if v is not None},
        "memory_metrics": {
            **{k: v // 1024 for k, v in grown.items() if v is not None},
            "peak_mem_mb": peak / MIB if peak else None,
        },
        "misc_metrics": {
            "model_size_mb": run.model_size_mb,
            "num_runs": stat.count,
            "num_warmup_runs": run.warmup.count,
            "model_throughput_in_mb_per_sec": run.throughput,
        },
    }


def failure(name: str, values: Values, error: SanderlingError) -> ToolRun:
    """A setting that could not be measured."""
    setting = Setting("sanderling", max(1, values.number("num_threads")))
    return ToolRun(name, Result(values.text("graph"), setting, error=one_line(error)))
