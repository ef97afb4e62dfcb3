"""Recurrent operators: cells that walk over sequences. A unit of work is one sequence in one cell.

What does not depend on the state is multiplied for a block of time steps at once. Then each step
adds the product with the state, and the cell's function makes the next state of the sums. The
states live in scratch meanwhile, with room for whole vectors; the caller's arrays are read once
and written once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from .....ir import Array, Op, Tensor
from .....ops.base import scale_zero
from .....ops.gemm import signed
from ...codegen.emit import (
    F32,
    I8,
    I16,
    I32,
    I64,
    PTR,
    ArgumentList,
    Arguments,
    Callee,
    Emitter,
    Int,
    Value,
    like,
    vector,
)
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ...runtime.abi import ALIGN
from ..epilogue.contract import Epilogue, column_words, words
from ..epilogue.floats import FloatEpilogue, HybridEpilogue
from ..epilogue.plain import WholeEpilogue
from ..products.cores import (
    Core,
    DotCore,
    FloatCore,
    MatrixCore,
    byte_core,
    pack,
    padded_depth,
    panel_bytes,
    wide_core,
)
from ..products.dynamic_range import HALF, asymmetric_codes, range_of, symmetric_codes
from ..products.gemm import tile_function
from ..products.tiles import Panels, Tile

# Bytes of products with the input that wait for their time step.
BLOCK = 96 * 1024
ROWS = 6  # of a tile, where registers allow
NO_LIMIT = words(np.float32(-np.inf), np.float32(np.inf))


def rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def code_core(target: Target) -> Core:
    """The product of 8-bit codes with int8 weights."""
    return byte_core(target) or wide_core(target)


def code_shift(core: Core) -> int:
    """What is added to int8 codes for this product."""
    return 128 if isinstance(core, DotCore) and not core.signed else 0


# -- products -----------------------------------------------------------------------------------


class Product:
    """Rows times a packed matrix [n, k] of whole vectors, row by row or a few at a time."""

    def __init__(
        self,
        k: StepEmitter,
        core: Core,
        epilogue: Epilogue,
        matrix: Array,
        numbers: Sequence[Array],
        common: Array = NO_LIMIT,
    ) -> None:
        n, depth = matrix.shape
        lanes = k.target.lanes
        vectors = next(v for v in (4, 3, 2, 1) if n // lanes % v == 0)
        self.k, self.core, self.epilogue = k, core, epilogue
        self.panels = Panels(n, vectors, lanes)
        self.steps = padded_depth(core, depth) // core.depth
        self.b = k.constant(pack(core, matrix, self.panels))
        self.numbers = k.constant(column_words(self.panels.spans(), *numbers))
        self.common = k.constant(common)
        self.panel = panel_bytes(core, depth, self.panels.columns)

    def tile(
        self,
        rows: int,
        a: Value,
        lda: Int,
        c: Value,
        ldc: int,
        start: Value | None = None,
        residual: Value | None = None,
        row_words: Value | None = None,
    ) -> None:
        """start: the sums begin with these numbers instead of the product's own."""
        k, panels = self.k, self.panels
        chains = 1 if rows > 1 or self.steps < 4 else {4: 2, 3: 2, 2: 4, 1: 8}[panels.vectors]
        tile = Tile(rows, panels.vectors, panels.lanes, chains)
        function = tile_function(k, self.core, self.epilogue, tile, tile.columns)
        with k.loop(0, panels.count) as panel:
            across = k.mul(panel, 4 * panels.columns)
            numbers = k.at(start or self.numbers, k.mul(across, self.epilogue.arrays), I8)
            given = {
                "a": a,
                "lda": k.i64(lda),
                "b": k.at(self.b, k.mul(panel, self.panel), I8),
                "steps": I64(self.steps),
                "params": numbers,
                "common": self.common,
                "c": k.at(c, across, I8),
                "ldc": I64(ldc),
            }
            if residual is not None:
                given |= {"residual": k.at(residual, across, I8), "ldr": I64(ldc)}
            if row_words is not None:
                given["rows"] = row_words
            function.call(k, **given)

    def many(
        self,
        count: Int,
        a: Value,
        lda: Int,
        c: Value,
        ldc: int,
        residual: Value | None,
        row_words: Value | None,
    ) -> None:
        k, vectors = self.k, self.panels.vectors
        held = 2 * vectors if isinstance(self.core, MatrixCore) else vectors  # registers of B
        most = max(1, min(ROWS, (k.target.registers - held - 2) // vectors))
        if held > vectors and most > 1:
            most -= most % 2  # rows go in pairs

        def tiles(rows: int, first: Int, last: Int) -> None:
            with k.loop(first, last, rows) as row:
                down = k.mul(row, ldc)
                self.tile(
                    rows,
                    k.at(a, k.mul(row, lda), I8),
                    lda,
                    k.at(c, down, I8),
                    ldc,
                    None,
                    residual and k.at(residual, down, I8),
                    row_words and k.at(row_words, k.mul(row, 8), I8),
                )

        whole = k.mul(k.div(count, most), most)
        tiles(most, 0, whole)
        if most > 1:
            tiles(1, whole, count)


# -- rows as the products read them -------------------------------------------------------------


def codes_function(k: StepEmitter, core: Core) -> Callee:
    """int8 codes for a product."""

    def build(e: Emitter, given: Arguments) -> None:
        for start, stop, lanes in _pieces(e, given["count"]):
            t = vector(I8, lanes) if lanes > 1 else I8
            with e.loop(start, stop, lanes) as i:
                codes = e.load(e.at(given["source"], i, I8), t)
                store_codes(e, core, codes, given["target"], i)

    arguments = ArgumentList({"source": PTR, "target": PTR, "count": I64})
    return k.program.declared(f"recurrent_codes_{core.name}", arguments, build)


def store_codes(e: Emitter, core: Core, codes: Value, target: Value, place: Int) -> None:
    """int8 codes (a vector or one) as elements of a product's row."""
    if core.a_bytes == 2:
        e.store(e.b.sext(codes, like(codes.type, I16)), e.at(target, place, I16))
    else:
        moved = e.b.xor(codes, e.const(codes.type, -code_shift(core)))
        e.store(moved, e.at(target, place, I8))


def _pieces(e: Emitter, count: Value) -> list[tuple[Int, Int, int]]:
    """(start, stop, lanes): whole vectors, then single elements."""
    lanes = e.target.lanes
    whole = e.mul(e.div(count, lanes), lanes)
    return [(0, whole, lanes), (whole, count, 1)]


def encode_function(k: StepEmitter, core: Core, asymmetric: bool) -> Callee:
    """Floats to codes; words: zero point and step of the row."""
    shift = code_shift(core)

    def build(e: Emitter, given: Arguments) -> None:
        source, row_words, count = given["source"], given["words"], given["count"]
        find = asymmetric_codes if asymmetric else symmetric_codes
        zero, step, inverse = find(e, *range_of(e, source, 0, count, e.target.lanes))
        e.store(e.b.add(zero, I32(shift)), row_words, 4)
        e.store(step, e.at(row_words, 1, F32), 4)
        lowest = -128 if asymmetric else -127
        for start, stop, lanes in _pieces(e, count):
            t = vector(F32, lanes) if lanes > 1 else F32
            own_zero, own_inverse = (e.splat(v, lanes) if lanes > 1 else v for v in (zero, inverse))
            with e.loop(start, stop, lanes) as i:
                code = _code(e, e.load(e.at(source, i, F32), t), own_zero, own_inverse, lowest)
                store_codes(e, core, e.b.trunc(code, like(t, I8)), given["target"], i)

    name = f"recurrent_encode_{core.name}_" + ("asymmetric" if asymmetric else "symmetric")
    arguments = ArgumentList({"source": PTR, "target": PTR, "words": PTR, "count": I64})
    return k.program.declared(name, arguments, build)


def _code(e: Emitter, x: Value, zero: Value, inverse: Value, lowest: int) -> Value:
    """To the nearest, halves away from zero."""
    t = x.type
    value = e.fmin(e.fmax(e.b.fmul(x, inverse), e.const(t, -512)), e.const(t, 512))
    below = e.b.fcmp_ordered("<", value, e.const(t, 0))
    nudge = e.b.select(below, e.const(t, -HALF), e.const(t, HALF))
    code = e.b.add(e.b.fptosi(e.b.fadd(value, nudge), zero.type), zero)
    return e.smin(e.smax(code, e.const(zero.type, lowest)), e.const(zero.type, 127))


@dataclass(frozen=True)
class RowAddresses:
    """Rows of A, and the words that belong to each."""

    a: Value
    lda: Int
    words: Value | None = None


@dataclass(frozen=True)
class Room:
    """Scratch for rows that are encoded: their bytes, and two words for each."""

    codes: Value
    words: Value


class Term:
    """A summand of the gates: rows times weights. depth: elements of a row that are read."""

    def __init__(self, product: Product, depth: int, encode: Callee | None = None) -> None:
        self.product, self.depth, self.encode = product, depth, encode
        self.is_hybrid = isinstance(product.epilogue, HybridEpilogue)

    @property
    def row_bytes(self) -> int:
        """The bytes of an encoded row; none where rows are read as they are."""
        core = self.product.core
        return rounded(padded_depth(core, self.depth) * core.a_bytes, ALIGN) * bool(self.encode)

    def rows(self, source: Value, stride: Int, count: Int, room: Room) -> RowAddresses:
        """stride: bytes from row to row of the source."""
        k = self.product.k
        if self.encode is None:
            return RowAddresses(source, stride)
        with k.loop(0, count) as row:
            given = {
                "source": k.at(source, k.mul(row, stride), I8),
                "target": k.at(room.codes, k.mul(row, self.row_bytes), I8),
                "count": I64(self.depth),
            }
            if self.is_hybrid:
                given["words"] = k.at(room.words, k.mul(row, 8), I8)
            self.encode.call(k, **given)
        return RowAddresses(room.codes, self.row_bytes, room.words if self.is_hybrid else None)

    def many(self, rows: RowAddresses, count: Int, c: Value, ldc: int, add: bool) -> None:
        """All of the rows' sums to c; add: to what is there."""
        self.product.many(count, rows.a, rows.lda, c, ldc, c if add else None, rows.words)

    def one(self, rows: RowAddresses, c: Value, before: Value | None = None) -> None:
        """One row's sums to c. before: sums to add to, where the term adds."""
        adds = before is not None and not isinstance(self.product.epilogue, WholeEpilogue)
        start = before if adds and not self.is_hybrid else None
        residual = before if adds and self.is_hybrid else None
        self.product.tile(1, rows.a, rows.lda, c, 0, start, residual, rows.words)


@dataclass(frozen=True)
class Weights:
    """float32 [n, k]; int8 with a scale for each row, for activations quantised on the fly; or
    the diagonals [n] of float32 matrices."""

    values: Array
    scales: Array | None = None

    @property
    def is_diagonal(self) -> bool:
        return self.values.ndim == 1


def spread(arrays: Sequence[Array], padded: int) -> Array:
    """Arrays [cells, ...] of the gates, one after the other, with zeros up to `padded` cells."""
    out: Array = np.zeros((len(arrays), padded, *arrays[0].shape[1:]), arrays[0].dtype)
    for place, array in zip(out, arrays, strict=True):
        place[: len(array)] = array
    return out.reshape(-1, *arrays[0].shape[1:])


def weights_of(op: Op, indices: Sequence[int | None], padded: int) -> Weights:
    """The gates' matrices, one below the other."""
    tensors = [t for i in indices if i is not None and (t := op.input(i)) is not None]
    arrays = [t.data for t in tensors if t.data is not None]
    if arrays[0].dtype.kind == "f":
        return Weights(spread(arrays, padded))
    scales = [
        np.full(len(a), scale_zero(t)[0], np.float32) for a, t in zip(arrays, tensors, strict=True)
    ]
    return Weights(spread([signed(a) for a in arrays], padded), spread(scales, padded))


def float_term(
    k: StepEmitter,
    weights: Weights,
    bias: Array | None,
    add: bool,
    asymmetric: bool,
    limits: Array = NO_LIMIT,
) -> Term:
    """add: to the sums that are there; hybrid sums then come as a residual."""
    n, depth = weights.values.shape
    bias = np.zeros(n, np.float32) if bias is None else bias
    if weights.scales is None:
        epilogue = FloatEpilogue(residual=add)
        return Term(Product(k, FloatCore(), epilogue, weights.values, [bias], limits), depth)
    core = code_core(k.target)
    numbers = [weights.values.sum(axis=1, dtype=np.int32), weights.scales, bias]
    product = Product(k, core, HybridEpilogue(residual=add), weights.values, numbers, limits)
    return Term(product, depth, encode_function(k, core, asymmetric))


def code_term(k: StepEmitter, values: Array, offset: Array) -> Term:
    """int8 codes times int8 weights, and numbers to add that know nothing of code_shift."""
    core = code_core(k.target)
    offset = offset - code_shift(core) * values.sum(axis=1, dtype=np.int64)
    numbers = [offset.astype(np.int64).astype(np.int32)]
    return Term(
        Product(k, core, WholeEpilogue(), values, numbers), values.shape[1], codes_function(k, core)
    )


class Diagonal:
    """The product with the state where the matrices are diagonal."""

    def __init__(self, k: StepEmitter, weights: Weights, padded: int) -> None:
        self.k, self.padded, self.gates = k, padded, weights.values.size // padded
        self.values = k.constant(weights.values)
        self.function = k.program.function("recurrent_diagonal", [PTR] * 4 + [I64], _diagonal)

    def one(self, state: Value, c: Value, before: Value) -> None:
        k = self.k
        for gate in range(self.gates):
            places = [k.at(p, gate * self.padded, F32) for p in (self.values, before, c)]
            k.b.call(self.function, [state, *places, I64(self.padded)])


def _diagonal(e: Emitter) -> None:
    state, values, before, c, count = e.args
    t = vector(F32, e.target.lanes)
    with e.loop(0, count, t.count) as i:
        x, w, y = (e.load(e.at(p, i, F32), t) for p in (state, values, before))
        e.store(e.fma(x, w, y), e.at(c, i, F32))


# -- sequences ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepAddresses:
    """The addresses that a cell's step works with: sums of the input and of all terms (of the
    state's, for integers), its rows, and where codes go that the next product reads."""

    before: Value
    sums: Value
    memory: Value
    out: Value
    codes: Value
    unit: Int  # number of the sequence


class Cell(Protocol):
    """What a step does with the sums."""

    def emit(self, k: StepEmitter, step: StepAddresses) -> None: ...


class Projection(Protocol):
    """From the cell's outputs to the state."""

    @property
    def row_bytes(self) -> int: ...
    def emit(
        self, k: StepEmitter, source: StepAddresses, target: StepAddresses, room: Room
    ) -> None: ...


# Inputs that are known for all times.
Feeds: TypeAlias = "Sequence[tuple[Tensor, Term]]"


@dataclass(frozen=True)
class CellLayer:
    """One cell over one direction of time."""

    feeds: Feeds
    recurrent: Term | Diagonal
    cell: Cell
    projection: Projection | None
    state: Tensor
    memory: Tensor | None
    y: Tensor
    y_first: int  # of a row of y
    sizes: Sizes
    time_major: bool
    reverse: bool
    more: More | None = None


class More(Protocol):
    """Outputs besides the states, of the last step."""

    def emit(self, emitter: LayerEmitter, unit: Int) -> None: ...


@dataclass(frozen=True)
class Sizes:
    """padded: cells in whole vectors; columns: sums of a step."""

    batch: int
    time: int
    outputs: int
    padded: int
    columns: int


class Memory:
    """Scratch, piece by piece: sizes first, addresses afterwards."""

    def __init__(self) -> None:
        self.size = 0

    def take(self, size: int) -> int:
        begin = self.size
        self.size += rounded(size, ALIGN)
        return begin


class LayerEmitter:
    """Emits a layer. Addresses are asked for here, before the loops."""

    def __init__(self, k: StepEmitter, layer: CellLayer) -> None:
        self.k, self.layer = k, layer
        sizes = self.sizes = layer.sizes
        self.row = 4 * sizes.columns
        self.block = max(1, min(sizes.time, BLOCK // self.row))
        self.item = layer.state.dtype.numpy.itemsize
        self.is_integer = self.item == 1
        self.feeds = [(k.ptr(x), x, term) for x, term in layer.feeds]
        self.y, self.state = k.ptr(layer.y), k.ptr(layer.state)
        self.memory = None if layer.memory is None else k.ptr(layer.memory)
        self._lay_out()

    def _lay_out(self) -> None:
        k, layer, memory = self.k, self.layer, Memory()
        wide = 4 * max(self.sizes.padded, rounded(self.sizes.outputs, 2 * k.target.lanes))
        once = [0, 0]  # bytes of an encoded row: of the state, of the cell's outputs
        if isinstance(layer.recurrent, Term):
            once[0] = layer.recurrent.row_bytes
        if layer.projection is not None:
            once[1] = layer.projection.row_bytes
        most = max(term.row_bytes for _, term in layer.feeds)
        sizes = {
            "before": self.block * self.row,
            "sums": self.row + wide,
            "memory": wide,
            "out": wide,
            "made": wide,
            "codes": wide + once[0],
            "made_codes": wide + once[1],
            "words": 64,
            "fed": self.block * most,
            "fed_words": self.block * 8,
        }
        places = {name: memory.take(size) for name, size in sizes.items()}
        base = k.scratch(memory.size)
        self.at = {name: k.at(base, place, I8) for name, place in places.items()}

    def sequence(self, unit: Int) -> None:
        """One sequence from its first step to its last."""
        k = self.k
        self._enter(unit)
        with k.loop(0, self.sizes.time, self.block) as first:
            count = k.min(self.block, k.sub(self.sizes.time, first))
            self._feed(unit, first, count)
            with k.loop(0, count) as t:
                self._step(unit, k.at(self.at["before"], k.mul(t, self.row), I8))
                there = self._place(self.y, self.layer.y, unit, k.add(first, t))
                there = k.at(there, self.layer.y_first * self.item, I8)
                k.copy(there, self.at["out"], self.sizes.outputs * self.item)
        if self.layer.more is not None:
            self.layer.more.emit(self, unit)
        self._leave(unit)

    def _place(self, base: Value, tensor: Tensor, unit: Int, time: Int) -> Value:
        """The row of a sequence at a time."""
        k = self.k
        size = tensor.shape[-1] * tensor.dtype.numpy.itemsize
        time = k.sub(self.sizes.time - 1, time) if self.layer.reverse else time
        outer, inner = (time, unit) if self.layer.time_major else (unit, time)
        many = self.sizes.batch if self.layer.time_major else self.sizes.time
        return k.at(base, k.mul(k.add(k.mul(outer, many), inner), size), I8)

    def _stride(self, tensor: Tensor) -> int:
        """Bytes from one time to the next."""
        size = tensor.shape[-1] * tensor.dtype.numpy.itemsize
        size *= self.sizes.batch if self.layer.time_major else 1
        return -size if self.layer.reverse else size

    def _enter(self, unit: Int) -> None:
        k, at = self.k, self.at
        wide = 4 * self.sizes.padded
        for name in ("out", "memory"):
            k.fill(at[name], wide, 0)
        size = self.sizes.outputs * self.item
        k.copy(at["out"], k.at(self.state, k.mul(unit, size), I8), size)
        if self.is_integer:
            encode = codes_function(k, code_core(k.target))
            encode.call(k, source=at["out"], target=at["codes"], count=I64(self.sizes.outputs))
        if self.memory is not None:
            k.copy(at["memory"], self._memory(unit), self._memory_bytes)

    def _leave(self, unit: Int) -> None:
        """States that are no variables are passed around by the graph."""
        k, layer = self.k, self.layer
        size = self.sizes.outputs * self.item
        if layer.state.is_variable:
            k.copy(k.at(self.state, k.mul(unit, size), I8), self.at["out"], size)
        if layer.memory is not None and layer.memory.is_variable:
            k.copy(self._memory(unit), self.at["memory"], self._memory_bytes)

    @property
    def _memory_bytes(self) -> int:
        assert self.layer.memory is not None
        return self.layer.memory.nbytes // self.sizes.batch

    def _memory(self, unit: Int) -> Value:
        return self.k.at(self.memory, self.k.mul(unit, self._memory_bytes), I8)

    def _feed(self, unit: Int, first: Int, count: Int) -> None:
        """The part of the sums that does not depend on the state, for a block of time."""
        room = Room(self.at["fed"], self.at["fed_words"])
        for number, (base, tensor, term) in enumerate(self.feeds):
            source = self._place(base, tensor, unit, first)
            rows = term.rows(source, self._stride(tensor), count, room)
            term.many(rows, count, self.at["before"], self.row, number > 0)

    def _step(self, unit: Int, before: Value) -> None:
        k, at, recurrent = self.k, self.at, self.layer.recurrent
        if isinstance(recurrent, Diagonal):
            recurrent.one(at["out"], at["sums"], before)
        elif self.is_integer:
            recurrent.one(RowAddresses(at["codes"], 0), at["sums"])
        else:
            rows = recurrent.rows(at["out"], 0, 1, Room(at["codes"], at["words"]))
            recurrent.one(rows, at["sums"], before)
        last = StepAddresses(before, at["sums"], at["memory"], at["out"], at["codes"], unit)
        if self.layer.projection is None:
            self.layer.cell.emit(k, last)
            return
        made = StepAddresses(before, at["sums"], at["memory"], at["made"], at["made_codes"], unit)
        self.layer.cell.emit(k, made)
        self.layer.projection.emit(k, made, last, Room(at["made_codes"], at["words"]))


def emit_layers(k: StepEmitter, layers: Sequence[CellLayer]) -> None:
    """Every sequence of every cell is a unit of work."""
    emitters = [LayerEmitter(k, layer) for layer in layers]
    batch = layers[0].sizes.batch
    begin, end = k.share(len(emitters) * batch)
    for number, emitter in enumerate(emitters):
        skip = number * batch
        with k.loop(k.max(begin, skip), k.min(end, skip + batch)) as unit:
            emitter.sequence(k.sub(unit, skip))
