"""A profile as other programs and people read it: CSV, Model Explorer's node data, a page."""

from __future__ import annotations

import csv
import html
import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from .. import pages, plots
from ..progress import plural
from .profiling import share_text

Record = dict[str, Any]

# TensorFlow Lite's columns, then ours; what stands in a step's record under another name.
COLUMNS = {
    "node type": "type", "first": "first_ms", "avg_ms": "ms", "%": "percent", "cdf%": "cdf",
    "mem KB": "mem_kb", "times called": "times_called", "name": "name", "step": "index",
    "part": "part", "delegate": "delegate", "kernel": "kernel", "nodes": "nodes", "helps": "helps",
    "opaque": "opaque",
    "min_ms": "min_ms", "median_ms": "median_ms", "max_ms": "max_ms", "std_ms": "std_ms",
    "imbalance": "imbalance", "type of products": "kind", "zeros": "zeros",
    "macs": "macs", "bytes": "bytes",
    "weight bytes": "bytes_weights", "read bytes": "bytes_read", "written bytes": "bytes_written",
    "gops": "gops", "gb_s": "gb_s", "intensity": "intensity", "limit_ms": "limit_ms",
    "share of roofline": "share", "bound": "bound", "memory level": "level",
}  # fmt: skip


def to_csv(record: Record) -> str:
    """One header, one row a step; then a row for each of what is no step, under its name."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in record["steps"]:
        writer.writerow([_cell(row[key]) for key in COLUMNS.values()])
    for row in record["others"]:
        row = row | {"type": "(no step)"}
        writer.writerow([_cell(row.get(key)) for key in COLUMNS.values()])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else value


# -- Model Explorer -----------------------------------------------------------------------------

GRADIENT = [
    {"stop": 0, "bgColor": "#ffffff"},
    {"stop": 0.1, "bgColor": "#fff3b0"},
    {"stop": 0.5, "bgColor": "#f4a261"},
    {"stop": 1, "bgColor": "#d62828"},
]


def node_data(record: Record) -> Record:
    """Milliseconds by node, for Model Explorer's "Add per-node data".

    Its node ids are the places of ops in the file. A step's time stands at its main op, that of
    an opaque part at its last; the other ops have 0, so that sums over groups of the graph stay
    true.
    """
    times: dict[int, float] = {}
    for row in record["steps"]:
        owner = record["steps"][row["helps"]] if row["helps"] is not None else row
        for place in owner["nodes"]:
            times.setdefault(place, 0.0)
        if owner["nodes"]:
            times[main_node(record, owner)] += row["ms"]
    results = {str(place): {"value": ms} for place, ms in sorted(times.items())}
    return {record["graph"] or "main": {"results": results, "gradient": GRADIENT}}


def main_node(record: Record, row: Record) -> int:
    """The node that a step is called after."""
    named: list[int] = [n for n in row["nodes"] if record["nodes"][n]["name"] == row["name"]]
    return named[0] if named else int(row["nodes"][-1])


def node_data_json(record: Record) -> str:
    return json.dumps(node_data(record), indent=1) + "\n"


# -- the picture --------------------------------------------------------------------------------


def plot(record: Record, path: str | Path) -> bytes:
    """The roofline as the bytes of a .png, .svg or .html file."""
    if plots.kind_of(path) == ".html":
        return to_html(record).encode()
    with plots.figure(size=(10, 6.6)) as (figure, axes):
        draw(record, figure, axes)
        return plots.as_file(figure, path, _title(record))


def points(record: Record) -> list[Record]:
    """Steps with a place in the plot: they multiply, and touch memory."""
    return [r for r in record["steps"] if r["macs"] and r["bytes"] and r["gops"] > 0]


NAMED = 8  # spots with their numbers in the picture: those that take the most time


def draw(record: Record, figure: Any, axes: Any) -> None:
    shown, roof = points(record), _drawn_roof(record)
    low, high = _span([r["intensity"] for r in shown], roof)
    kinds = list(dict.fromkeys(r["kind"] for r in shown)) or ["f32"]
    if roof is not None:
        _roofs(axes, roof, kinds, low, high)
    total = sum(r["median_ms"] for r in record["steps"]) or 1.0
    colours = dict(zip(kinds, plots.COLOURS, strict=False))
    for row in sorted(shown, key=lambda r: -r["median_ms"]):  # small ones on top
        colour = colours.get(row["kind"], plots.COLOURS[-1])
        spot = axes.scatter(
            [row["intensity"]],
            [row["gops"]],
            [_area(row, total)],
            color=colour,
            alpha=0.55,
            edgecolors="black",
            linewidths=0.6,
            zorder=3,
        )
        spot.set_gid(_mark(row))  # the name of its group in an .svg
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("operations for each byte touched (2 a multiply-add)")
    axes.set_ylabel("10⁹ operations a second")
    axes.set_title(_title(record), fontsize=10, wrap=True)
    if roof is not None:
        plots.legend_below(axes, 3)
    slowest = sorted(range(len(shown)), key=lambda i: -shown[i]["median_ms"])[:NAMED]
    spots = [plots.Spot(r["intensity"], r["gops"], math.sqrt(_area(r, total)) / 2) for r in shown]
    plots.label_spots(figure, axes, spots, {i: f"#{shown[i]['index']}" for i in slowest})


def _drawn_roof(record: Record) -> Record | None:
    """The machine's, or that of the device that all steps run on."""
    delegates = {row["delegate"] for row in points(record)}
    devices: dict[str, Record] = record["device_rooflines"]
    if len(delegates) == 1 and delegates <= set(devices):
        return devices[next(iter(delegates))]
    found: Record | None = record["roofline"]
    return found


def _area(row: Record, total: float) -> float:
    """Return the area of a step's spot, in square points."""
    return 20 + 2500 * float(row["median_ms"]) / total


def _roofs(axes: Any, roof: Record, kinds: Sequence[str], low: float, high: float) -> None:
    ceiling = max(2 * roof["peaks"].get(k, roof["peaks"]["f32"]) / 1e9 for k in kinds)
    for level, style in zip(roof["levels"], ("-", "--", "-.", ":"), strict=False):
        speed = level["bandwidth"] / 1e9
        end = min(high, ceiling / speed)
        if end > low:
            axes.plot(
                [low, end],
                [low * speed, end * speed],
                style,
                color="#555",
                linewidth=1.2,
                label=f"{level['name']}: {speed:.3g} GB/s",
            )
    for colour, kind in zip(plots.COLOURS, kinds, strict=False):
        peak = 2 * roof["peaks"].get(kind, roof["peaks"]["f32"]) / 1e9
        axes.plot(
            [low, high],
            [peak, peak],
            color=colour,
            linewidth=1.5,
            label=f"peak {kind}: {peak:.3g} G/s",
        )


def _span(values: Sequence[float], roof: Record | None) -> tuple[float, float]:
    """A little more than the steps take, and the ridge too."""
    known = [v for v in values if v > 0]
    if roof is not None:
        known += [2 * roof["peaks"]["f32"] / level["bandwidth"] for level in roof["levels"]]
    known = known or [1.0]
    return (
        2.0 ** (math.floor(math.log2(min(known))) - 1),
        2.0 ** (math.ceil(math.log2(max(known))) + 1),
    )


def _title(record: Record) -> str:
    setting = record["setting"]
    return (
        f"{Path(record['model']).name or record['graph']}, {setting['engine']}, "
        f"{setting['threads']} thread{'s' * (setting['threads'] > 1)}: "
        f"median {record['whole']['median']:.3g} ms"
    )


# -- the page -----------------------------------------------------------------------------------


def to_html(record: Record) -> str:
    """A page that needs nothing but itself: the roofline with a title on every step, advice, and
    the tables."""
    parts = [
        pages.paragraph(" ".join(record["advice"])),
        pages.paragraph(facts_line(record), note=True),
        *(pages.paragraph(note, note=True) for note in record["notes"]),
        pages.heading("Roofline"),
        _svg(record),
        pages.paragraph(
            "A spot is a step, as large as its share of the time; those that take "
            "the most have their number, # in the tables; point at a spot for its "
            "name. A step under the sloping part of its line is limited by "
            "that level of memory, under the flat part by arithmetic. The distance "
            "to the line is what a better kernel could win.",
            note=True,
        ),
        pages.heading("By type"),
        _columns(_TYPES, record["by_type"]),
        pages.heading("Top by time"),
        _table(record, summed(sorted(record["steps"], key=lambda r: -r["median_ms"])[:10])),
        pages.heading("Run order"),
        _table(record, record["steps"]),
        pages.heading("What is no step"),
        _columns(_OTHERS, record["others"]),
        pages.heading("What the columns are"),
        *(pages.paragraph(text, note=True) for text in (SHARES, *_GLOSSARY)),
    ]
    return pages.page(f"Profile: {_title(record)}", parts)


def facts_line(record: Record) -> str:
    whole, roof = record["whole"], record["roofline"]
    text = (
        f"{record['runs']} runs: mean {whole['mean']:.4g} ms, median {whole['median']:.4g}, p5 "
        f"{whole['p5']:.4g}, p95 {whole['p95']:.4g}, min {whole['min']:.4g}, max "
        f"{whole['max']:.4g}; first {record['first_ms']:.4g} ms. Of the "
        f"typical run {record['accounted']:.1%} are accounted for. Times: "
        f"{record['method']}."
    )
    if roof is not None:
        text += f" {_roof_line(roof, 'thread')}"
    return text + "".join(f" {_roof_line(r, 'unit')}" for r in record["device_rooflines"].values())


def _roof_line(roof: Record, unit: str) -> str:
    peaks = ", ".join(f"{k} {2 * v / 1e9:.3g}" for k, v in roof["peaks"].items())
    levels = ", ".join(f"{v['name']} {v['bandwidth'] / 1e9:.3g}" for v in roof["levels"])
    count = roof["threads"]
    who = f"{roof['cpu']}, {plural(count, unit)}" if count else roof["cpu"]
    return f"{who}: peaks in G operations/s: {peaks}; bandwidths in GB/s: {levels}."


# What is a mean and what a median: said wherever both stand.
SHARES = (
    "Shares (%, and their running sum) are of the mean run, as TensorFlow Lite's; operations a "
    "second, the share of the roof, the order of the slowest steps and the advice go by medians, "
    "which a run that was interrupted does not change."
)
_GLOSSARY = (
    "mean, median, min, std: milliseconds over the runs; first: in the first run. sum of %: with "
    "the rows above. mem KB: what the step touches. MACs: multiply-adds, in millions. G/s: 10⁹ "
    "operations a second, two for each multiply-add. GB/s: 10⁹ bytes touched a second.",
    "of roof: the least time that the machine allows, divided by the median; bound: what sets that "
    "least time, and level the memory that the bytes come from. wait: the share of a step's time "
    "that the average thread waits for the slowest.",
)
_HTML = {
    ">#": "index", "type": "type", ">median ms": "median_ms", ">mean ms": "ms", ">%": "percent",
    ">sum of %": "cdf", ">of roof": "share", "bound": "bound", "level": "level",
    ">MACs, M": "macs", ">G/s": "gops", ">GB/s": "gb_s", ">ops/byte": "intensity",
    ">mem KB": "mem_kb", ">min ms": "min_ms", ">std ms": "std_ms", ">first ms": "first_ms",
    ">wait": "imbalance", "~kernel": "kernel", "~zeros": "zeros", "on": "delegate", "~name": "name",
}  # fmt: skip
_TYPES = {"type": "type", ">count": "count", ">mean ms": "ms", ">median ms": "median_ms",
          ">%": "percent", ">sum of %": "cdf", ">MACs, M": "macs", ">G/s": "gops"}  # fmt: skip
_OTHERS = {"what": "name", ">mean ms": "ms", ">median ms": "median_ms", ">%": "percent"}
# Digits behind the point: the same for all rows, so that points stand below each other.
_DIGITS = {"first_ms": 4, "ms": 4, "median_ms": 4, "min_ms": 4, "std_ms": 4, "percent": 2, "cdf": 2,
           "mem_kb": 1, "gops": 1, "gb_s": 2, "intensity": 1}  # fmt: skip
_BLANK = {"", "-", "0%"}


def summed(rows: Sequence[Record]) -> list[Record]:
    """The running sum of the shares in this order."""
    sums = accumulate(row["percent"] for row in rows)
    return [row | {"cdf": total} for row, total in zip(rows, sums, strict=True)]


def _table(record: Record, rows: Sequence[Record]) -> str:
    names = [" ".join([row["name"], *fused_names(record, row)]) for row in rows]
    return _columns(_HTML, [r | {"name": n} for r, n in zip(rows, names, strict=True)])


def _columns(columns: Mapping[str, str], rows: Sequence[Record]) -> str:
    """Return the table without its empty columns."""
    cells = {head: [_shown(key, row[key]) for row in rows] for head, key in columns.items()}
    kept = {head: of for head, of in cells.items() if set(of) - _BLANK}
    return pages.html_table(list(kept), list(zip(*kept.values(), strict=True)))


def _shown(key: str, value: Any) -> str:
    if key == "macs":
        return f"{value / 1e6:.3f}" if value else "-"
    if key == "share":
        return share_text(value)
    if key == "imbalance":
        return "-" if value is None else f"{value:.0%}"
    if key in _DIGITS:
        return f"{value:.{_DIGITS[key]}f}" if value else "-"
    return "-" if value is None else str(value)


def fused_names(record: Record, row: Record) -> list[str]:
    """The other ops of a step: `+ ADD [name]:10`. Of an opaque part they are all of its ops."""
    if len(row["nodes"]) < 2:
        return []
    main, nodes = None if row["opaque"] else main_node(record, row), record["nodes"]
    return [f"+ {nodes[n]['type']} {nodes[n]['name']}" for n in row["nodes"] if n != main]


def _svg(record: Record) -> str:
    """The figure with a title on every spot, which browsers show under the pointer."""
    with plots.figure(size=(7, 5.6)) as (figure, axes):
        draw(record, figure, axes)
        text = plots.inline(figure)
    for row in points(record):
        group = f'<g id="{_mark(row)}">'
        title = html.escape(_hover(record, row))
        text = text.replace(group, f"{group}<title>{title}</title>", 1)
    return text


def _mark(row: Record) -> str:
    return f"step-{row['index']}"


def _hover(record: Record, row: Record) -> str:
    share = (
        ""
        if row["share"] is None
        else f", {share_text(row['share'])} of the roofline ({row['bound']})"
    )
    figures = (
        f"{row['ms']:.4g} ms ({row['percent']:.1f} %), {row['gops']:.4g} {row['unit']}, "
        f"{row['intensity']:.3g} operations a byte{share}"
    )
    lines = [f"{row['type']} {row['name']}", *fused_names(record, row), figures]
    return "\n".join([*lines, f"kernel {row['kernel']}"])
