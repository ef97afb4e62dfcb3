"""The kernel language: what a kernel computes, in a form that is rendered to OpenCL C and to WGSL.

    k = KernelText("double", OpenClC())
    x, y = k.argument("x", Storage("f32")), k.argument("y", Storage("f32"), written=True)
    (i,) = k.grid(100)
    k.store(y, i, k.load(x, i) * 2.0)
    print(k.source())

A kernel is a list of lines. Values are texts with a kind and a number of lanes; operators and
functions make new values, and whole numbers that are known when the kernel is written are
computed at once, so that strides of static shapes leave no trace. Loops over a tile are loops of
Python. Memory is seen in vectors of four through a Storage, which says how elements are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

# Kinds of values: float (of the kernel's precision), float of 32 bits whatever that is (places in a
# picture are not exact in 16), whole number of 32 bits, truth.
FLOAT, REAL, INT, BOOL = "f", "r", "i", "b"
GUARD = "if"


@dataclass(frozen=True)
class Storage:
    """How the elements of an argument are kept.

    element: f32, f16, i32; or, where bytes are the user's own, u8, i8, u16, i16, bool, i64, u32.
    form: a buffer, an image1d_buffer of vectors ("image"), or a 2-D texture of them whose rows have
    `width` vectors ("texture").
    """

    element: str
    form: str = "buffer"
    width: int = 0

    @property
    def kind(self) -> str:
        return FLOAT if self.element in ("f32", "f16") else INT

    @property
    def nbytes(self) -> int:
        """The bytes of an element."""
        return 1 if self.element == "bool" else int(self.element[1:]) // 8


@dataclass(frozen=True)
class Argument:
    """A parameter of a kernel: memory that it reads or writes. single: it is written element by
    element, not in vectors."""

    name: str
    storage: Storage
    written: bool
    single: bool = False


class Dialect(Protocol):
    """How a kernel is spelt in one language of kernels. Texts in, texts out."""

    name: str

    def type(self, kind: str, lanes: int) -> str: ...
    def literal(self, value: Any, kind: str) -> str: ...
    def splat(self, text: str, kind: str, lanes: int) -> str: ...
    def join(self, texts: Sequence[str], kind: str) -> str: ...
    def lane(self, text: str, lane: int, lanes: int) -> str: ...
    def part(self, text: str, first: int, count: int, kind: str, lanes: int) -> str: ...
    def cast(self, text: str, old: str, new: str, lanes: int) -> str: ...
    def select(self, condition: str, yes: str, no: str, kind: str, lanes: int) -> str: ...
    def call(self, name: str, texts: Sequence[str], kind: str, lanes: int) -> str: ...
    def binary(self, name: str, a: str, b: str, kind: str, lanes: int) -> str: ...
    def let(self, name: str, type_: str, text: str) -> str: ...
    def var(self, name: str, type_: str, text: str) -> str: ...
    def loop(self, name: str, first: str, last: str, step: str) -> str: ...
    def load(self, argument: Argument, index: str, lanes: int) -> str: ...
    def load_one(self, argument: Argument, index: str) -> str: ...
    def store(self, argument: Argument, index: str, text: str, lanes: int) -> str: ...
    def store_one(self, argument: Argument, index: str, text: str) -> str: ...
    def global_id(self, axis: int) -> str: ...
    def leave(self, condition: str) -> str: ...
    def kernel(
        self, name: str, arguments: Sequence[Argument], lines: Sequence[str], group: Sequence[int]
    ) -> str: ...
    def preamble(self) -> str: ...


class Value:
    """A value of a kernel: its text, kind and lanes; `known` if it is a number already."""

    __slots__ = ("k", "kind", "known", "lanes", "text")

    def __init__(
        self, k: KernelText, text: str, kind: str, lanes: int = 1, known: int | None = None
    ) -> None:
        self.k, self.text, self.kind, self.lanes, self.known = k, text, kind, lanes, known

    def __repr__(self) -> str:
        return f"<{self.kind}{self.lanes} {self.text}>"

    def __add__(self, other: Any) -> Value:
        return self.k.binary("add", self, other)

    def __radd__(self, other: Any) -> Value:
        return self.k.binary("add", other, self)

    def __sub__(self, other: Any) -> Value:
        return self.k.binary("sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return self.k.binary("sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return self.k.binary("mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return self.k.binary("mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return self.k.binary("div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return self.k.binary("div", other, self)

    def __floordiv__(self, other: Any) -> Value:
        """Whole numbers that are not negative."""
        return self.k.binary("quotient", self, other)

    def __mod__(self, other: Any) -> Value:
        """Whole numbers that are not negative."""
        return self.k.binary("remainder", self, other)

    def __lt__(self, other: Any) -> Value:
        return self.k.binary("less", self, other)

    def __le__(self, other: Any) -> Value:
        return self.k.binary("less_equal", self, other)

    def __gt__(self, other: Any) -> Value:
        return self.k.binary("greater", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.k.binary("greater_equal", self, other)

    def __and__(self, other: Any) -> Value:
        return self.k.binary("and", self, other)

    def __or__(self, other: Any) -> Value:
        return self.k.binary("or", self, other)

    def __neg__(self) -> Value:
        return self.k.call("neg", self)

    def __invert__(self) -> Value:
        return self.k.call("not", self)

    def equals(self, other: Any) -> Value:
        return self.k.binary("equal", self, other)

    def lane(self, lane: int) -> Value:
        """One element of a vector."""
        if self.lanes == 1:
            return self
        return Value(self.k, self.k.dialect.lane(self.text, lane, self.lanes), self.kind)

    def part(self, first: int, count: int) -> Value:
        """Some neighbouring elements of a vector."""
        if count == self.lanes:
            return self
        text = self.k.dialect.part(self.text, first, count, self.kind, self.lanes)
        return Value(self.k, text, self.kind, count)

    def splat(self, lanes: int) -> Value:
        """The same number in every lane."""
        if self.lanes == lanes:
            return self
        return Value(self.k, self.k.dialect.splat(self.text, self.kind, lanes), self.kind, lanes)


Index = Value | int
_WIDER = (REAL, FLOAT, INT, BOOL)
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
# What whole numbers that are known come to.
_FOLD: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "quotient": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "maximum": max,
    "minimum": min,
    "less": lambda a, b: a < b,
    "less_equal": lambda a, b: a <= b,
    "greater": lambda a, b: a > b,
    "greater_equal": lambda a, b: a >= b,
    "equal": lambda a, b: a == b,
    "not_equal": lambda a, b: a != b,
}


class KernelText:
    """A kernel that is being written."""

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name, self.dialect = name, dialect
        self.arguments: list[Argument] = []
        self.lines: list[str] = []
        self.size: tuple[int, ...] = (1, 1, 1)
        self._names = 0
        self._depth = 1

    # -- values -----------------------------------------------------------------------------------

    def value(self, given: Any, kind: str | None = None) -> Value:
        """A number of Python's as a value."""
        if isinstance(given, Value):
            return given
        if isinstance(given, bool):
            return Value(self, self.dialect.literal(given, BOOL), BOOL)
        kind = kind or (FLOAT if isinstance(given, float) else INT)
        known = int(given) if kind == INT else None
        return Value(self, self.dialect.literal(given, kind), kind, known=known)

    def binary(self, name: str, a: Any, b: Any) -> Value:
        other = a if isinstance(a, Value) else b
        kind = other.kind if other.kind != BOOL else None
        left, right = self._alike(self.value(a, kind), self.value(b, kind))
        folded = self._folded(name, left, right)
        if folded is not None:
            return folded
        lanes = max(left.lanes, right.lanes)
        left, right = left.splat(lanes), right.splat(lanes)
        text = self.dialect.binary(name, left.text, right.text, left.kind, lanes)
        return Value(self, text, BOOL if name in _COMPARISONS else left.kind, lanes)

    def _alike(self, *values: Value) -> list[Value]:
        """Values of one kind: that of the widest of them. (C would convert them by itself.)"""
        kinds = [v.kind for v in values]
        widest = next(kind for kind in _WIDER if kind in kinds)
        return [self.cast(v, widest) for v in values]

    def _folded(self, name: str, a: Value, b: Value) -> Value | None:
        """Arithmetic of indices that comes to a number, or to one of the operands."""
        if a.kind != INT or b.kind != INT:
            return None
        if a.known is not None and b.known is not None and name in _FOLD:
            return self.value(_FOLD[name](a.known, b.known))
        if name in ("add", "sub") and b.known == 0:
            return a
        if name == "add" and a.known == 0:
            return b
        if name in ("mul", "quotient") and b.known == 1:
            return a
        if name == "mul" and a.known == 1:
            return b
        if (name == "mul" and 0 in (a.known, b.known)) or (name == "remainder" and b.known == 1):
            return self.value(0)
        return None

    def call(self, name: str, *given: Any) -> Value:
        """A function of values of one kind: exp, floor, maximum, fma and others."""
        kinds = [v.kind for v in given if isinstance(v, Value)]
        values = self._alike(*(self.value(v, kinds[0]) for v in given))
        kind = values[0].kind
        if len(values) == 2:
            folded = self._folded(name, *values)
            if folded is not None:
                return folded
        lanes = max(v.lanes for v in values)
        texts = [v.splat(lanes).text for v in values]
        return Value(self, self.dialect.call(name, texts, kind, lanes), kind, lanes)

    def maximum(self, a: Any, b: Any) -> Value:
        return self.call("maximum", a, b)

    def minimum(self, a: Any, b: Any) -> Value:
        return self.call("minimum", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.call("fma", a, b, c)

    def select(self, condition: Value, yes: Any, no: Any) -> Value:
        typed = yes if isinstance(yes, Value) else no
        yes, no = self._alike(*(self.value(v, typed.kind) for v in (yes, no)))
        lanes = max(condition.lanes, yes.lanes, no.lanes)
        if condition.text in (self.dialect.literal(True, BOOL), self.dialect.literal(False, BOOL)):
            return yes if condition.text == self.dialect.literal(True, BOOL) else no
        texts = (condition.text, yes.splat(lanes).text, no.splat(lanes).text)
        wide = condition.lanes
        text = self.dialect.select(*texts, yes.kind, lanes if wide > 1 else 1)
        return Value(self, text, yes.kind, lanes)

    def cast(self, x: Value, kind: str) -> Value:
        if x.kind == kind:
            return x
        return Value(self, self.dialect.cast(x.text, x.kind, kind, x.lanes), kind, x.lanes)

    def join(self, values: Sequence[Value]) -> Value:
        """A vector of four numbers."""
        text = self.dialect.join([v.text for v in values], values[0].kind)
        return Value(self, text, values[0].kind, len(values))

    def all_of(self, conditions: Sequence[Value]) -> Value | None:
        """All of them hold; None if there is nothing to ask."""
        asked = [c for c in conditions if c.known is None or not c.known]
        found: Value | None = None
        for condition in asked:
            found = condition if found is None else found & condition
        return found

    # -- statements -------------------------------------------------------------------------------

    def _name(self, hint: str) -> str:
        self._names += 1
        return f"{hint}{self._names}"

    def line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)

    def let(self, x: Value, hint: str = "t") -> Value:
        """The value under a name: computed here, once."""
        if x.known is not None or x.text.isidentifier():
            return x
        name = self._name(hint)
        self.line(self.dialect.let(name, self.dialect.type(x.kind, x.lanes), x.text))
        return Value(self, name, x.kind, x.lanes)

    def var(self, x: Value, hint: str = "v") -> Value:
        """A variable that begins with this value."""
        name = self._name(hint)
        self.line(self.dialect.var(name, self.dialect.type(x.kind, x.lanes), x.text))
        return Value(self, name, x.kind, x.lanes)

    def zero(self, lanes: int = 4, kind: str = FLOAT) -> Value:
        return self.value(0.0 if kind in (FLOAT, REAL) else 0, kind).splat(lanes)

    def assign(self, variable: Value, x: Any) -> None:
        value = self.cast(self.value(x, variable.kind), variable.kind)
        text = value.splat(variable.lanes).text
        self.line(f"{variable.text} = {text};")

    @contextmanager
    def loop(self, first: Index, last: Index, step: int = 1, hint: str = "i") -> Iterator[Value]:
        """From first up to last, which is left out. A loop of one turn is none."""
        a, b = self.value(first), self.value(last)
        if a.known is not None and b.known is not None and a.known + step >= b.known > a.known:
            yield a
            return
        name = self._name(hint)
        with self._block(self.dialect.loop(name, a.text, b.text, str(step))):
            yield Value(self, name, INT)

    @contextmanager
    def when(self, condition: Value | None) -> Iterator[None]:
        if condition is None:
            yield
            return
        with self._block(f"{GUARD} ({condition.text}) {{"):
            yield

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    # -- memory -----------------------------------------------------------------------------------

    def argument(self, name: str, storage: Storage, written: bool = False) -> Argument:
        made = Argument(f"{name}_{len(self.arguments)}", storage, written)
        self.arguments.append(made)
        return made

    def load(self, source: Argument, index: Index, lanes: int = 4) -> Value:
        """The vector at this place, counted in vectors of four."""
        text = self.dialect.load(source, self.value(index).text, lanes)
        return Value(self, text, source.storage.kind, lanes)

    def load_one(self, source: Argument, index: Index) -> Value:
        """The element at this place."""
        return Value(
            self, self.dialect.load_one(source, self.value(index).text), source.storage.kind
        )

    def store(self, target: Argument, index: Index, x: Value) -> None:
        """A vector, which becomes what the argument keeps."""
        x = self.cast(x, target.storage.kind)
        self.line(self.dialect.store(target, self.value(index).text, x.text, x.lanes))

    def store_one(self, target: Argument, index: Index, x: Value) -> None:
        """One element. Vectors are not stored through the same argument."""
        self.arguments = [
            replace(a, single=True) if a.name == target.name else a for a in self.arguments
        ]
        x = self.cast(x, target.storage.kind)
        self.line(self.dialect.store_one(target, self.value(index).text, x.text))

    # -- the whole --------------------------------------------------------------------------------

    def grid(self, *size: int) -> list[Value]:
        """One run of the kernel for every point of this space, at most three-dimensional; the first
        axis varies fastest. Called once, first."""
        self.size = (*size, *(1 for _ in range(3 - len(size))))
        places = []
        for axis, extent in enumerate(size):
            if extent == 1:
                places.append(self.value(0))
                continue
            place = self.let(Value(self, self.dialect.global_id(axis), INT), "xyz"[axis])
            self.line(self.dialect.leave(f"{place.text} >= {extent}"))
            places.append(place)
        return places

    def source(self, group: Sequence[int] = (1, 1, 1)) -> str:
        return self.dialect.kernel(self.name, self.arguments, self.lines, group)
