"""What `compare` found as tables, plots and a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..pages import heading, html_table, page, paragraph, side_by_side
from ..plots import COLOURS, figure, inline, kind_of, render
from ..tables import markdown
from ..units import MIB, byte_size
from .candidates import Candidate, front
from .compare import Compared

COLUMNS = ["~model", "setting", ">{headline}", "95 % interval", "against the best", ">ms",
           "95 % interval of ms", ">size", ">memory", "%beaten by"]  # fmt: skip
DOT = 5.0  # points


def columns(found: Compared) -> list[str]:
    return [c.format(headline=found.headline) for c in COLUMNS]


def rows(found: Compared) -> list[list[str]]:
    """A row for each candidate, the most accurate first."""
    return [_row(c) for c in sorted(found.candidates, key=lambda c: (-c.accuracy, c.latency))]


def _row(one: Candidate) -> list[str]:
    gap = one.against_best
    return [
        one.model,
        one.setting,
        f"{one.accuracy:.4f}",
        _range(one.accuracy_interval, 1, 4),
        "" if gap is None else f"{gap['value']:+.4f} [{gap['low']:+.4f}, {gap['high']:+.4f}]",
        f"{one.latency * 1e3:.3f}",
        _range(one.latency_interval, 1e3, 3),
        byte_size(one.size),
        "" if one.memory is None else byte_size(one.memory),
        "" if one.is_on_front else ", ".join(one.beaten_by),
    ]


def _range(interval: tuple[float, float] | None, factor: float, digits: int) -> str:
    if interval is None:
        return ""
    low, high = (f"{factor * bound:.{digits}f}" for bound in interval)
    return f"{low} to {high}"


def lines(found: Compared) -> list[str]:
    """What is said below the table."""
    told = [f"on the front: {', '.join(c.name for c in found.candidates if c.is_on_front)}"]
    if found.answer is not None:
        chosen = found.answer.chosen
        told.append(f"take {chosen}: {found.answer.why}" if chosen else found.answer.why)
        told += [f"next: {command}" for command in found.answer.next_steps]
    told += found.notes
    told += [f"left out: {name}: {why}" for name, why in found.left_out.items()]
    return told


def as_markdown(found: Compared) -> str:
    heads = [c.lstrip("~%|") for c in columns(found)]
    told = "\n".join(f"- {line}" for line in lines(found))
    return f"{markdown(heads, rows(found))}\n\n{told}\n"


# -- plots ----------------------------------------------------------------------------------------

Figure = Callable[[Candidate], float]
GRAPHS: tuple[tuple[str, str, Figure, tuple[str, str]], ...] = (
    ("size against accuracy", "size in MiB", lambda c: c.size / MIB, ("accuracy", "size")),
    ("accuracy against latency", "latency in ms", lambda c: c.latency * 1e3,
     ("accuracy", "latency")),
)  # fmt: skip


def plot(found: Compared, path: str | Path) -> bytes:
    """Both plots side by side, or a page with the tables."""
    kind = kind_of(path)
    if kind == ".html":
        return as_page(found).encode()
    with figure(1, len(GRAPHS), (13, 5.5)) as (made, axes):
        for one, graph in zip(axes, GRAPHS, strict=True):
            _draw(one, found, *graph)
        _explain(made, found)
        return render(made, kind)


def _draw(
    axes: Any, found: Compared, title: str, label: str, x: Figure, names: tuple[str, str]
) -> None:
    """A model has a colour and a setting has a shape; who is beaten is hollow."""
    best = front(found.candidates, names)
    axes.set_title(title)
    axes.set_xlabel(label)
    axes.set_ylabel(found.headline)
    axes.set_xscale("log")
    # Between two of the front there is nothing: what costs less than the next one is the last one.
    axes.step([x(c) for c in best], [c.accuracy for c in best], where="post", color=FRONT, zorder=1)
    for c in found.candidates:
        low, high = c.accuracy_interval or (c.accuracy, c.accuracy)
        colour, shape = _looks(found, c)
        axes.errorbar(
            [x(c)],
            [c.accuracy],
            yerr=[[c.accuracy - low], [high - c.accuracy]],
            fmt=shape,
            color=colour,
            markerfacecolor=colour if c in best else "white",
            markersize=DOT,
            capsize=2,
            elinewidth=0.8,
            zorder=2,
        )


FRONT, SHAPES = "#999999", "os^Dv<>p"


def _looks(found: Compared, one: Candidate) -> tuple[str, str]:
    models = list(dict.fromkeys(c.model for c in found.candidates))
    settings = list(dict.fromkeys(c.setting for c in found.candidates))
    return (
        COLOURS[models.index(one.model) % len(COLOURS)],
        SHAPES[settings.index(one.setting) % len(SHAPES)],
    )


def _explain(made: Any, found: Compared) -> None:
    """What colours and shapes mean, once for all graphs, below them."""
    from matplotlib.lines import Line2D

    def sign(label: str, **looks: Any) -> Any:
        return Line2D([], [], label=label, **({"linestyle": "none", "marker": "o"} | looks))

    signs = [sign("front", color=FRONT, linestyle="-", marker="")]
    signs += [
        sign(c.model, color=_looks(found, c)[0])
        for c in {c.model: c for c in found.candidates}.values()
    ]
    shapes = {c.setting: _looks(found, c)[1] for c in found.candidates}
    if len(shapes) > 1:
        signs += [sign(name, color="#444444", marker=shape) for name, shape in shapes.items()]
    signs.append(sign("beaten by another", color="#444444", markerfacecolor="white"))
    made.legend(handles=signs, loc="outside lower center", ncols=3, fontsize=8, frameon=False)


def as_page(found: Compared) -> str:
    parts = [paragraph(f"{found.task} on {found.samples} samples")]
    parts += [paragraph(line) for line in lines(found)]
    parts += [heading("Candidates"), html_table(columns(found), rows(found))]
    parts += [heading("Graphs"), side_by_side(_graphs(found))]
    return page("sanderling compare", parts)


def _graphs(found: Compared) -> Sequence[str]:
    drawn = []
    for graph in GRAPHS:
        with figure(1, 1, (7, 5.5)) as (made, axes):
            _draw(axes, found, *graph)
            _explain(made, found)
            drawn.append(inline(made))
    return drawn
