"""Devices at hand: those that the gpu delegate can use, and phones behind adb.

found = at_hand()
print(found.gpus[0].name, found.gpus[0].offers.half)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from ...delegates.gpu.devices.device import Offers
from ...delegates.gpu.devices.finding import BACKENDS, devices
from ...delegates.gpu.options import class_of
from ...errors import InputError, SanderlingError, install_command
from .adb import Adb, connected

_EXTRAS = {"opencl": "gpu", "webgpu": "webgpu"}
_PROPERTIES = ("ro.product.model", "ro.product.cpu.abi", "ro.build.version.release")
_RENDERER = "dumpsys SurfaceFlinger | grep -m 1 GLES:"


@dataclass(frozen=True)
class Gpu:
    """A device of the gpu delegate. number: for the option `device`, among all of this machine."""

    number: int
    offers: Offers

    @property
    def name(self) -> str:
        return self.offers.name

    @property
    def form(self) -> str:
        """The form of tensors in its memory."""
        return self.offers.storage("f32")[0].form

    def record(self) -> dict[str, Any]:
        return {"number": self.number, **asdict(self.offers), "storage": self.form}


@dataclass(frozen=True)
class Phone:
    """A phone behind adb. state: `device` if it can be used. gpu, gpu_class: as its own graphics
    say, and our row of it."""

    serial: str
    state: str
    model: str = ""
    abi: str = ""
    android: str = ""
    gpu: str = ""
    gpu_class: str = ""


@dataclass
class AtHand:
    """remarks: what could not be looked for, and what to do about that."""

    gpus: list[Gpu] = field(default_factory=list)
    phones: list[Phone] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def at_hand(adb: str = "adb") -> AtHand:
    """All devices that can be found. What is not installed is no error, but a remark."""
    found = AtHand()
    for backend, package in BACKENDS.items():
        _add_gpus(found, backend, package)
    try:
        found.phones = [_phone(adb, *row) for row in connected(Adb(adb)).items()]
    except InputError as error:
        if adb != "adb":
            raise
        found.remarks.append(f"phones: {error.what}; {error.fix}")
    except SanderlingError as error:
        found.remarks.append(f"phones: {error.what}")
    return found


def _add_gpus(found: AtHand, backend: str, package: str) -> None:
    if find_spec(package) is None:
        fix = install_command(_EXTRAS[backend])
        found.remarks.append(f"{backend}: the package '{package}' is not installed; {fix}")
        return
    listed = devices(backend)
    if not listed:
        found.remarks.append(f"{backend}: no driver offers a device")
    first = len(found.gpus)
    found.gpus += [Gpu(first + i, device.offers) for i, device in enumerate(listed)]


def _phone(command: str, serial: str, state: str) -> Phone:
    if state != "device":
        return Phone(serial, state)
    adb = Adb(command, serial)
    try:
        model, abi, android = adb.properties(*_PROPERTIES)
        said = adb.shell(_RENDERER).out.partition("GLES:")[2].strip()
    except SanderlingError as error:  # it was there a moment ago
        return Phone(serial, error.what)
    row = class_of(False, "", said).name if said else ""
    return Phone(serial, state, model, abi, android, said, row)
