"""`sanderling VERB ...`: one function per verb, its docstring is its help.

Results go to stdout, progress and warnings to stderr. Exit status: 0 done, 1 a check that was
asked for did not hold, 2 bad usage or bad input.
"""

from __future__ import annotations

import os
import sys
import warnings

import typer

from ..errors import SanderlingError
from ..version import __version__
from .demo import demo
from .inspect import inspect
from .run import run

BAD_INPUT = 2
INTERRUPTED = 130

app = typer.Typer(
    name="sanderling",
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
    """The command: every expected failure is a sentence on stderr, never a traceback."""
    warnings.showwarning = _show_warning
    try:
        app()
    except SanderlingError as error:
        typer.echo(f"sanderling: {error}", err=True)
        sys.exit(BAD_INPUT)
    except MemoryError:
        typer.echo("sanderling: not enough memory; try smaller inputs", err=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        typer.echo("sanderling: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone: nothing to say, and nothing to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    typer.echo(f"warning: {message}", err=True)
