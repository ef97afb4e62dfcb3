"""How near a quantised model is to its float one, on samples that calibrated nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ...evaluate.error_measures import decibels
from ...evaluate.output_kinds import OutputKind, agreement, output_kind
from ...ir import Array, Model, Tensor
from ..correcting.calibrated import Calibrated
from ..correcting.probe import Probe
from ..writing.solve import SOFTMAX_REACH

MOST_SNR = 120.0  # dB, of what is equal
SQUASHING = ("SOFTMAX", "LOGISTIC", "LOG_SOFTMAX")
LEAST_POWER = 1e-30  # of a signal: silence is not infinitely below the noise
LEAST_GAIN = 0.05  # dB that are worth something
SURE = 2  # standard errors beyond which the agreement has surely risen
# Standard errors of the gain that a candidate needs, by what became of the agreement.
DOUBT = {"rose surely": -3, "rose": 0, "same": 1, "fell": 3}
KEPT_IF = (
    "Each way is held against the best before it, sample by sample, and kept if the SNR gains more "
    f"than needed: {LEAST_GAIN} dB, and one standard error of the mean gain. Where the agreement "
    f"rises as well, {LEAST_GAIN} dB are enough; where it falls, three standard errors are needed; "
    "where it rises by more than two standard errors of its own, a loss of up to three is accepted."
)


def capped_snr(power: float, noise: float) -> float:
    """The signal-to-noise ratio in dB, at most `MOST_SNR`, so that means can be taken of it."""
    return min(MOST_SNR, decibels(max(power, LEAST_POWER), noise))


def signal_to_noise(wanted: Array, given: Array) -> float:
    """The ratio of an array to its error in dB; equal arrays have `MOST_SNR`."""
    power = float(np.square(wanted, dtype=np.float64).sum())
    return capped_snr(power, float(np.square(wanted.astype(np.float64) - given).sum()))


@dataclass
class Candidate:
    """One quantised model that was tried, judged on samples that calibrated nothing."""

    name: str
    snr: float  # dB of the outputs (of what a softmax reads), mean over samples
    agreement: float | None  # with float's first class, mean over samples; None of a regressor
    chosen: bool = False
    against: str = ""  # the best candidate before it
    gain: float | None = None  # dB over that one
    needed: float | None = None  # dB that it had to gain: see KEPT_IF

    snrs: list[float] = field(default_factory=list, repr=False)  # by sample
    agreements: list[float] = field(default_factory=list, repr=False)

    @classmethod
    def of(
        cls,
        name: str,
        wanted: Sequence[Mapping[str, Array]],
        given: Sequence[Mapping[str, Array]],
        judged: Sequence[str],
        kinds: Mapping[str, OutputKind],
    ) -> Candidate:
        """Compare what a model should give with what it gives, sample by sample.

        judged: the tensors whose SNR counts; kinds: of the outputs.
        """
        pairs = list(zip(wanted, given, strict=True))
        snrs = [_mean([signal_to_noise(w[n], g[n]) for n in judged]) for w, g in pairs]
        agreeing = [n for n, kind in kinds.items() if kind.agrees]
        same = [
            _mean([agreement(kinds[n].name, w[n], g[n]) for n in agreeing])
            for w, g in pairs
            if agreeing
        ]
        return cls(name, _mean(snrs), _mean(same) if same else None, snrs=snrs, agreements=same)

    def beats(self, other: Candidate) -> bool:
        """Decide by KEPT_IF, and keep the figures that decided."""
        gain, error = _paired(self.snrs, other.snrs)
        factor = DOUBT[self._agreement_against(other)]
        self.against, self.gain = other.name, gain
        self.needed = factor * error if factor < 0 else max(factor * error, LEAST_GAIN)
        return gain > self.needed

    def _agreement_against(self, other: Candidate) -> str:
        more, error = _paired(self.agreements, other.agreements)
        if more > 0:
            return "rose surely" if more > SURE * error else "rose"
        return "same" if more == 0 else "fell"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _paired(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The mean difference sample by sample, and its standard error."""
    apart = np.subtract(ours, theirs)
    if not apart.size:
        return 0.0, 0.0
    error = float(apart.std(ddof=1)) / math.sqrt(len(apart)) if len(apart) > 1 else 0.0
    return float(apart.mean()), error


class Judge:
    """Compares models with the float one on the samples that judge."""

    def __init__(self, calibrated: Calibrated, kinds: Mapping[str, str] | None = None) -> None:
        """kinds: what the user says that outputs are, by name."""
        outputs = calibrated.float_model.main.outputs
        self.calibrated, self.samples = calibrated, calibrated.judging
        self.judged = [judged(t).name for t in outputs]
        self.kinds = {t.name: output_kind(t, kinds) for t in outputs}
        self.softened = {
            judged(t).name
            for t in outputs
            if t.producer is not None and t.producer.name == "SOFTMAX"
        }

    @cached_property
    def wanted(self) -> list[dict[str, Array]]:
        """What the float model gives for the samples."""
        names = {*self.judged, *self.kinds}
        runs = (self.calibrated.observer.run_all(feeds) for feeds in self.samples)
        found = ({n: np.array(a) for n, a in run.items() if n in names} for run in runs)
        return [self._floored(one, one) for one in found]

    def probe(self, model: Model) -> Probe:
        return Probe(model, self.judged, self.calibrated.threads)

    def given(self, probe: Probe) -> list[dict[str, Array]]:
        """What a model gives for the samples."""
        found = [probe.run(feeds) for feeds in self.samples]
        return [self._floored(g, w) for g, w in zip(found, self.wanted, strict=True)]

    def judge(self, name: str, model: Model) -> Candidate:
        given = self.given(self.probe(model))
        return Candidate.of(name, self.wanted, given, self.judged, self.kinds)

    def _floored(self, given: Mapping[str, Array], wanted: Mapping[str, Array]) -> dict[str, Array]:
        """Raise scores that a softmax makes nothing of to a floor: a range that leaves out scores
        far below the largest (see SOFTMAX_REACH) does no harm, and is not to be blamed."""
        floors = {
            n: wanted[n].max(axis=-1, keepdims=True) - SOFTMAX_REACH / 2 for n in self.softened
        }
        return {n: np.maximum(a, floors[n]) if n in floors else a for n, a in given.items()}


def judged(tensor: Tensor) -> Tensor:
    """The tensor that a model is judged by for this output: the output, or what its softmax reads.
    Probabilities near 0 and 1 hide errors that the next picture shows; so do a class number and the
    result of a comparison."""
    made = tensor.producer
    if made is None or (made.name not in SQUASHING and tensor.dtype.is_float):
        return tensor
    source = made.input(0)
    if source is None or source.is_constant or not source.dtype.is_float:
        return tensor
    return source
