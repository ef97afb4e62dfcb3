"""The Fourier transform as a product, and the parts of complex numbers.

Complex numbers are floats with one dimension more, of the real and the imaginary part
(passes/float_view.py).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from ....ir import Array, DType, Op, Tensor
from ....ops.base import ints
from ..language import Value
from ..steps import Node, StepWriter, Writer
from .row import Row, first_of, need_constant

# A transform of n points to m is a matrix of 2 n m floats: what is larger needs a fast transform.
MOST_WEIGHTS = 1 << 22


def transform_as_product(op: Op) -> list[Op]:
    source, out = op.operand(0), op.outputs[0]
    outer, weights = source.shape[:-2], matrix(op)
    count, units = prod(outer), len(weights)
    rows = Tensor(f"{out.name}/rows", DType.FLOAT32, (count, prod(source.shape[-2:])))
    found = Tensor(f"{out.name}/found", DType.FLOAT32, (count, units))
    kept = Tensor(f"{out.name}/matrix", DType.FLOAT32, weights.shape, data=weights)
    return [
        Op("RESHAPE", [source], [rows]),
        Op("FULLY_CONNECTED", [rows, kept], [found]),
        Op("RESHAPE", [found], [out]),
    ]


def matrix(op: Op) -> Array:
    """[points of the result * 2, points of the input]: cosines, and sines with a minus. What lies
    beyond the lengths is cut off, what is missing is zero."""
    lengths = ints(op.operand(1).values)
    sizes = op.operand(0).shape[-2:]
    bins = lengths[0], lengths[1] // 2 + 1
    turns = [
        np.outer(np.arange(count), np.arange(size)) % length / length
        for count, size, length in zip(bins, sizes, lengths, strict=True)
    ]
    inside = [np.arange(size) < length for size, length in zip(sizes, lengths, strict=True)]
    angles = 2 * np.pi * (turns[0][:, None, :, None] + turns[1][None, :, None, :])
    both = np.stack([np.cos(angles), -np.sin(angles)], axis=2)
    both *= inside[0][:, None] & inside[1]
    found: Array = both.reshape(2 * prod(bins), prod(sizes)).astype(np.float32)
    return found


def _refuses_size(op: Op) -> str | None:
    high, wide = ints(op.operand(1).values)
    size = 2 * high * (wide // 2 + 1) * prod(op.operand(0).shape[-2:])
    return "the transform is too large for a product" if size > MOST_WEIGHTS else None


# -- complex numbers ------------------------------------------------------------------------------


def emit_parts(
    combine: Callable[[StepWriter, Value, Value], Value],
) -> Callable[[Writer, Node], None]:
    """combine: real and imaginary part to the result."""

    def emit(w: Writer, node: Node) -> None:
        with w.kernel("complex", node) as s:
            x, y = s.reads(node.first()), s.result()
            *at, slice_ = s.each_vector(y.shape)
            lanes = []
            for place in s.lane_places(y.shape, at, slice_):
                own = place[: len(x.shape) - 1]
                real, imaginary = (s.k.let(x.one([*own, part])) for part in (0, 1))
                lanes.append(s.k.let(combine(s, real, imaginary)))
            s.put(at, slice_, s.k.join(lanes))

    return emit


def _size(s: StepWriter, real: Value, imaginary: Value) -> Value:
    """By the ratio of the parts: their squares may be too large for a float."""
    k = s.k
    a, b = (k.let(k.call("abs", x)) for x in (real, imaginary))
    large, small = k.let(k.maximum(a, b)), k.let(k.minimum(a, b))
    ratio = k.let(k.select(small < large, small / large, 1.0))
    found = large * k.call("sqrt", ratio * ratio + 1.0)
    total = k.let(a + b)  # NaN if one of them is, which a maximum is not
    return k.select(total.equals(total), found, total)


KERNELS = {
    "RFFT2D": Row.made_of(transform_as_product, first_of(need_constant(1), _refuses_size)),
    "COMPLEX_ABS": Row(emit_parts(_size)),
    "REAL": Row(emit_parts(lambda s, real, imaginary: real)),
    "IMAG": Row(emit_parts(lambda s, real, imaginary: imaginary)),
}
