"""What the tests of `sanderling.litert` share: a model that adds, its buffers, and a fake GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import sanderling
from sanderling import DType, Graph, Model
from sanderling.litert.compiled_model import CompiledModel
from sanderling.litert.tensor_buffer import TensorBuffer
from sanderling.runtime import registry

from .fake_delegates import Some

ONE, TEN = np.float32([1, 2, 3, 4]), np.float32([10, 20, 30, 40])


def adder(
    dtype: DType = DType.FLOAT32, shape: tuple[int, ...] = (4,), open_rows: bool = False
) -> bytes:
    graph = Graph()
    x, y = graph.input("x", dtype, shape), graph.input("y", dtype, shape)
    z = graph.tensor("z", dtype, shape)
    if open_rows:
        for tensor in (x, y, z):
            tensor.signature = (-1, *shape[1:])
    graph.add("ADD", [x, y], [z])
    graph.outputs = [z]
    return sanderling.dump(Model([graph]))


def ready(compiled: Any, content: bytes | None = None) -> tuple[Any, list[Any], list[Any]]:
    model = compiled.from_buffer(content or adder())
    return model, model.create_input_buffers(0), model.create_output_buffers(0)


def sets(model: CompiledModel, value: float) -> tuple[list[TensorBuffer], list[TensorBuffer]]:
    inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
    for buffer in inputs:
        buffer.write(np.full(4, value, np.float32))
    return inputs, outputs


@pytest.fixture(name="gpu")
def gpu_of_fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Some]]:
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    def make(*takes: str, **more: Any) -> Some:
        made = Some(takes, "gpu", **more)
        sanderling.register_delegate("gpu", lambda: made)
        return made

    yield make
