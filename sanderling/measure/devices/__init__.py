"""Benchmarks on other machines: TensorFlow Lite's own tool on a phone, with our records.

run("android:SERIAL", "model.tflite", Setting(threads=4), DeviceOptions(binary="benchmark_model"))
"""

from __future__ import annotations

import os

from ...errors import InputError
from ..record import Result, Setting
from .device_options import DeviceOptions
from .tool_log import Log, parse

DEVICES = ("android", "android:SERIAL", "ios")


def check(device: str) -> None:
    """A name that is no device is refused before any work."""
    kind, _, serial = device.partition(":")
    if kind not in ("android", "ios") or (kind == "ios" and serial):
        raise InputError(
            f"there is no device '{device}'",
            where="--device",
            fix=f"write {', '.join(DEVICES[:2])} or {DEVICES[2]}",
        )


def run(
    device: str,
    model: str | os.PathLike[str],
    setting: Setting,
    options: DeviceOptions | None = None,
) -> Result:
    """Measure a model on a device. What the device cannot do is the result's `error`; what the
    user can mend (no adb, no such device, no binary) is raised."""
    check(device)
    options = options or DeviceOptions()
    if device == "ios":
        from .ios import run_ios

        return run_ios(os.fspath(model), setting, options)
    from .android import run_android

    return run_android(device.partition(":")[2], os.fspath(model), setting, options)


__all__ = ["DEVICES", "Log", "DeviceOptions", "check", "parse", "run"]
