"""Elementwise operators: whatever is fused, of tensors that are read where the result is."""

from __future__ import annotations

from ..expressions import ELEMENTWISE
from ..steps import Node, Writer
from .chains import few_added_at_once, select_as_select_v2
from .row import Row


def emit(w: Writer, node: Node) -> None:
    shape = node.output.shape
    with w.kernel("map", node) as s:
        s.result()
        *place, slice_ = s.each_vector(shape)
        s.put(place, slice_, s._operand(node.first(), place, slice_, 4))


KERNELS = {
    **dict.fromkeys(sorted(ELEMENTWISE), Row(emit)),
    "ADD_N": Row(emit, becomes=few_added_at_once),
    "SELECT": Row(emit, becomes=select_as_select_v2),
}
