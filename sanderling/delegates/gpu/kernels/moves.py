"""Operators that move elements: each element of the result is one of an input's, or a constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ....ir import Op, Tensor
from ....ops.base import attr
from .. import layout
from ..language import Value
from ..steps import Node, StepWriter, View, Writer
from .row import Row, need_constant

# For an element of the result, where it comes from: all coordinates in, all coordinates out.
Whence = Callable[[StepWriter, Sequence[Value]], Sequence[Value]]


def emit_move(
    w: Writer, node: Node, source: Tensor, whence: Whence, keeps_last: bool, place: int = 0,
    name: str = "move",
) -> None:  # fmt: skip
    """keeps_last: the last coordinate is the same in both, so that whole vectors are moved."""
    shape = layout.dims(node.outputs[place].shape)
    with w.kernel(name, node) as s:
        x, _ = s.reads(source), s.result(place)
        *at, slice_ = s.each_vector(shape)
        if keeps_last:
            *other, _ = whence(s, [*at, slice_])
            s.put(at, slice_, x.at(other, slice_))
        else:
            s.put(at, slice_, element_by_element(s, x, shape, at, slice_, whence))


def element_by_element(
    s: StepWriter, x: View, shape: Sequence[int], at: Sequence[Value], slice_: Value, whence: Whence
) -> Value:
    """A vector whose elements come from different places. Those beyond the last are any."""
    k, found = s.k, []
    for lane in range(4):
        channel = slice_ * 4 + lane
        if shape[-1] % 4:
            channel = k.minimum(channel, shape[-1] - 1)
        found.append(k.let(x.one(whence(s, [*at, k.let(channel, "c")]))))
    return k.join(found)


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
        s.put(at, slice_, s.k.load(x.argument, y.index(at, slice_)))


# -- those that reorder ---------------------------------------------------------------------------


def emit_transpose(w: Writer, node: Node) -> None:
    order = [int(p) for p in node.op.operand(1).values.reshape(-1)]

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [at[order.index(axis)] for axis in range(len(order))]

    emit_move(w, node, node.first(), whence, order[-1] == len(order) - 1, name="transpose")


def emit_pad(w: Writer, node: Node) -> None:
    op, source = node.op, node.first()
    pads = np.asarray(op.operand(1).values)
    fill = 0.0
    if op.name == "PADV2":
        fill = float(op.operand(2).values.reshape(-1)[0])
    shape, inner = layout.dims(node.output.shape), layout.dims(source.shape)
    before = [int(p) for p in pads[:, 0]]
    with w.kernel("pad", node) as s:
        k = s.k
        x, _ = s.reads(source), s.result()
        *at, slice_ = s.each_vector(shape)
        old = [p - b for p, b in zip(at, before, strict=False)]
        tests = [t for p, n, b, m in zip(old, inner, before, shape, strict=False)
                 for t in _within(p, n, b, m)]  # fmt: skip
        safe = [k.let(k.maximum(k.minimum(p, n - 1), 0)) for p, n in zip(old, inner, strict=False)]
        other = k.value(fill, x.argument.storage.kind)
        if not pads[-1].any():
            value = x.at(safe, slice_)
        else:
            lanes = []
            for lane in range(4):
                channel = k.let(slice_ * 4 + (lane - before[-1]))
                inside = (channel >= 0) & (channel < inner[-1])
                near = k.maximum(k.minimum(channel, inner[-1] - 1), 0)
                lanes.append(k.let(k.select(inside, x.one([*safe, near]), other)))
            value = k.join(lanes)
        ok = k.all_of(tests)
        s.put(at, slice_, value if ok is None else k.select(ok, value, other.splat(4)))


def _within(p: Value, extent: int, before: int, whole: int) -> list[Value]:
    tests = [p >= 0] if before else []
    return [*tests, p < extent] if whole - before > extent else tests


# -- concatenation --------------------------------------------------------------------------------


def emit_concatenation(w: Writer, node: Node) -> None:
    tensors = [t for t in node.op.inputs if t is not None]
    rank = len(layout.dims(node.output.shape))
    axis = int(attr(node.op, "axis")) % rank
    parts = [t for t in tensors if prod(t.shape)]
    starts = np.cumsum([0, *(layout.dims(t.shape)[axis] for t in parts)])
    if axis < rank - 1 or all(start % 4 == 0 for start in starts[:-1]):
        for tensor, start in zip(parts, starts, strict=False):
            _emit_part(w, node, tensor, axis, int(start))
        return
    shape = layout.dims(node.output.shape)
    with w.kernel("concatenation", node) as s:
        k = s.k
        views = [s.reads(t) for t in parts]
        s.result()
        *at, slice_ = s.each_vector(shape)
        found = []
        for lane in range(4):
            channel = k.let(slice_ * 4 + lane)
            value: Value | None = None
            for view, start in reversed(list(zip(views, starts, strict=False))):
                extent = view.shape[-1]
                near = k.maximum(k.minimum(channel - int(start), extent - 1), 0)
                own = k.let(view.one([*at, near]))
                is_here = channel < int(start) + extent
                value = k.let(own if value is None else k.select(is_here, own, value))
            assert value is not None, "a concatenation has parts"
            found.append(value)
        s.put(at, slice_, k.join(found))


def _emit_part(w: Writer, node: Node, tensor: Tensor, axis: int, start: int) -> None:
    shape = layout.dims(tensor.shape)
    with w.kernel("concatenation", node) as s:
        x, _ = s.reads(tensor), s.result()
        *at, slice_ = s.each_vector(shape)
        value = x.at(at, slice_)
        if axis == len(shape) - 1:
            s.put(at, slice_ + start // 4, value)
        else:
            s.put([p + start if i == axis else p for i, p in enumerate(at)], slice_, value)


def _refuses_concatenation(op: Op) -> str | None:
    name = str(attr(op, "fused_activation_function"))
    return None if name == "NONE" else f"the fused activation {name} has no kernel"


# -- slices ---------------------------------------------------------------------------------------


def emit_slice(w: Writer, node: Node) -> None:
    op, source = node.op, node.first()
    rank = len(layout.dims(source.shape))
    starts = [int(p) for p in op.operand(1).values.reshape(-1)] or [0] * rank
    _emit_strided(w, node, source, starts, [1] * rank, list(range(rank)), rank)


def _emit_strided(
    w: Writer, node: Node, source: Tensor, starts: Sequence[int], steps: Sequence[int],
    dims: Sequence[int | None], rank: int,
) -> None:  # fmt: skip
    """dims: for each dimension of the source, that of the result which walks over it."""

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [
            s.k.value(start) if dim is None else at[dim] * step + start
            for start, step, dim in zip(starts, steps, dims, strict=True)
        ]

    out_rank = len(layout.dims(node.output.shape))
    keeps = starts[-1] == 0 and steps[-1] == 1 and dims[-1] == out_rank - 1
    emit_move(w, node, source, whence, keeps, name="slice")


def emit_strided_slice(w: Writer, node: Node) -> None:
    op, source = node.op, node.first()
    shape = layout.dims(source.shape)
    begin, stride = ([int(v) for v in op.operand(i).values.reshape(-1)] for i in (1, 3))
    masks = {name: int(attr(op, name)) for name in ("begin_mask", "end_mask", "shrink_axis_mask")}
    rows: list[tuple[int, int, int | None]] = []  # of each dimension: start, step, of the result
    out = 0
    for i, extent in enumerate(shape):
        if i >= len(begin):
            rows.append((0, 1, out))
            out += 1
            continue
        step = stride[i]
        first = begin[i] + extent if begin[i] < 0 else begin[i]
        if masks["begin_mask"] >> i & 1 and not masks["shrink_axis_mask"] >> i & 1:
            first = 0 if step > 0 else extent - 1
        first = max(0, min(extent if step > 0 else extent - 1, first))
        shrunk = masks["shrink_axis_mask"] >> i & 1
        rows.append((first, step, None if shrunk else out))
        out += not shrunk
    starts, steps, dims = zip(*rows, strict=True)
    _emit_strided(w, node, source, starts, steps, dims, len(shape))


def _refuses_masks(op: Op) -> str | None:
    for name in ("ellipsis_mask", "new_axis_mask"):
        if int(attr(op, name)):
            return f"its {name} has no kernel"
    return need_constant(1, 2, 3)(op)


KERNELS = {
    "RESHAPE": Row(emit_reshape),
    "SQUEEZE": Row(emit_reshape),
    "EXPAND_DIMS": Row(emit_reshape),
    "TRANSPOSE": Row(emit_transpose, need_constant(1)),
    "PAD": Row(emit_pad, need_constant(1)),
    "PADV2": Row(emit_pad, need_constant(1, 2)),
    "CONCATENATION": Row(emit_concatenation, _refuses_concatenation),
    "SLICE": Row(emit_slice, need_constant(1, 2)),
    "STRIDED_SLICE": Row(emit_strided_slice, _refuses_masks),
}
