"""Modes of quantisation as data: what a number becomes (Grid), and what an op does with it (Mode).

Bit width, symmetry and granularity are values; one engine reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
import numpy.typing as npt

from ...errors import InputError
from ...ir import Array, DType, Quant, Tensor

Floats = npt.NDArray[np.float64]
_TYPES = {
    2: DType.INT2,
    4: DType.INT4,
    8: DType.INT8,
    16: DType.INT16,
    32: DType.INT32,
    64: DType.INT64,
}
# Scales below are written as this: XNNPACK wants positive normal numbers.
LEAST_SCALE = 1e-9
# An activation's is larger: a kernel turns the 6 of a fused RELU6 into an int32 number of steps.
LEAST_STEP = 1e-8


@dataclass(frozen=True)
class Grid:
    """Integers that stand for reals: real = (code - zero) * scale.

    block > 0: that many neighbours along the last axis share a scale; per_channel: each index of
    the operand's channel axis has its own. narrow: the lowest code is not used, so that a product
    of two codes keeps its sign's range.
    """

    bits: int
    symmetric: bool
    per_channel: bool = False
    narrow: bool = False
    block: int = 0

    @property
    def dtype(self) -> DType:
        return _TYPES[self.bits]

    @property
    def bounds(self) -> tuple[int, int]:
        low, high = self.dtype.bounds
        return low + self.narrow, high

    def fit(self, low: npt.ArrayLike, high: npt.ArrayLike) -> tuple[Array, Array]:
        """(scale, zero point) for values from low to high; zero is always a code's value."""
        least, most = self.bounds
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        # Where nothing but zero was seen, any scale is right; a common one is safe in all kernels.
        high = np.where(low == high, 1.0, high)
        floor = LEAST_SCALE if self.narrow else LEAST_STEP
        if self.symmetric:
            scale = np.maximum(np.maximum(-low, high) / most, floor).astype(np.float32)
            return scale, np.zeros(scale.shape, np.int64)
        scale = np.maximum((high - low) / (most - least), floor).astype(np.float32)
        zero = np.clip(np.rint(least - low / scale.astype(np.float64)), least, most)
        return scale, zero.astype(np.int64)

    def quant(self, low: npt.ArrayLike, high: npt.ArrayLike, axis: int = 0) -> Quant:
        scale, zero = self.fit(low, high)
        return Quant.of(scale, zero, axis)


Range = tuple[float, float]
# The least and the largest value that a tensor's codes must represent; None if nothing is known.
RangeOf = Callable[[Tensor, Grid], Range | None]


@dataclass(frozen=True)
class Mode:
    """What happens to an op: how its weights are stored, how its activations are."""

    name: str
    meaning: str
    weights: Grid | None = None
    activations: Grid | None = None
    # Weights are stored so and made float again by a DEQUANTIZE, whatever reads them.
    expanded: bool = False
    half: bool = False  # float constants are stored as float16
    bias_bits: int = 32

    @property
    def weight_grid(self) -> Grid:
        """The grid of the weights, where `weights` may be None: InputError if they stay float."""
        if self.weights is None:
            others = ", ".join(mode.name for mode in MODES.values() if mode.weights)
            raise InputError(f"{self.name} leaves weights as they are", fix=f"one of {others}")
        return self.weights

    @property
    def is_integer(self) -> bool:
        """Activations are codes too: the mode needs ranges, so it needs data."""
        return self.activations is not None


_W8 = Grid(8, symmetric=True, per_channel=True, narrow=True)
_W4 = Grid(4, symmetric=True, per_channel=True, narrow=True)
MODES = {
    mode.name: mode
    for mode in (
        Mode("float", "as it is"),
        Mode("float16", "float constants stored in half the bytes, computed in float32", half=True),
        Mode("dynamic", "int8 weights, activations quantised on the fly", weights=_W8),
        Mode(
            "int8",
            "int8 weights and activations: integer arithmetic alone",
            weights=_W8,
            activations=Grid(8, symmetric=False),
        ),
        Mode(
            "int16x8",
            "int8 weights, int16 activations: integer arithmetic, 256 times finer",
            weights=_W8,
            activations=Grid(16, symmetric=True),
            bias_bits=64,
        ),
        Mode(
            "weight-int8", "int8 weights, made float again before use", weights=_W8, expanded=True
        ),
        Mode(
            "weight-int4",
            "int4 weights per channel, made float again before use",
            weights=_W4,
            expanded=True,
        ),
        Mode(
            "dynamic-int4",
            "int4 weights per channel, activations quantised on the fly where a kernel takes int4",
            weights=_W4,
        ),
        Mode(
            "block-int4",
            "int4 weights in blocks of 32 (FULLY_CONNECTED), else as dynamic-int4",
            weights=Grid(4, symmetric=True, narrow=True, block=32),
        ),
    )
}


# Modes of so few bits that a model has to be trained for them: quantisation-aware training offers
# them, post-training quantisation does not.
_W2 = Grid(2, symmetric=True, per_channel=True, narrow=True)
TRAINED = {
    mode.name: mode
    for mode in (
        Mode(
            "int8x4",
            "int4 weights, int8 activations: integer arithmetic alone",
            weights=_W4,
            activations=Grid(8, symmetric=False),
        ),
        Mode(
            "int8x2",
            "int2 weights where a kernel takes them (FULLY_CONNECTED), else int4; int8 activations",
            weights=_W2,
            activations=Grid(8, symmetric=False),
        ),
        Mode(
            "int16x4",
            "int4 weights, int16 activations: integer arithmetic alone",
            weights=_W4,
            activations=Grid(16, symmetric=True),
            bias_bits=64,
        ),
        Mode(
            "weight-int2",
            "int2 weights per channel, made float again before use",
            weights=_W2,
            expanded=True,
        ),
    )
}


def mode_of(name: str | Mode) -> Mode:
    """The mode of this name; an unknown one is refused with those there are."""
    if isinstance(name, Mode):
        return name
    if name in TRAINED:
        return TRAINED[name]
    if name not in MODES:
        near = get_close_matches(str(name), MODES, 1)
        fix = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"there is no mode '{name}'", fix=f"{fix}the modes: {', '.join(MODES)}")
    return MODES[name]
