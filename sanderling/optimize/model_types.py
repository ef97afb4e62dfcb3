"""A model in each type that TensorFlow Lite's guide speaks of: float32, float16 weights, dynamic
range, integer, and integer with the ranges that quantisation-aware training left in FAKE_QUANT.

They are made to ask delegates what they would take. Ranges are not measured, so that the models
have the right types and must not be run.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ..errors import SanderlingError
from ..ir import Graph, Model
from ..measure.inspection import quantisation_kind
from ..rules.model_types import COLUMNS, TYPES
from ..rules.model_types import model_types as judged
from .calibration.calibrate import Calibration, Statistics, activations
from .calibration.canonical import canonical
from .modes.recipe import Choice
from .writing.apply import Quantiser

Ranges = dict[str, tuple[float, float]]
MODES = dict(zip(TYPES, ("float", "float16", "dynamic", "int8", "int8"), strict=True))
ASSUMED = (-1.0, 1.0)


def model_types(model: Model) -> dict[str, Any]:
    """The guide's table for this model, as a record. A file that is quantised already is judged as
    it is."""
    own = quantisation_kind(model)
    try:
        made, problem = variants(model), ""
    except SanderlingError as error:
        made, problem = {own: model}, f"other types cannot be made of it: {error.what}"
    rows = judged({kind: made_of.main for kind, made_of in made.items()})
    return {
        "own": own,
        "accelerators": list(COLUMNS),
        "names": dict(COLUMNS),
        "problem": problem,
        "rows": [
            {"type": kind, "cells": {c: asdict(cell) for c, cell in cells.items()}}
            for kind, cells in rows.items()
        ],
    }


def variants(model: Model) -> dict[str, Model]:
    """The model in each type."""
    plain, trained = without_fake_quant(model)
    ready = canonical(plain)
    ranges = dict.fromkeys(TYPES, Ranges()) | {TYPES[-1]: trained}
    return {kind: _made(ready, mode, ranges[kind]) for kind, mode in MODES.items()}


def _made(ready: Model, mode: str, ranges: Ranges) -> Model:
    seen = {
        t.name: _statistics(ranges.get(t.name, ASSUMED))
        for graph in ready.graphs
        for t in activations(graph)
    }
    return Quantiser(ready, [Choice(mode)], Calibration(seen, 1)).run().model


def _statistics(given: tuple[float, float]) -> Statistics:
    return Statistics(low=given[0], high=given[1], samples=1)


def without_fake_quant(model: Model) -> tuple[Model, Ranges]:
    """A copy in which FAKE_QUANT is gone, and the ranges that it stated, by tensor."""
    copy = model.copy()
    ranges = {name: pair for graph in copy.graphs for name, pair in _taken_out(graph).items()}
    return copy, ranges


def _taken_out(graph: Graph) -> Ranges:
    found: Ranges = {}
    for op in [op for op in graph.ops if op.name == "FAKE_QUANT"]:
        source = op.operand(0)
        found[source.name] = float(op.attrs["min"]), float(op.attrs["max"])
        graph.replace_uses(op.outputs[0], source)
        graph.erase(op)
    return found
