"""Which operators are which expressions: the pass that turns them into cpu.MAP and cpu.LUT.

Quantised operators are float expressions on codes, rounded to nearest even: within one unit of the
definitions. A function of one 8-bit operand is a table of 256 bytes, made by the definition itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from ...errors import InputError, SanderlingError
from ...ir import Array, DType, Graph, Op, Quant, Shape, Tensor
from ...ir import expr as X
from ...ir.expr import Const, Expr, Input, cast, clamp, select
from ...ops.base import OPS, attr, has_scale, quant, scale_zero
from ...ops.execute import evaluate, new_state
from ...ops.fixed import code_range, fused_bounds, fused_range, quantize_multiplier
from .lut import emit_lut, fast_lut
from .mapping import emit_map, rebuild
from .program import Kernel, StepEmitter
from .targets import Target

F32, F64, I32, I64 = DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64
BYTES = (DType.INT8, DType.UINT8)
TYPES = (F32, DType.FLOAT16, *BYTES, DType.INT16, DType.UINT16, I32, DType.UINT32, I64, DType.BOOL)


class Refused(Exception):
    """Why an op is no expression: a sentence."""


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise Refused(reason)


@dataclass
class Lowered:
    """An op as a map; shapes, where they are not those of the inputs."""

    inputs: list[Tensor | None]
    expr: Expr
    shapes: list[Shape] | None = None

    def op(self, outputs: Sequence[Tensor]) -> Op:
        attrs = {"expr": X.simplify(self.expr)}
        return Op("cpu.MAP", self.inputs, outputs, attrs | ({"shapes": self.shapes} if self.shapes
                                                            else {}))  # fmt: skip


# -- operands -----------------------------------------------------------------------------------


def tensor_at(op: Op, index: int) -> Tensor:
    found = op.input(index)
    need(found is not None, "an operand is absent")
    assert found is not None
    return found


def operand(op: Op, index: int) -> Expr:
    """An operand as it is; a float16 as a float32."""
    tensor = tensor_at(op, index)
    need(tensor.dtype in TYPES, f"type {tensor.dtype.short} has no kernel")
    x = Input(index, tensor.dtype)
    return cast(x, F32) if tensor.dtype is DType.FLOAT16 else x


def result(op: Op, x: Expr) -> Expr:
    """In the output's type; only float16 is computed in another."""
    out = op.outputs[0].dtype
    if out is DType.FLOAT16 and x.dtype is F32:
        return cast(x, out)
    need(x.dtype is out, f"operands make {x.dtype.short}, the output is {out.short}")
    return x


def scales(tensor: Tensor | None) -> tuple[float, int]:
    """Per-tensor scale and zero point."""
    found = None if tensor is None else tensor.quant
    need(found is not None and found.scale.size == 1, "a tensor is not quantised as a whole")
    assert tensor is not None and found is not None
    need(bool(0 < found.scale[0] < np.inf), "a scale is not positive")
    return scale_zero(tensor)


def is_quantized(tensor: Tensor) -> bool:
    """LiteRT's rule for int16: a scale decides between codes and plain numbers."""
    return tensor.dtype in BYTES or (tensor.dtype is DType.INT16 and has_scale(tensor))


def codes(op: Op, index: int) -> Expr:
    """An operand's codes as floats."""
    tensor = tensor_at(op, index)
    need(tensor.dtype in (*BYTES, DType.INT16, I32), f"type {tensor.dtype.short} has no kernel")
    return cast(Input(index, tensor.dtype), F32)


def encode(units: Expr, low: int, high: int, dtype: DType) -> Expr:
    """Units of the output's scale, zero point included, as codes; NaN is the smallest."""
    bounded = smaller(larger(units, float(low)), float(high))
    return cast(X.round_even(bounded), dtype)


def larger(a: Expr, b: Expr | float) -> Expr:
    """The second operand where one is NaN, as LiteRT's MAXIMUM has it."""
    other = b if isinstance(b, Expr) else Const(b, a.dtype)
    return select(a > other, a, other)


def smaller(a: Expr, b: Expr | float) -> Expr:
    other = b if isinstance(b, Expr) else Const(b, a.dtype)
    return select(a < other, a, other)


def is_code(tensor: Tensor | None) -> bool:
    """A byte that prepare.unify_bytes may move by 128."""
    return (tensor is not None and tensor.dtype in BYTES and tensor.quant is not None
            and tensor.quant.scale.size == 1)  # fmt: skip


def need_alike(op: Op, first: int = 0) -> None:
    """Only the order of the codes counts, or that they stay as they are: all may move, or none."""
    held = [t for t in (*op.inputs[first:], *op.outputs) if t is not None and t.dtype in BYTES]
    moved = [is_code(t) for t in held]
    need(all(moved) or not any(moved), "codes of quantised and of plain tensors are mixed")


def need_divisor(op: Op) -> None:
    divisor = tensor_at(op, 1)
    zero = scales(divisor)[1] if is_quantized(divisor) and op.name == "DIV" else 0
    constant = divisor.data is not None and bool(np.all(divisor.data != zero))
    need(constant, "the divisor may be zero, which must be reported")


# -- arithmetic ---------------------------------------------------------------------------------


def activated(op: Op, x: Expr) -> Expr:
    """The fused activation of plain numbers. Floats are clamped to the finite range, as LiteRT's
    kernels have it."""
    low, high = fused_bounds(op)
    out = op.outputs[0].dtype
    if out.is_float:
        ends = np.finfo(out.numpy)
        return clamp(x, max(low, float(ends.min)), min(high, float(ends.max)))
    x = x if np.isinf(low) else X.maximum(x, int(low))
    return x if np.isinf(high) else X.minimum(x, int(high))


def coded(op: Op, units: Expr) -> Expr:
    return encode(units, *fused_range(op), op.outputs[0].dtype)


def plus(sign: int) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        if not is_quantized(op.outputs[0]):
            a, b = operand(op, 0), operand(op, 1)
            return result(op, activated(op, a + b if sign > 0 else a - b))
        (s1, z1), (s2, z2) = scales(op.inputs[0]), scales(op.inputs[1])
        out, zero = scales(op.outputs[0])
        r1, r2 = s1 / out, sign * s2 / out
        # One constant for all three zero points: two fused multiply-adds make the sum.
        rest = codes(op, 1) * r2 + (zero - z1 * r1 - z2 * r2)
        return coded(op, codes(op, 0) * r1 + rest)

    return expression


def centred(op: Op, index: int) -> Expr:
    return codes(op, index) - scales(op.inputs[index])[1]


def mul(op: Op) -> Expr:
    first, out = tensor_at(op, 0), op.outputs[0]
    if first.dtype is DType.INT16 and out.dtype in BYTES:
        return _mul_to_8bit(op)
    if not is_quantized(out):
        return result(op, activated(op, operand(op, 0) * operand(op, 1)))
    factor = scales(first)[0] * scales(op.inputs[1])[0] / scales(out)[0]
    return coded(op, centred(op, 0) * centred(op, 1) * factor + scales(out)[1])


def _mul_to_8bit(op: Op) -> Expr:
    """int16 x int16 in fixed point, 15 fractional bits down to 7; scales do not count."""
    product = cast(operand(op, 0), I32) * cast(operand(op, 1), I32)
    high = X.minimum((product + (1 << 14)) >> 15, 32767)
    low, top = fused_range(op)
    code = X.rounding_shift_right(high, 8) + scales(op.outputs[0])[1]
    return cast(clamp(code, low, top), op.outputs[0].dtype)


def div(op: Op) -> Expr:
    if not is_quantized(op.outputs[0]):
        if not op.outputs[0].dtype.is_float:
            need_divisor(op)
        return result(op, activated(op, operand(op, 0) / operand(op, 1)))
    need_divisor(op)
    out, zero = scales(op.outputs[0])
    factor = scales(op.inputs[0])[0] / scales(op.inputs[1])[0] / out
    return coded(op, centred(op, 0) / centred(op, 1) * factor + zero)


def squared_difference(op: Op) -> Expr:
    out = op.outputs[0]
    if not is_quantized(out):
        difference = operand(op, 0) - operand(op, 1)
        return result(op, difference * difference)
    (s1, _), (s2, _), (s3, zero) = scales(op.inputs[0]), scales(op.inputs[1]), scales(out)
    root = math.sqrt(s3)
    difference = centred(op, 0) * (s1 / root) - centred(op, 1) * (s2 / root)
    return encode(difference * difference + zero, *out.dtype.bounds, out.dtype)


def extreme(choose: Callable[[Expr, Expr], Expr]) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        need_alike(op)
        return result(op, choose(operand(op, 0), operand(op, 1)))

    return expression


def floor_div(op: Op) -> Expr:
    need_divisor(op)
    a, b = operand(op, 0), operand(op, 1)
    if a.dtype is F32:  # in double: a float32 quotient may round up to the next whole
        return result(op, cast(X.floor(cast(a, F64) / cast(b, F64)), F32))
    return result(op, a // b)


def floor_mod(op: Op) -> Expr:
    a, b = operand(op, 0), operand(op, 1)
    if a.dtype is not F32:
        need_divisor(op)
        need(a.dtype is not I64, "vectors do not divide i64")
    return result(op, a % b)


def power(op: Op) -> Expr:
    a, exponent = operand(op, 0), tensor_at(op, 1)
    need(a.dtype is F32, "powers of integers have no kernel")
    if math.prod(exponent.shape) != 1 or tensor_at(op, 0).shape == exponent.shape:
        return result(op, a ** operand(op, 1))
    # A single exponent next to a whole number stands for that.
    need(exponent.data is not None, "a single exponent is computed at run time")
    assert exponent.data is not None
    value = float(exponent.data.reshape(()))
    if value == 0.5:
        return result(op, X.sqrt(a))
    whole = 0.5 <= value < 2**31 and abs(value - round(value)) < 1e-5
    return result(op, _repeated(a, round(value)) if whole else a**value)


def _repeated(a: Expr, exponent: int) -> Expr:
    """Repeated squaring; LiteRT clamps every product to the finite range."""
    if exponent == 1:
        return a
    half = _repeated(a, exponent // 2)
    square = _finite(half * half)
    return _finite(square * a) if exponent % 2 else square


def _finite(x: Expr) -> Expr:
    most = float(np.finfo(np.float32).max)
    return clamp(x, -most, most)


def add_n(op: Op) -> Expr:
    need(len(op.inputs) <= MOST_INPUTS, f"more than {MOST_INPUTS} operands")
    return result(op, reduce(lambda a, b: a + b, [operand(op, i) for i in range(len(op.inputs))]))


# -- comparison, logic, selection ---------------------------------------------------------------


def compare(name: str, int16_codes: bool) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        a, b = operand(op, 0), operand(op, 1)
        tensors = [tensor_at(op, i) for i in (0, 1)]
        scaled = all(t.quant is not None and is_quantized(t) for t in tensors)
        if scaled and not (int16_codes and tensors[0].dtype is DType.INT16):
            a, b = (_real_steps(x, t) for x, t in zip((a, b), tensors, strict=True))
        else:
            need_alike(op)
        return result(op, X.apply(name, a, b))

    return expression


def _real_steps(x: Expr, tensor: Tensor) -> Expr:
    """The real value in steps of 1/256: a bool has no near miss."""
    scale, zero = scales(tensor)
    return _fixed_product((cast(x, I64) - zero) << 8, scale)


def _fixed_product(x: Expr, real: float) -> Expr:
    """x * real in the kernels' own fixed point, with their overflows."""
    m, shift = (int(v) for v in quantize_multiplier(real))
    wide = cast(cast(x << max(shift, 0), I32), I64) * m + (1 << 30)
    high = X.minimum(wide >> 31, 2**31 - 1)
    right = max(-shift, 0)
    if not right:
        return high
    return (high + (high >> 63) + (1 << (right - 1))) >> right


def logical(name: str) -> Callable[[Op], Expr]:
    return lambda op: result(op, X.apply(name, *(operand(op, i) for i in range(len(op.inputs)))))


def bitwise_xor(op: Op) -> Expr:
    return result(op, operand(op, 0) ^ operand(op, 1))


def right_shift(op: Op) -> Expr:
    a, b = operand(op, 0), operand(op, 1)
    b = b if a.dtype.numpy.kind == "u" else X.maximum(b, 0)
    return result(op, a >> X.minimum(b, a.dtype.bits - 1))


def choose(op: Op) -> Lowered:
    need_alike(op, first=1)
    x, y = (Input(i, tensor_at(op, i).dtype) for i in (1, 2))
    need(x.dtype in TYPES, f"type {x.dtype.short} has no kernel")
    shapes = [tensor_at(op, i).shape for i in range(3)]
    if op.name == "SELECT" and len(shapes[0]) == 1:
        shapes[0] = (*shapes[0], *(1,) * (len(shapes[1]) - 1))
    expr = select(operand(op, 0), x, y)
    need(expr.dtype is op.outputs[0].dtype, "its operands differ in type")
    return Lowered(list(op.inputs), expr, shapes)


# -- one operand --------------------------------------------------------------------------------


def unary(function: Callable[[Expr], Expr]) -> Callable[[Op], Expr]:
    """A function of plain numbers; codes go through tables."""

    def expression(op: Op) -> Expr:
        x = operand(op, 0)
        wide = x.dtype is DType.INT16 and tensor_at(op, 0).quant is not None
        need(x.dtype not in BYTES and not wide, f"type {x.dtype.short} has no kernel")
        return result(op, function(x))

    return expression


def bounded(low: float, high: float) -> Callable[[Op], Expr]:
    def expression(op: Op) -> Expr:
        out = op.outputs[0]
        if out.dtype.is_float:
            x = X.maximum(operand(op, 0), low)
            return result(op, x if np.isinf(high) else X.minimum(x, high))
        factor = scales(op.inputs[0])[0] / scales(out)[0]
        zero = scales(out)[1]
        least, most = code_range(out, (low, high))
        need(least <= most, "the activation's bounds leave no code")
        return encode(centred(op, 0) * factor + zero, least, most, out.dtype)

    return expression


def leaky_relu(op: Op) -> Expr:
    out, alpha = op.outputs[0], float(np.float32(attr(op, "alpha")))
    if out.dtype.is_float:
        x = operand(op, 0)
        return result(op, select(x > 0, x, x * alpha))
    return _sloped(op, centred(op, 0) * alpha)


def prelu(op: Op) -> Expr:
    if op.outputs[0].dtype.is_float:
        x = operand(op, 0)
        return result(op, select(x >= 0, x, x * operand(op, 1)))
    return _sloped(op, centred(op, 0) * (centred(op, 1) * scales(op.inputs[1])[0]))


def _sloped(op: Op, below: Expr) -> Expr:
    """Codes where they are not negative, `below` in the same units elsewhere."""
    out = op.outputs[0]
    factor, zero = scales(op.inputs[0])[0] / scales(out)[0], scales(out)[1]
    x = centred(op, 0)
    return encode(select(x >= 0, x, below) * factor + zero, *out.dtype.bounds, out.dtype)


def elu(x: Expr) -> Expr:
    """exp(x) - 1 without cancellation: tanh(x / 2) * (exp(x) + 1)."""
    return select(x < 0, X.tanh(x * 0.5) * (X.exp(x) + 1), x)


def hard_swish(x: Expr) -> Expr:
    return x * clamp(x + 3, 0, 6) * (1 / 6)


def gelu(op: Op) -> Expr:
    if attr(op, "approximate"):
        return unary(_gelu_tanh)(op)
    return unary(lambda x: x * (X.erf(x * math.sqrt(0.5)) * 0.5 + 0.5))(op)


def _gelu_tanh(x: Expr) -> Expr:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return x * (X.tanh(inner) * 0.5 + 0.5)


def fake_quant(op: Op) -> Expr:
    bits, low, high = attr(op, "num_bits"), np.float32(attr(op, "min")), np.float32(attr(op, "max"))
    need(2 <= bits <= 16 and bool(low < high), "its range is empty")
    first, last = np.float32(bool(attr(op, "narrow_range"))), np.float32(2**bits - 1)
    scale = (high - low) / (last - first)
    zero = np.clip(np.floor(first - low / scale + np.float32(0.5)), first, last)
    least, most = float((first - zero) * scale), float((last - zero) * scale)
    steps = (clamp(operand(op, 0), least, most) - least) * float(np.float32(1) / scale)
    whole = X.floor(steps)
    return result(op, select(steps - whole < 0.5, whole, whole + 1) * float(scale) + least)


# -- conversions --------------------------------------------------------------------------------


def conversion(op: Op) -> Expr:
    """C's conversions, except that a float that does not fit saturates, and NaN is the largest."""
    x, target = operand(op, 0), op.outputs[0].dtype
    need(target in TYPES, f"type {target.short} has no kernel")
    if not (x.dtype.is_float and target.is_integer):
        return cast(x, target)
    low, high = target.bounds
    # The largest float32 below high + 1: high itself may not be one.
    most = float(np.nextafter(np.float32(high + 1), np.float32(0))) if target.bits > 16 else high
    inside = cast(clamp(x, float(low), float(most)), target)
    return select(x < float(high + 1), inside, Const(high, target))


def along(op: Op, q: Quant, shape: Shape, *arrays: Array) -> list[Tensor]:
    """Values along the quantised axis, as constants that broadcast over the shape."""
    need(0 <= q.axis < len(shape) and shape[q.axis] == q.scale.size, "the scales do not fit")
    spread = [q.scale.size if i == q.axis else 1 for i in range(len(shape))]
    name = op.outputs[0].name
    return [Tensor(f"{name}/{i}", F32, spread, data=a.astype(np.float32).reshape(spread))
            for i, a in enumerate(arrays)]  # fmt: skip


def quantize(op: Op) -> Lowered | Expr:
    x, out = tensor_at(op, 0), op.outputs[0]
    need(out.dtype in (*BYTES, DType.INT16), f"output type {out.dtype.short} has no kernel")
    low, high = out.dtype.bounds
    if x.dtype is not F32:
        (s1, z1), (s2, z2) = scales(x), scales(out)
        if x.dtype in BYTES and out.dtype is x.dtype and (s1, z1) == (s2, z2):
            return Input(0, x.dtype)
        if x.dtype is I32:
            steps = _fixed_product(cast(Input(0, I32) - z1, I64), s1 / s2)
            return cast(clamp(cast(steps, I32) + z2, low, high), out.dtype)
        return encode((codes(op, 0) - z1) * (s1 / s2) + z2, low, high, out.dtype)
    q = quant(out)
    if not q.per_axis:
        scale, zero = scales(out)
        return encode(Input(0, F32) * (1 / scale) + zero, low, high, out.dtype)
    zeros = np.resize(q.zero_point, q.scale.size)
    params = along(op, q, x.shape, 1 / q.scale.astype(np.float64), zeros)
    units = Input(0, F32) * Input(1, F32) + Input(2, F32)
    return Lowered([x, *params], encode(units, low, high, out.dtype))


def dequantize(op: Op) -> Lowered | Expr:
    x = tensor_at(op, 0)
    if x.dtype in (DType.FLOAT16, F32):
        return cast(Input(0, x.dtype), F32)
    need(x.dtype in (*BYTES, DType.INT16), f"type {x.dtype.short} has no kernel")
    q = quant(x)
    if not q.per_axis:
        scale, zero = scales(x)
        return (codes(op, 0) - zero) * scale
    params = along(op, q, x.shape, q.scale, np.resize(q.zero_point, q.scale.size))
    return Lowered([x, *params], (codes(op, 0) - Input(2, F32)) * Input(1, F32))


def flip(op: Op) -> Expr:
    """int8 <-> uint8 at the border of a part."""
    x, out = tensor_at(op, 0), op.outputs[0]
    top = 128 if x.dtype is DType.UINT8 else -128
    return cast(Input(0, x.dtype) ^ top, out.dtype)


# -- the table ----------------------------------------------------------------------------------

MOST_INPUTS = 8  # of one map

EXPRESSIONS: dict[str, Callable[[Op], Expr | Lowered]] = {
    "ADD": plus(+1),
    "SUB": plus(-1),
    "MUL": mul,
    "DIV": div,
    "SQUARED_DIFFERENCE": squared_difference,
    "MAXIMUM": extreme(larger),
    "MINIMUM": extreme(smaller),
    "FLOOR_DIV": floor_div,
    "FLOOR_MOD": floor_mod,
    "POW": power,
    "ADD_N": add_n,
    "EQUAL": compare("equal", False),
    "NOT_EQUAL": compare("not_equal", False),
    "LESS": compare("less", True),
    "LESS_EQUAL": compare("less_equal", True),
    "GREATER": compare("greater", True),
    "GREATER_EQUAL": compare("greater_equal", True),
    "LOGICAL_AND": logical("and"),
    "LOGICAL_OR": logical("or"),
    "LOGICAL_NOT": logical("not"),
    "BITWISE_XOR": bitwise_xor,
    "RIGHT_SHIFT": right_shift,
    "SELECT": choose,
    "SELECT_V2": choose,
    "RELU": bounded(0, np.inf),
    "RELU6": bounded(0, 6),
    "RELU_N1_TO_1": bounded(-1, 1),
    "RELU_0_TO_1": bounded(0, 1),
    "LEAKY_RELU": leaky_relu,
    "PRELU": prelu,
    "ELU": unary(elu),
    "HARD_SWISH": unary(hard_swish),
    "GELU": gelu,
    "LOGISTIC": unary(X.logistic),
    "TANH": unary(X.tanh),
    "EXP": unary(X.exp),
    "LOG": unary(X.log),
    "SQRT": unary(X.sqrt),
    "RSQRT": unary(X.rsqrt),
    "SQUARE": unary(lambda x: x * x),
    "ABS": unary(abs),
    "NEG": unary(lambda x: -x),
    "SIN": unary(X.sin),
    "COS": unary(X.cos),
    "FLOOR": unary(X.floor),
    "CEIL": unary(X.ceil),
    "ROUND": unary(X.round_even),
    "SIGN": unary(X.sign),
    "FAKE_QUANT": fake_quant,
    "CAST": conversion,
    "QUANTIZE": quantize,
    "DEQUANTIZE": dequantize,
    "cpu.FLIP": flip,
}
# Functions of one 8-bit operand: a table each. The cheap ones have expressions, too, which are
# faster where looking up is not a matter of a few instructions.
TABLES = ("LOGISTIC", "TANH", "HARD_SWISH", "GELU", "EXP", "LOG", "SQRT", "RSQRT", "ABS", "NEG",
          "ELU")  # fmt: skip
CHEAP = ("LEAKY_RELU", "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "QUANTIZE")


def is_byte_function(op: Op) -> bool:
    x = op.input(0)
    return (op.name in (*TABLES, *CHEAP) and x is not None and x.dtype in BYTES
            and op.outputs[0].dtype in BYTES)  # fmt: skip


def table(op: Op) -> Array:
    """The result for every byte, by the op's own definition."""
    x, out = (_signed_twin(op, t) for t in (op.inputs[0], op.outputs[0]))
    every: Array = np.arange(256, dtype=np.uint8)
    shift = np.uint8(0 if x.dtype is tensor_at(op, 0).dtype else 128)
    try:
        found = evaluate(op.copy([x], [out]), [(every ^ shift).view(x.dtype.numpy)], new_state())[0]
    except SanderlingError as error:
        raise Refused(f"it is not defined for every code: {error.what}") from error
    back = np.uint8(0 if out.dtype is op.outputs[0].dtype else 128)
    made: Array = found.view(np.uint8) ^ back
    return made


def _signed_twin(op: Op, tensor: Tensor | None) -> Tensor:
    """The tensor as int8, where the definition takes that: unify_bytes may have moved it."""
    assert tensor is not None
    dtype, q = tensor.dtype, tensor.quant
    need(q is None or q.scale.size == 1, "a tensor is not quantised as a whole")
    if dtype is DType.UINT8 and q is not None and "i8" in OPS[op.name].types:
        dtype, q = DType.INT8, Quant(q.scale, q.zero_point - 128, q.axis)
    return Tensor(tensor.name, dtype, (256,), quant=q)


def lower(op: Op, target: Target) -> Op:
    """The op as cpu.MAP or cpu.LUT."""
    if is_byte_function(op) and (op.name in TABLES or fast_lut(target)):
        return Op("cpu.LUT", op.inputs[:1], op.outputs, {"table": table(op)})
    try:
        found = EXPRESSIONS[op.name](op)
    except InputError as error:
        raise Refused(f"its operands do not fit together: {error.what}") from error
    if isinstance(found, Expr):
        found = Lowered(list(op.inputs), found)
    return found.op(op.outputs)


def refuses(op: Op, target: Target) -> str | None:
    main = op.input(OPS[op.name].main) if op.name in OPS else None
    if main is not None and main.dtype.short not in OPS[op.name].types:
        return f"type {main.dtype.short} is not defined for it"
    try:
        lower(op, target)
    except Refused as reason:
        return str(reason)
    except SanderlingError as error:
        return f"it cannot be evaluated: {error.what}"
    return None


def emit_op(k: StepEmitter, op: Op) -> None:
    """An op that no pass has lowered."""
    lowered = lower(op, k.target)
    (emit_lut if lowered.name == "cpu.LUT" else emit_map)(k, lowered)


# -- passes -------------------------------------------------------------------------------------


def lower_elementwise(graph: Graph, target: Target) -> None:
    """Elementwise operators become maps and tables."""
    for op in list(graph.ops):
        if op.name in EXPRESSIONS:
            graph.insert(lower(op, target), before=op)
            graph.erase(op)


# A fused expression may have so many operators: beyond, registers spill.
MOST_NODES = 150


def fuse_chains(graph: Graph, target: Target) -> None:
    """A map whose result only one other map reads, element by element, becomes part of that; a flip
    at the border becomes part of a table."""
    for op in list(graph.ops):
        if op.name == "cpu.LUT":
            _fuse_flips(graph, op)
        if op.name != "cpu.MAP" or op not in graph.ops:
            continue
        while (producer := _fusable(graph, op)) is not None:
            op = _fuse(graph, producer, op)


def _fusable(graph: Graph, op: Op) -> Op | None:
    for tensor in op.inputs:
        producer = None if tensor is None else tensor.producer
        if producer is None or producer.name != "cpu.MAP" or tensor in graph.outputs:
            continue
        alone = tensor is not None and all(user is op for user in tensor.users)
        same = tensor is not None and _trimmed(tensor.shape) == _trimmed(op.outputs[0].shape)
        plain = "shapes" not in op.attrs and "shapes" not in producer.attrs
        inputs = len({*producer.inputs, *op.inputs}) - 1
        nodes = sum(1 for e in (producer, op) for _ in X.walk(e.attrs["expr"]))
        if alone and same and plain and inputs <= MOST_INPUTS and nodes <= MOST_NODES:
            return producer
    return None


def _fuse_flips(graph: Graph, op: Op) -> None:
    source, result = op.inputs[0], op.outputs[0]
    before = None if source is None else source.producer
    if before is not None and source is not None and _is_flip(before) and len(source.users) == 1:
        op.attrs["table"] = op.attrs["table"][np.arange(256) ^ 128]
        graph.set_input(op, 0, before.inputs[0])
        graph.erase(before)
    after = result.users[0] if len(result.users) == 1 and result not in graph.outputs else None
    if after is not None and _is_flip(after):
        flipped = op.attrs["table"] ^ np.uint8(128)
        new = Op("cpu.LUT", op.inputs, after.outputs, {"table": flipped})
        graph.insert(new, before=op)
        graph.erase(after)
        graph.erase(op)


def _is_flip(op: Op) -> bool:
    return op.name == "cpu.MAP" and len(op.inputs) == 1 and op.attrs["expr"] is flip(op)


def _trimmed(shape: Shape) -> Shape:
    """Without leading ones, which broadcasting ignores."""
    first = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return shape[first:]


def _fuse(graph: Graph, producer: Op, op: Op) -> Op:
    tensor = producer.outputs[0]
    inputs = list(dict.fromkeys(t for t in (*producer.inputs, *op.inputs) if t is not tensor))
    place = {t: i for i, t in enumerate(inputs)}

    def numbered(source: Op) -> Callable[[Expr], Expr]:
        def leaf(node: Expr) -> Expr:
            if node.op != "input":
                return node
            read = source.inputs[node.value]
            return inner if read is tensor else Input(place[read], node.dtype)

        return leaf

    inner = Const(0, tensor.dtype)
    inner = _unclamped(rebuild(producer.attrs["expr"], numbered(producer)))
    expr = X.simplify(rebuild(op.attrs["expr"], numbered(op)))
    fused = Op("cpu.MAP", inputs, op.outputs, {"expr": expr})
    graph.insert(fused, before=op)
    graph.erase(op)
    graph.erase(producer)
    return fused


def _unclamped(expr: Expr) -> Expr:
    """Without the clamp to finite numbers, which in the middle of a chain costs more than it says:
    only sums that overflow would tell the difference."""
    most = float(np.finfo(np.float32).max)
    for name, end in (("minimum", most), ("maximum", -most)):
        if expr.op == name and expr.args[1].is_const and expr.args[1].value == end:
            expr = expr.args[0]
    return expr


KERNELS = {name: Kernel(emit_op, refuses) for name in EXPRESSIONS if not name.startswith("cpu.")}
KERNELS["cpu.LUT"] = Kernel(emit_lut, name=lambda op: "lut")
