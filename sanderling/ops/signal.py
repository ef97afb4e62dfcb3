"""Fourier transform, complex parts, random numbers."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence

import numpy as np

from ..ir import Array, Op, Shape
from .base import (
    Spec,
    Specs,
    State,
    attr,
    define,
    elements,
    out_spec,
    present,
    require,
    same_as_input,
    sized,
)

# -- Fourier transform and complex numbers ------------------------------------------------------


def _rfft_shape(op: Op, shape: Shape, lengths: Array) -> Shape:
    require(len(shape) >= 2, op, f"the input has rank {len(shape)}, 2 or more are needed")
    require(lengths.size == 2, op, f"{lengths.size} lengths, 2 are needed")
    height, width = (int(n) for n in lengths.reshape(-1))
    require(height > 0 and width > 0, op, f"lengths {height} and {width} are not positive")
    return sized(op, (*shape[:-2], height, width // 2 + 1))


def _infer_rfft(op: Op, specs: Specs) -> Spec:
    x, lengths = present(specs, op), present(specs, op, 1)
    if x.shape is None or lengths.value is None:
        return out_spec(op, None)
    return out_spec(op, _rfft_shape(op, x.shape, lengths.value))


def _rfft(op: Op, inputs: Sequence[Array]) -> Array:
    """Cut or padded with zeros to the lengths; computed in float64, as the kernel does."""
    x, lengths = inputs
    _rfft_shape(op, x.shape, lengths)
    height, width = (int(n) for n in lengths.reshape(-1))
    return np.fft.rfft2(x.astype(np.float64), s=(height, width)).astype(np.complex64)


def _rfft_macs(op: Op) -> int:
    """About 2 n log2 n multiply-adds for a transform of n complex points."""
    points = elements(op.outputs[0].shape)
    return int(2 * points * math.log2(max(2, points)))


define("RFFT2D", infer=_infer_rfft, evaluate=_rfft, family="signal", arity=2, types="f32",
       macs=_rfft_macs, notes="any lengths; LiteRT takes powers of two only")  # fmt: skip

for _name, _part in (("REAL", np.real), ("IMAG", np.imag), ("COMPLEX_ABS", np.abs)):
    define(
        _name,
        infer=same_as_input,
        evaluate=lambda op, inputs, part=_part: part(inputs[0]).copy(),
        family="signal",
        types="c64 c128",
    )


# -- random numbers -----------------------------------------------------------------------------

_MASK = 2**32 - 1


class Philox:
    """Philox4x32-10 (Salmon et al., 2011): a keyed bijection of a 128-bit counter.

    As TensorFlow seeds it: the first seed is the key, the second the upper half of the counter.
    """

    def __init__(self, seed: int, seed2: int) -> None:
        self.key = seed & _MASK, seed >> 32 & _MASK
        self.counter = (seed2 & (2**64 - 1)) << 64

    def blocks(self, count: int) -> Array:
        """The next count blocks of four 32-bit words, one a row."""
        low = np.uint64(self.counter & (2**64 - 1)) + np.arange(count, dtype=np.uint64)
        high = np.uint64(self.counter >> 64) + (low < np.uint64(self.counter & (2**64 - 1)))
        self.skip(count)
        mask, half = np.uint64(_MASK), np.uint64(32)
        a, b, c, d = low & mask, low >> half, high & mask, high >> half
        for step in range(10):
            key0 = np.uint64(self.key[0] + step * 0x9E3779B9 & _MASK)
            key1 = np.uint64(self.key[1] + step * 0xBB67AE85 & _MASK)
            first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
            a, b = (second >> half) ^ b ^ key0, second & mask
            c, d = (first >> half) ^ d ^ key1, first & mask
        return np.stack([a, b, c, d], axis=1).astype(np.uint32)

    def skip(self, count: int) -> None:
        self.counter = (self.counter + count) % 2**128


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


def _infer_random(op: Op, specs: Specs) -> Spec:
    shape = present(specs, op).value
    return out_spec(op, None if shape is None else sized(op, shape.reshape(-1)))


def _random(op: Op, shape: Shape, state: State, draw: Callable[[Array], Array]) -> Array:
    """A run uses whole blocks: what is left of the last one is lost."""
    count = math.prod(shape)
    words = _generator(op, state).blocks(-(-count // 4))
    return draw(words).reshape(-1)[:count].reshape(shape)


for _name, _draw in (("RANDOM_UNIFORM", _uniform), ("RANDOM_STANDARD_NORMAL", _normal)):
    define(
        _name,
        infer=_infer_random,
        evaluate=lambda op, inputs, state, draw=_draw: _random(
            op, sized(op, inputs[0].reshape(-1)), state, draw
        ),
        family="signal",
        types="i32",
        stateful=True,
        notes="the same numbers as LiteRT for the same seeds",
    )


def _samples(op: Op, logits: Shape, number: Array) -> tuple[int, int]:
    require(len(logits) == 2 and logits[1] > 0, op, f"logits of shape {logits} do not fit")
    require(number.size == 1, op, "the number of samples must be a scalar")
    batch, samples = sized(op, (logits[0], number.reshape(-1)[0]))
    return batch, samples


def _infer_multinomial(op: Op, specs: Specs) -> Spec:
    logits, number = present(specs, op), present(specs, op, 1)
    if logits.shape is None or number.value is None:
        return out_spec(op, None)
    return out_spec(op, _samples(op, logits.shape, number.value))


def _uniform_double(words: Array) -> Array:
    """Doubles in [0, 1): 20 bits of one word, 32 of the next."""
    pairs = words.reshape(-1, 2).astype(np.uint64)
    bits = (pairs[:, 0] & np.uint64(0xFFFFF)) << np.uint64(32) | pairs[:, 1]
    return (bits | np.uint64(1023 << 52)).view(np.float64) - 1.0


def _multinomial(op: Op, inputs: Sequence[Array], state: State) -> Array:
    """Classes drawn by inverting each row's cumulative distribution; infinite logits count as 0."""
    logits, number = inputs
    batch, samples = _samples(op, logits.shape, number)
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


define("MULTINOMIAL", infer=_infer_multinomial, evaluate=_multinomial, family="signal", arity=2,
       types="f32", stateful=True, notes="the same numbers as LiteRT for seeds")  # fmt: skip
