"""PoCL of PyPI on processors that are newer than it is.

PoCL 3.0, the one that pip installs, asks its LLVM 14 for the name of the processor. LLVM answers
"generic" for those that it does not know, and its own compiler then refuses to compile for
"generic". No option and no variable changes the name; it stands in the description of the device
that the driver hands out, and there it is replaced by that of the nearest processor which LLVM
knows. PoCL 3.1 and later do the same by themselves.
"""

from __future__ import annotations

import ctypes
import platform
import re
from bisect import bisect_right
from pathlib import Path
from typing import Any

from ...cpu.isa.targets import cpu_features

DESCRIPTION = 2048  # bytes of a device's description that are looked through
UNKNOWN = b"generic\0"
# What a processor must have, and whose name it may then have: those for which PoCL has libraries.
# They are no longer than the word in whose place they stand.
NEAREST = (
    ({"avx512f", "avx512bw", "avx512dq", "avx512vl"}, b"skx"),
    ({"avx2", "fma", "bmi2"}, b"haswell"),
    (set[str](), b"x86-64"),
)


def name_the_processor(device: Any) -> bool:
    """Give a device of PoCL 3.0 a name that its compiler knows; False if that is not needed."""
    old = "PoCL 3.0" in device.platform.version and device.driver_version.startswith("3.0")
    if not old or platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    places = _places(device.int_ptr)
    if len(places) != 1:
        return False
    features = cpu_features()
    name = next(name for needed, name in NEAREST if needed <= features)
    ctypes.memmove(places[0], name.ljust(len(UNKNOWN), b"\0"), len(UNKNOWN))
    return True


def _places(begin: int) -> list[int]:
    """Where the description points at the word."""
    readable = _readable()
    starts = [first for first, _ in readable]

    def is_readable(address: int, count: int) -> bool:
        number = bisect_right(starts, address) - 1
        return number >= 0 and address + count <= readable[number][1]

    found = set()
    for at in range(begin, begin + DESCRIPTION, 8):
        if not is_readable(at, 8):
            break
        pointed = ctypes.c_uint64.from_address(at).value
        if not is_readable(pointed, len(UNKNOWN)):
            continue
        if ctypes.string_at(pointed, len(UNKNOWN)) == UNKNOWN:
            found.add(pointed)
    return sorted(found)


def _readable() -> list[tuple[int, int]]:
    """The process's own memory that can be read and written, in order."""
    text = Path("/proc/self/maps").read_text()
    rows = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", text, re.MULTILINE)
    return sorted((int(a, 16), int(b, 16)) for a, b in rows)
