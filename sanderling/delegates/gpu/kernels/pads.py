"""Padding: what is read beyond the input is a number, or the input mirrored."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ops.base import attr
from .. import layout
from ..language import Value
from ..steps import Node, StepWriter, Writer
from .moves import Outside, emit_move
from .row import Row, need_constant


def _margins(node: Node) -> list[tuple[int, int]]:
    """Before and behind, of each dimension."""
    pads = np.asarray(node.op.operand(1).values)
    return [(int(before), int(after)) for before, after in pads] or [(0, 0)]


def emit_pad(w: Writer, node: Node) -> None:
    margins, source = _margins(node), node.first()

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [p - before for p, (before, _) in zip(at, margins, strict=True)]

    def filling(s: StepWriter) -> Value:
        given = node.op.input(2)
        if given is None:
            return s.k.value(0, s.reads(source).kind)
        return s.k.let(s.reads(given).one([0] * len(layout.dims(given.shape))))

    dims = [i for i, both in enumerate(margins) if any(both)]
    outside = Outside(dims, filling)
    emit_move(w, node, source, whence, margins[-1] == (0, 0), name="pad", outside=outside)


def emit_mirror_pad(w: Writer, node: Node) -> None:
    margins, extents = _margins(node), layout.dims(node.first().shape)
    repeated = 0 if str(attr(node.op, "mode")) == "REFLECT" else 1  # the edge is there twice

    def mirrored(s: StepWriter, at: Value, extent: int, before: int, after: int) -> Value:
        p = s.k.let(at - before)
        if before:
            p = s.k.let(s.k.select(p < 0, -p - repeated, p))
        if after:
            p = s.k.let(s.k.select(p >= extent, (2 * extent - 2 + repeated) - p, p))
        # Lanes beyond the last channel must not lead out of the input.
        return s.k.maximum(s.k.minimum(p, extent - 1), 0) if before or after else p

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [mirrored(s, p, n, *both) for p, n, both in zip(at, extents, margins, strict=True)]

    emit_move(w, node, node.first(), whence, margins[-1] == (0, 0), name="mirror_pad")


KERNELS = {
    "PAD": Row(emit_pad, need_constant(1)),
    "PADV2": Row(emit_pad, need_constant(1)),
    "MIRROR_PAD": Row(emit_mirror_pad, need_constant(1)),
}
