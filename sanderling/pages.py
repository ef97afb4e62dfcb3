"""HTML pages that need nothing but themselves: their style, their tables, their texts."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from .glyphs import cells, shorten

PAGES = (".html", ".htm")  # what their files may end with
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem;
       color: #1a1a1a; background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .2rem .6rem; border-bottom: 1px solid #ddd; text-align: left;
         overflow-wrap: normal; white-space: nowrap; }
td.long { white-space: normal; min-width: 16rem; }
th { cursor: pointer; position: sticky; top: 0; background: #fff; }
th[aria-sort=ascending]::after { content: " \\2191"; }
th[aria-sort=descending]::after { content: " \\2193"; }
td.n, th.n { text-align: right; } td[title] { cursor: help; } .note { color: #555; }
.wide { overflow: auto; max-height: 80vh; } .figure { max-width: 60rem; overflow-x: auto; }
.figure svg { width: 100%; height: auto; display: block; min-width: var(--least, 0); }
.row { display: flex; flex-wrap: wrap; gap: .5rem; } .row .figure { flex: 1 1 19rem; }
"""
# Sorts a table by the column that is clicked: numbers as numbers, with their units.
_SCRIPT = """
const units = {K: 1024, M: 1048576, G: 1073741824, k: 1e3, '%': 1};
function value(cell) {
  const text = cell.title || cell.textContent;
  const found = text.match(/^([-+]?[0-9.]+(?:e[-+]?[0-9]+)?) ?([KMGk%]?)/);
  return found ? parseFloat(found[1]) * (units[found[2]] || 1) : text.toLowerCase();
}
function before(a, b) {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === 'number' ? -1 : 1;
}
document.querySelectorAll('th').forEach(head => {
  const sort = () => {
    const up = head.getAttribute('aria-sort') !== 'ascending', at = head.cellIndex;
    const body = head.closest('table').tBodies[0];
    head.parentNode.querySelectorAll('th').forEach(h => h.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    [...body.rows].map(row => [value(row.cells[at]), row])
      .sort((a, b) => (up ? 1 : -1) * before(a[0], b[0])).forEach(pair => body.append(pair[1]));
  };
  head.tabIndex = 0;
  head.addEventListener('click', sort);
  head.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
});
"""
NAME, SENTENCE = 44, 60  # letters: of a name that is shown, and from which on a cell is broken


def page(title: str, parts: Iterable[str]) -> str:
    """A whole HTML page; the parts are HTML already. Names of files need not be legal text."""
    name = html.escape(title)
    return (
        (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}</title>'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_STYLE}</style></head><body><h1>{name}</h1>\n{chr(10).join(parts)}\n<script>{_SCRIPT}</script>"
            "</body></html>\n"
        )
        .encode("utf-8", "backslashreplace")
        .decode()
    )


def side_by_side(figures: Iterable[str]) -> str:
    """Figures in a row, or below each other where there is no room for a row."""
    return f"<div class=row>{''.join(figures)}</div>"


def heading(text: str) -> str:
    return f"<h2>{html.escape(text)}</h2>"


def paragraph(text: str, note: bool = False) -> str:
    return f"<p{' class=note' if note else ''}>{html.escape(text)}</p>"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table that can be sorted. A column whose name starts with > holds numbers; of one that
    starts with ~ long names are shortened, and whole under the pointer."""
    heads = "".join(f"<th{_kind(c)}>{html.escape(c.lstrip('>~'))}</th>" for c in columns)
    lines = ("".join(map(_cell, columns, row)) for row in rows)
    body = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return (
        f"<div class=wide><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _kind(column: str) -> str:
    return " class=n" if column.startswith(">") else ""


def _cell(column: str, value: object) -> str:
    text = _text(value)
    mark = _kind(column) or (" class=long" if len(text) > SENTENCE else "")
    if column.startswith("~") and cells(text) > NAME:
        return f'<td title="{html.escape(text)}">{html.escape(shorten(text, NAME))}</td>'
    return f"<td{mark}>{html.escape(text)}</td>"


def _text(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.4g}" if math.isfinite(cell) else "-"
    return "-" if cell is None else str(cell)
