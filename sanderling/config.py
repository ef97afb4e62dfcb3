"""The environment knobs, all of them, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .errors import InputError


@dataclass(frozen=True)
class Knob:
    """One environment variable."""

    name: str
    default: str
    meaning: str

    def text(self) -> str:
        return os.environ.get(self.name, self.default)

    def is_on(self) -> bool:
        """Anything but nothing and 0."""
        return self.text().strip() not in ("", "0")

    def size(self) -> int:
        """A number of bytes: digits with an optional k, m, g."""
        text = self.text().strip().lower()
        unit = {"k": 10, "m": 20, "g": 30}.get(text[-1:], 0)
        digits = text[:-1] if unit else text
        if not digits.isdigit():
            raise InputError(f"'{text}' is not a size", where=f"environment variable {self.name}",
                             fix="write a number with k, m or g, for example 4g")  # fmt: skip
        return int(digits) << unit


MAX_MEMORY = Knob("SANDERLING_MAX_MEMORY", "16g", "most bytes that the tensors of one run may take")
DELEGATES = Knob("SANDERLING_DELEGATES", "", "default delegates, by name, separated by commas")
CACHE = Knob("SANDERLING_CACHE", "", "folder of compiled code, or off; default ~/.cache/sanderling")
CACHE_SIZE = Knob("SANDERLING_CACHE_SIZE", "1g", "most bytes of compiled code kept")
DUMP = Knob("SANDERLING_DUMP", "", "folder that every stage of a compilation is written to")
CHECKED = Knob("SANDERLING_CHECKED", "", "1: compiled code tests every access to memory, slowly")
TRACE = Knob("SANDERLING_TRACE", "", "file that a trace of the whole process is written to")

KNOBS = (MAX_MEMORY, DELEGATES, CACHE, CACHE_SIZE, DUMP, CHECKED, TRACE)
