"""Pages of choices: compare, tune, advise, and what quantize --suggest says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..units import MIB
from .charts import Chart, Series
from .markup import Bar, Markup, facts, link, listed, paragraph, table, tag
from .measured_views import figures_of, result_table
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
    plain,
    plural,
    seconds,
    section,
    unit_for,
    warnings_of,
)

Rows = list[Mapping[str, Any]]


# -- compare --------------------------------------------------------------------------------------


def _compare(record: Record, address: PageAddress) -> Parts:
    rows = record["candidates"]
    left = record.get("left_out") or {}
    unit = unit_for(r["latency"] for r in rows)
    return [
        facts([("task", f"{record['task']}, {record['samples']} samples")]),
        section("The answer", _answer(record.get("answer"))),
        _front("Accuracy against latency", rows, "latency", *unit, record["headline"]),
        _front("Accuracy against size", rows, "size", *_bytes(rows), record["headline"]),
        section("Candidates", _candidates(rows, record["headline"], address)),
        section("Left out", listed(f"{k}: {v}" for k, v in left.items()) if left else None),
        warnings_of(record),
        machine_of(record),
    ]


def _answer(answer: Mapping[str, Any] | None) -> Markup | None:
    return facts((k, _short(v)) for k, v in answer.items()) if answer else None


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _front(title: str, rows: Rows, axis: str, factor: float, unit: str, figure: str) -> Markup:
    """Two series: those that nobody beats, joined, and the others."""
    series = [
        _points("on the front", [r for r in rows if r["is_on_front"]], axis, factor, True),
        _points("beaten", [r for r in rows if not r["is_on_front"]], axis, factor, False),
    ]
    return Chart(title, f"{axis}, {unit}", figure, [s for s in series if s.x]).markup()


def _bytes(rows: Rows) -> tuple[float, str]:
    """The unit in which the sizes are no long fractions."""
    large = (most(r["size"] for r in rows) or 0) >= MIB
    return (1 / MIB, "MiB") if large else (2.0**-10, "KiB")


def _points(name: str, rows: Rows, axis: str, factor: float, is_line: bool) -> Series:
    ordered = sorted(rows, key=lambda r: (r[axis], r["accuracy"]))
    ends = [r.get("accuracy_interval") or (None, None) for r in ordered]
    return Series(
        name,
        [r[axis] * factor for r in ordered],
        [r["accuracy"] for r in ordered],
        [e[0] for e in ends],
        [e[1] for e in ends],
        [f"{r['model']}, {r['setting']}" for r in ordered],
        is_line,
    )


def _candidates(rows: Rows, headline: str, address: PageAddress) -> Markup:
    top = most(r["latency"] for r in rows)
    shown = [
        [
            link(address.model(file_name(r["path"])), r["model"]),
            r["setting"],
            r["accuracy"],
            _interval(r.get("accuracy_interval")),
            Bar(r["latency"], top, seconds(r["latency"]), *(r.get("latency_interval") or ())),
            byte_size(r["size"]),
            byte_size(r["memory"]),
            "on the front" if r["is_on_front"] else f"beaten by {', '.join(r['beaten_by'])}",
        ]
        for r in sorted(rows, key=lambda r: -r["accuracy"])
    ]
    columns = ["model", "setting", f">{headline}", "95 % interval", "latency", ">size", ">memory",
               "verdict"]  # fmt: skip
    return table("Candidates, most accurate first", columns, shown)


def _interval(ends: tuple[float, float] | None) -> str | None:
    return between(*ends, lambda v: f"{v:.4f}") if ends else None


def _chosen(record: Record) -> str:
    front = sum(1 for r in record["candidates"] if r["is_on_front"])
    of = plural(len(record["candidates"]), "candidate")
    return f"{of}, {front} on the front"


# -- tune -----------------------------------------------------------------------------------------


def _tune(record: Record, address: PageAddress) -> Parts:
    gain = record.get("gain")
    ratio = (
        f"{plain(gain['ratio'])} ({between(gain['low'], gain['high'], plain)})" if gain else None
    )
    refused = record.get("refused") or {}
    return [
        paragraph(tag("b", record["verdict"])),
        facts(
            [
                ("goal", record["goal"]),
                ("default", record["default"]),
                ("chosen", record["chosen"]),
                ("ratio to the default", ratio),
            ]
        ),
        section("Finalists", result_table(record["results"], address, "Settings that came last")),
        section("How it was found", _stages(record["stages"])),
        section("Not taken", listed(f"{k}: {v}" for k, v in refused.items()) if refused else None),
        warnings_of(record),
        machine_of(record),
    ]


def _stages(stages: Rows) -> Markup:
    rows = [
        [i, seconds(s["seconds"]), len(s["measured"]), len(s["kept"]), "; ".join(s["kept"])]
        for i, s in enumerate(stages, 1)
    ]
    columns = [">stage", ">time of each", ">measured", ">kept", "which"]
    return table("Stages of the search", columns, rows)


def _tuned(record: Record) -> list[Figure]:
    return figures_of(record["results"])


# -- advise and suggest ---------------------------------------------------------------------------


def _advise(record: Record, address: PageAddress) -> Parts:
    return [
        paragraph(tag("b", record["verdict"])),
        facts(
            [
                ("about", record["about"]),
                ("target", record["target"]["title"]),
                ("goal", record["goal"]),
                ("looked for", seconds(record["seconds"])),
            ]
        ),
        section("What to do, largest gain first", _advice(record["advice"])),
        section("Needs something of you first", _looked_at(record["wants"], "What may gain")),
        section("Noted", _noted(record["noted"])),
        section("Looked at, and not advised", _looked_at(record["looked_at"], "What was tried")),
        warnings_of(record),
        machine_of(record),
    ]


def _advice(rows: Rows) -> Markup:
    shown = [
        [r["name"], r["text"], r["evidence"], r["why"], r["cost"], tag("code", r["command"])]
        for r in rows
    ]
    columns = ["advice", "gain", "evidence", "why", "answers", "next"]
    return table("Advice that was tried and gains", columns, shown)


def _looked_at(rows: Rows, caption: str) -> Markup:
    shown = [[r["name"], _gain(r["gain"]), r["why"], _command(r["command"])] for r in rows]
    return table(caption, ["name", "ratio", "why", "command"], shown)


def _gain(gain: Mapping[str, Any] | None) -> str | None:
    return f"{plain(gain['value'])} ({between(gain['low'], gain['high'], plain)})" if gain else None


def _noted(rows: Rows) -> Markup:
    said = [f"{r['what']}. {r['why']}. {r['do']}" for r in rows]
    return listed(said) if said else Markup("")


def _command(words: object) -> Markup | None:
    return tag("code", words) if words else None


def _suggest(record: Record, address: PageAddress) -> Parts:
    other = [
        [o["mode"], byte_size(o["expected_size"]), o["when"]] for o in record.get("otherwise") or ()
    ]
    return [
        facts(
            [
                ("mode", record["mode"]),
                ("expected size", byte_size(record["expected_size"])),
                ("command", tag("code", record["command"])),
            ]
        ),
        section("Why", listed(record["reasons"])),
        section("Otherwise", table("Other modes", ["mode", ">expected size", "when"], other)),
    ]


VIEWS = {
    "compare": View(
        "Comparison of models", lambda r: [c["path"] for c in r["candidates"]], _chosen, _compare
    ),
    "tune": View("Tuning", lambda r: [r["model"]], lambda r: str(r["verdict"]), _tune, _tuned),
    "advise": View(
        "Advice",
        lambda r: [r["model"]],
        lambda r: str(r["verdict"]),
        _advise,
    ),
    "suggest": View(
        "Suggested mode",
        lambda r: [r["model"]["source"]],
        lambda r: f"{r['mode']}, about {byte_size(r['expected_size'])}",
        _suggest,
    ),
}
