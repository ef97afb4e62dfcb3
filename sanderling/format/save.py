"""Model to .tflite bytes, and files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import FormatWarning, InputError, ModelError
from ..ir import (
    CUSTOM,
    Buffer,
    ExternalData,
    Graph,
    Model,
    Op,
    Quant,
    Signature,
    SparseDim,
    Sparsity,
    Tensor,
)
from ..ir.graph import closest
from .flatbuf import DATA_ALIGNMENT, Table, Writer
from .load import OPTIONAL, UNKNOWN
from .packed_files import pack
from .schema import ENUMS, OPTIONS, TABLES, check_attributes

# A flatbuffer cannot exceed 2 GiB; beyond this much weight the buffers go behind it.
MOST_INSIDE = 1 << 30
_INDEX_VECTORS = {"u1": "Uint8Vector", "u2": "Uint16Vector", "i4": "Int32Vector"}


def save(model: Model | Graph, path: str | os.PathLike[str], *, verify: bool = True) -> None:
    """Write the model to a file: complete or not at all.

    A graph alone is written as a model of its own. verify=False writes a graph that is not legal.
    """
    write_atomic(Path(path), dump(model, verify=verify))


def write_atomic(path: Path, data: bytes | bytearray | memoryview) -> None:
    """Write beside the target, then rename: nobody sees half a file."""
    with AtomicFile(path) as file:
        file.write(data)


BESIDE = 40  # letters of the target's name in the name of the file beside it


class AtomicFile:
    """A file beside the target, made now, that takes its place when it is written.

    Made before long work, it shows early that the target cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.target = path
        self.temporary: Path | None = None
        with self._errors():
            if _is_special(path):
                return  # a device or pipe is written as it is
            import tempfile  # slow, and not needed to read

            self.target = path.resolve() if path.is_symlink() else path
            # A name may be as long as the file system allows: what is beside it must be no longer.
            beside = f".{path.name[:BESIDE]}."
            handle, name = tempfile.mkstemp(dir=self.target.parent, prefix=beside)
            os.close(handle)
            self.temporary = Path(name)

    @property
    def is_pending(self) -> bool:
        """Neither written nor discarded; never of a device, which takes any number of results."""
        return self.temporary is not None and self.temporary.exists()

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def reserve(self, size: int) -> AtomicFile:
        """Fail now if there is no room for so many bytes, before the work that makes them."""
        with self._errors():
            if self.temporary is not None:
                _allocate(self.temporary, size)
            elif _is_plain_device(self.target):
                with self.target.open("wb", buffering=0) as file:
                    file.write(b"\0")  # an empty write tells nothing: /dev/full takes it
        return self

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The whole content, at once."""
        with self._errors(), (self.temporary or self.target).open("wb") as file:
            file.write(data)
            file.flush()
            if self.temporary is not None:
                os.fsync(file.fileno())
        if self.temporary is not None:
            with self._errors():
                self.temporary.chmod(0o666 & ~_umask())
                self.temporary.replace(self.target)

    def discard(self) -> None:
        """Leave the target as it is, unless it has been written."""
        if self.temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                self.temporary.unlink()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise InputError(
                f"cannot write: {said}",
                where=str(self.path),
                fix="check the folder, its permissions and the free space",
            ) from error


def _is_special(path: Path) -> bool:
    """Neither a file nor a place for one. Links that go in a circle are an error here."""
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def _is_plain_device(path: Path) -> bool:
    """A device that is no terminal, which would show what is written to try it."""
    if not stat.S_ISCHR(path.stat().st_mode):
        return False
    with path.open("wb", buffering=0) as file:
        return not file.isatty()


def _allocate(path: Path, size: int) -> None:
    """Blocks for so many bytes, where the system can reserve them."""
    if size > 0 and hasattr(os, "posix_fallocate"):
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def dump(model: Model | Graph, *, verify: bool = True) -> bytes:
    """The model as .tflite bytes; see save."""
    model = _as_model(model)
    if verify:
        from ..ir.verify import verify as check_legal

        check_legal(model)
    for place in model.unknown:
        warnings.warn(f"not saved, the schema is newer: {place}", FormatWarning, stacklevel=2)
    written = Saver(model).write()
    return pack(written, model.files) if model.files else written


def _as_model(given: Model | Graph) -> Model:
    if isinstance(given, Graph):
        return Model(with_called([given]))
    if isinstance(given, Model):
        return given
    raise InputError(f"{type(given).__name__} is not a model", fix="give a Model or a Graph")


def with_called(graphs: list[Graph]) -> list[Graph]:
    """These graphs and those that their ops call."""
    found = dict.fromkeys(graphs)
    waiting = list(graphs)
    while waiting:
        called = [g for op in waiting.pop().ops for g in op.subgraphs if g not in found]
        found.update(dict.fromkeys(called))
        waiting += called
    return list(found)


class Saver:
    """Gives everything its index and writes the tables."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graphs = {id(g): i for i, g in enumerate(model.graphs)}
        self.buffers: list[memoryview] = [memoryview(b"")]  # buffer 0 is "no data"
        self.buffer_index: dict[int, int] = {}
        self.externals: list[ExternalData] = []
        self.codes: dict[tuple[str, int], int] = {}

    def write(self) -> bytes:
        subgraphs = [self._graph(g) for g in self.model.graphs]
        metadata = [
            {"name": k, "buffer": self._add(memoryview(v).cast("B"))}
            for k, v in self.model.metadata.items()
        ]
        groups = list(dict.fromkeys(e.group for e in self.externals))
        externals = [_external_row(i, e, groups) for i, e in enumerate(self.externals)]
        root: Table = {
            "version": self.model.version,
            "operator_codes": [_code_row(name, version) for name, version in self.codes],
            "subgraphs": subgraphs,
            "description": self.model.description or None,
            "metadata": metadata or None,
            "signature_defs": [self._signature(s) for s in self.model.signatures] or None,
            "external_buffer_groups": [{"name": g} for g in groups] or None,
            "external_buffers": externals or None,
        }
        weight = sum(b.nbytes for b in self.buffers)
        if self.model.weights_outside or weight > MOST_INSIDE:
            return self._write_outside(root)
        root["buffers"] = [{"data": b} if b.nbytes else {} for b in self.buffers]
        return bytes(Writer(weight + (1 << 16)).finish("Model", root))

    def _write_outside(self, root: Table) -> bytes:
        """Buffers follow the flatbuffer. Their offsets need its length: write it twice."""
        root["buffers"] = [
            {"offset": 2, "size": b.nbytes} if b.nbytes else {} for b in self.buffers
        ]
        head = len(Writer().finish("Model", root))
        pieces: list[bytes | memoryview] = []
        position = head
        for row, raw in zip(root["buffers"], self.buffers, strict=True):
            if raw.nbytes:
                padding = -position % DATA_ALIGNMENT
                row["offset"] = position + padding
                pieces += [bytes(padding), raw]
                position += padding + raw.nbytes
        return b"".join([Writer().finish("Model", root), *pieces])

    def _add(self, raw: memoryview) -> int:
        if not raw.nbytes:
            return 0
        self.buffers.append(raw)
        return len(self.buffers) - 1

    def _graph(self, graph: Graph) -> Table:
        index = {id(t): i for i, t in enumerate(graph.tensors)}

        def indices(tensors: Iterable[Tensor | None]) -> list[int]:
            return [OPTIONAL if t is None else index[id(t)] for t in tensors]

        return {
            "tensors": [self._tensor(t, index) for t in graph.tensors],
            "inputs": indices(graph.inputs),
            "outputs": indices(graph.outputs),
            "operators": [self._op(op, indices) for op in graph.ops],
            "name": graph.name,
            "debug_metadata_index": graph.debug_index,
        }

    def _tensor(self, tensor: Tensor, index: Mapping[int, int]) -> Table:
        row: Table = {
            "shape": tensor.shape,
            "type": tensor.dtype.name,
            "name": tensor.name,
            "quantization": _quant_row(tensor.quant, index),
            "is_variable": tensor.is_variable,
            "sparsity": _sparsity_row(tensor.sparsity),
            "shape_signature": tensor.signature,
            "has_rank": tensor.has_rank,
            "variant_tensors": [_variant_row(v) for v in tensor.variant_types] or None,
        }
        if tensor.buffer is None:
            return row
        if tensor.buffer.external is not None:
            return row | {"external_buffer": self._external(tensor.buffer.external)}
        return row | {"buffer": self._buffer(tensor.buffer)}

    def _buffer(self, buffer: Buffer) -> int:
        if id(buffer) not in self.buffer_index:
            self.buffer_index[id(buffer)] = self._add(buffer.raw)
        return self.buffer_index[id(buffer)]

    def _external(self, data: ExternalData) -> int:
        if data not in self.externals:
            self.externals.append(data)
        return self.externals.index(data) + 1

    def _op(self, op: Op, indices: Any) -> Table:
        row: Table = {
            "opcode_index": self.codes.setdefault((op.name, op.version), len(self.codes)),
            "inputs": indices(op.inputs),
            "outputs": indices(op.outputs),
            "mutating_variable_inputs": op.mutating or None,
            "intermediates": indices(op.intermediates) or None,
            "debug_metadata_index": op.debug_index,
        }
        if op.is_custom:
            return row | {"custom_options": op.attrs.get("options") or None}
        check_attributes(op)
        table = op.options or OPTIONS.get(op.name, "")
        if not table:
            return row
        union = "builtin_options" if table in ENUMS["BuiltinOptions"] else "builtin_options2"
        return row | {f"{union}_type": table, union: self._options(table, op.attrs)}

    def _options(self, table: str, attrs: Mapping[str, Any]) -> Table:
        def index(graph: Graph | None) -> int:
            if graph is not None and id(graph) not in self.graphs:
                raise ModelError(
                    f"attribute of {table} names {graph!r}, no graph of the model",
                    fix="give a Graph that is in model.graphs",
                )
            return -1 if graph is None else self.graphs[id(graph)]

        row = dict(attrs)
        for field in TABLES[table]:
            if field.kind == "graph" and field.name in row:
                row[field.name] = index(row[field.name])
            elif field.element == "graph" and row.get(field.name) is not None:
                row[field.name] = [index(g) for g in row[field.name]]
        return row

    def _signature(self, signature: Signature) -> Table:
        index = {id(t): i for i, t in enumerate(signature.graph.tensors)}

        def named(tensors: Mapping[str, Tensor]) -> list[Table]:
            return [{"name": k, "tensor_index": index[id(t)]} for k, t in tensors.items()]

        return {
            "inputs": named(signature.inputs),
            "outputs": named(signature.outputs),
            "signature_key": signature.key,
            "subgraph_index": self.graphs[id(signature.graph)],
        }


def _code_row(name: str, version: int) -> Table:
    """Readers older than the wide field see 127 for codes past it."""
    custom_code = None
    if name.startswith(CUSTOM):
        code, custom_code = ENUMS["BuiltinOperator"].index("CUSTOM"), name.removeprefix(CUSTOM)
    elif name.startswith(UNKNOWN):
        code = int(name.removeprefix(UNKNOWN))
    elif name in ENUMS["BuiltinOperator"]:
        code = ENUMS["BuiltinOperator"].index(name)
    else:
        raise ModelError(
            f"'{name}' is not an operator of the schema",
            where="Model.operator_codes",
            fix=f"{closest(name, ENUMS['BuiltinOperator'])}; '{CUSTOM}{name}' is a custom operator",
        )
    return {
        "deprecated_builtin_code": min(code, 127),
        "builtin_code": code,
        "version": version,
        "custom_code": custom_code,
    }


def _variant_row(tensor: Tensor) -> Table:
    return {"shape": tensor.shape, "type": tensor.dtype.name, "has_rank": tensor.has_rank}


def _external_row(index: int, data: ExternalData, groups: list[str]) -> Table:
    return {
        "id": index + 1,
        "group": groups.index(data.group),
        "offset": data.offset,
        "length": data.length,
        "packing": data.packing or None,
    }


def _quant_row(quant: Quant | None, index: Mapping[int, int]) -> Table | None:
    if quant is None:
        return None
    row: Table = {
        "min": quant.min,
        "max": quant.max,
        "scale": quant.scale if quant.scale.size else None,
        "zero_point": quant.zero_point if quant.zero_point.size else None,
        "quantized_dimension": quant.axis,
    }
    block = quant.block
    if block is not None:
        details: Table = {
            "scales": index[id(block.scales)],
            "zero_points": 0 if block.zero_points is None else index[id(block.zero_points)],
            "block_size": block.block_size,
        }
        vector = {"block_shape": block.block_shape, "quantized_dimensions": block.axes}
        details |= {k: v for k, v in vector.items() if v}
        return row | {"details_type": block.kind, "details": details}
    if quant.custom is not None:
        return row | {"details_type": "CustomQuantization", "details": {"custom": quant.custom}}
    return row


def _sparsity_row(sparsity: Sparsity | None) -> Table | None:
    if sparsity is None:
        return None
    return {
        "traversal_order": sparsity.traversal_order,
        "block_map": sparsity.block_map or None,
        "dim_metadata": [_sparse_dim_row(d) for d in sparsity.dims],
    }


def _sparse_dim_row(dim: SparseDim) -> Table:
    if dim.segments is None or dim.indices is None:
        return {"format": "DENSE", "dense_size": dim.dense_size}
    row: Table = {"format": "SPARSE_CSR", "dense_size": dim.dense_size}
    for name, values in (("array_segments", dim.segments), ("array_indices", dim.indices)):
        row[f"{name}_type"] = _INDEX_VECTORS[values.dtype.str[1:]]
        row[name] = {"values": values}
    return row
