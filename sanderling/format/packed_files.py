"""Files that are packed behind a model: a ZIP archive at its end, as TensorFlow Lite's metadata
tools write it. A .tflite with class names in it is both a model and an archive."""

from __future__ import annotations

import io
import warnings
import zipfile
import zlib
from collections.abc import Mapping

from ..errors import FormatWarning

END = b"PK\x05\x06"  # where an archive's last record begins
LAST = (1 << 16) + 22  # bytes from the end in which it lies, its comment included
MOST_FILES, MOST_BYTES = 1000, 64 << 20  # of an archive that is unpacked


DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, OSError,
          EOFError)  # fmt: skip


def has_packed(data: memoryview) -> bool:
    """Whether an archive may lie at the end."""
    return END in bytes(data[-LAST:])


def read_packed(data: memoryview) -> dict[str, bytes]:
    """The files by name; none where there is no archive. What cannot be unpacked is left out with
    a warning: the model itself is whole without it."""
    if not has_packed(data):
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            listed = archive.infolist()
            if len(listed) > MOST_FILES or sum(i.file_size for i in listed) > MOST_BYTES:
                raise ValueError
            return {info.filename: archive.read(info) for info in listed if not info.is_dir()}
    except DAMAGE as error:
        if not isinstance(error, zipfile.BadZipFile):  # bytes of weights may look like an archive
            what = "they are more than a model has" if isinstance(error, ValueError) else "damaged"
            warnings.warn(f"files behind the model are left out: {what}", FormatWarning, 3)
        return {}


def pack(model: bytes, files: Mapping[str, bytes]) -> bytes:
    """The model with an archive behind it. Nothing is compressed, so that files can be mapped, and
    no time is written, so that the same files give the same bytes."""
    target = io.BytesIO(model)
    target.seek(0, io.SEEK_END)
    with zipfile.ZipFile(target, "a", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return target.getvalue()
