"""LiteRT's own profiler, through the C functions of the library in its wheel.

The wheel's Python classes show no profiler, but `libLiteRt.so` exports one: a compiled model made
with the runtime option `enable_profiling` notes every op, those inside XNNPACK included. Times are
whole microseconds, cut off.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..delegates.engines.messages import captured_stderr
from ..errors import UnsupportedError
from ..ir import Array
from .engines import import_engine

_CPU = 1  # the set of accelerators
_WRITE = 1  # the way a buffer is locked
_TYPE_ROOM = 512  # bytes for a tensor's type: more than any version writes
_UNWRITTEN = 0xA5
# An event as it lies in memory (litert_profiler_event.h): eight words beside the memory figures.
_WORDS = 13
_TAG, _KIND, _ELAPSED, _NODE = 0, 1, 3, 10
# Kinds of events: an op of the interpreter, and one inside a delegate.
OP, INNER_OP = 2, 8

Pointer = ctypes.c_void_p
Size = ctypes.c_size_t


class Event(NamedTuple):
    tag: str
    kind: int
    seconds: float
    node: int  # in the file's graph, or inside the delegate


class Profiled:
    """A model compiled by LiteRT with its profiler on."""

    def __init__(self, path: str, threads: int, feeds: Mapping[str, Array], signature: str) -> None:
        import_engine("litert")
        import ai_edge_litert

        folder = Path(next(iter(ai_edge_litert.__path__)))
        try:
            self.library = ctypes.CDLL(str(folder / "libLiteRt.so"))
        except OSError as error:
            raise _cannot(f"its library cannot be loaded: {error}") from error
        self.libc = ctypes.CDLL(None)
        self.libc.strdup.restype = Pointer
        with captured_stderr():  # what matters is in its status
            self._compile(path, threads)
            self.signature, self.index = self._signature(signature)
            self.inputs = self._buffers("Input")
            self.outputs = self._buffers("Output")
            self._fill(feeds)
        self.profiler = self._made("LiteRtCompiledModelGetProfiler", self.compiled)
        if not self.profiler:
            raise _cannot("it gave no profiler")

    def _call(self, name: str, *args: Any) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise _cannot(f"this version has no {name}")
        status = function(*args)
        if status:
            raise _cannot(f"{name} failed with status {status}")

    def _made(self, name: str, *args: Any, kind: Callable[[], Any] = Pointer) -> Any:
        """What a function writes to its last argument."""
        made = kind()
        self._call(name, *args, ctypes.byref(made))
        return made

    def _compile(self, path: str, threads: int) -> None:
        self.environment = self._made("LiteRtCreateEnvironment", 0, None)
        self.model = self._made("LiteRtCreateModelFromFile", self.environment, os.fsencode(path))
        options = self._made("LiteRtCreateOptions")
        self._call("LiteRtSetOptionsHardwareAccelerators", options, _CPU)
        self._option(options, b"runtime_options_string", b"enable_profiling = true\n")
        self._option(options, b"xnnpack", b"num_threads = %d\n" % threads)
        self.compiled = self._made(
            "LiteRtCreateCompiledModel", self.environment, self.model, options
        )

    def _option(self, options: Pointer, name: bytes, text: bytes) -> None:
        """The library frees the text with free()."""
        free = ctypes.cast(self.libc.free, Pointer)
        made = self._made("LiteRtCreateOpaqueOptions", name, Pointer(self.libc.strdup(text)), free)
        self._call("LiteRtAddOpaqueOptions", options, made)

    def _signature(self, key: str) -> tuple[Pointer, int]:
        count = self._made("LiteRtGetNumModelSignatures", self.model, kind=Size).value
        for index in range(count):
            made = self._made("LiteRtGetModelSignature", self.model, Size(index))
            name = self._made("LiteRtGetSignatureKey", made, kind=ctypes.c_char_p).value
            if not key or os.fsdecode(name or b"") == key:
                return made, index
        raise _cannot(f"it finds no signature '{key}'")

    def _count(self, side: str) -> int:
        found: int = self._made(f"LiteRtGetNumSignature{side}s", self.signature, kind=Size).value
        return found

    def _buffers(self, side: str) -> Any:
        made = []
        for i in range(self._count(side)):
            needs = self._made(
                f"LiteRtGetCompiledModel{side}BufferRequirements",
                self.compiled,
                Size(self.index),
                Size(i),
            )
            tensor = self._made(f"LiteRtGetSignature{side}TensorByIndex", self.signature, Size(i))
            kind = (ctypes.c_char * _TYPE_ROOM)()
            self._call("LiteRtGetRankedTensorType", tensor, kind)
            made.append(
                self._made(
                    "LiteRtCreateManagedTensorBufferFromRequirements", self.environment, kind, needs
                ).value
            )
        return (Pointer * len(made))(*made)

    def _fill(self, feeds: Mapping[str, Array]) -> None:
        for i, buffer in enumerate(self.inputs):
            name = self._made(
                "LiteRtGetSignatureInputName", self.signature, Size(i), kind=ctypes.c_char_p
            ).value
            array = feeds.get(os.fsdecode(name or b""))
            array = list(feeds.values())[i] if array is None else array
            size = self._made("LiteRtGetTensorBufferPackedSize", Pointer(buffer), kind=Size).value
            if size != array.nbytes:
                raise _cannot(f"its input {i} takes {size} bytes, {array.nbytes} are given")
            place = Pointer()
            self._call("LiteRtLockTensorBuffer", Pointer(buffer), ctypes.byref(place), _WRITE)
            ctypes.memmove(place, np.ascontiguousarray(array).ctypes.data, size)
            self._call("LiteRtUnlockTensorBuffer", Pointer(buffer))

    def run(self) -> None:
        self._call(
            "LiteRtRunCompiledModel",
            self.compiled,
            Size(self.index),
            Size(len(self.inputs)),
            self.inputs,
            Size(len(self.outputs)),
            self.outputs,
        )

    def start(self) -> None:
        self._call("LiteRtResetProfiler", self.profiler)
        self._call("LiteRtStartProfiler", self.profiler)

    def stop(self) -> list[Event]:
        """The ops since the start."""
        self._call("LiteRtStopProfiler", self.profiler)
        count = self._made("LiteRtGetNumProfilerEvents", self.profiler, kind=ctypes.c_int)
        if not count.value:
            return []
        room = np.full(count.value * 512, _UNWRITTEN, np.uint8)
        self._call("LiteRtGetProfilerEvents", self.profiler, count, Pointer(room.ctypes.data))
        written = int(np.flatnonzero(room != _UNWRITTEN)[-1]) + 1
        if not _WORDS * 8 * (count.value - 1) < written <= _WORDS * 8 * count.value:
            raise _cannot("its events have a form that is not known here")
        words = room[: count.value * _WORDS * 8].view(np.uint64).reshape(-1, _WORDS)
        return [e for e in map(_event, words) if e.kind in (OP, INNER_OP)]


def _event(words: Any) -> Event:
    tag = ctypes.string_at(int(words[_TAG])).decode("utf-8", "replace")
    return Event(
        tag, int(words[_KIND]) & 0xFFFFFFFF, float(words[_ELAPSED]) / 1e6, int(words[_NODE])
    )


def _cannot(why: str) -> UnsupportedError:
    return UnsupportedError(
        f"LiteRT's profiler does not work here: {why}",
        where="engine litert",
        fix="measure the whole run with sanderling bench --engines litert",
    )
