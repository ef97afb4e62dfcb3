"""Gathering, scattering, searching and choosing elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import out_of_range
from ..ir import Array, Op, Shape
from .base import (
    INDEX,
    Spec,
    Specs,
    attr,
    axis_in,
    define,
    elements,
    fitting,
    ints,
    on,
    operand,
    out_spec,
    require,
    same_as_input,
    scalar,
    shaped,
    single,
    sized,
    unfit,
    unknown_outputs,
)

# -- gather -------------------------------------------------------------------------------------


def _gather_axes(op: Op, shape: Shape, places: Shape) -> tuple[int, int]:
    """The axis and the number of batch dimensions, both made non-negative."""
    axis, batch = axis_in(op, attr(op, "axis"), len(shape)), attr(op, "batch_dims")
    batch += len(places) if batch < 0 else 0
    if not 0 <= batch <= min(axis, len(places)):
        raise unfit(op, f"batch_dims {batch} does not fit")
    if shape[:batch] != places[:batch]:
        raise unfit(op, f"batches of {shape} and {places} differ")
    return axis, batch


def _gathered(op: Op, shape: Shape, places: Shape) -> Shape:
    axis, batch = _gather_axes(op, shape, places)
    return shape[:axis] + places[batch:] + shape[axis + 1 :]


def _gather(op: Op, x: Array, places: Array) -> Array:
    axis, batch = _gather_axes(op, x.shape, places.shape)
    check_range(op, places, x.shape[axis])
    if not batch:
        shape = x.shape[:axis] + places.shape + x.shape[axis + 1 :]
        return x.take(places.reshape(-1), axis).reshape(shape)
    batches, outer = math.prod(x.shape[:batch]), math.prod(x.shape[batch:axis])
    size, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    indices = places.reshape(batches, 1, math.prod(places.shape[batch:])).astype(np.int64)
    rows = np.arange(batches * outer).reshape(batches, outer, 1) * size + indices
    found = x.reshape(batches * outer * size, inner)[rows]
    return found.reshape(_gathered(op, x.shape, places.shape))


def check_range(op: Op, indices: Array, sizes: npt.ArrayLike) -> None:
    outside = (indices < 0) | (indices >= sizes)
    if outside.any():
        sizes = np.broadcast_to(np.asarray(sizes, np.int64), indices.shape)
        raise out_of_range(
            "an index", int(indices[outside][0]), int(sizes[outside][0]), where=op.where
        )


define(
    "GATHER",
    infer=shaped(_gathered, data=[0, 1]),
    evaluate=on(_gather),
    family="index",
    takes="x: f32 f16 bf16 u8 i4 i8 i16 u16 i32 i64 bool str, indices: i16 i32 i64 -> x",
    notes="indices i16, i32 or i64; strings of rank 1",
    picks=0,
)


def _flat_indices(indices: Array, shape: Shape) -> Array:
    """Positions in the flattened leading dimensions that the last axis of indices addresses."""
    depth = indices.shape[-1]
    steps = np.array([math.prod(shape[j + 1 : depth]) for j in range(depth)], np.int64)
    return indices.astype(np.int64) @ steps


def _depth(op: Op, shape: Shape, indices: Shape) -> int:
    """How many axes an index vector names."""
    require(len(indices) > 0, op, "indices must be at least a vector")
    require(indices[-1] <= len(shape), op, f"indices of {indices[-1]} axes into shape {shape}")
    return indices[-1]


def _gathered_nd(op: Op, shape: Shape, indices: Shape) -> Shape:
    return indices[:-1] + shape[_depth(op, shape, indices) :]


def _gather_nd(op: Op, x: Array, indices: Array) -> Array:
    depth = _depth(op, x.shape, indices.shape)
    check_range(op, indices, x.shape[:depth])
    flat = x.reshape(math.prod(x.shape[:depth]), *x.shape[depth:])
    return flat[_flat_indices(indices, x.shape)]


define(
    "GATHER_ND",
    infer=shaped(_gathered_nd, data=[0, 1]),
    evaluate=on(_gather_nd),
    family="index",
    takes="x: f32 f16 bf16 u8 i8 i16 u16 i32 i64 bool str, indices[1-]: i16 i32 i64 -> x",
    notes="indices i16, i32 or i64",
    picks=0,
)


# -- scatter ------------------------------------------------------------------------------------


def _scattered(op: Op, indices: Shape, updates: Shape, wanted: list[int]) -> Shape:
    shape = sized(op, wanted)
    depth = _depth(op, shape, indices)
    fits = updates == indices[:-1] + shape[depth:]
    require(fits, op, f"updates of shape {updates} do not fit indices {indices} into {shape}")
    return shape


def _scatter_nd(op: Op, indices: Array, updates: Array, wanted: Array) -> Array:
    """Updates of the same place add up (bools: or)."""
    shape = _scattered(op, indices.shape, updates.shape, ints(wanted))
    depth = indices.shape[-1]
    check_range(op, indices, shape[:depth])
    rows = _flat_indices(indices, shape).reshape(-1)
    result = np.zeros((math.prod(shape[:depth]), *shape[depth:]), updates.dtype)
    np.add.at(result, rows, updates.reshape(rows.size, *shape[depth:]))
    return result.reshape(shape)


define(
    "SCATTER_ND",
    infer=shaped(_scattered, data=[0, 1], by=[2]),
    evaluate=on(_scatter_nd),
    family="index",
    takes="indices[1-]: i32, x: f32 u8 i8 i32 i64 bool, shape: i32 -> x",
)


def _hot_axis(op: Op, rank: int) -> int:
    """Where the classes go among the axes of the indices; -1 is the only negative axis."""
    axis = rank if attr(op, "axis") == -1 else int(attr(op, "axis"))
    require(0 <= axis <= rank, op, f"axis {axis} is outside an output of rank {rank + 1}")
    return axis


def _hot_shape(op: Op, indices: Shape, depth: list[int]) -> Shape:
    axis = _hot_axis(op, len(indices))
    return (*indices[:axis], int(scalar(op, depth, "the depth")), *indices[axis:])


def _check_values(op: Op, hot: Shape, cold: Shape) -> None:
    single(op, hot, "the on value")
    single(op, cold, "the off value")


def _one_hot(op: Op, indices: Array, depth: Array, hot_value: Array, cold: Array) -> Array:
    axis = _hot_axis(op, indices.ndim)
    shape = sized(op, _hot_shape(op, indices.shape, ints(depth)))
    classes = np.arange(shape[axis], dtype=np.int32).reshape(-1, *(1,) * (indices.ndim - axis))
    hot = np.expand_dims(indices.astype(np.int32), axis) == classes
    return np.where(hot, scalar(op, hot_value, "the on value"), scalar(op, cold, "the off value"))


define(
    "ONE_HOT",
    infer=fitting(_check_values, [2, 3], shaped(_hot_shape, by=[1])),
    evaluate=on(_one_hot),
    family="index",
    takes=f"indices: {INDEX}, depth: {INDEX}, x: f32 i8 u8 i32 i64 bool, off: x -> x",
    notes="indices i32 or i64",
)


def _dense(op: Op, indices: Shape, values: Shape, default: Shape, shape: list[int]) -> list[int]:
    require(len(shape) <= 4, op, f"an output of {len(shape)} dimensions", "it makes at most 4")
    single(op, default, "the default")
    count, depth = indices if len(indices) == 2 else (elements(indices), 1)
    require(depth == len(shape), op, f"indices {indices} into shape {shape}")
    require(elements(values) in (1, count), op, f"{elements(values)} values, {count} indices")
    return shape


def _sparse_to_dense(op: Op, indices: Array, wanted: Array, values: Array, default: Array) -> Array:
    """A value at each index, the default elsewhere; the last of equal indices wins."""
    shape = sized(op, _dense(op, indices.shape, values.shape, default.shape, ints(wanted)))
    places = indices.reshape(-1, 1) if indices.ndim < 2 else indices
    check_range(op, places, shape)
    result = np.full(shape, scalar(op, default, "the default"), values.dtype)
    result[tuple(places.T)] = values
    return result


define(
    "SPARSE_TO_DENSE",
    infer=shaped(_dense, data=[0, 2, 3], by=[1]),
    evaluate=on(_sparse_to_dense),
    family="index",
    takes=f"indices[0-2]: {INDEX}, shape: {INDEX}, x[0-1]: f32 i8 u8 i32 i64, default: x -> x",
    notes="indices i32 or i64",
)


# -- searching ----------------------------------------------------------------------------------


def _top_count(op: Op, shape: Shape, count: Array) -> int:
    require(len(shape) > 0, op, "a scalar has no largest elements")
    k = max(0, int(scalar(op, count, "k")))
    require(k <= shape[-1], op, f"k is {k}, the last dimension has {shape[-1]}")
    return k


def _infer_topk(op: Op, specs: Specs) -> list[Spec]:
    x, count = operand(op, specs), operand(op, specs, 1)
    if x.shape is None or count.value is None:
        return unknown_outputs(op)
    shape = (*x.shape[:-1], _top_count(op, x.shape, count.value))
    return [out_spec(op, shape, 0), out_spec(op, shape, 1)]


def _topk(op: Op, x: Array, count: Array) -> list[Array]:
    """Largest first; of equal elements, the one with the smaller index."""
    k = _top_count(op, x.shape, count)
    # A stable ascending sort of the reversed row, read backwards, is a stable descending one.
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    places = order[..., :k]
    values = np.take_along_axis(x, places, axis=-1)
    return [values, places.astype(op.outputs[1].dtype.numpy)]


define(
    "TOPK_V2",
    infer=_infer_topk,
    evaluate=on(_topk),
    family="index",
    takes="x[1-]: f32 u8 i8 i16 i32 i64, k: i16 i32 -> x, i16 i32",
    notes="k and indices i32 or i16",
)


def _infer_unique(op: Op, specs: Specs) -> list[Spec]:
    return [out_spec(op, None, 0), out_spec(op, operand(op, specs).shape, 1)]


def _unique(op: Op, x: Array) -> list[Array]:
    """Values in order of first appearance, and for each element which it is."""
    require(x.ndim == 1, op, f"the input has rank {x.ndim}, not 1")
    values, first, which = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return [values[order], rank[which.reshape(-1)].astype(op.outputs[1].dtype.numpy)]


define(
    "UNIQUE",
    infer=_infer_unique,
    evaluate=on(_unique),
    family="index",
    takes=f"x[1]: f32 u8 i8 i16 i32 i64 -> x, {INDEX}",
    notes="indices i32 or i64",
)


def _infer_where(op: Op, specs: Specs) -> Spec:
    condition = operand(op, specs)
    if condition.value is None:
        return out_spec(op, None)
    return out_spec(op, (int(np.count_nonzero(condition.value)), condition.value.ndim))


def _where(op: Op, condition: Array) -> Array:
    require(condition.ndim > 0, op, "the condition must not be a scalar")
    return np.argwhere(condition).astype(np.int64)


define(
    "WHERE",
    infer=_infer_where,
    evaluate=on(_where),
    family="index",
    takes="x[1-]: bool f32 i8 u8 i32 u32 i64 -> i64",
)


def _bucketize(op: Op, x: Array) -> Array:
    stated = attr(op, "boundaries")
    boundaries = np.asarray([] if stated is None else stated, np.float32)
    require(bool(np.all(boundaries[1:] >= boundaries[:-1])), op, "boundaries are not sorted")
    # Integers are compared with the boundaries in float32, as C's promotion has it.
    values = x if x.dtype.kind == "f" else x.astype(np.float32)
    found = np.searchsorted(boundaries.astype(values.dtype), values, side="right")
    return np.asarray(found, np.int32)


define(
    "BUCKETIZE",
    infer=same_as_input,
    evaluate=on(_bucketize),
    family="index",
    takes="x: f32 f64 i32 i64 -> i32",
)


def _densify(op: Op, x: Array) -> Array:
    """A sparse constant is dense by the time it is an array."""
    return x.copy()


define(
    "DENSIFY",
    infer=same_as_input,
    evaluate=on(_densify),
    family="index",
    takes="x: f32 f16 i8 -> x",
)


# -- non-maximum suppression --------------------------------------------------------------------

Candidate = tuple[float, int, int]  # score, box, how many chosen boxes it was compared with


def _sift_up(heap: list[Candidate], entry: Candidate, hole: int) -> None:
    while hole > 0 and heap[(hole - 1) // 2][0] < entry[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = entry


def _push(heap: list[Candidate], entry: Candidate) -> None:
    heap.append(entry)
    _sift_up(heap, entry, len(heap) - 1)


def _pop(heap: list[Candidate]) -> Candidate:
    """The best candidate.

    Among equal scores a heap's order is an accident of its algorithm, and quantised detectors
    have many equal scores: this is the C++ library's heap, step by step, not heapq.
    """
    top, last = heap[0], heap.pop()
    size, hole, child = len(heap), 0, 0
    if size == 0:
        return top
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * child + 1
        heap[hole] = heap[child]
        hole = child
    _sift_up(heap, last, hole)
    return top


class Boxes:
    """Corners in any order, made ready for overlap."""

    def __init__(self, boxes: Array) -> None:
        corners = boxes.reshape(-1, 2, 2)
        self.low, self.high = corners.min(axis=1), corners.max(axis=1)
        self.area = np.prod(self.high - self.low, axis=1)

    def overlap(self, box: int, others: list[int] | Array) -> Array:
        """Intersection over union; 0 where a box has no area."""
        high = np.minimum(self.high[box], self.high[others])
        low = np.maximum(self.low[box], self.low[others])
        shared = np.prod(np.maximum(high - low, np.float32(0)), axis=1)
        union = self.area[box] + self.area[others] - shared
        solid = (self.area[box] > 0) & (self.area[others] > 0) & (union != 0)
        return np.where(solid, shared / np.where(solid, union, np.float32(1)), np.float32(0))


def _suppress(
    boxes: Array, scores: Array, most: int, iou_limit: Any, score_limit: Any, sigma: Any
) -> tuple[list[int], list[float]]:
    """Chosen boxes and their scores, best first; with sigma, overlap lowers scores instead."""
    shapes = Boxes(boxes)
    heap: list[Candidate] = []
    for candidate in np.flatnonzero(scores > score_limit).tolist():
        _push(heap, (float(scores[candidate]), candidate, 0))
    decay = np.float32(-0.5) / sigma if sigma > 0 else np.float32(0)
    chosen: list[int] = []
    kept: list[float] = []
    limit = min(most, len(heap))
    while heap and len(chosen) < limit:
        score, box, seen = _pop(heap)
        overlaps = shapes.overlap(box, chosen[seen:][::-1])
        if np.any(overlaps >= iou_limit):
            continue
        lowered = score
        if sigma > 0 and overlaps.size:
            factors = np.exp(decay * overlaps * overlaps)
            # accumulate, because reduce does not promise to multiply in order
            lowered = float(np.multiply.accumulate([np.float32(score), *factors])[-1])
        # A trap: a chosen box goes back into the heap too. Next time it meets itself, which
        # suppresses it, unless it has no area: such a box is chosen again and again.
        if lowered > score_limit:
            _push(heap, (lowered, box, len(chosen)))
        if lowered == score:
            chosen.append(box)
            kept.append(score)
    return chosen, kept


def _most(op: Op, value: Array) -> int:
    return sized(op, [scalar(op, value, "the maximal number of boxes")])[0]


def _infer_nms(op: Op, specs: Specs) -> list[Spec]:
    most = operand(op, specs, 2).value
    shape = None if most is None else (_most(op, most),)
    last = len(op.outputs) - 1
    return [out_spec(op, () if i == last else shape, i) for i in range(len(op.outputs))]


def _check_boxes(op: Op, boxes: Shape, scores: Shape, *scalars: Shape) -> None:
    fits = boxes[1] == 4 and scores == boxes[:1]
    require(fits, op, f"boxes {boxes} and scores {scores} do not fit together")
    for shape in scalars:
        single(op, shape, "a threshold or count")


def _nms(op: Op, boxes: Array, scores: Array, count: Array, *more: Array) -> list[Array]:
    _check_boxes(op, boxes.shape, scores.shape)
    iou_limit, score_limit, *rest = (scalar(op, v, "a threshold") for v in more)
    sigma = rest[0] if rest else np.float32(0)
    require(bool(sigma >= 0), op, f"sigma is {sigma}")
    most = _most(op, count)
    chosen, kept = _suppress(boxes, scores, most, iou_limit, score_limit, sigma)
    indices, values = np.zeros(most, np.int32), np.zeros(most, np.float32)
    indices[: len(chosen)], values[: len(kept)] = chosen, kept
    number = np.asarray(len(chosen), np.int32)
    return [indices, values, number] if rest else [indices, number]


_BOXES = "x[2]: f32, scores[1]: f32, count: i32, overlap: f32, least: f32"
define(
    "NON_MAX_SUPPRESSION_V4",
    infer=fitting(_check_boxes, range(5), _infer_nms),
    evaluate=on(_nms),
    family="index",
    takes=f"{_BOXES} -> i32, i32",
    notes="zeros fill the outputs up to the number asked for",
)
define(
    "NON_MAX_SUPPRESSION_V5",
    infer=fitting(_check_boxes, range(6), _infer_nms),
    evaluate=on(_nms),
    family="index",
    takes=f"{_BOXES}, sigma: f32 -> i32, f32, i32",
    notes="sigma 0: hard suppression",
)
