"""What verbs share that make a new model: the check of its file's name, and the page about it."""

from __future__ import annotations

from pathlib import Path

from ..files import check_ending
from ..format import AtomicFile
from ..pages import PAGES
from ..plots import figure
from .common import check_another_file, open_target, warn


def check_output(model: Path, output: Path | None) -> None:
    """Warn of a result that is not kept, and refuse a name that no model has."""
    check_another_file(model, output, "the float model is worth keeping")
    if output is None:
        warn("no -o FILE: the result is shown and nothing is written")
    elif not output.is_dir():  # that is said when it is opened
        check_ending(output, (".tflite",), "model")


def open_page(path: Path) -> AtomicFile:
    """The file of the page, opened before the work."""
    check_ending(path, PAGES, "page")
    with figure():  # a missing package is said before the work
        return open_target(path)
