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
Launches = Sequence[Rounds]  # and by the process that they come from
# Student's t for 95 % on both sides, by degrees of freedom from 1.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
_NORMAL = 1.96
# Log ratios of quiet runs of one comparison, minutes apart, spread by 0.007 on the machine of
# benchmarks/RESULTS.md, also where the launches of each run agreed better than that.
BETWEEN_TIMES = 0.01
# Fitted in simulation: of runs of five launches, a third of them on a busy machine, 94 % lay in
# each other's intervals (1.12: 93 %, 1.5: 95 %).
MARGIN = 1.3


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
    """Summarise samples; return None if there are none."""
    return summarised(samples) if len(samples) else None


def summarised(samples: Sequence[float]) -> Summary:
    """Summarise samples, of which there is at least one."""
    array = np.asarray(samples, np.float64)
    p5, median, p95 = (float(v) for v in np.percentile(array, (5, 50, 95)))
    return Summary(
        array.size,
        float(array[0]),
        float(array.mean()),
        median,
        p5,
        p95,
        float(array.std()),
        float(array.min()),
        float(array.max()),
    )


class Ratio(NamedTuple):
    """A ratio and its 95 % interval; `logs` are the bootstrap's replicates, for means of ratios."""

    value: float
    low: float
    high: float
    logs: Floats

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"

    def times(self, factor: float) -> Ratio:
        """The ratio where one side counts so many times."""
        if factor == 1:
            return self
        low, high = self.low * factor, self.high * factor
        return Ratio(self.value * factor, low, high, self.logs + np.log(factor))


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


def ratio_of_launches(slow: Launches, fast: Launches, paired: bool = True, seed: int = 0) -> Ratio:
    """The median over launches of median(slow) / median(fast), and the interval in which 95 of 100
    repetitions of the whole measurement find theirs.

    Where a process's memory happens to lie changes its speed for its whole life, by more than all
    its rounds show: an interval from the rounds of one launch is far too narrow. (Of 30 repetitions
    on a busy machine a third lay in each other's; benchmarks/repeatability.py shows how many do
    with launches.) So launches are drawn, and rounds within them; and another time is another time.
    paired: both come from the same rounds, otherwise from measurements of different times.
    """
    rng = np.random.default_rng(seed)
    if paired:
        logs = _logs(list(zip(slow, fast, strict=False)), rng)
        centre, drawn = float(np.median(logs[0])), _spread(*logs, rng)
    else:
        ones: list[Rounds] = [[[1.0]]] * max(len(slow), len(fast))
        above, below = (_logs(list(zip(s, ones, strict=False)), rng) for s in (slow, fast))
        centre = float(np.median(above[0]) - np.median(below[0]))
        drawn = _spread(*above, rng) - _spread(*below, rng)
    other = np.sqrt(2) * BETWEEN_TIMES * rng.standard_normal(REPLICATES)
    return _interval(centre, centre + drawn + other)


def _logs(
    pairs: Sequence[tuple[Rounds, Rounds]], rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """The log ratio of every launch, and how far it is off when its rounds are drawn anew."""
    found, off = [], []
    for slow, fast in pairs:
        above, below = (np.array([np.median(r) for r in rounds]) for rounds in (slow, fast))
        below = np.broadcast_to(below, above.shape) if len(below) == 1 else below
        count = min(len(above), len(below))  # a launch that was cut short
        draws = rng.integers(0, count, (REPLICATES, count))
        logs = np.log(np.median(above[draws], axis=1) / np.median(below[draws], axis=1))
        found.append(np.log(np.median(above[:count]) / np.median(below[:count])))
        off.append(logs - logs.mean())
    return np.array(found), np.array(off)


def _spread(found: Floats, off: Floats, rng: np.random.Generator) -> Floats:
    """How far repetitions lie from this one, for which the root of two: it is uncertain itself.

    The median over launches, not their mean: a mean follows the one launch that the machine
    disturbed, and repetitions on a machine that is busy now and then lay in each other's intervals
    8 times of 10, with the median more than 9. Medians of resampled launches reach the outermost
    ones; where there are fewer than five, those are too near, and Student's t says by how much.
    """
    count = len(found)
    within = np.sqrt(2) * off.mean(axis=0)
    if count < 2:  # nothing is known of other launches
        return within
    drawn = found[rng.integers(0, count, (REPLICATES, count))]
    medians = np.median(drawn, axis=1) - np.median(found)
    few = MARGIN * max(1.0, student(count - 1) / student(4))
    return few * np.sqrt(2) * medians + within


def student(freedom: int) -> float:
    return _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL + 2.7 / freedom


def median_interval(launches: Launches) -> Ratio:
    """The median of one configuration in seconds, with its interval."""
    ones: list[Rounds] = [[[1.0]]] * len(launches)
    return ratio_of_launches(launches, ones)


def geometric_mean(ratios: Sequence[Ratio]) -> Ratio:
    logs = np.mean([r.logs for r in ratios], axis=0)
    return _interval(float(np.mean([np.log(r.value) for r in ratios])), logs)


def _interval(log: float, logs: Floats) -> Ratio:
    low, high = np.exp(np.percentile(logs, (2.5, 97.5)))
    return Ratio(float(np.exp(log)), float(low), float(high), logs)
