"""Dynamic range: float activations quantised on the fly for products with integer weights.

passes/dynamic_range.py puts two steps before such a product:
    cpu.RANGE   x -> smallest and largest of each chunk of x
    cpu.ENCODE  x, ranges -> codes, and (zero point, step) of each group: an image or a row
and the product reads the codes (Fused.precision), and the table of (zero point, step) as one more
operand. The codes are those of the reference definition, bit by bit.
"""

from __future__ import annotations

import math

import numpy as np

from .....errors import ModelError
from .....ir import Array, Blockwise, DType, Op, Tensor
from .....ops.base import attr, elements, quant
from .....ops.gemm import block_scales
from ...codegen.emit import F32, F64, I8, I32, I64, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ...dialect.fused import either, operator
from ..row import Kernel

WEIGHTS = (DType.INT8, DType.UINT8, DType.INT4, DType.INT2)
UPSAMPLE = "cpu.TRANSPOSE_CONV"  # see constant_weights.py
ON_THE_FLY = (*either("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"), UPSAMPLE)
CHUNK, CHUNKS = 2048, 32  # elements of a chunk at least, chunks of a group at most


def is_hybrid(op: Op) -> bool:
    x, w = op.input(0), op.input(1)
    if op.name not in ON_THE_FLY or x is None or w is None:
        return False
    return x.dtype is DType.FLOAT32 and is_integer(w)


def is_integer(weights: Tensor) -> bool:
    return weights.dtype in WEIGHTS


def block_of(op: Op) -> Blockwise | None:
    """How the weights are cut into blocks with a scale each, if they are."""
    w = op.input(1)
    return None if w is None or w.quant is None else w.quant.block


def unfit_blocks(op: Op, block: Blockwise, weights: Array) -> str | None:
    """Why the definition does not take weights with these blocks."""
    try:
        block_scales(op, block, weights)
    except ModelError as error:
        return error.what
    return None


def is_symmetric(op: Op) -> bool:
    """Whether the activations have no zero point, as the definition has it."""
    if block_of(op) is not None:
        return False
    if operator(op) == "FULLY_CONNECTED":
        return not attr(op, "asymmetric_quantize_inputs")
    if operator(op) != "CONV_2D":
        return False
    x, w = op.operand(0), op.operand(1)
    scales = quant(w).scale
    return x.shape[-1] == w.shape[-1] and bool(np.all(scales == scales[0]))


def _chunk(size: int, chunks: int, lanes: int) -> int:
    """Elements of a chunk: whole vectors, but for the last chunk."""
    return -(-math.ceil(size / chunks) // lanes) * lanes


def emit_range(k: StepEmitter, op: Op) -> None:
    x, ranges = op.operand(0), op.outputs[0]
    groups, chunks, _ = ranges.shape
    size, lanes = elements(x.shape) // groups, k.target.lanes
    each = _chunk(size, chunks, lanes)
    source, target = k.ptr(x), k.ptr(ranges)
    begin, end = k.share(groups * chunks)
    with k.loop(begin, end) as unit:
        first = k.min(k.mul(k.rem(unit, chunks), each), size)
        last = k.min(k.add(first, each), size)
        base = k.at(source, k.mul(k.div(unit, chunks), size), F32)
        low, high = range_of(k, base, first, last, lanes)
        for i, value in enumerate((low, high)):
            k.store(value, k.at(target, k.add(k.mul(unit, 2), i), F32), 4)


def range_of(e: Emitter, base: Value, first: Int, last: Int, lanes: int) -> tuple[Value, Value]:
    """Smallest and largest of elements [first, last), zero among them."""
    t = vector(F32, lanes)
    count = e.sub(last, first)
    whole = e.add(first, e.mul(e.div(count, lanes), lanes))
    zero = e.const(t, 0)
    with e.loop(first, whole, lanes, carry=[zero, zero]) as (i, (low, high)):
        value = e.load(e.at(base, i, F32), t)
        e.carry([e.fmin(value, low), e.fmax(value, high)])
    low, high = e.carried
    ends = [_fold(e, v, f, lanes) for v, f in ((low, e.fmin), (high, e.fmax))]
    with e.loop(whole, last, carry=ends) as (i, (low, high)):
        value = e.load(e.at(base, i, F32), F32)
        e.carry([e.fmin(value, low), e.fmax(value, high)])
    return e.carried[0], e.carried[1]


def _fold(e: Emitter, value: Value, take: object, lanes: int) -> Value:
    """One number of a vector's lanes, by halves."""
    while lanes > 1:
        lanes //= 2
        halves = [e.shuffle(value, None, range(i * lanes, (i + 1) * lanes)) for i in (0, 1)]
        value = take(*halves)  # type: ignore[operator]
    return e.b.extract_element(value, I32(0))


def emit_encode(k: StepEmitter, op: Op) -> None:
    x, ranges = op.operand(0), op.operand(1)
    codes, table = op.outputs
    groups, chunks, _ = ranges.shape
    size, lanes = elements(x.shape) // groups, k.target.lanes
    each = _chunk(size, chunks, lanes)
    shift = 128 if codes.dtype is DType.UINT8 else 0
    places = [k.ptr(t) for t in (x, ranges, codes, table)]
    begin, end = k.share(groups * chunks)
    with k.loop(begin, end) as unit:
        group, chunk = k.div(unit, chunks), k.rem(unit, chunks)
        low, high = _whole_range(k, k.at(places[1], k.mul(group, 2 * chunks), F32), chunks)
        find = symmetric_codes if op.attrs["symmetric"] else asymmetric_codes
        zero, step, inverse = find(k, low, high)
        with k.when(k.b.icmp_signed("==", k.i64(chunk), I64(0))):
            there = k.at(places[3], k.mul(group, 2), I32)
            k.store(k.b.add(zero, I32(shift)), there, 4)
            k.store(step, k.at(there, 1, I32), 4)
        first = k.min(k.mul(chunk, each), size)
        last = k.min(k.add(first, each), size)
        source = k.at(places[0], k.mul(group, size), F32)
        target = k.at(places[2], k.mul(group, size), I8)
        lowest = -127 if op.attrs["symmetric"] else -128
        _encode(k, source, target, first, last, lanes, (zero, inverse), lowest, shift)


def _whole_range(e: Emitter, ranges: Value, chunks: int) -> tuple[Value, Value]:
    with e.loop(0, chunks, carry=[F32(0), F32(0)]) as (i, (low, high)):
        pair = e.at(ranges, e.mul(i, 2), F32)
        e.carry([e.fmin(e.load(pair, F32), low), e.fmax(e.load(e.at(pair, 1, F32), F32), high)])
    return e.carried[0], e.carried[1]


def symmetric_codes(e: Emitter, low: Value, high: Value) -> tuple[Value, Value, Value]:
    """Zero point, step and its inverse, all float32."""
    span = e.fmax(e.b.fneg(low), high)
    flat = e.b.fcmp_ordered("==", span, F32(0))
    inverse = e.b.select(flat, F32(0), e.b.fdiv(F32(127), span))
    return I32(0), e.b.select(flat, F32(1), e.b.fdiv(span, F32(127))), inverse


def asymmetric_codes(e: Emitter, low: Value, high: Value) -> tuple[Value, Value, Value]:
    """The span is rounded to float32, the rest is computed in float64."""
    b = e.b
    flat = b.fcmp_ordered("==", low, high)
    span = b.fpext(b.fsub(high, low), F64)
    step = b.select(flat, F64(1), b.fdiv(span, F64(255)))
    below, above = (b.fdiv(b.fpext(v, F64), step) for v in (low, high))
    nearer = b.fcmp_ordered("<", b.fsub(F64(128), below), b.fadd(F64(127), above))
    place = b.select(nearer, b.fsub(F64(-128), below), b.fsub(F64(127), above))
    nudge = b.select(b.fcmp_ordered("<", place, F64(0)), F64(-HALF64), F64(HALF64))
    whole = b.fptosi(b.fadd(place, nudge), I32)
    whole = e.smin(e.smax(whole, I32(-128)), I32(127))
    small = b.fptrunc(step, F32)
    inverse = b.select(flat, F32(0), b.fdiv(F32(1), small))
    return b.select(flat, I32(0), whole), small, inverse


# The largest numbers below one half: added before truncation they round half away from zero.
HALF = float(np.nextafter(np.float32(0.5), np.float32(0)))
HALF64 = float(np.nextafter(0.5, 0))


def _encode(
    e: Emitter,
    source: Value,
    target: Value,
    first: Int,
    last: Int,
    lanes: int,
    how: tuple[Value, Value],
    lowest: int,
    shift: int,
) -> None:
    whole = e.add(first, e.mul(e.div(e.sub(last, first), lanes), lanes))
    for start, stop, count in ((first, whole, lanes), (whole, last, 1)):
        t = vector(F32, count)
        zero, inverse = (e.splat(v, count) for v in how)
        with e.loop(start, stop, count) as i:
            value = e.b.fmul(e.load(e.at(source, i, F32), t), inverse)
            value = e.fmin(e.fmax(value, e.const(t, -512)), e.const(t, 512))
            below = e.b.fcmp_ordered("<", value, e.const(t, 0))
            nudge = e.b.select(below, e.const(t, -HALF), e.const(t, HALF))
            code = e.b.add(e.b.fptosi(e.b.fadd(value, nudge), zero.type), zero)
            code = e.smin(e.smax(code, e.const(zero.type, lowest)), e.const(zero.type, 127))
            code = e.b.add(code, e.const(zero.type, shift))
            e.store(e.b.trunc(code, vector(I8, count)), e.at(target, i, I8))


KERNELS = {"cpu.RANGE": Kernel(emit_range), "cpu.ENCODE": Kernel(emit_encode)}
