"""Options of LiteRT's plugin for Qualcomm's NPU, so that code which sets them runs. They have no
effect: there is no such plugin here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar


class QualcommLogLevel(IntEnum):
    """How much the SDK says."""

    OFF = 0
    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5


class QualcommHtpPerformanceMode(IntEnum):
    """Speed against power, of the HTP."""

    DEFAULT = 0
    SUSTAINED_HIGH_PERFORMANCE = 1
    BURST = 2
    HIGH_PERFORMANCE = 3
    POWER_SAVER = 4
    LOW_POWER_SAVER = 5
    HIGH_POWER_SAVER = 6
    LOW_BALANCED = 7
    BALANCED = 8
    EXTREME_POWER_SAVER = 9


class QualcommDspPerformanceMode(IntEnum):
    """Speed against power, of the DSP."""

    DEFAULT = 0
    SUSTAINED_HIGH_PERFORMANCE = 1
    BURST = 2
    HIGH_PERFORMANCE = 3
    POWER_SAVER = 4
    LOW_POWER_SAVER = 5
    HIGH_POWER_SAVER = 6
    LOW_BALANCED = 7
    BALANCED = 8


class QualcommProfiling(IntEnum):
    """What is recorded."""

    OFF = 0
    BASIC = 1
    DETAILED = 2
    LINTING = 3
    OPTRACE = 4


class QualcommOptimizationLevel(IntEnum):
    """What preparing a graph may take."""

    OPTIMIZE_FOR_INFERENCE = 0
    OPTIMIZE_FOR_PREPARE = 1
    OPTIMIZE_FOR_INFERENCE_O3 = 2


class QualcommGraphPriority(IntEnum):
    """A graph's priority among others."""

    DEFAULT = 0
    LOW = 1
    NORMAL = 2
    NORMAL_HIGH = 3
    HIGH = 4


class QualcommBackend(IntEnum):
    """The part of the chip."""

    UNDEFINED = 0
    GPU = 1
    HTP = 2
    DSP = 3
    IR = 4


class QualcommGraphIOTensorMemType(IntEnum):
    """Where inputs and outputs lie."""

    RAW = 0
    MEM_HANDLE = 1


@dataclass
class QualcommOptions:
    """As LiteRT's of the same name; None is the plugin's own choice."""

    LOG_LEVEL: ClassVar = QualcommLogLevel
    HTP_PERFORMANCE_MODE: ClassVar = QualcommHtpPerformanceMode
    DSP_PERFORMANCE_MODE: ClassVar = QualcommDspPerformanceMode
    PROFILING: ClassVar = QualcommProfiling
    OPTIMIZATION_LEVEL: ClassVar = QualcommOptimizationLevel
    GRAPH_PRIORITY: ClassVar = QualcommGraphPriority
    BACKEND: ClassVar = QualcommBackend
    GRAPH_IO_TENSOR_MEM_TYPE: ClassVar = QualcommGraphIOTensorMemType

    log_level: QualcommLogLevel | None = None
    htp_performance_mode: QualcommHtpPerformanceMode | None = None
    dsp_performance_mode: QualcommDspPerformanceMode | None = None
    use_int64_bias_as_int32: bool | None = None
    enable_weight_sharing: bool | None = None
    use_conv_hmx: bool | None = None
    use_fold_relu: bool | None = None
    profiling: QualcommProfiling | None = None
    dump_tensor_ids: Sequence[int] | None = None
    ir_json_dir: str = ""
    dlc_dir: str = ""
    vtcm_size: int | None = None
    num_hvx_threads: int | None = None
    optimization_level: QualcommOptimizationLevel | None = None
    graph_priority: QualcommGraphPriority | None = None
    backend: QualcommBackend | None = None
    saver_output_dir: str = ""
    graph_io_tensor_mem_type: QualcommGraphIOTensorMemType | None = None
