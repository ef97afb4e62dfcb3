"""What this machine can do at best: multiply-adds a second by type, bytes a second by the level of
memory that they come from. Measured once by loops in machine code, and kept (store.py)."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..delegates.cpu.isa.targets import Target, host_target, problem
from ..errors import UnsupportedError
from ..processors import usable_cpu_count
from ..store import Store
from .machine import cpu_name

if TYPE_CHECKING:
    from ..delegates.cpu.limit_loops import Work
    from ..delegates.gpu.devices.device import Device

Progress = Callable[[str, int, int], None]
KINDS = ("f32", "bf16", "i16", "i8")
# A call lasts about this long: short beside what else happens to the machine, long beside the call.
CALL = 1e-3
# The best of so many: a disturbance can only make a loop slower.
TRIES = 40
MEMORY = "memory"
# Where the system does not tell.
USUAL_CACHES = (("L1", 32 << 10), ("L2", 512 << 10), ("L3", 8 << 20))


@dataclass(frozen=True)
class Level:
    """A level of memory. size: bytes that all threads together find there, None for no limit."""

    name: str
    size: int | None
    bandwidth: float  # bytes read in a second by all threads together


@dataclass(frozen=True)
class Roofline:
    """The roofs over so many threads of this machine."""

    cpu: str
    target: str
    threads: int
    ticks: float  # of the counter of timed code, in a second
    peaks: Mapping[str, float]  # multiply-adds in a second, by type
    levels: Sequence[Level]  # fastest first; the last is main memory

    def level(self, size: int) -> Level:
        """The fastest level that holds so many bytes."""
        return next(v for v in self.levels if v.size is None or size <= v.size)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Roofline:
        return cls(**{**record, "levels": [Level(**v) for v in record["levels"]]})


def roofline(threads: int = 1, progress: Progress | None = None, refresh: bool = False) -> Roofline:
    """The machine's roofs for so many threads: measured now (about a second) or known already.

    refresh measures again, for instance because the machine was busy the first time.
    """
    trouble = problem()
    if trouble is not None:
        raise UnsupportedError(
            f"there is no roofline: {trouble}", where="roofline", fix="profile without it"
        )
    threads = max(1, min(threads, usable_cpu_count()))
    target, store = host_target(), Store()
    name = store.name("roofline", cpu_name(), target, threads, usable_cpu_count(), _boot(), KINDS)
    known = None if refresh else store.recall(name, Roofline.from_json)
    if known is not None:
        return known
    made = measure(target, threads, progress or (lambda what, done, total: None))
    store.record(name, made.to_json())
    return made


def device_roofline(device: Device, refresh: bool = False) -> Roofline:
    """The roofs of a device of the gpu delegate, by kernels that reach them: see peaks.py there."""
    from ..delegates.gpu.peaks import NEAR, peaks_of

    offers, found = device.offers, peaks_of(device, refresh)
    levels = [Level("cache", NEAR, found.near), Level(MEMORY, None, found.far)]
    return Roofline(offers.name, offers.interface, offers.units, 1e9, found.peaks, levels)


def _boot() -> str:
    """A virtual machine may wake up on another host, with another clock and other neighbours."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text("utf-8").strip() if path.is_file() else ""


def measure(target: Target, threads: int, progress: Progress) -> Roofline:
    from ..delegates.cpu import limit_loops

    reader, sizes = limit_loops.read(target), _caches(threads)
    rows = [(f"peak of {kind}", limit_loops.multiply(target, kind)) for kind in KINDS]
    total = len(rows) + len(sizes) + 1
    peaks: dict[str, float] = {}
    for done, (what, make) in enumerate(rows):
        progress(what, done, total)
        if make is not None:
            peaks[KINDS[done]] = best([make() for _ in range(threads)])
    levels: list[Level] = []
    for name, size, block in [*sizes, (MEMORY, None, _beyond(sizes, threads))]:
        progress(f"bandwidth of {name}", len(rows) + len(levels), total)
        times = max(1, round(2e7 / block))  # about a millisecond in a first-level cache
        levels.append(Level(name, size, best([reader(block, times) for _ in range(threads)])))
    return Roofline(
        cpu_name(), target.name, threads, limit_loops.ticks(target), peaks, _falling(levels)
    )


def _falling(levels: list[Level]) -> list[Level]:
    """A level is no slower than the next: where it seems so, the machine was disturbed, and a
    larger block is in the smaller's place too."""
    for i in range(len(levels) - 2, -1, -1):
        fastest = max(levels[i].bandwidth, levels[i + 1].bandwidth)
        levels[i] = Level(levels[i].name, levels[i].size, fastest)
    return levels


def _caches(threads: int) -> list[tuple[str, int, int]]:
    """(name, bytes for all threads, bytes of the block that a thread reads to measure it)."""
    found, below = [], 0
    for name, size, shared in cache_sizes():
        mine = size // threads if shared else size
        # Half of it, since others use it too, and of a large one they have most; well above the
        # level below.
        block = max(min(mine // 2, 8 * below or mine), 2 * below)
        found.append((name, size if shared else size * threads, block))
        below = mine
    return found


def cache_sizes(
    root: Path = Path("/sys/devices/system/cpu/cpu0/cache"),
) -> list[tuple[str, int, bool]]:
    """(name, bytes, whether cores share it) of each level of data cache."""
    found: dict[str, tuple[str, int, bool]] = {}
    for index in sorted(root.glob("index*")):
        about = {
            n: (index / n).read_text().strip()
            for n in ("level", "type", "size")
            if (index / n).is_file()
        }
        size = re.fullmatch(r"(\d+)([KMG]?)", about.get("size", ""))
        if size and about.get("type") != "Instruction" and "level" in about:
            name = f"L{about['level']}"
            bytes_ = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
            found[name] = (name, bytes_, about["level"] not in ("1", "2"))
    usual = [(name, size, name == "L3") for name, size in USUAL_CACHES]
    return sorted(found.values()) or usual


def _beyond(caches: Sequence[tuple[str, int, int]], threads: int) -> int:
    """Bytes for each thread that fit no cache, and memory for certain."""
    last = max(size for _, size, _ in caches)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(max(2 * last, 64 << 20), 512 << 20, max(free // 4, 16 << 20)) // threads


def best(workers: Sequence[Work], tries: int = TRIES) -> float:
    """Work in a second of all workers at once, each on a thread: the best of several tries."""
    from ..delegates.cpu.limit_loops import timed

    once = timed(workers[0])  # also warms up
    calls = max(1, round(CALL / max(once, 1e-7)))
    return max(_together(workers, calls) for _ in range(tries if once < 5 * CALL else 4))


def _together(workers: Sequence[Work], calls: int) -> float:
    rates = [0.0] * len(workers)
    ready = threading.Barrier(len(workers))

    def run(index: int) -> None:
        from ..delegates.cpu.limit_loops import timed

        work, done = workers[index], 0.0

        def several() -> None:
            nonlocal done
            for _ in range(calls):
                done += work()

        if len(workers) > 1:
            ready.wait()
            # The others may start a little later: what is run alone does not count.
            work()
        seconds = timed(several)
        rates[index] = done / seconds

    threads = [threading.Thread(target=run, args=(i,)) for i in range(1, len(workers))]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    return sum(rates)
