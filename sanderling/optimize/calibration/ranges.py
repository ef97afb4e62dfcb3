"""From statistics to ranges: a method is a function (statistics, grid) -> (low, high)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...errors import InputError
from ..modes.scheme import Floats, Grid, Range
from .calibrate import Counts, Statistics

Method = Callable[[Statistics, Grid], Range]
STEPS = 64  # candidates for each end
LEAST = 0.2  # of the whole range: nothing is clipped to less
PERCENTILE = 99.99


def minmax(s: Statistics, grid: Grid) -> Range:
    """Everything that was seen."""
    return s.low, s.high


def average(s: Statistics, grid: Grid) -> Range:
    """The mean over samples of each sample's extremes: one odd sample counts little."""
    return s.mean_extremes


def percentile(s: Statistics, grid: Grid) -> Range:
    """All but the outermost 0.01 % at each end."""
    values, counts = s.values()
    share = np.cumsum(counts) / counts.sum()
    low = values[int(np.searchsorted(share, 1 - PERCENTILE / 100))]
    high = values[min(int(np.searchsorted(share, PERCENTILE / 100)), len(values) - 1)]
    return float(low), float(high)


def least_error(power: float) -> Method:
    """The range with the least mean error to this power: clipping weighed against the size of a
    step. The higher the power, the more a clipped value counts."""

    def method(s: Statistics, grid: Grid) -> Range:
        values, counts = s.values()

        def error(low: float, high: float) -> float:
            return _error(values, counts, low, high, grid, power)

        low, high = min(s.low, 0.0), max(s.high, 0.0)
        if grid.symmetric:
            ends = max(-low, high) * np.linspace(LEAST, 1, STEPS)
            best = float(ends[np.argmin([error(-e, e) for e in ends])])
            return -best, best
        # One end at a time, twice: the ends hardly depend on each other.
        for _ in range(2):
            highs = high * np.linspace(LEAST, 1, STEPS) if high > 0 else np.zeros(1)
            high = float(highs[np.argmin([error(low, h) for h in highs])])
            lows = low * np.linspace(LEAST, 1, STEPS) if low < 0 else np.zeros(1)
            low = float(lows[np.argmin([error(e, high) for e in lows])])
        return low, high

    return method


def _error(
    values: Floats, counts: Counts, low: float, high: float, grid: Grid, power: float
) -> float:
    """Sum of errors to the power: clipped values by how far, the others by a step's uniform noise.
    Zero is exact."""
    least, most = grid.bounds
    step = (high - low) / (most - least)
    first, last = np.searchsorted(values, low), np.searchsorted(values, high, "right")
    below, above = low - values[:first], values[last:] - high
    clipped = float(counts[:first] @ below**power + counts[last:] @ above**power)
    inside = values[first:last]
    moving = float(counts[first:last] @ (inside != 0.0))
    return clipped + moving * (step / 2) ** power / (power + 1)


def entropy(s: Statistics, grid: Grid) -> Range:
    """The range whose codes tell most about the values: least Kullback-Leibler divergence."""
    low, high = min(s.low, 0.0), max(s.high, 0.0)
    if low == high:
        return low, high
    values, counts = s.values()
    fine, edges = np.histogram(values, 2048, (low, high), weights=counts)
    shrinks = np.linspace(LEAST, 1, STEPS)
    divergences = [_divergence(fine, edges, low * k, high * k, 2**grid.bits) for k in shrinks]
    best = float(shrinks[int(np.argmin(divergences))])
    return low * best, high * best


def _divergence(fine: Floats, edges: Floats, low: float, high: float, levels: int) -> float:
    """The divergence of the clipped distribution from what its codes can say of it."""
    first, last = np.searchsorted(edges, low, "right") - 1, np.searchsorted(edges, high)
    inside = fine[first:last].astype(np.float64)
    if not inside.any():
        return math.inf
    clipped = inside.copy()
    clipped[0] += fine[:first].sum()
    clipped[-1] += fine[last:].sum()
    code = np.arange(len(inside)) * levels // len(inside)
    held = inside > 0
    mass = np.bincount(code, inside)
    wide = np.bincount(code, held)
    spread = np.where(held, (mass / np.maximum(wide, 1))[code], 0.0)
    p, q = clipped / clipped.sum(), spread / spread.sum()
    both = (p > 0) & (q > 0)
    # What the codes cannot say at all counts as if they said it once in a million.
    lost = p[(p > 0) & (q <= 0)]
    return float((p[both] * np.log(p[both] / q[both])).sum() + (lost * np.log(lost / 1e-6)).sum())


METHODS: dict[str, Method] = {
    "minmax": minmax, "average": average, "percentile": percentile, "mse": least_error(2),
    "l3": least_error(3), "entropy": entropy,
}  # fmt: skip


def method_of(name: str) -> Method:
    if name not in METHODS:
        raise InputError(
            f"there is no range method '{name}'", fix=f"the methods: {', '.join(METHODS)}"
        )
    return METHODS[name]
