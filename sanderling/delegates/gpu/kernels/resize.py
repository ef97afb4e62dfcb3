"""Resizing of images."""

from __future__ import annotations

import numpy as np

from ....ops.base import attr
from ..language import FLOAT, INT, REAL, Value
from ..passes.float_view import FIXED_POINT
from ..steps import Node, StepWriter, Writer
from .row import Row, need_constant


def _scale(node: Node, axis: int) -> float:
    old, new = node.first().shape[axis], node.output.shape[axis]
    if bool(attr(node.op, "align_corners")) and new > 1:
        return (old - 1) / (new - 1)
    return old / new


def emit_bilinear(w: Writer, node: Node) -> None:
    source = node.first()
    with w.kernel("resize_bilinear", node) as s:
        k = s.k
        x, y = s.reads(source), s.result()
        image, row, column, slice_ = s.each_vector(y.shape)
        (y0, y1, dy), (x0, x1, dx) = (
            _between(s, node, axis, at, source.shape[axis]) for axis, at in ((1, row), (2, column))
        )
        corners = [
            k.let(x.at([image, at_y, at_x], slice_)) for at_y in (y0, y1) for at_x in (x0, x1)
        ]
        dx, dy = (k.cast(d, FLOAT).splat(4) for d in (dx, dy))
        lines = [k.let(corners[i] * (1.0 - dx) + corners[i + 1] * dx) for i in (0, 2)]
        s.put([image, row, column], slice_, lines[0] * (1.0 - dy) + lines[1] * dy)


def _between(
    s: StepWriter, node: Node, axis: int, at: Value, extent: int
) -> tuple[Value, Value, Value]:
    """Two neighbours and how far the point lies from the first. On a pixel both are that pixel: its
    neighbour must not be read, for nothing times infinity is NaN. Before the first pixel both are
    the first, and the distance is negative: weights are not clamped, in the definition neither."""
    k = s.k
    place = k.cast(at, REAL)
    exact = k.let(_fixed_point(node, axis, place) if _is_fixed(node) else _point(node, axis, place))
    first = k.let(k.maximum(k.cast(k.call("floor", exact), INT), 0))
    second = k.let(k.minimum(k.cast(k.call("ceil", exact), INT), extent - 1))
    return first, second, k.let(exact - k.cast(first, REAL))


def _point(node: Node, axis: int, place: Value) -> Value:
    half, scale = bool(attr(node.op, "half_pixel_centers")), _scale(node, axis)
    return (place + 0.5) * scale - 0.5 if half else place * scale


def _is_fixed(node: Node) -> bool:
    return bool(node.op.attrs.get(FIXED_POINT))


def _fixed_point(node: Node, axis: int, place: Value) -> Value:
    """In steps of 1/1024, as the definition has it for codes of int8: whole numbers, which floats
    are exact for."""
    scale = int(np.floor(1024 * _scale(node, axis) + 0.5))
    half = bool(attr(node.op, "half_pixel_centers"))
    steps = place * float(scale) + float(scale // 2 - 512 if half else 0)
    return steps * (1 / 1024)


def emit_nearest(w: Writer, node: Node) -> None:
    source = node.first()
    with w.kernel("resize_nearest", node) as s:
        x, y = s.reads(source), s.result()
        image, row, column, slice_ = s.each_vector(y.shape)
        at_y, at_x = (_nearest(s, node, axis, at) for axis, at in ((1, row), (2, column)))
        s.put([image, row, column], slice_, x.at([image, at_y, at_x], slice_))


def _nearest(s: StepWriter, node: Node, axis: int, at: Value) -> Value:
    k, scale = s.k, _scale(node, axis)
    place = k.cast(at, REAL)
    half = bool(attr(node.op, "half_pixel_centers"))
    exact = (place + 0.5) * scale if half else place * scale
    if bool(attr(node.op, "align_corners")):
        found = k.call("floor", exact + 0.5)
    else:
        found = k.call("floor", exact)
    return k.let(k.minimum(k.maximum(k.cast(k.let(found), INT), 0), node.first().shape[axis] - 1))


KERNELS = {
    "RESIZE_BILINEAR": Row(emit_bilinear, need_constant(1)),
    "RESIZE_NEAREST_NEIGHBOR": Row(emit_nearest, need_constant(1)),
}
