"""8-bit products without a dot product instruction, in 16-bit sums that cannot overflow.

`multiply_bytes` (vpmaddubsw) sums two products of u8 x s8 in 16 bits, saturated: exact for any
activations if the positive weights of a sum add up to no more than 128, and the negative ones to no
less than -128 (255 * 128 = 32640 < 2**15). Weights are known at compile time, and most keep that
even for a chain of two such sums: 5 instructions for 64 products instead of 8 in 16 bits, and half
the bytes of weights. Where a block of weights (a step of a panel) does not, it is cut into parts
that do: the first is summed with the others, the further ones, rare, in a loop of their own with
the place of their activations beside them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import Array
from ...codegen.emit import I8, I32, I64, Emitter, Value, vector
from ...isa.base import isa_of
from ...isa.targets import Target
from .cores import DotCore
from .tiles import Panels, Tile

QUAD = 4  # elements of A in a 32-bit lane
LIMIT = 128  # of the positive weights of a 16-bit sum, and of the negative ones

# Costs of the products of a quad with a vector of columns, in instructions; for chains of this many
# quads. Measured on registers (Zen 5, AVX2): 119 GMAC/s in words, 140 and 184 in chains of 1 and 2.
# (202 in chains of 3, but then every second or third block of weights would have to be cut.)
WIDE, CHAINS = 3.6, {1: 3.0, 2: 2.4}


@dataclass(frozen=True)
class ChainCore(DotCore):
    """u8 x s8; a step is a chain of quads in one 16-bit sum."""

    @property
    def chain(self) -> int:
        return self.depth // QUAD

    @property
    def name(self) -> str:
        return f"u8_chain{self.chain}"

    @property
    def work(self) -> float:
        """Instructions of a step."""
        return 2.0 * self.chain + 1

    def step(self, e: Emitter, a: Value, column: Value, acc: Value) -> Value:
        return self.steps(e, [a], [column], acc)

    def steps(self, e: Emitter, a: Sequence[Value], columns: Sequence[Value], acc: Value) -> Value:
        """One product after the other in 16 bits, then all of them to 32."""
        isa = isa_of(e.target)
        found = [isa.multiply_bytes(e, x, y) for x, y in zip(a, columns, strict=True)]
        total = found[0]
        for more in found[1:]:
            total = e.b.add(total, more)
        return isa.dot_words(e, acc, total, e.const(total.type, 1))


def chain_core(target: Target, weights: Array) -> ChainCore | None:
    """The chain that is estimated to be the fastest for these weights [n, k]; None if that is
    slower than 16-bit products."""
    if not isa_of(target).has_byte_pairs:
        return None
    quads = math.ceil(weights.shape[1] / QUAD)
    panels = Panels(len(weights), 2, target.lanes)
    costs = {WIDE * quads * panels.count: 0}
    for chain, cost in CHAINS.items():
        padded = math.ceil(quads / chain) * chain
        extra = sum(int(overflows(chain, b).sum()) for b in _blocks(weights, panels, chain))
        costs[cost * padded * panels.count + CHAINS[1] * extra] = chain
    best = costs[min(costs)]
    return ChainCore(depth=QUAD * best) if best else None


def _blocks(weights: Array, panels: Panels, chain: int) -> list[Array]:
    """[quads, columns, 4] of each panel; columns that are not there are zeros, as is the end."""
    n, k = weights.shape
    deep = math.ceil(k / (QUAD * chain)) * chain
    found = list[Array]()
    for first, columns in panels.spans():
        full = np.zeros((columns, deep * QUAD), np.int32)
        mine = weights[first : min(first + columns, n)]
        full[: len(mine), :k] = mine
        found.append(full.reshape(columns, deep, QUAD).transpose(1, 0, 2))
    return found


def cut(chain: int, quads: Array) -> tuple[Array, Array, Array]:
    """Weights [quads, columns, 4] of a panel that keep the limit in every chain; and what is left
    over: numbers of quads, and weights of the same form, each of which keeps the limit alone."""
    bad = np.repeat(overflows(chain, quads), chain)
    kept = np.where(bad[:, None, None], 0, quads)
    numbers, left = list[Array](), list[Array]()
    rest = np.flatnonzero(bad)
    count = 1
    while rest.size:
        parts = [(quads[rest] + i) // count for i in range(count)]
        done = ~np.any([overflows(1, part) for part in parts], axis=0)
        first = done & (rest % chain == 0)  # the first quad of a chain stays with a part
        kept[rest[first]] = parts[0][first]
        for i, part in enumerate(parts):
            chosen = done & part.any(axis=(1, 2)) & ~(first & (i == 0))
            numbers.append(rest[chosen])
            left.append(part[chosen])
        rest, count = rest[~done], count + 1
    if not numbers:
        return kept, rest, quads[:0]
    return kept, np.concatenate(numbers), np.concatenate(left)


def overflows(chain: int, quads: Array) -> Array:
    """[quads, columns, 4] -> [steps]: whether a 16-bit sum of the step may overflow."""
    sums = quads.reshape(-1, chain, quads.shape[1], 2, 2)
    high = np.maximum(sums, 0).sum(axis=(1, 4)) > LIMIT
    low = np.minimum(sums, 0).sum(axis=(1, 4)) < -LIMIT
    wide = (sums < -128) | (sums > 127)
    return np.asarray(high.any(axis=(1, 2)) | low.any(axis=(1, 2)) | wide.any(axis=(1, 2, 3, 4)))


@dataclass(frozen=True)
class Packed:
    """A product's weights: those of all panels [k / 4][columns][4]; of what is left over the
    weights [columns][4], the quads' places in A, and where each panel's begin in these lists."""

    weights: Array
    more: Array
    quads: Array
    starts: Array


def pack_chains(core: ChainCore, groups: Array, panels: Panels) -> Packed:
    """groups: [groups, n, k]."""
    found = [cut(core.chain, b) for group in groups for b in _blocks(group, panels, core.chain)]
    total = sum(len(numbers) for _, numbers, _ in found)
    more, place = np.zeros((total, panels.columns, QUAD), np.int8), 0
    for _, numbers, left in found:
        more[place : place + len(numbers), : left.shape[1]] = left
        place += len(numbers)
    return Packed(
        np.concatenate([kept.astype(np.int8).reshape(-1) for kept, _, _ in found]),
        more,
        np.concatenate([numbers for _, numbers, _ in found]).astype(np.int64),
        np.cumsum([0, *(len(numbers) for _, numbers, _ in found)], dtype=np.int64),
    )


def chain_step(
    e: Emitter,
    core: ChainCore,
    a: Sequence[Value],
    b: Value,
    acc: Sequence[Value],
    tile: Tile,
    chain: int,
) -> list[Value]:
    """One step of a tile: a are the rows' addresses, b that of the panel's columns."""
    size = QUAD * tile.lanes
    t = vector(I8, size)
    columns = [
        [e.load(e.at(b, (c * tile.vectors + v) * size, I8), t, size) for c in range(chain)]
        for v in range(tile.vectors)
    ]
    found = []
    for row, pointer in enumerate(a):
        words = [e.load(e.at(pointer, c * QUAD, I8), I32, 1) for c in range(chain)]
        units = [e.b.bitcast(e.splat(word, tile.lanes), t) for word in words]
        sums = acc[row * tile.vectors : (row + 1) * tile.vectors]
        found += [core.steps(e, units, own, s) for own, s in zip(columns, sums, strict=True)]
    return found


@dataclass(frozen=True)
class Leftover:
    """Where a panel's parts are that did not go with the others: weights `apart` bytes from one to
    the next, bytes from a row's beginning to its activations."""

    weights: Value
    places: Value
    count: Value
    apart: Value

    def add(
        self, e: Emitter, core: ChainCore, rows: Sequence[Value], start: list[Value], tile: Tile
    ) -> list[Value]:
        with e.loop(0, self.count, carry=start) as (i, acc):
            place = e.load(e.at(self.places, i, I64), I64, 8)
            here = [e.at(row, place, I8) for row in rows]
            weights = e.at(self.weights, e.mul(i, self.apart), I8)
            e.carry(chain_step(e, core, here, weights, acc, tile, 1))
        return e.carried
