"""Where a depthwise convolution finds the rows of its input: in memory, repeated for a depth
multiplier, or made on the way by the convolution in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from .....ir import Op, Tensor
from ...codegen.emit import F32, I8, I16, I64, PTR, Emitter, Int, Value
from ...codegen.program import StepEmitter
from ...runtime.abi import FIRST_ARG
from ..products.conv import arithmetic, row_source, window
from ..products.cores import padded_depth, panel_bytes
from ..products.gemm import Arithmetic, Blocking, Product, estimate, tile_function
from ..products.packed_weights import columns, packed
from ..products.sources import MARGIN, LineRows, RowSource
from ..products.tiles import Panels, Tile

LINE = 64  # what buffers are aligned to


class Lines(Protocol):
    """pitch: bytes from pixel to pixel. whole: a row has all channels, not those of one group.
    exact: nothing may be read behind a row's last channel."""

    @property
    def pitch(self) -> int: ...
    @property
    def whole(self) -> bool: ...
    @property
    def exact(self) -> bool: ...
    def make(self, k: StepEmitter, picture: Int, first: Int, count: int, group: Int) -> None: ...
    def row(self, k: StepEmitter, picture: Int, line: Int, index: int) -> Value: ...


@dataclass(frozen=True)
class Memory:
    """The rows of a tensor, one after the other."""

    source: Value
    height: int
    width: int
    pitch: int
    exact: bool
    whole: bool = True

    def make(self, k: StepEmitter, picture: Int, first: Int, count: int, group: Int) -> None:
        return None

    def row(self, k: StepEmitter, picture: Int, line: Int, index: int) -> Value:
        place = k.add(k.mul(picture, self.height), line)
        return k.at(self.source, k.mul(place, self.width * self.pitch), I8)


@dataclass(frozen=True)
class Repeated:
    """A depth multiplier: every channel as often as it has outputs, in buffers of a tile's rows."""

    memory: Memory
    buffers: Value
    times: int
    item: int
    exact: bool = False
    whole: bool = True

    @property
    def pitch(self) -> int:
        return self.memory.pitch * self.times

    @property
    def size(self) -> int:
        """Bytes of a buffer."""
        return -(-(self.memory.width * self.pitch + LINE) // LINE) * LINE

    def make(self, k: StepEmitter, picture: Int, first: Int, count: int, group: Int) -> None:
        return None

    def row(self, k: StepEmitter, picture: Int, line: Int, index: int) -> Value:
        source = self.memory.row(k, picture, line, index)
        target = k.at(self.buffers, index * self.size, I8)
        name = f"repeat_{self.item}b_x{self.times}"
        function = k.program.function(name, [PTR, PTR, I64], self._build)
        count = self.memory.width * self.memory.pitch // self.item
        k.b.call(function, [target, source, I64(count)])
        return target

    def _build(self, e: Emitter) -> None:
        to, source, count = e.args
        t = {4: F32, 2: I16, 1: I8}[self.item]
        with e.loop(0, count) as i:
            value = e.load(e.at(source, i, t), t)
            here = e.at(to, e.mul(i, self.times), t)
            with e.loop(0, self.times) as j:
                e.store(value, e.at(here, j, t))


@dataclass(frozen=True)
class Expanded:
    """The rows that a convolution makes, in a ring as long as a tile has rows. The channels of one
    group at a time. The ring's first word says which line comes next."""

    kind: Arithmetic
    size: Product
    tile: Tile
    rows: RowSource
    ring: Value
    count: int  # rows of the ring
    height: int
    operands: tuple[Value, Value, Value]  # weights, numbers by column, common
    memory: Value  # for a line of packed rows
    offsets: Value | None
    exact: bool = False
    whole: bool = False

    @property
    def pitch(self) -> int:
        return self.size.n * 4

    @property
    def row_bytes(self) -> int:
        return ring_row(self.size.inner, self.size.n)

    def restart(self, k: StepEmitter, picture: Int) -> None:
        k.store(k.i64(k.mul(picture, self.height)), self.ring, 8)

    def make(self, k: StepEmitter, picture: Int, first: Int, count: int, group: Int) -> None:
        """Rows [first, first + count) that are not there yet. They are asked for in order."""
        base = k.mul(picture, self.height)
        done = k.load(self.ring, I64, 8)
        start = k.max(done, k.add(base, k.max(first, 0)))
        stop = k.add(base, k.min(k.add(first, count), self.height))
        with k.loop(start, stop) as line:
            self._line(k, line, group)
        k.store(k.i64(k.max(done, stop)), self.ring, 8)

    def row(self, k: StepEmitter, picture: Int, line: Int, index: int) -> Value:
        return self._place(k, k.add(k.mul(picture, self.height), line))

    def _place(self, k: StepEmitter, line: Int) -> Value:
        return k.at(self.ring, k.add(LINE, k.mul(k.rem(line, self.count), self.row_bytes)), I8)

    @property
    def panels(self) -> Panels:
        return Panels(self.size.n, self.tile.vectors, self.tile.lanes)

    def _line(self, k: StepEmitter, line: Int, group: Int) -> None:
        """One row of the picture: row tiles, and for each all panels of the group."""
        size, core = self.size, self.kind.core
        padded = self.panels.padded
        b, params, common = self.operands
        b = k.at(b, k.mul(group, panel_bytes(core, size.k, padded)), I8)
        params = k.at(params, k.mul(group, 4 * self.kind.epilogue.arrays * padded), I8)
        start, target = k.mul(line, size.inner), self._place(k, line)
        if self.rows.packs:
            self.rows.fill(k, self.memory, start, k.add(start, size.inner), 0)
        with k.loop(0, -(-size.inner // self.tile.rows)) as number:
            row = k.min(k.mul(number, self.tile.rows), size.inner - self.tile.rows)
            a = self.rows.address(k, self.memory, k.add(start, row), start, 0)
            self._panels(k, a, (b, params, common), k.at(target, k.mul(row, self.pitch), I8))

    def _panels(self, k: StepEmitter, a: Value, operands: Sequence[Value], c: Value) -> None:
        panels, size, core, epilogue = self.panels, self.size, self.kind.core, self.kind.epilogue
        b, params, common = operands
        steps = padded_depth(core, size.k) // core.depth // size.lines
        lined = {}
        if self.offsets is not None:
            lined = {"lines": I64(size.lines), "offsets": self.offsets}

        def call(panel: Int, vectors: int, stored: int) -> None:
            own = replace(self.tile, vectors=vectors)
            first = k.mul(panel, panels.columns)
            there = k.at(b, k.mul(panel, panel_bytes(core, size.k, panels.columns)), I8)
            numbers = k.at(params, k.mul(first, 4 * epilogue.arrays), I8)
            tile_function(k, core, epilogue, own, stored, bool(lined)).call(
                k,
                a=a,
                lda=I64(self.rows.stride),
                b=there,
                steps=I64(steps),
                params=numbers,
                common=common,
                c=k.at(c, k.mul(first, 4), I8),
                ldc=I64(self.pitch),
                **lined,
            )

        left = size.n - (panels.count - 1) * panels.columns
        whole = panels.count if left == panels.columns else panels.count - 1
        if whole:
            with k.loop(0, whole) as panel:
                call(panel, panels.vectors, panels.columns)
        if whole < panels.count:
            call(panels.count - 1, panels.last, left)


def ring_row(width: int, channels: int) -> int:
    return -(-(width * channels * 4 + LINE) // LINE) * LINE


def expanded(k: StepEmitter, op: Op, behind: int, count: int, groups: int) -> Expanded:
    """The rows of a float convolution's result, its channels in groups of equal size. The ring of
    `count` rows begins `behind` bytes from the scratch's beginning."""
    x, weights = op.operand(0), op.operand(1).values
    kind = arithmetic(op, weights.reshape(len(weights), -1), k.target)
    w = window(op)
    n = len(weights) // groups
    size, rows, _ = row_source(k, x, kind, w, len(weights), 1)
    size = replace(size, outer=w.batch * w.out_height, inner=w.out_width, n=n, groups=groups)
    tile = estimate(k.target, kind.core, size)[1]
    blocking = Blocking(tile, Panels(n, tile.vectors, tile.lanes), 1, 1, False, True)
    operands = (
        k.constant(packed(kind, size, blocking)),
        k.constant(columns(kind, size, blocking)),
        k.constant(kind.common),
    )
    end = behind + LINE + count * ring_row(w.out_width, n)
    memory = k.scratch(end + (rows.memory(w.out_width) + MARGIN) * rows.packs)
    offsets = k.constant(rows.offsets()) if isinstance(rows, LineRows) else None
    return Expanded(
        kind,
        size,
        tile,
        rows,
        k.at(memory, behind, I8),
        count,
        w.out_height,
        operands,
        k.at(memory, end, I8),
        offsets,
    )


def is_theirs(k: StepEmitter, tensor: Tensor) -> bool:
    """A caller's array, behind which nothing may be read."""
    return k.program.places[tensor].slot >= FIRST_ARG
