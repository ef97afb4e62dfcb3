"""3x3 float convolutions of stride one by Winograd's minimal filtering.

A tile of m x m outputs is A (G w G' * B d B') A' with * element by element, d the (m + 2)^2 inputs
under the tile: one matrix product over the channels for each of the (m + 2)^2 places, and 2.25 (m =
2) or 4 (m = 4) times fewer multiplications. The tiles of a block of lines are transformed,
multiplied panel by panel, and transformed back while what lies between is in the second cache.

Names: winograd_<in, out>_f<m>.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np

from .....ir import Array, DType, Op
from ...codegen.emit import (
    F32,
    I8,
    I64,
    PTR,
    ArgumentList,
    Arguments,
    Callee,
    Emitter,
    Int,
    Value,
    vector,
)
from ...codegen.program import StepEmitter
from ...dialect.fused import Inputs
from ...isa.targets import Target
from ..epilogue.contract import Numbers, Output, Sums, column_words
from ..epilogue.floats import FloatEpilogue
from ..epilogue.plain import PartEpilogue
from .cores import FloatCore, pack
from .gemm import UNITS, tile_function
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
# What is gained must be worth the larger weights: 16 / 9 and 4 times the plain ones.
GAIN = 0.85


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

    def weights(self, weights: Array, panels: Panels) -> Array:
        """[N, 3, 3, C] -> for each panel and place, what the core wants."""
        g = self.filters
        moved = np.einsum("ai,oijc,bj->aboc", g, weights.astype(np.float64), g, optimize=True)
        moved = moved.astype(np.float32).reshape(self.places, *weights.shape[::3])
        parts = []
        for first, columns in panels.spans():
            alone = Panels(columns, columns // panels.lanes, panels.lanes)
            part = np.zeros((columns, weights.shape[3]), np.float32)
            for place in moved:
                mine = place[first : first + columns]
                part[: len(mine)] = mine
                parts.append(pack(FloatCore(), part, alone))
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
        found[i], found[j] = e.b.fadd(found[i], found[j]), e.b.fsub(found[i], found[j])
    out: list[Value] = [None] * len(matrix)
    for i, j in _pairs(matrix):
        same = matrix[i] == matrix[j]
        one = _sum(e, np.where(same, matrix[i], 0), found)
        other = _sum(e, np.where(same, 0, matrix[i]), found)
        out[i], out[j] = e.b.fadd(one, other), e.b.fsub(one, other)
    return [_sum(e, row, found) if o is None else o for row, o in zip(matrix, out, strict=True)]


def _pairs(rows: Array) -> list[tuple[int, int]]:
    return [
        (i, i + 1) for i in range(len(rows) - 1) if np.array_equal(abs(rows[i]), abs(rows[i + 1]))
    ]


def _sum(e: Emitter, row: Array, values: Sequence[Value]) -> Value:
    terms = sorted(((c, v) for c, v in zip(row, values, strict=True) if c), key=lambda t: t[0] != 1)
    (first, total), *others = terms
    if first != 1:
        total = e.b.fmul(e.const(total.type, first), total)
    for c, value in others:
        if abs(c) == 1:
            total = (e.b.fadd if c == 1 else e.b.fsub)(total, value)
        else:
            total = e.fma(e.const(value.type, c), value, total)
    return total


# -- the plan ------------------------------------------------------------------------------------


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
class Plan:
    """How a convolution is cut: blocks of `lines` lines of tiles x groups of `group` panels."""

    form: Form
    window: Window
    tile: Tile
    panels: Panels
    lines: int
    group: int

    @property
    def across(self) -> int:
        return math.ceil(self.window.out_width / self.form.m)

    @property
    def down(self) -> int:
        return math.ceil(self.window.out_height / self.form.m)

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
        lanes = self.tile.lanes
        return packed_stride(4 * lanes * math.ceil(self.window.channels / lanes))

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


def _apart(size: int) -> int:
    """Rounded up so that neighbours lie in different sets of the first cache."""
    lines = -(-size // 64)
    return 64 * (lines + 1 - lines % 2)


def plan_for(target: Target, w: Window, n: int, f: Form) -> tuple[float, Plan]:
    """A plan, and its estimated cycles."""
    across, rows = math.ceil(w.out_width / f.m), w.batch * math.ceil(w.out_height / f.m)
    b_bytes = 4 * f.places * w.channels * n
    wanted = TILES[f.m] * (1 if b_bytes <= LARGE else 4)
    room = BLOCK // (4 * f.places * (w.channels + 2 * target.lanes))
    blocks = math.ceil(rows / max(1, round(min(wanted, room) / across)))
    lines = math.ceil(rows / blocks)
    blocks = math.ceil(rows / lines)
    last = (rows - (blocks - 1) * lines) * across
    cycles, tile = choose(target, last, n, w.channels)
    if blocks == 1 and tile.columns >= n:  # two workers want two panels
        tile = replace(tile, vectors=-(-tile.vectors // 2))
    panels = Panels(n, tile.vectors, tile.lanes)
    groups = min(panels.count, math.ceil(UNITS / blocks))
    plan = Plan(f, w, tile, panels, lines, math.ceil(panels.count / groups))
    vectors = rows * across * (math.ceil(w.channels / tile.lanes) + panels.padded / tile.lanes)
    product = cycles * rows * across / last
    stream = blocks * b_bytes / f.places / (NEAR if b_bytes <= 2 * LARGE else FAR)
    return f.places * (max(product, stream) + MOVE * vectors), plan


def choose_plan(target: Target, w: Window, n: int, plain: float) -> Plan | None:
    """The plan to take instead of a product that takes so many cycles, if there is one."""
    best = None
    for m in POINTS:
        cycles, plan = plan_for(target, w, n, form(m))
        if cycles < GAIN * plain:
            best, plain = plan, cycles
    return best


def suits(op: Op, w: Window, groups: int, target: Target) -> bool:
    x = op.operand(0)
    plain = w.kernel == (3, 3) and w.stride == w.dilation == (1, 1) and groups == 1
    large = min(w.out_height, w.out_width) >= 4
    # Few channels make short products, and the transform works on whole vectors of them.
    return plain and large and x.dtype is DType.FLOAT32 and 2 * w.channels >= target.lanes


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
    k: StepEmitter,
    op: Op,
    epilogue: FloatEpilogue,
    weights: Array,
    bias: Array,
    common: Array,
    plan: Plan,
) -> None:
    w, f = plan.window, plan.form
    x, residual = op.operand(0), Inputs.of(op).residual
    a_bytes, c_bytes = f.places * plan.a_place, f.places * plan.c_place
    memory = k.scratch(a_bytes + c_bytes + 8 * f.places)
    dense = 4 * plan.panels.n
    pitches = (
        k.pitch(x, 4 * w.step),
        k.pitch(op.outputs[0], dense),
        0 if residual is None else k.pitch(residual, dense),
    )
    at = Places(
        k.ptr(x),
        k.constant(f.weights(weights, plan.panels)),
        k.constant(column_words(plan.panels.spans(), bias)),
        k.constant(common),
        k.ptr(op.outputs[0]),
        None if residual is None else k.ptr(residual),
        pitches,
        k.constant(np.zeros(w.channels + plan.runs.apart // 4, np.float32)),
        memory,
        k.at(memory, a_bytes, I8),
        k.at(memory, a_bytes + c_bytes, I8),
    )
    _Step(k, plan, epilogue, at).walk()


@dataclass(frozen=True)
class _Step:
    k: StepEmitter
    plan: Plan
    epilogue: FloatEpilogue
    at: Places

    def walk(self) -> None:
        """A unit is a block of lines of tiles x a group of panels."""
        k, plan = self.k, self.plan
        rows = plan.window.batch * plan.down
        blocks = math.ceil(rows / plan.lines)
        groups = math.ceil(plan.panels.count / plan.group)
        begin, end = k.share(blocks * groups)
        with k.loop(begin, end, carry=[I64(-1)]) as (unit, (last,)):
            block, group = k.i64(k.div(unit, groups)), k.rem(unit, groups)
            first = k.mul(block, plan.lines)
            stop = k.min(k.add(first, plan.lines), rows)
            with k.when(k.b.icmp_signed("!=", block, last)):
                self._inputs(first, stop)
            self._panels(group, first, stop)
            k.carry([block])

    def _panels(self, group: Int, first: Int, stop: Int) -> None:
        k, panels = self.k, self.plan.panels
        begin = k.mul(group, self.plan.group)
        end = k.min(k.add(begin, self.plan.group), panels.count)
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
        k, plan, at = self.k, self.plan, self.at
        w, f = plan.window, plan.form
        pixel = at.pitches[0]
        line = pixel * w.width * plan.runs.count
        find = k.program.function(
            f"winograd_patch_f{f.m}", [PTR] * 3 + [I64] * 6, partial(_build_patch, n=f.n)
        )
        move = self._in_function()
        with k.loop(first, stop) as row, k.loop(0, plan.across) as x:
            image, y = k.div(row, plan.down), k.rem(row, plan.down)
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
            there = k.mul(self._number(row, first, x), plan.a_row)
            k.b.call(
                move, [k.at(at.a, there, I8), I64(plan.a_place), at.table, I64(4 * w.channels)]
            )

    def _in_function(self) -> Value:
        k, f, runs = self.k, self.plan.form, self.plan.runs
        rest = runs.channels % self.plan.tile.lanes
        name, build = f"winograd_in_f{f.m}", partial(_build_in, f=f, rest=rest)
        if runs.count > 1:
            name += f"_{runs.count}x{runs.channels}_{runs.apart}"
            build = partial(_build_in_runs, f=f, runs=runs)
        elif rest:
            name += f"_c{rest}"
        return k.program.function(name, [PTR, I64, PTR, I64], build)

    def _left(self, x: Int) -> Int:
        """A tile's first column. The last one begins earlier, in the same unit as its neighbour."""
        k, plan = self.k, self.plan
        return k.min(k.mul(x, plan.form.m), plan.window.out_width - plan.form.m)

    def _number(self, row: Int, first: Int, x: Int) -> Int:
        k = self.k
        return k.add(k.mul(k.sub(row, first), self.plan.across), x)

    def _panel(self, panel: Int, vectors: int, columns: int, first: Int, stop: Int) -> None:
        self._products(panel, vectors, first, stop)
        self._outputs(panel, columns, first, stop)

    def _products(self, panel: Int, vectors: int, first: Int, stop: Int) -> None:
        k, plan, at = self.k, self.plan, self.at
        depth, places = plan.window.channels, plan.form.places
        tile = Tile(plan.tile.rows, vectors, plan.tile.lanes, plan.tile.chains)
        function = tile_function(k, FloatCore(), PartEpilogue(), tile, tile.columns, fetches=True)
        whole, one = (4 * depth * c for c in (plan.panels.columns, tile.columns))
        b = k.at(at.weights, k.mul(panel, places * whole), I8)
        count = k.mul(k.sub(stop, first), plan.across)
        numbers = k.div(k.add(count, tile.rows - 1), tile.rows)
        stride = min(64, math.ceil(4 * tile.columns / math.ceil(plan.most / tile.rows)))
        with k.loop(0, places) as place, k.loop(0, numbers) as number:
            row = k.min(k.mul(number, tile.rows), k.sub(count, tile.rows))
            a = k.add(k.mul(place, plan.a_place), k.mul(row, plan.a_row))
            part = k.add(k.mul(k.add(place, AHEAD), one), k.mul(number, depth * stride))
            c = k.add(k.mul(place, plan.c_place), k.mul(row, plan.c_row))
            function.call(
                k,
                a=k.at(at.a, a, I8),
                lda=I64(plan.a_row),
                b=k.at(b, k.mul(place, one), I8),
                steps=I64(depth),
                params=at.params,
                common=at.common,
                c=k.at(at.sums, c, I8),
                ldc=I64(plan.c_row),
                ahead=k.at(b, part, I8),
                stride=I64(stride),
            )

    def _outputs(self, panel: Int, columns: int, first: Int, stop: Int) -> None:
        k, plan = self.k, self.plan
        w, f, lanes = plan.window, plan.form, plan.tile.lanes
        base = k.mul(panel, 4 * plan.panels.columns)
        with k.loop(first, stop) as row, k.loop(0, plan.across) as x:
            image, y = k.div(row, plan.down), k.rem(row, plan.down)
            top = k.add(k.mul(image, w.out_height), k.mul(y, f.m))
            pixel = k.add(k.mul(top, w.out_width), self._left(x))
            lines = k.min(k.sub(w.out_height, k.mul(y, f.m)), f.m)
            here = k.mul(self._number(row, first, x), plan.c_row)
            with k.loop(0, columns // lanes) as v:
                self._out(k.mul(v, 4 * lanes), base, lanes, here, pixel, lines)
            if columns % lanes:
                self._out(columns // lanes * 4 * lanes, base, columns % lanes, here, pixel, lines)

    def _out(self, column: Int, base: Int, count: int, here: Int, pixel: Int, lines: Int) -> None:
        """One tile, one vector of columns."""
        k, at, width = self.k, self.at, self.plan.window.out_width
        across = k.add(base, column)

        def place(pointer: Value, pitch: int) -> Value:
            return k.at(pointer, k.add(k.mul(pixel, pitch), across), I8)

        given = {
            "sums": k.at(at.sums, k.add(here, column), I8),
            "place": I64(self.plan.c_place),
            "params": k.at(at.params, across, I8),
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
        k, f, lanes = self.k, self.plan.form, self.plan.tile.lanes
        name = f"winograd_out_f{f.m}_{self.epilogue.name}" + f"_n{count}" * (count < lanes)
        types = {"sums": PTR, "place": I64, "params": PTR, "common": PTR, "lines": I64}
        types |= {"c": PTR, "pixel": I64, "line": I64}
        if self.epilogue.residual:
            types |= {"residual": PTR, "residual_pixel": I64, "residual_line": I64}
        build = partial(_build_out, f=f, epilogue=self.epilogue, count=count)
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


def _build_in(e: Emitter, f: Form, rest: int) -> None:
    """(target, place, table, bytes): B d B' for all channels, places apart; rest: channels of the
    last vector, if it is not full."""
    lanes, size = e.target.lanes, e.args[3]
    t = vector(F32, lanes)

    def piece(c: Int, count: int) -> None:
        _square(e, f, c, lambda pointer: e.load_part(e.at(pointer, c, I8), t, count))

    whole = e.sub(size, 4 * rest)
    with e.loop(0, whole, 4 * lanes) as c:
        piece(c, lanes)
    if rest:
        piece(whole, rest)


def _build_in_runs(e: Emitter, f: Form, runs: Runs) -> None:
    """The same, of pixels that lie in several runs."""
    lanes = e.target.lanes
    for first in range(0, runs.channels, lanes):
        _square(e, f, 4 * first, partial(runs.load, e, first=first, lanes=lanes))


def _square(e: Emitter, f: Form, c: Int, load: Callable[[Value], Value]) -> None:
    """One vector of channels, `c` bytes into the target's rows."""
    target, place, table, _ = e.args
    n = f.n
    lines = []
    for i in range(n):
        pixels = [e.load(e.at(table, i * n + j, PTR), PTR, 8) for j in range(n)]
        lines.append(combine(e, f.inputs, [load(p) for p in pixels]))
    for j in range(n):
        for i, value in enumerate(combine(e, f.inputs, [line[j] for line in lines])):
            e.store(value, e.at(target, e.add(c, e.mul(place, i * n + j)), I8), 4)


def _build_out(e: Emitter, given: Arguments, f: Form, epilogue: FloatEpilogue, count: int) -> None:
    """A s A' for one vector of columns, bias, and the epilogue. place: bytes from one of the sums'
    places to the next; pixel, line: bytes to the next one."""
    lanes, n = e.target.lanes, f.n
    t = vector(F32, lanes)
    columns = []
    for j in range(n):
        found = [
            e.load(e.at(given["sums"], e.mul(given["place"], i * n + j), I8), t, 4)
            for i in range(n)
        ]
        columns.append(combine(e, f.outputs, found))
    bias = e.load_part(given["params"], t, count)
    numbers = Numbers(given["params"], lanes, given["common"])
    for r in range(f.m):
        with e.when(e.b.icmp_signed("<", I64(r), given["lines"])):
            values = combine(e, f.outputs, [column[r] for column in columns])
            values = [e.b.fadd(v, bias) for v in values]
            sums = Sums(values, f.m, 1, lanes, count)
            epilogue.store(e, sums, numbers, _line_of_results(e, given, r))


def _line_of_results(e: Emitter, given: Arguments, r: int) -> Output:
    """Where line r of a tile's pixels lies."""
    beside = None
    if "residual" in given:
        beside = e.at(given["residual"], e.mul(given["residual_line"], r), I8)
    results = e.at(given["c"], e.mul(given["line"], r), I8)
    return Output(results, given["pixel"], beside, given.get("residual_pixel"))
