"""The guide's table of model types and accelerators, computed for one model.

A model is judged in each of its types by each accelerator's rules. The mark is a yes where most of
its work (multiplications; where it has none, ops) is taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import SanderlingError
from ..ir import Graph, Op
from ..ops import cost
from ..ops.base import DATA_ERRORS
from .judgement import Judgement, Verdict, judge_by
from .tables import find_table

TYPES = ("float32", "float16", "dynamic range", "integer", "quantisation-aware")
# The guide's four, and two more.
COLUMNS = {
    "GPU": "gpu",
    "NNAPI": "nnapi:30",
    "Hexagon": "hexagon",
    "Core ML": "coreml:3",
    "Edge TPU": "edgetpu",
    "XNNPACK": "xnnpack",
}
GUIDE = "tensorflow.org/lite/performance/delegates"
# The guide says no, though the delegate's sources expand such weights by now: older releases, of
# which the guide speaks, do not.
COUNTED_OUT = {("float16", "NNAPI")}


@dataclass(frozen=True)
class Cell:
    """What becomes of a model of some type on an accelerator.

    taken: the mark. by_rules: what it is by the rules alone, whatever the guide says. ops, work:
    shares that are taken. reason: what keeps most work away, and the source of that.
    """

    taken: bool
    by_rules: bool
    ops: float
    work: float
    reason: str
    source: str


def model_types(graphs: Mapping[str, Graph]) -> dict[str, dict[str, Cell]]:
    """Rows by type, cells by accelerator; graphs: the model's main graph in each type."""
    return {
        kind: {column: _cell(graph, kind, column) for column in COLUMNS}
        for kind, graph in graphs.items()
    }


def _cell(graph: Graph, kind: str, column: str) -> Cell:
    found = judge_by(find_table(COLUMNS[column]), graph)
    sizes = {v.op: _macs(v.op) for v in found.verdicts}
    ops, work = _share(found, dict.fromkeys(sizes, 1)), _share(found, sizes)
    most = work if any(sizes.values()) else ops
    if (kind, column) in COUNTED_OUT:
        return Cell(False, most > 0.5, ops, work, "the guide counts this type out", GUIDE)
    blamed = _blamed(found, sizes)
    source = blamed.source if blamed else ""
    return Cell(most > 0.5, most > 0.5, ops, work, _said(blamed), source)


def _share(found: Judgement, sizes: Mapping[Op, int]) -> float:
    taken = sum(sizes[v.op] for v in found.verdicts if v.is_taken)
    return taken / (sum(sizes.values()) or 1)


def _blamed(found: Judgement, sizes: Mapping[Op, int]) -> Verdict | None:
    """A refused op of the kind that costs most."""
    refused = [v for v in found.verdicts if v.reason]
    weights = Counter[tuple[str, str | None]]()
    for v in refused:
        weights[v.op.name, v.reason] += 1 + sizes[v.op]
    return max(refused, key=lambda v: weights[v.op.name, v.reason], default=None)


def _said(verdict: Verdict | None) -> str:
    return f"{verdict.op.name}: {verdict.reason}" if verdict else ""


def _macs(op: Op) -> int:
    try:
        return cost(op).macs
    except (SanderlingError, *DATA_ERRORS):
        return 0
