"""BATCH_MATMUL: products whose right side is computed at run time, packed panel by panel.

Integers are widened to 16 bits without their zero points on both sides, so that nothing has to be
corrected afterwards. Products of 16-bit codes would overflow in twos: those of the right side are
taken apart into two bytes, which are columns side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .....ir import Array, DType, Op, Quant, Shape, Tensor
from .....ops import gemm as definition
from .....ops.base import attr, elements, has_scale, scale_zero
from .....ops.matmul import has_column_scales
from ...codegen.bfloat import narrow
from ...codegen.emit import F32, I8, I16, I32, I64, PTR, Emitter, Int, Type, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.rounding import long, rescale
from ...codegen.vectors import transpose
from ...dialect.fused import either
from ...isa.targets import Target
from ..epilogue.codes import CodeEpilogue, LongEpilogue, rounding
from ..epilogue.contract import Epilogue, column_words, words
from ..epilogue.floats import FloatEpilogue
from ..epilogue.plain import WholeEpilogue
from ..row import Kernel
from .conv import is_bf16, product_name, refuses_product
from .cores import BfloatCore, Core, FloatCore, far, padded_depth, panel_bytes, wide_core
from .dynamic_range import is_integer
from .gemm import UNITS, Product, estimate, tile_function
from .tiles import Panels, Tile


@dataclass(frozen=True)
class Side:
    """An operand: [K, N] (or [M, K]) in memory, or the other way round if swapped."""

    dtype: DType
    rows: int
    columns: int
    swapped: bool
    zero: int
    rounded: bool = False  # to bfloat16

    @property
    def bytes(self) -> int:
        return self.dtype.numpy.itemsize

    @property
    def element(self) -> Type:
        return {DType.FLOAT32: F32, DType.INT16: I16}.get(self.dtype, I8)

    def load(self, e: Emitter, place: Value, lanes: int, count: int) -> Value:
        """Elements as the core multiplies them; zeros beyond count."""
        raw = e.load_part(place, vector(self.element, lanes), count)
        if self.element == F32:
            return narrow(e, raw) if self.rounded else raw
        if self.element == I16:
            return raw
        t = vector(I16, lanes)
        wide = e.b.sext(raw, t) if self.dtype is DType.INT8 else e.b.zext(raw, t)
        code = e.b.sub(wide, e.const(t, self.zero))
        inside = e.const(t, [-1 if i < count else 0 for i in range(lanes)])
        return code if count >= lanes else e.b.and_(code, inside)


def batches(shape: Shape, out: Shape, item: int) -> list[int]:
    """Byte offsets of an operand's matrix for each matrix of the result, sizes of one repeated."""
    lead = (1,) * (len(out) - len(shape)) + shape[:-2]
    index = np.arange(elements(lead)).reshape(lead)
    matrix = elements(shape[-2:]) * item
    return [int(i) * matrix for i in np.broadcast_to(index, out[:-2]).reshape(-1)]


def emit_batch_matmul(k: StepEmitter, op: Op) -> None:
    x, y, out = op.operand(0), op.operand(1), op.outputs[0]
    (m, n), depth = out.shape[-2:], _depth(op)
    plain = out.dtype is DType.INT32
    short = is_bf16(op)
    left = Side(x.dtype, m, depth, bool(attr(op, "adj_x")), _zero(x, plain), short)
    right = Side(y.dtype, depth, n, bool(attr(op, "adj_y")), _zero(y, plain), short)
    core = _core(x.dtype, k.target, depth, short)
    parts = 2 if y.dtype is DType.INT16 else 1
    tile = _tile(k.target, core, m, n, depth, parts)
    panels = Panels(n, tile.vectors // parts, tile.lanes)
    epilogue, numbers, common = _epilogue(op, n, k.target, parts)
    product = _Product(k, core, epilogue, tile, panels, left, right, depth, parts)
    table = np.array(
        [batches(x.shape, out.shape, left.bytes), batches(y.shape, out.shape, right.bytes)],
        np.int64,
    ).T
    places = [k.ptr(t) for t in (x, y, out)]
    where = [k.constant(a) for a in (table, column_words(panels.spans(), *numbers), common)]
    with rounding(k, epilogue):
        product.emit(len(table), places, where)


def _depth(op: Op) -> int:
    x = op.operand(0)
    return x.shape[-2 if attr(op, "adj_x") else -1]


def _core(dtype: DType, target: Target, depth: int, short: bool) -> Core:
    if dtype is DType.FLOAT32:
        return BfloatCore() if short else FloatCore()
    core = wide_core(target)
    return far(core, 255 * depth, 255) if dtype is DType.INT16 else core


def _tile(target: Target, core: Core, m: int, n: int, depth: int, parts: int) -> Tile:
    """Both parts of a column are in one tile."""
    whole = math.ceil(n / target.lanes) * target.lanes * parts if parts > 1 else n
    tile = estimate(target, core, Product(1, m, whole, depth))[1]
    if tile.vectors % parts == 0:
        return tile
    if tile.vectors > 1:
        return replace(tile, vectors=tile.vectors - 1)
    return replace(tile, rows=max(tile.rows // 2, 1), vectors=2)


def _zero(tensor: Tensor, plain: bool) -> int:
    if tensor.dtype is DType.FLOAT32:
        return 0
    if plain:  # the bare codes, as int8
        return 128 if tensor.dtype is DType.UINT8 else 0
    return scale_zero(tensor)[1]


def _epilogue(
    op: Op, n: int, target: Target, parts: int
) -> tuple[Epilogue, tuple[Array, ...], Array]:
    """The epilogue, its numbers by column and those of the step."""
    out = op.outputs[0]
    zeros = np.zeros(n, np.int32)
    if out.dtype is DType.FLOAT32:
        return FloatEpilogue(), (zeros,), words(np.float32(-np.inf), np.float32(np.inf))
    if out.dtype is DType.INT32:
        return WholeEpilogue(), (zeros,), words(0)
    scale = np.broadcast_to(definition.product_multiplier(op), n)
    zero, bounds = scale_zero(out)[1], out.dtype.bounds
    if out.dtype is DType.INT16:
        found = long(scale)
        inner = CodeEpilogue(True, out_bytes=2, rounding=found.kind, full=True)
        return LongEpilogue(inner, parts), (zeros, *found.factors), words(zero, *bounds)
    sizes = [definition.largest(t.dtype.numpy, scale_zero(t)[1]) for t in op.inputs[:2] if t]
    most = np.full(n, _depth(op) * math.prod(sizes))
    found = rescale(scale, bounds, zero, most, target)
    wild = found.leaves_32_bits(most * scale)
    epilogue = CodeEpilogue(out.dtype is not DType.UINT8, wild=wild, rounding=found.kind, full=True)
    numbers = (found.start.astype(np.int32), *found.factors)
    return epilogue, numbers, words(zero, *bounds)


@dataclass
class _Product:
    k: StepEmitter
    core: Core
    epilogue: Epilogue
    tile: Tile
    panels: Panels
    left: Side
    right: Side
    depth: int
    parts: int  # that the right side's codes are taken into

    def emit(self, count: int, places: Sequence[Value], where: Sequence[Value]) -> None:
        """Units of work: a matrix of the result x a group of panels."""
        k, panels = self.k, self.panels
        groups = min(panels.count, math.ceil(UNITS / count))
        per_group = math.ceil(panels.count / groups)
        groups = math.ceil(panels.count / per_group)
        packs = self.left.swapped or self.core.a_bytes == 2
        self.lda = padded_depth(self.core, self.depth) * self.core.a_bytes
        size = -(-panel_bytes(self.core, self.depth, panels.columns * self.parts) // 64) * 64
        memory = k.scratch(size + self.left.rows * self.lda + 64)
        ldc = panels.n * self.epilogue.out_bytes
        begin, end = k.share(count * groups)
        with k.loop(begin, end) as unit:
            matrix, group = k.div(unit, groups), k.rem(unit, groups)
            entry = k.at(where[0], k.mul(matrix, 2), I64)
            a = k.at(places[0], k.load(entry, I64, 8), I8)
            b = k.at(places[1], k.load(k.at(entry, 1, I64), I64, 8), I8)
            c = k.at(places[2], k.mul(matrix, self.left.rows * ldc), I8)
            if packs:
                a = self.pack_rows(a, k.at(memory, size, I8))
            first = k.mul(group, per_group)
            last = k.min(k.add(first, per_group), panels.count)
            self.over_panels(
                first,
                last,
                lambda panel, vectors, columns: self.panel(
                    panel, vectors, columns, a, b, c, memory, where
                ),
            )

    def over_panels(self, first: Int, last: Int, body: Callable[[Int, int, int], None]) -> None:
        k, panels = self.k, self.panels
        left = panels.n - (panels.count - 1) * panels.columns
        with k.loop(first, k.min(last, panels.count - 1)) as panel:
            body(panel, panels.vectors, panels.columns)
        with k.when(k.b.icmp_signed("==", k.i64(last), I64(panels.count))):
            body(panels.count - 1, panels.last, left)

    def panel(
        self,
        panel: Int,
        vectors: int,
        columns: int,
        a: Value,
        b: Value,
        c: Value,
        memory: Value,
        where: Sequence[Value],
    ) -> None:
        k, panels = self.k, self.panels
        tile = replace(self.tile, vectors=vectors * self.parts)
        self.pack_panel(panel, columns, tile, b, memory)
        function = tile_function(k, self.core, self.epilogue, tile, columns)
        params = k.at(where[1], k.mul(panel, 4 * self.epilogue.arrays * panels.columns), I8)
        steps = padded_depth(self.core, self.depth) // self.core.depth
        lda = self.lda if self.left.swapped or self.core.a_bytes == 2 else 4 * self.depth
        ldc = panels.n * self.epilogue.out_bytes
        across = k.mul(panel, panels.columns * self.epilogue.out_bytes)
        tiles = math.ceil(self.left.rows / tile.rows)
        with k.loop(0, tiles) as number:
            row = k.min(k.mul(number, tile.rows), self.left.rows - tile.rows)
            place = k.at(c, k.add(k.mul(row, ldc), across), I8)
            function.call(
                k,
                a=k.at(a, k.mul(row, lda), I8),
                lda=I64(lda),
                b=memory,
                steps=I64(steps),
                params=params,
                common=where[2],
                c=place,
                ldc=I64(ldc),
            )

    def pack_panel(self, panel: Int, columns: int, tile: Tile, b: Value, memory: Value) -> None:
        k, side = self.k, self.right
        step = self.depth if side.swapped else 1
        source = k.at(b, k.mul(panel, self.panels.columns * step * side.bytes), I8)
        kind = f"{side.dtype.short}_z{side.zero}_{side.rows}x{side.columns}" + "_t" * side.swapped
        name = f"panel_{self.core.name}_{kind}_{tile.columns}_n{columns}"
        writer = _Panel(self.core, side, self.depth, tile, columns, self.parts)
        function = k.program.function(name.replace("-", "m"), [PTR, PTR], writer.build)
        k.b.call(function, [memory, source])

    def pack_rows(self, a: Value, memory: Value) -> Value:
        """A with rows that the tile can read."""
        k, side = self.k, self.left
        name = f"rows_{self.core.name}_{side.dtype.short}_z{side.zero}_{side.rows}x{side.columns}"
        name += "_t" * side.swapped
        write = partial(_build_rows, core=self.core, side=side, lda=self.lda)
        function = k.program.function(name.replace("-", "m"), [PTR, PTR], write)
        k.b.call(function, [memory, a])
        return memory


def _build_rows(e: Emitter, core: Core, side: Side, lda: int) -> None:
    """(target, source): [M, K], or [K, M] element by element."""
    target, source = e.args
    across, down = (side.rows, 1) if side.swapped else (1, side.columns)
    lanes = 1 if side.swapped else e.target.lanes
    whole = side.columns // lanes * lanes

    def piece(row: Int, i: Int, count: int) -> None:
        there = e.add(e.mul(row, down), e.mul(i, across))
        value = side.load(e, e.at(source, e.mul(there, side.bytes), I8), count, count)
        e.store(value, e.at(target, e.add(e.mul(row, lda), e.mul(i, core.a_bytes)), I8))

    with e.loop(0, side.rows) as row:
        with e.loop(0, whole, lanes) as i:
            piece(row, i, lanes)
        with e.loop(whole, side.columns) as i:
            piece(row, i, 1)
        if side.rounded and side.columns % 2:  # nothing times NaN is NaN
            there = e.add(e.mul(row, lda), side.columns * core.a_bytes)
            e.store(I16(0), e.at(target, there, I8))


@dataclass(frozen=True)
class _Panel:
    """Writes the function (target, source): a panel of B as the core wants it."""

    core: Core
    side: Side
    depth: int
    tile: Tile
    columns: int
    parts: int = 1

    def build(self, e: Emitter) -> None:
        if self.side.swapped:
            self._across(e)
        else:
            self._along(e)

    @property
    def line(self) -> int:
        """Bytes of one inner step."""
        return panel_bytes(self.core, self.core.depth, self.tile.columns)

    def _along(self, e: Emitter) -> None:
        """From [K, N]: `depth` rows at a time, interleaved."""
        core, steps = self.core, self.depth // self.core.depth
        with e.loop(0, steps) as i:
            self._step(e, i, core.depth)
        if self.depth % core.depth:
            self._step(e, steps, self.depth % core.depth)

    def _step(self, e: Emitter, i: Int, rows: int) -> None:
        core, lanes, (target, source) = self.core, self.tile.lanes, e.args
        for v in range(self.tile.vectors):
            first, part = v // self.parts * lanes, v % self.parts
            count = self.columns - first
            found = []
            for r in range(core.depth):
                row = e.add(e.mul(i, core.depth), r)
                place = e.mul(e.add(e.mul(row, self.side.columns), first), self.side.bytes)
                found.append(
                    self._load(e, e.at(source, place, I8), lanes, count, part)
                    if r < rows
                    else e.const(vector(I16, lanes), 0)
                )
            value = (
                found[0]
                if len(found) == 1
                else e.shuffle(
                    found[0], found[1], [j for i in range(lanes) for j in (i, lanes + i)]
                )
            )
            size = core.depth * core.a_bytes * lanes
            e.store(value, e.at(target, e.add(e.mul(i, self.line), v * size), I8))

    def _load(self, e: Emitter, place: Value, lanes: int, count: int, part: int) -> Value:
        value = self.side.load(e, place, lanes, count)
        if self.parts == 1:
            return value
        t = value.type
        return e.b.ashr(value, e.const(t, 8)) if part else e.b.and_(value, e.const(t, 255))

    def _across(self, e: Emitter) -> None:
        """From [N, K]: squares of lanes x lanes steps, transposed."""
        lanes = self.tile.lanes
        square = lanes * self.core.depth
        whole = self.depth // square
        for v in range(self.tile.vectors):
            with e.loop(0, whole) as block:
                self._square(e, v, block, square)
            if self.depth % square:
                self._square(e, v, whole, self.depth % square)

    def _square(self, e: Emitter, v: int, block: Int, count: int) -> None:
        core, lanes, (target, source) = self.core, self.tile.lanes, e.args
        size = core.depth * core.a_bytes
        unit = F32 if core.name == "f32" else I32 if size == 4 else I16
        rows = []
        for j in range(lanes):
            column = v // self.parts * lanes + j
            if column >= self.columns:
                rows.append(e.const(vector(unit, lanes), 0))
                continue
            place = e.add(e.mul(block, lanes * core.depth), column * self.depth)
            there = e.at(source, e.mul(place, self.side.bytes), I8)
            value = self._load(e, there, lanes * core.depth, count, v % self.parts)
            t = vector(unit, lanes)
            rows.append(value if value.type == t else e.b.bitcast(value, t))
        steps = math.ceil(count / core.depth)
        for i, value in enumerate(transpose(e, rows)[:steps]):
            step = e.add(e.mul(block, lanes), i)
            e.store(value, e.at(target, e.add(e.mul(step, self.line), v * lanes * size), I8))


def refuses_batch_matmul(op: Op, target: Target) -> str | None:
    x, y, out = op.operand(0), op.operand(1), op.outputs[0]
    if 0 in (*x.shape, *y.shape, *out.shape):
        return "a tensor is empty"
    kinds = (x.dtype, y.dtype, out.dtype)
    if kinds == (DType.FLOAT32,) * 3 or kinds == (DType.INT8, DType.INT8, DType.INT32):
        return None
    if kinds in INTEGER:
        known = all(t.quant is not None and t.quant.scale.size == 1 for t in (x, out))
        if not known or not has_scale(y) or not has_column_scales(op):
            return "it is quantised neither per tensor nor per column"
        return _refuses_words(op)
    return refuses_connected(op, target)


INTEGER = {(DType.INT8,) * 3, (DType.INT16,) * 3, (DType.INT16, DType.INT8, DType.INT16)}


def _refuses_words(op: Op) -> str | None:
    """Why a product of 16-bit codes has no kernel."""
    held = [t for t in (*op.inputs, *op.outputs) if t is not None and t.dtype is DType.INT16]
    if any(scale_zero(t)[1] for t in held):
        return "a zero point does not go with 16 bits"
    scale = definition.product_multiplier(op)
    return "the output's scale is too small" if held and scale.max() >= 2**14 else None


def connected(op: Op) -> Op | None:
    """BATCH_MATMUL as FULLY_CONNECTED, if its right side is one constant matrix."""
    if op.name != "BATCH_MATMUL" or attr(op, "adj_x"):
        return None
    x, y = op.inputs[0], op.inputs[1]
    if x is None or y is None or y.data is None or x.dtype is not DType.FLOAT32:
        return None
    if len(y.shape) > len(x.shape) or any(n != 1 for n in y.shape[:-2]):
        return None
    if y.dtype is not DType.FLOAT32 and not is_integer(y):
        return None
    attrs = {
        "keep_num_dims": True,
        "fused_activation_function": "NONE",
        "asymmetric_quantize_inputs": attr(op, "asymmetric_quantize_inputs"),
    }
    return Op("FULLY_CONNECTED", [x, _matrix(op, y)], op.outputs, attrs)


def _matrix(op: Op, y: Tensor) -> Tensor:
    """[N, K], with the scales that belong to N."""
    matrix = y.values.reshape(y.shape[-2:])
    matrix = matrix if attr(op, "adj_y") else matrix.T
    made = y.copy()
    made.name = f"{y.name}/matrix"
    made.shape = matrix.shape
    made.data = np.ascontiguousarray(matrix)
    if y.quant is not None and y.quant.is_set:
        made.quant = Quant.of(y.quant.scale, y.quant.zero_point)
    return made


def refuses_connected(op: Op, target: Target) -> str | None:
    """Why a BATCH_MATMUL has no kernel as FULLY_CONNECTED either."""
    made = connected(op)
    if made is None:
        kinds = [t.dtype.short for t in op.inputs[:2] if t is not None]
        return f"a product of {' x '.join(kinds)} has no kernel"
    return refuses_product(made, target)


PRODUCT = Kernel(emit_batch_matmul, refuses_batch_matmul, product_name, fuses=frozenset({"bf16"}))
KERNELS = dict.fromkeys(either("BATCH_MATMUL"), PRODUCT)
