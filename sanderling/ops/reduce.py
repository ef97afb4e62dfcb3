"""Reductions: over axes, over windows, over segments; arg max/min and cumulative sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ..ir import Array, Op, Shape
from .base import (
    INDEX,
    Spec,
    Specs,
    attr,
    axis_in,
    define,
    elements,
    fitting,
    ints,
    on,
    one_axis,
    operand,
    out_spec,
    require,
    scalar,
    scale_zero,
    shaped,
    single,
    sized,
)
from .fixed import (
    limits,
    multiply,
    multiply64,
    quantize_multiplier,
    to_codes,
    truncated,
    wrap32,
)

# -- axes ---------------------------------------------------------------------------------------


def _reduced_axes(op: Op, axes: npt.ArrayLike, rank: int) -> tuple[int, ...]:
    """The axes in increasing order; a scalar has none, whatever the operand says."""
    if rank == 0:
        return ()
    return tuple(sorted({axis_in(op, a, rank) for a in ints(axes)}))


def _reduced(op: Op, shape: Shape, axes: npt.ArrayLike) -> Shape:
    where = _reduced_axes(op, axes, len(shape))
    if attr(op, "keep_dims"):
        return tuple(1 if i in where else n for i, n in enumerate(shape))
    return tuple(n for i, n in enumerate(shape) if i not in where)


# -- plain reductions ---------------------------------------------------------------------------


def _reduce(op: Op, x: Array, axes: Array, function: np.ufunc) -> Array:
    where, keep = _reduced_axes(op, axes, x.ndim), attr(op, "keep_dims")
    return np.asarray(function.reduce(x, axis=where, dtype=x.dtype, keepdims=keep), x.dtype)


def _extreme(op: Op, x: Array, axes: Array, largest: bool) -> Array:
    """Comparisons with NaN are false, so a NaN never replaces the running value.

    A trap: reducing every axis starts from the first element (a NaN there stays), reducing some
    starts from the type's finite limit (so the maximum of only -inf or NaN is that limit).
    """
    quiet, loud = (np.fmax, np.maximum) if largest else (np.fmin, np.minimum)
    where = _reduced_axes(op, axes, x.ndim)
    whole = len(where) == x.ndim and x.size > 0
    limit = np.asarray(limits(x.dtype)[0 if largest else 1], x.dtype)
    start = x.reshape(-1)[0] if whole else limit
    found = quiet.reduce(x, axis=where, initial=start, keepdims=attr(op, "keep_dims"))
    return np.asarray((loud if whole else quiet)(found, start), x.dtype)


def _is_quantised(x: Array) -> bool:
    """Narrow integers are codes to these kernels, whether the file says so or not."""
    return x.dtype.kind in "iu" and x.dtype.itemsize < 4


def _sum(op: Op, x: Array, axes: Array) -> Array:
    if _is_quantised(x):
        return _quantised_sum(op, x, axes, mean=False)
    return _reduce(op, x, axes, np.add)


def _mean(op: Op, x: Array, axes: Array) -> Array:
    where = _reduced_axes(op, axes, x.ndim)
    count = math.prod(x.shape[a] for a in where)
    if x.size == 0:  # not a number; for integers, whose quiet NaN is 0, that
        empty = np.nan if x.dtype.kind == "f" else 0
        return np.full(_reduced(op, x.shape, axes), empty, x.dtype)
    if _is_quantised(x):
        return _quantised_sum(op, x, axes, mean=True)
    if x.dtype.kind == "f":
        return _reduce(op, x, axes, np.add) / x.dtype.type(count)
    total = _reduce(op, x.astype(np.int64), axes, np.add)
    return truncated(total, count).astype(x.dtype)


def _quantised_sum(op: Op, x: Array, axes: Array, mean: bool) -> Array:
    where = _reduced_axes(op, axes, x.ndim)
    dtype = op.outputs[0].dtype
    if x.size == 0:  # the kernel leaves code 0 here, not the zero point
        return np.zeros(_reduced(op, x.shape, axes), dtype.numpy)
    (scale_in, zero_in), scale_out = scale_zero(op.inputs[0]), scale_zero(op.outputs[0])[0]
    m, shift = (int(v) for v in quantize_multiplier(scale_in / scale_out))
    count = math.prod(x.shape[a] for a in where)
    if mean:  # 1/count goes into the multiplier, with as many bits as fit
        extra = min(count.bit_length() - 1, 32, 31 + shift)
        m, shift = (m << extra) // count, shift - extra
    total = wrap32(_reduce(op, x.astype(np.int64), axes, np.add)) - zero_in * count
    return to_codes(op, multiply(wrap32(total), m, shift))


def _prod(op: Op, x: Array, axes: Array) -> Array:
    source = op.inputs[0]
    if source is None or source.quant is None or not source.quant.is_set:
        return _reduce(op, x, axes, np.multiply)
    require(x.dtype != np.uint8, op, "a quantised u8 product is not defined", "use i8 or i16")
    return _quantised_prod(op, x, axes)


def _quantised_prod(op: Op, x: Array, axes: Array) -> Array:
    """Every factor is rescaled by the count-th root of the output's scale, against overflow.

    Rounding at every step makes the order of the factors matter: it is the input's.
    """
    where = _reduced_axes(op, axes, x.ndim)
    shape, dtype = _reduced(op, x.shape, axes), op.outputs[0].dtype
    if x.size == 0:
        return np.zeros(shape, dtype.numpy)
    (scale_in, zero_in), scale_out = scale_zero(op.inputs[0]), scale_zero(op.outputs[0])[0]
    count = math.prod(x.shape[a] for a in where)
    m, shift = quantize_multiplier(scale_in / scale_out ** (1.0 / count))
    kept = tuple(a for a in range(x.ndim) if a not in where)
    factors = x.transpose(kept + where).reshape(-1, count).astype(np.int64) - zero_in
    product = factors[:, 0]
    for index in range(1, count):
        product = multiply64(product * factors[:, index], m, shift)
    return to_codes(op, multiply64(product, m, shift)).reshape(shape)


REDUCTIONS: dict[str, Callable[..., Array]] = {
    "MEAN": _mean,
    "SUM": _sum,
    "REDUCE_PROD": _prod,
    "REDUCE_MAX": partial(_extreme, largest=True),
    "REDUCE_MIN": partial(_extreme, largest=False),
    "REDUCE_ANY": partial(_reduce, function=np.logical_or),
    "REDUCE_ALL": partial(_reduce, function=np.logical_and),
}
_REDUCED_TYPES = {
    "MEAN": "f32 i32 i64 u8q i8q i16q",
    "SUM": "f32 i32 i64 u8q i8q i16q bool",
    "REDUCE_ANY": "bool",
    "REDUCE_ALL": "bool",
}
_REDUCED = "f32 i32 i64 u8 i8 i16 bool"
for _name, _function in REDUCTIONS.items():
    define(
        _name,
        infer=shaped(_reduced, by=[1]),
        evaluate=on(_function),
        family="reduce",
        takes=f"x: {_REDUCED_TYPES.get(_name, _REDUCED)}, axes: {INDEX} -> x",
        notes="u8 only without quantisation" if _name == "REDUCE_PROD" else "",
    )


# -- arg max, arg min ---------------------------------------------------------------------------


def _without_axis(op: Op, shape: Shape, axis: npt.ArrayLike) -> Shape:
    place = one_axis(op, axis, len(shape))
    require(shape[place] > 0, op, f"axis {place} is empty")
    return shape[:place] + shape[place + 1 :]


def _arg(op: Op, x: Array, axis: Array, quiet: np.ufunc, loud: np.ufunc) -> Array:
    """The first place of the extreme.

    A NaN in the first place wins, elsewhere it loses: the kernel keeps what it has until
    something compares as better. (LiteRT after 2.3 lets NaNs always lose.)
    """
    _without_axis(op, x.shape, axis)
    place = one_axis(op, axis, x.ndim)
    first = np.take(x, [0], axis=place)
    best = loud(first, quiet.reduce(x, axis=place, keepdims=True))
    return np.asarray(np.argmax(x == best, axis=place), op.outputs[0].dtype.numpy)


for _name, _pair in (("ARG_MAX", (np.fmax, np.maximum)), ("ARG_MIN", (np.fmin, np.minimum))):
    define(
        _name,
        infer=shaped(_without_axis, by=[1]),
        evaluate=on(partial(_arg, quiet=_pair[0], loud=_pair[1])),
        family="reduce",
        takes=f"x[1-]: f32 u8 i8 i32 bool, axis: {INDEX} -> {INDEX}",
        notes="axis i32 or i64; indices i32 or i64",
    )


# -- cumulative sum -----------------------------------------------------------------------------


def _infer_cumsum(op: Op, specs: Specs) -> Spec:
    x, axis = operand(op, specs), operand(op, specs, 1).value
    if x.shape is not None and axis is not None:
        one_axis(op, axis, len(x.shape))
    return out_spec(op, x.shape)


def _cumsum(op: Op, x: Array, axis: Array) -> Array:
    place = one_axis(op, axis, x.ndim)
    ordered = np.flip(x, place) if attr(op, "reverse") else x
    total = np.cumsum(ordered, axis=place, dtype=x.dtype)
    if attr(op, "exclusive") and x.shape[place]:
        total = np.roll(total, 1, axis=place)
        total[(slice(None),) * place + (0,)] = 0
    return np.asarray(np.flip(total, place) if attr(op, "reverse") else total, order="C")


define(
    "CUMSUM",
    infer=_infer_cumsum,
    evaluate=on(_cumsum),
    family="reduce",
    takes=f"x[1-]: f32 i32 i64, axis: {INDEX} -> x",
)


# -- windows ------------------------------------------------------------------------------------

# (running value, next) -> running value. The comparisons are written out: NumPy's maximum has
# another idea of NaN.
WINDOW_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add,
    "MUL": np.multiply,
    "MINIMUM": lambda a, b: np.where(a <= b, a, b),
    "MAXIMUM": lambda a, b: np.where(a >= b, a, b),
    "ALL": np.logical_and,
    "ANY": np.logical_or,
}


def window_shape(
    shape: Shape, window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Shape:
    """Places a dilated window can take; none where it is larger than the tensor."""
    return tuple(
        max(0, (size - (w - 1) * d - 1) // s + 1)
        for size, w, s, d in zip(shape, window, strides, dilations, strict=True)
    )


def reduce_windows(
    x: Array,
    init: Array,
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    function: str,
) -> Array:
    """Reduce each window, in row order, starting from init."""
    # A bool is a byte to the kernel, so that sums of bools are not bools on the way.
    values = x.view(np.int8) if x.dtype.kind == "b" else x
    shape = window_shape(x.shape, window, strides, dilations)
    result = np.full(shape, init.reshape(-1)[0], values.dtype)
    if result.size == 0:
        return result.astype(x.dtype)
    for tap in itertools.product(*map(range, window)):
        view = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilations, shape, strides, strict=True)
        )
        result = WINDOW_FUNCTIONS[function](result, values[view]).astype(values.dtype)
    return result.astype(x.dtype)


def _windowed(op: Op, shape: Shape, *numbers: list[int]) -> Shape:
    """The rule for window, strides, dilations: one positive number an axis each."""
    rank = len(shape)
    require(0 < rank <= 6, op, f"rank {rank} is not in 1 to 6")
    for name, values in zip(("window", "strides", "dilations"), numbers, strict=True):
        require(len(values) == rank and min(values) > 0, op, f"{name} {values} does not fit")
    return window_shape(shape, *numbers)


def _check_window(op: Op, init: Shape) -> None:
    single(op, init, "the initial value")
    function = attr(op, "reduce_function")
    require(function in WINDOW_FUNCTIONS, op, f"reduction {function} is not defined")


def _window(op: Op, x: Array, init: Array, *numbers: Array) -> Array:
    _check_window(op, init.shape)
    function = attr(op, "reduce_function")
    window, strides, dilations = map(ints, numbers)
    _windowed(op, x.shape, window, strides, dilations)
    return reduce_windows(x, init, window, strides, dilations, function)


define(
    "REDUCE_WINDOW",
    infer=fitting(_check_window, [1], shaped(_windowed, by=[2, 3, 4])),
    evaluate=on(_window),
    family="reduce",
    takes=f"x[1-6]: f32 f64 i8 i16 i32 i64 u8 bool, init: x, 3 numbers: {INDEX} -> x",
    macs=lambda op: elements(op.outputs[0].shape) * _window_size(op),
)


def _window_size(op: Op) -> int:
    data = None if op.inputs[2] is None else op.inputs[2].data
    return 0 if data is None else elements(ints(data))


# -- segments -----------------------------------------------------------------------------------


def _infer_segment_sum(op: Op, specs: Specs) -> Spec:
    x, ids = operand(op, specs), operand(op, specs, 1)
    if x.shape is None or ids.value is None:
        return out_spec(op, None)
    return out_spec(op, (_segments(op, ids.value, x.shape), *x.shape[1:]))


def _segments(op: Op, ids: Array, shape: Shape) -> int:
    fits = ids.ndim == 1 and len(shape) > 0 and ids.size == shape[0]
    require(fits, op, f"ids of shape {ids.shape} do not fit data of shape {shape}")
    steps = np.diff(ids.astype(np.int64), prepend=0)
    fits = bool(np.all((steps == 0) | (steps == 1))) and (ids.size == 0 or ids[0] == 0)
    require(fits, op, "segment ids must start at 0 and grow by at most 1")
    return int(ids[-1]) + 1 if ids.size else 0


def _segment_sum(op: Op, x: Array, ids: Array) -> Array:
    result = np.zeros((_segments(op, ids, x.shape), *x.shape[1:]), x.dtype)
    np.add.at(result, ids, x)
    return result


define(
    "SEGMENT_SUM",
    infer=_infer_segment_sum,
    evaluate=on(_segment_sum),
    family="reduce",
    takes="x[1-]: f32 i32, ids[1]: i32 -> x",
)


def _segmented(op: Op, shape: Shape, ids: Shape, count: list[int]) -> Shape:
    require(shape[: len(ids)] == ids, op, f"ids of shape {ids} are not a prefix of {shape}")
    return (int(scalar(op, count, "the number of segments")), *shape[len(ids) :])


def _unsorted(op: Op, x: Array, ids: Array, count: Array, function: np.ufunc) -> Array:
    """Each row goes to the segment its id names; negative ids name none."""
    shape = sized(op, _segmented(op, x.shape, ids.shape, ints(count)))
    require(ids.size == 0 or int(ids.max()) < shape[0], op, "a segment id is out of range")
    lowest, highest = limits(x.dtype)
    starts = {"maximum": lowest, "minimum": highest, "multiply": 1, "add": 0}
    result = np.full(shape, starts[function.__name__], x.dtype)
    rows = x.reshape(-1, *shape[1:]) if ids.size else x.reshape(0, *shape[1:])
    kept = ids.reshape(-1) >= 0
    function.at(result, ids.reshape(-1)[kept], rows[kept])
    return result


for _name, _ufunc in (
    ("PROD", np.multiply),
    ("MAX", np.maximum),
    ("MIN", np.minimum),
    ("SUM", np.add),
):
    define(
        f"UNSORTED_SEGMENT_{_name}",
        infer=shaped(_segmented, data=[0, 1], by=[2]),
        evaluate=on(partial(_unsorted, function=_ufunc)),
        family="reduce",
        takes="x: f32 i32, ids: i32, count: i32 -> x",
    )
