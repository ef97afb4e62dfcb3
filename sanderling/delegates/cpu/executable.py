"""Running a compiled part: context, arena, worker threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_

import numpy as np

from ...ir import Array
from .image import Image, Loaded
from .program import ALIGN, ARENA, FIRST_ARG, SCRATCH, SLACK, STRIDE, SYNC, TIMES, WEIGHTS
from .sync import SYNC_WORDS

_INVOKE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p)
_STOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_SERVE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@dataclass(frozen=True)
class Compiled:
    """All that a part's execution needs: what the cache stores."""

    image: Image
    weights: Array
    arena: int
    scratch: int
    steps: tuple[str, ...]
    args: int
    macs: int = 0
    timed: bool = False
    report: tuple[dict[str, str], ...] = field(default=())


def aligned(size: int) -> Array:
    block = np.zeros(size + ALIGN + SLACK, np.uint8)
    skip = -block.ctypes.data % ALIGN
    return block[skip : skip + size + SLACK]


def address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


class CpuExecutable:
    """One native call per run. Workers 1 to n-1 are threads parked in native code."""

    def __init__(self, compiled: Compiled, workers: int) -> None:
        self.compiled, self.workers = compiled, workers
        self._code = Loaded(compiled.image)
        self._arena = aligned(compiled.arena)
        self._scratch = aligned(compiled.scratch * workers)
        self._sync = np.zeros(SYNC_WORDS, np.int32)
        self.times = np.zeros((workers, max(len(compiled.steps), 1)), np.int64)
        self._context = np.zeros(FIRST_ARG + compiled.args, np.int64)
        for slot, memory in ((ARENA, self._arena), (WEIGHTS, compiled.weights),
                             (SCRATCH, self._scratch), (SYNC, self._sync),
                             (TIMES, self.times)):  # fmt: skip
            self._context[slot] = address(memory)
        self._context[STRIDE] = compiled.scratch
        self._where = address(self._context)
        self._invoke = _INVOKE(self._code.entry("invoke"))
        self._serve = _SERVE(self._code.entry("serve"))
        self._last: list[Array | None] = []
        self._threads: list[threading.Thread] = []

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        if len(self._threads) < self.workers - 1:
            self._start()
        self._place(inputs, outputs)
        self._invoke(self.workers, self._where)

    def _place(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        """Enter the arrays' addresses, unless they are those of the last run."""
        arrays = [*inputs, *outputs]
        if len(self._last) == len(arrays) and all(map(is_, arrays, self._last)):
            return
        for slot, array in enumerate(arrays, FIRST_ARG):
            assert array is not None, "a part with dynamic outputs is not compiled"
            self._context[slot] = address(array)
        self._last = arrays

    def _start(self) -> None:
        for worker in range(1, self.workers):
            thread = threading.Thread(
                target=self._serve, args=(worker, self.workers, self._where),
                name=f"sanderling-{worker}", daemon=True,
            )  # fmt: skip
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Send the workers home."""
        if self._threads:
            _STOP(self._code.entry("stop"))(self._where)
            for thread in self._threads:
                thread.join(timeout=5)
            self._threads = []

    def __del__(self) -> None:
        if getattr(self, "_threads", None):
            self.close()
