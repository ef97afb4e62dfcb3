"""Models that were read, verified and planned before: a record on disk tells their inputs, outputs
and signatures, and the file's tables are read when somebody asks for ops or tensors.

Only content that went through all checks has a record. A file is recognised by its path, size and
times, as make and git do, or else by a digest of all its bytes.
"""

from __future__ import annotations

import hashlib
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..forks import renews
from ..ir import DType, Graph, Model, Quant, Signature, Tensor
from ..store import Store

Record = dict[str, Any]
# A file that was written less than this before it was looked at may be written again without its
# times showing it.
SETTLED_NS = 2_000_000_000
# Bytes at the beginning and at the end that tell files of one size apart, most of the time.
SKETCH = 4096


# -- recognising ----------------------------------------------------------------------------------


def recall(data: memoryview, path: Path | None) -> tuple[Record, str] | None:
    """The record of this content and its digest, if it was met before."""
    store = Store()
    if store.folder is None:
        return None
    stamp = _stamp(path, store)
    seen = store.recall(stamp, _pair) if stamp else None
    sketch = seen[0] if seen else _sketch(data, store)
    found = store.recall(sketch, _content_and_record)
    if found is None:
        return None
    content, record = found
    if not seen and digest(data) == content:
        _note(store, path, sketch, content)
    elif not seen or seen[1] != content:
        return None
    return record, content


def _pair(found: Sequence[Any]) -> tuple[str, str]:
    sketch, content = found
    if not isinstance(sketch, str) or not isinstance(content, str) or "/" in sketch:
        raise ValueError("it does not name a record")
    return sketch, content


def _content_and_record(found: Sequence[Any]) -> tuple[str, Record]:
    content, record = found
    if not isinstance(content, str) or not isinstance(record, dict):
        raise ValueError("it does not describe a model")
    return content, record


def keep(data: memoryview, source: str, record: Record) -> str:
    """Remember content that is verified; returns its digest."""
    store = Store()
    sketch, content = _sketch(data, store), digest(data)
    if store.recall(sketch, _content_and_record) != (content, record):
        store.record(sketch, [content, record])
    # The file may be another by now, or the model a copy of what was in it.
    if source and _digest_of(Path(source)) == content:
        _note(store, Path(source), sketch, content)
    return content


def _note(store: Store, path: Path | None, sketch: str, content: str) -> None:
    stamp = _stamp(path, store)
    if stamp:
        store.record(stamp, [sketch, content])


def digest(data: memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str:
    """The digest of what is in the file now; "" if it cannot be read."""
    made = hashlib.sha256()
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                made.update(piece)
    except OSError:
        return ""
    return made.hexdigest()


def _stamp(path: Path | None, store: Store) -> str:
    """The name of what is known about a file that nobody has touched; "" if that cannot be told."""
    if path is None:
        return ""
    try:
        status = path.stat()
    except OSError:
        return ""
    times = status.st_mtime_ns, status.st_ctime_ns
    if not stat.S_ISREG(status.st_mode) or max(times) > time.time_ns() - SETTLED_NS:
        return ""
    place = str(path.absolute()), status.st_dev, status.st_ino, status.st_size
    return store.name("seen", place, times) + ".seen"


def _sketch(data: memoryview, store: Store) -> str:
    ends = bytes(data[:SKETCH]), bytes(data[-SKETCH:])
    return store.name("model", len(data), ends) + ".model"


# -- what a record says ---------------------------------------------------------------------------


def describe(model: Model) -> Record | None:
    """What can be asked of a model without its ops; None where that is not plain."""
    graphs = [_graph_row(g) for g in model.graphs]
    places = [places_of(g) for g in model.graphs]
    home = {id(g): i for i, g in enumerate(model.graphs)}
    if None in graphs:
        return None
    signatures = []
    for s in model.signatures:
        index = home.get(id(s.graph))
        if index is None or any(t not in places[index] for t in _border(s)):
            return None
        named = [{n: places[index][t] for n, t in side.items()} for side in (s.inputs, s.outputs)]
        signatures.append([s.key, index, *named])
    return {
        "graphs": graphs,
        "signatures": signatures,
        "description": model.description,
        "outside": model.weights_outside,
    }


def _border(signature: Signature) -> Sequence[Tensor]:
    return *signature.inputs.values(), *signature.outputs.values()


def places_of(graph: Graph) -> Mapping[Tensor, int]:
    """Tensor -> place in the file; of a graph that is not read, the border's alone."""
    if isinstance(graph, KnownGraph) and not graph.is_read:
        return graph.places
    return {t: i for i, t in enumerate(graph.tensors)}


def tensor_at(graph: Graph, place: int) -> Tensor | None:
    """The tensor at this place in the file; the border's tensors need no reading."""
    if isinstance(graph, KnownGraph) and not graph.is_read and place in graph.border:
        return graph.border[place]
    return graph.tensors[place] if 0 <= place < len(graph.tensors) else None


def _graph_row(graph: Graph) -> list[Any] | None:
    places = places_of(graph)
    border = dict.fromkeys((*graph.inputs, *graph.outputs))
    rows = [_tensor_row(t) if t in places else None for t in border]
    if None in rows:
        return None
    return [
        graph.name,
        [places[t] for t in graph.inputs],
        [places[t] for t in graph.outputs],
        [[places[t], row] for t, row in zip(border, rows, strict=True)],
        graph.debug_index,
    ]


def _tensor_row(t: Tensor) -> list[Any] | None:
    q = t.quant
    if t.buffer or t.sparsity or t.is_variable or t.variant_types:
        return None
    if q is not None and (q.block is not None or q.custom is not None):
        return None
    numbers = q and [*_lists(q.scale, q.zero_point, q.min, q.max), q.axis]
    return [
        t.name,
        t.dtype.name,
        list(t.shape),
        t.signature and list(t.signature),
        numbers,
        t.has_rank,
    ]


def _lists(*arrays: Any) -> list[list[Any] | None]:
    return [None if a is None else a.tolist() for a in arrays]


def _quant(numbers: list[Any] | None) -> Quant | None:
    if numbers is None:
        return None
    scale, zero, low, high, axis = numbers
    least, most = (None if v is None else np.array(v, np.float32) for v in (low, high))
    return Quant(np.array(scale, np.float32), np.array(zero, np.int64), axis, least, most)


# -- models that are read late --------------------------------------------------------------------


class KnownTensor(Tensor):
    """An input or output of a graph whose ops are not read yet: who writes and reads it is not
    known before that."""

    __slots__ = ("_read",)

    def __init__(self, row: Sequence[Any], read: Callable[[], None]) -> None:
        name, dtype, shape, signature, numbers, has_rank = row
        super().__init__(
            name, DType[dtype], shape, signature=signature, quant=_quant(numbers), has_rank=has_rank
        )
        self._read = read
        del self.producer, self.users

    def __getattr__(self, name: str) -> Any:
        if name not in ("producer", "users"):
            raise AttributeError(f"a Tensor has no attribute '{name}'")
        self._read()
        return getattr(self, name)


class KnownGraph(Graph):
    """A graph whose ops and tensors are read when they are asked for."""

    def __init__(self, row: Sequence[Any], read: Callable[[], None]) -> None:
        name, inputs, outputs, tensors, debug_index = row
        self.border: dict[int, Tensor] = {i: KnownTensor(about, read) for i, about in tensors}
        self.places = {t: place for place, t in self.border.items()}
        super().__init__(
            name,
            [self.border[i] for i in inputs],
            [self.border[i] for i in outputs],
            debug_index=debug_index,
        )
        self._read = read
        del self.ops, self.tensors

    def __getattr__(self, name: str) -> Any:
        if name not in ("ops", "tensors"):
            raise AttributeError(f"a Graph has no attribute '{name}'")
        self._read()
        return self.__dict__[name]

    @property
    def is_read(self) -> bool:
        return "ops" in self.__dict__


class KnownModel(Model):
    """A model whose record is there and whose file is read late.

    read(graphs) reads the file into graphs that keep these graphs' border tensors; it returns the
    whole model.
    """

    def __init__(
        self,
        record: Record,
        content: str,
        source: str,
        data: memoryview,
        read: Callable[[Sequence[KnownGraph]], Model],
    ) -> None:
        self._record, self._content, self._read_file = record, content, read
        self.renew_lock()
        renews(self)
        self._own = [KnownGraph(row, self._read) for row in record["graphs"]]
        signatures = [self._signature(*row) for row in record["signatures"]]
        super().__init__(
            [*self._own],
            signatures,
            description=record["description"],
            weights_outside=record["outside"],
            source=source,
            file=data,
        )
        del self.metadata, self.unknown, self.files

    def renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _signature(self, key: str, index: int, *sides: Mapping[str, int]) -> Signature:
        graph = self._own[index]
        inputs, outputs = ({n: graph.border[i] for n, i in side.items()} for side in sides)
        return Signature(key, graph, inputs, outputs)

    def __getattr__(self, name: str) -> Any:
        if name not in ("metadata", "unknown", "files"):
            raise AttributeError(f"a Model has no attribute '{name}'")
        self._read()
        return self.__dict__[name]

    def _read(self) -> None:
        with self._lock:
            if "unknown" in self.__dict__:
                return
            for graph in self._own:
                for tensor in graph.places:
                    tensor.producer, tensor.users = None, []
            whole = self._read_file(self._own)
            for graph, filled in zip(self._own, whole.graphs, strict=True):
                graph.tensors, graph.ops = filled.tensors, filled.ops
            self.metadata, self.files = whole.metadata, whole.files
            self.unknown = whole.unknown

    @property
    def content(self) -> str:
        """The digest of the file while this is still what the file says; otherwise ""."""
        untouched = len(self.graphs) == len(self._own) and all(
            mine is now and not mine.is_read
            for mine, now in zip(self._own, self.graphs, strict=True)
        )
        return self._content if untouched and describe(self) == self._record else ""


def content_of(model: Model) -> str:
    """The digest that stands for this model in records; "" if it is not known to be a file's."""
    return model.content if isinstance(model, KnownModel) else ""


def changed(source: str) -> ModelError:
    return ModelError(
        "the file is not what it was when it was opened",
        where=source,
        fix="do not write to a model's file in place: write beside and rename",
    )
