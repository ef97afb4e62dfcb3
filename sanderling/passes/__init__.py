"""Passes from graph to graph: valid in, valid out, the same results.

    report = run_passes(graph, PIPELINES["default"])
    print(report.table())

A pipeline is ordered data; its names show up in reports and dumps. Each pass says what fired how
often. Passes that need a kernel's help (padding of any kind, fused epilogues) are the delegates'.
"""

from __future__ import annotations

from . import fuse, layout, simplify
from .common import Fired, Pass, PassReport, by_rules, run_passes

FOLD = Pass("fold constants", simplify.fold_constants)
FOLD_BUT_WEIGHTS = Pass("fold constants", simplify.fold_but_weights)
SIMPLIFY = by_rules("simplify", simplify.RULES)
LAYOUT = Pass("sink transposes", layout.sink_transposes)
PAD_LATER = by_rules("pad later", layout.RULES)
FUSE = by_rules("fuse", (*simplify.RULES, *fuse.RULES))
MERGE = Pass("merge duplicates", simplify.merge_duplicates)
CLEAN = Pass("remove dead code", simplify.remove_dead)

PIPELINES: dict[str, tuple[Pass, ...]] = {
    # What every consumer wants: nothing that a reader of the graph would not recognise.
    "constants": (FOLD, CLEAN),
    "simplify": (FOLD, SIMPLIFY, MERGE, CLEAN),
    # Clamps must see their producers, so transposes between them go first.
    "default": (FOLD, SIMPLIFY, LAYOUT, PAD_LATER, FUSE, MERGE, CLEAN),
    # For a file: weights stay as they are stored, float16 or sparse.
    "file": (FOLD_BUT_WEIGHTS, SIMPLIFY, LAYOUT, PAD_LATER, FUSE, MERGE, CLEAN),
}

__all__ = ["PIPELINES", "Fired", "Pass", "PassReport", "run_passes"]
