"""The devices of this machine, as all that number them count: OpenCL's first, WebGPU's behind."""

from __future__ import annotations

from importlib.util import find_spec

from .device import Device

# An interface, and the package that it needs.
BACKENDS = {"opencl": "pyopencl", "webgpu": "wgpu"}


def devices(backend: str | None = None, number: int | None = None) -> tuple[Device, ...]:
    """The devices of one interface, or of all whose packages are installed.

    number: the one that is wanted. Interfaces behind it are not asked: that takes time.
    """
    if backend is not None:
        return _devices(backend)
    found: tuple[Device, ...] = ()
    for name, package in BACKENDS.items():
        enough = number is not None and number < len(found)
        if not enough and find_spec(package) is not None:
            found += _devices(name)
    return found or _devices("opencl")  # its error says what to install


def _devices(backend: str) -> tuple[Device, ...]:
    if backend == "webgpu":
        from .webgpu import devices as found_by_webgpu

        return found_by_webgpu()
    from .opencl import devices as found_by_opencl

    return found_by_opencl()
