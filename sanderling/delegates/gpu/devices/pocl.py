"""PoCL: room on the disk for its compiler, and PyPI's build on processors newer than it is.

Where its compiler cannot write a file, it ends the process, which nobody can catch: whether there
is room is looked at before.

PoCL 3.0-rc2, the one that pip installs, asks its LLVM 14 for the name of the processor. LLVM
answers "generic" for those that it does not know, and its own compiler then refuses to compile for
"generic": without this module, no kernel builds on a processor of 2023 or later. No option and no
variable changes the name; it stands in the description of the device that the driver hands out, and
there it is replaced by that of the nearest processor which LLVM knows. PoCL 3.1 and later do the
same by themselves.

To write into another library's memory is right for one build only, and done for that one: the
version's whole text, and that of the device, which says "generic" itself, are compared; the word is
looked for in its field alone, in memory that may be written, and no byte beyond it changes.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
from pathlib import Path
from typing import Any

from ....errors import DelegateError
from ....units import byte_size
from ...cpu.isa.targets import cpu_features
from .failures import ANOTHER, WHERE

BUILD = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"
VERSION = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic"
FIELD = 640  # where that build's description of a device points at the name
UNKNOWN = b"generic\0"
# What a processor must have, and whose name it may then have: those for which PoCL has libraries.
# They are no longer than the word in whose place they stand.
NEAREST = (
    ({"avx512f", "avx512bw", "avx512dq", "avx512vl"}, b"skx"),
    ({"avx2", "fma", "bmi2"}, b"haswell"),
    (set[str](), b"x86-64"),
)


LEAST_ROOM = 32 << 20  # bytes that the kernels of a large model and what they are made of may take


def check_room(platform_name: str, device: str) -> None:
    """Raise DelegateError if PoCL's compiler may run out of room on the disk."""
    folder = _existing(_cache_folder())
    if "PoCL" not in platform_name or folder is None:
        return
    free = shutil.disk_usage(folder).free
    if free >= LEAST_ROOM:
        return
    raise DelegateError(
        f"{device} compiles no kernels: PoCL's compiler would end the program where the disk is "
        f"full, and {folder} has {byte_size(free)} left of the {byte_size(LEAST_ROOM)} that it may "
        "need",
        where=WHERE,
        fix=f"make room, set POCL_CACHE_DIR to a folder with more, or {ANOTHER}",
    )


def _cache_folder() -> Path:
    """Where PoCL keeps what it compiles, as it finds the folder itself."""
    given = os.environ.get("POCL_CACHE_DIR")
    if given:
        return Path(given)
    base, home = os.environ.get("XDG_CACHE_HOME"), os.environ.get("HOME")
    if base or home:
        return (Path(base) if base else Path(home or "", ".cache")) / "pocl"
    return Path("/tmp")  # what it takes then


def _existing(folder: Path) -> Path | None:
    """The folder, or the nearest one above it that is there."""
    return next((f for f in (folder, *folder.parents) if f.is_dir()), None)


def name_the_processor(device: Any) -> bool:
    """Give a device of that build a name that its compiler knows; False if that is not needed."""
    here = platform.system() == "Linux" and platform.machine() == "x86_64"
    if not here or device.platform.version.strip() != BUILD or device.version.strip() != VERSION:
        return False
    place = _place(device.int_ptr)
    if place is None:
        return False
    features = cpu_features()
    name = next(name for needed, name in NEAREST if needed <= features)
    ctypes.memmove(place, name.ljust(len(UNKNOWN), b"\0"), len(UNKNOWN))
    return True


def _place(description: int) -> int | None:
    """Where the word is that the field points at; None if it is another."""
    if not _is_writable(description + FIELD, 8):
        return None
    place = ctypes.c_uint64.from_address(description + FIELD).value
    if not _is_writable(place, len(UNKNOWN)):
        return None
    return place if ctypes.string_at(place, len(UNKNOWN)) == UNKNOWN else None


def _is_writable(address: int, count: int) -> bool:
    """Whether it is the process's own memory, that can be read and written."""
    text = Path("/proc/self/maps").read_text()
    rows = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) rw", text, re.MULTILINE)
    return any(int(a, 16) <= address and address + count <= int(b, 16) for a, b in rows)
