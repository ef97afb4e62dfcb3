"""`simplify`: ops that change nothing, copies and transposes taken out of a model's file.

Our own runtime leaves them out whenever it compiles. A file without them is for others: LiteRT on a
phone executes every TRANSPOSE that it is given.
"""

from __future__ import annotations

import os
from collections import Counter

from ..format import load
from ..ir import Model
from ..passes import PIPELINES, run_passes
from .driver import Change, Rewritten

# What `for` says of a model that is rewritten for nobody in particular.
ANYBODY = "any runtime"


def simplify(model: Model | str | os.PathLike[str]) -> Rewritten:
    """A model that answers the same with fewer ops: transposes that cancel, padding that a
    convolution can do, activations apart from their producers, ops on constants, duplicates, and
    ops whose results nobody reads. Weights stay as they are stored."""
    source = model if isinstance(model, Model) else load(model)
    made = source.copy()
    fired: Counter[str] = Counter()
    for graph in made.graphs:
        fired += run_passes(graph, PIPELINES["file"]).fired
    counts = (_op_count(source), _op_count(made))
    if counts[0] == counts[1]:  # what only changes places is no gain
        return Rewritten(source.copy(), ANYBODY, (counts[0], counts[0]), [], [])
    changes = [Change(f"{count} times", name, [name], "") for name, count in fired.most_common()]
    return Rewritten(made, ANYBODY, counts, [], [], changes, notes=[_gone(source, made)])


def _gone(before: Model, after: Model) -> str:
    """Which ops there are fewer of, in words."""
    old, new = _names(before), _names(after)
    told = [f"{name} {old[name]} -> {new[name]}" for name, _ in (old - new).most_common()]
    return f"fewer ops: {', '.join(told)}"


def _names(model: Model) -> Counter[str]:
    return Counter(op.name for graph in model.graphs for op in graph.ops)


def _op_count(model: Model) -> int:
    return sum(len(graph.ops) for graph in model.graphs)
