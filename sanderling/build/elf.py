"""Object files and static archives, written without a linker or an assembler.

The compiler's images are position-independent and complete, so an object is a few sections with
names for places in them: no relocations. The code in a library is therefore, byte for byte, what a
session runs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import UnsupportedError

MACHINES = {"x86_64": 62, "aarch64": 183}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_IDENT = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
_RELOCATABLE = 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOC, _EXEC = 2, 4
_GLOBAL, _WEAK, _HIDDEN = 1, 2, 2
_FUNCTION, _OBJECT = 2, 1


@dataclass
class Section:
    """Bytes that lie together; symbols: names for places in them."""

    name: str
    data: bytes
    align: int
    symbols: dict[str, int] = field(default_factory=dict)
    is_code: bool = False


class _Strings:
    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def object_file(machine: str, sections: Sequence[Section]) -> bytes:
    """A relocatable ELF object. Its symbols can be seen by other objects of the same library or
    program, and by nobody outside of it."""
    names, strings = _Strings(), _Strings()
    symbols = bytearray(_SYMBOL.size)
    rows = [(0, 0, 0, b"", 0, 0, 0, 0)]
    for number, section in enumerate(sections, 1):
        flags = _ALLOC | (_EXEC if section.is_code else 0)
        rows.append(
            (names.add(section.name), _PROGBITS, flags, section.data, 0, 0, section.align, 0)
        )
        kind = _FUNCTION if section.is_code else _OBJECT
        for name, at in section.symbols.items():
            symbols += _SYMBOL.pack(strings.add(name), _GLOBAL << 4 | kind, _HIDDEN, number, at, 0)
    # Without this section a linker would take the stack for executable.
    rows.append((names.add(".note.GNU-stack"), _PROGBITS, 0, b"", 0, 0, 1, 0))
    text = len(rows) + 1
    rows.append((names.add(".symtab"), _SYMTAB, 0, bytes(symbols), text, 1, 8, _SYMBOL.size))
    rows.append((names.add(".strtab"), _STRTAB, 0, bytes(strings.data), 0, 0, 1, 0))
    last = names.add(".shstrtab")
    rows.append((last, _STRTAB, 0, bytes(names.data), 0, 0, 1, 0))
    return _laid_out(machine, rows)


def _laid_out(
    machine: str, rows: Sequence[tuple[int, int, int, bytes, int, int, int, int]]
) -> bytes:
    body = bytearray(_HEADER.size)
    table = bytearray()
    for name, kind, flags, data, link, info, align, entry in rows:
        body += bytes(-len(body) % max(align, 1))
        place = len(body) if kind else 0
        table += _SECTION.pack(name, kind, flags, 0, place, len(data), link, info, align, entry)
        body += data
    body += bytes(-len(body) % 8)
    header = _HEADER.pack(
        _IDENT,
        _RELOCATABLE,
        MACHINES[machine],
        1,
        0,
        0,
        len(body),
        0,
        _HEADER.size,
        0,
        0,
        _SECTION.size,
        len(rows),
        len(rows) - 1,
    )
    body[: _HEADER.size] = header
    return bytes(body + table)


# -- archives -------------------------------------------------------------------------------------

_MAGIC = b"!<arch>\n"


def archive(members: Sequence[tuple[str, bytes]]) -> bytes:
    """A static library of objects: an index of their symbols, long names, the objects."""
    index = [(name, i) for i, (_, data) in enumerate(members) for name in defined(data)]
    long_names = "".join(f"{name}/\n" for name, _ in members).encode()
    listed = b"".join(name.encode() + b"\0" for name, _ in index)
    size = 4 + 4 * len(index) + len(listed)
    place = len(_MAGIC) + _whole(size) + _whole(len(long_names))
    places, at_name = [], 0
    body = bytearray()
    for name, data in members:
        places.append(place + len(body))
        body += _member(f"/{at_name}", data)
        at_name += len(name) + 2
    if places[-1] >= 1 << 32:
        raise UnsupportedError(
            "the library would be larger than 4 GB", fix="build it for a single target"
        )
    offsets = struct.pack(f">{len(index) + 1}I", len(index), *(places[i] for _, i in index))
    return _MAGIC + _member("/", offsets + listed) + _member("//", long_names) + bytes(body)


def _whole(size: int) -> int:
    """Bytes of a member with its header."""
    return 60 + size + size % 2


def _member(name: str, data: bytes) -> bytes:
    # Time and owner are 0: the same model gives the same file.
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    return header + data + b"\n" * (len(data) % 2)


def defined(obj: bytes) -> Iterable[str]:
    """The global symbols that an object defines."""
    start = struct.unpack_from("<Q", obj, 40)[0]
    count = struct.unpack_from("<H", obj, 60)[0]
    rows = [_SECTION.unpack_from(obj, start + i * _SECTION.size) for i in range(count)]
    for row in rows:
        if row[1] != _SYMTAB:
            continue
        strings = rows[row[6]][4]
        for at in range(row[4], row[4] + row[5], _SYMBOL.size):
            name, info, _, home, _, _ = _SYMBOL.unpack_from(obj, at)
            if info >> 4 in (_GLOBAL, _WEAK) and home:
                begin = strings + name
                yield obj[begin : obj.index(b"\0", begin)].decode()
