"""LiteRT's GPU accelerator as a delegate. On Linux it is WebGPU on a Vulkan device."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import ClassVar

from ...errors import DelegateError
from ...ir import Graph, Op
from ...runtime.delegate import Executable, Options
from ...runtime.delegate_options import Option, flag, one_of
from ...runtime.submodel import as_tflite
from .base import EngineDelegate
from .compiled_model import CompiledModelExecutable, refuses_types


class LiteRtGpuDelegate(EngineDelegate):
    """What the GPU does not take is left to other delegates, never to LiteRT's CPU."""

    name, engine, title = "litert-gpu", "litert", "LiteRT's GPU accelerator"
    options: ClassVar[Mapping[str, Option]] = {
        "precision": one_of("that floats are computed in", "f32", "f16"),
        "constant_tensor_sharing": flag("share constants between models"),
        "infinite_float_capping": flag("cap infinite values"),
        "benchmark_mode": flag("as LiteRT's benchmark runs it"),
        "allow_src_quantized_fc_conv_ops": flag("quantised inputs of products"),
        "hint_waiting_for_completion": flag("wait actively for the GPU"),
    }

    def refuses(self, op: Op) -> str | None:
        return super().refuses(op) or refuses_types(op)

    def load(self, part: Graph, options: Options) -> Executable:
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import GpuOptions
        from ai_edge_litert.options import Options as LiteRtOptions

        self._check_device()
        flags = {name: value for name, value in self.chosen.items() if name != "precision"}
        exact = self.chosen.get("precision", "f32") == "f32"
        asked = LiteRtOptions(
            HardwareAccelerator.GPU, gpu_options=GpuOptions(enforce_f32=exact, **flags)
        )
        return CompiledModelExecutable(part, as_tflite(part), asked, 1, must_accelerate=True)

    def lacks(self) -> str:
        problem = vulkan_problem() if sys.platform == "linux" else ""
        return f"there is no GPU that LiteRT can use: {problem}" if problem else ""

    def _check_device(self) -> None:
        problem = self.lacks()
        if problem:
            raise DelegateError(
                problem,
                where=f"delegate '{self.name}'",
                fix="install a Vulkan driver, or leave this delegate out",
            )


class _InstanceInfo(ctypes.Structure):
    """VkInstanceCreateInfo."""

    _fields_: ClassVar = [
        ("kind", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.c_void_p),
        ("layer_count", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    ]


def vulkan_problem() -> str:
    """Why no Vulkan device is found; "" if there is one."""
    try:
        vulkan = ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return "Vulkan's loader, libvulkan.so.1, is not installed"
    instance, count = ctypes.c_void_p(), ctypes.c_uint32()
    if vulkan.vkCreateInstance(ctypes.byref(_InstanceInfo(kind=1)), None, ctypes.byref(instance)):
        return "Vulkan finds no driver"
    failed = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    vulkan.vkDestroyInstance(instance, None)
    return "" if count.value and not failed else "Vulkan finds no device"
