"""The environment knobs, all of them, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import InputError

SWITCH = {"1": True, "0": False, "on": True, "off": False, "true": True, "false": False, "": False}


@dataclass(frozen=True)
class Knob:
    """One environment variable."""

    name: str
    default: str
    meaning: str

    def text(self) -> str:
        return os.environ.get(self.name, self.default)

    def is_on(self) -> bool:
        text = self.text().strip().lower()
        if text not in SWITCH:
            raise InputError(
                f"'{text}' is neither on nor off",
                where=f"environment variable {self.name}",
                fix=f"write one of {', '.join(filter(None, SWITCH))}",
            )
        return SWITCH[text]

    def size(self) -> int:
        """A number of bytes: digits with an optional k, m, g."""
        text = self.text().strip().lower()
        unit = {"k": 10, "m": 20, "g": 30}.get(text[-1:], 0)
        digits = text[:-1] if unit else text
        if not digits.isdigit():
            raise InputError(
                f"'{text}' is not a size",
                where=f"environment variable {self.name}",
                fix="write a number with k, m or g, for example 4g",
            )
        return int(digits) << unit


@cache
def _half_of_the_memory() -> int:
    """Half of what the machine has, or of what its control groups leave to this process."""
    return min(_physical(), *_group_limits()) // 2


def _physical() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return 16 << 30


def _group_limits(root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup") -> list[int]:
    """The limits of this process's control groups (version 2, or 1) and of those around them."""
    lines = (_text(own) or "").splitlines()
    place = next((s.split("::", 1)[1] for s in lines if s.startswith("0::")), "/")
    inner = Path(root, place.lstrip("/"))
    above = [p for p in (inner, *inner.parents) if p.is_relative_to(root)]
    files = [*(p / "memory.max" for p in above), Path(root, "memory/memory.limit_in_bytes")]
    found = [text.strip() for text in map(_text, files) if text]
    return [int(text) for text in found if text.isdigit()] or [1 << 62]


def _text(path: str | Path) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


@dataclass(frozen=True)
class MemoryKnob(Knob):
    """A size whose default follows the machine."""

    def size(self) -> int:
        return Knob.size(self) if self.text().strip() else _half_of_the_memory()


MAX_MEMORY = MemoryKnob(
    "SANDERLING_MAX_MEMORY",
    "",
    "most bytes of a run's tensors and temporaries; default: half of the memory",
)
DELEGATES = Knob("SANDERLING_DELEGATES", "", "default delegates, by name, separated by commas")
CACHE = Knob("SANDERLING_CACHE", "", "folder of compiled code, or off; default ~/.cache/sanderling")
CACHE_SIZE = Knob("SANDERLING_CACHE_SIZE", "1g", "most bytes of compiled code kept")
DUMP = Knob("SANDERLING_DUMP", "", "folder that every stage of a compilation is written to")
HOST = Knob("SANDERLING_HOST", "", "the CPU target that this machine passes for; default: its own")
CHECKED = Knob("SANDERLING_CHECKED", "", "1: compiled code tests every access to memory, slowly")
SPARSE = Knob("SANDERLING_SPARSE", "1", "0: weights of zero are multiplied like all others")
TRACE = Knob("SANDERLING_TRACE", "", "file that a trace of the whole process is written to")

KNOBS = (MAX_MEMORY, DELEGATES, CACHE, CACHE_SIZE, DUMP, HOST, CHECKED, SPARSE, TRACE)
