"""The table of known models: model by configuration, as the guide has it, from own figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..pages import html_table, page, paragraph
from ..tables import markdown
from .bench_results import Bench
from .bench_tables import Table, milliseconds
from .engines import TITLES
from .noise import sentences
from .record import Setting


def model_table(bench: Bench) -> Table:
    """A row for each model, a column for each configuration; --- where it does not run."""
    settings = list(dict.fromkeys(r.setting for r in bench.results if not r.setting.contend))
    medians = {(r.model, r.setting): r.summary.median for r in bench.results if r.summary}
    shown = _titles(settings)
    rows = [
        [Path(model).stem, _kind(facts), *(_cell(medians.get((model, s))) for s in settings)]
        for model, facts in bench.models.items()
    ]
    return ["~model", "kind", *(f">{shown[s]}" for s in settings)], rows


def _kind(facts: dict[str, object]) -> str:
    kinds = str(facts.get("quantisation", "-")).split(" + ")
    return kinds[0] + (" and more" if len(kinds) > 1 else "")


def _cell(seconds: float | None) -> str:
    return "---" if seconds is None else f"{milliseconds(seconds)} ms"


def _titles(settings: list[Setting]) -> dict[Setting, str]:
    """`CPU, 4 threads` as the guide writes it, with the engine before it."""
    return {s: replace(s, engine=TITLES.get(s.engine, s.engine)).name for s in settings}


def _about(bench: Bench) -> str:
    facts = bench.machine
    made = {r.setting.engine for r in bench.results}
    names = {"litert": "ai-edge-litert"}
    versions = ", ".join(
        f"{names.get(e, e)} {facts['versions'].get(names.get(e, e), '?')}"
        for e in TITLES
        if e in made
    )
    return (
        f"Median latency of one inference on {facts['cpu']}, {facts['cores']} cores, "
        f"{facts['system']}, measured on {facts['date']} with {versions}. --- means that the "
        "engine does not run the model there."
    )


def as_markdown(bench: Bench) -> str:
    lines = [_about(bench), "", markdown(*model_table(bench))]
    if bench.warnings:
        lines += ["", "Disturbances while measuring:", ""]
        lines += [f"- {text}" for text in sentences(bench.warnings)]
    return "\n".join(lines) + "\n"


def as_html(bench: Bench) -> str:
    columns, rows = model_table(bench)
    notes = [paragraph(text, note=True) for text in sentences(bench.warnings)]
    return page(
        "Performance of known models", [paragraph(_about(bench)), html_table(columns, rows), *notes]
    )
