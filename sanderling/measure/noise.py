"""What disturbed a measurement, and what helps against it.

The machine is looked at before and after: who else ran, what the hypervisor took, whether clocks
changed. A disturbance is a sentence with its remedy; figures are never corrected for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ..processors import usable_cpu_count, usable_cpus
from ..progress import plural
from .machine import CPUS, frequencies, governors
from .part_times import FOREIGN_OPS
from .record import Result

# Where a disturbance begins to show in the figures.
STEAL = 0.01  # of all CPU time
OTHERS = 0.15  # cores that somebody else kept busy
CLOCK = 0.10  # change of the frequency
DRIFT = 0.10  # between the first and the last third of the rounds
SPREAD = 0.5  # (p95 - p5) / median
SWITCHES = 20.0  # times a second that the scheduler took a CPU away


@dataclass(frozen=True)
class Look:
    """The machine at one moment; counters grow from look to look."""

    at: float
    busy: float = 0.0  # CPU seconds of everybody, on the CPUs of this process
    steal: float = 0.0
    throttled: int = 0
    mhz: list[float] = field(default_factory=list)
    load: float = 0.0

    @classmethod
    def now(cls) -> Look:
        busy, steal = _cpu_seconds(usable_cpus())
        return cls(time.monotonic(), busy, steal, _throttled(), frequencies(), os.getloadavg()[0])


def _cpu_seconds(cpus: Iterable[int]) -> tuple[float, float]:
    """(busy, stolen) so far; idle and waiting for disks are not busy."""
    try:
        lines = Path("/proc/stat").read_text("ascii").splitlines()
    except OSError:
        return 0.0, 0.0
    tick = 1 / os.sysconf("SC_CLK_TCK")
    wanted = {f"cpu{n}" for n in cpus}
    rows = [
        list(map(int, x.split()[1:9])) for x in lines if x.split()[:1] and x.split()[0] in wanted
    ]
    return tick * sum(sum(r[:3]) + sum(r[5:7]) for r in rows), tick * sum(r[7] for r in rows)


def _throttled() -> int:
    """How often the CPUs slowed down for heat."""
    files = CPUS.glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    return sum(int(text) for f in files if (text := f.read_text("ascii").strip()).isdecimal())


@dataclass(frozen=True)
class Disturbance:
    """who: the setting that it shows in; "" for the whole machine."""

    kind: str
    what: str
    remedy: str
    who: str = ""

    def __str__(self) -> str:
        who = f"{self.who}: " if self.who else ""
        return f"{who}{self.what}; {self.remedy}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def disturbances(
    before: Look, after: Look, own: float, governed: Sequence[str] | None = None
) -> list[Disturbance]:
    """What happened between two looks. own: CPU seconds of the measurement itself, background load
    that it made included."""
    found: list[Disturbance] = []
    span = max(after.at - before.at, 1e-9)
    others = (after.busy - before.busy - own) / span
    steal = (after.steal - before.steal) / (span * max(usable_cpu_count(), 1))
    if steal > STEAL:
        found.append(
            Disturbance(
                "steal",
                f"the hypervisor took {steal:.0%} of the CPU time",
                "use a machine of your own; trust ratios more than milliseconds",
            )
        )
    if others > OTHERS:
        found.append(
            Disturbance(
                "load",
                f"other programs kept {others:.1f} cores busy",
                "stop them, or keep them away with taskset and run with --cpus",
            )
        )
    if after.throttled > before.throttled:
        found.append(
            Disturbance(
                "throttling",
                f"the CPU slowed down for heat {after.throttled - before.throttled} times",
                "let it cool, or run at a lower rate with --run-frequency",
            )
        )
    found += _clock(before, after, governors() if governed is None else governed)
    return found


def _clock(before: Look, after: Look, governed: Sequence[str]) -> list[Disturbance]:
    mhz = [f for f in (*before.mhz, *after.mhz) if f > 0]
    remedy = "fix it with: sudo cpupower frequency-set -g performance"
    if mhz and max(mhz) / min(mhz) - 1 > CLOCK:
        return [
            Disturbance(
                "frequency",
                f"the clock moved between {min(mhz):.0f} and {max(mhz):.0f} MHz",
                remedy,
            )
        ]
    slow = [g for g in governed if g not in ("performance", "schedutil")]
    if slow:
        return [Disturbance("governor", f"the frequency governor is {slow[0]}", remedy)]
    return []


def crowded(threads: int, who: str = "") -> list[Disturbance]:
    """Return a disturbance if threads must wait for a CPU, and the others wait for them."""
    cpus = usable_cpu_count()
    if threads <= cpus:
        return []
    what = f"more threads than the {plural(cpus, 'CPU')}"
    return [Disturbance("crowded", what, f"use --threads {cpus} or fewer", who)]


def of_result(result: Result) -> list[Disturbance]:
    """Return the disturbances that the samples themselves show."""
    summary = result.summary
    if summary is None:
        return []
    drift = _drift(result.rounds)
    way = "slower" if drift > 0 else "faster"
    rate = _switches(result)
    spread = (summary.p95 - summary.p5) / summary.median
    alone = not result.setting.contend
    idle = result.facts.get("idle_delegates", ())
    shown = [
        (
            bool(idle),
            "idle delegate",
            "; ".join(idle),
            "`sanderling inspect MODEL --delegate NAME` says more",
        ),
        (
            not result.stable,
            "warm-up",
            "runs did not become even while warming up",
            "give them longer with --warmup-secs, or quieten the machine",
        ),
        (
            abs(drift) > DRIFT,
            "drift",
            f"it became {abs(drift):.0%} {way} on the way",
            "measure longer with --min-secs, after a pause",
        ),
        (
            alone and rate > SWITCHES,
            "switches",
            f"the scheduler took its CPU away {rate:.0f} times a second",
            "stop other programs, or move it to quiet CPUs with --cpus",
        ),
        (
            alone and spread > SPREAD and rate <= SWITCHES,
            "spread",
            f"p5 to p95 span {spread:.0%} of the median",
            "look at the time series with --plot, and quote the median",
        ),
    ]
    who = f"{result.model}, {result.setting.name}"
    return crowded(result.setting.threads, who) + [
        Disturbance(kind, what, remedy, who) for is_so, kind, what, remedy in shown if is_so
    ]


def _switches(result: Result) -> float:
    """How often in a second the scheduler took a CPU away from who computes. A delegate of others
    brings threads of its own, whose taking turns is nobody's fault: they cannot be told apart."""
    has_threads_of_others = bool(result.facts.get(FOREIGN_OPS))
    if has_threads_of_others or not result.cpu_seconds:
        return 0.0
    return result.switches / result.cpu_seconds


def sentences(found: Iterable[Disturbance]) -> list[str]:
    """One for each kind: the first, and how many more settings show the same."""
    kinds: dict[str, list[Disturbance]] = {}
    for one in found:
        kinds.setdefault(one.kind, []).append(one)
    return [
        str(same[0]) if len(same) == 1 else f"{same[0]} (and {len(same) - 1} more like it)"
        for same in kinds.values()
    ]


def _drift(rounds: Sequence[Sequence[float]]) -> float:
    """How much slower the last third is than the first."""
    third = len(rounds) // 3
    if third < 2:
        return 0.0
    middles = [median(r) for r in rounds]
    return median(middles[-third:]) / median(middles[:third]) - 1
