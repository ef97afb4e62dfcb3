"""From files to input arrays: .npy, .npz, pictures; and between reals and a tensor's integers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import InputError, MissingExtraError
from ..files import foreign_reader, numpy_reader, read_text
from ..ir import Array, DType, Tensor
from .feeds import as_bytes, converts, type_hint
from .feeds import is_quantized as is_quantized  # for those who read inputs
from .sound import SOUNDS, read_sound

ARRAYS = (".npy", ".npz")
PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


@dataclass(frozen=True)
class Picture:
    """How a picture becomes an input: size, colour order, and (pixel - mean) / std.

    Without mean and std, a float input gets 0..1 and an integer input the pixels themselves
    (shifted by 128 for int8), which is what most models are made for.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    resample: str = "bilinear"
    bgr: bool = False


def read_array(
    path: str | Path,
    tensor: Tensor,
    picture: Picture | None = None,
    name: str = "",
    rate: int | None = None,
) -> Array:
    """The file's content as an array for this input, its batch dimension added where it lacks.

    name: what the user calls the input, where that is not the tensor's name.
    rate: samples a second that the model takes, for sounds.
    """
    name = name or tensor.name
    path = Path(path)
    if not path.is_file():
        what = "it is a folder or a pipe, not a file" if path.exists() else "there is no such file"
        raise InputError(what, where=str(path), fix="check the path: a file's name says its type")
    if path.suffix.lower() in PICTURES:
        array = read_picture(path, tensor, picture or Picture())
    elif path.suffix.lower() in SOUNDS:
        array = read_sound(path, tensor, rate)
    else:
        array = _read_numpy(path, name if name == tensor.name else (name, tensor.name))
    try:
        return fit(array, tensor, str(path))
    except InputError as error:
        raise InputError(error.what, where=f"input '{name}' from {path}", fix=error.fix) from error


def fits_shape(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether an array of this shape is one of the wanted: -1 stands for any size."""
    return len(shape) == len(wanted) and all(
        n in (-1, m) for n, m in zip(wanted, shape, strict=True)
    )


def wrong_shape(
    name: str, path: str | Path, shape: Sequence[int], wanted: Sequence[int], fix: str
) -> InputError:
    """The one error for a file whose array is not of the input's shape."""
    return InputError(
        f"it has the shape {list(shape)}, not {list(wanted)}",
        where=f"input '{name}' from {path}",
        fix=fix,
    )


def _read_numpy(path: Path, asked: str | tuple[str, ...]) -> Array:
    """A .npy, or the array of one of these names (or the only one) in a .npz."""
    wanted = (asked,) if isinstance(asked, str) else asked
    kinds = ", ".join([*ARRAYS, *SOUNDS, *sorted(PICTURES)])
    known = path.suffix.lower() in ARRAYS
    with numpy_reader(
        path,
        f"not a readable {path.suffix} file" if known else f"unknown file type '{path.suffix}'",
        f"save it with np.save or np.savez; known file types: {kinds}",
    ):
        loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        names = list(loaded.files)
        found = next((n for n in wanted if n in names), names[0] if len(names) == 1 else None)
        if found is None:
            raise InputError(
                f"no array '{wanted[0]}' in it",
                where=str(path),
                fix=f"it holds {', '.join(names) or 'nothing'}",
            )
        with numpy_reader(
            path, f"its array '{found}' cannot be read", "save it again with np.savez"
        ):
            return np.asarray(loaded[found])


def read_picture(path: Path, tensor: Tensor, how: Picture) -> Array:
    """Decode, resize to the input's height and width, normalise."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "image", "reading pictures") from error
    size, channels, first = picture_layout(tensor)
    with (
        foreign_reader(path, "not a readable picture", "check that the file is complete"),
        Image.open(path) as picture,
    ):
        converted = picture.convert("L" if channels == 1 else "RGB")
        width, height = (wanted or own for wanted, own in zip(size, converted.size, strict=True))
        resized = converted.resize((width, height), _resampling(how.resample))
        pixels: Array = np.asarray(resized, np.float32).reshape(height, width, channels)
    if how.bgr:
        pixels = pixels[..., ::-1]
    made = _normalise(pixels, tensor, how)
    return np.ascontiguousarray(made.transpose(2, 0, 1) if first else made)[None]


def _resampling(name: str) -> int:
    from PIL import Image

    known = {
        "nearest": Image.Resampling.NEAREST,
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "box": Image.Resampling.BOX,
    }
    if name not in known:
        raise InputError(f"no resampling '{name}'", fix=f"one of {', '.join(known)}")
    return known[name]


def picture_layout(tensor: Tensor) -> tuple[tuple[int, int], int, bool]:
    """(width, height), with 0 where the model takes any; channels; and whether they come first."""
    shape = tensor.signature or tensor.shape
    for first, order in ((False, (1, 2, 3)), (True, (2, 3, 1))):
        if len(shape) == 4 and 0 not in shape and shape[order[2]] in (1, 3):
            height, width, channels = (max(shape[i], 0) for i in order)
            return (width, height), channels, first
    raise InputError(
        f"a picture does not fit an input of {tensor.type_text}",
        where=f"input '{tensor.name}'",
        fix="pictures fit inputs of shape [1, height, width, 3 or 1]; give a .npy instead",
    )


def _normalise(pixels: Array, tensor: Tensor, how: Picture) -> Array:
    if how.mean is not None or how.std is not None:
        return np.asarray(
            (pixels - _colours(how.mean or (0,), pixels)) / _colours(how.std or (1,), pixels),
            np.float32,
        )
    if tensor.dtype.is_float:
        return pixels / np.float32(255)
    shift = 128 if tensor.dtype is DType.INT8 else 0
    return (pixels - shift).astype(tensor.dtype.numpy)


def _colours(values: tuple[float, ...], pixels: Array) -> Array:
    if len(values) not in (1, pixels.shape[-1]):
        raise InputError(
            f"{len(values)} numbers for mean or std, the input has {pixels.shape[-1]} colours",
            fix="give one number, or one a colour",
        )
    return np.asarray(values, np.float32)


def fit(array: Array, tensor: Tensor, where: str = "") -> Array:
    """The array in the input's type: reals are quantised by the tensor's parameters, and token ids,
    which tokenizers give in 64 bits, are narrowed."""
    if array.ndim + 1 == len(tensor.shape):
        array = array[None]
    if array.dtype == tensor.dtype.numpy:
        return array
    if array.dtype.kind == "f" and not tensor.dtype.is_float and tensor.quant is not None:
        return quantize_array(array, tensor)
    if tensor.dtype is DType.STRING:
        return as_bytes(array)
    if converts(array, tensor) or _are_ids(array, tensor):
        return array.astype(tensor.dtype.numpy)
    raise InputError(
        f"an array of {array.dtype} does not fit {tensor.type_text}",
        where=where or f"input '{tensor.name}'",
        fix=type_hint(tensor, array),
    )


def _are_ids(array: Array, tensor: Tensor) -> bool:
    """Whether they are integers for an input of plain wide integers, which holds each of them."""
    if array.dtype.kind not in "iu" or not tensor.dtype.is_integer or tensor.dtype.bits < 32:
        return False
    low, high = tensor.dtype.bounds
    return not is_quantized(tensor) and bool(((array >= low) & (array <= high)).all())


def quantize_array(values: npt.ArrayLike, tensor: Tensor) -> Array:
    """Reals to the tensor's integers: round(x / scale) + zero_point, clamped."""
    from ..ops.fixed import round_away  # all operators come with it

    quant = tensor.quant
    if quant is None or not quant.scale.size:
        raise InputError(
            "it has no quantisation parameters",
            where=f"tensor '{tensor.name}'",
            fix=f"give it {tensor.dtype.numpy} values",
        )
    scale, zero = _broadcast(quant.scale, tensor), _broadcast(quant.zero_point, tensor)
    reals = np.asarray(values, np.float32)
    unreal = int(np.isnan(reals).sum())
    if unreal:
        raise InputError(
            f"{unreal} of {reals.size} values are NaN, which no integer stands for",
            where=f"tensor '{tensor.name}'",
            fix="replace them first",
        )
    with np.errstate(all="ignore"):  # infinities become the largest and smallest code
        codes = round_away(reals / scale) + zero
    return np.clip(codes, *tensor.dtype.bounds).astype(tensor.dtype.numpy)


def dequantize_array(codes: npt.ArrayLike, tensor: Tensor) -> Array:
    """The tensor's integers to reals; what is not quantised comes back as it is."""
    quant = tensor.quant
    array = np.asarray(codes)
    if quant is None or not quant.scale.size or array.dtype.kind not in "iu":
        return array
    scale, zero = _broadcast(quant.scale, tensor), _broadcast(quant.zero_point, tensor)
    return ((array.astype(np.int64) - zero) * scale).astype(np.float32)


def _broadcast(values: Array, tensor: Tensor) -> Array:
    """Per-axis parameters shaped to line up with their axis."""
    if values.size == 1:
        return values.reshape(())
    shape = [1] * len(tensor.shape)
    shape[tensor.quantisation.axis] = -1
    return values.reshape(shape)


def class_names(path: Path) -> list[str]:
    """The names of a label file, one a line."""
    fix = "give a text file with one class name a line"
    names = read_text(path, "the labels", fix).rstrip().splitlines()
    if not names:
        raise InputError("there is no label in it", where=str(path), fix=fix)
    header = _header(names, path.suffix)
    if header:
        raise InputError(
            f"it is a CSV with the columns {', '.join(header)}",
            where=str(path),
            fix="write the column of the names alone into a text file, one name a "
            "line, without the line of headings",
        )
    return names


def _header(lines: Sequence[str], suffix: str) -> list[str]:
    """The headings of a table with commas, none of other lines: names have commas in them too, but
    not as many in each line, nor numbers below a word."""
    try:
        first, *rest = csv.reader(lines)
    except csv.Error:  # a line too long for a table
        return []
    if not rest or len(first) < 2 or any(len(row) != len(first) for row in rest):
        return []
    numbered = [all(row[i].strip().isdigit() for row in rest) for i in range(len(first))]
    words = not any(cell.strip().isdigit() for cell in first)
    return first if words and (any(numbered) or suffix.lower() == ".csv") else []
