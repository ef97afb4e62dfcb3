"""Intervals for figures that are no mean over samples, such as mAP and mIoU: the bootstrap.

Pictures are drawn anew, with replacement, and the figure is made of each draw. For two models both
figures are made of the same draws: what makes a picture hard for both cancels, and a difference
shows that two intervals side by side would hide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir import Array

DRAWS = 200
Figure = Callable[[Array], float]  # of how often each picture is there


def draws(pictures: int, count: int = DRAWS, seed: int = 0) -> Array:
    """[count, pictures]: how often each is drawn. Always the same ones."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(pictures, np.full(pictures, 1 / pictures), count)


def compared(ours: Figure, theirs: Figure, pictures: int) -> dict[str, Any]:
    """Both figures and their difference, with its 95 % interval."""
    once = np.ones(pictures, np.int64)
    values = {"ours": ours(once), "theirs": theirs(once)}
    spread = [ours(w) - theirs(w) for w in draws(pictures)]
    low, high = np.percentile(spread, [2.5, 97.5])
    return values | {
        "difference": {
            "value": values["ours"] - values["theirs"],
            "low": float(low),
            "high": float(high),
        },
        "draws": len(spread),
    }


def compared_line(name: str, found: dict[str, Any]) -> str:
    gap = found["difference"]
    inside = f"95 % interval {gap['low']:+.4f} to {gap['high']:+.4f}"
    return (
        f"{name}: {found['ours']:.4f} against {found['theirs']:.4f}, difference "
        f"{gap['value']:+.4f} ({inside})"
    )


class Curves:
    """AP over all areas, of pictures that count as often as they are drawn. Matches do not depend
    on that, so they are taken from an evaluation that pycocotools has done."""

    def __init__(self, run: Any) -> None:
        self.recalls = run.params.recThrs
        images, areas = len(run.params.imgIds), len(run.params.areaRng)
        limit = run.params.maxDets[-1]
        self.each = []
        for start in range(0, len(run.evalImgs), images * areas):  # the first area is all of them
            rows = run.evalImgs[start : start + images]
            if any(r is not None for r in rows):
                self.each.append(_Category(rows, limit))

    def __call__(self, weights: Array) -> float:
        found = [ap for c in self.each if (ap := c.ap(weights, self.recalls)) is not None]
        return float(np.mean(found)) if found else 0.0


class _Category:
    def __init__(self, rows: list[Any], limit: int) -> None:
        there = [(i, r) for i, r in enumerate(rows) if r is not None]
        scores = np.concatenate([r["dtScores"][:limit] for _, r in there])
        order = np.argsort(-scores, kind="mergesort")
        homes = [np.full(len(r["dtScores"][:limit]), i, np.intp) for i, r in there]
        self.image = np.concatenate(homes)[order]
        matched, ignored = (
            np.concatenate([r[n][:, :limit] for _, r in there], axis=1)[:, order].astype(bool)
            for n in ("dtMatches", "dtIgnore")
        )
        self.hits, self.misses = matched & ~ignored, ~matched & ~ignored
        self.truth = np.zeros(len(rows), np.int64)
        for i, row in there:
            self.truth[i] = (np.asarray(row["gtIgnore"]) == 0).sum()

    def ap(self, weights: Array, recalls: Array) -> float | None:
        """The mean over thresholds and recalls; None where nothing is annotated in the draw."""
        total = int(self.truth @ weights)
        if not total:
            return None
        each = weights[self.image]
        hits = np.cumsum(self.hits * each, axis=1, dtype=np.float64)
        misses = np.cumsum(self.misses * each, axis=1, dtype=np.float64)
        precision = hits / (hits + misses + np.spacing(1))
        best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        best = np.pad(best, ((0, 0), (0, 1)))
        rows = [
            b[np.searchsorted(r, recalls, side="left")]
            for b, r in zip(best, hits / total, strict=True)
        ]
        return float(np.mean(rows))
