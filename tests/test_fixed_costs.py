"""What does not change between runs is done once: models of a few ops are all fixed costs."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.ir import Graph, Model, Tensor
from sanderling.ops import execute
from sanderling.runtime.plan import Binding, Plan
from tests.conformance.cases import CASES
from tests.conformance.cases_control import emit, graph
from tests.cpu.harness import check_cpu


def _forbid(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
    def never(*args: object) -> None:
        raise AssertionError(f"{name} ran again")

    monkeypatch.setattr(owner, name, never)


def test_the_reference_checks_operators_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model([graph("main", lambda g, x: [emit(g, "NEG", [x], (2,))], ("f32", (2,)))])
    session = model.compile(["reference"])
    session(np.zeros(2, np.float32))
    _forbid(monkeypatch, execute, "check")
    assert session(np.array([1, -2], np.float32)).tolist() == [-1, 2]


def test_inputs_that_are_outputs_are_copied_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(g: Graph, x: Tensor, y: Tensor) -> list[Tensor]:
        return [x, emit(g, "ADD", [x, y], (2,)), x]

    session = Model([graph("main", body, ("f32", (2,)), ("f32", (2,)))]).compile(["cpu"])
    x, y = np.zeros(2, np.float32), np.ones(2, np.float32)
    bound = session.bind({"main_in0": x, "main_in1": y})
    bound.run()
    _forbid(monkeypatch, Binding, "_collect")
    for value in (3, 5):
        x[:] = value
        bound.run()
        found = [a.tolist() for a in bound.binding.outputs]
        assert found == [[value] * 2, [value + 1] * 2, [value] * 2]


@pytest.mark.parametrize("delegate", ["reference", "cpu"])
def test_loops_are_bound_once(monkeypatch: pytest.MonkeyPatch, delegate: str) -> None:
    row = next(c for c in CASES if c.op == "WHILE" and c.name == "swaps its state")
    model = row.model()
    arrays = [np.asarray(a) for a in row.arrays(model, np.random.default_rng(0))]
    feeds = {t.name: a for t, a in zip(model.main.inputs, arrays, strict=True)}
    bound = model.compile([delegate]).bind(feeds)
    bound.run()
    first = [a.copy() for a in bound.binding.outputs]
    _forbid(monkeypatch, Binding, "__init__")
    _forbid(monkeypatch, Plan, "call")
    bound.run()
    for before, after in zip(first, bound.binding.outputs, strict=True):
        np.testing.assert_array_equal(before, after)


def test_graphs_that_are_called_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of the result depends on the branch: this IF is the reference's."""
    row = next(c for c in CASES if c.op == "IF" and c.name == "shape depends on branch")
    model = row.model()
    arrays = [np.asarray(a) for a in row.arrays(model, np.random.default_rng(0))]
    bound = model.compile(["cpu"]).bind(
        {t.name: a for t, a in zip(model.main.inputs, arrays, strict=True)}
    )
    bound.run()
    first = bound.binding.outputs[0].copy()
    _forbid(monkeypatch, Binding, "__init__")
    bound.run()
    np.testing.assert_array_equal(bound.binding.outputs[0], first)


def test_scalar_variables_are_compiled() -> None:
    """A scalar's shape was not told from an unknown one."""
    row = next(c for c in CASES if c.op == "READ_VARIABLE" and c.name == "scalar")
    assert check_cpu(row) == ""
