"""Compiled parts on disk: a warm start runs no pass and loads no LLVM.

An entry is one file, named by the digest of all that its content depends on: the part (structure
and constants), target and options, this package's files and LLVM's version. It holds a
description, the code and the packed weights, each on a page boundary, and a checksum; code and
weights are mapped from it, so that processes share them. Entries are written beside and renamed
into place: readers and writers need no lock, and an entry once made is never changed, only replaced
or removed.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import mmap
import os
import tempfile
import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import fields
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ...config import CACHE, CACHE_SIZE
from ...errors import CacheWarning
from ...ir import Array, Op, Quant, Tensor
from ...version import __version__
from .abi import SLACK
from .executable import Compiled
from .image import Image
from .targets import Target

MAGIC = b"sandrl01"
PAGE = max(mmap.ALLOCATIONGRANULARITY, 4096)
DIGEST = 32
# Constants up to this size can decide whether an op is taken (axes, paddings, shapes).
DECISIVE = 4096


# -- keys ---------------------------------------------------------------------------------------


def fingerprint(ops: Sequence[Op], inputs: Iterable[Tensor], outputs: Iterable[Tensor],
                whole: bool = True) -> bytes:  # fmt: skip
    """A digest of everything that compiling these ops depends on; names do not count.

    whole=False leaves large constants out.
    """
    numbers: dict[Tensor | None, int] = {None: -1}
    rows: list[object] = []

    def number(tensor: Tensor | None) -> int:
        found = numbers.get(tensor)
        if found is None:
            assert tensor is not None
            found = numbers[tensor] = len(numbers)
            rows.append(_tensor_row(tensor, whole))
        return found

    for op in ops:
        border = [list(map(number, ts)) for ts in (op.inputs, op.outputs, op.intermediates)]
        rows.append((op.name, op.version, sorted(op.attrs.items()), border))
    rows.append((list(map(number, inputs)), list(map(number, outputs))))
    try:
        text = marshal.dumps(rows, 2)  # later versions depend on who else holds an object
    except ValueError:  # subgraphs, strings of NumPy
        text = repr(rows).encode()
    return hashlib.sha256(text).digest()


def _tensor_row(tensor: Tensor, whole: bool) -> tuple[object, ...]:
    raw = None if tensor.buffer is None else tensor.buffer.raw
    content: object = raw
    if raw is not None:
        content = hashlib.sha256(raw).digest() if whole or raw.nbytes <= DECISIVE else raw.nbytes
    return (tensor.dtype.name, tensor.shape, tensor.signature, tensor.is_variable, content,
            tensor.quant and _quant_row(tensor.quant), tensor.sparsity and repr(tensor.sparsity),
            )  # fmt: skip


def _quant_row(quant: Quant) -> tuple[object, ...]:
    return (quant.scale.tobytes(), quant.zero_point.tobytes(), quant.axis, quant.custom,
            quant.block and _block_row(quant.block))  # fmt: skip


def _block_row(block: Any) -> tuple[object, ...]:
    parts = (block.scales, block.zero_points)
    return (repr(block), *(t and _tensor_row(t, True) for t in parts))


@cache
def _compiler() -> str:
    return _who()


def _who() -> str:
    """Who makes an entry: this package, file by file (so that an edit counts), and LLVM."""
    root = Path(__file__).parents[2]
    files = [_stamps(root / folder) for folder in _SOURCES]
    return repr((__version__, files, _llvm()))


# Where the code lies that decides what is compiled, and how.
_SOURCES = ("delegates/cpu", "passes", "ops", "ir", "runtime")


def _stamps(folder: Path) -> list[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        return sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries
                      if e.name.endswith(".py"))  # fmt: skip


def _llvm() -> object:
    """llvmlite's version, read without loading it."""
    spec = find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("_version.py")
    return version.read_bytes() if version.exists() else spec.origin


# -- files --------------------------------------------------------------------------------------

# What this process has loaded already: sessions on the same part share it.
_loaded: weakref.WeakValueDictionary[Path, Compiled] = weakref.WeakValueDictionary()


class Cache:
    """A folder of entries. Whatever goes wrong with it, compilation goes on without."""

    def __init__(self, place: str | None = None) -> None:
        text = CACHE.text() if place is None else place
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        self.folder = (
            None if text == "off" else Path(text or f"{base}/sanderling").expanduser()
        )  # fmt: skip

    def key(self, kind: str, content: bytes, target: Target, *settings: object) -> str:
        """The name of an entry."""
        made_by = _compiler() if self.folder else ""
        text = f"{kind} {made_by} {target.name} {target.features} {settings}"
        return hashlib.sha256(text.encode() + content).hexdigest()[:40]

    def load(self, key: str) -> Compiled | None:
        if self.folder is None:
            return None
        path = self.folder / f"{key}.part"
        found = _loaded.get(path)
        if found is None:
            found = self._read(path)
            if found is not None:
                _loaded[path] = found
        return found

    def store(self, key: str, made: Compiled) -> Compiled:
        """Keep it; returns the same thing mapped from the file, which others can share."""
        if self.folder is None or _who() != _compiler():  # edited while it ran
            return made
        if not self._write(f"{key}.part", _entry(made)):
            return made
        self._evict()
        return self.load(key) or made

    def load_reasons(self, key: str, count: int) -> list[str | None] | None:
        """The remembered answers to `refuses`, if there are as many as were asked."""
        if self.folder is None:
            return None
        try:
            found = json.loads((self.folder / f"{key}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, list) and len(found) == count else None

    def store_reasons(self, key: str, reasons: Sequence[str | None]) -> None:
        if self.folder is not None and _who() == _compiler():
            self._write(f"{key}.json", [json.dumps(reasons).encode()])

    def _read(self, path: Path) -> Compiled | None:
        try:
            if not _is_private(path.parent):
                return None
            with path.open("rb") as file:
                os.utime(file.fileno())  # the least recently used go first
                return _mapped(file.fileno())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            warnings.warn(f"the cached code {path} is damaged and is made anew: {error}",
                          CacheWarning, stacklevel=2)  # fmt: skip
            path.unlink(missing_ok=True)
            return None

    def _write(self, name: str, pieces: Iterable[bytes | memoryview]) -> bool:
        assert self.folder is not None
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

    def _evict(self) -> None:
        """Remove the entries that have not been used for longest until the rest fits."""
        assert self.folder is not None
        entries = []
        for path in self.folder.iterdir():
            try:
                status = path.stat()
            except OSError:  # somebody else removed it
                continue
            entries.append((status.st_mtime_ns, status.st_size, path))
        excess = sum(size for _, size, _ in entries) - CACHE_SIZE.size()
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


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


# -- the file's form ------------------------------------------------------------------------------


# The fields of Compiled that are neither code nor weights.
_PLAIN = tuple(f.name for f in fields(Compiled) if f.name not in ("image", "weights"))


def _entry(made: Compiled) -> list[bytes]:
    """MAGIC, length of the description, description | code | weights | digest."""
    weights = made.weights[: made.weights.size - SLACK].tobytes()
    about: dict[str, Any] = {name: getattr(made, name) for name in _PLAIN}
    about |= {"entries": made.image.entries, "code": len(made.image.code), "data": len(weights)}
    text = json.dumps(about).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + text
    pieces = head, bytes(made.image.code), weights + bytes(SLACK)
    body = b"".join(piece + bytes(-len(piece) % PAGE) for piece in pieces)
    return [body, digest(np.frombuffer(body, np.uint64))]


def digest(words: Array) -> bytes:
    """A digest at the speed of memory: weighted sums of rows, sums of columns, and a hash of those.
    It finds damage; it does not resist forgery, which the folder's mode does."""
    rows = words.reshape(-1, 512)
    weights = np.arange(1, 1024, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    sums = np.einsum("ij,j->i", rows, weights), rows.sum(axis=0, dtype=np.uint64)
    return hashlib.sha256(b"".join(s.tobytes() for s in sums)).digest()


def _mapped(handle: int) -> Compiled:
    """The entry in this file; ValueError if it is not whole."""
    size = os.fstat(handle).st_size
    if size < PAGE + DIGEST or (size - DIGEST) % PAGE:
        raise ValueError("it is cut off")
    memory = mmap.mmap(handle, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0),
                       prot=mmap.PROT_READ)  # fmt: skip
    body = np.frombuffer(memory, np.uint64, (size - DIGEST) // 8)
    if memory[:8] != MAGIC or digest(body) != memory[size - DIGEST :]:
        raise ValueError("its checksum is wrong")
    length = int.from_bytes(memory[8:16], "little")
    about = json.loads(memory[16 : 16 + length])
    code, data, entries = (about.pop(k) for k in ("code", "data", "entries"))
    begin = -(-(16 + length) // PAGE) * PAGE
    after = begin + -(-code // PAGE) * PAGE
    weights = np.frombuffer(memory, np.uint8, data + SLACK, after)
    about |= {k: tuple(about[k]) for k in ("steps", "report")}
    return Compiled(image=Image(_executable(handle, code, begin, memory), entries),
                    weights=weights, **about)  # fmt: skip


def _executable(handle: int, size: int, begin: int, memory: mmap.mmap) -> bytes | mmap.mmap:
    """The code mapped to be run; copied where the folder's file system forbids that."""
    try:
        return mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE,
                         prot=mmap.PROT_READ | mmap.PROT_EXEC, offset=begin)  # fmt: skip
    except OSError:
        return memory[begin : begin + size]
