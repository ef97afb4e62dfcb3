"""Gathering, scattering, searching and choosing elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir import Array, Op, Shape
from .base import (
    Spec,
    Specs,
    attr,
    define,
    folded,
    out_spec,
    present,
    require,
    same_as_input,
    sized,
)

# -- gather -------------------------------------------------------------------------------------


def _gather_axes(op: Op, shape: Shape, places: Shape) -> tuple[int, int]:
    """The axis and the number of batch dimensions, both made non-negative."""
    axis, batch = attr(op, "axis"), attr(op, "batch_dims")
    axis += len(shape) if axis < 0 else 0
    batch += len(places) if batch < 0 else 0
    require(0 <= axis < len(shape), op, f"axis {axis} is outside shape {shape}")
    require(0 <= batch <= min(axis, len(places)), op, f"batch_dims {batch} does not fit")
    require(shape[:batch] == places[:batch], op, f"batches of {shape} and {places} differ")
    return axis, batch


def _infer_gather(op: Op, specs: Specs) -> Spec:
    x, places = present(specs, op), present(specs, op, 1)
    if x.shape is None or places.shape is None:
        return out_spec(op, None)
    axis, batch = _gather_axes(op, x.shape, places.shape)
    shape = x.shape[:axis] + places.shape[batch:] + x.shape[axis + 1 :]
    return out_spec(op, shape, value=folded(op, specs, _gather))


def _gather(op: Op, inputs: Sequence[Array]) -> Array:
    x, places = inputs
    axis, batch = _gather_axes(op, x.shape, places.shape)
    _check_range(op, places, x.shape[axis])
    batches, outer = math.prod(x.shape[:batch]), math.prod(x.shape[batch:axis])
    size, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    indices = places.reshape(batches, 1, math.prod(places.shape[batch:])).astype(np.int64)
    rows = np.arange(batches * outer).reshape(batches, outer, 1) * size + indices
    shape = x.shape[:axis] + places.shape[batch:] + x.shape[axis + 1 :]
    return x.reshape(batches * outer * size, inner)[rows].reshape(shape)


def _check_range(op: Op, indices: Array, sizes: npt.ArrayLike) -> None:
    inside = np.all((indices >= 0) & (indices < np.asarray(sizes, np.int64)))
    require(bool(inside), op, "an index is out of range", "the indices do not fit the shape")


define("GATHER", infer=_infer_gather, evaluate=_gather, family="index", arity=2,
       types="f32 f16 bf16 u8 i4 i8 i16 u16 i32 i64 bool str",
       notes="indices i16, i32 or i64; strings of rank 1")  # fmt: skip


def _flat_indices(indices: Array, shape: Shape) -> Array:
    """Positions in the flattened leading dimensions that the last axis of indices addresses."""
    depth = indices.shape[-1]
    steps = np.array([math.prod(shape[j + 1 : depth]) for j in range(depth)], np.int64)
    return indices.astype(np.int64) @ steps


def _infer_gather_nd(op: Op, specs: Specs) -> Spec:
    x, indices = present(specs, op), present(specs, op, 1)
    if x.shape is None or indices.shape is None:
        return out_spec(op, None)
    _check_nd(op, x.shape, indices.shape)
    return out_spec(op, indices.shape[:-1] + x.shape[indices.shape[-1] :])


def _check_nd(op: Op, shape: Shape, indices: Shape) -> None:
    require(len(indices) > 0, op, "indices must be at least a vector")
    require(indices[-1] <= len(shape), op, f"indices of {indices[-1]} axes into shape {shape}")


def _gather_nd(op: Op, inputs: Sequence[Array]) -> Array:
    x, indices = inputs
    _check_nd(op, x.shape, indices.shape)
    depth = indices.shape[-1]
    _check_range(op, indices, x.shape[:depth])
    flat = x.reshape(math.prod(x.shape[:depth]), *x.shape[depth:])
    return flat[_flat_indices(indices, x.shape)]


define("GATHER_ND", infer=_infer_gather_nd, evaluate=_gather_nd, family="index", arity=2,
       types="f32 f16 bf16 u8 i8 i16 u16 i32 i64 bool str",
       notes="indices i16, i32 or i64")  # fmt: skip


# -- scatter ------------------------------------------------------------------------------------


def _scatter_shape(op: Op, indices: Shape, updates: Shape, value: Array) -> Shape:
    shape = sized(op, value.reshape(-1))
    require(len(indices) > 0, op, "indices must be at least a vector")
    depth = indices[-1]
    require(depth <= len(shape), op, f"indices of {depth} axes into shape {shape}")
    require(updates == indices[:-1] + shape[depth:], op,
            f"updates of shape {updates} do not fit indices {indices} into {shape}")  # fmt: skip
    return shape


def _infer_scatter_nd(op: Op, specs: Specs) -> Spec:
    indices, updates, shape = (present(specs, op, i) for i in range(3))
    if indices.shape is None or updates.shape is None or shape.value is None:
        return out_spec(op, None)
    return out_spec(op, _scatter_shape(op, indices.shape, updates.shape, shape.value))


def _scatter_nd(op: Op, inputs: Sequence[Array]) -> Array:
    """Updates of the same place add up (bools: or)."""
    indices, updates, wanted = inputs
    shape = _scatter_shape(op, indices.shape, updates.shape, wanted)
    depth = indices.shape[-1]
    _check_range(op, indices, shape[:depth])
    rows = _flat_indices(indices, shape).reshape(-1)
    result = np.zeros((math.prod(shape[:depth]), *shape[depth:]), updates.dtype)
    np.add.at(result, rows, updates.reshape(rows.size, *shape[depth:]))
    return result.reshape(shape)


define("SCATTER_ND", infer=_infer_scatter_nd, evaluate=_scatter_nd, family="index", arity=3,
       main=1, types="f32 u8 i8 i32 i64 bool")  # fmt: skip


def _one_hot_shape(op: Op, indices: Shape, depth: Array) -> tuple[int, Shape]:
    rank, axis = len(indices), attr(op, "axis")
    axis = rank if axis == -1 else axis
    require(0 <= axis <= rank, op, f"axis {axis} is outside an output of rank {rank + 1}")
    require(depth.size == 1, op, f"depth has {depth.size} elements, one is needed")
    return axis, sized(op, (*indices[:axis], depth.reshape(-1)[0], *indices[axis:]))


def _infer_one_hot(op: Op, specs: Specs) -> Spec:
    indices, depth = present(specs, op), present(specs, op, 1)
    if indices.shape is None or depth.value is None:
        return out_spec(op, None)
    return out_spec(op, _one_hot_shape(op, indices.shape, depth.value)[1])


def _one_hot(op: Op, inputs: Sequence[Array]) -> Array:
    indices, depth, on, off = inputs
    require(on.size == 1 and off.size == 1, op, "the on and off values must be scalars")
    axis, shape = _one_hot_shape(op, indices.shape, depth)
    classes = np.arange(shape[axis], dtype=np.int32)
    classes = classes.reshape(-1, *(1,) * (indices.ndim - axis))
    hot = np.expand_dims(indices.astype(np.int32), axis) == classes
    return np.where(hot, on.reshape(()), off.reshape(()))


define("ONE_HOT", infer=_infer_one_hot, evaluate=_one_hot, family="index", arity=4, main=2,
       types="f32 i8 u8 i32 i64 bool", notes="indices i32 or i64")  # fmt: skip


def _infer_sparse(op: Op, specs: Specs) -> Spec:
    shape = present(specs, op, 1).value
    return out_spec(op, None if shape is None else sized(op, shape.reshape(-1)))


def _sparse_to_dense(op: Op, inputs: Sequence[Array]) -> Array:
    """A value at each index, the default elsewhere; the last of equal indices wins."""
    indices, wanted, values, default = inputs
    shape = sized(op, wanted.reshape(-1))
    require(indices.ndim < 3 and len(shape) <= 4, op, "indices must have rank 2 or less, the "
            "output 4 or less")  # fmt: skip
    require(values.ndim < 2 and default.size == 1, op, "values must be a vector, the default one")
    places = indices.reshape(-1, 1) if indices.ndim < 2 else indices
    require(places.shape[1] == len(shape), op, f"indices {indices.shape} into shape {shape}")
    require(values.size in (1, len(places)), op, f"{values.size} values, {len(places)} indices")
    _check_range(op, places, shape)
    result = np.full(shape, default.reshape(-1)[0], values.dtype)
    result[tuple(places.T)] = values
    return result


define("SPARSE_TO_DENSE", infer=_infer_sparse, evaluate=_sparse_to_dense, family="index",
       arity=4, main=2, types="f32 i8 u8 i32 i64", notes="indices i32 or i64")  # fmt: skip


# -- searching ----------------------------------------------------------------------------------


def _top_count(op: Op, shape: Shape, count: Array) -> int:
    require(count.size == 1 and len(shape) > 0, op, "k must be one number, the input no scalar")
    k = max(0, int(count.reshape(-1)[0]))
    require(k <= shape[-1], op, f"k is {k}, the last dimension has {shape[-1]}")
    return k


def _infer_topk(op: Op, specs: Specs) -> list[Spec]:
    x, count = present(specs, op), present(specs, op, 1)
    if x.shape is None or count.value is None:
        return [out_spec(op, None, 0), out_spec(op, None, 1)]
    shape = (*x.shape[:-1], _top_count(op, x.shape, count.value))
    return [out_spec(op, shape, 0), out_spec(op, shape, 1)]


def _topk(op: Op, inputs: Sequence[Array]) -> list[Array]:
    """Largest first; of equal elements, the one with the smaller index."""
    x, count = inputs
    k = _top_count(op, x.shape, count)
    # A stable ascending sort of the reversed row, read backwards, is a stable descending one.
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    places = order[..., :k]
    values = np.take_along_axis(x, places, axis=-1)
    return [values, places.astype(op.outputs[1].dtype.numpy)]


define("TOPK_V2", infer=_infer_topk, evaluate=_topk, family="index", arity=2,
       types="f32 u8 i8 i16 i32 i64", notes="k and indices i32 or i16")  # fmt: skip


def _infer_unique(op: Op, specs: Specs) -> list[Spec]:
    return [out_spec(op, None, 0), out_spec(op, present(specs, op).shape, 1)]


def _unique(op: Op, inputs: Sequence[Array]) -> list[Array]:
    """Values in order of first appearance, and for each element which it is."""
    (x,) = inputs
    require(x.ndim == 1, op, f"the input has rank {x.ndim}, not 1")
    values, first, which = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return [values[order], rank[which.reshape(-1)].astype(op.outputs[1].dtype.numpy)]


define("UNIQUE", infer=_infer_unique, evaluate=_unique, family="index",
       types="f32 u8 i8 i16 i32 i64", notes="indices i32 or i64")  # fmt: skip


def _infer_where(op: Op, specs: Specs) -> Spec:
    condition = present(specs, op)
    if condition.value is None:
        return out_spec(op, None)
    return out_spec(op, (int(np.count_nonzero(condition.value)), condition.value.ndim))


def _where(op: Op, inputs: Sequence[Array]) -> Array:
    (condition,) = inputs
    require(condition.ndim > 0, op, "the condition must not be a scalar")
    return np.argwhere(condition).astype(np.int64)


define("WHERE", infer=_infer_where, evaluate=_where, family="index",
       types="bool f32 i8 u8 i32 u32 i64")  # fmt: skip


def _bucketize(op: Op, inputs: Sequence[Array]) -> Array:
    (x,) = inputs
    given = attr(op, "boundaries")
    boundaries = np.asarray([] if given is None else given, np.float32)
    require(bool(np.all(boundaries[1:] >= boundaries[:-1])), op, "boundaries are not sorted")
    # Integers are compared with the boundaries in float32, as C's promotion has it.
    values = x if x.dtype.kind == "f" else x.astype(np.float32)
    found = np.searchsorted(boundaries.astype(values.dtype), values, side="right")
    return np.asarray(found, np.int32)


define("BUCKETIZE", infer=same_as_input, evaluate=_bucketize, family="index",
       types="f32 f64 i32 i64")  # fmt: skip


def _densify(op: Op, inputs: Sequence[Array]) -> Array:
    """A sparse constant is dense by the time it is an array."""
    return inputs[0].copy()


define("DENSIFY", infer=same_as_input, evaluate=_densify, family="index",
       types="f32 f16 i8")  # fmt: skip


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


class _Boxes:
    """Corners in any order, made ready for overlap."""

    def __init__(self, boxes: Array) -> None:
        corners = boxes.reshape(-1, 2, 2)
        self.low, self.high = corners.min(axis=1), corners.max(axis=1)
        self.area = np.prod(self.high - self.low, axis=1)

    def overlap(self, box: int, others: list[int]) -> Array:
        """Intersection over union; 0 where a box has no area."""
        high = np.minimum(self.high[box], self.high[others])
        low = np.maximum(self.low[box], self.low[others])
        shared = np.prod(np.maximum(high - low, np.float32(0)), axis=1)
        union = self.area[box] + self.area[others] - shared
        solid = (self.area[box] > 0) & (self.area[others] > 0) & (union != 0)
        return np.where(solid, shared / np.where(solid, union, np.float32(1)), np.float32(0))


def _suppress(boxes: Array, scores: Array, most: int, iou_limit: Any, score_limit: Any,
              sigma: Any) -> tuple[list[int], list[float]]:  # fmt: skip
    """Chosen boxes and their scores, best first; with sigma, overlap lowers scores instead."""
    shapes = _Boxes(boxes)
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
    require(value.size == 1, op, "the maximal number of boxes must be a scalar")
    return sized(op, value.reshape(-1))[0]


def _infer_nms(op: Op, specs: Specs) -> list[Spec]:
    most = present(specs, op, 2).value
    shape = None if most is None else (_most(op, most),)
    last = len(op.outputs) - 1
    return [out_spec(op, () if i == last else shape, i) for i in range(len(op.outputs))]


def _nms(op: Op, inputs: Sequence[Array]) -> list[Array]:
    boxes, scores, count = inputs[:3]
    iou_limit, score_limit, *rest = (v.reshape(-1)[0] for v in inputs[3:])
    sigma = rest[0] if rest else np.float32(0)
    require(boxes.ndim == 2 and boxes.shape[1] == 4 and scores.shape == boxes.shape[:1], op,
            f"boxes {boxes.shape} and scores {scores.shape} do not fit together")  # fmt: skip
    require(bool(sigma >= 0), op, f"sigma is {sigma}")
    most = _most(op, count)
    chosen, kept = _suppress(boxes, scores, most, iou_limit, score_limit, sigma)
    indices, values = np.zeros(most, np.int32), np.zeros(most, np.float32)
    indices[: len(chosen)], values[: len(kept)] = chosen, kept
    number = np.asarray(len(chosen), np.int32)
    return [indices, values, number] if rest else [indices, number]


define("NON_MAX_SUPPRESSION_V4", infer=_infer_nms, evaluate=_nms, family="index", arity=5,
       types="f32", notes="zeros fill the outputs up to the number asked for")  # fmt: skip
define("NON_MAX_SUPPRESSION_V5", infer=_infer_nms, evaluate=_nms, family="index", arity=6,
       types="f32", notes="sigma 0: hard suppression")  # fmt: skip
