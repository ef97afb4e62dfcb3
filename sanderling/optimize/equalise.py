"""Cross-layer equalisation: channels of very different size share one scale badly, so the layer
that makes them and the layer that reads them trade factors. The float model stays what it was.

A positive factor passes through RELU and through what lies between (pooling, zero padding) as it
is. RELU6 lets it pass only where the clamp is not reached: such a channel may be scaled as long as
its values stay below 6, one that calibration saw at 6 keeps its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ..ir import Array, Graph, Op, Tensor
from .calibrate import Calibration, Statistics
from .rules import RULES
from .walk import is_layer

Floats = npt.NDArray[np.float64]
PASSING = ("NONE", "RELU", "RELU6")
BETWEEN = ("RELU", "LEAKY_RELU", "MAX_POOL_2D", "AVERAGE_POOL_2D", "PAD", "RESHAPE", "SQUEEZE",
           "MEAN")  # fmt: skip
SIX = 6.0 * (1 - 1e-3)  # a channel that comes so near has been clamped
# A channel's largest value is known less well than the whole tensor's: it is left room to grow.
ROOM = 2.0
# A channel that calibration hardly saw is not blown up beyond this.
MOST = 2.0**12
WORTH = 0.5  # of the noise: a change that leaves more is not made
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
CODES = 255.0
PEAK = 0.25  # a channel's root mean square, as a share of its largest value


@dataclass(frozen=True)
class Pair:
    """Two layers and the tensors on the way from one to the other, in order."""

    first: Op
    second: Op
    tensors: tuple[Tensor, ...]

    @property
    def channels(self) -> int:
        return self.tensors[0].shape[-1]


def pairs(graph: Graph) -> list[Pair]:
    """Where factors can be traded: a layer whose result one other layer reads, and nobody else."""
    shown = set(graph.outputs)
    found = (_pair(op, shown) for op in graph.ops if is_layer(op) and _own(op))
    return [pair for pair in found if pair is not None]


def _pair(first: Op, shown: set[Tensor]) -> Pair | None:
    if first.attrs.get("fused_activation_function", "NONE") not in PASSING:
        return None
    tensors = [first.outputs[0]]
    channels = tensors[0].shape[-1] if tensors[0].shape else 0
    while True:
        users = set(tensors[-1].users)
        if len(users) != 1 or tensors[-1] in shown:
            return None
        reader = next(iter(users))
        if is_layer(reader):
            whole = Pair(first, reader, tuple(tensors))
            return whole if _own(reader) and _reads(reader, tensors[-1], channels) else None
        if not _passes(reader, tensors[-1], channels):
            return None
        tensors.append(reader.outputs[0])


def _own(op: Op) -> bool:
    """Nobody else reads its weights."""
    weights = _weights(op)
    return len(weights.users) == 1


def _weights(op: Op) -> Tensor:
    weights = op.inputs[next(iter(RULES[op.name].weights))]
    assert weights is not None
    return weights


def _reads(op: Op, tensor: Tensor, channels: int) -> bool:
    """The tensor is what the weights are multiplied with, channel by channel."""
    if op.inputs[RULES[op.name].data[0]] is not tensor or op.inputs.count(tensor) > 1:
        return False
    width = _weights(op).shape[-1]
    return width == channels or op.name == "DEPTHWISE_CONV_2D" or (
        op.name == "FULLY_CONNECTED" and width % channels == 0)  # fmt: skip


def _passes(op: Op, tensor: Tensor, channels: int) -> bool:
    """A factor for each channel before the op is the same factor after it."""
    if op.name not in BETWEEN or op.inputs[0] is not tensor or op.inputs.count(tensor) > 1:
        return False
    if op.attrs.get("fused_activation_function", "NONE") not in ("NONE", "RELU"):
        return False
    out = op.outputs[0]
    if op.name == "PAD":
        pads = op.inputs[1]
        return pads is not None and pads.data is not None and not pads.data[-1].any()
    if op.name == "MEAN":
        axes = op.inputs[1]
        rank = len(tensor.shape)
        return axes is not None and axes.data is not None and bool(
            (np.atleast_1d(axes.data) % rank != rank - 1).all())  # fmt: skip
    return bool(out.shape) and out.shape[-1] % channels == 0


# -- factors --------------------------------------------------------------------------------------


def factors(pair: Pair, seen: Statistics | None) -> Floats | None:
    """What each channel is divided by; None where nothing is gained."""
    if seen is None or seen.lows is None or seen.highs is None:
        return None
    size = np.maximum(np.abs(seen.lows), np.abs(seen.highs)).astype(np.float64)
    if len(size) != pair.channels or not size.any():
        return None
    free = pair.second.name == "DEPTHWISE_CONV_2D"  # its weights have a scale for each channel
    made = [_powered(pair, size, power) for power in (POWERS[-1:] if free else POWERS)]
    best = min(made, key=lambda by: _noise(pair, size, by))
    before, after = (_noise(pair, size, by) for by in (np.ones(len(size)), best))
    return best if after < WORTH * before else None


def _powered(pair: Pair, size: Floats, power: float) -> Floats:
    """1: all channels become about as large as the largest; 0: they stay. So does a channel that
    calibration saw clamped, and one that it never saw alive."""
    made = np.clip(ROOM * size / size.max(), 1 / MOST, 1.0) ** power
    clamped = pair.first.attrs.get("fused_activation_function") == "RELU6"
    made[(size == 0) | (clamped & (size >= SIX))] = 1.0
    return np.asarray(made)


def _noise(pair: Pair, size: Floats, by: Floats) -> float:
    """Of the second layer's sums, about: what its inputs' steps and its weights' steps add."""
    weights = np.asarray(_weights(pair.second).data, np.float64)
    step = (size / by).max() / CODES
    if pair.second.name == "DEPTHWISE_CONV_2D":
        taps = weights.reshape(-1, len(by), weights.shape[-1] // len(by))
        return float((np.square(step * by) * np.square(taps).sum(axis=(0, 2))).sum())
    rows = weights.reshape(len(weights), -1, len(by))
    inputs = np.square(step * by) * np.square(rows).sum(axis=(0, 1))
    steps = np.abs(rows * by).max(axis=(1, 2)) / CODES * 2
    powers = np.square(PEAK * size / by).sum() * rows.shape[1]
    return float(inputs.sum() + np.square(steps).sum() * powers)


def equalise(graph: Graph, calibration: Calibration) -> dict[str, Floats]:
    """Trade factors in the float graph; returns them for each tensor that they changed."""
    found: dict[str, Floats] = {}
    for pair in pairs(graph):
        made = factors(pair, calibration.tensors.get(pair.tensors[0].name))
        if made is not None:
            _divide(graph, pair.first, made)
            _multiply(graph, pair.second, made)
            found |= {t.name: np.tile(made, t.shape[-1] // pair.channels) for t in pair.tensors}
    return found


def _divide(graph: Graph, op: Op, by: Floats) -> None:
    row = RULES[op.name]
    place, axis = next(iter(row.weights.items()))
    shape = [1] * len(_weights(op).shape)
    shape[axis] = -1
    _change(graph, op, place, lambda w: w / by.reshape(shape))
    if row.bias is not None and op.input(row.bias) is not None:
        _change(graph, op, row.bias, lambda b: b / by)


def _multiply(graph: Graph, op: Op, by: Floats) -> None:
    place = next(iter(RULES[op.name].weights))
    width = _weights(op).shape[-1]
    # Each input channel of a depthwise layer has neighbouring outputs; a matrix behind a flattened
    # picture meets the channels again and again.
    spread = np.repeat(by, width // len(by)) if op.name == "DEPTHWISE_CONV_2D" else np.tile(
        by, width // len(by))  # fmt: skip
    _change(graph, op, place, lambda w: w * spread)


def _change(graph: Graph, op: Op, place: int, how: object) -> None:
    old = op.inputs[place]
    assert old is not None and old.data is not None and callable(how)
    made = np.asarray(how(old.data.astype(np.float64)), np.float32)
    graph.set_input(op, place, graph.constant(old.name, made))


# -- statistics -----------------------------------------------------------------------------------


def stretched(made: Statistics, seen: Statistics, by: Floats) -> Statistics:
    """Statistics of some samples after equalisation, with the exact extremes of all: those of each
    channel before it, divided."""
    if seen.lows is None or seen.highs is None:
        return made
    lows, highs = seen.lows / by, seen.highs / by
    return replace(made, low=min(made.low, float(lows.min())),
                   high=max(made.high, float(highs.max())),
                   lows=lows.astype(np.float32), highs=highs.astype(np.float32))  # fmt: skip


def divided(sums: Mapping[str, Array], by: Mapping[str, Floats]) -> dict[str, Array]:
    """A layer's sums in channels, after equalisation."""
    return {name: values / by[name] if name in by else values for name, values in sums.items()}
