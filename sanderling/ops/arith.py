"""Elementwise operators of two or three operands: arithmetic, comparison, logic, selection.

A quantised operand is always int8, uint8 or int16 with a scale; int16 without one is plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np

from ..ir import Array, DType, Op, Shape, Tensor
from .base import (
    MOVABLE,
    Arrays,
    Evaluate,
    Infer,
    Spec,
    Specs,
    attr,
    broadcast_inputs,
    broadcast_shapes,
    define,
    elements,
    given,
    has_scale,
    operand,
    out_spec,
    require,
    same_as_input,
    scale_zero,
    shapes_known,
    sized,
)
from .fixed import (
    divide_by_pot,
    fused_clamp,
    fused_range,
    high_mul,
    limits,
    multiply,
    quantize_multiplier,
    round_away,
    to_codes,
    truncated,
    without_zero,
    wrap32,
)
from .lut import leading_zeros, reciprocal

Binary = Callable[[Array, Array], Array]


# -- operands -----------------------------------------------------------------------------------


def _operands(op: Op, inputs: Arrays) -> list[Array]:
    """The arrays: all there, and fit to broadcast."""
    found = given(op, inputs)
    shapes = [x.shape for x in found]
    if shapes.count(shapes[0]) < len(shapes):  # a result of their own shape is no larger than they
        sized(op, broadcast_shapes(op, *shapes))
    return found


def _is_quantized(tensor: Tensor | None) -> bool:
    """LiteRT's rule for int16: a scale decides between codes and plain numbers."""
    if tensor is None or tensor.dtype not in (DType.INT8, DType.UINT8, DType.INT16):
        return False
    return has_scale(tensor) or tensor.dtype is not DType.INT16


def _float_scales(op: Op) -> list[np.float32]:
    """Scales of the two inputs and the output, in the type in which the kernels combine them."""
    scales = [np.float32(scale_zero(t)[0]) for t in (op.input(0), op.input(1), op.outputs[0])]
    fits = all(0 < s < np.inf for s in scales)
    require(fits, op, "a scale is not positive", "the model was quantised wrongly")
    return scales


# -- plain numbers ------------------------------------------------------------------------------


def _activate(op: Op, x: Array) -> Array:
    if x.dtype.kind != "c":
        return fused_clamp(op, x)
    require(
        attr(op, "fused_activation_function") == "NONE", op, "a fused activation on complex numbers"
    )
    return x


def _plain(function: Binary) -> Evaluate:
    """evaluate: a NumPy function of two arrays of the same type as the result."""

    def evaluate(op: Op, inputs: Arrays) -> Array:
        a, b = _operands(op, inputs)
        return np.asarray(function(a, b), op.outputs[0].dtype.numpy)

    return evaluate


# -- ADD, SUB, MUL, DIV -------------------------------------------------------------------------


def _common_scale(op: Op, a: Array, b: Array, left: int) -> tuple[Array, Array, float]:
    """Both operands in steps of 2**-left of twice the larger scale, and that scale."""
    s1, s2, _ = map(float, _float_scales(op))
    twice = 2 * max(s1, s2)
    x, y = (
        multiply(without_zero(op.input(i), v) << left, *quantize_multiplier(s / twice))
        for i, (v, s) in enumerate(((a, s1), (b, s2)))
    )
    return x, y, twice


def _requantize(op: Op, x: Array, real: float) -> Array:
    """Scale an accumulator to the output's codes, with the fused activation."""
    return to_codes(op, _rescale(op, x, real), fused_range(op))


def _rescale(op: Op, x: Array, real: float) -> Array:
    require(
        real < 2.0**30,
        op,
        "the output's scale is too small for the inputs'",
        "the model was quantised wrongly",
    )
    return multiply(x, *quantize_multiplier(real))


def _plus(sign: int) -> Evaluate:
    function: Binary = np.add if sign > 0 else np.subtract

    def evaluate(op: Op, inputs: Arrays) -> Array:
        a, b = _operands(op, inputs)
        if not _is_quantized(op.outputs[0]):
            return _activate(op, function(a, b))
        if a.dtype == np.int16:
            shifts = shifts_of_two(op)
            if shifts is not None:
                shifted = map(divide_by_pot, (a, b), shifts)
                return to_codes(op, function(*shifted), fused_range(op))
        # 15 or 20 more bits are what a sum of two codes leaves free in 32.
        left = 15 if a.dtype == np.int16 else 20
        x, y, twice = _common_scale(op, a, b, left)
        return _requantize(op, function(x, y), twice / (2.0**left * scale_zero(op.outputs[0])[0]))

    return evaluate


def shifts_of_two(op: Op) -> tuple[int, int] | None:
    """Right shifts of int16 inputs whose scales are powers of two, where the op asks for that."""
    if not attr(op, "pot_scale_int16"):
        return None
    exponents = np.log(_float_scales(op)) * np.float32(1 / np.log(np.float32(2)))
    whole = round_away(exponents)
    if not np.all(np.abs(exponents - whole) < np.float32(1e-3)):
        return None
    first, second = (min(int(whole[2] - w), 31) for w in whole[:2])
    require(
        min(first, second) == 0,
        op,
        "the scales do not fit each other",
        "of power-of-two scales one is the output's, the other is smaller",
    )
    return first, second


def _mul(op: Op, inputs: Arrays) -> Array:
    first, target = op.input(0), op.outputs[0].dtype
    if first is not None and first.dtype is DType.INT16 and target in (DType.INT8, DType.UINT8):
        return _mul_to_8bit(op, inputs)
    a, b = _operands(op, inputs)
    if not _is_quantized(op.outputs[0]):
        return _activate(op, a * b)
    x, y = without_zero(op.input(0), a), without_zero(op.input(1), b)
    s1, s2, s3 = _float_scales(op)
    return _requantize(op, wrap32(x * y), float(s1 * s2 / s3))


def _mul_to_8bit(op: Op, inputs: Arrays) -> Array:
    """int16 x int16 -> 8 bits: fixed point with 15 fractional bits; the scales do not count."""
    a, b = _operands(op, inputs)
    return to_codes(op, divide_by_pot(high_mul(a, b, 16), 8), fused_range(op))


def _div(op: Op, inputs: Arrays) -> Array:
    a, b = _operands(op, inputs)
    if _is_quantized(op.outputs[0]):
        return _div_codes(op, without_zero(op.input(0), a), without_zero(op.input(1), b))
    if a.dtype.kind == "f":
        return _activate(op, a / b)
    require(bool(np.all(b != 0)), op, "division by zero")
    quotient = truncated(a.astype(np.int64), b.astype(np.int64))
    return _activate(op, quotient.astype(a.dtype))


def _div_codes(op: Op, x: Array, y: Array) -> Array:
    """Multiply by a reciprocal in fixed point.

    Where the quotient rounds to zero LiteRT shifts a 32-bit number by 32 bits and more, which C
    leaves undefined (it answers with any code); the answer here is zero.
    """
    require(bool(np.all(y != 0)), op, "division by zero")
    s1, s2, s3 = _float_scales(op)
    m, shift = quantize_multiplier(float(s1 / (s2 * s3)))
    inverse, over = reciprocal(np.abs(y), 31)
    x = np.where(y < 0, -x, x)
    # Use all 31 bits of the numerator before the reciprocal rounds.
    headroom = np.where(x < 0, leading_zeros(-2 * x - 1), leading_zeros(x) - 1)
    quotient = high_mul(x << headroom, inverse)
    # Without a right shift the quotient is far beyond 16 bits already.
    codes = multiply(quotient, m, np.clip(shift - over - headroom, -62, 0))
    return to_codes(op, codes, fused_range(op))


# -- the other arithmetic -----------------------------------------------------------------------


def _maximum(a: Array, b: Array) -> Array:
    """Trap: of a NaN and a number the kernel takes the second operand, whichever it is."""
    return np.where(a > b, a, b)


def _minimum(a: Array, b: Array) -> Array:
    return np.where(a < b, a, b)


def _floor_div(op: Op, inputs: Arrays) -> Array:
    """Divide in double, for floats too: a float32 quotient may round up to the next whole."""
    a, b = _operands(op, inputs)
    require(bool(np.all(b != 0)), op, "division by zero")
    whole = np.floor(a.astype(np.float64) / b.astype(np.float64))
    return (whole if a.dtype.kind == "f" else whole.astype(np.int64)).astype(a.dtype)


def _floor_mod(op: Op, inputs: Arrays) -> Array:
    a, b = _operands(op, inputs)
    require(a.dtype.kind == "f" or bool(np.all(b != 0)), op, "division by zero")
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest).astype(a.dtype)


def _power(op: Op, inputs: Arrays) -> Array:
    a, b = _operands(op, inputs)
    whole = a.dtype.kind == "i"
    require(not whole or bool(np.all(b >= 0)), op, "a negative exponent of an integer")
    exponent = _whole_exponent(b) if a.shape != b.shape and b.size == 1 else None
    if exponent is not None:
        return _repeated(a, exponent).reshape(broadcast_shapes(op, a.shape, b.shape))
    return _integer_power(a, b) if whole else np.power(a, b)


def _whole_exponent(b: Array) -> int | None:
    """A single exponent for all, if it is next to a positive whole number."""
    value = float(b.reshape(()))
    if not 0.5 <= value < 2**31:
        return None
    whole = int(round_away(value))
    return whole if abs(value - whole) < 1e-5 else None


def _repeated(a: Array, exponent: int) -> Array:
    """Repeated squaring, in the kernel's order."""
    if exponent == 1:
        return a
    half = _repeated(a, exponent // 2)
    square = _finite(half * half)
    return _finite(square * a) if exponent % 2 else square


def _finite(x: Array) -> Array:
    """The kernel multiplies with a clamp that turns infinity into the largest float."""
    return np.clip(x, *map(x.dtype.type, limits(x.dtype)))


def _integer_power(a: Array, b: Array) -> Array:
    """The kernel goes through double: what does not fit in 32 bits becomes the smallest."""
    rough = np.power(a.astype(np.float64), b)
    exact = np.power(a.astype(np.int64), b.astype(np.int64))
    fits = (np.abs(rough) < 2.0**40) & (exact == exact.astype(np.int32))
    return np.where(fits, exact, np.iinfo(np.int32).min).astype(np.int32)


def _squared_difference(op: Op, inputs: Arrays) -> Array:
    a, b = _operands(op, inputs)
    if not _is_quantized(op.outputs[0]):
        return np.asarray((a - b) * (a - b))
    left = 7  # a squared difference of codes with 14 more bits just fits in 32
    x, y, twice = _common_scale(op, a, b, left)
    real = twice * twice / (2.0 ** (2 * left) * scale_zero(op.outputs[0])[0])
    return to_codes(op, _rescale(op, (x - y) * (x - y), real))


def _add_n(op: Op, inputs: Arrays) -> Array:
    found = _operands(op, inputs)
    require(len({x.shape for x in found}) == 1, op, "its inputs differ in shape")
    return np.asarray(reduce(np.add, found))


def _infer_same(op: Op, specs: Specs) -> Spec:
    every = [operand(op, specs, i) for i in range(len(specs))]
    known = {s.shape for s in every if s.shape is not None}
    require(len(known) <= 1, op, "its inputs differ in shape")
    return out_spec(op, every[0].shape)


def _not(op: Op, inputs: Arrays) -> Array:
    return np.logical_not(_operands(op, inputs)[0])


def _atan2(op: Op, inputs: Arrays) -> Array:
    a, b = _operands(op, inputs)
    require(a.shape == b.shape, op, "its inputs differ in shape")
    wide = np.arctan2(a.astype(np.float64), b.astype(np.float64))
    return wide.astype(a.dtype)


def _right_shift(a: Array, b: Array) -> Array:
    """Arithmetic for signed types; the distance is clamped to the bits there are."""
    most = 8 * a.dtype.itemsize - 1
    return np.asarray(np.right_shift(a, np.clip(b, 0, most).astype(a.dtype)))


# -- comparison ---------------------------------------------------------------------------------


def _compare(function: Binary, int16_codes: bool = False) -> Evaluate:
    """evaluate: a bool for each pair; int16_codes: int16 is compared as it is, scale or not."""

    def evaluate(op: Op, inputs: Arrays) -> Array:
        a, b = _operands(op, inputs)
        tensors = op.input(0), op.input(1)
        scaled = all(t is not None and t.quant is not None and _is_quantized(t) for t in tensors)
        if scaled and not (int16_codes and a.dtype == np.int16):
            a, b = _to_real_steps(tensors[0], a), _to_real_steps(tensors[1], b)
        return np.asarray(function(a, b), np.bool_)

    return evaluate


def _to_real_steps(tensor: Tensor | None, x: Array) -> Array:
    """The real value in steps of 1/256. Trap: codes of a scale below 1/256 may become equal."""
    return multiply(without_zero(tensor, x) << 8, *quantize_multiplier(scale_zero(tensor)[0]))


# -- selection ----------------------------------------------------------------------------------


def _select_shape(op: Op, *shapes: Shape) -> Shape:
    """SELECT_V2 broadcasts; SELECT's condition is a scalar or goes along the first dimension."""
    declared = op.outputs[0].shape
    if all(elements(s) == 1 for s in (*shapes, declared)):
        return declared  # LiteRT keeps the output's rank where everything is a single element
    if op.name != "SELECT":
        return broadcast_shapes(op, *shapes)
    condition, x, y = shapes
    require(x == y, op, f"shapes {x} and {y} differ", "SELECT_V2 broadcasts")
    fits = condition in ((), x, x[:1])
    require(
        fits,
        op,
        f"condition of shape {condition} for values of shape {x}",
        "it is a scalar, a vector along the first dimension, or of the same shape",
    )
    return x


def _infer_select(op: Op, specs: Specs) -> Spec:
    every = [operand(op, specs, i) for i in range(3)]
    if not shapes_known(specs):
        return out_spec(op, None)
    shape = _select_shape(op, *(s.known for s in every))
    return out_spec(op, shape)


def _select(op: Op, inputs: Arrays) -> Array:
    condition, x, y = given(op, inputs)
    shape = sized(op, _select_shape(op, condition.shape, x.shape, y.shape))
    if op.name == "SELECT" and condition.ndim == 1:
        condition = condition.reshape(condition.shape + (1,) * (x.ndim - 1))
    return np.where(condition, x, y).reshape(shape)


# -- the rows -----------------------------------------------------------------------------------


def _binary(
    names: str,
    evaluate: Evaluate,
    types: str,
    notes: str = "",
    infer: Infer = broadcast_inputs,
    more: str = "",
) -> None:
    """more: forms besides that of two operands of the result's type."""
    takes = f"x: {types}, y: x -> x{more}"
    define(names, infer=infer, evaluate=evaluate, family="arith", takes=takes, notes=notes)


_binary("ADD", _plus(+1), "f32 f16 i8q u8q i16 i32 i64", "int16 with power-of-two or any scales")
_binary("SUB", _plus(-1), "f32 i8q u8q i16 i32 i64", "int16 with power-of-two or any scales")
_binary(
    "MUL",
    _mul,
    "f32 f16 i8q u8q i16 i32 u32 i64 c64",
    "int16 x int16 to 8 bits",
    more=" | x: i16, y: x -> i8q u8q",
)
_binary("DIV", _div, "f32 i8q u8q i16 i32", "codes: a quotient below half a step is 0")
_binary("POW", _power, "f32 i32")
_binary("FLOOR_DIV", _floor_div, "f32 i8 i16 i32", "integers are divided as codes")
_binary("FLOOR_MOD", _floor_mod, "f32 i8 i16 i32 i64", "integers are divided as codes")
_binary("SQUARED_DIFFERENCE", _squared_difference, "f32 i8q i32")
_binary("ATAN2", _atan2, "f32 f16 bf16 f64", "no broadcasting", _infer_same)

_PLAIN: tuple[tuple[str, Binary, str], ...] = (
    ("MAXIMUM", _maximum, "f32 f16 bf16 i8 u8 i16 i32 i64"),
    ("MINIMUM", _minimum, "f32 f16 bf16 i8 u8 i16 i32 i64"),
    ("LOGICAL_AND", np.logical_and, "bool"),
    ("LOGICAL_OR", np.logical_or, "bool"),
    ("BITWISE_XOR", np.bitwise_xor, "i8 u8 i16 u16 i32 u32"),
    ("RIGHT_SHIFT", _right_shift, "i8 u8 i16 u16 i32 u32"),
)
_COMPARISONS: tuple[tuple[str, Binary, bool, str], ...] = (
    ("EQUAL", np.equal, False, "f32 f16 i8 u8 i16 i32 i64 bool str"),
    ("NOT_EQUAL", np.not_equal, False, "f32 f16 i8 u8 i16 i32 i64 bool str"),
    ("LESS", np.less, True, "f32 f16 bf16 i8 u8 i16 i32 i64"),
    ("LESS_EQUAL", np.less_equal, True, "f32 f16 i8 u8 i16 i32 i64"),
    ("GREATER", np.greater, True, "f32 f16 bf16 i8 u8 i16 i32 i64"),
    ("GREATER_EQUAL", np.greater_equal, True, "f32 f16 i8 u8 i16 i32 i64"),
)
for _name, _function, _types in _PLAIN:
    _binary(_name, _plain(_function), _types)
for _name, _function, _codes, _types in _COMPARISONS:
    define(
        _name,
        infer=broadcast_inputs,
        evaluate=_compare(_function, _codes),
        family="arith",
        takes=f"x: {_types}, y: x -> bool",
    )

define(
    "ADD_N",
    infer=_infer_same,
    evaluate=_add_n,
    family="arith",
    takes="x: f32 i32, y: x, more*: x -> x",
)
define("LOGICAL_NOT", infer=same_as_input, evaluate=_not, family="arith", takes="x: bool -> x")
define(
    "SELECT SELECT_V2",
    infer=_infer_select,
    evaluate=_select,
    family="arith",
    takes=f"condition: bool, x: {MOVABLE}, y: x -> x",
)
