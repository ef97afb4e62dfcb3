"""Benchmarks on other machines: TensorFlow Lite's own tool or our program on a phone or a board,
with our records.

run("android:SERIAL", "model.tflite", Setting(threads=4), DeviceOptions(binary="benchmark_model"))
"""

from __future__ import annotations

import os

from ...errors import InputError
from ..record import Result, Setting
from .device_options import DeviceOptions
from .tool_log import Log, parse

DEVICES = ("android", "android:SERIAL", "ssh:HOST", "ios")


def check(device: str) -> None:
    """A name that is no device is refused before any work."""
    kind, _, serial = device.partition(":")
    known = kind == "android" or (kind == "ios" and not serial)
    # A host that begins with a dash would be an option of ssh.
    if not known and not (kind == "ssh" and serial and not serial.startswith("-")):
        raise InputError(
            f"there is no device '{device}'",
            where="--device",
            fix=f"write {', '.join(DEVICES[:-1])} or {DEVICES[-1]}",
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
    kind, _, name = device.partition(":")
    if kind == "ssh":
        from .ssh import run_board

        return run_board(name, os.fspath(model), setting, options)
    from .android import run_android

    return run_android(name, os.fspath(model), setting, options)


__all__ = ["DEVICES", "Log", "DeviceOptions", "check", "parse", "run"]
