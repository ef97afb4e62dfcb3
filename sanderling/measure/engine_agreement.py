"""Do engines agree? Their answers to the same inputs, compared with what rounding explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..ir.types import Array

UNITS = 3  # integer answers may differ by so many units
CLASSES = 0.01  # plain integers (classes, indices): this share of them may differ
# Floats, as a share of the largest answer. A quantised model rounds on its way, each engine in its
# own manner; at bf16 a number has eight bits.
TOLERANCE = {("float", "f32"): 1e-3, ("float", "bf16"): 5e-2, ("quantised", "f32"): 5e-2}


def group(kind: str) -> str:
    """quantised or float, from what `inspect` calls the quantisation."""
    words = ("full integer", "dynamic range", "int16")
    return "quantised" if any(w in kind for w in words) else "float"


def tolerance(kind: str, precision: str) -> float:
    which = group(kind)
    return TOLERANCE.get((which, precision if which == "float" else "f32"), 5e-2)


def compare(ours: Sequence[Array], theirs: Sequence[Array], limit: float) -> tuple[str, bool]:
    """The largest gap between two engines' answers in words, and whether it is small enough."""
    if [a.shape for a in ours] != [a.shape for a in theirs]:
        shapes = " and ".join(str([list(a.shape) for a in both]) for both in (ours, theirs))
        return f"shapes {shapes}", False
    gaps = [_gap(a, b, limit) for a, b in zip(ours, theirs, strict=True)]
    if not gaps:
        return "no outputs", False
    return max(gaps, key=lambda g: g[0])[1], all(g[0] <= 1 for g in gaps)


def _gap(ours: Array, theirs: Array, limit: float) -> tuple[float, str]:
    """The gap in parts of what is allowed, and in words."""
    if not ours.size:
        return 0.0, "empty"
    if ours.dtype != theirs.dtype:
        return np.inf, f"types {ours.dtype} and {theirs.dtype}"
    if (ours.dtype.itemsize > 2 and ours.dtype.kind in "iu") or ours.dtype.kind in "bOS":
        share = float(np.mean(ours != theirs))
        return share / CLASSES, f"{100 * share:.2g} % differ"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    gap = float(np.abs(a - b).max())
    if ours.dtype.kind in "iu":
        return gap / UNITS, f"{gap:.0f} units"
    if not np.isfinite(gap):
        same = bool(np.array_equal(a, b, equal_nan=True))
        return (0.0 if same else np.inf), "0" if same else "not finite"
    share = gap / max(float(np.abs(a).max()), 1e-30)
    return share / limit, f"{share:.0e}" if share else "0"


def compare_all(
    answers: Mapping[str, Sequence[Array]], base: str, limits: Mapping[str, float]
) -> dict[str, tuple[str, bool]]:
    """Everybody's answers against those of `base`, or of the first if that has none."""
    base = base if base in answers else next(iter(answers), "")
    return {
        name: compare(answers[base], theirs, limits[name])
        for name, theirs in answers.items()
        if name != base
    }
