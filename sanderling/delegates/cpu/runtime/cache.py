"""Compiled parts on disk: a warm start runs no pass and loads no LLVM.

An entry's name is a digest of all that it depends on: the part (structure and constants), target
and options, this package's files and LLVM's version (`store.py` says which count). It holds a
description, the code and the packed weights, each on a page boundary, and a checksum; code and
weights are mapped from it, so that processes share them.

The pieces that code is linked of are kept beside, each by its own content, so that another part
compiles only what it does not have in common with those before: another model of the family,
another batch size, code that is traced.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import mmap
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....ir import Graph, Op, Quant, Tensor, reachable
from ....store import DIGEST, Store, check_paged, check_paged_size, next_page, paged
from ..isa.targets import Target
from .abi import SLACK
from .executable import Compiled
from .image import Image

MAGIC = b"sandrl01"
# Constants up to this size can decide whether an op is taken (axes, paddings, shapes).
DECISIVE = 4096


# -- keys ---------------------------------------------------------------------------------------


def fingerprint(
    ops: Sequence[Op], inputs: Iterable[Tensor], outputs: Iterable[Tensor], whole: bool = True
) -> bytes:
    """A digest of everything that compiling these ops depends on; names do not count.

    whole=False leaves large constants out.
    """
    called: dict[Graph, bytes] = {}
    for graph in reachable(g for op in ops for g in op.subgraphs):
        called[graph] = _digest(graph.ops, graph.inputs, graph.outputs, whole, called)
    return _digest(ops, inputs, outputs, whole, called)


def _digest(
    ops: Sequence[Op],
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    whole: bool,
    called: Mapping[Graph, bytes],
) -> bytes:
    """called: the digests of the graphs that these ops call."""
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
        rows.append((op.name, op.version, _attr_rows(op, called), border))
    rows.append((list(map(number, inputs)), list(map(number, outputs))))
    try:
        text = marshal.dumps(rows, 2)  # later versions depend on who else holds an object
    except ValueError:  # strings of NumPy
        text = repr(rows).encode()
    return hashlib.sha256(text).digest()


def _attr_rows(op: Op, called: Mapping[Graph, bytes]) -> list[tuple[str, object]]:
    """Attributes; a graph by what it computes."""

    def row(value: object) -> object:
        if isinstance(value, list):
            return [row(v) for v in value]
        return called[value] if isinstance(value, Graph) else value

    return [(name, row(value)) for name, value in sorted(op.attrs.items())]


def _tensor_row(tensor: Tensor, whole: bool) -> tuple[object, ...]:
    raw = None if tensor.buffer is None else tensor.buffer.raw
    content: object = raw
    if raw is not None:
        content = hashlib.sha256(raw).digest() if whole or raw.nbytes <= DECISIVE else raw.nbytes
    return (
        tensor.dtype.name,
        tensor.shape,
        tensor.signature,
        tensor.is_variable,
        content,
        tensor.quant and _quant_row(tensor.quant),
        tensor.sparsity and repr(tensor.sparsity),
    )


def _quant_row(quant: Quant) -> tuple[object, ...]:
    return (
        quant.scale.tobytes(),
        quant.zero_point.tobytes(),
        quant.axis,
        quant.custom,
        quant.block and _block_row(quant.block),
    )


def _block_row(block: Any) -> tuple[object, ...]:
    parts = (block.scales, block.zero_points)
    return (repr(block), *(t and _tensor_row(t, True) for t in parts))


# -- files --------------------------------------------------------------------------------------

# What this process has loaded already: sessions on the same part share it.
_loaded: weakref.WeakValueDictionary[Path, Compiled] = weakref.WeakValueDictionary()


class Cache(Store):
    """Parts, and the answers to what is refused."""

    def key(self, kind: str, content: bytes, target: Target, *settings: object) -> str:
        """The name of an entry."""
        about = target.name, target.features, target.precision, target.sparse
        return self.name(kind, content, *about, settings)

    def load(self, key: str) -> Compiled | None:
        if self.folder is None:
            return None
        path = self.folder / f"{key}.part"
        found = _loaded.get(path)
        if found is None:
            found = self.read(path.name, partial(_mapped, key))
            if found is not None:
                _loaded[path] = found
        return found

    def store(self, key: str, made: Compiled) -> Compiled:
        """Keep it; returns the same thing mapped from the file, which others can share."""
        if self.folder is None or not self.write(f"{key}.part", _entry(key, made)):
            return made
        self.evict()
        return self.load(key) or made

    def load_reasons(self, key: str, count: int) -> list[str | None] | None:
        """The remembered answers to `refuses`, if there are as many as were asked."""

        def checked(found: list[str | None]) -> list[str | None]:
            texts = all(f is None or isinstance(f, str) for f in found)
            if len(found) != count or not texts or not isinstance(found, list):
                raise ValueError(f"it is not {count} answers")
            return found

        return self.recall(f"{key}.reasons", checked)

    def load_piece(self, key: bytes) -> bytes | None:
        """The object code of a piece of a program, by the digest of what it is compiled from."""
        name = self._piece_name(key)
        return self.read(name, lambda handle: _piece(handle, name))

    def store_pieces(self, made: Mapping[bytes, bytes]) -> None:
        entries = {self._piece_name(key): code for key, code in made.items()}
        self.write_all({name: _piece_entry(name, code) for name, code in entries.items()})

    def _piece_name(self, key: bytes) -> str:
        return f"{self.name('piece', key)}.piece"

    def store_reasons(self, key: str, reasons: Sequence[str | None]) -> None:
        self.record(f"{key}.reasons", reasons)


# -- the file's form ------------------------------------------------------------------------------


# The fields of Compiled that are neither code nor weights.
_PLAIN = tuple(f.name for f in fields(Compiled) if f.name not in ("image", "weights"))


def _entry(key: str, made: Compiled) -> list[bytes]:
    """MAGIC, length of the description, description | code | weights | digest."""
    weights = made.weights[: made.weights.size - SLACK].tobytes()
    about: dict[str, Any] = {name: getattr(made, name) for name in _PLAIN}
    about |= {
        "entries": made.image.entries,
        "code": len(made.image.code),
        "data": len(weights),
        "key": key,
    }
    text = json.dumps(about).encode()
    head = MAGIC + len(text).to_bytes(8, "little") + text
    pieces = head, bytes(made.image.code), weights + bytes(SLACK)
    return paged(pieces)


def _piece_entry(name: str, code: bytes) -> list[bytes]:
    """Digest | code. The name counts, so that an entry is not taken for another."""
    return [hashlib.sha256(name.encode() + code).digest(), code]


def _piece(handle: int, name: str) -> bytes:
    with suppress(OSError):
        os.utime(handle)
    with os.fdopen(os.dup(handle), "rb") as file:
        raw = file.read()
    found, code = raw[:DIGEST], raw[DIGEST:]
    if hashlib.sha256(name.encode() + code).digest() != found:
        raise ValueError("its checksum is wrong")
    return code


def _mapped(key: str, handle: int) -> Compiled:
    """The entry in this file; ValueError if it is not whole, or not that of this key."""
    with suppress(OSError):  # somebody else's folder
        os.utime(handle)  # the least recently used go first
    size = os.fstat(handle).st_size
    check_paged_size(size)
    memory = mmap.mmap(
        handle, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0), prot=mmap.PROT_READ
    )
    check_paged(memory, MAGIC)
    length = int.from_bytes(memory[8:16], "little")
    about = json.loads(memory[16 : 16 + length])
    if about.pop("key") != key:
        raise ValueError("it is another entry's")
    code, data, entries = (about.pop(k) for k in ("code", "data", "entries"))
    begin = next_page(16 + length)
    after = begin + next_page(code)
    _check_sizes(about, code, data, entries, size - DIGEST - after)
    weights = np.frombuffer(memory, np.uint8, data + SLACK, after)
    about |= {k: tuple(about[k]) for k in ("steps", "report", "sites", "sizes", "units", "works")}
    return Compiled(
        image=Image(_executable(handle, code, begin, memory), entries), weights=weights, **about
    )


def _check_sizes(
    about: dict[str, Any], code: int, data: int, entries: dict[str, int], room: int
) -> None:
    """Nothing that is said lies outside of what is there. room: the bytes behind the code."""
    numbers = [about[k] for k in ("arena", "scratch", "args", "macs", "floor")]
    places = [*numbers, *entries.values(), *about["sizes"], code, data]
    places += [*about["units"], *about["works"]]
    if not all(isinstance(n, int) and n >= 0 for n in places):
        raise ValueError("its numbers are wrong")
    inside = all(at < code for at in entries.values()) and data + SLACK <= room
    phases = {len(about["units"]), len(about["works"])}
    alike = len(phases) == 1 and max(phases) <= len(about["steps"])
    alike = alike and len(about["sizes"]) == about["args"]
    if not inside or not alike or "invoke" not in entries:
        raise ValueError("its sizes do not fit each other")


def _executable(handle: int, size: int, begin: int, memory: mmap.mmap) -> bytes | mmap.mmap:
    """The code mapped to be run; copied where the folder's file system forbids that."""
    try:
        return mmap.mmap(
            handle, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC, offset=begin
        )
    except OSError:
        return memory[begin : begin + size]
