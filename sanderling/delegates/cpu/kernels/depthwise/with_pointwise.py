"""Depthwise and the 1x1 convolutions around it in one step, so that what is between stays in cache.

    cpu.DW_PW      the rows of the product are a source that packs: a band of lines of the depthwise
                   result is computed into scratch and multiplied before the next one is
    cpu.PW_DW      the rows of the depthwise convolution are made by the product before it, into a
                   ring of lines; a group of channels at a time, so that the ring is small
    cpu.PW_DW_PW   both

Their operands are told in dialect/chains.py.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from .....ir import DType, Graph, Op
from .....ir.rewrite import Match, P, Rule, rewrite
from .....passes.common import Fired, has_effects
from ...codegen.emit import I8, Int, Value
from ...codegen.program import StepEmitter
from ...dialect.chains import BEFORE, BEHIND, BOTH, chained, has_residual, parts, unchained
from ...dialect.fused import Fused, Inputs, either
from ...isa.targets import Target
from ..products.conv import arithmetic
from ..products.gemm import Operands, Product, block_product, walk
from ..products.packed_weights import columns, packed
from ..products.sources import MARGIN, PackedRows
from ..row import Kernel
from ..window import window_of
from .depthwise import (
    Blocks,
    DepthwiseConv,
    DepthwiseEmitter,
    choose_tiles,
    depthwise_conv,
    is_first,
    runs_for,
)
from .input_rows import LINE, expanded, ring_row

# Bytes between the two from which on fusing pays; smaller results stay in L2 anyway. Measured in
# EfficientNet-Lite0, float32, one core of an Ice Lake server (1.25 MB L2), microseconds apart and
# fused: 112x112x32 to 16 channels 420, 285 (but the next step loses 110: the memory of its output
# is no longer warm); 56x56x144 to 24 370, 310; 28x28x240 (5x5) to 40 269, 252; 14x14x672 to 112
# 297, 355, where a line is a band. Alone, stride 2 ran 0.93 to 0.97 times as fast (reading the
# input takes the time), 112x112x32 to 64, more channels than there were, 0.90 times. 8-bit results
# are smaller, and depthwise gained but 0 to 5 % when its result stayed in L1.
WORTH = 1 << 20
# Bytes of a band of lines: it stays in L1. (64 to 256 kB: 5 % slower, 512 kB: much slower.)
BAND = 32 * 1024
# Bytes of a ring of lines, if the channels can be cut so small, but not below two vectors (one made
# the product 1.6 times as slow). Measured as above, microseconds apart and fused: 112x112x16 to 96
# to stride 2, 965, 436 (256 kB: 500); 16 to 64, 607, 330; 56x56x24 to 144 to 24, 460, 400; 56x56x24
# to 144 to 5x5 with stride 2, 305, 255.
RING = 128 * 1024
UNITS = 8  # of work, if there are lines enough


# -- the pass -------------------------------------------------------------------------------------


def fuse_pointwise(graph: Graph, target: Target) -> Fired:
    depthwise, product = either("DEPTHWISE_CONV_2D"), either("CONV_2D")
    first = P(depthwise, once=True, bind="first", where=_is_first)
    behind = Rule("depthwise into product", P(product, first, where=_is_last), _fuse_behind)
    made = P(product, once=True, bind="made", where=_is_expansion)
    reader = P((*depthwise, BEHIND), made, where=_reads_lines)
    before = Rule("product into depthwise", reader, _fuse_before)
    # A product in bf16 reads half the bytes; the one that makes a depthwise input stays float32.
    rules = [[before]] if target.precision == "bf16" else [[behind], [before]]
    return sum((rewrite(graph, r, has_side_effects=has_effects) for r in rules), Counter())


def _is_first(op: Op) -> bool:
    plain = _reads_lines(op) and not Fused.of(op).residual and window_of(op).stride == (1, 1)
    return plain and op.outputs[0].nbytes >= WORTH


def _reads_lines(op: Op) -> bool:
    """A float depthwise convolution (or a step that begins with one) without multiplier."""
    _, op, _ = parts(op)
    x, w, out = op.operand(0), op.operand(1), op.outputs[0]
    floats = x.dtype is w.dtype is out.dtype is DType.FLOAT32
    return floats and x.shape[3] == out.shape[3] and window_of(op).dilation == (1, 1)


def _is_pointwise(op: Op) -> bool:
    x, w = op.input(0), op.input(1)
    if w is None or not w.is_constant or w.dtype is not DType.FLOAT32 or Fused.of(op).zeros:
        return False
    g = window_of(op)
    plain = g.kernel == g.stride == (1, 1) and not any(g.pads)
    return plain and x is not None and x.shape[3] == w.shape[3]


def _is_last(op: Op) -> bool:
    w = op.input(1)
    return _is_pointwise(op) and w is not None and w.shape[0] <= w.shape[3]


def _is_expansion(op: Op) -> bool:
    """3x3 convolutions of 3 channels were tried: 585 us became 490, but the next step lost as much
    (the memory of its output is no longer warm)."""
    plain = _is_pointwise(op) and not Fused.of(op).residual
    return plain and op.outputs[0].nbytes >= WORTH


def _fuse_behind(graph: Graph, match: Match) -> Op | None:
    return chained(match.ops["first"], match.root)


def _fuse_before(graph: Graph, match: Match) -> Op | None:
    return chained(match.ops["made"], *unchained(match.root))


# -- depthwise into the product behind it ---------------------------------------------------------


@dataclass(frozen=True)
class DepthwiseRows(PackedRows):
    """Rows of a product that are computed line by line."""

    emitter: DepthwiseEmitter
    lines: tuple[int, int]  # pictures' output size
    packs: bool = True

    @property
    def stride(self) -> int:
        return self.emitter.out_pitch

    def memory(self, rows: int) -> int:
        return -(-rows // self.lines[1]) * self.emitter.line_bytes

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        height, width = self.lines
        first, last = k.div(start, width), k.div(end, width)
        with k.loop(first, last, self.emitter.shapes[0].rows) as line:
            out = k.at(memory, k.mul(k.sub(line, first), self.emitter.line_bytes), I8)
            self.emitter.row_tile(k.div(line, height), k.rem(line, height), out)


def band(height: int, line_bytes: int) -> int:
    """Lines that are done at a time: a divisor of the height, so that tiles of rows fit."""
    most = max(BAND // line_bytes, 1)
    return max(d for d in range(1, height + 1) if height % d == 0 and d <= most)


def emit_behind(k: StepEmitter, op: Op) -> None:
    before, first, second = parts(op)
    assert second is not None
    job = depthwise_conv(first)
    weights = second.operand(1).values
    kind = arithmetic(second, weights.reshape(len(weights), -1), k.target)
    lines = band(job.out[0], job.out[1] * job.channels * 4)
    size = Product(job.batch * job.out[0] // lines, lines * job.out[1], len(weights), job.channels)
    plan = block_product(k.target, kind.core, size, True, size.inner * job.channels * 4)
    plan = replace(plan, block=plan.per_line(size))
    runs = runs_for(first, job, k.target)
    shapes = choose_tiles(job, runs, k.target, lines)
    source = None
    if before is not None:
        behind = lines * job.out[1] * job.channels * 4 + MARGIN  # the band is in front of the ring
        source = expanded(k, before, -(-behind // LINE) * LINE, shapes[0].lines, 1)
        source.restart(k, 0)
    rows = DepthwiseRows(DepthwiseEmitter(k, first, job, runs, shapes, source), job.out)
    residual, dense = Inputs.of(second).residual, size.n * kind.epilogue.out_bytes
    at = Operands(
        k.constant(packed(kind, size, plan)),
        k.constant(columns(kind, size, plan)),
        k.constant(kind.common),
        k.ptr(op.outputs[0]),
        k.pitch(op.outputs[0], dense),
        None if residual is None else k.ptr(residual),
        ldr=dense,
    )
    walk(k, kind.core, kind.epilogue, size, plan, rows, at)


# -- the product before it into depthwise ---------------------------------------------------------


def channel_groups(job: DepthwiseConv, runs: list[Blocks], lines: int) -> int:
    """In how many groups of whole blocks the channels are cut."""
    count = runs[0].count
    if len(runs) > 1 or runs[0].stored < runs[0].kind.channels:
        return 1
    size = lines * ring_row(job.size[1], job.channels)
    able = [g for g in range(1, count // 2 + 1) if count % g == 0] or [1]
    return min((g for g in able if size <= g * RING), default=able[-1])


def emit_before(k: StepEmitter, op: Op) -> None:
    """Units of (picture, group of channels, band of row tiles)."""
    before, second, _ = parts(op)
    assert before is not None
    job = depthwise_conv(second)
    runs = runs_for(second, job, k.target)
    shapes = choose_tiles(job, runs, k.target)
    rows = shapes[0].rows
    groups = channel_groups(job, runs, shapes[0].lines)
    source = expanded(k, before, 0, shapes[0].lines, groups)
    emitter = DepthwiseEmitter(k, second, job, runs, shapes, source)
    tiles = math.ceil(job.out[0] / rows)
    bands = min(tiles, math.ceil(UNITS / (job.batch * groups)))
    each = math.ceil(tiles / bands)
    bands = math.ceil(tiles / each)
    tensors = second.outputs[0], Inputs.of(second).residual
    pointers = [None if t is None else k.ptr(t) for t in tensors]
    begin, end = k.share(job.batch * groups * bands)
    with k.loop(begin, end) as unit:
        rest, number = k.div(unit, bands), k.rem(unit, bands)
        picture, group = k.div(rest, groups), k.rem(rest, groups)
        with k.when(is_first(k, unit, begin, bands)):
            source.restart(k, picture)
        first = k.mul(number, each)
        with k.loop(first, k.min(k.add(first, each), tiles)) as tile:
            y = k.min(k.mul(tile, rows), job.out[0] - rows)
            place = k.mul(k.add(k.mul(picture, job.out[0]), y), emitter.line_bytes)
            out, added = (None if p is None else k.at(p, place, I8) for p in pointers)
            emitter.row_tile(picture, y, out, group, groups, added)


KERNELS = {
    BEHIND: Kernel(emit_behind, reads=lambda op: (0,), writes=lambda op: True),
    BEFORE: Kernel(emit_before, reads=lambda op: (0,), writes=lambda op: not has_residual(op)),
    BOTH: Kernel(emit_behind, reads=lambda op: (0,), writes=lambda op: True),
}
