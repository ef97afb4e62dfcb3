"""The readable text form of a model: printed, and parsed back to the same model.

    model version=3 description="a demo"
    graph @main(%x) -> (%y) {
      %x: f32[1,4] signature=[-1, 4]
      %w: f32[4] = [1.0, 2.0, 3.0, 4.0]
      %y: f32[1,4]

      %y = ADD(%x, %w) {fused_activation_function: "RELU"} version=2
    }
    signature "serve" @main(x: %x) -> (y: %y)

A name is bare or quoted; `%x~2` is the second tensor called x. Values with more elements than
the limit are elided as `#<hash>`; the parser takes them from `weights`. `//` starts a comment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ..errors import ModelError, TextError
from .graph import Buffer, ExternalData, Graph, Model, Op, Signature, Tensor, link
from .packing import decode, decode_strings, encode
from .types import Array, Blockwise, DType, Quant, Shape, SparseDim, Sparsity
from .verify import int_range

T = TypeVar("T")
Blob = bytes | memoryview
Weights = Model | Graph | Mapping[str, Blob]

_BARE = r"[A-Za-z0-9_](?:[A-Za-z0-9_./\-]|[:;](?=[A-Za-z0-9_]))*"
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_NUMBER = r"-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_TOKEN = re.compile(
    rf"""(?P<skip>(?:\s|//[^\n]*)+)
    |(?P<blob>x"[0-9a-f]*")
    |(?P<string>{_STRING})
    |(?P<ref>[%@](?:{_STRING}|{_BARE})(?:~\d+)?)
    |(?P<hash>\#[0-9a-f]{{16}})
    |(?P<number>{_NUMBER})
    |(?P<word>[A-Za-z_][\w.]*)
    |(?P<mark>->|[=:,(){{}}\[\]])""",
    re.VERBOSE | re.ASCII,
)
_WORD = re.compile(r"(?!(?:inf|nan)\b)[A-Za-z_][\w.]*", re.ASCII)
_REF = re.compile(_BARE)
# An op may stand right behind another's fields: one that is called like a field is quoted.
_RESERVED = frozenset({
    "version", "options", "intermediates", "mutating", "debug_index", "signature", "variable",
    "unranked", "quant", "sparsity", "variants", "external",
})  # fmt: skip
_BYTES_PER_ELEMENT = 4  # blobs are inlined up to this many bytes for each element allowed


def to_text(model: Model | Graph, inline_limit: int = 16) -> str:
    """The text of a model, or of a graph and the graphs it calls."""
    if isinstance(model, Graph):
        model = Model([model])
    return "\n".join(_Printer(model, inline_limit).lines()) + "\n"


def from_text(text: str, weights: Weights | None = None) -> Model:
    """Parse the text form; `weights` holds the elided constants, by hash or as their model."""
    parser = _Parser(text, weights)
    try:
        return parser.model()
    except TextError:
        raise
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        # A field of the wrong type, a number of 5,000 digits, brackets nested without end.
        parser.error(f"expected legal values before this place: {error}")


def weights_of(model: Model | Graph) -> dict[str, Blob]:
    """Everything that a text of the model may elide, by hash."""
    printer = _Printer(Model([model]) if isinstance(model, Graph) else model, inline_limit=-1)
    for _ in printer.lines():
        pass
    return printer.elided


def content_hash(blob: Blob) -> str:
    """What stands after the # of an elided constant."""
    return hashlib.sha256(blob).hexdigest()[:16]


# -- printing --------------------------------------------------------------------------------


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
    named = [t for s in signatures if s.graph is graph for t in (*s.inputs.values(),
                                                                 *s.outputs.values())]  # fmt: skip
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


class _Printer:
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
        yield self.fields("model", {
            "version": model.version,
            "description": model.description or None,
            "weights_outside": model.weights_outside or None,
            "unknown": model.unknown or None,
        })  # fmt: skip
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
        inputs, outputs = (", ".join(f"{_name(k)}: {ids[id(t)]}" for k, t in side.items())
                           for side in (signature.inputs, signature.outputs))  # fmt: skip
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
        return self.fields(head, {
            "signature": None if tensor.signature is None else list(tensor.signature),
            "variable": tensor.is_variable or None,
            "unranked": not tensor.has_rank or None,
        }) + "".join((
            f" quant={self.quant(tensor.quant)}" if tensor.quant is not None else "",
            f" sparsity={self.sparsity(tensor.sparsity)}" if tensor.sparsity is not None else "",
            f" variants=[{variants}]" if tensor.variant_types else "",
        ))  # fmt: skip

    def quant(self, quant: Quant) -> str:
        arrays = {name: getattr(quant, name) for name in _QUANT_ARRAYS}
        parts = {n: self.elements(np.asarray(a, _QUANT_ARRAYS[n].numpy))
                 for n, a in arrays.items() if a is not None}  # fmt: skip
        if quant.axis:
            parts["axis"] = str(quant.axis)
        if quant.block is not None:
            parts["block"] = self.value({f.name: getattr(quant.block, f.name)
                                         for f in fields(Blockwise)})  # fmt: skip
        if quant.custom is not None:
            parts["custom"] = self.blob(quant.custom)
        return "{" + ", ".join(f"{k}: {v}" for k, v in parts.items()) + "}"

    def sparsity(self, sparsity: Sparsity) -> str:
        dims = [{f.name: getattr(d, f.name) for f in fields(SparseDim)} for d in sparsity.dims]
        return self.value({
            "traversal_order": sparsity.traversal_order,
            "block_map": sparsity.block_map,
            "dims": dims,
        })  # fmt: skip

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
        return self.fields(head, {
            "version": _unless(op.version, 1),
            "options": op.options or None,
            "intermediates": op.intermediates or None,
            "mutating": op.mutating or None,
            "debug_index": _unless(op.debug_index, -1),
        })  # fmt: skip

    def refs(self, tensors: Iterable[Tensor]) -> str:
        return ", ".join(self.tensors[id(t)] for t in tensors)

    def fields(self, head: str, values: Mapping[str, Any]) -> str:
        return " ".join((head, *(f"{k}={self.value(v)}" for k, v in values.items()
                                 if v is not None)))  # fmt: skip

    def value(self, value: Any) -> str:
        for kinds, show in self._SHOW:
            if isinstance(value, kinds):
                return show(self, value)
        raise TextError(
            f"an attribute holds a {type(value).__name__}, which has no text form",
            fix="use numbers, strings, bytes, arrays, graphs, and lists or dicts of them",
        )

    # NumPy scalars are printed as the Python number of the same value.
    _SHOW: tuple[tuple[Any, Callable[[_Printer, Any], str]], ...] = (
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


_QUANT_ARRAYS = {
    "scale": DType.FLOAT32, "zero_point": DType.INT64, "min": DType.FLOAT32, "max": DType.FLOAT32,
}  # fmt: skip


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
    parsed = _Parser(f"[{', '.join(texts)}]", None).elements(dtype)
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


# -- parsing ---------------------------------------------------------------------------------


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


_END = "end of text"


def _tokens(text: str) -> Iterator[_Token]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            # Everything else is a token of its own, so that the parser says what it expected.
            yield _Token("stray", text[place], place)
            place += 1
            continue
        if found.lastgroup != "skip":
            yield _Token(str(found.lastgroup), found.group(), place)
        place = found.end()
    yield _Token(_END, "", len(text))


class _Parser:
    """Recursive descent with one token of lookahead."""

    def __init__(self, text: str, weights: Weights | None) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.token = next(self.tokens)
        self.weights = weights
        self.graphs: dict[str, Graph] = {}
        self.defined: dict[str, dict[str, Tensor]] = {}  # graph -> its tensors, by printed id
        self.tensors: dict[str, Tensor] = {}
        self.first_use: dict[str, _Token] = {}
        self.at_end_of_graph: list[Callable[[], None]] = []

    # -- tokens

    def fail(self, expected: str, at: _Token | None = None, fix: str = "") -> NoReturn:
        token = at or self.token
        found = token.text or token.kind
        self.error(f"expected {expected}, found '{found}'", token, fix)

    def error(self, what: str, at: _Token | None = None, fix: str = "") -> NoReturn:
        start = (at or self.token).start
        number = self.text.count("\n", 0, start)
        line = self.text.split("\n")[number].strip()
        raise TextError(what, where=f"line {number + 1}: {line}", fix=fix)

    def next(self) -> _Token:
        token = self.token
        self.token = next(self.tokens, token)
        return token

    def take(self, kind: str, expected: str) -> _Token:
        return self.next() if self.token.kind == kind else self.fail(expected)

    def accept(self, text: str) -> bool:
        if self.token.kind in ("mark", "word") and self.token.text == text:
            self.next()
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            self.fail(f"'{text}'")

    def many(self, item: Callable[[], T], start: str, end: str) -> list[T]:
        """start item, item ... end"""
        self.expect(start)
        items: list[T] = []
        while not self.accept(end):
            if items and not self.accept(","):
                self.fail(f"',' or '{end}'")
            items.append(item())
        return items

    # -- scalars

    def string(self, expected: str = "a quoted string") -> str:
        token = self.take("string", expected)
        return self._unquote(token.text, token)

    def _unquote(self, quoted: str, token: _Token) -> str:
        try:
            return str(json.loads(quoted, strict=False))
        except ValueError as error:
            self.error(f"a string cannot be read: {error}", token)

    def name(self, expected: str) -> str:
        return self.string() if self.token.kind == "string" else self.take("word", expected).text

    def integer(self) -> int:
        token = self.take("number", "an integer")
        if not re.fullmatch(r"-?\d+", token.text):
            self.fail("an integer", token)
        return int(token.text)

    def boolean(self) -> bool:
        if self.token.text not in ("true", "false"):
            self.fail("true or false")
        return self.next().text == "true"

    def ref(self, sigil: str, expected: str) -> str:
        if self.token.kind != "ref" or self.token.text[0] != sigil:
            self.fail(expected)
        return self.next().text

    def ref_name(self, ref: str, token: _Token) -> str:
        bare = re.sub(r"~\d+$", "", ref[1:])
        return self._unquote(bare, token) if bare.startswith('"') else bare

    def tensor_ref(self) -> Tensor:
        token = self.token
        ref = self.ref("%", "a tensor such as %x")
        if ref not in self.tensors:
            self.fail("a tensor of this graph", token, "declare it above: %x: f32[1]")
        return self.tensors[ref]

    def graph_ref(self) -> Graph:
        token = self.token
        ref = self.ref("@", "a graph such as @main")
        if ref not in self.graphs:
            self.graphs[ref] = Graph(self.ref_name(ref, token))
            self.first_use[ref] = token
        return self.graphs[ref]

    # -- the model

    def model(self) -> Model:
        model = Model([])
        if self.accept("model"):
            self.assignments({
                "version": lambda: setattr(model, "version", self.integer()),
                "description": lambda: setattr(model, "description", self.string()),
                "weights_outside": lambda: setattr(model, "weights_outside", self.boolean()),
                "unknown": lambda: setattr(model, "unknown", self.many(self.string, "[", "]")),
            })  # fmt: skip
        while self.token.kind != _END:
            if self.accept("metadata"):
                key = self.string("the metadata's quoted name")
                self.expect("=")
                model.metadata[key] = self.blob()
            elif self.accept("graph"):
                model.graphs.append(self.graph())
            elif self.accept("signature"):
                model.signatures.append(self.signature())
            else:
                self.fail("'graph', 'signature' or 'metadata'")
        for ref in self.graphs.keys() - self.defined.keys():
            self.error(f"expected a definition of graph {ref}, found none", self.first_use[ref])
        return model

    def assignments(self, setters: Mapping[str, Callable[[], object]]) -> None:
        """key=value ... as far as the keys are known."""
        while self.token.kind == "word" and self.token.text in setters:
            key = self.next().text
            self.expect("=")
            setters[key]()

    def graph(self) -> Graph:
        token = self.token
        graph = self.graph_ref()
        if token.text in self.defined:
            self.fail("a new graph name", token, "number graphs of one name: @name~2")
        self.tensors = self.defined[token.text] = {}
        inputs = self.many(self.pending_ref, "(", ")")
        self.expect("->")
        outputs = self.many(self.pending_ref, "(", ")")
        self.assignments({"debug_index": lambda: setattr(graph, "debug_index", self.integer())})
        self.expect("{")
        while not self.accept("}"):
            self.statement(graph)
        for finish in self.at_end_of_graph:
            finish()
        self.at_end_of_graph.clear()
        graph.tensors = list(self.tensors.values())
        graph.inputs = [self.resolve(t) for t in inputs]
        graph.outputs = [self.resolve(t) for t in outputs]
        return graph

    def pending_ref(self) -> _Token:
        """A reference that stands before the declaration."""
        token = self.token
        self.ref("%", "a tensor such as %x")
        return token

    def resolve(self, token: _Token) -> Tensor:
        if token.text not in self.tensors:
            self.fail("a tensor that the graph declares", token)
        return self.tensors[token.text]

    def statement(self, graph: Graph) -> None:
        """`%x: type ...` declares a tensor; `%x, %y = OP(...)` or `OP(...)` is an op."""
        refs: list[_Token] = []
        while self.token.kind == "ref":
            refs.append(self.pending_ref())
            if len(refs) == 1 and self.accept(":"):
                return self.declaration(refs[0])
            if not self.accept(","):
                break
        if refs:
            self.expect("=")
        op = self.op([self.resolve(t) for t in refs])
        graph.ops.append(op)
        link(op)

    def signature(self) -> Signature:
        key = self.string("the signature's quoted key")
        token = self.token
        if self.ref("@", "a graph such as @main") not in self.defined:
            self.fail("a graph that is defined above", token)
        self.tensors = self.defined[token.text]
        inputs = dict(self.many(self.named_tensor, "(", ")"))
        self.expect("->")
        outputs = dict(self.many(self.named_tensor, "(", ")"))
        return Signature(key, self.graphs[token.text], inputs, outputs)

    def named_tensor(self) -> tuple[str, Tensor]:
        name = self.name("the name of an input or output")
        self.expect(":")
        return name, self.tensor_ref()

    # -- tensors

    def declaration(self, token: _Token) -> None:
        if token.text in self.tensors:
            self.fail("a new tensor name", token, "number tensors of one name: %x~2")
        tensor = self.typed(self.ref_name(token.text, token))
        self.tensors[token.text] = tensor
        if self.accept("="):
            tensor.buffer = self.constant(tensor.dtype)

    def typed(self, name: str) -> Tensor:
        tensor = Tensor(name, *self.array_type())
        self.assignments({
            "signature": lambda: setattr(tensor, "signature", self.ints()),
            "variable": lambda: setattr(tensor, "is_variable", self.boolean()),
            "unranked": lambda: setattr(tensor, "has_rank", not self.boolean()),
            "quant": lambda: self.quant(tensor),
            "sparsity": lambda: setattr(tensor, "sparsity", self.sparsity()),
            "variants": lambda: setattr(tensor, "variant_types", self.variants()),
        })  # fmt: skip
        return tensor

    def array_type(self) -> tuple[DType, tuple[int, ...]]:
        token = self.take("word", "a type such as f32[1,4]")
        try:
            return DType.parse(token.text), self.ints()
        except KeyError as error:
            self.error(f"expected a type: {error.args[0]}", token)

    def ints(self) -> tuple[int, ...]:
        return tuple(self.many(self.integer, "[", "]"))

    def variants(self) -> tuple[Tensor, ...]:
        self.expect("[")
        found = []
        while self.accept("("):
            found.append(self.typed(""))
            self.expect(")")
        self.expect("]")
        return tuple(found)

    def quant(self, tensor: Tensor) -> None:
        readers: dict[str, Callable[[], Any]] = {
            "axis": self.integer, "custom": self.blob, "block": lambda: self.block(tensor),
        }  # fmt: skip
        for name, dtype in _QUANT_ARRAYS.items():
            readers[name] = partial(self.quant_array, dtype)
        found = dict(self.many(lambda: self.entry(readers), "{", "}"))
        tensor.quant = Quant(**found)

    def entry(self, readers: Mapping[str, Callable[[], T]]) -> tuple[str, T]:
        """key: value, for one of these keys"""
        token = self.take("word", f"one of {', '.join(readers)}")
        if token.text not in readers:
            self.fail(f"one of {', '.join(readers)}", token)
        self.expect(":")
        return token.text, readers[token.text]()

    def quant_array(self, dtype: DType) -> Array:
        raw = memoryview(self.elements(dtype))
        return self.decoded(raw, dtype, (raw.nbytes // dtype.numpy.itemsize,), self.token)

    def block(self, tensor: Tensor) -> None:
        """Scales may be tensors that are declared further down, so they are looked up later."""
        keys: dict[str, Callable[[], Any]] = {f.name: self.value for f in fields(Blockwise)}
        keys |= {"scales": self.later_ref, "zero_points": self.later_ref}
        found = dict(self.many(lambda: self.entry(keys), "{", "}"))

        def finish() -> None:
            for key in ("scales", "zero_points"):
                token = found.get(key)
                found[key] = self.resolve(token) if token is not None else None
            if tensor.quant is not None:
                tensor.quant = replace(tensor.quant, block=Blockwise(**found))

        self.at_end_of_graph.append(finish)

    def later_ref(self) -> _Token | None:
        return None if self.accept("none") else self.pending_ref()

    def sparsity(self) -> Sparsity:
        found = dict(self.many(lambda: self.entry({
            "traversal_order": self.value,
            "block_map": self.value,
            "dims": lambda: self.many(self.value, "[", "]"),
        }), "{", "}"))  # fmt: skip
        return Sparsity(**{**found, "dims": tuple(SparseDim(**d) for d in found["dims"])})

    def constant(self, dtype: DType) -> Buffer:
        if self.accept("same"):
            return self.shared()
        buffer = Buffer(memoryview(self.elements(dtype)))
        self.assignments({"external": lambda: setattr(buffer, "external", self.external())})
        return buffer

    def shared(self) -> Buffer:
        token = self.token
        graph = self.ref("@", "the graph of the tensor that has the bytes")
        tensor = self.defined.get(graph, {}).get(self.pending_ref().text)
        if tensor is None or tensor.buffer is None:
            self.fail("a constant that is declared above", token)
        return tensor.buffer

    def external(self) -> ExternalData:
        return ExternalData(*self.many(self.value, "[", "]"))

    def elements(self, dtype: DType) -> Blob:
        """[1, 2, 3] as the bytes the type stores; or bytes as they are; or an elided constant."""
        if self.token.kind in ("blob", "hash"):
            return self.blob()
        token, kind = self.token, dtype.numpy.kind
        if kind == "O" and dtype is not DType.STRING:
            self.fail('bytes such as x"00ff"')
        read = _ELEMENT_READERS.get(kind, _Parser.real)
        values = self.many(lambda: read(self), "[", "]")
        if kind == "c":
            values = [complex(*pair) for pair in zip(values[::2], values[1::2], strict=False)]
        if kind in "iu":
            self.check_range(values, dtype, token)
        array = np.empty(len(values), dtype.numpy)
        array[:] = values
        return bytes(encode(array, dtype))

    def check_range(self, values: list[int], dtype: DType, token: _Token) -> None:
        low, high = int_range(dtype)
        for value in values:
            if not low <= value <= high:
                self.fail(f"values of {dtype.short}, {low} to {high} (one is {value})", token)

    def real(self) -> float:
        return float(self.take("number", "a number").text)

    def text_or_bytes(self) -> str | Blob:
        return self.blob() if self.token.kind == "blob" else self.string()

    def blob(self) -> Blob:
        if self.token.kind == "blob":
            digits = self.next().text[2:-1]
            return bytes.fromhex(digits) if len(digits) % 2 == 0 else self.fail("pairs of digits")
        token = self.take("hash", 'bytes such as x"00ff", or the #hash of an elided constant')
        found = self.store(token).get(token.text[1:])
        if found is None:
            self.error(f"the weights hold no constant {token.text}", token,
                       "give the model that the text was printed from")  # fmt: skip
        return found

    def store(self, token: _Token) -> Mapping[str, Blob]:
        if self.weights is None:
            self.error(f"the constant {token.text} is elided", token,
                       "give from_text(text, weights=model) the model it was printed from, "
                       "or print with a larger inline_limit")  # fmt: skip
        if isinstance(self.weights, (Model, Graph)):
            self.weights = weights_of(self.weights)
        return self.weights

    # -- ops

    def op(self, outputs: list[Tensor]) -> Op:
        name = self.name("a tensor, an operator's name, or '}'")
        op = Op(name, self.many(self.operand, "(", ")"), outputs)
        if self.token.text == "{":
            op.attrs = self.mapping()
        self.assignments({
            "version": lambda: setattr(op, "version", self.integer()),
            "options": lambda: setattr(op, "options", self.string()),
            "intermediates": lambda: setattr(op, "intermediates", self.tensor_refs()),
            "mutating": lambda: setattr(op, "mutating", self.many(self.boolean, "[", "]")),
            "debug_index": lambda: setattr(op, "debug_index", self.integer()),
        })  # fmt: skip
        return op

    def tensor_refs(self) -> list[Tensor]:
        return self.many(self.tensor_ref, "[", "]")

    def operand(self) -> Tensor | None:
        return None if self.accept("none") else self.tensor_ref()

    def value(self) -> Any:
        kind, text = self.token.kind, self.token.text
        if kind == "word" and text in _WORD_VALUES:
            return _WORD_VALUES[self.next().text]
        read = _VALUE_READERS.get(kind) or _VALUE_READERS.get(text)
        return read(self) if read else self.fail("a value")

    def number(self) -> int | float:
        text = self.next().text
        return float(text) if re.search(r"[.einEIN]", text) else int(text)

    def mapping(self) -> dict[str, Any]:
        return dict(self.many(self.item, "{", "}"))

    def item(self) -> tuple[str, Any]:
        name = self.name("a name")
        self.expect(":")
        return name, self.value()

    def array(self) -> Array:
        token = self.token
        dtype, shape = self.array_type()
        return self.decoded(memoryview(self.elements(dtype)), dtype, shape, token)

    def decoded(self, raw: memoryview, dtype: DType, shape: Shape, token: _Token) -> Array:
        """An array of its own, which can be written to."""
        try:
            return np.array(decode(raw, dtype, shape))
        except (ModelError, ValueError):
            self.fail(f"as many values as {dtype.short}{list(shape)} has", token)


_ELEMENT_READERS: dict[str, Callable[[_Parser], Any]] = {
    "i": _Parser.integer, "u": _Parser.integer, "b": _Parser.boolean, "O": _Parser.text_or_bytes,
}  # fmt: skip
_WORD_VALUES = {"none": None, "true": True, "false": False}
_VALUE_READERS: dict[str, Callable[[_Parser], Any]] = {
    "number": _Parser.number,
    "string": _Parser.string,
    "blob": _Parser.blob,
    "hash": _Parser.blob,
    "ref": _Parser.graph_ref,
    "word": _Parser.array,
    "[": lambda p: p.many(p.value, "[", "]"),
    "(": lambda p: tuple(p.many(p.value, "(", ")")),
    "{": _Parser.mapping,
}
