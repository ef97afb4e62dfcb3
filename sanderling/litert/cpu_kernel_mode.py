"""Which kernels the CPU runs."""

from __future__ import annotations

from enum import IntEnum


class CpuKernelMode(IntEnum):
    """DELEGATE and BUILTIN are the delegate `cpu` here, REFERENCE is the delegate `reference`."""

    DELEGATE = 0
    XNNPACK = 0  # LiteRT's older name for it
    REFERENCE = 1
    BUILTIN = 2
