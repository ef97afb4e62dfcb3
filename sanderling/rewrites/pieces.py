"""Values cut into pieces and put together by the ops that every accelerator has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ..ir import Array, DType, Op, Shape, Tensor
from ..ir.rewrite import CONST, Match, P, Var
from ..ops.base import attr
from ..passes.common import same_quant
from .ranks import BROADCAST
from .steps import Attributes, Rewrite, Steps, integers, is_fixed, is_float, need
from .views import integers_of

MOST_PIECES = 64  # more slices than this cost more than the op that they replace


def _cut(make: Steps, x: Tensor, axis: int, taken: range, out: Tensor | None = None) -> Tensor:
    """A piece of one axis: a SLICE, or a STRIDED_SLICE where it takes every nth."""
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = taken.start, taken.stop
    if taken.step == 1:
        size = [e - b for b, e in zip(begin, end, strict=True)]
        operands = [make.constant(np.array(v, np.int32)) for v in (begin, size)]
        return make.op("SLICE", [x, *operands], out)
    strides = [1] * len(x.shape)
    strides[axis] = taken.step
    operands = [make.constant(np.array(v, np.int32)) for v in (begin, end, strides)]
    return make.op("STRIDED_SLICE", [x, *operands], out)


def _joined(make: Steps, pieces: Sequence[Tensor], axis: int, out: Tensor | None = None) -> Tensor:
    quant = make.out.quant
    return make.op("CONCATENATION", pieces, out, quant, axis=axis, fused_activation_function="NONE")


# -- apart and together -------------------------------------------------------------------------


def _pack(make: Steps, match: Match) -> None:
    op = match.root
    need(is_fixed(op) and make.out.shape)
    axis = int(attr(op, "axis")) % len(make.out.shape)
    shape = tuple(1 if a == axis else n for a, n in enumerate(make.out.shape))
    views = [make.reshape(t, shape) for t in op.inputs if t is not None]
    need(len(views) > 1)
    _joined(make, views, axis, make.out)


def _unpack(make: Steps, match: Match) -> None:
    op, x = match.root, match["x"]
    need(is_fixed(op) and len(op.outputs) <= MOST_PIECES)
    axis = int(attr(op, "axis")) % len(x.shape)
    for index, out in enumerate(op.outputs):
        make.reshape(_cut(make, x, axis, range(index, index + 1)), out=out)


def _split(make: Steps, match: Match) -> None:
    """SPLIT has the axis first, SPLIT_V last."""
    op = match.root
    places = (1, 0) if op.name == "SPLIT" else (0, 2)
    x = op.operand(places[0])
    axis = integers(op.input(places[1]))[0] % len(x.shape)
    need(is_fixed(op) and len(op.outputs) <= MOST_PIECES)
    start = 0
    for out in op.outputs:
        stop = start + out.shape[axis]
        _cut(make, x, axis, range(start, stop), out)
        start = stop


def _add_all(make: Steps, match: Match) -> None:
    first, *others = (t for t in match.root.inputs if t is not None)
    need(others)
    total = first
    for index, operand in enumerate(others, 1):
        out = make.out if index == len(others) else None
        total = make.op("ADD", [total, operand], out, fused_activation_function="NONE")


# -- choosing -----------------------------------------------------------------------------------


def _spans(indices: Sequence[int]) -> Iterator[range]:
    """The indices as stretches of even steps forward, the longest first found."""
    start = 0
    while start < len(indices):
        step = indices[start + 1] - indices[start] if start + 1 < len(indices) else 1
        stop = start + 1
        while stop < len(indices) and step > 0 and indices[stop] - indices[stop - 1] == step:
            stop += 1
        first, last = indices[start], indices[stop - 1]
        yield range(first, last + 1, step if stop - start > 1 else 1)
        start = stop


def _gather_axis(op: Op) -> int:
    need(is_fixed(op) and not attr(op, "batch_dims"))
    return int(attr(op, "axis")) % len(op.operand(0).shape)


def _gather_flat(make: Steps, match: Match) -> None:
    """Gather with one row of indices, and give the result its dimensions afterwards."""
    op, indices = match.root, match["indices"]
    _gather_axis(op)
    need(len(indices.shape) != 1)
    flat = make.constant(integers_of(indices).reshape(-1))
    make.reshape(make.again([match["x"], flat]), out=make.out)


def _gather_slices(make: Steps, match: Match) -> None:
    op, x = match.root, match["x"]
    axis, size = _gather_axis(op), x.shape[_gather_axis(op)]
    spans = list(_spans([i % size for i in integers(match["indices"])]))
    need(0 < len(spans) <= MOST_PIECES)
    pieces = [_cut(make, x, axis, span) for span in spans]
    whole = pieces[0] if len(pieces) == 1 else _joined(make, pieces, axis)
    make.reshape(whole, out=make.out)


def _lookup(make: Steps, match: Match) -> None:
    ids, table = match["ids"], match["table"]
    need(is_fixed(match.root) and is_float(table, make.out))
    make.op("GATHER", [table, ids], make.out, axis=0, batch_dims=0)


def _through_floats(make: Steps, match: Match) -> None:
    """Numbers of words and places are far below 2^24, up to which floats are exact."""
    x = match["x"]
    need(is_fixed(match.root) and x.dtype is DType.INT32)
    types: Attributes = {"in_data_type": "INT32", "out_data_type": "FLOAT32"}
    reals, viewed = (
        Tensor(f"{make.out.name}/{name}", DType.FLOAT32, t.shape)
        for name, t in (("reals", x), ("view", make.out))
    )
    make.op("CAST", [x], reals, **types)
    make.reshape(reals, out=viewed)
    back: Attributes = dict(zip(types, reversed(types.values()), strict=True))
    make.op("CAST", [viewed], make.out, **back)


def _mirror_pad(make: Steps, match: Match) -> None:
    """The border is made of slices of the picture in the opposite order."""
    op, value = match.root, match["x"]
    amounts = integers_of(op.input(1))
    skip = 1 if attr(op, "mode") == "REFLECT" else 0
    need(is_fixed(op) and 0 < amounts.sum() <= MOST_PIECES)
    padded = [axis for axis in range(len(value.shape)) if amounts[axis].any()]
    for axis in padded:
        size, (before, after) = value.shape[axis], map(int, amounts[axis])
        front = [skip + i for i in reversed(range(before))]
        back = [size - 1 - skip - i for i in range(after)]
        pieces = [_cut(make, value, axis, range(i, i + 1)) for i in (*front, *back)]
        joined = [*pieces[:before], value, *pieces[before:]]
        value = _joined(make, joined, axis, make.out if axis == padded[-1] else None)


# -- broadcasts ---------------------------------------------------------------------------------


def _repeats(shape: Shape, target: Shape) -> Array:
    lead = _lead(shape, len(target))
    need(all(n in (1, m) for n, m in zip(lead, target, strict=True)))
    return np.array([1 if n == m else m for n, m in zip(lead, target, strict=True)], np.int32)


def _spread(make: Steps, x: Tensor, target: Shape) -> Tensor:
    """The operand at the whole shape: a constant is stored so, another is repeated."""
    if x.shape == target:
        return x
    repeats = _repeats(x.shape, target)
    if x.is_constant:
        full = np.broadcast_to(x.values, target)
        made = Tensor(f"{x.name}/whole", x.dtype, target, data=full, quant=x.quant)
        need(x.quant is None or not x.quant.per_axis)
        return made
    view = make.reshape(x, _lead(x.shape, len(target)))
    return make.op("TILE", [view, make.constant(repeats)])


def _one_rank(make: Steps, match: Match) -> None:
    op, rank = match.root, len(make.out.shape)
    need(is_fixed(op) and any(len(t.shape) != rank for t in op.inputs if t is not None))
    views: list[Tensor | None] = [
        t if t is None or len(t.shape) == rank else make.reshape(t, _lead(t.shape, rank))
        for t in op.inputs
    ]
    make.again(views, make.out)


def _lead(shape: Shape, rank: int) -> Shape:
    need(len(shape) <= rank)  # SELECT_V2 takes [1] where the result is a scalar
    return (1,) * (rank - len(shape)) + tuple(shape)


def _one_shape(make: Steps, match: Match) -> None:
    op = match.root
    need(is_fixed(op) and any(t is not None and t.shape != make.out.shape for t in op.inputs))
    make.again([t and _spread(make, t, make.out.shape) for t in op.inputs], make.out)


def _as_tile(make: Steps, match: Match) -> None:
    x = match["x"]
    need(is_fixed(match.root) and x.shape != make.out.shape and same_quant(x, make.out))
    lead = _lead(x.shape, len(make.out.shape))
    view = make.reshape(x, lead) if lead != x.shape else x
    make.op("TILE", [view, make.constant(_repeats(x.shape, make.out.shape))], make.out)


def _as_copies(make: Steps, match: Match) -> None:
    """TILE, axis by axis: the value beside itself."""
    value, repeats = match["x"], integers(match.root.input(1))
    axes = [a for a, n in enumerate(repeats) if n != 1]
    need(is_fixed(match.root) and axes and sum(repeats[a] for a in axes) <= MOST_PIECES)
    need(all(n > 0 for n in repeats))
    for axis in axes:
        out = make.out if axis == axes[-1] else None
        value = _joined(make, [value] * repeats[axis], axis, out)


def _is_even(op: Op) -> bool:
    """Say whether all outputs of a split have the same size, so that SPLIT would do."""
    return all(a.shape == b.shape for a, b in pairwise(op.outputs))


def _even_split(make: Steps, match: Match) -> None:
    op = match.root
    need(is_fixed(op) and _is_even(op))
    split = Op("SPLIT", [op.input(2), op.input(0)], op.outputs, {"num_splits": len(op.outputs)})
    split.version = op.version
    make.ops.append(split)


X, INDICES = Var("x"), Var("indices", CONST)
REWRITES = (
    Rewrite(
        "PACK as CONCATENATION", P("PACK"), _pack,
        "PACK is not taken", "a RESHAPE of each operand and a CONCATENATION",
    ),
    Rewrite(
        "UNPACK as slices", P("UNPACK", X), _unpack,
        "UNPACK is not taken", "a SLICE and a RESHAPE for each result",
    ),
    Rewrite(
        "SPLIT_V as SPLIT", P("SPLIT_V"), _even_split,
        "SPLIT_V is not taken", "a SPLIT where the pieces are of one size",
    ),
    Rewrite(
        "split as slices", P(("SPLIT", "SPLIT_V")), _split,
        "SPLIT and SPLIT_V are not taken", "a SLICE for each result",
    ),
    Rewrite(
        "ADD_N as ADDs", P("ADD_N"), _add_all, "ADD_N is not taken", "an ADD for each operand",
    ),
    Rewrite(
        "flat indices", P("GATHER", X, INDICES), _gather_flat,
        "the indices of a GATHER are not one row", "GATHER with one row, and a RESHAPE",
    ),
    Rewrite(
        "GATHER as slices", P("GATHER", X, INDICES), _gather_slices,
        "GATHER is not taken", "a SLICE for each stretch of constant indices, put together",
    ),
    Rewrite(
        "EMBEDDING_LOOKUP as GATHER", P("EMBEDDING_LOOKUP", Var("ids"), Var("table")),
        _lookup, "EMBEDDING_LOOKUP is not taken", "GATHER of the same rows",
    ),
    Rewrite(
        "integers viewed as floats", P("RESHAPE", X), _through_floats,
        "a RESHAPE of integers is not taken",
        "CAST to float32, RESHAPE, CAST back (exact up to 2^24)",
    ),
    Rewrite(
        "MIRROR_PAD as slices", P("MIRROR_PAD", X), _mirror_pad,
        "MIRROR_PAD is not taken", "a SLICE for each line of the border, put together",
    ),
    Rewrite(
        "BROADCAST_TO as TILE", P("BROADCAST_TO", X), _as_tile,
        "BROADCAST_TO is not taken", "a TILE",
    ),
    Rewrite(
        "TILE as CONCATENATION", P("TILE", X), _as_copies,
        "TILE is not taken", "a CONCATENATION of the value with itself",
    ),
    Rewrite(
        "operands of one rank", P(BROADCAST), _one_rank,
        "operands of different ranks are broadcast", "a RESHAPE of the shorter one",
    ),
    Rewrite(
        "operands of one shape", P(BROADCAST), _one_shape,
        "a broadcast is refused", "the constant stored whole, or the other operand repeated (TILE)",
    ),
)  # fmt: skip
