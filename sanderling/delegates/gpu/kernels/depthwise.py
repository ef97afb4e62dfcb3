"""Depthwise convolution: a run computes a few neighbouring points of one vector of channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....ir import Array
from ....ops.geometry import Axis
from .. import layout
from ..language import Index, Value
from ..options import DeviceClass
from ..steps import Node, StepWriter, View, Writer
from . import computed
from .computed import either
from .edges import Edges
from .products import (
    _inside,
    _refuses_activation,
    _refuses_conv,
    axes_of,
    block_of,
    clamp,
    constant_bias,
)
from .row import Row
from .tiles import widest

# Lines of at most so many taps are written out, and so many blocks at the edges of the image:
# those that lie elsewhere ask at every tap.
MOST_TAPS, MOST_BLOCKS = 16, 4


def emit(w: Writer, node: Node) -> None:
    weights: Array = np.asarray(node.op.operand(1).values, np.float32)[0]  # [ky, kx, out]
    y, x = axes_of(node, weights.shape[:2])
    ys, xs = (a.live_taps() or range(1) for a in (y, x))  # others see padding only
    weights, y, x = weights[ys.start : ys.stop, xs.start : xs.stop], y.trim(ys), x.trim(xs)
    batch, out = node.output.shape[0], weights.shape[-1]
    times = out // node.first().shape[-1]
    lanes = 4 if times > 1 else widest(w.device, layout.slices((out,)))
    edges = Edges(x, choose_rows(w.device, x.out))
    with w.kernel("depthwise", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        kept, bias = s.weights(layout.pack(weights)), constant_bias(s, node)
        column, block, line = k.grid(result.slices * 4 // lanes, edges.count, batch * y.out)
        image, row = s.places(line, (batch, y.out))
        slice_ = k.let(column * (lanes // 4), "s")
        left, own = block_of(s, block, edges.rows, x.out)
        start = k.zero(lanes) if bias is None else k.let(bias.at([], slice_, lanes))
        sums = [k.var(start, "a") for _ in range(edges.rows)]
        Taps(s, source, kept, y, edges, (image, row, block, left), slice_, times, lanes).add(sums)
        s.macs = batch * y.out * x.out * weights.size
        for m, total in enumerate(sums):
            with k.when(own(m)):
                s.put([image, row, left + m], slice_, clamp(s, node.op, total))


def choose_rows(device: DeviceClass, points: int) -> int:
    """As many points as a tile may have, few of them computed twice."""
    most = min(device.rows, 8, points)
    return min(range(1, most + 1), key=lambda n: (-(-points // n) * (n + 1), -n))


@dataclass
class Taps:
    """The window of a few neighbouring points. at: image, row, block and first column."""

    s: StepWriter
    source: View
    weights: View
    y: Axis
    edges: Edges
    at: tuple[Value, Value, Value, Value]
    slice_: Value
    times: int
    lanes: int

    def add(self, sums: list[Value]) -> None:
        k, edges, block = self.s.k, self.edges, self.at[2]
        if edges.axis.taps > MOST_TAPS or len(edges.outer) > MOST_BLOCKS:
            self._each_line(lambda ky, at_y: self._checked_line(sums, ky, at_y))
            return
        if len(edges.outer) < edges.count:
            with k.when(k.all_of([k.binary("not_equal", block, b) for b in edges.outer])):
                self._each_line(lambda ky, at_y: self._line(sums, ky, at_y, None))
        for b in edges.outer:
            with k.when(block.equals(b)):
                self._each_line(lambda ky, at_y, b=b: self._line(sums, ky, at_y, b))  # type: ignore[misc]

    def _each_line(self, add: Callable[[Value, Value], None]) -> None:
        k, y = self.s.k, self.y
        with k.loop(0, y.taps, hint="ky") as ky:
            at_y = k.let(self.at[1] * y.stride + ky * y.dilation - y.before)
            with k.when(_inside(self.s, at_y, y)):
                add(ky, at_y)

    def _line(self, sums: list[Value], ky: Value, at_y: Value, block: int | None) -> None:
        """An element that several points read is loaded once. block: the one at an edge."""
        k, x = self.s.k, self.edges.axis
        start = k.let(self.at[3] * x.stride - x.before)
        seen: dict[int, Value] = {}
        for kx in range(x.taps):
            points = range(len(sums)) if block is None else self.edges.points(block, kx)
            if not points:
                continue
            weight = k.let(self.weights.at([ky, kx], self.slice_, self.lanes), "w")
            for m in points:
                place = m * x.stride + kx * x.dilation
                if place not in seen:
                    seen[place] = k.let(self._read([self.at[0], at_y, start + place]))
                k.assign(sums[m], k.fma(seen[place], weight, sums[m]))

    def _checked_line(self, sums: list[Value], ky: Value, at_y: Value) -> None:
        k, x = self.s.k, self.edges.axis
        with k.loop(0, x.taps, hint="kx") as kx:
            start = k.let(self.at[3] * x.stride + kx * x.dilation - x.before)
            weight = k.let(self.weights.at([ky, kx], self.slice_, self.lanes), "w")
            for m, total in enumerate(sums):
                at_x = k.let(start + m * x.stride)
                with k.when((at_x >= 0) & (at_x < x.size)):
                    value = self._read([self.at[0], at_y, at_x])
                    k.assign(total, k.fma(value, weight, total))

    def _read(self, place: list[Index]) -> Value:
        """The channels of the input that these channels of the result are made of."""
        if self.times == 1:
            return self.source.at(place, self.slice_, self.lanes)
        k, depth = self.s.k, self.source.shape[-1]
        if depth == 1:
            return self.source.one([*place, 0]).splat(4)
        channels = [
            k.minimum((self.slice_ * 4 + lane) // self.times, depth - 1) for lane in range(4)
        ]
        return k.join([self.source.one([*place, c]) for c in channels])


_KNOWN = Row(emit, _refuses_conv)
KERNELS = {
    "DEPTHWISE_CONV_2D": either(
        _KNOWN, computed.emit_depthwise, computed.refuses_depthwise, also=_refuses_activation
    )
}
