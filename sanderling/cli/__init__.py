"""`sanderling VERB ...`: one function per verb, its docstring is its help.

Results go to stdout, progress and warnings to stderr. Exit status: 0 done, 1 a check that was
asked for did not hold, 2 bad usage or bad input.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import typer
from typer.core import TyperGroup

from ..errors import SanderlingError
from ..version import __version__
from .demo import demo
from .inspect import inspect
from .run import run

BAD_INPUT = 2


class Verbs(TyperGroup):
    """Every expected failure is a sentence on stderr and an exit status, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SanderlingError as error:
            message = str(error)
        except MemoryError:
            message = "not enough memory; try smaller inputs"
        typer.echo(f"sanderling: {message}", err=True)
        raise typer.Exit(BAD_INPUT)


app = typer.Typer(
    name="sanderling",
    cls=Verbs,
    help="Run, measure, shrink, accelerate and verify .tflite models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for verb in (run, inspect, demo):
    app.command()(verb)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sanderling {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True,
                                 help="Print the version and stop."),
) -> None:  # fmt: skip
    """Run, measure, shrink, accelerate and verify .tflite models."""


def main() -> None:
    """The command `sanderling`."""
    warnings.showwarning = _show_warning
    app(prog_name="sanderling")


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {message}", file=sys.stderr)
