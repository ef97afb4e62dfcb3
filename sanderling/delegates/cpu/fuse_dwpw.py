"""Depthwise and the 1x1 convolution behind it in one step, so that what is between stays in cache.

The rows of the product are a source that packs: a block of lines of the depthwise result is
computed into scratch and multiplied before the next one is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...ir import DType, Graph, Op, Tensor
from ...ir.rewrite import Match, P, Rule, rewrite
from ...passes.common import Fired, has_effects
from .conv import arithmetic, columns, data, packed
from .depthwise import Walk, choose_tiles, layer, runs_for
from .emit import I8, Int, Value
from .gemm import Operands, Product, plan_product, walk
from .geometry import window_of
from .program import Kernel, StepEmitter
from .targets import Target

NAME, DW = "cpu.DW_PW", "dw_"
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


def fuse_pointwise(graph: Graph, target: Target) -> Fired:
    first = P("DEPTHWISE_CONV_2D", once=True, bind="first", where=_is_first)
    rule = Rule("depthwise into product", P("CONV_2D", first, where=_is_pointwise), _fuse)
    return rewrite(graph, [rule], has_side_effects=has_effects)


def _is_first(op: Op) -> bool:
    x, out = op.input(0), op.outputs[0]
    assert x is not None
    plain = x.shape[3] == out.shape[3] and window_of(op).stride == (1, 1)
    return plain and x.dtype is out.dtype is DType.FLOAT32 and out.nbytes >= WORTH


def _is_pointwise(op: Op) -> bool:
    w = op.input(1)
    if w is None or not w.is_constant or w.dtype is not DType.FLOAT32 or len(op.inputs) > 4:
        return False
    if w.shape[0] > w.shape[3]:
        return False
    g = window_of(op)
    return g.kernel == g.stride == (1, 1) and not any(g.pads)


def _fuse(graph: Graph, match: Match) -> Op | None:
    first, second = match.ops["first"], match.root
    attrs = {**second.attrs, **{DW + name: value for name, value in first.attrs.items()}}
    inputs = [*(first.input(i) for i in range(3)), *(second.input(i) for i in (1, 2, 3))]
    return Op(NAME, inputs, second.outputs, attrs)


def halves(op: Op) -> tuple[Op, Op]:
    """The two ops that the fused one stands for; the tensor between them is in no graph."""
    own = {n: v for n, v in op.attrs.items() if not n.startswith(DW)}
    theirs = {n.removeprefix(DW): v for n, v in op.attrs.items() if n.startswith(DW)}
    x, w, out = op.inputs[0], op.inputs[1], op.outputs[0]
    assert x is not None and w is not None
    between = Tensor("between", DType.FLOAT32, (*out.shape[:3], w.shape[3]))
    first = Op("DEPTHWISE_CONV_2D", op.inputs[:3], [between], theirs)
    second = Op("CONV_2D", [between, *op.inputs[3:]], [out], own)
    return first, second


@dataclass(frozen=True)
class DepthwiseRows:
    """Rows of a product that are computed line by line."""

    walk: Walk
    lines: tuple[int, int]  # pictures' output size
    packs: bool = True

    @property
    def stride(self) -> int:
        return self.walk.pitch

    def memory(self, rows: int) -> int:
        return -(-rows // self.lines[1]) * self.walk.line_bytes

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        height, width = self.lines
        first, last = k.div(start, width), k.div(end, width)
        with k.loop(first, last, self.walk.shapes[0].rows) as line:
            out = k.at(memory, k.mul(k.sub(line, first), self.walk.line_bytes), I8)
            self.walk.row_tile(k.div(line, height), k.rem(line, height), out)

    def address(self, k: StepEmitter, memory: Value, row: Int, start: Int, group: Int) -> Value:
        return k.at(memory, k.mul(k.sub(row, start), self.stride), I8)


def band(height: int, line_bytes: int) -> int:
    """Lines that are done at a time: a divisor of the height, so that tiles of rows fit."""
    most = max(BAND // line_bytes, 1)
    return max(d for d in range(1, height + 1) if height % d == 0 and d <= most)


def emit_fused(k: StepEmitter, op: Op) -> None:
    first, second = halves(op)
    job = layer(first)
    weights = data(second.inputs[1])
    kind = arithmetic(second, weights.reshape(len(weights), -1), k.target)
    lines = band(job.out[0], job.out[1] * job.channels * 4)
    size = Product(job.batch * job.out[0] // lines, lines * job.out[1], len(weights), job.channels)
    plan = plan_product(k.target, kind.core, size, True, size.inner * job.channels * 4)
    plan = replace(plan, block=plan.per_line(size))
    runs = runs_for(first, job, k.target)
    shapes = choose_tiles(job, runs, k.target, lines)
    rows = DepthwiseRows(Walk(k, first, job, runs, shapes), job.out)
    residual = second.input(3)
    at = Operands(
        k.constant(packed(kind, size, plan)),
        k.constant(columns(kind, size, plan)),
        k.constant(kind.common),
        k.ptr(op.outputs[0]),
        size.n * kind.sink.c_bytes,
        None if residual is None else k.ptr(residual),
    )
    walk(k, kind.core, kind.sink, size, plan, rows, at)


KERNELS = {NAME: Kernel(emit_fused)}
