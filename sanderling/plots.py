"""Plots by matplotlib: as a .png, an .svg, or inside an HTML page."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .errors import MissingExtraError
from .files import check_ending
from .glyphs import cells, fonts_for, letters_of, spelled
from .pages import page

# Distinct also for readers who do not see all colours (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
KINDS = (".png", ".svg", ".html")
# Digits that logarithmic axes name, by the powers of ten that they span; below NARROW even steps.
SUBS = ((1.0, (1, 2, 3, 5, 7)), (3.0, (1, 2, 5)), (5.0, (1, 3)), (math.inf, (1,)))
NARROW = 0.5
WIDEST = 9.0  # inches of a figure that shrinks with its page


def kind_of(path: str | Path) -> str:
    """The kind of plot that a file name asks for; an unknown one is refused before the work."""
    return check_ending(path, KINDS, "picture")


@contextmanager
def figure(rows: int = 1, columns: int = 1, size: tuple[float, float] = (9, 4.5)) -> Iterator[Any]:
    """(figure, axes) of matplotlib, without a display and without global state."""
    try:
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing pictures") from error
    style = {
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "font.size": 10,
        "text.parse_math": False,  # a name with $ in it is a name
        "svg.fonttype": "none",
        "svg.hashsalt": "sanderling",
    }
    with matplotlib.rc_context(style):
        made = Figure(figsize=size, layout="constrained")
        yield made, made.subplots(rows, columns)


def render(figure: Any, kind: str) -> bytes:
    """The figure as the bytes of a .png or .svg file."""
    _plain_ticks(figure)
    _legible(figure)
    target = io.BytesIO()
    stamp = {"Date": None} if kind == ".svg" else {}
    figure.savefig(target, format=kind.lstrip("."), dpi=120, metadata=stamp)
    return target.getvalue()


def _legible(figure: Any) -> None:
    """Letters that the usual font lacks come from another one, or are spelled otherwise."""
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if not text.get_text().isascii()]
    chosen = fonts_for(text.get_text() for text in texts)
    for text in texts:
        text.set_text(
            spelled(text.get_text(), lambda c: any(ord(c) in letters_of(f) for _, f in chosen))
        )
        if len(chosen) > 1:
            text.set_fontfamily(["sans-serif", *(family for family, _ in chosen[1:])])


def _plain_ticks(figure: Any) -> None:
    """Logarithmic axes say 1, 2, 5, 10, and more numbers between where they span less."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        scale = axis.get_scale()
        if scale not in ("log", "symlog"):
            continue
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.6g}"))
        axis.set_minor_formatter(NullFormatter())
        if scale == "symlog":
            continue
        low, high = sorted(axis.get_view_interval())
        decades = math.log10(high / low) if low > 0 else 1.0
        subs = next(s for most, s in SUBS if decades < most)
        narrow = decades < NARROW
        axis.set_major_locator(MaxNLocator(5) if narrow else LogLocator(10, subs, numticks=12))


def legend_below(axes: Any, columns: int = 2, **more: Any) -> None:
    """What the lines mean, where it covers none of them."""
    place = {"loc": "upper left", "bbox_to_anchor": (0, -0.16)}
    axes.legend(**place, ncols=columns, fontsize=8, frameon=False, **more)


# Where a name may stand around its spot: so many points from its edge, in these directions.
AWAY = [(d, math.pi * k / 4) for d in (8, 15, 23, 33, 45) for k in (1, 3, -1, -3, 0, 4, 2, -2)]


class Spot(NamedTuple):
    """A spot in a plot: its place in the units of the axes, its radius in points."""

    x: float
    y: float
    radius: float


def label_spots(
    figure: Any, axes: Any, spots: Sequence[Spot], texts: Mapping[int, str], size: float = 7.5
) -> None:
    """Names beside spots, the first the most important: each at the nearest place where it covers
    no other name and no spot, with a line to its own; where there is none it has no name. texts: by
    the place of the spot in `spots`."""
    figure.draw_without_rendering()  # only now it is known where things lie
    points = 72 / figure.dpi
    at = [tuple(points * n for n in axes.transData.transform((s.x, s.y))) for s in spots]
    frame = [points * n for n in axes.get_window_extent().extents]
    taken = [_box(x, y, s.radius, s.radius) for (x, y), s in zip(at, spots, strict=True)]
    for number, text in texts.items():
        (x, y), spot = at[number], spots[number]
        half = 0.36 * size * cells(text), 0.6 * size
        for away, angle in AWAY:
            dx, dy = ((spot.radius + away) * f(angle) for f in (math.cos, math.sin))
            box = _box(x + dx, y + dy, *half)
            if _is_inside(box, frame) and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                axes.annotate(
                    text,
                    (spot.x, spot.y),
                    (dx, dy),
                    textcoords="offset points",
                    ha="center",
                    va="center",
                    fontsize=size,
                    zorder=5,
                    arrowprops={"arrowstyle": "-", "lw": 0.5, "color": "#555"},
                )
                break


Box = tuple[float, float, float, float]  # left, bottom, right, top


def _box(x: float, y: float, half_width: float, half_height: float) -> Box:
    return x - half_width, y - half_height, x + half_width, y + half_height


def _is_inside(box: Box, frame: Sequence[float]) -> bool:
    return frame[0] < box[0] and frame[1] < box[1] and box[2] < frame[2] and box[3] < frame[3]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def inline(figure: Any) -> str:
    """The figure as an <svg> element for a page, as wide as there is room."""
    text = render(figure, ".svg").decode()
    wide = figure.get_figwidth()
    # Letters of a figure with very many layers would vanish: it is moved under its frame instead.
    least = f" style='--least: {0.6 * wide:.1f}in'" if wide > WIDEST else ""
    return f"<div class=figure{least}>{text[text.index('<svg') :]}</div>"


def as_file(figure: Any, path: str | Path, title: str) -> bytes:
    """The bytes of the plot, of the kind that the file's name asks for."""
    kind = kind_of(path)
    return page(title, [inline(figure)]).encode() if kind == ".html" else render(figure, kind)
