"""`sanderling diff`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..evaluate.differences import diff as behind
from ..evaluate.differences.diff import Diff, idle_lines
from ..evaluate.differences.diff_export import (
    COLUMNS,
    layer_row,
    number,
    plot_errors,
    stage_metrics,
    summary_lines,
)
from ..evaluate.differences.layer_diff import LayerDiffs, Progress
from ..evaluate.error_measures import ErrorLimits
from ..evaluate.images.preprocess import Pipeline, adjusted, load_pipeline
from ..evaluate.on_device.device_diff import diff_on_device
from ..evaluate.output_kinds import MASKS, MEASURES, SCORES
from ..measure.benchmark_model.flags import Values
from ..measure.benchmark_model.providers import EXTERNAL, PROVIDERS, carried
from ..measure.devices import DeviceOptions
from ..measure.record import Setting
from ..plots import kind_of
from ..runtime.coverage import runs_on
from ..runtime.inputs import Picture
from ..runtime.registry import delegate_names
from ..tables import table, whole_in_files
from . import completion
from .common import (
    FullDelegation,
    JsonPath,
    JsonTarget,
    OutputKinds,
    Plugins,
    Quiet,
    Shapes,
    at_hand,
    load_plugins,
    open_target,
    pairs,
    progress,
    read_shapes,
    say,
    warn,
    warn_unused,
    write_target,
)
from .device import (
    AdbPath,
    DeviceBinary,
    DeviceFlags,
    DeviceName,
    DeviceTimeout,
    device_delegates,
)
from .run import numbers
from .tool_flags import DelegatesHere, ToolCommand, chosen_delegates, with_full_delegation

FAILED = 1
COMMAND = ToolCommand


def diff(
    ctx: typer.Context,
    a: Annotated[
        Path | None,
        typer.Argument(
            metavar="A", callback=at_hand, help="The reference: a .tflite file; - for stdin."
        ),
    ] = None,
    b: Annotated[
        Path | None,
        typer.Argument(
            metavar="B",
            callback=at_hand,
            help="The test: another model of the same network. Default: A at another setting.",
        ),
    ] = None,
    delegate_a: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            autocompletion=completion.DELEGATE,
            help="A delegate of the reference; may be repeated, first is best. Default: cpu on one "
            "thread, or `reference` where both sides would be the same.",
        ),
    ] = [],  # noqa: B006
    delegate_b: Annotated[
        list[str],
        typer.Option(
            "--delegate-b",
            "--delegate",
            metavar="NAME",
            autocompletion=completion.DELEGATE,
            help="A delegate of the test; may be repeated. xnnpack is LiteRT with XNNPACK.",
        ),
    ] = [],  # noqa: B006
    require_full_delegation: FullDelegation = False,
    engine_a: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.ENGINE,
            help="Who runs the reference: sanderling, litert or openvino.",
        ),
    ] = "sanderling",
    engine_b: Annotated[
        str,
        typer.Option(metavar="NAME", autocompletion=completion.ENGINE, help="Who runs the test."),
    ] = "sanderling",
    threads_a: Annotated[int, typer.Option(metavar="N", help="Threads of the reference.")] = 1,
    threads_b: Annotated[
        int,
        typer.Option(
            "--threads-b", "--num_interpreter_threads", metavar="N", help="Threads of the test."
        ),
    ] = 1,
    precision_a: Annotated[
        str,
        typer.Option(
            metavar="P",
            autocompletion=completion.PRECISION,
            help="Of float products in the reference: f32 or bf16.",
        ),
    ] = "f32",
    precision_b: Annotated[str, typer.Option(metavar="P", help="The same for the test.")] = "f32",
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            "--num_runs",
            metavar="N",
            help="Random inputs, or at most so many of the data. Default: 50, or all.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the random inputs.")] = 0,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Inputs: a .npy, a .npz with arrays by input name, a picture, or a folder of "
            "pictures or .npy.",
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=completion.PRESET,
            help="How pictures become inputs, as in `sanderling eval imagenet`. Default: "
            "stretched, floats from 0 to 1.",
        ),
    ] = "",
    mean: Annotated[
        str | None, typer.Option(metavar="M[,M,M]", help="For pictures: (pixel - mean) / std.")
    ] = None,
    std: Annotated[str | None, typer.Option(metavar="S[,S,S]", help="See --mean.")] = None,
    bgr: Annotated[bool, typer.Option("--bgr", help="For pictures: blue first.")] = False,
    shape: Shapes = [],  # noqa: B006
    output_kind: OutputKinds = [],  # noqa: B006
    max_error: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Exit with 1 if an element of an output is further off, in real units.",
        ),
    ] = None,
    max_avg_error: Annotated[
        float | None, typer.Option(metavar="X", help="The same for the average error.")
    ] = None,
    max_raw_error: Annotated[
        float | None, typer.Option(metavar="N", help="The same in units of quantised outputs.")
    ] = None,
    max_relative: Annotated[
        float | None, typer.Option(metavar="X", help="The same for |difference| / |reference|.")
    ] = None,
    min_cosine: Annotated[
        float | None,
        typer.Option(metavar="X", help="Exit with 1 if the cosine of an output is lower."),
    ] = None,
    min_snr: Annotated[
        float | None, typer.Option(metavar="DB", help="The same for the signal-to-noise ratio.")
    ] = None,
    min_top1: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="The same for the share of equal best classes."),
    ] = None,
    min_top5: Annotated[
        float | None, typer.Option(metavar="SHARE", help="The same for the best five.")
    ] = None,
    per_tensor: Annotated[
        bool,
        typer.Option(
            "--per-tensor",
            help="Compare intermediate tensors too: where the error enters and grows.",
        ),
    ] = False,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect",
            help="Search a minimal set of ops (not one could be left out) that must leave the "
            "delegate (one model) or be taken from A (two models) for the answer to be right: by "
            "the limits above, or relative error <= 0.001 (floats) or 0.05 (quantised).",
        ),
    ] = False,
    layer_runs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Inputs for --per-tensor. Default: 5.")
    ] = None,
    bisect_runs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Inputs for each test of --bisect. Default: 3."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw the error by layer as .png, .svg or .html; implies --per-tensor.",
        ),
    ] = None,
    device: DeviceName = "",
    device_binary: DeviceBinary = "",
    device_flag: DeviceFlags = [],  # noqa: B006
    device_timeout: DeviceTimeout = 900.0,
    adb: AdbPath = "adb",
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
    model_file: Annotated[
        Path | None,
        typer.Option(
            "--model_file",
            metavar="FILE",
            callback=at_hand,
            help="As in TensorFlow Lite's tool: the model to compare at two settings.",
        ),
    ] = None,
    output_file_path: Annotated[
        Path | None,
        typer.Option(
            "--output_file_path",
            metavar="FILE",
            help="As in TensorFlow Lite's tool: the result as a serialised EvaluationStageMetrics.",
        ),
    ] = None,
) -> None:
    """Compare the answers and the latency of a test with those of a reference: two settings of one
    model (delegates, threads, precision, engines), or two models of one network (float against
    quantised). With --device, TensorFlow Lite's inference_diff compares the delegates of a phone
    with one thread of its CPU.

    Exit status 1 if a limit (--max-..., --min-...) does not hold, or if one is given and a delegate
    that was named took no op: nothing was compared on it.
    """
    load_plugins(plugin)
    model = _model(a, model_file)
    flags = with_full_delegation(ctx.meta["registrar"], require_full_delegation)
    limits = ErrorLimits(
        max_error,
        max_avg_error,
        max_raw_error,
        max_relative,
        min_cosine,
        min_snr,
        min_top1,
        min_top5,
    )
    how: Picture | Pipeline | None = None
    if preset:
        how = adjusted(load_pipeline(preset), mean=mean or "", std=std or "", bgr=bgr or None)
    elif mean is not None or std is not None or bgr:
        how = Picture(numbers(mean, "--mean"), numbers(std, "--std"), bgr=bgr)
    if plot is not None:
        kind_of(plot)
        per_tensor = True
    _warn_unused(locals())
    absent: list[str] = []
    if device:
        if b is not None:
            raise InputError("a device compares one model", where="B", fix="leave it out")
        chosen, more = device_delegates(delegate_b, flags)
        options = DeviceOptions(
            binary=device_binary,
            flags=more | pairs(device_flag, "--device-flag"),
            timeout=device_timeout,
            adb=adb,
        )
        setting = Setting(threads=threads_b, delegates=chosen, precision=precision_b)
    else:
        engine_a, (delegate_a, absent) = _ours(delegate_a, engine_a, Values())
        engine_b, (delegate_b, absent_b) = _ours(delegate_b, engine_b, flags)
        absent += absent_b

    def compare(show: Progress) -> Diff:
        if device:
            own = replace(options, progress=show)
            return diff_on_device(device, model, setting, runs, limits, own)
        return behind.diff(
            model,
            b,
            delegate_a=delegate_a,
            delegate_b=delegate_b,
            engine_a=engine_a,
            engine_b=engine_b,
            threads_a=threads_a,
            threads_b=threads_b,
            precision_a=precision_a,
            precision_b=precision_b,
            flags_b=dict(carried(flags)),
            runs=runs,
            seed=seed,
            data=data,
            picture=how,
            limits=limits,
            per_tensor=per_tensor,
            bisect=bisect,
            layer_runs=layer_runs,
            bisect_runs=bisect_runs,
            progress=show,
            shapes=read_shapes(shape),
            output_kind=pairs(output_kind, "--output-kind"),
        )

    with ExitStack() as opened:
        drawn = None if plot is None else opened.enter_context(open_target(plot))
        stage = (
            opened.enter_context(open_target(output_file_path))
            if output_file_path is not None
            else None
        )
        target = opened.enter_context(JsonTarget(json))
        with progress() as show, _kept_when_interrupted():
            found = compare(show)
        found.failed += absent if limits.given() else []
        if drawn is not None and plot is not None:
            write_target(drawn, plot_errors(found, plot))
        if stage is not None:
            write_target(stage, stage_metrics(found))
        if not target.write(found.to_json()):
            _print(found)
    for note in found.notes:
        warn(note)
    for sentence in found.failed:
        say(f"does not hold: {sentence}")
    if not found.ok:
        raise typer.Exit(FAILED)


@contextmanager
def _kept_when_interrupted() -> Iterator[None]:
    """What was compared before Ctrl-C is printed."""
    try:
        yield
    except behind.DiffInterrupted as stopped:
        _print(stopped.found)
        raise


def _model(a: Path | None, model_file: Path | None) -> Path:
    chosen = a or model_file
    if chosen is None or (a and model_file):
        what = "A and --model_file both name the reference" if chosen else "no model is given"
        raise InputError(what, fix="sanderling diff A.tflite [B.tflite]")
    return chosen


def _ours(wanted: list[str], engine: str, flags: Values) -> tuple[str, DelegatesHere]:
    """The guide tool's delegates in our terms. XNNPACK is what LiteRT runs on: alone it is LiteRT
    itself, beside others a delegate like them."""
    named = [p.flag.removeprefix("use_") for p in PROVIDERS if flags.on(p.flag)]
    alone = {*wanted, *named} == {"xnnpack"} and not carried(flags) and not flags.text(EXTERNAL)
    if alone and engine in ("sanderling", "litert") and "xnnpack" not in delegate_names():
        return "litert", DelegatesHere([], [])
    return engine, chosen_delegates(wanted, flags)


def _warn_unused(given: Mapping[str, Any]) -> None:
    if given["data"] is None:
        unused = {f"--{n}": given[n] for n in ("preset", "mean", "std", "bgr")}
        warn_unused(unused, "there are no pictures; add --data")
    if given["device"]:
        names = ("engine_a", "delegate_a", "data", "per_tensor", "bisect", "shape", "output_kind")
        unused = {f"--{n.replace('_', '-')}": given[n] for n in names if given[n] != "sanderling"}
        warn_unused(unused, "a device runs TensorFlow Lite's inference_diff")
    if not given["per_tensor"]:
        warn_unused({"--layer-runs": given["layer_runs"]}, "it is for --per-tensor")
    if not given["bisect"]:
        warn_unused({"--bisect-runs": given["bisect_runs"]}, "it is for --bisect")


# -- printing -------------------------------------------------------------------------------------


def _print(found: Diff) -> None:
    pieces = ["\n".join(found.guide_lines()), _sides(found), _outputs(found)]
    if found.layers is not None:
        pieces += _layers(found.layers)
    if found.bisection is not None:
        pieces.append(f"bisect: {found.bisection}")
    typer.echo("\n\n".join(filter(None, pieces)))


def _sides(found: Diff) -> str:
    rows = []
    for title, side, latency in zip(
        ("reference", "test"), (found.reference, found.test), found.latency, strict=True
    ):
        times = (latency.median, latency.p5, latency.p95)
        who = f"{side['engine']} {runs_on(side['delegates'], side['ops_by_delegate'])}".strip()
        rows.append(
            (
                title,
                side["model"],
                who,
                side["threads"],
                side["precision"],
                *(f"{t * 1e3:.4g}" for t in times),
            )
        )
    columns = ["side", "~model", "runs on", ">threads", "precision", ">median ms", ">p5", ">p95"]
    lines = [table(columns, rows), *idle_lines(found.reference, found.test)]
    return "\n".join([*lines, f"inputs: {found.inputs}"])


def _outputs(found: Diff) -> str:
    rows = []
    for o in found.outputs:
        types = o.type if o.type == o.test_type else f"{o.type} / {o.test_type}"
        shown = o.top if o.kind.name in (SCORES, MASKS) else {}
        top = "/".join(f"{shown[k]:.3g}" for k in (1, 5) if k in shown) or "-"
        raw = "-" if o.raw is None else f"{o.raw.avg_error:.3g}/{o.raw.max_error:.3g}"
        r = o.real
        absolute = map(number, (r.avg_error, r.std_dev, r.max_error))
        rows.append(
            (
                o.index,
                o.name,
                types,
                o.kind.name,
                *absolute,
                raw,
                number(r.relative),
                number(r.snr_db),
                f"{r.cosine:.6f}",
                top,
            )
        )
    columns = [
        ">",
        "~output",
        "~type",
        "kind",
        ">avg error",
        ">std",
        ">max",
        ">raw avg/max",
        ">relative",
        ">SNR dB",
        ">cosine",
        ">top-1/5",
    ]
    said = [
        f"output {o.index} is taken for {o.kind.name} ({o.kind.why}): what counts is "
        f"{MEASURES[o.kind.name]}; --output-kind says otherwise"
        for o in found.outputs
    ]
    return "\n".join([table(columns, rows, labels=2), *said])


def _layers(layers: LayerDiffs) -> list[str]:
    worst = [
        (r.index, r.op, r.name, number(r.severity), "; ".join(r.reasons) or r.bound)
        for r in layers.worst
    ]
    pieces = [table(COLUMNS, map(layer_row, layers.rows), labels=3)]
    if worst:
        found = table([">op", "kind", "~tensor", ">of its bound", whole_in_files("why")], worst)
        pieces.append(f"worst layers, by their own error\n{found}")
    return [*pieces, "\n".join([*summary_lines(layers), *layers.notes])]
