"""When each step of a run was on the device: for profiles, and for traces as a track of its own.

Where a device has timers, a run is enqueued as ever, and they are read when it is over. Where it
has none, each launch is waited for, and the host's clock is around it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import Array
from ...runtime.delegate import StepTimes
from ...spans import Args, tape
from .recipe import WEIGHTS, Recipe

if TYPE_CHECKING:
    from .executable import GpuExecutable

NANOSECONDS = 1e9
now = time.perf_counter_ns


class Watch(StepTimes):
    """The times of an executable's steps, added up over runs that are counted."""

    workers, rate = 1, NANOSECONDS

    def __init__(self, made: GpuExecutable) -> None:
        self.made = made
        self.counts = False
        self.has_timers = True
        self._times = np.zeros((1, len(made.recipe.calls)))
        self._inside = np.zeros(1)
        self._ahead: int | None = None  # of the device's clock: the host's at the same moment

    # -- for profiles -----------------------------------------------------------------------------

    @property
    def report(self) -> Sequence[Mapping[str, str]]:
        return [_row(self.made.recipe, number) for number in range(len(self.made.recipe.calls))]

    @property
    def times(self) -> Array:
        return self._times

    @property
    def inside(self) -> Array:
        return self._inside

    @property
    def method(self) -> str:
        return "timers of the device" if self.has_timers else "the clock around each launch"

    def reset_times(self) -> None:
        self._times[:], self._inside[:] = 0, 0

    def count(self, on: bool) -> None:
        self.counts = on

    # -- runs -------------------------------------------------------------------------------------

    def run(self, launches: Sequence[Callable[[], Any]]) -> None:
        """All launches, one after the other, until they are over."""
        begin = now()
        with self.made.device.timed(self.made.timeout) as self.has_timers:
            spans = self._timed(launches) if self.has_timers else self._waited(launches)
        if self.counts:
            self._times[0] += spans[:, 1] - spans[:, 0]
            self._inside += now() - begin
        recorder = tape.recorder
        if recorder is not None:
            queue = recorder.track(f"queue of {self.made.device.offers.name}")
            found = np.zeros((2, len(spans), 3), np.int64)
            found[1, :, :2] = spans
            recorder.native(self.rows, partial(np.copy, found), [0, queue])

    def _timed(self, launches: Sequence[Callable[[], Any]]) -> Array:
        """The device's clock runs ahead of the host's by an amount that the least time between a
        step's end and the news of it tells."""
        device = self.made.device
        launched = [launch() for launch in launches]
        device.wait(self.made.timeout)
        end = now()
        found = np.array([device.span(each) for each in launched], np.int64).reshape(-1, 2)
        if len(found):
            ahead = end - int(found[-1, 1])
            self._ahead = ahead if self._ahead is None else min(self._ahead, ahead)
        return found + (self._ahead or 0)

    def _waited(self, launches: Sequence[Callable[[], Any]]) -> Array:
        found = []
        for launch in launches:
            begin = now()
            launch()
            self.made.device.wait(self.made.timeout)
            found.append((begin, now()))
        return np.array(found, np.int64).reshape(-1, 2)

    @cached_property
    def rows(self) -> list[Args]:
        """What a trace says about each step."""
        calls, nodes = self.made.recipe.calls, self.made.nodes
        return [
            {
                "op": call.ops.split(" ")[0] or call.name,
                "node": next((nodes[p] for p in reversed(call.places) if p < len(nodes)), -1),
                "step": f"{number} {call.name}",
                "kernel": call.kernel,
                "ops": call.ops,
                "delegate": "gpu",
                "macs": call.macs,
                "size": list(call.size),
                "group": list(call.group),
            }
            for number, call in enumerate(calls)
        ]


def _row(recipe: Recipe, number: int) -> dict[str, str]:
    call = recipe.calls[number]
    places = [recipe.places[i] for i in call.arguments]
    weights = sum(place.nbytes for place in places if place.kind == WEIGHTS)
    return {
        "kernel": call.name,
        "places": ",".join(map(str, call.places)),
        "inputs": call.kind,
        "weights": str(weights),
        "reads": str(call.read),
        "writes": str(call.written),
    }
