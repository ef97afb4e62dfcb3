"""The text form of a model (text.py), printed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from ..errors import ModelError, TextError
from .graph import Buffer, ExternalData, Graph, Model, Op, Signature, Tensor
from .packing import decode, decode_strings, encode
from .parser import BARE, QUANT_ARRAYS, Blob, Parser
from .types import Array, Blockwise, DType, Quant, SparseDim, Sparsity

T = TypeVar("T")

_WORD = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][\w.]*", re.ASCII)
_REF = re.compile(BARE)
# An op may stand right behind another's fields: one that is called like a field is quoted.
_RESERVED = frozenset(
    {
        "version",
        "options",
        "intermediates",
        "mutating",
        "debug_index",
        "signature",
        "variable",
        "unranked",
        "quant",
        "sparsity",
        "variants",
        "external",
    }
)
_BYTES_PER_ELEMENT = 4  # blobs are inlined up to this many bytes for each element allowed


def content_hash(blob: Blob) -> str:
    """What stands after the # of an elided constant."""
    return hashlib.sha256(blob).hexdigest()[:16]


def _quote(text: str) -> str:
    return json.dumps(text)  # ASCII only: no character of a name can break a line


def _name(text: str, bare: re.Pattern[str] = _WORD) -> str:
    return text if bare.fullmatch(text) and text not in _RESERVED else _quote(text)


def _ids(sigil: str, named: Iterable[tuple[Any, str]]) -> dict[int, str]:
    """id of an object -> its printed reference, with ~n from the second of a name on."""
    found: dict[int, str] = {}
    seen: dict[str, int] = {}
    for thing, name in named:
        if id(thing) not in found:
            seen[name] = seen.get(name, 0) + 1
            more = f"~{seen[name]}" if seen[name] > 1 else ""
            found[id(thing)] = f"{sigil}{_name(name, _REF)}{more}"
    return found


def _unique(things: Iterable[T | None]) -> list[T]:
    return list({id(t): t for t in things if t is not None}.values())


def _all_graphs(model: Model) -> list[Graph]:
    """The model's graphs and what they call, in a fixed order."""
    graphs = _unique((*model.graphs, *(s.graph for s in model.signatures)))
    known = set(map(id, graphs))
    for graph in graphs:  # grows while it is walked
        for called in (g for op in graph.ops for g in op.subgraphs):
            if id(called) not in known:
                known.add(id(called))
                graphs.append(called)
    return graphs


def _all_tensors(graph: Graph, signatures: Iterable[Signature]) -> list[Tensor]:
    """The graph's tensors, then those a malformed graph refers to without listing them."""
    named = [
        t for s in signatures if s.graph is graph for t in (*s.inputs.values(), *s.outputs.values())
    ]
    used = [t for op in graph.ops for t in (*op.inputs, *op.outputs, *op.intermediates)]
    listed = _unique((*graph.tensors, *graph.inputs, *graph.outputs, *used, *named))
    blocks = [t.quant.block for t in listed if t.quant is not None and t.quant.block is not None]
    return _unique((*listed, *(t for b in blocks for t in (b.scales, b.zero_points))))


def _float_text(value: Any) -> str:
    """The shortest decimal that gives the value back in its own type."""
    short = str(value)
    text = short if type(value)(float(short)) == value else repr(float(value))
    return text if re.search(r"[.einf]", text) else text + ".0"


def _scalars(array: Array) -> list[str]:
    """Elements as text; a complex number is its real and imaginary part."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    if flat.dtype.kind == "O":
        return [_string_element(v) for v in flat]
    if flat.dtype.kind in "iu":
        return list(map(str, flat.tolist()))
    if flat.dtype.kind == "b":
        return ["true" if v else "false" for v in flat]
    return list(map(_float_text, flat))


def _string_element(value: str | bytes) -> str:
    if isinstance(value, str):
        return _quote(value)
    try:
        return _quote(bytes(value).decode())
    except UnicodeDecodeError:
        return f'x"{bytes(value).hex()}"'


class Printer:
    def __init__(self, model: Model, inline_limit: int) -> None:
        self.model = model
        self.limit = inline_limit
        self.all_graphs = _all_graphs(model)
        self.graphs = _ids("@", ((g, g.name) for g in self.all_graphs))
        self.tensors: dict[int, str] = {}  # of the graph in hand
        self.elided: dict[str, Blob] = {}
        self.buffers: dict[int, str] = {}  # id of a printed Buffer -> where its bytes stand

    def lines(self) -> Iterator[str]:
        model = self.model
        yield self.fields(
            "model",
            {
                "version": model.version,
                "description": model.description or None,
                "weights_outside": model.weights_outside or None,
                "unknown": model.unknown or None,
            },
        )
        for key, blob in model.metadata.items():
            yield f"metadata {_quote(key)} = {self.blob(blob)}"
        for graph in self.all_graphs:
            yield ""
            self.tensors = self.tensor_ids(graph)
            yield from self.graph(graph)
        yield from map(self.signature, model.signatures)

    def tensor_ids(self, graph: Graph) -> dict[int, str]:
        return _ids("%", ((t, t.name) for t in _all_tensors(graph, self.model.signatures)))

    def graph(self, graph: Graph) -> Iterator[str]:
        tensors = _all_tensors(graph, self.model.signatures)
        name = self.graphs[id(graph)]
        head = f"graph {name}({self.refs(graph.inputs)}) -> ({self.refs(graph.outputs)})"
        yield self.fields(head, {"debug_index": _unless(graph.debug_index, -1)}) + " {"
        yield from (f"  {self.tensor(name, t)}" for t in tensors)
        if tensors and graph.ops:
            yield ""
        yield from (f"  {self.op(op)}" for op in graph.ops)
        yield "}"

    def signature(self, signature: Signature) -> str:
        ids, graph = self.tensor_ids(signature.graph), self.graphs[id(signature.graph)]
        inputs, outputs = (
            ", ".join(f"{_name(k)}: {ids[id(t)]}" for k, t in side.items())
            for side in (signature.inputs, signature.outputs)
        )
        return f"signature {_quote(signature.key)} {graph}({inputs}) -> ({outputs})"

    def tensor(self, graph: str, tensor: Tensor) -> str:
        head = f"{self.tensors[id(tensor)]}: {self.typed(tensor)}"
        if tensor.buffer is None:
            return head
        return f"{head} = {self.constant(graph, tensor, tensor.buffer)}"

    def typed(self, tensor: Tensor) -> str:
        """Type, shape and the fields that are not at their default."""
        head = f"{tensor.dtype.short}[{','.join(map(str, tensor.shape))}]"
        variants = "".join(f"({self.typed(v)})" for v in tensor.variant_types)
        return self.fields(
            head,
            {
                "signature": None if tensor.signature is None else list(tensor.signature),
                "variable": tensor.is_variable or None,
                "unranked": not tensor.has_rank or None,
            },
        ) + "".join(
            (
                f" quant={self.quant(tensor.quant)}" if tensor.quant is not None else "",
                f" sparsity={self.sparsity(tensor.sparsity)}"
                if tensor.sparsity is not None
                else "",
                f" variants=[{variants}]" if tensor.variant_types else "",
            )
        )

    def quant(self, quant: Quant) -> str:
        arrays = {name: getattr(quant, name) for name in QUANT_ARRAYS}
        parts = {
            n: self.elements(np.asarray(a, QUANT_ARRAYS[n].numpy))
            for n, a in arrays.items()
            if a is not None
        }
        if quant.axis:
            parts["axis"] = str(quant.axis)
        if quant.block is not None:
            parts["block"] = self.value(
                {f.name: getattr(quant.block, f.name) for f in fields(Blockwise)}
            )
        if quant.custom is not None:
            parts["custom"] = self.blob(quant.custom)
        return "{" + ", ".join(f"{k}: {v}" for k, v in parts.items()) + "}"

    def sparsity(self, sparsity: Sparsity) -> str:
        dims = [{f.name: getattr(d, f.name) for f in fields(SparseDim)} for d in sparsity.dims]
        return self.value(
            {
                "traversal_order": sparsity.traversal_order,
                "block_map": sparsity.block_map,
                "dims": dims,
            }
        )

    def constant(self, graph: str, tensor: Tensor, buffer: Buffer) -> str:
        place = f"{graph} {self.tensors[id(tensor)]}"
        first = self.buffers.setdefault(id(buffer), place)
        if first != place:
            return f"same {first}"
        values = _inline_values(tensor, buffer.raw, self.limit) or self.blob(buffer.raw)
        if buffer.external is None:
            return values
        places = [getattr(buffer.external, f.name) for f in fields(ExternalData)]
        return f"{values} external={self.value(places)}"

    def op(self, op: Op) -> str:
        inputs = ", ".join("none" if t is None else self.tensors[id(t)] for t in op.inputs)
        head = f"{_name(op.name)}({inputs})"
        if op.outputs:
            head = f"{self.refs(op.outputs)} = {head}"
        if op.attrs:
            head += f" {self.value(op.attrs)}"
        return self.fields(
            head,
            {
                "version": _unless(op.version, 1),
                "options": op.options or None,
                "intermediates": op.intermediates or None,
                "mutating": op.mutating or None,
                "debug_index": _unless(op.debug_index, -1),
            },
        )

    def refs(self, tensors: Iterable[Tensor]) -> str:
        return ", ".join(self.tensors[id(t)] for t in tensors)

    def fields(self, head: str, values: Mapping[str, Any]) -> str:
        return " ".join(
            (head, *(f"{k}={self.value(v)}" for k, v in values.items() if v is not None))
        )

    def value(self, value: Any) -> str:
        for kinds, show in self._SHOW:
            if isinstance(value, kinds):
                return show(self, value)
        raise TextError(
            f"an attribute holds a {type(value).__name__}, which has no text form",
            fix="use numbers, strings, bytes, arrays, graphs, and lists or dicts of them",
        )

    # NumPy scalars are printed as the Python number of the same value.
    _SHOW: tuple[tuple[Any, Callable[[Printer, Any], str]], ...] = (
        (type(None), lambda self, v: "none"),
        ((bool, np.bool_), lambda self, v: "true" if v else "false"),
        ((int, np.integer), lambda self, v: str(int(v))),
        ((float, np.floating), lambda self, v: _float_text(float(v))),
        (str, lambda self, v: _quote(str(v))),
        ((bytes, memoryview), lambda self, v: self.blob(v)),
        (np.ndarray, lambda self, v: self.array(v)),
        (Graph, lambda self, v: self.graphs[id(v)]),
        (Tensor, lambda self, v: self.tensors[id(v)]),
        (list, lambda self, v: f"[{', '.join(map(self.value, v))}]"),
        (tuple, lambda self, v: f"({', '.join(map(self.value, v))})"),
        (Mapping, lambda self, v: self.mapping(v)),
    )

    def mapping(self, values: Mapping[str, Any]) -> str:
        return "{" + ", ".join(f"{_name(k)}: {self.value(v)}" for k, v in values.items()) + "}"

    def array(self, array: Array) -> str:
        dtype = DType.of(array.dtype.newbyteorder("="))
        shape = ",".join(map(str, array.shape))
        return f"{dtype.short}[{shape}] {self.elements(array.astype(dtype.numpy))}"

    def elements(self, array: Array) -> str:
        if array.size <= self.limit:
            return f"[{', '.join(_scalars(array))}]"
        return self.elide(encode(array, DType.of(array.dtype)))

    def blob(self, blob: Blob) -> str:
        raw = memoryview(blob)
        if raw.nbytes <= _BYTES_PER_ELEMENT * self.limit:
            return f'x"{raw.hex()}"'
        return self.elide(raw)

    def elide(self, blob: Blob) -> str:
        digest = content_hash(blob)
        self.elided[digest] = blob
        return f"#{digest}"


def _unless(value: int, default: int) -> int | None:
    return None if value == default else value


def _inline_values(tensor: Tensor, raw: memoryview, limit: int) -> str | None:
    """Stored elements as text; None if there are too many, or if text would not give the bytes."""
    dtype = tensor.dtype
    if raw.nbytes == 0:
        return None  # an empty buffer and an empty list of strings are not the same bytes
    try:
        values = _stored_values(tensor, raw, limit)
    except (ModelError, ValueError):
        return None
    if values is None or values.size > limit:
        return None
    texts = _scalars(values)
    parsed = Parser(f"[{', '.join(texts)}]").elements(dtype)
    return f"[{', '.join(texts)}]" if parsed == raw else None


def _stored_values(tensor: Tensor, raw: memoryview, limit: int) -> Array | None:
    dtype = tensor.dtype
    if dtype is DType.STRING:
        # At least an offset a string: a longer buffer need not be decoded to be refused.
        too_many = raw.nbytes >= 4 and int.from_bytes(raw[:4], "little", signed=True) > limit
        return None if too_many else decode_strings(raw)
    if not dtype.is_fixed_size or raw.nbytes * 8 // dtype.bits > limit + 8:
        return None
    stored = raw.nbytes * 8 // dtype.bits
    count = int(np.prod(tensor.shape, dtype=object))
    full = tensor.sparsity is None and count >= 0 and dtype.nbytes((count,)) == raw.nbytes
    return decode(raw, dtype, (count if full else stored,))
