"""Products, pooling and transforms written as other products."""

from __future__ import annotations

import numpy as np

from ..ir import Array, DType, Op, Quant, Tensor
from ..ir.rewrite import CONST, Match, P, Var
from ..ops.base import attr
from ..passes.common import activation
from ..passes.fuse import WINDOW_RULES
from .arithmetic import NONE, Sums
from .steps import EIGHT_BITS, Attributes, Rewrite, Steps, integers, is_fixed, is_float, need

MOST_POINTS = 4096  # of a transform that becomes a product: its matrix has points squared elements


def _matmul(make: Steps, match: Match) -> None:
    """A product with a constant on the right is one with weights, which are stored transposed."""
    op, x, c = match.root, match["x"], match["c"]
    need(is_fixed(op) and not attr(op, "adj_x") and len(x.shape) >= 2)
    need(int(np.prod(c.shape[:-2])) == 1 and (c.quant is None or not c.quant.per_axis))
    matrix = c.values.reshape(c.shape[-2:])
    rows = np.ascontiguousarray(matrix if attr(op, "adj_y") else matrix.T)
    weights = Tensor(f"{c.name}/rows", c.dtype, rows.shape, data=rows, quant=c.quant)
    flat = make.reshape(x, (int(np.prod(x.shape[:-1])), x.shape[-1]))
    product = make.op(
        "FULLY_CONNECTED", [flat, weights, None], quant=make.out.quant, keep_num_dims=False, **NONE
    )
    make.reshape(product, out=make.out)


def _pointwise(make: Steps, match: Match) -> None:
    """Rows are the pixels of a picture, and the product is a convolution of one pixel.

    A product of floats and codes quantises each row by itself, a convolution the whole picture.
    """
    op, x, weights = match.root, match["x"], match["weights"]
    need(is_fixed(op) and len(weights.shape) == 2 and is_float(x) == is_float(weights))
    need(not (weights.dtype is DType.INT8 and weights.quantisation.zero_point.any()))
    count, depth = weights.shape
    need(depth)
    picture = make.reshape(x, (1, int(np.prod(x.shape)) // depth, 1, depth))
    values = weights.values.reshape(count, 1, 1, depth)
    kernel = Tensor(f"{weights.name}/kernel", weights.dtype, values.shape, data=values)
    kernel.quant = weights.quant
    bias = op.input(2) or _zeros(make, x, weights, count)
    how: Attributes = {"fused_activation_function": activation(op), "padding": "VALID"}
    steps: Attributes = {
        "stride_h": 1,
        "stride_w": 1,
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
    }
    made = make.op("CONV_2D", [picture, kernel, bias], quant=make.out.quant, **how, **steps)
    make.reshape(made, out=make.out)


def _depth_to_space(make: Steps, match: Match) -> None:
    """Every channel goes to its place in a block: a transposed convolution with ones."""
    op, x, block = match.root, match["x"], int(attr(match.root, "block_size"))
    need(is_fixed(op) and is_float(x))
    depth = make.out.shape[3]
    places = np.eye(block * block * depth, dtype=np.float32).reshape(block, block, depth, -1)
    weights = make.constant(places.transpose(2, 0, 1, 3))
    sizes = make.constant(np.array(make.out.shape, np.int32))
    how: Attributes = {"padding": "VALID", "stride_h": block, "stride_w": block}
    make.op("TRANSPOSE_CONV", [sizes, weights, x], make.out, **how)


# The place of the bias, and the axis of the weights that is the output's channel.
BIASED = {"CONV_2D": (2, 0), "DEPTHWISE_CONV_2D": (2, 3), "FULLY_CONNECTED": (2, 0)}


def _zero_bias(make: Steps, match: Match) -> None:
    op, x, weights = match.root, match["x"], match["weights"]
    place, axis = BIASED[op.name]
    need(op.input(place) is None)
    bias = _zeros(make, x, weights, weights.shape[axis])
    make.again([*op.inputs[:place], bias], make.out)


def _zeros(make: Steps, x: Tensor, weights: Tensor, count: int) -> Tensor:
    if is_float(x):
        return make.constant(np.zeros(count, np.float32))
    need(x.dtype in EIGHT_BITS and weights.quant is not None)
    bias = make.constant(np.zeros(count, np.int32))
    bias.quant = Quant.of(x.quantisation.scale * weights.quantisation.scale)
    return bias


# -- pooling ------------------------------------------------------------------------------------


def _mean_pool(make: Steps, match: Match) -> None:
    op, x = match.root, match["x"]
    need(is_fixed(op) and len(x.shape) == 4 and {a % 4 for a in integers(op.input(1))} == {1, 2})
    need(is_float(x) or (x.quant is not None and x.quant.same_as(make.out.quant)))
    height, width = x.shape[1:3]
    window: Attributes = {
        "filter_height": height,
        "filter_width": width,
        "stride_h": 1,
        "stride_w": 1,
    }
    whole = len(make.out.shape) == 4
    out = make.out if whole else None
    pooled = make.op("AVERAGE_POOL_2D", [x], out, padding="VALID", **window, **NONE)
    if not whole:
        make.reshape(pooled, out=make.out)


def _root_pool(make: Steps, match: Match) -> None:
    """The root of the mean of squares."""
    op, sums = match.root, Sums(make, match["x"])
    need(activation(op) == "NONE")
    squares = sums.of("MUL", match["x"], match["x"])
    pooled = make.op("AVERAGE_POOL_2D", [squares], **op.attrs)
    sums.unary("SQRT", pooled, make.out)


# -- transforms ---------------------------------------------------------------------------------


def _waves(points: int, taken: int) -> tuple[Array, Array]:
    """The matrices of a real Fourier transform, one row a frequency."""
    turns = np.outer(np.arange(points // 2 + 1), np.arange(taken)) * (2 * np.pi / points)
    return np.cos(turns).astype(np.float32), -np.sin(turns).astype(np.float32)


def _spectrum(make: Steps, match: Match) -> None:
    """The magnitudes of a Fourier transform of rows: two products with constant waves."""
    x, transform = match["x"], match.ops["transform"]
    height, width = integers(transform.input(1))
    need(is_fixed(transform) and is_fixed(match.root) and is_float(x))
    need(height == 1 == x.shape[-2] and width <= MOST_POINTS)
    sums, taken = Sums(make, x), min(width, x.shape[-1])
    need(taken == x.shape[-1])
    flat = make.reshape(x, (int(np.prod(x.shape[:-1])), taken))
    parts = [_product(make, flat, waves) for waves in _waves(width, taken)]
    squares = [sums.of("MUL", part, part) for part in parts]
    magnitude = sums.unary("SQRT", sums.of("ADD", *squares))
    make.reshape(magnitude, out=make.out)


def _product(make: Steps, x: Tensor, weights: Array) -> Tensor:
    operands = [x, make.constant(weights), make.constant(np.zeros(len(weights), np.float32))]
    return make.op("FULLY_CONNECTED", operands, keep_num_dims=False, **NONE)


# -- dilation -----------------------------------------------------------------------------------

DILATION = WINDOW_RULES[0]


def _dilated(make: Steps, match: Match) -> None:
    """Let the pass for all delegates make one convolution of the three ops."""
    made = DILATION.apply(make.graph, match)
    need(isinstance(made, Op))
    assert isinstance(made, Op)
    make.ops.append(made)


X, C, WEIGHTS = Var("x"), Var("c", CONST), Var("weights")
SPECTRUM = P("RFFT2D", X, CONST, bind="transform")
VIEWED = P(("RESHAPE", "SQUEEZE"), SPECTRUM)
REWRITES = (
    Rewrite(
        "BATCH_MATMUL as FULLY_CONNECTED", P("BATCH_MATMUL", X, C), _matmul,
        "BATCH_MATMUL is not taken", "FULLY_CONNECTED, where the right side is constant",
    ),
    Rewrite(
        "FULLY_CONNECTED as CONV_2D",
        P("FULLY_CONNECTED", X, Var("weights", CONST)), _pointwise,
        "FULLY_CONNECTED is taken of one row only", "CONV_2D of one pixel, rows as pixels",
    ),
    Rewrite(
        "DEPTH_TO_SPACE as TRANSPOSE_CONV", P("DEPTH_TO_SPACE", X), _depth_to_space,
        "DEPTH_TO_SPACE is not taken", "TRANSPOSE_CONV with ones at the places of the channels",
    ),
    Rewrite(
        "zero bias", P(tuple(BIASED), X, WEIGHTS), _zero_bias,
        "a bias is required", "a bias of zeros",
    ),
    Rewrite(
        "MEAN as AVERAGE_POOL_2D", P("MEAN", X), _mean_pool,
        "MEAN is not taken", "AVERAGE_POOL_2D of the whole picture",
    ),
    Rewrite(
        "L2_POOL_2D as AVERAGE_POOL_2D", P("L2_POOL_2D", X), _root_pool,
        "L2_POOL_2D is not taken", "SQRT of AVERAGE_POOL_2D of the squares",
    ),
    Rewrite(
        "spectrum as products", P("COMPLEX_ABS", SPECTRUM), _spectrum,
        "Fourier transforms are not taken", "products with constant waves, and SQRT",
    ),
    Rewrite(
        "viewed spectrum as products", P("COMPLEX_ABS", VIEWED), _spectrum,
        "Fourier transforms are not taken", "products with constant waves, and SQRT",
    ),
    Rewrite(
        "dilation", DILATION.pattern, _dilated,
        "SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND are not taken", "a convolution with dilation",
    ),
)  # fmt: skip
