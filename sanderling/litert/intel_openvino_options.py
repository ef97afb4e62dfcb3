"""Options of LiteRT's plugin for Intel's NPU, so that code which sets them runs. They have no
effect: there is no such plugin here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar


class IntelOpenVinoGraphBackend(IntEnum):
    """The device of a part."""

    CPU = 0
    GPU = 1
    NPU = 2


class IntelOpenVinoPerformanceMode(IntEnum):
    """What is wanted: short answers or many."""

    LATENCY = 0
    THROUGHPUT = 1
    CUMULATIVE_THROUGHPUT = 2


@dataclass
class IntelOpenVinoOptions:
    """As LiteRT's of the same name; None is the plugin's own choice."""

    GRAPH_BACKEND: ClassVar = IntelOpenVinoGraphBackend
    PERFORMANCE_MODE: ClassVar = IntelOpenVinoPerformanceMode

    graph_backend: IntelOpenVinoGraphBackend | None = None
    performance_mode: IntelOpenVinoPerformanceMode | None = None
    configs_map: dict[str, str] = field(default_factory=dict)
    enable_weight_sharing: bool | None = None
