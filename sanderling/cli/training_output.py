"""What the training verbs write and return, and what prune and cluster print."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import typer

from ..format import AtomicFile, dump
from ..ir import Model
from ..optimize.judging.page import (
    ACCURACY,
    LATENCY,
    TRIALS,
    accuracy_rows,
    latency_rows,
    target_line,
    trial_rows,
)
from ..optimize.judging.report import Measured
from ..tables import facts, table
from ..training.report import (
    COMPARED,
    EPOCHS,
    LAYERS,
    SPEED,
    Checked,
    TrainingReport,
    check_line,
    compared_rows,
    epoch_rows,
    layer_rows,
    report_page,
    speed_rows,
)
from ..units import byte_size
from .common import JsonTarget, open_target, say, size_of, write_target
from .new_model import open_page

FAILED = 1
SHOWN = 12  # rows of a long list on the terminal; the record has all


def tell_check(verb: str, model: Path, problems: list[str], what: str, json: str) -> None:
    """Say what a finished model breaks of what was asked; exit status 1 if it does. what: so many
    of which, for people."""
    with JsonTarget(json) as target:
        record = {"schema": f"sanderling.{verb}-check/1", "model": str(model), "problems": problems}
        if not target.write(record):
            typer.echo("\n".join(problems) or "everything that was asked holds")
    if problems:
        say(f"sanderling: {len(problems)} {what}")
        raise typer.Exit(FAILED)


class Told(Measured, Checked, Protocol):
    """What the reports of all training verbs have."""

    def to_json(self) -> dict[str, Any]: ...


class Targets:
    """The files of a verb, opened before its work and written after it."""

    def __init__(self, model: Path, output: Path | None, page: Path | None, json: str) -> None:
        self.model, self.output, self.page = model, output, page
        self._json = json
        self._opened = ExitStack()

    def __enter__(self) -> Targets:
        with ExitStack() as opened:
            self.json = opened.enter_context(JsonTarget(self._json))
            room = size_of(self.model)  # the new one is hardly larger
            self.file = self._open(opened, open_target(self.output, room) if self.output else None)
            self.paper = self._open(opened, open_page(self.page) if self.page else None)
            self._opened = opened.pop_all()
        return self

    def _open(self, opened: ExitStack, file: AtomicFile | None) -> AtomicFile | None:
        return opened.enter_context(file) if file is not None else None

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def write(self, model: Model, report: TrainingReport, title: str, anyway: bool) -> None:
        """Write the result of prune or cluster."""
        self.finish(
            model, report, lambda: report_page(report, title), partial(_print, report), anyway
        )

    def finish(
        self,
        model: Model,
        report: Told,
        page: Callable[[], str],
        shown: Callable[[Path | None], None],
        anyway: bool,
    ) -> None:
        """All is made before anything is written; exit status 1 if what was asked does not hold.
        page: the report as one; shown: prints it, with where the model went."""
        content = dump(model)
        sheet = page().encode() if self.paper else b""
        missed = bool(report.target) and not report.target["met"]
        is_kept = (not missed or anyway) and not report.problems
        if self.file and is_kept:
            write_target(self.file, content)
        if self.paper:
            write_target(self.paper, sheet)
        if not self.json.write(report.to_json()):
            shown(self.output if is_kept else None)
        if missed or report.problems:
            raise _failed(report, bool(self.file) and not is_kept)


def _failed(report: Told, held_back: bool) -> typer.Exit:
    say(f"sanderling: {target_line(report) if report.target else check_line(report)}")
    if held_back:
        more = "; --anyway writes the best one" if not report.problems else ""
        say(f"  no model is written{more}")
    return typer.Exit(FAILED)


def _print(report: TrainingReport, output: Path | None) -> None:
    pieces = [_summary(report, output), table(COMPARED, compared_rows(report))]
    if report.target:
        pieces += [target_line(report), table(TRIALS, trial_rows(report))]
    if report.accuracy:
        lines = [table(ACCURACY, accuracy_rows(report)[:SHOWN]), *report.accuracy["lines"]]
        pieces += ["\n".join(lines)]
    pieces += [table(LATENCY, latency_rows(report))]
    pieces += [table(SPEED, speed_rows(report)) if report.latency else ""]
    pieces += [table(EPOCHS, epoch_rows(report)[-SHOWN:]), _layers(report)]
    typer.echo("\n\n".join(filter(None, pieces)))


def _summary(report: TrainingReport, output: Path | None) -> str:
    rows: list[tuple[str, object]] = [("model", report.source)]
    rows += [("written", output)] if output else []
    rows += [("zeros", f"{report.zeros:.1%} of the weights of products")]
    for name, before, after in (
        ("size", report.size_before, report.size_after),
        ("zipped", report.zipped_before, report.zipped_after),
    ):
        rows.append((name, f"{byte_size(before)} -> {byte_size(after)} ({after / before:.1%})"))
    before, after = report.macs
    left = f"{before / 1e6:.4g} M -> {after / 1e6:.4g} M without those by zeros"
    rows += [("MACs", f"{left} ({after / max(1, before):.1%})")]
    rows += [("check", check_line(report))]
    if report.xnnpack:
        more = f", and {len(report.xnnpack) - 1} more reasons" if len(report.xnnpack) > 1 else ""
        rows += [("LiteRT", f"does not use the zeros: {report.xnnpack[0]}{more}")]
    rows += [("note" if not i else "", text) for i, text in enumerate(report.notes)]
    return facts(rows)


def _layers(report: TrainingReport) -> str:
    rows = layer_rows(report)
    more = f"\nand {len(rows) - SHOWN} more in --json and --report" if len(rows) > SHOWN else ""
    return table(LAYERS, rows[:SHOWN]) + more
