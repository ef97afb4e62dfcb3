"""The `gpu` delegate. It loads the device's package when it has something to compile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import DelegateError, InputError, SanderlingError
from ...ir import Graph, Op
from ...runtime.delegate import Delegate, Options
from ...runtime.delegate_options import (
    Option,
    check_names,
    flag,
    given_twice,
    one_of,
    read_options,
    seconds,
    share,
    text,
    whole_number,
)
from .devices.device import Device
from .options import CPU, SOFTWARE
from .precision import PRECISIONS, PRIORITIES, check_precision, contradiction, settled
from .samples import SAMPLES

OPTIONS: dict[str, Option] = {
    "backend": one_of("the interface to the device", "opencl", "webgpu"),
    "device": replace(
        whole_number("which device, as `sanderling devices` numbers them", 0),
        takes="a whole number: devices are numbered from 0, `sanderling devices` lists them",
    ),
    "precision": one_of("of floats: kept in and computed in", *PRECISIONS),
    "precision_bound": share("auto: the error of half precision that is allowed, of the range"),
    "samples": SAMPLES,
    "is_precision_loss_allowed": flag("whether floats may be computed in 16 bits"),
    **{
        f"inference_priority{place}": one_of(f"what comes {rank}", *PRIORITIES)
        for place, rank in enumerate(("first", "second", "third"), 1)
    },
    "quantized": flag("whether ops of 8-bit models are taken"),
    "max_delegated_partitions": whole_number("parts at most, the largest; 0: all", 0),
    "min_nodes_per_partition": whole_number("ops of a part at least", 0),
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
# TensorFlow Lite's GPU delegate has one part, the largest, if nobody asks for more.
USUAL_PARTITIONS = 1
_PREFERENCES = {True: "sustained_speed", False: "fast_single_answer"}
_INTERFACES = {"webgpu": "WebGPU"}
_BACKENDS = {"cl": "opencl", "opencl": "opencl", "webgpu": "webgpu"}


class GpuDelegate(Delegate):
    """Runs parts on a GPU, or on whatever else an OpenCL driver offers. Options have the names of
    TensorFlow Lite's where it has them: OPTIONS lists all, docs/gpu.md explains them."""

    name = "gpu"
    uses_threads = False

    def __init__(self, **options: Any) -> None:
        self._choose(options)

    def _choose(self, options: Mapping[str, Any]) -> None:
        self.chosen = read_options(self.name, OPTIONS, options)
        check_precision(self.chosen)
        if "serialization_dir" in self.chosen and not self.chosen.get("cache", True):
            raise contradiction("a serialization_dir is given, and cache=false keeps nothing")
        self.quantized = self.chosen.get("quantized", True)
        self.max_delegated_partitions = self.chosen.get(
            "max_delegated_partitions", USUAL_PARTITIONS
        )
        self.min_nodes_per_partition = self.chosen.get("min_nodes_per_partition", 0)

    def configure(self, options: Mapping[str, Any]) -> GpuDelegate:
        return type(self)(**{**self.chosen, **_numbered(options)})

    def take_flags(self, flags: Mapping[str, Any]) -> None:
        given = {row[0]: row[1](flags[name]) for name, row in FLAGS.items() if name in flags}
        self._choose({**self.chosen, **{k: v for k, v in given.items() if v is not None}})

    def refuses(self, op: Op) -> str | None:
        from .table import refusal

        return refusal(op, self.quantized)

    def lacks(self) -> str:
        try:
            settled(self.chosen, self.device().offers)
        except InputError:  # options that contradict each other: no other machine would help
            raise
        except SanderlingError as error:
            return error.what
        return ""

    def devices(self) -> tuple[Device, ...]:
        """The devices that may be taken. A number counts over all interfaces."""
        from .devices.finding import devices

        backend = None if "device" in self.chosen else self.chosen.get("backend")
        return devices(backend, self.chosen.get("device", 0))

    def device(self) -> Device:
        found = self.devices()
        wanted = self.chosen.get("device", 0)
        if wanted < len(found):
            self._check_interface(found[wanted])
            return self._preferred(found[wanted])
        raise self._absent(wanted, len(found))

    def _absent(self, wanted: int, count: int) -> DelegateError:
        """The error for a device that is not among so many."""
        kind = _INTERFACES.get(self.chosen.get("backend", ""), "OpenCL")
        what = f"no device {wanted}: this machine has {count}, {_numbers(count)}"
        fix = "give one of these numbers, or none: `sanderling devices` says what each is"
        if not count:
            what = f"no {kind} device"
            fix = "see `sanderling devices`; a driver for CPUs: pip install 'sanderling[gpu]'"
        return DelegateError(f"there is {what}", where="delegate 'gpu'", fix=fix)

    def _check_interface(self, found: Device) -> None:
        backend, its = self.chosen.get("backend"), found.offers.interface
        if "device" not in self.chosen or backend in (None, its):
            return
        raise InputError(
            f"device {self.chosen['device']} ({found.offers.name}) is of the interface {its}, not "
            f"{backend}: numbers count over all interfaces",
            where="delegate 'gpu'",
            fix="leave out one of the two options, or take a number from `sanderling devices`",
        )

    def _preferred(self, first: Device) -> Device:
        """Where nobody asks for another, a GPU of the next interface goes before a processor."""
        if "device" in self.chosen or "backend" in self.chosen or not _is_software(first):
            return first
        from .devices.finding import devices

        return next((d for d in devices() if not _is_software(d)), first)

    @property
    def is_software(self) -> bool:
        return _is_software(self.device())

    def device_name(self) -> str:
        return self.device().offers.name

    def compile(self, part: Graph, options: Options) -> Any:
        from .compilation import compile_part

        made = compile_part(self.device(), part, options, self.chosen)
        made.timeout = self.chosen.get("timeout", made.timeout)
        return made


def _numbers(count: int) -> str:
    if count == 1:
        return "number 0"
    return f"numbers are {', '.join(map(str, range(count - 1)))} and {count - 1}"


def _numbered(options: Mapping[str, Any]) -> dict[str, Any]:
    """gpu:1 is short for gpu:device=1."""
    check_names("gpu", options)
    numbers = [name for name in options if name.removeprefix("-").isdecimal()]
    if len(numbers) + ("device" in options) > 1:
        raise given_twice("gpu", "device")
    return {"device" if n in numbers else n: n if n in numbers else options[n] for n in options}


def _is_software(device: Device) -> bool:
    return device.offers.kind.name in (CPU.name, SOFTWARE.name)


# -- flags of benchmark_model ---------------------------------------------------------------------


def _backend(name: str) -> str | None:
    if name and name not in _BACKENDS:
        raise InputError(
            f"there is no backend '{name}'",
            where="--gpu_backend",
            fix="write cl (OpenCL) or webgpu",
        )
    return _BACKENDS.get(name)


# The option that a flag is, and its value there; None where the delegate's own holds.
FLAGS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "gpu_precision_loss_allowed": ("is_precision_loss_allowed", bool),
    "gpu_experimental_enable_quant": ("quantized", bool),
    "gpu_inference_for_sustained_speed": (
        "inference_preference",
        lambda on: _PREFERENCES[bool(on)],
    ),
    "gpu_backend": ("backend", _backend),
    "delegate_serialize_dir": ("serialization_dir", lambda folder: folder or None),
    "delegate_serialize_token": ("model_token", lambda token: token or None),
}
