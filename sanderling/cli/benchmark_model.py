"""`sanderling benchmark_model`: the command line of TensorFlow Lite's tool."""

from __future__ import annotations

from pathlib import Path

import typer

from ..errors import SanderlingError
from .common import JsonTarget, at_hand, say

# The tool's flags are one table of their own (measure/benchmark_model/flags.py); nothing is parsed
# here.
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
CHECK_FAILED = 1
NO_FLAGS = 1  # as the tool's


def benchmark_model(ctx: typer.Context) -> None:
    """Measure a model with the flags and the output lines of TensorFlow Lite's tool."""
    from ..measure.benchmark_model import flags
    from ..measure.benchmark_model.providers import DelegationError
    from ..measure.benchmark_model.tool import measure, printer
    from ..measure.devices.adb import DeviceError
    from ..runtime.plugins import load_plugins

    values, unknown = flags.parse(ctx.args)
    if values.on("help") or not ctx.args:
        typer.echo(
            f"Usage: sanderling benchmark_model --graph=MODEL [--flag=value]...\n\n"
            f"{benchmark_model.__doc__}\n{flags.usage()}",
            err=not ctx.args,
        )
        if not ctx.args:
            say(
                "\nERROR: Please specify the name of your TF Lite input file with --graph\n"
                "ERROR: Benchmarking failed."
            )
            raise typer.Exit(NO_FLAGS)
        return
    if graph := values.text("graph"):
        values.given["graph"] = str(at_hand(Path(graph)))
    with JsonTarget(values.text("json")) as target:
        log = printer(to_stderr=target.to_stdout)
        log("INFO", "STARTING!")
        try:
            load_plugins(filter(None, values.text("plugin").split(",")))
            outcome = measure(values, log, unknown)
        except DelegationError as error:
            say(f"ERROR: {error}\nERROR: Benchmarking failed.")
            raise typer.Exit(CHECK_FAILED) from error
        except SanderlingError:
            say("ERROR: Benchmarking failed.")
            raise
        target.write(outcome.to_json())
        for run in outcome.runs:
            if run.failed and values.text("device") and "prepared" not in run.result.facts:
                raise DeviceError(run.result.error)
