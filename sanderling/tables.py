"""Tables for people: columns on a terminal, lines of facts, Markdown.

The name of a column that holds numbers starts with >, that of one that may be shortened with ~,
% if it holds several values, of which the last may go, and | if it holds sentences, which go on
below themselves where the line would be too long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap

from .files import as_given
from .glyphs import cells, clean, first_words, padded, shorten, shorten_apart, wrapped

GAP = "  "
FLEXIBLE = ("~", "%")
SENTENCES = "|"
MARKS = ">~%|"
READABLE = 24  # letters of a name that is shortened
LEGIBLE = 30  # letters of a line of a sentence, at least
IN_FILES = 60  # letters of a name at most, where there is no width to keep to


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


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], labels: int = 1) -> str:
    """Lines of a plain table, "" without rows. A column that starts with > is right-aligned; one
    that starts with ~ holds names, which are shortened where the line would be too long, and in a
    file those of more than IN_FILES letters. labels: how many columns say what a row is; a table
    that still does not fit goes on below itself, under these."""
    body = [[_shown(cell) for cell in row] for row in rows]
    if not body:
        return ""
    heads = [[column.lstrip(MARKS) for column in columns]]
    widths = _widths(heads + body)
    names = [i for i, column in enumerate(columns) if column.startswith(FLEXIBLE)]
    sentences = [i for i, column in enumerate(columns) if column.startswith(SENTENCES)]
    if not width():
        for i in names:
            widths[i] = min(widths[i], IN_FILES)
    elif _excess(widths) > 0:
        heads = _broken(heads[0], _widths(body))
        widths = _widths(heads + body)
        _narrow(widths, sentences, LEGIBLE)
        _narrow(widths, names)
    _shorten(body, columns, widths)
    pieces = [line for row in body for line in _in_lines(row, sentences, widths)]
    lines = [*heads, ["-" * w for w in widths], *pieces]
    return "\n\n".join(_block(shown, lines, columns, widths) for shown in _blocks(widths, labels))


def _shorten(body: list[list[str]], columns: Sequence[str], widths: Sequence[int]) -> None:
    for i, column in enumerate(columns):
        if column.startswith(FLEXIBLE):
            texts = [row[i] for row in body]
            short = (
                shorten_apart(texts, widths[i])
                if column.startswith("~")
                else {text: first_words(text, widths[i]) for text in texts}
            )
            for row in body:
                row[i] = short[row[i]]


def _in_lines(
    row: Sequence[str], sentences: Sequence[int], widths: Sequence[int]
) -> list[list[str]]:
    """A row as several, where a sentence goes on below itself."""
    cut = [wrapped(c, widths[i]) if i in sentences else [c] for i, c in enumerate(row)]
    return [list(line) for line in zip_longest(*cut, fillvalue="")]


def whole_in_files(column: str, mark: str = "~") -> str:
    """The name of a column that holds no names: a file has it whole."""
    return f"{mark}{column}" if width() else column


def fitting(
    columns: Sequence[str], rows: Iterable[Sequence[object]], spare: Sequence[str]
) -> list[int]:
    """The columns that a line has room for: of `spare` the first go first, where it is too long
    even with names broken and with the flexible columns as short as READABLE."""
    body = [[_shown(cell) for cell in row] for row in rows]
    kept = list(range(len(columns)))
    if not body or not width():
        return kept
    heads = _broken([column.lstrip(MARKS) for column in columns], _widths(body))
    widths = [
        min(w, READABLE) if column.startswith(FLEXIBLE) else w
        for column, w in zip(columns, _widths(heads + body), strict=True)
    ]
    for name in spare:
        if _excess([widths[i] for i in kept]) > 0:
            kept.remove(columns.index(name))
    return kept


def _block(
    shown: Sequence[int],
    lines: Sequence[Sequence[str]],
    columns: Sequence[str],
    widths: Sequence[int],
) -> str:
    names, room = [columns[i] for i in shown], [widths[i] for i in shown]
    return aligned([[line[i] for i in shown] for line in lines], names, room)


def aligned(
    lines: Sequence[Sequence[str]], columns: Sequence[str], widths: Sequence[int] | None = None
) -> str:
    """Lines of cells below each other, without those that are empty. widths: of the columns, in
    which cells are shortened; default as wide as the cells are."""
    room = widths or _widths(lines)
    return "\n".join(_line(line, columns, room) for line in lines if any(line))


def _widths(lines: Iterable[Sequence[str]]) -> list[int]:
    return [max(map(cells, column)) for column in zip(*lines, strict=True)]


def _excess(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1) - width()


def _broken(names: Sequence[str], widths: Sequence[int]) -> list[list[str]]:
    """Names of columns as several lines, where what stands below is narrower than they are."""
    pieces = [
        wrap(name, max(room, 1), break_long_words=False, break_on_hyphens=False)
        for name, room in zip(names, widths, strict=True)
    ]
    height = max(map(len, pieces))
    return [
        list(line) for line in zip(*([""] * (height - len(p)) + p for p in pieces), strict=True)
    ]


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
    made = (
        padded(shorten(cell, w), w, column.startswith(">"))
        for cell, column, w in zip(texts, columns, widths, strict=True)
    )
    return GAP.join(made).rstrip()


def facts(rows: Iterable[tuple[str, object]]) -> str:
    """Lines of `name  value`; a long value goes on below itself."""
    named = [(name, _shown(value)) for name, value in rows]
    indent = max(cells(name) for name, _ in named) + len(GAP)
    room = max(width() - indent, 20) if width() else 10**6
    lines = []
    for name, value in named:
        lines += [
            (padded(name if i == 0 else "", indent) + piece).rstrip()
            for i, piece in enumerate(wrapped(value, room))
        ]
    return "\n".join(lines)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    names = [column.lstrip(MARKS) for column in columns]
    rule = ["---:" if column.startswith(">") else "---" for column in columns]
    body = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [names, rule, *body])
