"""The integer LSTM cell whose gates are summed from 8-bit parts: float32 norms, functions by table,
and a projection of 16-bit products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import Array
from .....ops.lstm_cell import CELL, FORGET
from .....ops.lstm_integer import GATES8, INT16_MAX, Finish8, Gate8, every_word
from .....ops.lut import sigmoid
from ...codegen import fixedpoint as fixed
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, I8, I16, I32, I64, PTR, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ..products.cores import Core
from .cells import BIAS, NORM, Builder, LstmCell, Total, add_near, sum_lanes
from .sequence import Room, StepAddresses, code_core, rounded, store_codes

# Words of a gate among the numbers: for each of its parts the scale of the product, the zero point
# and the scale of its codes; then the norm's scale.
PART_WORDS, GATE_WORDS = 7, 16
OF_NORM = 2 * PART_WORDS
# Words before the functions' tables: the gates', then the cell state's limits.
LIMITS = len(GATES8) * GATE_WORDS
TABLES = LIMITS + 16
TABLE = 1 << 16  # elements
FUNCTIONS = ((12, sigmoid), (12, np.tanh), (15, np.tanh))
SIGMOID, TANH, TANH_OF_STATE = range(len(FUNCTIONS))


def numbers8(gates: Sequence[Gate8], finish: Finish8) -> Array:
    """All that the cell's function reads."""
    words: Array = np.zeros(TABLES, np.int32)
    for place, gate in enumerate(gates):
        own = [
            w
            for part in (gate.input, gate.recurrent)
            for w in (
                *fixed.scale_words(part.product.multiplier, part.product.shift),
                part.zero,
                *fixed.scale_words(part.multiplier, part.shift),
            )
        ]
        own.append(np.float32(gate.norm.scale).view(np.int32).item())
        words[place * GATE_WORDS : place * GATE_WORDS + len(own)] = own
    limit = finish.cell_limit
    words[LIMITS : LIMITS + 2] = (-limit, limit) if limit > 0 else (-INT16_MAX - 1, INT16_MAX)
    tables = [every_word(*function).astype(np.int16).view(np.int32) for function in FUNCTIONS]
    return np.concatenate([words, *tables])


def norms8(gates: Sequence[Gate8], cells: int, padded: int) -> Array:
    """Rows of a cell's tables: weights and bias of the norms, in float32."""
    tables: Array = np.zeros((1, 3 * len(gates), padded), np.float32)
    for place, gate in enumerate(gates):
        tables[0, 3 * place + NORM, :cells] = gate.norm.weights
        tables[0, 3 * place + BIAS, :cells] = gate.norm.bias
    return tables


class Eight(Builder):
    """numbers: see numbers8."""

    def __init__(self, e: Emitter, k: StepEmitter, cell: LstmCell) -> None:
        super().__init__(e, k, cell)
        self.lanes = 2 * e.target.lanes
        self.low, self.high = (self.word(LIMITS + i) for i in (0, 1))

    def load_memory(self, i: Int) -> Value:
        return self.load(self.memory, i, I16)

    def total(self, gate: int, i: Int, memory: Value) -> Value:
        first = GATE_WORDS * self.cell.gates.index(gate)
        parts = [
            self._part(first + place, self.load(self.row(base, gate), i, I32))
            for place, base in ((0, self.before), (PART_WORDS, self.sums))
        ]
        near = fixed.clamp(self.e, parts[0], -(2**20), 2**20)
        return fixed.clamp16(self.e, add_near(self.e, parts[1], near))

    def _part(self, place: int, total: Value) -> Value:
        e, zero = self.e, self.word(place + 3)
        to_code, to_sum = (
            fixed.Scale.load(e, e.at(self.numbers, place + at, I32), self.lanes) for at in (0, 4)
        )
        code = fixed.clamp(e, add_near(e, to_code(e, total), zero), -128, 127)
        return to_sum(e, e.b.sub(code, zero))

    def keep(self, gate: int, i: Int, total: Value) -> None:
        self.e.store(total, self.e.at(self.row(self.sums, gate), i, I32))

    def kept(self, gate: int, i: Int, memory: Value) -> Value:
        return self.load(self.row(self.sums, gate), i, I32)

    def update(self, i: Int, total: Total) -> Value:
        e, before = self.e, self.load_memory(i)
        forget, fresh = (total(gate, i, before) for gate in (FORGET, CELL))
        left = fixed.divide_by_pot(e, e.b.mul(forget, fixed.widen(e, before)), 15)
        admit = e.b.sub(e.const(forget.type, INT16_MAX), forget)
        after = e.b.add(left, fixed.divide_by_pot(e, e.b.mul(admit, fresh), 15))
        after = e.smin(e.smax(after, self.low), self.high)
        found = e.b.trunc(after, vector(I16, self.lanes))
        e.store(found, e.at(self.memory, i, I16))
        return found

    def emit(self, i: Int, memory: Value, total: Value) -> None:
        e = self.e
        size = looked_up(e, table_at(e, self.numbers, TANH_OF_STATE), fixed.widen(e, memory))
        product = fixed.divide_by_pot(e, e.b.mul(total, size), 15)
        e.store(e.b.trunc(product, vector(I16, self.lanes)), e.at(self.out, i, I16))

    def normalize(self, gate: int) -> None:
        e = self.e
        place = GATE_WORDS * self.cell.gates.index(gate) + OF_NORM
        kind = TANH if gate == CELL else SIGMOID
        args = [
            self.row(self.sums, gate),
            e.at(self.numbers, place, I32),
            self.table(gate, NORM),
            self.table(gate, BIAS),
            table_at(e, self.numbers, kind),
            self.cells,
        ]
        function = self.k.program.function("lstm_norm_sums8", [*[PTR] * 5, I64], _norm)
        e.b.call(function, args)


def table_at(e: Emitter, numbers: Value, which: int) -> Value:
    return e.at(e.at(numbers, TABLES, I32), which * TABLE, I16)


def looked_up(e: Emitter, table: Value, words: Value) -> Value:
    """A table's numbers at these 16-bit numbers, all 32 bits wide."""
    found = words
    for lane in range(words.type.count):
        place = e.b.add(e.b.sext(e.b.extract_element(words, I32(lane)), I64), I64(1 << 15))
        value = e.b.sext(e.load(e.at(table, place, I16), I16, 2), I32)
        found = e.b.insert_element(found, value, I32(lane))
    return found


def _norm(e: Emitter) -> None:
    """(row, scale, weights, bias, table, cells): the definition's sums run from left to right, and
    its products are rounded apart. The results are the table's."""
    row, place, weights, bias, table, cells = e.args

    def real(i: Int) -> Value:
        return e.b.sitofp(e.load(e.at(row, i, I32), I32, 4), F32)

    with e.loop(0, cells, carry=[F32(0.0)] * 2) as (i, (total, squares)):
        x = real(i)
        e.carry([e.b.fadd(total, x), e.b.fadd(squares, e.b.fmul(x, x))])
    count = e.b.sitofp(cells, F32)
    mean, square = (e.b.fdiv(value, count) for value in e.carried)
    variance = e.b.fsub(square, e.b.fmul(mean, mean))
    none = e.b.fcmp_ordered("==", variance, F32(0.0))
    variance = e.b.select(none, F32(float(np.float32(1e-8))), variance)
    inverse, scale = e.b.fdiv(F32(1.0), vmath.sqrt(e, variance)), e.load(place, F32, 4)
    with e.loop(0, cells) as i:
        w, b = (e.load(e.at(p, i, F32), F32, 4) for p in (weights, bias))
        normal = e.b.fmul(e.b.fsub(real(i), mean), inverse)
        out = e.b.fadd(e.b.fmul(e.b.fmul(normal, w), scale), b)
        word = e.b.sext(_word(e, e.b.fmul(out, F32(float(1 << 12)))), I64)
        found = e.load(e.at(table, e.b.add(word, I64(1 << 15)), I16), I16, 2)
        e.store(e.b.sext(found, I32), e.at(row, i, I32))


def _word(e: Emitter, x: Value) -> Value:
    """To the nearest in 16 bits, halves away from zero. What leaves 32 bits becomes the smallest,
    and so does what is no number."""
    fits = e.b.fcmp_ordered("<", x, F32(2.0**31))
    x = e.b.select(fits, x, F32(-(2.0**15)))
    x = e.fmin(e.fmax(x, F32(-(2.0**15))), F32(2.0**15 - 1))
    whole = e.b.fptosi(x, I32)
    rest = e.b.fsub(x, e.b.sitofp(whole, F32))
    up, down = (
        e.b.zext(e.b.fcmp_ordered(sign, rest, F32(half)), I32)
        for sign, half in ((">=", 0.5), ("<=", -0.5))
    )
    return e.b.sub(e.b.add(whole, up), down)


@dataclass(frozen=True)
class Projection8:
    """From the cell's 16-bit products to the state's codes."""

    weights: Value
    bias: Value
    numbers: Value
    outputs: int
    padded: int
    row_bytes: int = 0  # nothing is encoded

    @classmethod
    def of(cls, k: StepEmitter, finish: Finish8) -> Projection8:
        outputs, cells = finish.weights.shape
        padded = rounded(cells, 2 * k.target.lanes)
        weights: Array = np.zeros((outputs, padded), np.int16)
        weights[:, :cells] = finish.weights
        m, shift = (int(v) for v in (finish.multiplier, finish.shift))
        factor = (m + (1 << 15)) >> 16 if m < 0x7FFF0000 else 0x7FFF
        low, high = (-finish.limit, finish.limit) if finish.limit > 0 else (-128, 127)
        numbers = np.array([factor, 15 - shift, finish.zero, low, high], np.int64)
        return cls(
            k.constant(weights),
            k.constant(finish.bias.astype(np.int64)),
            k.constant(numbers),
            outputs,
            padded,
        )

    def emit(
        self, k: StepEmitter, source: StepAddresses, target: StepAddresses, room: Room
    ) -> None:
        core = code_core(k.target)
        function = k.program.function(
            f"lstm_project_sums8_{core.name}", [*[PTR] * 6, I64, I64], lambda e: _project(e, core)
        )
        k.b.call(
            function,
            [
                source.out,
                self.weights,
                self.bias,
                self.numbers,
                target.out,
                target.codes,
                I64(self.outputs),
                I64(self.padded),
            ],
        )


def _project(e: Emitter, core: Core) -> None:
    """(products, weights, bias, numbers, out, codes, outputs, padded): 64-bit sums."""
    products, weights, bias, numbers, out, codes, outputs, padded = e.args
    lanes = e.target.lanes
    whole, wide = vector(I32, lanes), vector(I64, lanes)
    factor, right, zero, low, high = (e.load(e.at(numbers, i, I64), I64, 8) for i in range(5))
    half = e.b.shl(I64(1), e.b.sub(right, I64(1)))
    with e.loop(0, outputs) as row:
        line = e.at(weights, e.mul(row, padded), I16)
        with e.loop(0, padded, lanes, carry=[e.const(wide, 0)]) as (i, (acc,)):
            x, w = (
                e.b.sext(e.load(e.at(p, i, I16), vector(I16, lanes), 2), whole)
                for p in (products, line)
            )
            e.carry([e.b.add(acc, e.b.sext(e.b.mul(x, w), wide))])
        total = e.b.add(sum_lanes(e, e.carried[0]), e.load(e.at(bias, row, I64), I64, 8))
        scaled = e.b.ashr(e.b.add(e.b.mul(total, factor), half), right)
        found = e.b.add(e.b.sext(e.b.trunc(scaled, I32), I64), zero)
        code = e.b.trunc(e.smin(e.smax(found, low), high), I8)
        e.store(code, e.at(out, row, I8))
        store_codes(e, core, code, codes, row)
