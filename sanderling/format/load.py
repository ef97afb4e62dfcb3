"""Model from .tflite bytes. Here, and in save.py, tensors, buffers and graphs have indices."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..errors import InputError, ModelError
from ..files import is_stream, read_bytes
from ..ir import (
    CUSTOM,
    Array,
    Blockwise,
    Buffer,
    DType,
    ExternalData,
    Graph,
    Model,
    Op,
    Quant,
    Signature,
    SparseDim,
    Sparsity,
    Tensor,
    link,
)
from ..spans import span
from ..store import DAMAGE
from . import known_models
from .flatbuf import Reader, Table
from .packed_files import read_packed
from .schema import ENUMS, OPTIONS, TABLES, Field

UNKNOWN = "unknown."
OPTIONAL = -1  # the index of an absent operand

External = Mapping[str, str | os.PathLike[str]]
Content = TypeVar("Content", bytes, int)


def load(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    external: External | None = None,
) -> Model:
    """Read a model. A file is memory-mapped: weights are read when they are used. What was met
    before is recognised, and its ops are read when they are asked for.

    external: where the files of external buffer groups are; default, beside the model.
    """
    with span("load", "load") as told:
        if isinstance(source, (bytes, bytearray, memoryview)):
            path, name, data = None, "", memoryview(source).toreadonly().cast("B")
        else:
            path = Path(source)
            name, data = str(path), _map(path)
        # A bytearray is its owner's to change.
        found = (
            None if external or isinstance(source, bytearray) else known_models.recall(data, path)
        )
        told.note({"file": name, "bytes": len(data), "recognised": found is not None})
        if found is not None:
            with contextlib.suppress(*DAMAGE):  # of a record: the file says it all
                return known_models.KnownModel(
                    *found, name, data, lambda shown: Loader(data, name, {}, shown).model()
                )
        return Loader(data, name, external or {}).model()


def _map(path: Path) -> memoryview:
    if is_stream(path):
        return memoryview(_some(read_bytes(path, "the model"), path))
    try:
        with path.open("rb") as file:
            _some(os.fstat(file.fileno()).st_size, path)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ModelError:
        raise
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(
            f"cannot read the model: {said}",
            where=str(path),
            fix="give the .tflite file in it"
            if path.is_dir()
            else "check the path and its permissions",
        ) from error


def _some(content: Content, path: Path) -> Content:
    """The content, or its size, if there is any."""
    if not content:
        raise ModelError("the file is empty", where=str(path), fix="get the file again")
    return content


class Loader:
    """Turns one file's tables into a Model."""

    def __init__(
        self,
        data: memoryview,
        source: str,
        external: External,
        shown: Sequence[known_models.KnownGraph] = (),
    ) -> None:
        """shown: graphs that stand for those that are read; their tensors are used."""
        self.shown: Sequence[Graph] = shown
        self.border = [g.border for g in shown]
        self.data = data
        self.source = source
        self.external = external
        self.reader = Reader(data)
        self.outside = False

    def model(self) -> Model:
        try:
            with span("read tables", "load"):
                return self._model()
        except ModelError as error:
            if not self.source:
                raise
            where = f"{self.source}: {error.where}" if error.where else self.source
            raise ModelError(error.what, where=where, fix=error.fix) from None

    def _model(self) -> Model:
        root = self.reader.root("Model")
        if root["version"] != 3:
            _fail("Model.version", f"schema version {root['version']}; only version 3 exists")
        self.buffers = [self._buffer(i, row) for i, row in enumerate(root["buffers"] or [])]
        self.externals = self._externals(root)
        self.codes = [self._code(i, row) for i, row in enumerate(root["operator_codes"] or [])]
        rows: list[Table] = root["subgraphs"] or []
        if not rows:
            _fail("Model.subgraphs", "the model has no subgraph")
        self.graphs = [
            Graph(row["name"] or ("main" if i == 0 else f"subgraph_{i}"))
            for i, row in enumerate(rows)
        ]
        self.shown = self.shown or self.graphs
        self.border = self.border or [{} for _ in rows]
        if len(self.shown) != len(rows):
            raise known_models.changed(self.source)
        for index, (graph, row) in enumerate(zip(self.graphs, rows, strict=True)):
            self._fill(graph, row, f"subgraphs[{index}]", self.border[index])
        return Model(
            graphs=self.graphs,
            signatures=[self._signature(i, r) for i, r in enumerate(root["signature_defs"] or [])],
            metadata=self._metadata(root),
            description=root["description"] or "",
            unknown=self.reader.unknown,
            weights_outside=self.outside,
            source=self.source,
            file=None if self.externals or self.external else self.data,
            files=read_packed(self.data),
        )

    # -- bytes --------------------------------------------------------------------------------

    def _buffer(self, index: int, row: Table) -> Buffer | None:
        if row["data"] is not None and len(row["data"]):
            return Buffer(memoryview(row["data"]))
        if row["offset"] > 1:  # 0 and 1 are stand-ins that some writers leave
            self.outside = True
            return Buffer(self._slice(row["offset"], row["size"], f"buffers[{index}]"))
        return None

    def _slice(self, offset: int, size: int, where: str) -> memoryview:
        if offset + size > len(self.data):
            _fail(
                where,
                f"bytes {offset} to {offset + size} are outside the file of {len(self.data)} bytes",
            )
        return self.data[offset : offset + size]

    def _buffer_at(self, index: int, where: str) -> Buffer | None:
        if index >= len(self.buffers):
            _fail(where, f"buffer {index} of {len(self.buffers)}")
        return self.buffers[index]

    def _externals(self, root: Table) -> dict[int, Buffer]:
        groups = [g["name"] or "" for g in root["external_buffer_groups"] or []]
        found = {}
        for index, row in enumerate(root["external_buffers"] or []):
            if row["group"] >= len(groups):
                _fail(f"external_buffers[{index}]", f"group {row['group']} of {len(groups)}")
            found[row["id"]] = self._external(groups[row["group"]], row)
        return found

    def _external(self, group: str, row: Table) -> Buffer:
        """Mapped when the file is there; otherwise an error when the values are asked for."""
        data = ExternalData(group, row["offset"], row["length"], row["packing"] or "")
        path = Path(self.external.get(group, Path(self.source).parent / group))
        # A model must not reach outside its own folder by itself: ../ and absolute names need
        # the caller's word.
        named = group in self.external or (self.source and Path(group).name == group)
        if not named or not path.is_file():
            return Buffer(memoryview(b""), data)
        raw = _map(path)
        if data.offset + data.length > len(raw):
            _fail(f"external group '{group}'", f"{path} is too short for its buffers")
        return Buffer(raw[data.offset : data.offset + data.length], data)

    # -- graphs -------------------------------------------------------------------------------

    def _code(self, index: int, row: Table) -> tuple[str, int]:
        """An operator code's name and version. Old files use the one-byte field alone."""
        code = max(row["builtin_code"], row["deprecated_builtin_code"])
        names = ENUMS["BuiltinOperator"]
        if code < 0:
            _fail(f"operator_codes[{index}]", f"{code} is not an operator")
        if code >= len(names):
            self.reader.unknown.append(f"operator_codes[{index}]: operator {code}")
            return f"{UNKNOWN}{code}", row["version"]
        if names[code] == "CUSTOM":
            return CUSTOM + (row["custom_code"] or ""), row["version"]
        return names[code], row["version"]

    def _fill(self, graph: Graph, row: Table, where: str, border: Mapping[int, Tensor]) -> None:
        rows = row["tensors"] or []
        graph.tensors = [self._tensor(r, f"{where}.tensors[{i}]") for i, r in enumerate(rows)]
        for index, tensor in border.items():
            if index >= len(rows) or tensor.name != graph.tensors[index].name:
                raise known_models.changed(self.source)
            graph.tensors[index] = tensor
        for index, tensor_row in enumerate(rows):
            if index not in border:
                self._quantise(graph, index, tensor_row, f"{where}.tensors[{index}]")
        graph.inputs = _tensors(graph, row["inputs"], f"{where}.inputs")
        graph.outputs = _tensors(graph, row["outputs"], f"{where}.outputs")
        graph.debug_index = row["debug_metadata_index"]
        for index, op_row in enumerate(row["operators"] or []):
            op = self._op(graph, op_row, f"{where}.operators[{index}]")
            graph.ops.append(op)
            link(op)
        _mark_empty_constants(graph)

    def _tensor(self, row: Table, where: str) -> Tensor:
        dtype = DType[row["type"]]
        shape = _ints(row["shape"])
        if any(n < 0 for n in shape):
            _fail(where, f"shape {list(shape)} has a negative dimension")
        tensor = Tensor(
            row["name"] or "",
            dtype,
            shape,
            buffer=self._constant(row, where),
            signature=_ints(row["shape_signature"]) or None,  # some writers leave an empty one
            sparsity=_sparsity(row["sparsity"], len(shape), where),
            is_variable=row["is_variable"],
            has_rank=row["has_rank"],
            variant_types=tuple(_variant(v) for v in row["variant_tensors"] or []),
        )
        _check_size(tensor, where)
        return tensor

    def _constant(self, row: Table, where: str) -> Buffer | None:
        if row["external_buffer"]:
            if row["external_buffer"] not in self.externals:
                _fail(where, f"external buffer {row['external_buffer']} is not in the file")
            return self.externals[row["external_buffer"]]
        return self._buffer_at(row["buffer"], where)

    def _quantise(self, graph: Graph, index: int, row: Table, where: str) -> None:
        """Set quant; a second pass, because blockwise scales are tensors themselves."""
        q = row["quantization"]
        if q is None:
            return
        scale = _array(q["scale"], np.float32)
        # Zero points without scales say nothing: TFLite does not look at them.
        zero = _array(q["zero_point"] if scale.size else None, np.int64)
        if zero.size == 0 and scale.size:
            zero = np.zeros(scale.size, np.int64)
        if zero.size == 1 and scale.size > 1:
            zero = np.repeat(zero, scale.size)
        if zero.size != scale.size and scale.size:
            _fail(where, f"{scale.size} scales but {zero.size} zero points")
        details = q["details"] or {}
        graph.tensors[index].quant = Quant(
            scale,
            zero,
            q["quantized_dimension"],
            min=None if q["min"] is None else _array(q["min"], np.float32),
            max=None if q["max"] is None else _array(q["max"], np.float32),
            block=_blockwise(graph, q["details_type"], details, where),
            custom=bytes(details["custom"]) if details.get("custom") is not None else None,
        )

    def _op(self, graph: Graph, row: Table, where: str) -> Op:
        if row["opcode_index"] >= len(self.codes):
            _fail(where, f"operator code {row['opcode_index']} of {len(self.codes)}")
        name, version = self.codes[row["opcode_index"]]
        options, attrs = self._attrs(name, row, where)
        mutating = row["mutating_variable_inputs"]
        return Op(
            name,
            _operands(graph, row["inputs"], f"{where}.inputs"),
            _tensors(graph, row["outputs"], f"{where}.outputs"),
            attrs,
            version=version,
            options=options,
            intermediates=_tensors(graph, row["intermediates"], f"{where}.intermediates"),
            mutating=[] if mutating is None else mutating.tolist(),
            debug_index=row["debug_metadata_index"],
        )

    def _attrs(self, name: str, row: Table, where: str) -> tuple[str, Table]:
        """The options table's name and its fields, complete: an absent table gives defaults."""
        if name.startswith(CUSTOM):
            return "", {"options": self._custom_options(row, where)}
        table, fields = OPTIONS.get(name, ""), None
        for union in ("builtin_options", "builtin_options2"):
            if row[union] is not None:
                table, fields = row[f"{union}_type"], row[union]
        if fields is None:
            fields = {f.name: f.default for f in TABLES.get(table, ())}
        expected = OPTIONS.get(name, "")
        if expected and table != expected:
            # Old converters wrote a sibling's table; what it lacks takes its default.
            known = {f.name: f.default for f in TABLES[expected]}
            fields = known | {k: v for k, v in fields.items() if k in known}
            table = expected
        return table, {f.name: self._attr(f, fields[f.name], where) for f in TABLES.get(table, ())}

    def _attr(self, field: Field, value: Any, where: str) -> Any:
        if field.kind == "graph":
            return self._graph(value, f"{where}.{field.name}")
        if field.element == "graph":
            return [self._graph(i, f"{where}.{field.name}") for i in _ints(value)]
        if isinstance(value, np.ndarray):
            return value.tobytes() if field.type == "uint8" else value.tolist()
        return value

    def _graph(self, index: int, where: str) -> Graph | None:
        if index == -1:
            return None
        if not 0 <= index < len(self.graphs):
            _fail(where, f"subgraph {index} of {len(self.graphs)}")
        return self.shown[index]

    def _custom_options(self, row: Table, where: str) -> bytes:
        if row["large_custom_options_offset"] > 1:
            offset, size = row["large_custom_options_offset"], row["large_custom_options_size"]
            return bytes(self._slice(offset, size, where))
        return b"" if row["custom_options"] is None else row["custom_options"].tobytes()

    # -- the rest -----------------------------------------------------------------------------

    def _signature(self, index: int, row: Table) -> Signature:
        where = f"signature_defs[{index}]"
        self._graph(row["subgraph_index"], where)
        graph = self.graphs[row["subgraph_index"]]  # the field is unsigned

        def named(field: str) -> dict[str, Tensor]:
            rows: list[Table] = row[field] or []
            return {r["name"] or "": _tensor_at(graph, r["tensor_index"], where) for r in rows}

        return Signature(row["signature_key"] or "", graph, named("inputs"), named("outputs"))

    def _metadata(self, root: Table) -> dict[str, bytes | memoryview]:
        found: dict[str, bytes | memoryview] = {}
        for index, row in enumerate(root["metadata"] or []):
            buffer = self._buffer_at(row["buffer"], f"metadata[{index}]")
            found[row["name"] or ""] = b"" if buffer is None else buffer.raw
        return found


def _fail(where: str, what: str) -> NoReturn:
    raise ModelError(what, where=where, fix="the file is damaged; get it again")


def _ints(values: Iterable[Any] | None) -> tuple[int, ...]:
    if isinstance(values, np.ndarray):
        return tuple(values.tolist())
    return tuple(int(v) for v in values or ())


def _array(values: Any, dtype: Any) -> Array:
    return np.zeros(0, dtype) if values is None else np.asarray(values, dtype)


def _tensor_at(graph: Graph, index: int, where: str) -> Tensor:
    if not 0 <= index < len(graph.tensors):
        _fail(where, f"tensor {index} of {len(graph.tensors)}")
    return graph.tensors[index]


def _tensors(graph: Graph, indices: Any, where: str) -> list[Tensor]:
    return [_tensor_at(graph, i, where) for i in _ints(indices)]


def _operands(graph: Graph, indices: Any, where: str) -> list[Tensor | None]:
    return [None if i == OPTIONAL else _tensor_at(graph, i, where) for i in _ints(indices)]


def _variant(row: Table) -> Tensor:
    return Tensor("", DType[row["type"]], _ints(row["shape"]), has_rank=row["has_rank"])


def _check_size(tensor: Tensor, where: str) -> None:
    if tensor.signature and len(tensor.signature) != len(tensor.shape):
        _fail(where, f"shape {tensor.shape} and signature {tensor.signature} differ in rank")
    buffer = tensor.buffer
    if buffer is None or buffer.external or tensor.sparsity or not tensor.dtype.is_fixed_size:
        return
    wanted = tensor.dtype.nbytes(tensor.shape)
    if len(buffer) < wanted:
        _fail(
            where,
            f"'{tensor.name}' {tensor.type_text} needs {wanted} bytes, its buffer has "
            f"{len(buffer)}",
        )


def _mark_empty_constants(graph: Graph) -> None:
    """A tensor of no elements that nothing computes is a constant, though no bytes say so."""
    fed = set(graph.inputs)
    for tensor in graph.tensors:
        unmade = tensor.buffer is None and tensor.producer is None and tensor not in fed
        if unmade and 0 in tensor.shape and tensor.dtype.is_fixed_size and not tensor.is_variable:
            tensor.buffer = Buffer(memoryview(b""))


def _sparsity(row: Table | None, rank: int, where: str) -> Sparsity | None:
    if row is None:
        return None
    order, blocks = _ints(row["traversal_order"]), _ints(row["block_map"])
    dims = tuple(_sparse_dim(r) for r in row["dim_metadata"] or [])
    legal = sorted(order) == list(range(rank + len(blocks))) and len(dims) == len(order)
    if not legal or any(not 0 <= b < rank for b in blocks):
        _fail(
            where,
            f"sparsity of {len(dims)} dimensions, order {order}, blocks {blocks} does "
            f"not fit rank {rank}",
        )
    return Sparsity(order, blocks, dims)


def _sparse_dim(row: Table) -> SparseDim:
    if row["format"] == "DENSE":
        return SparseDim(row["dense_size"])
    segments, indices = row["array_segments"], row["array_indices"]
    return SparseDim(
        row["dense_size"],
        _array(segments and segments["values"], np.int32 if segments is None else None),
        _array(indices and indices["values"], np.int32 if indices is None else None),
    )


def _blockwise(graph: Graph, kind: str, row: Table, where: str) -> Blockwise | None:
    if kind not in ("BlockwiseQuantization", "MultiAxisQuantization") or not row:
        return None

    def tensor(index: int) -> Tensor | None:
        return None if index <= 0 else _tensor_at(graph, index, where)

    return Blockwise(
        _tensor_at(graph, row["scales"], where),
        tensor(row["zero_points"]),
        row["block_size"],
        _ints(row.get("block_shape")),
        _ints(row.get("quantized_dimensions")),
        kind,
    )
