"""3x3 convolutions of stride one by Winograd's minimal filtering.

A tile of m x m outputs is A (G w G' * B d B') A' with * element by element, d the (m + 2)^2 inputs
under the tile: one matrix product over the channels for each of the (m + 2)^2 places, and 2.25 (m =
2) or 4 (m = 4) times fewer multiplications. The tiles of a block of lines are transformed,
multiplied panel by panel, and transformed back while what lies between is in the second cache.

8-bit codes that are multiplied as words take it, too, for m = 2: B has no other numbers than 0, 1
and -1, and 2 G is whole, so that four times the sums come out exactly (`Words`).

Names: winograd_<in, out>_f<m>.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

import numpy as np

from .....ir import Array, Op
from ...codegen.emit import (
    F32,
    I8,
    I16,
    I64,
    PTR,
    ArgumentList,
    Arguments,
    Callee,
    Emitter,
    Int,
    Type,
    Value,
    bytes_of,
    vector,
)
from ...codegen.program import StepEmitter
from ...dialect.fused import Inputs
from ...isa.targets import Target
from ..epilogue.contract import Epilogue, Numbers, Output, Sums, column_words
from ..epilogue.plain import PartEpilogue
from .cores import FloatCore, PairCore, WordCore, pack, padded_depth, panel_bytes
from .gemm import UNITS, Arithmetic, instructions, tile_function
from .sources import Window, packed_stride
from .tiles import Panels, Tile, choose

# Where the polynomials are evaluated, beside infinity. With these four beside zero the error is
# twice that of the plain sum (0.8e-6 to 1.5e-6 of the largest output for 16 to 64 channels); with
# 0, +-1, +-2 it is ten times that.
_ROOT = math.sqrt(2)
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, _ROOT / 2, -_ROOT / 2, _ROOT, -_ROOT)}
# Bytes of the second cache that the transformed inputs and sums of a block may take.
BLOCK = 640 * 1024
# Tiles of a block, if there are so many: what one or two tiles of a product take; and four times
# that where the weights are too large for the second cache and come anew for each block.
TILES = {2: 28, 4: 14}
LARGE = 512 * 1024
# Cycles of a vector's way through a transform, for each place; and bytes a cycle at which weights
# come that fit the second cache, and that do not. Fitted, as those of tiles.py, on an Ice Lake
# server core: float32 layers of Darknet, SqueezeNet and ResNets, 8x8x64 to 112x112x16.
MOVE, NEAR, FAR = 2.8, 32.0, 6.0
# Places by which the weights are fetched ahead.
AHEAD = 4
# What is gained must be worth the larger weights: 16 / 9 and 4 times the plain ones. Words gain
# more than is estimated (Zen 5, AVX2: 32x32x16 to 16 in 0.86 of the time, 16x16x32 to 32 in 0.55,
# where 0.88 and 0.69 are estimated).
GAIN, GAIN_OF_WORDS = 0.85, 0.95


@dataclass(frozen=True)
class Floats:
    """float32 activations, products and sums."""

    core: FloatCore = field(default_factory=FloatCore)
    read: Type = F32  # an element of the input
    moved: Type = F32  # of the transformed input
    dtype: type = np.float32
    forms: tuple[int, ...] = (2, 4)  # m
    gain: float = GAIN
    name: str = ""

    def widened(self, e: Emitter, value: Value) -> Value:
        return value

    def filters(self, f: Form, weights: Array) -> Array:
        """G w G' of [N, 3, 3, C]: [place, N, C]."""
        return _filtered(f.filters, weights.astype(np.float64)).astype(np.float32)

    def sums(self, e: Emitter, values: Sequence[Value]) -> Sequence[Value]:
        """The results of A s A', as they are."""
        return values


@dataclass(frozen=True)
class Words:
    """8-bit codes as 16-bit words, which are exact: transformed inputs stay within 4 * 255, filters
    within 9 * 255. Sums may leave 32 bits on the way and wrap around; four times the result does
    not (`exact`), so that it comes out right."""

    core: PairCore | WordCore
    signed: bool
    read: Type = I8
    moved: Type = I16
    dtype: type = np.int16
    forms: tuple[int, ...] = (2,)
    gain: float = GAIN_OF_WORDS

    @property
    def name(self) -> str:
        return "_s8" if self.signed else "_u8"

    def widened(self, e: Emitter, value: Value) -> Value:
        t = vector(I16, value.type.count)
        return e.b.sext(value, t) if self.signed else e.b.zext(value, t)

    def filters(self, f: Form, weights: Array) -> Array:
        """Four times G w G'."""
        g = 2 * f.filters
        assert np.array_equal(g, np.round(g))
        return _filtered(np.round(g).astype(np.int64), weights.astype(np.int64)).astype(np.int16)

    def sums(self, e: Emitter, values: Sequence[Value]) -> Sequence[Value]:
        """A quarter of the results of A s A': the filters are four times their size."""
        return [e.b.ashr(v, e.const(v.type, 2)) for v in values]


Kind = Floats | Words


def exact(weights: Array) -> bool:
    """Whether four times a sum of these weights [N, ...] and 8-bit activations stays in 32 bits."""
    sizes = np.abs(weights.reshape(len(weights), -1).astype(np.int64)).sum(axis=1)
    return bool(4 * 255 * sizes.max(initial=0) < 2**31)


def _filtered(g: Array, weights: Array) -> Array:
    moved = np.einsum("ai,oijc,bj->aboc", g, weights, g, optimize=True)
    return moved.reshape(len(g) ** 2, *weights.shape[::3])


@dataclass(frozen=True)
class Form:
    """F(m x m, 3 x 3) and its matrices."""

    m: int

    @property
    def n(self) -> int:
        return self.m + 2

    @property
    def places(self) -> int:
        return self.n * self.n

    @cached_property
    def outputs(self) -> Array:
        """A: [m, n]."""
        p = POINTS[self.m]
        return np.array([[x**i for x in p] + [float(i == self.m - 1)] for i in range(self.m)])

    @cached_property
    def inputs(self) -> Array:
        """B: [n, n], a row the coefficients of the product of all other points' factors."""
        p = POINTS[self.m]
        rows = [[*np.poly([q for q in p if q != x])[::-1], 0.0] for x in p]
        # Rounded, so that what is zero, or equal but for the sign, is so exactly.
        return np.round([*rows, np.poly(p)[::-1]], 12)

    @cached_property
    def filters(self) -> Array:
        """G: [n, 3]."""
        p = POINTS[self.m]
        share = [math.prod(x - q for q in p if q != x) for x in p]
        rows = [[x**i / s for i in range(3)] for x, s in zip(p, share, strict=True)]
        return np.array([*rows, [0.0, 0.0, 1.0]])

    def weights(self, kind: Kind, weights: Array, panels: Panels) -> Array:
        """[N, 3, 3, C] -> for each panel and place, what the core wants."""
        moved = kind.filters(self, weights)
        parts = list[Array]()
        for first, columns in panels.spans():
            alone = Panels(columns, columns // panels.lanes, panels.lanes)
            part: Array = np.zeros((columns, weights.shape[3]), kind.dtype)
            for place in moved:
                mine = place[first : first + columns]
                part[: len(mine)] = mine
                parts.append(pack(kind.core, part, alone))
        return np.concatenate(parts)


@cache
def form(m: int) -> Form:
    return Form(m)


def combine(e: Emitter, matrix: Array, values: Sequence[Value]) -> list[Value]:
    """matrix @ values. Columns, and rows, that differ in signs alone share their sums."""
    matrix, found = matrix.copy(), list(values)
    for i, j in _pairs(matrix.T):
        a, b = matrix[:, i].copy(), matrix[:, j].copy()
        matrix[:, i], matrix[:, j] = np.where(a == b, a, 0), np.where(a == b, 0, a)
        found[i], found[j] = _plus(e, found[i], found[j]), _minus(e, found[i], found[j])
    out: list[Value] = [None] * len(matrix)
    for i, j in _pairs(matrix):
        same = matrix[i] == matrix[j]
        one = _sum(e, np.where(same, matrix[i], 0), found)
        other = _sum(e, np.where(same, 0, matrix[i]), found)
        out[i], out[j] = _plus(e, one, other), _minus(e, one, other)
    return [_sum(e, row, found) if o is None else o for row, o in zip(matrix, out, strict=True)]


def _pairs(rows: Array) -> list[tuple[int, int]]:
    return [
        (i, i + 1) for i in range(len(rows) - 1) if np.array_equal(abs(rows[i]), abs(rows[i + 1]))
    ]


def _plus(e: Emitter, x: Value, y: Value) -> Value:
    return (e.b.fadd if x.type.element == F32 else e.b.add)(x, y)


def _minus(e: Emitter, x: Value, y: Value) -> Value:
    return (e.b.fsub if x.type.element == F32 else e.b.sub)(x, y)


def _sum(e: Emitter, row: Array, values: Sequence[Value]) -> Value:
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: t[0] != 1)
    (first, total), *others = terms
    if first != 1:
        total = e.b.fmul(e.const(total.type, first), total)
    for c, value in others:
        if abs(c) == 1:
            total = (_plus if c == 1 else _minus)(e, total, value)
        else:
            total = e.fma(e.const(value.type, c), value, total)
    return total


# -- the blocking ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """The channels of a pixel lie in so many runs, these bytes apart."""

    count: int
    channels: int
    apart: int

    def load(self, e: Emitter, pointer: Value, first: int, lanes: int) -> Value:
        """Channels from `first` on; zeros behind the last."""
        t, each = vector(F32, lanes), self.channels // self.count
        value = e.const(t, 0)
        for run in range(self.count):
            inside = range(max(run * each - first, 0), min((run + 1) * each - first, lanes))
            if inside:
                there = e.at(pointer, run * self.apart + 4 * (first - run * each), I8)
                value = e.load_lanes(there, value, inside)
        return value


@dataclass(frozen=True)
class WinogradBlocking:
    """How a convolution is cut: blocks of `lines` lines of tiles x groups of `group` panels."""

    kind: Kind
    form: Form
    window: Window
    tile: Tile
    panels: Panels
    lines: int
    group: int

    @property
    def steps(self) -> int:
        """How many steps a product has."""
        return padded_depth(self.kind.core, self.window.channels) // self.kind.core.depth

    @property
    def across(self) -> int:
        return math.ceil(self.window.out_width / self.form.m)

    @property
    def down(self) -> int:
        return math.ceil(self.window.out_height / self.form.m)

    @property
    def is_folded(self) -> bool:
        return self.runs.count > 1

    @property
    def runs(self) -> Runs:
        w = self.window
        return Runs(w.channels // w.step, w.channels, 4 * w.width * w.step)

    @property
    def most(self) -> int:
        """Tiles of a block."""
        return self.lines * self.across

    @property
    def a_row(self) -> int:
        vectors = math.ceil(self.window.channels / channels_of(self.kind, self.tile.lanes))
        return packed_stride(4 * self.tile.lanes * vectors)

    @property
    def a_place(self) -> int:
        """Bytes from place to place of the transformed inputs."""
        return _apart(self.most * self.a_row)

    @property
    def c_row(self) -> int:
        return 4 * self.panels.columns

    @property
    def c_place(self) -> int:
        return _apart(self.most * self.c_row)


def channels_of(kind: Kind, lanes: int) -> int:
    """How many transformed inputs a vector holds."""
    return 4 * lanes // kind.core.a_bytes


def _apart(size: int) -> int:
    """Rounded up so that neighbours lie in different sets of the first cache."""
    lines = -(-size // 64)
    return 64 * (lines + 1 - lines % 2)


FLOATS = Floats()


def blocking_for(
    target: Target, w: Window, n: int, f: Form, kind: Kind = FLOATS
) -> tuple[float, WinogradBlocking]:
    """A blocking, and its estimated cycles."""
    core, lanes = kind.core, target.lanes
    across, rows = math.ceil(w.out_width / f.m), w.batch * math.ceil(w.out_height / f.m)
    b_bytes = f.places * panel_bytes(core, w.channels, n)
    wanted = TILES[f.m] * (1 if b_bytes <= LARGE else 4)
    room = BLOCK // (f.places * (core.a_bytes * w.channels + 8 * lanes))
    blocks = math.ceil(rows / max(1, round(min(wanted, room) / across)))
    lines = math.ceil(rows / blocks)
    blocks = math.ceil(rows / lines)
    last = (rows - (blocks - 1) * lines) * across
    steps = padded_depth(core, w.channels) // core.depth
    cycles, tile = choose(target, last, n, steps, instructions(target, core))
    if blocks == 1 and tile.columns >= n:  # two workers want two panels
        tile = replace(tile, vectors=-(-tile.vectors // 2))
    panels = Panels(n, tile.vectors, tile.lanes)
    groups = min(panels.count, math.ceil(UNITS / blocks))
    blocking = WinogradBlocking(kind, f, w, tile, panels, lines, math.ceil(panels.count / groups))
    moved = math.ceil(w.channels / channels_of(kind, lanes)) + panels.padded / lanes
    product = cycles * rows * across / last
    stream = blocks * b_bytes / f.places / (NEAR if b_bytes <= 2 * LARGE else FAR)
    return f.places * (max(product, stream) + MOVE * rows * across * moved), blocking


def choose_blocking(
    target: Target, w: Window, n: int, plain: float, kind: Kind = FLOATS
) -> WinogradBlocking | None:
    """The blocking to take instead of a product that takes so many cycles, if there is one."""
    best = None
    for m in kind.forms:
        cycles, blocking = blocking_for(target, w, n, form(m), kind)
        if cycles < kind.gain * plain:
            best, plain = blocking, cycles
    return best


def suits(w: Window, groups: int, target: Target, kind: Kind) -> bool:
    plain = w.kernel == (3, 3) and w.stride == w.dilation == (1, 1) and groups == 1
    large = min(w.out_height, w.out_width) >= 4
    # Few channels make short products, and the transform works on whole vectors of them.
    return plain and large and 2 * w.channels >= channels_of(kind, target.lanes)


def folded(w: Window) -> Window:
    """A 6x6 window of stride two over few channels is a 3x3 window of stride one over squares of
    four pixels: a pixel of that picture lies in two runs, a line apart."""
    even = not any(v % 2 for v in (w.height, w.width, *w.pad))
    if w.kernel != (6, 6) or w.stride != (2, 2) or w.step != w.channels or not even:
        return w
    return Window(
        w.batch,
        w.height // 2,
        w.width // 2,
        4 * w.channels,
        w.out_height,
        w.out_width,
        (3, 3),
        (1, 1),
        w.dilation,
        (w.pad[0] // 2, w.pad[1] // 2),
        2 * w.channels,
    )


def fold(weights: Array) -> Array:
    """The weights of a folded window: [N, 6, 6, C] to [N, 3, 3, 2 * 2 * C]."""
    n, _, _, channels = weights.shape
    return weights.reshape(n, 3, 2, 3, 2, channels).transpose(0, 1, 3, 2, 4, 5).reshape(n, 3, 3, -1)


# -- the step ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Places:
    """Addresses: the operands, and this worker's memory."""

    x: Value
    weights: Value
    params: Value
    common: Value
    c: Value
    residual: Value | None
    pitches: tuple[int, int, int]  # bytes from pixel to pixel: input, output, residual
    zeros: Value
    a: Value  # transformed inputs
    sums: Value
    table: Value


def emit_winograd(
    k: StepEmitter, op: Op, arithmetic: Arithmetic, weights: Array, blocking: WinogradBlocking
) -> None:
    """weights: [N, 3, 3, C], without their zero point."""
    w, f, epilogue = blocking.window, blocking.form, arithmetic.epilogue
    x, residual = op.operand(0), Inputs.of(op).residual
    item, lanes = x.dtype.numpy.itemsize, blocking.tile.lanes
    a_bytes, c_bytes = f.places * blocking.a_place, f.places * blocking.c_place
    memory = k.scratch(a_bytes + c_bytes + 8 * f.places)
    dense = epilogue.out_bytes * blocking.panels.n
    vectors = [(first, lanes) for first in range(0, blocking.panels.padded, lanes)]
    outside = w.channels + blocking.runs.apart // item
    pitches = (
        k.pitch(x, item * w.step),
        k.pitch(op.outputs[0], dense),
        0 if residual is None else k.pitch(residual, dense),
    )
    at = Places(
        k.ptr(x),
        k.constant(f.weights(blocking.kind, weights, blocking.panels)),
        k.constant(column_words(vectors, *arithmetic.columns)),
        k.constant(arithmetic.common),
        k.ptr(op.outputs[0]),
        None if residual is None else k.ptr(residual),
        pitches,
        k.constant(np.full(outside, arithmetic.zero, x.dtype.numpy)),
        memory,
        k.at(memory, a_bytes, I8),
        k.at(memory, a_bytes + c_bytes, I8),
    )
    _Step(k, blocking, epilogue, at, item, arithmetic.zero).walk()


@dataclass(frozen=True)
class _Step:
    k: StepEmitter
    blocking: WinogradBlocking
    epilogue: Epilogue
    at: Places
    item: int  # bytes of an input
    zero: int  # of the inputs

    def walk(self) -> None:
        """A unit is a block of lines of tiles x a group of panels."""
        k, blocking = self.k, self.blocking
        rows = blocking.window.batch * blocking.down
        blocks = math.ceil(rows / blocking.lines)
        groups = math.ceil(blocking.panels.count / blocking.group)
        begin, end = k.share(blocks * groups)
        with k.loop(begin, end, carry=[I64(-1)]) as (unit, (last,)):
            block, group = k.i64(k.div(unit, groups)), k.rem(unit, groups)
            first = k.mul(block, blocking.lines)
            stop = k.min(k.add(first, blocking.lines), rows)
            with k.when(k.b.icmp_signed("!=", block, last)):
                self._inputs(first, stop)
            self._panels(group, first, stop)
            k.carry([block])

    def _panels(self, group: Int, first: Int, stop: Int) -> None:
        k, panels = self.k, self.blocking.panels
        begin = k.mul(group, self.blocking.group)
        end = k.min(k.add(begin, self.blocking.group), panels.count)
        left = panels.n - (panels.count - 1) * panels.columns
        whole = panels.count - (left < panels.columns)
        if whole:
            with k.loop(begin, k.min(end, whole)) as panel:
                self._panel(panel, panels.vectors, panels.columns, first, stop)
        if whole < panels.count:
            with k.when(k.b.icmp_signed("==", k.i64(end), I64(panels.count))):
                self._panel(whole, panels.last, left, first, stop)

    def _inputs(self, first: Int, stop: Int) -> None:
        """Transform the inputs of a block's tiles."""
        k, blocking, at = self.k, self.blocking, self.at
        w, f = blocking.window, blocking.form
        pixel = at.pitches[0]
        line = pixel * w.width * blocking.runs.count
        find = k.program.function(
            f"winograd_patch_f{f.m}", [PTR] * 3 + [I64] * 6, partial(_build_patch, n=f.n)
        )
        move = self._in_function()
        with k.loop(first, stop) as row, k.loop(0, blocking.across) as x:
            image, y = k.div(row, blocking.down), k.rem(row, blocking.down)
            picture = k.at(at.x, k.mul(image, w.height * line), I8)
            top = k.sub(k.mul(y, f.m), w.pad[0])
            left = k.sub(self._left(x), w.pad[1])
            k.b.call(
                find,
                [
                    at.table,
                    picture,
                    at.zeros,
                    k.i64(top),
                    k.i64(left),
                    I64(w.height),
                    I64(w.width),
                    I64(pixel),
                    I64(line),
                ],
            )
            there = k.mul(self._number(row, first, x), blocking.a_row)
            given = [k.at(at.a, there, I8), I64(blocking.a_place), at.table]
            k.b.call(move, [*given, I64(self.item * w.channels), I64(self.zero)])

    def _in_function(self) -> Value:
        k, f, kind, runs = self.k, self.blocking.form, self.blocking.kind, self.blocking.runs
        rest = runs.channels % channels_of(kind, self.blocking.tile.lanes)
        name = f"winograd_in_f{f.m}{kind.name}"
        build = partial(_build_in, f=f, kind=kind, rest=rest)
        if runs.count > 1:
            name += f"_{runs.count}x{runs.channels}_{runs.apart}"
            build = partial(_build_in_runs, f=f, runs=runs)
        elif rest:
            name += f"_c{rest}"
        return k.program.function(name, [PTR, I64, PTR, I64, I64], build)

    def _left(self, x: Int) -> Int:
        """A tile's first column. The last one begins earlier, in the same unit as its neighbour."""
        k, blocking = self.k, self.blocking
        return k.min(k.mul(x, blocking.form.m), blocking.window.out_width - blocking.form.m)

    def _number(self, row: Int, first: Int, x: Int) -> Int:
        k = self.k
        return k.add(k.mul(k.sub(row, first), self.blocking.across), x)

    def _panel(self, panel: Int, vectors: int, columns: int, first: Int, stop: Int) -> None:
        self._products(panel, vectors, first, stop)
        self._outputs(panel, columns, first, stop)

    def _products(self, panel: Int, vectors: int, first: Int, stop: Int) -> None:
        k, blocking, at = self.k, self.blocking, self.at
        core, steps, places = blocking.kind.core, blocking.steps, blocking.form.places
        tile = Tile(blocking.tile.rows, vectors, blocking.tile.lanes, blocking.tile.chains)
        sums = PartEpilogue(core.acc)
        function = tile_function(k, core, sums, tile, tile.columns, fetches=True)
        line = panel_bytes(core, core.depth, tile.columns)
        whole = panel_bytes(core, blocking.window.channels, blocking.panels.columns)
        one = steps * line
        b = k.at(at.weights, k.mul(panel, places * whole), I8)
        count = k.mul(k.sub(stop, first), blocking.across)
        numbers = k.div(k.add(count, tile.rows - 1), tile.rows)
        stride = min(64, math.ceil(line / math.ceil(blocking.most / tile.rows)))
        with k.loop(0, places) as place, k.loop(0, numbers) as number:
            row = k.min(k.mul(number, tile.rows), k.sub(count, tile.rows))
            a = k.add(k.mul(place, blocking.a_place), k.mul(row, blocking.a_row))
            part = k.add(k.mul(k.add(place, AHEAD), one), k.mul(number, steps * stride))
            c = k.add(k.mul(place, blocking.c_place), k.mul(row, blocking.c_row))
            function.call(
                k,
                a=k.at(at.a, a, I8),
                lda=I64(blocking.a_row),
                b=k.at(b, k.mul(place, one), I8),
                steps=I64(steps),
                params=at.params,
                common=at.common,
                c=k.at(at.sums, c, I8),
                ldc=I64(blocking.c_row),
                ahead=k.at(b, part, I8),
                stride=I64(stride),
            )

    def _outputs(self, panel: Int, columns: int, first: Int, stop: Int) -> None:
        k, blocking = self.k, self.blocking
        w, f, lanes = blocking.window, blocking.form, blocking.tile.lanes
        base = k.mul(panel, blocking.panels.columns)
        with k.loop(first, stop) as row, k.loop(0, blocking.across) as x:
            image, y = k.div(row, blocking.down), k.rem(row, blocking.down)
            top = k.add(k.mul(image, w.out_height), k.mul(y, f.m))
            pixel = k.add(k.mul(top, w.out_width), self._left(x))
            lines = k.min(k.sub(w.out_height, k.mul(y, f.m)), f.m)
            here = k.mul(self._number(row, first, x), blocking.c_row)
            with k.loop(0, columns // lanes) as v:
                self._out(k.mul(v, lanes), base, lanes, here, pixel, lines)
            if columns % lanes:
                self._out(columns // lanes * lanes, base, columns % lanes, here, pixel, lines)

    def _out(self, column: Int, base: Int, count: int, here: Int, pixel: Int, lines: Int) -> None:
        """One tile, one vector of columns."""
        k, at, width = self.k, self.at, self.blocking.window.out_width
        across, epilogue = k.add(base, column), self.epilogue

        def place(pointer: Value, pitch: int) -> Value:
            there = k.add(k.mul(pixel, pitch), k.mul(across, epilogue.out_bytes))
            return k.at(pointer, there, I8)

        given = {
            "sums": k.at(at.sums, k.add(here, k.mul(column, 4)), I8),
            "place": I64(self.blocking.c_place),
            "params": k.at(at.params, k.mul(across, 4 * epilogue.arrays), I8),
            "common": at.common,
            "lines": k.i64(lines),
            "c": place(at.c, at.pitches[1]),
            "pixel": I64(at.pitches[1]),
            "line": I64(at.pitches[1] * width),
        }
        if at.residual is not None:
            given["residual"] = place(at.residual, at.pitches[2])
            given["residual_pixel"] = I64(at.pitches[2])
            given["residual_line"] = I64(at.pitches[2] * width)
        self._out_function(count).call(k, **given)

    def _out_function(self, count: int) -> Callee:
        k, f, lanes = self.k, self.blocking.form, self.blocking.tile.lanes
        name = f"winograd_out_f{f.m}_{self.epilogue.name}" + f"_n{count}" * (count < lanes)
        types = {"sums": PTR, "place": I64, "params": PTR, "common": PTR, "lines": I64}
        types |= {"c": PTR, "pixel": I64, "line": I64}
        if self.epilogue.residual:
            types |= {"residual": PTR, "residual_pixel": I64, "residual_line": I64}
        build = partial(
            _build_out, f=f, kind=self.blocking.kind, epilogue=self.epilogue, count=count
        )
        return k.program.declared(name, ArgumentList(types), build)


def _build_patch(e: Emitter, n: int) -> None:
    """(table, picture, zeros, top, left, height, width, pixel, line): the addresses of the pixels
    under a tile, those outside the picture at zeros."""
    table, picture, zeros, top, left, height, width, pixel, line = e.args
    columns = [e.add(left, j) for j in range(n)]
    # Negative numbers are large when read without sign.
    across = [e.b.icmp_unsigned("<", c, width) for c in columns]
    with e.loop(0, n) as i:
        y = e.b.add(top, i)
        inside = e.b.icmp_unsigned("<", y, height)
        start = e.at(picture, e.b.mul(y, line), I8)
        for j in range(n):
            real = e.at(start, e.b.mul(columns[j], pixel), I8)
            found = e.b.select(e.b.and_(inside, across[j]), real, zeros)
            e.store(found, e.at(table, e.add(e.mul(i, n), j), PTR), 8)


def _build_in(e: Emitter, f: Form, kind: Kind, rest: int) -> None:
    """(target, place, table, bytes, zero): B d B' for all channels, places apart; zero: of codes;
    rest: channels of the last vector, if it is not full."""
    channels = channels_of(kind, e.target.lanes)
    t, size = vector(kind.read, channels), bytes_of(kind.read)
    wider = bytes_of(kind.moved) // size

    def piece(c: Int, count: int) -> None:
        def load(pointer: Value) -> Value:
            return kind.widened(e, e.load_part(e.at(pointer, c, I8), t, count))

        _square(e, f, e.mul(c, wider), load)

    whole = e.sub(e.args[3], size * rest)
    with e.loop(0, whole, size * channels) as c:
        piece(c, channels)
    if rest:
        piece(whole, rest)


def _build_in_runs(e: Emitter, f: Form, runs: Runs) -> None:
    """The same, of floats in pixels that lie in several runs."""
    lanes = e.target.lanes
    for first in range(0, runs.channels, lanes):
        _square(e, f, 4 * first, partial(runs.load, e, first=first, lanes=lanes))


def _square(e: Emitter, f: Form, c: Int, load: Callable[[Value], Value]) -> None:
    """One vector of channels, `c` bytes into the target's rows."""
    target, place, table, *_ = e.args
    n = f.n
    lines = []
    for i in range(n):
        pixels = [e.load(e.at(table, i * n + j, PTR), PTR, 8) for j in range(n)]
        lines.append(combine(e, f.inputs, [load(p) for p in pixels]))
    for j in range(n):
        for i, value in enumerate(combine(e, f.inputs, [line[j] for line in lines])):
            there = e.at(target, e.add(c, e.mul(place, i * n + j)), I8)
            e.store(_without_zero(e, f, value, i, j), there, 4)


def _without_zero(e: Emitter, f: Form, value: Value, i: int, j: int) -> Value:
    """A transformed input without what the zero point of all codes under the tile adds to it."""
    excess = f.inputs.sum(axis=1)
    share = round(excess[i] * excess[j])
    if value.type.element == F32 or not share:
        return value
    zero = e.b.mul(e.b.trunc(e.args[4], I16), I16(share))
    return e.b.sub(value, e.splat(zero, value.type.count))


def _build_out(
    e: Emitter, given: Arguments, f: Form, kind: Kind, epilogue: Epilogue, count: int
) -> None:
    """A s A' for one vector of columns, bias, and the epilogue. place: bytes from one of the sums'
    places to the next; pixel, line: bytes to the next one."""
    lanes, n = e.target.lanes, f.n
    t = vector(kind.core.acc, lanes)
    columns = []
    for j in range(n):
        found = [
            e.load(e.at(given["sums"], e.mul(given["place"], i * n + j), I8), t, 4)
            for i in range(n)
        ]
        columns.append(combine(e, f.outputs, found))
    numbers = Numbers(given["params"], lanes, given["common"])
    bias = epilogue.start(e, numbers, 0, lanes)
    for r in range(f.m):
        with e.when(e.b.icmp_signed("<", I64(r), given["lines"])):
            values = kind.sums(e, combine(e, f.outputs, [column[r] for column in columns]))
            values = [_plus(e, v, bias) for v in values]
            sums = Sums(values, f.m, 1, lanes, count)
            epilogue.store(e, sums, numbers, _line_of_results(e, given, r))


def _line_of_results(e: Emitter, given: Arguments, r: int) -> Output:
    """Where line r of a tile's pixels lies."""
    beside = None
    if "residual" in given:
        beside = e.at(given["residual"], e.mul(given["residual_line"], r), I8)
    results = e.at(given["c"], e.mul(given["line"], r), I8)
    return Output(results, given["pixel"], beside, given.get("residual_pixel"))
