"""One run of `sanderling run`, which is printed and recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import Array
from .run_files import Files

if TYPE_CHECKING:
    from ..evaluate.tasks.output_readers import Findings


@dataclass
class FinishedRun:
    """One run and what came of it."""

    title: str
    files: Files
    seconds: float
    compile_seconds: float  # before it, and in it for shapes that are new
    outputs: dict[str, Array] = field(default_factory=dict)
    top: dict[str, list[dict[str, Any]]] | None = None  # with --labels
    found: Findings | None = None

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "seconds": self.seconds,
            "compile_seconds": self.compile_seconds,
            "outputs": {name: _describe(array) for name, array in self.outputs.items()},
        }
        made |= {} if self.top is None else {"top": self.top}
        return made | ({self.found.kind: self.found.rows} if self.found else {})


def _describe(array: Array) -> dict[str, Any]:
    numeric = array.dtype.kind in "fiub" and array.size > 0
    return {
        "type": str(array.dtype),
        "shape": list(array.shape),
        "min": array.min().item() if numeric else None,
        "max": array.max().item() if numeric else None,
        "mean": float(array.mean(dtype=np.float64)) if numeric else None,
        "first": array.reshape(-1)[:8].tolist(),
    }
