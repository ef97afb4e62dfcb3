"""The tool as it is called: its flags are checked, and one run is made, or one of each setting."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from ...errors import InputError
from ...files import as_given
from .flags import Value, Values, unconsumed
from .performance_options import is_asked, run_options
from .ready_model import Say, SignaturesListed
from .tool_run import FILES, ToolOutcome, run_once

MODES = ("stdout", "csv", "proto", "json")
LAYOUTS = ("table", "tflite")
DEFAULT_INTERVAL = 50


def printer(to_stderr: bool = False) -> Say:
    """The tool's log: INFO and WARN on stdout, a line at a time."""

    def say(severity: str, text: str) -> None:
        stream = sys.stderr if to_stderr else sys.stdout
        print(f"{severity}: {as_given(text)}", file=stream, flush=True)

    return say


def benchmark_model(graph: str | Path = "", say: Say | None = None, **flags: Value) -> ToolOutcome:
    """What TensorFlow Lite's benchmark_model does, with its flags and its log.

    say: takes each line of the log with its severity; default, stdout. With perf_options_list the
    model is measured at several settings, as benchmark_model_performance_options does.
    """
    given = {"graph": str(graph), **flags} if graph else flags
    return measure(Values(given), say or printer())


def measure(values: Values, say: Say, unknown: list[str] | None = None) -> ToolOutcome:
    for line in unconsumed(unknown or []):
        say("WARN", line)
    values = checked(values, say)
    outcome = ToolOutcome(values)
    if values.text("device"):
        from .on_device import run_on_device  # not for those who have no device

        outcome.runs.append(run_on_device(values, say))
    elif is_asked(values):
        run_options(outcome, say)
    else:
        with suppress(SignaturesListed):
            outcome.runs.append(run_once(values, say))
    return outcome


def checked(values: Values, say: Say) -> Values:
    """The tool's checks, before any work."""
    if not values.text("graph"):
        raise InputError(
            "Please specify the name of your TF Lite input file with --graph",
            fix="sanderling benchmark_model --graph=model.tflite",
        )
    threads = values.number("num_threads")
    if threads < 1 and threads != -1:
        raise InputError(
            f"num_threads is {threads}",
            where="--num_threads",
            fix="give 1 or more, or -1 for the default",
        )
    if values.number("memory_footprint_check_interval_ms") <= 0:
        say(
            "WARN",
            f"--memory_footprint_check_interval_ms is set to "
            f"{values['memory_footprint_check_interval_ms']} (ms), This value is invalid, "
            f"and it will be set to the default value {DEFAULT_INTERVAL} (ms).",
        )
        values = values.but(memory_footprint_check_interval_ms=DEFAULT_INTERVAL)
    _one_of(values, "op_profiling_output_mode", MODES)
    _one_of(values, "op_profiling_csv_layout", LAYOUTS)
    if values.text("profiling_output_csv_file"):
        values = values.but(
            op_profiling_output_mode="csv",
            op_profiling_output_file=values.text("profiling_output_csv_file"),
        )
    for flag in FILES:
        _check_file(values.text(flag), flag)
    paths = [Path(values.text(f)).absolute() for f in (*FILES, "json") if values.text(f)]
    for path in paths:
        if paths.count(path) > 1:
            raise InputError(
                "two results would go into this file",
                where=str(path),
                fix="give each a name of its own",
            )
    return values


def _one_of(values: Values, flag: str, known: tuple[str, ...]) -> None:
    if values[flag] not in known:
        raise InputError(
            f"Output mode {values[flag]} is not supported",
            where=f"--{flag}",
            fix=f"Supported values are: {', '.join(known)}",
        )


def _check_file(path: str, flag: str) -> None:
    if path and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        what = "it is a folder" if Path(path).is_dir() else f"no folder '{Path(path).parent}'"
        raise InputError(f"cannot write: {what}", where=f"--{flag}={path}", fix="check the path")
