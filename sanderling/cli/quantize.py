"""`sanderling quantize`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import InputError
from ..evaluate.task import Task, make_task
from ..format import dump, load
from ..ir import Model
from ..measure.inputs import resize
from ..optimize.calibration.samples import Samples, SignatureSamples, read_samples
from ..optimize.correcting.held_out import ENOUGH, FEW
from ..optimize.judging.accuracy import compare_accuracy
from ..optimize.judging.judge import KEPT_IF
from ..optimize.judging.latency import compare_latency
from ..optimize.judging.layer_error import LayerRow
from ..optimize.judging.page import (
    ACCURACY,
    CANDIDATES,
    LATENCY,
    LAYERS,
    SUSPECT,
    TRIALS,
    accuracy_rows,
    candidate_rows,
    judged_line,
    latency_rows,
    layer_table,
    report_page,
    suspects,
    target_line,
    trial_rows,
)
from ..optimize.judging.report import Report
from ..optimize.judging.target import Target, TargetMissedError
from ..optimize.modes.recipe import Recipe, read_recipe
from ..optimize.modes.scheme import MODES
from ..optimize.quantize import quantize as behind
from ..optimize.suggest import ACCELERATORS, GOALS, Option, Suggestion
from ..optimize.suggest import suggest as advise
from ..tables import facts, table
from ..units import byte_size
from . import completion
from .common import (
    JsonPath,
    JsonTarget,
    ModelPath,
    OutputKinds,
    Plugins,
    Quiet,
    Shapes,
    check_targets,
    load_plugins,
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
from .new_model import check_output, open_page
from .task_options import TaskLimit, TaskName, TaskOptions, task_settings

FAILED = 1
WORST = 5  # layers that the summary names
SHOWN = 10  # rows of a long list on the terminal; the record has all
# What is asked of --suggest itself is no part of the command that it names.
NOT_REPEATED = ("model", "mode", "suggest", "accelerator", "goal", "labelled", "quiet", "json")
RULE = re.compile(r",(?=\s*(?:op|name|mode|from|to|start|stop)\s*=)")


def quantize(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the quantised model goes; without it the result is shown alone.",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            autocompletion=completion.MODE,
            help=f"One of {', '.join(m for m in MODES if m != 'float')}.",
        ),
    ] = "int8",
    data: Annotated[
        list[str],
        typer.Option(
            metavar="[SIGNATURE=]PATH",
            help="Samples like those the model will see: a folder of pictures or arrays, a "
            ".npz with "
            "rows by input name, a .npy. May be repeated, once for each signature. Without it "
            "ranges are made up.",
        ),
    ] = [],  # noqa: B006
    samples: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="At most so many of each, spread evenly; 0: all."),
    ] = 200,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=completion.PRESET,
            help="How pictures become inputs: tflite (default), efficientnet-lite, unit, pixels, "
            "torchvision, caffe, resize, yolox, or a file of `sanderling eval --save-preset`.",
        ),
    ] = "",
    mean: Annotated[
        str, typer.Option(metavar="M[,M,M]", help="Inputs are (value - mean) / std.")
    ] = "",
    std: Annotated[str, typer.Option(metavar="S[,S,S]", help="See --mean.")] = "",
    crop: Annotated[
        str, typer.Option(metavar="F|HxW|none", help="Crop the middle of pictures.")
    ] = "",
    resample: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="tflite, or Pillow's nearest, bilinear, bicubic, lanczos, box, hamming.",
        ),
    ] = "",
    bgr: Annotated[bool, typer.Option("--bgr", help="Blue first.")] = False,
    signature: Annotated[
        str,
        typer.Option(metavar="KEY", help="The signature whose names the arrays of --data have."),
    ] = "",
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rules of which op gets which mode (.yaml, .json); they come after --mode and "
            "win.",
        ),
    ] = None,
    rule: Annotated[
        list[str],
        typer.Option(
            metavar="RULE",
            help='One more rule, such as "op=SOFTMAX,mode=float" or "name=*/head/*,mode=int16x8"; '
            "may be repeated, the last that fits wins.",
        ),
    ] = [],  # noqa: B006
    ranges: Annotated[
        str,
        typer.Option(metavar="HOW", help="auto, minmax, average, percentile, mse, l3 or entropy."),
    ] = "auto",
    weights: Annotated[str, typer.Option(metavar="HOW", help="auto, max or mse.")] = "auto",
    corrections: Annotated[
        str,
        typer.Option(
            metavar="NAME[,NAME]",
            help="auto, none, or the corrections to make, such as bias or bias,adaround.",
        ),
    ] = "auto",
    inputs: Annotated[
        str,
        typer.Option(metavar="TYPE", help="Of the model's inputs: float32, int8, uint8 or int16."),
    ] = "float32",
    outputs: Annotated[
        str, typer.Option(metavar="TYPE", help="The same for its outputs.")
    ] = "float32",
    minimum: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Elements of a weight that dynamic and weight-only modes store as integers.",
        ),
    ] = 1024,
    strict: Annotated[
        bool, typer.Option("--strict", help="Fail if any op would stay float.")
    ] = False,
    min_agreement: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Target: on so many of the held-out samples the largest output is float's.",
        ),
    ] = None,
    min_snr: Annotated[
        float | None,
        typer.Option(
            metavar="DB",
            help="Target: the signal-to-noise ratio of the outputs on held-out samples.",
        ),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Target: how much the figure of --task may be below float's; 0.01 is one point.",
        ),
    ] = None,
    task: TaskName = "",
    task_option: TaskOptions = [],  # noqa: B006
    task_limit: TaskLimit = 0,
    metric: Annotated[
        str,
        typer.Option(metavar="NAME", help="The task's figure that counts. Default: its headline."),
    ] = "",
    finer: Annotated[
        str,
        typer.Option(
            metavar="MODE[,MODE]",
            autocompletion=completion.MODE_LIST,
            help="What ops get that lose too much. Default: int16x8, then float.",
        ),
    ] = "",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Write the model also if it misses the target.")
    ] = False,
    shape: Shapes = [],  # noqa: B006
    output_kind: OutputKinds = [],  # noqa: B006
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep the statistics here: an interrupted calibration goes on, a second one "
            "is free.",
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads to run with.")
    ] = None,
    latency: Annotated[
        bool,
        typer.Option("--latency", help="Measure before and after, by our runtime and by LiteRT."),
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Write the report as a page: ranges, errors, sizes, trials."
        ),
    ] = None,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest",
            help="Quantise nothing: say which mode fits the situation, and the command for it.",
        ),
    ] = False,
    accelerator: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.one_of(lambda: ACCELERATORS),
            help=f"For --suggest: {', '.join(ACCELERATORS)}.",
        ),
    ] = "none",
    goal: Annotated[
        str,
        typer.Option(
            metavar="GOAL",
            autocompletion=completion.one_of(lambda: GOALS),
            help=f"For --suggest: {', '.join(GOALS)}.",
        ),
    ] = "size",
    labelled: Annotated[
        bool,
        typer.Option(
            "--labelled", help="For --suggest: the data has labels and the model can be trained."
        ),
    ] = False,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Quantise a float model after its training: smaller, faster, with a report of what it cost.

    With samples (--data) several ways are tried and the best on a held-out part is kept. A target
    (--min-agreement, --max-drop) gives a finer mode to as few ops as needed; exit status 1 if it
    cannot be met, and then no model is written. --suggest names the mode to use.
    """
    options = _given(locals())
    load_plugins(plugin)
    if suggest:
        warn_unused({"--mode": mode != "int8"}, "--suggest names the mode")
        have = "labelled" if labelled else "samples" if data else "none"
        advice = advise(model, data=have, accelerator=accelerator, goal=goal, options=options)
        _suggest(advice, json)
        return
    warn_unused(
        {"--accelerator": accelerator != "none", "--goal": goal != "size", "--labelled": labelled},
        "they are for --suggest",
    )
    check_output(model, output)
    _check_strict(strict, mode)
    check_targets(
        {"--output": output, "--report": report, "--keep": keep, "--json": json},
        {"MODEL": model, "--recipe": recipe},
    )
    rules = _recipe(recipe, rule)
    judge = make_task(task, **task_settings(task, task_option)) if task else None
    if judge is None:
        unread = {"--task-option": task_option, "--task-limit": task_limit, "--metric": metric}
        warn_unused(unread, "there is no --task")
    wanted = _target(min_agreement, min_snr, max_drop, judge, task_limit, metric, finer)
    if wanted is None:
        warn_unused({"--finer": finer, "--anyway": anyway}, "there is no target")
    with ExitStack() as opened:
        target = opened.enter_context(JsonTarget(json))
        file = opened.enter_context(open_target(output)) if output else None
        paper = opened.enter_context(open_page(report)) if report else None
        if keep:
            open_target(keep).discard()
        source = load(model)
        resize(source, read_shapes(shape))
        found = _samples(
            data,
            source,
            samples=samples,
            preset=preset,
            mean=mean,
            std=std,
            crop=crop,
            resample=resample,
            bgr=bgr,
            signature=signature,
        )
        with progress() as show, _kept(keep):
            made = _quantised(
                source,
                mode,
                found,
                recipe=rules,
                ranges=ranges,
                weights=weights,
                corrections=corrections,
                inputs=inputs,
                outputs=outputs,
                minimum=minimum,
                strict=strict,
                target=wanted,
                keep=keep,
                threads=threads,
                progress=show,
                output_kind=pairs(output_kind, "--output-kind"),
            )
            if judge is not None:
                made.report.accuracy = compare_accuracy(source, made.model, judge, task_limit, show)
            if latency:
                show("measuring", 0, 1)
                made.report.latency = compare_latency(source, made.model, threads or 1)
        if found is not None and not made.report.samples:
            warn("--data was not looked at: no op has integer activations")
            found = None
        _warn_few(found)
        # All is made before anything is written.
        content, sheet = dump(made.model), report_page(made.report).encode() if paper else b""
        is_kept = made.missed is None or anyway
        if file and is_kept:
            write_target(file, content)
        if paper:
            write_target(paper, sheet)
        if not target.write(made.report.to_json()):
            _print(made.report, found, output if is_kept else None, report)
    if made.missed is not None:
        raise _failed(made.missed, bool(file) and not is_kept)


@dataclass
class _Made:
    model: Model
    report: Report
    missed: TargetMissedError | None = None


def _quantised(*given: Any, **options: Any) -> _Made:
    try:
        return _Made(*behind(*given, **options))
    except TargetMissedError as error:
        return _Made(error.model, error.report, error)


# -- what is asked --------------------------------------------------------------------------------


def _given(values: Mapping[str, Any]) -> list[Option]:
    """The options that differ from their defaults, as they can be written again."""
    defaults = inspect.signature(quantize).parameters
    found: list[Option] = []
    for name, value in values.items():
        if name in NOT_REPEATED or value == defaults[name].default:
            continue
        option = f"--{name.replace('_', '-')}"
        parts = value if isinstance(value, list) else [value]
        found += [(option,) if part is True else (option, str(part)) for part in parts]
    return found


def _check_strict(strict: bool, mode: str) -> None:
    if strict and mode in MODES and not MODES[mode].is_integer:
        warn(f"--strict has no effect: the mode {mode} leaves activations float")


def _recipe(path: Path | None, texts: list[str]) -> Recipe | None:
    rules: list[Any] = list(read_recipe(path)) if path else []
    rules += read_recipe([parse_rule(t) for t in texts])
    return rules or None


def parse_rule(text: str) -> dict[str, str]:
    """op=SOFTMAX,mode=float; a comma within a name stays."""
    parts = [part.partition("=") for part in RULE.split(text)]
    if any(not equals or not value.strip() for _, equals, value in parts):
        raise InputError(
            f"'{text}' is not a rule",
            where="--rule",
            fix='write for example "op=SOFTMAX,mode=float"',
        )
    return {key.strip(): value.strip() for key, _, value in parts}


def _target(
    min_agreement: float | None,
    min_snr: float | None,
    max_drop: float | None,
    task: Task | None,
    limit: int,
    metric: str,
    finer: str,
) -> Target | None:
    modes = [m for m in finer.split(",") if m]
    if min_agreement is None and min_snr is None and max_drop is None:
        return None
    judge = task if max_drop is not None else None  # the others are about held-out samples
    return Target(min_agreement, min_snr, max_drop, judge, metric, limit, modes)


def _samples(data: list[str], source: Model, **how: Any) -> Samples | SignatureSamples | None:
    if not data:
        unread = {f"--{n}": v for n, v in how.items() if n != "samples"}
        warn_unused(unread, "there is no --data")
        return None
    paths = _by_signature(data, source)
    if "" not in paths:
        warn_unused({"--signature": how["signature"]}, "--data states it")
    found = read_samples(
        paths.get("") or paths, source, **how | {"bgr": True if how["bgr"] else None}
    )
    for text in found.warnings:
        warn(f"--{text}")
    return found


def _by_signature(texts: list[str], source: Model) -> dict[str, str]:
    """Paths by the signature before the equals sign; "" where there is none."""
    known = [s.key for s in source.signatures]
    made: dict[str, str] = {}
    for text in texts:
        key, equals, path = text.partition("=")
        key, path = (key, path) if equals and key in known else ("", text)
        if key in made or (made and "" in {key, *made}):
            raise InputError(
                f"{len(texts)} of them, and which is for what is not said",
                where="--data",
                fix="write SIGNATURE=PATH, once for each of "
                f"{', '.join(known) or 'its signatures; this model has none'}",
            )
        made[key] = path
    return made


def _warn_few(samples: Samples | SignatureSamples | None) -> None:
    parts = samples.parts if isinstance(samples, SignatureSamples) else {"": samples}
    for key, part in parts.items():
        if part is not None and len(part) < FEW:
            whose = f" for '{key}'" if key else ""
            warn(
                f"only {plural(len(part), 'sample')}{whose}: ranges of so few are guesses; "
                f"give {FEW} at least, better {ENOUGH} or more"
            )


@contextmanager
def _kept(keep: Path | None) -> Iterator[None]:
    """Ctrl-C loses nothing that was seen: say so."""
    try:
        yield
    except KeyboardInterrupt:
        if keep is not None and keep.is_file():
            say(f"the statistics so far are in {keep}; the same command goes on from there")
        raise


# -- what is told ---------------------------------------------------------------------------------


def _print(
    report: Report,
    samples: Samples | SignatureSamples | None,
    output: Path | None,
    sheet: Path | None,
) -> None:
    pieces = [_summary(report, samples, output, sheet), _candidates(report)]
    if report.target:
        pieces += [target_line(report), table(TRIALS, trial_rows(report))]
    if report.accuracy:
        lines = [table(ACCURACY, accuracy_rows(report)[:SHOWN]), *report.accuracy["lines"]]
        pieces += ["\n".join(lines)]
    pieces += [table(LATENCY, latency_rows(report))]
    if report.layers:
        pieces += [_layers(report.layers)]
    pieces += [
        _listed("stayed float", [tuple(r.values()) for r in report.stayed_float]),
        _listed("got another mode", [tuple(r.values()) for r in report.fell_back]),
        _listed("XNNPACK will not take", [tuple(r.values()) for r in report.refused]),
    ]
    pieces += [_notes(report.notes)]
    typer.echo("\n\n".join(filter(None, pieces)))


def _candidates(report: Report) -> str:
    if not report.candidates:
        return ""
    lines = [table(CANDIDATES, candidate_rows(report)), judged_line(report)]
    return "\n".join(lines + [KEPT_IF] * (len(report.candidates) > 1))


def _notes(texts: list[str], most: int = 5) -> str:
    more = [f"{len(texts) - most} more in --json and --report"] if len(texts) > most else []
    rows = [("note" if not i else "", text) for i, text in enumerate([*texts[:most], *more])]
    return facts(rows) if rows else ""


def _summary(
    report: Report,
    samples: Samples | SignatureSamples | None,
    output: Path | None,
    sheet: Path | None,
) -> str:
    modes = ", ".join(f"{plural(count, 'op')} {name}" for name, count in report.modes.items())
    rows: list[tuple[str, object]] = [("model", report.source)]
    rows += [("written", output)] if output else []
    rows += [("modes", modes)]
    rows += [("data", samples.text)] if samples is not None else []
    for name, before, after in (
        ("size", report.size_before, report.size_after),
        ("zipped", report.zipped_before, report.zipped_after),
    ):
        rows.append((name, f"{byte_size(before)} -> {byte_size(after)} ({after / before:.1%})"))
    return facts(rows + _suspects(report.layers, sheet))


def _suspects(layers: Sequence[LayerRow], sheet: Path | None) -> list[tuple[str, object]]:
    """Name the layers that add most error themselves, and where the others are."""
    found = suspects(layers)
    if not found:
        return []
    title = f"{plural(len(found), 'layer')} with a local RMSE/scale above {SUSPECT}"
    rows: list[tuple[str, object]] = [("look at", f"{title}, the worst first:")]
    rows += [("", f"{row.local_rmse_over_scale:.2f} {row.name}") for row in found[:WORST]]
    if len(found) > WORST:
        where = sheet or "a page that --report FILE.html writes"
        rows.append(("", f"and {len(found) - WORST} more, in {where}"))
    return rows


def _layers(layers: Sequence[LayerRow]) -> str:
    more = len(layers) > SHOWN
    rows = layer_table(layers, SHOWN if more else 0)
    title = f"the {SHOWN} of {len(layers)} layers furthest from float" if more else "layers"
    return f"{title}:\n{table(LAYERS, rows)}"


def _listed(title: str, rows: list[tuple[object, ...]]) -> str:
    if not rows:
        return ""
    more = f"\nand {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
    return f"{title}:\n{table(['op', '~output', '~because'], rows[:SHOWN])}{more}"


def _failed(missed: TargetMissedError, held_back: bool) -> typer.Exit:
    say(f"sanderling: {missed.what}\n  {missed.fix}")
    if held_back:
        say("  no model is written; --anyway writes the best one")
    return typer.Exit(FAILED)


def _suggest(found: Suggestion, json: str) -> None:
    with JsonTarget(json) as target:
        if target.write(found.to_json()):
            return
    share = found.expected_size / found.size
    rows: list[tuple[str, object]] = [("model", found.model["source"]), ("mode", found.mode)]
    rows += [
        ("size", f"{byte_size(found.size)} -> about {byte_size(found.expected_size)} ({share:.0%})")
    ]
    rows += [("because" if not i else "", text) for i, text in enumerate(found.reasons)]
    rows += [("mind" if not i else "", text) for i, text in enumerate(found.cautions)]
    other = table(
        ["otherwise", ">about", "when"],
        [(o["mode"], byte_size(o["expected_size"]), o["when"]) for o in found.otherwise],
    )
    typer.echo("\n\n".join(filter(None, [facts(rows), f"$ {found.command}", other])))
