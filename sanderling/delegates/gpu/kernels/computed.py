"""Convolutions whose weights a run computes: nothing of them can be packed, so that a run of the
kernel takes one point of the result and four of its channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ....ir import Op
from ....ops.base import attr
from ....ops.geometry import Axis, axis
from ..language import Value
from ..layout import FLOATS
from ..steps import Node, StepWriter, View, Writer
from .products import axes_of, clamp, constant_bias
from .row import Refusal, Row, first_of, need_constant

# Where a tap of a point reads the input along an axis, and whether that lies inside.
Tap = Callable[[Value, Value], tuple[Value, Value]]
TapsOf = Callable[[StepWriter], tuple[Tap, Tap]]


def _forth(s: StepWriter, a: Axis) -> Tap:
    def tap(point: Value, number: Value) -> tuple[Value, Value]:
        at = s.k.let(point * a.stride + number * a.dilation - a.before)
        return at, (at >= 0) & (at < a.size)

    return tap


def _back(s: StepWriter, a: Axis) -> Tap:
    """a: of the convolution from the result to the input."""

    def tap(point: Value, number: Value) -> tuple[Value, Value]:
        steps = s.k.let(point + a.before - number)
        at = s.k.let(steps // a.stride)
        return at, (steps >= 0) & (steps % a.stride).equals(0) & (at < a.out)

    return tap


@contextmanager
def _each_tap(
    s: StepWriter, weights: View, taps: tuple[Tap, Tap], row: Value, column: Value
) -> Iterator[tuple[list[Value], list[Value]]]:
    """Places in the window and in the input, for every tap that lies inside."""
    k = s.k
    with k.loop(0, weights.shape[1], hint="ky") as ky:
        y, is_line = taps[0](row, ky)
        with k.when(is_line), k.loop(0, weights.shape[2], hint="kx") as kx:
            x, is_inside = taps[1](column, kx)
            with k.when(is_inside):
                yield [ky, kx], [y, x]


def _emit_full(w: Writer, node: Node, place: int, bias: int, taps_of: TapsOf) -> None:
    """place, bias: of these operands."""
    source = node.first() if place == 0 else node.op.operand(place)
    with w.kernel("computed_conv", node) as s:
        k = s.k
        x, weights, y = s.reads(source), s.reads(node.op.operand(1)), s.result()
        start = node.op.input(bias)
        image, row, column, slice_ = s.each_vector(y.shape)
        outs = [p[-1] for p in s.lane_places(y.shape, [image, row, column], slice_)]
        sums = [k.var(k.zero(), "a") for _ in outs]
        depth = x.shape[-1]
        inside = _each_tap(s, weights, taps_of(s), row, column)
        with inside as (tap, at), k.loop(0, x.slices, hint="c") as c:
            value = k.let(s.valid(c, k.let(x.at([image, *at], c)), depth))
            for out, total in zip(outs, sums, strict=True):
                weight = s.valid(c, k.let(weights.at([out, *tap], c)), depth)
                k.assign(total, k.fma(value, k.let(weight), total))
        found = k.join([k.let(_added(total)) for total in sums])
        if start is not None:
            found = found + s.reads(start).at([], slice_)
        s.macs = weights.shape[1] * weights.shape[2] * depth * y.slices * 4
        s.put([image, row, column], slice_, clamp(s, node.op, found))


def _added(x: Value) -> Value:
    return (x.lane(0) + x.lane(1)) + (x.lane(2) + x.lane(3))


def emit_conv(w: Writer, node: Node) -> None:
    both = axes_of(node, node.op.operand(1).shape[1:3])
    _emit_full(w, node, 0, 2, lambda s: (_forth(s, both[0]), _forth(s, both[1])))


def emit_transposed(w: Writer, node: Node) -> None:
    op, shape = node.op, node.output.shape
    y, x = (
        axis(
            op,
            str(attr(op, "padding")),
            shape[1 + i],
            op.operand(1).shape[1 + i],
            int(attr(op, f"stride_{letter}")),
        )
        for i, letter in enumerate("hw")
    )
    _emit_full(w, node, 2, 3, lambda s: (_back(s, y), _back(s, x)))


def emit_depthwise(w: Writer, node: Node) -> None:
    source, taps = node.first(), node.op.operand(1)
    both = axes_of(node, taps.shape[1:3])
    times = node.output.shape[-1] // source.shape[-1]
    with w.kernel("computed_depthwise", node) as s:
        k = s.k
        x, weights, y, bias = s.reads(source), s.reads(taps), s.result(), constant_bias(s, node)
        image, row, column, slice_ = s.each_vector(y.shape)
        total = k.var(k.zero() if bias is None else bias.at([], slice_), "a")
        channels = [p[-1] // times for p in s.lane_places(y.shape, [image], slice_)]
        ways = _forth(s, both[0]), _forth(s, both[1])
        with _each_tap(s, weights, ways, row, column) as (tap, at):
            if times == 1:
                value = x.at([image, *at], slice_)
            else:
                value = k.join([k.let(x.one([image, *at, c])) for c in channels])
            k.assign(total, k.fma(k.let(value), weights.at([0, *tap], slice_), total))
        s.macs = weights.shape[1] * weights.shape[2] * y.slices * 4
        s.put([image, row, column], slice_, clamp(s, node.op, total))


# -- rows that take both kinds of weights ---------------------------------------------------------


def is_computed(op: Op) -> bool:
    return not op.operand(1).is_constant


def either(
    known: Row, computed: Callable[[Writer, Node], None], refuses: Refusal, also: Refusal
) -> Row:
    """known: the row for constant weights. also: what is refused of both kinds."""

    def emit(w: Writer, node: Node) -> None:
        (computed if is_computed(node.op) else known.emit)(w, node)

    return Row(emit, first_of(lambda op: (refuses if is_computed(op) else known.refuses)(op), also))


def _refuses_codes(op: Op) -> str | None:
    kinds = {t.dtype for t in (op.operand(1), op.outputs[0])}
    return None if kinds <= set(FLOATS) else "computed weights of codes have no kernel"


def _refuses_groups(op: Op) -> str | None:
    one = op.operand(1).shape[-1] == op.operand(0).shape[-1]
    return None if one else "computed weights of several groups have no kernel"


refuses_conv = first_of(need_constant(2), _refuses_codes, _refuses_groups)
refuses_depthwise = first_of(need_constant(2), _refuses_codes)
refuses_transposed = first_of(need_constant(0, 3), _refuses_codes)
