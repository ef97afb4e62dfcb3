"""What a step of a recurrent cell does with its sums: float and integer LSTM cells, and the RNN's.

A cell's function is shared by all layers of its kind: (before, sums, memory, numbers, tables, out,
codes, cells, padded). numbers hold for the layer; tables are rows of `padded` words, three for each
gate: peephole, norm weights, norm bias.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from .....ops.fixed import ACTIVATION_BOUNDS, quantize_multiplier
from .....ops.lstm_cell import CELL, FORGET, INPUT, OUTPUT
from .....ops.lstm_integer import INT16_MAX, Gate16, Norm
from ...codegen import fixedpoint as fixed
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, I8, I16, I32, I64, PTR, Emitter, Int, Type, Value, like, vector
from ...codegen.program import StepEmitter
from ..products.cores import Core
from .sequence import StepAddresses, code_core, store_codes

PEEPHOLE, NORM, BIAS = range(3)
ARGS = (PTR,) * 7 + (I64, I64)
# Words of a gate among an integer cell's numbers: scales of the input, of the state and of the
# peephole, then the norm's.
GATE_WORDS, OF_STATE, OF_PEEPHOLE, OF_NORM = 16, 3, 6, 9
# (gate, place, cell state) -> what the gate's function is applied to.
Total: TypeAlias = Callable[[int, Int, Value], Value]


@dataclass(frozen=True)
class LstmCell:
    """gates: those that the cell has, in the order of its sums."""

    gates: tuple[int, ...]
    peephole: bool
    norm: bool
    cells: int
    padded: int
    numbers: Value
    tables: Value
    tables_step: int  # bytes from one sequence's tables to the next one's
    kind: type[Builder]
    variant: str  # what else the code depends on

    def emit(self, k: StepEmitter, step: StepAddresses) -> None:
        words = "".join(f"_{w}" for w in ("peephole", "norm") if getattr(self, w))
        name = f"lstm{''.join(map(str, self.gates))}_{self.variant}{words}"
        function = k.program.function(name, ARGS, lambda e: self.kind(e, k, self).build())
        tables = k.at(self.tables, k.mul(step.unit, self.tables_step), I8)
        k.b.call(
            function,
            [
                step.before,
                step.sums,
                step.memory,
                self.numbers,
                tables,
                step.out,
                step.codes,
                I64(self.cells),
                I64(self.padded),
            ],
        )


class Builder:
    """Writes a cell's function. Without norm all is one loop; with it, the gates meet between."""

    lanes: int
    element: Type  # of sums

    def __init__(self, e: Emitter, k: StepEmitter, cell: LstmCell) -> None:
        self.e, self.k, self.cell = e, k, cell
        (
            self.before,
            self.sums,
            self.memory,
            self.numbers,
            self.tables,
            self.out,
            self.codes,
            self.cells,
            self.padded,
        ) = e.args

    def build(self) -> None:
        e = self.e
        if not self.cell.norm:
            with e.loop(0, self.padded, self.lanes) as i:
                memory = self.update(i, self.total)
                self.emit(i, memory, self.total(OUTPUT, i, memory))
            return
        early = [gate for gate in self.cell.gates if gate != OUTPUT]
        with e.loop(0, self.padded, self.lanes) as i:
            memory = self.load_memory(i)
            for gate in early:
                self.keep(gate, i, self.total(gate, i, memory))
        for gate in early:
            self.normalize(gate)
        with e.loop(0, self.padded, self.lanes) as i:
            memory = self.update(i, self.kept)
            self.keep(OUTPUT, i, self.total(OUTPUT, i, memory))
        self.normalize(OUTPUT)
        with e.loop(0, self.padded, self.lanes) as i:
            memory = self.load_memory(i)
            self.emit(i, memory, self.kept(OUTPUT, i, memory))

    # What a kind of cell is.

    def total(self, gate: int, i: Int, memory: Value) -> Value:
        """A gate's sums, complete but for the norm."""
        raise NotImplementedError

    def keep(self, gate: int, i: Int, total: Value) -> None:
        """Store a gate's sums where the norm reads them and writes its result."""
        raise NotImplementedError

    def kept(self, gate: int, i: Int, memory: Value) -> Value:
        """A gate's sums as the norm has left them."""
        raise NotImplementedError

    def load_memory(self, i: Int) -> Value:
        raise NotImplementedError

    def update(self, i: Int, total: Total) -> Value:
        """The new cell state, which is stored, too."""
        raise NotImplementedError

    def emit(self, i: Int, memory: Value, total: Value) -> None:
        """The outputs, of the output gate's total."""
        raise NotImplementedError

    def normalize(self, gate: int) -> None:
        raise NotImplementedError

    def has(self, gate: int) -> bool:
        return gate in self.cell.gates

    def row(self, base: Value, gate: int) -> Value:
        """A gate's row of sums."""
        place = self.cell.gates.index(gate)
        return self.e.at(base, self.e.mul(self.padded, place), I32)

    def table(self, gate: int, which: int) -> Value:
        place = 3 * self.cell.gates.index(gate) + which
        return self.e.at(self.tables, self.e.mul(self.padded, place), I32)

    def load(self, base: Value, i: Int, element: Type) -> Value:
        return self.e.load(self.e.at(base, i, element), vector(element, self.lanes))

    def word(self, place: int, t: Type = I32) -> Value:
        """A number in all lanes."""
        there = self.e.at(self.numbers, place, I32)
        return self.e.splat(self.e.load(there, t, 4), self.lanes)


# -- float --------------------------------------------------------------------------------------


def activate(e: Emitter, name: str, x: Value) -> Value:
    """A fused activation of floats."""
    if name == "TANH":
        return vmath.tanh(e, x)
    if name == "SIGN_BIT":
        bits = e.b.bitcast(x, like(x.type, I32))
        negative = e.b.icmp_signed("<", bits, e.const(bits.type, 0))
        return e.b.select(negative, e.const(x.type, 1.0), e.const(x.type, 0.0))
    low, high = ACTIVATION_BOUNDS[name]
    x = x if low == -np.inf else e.fmax(e.const(x.type, low), x)
    return x if high == np.inf else e.fmin(e.const(x.type, high), x)


class Float(Builder):
    """float32; numbers: limits of the cell state; variant: f32_<activation>."""

    def __init__(self, e: Emitter, k: StepEmitter, cell: LstmCell) -> None:
        super().__init__(e, k, cell)
        self.lanes = e.target.lanes
        self.low, self.high = (self.word(i, F32) for i in (0, 1))

    def _active(self, x: Value) -> Value:
        return activate(self.e, self.cell.variant.partition("_")[2], x)

    def _sigmoid(self, x: Value) -> Value:
        return vmath.sigmoid(self.e, x, -1)

    def load_memory(self, i: Int) -> Value:
        return self.load(self.memory, i, F32)

    def total(self, gate: int, i: Int, memory: Value) -> Value:
        total = self.kept(gate, i, memory)
        if not self.cell.peephole or gate == CELL:
            return total
        return self.e.fma(self.load(self.table(gate, PEEPHOLE), i, F32), memory, total)

    def keep(self, gate: int, i: Int, total: Value) -> None:
        self.e.store(total, self.e.at(self.row(self.sums, gate), i, F32))

    def kept(self, gate: int, i: Int, memory: Value) -> Value:
        return self.load(self.row(self.sums, gate), i, F32)

    def update(self, i: Int, total: Total) -> Value:
        e, before = self.e, self.load_memory(i)
        forget = self._sigmoid(total(FORGET, i, before))
        if self.has(INPUT):
            admit = self._sigmoid(total(INPUT, i, before))
        else:
            admit = e.b.fsub(e.const(forget.type, 1.0), forget)
        fresh = e.b.fmul(self._active(total(CELL, i, before)), admit)
        after = e.fma(forget, before, fresh)
        after = e.fmin(self.high, e.fmax(self.low, after))
        e.store(after, e.at(self.memory, i, F32))
        return after

    def emit(self, i: Int, memory: Value, total: Value) -> None:
        out = self.e.b.fmul(self._sigmoid(total), self._active(memory))
        self.e.store(out, self.e.at(self.out, i, F32))

    def normalize(self, gate: int) -> None:
        tables = [self.table(gate, which) for which in (NORM, BIAS)]
        function = self.k.program.function("lstm_norm_f32", [PTR, PTR, PTR, I64, I64], _norm_f32)
        row = self.row(self.sums, gate)
        self.e.b.call(function, [row, *tables, self.cells, self.padded])


def _norm_f32(e: Emitter) -> None:
    """Mean 0 and deviation 1, times weights, and a bias. Beyond the last cell there are zeros."""
    row, weights, bias, cells, padded = e.args
    t = vector(F32, e.target.lanes)
    count = e.b.sitofp(cells, F32)

    def mean(of: Callable[[Int, Value], Value]) -> Value:
        with e.loop(0, padded, t.count, carry=[e.const(t, 0)]) as (i, (total,)):
            e.carry([e.b.fadd(total, of(i, e.load(e.at(row, i, F32), t)))])
        return e.b.fdiv(sum_lanes(e, e.carried[0]), count)

    middle = e.splat(mean(lambda i, x: x), t.count)
    lanes = e.const(vector(I64, t.count), list(range(t.count)))

    def square(i: Int, x: Value) -> Value:
        real = e.b.icmp_signed("<", e.b.add(lanes, e.splat(i, t.count)), e.splat(cells, t.count))
        centred = e.b.select(real, e.b.fsub(x, middle), e.const(t, 0))
        return e.b.fmul(centred, centred)

    variance = e.b.fadd(mean(square), F32(float(np.float32(1e-8))))
    inverse = e.splat(vmath.rsqrt(e, variance), t.count)
    with e.loop(0, padded, t.count) as i:
        x, w, b = (e.load(e.at(p, i, F32), t) for p in (row, weights, bias))
        x = e.b.fmul(e.b.fsub(x, middle), inverse)
        e.store(e.fma(x, w, b), e.at(row, i, F32))


def sum_lanes(e: Emitter, value: Value) -> Value:
    """By halves."""
    add = e.b.fadd if value.type.element == F32 else e.b.add
    lanes = value.type.count
    while lanes > 1:
        lanes //= 2
        value = add(*(e.shuffle(value, None, range(j * lanes, (j + 1) * lanes)) for j in (0, 1)))
    return e.b.extract_element(value, I32(0))


# -- integer ------------------------------------------------------------------------------------


class Integer(Builder):
    """16-bit gates of 32-bit sums, bit by bit as the definition has them.

    numbers: GATE_WORDS for each gate; then limits of the cell state, the scale of the outputs,
    their zero point. variant: i8_<core>_<-exponent of the cell state's scale>.
    """

    def __init__(self, e: Emitter, k: StepEmitter, cell: LstmCell) -> None:
        super().__init__(e, k, cell)
        self.lanes = 2 * e.target.lanes
        self.core: Core = code_core(e.target)
        self.exponent = -int(cell.variant.rpartition("_")[2])
        self.scales = {
            gate: [self._scale(GATE_WORDS * i + place) for place in (0, OF_STATE, OF_PEEPHOLE)]
            for i, gate in enumerate(cell.gates)
        }
        more = GATE_WORDS * len(cell.gates)
        self.low, self.high = (self.word(more + i) for i in (0, 1))
        self.scale, self.zero = self._scale(more + 2), self.word(more + 5)

    def _scale(self, place: int) -> fixed.Scale:
        return fixed.Scale.load(self.e, self.e.at(self.numbers, place, I32), self.lanes)

    def load_memory(self, i: Int) -> Value:
        return self.load(self.memory, i, I16)

    def total(self, gate: int, i: Int, memory: Value) -> Value:
        e = self.e
        to_input, to_state, to_memory = self.scales[gate]
        total = fixed.clamp16(e, to_input(e, self.load(self.row(self.before, gate), i, I32)))
        state = to_state(e, self.load(self.row(self.sums, gate), i, I32))
        total = fixed.clamp16(e, add_near(e, state, total))
        if self.cell.peephole and gate != CELL:
            weights = self.load(self.table(gate, PEEPHOLE), i, I32)
            seen = to_memory(e, e.b.mul(weights, fixed.widen(e, memory)))
            total = fixed.clamp16(e, add_near(e, seen, total))
        return e.b.trunc(total, vector(I16, self.lanes))

    def keep(self, gate: int, i: Int, total: Value) -> None:
        place = self.e.at(self.row(self.sums, gate), i, I32)
        self.e.store(fixed.widen(self.e, total), place)

    def kept(self, gate: int, i: Int, memory: Value) -> Value:
        wide = self.load(self.row(self.sums, gate), i, I32)
        return self.e.b.trunc(wide, vector(I16, self.lanes))

    def update(self, i: Int, total: Total) -> Value:
        e, before = self.e, self.load_memory(i)
        forget = fixed.logistic(e, total(FORGET, i, before), 3)
        if self.has(INPUT):
            admit = fixed.logistic(e, total(INPUT, i, before), 3)
        else:
            admit = e.b.sub(e.const(forget.type, INT16_MAX), forget)
        fresh = fixed.tanh(e, total(CELL, i, before), 3)
        left = fixed.divide_by_pot(e, self._product(forget, before), 15)
        fresh = fixed.divide_by_pot(e, self._product(admit, fresh), 30 + self.exponent)
        after = e.b.add(left, fresh)
        after = e.smin(e.smax(after, self.low), self.high)
        after = e.b.trunc(after, vector(I16, self.lanes))
        e.store(after, e.at(self.memory, i, I16))
        return after

    def _product(self, x: Value, y: Value) -> Value:
        return self.e.b.mul(fixed.widen(self.e, x), fixed.widen(self.e, y))

    def emit(self, i: Int, memory: Value, total: Value) -> None:
        e = self.e
        gate, size = fixed.logistic(e, total, 3), fixed.tanh(e, memory, 15 + self.exponent)
        sums = add_near(e, self.scale(e, self._product(gate, size)), self.zero)
        codes = e.b.trunc(fixed.clamp(e, sums, -128, 127), vector(I8, self.lanes))
        e.store(codes, e.at(self.out, i, I8))
        store_codes(e, self.core, codes, self.codes, i)

    def normalize(self, gate: int) -> None:
        e = self.e
        place = GATE_WORDS * self.cell.gates.index(gate) + OF_NORM
        tables = [self.table(gate, which) for which in (NORM, BIAS)]
        function = self.k.program.function("lstm_norm_i16", [*[PTR] * 4, I64, I64], _norm_i16)
        e.b.call(
            function,
            [
                self.row(self.sums, gate),
                e.at(self.numbers, place, I32),
                *tables,
                self.cells,
                self.padded,
            ],
        )


def add_near(e: Emitter, x: Value, y: Value) -> Value:
    """x + y, to be clamped to 16 bits, for y of 17 bits: nothing overflows."""
    return e.b.add(fixed.clamp(e, x, -(2**20), 2**20), y)


def _norm_i16(e: Emitter) -> None:
    """(row, numbers, weights, bias, cells, padded). numbers: the scale, the guard, 2**20 // cells.
    Beyond the last cell there are zeros."""
    row, numbers, weights, bias, cells, padded = e.args
    t = vector(I32, e.target.lanes)
    wide = vector(I64, t.count)
    with e.loop(0, padded, t.count, carry=[e.const(wide, 0)] * 2) as (i, (total, squares)):
        x = e.load(e.at(row, i, I32), t)
        e.carry(
            [e.b.add(total, e.b.sext(x, wide)), e.b.add(squares, e.b.zext(e.b.mul(x, x), wide))]
        )
    total, squares = (sum_lanes(e, v) for v in e.carried)
    guard, part = (e.b.sext(e.load(e.at(numbers, i, I32), I32, 4), I64) for i in (3, 4))
    mean = e.b.sdiv(e.b.mul(total, I64(1024)), cells)
    spread = e.b.sub(e.b.mul(squares, part), e.b.mul(mean, mean))
    variance = e.b.sdiv(spread, I64(2**20))
    variance = e.b.select(e.b.icmp_signed("<", variance, I64(1)), guard, variance)
    inverse, right = fixed.inverse_sqrt(e, variance)
    m, by, middle = (e.splat(e.b.trunc(v, I32), t.count) for v in (inverse, right, mean))
    to_deviations = fixed.Scale(m, e.const(t, 0), by)
    to_gate = fixed.Scale.load(e, numbers, t.count)
    with e.loop(0, padded, t.count) as i:
        x, w, b = (e.load(e.at(p, i, I32), t) for p in (row, weights, bias))
        x = to_deviations(e, e.b.sub(e.b.mul(x, e.const(t, 1024)), middle))
        x = _divide_1024(e, e.b.add(e.b.mul(x, w), b))
        e.store(fixed.clamp16(e, to_gate(e, x)), e.at(row, i, I32))


def _divide_1024(e: Emitter, x: Value) -> Value:
    """To the nearest, halves away from zero."""
    t = x.type
    sign = e.b.ashr(x, e.const(t, 31))
    size = e.b.sub(e.b.xor(x, sign), sign)  # without a sign: the smallest number has one, too
    half = e.b.and_(e.b.lshr(size, e.const(t, 9)), e.const(t, 1))
    whole = e.b.add(e.b.lshr(size, e.const(t, 10)), half)
    return e.b.sub(e.b.xor(whole, sign), sign)


def integer_numbers(gates: Sequence[Gate16], cells: int) -> list[int]:
    """The words of each gate."""
    found = []
    for gate in gates:
        words = [
            *fixed.scale_words(gate.input.multiplier, gate.input.shift),
            *fixed.scale_words(gate.recurrent.multiplier, gate.recurrent.shift),
        ]
        seen = gate.peephole
        words += [0, 0, 0] if seen is None else fixed.scale_words(seen.multiplier, seen.shift)
        words += _norm_words(gate.norm, cells)
        found += words + [0] * (GATE_WORDS - len(words))
    return found


def _norm_words(norm: Norm | None, cells: int) -> list[int]:
    if norm is None:
        return []
    multiplier, left = quantize_multiplier(norm.scale)
    guard = max(1, int(np.float32(10000) * norm.scale))
    return [*fixed.scale_words(multiplier, left + 12), guard, 2**20 // cells]


def integer_projection(k: StepEmitter, core: Core) -> Value:
    """(sums, numbers, out, codes, count): sums of the projection to codes. numbers: the scale, the
    zero point, the bounds."""

    def build(e: Emitter) -> None:
        sums, numbers, out, codes, count = e.args
        t = vector(I32, 2 * e.target.lanes)
        scale = fixed.Scale.load(e, numbers, t.count)
        zero, low, high = (
            e.splat(e.load(e.at(numbers, i, I32), I32, 4), t.count) for i in range(3, 6)
        )
        with e.loop(0, count, t.count) as i:
            x = add_near(e, scale(e, e.load(e.at(sums, i, I32), t)), zero)
            found = e.b.trunc(e.smin(e.smax(x, low), high), vector(I8, t.count))
            e.store(found, e.at(out, i, I8))
            store_codes(e, core, found, codes, i)

    return k.program.function(f"lstm_project_{core.name}", [*[PTR] * 4, I64], build)


# -- RNN ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RnnCell:
    """The activated sums are the state."""

    activation: str
    padded: int

    def emit(self, k: StepEmitter, step: StepAddresses) -> None:
        function = activation_function(k, self.activation)
        k.b.call(function, [step.sums, step.out, I64(self.padded)])


def activation_function(k: StepEmitter, name: str) -> Value:
    """(source, target, count): floats, whole vectors of them."""

    def build(e: Emitter) -> None:
        source, target, count = e.args
        t = vector(F32, e.target.lanes)
        with e.loop(0, count, t.count) as i:
            x = e.load(e.at(source, i, F32), t)
            e.store(activate(e, name, x), e.at(target, i, F32))

    return k.program.function(f"activate_{name}", [PTR, PTR, I64], build)
