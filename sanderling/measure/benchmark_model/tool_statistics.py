"""Statistics with the tool's arithmetic, so that figures compare with figures it has printed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Stat:
    """Whole microseconds (or bytes), in the order in which they came."""

    values: list[int] = field(default_factory=list)

    def add(self, value: int) -> None:
        self.values.append(value)

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def first(self) -> int:
        return self.values[0] if self.values else 0

    @property
    def last(self) -> int:
        return self.values[-1] if self.values else 0

    @property
    def min(self) -> int:
        return min(self.values, default=0)

    @property
    def max(self) -> int:
        return max(self.values, default=0)

    @property
    def sum(self) -> int:
        return sum(self.values)

    @property
    def avg(self) -> float:
        return self.sum / self.count if self.values else math.nan

    @property
    def variance(self) -> float:
        """The variance of the population, from sums of squares."""
        if self._all_same:
            return 0.0
        squares = sum(v * v for v in self.values)
        return max(0.0, squares / self.count - self.avg**2)

    @property
    def std(self) -> int:
        """Truncated: the tool keeps it in a whole number."""
        return int(math.sqrt(self.variance))

    @property
    def _all_same(self) -> bool:
        return self.min == self.max

    def percentile(self, percent: int) -> int:
        """The value at the floor of its place, never one in between; 0 of nothing. The tool's
        percentile(100) is the last value that came; this is the largest."""
        place = min(self.count * percent // 100, self.count - 1)
        return sorted(self.values)[place] if self.values else 0

    def short_line(self) -> str:
        """Without percentiles, as in the summary of a profile."""
        if not self.values:
            return "count=0"
        if self._all_same:
            return f"count={self.count} curr={self.last}{'(all same)' * (self.count > 1)}"
        return (
            f"count={self.count} first={self.first} curr={self.last} min={self.min} "
            f"max={self.max} avg={self.avg:g} std={self.std}"
        )

    def line(self) -> str:
        p5, median, p95 = (self.percentile(p) for p in (5, 50, 95))
        return f"{self.short_line()} p5={p5} median={median} p95={p95}"

    def to_json(self) -> dict[str, float | int | None]:
        return {
            "count": self.count,
            "first": self.first,
            "last": self.last,
            "min": self.min,
            "max": self.max,
            "avg": self.avg if self.values else None,
            "std": self.std,
            "p5": self.percentile(5),
            "median": self.percentile(50),
            "p95": self.percentile(95),
        }


def microseconds(seconds: Sequence[float]) -> Stat:
    """The nearest whole microseconds."""
    return Stat([round(s * 1e6) for s in seconds])
