"""Running code that notes when each step begins and ends on each worker."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np

from ....ir import Array
from ....spans import Args, tape
from .abi import LOG, TIMES
from .executable import Compiled, CpuExecutable, address

_CLOCK = ctypes.CFUNCTYPE(ctypes.c_int64)


class TracedExecutable(CpuExecutable):
    """As its parent; every run tells the recorder, if there is one.

    Ticks become nanoseconds by two readings of both clocks, right before and right after the run.
    """

    traced = True

    def __init__(self, compiled: Compiled, workers: int, key: str | None = None) -> None:
        super().__init__(compiled, workers, key)
        # A row for the worker itself, then one a step; see abi.py.
        self._log = np.zeros((workers, len(compiled.steps) + 1, LOG), np.int64)
        self._context[TIMES] = address(self._log)
        self._clock = _CLOCK(self._code.entry("clock"))
        self._counts = compiled.timed

    @cached_property
    def rows(self) -> list[Args]:
        """What a trace says about each step."""
        steps = enumerate(self.compiled.report)
        return [_row(number, about, self.nodes) for number, about in steps]

    def _caller(self) -> Callable[..., None]:
        return self._told

    def _told(self, *arrays: Array) -> None:
        self._enter([address(a) for a in arrays])
        self._told_run()

    def count(self, on: bool) -> None:
        self._counts = on

    def _told_run(self) -> None:
        if tape.recorder is None and not self._counts:  # the recording is over
            if self._invoke(self.workers, self._where):
                self._complain()
            return
        log, clock, now = self._log, self._clock, time.perf_counter_ns
        log[:] = 0  # a step that is skipped leaves its row as it is
        # In this order: what happens in between lies in between on both clocks.
        begin = now(), clock()
        fault = self._invoke(self.workers, self._where)
        end = clock(), now()
        if self._counts:
            self.times += log[:, 1:, 1] - log[:, 1:, 0]
            self.inside += end[0] - begin[1]
        recorder = tape.recorder
        if recorder is not None:
            threads = _named(log[:, 0, 0].tolist(), self)
            recorder.native(self.rows, partial(_nanoseconds, log.copy(), begin, end), threads)
        if fault:
            self._complain()


def _nanoseconds(log: Array, begin: tuple[int, int], end: tuple[int, int]) -> Array:
    """The steps' times. Zeros stay: they are no times."""
    ticks = log[:, 1:]
    (ns0, tick0), (tick1, ns1) = begin, end
    rate = (ns1 - ns0) / max(tick1 - tick0, 1)
    found = np.clip(ns0 + np.rint((ticks - tick0) * rate).astype(np.int64), ns0, ns1)
    return np.where(ticks == 0, 0, found)


def _named(threads: list[int], owner: object) -> list[int]:
    """Numbers of threads; where the system tells none, such as no thread has."""
    return [t or -(id(owner) % 2**30 + i) for i, t in enumerate(threads)]


def _short(ops: list[str]) -> str:
    """CONV_2D, DEPTHWISE_CONV_2D+CONV_2D, RESHAPE+6 more."""
    return "+".join(ops) if len(ops) <= 3 else f"{ops[0]}+{len(ops) - 1} more"


def _row(number: int, about: dict[str, str], nodes: Sequence[int]) -> Args:
    places = [int(p) for p in about["places"].split(",") if p]
    name = _short(about["ops"].split(",")) if places else about["op"].split(" ")[0]
    known = [nodes[p] for p in places if p < len(nodes)]
    made = {
        "op": name,
        "node": known[-1] if known else -1,
        "step": f"{number} {name}",
        "kernel": about["kernel"],
        "writes": about["op"],
        "delegate": "cpu",
        "macs": int(about["macs"]),
        "inputs": about["inputs"],
        "outputs": about["outputs"],
    }
    fused = {"nodes": known, "fused ops": about["ops"].split(",")}
    return made | (fused if len(places) > 1 else {})
