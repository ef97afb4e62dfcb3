"""`sanderling prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError
from ..format import load
from . import completion
from . import training_options as options
from .common import JsonPath, ModelPath, Quiet, check_targets
from .new_model import check_output
from .task_options import TaskLimit, TaskName, TaskOptions, judge_of
from .training_options import check_labels, keeping, need_torch, training_data

if TYPE_CHECKING:
    from ..training.prune import Pruning

HALF = 0.5
NEAR = 0.01  # of a share that people round: 1:3 is 0.33
METHODS = ("one-shot", "magnitude")
GROWTH = ("polynomial", "constant")
POLICIES = ("all", "pays")
STORAGE = ("dense", "sparse")
STRUCTURES = ("unstructured", "2:4", "1x4", "4x1", "1x16", "channels")


def prune(
    model: ModelPath,
    output: options.Output = None,
    sparsity: Annotated[
        float | None,
        typer.Option(
            "--sparsity",
            metavar="SHARE",
            help="Of the weights that become zero, or of channels; 0.5 if it is not given.",
        ),
    ] = None,
    structure: Annotated[
        str,
        typer.Option(
            "--structure",
            metavar="HOW",
            autocompletion=completion.one_of(lambda: STRUCTURES),
            help="unstructured; m:n, such as 2:4; blocks of output channels x inputs, such as 1x4, "
            "4x1 or 1x16; or channels, which makes the graph itself smaller.",
        ),
    ] = "unstructured",
    method: Annotated[
        str,
        typer.Option(
            "--method",
            metavar="HOW",
            autocompletion=completion.one_of(lambda: METHODS),
            help="one-shot: by statistics of samples, without training. magnitude: the smallest "
            "weights go; with --epochs little by little, as in TensorFlow's toolkit.",
        ),
    ] = "one-shot",
    growth: Annotated[
        str,
        typer.Option(
            "--growth",
            metavar="HOW",
            autocompletion=completion.one_of(lambda: GROWTH),
            help="Of zeros under --method magnitude with --epochs: polynomial or constant.",
        ),
    ] = "polynomial",
    whole_model: Annotated[
        bool,
        typer.Option(
            "--whole-model",
            help="All layers together reach the sparsity, sensitive ones less than others.",
        ),
    ] = False,
    only: options.Only = [],  # noqa: B006
    operator: Annotated[
        list[str],
        typer.Option(
            "--operator", metavar="NAME", help="Only weights of this operator; may be repeated."
        ),
    ] = [],  # noqa: B006
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            metavar="WHICH",
            autocompletion=completion.one_of(lambda: POLICIES),
            help="all layers; or pays: those that so many zeros make faster in our runtime here.",
        ),
    ] = "all",
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            metavar="HOW",
            autocompletion=completion.one_of(lambda: STORAGE),
            help="dense, or sparse: the schema's sparse tensors, where these are smaller.",
        ),
    ] = "dense",
    multiple: Annotated[
        int,
        typer.Option("--multiple", metavar="N", min=1, help="Channels that stay: of so many."),
    ] = 8,
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
        typer.Option("--check", help="Prune nothing: say whether MODEL has these zeros already."),
    ] = False,
    threads: options.Threads = 1,
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Make weights zero, or take whole channels out, with a report of what it cost.

    The quick way takes a few hundred samples without labels and does not train; --epochs trains
    afterwards. --max-drop finds the largest sparsity that the accuracy allows; exit status 1 if
    there is none, or if the finished model does not hold what was asked.
    """
    need_torch("`sanderling prune`", threads)
    from ..training.loop.train import Schedule
    from ..training.prune import Pruning
    from ..training.prune import prune as behind
    from .training_output import Targets

    how = Pruning(
        HALF if sparsity is None else sparsity,
        structure,
        method,
        growth,
        whole_model,
        tuple(only),
        tuple(operator),
        policy,
        storage,
        multiple,
        seed,
    )
    if sparsity is not None:
        _check_sparsity(how, max_drop)
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
        if data or method == "one-shot" or epochs or max_drop is not None:
            found = training_data(
                data,
                source,
                labels,
                "pruning looks at some (or --method magnitude)",
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
        targets.write(made, told, "Pruning", anyway)


def _check_sparsity(how: Pruning, max_drop: float | None) -> None:
    """Refuse a stated sparsity where something else decides it."""
    if max_drop is not None:
        raise InputError(
            "--max-drop finds the sparsity, and one is given",
            where="--sparsity",
            fix="leave one of them out",
        )
    share = how.stated_share
    if share is not None and abs(share - how.sparsity) > NEAR:
        raise InputError(
            f"{how.structure} makes {share:.4g} of the weights zero, not {how.sparsity:g}",
            where="--sparsity",
            fix="leave it out, or choose another structure",
        )


def _check(model: Path, how: Pruning, json: str) -> None:
    from ..training.prune import check_pruned
    from .training_output import tell_check

    found = check_pruned(load(model), how)
    tell_check("prune", model, found, "weights do not have these zeros", json)
