"""Random numbers: uniform, normal, and drawn from logits."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial

import numpy as np

from ..ir import Array, Op, Shape
from .base import (
    INDEX,
    State,
    attr,
    define,
    elements,
    ints,
    on,
    require,
    scalar,
    shaped,
    sized,
)
from .random_bits import Philox


def _generator(op: Op, state: State) -> Philox:
    """The op's own stream, which goes on from run to run; without seeds it differs every time."""
    if id(op) not in state.generators:
        # LiteRT keeps 32 signed bits of the seeds in the file.
        seeds = [(attr(op, name) + 2**31) % 2**32 - 2**31 for name in ("seed", "seed2")]
        if not any(seeds):
            seeds = [secrets.randbits(64), secrets.randbits(64)]
        state.generators[id(op)] = Philox(*seeds)
    found: Philox = state.generators[id(op)]
    return found


def _uniform(words: Array) -> Array:
    """Floats in [0, 1) from the low 23 bits."""
    return (words & np.uint32(0x7FFFFF) | np.uint32(0x3F800000)).view(np.float32) - np.float32(1)


def _normal(words: Array) -> Array:
    """Box and Muller: a pair of words makes a pair of numbers."""
    pairs = _uniform(words).reshape(-1, 2)
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(pairs[:, 0], np.float32(1e-7))))
    angle = (2 * np.pi * pairs[:, 1].astype(np.float64)).astype(np.float32)
    return np.stack([np.sin(angle) * radius, np.cos(angle) * radius], axis=1)


def _random(op: Op, dims: Array, state: State, draw: Callable[[Array], Array]) -> Array:
    """A run uses whole blocks: what is left of the last one is lost."""
    shape = sized(op, ints(dims))
    count = elements(shape)
    words = _generator(op, state).blocks(-(-count // 4))
    return draw(words).reshape(-1)[:count].reshape(shape)


for _name, _draw in (("RANDOM_UNIFORM", _uniform), ("RANDOM_STANDARD_NORMAL", _normal)):
    define(
        _name,
        infer=shaped(lambda op, dims: dims, data=[], by=[0]),
        evaluate=on(partial(_random, draw=_draw)),
        family="random_numbers",
        takes="shape: i32 -> f32",
        stateful=True,
        notes="the same numbers as LiteRT for the same seeds",
    )


def _samples(op: Op, logits: Shape, number: list[int]) -> Shape:
    require(len(logits) == 2 and logits[1] > 0, op, f"logits of shape {logits} do not fit")
    return logits[0], int(scalar(op, number, "the number of samples"))


def _uniform_double(words: Array) -> Array:
    """Doubles in [0, 1): 20 bits of one word, 32 of the next."""
    first, second = words.reshape(-1, 2).T
    bits = first.astype(np.uint64)
    bits &= np.uint64(0xFFFFF)
    bits <<= np.uint64(32)
    bits |= second
    bits |= np.uint64(1023 << 52)
    numbers: Array = bits.view(np.float64)
    numbers -= 1.0
    return numbers


def _multinomial(op: Op, logits: Array, number: Array, state: State) -> Array:
    """Classes drawn by inverting each row's cumulative distribution; infinite logits count as 0."""
    batch, samples = sized(op, _samples(op, logits.shape, ints(number)))
    generator = _generator(op, state)
    used = -(-batch * samples // 2)
    drawn = _uniform_double(generator.blocks(used))[: batch * samples].reshape(batch, samples)
    # Each run takes this many blocks of the stream, used or not.
    generator.skip(batch * (-(-samples // 4) * 4) * 2 * 256 - used)
    finite, real = np.isfinite(logits), logits.astype(np.float64)
    top = np.where(finite, real, np.finfo(np.float32).min).max(axis=1, keepdims=True)
    totals = np.cumsum(np.where(finite, np.exp(real - top), 0.0), axis=1)
    result = np.empty((batch, samples), op.outputs[0].dtype.numpy)
    for row in range(batch):
        result[row] = np.searchsorted(totals[row], totals[row, -1] * drawn[row], side="right")
    return result


define(
    "MULTINOMIAL",
    infer=shaped(_samples, by=[1]),
    evaluate=on(_multinomial),
    family="random_numbers",
    takes=f"x[2]: f32, count: i32 -> {INDEX}",
    stateful=True,
    notes="the same numbers as LiteRT for seeds",
)
