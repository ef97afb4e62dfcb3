"""Operators that move elements: each element of the result is one of an input's, or a filling."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ....ir import Array, Op, Tensor
from ....ops.base import OPS, as_list
from .. import layout
from ..language import Value
from ..steps import Node, StepWriter, View, Writer
from .row import Row, need_constant

# For an element of the result, where it comes from: all coordinates in, all coordinates out. Where
# whole vectors are moved, the last coordinate is the number of a vector, on both sides.
Whence = Callable[[StepWriter, Sequence[Value]], Sequence[Value]]


@dataclass(frozen=True)
class Outside:
    """Dimensions in which a coordinate may leave the source, and what stands there then."""

    dims: Collection[int]
    value: Callable[[StepWriter], Value]


def emit_move(
    w: Writer,
    node: Node,
    source: Tensor,
    whence: Whence,
    vectors: bool,
    place: int = 0,
    name: str = "move",
    outside: Outside | None = None,
) -> None:
    """vectors: four neighbours in the result are four neighbours in the source. place: of the
    output."""
    shape = layout.dims(node.outputs[place].shape)
    with w.kernel(name, node) as s:
        x, _ = s.reads(source), s.result(place)
        other = None if outside is None else outside.value(s)
        *at, slice_ = s.each_vector(shape)
        read = partial(_read, s, x, None if outside is None else outside.dims, other)
        if vectors:
            *outer, last = whence(s, [*at, slice_])
            s.put(at, slice_, read(outer, last, True))
        else:
            s.put(at, slice_, element_by_element(s, shape, at, slice_, whence, read))


def _read(
    s: StepWriter,
    x: View,
    dims: Collection[int] | None,
    other: Value | None,
    outer: Sequence[Value],
    last: Value,
    vectors: bool,
) -> Value:
    """A vector, or an element; the filling where a coordinate leaves the source."""
    k = s.k
    tests: list[Value] = []
    place = list(outer) if vectors else [*outer, last]
    for dim in sorted(dims or ()):
        at, extent = k.let(place[dim]), x.shape[dim]
        tests.append((at >= 0) & (at < extent))
        place[dim] = k.let(k.maximum(k.minimum(at, extent - 1), 0))
    found = x.at(place, last) if vectors else x.one(place)
    inside = k.all_of(tests)
    if inside is None or other is None:
        return found
    return k.select(inside, found, other.splat(found.lanes))


def element_by_element(
    s: StepWriter,
    shape: Sequence[int],
    at: Sequence[Value],
    slice_: Value,
    whence: Whence,
    read: Callable[[Sequence[Value], Value, bool], Value],
) -> Value:
    """A vector whose elements come from different places. Those beyond the last are any."""
    found = []
    for place in s.lane_places(shape, at, slice_):
        *outer, last = whence(s, place)
        found.append(s.k.let(read(outer, last, False)))
    return s.k.join(found)


# -- reshape --------------------------------------------------------------------------------------


def emit_reshape(w: Writer, node: Node, source: Tensor | None = None) -> None:
    source = source or node.first()
    old, new = layout.dims(source.shape), layout.dims(node.output.shape)

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        flat = s.k.value(0)
        for place, extent in zip(at, new, strict=True):
            flat = flat * extent + place
        return s.places(s.k.let(flat), old)

    if layout.same_place(old, new):
        _emit_copy(w, node, source)
    else:
        emit_move(w, node, source, whence, False, name="reshape")


def _emit_copy(w: Writer, node: Node, source: Tensor) -> None:
    """The same memory, elsewhere."""
    shape = layout.dims(node.output.shape)
    with w.kernel("copy", node) as s:
        x, y = s.reads(source), s.result()
        *at, slice_ = s.each_vector(shape)
        s.put(at, slice_, x.load(y.index(at, slice_)))


# -- moves whose coordinates grow in equal steps --------------------------------------------------


@dataclass(frozen=True)
class CoordinateMap:
    """How a coordinate of the source grows: start + the sum of step[i] * coordinate i of the
    result."""

    start: int
    steps: tuple[int, ...]

    def at(self, s: StepWriter, place: Sequence[Value]) -> Value:
        found = s.k.value(self.start)
        for coordinate, step in zip(place, self.steps, strict=True):
            found = found + coordinate * step
        return found


def coordinate_maps(op: Op, data: int) -> list[list[CoordinateMap]]:
    """For each output, a map for each dimension of the input `data`: what the operator's own
    definition makes of an array that holds the coordinate."""
    shape = op.operand(data).shape
    found: list[list[CoordinateMap]] = [[] for _ in op.outputs]
    for axis, extent in enumerate(shape):
        line: Array = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        given = [None if t is None or i == data else t.data for i, t in enumerate(op.inputs)]
        given[data] = np.broadcast_to(line, shape)
        for own, result in zip(found, as_list(OPS[op.name].evaluate(op, given)), strict=True):
            own.append(_coordinate_map(result))
    return found


def _coordinate_map(result: Array) -> CoordinateMap:
    """From the first element and its neighbours in every dimension."""
    first = int(result[(0,) * result.ndim])
    units = np.eye(result.ndim, dtype=int)
    steps = [
        int(result[tuple(unit)]) - first if extent > 1 else 0
        for unit, extent in zip(units, result.shape, strict=True)
    ]
    return CoordinateMap(first, tuple(steps))


def emit_by_coordinates(data: int = 0) -> Callable[[Writer, Node], None]:
    """data: the place of the operand whose elements are moved."""

    def emit(w: Writer, node: Node) -> None:
        source = node.op.operand(data) if data else node.first()
        for place, dims in enumerate(coordinate_maps(node.op, data)):
            _emit_coordinates(w, node, source, place, dims)

    return emit


def _emit_coordinates(
    w: Writer, node: Node, source: Tensor, place: int, dims: list[CoordinateMap]
) -> None:
    if not source.shape or not node.outputs[place].shape:
        dims = [CoordinateMap(d.start, d.steps or (0,)) for d in dims] or [CoordinateMap(0, (0,))]
    vectors = _are_vectors(dims, layout.dims(node.outputs[place].shape)[-1])
    if vectors:
        dims = [*dims[:-1], CoordinateMap(dims[-1].start // 4, (*dims[-1].steps[:-1], 1))]

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [each.at(s, at) for each in dims]

    emit_move(w, node, source, whence, vectors, place, name="walk")


def _are_vectors(dims: Sequence[CoordinateMap], extent: int) -> bool:
    """extent: of the result's last dimension."""
    *outer, last = dims
    straight = (last.steps[-1] == 1 or extent == 1) and not any(last.steps[:-1])
    return straight and last.start % 4 == 0 and not any(each.steps[-1] for each in outer)


# -- repetition -----------------------------------------------------------------------------------


def emit_tile(w: Writer, node: Node) -> None:
    """Also of fewer dimensions than the result has."""
    source = node.op.operand(1) if node.op.name == "FILL" else node.first()
    old, new = layout.dims(source.shape), layout.dims(node.output.shape)
    vectors = old[-1] == new[-1] or (old[-1] % 4 == 0)
    unit = 4 if vectors and old[-1] % 4 == 0 else 1

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        own = list(zip(at[len(new) - len(old) :], old, strict=True))
        outer = [s.k.value(0) if n == 1 else p % n for p, n in own[:-1]]
        last, extent = own[-1]
        if vectors and unit == 1:
            return [*outer, last]
        return [*outer, s.k.value(0) if extent == 1 else last % (extent // unit)]

    emit_move(w, node, source, whence, vectors, name="tile")


KERNELS = {
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS", "DENSIFY"), Row(emit_reshape)),
    "TRANSPOSE": Row(emit_by_coordinates(), need_constant(1)),
    "REVERSE_V2": Row(emit_by_coordinates(), need_constant(1)),
    "SLICE": Row(emit_by_coordinates(), need_constant(1, 2)),
    "STRIDED_SLICE": Row(emit_by_coordinates(), need_constant(1, 2, 3)),
    "SPLIT": Row(emit_by_coordinates(1), need_constant(0)),
    "SPLIT_V": Row(emit_by_coordinates(), need_constant(1, 2)),
    "UNPACK": Row(emit_by_coordinates()),
    "TILE": Row(emit_tile, need_constant(1)),
    "BROADCAST_TO": Row(emit_tile, need_constant(1)),
    "FILL": Row(emit_tile, need_constant(0)),
}
