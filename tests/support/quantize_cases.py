"""The conformance cases that are float models of one op with something to quantise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sanderling.ir import Array, DType, Model
from sanderling.optimize.calibration.canonical import canonical
from sanderling.optimize.modes.rules import RULES

from ..conformance.cases import CASES
from ..conformance.harness import Case

EACH = 2  # models for each operator


def _fits(case: Case, model: Model) -> bool:
    """A float model of one op, with something to quantise."""
    graph = model.main
    if len(graph.ops) != 1 or not graph.inputs or len(model.graphs) > 1:
        return False
    if any(0 in t.shape or t.is_variable for t in graph.tensors):
        return False
    if any(t.quant is not None and t.quant.is_set for t in graph.tensors):
        return False
    row = RULES[case.op]
    reals = [*row.flowing(graph.ops[0]), *(graph.outputs if row.real_out else [])]
    weights = [graph.ops[0].input(i) for i in row.weights]
    if any(t.dtype is not DType.FLOAT32 for t in reals):
        return False
    constant = all(w is not None and w.is_constant for w in weights)
    return constant and [op.name for op in canonical(model).main.ops] == [case.op]


def _models() -> Iterator[tuple[str, Case]]:
    for name in PLAIN:
        found = 0
        for case in CASES:
            if case.op == name and found < EACH and case.runs == 1 and _fits(case, case.model()):
                found += 1
                yield name, case


PLAIN = [name for name, row in RULES.items() if not row.recurrent]
MODELS = list(_models())


def feeds_of(case: Case, model: Model) -> list[Array]:
    return [np.asarray(a) for a in case.arrays(model, np.random.default_rng(0))]
