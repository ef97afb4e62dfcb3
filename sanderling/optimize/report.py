"""What a quantisation did, layer by layer, and what it cost: for people, JSON and pages."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..format import dump
from ..ir import Array, Model
from .correct import layers, own_name
from .recipe import Choice
from .rules import RULES
from .solve import Solution
from .walk import reals
from .xnnpack import refused

if TYPE_CHECKING:
    from .quantize import Quantised
    from .work import Work

SCHEMA = "sanderling.quantize/1"
MOST_SNR = 120.0  # dB, of what is equal
LEAST_GAIN = 0.05  # dB that are worth something
MOST_ROWS = 16  # samples that the rows of layers are measured on


@dataclass
class Candidate:
    """One way that was tried, judged on samples that calibrated nothing."""

    name: str
    snr: float  # dB of the outputs (of what a softmax reads), mean over samples
    agreement: float  # share of samples whose largest output is the float model's
    chosen: bool = False

    snrs: list[float] = field(default_factory=list, repr=False)  # by sample

    @classmethod
    def of(cls, name: str, wanted: Sequence[Mapping[str, Array]],
           given: Sequence[Mapping[str, Array]], judged: Sequence[str],
           outputs: Sequence[str]) -> Candidate:  # fmt: skip
        snrs = [float(np.mean([signal_to_noise(w[n], g[n]) for n in judged]))
                for w, g in zip(wanted, given, strict=True)]  # fmt: skip
        same = [w[n].argmax() == g[n].argmax() for w, g in zip(wanted, given, strict=True)
                for n in outputs if w[n].size > 1]  # fmt: skip
        return cls(name, float(np.mean(snrs)), float(np.mean(same)) if same else 1.0, snrs=snrs)

    def beats(self, other: Candidate) -> bool:
        """Sample by sample, by more than one standard error; and where it names the first class
        less often, by more than three."""
        gains = np.subtract(self.snrs, other.snrs)
        error = float(gains.std(ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
        needed = 1 if self.agreement >= other.agreement else 3
        return float(gains.mean()) > max(needed * error, LEAST_GAIN)


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
    rmse_over_scale: float | None = None  # 0.29 is what rounding alone costs
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
    samples: int = 0
    layers: list[Layer] = field(default_factory=list)
    candidates: list[Candidate] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refused: list[dict[str, str]] = field(default_factory=list)  # what XNNPACK will not take
    accuracy: dict[str, Any] = field(default_factory=dict)  # of a task, before and after
    latency: list[dict[str, Any]] = field(default_factory=list)  # by engine, before and after
    target: dict[str, Any] = field(default_factory=dict)  # what was asked, what was reached
    trials: list[Trial] = field(default_factory=list)

    @classmethod
    def of(cls, source: Model, ready: Model, made: Model, solution: Solution,
           rules: Sequence[Choice]) -> Report:  # fmt: skip
        before, after = bytes(dump(source)), bytes(dump(made))
        counted = Counter(m.name for m in solution.modes.values())
        floats = [{"op": op.name, "output": op.outputs[0].name, "reason": why}
                  for op, why in solution.reasons.items()]  # fmt: skip
        slow = [{"op": op.name, "output": op.outputs[0].name if op.outputs else "", "reason": why}
                for op, why in refused(made)]  # fmt: skip
        return cls(source.source, dict(counted), len(before), len(after), _zipped(before),
                   _zipped(after), [asdict(r) for r in rules], floats, refused=slow)  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self)


def _zipped(content: bytes) -> int:
    return len(zlib.compress(content, 6))


def layer_rows(work: Work, made: Quantised) -> list[Layer]:
    """The activations that became codes: their scales, what they clip, how far they are off."""
    calibration = work.variant(bool(made.factors)).job.calibration
    assert calibration is not None
    errors, weights = tensor_errors(work, made, work.held), stored_weights(made)
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
