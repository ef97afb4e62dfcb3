"""One row an operator: how it is written in MIL, the language of Core ML's ML programs.

A row's function is given a Writer and the op, and returns the op's results as variables of MIL.
Graphs are NHWC, MIL's images NCHW: what works on images is put between two transpositions, of which
coremltools' passes take away those that meet. Where MIL's documentation leaves a case open, the op
is written with others that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ...ir import Array, DType, Op, Shape, Tensor
from ...ops.base import attr, axis_in, ints
from ...ops.conv import window_axes
from ...ops.geometry import Axis, axis
from ...ops.image import nearest_places
from ...ops.shape import sliced_axes

Var = Any  # a variable of MIL
NCHW, NHWC = (0, 3, 1, 2), (0, 2, 3, 1)
MOST_DIMENSIONS = 5
LARGEST_WINDOW = 16384
FLOAT, NUMBERS = (DType.FLOAT32,), (DType.FLOAT32, DType.INT32)
ANY = (*NUMBERS, DType.BOOL)


class Writer:
    """Writes ops into the function that coremltools builds now. mb: its builder."""

    def __init__(self, builder: Any, inputs: dict[Tensor, Var]) -> None:
        self.mb, self._made = builder, dict(inputs)

    def get(self, tensor: Tensor) -> Var:
        if tensor not in self._made:
            self._made[tensor] = self.mb.const(val=_narrow(tensor.values))
        return self._made[tensor]

    def put(self, tensor: Tensor, made: Var) -> None:
        self._made[tensor] = made

    def operand(self, op: Op, place: int = 0) -> Var:
        return self.get(op.operand(place))

    def activated(self, op: Op, x: Var) -> Var:
        return ACTIVATIONS[attr(op, "fused_activation_function")](self, x)

    def on_images(self, x: Var, run: Callable[[Var], Var]) -> Var:
        """run on NCHW, where x and the result are NHWC."""
        return self.mb.transpose(x=run(self.mb.transpose(x=x, perm=NCHW)), perm=NHWC)

    def reshaped(self, x: Var, shape: Sequence[int]) -> Var:
        return x if tuple(x.shape) == tuple(shape) else self.mb.reshape(x=x, shape=list(shape))

    def taken(self, x: Var, places: Sequence[int], along: int) -> Var:
        """The elements at these places of an axis."""
        if list(places) == list(range(x.shape[along])):
            return x
        return self.mb.gather(x=x, indices=np.array(places, np.int32), axis=along)


def _narrow(values: Array) -> Array:
    """MIL has no int64; what an op reads as numbers beyond int32 does not come here."""
    return values.astype(np.int32) if values.dtype == np.int64 else values


Lower = Callable[[Writer, Op], "Var | Sequence[Var]"]


@dataclass(frozen=True)
class Row:
    """lower: writes the op. types: of its operands and results, but for those at the places in
    `fixed`, which must be constants where they are there (of integers, if they say how the op
    is set). refuses: why an op of these types is not taken; None if it is."""

    lower: Lower
    types: tuple[DType, ...] = FLOAT
    fixed: tuple[int, ...] = ()
    refuses: Callable[[Op], str | None] = lambda op: None


def _constant(op: Op, place: int) -> list[int]:
    return ints(op.operand(place).values)


# -- element by element -------------------------------------------------------------------------


def _unary(name: str, **settings: Any) -> Lower:
    return lambda w, op: getattr(w.mb, name)(x=w.operand(op), **settings)


def _binary(name: str, activates: bool = False) -> Lower:
    def lower(w: Writer, op: Op) -> Var:
        made = getattr(w.mb, name)(x=w.operand(op, 0), y=w.operand(op, 1))
        return w.activated(op, made) if activates else made

    return lower


def _squared_difference(w: Writer, op: Op) -> Var:
    return w.mb.square(x=w.mb.sub(x=w.operand(op, 0), y=w.operand(op, 1)))


def _negative(w: Writer, op: Op) -> Var:
    return w.mb.mul(x=w.operand(op), y=op.operand(0).dtype.numpy.type(-1))


def _clipped(low: float, high: float) -> Lower:
    return _unary("clip", alpha=np.float32(low), beta=np.float32(high))


def _hard_swish(w: Writer, op: Op) -> Var:
    x = w.operand(op)
    gate = w.mb.clip(x=w.mb.add(x=x, y=np.float32(3)), alpha=np.float32(0), beta=np.float32(6))
    return w.mb.mul(x=w.mb.mul(x=x, y=gate), y=np.float32(1 / 6))


def _leaky_relu(w: Writer, op: Op) -> Var:
    return w.mb.leaky_relu(x=w.operand(op), alpha=np.float32(attr(op, "alpha")))


def _prelu(w: Writer, op: Op) -> Var:
    """MIL's own wants a slope for each channel of an image."""
    x = w.operand(op)
    below = w.mb.minimum(x=x, y=np.float32(0))
    return w.mb.add(x=w.mb.relu(x=x), y=w.mb.mul(x=below, y=w.operand(op, 1)))


def _gelu(w: Writer, op: Op) -> Var:
    mode = "TANH_APPROXIMATION" if attr(op, "approximate") else "EXACT"
    return w.mb.gelu(x=w.operand(op), mode=mode)


def _softmax(w: Writer, op: Op) -> Var:
    beta = np.float32(attr(op, "beta"))
    x = w.operand(op)
    return w.mb.softmax(x=x if beta == 1 else w.mb.mul(x=x, y=beta), axis=-1)


def _log_softmax(w: Writer, op: Op) -> Var:
    x = w.operand(op)
    return w.mb.sub(x=x, y=w.mb.reduce_log_sum_exp(x=x, axes=[-1], keep_dims=True))


def _l2_normalised(w: Writer, op: Op) -> Var:
    x = w.operand(op)
    norm = w.mb.sqrt(x=w.mb.reduce_sum(x=w.mb.square(x=x), axes=[-1], keep_dims=True))
    return w.mb.real_div(x=x, y=w.mb.maximum(x=norm, y=np.float32(1e-6)))


def _select(w: Writer, op: Op) -> Var:
    return w.mb.select(cond=w.operand(op, 0), a=w.operand(op, 1), b=w.operand(op, 2))


def _select_refuses(op: Op) -> str | None:
    """coremltools 9 infers other shapes than its documentation says where these broadcast."""
    shapes = {op.operand(place).shape for place in (0, 1, 2)}
    return None if len(shapes) == 1 else "its operands have different shapes"


_MIL_TYPES = {DType.FLOAT32: "fp32", DType.INT32: "int32", DType.BOOL: "bool"}


def _cast(w: Writer, op: Op) -> Var:
    return w.mb.cast(x=w.operand(op), dtype=_MIL_TYPES[op.outputs[0].dtype])


ACTIVATIONS: dict[str, Callable[[Writer, Var], Var]] = {
    "NONE": lambda w, x: x,
    "RELU": lambda w, x: w.mb.relu(x=x),
    "RELU6": lambda w, x: w.mb.relu6(x=x),
    "RELU_N1_TO_1": lambda w, x: w.mb.clip(x=x, alpha=np.float32(-1), beta=np.float32(1)),
}


# -- products -----------------------------------------------------------------------------------


def _padding(axes: Sequence[Axis]) -> list[int]:
    return [side for a in axes for side in (a.before, a.after)]


def _bias(op: Op, place: int, channels: int) -> Array:
    bias = op.input(place)
    return np.zeros(channels, np.float32) if bias is None else bias.values.reshape(-1)


def _conv(w: Writer, op: Op) -> Var:
    kernel = op.operand(1).values
    groups = op.operand(0).shape[3] // kernel.shape[3]
    return _convolved(w, op, kernel.transpose(0, 3, 1, 2), kernel.shape[1:3], groups)


def _depthwise(w: Writer, op: Op) -> Var:
    """Output channel c * multiplier + m reads input channel c: MIL's order of groups too."""
    kernel = op.operand(1).values
    return _convolved(
        w, op, kernel.transpose(3, 0, 1, 2), kernel.shape[1:3], op.operand(0).shape[3]
    )


def _convolved(w: Writer, op: Op, kernel: Array, taps: Shape, groups: int) -> Var:
    """kernel: [O, C / groups, H, W]."""
    axes = window_axes(op, op.operand(0).shape[1:3], taps)
    run = partial(
        w.mb.conv,
        weight=np.ascontiguousarray(kernel),
        bias=_bias(op, 2, len(kernel)),
        strides=[a.stride for a in axes],
        dilations=[a.dilation for a in axes],
        pad_type="custom",
        pad=_padding(axes),
        groups=groups,
    )
    return w.on_images(w.operand(op), lambda x: w.activated(op, run(x=x)))


def _crops(op: Op) -> list[int]:
    """What is cut off both ends of both axes, where all stamps of the filter are summed up."""
    taps, sizes = op.operand(1).shape[1:3], op.outputs[0].shape[1:3]
    axes = window_axes(op, sizes, taps)
    whole = [(a.out - 1) * a.stride + a.taps for a in axes]
    ends = [full - a.before - a.size for full, a in zip(whole, axes, strict=True)]
    return [side for a, end in zip(axes, ends, strict=True) for side in (a.before, end)]


def _transposed_conv(w: Writer, op: Op) -> Var:
    kernel = op.operand(1).values
    run = partial(
        w.mb.conv_transpose,
        weight=np.ascontiguousarray(kernel.transpose(3, 0, 1, 2)),
        bias=_bias(op, 3, len(kernel)),
        strides=[int(attr(op, "stride_h")), int(attr(op, "stride_w"))],
        pad_type="custom",
        pad=_crops(op),
    )
    return w.on_images(w.operand(op, 2), lambda x: w.activated(op, run(x=x)))


def _transposed_conv_refuses(op: Op) -> str | None:
    return None if min(_crops(op)) >= 0 else "its output is larger than what the filter reaches"


def _fully_connected(w: Writer, op: Op) -> Var:
    x, weights, bias = w.operand(op), op.operand(1), op.input(2)
    rows = w.reshaped(x, (-1, weights.shape[1])) if len(x.shape) != 2 else x
    rows = w.reshaped(rows, (int(np.prod(x.shape)) // weights.shape[1], weights.shape[1]))
    if weights.is_constant:
        made = w.mb.linear(x=rows, weight=weights.values, bias=_bias(op, 2, weights.shape[0]))
    else:
        made = w.mb.matmul(x=rows, y=w.get(weights), transpose_y=True)
        made = made if bias is None else w.mb.add(x=made, y=bias.values.reshape(-1))
    return w.reshaped(w.activated(op, made), op.outputs[0].shape)


def _batch_matmul(w: Writer, op: Op) -> Var:
    return w.mb.matmul(
        x=w.operand(op, 0),
        y=w.operand(op, 1),
        transpose_x=bool(attr(op, "adj_x")),
        transpose_y=bool(attr(op, "adj_y")),
    )


def _batch_matmul_refuses(op: Op) -> str | None:
    ranks = [len(op.operand(place).shape) for place in (0, 1)]
    return None if min(ranks) >= 2 else "an operand is no matrix"


# -- pools and sizes ----------------------------------------------------------------------------


def _pool(name: str, **settings: Any) -> Lower:
    def lower(w: Writer, op: Op) -> Var:
        axes = _pool_axes(op)
        run = partial(
            getattr(w.mb, name),
            kernel_sizes=[a.taps for a in axes],
            strides=[a.stride for a in axes],
            pad_type="custom",
            pad=_padding(axes),
            **settings,
        )
        return w.on_images(w.operand(op), lambda x: w.activated(op, run(x=x)))

    return lower


def _pool_axes(op: Op) -> list[Axis]:
    sides = zip(op.operand(0).shape[1:3], ("height", "width"), strict=True)
    return [
        axis(
            op, attr(op, "padding"), size, attr(op, f"filter_{side}"), attr(op, f"stride_{side[0]}")
        )
        for size, side in sides
    ]


def _pool_refuses(op: Op) -> str | None:
    """A window that is mostly padding costs all of it; TensorFlow Lite's delegate for Core ML has
    the same limit for kernels."""
    taps = int(attr(op, "filter_height")) * int(attr(op, "filter_width"))
    return None if taps <= LARGEST_WINDOW else f"its window has {taps} elements"


def _sampling(op: Op) -> str:
    if attr(op, "align_corners"):
        return "STRICT_ALIGN_CORNERS"
    return "UNALIGN_CORNERS" if attr(op, "half_pixel_centers") else "DEFAULT"


def _resize_bilinear(w: Writer, op: Op) -> Var:
    height, width = _constant(op, 1)
    run = partial(
        w.mb.resize_bilinear,
        target_size_height=height,
        target_size_width=width,
        sampling_mode=_sampling(op),
    )
    return w.on_images(w.operand(op), lambda x: run(x=x))


def _resize_bilinear_refuses(op: Op) -> str | None:
    """MIL divides by the number of gaps between new pixels."""
    sizes = zip(op.operand(0).shape[1:3], _constant(op, 1), strict=True)
    single = any(new == 1 and old > 1 for old, new in sizes)
    return "a new size is 1" if single and not attr(op, "half_pixel_centers") else None


def _resize_nearest(w: Writer, op: Op) -> Var:
    x, sizes = w.operand(op), _constant(op, 1)
    olds = op.operand(0).shape[1:3]
    places = [nearest_places(op, old, new).tolist() for old, new in zip(olds, sizes, strict=True)]
    factors = [new // old for old, new in zip(olds, sizes, strict=True)]
    repeats = [
        [i // factor for i in range(old * factor)]
        for old, factor in zip(olds, factors, strict=True)
    ]
    if places == repeats:
        run = w.mb.upsample_nearest_neighbor
        return w.on_images(
            x, lambda y: run(x=y, scale_factor_height=factors[0], scale_factor_width=factors[1])
        )
    return w.taken(w.taken(x, places[0], 1), places[1], 2)


def _by_blocks(name: str) -> Lower:
    def lower(w: Writer, op: Op) -> Var:
        size = int(attr(op, "block_size"))
        if size == 1:
            return w.mb.identity(x=w.operand(op))
        return w.on_images(w.operand(op), lambda x: getattr(w.mb, name)(x=x, block_size=size))

    return lower


# -- shapes and places --------------------------------------------------------------------------


def _reshape(w: Writer, op: Op) -> Var:
    return w.mb.reshape(x=w.operand(op), shape=list(op.outputs[0].shape))


def _transpose(w: Writer, op: Op) -> Var:
    rank = len(op.operand(0).shape)
    return w.mb.transpose(x=w.operand(op), perm=[p % rank for p in _constant(op, 1)])


def _concatenation(w: Writer, op: Op) -> Var:
    values = [w.operand(op, place) for place in range(len(op.inputs))]
    rank = len(op.outputs[0].shape)
    made = w.mb.concat(values=values, axis=axis_in(op, int(attr(op, "axis")), rank))
    return w.activated(op, made)


def _pack(w: Writer, op: Op) -> Var:
    values = [w.operand(op, place) for place in range(len(op.inputs))]
    rank = len(op.outputs[0].shape)
    return w.mb.stack(values=values, axis=axis_in(op, int(attr(op, "axis")), rank))


def _unpack(w: Writer, op: Op) -> list[Var]:
    shape = op.operand(0).shape
    along = axis_in(op, int(attr(op, "axis")), len(shape))
    parts = _several(w.mb.split(x=w.operand(op), num_splits=shape[along], axis=along))
    return [w.reshaped(p, t.shape) for p, t in zip(parts, op.outputs, strict=True)]


def _several(made: Var | Sequence[Var]) -> list[Var]:
    """MIL's split into one part is that part."""
    return list(made) if isinstance(made, list | tuple) else [made]


def _split(w: Writer, op: Op, x: int, along: int) -> list[Var]:
    place = axis_in(op, _constant(op, along)[0], len(op.operand(x).shape))
    sizes = [t.shape[place] for t in op.outputs]
    if len(sizes) == 1:
        return [w.mb.identity(x=w.operand(op, x))]
    return _several(w.mb.split(x=w.operand(op, x), split_sizes=sizes, axis=place))


def _slice(w: Writer, op: Op) -> Var:
    begin, shape = _constant(op, 1), op.outputs[0].shape
    end = [b + n for b, n in zip(begin, shape, strict=True)]
    return w.mb.slice_by_index(x=w.operand(op), begin=begin, end=end)


def _strided_slice(w: Writer, op: Op) -> Var:
    specification = (_constant(op, place) for place in (1, 2, 3))
    axes = sliced_axes(op, op.operand(0).shape, *specification)
    taken = [a.range(bool(attr(op, "offset"))) for a in axes]
    x = w.reshaped(w.operand(op), [a.size for a in axes])
    for along, places in enumerate(taken):
        if places.step < 0:
            x = w.taken(x, places, along)
    forward = [r if r.step > 0 else range(len(r)) for r in taken]
    made = w.mb.slice_by_index(
        x=x,
        begin=[r.start for r in forward],
        end=[r.stop for r in forward],
        stride=[r.step for r in forward],
    )
    return w.reshaped(made, op.outputs[0].shape)


def _strided_slice_refuses(op: Op) -> str | None:
    specification = (_constant(op, place) for place in (1, 2, 3))
    rank = len(sliced_axes(op, op.operand(0).shape, *specification))
    return None if rank <= MOST_DIMENSIONS else f"it has {rank} dimensions on the way"


def _pad(w: Writer, op: Op) -> Var:
    value = op.input(2)
    fill = np.float32(0) if value is None else value.values.reshape(())
    pads = _constant(op, 1)
    return w.mb.pad(x=w.operand(op), pad=pads, mode="constant", constant_val=fill)


def _mirror_pad(w: Writer, op: Op) -> Var:
    """MIL's own knows no repeated edge, and the last two axes only."""
    x, pads = w.operand(op), _constant(op, 1)
    mode = "reflect" if attr(op, "mode") == "REFLECT" else "symmetric"
    for along, size in enumerate(op.operand(0).shape):
        before, after = pads[2 * along : 2 * along + 2]
        places = np.pad(np.arange(size), (before, after), mode=mode)  # type: ignore[call-overload]
        x = w.taken(x, places.tolist(), along)
    return x


def _tile(w: Writer, op: Op) -> Var:
    return w.mb.tile(x=w.operand(op), reps=_constant(op, 1))


def _broadcast_to(w: Writer, op: Op) -> Var:
    shape = op.outputs[0].shape
    lead = (1,) * (len(shape) - len(op.operand(0).shape))
    x = w.reshaped(w.operand(op), (*lead, *op.operand(0).shape))
    times = [new // old for old, new in zip(x.shape, shape, strict=True)]
    return w.mb.tile(x=x, reps=times)


def _gather(w: Writer, op: Op) -> Var:
    rank, indices = len(op.operand(0).shape), op.operand(1)
    return w.mb.gather(
        x=w.operand(op),
        indices=w.get(indices),
        axis=axis_in(op, int(attr(op, "axis")), rank),
        batch_dims=int(attr(op, "batch_dims")) % max(len(indices.shape), 1),
    )


def _gather_nd(w: Writer, op: Op) -> Var:
    return w.mb.gather_nd(x=w.operand(op), indices=w.operand(op, 1))


def _embedding_lookup(w: Writer, op: Op) -> Var:
    return w.mb.gather(x=w.operand(op, 1), indices=w.operand(op), axis=0)


def _reverse(w: Writer, op: Op) -> Var:
    rank = len(op.operand(0).shape)
    return w.mb.reverse(x=w.operand(op), axes=[a % rank for a in _constant(op, 1)])


# -- reductions ---------------------------------------------------------------------------------


def _reduce(name: str) -> Lower:
    def lower(w: Writer, op: Op) -> Var:
        rank = len(op.operand(0).shape)
        axes = sorted({a % rank for a in _constant(op, 1)})
        if not axes:
            return w.mb.identity(x=w.operand(op))
        keeps = bool(attr(op, "keep_dims"))
        return getattr(w.mb, name)(x=w.operand(op), axes=axes, keep_dims=keeps)

    return lower


def _cumsum(w: Writer, op: Op) -> Var:
    return w.mb.cumsum(
        x=w.operand(op),
        axis=axis_in(op, _constant(op, 1)[0], len(op.operand(0).shape)),
        exclusive=bool(attr(op, "exclusive")),
        reverse=bool(attr(op, "reverse")),
    )


# -- the table ----------------------------------------------------------------------------------


def _activation_refuses(op: Op) -> str | None:
    name = attr(op, "fused_activation_function")
    if name not in ACTIVATIONS:
        return f"it has the fused activation {name}"
    of_integers = name != "NONE" and not op.outputs[0].dtype.is_float
    return "it has an activation of integers" if of_integers else None


def _both(*reasons: Callable[[Op], str | None]) -> Callable[[Op], str | None]:
    return lambda op: next(filter(None, (reason(op) for reason in reasons)), None)


_COMPARED = {"EQUAL": "equal", "NOT_EQUAL": "not_equal", "LESS": "less", "GREATER": "greater",
             "LESS_EQUAL": "less_equal", "GREATER_EQUAL": "greater_equal"}  # fmt: skip
_UNARY = {"EXP": "exp", "SQRT": "sqrt", "ABS": "abs", "SQUARE": "square", "SIN": "sin",
          "COS": "cos", "FLOOR": "floor", "CEIL": "ceil", "ROUND": "round", "SIGN": "sign",
          "TANH": "tanh", "LOGISTIC": "sigmoid", "RELU": "relu", "RELU6": "relu6"}  # fmt: skip
_REDUCED = {"MEAN": "reduce_mean", "SUM": "reduce_sum", "REDUCE_MAX": "reduce_max",
            "REDUCE_MIN": "reduce_min", "REDUCE_PROD": "reduce_prod"}  # fmt: skip

ROWS: dict[str, Row] = {
    **{name: Row(_unary(mil)) for name, mil in _UNARY.items()},
    # MIL adds an epsilon of its own where none is given: the smallest that changes no answer.
    "LOG": Row(_unary("log", epsilon=np.float32(1e-45))),
    "RSQRT": Row(_unary("rsqrt", epsilon=np.float32(0))),
    "NEG": Row(_negative, NUMBERS),
    "RELU_N1_TO_1": Row(_clipped(-1, 1)),
    "RELU_0_TO_1": Row(_clipped(0, 1)),
    "ELU": Row(_unary("elu", alpha=np.float32(1))),
    "HARD_SWISH": Row(_hard_swish),
    "LEAKY_RELU": Row(_leaky_relu),
    "PRELU": Row(_prelu),
    "GELU": Row(_gelu),
    "SOFTMAX": Row(
        _softmax, refuses=lambda op: None if attr(op, "beta") > 0 else "its beta is not positive"
    ),
    "LOG_SOFTMAX": Row(_log_softmax),
    "L2_NORMALIZATION": Row(_l2_normalised),
    "ADD": Row(_binary("add", True), NUMBERS, refuses=_activation_refuses),
    "SUB": Row(_binary("sub", True), NUMBERS, refuses=_activation_refuses),
    "MUL": Row(_binary("mul", True), NUMBERS, refuses=_activation_refuses),
    "DIV": Row(_binary("real_div", True), refuses=_activation_refuses),
    "MAXIMUM": Row(_binary("maximum"), NUMBERS),
    "MINIMUM": Row(_binary("minimum"), NUMBERS),
    "POW": Row(_binary("pow")),
    "FLOOR_DIV": Row(_binary("floor_div")),
    "FLOOR_MOD": Row(_binary("mod")),
    "SQUARED_DIFFERENCE": Row(_squared_difference),
    **{
        name: Row(_binary(mil), ANY, refuses=lambda op: _of_bools(op))
        for name, mil in _COMPARED.items()
    },
    "LOGICAL_AND": Row(_binary("logical_and"), ANY),
    "LOGICAL_OR": Row(_binary("logical_or"), ANY),
    "LOGICAL_NOT": Row(_unary("logical_not"), ANY),
    "SELECT": Row(_select, ANY, refuses=_select_refuses),
    "SELECT_V2": Row(_select, ANY, refuses=_select_refuses),
    "CAST": Row(_cast, ANY),
    "CONV_2D": Row(_conv, fixed=(1, 2), refuses=_activation_refuses),
    "DEPTHWISE_CONV_2D": Row(_depthwise, fixed=(1, 2), refuses=_activation_refuses),
    "TRANSPOSE_CONV": Row(
        _transposed_conv,
        fixed=(0, 1, 3),
        refuses=_both(_activation_refuses, _transposed_conv_refuses),
    ),
    "FULLY_CONNECTED": Row(_fully_connected, fixed=(2,), refuses=_activation_refuses),
    "BATCH_MATMUL": Row(_batch_matmul, refuses=_batch_matmul_refuses),
    "MAX_POOL_2D": Row(_pool("max_pool"), refuses=_both(_activation_refuses, _pool_refuses)),
    "AVERAGE_POOL_2D": Row(
        _pool("avg_pool", exclude_padding_from_average=True),
        refuses=_both(_activation_refuses, _pool_refuses),
    ),
    "RESIZE_BILINEAR": Row(_resize_bilinear, fixed=(1,), refuses=_resize_bilinear_refuses),
    "RESIZE_NEAREST_NEIGHBOR": Row(_resize_nearest, fixed=(1,)),
    "DEPTH_TO_SPACE": Row(_by_blocks("depth_to_space")),
    "SPACE_TO_DEPTH": Row(_by_blocks("space_to_depth")),
    "RESHAPE": Row(_reshape, NUMBERS, fixed=(1,)),
    "SQUEEZE": Row(_reshape, NUMBERS),
    "EXPAND_DIMS": Row(_reshape, NUMBERS, fixed=(1,)),
    "TRANSPOSE": Row(_transpose, NUMBERS, fixed=(1,)),
    "CONCATENATION": Row(_concatenation, NUMBERS, refuses=_activation_refuses),
    "PACK": Row(_pack, NUMBERS),
    "UNPACK": Row(_unpack, NUMBERS),
    "SPLIT": Row(partial(_split, x=1, along=0), NUMBERS, fixed=(0,)),
    "SPLIT_V": Row(partial(_split, x=0, along=2), NUMBERS, fixed=(1, 2)),
    "SLICE": Row(_slice, NUMBERS, fixed=(1, 2)),
    "STRIDED_SLICE": Row(_strided_slice, NUMBERS, fixed=(1, 2, 3), refuses=_strided_slice_refuses),
    "PAD": Row(_pad, fixed=(1, 2)),
    "PADV2": Row(_pad, fixed=(1, 2)),
    "MIRROR_PAD": Row(_mirror_pad, NUMBERS, fixed=(1,)),
    "TILE": Row(_tile, NUMBERS, fixed=(1,)),
    "BROADCAST_TO": Row(_broadcast_to, NUMBERS, fixed=(1,)),
    "GATHER": Row(_gather, NUMBERS),
    "GATHER_ND": Row(_gather_nd, NUMBERS),
    "EMBEDDING_LOOKUP": Row(_embedding_lookup, NUMBERS),
    "REVERSE_V2": Row(_reverse, NUMBERS, fixed=(1,)),
    **{name: Row(_reduce(mil), fixed=(1,)) for name, mil in _REDUCED.items()},
    "CUMSUM": Row(_cumsum, fixed=(1,)),
}


def _of_bools(op: Op) -> str | None:
    """MIL compares numbers."""
    return "it compares truth values" if op.operand(0).dtype is DType.BOOL else None


def lower(w: Writer, op: Op) -> None:
    """Write the op, and keep its results."""
    for tensor, made in zip(op.outputs, _several(ROWS[op.name].lower(w, op)), strict=True):
        w.put(tensor, made)


def refusal(op: Op) -> str | None:
    """Why Core ML does not get the op; None if it does."""
    row = ROWS.get(op.name)
    if row is None:
        return f"{op.name} is not in the table of operators for Core ML"
    return _of_tensors(op, row) or row.refuses(op)


def _of_tensors(op: Op, row: Row) -> str | None:
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    if any(t.is_dynamic for t in tensors):
        return "a shape is not known before the run"
    if any(t.is_variable for t in tensors):
        return "it keeps state"
    if all(t.is_constant for t in op.inputs if t is not None):
        return "it computes a constant"
    return next(filter(None, _reasons(op, row)), None)


def _reasons(op: Op, row: Row) -> list[str | None]:
    found = [_of_operand(op, row, place) for place in range(len(op.inputs))]
    return found + [_of_value(t, row) for t in op.outputs]


def _of_operand(op: Op, row: Row, place: int) -> str | None:
    tensor = op.inputs[place]
    if tensor is None:
        return None
    if place not in row.fixed:
        return _of_value(tensor, row)
    if not tensor.is_constant:
        return f"'{tensor.name}' is not a constant"
    sets = tensor.dtype in (DType.INT32, DType.INT64)
    return None if sets or tensor.dtype in row.types else _of_type(tensor, row)


def _of_value(tensor: Tensor, row: Row) -> str | None:
    if tensor.dtype not in row.types:
        return _of_type(tensor, row)
    if len(tensor.shape) > MOST_DIMENSIONS:
        return f"'{tensor.name}' has more than {MOST_DIMENSIONS} dimensions"
    if 0 in tensor.shape or (not tensor.shape and not tensor.is_constant):
        return f"'{tensor.name}' has no dimensions, or no elements"
    return None


def _of_type(tensor: Tensor, row: Row) -> str:
    takes = " ".join(t.short for t in row.types)
    return f"'{tensor.name}' is {tensor.dtype.short}; Core ML gets {takes}"
