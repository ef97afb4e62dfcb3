"""Cross-layer equalisation: channels of very different size share one scale badly, so the layers
that make them and the layers that read them trade factors. The float model stays what it was.

A positive factor passes through RELU and through what lies between (pooling, zero padding, adding
what has the same factor) as it is, so it must be the same for a whole region: in a residual network
for all blocks that add to one stream. RELU6 lets it pass only where the clamp is not reached: such
a channel may be scaled as long as its values stay below 6, one that calibration saw at 6 keeps its
size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ...ir import Array, Graph, Op, Tensor
from ..calibration.calibrate import Calibration, Statistics
from ..modes.rules import RULES
from ..modes.scheme import Floats
from .linear import is_linear, weights_of

PASSING = ("NONE", "RELU", "RELU6")
SUMS = ("ADD", "SUB")
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
class TiedRegion:
    """Tensors whose channels can only be scaled together, and the layers around them."""

    tensors: tuple[Tensor, ...]
    writers: tuple[Op, ...]
    readers: tuple[Op, ...]
    channels: int


def regions(graph: Graph) -> list[TiedRegion]:
    """Find where factors can be traded: nobody but layers makes or reads a region's tensors."""
    shown = {*graph.inputs, *graph.outputs}
    found: list[TiedRegion] = []
    met: set[Tensor] = set()
    for op in filter(is_linear, graph.ops):
        if op.outputs[0] not in met:
            tensors, region = _grown(op.outputs[0], shown)
            met |= tensors
            found += [region] if region else []
    return found


def _grown(first: Tensor, shown: set[Tensor]) -> tuple[set[Tensor], TiedRegion | None]:
    """The tensors that share the first one's factors as far as they were followed; None if one of
    them is made or read by something that lets no factor pass."""
    channels = first.shape[-1] if first.shape else 0
    members = {first: None}  # in the order in which they are met
    writers: dict[Op, None] = {}
    readers: dict[Op, None] = {}
    for tensor in (following := [first]):
        made = tensor.producer
        if tensor in shown or made is None or not tensor.users:
            return set(members), None
        for op in (made, *tensor.users):
            if op is made and _writes(op, channels):
                writers[op] = None
            elif op is not made and is_linear(op) and _reads(op, tensor, channels):
                readers[op] = None
            elif (tied := _tied(op, channels)) is None:
                return set(members), None
            else:
                more = [t for t in tied if t not in members]
                members |= dict.fromkeys(more)
                following += more
    return set(members), TiedRegion(tuple(members), tuple(writers), tuple(readers), channels)


def _own(op: Op) -> bool:
    """Say whether nobody else reads the weights of this op."""
    return len(weights_of(op).users) == 1


def _writes(op: Op, channels: int) -> bool:
    """Say whether the op is a layer whose channels can be made larger or smaller."""
    activation = op.attrs.get("fused_activation_function", "NONE")
    return (
        is_linear(op) and _own(op) and activation in PASSING and op.outputs[0].shape[-1] == channels
    )


def _reads(op: Op, tensor: Tensor, channels: int) -> bool:
    """Say whether the op's weights are multiplied with this tensor, channel by channel."""
    if op.inputs[RULES[op.name].data[0]] is not tensor or op.inputs.count(tensor) > 1:
        return False
    width = weights_of(op).shape[-1]
    return _own(op) and (
        width == channels
        or op.name == "DEPTHWISE_CONV_2D"
        or (op.name == "FULLY_CONNECTED" and width % channels == 0)
    )


def _tied(op: Op, channels: int) -> list[Tensor] | None:
    """The op's tensors, if a factor for each channel of one is the same factor in all of them."""
    if op.attrs.get("fused_activation_function", "NONE") not in ("NONE", "RELU"):
        return None
    out, data = op.outputs[0], op.inputs[:2] if op.name in SUMS else op.inputs[:1]
    tied = [t for t in data if t is not None and not t.is_constant]
    if len(tied) != len(data) or not out.shape or any(t.shape[-1] % channels for t in (out, *tied)):
        return None
    if op.name in SUMS:
        return [*tied, out] if all(t.shape == out.shape for t in tied) else None
    return [*tied, out] if op.name in BETWEEN and _keeps_channels(op) else None


def _keeps_channels(op: Op) -> bool:
    if op.name not in ("PAD", "MEAN"):
        return True
    source, places = op.inputs[0], op.inputs[1]
    if source is None or places is None or places.data is None:
        return False
    if op.name == "PAD":
        return not places.data[-1].any()
    rank = len(source.shape)
    return bool((np.atleast_1d(places.data) % rank != rank - 1).all())


# -- factors --------------------------------------------------------------------------------------


def factors(region: TiedRegion, calibration: Calibration) -> Floats | None:
    """What each channel is divided by; None where nothing is gained."""
    sizes = [s for t in region.tensors if (s := _size(calibration.tensors.get(t.name))) is not None]
    sizes = [s.reshape(-1, region.channels).max(axis=0) for s in sizes]
    if len(sizes) != len(region.tensors):
        return None
    # As small as the region's tensors are on the whole: each with the weight of its own step.
    shape = np.sqrt(np.mean([np.square(s / s.max()) for s in sizes], axis=0))
    fixed = (shape == 0) | _clamped(region, calibration)
    made = [_powered(shape, fixed, power) for power in POWERS]
    best = min(made, key=lambda by: _noise(region, sizes, by))
    before, after = (_noise(region, sizes, by) for by in (np.ones(region.channels), best))
    return best if after < WORTH * before else None


def _size(seen: Statistics | None) -> Floats | None:
    """The largest value of each channel, whatever its sign."""
    if seen is None or seen.lows is None or seen.highs is None:
        return None
    size = np.maximum(np.abs(seen.lows), np.abs(seen.highs)).astype(np.float64)
    return size if size.any() else None


def _clamped(region: TiedRegion, calibration: Calibration) -> npt.NDArray[np.bool_]:
    """Mark the channels that calibration saw at a RELU6's 6: they keep their size."""
    found = np.zeros(region.channels, bool)
    for op in region.writers:
        size = _size(calibration.tensors.get(op.outputs[0].name))
        if op.attrs.get("fused_activation_function") == "RELU6" and size is not None:
            found |= size >= SIX
    return found


def _powered(shape: Floats, fixed: npt.NDArray[np.bool_], power: float) -> Floats:
    """Compute factors: with power 1 all channels become about as large as the largest, with 0 they
    stay."""
    made = np.clip(ROOM * shape / shape.max(), 1 / MOST, 1.0) ** power
    return np.where(fixed, 1.0, made)


def _noise(region: TiedRegion, sizes: Sequence[Floats], by: Floats) -> float:
    """Estimate the noise of the readers' sums: what the steps of their inputs and weights add."""
    steps = sum(float((size / by).max() / CODES) ** 2 for size in sizes)
    largest = np.max(sizes, axis=0) / by
    return sum(_reader_noise(op, steps, largest, by) for op in region.readers)


def _reader_noise(op: Op, steps: float, size: Floats, by: Floats) -> float:
    weights = np.asarray(weights_of(op).data, np.float64)
    if op.name == "DEPTHWISE_CONV_2D":  # its weights have a scale for each channel
        taps = weights.reshape(-1, len(by), weights.shape[-1] // len(by))
        return float(steps * (np.square(by) * np.square(taps).sum(axis=(0, 2))).sum())
    rows = weights.reshape(len(weights), -1, len(by))
    inputs = steps * np.square(by) * np.square(rows).sum(axis=(0, 1))
    own_steps = np.abs(rows * by).max(axis=(1, 2)) / CODES * 2
    powers = np.square(PEAK * size).sum() * rows.shape[1]
    return float(inputs.sum() + np.square(own_steps).sum() * powers)


def equalise(graph: Graph, calibration: Calibration) -> dict[str, Floats]:
    """Trade factors in the float graph, and return them for each tensor that they changed."""
    found: dict[str, Floats] = {}
    for region in regions(graph):
        made = factors(region, calibration)
        if made is not None:
            trade(graph, region, made)
            found |= {t.name: np.tile(made, t.shape[-1] // region.channels) for t in region.tensors}
    return found


def trade(graph: Graph, region: TiedRegion, by: Floats) -> None:
    """Divide the region's channels by these factors, and multiply the weights that read them."""
    for op in region.writers:
        _divide(graph, op, by)
    for op in region.readers:
        _multiply(graph, op, by)


def _divide(graph: Graph, op: Op, by: Floats) -> None:
    row = RULES[op.name]
    place, axis = next(iter(row.weights.items()))
    shape = [1] * len(weights_of(op).shape)
    shape[axis] = -1
    _change(graph, op, place, lambda w: w / by.reshape(shape))
    if row.bias is not None and op.input(row.bias) is not None:
        _change(graph, op, row.bias, lambda b: b / by)


def _multiply(graph: Graph, op: Op, by: Floats) -> None:
    place = next(iter(RULES[op.name].weights))
    width = weights_of(op).shape[-1]
    # Each input channel of a depthwise layer has neighbouring outputs; a matrix behind a flattened
    # picture meets the channels again and again.
    spread = (
        np.repeat(by, width // len(by))
        if op.name == "DEPTHWISE_CONV_2D"
        else np.tile(by, width // len(by))
    )
    _change(graph, op, place, lambda w: w * spread)


def _change(graph: Graph, op: Op, place: int, how: Callable[[Floats], Floats]) -> None:
    old = op.operand(place)
    made = np.asarray(how(old.values.astype(np.float64)), np.float32)
    graph.set_input(op, place, graph.constant(old.name, made))


# -- statistics -----------------------------------------------------------------------------------


def stretched(made: Statistics, seen: Statistics, by: Floats) -> Statistics:
    """Statistics of some samples after equalisation, with the exact extremes of all: those of each
    channel before it, divided."""
    if seen.lows is None or seen.highs is None:
        return made
    lows, highs = seen.lows / by, seen.highs / by
    return replace(
        made,
        low=min(made.low, float(lows.min())),
        high=max(made.high, float(highs.max())),
        lows=lows.astype(np.float32),
        highs=highs.astype(np.float32),
    )


def divided(sums: Mapping[str, Array], by: Mapping[str, Floats]) -> dict[str, Array]:
    """A layer's sums in channels, after equalisation."""
    return {name: values / by[name] if name in by else values for name, values in sums.items()}
