"""Expressions (ir/expr.py) as values of a kernel: a rule for each scalar operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan, pi

from ...ir import DType
from ...ir.expr import Expr, render, walk
from .language import BOOL, FLOAT, INT, REAL, KernelText, Value

MOST = 3.4028234663852886e38  # of 32 bits
KINDS = {
    DType.FLOAT32: FLOAT,
    DType.FLOAT16: FLOAT,
    DType.INT32: INT,
    DType.INT8: INT,  # what a table of ops lets pass of bytes is kept in 32 bits
    DType.UINT8: INT,
    DType.BOOL: BOOL,
}


def refusal(expr: Expr) -> str | None:
    """Why an expression cannot be computed on a device; None if it can."""
    for node in walk(expr):
        if node.dtype not in KINDS:
            return f"it computes in {node.dtype.short}, which kernels have not"
        if node.op in INTEGER_ONLY_FLOAT and node.args[-1].dtype is DType.INT32:
            return f"{node.op} of whole numbers has no kernel"
        if node.args and node.op not in RULES:
            return f"{node.op} has no kernel"
    return None


INTEGER_ONLY_FLOAT = ("pow",)


def render_value(k: KernelText, expr: Expr, inputs: Sequence[Value | None], lanes: int) -> Value:
    """The expression of these values, which have so many lanes each."""

    def leaf(node: Expr) -> Value:
        if node.op == "input":
            found = inputs[node.value]
            assert found is not None
            return found
        return k.value(node.value, KINDS[node.dtype]).splat(lanes)

    def rule(node: Expr, *args: Value) -> Value:
        return k.let(RULES[node.op](k, node, *args))

    return render(expr, dict.fromkeys(RULES, rule), leaf)


Rule = Callable[..., Value]


def _binary(name: str) -> Rule:
    return lambda k, node, a, b: k.binary(name, a, b)


def _call(name: str) -> Rule:
    return lambda k, node, *args: k.call(name, *args)


def _div(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
    return k.binary("div" if a.kind == FLOAT else "quotient", a, b)


def _floor_div(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
    if a.kind == FLOAT:
        return k.call("floor", a / b)
    quotient = k.let(a // b)
    inexact = k.binary("not_equal", quotient * b, a)
    apart = k.binary("xor", a, b) < 0
    return k.select(inexact & apart, quotient - 1, quotient)


def _floor_mod(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
    """The remainder has the sign of the divisor; that of floats is exact, as fmod is."""
    rest = k.let(_fmod(k, a, b) if a.kind == FLOAT else a % b)
    zero = k.value(0.0 if a.kind == FLOAT else 0, a.kind)
    wrong = k.binary("not_equal", rest, zero) & k.binary(
        "not_equal", k.cast((rest < zero), INT), k.cast(b < zero, INT)
    )
    return k.select(wrong, rest + b, rest)


def _fmod(k: KernelText, a: Value, b: Value) -> Value:
    """WGSL's is a - b * trunc(a / b), which is NaN where b is infinite."""
    rest = k.call("fmod", a, b)
    if k.dialect.name == "opencl":
        return rest
    inside = (k.call("abs", b) > MOST) & (k.call("abs", a) <= MOST)
    return k.select(inside, a, rest)


def _extreme(compare: str) -> Rule:
    """NaN passes, as NumPy has it."""

    def rule(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
        name = "maximum" if compare == "greater" else "minimum"
        if a.kind == INT:
            return k.call(name, a, b)
        if any(arg.is_const for arg in node.args):
            value, const = (b, a) if node.args[0].is_const else (a, b)
            return k.select(k.binary(_OPPOSITE[compare], value, const), const, value)
        return k.select(k.binary(compare, a, b) | k.binary("not_equal", a, a), a, b)

    return rule


_OPPOSITE = {"greater": "less", "less": "greater"}


def _sign(k: KernelText, node: Expr, x: Value) -> Value:
    one, zero = (k.value(v if x.kind == FLOAT else int(v), x.kind) for v in (1.0, 0.0))
    return k.select(x > zero, one, k.select(x < zero, -one, x))


# pi / 2 in three parts, whose products with whole numbers below 2**13 are exact but for the last.
QUARTER = (1.5703125, 4.837512969970703125e-4, 7.549789954891882e-8)
# Factors of the powers of the square, from the highest down: sin(x) / x - 1 and
# cos(x) - 1 + x * x / 2 within a quarter of pi (the coefficients of the Cephes library).
SIN_SERIES = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS_SERIES = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def _sin(k: KernelText, node: Expr, x: Value) -> Value:
    """The sine. For small angles it is the angle; some devices return noise for denormal ones."""
    found = k.call("sin", x) if k.dialect.name == "opencl" else _wave(k, x, 0.0)
    return k.select(k.call("abs", x) < 1e-4, x, found)


def _cos(k: KernelText, node: Expr, x: Value) -> Value:
    return k.call("cos", x) if k.dialect.name == "opencl" else _wave(k, x, 1.0)


def _wave(k: KernelText, x: Value, ahead: float) -> Value:
    """The sine of an angle, or, a quarter of a turn ahead, the cosine. WGSL's are promised for one
    turn alone, to 2**-11: this is right to the last bits for 1000 turns and more. Of an angle that
    tells no turns apart any longer it is a number from -1 to 1."""
    x = k.let(k.cast(x, REAL))
    turn = k.let(k.call("floor", x * (2 / pi) + 0.5))
    rest = x
    for part in QUARTER:
        rest = k.let(rest - turn * part)
    square = k.let(rest * rest)
    rise = k.let(_series(k, square, SIN_SERIES) * square * rest + rest)
    fall = k.let(_series(k, square, COS_SERIES) * square * square - square * 0.5 + 1.0)
    place = k.let(turn + ahead)
    place = k.let(place - k.call("floor", place * 0.25) * 4.0)  # which quarter: 0 to 3
    is_fall = k.let(place.equals(1.0) | place.equals(3.0))
    size = k.let(k.select(is_fall, fall, rise))
    found = k.let(k.select(place > 1.5, -size, size))
    found = k.let(k.maximum(k.minimum(found, 1.0), -1.0))
    return k.cast(k.let(k.select(k.call("abs", x) > MOST, k.value(nan, REAL), found)), FLOAT)


def _series(k: KernelText, x: Value, factors: Sequence[float]) -> Value:
    found = k.value(factors[0], REAL).splat(x.lanes)
    for factor in factors[1:]:
        found = k.let(found * x + factor)
    return found


def _log(k: KernelText, node: Expr, x: Value) -> Value:
    """WGSL's is defined above zero only."""
    found = k.call("log", x)
    if k.dialect.name == "opencl":
        return found
    low = k.let(k.select(x.equals(0.0), k.value(-inf), k.value(nan)))
    return k.select(x > 0.0, found, low)


def _tanh(k: KernelText, node: Expr, x: Value) -> Value:
    """Beyond 10 it is 1 to the last bit; some devices overflow there. NaN passes."""
    low = k.let(k.select(x > 10.0, k.value(10.0), x))
    return k.call("tanh", k.select(low < -10.0, k.value(-10.0), low))


def _cast(k: KernelText, node: Expr, x: Value) -> Value:
    kind = KINDS[node.dtype]
    if (x.kind, kind) == (FLOAT, INT):  # beyond the range the result is not defined
        x = k.maximum(k.minimum(x, 2147483520.0), -2147483648.0)
    return k.cast(x, kind)


def _test(name: str) -> Rule:
    def rule(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
        if a.kind == BOOL:
            a, b = k.cast(a, INT), k.cast(b, INT)
        return k.binary(name, a, b)

    return rule


def _bits(name: str) -> Rule:
    def rule(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
        if a.kind == BOOL and name == "xor":
            return k.binary("not_equal", k.cast(a, INT), k.cast(b, INT))
        return k.binary(name, a, b)

    return rule


def _select(k: KernelText, node: Expr, condition: Value, yes: Value, no: Value) -> Value:
    if yes.kind == BOOL:
        return (condition & yes) | (~condition & no)
    return k.select(condition, yes, no)


def _erf(k: KernelText, node: Expr, x: Value) -> Value:
    """Abramowitz and Stegun, 7.1.26: within 1.5e-7. WGSL has no erf."""
    if k.dialect.name == "opencl":
        return k.call("erf", x)
    size = k.let(k.call("abs", x))
    t = k.let(k.value(1.0) / (size * 0.3275911 + 1.0))
    poly = k.let(t * 1.061405429 - 1.453152027)
    for term in (1.421413741, -0.284496736, 0.254829592):
        poly = k.let(poly * t + term)
    share = k.let(1.0 - poly * t * k.call("exp", -(size * size)))
    return k.select(x < 0.0, -share, share)


def _pow(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
    """WGSL's is defined for bases above zero only, and says nothing of what is not finite."""
    if k.dialect.name == "opencl":
        return k.call("pow", a, b)
    zero, endless = k.let(a.equals(0.0)), k.let(k.call("abs", a) > MOST)
    size = k.let(k.select(zero & (b < 0.0), k.value(inf), k.call("pow", k.call("abs", a), b)))
    half = k.let(k.call("floor", b * 0.5))
    odd = k.binary("not_equal", half * 2.0, b)
    whole = k.call("floor", b).equals(b)
    broken = k.select(zero | endless, size, k.value(inf) - inf)
    negative = k.let(k.select(whole, k.select(odd, -size, size), broken))
    found = k.let(k.select((a < 0.0) | (1.0 / a < 0.0), negative, size))
    found = k.let(k.select(_is_nan(k, a) | _is_nan(k, b), a + b, found))
    return k.select(b.equals(0.0) | a.equals(1.0), k.value(1.0), found)


def _is_nan(k: KernelText, x: Value) -> Value:
    return k.binary("not_equal", x, x)


def _atan2(k: KernelText, node: Expr, a: Value, b: Value) -> Value:
    """WGSL's says nothing of NaN, nor of the angle of a zero that has a sign."""
    angle = k.call("atan2", a, b)
    if k.dialect.name == "opencl":
        return angle
    flat = k.let(k.select((b < 0.0) | (1.0 / b < 0.0), k.value(pi), k.value(0.0)))
    signed = k.select(1.0 / a < 0.0, -flat, flat)
    found = k.let(k.select(a.equals(0.0), signed, angle))
    return k.select(_is_nan(k, a) | _is_nan(k, b), a + b, found)


RULES: dict[str, Rule] = {
    "add": _binary("add"),
    "sub": _binary("sub"),
    "mul": _binary("mul"),
    "div": _div,
    "floor_div": _floor_div,
    "floor_mod": _floor_mod,
    "pow": _pow,
    "atan2": _atan2,
    "fma": _call("fma"),
    "maximum": _extreme("greater"),
    "minimum": _extreme("less"),
    "neg": _call("neg"),
    "abs": _call("abs"),
    "sign": _sign,
    "exp": _call("exp"),
    "log": _log,
    "tanh": _tanh,
    "sqrt": _call("sqrt"),
    "rsqrt": _call("rsqrt"),
    "sin": _sin,
    "cos": _cos,
    "erf": _erf,
    "floor": _call("floor"),
    "ceil": _call("ceil"),
    "trunc": _call("trunc"),
    "round_even": _call("round_even"),
    "less": _test("less"),
    "less_equal": _test("less_equal"),
    "greater": _test("greater"),
    "greater_equal": _test("greater_equal"),
    "equal": _test("equal"),
    "not_equal": _test("not_equal"),
    "and": _bits("and"),
    "or": _bits("or"),
    "xor": _bits("xor"),
    "not": _call("not"),
    "shift_left": _binary("shift_left"),
    "shift_right": _binary("shift_right"),
    "select": _select,
    "cast": _cast,
}
