"""What the tests of `sanderling diff` share: its command, the digits models, damaged copies."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from sanderling import Model, load
from sanderling.cli.app import app
from sanderling.ir import DType, Graph

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = str(DATA / "digits_f32.tflite"), str(DATA / "digits_int8.tflite")
F = np.float32
# Both on the definitions: where it does not matter who computes, nothing is compiled.
EXACT: Any = {"delegate_a": ["reference"], "delegate_b": ["reference"]}
BY_DEFINITION = ("--delegate-a", "reference", "--delegate-b", "reference")


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["diff", *map(str, words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def damaged(path: str, layer: int, noise: float = 0.1, channel: int | None = None) -> Model:
    """A copy with one layer's weights perturbed."""
    model = load(path)
    weights = model.main.ops[layer].inputs[1]
    assert weights is not None and weights.data is not None
    old = weights.data.astype(np.float64)
    change = np.random.default_rng(0).normal(size=old.shape) * noise * np.abs(old).max()
    if channel is not None:
        change[np.arange(len(old)) != channel] = 0
    limits = weights.dtype.bounds if weights.dtype.is_integer else (-np.inf, np.inf)
    new = np.clip(old + change, *limits)
    weights.data = np.rint(new) if weights.dtype.is_integer else new
    return model


def small(inputs: int = 1, shape: tuple[int, ...] = (1, 4)) -> Model:
    graph = Graph()
    xs = [graph.input(f"x{i}", DType.FLOAT32, shape) for i in range(inputs)]
    y = graph.tensor("y", DType.FLOAT32, shape)
    graph.add("ABS", [xs[0]], [y])
    graph.outputs = [y]
    return Model([graph])


def restless() -> Model:
    """Doubles a picture whose sizes are open, by what SHAPE says in the run. The file states no
    shape of what is computed, and its stand-in for the input is too small to go through."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 1, 1, 2), signature=(1, -1, -1, 2))
    ints = {
        n: graph.constant(n, np.array(v, np.int32))
        for n, v in (
            ("begin", [1]),
            ("end", [3]),
            ("step", [1]),
            ("two", [2, 2]),
            ("least", [0, 0, 0, 0]),
            ("corner", [1, 2, 3, 2]),
        )
    }
    made = {
        n: graph.tensor(n, t)
        for n, t in (
            ("scaled", DType.FLOAT32),
            ("shape", DType.INT32),
            ("sizes", DType.INT32),
            ("larger", DType.INT32),
            ("resized", DType.FLOAT32),
            ("y", DType.FLOAT32),
        )
    }
    graph.add("MUL", [x, graph.constant("by", F([3, 5]))], [made["scaled"]])
    graph.add("SHAPE", [made["scaled"]], [made["shape"]], out_type="INT32")
    graph.add(
        "STRIDED_SLICE", [made["shape"], ints["begin"], ints["end"], ints["step"]], [made["sizes"]]
    )
    graph.add("MUL", [made["sizes"], ints["two"]], [made["larger"]])
    graph.add("RESIZE_NEAREST_NEIGHBOR", [made["scaled"], made["larger"]], [made["resized"]])
    graph.add("SLICE", [made["resized"], ints["least"], ints["corner"]], [made["y"]])
    graph.outputs = [made["y"]]
    return Model([graph])
