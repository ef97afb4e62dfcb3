"""What each operator is in PyTorch: one table, operator name -> differentiable function.

A function gets the op and its operands as tensors in TFLite's layouts, and returns its results.
What parts of an op are decided by its shapes and constants (windows, axes, sizes) is computed as
ops/ does it, so that answers agree. Elementwise operators are the expressions of the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from ...errors import InputError
from ...ir import Array, DType, Op
from ...ops.base import attr
from ...ops.execute import evaluate, new_state
from ...ops.fixed import fused_bounds
from ...ops.geometry import Axis, axis
from ...ops.image import float_taps

MOST_TAPS = 1024  # of a pool along an axis: what is padded around has to fit into memory
MOST_PLACES = 1 << 24  # whole numbers that float32 tells apart
Tensors = Sequence["torch.Tensor | None"]
Function = Callable[[Op, Tensors], "list[torch.Tensor]"]


def _given(tensors: Tensors, place: int) -> torch.Tensor:
    found = tensors[place]
    assert found is not None, "the operator's definition demands it"
    return found


def _optional(tensors: Tensors, place: int) -> torch.Tensor | None:
    return tensors[place] if place < len(tensors) else None


def _constant(op: Op, place: int) -> Array:
    """An operand that must be known before a run: shapes, axes, paddings."""
    return op.operand(place).values


def _numbers(op: Op, place: int) -> list[int]:
    return [int(v) for v in _constant(op, place).reshape(-1)]


# -- activations ----------------------------------------------------------------------------------


def activate(op: Op, x: torch.Tensor) -> torch.Tensor:
    """The activation that is fused into the op."""
    name = str(attr(op, "fused_activation_function"))
    if name == "TANH":
        return torch.tanh(x)
    if name == "SIGN_BIT":
        return torch.signbit(x).to(x.dtype)
    return bounded(x, *fused_bounds(op))


def bounded(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Within bounds. The gradients of these functions are one pass each, those of clamp are three;
    where a value is at a bound they are nothing, there it is all."""
    if np.isinf(high):
        return x if np.isinf(low) else F.relu(x) if low == 0 else torch.clamp(x, min=low)
    return F.hardtanh(x, low, high)


def _activated(bare: Function) -> Function:
    """With the activation that is fused into the op behind it."""
    return lambda op, tensors: [activate(op, found) for found in bare(op, tensors)]


# -- windows --------------------------------------------------------------------------------------


def _axes(op: Op, shape: Sequence[int], taps: Sequence[int], dilated: bool) -> list[Axis]:
    strides = int(attr(op, "stride_h")), int(attr(op, "stride_w"))
    names = ("dilation_h_factor", "dilation_w_factor")
    dilations = [int(attr(op, name)) for name in names] if dilated else [1, 1]
    padding = str(attr(op, "padding"))
    return [axis(op, padding, shape[1 + i], taps[i], strides[i], dilations[i]) for i in range(2)]


def _window(x: torch.Tensor, axes: Sequence[Axis]) -> tuple[torch.Tensor, list[int]]:
    """[N, H, W, C] as [N, C, H, W], and the padding that the convolution adds itself: where it is
    the same on both sides nothing is copied."""
    if all(a.before == a.after for a in axes):
        return x.permute(0, 3, 1, 2), [a.before for a in axes]
    return _padded(x, axes), [0, 0]


def _padded(x: torch.Tensor, axes: Sequence[Axis], value: float = 0.0) -> torch.Tensor:
    """[N, H, W, C] as [N, C, H, W], with what the windows need around it."""
    high, wide = axes
    pads = (wide.before, wide.after, high.before, high.after)
    moved = x.permute(0, 3, 1, 2)
    return F.pad(moved, pads, value=value) if any(pads) else moved


def _back(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 3, 1)


def conv_2d(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, weights, bias = _given(tensors, 0), _given(tensors, 1), _optional(tensors, 2)
    axes = _axes(op, x.shape, weights.shape[1:3], dilated=True)
    moved, padding = _window(x, axes)
    found = F.conv2d(
        moved,
        weights.permute(0, 3, 1, 2),
        bias,
        stride=[a.stride for a in axes],
        padding=padding,
        dilation=[a.dilation for a in axes],
        groups=x.shape[3] // weights.shape[3],
    )
    return [_back(found)]


def depthwise_conv_2d(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, weights, bias = _given(tensors, 0), _given(tensors, 1), _optional(tensors, 2)
    axes = _axes(op, x.shape, weights.shape[1:3], dilated=True)
    moved, padding = _window(x, axes)
    found = F.conv2d(
        moved,
        weights.permute(3, 0, 1, 2),
        bias,
        stride=[a.stride for a in axes],
        padding=padding,
        dilation=[a.dilation for a in axes],
        groups=x.shape[3],
    )
    return [_back(found)]


def transpose_conv(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    weights, x, bias = _given(tensors, 1), _given(tensors, 2), _optional(tensors, 3)
    size = _numbers(op, 0)
    strides = [int(attr(op, "stride_h")), int(attr(op, "stride_w"))]
    padding = str(attr(op, "padding"))
    whole = F.conv_transpose2d(
        x.permute(0, 3, 1, 2), weights.permute(3, 0, 1, 2), bias, stride=strides
    )
    # What the windows of the opposite convolution would pad is cut off.
    befores = [
        axis(op, padding, size[1 + i], weights.shape[1 + i], strides[i]).before for i in range(2)
    ]
    rooms = [max(0, size[1 + i] + befores[i] - whole.shape[2 + i]) for i in range(2)]
    whole = F.pad(whole, (0, rooms[1], 0, rooms[0]))
    if bias is not None and any(rooms):
        whole[:, :, whole.shape[2] - rooms[0] :] += bias[:, None, None]
        whole[:, :, : whole.shape[2] - rooms[0], whole.shape[3] - rooms[1] :] += bias[:, None, None]
    cut = whole[:, :, befores[0] : befores[0] + size[1], befores[1] : befores[1] + size[2]]
    return [_back(cut)]


def _taps(op: Op) -> tuple[int, int]:
    return int(attr(op, "filter_height")), int(attr(op, "filter_width"))


def max_pool_2d(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x = _given(tensors, 0)
    axes = _axes(op, x.shape, _taps(op), dilated=False)
    padded = _padded(x, axes, -torch.inf)
    found = F.max_pool2d(padded, _taps(op), [a.stride for a in axes])
    return [activate(op, _back(found))]


def average_pool_2d(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x = _given(tensors, 0)
    axes = _axes(op, x.shape, _taps(op), dilated=False)
    sums = F.avg_pool2d(_padded(x, axes), _taps(op), [a.stride for a in axes], divisor_override=1)
    rows, columns = (torch.from_numpy(a.count().astype(np.float32)) for a in axes)
    return [activate(op, _back(sums / (rows[:, None] * columns)))]


# -- products -------------------------------------------------------------------------------------


def fully_connected(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, weights, bias = _given(tensors, 0), _given(tensors, 1), _optional(tensors, 2)
    found = F.linear(x.reshape(-1, weights.shape[1]), weights, bias)
    return [found.reshape(_sizes(op, x, weights))]


def _sizes(op: Op, x: torch.Tensor, weights: torch.Tensor) -> list[int]:
    if bool(attr(op, "keep_num_dims")):
        return [*x.shape[:-1], weights.shape[0]]
    return [x.numel() // weights.shape[1], weights.shape[0]]


def batch_matmul(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    a, b = _given(tensors, 0), _given(tensors, 1)
    a = a.transpose(-1, -2) if bool(attr(op, "adj_x")) else a
    b = b.transpose(-1, -2) if bool(attr(op, "adj_y")) else b
    return [torch.matmul(a, b)]


# -- arithmetic -----------------------------------------------------------------------------------


def _arithmetic(function: Callable[..., torch.Tensor]) -> Function:
    """The function of an operator with two operands, within the bounds that are fused in: these
    kernels know no other activations."""
    return lambda op, tensors: [
        bounded(function(_given(tensors, 0), _given(tensors, 1)), *fused_bounds(op))
    ]


def _clamped(low: float, high: float) -> Function:
    return lambda op, tensors: [bounded(_given(tensors, 0), low, high)]


# -- reductions -----------------------------------------------------------------------------------


def _reduction(reduce: Callable[..., torch.Tensor]) -> Function:
    def function(op: Op, tensors: Tensors) -> list[torch.Tensor]:
        x = _given(tensors, 0)
        axes = sorted({a % max(1, x.dim()) for a in _numbers(op, 1)})
        keep = bool(attr(op, "keep_dims"))
        return [reduce(x, axes, keep) if axes and x.dim() else x]

    return function


def _product(x: torch.Tensor, axes: Sequence[int], keep: bool) -> torch.Tensor:
    for place in reversed(axes):
        x = torch.prod(x, place, keep)
    return x


def softmax(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [torch.softmax(_given(tensors, 0) * float(attr(op, "beta")), -1)]


def log_softmax(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [torch.log_softmax(_given(tensors, 0), -1)]


def l2_normalization(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x = _given(tensors, 0)
    size = torch.sqrt(torch.sum(x * x, -1, keepdim=True))
    return [activate(op, x / torch.clamp(size, min=1e-6))]


# -- moves ----------------------------------------------------------------------------------------


def _shaped(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    """Reshapes: the result's shape is known but for the first dimension, the batch."""
    x, shape = _given(tensors, 0), list(op.outputs[0].shape)
    known = int(np.prod(op.operand(0).shape))
    if x.numel() != known and shape:
        shape[0] = shape[0] * x.numel() // max(1, known)
    return [x.reshape(shape)]


def transpose(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [_given(tensors, 0).permute(_numbers(op, 1))]


def pad(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    value = float(_constant(op, 2).reshape(-1)[0]) if op.name == "PADV2" else 0.0
    pads = [int(p) for pair in _constant(op, 1)[::-1] for p in pair]
    return [F.pad(_given(tensors, 0), pads, value=value)]


def mirror_pad(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x = _given(tensors, 0)
    reflects = str(attr(op, "mode")) == "REFLECT"
    for place, (before, after) in enumerate(_constant(op, 1)):
        room = int(before), int(after)
        order = np.pad(np.arange(x.shape[place]), room, "reflect" if reflects else "symmetric")
        x = x.index_select(place, torch.from_numpy(order))
    return [x]


def concatenation(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    present = [t for t in tensors if t is not None]
    return [activate(op, torch.cat(present, int(attr(op, "axis"))))]


def pack(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return [torch.stack([t for t in tensors if t is not None], int(attr(op, "axis")))]


def unpack(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return list(torch.unbind(_given(tensors, 0), int(attr(op, "axis"))))


def split(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    return list(torch.chunk(_given(tensors, 1), int(attr(op, "num_splits")), _numbers(op, 0)[0]))


def split_v(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, place = _given(tensors, 0), _numbers(op, 2)[0]
    sizes = _numbers(op, 1)
    rest = x.shape[place] - sum(s for s in sizes if s >= 0)
    return list(torch.split(x, [rest if s < 0 else s for s in sizes], place))


def slice_(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x = _given(tensors, 0)
    for place, (start, size) in enumerate(zip(_numbers(op, 1), _numbers(op, 2), strict=True)):
        x = x.narrow(place, start, x.shape[place] - start if size < 0 else size)
    return [x]


def strided_slice(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    """By slices where every step is forward and no axis is made or dropped."""
    x = _given(tensors, 0)
    known = all(op.operand(i).is_constant for i in (1, 2, 3))
    odd = any(int(attr(op, f"{m}_mask")) for m in ("ellipsis", "new_axis", "shrink_axis"))
    if not known or odd or min(_numbers(op, 3)) < 1 or bool(attr(op, "offset")):
        return gather_by_definition(op, tensors)
    lows, highs = int(attr(op, "begin_mask")), int(attr(op, "end_mask"))
    cuts = zip(_numbers(op, 1), _numbers(op, 2), _numbers(op, 3), strict=True)
    return [
        x[
            tuple(
                slice(None if lows >> i & 1 else a, None if highs >> i & 1 else b, step)
                for i, (a, b, step) in enumerate(cuts)
            )
        ]
    ]


def gather_by_definition(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    """The definition moves numbers of elements instead of elements, and shows where each comes
    from; the elements are then picked, which has a gradient."""
    main = _MAIN[op.name]
    x = _given(tensors, main)
    others = [t for i, t in enumerate(op.inputs) if t is not None and i != main]
    if all(t.is_constant for t in others):
        places = _known_places(op, tuple(x.shape), main)
    else:
        places = _places(op, tuple(x.shape), main, tensors)
    flat = x.reshape(-1)
    return [flat[at] for at in places]


@lru_cache(maxsize=256)
def _known_places(op: Op, shape: tuple[int, ...], main: int) -> list[torch.Tensor]:
    constants = [
        None if t is None or i == main else torch.from_numpy(np.array(t.values))
        for i, t in enumerate(op.inputs)
    ]
    return _places(op, shape, main, constants)


def _places(op: Op, shape: tuple[int, ...], main: int, tensors: Tensors) -> list[torch.Tensor]:
    """Where the elements of each result come from, in the flat operand."""
    numbers = np.arange(int(np.prod(shape)), dtype=np.int64)
    if numbers.size >= MOST_PLACES:
        raise InputError(
            f"{numbers.size} elements are more than can be followed",
            where=op.where,
            fix="train with smaller batches",
        )
    arrays = [
        numbers.astype(np.float32).reshape(shape)
        if i == main
        else None
        if t is None
        else t.detach().numpy()
        for i, t in enumerate(tensors)
    ]
    found = evaluate(op, arrays, new_state())
    return [torch.from_numpy(np.asarray(a).astype(np.int64)) for a in found]


# Operators whose results are elements of one operand, wherever the others put them; its place.
_MAIN = {
    "STRIDED_SLICE": 0, "TILE": 0, "REVERSE_V2": 0, "GATHER": 0, "GATHER_ND": 0,
    "DEPTH_TO_SPACE": 0, "SPACE_TO_DEPTH": 0, "BATCH_TO_SPACE_ND": 0, "BROADCAST_TO": 0,
    "RESIZE_NEAREST_NEIGHBOR": 0, "EMBEDDING_LOOKUP": 1,
}  # fmt: skip


def space_to_batch_nd(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, block, pads = _given(tensors, 0), _numbers(op, 1), _constant(op, 2)
    flat = [0, 0] * (x.dim() - 1 - len(block))
    x = F.pad(x, [*flat, *(int(p) for pair in pads[::-1] for p in pair)])
    batch, rest = x.shape[0], x.shape[1 + len(block) :]
    sizes = [n for size, b in zip(x.shape[1:], block, strict=False) for n in (size // b, b)]
    order = [*range(2, 2 * len(block) + 1, 2), 0, *range(1, 2 * len(block) + 1, 2)]
    moved = x.reshape(batch, *sizes, *rest)
    tail = range(2 * len(block) + 1, moved.dim())
    shape = [batch * int(np.prod(block)), *sizes[::2], *rest]
    return [moved.permute(*order, *tail).reshape(shape)]


# -- images ---------------------------------------------------------------------------------------


def resize_bilinear(op: Op, tensors: Tensors) -> list[torch.Tensor]:
    x, size = _given(tensors, 0), _numbers(op, 1)
    rows, columns = (float_taps(op, x.shape[1 + i], size[i]) for i in range(2))
    top, bottom, near_y, far_y = (torch.from_numpy(np.asarray(a)) for a in rows)
    left, right, near_x, far_x = (torch.from_numpy(np.asarray(a)) for a in columns)
    near_y, far_y = (part[:, None, None].to(x.dtype) for part in (near_y, far_y))
    near_x, far_x = (part[:, None].to(x.dtype) for part in (near_x, far_x))
    upper, lower = x[:, top], x[:, bottom]
    return [
        upper[:, :, left] * near_y * near_x
        + lower[:, :, left] * far_y * near_x
        + upper[:, :, right] * near_y * far_x
        + lower[:, :, right] * far_y * far_x
    ]


# Products of weights without the activation behind them: what integer kernels compute on codes.
PRODUCTS: dict[str, Function] = {
    "CONV_2D": conv_2d,
    "DEPTHWISE_CONV_2D": depthwise_conv_2d,
    "TRANSPOSE_CONV": transpose_conv,
    "FULLY_CONNECTED": fully_connected,
}
FUNCTIONS: dict[str, Function] = {
    **{name: _activated(function) for name, function in PRODUCTS.items()},
    "MAX_POOL_2D": max_pool_2d,
    "AVERAGE_POOL_2D": average_pool_2d,
    "BATCH_MATMUL": batch_matmul,
    "ADD": _arithmetic(torch.add),
    "SUB": _arithmetic(torch.sub),
    "MUL": _arithmetic(torch.mul),
    "RELU": _clamped(0.0, np.inf),
    "RELU6": _clamped(0.0, 6.0),
    "RELU_N1_TO_1": _clamped(-1.0, 1.0),
    "MEAN": _reduction(torch.mean),
    "SUM": _reduction(torch.sum),
    "REDUCE_MAX": _reduction(torch.amax),
    "REDUCE_MIN": _reduction(torch.amin),
    "REDUCE_PROD": _reduction(_product),
    "SOFTMAX": softmax,
    "LOG_SOFTMAX": log_softmax,
    "L2_NORMALIZATION": l2_normalization,
    "RESHAPE": _shaped,
    "SQUEEZE": _shaped,
    "EXPAND_DIMS": _shaped,
    "TRANSPOSE": transpose,
    "PAD": pad,
    "PADV2": pad,
    "MIRROR_PAD": mirror_pad,
    "CONCATENATION": concatenation,
    "PACK": pack,
    "UNPACK": unpack,
    "SPLIT": split,
    "SPLIT_V": split_v,
    "SLICE": slice_,
    "SPACE_TO_BATCH_ND": space_to_batch_nd,
    "RESIZE_BILINEAR": resize_bilinear,
    **dict.fromkeys(_MAIN, gather_by_definition),
    "STRIDED_SLICE": strided_slice,
}


# Operands that must be constants: shapes, axes and paddings.
CONSTANTS: dict[str, tuple[int, ...]] = {
    "TRANSPOSE_CONV": (0,), "TRANSPOSE": (1,), "PAD": (1,), "PADV2": (1, 2), "MIRROR_PAD": (1,),
    "SPLIT": (0,), "SPLIT_V": (1, 2), "SLICE": (1, 2), "SPACE_TO_BATCH_ND": (1, 2),
    "RESIZE_BILINEAR": (1,), "MEAN": (1,), "SUM": (1,), "REDUCE_MAX": (1,), "REDUCE_MIN": (1,),
    "REDUCE_PROD": (1,), "RESHAPE": (1,), "EXPAND_DIMS": (1,),
}  # fmt: skip


# Operators without a gradient, and why; others without a function have none in PyTorch here.
REASONS = {
    "SVDF": "its answer depends on the calls before it",
}


def cannot(op: Op, functions: Container[str]) -> str | None:
    """Why an op has no gradient here; None if it has one. functions: of all operators."""
    from ...delegates.cpu.kernels.elementwise.operators import EXPRESSIONS

    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    if not all(t.dtype.is_float for t in op.outputs):
        return "its result is no float"
    if any(t.dtype in CODES for t in tensors):
        return "it computes with codes: the model is quantised"
    if op.name == "LSTM" and str(attr(op, "kernel_type")) == "BASIC":
        return "the basic kernel takes its state as an operand"
    if op.name == "SOFTMAX" and float(attr(op, "beta")) < 0:
        return "its beta is negative"
    if op.name.endswith("_POOL_2D") and max(_taps(op)) > MOST_TAPS:
        return f"its window is wider than {MOST_TAPS}"
    if op.name not in functions and op.name not in EXPRESSIONS:
        return REASONS.get(op.name, "it has no function in PyTorch here")
    if not all(int(np.prod(t.shape)) for t in tensors):
        return "a tensor has no element"
    for place in CONSTANTS.get(op.name, ()):
        given = op.input(place)
        if given is not None and not given.is_constant:
            return f"its operand {place} must be constant"
    return None


CODES = (DType.INT8, DType.UINT8, DType.INT16, DType.INT4)
