"""Options of the CPU."""

from __future__ import annotations

from dataclasses import dataclass

from .cpu_kernel_mode import CpuKernelMode

__all__ = ["CpuKernelMode", "CpuOptions"]


@dataclass
class CpuOptions:
    """num_threads: 0 leaves it to the runtime, which takes 1. The options of YNNPACK and XNNPACK
    have no effect: the delegate `cpu` keeps its packed weights in SANDERLING_CACHE anyway."""

    num_threads: int = 0
    kernel_mode: CpuKernelMode | None = None
    enable_ynnpack: bool = False
    xnnpack_flags: int | None = None
    xnnpack_weight_cache_path: str = ""
