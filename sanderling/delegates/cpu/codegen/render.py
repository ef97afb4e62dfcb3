"""Expressions rendered as instructions, on vectors or scalars: a rule for each operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ....errors import InputError
from ....ir import DType
from ....ir.expr import Expr, inputs_of, render, walk
from . import trigonometry
from . import vector_math as vmath
from .elements import (
    float_to_half,
    half_to_float,
    register_type,
    resize,
)
from .emit import (
    F64,
    I32,
    I64,
    Emitter,
    Type,
    Value,
    is_vector,
    like,
    vector,
)

# -- rendering ----------------------------------------------------------------------------------


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

    def __init__(
        self, e: Emitter, inputs: Sequence[Value] | Mapping[int, Value], lanes: int
    ) -> None:
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
    """A product and a sum are rounded apart, as the definition's are: fused into one rounding, a
    last bit differs, which is a whole step where the next layer makes codes of it."""

    def rule(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
        if _kind(node) == "f":
            return getattr(r.e.b, floats)(a, b)
        return getattr(r.e.b, integers)(a, b)

    return rule


def _mul(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    """Products with the logistic function are quotients; with the normal distribution, GELU."""
    for y, factor, other in ((*node.args, a), (*node.args[::-1], b)):
        if (power := _sigmoid_power(factor)) is not None:
            x, sign = _signed(power.args[0])
            return vmath.sigmoid_share(r.e, other, r.known[x], sign, _depends(x, y))
        if _gauss_angle(factor) is y:
            return vmath.gauss_share(r.e, other)
    return _arithmetic("fmul", "mul")(r, node, a, b)


def _div(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    if _kind(node) != "f":
        return _whole_quotient(r, node, a, b, vmath.trunc)
    power = _sigmoid_power(node)
    if power is None:
        return r.e.b.fdiv(a, b)
    x, sign = _signed(power.args[0])
    return vmath.sigmoid(r.e, r.known[x], sign)


def _is(node: Expr, value: float) -> bool:
    return node.is_const and bool(node.value == value)


def _signed(x: Expr) -> tuple[Expr, int]:
    return (x.args[0], -1) if x.op == "neg" else (x, 1)


def _depends(x: Expr, y: Expr) -> bool:
    return any(node is y for node in walk(x))


def _beside(node: Expr, name: str, value: float) -> Expr | None:
    """The other operand of a commutative float32 operator, one of whose operands is this number."""
    if node.op == name and node.dtype is DType.FLOAT32:
        for constant, other in (node.args, node.args[::-1]):
            if _is(constant, value):
                return other
    return None


def _sigmoid_power(node: Expr) -> Expr | None:
    """p of 1 / (1 + p) where p is an exponential of float32, which is never negative."""
    if node.op != "div" or node.dtype is not DType.FLOAT32 or not _is(node.args[0], 1):
        return None
    p = _beside(node.args[1], "add", 1)
    return p if p is not None and p.op == "exp" else None


ROOT_HALF = float(np.float32(math.sqrt(0.5)))


def _gauss_angle(node: Expr) -> Expr | None:
    """x of (1 + erf(x / sqrt(2))) / 2, as GELU has it."""
    half = _beside(node, "add", 0.5)
    erf = None if half is None else _beside(half, "mul", 0.5)
    if erf is None or erf.op != "erf":
        return None
    return _beside(erf.args[0], "mul", ROOT_HALF)


def _floor_div(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    if _kind(node) == "f":
        return vmath.floor(r.e, r.e.b.fdiv(a, b))
    return _whole_quotient(r, node, a, b, vmath.floor)


def _whole_quotient(
    r: Renderer, node: Expr, a: Value, b: Value, whole: Callable[[Emitter, Value], Value]
) -> Value:
    """Through double, which is exact up to 32 bits: vectors have no integer division."""
    dtype = node.args[0].dtype
    if dtype.bits > 32:
        raise InputError(f"vectors do not divide {dtype.short}")
    wide = like(a.type, F64)
    x, y = (_int_to_float(r, v, dtype, wide) for v in (a, b))
    return _float_to_int(r, whole(r.e, r.e.b.fdiv(x, y)), dtype)


def _floor_mod(r: Renderer, node: Expr, a: Value, b: Value) -> Value:
    """The sign is the divisor's."""
    e = r.e
    if _kind(node) != "f":
        return e.b.sub(a, e.b.mul(_floor_div(r, node, a, b), b))
    wide = like(a.type, F64)
    x, y = (v if v.type == wide else e.b.fpext(v, wide) for v in (a, b))
    x = _nearer(e, x, y)
    product = e.b.fmul(vmath.trunc(e, e.b.fdiv(x, y)), y)
    endless = e.b.fcmp_ordered("==", vmath.absolute(e, y), e.const(wide, np.inf))
    inside = e.b.fcmp_ordered("<", vmath.absolute(e, x), e.const(wide, np.inf))
    rest = e.b.select(e.b.and_(endless, inside), x, e.b.fsub(x, product))
    zero = e.const(wide, 0)
    turned = e.b.xor(e.b.fcmp_ordered("<", y, zero), e.b.fcmp_ordered("<", rest, zero))
    turned = e.b.and_(turned, e.b.fcmp_unordered("!=", rest, zero))
    rest = e.b.select(turned, e.b.fadd(rest, y), rest)
    return rest if a.type == wide else e.b.fptrunc(rest, a.type)


# Bits of a quotient whose product with a float32 is exact in double, and how often they have to be
# taken off the largest quotient of two such numbers, 2**276.
EXACT_BITS, MOST_TURNS = 28, 10


def _nearer(e: Emitter, x: Value, y: Value) -> Value:
    """x less multiples of y, so that the product of y and their whole quotient is exact."""
    t, magnitude = x.type, vmath.absolute(e, y)
    limit = e.b.fmul(magnitude, e.const(t, 2.0**EXACT_BITS))
    cleared = e.const(like(t, I64), -(1 << (53 - EXACT_BITS)))

    def is_far(rest: Value) -> Value:
        inside = e.b.fcmp_ordered("<", vmath.absolute(e, rest), e.const(t, np.inf))
        beyond = e.b.fcmp_ordered(">=", vmath.absolute(e, rest), limit)
        counts = e.b.fcmp_ordered(">", magnitude, e.const(t, 0))
        return e.b.and_(e.b.and_(inside, beyond), counts)

    before, far = e.b.block, is_far(x)
    with e.b.if_then(e.any(far), likely=False):
        with e.loop(0, MOST_TURNS, carry=[x]) as (_, (rest,)):
            first_bits = e.b.and_(e.b.bitcast(e.b.fdiv(rest, y), cleared.type), cleared)
            less = e.b.fsub(rest, e.b.fmul(e.b.bitcast(first_bits, t), y))
            e.carry([e.b.select(is_far(rest), less, rest)])
        (near,), inside = e.carried, e.b.block
    found = e.b.phi(t)
    found.add_incoming(near, inside)
    found.add_incoming(x, before)
    return found


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
        return e.b.select(vmath.is_nan(e, a), a, found)

    return rule


def _neg(r: Renderer, node: Expr, a: Value) -> Value:
    return r.e.b.fneg(a) if _kind(node) == "f" else r.e.b.neg(a)


def _abs(r: Renderer, node: Expr, a: Value) -> Value:
    if _kind(node) == "f":
        return vmath.absolute(r.e, a)
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
    """e**x - 1 below zero, as ELU has it, is computed without cancellation."""
    x = _exp_minus_one(node.args[1])
    if x is not None and node.args[0].op == "less" and node.args[0].args[0] is x:
        yes = vmath.expm1(r.e, r.known[x]) if _is(node.args[0].args[1], 0) else yes
    return r.e.b.select(condition, yes, no)


def _exp_minus_one(node: Expr) -> Expr | None:
    """x of e**x - 1; simplified, that is a sum."""
    if node.dtype is not DType.FLOAT32 or node.op not in ("sub", "add"):
        return None
    power, one = node.args
    fits = power.op == "exp" and _is(one, 1 if node.op == "sub" else -1)
    return power.args[0] if fits else None


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
    shifted = r.e.b.fadd(x, r.e.const(x.type, vmath.ROUNDING))
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


_RULES: dict[str, Rule] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _mul,
    "div": _div,
    "floor_div": _floor_div,
    "floor_mod": _floor_mod,
    "pow": _function(vmath.power),
    "fma": _function(Emitter.fma),
    "maximum": _extreme(">"),
    "minimum": _extreme("<"),
    "neg": _neg,
    "abs": _abs,
    "sign": _sign,
    "exp": _function(vmath.exp),
    "log": _function(vmath.log),
    "tanh": _function(vmath.tanh),
    "sqrt": _function(vmath.sqrt),
    "rsqrt": _function(vmath.rsqrt),
    "sin": _function(trigonometry.sin),
    "cos": _function(trigonometry.cos),
    "atan2": _function(trigonometry.atan2),
    "erf": _function(vmath.erf),
    "floor": _function(vmath.floor),
    "ceil": _function(vmath.ceil),
    "trunc": _function(vmath.trunc),
    "round_even": _function(vmath.round_even),
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
