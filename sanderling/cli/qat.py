"""`sanderling qat`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..format import load
from ..optimize.judging.accuracy import compare_accuracy
from ..optimize.judging.latency import compare_latency
from ..optimize.judging.page import (
    ACCURACY,
    CANDIDATES,
    LATENCY,
    LAYERS,
    TRIALS,
    accuracy_rows,
    candidate_rows,
    latency_rows,
    layer_table,
    report_page,
    target_line,
    trial_rows,
)
from ..optimize.modes.recipe import read_recipe
from ..tables import facts, table
from ..units import byte_size
from . import training_options as options
from .common import (
    JsonPath,
    ModelPath,
    Quiet,
    check_targets,
    plural,
    progress,
)
from .new_model import check_output
from .quantize import parse_rule
from .task_options import TaskLimit, TaskName, TaskOptions, judge_of
from .training_options import check_labels, keeping, need_torch, training_data

if TYPE_CHECKING:
    from ..training.constraint import Constraint
    from ..training.loop.samples import TrainingData
    from ..training.qat import QatReport

HALF = 0.5
SHOWN = 10  # rows of a long list on the terminal; the record has all


def qat(
    model: ModelPath,
    output: options.Output = None,
    data: options.Data = "",
    labels: options.Labels = "",
    mode: Annotated[
        str,
        typer.Option(
            metavar="MODE",
            help="int8, int16x8, dynamic (activations quantised on the fly) or weight (weights "
            "alone).",
        ),
    ] = "int8",
    weights: Annotated[
        str, typer.Option(metavar="TYPE", help="Of the weights: int8, int4 or int2.")
    ] = "",
    scales: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="learned with the weights, moving averages of ranges, or frozen as calibrated.",
        ),
    ] = "learned",
    damping: Annotated[
        float,
        typer.Option(
            metavar="W",
            min=0.0,
            help="How strongly weights of depthwise layers are held to their codes; 0: not.",
        ),
    ] = 0.1,
    prune: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="This share of the weights becomes zero as well."),
    ] = None,
    clusters: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Each channel of a weight has so many values at most as well.",
        ),
    ] = None,
    epochs: options.Epochs = 4,
    batch: options.Batch = 64,
    rate: Annotated[
        float,
        typer.Option(
            "--rate",
            metavar="R",
            min=0.0,
            help="The highest learning rate (Adam); 0: what suits the weights, 0.0003 for 8 bits, "
            "0.001 for 4, 0.002 for 2.",
        ),
    ] = 0.0,
    mix: Annotated[
        float | None,
        typer.Option(
            "--mix",
            metavar="SHARE",
            min=0.0,
            max=1.0,
            help="With labels: the share of the loss that is distance from the float model's "
            "answers; 0.5 if it is not given.",
        ),
    ] = None,
    patience: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="End after so many epochs without a better one; 0: never."
        ),
    ] = 0,
    feature: Annotated[
        list[str],
        typer.Option(
            metavar="TENSOR",
            help="A tensor within the model that is to stay as float has it; may be repeated.",
        ),
    ] = [],  # noqa: B006
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Turn pictures left to right by chance.")
    ] = False,
    crop: Annotated[
        int, typer.Option(metavar="N", min=0, help="Move pictures by at most so many pixels.")
    ] = 0,
    held_out: options.HeldOut = 0.1,
    seed: options.Seed = 0,
    checkpoint: options.Checkpoint = None,
    max_drop: options.MaxDrop = None,
    anyway: options.Anyway = False,
    samples: options.SampleCount = 0,
    preset: options.Preset = "",
    mean: options.Mean = "",
    std: options.Std = "",
    recipe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Rules of which op gets which mode (.yaml, .json), as for `quantize`.",
        ),
    ] = None,
    rule: Annotated[
        list[str],
        typer.Option(
            metavar="RULE", help='One more rule, such as "op=SOFTMAX,mode=float"; may be repeated.'
        ),
    ] = [],  # noqa: B006
    ranges: Annotated[
        str, typer.Option(metavar="HOW", help="Of the start: see `quantize --ranges`.")
    ] = "auto",
    corrections: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="Of the start: see `quantize`.")
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
            help="Elements of a weight that the modes dynamic and weight store as integers.",
        ),
    ] = 1024,
    task: TaskName = "",
    task_option: TaskOptions = [],  # noqa: B006
    task_limit: TaskLimit = 0,
    latency: options.Latency = False,
    report: options.ReportPath = None,
    threads: options.Threads = 1,
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Train a float model for its quantised form: what quantising alone loses comes back.

    Samples are enough: without labels the model learns to answer as before. Training starts from
    the best post-training result, and computes with the numbers that codes stand for. With --prune
    and --clusters zeros and clusters hold in the same file. --max-drop finds the fewest bits, layer
    by layer, that the accuracy allows; exit status 1 if there are none, or if the finished model
    does not hold what was asked.
    """
    need_torch("quantisation-aware training", threads)
    check_output(model, output)
    check_targets(
        {"--output": output, "--report": report, "--checkpoint": checkpoint, "--json": json},
        {"MODEL": model, "--data": data},
    )
    check_labels(data, labels, mix)
    judge = judge_of(task, task_option, task_limit)
    from ..training.loop.train import Schedule
    from ..training.qat import chosen_mode, qat_on, searched_mode, usual_schedule
    from .training_output import Targets

    name = chosen_mode(mode, weights) if max_drop is None else searched_mode(mode, weights)
    plan = Schedule(
        epochs=epochs,
        batch=batch,
        rate=rate or usual_schedule(name).rate,
        held_out=held_out,
        patience=patience,
        mix=(HALF if mix is None else mix) if labels else 0.0,
        features=tuple(feature),
        mirror=mirror,
        crop=crop,
        seed=seed,
    )
    rules = [*(read_recipe(recipe) if recipe else []), *read_recipe([parse_rule(t) for t in rule])]
    others = _others(prune, clusters, seed)
    with Targets(model, output, report, json) as targets:
        source = load(model)
        how = {"samples": samples, "preset": preset, "mean": mean, "std": std}
        found = training_data(data, source, labels, "training needs them", **how)
        with keeping(checkpoint):
            made, told = qat_on(
                source,
                found,
                name,
                constraints=others,
                scales=scales,
                damping=damping,
                recipe=rules,
                ranges=ranges,
                corrections=corrections,
                inputs=inputs,
                outputs=outputs,
                minimum=minimum,
                schedule=plan,
                checkpoint=checkpoint,
                max_drop=max_drop,
                task=judge,
                task_limit=task_limit,
            )
        with progress() as show:
            if judge is not None:
                told.accuracy = compare_accuracy(source, made, judge, task_limit, show)
            if latency:
                show("measuring", 0, 1)
                told.latency = compare_latency(source, made, threads)
        shown = partial(_print, told, found)
        targets.finish(made, told, lambda: report_page(told), shown, anyway)


def _others(prune: float | None, clusters: int | None, seed: int) -> list[Constraint]:
    """The constraints that hold beside quantisation."""
    from ..training.constraints.clusters import Clusters
    from ..training.constraints.sparsity import Sparsity

    found: list[Constraint] = []
    if prune is not None:
        found.append(Sparsity(prune))
    if clusters is not None:
        # Weights have a scale for each channel: so have the values that stay few as codes.
        found.append(Clusters(clusters, per_channel=True, seed=seed))
    return found


# -- what is told ---------------------------------------------------------------------------------


def _print(report: QatReport, data: TrainingData, output: Path | None) -> None:
    from ..training.report import COMPARED, compared_rows

    pieces = [_summary(report, data, output), table(COMPARED, compared_rows(report))]
    if report.target:
        pieces += [target_line(report), table(TRIALS, trial_rows(report)), _bits(report)]
    pieces += [table(EPOCHS, _epochs(report))]
    pieces += [table(CANDIDATES, candidate_rows(report))] if report.candidates else []
    if report.accuracy:
        lines = [table(ACCURACY, accuracy_rows(report)[:SHOWN]), *report.accuracy["lines"]]
        pieces += ["\n".join(lines)]
    pieces += [table(LATENCY, latency_rows(report))]
    pieces += [table(LAYERS, layer_table(report.layers, SHOWN))] if report.layers else []
    stayed = [tuple(row.values()) for row in (*report.stayed_float, *report.fell_back)]
    if stayed:
        head = ["op", "~output", "~because"]
        pieces += [f"stayed float, or got another mode:\n{table(head, stayed[:SHOWN])}"]
    typer.echo("\n\n".join(filter(None, pieces)))


EPOCHS = [">epoch", ">loss", ">held out", ">agreement", ">right", ">seconds", "kept"]


def _epochs(report: QatReport) -> list[tuple[object, ...]]:
    """The start, and all epochs; what was kept has a star."""
    rows = list(enumerate(report.epochs, 1))
    start = report.start
    first = [] if start is None else [("start", "", *_figures(start), "", _star(report, 0))]
    return first + [
        (n, f"{row['loss']:.4f}", *_figures(row), f"{row['seconds']:.0f}", _star(report, n))
        for n, row in rows
    ]


def _figures(row: dict[str, Any]) -> tuple[str, ...]:
    right = row["right"]
    return (
        f"{row['held_out']:.4f}",
        f"{row['agreement']:.1%}",
        "-" if right is None else f"{right:.1%}",
    )


def _star(report: QatReport, number: int) -> str:
    return "*" if number == report.kept else ""


def _bits(report: QatReport) -> str:
    """The layers that the search gave fewer bits."""
    rows = [(name, bits) for name, bits in report.bits.items()]
    more = f"\nand {len(rows) - SHOWN} more in --json" if len(rows) > SHOWN else ""
    return table(["~weights of", ">bits"], rows[:SHOWN]) + more if rows else ""


def _summary(report: QatReport, data: TrainingData, output: Path | None) -> str:
    modes = ", ".join(f"{plural(count, 'op')} {name}" for name, count in report.modes.items())
    rows: list[tuple[str, object]] = [("model", report.source)]
    rows += [("written", output)] if output else []
    rows += [("modes", modes), ("data", data.text)]
    for name, before, after in (
        ("size", report.size_before, report.size_after),
        ("zipped", report.zipped_before, report.zipped_after),
    ):
        rows.append((name, f"{byte_size(before)} -> {byte_size(after)} ({after / before:.1%})"))
    if report.compared:
        rows.append(("held out", f"{report.compared['samples']} samples that were not trained on"))
    if report.faithful:
        rows.append(("forward", f"{_near(report.faithful)} in training are the file's"))
    rows += [("note" if not i else "", text) for i, text in enumerate(report.notes)]
    rows += [("problem" if not i else "", text) for i, text in enumerate(report.problems)]
    rows += [
        ("frozen" if not i else "", f"{where}: {why}")
        for i, (where, why) in enumerate(list(report.frozen.items())[:SHOWN])
    ]
    return facts(rows)


def _near(found: dict[str, float]) -> str:
    outputs = f"{found['equal']:.2%} of outputs"
    same = found.get("same_class")
    return outputs if same is None else f"{outputs} and {same:.1%} of first classes"
