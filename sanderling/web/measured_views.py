"""Pages of what was measured: bench, benchmark_model, profile, trace, inspect, run, devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

from ..measure.record import Result
from ..measure.sample_statistics import median_interval
from .markup import Bar, Markup, facts, heading, joined, link, listed, note, paragraph, table
from .record_file import Record
from .view import (
    Figure,
    PageAddress,
    Parts,
    View,
    between,
    byte_size,
    file_name,
    machine_of,
    most,
    notes_of,
    plain,
    plural,
    seconds,
    section,
    setting_text,
    truncated,
    warnings_of,
)

SHOWN = 300  # rows of a table


# -- results as bench, benchmark_model and tune write them ----------------------------------------


def figure_of(result: Mapping[str, Any]) -> Figure | None:
    """The latency of one result, with the interval that repetitions would have."""
    read = Result.from_json(result)
    found = result.get("summary")
    if not found:
        return None
    name = file_name(read.model)
    rounds = [[median(r) for r in launch if r] for launch in read.by_launch]
    rounds = [launch for launch in rounds if launch]
    if not rounds:
        return Figure(name, read.setting.name, float(found["median"]))
    interval = median_interval([[[m] for m in launch] for launch in rounds])
    return Figure(
        name, read.setting.name, float(found["median"]), interval.low, interval.high, rounds
    )


def figures_of(results: list[Mapping[str, Any]]) -> list[Figure]:
    return [f for r in results[:SHOWN] if (f := figure_of(r)) is not None]


def result_table(results: list[Mapping[str, Any]], address: PageAddress, caption: str) -> Markup:
    """A row for each model and setting; bars are medians, lines their intervals."""
    results = results[:SHOWN]
    known = {id(r): figure_of(r) for r in results}
    top = most(f.high or f.median for f in known.values() if f)
    rows = [_result_row(r, known[id(r)], top, address) for r in results]
    columns = ["model", "setting", "median", "95 % interval", ">p95", ">init", ">first", ">memory"]
    return table(caption, columns, rows)


def _result_row(
    result: Mapping[str, Any], figure: Figure | None, top: float, address: PageAddress
) -> Any:
    name = file_name(result["model"])
    model = link(address.model(name), name)
    if figure is None:
        return [model, result["name"], result.get("error") or "no samples", *[None] * 5]
    memory = result["memory"]
    grown = memory.get("peak.runs", 0) - memory.get("start.rss", 0)
    return [
        model,
        figure.setting,
        Bar(figure.median, top, seconds(figure.median), figure.low, figure.high),
        between(figure.low, figure.high, seconds),
        seconds(result["summary"]["p95"]),
        seconds(result["init"]),
        seconds(result["first"]),
        byte_size(grown) if grown > 0 else None,
    ]


def fastest(results: list[Mapping[str, Any]]) -> str:
    done = [r for r in results if r.get("summary")]
    if not done:
        return "no setting could be measured"
    best = min(done, key=lambda r: r["summary"]["median"])
    more = f", fastest of {len(done)}: {best['name']}" if len(done) > 1 else f", {best['name']}"
    return f"{seconds(best['summary']['median'])}{more}"


# -- bench ----------------------------------------------------------------------------------------

CHANGES = ("model", "setting", "verdict", ">before", ">after", ">ratio", "95 % interval")


def _bench(record: Record, address: PageAddress) -> Parts:
    return [
        result_table(record["results"], address, "Latency of each model and setting"),
        section("Ratios", _comparisons(record["comparisons"])),
        section("Against the baseline", _changes(record)),
        section("Recommendations", _recommendations(record["recommendations"])),
        warnings_of(record),
        machine_of(record),
    ]


def _comparisons(rows: list[Mapping[str, Any]]) -> Markup:
    return table(
        "Ratios of settings, measured in turns",
        ["model", "setting", "against", ">ratio", "95 % interval"],
        [
            [
                file_name(c["model"]),
                c["setting"],
                c["against"],
                plain(c["ratio"]),
                between(c["low"], c["high"], plain),
            ]
            for c in rows
        ],
    )


def _changes(record: Record) -> Markup:
    """bench --baseline keeps what it found under this name."""
    rows = record.get("changes") or (record.get("baseline") or {}).get("changes") or []
    return table("Changes since the baseline", CHANGES, [change_row(c) for c in rows])


def change_row(change: Mapping[str, Any]) -> list[object]:
    ratio = change.get("ratio")
    return [
        file_name(change["model"]),
        change["setting"],
        change["verdict"],
        seconds(change.get("before")),
        seconds(change.get("after")),
        None if ratio is None else plain(ratio),
        between(change.get("low"), change.get("high"), plain),
    ]


def _recommendations(rows: list[Mapping[str, Any]]) -> Markup:
    said = [f"{file_name(r['model'])}: {r['setting']}. {r['why']}" for r in rows]
    return listed(said) if said else Markup("")


TOOL = "benchmark_model"  # measures otherwise: it has histories of its own


# -- benchmark_model ------------------------------------------------------------------------------


def _tool(record: Record, address: PageAddress) -> Parts:
    return [
        result_table(record["runs"], address, "Runs as TensorFlow Lite's tool counts them"),
        section("Flags", facts((k, v) for k, v in record["parameters"].items())),
        warnings_of(record),
    ]


# -- profile --------------------------------------------------------------------------------------


def _profile(record: Record, address: PageAddress) -> Parts:
    steps = sorted(record["steps"], key=lambda s: -s["median_ms"])
    name = file_name(record["model"])
    return [
        facts(
            [
                ("setting", setting_text(record["setting"])),
                ("a run", seconds(record["whole"]["median"] / 1e3)),
                ("counted by", record["method"]),
                ("graph", link(f"{address.model(name)}&colour=latency", "drawn in colours")),
            ]
        ),
        section("Advice", listed(record["advice"]) if record["advice"] else None),
        section("Steps, slowest first", _steps(steps), truncated(steps, SHOWN, "steps")),
        section("By type", _types(record["by_type"])),
        notes_of(record),
        machine_of(record),
    ]


def _steps(steps: list[Mapping[str, Any]]) -> Markup:
    top = most(s["median_ms"] for s in steps)
    return table(
        "Steps of a run",
        ["step", "kernel", "runs on", "time", ">share", ">of the machine's limit", "bound by"],
        [
            [
                f"{s['type']} {s['name']}",
                s["kernel"],
                s["delegate"],
                Bar(s["median_ms"], top, seconds(s["median_ms"] / 1e3)),
                f"{s['percent']:.1f} %",
                f"{s['share']:.0%}" if s.get("share") is not None else None,
                s.get("bound"),
            ]
            for s in steps[:SHOWN]
        ],
    )


def _types(rows: list[Mapping[str, Any]]) -> Markup:
    top = most(r["median_ms"] for r in rows)
    return table(
        "Time by type of step",
        ["type", ">steps", "time", ">share"],
        [
            [
                r["type"],
                r["count"],
                Bar(r["median_ms"], top, seconds(r["median_ms"] / 1e3)),
                f"{r['percent']:.1f} %",
            ]
            for r in rows
        ],
    )


# -- trace ----------------------------------------------------------------------------------------

PERFETTO = "https://ui.perfetto.dev"


def perfetto_note() -> Markup:
    """How a trace is looked at. No file goes to another page but by a click."""
    return note(
        "To see a trace in time, open it in ",
        link(PERFETTO, "Perfetto's page", rel="noopener noreferrer", target="_blank"),
        ", which works in your browser and uploads nothing: by the button beside a trace file, or "
        "save the file and choose it there.",
    )


def _trace(record: Record, address: PageAddress) -> Parts:
    said = [joined([i["what"], ". ", i["why"], ". ", i["do"], "."]) for i in record["insights"]]
    return [
        facts(
            [
                ("recorded", f"{record['slices']} slices on {', '.join(record['threads'])}"),
                ("load", seconds(record["load_s"])),
                ("plan and compile", seconds(record["plan_s"])),
                ("first run", seconds(record["first_run_s"])),
                ("later runs", seconds(record["later_run_s"])),
            ]
        ),
        section("What stands out", listed(said) if said else paragraph("Nothing.")),
        paragraph(link(f"{address.base}/traces", "Trace files of this folder")),
        perfetto_note(),
    ]


# -- inspect, run, devices ------------------------------------------------------------------------


def _inspect(record: Record, address: PageAddress) -> Parts:
    name = file_name(record["source"])
    return [
        facts(
            [
                ("model", link(address.model(name), name)),
                ("description", record["description"]),
                ("file", byte_size(record["file_bytes"])),
                ("quantisation", record["quantisation"]),
                ("parameters", f"{record['parameters']:,}"),
                ("MACs", f"{record['macs']:,}" if record["macs"] is not None else None),
            ]
        ),
        *(_types_of(graph) for graph in record["graphs"]),
    ]


def _types_of(graph: Mapping[str, Any]) -> Markup:
    top = most(float(t["macs"] or 0) for t in graph["types"])
    rows = [
        [
            t["name"],
            t["count"],
            Bar(float(t["macs"] or 0), top, f"{t['macs'] or 0:,}"),
            byte_size(t["bytes_read"]),
            byte_size(t["bytes_written"]),
        ]
        for t in graph["types"]
    ]
    title = f"Graph {graph['name']}"
    columns = ["type", ">ops", "MACs", ">read", ">written"]
    return joined([heading(title), table(f"Ops of {title}", columns, rows)])


def _run(record: Record, address: PageAddress) -> Parts:
    rows = [
        [name, f"{o['type']}{o['shape']}", o["min"], o["max"], o["mean"]]
        for name, o in record["outputs"].items()
    ]
    columns = ["output", "type", ">least", ">largest", ">mean"]
    return [
        facts([("a run", seconds(record["seconds"]))]),
        table("Outputs", columns, rows),
    ]


def _devices(record: Record, address: PageAddress) -> Parts:
    gpus = [[g["number"], g["name"], g["interface"], g["driver"]] for g in record["gpus"]]
    phones = [list(map(str, p.values())) for p in record["phones"]]
    names = list(record["phones"][0]) if phones else []
    return [
        table("GPUs and what else has a driver", ["number", "name", "interface", "driver"], gpus),
        table("Phones", names, phones),
        section("Remarks", listed(record["remarks"]) if record["remarks"] else None),
    ]


VIEWS = {
    "bench": View(
        "Benchmark",
        lambda r: r["models"],
        lambda r: fastest(r["results"]),
        _bench,
        lambda r: figures_of(r["results"]),
    ),
    "benchmark_model": View(
        "TensorFlow Lite's benchmark",
        lambda r: [r["model"]],
        lambda r: fastest(r["runs"]),
        _tool,
        lambda r: [replace(f, setting=f"{TOOL}, {f.setting}") for f in figures_of(r["runs"])],
    ),
    "profile": View(
        "Profile",
        lambda r: [r["model"]],
        lambda r: f"{seconds(r['whole']['median'] / 1e3)}, {plural(len(r['steps']), 'step')}",
        _profile,
    ),
    "trace": View(
        "Trace",
        lambda r: [r["of"]],
        lambda r: (
            f"{plural(len(r['insights']), 'insight')}, later runs {seconds(r['later_run_s'])}"
        ),
        _trace,
    ),
    "inspect": View(
        "Inspection",
        lambda r: [r["source"]],
        lambda r: f"{r['quantisation']}, {byte_size(r['file_bytes'])}",
        _inspect,
    ),
    "run": View(
        "Run",
        lambda r: [r["model"]],
        lambda r: f"{plural(len(r['outputs']), 'output')}, {seconds(r['seconds'])}",
        _run,
    ),
    "devices": View(
        "Devices",
        lambda r: [],
        lambda r: f"{len(r['gpus'])} GPUs, {len(r['phones'])} phones",
        _devices,
    ),
}
