"""The function that does a row tile of depthwise convolutions for a run of equal blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...codegen.emit import F32, I8, I64, PTR, ArgumentList, Arguments, Emitter, Value, vector
from ..epilogue.contract import Numbers
from .channel_blocks import Kind, Load, Shape


@dataclass(frozen=True)
class TileCode:
    """The function that does a row tile for a run of blocks."""

    kind: Kind
    shape: Shape
    stored: int
    exact: bool  # nothing may be read behind the last channel
    weight_bytes: int
    params_bytes: int

    @property
    def name(self) -> str:
        part = f"_n{self.stored}" * (self.stored < self.kind.channels)
        return f"dw_{self.kind.name}_{self.shape.name}{part}" + "_exact" * self.is_exact

    @property
    def is_exact(self) -> bool:
        return self.exact and self.stored < self.kind.channels

    @property
    def arguments(self) -> ArgumentList:
        """Pitches in bytes. residual: at out's places. table: zero point and step of the picture's
        codes."""
        pointers = ("zeros", "weights", "params", "out", "residual", "table")
        sizes = ("out_row", "out_pitch", "pitch", "width", "out_width", "left", "blocks", "tiles")
        types = dict.fromkeys((*self.lines, *pointers), PTR)
        return ArgumentList(types | dict.fromkeys(sizes, I64))

    @property
    def lines(self) -> list[str]:
        """The names of the input's rows."""
        return [f"line{i}" for i in range(self.shape.lines)]

    def build(self, e: Emitter, given: Arguments) -> None:
        given["out"].add_attribute("noalias")  # so that parameters are read once for all stores
        columns, pitch = self.shape.columns, given["pitch"]
        sizes = self.kind.epilogue.out_bytes, self.kind.item
        # Tiles first, then blocks: a tile's input is read front to back, which is what prefetchers
        # want. (Blocks first: 20 to 40 % slower where the picture does not fit L2.)
        with e.loop(0, given["tiles"]) as index, e.loop(0, given["blocks"]) as block:
            here = e.mul(block, self.kind.channels * self.kind.item)
            x = e.min(e.mul(index, columns), e.sub(given["out_width"], columns))
            start = e.sub(e.mul(x, self.shape.stride[1]), given["left"])
            rows = [e.at(given[line], here, I8) for line in self.lines]
            load = self._loader(e, rows, given["zeros"], start, pitch, given["width"])
            place = e.div(e.mul(here, sizes[0]), sizes[1])
            place = e.add(place, e.mul(x, given["out_pitch"]))
            own = e.at(given["params"], e.mul(block, self.params_bytes), I8)
            taps = e.at(given["weights"], e.mul(block, self.weight_bytes), I8)
            tile = given | {name: e.at(given[name], place, I8) for name in ("out", "residual")}
            self._tile(e, load, taps, self.kind.numbers(own, given["table"]), tile)

    def _tile(
        self, e: Emitter, load: Load, weights: Value, numbers: Numbers, given: Arguments
    ) -> None:
        acc = self.kind.tile(e, self.shape, load, weights, numbers)
        for (row, column), values in acc.items():
            place = e.add(e.mul(given["out_row"], row), e.mul(given["out_pitch"], column))
            beside = self._beside(e, e.at(given["residual"], place, I8), values)
            there = e.at(given["out"], place, I8)
            for i, value in enumerate(self.kind.finish(e, values, numbers, beside)):
                t = value.type
                if self.stored > i * t.count:
                    e.store_part(
                        value, e.at(there, i * t.count, t.element), self.stored - i * t.count
                    )

    def _beside(self, e: Emitter, residual: Value, values: Sequence[Value]) -> list[Value]:
        if not self.kind.epilogue.residual:
            return []
        t = vector(F32, values[0].type.count)
        firsts = [i * t.count for i in range(len(values))]
        return [
            e.load_part(e.at(residual, first, F32), t, max(self.stored - first, 0))
            for first in firsts
        ]

    def _loader(
        self,
        e: Emitter,
        rows: Sequence[Value],
        zeros: Value,
        begin: Value,
        pitch: Value,
        width: Value,
    ) -> Load:
        """How vectors are read; columns outside the picture are read from zeros.

        Addresses are selected without branches, inside as at the edges: the scalar work hides
        behind the vectors' (a second copy of the code for the inside gained 0 to 5 % and took 60 %
        more time to compile).
        """
        inside: dict[int, Value] = {}
        offsets: dict[int, Value] = {}
        for at in self.shape.uses:
            column = e.add(begin, at)
            inside[at] = e.b.icmp_unsigned("<", column, width)
            offsets[at] = e.b.select(inside[at], e.mul(column, pitch), I64(0))

        def load(line: int, at: int) -> Value:
            pointer = e.at(e.b.select(inside[at], rows[line], zeros), offsets[at], I8)
            if self.is_exact:
                return e.load_part(pointer, self.kind.load_type, self.stored)
            return e.load(pointer, self.kind.load_type)

        return load
