"""What a model is fed: the user's files, or random values as the tool draws them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config import MAX_MEMORY
from ...errors import InputError
from ...files import numpy_reader
from ...ir import DType, Tensor
from ...ir.types import Array, Shape
from .flags import Values

SEED = 5489  # std::mt19937's own: inputs repeat from run to run
SENTENCE = b"the quick brown fox jumps over the lazy dog at the edge of the sea"
# Both ends are possible. The tool feeds int16 and uint16 with zeros, for want of a row.
RANGES: dict[DType, tuple[float, float]] = {
    DType.FLOAT32: (-0.5, 0.5), DType.FLOAT64: (-0.5, 0.5), DType.COMPLEX64: (-0.5, 0.5),
    DType.COMPLEX128: (-0.5, 0.5), DType.FLOAT16: (-0.5, 0.5), DType.BFLOAT16: (-0.5, 0.5),
    DType.INT32: (0, 99), DType.INT64: (0, 99), DType.UINT32: (0, 99), DType.UINT64: (0, 99),
    DType.UINT8: (0, 254), DType.INT8: (-127, 127), DType.BOOL: (0, 1),
    DType.INT16: (-32767, 32767), DType.UINT16: (0, 65534),
}  # fmt: skip


@dataclass
class InputLayer:
    """What the flags say about one input."""

    name: str
    shape: Shape
    range: tuple[float, float] | None = None
    file: str = ""


def layers(values: Values) -> list[InputLayer]:
    """The inputs that the flags describe: none, or all in the model's order."""
    names = _split(values.text("input_layer"), ",")
    shapes = _split(values.text("input_layer_shape"), ":")
    if len(names) != len(shapes):
        raise InputError(
            f"The number of items in --input_layer_shape ({values['input_layer_shape']}, with "
            f"{len(shapes)} items) must match the number of items in --input_layer "
            f"({values['input_layer']}, with {len(names)} items)",
            fix="for example --input_layer=input1,input2 --input_layer_shape=1,224,224,4:1,20",
        )
    found = {name: InputLayer(name, _shape(text)) for name, text in zip(names, shapes, strict=True)}
    for item in _split(values.text("input_layer_value_range"), ":"):
        name, span = _range(item)
        _layer(found, name, "--input_layer_value_range").range = span
    for item in _split(values.text("input_layer_value_files"), ","):
        name, file = name_and_file(item)
        _layer(found, name, "--input_layer_value_files").file = file
    return list(found.values())


def _split(text: str, mark: str) -> list[str]:
    return text.split(mark) if text else []


def _layer(found: dict[str, InputLayer], name: str, flag: str) -> InputLayer:
    if name not in found:
        named = ",".join(found) or "nothing"
        raise InputError(
            f"Cannot find the corresponding input_layer name({name}) in --input_layer as {named}",
            where=flag,
            fix="name every input with --input_layer and --input_layer_shape",
        )
    return found[name]


def _shape(text: str) -> Shape:
    try:
        sizes = tuple(int(n) for n in _split(text, ","))
    except ValueError:
        raise InputError(
            f"Incorrect size string specified: {text}",
            where="--input_layer_shape",
            fix="whole numbers with commas: 1,224,224,3",
        ) from None
    if any(n < 0 for n in sizes):
        raise InputError(
            "Any unknown sizes in the shapes (-1's) must be replaced with the size you want to "
            "benchmark with",
            where=f"--input_layer_shape {text}",
            fix="write 0 or more",
        )
    return sizes


def _range(item: str) -> tuple[str, tuple[float, float]]:
    parts = item.rsplit(",", 2)
    if len(parts) != 3:
        raise InputError(
            f"Wrong input value range item specified: {item}",
            where="--input_layer_value_range",
            fix="write name,low,high",
        )
    try:
        low, high = float(parts[1]), float(parts[2])
    except ValueError:
        low, high = 1.0, 0.0
    if not low <= high:
        raise InputError(
            f"Wrong low and high value of the input value range specified: {item}",
            where="--input_layer_value_range",
            fix="two numbers, the smaller first",
        )
    return parts[0], (low, high)


def name_and_file(item: str) -> tuple[str, str]:
    """name:path, where :: is a colon."""
    parts = item.replace("::", "\0").split(":")
    if len(parts) != 2:
        what = "contains more than one delimiter" if len(parts) > 2 else "has no delimiter"
        raise InputError(
            f"{item} {what}",
            where="--input_layer_value_files",
            fix="write name:path, and :: for a colon in either",
        )
    return parts[0].replace("\0", ":"), parts[1].replace("\0", ":")


class InputMaker:
    """Makes the arrays of all inputs, one after the other, from one random engine."""

    def __init__(self) -> None:
        self.engine = np.random.RandomState(SEED)

    def array(self, tensor: Tensor, layer: InputLayer | None) -> Array:
        shape = tensor.shape if layer is None or not _resizes(tensor) else layer.shape
        size = tensor.dtype.nbytes(shape)
        if size > MAX_MEMORY.size():
            raise InputError(
                f"it would take {size} bytes",
                where=f"input '{tensor.name}'",
                fix=f"use a smaller shape, or set {MAX_MEMORY.name}",
            )
        if layer is not None and layer.file:
            return read(layer.file, tensor, shape)
        span = layer.range if layer is not None else None
        return self.random(tensor, shape, span)

    def random(self, tensor: Tensor, shape: Shape, span: tuple[float, float] | None) -> Array:
        dtype = tensor.dtype
        if dtype is DType.STRING:
            return np.full(shape, SENTENCE, np.object_)
        if dtype not in RANGES:
            raise InputError(
                f"Don't know how to populate tensor {tensor.name} of type {dtype.short}",
                fix="give it with --input_layer_value_files",
            )
        low, high = span or RANGES[dtype]
        if dtype.is_float or dtype in (DType.COMPLEX64, DType.COMPLEX128):
            reals = self._unit(shape) * np.float32(high - low) + np.float32(low)
            return reals.astype(dtype.numpy)
        low, high = _within(dtype, low, high, tensor)
        draws = self._draws(int(np.prod(shape))).astype(np.uint64)
        # Multiply and shift, as C++ libraries do.
        whole = (draws * np.uint64(high - low + 1)) >> np.uint64(32)
        return (whole.astype(np.int64) + int(low)).astype(dtype.numpy).reshape(shape)

    def _unit(self, shape: Shape) -> Array:
        below_one = np.nextafter(np.float32(1), np.float32(0))
        draws = self._draws(int(np.prod(shape))).astype(np.float32) / np.float32(2**32)
        return np.minimum(draws, below_one).reshape(shape)

    def _draws(self, count: int) -> Array:
        return self.engine.randint(0, 2**32, count, dtype=np.uint32)


def _resizes(tensor: Tensor) -> bool:
    """The tool resizes everything but strings."""
    return tensor.dtype is not DType.STRING


def _within(dtype: DType, low: float, high: float, tensor: Tensor) -> tuple[int, int]:
    least, most = (0, 1) if dtype is DType.BOOL else dtype.bounds
    if low < least or high > most or low != int(low) or high != int(high):
        raise InputError(
            f"{low:g} to {high:g} is not a range of {dtype.short}",
            where=f"input '{tensor.name}'",
            fix=f"whole numbers from {least} to {most}",
        )
    return int(low), int(high)


def read(file: str, tensor: Tensor, shape: Shape) -> Array:
    """Raw bytes of exactly the tensor, strings with NUL between, or a .npy."""
    if not Path(file).is_file():
        raise InputError(
            f"Failed to read the input_layer_value_file:{file}",
            where=f"input '{tensor.name}'",
            fix="check the path",
        )
    if tensor.dtype is DType.STRING:
        return _strings(file, tensor, shape)
    if file.endswith(".npy"):
        from ...runtime.inputs import fit

        with numpy_reader(file, "not a readable .npy file", "save it with np.save"):
            found = fit(np.load(file, allow_pickle=False), tensor)
        if found.shape != shape:
            raise InputError(
                f"it holds {list(found.shape)}, the input is {list(shape)}",
                where=file,
                fix="give an array of that shape",
            )
        return np.ascontiguousarray(found)
    blob = Path(file).read_bytes()
    wanted = tensor.dtype.numpy.itemsize * int(np.prod(shape))
    if len(blob) != wanted:
        raise InputError(
            f"The size of {file} is {len(blob)} bytes. It should be {wanted} bytes",
            where=f"input '{tensor.name}'",
            fix=f"raw {tensor.dtype.numpy} values of shape {list(shape)}",
        )
    return np.frombuffer(blob, tensor.dtype.numpy).reshape(shape).copy()


def _strings(file: str, tensor: Tensor, shape: Shape) -> Array:
    blob = Path(file).read_bytes()
    # A file that ends in NUL has no empty string behind it; a .pb is one string.
    items = [blob] if file.endswith(".pb") else blob.removesuffix(b"\0").split(b"\0")
    wanted = int(np.prod(shape))
    if len(items) != wanted:
        raise InputError(
            f"The number of string in the input_layer_value_file({file}) is "
            f"{len(items)}. It should be {wanted}",
            where=f"input '{tensor.name}'",
            fix="strings with one NUL byte between them",
        )
    made = np.empty(wanted, np.object_)
    made[:] = items
    return made.reshape(shape)
