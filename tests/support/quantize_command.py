"""The digits model and its pictures, and `sanderling quantize` on them."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from sanderling.cli.app import app
from sanderling.ir import DType, Graph, Model

DATA = Path(str(files("sanderling") / "data"))
F32, INT8 = DATA / "digits_f32.tflite", DATA / "digits_int8.tflite"
SHIPPED = np.load(DATA / "digits_test.npz")
IMAGES = (SHIPPED["images"][..., None] / 16).astype(np.float32)
LABELS = SHIPPED["labels"]
# One way, not the search for the best.
FAST = ("--ranges", "minmax", "--weights", "max", "--corrections", "none")
PLAIN: dict[str, Any] = {"ranges": "minmax", "weights": "max", "corrections": "none"}


def call(*words: object, status: int = 0) -> Result:
    """The verb in this process; anything but a status is a defect."""
    result = CliRunner().invoke(app, ["quantize", *(str(w) for w in words)])
    assert result.exit_code == status, result.output + repr(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(folder: Path, *words: object) -> str:
    """The sentence; nothing was written, not even a temporary file."""
    before = sorted(p.name for p in folder.iterdir())
    text = call(*words, status=2).stderr
    assert text.startswith("sanderling: ") or "\nsanderling: " in text
    assert sorted(p.name for p in folder.iterdir()) == before
    return text


def digits(folder: Path, start: int, stop: int) -> Path:
    """Rows x with their labels y."""
    np.savez(folder / "digits.npz", x=IMAGES[start:stop], y=LABELS[start:stop])
    return folder / "digits.npz"


def samples(count: int = 40) -> list[Any]:
    return [image[None] for image in IMAGES[:count]]


def parents(*operators: str) -> Model:
    """A float model of one-input operators in a row."""
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (1, 4))
    for i, name in enumerate(operators):
        y = graph.tensor(f"y{i}", DType.FLOAT32, (1, 4))
        graph.add(name, [x], [y])
        x = y
    graph.outputs = [x]
    return Model([graph])
