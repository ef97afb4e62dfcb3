"""Layer normalisation: the pass that finds it in a graph, and its kernel."""

from __future__ import annotations

import numpy as np

from ...ir import DType, Graph, Op, Tensor
from . import math
from .emit import F32, Emitter, Int, Value, vector
from .operands import tensor_at
from .program import Kernel, StepEmitter
from .reduce import axes_of
from .rowwise import Rows, emit_rows, row_pointers
from .targets import Target
from .vectors import first_lanes

FLOAT = DType.FLOAT32

# -- the pass -----------------------------------------------------------------------------------


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


# -- the kernel ---------------------------------------------------------------------------------


def _build_layer_norm(form: Rows, e: Emitter) -> None:
    """params: 1 / length, epsilon; perhaps two more pointers: gamma, beta."""
    params, rows, whole = e.args[2], e.args[3], e.args[4]
    affine = e.args[6:]
    part, epsilon = e.load(params, F32), e.load(e.at(params, 1, F32), F32)
    t = vector(F32, form.lanes)
    with e.loop(0, rows) as row:
        source, target = row_pointers(e, row)

        def add(i: Int, count: int, held: list[Value], source: Value = source) -> list[Value]:
            return [e.b.fadd(held[0], form.real(e, source, i, count))]

        total = form.sum(e, whole, add)
        mean = form.splat(e, e.b.fmul(total, part))

        def square(i: Int, count: int, held: list[Value], source: Value = source,
                   mean: Value = mean) -> list[Value]:  # fmt: skip
            x = e.b.fsub(form.real(e, source, i, count), mean)
            x = first_lanes(e, x, count, form.zero(e))
            return [e.fma(x, x, held[0])]

        squares = form.sum(e, whole, square)
        variance = e.b.fadd(e.b.fmul(squares, part), epsilon)
        inverse = form.splat(e, math.rsqrt(e, variance))

        def finish(i: Int, count: int, held: list[Value], source: Value = source,
                   mean: Value = mean, inverse: Value = inverse,
                   target: Value = target) -> list[Value]:  # fmt: skip
            x = e.b.fmul(e.b.fsub(form.real(e, source, i, count), mean), inverse)
            if affine:
                slope, offset = (e.load_part(e.at(p, i, F32), t, count) for p in affine)
                x = e.fma(x, slope, offset)
            e.store_part(x, e.at(target, i, F32), count)
            return held

        form.sweep(e, whole, [], finish)


def emit_layer_norm(k: StepEmitter, op: Op) -> None:
    affine = [k.ptr(t) for t in op.inputs[1:] if t is not None]
    params = (1 / tensor_at(op, 0).shape[-1], op.attrs["epsilon"])
    emit_rows(k, op, _build_layer_norm, params, affine)


KERNELS = {"cpu.LAYER_NORM": Kernel(emit_layer_norm)}
