"""MediaPipe's Resampler: an image, read between its points where another tensor says."""

from __future__ import annotations

from ..language import FLOAT, INT, REAL, Value
from ..steps import Node, StepWriter, Writer
from .row import Row


def emit_resampler(w: Writer, node: Node) -> None:
    """Each point between four neighbours, of which those outside of the image are zero."""
    image, places = node.first(), node.op.operand(1)
    with w.kernel("resampler", node) as s:
        k = s.k
        x, where, y = s.reads(image), s.reads(places), s.result()
        batch, row, column, slice_ = s.each_vector(y.shape)
        at = k.let(where.at([batch, row, column], 0))
        (x0, x1, dx), (y0, y1, dy) = (
            _between(s, at.lane(lane), image.shape[axis]) for lane, axis in ((0, 2), (1, 1))
        )
        lines = []
        for line, line_inside in (y0, y1):
            left, right = (
                k.let(k.select(inside & line_inside, x.at([batch, line, point], slice_), 0.0))
                for point, inside in (x0, x1)
            )
            lines.append(k.let(left + (right - left) * dx.splat(4)))
        s.put([batch, row, column], slice_, lines[0] + (lines[1] - lines[0]) * dy.splat(4))


Neighbour = tuple[Value, Value]  # a place that can be read, and whether it is meant


def _between(s: StepWriter, place: Value, extent: int) -> tuple[Neighbour, Neighbour, Value]:
    """Two neighbours along an axis, and how far the place lies from the first. What is far outside
    is no whole number of 32 bits, NaN is none at all: both are taken for a place just outside."""
    k = s.k
    exact = k.let(k.cast(place, REAL))
    near = k.let(k.select(exact < -1.0, k.value(-1.0, REAL), exact))
    near = k.let(k.select(near < float(extent), near, k.value(float(extent), REAL)))
    first = k.let(k.cast(k.call("floor", near), INT))
    return (
        _neighbour(s, first, extent),
        _neighbour(s, first + 1, extent),
        k.let(k.cast(near - k.cast(first, REAL), FLOAT)),
    )


def _neighbour(s: StepWriter, at: Value, extent: int) -> Neighbour:
    k = s.k
    at = k.let(at)
    safe = k.let(k.maximum(k.minimum(at, extent - 1), 0))
    return safe, k.let((at >= 0) & (at < extent))


KERNELS = {"custom.Resampler": Row(emit_resampler)}
