"""Compressed captures, unpacked up to a limit: a few kilobytes can stand for gigabytes."""

from __future__ import annotations

import gzip
import io
import zlib

from ...config import MAX_MEMORY
from ...errors import InputError

GZIP = b"\x1f\x8b"
HELD = 16  # bytes of events in memory for a byte of a capture, about


class Unpacker:
    """Unpacks the pieces of one capture, all of which share the limit."""

    def __init__(self) -> None:
        self.limit = self.left = MAX_MEMORY.size() // HELD

    def gzip(self, content: bytes) -> bytes:
        return self._counted(gzip.GzipFile(fileobj=io.BytesIO(content)).read(self.left + 1))

    def zlib(self, content: bytes) -> bytes:
        stream = zlib.decompressobj()
        made = self._counted(stream.decompress(content, self.left + 1))
        if not stream.eof:
            raise EOFError("the compressed data ends too early")
        return made

    def _counted(self, made: bytes) -> bytes:
        self.left -= len(made)
        if self.left >= 0:
            return made
        raise InputError(
            f"the trace unpacks to more than {self.limit} bytes",
            fix=f"record for a shorter time, or set {MAX_MEMORY.name}",
        )
