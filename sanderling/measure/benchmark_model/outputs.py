"""A model's outputs as the tool writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ir import DType, Tensor
from ...ir.types import Array

_REALS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16)


def raw_bytes(outputs: Mapping[Tensor, Array]) -> bytes:
    """The values of all outputs, one after the other; strings with NUL between."""
    return b"".join(_raw(array) for array in outputs.values())


def _raw(array: Array) -> bytes:
    if array.dtype.kind == "O":
        return b"\0".join(bytes(s) for s in array.flat)
    return np.ascontiguousarray(array).tobytes()


def example(outputs: Mapping[Tensor, Array]) -> tuple[dict[str, Any], list[str]]:
    """A tf.Example with a feature for each output, and the outputs that it cannot hold."""
    entries, skipped = [], []
    for tensor, array in outputs.items():
        feature = _feature(tensor, array)
        if feature is None:
            skipped.append(tensor.name)
        else:
            entries.append({"key": tensor.name, "value": feature})
    return {"features": {"feature": entries}}, skipped


def _feature(tensor: Tensor, array: Array) -> dict[str, Any] | None:
    if tensor.dtype in _REALS:
        return {"float_list": {"value": array.astype(np.float32).ravel().tolist()}}
    if tensor.dtype.is_integer or tensor.dtype is DType.BOOL:
        return {"int64_list": {"value": array.astype(np.int64).ravel().tolist()}}
    if tensor.dtype is DType.STRING:
        return {"bytes_list": {"value": [bytes(s) for s in array.flat]}}
    return None
