"""Bias correction: rounding shifts the mean of a layer's sums; the bias takes the shift back.

Sums are linear, so the mean over samples of the sums is the sum over the mean of the inputs: one
evaluation of the layer on a mean map is enough. What the layer should give comes from the float
model; what it gives, from what the corrected layers before it really deliver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...ir import Array, Op, Tensor
from .linear import FloatLinear, WeightedOp, bias_of, own_name, real_weights, source_of
from .sequential import SequentialRun


def mean_sums(layers: Mapping[str, WeightedOp], maps: Mapping[str, Array]) -> dict[str, Array]:
    """The mean of each channel of each layer's sums in the float model."""
    return {
        name: _channels(FloatLinear(layer.op, bare=True)(maps[layer.source], layer.weights))
        for name, layer in layers.items()
        if layer.source in maps
    }


def _channels(sums: Array) -> Array:
    return np.asarray(sums.mean(axis=tuple(range(sums.ndim - 1)), dtype=np.float64))


@dataclass
class BiasCorrection:
    """Visits the linear ops of a sequential run and corrects their biases."""

    wanted: Mapping[str, Array]  # the float model's mean sums
    shifts: dict[str, float] = field(default_factory=dict)  # the largest shift of each layer

    def __call__(self, op: Op, run: SequentialRun) -> None:
        wanted, bias = self.wanted.get(own_name(op.outputs[0].name)), bias_of(op)
        if wanted is None or bias is None or bias.data is None or bias.dtype.is_float:
            return
        given = FloatLinear(op, bare=True)(run.mean(source_of(op)), real_weights(op))
        shift = wanted - _channels(given)
        _apply(bias, shift)
        self.shifts[op.outputs[0].name] = float(np.abs(shift).max())


def _apply(bias: Tensor, shift: Array) -> None:
    held = bias.values
    limits = np.iinfo(held.dtype)
    moved = held.astype(np.float64) + shift / bias.quantisation.scale.astype(np.float64)
    bias.data = np.clip(np.rint(moved), limits.min, limits.max).astype(held.dtype)
