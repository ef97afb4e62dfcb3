"""A share of the semantic fuzzer; `make fuzz` runs the rest."""

from __future__ import annotations

from sanderling.ir.compare import models_equal

from .support.fuzz_semantics import FINDINGS, fuzz, kinds_of, mutant
from .support.model_mutations import by_operator

COUNT = 600


def test_a_share_of_mutants() -> None:
    found = fuzz(COUNT, workers=1)
    bad = [o for o in found if o.kind in FINDINGS]
    assert not bad, "\n".join(f"{n}x {o}" for n, o in kinds_of(bad))
    assert len(found) == COUNT and sum(o.kind == "ran" for o in found) > COUNT // 4


def test_a_seed_repeats_its_mutant() -> None:
    for seed in range(40):
        (row, model, _, done), (again, other, _, too) = mutant(seed), mutant(seed)
        assert row is again and done == too and models_equal(model, other) is None


def test_all_operators_are_mutated() -> None:
    rows = {mutant(seed)[0].op for seed in range(2000)}
    assert len(rows) > 0.95 * len(by_operator())
