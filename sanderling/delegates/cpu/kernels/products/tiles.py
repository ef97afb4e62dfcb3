"""Register tiles: rows x vectors of accumulators, and the model that chooses among them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...isa.targets import Target


@dataclass(frozen=True)
class Tile:
    """rows x (vectors * lanes) accumulators, `chains` times: a small tile sums every chains-th step
    on its own, so that the steps do not wait for each other."""

    rows: int
    vectors: int
    lanes: int
    chains: int = 1

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.columns}" + f"_c{self.chains}" * (self.chains > 1)


@dataclass(frozen=True)
class Panels:
    """How n columns are cut: panels of `vectors` vectors, the last one as narrow as it can be."""

    n: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def count(self) -> int:
        return math.ceil(self.n / self.columns)

    @property
    def last(self) -> int:
        """Vectors of the last panel."""
        return math.ceil((self.n - (self.count - 1) * self.columns) / self.lanes)

    @property
    def padded(self) -> int:
        return ((self.count - 1) * self.vectors + self.last) * self.lanes

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first column, columns) of each panel."""
        for p in range(self.count):
            yield p * self.columns, (self.vectors if p + 1 < self.count else self.last) * self.lanes


# Cycles, fitted to single layers on an Ice Lake server core (1x1 layers of MobileNetV2 and
# EfficientNet-Lite0, f32 and u8): two multiply-adds and two loads a cycle, results after LATENCY
# cycles; CALL for the tile's prologue and the loops around it, STORE for an accumulator's way out.
LATENCY, CALL, STORE = 4.5, 18.0, 3.0
# Bytes a cycle at which a panel of B that does not fit the level before comes from the next: each
# tile reads it anew. (7x7x512 to 512 by 3x3 in f32 took twice as long with panels of 1.2 MB.)
LEVELS = ((32 * 1024, 128.0), (640 * 1024, 22.0), (1 << 62, 8.0))

# Cycles that a load takes from products of several instructions, which fill a core's front end:
# tall tiles of one vector have more loads. (AVX2, int8: 38 instructions for 12 products in 6x16,
# 48 for 11 in 11x8.)
LOAD = 0.25

# Cycles that a step loses where rows and panel do not stay in the first cache, by the panel's
# vectors: fewer in wide panels, for which a row is read less often. (f32: 7x7x1152 to 192 in 126 us
# instead of 155, 13x13x512 to 1000 in 1120 instead of 1460; a single vector lost already with half
# as much: 28x28x240 to 40 in 145 us instead of 108.)
STALL, OTHERS, FIRST = {1: 3.0, 2: 1.2}, 0.4, 48 * 1024


def tile_cycles(rows: int, vectors: int, chains: int, steps: int, work: float, width: int) -> float:
    """The cycles of one tile with this many inner steps; work: instructions of a multiply-add."""
    products = rows * vectors
    line = vectors * width
    speed = next(speed for size, speed in LEVELS if steps * line <= size)
    step = max(products * work / 2, (rows + vectors) / 2, LATENCY * work / chains, line / speed)
    if work > 1:
        step += LOAD * (rows + vectors)
    if steps * (line + 4 * rows) > (FIRST if vectors > 1 else FIRST // 2):
        step += STALL.get(vectors, OTHERS)
    return CALL + steps * step + products * (STORE + (chains - 1))


def choose(
    target: Target,
    m: int,
    n: int,
    steps: int,
    work: float = 1,
    chained: bool = True,
    parts: int = 0,
    pairs: bool = False,
) -> tuple[float, Tile]:
    """The tile with the least estimated time for m x n outputs, and that time in cycles. parts:
    products that a step of a chain sums (chained.py). pairs: rows are multiplied in pairs, and
    columns too, so that a vector of columns is two registers of B (MatrixCore)."""
    spare = 1 if work == 1 else 2  # the broadcast, and a product where that is not fused
    spare += parts and 1 + parts  # ones, and further products
    held = 2 if pairs else max(parts, 1)  # vectors of B for each of the tile's
    best: tuple[float, Tile] | None = None
    widest = math.ceil(n / target.lanes)
    for vectors in range(1, min(8, widest) + 1):
        most = max(1, min((target.registers - spare - held * vectors) // vectors, 16))
        # Of three rows or more LLVM loads an element before the row before is done with its own: a
        # tile that fills the registers then spills. (AVX2: 28x28x32 to 192 in 217 us with 4x24, in
        # 97 with 3x24.)
        if spare == 1 and most > 2 and (most + 1) * vectors + spare == target.registers:
            most -= 1
        for rows in range(1, min(most, m) + 1):
            taken = rows + rows % 2 if pairs else rows
            if taken > most > 1:
                continue
            others = held * vectors + spare
            chains = _chains(target, taken * vectors, others, steps) if chained else 1
            panels = Panels(n, vectors, target.lanes)
            cycles = [
                tile_cycles(taken, v, chains, steps, work, target.width * held)
                for v in (vectors, panels.last)
            ]
            total = cycles[0] * (panels.count - 1) + cycles[1]
            total *= math.ceil(m / rows)
            if best is None or total < best[0] * 0.999:
                best = total, Tile(rows, vectors, target.lanes, chains)
    assert best is not None
    return best


def _chains(target: Target, products: int, others: int, steps: int) -> int:
    """Sets of accumulators that hide the latency of a multiply-add: 9 or more at work. One register
    stays free, or LLVM spills. (AVX2: 1x3 layers with 2x24 in two sets took twice the time.)"""
    for chains in (1, 2, 4, 8):
        if chains * products >= 9 or 2 * chains * products + others >= target.registers:
            return chains
        if steps < 4 * chains:
            return chains
    return 8
