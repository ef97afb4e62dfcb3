"""What the compiler's own ops mean, in NumPy, composed of the operators' definitions.

`ops.evaluate` finds them by name. Definitions sum in one order and kernels in another, so that
floats agree within rounding, and codes within a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....ir import Array, DType, Op, Quant, Tensor
from ....ir import expr as X
from ....ops.base import State, elements, quant, scale_zero
from ....ops.execute import evaluate as operator_result
from ....ops.gemm import block_scales, quantize_rows, signed
from .chains import unchained
from .fused import BF16, DYNAMIC, OPERATORS, RESIDUAL, Fused, Inputs, unfused

Arrays = Sequence[Array | None]
Define = Callable[[Op, Arrays, State], list[Array]]
BYTES = (DType.INT8, DType.UINT8)
# The type of the codes that a definition wants beside weights of these types.
BESIDE = {
    DType.INT8: DType.INT8,
    DType.INT4: DType.INT8,
    DType.INT2: DType.INT8,
    DType.UINT8: DType.UINT8,
}
WEIGHTED = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "CONV_3D")


def present(arrays: Arrays, place: int = 0) -> Array:
    found = arrays[place]
    assert found is not None
    return found


# -- products with what is fused in -------------------------------------------------------------


def fused(op: Op, arrays: Arrays, state: State) -> list[Array]:
    """map(activation(product + bias + residual)), or map(activation(product + bias), residual)."""
    record, out = Fused.of(op), op.outputs[0]
    found = _alone(op, arrays, state).reshape(out.shape)
    residual = arrays[RESIDUAL] if record.residual else None
    if record.is_added:
        found = _added(op, found, present(arrays, RESIDUAL), state)
    if record.map is not None:
        beside = [] if residual is None else [residual.reshape(out.shape)]
        found = X.evaluate(record.map, [found, *beside])
    return [np.asarray(found).astype(out.dtype.numpy, copy=False)]


def _alone(op: Op, arrays: Arrays, state: State) -> Array:
    """The operator's result, with its activation unless something is added before that."""
    record = Fused.of(op)
    tensors, values = list(op.inputs[:RESIDUAL]), list(arrays[:RESIDUAL])
    for place in (0, 1) if record.precision else ():
        tensor = op.operand(place)
        values[place] = _real(op, place, arrays)
        tensors[place] = Tensor(tensor.name, DType.FLOAT32, tensor.shape)
    if record.padding is not None:
        held = tensors[0] or op.operand(0)
        tensors[0], values[0] = _padded(held, present(values), record.padding)
    out = op.outputs[0].copy()
    out.dtype = DType.FLOAT32 if out.dtype is DType.BFLOAT16 else out.dtype
    own = op.copy(tensors, [out])
    own.attrs |= {"fused_activation_function": "NONE"} if record.is_added else {}
    made = unfused(own)
    if made.name == "TRANSPOSE_CONV":
        shape = np.array(out.shape, np.int32)
        values = [shape, values[1], values[0], *values[2:]]
    home = DType.INT8 if record.signed else None
    return moved(made, values[: len(made.inputs)], state, home)[0]


def _real(op: Op, place: int, arrays: Arrays) -> Array:
    """An operand of a product in this precision, as the float32 numbers that are multiplied."""
    if Fused.of(op).precision == BF16:
        return present(arrays, place).astype(DType.BFLOAT16.numpy).astype(np.float32)
    assert Fused.of(op).precision == DYNAMIC
    return _weights(op, present(arrays, 1)) if place else _decoded(arrays)


def _decoded(arrays: Arrays) -> Array:
    """The data that codes stand for, by the table's zero point and step of each group."""
    given = Inputs(*arrays)  # type: ignore[arg-type]
    codes, table = np.asarray(given.data), np.asarray(given.table)
    rows = codes.reshape(len(table), -1).astype(np.float32)
    steps = np.ascontiguousarray(table[:, 1]).view(np.float32)
    return ((rows - table[:, :1].astype(np.float32)) * steps[:, None]).reshape(codes.shape)


def _weights(op: Op, codes: Array) -> Array:
    w = op.inputs[1]
    held = quant(w)
    if held.block is not None:
        scales = block_scales(op, held.block, codes).repeat(held.block.block_size, axis=1)
        return codes * scales
    shape = [1] * codes.ndim
    shape[held.axis if held.scale.size > 1 else 0] = held.scale.size
    return signed(codes).astype(np.float32) * held.scale.astype(np.float32).reshape(shape)


def _padded(tensor: Tensor, x: Array, padding: tuple[int, int, int, int]) -> tuple[Tensor, Array]:
    top, bottom, left, right = padding
    zero = 0 if x.dtype.kind == "f" else scale_zero(tensor)[1]
    wide = np.pad(x, [(0, 0), (top, bottom), (left, right), (0, 0)], constant_values=zero)
    return Tensor(tensor.name, tensor.dtype, wide.shape, quant=tensor.quant), wide


def _added(op: Op, product: Array, residual: Array, state: State) -> Array:
    """As the definition of ADD has it, with the op's activation."""
    out, record = op.outputs[0], Fused.of(op)
    between = out.copy()
    between.quant = out.quant if record.inner is None else Quant.of(*record.inner)
    attrs = {"fused_activation_function": op.attrs["fused_activation_function"]}
    add = Op("ADD", [between, Inputs.of(op).residual], [out], attrs)
    return operator_result(add, [product, residual.reshape(out.shape)], state)[0]


# -- operators whose codes have moved to the type of activations --------------------------------


def moved(op: Op, arrays: Arrays, state: State, home: DType | None = None) -> list[Array]:
    """An operator of the schema. Where its codes are in the other 8-bit type than the definition
    wants beside the weights (home), they move there and its results move back."""
    weights = Inputs.of(op).weights if op.name in WEIGHTED else None
    home = home or (None if weights is None else BESIDE.get(weights.dtype))
    place = 2 if op.name == "TRANSPOSE_CONV" else 0
    data = op.input(place)
    if home is None or data is None or data.dtype not in BYTES or data.dtype is home:
        return operator_result(op, arrays, state)
    tensors, values = list(op.inputs), list(arrays)
    tensors[place], values[place] = _in_type(data, home), _flipped(present(arrays, place), home)
    outputs = [_in_type(t, home) if t.dtype in BYTES else t for t in op.outputs]
    results = operator_result(op.copy(tensors, outputs), values, state)
    return [
        _flipped(array, tensor.dtype) if tensor.dtype in BYTES else array
        for array, tensor in zip(results, op.outputs, strict=True)
    ]


def _in_type(tensor: Tensor, dtype: DType) -> Tensor:
    scale, zero = scale_zero(tensor)
    by = -128 if dtype is DType.INT8 else 128
    return Tensor(tensor.name, dtype, tensor.shape, quant=Quant.of(scale, zero + by))


def _flipped(codes: Array, dtype: DType) -> Array:
    return (codes.view(np.uint8) ^ np.uint8(128)).view(dtype.numpy)


# -- the others ---------------------------------------------------------------------------------


def chained(op: Op, arrays: Arrays, state: State) -> list[Array]:
    value, rest = present(arrays), arrays[1:]
    for stage in unchained(op):
        run, count = fused if stage.name in OPERATORS else moved, len(stage.inputs) - 1
        (value,) = run(stage, [value, *rest[:count]], state)
        rest = rest[count:]
    return [value]


def mapped(op: Op, arrays: Arrays, state: State) -> list[Array]:
    shapes = op.attrs.get("shapes") or [None if a is None else a.shape for a in arrays]
    given = [np.asarray(a).reshape(s or ()) for a, s in zip(arrays, shapes, strict=True)]
    found, shape = X.evaluate(op.attrs["expr"], given), op.outputs[0].shape
    same = found.size == elements(shape)
    return [found.reshape(shape) if same else np.broadcast_to(found, shape)]


def looked_up(op: Op, arrays: Arrays, state: State) -> list[Array]:
    table = np.asarray(op.attrs["table"]).view(np.uint8)
    return [table[present(arrays).view(np.uint8)].view(op.outputs[0].dtype.numpy)]


def looked_up16(op: Op, arrays: Arrays, state: State) -> list[Array]:
    x, table = present(arrays), present(arrays, 1)
    return [table[x.astype(np.int64) + len(table) // 2]]


def flipped(op: Op, arrays: Arrays, state: State) -> list[Array]:
    return [_flipped(present(arrays), op.outputs[0].dtype)]


def ranges(op: Op, arrays: Arrays, state: State) -> list[Array]:
    """A kernel's chunks are as long as its vectors make them: each here has the group's range."""
    groups, chunks, _ = op.outputs[0].shape
    rows = present(arrays).reshape(groups, -1)
    ends = np.stack([rows.min(1, initial=0), rows.max(1, initial=0)], axis=1)
    return [np.repeat(ends[:, None], chunks, axis=1).astype(np.float32)]


def encoded(op: Op, arrays: Arrays, state: State) -> list[Array]:
    """Codes of the type of activations, and (zero point, bits of the step) of each group."""
    x, dtype = present(arrays), op.outputs[0].dtype
    groups = op.outputs[1].shape[0]
    codes, steps, zeros = quantize_rows(x.reshape(groups, -1), not op.attrs["symmetric"])
    shift = 128 if dtype is DType.UINT8 else 0
    table = np.stack([zeros.astype(np.int32) + shift, steps.astype(np.float32).view(np.int32)], 1)
    return [(codes + shift).astype(dtype.numpy).reshape(x.shape), table.astype(np.int32)]


def normalised(op: Op, arrays: Arrays, state: State) -> list[Array]:
    x = present(arrays).astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = np.square(centred).mean(axis=-1, keepdims=True)
    found = centred / np.sqrt(variance + op.attrs["epsilon"])
    if len(arrays) > 1:
        slope, offset = (present(arrays, place).reshape(-1) for place in (1, 2))
        found = found * slope + offset
    return [found.astype(np.float32)]


def copied(op: Op, arrays: Arrays, state: State) -> list[Array]:
    return [present(arrays).copy()]


def merged(op: Op, arrays: Arrays, state: State) -> list[Array]:
    taken = 1 if present(arrays).reshape(-1)[0] else 2
    return [present(arrays, taken).copy()]
