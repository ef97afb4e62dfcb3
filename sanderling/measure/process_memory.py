"""What a process holds, as the kernel counts it: now, and at the most.

Resident pages are counted by what backs them: anonymous (heaps, arenas, packed weights that were
made), or files (mapped models, libraries, code from the cache), which other processes may share and
the kernel may drop. PSS divides shared pages among those who share them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Moments of a configuration's life, in order, and what they are called for people.
STAGES = {
    "start": "before load",
    "loaded": "after load",
    "ready": "after init",
    "first": "after the first run",
    "end": "after all runs",
}
PARTS = {
    "file": "file",
    "weights": "weights in the file",
    "packed_weights": "packed weights",
    "arena": "arena",
    "code": "code",
}
_ROLLUP = {"Rss": "rss", "Pss": "pss", "Anonymous": "anonymous"}
_STATUS = {"VmRSS": "rss", "RssAnon": "anonymous"}


def snapshot(pid: int | str = "self") -> dict[str, int]:
    """Bytes that are resident now: rss, anonymous, file_backed and, where the kernel says it, pss.
    Empty on systems without /proc."""
    found = _fields(pid, "smaps_rollup", _ROLLUP) or _fields(pid, "status", _STATUS)
    if "rss" in found and "anonymous" in found:
        found["file_backed"] = found["rss"] - found["anonymous"]
    return found


def resident(pid: int | str = "self") -> int:
    """Bytes resident now, cheaply: for sampling."""
    return _fields(pid, "status", {"VmRSS": "rss"}).get("rss", 0)


def peak(pid: int | str = "self") -> int | None:
    """The most bytes that were resident since the start of the process, or since `reset_peak`."""
    return _fields(pid, "status", {"VmHWM": "peak"}).get("peak")


def reset_peak() -> bool:
    """Let the peak of this process begin anew; False where the system does not permit it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return False
    return True


def _fields(pid: int | str, file: str, names: dict[str, str]) -> dict[str, int]:
    """Lines `Name:  123 kB` of a file of the process, as bytes."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text("ascii", "replace").splitlines()
    except OSError:
        return {}
    rows = (line.partition(":") for line in lines)
    return {names[n]: 1024 * int(v.split()[0]) for n, _, v in rows if n in names}


def staged(stage: str, found: dict[str, int]) -> dict[str, int]:
    """A snapshot under the names that a Result's memory has: ready.rss, ready.pss, ..."""
    return {f"{stage}.{name}": value for name, value in found.items()}


def growth(memory: dict[str, int], until: str, since: str = "start.rss") -> int | None:
    if since not in memory or until not in memory:
        return None
    return memory[until] - memory[since]


def at_least(highest: int, now: int | None) -> int:
    """A peak that is no lower than what was resident right after: the kernel's high-water mark
    lags by the pages that a CPU has not yet reported, smaps_rollup counts them all."""
    return max(highest, now or 0)


def largest(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)
