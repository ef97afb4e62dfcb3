"""The `gpu` delegate. It loads the device's package when it has something to compile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import DelegateError
from ...ir import Graph, Op
from ...runtime.delegate import Delegate, Options
from ...runtime.delegate_options import (
    Option,
    flag,
    one_of,
    read_options,
    seconds,
    text,
    whole_number,
)
from .devices.device import Device

OPTIONS: dict[str, Option] = {
    "backend": one_of("the interface to the device", "opencl", "webgpu"),
    "device": whole_number("which device, as `sanderling devices` numbers them", 0),
    "precision": one_of("of floats: kept in and computed in", "f32", "f32_f16", "f16"),
    "quantized": flag("whether ops of 8-bit models are taken"),
    "cache": flag("whether compiled programs are kept on disk"),
    "serialization_dir": text("the folder that they are kept in, default the cache's"),
    "model_token": text("a name that tells what is kept of a model from others"),
    "tuning": one_of("of work-group sizes", "off", "fast", "full"),
    "storage": one_of("the form of tensors in the device's memory", "buffer", "image", "texture"),
    "timeout": seconds("that a run may take before the device is given up"),
    "inference_preference": one_of(
        "what the time to the first answer is worth",
        "fast_single_answer",
        "sustained_speed",
        "balanced",
    ),
}


class GpuDelegate(Delegate):
    """Runs parts on a GPU, or on whatever else an OpenCL driver offers."""

    name = "gpu"

    def __init__(self, **options: Any) -> None:
        self.chosen = read_options(self.name, OPTIONS, options)
        self.quantized = self.chosen.get("quantized", True)

    def configure(self, options: Mapping[str, Any]) -> GpuDelegate:
        return type(self)(**{**self.chosen, **options})

    def refuses(self, op: Op) -> str | None:
        from .table import refusal

        return refusal(op, self.quantized)

    def lacks(self) -> str:
        return "" if self.devices() else "there is no OpenCL device"

    def devices(self) -> tuple[Device, ...]:
        from .devices.finding import devices

        return devices(self.chosen.get("backend"), self.chosen.get("device", 0))

    def device(self) -> Device:
        found = self.devices()
        wanted = self.chosen.get("device", 0)
        if wanted >= len(found):
            raise DelegateError(
                f"there is no device {wanted}: this machine has {len(found)}",
                where="delegate 'gpu'",
                fix="see `sanderling devices`; a driver for CPUs: pip install 'sanderling[gpu]'",
            )
        return found[wanted]

    def compile(self, part: Graph, options: Options) -> Any:
        from .compilation import compile_part

        made = compile_part(self.device(), part, options, self.chosen)
        made.timeout = self.chosen.get("timeout", made.timeout)
        return made
