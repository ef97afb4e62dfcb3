"""Along an axis: the place of an extreme, and running sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .....ir import DType, Op, Shape
from .....ir import expr as X
from .....ir.expr import Input, cast
from .....ops.base import attr
from ...codegen.elements import load, memory_type, store
from ...codegen.emit import I32, Int, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.render import render_vector
from ...codegen.vectors import horizontal
from ...isa.targets import Target
from ..elementwise.operands import need, tensor_at
from ..row import Kernel
from .reductions import reason

FLOAT, INT32, INT64 = DType.FLOAT32, DType.INT32, DType.INT64

# -- the place of an extreme ----------------------------------------------------------------------


def arg_axis(op: Op) -> int:
    x, axis = tensor_at(op, 0), tensor_at(op, 1)
    need(axis.data is not None, "the axis is computed at run time")
    need(0 not in x.shape, "an empty tensor has no kernel")
    need(op.outputs[0].dtype in (INT32, INT64), "indices are neither i32 nor i64")
    return int(axis.values.reshape(-1)[0]) % len(x.shape)


def refuses_arg(op: Op, target: Target) -> str | None:
    return reason(op, lambda: arg_axis(op))


def emit_arg(k: StepEmitter, op: Op) -> None:
    x, axis = tensor_at(op, 0), arg_axis(op)
    outer, size, inner = _around(x.shape, axis)
    finder = Finder(k, op, x.dtype, ">" if op.name == "ARG_MAX" else "<", size, inner)
    finder.rows(outer) if inner == 1 else finder.columns(outer)


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Elements before, along and behind an axis."""
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@dataclass
class Finder:
    """Values are compared as 32-bit numbers of their kind. What is found first stays, and so does a
    NaN in the first place: nothing compares as better."""

    k: StepEmitter
    op: Op
    dtype: DType
    sign: str
    size: int
    inner: int

    def __post_init__(self) -> None:
        self.source, self.target = self.k.ptr(tensor_at(self.op, 0)), self.k.ptr(self.op.outputs[0])
        self.wide = self.dtype if self.dtype in (FLOAT, INT64) else INT32
        self.lanes = self.k.target.width // (self.wide.bits // 8)
        self.better = Input(1, self.wide) > Input(0, self.wide)
        if self.sign == "<":
            self.better = Input(1, self.wide) < Input(0, self.wide)

    def load(self, place: Int, lanes: int, part: int | None = None) -> Value:
        pointer = self.k.at(self.source, place, memory_type(self.dtype))
        raw = load(self.k, pointer, self.dtype, lanes, part)
        return render_vector(self.k, cast(Input(0, self.dtype), self.wide), [raw])

    def step(self, held: Sequence[Value], value: Value, index: Value) -> list[Value]:
        """The better of the best so far and the next, with its place."""
        better = render_vector(self.k, self.better, [held[0], value])
        choose = self.k.b.select
        return [choose(better, value, held[0]), choose(better, index, held[1])]

    def put(self, index: Value, place: Int, part: int | None = None) -> None:
        out = self.op.outputs[0].dtype
        value = render_vector(self.k, cast(Input(0, INT32), out), [index])
        store(self.k, value, self.k.at(self.target, place, memory_type(out)), out, part)

    def rows(self, outer: int) -> None:
        k = self.k
        begin, end = k.share(outer)
        with k.loop(begin, end) as row:
            place = k.mul(row, self.size)
            if self.size < self.lanes:
                self.put(self._few(place), row)
            else:
                self.put(self._many(place), row)

    def _few(self, place: Int) -> Value:
        """A short row, one by one."""
        k = self.k
        with k.loop(1, self.size, carry=[self.load(place, 0), I32(0)]) as (i, held):
            k.carry(self.step(held, self.load(k.add(place, i), 0), k.b.trunc(i, I32)))
        return k.carried[1]

    def _many(self, place: Int) -> Value:
        """Vectors, the last of which reaches back. Then, of the best value, the first place."""
        k, lanes = self.k, self.lanes
        t = vector(I32, lanes)
        lane = k.const(t, list(range(lanes)))
        first = k.splat(self.load(place, 0), lanes)
        with k.loop(0, self.size, lanes, carry=[first, k.const(t, 0)]) as (i, held):
            here = k.min(i, self.size - lanes)
            index = k.b.add(k.splat(k.b.trunc(k.i64(here), I32), lanes), lane)
            k.carry(self.step(held, self.load(k.add(place, here), lanes), index))
        best, places = k.carried

        def choose(a: Value, b: Value) -> Value:
            return render_vector(
                k, X.select(self.better, Input(1, self.wide), Input(0, self.wide)), [a, b]
            )

        top = k.splat(horizontal(k, best, choose), lanes)
        # A NaN equals nothing: then every lane still has the first place, 0.
        equal = render_vector(k, X.equal(Input(0, self.wide), Input(1, self.wide)), [best, top])
        candidates = k.b.select(equal, places, k.const(t, self.size - 1))
        lowest = horizontal(k, candidates, lambda a, b: self._less(a, b))
        nan = render_vector(k, X.equal(Input(0, self.wide), Input(0, self.wide)), [top])
        return k.b.select(k.b.extract_element(nan, I32(0)), lowest, I32(0))

    def _less(self, a: Value, b: Value) -> Value:
        return self.k.b.select(self.k.b.icmp_signed("<", a, b), a, b)

    def columns(self, outer: int) -> None:
        """Results lie side by side."""
        k, lanes = self.k, min(self.lanes, self.inner)
        part = None if self.inner >= self.lanes else self.inner
        blocks = math.ceil(self.inner / lanes)
        begin, end = k.share(outer * blocks)
        with k.loop(begin, end) as unit:
            row = k.div(unit, blocks)
            column = k.min(k.mul(k.rem(unit, blocks), lanes), self.inner - lanes)
            place = k.add(k.mul(row, self.size * self.inner), column)
            start = [self.load(place, self.lanes, part), k.const(vector(I32, self.lanes), 0)]
            with k.loop(1, self.size, carry=start) as (i, held):
                value = self.load(k.add(place, k.mul(i, self.inner)), self.lanes, part)
                index = k.splat(k.b.trunc(i, I32), self.lanes)
                k.carry(self.step(held, value, index))
            self.put(k.carried[1], k.add(k.mul(row, self.inner), column), part)


# -- running sums ---------------------------------------------------------------------------------


def refuses_cumsum(op: Op, target: Target) -> str | None:
    def attempt() -> None:
        need(len(tensor_at(op, 0).shape) > 0, "a scalar has no axis")
        need(tensor_at(op, 1).data is not None, "the axis is computed at run time")
        need(tensor_at(op, 0).dtype in (FLOAT, INT32, INT64), "the type has no kernel")

    return reason(op, attempt)


def emit_cumsum(k: StepEmitter, op: Op) -> None:
    """One running sum for each element behind the axis, a vector of them at once."""
    x, axis = tensor_at(op, 0), tensor_at(op, 1)
    outer, size, inner = _around(x.shape, int(axis.values.reshape(-1)[0]) % len(x.shape))
    if not outer * size * inner:
        return
    t = memory_type(x.dtype)
    full = k.target.width // (x.dtype.bits // 8)
    lanes = full if inner >= full else 0
    width = lanes or 1
    blocks = math.ceil(inner / width)
    plus = Input(0, x.dtype) + Input(1, x.dtype)
    source, target = k.ptr(x), k.ptr(op.outputs[0])
    begin, end = k.share(outer * blocks)
    with k.loop(begin, end) as unit:
        column = k.min(k.mul(k.rem(unit, blocks), width), inner - width)
        first = k.add(k.mul(k.div(unit, blocks), size * inner), column)
        zero = k.const(vector(t, lanes) if lanes else t, 0)
        with k.loop(0, size, carry=[zero]) as (i, held):
            step = k.sub(size - 1, i) if attr(op, "reverse") else i
            place = k.add(first, k.mul(step, inner))
            value = load(k, k.at(source, place, t), x.dtype, lanes)
            total = render_vector(k, plus, [held[0], value])
            kept = held[0] if attr(op, "exclusive") else total
            store(k, kept, k.at(target, place, t), x.dtype)
            k.carry([total])


KERNELS = {
    "ARG_MAX": Kernel(emit_arg, refuses_arg),
    "ARG_MIN": Kernel(emit_arg, refuses_arg),
    "CUMSUM": Kernel(emit_cumsum, refuses_cumsum),
}
