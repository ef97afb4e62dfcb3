"""What a quantisation did, layer by layer, and what it cost: for people, JSON and pages."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..evaluate.output_kinds import OutputKind, agreement
from ..format import dump
from ..ir import Array, Model, Op
from . import local
from .correct import layers, own_name
from .recipe import Choice
from .rules import RULES
from .threads import one_thread_each
from .walk import reals
from .xnnpack import refused

if TYPE_CHECKING:
    from .quantize import Quantised
    from .work import Work

SCHEMA = "sanderling.quantize/1"
MOST_SNR = 120.0  # dB, of what is equal
LEAST_GAIN = 0.05  # dB that are worth something
SURE = 2  # standard errors beyond which the agreement has surely risen
# Standard errors of the gain that a way needs, by what became of the agreement.
DOUBT = {"rose surely": -3, "rose": 0, "same": 1, "fell": 3}
KEPT_IF = (
    "Each way is held against the best before it, sample by sample, and kept if the SNR gains more "
    f"than needed: {LEAST_GAIN} dB, and one standard error of the mean gain. Where the agreement "
    f"rises as well, {LEAST_GAIN} dB are enough; where it falls, three standard errors are needed; "
    "where it rises by more than two standard errors of its own, a loss of up to three is accepted."
)
MOST_ROWS = 16  # samples that the rows of layers are measured on
MOST_LOCAL = 4  # of them for the ops by themselves, which are not compiled


@dataclass
class Candidate:
    """One way that was tried, judged on samples that calibrated nothing."""

    name: str
    snr: float  # dB of the outputs (of what a softmax reads), mean over samples
    agreement: float | None  # with float's first class, mean over samples; None of a regressor
    chosen: bool = False
    against: str = ""  # the best way before it
    gain: float | None = None  # dB over that one
    needed: float | None = None  # dB that it had to gain: see KEPT_IF

    snrs: list[float] = field(default_factory=list, repr=False)  # by sample
    agreements: list[float] = field(default_factory=list, repr=False)

    @classmethod
    def of(cls, name: str, wanted: Sequence[Mapping[str, Array]],
           given: Sequence[Mapping[str, Array]], judged: Sequence[str],
           kinds: Mapping[str, OutputKind]) -> Candidate:  # fmt: skip
        """judged: whose SNR counts; kinds: of the outputs."""
        pairs = list(zip(wanted, given, strict=True))
        snrs = [_mean([signal_to_noise(w[n], g[n]) for n in judged]) for w, g in pairs]
        agreeing = [n for n, kind in kinds.items() if kind.agrees]
        same = [_mean([agreement(kinds[n].name, w[n], g[n]) for n in agreeing])
                for w, g in pairs if agreeing]  # fmt: skip
        return cls(name, _mean(snrs), _mean(same) if same else None, snrs=snrs, agreements=same)

    def beats(self, other: Candidate) -> bool:
        """By KEPT_IF; the figures that it takes are kept."""
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


def signal_to_noise(wanted: Array, given: Array) -> float:
    """In dB; equal arrays have `MOST_SNR`."""
    power = float(np.square(wanted, dtype=np.float64).sum())
    return decibels(power, float(np.square(wanted.astype(np.float64) - given).sum()))


def decibels(power: float, noise: float) -> float:
    if noise == 0:
        return MOST_SNR
    return min(MOST_SNR, 10 * math.log10(max(power, 1e-30) / noise))


@dataclass
class Trial:
    """One model that was tried on the way to a target."""

    name: str
    score: float  # what the target is about, on samples that judge
    size: int  # bytes
    latency: float  # seconds of the fastest run, on this machine
    choice: float | None = None  # the same on the samples that choose, where those are others
    kept: list[str] = field(default_factory=list)  # outputs of the ops that got the finer mode
    meets: bool = False
    pareto: bool = False  # none is better in one of score, size and latency and as good in the rest
    chosen: bool = False


@dataclass
class Layer:
    """One activation of the quantised model, measured on samples that were held out."""

    name: str
    op: str
    bits: int
    low: float
    high: float
    scale: float
    zero_point: int
    clipped: float  # share of the calibration's values beyond the codes
    snr: float | None = None
    rmse_over_scale: float | None = None  # with what came in through its operands
    local_rmse_over_scale: float | None = None  # its own; 0.29 is what rounding alone costs
    weight_bits: int | None = None
    weight_snr: float | None = None


@dataclass
class Report:
    """Sizes in bytes; `zipped` is what deflate leaves of the file."""

    source: str
    modes: dict[str, int]
    size_before: int
    size_after: int
    zipped_before: int
    zipped_after: int
    rules: list[dict[str, str]]
    stayed_float: list[dict[str, str]]
    fell_back: list[dict[str, str]] = field(default_factory=list)  # ops that got another mode
    samples: int = 0  # that calibrated
    held_out: int = 0  # that calibrated nothing and judge
    kinds: dict[str, dict[str, str]] = field(default_factory=dict)  # of the outputs, and why
    layers: list[Layer] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)  # what XNNPACK will not take
    accuracy: dict[str, Any] = field(default_factory=dict)  # of a task, before and after
    latency: list[dict[str, Any]] = field(default_factory=list)  # by engine, before and after
    target: dict[str, Any] = field(default_factory=dict)  # what was asked, what was reached
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, source: Model, made: Quantised, rules: Sequence[Choice]) -> Report:
        solution, written = made.solution, made.written
        before, after = bytes(dump(source)), bytes(dump(made.model))
        became = {op: written.became.get(op, "float") for op in solution.modes}
        left = solution.reasons | {op: why for op, why in written.reasons.items()
                                   if became[op] == "float"}  # fmt: skip
        floats = [_row(op, why) for op, why in left.items()]
        other = [_row(op, f"{written.became[op]} instead of {solution.modes[op].name}: {why}")
                 for op, why in written.reasons.items() if became[op] != "float"]  # fmt: skip
        slow = [_row(op, why) for op, why in refused(made.model)]
        return cls(source.source, dict(Counter(became.values())), len(before), len(after),
                   _zipped(before), _zipped(after), [asdict(r) for r in rules], floats, other,
                   refused=slow)  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def _row(op: Op, why: str) -> dict[str, str]:
    return {"op": op.name, "output": op.outputs[0].name if op.outputs else "", "reason": why}


def _zipped(content: bytes) -> int:
    return len(zlib.compress(content, 6))


def layer_rows(work: Work, made: Quantised) -> list[Layer]:
    """The activations that became codes: their scales, what they clip, how far they are off."""
    calibration = work.variant(bool(made.factors)).job.calibration
    assert calibration is not None
    errors, weights = tensor_errors(work, made, work.held), stored_weights(made)
    alone = local_errors(work, made, work.held)
    fed = {t.name for t in made.float_model.main.inputs}
    rows = []
    for tensor in (t for op in made.model.main.ops for t in op.outputs):
        name = own_name(tensor.name)
        seen = calibration.tensors.get(name)
        if seen is None or tensor.quant is None or not tensor.quant.is_set:
            continue
        scale, zero = float(tensor.quant.scale[0]), int(tensor.quant.zero_point[0])
        low, high = ((code - zero) * scale for code in tensor.dtype.bounds)
        values, counts = seen.values()
        beyond = counts[(values < low - scale / 2) | (values > high + scale / 2)].sum()
        producer = tensor.producer.name if tensor.producer else ""
        row = Layer(name, producer, tensor.dtype.bits, seen.low, seen.high, scale, zero,
                    float(beyond / counts.sum()))  # fmt: skip
        if name in errors:
            row.snr, row.rmse_over_scale = errors[name].snr, errors[name].rmse / scale
        if name in alone:
            row.local_rmse_over_scale = alone[name].rmse / scale
        elif name in fed:  # nothing came in before it
            row.local_rmse_over_scale = row.rmse_over_scale
        row.weight_bits, row.weight_snr = weights.get(name, (None, None))
        rows.append(row)
    return rows


@dataclass
class TensorError:
    """Of one tensor, over samples."""

    power: float = 0.0
    noise: float = 0.0
    count: int = 0

    def add(self, wanted: Array, given: Array) -> None:
        self.power += float(np.square(wanted, dtype=np.float64).sum())
        self.noise += float(np.square(np.subtract(wanted, given), dtype=np.float64).sum())
        self.count += wanted.size

    @property
    def snr(self) -> float:
        return decibels(self.power, self.noise)

    @property
    def rmse(self) -> float:
        return math.sqrt(self.noise / max(self.count, 1))


def tensor_errors(work: Work, made: Quantised, samples: Sequence[Mapping[str, Array]],
                  ) -> dict[str, TensorError]:  # fmt: skip
    """Of every tensor that both models have, by name, on the first of the samples."""
    from .work import Shown

    shown = Shown(made.model, None, work.threads)
    found: dict[str, TensorError] = {}
    for feeds in samples[:MOST_ROWS]:
        given, wanted = shown.run(feeds), work.watcher.run(feeds)
        for name in given.keys() & wanted.keys():
            if given[name].shape == wanted[name].shape:
                by = made.factors.get(name)
                real = wanted[name] if by is None else wanted[name] / by.astype(np.float32)
                found.setdefault(name, TensorError()).add(real, given[name])
    return found


def local_errors(work: Work, made: Quantised, samples: Sequence[Mapping[str, Array]],
                 ) -> dict[str, TensorError]:  # fmt: skip
    """Of what each op makes by itself (see `local`), on the first of the samples."""
    twins = {t.name: t for op in made.float_model.main.ops for t in op.outputs}
    found: dict[str, TensorError] = {}
    for feeds in samples[:MOST_LOCAL]:
        floats = {name: values if (by := made.factors.get(name)) is None
                  else values / by.astype(np.float32)
                  for name, values in work.watcher.run(feeds).items()}  # fmt: skip
        with one_thread_each():
            for couple in local.couples(made.model.main.ops, twins, set(floats)):
                for name, wanted, given in local.run(couple, floats):
                    found.setdefault(name, TensorError()).add(wanted, given)
    return found


def stored_weights(made: Quantised) -> dict[str, tuple[int, float]]:
    """(bits, signal-to-noise ratio) of each layer's weights, by the name of what it makes."""
    twins = layers(made.float_model.main)
    found = {}
    for name, twin in layers(made.model.main).items():
        stored = twin.op.inputs[next(iter(RULES[twin.op.name].weights))]
        known = twins.get(own_name(name))
        if known is None or stored is None or stored.data is None or stored.dtype.is_float:
            continue
        snr = signal_to_noise(known.weights, reals(stored.data, stored))
        found[own_name(name)] = stored.dtype.bits, snr
    return found
