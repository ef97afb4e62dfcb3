"""Charts as data: what `static/charts.js` draws with uPlot."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .markup import Markup, tag

Number = float | None


@dataclass(frozen=True)
class Series:
    """Points of one name, with their intervals where these are known. is_line: joined."""

    name: str
    x: Sequence[float]
    y: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    labels: Sequence[str] = ()  # of the points
    is_line: bool = True


@dataclass(frozen=True)
class Chart:
    """A chart with its axes; x and y are in the units that their labels say."""

    title: str
    x: str
    y: str
    series: Sequence[Series] = field(default_factory=list)
    counts: bool = False  # x are whole numbers

    def markup(self) -> Markup:
        """Nothing where there is nothing to see. The figures themselves stand in a table beside."""
        if not any(s.x for s in self.series):
            return Markup("")
        plot = tag("div", class_="plot", data_chart=json.dumps(self._record()), aria_hidden="true")
        return tag("figure", tag("figcaption", self.title), plot)

    def _record(self) -> dict[str, object]:
        return {
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "counts": self.counts,
            "series": [_series(s) for s in self.series],
        }


def _series(one: Series) -> dict[str, object]:
    return {
        "name": one.name,
        "x": _finite(one.x),
        "y": _finite(one.y),
        "low": _finite(one.low),
        "high": _finite(one.high),
        "labels": list(one.labels),
        "line": one.is_line,
    }


def _finite(values: Sequence[Number]) -> list[Number]:
    """JSON has no NaN."""
    return [v if v is not None and math.isfinite(v) else None for v in values]
