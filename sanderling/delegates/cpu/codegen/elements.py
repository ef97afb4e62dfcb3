"""Elements in memory and in registers: types, loads, stores, float16.

In registers a bool is an i1, a float16 its bits in an i16 (it is computed with as float32), any
other type itself.
"""

from __future__ import annotations

from ....ir import DType
from ....ir.expr import Expr, walk
from ..isa.base import isa_of
from .emit import (
    F16,
    F32,
    I1,
    I8,
    I16,
    I32,
    Emitter,
    Type,
    Value,
    element_type,
    is_vector,
    like,
    llvm_type,
    vector,
)


def register_type(dtype: DType) -> Type:
    """How an element is held in a register."""
    if dtype is DType.BOOL:
        return I1
    return I16 if dtype in (DType.FLOAT16, DType.BFLOAT16) else llvm_type(dtype.numpy)


def memory_type(dtype: DType) -> Type:
    return I8 if dtype is DType.BOOL else register_type(dtype)


def widest(expr: Expr) -> int:
    """Bytes of the largest type in it: how many lanes fill a vector follows from that."""
    return max(max(n.dtype.bits, 8) // 8 for n in walk(expr))


def resize(e: Emitter, a: Value, t: Type, signed: bool) -> Value:
    """An integer as another integer type."""
    before, after = element_type(a.type).width, element_type(t).width
    if after == before:
        return a
    if after < before:
        return e.b.trunc(a, t)
    return e.b.sext(a, t) if signed else e.b.zext(a, t)


def load(e: Emitter, pointer: Value, dtype: DType, lanes: int, count: int | None = None) -> Value:
    """lanes elements (the first `count` of them) in registers; lanes 0: one, as a scalar."""
    t = memory_type(dtype)
    if not lanes:
        raw = e.load(pointer, t)
    else:
        raw = e.load_part(pointer, vector(t, lanes), lanes if count is None else count)
    return e.b.icmp_unsigned("!=", raw, e.const(raw.type, 0)) if dtype is DType.BOOL else raw


def store(e: Emitter, value: Value, pointer: Value, dtype: DType, count: int | None = None) -> None:
    if dtype is DType.BOOL:
        value = e.b.zext(value, like(value.type, I8))
    if not is_vector(value.type):
        e.store(value, pointer)
    else:
        e.store_part(value, pointer, value.type.count if count is None else count)


# -- float16 ------------------------------------------------------------------------------------


def half_to_float(e: Emitter, bits: Value) -> Value:
    """float16 (its bits) -> float32."""
    t = like(bits.type, F32)
    if isa_of(e.target).has_half:
        return e.b.fpext(e.b.bitcast(bits, like(bits.type, F16)), t)
    # Exponent and mantissa in place and rescaled; infinity and NaN get the largest exponent.
    wide = like(bits.type, I32)
    word = e.b.zext(bits, wide)
    body = e.b.shl(e.b.and_(word, e.const(wide, 0x7FFF)), e.const(wide, 13))
    scaled = e.b.fmul(e.b.bitcast(body, t), e.const(t, 2.0**112))
    special = e.b.icmp_unsigned(">=", body, e.const(wide, 0x7C00 << 13))
    infinite = e.b.or_(e.b.bitcast(scaled, wide), e.const(wide, 0x7F800000))
    value = e.b.select(special, infinite, e.b.bitcast(scaled, wide))
    sign = e.b.shl(e.b.and_(word, e.const(wide, 0x8000)), e.const(wide, 16))
    return e.b.bitcast(e.b.or_(value, sign), t)


def float_to_half(e: Emitter, x: Value) -> Value:
    """float32 -> the bits of a float16, rounded to nearest even."""
    half, wide = like(x.type, I16), like(x.type, I32)
    if isa_of(e.target).has_half:
        return e.b.bitcast(e.b.fptrunc(x, like(x.type, F16)), half)
    bits = e.b.bitcast(x, wide)
    size = e.b.and_(bits, e.const(wide, 0x7FFFFFFF))
    odd = e.b.and_(e.b.lshr(size, e.const(wide, 13)), e.const(wide, 1))
    normal = e.b.add(e.b.sub(size, e.const(wide, (112 << 23) - 0xFFF)), odd)
    normal = e.b.lshr(normal, e.const(wide, 13))
    # Below 2**-14: adding 0.5 aligns the mantissa to float16's smallest unit, 2**-24.
    aligned = e.b.fadd(e.b.bitcast(size, x.type), e.const(x.type, 0.5))
    tiny = e.b.sub(e.b.bitcast(aligned, wide), e.const(wide, 0x3F000000))
    value = e.b.select(e.b.icmp_signed("<", size, e.const(wide, 113 << 23)), tiny, normal)
    huge = e.b.icmp_signed(">=", size, e.const(wide, 0x477FF000))
    value = e.b.select(huge, e.const(wide, 0x7C00), value)
    nan = e.b.icmp_signed(">", size, e.const(wide, 0x7F800000))
    value = e.b.select(nan, e.const(wide, 0x7E00), value)
    sign = e.b.and_(e.b.lshr(bits, e.const(wide, 16)), e.const(wide, 0x8000))
    return e.b.trunc(e.b.or_(value, sign), half)
