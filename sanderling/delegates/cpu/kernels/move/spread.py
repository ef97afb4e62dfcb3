"""Elements spread over a larger tensor: diagonals, dilation; and BITCAST, which moves bytes.

Each is a list of strided views that together are the whole output and do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .....ir import Array, Op
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel
from .strided import addresses, move, scalar
from .views import unmovable, values

# A view of the output, the operand (or a constant) that fills it, a view of that.
Part = tuple[Array, "int | Array", Array]


def _diagonal(flat: Array, rows: int, columns: int) -> tuple[Array, list[Array]]:
    """The diagonals of matrices [batch, rows * columns], and all the rest in pieces.

    From the first element on, rows of columns + 1 elements begin on the diagonal.
    """
    count, step = min(rows, columns), columns + 1
    last = (count - 1) * step
    between = flat[:, :last].reshape(len(flat), count - 1, step)[:, :, 1:]
    return flat[:, : last + 1 : step], [between, flat[:, last + 1 :]]


def _matrix_diag(op: Op) -> list[Part]:
    """The rest is 0, not the zero point."""
    x, y = op.operand(0), op.outputs[0]
    n = x.shape[-1]
    batch = math.prod(x.shape[:-1])
    inner, rest = _diagonal(addresses(y, (batch, n * n)), n, n)
    zero = np.zeros((), y.dtype.numpy)
    return [
        (inner, 0, addresses(x, (batch, n))),
        *((v, zero, scalar(v.itemsize, v.shape)) for v in rest),
    ]


def _set_diag(op: Op) -> list[Part]:
    x, diagonal, y = op.operand(0), op.operand(1), op.outputs[0]
    rows, columns = x.shape[-2:]
    shape = (math.prod(x.shape[:-2]), rows * columns)
    inner, rest = _diagonal(addresses(y, shape), rows, columns)
    _, kept = _diagonal(addresses(x, shape), rows, columns)
    return [
        (inner, 1, addresses(diagonal, inner.shape)),
        *((v, 0, w) for v, w in zip(rest, kept, strict=True)),
    ]


def _dilate(op: Op) -> list[Part]:
    """Along each axis in turn: what is off the grid, of what is on the grid of those before."""
    x, whole = op.operand(0), addresses(op.outputs[0])
    grid = [slice(None, None, f) for f in values(op, 1)]
    found: list[Part] = [(whole[tuple(grid)], 0, addresses(x))]
    for axis, (n, factor) in enumerate(zip(x.shape, values(op, 1), strict=True)):
        # Behind the first element, groups of `factor` end with one on the grid.
        behind = whole[(*grid[:axis], slice(1, None))]
        groups = behind.reshape(*behind.shape[:axis], n - 1, factor, *behind.shape[axis + 1 :])
        view = groups[(*[slice(None)] * (axis + 1), slice(0, factor - 1))]
        found.append((view, 2, scalar(whole.itemsize, view.shape)))
    return found


def _bitcast(op: Op) -> list[Part]:
    size = op.outputs[0].nbytes
    return [(np.empty(size, "V1"), 0, np.empty(size, "V1"))]


PARTS: dict[str, Callable[[Op], list[Part]]] = {
    "MATRIX_DIAG": _matrix_diag,
    "MATRIX_SET_DIAG": _set_diag,
    "DILATE": _dilate,
    "BITCAST": _bitcast,
}


def emit(k: StepEmitter, op: Op) -> None:
    target = k.ptr(op.outputs[0])
    for to, source, by in PARTS[op.name](op):
        if to.size:
            pointer = k.ptr(op.operand(source)) if isinstance(source, int) else k.constant(source)
            move(k, target, to, pointer, by)


def refuses(op: Op, target: Target) -> str | None:
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    if any(0 in t.shape for t in tensors):
        return "a tensor is empty"
    if op.name == "BITCAST":
        return None if tensors[0].nbytes == tensors[1].nbytes else "sizes differ"
    if op.name == "DILATE":
        return unmovable(op, [op.inputs[0], op.inputs[2]], (1,), plain=True) or _refuses_factors(op)
    if op.name == "MATRIX_SET_DIAG":
        x, diagonal = tensors[:2]
        if len(x.shape) < 2 or diagonal.shape != (*x.shape[:-2], min(x.shape[-2:])):
            return "its operands do not fit together"
    return unmovable(op, op.inputs, (), plain=True)


def _refuses_factors(op: Op) -> str | None:
    shape, factors = op.operand(0).shape, values(op, 1)
    fits = len(shape) == len(factors) and all(f >= 1 for f in factors)
    return None if fits and math.prod(op.operand(2).shape) == 1 else "its operands do not fit"


KERNELS = {name: Kernel(emit, refuses, plain_codes=True) for name in PARTS}
