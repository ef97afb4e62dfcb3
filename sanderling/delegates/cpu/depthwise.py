"""Depthwise convolution: channels in vector lanes, a tile of rows x columns of results at a time.

A step walks (row tile, group of channel blocks); a tile function does one row tile of some blocks:

    dw_<kind>_<kernel>_s<stride>_d<dilation>_t<rows>x<columns>[_n<stored>][_exact]

The kinds of blocks are in taps.py. Rows and columns that hang over the picture are read from a row
of zero points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from ...ir import Array, DType, Op, Tensor
from ...ops.base import attr, quant, scale_zero
from ...ops.fixed import ACTIVATION_BOUNDS, fused_range
from .abi import FIRST_ARG
from .conv import is_folded
from .emit import F32, I8, I64, PTR, Emitter, Int, Type, Value
from .geometry import window_of
from .program import Kernel, StepEmitter
from .taps import ByteKind, FloatKind, Kind, Load, Shape, UnitKind
from .targets import Target

# Code for one tile grows with its taps; a larger kernel is not worth the compile time.
MOST_TAPS = 1024
MOST_PRODUCTS = 1200


# -- one row tile ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """A run of equal blocks of channels. stored: how many channels the last of them has."""

    kind: Kind
    first: int
    count: int
    stored: int


@dataclass(frozen=True)
class TileCode:
    """The function that does a row tile for a run of blocks.

    (rows..., zeros, weights, params, out, out_row, pitch, width, out_width, left, first, last,
    tiles): pitches in bytes.
    """

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
    def types(self) -> list[Type]:
        return [PTR] * (self.shape.lines + 4) + [I64] * 8

    def build(self, e: Emitter) -> None:
        rows, rest = e.args[: self.shape.lines], e.args[self.shape.lines :]
        zeros, weights, params, out = rest[:4]
        out_row, pitch, width, out_width, left, first, last, tiles = rest[4:]
        out.add_attribute("noalias")  # so that parameters are read once for all stores
        columns = self.shape.columns
        # Tiles first, then blocks: a tile's input is read front to back, which is what prefetchers
        # want. (Blocks first: 20 to 40 % slower where the picture does not fit L2.)
        with e.loop(0, tiles) as index, e.loop(first, last) as block:
            here = e.mul(block, self.kind.channels * self.kind.item)
            x = e.min(e.mul(index, columns), e.sub(out_width, columns))
            start = e.sub(e.mul(x, self.shape.stride[1]), left)
            load = self._loader(e, [e.at(r, here, I8) for r in rows], zeros, start, pitch, width)
            self._tile(e, load, e.at(weights, e.mul(block, self.weight_bytes), I8),
                       e.at(params, e.mul(block, self.params_bytes), I8),
                       e.at(e.at(out, here, I8), e.mul(x, pitch), I8), out_row, pitch)  # fmt: skip

    def _tile(self, e: Emitter, load: Load, weights: Value, params: Value, out: Value,
              out_row: Value, pitch: Value) -> None:  # fmt: skip
        acc = self.kind.tile(e, self.shape, load, weights, params)
        for (row, column), values in acc.items():
            place = e.add(e.mul(out_row, row), e.mul(pitch, column))
            e.store_part(self.kind.finish(e, values, params), e.at(out, place, I8), self.stored)

    def _loader(self, e: Emitter, rows: Sequence[Value], zeros: Value, begin: Value, pitch: Value,
                width: Value) -> Load:  # fmt: skip
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


# -- the step -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """A depthwise convolution, its dead taps cut off."""

    batch: int
    size: tuple[int, int]
    out: tuple[int, int]
    channels: int  # of the output
    shape: Shape
    before: tuple[int, int]
    taps: Array  # [kh, kw, channels], less the zero point
    outside: int  # what lies around the picture


def layer(op: Op) -> Layer:
    x, w = _tensor(op, 0), _tensor(op, 1)
    g = window_of(op)
    taps = _data(w)[0]
    if x.dtype is not DType.FLOAT32:
        taps = taps.astype(np.int32) - (scale_zero(w)[1] if w.dtype is DType.UINT8 else 0)
    size, out = x.shape[1:3], op.outputs[0].shape[1:3]
    before = []
    for axis in (0, 1):
        live = _live(size[axis], out[axis], g.kernel[axis], g.stride[axis], g.dilation[axis],
                     g.before[axis])  # fmt: skip
        taps = taps[live.start : live.stop] if axis == 0 else taps[:, live.start : live.stop]
        before.append(g.before[axis] - live.start * g.dilation[axis])
    shape = Shape((taps.shape[0], taps.shape[1]), g.stride, g.dilation)
    outside = 0 if x.dtype is DType.FLOAT32 else scale_zero(x)[1]
    return Layer(x.shape[0], (size[0], size[1]), (out[0], out[1]), taps.shape[2], shape,
                 (before[0], before[1]), taps, outside)  # fmt: skip


def _live(size: int, out: int, taps: int, stride: int, dilation: int, before: int) -> range:
    """Taps that touch the input at some output; one, if none does."""
    reach = before - (out - 1) * stride
    first = min(max(0, -(-reach // dilation)), taps - 1)
    last = min(taps - 1, (size - 1 + before) // dilation)
    return range(first, max(first, last) + 1)


def _tensor(op: Op, index: int) -> Tensor:
    tensor = op.input(index)
    assert tensor is not None
    return tensor


def _data(tensor: Tensor) -> Array:
    assert tensor.data is not None
    return tensor.data


def emit_depthwise(k: StepEmitter, op: Op) -> None:
    if op.outputs[0].nbytes:
        job = layer(op)
        runs = runs_for(op, job, k.target)
        Walk(k, op, job, runs, choose_tiles(job, runs, k.target)).emit()


def runs_for(op: Op, job: Layer, target: Target) -> list[Blocks]:
    return (float_runs if job.taps.dtype.kind == "f" else byte_runs)(op, job, target)


def choose_tiles(job: Layer, runs: Sequence[Blocks], target: Target,
                 divide: int = 0) -> list[Shape]:  # fmt: skip
    """The cheapest tile for each run, with the rows that suit the largest run; they divide a number
    of lines, if one is given."""
    main = max(runs, key=lambda r: r.count * r.kind.cost(job.shape))
    rows = _best(job, main.kind, target, [r for r in (1, 2, 3) if divide % r == 0]).rows
    return [_best(job, run.kind, target, (rows,)) for run in runs]


def _best(job: Layer, kind: Kind, target: Target, rows: Sequence[int]) -> Shape:
    found = []
    for r in rows:
        for c in range(1, min(job.out[1], 12) + 1):
            shape = replace(job.shape, rows=r, columns=c)
            given = c == 1 and (r == 1 or len(rows) == 1)
            if given or _is_possible(job, shape, kind, target):
                waste = math.prod(math.ceil(n / t) * t / n
                                  for n, t in zip(job.out, (r, c), strict=True))  # fmt: skip
                found.append((waste * kind.cost(shape), shape.name, shape))
    return min(found)[2]


def _is_possible(job: Layer, shape: Shape, kind: Kind, target: Target) -> bool:
    """Rows share input only undilated, and next to each other."""
    together = shape.rows == 1 or (
        shape.dilation[0] == 1 and shape.stride[0] <= shape.kernel[0] and shape.rows <= job.out[0]
    )
    products = shape.rows * shape.columns * shape.kernel[0] * shape.kernel[1]
    return together and products <= MOST_PRODUCTS // 4 and kind.fits(shape, target)


class Walk:
    """Emits the loops of a step: units of (picture, row tile, group of channel blocks)."""

    def __init__(self, k: StepEmitter, op: Op, job: Layer, runs: Sequence[Blocks],
                 shapes: Sequence[Shape]) -> None:  # fmt: skip
        self.k, self.op, self.job, self.runs, self.shapes = k, op, job, runs, shapes
        self.x, self.y = _tensor(op, 0), op.outputs[0]
        self.item = runs[0].kind.item
        self.repeat = job.channels // self.x.shape[3]
        self.pitch = job.channels * self.item
        self.exact = k.program.places[self.x].slot >= FIRST_ARG and self.repeat == 1

        self.source, self.zeros = k.ptr(self.x), k.constant(self._outside())
        packed = [self._pack(run, shape) for run, shape in zip(runs, shapes, strict=True)]
        self.tables = [(k.constant(w), k.constant(p)) for w, p in packed]
        self.codes = [self._code(run, shape, *both)
                      for run, shape, both in zip(runs, shapes, packed, strict=True)]  # fmt: skip
        self.buffers = self._buffers()

    def emit(self) -> None:
        k, job, rows = self.k, self.job, self.shapes[0].rows
        target = k.ptr(self.y)
        tiles = math.ceil(job.out[0] / rows)
        groups = self._groups(job.batch * tiles)
        begin, end = k.share(job.batch * tiles * groups)
        with k.loop(begin, end) as unit:
            group, index = k.rem(unit, groups), k.div(unit, groups)
            picture, tile = k.div(index, tiles), k.rem(index, tiles)
            y = k.min(k.mul(tile, rows), job.out[0] - rows)
            place = k.add(k.mul(picture, job.out[0]), y)
            out = k.at(target, k.mul(place, self.line_bytes), I8)
            self.row_tile(picture, y, out, group, groups)

    @property
    def line_bytes(self) -> int:
        return self.job.out[1] * self.pitch

    def row_tile(self, picture: Int, y: Int, out: Value, group: Int = 0, groups: int = 1) -> None:
        """The output rows from y on, as many as a tile has; of the channel blocks a group."""
        lines = self._lines(picture, y)
        for run, code, (w, p) in zip(self.runs, self.codes, self.tables, strict=True):
            self._call(run, code, lines, (self.zeros, w, p, out), group, groups)

    def _outside(self) -> Array:
        size = self.job.size[1] * self.pitch + 64
        return np.full(size, self.job.outside & 255, np.uint8)

    def _groups(self, units: int) -> int:
        most = max(run.count for run in self.runs)
        return 1 if units >= 16 else min(most, math.ceil(16 / units))

    def _pack(self, run: Blocks, shape: Shape) -> tuple[Array, Array]:
        """Weights and parameters of a run, one row for each block."""
        kind, width = run.kind, run.count * run.kind.channels
        taps = np.zeros((*self.job.taps.shape[:2], width), self.job.taps.dtype)
        part = self.job.taps[:, :, run.first : run.first + width]
        taps[:, :, : part.shape[2]] = part
        split = np.split(taps, run.count, axis=2)
        weights = np.stack([kind.pack(block, shape) for block in split])
        return weights, parameters(self.op, self.job, run)

    def _code(self, run: Blocks, shape: Shape, weights: Array, params: Array) -> TileCode:
        return TileCode(run.kind, shape, run.stored, self.exact, weights[0].nbytes,
                        params[0].nbytes)  # fmt: skip

    def _lines(self, picture: Int, y: Int) -> list[Value]:
        """The input rows of a row tile; those outside are the row of zero points."""
        k, job, shape = self.k, self.job, self.shapes[0]
        height, width = job.size
        lines = []
        row_bytes = width * self.x.shape[3] * self.item
        for line in range(shape.lines):
            at = k.add(k.mul(y, shape.stride[0]), line * shape.dilation[0] - job.before[0])
            inside = k.b.icmp_unsigned("<", k.i64(at), I64(height))
            place = k.b.select(inside, k.i64(k.add(k.mul(picture, height), at)), I64(0))
            row = k.at(self.source, k.mul(place, row_bytes), I8)
            if self.buffers is not None:
                row = self._repeated(self.buffers, line, row)
            lines.append(k.b.select(inside, row, self.zeros))
        return lines

    def _buffers(self) -> Value | None:
        if self.repeat == 1:
            return None
        return self.k.scratch(self.shapes[0].lines * self._buffer())

    def _buffer(self) -> int:
        return self.job.size[1] * self.pitch + 64

    def _repeated(self, buffers: Value, line: int, row: Value) -> Value:
        """A depth multiplier: the row with every channel as often as it has outputs."""
        k, t = self.k, F32 if self.item == 4 else I8
        target = k.at(buffers, line * self._buffer(), I8)

        def build(e: Emitter) -> None:
            to, source, count = e.args
            with e.loop(0, count) as i:
                value = e.load(e.at(source, i, t), t)
                here = e.at(to, e.mul(i, self.repeat), t)
                with e.loop(0, self.repeat) as j:
                    e.store(value, e.at(here, j, t))

        function = k.program.function(f"repeat_{self.item}b_x{self.repeat}", [PTR, PTR, I64], build)
        k.b.call(function, [target, row, I64(self.job.size[1] * self.x.shape[3])])
        return target

    def _call(self, run: Blocks, code: TileCode, lines: Sequence[Value],
              pointers: Sequence[Value], group: Int, groups: int) -> None:  # fmt: skip
        """The run's blocks; the last has a function of its own if it stores fewer channels."""
        k, job = self.k, self.job
        first = k.div(k.mul(group, run.count), groups)
        last = k.div(k.mul(k.add(group, 1), run.count), groups)
        zeros, weights, params, out = pointers
        skip = run.first * self.item
        numbers = [job.out[1] * self.pitch, self.pitch, job.size[1], job.out[1], job.before[1],
                   first, last, math.ceil(job.out[1] / code.shape.columns)]  # fmt: skip
        function = k.program.function(code.name, code.types, code.build)
        moved = [k.at(line, skip, I8) for line in lines]
        k.b.call(function, [*moved, zeros, weights, params, k.at(out, skip, I8),
                            *map(k.i64, numbers)])  # fmt: skip


# -- blocks of channels ---------------------------------------------------------------------------


def split(channels: int, widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first, width, stored): blocks of the largest width, the rest in the least that fits."""
    first = 0
    while first < channels:
        left = channels - first
        width = widths[0] if left >= widths[0] else min(w for w in widths if w >= left)
        yield first, width, min(width, left)
        first += width


def runs_of(rows: Sequence[tuple[Kind, int, int]]) -> list[Blocks]:
    """(kind, first, stored) blocks -> runs of equal ones."""
    found = []
    for _, run in groupby(rows, key=lambda r: (r[0], r[2])):
        blocks = list(run)
        found.append(Blocks(blocks[0][0], blocks[0][1], len(blocks), blocks[0][2]))
    return found


def float_runs(op: Op, job: Layer, target: Target) -> list[Blocks]:
    low, high = ACTIVATION_BOUNDS.get(attr(op, "fused_activation_function"), (-np.inf, np.inf))
    widths = [n for n in (16, 8, 4) if n <= target.lanes]
    return runs_of([(FloatKind(width, low, high), first, stored)
                    for first, width, stored in split(job.channels, widths)])  # fmt: skip


def byte_runs(op: Op, job: Layer, target: Target) -> list[Blocks]:
    signed = target.activation == "i8"
    low, high = fused_range(op)
    depth = {"": 1 if signed else 2}.get(target.dot, 4)
    base = ByteKind(16, depth, bounded=is_bounded(op, job), signed=signed,
                    clamp=(low, high) != ((-128, 127) if signed else (0, 255)))  # fmt: skip
    rows: list[tuple[Kind, int, int]] = []
    widths = [n for n in (64, 32, 16) if n <= target.width]
    for first, width, stored in split(job.channels, widths):
        kind = replace(base, channels=width)
        if target.dot == "vnni512" and stored <= 32:
            units = math.ceil(stored / 16)
            unit = UnitKind(channels=16 * units, quarters=units, bounded=base.bounded)
            rows.append((_split_wide(unit, job, first), first, stored))
        else:
            rows.append((_split_wide(kind, job, first), first, stored))
    return runs_of(rows)


def _split_wide(kind: ByteKind, job: Layer, first: int) -> ByteKind:
    """Weights that leave 8 bits (uint8 less a zero point) are split in two for the dot product."""
    taps = job.taps[:, :, first : first + kind.channels]
    narrow = kind.depth < 4 or (taps.min() >= -128 and taps.max() <= 127)
    return kind if narrow else replace(kind, halves=2)


def _scales(op: Op, job: Layer) -> Array:
    scale = scale_zero(op.inputs[0])[0] * quant(op.inputs[1]).scale.astype(np.float64)
    return np.broadcast_to(scale / scale_zero(op.outputs[0])[0], job.channels)


def _bias(op: Op, job: Layer) -> Array:
    bias = op.input(2)
    return np.zeros(job.channels, np.float32) if bias is None else _data(bias)


def is_bounded(op: Op, job: Layer) -> bool:
    """No sum can become so large that rounding by addition fails."""
    most = np.abs(job.taps).sum(axis=(0, 1)) * 255 + np.abs(_bias(op, job).astype(np.float64))
    return bool((most * _scales(op, job)).max() < 2.0**21)


def parameters(op: Op, job: Layer, run: Blocks) -> Array:
    """One row a block: bias; for bytes also scales, then rounding term and bounds."""
    kind = run.kind
    channels = slice(run.first, min(run.first + run.count * kind.channels, job.channels))

    def blocks(values: Array, dtype: type) -> Array:
        full: Array = np.zeros(run.count * kind.channels, dtype)
        full[: channels.stop - channels.start] = values[channels]
        return full.reshape(run.count, kind.channels)

    if not isinstance(kind, ByteKind):
        return blocks(_bias(op, job), np.float32)
    total = _bias(op, job).astype(np.int64) - job.outside * job.taps.sum(
        axis=(0, 1), dtype=np.int64
    )
    biases = blocks(total.astype(np.int32), np.int32)
    scales = blocks(_scales(op, job).astype(np.float32), np.float32).view(np.int32)
    tail = kind.tail(scale_zero(op.outputs[0])[1], *fused_range(op))
    return np.stack([np.concatenate([kind.order(b), kind.order(s), tail])
                     for b, s in zip(biases, scales, strict=True)])  # fmt: skip


def refuses_depthwise(op: Op, target: Target) -> str | None:
    x, w = _tensor(op, 0), _tensor(op, 1)
    if x.dtype not in (DType.FLOAT32, DType.INT8, DType.UINT8):
        return f"input type {x.dtype.short} has no kernel"
    if is_folded(w):
        return None if x.dtype is DType.FLOAT32 else f"{x.dtype.short} input has no kernel"
    if not w.is_constant or w.sparsity is not None or w.data is None:
        return "the weights are computed at run time, or sparse"
    bias = op.input(2)
    if bias is not None and not bias.is_constant:
        return "the bias is computed at run time"
    allowed = {DType.FLOAT32: (DType.FLOAT32,), DType.INT8: (DType.INT8, DType.INT4),
               DType.UINT8: (DType.UINT8,)}[x.dtype]  # fmt: skip
    if w.dtype not in allowed or op.outputs[0].dtype is not x.dtype:
        return f"{x.dtype.short} with weights of {w.dtype.short} has no kernel"
    if x.dtype is not DType.FLOAT32 and any(t.quant is None for t in (x, w, op.outputs[0])):
        return "a quantisation is missing"
    if w.shape[1] * w.shape[2] > MOST_TAPS:
        return f"a kernel of {w.shape[1]}x{w.shape[2]} has no kernel"
    return None


KERNELS = {"DEPTHWISE_CONV_2D": Kernel(emit_depthwise, refuses_depthwise)}
