"""What becomes of the sums of a depthwise convolution: scale, residual, bounds, function, codes.

A block of channels has numbers in its params: arrays of 32-bit words in the order of the
accumulators, one after the other, and behind them what holds for the whole step.

    Floats   float32 sums: one array, the bias (the sums start with it)
    Hybrid   sums of codes to float32: totals of the weights, scales, biases; the zero point and the
             step of the activations are the picture's, in a table
    Codes    sums of codes to codes: bias, the rounding's numbers (rounding.Rescale); then the
             bounds and the zero point
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .....ir import Array
from ...codegen.bfloat import narrow
from ...codegen.emit import F32, I32, Emitter, Type, Value, vector
from ...codegen.render import render_vector
from ...codegen.rounding import Rounding, load_factors, rescaled
from ..products.epilogues import maps_two


@dataclass(frozen=True)
class Params:
    """block: the numbers of a block of channels; table: zero point and step of the picture."""

    block: Value
    table: Value


class Ends(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def out_item(self) -> int: ...  # bytes of a result
    @property
    def residual(self) -> bool: ...  # a tensor is added
    def words(self, channels: int) -> int: ...  # of a block's params
    def start(self, e: Emitter, params: Params, place: int, lanes: int) -> Value: ...


@dataclass(frozen=True)
class Floats:
    """Bounds, and what fold.py tells: a tensor that is added, an expression."""

    low: float = -np.inf
    high: float = np.inf
    residual: bool = False
    map: Any = None
    out_item: int = 4  # 2: bfloat16

    @property
    def name(self) -> str:
        bounds = {(-np.inf, np.inf): "", (0.0, np.inf): "_relu", (0.0, 6.0): "_relu6"}
        act = bounds.get((self.low, self.high), f"_clamp{self.low:g}to{self.high:g}")
        kind = "_bf16" * (self.out_item == 2)
        return kind + act + "_add" * self.residual + self._map_name

    @property
    def _map_name(self) -> str:
        if self.map is None:
            return ""
        return "_map" + hashlib.blake2b(repr(self.map).encode(), digest_size=6).hexdigest()

    def words(self, channels: int) -> int:
        return channels

    def start(self, e: Emitter, params: Params, place: int, lanes: int) -> Value:
        return e.load(e.at(params.block, place, F32), vector(F32, lanes), 4)

    def apply(self, e: Emitter, value: Value, others: Sequence[Value]) -> Value:
        """Constants first: NaN passes through, as in the definition."""
        if others and not maps_two(self.map):
            value, others = e.b.fadd(value, others[0]), ()
        if self.low > -np.inf:
            value = e.fmax(e.const(value.type, self.low), value)
        if self.high < np.inf:
            value = e.fmin(e.const(value.type, self.high), value)
        if self.map is not None:
            value = render_vector(e, self.map, [value, *others])
        return narrow(e, value) if self.out_item == 2 else value


@dataclass(frozen=True)
class Hybrid(Floats):
    @property
    def name(self) -> str:
        return "_hybrid" + super().name

    def words(self, channels: int) -> int:
        return 3 * channels

    def start(self, e: Emitter, params: Params, place: int, lanes: int) -> Value:
        total = e.load(e.at(params.block, place, I32), vector(I32, lanes), 4)
        zero = e.splat(e.load(params.table, I32, 4), lanes)
        return e.b.sub(e.const(total.type, 0), e.b.mul(zero, total))

    def real(self, e: Emitter, acc: Value, place: int, channels: int, params: Params) -> Value:
        """The order of operations decides the last bit, and with it codes of the next layer."""
        t = vector(F32, acc.type.count)
        scale, bias = (e.load(e.at(params.block, i * channels + place, F32), t, 4) for i in (1, 2))
        step = e.splat(e.load(e.at(params.table, 1, F32), F32, 4), t.count)
        return e.b.fadd(e.b.fmul(e.b.sitofp(acc, t), e.b.fmul(step, scale)), bias)


@dataclass(frozen=True)
class Codes:
    """bounded: results are known to stay in 32 bits, and saturation does the rest. clamp: the
    activation's bounds are narrower than the type's."""

    bounded: bool = True
    clamp: bool = False
    out_item: int = 1
    rounding: Rounding = Rounding.FIXED_AWAY
    residual: bool = False

    @property
    def name(self) -> str:
        return "_far" * (not self.bounded) + "_clamp" * self.clamp + self.rounding.value

    def words(self, channels: int) -> int:
        return self._behind(channels) + 16

    def _behind(self, channels: int) -> int:
        """Where the arrays end."""
        return (1 + self.rounding.arrays) * channels

    def start(self, e: Emitter, params: Params, place: int, lanes: int) -> Value:
        return e.load(e.at(params.block, place, I32), vector(I32, lanes), 4)

    def whole(self, e: Emitter, acc: Value, place: int, channels: int, params: Params) -> Value:
        """acc * scale + zero point, rounded, as int32."""
        lanes = acc.type.count
        numbers = e.at(params.block, channels, I32)
        factors = load_factors(e, self.rounding, numbers, channels, place, lanes)
        ends = [e.const(acc.type, end) for end in (-(1 << 20), 1 << 20)]
        found = rescaled(e, self.rounding, acc, factors, None if self.bounded else ends)
        if self.rounding.has_zero:
            return found
        return e.b.add(found, e.splat(self._tail(e, params, channels, 2), lanes))

    def _tail(self, e: Emitter, params: Params, channels: int, word: int) -> Value:
        return e.load(e.at(params.block, self._behind(channels) + word, I32), I32, 4)

    def tail(self, zero: int, low: int, high: int) -> Array:
        """What lies behind the scales: the codes' bounds, the zero point."""
        values = np.zeros(16, np.int32)
        values[:3] = low, high, zero
        return values

    def bounds(self, e: Emitter, params: Params, channels: int, t: Type) -> tuple[Value, Value]:
        found = []
        for i in (0, 1):
            scalar = self._tail(e, params, channels, i)
            scalar = scalar if t.element == I32 else e.b.trunc(scalar, t.element)
            found.append(e.splat(scalar, t.count))
        return found[0], found[1]
