"""Options of the GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class GpuOptions:
    """They go to whoever is the GPU here: see accelerators.py."""

    enforce_f32: bool = False
    constant_tensor_sharing: bool = False
    infinite_float_capping: bool = False
    benchmark_mode: bool = False
    allow_src_quantized_fc_conv_ops: bool = False
    hint_waiting_for_completion: bool = False
