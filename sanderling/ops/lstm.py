"""LSTM: float, hybrid (8-bit weights, float activations) and integer cells, in three operators.

A cell has four gates, in the file's order: input, forget, cell, output. Without the input gate
(CIFG) the cell uses 1 - forget. State tensors are variables, changed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..ir import Array, Op, Shape
from .base import (
    Arrays, Spec, Specs, attr, define, elements, out_spec, present, require, scale_zero,
)  # fmt: skip
from .fixed import (
    divide_by_pot, high_mul, multiply, multiply64, quantize_multiplier, round_away, wrap32,
)  # fmt: skip
from .lut import inverse_sqrt, logistic_fixed, shift_left, tanh_fixed, to_int32
from .sequence import (
    Matrix, Rows, activate, matrix, merge, needed, scan, signed, stacked_inputs, state_view,
    swap_time, two_outputs, weight_macs,
)  # fmt: skip

INPUT, FORGET, CELL, OUTPUT = range(4)
INT16_MIN, INT16_MAX = -(2**15), 2**15 - 1
# step(x, aux, t) advances one cell by one time step and returns its output.
Step = Callable[[Array, "Array | None"], Array]


@dataclass(frozen=True)
class Places:
    """Where one cell's operands stand among the op's inputs."""

    weights: int  # input weights (4), recurrent (4), peephole (3), biases (4), projection, its bias
    state: int  # output state, cell state
    norm: int | None = None  # layer norm coefficients (4)
    aux: int | None = None  # auxiliary weights (4)

    def input(self, gate: int) -> int:
        return self.weights + gate

    def recurrent(self, gate: int) -> int:
        return self.weights + 4 + gate

    def peephole(self, gate: int) -> int:
        return self.weights + 8 + (2 if gate == OUTPUT else gate)

    def bias(self, gate: int) -> int:
        return self.weights + 11 + gate

    @property
    def projection(self) -> int:
        return self.weights + 15


ONE_CELL = Places(1, 18, norm=20)
FORWARD, BACKWARD = Places(1, 35, aux=40), Places(18, 37, aux=44)


@dataclass(frozen=True)
class Sizes:
    batch: int
    depth: int
    cells: int
    outputs: int


def _at(inputs: Arrays, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _gates(inputs: Arrays, at: Places) -> tuple[int, ...]:
    return (FORGET, CELL, OUTPUT) if _at(inputs, at.input(INPUT)) is None else (INPUT, FORGET, CELL, OUTPUT)  # fmt: skip


def _sizes(op: Op, inputs: Arrays, at: Places, x: Array, aux: Array | None) -> Sizes:
    """The cell's sizes; every operand is checked against them."""
    w, r = needed(op, inputs, at.input(OUTPUT)), needed(op, inputs, at.recurrent(OUTPUT))
    require(
        w.ndim == 2 and 1 <= r.ndim <= 2, op, f"weights {w.shape} and {r.shape} are no matrices"
    )
    size = Sizes(x.shape[1], x.shape[2], w.shape[0], r.shape[-1])
    projection = _at(inputs, at.projection)
    wanted = [(at.projection, (size.outputs, size.cells)), (at.projection + 1, (size.outputs,))]
    for gate in _gates(inputs, at):
        recurrent = needed(op, inputs, at.recurrent(gate))
        matrix_shape = (size.cells, size.outputs)
        wanted += [(at.input(gate), (size.cells, size.depth)), (at.bias(gate), (size.cells,)),
                   (at.recurrent(gate), matrix_shape if recurrent.ndim == 2 else (size.cells,))]  # fmt: skip
        if gate != CELL:
            wanted.append((at.peephole(gate), (size.cells,)))
        if at.norm is not None:
            wanted.append((at.norm + gate, (size.cells,)))
        if at.aux is not None and aux is not None:
            wanted.append((at.aux + gate, (size.cells, aux.shape[2])))
        needed(op, inputs, at.input(gate)), needed(op, inputs, at.bias(gate))
    for index, shape in wanted:
        array = _at(inputs, index)
        require(array is None or array.shape == shape, op,
                f"input {index} has the shape {None if array is None else array.shape}, not {shape}")  # fmt: skip
    require(projection is not None or size.cells == size.outputs, op,
            f"{size.cells} cells make {size.outputs} outputs without a projection")  # fmt: skip
    require(attr(op, "cell_clip") >= 0 and attr(op, "proj_clip") >= 0, op, "a clip is negative")
    return size


# -- float and hybrid ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Gate:
    """One gate's operands; what the model leaves out is None."""

    input: Matrix
    recurrent: Matrix
    aux: Matrix | None
    peephole: Array | None
    norm: Array | None
    bias: Array

    def __call__(self, x: Rows, aux: Rows | None, hidden: Rows, cell: Array) -> Array:
        total = x @ self.input
        total = total if self.norm is not None else self.bias + total
        if aux is not None and self.aux is not None:
            total = total + (aux @ self.aux)
        total = total + (hidden @ self.recurrent)
        if self.peephole is not None:
            total = total + self.peephole * cell
        if self.norm is not None:
            total = _normalize(total) * self.norm + self.bias
        return total


def _normalize(x: Array) -> Array:
    """Mean 0 and deviation 1 along each row."""
    count = np.float32(x.shape[-1])
    centred = x - x.sum(axis=-1, keepdims=True) / count
    variance = (centred * centred).sum(axis=-1, keepdims=True) / count
    return centred * (np.float32(1) / np.sqrt(variance + np.float32(1e-8)))


def _sigmoid(x: Array) -> Array:
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def _clip(x: Array, limit: float) -> Array:
    """Zero means no limit."""
    return np.clip(x, -np.float32(limit), np.float32(limit)) if limit > 0 else x


def _gate(op: Op, inputs: Arrays, at: Places, gate: int) -> Gate:
    def weight(index: int) -> Matrix | None:
        return matrix(op.input(index), _at(inputs, index))

    to_input, to_state = weight(at.input(gate)), weight(at.recurrent(gate))
    assert to_input is not None and to_state is not None
    peephole = None if gate == CELL else _at(inputs, at.peephole(gate))
    if peephole is not None and peephole.dtype.kind != "f":
        scale, _ = scale_zero(op.input(at.peephole(gate)))
        peephole = np.float32(scale) * signed(peephole)
    return Gate(to_input, to_state, None if at.aux is None else weight(at.aux + gate), peephole,
                None if at.norm is None else _at(inputs, at.norm + gate),
                needed(op, inputs, at.bias(gate)))  # fmt: skip


def _float_step(op: Op, inputs: Arrays, at: Places, size: Sizes) -> Step:
    gates = {gate: _gate(op, inputs, at, gate) for gate in _gates(inputs, at)}
    state = state_view(op, inputs, at.state, (size.batch, size.outputs))
    cell = state_view(op, inputs, at.state + 1, (size.batch, size.cells))
    projection = matrix(op.input(at.projection), _at(inputs, at.projection))
    bias = _at(inputs, at.projection + 1)
    # NONE is the identity here. LiteRT then leaves a scratch buffer unwritten and reads it.
    name, asymmetric = attr(op, "fused_activation_function"), attr(op, "asymmetric_quantize_inputs")

    def step(x: Array, aux: Array | None) -> Array:
        rows = Rows(x, asymmetric), None if aux is None else Rows(aux, asymmetric), Rows(state, asymmetric)  # fmt: skip
        forget = _sigmoid(gates[FORGET](*rows, cell))
        admit = _sigmoid(gates[INPUT](*rows, cell)) if INPUT in gates else np.float32(1) - forget
        update = activate(name, op, gates[CELL](*rows, cell))
        cell[...] = _clip(forget * cell + update * admit, attr(op, "cell_clip"))
        hidden = _sigmoid(gates[OUTPUT](*rows, cell)) * activate(name, op, cell)
        if projection is not None:
            hidden = (np.float32(0) if bias is None else bias) + (
                Rows(hidden, asymmetric) @ projection
            )
            hidden = _clip(hidden, attr(op, "proj_clip"))
        state[...] = hidden
        return state

    return step


# -- integer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaled:
    """Integer weights with what brings their products to the gate's scale."""

    values: Array  # transposed, float64: products and sums are exact
    offset: Array | int  # bias and zero point together
    multiplier: Array
    shift: Array

    def __call__(self, x: Array) -> Array:
        total = (x.astype(np.float64) @ self.values).astype(np.int64) + self.offset
        return multiply(wrap32(total), self.multiplier, self.shift)


def _scaled(weights: Array, bias: Array | None, zero: int, real: np.float32) -> Scaled:
    values = weights.T.astype(np.float64)
    offset = -zero * values.sum(axis=0).astype(np.int64) + (0 if bias is None else bias)
    return Scaled(values, offset, *quantize_multiplier(real))


@dataclass(frozen=True)
class Norm:
    """Layer normalisation of an int16 gate."""

    weights: Array
    bias: Array
    scale: np.float32

    def __call__(self, x: Array) -> Array:
        count = x.shape[-1]
        mean = _truncated(x.sum(axis=-1, keepdims=True) * 1024, count)
        squares = (x * x).sum(axis=-1, keepdims=True)
        # 2**20 // count is exact for powers of two only, and so is the variance.
        variance = _truncated(squares * (2**20 // count) - mean * mean, 2**20)
        guard = max(1, int(np.float32(10000) * self.scale))
        inverse, shift = inverse_sqrt(np.where(variance < 1, guard, variance))
        rescaled = multiply(wrap32(1024 * x - mean), inverse, -shift)
        weighted = wrap32(rescaled * self.weights + self.bias)
        rounded = _truncated(np.where(weighted > 0, weighted + 512, weighted - 512), 1024)
        multiplier, left = quantize_multiplier(self.scale)
        return _clip16(multiply(rounded, multiplier, left + 12))


def _truncated(x: Array, by: int) -> Array:
    """Integer division toward zero, as C does it."""
    quotient = np.abs(x) // by
    return np.where(x < 0, -quotient, quotient)


def _clip16(x: Array) -> Array:
    return np.clip(x, INT16_MIN, INT16_MAX)


@dataclass(frozen=True)
class IntegerGate:
    input: Scaled
    recurrent: Scaled
    peephole: Callable[[Array], Array] | None
    norm: Norm | None

    def __call__(self, x: Array, hidden: Array, cell: Array) -> Array:
        total = _clip16(self.input(x))
        total = _clip16(self.recurrent(hidden) + total)
        if self.peephole is not None:
            total = _clip16(self.peephole(cell) + total)
        return total if self.norm is None else self.norm(total)


def _scale(op: Op, index: int) -> np.float32:
    return np.float32(scale_zero(op.input(index))[0])


def _integer_gate(op: Op, inputs: Arrays, at: Places, gate: int, size: Sizes) -> IntegerGate:
    """Effective scales are computed in float32, as the kernel does."""
    assert at.norm is not None
    norm_weights, bias = _at(inputs, at.norm + gate), needed(op, inputs, at.bias(gate))
    target = np.float32(2.0**-12)
    norm = None
    if norm_weights is not None:
        target = np.float32(scale_zero(op.intermediates[gate])[0])
        norm = Norm(
            norm_weights.astype(np.int64), bias.astype(np.int64), _scale(op, at.norm + gate)
        )
    (input_scale, input_zero), (state_scale, state_zero) = scale_zero(op.input(0)), scale_zero(op.input(at.state))  # fmt: skip
    w, r = needed(op, inputs, at.input(gate)), needed(op, inputs, at.recurrent(gate))
    require(r.ndim == 2, op, "diagonal recurrent weights are for the float kernel only")
    return IntegerGate(
        _scaled(w, bias if norm is None else None, input_zero,
                _scale(op, at.input(gate)) * np.float32(input_scale) / target),
        _scaled(r, None, state_zero,
                _scale(op, at.recurrent(gate)) * np.float32(state_scale) / target),
        _integer_peephole(op, inputs, at, gate, target, size), norm,
    )  # fmt: skip


def _integer_peephole(op: Op, inputs: Arrays, at: Places, gate: int, target: np.float32,
                      size: Sizes) -> Callable[[Array], Array] | None:  # fmt: skip
    weights = None if gate == CELL else _at(inputs, at.peephole(gate))
    if weights is None:
        return None
    real = 2.0 ** _cell_exponent(op, at) * float(_scale(op, at.peephole(gate))) / float(target)
    multiplier, shift = quantize_multiplier(np.float32(real))
    require(size.outputs <= size.cells, op, "peepholes with more outputs than cells")
    # The kernel takes the number of outputs for the number of cells. With a projection it so
    # touches the first rows * outputs of the rows * cells values, weighted in turns, where rows
    # is what it handles at a time: the batch, or one entry of it in the batch-major order.
    rows = size.batch if op.name == "LSTM" or attr(op, "time_major") else 1
    spread = np.zeros(rows * size.cells, np.int64)
    spread[: rows * size.outputs] = np.tile(weights[: size.outputs], rows)
    spread = spread.reshape(rows, size.cells)
    return lambda cell: multiply(cell * spread, multiplier, shift)


def _cell_exponent(op: Op, at: Places) -> int:
    """The cell state's scale is a power of two."""
    log2 = np.log2(float(_scale(op, at.state + 1)))
    exponent = int(np.rint(log2)) if np.isfinite(log2) else 0
    require(abs(log2 - exponent) < 1e-3 and -15 <= exponent <= -9, op,
            "the cell state's scale is not a power of two from 2**-15 to 2**-9")  # fmt: skip
    return exponent


def _quantized_clip(op: Op, name: str, scale: float, most: int) -> int:
    """The clip in codes; zero means none."""
    return int(min(np.float32(attr(op, name)) / np.float32(scale), np.float32(most)))


def _integer_step(op: Op, inputs: Arrays, at: Places, size: Sizes) -> Step:
    """8-bit operands, 16-bit gates and cell state."""
    if op.name == "LSTM" and len(op.intermediates) == 12:
        return _integer8_step(op, inputs, at, size)
    require(len(op.intermediates) == 5, op, f"{len(op.intermediates)} intermediate tensors, not 5",
            "an integer LSTM states the scales of its gates and of its hidden values")  # fmt: skip
    gates = {gate: _integer_gate(op, inputs, at, gate, size) for gate in _gates(inputs, at)}
    state = state_view(op, inputs, at.state, (size.batch, size.outputs))
    cell = state_view(op, inputs, at.state + 1, (size.batch, size.cells))
    exponent = _cell_exponent(op, at)
    finish = _integer_output(op, inputs, at)
    limit = _quantized_clip(op, "cell_clip", scale_zero(op.input(at.state + 1))[0], INT16_MAX)

    def step(x: Array, aux: Array | None) -> Array:
        before = cell.astype(np.int64)
        forget = logistic_fixed(gates[FORGET](x, state, before), 3)
        admit = logistic_fixed(gates[INPUT](x, state, before), 3) if INPUT in gates else INT16_MAX - forget  # fmt: skip
        update = tanh_fixed(gates[CELL](x, state, before), 3)
        after = divide_by_pot(forget * before, 15) + divide_by_pot(admit * update, 30 + exponent)
        after = _clip16(after)
        after = np.clip(after, -limit, limit) if limit > 0 else after
        cell[...] = after
        gate = logistic_fixed(gates[OUTPUT](x, state, after), 3)
        state[...] = finish(gate * tanh_fixed(after, 15 + exponent))
        return state

    return step


def _integer_output(op: Op, inputs: Arrays, at: Places) -> Callable[[Array], Array]:
    """From gate * tanh(cell), with 30 fractional bits, to the output's codes."""
    hidden_scale, hidden_zero = scale_zero(op.intermediates[4])
    to_hidden = quantize_multiplier(np.float32(2.0**-15 / hidden_scale * 2.0**-15))
    weights = _at(inputs, at.projection)
    if weights is None:
        return lambda x: np.clip(multiply(x, *to_hidden) + hidden_zero, -128, 127)
    state_scale, state_zero = scale_zero(op.input(at.state))
    real = _scale(op, at.projection) * np.float32(hidden_scale) / np.float32(state_scale)
    # The kernel subtracts the hidden zero point here, and adds it back in the bias.
    project = _scaled(weights, _at(inputs, at.projection + 1), -hidden_zero, real)
    limit = _quantized_clip(op, "proj_clip", scale_zero(op.outputs[0])[0], 127)

    def finish(x: Array) -> Array:
        hidden = np.clip(multiply(x, *to_hidden) - hidden_zero, -128, 127)
        out = np.clip(project(hidden) + state_zero, -128, 127)
        return np.clip(out, -limit, limit) if limit > 0 else out

    return finish


# -- integer, with gates summed from 8-bit parts --------------------------------------------------


def _integer8_step(op: Op, inputs: Arrays, at: Places, size: Sizes) -> Step:
    """The older integer cell: no input gate, layer norm and projection required, float functions."""
    gates = {gate: _integer8_gate(op, inputs, at, gate) for gate in (FORGET, CELL, OUTPUT)}
    state = state_view(op, inputs, at.state, (size.batch, size.outputs))
    cell = state_view(op, inputs, at.state + 1, (size.batch, size.cells))
    require(_cell_exponent(op, at) == -15, op, "the cell state's scale is not 2**-15")
    weights, bias = needed(op, inputs, at.projection), needed(op, inputs, at.projection + 1)
    state_scale, state_zero = scale_zero(op.input(at.state))
    real = np.float32(float(_scale(op, at.projection)) * 2.0**-15 / state_scale)
    to_output = quantize_multiplier(real)
    clip = attr(op, "cell_clip")
    cell_limit = int(min(np.float32(clip) * 32768, 32767)) if clip < 1 else 0
    limit = _quantized_clip(op, "proj_clip", scale_zero(op.outputs[0])[0], 127)

    def step(x: Array, aux: Array | None) -> Array:
        forget = _through_float(gates[FORGET](x, state), 12, _sigmoid)
        update = _through_float(gates[CELL](x, state), 12, np.tanh)
        after = divide_by_pot(forget * cell, 15) + divide_by_pot((INT16_MAX - forget) * update, 15)
        after = _clip16(after)
        after = np.clip(after, -cell_limit, cell_limit) if cell_limit > 0 else after
        cell[...] = after
        gate = _through_float(gates[OUTPUT](x, state), 12, _sigmoid)
        hidden = divide_by_pot(gate * _through_float(after, 15, np.tanh), 15)
        total = (hidden.astype(np.float64) @ weights.T.astype(np.float64)).astype(np.int64) + bias
        out = np.clip(multiply64(total, *to_output) + state_zero, -128, 127)
        state[...] = np.clip(out, -limit, limit) if limit > 0 else out
        return state

    return step


def _through_float(x: Array, bits: int, function: Callable[[Array], Array]) -> Array:
    """A function of numbers with this many fractional bits, truncated to 15 of them."""
    real = (x * 2.0**-bits).astype(np.float32).astype(np.float64)
    found = function(real).astype(np.float32) * np.float32(2**15)
    return _clip16(found.astype(np.int64))


def _integer8_gate(
    op: Op, inputs: Arrays, at: Places, gate: int
) -> Callable[[Array, Array], Array]:
    """Three intermediate tensors a gate state scale and zero point: the sum and its two parts."""
    assert at.norm is not None
    (total, _), (x_scale, x_zero), (h_scale, h_zero) = (
        scale_zero(t) for t in op.intermediates[3 * gate : 3 * gate + 3]
    )
    (input_scale, input_zero), (state_scale, state_zero) = scale_zero(op.input(0)), scale_zero(op.input(at.state))  # fmt: skip
    to_x = _scaled(needed(op, inputs, at.input(gate)), None, input_zero,
                   _scale(op, at.input(gate)) * np.float32(input_scale) / np.float32(x_scale))  # fmt: skip
    to_h = _scaled(needed(op, inputs, at.recurrent(gate)), None, state_zero,
                   _scale(op, at.recurrent(gate)) * np.float32(state_scale) / np.float32(h_scale))  # fmt: skip
    x_to_sum = quantize_multiplier(np.float32(x_scale) / np.float32(total))
    h_to_sum = quantize_multiplier(np.float32(h_scale) / np.float32(total))
    norm = _float_norm(needed(op, inputs, at.norm + gate), needed(op, inputs, at.bias(gate)),
                       _scale(op, at.norm + gate))  # fmt: skip

    def run(x: Array, hidden: Array) -> Array:
        part = np.clip(to_x(x) + x_zero, -128, 127) - x_zero
        both = multiply(part, *x_to_sum)
        # LiteRT reads the output gate's second multiplier beyond its table, where a small number
        # stands: the product is always zero.
        if gate != OUTPUT:
            part = np.clip(to_h(hidden) + h_zero, -128, 127) - h_zero
            both = both + multiply(part, *h_to_sum)
        return norm(_clip16(both))

    return run


def _float_norm(weights: Array, bias: Array, scale: np.float32) -> Callable[[Array], Array]:
    multiplier, shift = quantize_multiplier(scale)
    scale = np.float32(multiplier * 2.0 ** (float(shift) - 31))

    def run(x: Array) -> Array:
        real, count = x.astype(np.float32), np.float32(x.shape[-1])
        # The kernel's sums run from left to right in float32: so does cumsum.
        mean = np.cumsum(real, axis=-1, dtype=np.float32)[:, -1:] / count
        squares = np.cumsum(real * real, axis=-1, dtype=np.float32)[:, -1:]
        variance = squares / count - mean * mean
        variance = np.where(variance == 0, np.float32(1e-8), variance)
        normal = (real - mean) * (np.float32(1) / np.sqrt(variance))
        weighted = normal * weights.astype(np.float32) * scale
        out = weighted + bias.astype(np.float32) * (np.float32(2.0**-10) * scale)
        return _clip16(to_int32(round_away(out * np.float32(2**12))))

    return run


# -- the operators ------------------------------------------------------------------------------


def _run(op: Op, inputs: Arrays, at: Places, x: Array, aux: Array | None = None,
         reverse: bool = False) -> Array:  # fmt: skip
    """One cell over x [time, batch, depth]."""
    size = _sizes(op, inputs, at, x, aux)
    make = _float_step if x.dtype.kind == "f" else _integer_step
    step = make(op, inputs, at, size)
    return scan(lambda t: step(x[t], None if aux is None else aux[t]), x.shape[0],
                (size.batch, size.outputs), x.dtype, reverse)  # fmt: skip


def _lstm(op: Op, inputs: Arrays) -> Array | list[Array]:
    if attr(op, "kernel_type") == "BASIC":
        return _basic(op, inputs)
    x = needed(op, inputs, 0)
    require(x.ndim == 2, op, f"input {x.shape} should be [batch, depth]")
    return _run(op, inputs, ONE_CELL, x[None])[0]


def _sequence_lstm(op: Op, inputs: Arrays) -> Array:
    x, time_major = needed(op, inputs, 0), attr(op, "time_major")
    require(x.ndim == 3, op, f"input {x.shape} should have three dimensions")
    return swap_time(_run(op, inputs, ONE_CELL, swap_time(x, time_major)), time_major)


def _bidirectional_lstm(op: Op, inputs: Arrays) -> Array | list[Array]:
    x = needed(op, inputs, 0)
    require(x.ndim == 3, op, f"input {x.shape} should have three dimensions")
    x, backward_x, aux = stacked_inputs(op, x, inputs[39], op.input(41) is not None)
    forward = _run(op, inputs, FORWARD, x, aux)
    return merge(op, forward, _run(op, inputs, BACKWARD, backward_x, aux, reverse=True))


def _basic(op: Op, inputs: Arrays) -> list[Array]:
    """The five-operand cell: activation, state, and its two temporaries."""
    x, activation, weights, bias, state = (needed(op, inputs, k) for k in range(5))
    require(
        all(a.ndim == 2 for a in (x, activation, weights, state)), op, "operands are no matrices"
    )
    batch, depth = activation.shape
    require(len(x) == batch and state.shape == (batch, depth) and bias.shape == (4 * depth,) and
            weights.shape == (4 * depth, x.shape[1] + depth), op, "the operands' shapes do not fit")  # fmt: skip
    joined = np.concatenate([x, activation], axis=1)
    run = _basic_float if x.dtype.kind == "f" else _basic_integer
    out, new_state, gates = run(op, joined, weights, bias, state)
    for index, array, new in ((1, activation, out), (4, state, new_state)):
        tensor = op.input(index)
        if tensor is not None and tensor.is_variable:
            array[...] = new
    return [out, new_state, joined, gates]


def _basic_float(op: Op, x: Array, weights: Array, bias: Array,
                 state: Array) -> tuple[Array, Array, Array]:  # fmt: skip
    gates = x @ weights.T + bias
    admit, update, forget, emit = np.split(gates, 4, axis=1)
    new = _sigmoid(admit) * np.tanh(update) + _sigmoid(forget) * state
    return _sigmoid(emit) * np.tanh(new), new, gates


def _basic_integer(op: Op, x: Array, weights: Array, bias: Array,
                   state: Array) -> tuple[Array, Array, Array]:  # fmt: skip
    """uint8 with zero point 128 (whatever the file says), and an int16 state of scale 2**-11."""
    require(x.dtype == np.uint8 and weights.dtype == np.uint8 and state.dtype == np.int16, op,
            "the basic kernel takes float32, or uint8 with an int16 state")  # fmt: skip
    require(abs(np.log2(scale_zero(op.outputs[1])[0]) + 11) < 1e-3, op,
            "the state's scale is not 2**-11")  # fmt: skip
    zero, bias_scale = scale_zero(op.input(2))[1], scale_zero(op.input(3))[0]
    centred = weights.T.astype(np.float64) - zero
    total = ((x.astype(np.float64) - 128) @ centred).astype(np.int64) + bias
    gates = _clip16(_multiply_up(wrap32(total), *quantize_multiplier(4096 * bias_scale)))
    admit, update, forget, emit = np.split(gates, 4, axis=1)
    admitted = _mul16(logistic_fixed(admit, 3), tanh_fixed(update, 3))
    kept = _mul16(logistic_fixed(forget, 3), state)
    new = _clip16(divide_by_pot(admitted, 4) + kept)
    out = _mul16(logistic_fixed(emit, 3), tanh_fixed(shift_left(new, 1, 16), 3))
    codes = np.clip(divide_by_pot(out, 8), -128, 127) + 128
    return codes.astype(np.uint8), new.astype(np.int16), gates.astype(np.int16)


def _multiply_up(x: Array, multiplier: Array, shift: Array) -> Array:
    """x times a quantised multiplier, ties rounded up: this kernel's product is ruy's."""
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    high = (wrap32(x << left) * multiplier + (1 << 30)) >> 31
    return (high + ((1 << right) >> 1)) >> right


def _mul16(a: Array, b: Array) -> Array:
    """gemmlowp's high product of 16-bit words: the 32-bit one, a word up."""
    return high_mul(a << 16, b)


def _infer_lstm(op: Op, specs: Specs) -> Spec | list[Spec]:
    if op.name == "LSTM" and attr(op, "kernel_type") == "BASIC":
        return _infer_basic(op, specs)
    x, recurrent = present(specs, op).shape, present(specs, op, 8).shape
    return out_spec(op, None if x is None or recurrent is None else (*x[:-1], recurrent[-1]))


def _infer_basic(op: Op, specs: Specs) -> list[Spec]:
    x, activation = present(specs, op).shape, present(specs, op, 1).shape
    require(len(op.outputs) == 4, op, f"{len(op.outputs)} outputs, not 4")
    shapes: list[Shape | None] = [None] * 4
    if x is not None and activation is not None:
        batch, depth = activation
        shapes = [activation, activation, (batch, x[1] + depth), (batch, 4 * depth)]
    return [out_spec(op, shape, i) for i, shape in enumerate(shapes)]


def _infer_bidirectional(op: Op, specs: Specs) -> list[Spec]:
    x = present(specs, op).shape
    forward, backward = present(specs, op, 8).shape, present(specs, op, 25).shape
    units = None if forward is None or backward is None else (forward[1], backward[1])
    return two_outputs(op, x, units)


def _lstm_macs(op: Op) -> int:
    x, weights = op.input(0), op.input(2)
    if attr(op, "kernel_type") == "BASIC" and x is not None and weights is not None:
        return elements(x.shape[:-1]) * elements(weights.shape)
    return weight_macs(op)


define("LSTM", infer=_infer_lstm, evaluate=_lstm, family="lstm", types="f32 i8 u8", arity=(5, 24),
       macs=_lstm_macs, notes="full and basic kernels; hybrid i8/u8 weights; i8 with i16 cell")  # fmt: skip
define("UNIDIRECTIONAL_SEQUENCE_LSTM", infer=_infer_lstm, evaluate=_sequence_lstm, family="lstm",
       types="f32 i8", arity=(20, 24), macs=weight_macs,
       notes="hybrid i8/u8 weights; i8 with i16 cell")  # fmt: skip
define("BIDIRECTIONAL_SEQUENCE_LSTM", infer=_infer_bidirectional, evaluate=_bidirectional_lstm,
       family="lstm", types="f32", arity=48, macs=weight_macs, notes="hybrid i8/u8 weights")  # fmt: skip
