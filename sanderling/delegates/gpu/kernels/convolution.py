"""Convolution: a product for each tap of the window, or a product of points, or Winograd's way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....ir import Array
from ....ops.geometry import Axis
from ..language import Value
from ..passes.float_view import SIMULATE
from ..steps import Node, StepWriter, View, Writer
from . import computed
from .computed import either
from .edges import Edges
from .products import (
    Elements,
    Lines,
    Product,
    Weights,
    _inside,
    _refuses_activation,
    _refuses_conv,
    add_channels,
    axes_of,
    bias_of,
    block_of,
    constant_bias,
    elements_of,
    emit_product,
    pack_weights,
    panels,
)
from .row import Row
from .tiles import choose_tile
from .winograd import emit_winograd, is_winograd


def emit_conv(w: Writer, node: Node) -> None:
    weights = np.asarray(node.op.operand(1).values, np.float32)
    weights, groups = merged(weights, node.first().shape[-1] // weights.shape[-1])
    y, x = axes_of(node, weights.shape[1:3])
    ys, xs = (a.live_taps() or range(1) for a in (y, x))  # others see padding only
    weights = weights[:, ys.start : ys.stop, xs.start : xs.stop]
    y, x = y.trim(ys), x.trim(xs)
    where = w.device, node.output.shape
    if groups == 1 and is_pointwise(y) and is_pointwise(x):
        points, flat = prod(node.output.shape[:-1]), weights.reshape(len(weights), -1)
        emit_product(w, node, node.first(), flat, bias_of(node), points)
    elif groups == 1 and not _counts_exactly(node) and is_winograd(*where, weights, y, x):
        emit_winograd(w, node, weights, y, x)
    else:
        emit_window(w, node, weights, y, x, groups)


def _counts_exactly(node: Node) -> bool:
    """Whether its sums are whole numbers that are rounded to the CPU's codes: those of Winograd's
    way are only near them, and near the middle of two codes that is the other code."""
    users = node.op.outputs[0].users
    return any(user.name == SIMULATE and user.attrs["rounding"].exact for user in users)


def is_pointwise(a: Axis) -> bool:
    """Whether every point reads the input at its own place."""
    return (a.taps, a.stride, a.before, a.out) == (1, 1, 0, a.size)


def merged(weights: Array, groups: int) -> tuple[Array, int]:
    """As few groups as it takes for channels to fill their slices, with zeros between those that
    became one."""
    out, depth = len(weights) // groups, weights.shape[-1]
    whole = [n for n in range(1, groups + 1) if groups % n == 0]
    times = next((n for n in whole if n * depth % 4 == 0 and n * out % 4 == 0), groups)
    if times == 1:
        return weights, groups
    found = np.zeros((*weights.shape[:-1], depth * times), np.float32)
    for n in range(groups):
        rows, first = slice(n * out, (n + 1) * out), n % times * depth
        found[rows, ..., first : first + depth] = weights[rows]
    return found, groups // times


# The most points of a tile: 24 points of one vector were slower here than fewer points of two.
MOST_POINTS = 14


def emit_window(w: Writer, node: Node, weights: Array, y: Axis, x: Axis, groups: int) -> None:
    """Points of a tile are neighbours in a line of the image."""
    out, batch = weights.shape[0], node.output.shape[0]
    kind = replace(w.device, rows=min(w.device.rows, MOST_POINTS))
    tile = choose_tile(kind, x.out, out // groups, weights[0].size)
    with w.kernel("conv", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        edges = Edges(x, tile.rows)
        column, block, line = k.grid(result.slices // tile.slices, edges.count, batch * y.out)
        kept = panels(s, pack_weights(weights), tile, column)
        product = Product(s, tile, k.let(column * tile.slices, "s"), constant_bias(s, node))
        image, row = s.places(line, (batch, y.out))
        left, own = block_of(s, block, tile.rows, x.out)
        group = column // (result.slices // groups // tile.slices) if groups > 1 else k.value(0)
        before = k.let(group * (weights.shape[-1] // 4))
        window = Window(s, source, weights.shape[1:], y, edges, (image, row, block, left), before)
        window.add(product, kept)
        s.macs = batch * y.out * x.out * weights.size
        product.put(lambda m: [image, row, left + m], own)


@dataclass
class Window:
    """The elements that a tile of neighbouring points reads. shape: of the window: high, wide,
    depth. at: image, row, block and first column. before: slices that other groups have."""

    s: StepWriter
    source: View
    shape: Sequence[int]
    y: Axis
    edges: Edges
    at: tuple[Value, Value, Value, Value]
    before: Value

    # Lines of at most so many products are written out, without a loop over their columns; so are
    # whole windows, such as those of a network's first layer, which take a quarter less time.
    UNROLLED, WRITTEN_OUT = 16, 32
    # Blocks at the edges that are written out, and taps of theirs: others ask at every element.
    MOST_BLOCKS, MOST_TAPS = 4, 6

    def add(self, product: Product, weights: Weights) -> None:
        k = self.s.k
        image, row, _, _ = self.at

        def add(ky: Value) -> None:
            at_y = k.let(row * self.y.stride + ky * self.y.dilation - self.y.before)
            with k.when(_inside(self.s, at_y, self.y)):
                line = k.let(image * self.y.size + at_y, "l")
                Line(self, product, weights, ky, line).add()

        if prod(self.shape) <= self.WRITTEN_OUT:
            for number in range(self.y.taps):
                add(k.value(number))
            return
        with k.loop(0, self.y.taps, hint="ky") as ky:
            add(ky)


@dataclass
class Line:
    """A line of a window."""

    window: Window
    product: Product
    weights: Weights
    ky: Value
    line: Value

    def add(self) -> None:
        window, edges = self.window, self.window.edges
        _, wide, depth = window.shape
        taps = sum(1 for block in edges.outer for _ in edges.partial(block))
        if len(edges.outer) > window.MOST_BLOCKS or taps > window.MOST_TAPS:
            self._checked_taps()
        elif wide * depth <= window.UNROLLED:
            for tap in range(wide):
                self._unrolled(tap)
        else:
            self._looped()

    def _looped(self) -> None:
        """Taps that lie inside for the whole block in a loop, then each of the others."""
        k, edges, block = self.window.s.k, self.window.edges, self.window.at[2]
        first, last = (edges.bound(k, block, end) for end in (False, True))
        with k.loop(first, last, hint="kx") as kx:
            self._tap(kx)
        for number in edges.outer:
            found = list(edges.partial(number))
            with k.when(block.equals(number) if found else None):
                for tap, points in found:
                    self._tap(k.value(tap), points)

    def _unrolled(self, tap: int) -> None:
        k, edges, block = self.window.s.k, self.window.edges, self.window.at[2]
        every = range(edges.rows)
        other = [b for b in edges.outer if edges.points(b, tap) != every]
        if len(other) < edges.count:
            with k.when(k.all_of([k.binary("not_equal", block, b) for b in other])):
                self._tap(k.value(tap))
        for b in other:
            points = edges.points(b, tap)
            if points:
                with k.when(block.equals(b)):
                    self._tap(k.value(tap), points)

    def _row(self, kx: Value) -> Value:
        """Where the weights of a tap begin."""
        wide, depth = self.window.shape[1:]
        return self.window.s.k.let((self.ky * wide + kx) * (-(-depth // 4) * 4))

    def _tap(self, kx: Value, points: range | None = None) -> None:
        """points: those of the block that the tap lies inside for, default all."""
        window, s = self.window, self.window.s
        x, source = window.edges.axis, window.source
        start = window.at[3] * x.stride + kx * x.dilation - x.before
        base = s.k.let((self.line * x.size + start) * source.slices + window.before, "b")
        step = x.stride * source.slices
        lines = Lines(base, [m * step for m in points or range(window.edges.rows)])
        add_channels(
            s,
            self.product,
            self.weights,
            self._row(kx),
            window.shape[-1],
            lambda c: lines.elements(s, source, c),
            points,
        )

    def _checked_taps(self) -> None:
        """Where many blocks lie at an edge, as with taps that are far apart: a tap of a block lies
        inside for all points, or for some of them, or for none."""
        k, x, left = self.window.s.k, self.window.edges.axis, self.window.at[3]
        reach = (self.window.edges.rows - 1) * x.stride
        with k.loop(0, x.taps, hint="kx") as kx:
            start = k.let(left * x.stride + kx * x.dilation - x.before)
            whole = k.let((start >= 0) & (start + reach < x.size), "in")
            with k.when(whole):
                self._tap(kx)
            with k.when(~whole & (start + reach >= 0) & (start < x.size)):
                self._checked_tap(kx)

    def _checked_tap(self, kx: Value) -> None:
        window, s = self.window, self.window.s
        k, x, source = s.k, window.edges.axis, window.source
        start = k.let(window.at[3] * x.stride + kx * x.dilation - x.before)
        columns = [start + m * x.stride for m in range(window.edges.rows)]
        within = [k.let((at >= 0) & (at < x.size)) for at in columns]
        safe = [k.maximum(k.minimum(at, x.size - 1), 0) for at in columns]
        bases = [
            k.let((self.line * x.size + at) * source.slices + window.before, "b") for at in safe
        ]

        def elements(c: Value) -> Elements:
            found = elements_of(s, source, bases, c)
            return lambda lane: [
                k.let(k.select(ok, e, 0.0)) for ok, e in zip(within, found(lane), strict=True)
            ]

        add_channels(s, self.product, self.weights, self._row(kx), window.shape[-1], elements)


_KNOWN = Row(emit_conv, _refuses_conv)
KERNELS = {
    "CONV_2D": either(_KNOWN, computed.emit_conv, computed.refuses_conv, also=_refuses_activation)
}
