"""`sanderling advise`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ..choose.advice import GOALS, MEASURED
from ..choose.advice_report import as_markdown, as_page, as_text
from ..choose.advise import SAMPLES
from ..choose.advise import advise as search
from ..errors import InputError
from ..rules.tables import names as rule_names
from . import completion
from .app import INTERRUPTED
from .common import (
    JsonPath,
    JsonTarget,
    ModelPath,
    Plugins,
    Quiet,
    TextTarget,
    check_targets,
    load_plugins,
    progress,
    warn,
    warn_unused,
)

PAGES = {".html": as_page, ".md": as_markdown}


def _targets() -> list[str]:
    return [*MEASURED, *(name for name in rule_names() if name not in MEASURED)]


def advise(
    model: ModelPath,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Samples like those the model will see: a folder of pictures or arrays, a .npz, a "
            ".npy. Without it int8's accuracy is not judged.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="At most so many, spread evenly.")
    ] = SAMPLES,
    preset: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=completion.PRESET,
            help="How pictures become inputs, as in `sanderling quantize`.",
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.one_of(_targets),
            help="Where it is to run: cpu (here), phone (LiteRT measured here), or an accelerator "
            "whose rules are known: gpu, edgetpu, nnapi:29, hexagon, coreml:3, xnnpack.",
        ),
    ] = "cpu",
    goal: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=completion.one_of(lambda: GOALS),
            help=f"What is to be good: {', '.join(GOALS)}.",
        ),
    ] = "latency",
    seconds: Annotated[
        float,
        typer.Option(
            metavar="S", help="About how long trials are measured; preparing them comes on top."
        ),
    ] = 30.0,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write it as a page (.html) or as Markdown (.md)."),
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Look at a model and say what to do next: each piece of advice has been tried, with its gain.

    Tried are quantisation, fewer ops, threads, precision, delegates, batches and zeros; for an
    accelerator, what it refuses and how to rewrite that. What does not gain is not advised.
    """
    load_plugins(plugin)
    if data is None:
        warn_unused({"--preset": preset, "--samples": samples != SAMPLES}, "there is no --data")
    if report is not None and report.suffix not in PAGES:
        raise InputError("a report's name ends in .html or .md", where=str(report), fix="rename it")
    check_targets({"--report": report, "--json": json}, {"MODEL": model})
    with ExitStack() as opened:
        written = opened.enter_context(JsonTarget(json))
        paper = opened.enter_context(TextTarget(report))
        with progress() as show:
            found = search(
                model,
                data=data,
                preset=preset,
                samples=samples,
                target=target,
                goal=goal,
                seconds=seconds,
                progress=show,
            )
        if report is not None:
            paper.put(PAGES[report.suffix](found))
        if not written.write(found.to_json()):
            typer.echo(as_text(found))
        for text in found.warnings:
            warn(text)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)
