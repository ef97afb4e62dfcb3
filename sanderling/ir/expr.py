"""Scalar expressions for fused elementwise work.

    x, y = Input(0, DType.FLOAT32), Input(1, DType.FLOAT32)
    relu6 = clamp(x * y + 1, 0, 6)
    evaluate(relu6, [a, b])

Nodes are immutable and unique: equal expressions are the same object, so `is`, `==` and `hash`
are cheap and a common part is computed once. Types never change by themselves: an operator
takes one type (a Python number takes the other operand's), and `cast` is written out.

An interpretation of expressions is a table of one function per operator, given to `render`:
NumPy, LLVM and OpenCL are such tables, and so is `simplify`.
"""

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from ..errors import InputError
from .types import Array, DType

T = TypeVar("T")
Number = int | float | bool


class Expr:
    """A node: an operator of SCALAR_OPS over args, or a leaf ("input" or "const").

    value is what the operator needs beside its args: an input's number, a constant's value,
    the type of a cast.
    """

    __slots__ = ("__weakref__", "args", "dtype", "op", "value")

    op: str
    args: tuple[Expr, ...]
    value: Any
    dtype: DType

    def __new__(
        cls, op: str, args: Sequence[Expr] = (), value: Any = None, dtype: DType | None = None
    ) -> Expr:
        """dtype is for leaves; that of an operator follows from its args."""
        args = tuple(args)
        if dtype is None or op not in _LEAVES:
            dtype = _result_type(op, args, value)
        key = (op, args, _bits(value, dtype) if op == "const" else value, dtype)
        with _LOCK:
            node = _NODES.get(key)
            if node is None:
                node = super().__new__(cls)
                for name, field in (("op", op), ("args", args), ("value", value), ("dtype", dtype)):
                    object.__setattr__(node, name, field)
                _NODES[key] = node
        return node

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("an expression cannot be changed; build another")

    def __reduce__(self) -> tuple[Any, ...]:
        return Expr, (self.op, self.args, self.value, self.dtype)

    def __repr__(self) -> str:
        return to_str(self)

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    def __add__(self, other: Expr | Number) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return apply("div", other, self)

    def __floordiv__(self, other: Expr | Number) -> Expr:
        return apply("floor_div", self, other)

    def __mod__(self, other: Expr | Number) -> Expr:
        return apply("floor_mod", self, other)

    def __pow__(self, other: Expr | Number) -> Expr:
        return apply("pow", self, other)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __abs__(self) -> Expr:
        return apply("abs", self)

    def __lt__(self, other: Expr | Number) -> Expr:
        return apply("less", self, other)

    def __le__(self, other: Expr | Number) -> Expr:
        return apply("less_equal", self, other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return apply("greater", self, other)

    def __ge__(self, other: Expr | Number) -> Expr:
        return apply("greater_equal", self, other)

    def __and__(self, other: Expr | Number) -> Expr:
        return apply("and", self, other)

    def __or__(self, other: Expr | Number) -> Expr:
        return apply("or", self, other)

    def __xor__(self, other: Expr | Number) -> Expr:
        return apply("xor", self, other)

    def __invert__(self) -> Expr:
        return apply("not", self)

    def __lshift__(self, other: Expr | Number) -> Expr:
        return apply("shift_left", self, other)

    def __rshift__(self, other: Expr | Number) -> Expr:
        return apply("shift_right", self, other)


_LEAVES = ("input", "const")

# Unique nodes, as long as somebody holds them.
_NODES: WeakValueDictionary[Any, Expr] = WeakValueDictionary()
_LOCK = threading.Lock()


def _renew_lock() -> None:
    """A thread that held it may not be there in a forked child."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def _bits(value: Number, dtype: DType) -> bytes:
    """Tells 0.0 from -0.0 and finds NaN again, which values as keys would not."""
    return np.asarray(value, dtype.numpy).tobytes()


def _check_type(dtype: DType) -> DType:
    if dtype.bits < 8 or dtype.numpy.kind == "c":
        raise InputError(
            f"expressions do not compute in {dtype.short}",
            fix="widen packed integers to i8; keep other types outside",
        )
    return dtype


def Input(index: int, dtype: DType) -> Expr:
    """The operand at this place of the list given to `evaluate`."""
    return Expr("input", (), index, _check_type(dtype))


def Const(value: Any, dtype: DType) -> Expr:
    """A constant: a float is rounded to its type, anything else must be a value of it."""
    if _check_type(dtype).is_float:
        return Expr("const", (), float(np.asarray(value, dtype.numpy)), dtype)
    scalar = np.asarray(value).astype(dtype.numpy)
    if scalar != value:
        raise InputError(f"{value} is not a value of {dtype.short}", fix="round or clamp it")
    return Expr("const", (), scalar.item(), dtype)


def apply(op: str, *args: Expr | Number, value: Any = None) -> Expr:
    """An operator by name; Python numbers take the type of the expressions beside them."""
    typed = [a for a in args if isinstance(a, Expr)]
    if not typed:
        raise InputError(f"'{op}' has no expression among its operands", fix="use Const")
    dtype = typed[-1].dtype  # the last: select's first operand is the condition
    return Expr(op, [a if isinstance(a, Expr) else Const(a, dtype) for a in args], value)


# -- the operators ---------------------------------------------------------------------------


def _same(*types: DType) -> DType | None:
    return types[0] if len(set(types)) == 1 else None


def _numbers(*types: DType) -> DType | None:
    return _same(*types) if DType.BOOL not in types else None


def _floats(*types: DType) -> DType | None:
    return _same(*types) if types[0].is_float else None


def _integers(*types: DType) -> DType | None:
    return _same(*types) if types[0].numpy.kind in "iu" else None


def _bit_patterns(*types: DType) -> DType | None:
    return _same(*types) if not types[0].is_float else None


def _test(*types: DType) -> DType | None:
    return DType.BOOL if _same(*types) else None


def _choice(condition: DType, yes: DType, no: DType) -> DType | None:
    return _same(yes, no) if condition is DType.BOOL else None


_TAKES = {
    _same: "operands of one type",
    _numbers: "numbers of one type",
    _floats: "floats of one type",
    _integers: "integers of one type",
    _bit_patterns: "integers or bools of one type",
    _test: "operands of one type",
    _choice: "a bool and two operands of one type",
}


class ScalarOp(NamedTuple):
    """result gives the type of the result for those of the operands, or None to refuse them."""

    arity: int
    numpy: Callable[..., Any]
    result: Callable[..., DType | None]


def _divide(a: Array, b: Array) -> Array:
    """Integers are divided as C does, towards zero."""
    if a.dtype.kind not in "iu":
        return np.true_divide(a, b)
    quotient = np.floor_divide(a, b)
    round_up = (quotient * b != a) & ((a < 0) != (b < 0))
    return np.add(quotient, round_up, dtype=quotient.dtype)


_math_erf = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    # NumPy has no erf. Element by element in double: slow, and right to the last bit.
    return np.asarray(_math_erf(np.asarray(x, np.float64))).astype(x.dtype)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """The product of two floats of 32 bits is exact in 64."""
    wide = np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)
    return np.asarray(wide).astype(np.asarray(a).dtype)


def _rsqrt(x: Array) -> Array:
    return np.reciprocal(np.sqrt(x))


def _cast(x: Array, dtype: DType) -> Array:
    return np.asarray(x).astype(dtype.numpy)


# Results of integer arithmetic wrap around. A shift by the width or more is not defined, nor is
# a cast of a float beyond the integer's range: clamp first.
SCALAR_OPS: dict[str, ScalarOp] = {
    "add": ScalarOp(2, np.add, _numbers),
    "sub": ScalarOp(2, np.subtract, _numbers),
    "mul": ScalarOp(2, np.multiply, _numbers),
    "div": ScalarOp(2, _divide, _numbers),
    "floor_div": ScalarOp(2, np.floor_divide, _numbers),
    "floor_mod": ScalarOp(2, np.mod, _numbers),
    "pow": ScalarOp(2, np.power, _numbers),
    "atan2": ScalarOp(2, np.arctan2, _floats),
    "fma": ScalarOp(3, _fma, _floats),  # a * b + c, rounded once where the target can
    "maximum": ScalarOp(2, np.maximum, _same),
    "minimum": ScalarOp(2, np.minimum, _same),
    "neg": ScalarOp(1, np.negative, _numbers),
    "abs": ScalarOp(1, np.abs, _numbers),
    "sign": ScalarOp(1, np.sign, _numbers),
    "exp": ScalarOp(1, np.exp, _floats),
    "log": ScalarOp(1, np.log, _floats),
    "tanh": ScalarOp(1, np.tanh, _floats),
    "sqrt": ScalarOp(1, np.sqrt, _floats),
    "rsqrt": ScalarOp(1, _rsqrt, _floats),
    "sin": ScalarOp(1, np.sin, _floats),
    "cos": ScalarOp(1, np.cos, _floats),
    "erf": ScalarOp(1, _erf, _floats),
    "floor": ScalarOp(1, np.floor, _floats),
    "ceil": ScalarOp(1, np.ceil, _floats),
    "trunc": ScalarOp(1, np.trunc, _floats),
    "round_even": ScalarOp(1, np.rint, _floats),
    "less": ScalarOp(2, np.less, _test),
    "less_equal": ScalarOp(2, np.less_equal, _test),
    "greater": ScalarOp(2, np.greater, _test),
    "greater_equal": ScalarOp(2, np.greater_equal, _test),
    "equal": ScalarOp(2, np.equal, _test),
    "not_equal": ScalarOp(2, np.not_equal, _test),
    "and": ScalarOp(2, np.bitwise_and, _bit_patterns),
    "or": ScalarOp(2, np.bitwise_or, _bit_patterns),
    "xor": ScalarOp(2, np.bitwise_xor, _bit_patterns),
    "not": ScalarOp(1, np.invert, _bit_patterns),
    "shift_left": ScalarOp(2, np.left_shift, _integers),
    "shift_right": ScalarOp(2, np.right_shift, _integers),  # arithmetic where signed
    "select": ScalarOp(3, np.where, _choice),
    "cast": ScalarOp(1, _cast, _same),
}


def _result_type(op: str, args: tuple[Expr, ...], value: Any) -> DType:
    rule = SCALAR_OPS.get(op)
    if rule is None:
        raise InputError(f"no operator '{op}'", fix=f"there are: {', '.join(SCALAR_OPS)}")
    if len(args) != rule.arity:
        raise InputError(f"'{op}' takes {rule.arity} operands, not {len(args)}")
    if op == "cast":
        return _check_type(value)
    types = [a.dtype for a in args]
    found = rule.result(*types)
    if found is None:
        got = ", ".join(t.short for t in types)
        raise InputError(f"'{op}' takes {_TAKES[rule.result]}, not {got}", fix="cast an operand")
    return found


# -- building --------------------------------------------------------------------------------


def _unary(op: str) -> Callable[[Expr], Expr]:
    return lambda x: apply(op, x)


def _binary(op: str) -> Callable[[Expr | Number, Expr | Number], Expr]:
    return lambda a, b: apply(op, a, b)


sign, exp, log, tanh = _unary("sign"), _unary("exp"), _unary("log"), _unary("tanh")
sqrt, rsqrt, sin, cos = _unary("sqrt"), _unary("rsqrt"), _unary("sin"), _unary("cos")
erf, floor, ceil, trunc = _unary("erf"), _unary("floor"), _unary("ceil"), _unary("trunc")
round_even = _unary("round_even")
maximum, minimum, atan2 = _binary("maximum"), _binary("minimum"), _binary("atan2")
equal, not_equal = _binary("equal"), _binary("not_equal")


def fma(a: Expr, b: Expr, c: Expr) -> Expr:
    return apply("fma", a, b, c)


def select(condition: Expr, yes: Expr | Number, no: Expr | Number) -> Expr:
    if not isinstance(yes, Expr) and not isinstance(no, Expr):
        raise InputError("select has two plain numbers to choose from", fix="use Const for one")
    return apply("select", condition, yes, no)


def cast(x: Expr, dtype: DType) -> Expr:
    return x if x.dtype is dtype else apply("cast", x, value=dtype)


def clamp(x: Expr, low: Expr | Number, high: Expr | Number) -> Expr:
    return minimum(maximum(x, low), high)


def logistic(x: Expr) -> Expr:
    return 1 / (1 + exp(-x))


def rounding_shift_right(x: Expr, bits: int) -> Expr:
    """x / 2**bits, to nearest, halves away from zero: gemmlowp's RoundingDivideByPOT."""
    if bits == 0:
        return x
    mask = (1 << bits) - 1
    threshold = (mask >> 1) + cast(x < 0, x.dtype)
    return (x >> bits) + cast((x & mask) > threshold, x.dtype)


# -- folding over expressions ----------------------------------------------------------------


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node once, operands before operators. Without recursion: chains may be long."""
    seen: set[Expr] = set()
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((arg, False) for arg in reversed(node.args) if arg not in seen)


def render(expr: Expr, table: Mapping[str, Callable[..., T]], leaf: Callable[[Expr], T]) -> T:
    """Fold bottom-up: leaf(node) at leaves, table[node.op](node, *rendered args) elsewhere.

    The functions get the node for its types and value. Each node is rendered once.
    """
    done: dict[Expr, T] = {}
    for node in walk(expr):
        if not node.args:
            done[node] = leaf(node)
        elif node.op in table:
            done[node] = table[node.op](node, *(done[arg] for arg in node.args))
        else:
            raise InputError(
                f"this target has no '{node.op}'",
                where=to_str(node),
                fix=f"it has: {', '.join(table)}",
            )
    return done[expr]


def inputs_of(expr: Expr) -> dict[int, DType]:
    """The inputs that the expression reads, with their types."""
    return {n.value: n.dtype for n in walk(expr) if n.op == "input"}


def _numpy_table() -> dict[str, Callable[..., Any]]:
    def call(node: Expr, *args: Any) -> Any:
        extra = () if node.value is None else (node.value,)
        return SCALAR_OPS[node.op].numpy(*args, *extra)

    return dict.fromkeys(SCALAR_OPS, call)


_NUMPY = _numpy_table()


def evaluate(expr: Expr, inputs: Sequence[Array] = ()) -> Array:
    """The value for these inputs, elementwise with broadcasting, in the expression's type."""

    def leaf(node: Expr) -> Array:
        if node.is_const:
            return np.asarray(node.value, node.dtype.numpy)
        if not 0 <= node.value < len(inputs):
            raise InputError(f"input {node.value} is missing: {len(inputs)} were given")
        array = np.asarray(inputs[node.value])
        if array.dtype != node.dtype.numpy:
            raise InputError(
                f"input {node.value} is {array.dtype}, not {node.dtype.numpy}",
                fix=f"convert it with .astype('{node.dtype.numpy}')",
            )
        return array

    with np.errstate(all="ignore"):  # infinities, NaN and wrapping are results here
        return np.asarray(render(expr, _NUMPY, leaf))


def substitute(expr: Expr, values: Mapping[int, Expr]) -> Expr:
    """Put expressions in the place of inputs: how a chain of operators becomes one."""

    def leaf(node: Expr) -> Expr:
        new = values.get(node.value, node) if node.op == "input" else node
        if new.dtype is not node.dtype:
            raise InputError(
                f"input {node.value} is {node.dtype.short}, not {new.dtype.short}",
                fix="cast the expression that is put there",
            )
        return new

    return render(expr, _REBUILD, leaf)


def _rebuild(node: Expr, *args: Expr) -> Expr:
    return node if args == node.args else Expr(node.op, args, node.value)


_REBUILD: dict[str, Callable[..., Expr]] = dict.fromkeys(SCALAR_OPS, _rebuild)

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floor_div": "//", "floor_mod": "%",
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==",
    "not_equal": "!=", "and": "&", "or": "|", "xor": "^", "shift_left": "<<", "shift_right": ">>",
}  # fmt: skip


def to_str(expr: Expr) -> str:
    """x0 is input 0; a part that is used more than once is named: `t0 = exp(x0); (t0 + t0)`."""
    uses = Counter(arg for node in walk(expr) for arg in node.args)
    named: list[str] = []

    def operator(node: Expr, *args: str) -> str:
        if node.op in _INFIX:
            text = f"({args[0]} {_INFIX[node.op]} {args[1]})"
        else:
            name = node.value.short if node.op == "cast" else node.op
            text = f"{name}({', '.join(args)})"
        if uses[node] < 2:
            return text
        named.append(text)
        return f"t{len(named) - 1}"

    result = render(expr, dict.fromkeys(SCALAR_OPS, operator), _leaf_text)
    return "; ".join([*(f"t{i} = {text}" for i, text in enumerate(named)), result])


def _leaf_text(node: Expr) -> str:
    return f"x{node.value}" if node.op == "input" else str(node.value)


# -- simplifying -----------------------------------------------------------------------------


class Simplification(NamedTuple):
    """pattern: (operator, operand patterns...), where a lower-case name stands for anything (the
    same each time), an upper-case name for a constant, and a number for that constant.
    result gets what the names stand for, and returns None to decline."""

    name: str
    pattern: tuple[Any, ...]
    result: Callable[..., Expr | None]


def _only(fits: Callable[..., bool], result: Callable[..., Expr]) -> Callable[..., Expr | None]:
    return lambda **found: result(**found) if fits(**found) else None


def _is_integer(x: Expr, **_: Expr) -> bool:
    return x.dtype.numpy.kind in "iu"


def _fold(op: str, *consts: Expr) -> Expr:
    """Computed by NumPy, so that a folded constant is what evaluation would have given."""
    folded = Expr(op, consts)
    return Const(evaluate(folded), folded.dtype)


def _ordered(low: Expr, high: Expr) -> bool:
    return bool(low.value <= high.value)


def _holds(wide: DType, narrow: DType) -> bool:
    """Every value of the narrow type is one of the wide type."""
    return np.can_cast(narrow.numpy, wide.numpy, "safe")


# What holds: values stay the same to the last bit, but for the sign of a zero (x + 0 is x).
# Floats are not reassociated, and x * 0 stays because of NaN and infinity.
SIMPLIFICATIONS: tuple[Simplification, ...] = (
    Simplification("x + 0", ("add", "x", 0), lambda x: x),
    Simplification("x - 0", ("sub", "x", 0), lambda x: x),
    Simplification("x * 1", ("mul", "x", 1), lambda x: x),
    Simplification("x / 1", ("div", "x", 1), lambda x: x),
    Simplification("x ** 1", ("pow", "x", 1), lambda x: x),
    Simplification("x * -1", ("mul", "x", -1), lambda x: -x),
    Simplification("x * 0", ("mul", "x", 0), _only(_is_integer, lambda x: Const(0, x.dtype))),
    Simplification("x - x", ("sub", "x", "x"), _only(_is_integer, lambda x: Const(0, x.dtype))),
    Simplification("x + A + B", ("add", ("add", "x", "A"), "B"),
                   _only(_is_integer, lambda x, A, B: x + _fold("add", A, B))),
    Simplification("x * A * B", ("mul", ("mul", "x", "A"), "B"),
                   _only(_is_integer, lambda x, A, B: x * _fold("mul", A, B))),
    Simplification("x << 0", ("shift_left", "x", 0), lambda x: x),
    Simplification("x >> 0", ("shift_right", "x", 0), lambda x: x),
    Simplification("--x", ("neg", ("neg", "x")), lambda x: x),
    Simplification("x + -y", ("add", "x", ("neg", "y")), lambda x, y: x - y),
    Simplification("x - -y", ("sub", "x", ("neg", "y")), lambda x, y: x + y),
    Simplification("~~x", ("not", ("not", "x")), lambda x: x),
    Simplification("abs(abs(x))", ("abs", ("abs", "x")), lambda x: abs(x)),
    Simplification("abs(-x)", ("abs", ("neg", "x")), lambda x: abs(x)),
    Simplification("max(x, x)", ("maximum", "x", "x"), lambda x: x),
    Simplification("min(x, x)", ("minimum", "x", "x"), lambda x: x),
    Simplification("max of max", ("maximum", ("maximum", "x", "A"), "B"),
                   lambda x, A, B: maximum(x, _fold("maximum", A, B))),
    Simplification("min of min", ("minimum", ("minimum", "x", "A"), "B"),
                   lambda x, A, B: minimum(x, _fold("minimum", A, B))),
    # Clamps take one form, min(max(x, A), B), in which the two rules above merge them.
    Simplification("clamp order", ("maximum", ("minimum", "x", "B"), "A"),
                   _only(lambda x, A, B: _ordered(A, B), lambda x, A, B: clamp(x, A, B))),
    Simplification("select(true)", ("select", True, "x", "y"), lambda x, y: x),
    Simplification("select(false)", ("select", False, "x", "y"), lambda x, y: y),
    Simplification("select of the same", ("select", "c", "x", "x"), lambda c, x: x),
    Simplification("select(~c)", ("select", ("not", "c"), "x", "y"),
                   lambda c, x, y: select(c, y, x)),
    Simplification("x & x", ("and", "x", "x"), lambda x: x),
    Simplification("x | x", ("or", "x", "x"), lambda x: x),
)  # fmt: skip

_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor"})


def simplify(expr: Expr) -> Expr:
    """An expression of the same value with less to compute."""
    while True:
        simpler = render(expr, _SIMPLIFY, lambda leaf: leaf)
        if simpler is expr:
            return expr
        expr = simpler


def _simplify_node(node: Expr, *args: Expr) -> Expr:
    if node.op in _COMMUTATIVE and args[0].is_const:
        args = args[::-1]  # patterns have constants on the right
    node = _rebuild(node, *args)
    if all(arg.is_const for arg in args):
        return Const(evaluate(node), node.dtype)
    if node.op == "cast":
        return _simplify_cast(node)
    for rule in _BY_OP[node.op]:
        found: dict[str, Expr] = {}
        if _matches(rule.pattern, node, found):
            new = rule.result(**found)
            if new is not None:
                return new
    return node


def _simplify_cast(node: Expr) -> Expr:
    """To the type it has, or to a wider one and back. (Its rules depend on types alone.)"""
    inner = node.args[0]
    if inner.dtype is node.dtype:
        return inner
    there_and_back = inner.op == "cast" and inner.args[0].dtype is node.dtype
    return inner.args[0] if there_and_back and _holds(inner.dtype, node.dtype) else node


def _matches(pattern: Any, node: Expr, found: dict[str, Expr]) -> bool:
    if isinstance(pattern, tuple):
        return node.op == pattern[0] and all(
            _matches(p, a, found) for p, a in zip(pattern[1:], node.args, strict=True)
        )
    if isinstance(pattern, str):
        fits = node.is_const or pattern.islower()
        return fits and found.setdefault(pattern, node) is node
    return node.is_const and bool(node.value == pattern)


_BY_OP = {op: [rule for rule in SIMPLIFICATIONS if rule.pattern[0] == op] for op in SCALAR_OPS}
_SIMPLIFY: dict[str, Callable[..., Expr]] = dict.fromkeys(SCALAR_OPS, _simplify_node)
