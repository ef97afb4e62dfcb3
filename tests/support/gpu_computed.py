"""Convolutions whose weights a run computes: small ones of every kind, and their answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sanderling.delegates.gpu.delegate import GpuDelegate
from sanderling.ir import DType, Graph, Model

from .gpu_batches import joined

SAME = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
TWICE = {"padding": "SAME", "stride_h": 2, "stride_w": 2}
VALID = {"padding": "VALID", "stride_h": 1, "stride_w": 3}
RELU = {"fused_activation_function": "RELU"}
CASES = [
    ("CONV_2D", (2, 5, 6, 3), (7, 3, 2, 3), (2, 5, 6, 7), SAME),
    ("CONV_2D", (1, 7, 6, 8), (4, 3, 3, 8), (1, 4, 3, 4), {**TWICE, **RELU}),
    ("DEPTHWISE_CONV_2D", (1, 5, 6, 3), (1, 3, 3, 3), (1, 5, 6, 3), SAME),
    ("DEPTHWISE_CONV_2D", (2, 5, 6, 3), (1, 3, 3, 6), (2, 3, 3, 6),
     {**TWICE, "depth_multiplier": 2}),
    ("TRANSPOSE_CONV", (1, 3, 4, 5), (6, 3, 3, 5), (1, 6, 8, 6), TWICE),
    ("TRANSPOSE_CONV", (2, 3, 2, 4), (3, 2, 4, 4), (2, 4, 7, 3), VALID),
]  # fmt: skip


def fed(
    name: str, x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], attrs: dict[str, Any]
) -> Model:
    graph = Graph()
    given, weights = (graph.input(n, DType.FLOAT32, s) for n, s in (("x", x), ("w", w)))
    bias = graph.constant("b", np.linspace(-1, 1, y[-1]), DType.FLOAT32)
    size = graph.constant("size", list(y), DType.INT32)
    turned = name == "TRANSPOSE_CONV"
    inputs = [size, weights, given, bias] if turned else [given, weights, bias]
    graph.outputs = [graph.tensor("y", DType.FLOAT32, y)]
    graph.add(name, inputs, graph.outputs, **attrs)
    return Model([graph])


def check_computed_weights(**options: Any) -> None:
    """All in one program: a driver's compiler begins once."""
    model, rng = joined([fed(*case) for case in CASES]), np.random.default_rng(0)
    feeds = {t.name: rng.normal(size=t.shape).astype(np.float32) for t in model.main.inputs}
    delegate = GpuDelegate(**options)
    found = model.compile([delegate], require_full_delegation=True).run(feeds)
    for name, expected in model.compile(["reference"]).run(feeds).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)
