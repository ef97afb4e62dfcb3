"""Runs a prepared graph on the operator definitions: what the passes tell the kernels, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sanderling.delegates.cpu.kernels.window import INNER_ATTR, MAP_ATTR, PAD_ATTR
from sanderling.delegates.cpu.table import row_of
from sanderling.ir import Array, DType, Graph, Op, Quant, Tensor
from sanderling.ir import expr as X
from sanderling.ops.base import scale_zero
from sanderling.ops.execute import evaluate, new_state
from sanderling.ops.fixed import ACTIVATION_BOUNDS

Values = dict[Tensor, Array]


def run_prepared(graph: Graph, feeds: Sequence[Array]) -> list[Array]:
    values: Values = dict(zip(graph.inputs, feeds, strict=True))
    state = new_state()
    for op in graph.ops:
        args = [None if t is None else value_of(t, values) for t in op.inputs]
        run = SPECIAL.get(op.name, lambda op, args: kernel(op, args, state))
        for tensor, array in zip(op.outputs, run(op, args), strict=True):
            assert array.dtype == tensor.dtype.numpy, f"{op.where} gives {array.dtype}"
            assert array.shape == tensor.shape or array.size == np.prod(tensor.shape), op.where
            values[tensor] = array.reshape(tensor.shape)
    return [value_of(t, values) for t in graph.outputs]


def value_of(tensor: Tensor, values: Values) -> Array:
    found = values.get(tensor)
    found = tensor.data if found is None else found
    assert found is not None, f"nothing computes {tensor!r}"
    return found


def flip(op: Op, args: list) -> list[Array]:
    return [(args[0].view(np.uint8) ^ np.uint8(128)).view(op.outputs[0].dtype.numpy)]


def mapped(op: Op, args: list) -> list[Array]:
    shapes = op.attrs.get("shapes") or [None] * len(args)
    given = [a if s is None else a.reshape(s) for a, s in zip(args, shapes, strict=True)]
    result = X.evaluate(op.attrs["expr"], given)
    shape = op.outputs[0].shape
    return [np.broadcast_to(result, shape) if result.size != np.prod(shape) else result]


def looked_up(op: Op, args: list) -> list[Array]:
    return [np.asarray(op.attrs["table"]).view(np.uint8)[args[0].view(np.uint8)].view(
        op.outputs[0].dtype.numpy)]  # fmt: skip


SPECIAL: dict[str, Callable[[Op, list], list[Array]]] = {
    "cpu.FLIP": flip,
    "cpu.MAP": mapped,
    "cpu.LUT": looked_up,
}


def kernel(op: Op, args: list, state) -> list[Array]:
    """An op with what the passes put into it: padding, sum, activation, map."""
    own = op.copy(op.inputs, op.outputs)
    if PAD_ATTR in op.attrs:
        args = [padded(own, args[0], own.attrs.pop(PAD_ATTR)), *args[1:]]
    is_product = bool(row_of(op).weights)
    residual = args[3] if is_product and len(args) > 3 else None
    if residual is not None:
        own.inputs, args = own.inputs[:3], args[:3]
    expr = own.attrs.get(MAP_ATTR)
    of_two = expr is not None and len(X.inputs_of(expr)) == 2
    if residual is not None and not of_two:
        return [added(op, own, args, residual, state)]
    own.attrs.pop(MAP_ATTR, None)
    results = signed(own, args, state)
    if expr is None:
        return results
    return [X.evaluate(expr, [results[0], residual] if of_two else [results[0]])]


def padded(op: Op, x: Array, pads: Sequence[int]) -> Array:
    top, bottom, left, right = pads
    old = op.inputs[0]
    zero = scale_zero(old)[1] if x.dtype.itemsize == 1 else 0
    wide = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)], constant_values=zero)
    op.inputs[0] = Tensor(old.name, old.dtype, wide.shape, quant=old.quant)
    return wide


def added(op: Op, own: Op, args: list, residual: Array, state) -> Array:
    """The product alone, then the sum as the definition of ADD has it."""
    out, x = op.outputs[0], op.inputs[3]
    act = own.attrs["fused_activation_function"]
    own.attrs["fused_activation_function"] = "NONE"
    expr = own.attrs.pop(MAP_ATTR, None)
    inner = Tensor("inner", out.dtype, out.shape, quant=out.quant)
    if INNER_ATTR in own.attrs:
        inner.quant = Quant.of(*own.attrs.pop(INNER_ATTR))
    own.outputs = [inner]
    y = signed(own, args, state)[0]
    add = Op("ADD", [inner, x], [out], {"fused_activation_function": act, "pot_scale_int16": False})
    total = evaluate(add, [y.reshape(out.shape), residual.reshape(out.shape)], state)[0]
    if out.dtype is DType.FLOAT32:
        total = np.clip(total, *map(np.float32, ACTIVATION_BOUNDS[act]))
    return total if expr is None else X.evaluate(expr, [total])


def signed(op: Op, args: list, state) -> list[Array]:
    """Ops that were int8, by their weights or by what they say: all codes go down by 128."""
    places = row_of(op).weights
    w, x = op.inputs[places[0]] if places else None, op.inputs[0]
    codes = w is not None and w.dtype not in (DType.UINT8, DType.INT32)  # sizes are no codes
    was_signed = op.attrs.get("was_signed") or codes
    if not was_signed or x.dtype is not DType.UINT8:
        return evaluate(op, args, state)
    own = op.copy([lowered(x), *op.inputs[1:]], [lowered(t) for t in op.outputs])
    results = evaluate(own, [(args[0] ^ np.uint8(128)).view(np.int8), *args[1:]], state)
    return [r.view(np.uint8) ^ np.uint8(128) for r in results]


def lowered(tensor: Tensor) -> Tensor:
    scale, zero = scale_zero(tensor)
    return Tensor(tensor.name, DType.INT8, tensor.shape, quant=Quant.of(scale, zero - 128))
