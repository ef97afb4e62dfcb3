"""Class names for the scores of a classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..ir import Array
from ..runtime.inputs import class_names
from .common import plural, warn

# What the number of classes, less that of names, usually means.
CAUSES = {
    1: "probably class 0 is a background class that the file lacks; try --label-offset 1",
    0: "the names need no --label-offset",
    -1: "probably the first name is a background class that the model lacks; try --label-offset -1",
}


@dataclass(frozen=True)
class ClassNames:
    """Class names; the first belongs to class `offset`."""

    path: Path
    names: list[str]
    offset: int

    @staticmethod
    def read(path: Path, offset: int) -> ClassNames:
        return ClassNames(path, class_names(path), offset)

    def best(self, outputs: Mapping[str, Array], count: int) -> dict[str, list[dict[str, Any]]]:
        """The best classes of every output that holds class scores, for each row of a batch."""
        found: dict[str, list[dict[str, Any]]] = {}
        for name, scores in outputs.items():
            if not self.fits(name, scores):
                continue
            rows = scores.reshape(-1, scores.shape[-1])
            for i, row in enumerate(rows):
                found[name if len(rows) == 1 else f"{name}[{i}]"] = self._best(row, count)
        return found

    def fits(self, name: str, scores: Array) -> bool:
        """Whether the output looks like class scores; a mismatch of the numbers is said."""
        classes = scores.shape[-1] if scores.ndim else 0
        shift = classes - len(self.names)
        have = f"{self.path} has {plural(len(self.names), 'name')}"
        if not _one_row_each(scores) or abs(shift) > 1:
            warn(
                f"{have}, output '{name}' is {scores.dtype}{list(scores.shape)}: these are not "
                "scores of those classes, none are shown"
            )
            return False
        if shift != self.offset:
            warn(f"{have}, output '{name}' has {classes} classes: {CAUSES[shift]}")
        return True

    def _best(self, scores: Array, count: int) -> list[dict[str, Any]]:
        order = np.argsort(-scores.astype(np.float64), kind="stable")[:count]
        return [
            {"class": int(i), "label": self._name(int(i)), "score": scores[i].item()} for i in order
        ]

    def _name(self, index: int) -> str:
        place = index - self.offset
        return self.names[place] if 0 <= place < len(self.names) else f"class {index}"


def _one_row_each(scores: Array) -> bool:
    """Numbers along the last dimension, once for each picture of a batch."""
    if scores.dtype.kind not in "fiub" or scores.ndim == 0:
        return False
    rows = scores.shape[0] if scores.ndim > 1 else 1
    return scores.size == rows * scores.shape[-1] > 0
