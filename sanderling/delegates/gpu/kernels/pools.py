"""Pooling over height and width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

import numpy as np

from ....ir import Op
from ....ops.base import attr
from ....ops.custom import pool_axes, pool_options
from ....ops.fixed import ACTIVATION_BOUNDS, finite_bounds, fused_bounds
from ....ops.geometry import Axis
from ..language import FLOAT, INT, REAL, Value
from ..steps import Node, StepWriter, Writer
from .products import _inside, _refuses_activation, axes_of
from .row import Row

Taken = tuple[Value, Value, list[Value]]


@contextmanager
def each_tap(s: StepWriter, y: Axis, x: Axis, row: Value, column: Value) -> Iterator[Taken]:
    """For every tap that lies inside of the input: its numbers and the input's row and column."""
    k = s.k
    with k.loop(0, y.taps, hint="ky") as ky:
        at_y = k.let(row * y.stride + ky - y.before)
        with k.when(_inside(s, at_y, y)), k.loop(0, x.taps, hint="kx") as kx:
            at_x = k.let(column * x.stride + kx - x.before)
            with k.when(_inside(s, at_x, x)):
                yield ky, kx, [at_y, at_x]


def _axes(node: Node) -> tuple[Axis, Axis]:
    op = node.op
    taps = int(attr(op, "filter_height")), int(attr(op, "filter_width"))
    y, x = axes_of(node, taps, dilated=False)
    return y.trim(y.live_taps()), x.trim(x.live_taps())


def emit_max(w: Writer, node: Node) -> None:
    y, x = _axes(node)
    with w.kernel("max_pool", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        image, row, column, slice_ = s.each_vector(result.shape)
        best = k.var(k.value(-inf).splat(4), "a")
        with each_tap(s, y, x, row, column) as (_, _, place):
            k.assign(best, k.maximum(best, source.at([image, *place], slice_)))
        s.put([image, row, column], slice_, _clamped(s, best, fused_bounds(node.op)))


def emit_mean(
    name: str, before: Callable[[Value], Value], after: Callable[[StepWriter, Value], Value]
) -> Callable[[Writer, Node], None]:
    """before: what is added up of an element, in 32 bits: 16 hold neither the sum nor the number of
    a large window's elements. after: what becomes of the mean."""

    def emit(w: Writer, node: Node) -> None:
        y, x = _axes(node)
        with w.kernel(name, node) as s:
            k = s.k
            source, result = s.reads(node.first()), s.result()
            image, row, column, slice_ = s.each_vector(result.shape)
            total, count = k.var(k.zero(kind=REAL), "a"), k.var(k.value(0.0, REAL), "n")
            with each_tap(s, y, x, row, column) as (_, _, place):
                value = k.let(k.cast(source.at([image, *place], slice_), REAL))
                k.assign(total, total + before(value))
                k.assign(count, count + 1.0)
            found = k.let(k.cast(after(s, total / count), FLOAT))
            s.put([image, row, column], slice_, _clamped(s, found, fused_bounds(node.op)))

    return emit


# -- MediaPipe's ----------------------------------------------------------------------------------


def emit_max_with_place(w: Writer, node: Node) -> None:
    """The largest of a window, and which of its taps that is, as a float above its number."""
    y, x = pool_axes(node.op, node.first().shape)
    _, _, (_, width), activation = pool_options(node.op)
    live = y.live_taps(), x.live_taps()
    y, x = y.trim(live[0]), x.trim(live[1])
    with w.kernel("max_pool_with_place", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        image, row, column, slice_ = s.each_vector(result.shape)
        best = k.var(k.value(float(np.finfo(np.float32).min)).splat(4), "a")
        place = k.var(k.zero(), "p")
        with each_tap(s, y, x, row, column) as (ky, kx, at):
            value = k.let(source.at([image, *at], slice_))
            tap = (ky + live[0].start) * width + kx + live[1].start
            is_better = k.let(value > best)
            k.assign(best, k.select(is_better, value, best))
            k.assign(place, k.select(is_better, k.cast(tap, FLOAT).splat(4), place))
        s.put([image, row, column], slice_, _clamped(s, best, ACTIVATION_BOUNDS[activation]))
        s.result(1)
        s.put([image, row, column], slice_, place + 0.1)


def _clamped(s: StepWriter, x: Value, bounds: tuple[float, float]) -> Value:
    """Pools clamp always, to finite numbers at least; NaN passes."""
    low, high = map(float, finite_bounds(bounds))
    x = s.k.let(s.k.select(x < low, low, x))
    return s.k.select(x > high, high, x)


def emit_unpool(w: Writer, node: Node) -> None:
    """Every element of the result asks its window whether it is the tap that was the largest."""
    _, _, (high, wide), _ = pool_options(node.op)
    with w.kernel("max_unpool", node) as s:
        k = s.k
        source, places = s.reads(node.first()), s.reads(node.op.operand(1))
        image, row, column, slice_ = s.each_vector(s.result().shape)
        at: Sequence[Value] = [image, k.let(row // high), k.let(column // wide)]
        tap = k.let((row % high) * wide + column % wide)
        place = k.cast(k.let(places.at(at, slice_)), INT)
        is_here = place.equals(tap.splat(4))
        s.put([image, row, column], slice_, k.select(is_here, source.at(at, slice_), k.zero()))


def _refuses_unpool(op: Op) -> str | None:
    _, strides, taps, _ = pool_options(op)
    return None if strides == taps else "windows that overlap or lie apart have no kernel"


KERNELS = {
    "MAX_POOL_2D": Row(emit_max, _refuses_activation),
    "AVERAGE_POOL_2D": Row(
        emit_mean("average_pool", lambda x: x, lambda s, x: x), _refuses_activation
    ),
    "L2_POOL_2D": Row(
        emit_mean("l2_pool", lambda x: x * x, lambda s, x: s.k.call("sqrt", x)),
        _refuses_activation,
    ),
    "custom.MaxPoolingWithArgmax2D": Row(emit_max_with_place),
    "custom.MaxUnpooling2D": Row(emit_unpool, _refuses_unpool),
}
