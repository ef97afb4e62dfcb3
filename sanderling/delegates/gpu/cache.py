"""Compiled parts on disk: programs' binaries, launches, packed weights.

An entry's name is a digest of all that it depends on: the part (structure and constants), the
device and its driver, options, this package's files. Weights are mapped from it, so that the host
has them once; where a device shares the host's memory, it reads them there.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ...store import (
    OPEN_FOLDER,
    Store,
    check_paged,
    check_paged_size,
    next_page,
    paged,
    warn_once,
)
from .devices.device import Offers
from .recipe import WEIGHTS, Call, MemoryObject, Recipe

MAGIC = b"sandrlg1"
FOLDER = "sanderling-gpu"  # within the folder that the user gives
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


@dataclass
class Entry:
    """What is kept of a part. binaries: a program each."""

    recipe: Recipe
    binaries: list[bytes]


@cache
def sources() -> str:
    """What tells this delegate's modules from others: in a checkout, any edit counts."""
    root = Path(__file__).parent
    found = [(str(p.relative_to(root)), *_stamp(p)) for p in sorted(root.rglob("*.py"))]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


class GpuCache(Store):
    """folder: the user's own; default that of all that is kept; None: nothing is kept."""

    def __init__(self, folder: str | None = "") -> None:
        super().__init__("off" if folder is None else f"{folder}/{FOLDER}" if folder else None)
        self._is_asked_for = bool(folder)

    @property
    def advice(self) -> str:
        if not self._is_asked_for:
            return super().advice
        return "give another folder as serialization_dir, or cache=false"

    def _handle(self, folder: Path) -> int | None:
        """Ours within the user's, which may be /tmp. Who could rename ours could put a link to any
        other folder of this user in its place, and that one would be emptied to make room."""
        if not self._is_asked_for:
            return super()._handle(folder)
        given = os.open(folder.parent, OPEN_FOLDER)
        try:
            if _holds_on(os.fstat(given)):
                return os.open(folder.name, OPEN_FOLDER | _NO_LINK, dir_fd=given)
        finally:
            os.close(given)
        what = f"the folder {folder.parent} is not used: others may rename what lies in it"
        warn_once(what, self.advice)
        return None

    def _make(self, folder: Path) -> None:
        """The folder that is given may be new; the one that holds it would be mistyped."""
        if self._is_asked_for:
            if not folder.parent.parent.is_dir():
                raise FileNotFoundError(f"there is no folder {folder.parent.parent}")
            folder.parent.mkdir(mode=0o700, exist_ok=True)
            if not _holds_on(folder.parent.stat()):
                return  # whoever opens it says so
        super()._make(folder)

    def key(self, content: bytes, offers: Offers, *settings: object) -> str:
        return self.name("gpu", sources(), content, offers, settings)

    def load(self, key: str) -> Entry | None:
        return self.read(f"{key}.gpu", partial(_mapped, key))

    def keep(self, key: str, entry: Entry) -> Entry:
        """Returns the entry with weights that are mapped from the file, if it could be kept."""
        if self.folder is None or not self.write(f"{key}.gpu", _pieces(key, entry)):
            return entry
        self.evict()
        return self.load(key) or entry


def _holds_on(status: os.stat_result) -> bool:
    """Whether what this user has in a folder stays there: nobody else may write to it, or it is
    sticky, as /tmp is, and they can only add to it."""
    is_shared = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
    return status.st_uid in (os.getuid(), 0) and not is_shared


def _pieces(key: str, entry: Entry) -> list[bytes]:
    """MAGIC, length of the description, description | binaries | weights | digest."""
    recipe = entry.recipe
    about = {
        "key": key,
        "calls": [list(asdict(c).values()) for c in recipe.calls],
        "places": [list(asdict(p).values()) for p in recipe.places],
        "inputs": recipe.inputs,
        "outputs": recipe.outputs,
        "programs": recipe.programs,
        "remarks": recipe.remarks,
        "states": recipe.states,
        "binaries": [len(b) for b in entry.binaries],
        "weights": recipe.weights.nbytes,
    }
    text = json.dumps(about).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + text
    pieces = head, b"".join(entry.binaries), recipe.weights.tobytes()
    return paged(pieces)


def _mapped(key: str, handle: int) -> Entry:
    """The entry in this file; ValueError if it is not whole, or not that of this key."""
    with suppress(OSError):
        os.utime(handle)  # the least recently used go first
    size = os.fstat(handle).st_size
    check_paged_size(size)
    # Private and writable: drivers want to write to memory that they are given, and nobody does.
    memory = mmap.mmap(handle, size, access=mmap.ACCESS_COPY)
    check_paged(memory, MAGIC)
    length = int.from_bytes(memory[8:16], "little")
    about = json.loads(memory[16 : 16 + length])
    if about["key"] != key:
        raise ValueError("it is another entry's")
    begin = next_page(16 + length)
    after = begin + next_page(sum(about["binaries"]))
    weights = np.frombuffer(memory, np.uint8, about["weights"], after)
    found = Entry(_recipe(about, weights), _split(memory, begin, about["binaries"]))
    _check(found)
    return found


def _split(memory: mmap.mmap, begin: int, sizes: list[int]) -> list[bytes]:
    found = []
    for size in sizes:
        found.append(memory[begin : begin + size])
        begin += size
    return found


def _recipe(about: dict[str, Any], weights: Any) -> Recipe:
    calls = [Call(*map(_unlisted, row)) for row in about["calls"]]
    places = [MemoryObject(*row) for row in about["places"]]
    return Recipe(
        calls,
        places,
        about["inputs"],
        about["outputs"],
        about["programs"],
        weights,
        about["remarks"],
        [(number, place) for number, place in about["states"]],
    )


def _unlisted(field: Any) -> Any:
    """JSON has no tuples."""
    return tuple(field) if isinstance(field, list) else field


def _check(entry: Entry) -> None:
    """Nothing that is said lies outside of what is there."""
    recipe = entry.recipe
    count, room = len(recipe.places), recipe.weights.nbytes
    numbers = [i for c in recipe.calls for i in c.arguments] + recipe.inputs + recipe.outputs
    numbers += [place for _, place in recipe.states]
    inside = all(0 <= i < count for i in numbers)
    inside &= all(0 <= number < len(recipe.inputs) for number, _ in recipe.states)
    weights = [p for p in recipe.places if p.kind == WEIGHTS]
    fits = all(0 <= p.begin <= p.begin + p.nbytes <= room for p in weights)
    known = {name for names in recipe.programs for name in names}
    whole = all(c.kernel in known for c in recipe.calls)
    if not (inside and fits and whole) or len(entry.binaries) != len(recipe.programs):
        raise ValueError("its sizes do not fit each other")
