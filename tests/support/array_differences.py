"""How values differ, in a few lines: a failed comparison prints at most a screen."""

from __future__ import annotations

from typing import Any

import numpy as np

from sanderling.ir import Array

SHOWN = 5  # of the elements that differ


def unlike(ours: Any, theirs: Any, share: float = 0.0, where: str = "") -> str:
    """The first difference, types included and deeply; empty if there is none.

    share: how far floats may be apart, of the largest number in their array: sums of another order
    differ by that much where they cancel, however small they are.
    """
    if isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return f"{where} has keys {_short(list(ours))}, expected {_short(list(theirs))}"
        return _first(unlike(ours[k], theirs[k], share, f"{where}[{k!r}]") for k in theirs)
    if isinstance(theirs, list | tuple):
        if type(ours) is not type(theirs) or len(ours) != len(theirs):
            return f"{where} is {_short(ours)}, expected {_short(theirs)}"
        pairs = enumerate(zip(ours, theirs, strict=True))
        return _first(unlike(a, b, share, f"{where}[{i}]") for i, (a, b) in pairs)
    if isinstance(theirs, np.ndarray):
        return _unlike_arrays(np.asarray(ours), theirs, share, where)
    same = type(ours) is type(theirs) and bool(ours == theirs)
    return "" if same else f"{where} is {_short(ours)}, expected {_short(theirs)}"


def _first(found: Any) -> str:
    return next(filter(None, found), "")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _unlike_arrays(ours: Array, theirs: Array, share: float, where: str) -> str:
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return f"{where} is {ours.dtype} {ours.shape}, expected {theirs.dtype} {theirs.shape}"
    if ours.dtype.kind not in "fiu":
        bad, gap = ours != theirs, np.zeros(1)
    else:
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):  # inf - inf
            gap = np.where(same, 0, np.abs(a - b))
        top = np.abs(b[np.isfinite(b)]).max(initial=0) if ours.dtype.kind == "f" else 0
        bad = ~same & ~(gap <= share * top)
    if not bad.any():
        return ""
    places = [tuple(map(int, p)) for p in np.argwhere(bad)[:SHOWN]]
    lines = [f"  {p}: {ours[p]!r}, expected {theirs[p]!r}" for p in places]
    head = f"{where} {ours.dtype} {ours.shape}: {int(bad.sum())} of {ours.size} differ"
    return "\n".join([f"{head}, by {gap.max():.4g} at most", *lines])
