"""The STABLEHLO_ operators that have kernels; composite and case are with control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import UnsupportedError
from ..ir import Array, Graph, Op, Shape
from .base import (
    INDEX,
    Spec,
    Specs,
    attr,
    check_same_shape,
    define,
    elements,
    fitting,
    ints,
    on,
    operand,
    out_spec,
    require,
    single,
    sized,
)
from .layout import pad_general, padded_shape
from .random_bits import philox, threefry
from .reduce import reduce_windows, window_shape

Binary = Callable[[Array, Array], Array]

_INTEGERS = "i8 i16 i32 i64 u8 u16 u32 u64"
_NUMBERS = f"f16 f32 f64 {_INTEGERS} bool"


# -- elementwise --------------------------------------------------------------------------------


def _shift_left(a: Array, b: Array) -> Array:
    """As C has it on every processor we know: narrow types are widened to 32 bits first."""
    return a.astype(np.int64) << (b.astype(np.int64) & 31)


# C++'s max and min keep the first operand where a NaN makes the comparison false.
ELEMENTWISE: dict[str, Binary] = {
    "STABLEHLO_ADD": np.add,
    "STABLEHLO_MULTIPLY": np.multiply,
    "STABLEHLO_MAXIMUM": lambda a, b: np.where(a < b, b, a),
    "STABLEHLO_MINIMUM": lambda a, b: np.where(b < a, b, a),
    "STABLEHLO_AND": np.bitwise_and,
    "STABLEHLO_SHIFT_LEFT": _shift_left,
}
ELEMENTWISE_TYPES = {
    "STABLEHLO_AND": f"{_INTEGERS} bool",
    "STABLEHLO_SHIFT_LEFT": "i8 i16 i32",
}


def _elementwise(op: Op, a: Array, b: Array) -> Array:
    check_same_shape(op, a.shape, b.shape)
    return ELEMENTWISE[op.name](a, b).astype(a.dtype)


for _name in ELEMENTWISE:
    define(
        _name,
        infer=fitting(check_same_shape, [0, 1]),
        evaluate=on(_elementwise),
        family="stablehlo",
        takes=f"x: {ELEMENTWISE_TYPES.get(_name, _NUMBERS)}, y: x -> x",
    )


# -- padding ------------------------------------------------------------------------------------


_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


def _infer_pad(op: Op, specs: Specs) -> Spec:
    shape = operand(op, specs).shape
    low, high, inside = (ints(attr(op, name)) for name in _PADDING)
    return out_spec(op, None if shape is None else padded_shape(op, shape, low, high, inside))


def _pad(op: Op, x: Array, fill: Array) -> Array:
    low, high, inside = (ints(attr(op, name)) for name in _PADDING)
    return pad_general(op, x, fill, low, high, inside)


def _check_value(op: Op, shape: Shape) -> None:
    single(op, shape, "the initial value or padding")


define(
    "STABLEHLO_PAD",
    infer=fitting(_check_value, [1], _infer_pad),
    evaluate=on(_pad),
    family="stablehlo",
    takes=f"x: {_NUMBERS} bf16 c64, fill: x -> x",
    notes="edges may be negative; interior padding",
)


# -- reductions over windows --------------------------------------------------------------------

# What a graph of one op computes, by the op's name without the prefix.
_BODIES = {"ADD": "ADD", "MUL": "MUL", "MULTIPLY": "MUL", "MAXIMUM": "MAXIMUM",
           "MINIMUM": "MINIMUM", "AND": "ALL", "LOGICAL_AND": "ALL", "OR": "ANY",
           "LOGICAL_OR": "ANY"}  # fmt: skip


def _body(op: Op, attribute: str) -> str:
    """The function in an operator's graph: a row of _BODIES, or UPDATE for an empty graph."""
    graph = attr(op, attribute)
    require(isinstance(graph, Graph), op, f"attribute {attribute} names no graph")
    if not graph.ops:
        return "UPDATE"
    name = graph.ops[0].name.removeprefix("STABLEHLO_")
    if len(graph.ops) > 1 or name not in _BODIES:
        names = ", ".join(o.name for o in graph.ops)
        raise UnsupportedError(
            f"the computation '{graph.name}' ({names}) is not supported",
            where=op.where,
            fix=f"it may be one of {', '.join(_BODIES)}",
        )
    return _BODIES[name]


def _window_attributes(op: Op, rank: int) -> dict[str, list[int]]:
    found = {
        name: ints(attr(op, name)) or [1] * rank
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    }
    for name, values in found.items():
        require(len(values) == rank and min(values, default=1) > 0, op, f"{name} {values} is wrong")
    padding = ints(attr(op, "padding")) or [0] * (2 * rank)
    require(len(padding) == 2 * rank and 0 < rank <= 6, op, f"rank {rank}, padding {padding}")
    return found | {
        "low": padding[::2],
        "high": padding[1::2],
        "inside": [d - 1 for d in found["base_dilations"]],
    }


def _infer_reduce_window(op: Op, specs: Specs) -> Spec:
    shape = operand(op, specs).shape
    if shape is None:
        return out_spec(op, None)
    a = _window_attributes(op, len(shape))
    padded = padded_shape(op, shape, a["low"], a["high"], a["inside"])
    return out_spec(
        op, window_shape(padded, a["window_dimensions"], a["window_strides"], a["window_dilations"])
    )


def _reduce_window(op: Op, x: Array, init: Array) -> Array:
    a = _window_attributes(op, x.ndim)
    function = _body(op, "body_subgraph_index")
    require(function != "UPDATE", op, "the reduction has an empty graph")
    padded = pad_general(op, x, init, a["low"], a["high"], a["inside"])
    return reduce_windows(
        padded, init, a["window_dimensions"], a["window_strides"], a["window_dilations"], function
    )


def _reduce_window_macs(op: Op) -> int:
    return elements(op.outputs[0].shape) * elements(ints(attr(op, "window_dimensions")))


define(
    "STABLEHLO_REDUCE_WINDOW",
    infer=fitting(_check_value, [1], _infer_reduce_window),
    evaluate=on(_reduce_window),
    family="stablehlo",
    takes="x[1-6]: f32 f64 i8 i16 i32 i64 u8 bool, init: x -> x",
    macs=_reduce_window_macs,
    notes="the body is one op: add, multiply, maximum, minimum, and, or",
)


# -- gather and scatter -------------------------------------------------------------------------


def _check_starts(op: Op, indices: Shape, dims: Sequence[int], rank: int) -> Shape:
    """The shape of the batch: indices without the axis of the index vectors."""
    axis = int(attr(op, "index_vector_dim"))
    require(0 <= axis <= len(indices), op, f"index_vector_dim is {axis} in rank {len(indices)}")
    size = 1 if axis == len(indices) else indices[axis]
    fits = len(dims) <= size and all(0 <= d < rank for d in dims)
    require(fits, op, f"index vectors of {size} for the axes {list(dims)}")
    return indices[:axis] + indices[axis + 1 :]


def _starts(op: Op, indices: Array, dims: Sequence[int], rank: int) -> Array:
    """Where each window starts: index vectors spread over the operand's axes, [batch..., rank]."""
    _check_starts(op, indices.shape, dims, rank)
    axis = int(attr(op, "index_vector_dim"))
    vectors = indices[..., None] if axis == indices.ndim else np.moveaxis(indices, axis, -1)
    starts = np.zeros((*vectors.shape[:-1], rank), np.int64)
    for k, dim in enumerate(dims):
        starts[..., dim] = vectors[..., k]
    return starts


def _places(starts: Array, window: Sequence[tuple[int, int]]) -> list[Array]:
    """Index arrays [batch..., window...], an array for each axis of the operand.

    window lists (axis of the operand, size) for each axis of the windows.
    """
    batch, rank = starts.shape[:-1], starts.shape[-1]
    found = [starts[..., axis].reshape(*batch, *[1] * len(window)) for axis in range(rank)]
    for place, (axis, size) in enumerate(window):
        offsets = np.arange(size).reshape([-1 if i == place else 1 for i in range(len(window))])
        found[axis] = found[axis] + offsets
    return found


def _kept(rank: int, dropped: Sequence[int]) -> list[int]:
    return [axis for axis in range(rank) if axis not in dropped]


def _gather_order(op: Op, batch: int, offsets: Sequence[int]) -> list[int]:
    """The axes of [batch..., window...] in the order of the result."""
    rank = batch + len(offsets)
    fits = all(0 <= d < rank for d in offsets) and len(set(offsets)) == len(offsets)
    require(fits, op, f"offset_dims {list(offsets)} do not fit rank {rank}")
    batches, windows = iter(range(batch)), iter(range(batch, rank))
    return [next(windows) if axis in offsets else next(batches) for axis in range(rank)]


def _gather_shapes(op: Op, shape: Shape, indices: Shape) -> tuple[list[int], list[int]]:
    """Window sizes without the collapsed ones, and the axes of the operand they belong to."""
    sizes, collapsed = ints(attr(op, "slice_sizes")), ints(attr(op, "collapsed_slice_dims"))
    require(len(sizes) == len(shape), op, f"{len(sizes)} slice sizes for rank {len(shape)}")
    fits = all(0 <= s <= n for s, n in zip(sizes, shape, strict=True))
    require(fits, op, f"slices of {sizes} do not fit into {shape}")
    axes = _kept(len(shape), collapsed)
    require(
        len(axes) == len(ints(attr(op, "offset_dims"))), op, "offset_dims do not fit the slices"
    )
    return [sizes[a] for a in axes], axes


def _infer_gather(op: Op, specs: Specs) -> Spec:
    x, indices = operand(op, specs), operand(op, specs, 1)
    if x.shape is None or indices.shape is None:
        return out_spec(op, None)
    sizes, _ = _gather_shapes(op, x.shape, indices.shape)
    batch = _check_starts(op, indices.shape, ints(attr(op, "start_index_map")), len(x.shape))
    order = _gather_order(op, len(batch), ints(attr(op, "offset_dims")))
    return out_spec(op, sized(op, ([*batch, *sizes][a] for a in order)))


def _gather(op: Op, x: Array, indices: Array) -> Array:
    sizes, axes = _gather_shapes(op, x.shape, indices.shape)
    starts = _starts(op, indices, ints(attr(op, "start_index_map")), x.ndim)
    sized(op, (*starts.shape[:-1], *sizes))
    room = np.array(x.shape, np.int64) - np.array(ints(attr(op, "slice_sizes")), np.int64)
    starts = np.clip(starts, 0, room)  # a window that sticks out is moved back inside
    places = _places(starts, list(zip(axes, sizes, strict=True)))
    order = _gather_order(op, starts.ndim - 1, ints(attr(op, "offset_dims")))
    return np.asarray(x[tuple(places)].transpose(order), order="C")  # which keeps rank 0


define(
    "STABLEHLO_GATHER",
    infer=_infer_gather,
    evaluate=on(_gather),
    family="stablehlo",
    takes=f"x: {_NUMBERS} bf16 c64, indices: {INDEX} -> x",
)

_SCATTER: dict[str, np.ufunc] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum,
}


def _check_scatter(
    op: Op, shape: Shape, indices: Shape, updates: Shape
) -> tuple[list[int], list[int], list[int]]:
    """Axes of the updates that are windows, those of the operand they lie along, and the rest."""
    dims = ints(attr(op, "scatter_dims_to_operand_dims"))
    batch = _check_starts(op, indices, dims, len(shape))
    windows = ints(attr(op, "update_window_dims"))
    axes = _kept(len(shape), ints(attr(op, "inserted_window_dims")))
    batches = _kept(len(updates), windows)
    fits = len(windows) == len(axes) and all(0 <= d < len(updates) for d in windows)
    require(fits, op, f"update_window_dims {windows} do not fit the axes {axes}")
    fits = tuple(updates[d] for d in batches) == batch
    require(fits, op, f"updates of shape {updates} for indices of shape {indices}")
    return windows, axes, batches


def _scatter(op: Op, x: Array, indices: Array, updates: Array) -> Array:
    """Updates in row order; those that fall outside are left out, one element at a time."""
    windows, axes, batches = _check_scatter(op, x.shape, indices.shape, updates.shape)
    starts = _starts(op, indices, ints(attr(op, "scatter_dims_to_operand_dims")), x.ndim)
    window = [(axis, updates.shape[d]) for axis, d in zip(axes, windows, strict=True)]
    # [batch..., window...] back to the order of the updates
    order = np.argsort([*batches, *windows])
    places = [
        np.broadcast_to(p, (*starts.shape[:-1], *(n for _, n in window))).transpose(order)
        for p in _places(starts, window)
    ]
    return _apply(op, x.copy(), places, updates)


def _apply(op: Op, result: Array, places: Sequence[Array], updates: Array) -> Array:
    function = _body(op, "update_computation_subgraph_index")
    inside = np.ones(updates.shape, bool)
    for place, size in zip(places, result.shape, strict=True):
        inside &= (place >= 0) & (place < size)
    if function in ("MAXIMUM", "MINIMUM") and updates.dtype.kind == "f":
        inside &= ~np.isnan(updates)  # a NaN is neither larger nor smaller
    chosen, values = tuple(p[inside] for p in places), updates[inside]
    if function == "UPDATE":
        result[chosen] = values
    elif function in _SCATTER:
        _SCATTER[function].at(result, chosen, values)
    else:
        raise UnsupportedError(
            f"the computation {function} is not supported",
            where=op.where,
            fix=f"it may be one of {', '.join(_SCATTER)}",
        )
    return result


define(
    "STABLEHLO_SCATTER",
    infer=fitting(_check_scatter, [0, 1, 2]),
    evaluate=on(_scatter),
    family="stablehlo",
    takes=f"x: {_NUMBERS}, indices: {INDEX}, updates: x -> x",
    notes="the computation is empty (update) or one op: add, multiply, maximum, minimum",
)


# -- random bits --------------------------------------------------------------------------------


def _check_state(op: Op, state: Shape) -> bool:
    is_threefry = bool(attr(op, "algorithm") == "THREEFRY")
    fits = state == (2,) or (state == (3,) and not is_threefry)
    require(fits, op, f"a state of shape {state} does not fit the algorithm")
    return is_threefry


def _random_bits(op: Op, state: Array) -> list[Array]:
    """State: a key and a 64-bit counter of blocks; Philox may have two more words."""
    is_threefry = _check_state(op, state.shape)
    words = np.ascontiguousarray(state).view(np.uint32)
    shape, dtype = sized(op, op.outputs[1].shape), op.outputs[1].dtype
    wanted, size = elements(shape) * dtype.bits // 32, 2 if is_threefry else 4
    blocks = -(-wanted // size)
    counts = state[1] + np.arange(blocks, dtype=np.uint64)
    counter = [counts & np.uint64(0xFFFFFFFF), counts >> np.uint64(32)]
    rest = words[4:] if words.size == 6 else words[:2]
    bits = (
        threefry(words[:2], counter)
        if is_threefry
        else philox(words[:2], [*counter, *(np.full(blocks, w) for w in rest)])
    )
    after = state.copy()
    after[1] += np.uint64(blocks)
    return [after, bits.reshape(-1)[:wanted].copy().view(dtype.numpy).reshape(shape)]


def _infer_random_bits(op: Op, specs: Specs) -> list[Spec]:
    """The graph alone says how many bits are wanted."""
    return [out_spec(op, operand(op, specs).shape), out_spec(op, op.outputs[1].shape, 1)]


define(
    "STABLEHLO_RNG_BIT_GENERATOR",
    infer=fitting(_check_state, [0], _infer_random_bits),
    evaluate=on(_random_bits),
    family="stablehlo",
    takes="x[1]: u64 -> x, i32 u32 i64 u64",
    notes="Philox4x32 and Threefry2x32, bit for bit",
)
