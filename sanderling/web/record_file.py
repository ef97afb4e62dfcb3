"""Records as they lie in a folder: files that anybody may have written."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError

Record = dict[str, Any]
LARGEST = 64 << 20  # bytes of a record; one of `bench` with all its samples has about ten million
MOST_FILES = 20_000  # that are looked at in a folder
DEEPEST = 6  # folders in folders
PREFIX = "sanderling."
READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# What a value of another type or a missing key raises in code that reads a record.
DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class Found(NamedTuple):
    """A file of the folder: its path from there on, and what tells that it changed."""

    path: str
    size: int
    changed: int  # nanoseconds


@dataclass(frozen=True)
class Content:
    """A record, or why there is none. Neither: a JSON file that is not one of ours."""

    record: Record | None = None
    problem: str = ""

    @property
    def verb(self) -> str:
        """bench, of the schema sanderling.bench/1."""
        return verb_of(self.record) if self.record is not None else ""


def verb_of(record: Record) -> str:
    return str(record["schema"]).removeprefix(PREFIX).partition("/")[0]


def inside(folder: Path, name: str) -> Path:
    """The file of this name in the folder, links followed; one that lies elsewhere is refused."""
    try:
        path = (folder / name).resolve()
        fits = path.is_relative_to(folder.resolve()) and path.exists()
    except (OSError, ValueError, RuntimeError):  # a zero in the name, a ring of links
        fits = False
    if not fits:
        raise InputError(
            "there is no such file in the folder that is served",
            where=name,
            fix="choose one that is listed",
        )
    return path


def files_of(folder: Path, endings: tuple[str, ...]) -> Iterator[Found]:
    """Files with these endings, in folders too, without hidden ones; the walk has an end."""
    left = MOST_FILES
    waiting = [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        for entry in _entries(place):
            left -= 1
            if left < 0:
                return
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth < DEEPEST:
                    waiting.append((Path(entry.path), depth + 1))
            elif entry.name.lower().endswith(endings) and (found := _found(folder, entry)):
                yield found


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda e: e.name)
    except OSError:  # removed meanwhile, or not ours to read
        return []


def _found(folder: Path, entry: os.DirEntry[str]) -> Found | None:
    """Links are left out, since what they lead to is not in the folder, and so are files whose
    names are no legal text: no address could name them."""
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    name = Path(entry.path).relative_to(folder).as_posix()
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return None
    return Found(name, status.st_size, status.st_mtime_ns)


def read_record(path: Path) -> Content:
    """What a file holds; whatever is wrong with it is a sentence."""
    try:
        raw = _read(path)
    except OSError as error:
        return Content(problem=f"it cannot be read: {error.strerror or error}")
    if raw is None:
        return Content(problem=f"it is larger than {LARGEST >> 20} MiB and was not read")
    try:
        record = json.loads(raw)
    except RecursionError:
        return Content(problem="it is nested too deeply")
    except MemoryError:
        return Content(problem="there is not enough memory to read it")
    except ValueError as error:
        return Content(problem=f"it is not well-formed JSON: {error}")
    is_ours = isinstance(record, dict) and str(record.get("schema", "")).startswith(PREFIX)
    return Content(record if is_ours else None)


def _read(path: Path) -> bytes | None:
    """None: too large. A pipe, or a file that grows while it is read, does not keep us."""
    handle = os.open(path, READ)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("it is not a file")
        content = file.read(LARGEST + 1)
    return None if len(content) > LARGEST else content
