"""The integer LSTM cells, bit by bit: 16-bit gates, and the older one with 8-bit sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..ir import Array
from .base import attr, require, scale_zero
from .fixed import (
    divide_by_pot,
    multiply,
    multiply64,
    quantize_multiplier,
    round_away,
    truncated,
    wrap32,
)
from .lstm_cell import CELL, FORGET, INPUT, OUTPUT, Cell, Step
from .lut import inverse_sqrt, logistic_fixed, sigmoid, tanh_fixed, to_int32

INT16_MAX = 2**15 - 1
Function = Callable[[Array], Array]


# advance(hidden, memory, x) brings the two states one time step on and returns the first.
Advance = Callable[[Array, Array, Array], Array]


def integer_step(cell: Cell) -> Step:
    advance, (hidden, memory) = integer_advance(cell), cell.states()
    return lambda x, aux: advance(hidden, memory, x)


def integer_advance(cell: Cell) -> Advance:
    """What the weights decide is worked out here, and not in a step.

    The number of intermediate tensors, which hold scales only, tells the kernels apart."""
    op = cell.op
    types = [
        t.dtype.short
        for t in (op.input(0), op.input(cell.at.state), op.input(cell.at.state + 1))
        if t is not None
    ]
    require(
        types == ["i8", "i8", "i16"],
        op,
        f"input and states are {', '.join(types)}",
        "an integer LSTM has int8 input and output state and int16 cell state",
    )
    recurrent = (cell.get(cell.at.recurrent(gate)) for gate in range(4))
    require(all(r is None or r.ndim == 2 for r in recurrent), op, "recurrent weights are diagonal")
    if op.name == "LSTM" and len(op.intermediates) == 12:
        return _advance8(cell)
    require(
        len(op.intermediates) == 5,
        op,
        f"{len(op.intermediates)} intermediate tensors, not 5",
        "an integer LSTM states the scales of its gates and of its hidden values",
    )
    return _advance16(cell)


# np.clip takes four times as long for a few integers.


def clip8(x: Array) -> Array:
    return np.minimum(np.maximum(x, -128), 127)


def clip16(x: Array) -> Array:
    return np.minimum(np.maximum(x, -INT16_MAX - 1), INT16_MAX)


def _limit(x: Array, limit: int) -> Array:
    """Zero means no limit."""
    return np.minimum(np.maximum(x, -limit), limit) if limit > 0 else x


def limit_code(real: float, scale: float, most: int) -> int:
    return int(min(float(np.float32(real) / np.float32(scale)), float(most)))


@dataclass(frozen=True)
class Scaled:
    """Integer weights with what brings their products to the scale of the result."""

    values: Array  # transposed, float64: products and sums are exact
    offset: Array  # bias and zero point together
    multiplier: Array
    shift: Array

    @classmethod
    def of(cls, weights: Array, bias: Array | None, zero: int, real: np.float32) -> Scaled:
        values = weights.T.astype(np.float64)
        offset = -zero * values.sum(axis=0).astype(np.int64)
        return cls(values, offset if bias is None else offset + bias, *quantize_multiplier(real))

    def __call__(self, x: Array) -> Array:
        total = (x.astype(np.float64) @ self.values).astype(np.int64) + self.offset
        return multiply(wrap32(total), self.multiplier, self.shift)


def _parts(
    cell: Cell, gate: int, bias: Array | None, x_scale: np.float32, hidden_scale: np.float32
) -> tuple[Scaled, Scaled]:
    """Products with the input and the output state; effective scales are made in float32."""
    op, at = cell.op, cell.at
    (x_real, x_zero), (h_real, h_zero) = (scale_zero(op.input(k)) for k in (0, at.state))
    x_effective = cell.scale(at.input(gate)) * np.float32(x_real) / x_scale
    h_effective = cell.scale(at.recurrent(gate)) * np.float32(h_real) / hidden_scale
    return (
        Scaled.of(cell.need(at.input(gate)), bias, x_zero, x_effective),
        Scaled.of(cell.need(at.recurrent(gate)), None, h_zero, h_effective),
    )


# -- 16-bit gates -------------------------------------------------------------------------------


def _advance16(cell: Cell) -> Advance:
    op, gates = cell.op, {gate: Gate16.of(cell, gate) for gate in cell.gates}
    exponent, finish = cell_exponent(cell), Finish.of(cell)
    limit = limit_code(attr(op, "cell_clip"), float(cell.scale(cell.at.state + 1)), INT16_MAX)

    def advance(hidden: Array, memory: Array, x: Array) -> Array:
        before = memory.astype(np.int64)
        forget = logistic_fixed(gates[FORGET](x, hidden, before), 3)
        admit = INT16_MAX - forget
        if INPUT in gates:
            admit = logistic_fixed(gates[INPUT](x, hidden, before), 3)
        update = tanh_fixed(gates[CELL](x, hidden, before), 3)
        after = divide_by_pot(forget * before, 15) + divide_by_pot(admit * update, 30 + exponent)
        after = _limit(clip16(after), limit)
        emit = logistic_fixed(gates[OUTPUT](x, hidden, after), 3)
        memory[...] = after
        hidden[...] = finish(emit * tanh_fixed(after, 15 + exponent))
        return hidden

    return advance


def cell_exponent(cell: Cell) -> int:
    """The cell state's scale is a power of two."""
    log2 = float(np.log2(float(cell.scale(cell.at.state + 1))))
    exponent = round(log2) if np.isfinite(log2) else 0
    fits = abs(log2 - exponent) < 1e-3 and -15 <= exponent <= -9
    require(fits, cell.op, "the cell state's scale is not a power of two from 2**-15 to 2**-9")
    return exponent


@dataclass(frozen=True)
class Finish:
    """From gate * tanh(cell), with 30 fractional bits, to the output's codes."""

    multiplier: Array
    shift: Array
    zero: int
    project: Scaled | None
    state_zero: int
    limit: int

    @classmethod
    def of(cls, cell: Cell) -> Finish:
        op, at = cell.op, cell.at
        hidden_scale, zero = scale_zero(op.intermediates[4])
        to_hidden = quantize_multiplier(np.float32(2.0**-15 / hidden_scale * 2.0**-15))
        weights = cell.get(at.projection)
        if weights is None:
            return cls(*to_hidden, zero, None, 0, 0)
        state_scale, state_zero = scale_zero(op.input(at.state))
        real = cell.scale(at.projection) * np.float32(hidden_scale) / np.float32(state_scale)
        # With a projection the kernel subtracts the zero point, and adds it back in the bias.
        project = Scaled.of(weights, cell.get(at.projection + 1), -zero, real)
        limit = limit_code(attr(op, "proj_clip"), scale_zero(op.outputs[0])[0], 127)
        return cls(*to_hidden, -zero, project, state_zero, limit)

    def __call__(self, x: Array) -> Array:
        codes = clip8(multiply(x, self.multiplier, self.shift) + self.zero)
        if self.project is None:
            return codes
        return _limit(clip8(self.project(codes) + self.state_zero), self.limit)


@dataclass(frozen=True)
class Gate16:
    input: Scaled
    recurrent: Scaled
    peephole: Peephole | None
    norm: Norm | None

    @classmethod
    def of(cls, cell: Cell, gate: int) -> Gate16:
        at, bias = cell.at, cell.need(cell.at.bias(gate)).astype(np.int64)
        weights = cell.get(at.norm_of(gate))
        if weights is None:
            target, norm = np.float32(2.0**-12), None
        else:
            target = np.float32(scale_zero(cell.op.intermediates[gate])[0])
            norm = Norm(weights.astype(np.int64), bias, cell.scale(at.norm_of(gate)))
        parts = _parts(cell, gate, bias if norm is None else None, target, target)
        return cls(*parts, Peephole.of(cell, gate, target), norm)

    def __call__(self, x: Array, hidden: Array, memory: Array) -> Array:
        total = clip16(self.input(x))
        total = clip16(self.recurrent(hidden) + total)
        if self.peephole is not None:
            total = clip16(self.peephole(memory) + total)
        return total if self.norm is None else self.norm(total)


@dataclass(frozen=True)
class Peephole:
    """What a gate sees of the cell state: factors [rows, cells] for as many rows at a time."""

    factors: Array
    multiplier: Array
    shift: Array

    @classmethod
    def of(cls, cell: Cell, gate: int, target: np.float32) -> Peephole | None:
        op, index = cell.op, cell.at.peephole(gate)
        weights = cell.get(index)
        if weights is None:
            return None
        real = 2.0 ** cell_exponent(cell) * float(cell.scale(index)) / float(target)
        require(cell.outputs <= cell.cells, op, "peepholes with more outputs than cells")
        # The kernel takes the number of outputs for the number of cells. With a projection it so
        # touches the first rows * outputs of the rows * cells values, weighted in turns, where rows
        # is what it handles at a time: the batch, or one entry of it in the batch-major order.
        rows = cell.batch if op.name == "LSTM" or attr(op, "time_major") else 1
        spread = np.zeros(rows * cell.cells, np.int64)
        spread[: rows * cell.outputs] = np.tile(weights[: cell.outputs], rows)
        return cls(spread.reshape(rows, cell.cells), *quantize_multiplier(np.float32(real)))

    def __call__(self, memory: Array) -> Array:
        return multiply(memory * self.factors, self.multiplier, self.shift)


@dataclass(frozen=True)
class Norm:
    """Layer normalisation of a 16-bit gate."""

    weights: Array
    bias: Array
    scale: np.float32

    def __call__(self, x: Array) -> Array:
        count = x.shape[-1]
        mean = truncated(x.sum(axis=-1, keepdims=True) * 1024, count)
        squares = (x * x).sum(axis=-1, keepdims=True)
        # 2**20 // count is exact for powers of two only, and so is the variance.
        variance = truncated(squares * (2**20 // count) - mean * mean, 2**20)
        guard = max(1, int(np.float32(10000) * self.scale))
        inverse, right = inverse_sqrt(np.where(variance < 1, guard, variance))
        rescaled = multiply(wrap32(1024 * x - mean), inverse, -right)
        weighted = wrap32(rescaled * self.weights + self.bias)
        rounded = truncated(np.where(weighted > 0, weighted + 512, weighted - 512), 1024)
        multiplier, left = quantize_multiplier(self.scale)
        return clip16(multiply(rounded, multiplier, left + 12))


# -- gates summed from 8-bit parts, then float functions ----------------------------------------


def _advance8(cell: Cell) -> Advance:
    gates = {gate: Gate8.of(cell, gate) for gate in GATES8}
    finish = Finish8.of(cell)

    def advance(hidden: Array, memory: Array, x: Array) -> Array:
        forget = through_float(gates[FORGET](x, hidden), 12, sigmoid)
        update = through_float(gates[CELL](x, hidden), 12, np.tanh)
        kept = divide_by_pot(forget * memory, 15)
        after = clip16(kept + divide_by_pot((INT16_MAX - forget) * update, 15))
        memory[...] = after = _limit(after, finish.cell_limit)
        emit = through_float(gates[OUTPUT](x, hidden), 12, sigmoid)
        product = divide_by_pot(emit * through_float(after, 15, np.tanh), 15)
        hidden[...] = finish(product)
        return hidden

    return advance


GATES8 = (FORGET, CELL, OUTPUT)  # no input gate; layer norm and projection are required


@dataclass(frozen=True)
class Finish8:
    """The projection of 16-bit products to the output's codes, and the limits of both states."""

    weights: Array
    bias: Array
    multiplier: Array
    shift: Array
    zero: int
    limit: int
    cell_limit: int

    @classmethod
    def of(cls, cell: Cell) -> Finish8:
        op, at = cell.op, cell.at
        require(cell_exponent(cell) == -15, op, "the cell state's scale is not 2**-15")
        scale, zero = scale_zero(op.input(at.state))
        real = np.float32(float(cell.scale(at.projection)) * 2.0**-15 / scale)
        clip = attr(op, "cell_clip")
        cell_limit = limit_code(clip, 2.0**-15, INT16_MAX) if clip < 1 else 0
        limit = limit_code(attr(op, "proj_clip"), scale_zero(op.outputs[0])[0], 127)
        return cls(
            cell.need(at.projection),
            cell.need(at.projection + 1),
            *quantize_multiplier(real),
            zero,
            limit,
            cell_limit,
        )

    def __call__(self, product: Array) -> Array:
        sums = product.astype(np.float64) @ self.weights.T.astype(np.float64)
        total = multiply64(sums.astype(np.int64) + self.bias, self.multiplier, self.shift)
        return _limit(clip8(total + self.zero), self.limit)


def through_float(x: Array, bits: int, function: Function) -> Array:
    """A function of 16-bit numbers with this many fractional bits, truncated to 15 of them: from a
    table."""
    found: Array = every_word(bits, function)[x + 2**15]
    return found


@cache
def every_word(bits: int, function: Function) -> Array:
    real = (np.arange(-(2**15), 2**15) * 2.0**-bits).astype(np.float32).astype(np.float64)
    found = function(real).astype(np.float32) * np.float32(2**15)
    return clip16(found.astype(np.int64))


@dataclass(frozen=True)
class Part8:
    """A product as 8-bit codes, and what brings their values to the scale of the sum."""

    product: Scaled
    zero: int
    multiplier: Array
    shift: Array

    def __call__(self, x: Array) -> Array:
        code = clip8(self.product(x) + self.zero)
        return multiply(code - self.zero, self.multiplier, self.shift)


@dataclass(frozen=True)
class Gate8:
    input: Part8
    recurrent: Part8
    norm: FloatNorm

    @classmethod
    def of(cls, cell: Cell, gate: int) -> Gate8:
        """Three intermediate tensors a gate state scale and zero point: the sum and its two
        parts."""
        between = cell.op.intermediates[3 * gate : 3 * gate + 3]
        (total, _), *parts = (scale_zero(t) for t in between)
        scales = [np.float32(scale) for scale, _ in parts]
        shares = [quantize_multiplier(scale / np.float32(total)) for scale in scales]
        # LiteRT reads the output gate's second multiplier beyond its table, where a small number
        # stands: the product is always zero.
        if gate == OUTPUT:
            shares[1] = quantize_multiplier(0.0)
        rows = zip(_parts(cell, gate, None, *scales), parts, shares, strict=True)
        to_x, to_h = (Part8(product, zero, *share) for product, (_, zero), share in rows)
        return cls(to_x, to_h, FloatNorm.of(cell, gate))

    def __call__(self, x: Array, hidden: Array) -> Array:
        return self.norm(clip16(self.input(x) + self.recurrent(hidden)))


@dataclass(frozen=True)
class FloatNorm:
    """Layer normalisation of a 16-bit gate in float32."""

    weights: Array
    scale: np.float32
    bias: Array  # in units of the result

    @classmethod
    def of(cls, cell: Cell, gate: int) -> FloatNorm:
        at = cell.at
        multiplier, shift = quantize_multiplier(cell.scale(at.norm_of(gate)))
        scale = np.float32(multiplier * 2.0 ** (float(shift) - 31))
        bias = cell.need(at.bias(gate)).astype(np.float32) * (np.float32(2.0**-10) * scale)
        return cls(cell.need(at.norm_of(gate)).astype(np.float32), scale, bias)

    def __call__(self, x: Array) -> Array:
        real, count = x.astype(np.float32), np.float32(x.shape[-1])
        # The kernel's sums run from left to right in float32: so does cumsum.
        mean = np.cumsum(real, axis=-1, dtype=np.float32)[:, -1:] / count
        squares = np.cumsum(real * real, axis=-1, dtype=np.float32)[:, -1:]
        variance = squares / count - mean * mean
        variance = np.where(variance == 0, np.float32(1e-8), variance)
        normal = (real - mean) * (np.float32(1) / np.sqrt(variance))
        out = normal * self.weights * self.scale + self.bias
        return clip16(to_int32(round_away(out * np.float32(2**12))))
