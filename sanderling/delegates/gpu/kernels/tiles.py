"""Tiles: how many points and channels a run of a product computes, and which ones are cheapest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..options import DeviceClass


@dataclass(frozen=True)
class Tile:
    """What a run computes: rows points of vectors of so many lanes each."""

    rows: int
    widths: tuple[int, ...]

    @property
    def slices(self) -> int:
        return sum(self.widths) // 4

    @property
    def has_half(self) -> bool:
        """Whether the last vector is half as wide as the others, and there are two of each."""
        *whole, last = self.widths
        return bool(whole) and self.rows % 2 == 0 and {2 * last} == set(whole)

    @property
    def starts(self) -> list[int]:
        """The slice at which each vector begins."""
        return [sum(self.widths[:n]) // 4 for n in range(len(self.widths))]


def choose_tile(
    device: DeviceClass, points: int, channels: int, depth: int, paired: bool = False
) -> Tile:
    """The cheapest of all tiles. points: in a row. depth: products that an element of the result
    sums up. paired: halves of vectors are computed two at a time."""
    slices = -(-channels // 4)

    def cost(tile: Tile) -> float:
        runs = -(-points // tile.rows) * (slices // tile.slices)
        return runs * run_cost(tile.rows, columns_of(tile, paired), depth)

    return min(tiles(device, points, slices), key=cost)


def columns_of(tile: Tile, paired: bool) -> float:
    """Vectors of a point."""
    return len(tile.widths) - (0.5 if paired and tile.has_half else 0.0)


# The share of the registers that sums may take. Tiles of 14x2 vectors, 28 of 32 registers, reach
# 160 GFLOP/s on PoCL 3.1 (Zen 5), those of 12x2 254: its compiler wants some for what it loads.
SUMS = 0.75


def tiles(device: DeviceClass, points: int, slices: int) -> Iterator[Tile]:
    """The tiles that divide the slices and fit the registers; there is always one. Pairs of halves
    take a register each as halves do: 10 points of 24 channels reach 195 GFLOP/s, 14 reach 148."""
    for count in (n for n in range(1, slices + 1) if slices % n == 0):
        widths = _widths(count, device.lanes)
        if len(widths) > device.columns:
            return
        for rows in range(1, min(device.rows, points) + 1):
            if rows == 1 or rows * len(widths) <= device.registers * SUMS:
                yield Tile(rows, widths)


def _widths(slices: int, lanes: int) -> tuple[int, ...]:
    """Vectors for so many slices, the widest first."""
    wide, rest = divmod(slices * 4, lanes)
    return (*[lanes] * wide, *(n for n in (8, 4) if rest & n))


# Fitted by `python -m benchmarks.kernels --delegate gpu --fit` on PoCL 3.1 (Zen 5): a product of
# two vectors takes 1; a vector or an element that is loaded for it 0.07; to begin and end a run 90.
# Tiles that keep less than LEAST products under way wait for them. (The middle error is 9 %.)
LOAD, BEGIN, LEAST = 0.07, 90.0, 8.0


def run_cost(rows: int, columns: float, depth: int) -> float:
    """The cost of a run, in products of vectors."""
    return depth * (max(rows * columns, LEAST) + LOAD * (rows + columns)) + BEGIN


def widest(device: DeviceClass, slices: int) -> int:
    """Lanes of the widest vectors that divide the slices."""
    return next(n for n in (16, 8, 4) if n <= device.lanes and slices % (n // 4) == 0)
