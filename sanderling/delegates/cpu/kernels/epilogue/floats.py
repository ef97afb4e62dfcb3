"""Epilogues of float results: float32 sums, and sums of codes that become float32."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from .....ir.expr import inputs_of
from .....ops.fixed import finite_bounds
from ...codegen.bfloat import narrow
from ...codegen.emit import F32, I32, Emitter, Type, Value, vector
from ...codegen.render import render_vector
from .contract import Numbers, Output, Sums

# Low and high.
BoundValues: TypeAlias = tuple[Value, Value]


@dataclass(frozen=True)
class ConstantBounds:
    """An activation's bounds as constants of the code; an infinite one is the largest float."""

    low: float = -np.inf
    high: float = np.inf

    @property
    def name(self) -> str:
        known = {(-np.inf, np.inf): "", (0.0, np.inf): "_relu", (0.0, 6.0): "_relu6"}
        return known.get((self.low, self.high), f"_clamp{self.low:g}to{self.high:g}")

    def limits(self, e: Emitter, t: Type) -> BoundValues:
        low, high = finite_bounds((self.low, self.high))
        return e.const(t, float(low)), e.const(t, float(high))


@dataclass(frozen=True)
class FloatEpilogue:
    """float32 sums, which start with the bias. columns: bias. common: low, high (the largest finite
    values where there is no bound, as in LiteRT's kernels), unless bounds has them; NaN stays NaN.

    map: an expression of the result, applied last; its text is part of the name. Where it reads
    a second input, that is the residual, which then is not added. out_bytes: 2 for bfloat16.
    """

    residual: bool = False
    map: Any = None
    out_bytes: int = 4
    bounds: ConstantBounds | None = None

    arrays: ClassVar[int] = 1
    row_words: ClassVar[int] = 0

    @property
    def name(self) -> str:
        return ("bf16" if self.out_bytes == 2 else "f32") + self.stages

    @property
    def stages(self) -> str:
        """The name of what follows the sums."""
        bounds = "" if self.bounds is None else self.bounds.name
        return bounds + "_add" * self.residual + self.order + map_name(self.map)

    @property
    def order(self) -> str:
        """The name of an unusual order of the factors."""
        return ""

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        return numbers.column(e, 0, first, lanes, F32)

    def result(self, e: Emitter, total: Value, numbers: Numbers, first: int) -> Value:
        """What one vector of accumulators becomes."""
        return total

    def results(self, e: Emitter, sums: Sums, numbers: Numbers) -> Sequence[Value]:
        """What all accumulators become: what several share is read once."""
        return sums.values

    def limits(self, e: Emitter, numbers: Numbers, lanes: int) -> BoundValues:
        if self.bounds is not None:
            return self.bounds.limits(e, vector(F32, lanes))
        return numbers.everywhere(e, 0, lanes), numbers.everywhere(e, 1, lanes)

    def finish(
        self, e: Emitter, value: Value, beside: Sequence[Value], limits: BoundValues
    ) -> Value:
        """Residual, bounds, map, type. A bound comes first where it is compared: NaN passes
        through, as in the definition."""
        low, high = limits
        if beside and not maps_two(self.map):
            value, beside = e.b.fadd(value, beside[0]), ()
        value = e.fmin(high, e.fmax(low, value))
        if self.map is not None:
            value = render_vector(e, self.map, [value, *beside])
        return narrow(e, value) if self.out_bytes == 2 else value

    def store(self, e: Emitter, sums: Sums, numbers: Numbers, output: Output) -> None:
        values = self.results(e, sums, numbers)
        limits = self.limits(e, numbers, sums.lanes)
        for value, row, first, count in sums.stored(values):
            beside = []
            if output.residual is not None:
                beside = [e.load_part(output.beside(e, row, first, 4), value.type, count)]
            value = self.finish(e, value, beside, limits)
            e.store_part(value, output.result(e, row, first, self.out_bytes), count)


def maps_two(expression: Any) -> bool:
    return expression is not None and 1 in inputs_of(expression)


def map_name(expression: Any) -> str:
    if expression is None:
        return ""
    return "_map" + hashlib.blake2b(repr(expression).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class HybridEpilogue(FloatEpilogue):
    """Sums of codes to float32: (sum - zero[row] * total[column]) * step[row] * scale + bias.

    columns: totals of the weights, scale, bias. rows: zero point, step (a float's bits).
    scales_first: the order of the two factors, which decides the last bit, and with it codes of the
    next layer. one_row: all accumulators have the zero point and the step of one row, so that they
    start without it.
    """

    scales_first: bool = False
    one_row: bool = False

    arrays: ClassVar[int] = 3
    row_words: ClassVar[int] = 2

    @property
    def name(self) -> str:
        return "hybrid" + self.stages

    @property
    def order(self) -> str:
        return "_scales" * self.scales_first

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        if not self.one_row:
            return e.const(vector(I32, lanes), 0)
        total = numbers.column(e, 0, first, lanes, I32)
        zero = e.splat(e.load(numbers.rows, I32, 4), lanes)
        return e.b.sub(e.const(total.type, 0), e.b.mul(zero, total))

    def result(self, e: Emitter, total: Value, numbers: Numbers, first: int) -> Value:
        """What sums become that started without the zero point."""
        lanes = total.type.count
        scale, bias = (numbers.column(e, i, first, lanes, F32) for i in (1, 2))
        step = e.splat(e.load(e.at(numbers.rows, 1, F32), F32, 4), lanes)
        return self._real(e, total, scale, step, bias)

    def results(self, e: Emitter, sums: Sums, numbers: Numbers) -> Sequence[Value]:
        lanes = sums.lanes
        totals, scales, biases = (
            [numbers.column(e, i, first, lanes, t) for first in sums.firsts]
            for i, t in enumerate((I32, F32, F32))
        )
        reals = []
        for row in range(sums.rows):
            there = e.at(numbers.rows, 2 * row, I32)
            zero = e.splat(e.load(there, I32, 4), lanes)
            step = e.splat(e.load(e.at(there, 1, I32), F32, 4), lanes)
            for v in range(sums.vectors):
                total = e.b.sub(sums.values[row * sums.vectors + v], e.b.mul(zero, totals[v]))
                reals.append(self._real(e, total, scales[v], step, biases[v]))
        return reals

    def _real(self, e: Emitter, total: Value, scale: Value, step: Value, bias: Value) -> Value:
        whole = e.b.sitofp(total, scale.type)
        if self.scales_first:
            return e.b.fadd(e.b.fmul(e.b.fmul(whole, scale), step), bias)
        return e.b.fadd(e.b.fmul(whole, e.b.fmul(step, scale)), bias)


@dataclass(frozen=True)
class BlockEpilogue(HybridEpilogue):
    """Sums that cores.BlockCore has scaled to float32: sum * step[row] + bias. columns: bias."""

    arrays: ClassVar[int] = 1

    @property
    def name(self) -> str:
        return "blocks" + self.stages

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        return e.const(vector(F32, lanes), 0)

    def results(self, e: Emitter, sums: Sums, numbers: Numbers) -> Sequence[Value]:
        biases = [numbers.column(e, 0, first, sums.lanes, F32) for first in sums.firsts]
        steps = [
            e.splat(e.load(e.at(numbers.rows, 2 * row + 1, I32), F32, 4), sums.lanes)
            for row in range(sums.rows)
        ]
        return [
            e.b.fadd(e.b.fmul(value, steps[i // sums.vectors]), biases[i % sums.vectors])
            for i, value in enumerate(sums.values)
        ]
