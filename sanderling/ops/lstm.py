"""The LSTM operators: one step, a sequence, both directions; and the basic five-operand cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..ir import Array, DType, Op, Shape
from .base import (
    Arrays,
    Run,
    Spec,
    Specs,
    State,
    attr,
    define,
    elements,
    operand,
    out_spec,
    require,
    scale_zero,
    shapes_known,
    unknown_outputs,
)
from .fixed import divide_by_pot, high_mul, quantize_multiplier, wrap32
from .lstm_cell import Cell, CellPlaces, float_step
from .lstm_integer import clip8, clip16, integer_advance, integer_step
from .lut import logistic_fixed, shift_left, sigmoid, tanh_fixed
from .sequence import (
    merge,
    scan,
    stacked_inputs,
    stacked_shapes,
    steps,
    swap_time,
    three_dimensions,
    two_outputs,
    weight_macs,
)

ONE_CELL = CellPlaces(1, 18, norm=20)
FORWARD, BACKWARD = CellPlaces(1, 35, aux=40), CellPlaces(18, 37, aux=44)


def _run(
    op: Op,
    inputs: Arrays,
    at: CellPlaces,
    x: Array,
    aux: Array | None = None,
    reverse: bool = False,
) -> Array:
    """One cell over x [time, batch, depth]."""
    cell = Cell.of(op, inputs, at, x, aux)
    step = float_step(cell) if x.dtype.kind == "f" else integer_step(cell)
    return scan(
        lambda t: step(x[t], None if aux is None else aux[t]),
        x.shape[0],
        (cell.batch, cell.outputs),
        x.dtype,
        reverse,
    )


def _lstm(op: Op, inputs: Arrays) -> Array | list[Array]:
    if attr(op, "kernel_type") == "BASIC":
        return _basic(op, inputs)
    x = operand(op, inputs, 0)
    out: Array = _run(op, inputs, ONE_CELL, x[None])[0]
    return out


def _prepare_lstm(op: Op, inputs: Arrays) -> Run | None:
    """prepare: what integer weights decide, if they and the shapes stay as they are."""
    x, basic = operand(op, inputs, 0), attr(op, "kernel_type") == "BASIC"
    changing = (0, 1, 4) if basic else (0, ONE_CELL.state, ONE_CELL.state + 1)
    weights = [t for i, t in enumerate(op.inputs) if t is not None and i not in changing]
    read = [op.input(i) for i in changing]
    fixed = all(t.is_constant for t in weights) and not any(t and t.is_dynamic for t in read)
    if x.dtype.kind == "f" or not fixed:
        return None
    if basic:
        advance = _basic_integer(op, operand(op, inputs, 2), operand(op, inputs, 3))
        return lambda inputs, state: _basic(op, inputs, advance)
    cell = Cell.of(op, inputs, ONE_CELL, x[None], None)
    move = integer_advance(cell)

    def run(inputs: Arrays, state: State) -> Array:
        return move(*replace(cell, inputs=inputs).states(), operand(op, inputs)).copy()

    return run


def _sequence_lstm(op: Op, inputs: Arrays) -> Array:
    x, time_major = three_dimensions(op, inputs), attr(op, "time_major")
    return swap_time(_run(op, inputs, ONE_CELL, swap_time(x, time_major)), time_major)


def _bidirectional_lstm(op: Op, inputs: Arrays) -> Array | list[Array]:
    x, backward_x, aux = stacked_inputs(op, inputs, 39, op.input(41) is not None)
    forward = _run(op, inputs, FORWARD, x, aux)
    return merge(op, forward, _run(op, inputs, BACKWARD, backward_x, aux, reverse=True))


# -- the basic cell -----------------------------------------------------------------------------


# advance(joined, state) of a basic cell: activation, state, products.
Advance = Callable[[Array, Array], tuple[Array, Array, Array]]


def _basic(op: Op, inputs: Arrays, advance: Advance | None = None) -> list[Array]:
    """Activation, state, and the two temporaries that the operator shows as outputs. advance: what
    was prepared of it."""
    x, activation, weights, bias, state = every = [operand(op, inputs, k) for k in range(5)]
    _check_basic(op, *(a.shape for a in every))
    joined = np.concatenate([x, activation], axis=1)
    if advance is None:
        make = _basic_float if x.dtype.kind == "f" else _basic_integer
        advance = make(op, weights, bias)
    out, new_state, gates = advance(joined, state)
    for index, array, new in ((1, activation, out), (4, state, new_state)):
        tensor = op.input(index)
        if tensor is not None and tensor.is_variable:  # else the graph passes the state around
            array[...] = new
    return [out, new_state, joined, gates]


def _basic_float(op: Op, weights: Array, bias: Array) -> Advance:
    def advance(x: Array, state: Array) -> tuple[Array, Array, Array]:
        gates = x @ weights.T + bias
        admit, update, forget, emit = np.split(gates, 4, axis=1)
        new = sigmoid(admit) * np.tanh(update) + sigmoid(forget) * state
        return sigmoid(emit) * np.tanh(new), new, gates

    return advance


@dataclass(frozen=True)
class BasicCodes:
    """The basic cell of uint8 with zero point 128 (whatever the file says), and an int16 state of
    scale 2**-11: what its weights decide."""

    weights: Array  # without their zero point
    bias: Array
    multiplier: Array
    shift: Array

    @classmethod
    def of(cls, op: Op, weights: Array, bias: Array) -> BasicCodes:
        state_scale = scale_zero(op.outputs[1])[0]
        require(abs(np.log2(state_scale) + 11) < 1e-3, op, "the state's scale is not 2**-11")
        zero, bias_scale = scale_zero(op.input(2))[1], scale_zero(op.input(3))[0]
        return cls(weights.astype(np.int64) - zero, bias, *quantize_multiplier(4096 * bias_scale))


def _basic_integer(op: Op, weights: Array, bias: Array) -> Advance:
    cell = BasicCodes.of(op, weights, bias)
    centred = cell.weights.T.astype(np.float64)
    offset = bias - (128 * centred.sum(axis=0)).astype(np.int64)

    def advance(x: Array, state: Array) -> tuple[Array, Array, Array]:
        total = (x @ centred).astype(np.int64) + offset
        gates = clip16(_multiply_up(wrap32(total), cell.multiplier, cell.shift))
        admit, update, forget, emit = np.split(gates, 4, axis=1)
        admitted = high_mul(logistic_fixed(admit, 3), tanh_fixed(update, 3), 16)
        kept = high_mul(logistic_fixed(forget, 3), state, 16)
        new = clip16(divide_by_pot(admitted, 4) + kept)
        out = high_mul(logistic_fixed(emit, 3), tanh_fixed(shift_left(new, 1, 16), 3), 16)
        codes = clip8(divide_by_pot(out, 8)) + 128
        return codes.astype(np.uint8), new.astype(np.int16), gates.astype(np.int16)

    return advance


def _multiply_up(x: Array, multiplier: Array, shift: Array) -> Array:
    """x times a quantised multiplier, ties rounded up: this kernel's product is ruy's."""
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    high = (wrap32(x << left) * multiplier + (1 << 30)) >> 31
    result: Array = (high + ((1 << right) >> 1)) >> right
    return result


# -- shapes and cost ----------------------------------------------------------------------------


def _infer_lstm(op: Op, specs: Specs) -> Spec | list[Spec]:
    if op.name == "LSTM" and attr(op, "kernel_type") == "BASIC":
        return _infer_basic(op, specs)
    if not shapes_known(specs):
        return out_spec(op, None)
    x = operand(op, specs).known
    cell = _cell(op, specs, ONE_CELL, steps(op, x))
    return out_spec(op, (*x[:-1], cell.outputs))


def _cell(op: Op, specs: Specs, at: CellPlaces, x: Shape, aux: Shape | None = None) -> Cell:
    """One cell with made-up operands: all that its sizes say is checked."""
    every = [None if s is None else _blank(s.dtype, s.known) for s in specs]
    kind = operand(op, specs).dtype
    cell = Cell.of(op, every, at, _blank(kind, x), None if aux is None else _blank(kind, aux))
    cell.check_states()
    return cell


def _blank(dtype: DType, shape: Shape) -> Array:
    """An array that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype.numpy), shape)


def _infer_basic(op: Op, specs: Specs) -> list[Spec]:
    require(len(op.inputs) == 5, op, f"{len(op.inputs)} inputs", "the basic cell takes 5")
    if not shapes_known(specs):
        return unknown_outputs(op)
    x, activation, weights, bias, state = (operand(op, specs, k).known for k in range(5))
    _check_basic(op, x, activation, weights, bias, state)
    batch, depth = activation
    shapes = [activation, activation, (batch, x[1] + depth), (batch, 4 * depth)]
    return [out_spec(op, shape, i) for i, shape in enumerate(shapes)]


def _check_basic(
    op: Op, x: Shape, activation: Shape, weights: Shape, bias: Shape, state: Shape
) -> None:
    batch, depth = activation
    fits = (
        x[0] == batch
        and state == activation
        and bias == (4 * depth,)
        and weights == (4 * depth, x[1] + depth)
    )
    require(fits, op, "the operands' shapes do not fit")


def _infer_bidirectional(op: Op, specs: Specs) -> list[Spec]:
    if shapes_known(specs):
        x, backward_x, aux = stacked_shapes(op, specs, 39, op.input(41) is not None)
        _cell(op, specs, FORWARD, x, aux)
        _cell(op, specs, BACKWARD, backward_x, aux)
    forward, backward = operand(op, specs, 8).shape, operand(op, specs, 25).shape
    units = None if forward is None or backward is None else (forward[1], backward[1])
    return two_outputs(op, operand(op, specs).shape, units)


def _lstm_macs(op: Op) -> int:
    x, weights = op.input(0), op.input(2)
    if attr(op, "kernel_type") == "BASIC" and x is not None and weights is not None:
        return elements(x.shape[:-1]) * elements(weights.shape)
    return weight_macs(op)


HYBRID = "hybrid i8/u8 weights"
# A cell's operands; without the input gate (CIFG) the first of each four is absent.
_WEIGHTS = "f32 i8q u8q"
_FLOAT = (
    f"admit?[2]: w, 3 w[2]: {_WEIGHTS}, admit_recurrent?[1-2]: r, 3 r[1-2]: {_WEIGHTS}, "
    f"3 peephole?[1]: {_WEIGHTS}, admit_bias?[1]: f32, 3 bias[1]: f32, "
    f"projection?[2]: {_WEIGHTS}, projection_bias?[1]: f32"
)
_ONE = f"{_FLOAT}, 2 state!: f32, 4 norm?[1]: f32"
_INTEGER = (
    "admit?[2]: i8q, 3 w[2]: i8q, admit_recurrent?[2]: i8q, 3 r[2]: i8q, 3 peephole?[1]: i16q, "
    "admit_bias?[1]: i32, 3 bias[1]: i32, projection?[2]: i8q, projection_bias?[1]: i32, "
    "state!: i8q, cell!: i16q, 4 norm?[1]: i16q"
)
_BOTH = f"{_FLOAT}, {_FLOAT}, 4 state!: f32, aux?[3]: f32, 8 aux_weights?[2]: {_WEIGHTS}"
_BASIC = (
    "x[2]: f32, activation[2]: f32, weights[2]: f32, bias[1]: f32, state[2]: f32 "
    "-> f32, f32, f32, f32 | "
    "x[2]: u8, activation[2]: u8, weights[2]: u8q, bias[1]: i32q, state[2]: i16 "
    "-> u8, i16q, u8, i16"
)
define(
    "LSTM",
    infer=_infer_lstm,
    evaluate=_lstm,
    prepare=_prepare_lstm,
    family="lstm",
    takes=f"x[2]: f32, {_ONE} -> f32 | x[2]: i8q, {_INTEGER} -> i8q | {_BASIC}",
    macs=_lstm_macs,
    notes=f"full and basic kernels; {HYBRID}; i8 with i16 cell",
)
define(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    infer=_infer_lstm,
    evaluate=_sequence_lstm,
    family="lstm",
    takes=f"x[3]: f32, {_ONE} -> f32 | x[3]: i8q, {_INTEGER} -> i8q",
    macs=weight_macs,
    notes=f"{HYBRID}; i8 with i16 cell",
)
define(
    "BIDIRECTIONAL_SEQUENCE_LSTM",
    infer=_infer_bidirectional,
    evaluate=_bidirectional_lstm,
    family="lstm",
    takes=f"x[3]: f32, {_BOTH} -> f32, second?: f32",
    macs=weight_macs,
    notes=HYBRID,
)
