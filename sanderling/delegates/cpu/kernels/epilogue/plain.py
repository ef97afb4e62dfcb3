"""Epilogues of sums that are stored as they are."""

from __future__ import annotations

from dataclasses import dataclass

from ...codegen.emit import F32, I32, Emitter, Type, Value, vector
from .contract import Numbers, Output, Sums


@dataclass(frozen=True)
class WholeEpilogue:
    """The 32-bit sums themselves. columns: what they start with."""

    name: str = "i32"
    arrays: int = 1
    row_words: int = 0
    out_bytes: int = 4
    residual: bool = False

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        return numbers.column(e, 0, first, lanes, I32)

    def store(self, e: Emitter, sums: Sums, numbers: Numbers, output: Output) -> None:
        for value, row, first, count in sums.stored(sums.values):
            e.store_part(value, output.result(e, row, first, 4), count)


@dataclass(frozen=True)
class PartEpilogue:
    """Sums of this type, whole vectors: a part of a result. It reads no numbers."""

    acc: Type = F32
    arrays: int = 0
    row_words: int = 0
    out_bytes: int = 4
    residual: bool = False

    @property
    def name(self) -> str:
        return "part" if self.acc == F32 else "part_i32"

    def start(self, e: Emitter, numbers: Numbers, first: int, lanes: int) -> Value:
        return e.const(vector(self.acc, lanes), 0)

    def store(self, e: Emitter, sums: Sums, numbers: Numbers, output: Output) -> None:
        for value, row, first, _ in sums.stored(sums.values):
            e.store(value, output.result(e, row, first, 4), 4)
