"""Element by element: arithmetic of one operand, casts, quantisation; and normalisations."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ..ir import Array, DType, Op, Quant, Tensor
from .base import (
    Spec,
    Specs,
    attr,
    define,
    elements,
    fitting,
    on,
    operand,
    out_spec,
    quant,
    require,
    same_as_input,
    scale_zero,
)
from .fixed import (
    clamp_to,
    divide_by_pot,
    high_mul,
    multiply,
    quantize_multiplier,
    round_away,
    to_codes,
    without_zero,
    wrap32,
)
from .lut import inverse_sqrt, lookup8, lookup16, table8, table16, through_double

Function = Callable[[Array], Array]


# -- plain functions ----------------------------------------------------------------------------


def _zeros(x: Array) -> Array:
    return np.zeros(x.shape, x.dtype)


# name: function, types LiteRT takes
PLAIN: dict[str, tuple[Function, str]] = {
    "SIN": (np.sin, "f32 f16"),
    "COS": (np.cos, "f32 f16"),
    "SQUARE": (np.square, "f32"),
    "NEG": (np.negative, "f32 f16 bf16 i8 i16 i32 i64"),
    "ROUND": (np.rint, "f32 f16 bf16"),
    "CEIL": (np.ceil, "f32"),
    "FLOOR": (np.floor, "f32 f16 bf16"),
    "SIGN": (np.sign, "f32 f64 i32"),
    "ZEROS_LIKE": (_zeros, "f32 i32 i64"),
}
for _name, (_function, _types) in PLAIN.items():
    _notes = "codes are negated as they are" if _name == "NEG" else ""
    define(
        _name,
        infer=same_as_input,
        evaluate=on(lambda op, x, f=_function: f(x)),
        family="unary",
        takes=f"x: {_types} -> x",
        notes=_notes,
        reads_values=_name != "ZEROS_LIKE",
    )


# -- functions with quantised kernels -----------------------------------------------------------


def _positive(op: Op, codes: Array) -> None:
    require(
        bool(np.all(codes >= 0)),
        op,
        "a negative operand has no real root",
        "the quantised kernel refuses such values at run time",
    )


def by_table(op: Op, x: Array, function: Function) -> Array:
    """A quantised function through the table that the kernels build for int8, uint8 or int16."""
    source, target = scale_zero(op.inputs[0]), scale_zero(op.outputs[0])
    if x.dtype == np.int16:
        return lookup16(x, table16(function, source, target)).astype(np.int16)
    return lookup8(x, table8(function, source, target, op.outputs[0].dtype))


def _abs(op: Op, x: Array) -> Array:
    tensor = op.inputs[0]
    plain_int16 = x.dtype == np.int16 and (tensor is None or tensor.quant is None)
    if x.dtype in (np.float32, np.int32) or plain_int16:
        return np.abs(x)
    codes = np.abs(without_zero(op.inputs[0], x))
    scale, out_scale = scale_zero(tensor)[0], scale_zero(op.outputs[0])[0]
    if scale != out_scale:
        # the kernel divides in float32
        m, shift = quantize_multiplier(np.float32(scale) / np.float32(out_scale))
        codes = multiply(codes, m, shift)
    return to_codes(op, codes)


def _log(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        return np.log(x)
    scale, zero = scale_zero(op.outputs[0])
    least = np.float32(op.outputs[0].dtype.bounds[0] - zero) * np.float32(scale)
    log = through_double(np.log)
    return by_table(op, x, lambda v: np.where(v <= 0, least, log(v)))


def _exp(op: Op, x: Array) -> Array:
    return np.exp(x) if x.dtype == np.float32 else by_table(op, x, through_double(np.exp))


def _sqrt(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        return np.sqrt(x)
    scale, out_scale = scale_zero(op.inputs[0])[0], scale_zero(op.outputs[0])[0]
    codes = without_zero(op.inputs[0], x)
    _positive(op, codes)
    root = np.sqrt(np.float32(scale) * codes.astype(np.float32))
    # the kernel truncates where others round
    return to_codes(op, np.minimum(root / np.float32(out_scale), 2**30).astype(np.int64))


def _rsqrt(op: Op, x: Array) -> Array:
    if x.dtype == np.float32:
        return np.float32(1) / np.sqrt(x)
    codes = without_zero(op.inputs[0], x)
    _positive(op, codes)
    scale, out_scale = scale_zero(op.inputs[0])[0], scale_zero(op.outputs[0])[0]
    if x.dtype == np.int16:
        most = np.float32(32767) * np.float32(out_scale)
        return by_table(op, x, lambda v: np.where(v <= 0, most, np.float32(1) / np.sqrt(v)))
    real = 1.0 / float(np.sqrt(np.float32(scale)) * np.float32(out_scale))
    m, shift = quantize_multiplier(real)
    inverse, right = inverse_sqrt(codes)
    # 20 bits keep the inverse root an integer between the two multiplications
    root = multiply(np.ones_like(codes), inverse, 20 - right)
    found = to_codes(op, multiply(root, m, shift - 20))
    return np.where(codes == 0, op.outputs[0].dtype.bounds[1], found).astype(found.dtype)


_SCALED = "x: f32 i8q i16q -> x"
define(
    "ABS", infer=same_as_input, evaluate=on(_abs), family="unary", takes="x: f32 i8q i16 i32 -> x"
)
define("LOG", infer=same_as_input, evaluate=on(_log), family="unary", takes=_SCALED)
define("EXP", infer=same_as_input, evaluate=on(_exp), family="unary", takes=_SCALED)
define(
    "SQRT",
    infer=same_as_input,
    evaluate=on(_sqrt),
    family="unary",
    takes=_SCALED,
    notes="quantised results are truncated; negative values are refused",
)
define(
    "RSQRT",
    infer=same_as_input,
    evaluate=on(_rsqrt),
    family="unary",
    takes=_SCALED,
    notes="negative quantised values are refused",
)


# -- casts --------------------------------------------------------------------------------------

CAST_TYPES = "f32 f16 bf16 f64 f8e4m3fn f8e5m2 i8 u8 i16 u16 i32 u32 i64 i4 u4 i2 bool c64"


def _cast(op: Op, x: Array) -> Array:
    """C's conversions, except that a float that does not fit saturates, and NaN is the largest."""
    target = op.outputs[0].dtype
    if x.dtype.kind == "c" and target.numpy.kind != "c":
        x = x.real
    floating = x.dtype.kind in "fV" or x.dtype == ml_dtypes.bfloat16
    if target is DType.BOOL:
        return np.not_equal(x, 0)
    if floating and target.numpy.kind in "iu":
        return _saturate(x, target)
    if target.is_float and target is not DType.FLOAT64:
        x = x.astype(np.float32)  # all narrow floats are made from a float32: two roundings
    with np.errstate(all="ignore"):
        return x.astype(target.numpy)


def _saturate(x: Array, target: DType) -> Array:
    """Toward zero; NaN is the largest code."""
    low, high = target.bounds
    wide = x.astype(np.float64)
    # float(high) may round up, past the type: those elements are set by hand
    inside = (wide > low) & (wide < float(high))
    codes = np.where(inside, wide, 0).astype(np.int64).astype(target.numpy)
    return np.where(inside, codes, np.where(wide <= low, low, high)).astype(target.numpy)


define(
    "CAST",
    infer=same_as_input,
    evaluate=on(_cast),
    family="unary",
    takes=f"x: {CAST_TYPES} -> {CAST_TYPES}",
    notes="int4, uint4 and int2 from and to f32 in LiteRT, any type here",
)


def _bitcast_shape(op: Op, shape: tuple[int, ...], source: DType) -> tuple[int, ...]:
    target = op.outputs[0].dtype
    for dtype in (source, target):
        whole = dtype.is_fixed_size and not dtype.is_packed
        require(whole, op, f"{dtype.short} has no bit pattern")
    if source.bits == target.bits:
        return shape
    if source.bits > target.bits:
        return (*shape, source.bits // target.bits)
    ratio = target.bits // source.bits
    fits = len(shape) > 0 and shape[-1] == ratio
    require(fits, op, f"{target.short} of {source.short} needs a last dimension of {ratio}")
    return shape[:-1]


def _bitcast_spec(op: Op, specs: Specs) -> Spec:
    source = operand(op, specs)
    if source.shape is None:
        return out_spec(op, None)
    return out_spec(op, _bitcast_shape(op, source.shape, source.dtype))


def _bitcast(op: Op, x: Array) -> Array:
    source = op.operand(0)
    shape = _bitcast_shape(op, x.shape, source.dtype)
    flat = np.ascontiguousarray(x).reshape(-1)
    return flat.view(op.outputs[0].dtype.numpy).reshape(shape)


BITCAST_TYPES = "f32 f16 bf16 f64 f8e4m3fn f8e5m2 i8 u8 i16 u16 i32 u32 i64 u64 bool c64 c128"
define(
    "BITCAST",
    infer=_bitcast_spec,
    evaluate=on(_bitcast),
    family="unary",
    takes=f"x: {BITCAST_TYPES} -> {BITCAST_TYPES}",
)


# -- quantise, dequantise -----------------------------------------------------------------------


def _along(op: Op, q: Quant, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Scales and zero points, shaped to broadcast over a tensor of this shape."""
    if not q.per_axis:
        return q.scale[0], q.zero_point[0]
    rank = len(shape)
    spread = tuple(q.scale.size if i == q.axis else 1 for i in range(rank))
    return q.scale.reshape(spread), np.resize(q.zero_point, q.scale.size).reshape(spread)


def _check_along(op: Op, tensor: Tensor | None, shape: tuple[int, ...]) -> None:
    q = None if tensor is None or tensor.dtype.is_float else tensor.quant
    if q is not None and q.per_axis:
        fits = 0 <= q.axis < len(shape) and shape[q.axis] == q.scale.size
        require(fits, op, f"{q.scale.size} scales along axis {q.axis} do not fit shape {shape}")


def _check_quantize(op: Op, shape: tuple[int, ...]) -> None:
    _check_along(op, op.outputs[0], shape)


def _check_dequantize(op: Op, shape: tuple[int, ...]) -> None:
    _check_along(op, op.inputs[0], shape)
    require(op.inputs[0] is None or not _is_blockwise(op.inputs[0]), op, "blocks of scales")


def _is_blockwise(tensor: Tensor) -> bool:
    return tensor.quant is not None and tensor.quant.block is not None


# source -> targets, as LiteRT has them
QUANTIZE_TYPES = {
    "f32": "i4Q u4Q i8Q u8Q i16Q",
    "i8q u8q": "i8q u8q i16q",
    "i16q": "i8q i16q i32q",
    "i32q": "i8q i16q",
}


def _quantize(op: Op, x: Array) -> Array:
    target, source = op.outputs[0].dtype, op.operand(0)
    _check_quantize(op, x.shape)
    low, high = target.bounds
    if source.dtype is DType.FLOAT32:
        scale, zero = _along(op, quant(op.outputs[0]), x.shape)
        # Values beyond int32 saturate, as the optimised kernels do; NaN is the smallest code.
        codes = np.nan_to_num(round_away(x / scale).astype(np.float64), nan=-np.inf) + zero
        return np.clip(codes, low, high).astype(target.numpy)
    (scale_in, zero_in), (scale_out, zero_out) = scale_zero(source), scale_zero(op.outputs[0])
    m, shift = quantize_multiplier(scale_in / scale_out)
    codes = multiply(wrap32(x.astype(np.int64) - zero_in), m, shift)
    return clamp_to(wrap32(codes + zero_out), low, high, target)


define(
    "QUANTIZE",
    infer=fitting(_check_quantize, [0]),
    evaluate=on(_quantize),
    family="unary",
    takes=" | ".join(f"x: {x} -> {y}" for x, y in QUANTIZE_TYPES.items()),
    notes="f32 to i4 u4 i8 u8 i16, per channel too; between integer types",
)


def _dequantize(op: Op, x: Array) -> Array:
    source = op.inputs[0]
    if source is not None and source.dtype.is_float:
        return x.astype(np.float32)
    _check_dequantize(op, x.shape)
    scale, zero = _along(op, quant(source), x.shape)
    return (scale.astype(np.float64) * (x.astype(np.int64) - zero)).astype(np.float32)


define(
    "DEQUANTIZE",
    infer=fitting(_check_dequantize, [0]),
    evaluate=on(_dequantize),
    family="unary",
    takes="x: f16 f8e4m3fn f8e5m2 i2Q i4Q u4Q i8Q u8Q i16Q -> f32",
    notes="per channel too",
)


def _fake_quant(op: Op, x: Array) -> Array:
    """TensorFlow's fake quantisation, in float32: the range is nudged so that 0 is a code."""
    bits, low, high = attr(op, "num_bits"), np.float32(attr(op, "min")), np.float32(attr(op, "max"))
    require(2 <= bits <= 16, op, f"{bits} bits; it takes 2 to 16")
    require(bool(low < high), op, f"the range {low} to {high} is empty")
    first, last = np.float32(bool(attr(op, "narrow_range"))), np.float32(2**bits - 1)
    scale = (high - low) / (last - first)
    zero = np.clip(round_away(first - low / scale), first, last)
    least, most = (first - zero) * scale, (last - zero) * scale
    inverse = np.float32(1) / scale
    shifted = np.clip(x, least, most) - least
    found: Array = round_away(shifted * inverse) * scale + least
    return found


define(
    "FAKE_QUANT",
    infer=same_as_input,
    evaluate=on(_fake_quant),
    family="unary",
    takes="x: f32 -> x",
    notes="narrow_range too, which LiteRT refuses",
)


# -- normalisations -----------------------------------------------------------------------------


def _l2_normalize(op: Op, x: Array) -> Array:
    require(x.ndim > 0, op, "a scalar cannot be normalised")
    require(attr(op, "fused_activation_function") == "NONE", op, "it has no fused activation")
    if x.dtype == np.float32:
        norm = np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True))
        floored: Array = x / np.maximum(norm, np.float32(1e-6))
        return floored
    target = op.outputs[0].dtype
    middle = 128 if target is DType.UINT8 else 0
    fits = scale_zero(op.outputs[0]) == (1 / 128, middle)
    require(fits, op, f"the output must have scale 1/128 and zero point {middle}")
    codes = without_zero(op.inputs[0], x)
    inverse, right = inverse_sqrt(wrap32(np.sum(codes * codes, axis=-1, keepdims=True)))
    # The two kernels place the factor 128 differently, and round differently.
    if target is DType.UINT8:
        found = divide_by_pot(high_mul(128 * codes, inverse), right)
    else:
        found = multiply(codes, inverse, 7 - right)
    return to_codes(op, found)


def _row_macs(op: Op) -> int:
    return 0 if op.inputs[0] is None else elements(op.inputs[0].shape)


define(
    "L2_NORMALIZATION",
    infer=same_as_input,
    evaluate=on(_l2_normalize),
    family="unary",
    takes="x[1-]: f32 i8q u8q -> x",
    macs=_row_macs,
)


def _local_response(op: Op, x: Array) -> Array:
    require(x.ndim == 4, op, f"it takes four dimensions, not {x.ndim}")
    depth, radius = x.shape[-1], attr(op, "radius")
    require(radius >= 0, op, f"radius {radius} is negative")
    radius = min(radius, depth)
    squares = np.pad(np.square(x), [(0, 0)] * 3 + [(radius, radius)])
    # TensorFlow's window, both ends included. LiteRT's reference kernel loses the last one.
    total = _zeros(x)
    for start in range(2 * radius + 1):
        total += squares[..., start : start + depth]
    bias, alpha, beta = (np.float32(attr(op, name)) for name in ("bias", "alpha", "beta"))
    found: Array = x * np.power(bias + alpha * total, -beta)
    return found


def _window_macs(op: Op) -> int:
    depth = op.inputs[0].shape[-1] if op.inputs[0] is not None and op.inputs[0].shape else 0
    window = min(2 * max(int(attr(op, "radius")), 0) + 1, depth)
    return _row_macs(op) * window


define(
    "LOCAL_RESPONSE_NORMALIZATION",
    infer=same_as_input,
    evaluate=on(_local_response),
    family="unary",
    takes="x[4]: f32 -> x",
    macs=_window_macs,
)
