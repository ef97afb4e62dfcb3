"""Pillow's own memory as an array: the pixels of a picture without a copy.

By Arrow's C data interface, which Pillow has since 11.2: a picture in colours is a list of four
bytes a pixel. https://arrow.apache.org/docs/format/CDataInterface.html
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from ...ir import Array

BYTES = 4  # of a pixel in Pillow's memory, whatever its colours


class _ArrowArray(ctypes.Structure):
    pass


_ArrowArray._fields_ = [
    *(
        (name, ctypes.c_int64)
        for name in ("length", "null_count", "offset", "n_buffers", "n_children")
    ),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]


class _ArrowPixels:
    """What NumPy makes an array of; keeps Pillow's memory as long as the array lives."""

    def __init__(self, address: int, shape: tuple[int, ...], capsule: object) -> None:
        self.capsule = capsule
        self.__array_interface__ = {
            "data": (address, True),
            "shape": shape,
            "typestr": "|u1",
            "version": 3,
        }


def borrowed(picture: Any) -> Array | None:
    """uint8 [height, width, 3] of a picture in RGB; None where Pillow is older, or keeps the
    picture in several pieces (which it does from 16 MB on)."""
    export = getattr(picture, "__arrow_c_array__", None)
    if export is None or not _is_dense(picture):
        return None
    try:
        capsule = export()[1]
    except ValueError:
        return None
    address = _address(capsule, picture.width * picture.height)
    shape = picture.height, picture.width, BYTES
    return np.asarray(_ArrowPixels(address, shape, capsule))[..., :3] if address else None


def _is_dense(picture: Any) -> bool:
    """Rows follow one another: PILLOW_ALIGNMENT, which nobody sets, would put them apart."""
    from PIL import Image

    alignment: int = Image.core.get_alignment()
    return picture.mode == "RGB" and alignment <= BYTES


def _address(capsule: object, pixels: int) -> int | None:
    """Return the address of the first pixel, if the array has the expected form."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    array = _ArrowArray.from_address(get(capsule, b"arrow_array"))
    if array.n_children != 1 or array.length != pixels or array.offset:
        return None
    values = array.children[0].contents
    if values.length != BYTES * pixels or values.n_buffers != 2 or values.offset:
        return None
    return int(values.buffers[1])
