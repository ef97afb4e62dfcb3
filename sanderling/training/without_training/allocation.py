"""How many zeros each layer gets, where all together have to reach a share.

A weight is worth the share of its layer's sums that it makes: w^2 times the power of what it is
multiplied with, over the power of the sums. Where all weights stand in one row in this order, the
first of them are taken, whichever layers they are of: what a layer loses is then as cheap
everywhere. `per_mac` counts what a zero saves in time instead of in size: a weight that is
multiplied at many positions is as many zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from ...ir import Array, Model, Op
from ...ops import cost
from ..constraints.structure import Structure
from .one_shot import Moments, layer_moments, no_statistics
from .segments import home_of, weight_values

MOST = 0.95  # of a layer


def pruned_layers(model: Model, names: Sequence[str]) -> list[Op]:
    """The ops whose weights have these names, one for each weight."""
    found: dict[str, Op] = {}
    for op in model.main.ops:
        weight = op.input(1)
        if weight is not None and weight.name in names and home_of(weight) is not None:
            found.setdefault(weight.name, op)
    return list(found.values())


def shares_of_all(
    model: Model,
    names: Sequence[str],
    data: Sequence[Array],
    structure: str | Structure = "unstructured",
    per_mac: bool = False,
    seed: int = 0,
) -> Callable[[float], dict[str, float]]:
    """A function of the share of all weights together: shares by the names of weights."""
    layers = pruned_layers(model, names)
    looked_at = [op for op in layers if no_statistics(op) is None]
    moments = layer_moments(model, looked_at, data, seed)
    pattern = Structure.of(structure)
    worth = {op.operand(1).name: _worth(op, moments[op], pattern) for op in looked_at}
    gain = {op.operand(1).name: _gain(op, per_mac) for op in looked_at}
    others = [op.operand(1).name for op in layers if op not in moments]
    return lambda share: shares_by(worth, gain, share) | dict.fromkeys(others, share)


def shares_by(
    worth: Mapping[str, Array], gain: Mapping[str, float], share: float
) -> dict[str, float]:
    """The cheapest elements for what they gain, until their gains are this share of all."""
    ratio = np.concatenate([w / gain[n] for n, w in worth.items()])
    gains = np.concatenate([np.full(w.size, gain[n]) for n, w in worth.items()])
    order = np.argsort(ratio, kind="stable")
    gone = np.cumsum(gains[order])
    limit = ratio[order[min(np.searchsorted(gone, share * gone[-1]), len(order) - 1)]]
    return {n: min(MOST, float((w / gain[n] < limit).mean())) for n, w in worth.items()}


def _worth(op: Op, moments: Moments, pattern: Structure) -> Array:
    """The worth of each element or block: the share of the sums' power that it makes."""
    values = weight_values(op.operand(1))
    matrix = values.reshape(len(values), -1)
    mean = moments.inner[-1, :-1] / moments.inner[-1, -1]
    inner = moments.inner[:-1, :-1] - torch.outer(mean, mean) * moments.inner[-1, -1]
    power = (matrix @ inner * matrix).sum().clamp(min=1e-30)
    own = matrix**2 * torch.diagonal(inner) / power
    return np.asarray(pattern.blocks(own).reshape(-1).numpy())


def _gain(op: Op, per_mac: bool) -> float:
    """What a zero saves: one stored value, or as many multiplications as it has positions."""
    return cost(op).macs / max(1, int(np.prod(op.operand(1).shape))) if per_mac else 1.0
