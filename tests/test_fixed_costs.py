"""What does not change between runs is done once: models of a few ops are all fixed costs."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import Interpreter, dump
from sanderling.delegates.reference import _own
from sanderling.ir import Graph, Model, Tensor
from sanderling.ops import base, control, execute, lookup, lstm, lstm_integer, lut
from sanderling.ops.fixed import divide_by_pot, high_mul, multiply, wrap32
from sanderling.runtime.binding import Binding
from sanderling.runtime.plans import Plans
from sanderling.runtime.subgraph import Subgraph
from tests.conformance.cases import CASES
from tests.conformance.cases_control import emit, graph

from .support.cpu_conformance import check_cpu


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


def test_fixed_point_functions_of_words_are_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """A basic LSTM of four cells took milliseconds of NumPy calls."""
    every = np.arange(-(2**15), 2**15)
    for looked_up, computed in ((lut.logistic_fixed, lut._logistic), (lut.tanh_fixed, lut._tanh)):
        np.testing.assert_array_equal(looked_up(every, 3), computed(every, 3, 16))
    _forbid(monkeypatch, lut, "exp_negative")
    assert lut.logistic_fixed(every[:4], 3).shape == lut.tanh_fixed(every[:4], 3).shape == (4,)


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
    _forbid(monkeypatch, Subgraph, "call")
    bound.run()
    for before, after in zip(first, bound.binding.outputs, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("op", ["IF", "WHILE", "STABLEHLO_CASE"])
def test_plans_of_graphs_that_are_called_are_found_once(
    monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    """On the reference; shapes are the same in every run."""
    row = next(c for c in CASES if c.op == op)
    model = row.model()
    arrays = [np.asarray(a) for a in row.arrays(model, np.random.default_rng(0))]
    bound = model.compile(["reference"]).bind(
        {t.name: a for t, a in zip(model.main.inputs, arrays, strict=True)}
    )
    bound.run()
    bound.run()  # in the first run one plan is made after the other
    first = [a.copy() for a in bound.binding.outputs]
    _forbid(monkeypatch, Plans, "find")
    bound.run()
    for before, after in zip(first, bound.binding.outputs, strict=True):
        np.testing.assert_array_equal(before, after)


def test_operators_on_strings_need_no_floating_point_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row = next(c for c in CASES if c.op == "EQUAL" and "str" in c.id)
    model = row.model()
    arrays = row.arrays(model, np.random.default_rng(0))
    session = model.compile(["reference"])
    first = session(*arrays)
    for owner, name in ((np, "errstate"), (execute, "definition"), (base, "definition")):
        _forbid(monkeypatch, owner, name)
    np.testing.assert_array_equal(session(*arrays), first)


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


# What is worked out once: an operator, a case of it, and what no second run may call.
ONCE = {
    "sums of 8 bits": ("LSTM", "8x8_8", lstm_integer, "quantize_multiplier"),
    "basic": ("LSTM", "basic 3e-05 120", lstm, "quantize_multiplier"),
    "branches": ("STABLEHLO_CASE", "3 branches", control, "_branches"),
    "branches of other shapes": ("IF", "shape depends on branch", control, "_branches"),
    "loop": ("WHILE", "shape grows", control, "_graph"),
    "tables": ("HASHTABLE_FIND", "once", lookup, "handle"),
}


_evaluation = execute._Evaluation


@pytest.mark.parametrize("what", ONCE)
def test_what_an_operator_alone_decides_is_worked_out_once(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The second run gives what a session of its own gives in its second run."""
    op, part, owner, name = ONCE[what]
    row = next(c for c in CASES if c.op == op and part in c.name)
    model = row.model()
    arrays = [np.asarray(a) for a in row.arrays(model, np.random.default_rng(0))]
    feeds = {t.name: a for t, a in zip(model.main.inputs, arrays, strict=True)}
    ours, other = model.compile(["reference"]), model.compile(["reference"])
    monkeypatch.setattr(execute, "_Evaluation", lambda op, prepares: _evaluation(op, False))
    wanted = [other.run(feeds) for _ in range(3)]
    monkeypatch.undo()
    found = [ours.run(feeds)]
    _forbid(monkeypatch, owner, name)
    found += [ours.run(feeds) for _ in range(2)]
    for mine, theirs in zip(found, wanted, strict=True):
        for key, array in theirs.items():
            np.testing.assert_array_equal(mine[key], array)


def test_a_constant_that_is_given_another_value_counts() -> None:
    """An evaluation that was prepared with the file's weights would not see it."""
    row = next(c for c in CASES if c.op == "LSTM" and "basic 3e-05 120" in c.name)
    (op,) = row.model().main.ops
    arrays = [np.asarray(a) for a in row.arrays(row.model(), np.random.default_rng(0))]
    weights = op.inputs[2]
    assert weights is not None and weights.data is not None
    given = {
        t: np.asarray(t.data) if t.is_constant else np.zeros(t.shape, t.dtype.numpy)
        for t in op.inputs
        if t is not None
    }
    given[op.inputs[0]] = arrays[0]  # type: ignore[index]
    changed = given | {weights: weights.data[::-1].copy()}
    routine = execute.Routine([op], list(given), op.outputs)
    state = execute.new_state()
    found = [
        [a.copy() for a in routine.run([a.copy() for a in g.values()], state)]
        for g in (given, changed)
    ]
    assert not np.array_equal(found[0][3], found[1][3])


def test_a_reference_run_of_fixed_shapes_is_one_call() -> None:
    row = next(c for c in CASES if c.op == "EQUAL" and "str" in c.id)
    model = row.model()
    interpreter = Interpreter(model_content=dump(model))
    interpreter.allocate_tensors()
    interpreter.invoke()
    interpreter.invoke()
    binding = interpreter._ready[interpreter._main].binding
    assert binding.is_one_call and binding.steady is not None


def test_one_multiplier_for_all_rounds_as_many_do() -> None:
    rng = np.random.default_rng(0)
    edges = [-(2**31), 2**31 - 1, -1, 0, 1, -(2**40) + 12345]
    x = np.concatenate([rng.integers(-(2**31), 2**31, 200), np.arange(-300, 300), edges])
    for m in (0, 2**30, 2**31 - 1, 1518500250, -(2**30), -(2**31)):
        for shift in range(-31, 31):
            left, right = max(shift, 0), max(-shift, 0)
            wanted = divide_by_pot(high_mul(wrap32(x << left), m), right)
            np.testing.assert_array_equal(multiply(x, m, shift), wanted)


def test_float_functions_of_words_are_tables() -> None:
    for bits, function in ((12, lut.sigmoid), (12, np.tanh), (15, np.tanh)):
        x = np.arange(-(2**15), 2**15, 7)
        real = (x * 2.0**-bits).astype(np.float32).astype(np.float64)
        wanted = (function(real).astype(np.float32) * np.float32(2**15)).astype(np.int64)
        found = lstm_integer.through_float(x, bits, function)
        np.testing.assert_array_equal(found, np.minimum(wanted, 2**15 - 1))


def test_scalar_variables_are_compiled() -> None:
    """A scalar's shape was not told from an unknown one."""
    row = next(c for c in CASES if c.op == "READ_VARIABLE" and c.name == "scalar")
    assert check_cpu(row) == ""


def test_results_that_somebody_else_holds_are_copied() -> None:
    """Without a look at addresses, where an array says itself whose memory it has."""
    whole, other = np.zeros(4, np.float32), np.zeros(4, np.float32)
    part, fixed = whole[1:], np.zeros(2)
    fixed.flags.writeable = False
    held = [(whole, whole), (whole, part), (part, whole), (part, whole[2:]), (fixed, other)]
    assert all(_own(result, [a]) is not result for result, a in held)
    assert _own(whole, [other]) is whole and _own(part, [other]) is part
