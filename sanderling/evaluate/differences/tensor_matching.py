"""Which tensors of two models of one network belong together, across fusion, quantisation and new
names.

Each graph is read as a list of values: an op is a value of its kind; a fused activation is a value
of its own, so that CONV_2D with RELU inside meets CONV_2D and RELU; QUANTIZE and DEQUANTIZE make no
new value, only another form of it; a border of zeros before a product and a bias or a normalisation
after it belong to the product. Values of one kind and shape are then paired where their names,
their weights, the values that they read and those that read them agree best.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...ir import Array, Graph, Op, Tensor
from ...runtime.inputs import dequantize_array, is_quantized


class Pair(NamedTuple):
    """Tensors that hold the same thing; how: what told so."""

    a: Tensor
    b: Tensor
    how: str


# Another form of the same value.
FORMS = {"QUANTIZE", "DEQUANTIZE", "FAKE_QUANT"}
PRODUCTS = {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "CONV_3D"}
AFFINE = {"ADD", "SUB", "MUL", "DIV"}
ACTIVATIONS = {"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH", "SIGN_BIT"}
# Operators that converters write for one another.
_FAMILIES = ("RESHAPE SQUEEZE EXPAND_DIMS", "MEAN AVERAGE_POOL_2D", "PAD PADV2",
             "SELECT SELECT_V2", "SPLIT SPLIT_V", "FULLY_CONNECTED BATCH_MATMUL",
             "SLICE STRIDED_SLICE")  # fmt: skip
FAMILY = {name: names.split()[0] for names in _FAMILIES for name in names.split()}
# How much each sign tells, and how much it takes to be sure. Found by trying the pairs of models in
# the tests and real float/int8 twins: names and weights decide alone, neighbours almost.
NAME, WEIGHTS, NEIGHBOUR, PLACE = 3.0, 3.0, 2.0, 0.5
ENOUGH = 1.2
ALIKE = 0.8  # cosine of weights that are the same but for quantisation
SAMPLED = 4096  # values of a weight that are looked at


@dataclass(eq=False)
class GraphValue:
    """What one or more tensors of a graph hold."""

    kind: str
    op: Op | None
    place: float  # 0 .. 1 along the run
    tensor: Tensor | None  # None where it is hidden by a fused activation
    shape: tuple[int, ...]
    sources: list[GraphValue] = field(default_factory=list)
    readers: list[GraphValue] = field(default_factory=list)
    forms: list[Tensor] = field(default_factory=list)  # the same, quantised or dequantised
    inner: list[Tensor] = field(default_factory=list)  # on the way: before the bias, the scale
    padded: list[Tensor] = field(default_factory=list)  # what it reads, with a border
    activated: GraphValue | None = None

    @cached_property
    def names(self) -> frozenset[str]:
        tensors = [self.tensor, *self.forms] if self.tensor else self.forms
        named = tensors or (self.op.outputs if self.op else [])
        return frozenset(p for t in named for p in name_pieces(t.name))

    @cached_property
    def weights(self) -> list[Array]:
        """Its larger constants as reals, thinned out."""
        constants = [t for t in (self.op.inputs if self.op else ()) if t and t.is_constant]
        return [_sampled(t) for t in constants if t.dtype.is_fixed_size and len(t.shape) > 1]


# What converters add to a name.
_DRESS = re.compile(
    r"(:\d+|_int8|_uint8|_int16|_float|_quantized|_requantized|_dequantize"
    r"|/act_quant|\d?)$"
)


def name_pieces(name: str) -> set[str]:
    """The names that a name was fused of, without what converters append."""
    pieces = (p.strip() for p in name.split(";"))
    bare = {_DRESS.sub("", p) or p for p in pieces if p}
    return {p for p in bare if p not in ("Identity", "StatefulPartitionedCall")}


def _sampled(tensor: Tensor) -> Array:
    data = tensor.values
    step = max(1, data.size // SAMPLED)
    reals = dequantize_array(data, tensor) if is_quantized(tensor) else data
    return np.asarray(reals, np.float64).reshape(-1)[::step]


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


class Reading:
    """A graph as values, in the order of its run."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: list[GraphValue] = []
        self.of: dict[Tensor, GraphValue] = {}
        self.borders: set[Tensor] = set()
        for number, tensor in enumerate(graph.inputs):
            self._add(
                GraphValue(f"input {number}", None, 0.0, tensor, _squeezed(tensor.shape)), tensor
            )
        for place, op in enumerate(graph.ops):
            self._read(op, (place + 1) / max(len(graph.ops), 1))

    def _add(self, value: GraphValue, tensor: Tensor | None) -> GraphValue:
        self.values.append(value)
        for source in value.sources:
            source.readers.append(value)
        if tensor is not None:
            self.of[tensor] = value
        return value

    def _read(self, op: Op, place: float) -> None:
        known = [self.of[t] for t in op.inputs if t is not None and t in self.of]
        if not known:
            return  # made of constants alone
        if op.name in FORMS and op.outputs:
            known[0].forms.append(op.outputs[0])
            self.of[op.outputs[0]] = known[0]
        elif op.name == "PAD" and _is_border(op):
            self.borders.add(op.outputs[0])
            self.of[op.outputs[0]] = known[0]
        elif self._is_tail(op, known):
            self._extend(known[0], op, place)
        else:
            for number, tensor in enumerate(op.outputs):
                self._read_output(op, number, tensor, known, place)

    def _read_output(
        self, op: Op, number: int, tensor: Tensor, known: list[GraphValue], place: float
    ) -> None:
        shape = _squeezed(tensor.shape)
        fused = op.attrs.get("fused_activation_function", "NONE")
        if op.name in ACTIVATIONS:
            made = self._add(GraphValue(f"act {op.name}", op, place, tensor, shape, known), tensor)
            known[0].activated = made
            return
        name = FAMILY.get(op.name, op.name) + (f" {number}" if number else "")
        hidden = fused not in ("NONE", "", None)
        core = self._add(
            GraphValue(name, op, place, None if hidden else tensor, shape, known), tensor
        )
        core.padded = [t for t in op.inputs if t in self.borders]
        if hidden:
            core.activated = self._add(
                GraphValue(f"act {fused}", op, place, tensor, shape, [core]), tensor
            )

    def _is_tail(self, op: Op, known: list[GraphValue]) -> bool:
        """A constant added to or multiplied with a product that nobody else reads."""
        value, constant = known[0], next((t for t in op.inputs if t and t.is_constant), None)
        before = value.tensor
        if op.name not in AFFINE or constant is None or value.kind not in PRODUCTS:
            return False
        if before is None or len(before.users) != 1 or before in self.graph.outputs:
            return False
        by_channel = constant.shape[-1:] in ((), (1,), op.outputs[0].shape[-1:])
        return by_channel and len(_squeezed(constant.shape)) <= 1

    def _extend(self, value: GraphValue, op: Op, place: float) -> None:
        assert value.tensor is not None, "_is_tail has looked"
        value.inner.append(value.tensor)
        fused = op.attrs.get("fused_activation_function", "NONE")
        out = op.outputs[0]
        self.of[out] = value
        if fused in ("NONE", "", None):
            value.tensor = out
        else:
            value.inner, value.tensor = [], None
            after = GraphValue(f"act {fused}", op, place, out, _squeezed(out.shape), [value])
            value.activated = self._add(after, out)


def _is_border(op: Op) -> bool:
    """A padding that a convolution could do itself, and that one alone reads."""
    users = op.outputs[0].users
    return len(users) == 1 and users[0].name in ("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_3D")


def match(
    a: Graph,
    b: Graph,
    inputs: Iterable[tuple[Tensor, Tensor]],
    outputs: Iterable[tuple[Tensor, Tensor]],
) -> list[Pair]:
    """Pairs in the order of b's run; inputs and outputs are those known to belong together."""
    if _same_build(a, b):
        ours = (t for op in a.ops for t in op.outputs)
        theirs = (t for op in b.ops for t in op.outputs)
        return [Pair(x, y, "place") for x, y in zip(ours, theirs, strict=True)]
    search = _Search(Reading(a), Reading(b))
    search.seed(inputs, outputs)
    while search.sweep(search.b.values) + search.sweep(search.b.values[::-1]):
        pass
    order = {t: i for i, op in enumerate(b.ops) for t in op.outputs}
    found = {pair.b: pair for pair in search.pairs() if pair.b in order}
    return sorted(found.values(), key=lambda pair: order[pair.b])


def _same_build(a: Graph, b: Graph) -> bool:
    """Return whether the graphs are the same op for op: copies whose values may differ."""
    if len(a.ops) != len(b.ops):
        return False
    return all(
        x.name == y.name
        and len(x.inputs) == len(y.inputs)
        and [(t.name, t.shape) for t in x.outputs] == [(t.name, t.shape) for t in y.outputs]
        and x.attrs.get("fused_activation_function") == y.attrs.get("fused_activation_function")
        for x, y in zip(a.ops, b.ops, strict=True)
    )


class _Search:
    def __init__(self, a: Reading, b: Reading) -> None:
        self.a, self.b = a, b
        self.partner: dict[GraphValue, GraphValue] = {}  # both ways
        self.how: dict[GraphValue, str] = {}  # by b's value
        self.by_kind: dict[tuple[str, tuple[int, ...]], list[GraphValue]] = defaultdict(list)
        for value in a.values:
            self.by_kind[_kind(value), value.shape].append(value)
        self._cosines: dict[tuple[GraphValue, GraphValue], float] = {}

    def seed(
        self, inputs: Iterable[tuple[Tensor, Tensor]], outputs: Iterable[tuple[Tensor, Tensor]]
    ) -> None:
        for pairs, how in ((inputs, "input"), (outputs, "output")):
            for x, y in pairs:
                ours, theirs = self.a.of.get(x), self.b.of.get(y)
                if ours and theirs and (how == "input" or _kind(ours) == _kind(theirs)):
                    self._join(ours, theirs, how)

    def _join(self, ours: GraphValue, theirs: GraphValue, how: str) -> None:
        if ours not in self.partner and theirs not in self.partner:
            self.partner[ours], self.partner[theirs] = theirs, ours
            self.how[theirs] = how

    def sweep(self, values: Iterable[GraphValue]) -> int:
        """Pair what can be paired now; the number of new pairs."""
        count = 0
        for theirs in values:
            if theirs in self.partner:
                continue
            free = [v for v in self.by_kind[_kind(theirs), theirs.shape] if v not in self.partner]
            scored = [(self._score(v, theirs), -i, v) for i, v in enumerate(free)]
            if scored and max(scored)[0] >= ENOUGH:  # of equals the first in the run
                ours = max(scored)[2]
                self._join(ours, theirs, self._reason(ours, theirs))
                count += 1
        return count

    def _score(self, ours: GraphValue, theirs: GraphValue) -> float:
        return (
            NAME * _overlap(ours.names, theirs.names)
            + WEIGHTS * self._weights(ours, theirs)
            + NEIGHBOUR * self._around(ours.sources, theirs.sources)
            + NEIGHBOUR * self._around(ours.readers, theirs.readers) / 2
            + PLACE * (1 - abs(ours.place - theirs.place))
            - (ours.kind != theirs.kind)
        )

    def _reason(self, ours: GraphValue, theirs: GraphValue) -> str:
        if _overlap(ours.names, theirs.names) >= 0.5:
            return "name"
        return "weights" if self._weights(ours, theirs) > ALIKE else "structure"

    def _weights(self, ours: GraphValue, theirs: GraphValue) -> float:
        """Return the cosine of the two values' weights; -1 where their sizes differ."""
        key = ours, theirs
        if key not in self._cosines:
            self._cosines[key] = _likeness(ours.weights, theirs.weights)
        return self._cosines[key]

    def _around(self, ours: Sequence[GraphValue], theirs: Sequence[GraphValue]) -> float:
        """1 where the neighbours are partners, -1 where they are somebody else's."""
        votes = [self._vote(x, theirs) for x in ours if self._known(x)]
        return sum(votes) / max(len(ours), len(theirs)) if votes else 0.0

    def _known(self, value: GraphValue) -> bool:
        return value in self.partner or any(s in self.partner for s in value.sources)

    def _vote(self, ours: GraphValue, theirs: Sequence[GraphValue]) -> float:
        if any(self._same(ours, y) for y in theirs):
            return 1.0
        # One op more on our side: what it reads may be what they read.
        if ours not in self.partner and any(self._same(s, y) for s in ours.sources for y in theirs):
            return 0.5
        return -0.5 if all(y in self.partner for y in theirs) else 0.0

    def _same(self, ours: GraphValue, theirs: GraphValue) -> bool:
        """Partners; or one is the other's activation, which quantisation may have taken in."""
        if self.partner.get(ours) is theirs:
            return True
        return any(
            x.kind.startswith("act ")
            and self.partner.get(x.sources[0]) is y
            and y.activated is None
            for x, y in ((ours, theirs), (theirs, ours))
        )

    def pairs(self) -> Iterator[Pair]:
        for theirs in self.b.values:
            ours = self.partner.get(theirs)
            if ours is None:
                continue
            how = self.how[theirs]
            yield from self._visible(ours, theirs, how)
            if ours.tensor:
                yield from self._forms(ours, theirs)
            for x, y in ((ours.inner, theirs.inner), (ours.padded, theirs.padded)):
                if [t.shape for t in x] == [t.shape for t in y]:
                    yield from (Pair(*both, how) for both in zip(x, y, strict=True))

    def _visible(self, ours: GraphValue, theirs: GraphValue, how: str) -> Iterator[Pair]:
        """Their tensors; where quantisation has taken our activation in, it is the activated one
        that theirs holds."""
        if theirs.tensor is None:
            return
        after = ours.activated
        alone = after is not None and theirs.activated is None and after not in self.partner
        if alone and _starts_at_0(theirs.tensor) and after is not None and after.tensor:
            yield Pair(after.tensor, theirs.tensor, "range")
        elif ours.tensor:
            yield Pair(ours.tensor, theirs.tensor, how)

    def _forms(self, ours: GraphValue, theirs: GraphValue) -> Iterator[Pair]:
        """Each form of theirs beside the form of ours that is most like it."""
        assert ours.tensor is not None, "who has forms has a tensor"
        for form in theirs.forms:
            like = [f for f in ours.forms if f.dtype is form.dtype]
            yield Pair(like[0] if like else ours.tensor, form, "form")


def _kind(value: GraphValue) -> str:
    """Activations differ from model to model (RELU6 and RELU): one kind of value."""
    return "act" if value.kind.startswith("act ") else value.kind


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / min(len(a), len(b)) if a and b else 0.0


def _likeness(a: Sequence[Array], b: Sequence[Array]) -> float:
    if not a or not b:
        return 0.0
    if [x.size for x in a] != [x.size for x in b]:
        return -1.0
    # Unlike weights do not tell against it: a layer may be damaged, or trained anew.
    return max(0.0, min(_cosine(x, y) for x, y in zip(a, b, strict=True)))


def _cosine(a: Array, b: Array) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.dot(a, b)) / size if size else 0.0


def _starts_at_0(tensor: Tensor) -> bool:
    """Quantised to a range without negative numbers: a ReLU is in it."""
    quant = tensor.quant
    return (
        is_quantized(tensor)
        and quant is not None
        and bool((quant.zero_point == tensor.dtype.bounds[0]).all())
    )
