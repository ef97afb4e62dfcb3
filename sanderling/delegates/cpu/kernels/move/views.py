"""Operators that move elements, as pairs of views for the strided copy.

An element's type is irrelevant here, only its size counts. Where an operator's definition returns
views, these are the views that are copied: the meaning is written once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .....errors import SanderlingError, UnsupportedError
from .....ir import Array, DType, Op, Tensor
from .....ops import OPS
from .....ops.base import DATA_ERRORS, attr, ints
from .....ops.base import scale_zero_or_none as codes_of
from ...codegen.emit import F32, I8, I32, I64, PTR, Emitter, Int, Value, vector
from ...codegen.program import Place, StepEmitter, row_bytes
from ...isa.targets import Target
from ..row import Kernel
from .strided import Dim, addresses, apart, collapse, move, offset_of, scalar, seen

# A pair of views of equal shape, of output `index` and input `index` (or of a constant).
Pair = tuple[int, Array, "int | Array", Array]


# Each pair is a walk of its own, of some 15 instructions; blocks of more places than FEW_PIECES are
# one walk where they can.
FEW_PIECES, MOST_PIECES = 16, 512


def _need_few(pieces: int) -> None:
    if pieces > MOST_PIECES:
        raise UnsupportedError(f"it moves {pieces} pieces, more than {MOST_PIECES}")


def values(op: Op, index: int) -> list[int]:
    """A constant operand of integers."""
    return ints(op.operand(index).data)


# -- what moves where -------------------------------------------------------------------------


def _as_defined(data: int) -> Callable[[Op], list[Pair]]:
    """The definition's own views of the data, one for each output."""

    def pairs(op: Op) -> list[Pair]:
        def look(x: Array) -> Array | Sequence[Array]:
            rest = [None if t is None else t.data for t in op.inputs]
            rest[data] = x
            return OPS[op.name].evaluate(op, rest)

        views = seen(op.operand(data), look)
        return [
            (i, addresses(y), data, v)
            for i, (y, v) in enumerate(zip(op.outputs, views, strict=True))
        ]

    return pairs


def _concatenation(op: Op) -> list[Pair]:
    shapes = [op.operand(i).shape or (1,) for i in range(len(op.inputs))]
    whole = addresses(op.outputs[0])
    axis = int(attr(op, "axis")) % whole.ndim
    ends = list(itertools.accumulate(s[axis] for s in shapes))
    return [
        (
            0,
            whole[(*[slice(None)] * axis, slice(end - s[axis], end))],
            i,
            addresses(op.operand(i), s),
        )
        for i, (s, end) in enumerate(zip(shapes, ends, strict=True))
    ]


def _pack(op: Op) -> list[Pair]:
    whole = addresses(op.outputs[0])
    axis = int(attr(op, "axis")) % whole.ndim
    places: list[Any] = [(*[slice(None)] * axis, i, ...) for i in range(len(op.inputs))]
    return [(0, whole[at], i, addresses(op.operand(i))) for i, at in enumerate(places)]


def _around(whole: Array, inner: Sequence[slice]) -> list[Array]:
    """Views that together are all that lies outside of the inner box."""
    found = []
    for axis, part in enumerate(inner):
        for side in (slice(0, part.start), slice(part.stop, None)):
            found.append(whole[(*inner[:axis], side)])
    return [v for v in found if v.size]


def _filled(whole: Array, inner: Sequence[slice], value: int | Array) -> list[Pair]:
    return [(0, v, value, scalar(whole.itemsize, v.shape)) for v in _around(whole, inner)]


def _zero(op: Op) -> Array:
    """What stands for zero: the zero point of a quantised output of at most 16 bits."""
    out = op.outputs[0]
    code = codes_of(out)[1] if out.dtype.bits <= 16 else 0
    return np.asarray(code, out.dtype.numpy)


def _pad(op: Op) -> list[Pair]:
    x, whole, margins = op.operand(0), addresses(op.outputs[0]), values(op, 1)
    inner = [slice(b, b + n) for b, n in zip(margins[::2], x.shape, strict=True)]
    value: int | Array = 2 if op.input(2) is not None else _zero(op)
    return [(0, whole[tuple(inner)], 0, addresses(x)), *_filled(whole, inner, value)]


def _mirror_pad(op: Op) -> list[Pair]:
    """Along each axis three parts: what is before, mirrored; the axis; what is after, mirrored."""
    x, whole, margins = op.operand(0), addresses(op.outputs[0]), values(op, 1)
    edge = int(attr(op, "mode") == "REFLECT")
    parts = []
    for n, before, after in zip(x.shape, margins[::2], margins[1::2], strict=True):
        left, right = (
            range(before - 1 + edge, edge - 1, -1),
            range(n - 1 - edge, n - 1 - edge - after, -1),
        )
        three = [
            (slice(0, before), left),
            (slice(before, before + n), range(n)),
            (slice(before + n, before + n + after), right),
        ]
        parts.append([part for part in three if part[1]])
    _need_few(math.prod(map(len, parts)))
    found: list[Pair] = []
    for choice in itertools.product(*parts):
        source = addresses(x)[tuple(_as_slice(r) for _, r in choice)]
        found.append((0, whole[tuple(s for s, _ in choice)], 0, source))
    return found


def _as_slice(indices: range) -> slice:
    if not indices:
        return slice(0, 0)
    return slice(indices.start, None if indices.stop < 0 else indices.stop, indices.step)


def _space_to_depth(op: Op) -> list[Pair]:
    x, block = op.operand(0), int(attr(op, "block_size"))
    n, h, w, _ = op.outputs[0].shape
    c = x.shape[3]
    source = addresses(x, (n, h, block, w, block, c)).transpose(0, 1, 3, 2, 4, 5)
    return [(0, addresses(op.outputs[0], source.shape), 0, source)]


def _depth_to_space(op: Op) -> list[Pair]:
    x, block = op.operand(0), int(attr(op, "block_size"))
    n, h, w, _ = x.shape
    c = op.outputs[0].shape[3]
    target = addresses(op.outputs[0], (n, h, block, w, block, c)).transpose(0, 1, 3, 2, 4, 5)
    return [(0, target, 0, addresses(x, target.shape))]


def _phases(
    flat: Array, spread: Array, blocks: list[int], shifts: list[int]
) -> list[tuple[Array, list[slice], Array]]:
    """For each place within a block: its batches of `flat`, the box of them that exists in
    `spread`, and that part of `spread`. `shifts`: how far spread begins inside the blocks."""
    _need_few(math.prod(blocks))
    found = []
    per = spread.shape[0]
    for index, place in enumerate(itertools.product(*map(range, blocks))):
        inner, taken = [slice(0, per)], [slice(None)]
        for axis, (at, block, shift) in enumerate(zip(place, blocks, shifts, strict=True), 1):
            first = max(math.ceil((shift - at) / block), 0)
            begin = first * block + at - shift
            count = max(math.ceil((spread.shape[axis] - begin) / block), 0)
            count = min(count, flat.shape[axis] - first)
            inner.append(slice(first, first + max(count, 0)))
            taken.append(slice(begin, begin + count * block if count > 0 else begin, block))
        batches = flat[index * per : (index + 1) * per]
        found.append((batches, inner, spread[tuple(taken)]))
    return found


def _whole_blocks(flat: Tensor, spread: Tensor, blocks: list[int]) -> tuple[Array, Array]:
    """The same where blocks are whole: one view of each."""
    batch, *sizes = spread.shape
    last = 2 * len(blocks)
    split = [n for size, block in zip(sizes, blocks, strict=False) for n in (size // block, block)]
    view = addresses(spread, (batch, *split, *sizes[len(blocks) :]))
    order = *range(2, last + 1, 2), 0, *range(1, last, 2), *range(last + 1, view.ndim)
    view = view.transpose(order)
    return addresses(flat, view.shape), view


def _are_many(op: Op) -> bool:
    """Blocks of so many places that one walk over all of them is better than one for each."""
    return math.prod(values(op, 1)) > FEW_PIECES and not any(values(op, 2))


def _space_to_batch(op: Op) -> list[Pair]:
    x, y = op.operand(0), op.outputs[0]
    if _are_many(op):
        whole, source = _whole_blocks(y, x, values(op, 1))
        return [(0, whole, 0, source)]
    found: list[Pair] = []
    before = values(op, 2)[::2]
    for batches, inner, taken in _phases(addresses(y), addresses(x), values(op, 1), before):
        found.append((0, batches[tuple(inner)], 0, taken))
        found += _filled(batches, inner, _zero(op))
    return [p for p in found if p[1].size]


def _batch_to_space(op: Op) -> list[Pair]:
    x, y = op.operand(0), op.outputs[0]
    if _are_many(op):
        source, whole = _whole_blocks(x, y, values(op, 1))
        return [(0, whole, 0, source)]
    crops = values(op, 2)[::2]
    found = _phases(addresses(x), addresses(y), values(op, 1), crops)
    return [(0, taken, 0, batches[tuple(inner)]) for batches, inner, taken in found if taken.size]


def _tile(op: Op) -> list[Pair]:
    x, times = op.operand(0), values(op, 1)
    split = [n for pair in zip(times, x.shape, strict=True) for n in pair]
    source = addresses(x)[tuple(s for _ in x.shape for s in (None, slice(None)))]
    return [(0, addresses(op.outputs[0], split), 0, np.broadcast_to(source, split))]


def _broadcast_to(op: Op) -> list[Pair]:
    whole = addresses(op.outputs[0])
    return [(0, whole, 0, np.broadcast_to(addresses(op.operand(0)), whole.shape))]


def _fill(op: Op) -> list[Pair]:
    whole = addresses(op.outputs[0])
    return [(0, whole, 1, scalar(whole.itemsize, whole.shape))]


def _constant(make: Callable[[Op], Array]) -> Callable[[Op], list[Pair]]:
    """What does not depend on the input's values: one element for all, or all elements."""

    def pairs(op: Op) -> list[Pair]:
        whole, value = addresses(op.outputs[0]), make(op)
        one = value.ndim == 0
        source = scalar(whole.itemsize, whole.shape) if one else addresses(op.outputs[0])
        return [(0, whole, value, source)]

    return pairs


def _shape_of(op: Op) -> Array:
    return np.array(op.operand(0).shape, op.outputs[0].dtype.numpy)


def _rank_of(op: Op) -> Array:
    return np.array(len(op.operand(0).shape), np.int32)


@dataclass(frozen=True)
class Move:
    """How an operator moves elements."""

    pairs: Callable[[Op], list[Pair]]
    moved: tuple[int, ...]  # operands whose codes are moved
    constants: tuple[int, ...]  # operands that must be constants
    plain: bool = False  # see Kernel.plain_codes


MOVES: dict[str, Move] = {
    "TRANSPOSE": Move(_as_defined(0), (0,), (1,)),
    "REVERSE_V2": Move(_as_defined(0), (0,), (1,)),
    "SLICE": Move(_as_defined(0), (0,), (1, 2)),
    "STRIDED_SLICE": Move(_as_defined(0), (0,), (1, 2, 3)),
    "SPLIT": Move(_as_defined(1), (1,), (0,)),
    "SPLIT_V": Move(_as_defined(0), (0,), (1, 2)),
    "UNPACK": Move(_as_defined(0), (0,), ()),
    "CONCATENATION": Move(_concatenation, (), ()),
    "PACK": Move(_pack, (), ()),
    "PAD": Move(_pad, (0, 2), (1,)),
    "PADV2": Move(_pad, (0,), (1,)),  # unify_bytes sees to the value, if it is a constant
    "MIRROR_PAD": Move(_mirror_pad, (0,), (1,)),
    "SPACE_TO_DEPTH": Move(_space_to_depth, (0,), ()),
    "DEPTH_TO_SPACE": Move(_depth_to_space, (0,), ()),
    "SPACE_TO_BATCH_ND": Move(_space_to_batch, (0,), (1, 2)),
    "BATCH_TO_SPACE_ND": Move(_batch_to_space, (0,), (1, 2)),
    "TILE": Move(_tile, (0,), (1,)),
    "BROADCAST_TO": Move(_broadcast_to, (0,), (1,)),
    "FILL": Move(_fill, (1,), (0,), plain=True),
    "ZEROS_LIKE": Move(
        _constant(lambda op: np.zeros((), op.outputs[0].dtype.numpy)), (), (), plain=True
    ),
    "SHAPE": Move(_constant(_shape_of), (), ()),
    "RANK": Move(_constant(_rank_of), (), ()),
}


def pairs_of(op: Op) -> list[Pair]:
    return MOVES[op.name].pairs(op)


Pitch = Callable[[Tensor, int], int]  # (tensor, if dense) -> bytes from row to row


def _apart(op: Op, pitch: Pitch) -> Iterator[Pair | None]:
    """The pairs, their views as they are where rows lie apart; None where strides cannot tell."""
    for index, to, source, by in pairs_of(op):
        y, x = op.outputs[index], op.inputs[source] if isinstance(source, int) else None
        there = apart(to, row_bytes(y), pitch(y, row_bytes(y)))
        here = by if x is None else apart(by, row_bytes(x), pitch(x, row_bytes(x)))
        yield None if there is None or here is None else (index, there, source, here)


def pairs_at(op: Op, pitch: Pitch) -> list[Pair]:
    """The pairs of an op that can be told so."""
    found = [pair for pair in _apart(op, pitch) if pair is not None]
    assert len(found) == len(pairs_of(op)), "rows apart"
    return found


def takes_apart(op: Op) -> bool:
    """Whether the rows of all tensors may lie apart."""
    return None not in _apart(op, lambda tensor, dense: 2 * dense)


def pitches(places: Mapping[Tensor, Place]) -> Pitch:
    def pitch(tensor: Tensor, dense: int) -> int:
        place = places.get(tensor)
        return place.pitch if place is not None and place.pitch else dense

    return pitch


# -- refusals ---------------------------------------------------------------------------------


def unmovable(
    op: Op, moved: Sequence[Tensor | None], constants: Sequence[int], plain: bool = False
) -> str | None:
    """Why these operands cannot be moved to the outputs as they are. plain: Kernel.plain_codes."""
    for index in constants:
        if op.input(index) is not None and not op.operand(index).is_constant:
            return f"operand {index} is known at run time only"
    tensors = [t for t in (*moved, *op.outputs) if t is not None]
    if any(t.dtype.bits < 8 or t.dtype.bits % 8 for t in tensors):
        return f"elements of type {tensors[0].dtype.short} have no place of their own"
    if len({t.dtype.bits for t in tensors}) > 1:
        return "inputs and outputs have elements of different sizes"
    # unify_bytes moves the codes of tensors with one scale, and leaves those of others.
    scales = {t.quant is not None and t.quant.scale.size == 1 for t in tensors}
    if tensors[0].dtype.bits == 8 and len(scales) > 1 and not plain:
        return "only some of the 8-bit tensors have a scale"
    return None


def refuses(op: Op, target: Target) -> str | None:
    how = MOVES[op.name]
    constants = how.constants
    operands = [op.input(i) for i in how.moved]
    if op.name in ("CONCATENATION", "PACK"):
        operands = list(op.inputs)
    value = op.input(2) if op.name in ("PAD", "PADV2") else None
    if value is not None and not value.is_constant:
        operands.append(value)
        constants += (2,) * (value.dtype.bits == 8)
    said = unmovable(op, operands, constants, how.plain)
    if said is None and op.name == "CONCATENATION":
        said = _refuses_concatenation(op)
    return said or _wrong(op)


def _wrong(op: Op) -> str | None:
    """What the definition says against its operands; the reference will say it again."""
    try:
        found = pairs_of(op)
        _need_few(len(found))
    except UnsupportedError as error:
        return error.what
    except (SanderlingError, *DATA_ERRORS) as error:
        return f"its operands do not fit together: {error}"
    if any(to.shape != by.shape for _, to, _, by in found):
        return "its operands do not fit together"
    return None


def _refuses_concatenation(op: Op) -> str | None:
    if attr(op, "fused_activation_function") != "NONE":
        return "a concatenation with a fused activation"
    out = op.outputs[0]
    if out.dtype is DType.INT8 and any(codes_of(t) != codes_of(out) for t in op.inputs):
        return "int8 inputs and output differ in scale or zero point"
    return None


# -- emission ---------------------------------------------------------------------------------


def in_place(op: Op, pair: Pair, places: dict[Tensor, Place]) -> bool:
    """The elements lie where they should: target and source are one view of one memory. The pair
    is one of pairs_at."""
    index, to, source, by = pair
    x = op.inputs[source] if isinstance(source, int) else None
    here, there = places.get(op.outputs[index]), None if x is None else places.get(x)
    if x is None or here is None or there is None or here.slot != there.slot:
        return False
    if rescales(op, x) or to.size == 0:
        return to.size == 0
    same = here.offset + offset_of(to) == there.offset + offset_of(by)
    return same and all(d.to == d.by for d in collapse(to, by).dims)


def emit(k: StepEmitter, op: Op) -> None:
    for pair in pairs_at(op, k.pitch):
        if in_place(op, pair, k.program.places) or pair[1].size == 0:
            continue
        index, to, source, by = pair
        target = k.ptr(op.outputs[index])
        x = op.operand(source) if isinstance(source, int) else None
        pointer = k.ptr(op.operand(source)) if isinstance(source, int) else k.constant(source)
        if x is not None and rescales(op, x):
            _rescale(k, target, to, pointer, by, x, op.outputs[index])
        else:
            move(k, target, to, pointer, by)


# -- concatenation of uint8 with different scales ---------------------------------------------


def rescales(op: Op, x: Tensor) -> bool:
    """Only concatenations of what was uint8 do; of all others the codes are moved as they are."""
    return (
        op.name == "CONCATENATION" and x.dtype.bits == 8 and codes_of(x) != codes_of(op.outputs[0])
    )


def _rescale(
    k: StepEmitter, target: Value, to: Array, source: Value, by: Array, x: Tensor, y: Tensor
) -> None:
    """Rows of the input, each contiguous on both sides, under the output's scale."""
    traversal = collapse(to, by)
    assert len(traversal.dims) <= 1, "a concatenation is rows of parts"
    flip = 128 * (x.dtype is DType.INT8)
    (scale, zero), (new_scale, new_zero) = codes_of(x), codes_of(y)
    ratio = np.float32(scale) * (np.float32(1) / np.float32(new_scale))
    offset = np.float32(-(zero + flip)) * ratio
    params = k.constant(np.array([ratio, offset, new_zero + flip], np.float32))
    rows = traversal.dims[0] if traversal.dims else Dim(1, 0, 0)
    function = k.program.function(
        f"rescale_{x.dtype.short}", [PTR, PTR, I64, PTR], lambda e: _build_rescale(e, -flip)
    )
    target = k.at(target, offset_of(to), I8)
    begin, end = k.share(rows.size)
    with k.loop(begin, end) as row:
        k.b.call(
            function,
            [
                k.at(target, k.mul(row, rows.to), I8),
                k.at(source, k.mul(row, rows.by), I8),
                I64(traversal.run),
                params,
            ],
        )


# Added before truncation it rounds halves up, and 0.49999997 down.
ALMOST_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def _build_rescale(e: Emitter, flip: int) -> None:
    """(to, by, n, params): codes * ratio + offset, rounded away from zero, moved, clamped."""
    target, source, n, params = e.args
    lanes = e.target.lanes

    def one(place: Int, count: int) -> None:
        f, i, b = vector(F32, count), vector(I32, count), vector(I8, count)
        ratio, offset, zero = (e.splat(e.load(e.at(params, j, F32), F32), count) for j in range(3))
        codes = e.b.xor(e.load(e.at(source, place, I8), b), e.const(b, flip))
        real = e.b.uitofp(e.b.zext(codes, i), f)
        real = e.b.fadd(e.b.fmul(real, ratio), offset)
        real = e.fmin(e.fmax(real, e.const(f, -512)), e.const(f, 512))
        away = e.call(f"llvm.copysign.v{count}f32", f, e.const(f, ALMOST_HALF), real)
        code = e.b.add(e.b.fptosi(e.b.fadd(real, away), i), e.b.fptosi(zero, i))
        code = e.b.select(e.b.icmp_signed(">", code, e.const(i, 0)), code, e.const(i, 0))
        code = e.b.select(e.b.icmp_signed("<", code, e.const(i, 255)), code, e.const(i, 255))
        e.store(e.b.xor(e.b.trunc(code, b), e.const(b, flip)), e.at(target, place, I8))

    whole = e.mul(e.b.udiv(n, I64(lanes)), lanes)
    with e.loop(0, whole, lanes) as i:
        one(i, lanes)
    with e.loop(whole, n) as i:
        one(i, 1)


def _reads_apart(op: Op) -> range:
    return range(len(op.inputs) if takes_apart(op) else 0)


def _row(move: Move, **more: Any) -> Kernel:
    return Kernel(
        emit,
        refuses,
        reads=_reads_apart,
        writes=takes_apart,
        pairs=move.pairs,
        plain_codes=move.plain,
        **more,
    )


PADS: dict[str, Any] = {"weights": (1,), "value": 2}
KERNELS = {n: _row(m, **(PADS if n in ("PAD", "PADV2") else {})) for n, m in MOVES.items()}
