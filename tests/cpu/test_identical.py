"""Codes of 8-bit operators are the definition's for all operands; fused floats to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sanderling import load
from sanderling.ir import Array, DType, Graph, Model, Quant
from tests.support.array_differences import unlike
from tests.support.cpu_conformance import EVERYTHING, RUNNABLE, cpu_for, run
from tests.support.shared_models import NEEDS
from tests.support.shared_models import model as shared

CODES = np.arange(-128, 128).astype(np.int8)
PAIRS = list(map(np.ascontiguousarray, np.meshgrid(CODES, CODES, indexing="ij")))
# (scale, zero point) of the operands and of the result: as models have them, and such that ties
# are many.
NUMBERS = [
    ((0.1, 0), (0.1, 0), (0.2, 0)),
    ((0.05, -128), (0.3, 127), (0.4, 17)),
    ((0.0235, 3), (0.0039, -128), (0.0211, -5)),
]
Operand = tuple[float, int]
FUNCTIONS: list[tuple[str, dict[str, Any]]] = [
    ("QUANTIZE", {}),
    ("LEAKY_RELU", {"alpha": -0.3}),
    ("LEAKY_RELU", {"alpha": 0.1}),
    ("RELU6", {}),
]


def _same(model: Model, target: str, arrays: Sequence[Array], share: float = 0.0) -> None:
    delegate = cpu_for(target)
    assert all(reason is None for reason in delegate.refuses_each(model.main.ops))
    ours, wanted = (run(model.compile([d]), arrays) for d in (delegate, "reference"))
    problem = unlike(ours, wanted, share)
    assert not problem, problem


def _model(op: str, numbers: Sequence[Operand], arrays: Sequence[Array], **attrs: Any) -> Model:
    graph = Graph()
    quants = [Quant.of(*n) for n in numbers]
    inputs = [
        graph.input(f"x{i}", DType.INT8, a.shape, quant=q)
        for i, (a, q) in enumerate(zip(arrays, quants, strict=False))
    ]
    out = graph.tensor("y", DType.INT8, arrays[0].shape, quant=quants[-1])
    graph.add(op, inputs, [out], **attrs)
    graph.outputs = [out]
    return Model([graph])


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("op", ["MUL", "PRELU", "SQUARED_DIFFERENCE"])
def test_all_pairs_of_codes(op: str, target: str) -> None:
    for numbers in NUMBERS:
        _same(_model(op, numbers, PAIRS), target, PAIRS)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize(("op", "attrs"), FUNCTIONS)
def test_all_codes(op: str, attrs: dict[str, Any], target: str) -> None:
    for numbers in (((0.5, 127), (0.9, 0)), ((0.02, 3), (0.5, -7)), ((0.25, 1), (0.5, 2))):
        _same(_model(op, numbers, [CODES], **attrs), target, [CODES])


@pytest.mark.parametrize("target", RUNNABLE)
def test_rows_of_softmax(target: str) -> None:
    rng = np.random.default_rng(0)
    for length, scale in ((2, 0.1), (1001, 0.05), (64, 0.9)):
        x = rng.integers(-128, 128, (40, length)).astype(np.int8)
        numbers = ((scale, 4), (1 / 256, -128))
        _same(_model("SOFTMAX", numbers, [x], beta=1.0), target, [x])


@pytest.mark.parametrize("target", RUNNABLE)
def test_floats_at_the_middle_of_two_codes(target: str) -> None:
    """Where x / scale ties, or comes next to it."""
    graph, scale = Graph(), np.float32(0.0078431377)
    x = graph.input("x", DType.FLOAT32, (4096,))
    y = graph.tensor("y", DType.INT8, x.shape, quant=Quant.of(float(scale), -1))
    graph.add("QUANTIZE", [x], [y])
    graph.outputs = [y]
    halves = (np.arange(-512, 512) / 2).astype(np.float32) * scale
    around = [np.nextafter(halves, np.float32(end)) for end in (-9, 9)]
    _same(Model([graph]), target, [np.concatenate([halves, *around, halves / 3])])


@pytest.mark.parametrize("target", RUNNABLE)
def test_fused_products_and_sums_are_rounded_apart(target: str) -> None:
    """As two operators are; the next layer's codes would show the last bit."""
    graph, shape, rng = Graph(), (7, 96, 32), np.random.default_rng(1)
    x = graph.input("x", DType.FLOAT32, shape)
    a, b = (graph.input(n, DType.FLOAT32, (1, 1, 32)) for n in "ab")
    p, y = (graph.tensor(n, DType.FLOAT32, shape) for n in "py")
    graph.add("MUL", [x, a], [p])
    graph.add("ADD", [p, b], [y], fused_activation_function="RELU")
    graph.outputs = [y]
    arrays = [rng.normal(size=t.shape).astype(np.float32) for t in (x, a, b)]
    _same(Model([graph]), target, arrays)


@NEEDS
@pytest.mark.skipif(not EVERYTHING, reason="takes a quarter of a minute: make test-all")
def test_a_dynamically_quantised_network() -> None:
    model = load(shared("found/style_transfer_quantized_dynamic"))
    rng = np.random.default_rng(0)
    arrays = [rng.random(t.shape, np.float32) for t in model.main.inputs]
    ours, wanted = (run(model.compile([d]), arrays) for d in ("cpu", "reference"))
    problem = unlike(ours, wanted, 1e-6)
    assert not problem, problem
