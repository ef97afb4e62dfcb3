"""Elementwise work: expressions rendered on vectors, and the kernel that maps one over tensors.

In registers a bool is an i1, a float16 its bits in an i16 (it is computed with as float32), any
other type itself.
"""

from __future__ import annotations

import hashlib
import math as pymath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import llvmlite.ir as ir
import numpy as np

from ...errors import InputError
from ...ir import Array, DType, Op, Shape, Tensor
from ...ir.expr import SCALAR_OPS, Const, Expr, Input, inputs_of, render, to_str, walk
from . import math
from .emit import (
    F16,
    F32,
    F64,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Emitter,
    Int,
    Type,
    Value,
    element_type,
    is_vector,
    llvm_type,
    vector,
)
from .math import like
from .program import Kernel, StepEmitter
from .targets import Target

# -- rendering ----------------------------------------------------------------------------------

# Sums and products may fuse into one rounding, as the reference tolerates and the target likes.
FUSES = ("contract",)


def register_type(dtype: DType) -> Type:
    """How an element is held in a register."""
    if dtype is DType.BOOL:
        return I1
    return I16 if dtype in (DType.FLOAT16, DType.BFLOAT16) else llvm_type(dtype.numpy)


def memory_type(dtype: DType) -> Type:
    return I8 if dtype is DType.BOOL else register_type(dtype)


def render_vector(
    e: Emitter, expr: Expr, inputs: Sequence[Value] | Mapping[int, Value], lanes: int | None = None
) -> Value:
    """The expression on vectors (any lane count) or scalars, one for each input it reads.

    lanes is needed only where no input is read. Values have the register types of their inputs.
    """
    if lanes is None:
        first = inputs[next(iter(inputs_of(expr)))]
        lanes = first.type.count if is_vector(first.type) else 0
    return Renderer(e, inputs, lanes).value(expr)


class Renderer:
    """One expression on its way into a function; lanes 0 means scalars."""

    def __init__(self, e: Emitter, inputs: Sequence[Value] | Mapping[int, Value],
                 lanes: int) -> None:  # fmt: skip
        self.e, self.inputs, self.lanes = e, inputs, lanes
        self.known: dict[Expr, Value] = {}
        self.table = {name: partial(self._node, _RULES[name]) for name in _RULES}

    def value(self, expr: Expr) -> Value:
        return render(expr, self.table, self._leaf)

    def type(self, dtype: DType) -> Type:
        t = register_type(dtype)
        return vector(t, self.lanes) if self.lanes else t

    def const(self, value: Any, dtype: DType) -> Value:
        if dtype is DType.FLOAT16:
            value = int(np.float16(value).view(np.int16))
        return self.e.const(self.type(dtype), value)

    def _leaf(self, node: Expr) -> Value:
        if node.op == "input":
            return self._keep(node, self.inputs[node.value])
        return self._keep(node, self.const(node.value, node.dtype))

    def _node(self, rule: Rule, node: Expr, *args: Value) -> Value:
        return self._keep(node, rule(self, node, *args))

    def _keep(self, node: Expr, value: Value) -> Value:
        self.known[node] = value
        return value


Rule = Callable[..., Value]  # (renderer, node, *rendered operands)


def _kind(node: Expr) -> str:
    """f, i, u or b, of the operands."""
    dtype = node.args[-1].dtype
    return "f" if dtype.is_float else dtype.numpy.kind


def _arithmetic(floats: str, integers: str) -> Rule:
    def rule(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
        if _kind(node) == "f":
            return getattr(r.e.b, floats)(a, b, flags=FUSES)
        return getattr(r.e.b, integers)(a, b)

    return rule


def _div(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    if _kind(node) != "f":
        return _whole_quotient(r, node, a, b, math.trunc)
    above, below = node.args
    power = _sigmoid_power(below) if above.is_const and above.value == 1 else None
    if power is None:
        return r.e.b.fdiv(a, b)
    x = power.args[0]
    negated = x.op == "neg"
    return math.sigmoid(r.e, r.known[x.args[0] if negated else x], -1 if negated else 1)


def _sigmoid_power(below: Expr) -> Expr | None:
    """p of 1 + p where p is an exponential of float32, which is never negative."""
    if below.op != "add" or below.dtype is not DType.FLOAT32:
        return None
    for one, p in (below.args, below.args[::-1]):
        if one.is_const and one.value == 1 and p.op == "exp":
            return p
    return None


def _floor_div(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    if _kind(node) == "f":
        return math.floor(r.e, r.e.b.fdiv(a, b))
    return _whole_quotient(r, node, a, b, math.floor)


def _whole_quotient(r: Renderer, node: Expr, a: Value, b: Value,
                    whole: Callable[[Emitter, Value], Value]) -> Value:  # fmt: skip
    """Through double, which is exact up to 32 bits: vectors have no integer division."""
    dtype = node.args[0].dtype
    if dtype.bits > 32:
        raise InputError(f"vectors do not divide {dtype.short}")
    wide = like(a.type, F64)
    x, y = (_int_to_float(r, v, dtype, wide) for v in (a, b))
    return _float_to_int(r, whole(r.e, r.e.b.fdiv(x, y)), dtype)


def _floor_mod(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    """The sign is the divisor's. Floats: exact while the quotient has less than 29 bits."""
    e = r.e
    if _kind(node) != "f":
        return e.b.sub(a, e.b.mul(_floor_div(r, node, a, b), b))
    wide = like(a.type, F64)
    x, y = (v if v.type == wide else e.b.fpext(v, wide) for v in (a, b))
    product = e.b.fmul(math.trunc(e, e.b.fdiv(x, y)), y)
    endless = e.b.fcmp_ordered("==", math.absolute(e, y), e.const(wide, np.inf))
    inside = e.b.fcmp_ordered("<", math.absolute(e, x), e.const(wide, np.inf))
    rest = e.b.select(e.b.and_(endless, inside), x, e.b.fsub(x, product))
    zero = e.const(wide, 0)
    turned = e.b.xor(e.b.fcmp_ordered("<", y, zero), e.b.fcmp_ordered("<", rest, zero))
    turned = e.b.and_(turned, e.b.fcmp_unordered("!=", rest, zero))
    rest = e.b.select(turned, e.b.fadd(rest, y), rest)
    return rest if a.type == wide else e.b.fptrunc(rest, a.type)


def _compare(sign: str) -> Rule:
    def rule(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
        kind = _kind(node)
        if kind == "f":
            compare = r.e.b.fcmp_unordered if sign == "!=" else r.e.b.fcmp_ordered
            return compare(sign, a, b)
        return (r.e.b.icmp_signed if kind == "i" else r.e.b.icmp_unsigned)(sign, a, b)

    return rule


def _extreme(sign: str) -> Rule:
    """NaN passes, whichever operand it is. x86 takes the second operand if either is NaN, so that
    one instruction is enough where the other is a constant."""

    def rule(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
        e = r.e
        if _kind(node) != "f":
            return e.b.select(_compare(sign)(r, node, a, b), a, b)
        if node.args[1].is_const:
            a, b = b, a
        found = e.b.select(e.b.fcmp_ordered(sign, a, b), a, b)
        if node.args[0].is_const or node.args[1].is_const:
            return found
        return e.b.select(math.is_nan(e, a), a, found)

    return rule


def _neg(r: Renderer, node: Expr, a: Value) -> Value:
    return r.e.b.fneg(a) if _kind(node) == "f" else r.e.b.neg(a)


def _abs(r: Renderer, node: Expr, a: Value) -> Value:
    if _kind(node) == "f":
        return math.absolute(r.e, a)
    zero = r.e.const(a.type, 0)
    below = r.e.b.icmp_signed("<", a, zero)
    return a if _kind(node) == "u" else r.e.b.select(below, r.e.b.sub(zero, a), a)


def _sign(r: Renderer, node: Expr, a: Value) -> Value:
    """NaN and zero are their own signs."""
    e, zero = r.e, r.const(0, node.dtype)
    above, below = (_compare(s)(r, node, a, zero) for s in "><")
    negative = e.b.select(below, r.const(-1, node.dtype), a)
    return e.b.select(above, r.const(1, node.dtype), negative)


def _function(function: Callable[..., Value]) -> Rule:
    """A function of float32; doubles have the few that are instructions."""

    def rule(r: Renderer, node: Expr, *args: Value) -> Value:
        return function(r.e, *args)

    return rule


def _bitwise(name: str) -> Rule:
    return lambda r, node, *args: getattr(r.e.b, name)(*args)


def _shift_right(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    return (r.e.b.ashr if _kind(node) == "i" else r.e.b.lshr)(a, b)


def _select(r: Renderer, node: Expr, condition: Value, yes: Value, no: Value) -> Value:
    return r.e.b.select(condition, yes, no)


# -- casts --------------------------------------------------------------------------------------


def _cast(r: Renderer, node: Expr, a: Value) -> Value:
    inner = node.args[0]
    source, target = inner.dtype, node.dtype
    if source is target:
        return a
    if source is DType.FLOAT16:
        a, source = half_to_float(r.e, a), DType.FLOAT32
    if target is DType.FLOAT16:
        single = _convert(r, a, source, DType.FLOAT32)
        return float_to_half(r.e, single)
    if inner.op == "round_even" and source is DType.FLOAT32 and target.bits <= 16:
        return _low_bits(r, r.known[inner.args[0]], target)
    return _convert(r, a, source, target)


def _low_bits(r: Renderer, x: Value, target: DType) -> Value:
    """Rounded to nearest even by one addition, whose low bits are the integer."""
    shifted = r.e.b.fadd(x, r.e.const(x.type, math.ROUNDING))
    return r.e.b.trunc(r.e.b.bitcast(shifted, like(x.type, I32)), r.type(target))


def _convert(r: Renderer, a: Value, source: DType, target: DType) -> Value:
    e, t = r.e, r.type(target)
    if source is target:
        return a
    if target is DType.BOOL:
        zero = e.const(a.type, 0)
        ne = e.b.fcmp_unordered if source.is_float else e.b.icmp_unsigned
        return ne("!=", a, zero)
    if source.is_float and target.is_float:
        return e.b.fpext(a, t) if target is DType.FLOAT64 else e.b.fptrunc(a, t)
    if source.is_float:
        return _float_to_int(r, a, target)
    if target.is_float:
        return _int_to_float(r, a, source, t)
    return resize(e, a, t, source.numpy.kind == "i")


def resize(e: Emitter, a: Value, t: Type, signed: bool) -> Value:
    """An integer as another integer type."""
    before, after = element_type(a.type).width, element_type(t).width
    if after == before:
        return a
    if after < before:
        return e.b.trunc(a, t)
    return e.b.sext(a, t) if signed else e.b.zext(a, t)


def _int_to_float(r: Renderer, a: Value, source: DType, t: Type) -> Value:
    signed = source.numpy.kind == "i"
    if source.bits < 32 or source is DType.BOOL:
        # A narrow unsigned integer is a positive 32-bit one, which converts in one instruction.
        return r.e.b.sitofp(resize(r.e, a, like(t, I32), signed), t)
    return r.e.b.sitofp(a, t) if signed else r.e.b.uitofp(a, t)


def _float_to_int(r: Renderer, a: Value, target: DType) -> Value:
    """Towards zero. The value fits, or what comes of it is not used."""
    signed = target.numpy.kind == "i"
    wide = I64 if target.bits == 64 or (target.bits == 32 and not signed) else I32
    whole = r.e.b.fptosi(a, like(a.type, wide))
    return resize(r.e, whole, r.type(target), True)


def _has_half(e: Emitter) -> bool:
    return "+f16c" in e.target.features or e.target.triple.startswith("aarch64")


def half_to_float(e: Emitter, bits: Value) -> Value:
    """float16 (its bits) -> float32."""
    t = like(bits.type, F32)
    if _has_half(e):
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
    if _has_half(e):
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


_RULES: dict[str, Rule] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _div,
    "floor_div": _floor_div,
    "floor_mod": _floor_mod,
    "pow": _function(math.power),
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "exp": _function(math.exp),
    "log": _function(math.log),
    "tanh": _function(math.tanh),
    "sqrt": _function(math.sqrt),
    "rsqrt": _function(math.rsqrt),
    "sin": _function(math.sin),
    "cos": _function(math.cos),
    "erf": _function(math.erf),
    "floor": _function(math.floor),
    "ceil": _function(math.ceil),
    "trunc": _function(math.trunc),
    "round_even": _function(math.round_even),
    "less": _compare("<"),
    "less_equal": _compare("<="),
    "greater": _compare(">"),
    "greater_equal": _compare(">="),
    "equal": _compare("=="),
    "not_equal": _compare("!="),
    "and": _bitwise("and_"),
    "or": _bitwise("or_"),
    "xor": _bitwise("xor"),
    "not": _bitwise("not_"),
    "shift_left": _bitwise("shl"),
    "shift_right": _shift_right,
    "select": _select,
    "cast": _cast,
}


# -- memory -------------------------------------------------------------------------------------


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


# -- loops --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """A broadcast as loops: the sizes, outermost first, and each operand's step in each of them.

    The innermost step is 1 or 0, as tensors are dense.
    """

    sizes: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]  # by operand, then by loop

    @property
    def inner(self) -> int:
        return self.sizes[-1] if self.sizes else 1


def dense_steps(shape: Shape, to: Shape) -> tuple[int, ...]:
    """Elements to move by in each dimension of `to`, over which the shape is broadcast."""
    surplus = max(len(shape) - len(to), 0)  # leading ones
    padded = (1,) * (len(to) - len(shape)) + tuple(shape)[surplus:]
    steps, step = [], 1
    for size, wide in zip(reversed(padded), reversed(to), strict=True):
        steps.append(step if size == wide and size > 1 else 0)
        step *= size
    return tuple(reversed(steps))


def collapse(to: Shape, shapes: Sequence[Shape]) -> Layout:
    """The fewest loops for these operands."""
    steps = [dense_steps(s, to) for s in shapes]
    sizes: list[int] = []
    kept: list[list[int]] = []  # by loop, then by operand
    for axis, size in enumerate(to):
        if size == 1:
            continue
        here = [s[axis] for s in steps]
        if kept and all(a == b * size for a, b in zip(kept[-1], here, strict=True)):
            sizes[-1] *= size
            kept[-1] = here
        else:
            sizes.append(size)
            kept.append(here)
    by_operand = zip(*kept, strict=True) if kept else ([() for _ in shapes])
    return Layout(tuple(sizes), tuple(tuple(s) for s in by_operand))


# Constants that stay in the code; others are read from memory, so that steps share a function.
KEPT = frozenset({0.0, 1.0, -1.0, 0.5, 2.0, 3.0, 6.0, 255.0})


def lift(expr: Expr, first: int) -> tuple[Expr, list[float]]:
    """Replace float constants by inputs, numbered from `first`; and their values."""
    found: dict[float, int] = {}

    def leaf(node: Expr) -> Expr:
        if not node.is_const or node.dtype is not DType.FLOAT32 or node.value in KEPT:
            return node
        if not np.isfinite(node.value):
            return node
        return Input(first + found.setdefault(node.value, len(found)), DType.FLOAT32)

    return rebuild(expr, leaf), list(found)


def rebuild(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """The expression with other leaves."""

    def again(node: Expr, *args: Expr) -> Expr:
        return node if args == node.args else Expr(node.op, args, node.value)

    return render(expr, dict.fromkeys(SCALAR_OPS, again), leaf)


def renumber(expr: Expr, places: Mapping[int, int]) -> Expr:
    return rebuild(expr, lambda n: Input(places[n.value], n.dtype) if n.op == "input" else n)


@dataclass(frozen=True)
class Operand:
    """What a map reads: a tensor or a constant array."""

    dtype: DType
    shape: Shape
    tensor: Tensor | None = None
    array: Array | None = None

    def pointer(self, k: StepEmitter) -> Value:
        if self.array is not None:
            return k.constant(self.array)
        assert self.tensor is not None
        return k.ptr(self.tensor)


@dataclass(frozen=True)
class Map:
    """An expression over operands, ready to be written."""

    expr: Expr
    operands: tuple[Operand, ...]
    layout: Layout
    out: DType

    @classmethod
    def of(cls, op: Op) -> Map:
        """From a cpu.MAP op: single constants go into the expression, unread inputs go."""
        expr, out = op.attrs["expr"], op.outputs[0]
        tensors = {i: op.inputs[i] for i in inputs_of(expr)}
        values = {i: t for i, t in tensors.items()
                  if t is not None and t.data is not None and t.data.size == 1}  # fmt: skip

        def leaf(node: Expr) -> Expr:
            tensor = values.get(node.value) if node.op == "input" else None
            if tensor is None or tensor.data is None:
                return node
            return Const(tensor.data.reshape(())[()].item(), node.dtype)

        expr = rebuild(expr, leaf)
        read = sorted(inputs_of(expr))
        expr = renumber(expr, {old: new for new, old in enumerate(read)})
        shapes = op.attrs.get("shapes") or [t.shape if t is not None else () for t in op.inputs]
        operands = tuple(_operand(op.inputs[i], shapes[i]) for i in read)
        return cls(expr, operands, collapse(out.shape, [o.shape for o in operands]), out.dtype)


def _operand(tensor: Tensor | None, shape: Shape) -> Operand:
    assert tensor is not None
    return Operand(tensor.dtype, shape, tensor, tensor.data)


# A row shorter than this is worth lengthening, up to so many elements of a repeated constant.
SHORT, LONG = 256, 2048


def lengthen(m: Map) -> Map:
    """Repeat constants that go along a short innermost loop, so that the loop gets longer."""
    sizes = m.layout.sizes
    if len(sizes) < 2 or sizes[-1] >= SHORT:
        return m
    rows, inner = sizes[-2], sizes[-1]
    repeated = []
    for index, step in enumerate(m.layout.steps):
        if step[-2:] in ((inner, 1), (0, 0)):
            continue
        if m.operands[index].array is None or any(step[:-1]) or step[-1] != 1:
            return m
        repeated.append(index)
    times = max(d for d in range(1, rows + 1) if rows % d == 0 and d * inner <= max(LONG, inner))
    if times == 1:
        return m
    operands = list(m.operands)
    for index in repeated:
        array = np.tile(np.asarray(operands[index].array).reshape(-1), times)
        operands[index] = replace(operands[index], shape=array.shape, array=array, tensor=None)
    # The loop over rows is shorter; or it is gone.
    left = (rows // times,) if rows > times else ()
    steps = tuple((*s[:-2], *(s[-2] * times,) * len(left), s[-1]) for s in m.layout.steps)
    layout = Layout((*sizes[:-2], *left, inner * times), steps)
    return replace(m, operands=tuple(operands), layout=layout)


# Elements of a unit of work in one long row.
BLOCK = 1024


def emit_map(k: StepEmitter, op: Op) -> None:
    m = lengthen(Map.of(op))
    if 0 in op.outputs[0].shape:
        return
    sizes = m.layout.sizes or (1,)
    function, values = row_function(k, m)
    pointers = [o.pointer(k) for o in m.operands]
    target = k.ptr(op.outputs[0])
    params = k.constant(np.array(values, np.float32)) if values else target
    types = [memory_type(o.dtype) for o in m.operands]
    steps = [s or (0,) for s in m.layout.steps]

    def call(outer: Sequence[Int], row: Int, rows: Int, first: Int, count: Int) -> None:
        """Rows from `row`, elements from `first`, at these places of the outer loops."""
        sources = []
        for pointer, t, step in zip(pointers, types, steps, strict=True):
            place = _place(k, (*outer, row), step[:-1]) if len(sizes) > 1 else 0
            sources.append(k.at(pointer, k.add(place, k.mul(first, step[-1])), t))
        widths = [pymath.prod(sizes[i + 1 :]) for i in range(len(sizes))]
        place = _place(k, (*outer, row), widths[:-1]) if len(sizes) > 1 else 0
        result = k.at(target, k.add(place, first), memory_type(m.out))
        strides = [I64(s[-2] if len(sizes) > 1 else 0) for s in steps]
        k.b.call(function, [*sources, result, params, k.i64(rows), k.i64(count), *strides,
                            I64(sizes[-1])])  # fmt: skip

    _split(k, sizes, call)


def _split(k: StepEmitter, sizes: Shape, call: Callable[..., None]) -> None:
    """Share the loops between the workers, by the largest pieces that still balance."""
    if len(sizes) == 1:
        begin, end = k.share(pymath.ceil(sizes[0] / BLOCK))
        first = k.mul(begin, BLOCK)
        last = k.min(k.mul(end, BLOCK), sizes[0])
        with k.when(k.less(first, last)):
            call((), 0, 1, first, k.sub(last, first))
        return
    rows, inner, outer = sizes[-2], sizes[-1], sizes[:-2]
    if not outer:
        begin, end = k.share(rows)
        with k.when(k.less(begin, end)):
            call((), begin, k.sub(end, begin), 0, inner)
        return
    many = pymath.prod(outer)
    group = pymath.ceil(rows / pymath.ceil(16 / many))
    groups = pymath.ceil(rows / group)
    begin, end = k.share(many * groups)
    with k.loop(begin, end) as unit:
        row = k.mul(k.rem(unit, groups), group)
        count = k.min(k.sub(rows, row), group)
        call(_unravel(k, k.div(unit, groups), outer), row, count, 0, inner)


def _unravel(k: StepEmitter, index: Int, sizes: Shape) -> list[Int]:
    places: list[Int] = []
    for size in reversed(sizes):
        places.insert(0, k.rem(index, size))
        index = k.div(index, size)
    return places


def _place(k: StepEmitter, index: Sequence[Int], steps: Sequence[int]) -> Int:
    place: Int = 0
    for i, step in zip(index, steps, strict=True):
        place = k.add(place, k.mul(i, step))
    return place


def row_function(k: StepEmitter, m: Map) -> tuple[ir.Function, list[float]]:
    """(operands..., out, params, rows, count, row steps..., out's row step), and the parameters.

    count is at least a vector's lanes, or it is the start of such a row's last piece: then the last
    vector reaches back over elements that are computed twice. A shorter row has its own function.
    """
    template, values = lift(m.expr, len(m.operands))
    lanes = k.target.width // widest(template)
    part = m.layout.inner if m.layout.inner < lanes else 0
    splats = tuple(not s or s[-1] == 0 for s in m.layout.steps)
    kinds = "".join(o.dtype.short for o in m.operands) + "_" + m.out.short
    key = f"{to_str(template)} {kinds} {splats} {part}"
    name = f"map_{kinds}_{hashlib.blake2b(key.encode(), digest_size=6).hexdigest()}"
    count = len(m.operands)
    args = [PTR] * (count + 2) + [I64] * (3 + count)
    packing = Packing.of(template, k.target) if lanes == k.target.lanes else None
    dtypes = [o.dtype for o in m.operands]
    row = _Row(template, dtypes, splats, m.out, lanes, part, len(values), packing)
    return k.program.function(name, args, row.build), values


def widest(expr: Expr) -> int:
    """Bytes of the largest type in it: how many lanes fill a vector follows from that."""
    return max(max(n.dtype.bits, 8) // 8 for n in walk(expr))


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


@dataclass(frozen=True)
class _Row:
    """The function of rows: loops over rows and over vectors of a row."""

    expr: Expr
    dtypes: Sequence[DType]
    splats: Sequence[bool]
    out: DType
    lanes: int
    part: int
    params: int
    packing: Packing | None = None

    @property
    def unroll(self) -> int:
        """Short expressions are bound by the loop, long ones fill the pipeline by themselves."""
        if self.packing is not None:
            return 4
        nodes = sum(bool(n.args) for n in walk(self.expr))
        return 4 if nodes <= 6 else 2 if nodes <= 16 else 1

    def build(self, e: Emitter) -> None:
        count = len(self.dtypes)
        pointers, (out, params) = e.args[:count], e.args[count : count + 2]
        rows, length, *steps = e.args[count + 2 :]
        fixed = {count + i: e.splat(e.load(e.at(params, i, F32), F32), self.lanes)
                 for i in range(self.params)}  # fmt: skip
        with e.loop(0, rows) as row:
            here = [e.at(p, e.mul(row, s), memory_type(d))
                    for p, s, d in zip(pointers, steps, self.dtypes, strict=False)]  # fmt: skip
            target = e.at(out, e.mul(row, steps[-1]), memory_type(self.out))
            known = dict(fixed)
            for i, splat in enumerate(self.splats):
                if splat:
                    known[i] = e.splat(load(e, here[i], self.dtypes[i], 0), self.lanes)
            self._row(e, here, target, length, known)

    def _row(self, e: Emitter, here: Sequence[Value], target: Value, length: Value,
             known: Mapping[int, Value]) -> None:  # fmt: skip
        if self.part:
            self._vectors(e, here, target, [0], known, self.part)
            return
        stride = self.lanes * self.unroll
        place: Int = 0
        if self.unroll > 1:
            with e.loop(0, e.sub(length, stride - 1), stride) as place:
                starts = [e.add(place, u * self.lanes) for u in range(self.unroll)]
                self._vectors(e, here, target, starts, known, None)
        last = e.sub(length, self.lanes)
        with e.loop(place, length, self.lanes) as i:
            self._vectors(e, here, target, [e.min(i, last)], known, None)

    def _vectors(self, e: Emitter, here: Sequence[Value], target: Value, starts: Sequence[Int],
                 known: Mapping[int, Value], part: int | None) -> None:  # fmt: skip
        packs = self.packing is not None and len(starts) == 4
        expr = self.packing.real if self.packing is not None and packs else self.expr
        results = []
        for start in starts:
            inputs = dict(known)
            for i, dtype in enumerate(self.dtypes):
                if i not in inputs:
                    place = e.at(here[i], start, memory_type(dtype))
                    inputs[i] = load(e, place, dtype, self.lanes, part)
            results.append(render_vector(e, expr, inputs, self.lanes))
        if self.packing is not None and packs:
            starts, results = starts[:1], [self.packing.pack(e, results)]
        for start, value in zip(starts, results, strict=True):
            store(e, value, e.at(target, start, memory_type(self.out)), self.out, part)


KERNELS = {"cpu.MAP": Kernel(emit_map, name=lambda op: "map")}
