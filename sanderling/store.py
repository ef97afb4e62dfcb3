"""What was worked out once and is kept on disk: a private folder of entries.

An entry is a file named by the digest of all that its content depends on. It is written beside and
renamed into place: readers and writers need no lock, and an entry once made is never changed, only
replaced or removed. Whatever goes wrong here, work goes on without.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .config import CACHE, CACHE_SIZE
from .errors import CacheWarning
from .version import __version__

Made = TypeVar("Made")
DIGEST = 32  # bytes
PAGE = max(mmap.ALLOCATIONGRANULARITY, 4096)
_RECORD = b"sandrl-record-02"


@cache
def _compiler() -> str:
    return _who()


def _who() -> str:
    """Who makes an entry: this package and LLVM. In a checkout an edit of any file counts; what is
    installed is replaced as a whole, and shows in its folders."""
    root = Path(__file__).parent
    each_file = (root.parent / "pyproject.toml").exists()
    made = (__version__, _stamps(str(root), each_file), _llvm())
    return hashlib.sha256(repr(made).encode()).hexdigest()


# Where the code lies that decides what is kept, folder by folder: to find them again in every
# process would be a third of a small model's warm start. A test holds the list against the tree.
_CPU = ("", "codegen", "dialect", "isa", "kernels", "kernels/depthwise", "kernels/elementwise",
        "kernels/epilogue", "kernels/move", "kernels/products", "kernels/recurrent",
        "kernels/reduce", "kernels/spectral", "kernels/vision", "passes", "runtime",
        "steps")  # fmt: skip
SOURCES = ("", "delegates", *(f"delegates/cpu/{room}".rstrip("/") for room in _CPU), "format",
           "ir", "ops", "passes", "runtime")  # fmt: skip


def _stamps(root: str, each_file: bool) -> list[object]:
    """What tells sources from others: of each folder its time, or the size and time of each of its
    modules."""
    folders = [f"{root}/{name}" for name in SOURCES]
    return [_modules(f) if each_file else os.stat(f).st_mtime_ns for f in folders]  # noqa: PTH116


def _modules(folder: str) -> list[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        known = [(e.name, e.stat()) for e in entries if e.name.endswith(".py")]
    return sorted((name, status.st_size, status.st_mtime_ns) for name, status in known)


def _llvm() -> object:
    """llvmlite's version, read without loading it."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("_version.py")
    return version.read_bytes() if version.exists() else spec.origin


# What a decoder raises at content that is not what it should be, whatever its checksum says.
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
          ArithmeticError, RecursionError)  # fmt: skip
# What cannot be a file's name or content of a folder raises ValueError: a NUL, an odd character.
UNUSABLE = (OSError, ValueError)
# What an entry is called, and what is left of a writer that was killed.
_ENTRY = re.compile(r"[0-9a-f]{40}(\.[a-z]+)?|\.new-[0-9a-f]{16}")
# An entry is opened as it lies there: not what a link leads to, and a pipe does not wait.
_READ = os.O_RDONLY | sum(getattr(os, f"O_{k}", 0) for k in ("NOFOLLOW", "NONBLOCK", "CLOEXEC"))
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
OPEN_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


class Store:
    """The folder of entries; place is the folder, or "off", default what the environment says."""

    def __init__(self, place: str | None = None) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        text = CACHE.text() if place is None else place
        home = os.environ.get("HOME")
        self.folder = _folder(text, home) if text else _default_folder(base, home)

    @property
    def advice(self) -> str:
        """What to do where the folder is of no use."""
        return f"set {CACHE.name} to another folder, or to 'off'"

    def name(self, kind: str, *content: object) -> str:
        """An entry's name: a digest of its content's origin and of who makes it."""
        made_by = _compiler() if self.folder else ""
        return hashlib.sha256(f"{kind} {made_by} {content}".encode()).hexdigest()[:40]

    # -- records: small entries in JSON -----------------------------------------------------------

    def recall(
        self, name: str, decode: Callable[[Any], Made] = lambda content: content
    ) -> Made | None:
        """decode(content) of the record of this name, or None."""
        return self.read(name, lambda handle: decode(_record(handle, name)))

    def record(self, name: str, content: object) -> None:
        text = json.dumps([name, content]).encode()
        self.write(name, [_RECORD, hashlib.sha256(text).digest(), text])

    # -- files ------------------------------------------------------------------------------------

    def read(self, name: str, decode: Callable[[int], Made]) -> Made | None:
        """decode(handle) of an entry's file; a damaged one is removed, and said so."""
        if self.folder is None:
            return None
        try:
            handle = self._open(name)
        except UNUSABLE:
            return None
        if handle is None:
            return None
        try:
            return decode(handle)
        except DAMAGE as error:
            path = self.folder / name
            warnings.warn(
                f"the cached code {path} is damaged and is made anew: {error}",
                CacheWarning,
                stacklevel=2,
            )
            with suppress(OSError):
                path.unlink(missing_ok=True)
            return None
        finally:
            os.close(handle)

    def _open(self, name: str) -> int | None:
        """A handle of an entry that nobody else can have written. Owners and modes are those of
        what is open: what lies under the names may change meanwhile."""
        with self._opened() as folder:
            if folder is None:
                return None
            handle = os.open(name, _READ, dir_fd=folder)
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and _is_own(status):
            return handle
        os.close(handle)
        what = f"{self.folder}/{name} is not used: it is not a file of this user's own"
        warn_once(what, self.advice)
        return None

    @contextmanager
    def _opened(self) -> Iterator[int | None]:
        """The folder; None if others may write to it."""
        assert self.folder is not None
        handle = self._handle(self.folder)
        if handle is None:
            yield None
            return
        try:
            yield handle if _is_private(handle, self.folder, self.advice) else None
        finally:
            os.close(handle)

    def _handle(self, folder: Path) -> int | None:
        """The open folder; None if it is not to be trusted, which was said."""
        return os.open(folder, OPEN_FOLDER)

    def _make(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> bool:
        """Make an entry; False if it cannot be kept."""
        return self.write_all({name: pieces})

    def write_all(self, entries: Mapping[str, Iterable[bytes | memoryview]]) -> bool:
        """Make entries, by their names; False if they cannot all be kept."""
        if self.folder is None or _who() != _compiler():  # edited while it ran
            return False
        try:
            self._make(self.folder)
            with self._opened() as folder:
                if folder is None:
                    return False
                for name, pieces in entries.items():
                    _write_beside(name, pieces, folder)
        except UNUSABLE as error:
            warn_once(f"compiled code cannot be kept in {self.folder}: {error}", self.advice)
            return False
        return True

    def evict(self) -> None:
        """Remove the entries that have not been used for longest until the rest fits. What else
        lies in the folder is somebody's own."""
        most = CACHE_SIZE.size()
        entries = sorted(self._entries())
        excess = sum(size for _, size, _ in entries) - most
        for _, size, path in entries:
            if excess <= 0:
                return
            with suppress(OSError):
                path.unlink(missing_ok=True)
            excess -= size

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Times, sizes and paths. Others may remove what is found, or all of the folder."""
        if self.folder is None:
            return
        with suppress(*UNUSABLE):
            for path in self.folder.iterdir():
                if not _ENTRY.fullmatch(path.name):
                    continue
                with suppress(OSError):
                    status = path.lstat()
                    yield status.st_mtime_ns, status.st_size, path


def _write_beside(name: str, pieces: Iterable[bytes | memoryview], folder: int) -> None:
    """A file in an open folder, whole or not at all."""
    beside = f".new-{os.urandom(8).hex()}"
    handle = os.open(beside, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
        os.replace(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside, dir_fd=folder)
        raise


@cache
def _folder(text: str, home: str | None) -> Path | None:
    """None: nothing is kept, because that is wanted, or because there is no home or no owner.
    home is what `~` stands for, where the environment says so."""
    nowhere = text.startswith("~") and home == ""  # it would be the root folder
    if text == "off" or nowhere or not hasattr(os, "getuid"):
        return None
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return None


@cache
def _default_folder(base: str, home: str | None) -> Path | None:
    """Where nobody asked for a folder, it does not depend on where the program is started."""
    found = _folder(f"{base}/sanderling", home)
    return found if found is not None and found.is_absolute() else None


def _record(handle: int, name: str) -> Any:
    raw = os.read(handle, os.fstat(handle).st_size)
    head, text = raw[: len(_RECORD) + DIGEST], raw[len(_RECORD) + DIGEST :]
    if head != _RECORD + hashlib.sha256(text).digest():
        raise ValueError("its checksum is wrong")
    said, content = json.loads(text)
    if said != name:
        raise ValueError("it is another entry's")
    return content


# -- entries that are mapped ------------------------------------------------------------------
# Pieces on page boundaries, then a digest of all of them.


def paged(pieces: Iterable[bytes]) -> list[bytes]:
    """The content of such an entry."""
    body = b"".join(piece + bytes(-len(piece) % PAGE) for piece in pieces)
    return [body, digest(np.frombuffer(body, np.uint64))]


def check_paged_size(size: int) -> None:
    """ValueError if no such entry has so many bytes."""
    if size < PAGE + DIGEST or (size - DIGEST) % PAGE:
        raise ValueError("it is cut off")


def check_paged(memory: mmap.mmap, magic: bytes) -> None:
    """ValueError if an entry that begins with `magic` is not as it was written."""
    size = len(memory)
    body = np.frombuffer(memory, np.uint64, (size - DIGEST) // 8)
    if memory[: len(magic)] != magic or digest(body) != memory[size - DIGEST :]:
        raise ValueError("its checksum is wrong")


def next_page(offset: int) -> int:
    """The first page boundary that is not before this byte."""
    return -(-offset // PAGE) * PAGE


def digest(words: NDArray[np.uint64]) -> bytes:
    """A digest at the speed of memory: the sums of rows and columns, and a hash of those. It finds
    damage; it does not resist forgery, which the folder's mode does."""
    rows = words.reshape(-1, 512)
    sums = np.add.reduce(rows, axis=1), np.add.reduce(rows, axis=0)
    return hashlib.sha256(b"".join(s.tobytes() for s in sums)).digest()


@cache
def warn_once(text: str, advice: str) -> None:
    warnings.warn(f"{text}; {advice}", CacheWarning, stacklevel=2)


def _is_own(status: os.stat_result) -> bool:
    """This user's, or the system's, and nobody else may write to it."""
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & 0o022


def _is_private(handle: int, folder: Path, advice: str) -> bool:
    """Code is only run from a folder that nobody else can write to."""
    status = os.fstat(handle)
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        warn_once(f"the cache {folder} is not used: others may write to it", advice)
        return False
    if status.st_mode & 0o077:
        os.fchmod(handle, 0o700)
    return True
