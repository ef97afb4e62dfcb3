"""Whether a product is faster without its zeros: both estimates, and what is told of them.

The estimates are tiles.py's, winograd.py's and sparse_plan.py's. `sparse_threshold` asks them for
layers that are still to be pruned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import Array, DType, Op, Tensor
from .....ops.base import elements
from ...dialect.fused import operator
from ...isa.targets import Target, host_target
from .chained import chain_core
from .conv import arithmetic, plain_cycles, window, winograd_blocking
from .cores import BfloatCore, BlockCore, Core, DotCore, FloatCore, PairCore, byte_core, chunk_of
from .gemm import Arithmetic, Product, estimate
from .sources import Window
from .sparse_plan import best_cut, used_units
from .winograd import blocking_for

PRODUCTS = ("CONV_2D", "FULLY_CONNECTED")
# Zeros below which nothing is tried: no layer gained.
LEAST = 0.3
# What the estimate must promise: the two kernels' estimates are right within a tenth.
GAIN = 0.9
# Shares of zeros that `sparse_threshold` tries.
SHARES = tuple(np.arange(0.3, 0.96, 0.05).round(2).tolist())


@dataclass(frozen=True)
class Judgement:
    """zeros: share of the weights. dense, sparse: estimated cycles; sparse is None where a product
    without zeros has no kernel."""

    zeros: float
    dense: float
    sparse: float | None

    @property
    def pays(self) -> bool:
        return self.sparse is not None and self.sparse < GAIN * self.dense

    def __str__(self) -> str:
        if self.sparse is None:
            return f"{self.zeros:.0%} zeros, no sparse kernel"
        kind = "sparse" if self.pays else "dense"
        return f"{self.zeros:.0%} zeros, {kind}: estimate {self.dense / self.sparse:.2f}x"


def judge(op: Op, target: Target) -> Judgement | None:
    """What to do about the zeros of a product with constant weights, as it stands when the passes
    are done; None where it has few, or they are not to be left out."""
    found = _weights(op)
    if not target.sparse or found is None:
        return None
    if np.count_nonzero(found) > (1 - LEAST) * found.size:
        return None
    kind = arithmetic(op, found, target, by_word=True)
    return _judged(op, target, kind, kind.matrix != 0)


def _weights(op: Op) -> Array | None:
    """[n, k] of a product without groups."""
    weights = op.input(1)
    if operator(op) not in PRODUCTS or weights is None or weights.data is None:
        return None
    if operator(op) == "CONV_2D" and op.operand(0).shape[3] != weights.shape[3]:
        return None
    return weights.values.reshape(weights.shape[0], -1)


UNIT = 4  # bytes of a unit: lists hold words


def _judged(op: Op, target: Target, kind: Arithmetic, used: Array) -> Judgement:
    w = _window(op, used)
    core = kind.core
    is_word = core.depth * core.a_bytes == UNIT
    unfit = not is_word or isinstance(core, BlockCore | BfloatCore) or chunk_of(core) or kind.sums
    m = w.batch * w.pixels
    found = None if unfit else best_cut(target, core, used_units(core, used), m)
    cycles = None if found is None else found[0] + _copying(w, kind, used.shape[1])
    return Judgement(1 - float(used.mean()), _dense(op, target, kind, w), cycles)


def _window(op: Op, matrix: Array) -> Window:
    x, depth = op.operand(0), matrix.shape[1]
    if operator(op) == "FULLY_CONNECTED":
        return Window(elements(x.shape) // depth, 1, 1, depth, 1, 1)
    return window(op)


def _copying(w: Window, kind: Arithmetic, depth: int) -> float:
    """Cycles for patches, as conv.py has them."""
    if w.is_rows:
        return 0.0
    return w.batch * w.pixels * (depth * kind.core.a_bytes / 24 + 10 * w.kernel[0])


def _dense(op: Op, target: Target, kind: Arithmetic, w: Window) -> float:
    core: Core = kind.core
    n, depth = kind.matrix.shape
    if isinstance(core, FloatCore) and target.precision == "bf16":
        core = BfloatCore()
    if isinstance(core, DotCore):
        core = byte_core(target) or core
    if isinstance(core, PairCore) and op.operand(0).dtype is DType.UINT8:
        core = chain_core(target, kind.matrix) or core
    if w.is_rows:
        return estimate(target, core, Product(1, w.batch * w.pixels, n, depth))[0]
    plan = None if isinstance(core, BfloatCore) else winograd_blocking(op, target, core)
    if plan is None:
        return plain_cycles(target, w, n, core)
    return blocking_for(target, plan.window, n, plan.form, plan.kind)[0]


# -- for pruning ----------------------------------------------------------------------------------


def sparse_threshold(
    op: Op, target: Target | None = None, structure: Sequence[int] = (1, 1)
) -> float | None:
    """From which share of zeros on this op of a user's graph is faster without them; None if it
    never is, or has no such kernel.

    target: a row of isa/targets.py, default this machine's. structure: a block of (output channels,
    input elements) that is zero as a whole; (1, 1) for single weights. Weights must be constant.
    """
    target = host_target() if target is None else target
    matrix = _weights(op)
    if matrix is None:
        return None
    op = _as_compiled(op, target)
    kind = arithmetic(op, matrix, target, by_word=True)
    order = _ranks(matrix.shape, structure)
    for share in SHARES:
        found = _judged(op, target, kind, order >= share)
        if found.pays:
            return float(share)
    return None


def _as_compiled(op: Op, target: Target) -> Op:
    """With 8-bit activations in the type that the compiler keeps them in."""
    kept = DType.UINT8 if target.activation == "u8" else DType.INT8

    def tensor(t: Tensor | None, is_weight: bool) -> Tensor | None:
        if t is None or is_weight or t.dtype not in (DType.INT8, DType.UINT8):
            return t
        made = t.copy()
        made.dtype = kept
        return made

    inputs = [tensor(t, place == 1) for place, t in enumerate(op.inputs)]
    outputs = [tensor(t, False) or t for t in op.outputs]
    return Op(op.name, inputs, outputs, dict(op.attrs))


def _ranks(shape: tuple[int, ...], structure: Sequence[int]) -> Array:
    """For each weight the share of blocks that become zero before its own, in a random order."""
    rows, columns = structure
    blocks = -(-shape[0] // rows), -(-shape[1] // columns)
    order = np.random.default_rng(0).permutation(blocks[0] * blocks[1]).reshape(blocks)
    ranks: Array = (order / order.size).repeat(rows, 0).repeat(columns, 1)
    return ranks[: shape[0], : shape[1]]
