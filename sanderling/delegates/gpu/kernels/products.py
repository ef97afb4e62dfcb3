"""Products of matrices: a tile of points and channels in registers.

A run of the kernel computes `rows` neighbouring points of a few vectors of channels. It walks over
the input's channels; an element of the input is multiplied with vectors of weights, which lie in
the order in which they are read: [panel][window][input channel][channels of a tile].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ....ir import Array, Op, Tensor
from ....ops.base import attr
from ....ops.fixed import fused_bounds
from ....ops.geometry import Axis, axis
from .. import layout
from ..language import Index, Value
from ..steps import Node, StepWriter, View, Writer
from .chains import fully_connected_as_matmul
from .moves import emit_reshape
from .row import Row, first_of
from .tiles import Tile, choose_tile

# Weights of a row (an input channel in a tap) from a slice of the tile on, in so many lanes.
Weights = Callable[[Value, int, int], Value]
# An element of the input for each point of a tile, by its lane in the slice.
Elements = Callable[[int], list[Value]]
# Whether a point of a tile is stored, by its number in the tile; None: it always is.
Own = Callable[[int], Value | None]


def pack_weights(weights: Array) -> Array:
    """[out, ky, kx, in] as [ky, kx, in slices, 4, out slices * 4], zeros beyond."""
    out, high, wide, depth = weights.shape
    packed = np.zeros(
        (high, wide, layout.slices((depth,)) * 4, layout.slices((out,)) * 4), np.float32
    )
    packed[:, :, :depth, :out] = weights.transpose(1, 2, 3, 0)
    return packed


def panels(s: StepWriter, packed: Array, tile: Tile, panel: Value, twice: int = 0) -> Weights:
    """Constant weights in panels of a tile's channels, so that a run reads one piece of memory.
    twice: how many of the last channels of a panel are there once more."""
    rows = packed.reshape(-1, packed.shape[-1])
    depth, wide = len(rows), tile.slices * 4
    each = rows.reshape(depth, -1, wide).transpose(1, 0, 2)
    each = np.concatenate([each, each[..., wide - twice :]], axis=-1)
    kept = s.weights(each.reshape(-1, wide + twice))
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

    def add(
        self,
        weights: Weights,
        row: Value,
        elements: Elements,
        lanes: int = 4,
        points: range | None = None,
    ) -> None:
        """So many channels of the input, from this row of the weights on. points: those of the tile
        that there are elements for, default all."""
        taken = self.sums if points is None else self.sums[points.start : points.stop]
        for lane in range(lanes):
            self._add_row(weights, row + lane, elements(lane), taken)

    def _add_row(
        self, weights: Weights, row: Value, elements: list[Value], taken: list[list[Value]]
    ) -> None:
        k, tile = self.k, self.tile
        vectors = [
            k.let(weights(row, start, width), "w")
            for start, width in zip(tile.starts, tile.widths, strict=True)
        ]
        for sums, x in zip(taken, elements, strict=True):
            for total, vector in zip(sums, vectors, strict=True):
                k.assign(total, k.fma(x.splat(total.lanes), vector, total))

    def close(self) -> None:
        """All has been added."""

    def put(self, place: Callable[[int], Sequence[Index]], inside: Own) -> None:
        """Store the points that are inside, after the activation and what is fused in."""
        for m, sums in enumerate(self.sums):
            with self.k.when(inside(m)):
                at = place(m)
                for n, total in enumerate(sums):
                    self.s.put(at, self.column(n), clamp(self.s, self.s.node.op, total))


class PairedProduct(Product):
    """The same of a tile whose last vectors are halves: those of two points are one vector, whose
    weights are there twice. 24 channels then take three products for two points, not four."""

    def __init__(self, s: StepWriter, tile: Tile, first: Value, bias: View | None) -> None:
        super().__init__(s, replace(tile, widths=tile.widths[:-1]), first, bias)
        self.half, lanes = tile.widths[-1], 2 * tile.widths[-1]
        self.tail = self.tile.slices
        self.bias = bias
        self.pairs = [s.k.var(s.k.zero(lanes), "a") for _ in range(tile.rows // 2)]
        places = s.k.join([s.k.value(lane) for lane in range(lanes)])
        self.is_first = s.k.let(places < self.half, "f")

    def add(
        self,
        weights: Weights,
        row: Value,
        elements: Elements,
        lanes: int = 4,
        points: range | None = None,
    ) -> None:
        assert points is None, "halves of points that are left out have no partner"
        k = self.k
        for lane in range(lanes):
            found = elements(lane)
            self._add_row(weights, row + lane, found, self.sums)
            twice = k.let(weights(row + lane, self.tail, 2 * self.half), "w")
            for total, x, other in zip(self.pairs, found[::2], found[1::2], strict=True):
                two = k.select(self.is_first, x.splat(total.lanes), other.splat(total.lanes))
                k.assign(total, k.fma(two, twice, total))

    def close(self) -> None:
        bias = self.bias and self.k.let(self.bias.at([], self.first + self.tail, self.half))
        for m, sums in enumerate(self.sums):
            total = self.pairs[m // 2].part(m % 2 * self.half, self.half)
            sums.append(total if bias is None else self.k.let(total + bias))
        self.tile = replace(self.tile, widths=(*self.tile.widths, self.half))


@dataclass(frozen=True)
class Lines:
    """Where points of a tile begin in the input: `base` vectors on, and how many more for each.

    One base for all is one address for a compiler, and constants beside it. With an address for
    each of 14 points, a CPU's registers for addresses run out: 165 GFLOP/s instead of 257 on PoCL.
    """

    base: Value
    steps: Sequence[int]

    def elements(self, s: StepWriter, x: View, c: Value) -> Elements:
        """The elements of the slice c. A CPU repeats an element while it loads it; for a GPU a
        vector is one load."""
        k, argument = s.k, x.argument
        if s.w.device.scalars and argument.storage.form == "buffer":
            at = self.base * 4 + c * 4
            return lambda lane: [
                k.let(k.load_one(argument, at + (step * 4 + lane)), "e") for step in self.steps
            ]
        vectors = [k.let(k.load(argument, self.base + c + step)) for step in self.steps]
        return lambda lane: [v.lane(lane) for v in vectors]


def elements_of(s: StepWriter, x: View, bases: Sequence[Value], c: Value) -> Elements:
    """The elements of the slice c of points that begin at these vectors, wherever each is."""
    each = [Lines(base, (0,)).elements(s, x, c) for base in bases]
    return lambda lane: [element for found in each for element in found(lane)]


def add_channels(
    s: StepWriter,
    product: Product,
    weights: Weights,
    row: Value,
    depth: int,
    elements: Callable[[Value], Elements],
    points: range | None = None,
) -> None:
    """All channels of the points of a tile; those beyond the last are not touched."""
    k = s.k
    full, rest = divmod(depth, 4)
    if full:
        with k.loop(0, full, hint="c") as c:
            product.add(weights, k.let(row + c * 4), elements(c), 4, points)
    if rest:
        last = k.value(full)
        product.add(weights, k.let(row + last * 4), elements(last), rest, points)


def block_of(s: StepWriter, block: Value, rows: int, count: int) -> tuple[Value, Own]:
    """Where a block of so many points begins, and which of them are its own. The last block begins
    early enough to be full; points that it has in common with the one before are that one's."""
    k, rest = s.k, count % rows
    begin = k.let(block * rows, "p")
    if rest == 0:
        return begin, lambda m: None
    start = k.let(k.minimum(begin, count - rows), "p")
    return start, lambda m: None if m >= rows - rest else start + m >= begin


# -- what convolutions share ----------------------------------------------------------------------


def axes_of(node: Node, taps: Sequence[int], dilated: bool = True) -> tuple[Axis, Axis]:
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
    if str(op.attrs.get("fused_activation_function")) == "TANH":
        return s.k.call("tanh", x)
    return clamp(s, op, x)


def clamp(s: StepWriter, op: Op, x: Value) -> Value:
    """The bounds of the op's activation. Products and pools know no other activations: TANH is
    none to them, as in TensorFlow Lite."""
    if "fused_activation_function" not in op.attrs:
        return x
    low, high = fused_bounds(op)
    # Comparing is one instruction where fmax(), which must look for NaN, is three. NaN is `low`.
    if np.isfinite(low):
        x = s.k.let(x)
        x = s.k.select(x > float(low), x, float(low))
    if np.isfinite(high):
        x = s.k.let(x)
        x = s.k.select(x < float(high), x, float(high))
    return x


def _inside(s: StepWriter, at: Value, y: Axis) -> Value | None:
    """Whether a line lies inside of the input; None if all do."""
    if y.before == 0 and y.after == 0:
        return None
    return (at >= 0) & (at < y.size)


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
    tile = choose_tile(w.device, points, out, depth, paired=True)
    with w.kernel("product", node) as s:
        k = s.k
        x, result = s.reads(source), s.result()
        column, block = k.grid(result.slices // tile.slices, -(-points // tile.rows))
        packed = pack_weights(weights.reshape(out, 1, 1, depth))
        start = None if bias is None else s.weights(layout.pack(bias))
        kind = PairedProduct if tile.has_half else Product
        kept = panels(s, packed, tile, column, tile.widths[-1] if tile.has_half else 0)
        product = kind(s, tile, k.let(column * tile.slices, "s"), start)
        point, own = block_of(s, block, tile.rows, points)
        add_lines(s, product, x, kept, point)
        s.macs = points * weights.size
        product.close()
        put_points(s, product, layout.dims(node.output.shape)[:-1], point, own)


def add_lines(
    s: StepWriter, product: Product, x: View, weights: Weights, point: Value, before: Index = 0
) -> None:
    """A tile of points from `point` on, of a matrix that begins at the vector before."""
    base = s.k.let(point * x.slices + before, "b")
    lines = Lines(base, [m * x.slices for m in range(product.tile.rows)])
    add_channels(s, product, weights, s.k.value(0), x.shape[-1], lambda c: lines.elements(s, x, c))


def put_points(
    s: StepWriter, product: Product, shape: Sequence[int], point: Value, own: Own
) -> None:
    """shape: that of all points."""
    if is_flat(s.node):
        before: list[Index] = [0 for _ in shape[1:]]
        product.put(lambda m: [*before, point + m][: len(shape)], own)
    else:
        product.put(lambda m: s.places(s.k.let(point + m), shape), own)


def is_flat(node: Node) -> bool:
    """Whether all that is fused in has an element for every point, or one for all of them, so that
    the number of a point says where it is."""
    points = prod(layout.dims(node.output.shape)[:-1])
    return all(prod(layout.dims(t.shape)[:-1]) in (1, points) for t in node.operands)


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


def _refuses_bias(op: Op) -> str | None:
    """A bias that is fed is added to floats behind the product."""
    bias = op.input(2)
    if bias is None or bias.is_constant or bias.dtype.is_float:
        return None
    return f"the bias '{bias.name}' of whole numbers must be constant"


KERNELS = {
    "FULLY_CONNECTED": Row(
        emit_fully_connected,
        first_of(_refuses_activation, _refuses_format, _refuses_bias),
        becomes=fully_connected_as_matmul,
    ),
}
