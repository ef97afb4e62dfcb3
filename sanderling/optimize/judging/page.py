"""The report as one HTML file with its plots in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...evaluate.output_kinds import MEASURES
from ...pages import heading, html_table, page, paragraph
from ...plots import COLOURS, figure, inline, legend_below
from ...units import MIB
from .judge import KEPT_IF
from .layer_error import LayerRow
from .report import Measured, Report, Trial

# Rounding alone costs a root mean square error of 1/sqrt(12) of a step; the guide of TensorFlow's
# quantisation debugger takes 0.7 for a layer that is worth a look.
ROUNDING, SUSPECT = 0.289, 0.7
LIMITS = ((ROUNDING, "rounding alone", ":"), (SUSPECT, "worth a look", "--"))  # with their dashes


def report_page(report: Report) -> str:
    """A whole page; what was not measured is not on it."""
    name = Path(report.source).name or "model"
    return page(f"Quantisation of {name}", _parts(report))


def _parts(report: Report) -> Iterator[str]:
    for note in report.notes:
        yield paragraph(note)
    yield heading("Size")
    yield html_table(["", ">bytes", ">zipped"], size_rows(report))
    if report.latency:
        yield heading("Latency on this machine")
        yield html_table(LATENCY, latency_rows(report))
    if report.accuracy:
        yield heading(f"Accuracy: {report.accuracy['task']}")
        yield html_table(ACCURACY, accuracy_rows(report))
        yield from (paragraph(line, note=True) for line in report.accuracy["lines"])
    if report.target:
        yield heading("Target")
        yield paragraph(target_line(report))
        yield trials_plot(report)
        yield html_table(TRIALS, trial_rows(report))
    if report.candidates:
        yield heading("Ways that were tried")
        yield paragraph(judged_line(report), note=True)
        yield html_table(CANDIDATES, candidate_rows(report))
        yield paragraph(KEPT_IF, note=True)
    yield heading("Modes and rules")
    yield html_table(["mode", ">ops"], list(report.modes.items()))
    yield html_table(["rule", "mode"], [(rule_text(r), r["mode"]) for r in report.rules])
    yield from _layers(report.layers)
    yield from _lists(report)


def _lists(report: Report) -> Iterator[str]:
    if report.stayed_float:
        yield heading("Stayed float")
        yield html_table(
            ["op", "~output", "because"], [tuple(r.values()) for r in report.stayed_float]
        )
    if report.fell_back:
        yield heading("Got another mode")
        yield html_table(["op", "output", "because"], [tuple(r.values()) for r in report.fell_back])
    if report.refused:
        yield heading("What XNNPACK will not take")
        yield html_table(["op", "output", "because"], [tuple(r.values()) for r in report.refused])


# -- rows, which the terminal shows too -----------------------------------------------------------

LATENCY = ["engine", ">before, ms", ">after, ms", ">times as fast", "note"]
CANDIDATES = ["way", ">SNR, dB", ">agreement", ">gain, dB", ">needed, dB", ""]
ACCURACY = ["figure", ">before", ">after", ">change"]
TRIALS = ["trial", ">score", ">of those that choose", ">bytes", ">fastest ms", "meets it", "Pareto",
          ""]  # fmt: skip


LAYERS = [">#", "~tensor", "op", ">bits", ">seen low", ">seen high", ">scale", ">zero point",
          ">clipped", ">SNR, dB", ">RMSE/scale", ">local RMSE/scale", ">weight bits",
          ">weight SNR"]  # fmt: skip


def layer_table(layers: Sequence[LayerRow], most: int = 0) -> list[tuple[object, ...]]:
    """In the order of the model; or the few that are furthest from float, the worst first."""
    numbered = list(enumerate(layers))
    if most:
        numbered.sort(key=lambda row: math.inf if row[1].snr is None else row[1].snr)
    return [
        (
            i,
            x.name,
            x.op,
            x.bits,
            _short(x.low),
            _short(x.high),
            _short(x.scale),
            x.zero_point,
            f"{x.clipped:.3%}",
            _short(x.snr),
            _short(x.rmse_over_scale),
            _short(x.local_rmse_over_scale),
            x.weight_bits or "-",
            _short(x.weight_snr),
        )
        for i, x in numbered[: most or None]
    ]


def suspects(layers: Sequence[LayerRow]) -> list[LayerRow]:
    """The layers that add more error than rounding explains, the worst first.

    Codes of 16 bits are left out: their steps are so small that the rounding of 8-bit weights alone
    is many of them.
    """
    errors = {row.name: row.local_rmse_over_scale or 0.0 for row in layers}
    found = [row for row in layers if row.bits <= 8 and errors[row.name] > SUSPECT]
    return sorted(found, key=lambda row: -errors[row.name])


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def size_rows(report: Measured) -> list[tuple[object, ...]]:
    share = [
        f"{a / b:.1%}" if b else "-"
        for a, b in (
            (report.size_after, report.size_before),
            (report.zipped_after, report.zipped_before),
        )
    ]
    return [
        ("before", report.size_before, report.zipped_before),
        ("after", report.size_after, report.zipped_after),
        ("share", *share),
    ]


def candidate_rows(report: Report) -> list[tuple[object, ...]]:
    """The gain is over the best way before; the first has none."""
    return [
        (
            c.name,
            f"{c.snr:.1f}",
            "-" if c.agreement is None else f"{c.agreement:.1%}",
            _signed(c.gain),
            _signed(c.needed),
            "chosen" if c.chosen else "",
        )
        for c in report.candidates
    ]


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def judged_line(report: Report) -> str:
    """Whom the figures are of, and what the agreement is."""
    whole = report.samples + report.held_out
    held = (
        f"{report.held_out} of {whole} samples were held out and calibrated nothing"
        if report.held_out
        else "No sample was held out: those that calibrated judge"
    )
    said = "; ".join(
        f"'{name}' is taken for {k['kind']} ({k['why']}): {MEASURES[k['kind']]}"
        for name, k in report.kinds.items()
    )
    return f"{held}. Outputs: {said}."


def trial_rows(report: Measured) -> list[tuple[object, ...]]:
    return [
        (
            t.name,
            f"{t.score:.4g}",
            "-" if t.choice is None else f"{t.choice:.4g}",
            t.size,
            f"{t.latency * 1e3:.3g}",
            "yes" if t.meets else "no",
            "*" if t.pareto else "",
            "chosen" if t.chosen else "",
        )
        for t in report.trials
    ]


def latency_rows(report: Measured) -> list[tuple[object, ...]]:
    return [_latency_row(r) for r in report.latency]


def _latency_row(row: dict[str, Any]) -> tuple[object, ...]:
    if "error" in row:
        return row["engine"], "-", "-", "-", row["error"].splitlines()[0]
    speed = f"{row['speedup']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
    return (
        row["engine"],
        f"{row['before'] * 1e3:.3g}",
        f"{row['after'] * 1e3:.3g}",
        speed,
        f"{row['threads']} thread{'s' * (row['threads'] != 1)}",
    )


def accuracy_rows(report: Measured) -> list[tuple[object, ...]]:
    """Plain figures that both have, the headline first."""
    before, after = report.accuracy["before"], report.accuracy["after"]
    shared = [k for k, v in before.items() if isinstance(v, float) and k in after]
    order = sorted(shared, key=lambda k: k != report.accuracy["headline"])
    return [
        (k, f"{before[k]:.4g}", f"{after[k]:.4g}", f"{after[k] - before[k]:+.4g}") for k in order
    ]


def target_line(report: Measured) -> str:
    found = report.target
    word = "met" if found["met"] else "missed"
    kept = len(found.get("kept", ()))
    finer = f"{kept} op{'s' * (kept != 1)} in a finer mode, " if "kept" in found else ""
    return (
        f"{found['text']}: {word} with {found['reached']:.4g} (float {found['float']:.4g}), "
        f"{finer}{len(report.trials)} trials"
    )


def rule_text(rule: dict[str, str]) -> str:
    names = {"start": "from", "stop": "to"}
    said = {names.get(k, k): v for k, v in rule.items() if k != "mode" and v not in ("*", "")}
    parts = [f"{k}: {v}" for k, v in said.items()]
    return ", ".join(parts) or "everything"


# -- plots ----------------------------------------------------------------------------------------


def _layers(layers: Sequence[LayerRow]) -> Iterator[str]:
    if not layers:
        return
    yield heading("Ranges by layer")
    yield paragraph(
        "Bars: what the codes can say. Lines: what was seen; beyond the bar it is clipped.",
        note=True,
    )
    yield _ranges_plot(layers)
    if any(x.snr is not None for x in layers):
        yield heading("Error by layer")
        yield paragraph(
            "Against the float model on held-out samples. RMSE/scale is the error in "
            "steps with all that came in from the layers before; local is what the "
            f"layer adds itself, fed with the float model's values: {ROUNDING:.2f} is "
            f"rounding alone, and above {SUSPECT} of its own a layer is worth a look.",
            note=True,
        )
        yield _error_plot(layers)
    yield html_table(LAYERS, layer_table(layers))


def bounds(layer: LayerRow) -> tuple[float, float]:
    """The least and the largest number that the layer's codes stand for."""
    low, high = -(2 ** (layer.bits - 1)), 2 ** (layer.bits - 1) - 1
    return (low - layer.zero_point) * layer.scale, (high - layer.zero_point) * layer.scale


def _ranges_plot(layers: Sequence[LayerRow]) -> str:
    at = np.arange(len(layers))
    low, high = np.array([bounds(x) for x in layers]).T
    with figure(size=(7, 3.6)) as (made, axes):
        axes.bar(at, high - low, bottom=low, color=COLOURS[5], alpha=0.6, label="codes")
        axes.vlines(
            at,
            [x.low for x in layers],
            [x.high for x in layers],
            color=COLOURS[6],
            linewidth=1,
            label="seen",
        )
        # Layers may differ by orders of magnitude; around zero the scale is linear.
        least = float(np.median(np.maximum(np.abs(low), np.abs(high)))) or 1.0
        axes.set_yscale("symlog", linthresh=least)
        axes.set(xlabel="layer", ylabel="value")
        axes.locator_params(axis="x", integer=True)
        legend_below(axes)
        return inline(made)


def _error_plot(layers: Sequence[LayerRow]) -> str:
    with figure(2, 1, size=(7, 5.5)) as (made, (above, below)):
        _line(above, layers, "snr", "SNR, dB")
        _line(below, layers, "rmse_over_scale", "RMSE / scale", "accumulated")
        _line(below, layers, "local_rmse_over_scale", "RMSE / scale", "local")
        for value, text, dash in LIMITS:
            name = f"{value:.2g}: {text}"
            below.axhline(value, linestyle=dash, color=COLOURS[1], linewidth=1, label=name)
        below.set_yscale("log")
        below.set(xlabel="layer")
        legend_below(below, 4)
        below.locator_params(axis="x", integer=True)
        return inline(made)


def _line(axes: Any, layers: Sequence[LayerRow], what: str, label: str, name: str = "") -> None:
    found = [(i, v) for i, x in enumerate(layers) if (v := getattr(x, what)) is not None]
    if found:
        axes.plot(*zip(*found, strict=True), marker="o", markersize=3, label=name)
    axes.set(ylabel=label)


MARKS = {"chosen": ("*", 13, 1), "Pareto": ("o", 7, 0), "other": ("x", 5, 6)}  # size, colour


def trials_plot(report: Measured) -> str:
    """What was tried: the figure of the target over size and over time."""
    # Float is its own reference: infinitely near, and far away in the plot.
    trials = [t for t in report.trials if report.target["figure"] != "snr" or t.name != "float"]
    with figure(1, 2, size=(7, 3.6)) as (made, both):
        for axes, what, unit, label in (
            (both[0], "size", MIB, "MiB"),
            (both[1], "latency", 1e-3, "ms, fastest run"),
        ):
            for name, (mark, big, colour) in MARKS.items():
                kind = [t for t in trials if _mark(t) == name]
                axes.plot(
                    [getattr(t, what) / unit for t in kind],
                    [t.score for t in kind],
                    mark,
                    color=COLOURS[colour],
                    markersize=big,
                    label=name,
                )
            axes.set(xlabel=label, ylabel=report.target["figure"])
            legend_below(axes, 3)
        return inline(made)


def _mark(trial: Trial) -> str:
    return "chosen" if trial.chosen else "Pareto" if trial.pareto else "other"
