"""Inputs for a measurement: made at random, or read from the user's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..config import MAX_MEMORY
from ..errors import InputError
from ..ir import Array, DType, Model, Shape, Signature, Tensor
from ..runtime.inputs import ARRAYS, PICTURES, fits_shape, quantize_array, read_array, wrong_shape
from ..runtime.sound import SOUNDS
from ..runtime.specialise import specialise

T = TypeVar("T")


def feeds(model: Model, seed: int = 0) -> list[Array]:
    """Plausible inputs in the order of the main graph's."""
    rng = np.random.default_rng(seed)
    return [plausible(tensor, rng) for tensor in model.main.inputs]


def plausible(tensor: Tensor, rng: np.random.Generator, shape: Shape | None = None) -> Array:
    """Unit normal reals, quantised where the model takes integers with a scale; small numbers where
    it takes plain integers."""
    shape = tensor.shape if shape is None else shape
    if tensor.dtype is DType.STRING:
        return np.full(shape, b"sanderling", np.object_)
    reals = rng.standard_normal(shape).astype(np.float32)
    if tensor.dtype.is_float:
        return reals.astype(tensor.dtype.numpy)
    if tensor.quant is not None and tensor.quant.scale.size:
        return quantize_array(reals, tensor)
    return rng.integers(0, 100, shape).astype(tensor.dtype.numpy)


@dataclass(frozen=True)
class Feeding:
    """What the user says about inputs, by name; "" is the only one. What nothing is said about is
    made at random.

    shapes: for open dimensions, or to resize. ranges: of random values, as they are stored: an
    int8 input has integers within -128 and 127, both included. files: .npy, .npz, pictures, or raw
    bytes of just the input's size.
    """

    shapes: Mapping[str, Shape] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    files: Mapping[str, str | Path] = field(default_factory=dict)
    seed: int = 0

    def arrays(self, entry: Signature) -> list[Array]:
        """Return the arrays in the order of the graph's inputs."""
        shapes, ranges = by_input(entry.inputs, self.shapes), by_input(entry.inputs, self.ranges)
        files = by_input(entry.inputs, self.files)
        rng = np.random.default_rng(self.seed)
        made: dict[Tensor, Array] = {}
        for name, tensor in entry.inputs.items():
            shape = checked_shape(name, tensor, shapes.get(name))
            if name in files:
                made[tensor] = _read(name, tensor, Path(files[name]), shape, name in shapes)
            elif name in ranges:
                made[tensor] = _within(name, tensor, ranges[name], shape, rng)
            else:
                made[tensor] = plausible(tensor, rng, shape)
        return [np.asarray(made[t], order="C") for t in entry.graph.inputs]


def by_input(inputs: Mapping[str, Tensor], given: Mapping[str, T]) -> dict[str, T]:
    """What is given by the inputs' names or their tensors', by the former; "" is the only one, or
    the one that has no other name."""
    if "" in given and "" not in inputs and len(inputs) != 1:
        raise InputError(
            f"the model has {len(inputs)} inputs, say which one is meant",
            fix=f"write NAME=..., with a name of {', '.join(inputs)}",
        )
    only = "" if "" in inputs else next(iter(inputs), "")
    named = {name or only: value for name, value in given.items()}
    by_tensor = {t.name: n for n, t in inputs.items()}
    named = {by_tensor.get(n, n) if n not in inputs else n: v for n, v in named.items()}
    for name in named:
        if name not in inputs:
            raise InputError(
                f"there is no input '{name}'", fix=f"the inputs are {', '.join(inputs)}"
            )
    return named


def input_shapes(model: Model, shapes: Mapping[str, Shape]) -> dict[Tensor, Shape]:
    """Shapes that are given for inputs of the main graph, by the names of tensors or of the
    signature; checked."""
    inputs = {t.name: t for t in model.main.inputs}
    for signature in model.signatures:
        if signature.graph is model.main:
            inputs = dict(signature.inputs) | {
                n: t for n, t in inputs.items() if t not in signature.inputs.values()
            }
    return {inputs[n]: checked_shape(n, inputs[n], s) for n, s in by_input(inputs, shapes).items()}


def resize(model: Model, shapes: Mapping[str, Shape]) -> None:
    """The main graph's inputs get these shapes, and all that is computed from them its own."""
    if not shapes:
        return
    given = input_shapes(model, shapes)
    _, twins = specialise(model.main, [given.get(t, t.shape) for t in model.main.inputs])
    for tensor, twin in twins.items():
        if not twin.is_dynamic and not tensor.is_constant:
            tensor.shape = twin.shape


def checked_shape(name: str, tensor: Tensor, shape: Shape | None) -> Shape:
    """The shape that an input gets: this one, if it can be, or the file's."""
    if shape is None:
        return tensor.shape
    text, where = ",".join(map(str, shape)), f"shape of input '{name}'"
    if any(n < 1 for n in shape):
        raise InputError(f"{text} has a size below 1", where=where, fix="give sizes of 1 or more")
    if tensor.shape and len(shape) != len(tensor.shape):
        raise InputError(
            f"{text} has {len(shape)} sizes",
            where=where,
            fix=f"the input is {tensor.type_text}: give {len(tensor.shape)} sizes",
        )
    if tensor.dtype.nbytes(shape) > MAX_MEMORY.size():
        raise InputError(
            f"{text} would take {tensor.dtype.nbytes(shape)} bytes",
            where=where,
            fix=f"use a smaller shape, or set {MAX_MEMORY.name}",
        )
    return shape


def _within(
    name: str, tensor: Tensor, span: tuple[float, float], shape: Shape, rng: np.random.Generator
) -> Array:
    low, high = span
    where = f"range of input '{name}'"
    if tensor.dtype is DType.STRING or low > high:
        what = "a string has no range" if low <= high else f"{low:g} is above {high:g}"
        raise InputError(what, where=where, fix="write LOW,HIGH for numbers")
    if tensor.dtype.is_float:
        return rng.uniform(low, high, shape).astype(tensor.dtype.numpy)
    least, most = (0, 1) if tensor.dtype is DType.BOOL else tensor.dtype.bounds
    if low < least or high > most:
        raise InputError(
            f"{low:g} to {high:g} goes beyond {tensor.dtype.short}",
            where=where,
            fix=f"it holds {least} to {most}",
        )
    return rng.integers(int(np.ceil(low)), int(high) + 1, shape).astype(tensor.dtype.numpy)


def _read(name: str, tensor: Tensor, path: Path, shape: Shape, resized: bool) -> Array:
    if path.suffix.lower() in {*ARRAYS, *PICTURES, *SOUNDS}:
        array = read_array(path, tensor, name=name)
    else:
        array = _read_raw(name, tensor, path, shape)
    if not fits_shape(array.shape, shape if resized else tensor.signature or shape):
        fix = (
            "give a file of that shape, or resize the input with --shape "
            f"{name}={','.join(map(str, array.shape))}"
        )
        raise wrong_shape(name, path, array.shape, shape, fix)
    return array


def _read_raw(name: str, tensor: Tensor, path: Path, shape: Shape) -> Array:
    """The bytes as TensorFlow Lite's benchmark takes them: the input's, one after the other."""
    where = f"input '{name}' from {path}"
    if not path.is_file():
        raise InputError("there is no such file", where=where, fix="check the path")
    if not tensor.dtype.is_fixed_size:
        raise InputError("raw bytes do not tell strings apart", where=where, fix="give a .npy")
    content = path.read_bytes()
    wanted = tensor.dtype.numpy.itemsize * int(np.prod(shape))
    if len(content) != wanted:
        raise InputError(
            f"it has {len(content)} bytes, {tensor.dtype.short}{list(shape)} has {wanted}",
            where=where,
            fix="give the bytes of one input, or their shape",
        )
    return np.frombuffer(content, tensor.dtype.numpy).reshape(shape).copy()
