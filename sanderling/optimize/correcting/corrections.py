"""Quantises a calibrated model with techniques: ranges, weights, then the corrections in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from ...ir import Array, Op
from ..calibration.calibrate import Calibration, Progress, Statistics, digest, sample_statistics
from ..modes.recipe import Choice
from ..modes.scheme import Floats
from ..writing.apply import Quantised, Quantiser
from .adaround import AdaRound
from .bias_correction import BiasCorrection, mean_sums
from .calibrated import Calibrated
from .equalise import divided, equalise, stretched
from .linear import weighted_ops
from .parallel import one_thread_each
from .probe import coded
from .scale_correction import ScaleCorrection
from .sequential import FloatReference, SequentialRun, Visit, mean_maps
from .techniques import Techniques


@dataclass
class FloatVariant:
    """The float model that is quantised: as given, or equalised."""

    quantiser: Quantiser
    factors: dict[str, Floats] = field(default_factory=dict)  # what divided its channels, by tensor


class CorrectedQuantiser:
    """Quantises one calibrated model with any techniques; what they share is found once."""

    def __init__(self, calibrated: Calibrated) -> None:
        self.calibrated = calibrated
        self._variants: dict[bool, FloatVariant] = {}

    def run(
        self,
        techniques: Techniques,
        recipe: list[Choice] | None = None,
        progress: Progress | None = None,
    ) -> Quantised:
        """Quantise the model; the recipe is the calibrated one's if none is given."""
        variant = self.variant("equalise" in techniques.corrections)
        quantiser = replace(
            variant.quantiser,
            recipe=recipe or self.calibrated.quantiser.recipe,
            ranges=techniques.ranges,
            weights=replace(variant.quantiser.weights, method=techniques.weights),
        )
        made = quantiser.run()
        made.factors = variant.factors
        visits = self._visits(techniques.corrections, variant)
        if visits:
            inputs = {t.name: t for t in made.model.main.inputs}
            feeds = [coded(inputs, f) for f in self.calibrated.correcting]
            SequentialRun(made.model.main, feeds).run(_each(visits), progress)
        return made

    def _visits(self, corrections: Sequence[str], variant: FloatVariant) -> list[Visit]:
        graph = variant.quantiser.float_model.main
        weights = {name: layer.weights for name, layer in weighted_ops(graph).items()}
        visits: list[Visit] = []
        if "adaround" in corrections:
            visits.append(AdaRound(weights))
        if "scale" in corrections:
            reference = FloatReference(graph, self.calibrated.correcting)
            visits.append(ScaleCorrection(weights, reference))
        if "bias" in corrections:
            visits.append(BiasCorrection(divided(self.sums, variant.factors)))
        return visits

    @cached_property
    def sums(self) -> dict[str, Array]:
        """The mean sums of the float model's layers."""
        layers = weighted_ops(self.calibrated.float_model.main)
        names = {layer.source for layer in layers.values()}
        maps = mean_maps(self.calibrated.observer, self.calibrated.correcting, names)
        with one_thread_each():
            return mean_sums(layers, maps)

    # -- equalisation -------------------------------------------------------------------------

    @property
    def can_equalise(self) -> bool:
        return bool(self.variant(True).factors)

    def variant(self, equalised: bool) -> FloatVariant:
        if equalised not in self._variants:
            plain = FloatVariant(self.calibrated.quantiser)
            self._variants[equalised] = self._equalised() if equalised else plain
        return self._variants[equalised]

    def _equalised(self) -> FloatVariant:
        quantiser = self.calibrated.quantiser
        model, calibration = quantiser.float_model.copy(), quantiser.calibration
        by = equalise(model.main, calibration)
        if not by:
            return FloatVariant(quantiser)
        tensors = calibration.tensors | self._rescaled(calibration, by)
        found = Calibration(tensors, calibration.samples)
        return FloatVariant(replace(quantiser, float_model=model, calibration=found), by)

    def _rescaled(
        self, calibration: Calibration, by: Mapping[str, Floats]
    ) -> dict[str, Statistics]:
        """Histograms are found anew, on the samples of the corrections."""
        made = {name: Statistics() for name in by}
        for feeds in self.calibrated.correcting:
            phase, values = int(digest(feeds), 16), self.calibrated.observer.run(feeds)
            for name, factors in by.items():
                one = sample_statistics(values[name] / factors.astype(np.float32), phase)
                if one is not None:
                    made[name].add(one)
        return {
            name: stretched(made[name], calibration.tensors[name], factors)
            for name, factors in by.items()
        }


def _each(visits: Sequence[Visit]) -> Visit:
    def visit(op: Op, run: SequentialRun) -> None:
        for one in visits:
            one(op, run)

    return visit
