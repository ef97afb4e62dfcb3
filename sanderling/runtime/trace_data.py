"""What a recording consists of: slices, instants and counts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError
from ..spans import Args

BARRIER = "barrier"
NO_CORE = "no core"  # a thread waits for a core: known from captures of the whole system only


class Slice(NamedTuple):
    """Something that took time on a thread; times in nanoseconds of the monotonic clock."""

    thread: int
    begin: int
    end: int
    name: str
    kind: str
    args: Args


class Instant(NamedTuple):
    """Something that happened at a moment."""

    thread: int
    at: int
    name: str
    kind: str
    args: Args


class Count(NamedTuple):
    """A quantity from this moment on."""

    at: int
    name: str
    value: float


@dataclass(eq=False)
class Trace:
    """A recording. It is filled when the recording ends."""

    about: dict[str, Any] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)  # thread id -> name
    slices: list[Slice] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    begin: int = 0
    end: int = 0

    def __repr__(self) -> str:
        if not self.end:
            return "<Trace, still being recorded>"
        return f"<Trace of {len(self.slices)} slices on {len(self.threads)} threads>"

    def of_kind(self, *kinds: str) -> list[Slice]:
        return [s for s in self.slices if s.kind in kinds]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as the name's ending says: .json (Chrome's format), or .perfetto-trace, .pftrace
        and .pb (Perfetto's protobuf, which needs the package `perfetto`)."""
        from ..format import AtomicFile
        from .tracefile import encode, encoder_for  # which is made of these classes

        if not self.end:
            raise InputError(
                "the recording still goes on",
                where=os.fspath(path),
                fix="save it behind the `with` block",
            )
        encoder_for(path)
        with AtomicFile(Path(path)) as file:
            file.write(encode(self, path))
