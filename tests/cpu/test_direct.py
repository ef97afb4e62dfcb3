"""session.run by the fast path: the same answers, and the same refusals, as by the general one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sanderling import InputError
from sanderling.ir import Array, DType, Graph, Model
from sanderling.runtime.session import Session


def two_outputs() -> Model:
    """The outputs are not in the order in which they are computed."""
    graph = Graph()
    a, b = (graph.input(n, DType.FLOAT32, (2, 3)) for n in "ab")
    total, product = (graph.tensor(n, DType.FLOAT32, (2, 3)) for n in ("total", "product"))
    graph.add("ADD", [a, b], [total], fused_activation_function="NONE")
    graph.add("MUL", [total, b], [product], fused_activation_function="NONE")
    graph.outputs = [product, total]
    return Model([graph])


@pytest.fixture
def session() -> Session:
    made = two_outputs().compile(["cpu"])
    made.run(feeds())
    assert made._steady[None] is not None
    return made


def feeds(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=(2, 3)).astype(np.float32) for n in "ba"}


def check(session: Session, given: dict[str, Any]) -> None:
    found = session.run(given)
    a, b = np.asarray(given["a"], np.float32), np.asarray(given["b"], np.float32)
    assert list(found) == ["product", "total"]
    np.testing.assert_allclose(found["total"], a + b, rtol=1e-6)
    np.testing.assert_allclose(found["product"], (a + b) * b, rtol=1e-6)


def test_results_are_new_each_time(session: Session) -> None:
    first = session.run(feeds(1))
    kept = {n: a.copy() for n, a in first.items()}
    check(session, feeds(2))
    for name in kept:
        np.testing.assert_array_equal(first[name], kept[name])


def test_what_the_short_way_does_not_take_goes_the_general_one(session: Session) -> None:
    x = feeds(3)
    check(session, x | {"a": x["a"].tolist()})
    check(session, x | {"a": x["a"].astype(np.float64)})
    check(session, x | {"a": np.asfortranarray(x["a"])})
    check(session, {n: v[:1] for n, v in x.items()})  # another shape
    x["a"].flags.writeable = False
    check(session, x)
    out = np.empty((2, 3), np.float32)
    assert session.run(x, outputs={"total": out})["total"] is out


@pytest.mark.parametrize("wrong", [{"a": 0}, {"a": 0, "c": 0}, {"a": 0, "b": 0, "c": 0}, None, []])
def test_refusals_stay(session: Session, wrong: Any) -> None:
    x = feeds(4)
    given = dict.fromkeys(wrong, x["a"]) if isinstance(wrong, dict) else wrong
    with pytest.raises(InputError):
        session.run(given)
    check(session, x)


def test_types_are_not_mixed_up(session: Session) -> None:
    x = feeds(5)
    with pytest.raises(InputError, match="float32"):
        session.run(x | {"a": x["a"].astype(np.complex64)})
