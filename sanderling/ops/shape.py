"""Operators on shapes: reshape, make from a shape, join, split, cut.

A shape rule computes the output's shape from the data's shape and the integer operands; inference
and evaluation share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ir import Array, DType, Op, Shape, Tensor
from .base import (
    INDEX,
    MAX_ELEMENTS,
    MOVABLE,
    Infer,
    Spec,
    Specs,
    attr,
    axis_in,
    define,
    elements,
    fitting,
    ints,
    on,
    one_axis,
    operand,
    out_spec,
    require,
    scalar,
    scale_zero_or_none,
    shaped,
    shapes_known,
    sized,
    unknown_outputs,
)
from .fixed import clamp_to, fused_float, fused_range, round_away

# -- the same elements under another shape ------------------------------------------------------


def _reshape_target(op: Op, stated: Array | None) -> list[int]:
    """The shape tensor if it is an int32 vector, else the attribute, whose [0] means a scalar."""
    if stated is not None and stated.ndim == 1 and stated.dtype == np.int32:
        return ints(stated)
    target = ints(attr(op, "new_shape"))
    return [] if target == [0] else target


def _reshaped(op: Op, shape: Shape, target: list[int]) -> Shape:
    """The target with its -1, if it has one, set to what is left over."""
    require(all(n >= -1 for n in target) and target.count(-1) <= 1, op, f"new shape {target}")
    if -1 in target:
        rest = elements([n for n in target if n != -1])
        # Zero sizes are left out of the division, so that [0, 4] fits [-1, 0] as well.
        left, right = (elements([n for n in s if n > 0]) for s in (shape, target))
        found = 0 if elements(shape) == 0 and rest != 0 else left // right
        target = [found if n == -1 else n for n in target]
    require(elements(target) == elements(shape), op, f"{shape} cannot be reshaped to {target}")
    return tuple(target)


def _infer_reshape(op: Op, specs: Specs) -> Spec:
    shape, stated = operand(op, specs).shape, specs[1] if len(specs) > 1 else None
    vector = stated is not None and (stated.shape is None or len(stated.shape) == 1)
    if stated is not None and stated.value is None and vector and stated.dtype is DType.INT32:
        return out_spec(op, None)
    target = _reshape_target(op, None if stated is None else stated.value)
    if shape is not None:
        return out_spec(op, _reshaped(op, shape, target))
    return out_spec(op, None if -1 in target else sized(op, target))


def _reshape(op: Op, x: Array, stated: Array | None = None) -> Array:
    return x.reshape(_reshaped(op, x.shape, _reshape_target(op, stated)))


def _squeezed(op: Op, shape: Shape) -> Shape:
    named = [axis_in(op, a, len(shape)) for a in ints(attr(op, "squeeze_dims"))]
    require(all(shape[a] == 1 for a in named), op, f"axes {named} of {shape} are not all of size 1")
    return tuple(n for a, n in enumerate(shape) if not (a in named if named else n == 1))


def _expanded(op: Op, shape: Shape, axis: list[int]) -> Shape:
    place = one_axis(op, axis, len(shape) + 1)
    return (*shape[:place], 1, *shape[place:])


_VIEWED = f"{MOVABLE} i4 u4 c128 str"
# A shape that is not a vector of int32 is overlooked, as LiteRT does.
define(
    "RESHAPE",
    infer=_infer_reshape,
    evaluate=on(_reshape, needs=1),
    family="shape",
    takes=f"x: {_VIEWED}, shape?: any -> x",
)
define(
    "SQUEEZE",
    infer=shaped(_squeezed),
    family="shape",
    takes=f"x: {_VIEWED} -> x",
    evaluate=on(lambda op, x: x.reshape(_squeezed(op, x.shape))),
)
define(
    "EXPAND_DIMS",
    infer=shaped(_expanded, by=[1]),
    family="shape",
    takes=f"x: {_VIEWED}, axis: {INDEX} -> x",
    evaluate=on(lambda op, x, axis: x.reshape(_expanded(op, x.shape, ints(axis)))),
)


# -- shapes as values ---------------------------------------------------------------------------


def _shape_of(op: Op, shape: Shape) -> Array:
    dtype = op.outputs[0].dtype
    require(
        dtype in (DType.INT32, DType.INT64),
        op,
        f"its output is of type {dtype.short}",
        "it must be i32 or i64, as out_type says",
    )
    return np.array(shape, dtype.numpy)


def _infer_shape(op: Op, specs: Specs) -> Spec:
    shape = operand(op, specs).shape
    return out_spec(
        op,
        None if shape is None else (len(shape),),
        value=None if shape is None else _shape_of(op, shape),
    )


def _infer_rank(op: Op, specs: Specs) -> Spec:
    shape = operand(op, specs).shape
    return Spec(DType.INT32, (), None if shape is None else np.array(len(shape), np.int32))


def _broadcast_args(op: Op, a: Array, b: Array) -> Array:
    require(
        a.ndim == 1 and b.ndim == 1,
        op,
        f"its inputs have the ranks {a.ndim} and {b.ndim}",
        "both must be vectors",
    )
    rank = max(a.size, b.size)
    left, right = (np.concatenate([np.ones(rank - s.size, s.dtype), s]) for s in (a, b))
    fits = (left == right) | (left == 1) | (right == 1)
    require(bool(fits.all()), op, f"shapes {a.tolist()} and {b.tolist()} do not broadcast")
    return np.where(left == 1, right, left)


def _infer_broadcast_args(op: Op, specs: Specs) -> Spec:
    if not shapes_known(specs):
        return out_spec(op, None)
    return out_spec(op, (max(elements(operand(op, specs, i).known) for i in (0, 1)),))


define(
    "SHAPE",
    infer=_infer_shape,
    family="shape",
    takes="x: any -> i32 i64",
    reads_values=False,
    evaluate=lambda op, inputs: _shape_of(op, inputs[0].shape),
)
define(
    "RANK",
    infer=_infer_rank,
    family="shape",
    takes="x: any -> i32",
    reads_values=False,
    evaluate=lambda op, inputs: np.array(inputs[0].ndim, np.int32),
)
define(
    "BROADCAST_ARGS",
    infer=_infer_broadcast_args,
    evaluate=on(_broadcast_args),
    family="shape",
    takes="x[1]: i32 i64, y[1]: x -> x",
)


# -- from a shape to elements -------------------------------------------------------------------


def _broadcast(op: Op, shape: Shape, target: list[int]) -> Shape:
    aligned = [1] * (len(target) - len(shape)) + list(shape)
    fits = len(aligned) == len(target) and all(
        a in (1, b) for a, b in zip(aligned, target, strict=True)
    )
    require(fits, op, f"shape {shape} does not broadcast to {target}")
    return tuple(target)


def _broadcast_to(op: Op, x: Array, target: Array) -> Array:
    return np.broadcast_to(x, sized(op, _broadcast(op, x.shape, ints(target)))).copy()


def _filled(op: Op, shape: Shape, dims: list[int]) -> list[int]:
    require(shape == (), op, f"the value to fill with has the shape {shape}", "it must be a scalar")
    return dims


def _fill(op: Op, dims: Array, value: Array) -> Array:
    return np.full(sized(op, _filled(op, value.shape, ints(dims))), value)


def _tiled(op: Op, shape: Shape, times: list[int]) -> list[int]:
    require(len(times) == len(shape), op, f"{len(times)} multiples for rank {len(shape)}")
    require(all(t >= 0 for t in times), op, f"negative multiples {times}")
    return [n * t for n, t in zip(shape, times, strict=True)]


def _tile(op: Op, x: Array, times: Array) -> Array:
    sized(op, _tiled(op, x.shape, ints(times)))
    return np.tile(x, ints(times))


define(
    "BROADCAST_TO",
    infer=shaped(_broadcast, by=[1]),
    evaluate=on(_broadcast_to),
    family="shape",
    takes=f"x: {MOVABLE} c128, shape: {INDEX} -> x",
)
define(
    "FILL",
    infer=shaped(_filled, data=[1], by=[0]),
    evaluate=on(_fill),
    family="shape",
    takes=f"dims: {INDEX}, x[0]: {MOVABLE} str -> x",
)
define(
    "TILE",
    infer=shaped(_tiled, by=[1]),
    evaluate=on(_tile),
    family="shape",
    takes=f"x: {MOVABLE} str, multiples: {INDEX} -> x",
)


def _range_size(op: Op, start: Array, limit: Array, delta: Array) -> int:
    a, b, d = (
        scalar(op, v, name) for v, name in ((start, "start"), (limit, "limit"), (delta, "delta"))
    )
    going = bool((a >= b and d < 0) or (a <= b and d > 0))
    require(going, op, f"a range from {a} to {b} by {d} has no end", "mind the sign of delta")
    whole = start.dtype.kind == "i"  # Python's integers: the difference may leave the type
    count = -(-abs(int(b) - int(a)) // abs(int(d))) if whole else float(abs((b - a) / d))
    require(bool(count <= MAX_ELEMENTS), op, f"a range of {count} elements is too long")
    return math.ceil(count)


def _range(op: Op, start: Array, limit: Array, delta: Array) -> Array:
    steps = np.full(_range_size(op, start, limit, delta), delta.reshape(()))
    steps[:1] = start
    # Step by step in the element type, as the kernel does: rounding adds up.
    return np.add.accumulate(steps, dtype=steps.dtype)


def _infer_range(op: Op, specs: Specs) -> Spec:
    values = [operand(op, specs, i).value for i in range(3)]
    if any(v is None for v in values):
        return out_spec(op, None)
    return out_spec(op, (_range_size(op, *(v for v in values if v is not None)),))


define(
    "RANGE",
    infer=_infer_range,
    evaluate=on(_range),
    family="shape",
    takes="x: f32 i32 i64, limit: x, delta: x -> x",
)


# -- join and split -----------------------------------------------------------------------------


def _joined(op: Op, shapes: Sequence[Shape]) -> Shape:
    first, axis = shapes[0], int(attr(op, "axis"))
    if all(s == () for s in shapes) and axis == 0:
        return (len(shapes),)
    axis = axis_in(op, axis, len(first))
    rest = {s[:axis] + s[axis + 1 :] for s in shapes if len(s) == len(first)}
    fits = len(rest) == 1 and all(len(s) == len(first) for s in shapes)
    require(fits, op, f"shapes {', '.join(map(str, shapes))} do not join along axis {axis}")
    return (*first[:axis], sum(s[axis] for s in shapes), *first[axis + 1 :])


def _infer_concatenation(op: Op, specs: Specs) -> Spec:
    known = [operand(op, specs, i).shape for i in range(len(specs))]
    if any(s is None for s in known):
        return out_spec(op, None)
    return out_spec(op, sized(op, _joined(op, [s for s in known if s is not None])))


def _rescaled(tensor: Tensor | None, part: Array, target: Tensor) -> Array:
    """uint8 codes under the output's scale; the kernel computes in float32."""
    (scale, zero), (new_scale, new_zero) = scale_zero_or_none(tensor), scale_zero_or_none(target)
    if (scale, zero) == (new_scale, new_zero):
        return part
    ratio = np.float32(scale) * (np.float32(1) / np.float32(new_scale))
    reals = part.astype(np.float32) * ratio + np.float32(-zero) * ratio
    return clamp_to(round_away(reals).astype(np.int64) + new_zero, 0, 255, target.dtype)


def _concatenation(op: Op, *parts: Array) -> Array:
    shape, out = _joined(op, [p.shape for p in parts]), op.outputs[0]
    if out.dtype is DType.UINT8:
        parts = tuple(_rescaled(t, p, out) for t, p in zip(op.inputs, parts, strict=True))
    if out.dtype is DType.INT8:
        same = all(scale_zero_or_none(t) == scale_zero_or_none(out) for t in op.inputs)
        require(
            same,
            op,
            "int8 inputs and output differ in scale or zero point",
            "requantise the inputs first; only uint8 is rescaled here",
        )
    whole = np.stack(parts) if parts[0].ndim == 0 else np.concatenate(parts, int(attr(op, "axis")))
    return _activated(op, whole.reshape(shape))


def _activated(op: Op, whole: Array) -> Array:
    """LiteRT refuses a fused activation here; older runtimes had models with one."""
    if attr(op, "fused_activation_function") == "NONE":
        return whole
    if whole.dtype.kind != "f":
        return clamp_to(whole, *fused_range(op), op.outputs[0].dtype)
    return fused_float(op, whole)


def _infer_pack(op: Op, specs: Specs) -> Spec:
    shape = operand(op, specs).shape
    _check_pack(op, [s.shape for s in specs if s is not None and s.shape is not None])
    if shape is None:
        return out_spec(op, None)
    axis = axis_in(op, int(attr(op, "axis")), len(shape) + 1)
    return out_spec(op, sized(op, (*shape[:axis], len(specs), *shape[axis:])))


def _check_pack(op: Op, shapes: Sequence[Shape]) -> None:
    count = int(attr(op, "values_count"))
    require(count == len(op.inputs), op, f"values_count is {count}, with {len(op.inputs)} inputs")
    require(len(set(shapes)) <= 1, op, f"inputs of different shapes {sorted(set(shapes))}")


def _pack(op: Op, *parts: Array) -> Array:
    _check_pack(op, [p.shape for p in parts])
    return np.stack(parts, axis_in(op, int(attr(op, "axis")), parts[0].ndim + 1))


def _unpack_axis(op: Op, shape: Shape) -> int:
    axis = axis_in(op, int(attr(op, "axis")), len(shape))
    count = int(attr(op, "num"))
    fits = count == shape[axis] == len(op.outputs)
    require(fits, op, f"{len(op.outputs)} outputs and num {count} for a size of {shape[axis]}")
    return axis


def _infer_unpack(op: Op, specs: Specs) -> list[Spec]:
    shape = operand(op, specs).shape
    if shape is None:
        return unknown_outputs(op)
    axis = _unpack_axis(op, shape)
    return [out_spec(op, shape[:axis] + shape[axis + 1 :], i) for i in range(len(op.outputs))]


def _unpack(op: Op, x: Array) -> list[Array]:
    return list(np.moveaxis(x, _unpack_axis(op, x.shape), 0))


def _even(op: Op, size: int) -> list[int]:
    count = int(attr(op, "num_splits"))
    fits = count == len(op.outputs) and count > 0
    require(fits, op, f"num_splits is {count}, with {len(op.outputs)} outputs")
    require(size % count == 0, op, f"size {size} does not split evenly in {count}")
    return [size // count] * count


def _uneven(op: Op, size: int, stated: list[int]) -> list[int]:
    require(
        len(stated) == len(op.outputs), op, f"{len(stated)} sizes, with {len(op.outputs)} outputs"
    )
    rest = size - sum(n for n in stated if n != -1)
    sizes = [rest if n == -1 else n for n in stated]
    fits = stated.count(-1) <= 1 and min(sizes) >= 0 and sum(sizes) == size
    require(fits, op, f"sizes {stated} do not split a size of {size}")
    return sizes


def _infer_split(data: int, axis_at: int, sizes_at: int | None) -> Infer:
    def infer(op: Op, specs: Specs) -> list[Spec]:
        shape, axis = operand(op, specs, data).shape, operand(op, specs, axis_at).value
        stated = None if sizes_at is None else operand(op, specs, sizes_at).value
        if shape is None or axis is None or (sizes_at is not None and stated is None):
            return unknown_outputs(op)
        place = one_axis(op, axis, len(shape))
        size = shape[place]
        sizes = _even(op, size) if stated is None else _uneven(op, size, ints(stated))
        return [
            out_spec(op, (*shape[:place], n, *shape[place + 1 :]), i) for i, n in enumerate(sizes)
        ]

    return infer


def _cut(x: Array, sizes: list[int], axis: int) -> list[Array]:
    return np.split(x, np.cumsum(sizes)[:-1], axis)


def _split(op: Op, axis: Array, x: Array) -> list[Array]:
    place = one_axis(op, axis, x.ndim)
    return _cut(x, _even(op, x.shape[place]), place)


def _split_v(op: Op, x: Array, sizes: Array, axis: Array) -> list[Array]:
    place = one_axis(op, axis, x.ndim)
    return _cut(x, _uneven(op, x.shape[place], ints(sizes)), place)


define(
    "CONCATENATION",
    infer=_infer_concatenation,
    evaluate=on(_concatenation),
    family="shape",
    takes="x: f32 f16 bf16 i4 u8 i8 i16 i32 u32 i64 bool, more*: x -> x",
    notes="uint8 inputs are rescaled to the output's scale",
)
define(
    "PACK",
    infer=_infer_pack,
    evaluate=on(_pack),
    family="shape",
    takes="x: f32 u8 i8 i16 i32 u32 i64, more*: x -> x",
)
define(
    "UNPACK",
    infer=_infer_unpack,
    evaluate=on(_unpack),
    family="shape",
    takes="x: f32 f16 bf16 u8 i8 i16 i32 bool -> parts*: x",
)
define(
    "SPLIT",
    infer=_infer_split(1, 0, None),
    evaluate=on(_split),
    family="shape",
    takes=f"axis: {INDEX}, x: f32 u8 i8 i16 i32 i64 -> parts*: x",
)
define(
    "SPLIT_V",
    infer=_infer_split(0, 2, 1),
    evaluate=on(_split_v),
    family="shape",
    takes=f"x: f32 u8 i8 i16 i32 i64, sizes: {INDEX}, axis: {INDEX} -> parts*: x",
)


# -- cut ----------------------------------------------------------------------------------------


def _sliced(op: Op, shape: Shape, begin: list[int], size: list[int]) -> list[int]:
    fits = len(begin) == len(size) == len(shape)
    require(fits, op, f"{len(begin)} starts and {len(size)} sizes for rank {len(shape)}")
    sizes = [n - b if s == -1 else s for n, b, s in zip(shape, begin, size, strict=True)]
    inside = all(
        b >= 0 and s >= 0 and b + s <= n for n, b, s in zip(shape, begin, sizes, strict=True)
    )
    require(inside, op, f"start {begin} and size {size} leave the shape {shape}")
    return sizes


def _slice(op: Op, x: Array, begin: Array, size: Array) -> Array:
    sizes = _sliced(op, x.shape, ints(begin), ints(size))
    return x[tuple(slice(b, b + n) for b, n in zip(ints(begin), sizes, strict=True))]


def _check_update(op: Op, shape: Shape, update: Shape, start: Shape) -> None:
    fits = len(update) == len(shape) == elements(start) and all(
        u <= n for u, n in zip(update, shape, strict=True)
    )
    require(fits, op, f"an update {update} at {elements(start)} starts does not fit in {shape}")


def _update_slice(op: Op, x: Array, update: Array, start: Array) -> Array:
    _check_update(op, x.shape, update.shape, start.shape)
    result = x.copy()
    # A start too far out is moved in, so that the whole update is written.
    starts = [
        min(max(s, 0), n - u) for s, n, u in zip(ints(start), x.shape, update.shape, strict=True)
    ]
    result[tuple(slice(s, s + u) for s, u in zip(starts, update.shape, strict=True))] = update
    return result


define(
    "SLICE",
    infer=shaped(_sliced, by=[1, 2]),
    evaluate=on(_slice),
    family="shape",
    takes=f"x: {MOVABLE} i4 str, begin: {INDEX}, size: {INDEX} -> x",
    picks=0,
)
define(
    "DYNAMIC_UPDATE_SLICE",
    infer=fitting(_check_update, [0, 1, 2]),
    evaluate=on(_update_slice),
    family="shape",
    takes=f"x: {MOVABLE} i4 c128, update: x, start: {INDEX} -> x",
)


@dataclass(frozen=True)
class SlicedAxis:
    """What a strided slice does on one axis of the input (with the new axes put in)."""

    size: int
    start: int | None = None  # None: from the end that the stride starts at
    stop: int | None = None
    stride: int = 1
    shrink: bool = False

    def range(self, offset: bool) -> range:
        """The indices taken, clamped to the axis."""
        low, high = (0, self.size) if self.stride > 0 else (-1, self.size - 1)
        begin = self._clamped(self.start, low, high, low if self.stride > 0 else high)
        if self.shrink:
            return range(begin, begin + 1)
        stop = None if self.stop is None else self.stop + begin * offset
        return range(
            begin, self._clamped(stop, low, high, high if self.stride > 0 else low), self.stride
        )

    def _clamped(self, index: int | None, low: int, high: int, default: int) -> int:
        if index is None:
            return default
        return min(max(index + self.size * (index < 0), low), high)


def sliced_axes(
    op: Op, shape: Shape, begin: list[int], end: list[int], strides: list[int]
) -> list[SlicedAxis]:
    """Spread the specification over the input's axes: the ellipsis fills up, new axes go in."""
    count = len(begin)
    fits = count == len(end) == len(strides) <= 31
    require(fits, op, f"{count} starts, {len(end)} ends, {len(strides)} strides")
    require(all(strides), op, f"strides {strides} hold a zero")
    bit = {
        name: [bool(int(attr(op, f"{name}_mask")) >> i & 1) for i in range(count)]
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    require(sum(bit["ellipsis"]) <= 1, op, "more than one ellipsis")
    new = [a and not e for a, e in zip(bit["new_axis"], bit["ellipsis"], strict=True)]
    named = count - sum(new) - sum(bit["ellipsis"])
    require(named <= len(shape), op, f"{named} indices for rank {len(shape)}")
    sizes, axes = list(shape), []
    for i in range(count):
        if bit["ellipsis"][i]:
            behind = sum(not n for n in new[i + 1 :])
            axes += [SlicedAxis(sizes.pop(0)) for _ in range(len(sizes) - behind)]
        elif new[i]:
            axes.append(SlicedAxis(1))
        else:
            start = None if bit["begin"][i] else begin[i]
            stop = None if bit["end"][i] else end[i]
            axes.append(SlicedAxis(sizes.pop(0), start, stop, strides[i], bit["shrink_axis"][i]))
    return axes + [SlicedAxis(n) for n in sizes]


def _infer_strided_slice(op: Op, specs: Specs) -> Spec:
    shape = operand(op, specs).shape
    begin, end, strides = (operand(op, specs, i).value for i in (1, 2, 3))
    if shape is None or end is None or strides is None:
        return out_spec(op, None)
    if begin is None and not attr(op, "offset"):
        return out_spec(op, None)
    # With `offset`, `end` counts from the start: the shape is known before the start is.
    starts = [0] * end.size if begin is None else ints(begin)
    axes = sliced_axes(op, shape, starts, ints(end), ints(strides))
    return out_spec(op, sized(op, _strided(op, axes)))


def _strided(op: Op, axes: list[SlicedAxis]) -> list[int]:
    offset = bool(attr(op, "offset"))
    if not offset:
        return [len(a.range(False)) for a in axes if not a.shrink]
    return [
        len(a.range(True) if a.stop is None else range(0, a.stop, a.stride))
        for a in axes
        if not a.shrink
    ]


def _strided_slice(op: Op, x: Array, begin: Array, end: Array, strides: Array) -> Array:
    axes = sliced_axes(op, x.shape, ints(begin), ints(end), ints(strides))
    taken = [a.range(bool(attr(op, "offset"))) for a in axes]
    for axis, indices in zip(axes, taken, strict=True):
        inside = not axis.shrink or (axis.stride > 0 and indices.start < axis.size)
        require(inside, op, f"index {axis.start} of a size of {axis.size}")
    shape = [len(r) for a, r in zip(axes, taken, strict=True) if not a.shrink]
    require(
        shape == _strided(op, axes), op, f"start {ints(begin)} and size {ints(end)} leave {x.shape}"
    )
    return x.reshape([a.size for a in axes])[tuple(map(_as_slice, taken))].reshape(shape)


def _as_slice(indices: range) -> slice:
    """A slice's stop of -1 would count from the end."""
    if not indices:
        return slice(0, 0)
    return slice(indices.start, None if indices.stop < 0 else indices.stop, indices.step)


define(
    "STRIDED_SLICE",
    infer=_infer_strided_slice,
    evaluate=on(_strided_slice),
    family="shape",
    takes=f"x: {MOVABLE} str, begin: {INDEX}, end: {INDEX}, strides: {INDEX} -> x",
    picks=0,
)
