"""`sanderling bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from ..build.on_device import program_builder
from ..errors import InputError
from ..files import check_ending
from ..format import AtomicFile
from ..measure import baseline as earlier
from ..measure import bench_plots, bench_tables, model_table
from ..measure.bench import BenchInterrupted, Procedure
from ..measure.bench import bench as measure
from ..measure.bench_results import SCHEMA, Bench
from ..measure.devices import DeviceOptions
from ..measure.devices import check as check_device
from ..measure.devices.adb import DeviceError
from ..measure.devices.device_bench import bench_device, tool_flags
from ..measure.machine import machine
from ..measure.noise import sentences
from ..plots import figure, kind_of
from ..runtime.settings_file import read_settings
from ..tables import facts, table
from . import completion
from .common import (
    FullDelegation,
    JsonPath,
    JsonTarget,
    Plugins,
    Quiet,
    SettingsPath,
    Shapes,
    at_hand,
    encoded,
    open_target,
    pairs,
    plural,
    progress,
    read_shapes,
    say,
    warn,
    warn_unused,
    write_target,
)

REGRESSION = NOT_DELEGATED = 1  # exit status
TABLES = {".md": model_table.as_markdown, ".html": model_table.as_html}


def bench(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL", callback=at_hand, help="One .tflite file or more; - for stdin."
        ),
    ],
    engines: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            autocompletion=completion.ENGINES,
            help="Engines to compare, the first is what others are compared with: sanderling, "
            "litert, openvino, onnxruntime; on a device sanderling (a program of the compiled "
            "model, built for it) and tflite. Default: sanderling, on a device tflite.",
        ),
    ] = "",
    threads: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Thread counts, for example 1,2,4. Default: 1; with --sweep or --contend up "
            "to the number of CPUs.",
        ),
    ] = "",
    delegates: Annotated[
        str,
        typer.Option(
            "--delegates",
            "--delegate",
            metavar="LIST",
            autocompletion=completion.DELEGATES,
            help="Delegates to try one after the other; a+b prefers a, then b. Default: cpu.",
        ),
    ] = "",
    require_full_delegation: FullDelegation = False,
    precision: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            autocompletion=completion.PRECISIONS,
            help="Of float models: f32, bf16. Default: f32.",
        ),
    ] = "",
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="Try every combination of threads, delegates and precisions that is not fixed "
            "by an option, and recommend one.",
        ),
    ] = False,
    settings: SettingsPath = None,
    contend: Annotated[
        int, typer.Option(metavar="N", help="Measure each setting also beside N busy processes.")
    ] = 0,
    runs: Annotated[int, typer.Option(metavar="N", help="Inferences at least.")] = 50,
    min_secs: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds at least that a setting is measured. Default: 1, or --max-secs if that "
            "is less.",
        ),
    ] = None,
    max_secs: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds at most, warm-up apart. Default: 30, or --min-secs if that is more.",
        ),
    ] = None,
    warmup_runs: Annotated[
        int, typer.Option(metavar="N", help="Runs at least before measuring begins.")
    ] = 1,
    warmup_secs: Annotated[
        float,
        typer.Option(
            metavar="S", help="Wait at most so long until runs have become even, in each process."
        ),
    ] = 1.0,
    launches: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Fresh processes for each setting. Fewer are quicker, and their intervals "
            "wider or, for 1, too narrow.",
        ),
    ] = 5,
    run_frequency: Annotated[
        float,
        typer.Option(metavar="HZ", help="Start runs at this rate instead of one after the other."),
    ] = 0.0,
    run_delay: Annotated[float, typer.Option(metavar="S", help="Pause after each run.")] = 0.0,
    cpus: Annotated[
        str, typer.Option(metavar="LIST", help="CPUs to run on: 0,1 or 0-3, or a mask such as 0xf.")
    ] = "",
    input: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=FILE",
            help="A .npy, .npz, picture, or raw bytes for an input; others are random.",
        ),
    ] = [],  # noqa: B006
    range: Annotated[
        list[str],
        typer.Option(
            "--range",
            metavar="NAME=LOW,HIGH",
            help="The range of a random input, in the values that are stored.",
        ),
    ] = [],  # noqa: B006
    shape: Shapes = [],  # noqa: B006
    signature: Annotated[
        str, typer.Option(metavar="KEY", help="The entry point to run, for a model with several.")
    ] = "",
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of random inputs and of the order of turns.")
    ] = 0,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Compile in every process instead of starting from the cache."),
    ] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Compare with a result that --json wrote earlier."),
    ] = None,
    max_regression: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="With --baseline: exit with status 1 if a setting became slower by more than "
            "this, "
            "the whole interval of the ratio lying beyond it, or if nothing could be compared. "
            "For example 5%.",
        ),
    ] = "",
    plot: Annotated[
        list[Path],
        typer.Option(
            metavar="FILE",
            help="Write histograms, time series and sweep charts: .png, .svg or .html.",
        ),
    ] = [],  # noqa: B006
    known: Annotated[
        bool,
        typer.Option(
            "--table", help="Print the table of known models, model by setting, as Markdown."
        ),
    ] = False,
    output: Annotated[
        list[Path],
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write that table: .md or .html; may be repeated.",
        ),
    ] = [],  # noqa: B006
    timeout: Annotated[
        float,
        typer.Option(metavar="S", help="Give up on an engine that does not answer for so long."),
    ] = 180.0,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Let through what engines print, on stderr.")
    ] = False,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Measure on a device, with TensorFlow Lite's own tool or (--engines sanderling) "
            "ours: android, android:SERIAL, ssh:HOST or ios. "
            "--delegates are then gpu, nnapi, hexagon, xnnpack, coreml; --cpus become its mask.",
        ),
    ] = "",
    device_binary: Annotated[
        str, typer.Option(metavar="FILE", help="benchmark_model as built for the device.")
    ] = "",
    device_app: Annotated[
        str, typer.Option(metavar="APK", help="The benchmark app instead: an .apk, or 'installed'.")
    ] = "",
    device_flag: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=VALUE", help="A further flag of the tool, such as gpu_backend=cl."
        ),
    ] = [],  # noqa: B006
    device_folder: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="ios: the app's benchmark_data folder, which gets model and parameters.",
        ),
    ] = "",
    device_log: Annotated[
        str, typer.Option(metavar="FILE", help="ios: what the app has printed.")
    ] = "",
    device_cc: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="The C compiler that links our program for the device. Default: as for build.",
        ),
    ] = "",
    adb: Annotated[str, typer.Option(metavar="PATH", help="The adb command.")] = "adb",
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Measure models: latency, init and memory, on one engine or several side by side.

    Every setting runs in fresh processes of its own, in turns of random order. Ratios come with the
    interval in which 95 of 100 repetitions of the measurement would find theirs.
    """
    limit = _limit(max_regression, baseline)
    before = None if baseline is None else earlier.read(baseline, SCHEMA)
    options: dict[str, Any] = {
        "engines": _words(engines) or ["sanderling"],
        "threads": _numbers(threads, "--threads"),
        "delegates": [tuple(d.split("+")) for d in _words(delegates)],
        "precision": _words(precision),
        "sweep": sweep,
        "contend": contend,
        "signature": signature,
        "shapes": read_shapes(shape),
        "ranges": _ranges(range),
        "inputs": pairs(input, "--input"),
        "plugins": plugin,
        "runs": runs,
        **_seconds(min_secs, max_secs),
        "warmup_runs": warmup_runs,
        "warmup_secs": warmup_secs,
        "launches": launches,
        "run_frequency": run_frequency,
        "run_delay": run_delay,
        "cpus": _cpus(cpus),
        "cold": cold,
        "require_full_delegation": require_full_delegation,
        "timeout": timeout,
        "verbose": verbose,
        "seed": seed,
    }
    if settings is not None:
        kept = read_settings(settings)
        options["threads"] = options["threads"] or [kept.threads]
        options["delegates"] = options["delegates"] or [kept.delegates]
        options["precision"] = options["precision"] or [kept.precision]
    remote = None
    if device:
        check_device(device)
        warn_unused(
            {
                "--sweep": sweep,
                "--contend": contend,
                "--input": input,
                "--range": range,
                "--shape": shape,
                "--cold": cold,
                "--require-full-delegation": require_full_delegation,
            },
            "a device runs a tool of its own (--device-flag passes its flags)",
        )
        remote = DeviceOptions(
            binary=device_binary,
            app=device_app,
            adb=adb,
            folder=device_folder,
            log=device_log,
            cpu_mask=f"{sum(1 << c for c in options['cpus']):x}" if cpus else "",
            timeout=timeout,
            flags=tool_flags(options) | pairs(device_flag, "--device-flag"),
        )
    with ExitStack() as opened:
        target = opened.enter_context(JsonTarget(json))
        files = _OutputFiles(opened, plot, output)
        interrupt: BenchInterrupted | None = None
        try:
            with progress() as show:
                if remote is None:
                    found = measure(models, progress=show, **options)
                else:
                    place = Path(opened.enter_context(TemporaryDirectory(prefix="sanderling-")))
                    remote = replace(remote, builder=program_builder(place, device_cc))
                    on_device = options | {"engines": _words(engines) or ["tflite"]}
                    found = _on_device(device, models, on_device, remote, show)
        except BenchInterrupted as error:
            found, interrupt = error.bench, error
        if found.results or interrupt is None:
            changes = _changes(found, before, limit)
            record = found.to_json() | (
                {"baseline": _baseline(changes, baseline)} if before else {}
            )
            files.write(found)
            if not target.write(record):
                typer.echo(_report(found, changes, sweep, known))
            for text in (
                *sentences(found.warnings),
                *earlier.uncompared(changes),
                *earlier.doubts(changes, limit),
            ):
                warn(text)
        if interrupt is not None:
            partial = sum(r.partial for r in found.results)
            some = f", {partial} of them from fewer runs" if partial else ""
            say(f"interrupted; {plural(len(found.results), 'result')} kept{some}")
            raise interrupt
    if require_full_delegation and any(r.error and r.setting.delegates for r in found.results):
        raise typer.Exit(NOT_DELEGATED)
    if limit is not None:
        _check(found, changes, limit)


def _check(found: Bench, changes: Sequence[earlier.Change], limit: float) -> None:
    """The limit holds of what was measured, and of a delegate that took no op nothing was."""
    idle = [s for r in found.results for s in r.facts.get("idle_delegates", ())]
    if idle or earlier.failed(changes):
        why = idle[0] if idle else earlier.failure(changes, limit)
        say(f"the check failed: {why}")
        raise typer.Exit(REGRESSION)


def _on_device(
    device: str,
    models: Sequence[Path],
    options: dict[str, Any],
    remote: DeviceOptions,
    show: Callable[[str, int, int], None],
) -> Bench:
    found = bench_device(
        device,
        models,
        options["threads"] or (1,),
        options["delegates"] or ((),),
        options["precision"] or ("f32",),
        options["launches"],
        remote,
        show,
        options["engines"],
    )
    if all(r.error and "prepared" not in r.facts for r in found.results):
        raise DeviceError(found.results[0].error)
    return found


class _OutputFiles:
    """Pictures and tables, opened before the work: what cannot be written is said at once."""

    def __init__(self, opened: ExitStack, plots_at: Sequence[Path], tables: Sequence[Path]) -> None:
        for path in plots_at:
            kind_of(path)
        for path in tables:
            check_ending(path, list(TABLES), "table")
        if plots_at:
            with figure():  # a missing package, too
                pass
        self.plots = self._open(opened, plots_at)
        self.tables = self._open(opened, tables)

    @staticmethod
    def _open(opened: ExitStack, paths: Sequence[Path]) -> list[AtomicFile]:
        return [opened.enter_context(open_target(path)) for path in paths]

    def write(self, found: Bench) -> None:
        for file in self.plots:
            write_target(file, bench_plots.plot_bench(found, file.path))
        for file in self.tables:
            write_target(file, encoded(TABLES[file.path.suffix.lower()](found)))


# -- options ------------------------------------------------------------------------------------


def _words(text: str) -> list[str]:
    return [w.strip() for w in text.split(",") if w.strip()]


def _numbers(text: str, option: str) -> list[int]:
    found = _words(text)
    for word in found:
        if not word.lstrip("-").isdecimal():
            raise InputError(f"'{word}' is not a number", where=option, fix="write it as 1,2,4")
    return [int(w) for w in found]


def _cpus(text: str) -> tuple[int, ...]:
    """0,1 or 0-3 or a mask in hexadecimal, as taskset takes it."""
    fix = "write 0,1 or 0-3, or a mask such as 0xf"
    try:
        if text.lower().startswith("0x"):
            mask = int(text, 16)
            return tuple(n for n in range(mask.bit_length()) if mask >> n & 1)
        found: list[int] = []
        for word in _words(text):
            first, _, last = word.partition("-")
            found += range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise InputError(f"'{text}' are not CPUs", where="--cpus", fix=fix) from error
    return tuple(sorted(set(found)))


def _seconds(least: float | None, most: float | None) -> dict[str, float]:
    """How long to measure. A limit that is given moves the default of the other one."""
    usual = Procedure()
    if least is None:
        least = usual.min_secs if most is None else min(usual.min_secs, most)
    if most is None:
        most = max(usual.max_secs, least)
    if most < least:
        raise InputError(
            f"--max-secs {most:g} is less than --min-secs {least:g}",
            fix=f"give --max-secs {least:g} or more, or a smaller --min-secs",
        )
    return {"min_secs": least, "max_secs": most}


def _ranges(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for name, text in pairs(texts, "--range").items():
        try:
            low, high = (float(n) for n in text.split(","))
        except ValueError as error:
            raise InputError(
                f"'{text}' is not a range", where="--range", fix="write LOW,HIGH, for example 0,255"
            ) from error
        found[name] = low, high
    return found


def _limit(text: str, baseline: Path | None) -> float | None:
    if not text:
        return None
    if baseline is None:
        raise InputError(
            "there is nothing to compare with", where="--max-regression", fix="add --baseline FILE"
        )
    return earlier.percent(text)


# -- the baseline -------------------------------------------------------------------------------


def _changes(
    found: Bench, before: dict[str, Any] | None, limit: float | None
) -> list[earlier.Change]:
    if before is None:
        return []
    differing = earlier.differences(found.machine, before.get("machine", machine()))
    if differing:
        warn(
            f"the baseline was measured elsewhere: {'; '.join(differing)}. What changed may be "
            "the machine: measure the baseline again on this one"
        )
    return earlier.changes(found.results, before, limit)


def _baseline(changes: Sequence[earlier.Change], path: Path | None) -> dict[str, Any]:
    return {"file": str(path), "changes": [c.to_json() for c in changes]}


# -- for people ---------------------------------------------------------------------------------


def _report(found: Bench, changes: Sequence[earlier.Change], sweep: bool, known: bool) -> str:
    if known:
        return model_table.as_markdown(found)
    parts = [
        _section("latency of one inference", bench_tables.latency(found, by_speed=sweep)),
        _section("compared, with the interval of repetitions", bench_tables.comparisons(found)),
        _section("does a delegate pay?", bench_tables.delegates(found)),
        _section("start", bench_tables.starting(found)),
        _section("memory by what holds it, in bytes", bench_tables.held(found)),
        _section("resident memory, + from before the load", bench_tables.resident(found)),
        _section("beside busy processes", bench_tables.contention(found)),
        _failures(found),
        _section("against the baseline", bench_tables.changes(changes)),
        "\n".join(bench_tables.lost_on_delegates(found)),
        *bench_tables.fallbacks(found),
        *bench_tables.best_under_load(found),
        *(f"{r.model}: take {r.setting}: {r.why}" for r in found.recommendations),
    ]
    parts += bench_tables.blocks(found)
    return "\n\n".join(p for p in parts if p)


def _failures(found: Bench) -> str:
    """Reasons are sentences: they go on below themselves."""
    rows = bench_tables.failures(found)[1]
    return "not measured\n\n" + facts((", ".join(r[:-1]), r[-1]) for r in rows) if rows else ""


def _section(title: str, content: bench_tables.Table) -> str:
    text = table(*content, labels=1 + content[0].index("setting"))
    return f"{title}\n\n{text}" if text else ""
