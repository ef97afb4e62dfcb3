"""Pages of models made smaller or trained: quantize, qat, prune, cluster, retrain, rewrite."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .answer_views import disagreements
from .charts import Chart, Series
from .markup import Bar, Markup, facts, listed, table
from .record_file import Record
from .view import (
    PageAddress,
    Parts,
    View,
    between,
    byte_size,
    machine_of,
    most,
    notes_of,
    percent,
    plural,
    seconds,
    section,
    sizes,
    truncated,
)

SHOWN = 300  # rows of a table
Rows = list[Mapping[str, Any]]


# -- quantize and qat -----------------------------------------------------------------------------


def _quantised(record: Record, address: PageAddress) -> Parts:
    modes = ", ".join(f"{plural(n, 'op')} {mode}" for mode, n in record["modes"].items())
    return [
        facts(
            [
                *sizes(record),
                ("ops", modes),
                ("samples", f"{record['samples']} calibrated, {record['held_out']} judged"),
                ("target", _words(record["target"])),
            ]
        ),
        section("Ways that were tried", _candidates(record["candidates"])),
        section("Models tried for the target", _trials(record["trials"])),
        section("Accuracy", *_accuracy(record["accuracy"])),
        section("Samples that the two disagree on", disagreements(record, address)),
        section("Latency", _rows(record["latency"], "Latency before and after")),
        section("Training", _epochs(record.get("epochs") or [])),
        section("Layers", _layers(record["layers"])),
        section("Stayed float", _reasons(record["stayed_float"], "Ops that stayed float")),
        section("Fell back", _reasons(record["fell_back"], "Ops that got another mode")),
        section("Not for XNNPACK", _reasons(record["refused"], "Ops that XNNPACK refuses")),
        notes_of(record),
    ]


def _candidates(rows: Rows) -> Markup:
    top = most(r["snr"] for r in rows)
    return table(
        "Ways of quantising, judged on held-out samples",
        ["way", "SNR dB", ">same best answer", "kept"],
        [
            [
                r["name"],
                Bar(r["snr"], top, _db(r["snr"])),
                percent(r["agreement"]),
                "yes" if r["chosen"] else None,
            ]
            for r in rows
        ],
    )


def _db(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} dB"


def _trials(rows: Rows) -> Markup:
    chart = Chart(
        "Score against size of what was tried",
        "size, KiB",
        "score",
        [
            _tried("best trade-offs", [r for r in rows if r["pareto"]], True),
            _tried("others", [r for r in rows if not r["pareto"]], False),
        ],
    )
    return Markup(chart.markup() + _rows(rows, "Models tried"))


def _tried(name: str, rows: Rows, is_line: bool) -> Series:
    ordered = sorted(rows, key=lambda r: r["size"])
    return Series(
        name,
        [r["size"] / 1024 for r in ordered],
        [r["score"] for r in ordered],
        labels=[str(r["name"]) for r in ordered],
        is_line=is_line,
    )


def _layers(rows: Rows) -> Markup:
    """Quantised layers have a signal-to-noise ratio; pruned and clustered ones have zeros."""
    columns = ["name", "op", ">bits", ">low", ">high", ">clipped", ">SNR dB", ">weight SNR dB"]
    keys = ("name", "op", "bits", "low", "high", "clipped", "snr", "weight_snr")
    shown = [[r[k] for k in keys] for r in rows[:SHOWN]]
    made = table("Ranges and errors of each layer", columns, shown)
    return Markup(made + truncated(rows, SHOWN, "layers"))


def _reasons(rows: Rows, caption: str) -> Markup:
    shown = [[r["op"], r["output"], r["reason"]] for r in rows[:SHOWN]]
    return Markup(table(caption, ["op", "output", "reason"], shown) + truncated(rows, SHOWN, "ops"))


# -- prune and cluster ----------------------------------------------------------------------------


def _trained(record: Record, address: PageAddress) -> Parts:
    compared = record.get("compared") or {}
    agreed = compared.get("agreement") or {}
    same = between(agreed.get("low"), agreed.get("high"), percent)
    return [
        facts(
            [
                *sizes(record),
                ("zeros", percent(record["zeros"])),
                ("fewer multiplications", f"{record['expected_speedup']:.3g} times"),
                ("same best answer", f"{percent(agreed.get('value'))} ({same})" if agreed else ""),
                ("SNR", _db(compared.get("snr_db")) if compared else None),
                ("settings", _words(record["settings"])),
                ("target", _words(record["target"])),
            ]
        ),
        section("Problems", listed(record["problems"]) if record["problems"] else None),
        section("Training", _epochs(record["epochs"])),
        section("Models tried for the target", _trials(record["trials"])),
        section("Accuracy", *_accuracy(record["accuracy"])),
        section("Samples that the two disagree on", disagreements(record, address)),
        section("Latency", _rows(record["latency"], "Latency before and after")),
        section("Layers", _weights(record["layers"])),
        notes_of(record),
    ]


def _weights(rows: Rows) -> Markup:
    shown = [
        [
            r["name"],
            r["op"],
            "x".join(map(str, r["shape"])),
            Bar(r["zeros"], 1, percent(r["zeros"])),
            r["values_before"],
            r["values"],
            r["error"],
            r["note"],
        ]
        for r in rows[:SHOWN]
    ]
    columns = ["weights", "op", "shape", "zeros", ">values before", ">values", ">error", "note"]
    return Markup(table("Weights of each layer", columns, shown) + truncated(rows, SHOWN, "layers"))


def _epochs(rows: Rows) -> Markup:
    """Curves of training; each figure that all epochs have is one chart."""
    if not rows:
        return Markup("")
    numbers = [float(i) for i in range(1, len(rows) + 1)]
    names = [k for k, v in rows[0].items() if isinstance(v, int | float) and k != "epoch"]
    charts = [
        Chart(
            name.replace("_", " "),
            "epoch",
            name,
            [Series(name, numbers, _column(rows, name))],
            counts=True,
        )
        for name in names
    ]
    return Markup("".join(c.markup() for c in charts) + _rows(rows, "Epochs"))


def _column(rows: Rows, name: str) -> list[float | None]:
    return [float(r[name]) if isinstance(r.get(name), int | float) else None for r in rows]


# -- retrain and rewrite --------------------------------------------------------------------------


def _retrained(record: Record, address: PageAddress) -> Parts:
    names = record["classes"]
    low, high = record["interval"]
    matrix = [[n, *row] for n, row in zip(names, record["confusion"], strict=True)]
    return [
        facts(
            [
                ("accuracy", f"{percent(record['accuracy'])} ({between(low, high, percent)})"),
                ("held out", f"{record['right']} of {record['held_out']} right"),
                ("trained on", record["trained_on"]),
                ("blocks", record["blocks"]),
            ]
        ),
        section(
            "Truth and answers",
            table(
                "Rows are the truth, columns the answers", ["", *(f">{n}" for n in names)], matrix
            ),
        ),
        machine_of(record),
    ]


def _rewritten(record: Record, address: PageAddress) -> Parts:
    before, after = (len(record[f"refused_{when}"]) for when in ("before", "after"))
    changes = [
        [c["op"], c["reason"], ", ".join(c["rewrites"]), c["does"]] for c in record["changes"]
    ]
    return [
        facts(
            [
                ("for", record["for"]),
                ("ops", f"{record['ops']['before']} to {record['ops']['after']}"),
                ("refused", f"{before} before, {after} after"),
                ("written", record.get("written")),
            ]
        ),
        section(
            "Changes", table("Rewritten ops", ["op", "refused for", "rewrites", "does"], changes)
        ),
        section("Still refused", _rows(record["refused_after"], "Ops that are still refused")),
        section("Answers", _rows(record.get("answers") or [], "Answers before and after")),
        notes_of(record),
    ]


# -- values of any form ---------------------------------------------------------------------------


def _words(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {v}" for k, v in found.items() if v not in (None, "", [], {}))


def _accuracy(found: Mapping[str, Any]) -> list[Markup]:
    """Figures of a task before and after; `here` is the new model, `there` the old one."""
    if not found:
        return []
    before, after = found["before"], found["after"]
    names = [k for k, v in before.items() if isinstance(v, int | float)]
    rows = [[n, before[n], after.get(n)] for n in names]
    columns = ["figure", ">before", ">after"]
    said = f"Figures of {found['task']} on {plural(found['samples'], 'sample')}"
    return [table(said, columns, rows), listed(found.get("lines") or [])]


def _rows(rows: Rows, caption: str) -> Markup:
    """Records of one form as a table, whatever their form; times and sizes with their units."""
    if not rows:
        return Markup("")
    names = [k for k, v in rows[0].items() if not isinstance(v, dict | list)]
    columns = [f">{n}" if isinstance(rows[0][n], int | float) else n for n in names]
    return table(caption, columns, [[_value(n, r.get(n)) for n in names] for r in rows[:SHOWN]])


def _value(name: str, value: Any) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "size" and isinstance(value, int):
        return byte_size(value)
    return seconds(value) if name == "latency" and isinstance(value, float) else value


def _smaller(record: Record) -> str:
    before, after = record["size_before"], record["size_after"]
    return f"{byte_size(before)} to {byte_size(after)}"


def _fewer(record: Record) -> str:
    zipped = byte_size(record["zipped_before"]), byte_size(record["zipped_after"])
    return f"{percent(record['zeros'])} zeros, zipped {zipped[0]} to {zipped[1]}"


def _sources(record: Record) -> list[object]:
    return [record["source"]]


VIEWS = {
    "quantize": View("Quantisation", _sources, _smaller, _quantised),
    "qat": View("Quantisation-aware training", _sources, _smaller, _quantised),
    "prune": View("Pruning", _sources, _fewer, _trained),
    "cluster": View("Clustering", _sources, _fewer, _trained),
    "retrain": View(
        "Retraining",
        lambda r: [r["source"]] if r.get("source") else [],
        lambda r: f"accuracy {percent(r['accuracy'])}, {len(r['classes'])} classes",
        _retrained,
    ),
    "rewrite": View(
        "Rewriting",
        _sources,
        lambda r: f"for {r['for']}, {len(r['refused_after'])} ops still refused",
        _rewritten,
    ),
}
