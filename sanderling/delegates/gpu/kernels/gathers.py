"""Operators that look elements up by their indices.

An index that a run computes and that leaves the input gives NaN: a device cannot stop and tell. So
whole numbers and codes, which have no NaN, are looked up by constant indices only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan

import numpy as np

from ....ir import Op, Tensor
from ....ops.base import attr
from .. import layout
from ..language import FLOAT, Value
from ..passes.stored import is_codes
from ..steps import Node, StepWriter, Writer
from .moves import Outside, Whence, emit_move
from .row import Row, need_constant


def _emit(
    w: Writer, node: Node, source: Tensor, indices: Tensor, whence: Whence, dims: Sequence[int]
) -> None:
    """dims: those of the source that are looked up."""
    vectors = len(source.shape) - 1 not in dims
    outside = Outside(() if indices.is_constant else dims, lambda s: s.k.value(nan, FLOAT))
    emit_move(w, node, source, whence, vectors, name="gather", outside=outside)


def emit_gather(w: Writer, node: Node) -> None:
    op, source, indices = node.op, node.first(), node.op.operand(1)
    axis, batch = _axes(op)
    spread = len(indices.shape) - batch

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        places = [*at[:batch], *at[axis : axis + spread]]
        found = s.k.let(s.reads(indices).one(places or [0]))
        rest = len(source.shape) - axis - 1
        return [*at[:axis], found, *at[axis + spread : axis + spread + rest]]

    _emit(w, node, source, indices, whence, [axis])


def _axes(op: Op) -> tuple[int, int]:
    """The axis and the number of dimensions that data and indices share."""
    axis, batch = int(attr(op, "axis")), int(attr(op, "batch_dims"))
    own = batch + len(op.operand(1).shape) if batch < 0 else batch
    return axis % len(op.operand(0).shape), own


def emit_gather_nd(w: Writer, node: Node) -> None:
    source, indices = node.first(), node.op.operand(1)
    *outer, depth = indices.shape

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        view, first = s.reads(indices), at[: len(outer)]
        found = [s.k.let(view.one([*first, i])) for i in range(depth)]
        rest = len(source.shape) - depth
        return [*found, *at[len(outer) : len(outer) + rest]]

    _emit(w, node, source, indices, whence, range(depth))


def emit_lookup(w: Writer, node: Node) -> None:
    """EMBEDDING_LOOKUP: rows of a table."""
    ids, table = node.op.operand(0), node.op.operand(1)

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [s.k.let(s.reads(ids).one(at[:1])), *at[1:]]

    _emit(w, node, table, ids, whence, [0])


def _refuses_indices(data: int, indices: int) -> Callable[[Op], str | None]:
    def refuses(op: Op) -> str | None:
        found = op.operand(indices).data
        if found is not None:
            return None if _fit(op, data, indices) else "an index leaves its input"
        out = op.outputs[0]
        if is_codes(out) or out.dtype in layout.WHOLE:
            return "indices of whole numbers must be constant"
        return None

    return refuses


def _fit(op: Op, data: int, indices: int) -> bool:
    shape, found = op.operand(data).shape, op.operand(indices).values
    if op.name == "GATHER_ND":
        sizes = np.asarray(shape[: found.shape[-1]])
    else:
        sizes = np.asarray(shape[_axes(op)[0] if op.name == "GATHER" else 0])
    return bool(np.all((found >= 0) & (found < sizes)))


# -- ONE_HOT --------------------------------------------------------------------------------------


def emit_one_hot(w: Writer, node: Node) -> None:
    op, shape = node.op, layout.dims(node.output.shape)
    indices, on, off = (op.operand(i) for i in (0, 2, 3))
    axis = int(attr(op, "axis")) % len(shape)
    with w.kernel("one_hot", node) as s:
        k = s.k
        places, _ = s.reads(indices), s.result()
        yes, no = (k.let(s.reads(t).one([0] * max(1, len(t.shape)))) for t in (on, off))
        *at, slice_ = s.each_vector(shape)
        lanes = k.join([k.value(i) for i in range(4)])
        if axis == len(shape) - 1:
            index = places.one(at or [0]).splat(4)
            hot = index.equals(slice_.splat(4) * 4 + lanes)
        else:
            index = places.at([p for i, p in enumerate(at) if i != axis], slice_)
            hot = k.let(index).equals(at[axis].splat(4))
        s.put(at, slice_, k.select(hot, yes.splat(4), no.splat(4)))


KERNELS = {
    "GATHER": Row(emit_gather, _refuses_indices(0, 1)),
    "GATHER_ND": Row(emit_gather_nd, _refuses_indices(0, 1)),
    "EMBEDDING_LOOKUP": Row(emit_lookup, _refuses_indices(1, 0)),
    "ONE_HOT": Row(emit_one_hot, need_constant(1)),
}
