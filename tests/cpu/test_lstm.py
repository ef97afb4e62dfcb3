"""Recurrent operators: the conformance table, states over several runs, blocks of time, threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import Target
from sanderling.delegates.cpu.kernels.recurrent import sequence
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, Tensor
from sanderling.runtime.session import Session
from tests.conformance.harness import Case
from tests.support.aarch64_qemu import QEMU
from tests.support.cpu_conformance import (
    RUNNABLE_ROWS,
    cases_of,
    check_cpu,
    cpu_for,
    in_turns,
    run,
)

RECURRENT = ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM", "RNN",
             "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "SVDF")  # fmt: skip
TARGETS = pytest.mark.parametrize("target", RUNNABLE_ROWS, ids=lambda t: t.name)


@pytest.mark.parametrize(("row", "target"), in_turns(cases_of(*RECURRENT)))
def test_conformance(row: Case, target: str) -> None:
    assert check_cpu(row, target) == ""


@pytest.mark.skipif(QEMU is None, reason="apt-get install qemu-user")
@pytest.mark.parametrize("target", ["neon", "neondot", "i8mm"])
def test_aarch64(target: str) -> None:
    """A case of each operator."""
    for name in RECURRENT:
        row = cases_of(name)[-1 if name != "LSTM" else 0]
        assert check_cpu(row, target, emulate=True) == ""


# -- layers of the size that models have --------------------------------------------------------


class Layer:
    """A graph with one LSTM layer: of floats, with float16 or int8 weights, or of integers."""

    def __init__(self, kind: str, shape: Sequence[int], cells: int, seed: int = 0) -> None:
        self.rng, self.kind, self.cells = np.random.default_rng(seed), kind, cells
        self.graph, self.shape = Graph(), shape
        batch, _, depth = shape
        x, hidden, memory = self.activations(batch)
        weights = [self.weights(f"w{i}", cells, depth if i < 4 else cells) for i in range(8)]
        biases = [self.bias(f"b{i}") for i in range(4)]
        y = self.graph.tensor("y", x.dtype, (*shape[:2], cells), quant=hidden.quant)
        operands = [x, *weights, None, None, None, *biases, None, None, hidden, memory, *[None] * 4]
        self.op = self.graph.add(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            operands,
            [y],
            cell_clip=10.0,
            fused_activation_function="TANH",
        )
        self.op.intermediates += self.intermediates(hidden.quant)
        self.graph.outputs = [y]

    @property
    def model(self) -> Model:
        return Model([self.graph])

    def activations(self, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        graph, state = self.graph, (batch, self.cells)
        if self.kind != "integer":
            return (
                graph.input("x", DType.FLOAT32, self.shape),
                graph.tensor("hidden", DType.FLOAT32, state, is_variable=True),
                graph.tensor("memory", DType.FLOAT32, state, is_variable=True),
            )
        return (
            graph.input("x", DType.INT8, self.shape, quant=Quant.of(1 / 64, -3)),
            graph.tensor(
                "hidden", DType.INT8, state, quant=Quant.of(1 / 128, -1), is_variable=True
            ),
            graph.tensor("memory", DType.INT16, state, quant=Quant.of(2.0**-12), is_variable=True),
        )

    def weights(self, name: str, *shape: int) -> Tensor:
        if self.kind in ("float", "half"):
            values = self.rng.normal(size=shape) / np.sqrt(shape[1])
            return self.floats(name, values)
        codes = self.rng.integers(-127, 128, shape)
        scale = 1 / 64 / np.sqrt(shape[1])
        return self.graph.constant(name, codes, DType.INT8, quant=Quant.of(scale))

    def floats(self, name: str, values: Array) -> Tensor:
        if self.kind == "float":
            return self.graph.constant(name, values, DType.FLOAT32)
        stored = self.graph.constant(f"{name}/half", values, DType.FLOAT16)
        made = self.graph.tensor(name, DType.FLOAT32, values.shape)
        self.graph.add("DEQUANTIZE", [stored], [made])
        return made

    def bias(self, name: str) -> Tensor:
        if self.kind == "integer":
            codes = self.rng.integers(-3000, 3000, self.cells)
            return self.graph.constant(name, codes, DType.INT32, quant=Quant.of(1e-4))
        return self.graph.constant(name, self.rng.normal(size=self.cells), DType.FLOAT32)

    def intermediates(self, quant: Quant | None) -> list[Tensor]:
        if self.kind != "integer":
            return []
        quants = [*(Quant.of(0.001) for _ in range(4)), quant]
        return [
            self.graph.tensor(f"between{i}", DType.INT8 if i == 4 else DType.INT16, (), quant=q)
            for i, q in enumerate(quants)
        ]

    def feed(self) -> Array:
        if self.kind == "integer":
            return self.rng.integers(-128, 128, self.shape).astype(np.int8)
        return self.rng.normal(size=self.shape).astype(np.float32)


def assert_same(ours: Array, theirs: Array) -> None:
    """Integers to the bit."""
    limit = 0.0 if ours.dtype == np.int8 else 1e-5
    assert np.abs(ours.astype(np.float64) - theirs).max() <= limit
    assert np.unique(theirs).size > 10


def sessions(layer: Layer, target: Target, **more: Any) -> tuple[Session, Session]:
    delegate = cpu_for(target.name)
    assert delegate.refuses(layer.op) is None
    return layer.model.compile([delegate], **more), layer.model.compile(["reference"])


KINDS = pytest.mark.parametrize("kind", ["float", "half", "hybrid", "integer"])


@TARGETS
@KINDS
def test_the_state_is_carried(kind: str, target: Target) -> None:
    """Runs in a row continue the sequence, until the variables are reset."""
    layer = Layer(kind, (2, 5, 11), 21)
    ours, theirs = sessions(layer, target)
    x = layer.feed()
    first, second = (run(ours, [x])[0] for _ in range(2))
    assert_same(first, run(theirs, [x])[0])
    assert_same(second, run(theirs, [x])[0])
    assert (first != second).any()
    ours.reset_variables()
    np.testing.assert_array_equal(run(ours, [x])[0], first)


@TARGETS
@KINDS
def test_blocks_of_time(kind: str, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long sequence is fed in blocks; the last one is shorter, and no multiple of a tile."""
    monkeypatch.setattr(sequence, "BLOCK", 8 * 4 * 4 * 64)
    layer = Layer(kind, (1, 21, 9), 40)
    ours, theirs = sessions(layer, target)
    for _ in range(2):
        x = layer.feed()
        assert_same(run(ours, [x])[0], run(theirs, [x])[0])


@KINDS
def test_threads_do_not_change_the_answer(kind: str) -> None:
    """Sequences are shared among workers: three of them, and a worker without one."""
    layer = Layer(kind, (3, 40, 64), 64)
    x = layer.feed()
    answers = []
    for threads in (1, 2, 4):
        session = layer.model.compile([CpuDelegate(cache=False)], threads=threads)
        answers.append([run(session, [x])[0] for _ in range(2)])
    for other in answers[1:]:
        np.testing.assert_array_equal(other, answers[0])


def test_constant_states_are_refused() -> None:
    layer = Layer("float", (1, 2, 3), 4)
    op = layer.op
    layer.graph.set_input(op, 18, layer.graph.constant("h", np.zeros((1, 4)), DType.FLOAT32))
    assert "not a variable" in str(CpuDelegate(cache=False).refuses(op))


@TARGETS
def test_the_basic_cell_with_states_that_are_passed(target: Target) -> None:
    """States that are no variables are read, not written: the new ones are outputs."""
    rng, graph, cells = np.random.default_rng(0), Graph(), 21
    shapes = {"x": (2, 9), "hidden": (2, cells), "memory": (2, cells)}
    x, hidden, memory = (graph.input(name, DType.FLOAT32, s) for name, s in shapes.items())
    weights = graph.constant("w", rng.normal(size=(4 * cells, 9 + cells)) / 4, DType.FLOAT32)
    bias = graph.constant("b", rng.normal(size=4 * cells), DType.FLOAT32)
    outputs = [
        graph.tensor(f"y{i}", DType.FLOAT32, (2, n))
        for i, n in enumerate((cells, cells, 9 + cells, 4 * cells))
    ]
    graph.add(
        "LSTM",
        [x, hidden, weights, bias, memory],
        outputs,
        kernel_type="BASIC",
        fused_activation_function="TANH",
    )
    graph.outputs = outputs
    model = Model([graph])
    feeds = [rng.normal(size=s).astype(np.float32) for s in shapes.values()]
    before = [a.copy() for a in feeds]
    delegate = cpu_for(target.name)
    assert delegate.refuses(graph.ops[0]) is None
    ours = run(model.compile([delegate]), feeds)
    for a, b in zip(feeds, before, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(ours, run(model.compile(["reference"]), feeds), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@TARGETS
@pytest.mark.parametrize("zero", [0, 128, 255])
@pytest.mark.parametrize("variable", [True, False])
def test_the_basic_cell_of_codes(zero: int, variable: bool, target: Target) -> None:
    """Exact, with weights of eight bits and of nine, whether its states are variables or not."""
    rng, graph, cells = np.random.default_rng(zero), Graph(), 21
    code, word = Quant.of(1 / 128, 128), Quant.of(2.0**-11)
    x = graph.input("x", DType.UINT8, (3, 9), quant=code)
    kinds = (("hidden", DType.UINT8, code), ("memory", DType.INT16, word))
    hidden, memory = (
        graph.tensor(name, dtype, (3, cells), quant=quant, is_variable=True)
        if variable
        else graph.input(name, dtype, (3, cells), quant=quant)
        for name, dtype, quant in kinds
    )
    weights = graph.constant(
        "w", rng.integers(0, 256, (4 * cells, 9 + cells)), DType.UINT8, quant=Quant.of(1e-2, zero)
    )
    bias = graph.constant(
        "b", rng.integers(-30000, 30000, 4 * cells), DType.INT32, quant=Quant.of(7e-5)
    )
    rows = (
        (DType.UINT8, cells, code),
        (DType.INT16, cells, word),
        (DType.UINT8, 9 + cells, code),
        (DType.INT16, 4 * cells, Quant.of(2.0**-12)),
    )
    graph.outputs = [
        graph.tensor(f"y{i}", dtype, (3, n), quant=q) for i, (dtype, n, q) in enumerate(rows)
    ]
    graph.add(
        "LSTM",
        [x, hidden, weights, bias, memory],
        graph.outputs,
        kernel_type="BASIC",
        fused_activation_function="TANH",
    )
    delegate = cpu_for(target.name, checked=True)
    assert delegate.refuses(graph.ops[0]) is None
    model = Model([graph])
    sessions = [model.compile([d]) for d in (delegate, "reference")]
    for _ in range(3):
        feeds = [rng.integers(*t.dtype.bounds, t.shape).astype(t.dtype.numpy) for t in graph.inputs]
        for a, b in zip(*(run(session, feeds) for session in sessions), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("name", ["RESHAPE", "ABS"])
@KINDS
def test_others_see_the_state_of_their_time(kind: str, name: str, before: bool) -> None:
    """What reads the state before the layer does not see what the layer makes of it, even if it is
    a view, or becomes part of a later op."""
    layer = Layer(kind, (1, 3, 8), 16)
    graph, (hidden, _) = layer.graph, layer.op.inputs[18:20]
    assert hidden is not None
    seen, last = (
        graph.tensor(n, hidden.dtype, (1, 16), quant=hidden.quant) for n in ("seen", "last")
    )
    attrs = {"new_shape": [1, 16]} if name == "RESHAPE" else {}
    graph.insert(Op(name, [hidden], [seen], attrs), before=layer.op if before else None)
    graph.append(Op("ABS", [seen], [last]))
    graph.outputs = [last]
    ours, theirs = (layer.model.compile([d]) for d in (CpuDelegate(cache=False), "reference"))
    x = layer.feed()
    for _ in range(2):
        np.testing.assert_allclose(run(ours, [x])[0], run(theirs, [x])[0], atol=1e-5)
    assert len(ours.plan().partition.parts) == 1
