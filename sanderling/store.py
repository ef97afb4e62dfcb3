"""What was worked out once and is kept on disk: a private folder of entries.

An entry is a file named by the digest of all that its content depends on. It is written beside and
renamed into place: readers and writers need no lock, and an entry once made is never changed, only
replaced or removed. Whatever goes wrong here, work goes on without.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from .config import CACHE, CACHE_SIZE
from .errors import CacheWarning
from .version import __version__

Made = TypeVar("Made")
DIGEST = 32
_RECORD = b"sandrl-record-01"


@cache
def _compiler() -> str:
    return _who()


def _who() -> str:
    """Who makes an entry: this package and LLVM. In a checkout an edit of any file counts; what is
    installed is replaced as a whole, and shows in its folders."""
    root = Path(__file__).parent
    look = _stamps if (root.parent / "pyproject.toml").exists() else _changed
    files = [look(f"{root}/{folder}") for folder in _SOURCES]
    return hashlib.sha256(repr((__version__, files, _llvm())).encode()).hexdigest()


# Where the code lies that decides what is kept.
_SOURCES = ("", "delegates", "delegates/cpu", "passes", "ops", "ir", "format", "runtime")


def _changed(folder: str) -> object:
    return Path(folder).stat().st_mtime_ns


def _stamps(folder: str) -> object:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                status = entry.stat()
                found.append((entry.name, status.st_size, status.st_mtime_ns))
    found.sort()
    return found


def _llvm() -> object:
    """llvmlite's version, read without loading it."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("_version.py")
    return version.read_bytes() if version.exists() else spec.origin


class Store:
    """The folder of entries; place is the folder, or "off", default what the environment says."""

    def __init__(self, place: str | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        text = CACHE.text() if place is None else place
        self.folder = _folder(text or f"{base}/sanderling", os.environ.get("HOME"))

    def name(self, kind: str, *content: object) -> str:
        """An entry's name: a digest of its content's origin and of who makes it."""
        made_by = _compiler() if self.folder else ""
        return hashlib.sha256(f"{kind} {made_by} {content}".encode()).hexdigest()[:40]

    # -- records: small entries in JSON -----------------------------------------------------------

    def recall(self, name: str) -> Any:
        """The record of this name, or None."""
        return self.read(name, _record)

    def record(self, name: str, content: object) -> None:
        text = json.dumps(content).encode()
        self.write(name, [_RECORD, hashlib.sha256(text).digest(), text])

    # -- files ------------------------------------------------------------------------------------

    def read(self, name: str, decode: Callable[[int], Made]) -> Made | None:
        """decode(handle) of an entry's file; a damaged one (ValueError) is removed, and said so."""
        if self.folder is None:
            return None
        path = self.folder / name
        try:
            handle = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        try:
            return decode(handle) if _is_private(self.folder) else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"the cached code {path} is damaged and is made anew: {error}",
                          CacheWarning, stacklevel=2)  # fmt: skip
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        finally:
            os.close(handle)

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> bool:
        """Make an entry; False if it cannot be kept."""
        if self.folder is None or _who() != _compiler():  # edited while it ran
            return False
        import tempfile  # not needed for what is there already

        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self.folder):
                return False
            handle, beside = tempfile.mkstemp(prefix=".new-", dir=self.folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.writelines(pieces)
                Path(beside).replace(self.folder / name)
            except BaseException:
                Path(beside).unlink(missing_ok=True)
                raise
        except OSError as error:
            _warn_once(f"compiled code cannot be kept in {self.folder}: {error}")
            return False
        return True

    def evict(self) -> None:
        """Remove the entries that have not been used for longest until the rest fits."""
        if self.folder is None:
            return
        entries = []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
            except OSError:  # somebody else removed it
                continue
            if path.is_dir():  # of another kind, with rules of its own
                continue
            entries.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in entries) - CACHE_SIZE.size()
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


@cache
def _folder(text: str, home: str | None) -> Path | None:
    """None: nothing is kept, because that is wanted, or because there is no home or no owner.
    home is what `~` stands for, where the environment says so."""
    if text == "off" or not hasattr(os, "getuid"):
        return None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return None


def _record(handle: int) -> Any:
    raw = os.read(handle, os.fstat(handle).st_size)
    head, text = raw[: len(_RECORD) + DIGEST], raw[len(_RECORD) + DIGEST :]
    if head != _RECORD + hashlib.sha256(text).digest():
        raise ValueError("its checksum is wrong")
    return json.loads(text)


@cache
def _warn_once(text: str) -> None:
    warnings.warn(f"{text}; set {CACHE.name} to another folder, or to 'off'", CacheWarning,
                  stacklevel=2)  # fmt: skip


def _is_private(folder: Path) -> bool:
    """Code is only run from a folder that nobody else can write to."""
    status = folder.stat()
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        _warn_once(f"the cache {folder} is not used: others may write to it")
        return False
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return True
