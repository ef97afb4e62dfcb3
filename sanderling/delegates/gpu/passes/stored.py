"""What stored numbers stand for: codes as reals or as units, complex numbers as two floats."""

from __future__ import annotations

import numpy as np

from ....ir import Array, Blockwise, DType, Tensor
from ..layout import CODES


def is_codes(tensor: Tensor) -> bool:
    """Whether the tensor holds codes of 8 bits; a cell's memory, which is kept from run to run, has
    16."""
    known = tensor.dtype in CODES or (tensor.dtype is DType.INT16 and tensor.is_variable)
    return known and tensor.quant is not None and tensor.quant.is_set


def is_narrow(tensor: Tensor) -> bool:
    """Constants of fewer bits than a byte has."""
    return tensor.is_constant and tensor.dtype.bits < 8 and tensor.quant is not None


def bounds(codes: Tensor) -> tuple[float, int, int, int]:
    """Scale, zero point, least and greatest code."""
    quant = codes.quantisation
    low, high = codes.dtype.bounds
    return float(quant.scale[0]), int(quant.zero_point[0]), low, high


def along(values: Array, tensor: Tensor) -> Array:
    """One number, or one for each channel of a tensor, in a shape that fits it."""
    shape = [1] * len(tensor.shape)
    if values.size > 1:
        shape[tensor.quantisation.axis] = -1
    found: Array = values.reshape(shape or ())
    return found


def unit_values(tensor: Tensor, signed: bool = False) -> Array:
    """The codes of a constant without their zero point. signed: 255 is read as -1."""
    zero = along(tensor.quantisation.zero_point.astype(np.float32), tensor)
    codes = tensor.values.view(np.int8) if signed else tensor.values
    found: Array = codes.astype(np.float32) - zero
    return found


def real_values(tensor: Tensor, signed: bool = False) -> Array:
    """What the codes of a constant stand for."""
    quant = tensor.quantisation
    if quant.block is not None:
        return _real_blocks(tensor.values.astype(np.float32), quant.block)
    found: Array = unit_values(tensor, signed) * along(quant.scale.astype(np.float32), tensor)
    return found


def _real_blocks(codes: Array, block: Blockwise) -> Array:
    """The real values of a matrix with a scale for each block of a row."""
    assert block.scales is not None, "the op has been checked"
    scales = block.scales.values.astype(np.float32).reshape(len(codes), -1)
    found: Array = codes * np.repeat(scales, block.block_size, axis=1)
    return found


def complex_twin(tensor: Tensor) -> Tensor:
    """A last dimension more, of the real and the imaginary part."""
    shape = (*tensor.shape, 2)
    if not tensor.is_constant:
        return Tensor(tensor.name, DType.FLOAT32, shape)
    parts = np.stack([tensor.values.real, tensor.values.imag], axis=-1)
    return Tensor(tensor.name, DType.FLOAT32, shape, data=parts.astype(np.float32))
