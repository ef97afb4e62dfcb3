"""The basic LSTM cell of uint8 codes: one product of the input beside the state, then 16-bit fixed
point, bit by bit as the definition has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import Op, Tensor
from .....ops.lstm import BasicCodes
from ...codegen import fixedpoint as fixed
from ...codegen.emit import I8, I16, I32, I64, PTR, Emitter, Int, Value, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..epilogue.plain import WholeEpilogue
from ..products.cores import Core, DotCore, padded_depth, wide_core
from .sequence import Memory, Product, code_core, code_shift, rounded, spread, store_codes

GATES = 4
CELL_ARGS = [PTR] * 5 + [I64]


def emit_basic_codes(k: StepEmitter, op: Op) -> None:
    x, state, weights, bias, memory = (t for t in op.inputs[:5] if t is not None)
    numbers = BasicCodes.of(op, weights.values, bias.values)
    row = _Row(k, numbers, x.shape[1], state.shape[1])
    inputs, outputs = [k.ptr(t) for t in (x, state, memory)], [k.ptr(t) for t in op.outputs]
    begin, end = k.share(x.shape[0])
    with k.loop(begin, end) as unit:
        mine = [_part(k, p, t, unit) for p, t in zip(inputs, (x, state, memory), strict=True)]
        made = [_part(k, p, t, unit) for p, t in zip(outputs, op.outputs, strict=True)]
        row.emit(mine, made)
        for tensor, old, new in ((state, mine[1], made[0]), (memory, mine[2], made[1])):
            if tensor.is_variable:  # else the graph passes the state around
                k.copy(old, new, tensor.nbytes // x.shape[0])


def _part(k: StepEmitter, base: Value, tensor: Tensor, unit: Int) -> Value:
    """A tensor's row."""
    return k.at(base, k.mul(unit, tensor.nbytes // tensor.shape[0]), I8)


class _Row:
    """Emits the step of one sequence. Its rows lie in scratch meanwhile, in whole vectors."""

    def __init__(self, k: StepEmitter, cell: BasicCodes, depth: int, cells: int) -> None:
        self.k, self.depth, self.cells = k, depth, cells
        padded = self.padded = rounded(cells, 2 * k.target.lanes)
        core = _core(k.target, cell)
        matrix = spread(np.split(cell.weights, GATES), padded)
        offset = spread(np.split(cell.bias.astype(np.int64), GATES), padded)
        offset = offset - code_shift(core) * matrix.sum(axis=1)
        self.product = Product(k, core, WholeEpilogue(), matrix, [offset.astype(np.int32)])
        self.encode = _codes_function(k, core)
        self.numbers = k.constant(np.array(_words(cell), np.int32))
        memory = Memory()
        sizes = {
            "codes": padded_depth(core, depth + cells) * core.a_bytes,
            "sums": 4 * GATES * padded,
            "gates": 2 * GATES * padded,
            "memory": 2 * padded,
            "out": padded,
        }
        places = {name: memory.take(size) for name, size in sizes.items()}
        base = k.scratch(memory.size)
        self.at = {name: k.at(base, place, I8) for name, place in places.items()}

    def emit(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
        """inputs: x, activation, state; outputs: activation, state, what is multiplied, gates."""
        k, at, cells = self.k, self.at, self.cells
        x, activation, state = inputs
        out, new_state, joined, gates = outputs
        k.copy(joined, x, self.depth)
        k.copy(k.at(joined, self.depth, I8), activation, cells)
        k.b.call(self.encode, [joined, at["codes"], I64(self.depth + cells)])
        self.product.tile(1, at["codes"], 0, at["sums"], 0)
        k.fill(at["memory"], 2 * self.padded, 0)
        k.copy(at["memory"], state, 2 * cells)
        function = k.program.function("lstm_basic_u8", CELL_ARGS, _build_cell)
        places = [at[name] for name in ("sums", "memory", "gates", "out")]
        k.b.call(function, [*places, self.numbers, I64(self.padded)])
        k.copy(out, at["out"], cells)
        k.copy(new_state, at["memory"], 2 * cells)
        for gate in range(GATES):
            row = k.at(at["gates"], gate * self.padded, I16)
            k.copy(k.at(gates, gate * cells, I16), row, 2 * cells)


def _core(target: Target, cell: BasicCodes) -> Core:
    """Weights may have nine bits without their zero point."""
    core = code_core(target)
    fits = cell.weights.min(initial=0) >= -128 and cell.weights.max(initial=0) <= 127
    return core if fits or not isinstance(core, DotCore) else wide_core(target)


def _codes_function(k: StepEmitter, core: Core) -> Value:
    """(source, target, count): uint8 codes without their zero point for a product."""

    def build(e: Emitter) -> None:
        source, target, count = e.args
        with e.loop(0, count) as i:
            code = e.b.xor(e.load(e.at(source, i, I8), I8), I8(-128))
            store_codes(e, core, code, target, i)

    return k.program.function(f"basic_codes_{core.name}", [PTR, PTR, I64], build)


def _words(cell: BasicCodes) -> list[int]:
    m, left, right = fixed.scale_words(cell.multiplier, cell.shift)
    return [m, left, right, max(right - 1, 0), int(right > 0)]


@dataclass(frozen=True)
class _Up:
    """A quantised multiplier that rounds ties up. half: the place of the bit that decides, where
    any is; some: whether there is one."""

    m: Value
    left: Value
    right: Value
    half: Value
    some: Value

    def __call__(self, e: Emitter, x: Value) -> Value:
        high = fixed.high_mul(e, e.b.shl(x, self.left), self.m)
        rest = e.b.and_(e.b.ashr(high, self.half), self.some)
        return e.b.add(e.b.ashr(high, self.right), rest)


def _build_cell(e: Emitter) -> None:
    """(sums, memory, gates, out, numbers, padded): gates in the order admit, update, forget,
    emit; the memory is brought one step on."""
    sums, memory, gates, out, numbers, padded = e.args
    lanes = 2 * e.target.lanes
    words, bytes_ = vector(I16, lanes), vector(I8, lanes)
    scale = _Up(*(e.splat(e.load(e.at(numbers, i, I32), I32, 4), lanes) for i in range(5)))

    def gate(number: int, i: Int) -> Value:
        place = e.add(e.mul(padded, number), i)
        total = scale(e, e.load(e.at(sums, place, I32), vector(I32, lanes)))
        found = fixed.narrow16(e, total)
        e.store(found, e.at(gates, place, I16))
        return found

    with e.loop(0, padded, lanes) as i:
        admit, update, forget, emit = (gate(number, i) for number in range(GATES))
        fresh = fixed.high_mul16(e, fixed.logistic(e, admit, 3), fixed.tanh(e, update, 3))
        before = e.load(e.at(memory, i, I16), words)
        kept = fixed.high_mul16(e, fixed.logistic(e, forget, 3), before)
        after = fixed.add_saturated(e, fixed.divide_by_pot(e, fresh, 4), kept)
        e.store(after, e.at(memory, i, I16))
        size = fixed.tanh(e, fixed.add_saturated(e, after, after), 3)
        shown = fixed.high_mul16(e, fixed.logistic(e, emit, 3), size)
        code = fixed.clamp(e, fixed.divide_by_pot(e, shown, 8), -128, 127)
        e.store(e.b.xor(e.b.trunc(code, bytes_), e.const(bytes_, -128)), e.at(out, i, I8))
