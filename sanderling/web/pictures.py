"""Pictures of samples that two models disagree on. A record says where they lie, and anybody may
have written it: only pictures are shown, and only from folders that the user named."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..files import foreign_reader
from ..ir import Array

LARGEST = 32 << 20  # bytes of a picture's file, or of an array's
UNPACKED = 1 << 28
MOST_PIXELS = 1 << 22
# The first bytes of a file, and what it is then; nothing else is sent.
KINDS = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png", b"GIF8": "image/gif",
         b"BM": "image/bmp"}  # fmt: skip


class Picture(NamedTuple):
    content: bytes
    kind: str


def allowed_folders(folder: Path, more: Sequence[Path]) -> list[Path]:
    """The folder that is served, those of --pictures, and the data that the package brings."""
    package = Path(str(files("sanderling") / "data"))
    return [p.resolve() for p in (folder, *more, package)]


def picture_of(row: Mapping[str, Any], beside: Path, allowed: Sequence[Path]) -> Picture:
    """The picture of a sample; beside: the folder of its record, from which paths may go out."""
    path = _found(str(row.get("file") or ""), beside, allowed)
    if path.stat().st_size > LARGEST:
        raise InputError("the file is too large to be shown", where=path.name, fix="see the file")
    if path.suffix.lower() == ".npz":
        return Picture(png(_row_of(path, row)), "image/png")
    content = path.read_bytes()
    for start, kind in KINDS.items():
        if content.startswith(start):
            return Picture(content, kind)
    raise InputError("it is not a picture", where=path.name, fix="JPEG, PNG, GIF and BMP are shown")


def _found(name: str, beside: Path, allowed: Sequence[Path]) -> Path:
    for start in (beside, *allowed):
        try:
            path = (start / name).resolve()
            if path.is_file() and any(path.is_relative_to(a) for a in allowed):
                return path
        except (OSError, ValueError):
            continue
    raise InputError(
        "the picture is not in the folder that is served",
        where=Path(name).name[:100],
        fix="name its folder: sanderling serve --pictures FOLDER",
    )


def _row_of(path: Path, row: Mapping[str, Any]) -> Array:
    """A sample of an array whose rows are samples: the largest array that looks like pictures."""
    number = int(row["row"])
    with foreign_reader(path, "the array", "check the file"), zipfile.ZipFile(path) as packed:
        if sum(i.file_size for i in packed.infolist()) > UNPACKED:
            raise InputError("it is too large to be shown", where=path.name, fix="see the file")
    with foreign_reader(path, "the array", "check the file"), np.load(path) as arrays:
        found = [a for name in arrays.files[:20] if _is_pictures(a := arrays[name])]
    if not found:
        raise InputError("it holds no pictures", where=path.name, fix="see the file")
    pixels = max(found, key=lambda a: a[0].size)
    return pixels[number]


def _is_pictures(array: Array) -> bool:
    """[samples, height, width] or with 1 or 3 channels."""
    fits = array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3))
    return fits and array.dtype.kind in "uif" and len(array) > 0 and array[0].size <= MOST_PIXELS


def png(pixels: Array) -> bytes:
    """An array as a picture, its values stretched from black to white."""
    values = np.nan_to_num(pixels.astype(np.float64))
    low, high = float(values.min()), float(values.max())
    scaled = ((values - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    if scaled.ndim == 2:
        scaled = scaled[:, :, None]
    height, width, channels = scaled.shape
    rows = np.concatenate(
        [np.zeros((height, 1), np.uint8), scaled.reshape(height, width * channels)], axis=1
    )
    head = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*c) for c in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)
