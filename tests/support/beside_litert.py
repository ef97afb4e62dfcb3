"""Snippets that run with LiteRT and with Sanderling: only the module differs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import dump
from sanderling.ir import Array, Model, Signature

from ..conformance.cases_control import binary, graph
from .array_differences import unlike

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install 'sanderling[peers]'")

OWN = Path(str(files("sanderling") / "data"))
F = np.float32
SMALL = [OWN / "digits_f32.tflite", OWN / "digits_int8.tflite"]


def reference(module: Any, *source: Any, **more: Any) -> Any:
    """With reference kernels: LiteRT's integer answers are the definition then."""
    more.setdefault("experimental_op_resolver_type", module.OpResolverType.BUILTIN_REF)
    return module.Interpreter(*source, **more)


LITERT, OURS = (
    SimpleNamespace(
        Interpreter=partial(reference, module),
        OpResolverType=module.OpResolverType,
        load_delegate=module.load_delegate,
        SignatureRunner=module.SignatureRunner,
    )
    for module in (litert, sanderling)
)
Snippet = Callable[[Any], Any]


# Of an array's largest number: sums of another order differ by 1.4e-6 where they cancel.
SHARE = 1e-5


def both(snippet: Snippet) -> tuple[Any, Any]:
    ours, theirs = snippet(OURS), snippet(LITERT)
    problem = unlike(ours, theirs, SHARE)
    assert not problem, problem
    return ours, theirs


def noise(detail: dict[str, Any], seed: int = 0) -> Array:
    """Something to feed, by an input's dictionary alone."""
    rng, dtype = np.random.default_rng(seed), np.dtype(detail["dtype"])
    if dtype.kind in "iu":
        low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.itemsize == 1 else (0, 100)
        return rng.integers(low, high, detail["shape"]).astype(dtype)
    return rng.normal(size=detail["shape"]).astype(dtype)


def classify(m: Any, path: Path) -> Any:
    """TensorFlow Lite's image classification example."""
    interpreter = m.Interpreter(model_path=str(path))
    interpreter.allocate_tensors()
    input_details = interpreter.get_input_details()
    output_details = interpreter.get_output_details()
    interpreter.set_tensor(input_details[0]["index"], noise(input_details[0]))
    interpreter.invoke()
    output_data = interpreter.get_tensor(output_details[0]["index"])
    return input_details, output_details, output_data, np.squeeze(output_data).argsort()[-5:][::-1]


def stem(value: Any) -> str | None:
    return value.stem if isinstance(value, Path) else None


def signatures() -> bytes:
    """Two entry points; names are not in the order of the graph."""
    add, mul = (
        graph(n, binary(op), ("f32", (2, 3)), ("f32", (2, 3)))
        for n, op in (("add", "ADD"), ("mul", "MUL"))
    )
    return dump(
        Model(
            [add, mul],
            [
                Signature(
                    "serving",
                    add,
                    {"z": add.inputs[0], "a": add.inputs[1]},
                    {"out": add.outputs[0]},
                ),
                Signature(
                    "other",
                    mul,
                    {"x": mul.inputs[0], "y": mul.inputs[1]},
                    {"second": mul.outputs[0], "first": mul.outputs[0]},
                ),
            ],
        )
    )


def same_error(snippet: Snippet, words: str) -> None:
    """LiteRT raises; ours is an instance of the same type and says at least these words."""
    with pytest.raises(Exception) as theirs:
        snippet(LITERT)
    with pytest.raises(theirs.type) as ours:
        snippet(sanderling)
    for word in words.split("|"):
        assert word in str(ours.value), str(ours.value)
