"""Bias correction: rounding shifts the mean of a layer's sums; the bias takes the shift back.

Sums are linear, so the mean over samples of the sums is the sum over the mean of the inputs: one
evaluation of the layer on a mean map is enough. What the layer should give comes from the float
model; what it gives, from what the corrected layers before it really deliver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..ir import Array, Graph, Op, Tensor
from .rules import RULES
from .walk import Product, Walk, is_layer, reals

SUFFIXES = ("/i8", "/i16")  # of codes whose own name the outer world has


@dataclass
class Twin:
    """A layer in the float graph, with its constants as they are."""

    op: Op
    weights: Array

    @property
    def source(self) -> str:
        tensor = self.op.inputs[RULES[self.op.name].data[0]]
        assert tensor is not None
        return tensor.name


def layers(graph: Graph) -> dict[str, Twin]:
    """By the name of what they make."""
    found = {}
    for op in filter(is_layer, graph.ops):
        weights = op.inputs[next(iter(RULES[op.name].weights))]
        assert weights is not None and weights.data is not None
        found[op.outputs[0].name] = Twin(op, np.asarray(weights.data))
    return found


def own_name(name: str) -> str:
    """The float model's name of a quantised model's tensor."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def mean_sums(twins: Mapping[str, Twin], maps: Mapping[str, Array]) -> dict[str, Array]:
    """What each layer's sums are in the float model: the mean of each channel."""
    return {name: _channels(Product(twin.op, bare=True)(maps[twin.source], twin.weights))
            for name, twin in twins.items() if twin.source in maps}  # fmt: skip


def _channels(sums: Array) -> Array:
    return np.asarray(sums.mean(axis=tuple(range(sums.ndim - 1)), dtype=np.float64))


@dataclass
class BiasCorrection:
    """Visits the layers of a walk and corrects their biases."""

    wanted: Mapping[str, Array]  # the float model's mean sums
    shifts: dict[str, float] = field(default_factory=dict)  # the largest shift of each layer

    def __call__(self, op: Op, walk: Walk) -> None:
        wanted = self.wanted.get(own_name(op.outputs[0].name))
        row = RULES[op.name]
        bias = None if row.bias is None else op.input(row.bias)
        if wanted is None or bias is None or bias.data is None or bias.dtype.is_float:
            return
        product = Product(op, bare=True)
        source, weights = op.inputs[row.data[0]], op.inputs[product.place]
        assert source is not None and weights is not None and weights.data is not None
        given = product(walk.mean(source), reals(weights.data, weights))
        shift = wanted - _channels(given)
        _apply(bias, shift)
        self.shifts[op.outputs[0].name] = float(np.abs(shift).max())


def _apply(bias: Tensor, shift: Array) -> None:
    assert bias.data is not None and bias.quant is not None
    limits = np.iinfo(bias.data.dtype)
    moved = bias.data.astype(np.float64) + shift / bias.quant.scale.astype(np.float64)
    bias.data = np.clip(np.rint(moved), limits.min, limits.max).astype(bias.data.dtype)
