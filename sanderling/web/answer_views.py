"""Pages of answers: diff of two settings or models, and evaluation on data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .markup import Bar, Markup, facts, link, listed, note, table, tag
from .record_file import Record
from .view import (
    PageAddress,
    Parts,
    View,
    between,
    file_name,
    machine_of,
    most,
    notes_of,
    percent,
    plural,
    seconds,
    section,
    setting_text,
    truncated,
)

SHOWN = 300  # layers
PICTURES = 48  # samples that two models disagree on, with their pictures


# -- diff -----------------------------------------------------------------------------------------


def _diff(record: Record, address: PageAddress) -> Parts:
    sides = record["reference"], record["test"]
    name = file_name(sides[1]["model"])
    layers = record.get("layers") or {}
    graph = link(f"{address.model(name)}&colour=error", "errors in the graph") if layers else None
    return [
        facts(
            [
                ("reference", _side(sides[0])),
                ("test", _side(sides[1])),
                ("inputs", f"{record['inputs']}, {plural(record['runs'], 'run')}"),
                ("latency", _latency(record["latency"])),
                ("limits", "kept" if record["ok"] else "broken: " + ", ".join(_failed(record))),
                ("drawn", graph),
            ]
        ),
        section("Outputs", _outputs(record["outputs"])),
        section("Layer by layer", _layers(layers)) if layers else Markup(""),
        notes_of(record),
    ]


def _side(side: Mapping[str, Any]) -> str:
    return f"{file_name(side['model'])}: {setting_text(side)}"


def _failed(record: Record) -> list[str]:
    return [str(f) for f in record["failed"]]


def _latency(latency: Mapping[str, Any] | None) -> str | None:
    if not latency or not latency.get("reference") or not latency.get("test"):
        return None
    then, now = latency["reference"]["median"], latency["test"]["median"]
    return f"{seconds(then)}, test {seconds(now)}"


def _outputs(outputs: list[Mapping[str, Any]]) -> Markup:
    rows = [
        [
            o["name"],
            o["type"],
            o["test_type"],
            o["real"]["max_error"],
            o["real"]["rmse"],
            o["real"]["cosine"],
            o["real"]["snr_db"],
            percent((o.get("top") or {}).get("1")),
        ]
        for o in outputs
    ]
    columns = ["output", "reference", "test", ">largest error", ">RMSE", ">cosine", ">SNR dB",
               ">same best"]  # fmt: skip
    return table("How far the answers are apart", columns, rows)


def _layers(found: Mapping[str, Any]) -> Markup:
    layers = found["layers"]
    top = most(rmse_of(row) for row in layers)
    rows = [
        [
            row["index"],
            row["op"],
            row["name"],
            row["type"],
            Bar(rmse_of(row), top, f"{rmse_of(row):.3g}"),
            row["local"]["snr_db"],
            row["accumulated"]["snr_db"],
            "; ".join(map(str, row["reasons"])) if row["suspect"] else None,
        ]
        for row in layers[:SHOWN]
    ]
    columns = [">op", "type", "tensor", "values", "relative RMSE of its own", ">SNR dB of its own",
               ">SNR dB with all before", "suspect"]  # fmt: skip
    made = table("Errors of each op: its own, and with those of all before", columns, rows)
    return Markup(made + truncated(layers, SHOWN, "layers"))


def rmse_of(row: Mapping[str, Any]) -> float:
    """What an op adds to the error, against the size of its values."""
    own = row["local"]
    return float(own["rmse"]) / max(float(own["largest"]), 1e-30)


# -- eval -----------------------------------------------------------------------------------------


def _eval(record: Record, address: PageAddress) -> Parts:
    metrics = record["metrics"]
    sides: list[Mapping[str, Any]] = [record]
    if isinstance(record.get("against"), Mapping) and record["against"].get("metrics"):
        sides.append(record["against"])
    return [
        facts(
            [
                ("task", f"{record['task']}, {record.get('evaluated', '?')} samples"),
                ("setting", setting_text(record["setting"]) if "setting" in record else None),
                ("warning", metrics.get("warning")),
            ]
        ),
        section("Figures", _metrics(sides)),
        section("The two side by side", _compared(record.get("compared"))),
        section("Samples that the two disagree on", disagreements(record, address)),
        section("Worst classes", _worst(metrics.get("worst_classes") or [])),
        section("Taken for one another", _confusions(metrics.get("confusions") or [])),
        section("Latency", _stages(record.get("latency") or {})),
        section("Samples that could not be read", _failures(record.get("failures") or [])),
        notes_of(record),
        machine_of(record),
    ]


def _metrics(sides: list[Mapping[str, Any]]) -> Markup:
    names = [k for k, v in sides[0]["metrics"].items() if isinstance(v, int | float)]
    rows = [[k, *(cell for side in sides for cell in _figure(side, k))] for k in names]
    heads = [h for s in sides for h in (f">{file_name(s.get('model', 'result'))}", "95 % interval")]
    return table("Figures of the task", ["figure", *heads], rows)


def _figure(side: Mapping[str, Any], name: str) -> list[object]:
    interval = (side["metrics"].get("intervals") or {}).get(name)
    low, high = interval or (None, None)
    return [side["metrics"].get(name), between(low, high, lambda v: f"{v:.4g}")]


def _compared(found: Mapping[str, Any] | None) -> Markup:
    if not found:
        return Markup("")
    rows = []
    for name, pair in found.items():
        difference = pair.get("difference") if isinstance(pair, Mapping) else None
        if difference:
            low, high = difference["low"], difference["high"]
            value = f"{difference['value']:+.4f}"
            rows.append([name, value, between(low, high, lambda v: f"{v:+.4f}")])
    agreed = found.get("agreement")
    same = f"{percent(agreed['value'])} of samples have the same answer." if agreed else ""
    columns = ["figure", ">difference", "95 % interval"]
    return Markup(table("Differences, paired by sample", columns, rows) + note(same))


def disagreed(record: Record) -> list[Mapping[str, Any]]:
    """Samples of the record on which its two models answer differently. Verbs that make a model
    smaller keep the comparison of both under their accuracy."""
    for place in (record, record.get("accuracy")):
        compared = place.get("compared") if isinstance(place, Mapping) else None
        if isinstance(compared, Mapping) and isinstance(compared.get("disagreements"), list):
            return [row for row in compared["disagreements"] if isinstance(row, Mapping)]
    return []


def disagreements(record: Record, address: PageAddress) -> Markup:
    rows = disagreed(record)
    cards = [_card(i, row, address) for i, row in enumerate(rows[:PICTURES])]
    if not cards:
        return Markup("")
    made = tag("ul", *cards, class_="cards")
    return Markup(made + truncated(rows, PICTURES, "samples"))


def _card(number: int, row: Mapping[str, Any], address: PageAddress) -> Markup:
    said = f"truth {row['truth']}, here {row['ours']}, there {row['theirs']}"
    picture = tag(
        "img",
        src=address.picture(number),
        alt=f"sample {row['id']}: {said}",
        loading="lazy",
        width=112,
        height=112,
    )
    return tag(
        "li",
        picture,
        tag("b", row["id"]),
        tag("span", f"truth: {row['truth']}"),
        tag("span", f"here: {row['ours']}", class_=_right(row, "ours")),
        tag("span", f"there: {row['theirs']}", class_=_right(row, "theirs")),
    )


def _right(row: Mapping[str, Any], side: str) -> str:
    return "good" if row[side] == row["truth"] else "bad"


def _worst(rows: list[Mapping[str, Any]]) -> Markup:
    return table(
        "Classes with the smallest share of right answers",
        ["class", ">samples", ">right", "said instead"],
        [
            [
                w["name"],
                w["samples"],
                w["right"],
                ", ".join(f"{i['name']} ({i['times']})" for i in w["instead"]),
            ]
            for w in rows
        ],
    )


def _confusions(rows: list[Mapping[str, Any]]) -> Markup:
    columns = ["classes", ">times"]
    return table(
        "Pairs of classes that are taken for one another",
        columns,
        [[" / ".join(map(str, c["names"])), c["times"]] for c in rows],
    )


def _stages(latency: Mapping[str, Any]) -> Markup:
    top = most(s["median"] for s in latency.values())
    rows = [
        [n, Bar(s["median"], top, seconds(s["median"])), seconds(s["mean"]), seconds(s["p95"])]
        for n, s in latency.items()
    ]
    return table("Time of each stage for a sample", ["stage", "median", ">mean", ">p95"], rows)


def _failures(rows: list[Mapping[str, Any]]) -> Markup:
    if not rows:
        return Markup("")
    made = listed(f"{f['id']}: {f['why']}" for f in rows[:SHOWN])
    return Markup(made + truncated(rows, SHOWN, "failures"))


def _headline(record: Record) -> str:
    name = record.get("headline")
    value = record["metrics"].get(name) if name else None
    compared = (record.get("compared") or {}).get(name) or {}
    difference = compared.get("difference") if isinstance(compared, Mapping) else None
    more = f", {difference['value']:+.4f} against the other" if difference else ""
    return f"{name} {value:.4g}{more}" if isinstance(value, int | float) else str(record["task"])


def _evaluated(record: Record) -> list[object]:
    other = record.get("against")
    found = [record.get("model"), other.get("model") if isinstance(other, Mapping) else None]
    return [m for m in found if m]


def _apart(record: Record) -> str:
    worst = max((o["real"]["max_error"] for o in record["outputs"]), default=0.0)
    return f"largest error {worst:.3g}{'' if record['ok'] else ', a limit is broken'}"


VIEWS = {
    "diff": View(
        "Difference",
        lambda r: [r["reference"]["model"], r["test"]["model"]],
        _apart,
        _diff,
    ),
    "eval": View("Evaluation", _evaluated, _headline, _eval),
}
