"""Functions of 16-bit codes by a table of all of them, which the definition fills: 128 KB each.

cpu.LUT16    y = table[x]
SOFTMAX      of int16: exponentials by such a table, the row's reciprocal as defined
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np

from .....errors import SanderlingError
from .....ir import Array, DType, Graph, Op, Tensor
from .....ops import OPS
from .....ops.activation import EXP16, INVERSE16
from .....ops.base import DATA_ERRORS, attr, scale_zero
from .....ops.fixed import multiply, quantize_multiplier
from .....ops.lut import lookup16
from ...codegen.emit import I1, I16, I32, I64, PTR, Emitter, Value, vector
from ...codegen.program import Kernel, StepEmitter
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..reduce import softmax
from . import operators

CODES = 1 << 16
AT_ONCE = 8  # codes looked up between two tests of the loop
TABLED = ("ABS", "EXP", "GELU", "LOG", "LOGISTIC", "RSQRT", "SQRT", "TANH")
ROOTS = ("RSQRT", "SQRT")  # a negative operand is an error, which compiled code cannot report


def present(op: Op, index: int = 0) -> Tensor:
    tensor = op.inputs[index]
    assert tensor is not None
    return tensor


def is_tabled(op: Op) -> bool:
    """A function of one int16 tensor with one scale."""
    x = op.input(0)
    if op.name not in TABLED or x is None or op.outputs[0].dtype is not DType.INT16:
        return False
    return x.dtype is DType.INT16 and all(
        t.quant is not None and t.quant.scale.size == 1 for t in (x, op.outputs[0]))  # fmt: skip


def table_of(op: Op) -> Array:
    """The function of every code, the smallest first."""
    codes: Array = np.arange(-CODES // 2, CODES // 2).astype(np.int16)
    if op.name in ROOTS:
        codes = np.maximum(codes, np.int16(scale_zero(op.inputs[0])[1]))
    found = OPS[op.name].evaluate(op, [codes])
    return np.asarray(found if isinstance(found, np.ndarray) else found[0], np.int16)


def tabulate(graph: Graph, target: Target) -> Counter[str]:
    """The pass."""
    fired: Counter[str] = Counter()
    for op in [o for o in graph.ops if is_tabled(o)]:
        data = table_of(op)
        table = Tensor(f"{op.outputs[0].name}/table", DType.INT16, data.shape, data=data)
        graph.insert(Op("cpu.LUT16", [op.inputs[0], table], op.outputs), before=op)
        graph.erase(op)
        fired[op.name] += 1
    return fired


def refuses_tabled(op: Op, target: Target) -> str | None:
    if not is_tabled(op):
        return operators.KERNELS[op.name].refuses(op, target)
    if op.name in ROOTS and not is_positive(present(op)):
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
    x, table, y = present(op), present(op, 1), op.outputs[0]
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


# -- softmax ------------------------------------------------------------------------------------

LONGEST = 1 << 15  # elements of a row whose sum and rounding stay below 2**31


def is_softmax(op: Op) -> bool:
    x, y = op.input(0), op.outputs[0]
    return x is not None and x.dtype is y.dtype is DType.INT16


def powers_of(op: Op) -> Array:
    """Exponentials of the differences -65535 to 0 from the row's largest code."""
    scale = np.float32(scale_zero(op.inputs[0])[0]) * np.float32(attr(op, "beta"))
    scaled = multiply(np.arange(1 - CODES, 1), *quantize_multiplier(float(scale) / (10 / 65535)))
    return lookup16(np.clip(scaled + 32767, -32768, 32767), EXP16).astype(np.int16)


def emit_softmax(k: StepEmitter, op: Op) -> None:
    if not is_softmax(op):
        softmax.KERNELS["SOFTMAX"].emit(k, op)
        return
    x, y = present(op), op.outputs[0]
    length = x.shape[-1]
    places = [k.at(k.constant(powers_of(op)), CODES - 1, I16),
              k.constant(INVERSE16.astype(np.int32))]  # fmt: skip
    source, target, memory = k.ptr(x), k.ptr(y), k.scratch(2 * length)
    function = k.program.function("softmax_i16", [PTR] * 5 + [I64], _build_softmax)
    begin, end = k.share(math.prod(x.shape[:-1]))
    with k.loop(begin, end) as row:
        at = k.mul(row, length)
        k.b.call(function, [k.at(target, at, I16), k.at(source, at, I16), memory, *places,
                            I64(length)])  # fmt: skip


def _build_softmax(e: Emitter) -> None:
    """(to, by, powers, table, inverses, count): a row."""
    to, by, powers, table, inverses, count = e.args
    top = _largest(e, by, count)
    with e.loop(0, count, carry=[I32(0)]) as (i, (total,)):
        code = e.b.sext(e.load(e.at(by, i, I16), I16), I64)
        power = e.load(e.at(table, e.b.sub(code, top), I16), I16, 2)
        e.store(power, e.at(powers, i, I16), 2)
        e.carry([e.b.add(total, e.b.sext(power, I32))])
    total = e.smax(e.carried[0], I32(1))
    zeros = e.call("llvm.ctlz.i32", I32, total, I1(0))
    inverse = _inverse(e, total, zeros, inverses)
    right = e.b.sub(I32(31), zeros)
    half = e.b.shl(I32(1), e.b.sub(right, I32(1)))
    whole = e.mul(e.div(count, e.target.lanes), e.target.lanes)
    for start, stop, n in ((0, whole, e.target.lanes), (whole, count, 1)):
        wide, narrow = vector(I32, n), vector(I16, n)
        with e.loop(start, stop, n) as i:
            power = e.b.sext(e.load(e.at(powers, i, I16), narrow, 2), wide)
            product = e.b.add(e.b.mul(power, e.splat(inverse, n)), e.splat(half, n))
            found = e.b.ashr(product, e.splat(right, n))
            found = e.smin(e.smax(found, e.const(wide, 0)), e.const(wide, 32767))
            e.store(e.b.trunc(found, narrow), e.at(to, i, I16))


def _largest(e: Emitter, by: Value, count: Value) -> Value:
    lanes = e.target.width // 2
    t, least = vector(I16, lanes), -CODES // 2
    whole = e.mul(e.div(count, lanes), lanes)
    with e.loop(0, whole, lanes, carry=[e.const(t, least)]) as (i, (top,)):
        e.carry([e.smax(top, e.load(e.at(by, i, I16), t))])
    start = horizontal(e, e.carried[0], e.smax)
    with e.loop(whole, count, carry=[start]) as (i, (top,)):
        e.carry([e.smax(top, e.load(e.at(by, i, I16), I16))])
    return e.b.sext(e.carried[0], I64)


def _inverse(e: Emitter, total: Value, zeros: Value, table: Value) -> Value:
    """1 / (1 + x) of the sum's mantissa: nine bits choose from the table, seven interpolate."""
    b = e.b
    mantissa = b.ashr(b.add(b.shl(total, b.sub(zeros, I32(1))), I32(1 << 13)), I32(14))
    x = b.sub(mantissa, I32((1 << 15) + (1 << 16)))
    x = e.smin(e.smax(x, I32(-32768)), I32(32767))
    index = b.sext(b.add(I32(256), b.ashr(x, I32(7))), I64)
    first, second = (e.load(e.at(table, e.add(index, i), I32), I32, 4) for i in (0, 1))
    slope = b.sext(b.trunc(b.sub(second, first), I16), I32)
    step = b.ashr(b.add(b.mul(slope, b.and_(x, I32(127))), I32(64)), I32(7))
    return b.sext(b.trunc(b.add(first, step), I16), I32)


def refuses_softmax(op: Op, target: Target) -> str | None:
    if not is_softmax(op):
        return softmax.KERNELS["SOFTMAX"].refuses(op, target)
    tensors = (present(op), op.outputs[0])
    if any(t.quant is None or t.quant.scale.size != 1 or scale_zero(t)[1] for t in tensors):
        return "int16 codes with a zero point, or without a scale"
    if not present(op).shape or 0 in present(op).shape or present(op).shape[-1] > LONGEST:
        return f"rows of none or of more than {LONGEST} elements"
    return None


# They take the place of the kernels of the same names for other types.
KERNELS = {
    "cpu.LUT16": Kernel(emit_table, name=lambda op: "lut16"),
    "SOFTMAX": Kernel(emit_softmax, refuses_softmax),
    **{n: replace(operators.KERNELS[n], refuses=refuses_tabled) for n in TABLED},
}
