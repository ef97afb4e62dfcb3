"""`sanderling cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..format import load
from . import completion
from . import training_options as options
from .common import JsonPath, ModelPath, Quiet, check_targets
from .new_model import check_output
from .task_options import TaskLimit, TaskName, TaskOptions, judge_of
from .training_options import check_labels, keeping, need_torch, training_data

if TYPE_CHECKING:
    from ..training.cluster import Clustering

STARTS = ("kmeans++", "linear", "density", "random", "grid")
STORAGE = ("float", "int4", "int2")


def cluster(
    model: ModelPath,
    output: options.Output = None,
    clusters: Annotated[
        int, typer.Option("--clusters", "-k", metavar="N", help="Different values of a weight.")
    ] = 16,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="HOW",
            autocompletion=completion.one_of(lambda: STARTS),
            help=f"Where the values begin: {', '.join(STARTS)}.",
        ),
    ] = "kmeans++",
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="Values of their own for each output channel.")
    ] = False,
    keep_zeros: Annotated[
        bool,
        typer.Option("--keep-zeros/--no-keep-zeros", help="Zero is a value, and zeros stay zeros."),
    ] = True,
    depthwise: Annotated[
        bool,
        typer.Option(
            "--depthwise",
            help="Depthwise layers too: they are few weights, and each of them matters.",
        ),
    ] = False,
    depthwise_clusters: Annotated[
        int,
        typer.Option(
            "--depthwise-clusters",
            metavar="N",
            min=0,
            help="Depthwise layers get so many values, 256 for example; 0: they are left alone.",
        ),
    ] = 0,
    slack: Annotated[
        float,
        typer.Option(
            "--slack",
            metavar="SHARE",
            help="The square of errors may grow by so much, 0.5 for example, where that makes the "
            "zipped file smaller.",
        ),
    ] = 0.0,
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="HOW",
            autocompletion=completion.one_of(lambda: STORAGE),
            help="float; or int4 (15 values a channel) or int2 (3), which also the unzipped file "
            "gains from.",
        ),
    ] = "float",
    only: options.Only = [],  # noqa: B006
    data: options.Data = "",
    labels: options.Labels = "",
    samples: options.SampleCount = 0,
    preset: options.Preset = "",
    mean: options.Mean = "",
    std: options.Std = "",
    epochs: options.Epochs = 0,
    batch: options.Batch = 32,
    rate: options.Rate = 1e-4,
    mix: options.Mix = 0.0,
    held_out: options.HeldOut = 0.2,
    seed: options.Seed = 0,
    checkpoint: options.Checkpoint = None,
    max_drop: options.MaxDrop = None,
    anyway: options.Anyway = False,
    task: TaskName = "",
    task_option: TaskOptions = [],  # noqa: B006
    task_limit: TaskLimit = 0,
    latency: options.Latency = False,
    report: options.ReportPath = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Cluster nothing: say whether MODEL has so few values."),
    ] = False,
    threads: options.Threads = 1,
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Let weights share a few values, so that the model zips to a fraction, with a report.

    With samples (--data) values are chosen by what layers read, and errors are made up for;
    --epochs trains afterwards. --max-drop finds the fewest values, layer by layer, that the
    accuracy allows; exit status 1 if there are none, or if the finished model does not hold what
    was asked.
    """
    need_torch("`sanderling cluster`", threads)
    from ..training.cluster import Clustering
    from ..training.cluster import cluster as behind
    from ..training.loop.train import Schedule
    from .training_output import Targets

    how = Clustering(
        clusters,
        start,
        per_channel,
        keep_zeros,
        depthwise,
        tuple(only),
        storage,
        seed,
        depthwise_clusters,
        slack,
    )
    check_targets(
        {"--output": output, "--report": report, "--checkpoint": checkpoint, "--json": json},
        {"MODEL": model, "--data": data},
    )
    if check:
        _check(model, how, json)
        return
    check_output(model, output)
    check_labels(data, labels, mix)
    judge = judge_of(task, task_option, task_limit)
    with Targets(model, output, report, json) as targets:
        source = load(model)
        found = None
        if data or epochs or max_drop is not None:
            found = training_data(
                data,
                source,
                labels,
                "training and targets need some",
                samples=samples,
                preset=preset,
                mean=mean,
                std=std,
            )
        with keeping(checkpoint):
            made, told = behind(
                source,
                found,
                how,
                schedule=Schedule(epochs, batch, rate, mix=mix, seed=seed),
                held_out=held_out,
                max_drop=max_drop,
                task=judge,
                task_limit=task_limit,
                checkpoint=checkpoint,
                latency=latency,
                threads=threads,
            )
        targets.write(made, told, "Clustering", anyway)


def _check(model: Path, how: Clustering, json: str) -> None:
    from ..training.cluster import check_clustered
    from .training_output import tell_check

    found = check_clustered(load(model), how)
    tell_check("cluster", model, found, "weights have more values", json)
