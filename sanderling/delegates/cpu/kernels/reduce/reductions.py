"""Reductions over any axes.

A reduction over axes is four expressions: what is added up of an element, how two are combined,
what it starts from, what becomes of the total. Work is shared by results, so that the order in
which a result is summed up does not depend on the number of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .....ir import DType, Op, Shape, Tensor
from .....ir import expr as X
from .....ir.expr import Expr, Input, cast, clamp
from .....ops.base import has_scale
from .....ops.fixed import limits, quantize_multiplier
from ...codegen.elements import load, memory_type, register_type, store, widest
from ...codegen.emit import Int, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.render import render_vector
from ...codegen.vectors import first_lanes, horizontal
from ...isa.targets import Target
from ..elementwise.operands import BYTES, Refused, fixed_product, is_code, need, scales, tensor_at
from ..row import Kernel

FLOAT, INT32, INT64 = DType.FLOAT32, DType.INT32, DType.INT64


# -- axes -------------------------------------------------------------------------------------


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
    rank = len(tensor_at(op, 0).shape)
    return tuple(sorted({int(a) % rank for a in operand.values.reshape(-1)})) if rank else ()


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
    need(is_code(x) == is_code(out), "only one of input and output is quantised")
    axes = axes_of(op)
    count = math.prod(x.shape[a] for a in axes)
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
    count = math.prod(tensor_at(op, 0).shape[a] for a in axes_of(op))
    need(count < 1 << 22, "so many codes overflow the sum")
    m, shift = (int(v) for v in quantize_multiplier(scale / scale_out))
    if divisor > 1:  # it goes into the multiplier, with as many bits as fit
        extra = min(divisor.bit_length() - 1, 32, 31 + shift)
        m, shift = (m << extra) // divisor, shift - extra
    need(-62 < shift < 31, "the scales do not fit each other")
    units = fixed_product(cast(Input(0, INT32) - zero * count, INT64), m, shift) + zero_out
    return Fold(
        cast(x, INT32),
        Input(0, INT32) + Input(1, INT32),
        0,
        cast(clamp(units, *out.dtype.bounds), out.dtype),
    )


def _extreme(sign: str) -> Callable[..., Fold]:
    """A NaN never replaces what is there. Reducing all axes begins with the first element, reducing
    some with the type's finite limit."""

    def fold(op: Op, x: Expr, out: Tensor, count: int) -> Fold:
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
    return reason(op, lambda: fold_of(op))


def reason(op: Op, attempt: Callable[[], object]) -> str | None:
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
        blocks = math.ceil(inner / width)
        kept = [d for d in self.dims[:-1] if not d.reduced]
        part = inner if inner < self.lanes else None
        begin, end = k.share(math.prod(d.size for d in kept) * blocks)
        with k.loop(begin, end) as unit:
            # The last block begins earlier instead of being smaller.
            column = k.min(k.mul(k.rem(unit, blocks), width), inner - width)
            row = k.div(unit, blocks)
            place = k.add(self._offset(row, kept), column)
            totals = self._nest(
                self._reduced(),
                place,
                self._start(many, self.lanes, place),
                lambda at, held: self._add(at, held, part),
            )
            result = k.add(k.mul(row, inner), column)
            for i, total in enumerate(totals):
                self._store(total, k.add(result, i * self.lanes), part)

    def rows(self) -> None:
        """Results are of contiguous elements each: vectors of partial totals, combined last."""
        k, inner = self.k, self.dims[-1].size
        kept = [d for d in self.dims if not d.reduced]
        many = 4 if inner >= 8 * self.lanes else 1
        begin, end = k.share(math.prod(d.size for d in kept))
        with k.loop(begin, end) as unit:
            place = self._offset(unit, kept)
            start = self._start(many, self.lanes, place)
            totals = self._nest(
                self._reduced()[:-1], place, start, lambda at, held: self._along(at, held, inner)
            )
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

    def _nest(
        self,
        dims: Sequence[Dim],
        place: Int,
        totals: list[Value],
        body: Callable[[Int, list[Value]], list[Value]],
    ) -> list[Value]:
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
        return [
            self._combine(t, self._load(self.k.add(place, i * self.lanes), part))
            for i, t in enumerate(totals)
        ]

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


KERNELS = {name: Kernel(emit_fold, refuses_fold) for name in FOLDS}
