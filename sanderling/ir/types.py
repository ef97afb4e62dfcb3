"""Element types, quantisation parameters, sparsity: what a tensor is, apart from its data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .graph import Tensor

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class DType(Enum):
    """A tensor's element type; the value is its code in the .tflite schema."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    STRING = 5
    BOOL = 6
    INT16 = 7
    COMPLEX64 = 8
    INT8 = 9
    FLOAT64 = 10
    COMPLEX128 = 11
    UINT64 = 12
    RESOURCE = 13
    VARIANT = 14
    UINT32 = 15
    UINT16 = 16
    INT4 = 17
    BFLOAT16 = 18
    INT2 = 19
    UINT4 = 20
    FLOAT8_E4M3FN = 21
    FLOAT8_E5M2 = 22

    # There is one of each. An enumeration's own is a function in Python, and every look at a table
    # below, such as that of NumPy types in each run of an op, calls it.
    __hash__ = object.__hash__

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type of an unpacked element (an int4 lives in an int8)."""
        return _NUMPY[self]

    @property
    def bits(self) -> int:
        """Bits of one stored element; 0 where elements have no fixed size."""
        return _BITS[self]

    @property
    def short(self) -> str:
        """The name used in the text form: f32, i8, u4, bool, str ..."""
        return _SHORT[self]

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        return self.numpy.kind in "iu"

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and largest value of an integer type, sub-byte types included."""
        if self.numpy.kind == "u":
            return 0, 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1

    @property
    def is_fixed_size(self) -> bool:
        return self.bits > 0

    @property
    def is_packed(self) -> bool:
        """Several elements share a byte."""
        return 0 < self.bits < 8

    def nbytes(self, shape: Sequence[int]) -> int:
        """Stored bytes of a tensor of this type (0 for types without fixed size)."""
        return (math.prod(shape) * self.bits + 7) // 8

    @classmethod
    def of(cls, dtype: npt.DTypeLike) -> DType:
        """The type that stores this NumPy dtype."""
        found = _FROM_NUMPY.get(np.dtype(dtype))
        if found is None and np.dtype(dtype).kind in "OSU":
            return cls.STRING
        if found is None:
            names = ", ".join(sorted(str(d) for d in _FROM_NUMPY))
            raise TypeError(f"no tensor type stores NumPy dtype {np.dtype(dtype)}; known: {names}")
        return found

    @classmethod
    def parse(cls, short: str) -> DType:
        """The inverse of `short`; also takes the schema's name."""
        found = _FROM_SHORT.get(short) or cls.__members__.get(short.upper())
        if found is None:
            raise KeyError(f"unknown type '{short}'; known: {', '.join(sorted(_FROM_SHORT))}")
        return found


# One row a type: text name, bits, NumPy type of an unpacked element.
_ROWS: dict[DType, tuple[str, int, Any]] = {
    DType.FLOAT32: ("f32", 32, np.float32),
    DType.FLOAT16: ("f16", 16, np.float16),
    DType.INT32: ("i32", 32, np.int32),
    DType.UINT8: ("u8", 8, np.uint8),
    DType.INT64: ("i64", 64, np.int64),
    DType.STRING: ("str", 0, np.object_),
    DType.BOOL: ("bool", 8, np.bool_),
    DType.INT16: ("i16", 16, np.int16),
    DType.COMPLEX64: ("c64", 64, np.complex64),
    DType.INT8: ("i8", 8, np.int8),
    DType.FLOAT64: ("f64", 64, np.float64),
    DType.COMPLEX128: ("c128", 128, np.complex128),
    DType.UINT64: ("u64", 64, np.uint64),
    DType.RESOURCE: ("resource", 0, np.object_),
    DType.VARIANT: ("variant", 0, np.object_),
    DType.UINT32: ("u32", 32, np.uint32),
    DType.UINT16: ("u16", 16, np.uint16),
    DType.INT4: ("i4", 4, np.int8),
    DType.BFLOAT16: ("bf16", 16, ml_dtypes.bfloat16),
    DType.INT2: ("i2", 2, np.int8),
    DType.UINT4: ("u4", 4, np.uint8),
    DType.FLOAT8_E4M3FN: ("f8e4m3fn", 8, ml_dtypes.float8_e4m3fn),
    DType.FLOAT8_E5M2: ("f8e5m2", 8, ml_dtypes.float8_e5m2),
}
_SHORT = {d: row[0] for d, row in _ROWS.items()}
_BITS = {d: row[1] for d, row in _ROWS.items()}
_NUMPY = {d: np.dtype(row[2]) for d, row in _ROWS.items()}
_FROM_SHORT = {short: d for d, short in _SHORT.items()}
_FROM_NUMPY = {_NUMPY[d]: d for d in DType if d.bits >= 8}
_FLOATS = {d for d in DType if _SHORT[d][0] == "f" or d is DType.BFLOAT16}


@dataclass(frozen=True, eq=False)
class Blockwise:
    """Scales (and zero points) of blocks along an axis, kept in tensors of their own.

    kind is the schema's table: BlockwiseQuantization, or MultiAxisQuantization (with axes).
    """

    scales: Tensor | None
    zero_points: Tensor | None
    block_size: int
    block_shape: Shape = ()
    axes: Shape = ()
    kind: str = "BlockwiseQuantization"


@dataclass(frozen=True, eq=False)
class Quant:
    """real = (q - zero_point) * scale, one pair a tensor or one per index of `axis`."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int = 0
    min: npt.NDArray[np.float32] | None = None
    max: npt.NDArray[np.float32] | None = None
    block: Blockwise | None = None
    custom: bytes | None = None

    @classmethod
    def of(cls, scale: npt.ArrayLike, zero_point: npt.ArrayLike = 0, axis: int = 0) -> Quant:
        """Zero points are repeated to the number of scales."""
        scales = np.atleast_1d(np.asarray(scale, np.float32))
        points = np.atleast_1d(np.asarray(zero_point, np.int64))
        return cls(scales, np.broadcast_to(points, scales.shape).copy(), axis)

    @property
    def per_axis(self) -> bool:
        return self.scale.size > 1

    @property
    def is_set(self) -> bool:
        """There are scales to compute with (a record of min/max alone has none)."""
        return self.scale.size > 0 or self.block is not None

    def same_as(self, other: Quant | None) -> bool:
        """The same mapping from integers to reals."""
        return (
            other is not None
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
            and (not self.per_axis or self.axis == other.axis)
        )


@dataclass(frozen=True)
class SparseDim:
    """One dimension of the compressed layout: dense, or CSR with segments and indices."""

    dense_size: int = 0
    segments: Array | None = field(default=None, compare=False)
    indices: Array | None = field(default=None, compare=False)

    @property
    def is_dense(self) -> bool:
        return self.segments is None


@dataclass(frozen=True)
class Sparsity:
    """TACO-style compressed storage: traversal order, block map, one record a dimension."""

    traversal_order: Shape
    block_map: Shape
    dims: tuple[SparseDim, ...]
