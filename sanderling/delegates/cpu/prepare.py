"""Passes on a part before it is lowered: constants folded, 8-bit types unified, views found."""

from __future__ import annotations

import numpy as np

from ...ir import DType, Graph, Op, Quant, Tensor
from ...ops.execute import evaluate, new_state
from .targets import Target

VIEWS = ("RESHAPE", "SQUEEZE", "EXPAND_DIMS")


def prepare(graph: Graph, target: Target) -> None:
    """PASSES in order; each leaves a valid graph."""
    for run in PASSES:
        run(graph, target)


def fold_constants(graph: Graph, target: Target) -> None:
    """What depends on constants alone is computed now: float16 and sparse weights among it."""
    for op in list(graph.ops):
        known = all(t is None or t.is_constant for t in op.inputs)
        if not known or op.subgraphs or any(t in graph.outputs for t in op.outputs):
            continue
        values = evaluate(op, [None if t is None else t.data for t in op.inputs], new_state())
        graph.erase(op)
        for tensor, value in zip(op.outputs, values, strict=True):
            tensor.data = value


def unify_bytes(graph: Graph, target: Target) -> None:
    """int8 activations become uint8: codes and zero points move up by 128.

    The caller's arrays keep their type: FLIP stands at the border.
    """
    if target.activation != "u8":
        return
    for tensor in list(graph.inputs):
        if _is_byte(tensor):
            inner = _shifted(tensor, f"{tensor.name}/u8")
            graph.replace_uses(tensor, inner)
            graph.insert(
                Op("cpu.FLIP", [tensor], [inner]), before=graph.ops[0] if graph.ops else None
            )
    for tensor in list(graph.outputs):
        if _is_byte(tensor) and tensor.producer is not None and tensor.producer.name != "cpu.FLIP":
            op = tensor.producer
            inner = _shifted(tensor, f"{tensor.name}/u8")
            op.outputs[op.outputs.index(tensor)] = inner
            inner.producer, tensor.producer = op, None
            for user in list(dict.fromkeys(tensor.users)):
                for i, read in enumerate(user.inputs):
                    if read is tensor:
                        graph.set_input(user, i, inner)
            graph.tensors.append(inner)
            graph.insert(Op("cpu.FLIP", [inner], [tensor]))
    border = {*graph.inputs, *graph.outputs}
    weights = {t for op in graph.ops for t in _weight_operands(op)}
    for tensor in graph.tensors:
        if _is_byte(tensor) and tensor not in border and tensor not in weights:
            _shift(tensor)


def _weight_operands(op: Op) -> list[Tensor]:
    """Weights stay signed: they are the other side of the dot product."""
    places = {"CONV_2D": 1, "DEPTHWISE_CONV_2D": 1, "FULLY_CONNECTED": 1, "TRANSPOSE_CONV": 1}
    tensor = op.input(places[op.name]) if op.name in places else None
    return [tensor] if tensor is not None else []


def _is_byte(tensor: Tensor) -> bool:
    return tensor.dtype is DType.INT8 and tensor.quant is not None and tensor.quant.scale.size == 1


def _shifted(tensor: Tensor, name: str) -> Tensor:
    twin = tensor.copy()
    twin.name = name
    _shift(twin)
    return twin


def _shift(tensor: Tensor) -> None:
    assert tensor.quant is not None
    values = tensor.data
    tensor.dtype = DType.UINT8
    tensor.quant = Quant(tensor.quant.scale, tensor.quant.zero_point + 128, tensor.quant.axis)
    if values is not None:
        tensor.data = (values.astype(np.int16) + 128).astype(np.uint8)


PASSES = (fold_constants, unify_bytes)
