"""Several settings in one run, as benchmark_model_performance_options does; here a setting that
fails does not end the others."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from ...errors import DelegateError, InputError, SanderlingError, one_line
from ...runtime.registry import delegate_names
from .flags import OPTIONS, Value, Values
from .providers import PROVIDERS, stand_in
from .ready_model import Say, SignaturesListed, open_model
from .tool_run import ToolOutcome, ToolRun, failure, run_once

VALID = ("all", "cpu", "gpu", "nnapi", "coreml", "dsp", "none")
THREADS = (1, 2, 4)
# What each run starts from: one thread, no delegate. Without --use_xnnpack the cpu delegate runs;
# with --use_xnnpack=false the reference would.
NEUTRAL: dict[str, Value | None] = {
    "num_threads": 1,
    **{p.flag: False for p in PROVIDERS},
    "use_xnnpack": None,
}
_BY_FLAG = {p.flag: p for p in PROVIDERS}
DEVICES = {
    "gpu": _BY_FLAG["use_gpu"],
    "nnapi": _BY_FLAG["use_nnapi"],
    "dsp": _BY_FLAG["use_hexagon"],
    "coreml": _BY_FLAG["use_coreml"],
}


def is_asked(values: Values) -> bool:
    return any(flag.name in values.given for flag in OPTIONS)


def listed(values: Values) -> list[str]:
    text = values.text("perf_options_list")
    options = text.split(",")
    if any(option not in VALID for option in options):
        raise InputError(
            f"There are invalid perf options in --perf_options_list: '{text}'",
            fix=f"Valid perf options are: [{', '.join(VALID)}]",
        )
    if "none" in options and len(options) > 1:
        raise InputError(
            "The 'none' option can not be used together with other perf options in "
            "--perf_options_list!",
            fix="leave 'none' out",
        )
    return options


def settings(options: list[str]) -> Iterator[dict[str, Value | None]]:
    """What each run changes. `all` takes delegates that there are, and the GPU in any case."""
    if "none" in options:
        yield {}
        return
    if {"all", "cpu"} & set(options):
        for threads in THREADS:
            yield NEUTRAL | {"num_threads": threads}
            yield NEUTRAL | {"num_threads": threads, "use_xnnpack": True}
    for option, provider in DEVICES.items():
        tried = option == "gpu" or stand_in(provider)[0] is not None
        if option in options or ("all" in options and tried):
            yield NEUTRAL | {provider.flag: True}


def option_name(values: Values) -> str:
    """As the tool calls a setting in its summary."""
    if values.on("use_nnapi"):
        accelerator = values.text("nnapi_accelerator_name")
        return f"nnapi({accelerator})" if accelerator else "nnapi(w/o accel name)"
    if values.on("use_gpu"):
        fp16 = "gpu_precision_loss_allowed" in values.given
        return "gpu-fp16" if fp16 and values.on("gpu_precision_loss_allowed") else "gpu-default"
    if values.on("use_hexagon"):
        return "dsp w/ hexagon"
    if values.on("use_coreml"):
        return "coreml"
    cpu = f"cpu w/ {values['num_threads']} threads"
    return f"{cpu} (xnnpack)" if values.on("use_xnnpack") else cpu


def run_options(outcome: ToolOutcome, say: Say) -> None:
    values = outcome.values
    options = listed(values)
    say(
        "INFO",
        f"The list of TFLite runtime options to be benchmarked: [{values['perf_options_list']}]",
    )
    open_model(values.text("graph"))  # what is wrong with it is wrong with every setting
    waiting = list(settings(options))
    if values.on("random_shuffle_benchmark_runs"):
        random.shuffle(waiting)
    try:
        for changed in waiting:
            time.sleep(max(0.0, values.seconds("option_benchmark_run_delay")))
            outcome.runs.append(_one(values.but(**changed), say))
    except SignaturesListed:
        return
    except KeyboardInterrupt:
        say_summary(outcome.runs, say)  # what was done is not lost
        raise
    say_summary(outcome.runs, say)
    if all(run.failed for run in outcome.runs):
        raise InputError(
            f"no setting could be measured: {outcome.runs[0].result.error}",
            where="--perf_options_list",
            fix="measure the cpu",
        )


def _one(values: Values, say: Say) -> ToolRun:
    name = option_name(values)
    try:
        _check_delegate(values)
        run = run_once(values, say, name)
        _check_part(values, run)
        return run
    except SanderlingError as error:
        say("WARN", f"Error while running a single-option run: {one_line(error)}")
        return failure(name, values, error)


def _check_delegate(values: Values) -> None:
    """A delegate that is not there would run as plain CPU: this setting has failed."""
    for provider in DEVICES.values():
        if not values.on(provider.flag):
            continue
        delegate, problems = stand_in(provider)
        if delegate is None:
            raise InputError("; ".join(problems), fix=f"there are {', '.join(delegate_names())}")


def _check_part(values: Values, run: ToolRun) -> None:
    """One that gets no op has failed, too: what was measured is the CPU."""
    if any(values.on(provider.flag) for provider in DEVICES.values()):
        first = run.delegates[0]
        if not first["parts"]:
            raise DelegateError(
                f"the delegate '{first['name']}' runs no op",
                fix=f"sanderling inspect MODEL --delegate {first['name']} says why",
            )


def say_summary(runs: list[ToolRun], say: Say) -> None:
    """The fastest first, failures last, each with its reason below."""
    say(
        "INFO", "\n==============Summary of All Runs w/ Different Performance Options=============="
    )
    for run in sorted(runs, key=lambda r: (r.failed, r.stat.avg if r.stat.count else 0.0)):
        say("INFO", f"{run.name:>26}: {' failed!' if run.failed else run.stat.line()}")
    for run in runs:
        if run.failed:
            say("INFO", f"{run.name} failed: {run.result.error}")
