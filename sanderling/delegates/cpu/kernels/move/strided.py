"""The strided copy: any rearrangement of elements that strides can tell.

A movement is a pair of NumPy views of equal shape, one of the target, one of the source, made of
arrays whose memory is never touched (`addresses`). `move` merges dimensions, finds the longest
runs of bytes that are contiguous on both sides, and walks the rest with one of a few shared
functions:

    copy_b<n>, copy        rows of n bytes (n known, or told)
    splat_e<n>             rows of one repeated element of n bytes
    transpose_e<n>_<a>x<b> two dimensions exchanged, in registers, tile by tile
    zip_e<n>x<m>, unzip_.. m streams of elements joined or parted
    reverse_e<n>x<m>       rows backwards
    each_e<n>              element by element, whatever the strides

Units of work are shared between the workers. The last unit of a dimension begins earlier instead of
being smaller: it writes some bytes twice, the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import llvmlite.ir as ir
import numpy as np

from .....ir import Array, Tensor
from ...codegen.emit import I8, I64, PTR, Emitter, Int, Type, Value, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target

UNROLLED = 512  # rows up to this many bytes get a function of their own
PIECE = 16384  # longer rows are cut, so that workers share them
UNITS = 16  # enough units for the workers to share fairly
SMALL = 4096  # bytes below which a unit is not worth cutting
LINE = 64  # bytes of a cache line
LANE = 16  # bytes of the blocks within which x86 and NEON interleave


# -- views ------------------------------------------------------------------------------------


def addresses(tensor: Tensor, shape: Sequence[int] | None = None) -> Array:
    """An array of the tensor's layout to cut views from. Its memory is never touched."""
    return np.empty(tensor.shape if shape is None else tuple(shape), f"V{tensor.dtype.bits // 8}")


def scalar(size: int, shape: Sequence[int]) -> Array:
    """One element of so many bytes, seen as an array of this shape."""
    return np.broadcast_to(np.empty((), f"V{size}"), tuple(shape))


def seen(tensor: Tensor, look: Callable[[Array], Array | Sequence[Array]]) -> list[Array]:
    """The views that `look` takes of the tensor's addresses; it must not copy."""
    memory = addresses(tensor)
    found = look(memory)
    views = [found] if isinstance(found, np.ndarray) else list(found)
    assert all(v.size == 0 or np.may_share_memory(v, memory) for v in views)
    return views


def offset_of(view: Array) -> int:
    """Bytes from the beginning of the array that a view is cut from to its first element."""
    root = view
    while root.base is not None:
        root = root.base
    return view.ctypes.data - root.ctypes.data if view.size else 0


def apart(view: Array, row: int, pitch: int) -> Array | None:
    """The same view of a tensor whose rows of `row` bytes lie `pitch` bytes apart; None if strides
    cannot tell it."""
    if view.size == 0 or pitch in (0, row):
        return view
    line, first = divmod(offset_of(view), row)
    within = [step % row != 0 for step in view.strides]
    reach = [(n - 1) * step for n, step in zip(view.shape, view.strides, strict=True)]
    inside = [r for r, w in zip(reach, within, strict=True) if w]
    low, high = (first + sum(r for r in inside if (r < 0) == below) for below in (True, False))
    if low < 0 or high + view.itemsize > row:
        return None
    strides = [s if w else s // row * pitch for s, w in zip(view.strides, within, strict=True)]
    lines = line + sum(max(r // row, 0) for r, w in zip(reach, within, strict=True) if not w)
    memory = np.empty((lines + 1) * pitch, np.uint8)
    return np.ndarray(view.shape, view.dtype, memory, line * pitch + first, strides)


@dataclass(frozen=True)
class Dim:
    """A loop: how often, and the bytes from one to the next in target and source."""

    size: int
    to: int
    by: int


@dataclass(frozen=True)
class Traversal:
    """dims, outermost first in the target's order, around runs of contiguous bytes."""

    dims: tuple[Dim, ...]
    run: int


def collapse(target: Array, source: Array) -> Traversal:
    """The fewest loops that copy source to target."""
    dims = [
        Dim(n, to, by)
        for n, to, by in zip(target.shape, target.strides, source.strides, strict=True)
        if n != 1
    ]
    dims.sort(key=lambda d: -d.to)
    merged: list[Dim] = []
    for dim in dims:
        outer = merged[-1] if merged else None
        fits = outer and (outer.to, outer.by) == (dim.to * dim.size, dim.by * dim.size)
        if outer and fits:
            merged[-1] = Dim(outer.size * dim.size, dim.to, dim.by)
        else:
            merged.append(dim)
    run = target.itemsize
    if merged and merged[-1].to == merged[-1].by == run:
        run *= merged.pop().size
    return Traversal(tuple(merged), run)


# -- the traversal ------------------------------------------------------------------------------


def move(k: StepEmitter, target: Value, to: Array, source: Value, by: Array) -> None:
    """Copy the view `by` of the tensor at `source` to the view `to` of the tensor at `target`."""
    assert to.shape == by.shape and to.itemsize == by.itemsize
    if to.size == 0:
        return
    traversal = collapse(to, by)
    target, source = k.at(target, offset_of(to), I8), k.at(source, offset_of(by), I8)
    last = traversal.dims[-1] if traversal.dims else None
    small = traversal.run in (1, 2, 4, 8)
    if not small or last is None:
        _copy(k, target, source, traversal)
    elif last.to == traversal.run and last.by == 0:
        _splat(k, target, source, traversal)
    else:
        _elements(k, target, source, traversal)


# Emits one unit: (target, source, how many of the unit's dimension).
Unit = Callable[[Value, Value, Int], None]


def _units(
    k: StepEmitter,
    target: Value,
    source: Value,
    outer: Sequence[Dim],
    dim: Dim,
    step: int,
    unit: Unit,
) -> None:
    """Share the outer dimensions, and pieces of `dim` (multiples of step), between the workers."""
    count = math.prod(d.size for d in outer)
    pieces = min(math.ceil(UNITS / count), max(dim.size // step, 1))
    length = min(math.ceil(dim.size / pieces / step) * step, dim.size)
    pieces = math.ceil(dim.size / length)
    begin, end = k.share(count * pieces)
    with k.loop(begin, end) as i:
        first = k.min(k.mul(k.rem(i, pieces), length), dim.size - length) if pieces > 1 else 0
        to, by = k.mul(first, dim.to), k.mul(first, dim.by)
        rest = k.div(i, pieces)
        for d in reversed(outer):
            index = k.rem(rest, d.size) if d is not outer[0] else rest
            rest = k.div(rest, d.size)
            to, by = k.add(to, k.mul(index, d.to)), k.add(by, k.mul(index, d.by))
        unit(k.at(target, to, I8), k.at(source, by, I8), length)


def _inner(dims: Sequence[Dim]) -> int:
    """The dimension for the innermost loop: the last that is long enough, else the longest."""
    long = [i for i, d in enumerate(dims) if d.size >= 8]
    return long[-1] if long else max(range(len(dims)), key=lambda i: dims[i].size)


def _apart(dims: Sequence[Dim], *taken: int) -> list[Dim]:
    return [d for i, d in enumerate(dims) if i not in taken]


def _rows_per_unit(row: int) -> int:
    return max(SMALL // max(row, 1), 1)


def _copy(k: StepEmitter, target: Value, source: Value, traversal: Traversal) -> None:
    """Rows of contiguous bytes; long rows are cut in pieces."""
    dims, run = list(traversal.dims), traversal.run
    if run >= 2 * PIECE or not dims:
        step = k.target.width
        _units(
            k,
            target,
            source,
            dims,
            Dim(run, 1, 1),
            max(PIECE // 4, step),
            lambda to, by, n: copy_rows(k, to, by, 1, n, 0, 0),
        )
        return
    at = _inner(dims)
    rows = dims[at]
    _units(
        k,
        target,
        source,
        _apart(dims, at),
        rows,
        _rows_per_unit(run),
        lambda to, by, n: copy_rows(k, to, by, n, run, rows.to, rows.by),
    )


def _splat(k: StepEmitter, target: Value, source: Value, traversal: Traversal) -> None:
    *dims, last = traversal.dims
    dims = dims or [Dim(1, 0, 0)]
    at = _inner(dims)
    rows, size = dims[at], last.size * traversal.run
    function = splat_function(k, traversal.run)

    def unit(to: Value, by: Value, n: Int) -> None:
        k.b.call(function, [to, by, k.i64(n), I64(size), I64(rows.to), I64(rows.by)])

    def part(to: Value, by: Value, n: Int) -> None:
        k.b.call(function, [to, by, I64(1), k.i64(n), I64(0), I64(0)])

    if rows.size == 1:
        _units(k, target, source, (), Dim(size, 1, 0), SMALL, part)
    else:
        _units(k, target, source, _apart(dims, at), rows, _rows_per_unit(size), unit)


def _elements(k: StepEmitter, target: Value, source: Value, traversal: Traversal) -> None:
    """Elements that are not neighbours on both sides: a transposition, or one by one."""
    dims, size = traversal.dims, traversal.run
    a = len(dims) - 1
    b = next((i for i, d in enumerate(dims) if d.by == size and i != a), None)
    if b is not None and dims[a].to == size:
        if min(dims[a].size, dims[b].size) * size >= LANE:
            return _transpose(k, target, source, dims, a, b, size)
        if _zips(k.target, dims[a], dims[b], size):
            return _zip(k, target, source, dims, a, b, size)
    if (dims[a].to, dims[a].by) == (size, -size) and dims[a].size * size >= LANE:
        return _reverse(k, target, source, dims, size)
    _each(k, target, source, dims, size)
    return None


def _each(k: StepEmitter, target: Value, source: Value, dims: Sequence[Dim], size: int) -> None:
    """The longest dimension innermost, the next longest around it."""
    order = sorted(range(len(dims)), key=lambda i: (-min(dims[i].size, 64), -i))
    inner = dims[order[0]]
    rows = dims[order[1]] if len(dims) > 1 else Dim(1, 0, 0)
    function = each_function(k, size)

    def unit(to: Value, by: Value, n: Int) -> None:
        k.b.call(
            function,
            [
                to,
                by,
                k.i64(n),
                I64(inner.size),
                I64(rows.to),
                I64(inner.to),
                I64(rows.by),
                I64(inner.by),
            ],
        )

    def part(to: Value, by: Value, n: Int) -> None:
        k.b.call(function, [to, by, I64(1), k.i64(n), I64(0), I64(inner.to), I64(0), I64(inner.by)])

    if len(dims) == 1:
        _units(k, target, source, (), inner, _rows_per_unit(size), part)
    else:
        _units(
            k,
            target,
            source,
            _apart(dims, *order[:2]),
            rows,
            _rows_per_unit(size * inner.size),
            unit,
        )


def _reverse(k: StepEmitter, target: Value, source: Value, dims: Sequence[Dim], size: int) -> None:
    *outer, row = dims
    width = k.target.width
    while width > row.size * size:
        width //= 2
    function = reverse_function(k, size, width // size)
    _units(
        k,
        target,
        source,
        outer,
        row,
        max(SMALL, width) // size,
        lambda to, by, n: k.b.call(function, [to, by, k.i64(n)]),
    )


def _transpose(
    k: StepEmitter, target: Value, source: Value, dims: Sequence[Dim], a: int, b: int, size: int
) -> None:
    lane = LANE // size
    blocks = k.target.width // LANE
    while blocks * lane > dims[a].size:
        blocks //= 2
    function = transpose_function(k, size, blocks)

    along = a if dims[a].size >= dims[b].size else b  # the dimension that is cut in units

    def unit(to: Value, by: Value, n: Int) -> None:
        sizes = [k.i64(n) if i == along else I64(dims[i].size) for i in (a, b)]
        k.b.call(function, [to, by, *sizes, I64(dims[b].to), I64(dims[a].by)])

    step = blocks * lane if along == a else LINE // size
    step *= max(SMALL // (step * size * min(dims[a].size, dims[b].size)), 1)
    _units(k, target, source, _apart(dims, a, b), dims[along], min(step, dims[along].size), unit)


def _zips(target: Target, a: Dim, b: Dim, size: int) -> bool:
    """Few dense streams on one side, and enough elements in each for a vector."""
    few, many = sorted((a, b), key=lambda d: d.size)
    dense = few.size * size == (b.to if few is a else a.by)
    return dense and few.size <= 4 and many.size * size >= _zip_bytes(target, size)


def _zip_bytes(target: Target, size: int) -> int:
    """Vectors for joining and parting: of bytes, those that one shuffle instruction covers."""
    return LANE if size < 4 else min(target.width, 64)


def _zip(
    k: StepEmitter, target: Value, source: Value, dims: Sequence[Dim], a: int, b: int, size: int
) -> None:
    joins = dims[a].size < dims[b].size
    few, many = (dims[a], dims[b]) if joins else (dims[b], dims[a])
    function = zip_function(k, size, few.size, joins)
    stride = few.by if joins else few.to

    def unit(to: Value, by: Value, n: Int) -> None:
        k.b.call(function, [to, by, k.i64(n), I64(stride)])

    at = b if joins else a
    _units(
        k, target, source, _apart(dims, a, b), dims[at], min(_rows_per_unit(size), many.size), unit
    )


# -- the shared functions ---------------------------------------------------------------------


def raw_type(size: int) -> Type:
    """Something that loads and stores so many bytes at once."""
    return ir.IntType(8 * size) if size <= 8 else vector(I8, size)


def pieces_of(size: int, width: int) -> list[tuple[int, int]]:
    """(offset, width) of the loads that cover a row; the last may overlap the one before."""
    while width > size:
        width //= 2
    found = [(i, width) for i in range(0, size - width + 1, width)]
    left = size % width
    if left:
        last = 1 << (left - 1).bit_length()
        found.append((size - last, last))
    return found


def copy_run(e: Emitter, to: Value, by: Value, size: Int) -> None:
    """Copy a row: unrolled if its size is known and small, else in a loop."""
    if isinstance(size, int) and size <= UNROLLED:
        found = [
            (o, e.load(e.at(by, o, I8), raw_type(w))) for o, w in pieces_of(size, e.target.width)
        ]
        for offset, value in found:
            e.store(value, e.at(to, offset, I8))
        return
    width = e.target.width
    t, four = raw_type(width), 4 * width

    def one(place: Int) -> None:
        e.store(e.load(e.at(by, place, I8), t), e.at(to, place, I8))

    whole = e.mul(e.b.udiv(e.i64(size), I64(four)), four)
    with e.loop(0, whole, four) as i:
        found = [e.load(e.at(by, e.add(i, v * width), I8), t) for v in range(4)]
        for v, value in enumerate(found):
            e.store(value, e.at(to, e.add(i, v * width), I8))
    end = e.sub(size, width)
    with e.loop(whole, end, width) as i:
        one(i)
    one(end)


def copy_rows(
    k: StepEmitter, to: Value, by: Value, rows: Int, size: Int, to_step: Int, by_step: Int
) -> None:
    """Call the function that copies rows of this size; one that is not known is at least 512."""
    known = isinstance(size, int) and size <= UNROLLED
    name = f"copy_b{size}" if known else "copy"
    args = [PTR, PTR, I64, I64, I64] + [I64] * (not known)

    def build(e: Emitter) -> None:
        target, source, count, to_by, by_by, *told = e.args
        length = size if known else told[0]
        carry = [target, source]
        with e.loop(0, count, carry=carry) as (_, (t, s)):
            copy_run(e, t, s, length)
            e.carry([e.at(t, to_by, I8), e.at(s, by_by, I8)])

    function = k.program.function(name, args, build)
    more = [] if known else [k.i64(size)]
    k.b.call(function, [to, by, k.i64(rows), k.i64(to_step), k.i64(by_step), *more])


def splat_function(k: StepEmitter, size: int) -> Value:
    """(to, by, rows, bytes, to_step, by_step): rows full of the element at `by`."""
    width = k.target.width

    def build(e: Emitter) -> None:
        target, source, rows, length, to_step, by_step = e.args
        t = raw_type(size)
        with e.loop(0, rows) as row:
            to = e.at(target, e.mul(row, to_step), I8)
            value = e.load(e.at(source, e.mul(row, by_step), I8), t)
            many = e.splat(value, width // size)
            end = e.b.sub(length, I64(width))
            with e.b.if_else(e.b.icmp_signed("<", end, I64(0))) as (short, long):
                with short, e.loop(0, length, size) as i:
                    e.store(value, e.at(to, i, I8))
                with long:
                    with e.loop(0, end, width) as i:
                        e.store(many, e.at(to, i, I8))
                    e.store(many, e.at(to, end, I8))

    return k.program.function(f"splat_e{size}", [PTR, PTR, I64, I64, I64, I64], build)


def each_function(k: StepEmitter, size: int) -> Value:
    """(to, by, rows, columns, to_row, to_column, by_row, by_column), element by element."""

    def build(e: Emitter) -> None:
        target, source, rows, columns, to_row, to_column, by_row, by_column = e.args
        t = raw_type(size)
        most = e.mul(e.b.udiv(columns, I64(4)), 4)
        with e.loop(0, rows) as row:
            carry = [e.at(target, e.mul(row, to_row), I8), e.at(source, e.mul(row, by_row), I8)]
            for first, last, step in ((I64(0), most, 4), (most, columns, 1)):
                with e.loop(first, last, step, carry=carry) as (_, (to, by)):
                    found = []
                    for _ in range(step):
                        found.append(e.load(by, t))
                        by = e.at(by, by_column, I8)
                    for value in found:
                        e.store(value, to)
                        to = e.at(to, to_column, I8)
                    e.carry([to, by])
                carry = e.carried

    return k.program.function(f"each_e{size}", [PTR, PTR, *[I64] * 6], build)


def reverse_function(k: StepEmitter, size: int, lanes: int) -> Value:
    """(to, by, n): n elements, of which `by` is the first and the one with the highest address."""
    t = vector(ir.IntType(8 * size), lanes)

    def build(e: Emitter) -> None:
        target, source, n = e.args
        end = e.b.sub(n, I64(lanes))
        with e.loop(0, n, lanes) as i:
            place = e.mul(e.min(i, end), size)
            found = e.load(e.at(source, e.sub(-size * (lanes - 1), place), I8), t)
            e.store(e.shuffle(found, None, range(lanes)[::-1]), e.at(target, place, I8))

    return k.program.function(f"reverse_e{size}x{lanes}", [PTR, PTR, I64], build)


def transpose_function(k: StepEmitter, size: int, blocks: int) -> Value:
    """(to, by, a, b, to_step, by_step): target[b][a] = source[a][b].

    A tile is a vector's `blocks` of 16 bytes along a, and 16 bytes along b. Sixteen bytes each of
    as many rows are put together while loading, so that what is left are the interleaving stages
    within 16 bytes: log2(16 / size) shuffles a vector.
    """
    lane = LANE // size
    wide = blocks * lane

    def build(e: Emitter) -> None:
        target, source, a, b, to_step, by_step = e.args
        a_end, b_end = e.b.sub(a, I64(wide)), e.b.sub(b, I64(lane))
        # All that one cache line of the source holds, before the next: a tile needs a part only.
        with e.loop(0, b, LINE // size) as line, e.loop(0, a, wide) as i:
            row, last = e.min(i, a_end), e.min(e.add(line, LINE // size), b)
            to, by = e.at(target, e.mul(row, size), I8), e.at(source, e.mul(row, by_step), I8)
            with e.loop(line, last, lane) as j:
                column = e.min(j, b_end)
                tile = _load_tile(e, e.at(by, e.mul(column, size), I8), by_step, size, blocks)
                place = e.at(to, e.mul(column, to_step), I8)
                for value in _interleaved(e, tile, size):
                    e.store(value, place)
                    place = e.at(place, to_step, I8)

    return k.program.function(f"transpose_e{size}_{wide}x{lane}", [PTR, PTR, *[I64] * 4], build)


def _load_tile(e: Emitter, by: Value, step: Value, size: int, blocks: int) -> list[Value]:
    """Vector i: 16 bytes of row i, of row i + lane, of row i + 2 lane ..."""
    lane = LANE // size
    t = vector(ir.IntType(8 * size), lane)
    rows = []
    for _ in range(blocks * lane):
        rows.append(e.load(by, t))
        by = e.at(by, step, I8)
    return [_joined(e, rows[i::lane]) for i in range(lane)]


def _joined(e: Emitter, parts: list[Value]) -> Value:
    while len(parts) > 1:
        n = parts[0].type.count
        parts = [
            e.shuffle(a, b, range(2 * n)) for a, b in zip(parts[::2], parts[1::2], strict=True)
        ]
    return parts[0]


def _interleaved(e: Emitter, tile: list[Value], size: int) -> list[Value]:
    """Transpose within each 16 bytes: interleave vectors half the list apart, repeatedly."""
    lane, count = LANE // size, tile[0].type.count
    low = [
        x
        for at in range(0, count, lane)
        for i in range(lane // 2)
        for x in (at + i, at + i + count)
    ]
    high = [x + lane // 2 for x in low]
    half = len(tile) // 2
    for _ in range(int(math.log2(lane))):
        pairs = [(tile[i], tile[i + half]) for i in range(half)]
        tile = [e.shuffle(a, b, order) for a, b in pairs for order in (low, high)]
    return tile


def zip_function(k: StepEmitter, size: int, streams: int, joins: bool) -> Value:
    """(to, by, n, stride): n elements of each stream, joined to target[n][streams] or parted from
    source[n][streams]; the streams lie `stride` bytes apart on the other side."""
    width = _zip_bytes(k.target, size)
    lanes = width // size
    t = vector(ir.IntType(8 * size), lanes)
    spread = np.arange(streams * lanes)
    if joins:  # place p of the joined vectors comes from stream p % streams
        orders = (spread % streams * lanes + spread // streams).reshape(streams, lanes)
    else:
        orders = spread.reshape(lanes, streams).T

    def build(e: Emitter) -> None:
        target, source, n, stride = e.args
        end = e.b.sub(n, I64(lanes))
        with e.loop(0, n, lanes) as i:
            first = e.mul(e.min(i, end), size)
            dense, apart = [e.mul(first, streams)] * streams, [first] * streams
            dense = [e.add(p, s * width) for s, p in enumerate(dense)]
            apart = [e.add(p, e.mul(stride, s)) for s, p in enumerate(apart)]
            to, by = (dense, apart) if joins else (apart, dense)
            found = [e.load(e.at(source, p, I8), t) for p in by]
            for p, order in zip(to, orders, strict=True):
                e.store(_picked(e, found, order.tolist()), e.at(target, p, I8))

    name = f"{'zip' if joins else 'unzip'}_e{size}x{streams}"
    return k.program.function(name, [PTR, PTR, I64, I64], build)


def _picked(e: Emitter, vectors: list[Value], order: Sequence[int]) -> Value:
    """A vector of elements picked from several, as if these lay one behind the other."""
    lanes = vectors[0].type.count
    result = vectors[0]
    for index, other in enumerate(vectors[1:], 1):
        # Lanes whose element comes later keep anything.
        here = [
            lanes + p - index * lanes
            if p // lanes == index
            else (p if index == 1 else i)
            if p // lanes < index
            else i
            for i, p in enumerate(order)
        ]
        result = e.shuffle(result, other, here)
    return result
