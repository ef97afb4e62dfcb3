"""Depthwise convolution: channels in vector lanes, a tile of rows x columns of results at a time.

A step walks (row tile, group of channel blocks); a tile function does one row tile of some blocks:

    dw_<kind>_<kernel>_s<stride>_d<dilation>_t<rows>x<columns>[_n<stored>][_exact]

The kinds of blocks are in channel_blocks.py. Rows and columns that hang over the picture are read
from a row of zero points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from .....ir import Array, DType, Op, Tensor
from .....ops.base import quant, scale_zero
from .....ops.fixed import fused_bounds, fused_range
from .....ops.gemm import signed, window_multiplier
from ...codegen.emit import I8, I32, I64, Arguments, Int, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.rounding import Rescale, rescale
from ...dialect.fused import Fused, Inputs, either, unfused
from ...isa.base import isa_of
from ...isa.targets import Target
from ..epilogue.codes import CodeEpilogue, rounding
from ..epilogue.floats import ConstantBounds, FloatEpilogue, HybridEpilogue
from ..products.conv import is_folded
from ..products.dynamic_range import WEIGHTS as HYBRID_WEIGHTS
from ..products.rounding16 import refuses_words, word_rescale, word_rounding
from ..row import Kernel
from ..window import window_of
from .channel_blocks import ByteKind, FloatKind, Kind, Shape, ShortKind, UnitKind, tail
from .input_rows import Lines, Memory, Repeated, is_theirs
from .paired_rows import PairCode, PairKind, strip
from .row_tiles import TileCode

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


# -- the step -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseConv:
    """A depthwise convolution, its dead taps cut off."""

    batch: int
    size: tuple[int, int]
    out: tuple[int, int]
    channels: int  # of the output
    shape: Shape
    before: tuple[int, int]
    taps: Array  # [kh, kw, channels], less the zero point
    outside: int  # what lies around the picture; a hybrid convolution learns it from its table


def depthwise_conv(op: Op) -> DepthwiseConv:
    x, w = op.operand(0), op.operand(1)
    g = window_of(op)
    taps, hybrid = w.values[0], is_encoded(op)
    if hybrid:
        taps = signed(taps).astype(np.int32)
    elif x.dtype is not DType.FLOAT32:
        taps = taps.astype(np.int32) - (scale_zero(w)[1] if w.dtype is DType.UINT8 else 0)
    size, out = x.shape[1:3], op.outputs[0].shape[1:3]
    before = []
    for axis in (0, 1):
        live = _live(
            size[axis], out[axis], g.kernel[axis], g.stride[axis], g.dilation[axis], g.before[axis]
        )
        taps = taps[live.start : live.stop] if axis == 0 else taps[:, live.start : live.stop]
        before.append(g.before[axis] - live.start * g.dilation[axis])
    shape = Shape((taps.shape[0], taps.shape[1]), g.stride, g.dilation)
    outside = 0 if x.dtype is DType.FLOAT32 or hybrid else scale_zero(x)[1]
    return DepthwiseConv(
        x.shape[0],
        (size[0], size[1]),
        (out[0], out[1]),
        taps.shape[2],
        shape,
        (before[0], before[1]),
        taps,
        outside,
    )


def is_encoded(op: Op) -> bool:
    """The input's codes were made on the fly: see dynamic_range.py."""
    return Inputs.of(op).table is not None


def _live(size: int, out: int, taps: int, stride: int, dilation: int, before: int) -> range:
    """Taps that touch the input at some output; one, if none does."""
    reach = before - (out - 1) * stride
    first = min(max(0, -(-reach // dilation)), taps - 1)
    last = min(taps - 1, (size - 1 + before) // dilation)
    return range(first, max(first, last) + 1)


def emit_depthwise(k: StepEmitter, op: Op) -> None:
    if op.outputs[0].nbytes:
        job = depthwise_conv(op)
        runs = runs_for(op, job, k.target)
        with rounding(k, runs[0].kind.epilogue):
            DepthwiseEmitter(k, op, job, runs, choose_tiles(job, runs, k.target)).emit()


def runs_for(op: Op, job: DepthwiseConv, target: Target) -> list[Blocks]:
    if job.taps.dtype.kind == "f":
        return float_runs(op, job, target)
    return (short_runs if op.operand(0).dtype is DType.INT16 else byte_runs)(op, job, target)


def choose_tiles(
    job: DepthwiseConv, runs: Sequence[Blocks], target: Target, divide: int = 0
) -> list[Shape]:
    """The cheapest tile for each run, with the rows that suit the largest run; they divide a number
    of lines, if one is given."""
    main = max(runs, key=lambda r: r.count * r.kind.cost(job.shape))
    able = [r for r in main.kind.row_counts if divide % r == 0]
    rows = _best(job, main.kind, target, able).rows
    return [_best(job, run.kind, target, (rows,)) for run in runs]


def _best(job: DepthwiseConv, kind: Kind, target: Target, rows: Sequence[int]) -> Shape:
    found = []
    for r in rows:
        for c in range(1, min(job.out[1], 12) + 1):
            shape = replace(job.shape, rows=r, columns=c)
            given = c == 1 and (r == 1 or len(rows) == 1)
            if given or _is_possible(job, shape, kind, target):
                waste = math.prod(
                    math.ceil(n / t) * t / n for n, t in zip(job.out, (r, c), strict=True)
                )
                found.append((waste * kind.cost(shape), shape.name, shape))
    return min(found)[2]


def _is_possible(job: DepthwiseConv, shape: Shape, kind: Kind, target: Target) -> bool:
    """Rows share input only undilated, and next to each other."""
    together = shape.rows == 1 or (
        shape.dilation[0] == 1 and shape.stride[0] <= shape.kernel[0] and shape.rows <= job.out[0]
    )
    products = kind.results(shape) * shape.kernel[0] * shape.kernel[1]
    return together and products <= MOST_PRODUCTS // 4 and kind.fits(shape, target)


class DepthwiseEmitter:
    """Emits the loops of a step: units of (picture, row tile, group of channel blocks)."""

    def __init__(
        self,
        k: StepEmitter,
        op: Op,
        job: DepthwiseConv,
        runs: Sequence[Blocks],
        shapes: Sequence[Shape],
        lines: Lines | None = None,
    ) -> None:
        self.k, self.op, self.job, self.runs, self.shapes = k, op, job, runs, shapes
        self.y, self.item = op.outputs[0], runs[0].kind.item
        self.out_pitch = k.pitch(self.y, job.channels * runs[0].kind.epilogue.out_bytes)
        table = Inputs.of(op).table
        self.table = None if table is None else k.ptr(table)
        self.lines = self._source() if lines is None else lines
        self.zeros = self._outside() if self.table is None else k.scratch(self._row_bytes)
        packed = [self._pack(run, shape) for run, shape in zip(runs, shapes, strict=True)]
        self.tables = [(k.constant(w), k.constant(p)) for w, p in packed]
        self.codes = [
            self._code(run, shape, w[0].nbytes, p[0].nbytes)
            for run, shape, (w, p) in zip(runs, shapes, packed, strict=True)
        ]

    def _code(self, run: Blocks, shape: Shape, weights: int, params: int) -> TileCode:
        """weights, params: bytes of a block's."""
        kind, exact = run.kind, self.lines.exact
        if not isinstance(kind, PairKind):
            return TileCode(kind, shape, run.stored, exact, weights, params)
        columns = strip(kind, shape, self.job.out[1])
        return PairCode(kind, shape, run.stored, exact, weights, params, columns)

    def _source(self) -> Lines:
        """The input's rows as they lie. With a depth multiplier they are repeated in scratch,
        behind the row of zero points of a hybrid convolution."""
        k, x = self.k, self.op.operand(0)
        times = self.job.channels // x.shape[3]
        pitch = k.pitch(x, x.shape[3] * self.item)
        plain = Memory(k.ptr(x), *self.job.size, pitch, is_theirs(k, x) and times == 1)
        if times == 1:
            return plain
        found = Repeated(plain, k.context, times, self.item)
        buffers = k.scratch((self.shapes[0].lines + 1) * found.size)
        return replace(found, buffers=k.at(buffers, found.size, I8))

    def emit(self) -> None:
        k, job, rows = self.k, self.job, self.shapes[0].rows
        target, other = k.ptr(self.y), Inputs.of(self.op).residual
        beside = None if other is None else k.ptr(other)
        tiles = math.ceil(job.out[0] / rows)
        groups = self._groups(job.batch * tiles)
        begin, end = k.share(job.batch * tiles * groups)
        with k.loop(begin, end) as unit:
            group, index = k.rem(unit, groups), k.div(unit, groups)
            picture, tile = k.div(index, tiles), k.rem(index, tiles)
            y = k.min(k.mul(tile, rows), job.out[0] - rows)
            place = k.add(k.mul(picture, job.out[0]), y)
            out, added = (
                None if t is None else k.at(t, k.mul(place, self.line_bytes), I8)
                for t in (target, beside)
            )
            if self.table is not None:
                with k.when(is_first(k, unit, begin, tiles * groups)):
                    self._fill(self.table, picture)
            self.row_tile(picture, y, out, group, groups, added)

    @property
    def line_bytes(self) -> int:
        return self.job.out[1] * self.out_pitch

    def row_tile(
        self,
        picture: Int,
        y: Int,
        out: Value,
        group: Int = 0,
        groups: int = 1,
        other: Value | None = None,
    ) -> None:
        """The output rows from y on, as many as a tile has; of the channel blocks a group."""
        lines = self._lines(picture, y, group)
        k = self.k
        table = self.zeros if self.table is None else k.at(self.table, k.mul(picture, 2), I32)
        given = {"out": out, "residual": out if other is None else other, "table": table}
        for run, code, (w, p) in zip(self.runs, self.codes, self.tables, strict=True):
            own = given | {"weights": w, "params": p}
            self._call(run, code, lines, own, group, groups)

    @property
    def _row_bytes(self) -> int:
        return -(-(self.job.size[1] * self.lines.pitch + 64) // 64) * 64

    def _outside(self) -> Value:
        size = self._row_bytes // self.item
        return self.k.constant(np.full(size, self.job.outside, self.op.operand(0).dtype.numpy))

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
        return weights, parameters(self.op, self.job, run, self.k.target)

    def _lines(self, picture: Int, y: Int, group: Int) -> list[Value]:
        """The input rows of a row tile; those outside are the row of zero points."""
        k, job, shape = self.k, self.job, self.shapes[0]
        first = k.sub(k.mul(y, shape.stride[0]), job.before[0])
        self.lines.make(k, picture, first, shape.lines, group)
        found = []
        for index in range(shape.lines):
            line = k.add(first, index * shape.dilation[0])
            inside = k.b.icmp_unsigned("<", k.i64(line), I64(job.size[0]))
            row = self.lines.row(k, picture, k.b.select(inside, k.i64(line), I64(0)), index)
            found.append(k.b.select(inside, row, self.zeros))
        return found

    def _fill(self, table: Value, picture: Int) -> None:
        """The row of zero points of a picture."""
        k, t = self.k, vector(I8, self.k.target.width)
        zero = k.load(k.at(table, k.mul(picture, 2), I32), I32, 4)
        value = k.splat(k.b.trunc(zero, I8), t.count)
        with k.loop(0, self._row_bytes, t.count) as i:
            k.store(value, k.at(self.zeros, i, I8))

    def _call(
        self,
        run: Blocks,
        code: TileCode,
        lines: Sequence[Value],
        given: Arguments,
        group: Int,
        groups: int,
    ) -> None:
        """given: the tile's addresses for the step's first block."""
        k, job = self.k, self.job
        first = k.div(k.mul(group, run.count), groups)
        last = k.div(k.mul(k.add(group, 1), run.count), groups)
        channel = k.add(run.first, k.mul(first, run.kind.channels))
        before = channel if self.lines.whole else run.first
        own = {
            name: k.at(line, k.mul(before, self.item), I8)
            for name, line in zip(code.lines, lines, strict=True)
        }
        for name in ("out", "residual"):
            own[name] = k.at(given[name], k.mul(channel, run.kind.epilogue.out_bytes), I8)
        sizes = {
            "out_row": self.line_bytes,
            "out_pitch": self.out_pitch,
            "pitch": self.lines.pitch,
            "width": job.size[1],
            "out_width": job.out[1],
            "left": job.before[1],
            "blocks": k.sub(last, first),
            "tiles": math.ceil(job.out[1] / code.shape.columns),
        }
        if isinstance(code, PairCode):
            own["pairs"] = k.scratch(code.buffer_bytes)
        function = k.program.declared(code.name, code.arguments, code.build)
        own["weights"] = k.at(given["weights"], k.mul(first, code.weight_bytes), I8)
        own["params"] = k.at(given["params"], k.mul(first, code.params_bytes), I8)
        sizes = {name: k.i64(size) for name, size in sizes.items()}
        function.call(k, **own, **sizes, zeros=self.zeros, table=given["table"])


def is_first(k: StepEmitter, unit: Int, begin: Int, each: int) -> Value:
    """The first unit of a worker's share, or of `each` that belong together."""
    first = k.b.icmp_signed("==", k.i64(k.rem(unit, each)), I64(0))
    return k.b.or_(first, k.b.icmp_signed("==", k.i64(unit), k.i64(begin)))


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


def float_runs(op: Op, job: DepthwiseConv, target: Target) -> list[Blocks]:
    widths = [n for n in (16, 8, 4) if n <= target.lanes]
    epilogue = FloatEpilogue(**_stages(op))
    return runs_of(
        [
            (FloatKind(width, epilogue), first, stored)
            for first, width, stored in split(job.channels, widths)
        ]
    )


def _stages(op: Op) -> dict[str, Any]:
    """What a float epilogue is told of the op."""
    fused = Fused.of(op)
    return {
        "residual": fused.residual,
        "map": fused.map,
        "out_bytes": op.outputs[0].dtype.numpy.itemsize,
        "bounds": ConstantBounds(*fused_bounds(op)),
    }


def _code_epilogue(op: Op, job: DepthwiseConv, target: Target) -> CodeEpilogue | HybridEpilogue:
    if is_encoded(op):  # one picture's zero point and step at a time
        return HybridEpilogue(**_stages(op), one_row=True)
    dtype = op.outputs[0].dtype
    numbers = _rescale(op, job, target)
    reach = largest_sums(op, job) * _scales(op, job)
    return CodeEpilogue(
        wild=not numbers.kind.has_bias and numbers.leaves_32_bits(reach),
        out_bytes=dtype.numpy.itemsize,
        rounding=numbers.kind,
        full=fused_range(op) == dtype.bounds,
    )


def _rescale(op: Op, job: DepthwiseConv, target: Target) -> Rescale:
    scales, zero = _scales(op, job), scale_zero(op.outputs[0])[1]
    if op.outputs[0].dtype is DType.INT16:
        bias = _bias(op, job).astype(np.int64)
        return word_rescale(word_rounding(op), scales, bias, zero, fused_range(op)[0])
    return rescale(scales, fused_range(op), zero, largest_sums(op, job), target)


def byte_runs(op: Op, job: DepthwiseConv, target: Target) -> list[Blocks]:
    isa = isa_of(target)
    depth = 4 if isa.has_dot else _word_depth(target)
    epilogue = _code_epilogue(op, job, target)
    base = ByteKind(16, depth, epilogue, signed=isa.dot_is_signed)
    if depth == 2 and interleaves(op, job.shape):
        base = PairKind(16, epilogue=epilogue)
    rows: list[tuple[Kind, int, int]] = []
    widths = [n for n in (64, 32, 16) if n <= target.width]
    for first, width, stored in split(job.channels, widths):
        kind = replace(base, channels=width)
        if isa.has_dot and isa.has_permutes and stored <= 32:
            units = math.ceil(stored / 16)
            own = epilogue
            if units == 1 and isinstance(own, CodeEpilogue):  # it clamps always
                own = replace(own, full=True)
            unit = UnitKind(channels=16 * units, quarters=units, epilogue=own)
            rows.append((_split_wide(unit, job, first), first, stored))
        else:
            rows.append((_split_wide(kind, job, first), first, stored))
    return runs_of(rows)


def interleaves(op: Op, shape: Shape) -> bool:
    """Whether its rows are interleaved in memory, which pays where a pixel is in many windows.
    (Modelled cycles on AVX2, to those where each tile interleaves: 3x3 0.75 to 0.92, 5x5 0.76, with
    stride 2 0.86; 3x3 with stride 2 1.06 to 1.17, dilated 1.15.) A worker's memory has a hybrid
    convolution's row of zero points, or repeated rows, already."""
    if is_encoded(op) or op.operand(0).shape[3] != op.outputs[0].shape[3]:
        return False
    return shape.dilation == (1, 1) and 2 * shape.kernel[1] >= 5 * shape.stride[1]


def _word_depth(target: Target) -> int:
    """Kernel rows that a product of words takes at once."""
    return 2 if isa_of(target).has_pairs else 1


def short_runs(op: Op, job: DepthwiseConv, target: Target) -> list[Blocks]:
    depth = _word_depth(target)
    epilogue = _code_epilogue(op, job, target)
    widths = [n for n in (32, 16, 8) if n <= target.width // 2]
    return runs_of(
        [
            (ShortKind(width, depth, epilogue, signed=True), first, stored)
            for first, width, stored in split(job.channels, widths)
        ]
    )


def _split_wide(kind: ByteKind, job: DepthwiseConv, first: int) -> ByteKind:
    """Weights that leave 8 bits (uint8 less a zero point) are split in two for the dot product."""
    taps = job.taps[:, :, first : first + kind.channels]
    narrow = kind.depth < 4 or (taps.min() >= -128 and taps.max() <= 127)
    return kind if narrow else replace(kind, halves=2)


def _scales(op: Op, job: DepthwiseConv) -> Array:
    """The scales of sums in units of the output; those of a hybrid convolution lack the
    activations' step."""
    x, w = op.operand(0), op.operand(1)
    if is_encoded(op):
        return np.broadcast_to(quant(w).scale.astype(np.float64), job.channels)
    return np.broadcast_to(window_multiplier(unfused(op), x, w), job.channels)


def _bias(op: Op, job: DepthwiseConv) -> Array:
    bias = op.input(2)
    return np.zeros(job.channels, np.float32) if bias is None else bias.values.reshape(-1)


def largest_sums(op: Op, job: DepthwiseConv) -> Array:
    span = 65535.0 if op.operand(0).dtype is DType.INT16 else 255.0
    found = np.abs(job.taps).sum(axis=(0, 1)) * span + np.abs(_bias(op, job).astype(np.float64))
    return np.asarray(found)


def parameters(op: Op, job: DepthwiseConv, run: Blocks, target: Target) -> Array:
    """One row a block: the arrays that the epilogue reads, and what lies behind them."""
    kind = run.kind
    channels = slice(run.first, min(run.first + run.count * kind.channels, job.channels))

    def blocks(values: Array, dtype: type) -> Array:
        full: Array = np.zeros(run.count * kind.channels, dtype)
        full[: channels.stop - channels.start] = values[channels]
        rows = full.reshape(-1, kind.unit)
        return np.stack([kind.order(block) for block in rows]).view(np.int32)

    bias, totals = _bias(op, job), job.taps.sum(axis=(0, 1), dtype=np.int64)
    if not isinstance(kind, ByteKind):
        return blocks(bias, np.float32)
    if isinstance(kind.epilogue, HybridEpilogue):
        scales = blocks(_scales(op, job), np.float32)
        arrays = [blocks(totals, np.int32), scales, blocks(bias, np.float32), kind.behind()]
    else:
        numbers = _rescale(op, job, target)
        own = 0 if numbers.kind.has_bias else bias.astype(np.int64)
        whole = own - job.outside * totals + numbers.start
        common = tail(scale_zero(op.outputs[0])[1], *fused_range(op))
        factors = [blocks(a, a.dtype.type) for a in numbers.factors]
        arrays = [blocks(whole, np.int32), *factors, common, kind.behind()]
    units = run.count * kind.channels // kind.unit
    rows = [np.broadcast_to(a, (units, a.shape[-1])) for a in arrays]
    return np.concatenate(rows, axis=1).reshape(run.count, -1)


def refuses_depthwise(op: Op, target: Target) -> str | None:
    x, w = op.operand(0), op.operand(1)
    if x.dtype not in ALLOWED:
        return f"input type {x.dtype.short} has no kernel"
    if is_folded(w):
        return None if x.dtype is DType.FLOAT32 else f"{x.dtype.short} input has no kernel"
    if not w.is_constant or w.sparsity is not None or w.data is None:
        return "the weights are computed at run time, or sparse"
    bias = op.input(2)
    if bias is not None and not bias.is_constant:
        return "the bias is computed at run time"
    if w.dtype not in ALLOWED[x.dtype] or op.outputs[0].dtype is not x.dtype:
        return f"{x.dtype.short} with weights of {w.dtype.short} has no kernel"
    if w.shape[1] * w.shape[2] > MOST_TAPS:
        return f"a kernel of {w.shape[1]}x{w.shape[2]} has no kernel"
    return _refuses_quants(op, x, w)


ALLOWED = {
    DType.FLOAT32: (DType.FLOAT32, *HYBRID_WEIGHTS),
    DType.INT8: (DType.INT8, DType.INT4),
    DType.UINT8: (DType.UINT8,),
    DType.INT16: (DType.INT8,),
}


def _refuses_quants(op: Op, x: Tensor, w: Tensor) -> str | None:
    if w.dtype is DType.FLOAT32:
        return None
    if w.quant is None or w.quant.scale.size not in (1, w.shape[3]):
        return "the weights' scales do not fit"
    if x.dtype is DType.FLOAT32:
        return None
    if any(t.quant is None or t.quant.scale.size != 1 for t in (x, op.outputs[0])):
        return "activations are not quantised per tensor"
    return _refuses_sums(op) if x.dtype is DType.INT16 else None


def _refuses_sums(op: Op) -> str | None:
    """Why sums of 16-bit activations have no kernel."""
    if scale_zero(op.inputs[0])[1]:
        return "a zero point does not go with 16 bits"
    job, kind = depthwise_conv(op), word_rounding(op)
    bias = _bias(op, job)
    sums = np.abs(job.taps).sum(axis=(0, 1), dtype=np.int64) << 15
    if kind.is_fixed:
        return None  # the definition's sums wrap around, too
    if sums.max(initial=0) >= 2**31 - 2**15:
        return "sums of 64 bits may leave 32"
    return refuses_words(kind, _scales(op, job), sums, bias)


def reads_apart(op: Op) -> tuple[int, ...]:
    """Inputs whose pixels may lie apart: not those whose channels are repeated."""
    return (0,) if op.operand(0).shape[3] == op.outputs[0].shape[3] else ()


def writes_apart(op: Op) -> bool:
    """What is added lies as the result does."""
    return not Fused.of(op).residual


DEPTHWISE = Kernel(
    emit_depthwise,
    refuses_depthwise,
    reads=reads_apart,
    writes=writes_apart,
    weights=(1,),
    fuses=frozenset({"pad", "residual", "map", "map of two", "dynamic"}),
)
KERNELS = dict.fromkeys(either("DEPTHWISE_CONV_2D"), DEPTHWISE)
