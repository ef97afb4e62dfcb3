"""How far the tensors and weights of a quantised model are off, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import Array, Tensor
from ..calibration.calibrate import Statistics
from ..correcting.calibrated import Calibrated
from ..correcting.linear import own_name, real_weights, weighted_ops, weights_of
from ..correcting.parallel import one_thread_each
from ..correcting.probe import Probe
from ..writing.apply import Quantised
from . import local_error
from .judge import capped_snr, signal_to_noise

MOST_ROWS = 16  # samples that the rows of layers are measured on
MOST_LOCAL = 4  # of them for the ops by themselves, which are not compiled

Samples = Sequence[Mapping[str, Array]]


@dataclass
class LayerRow:
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


def layer_rows(calibrated: Calibrated, made: Quantised) -> list[LayerRow]:
    """Measure the activations that became codes: scales, what they clip, how far they are off."""
    samples = calibrated.judging
    errors, weights = tensor_errors(calibrated, made, samples), stored_weights(made)
    alone = local_errors(calibrated, made, samples)
    fed = {t.name for t in made.float_model.main.inputs}
    rows = []
    for tensor in (t for op in made.model.main.ops for t in op.outputs):
        name = own_name(tensor.name)
        seen = made.calibration.tensors.get(name)
        if seen is None or tensor.quant is None or not tensor.quant.is_set:
            continue
        row = _row(name, tensor, seen)
        if name in errors:
            row.snr, row.rmse_over_scale = errors[name].snr, errors[name].rmse / row.scale
        if name in alone:
            row.local_rmse_over_scale = alone[name].rmse / row.scale
        elif name in fed:  # nothing came in before it
            row.local_rmse_over_scale = row.rmse_over_scale
        row.weight_bits, row.weight_snr = weights.get(name, (None, None))
        rows.append(row)
    return rows


def _row(name: str, tensor: Tensor, seen: Statistics) -> LayerRow:
    quant = tensor.quantisation
    scale, zero = float(quant.scale[0]), int(quant.zero_point[0])
    low, high = ((code - zero) * scale for code in tensor.dtype.bounds)
    values, counts = seen.values()
    beyond = counts[(values < low - scale / 2) | (values > high + scale / 2)].sum()
    producer = tensor.producer.name if tensor.producer else ""
    clipped = float(beyond / counts.sum())
    return LayerRow(name, producer, tensor.dtype.bits, seen.low, seen.high, scale, zero, clipped)


@dataclass
class TensorError:
    """The error of one tensor, summed over samples."""

    power: float = 0.0
    noise: float = 0.0
    count: int = 0

    def add(self, wanted: Array, given: Array) -> None:
        self.power += float(np.square(wanted, dtype=np.float64).sum())
        self.noise += float(np.square(np.subtract(wanted, given), dtype=np.float64).sum())
        self.count += wanted.size

    @property
    def snr(self) -> float:
        return capped_snr(self.power, self.noise)

    @property
    def rmse(self) -> float:
        return math.sqrt(self.noise / max(self.count, 1))


def tensor_errors(
    calibrated: Calibrated, made: Quantised, samples: Samples
) -> dict[str, TensorError]:
    """Measure every tensor that both models have, by name, on the first of the samples."""
    probe = Probe(made.model, None, calibrated.threads)
    found: dict[str, TensorError] = {}
    for feeds in samples[:MOST_ROWS]:
        given, wanted = probe.run(feeds), _float_values(calibrated, made, feeds)
        for name in given.keys() & wanted.keys():
            if given[name].shape == wanted[name].shape:
                found.setdefault(name, TensorError()).add(wanted[name], given[name])
    return found


def local_errors(
    calibrated: Calibrated, made: Quantised, samples: Samples
) -> dict[str, TensorError]:
    """Measure what each op makes by itself (see `local_error`), on the first of the samples."""
    twins = {t.name: t for op in made.float_model.main.ops for t in op.outputs}
    found: dict[str, TensorError] = {}
    for feeds in samples[:MOST_LOCAL]:
        floats = _float_values(calibrated, made, feeds)
        with one_thread_each():
            for pair in local_error.op_pairs(made.model.main.ops, twins, set(floats)):
                for name, wanted, given in local_error.run(pair, floats):
                    found.setdefault(name, TensorError()).add(wanted, given)
    return found


def _float_values(
    calibrated: Calibrated, made: Quantised, feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of the float model that was quantised: equalised channels are divided."""
    return {
        name: values if (by := made.factors.get(name)) is None else values / by.astype(np.float32)
        for name, values in calibrated.observer.run(feeds).items()
    }


def stored_weights(made: Quantised) -> dict[str, tuple[int, float]]:
    """The bits and the signal-to-noise ratio of each layer's weights, by the name of its result."""
    floats = weighted_ops(made.float_model.main)
    found = {}
    for name, layer in weighted_ops(made.model.main).items():
        stored, known = weights_of(layer.op), floats.get(own_name(name))
        if known is None or stored.dtype.is_float:
            continue
        snr = signal_to_noise(known.weights, real_weights(layer.op))
        found[own_name(name)] = stored.dtype.bits, snr
    return found
