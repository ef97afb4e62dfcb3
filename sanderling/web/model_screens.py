"""Pages about models: the list, one model with its graph in colours, histories of latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import SanderlingError
from ..measure.baseline import EQUAL, FASTER, SAME, SLOWER, UNSURE
from ..measure.inspection import inspect
from ..measure.sample_statistics import ratio_of_launches
from ..units import byte_size
from .charts import Chart, Series
from .graph_drawing import MOST, Node, add_errors, add_profile, figure_text, nodes_of, svg
from .layout import Page
from .markup import Bar, Markup, facts, link, note, paragraph, table, tag, text
from .record_file import DAMAGE, Record, files_of, inside, read_record
from .record_index import Row, Wanted
from .screens import Query, Site, when
from .view import (
    Figure,
    PageAddress,
    between,
    file_name,
    most,
    plain,
    plural,
    seconds,
    section,
    unit_for,
)
from .views import title_of

COLOURS = {"latency": "latency", "error": "error", "delegate": "delegate"}
POINTS = 200  # of a history
MOST_SERIES = 300
LARGEST_MODEL = 1 << 30  # bytes that are looked at for a page


# -- the list -------------------------------------------------------------------------------------


def models(site: Site) -> Page:
    named = dict(site.index.models())
    lying = {file_name(f.path): f for f in files_of(site.folder, (".tflite",))}
    rows = [
        [
            link(PageAddress(site.base).model(name), text(name, 80)),
            byte_size(lying[name].size) if name in lying else None,
            lying[name].path if name in lying else "not in this folder",
            link(site.at("", model=name), plural(named[name], "record")) if name in named else None,
        ]
        for name in sorted(named.keys() | lying.keys())
    ]
    made = table(
        "Models of this folder and of its records", ["model", ">size", "file", "records"], rows
    )
    return Page("Models", "models", [made or paragraph("There is no model here yet.")])


# -- one model ------------------------------------------------------------------------------------


def model(site: Site, query: Query) -> Page:
    name = query.get("name", "")
    rows = site.index.rows(Wanted(model=name))
    listed = [
        [link(site.at(f"record/{r.id}"), r.path), title_of(r.verb), r.headline, when(r.changed)]
        for r in rows
    ]
    inspection, problem = _inspection(site, name)
    parts: list[Markup] = []
    if inspection is not None:
        parts += [_facts(inspection), *_graph(site, name, query, inspection)]
    elif problem:
        parts.append(paragraph(problem, class_="note"))
    caption = f"Records about it, the newest {len(rows)}"
    columns = ["record", "what", "in short", "written"]
    parts.append(section("Records", table(caption, columns, listed)))
    parts.append(section("Latency", _measured(site, name)))
    return Page(name or "Model", "models", parts)


def _facts(record: Record) -> Markup:
    macs, parameters = record.get("macs"), record.get("parameters")
    return facts(
        [
            ("description", record.get("description")),
            ("file", byte_size(record.get("file_bytes"))),
            ("quantisation", record.get("quantisation")),
            ("parameters", f"{parameters:,}" if isinstance(parameters, int) else None),
            ("MACs", f"{macs:,}" if isinstance(macs, int) else None),
        ]
    )


def _inspection(site: Site, name: str) -> tuple[Record | None, str]:
    """The graph: of the file, if it lies in the folder; else of a record of `inspect`."""
    for found in files_of(site.folder, (".tflite",)):
        if file_name(found.path) != name:
            continue
        if found.size > LARGEST_MODEL:
            return None, "The file is too large for its graph to be drawn here."
        try:
            return _looked_at(inside(site.folder, found.path), found.changed), ""
        except (SanderlingError, OSError, MemoryError) as error:
            return None, f"The file cannot be read: {error}"
    record = _newest(site, "inspect", name)
    if record is not None:
        return record, ""
    return None, "Its graph is not known: the file is not in this folder."


@lru_cache(maxsize=8)
def _looked_at(path: Path, changed: int) -> Record:
    """`changed` makes another entry of a file that was written anew."""
    return inspect(path)


def _newest(
    site: Site, verb: str, name: str, fits: Callable[[Record], bool] = lambda r: True
) -> Record | None:
    """The newest record of a verb about a model that fits."""
    for row in site.index.newest(verb, name)[:10]:
        record = _read(site, row)
        try:
            if record is not None and fits(record):
                return record
        except DAMAGE:
            continue
    return None


def _read(site: Site, row: Row) -> Record | None:
    try:
        return read_record(inside(site.folder, row.path)).record
    except SanderlingError:  # it is gone
        return None


def _graph(site: Site, name: str, query: Query, inspection: Record) -> list[Markup]:
    try:
        nodes = nodes_of(inspection["graphs"][0])
        known = _figures(site, name, nodes)
    except DAMAGE as error:
        return [paragraph(f"Its graph cannot be drawn: {error}", class_="problem")]
    asked = query.get("colour", "")
    by = asked if asked in COLOURS else next((c for c in COLOURS if known[c]), "latency")
    drawn = svg(nodes, by, f"Graph of {name}, coloured by {by}")
    return [
        section(
            "Graph",
            _switch(site, name, by, known),
            _legend(nodes, by) if known[by] else note(MAKE[by]),
            tag("div", drawn, class_="wide drawn", tabindex=0, role="region", aria_label="Graph"),
            note(f"The first {MOST} of {len(nodes)} ops are drawn.") if len(nodes) > MOST else None,
            note(SHARED) if by == "latency" and known[by] else None,
            _hottest(nodes),
        )
    ]


SHARED = "Ops that are computed in one step have equal shares of its median time."
# How figures come about that are not there yet.
MAKE = {
    "latency": "No profile of this model is here: sanderling profile MODEL --json profile.json",
    "error": "No difference by layer is here: sanderling diff A B --per-tensor --json diff.json",
    "delegate": "No profile of this model is here: sanderling profile MODEL --json profile.json",
}


def _figures(site: Site, name: str, nodes: list[Node]) -> dict[str, bool]:
    """Put what records know of the nodes into them, and say what is known."""
    profile = _newest(site, "profile", name)
    if profile is not None:
        add_profile(nodes, profile)
    diff = _newest(site, "diff", name, lambda r: _is_test(r, name))
    if diff is not None:
        add_errors(nodes, diff["layers"]["layers"])
    return {
        "latency": any(n.latency is not None for n in nodes),
        "error": any(n.error is not None for n in nodes),
        "delegate": any(n.delegate for n in nodes),
    }


def _is_test(record: Record, name: str) -> bool:
    return bool(record.get("layers")) and file_name(record["test"]["model"]) == name


def _switch(site: Site, name: str, by: str, known: Mapping[str, bool]) -> Markup:
    items = [
        link(
            site.at("model", name=name, colour=c) + "#content",
            COLOURS[c] if known[c] else f"{COLOURS[c]} (not known)",
            aria_current="true" if c == by else None,
        )
        for c in COLOURS
    ]
    return tag("nav", tag("span", "Colour by"), *items, class_="row", aria_label="Colours")


def _legend(nodes: list[Node], by: str) -> Markup:
    if by == "delegate":
        names = sorted({n.delegate for n in nodes if n.delegate})
        items = [tag("li", n, class_=f"key kind-{i % 8}") for i, n in enumerate(names)]
        return tag("ul", *items, class_="legend")
    top = most(n.latency if by == "latency" else n.error for n in nodes)
    largest = seconds(top) if by == "latency" else f"{top:.2g}"
    scale = [tag("li", "", class_=f"key heat-{i}") for i in range(10)]
    return tag("ul", tag("li", "0"), *scale, tag("li", largest), class_="legend")


def _hottest(nodes: list[Node]) -> Markup:
    """The same figures as a table, for who does not see colours."""
    known = [n for n in nodes if n.latency is not None or n.error is not None]
    known.sort(key=lambda n: (-(n.latency or 0.0), -(n.error or 0.0)))
    top = most(n.latency for n in known)
    rows = [
        [
            n.index,
            n.type,
            text(n.name, 60),
            Bar(n.latency, top, figure_text(n, "latency")),
            None if n.error is None else f"{n.error:.3g}",
            n.delegate,
        ]
        for n in known[:50]
    ]
    columns = [">op", "type", "tensor", "latency", ">error", "runs on"]
    return table("Ops with the largest figures", columns, rows)


# -- histories ------------------------------------------------------------------------------------


def _measured(site: Site, name: str) -> Markup:
    settings = [(s, n) for m, s, n in site.index.series() if m == name]
    rows = [
        [link(site.at("history", model=name, setting=s), s), n] for s, n in settings[:MOST_SERIES]
    ]
    return table("Settings that were measured", ["setting", ">times"], rows)


def history(site: Site, query: Query) -> Page:
    name, setting = query.get("model", ""), query.get("setting", "")
    if name and setting:
        return _history(site, name, setting)
    series = site.index.series()
    rows = [_series_row(site, *one) for one in series[:MOST_SERIES]]
    columns = ["model", "setting", ">times", ">latest", "against the time before", "ratio"]
    made = table("Latencies that were measured, most often first", columns, rows)
    empty = paragraph("No benchmark is here yet: sanderling bench MODEL --json bench.json")
    return Page("History", "history", [made or empty])


def _series_row(site: Site, name: str, setting: str, count: int) -> list[object]:
    points = site.index.history(name, setting, 2)
    latest = points[-1][1]
    change = compared(points[0][1], latest) if len(points) == 2 else None
    return [
        link(site.at("history", model=name, setting=setting), text(name, 60)),
        setting,
        count,
        seconds(latest.median),
        _verdict(change),
        _ratio(change),
    ]


def _history(site: Site, name: str, setting: str) -> Page:
    points = site.index.history(name, setting, POINTS)
    if not points:
        return Page("History", "history", [paragraph("Nothing was measured under this name.")])
    places = [float(i) for i in range(1, len(points) + 1)]
    figures = [f for _, f in points]
    factor, unit = unit_for(f.median for f in figures)
    chart = Chart(
        f"Median latency of {name}",
        "measurement, oldest first",
        unit,
        [
            Series(
                setting,
                places,
                [factor * f.median for f in figures],
                [None if f.low is None else factor * f.low for f in figures],
                [None if f.high is None else factor * f.high for f in figures],
                [f"{row.path}, {when(row.changed)}" for row, _ in points],
            )
        ],
        counts=True,
    )
    changes = [None, *(compared(a, b) for a, b in pairwise(figures))]
    top = most(f.high or f.median for f in figures)
    rows = [
        [
            link(site.at(f"record/{row.id}"), text(row.path, 60)),
            when(row.changed),
            Bar(f.median, top, seconds(f.median), f.low, f.high),
            between(f.low, f.high, seconds),
            _verdict(change),
            _ratio(change),
        ]
        for (row, f), change in reversed(list(zip(points, changes, strict=True)))
    ]
    columns = ["record", "written", "median", "95 % interval", "against the time before", "ratio"]
    return Page(
        f"History of {name}",
        "history",
        [
            facts(
                [("model", link(PageAddress(site.base).model(name), name)), ("setting", setting)]
            ),
            chart.markup(),
            table("Measurements, newest first", columns, rows),
        ],
    )


Change = tuple[str, Any]  # a verdict as `bench --baseline` words it, and the ratio


def compared(before: Figure, after: Figure) -> Change | None:
    """The change from one measurement to the next, as `bench --baseline` judges it."""
    if not before.rounds or not after.rounds:
        return None
    sides = [[[[m] for m in launch] for launch in side.rounds or ()] for side in (after, before)]
    found = ratio_of_launches(sides[0], sides[1], paired=False)
    if found.low > 1 or found.high < 1:
        return (SLOWER if found.low > 1 else FASTER), found
    is_same = found.low >= 1 / (1 + EQUAL) and found.high <= 1 + EQUAL
    return (SAME if is_same else UNSURE), found


def _verdict(change: Change | None) -> Markup | None:
    kinds = {SLOWER: "bad", FASTER: "good"}
    return tag("span", change[0], class_=kinds.get(change[0])) if change else None


def _ratio(change: Change | None) -> str | None:
    if change is None:
        return None
    found = change[1]
    return f"{plain(found.value)} ({between(found.low, found.high, plain)})"
