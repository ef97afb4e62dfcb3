"""Weights and biases as codes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir import Array, Quant
from .scheme import Floats, Grid

METHODS = ("max", "mse")  # the scale of the largest value, or that with the least error
STEPS = np.linspace(0.5, 1.0, 51)
# A bias beyond half of what int32 holds would overflow the accumulator.
BIAS_LIMIT = 2**30


@dataclass(frozen=True)
class Coded:
    """Codes with their scale."""

    codes: Array
    quant: Quant

    @property
    def reals(self) -> Floats:
        scale = self.quant.scale.astype(np.float64)
        if scale.size > 1:
            shape = [1] * self.codes.ndim
            shape[self.quant.axis] = -1
            scale = scale.reshape(shape)
        return self.codes * scale


def flat(weights: Array, axis: int) -> Floats:
    """[channels, values of each]."""
    return np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1).astype(np.float64)


def channel_scales(weights: Array, grid: Grid, axis: int, method: str = "max") -> Floats:
    """One scale a channel (or one of all): the largest value's, or that with the least error."""
    rows = flat(weights, axis)
    rows = rows if grid.per_channel else rows.reshape(1, -1)
    most = np.abs(rows).max(axis=1, initial=0.0)
    most = np.where(most > 0, most, most.max(initial=0.0))  # a dead channel is as its neighbours
    scales = grid.fit(-most, most)[0].astype(np.float64)
    if method == "max":
        return scales
    errors = np.array([_error(rows, scales * k, grid) for k in STEPS])
    # Of equal errors the widest range: all-zero channels keep theirs.
    best = len(STEPS) - 1 - np.argmin(errors[::-1], axis=0)
    return np.asarray(scales * STEPS[best])


def _error(rows: Floats, scales: Floats, grid: Grid) -> Floats:
    low, high = grid.bounds
    codes = np.clip(np.rint(rows / scales[:, None]), low, high)
    return np.asarray(((codes * scales[:, None] - rows) ** 2).sum(axis=1))


def encode(weights: Array, scales: Floats, grid: Grid, axis: int) -> Coded:
    shape = [1] * weights.ndim
    if scales.size > 1:
        shape[axis] = -1
    low, high = grid.bounds
    wide = scales.astype(np.float32)
    codes = np.clip(np.rint(weights / wide.reshape(shape).astype(np.float64)), low, high)
    return Coded(codes.astype(grid.dtype.numpy), Quant.of(wide, 0, axis))


def enough_for_bias(scales: Floats, bias: Array | None, source: float, bits: int) -> Floats:
    """Weight scales, raised where the bias in units of source * scale would overflow."""
    if bias is None or bits > 32:
        return scales
    need = np.abs(bias.astype(np.float64)) / (source * BIAS_LIMIT)
    return np.maximum(scales, need if scales.size > 1 else need.max(initial=0.0))


def encode_bias(bias: Array, source: float, scales: Floats, bits: int) -> Coded:
    """source: the scale of the activations that the weights are multiplied with."""
    step = np.float32(source) * scales.astype(np.float32)
    kind = np.int64 if bits > 32 else np.int32
    limits = np.iinfo(kind)
    codes = np.rint(bias.astype(np.float64) / step.astype(np.float64))
    return Coded(np.clip(codes, limits.min, limits.max).astype(kind), Quant.of(step, 0, 0))


def encode_blocks(weights: Array, grid: Grid) -> tuple[Array, Array]:
    """(codes, scales in float16 [rows, blocks]) of a matrix whose rows are cut into blocks."""
    rows, depth = weights.shape
    blocks = weights.reshape(rows, depth // grid.block, grid.block).astype(np.float64)
    low, high = grid.bounds
    scales = np.maximum(np.abs(blocks).max(axis=2) / high, 2.0**-24).astype(np.float16)
    codes = np.clip(np.rint(blocks / scales.astype(np.float64)[..., None]), low, high)
    return codes.reshape(rows, depth).astype(grid.dtype.numpy), scales
