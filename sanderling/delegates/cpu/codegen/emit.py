"""A small language for writing kernels: LLVM IR with loops, vectors and pointers made easy.

An Emitter writes one function. Integers are i64 unless said otherwise; pointers are opaque, and
`at(pointer, index, type)` moves by elements of a type. Loops carry values explicitly:

    with e.loop(0, n) as i: ...
    with e.loop(0, k, carry=[acc]) as (i, (acc,)):
        e.carry([e.fma(a, b, acc)])
    (acc,) = e.carried
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import llvmlite.ir as ir
import numpy as np

from ..isa.targets import Target

VOID = ir.VoidType()
PTR = ir.PointerType()
I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
# llvmlite has no type information.
Value: TypeAlias = Any
Type: TypeAlias = Any
Int: TypeAlias = Any  # an int, or an i64 Value

_SUFFIX = {
    str(t): name
    for t, name in (
        (I1, "i1"),
        (I8, "i8"),
        (I16, "i16"),
        (I32, "i32"),
        (I64, "i64"),
        (F16, "f16"),
        (F32, "f32"),
        (F64, "f64"),
        (PTR, "p0"),
    )
}
_BITS = {str(F16): 16, str(F32): 32, str(F64): 64, str(PTR): 64}
_OF_NUMPY = {"b1": I8, "i1": I8, "u1": I8, "i2": I16, "u2": I16, "i4": I32, "u4": I32, "i8": I64,
             "u8": I64, "f2": F16, "f4": F32, "f8": F64}  # fmt: skip


def llvm_type(dtype: Any) -> Type:
    """The LLVM type that holds one element of a NumPy type."""
    return _OF_NUMPY[np.dtype(dtype).str[1:]]


class Vector(ir.VectorType):  # type: ignore[misc]
    """Kernels compare types all the time: there is one of each, which knows itself."""

    def __eq__(self, other: object) -> bool:
        return self is other or bool(super().__eq__(other))

    def __hash__(self) -> int:
        return hash((self.element, self.count))


@lru_cache(1024)
def vector(element: Type, lanes: int) -> Type:
    return Vector(element, lanes)


def is_vector(t: Type) -> bool:
    return isinstance(t, ir.VectorType)


def like(t: Type, element: Type) -> Type:
    """The type with as many lanes."""
    return vector(element, t.count) if is_vector(t) else element


def suffix(t: Type) -> str:
    """How intrinsics spell a type: v16f32."""
    if isinstance(t, ir.VectorType):
        return f"v{t.count}{_SUFFIX[str(t.element)]}"
    return _SUFFIX[str(t)]


def element_type(t: Type) -> Type:
    return t.element if isinstance(t, ir.VectorType) else t


class Splat(ir.Constant):  # type: ignore[misc]
    """One value in every lane, and written once: a list of lanes takes ten times as long."""

    def __init__(self, t: Type, scalar: Value) -> None:
        self.type, self.constant = t, scalar

    def _get_reference(self) -> str:
        return f"splat ({self.constant})"


class Undef(ir.Constant):  # type: ignore[misc]
    """No value in particular, written once for all lanes."""

    def __init__(self, t: Type) -> None:
        self.type, self.constant = t, ir.Undefined


_undef = lru_cache(1024)(Undef)


class Zeros(ir.Constant):  # type: ignore[misc]
    """A vector of zeros, written as a word."""

    def _get_reference(self) -> str:
        return "zeroinitializer"


@lru_cache(4096)
def _mask(order: tuple[int, ...]) -> Value:
    """The lanes that a shuffle takes."""
    return (ir.Constant if any(order) else Zeros)(vector(I32, len(order)), list(order))


def bytes_of(t: Type) -> int:
    """What a value takes in memory."""
    if isinstance(t, ir.VectorType):
        return -(-t.count * _bits(t.element) // 8)
    return -(-_bits(t) // 8)


def _bits(t: Type) -> int:
    return int(t.width) if isinstance(t, ir.IntType) else _BITS[str(t)]


def plain(function: ir.Function) -> ir.Function:
    """No exceptions, and no loop turned into a call of memset or memcpy: nobody defines them."""
    function.attributes.add("nounwind")
    set.add(function.attributes, '"no-builtins"')
    return function


class Budget:
    """How many instructions may still be written."""

    def __init__(self) -> None:
        self.left = 0

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OverBudget


class OverBudget(Exception):
    """Raised in the middle of a kernel; program.py tells whose."""


class Builder(ir.IRBuilder):  # type: ignore[misc]
    """llvmlite's, through which every instruction goes and every access to memory; extents.py has
    one that checks. Without a budget, the code is the compiler's own and short."""

    def __init__(self, block: ir.Block, budget: Budget | None = None) -> None:
        super().__init__(block)
        self.budget = budget

    def _insert(self, instr: Value) -> None:
        super()._insert(instr)
        if self.budget is not None:
            self.budget.spend()

    def touched(self, pointer: Value, size: int, writes: bool) -> Value:
        """Where these bytes are to be read or written."""
        return pointer


class Emitter:
    """Writes one function of a module."""

    def __init__(
        self,
        module: ir.Module,
        function: ir.Function,
        target: Target,
        builder: Callable[[ir.Block], Builder] = Builder,
    ) -> None:
        self.module, self.function, self.target = module, function, target
        self.b = builder(function.append_basic_block("entry"))
        self.args = function.args
        self._pending: list[list[Value] | None] = []
        self.carried: list[Value] = []

    # -- values ---------------------------------------------------------------------------------

    def i64(self, value: Int) -> Value:
        return I64(value) if isinstance(value, int) else value

    def const(self, t: Type, value: Any) -> Value:
        """A constant; for a vector, one value for all lanes or a list."""
        if not isinstance(t, ir.VectorType):
            return ir.Constant(t, _plain(t, value))
        if isinstance(value, (list, tuple, np.ndarray)):
            return ir.Constant(t, [_plain(t.element, v) for v in value])
        return Splat(t, ir.Constant(t.element, _plain(t.element, value)))

    def undef(self, t: Type) -> Value:
        return _undef(t)

    def splat(self, scalar: Value, lanes: int) -> Value:
        t = vector(scalar.type, lanes)
        first = self.b.insert_element(self.undef(t), scalar, I32(0))
        return self.b.shuffle_vector(first, self.undef(t), _mask((0,) * lanes))

    def shuffle(self, a: Value, b: Value | None, order: Sequence[int]) -> Value:
        other = self.undef(a.type) if b is None else b
        return self.b.shuffle_vector(a, other, _mask(tuple(order)))

    # -- arithmetic on i64 indices, folding constants ---------------------------------------------

    def add(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if (isinstance(a, int) and a == 0) or (isinstance(b, int) and b == 0):
            return b if isinstance(a, int) else a
        return self.b.add(self.i64(a), self.i64(b))

    def mul(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for x, y in ((a, b), (b, a)):
            if isinstance(x, int) and x in (0, 1):
                return y if x else 0
        return self.b.mul(self.i64(a), self.i64(b))

    def sub(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if isinstance(b, int) and b == 0 else self.b.sub(self.i64(a), self.i64(b))

    def div(self, a: Int, b: int) -> Int:
        """Unsigned quotient by a constant."""
        if isinstance(a, int):
            return a // b
        return a if b == 1 else self.b.udiv(a, I64(b))

    def rem(self, a: Int, b: int) -> Int:
        if isinstance(a, int):
            return a % b
        return 0 if b == 1 else self.b.urem(a, I64(b))

    def min(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        x, y = self.i64(a), self.i64(b)
        return self.b.select(self.b.icmp_signed("<", x, y), x, y)

    def max(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        x, y = self.i64(a), self.i64(b)
        return self.b.select(self.b.icmp_signed(">", x, y), x, y)

    def less(self, a: Int, b: Int) -> Value:
        return self.b.icmp_signed("<", self.i64(a), self.i64(b))

    # -- memory -----------------------------------------------------------------------------------

    def at(self, pointer: Value, index: Int, t: Type) -> Value:
        """The address of element `index` of an array of t."""
        if isinstance(index, int) and index == 0:
            return pointer
        return self.b.gep(pointer, [self.i64(index)], inbounds=True, source_etype=t)

    def load(self, pointer: Value, t: Type, align: int = 1) -> Value:
        return self.b.load(pointer, align=align, typ=t)

    def store(self, value: Value, pointer: Value, align: int = 1) -> None:
        self.b.store(value, pointer, align=align)

    def load_part(self, pointer: Value, t: Type, count: int) -> Value:
        """The first `count` lanes; the others are zero and their memory is not touched."""
        if count >= t.count:
            return self.load(pointer, t)
        return self.load_lanes(pointer, self.const(t, 0), range(count))

    def load_lanes(self, pointer: Value, beside: Value, lanes: range) -> Value:
        """These lanes of a vector, the others as they are in `beside`."""
        t, size = beside.type, bytes_of(beside.type.element)
        first = self.at(pointer, lanes.start * size, I8)
        there = self.b.touched(first, len(lanes) * size, writes=False)
        mask = self.const(vector(I1, t.count), [i in lanes for i in range(t.count)])
        return self.call(
            f"llvm.masked.load.{suffix(t)}.p0",
            t,
            self.at(there, -lanes.start * size, I8),
            I32(1),
            mask,
            beside,
        )

    def store_part(self, value: Value, pointer: Value, count: int) -> None:
        """Store the first `count` lanes and touch nothing else."""
        t = value.type
        if count >= t.count:
            self.store(value, pointer)
            return
        # Narrow targets have few masked stores; and LLVM 22 loses some AVX512 ones of a single
        # truncated byte (tests/cpu/test_depthwise.py, one channel).
        if not self.target.masks(1) or count == 1:
            self._store_pieces(value, pointer, count)
            return
        mask = self.const(vector(I1, t.count), [i < count for i in range(t.count)])
        there = self.b.touched(pointer, count * bytes_of(t.element), writes=True)
        self.call(f"llvm.masked.store.{suffix(t)}.p0", VOID, value, there, I32(1), mask)

    def _store_pieces(self, value: Value, pointer: Value, count: int) -> None:
        done = 0
        while done < count:
            width = 1 << ((count - done).bit_length() - 1)
            piece = (  # a vector of one lane upsets LLVM's passes
                self.b.extract_element(value, I32(done))
                if width == 1
                else self.shuffle(value, None, range(done, done + width))
            )
            self.store(piece, self.at(pointer, done, value.type.element))
            done += width

    def copy(self, target: Value, source: Value, size: int) -> None:
        """Copy a constant number of bytes, which may be anywhere."""
        done = 0
        for width in (64, 32, 16, 8, 4, 2, 1):
            if width > self.target.width and width > 8:
                continue
            t = vector(I8, width) if width > 8 else ir.IntType(8 * width)
            whole = (size - done) // width
            if whole > 8:
                with self.loop(0, whole) as i:
                    place = self.add(done, self.mul(i, width))
                    self.store(self.load(self.at(source, place, I8), t), self.at(target, place, I8))
            else:
                for i in range(whole):
                    place = done + i * width
                    self.store(self.load(self.at(source, place, I8), t), self.at(target, place, I8))
            done += whole * width

    def fill(self, target: Value, size: int, byte: int) -> None:
        """Set a constant number of bytes to one value."""
        done = 0
        for width in (64, 32, 16, 8, 4, 2, 1):
            if width > self.target.width:
                continue
            t = vector(I8, width)
            whole = (size - done) // width
            if whole:
                with self.loop(0, whole) as i:
                    place = self.add(done, self.mul(i, width))
                    self.store(self.const(t, _signed(byte, 8)), self.at(target, place, I8))
            done += whole * width

    # -- control ----------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Int, stop: Int, step: int = 1, carry: Sequence[Value] | None = None
    ) -> Iterator[Any]:
        """Count from start to stop. With carry, yields (index, values) and expects e.carry([...])
        before the end; the results are in e.carried afterwards."""
        first, last = self.i64(start), self.i64(stop)
        entry = self.b.block
        head, body = self._block("loop"), self._block("body")
        after = self._block("after")
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(first, entry)
        phis = [self.b.phi(v.type) for v in carry or ()]
        for phi, value in zip(phis, carry or (), strict=True):
            phi.add_incoming(value, entry)
        self.b.cbranch(self.b.icmp_signed("<", index, last), body, after)
        self.b.position_at_end(body)
        self._pending.append(None)
        yield index if carry is None else (index, phis)
        new = self._pending.pop()
        index.add_incoming(self.b.add(index, I64(step)), self.b.block)
        for phi, value in zip(phis, new or (), strict=True):
            phi.add_incoming(value, self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)
        self.carried = phis

    def carry(self, values: Sequence[Value]) -> None:
        self._pending[-1] = list(values)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.b.if_then(condition):
            yield

    def _block(self, name: str) -> Any:
        return self.function.append_basic_block(name)

    # -- arithmetic on values ---------------------------------------------------------------------

    def call(self, name: str, result: Type, *args: Value) -> Value:
        """Call an intrinsic by its full name."""
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(result, [a.type for a in args]), name)
        return self.b.call(found, args)

    def any(self, lanes: Value) -> Value:
        """Whether one of these bits is set."""
        if not is_vector(lanes.type):
            return lanes
        return self.call(f"llvm.vector.reduce.or.{suffix(lanes.type)}", I1, lanes)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c; in two roundings where the target has no instruction: LLVM would call libm."""
        if not self.target.fma:
            return self.b.fadd(self.b.fmul(a, b), c)
        return self.call(f"llvm.fma.{suffix(c.type)}", c.type, a, b, c)

    def fmin(self, a: Value, b: Value) -> Value:
        """a < b ? a : b, which is one instruction on x86; b where a is NaN."""
        return self.b.select(self.b.fcmp_ordered("<", a, b), a, b)

    def fmax(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def umin(self, a: Value, b: Value) -> Value:
        return self.call(f"llvm.umin.{suffix(a.type)}", a.type, a, b)

    def umax(self, a: Value, b: Value) -> Value:
        return self.call(f"llvm.umax.{suffix(a.type)}", a.type, a, b)

    def smin(self, a: Value, b: Value) -> Value:
        return self.call(f"llvm.smin.{suffix(a.type)}", a.type, a, b)

    def smax(self, a: Value, b: Value) -> Value:
        return self.call(f"llvm.smax.{suffix(a.type)}", a.type, a, b)

    def join(self, values: Sequence[Value]) -> Value:
        """Vectors of one type, end to end."""
        found = list(values)
        while len(found) > 1:
            if len(found) % 2:
                found.append(self.undef(found[-1].type))
            n = found[0].type.count
            found = [
                self.shuffle(found[i], found[i + 1], range(2 * n)) for i in range(0, len(found), 2)
            ]
        n = sum(v.type.count for v in values)
        return found[0] if found[0].type.count == n else self.shuffle(found[0], None, range(n))

    def round_even(self, a: Value) -> Value:
        return self.call(f"llvm.roundeven.{suffix(a.type)}", a.type, a)


def _plain(t: Type, value: Any) -> Any:
    """What llvmlite wants for a constant: floats that print exactly, signed integers."""
    if isinstance(t, ir.IntType):
        return bool(value) if t.width == 1 else _signed(int(value), t.width)
    return float(np.float32(value)) if t == F32 else float(value)


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


Build = Callable[[Emitter], None]
Arguments: TypeAlias = "dict[str, Value]"


@dataclass(frozen=True)
class ArgumentList:
    """The arguments of a function, by name and in order: who calls it and who writes it build from
    the same. An argument that only some functions of a family have is in the types of those."""

    types: dict[str, Type]

    def read(self, e: Emitter) -> Arguments:
        """The arguments of the function that is being written."""
        return dict(zip(self.types, e.args, strict=True))

    def ordered(self, given: Arguments) -> list[Value]:
        if given.keys() != self.types.keys():
            differing = ", ".join(sorted(given.keys() ^ self.types.keys()))
            raise TypeError(f"arguments that are missing, or that it does not have: {differing}")
        return [given[name] for name in self.types]


@dataclass(frozen=True)
class Callee:
    """A function of a module, called with the arguments' names."""

    value: Value
    arguments: ArgumentList

    def call(self, e: Emitter, **given: Value) -> None:
        e.b.call(self.value, self.arguments.ordered(given))
