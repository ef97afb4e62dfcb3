"""Convolutions and fully connected layers as matrix products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .....ir import Array, Blockwise, DType, Op, Tensor
from .....ops import gemm as definition
from .....ops.base import attr, elements, quant, scale_zero
from .....ops.fixed import ACTIVATION_BOUNDS, finite_bounds, fused_bounds, fused_range
from ...codegen.bfloat import rounded
from ...codegen.emit import Int
from ...codegen.program import StepEmitter
from ...codegen.rounding import Rounding, rescale
from ...dialect.fused import BF16, RESIDUAL, Fused, Inputs, either, operator, unfused
from ...isa.targets import Target
from ...runtime.abi import FIRST_ARG
from ..elementwise.planes import Plane, Side, clamped, plane
from ..epilogue.codes import CodeEpilogue, rounding, sum_words
from ..epilogue.contract import words
from ..epilogue.floats import BlockEpilogue, FloatEpilogue, HybridEpilogue
from ..row import Kernel
from ..window import window_of
from .chained import ChainCore, chain_core
from .cores import (
    BfloatCore,
    BlockCore,
    Core,
    DotCore,
    FloatCore,
    byte_core,
    chunk_of,
    dot_core,
    far,
    padded_depth,
    wide_core,
)
from .dynamic_range import WEIGHTS as HYBRID_WEIGHTS
from .dynamic_range import block_of, is_hybrid, is_symmetric, unfit_blocks
from .gemm import Arithmetic, Operands, Product, block_product, estimate, walk
from .packed_weights import columns, weights_of
from .rounding16 import refuses_words, word_rescale, word_rounding
from .sources import (
    Change,
    DirectRows,
    LineRows,
    PatchRows,
    Round,
    RoundedRows,
    RowSource,
    RowWords,
    SumWords,
    TableWords,
    Widen,
    Window,
    copy_of,
    pieces,
)
from .sparse import emit_sparse
from .winograd import (
    FLOATS,
    WinogradBlocking,
    Words,
    choose_blocking,
    emit_winograd,
    exact,
    fold,
    folded,
    suits,
)
from .winograd import Kind as WinogradKind

F32_CORE = FloatCore()


def window(op: Op, groups: int = 1) -> Window:
    x = op.operand(0)
    batch, height, width, channels = x.shape
    _, out_h, out_w, _ = op.outputs[0].shape
    g = window_of(op)
    return Window(
        batch,
        height,
        width,
        channels // groups,
        out_h,
        out_w,
        g.kernel,
        g.stride,
        g.dilation,
        g.before,
        channels,
    )


def emit_conv(k: StepEmitter, op: Op) -> None:
    weights, x = op.operand(1).values, op.operand(0)
    groups = x.shape[3] // weights.shape[3]
    w = window(op, groups)
    n = weights.shape[0]
    matrix = weights.reshape(n, -1)
    plan = None if is_bf16(op) or Fused.of(op).zeros else winograd_blocking(op, k.target)
    if plan is None:
        emit_product(k, op, matrix, w, groups)
        return
    kind = arithmetic(op, matrix, k.target)
    filters = kind.matrix.reshape(weights.shape)
    with rounding(k, kind.epilogue):
        emit_winograd(k, op, kind, fold(filters) if plan.is_folded else filters, plan)


def winograd_blocking(op: Op, target: Target, core: Core | None = None) -> WinogradBlocking | None:
    """How a convolution takes fewer products, if that is faster than all of them with this core
    (default: its own)."""
    weights, x = op.operand(1).values, op.operand(0)
    groups = x.shape[3] // weights.shape[3]
    w, kind = window(op, groups), winograd_kind(op, target)
    if kind is None:
        return None
    small = folded(w) if kind is FLOATS else w
    if not suits(small, groups, target, kind):
        return None
    if core is None:
        core = F32_CORE if kind is FLOATS else core_for(x.dtype, target, real_weights(op), True)
    return choose_blocking(
        target, small, len(weights), plain_cycles(target, w, len(weights), core), kind
    )


def winograd_kind(op: Op, target: Target) -> WinogradKind | None:
    """Floats, and 8-bit codes where there is no dot product instruction for them."""
    dtype = op.operand(0).dtype
    if Inputs.of(op).table is not None:
        return None
    if dtype is DType.FLOAT32:
        return FLOATS
    bytes_by_word = dtype in (DType.INT8, DType.UINT8) and dot_core(target) is None
    if not bytes_by_word or not exact(real_weights(op)):
        return None
    return Words(wide_core(target), dtype is DType.INT8)


def emit_fully_connected(k: StepEmitter, op: Op) -> None:
    weights, x = op.operand(1).values, op.operand(0)
    depth = weights.shape[1]
    m = elements(x.shape) // depth
    # Each row is an image of its own: hybrid products have a zero point for each.
    emit_product(k, op, weights, Window(m, 1, 1, depth, 1, 1))


@dataclass(frozen=True)
class Spread:
    """Where C's rows lie, if not one after the other: `pixel` pixels apart in a line of `inner`."""

    pixel: int
    place: Callable[[StepEmitter, Int], Int]


def emit_product(
    k: StepEmitter, op: Op, weights: Array, w: Window, groups: int = 1, spread: Spread | None = None
) -> None:
    """One product with bias, residual, activation and, for integers, requantisation."""
    sparse = Fused.of(op).zeros
    kind = arithmetic(op, weights, k.target, chains=not sparse, by_word=sparse)
    with rounding(k, kind.epilogue):
        _emit_product(k, op, kind, len(weights) // groups, w, groups, spread)


def _emit_product(
    k: StepEmitter,
    op: Op,
    kind: Arithmetic,
    n: int,
    w: Window,
    groups: int,
    spread: Spread | None,
) -> None:
    if Fused.of(op).zeros:
        _, rows, _ = row_source(k, op.operand(0), kind, w, n, 1, Inputs.of(op).table, False)
        words_of = row_words(k, op, kind, w)
        emit_sparse(k, op, kind, rows, words_of, w.batch * w.pixels)
        return
    size, rows, line_bytes = row_source(k, op.operand(0), kind, w, n, groups, Inputs.of(op).table)
    if spread is not None and not isinstance(rows, LineRows):
        size = replace(size, outer=w.batch * w.out_height, inner=w.out_width)
        line_bytes = w.out_width * rows.stride
    plan = block_product(k.target, kind.core, size, rows.packs, line_bytes)
    if isinstance(rows, LineRows) and w.batch > 1:  # a block's lines are of one image
        lines = max(
            d
            for d in range(1, w.out_height + 1)
            if w.out_height % d == 0 and d * plan.per_line(size) <= plan.block
        )
        plan = replace(plan, block=lines * plan.per_line(size))
    residual = Inputs.of(op).residual
    dense = size.n * size.groups * kind.epilogue.out_bytes * (1 if spread is None else spread.pixel)
    ldc = k.pitch(op.outputs[0], dense)
    ldr = ldc if residual is None else k.pitch(residual, dense)
    b, left = weights_of(k, kind, size, plan, rows)
    at = Operands(
        b,
        k.constant(columns(kind, size, plan)),
        k.constant(kind.common),
        k.ptr(op.outputs[0]),
        ldc,
        None if residual is None else k.ptr(residual),
        k.constant(rows.offsets()) if isinstance(rows, LineRows) else None,
        None if spread is None else spread.place,
        0 if ldr == ldc else ldr,
        left,
    )
    walk(k, kind.core, kind.epilogue, size, plan, rows, at, row_words(k, op, kind, w))


def row_words(k: StepEmitter, op: Op, kind: Arithmetic, w: Window) -> RowWords | None:
    table = Inputs.of(op).table
    if table is not None:
        return TableWords(k.ptr(table), w.pixels)
    return SumWords(kind.matrix.shape[1], kind.sums) if kind.sums else None


# Bytes of the lines that one line of the result needs. Dilation costs nothing in the file.
MOST_LINES = 1 << 25


def row_source(
    k: StepEmitter,
    x: Tensor,
    kind: Arithmetic,
    w: Window,
    n: int,
    groups: int,
    table: Tensor | None = None,
    in_pieces: bool = True,
) -> tuple[Product, RowSource, int]:
    """How A is read: as it lies, line by line (if a row may be in pieces), or in packed patches;
    and the bytes of a line."""
    source, core, item = k.ptr(x), kind.core, x.dtype.numpy.itemsize
    w = replace(w, pixel=k.pitch(x, w.step * item) // item)
    rows, depth = w.batch * w.pixels, kind.matrix.shape[1]
    theirs = k.program.places[x].slot >= FIRST_ARG
    same = core.a_bytes == item
    change = change_of(x.dtype, same)
    zeros = k.constant(np.array([kind.zero], np.int32)) if table is None else k.ptr(table)
    step = 0 if table is None else 2
    patches = Product(1, rows, n, depth, groups)
    # A caller's array may not be read past its end.
    beyond = theirs and (depth % core.depth != 0 or kind.sums != 0)
    alike = w.step * item % 4096 == 0 and rows > 8
    if w.is_rows and same and not beyond and not (alike and in_pieces):
        return patches, DirectRows(source, w.step * item, w.channels * item), rows * w.step * item
    if w.is_rows and isinstance(change, Round):
        found = RoundedRows(source, w.step * item, w.channels)
        return patches, found, rows * found.stride
    runs, run = pieces(w)
    deep = padded_depth(core, run)
    lines = Product(
        w.batch * w.out_height,
        w.out_width,
        n,
        w.kernel[0] * runs * deep,
        groups,
        w.kernel[0] * runs,
    )
    # Of floats what lies behind a line of taps counts: it may be no number.
    whole = not isinstance(core, BfloatCore) or run % core.depth == 0
    direct = w.inside and same and not (theirs and run % core.depth)
    taps = LineRows(source, w, change, zeros, step, w.channels * change.out_bytes, not direct)
    able = (
        in_pieces
        and whole
        and not w.is_rows
        and not kind.sums
        and taps.memory(w.out_width) <= MOST_LINES
    )
    if able and _lines_pay(k.target, core, patches, lines):
        return lines, taps, taps.memory(w.out_width)
    depth = padded_depth(core, depth)
    packed = PatchRows(source, w, change, depth, zeros, step, w.channels * item)
    return patches, packed, rows * packed.stride


def change_of(dtype: DType, same: bool) -> Change:
    """How elements become what the core reads."""
    if same:
        return copy_of(np.uint16 if dtype is DType.BFLOAT16 else dtype.numpy)
    return Round() if dtype is DType.FLOAT32 else Widen(dtype is DType.INT8)


def _lines_pay(target: Target, core: Core, patches: Product, lines: Product) -> bool:
    """Narrow pictures make small tiles; against that stands the copying of patches, which takes
    about a cycle for 24 bytes and 10 for a line of taps."""
    copying = patches.m * patches.groups * (patches.k * core.a_bytes / 24 + 10 * lines.lines)
    return estimate(target, core, lines)[0] < estimate(target, core, patches)[0] + copying


def plain_cycles(target: Target, w: Window, n: int, core: Core = F32_CORE) -> float:
    """Estimated cycles of a float convolution as one product."""
    depth = w.kernel[0] * w.kernel[1] * w.channels
    lines = Product(w.batch * w.out_height, w.out_width, n, depth, 1, w.kernel[0])
    patches = Product(1, w.batch * w.pixels, n, depth)
    return min(estimate(target, core, size)[0] for size in (lines, patches))


# -- arithmetic by type -------------------------------------------------------------------------


def arithmetic(
    op: Op, weights: Array, target: Target, chains: bool = False, by_word: bool = False
) -> Arithmetic:
    """chains: the caller takes what a ChainCore leaves over. by_word: A is read word by word, not
    by tiles."""
    x = op.operand(0)
    if Inputs.of(op).table is not None:
        block = block_of(op)
        if block is not None:
            return _blockwise(op, weights, block, target)
        return _hybrid(op, weights, target, chains, by_word)
    if is_bf16(op):
        return replace(_float(op, weights), core=BfloatCore(), matrix=rounded(weights))
    if x.dtype is DType.FLOAT32:
        return _float(op, weights)
    return _integer(op, weights, target, chains, by_word)


def bounds(op: Op) -> tuple[np.float32, np.float32]:
    """Clamp bounds of a float result. The kernels ignore activations that are no clamp, and clamp
    to the finite range at least; the fully connected layer of codes leaves overflows infinite."""
    low, high = fused_bounds(op)
    is_left = operator(op) == "FULLY_CONNECTED" and Inputs.of(op).table is not None
    if is_left and not Fused.of(op).is_added:
        return np.float32(low), np.float32(high)
    return finite_bounds((low, high))


def bias_of(op: Op, n: int, dtype: Any, index: int = 2) -> Array:
    bias = op.input(index)
    return np.zeros(n, dtype) if bias is None else bias.values.reshape(-1).astype(dtype)


def float_epilogue(op: Op) -> FloatEpilogue:
    size = op.outputs[0].dtype.numpy.itemsize
    fused = Fused.of(op)
    return FloatEpilogue(fused.residual, fused.map, size)


def _float(op: Op, weights: Array) -> Arithmetic:
    bias = bias_of(op, len(weights), np.float32)
    return Arithmetic(F32_CORE, float_epilogue(op), weights, (bias,), words(*bounds(op)))


def weight_zero(op: Op) -> int:
    """The code of weights that says nothing. Of int8 weights only a fully connected layer subtracts
    a zero point, and only that of the whole tensor."""
    w = op.operand(1)
    subtracts = operator(op) == "FULLY_CONNECTED" or w.dtype is DType.UINT8
    return scale_zero(w)[1] if subtracts and quant(w).scale.size == 1 else 0


def real_weights(op: Op) -> Array:
    """The codes of the weights without their zero point, [N, ...]."""
    weights = op.operand(1).values
    return weights.reshape(len(weights), -1).astype(np.int32) - weight_zero(op)


def _integer(op: Op, weights: Array, target: Target, chains: bool, by_word: bool) -> Arithmetic:
    x, out = op.operand(0), op.outputs[0]
    n, zero_in = len(weights), scale_zero(x)[1]
    real = weights.astype(np.int32) - weight_zero(op)
    core = core_for(x.dtype, target, real, chains, by_word)
    bias = bias_of(op, n, np.int64)
    matrix, sums = real, 0
    if isinstance(core, DotCore):
        bias = bias - zero_in * real.sum(axis=1, dtype=np.int64)
        # Weights that leave 8 bits without their zero point keep a part of it; the sum of the
        # row's activations, times that part, makes up for it.
        sums = 0 if _fits(real) or isinstance(core, ChainCore) else _middle(real)
        matrix = real - sums
    scale = np.broadcast_to(multiplier(op), n)
    if x.dtype is DType.INT16 and not word_rounding(op).is_fixed:
        sizes = np.abs(real).sum(axis=1, dtype=np.int64)
        core = far(wide_core(target), int(sizes.max()), int(np.abs(real).max()))
    residual = Inputs.of(op).residual
    bounds, zero_out = fused_range(op), scale_zero(out)[1]
    common = [zero_out, *bounds]
    own, own_zero, away = bounds, zero_out, False
    if residual is not None:
        sum_plane = _sum_plane(op, residual)
        own, own_zero = _own_bounds(op), 0
        common += sum_words(sum_plane, scale_zero(residual)[1], own, target)
        away = sum_plane.above != sum_plane.below
    given = bias_of(op, n, np.int64)
    most = np.abs(real).sum(axis=1, dtype=np.int64) * definition.largest(x.dtype.numpy, zero_in)
    most += np.abs(given)
    if out.dtype.numpy.itemsize == 2 or word_rounding(op) is Rounding.ONCE:
        # Sums of 8-bit activations wrap around with their bias, those of 16 bits take it later.
        apart = given if x.dtype is DType.INT16 else np.zeros_like(given)
        found = word_rescale(
            word_rounding(op), scale, apart, zero_out, bounds[0], not chunk_of(core)
        )
        bias = bias - apart if found.kind.has_bias else bias
    else:
        found = rescale(scale, own, own_zero, most, target)
    epilogue = CodeEpilogue(
        signed=out.dtype is not DType.UINT8,
        residual=residual is not None,
        row_words=int(sums != 0),
        wild=found.leaves_32_bits(most * scale),
        out_bytes=out.dtype.numpy.itemsize,
        rounding=found.kind,
        full=bounds == out.dtype.bounds,
        away=away,
    )
    numbers = ((bias + found.start).astype(np.int32), *found.factors)
    return Arithmetic(core, epilogue, matrix, numbers, words(*common), zero_in, sums)


def _own_bounds(op: Op) -> tuple[int, int]:
    """The bounds of the product alone, before a residual is added: without its zero point."""
    zero = _inner(op)[1]
    low, high = op.outputs[0].dtype.bounds
    return low - zero, high - zero


def _sum_plane(op: Op, residual: Tensor) -> Plane:
    product = Side(_inner(op)[0], *_own_bounds(op))
    return plane(product, Side.of(residual), clamped(op))


def _inner(op: Op) -> tuple[float, int]:
    """Scale and zero point of the product alone."""
    inner = Fused.of(op).inner
    assert inner is not None
    return inner


def _hybrid(op: Op, weights: Array, target: Target, chains: bool, by_word: bool) -> Arithmetic:
    """Codes of 8 bits, their zero point and step from a table; see dynamic_range.py."""
    x, w = op.operand(0), op.operand(1)
    n, matrix = len(weights), definition.signed(weights).astype(np.int16)
    core = core_for(x.dtype, target, matrix, chains, by_word)
    # Widened codes come without their zero point.
    exact = isinstance(core, DotCore)
    sums = matrix.sum(axis=1, dtype=np.int32) if exact else np.zeros(n, np.int32)
    scales = np.broadcast_to(quant(w).scale, n).astype(np.float32)
    first, fused = operator(op) == "CONV_2D" and not is_symmetric(op), Fused.of(op)
    epilogue = HybridEpilogue(fused.residual, fused.map, scales_first=first)
    numbers = (sums, scales, bias_of(op, n, np.float32))
    return Arithmetic(core, epilogue, matrix, numbers, words(*bounds(op)))


def _blockwise(op: Op, weights: Array, block: Blockwise, target: Target) -> Arithmetic:
    """As _hybrid, with scales for blocks of the depth."""
    fused = Fused.of(op)
    core = BlockCore(wide_core(target), block.block_size, op.operand(1).dtype.bits)
    epilogue = BlockEpilogue(fused.residual, fused.map)
    numbers = (bias_of(op, len(weights), np.float32),)
    scales = definition.block_scales(op, block, weights)
    return Arithmetic(core, epilogue, weights, numbers, words(*bounds(op)), scales=scales)


def core_for(
    dtype: DType, target: Target, real: Array, chains: bool = False, by_word: bool = False
) -> Core:
    """The product of bytes, if it is of activations of this type."""
    dot = (dot_core if by_word else byte_core)(target)
    if dot is None and chains and dtype is DType.UINT8:
        return chain_core(target, real) or wide_core(target)
    if dot is None or dtype is not (DType.INT8 if dot.signed else DType.UINT8):
        return wide_core(target)
    return dot


def _fits(weights: Array) -> bool:
    return bool(weights.min(initial=0) >= -128 and weights.max(initial=0) <= 127)


def _middle(weights: Array) -> int:
    """What to subtract so that the weights fit 8 bits."""
    return int(weights.min()) + 128


def multiplier(op: Op) -> Array:
    """Accumulator units to output units, by channel. The weights' type decides: that of activations
    is the target's by now."""
    x, w = op.operand(0), op.operand(1)
    if operator(op) != "FULLY_CONNECTED":
        return definition.window_multiplier(unfused(op), x, w)
    single = w.dtype is DType.INT16 and quant(w).scale.size == 1
    find = definition.tensor_multiplier if single else definition.conv_multiplier
    return find(unfused(op), x, w)


# -- what is taken ------------------------------------------------------------------------------

INTEGER = {(DType.INT8, DType.INT8), (DType.INT8, DType.INT4), (DType.INT8, DType.INT2),
           (DType.UINT8, DType.UINT8), (DType.INT16, DType.INT8), (DType.INT16, DType.INT4),
           (DType.INT16, DType.INT2), (DType.INT16, DType.INT16)}  # fmt: skip


def refuses_product(op: Op, target: Target) -> str | None:
    x, w, out = op.operand(0), op.operand(1), op.outputs[0]
    if 0 in (*x.shape, *w.shape, *out.shape):
        return "a tensor is empty"
    if is_folded(w):
        return _refuses_types(x, w, out)
    if not w.is_constant:
        return "the weights are computed at run time"
    if w.sparsity is not None or w.data is None or w.data.shape != w.shape:
        return "sparse weights have no kernel"
    if len(op.outputs) > 1:
        return "shuffled weights have no kernel"
    if any(t is not None and not t.is_constant for t in op.inputs[2:3]):
        return "the bias is computed at run time"
    if is_hybrid(op) and attr(op, "fused_activation_function") not in ACTIVATION_BOUNDS:
        return f"activation {attr(op, 'fused_activation_function')} has no kernel"
    block = block_of(op)
    if block is not None:
        return _refuses_blocks(op, block, x, w, out)
    return _refuses_types(x, w, out) or _refuses_range(op, x, w)


# Blocks are whole steps of every core, whatever the weights' bits.
WHOLE_BLOCK = 16


def _refuses_blocks(op: Op, block: Blockwise, x: Tensor, w: Tensor, out: Tensor) -> str | None:
    if op.name != "FULLY_CONNECTED" or not is_hybrid(op) or out.dtype is not DType.FLOAT32:
        types = f"{x.dtype.short} x {w.dtype.short} to {out.dtype.short}"
        return f"a product of {types} with weights in blocks has no kernel"
    if w.dtype is DType.UINT8 or block.block_size % WHOLE_BLOCK:
        return f"{w.dtype.short} weights in blocks of {block.block_size} have no kernel"
    return unfit_blocks(op, block, w.values)


def _refuses_range(op: Op, x: Tensor, w: Tensor) -> str | None:
    """Sums of 16-bit activations that the kernels do not hold. Those of 8 bits wrap around."""
    if x.dtype is not DType.INT16:
        return None
    offset = scale_zero(w)[1] if quant(w).scale.size == 1 else 0
    matrix = w.values.reshape(w.shape[0], -1).astype(np.int32) - offset
    if np.abs(matrix).max(initial=0) >= 2**15 or scale_zero(x)[1]:
        return "a zero point does not go with 16 bits"
    kind, bias = word_rounding(op), bias_of(op, w.shape[0], np.int64)
    if kind.is_fixed:
        return None
    sums = np.abs(matrix).sum(axis=1, dtype=np.int64) << 15
    return refuses_words(kind, multiplier(op), sums, bias)


def is_folded(w: Tensor) -> bool:
    """Float weights that a pass computes from constants: stored in 16 bits, or sparse."""
    while w.producer is not None and w.producer.name in ("DEQUANTIZE", "DENSIFY"):
        source = w.producer.input(0)
        if source is None:
            return False
        if source.is_constant:
            return w.dtype is DType.FLOAT32
        w = source
    return False


def _refuses_types(x: Tensor, w: Tensor, out: Tensor) -> str | None:
    if x.dtype is DType.FLOAT32 and w.dtype is DType.FLOAT32:
        return None
    if x.dtype is DType.FLOAT32 and w.dtype in HYBRID_WEIGHTS and out.dtype is DType.FLOAT32:
        known = w.quant is not None and w.quant.scale.size in (1, w.shape[0])
        return None if known else "the weights' scales do not fit"
    outs = (x.dtype, DType.INT16) if x.dtype is DType.UINT8 else (x.dtype,)
    if (x.dtype, w.dtype) not in INTEGER or out.dtype not in outs:
        types = f"{x.dtype.short} x {w.dtype.short} to {out.dtype.short}"
        return f"a product of {types} has no kernel"
    if any(t.quant is None or t.quant.scale.size != 1 for t in (x, out)):
        return "activations are not quantised per tensor"
    if w.quant is None or w.quant.scale.size not in (1, w.shape[0]):
        return "the weights' scales do not fit"
    return None


def reads_apart(op: Op) -> tuple[int, ...]:
    """Inputs whose rows may lie apart: pixels that are read one by one, and the residual."""
    x = op.operand(0)
    if operator(op) == "FULLY_CONNECTED":
        rows = x.shape[-1:] == op.operand(1).values.shape[1:]
    else:
        rows = window(op).is_rows
    return (0, RESIDUAL) if rows else (RESIDUAL,)


def product_name(op: Op) -> str:
    return operator(op).lower() + "_bf16" * is_bf16(op) + "_sparse" * Fused.of(op).zeros


def is_bf16(op: Op) -> bool:
    return Fused.of(op).precision == BF16


PRODUCT = Kernel(
    emit_conv,
    refuses_product,
    product_name,
    reads=reads_apart,
    writes=lambda op: True,
    weights=(1,),
    fuses=frozenset({"residual", "map", "map of two", "dynamic", "bf16", "zeros"}),
)
CONVOLUTION = replace(PRODUCT, fuses=PRODUCT.fuses | {"pad"})
CONNECTED = replace(PRODUCT, emit=emit_fully_connected)
KERNELS = {
    **dict.fromkeys(either("CONV_2D"), CONVOLUTION),
    **dict.fromkeys(either("FULLY_CONNECTED"), CONNECTED),
}
