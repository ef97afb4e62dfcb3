"""SVDF: a product with the input enters a memory of the last ones, which is weighted in time.

The memory of a sequence lies as [filter, time] in the caller's array. It moves by one element as a
whole; what passes from one filter to the next on the way is overwritten by the newest products. The
filters of an output follow each other, so that an output is the product of two rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .....ir import Array, DType, Op, Tensor
from .....ops.base import attr, scale_zero
from .....ops.fixed import quantize_multiplier
from .....ops.gemm import signed
from ...codegen.emit import F32, I8, I16, I32, I64, PTR, Emitter, Int, Type, Value, vector
from ...codegen.fixedpoint import Scale, narrow16, scale_words, widen
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..products.conv import is_folded
from ..row import Kernel
from .cells import activation_function, integer_projection, sum_lanes
from .sequence import Memory, Room, Term, code_term, float_term, rounded, weights_of


@dataclass(frozen=True)
class Sizes:
    filters: int
    memory: int
    rank: int

    @property
    def units(self) -> int:
        return self.filters // self.rank

    @property
    def state(self) -> int:
        """Elements of a sequence's memory."""
        return self.filters * self.memory


def emit_svdf(k: StepEmitter, op: Op) -> None:
    x, feature, time, state = (op.operand(i) for i in (0, 1, 2, 4))
    sizes = Sizes(feature.shape[0], time.shape[1], attr(op, "rank"))
    kind = _Integer if state.dtype is DType.INT16 else _Float
    body = kind(k, op, sizes, x, state, time, op.input(3))
    begin, end = k.share(x.shape[0])
    with k.loop(begin, end) as row:
        body.run(row)


class _Body:
    """One sequence's step. Addresses are asked for here, before the loop."""

    element: Type

    def __init__(
        self,
        k: StepEmitter,
        op: Op,
        sizes: Sizes,
        x: Tensor,
        state: Tensor,
        time: Tensor,
        bias: Tensor | None,
    ) -> None:
        self.k, self.op, self.sizes = k, op, sizes
        self.wide = rounded(sizes.filters, 2 * k.target.lanes)
        self.term = self.make_term()
        self.x, self.state, self.y = k.ptr(x), k.ptr(state), k.ptr(op.outputs[0])
        self.row_bytes = [t.nbytes // x.shape[0] for t in (x, state, op.outputs[0])]
        self.time = k.constant(self.weights(time))
        start = np.zeros(sizes.units, np.int32) if bias is None else bias.values
        self.start = k.constant(start)
        memory = Memory()
        places = [
            memory.take(size)
            for size in (self.term.row_bytes, 64, 4 * self.wide, 4 * self.wide, 4 * self.wide)
        ]
        base = k.scratch(memory.size)
        codes, row_words, self.sums, self.totals, self.made = (k.at(base, p, I8) for p in places)
        self.room = Room(codes, row_words)

    def make_term(self) -> Term:
        raise NotImplementedError

    def weights(self, time: Tensor) -> Array:
        raise NotImplementedError

    def enter(self) -> None:
        """The newest products, as the memory holds them."""

    def leave(self) -> None:
        """From totals to outputs, in scratch."""
        raise NotImplementedError

    def run(self, row: Int) -> None:
        k, sizes = self.k, self.sizes
        places = zip((self.x, self.state, self.y), self.row_bytes, strict=True)
        x, state, y = (k.at(p, k.mul(row, size), I8) for p, size in places)
        self.term.one(self.term.rows(x, 0, 1, self.room), self.sums)
        self.enter()
        short = "i16" if self.element == I16 else "f32"
        move = k.program.function(f"svdf_move_{short}", [PTR, PTR, I64, I64], self._move)
        k.b.call(move, [state, self.sums, I64(sizes.filters), I64(sizes.memory)])
        weigh = k.program.function(f"svdf_weigh_{short}", [*[PTR] * 4, I64, I64], self._weigh)
        k.b.call(
            weigh,
            [
                state,
                self.time,
                self.start,
                self.totals,
                I64(sizes.units),
                I64(sizes.rank * sizes.memory),
            ],
        )
        self.leave()
        k.copy(y, self.made, self.row_bytes[2])

    def _move(self, e: Emitter) -> None:
        """(state, newest, filters, memory)"""
        state, newest, filters, memory = e.args
        last = e.sub(e.mul(filters, memory), 1)
        lanes = e.target.lanes
        whole = e.mul(e.div(last, lanes), lanes)
        for first, stop, step in ((0, whole, lanes), (whole, last, 1)):
            t = vector(self.element, step) if step > 1 else self.element
            with e.loop(first, stop, step) as i:
                value = e.load(e.at(state, e.add(i, 1), self.element), t)
                e.store(value, e.at(state, i, self.element))
        with e.loop(0, filters) as i:
            place = e.sub(e.mul(e.add(i, 1), memory), 1)
            value = e.load(e.at(newest, i, self.element), self.element)
            e.store(value, e.at(state, place, self.element))

    def _weigh(self, e: Emitter) -> None:
        """(state, time, start, totals, units, length): a product of rows for each unit."""
        state, time, start, totals, units, length = e.args
        acc = F32 if self.element == F32 else I32
        lanes = e.target.lanes
        whole = e.mul(e.div(length, lanes), lanes)

        def summed(base: Int, first: Int, stop: Int, step: int, total: Value) -> Value:
            t = vector(self.element, step) if step > 1 else self.element
            with e.loop(first, stop, step, carry=[total]) as (i, (total,)):
                x, w = (e.load(e.at(p, e.add(base, i), self.element), t) for p in (state, time))
                e.carry([self.weigh(e, x, w, total)])
            return e.carried[0]

        with e.loop(0, units) as unit:
            base = e.mul(unit, length)
            part = summed(base, 0, whole, lanes, e.const(vector(acc, lanes), 0))
            begin = e.load(e.at(start, unit, acc), acc)
            add = e.b.fadd if acc == F32 else e.b.add
            total = summed(base, whole, length, 1, add(sum_lanes(e, part), begin))
            e.store(total, e.at(totals, unit, acc))

    def weigh(self, e: Emitter, x: Value, w: Value, total: Value) -> Value:
        raise NotImplementedError


class _Float(_Body):
    element = F32

    def make_term(self) -> Term:
        asymmetric = bool(attr(self.op, "asymmetric_quantize_inputs"))
        return float_term(self.k, weights_of(self.op, [1], self.wide), None, False, asymmetric)

    def weights(self, time: Tensor) -> Array:
        data = time.values
        real = data if data.dtype.kind == "f" else signed(data) * np.float32(scale_zero(time)[0])
        return real.astype(np.float32)

    def weigh(self, e: Emitter, x: Value, w: Value, total: Value) -> Value:
        return e.fma(x, w, total)

    def leave(self) -> None:
        count = rounded(self.sizes.units, self.k.target.lanes)
        function = activation_function(self.k, attr(self.op, "fused_activation_function"))
        self.k.b.call(function, [self.totals, self.made, I64(count)])


class _Integer(_Body):
    """int16 memory and time weights."""

    element = I16

    def make_term(self) -> Term:
        k, op = self.k, self.op
        (x, x_zero), out = scale_zero(op.input(0)), op.outputs[0]
        feature, time, state = (scale_zero(op.input(i))[0] for i in (1, 2, 4))
        self.to_state = k.constant(_scale(x * feature / state))
        low, high = out.dtype.bounds
        to_out = [*_scale(state * time / scale_zero(out)[0]), scale_zero(out)[1], low, high]
        self.to_out = k.constant(np.array(to_out, np.int32))
        values = weights_of(op, [1], self.wide).values
        return code_term(k, values, -x_zero * values.sum(axis=1, dtype=np.int64))

    def weights(self, time: Tensor) -> Array:
        return time.values

    def enter(self) -> None:
        function = self.k.program.function("svdf_enter", [PTR, PTR, I64], _enter)
        self.k.b.call(function, [self.sums, self.to_state, I64(self.wide)])

    def weigh(self, e: Emitter, x: Value, w: Value, total: Value) -> Value:
        return e.b.add(total, e.b.mul(widen(e, x), widen(e, w)))

    def leave(self) -> None:
        function = integer_projection(self.k, self.term.product.core)
        count = rounded(self.sizes.units, 2 * self.k.target.lanes)
        self.k.b.call(function, [self.totals, self.to_out, self.made, self.sums, I64(count)])


def _scale(real: float) -> Array:
    return np.array(scale_words(*quantize_multiplier(real)), np.int32)


def _enter(e: Emitter) -> None:
    """(sums, scale, count): 32-bit sums to 16 bits, in the same place."""
    sums, numbers, count = e.args
    t = vector(I32, 2 * e.target.lanes)
    scale = Scale.load(e, numbers, t.count)
    with e.loop(0, count, t.count) as i:
        value = narrow16(e, scale(e, e.load(e.at(sums, i, I32), t)))
        e.store(value, e.at(sums, i, I16))


# -- what is taken ------------------------------------------------------------------------------

_BYTES = (DType.INT8, DType.UINT8)
# The types of the feature weights, the time weights, the bias and the state, by that of the input.
TYPES: dict[DType, tuple[tuple[DType, ...], ...]] = {
    DType.FLOAT32: (*[(DType.FLOAT32, *_BYTES)] * 2, (DType.FLOAT32,), (DType.FLOAT32,)),
    DType.INT8: (_BYTES, (DType.INT16,), (DType.INT32,), (DType.INT16,)),
}


def refuses_svdf(op: Op, target: Target) -> str | None:
    x, state = op.input(0), op.input(4)
    if x is None or state is None or x.dtype not in TYPES:
        return "its input's type has no kernel"
    if any(t is not None and 0 in t.shape for t in op.inputs):
        return "a tensor is empty"
    if not state.is_variable or state.is_constant:
        return "its state is not a variable"
    for tensor, types in zip(op.inputs[1:], TYPES[x.dtype], strict=True):
        if tensor is not None and tensor.dtype not in types:
            return f"a {tensor.dtype.short} operand has no kernel"
        if tensor is None or tensor is state:
            continue
        if tensor.sparsity is not None or not (tensor.is_constant or is_folded(tensor)):
            return "its weights are sparse, or computed at run time"
    fits = x.dtype is DType.FLOAT32 or attr(op, "fused_activation_function") == "RELU"
    return None if fits and _fits(op, x, state) else "its operands do not fit together"


def _fits(op: Op, x: Tensor, state: Tensor) -> bool:
    feature, time, bias = (op.input(i) for i in (1, 2, 3))
    rank = attr(op, "rank")
    if feature is None or time is None or {len(t.shape) for t in (x, feature, time)} != {2}:
        return False
    filters, memory = time.shape
    shapes = feature.shape == (filters, x.shape[1]) and rank > 0 and filters % rank == 0
    item = state.dtype.numpy.itemsize
    whole = state.nbytes == x.shape[0] * filters * memory * item
    return shapes and whole and (bias is None or bias.shape == (filters // rank,))


KERNELS = {"SVDF": Kernel(emit_svdf, refuses_svdf, plain_codes=True, changes_state=True)}
