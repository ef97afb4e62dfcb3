"""Traces that other tools captured, read as ours: Perfetto, systrace, Instruments.

read_trace("phone.perfetto-trace")  # a Trace: insights() and op_times() take it
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from gzip import BadGzipFile

from ...errors import InputError
from ...files import read_bytes
from ...runtime.trace_data import Trace
from ...runtime.tracefile import WRITER, read
from . import instruments_file, perfetto_file, systrace_file
from .tflite_events import as_trace
from .timeline import Timeline
from .unpacked import GZIP, Unpacker

FORMATS = (
    f"ours ({WRITER}), Perfetto's (protobuf), systrace's (.html or text) or Instruments' "
    "(xctrace export)"
)
Reader = Callable[[bytes], Timeline]
# Who can tell its own files, and reads them.
READERS: tuple[tuple[Callable[[bytes], bool], Reader], ...] = (
    (instruments_file.is_export, instruments_file.read),
    (systrace_file.is_systrace, systrace_file.read),
    (perfetto_file.is_perfetto, perfetto_file.read),
)


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """A trace of whatever tool: what `sanderling trace -o FILE.json` wrote, or a capture."""
    fix = f"give a trace of a known format: {FORMATS}"
    content = read_bytes(path, "the trace", fix)
    if content.lstrip()[:1] in (b"{", b"["):
        return read(path, fix)
    try:
        content = Unpacker().gzip(content) if content.startswith(GZIP) else content
        reader = next((read for knows, read in READERS if knows(content)), None)
        timeline = reader(content) if reader is not None else None
    except InputError as error:
        raise InputError(error.what, where=os.fspath(path), fix=error.fix) from error
    except (ValueError, KeyError, IndexError, zlib.error, BadGzipFile, EOFError) as error:
        raise InputError(
            f"the trace is damaged: {error}", where=os.fspath(path), fix="capture it once more"
        ) from error
    if timeline is None:
        raise InputError("this is no trace that can be read", where=os.fspath(path), fix=fix)
    return as_trace(timeline, os.fspath(path))


__all__ = ["read_trace"]
