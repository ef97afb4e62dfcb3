"""Small models that the tests of sessions run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sanderling.ir import DType, Graph, Model, Quant, Signature

from ..conformance.cases_control import emit, graph

F = np.float32
X = np.arange(6, dtype=F).reshape(2, 3)


def model(body: Callable[..., Any], *inputs: tuple[str, tuple[int, ...]]) -> Model:
    """A model of one graph whose inputs are main_in0, main_in1 ..."""
    return Model([graph("main", body, *(inputs or [("f32", (2, 3))]))])


def add_mul() -> Model:
    """a + b and a * b, with a signature that names them."""
    made = model(
        lambda g, a, b: [emit(g, "ADD", [a, b], (2, 3)), emit(g, "MUL", [a, b], (2, 3))],
        ("f32", (2, 3)),
        ("f32", (2, 3)),
    )
    g = made.main
    names = Signature(
        "serve",
        g,
        dict(zip("ab", g.inputs, strict=True)),
        {"sum": g.outputs[0], "product": g.outputs[1]},
    )
    made.signatures.append(names)
    return made


def double() -> Model:
    return model(lambda g, x: [emit(g, "ADD", [x, x], (2, 3))])


def quantised() -> Model:
    g = Graph()
    x = g.input("x", DType.INT8, (1, 4), quant=Quant.of(0.5, -3))
    y = g.tensor("y", DType.INT8, (1, 4), quant=Quant.of(0.5, -3))
    g.add("RELU", [x], [y])
    g.outputs = [y]
    return Model([g])
