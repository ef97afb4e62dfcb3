"""Tensors joined along a dimension."""

from __future__ import annotations

from math import prod

import numpy as np

from ....ir import Op, Tensor
from ....ops.base import attr
from .. import layout
from ..language import Value
from ..steps import Node, Writer
from .chains import MOST_READ
from .products import activate
from .row import Row


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
        s.put(at, slice_, activate(s, node.op, k.join(found)))


def _along_channels(op: Op) -> list[Tensor]:
    """The parts of a concatenation whose slices hold channels of several of them."""
    shape = layout.dims(op.outputs[0].shape)
    tensors = [t for t in op.inputs if t is not None]
    parts = [t for t in tensors if prod(t.shape)]
    last = int(attr(op, "axis")) % len(shape) == len(shape) - 1
    return parts if last and any(layout.dims(t.shape)[-1] % 4 for t in parts[:-1]) else []


def few_at_once(op: Op) -> list[Op] | None:
    """Groups of neighbours, and those joined, where there are more than one kernel reads."""
    parts, out = _along_channels(op), op.outputs[0]
    if len(parts) <= MOST_READ:
        return None
    chain, joined = list[Op](), list[Tensor]()
    for first in range(0, len(parts), MOST_READ):
        group = parts[first : first + MOST_READ]
        shape = (*out.shape[:-1], sum(t.shape[-1] for t in group))
        joined.append(Tensor(f"{out.name}/{first}", out.dtype, shape, quant=out.quant))
        chain.append(Op("CONCATENATION", list(group), joined[-1:], {"axis": -1}))
    return [*chain, Op("CONCATENATION", list(joined), [out], {**op.attrs, "axis": -1})]


def _emit_part(w: Writer, node: Node, tensor: Tensor, axis: int, start: int) -> None:
    shape = layout.dims(tensor.shape)
    with w.kernel("concatenation", node) as s:
        x, _ = s.reads(tensor), s.result()
        *at, slice_ = s.each_vector(shape)
        value = activate(s, node.op, x.at(at, slice_))
        if axis == len(shape) - 1:
            s.put(at, slice_ + start // 4, value)
        else:
            s.put([p + start if i == axis else p for i, p in enumerate(at)], slice_, value)


def pack_as_concatenation(op: Op) -> list[Op]:
    """Each input with a dimension of one more, and those joined."""
    out = op.outputs[0]
    axis = int(attr(op, "axis")) % len(out.shape)
    shape = (*out.shape[:axis], 1, *out.shape[axis + 1 :])
    parts = [Tensor(f"{out.name}/{i}", out.dtype, shape) for i in range(len(op.inputs))]
    views = [Op("RESHAPE", [x], [part]) for x, part in zip(op.inputs, parts, strict=True)]
    return [*views, Op("CONCATENATION", parts, [out], {"axis": axis})]


KERNELS = {
    "CONCATENATION": Row(emit_concatenation, becomes=few_at_once),
    "PACK": Row.made_of(pack_as_concatenation),
}
