"""Depthwise convolution: a run computes a few neighbouring points of one vector of channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....ir import Array
from ....ops.geometry import Axis
from .. import layout
from ..language import Index, Value
from ..options import DeviceClass
from ..steps import Node, StepWriter, View, Writer
from .products import (
    _inside,
    _refuses_activation,
    _refuses_conv,
    activate,
    axes_of,
    constant_bias,
    inner_block,
)
from .row import Row, first_of


def emit(w: Writer, node: Node) -> None:
    weights: Array = np.asarray(node.op.operand(1).values, np.float32)[0]  # [ky, kx, out]
    high, wide, out = weights.shape
    y, x = axes_of(node, (high, wide))
    batch, times = node.output.shape[0], out // node.first().shape[-1]
    lanes = 4 if times > 1 else _lanes(w.device, layout.slices((out,)))
    rows = _rows(w.device, x.out)
    with w.kernel("depthwise", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        kept, bias = s.weights(layout.pack(weights)), constant_bias(s, node)
        column, block, line = k.grid(result.slices * 4 // lanes, -(-x.out // rows), batch * y.out)
        image, row = s.places(line, (batch, y.out))
        slice_, left = k.let(column * (lanes // 4), "s"), k.let(block * rows, "p")
        start = k.zero(lanes) if bias is None else k.let(bias.at([], slice_, lanes))
        sums = [k.var(start, "a") for _ in range(rows)]
        taps = Taps(s, source, kept, y, x, (image, row, left), slice_, times, lanes)
        inner = inner_block(s, x, left, rows)
        with k.when(inner):
            taps.add(sums, checked=False)
        if inner is not None:
            with k.when(~inner):
                taps.add(sums, checked=True)
        s.macs = batch * y.out * x.out * weights.size
        for m, total in enumerate(sums):
            with k.when(None if x.out % rows == 0 else left + m < x.out):
                s.put([image, row, left + m], slice_, activate(s, node.op, total))


def _lanes(device: DeviceClass, slices: int) -> int:
    """The widest vectors that divide the slices."""
    return next(n for n in (16, 8, 4) if n <= device.lanes and slices % (n // 4) == 0)


def _rows(device: DeviceClass, points: int) -> int:
    """As many points as a tile may have, few of them beyond the last."""
    most = min(device.rows, 8, points)
    return min(range(1, most + 1), key=lambda n: (-(-points // n) * (n + 1), -n))


@dataclass
class Taps:
    """The window of a few neighbouring points. at: image, row and first column."""

    s: StepWriter
    source: View
    weights: View
    y: Axis
    x: Axis
    at: tuple[Value, Value, Value]
    slice_: Value
    times: int
    lanes: int

    def add(self, sums: list[Value], checked: bool) -> None:
        """checked: some columns may lie outside of the input."""
        k = self.s.k
        with k.loop(0, self.y.taps, hint="ky") as ky:
            at_y = k.let(self.at[1] * self.y.stride + ky * self.y.dilation - self.y.before)
            with k.when(_inside(self.s, at_y, self.y)):
                self._line(sums, ky, at_y, checked)

    def _line(self, sums: list[Value], ky: Value, at_y: Value, checked: bool) -> None:
        """An element that several points read is loaded once, if no test stands before it."""
        k, x = self.s.k, self.x
        start = k.let(self.at[2] * x.stride - x.before)
        seen: dict[int, Value] = {}
        for kx in range(x.taps):
            weight = k.let(self.weights.at([ky, kx], self.slice_, self.lanes), "w")
            for m, total in enumerate(sums):
                place = m * x.stride + kx * x.dilation
                at_x = start + place
                if not checked:
                    if place not in seen:
                        seen[place] = k.let(self._read([self.at[0], at_y, at_x]))
                    k.assign(total, k.fma(seen[place], weight, total))
                    continue
                with k.when((at_x >= 0) & (at_x < x.size)):
                    value = self._read([self.at[0], at_y, k.let(at_x)])
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


KERNELS = {"DEPTHWISE_CONV_2D": Row(emit, first_of(_refuses_conv, _refuses_activation))}
