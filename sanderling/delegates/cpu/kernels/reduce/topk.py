"""The k largest elements of rows, in order.

A few are kept in a sorted list, which few elements enter. More are selected: elements become 32-bit
keys of the same order; bit by bit the k-th largest key is found by counting, which is what vectors
do well; then the k elements at or above it are collected with their places and sorted.
"""

from __future__ import annotations

import math

from .....ir import DType, Op
from ...codegen.emit import I1, I32, I64, PTR, Emitter, Int, Type, Value, llvm_type, suffix, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..move.views import unmovable, values
from ..row import Kernel

_INDEX = (DType.INT16, DType.INT32, DType.INT64)
FEW = 8  # so many are kept in a list
BLOCK = 64  # elements that are sorted by counting; larger blocks are merged


def emit_topk(k: StepEmitter, op: Op) -> None:
    x, (y, where) = op.operand(0), op.outputs
    n, most = x.shape[-1], y.shape[-1]
    rows = math.prod(x.shape[:-1])
    if rows == 0 or most == 0:
        return
    t, kind = llvm_type(x.dtype.numpy), llvm_type(where.dtype.numpy)
    source, target, places = k.ptr(x), k.ptr(y), k.ptr(where)
    listed = most <= FEW or x.dtype is DType.INT64
    function = (_list_function if listed else _select_function)(k, x.dtype, t, kind)
    padded = -(-n // k.target.lanes) * k.target.lanes
    blocks = -(-most // BLOCK)
    work = places if listed else k.scratch(4 * padded + 2 * 8 * (blocks + 1) * BLOCK)
    more = [] if listed else [work, I64((blocks - 1).bit_length())]
    begin, end = k.share(rows)
    with k.loop(begin, end) as row:
        k.b.call(
            function,
            [
                k.at(target, k.mul(row, most), t),
                k.at(places, k.mul(row, most), kind),
                k.at(source, k.mul(row, n), t),
                I64(n),
                I64(most),
                *more,
            ],
        )


# -- a list -----------------------------------------------------------------------------------


def _list_function(k: StepEmitter, dtype: DType, t: Type, kind: Type) -> Value:
    def less(e: Emitter, a: Value, b: Value) -> Value:
        """NaN is larger than all, as in NumPy's order."""
        if dtype is DType.FLOAT32:
            return e.b.and_(e.b.not_(e.b.fcmp_ordered(">=", a, b)), e.b.fcmp_ordered("ord", a, a))
        compare = e.b.icmp_unsigned if dtype is DType.UINT8 else e.b.icmp_signed
        return compare("<", a, b)

    def build(e: Emitter) -> None:
        best, where, source, n, most = e.args
        end = e.b.sub(most, I64(1))
        with e.loop(0, n) as i:
            value = e.load(e.at(source, i, t), t)
            place = e.min(i, end)
            filling = e.b.icmp_signed("<", i, most)
            # Before the list is full its last cell holds nothing yet.
            last = e.load(e.at(best, e.b.select(filling, I64(0), end), t), t)
            with e.when(e.b.or_(filling, less(e, last, value))):
                _insert(e, best, where, place, value, i)

    def _insert(
        e: Emitter, best: Value, where: Value, place: Value, value: Value, i: Value
    ) -> None:
        head, look, shift, done = (
            e.function.append_basic_block(b) for b in ("head", "look", "shift", "done")
        )
        entry = e.b.block
        e.b.branch(head)
        e.b.position_at_end(head)
        j = e.b.phi(I64)
        j.add_incoming(place, entry)
        e.b.cbranch(e.b.icmp_signed(">", j, I64(0)), look, done)
        e.b.position_at_end(look)
        above = e.b.sub(j, I64(1))
        other = e.load(e.at(best, above, t), t)
        e.b.cbranch(less(e, other, value), shift, done)
        e.b.position_at_end(shift)
        e.store(other, e.at(best, j, t))
        e.store(e.load(e.at(where, above, kind), kind), e.at(where, j, kind))
        j.add_incoming(above, shift)
        e.b.branch(head)
        e.b.position_at_end(done)
        e.store(value, e.at(best, j, t))
        e.store(e.b.trunc(i, kind) if kind != I64 else i, e.at(where, j, kind))

    name = f"topk_{dtype.short}_{kind}"
    return k.program.function(name, [PTR, PTR, PTR, I64, I64], build)


# -- selection --------------------------------------------------------------------------------


def _select_function(k: StepEmitter, dtype: DType, t: Type, kind: Type) -> Value:
    """(values, places, source, n, k, work, how often the number of sorted blocks is halved)."""

    def build(e: Emitter) -> None:
        best, where, source, n, most, work, levels = e.args
        lanes = e.target.lanes
        vectors = e.b.udiv(e.add(n, lanes - 1), I64(lanes))
        keys, cells = work, e.at(work, e.mul(vectors, lanes), I32)
        _write_keys(e, dtype, source, keys, n, vectors)
        least = _kth(e, keys, vectors, most)
        _collect(e, keys, n, vectors, least, most, cells)
        done = _sort(e, cells, most, levels)
        with e.loop(0, most) as i:
            low = e.b.trunc(e.load(e.at(done, i, I64), I64), I32)
            index = e.b.zext(e.b.not_(low), I64)
            e.store(e.load(e.at(source, index, t), t), e.at(best, i, t))
            e.store(e.b.trunc(index, kind) if kind != I64 else index, e.at(where, i, kind))

    name = f"topk_select_{dtype.short}_{kind}"
    return k.program.function(name, [PTR, PTR, PTR, I64, I64, PTR, I64], build)


def _write_keys(
    e: Emitter, dtype: DType, source: Value, keys: Value, n: Value, vectors: Value
) -> None:
    """The elements as integers of their order; behind them the smallest there is."""
    t, lanes = llvm_type(dtype.numpy), e.target.lanes
    smallest = e.const(vector(I32, lanes), -(1 << 31))
    last = e.b.mul(e.b.sub(vectors, I64(1)), I64(lanes))
    e.store(smallest, e.at(keys, last, I32))
    whole = e.b.sub(n, e.b.urem(n, I64(lanes)))
    with e.loop(0, whole, lanes) as i:
        e.store(_key(e, dtype, e.load(e.at(source, i, t), vector(t, lanes))), e.at(keys, i, I32))
    with e.loop(whole, n) as i:
        e.store(_key(e, dtype, e.load(e.at(source, i, t), t)), e.at(keys, i, I32))


def _key(e: Emitter, dtype: DType, x: Value) -> Value:
    """NaN is larger than all, as in NumPy's order; both zeros are one."""
    t = I32 if not hasattr(x.type, "count") else vector(I32, x.type.count)
    if dtype is not DType.FLOAT32:
        if dtype.bits == 32:
            return x
        return e.b.zext(x, t) if dtype is DType.UINT8 else e.b.sext(x, t)
    bits = e.b.bitcast(x, t)
    flip = e.b.and_(e.b.ashr(bits, e.const(t, 31)), e.const(t, 0x7FFFFFFF))
    key = e.b.xor(bits, flip)
    key = e.b.select(e.b.icmp_signed("==", bits, e.const(t, -(1 << 31))), e.const(t, 0), key)
    return e.b.select(e.b.fcmp_unordered("uno", x, x), e.const(t, 0x7FFFFFFF), key)


def _kth(e: Emitter, keys: Value, vectors: Value, most: Value) -> Value:
    """The largest key that at least `most` keys reach, or any that exactly as many do."""
    with e.loop(0, 32, carry=[I32(0), I1(0)]) as (bit, (found, exact)):
        place = e.b.lshr(I32(-(1 << 31)), e.b.trunc(bit, I32))
        tried = e.b.or_(found, place)
        key = e.b.xor(tried, I32(-(1 << 31)))
        count = _count(e, keys, e.b.select(exact, I64(0), vectors), key)
        enough = e.b.icmp_signed(">=", count, most)
        e.carry(
            [e.b.select(enough, tried, found), e.b.or_(exact, e.b.icmp_signed("==", count, most))]
        )
    return e.b.xor(e.carried[0], I32(-(1 << 31)))


def _count(e: Emitter, keys: Value, vectors: Value, key: Value) -> Value:
    """How many keys are at least this."""
    lanes = e.target.lanes
    t, least = vector(I32, lanes), e.splat(key, lanes)
    zero = e.const(t, 0)

    def add(total: Value, i: Int) -> Value:
        here = e.load(e.at(keys, e.mul(i, lanes), I32), t)
        return e.b.sub(total, e.b.sext(e.b.icmp_signed(">=", here, least), t))

    with e.loop(0, e.sub(vectors, 3), 4, carry=[zero] * 4) as (i, totals):
        e.carry([add(total, e.add(i, u)) for u, total in enumerate(totals)])
    a, b, c, d = e.carried
    with e.loop(i, vectors, carry=[e.b.add(e.b.add(a, b), e.b.add(c, d))]) as (j, (total,)):
        e.carry([add(total, j)])
    whole = e.call(f"llvm.vector.reduce.add.{suffix(t)}", I32, e.carried[0])
    return e.b.zext(whole, I64)


def _collect(
    e: Emitter, keys: Value, n: Value, vectors: Value, least: Value, most: Value, cells: Value
) -> None:
    """Keys above the least, and of those that equal it the first, each with its place: the lower
    half of a cell is larger for an earlier one."""
    lanes = e.target.lanes
    t, bound = vector(I32, lanes), e.splat(least, lanes)
    over = _count(e, keys, vectors, e.b.add(least, I32(1)))
    # Above the largest key there is none, and adding 1 to it has made the smallest.
    over = e.b.select(e.b.icmp_signed("==", least, I32(0x7FFFFFFF)), I64(0), over)
    with e.loop(0, vectors, carry=[I64(0), e.sub(most, over)]) as (i, (count, ties)):
        first = e.mul(i, lanes)
        here = e.b.icmp_signed(">=", e.load(e.at(keys, first, I32), t), bound)
        some = e.any(here)
        end = e.b.select(some, e.min(e.add(first, lanes), n), first)
        with e.loop(first, end, carry=[count, ties]) as (j, (filled, left)):
            key = e.load(e.at(keys, j, I32), I32)
            low = e.b.zext(e.b.not_(e.b.trunc(j, I32)), I64)
            cell = e.b.or_(e.b.shl(e.b.sext(key, I64), I64(32)), low)
            e.store(cell, e.at(cells, filled, I64))
            same = e.b.and_(e.b.icmp_signed("==", key, least), e.b.icmp_signed(">", left, I64(0)))
            taken = e.b.or_(same, e.b.icmp_signed(">", key, least))
            e.carry([e.b.add(filled, e.b.zext(taken, I64)), e.b.sub(left, e.b.zext(same, I64))])
        e.carry(e.carried)
    # The rest of the last block is smaller than all, and no two are the same.
    with e.loop(0, BLOCK) as i:
        e.store(e.b.add(I64(-(1 << 63)), i), e.at(cells, e.add(most, i), I64))


def _sort(e: Emitter, cells: Value, most: Value, levels: Value) -> Value:
    """Blocks by counting, from the cells to behind them; then pairs of blocks merge, to and fro."""
    blocks = e.b.udiv(e.add(most, BLOCK - 1), I64(BLOCK))
    size = e.mul(blocks, BLOCK)
    other = e.at(cells, e.add(size, BLOCK), I64)
    with e.loop(0, size, BLOCK) as first:
        _sort_block(e, e.at(cells, first, I64), e.at(other, first, I64))
    with e.loop(0, levels, carry=[other, cells, I64(BLOCK)]) as (_, (source, target, run)):
        twice = e.b.shl(run, I64(1))
        with e.loop(0, e.b.udiv(e.b.sub(e.b.add(size, twice), I64(1)), twice)) as pair:
            first = e.b.mul(pair, twice)
            middle = e.min(e.b.add(first, run), size)
            end = e.min(e.b.add(first, twice), size)
            _merge(e, source, target, first, middle, end)
        e.carry([target, source, twice])
    return e.carried[0]


def _sort_block(e: Emitter, source: Value, target: Value) -> None:
    """A cell's place is the number of larger ones: no two are the same."""
    lanes = e.target.width // 8
    t = vector(I64, lanes)
    with e.loop(0, BLOCK) as i:
        cell = e.load(e.at(source, i, I64), I64)
        value, total = e.splat(cell, lanes), e.const(t, 0)
        with e.loop(0, BLOCK, 4 * lanes, carry=[total] * 4) as (j, totals):
            here = [e.load(e.at(source, e.add(j, u * lanes), I64), t) for u in range(4)]
            larger = [e.b.icmp_signed(">", x, value) for x in here]
            e.carry([e.b.sub(n, e.b.sext(m, t)) for n, m in zip(totals, larger, strict=True)])
        a, b, c, d = e.carried
        total = e.b.add(e.b.add(a, b), e.b.add(c, d))
        rank = e.call(f"llvm.vector.reduce.add.{suffix(t)}", I64, total)
        e.store(cell, e.at(target, rank, I64))


def _merge(
    e: Emitter, source: Value, target: Value, first: Value, middle: Value, end: Value
) -> None:
    """Two descending runs become one. Either may be at its end: then the other's turn it is."""
    with e.loop(first, end, carry=[first, middle]) as (place, (i, j)):
        a = e.load(e.at(source, e.min(i, e.b.sub(middle, I64(1))), I64), I64)
        b = e.load(e.at(source, e.min(j, e.b.sub(end, I64(1))), I64), I64)
        larger = e.b.or_(e.b.icmp_signed(">=", a, b), e.b.icmp_signed(">=", j, end))
        left = e.b.and_(larger, e.b.icmp_signed("<", i, middle))
        e.store(e.b.select(left, a, b), e.at(target, place, I64))
        step = e.b.zext(left, I64)
        e.carry([e.b.add(i, step), e.b.add(j, e.b.sub(I64(1), step))])


def refuses_topk(op: Op, target: Target) -> str | None:
    x, where = op.operand(0), op.outputs[1]
    if x.dtype.short not in ("f32", "u8", "i8", "i16", "i32", "i64"):
        return f"elements of type {x.dtype.short}"
    if where.dtype not in _INDEX or not op.operand(1).is_constant:
        return "k is known at run time only"
    if op.outputs[0].shape[-1:] != (max(values(op, 1)[0], 0),):
        return "the outputs do not have k elements"
    moved = Op(op.name, op.inputs, op.outputs[:1])
    return unmovable(moved, [x], ())


KERNELS = {"TOPK_V2": Kernel(emit_topk, refuses_topk)}
