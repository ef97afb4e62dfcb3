"""The inner step of matrix products: which elements are multiplied, and how B is packed for it.

A core takes `depth` elements of a row of A (one broadcast) and a vector of B for as many columns as
a vector has 32-bit lanes. B is packed [k / depth][column][depth], panel by panel. The last elements
of B are zero where k is no multiple of depth: what A holds there does not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from .....ir import Array
from ...codegen.bfloat import multiply_pairs
from ...codegen.emit import F32, I8, I16, I32, I64, Emitter, Type, Value, vector
from ...isa.base import isa_of
from ...isa.targets import Target
from .tiles import Panels, Tile


class Core(Protocol):
    """One row of the table of products."""

    @property
    def name(self) -> str: ...
    @property
    def depth(self) -> int: ...
    @property
    def a_bytes(self) -> int: ...  # of an element of A, as the tile reads it
    @property
    def b_type(self) -> type: ...
    @property
    def acc(self) -> Type: ...  # an accumulator's element
    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value: ...


@dataclass(frozen=True)
class FloatCore:
    """float32, one multiply-add."""

    name: str = "f32"
    depth: int = 1
    a_bytes: int = 4
    b_type: type = np.float32
    acc: Type = F32

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return e.fma(a, column, acc)


@dataclass(frozen=True)
class BfloatCore:
    """bfloat16 in pairs, summed in float32."""

    name: str = "bf16"
    depth: int = 2
    a_bytes: int = 2
    b_type: type = np.uint16
    acc: Type = F32

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return multiply_pairs(e, a, column, acc)


@dataclass(frozen=True)
class DotCore:
    """8 bit x 8 bit by a dot product instruction, four deep. signed: A is; B always is."""

    signed: bool = False
    depth: int = 4
    a_bytes: int = 1
    b_type: type = np.int8
    acc: Type = I32

    @property
    def name(self) -> str:
        return "s8" if self.signed else "u8"

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return isa_of(e.target).dot_bytes(e, acc, a, column)


@dataclass(frozen=True)
class MatrixCore(DotCore):
    """s8 x s8, eight deep, by an instruction that multiplies two rows with two columns.

    In a step, two rows of a tile share a register of A, and two columns one of B. So an accumulator
    holds two columns of two rows until the sums are done; of an odd number of rows the last one
    stands alone, with half of its products for nothing. (Instructions for unsigned and for mixed
    bytes exist too: activations have a sign on this architecture, so nothing asks for them.)"""

    signed: bool = True
    depth: int = 8

    @property
    def name(self) -> str:
        return "s8x8"

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        """Two rows with two columns."""
        return isa_of(e.target).multiply_byte_matrix(e, acc, a, column)

    def pairs(self, e: Emitter, sums: Sequence[Value], tile: Tile) -> list[Value]:
        """Vectors of columns, row by row, as accumulators: for each two rows and each vector, one
        for every two columns."""
        out = []
        for row in range(0, tile.rows, 2):
            for v in range(tile.vectors):
                x = sums[row * tile.vectors + v]
                y = x if row + 1 == tile.rows else sums[(row + 1) * tile.vectors + v]
                for at in range(0, tile.lanes, 2):
                    order = [at, at + 1, tile.lanes + at, tile.lanes + at + 1]
                    out.append(e.shuffle(x, y, order))
        return out

    def rows(self, e: Emitter, acc: Sequence[Value], tile: Tile) -> list[Value]:
        """The way back."""
        each = tile.lanes // 2
        out = []
        for row in range(tile.rows):
            first, own = row // 2 * tile.vectors * each, 2 * (row % 2)
            for v in range(tile.vectors):
                parts = acc[first + v * each : first + (v + 1) * each]
                halves = [e.shuffle(part, None, [own, own + 1]) for part in parts]
                out.append(e.join(halves))
        return out


@dataclass(frozen=True)
class PairCore:
    """16 bit x 16 bit in pairs, by a multiply-add of words. 8-bit operands are widened, their
    zero points subtracted, so that sums are exact without any correction.

    chunk: how many steps 32 bits hold, where they do not hold all; see `far`."""

    name: str = "s16"
    depth: int = 2
    a_bytes: int = 2
    b_type: type = np.int16
    acc: Type = I32
    chunk: int = 0

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return isa_of(e.target).dot_words(e, acc, a, column)


@dataclass(frozen=True)
class WordCore:
    """16 bit x 16 bit to 32, one deep: a widening multiply-add."""

    name: str = "w16"
    depth: int = 1
    a_bytes: int = 2
    b_type: type = np.int16
    acc: Type = I32
    chunk: int = 0

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return e.b.add(acc, e.b.mul(e.b.sext(a, acc.type), e.b.sext(column, acc.type)))


@dataclass(frozen=True)
class BlockCore:
    """Weights with a scale for each block of `size` along the depth: `inner` sums a block in
    integers, the blocks are summed in float32.

    B begins each block with its columns' scales. A byte holds the weights of `parts` steps of the
    inner core: read as they are stored, 4-bit weights take a quarter of the memory of words."""

    inner: PairCore | WordCore
    size: int
    bits: int
    a_bytes: int = 2
    b_type: type = np.int8
    acc: Type = F32

    @property
    def name(self) -> str:
        return f"{self.inner.name}_w{self.bits}b{self.size}"

    @property
    def parts(self) -> int:
        return 8 // self.bits

    @property
    def depth(self) -> int:
        return self.inner.depth * self.parts

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return self.inner.step(e, a, column, acc)

    def widened(self, e: Emitter, raw: Value) -> list[Value]:
        """The words of each part of a vector of bytes."""
        t = vector(I16, raw.type.count)
        whole = e.b.sext(raw, t)
        return [
            e.b.ashr(
                e.b.shl(whole, e.const(t, 16 - (p + 1) * self.bits)), e.const(t, 16 - self.bits)
            )
            if p + 1 < self.parts
            else e.b.ashr(whole, e.const(t, 8 - self.bits))
            for p in range(self.parts)
        ]


def dot_core(target: Target) -> DotCore | None:
    """The product of activations with int8 weights, where there is an instruction for it, in steps
    of 32 bits."""
    isa = isa_of(target)
    return DotCore(isa.dot_is_signed) if isa.has_dot else None


def byte_core(target: Target) -> DotCore | None:
    """The same, for whole tiles: the widest there is."""
    return MatrixCore() if isa_of(target).has_byte_matrix else dot_core(target)


def wide_core(target: Target) -> PairCore | WordCore:
    return PairCore() if isa_of(target).has_pairs else WordCore()


def far(core: PairCore | WordCore, total: int, peak: int) -> PairCore | WordCore:
    """The core for 16-bit activations and weights whose sizes sum up to `total` and go up to
    `peak`, less than 2**15. Where sums may leave 32 bits, whatever the activations, they go on in
    float64 every `chunk` steps."""
    if (total + 1) << 15 < 2**31:  # 1: rounding.SPLIT
        return core
    chunk = (2**31 - 1) // (core.depth * peak << 15)
    return replace(core, name=f"{core.name}_far{chunk}", chunk=chunk)


def chunk_of(core: Core) -> int:
    return core.chunk if isinstance(core, PairCore | WordCore) else 0


def unit_type(core: Core) -> Type:
    """`depth` elements of A, as they are broadcast."""
    if core.a_bytes == 4:
        return F32
    return I32 if core.depth * core.a_bytes == 4 else I16


def column_type(core: Core, lanes: int) -> Type:
    """A register of B: a vector of columns, or two of them."""
    if core.a_bytes == 4:
        return vector(F32, lanes)
    if isinstance(core, MatrixCore):
        return vector(I8, 2 * core.depth)
    return vector(I8 if core.a_bytes == 1 else I16, core.depth * lanes)


def tile_step(
    e: Emitter, core: Core, a: Sequence[Value], b: Value, acc: Sequence[Value], tile: Tile
) -> list[Value]:
    """One inner step of a tile: a are the rows' addresses, b that of the panel's columns."""
    if isinstance(core, BlockCore):
        return _block_step(e, core, a, b, acc, tile)
    if isinstance(core, MatrixCore):
        return _matrix_step(e, core, a, b, acc, tile)
    t = column_type(core, tile.lanes)
    size = core.depth * core.a_bytes * tile.lanes
    columns = [e.load(e.at(b, v * size, I8), t, size) for v in range(tile.vectors)]
    return _products(e, core, a, columns, acc, tile)


def _block_step(
    e: Emitter, core: BlockCore, a: Sequence[Value], b: Value, acc: Sequence[Value], tile: Tile
) -> list[Value]:
    """Part by part: each has its own elements of A."""
    size = core.inner.depth * tile.lanes
    found = [
        core.widened(e, e.load(e.at(b, v * size, I8), vector(I8, size), size))
        for v in range(tile.vectors)
    ]
    for part, columns in enumerate(zip(*found, strict=True)):
        here = [e.at(row, part * core.inner.depth * core.a_bytes, I8) for row in a]
        acc = _products(e, core.inner, here, columns, acc, tile)
    return list(acc)


def _products(
    e: Emitter,
    core: Core,
    a: Sequence[Value],
    columns: Sequence[Value],
    acc: Sequence[Value],
    tile: Tile,
) -> list[Value]:
    t, unit = column_type(core, tile.lanes), unit_type(core)
    out = []
    for row, pointer in enumerate(a):
        x = e.splat(e.load(pointer, unit, core.a_bytes), tile.lanes)
        x = x if x.type == t else e.b.bitcast(x, t)
        out += [
            core.step(e, x, column, acc[row * tile.vectors + v]) for v, column in enumerate(columns)
        ]
    return out


def _matrix_step(
    e: Emitter, core: MatrixCore, a: Sequence[Value], b: Value, acc: Sequence[Value], tile: Tile
) -> list[Value]:
    t, each = column_type(core, tile.lanes), tile.columns // 2
    columns = [e.load(e.at(b, i * t.count, I8), t, t.count) for i in range(each)]
    out = []
    for pair in range(math.ceil(tile.rows / 2)):
        own = [e.load(pointer, I64, 1) for pointer in a[2 * pair : 2 * pair + 2]]
        both = e.b.insert_element(e.splat(own[0], 2), own[-1], I32(1))
        x = e.b.bitcast(both, t)
        out += [core.step(e, x, y, acc[pair * each + i]) for i, y in enumerate(columns)]
    return out


def padded_depth(core: Core, k: int) -> int:
    return math.ceil(k / core.depth) * core.depth


def pack(core: Core, weights: Array, panels: Panels) -> Array:
    """[n, k] -> for each panel [k / depth][columns][depth], one after the other."""
    n, k = weights.shape
    deep = padded_depth(core, k) // core.depth
    parts = []
    for first, columns in panels.spans():
        full: Array = np.zeros((columns, deep * core.depth), core.b_type)
        mine = weights[first : min(first + columns, n)]
        full[: len(mine), :k] = mine
        parts.append(full.reshape(columns, deep, core.depth).transpose(1, 0, 2).reshape(-1))
    return np.concatenate(parts)


def pack_blocks(core: BlockCore, weights: Array, scales: Array, panels: Panels) -> Array:
    """[n, k] and [n, blocks] -> for each panel and block the scales, then the steps' bytes."""
    blocks, inner = scales.shape[1], core.inner.depth
    parts = []
    for first, columns in panels.spans():
        codes, steps = (
            np.zeros((columns, a.shape[1]), t)
            for a, t in ((weights, np.uint8), (scales, np.float32))
        )
        mine = slice(first, first + columns)
        codes[: len(weights[mine])] = weights[mine].astype(np.int8).view(np.uint8)
        steps[: len(scales[mine])] = scales[mine]
        deep = (codes & (2**core.bits - 1)).reshape(columns, blocks, -1, core.parts, inner)
        places = np.arange(core.parts, dtype=np.uint8)[:, None] * np.uint8(core.bits)
        whole = np.bitwise_or.reduce(deep << places, axis=3).transpose(1, 2, 0, 3)
        heads = np.ascontiguousarray(steps.T).view(np.uint8).reshape(blocks, -1)
        parts.append(np.hstack([heads, whole.reshape(blocks, -1)]).reshape(-1))
    return np.concatenate(parts)


def panel_bytes(core: Core, k: int, columns: int) -> int:
    if isinstance(core, BlockCore):
        return k // core.size * 4 * columns + padded_depth(core, k) * columns // core.parts
    return padded_depth(core, k) * columns * np.dtype(core.b_type).itemsize
