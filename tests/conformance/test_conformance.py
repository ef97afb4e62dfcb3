"""Every case of the table: LiteRT judges the definitions, and the whole runtime on top of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

from sanderling.ir import Array, Model
from sanderling.ops import OPS

from .cases import CASES
from .harness import Case, check

FEWEST_CASES = 3


def run_session(model: Model, feeds: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Through planning, partitioning and the reference delegate, as users run models."""
    session = model.compile()
    results = []
    for arrays in feeds:
        plan = session.plan(shapes=[a.shape for a in arrays])
        outputs = plan.bind(arrays, [None] * len(model.main.outputs)).run()
        results.append([a.copy() for a in outputs])
    return results


@pytest.mark.parametrize("row", CASES, ids=lambda row: row.id)
def test_agrees_with_litert(row: Case) -> None:
    if row.litert:
        pytest.importorskip("ai_edge_litert", reason="the judge: pip install 'sanderling[peers]'")
    check(row, seed=0)
    check(row, seed=1, run=run_session)


def operators(row: Case) -> set[str]:
    """The operators a case exercises: its own, or all those of a model it builds."""
    if row.build is None:
        return {row.op}
    return {op.name for graph in row.build().graphs for op in graph.ops}


def test_every_operator_has_cases(capsys: pytest.CaptureFixture[str]) -> None:
    """The table covers every operator, and every element type that its row claims."""
    counts = Counter(name for row in CASES for name in operators(row))
    few = {name: counts[name] for name in OPS if counts[name] < FEWEST_CASES}
    assert not few, f"fewer than {FEWEST_CASES} cases: {few}"
    tried: dict[str, set[str]] = defaultdict(set)
    for row in CASES:
        if row.build is None:
            tried[row.op] |= {t.dtype for t in row.inputs if t is not None}
    untried = {name: set(OPS[name].types) - found for name, found in tried.items()}
    untried = {name: types for name, types in untried.items() if types}
    assert not untried, f"types without a case: {untried}"
    with capsys.disabled():
        print(f"\nconformance: {len(OPS)} operators, {len(CASES)} cases")
