"""Inputs for a measurement: made at random, or read from the user's files."""

from __future__ import annotations

import numpy as np

from ..ir import Model
from ..ir.types import Array
from ..runtime.inputs import quantize_array


def feeds(model: Model, seed: int = 0) -> list[Array]:
    """Plausible inputs in the order of the main graph's: unit normal reals, quantised where the
    model takes integers with a scale, small numbers where it takes plain integers."""
    rng = np.random.default_rng(seed)
    made: list[Array] = []
    for tensor in model.main.inputs:
        reals = rng.standard_normal(tensor.shape).astype(np.float32)
        if tensor.dtype.is_float:
            made.append(reals.astype(tensor.dtype.numpy))
        elif tensor.quant is not None and tensor.quant.scale.size:
            made.append(quantize_array(reals, tensor))
        else:
            made.append(rng.integers(0, 100, tensor.shape).astype(tensor.dtype.numpy))
    return made
