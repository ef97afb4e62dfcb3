"""Models of tests are small: here they get the workers that are asked for, and share every step."""

from __future__ import annotations

import pytest

from sanderling.delegates.cpu.runtime import division


def share_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(division, "WORK_OF_WORKER", 1)
    patch.setattr(division, "WORK_OF_CHUNK", 1)
    patch.setattr(division, "WORK_THAT_WAKES", 1)
    patch.setattr(division, "ALWAYS_SHARED", True)
    patch.setattr(division, "usable_cpu_count", lambda: 1024)
