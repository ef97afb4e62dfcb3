"""The LSTM cell with its options, over one step of time or a sequence of them.

A step of time is three launches: the sums of all gates, the memory, the output; a projection is a
fourth. Steps share their kernels: the number of the step is data that a kernel reads. States go in
and come out as tensors (passes/states.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ....ir import Array, DType, Op, Tensor
from ....ir import expr as X
from ....ops.base import attr
from ....ops.fixed import ACTIVATION_BOUNDS
from ....ops.lstm import ONE_CELL
from ....ops.lstm_cell import CELL, FORGET, INPUT, OUTPUT
from .. import layout
from ..language import FLOAT, REAL, Value
from ..passes.float_view import CELL_CODES, CellCodes
from ..passes.stored import is_codes
from ..render import render_value
from ..steps import Node, StepWriter, View, Writer

EPSILON = 1e-8  # of the variance of a gate, as the definition has it


@dataclass(frozen=True)
class Cell:
    """A cell's op and sizes. gates: in the order of the file; codes: what states are rounded to."""

    op: Op
    name: str
    gates: tuple[int, ...]
    time: int
    batch: int
    depth: int
    cells: int
    outputs: int

    @classmethod
    def of(cls, node: Node) -> Cell:
        op, at = node.op, ONE_CELL
        x, memory = op.operand(0).shape, op.operand(at.state + 1).shape
        gates = (INPUT, FORGET, CELL, OUTPUT)
        return cls(
            op,
            node.output.name,
            gates if op.input(at.input(INPUT)) is not None else gates[1:],
            1 if len(x) == 2 else x[0 if attr(op, "time_major") else 1],
            memory[0],
            x[-1],
            memory[1],
            op.operand(at.state).shape[-1],
        )

    @property
    def slices(self) -> int:
        return layout.slices((self.cells,))

    @property
    def codes(self) -> CellCodes | None:
        found: CellCodes | None = self.op.attrs.get(CELL_CODES)
        return found

    def values(self, place: int | None) -> Array | None:
        """The values of a constant operand; None where the model leaves it out."""
        tensor = None if place is None else self.op.input(place)
        return None if tensor is None else np.asarray(tensor.values, np.float32)

    @property
    def is_diagonal(self) -> bool:
        return len(self.op.operand(ONE_CELL.recurrent(OUTPUT)).shape) == 1

    @property
    def has_norm(self) -> bool:
        return self.values(ONE_CELL.norm_of(OUTPUT)) is not None

    def rows(self, place: int) -> Array:
        """Weights of all gates as [gates, cells, ...]."""
        return np.stack([np.asarray(self.values(place + gate)) for gate in self.gates])

    def at(self, step: Value, batch: Value) -> list[Value]:
        """The place of a row of the input, or of the result."""
        if len(self.op.operand(0).shape) == 2:
            return [batch]
        return [step, batch] if attr(self.op, "time_major") else [batch, step]


def emit_lstm(w: Writer, node: Node) -> None:
    cell = Cell.of(node)
    hidden, memory = (node.op.operand(ONE_CELL.state + i) for i in range(2))
    for step in range(cell.time):
        is_last = step == cell.time - 1
        after = node.outputs[1:] if is_last else _between(w, cell, step)
        gates = w.temporary(
            f"{cell.name}/gates{step}", (cell.batch, len(cell.gates), cell.slices * 4)
        )
        _emit_gates(w, node, cell, step, hidden, gates)
        _emit_memory(w, node, cell, gates, memory, after[1])
        hidden, memory = after
        _emit_output(w, node, cell, step, gates, memory, hidden)


def _between(w: Writer, cell: Cell, step: int) -> list[Tensor]:
    """The states behind a step that is not the last."""
    sizes = {"hidden": cell.outputs, "memory": cell.cells}
    return [w.temporary(f"{cell.name}/{n}{step}", (cell.batch, k)) for n, k in sizes.items()]


def _step(s: StepWriter, cell: Cell, step: int) -> Value:
    """The number of the step, as data: kernels of all steps have one text."""
    if cell.time == 1:
        return s.k.value(0)
    return s.k.let(s.constant(np.array([step], np.int32)).one([0]))


# -- gates ----------------------------------------------------------------------------------------


def _emit_gates(
    w: Writer, node: Node, cell: Cell, step: int, hidden: Tensor, gates: Tensor
) -> None:
    with w.kernel("lstm_gates", node) as s:
        k = s.k
        x, h, y = s.reads(cell.op.operand(0)), s.scratch(hidden), s.scratch(gates, written=True)
        now = _step(s, cell, step)
        column, gate, batch = k.grid(cell.slices, len(cell.gates), cell.batch)
        total = k.var(k.zero(), "a")
        if not cell.has_norm:
            bias = s.weights(layout.pack(cell.rows(ONE_CELL.bias(0))))
            k.assign(total, bias.at([gate], column))
        _add_product(s, total, x, cell.at(now, batch), _columns(cell.rows(1)), gate, column)
        recurrent = cell.rows(ONE_CELL.recurrent(0))
        if cell.is_diagonal:
            factors = s.weights(layout.pack(recurrent))
            k.assign(total, k.fma(h.at([batch], column), factors.at([gate], column), total))
        else:
            _add_product(s, total, h, [batch], _columns(recurrent), gate, column)
        s.macs = cell.batch * len(cell.gates) * cell.cells * (cell.depth + cell.outputs)
        k.store(y.argument, y.index([batch, gate], column), total)


def _columns(weights: Array) -> Array:
    """[gates, out, in] as [gates, in, out slices * 4]."""
    return layout.pack(weights.transpose(0, 2, 1))


def _add_product(
    s: StepWriter,
    total: Value,
    x: View,
    at: Sequence[Value],
    packed: Array,
    gate: Value,
    column: Value,
) -> None:
    """A row times a column of weights [gates, in, out]. What lies behind a row's last element is
    not read."""
    k, depth = s.k, packed.shape[1]
    kept = s.weights(packed)
    with k.loop(0, depth // 4, hint="c") as c:
        _add_lanes(s, total, k.let(x.at(at, c)), kept, gate, c * 4, column, 4)
    if depth % 4:
        last = k.value(depth // 4)
        _add_lanes(s, total, k.let(x.at(at, last)), kept, gate, last * 4, column, depth % 4)


def _add_lanes(
    s: StepWriter,
    total: Value,
    x: Value,
    kept: View,
    gate: Value,
    row: Value,
    column: Value,
    lanes: int,
) -> None:
    for lane in range(lanes):
        weight = kept.at([gate, row + lane], column)
        s.k.assign(total, s.k.fma(x.lane(lane).splat(4), weight, total))


class Gates:
    """What a kernel behind the sums reads of the gates of one row. memory: what peepholes see.

    All vectors of these gates (of the norm, biases, peepholes) are one memory object: a device may
    take few."""

    def __init__(
        self,
        s: StepWriter,
        cell: Cell,
        which: Sequence[int],
        sums: View,
        memory: View,
        batch: Value,
    ) -> None:
        self.s, self.cell, self.sums, self.memory, self.batch = s, cell, sums, memory, batch
        places = [p for gate in which for p in self._places(gate) if p is not None]
        self._rows = {place: number for number, place in enumerate(places)}
        found = [np.asarray(cell.values(place)) for place in places]
        self._table = s.weights(layout.pack(np.stack(found))) if found else None

    def _places(self, gate: int) -> list[int | None]:
        """The places of the vectors that the gate has among the operands."""
        norm, peephole = ONE_CELL.norm_of(gate), ONE_CELL.peephole(gate)
        places = [norm, ONE_CELL.bias(gate) if self.cell.has_norm else None, peephole]
        return [p for p in places if self.cell.values(p) is not None]

    def _vector(self, place: int | None, column: Value) -> Value | None:
        row = self._rows.get(-1 if place is None else place)
        if row is None or self._table is None:
            return None
        return self._table.at([self.s.k.value(row)], column)

    def __call__(self, gate: int, column: Value) -> Value:
        """The sum of a gate as its function is to be given it."""
        total = self._raw(gate, column)
        scale = self._vector(ONE_CELL.norm_of(gate), column)
        start = self._vector(ONE_CELL.bias(gate), column)
        if scale is None or start is None:
            return total
        k, (mean, inverse) = self.s.k, self._moments(gate)
        moved = k.cast((k.cast(total, REAL) - mean) * inverse, FLOAT)
        return k.let(moved * scale + start)

    def _raw(self, gate: int, column: Value) -> Value:
        k, number = self.s.k, self.cell.gates.index(gate)
        total = k.let(self.sums.at([self.batch, k.value(number)], column))
        seen = self._vector(ONE_CELL.peephole(gate), column)
        if seen is None:
            return total
        return k.let(k.fma(self.memory.at([self.batch], column), seen, total))

    def _moments(self, gate: int) -> tuple[Value, Value]:
        """Mean and one over the deviation of a gate's sums."""
        k, count = self.s.k, float(self.cell.cells)
        mean = k.let(self._sum(gate, None) * (1 / count)).splat(4)
        variance = k.let(self._sum(gate, mean) * (1 / count))
        return mean, k.let(k.call("rsqrt", variance + EPSILON)).splat(4)

    def _sum(self, gate: int, mean: Value | None) -> Value:
        """The sum of the gate's sums, or of the squares of what they differ from their mean; in 32
        bits."""
        k = self.s.k
        total = k.var(k.zero(kind=REAL), "a")
        with k.loop(0, self.cell.slices, hint="c") as c:
            x = k.let(k.cast(self._raw(gate, c), REAL))
            x = x if mean is None else k.let(x - mean)
            term = x if mean is None else k.let(x * x)
            k.assign(total, total + self.s.valid(c, term, self.cell.cells))
        return k.let((total.lane(0) + total.lane(1)) + (total.lane(2) + total.lane(3)))


# -- states ---------------------------------------------------------------------------------------

_X = X.Input(0, DType.FLOAT32)


def _sigmoid(s: StepWriter, x: Value) -> Value:
    return render_value(s.k, X.logistic(_X), [x], 4)


def _activated(s: StepWriter, op: Op, x: Value) -> Value:
    """NONE is the identity, as the definition has it."""
    name = str(attr(op, "fused_activation_function"))
    if name == "TANH":
        return render_value(s.k, X.tanh(_X), [x], 4)
    low, high = ACTIVATION_BOUNDS[name]
    return _bounded(s, x, low, high)


def _bounded(s: StepWriter, x: Value, low: float, high: float) -> Value:
    for name, bound in (("maximum", low), ("minimum", high)):
        if np.isfinite(bound):
            x = s.k.let(s.k.call(name, x, float(bound)))
    return x


def _clipped(s: StepWriter, x: Value, limit: float) -> Value:
    """Zero means no limit."""
    return _bounded(s, x, -limit, limit) if limit > 0 else x


def _rounded(s: StepWriter, x: Value, scale: float, low: float, high: float) -> Value:
    """To whole numbers of steps of this scale, halves to the even one."""
    return _bounded(s, s.k.let(s.k.call("round_even", x * (1 / scale))), low, high)


def _emit_memory(
    w: Writer, node: Node, cell: Cell, gates: Tensor, memory: Tensor, after: Tensor
) -> None:
    with w.kernel("lstm_memory", node) as s:
        k = s.k
        sums, before, y = s.scratch(gates), s.scratch(memory), s.scratch(after, written=True)
        column, batch = k.grid(cell.slices, cell.batch)
        which = [gate for gate in cell.gates if gate != OUTPUT]
        read = Gates(s, cell, which, sums, before, batch)
        forget = k.let(_sigmoid(s, read(FORGET, column)))
        if INPUT in cell.gates:
            admit = k.let(_sigmoid(s, read(INPUT, column)))
        else:
            admit = k.let(1.0 - forget)
        update = k.let(_activated(s, cell.op, read(CELL, column)))
        new = k.let(forget * before.at([batch], column) + update * admit)
        if cell.codes is not None:
            scale = cell.codes.memory[0]
            new = k.let(_rounded(s, new, scale, -32768, 32767) * scale)
        new = _clipped(s, new, float(attr(cell.op, "cell_clip")))
        k.store(y.argument, y.index([batch], column), new)


def _emit_output(
    w: Writer, node: Node, cell: Cell, step: int, gates: Tensor, memory: Tensor, hidden: Tensor
) -> None:
    weights = cell.values(ONE_CELL.projection)
    inner = w.temporary(f"{cell.name}/inner{step}", (cell.batch, cell.cells))
    with w.kernel("lstm_output", node) as s:
        k = s.k
        sums, new = s.scratch(gates), s.scratch(memory)
        places = None if weights is not None else _Places.of(s, node, cell, step, hidden)
        y = s.scratch(inner, written=True) if places is None else None
        column, batch = k.grid(cell.slices, cell.batch)
        emit = k.let(_sigmoid(s, Gates(s, cell, [OUTPUT], sums, new, batch)(OUTPUT, column)))
        x = k.let(emit * _activated(s, cell.op, k.let(new.at([batch], column))))
        x = _hidden_codes(s, cell, x)
        if places is not None:
            places.put(batch, column, x)
        elif y is not None:
            k.store(y.argument, y.index([batch], column), x)
    if weights is not None:
        _emit_projection(w, node, cell, step, inner, hidden, weights)


def _hidden_codes(s: StepWriter, cell: Cell, x: Value) -> Value:
    """An 8-bit cell's hidden values as its codes have them; those of a projection are without
    their zero point, with which the definition does what is added back in the product."""
    if cell.codes is None:
        return x
    (scale, zero), (unit, own) = cell.codes.hidden, cell.codes.output
    if cell.values(ONE_CELL.projection) is not None:
        return s.k.let(_rounded(s, x, scale, -128 + zero, 127 + zero) * scale)
    codes = _rounded(s, x, scale, -128 - zero, 127 - zero)
    return s.k.let((codes + float(zero - own)) * unit)


@dataclass(frozen=True)
class _Places:
    """Where the output of a step goes: the state, and its row of the result."""

    s: StepWriter
    cell: Cell
    now: Value
    state: View

    @classmethod
    def of(cls, s: StepWriter, node: Node, cell: Cell, step: int, hidden: Tensor) -> _Places:
        state = s.scratch(hidden, written=True)
        s.result()
        return cls(s, cell, _step(s, cell, step), state)

    def put(self, batch: Value, column: Value, x: Value) -> None:
        self.s.k.store(self.state.argument, self.state.index([batch], column), x)
        self.s.put(self.cell.at(self.now, batch), column, x)


def _emit_projection(
    w: Writer, node: Node, cell: Cell, step: int, inner: Tensor, hidden: Tensor, weights: Array
) -> None:
    bias = cell.values(ONE_CELL.projection + 1)
    with w.kernel("lstm_projection", node) as s:
        k = s.k
        x, places = s.scratch(inner), _Places.of(s, node, cell, step, hidden)
        column, batch = k.grid(layout.slices((cell.outputs,)), cell.batch)
        total = k.var(k.zero(), "a")
        if bias is not None:
            k.assign(total, s.weights(layout.pack(bias)).at([], column))
        _add_product(s, total, x, [batch], _columns(weights[None]), k.value(0), column)
        s.macs = cell.batch * cell.cells * cell.outputs
        new = total
        if cell.codes is not None:
            scale, zero = cell.codes.output
            new = k.let(_rounded(s, total, scale, -128 - zero, 127 - zero) * scale)
        places.put(batch, column, _clipped(s, new, float(attr(cell.op, "proj_clip"))))


# -- what is taken --------------------------------------------------------------------------------


def refuses_lstm(op: Op) -> str | None:
    """Why a cell that is not the basic one has no kernel."""
    states = {ONE_CELL.state, ONE_CELL.state + 1}
    for place, tensor in enumerate(op.inputs):
        if place and place not in states and tensor is not None and not tensor.is_constant:
            return f"its operand {place} must be constant"
    if str(attr(op, "fused_activation_function")) == "SIGN_BIT":
        return "the fused activation SIGN_BIT has no kernel"
    return next(_refuses_codes(op), None) if is_codes(op.outputs[0]) else None


def _refuses_codes(op: Op) -> Iterator[str]:
    """Why 8-bit cells have no kernel: all but those with 16-bit gates, whose options a float can
    follow."""
    norm = ONE_CELL.norm_of(OUTPUT) or 0
    if len(op.intermediates) != 5:
        yield "the 8-bit cell with 12 scales has no kernel"
    if op.input(norm) is not None:
        yield "layers of codes that are normalised in the cell have no kernel"
    if any(op.input(ONE_CELL.peephole(gate) or 0) is not None for gate in (FORGET, OUTPUT)):
        yield "peepholes of codes have no kernel"
    if attr(op, "proj_clip"):
        yield "a clipped projection of codes has no kernel"
