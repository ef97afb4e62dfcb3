"""The command: verbs are imported when they are called, failures become sentences."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ..errors import ArgumentError, InputError, SanderlingError
from ..files import as_given
from ..glyphs import clean_lines
from ..progress import lines_too
from ..version import __version__

VERBS = ("run", "inspect", "bench", "benchmark_model", "profile", "trace", "diff", "eval",
         "quantize", "qat", "prune", "cluster", "rewrite", "export", "build", "compare", "tune",
         "advise", "retrain", "serve", "devices", "demo")  # fmt: skip
BAD_INPUT, INTERRUPTED, NO_READER = 2, 130, 141


@contextmanager
def sentences() -> Iterator[None]:
    """Every expected failure is a sentence on stderr and an exit status, never a traceback."""
    try:
        yield
        sys.stdout.flush()  # a full disk shows here at the latest
        return
    except ArgumentError as error:
        message, status = error.in_options(), BAD_INPUT
    except SanderlingError as error:
        message, status = str(error), BAD_INPUT
    except MemoryError:
        message, status = "not enough memory; try smaller inputs", BAD_INPUT
    except RecursionError:
        message, status = "something is nested too deeply; simplify the model or file", BAD_INPUT
    except KeyboardInterrupt:
        message, status = "interrupted", INTERRUPTED
    except BrokenPipeError:
        message, status = "", NO_READER
        _drop_output()
    except OSError as error:
        _drop_output()
        message, status = _about(error), BAD_INPUT
    if message:
        with suppress(OSError):  # there may be nobody to tell
            typer.echo(f"sanderling: {clean_lines(as_given(message))}", err=True)
    raise typer.Exit(status)


# What to do about what the system says; anything else is a matter of path and permissions.
_FIXES = {
    errno.ENOSPC: "free some space, or write elsewhere",
    errno.EDQUOT: "free some space, or write elsewhere",
    errno.EBADF: "it is closed: do not close it, or send it to /dev/null",
    errno.EMFILE: "allow more open files: ulimit -n 4096",
    errno.ENOMEM: "close other programs, or try smaller inputs",
}


def _about(error: OSError) -> str:
    """What the system refused, where, and what to do. Files of the user have sentences of their
    own, where they are opened: this is for the rest."""
    place = f"'{error.filename}'" if error.filename else "cannot write the output"
    fix = _FIXES.get(error.errno or 0, "check the path and its permissions")
    return f"{place}: {error.strerror or error}\n  {fix}"


def _drop_output() -> None:
    """What is still buffered goes nowhere: Python would try to write it once more at its exit."""
    with suppress(OSError, ValueError):  # a test's buffer is not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Verbs(TyperGroup):
    """Finds a verb in the module of its name."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, name: str) -> Any:
        if name not in VERBS:
            near = get_close_matches(name, VERBS, 1)
            raise InputError(
                f"there is no verb '{name}'",
                fix=f"did you mean {near[0]}?" if near else f"the verbs are {', '.join(VERBS)}",
            )
        return _command(name)

    def make_context(self, *args: Any, **more: Any) -> Any:
        with sentences():  # --version and --help are written here
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with sentences():
            return super().invoke(ctx)


@cache
def _command(name: str) -> Any:
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    module = import_module(f".{name}", __package__)
    if hasattr(module, "command"):  # a verb that has verbs
        return module.command()
    from .common import summary  # not needed for --version

    verb = getattr(module, name)
    # A verb with a command line of its own says how it is read, and how much of it here.
    alone.command(
        name,
        cls=getattr(module, "COMMAND", None),
        short_help=summary(verb.__doc__),
        context_settings=getattr(module, "CONTEXT", None),
    )(verb)
    return get_command(alone)


app = typer.Typer(
    name="sanderling",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sanderling {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Run, measure, shrink and verify .tflite models.

    Tables fit the terminal, or $COLUMNS. In a file or pipe they have all their columns, and names
    of more than 60 letters are shortened; --json has them whole.
    """


def start() -> None:
    """Run the command line that the process was given."""
    _open_closed()
    lines_too()
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names in models are in any script
    app(prog_name="sanderling")


def _open_closed() -> None:
    """Streams that the shell closed (`>&-`). A file must not get their numbers, and results that
    nobody can read are an error: what is written to such a stdout fails."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    _warn_once(str(message))


@cache
def _warn_once(text: str) -> None:
    """This process and its workers may warn of the same."""
    print(f"warning: {text}", file=sys.stderr)
