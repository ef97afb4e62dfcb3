"""Transposes wander down the graph until they cancel.

A model that was converted from NCHW has a TRANSPOSE before and after every convolution. One sweep
in order of execution keeps a transposed tensor as (source, order) and lets ops that do not care
about the order of axes work on the source: `SINKS` says how each of them is written for another
order. A TRANSPOSE is made where a tensor is needed as it was. The result is taken if it moves fewer
bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..ir import Array, Graph, Op, Tensor, link
from ..ir.rewrite import CONST, Match, P, Rule, Var
from ..ops.base import attr
from .common import (
    Fired,
    activation,
    constant,
    is_per_tensor,
    is_static,
    reshape,
    same_quant,
    transpose,
    twin,
    with_attrs,
)
from .simplify import moves_only_ones, permutation

Perm = tuple[int, ...]


class Lazy(NamedTuple):
    """A tensor that is transpose(source, perm) and has not been computed."""

    source: Tensor
    perm: Perm


class Moved(NamedTuple):
    """An op on sources: operands (constants re-ordered), attributes, and the order in which each
    result must be read to get the original one."""

    inputs: list[Tensor | None]
    perms: list[Perm]
    attrs: dict[str, object] = {}  # noqa: RUF012


def inverse(perm: Perm) -> Perm:
    return tuple(int(i) for i in np.argsort(perm))


def _source_shape(shape: Sequence[int], perm: Perm) -> tuple[int, ...]:
    """The shape of the source of a tensor of this shape."""
    return tuple(shape[i] for i in inverse(perm))


def _without(perm: Perm, axes: Iterable[int]) -> Perm:
    """The order that is left when these axes of the transposed tensor are taken out."""
    gone = set(axes)
    left = [p for i, p in enumerate(perm) if i not in gone]
    rank = sorted(left)
    return tuple(rank.index(p) for p in left)


# -- how ops are written for another order ------------------------------------------------------


@dataclass
class Operands:
    """What a sink sees: the op, the order its transposed operands share, and their sources."""

    graph: Graph
    op: Op
    perm: Perm
    sources: list[Tensor | None]  # None where an operand is not transposed
    inserted: list[Op] = field(default_factory=list)

    def remake(self, place: int, make: Callable[[Array], Array]) -> Tensor | None:
        """A constant operand with other values; None if it is not constant."""
        old = self.op.input(place)
        data = constant(old)
        if old is None or data is None:
            return None
        return self.graph.constant(f"{old.name}/reordered", make(data), old.dtype, quant=old.quant)

    def axes(self, data: Array) -> list[int]:
        """Axes of the transposed tensor, counted from its first."""
        return [int(a) % len(self.perm) for a in np.reshape(data, -1)]

    def to_source(self, data: Array) -> Array:
        """Axes of the transposed tensor as those of the source."""
        mapped = [self.perm[a] for a in self.axes(data)]
        return np.array(mapped, data.dtype).reshape(data.shape)

    def by_row(self, data: Array) -> Array:
        """One row an axis, in the order of the source's axes."""
        return np.ascontiguousarray(data[list(inverse(self.perm))])


Sink = Callable[[Operands], "Moved | None"]


def _elementwise(o: Operands) -> Moved | None:
    """Operands broadcast: constants take the source's order, and what has one element any."""
    rank = len(o.op.outputs[0].shape)
    if len(o.perm) != rank:
        return None
    inputs: list[Tensor | None] = []
    for place, (tensor, source) in enumerate(zip(o.op.inputs, o.sources, strict=True)):
        found = source if source is not None else _aligned(o, place, tensor)
        if found is None:
            return None
        inputs.append(found)
    return Moved(inputs, [o.perm])


def _aligned(o: Operands, place: int, tensor: Tensor | None) -> Tensor | None:
    """An operand that was not transposed, in the source's order, if that is free."""
    if tensor is None or not is_per_tensor(tensor):
        return None
    rank = len(o.perm)
    if int(np.prod(tensor.shape)) == 1 and len(tensor.shape) <= rank:
        return tensor
    if tensor.is_constant:

        def ordered(data: Array) -> Array:
            full = data.reshape((1,) * (rank - data.ndim) + data.shape)
            return np.ascontiguousarray(full.transpose(inverse(o.perm)))

        return o.remake(place, ordered)
    back = inverse(o.perm)
    if len(tensor.shape) != rank or not moves_only_ones(tensor.shape, back):
        return None
    view = twin(o.graph, tensor, "reordered", [tensor.shape[p] for p in back])
    o.inserted.append(reshape(o.graph, tensor, view))
    return view


def _concatenate(o: Operands) -> Moved | None:
    moved = _elementwise(o)
    if moved is None or activation(o.op) != "NONE":
        return None
    full = len(o.perm)
    # Joined tensors do not broadcast: one element or a lower rank must not stay as it is.
    if any(t is None or len(t.shape) != full for t in moved.inputs):
        return None
    axis = o.perm[int(attr(o.op, "axis")) % full]
    return Moved(moved.inputs, [o.perm], {"axis": axis})


def _last_axis(o: Operands) -> Moved | None:
    """Sink an op that works along the last axis, which must stay there."""
    last = len(o.perm) - 1
    return Moved([o.sources[0]], [o.perm]) if o.perm and o.perm[last] == last else None


def _along(place: int, data: int = 0) -> Sink:
    """Sink an op that keeps its axes and names some of them in an operand."""

    def sink(o: Operands) -> Moved | None:
        axes = o.remake(place, o.to_source)
        if axes is None or o.sources[data] is None:
            return None
        inputs = list(o.op.inputs)
        inputs[data], inputs[place] = o.sources[data], axes
        return Moved(inputs, [o.perm] * len(o.op.outputs))

    return sink


def _reduce(o: Operands) -> Moved | None:
    axes = o.remake(1, o.to_source)
    if axes is None:
        return None
    gone = [] if attr(o.op, "keep_dims") else o.axes(o.op.operand(1).values)
    return Moved([o.sources[0], axes], [_without(o.perm, gone)])


def _arg(o: Operands) -> Moved | None:
    axes = o.remake(1, o.to_source)
    if axes is None:
        return None
    return Moved([o.sources[0], axes], [_without(o.perm, o.axes(o.op.operand(1).values))])


def _unpack(o: Operands) -> Moved | None:
    axis = int(attr(o.op, "axis")) % len(o.perm)
    left = _without(o.perm, [axis])
    return Moved([o.sources[0]], [left] * len(o.op.outputs), {"axis": o.perm[axis]})


def _rows(*places: int) -> Sink:
    """Sink an op whose operands have one row for each axis."""

    def sink(o: Operands) -> Moved | None:
        inputs = list(o.op.inputs)
        inputs[0] = o.sources[0]
        for place in places:
            data = constant(o.op.input(place))
            if data is None or len(data) != len(o.perm):
                return None
            inputs[place] = o.remake(place, o.by_row)
        return Moved(inputs, [o.perm])

    return sink


_MASKS = ("begin_mask", "end_mask")


def _strided_slice(o: Operands) -> Moved | None:
    moved = _rows(1, 2, 3)(o)
    if moved is None or any(
        attr(o.op, m) for m in ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    ):
        return None
    masks = {
        m: sum(1 << p for i, p in enumerate(o.perm) if int(attr(o.op, m)) >> i & 1) for m in _MASKS
    }
    return moved._replace(attrs=dict(masks))


def _reshape(o: Operands) -> Moved | None:
    x, out = o.op.operand(0), o.op.outputs[0]
    perm = reshaped_order(x.shape, out.shape, o.perm)
    if perm is None:
        return None
    shape = _source_shape(out.shape, perm)
    operand = o.graph.constant(f"{out.name}/shape", np.array(shape, np.int32))
    return Moved([o.sources[0], operand], [perm], {"new_shape": list(shape)})


def reshaped_order(old: Sequence[int], new: Sequence[int], perm: Perm) -> Perm | None:
    """The order after a reshape that splits and joins axes which lie together in the source too.

    Sizes of one do not count; they stay behind the axis that they follow.
    """
    groups = _groups(
        [i for i, n in enumerate(old) if n != 1], old, [i for i, n in enumerate(new) if n != 1], new
    )
    if groups is None:
        return None
    wide = sorted(perm[i] for group, _ in groups for i in group)
    order: list[tuple[int, list[int]]] = []
    for group, made in groups:
        places = [wide.index(perm[i]) for i in group]
        if places != list(range(places[0], places[0] + len(places))):
            return None
        order.append((places[0], made))
    source_axes = [i for _, made in sorted(order) for i in made]
    for i, n in enumerate(new):
        if n == 1:
            source_axes.insert(source_axes.index(i - 1) + 1 if i else 0, i)
    return inverse(tuple(source_axes))


def _groups(
    left: list[int], old: Sequence[int], right: list[int], new: Sequence[int]
) -> list[tuple[list[int], list[int]]] | None:
    """The shortest runs of axes with the same number of elements on both sides."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        a, b = [left[i]], [right[j]]
        m, n = old[left[i]], new[right[j]]
        i, j = i + 1, j + 1
        while m != n:
            if m < n and i < len(left):
                a.append(left[i])
                m, i = m * old[left[i]], i + 1
            elif n < m and j < len(right):
                b.append(right[j])
                n, j = n * new[right[j]], j + 1
            else:
                return None
        groups.append((a, b))
    return groups if i == len(left) and j == len(right) else None


UNARY = (
    "ABS", "CAST", "CEIL", "COS", "DEQUANTIZE", "ELU", "EXP", "FLOOR", "GELU", "HARD_SWISH",
    "LEAKY_RELU", "LOG", "LOGICAL_NOT", "LOGISTIC", "NEG", "QUANTIZE", "RELU", "RELU6",
    "RELU_0_TO_1", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIGN", "SIN", "SQRT", "SQUARE", "TANH",
)  # fmt: skip
BROADCASTING = (
    "ADD", "ADD_N", "ATAN2", "DIV", "EQUAL", "FLOOR_DIV", "FLOOR_MOD", "GREATER", "GREATER_EQUAL",
    "LESS", "LESS_EQUAL", "LOGICAL_AND", "LOGICAL_OR", "MAXIMUM", "MINIMUM", "MUL", "NOT_EQUAL",
    "POW", "PRELU", "SELECT_V2", "SQUARED_DIFFERENCE", "SUB",
)  # fmt: skip
REDUCTIONS = (
    "MEAN", "REDUCE_ALL", "REDUCE_ANY", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "SUM",
)  # fmt: skip
SINKS: dict[str, Sink] = {
    **dict.fromkeys((*UNARY, *BROADCASTING), _elementwise),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), _arg),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD", "TILE"), _rows(1)),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _reshape),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION"), _last_axis),
    "CONCATENATION": _concatenate,
    "CUMSUM": _along(1),
    "REVERSE_V2": _along(1),
    "SLICE": _rows(1, 2),
    "SPLIT": _along(0, data=1),
    "SPLIT_V": _along(2),
    "STRIDED_SLICE": _strided_slice,
    "UNPACK": _unpack,
}

# -- the sweep ----------------------------------------------------------------------------------


class _Sweep:
    """Writes the graph's ops anew; nothing of the graph is changed before `commit`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.lazy: dict[Tensor, Lazy] = {}
        self.same: dict[Tensor, Tensor] = {}  # tensors that turned out to be another one
        self.fired: Fired = Counter()

    def run(self) -> None:
        for op in self.graph.ops:
            if not self.defer(op) and not self.sink(op):
                self.keep(op)
        for tensor in self.graph.outputs:
            self.compute(tensor)

    def defer(self, op: Op) -> bool:
        """Remember a TRANSPOSE instead of computing it."""
        x, out = op.input(0), op.outputs[0] if op.outputs else None
        if op.name != "TRANSPOSE" or x is None or out is None or not is_static(x, out):
            return False
        perm = permutation(op)
        if perm is None or x.is_constant or not is_per_tensor(x) or not same_quant(x, out):
            return False
        source, first = self.lazy.get(x) or Lazy(self.same.get(x, x), tuple(range(len(perm))))
        self.remember(out, Lazy(source, tuple(first[p] for p in perm)))
        return True

    def remember(self, tensor: Tensor, lazy: Lazy) -> None:
        if lazy.perm == tuple(range(len(lazy.perm))):
            self.same[tensor] = lazy.source
        else:
            self.lazy[tensor] = lazy

    def sink(self, op: Op) -> bool:
        """Do the op on the sources of its operands, if they are transposed alike."""
        perms = {self.lazy[t].perm for t in op.inputs if t is not None and t in self.lazy}
        if len(perms) != 1 or op.name not in SINKS or not is_static(*op.inputs, *op.outputs):
            return False
        if not all(map(is_per_tensor, op.outputs)):
            return False
        own = op.copy([t and self.same.get(t, t) for t in op.inputs], op.outputs)
        sources = [self.lazy[t].source if t in self.lazy else None for t in op.inputs]
        operands = Operands(self.graph, own, perms.pop(), sources)
        moved = SINKS[op.name](operands)
        if moved is None:
            return False
        self.ops += operands.inserted
        self.write(op, moved)
        self.fired[f"transpose past {op.name}"] += 1
        return True

    def write(self, op: Op, moved: Moved) -> None:
        results = []
        for tensor, perm in zip(op.outputs, moved.perms, strict=True):
            plain = perm == tuple(range(len(perm)))
            source = (
                tensor
                if plain
                else twin(self.graph, tensor, "untransposed", _source_shape(tensor.shape, perm))
            )
            if not plain:
                self.lazy[tensor] = Lazy(source, perm)
            results.append(source)
        # A view is written as RESHAPE: the axes that SQUEEZE and EXPAND_DIMS name have moved.
        name = "RESHAPE" if SINKS[op.name] is _reshape else op.name
        made = with_attrs(op, moved.inputs, results, **moved.attrs)
        self.ops.append(made if name == op.name else Op(name, made.inputs, results, moved.attrs))

    def keep(self, op: Op) -> None:
        for tensor in op.inputs:
            if tensor is not None:
                self.compute(tensor)
        inputs = [t and self.same.get(t, t) for t in op.inputs]
        changed = any(a is not b for a, b in zip(inputs, op.inputs, strict=True))
        self.ops.append(op.copy(inputs, op.outputs, op.intermediates) if changed else op)

    def compute(self, tensor: Tensor) -> None:
        """Make a tensor that was put off; a graph output that is another tensor gets a copy."""
        lazy = self.lazy.pop(tensor, None)
        if lazy is not None:
            ones = moves_only_ones(lazy.source.shape, lazy.perm)
            self.ops.append(
                reshape(self.graph, lazy.source, tensor)
                if ones
                else transpose(self.graph, lazy.source, lazy.perm, tensor)
            )
        elif tensor in self.same and any(tensor is t for t in self.graph.outputs):
            self.ops.append(reshape(self.graph, self.same.pop(tensor), tensor))

    def commit(self) -> None:
        for tensor in self.graph.tensors:
            tensor.users, tensor.producer = [], None
        self.graph.ops = self.ops
        for op in self.ops:
            self.graph.enlist(*(t for t in (*op.inputs, *op.outputs) if t is not None))
            link(op)


def bytes_moved(ops: Iterable[Op]) -> int:
    """Bytes that transposes read and write."""
    return sum(op.outputs[0].nbytes for op in ops if op.name == "TRANSPOSE")


def sink_transposes(graph: Graph) -> Fired:
    """Make one sweep, and take it if fewer bytes are transposed afterwards."""
    before = sum(op.name == "TRANSPOSE" for op in graph.ops)
    if not before:
        return Counter()
    sweep = _Sweep(graph)
    known = list(graph.tensors)
    sweep.run()
    if bytes_moved(sweep.ops) >= bytes_moved(graph.ops):
        graph.tensors = known
        return Counter()
    sweep.commit()
    sweep.fired["transpose gone"] = before - sum(op.name == "TRANSPOSE" for op in graph.ops)
    return sweep.fired


# -- what stands before a transpose that stays --------------------------------------------------


def _pad_later(graph: Graph, match: Match) -> Op | None:
    """Padding after the transpose: less to move, and a convolution can take the padding in."""
    op, pad, x = match.root, match.ops["pad"], match["x"]
    perm, out = permutation(op), op.outputs[0]
    if perm is None or not is_static(x, out, pad.outputs[0]) or not same_quant(x, out):
        return None
    amounts = pad.operand(1).values
    inner = twin(graph, x, "transposed", [x.shape[p] for p in perm])
    graph.insert(transpose(graph, x, perm, inner), before=op)
    rows = graph.constant(f"{out.name}/amounts", np.ascontiguousarray(amounts[list(perm)]))
    return with_attrs(pad, [inner, rows, *pad.inputs[2:]], [out])


RULES = (
    Rule(
        "padding after transpose",
        P("TRANSPOSE", P(("PAD", "PADV2", "MIRROR_PAD"), Var("x"), CONST, once=True, bind="pad")),
        _pad_later,
    ),
)
