"""Ops with states: LSTM and SVDF as integers, and the recurrent ops' weights alone.

An integer LSTM has int8 values, an int16 cell state whose scale is a power of two, and gates of
which the file states the scales only where they are normalised. An integer SVDF has int8 values, an
int16 state and ten-bit weights over time. The states are not tensors that a run shows: their ranges
come from a run of the op by itself, step by step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ...ir import Array, DType, Graph, Op, Quant, Tensor
from ...ops.execute import evaluate, initial_value, new_state
from ...ops.lstm import ONE_CELL as AT
from ...ops.lstm_cell import INPUT, OUTPUT
from .scheme import LEAST_SCALE, Grid, RangeOf
from .weights import Coded, encode, encode_bias

LSTMS = ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM")
INTEGER = (*LSTMS, "SVDF")
# Operands that hybrid kernels take as int8: all of them or none. The scale is the whole tensor's.
_CELL = (*range(1, 12), 16)
_BOTH = (*_CELL, *(i + 17 for i in _CELL), *range(40, 48))
WEIGHTS: dict[str, tuple[int, ...]] = {
    "LSTM": _CELL, "UNIDIRECTIONAL_SEQUENCE_LSTM": _CELL, "BIDIRECTIONAL_SEQUENCE_LSTM": _BOTH,
    "RNN": (1, 2), "UNIDIRECTIONAL_SEQUENCE_RNN": (1, 2),
    "BIDIRECTIONAL_SEQUENCE_RNN": (1, 2, 5, 6, 10, 11), "SVDF": (1, 2),
}  # fmt: skip
HYBRID_VERSION = {"LSTM": 4, "UNIDIRECTIONAL_SEQUENCE_LSTM": 3, "BIDIRECTIONAL_SEQUENCE_LSTM": 3,
                  "RNN": 3, "UNIDIRECTIONAL_SEQUENCE_RNN": 3, "SVDF": 4}  # fmt: skip
W8 = Grid(8, symmetric=True, narrow=True)
W16 = Grid(16, symmetric=True, narrow=True)
A8 = Grid(8, symmetric=False)
TIME_MAX = 511  # ten bits: a sum over time of 16-bit states must fit 32
GATE_STEP = 2.0**-12  # of a gate's sum, where nothing normalises it
NORM_STEP = 2.0**-10
CELL_EXPONENTS = (-15, -9)
SVDF_STATE = 3


def has_states(op: Op) -> bool:
    """An op whose states' ranges are wanted."""
    x = op.input(0)
    return op.name in INTEGER and x is not None and x.dtype is DType.FLOAT32 and not refusal(op)


def refusal(op: Op) -> str:
    """Why this op cannot be integer; "" if it can."""
    if op.name == "SVDF":
        if op.attrs.get("fused_activation_function") != "RELU":
            return "an integer SVDF has the activation RELU"
        return _constant_refusal(op, (1, 2, 3)) or _variable_refusal(op, (4,))
    if op.attrs.get("kernel_type", "FULL") == "BASIC":
        return "the basic LSTM kernel has no int8 form"
    if op.attrs.get("fused_activation_function") != "TANH":
        return "an integer LSTM has the activation TANH"
    recurrent = op.input(AT.recurrent(OUTPUT))
    if recurrent is not None and len(recurrent.shape) != 2:
        return "its recurrent weights are diagonal"
    if _has(op, AT.projection) and any(_has(op, AT.peephole(g)) for g in range(4)):
        return "peepholes with a projection are read wrongly by the integer kernel"
    return _constant_refusal(op, (*range(1, 18), *range(20, 24))) or _variable_refusal(
        op, (AT.state, AT.state + 1)
    )


def _constant_refusal(op: Op, places: tuple[int, ...]) -> str:
    for place in places:
        tensor = op.input(place)
        if tensor is not None and (tensor.data is None or tensor.dtype is not DType.FLOAT32):
            return f"its operand '{tensor.name}' is not a float32 constant"
    return ""


def _variable_refusal(op: Op, places: tuple[int, ...]) -> str:
    for place in places:
        tensor = op.input(place)
        if tensor is None or not tensor.is_variable or len(tensor.users) != 1:
            return "its state is not a variable of its own"
    return ""


def _has(op: Op, place: int | None) -> bool:
    return place is not None and op.input(place) is not None


def _gates(op: Op) -> list[int]:
    return [g for g in range(4) if g != INPUT or _has(op, AT.input(INPUT))]


# -- ranges of states -----------------------------------------------------------------------------


def gate_name(op: Op, gate: int) -> str:
    return f"{op.outputs[0].name}:gate{gate}"


def hidden_states(op: Op) -> list[Tensor]:
    """What a range is needed of beside the op's operands; some of them are names only."""
    if op.name == "SVDF":
        return [op.operand(4)]
    norms = [g for g in _gates(op) if _has(op, AT.norm_of(g))]
    return [op.operand(AT.state + 1), *(Tensor(gate_name(op, g), DType.FLOAT32) for g in norms)]


def states(op: Op, values: Mapping[str, Array]) -> dict[str, Array]:
    """Every value that the op's states take on one sample."""
    x = np.asarray(values[op.operand(0).name], np.float32)
    if op.name == "SVDF":
        return {op.operand(4).name: x @ op.operand(1).values.T}
    return _lstm_states(op, x)


def _lstm_states(op: Op, x: Array) -> dict[str, Array]:
    inputs = [
        None if t is None else t.data if t.data is not None else initial_value(t) for t in op.inputs
    ]
    hidden, memory = AT.state, AT.state + 1
    found: dict[str, list[Array]] = {op.operand(memory).name: []}
    for part in _steps(op, x):
        before = [np.array(inputs[k]) for k in (hidden, memory)]
        inputs[0] = part
        evaluate(op, inputs, new_state())
        after = np.array(inputs[memory])
        found[op.operand(memory).name].append(after)
        rows = part.reshape(-1, part.shape[-1])
        for gate in _gates(op):
            if _has(op, AT.norm_of(gate)):
                seen = after if gate == OUTPUT else before[1]
                found.setdefault(gate_name(op, gate), []).append(
                    _gate_sum(op, gate, rows, before[0], seen)
                )
    return {name: np.stack(arrays) for name, arrays in found.items()}


def _steps(op: Op, x: Array) -> Iterator[Array]:
    if op.name == "LSTM":
        return iter([x])
    axis = 0 if op.attrs.get("time_major") else 1
    return (np.take(x, [t], axis) for t in range(x.shape[axis]))


def _gate_sum(op: Op, gate: int, x: Array, hidden: Array, memory: Array) -> Array:
    """A gate before its normalisation."""
    weights, recurrent = (op.operand(at(gate)).values for at in (AT.input, AT.recurrent))
    total = x @ weights.T + hidden @ recurrent.T
    place = AT.peephole(gate)
    if place is not None and _has(op, place):
        total = total + memory * op.operand(place).values
    return np.asarray(total)


# -- integers -------------------------------------------------------------------------------------


class IntegerRecurrent:
    """Writes one op's constants and states as codes; its input and output are codes already."""

    def __init__(self, graph: Graph, op: Op, ranges: RangeOf) -> None:
        self.graph, self.op, self.ranges = graph, op, ranges
        self.source = _scale(op.operand(0).quantisation)

    def write(self) -> None:
        if self.op.name == "SVDF":
            self._svdf()
        else:
            self._lstm()

    def _store(self, place: int, coded: Coded) -> float:
        old = self.op.operand(place)
        dtype = DType.of(coded.codes.dtype)
        made = self.graph.constant(old.name, coded.codes, dtype, quant=coded.quant)
        self.graph.set_input(self.op, place, made)
        return _scale(coded.quant)

    def _weights(self, place: int, grid: Grid = W8, most: int = 0) -> float:
        """Stores the operand with one scale, and says which."""
        reals = self.op.operand(place).values
        largest = float(np.abs(reals).max(initial=0.0))
        scale = max(largest / (most or grid.bounds[1]), LEAST_SCALE)
        return self._store(place, encode(reals, np.array([scale]), grid, 0))

    def _bias(self, place: int, step: float) -> None:
        if _has(self.op, place):
            reals = self.op.operand(place).values
            self._store(place, encode_bias(reals, 1.0, np.array([step]), 32))

    def _reach(self, tensor: Tensor) -> float:
        """The largest magnitude of a value; calibration has seen it, or the op were float."""
        low, high = self.ranges(tensor, W16) or (0.0, 0.0)
        return max(-low, high)

    def _lstm(self) -> None:
        op, target = self.op, self.op.outputs[0].quantisation
        between: list[Tensor] = []
        for gate in range(4):
            quant = self._gate(gate) if gate in _gates(op) else Quant.of(np.float32(GATE_STEP))
            between.append(self._between(gate, DType.INT16, quant))
        if _has(op, AT.projection):
            # The kernel takes the zero point of hidden values the wrong way round: it is zero.
            held = Quant.of(np.float32(1 / 127), 0)
            self._bias(AT.projection + 1, self._weights(AT.projection) * _scale(held))
        else:
            held = target
        self._set_state(AT.state, DType.INT8, target)
        cell = self._reach(op.operand(AT.state + 1))
        self._set_state(AT.state + 1, DType.INT16, Quant.of(np.float32(2.0 ** exponent(cell))))
        between.append(self._between(4, DType.INT8, held))
        op.intermediates = between

    def _gate(self, gate: int) -> Quant:
        """The scale of the gate's sum."""
        op, quant = self.op, Quant.of(np.float32(GATE_STEP))
        step = self._weights(AT.input(gate)) * self.source
        self._weights(AT.recurrent(gate))
        place, norm = AT.peephole(gate), AT.norm_of(gate)
        if place is not None and _has(op, place):
            self._weights(place, W16)
        if norm is not None and _has(op, norm):
            step = self._weights(norm, W16) * NORM_STEP
            reach = self._reach(Tensor(gate_name(op, gate), DType.FLOAT32))
            quant = Quant.of(np.float32(max(reach / W16.bounds[1], LEAST_SCALE)))
        self._bias(AT.bias(gate), step)
        return quant

    def _between(self, place: int, dtype: DType, quant: Quant) -> Tensor:
        """A tensor that states a scale and nothing else; kernels read it even of absent gates."""
        name = f"{self.op.outputs[0].name}/intermediate{place}"
        return self.graph.tensor(name, dtype, (0,), quant=quant)

    def _set_state(self, place: int, dtype: DType, quant: Quant) -> None:
        state = self.op.operand(place)
        state.dtype, state.quant = dtype, quant

    def _svdf(self) -> None:
        op = self.op
        state = max(self._reach(op.operand(4)) / W16.bounds[1], LEAST_SCALE)
        self._weights(1)
        time = self._weights(2, W16, TIME_MAX)
        self._bias(SVDF_STATE, time * state)
        self._set_state(4, DType.INT16, Quant.of(np.float32(state)))
        op.attrs["asymmetric_quantize_inputs"] = False


def exponent(reach: float) -> int:
    """The exponent of the cell state's scale: the least power of two that holds the values, as
    kernels take."""
    wanted = math.ceil(math.log2(max(reach, 1e-6) / 2**15))
    return min(max(wanted, CELL_EXPONENTS[0]), CELL_EXPONENTS[1])


def _scale(quant: Quant) -> float:
    return float(quant.scale[0])


# -- weights alone --------------------------------------------------------------------------------


def stored_places(op: Op, minimum: int) -> list[int]:
    """Operands to store as codes: all, or none if a matrix among them is too small to matter."""
    places = [i for i in WEIGHTS.get(op.name, ()) if _has(op, i)]
    held = [op.inputs[i] for i in places]
    if any(t is None or t.data is None or t.dtype is not DType.FLOAT32 for t in held):
        return []
    if op.attrs.get("kernel_type") == "BASIC":
        return []
    small = any(
        t is not None and t.data is not None and t.data.ndim > 1 and t.data.size < minimum
        for t in held
    )
    return [] if small else places


def hybrid_grid(grid: Grid) -> Grid:
    """What hybrid recurrent kernels take: int8 with one scale."""
    return replace(grid, bits=8, per_channel=False, block=0)
