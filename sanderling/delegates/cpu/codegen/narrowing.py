"""Floats that become bytes, four vectors at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....ir import DType
from ....ir.expr import Expr
from ..isa.base import isa_of
from ..isa.targets import Target
from .emit import I8, I32, Emitter, Value, vector


@dataclass(frozen=True)
class Packing:
    """Floats become bytes four vectors at a time: packs narrow with saturation, so that a clamp to
    the type's own range is needed only against overflow of the conversion."""

    real: Expr
    signed: bool
    flipped: bool  # the top bit changes: what stands at the border of a part

    @classmethod
    def of(cls, expr: Expr, target: Target) -> Packing | None:
        if not isa_of(target).packs_floats:
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
        isa, t = isa_of(e.target), vector(I8, e.target.width)
        whole = [isa.convert_nearest(e, v) for v in values]
        low, high = (isa.pack_words(e, a, b) for a, b in (whole[:2], whole[2:]))
        codes = isa.pack_bytes(e, low, high, self.signed)
        mixed = e.b.bitcast(codes, vector(I32, e.target.width // 4))
        lanes = e.target.width // 16
        order = [lane * 4 + v for v in range(4) for lane in range(lanes)]
        packed = e.b.bitcast(e.shuffle(mixed, None, order), t)
        return e.b.xor(packed, e.const(t, -128)) if self.flipped else packed


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
