"""What the tests of profiles share: a machine that is known, and models."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling.delegates.cpu import limit_loops
from sanderling.delegates.cpu.isa.targets import host_target
from sanderling.format import save
from sanderling.ir import DType, Model
from sanderling.measure import profiling as profiles
from sanderling.measure.roofline import Level, Roofline

from .conv_stacks import stack

DIGITS = Path(sanderling.__file__).parent / "data" / "digits_int8.tflite"
Record = dict[str, Any]
# Round figures, and a clock that is right.
ROOF = Roofline(
    "a machine",
    "a target",
    1,
    1e9,
    {"f32": 50e9, "i16": 100e9, "i8": 200e9},
    [Level("L1", 32_000, 400e9), Level("L2", 1_000_000, 100e9), Level("memory", None, 10e9)],
)

needs_litert = pytest.mark.skipif(
    not importlib.util.find_spec("ai_edge_litert"), reason="pip install ai-edge-litert"
)
needs_pictures = pytest.mark.skipif(
    not importlib.util.find_spec("matplotlib"), reason="pip install matplotlib"
)


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the measurement of this machine."""
    made = Roofline(**{**ROOF.__dict__, "ticks": ticks()})
    monkeypatch.setattr(profiles, "roofline", lambda *_, **__: made)


def ticks(known: list[float] = []) -> float:  # noqa: B006  measured once
    if not known:
        known.append(limit_loops.ticks(host_target(), 0.01))
    return known[0]


def residual() -> Model:
    """A convolution whose result is added to its input: one step of two ops, then a view."""
    model = stack(quantised=False, layers=2, size=6, channels=8)
    graph = model.main
    end = graph.outputs[0]
    total = graph.tensor('sum, "of" <two>', DType.FLOAT32, end.shape)
    graph.add("ADD", [end, graph.inputs[0]], [total], fused_activation_function="NONE")
    shape = graph.constant("shape", np.int32([1, -1]))
    flat = graph.tensor("flat", DType.FLOAT32, (1, 288))
    graph.add("RESHAPE", [total, shape], [flat], new_shape=[1, -1])
    graph.outputs = [flat]
    return model


def saved(model: Model, folder: Path) -> Path:
    path = folder / "model.tflite"
    save(model, path)
    return path


def total(record: Record) -> float:
    return float(record["steps_ms"] + record["others_ms"])
