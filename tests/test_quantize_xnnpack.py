"""What we say that XNNPACK refuses, against what the installed LiteRT delegates."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling import dump
from sanderling.ir import Array, DType, Graph, Model, Quant
from sanderling.optimize.modes.scheme import MODES
from sanderling.optimize.modes.xnnpack import reason, refused

from .conformance.harness import Case
from .support.quantize_cases import MODELS, feeds_of
from .support.quantize_engines import delegated, litert, quantised
from .support.quantize_nets import EVERYTHING, WEIGHTED, tower

# Taken or not for reasons that are not known: adjoint operands of different ranks.
UNKNOWN = ("BATCH_MATMUL",)


def agrees(model: Model) -> None:
    """Op by op. An op that could be taken is not if nothing beside it is: a lone cast is left."""
    taken = delegated(bytes(dump(model)))
    for op, (name, really) in zip(model.main.ops, taken, strict=True):
        if name in ("QUANTIZE", "DEQUANTIZE", *UNKNOWN):
            continue
        assert really == (not reason(op)), f"{op.where}: {reason(op) or 'nothing against it'}"


@pytest.mark.parametrize("mode", ["int8", "int16x8"])
@pytest.mark.parametrize("name, case", MODELS, ids=[f"{i}-{n}" for i, (n, _) in enumerate(MODELS)])
def test_rows(name: str, case: Case, mode: str) -> None:
    model = case.model()
    agrees(quantised(model, [feeds_of(case, model)], mode).model)


@pytest.mark.parametrize("mode", [m for m in MODES if not MODES[m].is_integer])
@pytest.mark.parametrize("name, model, arrays", WEIGHTED, ids=[w[0] for w in WEIGHTED])
def test_weights(name: str, model: Model, arrays: list[Array], mode: str) -> None:
    agrees(quantised(model, [], mode, weights=EVERYTHING).model)


def test_whole_model() -> None:
    model, samples = tower()
    made = quantised(model, samples, "int8").model
    agrees(made)
    assert [(op.name, why) for op, why in refused(made)] == [
        ("SOFTMAX", "only where it has a kernel for the values; here they are int8")
    ]


@pytest.mark.parametrize(
    "scales, taken",
    [((1.0, 1.0, 1.0), True), ((300.0, 1.0, 1.0), False), ((1.0, 1.0, 2000.0), False)],
)
def test_scales_too_far_apart(scales: tuple[float, float, float], taken: bool) -> None:
    graph = Graph()
    a, b = (
        graph.input(n, DType.INT8, (1, 8), quant=Quant.of(np.float32(s)))
        for n, s in zip("ab", scales, strict=False)
    )
    c = graph.tensor("c", DType.INT8, (1, 8), quant=Quant.of(np.float32(scales[2])))
    graph.add("ADD", [a, b], [c], fused_activation_function="NONE")
    graph.outputs = [c]
    model = Model([graph])
    assert delegated(bytes(dump(model))) == [("ADD", taken)]
    agrees(model)


def test_a_slice_to_the_end_is_taken() -> None:
    graph = Graph()
    x, y = graph.input("x", DType.FLOAT32, (4, 6)), graph.tensor("y", DType.FLOAT32, (3, 2))
    begin, size = (
        graph.constant(n, np.array(v, np.int32)) for n, v in (("begin", [1, 2]), ("size", [-1, 2]))
    )
    graph.add("SLICE", [x, begin, size], [y])
    graph.outputs = [y]
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    made = quantised(Model([graph]), [[values]], "int8").model
    assert not refused(made)
    agrees(made)
    np.testing.assert_allclose(litert(made, [values])[0], values[1:, 2:4], atol=0.1)
