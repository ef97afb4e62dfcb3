"""What quantisation-aware training starts from: our best post-training result.

The float weights are moved into the cells of that result's codes, and its corrected biases are
taken, so that the first forward pass answers as the post-training model does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...errors import InputError
from ...ir import Array, DType, Model, Op, Tensor
from ...optimize.calibration.canonical import canonical
from ...optimize.correcting.calibrated import Calibrated, calibrated
from ...optimize.correcting.corrections import CorrectedQuantiser
from ...optimize.correcting.linear import real_bias
from ...optimize.correcting.techniques import SearchSpace
from ...optimize.judging.judge import Candidate, Judge
from ...optimize.judging.selection import Selected, Selection
from ...optimize.modes.recipe import Choice, Recipe, all_modes, read_recipe
from ...optimize.modes.rules import RULES, STORED
from ...optimize.modes.scheme import mode_of
from ...optimize.writing.apply import Quantised, Quantiser
from ...optimize.writing.write import WeightOptions
from ..constraint import Rows

CALIBRATING = 200  # samples that the ranges are found on
EDGE = 0.49  # of a cell: a weight that was rounded the other way stands so far from its code
FEW_BITS = 4


@dataclass(frozen=True)
class Settings:
    """What is to be written: see `quantize`, whose options they are."""

    mode: str = "int8"
    recipe: Sequence[Choice] = ()
    inputs: str = "float32"
    outputs: str = "float32"
    minimum: int = 1024
    ranges: str = "auto"
    corrections: str = "auto"

    @property
    def rules(self) -> list[Choice]:
        return [Choice(mode_of(self.mode).name), *self.recipe]


@dataclass
class Start:
    """A quantiser with its ranges, what it made, and the float model to train."""

    quantiser: Quantiser
    made: Quantised
    model: Model
    calibrated: Calibrated | None = None  # of an integer mode
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def choices(recipe: str | Recipe | None) -> tuple[Choice, ...]:
    """The rules of a recipe, read."""
    return tuple(read_recipe(recipe)) if recipe else ()


def post_training(
    model: Model, data: Sequence[Rows], settings: Settings, keep_weights: bool
) -> Start:
    """Quantise after training, by the best way that calibration finds. keep_weights: no correction
    may change a weight, since others have zeros and clusters in it."""
    source = canonical(model)
    if any(t.dtype is not DType.FLOAT32 for t in source.main.inputs if t.dtype.is_float):
        raise InputError("an input is float16", where=model.source, fix="give a float32 interface")
    quantiser = Quantiser(
        source,
        settings.rules,
        inputs=settings.inputs,
        outputs=settings.outputs,
        weights=WeightOptions(_method(source, settings), settings.minimum),
    )
    if not any(m.is_integer for m in all_modes(source.graphs, settings.rules).values()):
        made = quantiser.run()
        return Start(quantiser, made, starting_weights(source, made))
    found = calibrated(quantiser, _feeds(source, data))
    corrected = CorrectedQuantiser(found)
    selected = _selected(corrected, _space(settings, quantiser.weights.method, keep_weights))
    techniques = selected.techniques
    variant = corrected.variant("equalise" in techniques.corrections).quantiser
    chosen = replace(
        variant,
        ranges=techniques.ranges,
        weights=replace(variant.weights, method=techniques.weights),
    )
    made = selected.made
    return Start(
        chosen,
        made,
        starting_weights(made.float_model, made),
        found,
        selected.candidates,
        found.notes + selected.notes,
    )


def _method(model: Model, settings: Settings) -> str:
    """How ranges of weights are chosen. With few bits the largest weight may be clipped: the scale
    with the least error is better."""
    grids = [m.weights for m in all_modes(model.graphs, settings.rules).values() if m.weights]
    return "mse" if any(g.bits <= FEW_BITS for g in grids) else "max"


def _space(settings: Settings, method: str, keep_weights: bool) -> SearchSpace:
    """All that is worth trying but AdaRound, the last and slowest: training finds the rounding."""
    stated = settings.corrections
    space = SearchSpace.of(settings.ranges, method, "bias" if keep_weights else stated)
    if keep_weights or stated != "auto":
        return space
    return SearchSpace(space.first, space.variations[:-1])


def _selected(corrected: CorrectedQuantiser, space: SearchSpace) -> Selected:
    """The best way of those in the space; the only one needs no judge."""
    if space.variations:
        return Selection(corrected, Judge(corrected.calibrated)).choose(space)
    return Selected(corrected.run(space.first), space.first, [], [])


def _feeds(model: Model, data: Sequence[Rows]) -> list[dict[str, Array]]:
    """Samples for the calibration, spread evenly over all."""
    count = len(data[0])
    places = sorted({i * count // CALIBRATING for i in range(CALIBRATING)})
    return [
        {
            tensor.name: np.asarray(rows[i : i + 1], tensor.dtype.numpy)
            for tensor, rows in zip(model.main.inputs, data, strict=True)
        }
        for i in places
    ]


# -- weights of the result ------------------------------------------------------------------------


def starting_weights(source: Model, made: Quantised) -> Model:
    """The float model with weights that round to the result's codes, and with its biases."""
    model = source.copy()
    for op, coded in pairs(model, made):
        for place in coded_places(op):
            weight, codes = op.operand(place), stored(coded, place)
            if codes is not None and weight.is_constant:
                weight.data = _in_cells(weight.values, codes)
        _take_bias(op, coded)
    return model


def pairs(model: Model, made: Quantised) -> list[tuple[Op, Op]]:
    """Each op of the float model with what it became: the quantiser keeps their order."""
    ops = (op for graph in model.graphs for op in graph.ops)
    return list(zip(ops, made.solution.modes, strict=True))


def coded_places(op: Op) -> dict[int, int]:
    """The operands that are weights, with the axes of their channels."""
    row, held = RULES.get(op.name), STORED.get(op.name)
    found = row.weights if row is not None and row.weights else (held.operands if held else {})
    return {i: axis for i, axis in found.items() if op.input(i) is not None}


def stored(coded: Op, place: int) -> Tensor | None:
    """The constant that holds an operand's codes, if codes it has; blocks have none here."""
    tensor = coded.input(place)
    if tensor is not None and tensor.producer is not None:
        is_expanded = tensor.producer.name == "DEQUANTIZE"
        tensor = tensor.producer.input(0) if is_expanded else None
    if tensor is None or not tensor.is_constant or tensor.quant is None:
        return None
    is_plain = tensor.quant.scale.size > 0 and tensor.quant.block is None
    return tensor if is_plain and not tensor.dtype.is_float else None


def _in_cells(weights: Array, codes: Tensor) -> Array:
    scale = _broadcast(codes, weights.ndim)
    whole = codes.values.astype(np.float64)
    units = np.clip(weights / scale, whole - EDGE, whole + EDGE)
    low, high = codes.dtype.bounds
    # What is clipped stays beyond the bounds: its gradient is that of a clipped value.
    outside = (whole <= low + 1) & (weights / scale < whole) | (whole >= high) & (
        weights / scale > whole
    )
    found: Array = np.where(outside, weights, units * scale).astype(np.float32)
    return found


def _broadcast(codes: Tensor, rank: int) -> Array:
    scale = codes.quantisation.scale.astype(np.float64)
    shape = [1] * rank
    if scale.size > 1:
        shape[codes.quantisation.axis] = -1
    return scale.reshape(shape)


def _take_bias(op: Op, coded: Op) -> None:
    row = RULES.get(op.name)
    place = None if row is None else row.bias
    own = None if place is None else op.input(place)
    theirs = None if place is None else coded.input(place)
    if own is None or theirs is None or not own.is_constant or not theirs.is_constant:
        return
    is_coded = theirs.quant is not None and theirs.quant.scale.size > 0
    found = real_bias(theirs) if is_coded else theirs.values
    own.data = np.asarray(found, np.float32).reshape(own.shape)
