"""Elements chosen by index: gather, embedding lookup, one-hot, dynamic update."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from .....ir import Array, DType, Op, Tensor
from .....ops.base import attr
from ...codegen.emit import I8, I32, I64, PTR, Emitter, Int, Type, Value
from ...codegen.index_checks import ARGS as INDICES
from ...codegen.index_checks import TYPES as _INDEX
from ...codegen.index_checks import Indices, all_inside, index_type
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel
from .strided import (
    UNITS,
    UNROLLED,
    Dim,
    addresses,
    collapse,
    copy_rows,
    copy_run,
    move,
    raw_type,
    splat_function,
)
from .views import unmovable


def _size(tensor: Tensor) -> int:
    return tensor.dtype.bits // 8


def _clamped(e: Emitter, value: Value, last: Int) -> Value:
    """As the definition of the dynamic update has it."""
    wide = value if value.type == I64 else e.b.sext(value, I64)
    return e.max(e.min(wide, last), 0)


# -- rows by number ---------------------------------------------------------------------------


def gather_rows(
    k: StepEmitter,
    to: Value,
    by: Value,
    index: Value,
    kind: Type,
    count: Int,
    most: int,
    size: int,
    stride: int,
    to_stride: int = 0,
) -> None:
    """Row i of the target is row index[i], one of `most`, of the source: `size` bytes, `stride`
    bytes apart; the target's are `to_stride` bytes apart, if that is not their size."""
    known = size <= UNROLLED
    name = f"gather_b{size}_{kind}" if known else f"gather_{kind}"

    def build(e: Emitter) -> None:
        target, source, places, context, number, n, rows, step, to_step, *told = e.args
        length = size if known else told[0]
        theirs = Indices(k.program, context, number)
        with e.loop(0, n) as i:
            place = theirs.at(e, places, i, kind, rows)
            copy_run(
                e, e.at(target, e.mul(i, to_step), I8), e.at(source, e.mul(place, step), I8), length
            )

    args = [PTR, PTR, PTR, *INDICES, I64, I64, I64, I64] + [I64] * (not known)
    more = [I64(to_stride or size)] + ([] if known else [I64(size)])
    function = k.program.function(name, args, build)
    k.b.call(
        function, [to, by, index, *Indices.of(k).args, k.i64(count), I64(most), I64(stride), *more]
    )


def _lookup(
    k: StepEmitter,
    y: Tensor,
    table: Tensor,
    index: Tensor,
    batches: int,
    outer: int,
    size: int,
    inner: int,
) -> None:
    """target[b, o, i] = table[b, o, index[b, i]], with rows of `inner` bytes."""
    count = math.prod(index.shape) // batches
    if count == 0 or inner == 0:
        return
    kind = index_type(index)
    target, source, places = k.ptr(y), k.ptr(table), k.ptr(index)
    pieces = min(math.ceil(UNITS / (batches * outer)), count)
    length = math.ceil(count / pieces)
    pieces = math.ceil(count / length)
    begin, end = k.share(batches * outer * pieces)
    with k.loop(begin, end) as unit:
        first = k.min(k.mul(k.rem(unit, pieces), length), count - length)
        row = k.div(unit, pieces)
        to = k.mul(k.add(k.mul(row, count), first), inner)
        at = k.add(k.mul(k.div(row, outer), count), first)
        gather_rows(
            k,
            k.at(target, to, I8),
            k.at(source, k.mul(row, size * inner), I8),
            k.at(places, at, kind),
            kind,
            length,
            size,
            inner,
            inner,
        )


def _gather_sizes(op: Op) -> tuple[int, int, int, int]:
    """batches, outer, size of the axis, bytes of a row."""
    x, index = op.operand(0), op.operand(1)
    axis, batch = int(attr(op, "axis")), int(attr(op, "batch_dims"))
    axis += len(x.shape) * (axis < 0)
    batch += len(index.shape) * (batch < 0)
    outer = math.prod(x.shape[batch:axis])
    return (
        math.prod(x.shape[:batch]),
        outer,
        x.shape[axis],
        math.prod(x.shape[axis + 1 :]) * _size(x),
    )


def emit_gather(k: StepEmitter, op: Op) -> None:
    x, index, y = op.operand(0), op.operand(1), op.outputs[0]
    batches, outer, size, inner = _gather_sizes(op)
    even = _even(index.data) if batches == 1 and index.is_constant else None
    if even is None:
        _lookup(k, y, x, index, batches, outer, size, inner)
        return
    # Evenly spaced constant indices are a slice.
    items = inner // _size(x)
    taken = addresses(x, (outer, size, items))[:, even]
    move(k, k.ptr(y), addresses(y, taken.shape), k.ptr(x), taken)


def _even(index: Array | None) -> slice | None:
    """The slice that takes these indices."""
    places = [] if index is None else index.reshape(-1).tolist()
    steps = {b - a for a, b in itertools.pairwise(places)}
    if not places or len(steps) > 1 or steps == {0}:
        return None
    step = steps.pop() if steps else 1
    stop = places[-1] + (1 if step > 0 else -1)
    return slice(places[0], None if stop < 0 else stop, step)


def refuses_gather(op: Op, target: Target) -> str | None:
    x, index = op.operand(0), op.operand(1)
    if index.dtype not in _INDEX:
        return f"indices of type {index.dtype.short}"
    if 0 in x.shape:
        return "an empty table"
    if not all_inside(index, _gather_sizes(op)[2]):
        return "an index is out of range"
    return unmovable(op, [x], ())


def emit_embedding(k: StepEmitter, op: Op) -> None:
    index, table = op.operand(0), op.operand(1)
    inner = math.prod(table.shape[1:]) * _size(table)
    _lookup(k, op.outputs[0], table, index, 1, 1, table.shape[0], inner)


def refuses_embedding(op: Op, target: Target) -> str | None:
    index, table = op.operand(0), op.operand(1)
    if table.dtype is not op.outputs[0].dtype:
        return "a quantised table"
    if table.dtype.bits == 8:
        return "a table of bytes"
    if index.dtype not in _INDEX or 0 in table.shape:
        return "an empty table, or indices of an unusual type"
    if not all_inside(index, table.shape[0]):
        return "an index is out of range"
    return unmovable(op, [table], ())


def emit_gather_nd(k: StepEmitter, op: Op) -> None:
    """The last axis of the indices holds coordinates."""
    x, index, y = op.operand(0), op.operand(1), op.outputs[0]
    depth, kind = index.shape[-1], index_type(index)
    count = math.prod(index.shape[:-1])
    size = math.prod(x.shape[depth:]) * _size(x)
    steps = [math.prod(x.shape[j + 1 : depth]) * size for j in range(depth)]
    if count == 0 or size == 0:
        return
    target, source, places = k.ptr(y), k.ptr(x), k.ptr(index)
    indices = Indices.of(k)
    begin, end = k.share(count)
    with k.loop(begin, end) as i:
        by: Int = 0
        for j in range(depth):
            place = indices.at(k, places, k.add(k.mul(i, depth), j), kind, x.shape[j])
            by = k.add(by, k.mul(place, steps[j]))
        copy_rows(k, k.at(target, k.mul(i, size), I8), k.at(source, by, I8), 1, size, 0, 0)


def refuses_gather_nd(op: Op, target: Target) -> str | None:
    x, index = op.operand(0), op.operand(1)
    if index.dtype not in _INDEX:
        return f"indices of type {index.dtype.short}"
    if 0 in x.shape or index.shape[-1] == 0:
        return "an empty table, or indices without coordinates"
    if not all_inside(index, *x.shape[: index.shape[-1]]):
        return "an index is out of range"
    return unmovable(op, [x], ())


# -- one-hot ----------------------------------------------------------------------------------


def _one_hot_sizes(op: Op) -> tuple[int, int, int]:
    """Before the new axis, the axis, behind it."""
    shape = op.outputs[0].shape
    axis = int(attr(op, "axis")) % len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def emit_one_hot(k: StepEmitter, op: Op) -> None:
    index, y = op.operand(0), op.outputs[0]
    before, depth, behind = _one_hot_sizes(op)
    if 0 in y.shape:
        return
    size, kind, t = _size(y), index_type(index), raw_type(_size(y))
    target, places = k.ptr(y), k.ptr(index)
    hot, off = k.load(k.ptr(op.operand(2)), t), k.ptr(op.operand(3))
    fill, row = splat_function(k, size), depth * behind * size
    begin, end = k.share(before)
    with k.loop(begin, end) as i:
        to = k.at(target, k.mul(i, row), I8)
        k.b.call(fill, [to, off, I64(1), I64(row), I64(0), I64(0)])
        with k.loop(0, behind) as j:
            # The definition compares in int32.
            place = k.load(k.at(places, k.add(k.mul(i, behind), j), kind), kind)
            place = k.b.trunc(place, I32) if kind == I64 else place
            wide = k.b.sext(place, I64)
            with k.when(k.b.icmp_unsigned("<", wide, I64(depth))):
                k.store(hot, k.at(to, k.mul(k.add(k.mul(wide, behind), j), size), I8))


def refuses_one_hot(op: Op, target: Target) -> str | None:
    if op.operand(0).dtype not in (DType.INT32, DType.INT64):
        return f"indices of type {op.operand(0).dtype.short}"
    return unmovable(op, [op.operand(2), op.operand(3)], (1,), plain=True)


# -- dynamic update ---------------------------------------------------------------------------


def emit_update(k: StepEmitter, op: Op) -> None:
    """Rows of the outermost axis are shared: a worker copies its own, then updates them."""
    x, update, start, y = op.operand(0), op.operand(1), op.operand(2), op.outputs[0]
    if 0 in y.shape:
        return
    axis = next((i for i, n in enumerate(x.shape) if n > 1), 0)
    row = x.nbytes // x.shape[axis] if x.shape else x.nbytes
    target, source, new, starts = (k.ptr(t) for t in (y, x, update, start))
    kind = index_type(start)
    box = addresses(y)[tuple(slice(0, n) for n in update.shape)]
    offset: Int = 0
    first: Int = 0
    for i, (n, u) in enumerate(zip(x.shape, update.shape, strict=True)):
        at = _clamped(k, k.load(k.at(starts, i, kind), kind), n - u)
        first = at if i == axis else first
        offset = offset if i == axis else k.add(offset, k.mul(at, box.strides[i]))
    begin, end = k.share(x.shape[axis] if x.shape else 1)
    if k.program.places.get(x) != k.program.places.get(y):
        with k.loop(begin, end) as i:
            place = k.mul(i, row)
            copy_rows(k, k.at(target, place, I8), k.at(source, place, I8), 1, row, 0, 0)
    if update.nbytes == 0:
        return
    height = update.shape[axis] if x.shape else 1
    traversal = collapse(_one(box, axis), _one(addresses(update), axis))
    with k.loop(k.max(begin, first), k.min(end, k.add(first, height))) as i:
        to = k.at(target, k.add(k.mul(i, row), offset), I8)
        by = k.at(new, k.mul(k.sub(i, first), update.nbytes // height), I8)
        _boxes(k, to, by, traversal.dims, traversal.run)


def _one(view: Array, axis: int) -> Array:
    return view[(*[slice(None)] * axis, slice(0, 1))] if view.ndim else view


def _boxes(k: StepEmitter, to: Value, by: Value, dims: Sequence[Dim], run: int) -> None:
    """The loops around rows of contiguous bytes, all on this worker."""
    if not dims:
        copy_rows(k, to, by, 1, run, 0, 0)
        return
    dim, *rest = dims
    with k.loop(0, dim.size) as i:
        _boxes(k, k.at(to, k.mul(i, dim.to), I8), k.at(by, k.mul(i, dim.by), I8), rest, run)


def refuses_update(op: Op, target: Target) -> str | None:
    x, update, start = op.operand(0), op.operand(1), op.operand(2)
    fits = len(x.shape) == len(update.shape) == math.prod(start.shape) and all(
        u <= n for u, n in zip(update.shape, x.shape, strict=True)
    )
    if not fits or start.dtype not in _INDEX:
        return "the update does not fit"
    return unmovable(op, [x, update], ())


KERNELS = {
    "GATHER": Kernel(emit_gather, refuses_gather),
    "GATHER_ND": Kernel(emit_gather_nd, refuses_gather_nd),
    "ONE_HOT": Kernel(emit_one_hot, refuses_one_hot, plain_codes=True),
    "DYNAMIC_UPDATE_SLICE": Kernel(
        emit_update, refuses_update, overwrites=lambda op: [op.operand(0)]
    ),
}
