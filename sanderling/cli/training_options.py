"""Options that the training verbs share (prune, cluster, qat), and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError, MissingExtraError
from ..ir import Model
from . import completion
from .common import say, warn

if TYPE_CHECKING:
    from ..training.loop.samples import TrainingData

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the new model goes; without it the result is shown alone.",
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Samples like those the model will see: a folder of pictures or arrays, a .npz with "
        "rows by input name, a .npy. They need no labels.",
    ),
]
Labels = Annotated[
    str,
    typer.Option(
        "--labels",
        metavar="FILE|NAME|folders",
        help="The samples' classes: a .npy, a .npz, a .csv (file,label), the name of an array in "
        "the .npz of --data, or `folders`. Without labels the model learns to answer as before.",
    ),
]
SampleCount = Annotated[
    int,
    typer.Option("--samples", metavar="N", min=0, help="At most so many, spread evenly; 0: all."),
]
Preset = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME|FILE",
        autocompletion=completion.PRESET,
        help="How pictures become inputs: tflite (default), efficientnet-lite, unit, pixels, "
        "torchvision, caffe, resize, yolox, or a file of `sanderling eval --save-preset`.",
    ),
]
Mean = Annotated[
    str, typer.Option("--mean", metavar="M[,M,M]", help="Inputs are (value - mean) / std.")
]
Std = Annotated[str, typer.Option("--std", metavar="S[,S,S]", help="See --mean.")]
Epochs = Annotated[
    int, typer.Option("--epochs", metavar="N", min=0, help="Times that all samples are trained on.")
]
Batch = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Samples in a step.")]
Rate = Annotated[
    float, typer.Option("--rate", metavar="R", min=0.0, help="The highest learning rate (Adam).")
]
Mix = Annotated[
    float,
    typer.Option(
        "--mix",
        metavar="SHARE",
        min=0.0,
        max=1.0,
        help="With labels: the share of the loss that is distance from the float model's answers.",
    ),
]
HeldOut = Annotated[
    float,
    typer.Option(
        "--held-out",
        metavar="SHARE",
        min=0.0,
        max=0.9,
        help="Of the samples, which judge and are not trained on.",
    ),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="The same gives the same.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--checkpoint",
        metavar="FILE",
        help="Keep the state of the training (with --max-drop also what was tried) here: the same "
        "command goes on from there.",
    ),
]
Only = Annotated[
    list[str],
    typer.Option(
        "--only",
        metavar="WORD",
        help="Only weights whose name has this word; may be repeated.",
    ),
]
MaxDrop = Annotated[
    float | None,
    typer.Option(
        "--max-drop",
        metavar="SHARE",
        help="Target: how far the figure may fall below float's; 0.01 is one point. The figure is "
        "--task's; without one the accuracy on held-out labels, or the agreement with float.",
    ),
]
Anyway = Annotated[
    bool, typer.Option("--anyway", help="Write the model also if it misses the target.")
]
Latency = Annotated[
    bool,
    typer.Option("--latency", help="Measure before and after, by our runtime and by LiteRT."),
]
ReportPath = Annotated[
    Path | None,
    typer.Option("--report", metavar="FILE.html", help="Write the report as a page."),
]
Threads = Annotated[
    int, typer.Option("--threads", metavar="N", min=1, help="Threads to train and to run with.")
]


def need_torch(what: str, threads: int) -> None:
    """Say at once if PyTorch is missing; else have it use so many threads."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "train", what) from error
    torch.set_num_threads(threads)


def check_labels(data: str, labels: str, mix: float | None) -> None:
    """Refuse labels of no samples, and a share beside labels that are not there."""
    if labels and not data:
        raise InputError(
            "labels need the samples that they belong to", where="--labels", fix="give --data too"
        )
    if mix and not labels:
        raise InputError(
            "a share beside labels needs labels",
            where="--mix",
            fix="give --labels, or leave it out: without labels all is distance from float",
        )


def training_data(data: str, model: Model, labels: str, wanted: str, **how: Any) -> TrainingData:
    """The samples of --data. wanted: what for, if there are none."""
    from ..training.loop.samples import read_training_data

    if not data:
        raise InputError(f"there are no samples, and {wanted}", where="--data", fix="give some")
    found = read_training_data(data, model, labels or None, **how)
    for text in found.warnings:
        warn(f"--{text}")
    return found


@contextmanager
def keeping(checkpoint: Path | None) -> Iterator[None]:
    """Ctrl-C loses nothing that was trained: say so."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoint is not None and checkpoint.is_file():
            say(f"what was done so far is in {checkpoint}; the same command goes on from there")
        raise


Show = Callable[[str, int, int], None]
