"""The Fourier transform, and the parts of complex numbers."""

from __future__ import annotations

import math

import numpy as np

from ..ir import Array, Op, Shape
from .base import (
    define,
    elements,
    ints,
    on,
    require,
    same_as_input,
    shaped,
    sized,
)


def _rfft_shape(op: Op, shape: Shape, lengths: list[int]) -> Shape:
    require(len(shape) >= 2, op, f"the input has rank {len(shape)}, 2 or more are needed")
    require(len(lengths) == 2, op, f"{len(lengths)} lengths, 2 are needed")
    height, width = lengths
    require(height > 0 and width > 0, op, f"lengths {height} and {width} are not positive")
    return (*shape[:-2], height, width // 2 + 1)


def _rfft(op: Op, x: Array, lengths: Array) -> Array:
    """Cut or padded with zeros to the lengths; computed in float64, as the kernel does."""
    sized(op, _rfft_shape(op, x.shape, ints(lengths)))
    return np.fft.rfft2(x.astype(np.float64), s=ints(lengths)).astype(np.complex64)


def _rfft_macs(op: Op) -> int:
    """About 2 n log2 n multiply-adds for a transform of n complex points."""
    points = elements(op.outputs[0].shape)
    return int(2 * points * math.log2(max(2, points)))


define(
    "RFFT2D",
    infer=shaped(_rfft_shape, by=[1]),
    evaluate=on(_rfft),
    family="fourier",
    takes="x[2-]: f32, lengths: i32 -> c64",
    macs=_rfft_macs,
    notes="any lengths; LiteRT takes powers of two only",
)

for _name, _part in (("REAL", np.real), ("IMAG", np.imag), ("COMPLEX_ABS", np.abs)):
    define(
        _name,
        infer=same_as_input,
        evaluate=on(lambda op, x, part=_part: part(x).copy()),
        family="fourier",
        takes="x: c64 -> f32 | x: c128 -> f64",
    )
