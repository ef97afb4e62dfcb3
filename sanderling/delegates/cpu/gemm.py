"""Matrix products: a tile generator, and the steps that walk tiles over convolutions.

C[m, n] = epilogue(bias[n] + sum_k A[m, k] * B[k, n]). A tile keeps rows x vectors accumulators in
registers; B is packed in panels of the tile's columns. A convolution is the same product with an
address rule for A: rows of the input itself (1x1), or a tile of patches copied to scratch.

Names: gemm_<types>_<rows>x<columns>[...].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ...ir import Array
from .emit import F32, I8, I32, I64, PTR, Emitter, Int, Type, Value, vector
from .program import StepEmitter
from .targets import Target


@dataclass(frozen=True)
class Tile:
    """rows x (vectors * lanes) accumulators."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def choose_tile(target: Target, m: int, n: int) -> Tile:
    """The tile with the least padded work; of equals, the one with the fewest loads a product.

    Registers hold the accumulators, one vector of B for each column and one broadcast of A.
    """
    lanes = target.lanes
    found = []
    for vectors in (1, 2, 3, 4):
        most = min((target.registers - 1 - vectors) // vectors, 16)
        if most < 1:
            continue
        rows = best_rows(m, most)
        padded = math.ceil(m / rows) * rows * math.ceil(n / (vectors * lanes)) * vectors * lanes
        loads = 1 / rows + 1 / vectors
        found.append((padded * (1 + 0.15 * loads), Tile(rows, vectors, lanes)))
    return min(found, key=lambda f: f[0])[1]


def best_rows(m: int, most: int) -> int:
    """A tile height that divides m well: the fewest tiles, then the least left over."""
    tiles = math.ceil(m / most)
    return math.ceil(m / tiles)


class Flavour(Protocol):
    """The element types of a product: how B is packed, a tile's inner step, its epilogue."""

    @property
    def name(self) -> str: ...
    @property
    def depth(self) -> int: ...  # elements of k that one inner step takes
    @property
    def a_bytes(self) -> int: ...
    @property
    def c_type(self) -> Type: ...
    def pack(self, weights: Array, tile: Tile) -> Array: ...
    def panel_bytes(self, k: int, tile: Tile) -> int: ...
    def start(self, e: Emitter, bias: Value, tile: Tile) -> list[Value]: ...
    def step(self, e: Emitter, a: Sequence[Value], b: Value, acc: Sequence[Value],
             tile: Tile) -> list[Value]: ...  # fmt: skip
    def finish(self, e: Emitter, acc: Value, column: int, params: Value, tile: Tile) -> Value: ...


@dataclass(frozen=True)
class FloatFlavour:
    """float32 throughout; the epilogue clamps."""

    low: float = -np.inf
    high: float = np.inf
    depth: int = 1
    a_bytes: int = 4
    c_type: Type = F32

    @property
    def name(self) -> str:
        bounds = {(-np.inf, np.inf): "", (0.0, np.inf): "_relu", (0.0, 6.0): "_relu6"}
        return "f32" + bounds.get((self.low, self.high), f"_clamp{self.low:g}to{self.high:g}")

    def pack(self, weights: Array, tile: Tile) -> Array:
        """[n, k] -> [panels, k, columns], the last panel filled up with zeros."""
        n, k = weights.shape
        panels = math.ceil(n / tile.columns)
        full = np.zeros((panels * tile.columns, k), np.float32)
        full[:n] = weights
        return full.reshape(panels, tile.columns, k).transpose(0, 2, 1)

    def panel_bytes(self, k: int, tile: Tile) -> int:
        return 4 * k * tile.columns

    def start(self, e: Emitter, bias: Value, tile: Tile) -> list[Value]:
        t = vector(F32, tile.lanes)
        row = [e.load(e.at(bias, v * tile.lanes, F32), t, 64) for v in range(tile.vectors)]
        return row * tile.rows

    def step(self, e: Emitter, a: Sequence[Value], b: Value, acc: Sequence[Value],
             tile: Tile) -> list[Value]:  # fmt: skip
        t = vector(F32, tile.lanes)
        columns = [e.load(e.at(b, v * tile.lanes, F32), t, 4 * tile.lanes)
                   for v in range(tile.vectors)]  # fmt: skip
        out = []
        for row, pointer in enumerate(a):
            x = e.splat(e.load(pointer, F32, 4), tile.lanes)
            for v, column in enumerate(columns):
                out.append(e.fma(x, column, acc[row * tile.vectors + v]))
        return out

    def finish(self, e: Emitter, acc: Value, column: int, params: Value, tile: Tile) -> Value:
        if self.low > -np.inf:
            acc = e.fmax(acc, e.const(acc.type, self.low))
        if self.high < np.inf:
            acc = e.fmin(acc, e.const(acc.type, self.high))
        return acc


@dataclass(frozen=True)
class ByteFlavour:
    """u8 activations x s8 weights by the dot product instruction, four deep; u8 results.

    The activations' zero point is in the bias already. Requantisation is one float32 product,
    rounded to the nearest even by adding 1.5 * 2**23, whose low byte then is the code.
    """

    low: int
    high: int
    zero: int
    depth: int = 4
    a_bytes: int = 1
    c_type: Type = I8

    @property
    def name(self) -> str:
        return f"u8_z{self.zero}_{self.low}to{self.high}"

    def pack(self, weights: Array, tile: Tile) -> Array:
        """[n, k] -> [panels, k / 4, columns, 4]."""
        n, k = weights.shape
        panels, deep = math.ceil(n / tile.columns), math.ceil(k / self.depth)
        full = np.zeros((panels * tile.columns, deep * self.depth), np.int8)
        full[:n, :k] = weights
        shape = (panels, tile.columns, deep, self.depth)
        return full.reshape(shape).transpose(0, 2, 1, 3)

    def panel_bytes(self, k: int, tile: Tile) -> int:
        return k * tile.columns

    def start(self, e: Emitter, bias: Value, tile: Tile) -> list[Value]:
        t = vector(I32, tile.lanes)
        row = [e.load(e.at(bias, v * tile.lanes, I32), t, 4) for v in range(tile.vectors)]
        return row * tile.rows

    def step(self, e: Emitter, a: Sequence[Value], b: Value, acc: Sequence[Value],
             tile: Tile) -> list[Value]:  # fmt: skip
        raw = vector(I8, 4 * tile.lanes)
        columns = [e.load(e.at(b, v * tile.lanes, I32), raw, 4 * tile.lanes)
                   for v in range(tile.vectors)]  # fmt: skip
        out = []
        for row, pointer in enumerate(a):
            x = e.b.bitcast(e.splat(e.load(pointer, I32, 1), tile.lanes), raw)
            for v, column in enumerate(columns):
                out.append(dot4(e, acc[row * tile.vectors + v], x, column))
        return out

    def finish(self, e: Emitter, acc: Value, column: int, params: Value, tile: Tile) -> Value:
        t = vector(F32, tile.lanes)
        scale = e.load(e.at(params, tile.columns + column * tile.lanes, F32), t, 4)
        real = e.b.fmul(e.b.sitofp(acc, t), scale)
        return self.encode(e, real)

    def encode(self, e: Emitter, real: Value) -> Value:
        """Reals in units of the output's scale -> codes."""
        real = e.fmax(real, e.const(real.type, self.low - self.zero))
        real = e.fmin(real, e.const(real.type, self.high - self.zero))
        shifted = e.b.fadd(real, e.const(real.type, ROUNDING + self.zero))
        return e.b.trunc(e.b.bitcast(shifted, vector(I32, real.type.count)),
                         vector(I8, real.type.count))  # fmt: skip


ROUNDING = 1.5 * 2**23


def dot4(e: Emitter, acc: Value, u8: Value, s8: Value) -> Value:
    """acc[i] += sum of u8[4i + j] * s8[4i + j]."""
    if e.target.dot.startswith("vnni"):
        bits = 32 * acc.type.count
        return e.call(f"llvm.x86.avx512.vpdpbusd.{bits}", acc.type, acc, u8, s8)
    wide = vector(I32, u8.type.count)
    product = e.b.mul(e.b.zext(u8, wide), e.b.sext(s8, wide))
    lanes = acc.type.count
    for j in range(4):
        acc = e.b.add(acc, e.shuffle(product, None, [4 * i + j for i in range(lanes)]))
    return acc


def tile_function(k: StepEmitter, flavour: Flavour, tile: Tile, columns: int,
                  residual: bool) -> Value:  # fmt: skip
    """The register tile: (a, lda, b, params, c, ldc, steps[, r]); lda and ldc in elements.

    params: bias, then whatever the flavour's epilogue reads. columns: how many of the tile's are
    stored, for the last panel.
    """
    name = f"gemm_{flavour.name}_{tile.rows}x{tile.columns}"
    name += f"_n{columns}" * (columns < tile.columns) + "_add" * residual
    args = [PTR, I64, PTR, PTR, PTR, I64, I64] + [PTR] * residual

    def build(e: Emitter) -> None:
        a, lda, b, params, c, ldc, steps, *rest = e.args
        rows = [e.at(a, e.mul(lda, r * flavour.a_bytes), I8) for r in range(tile.rows)]
        start = flavour.start(e, params, tile)
        panel_step = flavour.panel_bytes(flavour.depth, tile)
        with e.loop(0, steps, carry=start) as (i, acc):
            moved = e.mul(i, flavour.depth * flavour.a_bytes)
            here = e.at(b, e.mul(i, panel_step), I8)
            e.carry(flavour.step(e, [e.at(r, moved, I8) for r in rows], here, acc, tile))
        acc = e.carried
        store_tile(e, flavour, tile, columns, acc, params, c, ldc, rest[0] if rest else None)

    return k.program.function(name, args, build)


def store_tile(e: Emitter, flavour: Flavour, tile: Tile, columns: int, acc: Sequence[Value],
               params: Value, c: Value, ldc: Value, residual: Value | None) -> None:  # fmt: skip
    size = flavour.c_type
    for row in range(tile.rows):
        line = e.mul(ldc, row)
        for v in range(math.ceil(columns / tile.lanes)):
            place = e.add(line, v * tile.lanes)
            value = acc[row * tile.vectors + v]
            if residual is not None:
                value = e.b.fadd(value, e.load_part(e.at(residual, place, size), value.type,
                                                    columns - v * tile.lanes))  # fmt: skip
            value = flavour.finish(e, value, v, params, tile)
            e.store_part(value, e.at(c, place, size), columns - v * tile.lanes)


@dataclass(frozen=True)
class Product:
    """One matrix product of a step: sizes, and where A's rows come from."""

    m: int
    n: int
    k: int  # padded to the flavour's depth


def walk(
    k: StepEmitter,
    flavour: Flavour,
    tile: Tile,
    size: Product,
    rows: RowSource,
    b: Value,
    params: Value,
    params_bytes: int,
    c: Value,
    residual: Value | None = None,
) -> None:
    """Emit the loops over tiles: units of (row tile, group of panels) are the workers' shares."""
    panels = math.ceil(size.n / tile.columns)
    row_tiles = math.ceil(size.m / tile.rows)
    groups = 1 if rows.packs or row_tiles >= 16 else min(panels, math.ceil(16 / row_tiles))
    per_group = math.ceil(panels / groups)
    groups = math.ceil(panels / per_group)
    scratch = rows.prepare(k, tile)
    begin, end = k.share(row_tiles * groups)
    with k.loop(begin, end) as unit:
        first_row = k.mul(k.div(unit, groups), tile.rows)
        first_panel = k.mul(k.rem(unit, groups), per_group)
        last_panel = k.min(k.add(first_panel, per_group), panels)
        # The last tile of rows begins earlier instead of being smaller: a few rows are done twice.
        first_row = k.min(first_row, max(size.m - tile.rows, 0))
        a, lda = rows.tile(k, first_row, tile, scratch)
        span = (first_panel, last_panel, panels)
        _panels(
            k, flavour, tile, size, a, lda, first_row, span, b, params, params_bytes, c, residual
        )


def _panels(
    k: StepEmitter,
    flavour: Flavour,
    tile: Tile,
    size: Product,
    a: Value,
    lda: Int,
    first_row: Int,
    span: tuple[Int, Int, int],
    b: Value,
    params: Value,
    params_bytes: int,
    c: Value,
    residual: Value | None,
) -> None:
    first, last, panels = span
    panel_bytes = flavour.panel_bytes(size.k, tile)
    left = size.n - (panels - 1) * tile.columns

    def call(panel: Int, columns: int) -> None:
        place = k.add(k.mul(first_row, size.n), k.mul(panel, tile.columns))
        args = [a, k.i64(lda), k.at(b, k.mul(panel, panel_bytes), I8),
                k.at(params, k.mul(panel, params_bytes), I8), k.at(c, place, flavour.c_type),
                I64(size.n), I64(size.k // flavour.depth)]  # fmt: skip
        if residual is not None:
            args.append(k.at(residual, place, flavour.c_type))
        function = tile_function(k, flavour, tile, columns, residual is not None)
        k.b.call(function, args)

    whole = panels if left == tile.columns else panels - 1
    with k.loop(first, k.min(last, whole)) as panel:
        call(panel, tile.columns)
    if whole < panels:
        with k.when(k.b.icmp_signed("==", k.i64(last), I64(panels))):
            call(panels - 1, left)


class RowSource(Protocol):
    """Where a tile's rows of A come from."""

    @property
    def packs(self) -> bool: ...
    def prepare(self, k: StepEmitter, tile: Tile) -> Value | None: ...
    def tile(
        self, k: StepEmitter, row: Int, tile: Tile, scratch: Value | None
    ) -> tuple[Value, Int]: ...


@dataclass(frozen=True)
class DirectRows:
    """Rows of A lie in memory as they are, `stride` elements apart."""

    pointer: Value
    stride: int
    element: Type
    packs: bool = False

    def prepare(self, k: StepEmitter, tile: Tile) -> None:
        return None

    def tile(
        self, k: StepEmitter, row: Int, tile: Tile, scratch: Value | None
    ) -> tuple[Value, Int]:
        return k.at(self.pointer, k.mul(row, self.stride), self.element), self.stride


@dataclass(frozen=True)
class Window:
    """A convolution's geometry, NHWC."""

    batch: int
    height: int
    width: int
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    pad: tuple[int, int]  # before, vertically and horizontally

    @property
    def patch(self) -> int:
        return self.kernel[0] * self.kernel[1] * self.channels


@dataclass(frozen=True)
class PatchRows:
    """Patches of a picture, copied to scratch tile by tile; `outside` fills what hangs over."""

    pointer: Value
    window: Window
    element: Type
    bytes: int
    stride: int  # elements of a packed row
    outside: int = 0
    packs: bool = True

    def prepare(self, k: StepEmitter, tile: Tile) -> Value:
        return k.scratch(tile.rows * self.stride * self.bytes + 64)

    def tile(
        self, k: StepEmitter, row: Int, tile: Tile, scratch: Value | None
    ) -> tuple[Value, Int]:
        assert scratch is not None
        w = self.window
        copy = self._copier(k)
        with k.loop(0, tile.rows) as r:
            pixel = k.add(row, r)
            x = k.rem(pixel, w.out_width)
            y = k.rem(k.div(pixel, w.out_width), w.out_height)
            n = k.div(pixel, w.out_width * w.out_height)
            picture = k.at(self.pointer, k.mul(n, w.height * w.width * w.channels), self.element)
            target = k.at(scratch, k.mul(r, self.stride), self.element)
            k.b.call(copy, [target, picture, k.i64(y), k.i64(x)])
        return scratch, self.stride

    def _copier(self, k: StepEmitter) -> Value:
        w = self.window
        name = (f"patch_{self.bytes}b_{w.height}x{w.width}x{w.channels}_{w.kernel[0]}x{w.kernel[1]}"
                f"_s{w.stride[0]}x{w.stride[1]}_d{w.dilation[0]}x{w.dilation[1]}"
                f"_p{w.pad[0]}x{w.pad[1]}_v{self.outside}_k{self.stride}")  # fmt: skip
        return k.program.function(name, [PTR, PTR, I64, I64], self._build_copy)

    def _build_copy(self, e: Emitter) -> None:
        """Copy one patch. Inside the picture a kernel row is one run of bytes (undilated)."""
        w = self.window
        target, picture, y, x = e.args
        top = e.sub(e.mul(y, w.stride[0]), w.pad[0])
        left = e.sub(e.mul(x, w.stride[1]), w.pad[1])
        run = w.kernel[1] * w.channels * self.bytes
        reach = (w.kernel[1] - 1) * w.dilation[1]
        fits = e.b.and_(e.b.icmp_signed(">=", e.i64(left), I64(0)),
                        e.less(e.add(left, reach), w.width))  # fmt: skip
        with e.loop(0, w.kernel[0]) as ky:
            line = e.add(top, e.mul(ky, w.dilation[0]))
            here = e.at(target, e.mul(ky, run), I8)
            row = e.at(picture, e.mul(line, w.width * w.channels), self.element)
            inside = e.b.and_(e.b.icmp_signed(">=", e.i64(line), I64(0)), e.less(line, w.height))
            with e.b.if_else(inside) as (then, otherwise):
                with then:
                    self._copy_line(e, here, row, left, fits)
                with otherwise:
                    e.fill(here, run, self.outside)

    def _copy_line(self, e: Emitter, target: Value, row: Value, left: Int, fits: Value) -> None:
        w = self.window
        pixel = w.channels * self.bytes
        if w.dilation[1] == 1:
            with e.b.if_else(fits) as (then, otherwise):
                with then:
                    source = e.at(row, e.mul(left, w.channels), self.element)
                    e.copy(target, source, w.kernel[1] * pixel)
                with otherwise:
                    self._copy_pixels(e, target, row, left)
            return
        self._copy_pixels(e, target, row, left)

    def _copy_pixels(self, e: Emitter, target: Value, row: Value, left: Int) -> None:
        w = self.window
        pixel = w.channels * self.bytes
        with e.loop(0, w.kernel[1]) as kx:
            column = e.add(left, e.mul(kx, w.dilation[1]))
            here = e.at(target, e.mul(kx, pixel), I8)
            inside = e.b.and_(e.b.icmp_signed(">=", e.i64(column), I64(0)), e.less(column, w.width))
            with e.b.if_else(inside) as (then, otherwise):
                with then:
                    e.copy(here, e.at(row, e.mul(column, w.channels), self.element), pixel)
                with otherwise:
                    e.fill(here, pixel, self.outside)


def padded_bias(bias: Array | None, n: int, tile: Tile, dtype: type) -> Array:
    panels = math.ceil(n / tile.columns)
    full: Array = np.zeros(panels * tile.columns, dtype)
    if bias is not None:
        full[:n] = bias
    return full.reshape(panels, tile.columns)
