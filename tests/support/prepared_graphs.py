"""Runs a prepared graph on the definitions of the operators and of the compiler's own ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sanderling.delegates.cpu.dialect.ops import evaluate
from sanderling.ir import Array, Graph, Tensor
from sanderling.ops.execute import new_state

Values = dict[Tensor, Array]


def run_prepared(graph: Graph, feeds: Sequence[Array]) -> list[Array]:
    values: Values = dict(zip(graph.inputs, feeds, strict=True))
    state = new_state()
    for op in graph.ops:
        args = [None if t is None else value_of(t, values) for t in op.inputs]
        for tensor, array in zip(op.outputs, evaluate(op, args, state), strict=True):
            assert array.dtype == tensor.dtype.numpy, f"{op.where} gives {array.dtype}"
            assert array.shape == tensor.shape or array.size == np.prod(tensor.shape), op.where
            values[tensor] = array.reshape(tensor.shape)
    return [value_of(t, values) for t in graph.outputs]


def value_of(tensor: Tensor, values: Values) -> Array:
    found = values.get(tensor)
    found = tensor.data if found is None else found
    assert found is not None, f"nothing computes {tensor!r}"
    return found
