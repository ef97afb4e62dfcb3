"""Transposed convolution: as many convolutions as a stride has phases.

With stride 2, even and odd points of the result read the input through different taps; those of a
phase are an ordinary convolution of stride 1 by the taps that meet it, in the other order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as pairs

import numpy as np

from ....ir import Array, Op, Tensor
from ....ops.base import attr
from ....ops.custom import transposed_sizes
from ....ops.geometry import Axis, axis
from .. import layout
from ..steps import Node, Writer
from . import computed
from .computed import either
from .convolution import Window
from .edges import Edges
from .products import Product, _refuses_activation, block_of, pack_weights, panels
from .row import Row, first_of, need_constant
from .tiles import choose_tile


@dataclass(frozen=True)
class StridePhase:
    """Points begin, begin + stride, ... of the result: the window that they see, and its taps in
    the filter (none where nothing reaches them)."""

    begin: int
    stride: int
    axis: Axis
    taps: range


def phases(size: int, taps: int, stride: int, before: int, out: int) -> list[StridePhase]:
    """before: how many points the result is cropped at its start."""
    found = []
    for begin in range(min(stride, out)):
        first = (begin + before) % stride
        own = range(first, taps, stride)
        shift = (begin + before - first) // stride
        count = max(1, len(own))
        whole = Axis(size, count, 1, 1, -(-(out - begin) // stride), count - 1 - shift)
        live = whole.live_taps() or range(1)
        found.append(
            StridePhase(begin, stride, whole.trim(live), own[::-1][live.start : live.stop])
        )
    return found


def _weights(weights: Array, y: StridePhase, x: StridePhase) -> Array:
    """The taps of a phase; zeros if there are none."""
    if not y.taps or not x.taps:
        return np.zeros((weights.shape[0], y.axis.taps, x.axis.taps, weights.shape[3]), np.float32)
    found: Array = weights[:, list(y.taps)][:, :, list(x.taps)]
    return found


def _emit(
    w: Writer,
    node: Node,
    source: Tensor,
    weights: Array,
    bias: Array | None,
    lines: Sequence[StridePhase],
    columns: Sequence[StridePhase],
) -> None:
    for y, x in pairs(lines, columns):
        _emit_phase(w, node, source, _weights(weights, y, x), bias, y, x)


def _emit_phase(
    w: Writer,
    node: Node,
    source: Tensor,
    weights: Array,
    bias: Array | None,
    y: StridePhase,
    x: StridePhase,
) -> None:
    batch, points = node.output.shape[0], x.axis.out
    tile = choose_tile(w.device, points, weights.shape[0], weights[0].size)
    with w.kernel("transpose_conv", node) as s:
        k = s.k
        view, result = s.reads(source), s.result()
        edges = Edges(x.axis, tile.rows)
        column, block, line = k.grid(result.slices // tile.slices, edges.count, batch * y.axis.out)
        kept = panels(s, pack_weights(weights), tile, column)
        start = None if bias is None else s.weights(layout.pack(bias))
        product = Product(s, tile, k.let(column * tile.slices, "s"), start)
        image, row = s.places(line, (batch, y.axis.out))
        left, own = block_of(s, block, tile.rows, points)
        at = image, row, block, left
        Window(s, view, weights.shape[1:], y.axis, edges, at, k.value(0)).add(product, kept)
        s.macs = batch * y.axis.out * points * weights.size
        height = k.let(row * y.stride + y.begin)
        product.put(lambda m: [image, height, (left + m) * x.stride + x.begin], own)


def emit_transpose_conv(w: Writer, node: Node) -> None:
    op, shape = node.op, node.output.shape
    weights = np.asarray(op.operand(1).values, np.float32)
    bias = op.input(3)
    both = []
    for i, letter in enumerate("hw"):
        stride, taps = int(attr(op, f"stride_{letter}")), weights.shape[1 + i]
        # The geometry is that of the convolution from the result to the input.
        back = axis(op, str(attr(op, "padding")), shape[1 + i], taps, stride)
        both.append(phases(back.out, taps, stride, back.before, shape[1 + i]))
    values = None if bias is None else np.asarray(bias.values, np.float32)
    _emit(w, node, op.operand(2), weights, values, *both)


def emit_with_bias(w: Writer, node: Node) -> None:
    """MediaPipe's Convolution2DTransposeBias."""
    op, source = node.op, node.first()
    weights, bias = (np.asarray(op.operand(i).values, np.float32) for i in (1, 2))
    sizes = transposed_sizes(op, source.shape, weights.shape)
    both = [
        phases(source.shape[1 + i], weights.shape[1 + i], stride, before, out)
        for i, (stride, out, before) in enumerate(sizes)
    ]
    _emit(w, node, source, weights, bias, *both)


MOST_PHASES = 64


def _refuses_strides(op: Op) -> str | None:
    """Each phase is a kernel."""
    count = int(attr(op, "stride_h")) * int(attr(op, "stride_w"))
    return f"a stride has {count} phases, {MOST_PHASES} at most" if count > MOST_PHASES else None


KERNELS = {
    "TRANSPOSE_CONV": either(
        Row(emit_transpose_conv, first_of(need_constant(0, 1, 3), _refuses_strides)),
        computed.emit_transposed,
        computed.refuses_transposed,
        also=_refuses_activation,
    ),
    "custom.Convolution2DTransposeBias": Row(emit_with_bias, need_constant(1, 2)),
}
