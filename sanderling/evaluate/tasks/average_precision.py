"""The average precision of TensorFlow Lite's own tool: its ten lines and `Overall mAP`.

It is not COCO's: no crowds, no ranges of area, no limit to the number of detections, and a class
that is only predicted counts as 0. `coco_metrics.py` has the figures that the world compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...ir import Array
from .coco_metrics import Record
from .detection import overlaps

THRESHOLDS = np.float32(0.5) + np.arange(10, dtype=np.float32) * np.float32(0.05)
RECALLS = 100  # and one for recall 0
Groups = dict[int, dict[int, list[Record]]]  # by category, then by picture


class Simple(NamedTuple):
    by_threshold: list[float]
    overall: float

    def lines(self) -> list[str]:
        each = [
            f"Average Precision [IOU Threshold={t:g}]: {v:.6g}"
            for t, v in zip(THRESHOLDS, self.by_threshold, strict=True)
        ]
        return [*each, f"Overall mAP: {self.overall:.6g}"]


def simple_average_precision(truth: Sequence[Record], results: Sequence[Record]) -> Simple:
    """Means over the classes that are annotated or predicted."""
    wanted, found = _grouped(truth), _grouped(results)
    classes = sorted({*wanted, *found})
    if not classes:
        return Simple([0.0] * len(THRESHOLDS), 0.0)
    each = np.array([_of_class(wanted.get(c, {}), found.get(c, {})) for c in classes])
    return Simple([float(v) for v in each.mean(axis=0)], float(each.mean()))


def _grouped(rows: Sequence[Record]) -> Groups:
    groups: Groups = defaultdict(lambda: defaultdict(list))
    for row in rows:
        groups[row["category_id"]][row["image_id"]].append(row)
    return groups


def _of_class(truth: dict[int, list[Record]], found: dict[int, list[Record]]) -> Array:
    """Return the AP of one class at each threshold."""
    count = sum(map(len, truth.values()))
    if not count or not found:
        return np.zeros(len(THRESHOLDS))
    scores, hits = [], []
    for image, rows in found.items():
        rows = sorted(rows, key=lambda r: -r["score"])
        scores += [r["score"] for r in rows]
        hits.append(_matched(_edges(truth.get(image, [])), _edges(rows)))
    order = np.argsort(-np.array(scores), kind="stable")
    curve = np.concatenate(hits, axis=1)[:, order].cumsum(axis=1).astype(np.float32)
    precision = curve / np.arange(1, len(order) + 1, dtype=np.float32)
    recall = curve / np.float32(count)  # as the tool's, for 0.29 * 100 is 29 in float32 alone
    return np.array([_area(p, r) for p, r in zip(precision, recall, strict=True)])


def _edges(rows: Sequence[Record]) -> Array:
    boxes = np.array([r["bbox"] for r in rows], np.float32).reshape(-1, 4)
    return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)


def _matched(truth: Array, found: Array) -> Array:
    """[thresholds, found]: whether the best box that is still free overlaps enough."""
    hits = np.zeros((len(THRESHOLDS), len(found)), bool)
    if not len(truth):
        return hits
    free = np.ones((len(THRESHOLDS), len(truth)), bool)
    each = np.arange(len(THRESHOLDS))
    for i, row in enumerate(overlaps(found, truth)):
        open_ious = np.where(free, row, -np.inf)
        best = open_ious.argmax(axis=1)
        hits[:, i] = open_ious[each, best] >= THRESHOLDS
        free[each[hits[:, i]], best[hits[:, i]]] = False
    return hits


def _area(precision: Array, recall: Array) -> float:
    """The mean, over 101 recalls, of the best precision at that recall or more."""
    best = np.maximum.accumulate(precision[::-1])[::-1]
    at = np.searchsorted(recall * np.float32(RECALLS), np.arange(RECALLS + 1), side="left")
    return float(np.append(best, 0.0)[at].sum() / (RECALLS + 1))
