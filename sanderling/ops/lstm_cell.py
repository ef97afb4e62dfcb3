"""One LSTM cell: where its operands stand, and the float and hybrid kernels.

A cell has four gates, in the file's order: input, forget, cell, output. Without the input gate
(CIFG) the cell uses 1 - forget. Hybrid: 8-bit weights, float activations quantised on the fly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ..ir import Array, Op, Shape
from .base import Arrays, attr, operand, require, scale_zero, unfit
from .fixed import fused_float
from .gemm import signed
from .lut import sigmoid
from .sequence import Activations, Matrix, check_state, matrix_or_none, state_view

INPUT, FORGET, CELL, OUTPUT = range(4)
# step(x, aux) advances a cell by one time step and returns its output.
Step = Callable[[Array, "Array | None"], Array]


@dataclass(frozen=True)
class CellPlaces:
    """Where one cell's operands stand among the op's inputs."""

    weights: int  # input weights (4), recurrent (4), peephole (3), biases (4), projection, its bias
    state: int  # output state, cell state
    norm: int | None = None  # layer norm coefficients (4)
    aux: int | None = None  # auxiliary weights (4)

    def input(self, gate: int) -> int:
        return self.weights + gate

    def recurrent(self, gate: int) -> int:
        return self.weights + 4 + gate

    def peephole(self, gate: int) -> int | None:
        return None if gate == CELL else self.weights + 8 + min(gate, 2)

    def bias(self, gate: int) -> int:
        return self.weights + 11 + gate

    @property
    def projection(self) -> int:
        return self.weights + 15

    def norm_of(self, gate: int) -> int | None:
        return None if self.norm is None else self.norm + gate

    def aux_of(self, gate: int) -> int | None:
        return None if self.aux is None else self.aux + gate


@dataclass(frozen=True)
class Cell:
    """One cell's operands at run time, and its sizes."""

    op: Op
    inputs: Arrays
    at: CellPlaces
    batch: int
    depth: int
    cells: int
    outputs: int

    @classmethod
    def of(cls, op: Op, inputs: Arrays, at: CellPlaces, x: Array, aux: Array | None) -> Cell:
        """The cell that reads x [time, batch, depth]; its operands are checked to fit together."""
        w, r = operand(op, inputs, at.input(OUTPUT)), operand(op, inputs, at.recurrent(OUTPUT))
        require(w.ndim == 2 and r.ndim in (1, 2), op, f"weights {w.shape} and {r.shape} do not fit")
        cell = cls(op, inputs, at, x.shape[1], x.shape[2], w.shape[0], r.shape[-1])
        for index, shape in cell._wanted(0 if aux is None else aux.shape[2]):
            array = cell.get(index)
            found = None if array is None else array.shape
            require(found in (None, shape), op, f"input {index} is {found}, not {shape}")
        for gate in cell.gates:
            for index in (at.input(gate), at.recurrent(gate), at.bias(gate)):
                cell.need(index)
        if aux is not None:
            for gate in cell.gates:
                cell.need(at.aux_of(gate))
        sizes = f"{cell.cells} cells make {cell.outputs} outputs without a projection"
        require(cell.get(at.projection) is not None or cell.cells == cell.outputs, op, sizes)
        require(attr(op, "cell_clip") >= 0 and attr(op, "proj_clip") >= 0, op, "a clip is negative")
        return cell

    def _wanted(self, aux_depth: int) -> Iterator[tuple[int | None, Shape]]:
        at, vector = self.at, (self.cells,)
        yield at.projection, (self.outputs, self.cells)
        yield at.projection + 1, (self.outputs,)
        for gate in range(4):
            recurrent = self.get(at.recurrent(gate))
            diagonal = recurrent is not None and recurrent.ndim == 1
            yield at.input(gate), (self.cells, self.depth)
            yield at.recurrent(gate), vector if diagonal else (self.cells, self.outputs)
            yield at.peephole(gate), vector
            yield at.bias(gate), vector
            yield at.norm_of(gate), vector
            if aux_depth:
                yield at.aux_of(gate), (self.cells, aux_depth)

    @property
    def gates(self) -> tuple[int, ...]:
        both = INPUT, FORGET, CELL, OUTPUT
        return both if self.get(self.at.input(INPUT)) is not None else both[1:]

    def get(self, index: int | None) -> Array | None:
        """The operand, or None where the model leaves it out."""
        return None if index is None or index >= len(self.inputs) else self.inputs[index]

    def need(self, index: int | None) -> Array:
        return operand(self.op, self.inputs, self._place(index))

    def scale(self, index: int | None) -> np.float32:
        return np.float32(scale_zero(self.op.input(self._place(index)))[0])

    def _place(self, index: int | None) -> int:
        """The place of an operand that this kind of cell has."""
        if index is None:
            raise unfit(self.op, "an operand is absent")
        return index

    def weight(self, index: int | None) -> Matrix | None:
        return None if index is None else matrix_or_none(self.op.input(index), self.get(index))

    def check_states(self) -> None:
        for index, units in ((self.at.state, self.outputs), (self.at.state + 1, self.cells)):
            check_state(self.op, self.need(index).shape, (self.batch, units))

    def states(self) -> tuple[Array, Array]:
        """Output state and cell state, to be changed in place."""
        at = self.at.state
        return (
            state_view(self.op, self.inputs, at, (self.batch, self.outputs)),
            state_view(self.op, self.inputs, at + 1, (self.batch, self.cells)),
        )


@dataclass(frozen=True)
class Gate:
    """One gate's operands; what the model leaves out is None."""

    input: Matrix
    recurrent: Matrix
    aux: Matrix | None
    peephole: Array | None
    norm: Array | None
    bias: Array

    @classmethod
    def of(cls, cell: Cell, gate: int) -> Gate:
        at = cell.at
        to_input, to_state = cell.weight(at.input(gate)), cell.weight(at.recurrent(gate))
        assert to_input is not None and to_state is not None, "every gate has them"
        peephole = cell.get(at.peephole(gate))
        if peephole is not None and peephole.dtype.kind != "f":
            peephole = cell.scale(at.peephole(gate)) * signed(peephole)
        return cls(
            to_input,
            to_state,
            cell.weight(at.aux_of(gate)),
            peephole,
            cell.get(at.norm_of(gate)),
            cell.need(at.bias(gate)),
        )

    def __call__(
        self, x: Activations, aux: Activations | None, hidden: Activations, cell: Array
    ) -> Array:
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
    normal: Array = centred * (np.float32(1) / np.sqrt(variance + np.float32(1e-8)))
    return normal


def _clip(x: Array, limit: float) -> Array:
    """Zero means no limit."""
    return np.clip(x, -np.float32(limit), np.float32(limit)) if limit > 0 else x


def float_step(cell: Cell) -> Step:
    # Activation NONE is the identity here. LiteRT then reads a scratch buffer it never wrote.
    op, gates = cell.op, {gate: Gate.of(cell, gate) for gate in cell.gates}
    hidden, memory = cell.states()
    projection, bias = cell.weight(cell.at.projection), cell.get(cell.at.projection + 1)
    asymmetric = attr(op, "asymmetric_quantize_inputs")

    def project(x: Array) -> Array:
        if projection is None:
            return x
        out = Activations(x, asymmetric) @ projection
        return _clip(out if bias is None else bias + out, attr(op, "proj_clip"))

    def step(x: Array, aux: Array | None) -> Array:
        side = None if aux is None else Activations(aux, asymmetric)
        rows = Activations(x, asymmetric), side, Activations(hidden, asymmetric), memory
        forget = sigmoid(gates[FORGET](*rows))
        admit = sigmoid(gates[INPUT](*rows)) if INPUT in gates else 1 - forget
        update = fused_float(op, gates[CELL](*rows))
        memory[...] = _clip(forget * memory + update * admit, attr(op, "cell_clip"))
        emit = sigmoid(gates[OUTPUT](*rows))
        hidden[...] = project(emit * fused_float(op, memory))
        return hidden

    return step
