"""Convolutions and products of matrices: a tile of points and channels in registers.

A run of the kernel computes `rows` neighbouring points of a few vectors of channels. It walks over
the window and the input's slices; an element of the input is multiplied with vectors of weights,
which lie in the order in which they are read: [panel][window][input channel][channels of a tile].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ....ir import Array, Op, Tensor
from ....ops.base import attr
from ....ops.fixed import fused_bounds
from ....ops.geometry import Axis, axis
from .. import layout
from ..language import Index, Value
from ..options import DeviceClass
from ..steps import Node, StepWriter, View, Writer
from .chains import fully_connected_as_matmul
from .moves import emit_reshape
from .row import Row, first_of

# Weights of a row (an input channel in a tap) from a slice of the tile on, in so many lanes.
Weights = Callable[[Value, int, int], Value]
# An element of the input for each point of a tile, by its lane in the slice.
Elements = Callable[[int], list[Value]]


@dataclass(frozen=True)
class Tile:
    """What a run computes: rows points of vectors of so many lanes each."""

    rows: int
    widths: tuple[int, ...]

    @property
    def slices(self) -> int:
        return sum(self.widths) // 4

    @property
    def starts(self) -> list[int]:
        """The slice at which each vector begins."""
        return [sum(self.widths[:n]) // 4 for n in range(len(self.widths))]


def choose_tile(device: DeviceClass, points: int, channels: int, depth: int) -> Tile:
    """The cheapest of the tiles that divide the slices and fit the registers. points: in a row.
    depth: products that an element of the result sums up."""
    slices = -(-channels // 4)
    best = (float("inf"), Tile(1, (4,)))
    for count in (n for n in range(1, slices + 1) if slices % n == 0):
        widths = _widths(count, device.lanes)
        if len(widths) > device.columns:
            break
        for rows in range(1, min(device.rows, points) + 1):
            if len(widths) > 1 and (rows + 1) * len(widths) >= device.registers:
                continue
            runs = -(-points // rows) * (slices // count)
            best = min(best, (runs * run_cost(rows, len(widths), depth), Tile(rows, widths)),
                       key=lambda found: found[0])  # fmt: skip
    return best[1]


def _widths(slices: int, lanes: int) -> tuple[int, ...]:
    """Vectors for so many slices, the widest first."""
    wide, rest = divmod(slices * 4, lanes)
    return (*[lanes] * wide, *(n for n in (8, 4) if rest & n))


# Fitted by `python -m benchmarks.gpu_kernels --fit` on PoCL 3.1 (Zen 4): a product of two vectors
# takes 1; a vector or an element that is loaded for it 0.1; to begin and end a run 60. Tiles that
# keep less than LEAST products under way wait for them.
LOAD, BEGIN, LEAST = 0.1, 60.0, 8.0


def run_cost(rows: int, columns: int, depth: int) -> float:
    """Of a run, in products of vectors."""
    return depth * (max(rows * columns, LEAST) + LOAD * (rows + columns)) + BEGIN


def pack_weights(weights: Array) -> Array:
    """[out, ky, kx, in] as [ky, kx, in slices, 4, out slices * 4], zeros beyond."""
    out, high, wide, depth = weights.shape
    packed = np.zeros(
        (high, wide, layout.slices((depth,)) * 4, layout.slices((out,)) * 4), np.float32
    )
    packed[:, :, :depth, :out] = weights.transpose(1, 2, 3, 0)
    return packed


def panels(s: StepWriter, packed: Array, tile: Tile, panel: Value) -> Weights:
    """Constant weights in panels of a tile's channels, so that a run reads one piece of memory."""
    rows = packed.reshape(-1, packed.shape[-1])
    depth, wide = len(rows), tile.slices * 4
    kept = s.weights(rows.reshape(depth, -1, wide).transpose(1, 0, 2).reshape(-1, wide))
    origin = s.k.let(panel * depth, "o")
    return lambda row, slice_, lanes: kept.at([origin + row], slice_, lanes)


class Product:
    """The sums of a tile."""

    def __init__(self, s: StepWriter, tile: Tile, first: Value, bias: View | None) -> None:
        """first: the slice of the output at which the tile begins."""
        self.s, self.k, self.tile, self.first = s, s.k, tile, first
        starts = [self._start(bias, n) for n in range(len(tile.widths))]
        self.sums = [[self.k.var(start, "a") for start in starts] for _ in range(tile.rows)]

    def column(self, n: int) -> Value:
        """The slice at which a vector of the tile begins."""
        return self.first + self.tile.starts[n]

    def _start(self, bias: View | None, n: int) -> Value:
        if bias is None:
            return self.k.zero(self.tile.widths[n])
        return self.k.let(bias.at([], self.column(n), self.tile.widths[n]))

    def add(self, weights: Weights, row: Value, elements: Elements, lanes: int = 4) -> None:
        """So many channels of the input, from this row of the weights on."""
        k, tile = self.k, self.tile
        for lane in range(lanes):
            vectors = [
                k.let(weights(row + lane, start, width), "w")
                for start, width in zip(tile.starts, tile.widths, strict=True)
            ]
            for sums, x in zip(self.sums, elements(lane), strict=True):
                for total, vector in zip(sums, vectors, strict=True):
                    k.assign(total, k.fma(x.splat(total.lanes), vector, total))

    def put(self, place: Callable[[int], Sequence[Index]],
            inside: Callable[[int], Value | None]) -> None:  # fmt: skip
        """Store the points that are inside, after the activation and what is fused in."""
        for m, sums in enumerate(self.sums):
            with self.k.when(inside(m)):
                at = place(m)
                for n, total in enumerate(sums):
                    self.s.put(at, self.column(n), activate(self.s, self.s.node.op, total))


def elements_of(s: StepWriter, x: View, bases: Sequence[Value], c: Value) -> Elements:
    """Of the slice c of points that begin at these vectors. A CPU repeats an element while it loads
    it; for a GPU a vector is one load."""
    k, argument = s.k, x.argument
    if s.w.device.scalars and argument.storage.form == "buffer":
        return lambda lane: [k.let(k.load_one(argument, (b + c) * 4 + lane), "e") for b in bases]
    vectors = [k.let(k.load(argument, b + c)) for b in bases]
    return lambda lane: [v.lane(lane) for v in vectors]


def add_channels(
    s: StepWriter, product: Product, weights: Weights, row: Value, depth: int,
    elements: Callable[[Value], Elements],
) -> None:  # fmt: skip
    """All channels of the points of a tile; those beyond the last are not touched."""
    k = s.k
    full, rest = divmod(depth, 4)
    if full:
        with k.loop(0, full, hint="c") as c:
            product.add(weights, k.let(row + c * 4), elements(c))
    if rest:
        last = k.value(full)
        product.add(weights, k.let(row + last * 4), elements(last), rest)


# -- convolution ----------------------------------------------------------------------------------


def axes_of(node: Node, taps: tuple[int, int], dilated: bool = True) -> tuple[Axis, Axis]:
    """Height and width of a window, with padding that was fused in."""
    top, bottom, left, right = node.pads or (0, 0, 0, 0)
    return (
        _axis_of(node, 0, taps[0], (top, bottom), dilated),
        _axis_of(node, 1, taps[1], (left, right), dilated),
    )


def _axis_of(node: Node, i: int, taps: int, extra: tuple[int, int], dilated: bool) -> Axis:
    op, size, letter = node.op, node.first().shape[1 + i], "hw"[i]
    dilation = int(attr(op, f"dilation_{letter}_factor")) if dilated else 1
    stride = int(attr(op, f"stride_{letter}"))
    whole = axis(op, str(attr(op, "padding")), size + sum(extra), taps, stride, dilation)
    return Axis(size, taps, stride, dilation, whole.out, whole.before + extra[0])


def activate(s: StepWriter, op: Op, x: Value) -> Value:
    """The activation that the op itself has."""
    if "fused_activation_function" not in op.attrs:
        return x
    low, high = fused_bounds(op)
    if str(attr(op, "fused_activation_function")) == "TANH":
        return s.k.call("tanh", x)
    if np.isfinite(low):
        x = s.k.maximum(x, float(low))
    return s.k.minimum(x, float(high)) if np.isfinite(high) else x


def emit_conv(w: Writer, node: Node) -> None:
    weights = np.asarray(node.op.operand(1).values, np.float32)
    groups = node.first().shape[-1] // weights.shape[-1]
    if groups > 1:
        weights = _ungrouped(weights, groups)
    out, high, wide, depth = weights.shape
    y, x = axes_of(node, (high, wide))
    if (high, wide, y.stride, x.stride, y.before, x.before) == (1, 1, 1, 1, 0, 0):
        points = prod(node.output.shape[:-1])
        emit_product(w, node, node.first(), weights.reshape(out, depth), bias_of(node), points)
    else:
        _emit_window(w, node, weights, y, x)


def _emit_window(w: Writer, node: Node, weights: Array, y: Axis, x: Axis) -> None:
    """Points of a tile are neighbours in a line of the image."""
    out, batch = weights.shape[0], node.output.shape[0]
    tile = choose_tile(w.device, x.out, out, weights[0].size)
    with w.kernel("conv", node) as s:
        k = s.k
        source, result = s.reads(node.first()), s.result()
        column, block, line = k.grid(
            result.slices // tile.slices, -(-x.out // tile.rows), batch * y.out
        )
        kept = panels(s, pack_weights(weights), tile, column)
        bias = constant_bias(s, node)
        image, row = s.places(line, (batch, y.out))
        first, left = k.let(column * tile.slices, "s"), k.let(block * tile.rows, "p")
        product = Product(s, tile, first, bias)
        window = Window(s, source, weights.shape[1:], y, x, (image, row, left))
        inner = inner_block(s, x, left, tile.rows)
        with k.when(inner):
            window.add(product, kept, checked=False)
        if inner is not None:
            with k.when(~inner):
                window.add(product, kept, checked=True)
        s.macs = batch * y.out * x.out * weights.size
        whole = x.out % tile.rows == 0
        product.put(lambda m: [image, row, left + m],
                    lambda m: None if whole else left + m < x.out)  # fmt: skip


def inner_block(s: StepWriter, x: Axis, left: Value, rows: int) -> Value | None:
    """Whether the windows of so many points from `left` on lie inside; None if all always do."""
    last = (rows - 1) * x.stride + (x.taps - 1) * x.dilation - x.before
    blocks = -(-x.out // rows)
    ends = (blocks - 1) * rows * x.stride + last < x.size
    if x.before == 0 and ends:
        return None
    return s.k.let((left * x.stride >= x.before) & (left * x.stride + last < x.size), "in")


@dataclass
class Window:
    """The elements that a tile of neighbouring points reads. at: image, row and first column."""

    s: StepWriter
    source: View
    shape: tuple[int, ...]  # of the window: high, wide, depth
    y: Axis
    x: Axis
    at: tuple[Value, Value, Value]

    # Windows of at most so many products are written out, without a loop over their columns.
    UNROLLED = 16

    def add(self, product: Product, weights: Weights, checked: bool) -> None:
        """checked: some columns may lie outside of the input."""
        k, (high, wide, depth) = self.s.k, self.shape
        image, row, _ = self.at
        with k.loop(0, high, hint="ky") as ky:
            at_y = k.let(row * self.y.stride + ky * self.y.dilation - self.y.before)
            with k.when(_inside(self.s, at_y, self.y)):
                line = k.let(image * self.y.size + at_y, "l")
                if wide * depth <= self.UNROLLED:
                    for number in range(wide):
                        self._tap(product, weights, line, ky, k.value(number), checked)
                else:
                    with k.loop(0, wide, hint="kx") as kx:
                        self._tap(product, weights, line, ky, kx, checked)

    def _tap(self, product: Product, weights: Weights, line: Value, ky: Value, kx: Value,
             checked: bool) -> None:  # fmt: skip
        k, x, source = self.s.k, self.x, self.source
        depth = self.shape[-1]
        row = k.let((ky * x.taps + kx) * (source.slices * 4))
        start = k.let(self.at[2] * x.stride + kx * x.dilation - x.before)
        columns = [start + m * x.stride for m in range(product.tile.rows)]
        if not checked:
            first = k.let((line * x.size + start) * source.slices, "b")
            step = x.stride * source.slices
            bases = [first + m * step for m in range(product.tile.rows)]
            add_channels(self.s, product, weights, row, depth,
                         lambda c: elements_of(self.s, source, bases, c))  # fmt: skip
            return
        safe = [k.maximum(k.minimum(at, x.size - 1), 0) for at in columns]
        bases = [k.let((line * x.size + at) * source.slices, "b") for at in safe]
        within = [k.let((at >= 0) & (at < x.size)) for at in columns]

        def checked_elements(c: Value) -> Elements:
            return self._checked(elements_of(self.s, source, bases, c), within)

        add_channels(self.s, product, weights, row, depth, checked_elements)

    def _checked(self, elements: Elements, within: Sequence[Value]) -> Elements:
        """Zero outside of the input."""
        k = self.s.k
        return lambda lane: [
            k.let(k.select(ok, x, 0.0)) for ok, x in zip(within, elements(lane), strict=True)
        ]


def _inside(s: StepWriter, at: Value, y: Axis) -> Value | None:
    """Whether a line lies inside of the input; None if all do."""
    if y.before == 0 and y.after == 0:
        return None
    return (at >= 0) & (at < y.size)


def _ungrouped(weights: Array, groups: int) -> Array:
    """Groups as one product whose weights are zero elsewhere."""
    out, high, wide, depth = weights.shape
    whole = np.zeros((out, high, wide, depth * groups), np.float32)
    each = out // groups
    for g in range(groups):
        rows = slice(g * each, (g + 1) * each)
        whole[rows, ..., g * depth : (g + 1) * depth] = weights[rows]
    return whole


def bias_of(node: Node) -> Array | None:
    bias = node.op.input(2)
    return None if bias is None else np.asarray(bias.values, np.float32)


def constant_bias(s: StepWriter, node: Node) -> View | None:
    bias = bias_of(node)
    return None if bias is None else s.weights(layout.pack(bias))


# -- products -------------------------------------------------------------------------------------


def emit_product(
    w: Writer, node: Node, source: Tensor, weights: Array, bias: Array | None, points: int
) -> None:
    """[points, depth] times the transposed [out, depth]."""
    out, depth = weights.shape
    tile = choose_tile(w.device, points, out, depth)
    with w.kernel("product", node) as s:
        k = s.k
        x, result = s.reads(source), s.result()
        column, block = k.grid(result.slices // tile.slices, -(-points // tile.rows))
        kept = panels(s, pack_weights(weights.reshape(out, 1, 1, depth)), tile, column)
        start = None if bias is None else s.weights(layout.pack(bias))
        first, point = k.let(column * tile.slices, "s"), k.let(block * tile.rows, "p")
        product = Product(s, tile, first, start)
        add_points(s, product, x, kept, point, points)
        s.macs = points * weights.size
        put_points(s, product, layout.dims(node.output.shape)[:-1], point)


def add_points(
    s: StepWriter, product: Product, x: View, weights: Weights, point: Value, points: int,
    before: Index = 0,
) -> None:  # fmt: skip
    """Points from `point` on, of a matrix with so many points that begins at the vector before."""
    k, rows = s.k, product.tile.rows
    places = [point + m for m in range(rows)]
    if points % rows:
        places = [k.minimum(at, points - 1) for at in places]
    bases = [k.let(at * x.slices + before, "b") for at in places]
    add_channels(s, product, weights, k.value(0), x.shape[-1],
                 lambda c: elements_of(s, x, bases, c))  # fmt: skip


def put_points(s: StepWriter, product: Product, shape: Sequence[int], point: Value) -> None:
    """shape: that of all points."""
    k, points = s.k, prod(shape)
    whole = points % product.tile.rows == 0
    product.put(lambda m: s.places(k.let(point + m), shape),
                lambda m: None if whole else point + m < points)  # fmt: skip


def emit_fully_connected(w: Writer, node: Node) -> None:
    weights = np.asarray(node.op.operand(1).values, np.float32)
    depth = weights.shape[1]
    source = node.first()
    points = prod(source.shape) // depth
    if layout.dims(source.shape)[-1] != depth:
        flat = w.temporary(f"{source.name}/rows", (points, depth))
        emit_reshape(w, Node(node.op, [flat]), source)
        source = flat
    emit_product(w, node, source, weights, bias_of(node), points)


def _refuses_conv(op: Op) -> str | None:
    bias = op.input(2)
    if bias is not None and not bias.is_constant:
        return "its bias must be constant"
    return "its weights must be constant" if not op.operand(1).is_constant else None


def _refuses_activation(op: Op) -> str | None:
    name = str(attr(op, "fused_activation_function"))
    known = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1", "TANH")
    return None if name in known else f"the fused activation {name} has no kernel"


def _refuses_format(op: Op) -> str | None:
    form = str(attr(op, "weights_format"))
    return None if form == "DEFAULT" else f"weights in the format {form} have no kernel"


KERNELS = {
    "CONV_2D": Row(emit_conv, first_of(_refuses_conv, _refuses_activation)),
    "FULLY_CONNECTED": Row(
        emit_fully_connected,
        first_of(_refuses_activation, _refuses_format),
        becomes=fully_connected_as_matmul,
    ),
}
