"""Which operators are which expressions, as cpu.MAP and cpu.LUT (passes/elementwise.py).

A function of one 8-bit operand is a table of 256 bytes, made by the definition itself.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .....errors import InputError, SanderlingError
from .....ir import Array, DType, Op, Quant, Tensor
from .....ir import expr as X
from .....ir.expr import Expr
from .....ops.base import OPS
from .....ops.execute import evaluate, new_state
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel
from .activations import (
    bounded,
    conversion,
    dequantize,
    elu,
    fake_quant,
    flip,
    gelu,
    hard_swish,
    leaky_relu,
    prelu,
    quantize,
    unary,
)
from .arithmetic import (
    add_n,
    atan2,
    bitwise_xor,
    choose,
    compare,
    div,
    extreme,
    floor_div,
    floor_mod,
    logical,
    mul,
    plus,
    power,
    right_shift,
    squared_difference,
)
from .lut import emit_lut, fast_lut, overwritten
from .maps import emit_map
from .operands import (
    BYTES,
    Lowered,
    Refused,
    larger,
    need,
    smaller,
    tensor_at,
)

# -- the table ----------------------------------------------------------------------------------

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
    "ATAN2": atan2,
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
    return (
        op.name in (*TABLES, *CHEAP)
        and x is not None
        and x.dtype in BYTES
        and op.outputs[0].dtype in BYTES
    )


def table(op: Op) -> Array:
    """The result for every byte, by the op's own definition."""
    x, out = (_signed_twin(op, t) for t in (op.operand(0), op.outputs[0]))
    every: Array = np.arange(256, dtype=np.uint8)
    shift = np.uint8(0 if x.dtype is tensor_at(op, 0).dtype else 128)
    found = _defined(op.copy([x], [out]), (every ^ shift).view(x.dtype.numpy))
    back = np.uint8(0 if out.dtype is op.outputs[0].dtype else 128)
    made: Array = found.view(np.uint8) ^ back
    return made


def _defined(op: Op, codes: Array) -> Array:
    try:
        return evaluate(op, [codes], new_state())[0]
    except SanderlingError as error:
        raise Refused(f"it is not defined for every code: {error.what}") from error


def _signed_twin(op: Op, tensor: Tensor) -> Tensor:
    """The tensor as int8, where the definition takes that: unify_bytes may have moved it."""
    dtype, q = tensor.dtype, tensor.quant
    need(q is None or q.scale.size == 1, "a tensor is not quantised as a whole")
    if dtype is DType.UINT8 and q is not None and "i8" in OPS[op.name].types:
        dtype, q = DType.INT8, Quant(q.scale, q.zero_point - 128, q.axis)
    return Tensor(tensor.name, dtype, (256,), quant=q)


def lower(op: Op, target: Target) -> Op:
    """The op as cpu.MAP or cpu.LUT."""
    if is_byte_function(op):
        values = table(op)
        if op.name in TABLES or fast_lut(target) or not _is_right(op, values):
            return Op("cpu.LUT", op.inputs[:1], op.outputs, {"table": values})
    try:
        found = EXPRESSIONS[op.name](op)
    except InputError as error:
        raise Refused(f"its operands do not fit together: {error.what}") from error
    if isinstance(found, Expr):
        found = Lowered(list(op.inputs), found)
    return found.op(op.outputs)


def _is_right(op: Op, values: Array) -> bool:
    """Whether a cheap function's expression agrees with its definition for every byte."""
    found = EXPRESSIONS[op.name](op)
    every = np.arange(256, dtype=np.uint8).view(tensor_at(op, 0).dtype.numpy)
    return isinstance(found, Expr) and np.array_equal(
        X.evaluate(found, [every]).view(np.uint8), values
    )


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


# They see codes as plain numbers.
PLAIN = ("BITWISE_XOR", "CAST", "FLOOR_DIV", "FLOOR_MOD", "RIGHT_SHIFT")
KERNELS = {
    **{
        name: Kernel(emit_op, refuses, plain_codes=name in PLAIN)
        for name in EXPRESSIONS
        if not name.startswith("cpu.")
    },
    "cpu.LUT": Kernel(emit_lut, name=lambda op: "lut", overwrites=overwritten),
}
