"""`sanderling trace`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..files import check_ending
from ..findings import Finding
from ..glyphs import clean_lines
from ..ir import Array, Signature
from ..measure.captures import read_trace
from ..measure.devices import DeviceOptions
from ..measure.devices import check as check_device
from ..measure.devices.device_trace import TracedWork, trace_android
from ..measure.model_trace import op_times, run_model, summary
from ..measure.record import Setting
from ..measure.trace_insights import insights
from ..runtime.inputs import Picture
from ..runtime.recorder import record
from ..runtime.trace_data import Trace
from ..runtime.tracefile import encoder_for, perfetto_messages
from ..tables import facts, table
from .common import (
    A_MODEL,
    DelegateNames,
    EntryPoint,
    FullDelegation,
    InputFiles,
    JsonPath,
    JsonTarget,
    Plugins,
    Quiet,
    RandomShapes,
    at_hand,
    load_plugins,
    open_target,
    pairs,
    progress,
    read_shapes,
    warn_unused,
    write_target,
)
from .device import AdbPath, DeviceBinary, DeviceFlags, DeviceName, DeviceTimeout
from .run import _feeds, _named

SCHEMA = "sanderling.trace/1"
SHOWN = 20  # ops of a capture
PERFETTO = (".perfetto-trace", ".pftrace", ".pb")
A_DEVICE = "a device runs TensorFlow Lite's own tool (--device-flag passes its flags)"


def trace(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help=A_MODEL, callback=at_hand)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the trace goes: .perfetto-trace, .pftrace or .pb (needs the package "
            "perfetto), or .json.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(metavar="N", help="Runs to record.")] = 5,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Threads to use.")] = None,
    delegate: DelegateNames = [],  # noqa: B006
    require_full_delegation: FullDelegation = False,
    input: InputFiles = [],  # noqa: B006
    random: Annotated[int, typer.Option(metavar="SEED", min=0, help="Of the random values.")] = 0,
    shape: RandomShapes = [],  # noqa: B006
    signature: EntryPoint = None,
    device: DeviceName = "",
    device_binary: DeviceBinary = "",
    device_flag: DeviceFlags = [],  # noqa: B006
    app: Annotated[
        str,
        typer.Option(
            metavar="PACKAGE/ACTIVITY",
            help="On the device, start this app instead of the benchmark.",
        ),
    ] = "",
    seconds: Annotated[
        float,
        typer.Option(metavar="S", help="On the device, how long to record where no model is run."),
    ] = 10.0,
    device_timeout: DeviceTimeout = 900.0,
    adb: AdbPath = "adb",
    read_: Annotated[
        Path | None,
        typer.Option(
            "--read",
            metavar="FILE",
            help="Record nothing: print the insights of an earlier trace (.json), or of one that "
            "Perfetto, systrace or Instruments (xctrace export) captured of TensorFlow Lite.",
        ),
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Record what happens in a model's load and runs, op by op on every thread, for the Perfetto
    UI (https://ui.perfetto.dev), and print what stands out.

    To trace a program of yours, set SANDERLING_TRACE=FILE, or use sanderling.trace.record(). On a
    device, TensorFlow Lite's benchmark, an app of yours or whatever runs there is recorded by its
    perfetto, with debug.tflite.trace set for the time.
    """
    if device and read_ is None:
        unused: dict[str, object] = {"--input": input, "--shape": shape, "--signature": signature}
        unused["--require-full-delegation"] = require_full_delegation
        warn_unused(unused, A_DEVICE)
        options = DeviceOptions(
            binary=device_binary,
            adb=adb,
            timeout=device_timeout,
            flags=pairs(device_flag, "--device-flag"),
        )
        setting = Setting(threads=threads or 1, delegates=tuple(delegate))
        work = TracedWork(str(model or ""), app, seconds, runs)
        return _on_device(device, work, setting, options, output, json)
    if (model is None) == (read_ is None):
        raise InputError(
            "a model or an earlier trace is needed, and not both"
            if model
            else "neither a model nor an earlier trace is given",
            fix="write: sanderling trace MODEL -o FILE, or --read FILE",
        )
    if read_ is not None:
        warn_unused(
            {
                "--output": output,
                "--threads": threads,
                "--delegate": delegate,
                "--require-full-delegation": require_full_delegation,
                "--input": input,
                "--shape": shape,
                "--signature": signature,
            },
            "nothing is recorded",
        )
        with JsonTarget(json) as target:
            _report(read_trace(read_), str(read_), target)
        return
    assert model is not None, "one of the two is given"
    if output is None:
        raise InputError(
            "it is not said where the trace goes",
            where="--output",
            fix=f"add -o {model.stem}.perfetto-trace, or a name that ends in .json",
        )
    load_plugins(plugin)
    encode = encoder_for(output)

    def feeds(entry: Signature) -> dict[str, Array]:
        given = _named(entry.inputs, pairs(input, "--input"), "input")
        return _feeds(entry, given, Picture(), random, read_shapes(shape))

    with ExitStack() as opened:
        file = opened.enter_context(open_target(output))
        target = opened.enter_context(JsonTarget(json))
        stopped = None
        with progress() as show, record() as made:
            try:
                run_model(
                    model,
                    runs=runs,
                    threads=threads,
                    delegates=delegate,
                    require_full_delegation=require_full_delegation,
                    feeds=feeds,
                    signature=signature,
                    progress=show,
                )
            except KeyboardInterrupt as interrupt:  # what is recorded is not lost
                stopped = interrupt
        write_target(file, encode(made))
        _report(made, str(model), target)
        if stopped is not None:
            raise stopped


def _on_device(
    device: str,
    work: TracedWork,
    setting: Setting,
    options: DeviceOptions,
    output: Path | None,
    json: str,
) -> None:
    check_device(device)
    if device == "ios":
        raise InputError(
            "iOS records with Instruments",
            where="--device",
            fix="record there, export the signposts with xctrace, and give the file to --read",
        )
    if work.model and work.app:
        raise InputError("a model and an app are given", where="--app", fix="leave one out")
    if output is None:
        raise InputError(
            "it is not said where the trace goes",
            where="--output",
            fix="add -o FILE.perfetto-trace",
        )
    check_ending(output, PERFETTO, "trace of a device")
    perfetto_messages("reading Perfetto's format")
    with ExitStack() as opened:
        file = opened.enter_context(open_target(output))
        target = opened.enter_context(JsonTarget(json))
        with progress() as show:
            serial = device.partition(":")[2]
            content = trace_android(serial, work, setting, replace(options, progress=show))
        write_target(file, content)
        _report(read_trace(output), work.model or work.app or device, target)


def _report(made: Trace, about: str, target: JsonTarget) -> None:
    found = insights(made)
    result = {
        "schema": SCHEMA,
        "of": about,
        "cores": made.about["cores"],
        **summary(made),
        "insights": [vars(i) for i in found],
    }
    if "captured" in made.about:
        result |= {"captured": made.about["captured"], "ops": op_times(made)}
    if not target.write(result):
        _print(result, found)


def _print(about: dict[str, Any], found: Sequence[Finding]) -> None:
    rows = [
        ("of", about["of"]),
        ("recorded", f"{about['slices']} slices on {_some(about['threads'])}"),
        ("load", _ms(about["load_s"])),
        ("plan, compile", _ms(about["plan_s"])),
        ("first run", _ms(about["first_run_s"])),
        (f"later runs ({max(about['runs'] - 1, 0)})", _ms(about["later_run_s"])),
    ]
    typer.echo(facts([r for r in rows if r[1] not in ("-", _ms(0))]))
    if about.get("ops"):
        typer.echo(f"\n{_op_table(about['ops'])}")
    typer.echo("\nNothing stands out." if not found else "")
    typer.echo("\n".join(clean_lines(str(i)) for i in found))


def _op_table(ops: Sequence[dict[str, Any]]) -> str:
    """The times of the ops of a capture, whose model may not be at hand for `profile`."""
    rows = [
        (o["op"], o["node"], o["delegate"], f"{1e3 * o['seconds']:.3f}", f"{o['share']:.1%}")
        for o in ops[:SHOWN]
    ]
    left = f"\nand {len(ops) - SHOWN} more, see --json" if len(ops) > SHOWN else ""
    return table(["~op", ">node", "runs on", ">ms in a run", ">share"], rows) + left


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3f} ms"
