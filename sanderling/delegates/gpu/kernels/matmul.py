"""Products of two matrices of which none is known before a run, or which come in batches."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ....ir import DType, Op, Tensor
from ....ops.base import attr
from ..language import Value
from ..steps import Node, StepWriter, View, Writer
from .moves import CoordinateMap, emit_move
from .products import Product, Weights, add_lines, block_of, emit_product
from .row import Row
from .tiles import choose_tile


def emit_batch_matmul(w: Writer, node: Node) -> None:
    op = node.op
    left, right = node.first(), op.operand(1)
    if attr(op, "adj_x"):
        left = _transposed(w, node, left)
    if right.is_constant and prod(right.shape[:-2]) == 1:
        columns = np.asarray(right.values, np.float32).reshape(right.shape[-2:])
        rows = columns if attr(op, "adj_y") else columns.T
        emit_product(w, node, left, np.ascontiguousarray(rows), None, prod(left.shape[:-1]))
        return
    if attr(op, "adj_y"):
        right = _transposed(w, node, right)
    _emit_batches(w, node, left, right)


def _transposed(w: Writer, node: Node, source: Tensor) -> Tensor:
    """With the last two dimensions in the other order."""
    *outer, rows, columns = source.shape
    made = w.temporary(f"{source.name}/transposed", (*outer, columns, rows))
    order = [*range(len(outer)), len(outer) + 1, len(outer)]
    dims = [CoordinateMap(0, tuple(int(axis == i) for i in order)) for axis in range(len(order))]

    def whence(s: StepWriter, at: Sequence[Value]) -> Sequence[Value]:
        return [each.at(s, at) for each in dims]

    emit_move(w, Node(node.op, [made]), source, whence, False, name="transpose")
    return made


def _emit_batches(w: Writer, node: Node, left: Tensor, right: Tensor) -> None:
    *batch, rows, columns = node.output.shape
    depth = left.shape[-1]
    tile = choose_tile(w.device, rows, columns, depth)
    with w.kernel("batch_matmul", node) as s:
        k = s.k
        x, y, result = s.reads(left), s.reads(right), s.result()
        column, block, number = k.grid(
            result.slices // tile.slices, -(-rows // tile.rows), prod(batch)
        )
        at, first = s.places(number, batch), k.let(column * tile.slices, "s")
        product = Product(s, tile, first, None)
        point, own = block_of(s, block, tile.rows, rows)
        before = k.let(_matrix(s, x, at) * (rows * x.slices))
        add_lines(s, product, x, _rows_of(s, y, at, first), point, before)
        s.macs = prod(batch) * rows * columns * depth
        product.put(lambda m: [*at, point + m], own)


def _matrix(s: StepWriter, view: View, at: Sequence[Value]) -> Value:
    """The number of an operand's matrix for a batch of the result; matrices are repeated as NumPy
    has it."""
    found = s.k.value(0)
    outer = view.shape[:-2]
    for place, extent in zip(at[len(at) - len(outer) :], outer, strict=True):
        found = found * extent + (0 if extent == 1 else place)
    return found


def _rows_of(s: StepWriter, y: View, at: Sequence[Value], first: Value) -> Weights:
    """The right matrix lies as weights do: a row of columns for each element of the left one."""
    base = s.k.let(_matrix(s, y, at) * (y.shape[-2] * y.slices) + first, "o")
    return lambda row, slice_, lanes: y.load(base + row * y.slices + slice_, lanes)


def _refuses(op: Op) -> str | None:
    if any(len(op.operand(i).shape) < 2 for i in (0, 1)):
        return "an operand is no matrix"
    return "sums of whole numbers have no kernel" if op.outputs[0].dtype is DType.INT32 else None


KERNELS = {"BATCH_MATMUL": Row(emit_batch_matmul, _refuses)}
