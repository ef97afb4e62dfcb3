"""How sums of products of 16-bit activations become 16-bit codes: which way of rounding.py is the
definition's, and what it holds."""

from __future__ import annotations

import numpy as np

from .....ir import Array, DType, Op
from .....ops import gemm as definition
from .....ops.fixed import quantize_multiplier
from ...codegen.rounding import SHORT_REACH, SHORT_SUMS, Rescale, Rounding, fixed, once, short
from ...dialect.fused import Inputs, operator, unfused


def word_rounding(op: Op) -> Rounding:
    """How the definition makes 16-bit codes of a product's sums."""
    x, w, bias, *_ = Inputs.of(op)
    assert x is not None and w is not None
    if operator(op) == "FULLY_CONNECTED" and w.sparsity is None:
        return Rounding.SHORT if w.dtype is DType.INT16 else Rounding.ONCE
    wide = definition.wide_accumulator(unfused(op), None if bias is None else bias.data)
    return Rounding.SHORT if wide and x.dtype is DType.INT16 else Rounding.FIXED_AWAY


def word_rescale(
    kind: Rounding, scale: Array, bias: Array, zero: int, low: int, near: bool = True
) -> Rescale:
    """near: 32 bits hold the sums."""
    if kind is Rounding.SHORT:
        return short(scale, bias, zero, near)
    return once(scale, bias) if kind is Rounding.ONCE else fixed(scale, low - zero)


def refuses_words(kind: Rounding, scale: Array, sums: Array, bias: Array) -> str | None:
    """Why sums of 16-bit codes are not rounded in this way, by the largest sums and the bias of
    each channel."""
    if kind is Rounding.ONCE:
        return None
    total = sums + np.abs(bias.astype(np.float64))
    fits = bool(np.all(total * scale < SHORT_REACH) and np.all(sums < SHORT_SUMS))
    exact = bool(np.all(total < 2**48 - 2**32) and np.all(quantize_multiplier(scale)[1] < 15))
    return None if fits and exact else "sums may leave the multiplier's 64 bits"
