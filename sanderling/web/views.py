"""The table of kinds of records: from the schema's name to the page. Whatever is in no row, or is
not what its schema says, has a page too: the record itself, as a tree."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..glyphs import clean_lines
from . import answer_views, choice_views, measured_views, smaller_views
from .markup import Markup, heading, note, paragraph, tag
from .record_file import DAMAGE, Record, verb_of
from .view import Figure, PageAddress, Parts, View, file_name

VIEWS: dict[str, View] = {
    **measured_views.VIEWS,
    **answer_views.VIEWS,
    **choice_views.VIEWS,
    **smaller_views.VIEWS,
}
MOST_MODELS = 50  # of one record
LONGEST = 20_000  # letters of a record that is shown as it is
FEW = 20  # items of a list there


@dataclass(frozen=True)
class Listed:
    """What a list says of a record."""

    models: list[str] = field(default_factory=list)
    headline: str = ""
    figures: list[Figure] = field(default_factory=list)


def listed(record: Record) -> Listed:
    view = VIEWS.get(verb_of(record))
    if view is None:
        return Listed(_guessed_models(record))
    try:
        models = [file_name(m) for m in view.models(record)][:MOST_MODELS]
        figures = view.figures(record)
        return Listed(list(dict.fromkeys(models)), str(view.headline(record)), figures)
    except DAMAGE as error:
        return Listed([], f"not what its schema says ({_why(error)})")


def _guessed_models(record: Record) -> list[str]:
    """The models in a record of a verb that has no row yet: the keys that verbs call a model by."""
    found = [record.get(key) for key in ("model", "source", "path")]
    return [file_name(m) for m in found if isinstance(m, str) and m.endswith(".tflite")]


def title_of(verb: str) -> str:
    return VIEWS[verb].title if verb in VIEWS else verb.replace("_", " ").capitalize()


def page_of(record: Record, address: PageAddress) -> Parts:
    """The parts of a record's page."""
    view = VIEWS.get(verb_of(record))
    if view is None:
        return [as_it_is(record)]
    try:
        return view.parts(record, address)
    except DAMAGE as error:
        said = f"This record is not what its schema says ({_why(error)}). This is what it holds:"
        return [paragraph(said, class_="problem", role="alert"), as_it_is(record)]


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def as_it_is(record: Record) -> Markup:
    """The record as text, long lists cut."""
    words = json.dumps(_cut(record, 0), indent=2, ensure_ascii=False)
    more = note("cut; the whole record is in its file") if len(words) > LONGEST else Markup("")
    shown = Markup(html.escape(clean_lines(words[:LONGEST])))
    return Markup(heading("The record") + tag("pre", shown, tabindex=0, class_="wide") + more)


def _cut(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        inner = list(value.items())[: 10 * FEW]
        return {str(k)[:200]: _cut(v, depth + 1) for k, v in inner} if depth < 12 else "{...}"
    if isinstance(value, list):
        items = [_cut(v, depth + 1) for v in value[:FEW]] if depth < 12 else []
        return [*items, f"... {len(value)} in all"] if len(value) > len(items) else items
    return value[:1000] if isinstance(value, str) else value
