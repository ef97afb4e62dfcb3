"""How tensors lie in the memory of a device: the last dimension in slices of four elements.

A tensor [.., C] is [.., S, 4] with S = ceil(C / 4), so that five channels cost what eight cost. The
slices of a point are neighbours, unlike in TensorFlow Lite's GPU delegate, where the points of a
slice are: a product then reads weights and writes results in whole runs of channels, which a
software device's wide vectors need and a GPU's groups read together; and a reshape whose last
dimensions fill their slices moves nothing. Elements beyond C hold anything, NaN included: who adds
up over channels must not let them pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ...ir import Array, DType, Tensor
from .language import Storage

# Types of tensors that a device can hold, and how. Truth is 0.0 or 1.0.
FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.BOOL)
WHOLE = (DType.INT32, DType.INT64, DType.INT8, DType.UINT8)  # bytes that are no codes
CODES = (DType.INT8, DType.UINT8)


def dims(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape of at least one dimension."""
    return tuple(shape) or (1,)


def slices(shape: Sequence[int]) -> int:
    """Vectors of four that a row of the last dimension takes."""
    return -(-dims(shape)[-1] // 4)


def vectors(shape: Sequence[int]) -> int:
    """Vectors of four in all."""
    return prod(dims(shape)[:-1]) * slices(shape)


def same_place(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether tensors of these shapes, equal element by element, are the same memory."""
    last = {dims(a)[-1], dims(b)[-1]}
    return len(last) == 1 or all(c % 4 == 0 for c in last)


def storage_of(tensor: Tensor, floats: Storage) -> Storage:
    """floats: how floats are kept."""
    return Storage("i32") if tensor.dtype in WHOLE else floats


def pack(data: Array) -> Array:
    """A constant as the device holds it, the elements beyond its last dimension zero."""
    shape = dims(data.shape)
    padded = np.zeros((*shape[:-1], slices(shape) * 4), data.dtype)
    padded[..., : shape[-1]] = data.reshape(shape)
    return padded
