"""What pruning or clustering did, layer by layer, and what it cost: for people, JSON and pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..format import dump
from ..ir import Model, Op, Tensor
from ..ops import cost
from ..optimize.judging.page import (
    ACCURACY,
    LATENCY,
    TRIALS,
    accuracy_rows,
    latency_rows,
    size_rows,
    target_line,
    trial_rows,
    trials_plot,
)
from ..optimize.judging.report import Trial, zipped_size
from ..pages import heading, html_table, page, paragraph
from .constraint import stored_values

PRODUCTS = ("CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "DEPTHWISE_CONV_2D")


@dataclass
class WeightRow:
    """A layer's weight in the finished file."""

    name: str
    op: str
    shape: list[int]
    macs: int
    macs_after: int  # without those by zeros; of fewer channels
    zeros_before: float
    zeros: float
    values_before: int  # different ones
    values: int
    error: float | None = None  # of the layer's sums, of their power
    note: str = ""


@dataclass
class TrainingReport:
    """Sizes in bytes; `zipped` is what deflate leaves of the file. compared: with the float model
    on held-out samples. problems: what the finished file breaks of what was asked; none, if the
    check passed. xnnpack: what keeps LiteRT from using the zeros."""

    verb: str
    source: str
    settings: dict[str, Any]
    size_before: int
    size_after: int
    zipped_before: int
    zipped_after: int
    layers: list[WeightRow]
    samples: int = 0
    compared: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    xnnpack: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    accuracy: dict[str, Any] = field(default_factory=dict)
    latency: list[dict[str, Any]] = field(default_factory=list)
    target: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)

    @staticmethod
    def of(verb: str, before: Model, after: Model, settings: dict[str, Any]) -> TrainingReport:
        old, new = bytes(dump(before)), bytes(dump(after))
        rows = weight_rows(before, after)
        sizes = len(old), len(new), zipped_size(old), zipped_size(new)
        return TrainingReport(verb, before.source, settings, *sizes, rows)

    @property
    def macs(self) -> tuple[int, int]:
        return sum(r.macs for r in self.layers), sum(r.macs_after for r in self.layers)

    @property
    def zeros(self) -> float:
        """The share of zeros among all weights of the layers in the table."""
        sizes = [int(np.prod(r.shape)) for r in self.layers]
        return sum(r.zeros * n for r, n in zip(self.layers, sizes, strict=True)) / max(
            1, sum(sizes)
        )

    @property
    def expected_speedup(self) -> float:
        """If time went with the multiplications that are left."""
        before, after = self.macs
        return before / max(1, after)

    def to_json(self) -> dict[str, Any]:
        figures = {"expected_speedup": self.expected_speedup, "zeros": self.zeros}
        return {"schema": f"sanderling.{self.verb}/1"} | asdict(self) | figures


def weight_rows(before: Model, after: Model) -> list[WeightRow]:
    """A row for each product with constant weights; the models have the same ones, in the same
    order."""
    return [_row(old, new) for old, new in zip(_products(before), _products(after), strict=True)]


def _products(model: Model) -> list[Op]:
    return [
        op
        for op in model.main.ops
        if op.name in PRODUCTS and stored_values(op.operand(1)) is not None
    ]


def _row(old: Op, new: Op) -> WeightRow:
    figures = [_figures(op.operand(1)) for op in (old, new)]
    macs = [cost(op).macs for op in (old, new)]
    return WeightRow(
        old.operand(1).name,
        old.name,
        list(new.operand(1).shape),
        macs[0],
        round(macs[1] * (1 - figures[1][0])),
        figures[0][0],
        figures[1][0],
        figures[0][1],
        figures[1][1],
    )


def _figures(tensor: Tensor) -> tuple[float, int]:
    """The share of zeros, and the number of different values."""
    data = stored_values(tensor)
    assert data is not None, "rows are of constant weights"
    return float((data == 0).mean()), len(np.unique(data))


# -- tables, which the terminal shows too ---------------------------------------------------------


class Checked(Protocol):
    """A report that says what the finished file breaks."""

    problems: list[str]


class Compared(Protocol):
    """A report with a comparison on held-out samples."""

    compared: dict[str, Any]


LAYERS = ["~weight", "op", "shape", ">MACs, M", ">zeros before", ">zeros", ">values", ">error",
          "~note"]  # fmt: skip
COMPARED = ["figure", ">value", "95 %"]
EPOCHS = [">epoch", ">loss", ">held out", ">agreement"]
SPEED = ["", ">times as fast"]


def layer_rows(report: TrainingReport) -> list[tuple[object, ...]]:
    return [
        (
            r.name,
            r.op,
            "x".join(map(str, r.shape)),
            f"{r.macs / 1e6:.3g}",
            f"{r.zeros_before:.1%}",
            f"{r.zeros:.1%}",
            r.values,
            "-" if r.error is None else f"{r.error:.2%}",
            r.note or report.skipped.get(r.name, ""),
        )
        for r in report.layers
    ]


def compared_rows(report: Compared) -> list[tuple[object, ...]]:
    found, rows = report.compared, list[tuple[object, ...]]()
    if agreement := found.get("agreement"):
        interval = f"{agreement['low']:.1%} to {agreement['high']:.1%}"
        rows.append(("agreement with float", f"{agreement['value']:.2%}", interval))
    if accuracy := found.get("accuracy"):
        apart = accuracy["difference"]
        rows.append(("accuracy before", f"{accuracy['before']:.2%}", ""))
        rows.append(("accuracy after", f"{accuracy['after']:.2%}", ""))
        interval = f"{apart['low'] * 100:+.2f} to {apart['high'] * 100:+.2f} points"
        rows.append(("change", f"{apart['value'] * 100:+.2f} points", interval))
    if found:
        rows.append(("SNR of the outputs", f"{found['snr_db']:.1f} dB", ""))
        rows.append(("judged by", found["judged_by"], ""))
    return rows


def epoch_rows(report: TrainingReport) -> list[tuple[object, ...]]:
    return [
        (i + 1, f"{e['loss']:.4g}", f"{e['held_out']:.4g}", f"{e['agreement']:.2%}")
        for i, e in enumerate(report.epochs)
    ]


def speed_rows(report: TrainingReport) -> list[tuple[object, ...]]:
    """Expected from the multiplications that are left, and measured."""
    rows: list[tuple[object, ...]] = [("expected", f"{report.expected_speedup:.2f}")]
    measured = [
        (f"measured, {r['engine']}", f"{r['speedup']:.2f}")
        for r in report.latency
        if "speedup" in r
    ]
    return [*rows, *measured]


def check_line(report: Checked) -> str:
    """Whether the finished file holds what was asked."""
    if report.problems:
        return f"the file does not hold what was asked: {report.problems[0]}"
    return "checked in the finished model: everything that was asked holds"


# -- the page -------------------------------------------------------------------------------------


def report_page(report: TrainingReport, title: str) -> str:
    """A whole page; what was not measured is not on it."""
    return page(f"{title} of {Path(report.source).name or 'a model'}", _parts(report))


def _parts(report: TrainingReport) -> Iterator[str]:
    for note in [*report.notes, check_line(report), *report.problems]:
        yield paragraph(note)
    yield heading("Size")
    yield html_table(["", ">bytes", ">zipped"], size_rows(report))
    yield from _table("Speed", SPEED, speed_rows(report))
    yield from _table("Latency on this machine", LATENCY, latency_rows(report))
    if report.compared:
        yield heading("Against the float model")
        yield paragraph(f"On {report.compared['samples']} samples that were held out.", note=True)
        yield html_table(COMPARED, compared_rows(report))
    if report.accuracy:
        yield heading(f"Accuracy: {report.accuracy['task']}")
        yield html_table(ACCURACY, accuracy_rows(report))
        yield from (paragraph(line, note=True) for line in report.accuracy["lines"])
    if report.target:
        yield heading("Target")
        yield paragraph(target_line(report))
        yield trials_plot(report)
        yield html_table(TRIALS, trial_rows(report))
    yield from _table("Training", EPOCHS, epoch_rows(report))
    yield from _table("Layers", LAYERS, layer_rows(report))
    yield from _table(
        "What keeps XNNPACK from using the zeros", ["because"], [(text,) for text in report.xnnpack]
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> Iterator[str]:
    if rows:
        yield heading(title)
        yield html_table(columns, rows)
