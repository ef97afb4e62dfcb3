"""Are two models the same file? Says where they first differ.

Each model is flattened to a stream of facts in a fixed order; the first pair of facts that
differs is the answer, so there is no comparison code per field.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from ctypes import c_float
from dataclasses import fields
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from .graph import Buffer, ExternalData, Graph, Model, Op, Signature, Tensor
from .types import Array, Blockwise, Quant, SparseDim, Sparsity

_OPTIONS = "options table"


class _Fact(NamedTuple):
    where: str
    what: str
    value: Any


def models_equal(a: Model, b: Model) -> str | None:
    """None if a file of one says what a file of the other does, else the first difference."""
    for fact, other in zip_longest(_model(a), _model(b)):
        if fact is None or other is None:
            extra = fact or other
            return f"{extra.where}: only one model has {extra.what}"
        if (fact.where, fact.what) != (other.where, other.what):
            return f"{fact.where}: one has {fact.what}, the other {other.what} of {other.where}"
        if not _same(fact.what, fact.value, other.value):
            left, right = _short(fact.value), _short(other.value)
            return f"{fact.where}: {fact.what} differs: {left} and {right}"
    return None


def _same(what: str, a: Any, b: Any) -> bool:
    if what == _OPTIONS and "" in (a, b):
        return True  # "" leaves the choice to the writer
    if isinstance(a, memoryview) and isinstance(b, memoryview):
        return np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8))
    return bool(a == b)


def _short(value: Any) -> str:
    text = f"{value.nbytes} bytes" if isinstance(value, memoryview) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _model(model: Model) -> Iterator[_Fact]:
    for what in ("version", "description", "weights_outside"):
        yield _Fact("model", what, getattr(model, what))
    yield _Fact("model", "metadata names", list(model.metadata))
    for key, blob in model.metadata.items():
        yield _Fact(f"metadata '{key}'", "content", memoryview(blob))
    graphs = {id(g): f"graph {i}" for i, g in enumerate(model.graphs)}
    yield _Fact("model", "number of graphs", len(graphs))
    places = [_places(graph) for graph in model.graphs]
    for index, graph in enumerate(model.graphs):
        yield from _graph(f"graph {index}", graph, places[index] | graphs)
    yield _Fact("model", "signatures", [s.key for s in model.signatures])
    tensors = {key: place for part in places for key, place in part.items()}
    for signature in model.signatures:
        yield from _signature(signature, tensors | graphs)


def _places(graph: Graph) -> dict[int, str]:
    return {id(t): f"tensor {i}" for i, t in enumerate(graph.tensors)}


def _signature(signature: Signature, names: dict[int, str]) -> Iterator[_Fact]:
    where = f"signature '{signature.key}'"
    yield _Fact(where, "graph", names.get(id(signature.graph), "unknown"))
    for side in ("inputs", "outputs"):
        yield _Fact(where, side, _plain(getattr(signature, side), names))


def _graph(where: str, graph: Graph, names: dict[int, str]) -> Iterator[_Fact]:
    for what in ("name", "inputs", "outputs", "debug_index"):
        yield _Fact(where, what, _plain(getattr(graph, what), names))
    yield _Fact(where, "number of tensors", len(graph.tensors))
    for index, tensor in enumerate(graph.tensors):
        yield from _tensor(f"{where}, tensor {index} '{tensor.name}'", tensor, names)
    yield _Fact(where, "number of ops", len(graph.ops))
    for index, op in enumerate(graph.ops):
        yield from _op(f"{where}, op {index} {op.name}", op, names)


def _tensor(where: str, tensor: Tensor, names: dict[int, str]) -> Iterator[_Fact]:
    for what in ("dtype", "shape", "signature", "is_variable", "has_rank", "quant", "sparsity"):
        yield _Fact(where, what, _plain(getattr(tensor, what), names))
    for index, variant in enumerate(tensor.variant_types):
        yield from _tensor(f"{where}, variant {index}", variant, names)
    yield _Fact(where, "constant", tensor.is_constant)
    if tensor.buffer is not None:
        yield from _buffer(where, tensor.buffer)


def _buffer(where: str, buffer: Buffer) -> Iterator[_Fact]:
    yield _Fact(where, "external data", _plain(buffer.external, {}))
    yield _Fact(where, "number of bytes", len(buffer))
    yield _Fact(where, "content", buffer.raw)


def _op(where: str, op: Op, names: dict[int, str]) -> Iterator[_Fact]:
    for what in (
        "name",
        "version",
        "inputs",
        "outputs",
        "intermediates",
        "mutating",
        "debug_index",
    ):
        yield _Fact(where, what, _plain(getattr(op, what), names))
    yield _Fact(where, _OPTIONS, op.options)
    yield _Fact(where, "attribute names", sorted(op.attrs))
    for key in sorted(op.attrs):
        yield _Fact(where, f"attribute '{key}'", _plain(op.attrs[key], names))


def _plain(value: Any, names: dict[int, str]) -> Any:
    """A value that `==` compares as the file would: by content, floats by their 32 bits."""
    if isinstance(value, (Tensor, Graph)):
        return names.get(id(value), f"unlisted '{value.name}'")
    if isinstance(value, (Quant, Blockwise, Sparsity, SparseDim, ExternalData)):
        return {f.name: _plain(getattr(value, f.name), names) for f in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item, names) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist() if _is_plain(value) else _plain(value.tolist(), names)
    if isinstance(value, (list, tuple)):
        return [_plain(item, names) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, np.generic):
        return _plain(value.item(), names)
    return _float(value) if isinstance(value, float) else value


def _is_plain(array: Array) -> bool:
    """Its elements are what _plain would make of them (scales come by the thousand)."""
    if array.dtype.kind in "iub":
        return True
    return array.dtype == np.float32 and bool(np.all(np.isfinite(array) & (array != 0)))


def _float(value: float) -> float | str:
    """Every float field of the schema has 32 bits. NaN is to equal itself, 0.0 not -0.0."""
    narrow = c_float(value).value
    return narrow if narrow and not math.isnan(narrow) else repr(narrow)
