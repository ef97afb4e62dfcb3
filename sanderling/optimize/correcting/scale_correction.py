"""Scale correction: noise before a RELU, clipping and rounding make a layer's sums smaller or
larger than the float model's by some percent, and layer by layer this adds up. A layer whose
weights have a scale for each channel can take that back without a new rounding: the scale is
multiplied by the factor that brings the sums nearest to the float model's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ...ir import Array, Op, Quant, Tensor
from ..modes.scheme import Floats
from ..modes.weights import encode_bias
from .adaround import adjustable, some_rows, sums_of
from .linear import own_name, real_bias, real_weights
from .sequential import FloatReference, SequentialRun

MOST = 1.25  # a larger factor speaks of something else
# What all channels say together counts as so many windows of each: few windows say little.
PRIOR = 64


@dataclass
class ScaleCorrection:
    """Visits the linear ops of a sequential run and corrects the scales of their weights."""

    reals: Mapping[str, Array]  # the float weights, by the name of what the layer makes
    reference: FloatReference  # what the float model's layers read
    seed: int = 0
    factors: dict[str, Floats] = field(default_factory=dict)  # by layer

    def __call__(self, op: Op, run: SequentialRun) -> None:
        name = own_name(op.outputs[0].name)
        if name not in self.reals or not adjustable(op):
            return
        source, weights, bias = op.operand(0), op.operand(1), op.input(2)
        if source.quant is None or (bias is not None and bias.dtype.is_float):
            return
        given, wanted = (
            sums_of(op, some_rows(op, values, np.random.default_rng(self.seed)), by)
            for values, by in (
                (run.reals(source), real_weights(op)),
                (self.reference.reals(own_name(source.name)), self.reals[name]),
            )
        )
        if weights.quantisation.scale.size == 1:  # one factor for all channels
            given, wanted = given.reshape(-1, 1), wanted.reshape(-1, 1)
        self.factors[name] = _factors(given, wanted)
        _rescale(weights, bias, float(source.quant.scale[0]), self.factors[name])


def _factors(given: Array, wanted: Array) -> Floats:
    """For each channel, what brings the given sums nearest to the wanted ones; their means are the
    bias's to correct."""
    given, wanted = (a - a.mean(axis=0, dtype=np.float64) for a in (given, wanted))
    both, own = (given * wanted).sum(axis=0), np.square(given).sum(axis=0)
    share = PRIOR / len(given)
    both, own = both + share * both.mean(), own + share * own.mean()
    made = np.divide(both, own, out=np.ones_like(own), where=own > 0)
    return np.asarray(np.clip(made, 1 / MOST, MOST))


def _rescale(weights: Tensor, bias: Tensor | None, source: float, by: Floats) -> None:
    """New scales for the same codes; the bias says the same in their units."""
    before = weights.quantisation
    scale = (before.scale * by).astype(np.float32)
    weights.quant = Quant.of(scale, 0, before.axis)
    if bias is not None and bias.data is not None:
        bits = 8 * bias.data.dtype.itemsize
        coded = encode_bias(real_bias(bias), source, scale.astype(np.float64), bits)
        bias.data, bias.quant = coded.codes, coded.quant
