"""Statistics of samples: summaries of one series, and ratios of two with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

REPLICATES = 2000
Floats = npt.NDArray[np.float64]
Rounds = Sequence[Sequence[float]]  # samples by round


@dataclass(frozen=True)
class Summary:
    """One series of samples, in their own unit."""

    count: int
    first: float
    mean: float
    median: float
    p5: float
    p95: float
    std: float
    min: float
    max: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def summary(samples: Sequence[float]) -> Summary | None:
    """None of no samples."""
    if not len(samples):
        return None
    array = np.asarray(samples, np.float64)
    p5, median, p95 = (float(v) for v in np.percentile(array, (5, 50, 95)))
    return Summary(array.size, float(array[0]), float(array.mean()), median, p5, p95,
                   float(array.std()), float(array.min()), float(array.max()))  # fmt: skip


class Ratio(NamedTuple):
    """A ratio and its 95 % interval; `logs` are the bootstrap's replicates, for means of ratios."""

    value: float
    low: float
    high: float
    logs: Floats

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def median_of_rounds(rounds: Rounds) -> float:
    return float(np.median([np.median(r) for r in rounds]))


def ratio(slow: Rounds, fast: Rounds, seed: int = 0) -> Ratio:
    """median(slow) / median(fast), each a list of rounds of samples.

    Rounds are drawn, not samples: what disturbs the machine lasts longer than a run, so samples of
    one round are not independent. A round is drawn for both at once: they shared its disturbance.
    """
    above, below = (np.array([np.median(r) for r in rounds]) for rounds in (slow, fast))
    draws = np.random.default_rng(seed).integers(0, len(above), (REPLICATES, len(above)))
    logs = np.log(np.median(above[draws], axis=1) / np.median(below[draws], axis=1))
    return _interval(float(np.log(np.median(above) / np.median(below))), logs)


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    logs = np.mean([r.logs for r in ratios], axis=0)
    return _interval(float(np.mean([np.log(r.value) for r in ratios])), logs)


def _interval(log: float, logs: Floats) -> Ratio:
    low, high = np.exp(np.percentile(logs, (2.5, 97.5)))
    return Ratio(float(np.exp(log)), float(low), float(high), logs)
