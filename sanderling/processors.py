"""The processors that this process may use."""

from __future__ import annotations

import os


def usable_cpus() -> list[int]:
    """Their numbers: those that the system allows, or all where it says nothing."""
    if hasattr(os, "sched_getaffinity"):  # Linux's
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def usable_cpu_count() -> int:
    return len(usable_cpus())
