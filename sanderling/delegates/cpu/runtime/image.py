"""Object code -> one flat, position-independent image that can be mapped and called.

The compiler emits ELF objects whatever the system is; code and read-only data are laid out behind
each other and the relocations between them, all relative, are resolved here. So a cached image is
the bytes to map, and loading it needs neither LLVM nor a linker. Nothing outside it is called.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import DelegateError

REPORT = "this is a defect of the compiler; please report the model"
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_ALLOCATED, _CODE = 0x2, 0x4
_SYMBOL_TABLE, _RELOCATIONS, _NO_BITS = 2, 4, 8
_LOCAL = 0  # how a symbol is bound that only its own object sees
Names = Mapping[int, Mapping[str, Sequence[str]]]
_Symbol = tuple[str, int, int, bool]  # name, home section, value; whether others see it


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


def link(*objects: bytes, names: Names | None = None) -> Image:
    """Lay out the sections of ELF64 objects and resolve their relocations: within an object, and to
    what the others define. names: of an object, by its number, what its functions are called here;
    one that several steps share has several names."""
    layout = _Layout([_Object(obj) for obj in objects])
    entries = layout.defined(names or {})
    layout.resolve(entries)
    return Image(bytes(layout.blob), entries)


class _Object:
    """An ELF64 object: its sections and symbols, and where the needed sections are laid out."""

    def __init__(self, obj: bytes) -> None:
        self.sections = _sections(obj)
        self.symbols = _symbols(self.sections)
        self.places: dict[int, int] = {}

    def needed(self) -> Iterator[tuple[int, _Section]]:
        for index, section in enumerate(self.sections):
            if section.flags & _ALLOCATED and section.kind != _NO_BITS and _is_needed(section.name):
                yield index, section

    def is_patched(self, index: int) -> bool:
        """Whether relocations change this section."""
        return any(s.kind == _RELOCATIONS and s.info == index for s in self.sections)

    def relocated(self) -> Iterator[_Section]:
        """The lists of relocations of what is laid out."""
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info in self.places:
                yield section


class _Layout:
    """The image on its way: the code of all objects, and their constants behind it."""

    def __init__(self, objects: Sequence[_Object]) -> None:
        self.objects = objects
        self.blob = bytearray()
        needed = [(obj, index, section) for obj in objects for index, section in obj.needed()]
        constants: dict[tuple[int, bytes], int] = {}
        for obj, index, section in sorted(needed, key=lambda row: not row[2].flags & _CODE):
            # Kernels use the same constants: each table is there once.
            key = section.align, section.data
            if not section.flags & _CODE and not obj.is_patched(index) and key in constants:
                obj.places[index] = constants[key]
                continue
            obj.places[index] = constants[key] = self._append(section)

    def _append(self, section: _Section) -> int:
        self.blob += bytes(-len(self.blob) % max(section.align, 1))
        self.blob += section.data
        return len(self.blob) - len(section.data)

    def defined(self, names: Names) -> dict[str, int]:
        """The functions that objects show to each other."""
        found: dict[str, int] = {}
        for number, obj in enumerate(self.objects):
            for symbol, home, value, is_global in obj.symbols:
                if not is_global or home not in obj.places:
                    continue
                for name in names[number][symbol] if number in names else (symbol,):
                    if name in found:
                        raise DelegateError(f"generated code defines '{name}' twice", fix=REPORT)
                    found[name] = obj.places[home] + value
        return found

    def resolve(self, entries: Mapping[str, int]) -> None:
        for obj in self.objects:
            for section in obj.relocated():
                _relocate(self.blob, section, obj, entries)


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


def _symbols(sections: list[_Section]) -> list[_Symbol]:
    found: list[_Symbol] = []
    for section in sections:
        if section.kind == _SYMBOL_TABLE:
            strings = sections[section.link].data
            for at in range(0, len(section.data), _SYMBOL.size):
                name, info, _, home, value, _ = _SYMBOL.unpack_from(section.data, at)
                text = strings[name : strings.index(b"\0", name)].decode()
                found.append((text, home, value, info >> 4 != _LOCAL))
    return found


def _relocate(blob: bytearray, section: _Section, obj: _Object, entries: Mapping[str, int]) -> None:
    base = obj.places[section.info]
    for at in range(0, len(section.data), _RELOCATION.size):
        offset, info, addend = _RELOCATION.unpack_from(section.data, at)
        name, home, value, _ = obj.symbols[info >> 32]
        target = obj.places[home] + value if home in obj.places else entries.get(name)
        if target is None:
            raise DelegateError(
                f"generated code refers to '{name}', which nobody defines", fix=REPORT
            )
        kind = info & 0xFFFFFFFF
        if kind not in RELOCATIONS:
            raise DelegateError(f"generated code has a relocation of kind {kind}", fix=REPORT)
        RELOCATIONS[kind](blob, base + offset, target + addend)


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
