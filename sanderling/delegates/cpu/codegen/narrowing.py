"""Floats that become bytes, four vectors at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....ir import DType
from ....ir.expr import Expr
from ..isa.targets import Target
from .emit import (
    I8,
    I16,
    I32,
    Emitter,
    Value,
    vector,
)
from .vector_math import like


@dataclass(frozen=True)
class Packing:
    """Floats become bytes four vectors at a time: x86 narrows with saturation, so that a clamp to
    the type's own range is needed only against overflow of the conversion."""

    real: Expr
    signed: bool
    flipped: bool  # the top bit changes: what stands at the border of a part

    @classmethod
    def of(cls, expr: Expr, target: Target) -> Packing | None:
        if "+avx2" not in target.features:
            return None
        inner = _unflipped(expr)
        code = expr if inner is None else inner
        whole = code.args[0] if code.op == "cast" else code
        if code.dtype not in (DType.INT8, DType.UINT8) or whole.op != "round_even":
            return None
        if whole.dtype is not DType.FLOAT32:
            return None
        real = _saturated(whole.args[0], *code.dtype.bounds)
        return cls(real, code.dtype is DType.INT8, inner is not None)

    def pack(self, e: Emitter, values: Sequence[Value]) -> Value:
        """Bytes come out by 16-byte lanes, each with four of every vector: put in order."""
        whole = [_nearest(e, v) for v in values]
        prefix = "llvm.x86.avx512" if e.target.width == 64 else "llvm.x86.avx2"
        tail = ".512" if e.target.width == 64 else ""
        words, t = vector(I16, e.target.width // 2), vector(I8, e.target.width)
        low, high = (e.call(f"{prefix}.packssdw{tail}", words, a, b)
                     for a, b in (whole[:2], whole[2:]))  # fmt: skip
        name = "packsswb" if self.signed else "packuswb"
        mixed = e.b.bitcast(e.call(f"{prefix}.{name}{tail}", t, low, high),
                            vector(I32, e.target.width // 4))  # fmt: skip
        lanes = e.target.width // 16
        order = [lane * 4 + v for v in range(4) for lane in range(lanes)]
        packed = e.b.bitcast(e.shuffle(mixed, None, order), t)
        return e.b.xor(packed, e.const(t, -128)) if self.flipped else packed


def _nearest(e: Emitter, x: Value) -> Value:
    """To the nearest even integer; the smallest where it does not fit."""
    t = like(x.type, I32)
    if e.target.width == 64:
        name = "llvm.x86.avx512.mask.cvtps2dq.512"
        return e.call(name, t, x, e.const(t, 0), e.const(I16, -1), I32(4))
    return e.call("llvm.x86.avx.cvt.ps2dq.256", t, x)


def _unflipped(expr: Expr) -> Expr | None:
    """c of cast(c ^ top bit)."""
    if expr.op != "cast" or expr.args[0].op != "xor":
        return None
    code, top = expr.args[0].args
    return code if top.is_const and top.value in (128, -128) else None


def _saturated(x: Expr, low: int, high: int) -> Expr:
    """Without the lower clamp, where it is the type's; the upper one lets NaN pass, which converts
    to the smallest number."""
    if x.op != "select" or x.args[0].op != "less" or not x.args[2].is_const:
        return x
    (below, most), inner = x.args[0].args, x.args[1]
    same = below is inner and most is x.args[2] and most.value == high
    if not same or inner.op != "select" or inner.args[0].op != "greater":
        return x
    (units, least) = inner.args[0].args
    if units is not inner.args[1] or least is not inner.args[2] or not least.is_const:
        return x
    return Expr("select", (most < units, most, units)) if least.value == low else x
