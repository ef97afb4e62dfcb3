"""`sanderling compare`."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from ..choose import compare_report
from ..choose.candidates import Budgets
from ..choose.compare import compare as search
from ..errors import InputError
from ..evaluate.task import find_task
from ..files import check_ending
from ..measure.noise import sentences
from ..plots import KINDS, figure
from ..tables import table
from . import completion
from .bench import _numbers, _words
from .common import (
    JsonPath,
    JsonTarget,
    Plugins,
    Quiet,
    at_hand,
    encoded,
    open_target,
    progress,
    warn,
    write_target,
)
from .eval import task_settings

FILES = (*KINDS, ".md")
TIMES = {"": 1e-3, "ms": 1e-3, "us": 1e-6, "s": 1.0}
SIZES = {"": 1, "b": 1, "kb": 1 << 10, "k": 1 << 10, "mb": 1 << 20, "m": 1 << 20,
         "gb": 1 << 30, "g": 1 << 30}  # fmt: skip
NOTHING_FITS = 1  # the exit status


def compare(
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", callback=at_hand, help="Two .tflite files or more."),
    ],
    task: Annotated[
        str,
        typer.Option(metavar="NAME", help="A task of `sanderling eval`: imagenet, coco, ..."),
    ],
    set_: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the task, such as images=FOLDER."
        ),
    ] = [],  # noqa: B006
    model_set: Annotated[
        list[str],
        typer.Option(
            metavar="WORD:NAME=VALUE",
            help="A setting of the task for models whose file name holds WORD, such as "
            "efficientnet:preset=efficientnet-lite.",
        ),
    ] = [],  # noqa: B006
    threads: Annotated[str, typer.Option(metavar="LIST", help="Thread counts.")] = "1",
    delegates: Annotated[
        str,
        typer.Option(
            "--delegates",
            "--delegate",
            metavar="LIST",
            autocompletion=completion.DELEGATES,
            help="Delegates to compare; a+b prefers a, then b. Default: cpu.",
        ),
    ] = "",
    precision: Annotated[
        str,
        typer.Option(metavar="LIST", autocompletion=completion.PRECISIONS, help="f32, bf16."),
    ] = "f32",
    max_latency: Annotated[
        str, typer.Option(metavar="TIME", help="A budget: 5ms, 800us or 0.1s.")
    ] = "",
    max_size: Annotated[
        str, typer.Option(metavar="SIZE", help="A budget of the file: 4MB or 500KB.")
    ] = "",
    min_accuracy: Annotated[
        str, typer.Option(metavar="F", help="A budget: 0.85, or 85% of a share.")
    ] = "",
    max_memory: Annotated[
        str, typer.Option(metavar="SIZE", help="A budget of the process's growth: 50MB.")
    ] = "",
    limit: Annotated[
        int, typer.Option(metavar="N", min=0, help="Judge by the first N samples; 0: all.")
    ] = 0,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Processes that evaluate.")] = 1,
    records: Annotated[
        list[Path],
        typer.Option(
            "--records",
            metavar="FILE",
            help="Take latencies from what `bench --json` wrote, a phone's too, instead of "
            "measuring here; may be repeated.",
        ),
    ] = [],  # noqa: B006
    launches: Annotated[
        int, typer.Option(metavar="N", help="Fresh processes for each model and setting.")
    ] = 5,
    min_secs: Annotated[
        float, typer.Option(metavar="S", help="Seconds that each is measured at least.")
    ] = 1.0,
    output: Annotated[
        list[Path],
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write graphs (.png, .svg), a page (.html) or the table (.md); may be repeated.",
        ),
    ] = [],  # noqa: B006
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    json: JsonPath = "",
) -> None:
    """Choose a model: size, accuracy and latency of several, on your data and this machine.

    Accuracy is judged on the same samples for all, latency is measured in turns. Candidates that
    another one beats in everything are named. With a budget the answer is the model to take; the
    exit status is 1 if none keeps it.
    """
    kind = find_task(task)
    special: dict[str, dict[str, Any]] = {}
    for text in model_set:
        word, colon, pair = text.partition(":")
        if not colon or not word:
            raise InputError(
                f"'{text}' names no model", where="--model-set", fix="write WORD:NAME=VALUE"
            )
        special.setdefault(word, {}).update(task_settings(kind, [pair], "--model-set"))
    budgets = Budgets(
        _quantity(max_latency, TIMES, "--max-latency"),
        _whole(_quantity(max_size, SIZES, "--max-size")),
        _share(min_accuracy),
        _whole(_quantity(max_memory, SIZES, "--max-memory")),
    )
    for path in output:
        check_ending(path, FILES, "picture or table")
    with ExitStack() as opened:
        if any(path.suffix.lower() in KINDS for path in output):
            with figure():  # a missing package is said before the work
                pass
        target = opened.enter_context(JsonTarget(json))
        files = [opened.enter_context(open_target(path)) for path in output]
        with progress() as show:
            found = search(
                models,
                task,
                task_settings=task_settings(kind, set_, "--set"),
                model_settings=special,
                threads=_numbers(threads, "--threads") or [1],
                delegates=[tuple(d.split("+")) for d in _words(delegates)] or [()],
                precision=_words(precision) or ["f32"],
                budgets=budgets,
                limit=limit,
                workers=workers,
                records=records,
                plugins=plugin,
                progress=show,
                launches=launches,
                min_secs=min_secs,
            )
        for file in files:
            is_table = file.path.suffix.lower() == ".md"
            table_text = compare_report.as_markdown(found)
            plotted = b"" if is_table else compare_report.plot(found, file.path)
            write_target(file, encoded(table_text) if is_table else plotted)
        if not target.write(found.to_json()):
            typer.echo(table(compare_report.columns(found), compare_report.rows(found), labels=2))
            typer.echo("\n" + "\n".join(compare_report.lines(found)))
        for text in sentences(found.warnings):
            warn(text)
    if found.answer is not None and found.answer.chosen is None:
        raise typer.Exit(NOTHING_FITS)


def _quantity(text: str, units: dict[str, Any], option: str) -> float | None:
    if not text:
        return None
    read = re.fullmatch(r"\s*([0-9.]+)\s*([a-zA-Z]*)\s*", text)
    unit = read[2].lower() if read else ""
    try:
        if read is None or unit not in units:
            raise ValueError
        return float(read[1]) * float(units[unit])
    except ValueError as error:
        known = ", ".join(u for u in units if u)
        raise InputError(
            f"'{text}' is not a quantity", where=option, fix=f"write a number and one of {known}"
        ) from error


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _share(text: str) -> float | None:
    if not text:
        return None
    try:
        return float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError as error:
        raise InputError(
            f"'{text}' is not a figure", where="--min-accuracy", fix="write 0.85 or 85%"
        ) from error
