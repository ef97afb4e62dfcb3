"""Options of the verbs that work on a device."""

from __future__ import annotations

from typing import Annotated

import typer

from ..measure.benchmark_model.flags import Values
from ..measure.benchmark_model.on_device import flag_word
from ..measure.devices.device_options import DELEGATE_FLAGS

DeviceName = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="NAME",
        help="Run TensorFlow Lite's own tool on a phone: android or android:SERIAL.",
    ),
]
DeviceBinary = Annotated[
    str,
    typer.Option(
        "--device-binary",
        metavar="FILE",
        help="That tool as built for the device. Default: the one in its /data/local/tmp.",
    ),
]
DeviceFlags = Annotated[
    list[str],
    typer.Option(
        "--device-flag",
        metavar="NAME=VALUE",
        help="A further flag of the tool, such as gpu_backend=cl; may be repeated.",
    ),
]
DeviceTimeout = Annotated[
    float,
    typer.Option("--device-timeout", metavar="S", help="Seconds that the tool may take there."),
]
AdbPath = Annotated[str, typer.Option("--adb", metavar="PATH", help="The adb command.")]


def device_delegates(names: list[str], flags: Values) -> tuple[tuple[str, ...], dict[str, str]]:
    """The device's delegates and the tool's further flags, in the order in which they stand."""
    applied = {flag: name for name, flag in reversed(DELEGATE_FLAGS.items())}
    chosen = [*names, *(applied[n] for n in flags.given if n in applied and flags.on(n))]
    rest = {n: flag_word(v) for n, v in flags.given.items() if n not in applied or not flags.on(n)}
    return tuple(dict.fromkeys(chosen)), rest
