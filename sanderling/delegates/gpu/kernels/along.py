"""Along one dimension: where the extreme is, and running sums.

A run follows the dimension for a vector of four lanes, or, along the last dimension, element by
element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....ops.base import attr
from .. import layout
from ..language import Value
from ..steps import Node, StepWriter, View, Writer
from .reduce import narrowed, wide
from .row import Row, need_constant


def _axis(node: Node, place: int = 1) -> int:
    rank = len(layout.dims(node.first().shape))
    return int(node.op.operand(place).values.reshape(-1)[0]) % rank


# -- ARG_MAX, ARG_MIN -----------------------------------------------------------------------------


def emit_arg(better: str) -> Callable[[Writer, Node], None]:
    """better: how an element compares with the best so far; of equal ones the first stays."""

    def emit(w: Writer, node: Node) -> None:
        source, axis = node.first(), _axis(node)
        shape = layout.dims(source.shape)
        with w.kernel("arg", node) as s:
            # Truths are compared as the numbers that they are kept as.
            x, y = replace(s.reads(source), is_truth=False), s.result()
            *at, slice_ = s.each_vector(y.shape)
            if axis < len(shape) - 1:
                read = _vector_reader(x, at, axis, slice_)
                s.put(at, slice_, _search(s, better, shape[axis], 4, read))
                return
            # A result of no dimension has a place of one coordinate, which the row lacks.
            rows = [p[: len(shape) - 1] for p in s.lane_places(y.shape, at, slice_)]
            lanes = [_search(s, better, shape[-1], 1, _row_reader(x, row)) for row in rows]
            s.put(at, slice_, s.k.join(lanes))

    return emit


def _vector_reader(
    x: View, at: Sequence[Value], axis: int, slice_: Value
) -> Callable[[Value], Value]:
    return lambda i: x.at(_put_in(at, axis, i), slice_)


def _row_reader(x: View, row: Sequence[Value]) -> Callable[[Value], Value]:
    return lambda i: x.one([*row, i])


def _put_in(at: Sequence[Value], axis: int, i: Value) -> list[Value]:
    return [*at[:axis], i, *at[axis:]]


def _search(
    s: StepWriter, better: str, extent: int, lanes: int, read: Callable[[Value], Value]
) -> Value:
    k = s.k
    best = k.var(read(k.value(0)), "b")
    place = k.var(k.value(0).splat(lanes), "p")
    if extent == 1:
        return place
    with k.loop(1, extent) as i:
        value = k.let(read(i))
        is_better = k.let(k.binary(better, value, best))
        k.assign(best, k.select(is_better, value, best))
        k.assign(place, k.select(is_better, i.splat(lanes), place))
    return place


# -- CUMSUM ---------------------------------------------------------------------------------------


def emit_cumsum(w: Writer, node: Node) -> None:
    source, axis = node.first(), _axis(node)
    shape = layout.dims(source.shape)
    with w.kernel("cumsum", node) as s:
        x, _ = s.reads(source), s.result()
        if axis == len(shape) - 1:
            *at, _ = s.each_vector((*shape[:-1], 1))
            _sum_row(s, node, x, at)
            return
        *at, slice_ = s.each_vector((*shape[:axis], *shape[axis + 1 :]))
        sums = Sums(s, node, 4, x)
        with s.k.loop(0, shape[axis]) as i:
            place = _put_in(at, axis, _step(node, i, shape[axis]))
            s.put(place, slice_, sums.add(x.at(place, slice_)))


def _sum_row(s: StepWriter, node: Node, x: View, at: Sequence[Value]) -> None:
    """Vectors in order; the sum goes from lane to lane."""
    k, sums = s.k, Sums(s, node, 1, x)
    order = range(3, -1, -1) if attr(node.op, "reverse") else range(4)
    with k.loop(0, x.slices) as i:
        slice_ = k.let(_step(node, i, x.slices))
        vector = k.let(s.valid(slice_, k.let(x.at(at, slice_)), x.shape[-1]))
        lanes = {lane: sums.add(vector.lane(lane)) for lane in order}
        s.put(at, slice_, k.join([lanes[lane] for lane in range(4)]))


def _step(node: Node, i: Value, extent: int) -> Value:
    return (extent - 1) - i if attr(node.op, "reverse") else i


class Sums:
    """A running sum, of floats in 32 bits. x: of whose elements."""

    def __init__(self, s: StepWriter, node: Node, lanes: int, x: View) -> None:
        kind = wide(x)
        self._k, self._total = s.k, s.k.var(s.k.value(0, kind).splat(lanes), "a")
        self._exclusive = bool(attr(node.op, "exclusive"))

    def add(self, x: Value) -> Value:
        """The sum with this element, or, if it is exclusive, without it."""
        value = self._k.let(x)
        before = self._k.var(self._total, "c")
        self._k.assign(self._total, self._total + value)
        return narrowed(self._k, before if self._exclusive else self._k.var(self._total, "c"))


AXIS = need_constant(1)
KERNELS = {
    "ARG_MAX": Row(emit_arg("greater"), AXIS),
    "ARG_MIN": Row(emit_arg("less"), AXIS),
    "CUMSUM": Row(emit_cumsum, AXIS),
}
