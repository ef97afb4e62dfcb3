"""Object code -> one flat, position-independent image that can be mapped and called.

The compiler emits ELF objects whatever the system is; code and read-only data are laid out behind
each other and the relocations between them, all relative, are resolved here. So a cached image is
the bytes to map, and loading it needs neither LLVM nor a linker. Nothing outside it is called.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....errors import DelegateError

REPORT = "this is a defect of the compiler; please report the model"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_ALLOCATED = 0x2
_SYMBOL_TABLE, _RELOCATIONS, _NO_BITS = 2, 4, 8


@dataclass(frozen=True)
class Image:
    """Machine code with its constants, and where its functions begin. Code that is a mapping can be
    run where it lies."""

    code: bytes | mmap.mmap
    entries: dict[str, int]


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    data: bytes
    link: int
    info: int
    align: int


def link(obj: bytes) -> Image:
    """Lay out an ELF64 object's sections and resolve its relocations."""
    sections = _sections(obj)
    places: dict[int, int] = {}
    blob = bytearray()
    for index, section in enumerate(sections):
        if section.flags & _ALLOCATED and section.kind != _NO_BITS and _is_needed(section.name):
            blob += bytes(-len(blob) % max(section.align, 1))
            places[index] = len(blob)
            blob += section.data
    symbols = _symbols(sections)
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in places:
            _relocate(blob, section, places, symbols)
    entries = {
        name: places[home] + value for name, home, value in symbols if name and home in places
    }
    return Image(bytes(blob), entries)


def _is_needed(name: str) -> bool:
    return not name.startswith((".eh_frame", ".note", ".comment"))


def _sections(obj: bytes) -> list[_Section]:
    start = struct.unpack_from("<Q", obj, 40)[0]
    size, count, names_at = struct.unpack_from("<HHH", obj, 58)
    rows = [_SECTION.unpack_from(obj, start + i * size) for i in range(count)]
    names = rows[names_at]

    def text(offset: int) -> str:
        begin = names[4] + offset
        return obj[begin : obj.index(b"\0", begin)].decode()

    return [
        _Section(
            text(r[0]),
            r[1],
            r[2],
            obj[r[4] : r[4] + r[5]] if r[1] != _NO_BITS else b"",
            r[6],
            r[7],
            r[8],
        )
        for r in rows
    ]


def _symbols(sections: list[_Section]) -> list[tuple[str, int, int]]:
    """Name, home section and value of every symbol."""
    found: list[tuple[str, int, int]] = []
    for section in sections:
        if section.kind == _SYMBOL_TABLE:
            strings = sections[section.link].data
            for at in range(0, len(section.data), _SYMBOL.size):
                name, _, _, home, value, _ = _SYMBOL.unpack_from(section.data, at)
                found.append((strings[name : strings.index(b"\0", name)].decode(), home, value))
    return found


def _relocate(
    blob: bytearray, section: _Section, places: dict[int, int], symbols: list[tuple[str, int, int]]
) -> None:
    base = places[section.info]
    for at in range(0, len(section.data), _RELOCATION.size):
        offset, info, addend = _RELOCATION.unpack_from(section.data, at)
        name, home, value = symbols[info >> 32]
        if home not in places:
            raise DelegateError(
                f"generated code refers to '{name}', which nobody defines", fix=REPORT
            )
        kind = info & 0xFFFFFFFF
        if kind not in RELOCATIONS:
            raise DelegateError(f"generated code has a relocation of kind {kind}", fix=REPORT)
        RELOCATIONS[kind](blob, base + offset, places[home] + value + addend)


def _pc32(blob: bytearray, at: int, target: int) -> None:
    struct.pack_into("<i", blob, at, target - at)


def _pc64(blob: bytearray, at: int, target: int) -> None:
    struct.pack_into("<q", blob, at, target - at)


def _page(blob: bytearray, at: int, target: int) -> None:
    """AArch64 ADRP: the image is mapped on a page boundary."""
    pages = (target >> 12) - (at >> 12)
    word = struct.unpack_from("<I", blob, at)[0]
    word |= (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    struct.pack_into("<I", blob, at, word)


def _low12(scale: int) -> Callable[[bytearray, int, int], None]:
    """AArch64: the low twelve bits of an address, in units of the access size."""

    def patch(blob: bytearray, at: int, target: int) -> None:
        word = struct.unpack_from("<I", blob, at)[0] | ((target & 0xFFF) >> scale) << 10
        struct.pack_into("<I", blob, at, word)

    return patch


def _branch26(blob: bytearray, at: int, target: int) -> None:
    word = struct.unpack_from("<I", blob, at)[0] | ((target - at) >> 2 & 0x3FFFFFF)
    struct.pack_into("<I", blob, at, word)


# By the ELF numbers: x86-64 PC32, PLT32, PC64; AArch64 PREL32, ADRP, ADD and loads of each size,
# branches. The two sets do not overlap.
RELOCATIONS: dict[int, Callable[[bytearray, int, int], None]] = {
    2: _pc32, 4: _pc32, 24: _pc64,
    261: _pc32, 275: _page, 277: _low12(0), 278: _low12(0), 284: _low12(1), 285: _low12(2),
    286: _low12(3), 299: _low12(4), 282: _branch26, 283: _branch26,
}  # fmt: skip


class Loaded:
    """An image in executable memory."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._memory = image.code if isinstance(image.code, mmap.mmap) else _copied(image.code)
        self.address = _address(self._memory)

    def entry(self, name: str) -> int:
        return self.address + self.image.entries[name]


def _copied(code: bytes) -> mmap.mmap:
    """Executable memory with this code in it; never writable and executable at once."""
    memory = mmap.mmap(-1, max(len(code), 1), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(code)
    _make_executable(_address(memory), len(memory))
    return memory


def _address(memory: mmap.mmap) -> int:
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def _make_executable(address: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(whole), 1 | 4) != 0:
        raise DelegateError(
            f"memory cannot be made executable (error {ctypes.get_errno()})",
            fix="the system forbids generated code; use delegates=['reference']",
        )
