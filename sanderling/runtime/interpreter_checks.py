"""What an Interpreter is given, checked, and what it raises: LiteRT's types and words."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import InputError, ModelError, SanderlingError
from ..format import load
from ..ir import DType, Graph, Model, Shape, Signature, Tensor


class InvokeError(SanderlingError, RuntimeError):
    """TFLite raises RuntimeError where a graph cannot be allocated or invoked."""


class WrongTypeError(InputError, TypeError):
    """TFLite's binding raises TypeError where an argument has a type it cannot take."""


@contextmanager
def runtime_errors() -> Iterator[None]:
    """Every error of ours is a RuntimeError, as TFLite's are where it runs."""
    try:
        yield
    except SanderlingError as error:
        if isinstance(error, RuntimeError):
            raise
        raise InvokeError(error.what, where=error.where, fix=error.fix) from error


def check_threads(threads: int | None) -> None:
    if threads is not None and not isinstance(threads, int):
        raise InputError(
            "type of num_threads should be int",
            where="num_threads",
            fix=f"it is {threads!r}: give int(...)",
        )
    if threads is not None and threads < 1:
        raise InputError(
            "num_threads should >= 1",
            where="num_threads",
            fix="give 1 or more, or None for a default",
        )


def open_model(path: str | os.PathLike[str] | None, content: Any) -> Model:
    """From the one of the two that is given; the errors say what LiteRT's say first."""
    if path and content is not None:
        raise InputError("Can't both provide `model_path` and `model_content`", fix="give one")
    if not path and (content is None or len(content) == 0):
        raise InputError(
            "`model_path` or `model_content` must be specified.",
            fix="give a path or the bytes of a .tflite file",
        )
    try:
        return load(os.fsdecode(path) if path else _buffer(content))
    except ModelError as error:
        raise ModelError(
            f"The model is not a valid Flatbuffer buffer: {error.what}",
            where=error.where,
            fix=error.fix,
        ) from error
    except InputError as error:
        if isinstance(error, WrongTypeError):
            raise
        raise InputError(
            f"Could not open '{os.fsdecode(path or '')}': {error.what}", fix=error.fix
        ) from error


def _buffer(content: Any) -> bytes | bytearray | memoryview:
    """Anything that shows its memory: bytes, a bytearray, an mmap, an array of bytes."""
    if isinstance(content, bytes | bytearray):
        return content
    try:
        return memoryview(content)
    except TypeError as error:
        raise WrongTypeError(
            f"model_content is of type {type(content).__name__}",
            fix="give the file's bytes, or model_path=...",
        ) from error


def as_index(index: object) -> int:
    """A whole number of any kind, NumPy's included."""
    try:
        return operator.index(index)  # type: ignore[arg-type]
    except TypeError as error:
        raise WrongTypeError(
            f"a tensor index of type {type(index).__name__}",
            fix="give the 'index' of get_input_details() and its like",
        ) from error


def no_tensor(graph: Graph, index: int) -> str:
    return f"Invalid tensor index {index} exceeds max tensor index {len(graph.tensors) - 1}"


def keys_text(signatures: Sequence[Signature]) -> str:
    return f"the keys are {', '.join(repr(s.key) for s in signatures) or 'none'}"


def check_strict(tensor: Tensor, shape: Shape, index: int) -> None:
    """Only dimensions that the file leaves open may change."""
    fixed = tensor.signature or tensor.shape
    if len(shape) != len(fixed):
        raise InvokeError(
            f"Attempting to resize tensor {index} of {len(fixed)} dimensions to {len(shape)}",
            fix="leave out strict=True",
        )
    for axis, (stated, wanted) in enumerate(zip(fixed, shape, strict=True)):
        if stated not in (-1, wanted):
            raise InvokeError(
                f"Attempting to resize dimension {axis} of tensor {index} with value {stated} to "
                f"{wanted}. ResizeInputTensorStrict only allows mutating unknown dimensions "
                "identified by -1.",
                fix="leave out strict=True",
            )


def check_dimensions(got: Shape, wanted: Shape, index: int) -> None:
    mismatch = "Cannot set tensor: Dimension mismatch. "
    if len(got) != len(wanted):
        raise InputError(
            f"{mismatch}Got {len(got)} but expected {len(wanted)} for input {index}.",
            fix=f"reshape it to {list(wanted)}",
        )
    for axis, (size, expected) in enumerate(zip(got, wanted, strict=True)):
        if size != expected:
            raise InputError(
                f"{mismatch}Got {size} but expected {expected} for dimension {axis} of input "
                f"{index}.",
                fix=f"give an array of shape {list(wanted)}, or call resize_tensor_input() and "
                "allocate_tensors() first",
            )


def type_name(dtype: np.dtype[Any]) -> str:
    """TFLite's name for a NumPy type."""
    try:
        return DType.of(dtype).name
    except TypeError:
        return "NOTYPE"
