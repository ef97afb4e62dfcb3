"""HTML written as calls: whatever is not markup already is escaped, so a name cannot become a tag.

No script and no style stands in a page (the Content-Security-Policy forbids both): colours are
classes, and figures of charts are attributes that a script reads.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..glyphs import cells, clean, shorten

NAME = 300  # letters of a text that are shown; the rest is in the record
SHORT, LONG = 24, 60  # letters of a cell
VOID = ("input", "meta", "link", "br", "img")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = object  # Markup, or anything that is shown as its text; None shows nothing


def text(value: object, room: int = NAME) -> Markup:
    """A value for people, escaped. Letters that nobody sees, or that turn the line around, are
    shown by their numbers."""
    if isinstance(value, Markup):
        return value
    words = number(value) if isinstance(value, float) else clean(value)
    shown = shorten(words, room) if cells(words) > room else words
    return Markup(html.escape(shown))


def number(value: float) -> str:
    """Four digits; what is not a number is a dash."""
    return f"{value:.4g}" if math.isfinite(value) else "-"


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """An element. `class_` and `for_` stand for names that Python has taken, `_` for `-`; True is
    an attribute without a value, None and False are no attribute."""
    given = "".join(_attribute(k, v) for k, v in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{joined(content)}</{name}>")


def joined(parts: Iterable[Content]) -> Markup:
    return Markup("".join(text(p) for p in parts if p is not None))


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{html.escape(clean(value))}"'


def link(address: str, *content: Content, **more: object) -> Markup:
    return tag("a", *content, href=address, **more)


def heading(words: Content, level: int = 2, **more: object) -> Markup:
    return tag(f"h{level}", words, **more)


def paragraph(*words: Content, **more: object) -> Markup:
    return tag("p", *words, **more)


def note(*words: Content) -> Markup:
    return paragraph(*words, class_="note")


def listed(items: Iterable[Content], **more: object) -> Markup:
    return tag("ul", *(tag("li", item) for item in items), **more)


@dataclass(frozen=True)
class Bar:
    """A cell with a bar: value of the most that the column has; low and high are its interval."""

    value: float | None
    most: float
    words: str
    low: float | None = None
    high: float | None = None

    def markup(self) -> Markup:
        if self.value is None or not self.most > 0 or not math.isfinite(self.value):
            return tag("span", self.words)
        width = min(100.0, 100 * self.value / self.most)
        shapes = [tag("rect", width=f"{max(width, 0.5):.2f}", height=8)]
        if self.low is not None and self.high is not None:
            ends = [min(100.0, 100 * max(v, 0.0) / self.most) for v in (self.low, self.high)]
            shapes.append(tag("path", d=f"M{ends[0]:.2f} 4H{ends[1]:.2f}"))
        drawn = tag(
            "svg",
            *shapes,
            class_="bar",
            viewBox="0 0 100 8",
            preserveAspectRatio="none",
            aria_hidden="true",
        )
        return tag("span", drawn, tag("span", self.words), class_="barred")


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Content]]) -> Markup:
    """A table in a box that scrolls by itself. A column whose name starts with > holds numbers."""
    heads = [
        tag("th", c.lstrip(">"), scope="col", class_="n" if c.startswith(">") else None)
        for c in columns
    ]
    body = [tag("tr", *(_cell(c, v) for c, v in zip(columns, row, strict=True))) for row in rows]
    if not body:
        return Markup("")
    made = tag(
        "table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body)
    )
    return tag("div", made, class_="wide", tabindex=0, role="region", aria_label=caption)


def _cell(column: str, value: Content) -> Markup:
    if isinstance(value, Bar):
        return tag("td", value.markup())
    shown = "-" if value is None or value == "" else value
    kind = "n" if column.startswith(">") else _length(shown)
    return tag("td", shown, class_=kind)


def _length(value: Content) -> str | None:
    """Short texts stay on one line, words of any length are broken in long ones."""
    if isinstance(value, Markup):
        return None
    return "short" if len(str(value)) <= SHORT else "long" if len(str(value)) > LONG else None


def facts(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Names and values; those without a value are left out."""
    rows = [
        tag("div", tag("dt", name), tag("dd", value))
        for name, value in pairs
        if value is not None and value != ""
    ]
    return tag("dl", *rows, class_="facts") if rows else Markup("")
