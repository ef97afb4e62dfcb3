"""A share of the semantic fuzzer; `make fuzz` runs the rest."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.ir import Array, Graph, Model, Op, Tensor
from sanderling.ir.compare import models_equal

from .conformance.cases_control import emit, graph
from .conformance.harness import Case
from .support import fuzz_semantics
from .support.fuzz_semantics import FINDINGS, Run, fuzz, kinds_of, mutant, parting, unexcused
from .support.model_mutations import by_operator

COUNT = 400


@pytest.mark.slow
def test_a_share_of_mutants() -> None:
    found = fuzz(COUNT, workers=1)
    bad = [o for o in found if o.kind in FINDINGS]
    assert not bad, "\n".join(f"{n}x {o}" for n, o in kinds_of(bad))
    assert len(found) == COUNT and sum(o.kind == "ran" for o in found) > COUNT // 4


MENDED = {
    224862: "a gather of rank 0",
    229067: "a zero point of int8 weights",
    229522: "strings that are said to be sparse",
    237262: "an overflow of a hybrid convolution",
    241344: "an attribute that is another operator's",
}


def test_what_was_found_is_mended() -> None:
    found = Run(list(MENDED), workers=1).found
    assert {o.seed: o.kind in ("ran", "refused") for o in found} == dict.fromkeys(MENDED, True)


def test_a_seed_repeats_its_mutant() -> None:
    for seed in range(40):
        (row, model, _, done), (again, other, _, too) = mutant(seed), mutant(seed)
        assert row is again and done == too and models_equal(model, other) is None


def test_all_operators_are_mutated() -> None:
    rows = {mutant(seed)[0].op for seed in range(2000)}
    assert len(rows) > 0.95 * len(by_operator())


def logistic_and_negation() -> Model:
    def body(g: Graph, x: Tensor) -> list[Tensor]:
        return [emit(g, "NEG", [emit(g, "LOGISTIC", [x], (1, 4))], (1, 4))]

    return Model([graph("main", body, ("f32", (1, 4)))])


@pytest.mark.parametrize(
    ("parts", "excused"),
    [(("LOGISTIC",), True), ((), False), (("NEG",), False), (("LOGISTIC", "NEG"), False)],
)
def test_only_the_op_that_parts_is_excused(
    parts: tuple[str, ...], excused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negation of a logistic function is as near as it must be; a wrong NEG is not."""
    exact = fuzz_semantics.evaluate

    def shifted(op: Op, arrays: list[Array], state: object) -> list[Array]:
        made = exact(op, arrays, state)
        return [a + np.float32(5e-7) if op.name in parts else a for a in made]

    monkeypatch.setattr(fuzz_semantics, "evaluate", shifted)
    model, strict = logistic_and_negation(), Case("LOGISTIC")
    given = [np.full((1, 4), -8, np.float32)]
    assert (parting(strict, model, given, "they differ") is None) == excused


def test_what_an_excuse_forgives() -> None:
    """Each forgives its own kind of difference, for the ops that claim it."""
    minus, nan, codes = np.float32([-np.inf]), np.float32([np.nan]), np.int8([4])
    row, gelu, norm = Case("GELU"), Op("GELU", [], []), Op("L2_NORMALIZATION", [], [])
    assert unexcused(row, [gelu], minus, nan) is None
    assert unexcused(row, [gelu], nan, minus) is not None
    assert unexcused(row, [norm], minus, nan) is not None
    assert unexcused(row, [gelu], codes, codes + np.int8(1)) is not None
