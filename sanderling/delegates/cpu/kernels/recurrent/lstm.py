"""The LSTM and RNN operators as layers of recurrent cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .....errors import ModelError
from .....ir import Array, DType, Op, Tensor
from .....ops.base import attr
from .....ops.gemm import signed
from .....ops.lstm import BACKWARD, FORWARD, ONE_CELL, BasicCodes
from .....ops.lstm_cell import CELL, FORGET, INPUT, OUTPUT, Cell, CellPlaces, float_step
from .....ops.lstm_integer import (
    GATES8,
    Finish,
    Finish8,
    Gate8,
    Gate16,
    Scaled,
    cell_exponent,
    integer_step,
    limit_code,
)
from ...codegen.emit import F32, Int
from ...codegen.fixedpoint import scale_words
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..epilogue.contract import words
from ..products.conv import is_folded
from ..row import Kernel
from .basic_cell import emit_basic_codes
from .cells import Builder, Float, Integer, LstmCell, RnnCell, integer_numbers, integer_projection
from .cells8 import Eight, Projection8, norms8, numbers8
from .sequence import (
    NO_LIMIT,
    CellLayer,
    Diagonal,
    Feeds,
    LayerEmitter,
    Projection,
    Room,
    RowAddresses,
    Sizes,
    StepAddresses,
    Term,
    Weights,
    code_core,
    code_term,
    emit_layers,
    float_term,
    rounded,
    spread,
    weights_of,
)

# -- where things stand -------------------------------------------------------------------------


@dataclass(frozen=True)
class Direction:
    """One cell of an operator: operands, inputs, and its columns of an output."""

    x: Tensor
    aux: Tensor | None
    y: Tensor
    y_first: int = 0
    reverse: bool = False
    places: CellPlaces | None = None  # of an LSTM
    base: int = 0  # of an RNN: weights, recurrent weights, bias, state
    aux_weights: int = 0


def directions(op: Op) -> list[Direction]:
    x = op.operand(0)
    if op.name in ("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"):
        return [Direction(x, None, op.outputs[0], places=ONE_CELL)]
    if op.name in ("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN"):
        return [Direction(x, None, op.outputs[0], base=1)]
    is_lstm = op.name == "BIDIRECTIONAL_SEQUENCE_LSTM"
    second, crossed = (op.input(39), op.input(41)) if is_lstm else (op.input(9), op.input(10))
    aux = None if crossed is None else second
    other = second if second is not None and crossed is None else x
    ys = (op.outputs[0], op.outputs[-1])
    first = 0 if ys[0] is not ys[1] else op.operand(8 if is_lstm else 1).shape[is_lstm]
    if is_lstm:
        return [
            Direction(x, aux, ys[0], places=FORWARD),
            Direction(other, aux, ys[1], first, True, BACKWARD),
        ]
    return [
        Direction(x, aux, ys[0], base=1, aux_weights=10),
        Direction(other, aux, ys[1], first, True, base=5, aux_weights=11),
    ]


def _time_batch(op: Op, x: Tensor) -> tuple[int, int]:
    if len(x.shape) == 2:
        return 1, x.shape[0]
    first, second = x.shape[:2]
    return (first, second) if attr(op, "time_major") else (second, first)


def _is_basic(op: Op) -> bool:
    return op.name == "LSTM" and attr(op, "kernel_type") == "BASIC"


def _time_major(op: Op) -> bool:
    return "SEQUENCE" in op.name and bool(attr(op, "time_major"))


def cell_of(op: Op, d: Direction) -> Cell:
    """The definition's view of a cell; activations and states are made up."""
    assert d.places is not None

    def rows(t: Tensor) -> Array:
        return np.broadcast_to(np.zeros((), t.dtype.numpy), (*_time_batch(op, t), t.shape[-1]))

    aux = None if d.aux is None else rows(d.aux)
    return Cell.of(op, [_array(t) for t in op.inputs], d.places, rows(d.x), aux)


def _array(tensor: Tensor | None) -> Array | None:
    if tensor is None:
        return None
    return tensor.data if tensor.is_constant else np.zeros(tensor.shape, tensor.dtype.numpy)


def _recurrent(k: StepEmitter, weights: Weights, padded: int, asymmetric: bool) -> Term | Diagonal:
    if weights.is_diagonal:
        return Diagonal(k, weights, padded)
    return float_term(k, weights, None, weights.scales is not None, asymmetric)


# -- LSTM ---------------------------------------------------------------------------------------


def emit_lstm(k: StepEmitter, op: Op) -> None:
    if _is_basic(op):
        (emit_basic if op.operand(0).dtype is DType.FLOAT32 else emit_basic_codes)(k, op)
        return
    make = _float_layer
    if op.operand(0).dtype is DType.INT8:
        make = _eight_layer if len(op.intermediates) == 12 else _integer_layer
    emit_layers(k, [make(k, op, d, cell_of(op, d)) for d in directions(op)])


def _sizes(op: Op, d: Direction, cell: Cell, padded: int) -> Sizes:
    time, batch = _time_batch(op, d.x)
    return Sizes(batch, time, cell.outputs, padded, padded * len(cell.gates))


def _layer(
    op: Op,
    d: Direction,
    cell: Cell,
    padded: int,
    feeds: Feeds,
    recurrent: Term | Diagonal,
    body: LstmCell,
    projection: Projection | None,
) -> CellLayer:
    at = cell.at.state
    return CellLayer(
        feeds,
        recurrent,
        body,
        projection,
        op.operand(at),
        op.operand(at + 1),
        d.y,
        d.y_first,
        _sizes(op, d, cell, padded),
        _time_major(op),
        d.reverse,
    )


def _float_layer(k: StepEmitter, op: Op, d: Direction, cell: Cell) -> CellLayer:
    at, asymmetric = cell.at, bool(attr(op, "asymmetric_quantize_inputs"))
    padded = rounded(cell.cells, k.target.lanes)
    biases = spread([cell.need(at.bias(g)) for g in cell.gates], padded)
    norm = cell.get(at.norm_of(cell.gates[-1])) is not None

    def weights(indices: Iterator[int | None]) -> Weights:
        return weights_of(op, list(indices), padded)

    own = weights(at.input(g) for g in cell.gates)
    feeds = [(d.x, float_term(k, own, None if norm else biases, False, asymmetric))]
    if d.aux is not None:
        side = weights(at.aux_of(g) for g in cell.gates)
        feeds.append((d.aux, float_term(k, side, None, True, asymmetric)))
    recurrent = _recurrent(k, weights(at.recurrent(g) for g in cell.gates), padded, asymmetric)
    body = _lstm_cell(
        k,
        cell,
        padded,
        norm,
        _float_tables(cell, padded),
        _limits(attr(op, "cell_clip")),
        Float,
        f"f32_{attr(op, 'fused_activation_function')}",
    )
    projection = None
    if op.input(at.projection) is not None:
        projection = FloatProjection.of(k, op, cell, asymmetric)
    return _layer(op, d, cell, padded, feeds, recurrent, body, projection)


def _limits(clip: float) -> Array:
    """Zero means no limit."""
    return words(np.float32(-clip), np.float32(clip)) if clip > 0 else NO_LIMIT


def _lstm_cell(
    k: StepEmitter,
    cell: Cell,
    padded: int,
    norm: bool,
    tables: Array,
    numbers: Array,
    kind: type[Builder],
    variant: str,
) -> LstmCell:
    """tables [sequences, rows, padded]; one for all, if they are the same."""
    peephole = cell.get(cell.at.peephole(cell.gates[-1])) is not None
    step = tables[0].nbytes if len(tables) > 1 else 0
    return LstmCell(
        cell.gates,
        peephole,
        norm,
        cell.cells,
        padded,
        k.constant(numbers),
        k.constant(tables),
        step,
        kind,
        variant,
    )


def _float_tables(cell: Cell, padded: int) -> Array:
    """Peephole, norm weights, norm bias of each gate."""
    tables: Array = np.zeros((1, 3 * len(cell.gates), padded), np.float32)
    for place, gate in enumerate(cell.gates):
        peephole, index = cell.get(cell.at.peephole(gate)), cell.at.peephole(gate)
        if peephole is not None:
            scale = np.float32(1) if peephole.dtype.kind == "f" else cell.scale(index)
            tables[0, 3 * place, : cell.cells] = signed(peephole) * scale
        norm = cell.get(cell.at.norm_of(gate))
        if norm is not None:
            tables[0, 3 * place + 1, : cell.cells] = norm
            tables[0, 3 * place + 2, : cell.cells] = cell.need(cell.at.bias(gate))
    return tables


@dataclass(frozen=True)
class FloatProjection:
    term: Term

    @classmethod
    def of(cls, k: StepEmitter, op: Op, cell: Cell, asymmetric: bool) -> FloatProjection:
        at = cell.at.projection
        wide, bias = rounded(cell.outputs, k.target.lanes), cell.get(at + 1)
        full = None if bias is None else spread([bias], wide)
        clip = _limits(attr(op, "proj_clip"))
        return cls(float_term(k, weights_of(op, [at], wide), full, False, asymmetric, clip))

    @property
    def row_bytes(self) -> int:
        return self.term.row_bytes

    def emit(
        self, k: StepEmitter, source: StepAddresses, target: StepAddresses, room: Room
    ) -> None:
        self.term.one(self.term.rows(source.out, 0, 1, room), target.out)


# -- the basic cell -----------------------------------------------------------------------------


def emit_basic(k: StepEmitter, op: Op) -> None:
    """Weights [4 * cells, depth + cells] for the input and the state side by side. The products
    and what they are made of are outputs, too."""
    x, state, weights, bias, memory = (op.operand(i) for i in range(5))
    (batch, depth), cells = x.shape, state.shape[1]
    padded = rounded(cells, k.target.lanes)
    own, recurrent = (
        Weights(spread(np.split(part, 4), padded))
        for part in (weights.values[:, :depth], weights.values[:, depth:])
    )
    biases = spread(np.split(bias.values, 4), padded)
    nothing: Array = np.zeros((1, 1), np.float32)
    body = LstmCell(
        (INPUT, CELL, FORGET, OUTPUT),
        False,
        False,
        cells,
        padded,
        k.constant(NO_LIMIT),
        k.constant(nothing),
        0,
        Float,
        "f32_TANH",
    )
    layer = CellLayer(
        [(x, float_term(k, own, biases, False, False))],
        float_term(k, recurrent, None, False, False),
        body,
        None,
        state,
        memory,
        op.outputs[0],
        0,
        Sizes(batch, 1, cells, padded, 4 * padded),
        False,
        False,
        Temporaries([k.ptr(t) for t in op.outputs[1:]], depth),
    )
    emit_layers(k, [layer])


@dataclass(frozen=True)
class Temporaries:
    """The basic cell's further outputs: cell state, input beside state, products."""

    places: Sequence[Any]
    depth: int

    def emit(self, emitter: LayerEmitter, unit: Int) -> None:
        k, cells = emitter.k, emitter.sizes.outputs
        memory, joined, products = (
            k.at(place, k.mul(unit, size), F32)
            for place, size in zip(self.places, (cells, self.depth + cells, 4 * cells), strict=True)
        )
        k.copy(memory, emitter.at["memory"], 4 * cells)
        x = k.at(emitter.feeds[0][0], k.mul(unit, self.depth), F32)
        k.copy(joined, x, 4 * self.depth)
        state = k.at(emitter.state, k.mul(unit, cells), F32)
        k.copy(k.at(joined, self.depth, F32), state, 4 * cells)
        for gate in range(4):
            row = k.at(emitter.at["sums"], gate * emitter.sizes.padded, F32)
            k.copy(k.at(products, gate * cells, F32), row, 4 * cells)


# -- integer LSTM -------------------------------------------------------------------------------


def _integer_layer(k: StepEmitter, op: Op, d: Direction, cell: Cell) -> CellLayer:
    padded = rounded(cell.cells, 2 * k.target.lanes)
    gates, finish = [Gate16.of(cell, g) for g in cell.gates], Finish.of(cell)

    exponent = cell_exponent(cell)
    limit = limit_code(attr(op, "cell_clip"), float(cell.scale(cell.at.state + 1)), 2**15 - 1)
    bounds = (-limit, limit) if limit else (-(2**15), 2**15 - 1)
    numbers = [
        *integer_numbers(gates, cell.cells),
        *bounds,
        *scale_words(finish.multiplier, finish.shift),
        finish.zero,
    ]
    body = _lstm_cell(
        k,
        cell,
        padded,
        gates[0].norm is not None,
        _integer_tables(cell, gates, padded),
        np.array(numbers, np.int32),
        Integer,
        f"i8_{code_core(k.target).name}_{-exponent}",
    )
    projection = None if finish.project is None else IntegerProjection.of(k, cell, finish)
    feeds = [(d.x, _codes_term(k, [g.input for g in gates], padded))]
    recurrent = _codes_term(k, [g.recurrent for g in gates], padded)
    return _layer(op, d, cell, padded, feeds, recurrent, body, projection)


def _codes_term(k: StepEmitter, parts: Sequence[Scaled], padded: int) -> Term:
    values = spread([p.values.T.astype(np.int8) for p in parts], padded)
    return code_term(k, values, spread([p.offset for p in parts], padded))


def _eight_layer(k: StepEmitter, op: Op, d: Direction, cell: Cell) -> CellLayer:
    """Gates of 8-bit sums."""
    padded = rounded(cell.cells, 2 * k.target.lanes)
    gates, finish = [Gate8.of(cell, g) for g in GATES8], Finish8.of(cell)
    body = LstmCell(
        GATES8,
        False,
        True,
        cell.cells,
        padded,
        k.constant(numbers8(gates, finish)),
        k.constant(norms8(gates, cell.cells, padded)),
        0,
        Eight,
        "sums8",
    )
    feeds = [(d.x, _codes_term(k, [g.input.product for g in gates], padded))]
    recurrent = _codes_term(k, [g.recurrent.product for g in gates], padded)
    return _layer(op, d, cell, padded, feeds, recurrent, body, Projection8.of(k, finish))


def _integer_tables(cell: Cell, gates: Sequence[Gate16], padded: int) -> Array:
    """A table for each sequence, where peepholes differ between them."""
    rows = max((len(g.peephole.factors) for g in gates if g.peephole is not None), default=1)
    tables: Array = np.zeros((rows, 3 * len(gates), padded), np.int32)
    for place, gate in enumerate(gates):
        if gate.peephole is not None:
            tables[:, 3 * place, : cell.cells] = gate.peephole.factors
        if gate.norm is not None:
            tables[:, 3 * place + 1, : cell.cells] = gate.norm.weights
            tables[:, 3 * place + 2, : cell.cells] = gate.norm.bias
    return tables


@dataclass(frozen=True)
class IntegerProjection:
    term: Term
    numbers: object
    count: int
    row_bytes: int = 0  # the cell writes the codes itself

    @classmethod
    def of(cls, k: StepEmitter, cell: Cell, finish: Finish) -> IntegerProjection:
        part = finish.project
        assert part is not None
        wide = rounded(cell.outputs, 2 * k.target.lanes)
        values = spread([part.values.T.astype(np.int8)], wide)
        low, high = (-finish.limit, finish.limit) if finish.limit else (-128, 127)
        numbers = [*scale_words(part.multiplier, part.shift), finish.state_zero, low, high]
        return cls(
            code_term(k, values, spread([part.offset], wide)),
            k.constant(np.array(numbers, np.int32)),
            wide,
        )

    def emit(
        self, k: StepEmitter, source: StepAddresses, target: StepAddresses, room: Room
    ) -> None:
        self.term.one(RowAddresses(source.codes, 0), source.sums)
        function = integer_projection(k, self.term.product.core)
        k.b.call(function, [source.sums, self.numbers, target.out, target.codes, k.i64(self.count)])


# -- RNN ----------------------------------------------------------------------------------------


def emit_rnn(k: StepEmitter, op: Op) -> None:
    emit_layers(k, [_rnn_layer(k, op, d) for d in directions(op)])


def _rnn_layer(k: StepEmitter, op: Op, d: Direction) -> CellLayer:
    (time, batch), units = _time_batch(op, d.x), op.operand(d.base).shape[0]
    asymmetric = bool(attr(op, "asymmetric_quantize_inputs"))
    padded = rounded(units, k.target.lanes)
    bias = op.operand(d.base + 2).values
    own = weights_of(op, [d.base], padded)
    feeds = [(d.x, float_term(k, own, spread([bias], padded), False, asymmetric))]
    if d.aux is not None:
        side = weights_of(op, [d.aux_weights], padded)
        feeds.append((d.aux, float_term(k, side, None, True, asymmetric)))
    recurrent = _recurrent(k, weights_of(op, [d.base + 1], padded), padded, asymmetric)
    cell = RnnCell(attr(op, "fused_activation_function"), padded)
    return CellLayer(
        feeds,
        recurrent,
        cell,
        None,
        op.operand(d.base + 3),
        None,
        d.y,
        d.y_first,
        Sizes(batch, time, units, padded, padded),
        _time_major(op),
        d.reverse,
    )


# -- what is taken ------------------------------------------------------------------------------

# Index, types, and whether it is a variable.
Operand: TypeAlias = tuple[int, tuple[DType, ...], bool]
FLOAT = (DType.FLOAT32,)
FLOATS = (*FLOAT, DType.INT8, DType.UINT8)
# Types of weights, peepholes, biases, norms and states, by that of the input.
TYPES: dict[DType, tuple[tuple[DType, ...], ...]] = {
    DType.FLOAT32: (FLOATS, FLOATS, *[FLOAT] * 4),
    DType.INT8: tuple(
        (t,) for t in (DType.INT8, DType.INT16, DType.INT32, DType.INT16, DType.INT8, DType.INT16)
    ),
}


def refuses_lstm(op: Op, target: Target) -> str | None:
    x = op.input(0)
    if _is_basic(op):
        return _refuses_basic(op)
    if x is None or x.dtype not in TYPES:
        return "its input's type has no kernel"
    if not _is_whole(op, (8, 25) if op.name.startswith("BI") else (8,)):
        return "its operands do not fit together"
    for d in directions(op):
        reason = _refuses_operands(op, _lstm_operands(d, x.dtype)) or _refuses_cell(op, d)
        if reason is not None:
            return reason
    return None


def _is_whole(op: Op, needed: Iterable[int]) -> bool:
    """These operands are there, and the inputs are [time, batch, depth] or [batch, depth]."""
    if any(op.input(index) is None for index in (0, *needed)):
        return False
    read = [t for d in directions(op) for t in (d.x, d.aux) if t is not None]
    rank = 3 if "SEQUENCE" in op.name else 2
    return all(len(t.shape) == rank and t.shape[:-1] == read[0].shape[:-1] for t in read)


def _lstm_operands(d: Direction, dtype: DType) -> Iterator[Operand]:
    """All operands of a cell."""
    weight, peephole, bias, norm, state, memory = TYPES[dtype]
    at = d.places
    assert at is not None
    for gate in range(4):
        for index, types in (
            (at.input(gate), weight),
            (at.recurrent(gate), weight),
            (at.peephole(gate), peephole),
            (at.bias(gate), bias),
            (at.norm_of(gate), norm),
            (at.aux_of(gate), weight),
        ):
            if index is not None:
                yield index, types, False
    yield at.projection, weight, False
    yield at.projection + 1, bias, False
    yield at.state, state, True
    yield at.state + 1, memory, True


def _refuses_operands(op: Op, operands: Iterator[Operand]) -> str | None:
    if any(t is not None and 0 in t.shape for t in (*op.inputs, *op.outputs)):
        return "a tensor is empty"
    for index, types, variable in operands:
        tensor = op.input(index) if index < len(op.inputs) else None
        if tensor is None:
            continue
        if tensor.dtype not in types:
            return f"input {index} of type {tensor.dtype.short} has no kernel"
        if variable and (not tensor.is_variable or tensor.is_constant):
            return f"input {index} is not a variable"
        if not variable and tensor.sparsity is not None:
            return "sparse weights have no kernel"
        if not variable and not tensor.is_constant and not is_folded(tensor):
            return f"input {index} is computed at run time"
    return None


def _refuses_cell(op: Op, d: Direction) -> str | None:
    """What the definition itself does not take, or takes in ways that are rare."""
    try:
        cell = cell_of(op, d)
        integer_step(cell) if d.x.dtype is DType.INT8 else float_step(cell)
    except ModelError as error:
        return error.what
    at = cell.at
    sides = [at.aux_of] if d.aux is not None else []
    for place in (at.input, at.recurrent, at.peephole, at.norm_of, *sides):
        gates = (g for g in cell.gates if g != CELL or place != at.peephole)
        found = [cell.get(place(g)) for g in gates]
        if len({None if a is None else (a.ndim, a.dtype.kind) for a in found}) > 1:
            return "the gates' operands are of several kinds"
    return None


# The types of a basic cell's weights and bias, by that of the input.
BASIC: dict[DType, tuple[tuple[DType, ...], ...]] = {
    DType.FLOAT32: (FLOAT, FLOAT),
    DType.UINT8: ((DType.UINT8,), (DType.INT32,)),
}


def _refuses_basic(op: Op) -> str | None:
    x, state, weights, bias, memory = (op.operand(i) for i in range(5))
    if x.dtype not in BASIC:
        return "its input's type has no kernel"
    if {len(t.shape) for t in (x, state, weights, memory)} != {2} or len(op.outputs) != 4:
        return "its operands do not fit together"
    (batch, cells), depth = state.shape, x.shape[1]
    fits = memory.shape == state.shape and x.shape[0] == batch and bias.shape == (4 * cells,)
    if not fits or weights.shape != (4 * cells, depth + cells):
        return "its operands do not fit together"
    operands = [(2 + i, types, False) for i, types in enumerate(BASIC[x.dtype])]
    reason = _refuses_operands(op, iter(operands))
    return reason or (None if x.dtype is DType.FLOAT32 else _refuses_codes(op, weights, bias))


def _refuses_codes(op: Op, weights: Tensor, bias: Tensor) -> str | None:
    try:
        BasicCodes.of(op, weights.values, bias.values)
    except ModelError as error:
        return error.what
    return None


def refuses_rnn(op: Op, target: Target) -> str | None:
    if not _is_whole(op, range(9 if op.name.startswith("BI") else 5)):
        return "its operands do not fit together"
    if op.operand(0).dtype is not DType.FLOAT32:
        return "its input's type has no kernel"
    for d in directions(op):
        operands: list[Operand] = [
            (d.base, FLOATS, False),
            (d.base + 1, FLOATS, False),
            (d.base + 2, FLOAT, False),
            (d.base + 3, FLOAT, True),
        ]
        operands += [(d.aux_weights, FLOATS, False)] if d.aux is not None else []
        reason = _refuses_operands(op, iter(operands)) or _refuses_shapes(op, d)
        if reason is not None:
            return reason
    return None


def _refuses_shapes(op: Op, d: Direction) -> str | None:
    units, (_, batch) = op.operand(d.base).shape[0], _time_batch(op, d.x)
    wanted = [
        (d.base, (units, d.x.shape[-1])),
        (d.base + 1, (units, units)),
        (d.base + 2, (units,)),
    ]
    if d.aux is not None:
        wanted.append((d.aux_weights, (units, d.aux.shape[-1])))
    fits = all(op.operand(index).shape == shape for index, shape in wanted)
    fits = fits and op.operand(d.base + 3).nbytes == 4 * batch * units
    return None if fits else "its operands do not fit together"


_LSTM, _RNN = (
    Kernel(emit, refuses, plain_codes=True, changes_state=True)
    for emit, refuses in ((emit_lstm, refuses_lstm), (emit_rnn, refuses_rnn))
)
KERNELS = {
    "LSTM": _LSTM,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _LSTM,
    "BIDIRECTIONAL_SEQUENCE_LSTM": _LSTM,
    "RNN": _RNN,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _RNN,
    "BIDIRECTIONAL_SEQUENCE_RNN": _RNN,
}
