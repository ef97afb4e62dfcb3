"""Sums and products of two 8-bit tensors, as the definition rounds them: a plane, or a slope, in
32-bit integers.

The definition brings both operands to a common scale, adds and scales back, with five roundings.
There are 65536 pairs of codes: the plane's numbers are chosen so that all of them agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .....ir import Array, Op, Tensor
from .....ops.base import scale_zero
from .....ops.fixed import fused_range, multiply, quantize_multiplier


@dataclass(frozen=True)
class Side:
    """An operand: its scale, and its codes' range without the zero point."""

    scale: float
    low: int
    high: int

    @classmethod
    def of(cls, tensor: Tensor) -> Side:
        scale, zero = scale_zero(tensor)
        low, high = tensor.dtype.bounds
        return cls(scale, low - zero, high - zero)

    @property
    def codes(self) -> Array:
        return np.arange(self.low, self.high + 1)


def clamped(op: Op) -> Side:
    """The op's result: what it is clamped to."""
    scale, zero = scale_zero(op.outputs[0])
    low, high = fused_range(op)
    return Side(scale, low - zero, high - zero)


@dataclass(frozen=True)
class Plane:
    """floor((total + above) / 2**shift) of total = a * x + b * y, x and y without zero points;
    below instead of above where the total is negative. exact: this is the definition."""

    a: int
    b: int
    above: int
    below: int
    shift: int
    exact: bool = True


@lru_cache(256)
def plane(x: Side, y: Side, out: Side, sign: int = 1) -> Plane:
    """x + y, or x - y; out: the result's scale, and what it is clamped to."""
    real = x.scale / out.scale, sign * y.scale / out.scale
    shift = _shift(x, y, *real)
    pairs = _near(x, y, out, sign, real, shift)
    for more in _TRIES if shift > 1 else ():
        a, b = (round(r * 2.0**shift) + i for r, i in zip(real, more, strict=True))
        heights = _heights(a, b, pairs, shift, out)
        if heights is not None:
            return Plane(a, b, *heights, shift)
    a, b = (round(r * 2.0**shift) for r in real)
    return Plane(a, b, 1 << (shift - 1), (1 << (shift - 1)) - 1, shift, exact=False)


# How far a and b may be from the nearest, and above and below from a half; all ways to choose a and
# b, the nearest first.
REACH, ROOM = 4, 256
_TRIES = sorted(
    ((i, j) for i in range(-REACH, REACH + 1) for j in range(-REACH, REACH + 1)),
    key=lambda t: abs(t[0]) + abs(t[1]),
)


def _near(
    x: Side, y: Side, out: Side, sign: int, real: tuple[float, float], shift: int
) -> tuple[Array, Array, Array]:
    """The pairs next to a step, which alone can go wrong, and their results."""
    u, v = (g.ravel() for g in np.meshgrid(x.codes, y.codes, indexing="ij"))
    units = u * real[0] + v * real[1]
    reach = (256 * (2 * REACH + 2) + ROOM) * 0.5**shift
    near = np.abs(units - np.floor(units) - 0.5) < reach
    near &= (units > out.low - 1) & (units < out.high + 1)
    return u[near], v[near], np.clip(_defined(x, y, out, sign)[near], out.low, out.high)


def _heights(
    a: int, b: int, pairs: tuple[Array, Array, Array], shift: int, out: Side
) -> tuple[int, int] | None:
    """above and below with which all pairs are right; the same, if one will do."""
    u, v, wanted = pairs
    return _fitting(a * u + b * v, wanted, shift, out)


def _fitting(
    total: Array, wanted: Array, shift: int, out: Side, room: int = ROOM
) -> tuple[int, int] | None:
    least = (wanted << shift) - total
    # What is clamped may be beyond.
    low = np.where(wanted > out.low, least, -_FAR)
    high = np.where(wanted < out.high, least + (1 << shift) - 1, _FAR)
    usual = 1 << (shift - 1)
    ends = [
        (low[part].max(initial=usual - room), high[part].min(initial=usual + room))
        for part in (total >= 0, total < 0)
    ]
    both = max(e[0] for e in ends), min(e[1] for e in ends)
    if both[0] <= both[1]:
        ends = [both, both]
    if any(first > last for first, last in ends):
        return None
    return int(sum(ends[0]) // 2), int(sum(ends[1]) // 2)


_FAR = 1 << 40


def _shift(x: Side, y: Side, first: float, second: float) -> int:
    """The most that leaves sums in 32 bits."""
    most = sum(abs(r) * max(abs(s.low), abs(s.high)) for r, s in ((first, x), (second, y)))
    return int(np.clip(np.floor(np.log2(2.0**31 * 0.999 / (most + 1))), 1, 30))


def _defined(x: Side, y: Side, out: Side, sign: int) -> Array:
    """The definition of ADD and SUB for all pairs, before clamping."""
    s1, s2 = (float(np.float32(s.scale)) for s in (x, y))
    twice = 2 * max(s1, s2)
    u, v = (
        multiply(side.codes << 20, *quantize_multiplier(s / twice))
        for side, s in ((x, s1), (y, s2))
    )
    total = (u[:, None] + sign * v).ravel()
    return multiply(total, *quantize_multiplier(twice / (2.0**20 * out.scale)))


# -- products -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope:
    """floor((p * high + floor(p * low / 2**PART) + above) / 2**shift); below where p is negative.
    In two parts, so that the factor has more bits than a product of 32 leaves."""

    high: int
    low: int
    above: int
    below: int
    shift: int


PART = 14


@lru_cache(256)
def slope(least: int, most: int, real: float, out: Side) -> Slope | None:
    """p * real as the definition rounds it, for all p from `least` to `most`, less than 2**16 in
    size; None where no numbers are found with which it is."""
    top = max(abs(least), abs(most), 1)
    shift = int(np.clip(np.floor(29 - np.log2(real * top)), 0, 30))
    factor = round(real * 2.0 ** (shift + PART))
    if top >= 1 << 16 or shift < 2 or factor >> PART >= 2**31:
        return None
    p = np.arange(least, most + 1)
    high, low = factor >> PART, factor & ((1 << PART) - 1)
    wanted = np.clip(multiply(p, *quantize_multiplier(real)), out.low, out.high)
    total = p * high + (p * low >> PART)
    # What is beyond all codes may be clamped before it leaves 32 bits.
    heights = _fitting(total, wanted, shift, out, 1 << (shift - 2))
    return None if heights is None else Slope(high, low, *heights, shift)
