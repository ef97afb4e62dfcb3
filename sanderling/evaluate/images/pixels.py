"""Pictures from files as arrays, and their resizing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...delegates.cpu.kernels.vision import image_input
from ...delegates.cpu.kernels.vision.image_input_kinds import COLOURS, LANES, Kind
from ...errors import InputError, MissingExtraError
from ...ir import Array, DType
from ...runtime.inputs import PICTURES
from .pillow_memory import borrowed

RAW = ".rgb8"  # TensorFlow Lite's tool reads bare pixels, already of the model's size
Size = tuple[int, int]  # height, width


# -- resizing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PixelFinish:
    """What resized pixels become: (pixel - mean) * factor, rounded to float32 twice, as reals or as
    integers cut off towards zero. flipped: blue first; mean and factor are in the new order."""

    mean: tuple[float, ...] = (0.0,)
    factor: tuple[float, ...] = (1.0,)
    dtype: DType = DType.FLOAT32
    flipped: bool = False

    def __call__(self, pixels: Array) -> Array:
        """Compute the definition in NumPy."""
        ordered = pixels[..., ::-1] if self.flipped else pixels
        if self.mean == (0.0,) and self.factor == (1.0,):
            return ordered.astype(self.dtype.numpy)
        made = (ordered - np.asarray(self.mean, np.float32)) * np.asarray(self.factor, np.float32)
        return np.asarray(made, self.dtype.numpy)

    @cached_property
    def values(self) -> Array:
        """Return a row of means and a row of factors, as the compiled code reads them."""
        made = np.zeros((2, LANES), np.float32)
        made[:, :COLOURS] = [np.resize(v, COLOURS) for v in (self.mean, self.factor)]
        return made


def resize(pixels: Array, size: Size, how: str) -> Array:
    """tflite gives float32; Pillow's give uint8 of uint8."""
    return finished(pixels, size, PixelFinish()) if how == "tflite" else _pillow(pixels, size, how)


def finished(pixels: Array, size: Size, finish: PixelFinish) -> Array:
    """`finish` of TensorFlow Lite's bilinear; in one pass where there is code for it."""
    made = _compiled(pixels, size, finish)
    if made is not None:
        return made
    return finish(pixels if pixels.shape[:2] == size else tflite_bilinear(pixels, size))


COMPILED = (DType.FLOAT32, DType.UINT8, DType.INT8)


def _compiled(pixels: Array, size: Size, finish: PixelFinish) -> Array | None:
    height, width, colours = pixels.shape
    if pixels.dtype != np.uint8 or colours != COLOURS or not pixels.size:
        return None
    if finish.dtype not in COMPILED:
        return None
    flipped = finish.flipped
    if pixels.strides[2] == -1:
        pixels, flipped = pixels[..., ::-1], not flipped
    if pixels.strides[2] != 1:
        pixels = np.ascontiguousarray(pixels)
    same, is_float = (height, width) == size, finish.dtype is DType.FLOAT32
    run = image_input.function(Kind(not same, flipped, is_float))
    if run is None:
        return None
    made = np.empty((*size, colours), finish.dtype.numpy)
    # Held here: another thread may push them out of the cache.
    rows, columns = _records(height, size[0]), _records(width, size[1])
    run(
        made.ctypes.data,
        pixels.ctypes.data,
        *pixels.strides[:2],
        rows.ctypes.data,
        columns.ctypes.data,
        *size,
        finish.values.ctypes.data,
    )
    return made


@lru_cache(256)
def _records(old: int, new: int) -> Array:
    """Return `_taps` in the form that the compiled code reads."""
    low, high, share = _taps(old, new)
    made = np.empty((new, 4), np.int32)
    made[:, 0], made[:, 1] = low, high
    made[:, 2], made[:, 3] = (1 - share).view(np.int32), share.view(np.int32)
    return made


@lru_cache(256)
def _taps(old: int, new: int) -> tuple[Array, Array, Array]:
    """Return the lower neighbour, the upper neighbour and the upper one's share."""
    at = np.arange(new, dtype=np.float32) * (np.float32(old) / np.float32(new))
    low = np.floor(at).astype(np.intp)
    return low, np.minimum(low + 1, old - 1), at - low.astype(np.float32)


@lru_cache(256)
def _columns(old: int, new: int, colours: int) -> tuple[Array, Array, Array]:
    """As _taps, for rows in which the colours stand side by side: taking single numbers by their
    place is three times as fast as taking pixels."""
    low, high, share = _taps(old, new)
    left, right = ((n[:, None] * colours + np.arange(colours)).reshape(-1) for n in (low, high))
    return left, right, np.repeat(share, colours)


def tflite_bilinear(pixels: Array, size: Size) -> Array:
    """RESIZE_BILINEAR with align_corners and half_pixel_centers off, bit for bit in float32."""
    height, width, colours = pixels.shape
    if (height, width) == size:
        return pixels.astype(np.float32)  # all shares are 0: each pixel is itself
    top, bottom, y = _taps(height, size[0])
    left, right, x = _columns(width, size[1], colours)
    rows = np.ascontiguousarray(pixels).reshape(height, width * colours)
    y = y[:, None]
    upper, lower = rows[top], rows[bottom]
    result = _corner(upper, left, 1 - y, 1 - x)
    result += _corner(lower, left, y, 1 - x)
    result += _corner(upper, right, 1 - y, x)
    result += _corner(lower, right, y, x)
    return result.reshape(*size, colours)


def _corner(rows: Array, columns: Array, y: Array, x: Array) -> Array:
    """One neighbour's term, multiplied in the kernel's order."""
    term = np.multiply(np.take(rows, columns, axis=1), y, dtype=np.float32)
    term *= x
    return term


def _pillow(pixels: Array, size: Size, how: str) -> Array:
    image = image_module()
    method = getattr(image.Resampling, how.upper())
    if pixels.dtype == np.uint8:
        kind = np.squeeze(pixels, 2) if pixels.shape[2] == 1 else pixels
        made = image.fromarray(np.ascontiguousarray(kind)).resize(size[::-1], method)
        return np.asarray(made).reshape(*size, pixels.shape[2])
    planes = [
        image.fromarray(np.ascontiguousarray(pixels[..., c], np.float32))
        for c in range(pixels.shape[2])
    ]
    return np.stack([np.asarray(p.resize(size[::-1], method)) for p in planes], axis=-1)


def image_module() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "image", "reading pictures") from error
    return Image


# -- files --------------------------------------------------------------------------------------


def find_images(folder: Path) -> list[Path]:
    """The folder's pictures, sorted by name as TensorFlow Lite's tool sorts them."""
    if not folder.is_dir():
        what = "it is not a folder" if folder.exists() else "there is no such folder"
        raise InputError(what, where=str(folder), fix="give the folder that holds the pictures")
    kinds = {*PICTURES, RAW}
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() in kinds)
    if not found:
        inside = sum(1 for _ in folder.iterdir())
        what = f"no picture among its {inside} entries" if inside else "the folder is empty"
        known = ", ".join(sorted(kinds))
        raise InputError(what, where=str(folder), fix=f"known file types: {known}")
    return found


def read_pixels(path: Path, colours: int = 3, lent: bool = False) -> Array:
    """uint8 [height, width, colours]; InputError where the file is not a whole picture.

    lent: in Pillow's own memory where that can be had, without a copy; pixels then lie four bytes
    apart.
    """
    image = image_module()
    try:
        with image.open(path) as picture:
            mode = "L" if colours == 1 else "RGB"
            picture = picture if picture.mode == mode else picture.convert(mode)
            pixels = borrowed(picture) if lent and mode == "RGB" else None
            pixels = np.asarray(picture) if pixels is None else pixels
    except (OSError, ValueError, SyntaxError, EOFError, image.DecompressionBombError) as error:
        said = str(error).replace(f" {str(path)!r}", "")
        raise InputError(
            f"not a readable picture: {said}",
            where=str(path),
            fix="check that the file is complete",
        ) from error
    return pixels.reshape(*pixels.shape[:2], colours)


def read_raw(path: Path, size: Size, colours: int) -> Array:
    pixels = np.fromfile(path, np.uint8)
    if pixels.size != size[0] * size[1] * colours:
        raise InputError(
            f"{pixels.size} bytes, an input of {size[0]}x{size[1]}x{colours} has "
            f"{size[0] * size[1] * colours}",
            where=str(path),
            fix="make it of the model's size, or give a JPEG",
        )
    return pixels.reshape(*size, colours)
