"""Pooling over height and width."""

from __future__ import annotations

from math import inf

from ....ops.base import attr
from ..steps import Node, Writer
from .products import _inside, _refuses_activation, activate, axes_of
from .row import Row


def emit(w: Writer, node: Node) -> None:
    op = node.op
    taps = int(attr(op, "filter_height")), int(attr(op, "filter_width"))
    y, x = axes_of(node, taps, dilated=False)
    y, x = y.trim(y.live_taps()), x.trim(x.live_taps())
    largest = op.name == "MAX_POOL_2D"
    with w.kernel("max_pool" if largest else "average_pool", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        image, row, column, slice_ = s.each_vector(result.shape)
        total = k.var(k.value(-inf if largest else 0.0).splat(4), "a")
        count = k.var(k.value(0.0), "n")
        with k.loop(0, y.taps, hint="ky") as ky:
            at_y = k.let(row * y.stride + ky - y.before)
            with k.when(_inside(s, at_y, y)), k.loop(0, x.taps, hint="kx") as kx:
                at_x = k.let(column * x.stride + kx - x.before)
                with k.when(_inside(s, at_x, x)):
                    value = k.let(source.at([image, at_y, at_x], slice_))
                    if largest:
                        k.assign(total, k.maximum(total, value))
                    else:
                        k.assign(total, total + value)
                        k.assign(count, count + 1.0)
        mean = total if largest else total / count
        s.put([image, row, column], slice_, activate(s, op, k.let(mean)))


KERNELS = {
    "MAX_POOL_2D": Row(emit, _refuses_activation),
    "AVERAGE_POOL_2D": Row(emit, _refuses_activation),
}
