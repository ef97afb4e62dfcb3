"""Pictures of a measurement: histograms, time series, and the chart of a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..pages import heading, html_table, page, paragraph, side_by_side
from ..plots import COLOURS, figure, inline, kind_of, legend_below, render
from . import bench_tables
from .bench_results import Bench
from .noise import sentences
from .record import Result
from .sample_statistics import median_interval

PANELS = 3  # histogram, series, chart
DOTS = 1500  # of a setting
WIDE = 4.0  # from so many times on, an axis is logarithmic
BESIDE = 0.015  # of the axis
SHOWN = 99.0  # percentile that the axes end at: one disturbed run must not squeeze the others

TABLES = {
    "Latency": bench_tables.latency, "Compared": bench_tables.comparisons,
    "Does a delegate pay?": bench_tables.delegates, "Start": bench_tables.starting,
    "Memory by what holds it": bench_tables.held, "Resident memory": bench_tables.resident,
    "Beside load": bench_tables.contention, "Not measured": bench_tables.failures,
}  # fmt: skip


def plot_bench(bench: Bench, path: str | Path) -> bytes:
    """All models in one picture, or a page with tables and pictures."""
    kind = kind_of(path)
    if kind == ".html":
        return as_page(bench).encode()
    models = [m for m in bench.models if any(r.rounds for r in bench.of(m))]
    with figure(max(len(models), 1), PANELS, (15, 4.6 * max(len(models), 1))) as (made, axes):
        grid = np.atleast_2d(axes)
        for row, model in zip(grid, models, strict=False):
            _row(row, model, [r for r in bench.of(model) if r.rounds])
        return render(made, kind)


def as_page(bench: Bench) -> str:
    parts = [paragraph(_place(bench))]
    parts += [paragraph(w, note=True) for w in sentences(bench.warnings)]
    for title, make in TABLES.items():
        table = make(bench)
        if table[1]:
            parts += [heading(title), html_table(*table)]
    for chosen in bench.recommendations:
        parts.append(paragraph(f"{chosen.model}: take {chosen.setting}: {chosen.why}"))
    for model in bench.models:
        results = [r for r in bench.of(model) if r.rounds]
        if results:
            parts += [heading(model), side_by_side(_panels(model, results))]
    return page("sanderling bench", parts)


def _panels(model: str, results: Sequence[Result]) -> Iterator[str]:
    """The three pictures of a model, each by itself: a narrow page puts them below each other."""
    with ExitStack() as opened:
        made = [opened.enter_context(figure(1, 1, (5.4, 4.6))) for _ in range(PANELS)]
        _row([axes for _, axes in made], model, results)
        yield from (inline(one) for one, _ in made)


def _place(bench: Bench) -> str:
    facts = bench.machine
    return f"{facts['cpu']}, {facts['cores']} cores, {facts['system']}, {facts['date']}"


def _row(axes: Sequence[Any], model: str, results: Sequence[Result]) -> None:
    most = max(float(np.percentile(r.samples, SHOWN)) for r in results) * 1e3
    least = max(min(min(r.samples) for r in results) * 1e3, 1e-6)
    _histogram(axes[0], results, least, most)
    _series(axes[1], results, least, most)
    _chart(axes[2], results)
    axes[0].set_title(Path(model).stem, loc="left", fontsize=10)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _scale(least: float, most: float) -> str:
    """Choose a log axis where engines or disturbed samples are far apart."""
    return "log" if most > WIDE * least else "linear"


def _histogram(axes: Any, results: Sequence[Result], least: float, most: float) -> None:
    space = np.geomspace if _scale(least, most) == "log" else np.linspace
    edges = space(least, most * 1.02 + 1e-9, 60)
    for index, result in enumerate(results):
        axes.hist(
            np.array(result.samples) * 1e3,
            edges,
            alpha=0.55,
            color=_colour(index),
            label=result.setting.name,
        )
    axes.set(xlabel="ms", ylabel="samples", xscale=_scale(least, most))
    legend_below(axes)


def _series(axes: Any, results: Sequence[Result], least: float, most: float) -> None:
    """Samples at the time that they were taken: disturbances are seen to hit all or one."""
    for index, result in enumerate(results):
        begun = result.begun or [0.0] * len(result.rounds)
        if len(begun) != len(result.rounds):
            continue
        times = np.concatenate(
            [b + np.cumsum(r) * result.block for b, r in zip(begun, result.rounds, strict=True)]
        )
        # A page with every one of them would be too large to open: some are drawn.
        shown = np.random.default_rng(0).permutation(len(times))[:DOTS]
        axes.plot(
            times[shown],
            np.array(result.samples)[shown] * 1e3,
            ".",
            markersize=2,
            color=_colour(index),
            label=result.setting.name,
        )
    axes.set(
        xlabel="seconds since the first round",
        ylabel="ms",
        ylim=(0.9 * least, 1.05 * most),
        yscale=_scale(least, most),
    )
    legend_below(axes, markerscale=4)


def _chart(axes: Any, results: Sequence[Result]) -> None:
    """By thread count if there are several, otherwise a bar for each setting."""
    families: dict[str, list[Result]] = {}
    for result in results:
        families.setdefault(_family(result), []).append(result)
    counts = sorted({r.setting.threads for r in results})
    for index, (name, members) in enumerate(families.items()):
        members.sort(key=lambda r: r.setting.threads)
        found = [median_interval(r.by_launch) for r in members]
        middle = np.array([f.value for f in found]) * 1e3
        ends = np.array([[f.value - f.low for f in found], [f.high - f.value for f in found]]) * 1e3
        if len(counts) > 1:
            # A little beside each other, so that intervals at the same count are all seen.
            beside = BESIDE * (counts[-1] - counts[0]) * (index - (len(families) - 1) / 2)
            axes.errorbar(
                [r.setting.threads + beside for r in members],
                middle,
                ends,
                marker="o",
                capsize=3,
                label=name,
                color=_colour(index),
            )
        else:
            axes.barh([name], middle, xerr=ends, color=_colour(index), capsize=3)
    if len(counts) > 1:
        axes.set(xlabel="threads", ylabel="median ms", xticks=counts)
        axes.set_ylim(bottom=0)
        legend_below(axes)
    else:
        axes.set(xlabel="median ms, with the interval of repetitions")
        axes.invert_yaxis()


def _family(result: Result) -> str:
    """The setting without its thread count."""
    words = result.setting.name.split(", ")
    return ", ".join(w for w in words if not w.endswith(("thread", "threads")))
