"""Fewer dimensions: neighbours that an op treats alike are one dimension to it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..ir import Op, Shape, Tensor
from ..ir.rewrite import Match, P
from ..ops.base import attr
from .steps import Rewrite, Steps, integers, is_fixed, need
from .views import FULL_RANK, REDUCTIONS, integers_of

# Elementwise ops, whose operands are broadcast.
BROADCAST = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW",
             "FLOOR_DIV", "FLOOR_MOD", "EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS",
             "LESS_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "SELECT_V2")  # fmt: skip
UNARY = ("ABS", "CAST", "CEIL", "COS", "DEQUANTIZE", "ELU", "EXP", "FLOOR", "GELU", "HARD_SWISH",
         "LEAKY_RELU", "LOG", "LOGISTIC", "NEG", "QUANTIZE", "RELU", "RELU6", "RELU_N1_TO_1",
         "ROUND", "RSQRT", "SIGN", "SIN", "SQRT", "SQUARE", "TANH")  # fmt: skip

Groups = list[list[int]]


def _runs(keys: Sequence[object]) -> Groups:
    """Neighbours with equal keys together; None stands alone."""
    groups: Groups = [[0]] if keys else []
    for axis, (before, key) in enumerate(pairwise(keys), 1):
        if key is not None and key == before:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _at_full_rank(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + tuple(shape)


def _merged(shape: Shape, groups: Groups) -> list[int]:
    return [int(np.prod([shape[a] for a in group])) for group in groups]


def _check_fewer(groups: Groups, op: Op) -> None:
    ranks = [len(t.shape) for t in (*op.inputs, *op.outputs) if t is not None]
    need(is_fixed(op) and max(ranks) > FULL_RANK and len(groups) <= FULL_RANK)


def _elementwise(make: Steps, match: Match) -> None:
    """Join the axes that are broadcast in the same way in all operands."""
    op, rank = match.root, len(make.out.shape)
    operands = [t for t in op.inputs if t is not None]
    shapes = [_at_full_rank(t.shape, rank) for t in operands]
    keys = [tuple(s[a] == make.out.shape[a] for s in shapes) for a in range(rank)]
    groups = _runs(keys)
    _check_fewer(groups, op)
    views = [
        make.reshape(t, _merged(shape, groups)) if t.shape else t
        for t, shape in zip(operands, shapes, strict=True)
    ]
    _write(make, views, groups)


def _write(make: Steps, views: Sequence[Tensor | None], groups: Groups, **attrs: Any) -> None:
    """The op on views, and its result under its own shape."""
    inner = Tensor(f"{make.out.name}/inner", make.out.dtype, _merged(make.out.shape, groups))
    inner.quant = make.out.quant
    make.again(views, inner, **attrs)
    make.reshape(inner, out=make.out)


def _transpose(make: Steps, match: Match) -> None:
    """Join the axes that move together; those of one element move with anything."""
    x, perm = match.root.operand(0), integers(match.root.input(1))
    wide = [a for a in perm if x.shape[a] != 1]
    steps = [[wide[0]]] if wide else []
    for before, axis in pairwise(wide):
        between = [x.shape[a] for a in range(before + 1, axis)]
        if axis > before and all(n == 1 for n in between):
            steps[-1].append(axis)
        else:
            steps.append([axis])
    need(steps and is_fixed(match.root) and len(perm) > FULL_RANK >= len(steps))
    order = sorted(range(len(steps)), key=lambda i: steps[i][0])
    view = make.reshape(x, _merged(x.shape, [steps[i] for i in order]))
    places = {group: place for place, group in enumerate(order)}
    moved = make.constant(np.array([places[i] for i in range(len(steps))], np.int32))
    make.reshape(make.again([view, moved]), out=make.out)


# -- ops with an axis, or with parameters for each axis -----------------------------------------


def _concatenation(make: Steps, match: Match) -> None:
    op, rank = match.root, len(make.out.shape)
    axis = int(attr(op, "axis")) % rank
    groups = _runs([None if a == axis else a < axis for a in range(rank)])
    _check_fewer(groups, op)
    views = [make.reshape(t, _merged(t.shape, groups)) for t in op.inputs if t is not None]
    place = next(i for i, group in enumerate(groups) if axis in group)
    _write(make, views, groups, axis=place)


def _last_axis(make: Steps, match: Match) -> None:
    op, x = match.root, match.root.operand(0)
    rank = len(x.shape)
    groups = _runs([None if a == rank - 1 else 0 for a in range(rank)])
    _check_fewer(groups, op)
    view = make.reshape(x, _merged(x.shape, groups))
    _write(make, [view, *op.inputs[1:]], groups)


def _reduction(make: Steps, match: Match) -> None:
    op, x = match.root, match.root.operand(0)
    rank = len(x.shape)
    over = {a % rank for a in integers(op.input(1))}
    groups = _runs([a in over for a in range(rank)])
    _check_fewer(groups, op)
    axes = [i for i, group in enumerate(groups) if group[0] in over]
    view = make.reshape(x, _merged(x.shape, groups))
    reduced = make.again([view, make.constant(np.array(axes, np.int32))], keep_dims=True)
    make.reshape(reduced, out=make.out)


def _slice(make: Steps, match: Match) -> None:
    op, x = match.root, match.root.operand(0)
    begin = integers(op.input(1))
    rank, size = len(x.shape), make.out.shape
    groups = _runs([0 if size[a] == x.shape[a] else None for a in range(rank)])
    _check_fewer(groups, op)
    # A joined run begins at 0 in each of its axes.
    starts = [begin[group[0]] for group in groups]
    parameters = [np.array(v, np.int32) for v in (starts, _merged(size, groups))]
    view = make.reshape(x, _merged(x.shape, groups))
    _write(make, [view, *map(make.constant, parameters)], groups)


def _pad(make: Steps, match: Match) -> None:
    op, x = match.root, match.root.operand(0)
    amounts = integers_of(op.input(1))
    groups = _runs([None if amounts[a].any() else 0 for a in range(len(x.shape))])
    _check_fewer(groups, op)
    rows = make.constant(amounts[[group[0] for group in groups]])
    view = make.reshape(x, _merged(x.shape, groups))
    _write(make, [view, rows, *op.inputs[2:]], groups)


MENDS = "a tensor has more than four dimensions"
DOES = "RESHAPE so that neighbours which the op treats alike are one, the op, RESHAPE back"
REWRITES = tuple(
    Rewrite(f"fewer dimensions: {what}", P(names), write, MENDS, DOES)
    for what, names, write in (
        ("elementwise", (*UNARY, *BROADCAST), _elementwise),
        ("TRANSPOSE", ("TRANSPOSE",), _transpose),
        ("CONCATENATION", ("CONCATENATION",), _concatenation),
        ("last axis", ("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"), _last_axis),
        ("reduction", REDUCTIONS, _reduction),
        ("SLICE", ("SLICE",), _slice),
        ("padding", ("PAD", "PADV2", "MIRROR_PAD"), _pad),
    )
)
