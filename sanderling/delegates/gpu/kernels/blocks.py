"""Blocks that move between space, depth and batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....ops.base import attr, ints
from ..language import Value
from ..steps import Node, StepWriter, Writer
from .moves import Outside, emit_move
from .row import Row, need_constant


def _unit(channels: int) -> int:
    """Elements that are moved together."""
    return 4 if channels % 4 == 0 else 1


def emit_space_to_depth(w: Writer, node: Node) -> None:
    block, channels = int(attr(node.op, "block_size")), node.first().shape[-1]
    unit = _unit(channels)
    depth = channels // unit

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        image, y, x, last = at
        place = s.k.let(last // depth)
        return [image, y * block + place // block, x * block + place % block, last % depth]

    emit_move(w, node, node.first(), whence, unit == 4, name="space_to_depth")


def emit_depth_to_space(w: Writer, node: Node) -> None:
    block, channels = int(attr(node.op, "block_size")), node.output.shape[-1]
    unit = _unit(channels)
    depth = channels // unit

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        image, y, x, last = at
        place = (y % block) * block + x % block
        return [image, y // block, x // block, place * depth + last]

    emit_move(w, node, node.first(), whence, unit == 4, name="depth_to_space")


def emit_space_to_batch(w: Writer, node: Node) -> None:
    blocks, margins = (ints(node.op.operand(i).values) for i in (1, 2))
    source, count = node.first(), len(blocks)
    batch = source.shape[0]

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        inner = s.places(s.k.let(at[0] // batch), blocks)
        spread = [
            p * b + i - before
            for p, b, i, before in zip(at[1 : 1 + count], blocks, inner, margins[::2], strict=True)
        ]
        return [at[0] % batch, *spread, *at[1 + count :]]

    vectors = len(source.shape) > 1 + count
    dims = [1 + i for i in range(count) if any(margins[2 * i : 2 * i + 2])]
    outside = Outside(dims, lambda s: s.k.value(0, s.reads(source).kind))
    emit_move(w, node, source, whence, vectors, name="space_to_batch", outside=outside)


def emit_batch_to_space(w: Writer, node: Node) -> None:
    blocks, crops = (ints(node.op.operand(i).values) for i in (1, 2))
    source, count = node.first(), len(blocks)
    batch = source.shape[0] // prod(blocks)

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        whole = [s.k.let(p + crop) for p, crop in zip(at[1 : 1 + count], crops[::2], strict=True)]
        place = s.k.value(0)
        for p, block in zip(whole, blocks, strict=True):
            place = place * block + p % block
        spread = [p // block for p, block in zip(whole, blocks, strict=True)]
        return [place * batch + at[0], *spread, *at[1 + count :]]

    emit_move(w, node, source, whence, len(source.shape) > 1 + count, name="batch_to_space")


KERNELS = {
    "SPACE_TO_DEPTH": Row(emit_space_to_depth),
    "DEPTH_TO_SPACE": Row(emit_depth_to_space),
    "SPACE_TO_BATCH_ND": Row(emit_space_to_batch, need_constant(1, 2)),
    "BATCH_TO_SPACE_ND": Row(emit_batch_to_space, need_constant(1, 2)),
}
