"""The pages, each a function from what was asked to a `Page`: nothing here knows of HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from ..errors import InputError
from ..units import byte_size
from .answer_views import disagreed
from .jobs import Jobs
from .layout import Page
from .markup import Markup, facts, link, note, paragraph, table, tag, text
from .measured_views import perfetto_note
from .pictures import Picture, picture_of
from .record_file import files_of, inside, read_record
from .record_index import PAGE, RecordIndex, Row, Wanted
from .view import PageAddress, plural
from .views import page_of, title_of

Query = Mapping[str, str]
TRACES = (".perfetto-trace", ".pftrace", ".pb", "trace.json")
SENT = (".json", *TRACES)  # files that are given out
MOST_CHOICES = 500  # of a list of models to filter by
MOST_LISTED = 500


@dataclass
class Site:
    """What all pages stand on. base: the address of everything, with the token. jobs: None if
    nothing may be started."""

    folder: Path
    index: RecordIndex
    base: str
    jobs: Jobs | None
    allowed: list[Path]  # folders from which pictures are shown

    def at(self, path: str, /, **query: object) -> str:
        kept = {k: v for k, v in query.items() if v not in ("", None, 0)}
        asked = urlencode(kept, errors="backslashreplace")
        return f"{self.base}/{path}" + (f"?{asked}" if asked else "")


def missing(what: str) -> InputError:
    return InputError(f"there is no {what} of this number", fix="go back to the list")


def when(nanoseconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(nanoseconds / 1e9))


# -- the list -------------------------------------------------------------------------------------


def records(site: Site, query: Query) -> Page:
    wanted = Wanted(query.get("q", "")[:200], query.get("verb", ""), query.get("model", ""))
    count = site.index.count(wanted)
    pages = max(1, -(-count // PAGE))
    page = min(_number(query.get("page", "0")), pages - 1)
    rows = site.index.rows(wanted, page)
    shown = [_listed(site, row) for row in rows]
    found = table(
        f"{plural(count, 'record')}, newest first",
        ["record", "what", "models", "in short", "written", ">size"],
        shown,
    )
    empty = paragraph(
        "No record fits."
        if site.index.count()
        else "This folder has no record yet. Verbs write "
        "them with --json FILE: sanderling bench MODEL --json bench.json"
    )
    return Page(
        "Records",
        "",
        [_search(site, wanted), found or empty, _pager(site, wanted, page, pages)],
    )


def _number(given: str) -> int:
    return int(given) if given.isdecimal() and len(given) < 9 else 0


def _listed(site: Site, row: Row) -> list[object]:
    models = site.index.models_of(row.id)
    named = [link(PageAddress(site.base).model(m), text(m, 60)) for m in models[:3]]
    more = f" and {len(models) - 3} more" if len(models) > 3 else None
    return [
        link(site.at(f"record/{row.id}"), text(row.path, 60)),
        title_of(row.verb),
        tag("span", *_comma(named), more),
        tag("span", row.problem or row.headline, class_="problem" if row.problem else None),
        when(row.changed),
        byte_size(row.size),
    ]


def _comma(parts: Iterable[Markup]) -> list[object]:
    found: list[object] = []
    for part in parts:
        found += [", ", part] if found else [part]
    return found


def _search(site: Site, wanted: Wanted) -> Markup:
    verbs = [(v, f"{title_of(v)} ({n})") for v, n in site.index.verbs()]
    models = [(m, f"{m} ({n})") for m, n in site.index.models()[:MOST_CHOICES]]
    return tag(
        "form",
        _labelled("Search", tag("input", type="search", name="q", value=wanted.text, id="q"), "q"),
        _labelled("Verb", _select("verb", verbs, wanted.verb), "verb"),
        _labelled("Model", _select("model", models, wanted.model), "model"),
        tag("button", "Show"),
        method="get",
        action=site.at(""),
        role="search",
        class_="row",
    )


def _labelled(label: str, field: Markup, name: str) -> Markup:
    return tag("span", tag("label", label, for_=name), field, class_="field")


def _select(name: str, options: Iterable[tuple[str, str]], chosen: str) -> Markup:
    items = [
        tag("option", text(words, 60), value=value, selected=value == chosen)
        for value, words in options
    ]
    return tag("select", tag("option", "all", value=""), *items, name=name, id=name)


def _pager(site: Site, wanted: Wanted, page: int, pages: int) -> Markup:
    if pages == 1:
        return Markup("")

    def to(number: int, words: str) -> Markup | None:
        if not 0 <= number < pages:
            return None
        asked = {"q": wanted.text, "verb": wanted.verb, "model": wanted.model, "page": number}
        return link(site.at("", **asked), words)

    return tag(
        "nav",
        to(page - 1, "Newer"),
        tag("span", f"page {page + 1} of {pages}"),
        to(page + 1, "Older"),
        aria_label="Pages of the list",
        class_="row",
    )


# -- one record -----------------------------------------------------------------------------------


def record(site: Site, number: int) -> Page:
    row = site.index.row(number)
    if row is None:
        raise missing("record")
    content = read_record(inside(site.folder, row.path))
    head = facts(
        [
            ("file", link(site.at("file", path=row.path), row.path, download=True)),
            ("written", when(row.changed)),
            ("schema", row.schema),
            ("in short", row.headline),
        ]
    )
    problem = content.problem or ("it is no longer a record" if content.record is None else "")
    if content.record is None:
        said = paragraph(f"This file cannot be shown: {problem}.", class_="problem", role="alert")
        return Page(row.path, "", [head, said])
    models = [link(PageAddress(site.base).model(m), m) for m in site.index.models_of(number)]
    named = paragraph("Models: ", *_comma(models)) if models else Markup("")
    parts = page_of(content.record, PageAddress(site.base, number))
    return Page(f"{title_of(content.verb)}: {row.path}", "", [head, named, *parts])


def picture(site: Site, number: int, place: int) -> Picture:
    """The picture of a sample that two models disagree on."""
    row = site.index.row(number)
    if row is None:
        raise missing("record")
    path = inside(site.folder, row.path)
    content = read_record(path).record
    rows = disagreed(content) if content is not None else []
    if not 0 <= place < len(rows):
        raise missing("sample")
    return picture_of(rows[place], path.parent, site.allowed)


def file(site: Site, query: Query) -> Path:
    """A record or a trace, to be saved."""
    name = query.get("path", "")
    path = inside(site.folder, name)
    if not path.is_file() or not path.name.lower().endswith(SENT):
        raise InputError(
            "this file is not given out", where=path.name, fix="records and traces are"
        )
    return path


# -- traces ---------------------------------------------------------------------------------------


def traces(site: Site) -> Page:
    found = [f for f in files_of(site.folder, TRACES) if not site.index.has_record(f.path)]
    rows = [
        [
            link(site.at("file", path=f.path), f.path, download=True),
            when(f.changed),
            byte_size(f.size),
            _to_perfetto(site.at("file", path=f.path), f.path),
        ]
        for f in found[:MOST_LISTED]
    ]
    made = table("Trace files, to be saved", ["file", "written", ">size", "look at it"], rows)
    empty = note("No trace file lies here. sanderling trace MODEL -o model.perfetto-trace")
    about = [
        [link(site.at(f"record/{r.id}"), r.path), r.headline, when(r.changed)]
        for r in site.index.rows(Wanted(verb="trace"))
    ]
    insights = table("What traces tell", ["record", "in short", "written"], about)
    return Page("Traces", "traces", [made or empty, perfetto_note(), insights])


def _to_perfetto(address: str, name: str) -> Markup:
    """`perfetto.js` makes it work; without scripts it stays hidden."""
    words = f"Open {name} in Perfetto"
    return tag(
        "button",
        "Open in Perfetto",
        type="button",
        hidden=True,
        data_perfetto=address,
        data_name=name,
        aria_label=words,
    )
