"""Rows whose places are known at run time: SCATTER_ND, REVERSE_SEQUENCE, EMBEDDING_LOOKUP of
codes."""

from __future__ import annotations

import math

import numpy as np

from .....ir import Array, DType, Op, Tensor
from .....ops.base import attr
from .....ops.gemm import block_scales, signed
from ...codegen.emit import F32, I8, I64, PTR, Emitter, Int, Type, llvm_type, vector
from ...codegen.index_checks import Indices, all_inside, index_type
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..products.dynamic_range import unfit_blocks
from ..row import Kernel
from . import gather
from .strided import copy_rows
from .views import unmovable

_INDEX = (DType.INT32, DType.INT64)
PIECE = 4096  # bytes of a row that are worth a worker


# -- scatter ------------------------------------------------------------------------------------


def emit_scatter(k: StepEmitter, op: Op) -> None:
    """Pieces of the rows are shared, so that a place's updates are added up in order."""
    index, updates, y = op.operand(0), op.operand(1), op.outputs[0]
    depth, kind, t = index.shape[-1], index_type(index), llvm_type(y.dtype.numpy)
    count, size = math.prod(index.shape[:-1]), y.dtype.bits // 8
    row, rows = math.prod(y.shape[depth:]), math.prod(y.shape[:depth])
    if 0 in y.shape:
        return
    steps = [math.prod(y.shape[j + 1 : depth]) for j in range(depth)]
    target, source, places = (k.ptr(x) for x in (y, updates, index))
    indices = Indices.of(k)
    piece = max(-(-row // 8), PIECE // size)
    pieces = -(-row // piece)
    clear = k.program.function("clear_bytes", [PTR, I64], _build_clear)
    add = k.program.function(
        f"add_to_{y.dtype.short}", [PTR, PTR, I64], lambda e: _build_add(e, t, y.dtype)
    )
    begin, end = k.share(pieces)
    with k.loop(begin, end) as unit:
        first = k.mul(unit, piece)
        length = k.min(k.sub(row, first), piece)
        with k.loop(0, rows) as i:
            to = k.add(k.mul(i, row), first)
            k.b.call(clear, [k.at(target, to, t), k.i64(k.mul(length, size))])
        with k.loop(0, count) as i:
            place: Int = 0
            for j in range(depth):
                found = indices.at(k, places, k.add(k.mul(i, depth), j), kind, y.shape[j])
                place = k.add(place, k.mul(found, steps[j]))
            to, by = k.add(k.mul(place, row), first), k.add(k.mul(i, row), first)
            k.b.call(add, [k.at(target, to, t), k.at(source, by, t), k.i64(length)])


def _build_clear(e: Emitter) -> None:
    target, size = e.args
    width = e.target.width
    whole = e.mul(e.div(size, width), width)
    with e.loop(0, whole, width) as i:
        e.store(e.const(vector(I8, width), 0), e.at(target, i, I8))
    with e.loop(whole, size) as i:
        e.store(I8(0), e.at(target, i, I8))


def _build_add(e: Emitter, t: Type, dtype: DType) -> None:
    target, source, count = e.args
    lanes = e.target.width * 8 // dtype.bits
    join = e.b.or_ if dtype is DType.BOOL else e.b.fadd if dtype.is_float else e.b.add
    whole = e.mul(e.div(count, lanes), lanes)
    for start, stop, n in ((0, whole, lanes), (whole, count, 1)):
        kind = vector(t, n) if n > 1 else t
        with e.loop(start, stop, n) as i:
            to = e.at(target, i, t)
            e.store(join(e.load(to, kind), e.load(e.at(source, i, t), kind)), to)


def refuses_scatter(op: Op, target: Target) -> str | None:
    index, updates, y = op.operand(0), op.operand(1), op.outputs[0]
    if index.dtype not in _INDEX or not index.shape or not 0 < index.shape[-1] <= len(y.shape):
        return f"indices of type {index.dtype.short}"
    depth = index.shape[-1]
    if updates.shape != (*index.shape[:-1], *y.shape[depth:]):
        return "its operands do not fit together"
    if 0 in y.shape or not all_inside(index, *y.shape[:depth]):
        return "an index is out of range"
    if updates.dtype in (DType.FLOAT16, DType.BFLOAT16) or updates.dtype is not y.dtype:
        return f"updates of type {updates.dtype.short} have no kernel"
    return unmovable(op, [updates], (2,), plain=True)


# -- reversed sequences -------------------------------------------------------------------------


def emit_reverse(k: StepEmitter, op: Op) -> None:
    """Rows behind the later of the two axes are copied, each from its place."""
    x, lengths = op.operand(0), op.operand(1)
    along, batch = int(attr(op, "seq_dim")), int(attr(op, "batch_dim"))
    low, high = sorted((along, batch))
    between, size = math.prod(x.shape[low + 1 : high]), x.shape[along]
    row = math.prod(x.shape[high + 1 :]) * x.dtype.bits // 8
    outer = math.prod(x.shape[:low])
    step = row if along == high else row * x.shape[high] * between
    target, source, counts = k.ptr(op.outputs[0]), k.ptr(x), k.ptr(lengths)
    indices, kind = Indices.of(k, "a length"), index_type(lengths)
    begin, end = k.share(outer * x.shape[low] * between)
    with k.loop(begin, end) as unit, k.loop(0, x.shape[high]) as last:
        first = k.rem(k.div(unit, between), x.shape[low])
        place, number = (last, first) if along == high else (first, last)
        count = indices.at(k, counts, number, kind, size + 1)
        turned = k.sub(k.sub(count, 1), place)
        inside = k.less(place, count)
        from_place = k.b.select(inside, k.i64(turned), k.i64(place))
        here = k.mul(k.add(k.mul(unit, x.shape[high]), last), row)
        there = k.add(here, k.mul(k.sub(from_place, place), step))
        copy_rows(k, k.at(target, here, I8), k.at(source, there, I8), 1, row, 0, 0)


def refuses_reverse(op: Op, target: Target) -> str | None:
    x, lengths = op.operand(0), op.operand(1)
    along, batch = int(attr(op, "seq_dim")), int(attr(op, "batch_dim"))
    rank = len(x.shape)
    if not (0 <= along < rank and 0 <= batch < rank and along != batch) or 0 in x.shape:
        return "its operands do not fit together"
    if lengths.dtype not in _INDEX or math.prod(lengths.shape) != x.shape[batch]:
        return "its operands do not fit together"
    if not all_inside(lengths, x.shape[along] + 1):
        return "a length is out of range"
    return unmovable(op, [x], ())


# -- codes to floats ----------------------------------------------------------------------------


def emit_embedding(k: StepEmitter, op: Op) -> None:
    index, table, y = op.operand(0), op.operand(1), op.outputs[0]
    if table.dtype is y.dtype:
        gather.emit_embedding(k, op)
        return
    rows, size, steps = table.shape[0], math.prod(table.shape[1:]), _scales(op, table)
    blocks = steps.shape[1]
    codes, scales = k.constant(signed(table.values)), k.constant(steps)
    target, places = k.ptr(y), k.ptr(index)
    function = k.program.function("row_from_i8", [PTR, PTR, F32, I64], _build_row)
    indices, kind = Indices.of(k), index_type(index)
    begin, end = k.share(math.prod(index.shape))
    with k.loop(begin, end) as i:
        row = indices.at(k, places, i, kind, rows)
        with k.loop(0, blocks) as block:
            here, there = (k.add(k.mul(n, blocks), block) for n in (i, row))
            k.b.call(
                function,
                [
                    k.at(target, k.mul(here, size // blocks), F32),
                    k.at(codes, k.mul(there, size // blocks), I8),
                    k.load(k.at(scales, there, F32), F32, 4),
                    I64(size // blocks),
                ],
            )


def _scales(op: Op, table: Tensor) -> Array:
    """The scale of each row, or of each of its blocks: [rows, blocks]."""
    held = table.quantisation
    if held.block is not None:
        return block_scales(op, held.block, table.values)
    each = held.scale.astype(np.float32).reshape(-1, 1)
    return np.broadcast_to(each, (table.shape[0], 1))


def _build_row(e: Emitter) -> None:
    """(to, by, scale, count): codes times scale."""
    target, source, scale, count = e.args
    whole = e.mul(e.div(count, e.target.lanes), e.target.lanes)
    for start, stop, n in ((0, whole, e.target.lanes), (whole, count, 1)):
        kinds = [vector(t, n) if n > 1 else t for t in (I8, F32)]
        factor = e.splat(scale, n) if n > 1 else scale
        with e.loop(start, stop, n) as i:
            real = e.b.sitofp(e.load(e.at(source, i, I8), kinds[0]), kinds[1])
            e.store(e.b.fmul(real, factor), e.at(target, i, F32))


_CODES = (DType.INT8, DType.UINT8, DType.INT4, DType.INT2)


def refuses_embedding(op: Op, target: Target) -> str | None:
    index, table, y = op.operand(0), op.operand(1), op.outputs[0]
    if table.dtype is y.dtype:
        return gather.refuses_embedding(op, target)
    quant = table.quant
    if table.data is None or table.dtype not in _CODES or y.dtype is not DType.FLOAT32:
        return f"a table of {table.dtype.short} for {y.dtype.short} has no kernel"
    if quant is None or np.any(quant.zero_point):
        return "a table with zero points"
    scaled = quant.block is not None or quant.scale.size in (1, table.shape[0])
    if not scaled or index.dtype not in _INDEX or 0 in table.shape:
        return "its operands do not fit together"
    if quant.block is not None and (reason := unfit_blocks(op, quant.block, table.data)):
        return reason
    return None if all_inside(index, table.shape[0]) else "an index is out of range"


KERNELS = {
    "SCATTER_ND": Kernel(emit_scatter, refuses_scatter, plain_codes=True),
    "REVERSE_SEQUENCE": Kernel(emit_reverse, refuses_reverse),
    "EMBEDDING_LOOKUP": Kernel(emit_embedding, refuses_embedding, weights=(1,)),
}
