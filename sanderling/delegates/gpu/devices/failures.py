"""What goes wrong on devices, as errors for people."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

from ....errors import DelegateError

MOST_LINES = 12  # of a compiler's complaints
WHERE = "delegate 'gpu'"
ANOTHER = "choose another device (`sanderling devices` lists them), or the CPU"
# What a driver's error is about, by words in it, and what its reader can do.
_ADVICE = {
    "MEM_OBJECT_ALLOCATION_FAILURE": "use smaller input shapes, or precision=f32_f16",
    "INVALID_BUFFER_SIZE": "use smaller input shapes, or precision=f32_f16",
    "Not enough memory": "use smaller input shapes, or precision=f32_f16",
    "greater than the maximum": "use smaller input shapes, or precision=f32_f16",
    "OUT_OF_HOST_MEMORY": "close other programs",
    "OUT_OF_RESOURCES": "a kernel took too long or too much: choose another device, or the CPU",
    "DEVICE_NOT_AVAILABLE": "the device was lost: restart the program, or choose another one",
    "device is lost": "the device was lost: restart the program, or choose another one",
    "BUILD_PROGRAM_FAILURE": "report it, with the driver's name and version",
}
_LINE = re.compile(r":(\d+):\d+")
_KERNEL = re.compile(r"^(?:__kernel void|fn) (\w+)\(", re.MULTILINE)


def failure(device: str, what: str, error: Exception) -> DelegateError:
    """The error of a driver, for people: its first lines say enough."""
    said = str(error).strip()
    fix = next((text for word, text in _ADVICE.items() if word in said), ANOTHER)
    said = "\n".join(said.splitlines()[:MOST_LINES])
    return DelegateError(f"{device} {what}: {said}", where=WHERE, fix=fix)


def build_failure(device: str, source: str, error: Exception) -> DelegateError:
    """The error of a compiler, with the name of the kernel in the line that it names first."""
    name = kernel_at(source, str(error))
    what = f"does not build the kernel {name}" if name else "does not build a kernel"
    found = failure(device, what, error)
    return DelegateError(found.what, where=WHERE, fix="report it, with the driver's version")


def kernel_at(source: str, log: str) -> str:
    """The kernel that stands around the first line which a compiler's log names; "" if none."""
    for match in _LINE.finditer(log):
        above = "\n".join(source.splitlines()[: int(match[1])])
        names = _KERNEL.findall(above)
        if names:
            return str(names[-1])
    return ""


def lost(device: str) -> DelegateError:
    return DelegateError(
        f"{device} was given up after a run that did not end or failed",
        where=WHERE,
        fix=f"restart the program, or {ANOTHER}",
    )


def timed_out(device: str, seconds: float) -> DelegateError:
    return DelegateError(
        f"{device} did not finish a run within {seconds:g} s",
        where=WHERE,
        fix=f"give it more time (timeout=SECONDS), or {ANOTHER}",
    )


def forked(device: str) -> DelegateError:
    return DelegateError(
        f"{device} was in use when this process was forked, and drivers do not live on in a child",
        where=WHERE,
        fix="start processes by the method 'spawn', or compile the model in the child only",
    )


def within(seconds: float, call: Callable[[], Any], late: Callable[[], Exception]) -> None:
    """Make a call that may never return, in a thread of its own; after so long raise late()."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="gpu-wait")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise late()
    if failed:
        raise failed[0]
