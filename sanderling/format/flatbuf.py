"""Table-driven reader and writer of flatbuffers, over the `flatbuffers` runtime.

The reader trusts nothing: every offset, length and enum is checked against the bytes, and the
work is bounded by the file's size. Vectors of scalars are views of the file, never copies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import flatbuffers
import numpy as np
from flatbuffers import number_types, packer

from ..errors import ModelError
from ..ir.types import Array
from .schema import ENUMS, FILE_IDENTIFIER, SLOTS, TABLES, Field

Table = dict[str, Any]

_FLAGS = {
    "bool": number_types.BoolFlags,
    "int8": number_types.Int8Flags,
    "uint8": number_types.Uint8Flags,
    "uint16": number_types.Uint16Flags,
    "int32": number_types.Int32Flags,
    "uint32": number_types.Uint32Flags,
    "int64": number_types.Int64Flags,
    "uint64": number_types.Uint64Flags,
    "float32": number_types.Float32Flags,
}
# What a field of this kind is in Python.
_PYTHON: dict[str, type] = {"string": str, "table": Mapping, "union": Mapping}
_NUMPY = {name: np.dtype(name).newbyteorder("<") for name in _FLAGS}
DEFAULTS = {name: {f.name: f.default for f in fields} for name, fields in TABLES.items()}
# Weights are aligned for vector loads, as the schema's force_align asks.
DATA_ALIGNMENT = 16


class VTable(NamedTuple):
    """A vtable, read once: where the fields that are there lie in a table of this size."""

    size: int
    present: list[tuple[Field, int]]
    unknown: list[int]


class Reader:
    """Decodes tables to dictionaries with every field of the schema filled in."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.unknown: list[str] = []
        self._path: list[str] = []
        self._layouts: dict[tuple[str, int], VTable] = {}
        # Real tables take at least 4 bytes each; a file that re-uses them beyond that is a bomb.
        self._budget = 1000 + len(data)

    def root(self, name: str, identifier: bytes = FILE_IDENTIFIER) -> Table:
        if len(self.data) < 8:
            raise ModelError(
                f"the file has {len(self.data)} bytes, too few for a model",
                fix="check that the download or copy was complete",
            )
        if bytes(self.data[4:8]) != identifier:
            raise ModelError(
                f"not a .tflite model: bytes 4 to 8 are {bytes(self.data[4:8])!r}, not "
                f"{identifier!r}",
                fix="check that the path points to a .tflite file and not to a page or archive",
            )
        self._path = [name]
        return self.table(name, self._offset(0))

    def table(self, name: str, pos: int) -> Table:
        """Decode one table at this position."""
        self._spend()
        self._check(pos, 4)
        layout = self._layout(name, pos - packer.soffset.unpack_from(self.data, pos)[0])
        self._check(pos, layout.size)
        row = dict(DEFAULTS[name])
        for field, rel in layout.present:
            self._path.append(field.name)
            row[field.name] = self._value(field, pos + rel, row)
            self._path.pop()
        self.unknown += [f"{self.where}: field {slot} of {name}" for slot in layout.unknown]
        return row

    def _layout(self, name: str, vtable: int) -> VTable:
        """What the vtable at this position says; most tables of a kind share one."""
        found = self._layouts.get((name, vtable))
        if found is None:
            found = self._layouts[name, vtable] = self._read_vtable(name, vtable)
        return found

    def _read_vtable(self, name: str, vtable: int) -> VTable:
        self._check(vtable, 4)
        vsize, tsize = struct.unpack_from("<HH", self.data, vtable)
        if vsize < 4 or vsize % 2 or tsize < 4:
            self.fail(f"bad table header (vtable of {vsize} bytes, table of {tsize})")
        self._check(vtable, vsize)
        offsets = struct.unpack_from(f"<{vsize // 2 - 2}H", self.data, vtable + 4)
        if max(offsets, default=0) >= tsize:
            self.fail(f"field offset {max(offsets)} is outside its table of {tsize} bytes")
        present = [
            (f, offsets[f.slot]) for f in TABLES[name] if f.slot < len(offsets) and offsets[f.slot]
        ]
        unknown = [slot for slot in range(SLOTS[name], len(offsets)) if offsets[slot]]
        return VTable(tsize, present, unknown)

    def _value(self, field: Field, pos: int, row: Table) -> Any:
        """Decode the field at this position; row holds the fields before it (union tags)."""
        if field.kind in ("scalar", "graph"):
            return self._scalar(field, pos)
        if field.kind == "enum":
            return self._enum(field.type, self._scalar(field, pos))
        target = self._offset(pos)
        if field.kind == "string":
            return self._string(target)
        if field.kind == "vector":
            return self._vector(field, target)
        if field.kind == "union":
            return self._union(row[f"{field.name}_type"], target)
        return self.table(field.type, target)

    def _scalar(self, field: Field, pos: int) -> Any:
        self._check(pos, field.scalar.size)
        return field.scalar.unpack_from(self.data, pos)[0]

    def _enum(self, name: str, code: int) -> str | int:
        names = ENUMS[name]
        if 0 <= code < len(names):
            return names[code]
        if name in ("BuiltinOptions", "BuiltinOptions2"):
            return code  # a newer schema's operator: kept as a number, and refused when run
        self.fail(f"{code} is not a {name} (0 to {len(names) - 1})")

    def _union(self, tag: str | int, pos: int) -> Table | None:
        if tag in TABLES:
            return self.table(str(tag), pos)
        self.unknown.append(f"{self.where}: union member {tag}")
        return None

    def _string(self, pos: int) -> str:
        length = self._length(pos, 1)
        return str(self.data[pos + 4 : pos + 4 + length], "utf-8", "surrogateescape")

    def _vector(self, field: Field, pos: int) -> Array | list[Any]:
        if field.element in ("scalar", "graph", "enum"):
            count = self._length(pos, field.scalar.size)
            stored = "int32" if field.element == "graph" else field.type
            if field.element == "enum":
                codes = np.frombuffer(self.data, "<u4", count, pos + 4).tolist()
                return [self._enum(field.type, code) for code in codes]
            return np.frombuffer(self.data, _NUMPY[stored], count, pos + 4)
        count = self._length(pos, 4)
        items = []
        for index in range(count):
            self._path.append(str(index))
            target = self._offset(pos + 4 + 4 * index)
            is_text = field.element == "string"
            items.append(self._string(target) if is_text else self.table(field.type, target))
            self._path.pop()
        return items

    def _length(self, pos: int, element_size: int) -> int:
        self._check(pos, 4)
        length: int = packer.uoffset.unpack_from(self.data, pos)[0]
        if length * element_size > len(self.data) - pos - 4:
            self.fail(f"{length} elements of {element_size} bytes do not fit in the file")
        return length

    def _offset(self, pos: int) -> int:
        self._check(pos, 4)
        target: int = pos + packer.uoffset.unpack_from(self.data, pos)[0]
        if target == pos or target + 4 > len(self.data):
            self.fail(f"offset at byte {pos} points outside the file (to {target})")
        return target

    def _check(self, pos: int, size: int) -> None:
        if pos < 0 or pos + size > len(self.data):
            self.fail(f"bytes {pos} to {pos + size} are outside the file of {len(self.data)}")

    def _spend(self) -> None:
        self._budget -= 1
        if self._budget < 0:
            self.fail("the file refers to its own tables more often than it has bytes")

    @property
    def where(self) -> str:
        return ".".join(self._path)

    def fail(self, what: str) -> NoReturn:
        raise ModelError(what, where=self.where, fix="the file is damaged; get it again")


class Writer:
    """Encodes dictionaries as tables; fields that equal their default are left out."""

    def __init__(self, initial_size: int = 1 << 16) -> None:
        self.builder = flatbuffers.Builder(initial_size)
        self._strings: dict[str, int] = {}

    def finish(self, name: str, row: Table, identifier: bytes = FILE_IDENTIFIER) -> bytearray:
        self.builder.Finish(self.table(name, row), file_identifier=identifier)
        return self.builder.Output()

    def table(self, name: str, row: Table) -> int:
        """Write one table, its children first; returns its offset."""
        children = {
            f.name: self._child(f, row[f.name], row)
            for f in TABLES[name]
            if f.kind not in ("scalar", "enum", "graph") and row.get(f.name) is not None
        }
        self.builder.StartObject(SLOTS[name])
        for field in TABLES[name]:
            if field.name in children:
                child = children[field.name]
                self.builder.PrependUOffsetTRelativeSlot(field.slot, child, 0)
            elif row.get(field.name) is not None and field.kind in ("scalar", "enum", "graph"):
                self._inline(field, row[field.name])
        return self.builder.EndObject()

    def _inline(self, field: Field, value: Any) -> None:
        stored, default = _stored(field, value), _stored(field, field.default)
        try:
            self.builder.PrependSlot(_flags(field), field.slot, stored, default)
        except (OverflowError, TypeError, ValueError, struct.error) as error:
            raise _unstorable(field, field.type, error) from error

    def _child(self, field: Field, value: Any, row: Table) -> int:
        wanted = _PYTHON.get(field.kind)
        if wanted is not None and not isinstance(value, wanted):
            error = TypeError(f"it is {type(value).__name__} {value!r}"[:100])
            raise _unstorable(field, field.kind, error)
        if field.kind == "string":
            return self._string(value)
        if field.kind == "union":
            return self.table(row[f"{field.name}_type"], value)
        if field.kind == "table":
            return self.table(field.type, value)
        return self._vector(field, value)

    def _string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = self.builder.CreateString(text, errors="surrogateescape")
        return self._strings[text]

    def _vector(self, field: Field, values: Any) -> int:
        if field.element in ("scalar", "graph", "enum"):
            return self._scalars(field, values)
        is_text = field.element == "string"
        offsets = [self._string(v) if is_text else self.table(field.type, v) for v in values]
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def _scalars(self, field: Field, values: Any) -> int:
        if field.type == "uint8":
            return self._bytes(values)
        if field.element == "enum":
            values = [_stored(field, v) for v in values]
        name = {"graph": "int32", "enum": "uint32"}.get(field.element, field.type)
        try:
            array = _as_stored(values, _NUMPY[name])
        except (OverflowError, TypeError, ValueError) as error:
            raise _unstorable(field, name, error) from error
        return self.builder.CreateNumpyVector(array)

    def _bytes(self, values: bytes | memoryview | Array | Iterable[int]) -> int:
        """A byte vector, aligned: any of them may hold weights."""
        raw = memoryview(values if hasattr(values, "__len__") else bytes(values)).cast("B")  # type: ignore[arg-type]
        builder = self.builder
        builder.StartVector(1, raw.nbytes, DATA_ALIGNMENT)
        builder.head -= raw.nbytes
        builder.Bytes[builder.head : builder.head + raw.nbytes] = raw
        return builder.EndVector()


def _unstorable(field: Field, kind: str, error: Exception) -> ModelError:
    return ModelError(
        f"{field.name} cannot be stored as {kind}: {error}",
        fix="give values that the file's type can hold",
    )


def _as_stored(values: Any, dtype: np.dtype[Any]) -> Array:
    """An array of this type; integers that it cannot hold are an error in NumPy 1 too."""
    given = np.asarray(values)
    if dtype.kind in "iu" and given.dtype.kind in "iu" and given.size:
        bounds = np.iinfo(dtype)
        for value in (int(given.min()), int(given.max())):
            if not bounds.min <= value <= bounds.max:
                raise OverflowError(f"{value} is out of its bounds")
    return np.ascontiguousarray(values, dtype)


def _flags(field: Field) -> Any:
    size_to_name = {1: "int8", 4: "int32"}
    name = field.type if field.type in _FLAGS else size_to_name[field.scalar.size]
    return _FLAGS[name]


def _stored(field: Field, value: Any) -> Any:
    """An enum's number for its name; other values as they are."""
    if isinstance(value, str) and field.type in ENUMS:
        if value not in ENUMS[field.type]:
            known = ", ".join(ENUMS[field.type])
            raise ModelError(f"'{value}' is not a {field.type}", where=field.name, fix=known)
        return ENUMS[field.type].index(value)
    return value
