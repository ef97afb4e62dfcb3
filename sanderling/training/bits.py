"""How few bits each layer's weights bear: what `qat --max-drop` searches.

A layer's step to fewer bits costs an error of its sums, and saves bits. Steps are taken in the
order of what they cost for what they save; a level is so many of the first steps.
"""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..errors import InputError
from ..ir import Array, Model, Op
from ..optimize.calibration.canonical import canonical
from ..optimize.modes.recipe import Choice
from .constraint import weights_of
from .without_training.allocation import pruned_layers
from .without_training.one_shot import layer_moments, no_statistics
from .without_training.segments import home_of, weight_values

MOST_LEVELS = 16  # each that is tried is a whole training
CLIPPED = np.linspace(0.4, 1.0, 13)  # of the largest weight: where a scale may end
ANY = "*"
# Modes of fewer and fewer bits that have kernels, by the kind of activations and the operator.
STEPS: dict[str, dict[str, Sequence[tuple[int, str]]]] = {
    "int8": {ANY: ((4, "int8x4"),), "FULLY_CONNECTED": ((4, "int8x4"), (2, "int8x2"))},
    "int16x8": {ANY: ((4, "int16x4"),)},
    "weight": {ANY: ((4, "weight-int4"), (2, "weight-int2"))},
    "dynamic": {ANY: ((4, "dynamic-int4"),)},
}
STORED_ONLY = ("weight", "dynamic")  # kinds in which small weights stay float


@dataclass(frozen=True)
class BitStep:
    """One layer, by its output, gets fewer bits. ratio: the error for what it saves."""

    output: str
    bits: int
    mode: str
    ratio: float


@dataclass(frozen=True)
class Level:
    """Steps that are taken together, of so many layers."""

    steps: tuple[BitStep, ...]
    layers: int

    @property
    def rules(self) -> list[Choice]:
        """The rules of a recipe; the last step of a layer wins."""
        return [Choice(s.mode, name=glob.escape(s.output)) for s in self.steps]

    @property
    def bits(self) -> dict[str, int]:
        """The bits of each layer that has fewer than eight."""
        return {s.output: s.bits for s in self.steps}

    @property
    def name(self) -> str:
        """For people; each level has another."""
        counts = Counter(self.bits.values())
        told = [
            f"{count} of {self.layers} layers with {b} bits"
            for b, count in sorted(counts.items(), reverse=True)
        ]
        return ", ".join(told) or "8 bits"


def levels(model: Model, data: Sequence[Array], kind: str, minimum: int, seed: int) -> list[Level]:
    """From eight bits everywhere to the fewest that there are. data: samples for each input, of
    which layers' errors are computed; minimum: elements of a weight that is stored as integers."""
    source = canonical(model)
    names = [t.name for t in weights_of(source) if home_of(t) is not None]
    least = minimum if kind in STORED_ONLY else 0
    layers = [
        op for op in pruned_layers(source, names) if int(np.prod(op.operand(1).shape)) >= least
    ]
    if not layers:
        raise InputError(
            f"no weight has {least} elements", where="max_drop", fix="give a smaller `minimum`"
        )
    known = [op for op in layers if not no_statistics(op)]
    moments = layer_moments(source, known, data, seed) if known else {}
    powers = {op: torch.diagonal(moments[op].inner)[:-1] for op in known}
    steps = in_order(step for op in layers for step in _steps(op, powers.get(op), kind))
    cuts = np.unique(np.linspace(0, len(steps), MOST_LEVELS).astype(int))
    return [Level(tuple(steps[:cut]), len(layers)) for cut in cuts]


def in_order(steps: Iterable[BitStep]) -> list[BitStep]:
    """The cheapest first; of one layer more bits before fewer."""
    return sorted(steps, key=lambda s: (s.ratio, -s.bits))


def _steps(op: Op, power: torch.Tensor | None, kind: str) -> list[BitStep]:
    values = weight_values(op.operand(1))
    matrix = values.reshape(len(values), -1).double()
    weight = torch.ones(matrix.shape[1]).double() if power is None else power.double()
    table: Mapping[str, Sequence[tuple[int, str]]] = STEPS[kind]
    found: list[BitStep] = []
    for bits, mode in table.get(op.name, table[ANY]):
        saved = (8 - bits) * matrix.numel()
        ratio = rounding_error(matrix, weight, bits) / saved
        # A step never comes before the layer's step before it.
        ratio = max([ratio, *(s.ratio for s in found)])
        found.append(BitStep(op.outputs[0].name, bits, mode, ratio))
    return found


def rounding_error(matrix: torch.Tensor, power: torch.Tensor, bits: int) -> float:
    """The error of a layer's sums as a share of their power: rows are rounded by the best scale of
    each."""
    most = 2 ** (bits - 1) - 1
    reach = matrix.abs().amax(1, keepdim=True).clamp(min=1e-30)
    least = torch.full((len(matrix),), torch.inf, dtype=matrix.dtype)
    for share in CLIPPED:
        scale = reach * share / most
        apart = torch.clamp(torch.round(matrix / scale), -most, most) * scale - matrix
        least = torch.minimum(least, (apart.square() * power).sum(1))
    whole = (matrix.square() * power).sum().clamp(min=1e-30)
    return float(least.sum() / whole)
