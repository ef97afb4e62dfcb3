"""What the verbs share: options, tables, JSON output, numbers for people."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from ..evaluate.output_kinds import MEASURES
from ..files import STDIN, as_given, is_stream, keep_stream
from ..format import AtomicFile
from ..glyphs import cells, clean_lines, padded, wrapped
from ..glyphs import clean as clean
from ..glyphs import shorten as shorten
from ..ir import Shape
from ..progress import hush
from ..progress import plural as plural
from ..progress import progress as progress
from ..runtime.plugins import load_plugins as load_plugins
from . import completion

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


def at_hand(given: Path | Sequence[Path] | None) -> Any:
    """Models as files that other processes can open too. What comes through a pipe, or through
    stdin (`-`), is read now and kept in a temporary file until the end."""
    if given is None or isinstance(given, Path):
        return _spooled(given) if given is not None and is_stream(given) else given
    return [at_hand(path) for path in given]


@cache
def _spooled(path: Path) -> Path:
    name = "stdin" if str(path) in (STDIN, "/dev/stdin") else path.stem
    kept = Path(_spool().name) / f"{name}.tflite"
    keep_stream(path, kept, "the model")
    return kept


@cache
def _spool() -> TemporaryDirectory[str]:
    from tempfile import TemporaryDirectory  # slow, and seldom needed

    return TemporaryDirectory(prefix="sanderling-")  # removed when the process ends


A_MODEL = "A .tflite file; - for stdin."
ModelPath = Annotated[
    Path, typer.Argument(metavar="MODEL", help=A_MODEL, callback=at_hand, show_default=False)
]
JsonPath = Annotated[
    str, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")
]


def _hush(quiet: bool) -> bool:
    hush(quiet)  # for all that the verb does: it need not hand the option on
    return quiet


Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_hush, help="Do not tell how far long work is.")
]
DelegateNames = Annotated[
    list[str],
    typer.Option("--delegate", metavar="NAME", autocompletion=completion.DELEGATE,
                 help="A delegate to prefer; may be repeated, first is best."),
]  # fmt: skip

Plugins = Annotated[
    list[Path],
    typer.Option("--plugin", metavar="FILE.py",
                 help="A Python file to run first: it registers custom operators or delegates."),
]  # fmt: skip

Shapes = Annotated[
    list[str],
    typer.Option("--shape", metavar="[NAME=]1,2,3",
                 help="The shape of an input, for open dimensions or to resize it; may be "
                      "repeated."),
]  # fmt: skip

OutputKinds = Annotated[
    list[str],
    typer.Option("--output-kind", metavar="[OUTPUT=]KIND",
                 help=f"What an output is, where the model does not tell: {', '.join(MEASURES)}. "
                      "It decides by which figure it is judged; may be repeated."),
]  # fmt: skip


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """NAME=VALUE options; without NAME= the key is empty (a model's only input or output)."""
    found: dict[str, str] = {}
    for text in texts:
        key, value = split_pair(text, option)
        if key in found:
            raise InputError(f"{option} {key or text} is given twice", fix="give it once")
        found[key] = value
    return found


def read_shapes(texts: Iterable[str]) -> dict[str, Shape]:
    """--shape options, by input name."""
    found: dict[str, Shape] = {}
    for name, text in pairs(texts, "--shape").items():
        if not all(n.strip().isdecimal() for n in text.split(",")):
            raise InputError(f"'{text}' is not a shape", where="--shape",
                             fix="write sizes with commas: 1,224,224,3")  # fmt: skip
        found[name] = tuple(int(n) for n in text.split(","))
    return found


def split_pair(text: str, option: str) -> tuple[str, str]:
    """NAME and VALUE of an option. The name itself may hold '=' but a file name rarely does: it is
    split at the last one."""
    name, equals, value = text.rpartition("=")
    key = name if equals else ""
    if not value:
        raise InputError(f"nothing stands after {key}=", where=option,
                         fix="write NAME=VALUE, or VALUE for the only one")  # fmt: skip
    return key, value


def open_target(path: str | Path) -> AtomicFile:
    """A file to write later, opened before the work: what cannot be written is said at once."""
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        what = "it is a folder" if path.is_dir() else f"there is no folder '{path.parent}'"
        raise InputError(f"cannot write: {what}", where=str(path), fix="check the path")
    return AtomicFile(path)


class JsonTarget:
    """Where --json goes: nowhere, stdout, or a file that is opened now."""

    def __init__(self, target: str) -> None:
        self.to_stdout = target == "-"
        self.file = open_target(target) if target and not self.to_stdout else None

    def __enter__(self) -> JsonTarget:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file is not None:
            self.file.discard()

    def write(self, record: dict[str, Any]) -> bool:
        """True if the record was the output: nothing else may be printed."""
        text = json.dumps(_plain(record), indent=2, default=str) + "\n"
        if self.to_stdout:
            sys.stdout.write(text)
        elif self.file is not None:
            write_target(self.file, text.encode())
        return self.to_stdout


def write_target(file: AtomicFile, content: bytes) -> None:
    file.write(content)
    say(f"wrote {file.path}")


def encoded(text: str) -> bytes:
    """For a file. Names of files need not be legal text."""
    return text.encode("utf-8", "backslashreplace")


def say(text: str) -> None:
    """A word beside the result."""
    typer.echo(clean_lines(as_given(text)), err=True)


def warn(text: str) -> None:
    say(f"warning: {text}")


def warn_unused(options: Mapping[str, object], why: str) -> None:
    """Options that were given and change nothing."""
    given = [name for name, value in options.items() if value not in (None, False, "", [])]
    if given:
        warn(f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect: {why}")


def _plain(value: Any) -> Any:
    """What JSON can hold: it has no infinities and no NaN. Paths are the user's."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return as_given(value)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def width() -> int:
    """Columns to fill: the terminal's, or $COLUMNS; 0 in a file or pipe, where all columns stand
    side by side and only names are shortened."""
    if sys.stdout.isatty():
        return get_terminal_size().columns
    stated = os.environ.get("COLUMNS", "")
    return int(stated) if stated.isdecimal() else 0


def _shown(value: object) -> str:
    """A value in a line."""
    return clean(as_given(str(value)))


GAP = "  "
READABLE = 24  # letters of a name that is shortened
IN_FILES = 60  # letters of a name at most, where there is no width to keep to


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], labels: int = 1) -> str:
    """Lines of a plain table, "" without rows. A column that starts with > is right-aligned; one
    that starts with ~ holds names, which are shortened where the line would be too long, and in a
    file those of more than IN_FILES letters. labels: how many columns say what a row is; a table
    that still does not fit goes on below itself, under these."""
    body = [[_shown(cell) for cell in row] for row in rows]
    if not body:
        return ""
    heads = [[column.lstrip(">~") for column in columns]]
    widths = _widths(heads + body)
    names = [i for i, column in enumerate(columns) if column.startswith("~")]
    if not width():
        for i in names:
            widths[i] = min(widths[i], IN_FILES)
    elif _excess(widths) > 0:
        heads = _broken(heads[0], _widths(body))
        widths = _widths(heads + body)
        _narrow(widths, names)
    lines = [*heads, ["-" * w for w in widths], *body]
    return "\n\n".join(_block(shown, lines, columns, widths) for shown in _blocks(widths, labels))


def whole_in_files(column: str) -> str:
    """The name of a column that holds no names: a file has it whole."""
    return f"~{column}" if width() else column


def fitting(columns: Sequence[str], rows: Iterable[Sequence[object]],
            spare: Sequence[str]) -> list[int]:  # fmt: skip
    """The columns that a line has room for: of `spare` the first go first, where it is too long
    even with names broken and with the flexible columns as short as READABLE."""
    body = [[_shown(cell) for cell in row] for row in rows]
    kept = list(range(len(columns)))
    if not body or not width():
        return kept
    heads = _broken([column.lstrip(">~") for column in columns], _widths(body))
    widths = [min(w, READABLE) if column.startswith("~") else w
              for column, w in zip(columns, _widths(heads + body), strict=True)]  # fmt: skip
    for name in spare:
        if _excess([widths[i] for i in kept]) > 0:
            kept.remove(columns.index(name))
    return kept


def _block(shown: Sequence[int], lines: Sequence[Sequence[str]], columns: Sequence[str],
           widths: Sequence[int]) -> str:  # fmt: skip
    names, room = [columns[i] for i in shown], [widths[i] for i in shown]
    parts = ([line[i] for i in shown] for line in lines)
    return "\n".join(_line(part, names, room) for part in parts if any(part))


def _widths(lines: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(cells, column)) for column in zip(*lines, strict=True)]


def _excess(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1) - width()


def _broken(names: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """Names of columns as several lines, where what stands below is narrower than they are."""
    pieces = [wrap(name, max(room, 1), break_long_words=False, break_on_hyphens=False)
              for name, room in zip(names, widths, strict=True)]  # fmt: skip
    height = max(map(len, pieces))
    return [list(line) for line in zip(*([""] * (height - len(p)) + p for p in pieces),
                                       strict=True)]  # fmt: skip


def _blocks(widths: Sequence[int], labels: int) -> list[list[int]]:
    """Which columns stand side by side: all, or as many as fit behind the labels."""
    if not labels or not width() or _excess(widths) <= 0:
        return [list(range(len(widths)))]
    made = [list(range(labels))]
    for i in range(labels, len(widths)):
        if len(made[-1]) > labels and _excess([widths[k] for k in (*made[-1], i)]) > 0:
            made.append(list(range(labels)))
        made[-1].append(i)
    return made


def _narrow(widths: list[int], flexible: Sequence[int], least: int = 12) -> None:
    """Take columns from the widest until the line fits, or none can give any more."""
    excess = _excess(widths)
    while excess > 0 and flexible:
        widest = max(flexible, key=lambda i: widths[i])
        if widths[widest] <= least:
            return
        widths[widest] -= 1
        excess -= 1


def _line(texts: Sequence[str], columns: Sequence[str], widths: Sequence[int]) -> str:
    made = (padded(shorten(cell, w), w, column.startswith(">"))
            for cell, column, w in zip(texts, columns, widths, strict=True))  # fmt: skip
    return GAP.join(made).rstrip()


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Lines of `name  value`; a long value goes on below itself."""
    named = [(name, _shown(value)) for name, value in rows]
    indent = max(cells(name) for name, _ in named) + len(GAP)
    room = max(width() - indent, 20) if width() else 10**6
    lines = []
    for name, value in named:
        lines += [(padded(name if i == 0 else "", indent) + piece).rstrip()
                  for i, piece in enumerate(wrapped(value, room))]  # fmt: skip
    return "\n".join(lines)


def summary(text: str | None, most: int = 110) -> str:
    """The first sentence of a help text, for a list; of a long one what comes before the colon."""
    sentence = " ".join((text or "").split("\n\n")[0].split()).partition(". ")[0].rstrip(".")
    return sentence if len(sentence) <= most else sentence.partition(": ")[0]
