"""The same values under another shape: views, dropped dimensions, ranks that are taken."""

from __future__ import annotations

import numpy as np

from ..ir import DType, Op, Tensor
from ..ir.rewrite import Match, P, Var
from ..ops.base import attr
from ..passes.common import same_quant
from .steps import Attributes, Rewrite, Steps, constant_of, integers, is_fixed, need

REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
FULL_RANK = 4  # what accelerators are made for: batch, height, width, channels


def _as_reshape(make: Steps, match: Match) -> None:
    x = match["x"]
    need(is_fixed(match.root) and same_quant(x, make.out))
    make.reshape(x, out=make.out)


def _flat_product(make: Steps, match: Match) -> None:
    """Put the leading dimensions of a product with weights into one."""
    x, weights = match["x"], match.root.operand(1)
    need(is_fixed(match.root) and (len(x.shape) != 2 or len(make.out.shape) != 2))
    need(len(weights.shape) == 2)
    rows = int(np.prod(x.shape)) // weights.shape[1]
    flat = make.reshape(x, (rows, weights.shape[1]))
    product = make.again([flat, *match.root.inputs[1:]], keep_num_dims=False)
    make.reshape(product, out=make.out)


def _keep_dimensions(make: Steps, match: Match) -> None:
    need(is_fixed(match.root) and not attr(match.root, "keep_dims"))
    kept = make.again(match.root.inputs, keep_dims=True)
    make.reshape(kept, out=make.out)


# -- slices -------------------------------------------------------------------------------------


def slice_ranges(op: Op) -> list[range]:
    """The indices that a STRIDED_SLICE without ellipsis and new axis takes of each axis."""
    x = op.operand(0)
    begins, ends, strides = (integers(op.input(i)) for i in (1, 2, 3))
    masks = {name: int(attr(op, name)) for name in MASKS}
    need(not masks["ellipsis_mask"] and not masks["new_axis_mask"])
    need(not attr(op, "offset") and len(begins) == len(x.shape))
    found = []
    for axis, size in enumerate(x.shape):
        bit, step = 1 << axis, strides[axis]
        begin = None if masks["begin_mask"] & bit else begins[axis]
        end = None if masks["end_mask"] & bit else ends[axis]
        if masks["shrink_axis_mask"] & bit:
            first = begins[axis] % size
            found.append(range(first, first + 1))
        else:
            found.append(range(*slice(begin, end, step).indices(size)))
    return found


def _plain_slice(make: Steps, match: Match) -> None:
    """Take the slice with explicit ends and no masks, and drop dimensions afterwards."""
    op = match.root
    need(is_fixed(op) and any(attr(op, name) for name in MASKS))
    taken = slice_ranges(op)
    need(all(r.step > 0 and len(r) > 0 for r in taken))
    columns = ([r.start for r in taken], [r.stop for r in taken], [r.step for r in taken])
    operands = [make.constant(np.array(c, np.int32)) for c in columns]
    shape = tuple(map(len, taken))
    whole = shape == make.out.shape
    plain: Attributes = dict.fromkeys(MASKS, 0)
    cut = make.again([match["x"], *operands], make.out if whole else None, **plain)
    if not whole:
        make.reshape(cut, out=make.out)


def _as_slice(make: Steps, match: Match) -> None:
    op = match.root
    need(is_fixed(op))
    taken = slice_ranges(op)
    need(all(r.step == 1 and len(r) > 0 for r in taken))
    begin, size = ([r.start for r in taken], [len(r) for r in taken])
    operands = [make.constant(np.array(c, np.int32)) for c in (begin, size)]
    whole = tuple(size) == make.out.shape
    cut = make.op("SLICE", [match["x"], *operands], make.out if whole else None)
    if not whole:
        make.reshape(cut, out=make.out)


# -- more dimensions ----------------------------------------------------------------------------

# Ops with a parameter row for each dimension: what rows for new leading dimensions hold.
LEADING = {
    "SLICE": ((1, 0), (2, 1)),
    "PAD": ((1, (0, 0)),),
    "PADV2": ((1, (0, 0)),),
    "MIRROR_PAD": ((1, (0, 0)),),
    "STRIDED_SLICE": ((1, 0), (2, 1), (3, 1)),
    "TILE": ((1, 1),),
}


def _more_dimensions(make: Steps, match: Match) -> None:
    """Work on a view with leading dimensions of one element."""
    op, x = match.root, match["x"]
    missing = FULL_RANK - len(x.shape)
    need(is_fixed(op) and missing > 0 and len(make.out.shape) == len(x.shape))
    need(op.name != "STRIDED_SLICE" or not any(attr(op, name) for name in MASKS))
    inputs: list[Tensor | None] = [make.reshape(x, (1,) * missing + x.shape), *op.inputs[1:]]
    for place, row in LEADING[op.name]:
        values = integers_of(op.input(place))
        lead = np.array([row] * missing, values.dtype).reshape(missing, *values.shape[1:])
        inputs[place] = make.constant(np.concatenate([lead, values]))
    make.reshape(make.again(inputs), out=make.out)


def integers_of(tensor: Tensor | None) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    """A constant parameter as an array of int32, in its own shape."""
    return constant_of(tensor).values.astype(np.int32)


# -- parameters ---------------------------------------------------------------------------------

# Places of indices, axes, sizes and paddings, which every kernel takes as int32.
PARAMETERS = {
    "RESHAPE": (1,), "TRANSPOSE": (1,), "TILE": (1,), "SLICE": (1, 2), "STRIDED_SLICE": (1, 2, 3),
    "PAD": (1,), "PADV2": (1,), "MIRROR_PAD": (1,), "GATHER": (1,), "GATHER_ND": (1,),
    "BROADCAST_TO": (1,), "EXPAND_DIMS": (1,), "SPLIT_V": (1,),
    **dict.fromkeys(REDUCTIONS, (1,)),
}  # fmt: skip


def _narrow_parameters(make: Steps, match: Match) -> None:
    op, inputs = match.root, list(match.root.inputs)
    for place in PARAMETERS[op.name]:
        operand = op.input(place)
        if operand is not None and operand.dtype is DType.INT64:
            inputs[place] = make.constant(integers_of(operand))
    need(inputs != op.inputs)
    make.again(inputs, make.out)


def _known_shape(make: Steps, match: Match) -> None:
    """State the target of a RESHAPE as a constant: the shape is known."""
    shape = match.root.input(1)
    need(is_fixed(match.root) and shape is not None and not shape.is_constant)
    make.reshape(match["x"], out=make.out)


X = Var("x")
REWRITES = (
    Rewrite(
        "view as RESHAPE", P(("SQUEEZE", "EXPAND_DIMS"), X), _as_reshape,
        "SQUEEZE and EXPAND_DIMS are not taken", "a RESHAPE to the same shape",
    ),
    Rewrite(
        "constant shape", P("RESHAPE", X), _known_shape,
        "the shape of a RESHAPE is computed", "the shape, which is known, as a constant",
    ),
    Rewrite(
        "int32 parameters", P(tuple(PARAMETERS), X), _narrow_parameters,
        "axes, sizes, paddings or indices are int64", "the same numbers as an int32 constant",
    ),
    Rewrite(
        "flat product", P("FULLY_CONNECTED", X), _flat_product,
        "FULLY_CONNECTED has more than two dimensions (keep_num_dims)",
        "RESHAPE to two dimensions, FULLY_CONNECTED, RESHAPE back",
    ),
    Rewrite(
        "kept dimensions", P(REDUCTIONS, X), _keep_dimensions,
        "a reduction drops dimensions", "the reduction with keep_dims, and a RESHAPE",
    ),
    Rewrite(
        "plain slice", P("STRIDED_SLICE", X), _plain_slice,
        "STRIDED_SLICE has masks", "explicit ends, and a RESHAPE where a dimension is dropped",
    ),
    Rewrite(
        "STRIDED_SLICE as SLICE", P("STRIDED_SLICE", X), _as_slice,
        "STRIDED_SLICE is not taken", "a SLICE where all strides are 1",
    ),
    Rewrite(
        "four dimensions", P(tuple(LEADING), X), _more_dimensions,
        "the op is taken at three or four dimensions only",
        "RESHAPE to four dimensions, the op, RESHAPE back",
    ),
)  # fmt: skip
