"""What a model is compiled with."""

from __future__ import annotations

from .cpu_options import CpuKernelMode, CpuOptions
from .gpu_options import GpuOptions
from .hardware_accelerator import HardwareAccelerator
from .intel_openvino_options import (
    IntelOpenVinoGraphBackend,
    IntelOpenVinoOptions,
    IntelOpenVinoPerformanceMode,
)
from .qualcomm_options import (
    QualcommBackend,
    QualcommDspPerformanceMode,
    QualcommGraphIOTensorMemType,
    QualcommGraphPriority,
    QualcommHtpPerformanceMode,
    QualcommLogLevel,
    QualcommOptimizationLevel,
    QualcommOptions,
    QualcommProfiling,
)

__all__ = [
    "CpuKernelMode",
    "CpuOptions",
    "GpuOptions",
    "HardwareAccelerator",
    "IntelOpenVinoGraphBackend",
    "IntelOpenVinoOptions",
    "IntelOpenVinoPerformanceMode",
    "Options",
    "QualcommBackend",
    "QualcommDspPerformanceMode",
    "QualcommGraphIOTensorMemType",
    "QualcommGraphPriority",
    "QualcommHtpPerformanceMode",
    "QualcommLogLevel",
    "QualcommOptimizationLevel",
    "QualcommOptions",
    "QualcommProfiling",
]


class Options:
    """Which accelerators, and the options of each, to be given or set one by one:
    `options.cpu_options.num_threads = 4`."""

    def __init__(
        self,
        hardware_accelerators: HardwareAccelerator = HardwareAccelerator.CPU,
        cpu_options: CpuOptions | None = None,
        gpu_options: GpuOptions | None = None,
        qualcomm_options: QualcommOptions | None = None,
        intel_openvino_options: IntelOpenVinoOptions | None = None,
    ) -> None:
        self.hardware_accelerators = hardware_accelerators
        self.cpu_options = cpu_options or CpuOptions()
        self.gpu_options = gpu_options or GpuOptions()
        self.qualcomm_options = qualcomm_options or QualcommOptions()
        self.intel_openvino_options = intel_openvino_options or IntelOpenVinoOptions()

    @classmethod
    def create(cls) -> Options:
        """Options with every default."""
        return cls()

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Options) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        own = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"Options({own})"
