"""Work-group sizes: those of the device's class, or the fastest of some that are tried.

TensorFlow Lite's words: `fast_single_answer`, the default, takes the table's sizes,
`sustained_speed` tries many of every kernel, and `balanced` tries some of the costliest, for a
second. What was found is kept with the programs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...errors import DelegateError
from .executable import GpuExecutable
from .recipe import Call

Group = tuple[int, ...]


@dataclass(frozen=True)
class Effort:
    """How much is tried: the costliest kernels, groups for each, and seconds in all."""

    kernels: int
    groups: int
    seconds: float


EFFORTS = {"off": Effort(0, 0, 0.0), "fast": Effort(8, 4, 1.0), "full": Effort(10_000, 24, 120.0)}
PREFERENCES = {"fast_single_answer": "off", "sustained_speed": "full", "balanced": "fast"}
# In the order in which they are tried: the first are the likeliest.
CANDIDATES: tuple[Group, ...] = (
    (1, 1, 1), (8, 4, 1), (4, 4, 1), (8, 8, 1), (16, 4, 1), (4, 8, 1), (16, 1, 1), (32, 1, 1),
    (2, 2, 1), (4, 1, 1), (8, 1, 1), (1, 4, 1), (1, 8, 1), (1, 16, 1), (2, 8, 1), (16, 8, 1),
    (32, 4, 1), (8, 2, 2), (4, 4, 2), (2, 2, 2), (64, 1, 1), (1, 1, 4), (1, 4, 4), (4, 4, 4),
)  # fmt: skip
RUNS = 3  # of a kernel in a group, of which the fastest counts
GAIN = 0.95  # of the time that another group must be below


def effort_of(chosen: Mapping[str, Any]) -> Effort:
    """`tuning`, or what `inference_preference` means; the default is the table."""
    preferred = PREFERENCES.get(chosen.get("inference_preference", ""), "off")
    return EFFORTS[chosen.get("tuning", preferred)]


def tune(made: GpuExecutable, chosen: Mapping[str, Any]) -> GpuExecutable:
    """The executable, or another one whose kernels run in the groups that were found."""
    groups = search(made, effort_of(chosen))
    if not groups:
        return made
    calls = [replace(c, group=groups.get(c.kernel, c.group)) for c in made.recipe.calls]
    return GpuExecutable(made.device, replace(made.recipe, calls=calls), made.programs, made.rescue)


def search(made: GpuExecutable, effort: Effort) -> dict[str, Group]:
    """Groups that are faster than those of now, by kernel."""
    end = time.perf_counter() + effort.seconds
    found: dict[str, Group] = {}
    for call in costliest(made.recipe.calls)[: effort.kernels]:
        best, least = call.group, timed(made, call, call.group)
        for group in _candidates(call)[: effort.groups]:
            if time.perf_counter() > end:
                return found
            spent = timed(made, call, group)
            if spent < GAIN * least:
                best, least = group, spent
        if best != call.group:
            found[call.kernel] = best
    return found


def costliest(calls: Sequence[Call]) -> list[Call]:
    """One call of each kernel, by products and then by points."""
    each = {call.kernel: call for call in calls}
    return sorted(each.values(), key=lambda c: (-c.macs, -c.size[0] * c.size[1] * c.size[2]))


def _candidates(call: Call) -> list[Group]:
    """The work groups that are no larger than the kernel's space."""
    return [g for g in CANDIDATES if g != call.group and all(map(int.__le__, g, call.size))]


def timed(made: GpuExecutable, call: Call, group: Group) -> float:
    """Seconds of a launch; infinite where the device has no such group. The first launch is not
    counted: some drivers compile then."""
    try:
        launch = made.launcher(call, made.places, group)
        times = [_seconds(made, launch) for _ in range(RUNS + 1)]
    except DelegateError:
        if made.device.is_lost:
            raise
        return float("inf")
    return min(times[1:])


def _seconds(made: GpuExecutable, launch: Any) -> float:
    begin = time.perf_counter()
    with made.device.keeping(made.places, launch):
        launch()
        made.device.wait(made.timeout)
    return time.perf_counter() - begin
