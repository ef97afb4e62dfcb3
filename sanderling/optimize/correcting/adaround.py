"""Rounding weights so that the layer's sums are right, not each weight by itself.

The objective is AdaRound's: the squared error of a layer's sums on real inputs, each weight rounded
up or down. With the inputs' Gram matrix G it is a quadratic form d' G d in the rounding errors d of
an output channel, so it needs no gradient steps: each weight in turn takes the code that is best
given the others, for all channels at once, until nothing changes. Same data, same answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from ...ir import Array, Graph, Op
from ...ops.conv import window_axes
from ...ops.geometry import Axis, pad_into, windows
from ..modes.scheme import Floats
from .linear import is_linear, own_name
from .sequential import SequentialRun

ROWS = 8192  # windows looked at in all
DEPTHWISE_ROWS = 512  # a channel has few taps
SWEEPS = 4
BLOCK = 64
# A ridge on G, as a share of its mean diagonal: weights that the samples hardly use stay near. With
# fewer windows than weights G says little of inputs to come, and the share grows.
RIDGE = 0.01
KINDS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")


def round_jointly(
    weights: Floats, gram: Floats, low: int, high: int, ridge: float = RIDGE
) -> Floats:
    """Round weights [k, channels], in units of their scale, up or down to the codes that make
    (codes - weights)' gram (codes - weights) small for each channel."""
    gram = gram + np.eye(len(gram)) * ridge * max(float(np.trace(gram)) / len(gram), 1e-12)
    codes = np.clip(np.rint(weights), low, high)
    for _ in range(SWEEPS):
        # The pull of all errors on each weight; kept up to date block by block.
        pulls = gram @ (codes - weights)
        changed = False
        for start in range(0, len(gram), BLOCK):
            block = slice(start, start + BLOCK)
            moves = _round_block(
                weights[block], codes[block], pulls[block], gram[block, block], low, high
            )
            if moves.any():
                changed = True
                pulls[start + BLOCK :] += gram[start + BLOCK :, block] @ moves
        if not changed:
            break
    return codes


def _round_block(
    weights: Floats, codes: Floats, pulls: Floats, gram: Floats, low: int, high: int
) -> Floats:
    """Change codes and pulls in place, and return by how much the codes moved."""
    moves = np.zeros_like(codes)
    for i in range(len(codes)):
        best = _nearest(weights[i], codes[i], pulls[i], gram[i, i], low, high)
        moves[i] = best - codes[i]
        if moves[i].any():
            codes[i] = best
            pulls += gram[:, i : i + 1] * moves[i]
    return moves


def round_channels(weights: Floats, grams: Floats, low: int, high: int) -> Floats:
    """Do the same as round_jointly where each channel has a gram of its own: [k, k, channels]."""
    k = len(grams)
    middle = np.maximum(np.einsum("iic->c", grams) / k, 1e-12)
    grams = grams + np.eye(k)[..., None] * RIDGE * middle
    codes = np.clip(np.rint(weights), low, high)
    for _ in range(SWEEPS):
        before = codes.copy()
        for i in range(k):
            pull = (grams[i] * (codes - weights)).sum(axis=0)
            codes[i] = _nearest(weights[i], codes[i], pull, grams[i, i], low, high)
        if np.array_equal(before, codes):
            break
    return codes


def _nearest(
    weight: Floats, code: Floats, pull: Floats, own: Floats | float, low: int, high: int
) -> Floats:
    """The code that is best given the others: the weight less what they pull at it."""
    others = pull / own - (code - weight)
    floor = np.floor(weight)
    return np.clip(np.clip(np.rint(weight - others), floor, floor + 1), low, high)


@dataclass
class AdaRound:
    """Visits the linear ops of a sequential run and rounds their weights by what reaches them."""

    reals: dict[str, Array]  # the float weights, by the name of what the layer makes
    seed: int = 0
    gains: dict[str, float] = field(default_factory=dict)  # error after / before, by layer

    def __call__(self, op: Op, run: SequentialRun) -> None:
        name = own_name(op.outputs[0].name)
        if name not in self.reals or not adjustable(op):
            return
        source, weights = op.operand(0), op.operand(1)
        rows = some_rows(op, run.reals(source), np.random.default_rng(self.seed))
        low, high = weights.dtype.bounds
        scale = weights.quantisation.scale.astype(np.float64)
        round_op = _round_depthwise if op.name == "DEPTHWISE_CONV_2D" else _round_product
        codes, gain = round_op(self.reals[name], scale, rows, low + 1, high)
        weights.data = codes.reshape(weights.shape).astype(weights.values.dtype)
        self.gains[name] = gain


def _round_product(
    reals: Array, scale: Floats, rows: Array, low: int, high: int
) -> tuple[Floats, float]:
    """reals [channels, ..., k]: each output channel is a product with the whole row."""
    wanted = reals.reshape(len(reals), -1).T / scale
    gram = (rows.T @ rows / len(rows)).astype(np.float64)
    codes = round_jointly(wanted, gram, low, high, max(RIDGE, len(gram) / len(rows)))
    gain = _error(codes - wanted, gram) / max(_error(np.rint(wanted) - wanted, gram), 1e-30)
    return codes.T, gain


def _round_depthwise(
    reals: Array, scale: Floats, rows: Array, low: int, high: int
) -> tuple[Floats, float]:
    """reals [1, h, w, channels]: each output channel sees the taps of its own input channel."""
    taps, channels = reals.shape[1] * reals.shape[2], reals.shape[3]
    wanted = reals.reshape(taps, channels) / scale
    # [input channels, taps, rows]
    seen = np.ascontiguousarray(rows.reshape(len(rows), taps, -1).transpose(2, 1, 0))
    grams = (seen @ seen.transpose(0, 2, 1) / len(rows)).transpose(1, 2, 0)
    grams = np.repeat(grams.astype(np.float64), channels // seen.shape[0], axis=2)
    codes = round_channels(wanted, grams, low, high)
    before, after = (
        float(np.einsum("ic,ijc,jc->", e, grams, e, optimize=True))
        for e in (np.rint(wanted) - wanted, codes - wanted)
    )
    return codes, after / max(before, 1e-30)


def adjustable(op: Op) -> bool:
    """Say whether the op is a product whose weights are codes that nobody else reads. A convolution
    of grouped channels is none: each group has a matrix of its own."""
    source, weights = op.input(0), op.input(1)
    if op.name not in KINDS or source is None or weights is None:
        return False
    if weights.data is None or weights.quant is None or len(weights.users) > 1:
        return False
    return op.name != "CONV_2D" or weights.shape[-1] == source.shape[-1]


def sums_of(op: Op, rows: Array, weights: Array) -> Array:
    """What the layer makes of some_rows(): [windows, channels], without bias and activation."""
    if op.name != "DEPTHWISE_CONV_2D":
        return np.asarray(rows @ weights.reshape(len(weights), -1).T)
    taps = weights.reshape(-1, weights.shape[-1])
    seen: Array = rows.reshape(len(rows), len(taps), -1)
    seen = np.repeat(seen, weights.shape[-1] // seen.shape[-1], axis=2)
    return np.asarray(np.einsum("ntc,tc->nc", seen, taps))


def effort(graph: Graph) -> float:
    """Estimate the multiply-adds that AdaRound spends on the layers."""
    return float(sum(_effort(op) for op in graph.ops if op.name in KINDS and is_linear(op)))


def _effort(op: Op) -> float:
    weights = op.operand(1)
    if op.name == "DEPTHWISE_CONV_2D":
        taps = weights.shape[1] * weights.shape[2]
        return float(taps * taps * weights.shape[3] * (DEPTHWISE_ROWS + SWEEPS))
    depth = math.prod(weights.shape[1:])
    return float(depth * depth * (ROWS + SWEEPS * weights.shape[0]))


def _error(errors: Floats, gram: Floats) -> float:
    return float((errors * (gram @ errors)).sum())


def some_rows(op: Op, samples: list[Array], rng: np.random.Generator) -> Array:
    """What the weights are multiplied with: [windows, taps * input channels], a random choice."""
    most = DEPTHWISE_ROWS if op.name == "DEPTHWISE_CONV_2D" else ROWS
    each = max(1, most // len(samples))
    return np.concatenate([_windows(op, s, each, rng) for s in samples])


def _windows(op: Op, x: Array, most: int, rng: np.random.Generator) -> Array:
    weights = op.operand(1)
    if op.name == "FULLY_CONNECTED":
        flat = x.reshape(-1, weights.shape[1])
        return flat[_some(len(flat), most, rng)]
    axes: list[Axis] = window_axes(op, x.shape[1:3], weights.shape[1:3])
    padded, inside = pad_into(x.shape, axes, np.float32)
    inside[...] = x
    view = windows(padded, axes)  # [n, h, w, taps, taps, c]
    count = view.shape[0] * view.shape[1] * view.shape[2]
    n, h, w = np.unravel_index(_some(count, most, rng), view.shape[:3])
    return view[n, h, w].reshape(len(n), -1)


def _some(count: int, most: int, rng: np.random.Generator) -> Array:
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))
