"""Pooling over windows of height and width."""

from __future__ import annotations

import numpy as np

from ..ir import Array, Op, Shape
from . import fixed
from .base import (
    attr,
    define,
    elements,
    on,
    require,
    shaped,
)
from .geometry import Axis, axis


def _axes(op: Op, x: Shape) -> list[Axis]:
    require(len(x) == 4, op, f"input {x} does not have 4 dimensions")
    padding = attr(op, "padding")
    return [
        axis(op, padding, x[1], attr(op, "filter_height"), attr(op, "stride_h")),
        axis(op, padding, x[2], attr(op, "filter_width"), attr(op, "stride_w")),
    ]


def _pooled(op: Op, x: Shape) -> Shape:
    return (x[0], *(a.out for a in _axes(op, x)), x[3])


def _reduce(x: Array, axes: list[Axis], step: np.ufunc, start: float) -> Array:
    """Windows of [N, H, W, C] reduced axis by axis (the reductions are separable)."""
    for number, a in enumerate(axes, 1):
        total = np.full((*x.shape[:number], a.out, *x.shape[number + 1 :]), start, x.dtype)
        lead = (slice(None),) * number
        for tap in a.live_taps():
            out, inside = a.slices(tap)
            step(total[(*lead, out)], x[(*lead, inside)], out=total[(*lead, out)])
        x = total
    return x


def _counts(op: Op, axes: list[Axis]) -> Array:
    """How many inputs each window covers: [H, W, 1]."""
    count = axes[0].count()[:, None, None] * axes[1].count()[None, :, None]
    require(count.size == 0 or bool(count.min() > 0), op, "a window lies outside the input")
    return count


def _evaluate_max(op: Op, x: Array) -> Array:
    # fmax from the lowest finite value: the kernel ignores NaN, and -inf becomes that value.
    lowest = fixed.limits(x.dtype)[0]
    return _activated(op, _reduce(x, _axes(op, x.shape), np.fmax, lowest))


def _evaluate_average(op: Op, x: Array) -> Array:
    axes = _axes(op, x.shape)
    count = _counts(op, axes)
    if x.dtype.kind == "f":
        total = _reduce(x, axes, np.add, 0)
        return _activated(op, total / count.astype(np.float32))
    total = _reduce(x.astype(np.int64), axes, np.add, 0)
    half = count // 2
    mean = fixed.truncated(np.where(total < 0, total - half, total + half), np.maximum(count, 1))
    return _activated(op, mean)


def _evaluate_l2(op: Op, x: Array) -> Array:
    axes = _axes(op, x.shape)
    squares = _reduce(x * x, axes, np.add, 0)
    return _activated(op, np.sqrt(squares / _counts(op, axes).astype(np.float32)))


def _activated(op: Op, x: Array) -> Array:
    dtype = op.outputs[0].dtype
    if dtype.is_float:
        return fixed.fused_clamp(op, x)
    return fixed.clamp_to(x, *fixed.fused_range(op), dtype)


def _macs(op: Op) -> int:
    """One addition (or multiply-add) for each element of each window."""
    window = int(attr(op, "filter_height")) * int(attr(op, "filter_width"))
    return elements(op.outputs[0].shape) * window


define(
    "AVERAGE_POOL_2D",
    infer=shaped(_pooled),
    evaluate=on(_evaluate_average),
    family="pool",
    takes="x[4]: f32 u8q i8q i16q -> x",
    macs=_macs,
)
define(
    "MAX_POOL_2D",
    infer=shaped(_pooled),
    evaluate=on(_evaluate_max),
    family="pool",
    takes="x[4]: f32 u8q i8q i16q -> x",
)
define(
    "L2_POOL_2D",
    infer=shaped(_pooled),
    evaluate=on(_evaluate_l2),
    family="pool",
    takes="x[4]: f32 -> x",
    macs=_macs,
)
