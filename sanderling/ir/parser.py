"""The text form of a model (text.py), read back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from ..errors import ModelError, TextError
from .graph import Buffer, ExternalData, Graph, Model, Op, Signature, Tensor, link
from .packing import decode, encode
from .types import Array, Blockwise, DType, Quant, Shape, SparseDim, Sparsity

T = TypeVar("T")
Blob = bytes | memoryview

BARE = r"[A-Za-z0-9_](?:[A-Za-z0-9_./\-]|[:;](?=[A-Za-z0-9_]))*"
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_NUMBER = r"-?(?:inf\b|nan\b|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_TOKEN = re.compile(
    rf"""(?P<skip>(?:\s|//[^\n]*)+)
    |(?P<blob>x"[0-9a-f]*")
    |(?P<string>{_STRING})
    |(?P<ref>[%@](?:{_STRING}|{BARE})(?:~\d+)?)
    |(?P<hash>\#[0-9a-f]{{16}})
    |(?P<number>{_NUMBER})
    |(?P<word>[A-Za-z_][\w.]*)
    |(?P<mark>->|[=:,(){{}}\[\]])""",
    re.VERBOSE | re.ASCII,
)
QUANT_ARRAYS = {
    "scale": DType.FLOAT32,
    "zero_point": DType.INT64,
    "min": DType.FLOAT32,
    "max": DType.FLOAT32,
}


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


class Parser:
    """Recursive descent with one token of lookahead."""

    def __init__(self, text: str, weights: Callable[[], Mapping[str, Blob]] | None = None) -> None:
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
            self.assignments(
                {
                    "version": lambda: setattr(model, "version", self.integer()),
                    "description": lambda: setattr(model, "description", self.string()),
                    "weights_outside": lambda: setattr(model, "weights_outside", self.boolean()),
                    "unknown": lambda: setattr(model, "unknown", self.many(self.string, "[", "]")),
                }
            )
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
        self.assignments(
            {
                "signature": lambda: setattr(tensor, "signature", self.ints()),
                "variable": lambda: setattr(tensor, "is_variable", self.boolean()),
                "unranked": lambda: setattr(tensor, "has_rank", not self.boolean()),
                "quant": lambda: self.quant(tensor),
                "sparsity": lambda: setattr(tensor, "sparsity", self.sparsity()),
                "variants": lambda: setattr(tensor, "variant_types", self.variants()),
            }
        )
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
            "axis": self.integer,
            "custom": self.blob,
            "block": lambda: self.block(tensor),
        }
        for name, dtype in QUANT_ARRAYS.items():
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
        found = dict(
            self.many(
                lambda: self.entry(
                    {
                        "traversal_order": self.value,
                        "block_map": self.value,
                        "dims": lambda: self.many(self.value, "[", "]"),
                    }
                ),
                "{",
                "}",
            )
        )
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
        read = _ELEMENT_READERS.get(kind, Parser.real)
        values = self.many(lambda: read(self), "[", "]")
        if kind == "c":
            values = [complex(*pair) for pair in zip(values[::2], values[1::2], strict=False)]
        if kind in "iu":
            self.check_range(values, dtype, token)
        array = np.empty(len(values), dtype.numpy)
        array[:] = values
        return bytes(encode(array, dtype))

    def check_range(self, values: list[int], dtype: DType, token: _Token) -> None:
        low, high = dtype.bounds
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
        if self.weights is None:
            self.error(
                f"the constant {token.text} is elided",
                token,
                "give from_text(text, weights=model) the model it was printed from, "
                "or print with a larger inline_limit",
            )
        found = self.store.get(token.text[1:])
        if found is None:
            self.error(
                f"the weights hold no constant {token.text}",
                token,
                "give the model that the text was printed from",
            )
        return found

    @cached_property
    def store(self) -> Mapping[str, Blob]:
        """Elided constants by hash, asked for when the first one comes."""
        return {} if self.weights is None else self.weights()

    # -- ops

    def op(self, outputs: list[Tensor]) -> Op:
        name = self.name("a tensor, an operator's name, or '}'")
        op = Op(name, self.many(self.operand, "(", ")"), outputs)
        if self.token.text == "{":
            op.attrs = self.mapping()
        self.assignments(
            {
                "version": lambda: setattr(op, "version", self.integer()),
                "options": lambda: setattr(op, "options", self.string()),
                "intermediates": lambda: setattr(op, "intermediates", self.tensor_refs()),
                "mutating": lambda: setattr(op, "mutating", self.many(self.boolean, "[", "]")),
                "debug_index": lambda: setattr(op, "debug_index", self.integer()),
            }
        )
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


_ELEMENT_READERS: dict[str, Callable[[Parser], Any]] = {
    "i": Parser.integer,
    "u": Parser.integer,
    "b": Parser.boolean,
    "O": Parser.text_or_bytes,
}
_WORD_VALUES = {"none": None, "true": True, "false": False}
_VALUE_READERS: dict[str, Callable[[Parser], Any]] = {
    "number": Parser.number,
    "string": Parser.string,
    "blob": Parser.blob,
    "hash": Parser.blob,
    "ref": Parser.graph_ref,
    "word": Parser.array,
    "[": lambda p: p.many(p.value, "[", "]"),
    "(": lambda p: tuple(p.many(p.value, "(", ")")),
    "{": Parser.mapping,
}
