"""What an epilogue is given, and what it does with it.

    Sums     accumulators come in: vectors of lanes, each with the column of its first lane
    Numbers  what it reads beside them: words by column, by row, and of the whole step
    Output   elements go out, stored; a residual comes from places beside them

Code is shared between steps, so that it must not depend on a step's numbers: these are read.
An epilogue is its stages, which work on one vector of lanes: `start` (what the accumulators begin
with), `result` (the vector's real or whole numbers, scaled) and `finish` (residual, bounds, map,
rounding to the stored type). `store` does all of it for the accumulators of a register tile; who
holds channels in another order calls the stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .....ir import Array
from ...codegen.emit import F32, I8, I32, Emitter, Type, Value, vector


@dataclass(frozen=True)
class Sums:
    """rows x vectors of accumulators, row by row: vector v of a row holds the columns from
    v * lanes on. columns: how many of a row are stored."""

    values: Sequence[Value]
    rows: int
    vectors: int
    lanes: int
    columns: int

    @property
    def firsts(self) -> range:
        """The first column of each vector of a row."""
        return range(0, self.vectors * self.lanes, self.lanes)

    def stored(self, values: Sequence[Value]) -> Iterator[tuple[Value, int, int, int]]:
        """(value, row, first column, lanes that are stored) of what the accumulators became."""
        for i, value in enumerate(values):
            row, first = i // self.vectors, self.firsts[i % self.vectors]
            if first < self.columns:
                yield value, row, first, self.columns - first


@dataclass(frozen=True)
class Numbers:
    """The addresses of 32-bit words that an epilogue reads.

    columns: arrays of them, one after the other, each with a number for all `width` columns.
    common: what holds for the whole step. rows: what belongs to a row, row by row.
    """

    columns: Value
    width: int
    common: Value
    rows: Value | None = None
    code_words: tuple[int, int, int] = (0, 1, 2)  # of common: zero point, low and high of codes

    def column(self, e: Emitter, array: int, first: int, lanes: int, t: Type) -> Value:
        """An array's numbers for the columns from `first` on."""
        there = e.at(self.columns, array * self.width + first, t)
        return e.load(there, vector(t, lanes), 4)

    def word(self, e: Emitter, word: int, t: Type = I32) -> Value:
        return e.load(e.at(self.common, word, I32), t, 4)

    def everywhere(self, e: Emitter, word: int, lanes: int, t: Type = F32) -> Value:
        """A word of common in all lanes."""
        return e.splat(self.word(e, word, t), lanes)


@dataclass(frozen=True)
class Output:
    """Where the results' rows lie, and the residual's if there is one. Pitches: bytes from row to
    row."""

    results: Value
    pitch: Value
    residual: Value | None = None
    residual_pitch: Value | None = None

    def result(self, e: Emitter, row: int, first: int, size: int) -> Value:
        """The address of the columns from `first` on; size: bytes of an element."""
        return e.at(e.at(self.results, e.mul(self.pitch, row), I8), first * size, I8)

    def beside(self, e: Emitter, row: int, first: int, size: int) -> Value:
        """The same, of the residual."""
        return e.at(e.at(self.residual, e.mul(self.residual_pitch, row), I8), first * size, I8)


class Epilogue(Protocol):
    """name: of all that the code depends on. residual: a tensor of the output's type and shape is
    added, or is the second input of the map."""

    @property
    def name(self) -> str: ...
    @property
    def arrays(self) -> int: ...  # words for each column
    @property
    def row_words(self) -> int: ...  # words for each row
    @property
    def out_bytes(self) -> int: ...  # of a stored element
    @property
    def residual(self) -> bool: ...
    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value: ...
    def store(self, e: Emitter, sums: Sums, numbers: Numbers, output: Output) -> None: ...


def column_words(spans: Iterable[tuple[int, int]], *arrays: Array) -> Array:
    """The arrays [n] of 32- or 64-bit numbers, block by block of (first column, columns)."""
    parts = []
    for first, columns in spans:
        for array in arrays:
            mine = np.zeros(columns, array.dtype)
            mine[: len(array[first:])] = array[first : first + columns]
            parts.append(mine.view(np.int32))
    return np.concatenate(parts)


def words(*values: float | int | np.generic) -> Array:
    """Numbers for `common`: ints as int32, floats as float32."""
    return np.array([_word(v) for v in values], np.int32)


def _word(value: float | int | np.generic) -> np.int32:
    if isinstance(value, int | np.integer):
        return np.int32(value)
    return np.float32(value).view(np.int32)
