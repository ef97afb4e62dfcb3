"""`sanderling retrain`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from ..choose.retrain import HELD_OUT, Retrained
from ..choose.retrain import retrain as train
from ..format import dump
from ..ir import Model
from ..runtime.inputs import PICTURES
from ..runtime.sound import SOUNDS
from ..tables import table
from . import completion
from .common import (
    JsonPath,
    JsonTarget,
    ModelPath,
    Quiet,
    check_another_file,
    check_targets,
    open_target,
    progress,
    size_of,
    write_target,
)

SHOWN = 12  # classes whose confusions are printed


def retrain(
    model: ModelPath,
    data: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER",
            help="A folder with a folder for each class: pictures, .wav sounds, .npy or .npz "
            "arrays.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The new .tflite file.")
    ],
    blocks: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Train the last N blocks too; 0: the classifier alone."
        ),
    ] = 0,
    held_out: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the samples, to judge the result by.")
    ] = HELD_OUT,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=completion.PRESET,
            help="How pictures become inputs, as in `sanderling eval`.",
        ),
    ] = "",
    mean: Annotated[
        str, typer.Option(metavar="M[,M,M]", help="For pictures: (pixel - mean) / std.")
    ] = "",
    std: Annotated[str, typer.Option(metavar="S[,S,S]", help="See --mean.")] = "",
    rate: Annotated[
        int | None,
        typer.Option(
            metavar="HZ", min=1, help="For sounds: samples a second that the model takes."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of the split and of the training.")
    ] = 0,
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Retrain a model for your own classes: a new classifier on the features that it has learnt.

    The new file holds the class names, so that `sanderling run` prints them. Its accuracy is
    measured on samples that it was not trained on.
    """
    check_another_file(model, output, "the model itself stays as it is")
    check_targets({"--output": output, "--json": json}, {"MODEL": model})
    with JsonTarget(json) as target, open_target(output, size_of(model)) as file:
        with progress() as show:
            found = train(
                model,
                data,
                blocks=blocks,
                held_out=held_out,
                seed=seed,
                rate=rate,
                progress=show,
                preset=preset,
                mean=mean,
                std=std,
            )
        write_target(file, dump(found.model))
        if not target.write(found.to_json()):
            pictures = {"preset": preset or "tflite", "mean": mean, "std": std}
            words = _inputs(data, found.model, pictures, {"rate": str(rate or "")})
            command = " ".join(["sanderling run", shlex.quote(str(output)), *words])
            typer.echo(f"{_told(found)}\n\nnext: {command}")


def _inputs(
    data: Path, model: Model, pictures: Mapping[str, str], sounds: Mapping[str, str]
) -> list[str]:
    """How the new model is given a sample: prepared as it was for the training."""
    kinds = {path.suffix.lower() for path in data.glob("*/*")}
    if kinds & set(SOUNDS):
        return ["--input SOUND", *_options(sounds)]
    if kinds & set(PICTURES):
        return ["--input PICTURE", *_options(pictures)]
    return [f"--input {shlex.quote(tensor.name)}=FILE.npy" for tensor in model.main.inputs]


def _options(given: Mapping[str, str]) -> list[str]:
    return [f"--{name} {shlex.quote(value)}" for name, value in given.items() if value]


def _told(found: Retrained) -> str:
    low, high = found.interval
    lines = [
        f"{len(found.names)} classes, {found.trained_on} samples to learn from, "
        f"{found.features} features",
        f"accuracy: {found.accuracy:.2%} of {found.held_out} samples that were held out, "
        f"95 % interval {low:.2%} to {high:.2%}",
        *found.notes,
    ]
    wrong = [
        (count, truth, best)
        for truth, row in enumerate(found.confusion)
        for best, count in enumerate(row)
        if count and truth != best
    ]
    rows = [
        [found.names[truth], found.names[best], count]
        for count, truth, best in sorted(wrong, reverse=True)[:SHOWN]
    ]
    lines += ["", table(["~class", "~taken for", ">times"], rows)] if rows else []
    return "\n".join(lines)
