"""Sums, means, extremes and products over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf, prod

import numpy as np

from ....ir import DType, Op, Tensor
from ....ops.base import attr
from .. import layout
from ..language import BOOL, FLOAT, INT, REAL, KernelText, Value
from ..passes.stored import is_codes
from ..steps import Node, StepWriter, View, Writer
from .row import Row, first_of, need_constant

INT32 = np.iinfo(np.int32)
Combine = Callable[[KernelText, Value, Value], Value]


@dataclass(frozen=True)
class Reduction:
    """start: of floats; whole numbers start with the nearest of 32 bits."""

    start: float
    combine: Combine

    def first(self, kind: str) -> float:
        if kind in (FLOAT, REAL):
            return self.start
        return int(max(INT32.min, min(INT32.max, self.start)))


SUM = Reduction(0.0, lambda k, a, b: a + b)
PRODUCT = Reduction(1.0, lambda k, a, b: a * b)
MAXIMUM = Reduction(-inf, lambda k, a, b: k.maximum(a, b))
MINIMUM = Reduction(inf, lambda k, a, b: k.minimum(a, b))


def _axes(node: Node) -> list[int]:
    rank = len(layout.dims(node.first().shape))
    axes = {int(a) % rank for a in node.op.operand(1).values.reshape(-1)}
    return sorted(axes)


def emit_reduce(reduction: Reduction, mean: bool = False) -> Callable[[Writer, Node], None]:
    def emit(w: Writer, node: Node) -> None:
        source, is_truth = node.first(), node.first().dtype is DType.BOOL
        shape, axes = layout.dims(source.shape), _axes(node)
        keep = bool(attr(node.op, "keep_dims"))
        count = prod(shape[a] for a in axes)
        first = _first_axis(node, shape, axes)
        if first is not None and not w.is_half(node):
            source = _reduced_over(w, node, source, first, reduction)
            shape = source.shape
        with w.kernel("reduce", node) as s:
            k = s.k
            # Truths are reduced as the numbers that they are kept as.
            x, y = replace(s.reads(source), is_truth=False), s.result()
            *at, slice_ = s.each_vector(y.shape)
            if len(shape) - 1 not in axes:
                full = _full(s, at, shape[:-1], axes, keep)
                found = _reduce_vectors(s, x, full, axes, slice_, reduction)
            else:
                lanes = []
                for lane in range(min(4, y.shape[-1])):
                    channel = slice_ * 4 + lane
                    if y.shape[-1] % 4:
                        channel = k.minimum(channel, y.shape[-1] - 1)
                    place = [*at, k.let(channel)]
                    full = _full(s, place, shape, axes, keep)
                    lanes.append(_row_total(s, x, full[:-1], reduction))
                found = k.join([*lanes, *(lanes[-1:] * (4 - len(lanes)))])
            if mean:
                total = k.let(found)
                found = total // count if total.kind == INT else total * (1.0 / count)
            found = narrowed(k, found)
            s.put(at, slice_, k.cast(found, BOOL) if is_truth else found)

    return emit


# One item adds so many vectors at most where there are so few items, if others can reduce a
# dimension before.
LONG, FEW = 2048, 64


def _first_axis(node: Node, shape: Sequence[int], axes: Sequence[int]) -> int | None:
    """The dimension that is reduced by a kernel of its own, so that few items do not read all."""
    inner = [a for a in axes if a < len(shape) - 1]
    items = layout.vectors(node.output.shape)
    each = prod(shape[a] for a in inner) * (layout.slices(shape) if len(inner) < len(axes) else 1)
    if not inner or items > FEW or each <= LONG or node.first().dtype not in layout.FLOATS:
        return None
    return max(inner, key=lambda a: shape[a])


def _reduced_over(w: Writer, node: Node, source: Tensor, axis: int, reduction: Reduction) -> Tensor:
    shape = tuple(1 if i == axis else n for i, n in enumerate(layout.dims(source.shape)))
    found = w.temporary(f"{node.output.name}/partial", shape, wide=True)
    with w.kernel("reduce", node) as s:
        x, y = replace(s.reads(source), is_truth=False), s.scratch(found, written=True)
        *at, slice_ = s.each_vector(shape)
        place = [None if i == axis else p for i, p in enumerate(at)]
        total = _reduce_vectors(s, x, place, [axis], slice_, reduction)
        s.k.store(y.argument, y.index(at, slice_), total)
    return found


def _full(
    s: StepWriter, at: Sequence[Value], shape: Sequence[int], axes: Sequence[int], keep: bool
) -> list[Value | None]:
    """Coordinates in the source, None where it is reduced over."""
    if keep:
        return [None if i in axes else at[i] for i in range(len(shape))]
    left = iter(at)
    return [None if i in axes else next(left) for i in range(len(shape))]


def _reduce_vectors(
    s: StepWriter,
    x: View,
    full: Sequence[Value | None],
    axes: Sequence[int],
    slice_: Value,
    reduction: Reduction,
) -> Value:
    k = s.k
    kind = wide(x)
    start = reduction.first(kind)
    total = k.var(k.value(start, kind).splat(4), "a")
    with ExitStack() as loops:
        place = [
            loops.enter_context(k.loop(0, x.shape[i])) if p is None else p
            for i, p in enumerate(full)
        ]
        value = k.cast(x.at(place, slice_), kind)
        k.assign(total, reduction.combine(k, total, value))
    return total


def wide(x: View) -> str:
    """The kind of a sum: floats are added up in 32 bits, for 16 hold no more than 65504."""
    kind = x.argument.storage.kind
    return REAL if kind == FLOAT else kind


def narrowed(k: KernelText, total: Value) -> Value:
    """A sum as the kernel's values are."""
    return k.cast(total, FLOAT) if total.kind == REAL else total


def reduce_row(s: StepWriter, x: View, full: Sequence[Value | None], reduction: Reduction) -> Value:
    """Over the last dimension too, as the kernel's values are."""
    return s.k.let(narrowed(s.k, _row_total(s, x, full, reduction)))


def _row_total(s: StepWriter, x: View, full: Sequence[Value | None], reduction: Reduction) -> Value:
    """Vectors first, then their lanes."""
    k, channels = s.k, x.shape[-1]
    kind = wide(x)
    start = reduction.first(kind)
    total = k.var(k.value(start, kind).splat(4), "a")
    with ExitStack() as loops:
        place = [
            loops.enter_context(k.loop(0, x.shape[i])) if p is None else p
            for i, p in enumerate(full)
        ]
        slice_ = loops.enter_context(k.loop(0, x.slices, hint="c"))
        value = s.valid(slice_, k.let(k.cast(x.at(place, slice_), kind)), channels, start)
        k.assign(total, reduction.combine(k, total, k.let(value)))
    halves = [reduction.combine(k, total.lane(i), total.lane(i + 2)) for i in (0, 1)]
    return k.let(reduction.combine(k, *halves))


AXES = need_constant(1)


def _refuses_whole(op: Op) -> str | None:
    """The CPU sums them up in 64 bits."""
    whole = op.operand(0).dtype is DType.INT32
    return "means of whole numbers have no kernel" if whole else None


def _refuses_codes(op: Op) -> str | None:
    """The CPU rounds after every factor."""
    return "products of codes have no kernel" if is_codes(op.operand(0)) else None


KERNELS = {
    "MEAN": Row(emit_reduce(SUM, mean=True), first_of(AXES, _refuses_whole)),
    "SUM": Row(emit_reduce(SUM), AXES),
    "REDUCE_PROD": Row(emit_reduce(PRODUCT), first_of(AXES, _refuses_codes)),
    "REDUCE_MAX": Row(emit_reduce(MAXIMUM), AXES),
    "REDUCE_MIN": Row(emit_reduce(MINIMUM), AXES),
    "REDUCE_ANY": Row(emit_reduce(MAXIMUM), AXES),
    "REDUCE_ALL": Row(emit_reduce(MINIMUM), AXES),
}
