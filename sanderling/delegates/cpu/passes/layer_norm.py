"""Layer normalisation, found in a graph of means, differences and roots."""

from __future__ import annotations

import numpy as np

from ....ir import DType, Graph, Op, Tensor
from ..isa.targets import Target
from ..kernels.reduce.reductions import axes_of

FLOAT = DType.FLOAT32


def fuse_layer_norm(graph: Graph, target: Target) -> None:
    """Mean, squared difference, mean, rsqrt and what goes with them become one cpu.LAYER_NORM; with
    the constant factor and offset behind, where nothing else reads what is between."""
    for op in list(graph.ops):
        found = _normalised(op) if op.name == "ADD" else None
        if found is None:
            continue
        x, epsilon = found
        last, constants = _affine(graph, op, x.shape[-1])
        fused = Op("cpu.LAYER_NORM", [x, *constants], last.outputs, {"epsilon": epsilon})
        graph.insert(fused, before=op)
        _erase_unused(graph, last)


def _normalised(op: Op) -> tuple[Tensor, float] | None:
    """x and epsilon of x * r + (0 - m * r); m is the rows' mean, 1 / r their deviation."""
    for left, right in (op.inputs, op.inputs[::-1]) if _is_plain(op) else ():
        x, inverse = _row_product(_maker(left, "MUL"))
        moved = _maker(_viewed(right), "SUB")
        if x is None or inverse is None or moved is None or not _is_value(moved.inputs[0], 0):
            continue
        mean = _other(_maker(moved.inputs[1], "MUL"), inverse)
        epsilon = _epsilon(x, mean, inverse)
        if epsilon is not None and op.outputs[0].shape == x.shape:
            return x, epsilon
    return None


def _affine(graph: Graph, op: Op, length: int) -> tuple[Op, list[Tensor]]:
    """The last op of op * gamma + beta, with these constants; or op itself, with none."""
    scaled = _next(graph, op, "MUL", length)
    moved = _next(graph, scaled[0], "ADD", length) if scaled is not None else None
    if scaled is None or moved is None:
        return op, []
    return moved[0], [scaled[1], moved[1]]


def _next(graph: Graph, op: Op, name: str, length: int) -> tuple[Op, Tensor] | None:
    """The only reader, if it is of this kind with one constant for each element of a row."""
    result = op.outputs[0]
    reader = result.users[0] if len(result.users) == 1 and result not in graph.outputs else None
    if reader is None or reader.name != name or not _is_plain(reader):
        return None
    constant = _with_constant(reader)[0]
    same = reader.outputs[0].shape == result.shape
    if (
        constant is None
        or not same
        or constant.shape != (1,) * (len(constant.shape) - 1) + (length,)
    ):
        return None
    return reader, constant


def _is_plain(op: Op) -> bool:
    return bool(op.attrs.get("fused_activation_function", "NONE") == "NONE")


def _maker(tensor: Tensor | None, name: str) -> Op | None:
    """The op that makes a tensor, if it is of this kind (and has no activation)."""
    op = None if tensor is None else tensor.producer
    return op if op is not None and op.name == name and _is_plain(op) else None


def _viewed(tensor: Tensor | None) -> Tensor | None:
    """What a reshape shows."""
    while tensor is not None and tensor.producer is not None and tensor.producer.name == "RESHAPE":
        tensor = tensor.producer.inputs[0]
    return tensor


def _with_constant(op: Op) -> tuple[Tensor | None, Tensor | None]:
    """A binary op's constant operand and the other."""
    for a, b in (op.inputs, op.inputs[::-1]):
        if a is not None and a.is_constant and a.dtype is FLOAT:
            return a, b
    return None, None


def _row_product(op: Op | None) -> tuple[Tensor | None, Tensor | None]:
    """x * r where r has one value a row: x, and r behind its reshape."""
    for x, r in (op.inputs, op.inputs[::-1]) if op is not None else ():
        if x is not None and r is not None and r.shape == (*x.shape[:-1], 1):
            return x, _viewed(r)
    return None, None


def _other(op: Op | None, one: Tensor) -> Tensor | None:
    """The operand beside `one`."""
    if op is None or one not in op.inputs:
        return None
    return op.inputs[1] if op.inputs[0] is one else op.inputs[0]


def _is_value(tensor: Tensor | None, value: float) -> bool:
    return tensor is not None and tensor.data is not None and bool(np.all(tensor.data == value))


def _epsilon(x: Tensor, mean: Tensor | None, inverse: Tensor) -> float | None:
    """inverse == rsqrt(mean((x - mean) ** 2) + epsilon) and mean is x's, over the last axis."""
    root = _maker(inverse, "RSQRT")
    shifted = _maker(root.inputs[0], "ADD") if root is not None else None
    constant, variance = _with_constant(shifted) if shifted is not None else (None, None)
    squares = _row_mean(variance)
    difference = _maker(squares, "SQUARED_DIFFERENCE")
    if constant is None or constant.data is None or constant.data.size != 1 or difference is None:
        return None
    if mean is None or _row_mean(mean) is not x or difference.inputs[0] is not x:
        return None
    return float(constant.data.reshape(())) if _viewed(difference.inputs[1]) is mean else None


def _row_mean(tensor: Tensor | None) -> Tensor | None:
    """What this is the mean of, over the last axis."""
    op = _maker(_viewed(tensor), "MEAN")
    if op is None or op.inputs[0] is None or op.inputs[0].dtype is not FLOAT:
        return None
    shape = op.inputs[0].shape
    axes = [a for a in axes_of(op) if shape[a] > 1]
    return op.inputs[0] if axes == [len(shape) - 1] else None


def _erase_unused(graph: Graph, op: Op) -> None:
    """Take an op out, and what only it has read."""
    read = [t for t in op.inputs if t is not None]
    graph.erase(op)
    for tensor in dict.fromkeys(read):
        made = tensor.producer
        unread = not any(t.users or t in graph.outputs for t in made.outputs) if made else False
        if made is not None and unread:
            _erase_unused(graph, made)
