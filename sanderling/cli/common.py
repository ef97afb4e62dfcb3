"""What the verbs share: options, tables, JSON output, numbers for people."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ..errors import InputError
from ..format import write_atomic

ModelPath = Annotated[Path, typer.Argument(metavar="MODEL", help="A .tflite file.")]
JsonPath = Annotated[
    str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")
]
DelegateNames = Annotated[
    list[str],
    typer.Option("--delegate", metavar="NAME",
                 help="A delegate to prefer; may be repeated, first is best."),
]  # fmt: skip


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE options; without NAME= the key is empty (a model's only input or output)."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        # The name itself may hold '=' but a file name rarely does: split at the last one.
        key = name if equals else ""
        if key in found:
            raise InputError(f"{option} {key or text} is given twice", fix="give it once")
        found[key] = value
    return found


def check_target(path: Path) -> Path:
    """A file that can be written, checked before the work: nothing is left half done."""
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder '{path.parent}'"
        raise InputError(f"cannot write: {what}", where=str(path), fix="check the path")
    return path


def write_json(record: dict[str, Any], target: str) -> bool:
    """Write the record where the user wants it; True if that was stdout."""
    if not target:
        return False
    text = json.dumps(_plain(record), indent=2, default=str) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return True
    write_atomic(check_target(Path(target)), text.encode())
    return False


def _plain(value: Any) -> Any:
    """What JSON can hold: it has no infinities and no NaN."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def console() -> Console:
    """Full-width tables when the output is not a terminal, so that nothing is cut in a file. Names
    come from files: nothing in them is markup."""
    wide: dict[str, Any] = {} if sys.stdout.isatty() else {"width": 200, "soft_wrap": True}
    return Console(markup=False, emoji=False, highlight=False, **wide)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A plain table; columns that start with > are right-aligned."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left",
                        overflow="fold")  # fmt: skip
    for row in rows:
        made.add_row(*(str(cell) for cell in row))
    return made


def si(number: float) -> str:
    """1234567 -> 1.23 M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= unit:
            return f"{number / unit:.3g} {name}"
    return f"{number:g}"


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "-"
    amount = float(count)
    for name in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {name}"
        amount /= 1024
    return f"{amount:.4g} GiB"
