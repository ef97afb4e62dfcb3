"""Functions of rows of floats, the elements along the last axis: softmax and the L2 norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import DType, Op
from .....ops.base import attr
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, I32, I64, PTR, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.vectors import Body, first_lanes, horizontal, sweep
from ...isa.targets import Target
from ..elementwise.operands import tensor_at
from ..row import Kernel

FLOAT = DType.FLOAT32


@dataclass(frozen=True)
class RowFunction:
    """A function over rows of the last axis: (x, out, params, rows, whole, length).

    params: floats, see the functions below. whole: how much of the length are full vectors; tail:
    the rest. few: the number of vectors of a row, where it is small enough for all of them to stay
    in registers; else 0.
    """

    name: str
    lanes: int
    tail: int
    few: int

    def real(self, e: Emitter, row: Value, place: Int, count: int) -> Value:
        return e.load_part(e.at(row, place, F32), vector(F32, self.lanes), count)

    def sweep(
        self,
        e: Emitter,
        whole: Int,
        carry: Sequence[Value],
        body: Body,
        both: Callable[[Value, Value], Value] | None = None,
    ) -> list[Value]:
        return sweep(e, whole, self.tail, self.lanes, carry, body, both)

    def sum(self, e: Emitter, whole: Int, body: Body) -> Value:
        """What the body adds to vectors of zeros, as one number."""

        def plus(a: Value, b: Value) -> Value:
            return e.b.fadd(a, b)

        return horizontal(e, self.sweep(e, whole, [self.zero(e)], body, plus)[0], plus)

    def zero(self, e: Emitter, value: float = 0.0) -> Value:
        return e.const(vector(F32, self.lanes), value)

    def splat(self, e: Emitter, scalar: Value) -> Value:
        return e.splat(scalar, self.lanes)


def emit_rows(
    k: StepEmitter,
    op: Op,
    build: Callable[[RowFunction, Emitter], None],
    params: Sequence[float],
    extra: Sequence[Value] = (),
    few: bool = False,
) -> None:
    """Share the rows of the first operand between the workers."""
    x, out = tensor_at(op, 0), op.outputs[0]
    length = x.shape[-1]
    rows = math.prod(x.shape[:-1])
    if not rows or not length:
        return
    lanes = k.target.lanes
    tail = length % lanes
    vectors = math.ceil(length / lanes)
    held = vectors if few and vectors <= k.target.registers // 4 else 0
    form = RowFunction(op.name, lanes, tail, held)
    name = f"{op.name.lower().replace('.', '_')}_t{tail}"
    name += f"_{len(extra)}" * bool(extra) + f"_v{held}" * bool(held)
    args = [PTR, PTR, PTR, I64, I64, I64] + [PTR] * len(extra)
    function = k.program.function(name, args, lambda e: build(form, e))
    source, target = k.ptr(x), k.ptr(out)
    values = k.constant(np.array(params, np.float32)) if params else target
    begin, end = k.share(rows)
    first = k.mul(begin, length)
    with k.when(k.less(begin, end)):
        places = [k.at(source, first, F32), k.at(target, first, F32), values]
        sizes = [k.i64(k.sub(end, begin)), I64(length - tail), I64(length)]
        k.b.call(function, [*places, *sizes, *extra])


def row_pointers(e: Emitter, row: Value) -> tuple[Value, Value]:
    x, out, length = e.args[0], e.args[1], e.args[5]
    place = e.mul(row, length)
    return e.at(x, place, F32), e.at(out, place, F32)


# -- softmax ------------------------------------------------------------------------------------

# Powers below e**TINY are 0: they and their shares would be denormal numbers, which are slow.
TINY = -69.0


@dataclass
class Softmax:
    """One row after the other. params: the factor of differences. The logarithm keeps them."""

    form: RowFunction
    e: Emitter

    def __post_init__(self) -> None:
        e, form = self.e, self.form
        self.logs = form.name == "LOG_SOFTMAX"
        self.factor = form.splat(e, e.load(e.args[2], F32))

    def rows(self) -> None:
        e = self.e
        with e.loop(0, e.args[3]) as row:
            source, target = row_pointers(e, row)
            if self.form.few:
                self.short(source, target)
            else:
                self.long(source, target, e.args[4])

    def long(self, source: Value, target: Value, whole: Int) -> None:
        e, form = self.e, self.form
        top = form.splat(e, self.maximum(source, whole))

        def power(i: Int, count: int, held: list[Value]) -> list[Value]:
            below, p = self.power(form.real(e, source, i, count), top)
            e.store_part(below if self.logs else p, e.at(target, i, F32), count)
            return [e.b.fadd(held[0], first_lanes(e, p, count, form.zero(e)))]

        share = self.share(form.sum(e, whole, power))

        def finish(i: Int, count: int, held: list[Value]) -> list[Value]:
            self.finish(target, i, count, form.real(e, target, i, count), share)
            return held

        form.sweep(e, whole, [], finish)

    def short(self, source: Value, target: Value) -> None:
        """All vectors of the row at once."""
        e, form = self.e, self.form
        counts = [form.lanes] * (form.few - 1) + [form.tail or form.lanes]
        places = [i * form.lanes for i in range(form.few)]
        spots = list(zip(places, counts, strict=True))
        xs = [form.real(e, source, i, n) for i, n in spots]
        least = self.least()
        full = [first_lanes(e, x, n, least) for x, n in zip(xs, counts, strict=True)]
        highest = e.fmax(joined(full, e.fmax), least)  # a NaN in the first place is not kept
        top = form.splat(e, horizontal(e, highest, e.fmax))
        pairs = [self.power(x, top) for x in xs]
        powers = [
            first_lanes(e, p, n, form.zero(e)) for (_, p), n in zip(pairs, counts, strict=True)
        ]

        def plus(a: Value, b: Value) -> Value:
            return e.b.fadd(a, b)

        share = self.share(horizontal(e, joined(powers, plus), plus))
        for (i, n), (below, p) in zip(spots, pairs, strict=True):
            self.finish(target, i, n, below if self.logs else p, share)

    def least(self) -> Value:
        return self.form.zero(self.e, float(np.finfo(np.float32).min))

    def maximum(self, source: Value, whole: Int) -> Value:
        e, form = self.e, self.form

        def step(i: Int, count: int, held: list[Value]) -> list[Value]:
            x = first_lanes(e, form.real(e, source, i, count), count, held[0])
            return [e.fmax(x, held[0])]

        return horizontal(e, form.sweep(e, whole, [self.least()], step, e.fmax)[0], e.fmax)

    def power(self, x: Value, top: Value) -> tuple[Value, Value]:
        """How far below the top, and e to that; NaN passes."""
        e = self.e
        below = e.b.fmul(e.b.fsub(x, top), self.factor)
        some = e.b.fcmp_unordered(">", below, e.const(below.type, TINY))
        return below, e.b.select(some, vmath.exp_normal(e, below), e.const(below.type, 0.0))

    def share(self, total: Value) -> Value:
        """What every element is multiplied by; or, for logarithms, what is subtracted from it."""
        e = self.e
        if not self.logs:
            return self.form.splat(e, e.b.fdiv(F32(1.0), total))
        log = e.b.extract_element(vmath.log(e, e.splat(total, e.target.lanes)), I32(0))
        return self.form.splat(e, log)

    def finish(self, target: Value, place: Int, count: int, value: Value, share: Value) -> None:
        e = self.e
        last = (e.b.fsub if self.logs else e.b.fmul)(value, share)
        e.store_part(last, e.at(target, place, F32), count)


def joined(values: Sequence[Value], both: Callable[[Value, Value], Value]) -> Value:
    """All as one, by pairs: a chain would have to be waited for."""
    found = list(values)
    while len(found) > 1:
        pairs = [both(a, b) for a, b in zip(found[::2], found[1::2], strict=False)]
        found = pairs + found[len(pairs) * 2 :]
    return found[0]


def emit_softmax(k: StepEmitter, op: Op) -> None:
    beta = 1.0 if op.name == "LOG_SOFTMAX" else float(np.float32(attr(op, "beta")))
    emit_rows(k, op, lambda form, e: Softmax(form, e).rows(), (beta,), few=True)


def refuses_softmax(op: Op, target: Target) -> str | None:
    # The powers are then of numbers above 0, which the kernel's exponential does not bound.
    if op.name == "SOFTMAX" and attr(op, "beta") < 0:
        return "powers may overflow under a negative beta"
    return _refuses_type(op)


def _refuses_type(op: Op) -> str | None:
    x = tensor_at(op, 0)
    return None if x.dtype is FLOAT else f"type {x.dtype.short} has no kernel"


# -- the L2 norm --------------------------------------------------------------------------------


def _build_l2(form: RowFunction, e: Emitter) -> None:
    rows, whole = e.args[3], e.args[4]
    with e.loop(0, rows) as row:
        source, target = row_pointers(e, row)

        def square(i: Int, count: int, held: list[Value], source: Value = source) -> list[Value]:
            x = first_lanes(e, form.real(e, source, i, count), count, form.zero(e))
            return [e.fma(x, x, held[0])]

        total = form.sum(e, whole, square)
        norm = e.fmax(F32(float(np.float32(1e-6))), vmath.sqrt(e, total))  # NaN passes
        share = form.splat(e, e.b.fdiv(F32(1.0), norm))

        def finish(
            i: Int,
            count: int,
            held: list[Value],
            source: Value = source,
            target: Value = target,
            share: Value = share,
        ) -> list[Value]:
            value = e.b.fmul(form.real(e, source, i, count), share)
            e.store_part(value, e.at(target, i, F32), count)
            return held

        form.sweep(e, whole, [], finish)


def emit_l2(k: StepEmitter, op: Op) -> None:
    emit_rows(k, op, _build_l2, ())


def refuses_l2(op: Op, target: Target) -> str | None:
    fused = attr(op, "fused_activation_function") != "NONE"
    return "it has no fused activation" if fused else _refuses_type(op)


KERNELS = {
    "SOFTMAX": Kernel(emit_softmax, refuses_softmax),
    "LOG_SOFTMAX": Kernel(emit_softmax, refuses_softmax),
    "L2_NORMALIZATION": Kernel(emit_l2, refuses_l2),
}
