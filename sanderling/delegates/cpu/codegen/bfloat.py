"""bfloat16: the upper half of a float32, rounded to the nearest even.

It is kept as 16-bit words; only the instructions' own signatures know the type. Where a target has
no such instructions the same numbers are computed with shifts, which is slow: it serves the tests.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import ml_dtypes
import numpy as np

from ....ir import Array
from ..isa.base import isa_of
from .emit import I16, I32, Emitter, Value, is_vector, vector


class _BFloat(ir.types._BaseFloatType):  # type: ignore[misc]
    """llvmlite has no such type."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self) -> str:
        return "bfloat"


_BFloat._create_instance()
BF16: Any = _BFloat()


def rounded(values: Array) -> Array:
    """float32 to bfloat16, as words."""
    return np.ascontiguousarray(values, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def narrow(e: Emitter, value: Value) -> Value:
    """float32 (a vector or not) to bfloat16, as words."""
    t = value.type
    short, whole, words = (vector(x, t.count) if is_vector(t) else x for x in (BF16, I32, I16))
    if e.target.bf16:
        return e.b.bitcast(e.b.fptrunc(value, short), words)
    bits = e.b.bitcast(value, whole)
    odd = e.b.and_(e.b.lshr(bits, e.const(whole, 16)), e.const(whole, 1))
    near = e.b.add(e.b.add(bits, e.const(whole, 0x7FFF)), odd)
    # Rounding could carry a NaN over into the sign; the bit that makes it a quiet one stays.
    quiet = e.b.or_(bits, e.const(whole, 0x400000))
    found = e.b.select(e.b.fcmp_unordered("uno", value, value), quiet, near)
    return e.b.trunc(e.b.lshr(found, e.const(whole, 16)), words)


def multiply_pairs(e: Emitter, a: Value, b: Value, acc: Value) -> Value:
    """acc + the products of pairs: a and b hold two words for each lane of acc, the low one first.
    The instruction adds the product of the high words first, and so does what stands in for it."""
    lanes = acc.type.count
    if e.target.bf16:
        pairs = vector(BF16, 2 * lanes)
        return isa_of(e.target).dot_bf16(e, acc, e.b.bitcast(a, pairs), e.b.bitcast(b, pairs))
    whole = vector(I32, lanes)
    a, b = e.b.bitcast(a, whole), e.b.bitcast(b, whole)
    high = [e.b.and_(v, e.const(whole, -0x10000)) for v in (a, b)]
    low = [e.b.shl(v, e.const(whole, 16)) for v in (a, b)]
    for x, y in (high, low):
        acc = e.fma(e.b.bitcast(x, acc.type), e.b.bitcast(y, acc.type), acc)
    return acc
