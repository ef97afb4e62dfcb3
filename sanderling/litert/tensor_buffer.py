"""Memory of a tensor, which runs read and write in place."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import InputError, TypeWarning
from ..ir import Array
from ..runtime.interpreter_checks import InvokeError
from .run_queue import PendingRun

# LiteRT's list; an int64 and its like are taken where the tensor is of that type.
_TYPES = frozenset(
    np.dtype(t)
    for t in (
        *(np.float32, np.float16, np.int32, np.int8, np.uint8, np.bool_),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    )
)


class Keeper(Protocol):
    """Somebody who has bound a buffer's memory."""

    def forget(self, buffer: TensorBuffer) -> None: ...


class TensorBuffer:
    """An array that compiled models read or write where it lies.

    While an asynchronous run uses it, read, write and destroy wait for the end of that run. In a
    process that was forked meanwhile that end never comes: read and write raise.
    """

    def __init__(self, array: Array | None, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        """array: None where the shape is known only after a run, which then sets it."""
        self._array, self._dtype, self._shape = array, dtype, list(shape)
        self._is_destroyed = False
        self._pending: PendingRun | None = None
        self._keepers: weakref.WeakSet[Any] = weakref.WeakSet()

    @classmethod
    def create_from_host_memory(cls, data_array: Array) -> TensorBuffer:
        """A buffer on an array's own memory: what is written to one is seen in the other. LiteRT
        copies an array that does not begin on a boundary of 64 bytes; here none is copied."""
        _check_array(data_array)
        _check_dtype(data_array.dtype, None)
        if not data_array.flags.c_contiguous:
            raise InputError(
                "data_array must be C-contiguous for zero-copy host-memory binding",
                fix="np.ascontiguousarray(...) makes a contiguous copy",
            )
        flat = data_array.reshape(-1)
        return cls(flat, flat.dtype, flat.shape)

    def write(self, data_array: Array) -> None:
        """Copy an array's elements to the buffer's first ones."""
        _check_array(data_array)
        _check_dtype(data_array.dtype, self._dtype)
        target = self._bytes("WriteTensorBuffer")
        _check_same(data_array.dtype, self._dtype, "written")
        source = np.ascontiguousarray(data_array).reshape(-1).view(np.uint8)
        if source.size > target.size:
            raise InvokeError(
                "WriteTensorBuffer: source buffer is larger than the tensor buffer",
                where=f"{source.size} bytes for {target.size}",
                fix="write an array of the tensor's shape",
            )
        if not target.flags.writeable:
            raise InvokeError(
                "WriteTensorBuffer: the host memory is read-only",
                fix="make the buffer of an array that may be written",
            )
        target[: source.size] = source

    def read(self, num_elements: int, output_dtype: npt.DTypeLike) -> Array:
        """A copy of the first elements, in one dimension."""
        dtype = _check_dtype(output_dtype, self._dtype)
        source = self._bytes("ReadTensorToBuffer")
        _check_same(dtype, self._dtype, "read")
        result: Array = np.empty(num_elements, dtype)
        if result.nbytes > source.size:
            raise InvokeError(
                "ReadTensorToBuffer: destination buffer is larger than the tensor buffer",
                where=f"{result.nbytes} bytes of {source.size}",
                fix=f"read {source.size // self._dtype.itemsize} elements of {self._dtype}",
            )
        result.view(np.uint8)[:] = source[: result.nbytes]
        return result

    def get_tensor_details(self) -> dict[str, Any]:
        """{'dtype': name, 'shape': list}; of host memory the shape is flat, as LiteRT's is."""
        self._living("GetTensorDetails")
        return {"dtype": self._dtype.name, "shape": list(self._shape)}

    def destroy(self) -> None:
        """Let the memory go. It cannot be used any more; destroying it again does nothing."""
        if self._pending is not None and not self._pending.is_lost:
            self._settle()
        for keeper in list(self._keepers):
            keeper.forget(self)
        self._array, self._is_destroyed = None, True

    def __del__(self) -> None:
        # Ids are used again: whoever remembers this one must not take another buffer for it.
        for keeper in list(self._keepers):
            keeper.forget(self)

    # -- for compiled models ----------------------------------------------------------------------

    @property
    def array(self) -> Array | None:
        """The memory itself; None if it has none before a run."""
        return self._array

    def take(self, array: Array) -> None:
        """The result of a run whose shape nobody knew."""
        self._array, self._shape = array, list(array.shape)

    def keep_for(self, keeper: Keeper) -> None:
        """The keeper is told before the memory goes."""
        self._keepers.add(keeper)

    @property
    def pending(self) -> PendingRun | None:
        """The run that uses it, if one does. Raises if the buffer is no more."""
        if self._is_destroyed:
            raise InputError("TensorBuffer has been destroyed", fix="create another one")
        return self._pending

    def wait_for(self, run: PendingRun) -> None:
        """Nobody reads or writes before this run has ended."""
        self._pending = run

    def _settle(self) -> None:
        if self._pending is not None:
            self._pending.settle()
            self._pending = None

    def _living(self, who: str) -> None:
        if self._is_destroyed:
            raise InvokeError(f"{who}: invalid capsule", fix="the buffer was destroyed")

    def _bytes(self, who: str) -> Array:
        self._living(who)
        self._settle()
        if self._array is None:
            raise InvokeError(
                f"{who}: the buffer has no memory yet", fix="its shape is known after a run"
            )
        return self._array.reshape(-1).view(np.uint8)


def _check_array(given: object) -> None:
    if not isinstance(given, np.ndarray):
        raise InputError("data_array must be a NumPy array", fix="np.asarray(...) makes one")


def _check_dtype(given: npt.DTypeLike, own: np.dtype[Any] | None) -> np.dtype[Any]:
    """As NumPy has it; own: of the buffer."""
    try:
        found = np.dtype(given)
    except TypeError as error:
        raise InputError(f"Unsupported dtype: {given}", fix="give a NumPy type") from error
    allowed = _TYPES if own is None else _TYPES | {own}
    if found not in allowed:
        known = ", ".join(sorted(t.name for t in allowed))
        raise InputError(f"Unsupported dtype: {given}", fix=f"it takes {known}")
    return found


def _check_same(given: np.dtype[Any], own: np.dtype[Any], done: str) -> None:
    """LiteRT copies the bytes of any type without a word; programs that mean it go on."""
    if given != own:
        warnings.warn(
            f"a buffer of {own} is {done} as {given}: its bytes are taken as they are, no value is "
            f"converted (array.astype(np.{own}) converts)",
            TypeWarning,
            stacklevel=3,
        )
