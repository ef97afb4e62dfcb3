"""Reductions: over any axes, along rows (softmax, norms), and the place of an extreme.

A reduction over axes is four expressions: what is added up of an element, how two are combined,
what it starts from, what becomes of the total. Work is shared by results, so that the order in
which a result is summed up does not depend on the number of workers.
"""

from __future__ import annotations

import math as pymath
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir import DType, Graph, Op, Shape, Tensor
from ...ir import expr as X
from ...ir.expr import Expr, Input, cast
from ...ops.base import attr, has_scale, scale_zero
from ...ops.fixed import limits
from . import math, pool
from .elementwise import BYTES, Refused, encode, is_code, need, scales, tensor_at
from .emit import F32, I32, I64, PTR, Emitter, Int, Value, vector
from .mapping import load, memory_type, register_type, render_vector, store, widest
from .program import Kernel, StepEmitter
from .targets import Target

FLOAT, INT32, INT64 = DType.FLOAT32, DType.INT32, DType.INT64


# -- pieces -----------------------------------------------------------------------------------


def horizontal(e: Emitter, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
    """All lanes combined, by halves."""
    lanes = x.type.count
    while lanes > 1:
        lanes //= 2
        high = e.shuffle(x, None, [lanes + i for i in range(lanes)])
        low = e.shuffle(x, None, list(range(lanes)))
        x = combine(low, high)
    return e.b.extract_element(x, I32(0))


def first_lanes(e: Emitter, x: Value, count: int, fill: Value) -> Value:
    """The first lanes of x, the others of fill."""
    lanes = x.type.count
    if count >= lanes:
        return x
    mask = e.const(vector(register_type(DType.BOOL), lanes), [i < count for i in range(lanes)])
    return e.b.select(mask, x, fill)


def sweep(e: Emitter, whole: Int, tail: int, lanes: int, carry: Sequence[Value],
          body: Callable[[Int, int, list[Value]], list[Value]]) -> list[Value]:  # fmt: skip
    """Along a row: body(place, lanes that count, carried) for each vector, the last partial."""
    with e.loop(0, whole, lanes, carry=list(carry)) as (i, held):
        e.carry(body(i, lanes, held))
    done = e.carried
    return body(whole, tail, done) if tail else done


@dataclass(frozen=True)
class Dim:
    size: int
    step: int  # elements of the input
    reduced: bool


def box(shape: Shape, axes: Sequence[int]) -> list[Dim]:
    """Dimensions of one kind in a row are one; those of size 1 are none."""
    dims: list[Dim] = []
    step = 1
    for axis in reversed(range(len(shape))):
        size, reduced = shape[axis], axis in axes
        if size == 1:
            continue
        if dims and dims[0].reduced == reduced:
            dims[0] = Dim(dims[0].size * size, dims[0].step, reduced)
        else:
            dims.insert(0, Dim(size, step, reduced))
        step *= size
    return dims


def axes_of(op: Op) -> tuple[int, ...]:
    operand = tensor_at(op, 1)
    need(operand.data is not None, "the axes are computed at run time")
    assert operand.data is not None
    rank = len(tensor_at(op, 0).shape)
    return tuple(sorted({int(a) % rank for a in operand.data.reshape(-1)})) if rank else ()


# -- reductions over axes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Fold:
    """each: of input 0; both: of the total (0) and the next (1); last: of the total (0)."""

    each: Expr
    both: Expr
    start: Any  # None: the first element
    last: Expr
    idempotent: bool = False  # an element may count twice

    @property
    def dtype(self) -> DType:
        return self.both.dtype


def fold_of(op: Op) -> Fold:
    x, out = tensor_at(op, 0), op.outputs[0]
    need(0 not in x.shape, "an empty tensor has no kernel")
    axes = axes_of(op)
    count = pymath.prod(x.shape[a] for a in axes)
    return FOLDS[op.name](op, Input(0, x.dtype), out, count)


def _sum(op: Op, x: Expr, out: Tensor, count: int) -> Fold:
    need(x.dtype is not DType.BOOL, "bools are not added up")
    if x.dtype.bits < 32:
        return _code_sum(op, x, out, 1)
    need(out.dtype is x.dtype, "the output has another type")
    return Fold(x, Input(0, x.dtype) + Input(1, x.dtype), 0, Input(0, x.dtype))


def _mean(op: Op, x: Expr, out: Tensor, count: int) -> Fold:
    if x.dtype.bits < 32:
        return _code_sum(op, x, out, count)
    need(x.dtype in (FLOAT, INT32), f"a mean of {x.dtype.short} has no kernel")
    if x.dtype is FLOAT:
        return Fold(x, Input(0, FLOAT) + Input(1, FLOAT), 0, Input(0, FLOAT) * (1 / count))
    wide = Input(0, INT64)
    mean = X.trunc(cast(wide, DType.FLOAT64) / float(count))
    return Fold(cast(x, INT64), wide + Input(1, INT64), 0, cast(mean, INT32))


def _code_sum(op: Op, x: Expr, out: Tensor, divisor: int) -> Fold:
    (scale, zero), (scale_out, zero_out) = scales(op.inputs[0]), scales(out)
    count = pymath.prod(tensor_at(op, 0).shape[a] for a in axes_of(op))
    need(count < 1 << 22, "so many codes overflow the sum")
    factor = scale / scale_out / divisor
    total = cast(Input(0, INT32) - zero * count, FLOAT) * factor + zero_out
    return Fold(cast(x, INT32), Input(0, INT32) + Input(1, INT32), 0,
                encode(total, *out.dtype.bounds, out.dtype))  # fmt: skip


def _extreme(sign: str) -> Callable[..., Fold]:
    """A NaN never replaces what is there. Reducing all axes begins with the first element, reducing
    some with the type's finite limit."""

    def fold(op: Op, x: Expr, out: Tensor, count: int) -> Fold:
        need(is_code(op.inputs[0]) == is_code(out), "only one of input and output is quantised")
        source = tensor_at(op, 0)
        dtype = DType.UINT8 if x.dtype is DType.BOOL else x.dtype
        a, b = Input(0, dtype), Input(1, dtype)
        low, high = limits(dtype.numpy)
        limit = low if sign == ">" else high
        whole = dtype.is_float and len(axes_of(op)) == len(source.shape)
        both = X.select(b > a if sign == ">" else b < a, b, a)
        return Fold(cast(x, dtype), both, None if whole else limit, cast(a, out.dtype), True)

    return fold


def _prod(op: Op, x: Expr, out: Tensor, count: int) -> Fold:
    need(not has_scale(op.inputs[0]), "a product of codes has no kernel")
    need(x.dtype is not DType.BOOL, "bools are not multiplied")
    return Fold(x, Input(0, x.dtype) * Input(1, x.dtype), 1, Input(0, x.dtype))


def _logical(name: str, start: int) -> Callable[..., Fold]:
    def fold(op: Op, x: Expr, out: Tensor, count: int) -> Fold:
        byte = DType.UINT8
        both = X.apply(name, Input(0, byte), Input(1, byte))
        return Fold(cast(x, byte), both, start, cast(Input(0, byte), DType.BOOL), True)

    return fold


FOLDS: dict[str, Callable[[Op, Expr, Tensor, int], Fold]] = {
    "SUM": _sum,
    "MEAN": _mean,
    "REDUCE_MAX": _extreme(">"),
    "REDUCE_MIN": _extreme("<"),
    "REDUCE_PROD": _prod,
    "REDUCE_ANY": _logical("or", 0),
    "REDUCE_ALL": _logical("and", 1),
}
TYPES = (FLOAT, *BYTES, DType.INT16, INT32, INT64, DType.BOOL)


def refuses_fold(op: Op, target: Target) -> str | None:
    return _reason(op, lambda: fold_of(op))


def _reason(op: Op, attempt: Callable[[], object]) -> str | None:
    x = tensor_at(op, 0)
    if x.dtype not in TYPES:
        return f"type {x.dtype.short} has no kernel"
    try:
        attempt()
    except Refused as reason:
        return str(reason)
    return None


def emit_fold(k: StepEmitter, op: Op) -> None:
    fold = fold_of(op)
    x, out = tensor_at(op, 0), op.outputs[0]
    dims = box(x.shape, axes_of(op)) or [Dim(1, 1, False)]
    reducer = Reducer(k, fold, x.dtype, out.dtype, k.ptr(x), k.ptr(out), dims)
    reducer.rows() if dims[-1].reduced else reducer.columns()


@dataclass
class Reducer:
    """The loops of one reduction; the innermost dimension is vectorised, whichever kind it is."""

    k: StepEmitter
    fold: Fold
    source_type: DType
    out_type: DType
    source: Value
    target: Value
    dims: list[Dim]

    @property
    def lanes(self) -> int:
        """A full vector of totals."""
        return self.k.target.width // max(widest(self.fold.each), widest(self.fold.both))

    def columns(self) -> None:
        """Results lie side by side: a few vectors of them at once."""
        k, inner = self.k, self.dims[-1].size
        many = next((u for u in (4, 2, 1) if u * self.lanes <= inner), 1)
        width = min(many * self.lanes, inner)
        blocks = pymath.ceil(inner / width)
        kept = [d for d in self.dims[:-1] if not d.reduced]
        part = inner if inner < self.lanes else None
        begin, end = k.share(pymath.prod(d.size for d in kept) * blocks)
        with k.loop(begin, end) as unit:
            # The last block begins earlier instead of being smaller.
            column = k.min(k.mul(k.rem(unit, blocks), width), inner - width)
            row = k.div(unit, blocks)
            place = k.add(self._offset(row, kept), column)
            totals = self._nest(self._reduced(), place, self._start(many, self.lanes, place),
                                lambda at, held: self._add(at, held, part))  # fmt: skip
            result = k.add(k.mul(row, inner), column)
            for i, total in enumerate(totals):
                self._store(total, k.add(result, i * self.lanes), part)

    def rows(self) -> None:
        """Results are of contiguous elements each: vectors of partial totals, combined last."""
        k, inner = self.k, self.dims[-1].size
        kept = [d for d in self.dims if not d.reduced]
        many = 4 if inner >= 8 * self.lanes else 1
        begin, end = k.share(pymath.prod(d.size for d in kept))
        with k.loop(begin, end) as unit:
            place = self._offset(unit, kept)
            start = self._start(many, self.lanes, place)
            totals = self._nest(self._reduced()[:-1], place, start,
                                lambda at, held: self._along(at, held, inner))  # fmt: skip
            total = totals[0]
            for other in totals[1:]:
                total = self._combine(total, other)
            self._store(horizontal(k, total, self._combine), unit, None)

    def _reduced(self) -> list[Dim]:
        return [d for d in self.dims if d.reduced]

    def _offset(self, index: Int, dims: Sequence[Dim]) -> Int:
        place: Int = 0
        for dim in reversed(dims):
            place = self.k.add(place, self.k.mul(self.k.rem(index, dim.size), dim.step))
            index = self.k.div(index, dim.size)
        return place

    def _nest(self, dims: Sequence[Dim], place: Int, totals: list[Value],
              body: Callable[[Int, list[Value]], list[Value]]) -> list[Value]:  # fmt: skip
        if not dims:
            return body(place, totals)
        with self.k.loop(0, dims[0].size, carry=totals) as (i, held):
            here = self.k.add(place, self.k.mul(i, dims[0].step))
            self.k.carry(self._nest(dims[1:], here, held, body))
        return self.k.carried

    def _load(self, place: Int, part: int | None) -> Value:
        pointer = self.k.at(self.source, place, memory_type(self.source_type))
        raw = load(self.k, pointer, self.source_type, self.lanes, part)
        return render_vector(self.k, self.fold.each, [raw])

    def _start(self, many: int, lanes: int, place: Int) -> list[Value]:
        k, dtype = self.k, self.fold.dtype
        if self.fold.start is not None:
            return [k.const(vector(register_type(dtype), lanes), self.fold.start)] * many
        pointer = k.at(self.source, place, memory_type(self.source_type))
        first = render_vector(k, self.fold.each, [load(k, pointer, self.source_type, 0)])
        return [k.splat(first, lanes)] * many

    def _combine(self, a: Value, b: Value) -> Value:
        return render_vector(self.k, self.fold.both, [a, b])

    def _add(self, place: Int, totals: list[Value], part: int | None) -> list[Value]:
        return [self._combine(t, self._load(self.k.add(place, i * self.lanes), part))
                for i, t in enumerate(totals)]  # fmt: skip

    def _along(self, place: Int, totals: list[Value], inner: int) -> list[Value]:
        """Add a run of elements to the totals."""
        k, lanes, many, totals = self.k, self.lanes, len(totals), list(totals)
        stride = lanes * many
        whole = inner // stride * stride
        if whole:
            with k.loop(0, whole, stride, carry=totals) as (i, held):
                k.carry(self._add(k.add(place, i), held, None))
            totals = list(k.carried)
        for first in range(whole, inner, lanes):
            count = min(inner - first, lanes)
            value = self._load(k.add(place, first), count)
            value = first_lanes(k, value, count, self._neutral(totals[0]))
            totals[0] = self._combine(totals[0], value)
        return totals

    def _neutral(self, like: Value) -> Value:
        return like if self.fold.idempotent else self.k.const(like.type, self.fold.start)

    def _store(self, total: Value, place: Int, part: int | None) -> None:
        value = render_vector(self.k, self.fold.last, [total])
        pointer = self.k.at(self.target, place, memory_type(self.out_type))
        store(self.k, value, pointer, self.out_type, part)


def emit_mean(k: StepEmitter, op: Op) -> None:
    """The mean of pictures is a pool, which has a kernel of its own."""
    x = tensor_at(op, 0)
    if len(x.shape) == 4 and axes_of(op) == (1, 2) and x.dtype in (FLOAT, *BYTES):
        pool.KERNELS["MEAN"].emit(k, op)
    else:
        emit_fold(k, op)


# -- along rows -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """A function over rows of the last axis: (x, out, work, params, rows, whole, length).

    work: floats, for a row's intermediate values; params: floats, see the functions below.
    """

    name: str
    source: DType
    target: DType
    lanes: int
    tail: int

    def real(self, e: Emitter, row: Value, place: Int, count: int) -> Value:
        """Codes or floats as floats."""
        raw = load(e, e.at(row, place, memory_type(self.source)), self.source, self.lanes, count)
        return render_vector(e, cast(Input(0, self.source), FLOAT), [raw])

    def put(self, e: Emitter, row: Value, place: Int, count: int, expr: Expr,
            *values: Value) -> None:  # fmt: skip
        result = render_vector(e, expr, values)
        store(e, result, e.at(row, place, memory_type(self.target)), self.target, count)

    def sweep(self, e: Emitter, whole: Int, carry: Sequence[Value],
              body: Callable[[Int, int, list[Value]], list[Value]]) -> list[Value]:  # fmt: skip
        return sweep(e, whole, self.tail, self.lanes, carry, body)

    def zero(self, e: Emitter, value: float = 0.0) -> Value:
        return e.const(vector(F32, self.lanes), value)

    def splat(self, e: Emitter, scalar: Value) -> Value:
        return e.splat(scalar, self.lanes)

    def total(self, e: Emitter, partial: Value) -> Value:
        return horizontal(e, partial, lambda a, b: e.b.fadd(a, b))


def emit_rows(k: StepEmitter, op: Op, build: Callable[[Rows, Emitter], None],
              params: Sequence[float], extra: Sequence[Value] = ()) -> None:  # fmt: skip
    """Share the rows of the first operand between the workers."""
    x, out = tensor_at(op, 0), op.outputs[0]
    length = x.shape[-1]
    rows = pymath.prod(x.shape[:-1])
    if not rows or not length:
        return
    lanes = k.target.lanes
    tail = length % lanes
    form = Rows(op.name, x.dtype, out.dtype, lanes, tail)
    name = f"{op.name.lower().replace('.', '_')}_{x.dtype.short}_{out.dtype.short}_t{tail}"
    name += f"_{len(extra)}" * bool(extra)
    args = [PTR, PTR, PTR, PTR, I64, I64, I64] + [PTR] * len(extra)
    function = k.program.function(name, args, lambda e: build(form, e))
    source, target = k.ptr(x), k.ptr(out)
    work = k.scratch(4 * length + 4 * lanes) if out.dtype is not FLOAT else target
    values = k.constant(np.array(params, np.float32)) if params else target
    begin, end = k.share(rows)
    first = k.mul(begin, length)
    with k.when(k.less(begin, end)):
        k.b.call(function, [k.at(source, first, memory_type(x.dtype)),
                            k.at(target, first, memory_type(out.dtype)), work, values,
                            k.i64(k.sub(end, begin)), I64(length - tail), I64(length),
                            *extra])  # fmt: skip


def _row_pointers(form: Rows, e: Emitter, row: Value) -> tuple[Value, Value]:
    x, out, length = e.args[0], e.args[1], e.args[6]
    place = e.mul(row, length)
    return e.at(x, place, memory_type(form.source)), e.at(out, place, memory_type(form.target))


def _build_softmax(form: Rows, e: Emitter) -> None:
    """params: the factor of differences, and of quotients; the logarithm keeps differences."""
    params, rows, whole = e.args[3], e.args[4], e.args[5]
    logs = form.name == "LOG_SOFTMAX"
    factor = form.splat(e, e.load(params, F32))
    unit = e.load(e.at(params, 1, F32), F32)
    low, high = (0, 0) if form.target is FLOAT else form.target.bounds
    x0, x1 = Input(0, FLOAT), Input(1, FLOAT)
    last = (x0 - x1) if logs else x0 * x1
    if form.target is not FLOAT:
        last = encode(last + float(high if logs else low), low, high, form.target)
    with e.loop(0, rows) as row:
        source, target = _row_pointers(form, e, row)
        work = target if form.target is FLOAT else e.args[2]
        top = form.splat(e, _row_maximum(form, e, source, whole))

        def power(i: Int, count: int, held: list[Value], source: Value = source, top: Value = top,
                  work: Value = work) -> list[Value]:  # fmt: skip
            below = e.b.fmul(e.b.fsub(form.real(e, source, i, count), top), factor)
            p = math.exp_normal(e, e.fmax(e.const(below.type, -87.0), below))
            e.store_part(below if logs else p, e.at(work, i, F32), count)
            return [e.b.fadd(held[0], first_lanes(e, p, count, form.zero(e)))]

        total = form.total(e, form.sweep(e, whole, [form.zero(e)], power)[0])
        share = form.splat(e, _softmax_share(e, total, unit, logs))

        def finish(i: Int, count: int, held: list[Value], work: Value = work, share: Value = share,
                   target: Value = target) -> list[Value]:  # fmt: skip
            value = e.load_part(e.at(work, i, F32), vector(F32, form.lanes), count)
            if logs and form.target is not FLOAT:
                value = e.b.fmul(value, form.splat(e, unit))
            form.put(e, target, i, count, last, value, share)
            return held

        form.sweep(e, whole, [], finish)


def _softmax_share(e: Emitter, total: Value, unit: Value, logs: bool) -> Value:
    """What every element is multiplied by; or, for logarithms, what is subtracted from it."""
    if not logs:
        return e.b.fdiv(unit, total)
    log = math.log(e, e.splat(total, e.target.lanes))
    return e.b.fmul(e.b.extract_element(log, I32(0)), unit)


def _row_maximum(form: Rows, e: Emitter, source: Value, whole: Int) -> Value:
    def step(i: Int, count: int, held: list[Value]) -> list[Value]:
        x = first_lanes(e, form.real(e, source, i, count), count, held[0])
        return [e.fmax(x, held[0])]

    least = form.zero(e, float(np.finfo(np.float32).min))
    found = form.sweep(e, whole, [least], step)[0]
    return horizontal(e, found, e.fmax)


def softmax_params(op: Op) -> tuple[float, float]:
    x, out = tensor_at(op, 0), op.outputs[0]
    logs = op.name == "LOG_SOFTMAX"
    beta = 1.0 if logs else float(np.float32(attr(op, "beta")))
    need(len(x.shape) > 0, "a scalar has no softmax")
    if x.dtype is FLOAT:
        need(out.dtype is FLOAT, "the output has another type")
        return beta, 1.0
    need(x.dtype in BYTES, f"type {x.dtype.short} has no kernel")
    need(out.dtype in (*BYTES, DType.INT16), f"output type {out.dtype.short} has no kernel")
    factor = beta * scales(x)[0]
    if logs:
        top = out.dtype.bounds[1]
        need(scale_zero(out) == (1 / 16, top), "the output's scale is not 1/16")
        return factor, 16.0
    # The sum of a row's powers is 2**bits codes, whatever scale the output states.
    return factor, float(2**out.dtype.bits)


def emit_softmax(k: StepEmitter, op: Op) -> None:
    emit_rows(k, op, _build_softmax, softmax_params(op))


def refuses_softmax(op: Op, target: Target) -> str | None:
    return _reason(op, lambda: softmax_params(op))


def _build_l2(form: Rows, e: Emitter) -> None:
    """params: the input's zero point."""
    params, rows, whole = e.args[3], e.args[4], e.args[5]
    zero = form.splat(e, e.load(params, F32))
    last = Input(0, FLOAT) * Input(1, FLOAT)
    if form.target is not FLOAT:
        low, high = form.target.bounds
        middle = 128 if form.target is DType.UINT8 else 0
        last = encode(last * 128 + middle, low, high, form.target)
    with e.loop(0, rows) as row:
        source, target = _row_pointers(form, e, row)

        def centred(i: Int, count: int, source: Value = source) -> Value:
            return e.b.fsub(form.real(e, source, i, count), zero)

        def square(i: Int, count: int, held: list[Value], centred: Any = centred) -> list[Value]:
            x = first_lanes(e, centred(i, count), count, form.zero(e))
            return [e.fma(x, x, held[0])]

        total = form.total(e, form.sweep(e, whole, [form.zero(e)], square)[0])
        norm = e.fmax(math.sqrt(e, total), F32(float(np.float32(1e-6))))
        share = form.splat(e, e.b.fdiv(F32(1.0), norm))

        def finish(i: Int, count: int, held: list[Value], centred: Any = centred,
                   target: Value = target, share: Value = share) -> list[Value]:  # fmt: skip
            form.put(e, target, i, count, last, centred(i, count), share)
            return held

        form.sweep(e, whole, [], finish)


def l2_params(op: Op) -> tuple[float]:
    x, out = tensor_at(op, 0), op.outputs[0]
    need(len(x.shape) > 0, "a scalar cannot be normalised")
    need(attr(op, "fused_activation_function") == "NONE", "it has no fused activation")
    need(out.dtype is x.dtype, "the output has another type")
    if x.dtype is FLOAT:
        return (0.0,)
    need(x.dtype in BYTES, f"type {x.dtype.short} has no kernel")
    middle = 128 if out.dtype is DType.UINT8 else 0
    need(scale_zero(out) == (1 / 128, middle), "the output's scale is not 1/128")
    return (float(scales(x)[1]),)


def emit_l2(k: StepEmitter, op: Op) -> None:
    emit_rows(k, op, _build_l2, l2_params(op))


def refuses_l2(op: Op, target: Target) -> str | None:
    return _reason(op, lambda: l2_params(op))


# -- the place of an extreme ----------------------------------------------------------------------


def arg_axis(op: Op) -> int:
    x, axis = tensor_at(op, 0), tensor_at(op, 1)
    need(axis.data is not None, "the axis is computed at run time")
    assert axis.data is not None
    need(0 not in x.shape, "an empty tensor has no kernel")
    need(op.outputs[0].dtype in (INT32, INT64), "indices are neither i32 nor i64")
    return int(axis.data.reshape(-1)[0]) % len(x.shape)


def refuses_arg(op: Op, target: Target) -> str | None:
    return _reason(op, lambda: arg_axis(op))


def emit_arg(k: StepEmitter, op: Op) -> None:
    x, axis = tensor_at(op, 0), arg_axis(op)
    outer, size, inner = _around(x.shape, axis)
    finder = Finder(k, op, x.dtype, ">" if op.name == "ARG_MAX" else "<", size, inner)
    finder.rows(outer) if inner == 1 else finder.columns(outer)


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    """Elements before, along and behind an axis."""
    return pymath.prod(shape[:axis]), shape[axis], pymath.prod(shape[axis + 1 :])


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
            return render_vector(k, X.select(self.better, Input(1, self.wide),
                                             Input(0, self.wide)), [a, b])  # fmt: skip

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
        blocks = pymath.ceil(self.inner / lanes)
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

    return _reason(op, attempt)


def emit_cumsum(k: StepEmitter, op: Op) -> None:
    """One running sum for each element behind the axis, a vector of them at once."""
    x, axis = tensor_at(op, 0), tensor_at(op, 1)
    assert axis.data is not None
    outer, size, inner = _around(x.shape, int(axis.data.reshape(-1)[0]) % len(x.shape))
    if not outer * size * inner:
        return
    t = memory_type(x.dtype)
    full = k.target.width // (x.dtype.bits // 8)
    lanes = full if inner >= full else 0
    width = lanes or 1
    blocks = pymath.ceil(inner / width)
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


# -- layer normalisation --------------------------------------------------------------------------


def fuse_layer_norm(graph: Graph, target: Target) -> None:
    """Mean, squared difference, mean, rsqrt and what goes with them become one cpu.LAYER_NORM; with
    the constant factor and offset behind, where nothing else reads what is between."""
    for op in list(graph.ops):
        found = _normalised(op) if op.name == "ADD" else None
        if found is None:
            continue
        x, epsilon = found
        last, constants = _affine(graph, op, x.shape[-1])
        fused = Op("cpu.LAYER_NORM", [x, *constants], last.outputs, {"epsilon": epsilon})
        graph.insert(fused, before=op)
        _erase_unused(graph, last)


def _normalised(op: Op) -> tuple[Tensor, float] | None:
    """x and epsilon of x * r + (0 - m * r); m is the rows' mean, 1 / r their deviation."""
    for left, right in (op.inputs, op.inputs[::-1]) if _is_plain(op) else ():
        x, inverse = _row_product(_maker(left, "MUL"))
        moved = _maker(_viewed(right), "SUB")
        if x is None or inverse is None or moved is None or not _is_value(moved.inputs[0], 0):
            continue
        mean = _other(_maker(moved.inputs[1], "MUL"), inverse)
        epsilon = _epsilon(x, mean, inverse)
        if epsilon is not None and op.outputs[0].shape == x.shape:
            return x, epsilon
    return None


def _affine(graph: Graph, op: Op, length: int) -> tuple[Op, list[Tensor]]:
    """The last op of op * gamma + beta, with these constants; or op itself, with none."""
    scaled = _next(graph, op, "MUL", length)
    moved = _next(graph, scaled[0], "ADD", length) if scaled is not None else None
    if scaled is None or moved is None:
        return op, []
    return moved[0], [scaled[1], moved[1]]


def _next(graph: Graph, op: Op, name: str, length: int) -> tuple[Op, Tensor] | None:
    """The only reader, if it is of this kind with one constant for each element of a row."""
    result = op.outputs[0]
    reader = result.users[0] if len(result.users) == 1 and result not in graph.outputs else None
    if reader is None or reader.name != name or not _is_plain(reader):
        return None
    constant = _with_constant(reader)[0]
    same = reader.outputs[0].shape == result.shape
    if (
        constant is None
        or not same
        or constant.shape != (1,) * (len(constant.shape) - 1) + (length,)
    ):
        return None
    return reader, constant


def _is_plain(op: Op) -> bool:
    return bool(op.attrs.get("fused_activation_function", "NONE") == "NONE")


def _maker(tensor: Tensor | None, name: str) -> Op | None:
    """The op that makes a tensor, if it is of this kind (and has no activation)."""
    op = None if tensor is None else tensor.producer
    return op if op is not None and op.name == name and _is_plain(op) else None


def _viewed(tensor: Tensor | None) -> Tensor | None:
    """What a reshape shows."""
    while tensor is not None and tensor.producer is not None and tensor.producer.name == "RESHAPE":
        tensor = tensor.producer.inputs[0]
    return tensor


def _with_constant(op: Op) -> tuple[Tensor | None, Tensor | None]:
    """A binary op's constant operand and the other."""
    for a, b in (op.inputs, op.inputs[::-1]):
        if a is not None and a.is_constant and a.dtype is FLOAT:
            return a, b
    return None, None


def _row_product(op: Op | None) -> tuple[Tensor | None, Tensor | None]:
    """x * r where r has one value a row: x, and r behind its reshape."""
    for x, r in (op.inputs, op.inputs[::-1]) if op is not None else ():
        if x is not None and r is not None and r.shape == (*x.shape[:-1], 1):
            return x, _viewed(r)
    return None, None


def _other(op: Op | None, one: Tensor) -> Tensor | None:
    """The operand beside `one`."""
    if op is None or one not in op.inputs:
        return None
    return op.inputs[1] if op.inputs[0] is one else op.inputs[0]


def _is_value(tensor: Tensor | None, value: float) -> bool:
    return tensor is not None and tensor.data is not None and bool(np.all(tensor.data == value))


def _epsilon(x: Tensor, mean: Tensor | None, inverse: Tensor) -> float | None:
    """inverse == rsqrt(mean((x - mean) ** 2) + epsilon) and mean is x's, over the last axis."""
    root = _maker(inverse, "RSQRT")
    shifted = _maker(root.inputs[0], "ADD") if root is not None else None
    constant, variance = _with_constant(shifted) if shifted is not None else (None, None)
    squares = _row_mean(variance)
    difference = _maker(squares, "SQUARED_DIFFERENCE")
    if constant is None or constant.data is None or constant.data.size != 1 or difference is None:
        return None
    if mean is None or _row_mean(mean) is not x or difference.inputs[0] is not x:
        return None
    return float(constant.data.reshape(())) if _viewed(difference.inputs[1]) is mean else None


def _row_mean(tensor: Tensor | None) -> Tensor | None:
    """What this is the mean of, over the last axis."""
    op = _maker(_viewed(tensor), "MEAN")
    if op is None or op.inputs[0] is None or op.inputs[0].dtype is not FLOAT:
        return None
    shape = op.inputs[0].shape
    axes = [a for a in axes_of(op) if shape[a] > 1]
    return op.inputs[0] if axes == [len(shape) - 1] else None


def _erase_unused(graph: Graph, op: Op) -> None:
    """Take an op out, and what only it has read."""
    read = [t for t in op.inputs if t is not None]
    graph.erase(op)
    for tensor in dict.fromkeys(read):
        made = tensor.producer
        unread = not any(t.users or t in graph.outputs for t in made.outputs) if made else False
        if made is not None and unread:
            _erase_unused(graph, made)


def _build_layer_norm(form: Rows, e: Emitter) -> None:
    """params: 1 / length, epsilon; perhaps two more pointers: gamma, beta."""
    params, rows, whole = e.args[3], e.args[4], e.args[5]
    affine = e.args[7:]
    part, epsilon = e.load(params, F32), e.load(e.at(params, 1, F32), F32)
    t = vector(F32, form.lanes)
    with e.loop(0, rows) as row:
        source, target = _row_pointers(form, e, row)

        def add(i: Int, count: int, held: list[Value], source: Value = source) -> list[Value]:
            return [e.b.fadd(held[0], form.real(e, source, i, count))]

        total = form.total(e, form.sweep(e, whole, [form.zero(e)], add)[0])
        mean = form.splat(e, e.b.fmul(total, part))

        def square(i: Int, count: int, held: list[Value], source: Value = source,
                   mean: Value = mean) -> list[Value]:  # fmt: skip
            x = e.b.fsub(form.real(e, source, i, count), mean)
            x = first_lanes(e, x, count, form.zero(e))
            return [e.fma(x, x, held[0])]

        squares = form.total(e, form.sweep(e, whole, [form.zero(e)], square)[0])
        variance = e.b.fadd(e.b.fmul(squares, part), epsilon)
        inverse = form.splat(e, math.rsqrt(e, variance))

        def finish(i: Int, count: int, held: list[Value], source: Value = source,
                   mean: Value = mean, inverse: Value = inverse,
                   target: Value = target) -> list[Value]:  # fmt: skip
            x = e.b.fmul(e.b.fsub(form.real(e, source, i, count), mean), inverse)
            if affine:
                slope, offset = (e.load_part(e.at(p, i, F32), t, count) for p in affine)
                x = e.fma(x, slope, offset)
            e.store_part(x, e.at(target, i, F32), count)
            return held

        form.sweep(e, whole, [], finish)


def emit_layer_norm(k: StepEmitter, op: Op) -> None:
    affine = [k.ptr(t) for t in op.inputs[1:] if t is not None]
    params = (1 / tensor_at(op, 0).shape[-1], op.attrs["epsilon"])
    emit_rows(k, op, _build_layer_norm, params, affine)


KERNELS = {
    **{name: Kernel(emit_fold, refuses_fold) for name in FOLDS},
    "MEAN": Kernel(emit_mean, refuses_fold),
    "SOFTMAX": Kernel(emit_softmax, refuses_softmax),
    "LOG_SOFTMAX": Kernel(emit_softmax, refuses_softmax),
    "L2_NORMALIZATION": Kernel(emit_l2, refuses_l2),
    "ARG_MAX": Kernel(emit_arg, refuses_arg),
    "ARG_MIN": Kernel(emit_arg, refuses_arg),
    "CUMSUM": Kernel(emit_cumsum, refuses_cumsum),
    "cpu.LAYER_NORM": Kernel(emit_layer_norm),
}
