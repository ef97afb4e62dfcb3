"""Pictures and pages: figures by matplotlib, and HTML pages that need nothing but themselves."""

from __future__ import annotations

import html
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import InputError, MissingExtraError

# Distinct also for readers who do not see all colours (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
KINDS = (".png", ".svg", ".html")


def kind_of(path: str | Path) -> str:
    """The kind of picture that a file name asks for; an unknown one is refused before the work."""
    suffix = Path(path).suffix.lower()
    if suffix not in KINDS:
        raise InputError(f"'{suffix}' is not a kind of picture", where=str(path),
                         fix=f"end the name with {', '.join(KINDS)}")  # fmt: skip
    return suffix


@contextmanager
def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (9, 4.5)) -> Iterator[Any]:
    """(figure, axes) of matplotlib, without a display and without global state."""
    try:
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing pictures") from error
    style = {
        "axes.prop_cycle": cycler(color=COLOURS), "axes.spines.top": False,
        "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3, "font.size": 10,
        "svg.fonttype": "none", "svg.hashsalt": "sanderling",
    }  # fmt: skip
    with matplotlib.rc_context(style):
        made = Figure(figsize=size, layout="constrained")
        yield made, made.subplots(rows, columns)


def render(figure: Any, kind: str) -> bytes:
    """The figure as the bytes of a .png or .svg file."""
    target = io.BytesIO()
    stamp = {"Date": None} if kind == ".svg" else {}
    figure.savefig(target, format=kind.lstrip("."), dpi=120, metadata=stamp)
    return target.getvalue()


def inline(figure: Any) -> str:
    """The figure as an <svg> element for a page."""
    text = render(figure, ".svg").decode()
    return text[text.index("<svg") :]


def as_file(figure: Any, path: str | Path, title: str) -> bytes:
    """The bytes of the picture, of the kind that the file's name asks for."""
    kind = kind_of(path)
    return page(title, [inline(figure)]).encode() if kind == ".html" else render(figure, kind)


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left; }
td.n, th.n { text-align: right; } svg { max-width: 100%; height: auto; } .note { color: #555; }
.wide { overflow-x: auto; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole HTML page; the parts are HTML already."""
    name = html.escape(title)
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
            f"<body><h1>{name}</h1>\n{chr(10).join(parts)}\n</body></html>\n")  # fmt: skip


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str, note: bool = False) -> str:
    return f"<p{' class=note' if note else ''}>{html.escape(text)}</p>"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; a column whose name starts with > holds numbers."""
    marks = [" class=n" if c.startswith(">") else "" for c in columns]
    head = "".join(f"<th{m}>{html.escape(c.lstrip('>~'))}</th>"
                   for c, m in zip(columns, marks, strict=True))  # fmt: skip
    lines = ("".join(f"<td{m}>{html.escape(_text(c))}</td>"
                     for c, m in zip(row, marks, strict=True)) for row in rows)  # fmt: skip
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}" if math.isfinite(cell) else "-"
    return "-" if cell is None else str(cell)
