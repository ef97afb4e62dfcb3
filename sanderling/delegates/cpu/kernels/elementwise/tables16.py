"""Functions of 16-bit codes by a table of all of them, which the definition fills: 128 KB each.

cpu.LUT16    y = table[x], which a pass makes of them (passes/elementwise.py)
"""

from __future__ import annotations

import math

import numpy as np

from .....errors import SanderlingError
from .....ir import Array, DType, Op, Tensor
from .....ops import OPS
from .....ops.base import DATA_ERRORS, scale_zero
from ...codegen.emit import I16, I64
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel, emit_never

CODES = 1 << 16
AT_ONCE = 8  # codes looked up between two tests of the loop
TABLED = ("ABS", "EXP", "GELU", "LOG", "LOGISTIC", "RSQRT", "SQRT", "TANH")
ROOTS = ("RSQRT", "SQRT")  # a negative operand is an error, which compiled code cannot report


def is_tabled(op: Op) -> bool:
    """A function of one int16 tensor with one scale."""
    x = op.input(0)
    if op.name not in TABLED or x is None or op.outputs[0].dtype is not DType.INT16:
        return False
    return x.dtype is DType.INT16 and all(
        t.quant is not None and t.quant.scale.size == 1 for t in (x, op.outputs[0])
    )


def table_of(op: Op) -> Array:
    """The function of every code, the smallest first."""
    codes: Array = np.arange(-CODES // 2, CODES // 2).astype(np.int16)
    if op.name in ROOTS:
        codes = np.maximum(codes, np.int16(scale_zero(op.inputs[0])[1]))
    found = OPS[op.name].evaluate(op, [codes])
    return np.asarray(found if isinstance(found, np.ndarray) else found[0], np.int16)


def refuses_tabled(op: Op, target: Target) -> str | None:
    if op.name in ROOTS and not is_positive(op.operand(0)):
        return "an operand may be negative, which must be reported"
    try:
        table_of(op)
    except (SanderlingError, *DATA_ERRORS) as error:
        return f"its operands do not fit together: {error}"
    return None


# Their results are not negative, whatever the operands; or if all operands are not.
POSITIVE = ("SQUARED_DIFFERENCE", "EXP", "LOGISTIC", "RELU", "RELU6", "SOFTMAX", *ROOTS)
KEEPING = ("ADD", "MUL", "MEAN", "AVERAGE_POOL_2D", "MAX_POOL_2D", "RESHAPE", "QUANTIZE")


def is_positive(tensor: Tensor) -> bool:
    """Whether numbers, or codes without their zero point, are known to be 0 or more, as a variance
    is. (A NaN that becomes a code has the root of 0 then.)"""
    zero = 0 if tensor.quant is None or not tensor.quant.is_set else scale_zero(tensor)[1]
    if tensor.data is not None:
        return bool(np.all(tensor.data >= zero))
    op = tensor.producer
    if op is None or op.name in POSITIVE:
        return op is not None
    if op.name == "MUL" and op.input(0) is op.input(1):
        return True
    operands = op.inputs[:2] if op.name in ("ADD", "MUL") else op.inputs[:1]
    return op.name in KEEPING and all(t is not None and is_positive(t) for t in operands)


def emit_table(k: StepEmitter, op: Op) -> None:
    x, table, y = op.operand(0), op.operand(1), op.outputs[0]
    middle = k.at(k.ptr(table), CODES // 2, I16)
    source, target = k.ptr(x), k.ptr(y)
    begin, end = k.share(math.prod(x.shape))
    whole = k.add(begin, k.mul(k.div(k.sub(end, begin), AT_ONCE), AT_ONCE))
    for first, last, count in ((begin, whole, AT_ONCE), (whole, end, 1)):
        with k.loop(first, last, count) as i:
            for j in range(count):
                place = k.add(i, j)
                code = k.b.sext(k.load(k.at(source, place, I16), I16), I64)
                k.store(k.load(k.at(middle, code, I16), I16, 2), k.at(target, place, I16))


KERNELS = {
    "cpu.LUT16": Kernel(emit_table, name=lambda op: "lut16"),
    **{n: Kernel(emit_never, refuses_tabled, handles=is_tabled) for n in TABLED},
}
