"""`sanderling tune`."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated

import typer

from ..choose.tune import GOALS, SECONDS, summary_rows, told
from ..choose.tune import tune as search
from ..measure.noise import sentences
from ..tables import table
from . import completion
from .bench import _numbers, _words
from .common import (
    InputFiles,
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Quiet,
    Shapes,
    TextTarget,
    pairs,
    progress,
    read_shapes,
    warn,
)

HEADINGS = ["setting", "ms a sample", "CPU ms a sample", "MiB", "over the default"]


def tune(
    model: ModelPath,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the setting that was found, for --settings of run, bench and eval.",
        ),
    ] = None,
    threads: Annotated[
        str,
        typer.Option(metavar="LIST", help="Thread counts to try. Default: up to the CPUs here."),
    ] = "",
    delegates: Annotated[
        str,
        typer.Option(
            "--delegates",
            "--delegate",
            metavar="LIST",
            autocompletion=completion.DELEGATES,
            help="Delegates to try; a+b prefers a, then b. Default: all that can be used here.",
        ),
    ] = "",
    precision: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            autocompletion=completion.PRECISIONS,
            help="Precisions to try. Default: f32, and bf16 where the CPU has it.",
        ),
    ] = "",
    batch: Annotated[
        str, typer.Option(metavar="LIST", help="Batches to try, such as 1,4,16. Default: 1.")
    ] = "1",
    goal: Annotated[
        str,
        typer.Option(metavar="NAME", help=f"What is to be small: {', '.join(GOALS)}."),
    ] = "latency",
    contend: Annotated[int, typer.Option(metavar="N", help="Measure beside N busy processes.")] = 0,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S", help="About how long is measured; the start of processes comes on top."
        ),
    ] = SECONDS,
    input: InputFiles = [],  # noqa: B006
    shape: Shapes = [],  # noqa: B006
    signature: Annotated[
        str, typer.Option(metavar="KEY", help="The entry point to run, for a model with several.")
    ] = "",
    seed: Annotated[
        int, typer.Option(metavar="N", min=0, help="Of random inputs and of the order of turns.")
    ] = 0,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Find the best setting of a model for this machine: threads, delegate, precision, batch.

    All settings are measured shortly, the best quarter for longer, and so on. The last ones are
    measured against the default in turns, in fresh processes, so that the gain has an interval.
    """
    with JsonTarget(json) as target, TextTarget(output) as kept:
        with progress() as show:
            found = search(
                model,
                threads=_numbers(threads, "--threads"),
                delegates=[tuple(d.split("+")) for d in _words(delegates)],
                precision=_words(precision),
                batches=_numbers(batch, "--batch"),
                goal=goal,
                contend=contend,
                signature=signature,
                shapes=read_shapes(shape),
                inputs=pairs(input, "--input"),
                plugins=plugin,
                seconds=seconds,
                seed=seed,
                progress=show,
            )
        kept.put(json_text.dumps(found.settings.to_json(), indent=2) + "\n")
        if not target.write(found.to_json()):
            typer.echo(table(HEADINGS, summary_rows(found)))
            typer.echo(f"\n{told(found)}; {found.verdict}")
            for name, why in found.refused.items():
                typer.echo(f"not taken: {name}: {why}")
        for text in sentences(found.warnings):
            warn(text)
