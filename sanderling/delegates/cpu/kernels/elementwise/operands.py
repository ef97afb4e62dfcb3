"""Operands of elementwise operators as expressions, and codes of quantised tensors.

A quantised operator is an expression of integers that is the definition for all codes, or the
kernels' own fixed point. A cheap function of one byte may be a float expression, where that is
right for all 256 (elementwise.lower).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np

from .....format.schema import attribute_names
from .....ir import DType, Op, Shape, Tensor
from .....ir import expr as X
from .....ir.expr import Const, Expr, Input, cast, clamp, select
from .....ops.base import has_scale, scale_zero
from .....ops.fixed import fused_range, quantize_multiplier
from .planes import PART, Side, slope

F32, F64, I32, I64 = DType.FLOAT32, DType.FLOAT64, DType.INT32, DType.INT64
MOST_INPUTS = 8  # of one map
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
        return Op(
            "cpu.MAP",
            self.inputs,
            outputs,
            attrs | ({"shapes": self.shapes} if self.shapes else {}),
        )


# -- operands -----------------------------------------------------------------------------------


def tensor_at(op: Op, index: int) -> Tensor:
    need(op.input(index) is not None, "an operand is absent")
    return op.operand(index)


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
    found = np.empty(0) if tensor is None or tensor.quant is None else tensor.quant.scale
    need(found.size == 1, "a tensor is not quantised as a whole")
    need(bool(0 < found[0] < np.inf), "a scale is not positive")
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
    return (
        tensor is not None
        and tensor.dtype in BYTES
        and tensor.quant is not None
        and tensor.quant.scale.size == 1
    )


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


# -- codes --------------------------------------------------------------------------------------


def coded(op: Op, units: Expr) -> Expr:
    return encode(units, *fused_range(op), op.outputs[0].dtype)


def whole_codes(op: Op, index: int) -> Expr:
    """An operand's codes without their zero point, as 64-bit integers."""
    return cast(operand(op, index), I64) - scales(op.inputs[index])[1]


def coded_whole(op: Op, units: Expr) -> Expr:
    """Integers in units of the output's scale as codes, with the fused activation."""
    out = op.outputs[0]
    activates = "fused_activation_function" in attribute_names(op.name)
    low, high = fused_range(op) if activates else out.dtype.bounds
    return cast(clamp(units + scales(out)[1], low, high), out.dtype)


def centred(op: Op, index: int) -> Expr:
    return codes(op, index) - scales(op.inputs[index])[1]


def sloped(op: Op, x: Expr, least: int, most: int, real: float) -> Expr:
    """x * real, with x from least to most, in units of an 8-bit output: as real_product, but in 32
    bits, where numbers are found for it."""
    need(real < 2.0**30, "the output's scale is too small for the inputs'")
    low, high = op.outputs[0].dtype.bounds
    zero = scales(op.outputs[0])[1]
    found = slope(least, most, real, Side(1.0, low - zero, high - zero))
    if found is None:
        return cast(real_product(cast(x, I64), real), I32)
    total = x * found.high + ((x * found.low) >> PART) + found.above
    if found.above != found.below:
        total = select(x < 0, total + (found.below - found.above), total)
    return total >> found.shift


def product_of(op: Op, *indices: int) -> tuple[Expr, int, int]:
    """The operands' codes without zero points, multiplied; the least product and the largest."""
    factors = [cast(operand(op, i), I32) - scales(op.inputs[i])[1] for i in indices]
    spans = [code_span(op.operand(i)) for i in indices]
    ends = [math.prod(corner) for corner in product(*spans)]
    return reduce(lambda a, b: a * b, factors), min(ends), max(ends)


def code_span(tensor: Tensor) -> tuple[int, int]:
    """The least and the largest code without the zero point."""
    side = Side.of(tensor)
    return side.low, side.high


def real_product(x: Expr, real: float) -> Expr:
    """x * real in the kernels' own fixed point, with their overflows."""
    need(real < 2.0**30, "the output's scale is too small for the inputs'")
    return fixed_product(x, *(int(v) for v in quantize_multiplier(real)))


def fixed_product(x: Expr, m: int, shift: int) -> Expr:
    given = cast(cast(x << max(shift, 0), I32), I64)
    # A half, as that of the larger scale of a sum, needs no product. No m is so large that the
    # definition's saturation could begin.
    high = (given + 1) >> 1 if m == 1 << 30 else (given * m + (1 << 30)) >> 31
    right = max(-shift, 0)
    if not right:
        return high
    return (high + (high >> 63) + (1 << (right - 1))) >> right
