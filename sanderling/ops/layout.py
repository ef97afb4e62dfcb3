"""Operators that move elements to other places: transpose, pad, reverse, blocks, diagonals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import out_of_range
from ..ir import Array, Op, Shape
from .base import (
    INDEX,
    MOVABLE,
    Spec,
    Specs,
    attr,
    axis_in,
    define,
    elements,
    fitting,
    ints,
    on,
    operand,
    require,
    same_as_input,
    scalar,
    scale_zero_or_none,
    shaped,
    single,
    sized,
)

# -- transpose and reverse ----------------------------------------------------------------------


def _order(op: Op, rank: int, perm: list[int]) -> list[int]:
    order = [axis_in(op, p, rank) for p in perm]
    require(sorted(order) == list(range(rank)), op, f"{perm} is not an order of {rank} axes")
    return order


def _transposed(op: Op, shape: Shape, perm: list[int]) -> list[int]:
    return [shape[a] for a in _order(op, len(shape), perm)]


def _reversed(op: Op, shape: Shape, axes: list[int]) -> tuple[int, ...]:
    named = [axis_in(op, a, len(shape)) for a in axes]
    require(len(set(named)) == len(named), op, f"axes {axes} name one twice")
    return tuple(named)


def _infer_reverse(op: Op, specs: Specs) -> Spec:
    x, axes = operand(op, specs), operand(op, specs, 1).value
    if x.shape is not None and axes is not None:
        _reversed(op, x.shape, ints(axes))
    return same_as_input(op, specs)


def _reverse(op: Op, x: Array, axes: Array) -> Array:
    return np.flip(x, _reversed(op, x.shape, ints(axes)))


def _check_lengths(op: Op, shape: Shape, lengths: Shape) -> tuple[int, int]:
    along, batch, rank = int(attr(op, "seq_dim")), int(attr(op, "batch_dim")), len(shape)
    fits = 0 <= along < rank and 0 <= batch < rank and along != batch
    require(fits, op, f"seq_dim {along} and batch_dim {batch} of rank {rank}")
    count = elements(lengths)
    require(count == shape[batch], op, f"{count} lengths do not fit the shape {shape}")
    return along, batch


def _reverse_sequence(op: Op, x: Array, lengths: Array) -> Array:
    """Along seq_dim, the first lengths[b] elements of batch b are turned round."""
    along, batch = _check_lengths(op, x.shape, lengths.shape)
    size, counts = x.shape[along], lengths.reshape(-1).astype(np.int64)
    outside = (counts < 0) | (counts > size)
    if outside.any():
        raise out_of_range("a length", int(counts[outside][0]), size + 1, where=op.where)
    steps = np.arange(size)
    index = np.where(steps < counts[:, None], counts[:, None] - 1 - steps, steps)
    wide = [1] * x.ndim
    wide[batch], wide[along] = counts.size, size
    index = (index if batch < along else index.T).reshape(wide)
    return np.take_along_axis(x, np.broadcast_to(index, x.shape), along)


define(
    "TRANSPOSE",
    infer=shaped(_transposed, by=[1]),
    family="layout",
    takes=f"x: {MOVABLE} i4 u4, perm: {INDEX} -> x",
    evaluate=on(lambda op, x, perm: x.transpose(_order(op, x.ndim, ints(perm)))),
)
define(
    "REVERSE_V2",
    infer=_infer_reverse,
    evaluate=on(_reverse),
    family="layout",
    takes=f"x: f32 f16 bf16 u8 i8 i16 i32 i64 bool, axes: {INDEX} -> x",
)
define(
    "REVERSE_SEQUENCE",
    infer=fitting(_check_lengths, [0, 1]),
    evaluate=on(_reverse_sequence),
    family="layout",
    takes=f"x: f32 u8 i16 i32 i64, lengths: {INDEX} -> x",
)


# -- pad ----------------------------------------------------------------------------------------


def padded_shape(
    op: Op, shape: Shape, low: Sequence[int], high: Sequence[int], inside: Sequence[int]
) -> Shape:
    rank = len(shape)
    fits = len(low) == len(high) == len(inside) == rank and min(inside, default=0) >= 0
    require(fits, op, f"padding {low}, {high}, {inside} does not fit rank {rank}")
    grown = [
        n + max(n - 1, 0) * i + a + b for n, i, a, b in zip(shape, inside, low, high, strict=True)
    ]
    return sized(op, (max(0, n) for n in grown))


def pad_general(
    op: Op, x: Array, fill: Array, low: Sequence[int], high: Sequence[int], inside: Sequence[int]
) -> Array:
    """Pad at the edges (negative: crop) and between elements."""
    value = scalar(op, fill, "the value to pad with")
    result = np.full(padded_shape(op, x.shape, low, high, inside), value, x.dtype)
    source, target = [], []
    for n, size, edge, gap in zip(x.shape, result.shape, low, inside, strict=True):
        step = gap + 1
        first = max(0, -(edge // step)) if edge < 0 else 0  # the first element that is not cropped
        last = min(n, (size - 1 - edge) // step + 1)
        source.append(slice(first, max(first, last)))
        target.append(slice(first * step + edge, None, step))
    kept = x[tuple(source)]
    if kept.size:
        place = (
            slice(t.start, t.start + (n - 1) * t.step + 1, t.step)
            for t, n in zip(target, kept.shape, strict=True)
        )
        result[tuple(place)] = kept
    return result


def _pairs(op: Op, rank: int, paddings: list[int]) -> list[tuple[int, int]]:
    require(len(paddings) == 2 * rank, op, f"{len(paddings)} paddings for rank {rank}")
    require(all(p >= 0 for p in paddings), op, f"negative paddings {paddings}")
    return list(zip(paddings[::2], paddings[1::2], strict=True))


def _padded(op: Op, shape: Shape, paddings: list[int]) -> list[int]:
    pairs = _pairs(op, len(shape), paddings)
    return [before + n + after for n, (before, after) in zip(shape, pairs, strict=True)]


def _zero(op: Op) -> int:
    """What stands for zero: the zero point of a quantised output."""
    return scale_zero_or_none(op.outputs[0])[1] if op.outputs[0].dtype.bits <= 16 else 0


def _check_pairs(op: Op, shape: Shape, paddings: Shape, value: Shape | None = None) -> None:
    wanted = (len(shape), 2)
    require(paddings == wanted, op, f"paddings of shape {paddings}", f"they are {wanted}")
    if value is not None:
        single(op, value, "the value to pad with")


def _check_fill(op: Op, value: Shape) -> None:
    single(op, value, "the value to fill up with")


def _pad(op: Op, x: Array, paddings: Array, value: Array | None = None) -> Array:
    pairs = _pairs(op, x.ndim, ints(paddings))
    fill = np.asarray(_zero(op), x.dtype) if value is None else value
    low, high = ([pair[side] for pair in pairs] for side in (0, 1))
    return pad_general(op, x, fill, low, high, [0] * x.ndim)


def _edge(op: Op) -> int:
    """1 where the edge itself is not repeated."""
    return int(attr(op, "mode") == "REFLECT")


def _mirrored(op: Op, shape: Shape, paddings: list[int]) -> list[int]:
    pairs, edge = _pairs(op, len(shape), paddings), _edge(op)
    fits = all(max(pair) <= max(n - edge, 0) for n, pair in zip(shape, pairs, strict=True))
    require(fits, op, f"paddings {paddings} mirror more than there is in {shape}")
    return _padded(op, shape, paddings)


def _mirror_pad(op: Op, x: Array, paddings: Array) -> Array:
    sized(op, _mirrored(op, x.shape, ints(paddings)))
    edge, pairs = _edge(op), _pairs(op, x.ndim, ints(paddings))
    for axis, (before, after) in enumerate(pairs):
        size = x.shape[axis]
        left, right = np.arange(before)[::-1] + edge, size - 1 - edge - np.arange(after)
        x = x.take(np.concatenate([left, np.arange(size), right]), axis)
    return x


def _dilated(op: Op, shape: Shape, factors: list[int]) -> list[int]:
    require(len(factors) == len(shape) > 0, op, f"{len(factors)} factors for rank {len(shape)}")
    require(all(f >= 1 for f in factors), op, f"factors {factors} below 1")
    return [(n - 1) * f + 1 for n, f in zip(shape, factors, strict=True)]


def _dilate(op: Op, x: Array, factors: Array, value: Array) -> Array:
    _dilated(op, x.shape, ints(factors))
    edges = [0] * x.ndim
    return pad_general(op, x, value, edges, edges, [n - 1 for n in ints(factors)])


define(
    "PAD PADV2",
    infer=fitting(_check_pairs, [0, 1, 2], shaped(_padded, by=[1])),
    evaluate=on(_pad, needs=2),
    family="layout",
    takes="x: f32 f16 bf16 u8 i8 i16 i32 i64 bool, paddings: i8 i16 i32 i64, value?: x -> x",
)
define(
    "MIRROR_PAD",
    infer=fitting(_check_pairs, [0, 1], shaped(_mirrored, by=[1])),
    evaluate=on(_mirror_pad),
    family="layout",
    takes=f"x: {MOVABLE}, paddings: {INDEX} -> x",
)
define(
    "DILATE",
    infer=fitting(_check_fill, [2], shaped(_dilated, by=[1])),
    evaluate=on(_dilate),
    family="layout",
    takes=f"x: {MOVABLE} c128, factors: {INDEX}, value: x -> x",
)


# -- blocks between space, depth and batch ------------------------------------------------------


def _image(op: Op, shape: Shape) -> tuple[int, int]:
    """Block size and, squared, what it does to the depth."""
    block = int(attr(op, "block_size"))
    require(len(shape) == 4 and block > 0, op, f"blocks of {block} in the shape {shape}")
    return block, block * block


def _deep(op: Op, shape: Shape) -> list[int]:
    block, area = _image(op, shape)
    n, h, w, c = shape
    require(h % block == 0 == w % block, op, f"{h} x {w} is not a multiple of {block}")
    return [n, h // block, w // block, c * area]


def _wide(op: Op, shape: Shape) -> list[int]:
    block, area = _image(op, shape)
    n, h, w, c = shape
    require(c % area == 0, op, f"depth {c} is not a multiple of {area}")
    return [n, h * block, w * block, c // area]


def _space_to_depth(op: Op, x: Array) -> Array:
    n, h, w, _ = shape = _deep(op, x.shape)
    block, c = int(attr(op, "block_size")), x.shape[3]
    return x.reshape(n, h, block, w, block, c).transpose(0, 1, 3, 2, 4, 5).reshape(shape)


def _depth_to_space(op: Op, x: Array) -> Array:
    n, _, _, c = shape = _wide(op, x.shape)
    block, (_, h, w, _) = int(attr(op, "block_size")), x.shape
    return x.reshape(n, h, w, block, block, c).transpose(0, 1, 3, 2, 4, 5).reshape(shape)


def _check_blocks(op: Op, shape: Shape, block: Sequence[int]) -> None:
    fits = len(shape) > len(block) and all(b > 0 for b in block)
    require(fits, op, f"blocks {list(block)} in the shape {shape}")


def _batched(op: Op, shape: Shape, block: list[int], paddings: list[int]) -> list[int]:
    _check_blocks(op, shape, block)
    space = _padded(op, shape[1 : 1 + len(block)], paddings)
    fits = all(n % b == 0 for n, b in zip(space, block, strict=True))
    require(fits, op, f"padded sizes {space} are not multiples of the blocks {block}")
    outer = shape[0] * int(np.prod(block, dtype=object))
    inner = [n // b for n, b in zip(space, block, strict=True)]
    return [outer, *inner, *shape[1 + len(block) :]]


def _space_to_batch(op: Op, x: Array, block: Array, paddings: Array) -> Array:
    """Split each spatial axis in (size / block, block); the blocks go before the batch."""
    blocks, rank = ints(block), block.size
    shape = sized(op, _batched(op, x.shape, blocks, ints(paddings)))
    margins = [0, 0, *ints(paddings), *[0, 0] * (x.ndim - 1 - rank)]
    x = _pad(op, x, np.array(margins))
    parts = [n for size, b in zip(shape[1:], blocks, strict=False) for n in (size, b)]
    x = x.reshape(x.shape[0], *parts, *x.shape[1 + rank :])
    order = [*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank, 2), *range(2 * rank + 1, x.ndim)]
    return x.transpose(order).reshape(shape)


def _spread(op: Op, shape: Shape, block: list[int], crops: list[int]) -> list[int]:
    _check_blocks(op, shape, block)
    area = int(np.prod(block, dtype=object))
    require(shape[0] % area == 0, op, f"batch {shape[0]} is not a multiple of {area}")
    pairs = _pairs(op, len(block), crops)
    space = [
        n * b - before - after
        for n, b, (before, after) in zip(shape[1:], block, pairs, strict=False)
    ]
    require(all(n >= 0 for n in space), op, f"crops {crops} take more than there is")
    return [shape[0] // area, *space, *shape[1 + len(block) :]]


def _batch_to_space(op: Op, x: Array, block: Array, crops: Array) -> Array:
    blocks, rank = ints(block), block.size
    shape = sized(op, _spread(op, x.shape, blocks, ints(crops)))
    space, rest = x.shape[1 : 1 + rank], x.shape[1 + rank :]
    x = x.reshape(*blocks, shape[0], *space, *rest)
    pairs = (axis for i in range(rank) for axis in (rank + 1 + i, i))
    order = [rank, *pairs, *range(2 * rank + 1, x.ndim)]
    whole = [n * b for n, b in zip(space, blocks, strict=True)]
    x = x.transpose(order).reshape(shape[0], *whole, *rest)
    starts = ints(crops)[::2]
    kept = [slice(start, start + n) for start, n in zip(starts, shape[1:], strict=False)]
    return x[(slice(None), *kept)]


_BLOCKS = f"x: {MOVABLE}, block[1]: {INDEX}, edges[2]: {INDEX} -> x"
define(
    "SPACE_TO_DEPTH",
    infer=shaped(_deep),
    evaluate=on(_space_to_depth),
    family="layout",
    takes="x[4]: f32 u8 i8 i32 i64 -> x",
)
define(
    "DEPTH_TO_SPACE",
    infer=shaped(_wide),
    evaluate=on(_depth_to_space),
    family="layout",
    takes="x[4]: f32 u8 i8 i32 i64 -> x",
)
define(
    "SPACE_TO_BATCH_ND",
    infer=shaped(_batched, by=[1, 2]),
    evaluate=on(_space_to_batch),
    family="layout",
    takes=_BLOCKS,
)
define(
    "BATCH_TO_SPACE_ND",
    infer=shaped(_spread, by=[1, 2]),
    evaluate=on(_batch_to_space),
    family="layout",
    takes=_BLOCKS,
)


# -- diagonals ----------------------------------------------------------------------------------


def _square(op: Op, shape: Shape) -> Shape:
    require(len(shape) > 0, op, "a scalar has no diagonal")
    return (*shape, shape[-1])


def _matrix_diag(op: Op, x: Array) -> Array:
    """The rest is 0, not the zero point: so the kernel does it for quantised types, too."""
    result = np.zeros(sized(op, _square(op, x.shape)), x.dtype)
    places = np.arange(x.shape[-1])
    result[..., places, places] = x
    return result


def _check_diagonal(op: Op, shape: Shape, diagonal: Shape) -> None:
    wanted = (*shape[:-2], min(shape[-2:]))
    fits = elements(diagonal) == elements(wanted)
    require(fits, op, f"a diagonal of shape {diagonal}", f"it takes {wanted}")


def _matrix_set_diag(op: Op, x: Array, diagonal: Array) -> Array:
    _check_diagonal(op, x.shape, diagonal.shape)
    places = np.arange(min(x.shape[-2:]))
    result = x.copy()
    result[..., places, places] = diagonal.reshape(*x.shape[:-2], places.size)
    return result


# LiteRT's kernels treat every type they do not name as float32, which reads past the end of bool.
_NAMED = "f32 u8 i8 i16 i32 u32 i64"
define(
    "MATRIX_DIAG",
    infer=shaped(_square),
    evaluate=on(_matrix_diag),
    family="layout",
    takes=f"x[1-]: {_NAMED} -> x",
)
define(
    "MATRIX_SET_DIAG",
    infer=fitting(_check_diagonal, [0, 1]),
    evaluate=on(_matrix_set_diag),
    family="layout",
    takes=f"x[2-]: {_NAMED}, diagonal[1-]: x -> x",
)
