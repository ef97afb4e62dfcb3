"""Matrix products: the register tile, and the loops that walk tiles over a product.

C[m, n] = epilogue(sum_k A[m, k] * B[n, k]). A core (cores.py) multiplies, an epilogue (a room of
its own) finishes, a row source (sources.py) says where the rows of A lie: a convolution is a
product with an address rule. B is packed in panels of the tile's columns.

Names: gemm_<core>_<epilogue>_<rows>x<columns>[_c<chains>][_n<columns stored>].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from .....ir import Array
from ...codegen.emit import (
    F32,
    I8,
    I32,
    I64,
    PTR,
    VOID,
    ArgumentList,
    Arguments,
    Callee,
    Emitter,
    Int,
    Value,
    vector,
)
from ...codegen.program import StepEmitter
from ...codegen.rounding import as_double
from ...isa.base import isa_of
from ...isa.targets import Target
from ..epilogue.contract import Epilogue, Numbers, Output, Sums
from .chained import QUAD, ChainCore, Leftover, chain_step
from .cores import (
    BfloatCore,
    BlockCore,
    Core,
    MatrixCore,
    PairCore,
    WordCore,
    chunk_of,
    padded_depth,
    panel_bytes,
    tile_step,
)
from .sources import MARGIN, RowSource, RowWords
from .tiles import Panels, Tile, choose

# Bytes of A that a block of rows may take: half of a second cache, as they come in small caches.
BLOCK = 256 * 1024
# Bytes of B that stay in the first cache beside a tile's rows: then the order of C's rows counts.
SMALL_B = 24 * 1024
# Units of work that a step is cut into, if it can be: enough to share among a few workers.
UNITS = 8


def tile_arguments(core: Core, epilogue: Epilogue, lined: bool, fetches: bool) -> ArgumentList:
    """What a register tile is told. lda, ldc, ldr and stride are in bytes.

    lines, offsets: a row of A is in several pieces of `steps` steps, at these offsets from the
    first. ahead, stride: what lies ahead is fetched, `stride` bytes a step. rows: the epilogue's
    words for each row. more, places, count, apart: a panel's Leftover (chained.py).
    """
    types = {"a": PTR, "lda": I64, "b": PTR, "steps": I64}
    types |= {"params": PTR, "common": PTR, "c": PTR, "ldc": I64}
    if fetches:
        types |= {"ahead": PTR, "stride": I64}
    if lined:
        types |= {"lines": I64, "offsets": PTR}
    if isinstance(core, ChainCore):
        types |= {"more": PTR, "places": PTR, "count": I64, "apart": I64}
    if epilogue.residual:
        types |= {"residual": PTR}
    if epilogue.row_words:
        types |= {"rows": PTR}
    if epilogue.residual:
        types |= {"ldr": I64}
    return ArgumentList(types)


def tile_function(
    k: StepEmitter,
    core: Core,
    epilogue: Epilogue,
    tile: Tile,
    columns: int,
    lined: bool = False,
    fetches: bool = False,
) -> Callee:
    """The register tile. columns: how many of the tile's are stored, for the last panel."""
    name = f"gemm_{core.name}_{epilogue.name}_{tile.name}"
    name += f"_n{columns}" * (columns < tile.columns) + "_lines" * lined + "_ahead" * fetches

    def build(e: Emitter, given: Arguments) -> None:
        numbers = Numbers(given["params"], tile.columns, given["common"], given.get("rows"))
        output = Output(given["c"], given["ldc"], given.get("residual"), given.get("ldr"))
        rows = [e.at(given["a"], e.mul(given["lda"], r), I8) for r in range(tile.rows)]
        start = _start(e, core, epilogue, tile, numbers)
        if isinstance(core, MatrixCore):
            start = core.pairs(e, start, tile)
        fetch = Fetch(given["ahead"], given["stride"]) if fetches else None
        b, steps = given["b"], given["steps"]
        if lined:
            pieces = given["lines"], given["offsets"]
            acc = _sum_lines(e, core, tile, rows, b, steps, start, fetch, *pieces)
        else:
            acc = _sum(e, core, tile, rows, b, steps, start, fetch)
        if isinstance(core, ChainCore):
            left = Leftover(given["more"], given["places"], given["count"], given["apart"])
            acc = left.add(e, core, rows, acc, tile)
        if isinstance(core, MatrixCore):
            acc = core.rows(e, acc, tile)
        sums = Sums(acc, tile.rows, tile.vectors, tile.lanes, columns)
        epilogue.store(e, sums, numbers, output)

    return k.program.declared(name, tile_arguments(core, epilogue, lined, fetches), build)


def _start(e: Emitter, core: Core, epilogue: Epilogue, tile: Tile, numbers: Numbers) -> list[Value]:
    """What a tile's accumulators begin with."""
    firsts = range(0, tile.columns, tile.lanes)
    start = [epilogue.start(e, numbers, first, tile.lanes) for first in firsts] * tile.rows
    return [as_double(e, v) for v in start] if chunk_of(core) else start


@dataclass(frozen=True)
class Fetch:
    """Memory to fetch into the second cache, a piece each step: the next panel of weights comes
    while this one is multiplied. (In float32 networks whose weights do not fit the second cache:
    6 % of EfficientNet-Lite0, 8 % of a pose detector, 15 % of a MiniLM.)"""

    ahead: Value
    stride: Value

    def after(self, e: Emitter, steps: Int) -> Fetch:
        return replace(self, ahead=e.at(self.ahead, e.mul(steps, self.stride), I8))

    def step(self, e: Emitter, i: Int) -> None:
        there = e.at(self.ahead, e.mul(i, self.stride), I8)
        e.call("llvm.prefetch.p0", VOID, there, I32(0), I32(2), I32(1))


def _sum_lines(
    e: Emitter,
    core: Core,
    tile: Tile,
    rows: list[Value],
    b: Value,
    steps: Value,
    start: list[Value],
    fetch: Fetch | None,
    lines: Value,
    offsets: Value,
) -> list[Value]:
    size = e.mul(steps, panel_bytes(core, core.depth, tile.columns))
    with e.loop(0, lines, carry=start) as (line, acc):
        offset = e.load(e.at(offsets, line, I64), I64, 8)
        here = [e.at(r, offset, I8) for r in rows]
        own = None if fetch is None else fetch.after(e, e.mul(line, steps))
        e.carry(_sum(e, core, tile, here, e.at(b, e.mul(line, size), I8), steps, acc, own))
    return e.carried


def _sum(
    e: Emitter,
    core: Core,
    tile: Tile,
    rows: list[Value],
    b: Value,
    steps: Value,
    start: list[Value],
    fetch: Fetch | None,
) -> list[Value]:
    if isinstance(core, BlockCore):
        return _sum_blocks(e, core, tile, rows, b, steps, start, fetch)
    chunk = chunk_of(core)
    if not chunk:
        return _sum_near(e, core, tile, rows, b, steps, start, fetch)
    a_step, b_step = core.depth * core.a_bytes, panel_bytes(core, core.depth, tile.columns)
    zeros = [e.const(vector(core.acc, tile.lanes), 0)] * len(start)
    # The float64 sums lie in memory while a chunk is summed.
    with e.loop(0, steps, chunk, carry=start) as (first, acc):
        here = [e.at(r, e.mul(first, a_step), I8) for r in rows]
        there = e.at(b, e.mul(first, b_step), I8)
        own = None if fetch is None else fetch.after(e, first)
        count = e.min(chunk, e.sub(steps, first))
        part = _sum_near(e, core, tile, here, there, count, zeros, own)
        e.carry([e.b.fadd(x, as_double(e, y)) for x, y in zip(acc, part, strict=True)])
    return e.carried


def _sum_blocks(
    e: Emitter,
    core: BlockCore,
    tile: Tile,
    rows: list[Value],
    b: Value,
    steps: Value,
    start: list[Value],
    fetch: Fetch | None,
) -> list[Value]:
    """Each block in integers, then scaled and added to the float32 sums."""
    each, t = core.size // core.depth, vector(F32, tile.lanes)
    zeros = [e.const(vector(core.inner.acc, tile.lanes), 0)] * len(start)
    with e.loop(0, e.div(steps, each), carry=start) as (block, acc):
        here = [e.at(r, e.mul(block, core.size * core.a_bytes), I8) for r in rows]
        head = e.at(b, e.mul(block, panel_bytes(core, core.size, tile.columns)), I8)
        scales = [e.load(e.at(head, v * tile.lanes, F32), t, 4) for v in range(tile.vectors)]
        own = None if fetch is None else fetch.after(e, e.mul(block, each))
        there = e.at(head, tile.columns, F32)
        part = _sum_near(e, core, tile, here, there, I64(each), zeros, own)
        e.carry(
            [
                e.b.fadd(x, e.b.fmul(e.b.sitofp(y, t), scales[i % tile.vectors]))
                for i, (x, y) in enumerate(zip(acc, part, strict=True))
            ]
        )
    return e.carried


def _sum_near(
    e: Emitter,
    core: Core,
    tile: Tile,
    rows: list[Value],
    b: Value,
    steps: Value,
    start: list[Value],
    fetch: Fetch | None,
) -> list[Value]:
    """Steps whose sums the accumulators hold."""
    a_step = core.depth * core.a_bytes
    b_step = panel_bytes(core, core.depth, tile.columns)

    def step(i: Int, acc: list[Value]) -> list[Value]:
        here = [e.at(r, e.mul(i, a_step), I8) for r in rows]
        columns = e.at(b, e.mul(i, b_step), I8)
        if isinstance(core, ChainCore):
            return chain_step(e, core, here, columns, acc, tile, core.chain)
        return tile_step(e, core, here, columns, acc, tile)

    if tile.chains == 1:
        with e.loop(0, steps, carry=start) as (i, acc):
            if fetch is not None:
                fetch.step(e, i)
            e.carry(step(i, acc))
        return e.carried
    size = len(start)
    zeros = [e.const(v.type, 0) for v in start] * (tile.chains - 1)
    whole = e.mul(e.div(steps, tile.chains), tile.chains)
    with e.loop(0, whole, tile.chains, carry=start + zeros) as (i, acc):
        e.carry(
            [
                v
                for c in range(tile.chains)
                for v in step(e.add(i, c), acc[c * size : (c + 1) * size])
            ]
        )
    sets = [e.carried[c * size : (c + 1) * size] for c in range(tile.chains)]
    add = e.b.fadd if core.acc == F32 else e.b.add
    while len(sets) > 1:
        sets = [
            [add(x, y) for x, y in zip(p, q, strict=True)]
            for p, q in zip(sets[::2], sets[1::2], strict=True)
        ]
    with e.loop(whole, steps, carry=sets[0]) as (i, acc):
        e.carry(step(i, acc))
    return e.carried


@dataclass(frozen=True)
class Arithmetic:
    """A product by its types: core, epilogue, B's matrix, numbers by column and of the step."""

    core: Core
    epilogue: Epilogue
    matrix: Array
    columns: tuple[Array, ...]
    common: Array
    zero: int = 0  # of the activations: what lies beyond the picture's edge
    sums: int = 0  # how often a row's own sum is added to its results
    scales: Array | None = None  # of blocks along the depth


@dataclass(frozen=True)
class Product:
    """Sizes of a product: m = outer * inner rows, of which a tile takes neighbours of one line of
    `inner`. groups: products side by side, each with its own B and columns of C. lines: pieces
    that a row of A (k elements) comes in."""

    outer: int
    inner: int
    n: int
    k: int
    groups: int = 1
    lines: int = 1

    @property
    def m(self) -> int:
        return self.outer * self.inner


@dataclass(frozen=True)
class Blocking:
    """How a product is cut: tile and panels, `block` row tiles at a time, `group` panels.

    by_panel: units of one panel group follow each other, instead of those of one row block.
    rows_first: in a unit all panels are done for a tile of rows before the next one.

    (Passes over the depth, so that what a tile reads stays in the first cache: 2 to 4 % for 512 to
    1536 floats, not worth three kinds of tiles.)
    """

    tile: Tile
    panels: Panels
    block: int
    group: int
    by_panel: bool
    rows_first: bool

    def per_line(self, size: Product) -> int:
        return math.ceil(size.inner / self.tile.rows)

    def tiles(self, size: Product) -> int:
        return size.outer * self.per_line(size)


def instructions(target: Target, core: Core) -> float:
    """The instructions of a multiply-add of vectors."""
    inner = core.inner if isinstance(core, BlockCore) else core
    if isinstance(core, ChainCore):
        return core.work
    if isinstance(inner, PairCore | WordCore):
        return 1.0 if isa_of(target).has_dot_words else 2.0
    return 2.0 if isinstance(core, BfloatCore) and not target.bf16 else 1.0


def estimate(target: Target, core: Core, size: Product) -> tuple[float, Tile]:
    """Cycles of the product, rows packed, and its tile."""
    inner = core.inner if isinstance(core, BlockCore) else core
    work = instructions(target, core)
    parts = core.chain if isinstance(core, ChainCore) else 0
    pairs = isinstance(core, MatrixCore)
    steps = padded_depth(core, size.k) // inner.depth
    chained = size.lines == 1 and inner is core
    cycles, tile = choose(target, size.inner, size.n, steps, work, chained, parts, pairs)
    return cycles * size.outer * size.groups, tile


def block_product(
    target: Target, core: Core, size: Product, packs: bool, line_bytes: int
) -> Blocking:
    """line_bytes: what a line of `inner` rows takes in memory."""
    tile = estimate(target, core, size)[1]
    panels = Panels(size.n, tile.vectors, tile.lanes)
    per_line = math.ceil(size.inner / tile.rows)
    # What is cut: lines, or the tiles of the only one.
    whole, part = (size.outer, per_line) if size.outer > 1 else (per_line, 1)
    total = line_bytes * size.outer
    blocks = min(whole, math.ceil(total / BLOCK))
    groups = min(panels.count, math.ceil(UNITS / (blocks * size.groups)))
    if blocks * groups * size.groups < UNITS:
        blocks = min(whole, math.ceil(UNITS / (groups * size.groups)))
    by_panel = not packs and size.n > size.m
    b_bytes = panel_bytes(core, size.k, panels.padded)
    return Blocking(
        tile,
        panels,
        math.ceil(whole / blocks) * part,
        math.ceil(panels.count / groups),
        by_panel,
        b_bytes <= SMALL_B,
    )


@dataclass(frozen=True)
class Operands:
    """The addresses of a product's operands. ldc: bytes from row to row, of the residual too unless
    ldr says otherwise.

    place(k, row): bytes from c to a row, where that is not row * ldc.
    """

    b: Value
    params: Value
    common: Value
    c: Value
    ldc: int
    residual: Value | None = None
    offsets: Value | None = None  # of the pieces of a row of A
    place: Callable[[StepEmitter, Int], Int] | None = None
    ldr: int = 0
    left: LeftoverLists | None = None


@dataclass(frozen=True)
class LeftoverLists:
    """The addresses of all panels' leftovers: weights, places, and where each panel's begin."""

    weights: Value
    places: Value
    starts: Value

    def arguments(self, k: StepEmitter, number: Int, columns: int) -> dict[str, Value]:
        """What the tiles of the panel of this number are called with."""
        first, end = (k.load(k.at(self.starts, k.add(number, i), I64), I64, 8) for i in (0, 1))
        apart = columns * QUAD
        return {
            "more": k.at(self.weights, k.mul(first, apart), I8),
            "places": k.at(self.places, first, I64),
            "count": k.b.sub(end, first),
            "apart": I64(apart),
        }


def walk(
    k: StepEmitter,
    core: Core,
    epilogue: Epilogue,
    size: Product,
    blocking: Blocking,
    rows: RowSource,
    at: Operands,
    words: RowWords | None = None,
) -> None:
    """Emit the loops over tiles. A unit of work is a block of row tiles x a group of panels.

    A worker packs a block of rows once, and then multiplies it with its groups of panels. The last
    tile of rows begins earlier instead of being smaller: a few rows are computed twice, so that C
    must not overlap the residual.
    """
    tiles = blocking.tiles(size)
    blocks, groups = (
        math.ceil(tiles / blocking.block),
        math.ceil(blocking.panels.count / blocking.group),
    )
    memory, words_at = _memory(k, blocking, rows, words)
    begin, end = k.share(blocks * groups * size.groups)
    with k.loop(begin, end, carry=[I64(-1)]) as (unit, (last,)):
        inner, outer = (blocks, groups) if blocking.by_panel else (groups, blocks)
        low, rest = k.rem(unit, inner), k.div(unit, inner)
        high, group = k.rem(rest, outer), k.div(rest, outer)
        block, panel_group = (low, high) if blocking.by_panel else (high, low)
        first = k.mul(block, blocking.block)
        stop = k.min(k.add(first, blocking.block), tiles)
        start = _row(k, size, blocking, first)
        now = k.add(k.mul(group, blocks), block)
        if rows.packs or words is not None:
            with k.when(k.b.icmp_signed("!=", k.i64(now), last)):
                until = k.add(_row(k, size, blocking, k.sub(stop, 1)), blocking.tile.rows)
                rows.fill(k, memory, start, until, group)
                if words is not None:
                    a = rows.address(k, memory, start, start, group)
                    words.fill(k, words_at, start, until, a, rows.stride)
        unit_of = Unit(first, stop, start, group, panel_group, memory, words_at)
        _unit(k, core, epilogue, size, blocking, rows, at, unit_of, words)
        k.carry([k.i64(now)])


def _row(k: StepEmitter, size: Product, blocking: Blocking, number: Int) -> Int:
    """The first row of a tile. The last tile of a line begins earlier, instead of being smaller."""
    tiles, rows = blocking.per_line(size), blocking.tile.rows
    line, across = k.div(number, tiles), k.rem(number, tiles)
    return k.add(k.mul(line, size.inner), k.min(k.mul(across, rows), size.inner - rows))


def _memory(
    k: StepEmitter, blocking: Blocking, rows: RowSource, words: RowWords | None
) -> tuple[Value, Value]:
    """Scratch for a block of packed rows, and for the words of its rows."""
    most = blocking.block * blocking.tile.rows
    packed = -(-(rows.memory(most) + MARGIN) // 64) * 64 if rows.packs else 0
    size = packed + (0 if words is None else most * words.count * 4)
    memory = k.scratch(size) if size else k.context
    return memory, k.at(memory, packed, I8)


@dataclass(frozen=True)
class Unit:
    """Row tiles [first, stop), rows from `start` on in memory, one group, one group of panels."""

    first: Int
    stop: Int
    start: Int
    group: Int
    panel_group: Int
    memory: Value
    words: Value


def _unit(
    k: StepEmitter,
    core: Core,
    epilogue: Epilogue,
    size: Product,
    blocking: Blocking,
    rows: RowSource,
    at: Operands,
    unit: Unit,
    words: RowWords | None,
) -> None:
    """A panel stays in the first cache while the block's rows pass by."""
    panels, tile = blocking.panels, blocking.tile
    first = k.mul(unit.panel_group, blocking.group)
    last = k.min(k.add(first, blocking.group), panels.count)

    lined = size.lines > 1
    steps = padded_depth(core, size.k) // core.depth // size.lines
    # Each tile of the block fetches its part of the next panel, or of the next step's first.
    line = panel_bytes(core, core.depth, panels.columns)
    stride = 0 if blocking.rows_first else min(math.ceil(line / blocking.block), 64)

    def call(number: Int, panel: Int, vectors: int, columns: int) -> None:
        own = Tile(tile.rows, vectors, tile.lanes, tile.chains)
        function = tile_function(k, core, epilogue, own, columns, lined, stride > 0)
        one = panel_bytes(core, size.k, panels.columns)
        b = _part(k, at.b, unit.group, panel, panel_bytes(core, size.k, panels.padded), one)
        word = 4 * epilogue.arrays
        params = _part(k, at.params, unit.group, panel, word * panels.padded, word * panels.columns)
        column = k.add(k.mul(unit.group, size.n), k.mul(panel, panels.columns))
        across = k.mul(column, epilogue.out_bytes)
        row = _row(k, size, blocking, number)
        down = k.mul(row, at.ldc) if at.place is None else at.place(k, row)
        place = k.add(down, across)
        given = {
            "a": rows.address(k, unit.memory, row, unit.start, unit.group),
            "lda": I64(rows.stride),
            "b": b,
            "steps": I64(steps),
            "params": params,
            "common": at.common,
            "c": k.at(at.c, place, I8),
            "ldc": I64(at.ldc),
        }
        if stride:
            part = k.mul(k.sub(number, unit.first), size.lines * steps * stride)
            given |= {"ahead": k.at(k.at(b, one, I8), part, I8), "stride": I64(stride)}
        if lined:
            given |= {"lines": I64(size.lines), "offsets": at.offsets}
        if at.left is not None:
            own_panel = k.add(k.mul(unit.group, panels.count), panel)
            given |= at.left.arguments(k, own_panel, panels.columns)
        if at.residual is not None:
            there = k.add(k.mul(row, at.ldr), across) if at.ldr else place
            given |= {"residual": k.at(at.residual, there, I8), "ldr": I64(at.ldr or at.ldc)}
        if words is not None:
            own_words = k.mul(k.sub(row, unit.start), 4 * words.count)
            given["rows"] = k.at(unit.words, own_words, I8)
        function.call(k, **given)

    left = size.n - (panels.count - 1) * panels.columns
    whole = panels.count if left == panels.columns else panels.count - 1

    def over_panels(body: Callable[[Int, int, int], None]) -> None:
        if whole:
            with k.loop(first, k.min(last, whole)) as panel:
                body(panel, tile.vectors, panels.columns)
        if whole < panels.count:
            with k.when(k.b.icmp_signed("==", k.i64(last), I64(panels.count))):
                body(panels.count - 1, panels.last, left)

    def all_tiles(panel: Int, vectors: int, columns: int) -> None:
        with k.loop(unit.first, unit.stop) as number:
            call(number, panel, vectors, columns)

    if blocking.rows_first:
        with k.loop(unit.first, unit.stop) as number:
            over_panels(partial(call, number))
    else:
        over_panels(all_tiles)


def _part(k: StepEmitter, base: Value, group: Int, panel: Int, whole: int, one: int) -> Value:
    """Where a panel's share of packed arrays begins: `whole` bytes a group, `one` a panel."""
    return k.at(base, k.add(k.mul(group, whole), k.mul(panel, one)), I8)
