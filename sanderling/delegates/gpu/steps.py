"""From nodes to kernels: what a kernel's writer is given, and the steps that come of it.

A row of the kernel table (kernels/row.py) writes a node's kernels:

    def emit(w: Writer, node: Node) -> None:
        with w.kernel("copy", node) as s:
            x, y = s.reads(node.op.operand(0)), s.result()
            *place, slice_ = s.each_vector(y.shape)
            s.put(place, slice_, x.at(place, slice_))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ...ir import Array, DType, Op, Tensor
from ...ir.expr import Expr
from . import layout
from .language import BOOL, FLOAT, INT, Argument, Dialect, Index, KernelText, Storage, Value
from .options import DeviceClass
from .render import render_value


@dataclass(eq=False)
class Node:
    """An op and what is fused into it.

    expr: what becomes of the op's result before it is stored: Input(0) is the result, Input(i) the
    element of operands[i - 1] at the same place, repeated as NumPy has it. pads: zeros around the
    first input's height and width that are read instead of stored: top, bottom, left, right.
    """

    op: Op
    outputs: list[Tensor]
    expr: Expr | None = None
    operands: list[Tensor] = field(default_factory=list)
    pads: tuple[int, int, int, int] | None = None
    ops: list[Op] = field(default_factory=list)
    source: Tensor | None = None  # the first input, if a fused op's input is read in its place

    @property
    def output(self) -> Tensor:
        return self.outputs[0]

    def first(self) -> Tensor:
        """The first input, as it is read."""
        return self.source or self.op.operand(0)

    def reads(self) -> list[Tensor]:
        """All tensors that are read. (An elementwise op's are the source and the operands.)"""
        own = [t for t in self.op.inputs if t is not None and t.producer not in self.ops]
        return list(dict.fromkeys([self.first(), *own, *self.operands]))


@dataclass
class Memory:
    """Who an argument of a step is: a tensor, or data that the device keeps (`data`, in the type
    of its storage)."""

    storage: Storage
    tensor: Tensor | None = None
    data: Array | None = None


@dataclass
class Step:
    """A kernel and its arguments: one launch."""

    name: str
    source: str  # with the kernel's name in it, and no group size
    kernel: KernelText
    arguments: list[Memory]
    node: Node
    size: tuple[int, ...]
    macs: int = 0
    half: bool = False


@dataclass(frozen=True)
class View:
    """A tensor as an argument of a kernel."""

    s: StepWriter
    argument: Argument
    shape: tuple[int, ...]
    is_truth: bool = False

    @property
    def slices(self) -> int:
        return layout.slices(self.shape)

    @property
    def kind(self) -> str:
        """The kind of the values that are read."""
        return BOOL if self.is_truth else self.argument.storage.kind

    def index(self, place: Sequence[Index], slice_: Index) -> Value:
        """The number of a vector of four; place has all dimensions but the last."""
        k = self.s.k
        found = k.value(0)
        for at, extent in zip(place, self.shape[:-1], strict=True):
            found = found * extent + at
        return found * self.slices + slice_

    def at(self, place: Sequence[Index], slice_: Index, lanes: int = 4) -> Value:
        """The vector at a place."""
        return self.load(self.index(place, slice_), lanes)

    def load(self, index: Index, lanes: int = 4) -> Value:
        """The vector of this number."""
        return self._read(self.s.k.load(self.argument, index, lanes))

    def one(self, place: Sequence[Index]) -> Value:
        """The element at a place; place has all dimensions."""
        *outer, last = (self.s.k.value(p) for p in place)
        flat = self.s.k.value(0)
        for at, extent in zip(outer, self.shape[:-1], strict=True):
            flat = flat * extent + at
        return self._read(self.s.k.load_one(self.argument, flat * (4 * self.slices) + last))

    def _read(self, x: Value) -> Value:
        return self.s.k.cast(x, BOOL) if self.is_truth else x

    def repeated(self, place: Sequence[Index], slice_: Index, lanes: int = 4) -> Value:
        """The vector that stands at a place of a larger tensor, to which this one is repeated;
        place may have more dimensions than this tensor."""
        own = len(self.shape) - 1
        # A single number may have more dimensions than the result.
        known = [*(0 for _ in range(own - len(place))), *place]
        near = [
            0 if extent == 1 else at
            for at, extent in zip(known[len(known) - own :], self.shape[:-1], strict=True)
        ]
        if self.shape[-1] == 1:
            return self.one([*near, 0]).splat(lanes)
        return self.at(near, slice_, lanes)


class StepWriter:
    """A kernel on its way, with the tensors that it reads and writes."""

    def __init__(self, w: Writer, name: str, node: Node, half: bool) -> None:
        self.w, self.node, self.half = w, node, half
        self.k = KernelText(name, w.dialect(half))
        self.memory: list[Memory] = []
        self.macs = 0
        self._views: dict[Tensor, View] = {}
        self._extra: list[Tensor] = []

    # -- arguments --------------------------------------------------------------------------------

    def reads(self, tensor: Tensor) -> View:
        """A tensor, or a constant in its place."""
        if tensor not in self._views:
            self._views[tensor] = self._view(tensor, written=False)
        return self._views[tensor]

    def _view(self, tensor: Tensor, written: bool) -> View:
        storage = self.w.storage_of(tensor, self.node)
        if tensor.data is not None:
            return self.constant(np.asarray(tensor.data))
        argument = self.k.argument("y" if written else "x", storage, written)
        self.memory.append(Memory(storage, tensor=tensor))
        truth = tensor.dtype is DType.BOOL and not written
        return View(self, argument, layout.dims(tensor.shape), truth)

    def constant(self, data: Array) -> View:
        """Numbers that the device keeps, in the layout of a tensor."""
        whole = data.dtype.kind in "iu"
        packed = layout.pack(data.astype(np.int32 if whole else np.float32))
        return self.weights(packed, layout.dims(data.shape), data.dtype == bool)

    def weights(
        self, packed: Array, shape: Sequence[int] | None = None, is_truth: bool = False
    ) -> View:
        """Numbers as they are, the last dimension a multiple of four."""
        storage = Storage("i32") if packed.dtype.kind == "i" else self._floats(packed)
        argument = self.k.argument("w", storage)
        self.memory.append(Memory(storage, data=packed))
        return View(self, argument, tuple(shape or packed.shape), is_truth)

    def _floats(self, packed: Array) -> Storage:
        return self.w.weights_of(self.node, packed.size // 4)

    def result(self, place: int = 0) -> View:
        """The node's output."""
        self._out = self._view(self.node.outputs[place], written=True)
        return self._out

    def scratch(self, tensor: Tensor, written: bool = False) -> View:
        """A tensor between the kernels of one node."""
        return self._view(tensor, written)

    # -- the space of a kernel --------------------------------------------------------------------

    def each_vector(self, shape: Sequence[int], lanes: int = 4) -> list[Value]:
        """A run for every vector of a tensor: the place, all dimensions but the last, and the
        number of the slice in it."""
        shape = layout.dims(shape)
        outer, width = shape[:-2], shape[-2] if len(shape) > 1 else 1
        step = lanes // 4
        x, y, z = self.k.grid(layout.slices(shape) // step, width, prod(outer))
        place = self.places(z, outer)
        return [*place, *([y] if len(shape) > 1 else []), x * step]

    def lane_places(
        self, shape: Sequence[int], place: Sequence[Value], slice_: Value
    ) -> list[list[Value]]:
        """The places of a vector's four elements; those beyond the last are the last."""
        found = []
        for lane in range(4):
            channel = slice_ * 4 + lane
            if shape[-1] % 4:
                channel = self.k.minimum(channel, shape[-1] - 1)
            found.append([*place, self.k.let(channel, "c")])
        return found

    def places(self, flat: Value, shape: Sequence[int]) -> list[Value]:
        """The coordinates of a number in a space of this shape."""
        found: list[Value] = []
        for extent in reversed(shape):
            found.append(self.k.value(0) if extent == 1 else self.k.let(flat % extent, "d"))
            flat = flat // extent
        return found[::-1]

    # -- results ----------------------------------------------------------------------------------

    def put(self, place: Sequence[Index], slice_: Index, x: Value) -> None:
        """Store a vector of the result, after what is fused in."""
        x = self.fused(place, slice_, x)
        if x.kind == BOOL:
            x = self.k.cast(x, FLOAT)
        self.k.store(self._out.argument, self._out.index(place, slice_), x)

    def fused(self, place: Sequence[Index], slice_: Index, x: Value) -> Value:
        if self.node.expr is None:
            return x
        x = self.k.let(x)
        lanes = x.lanes
        operands = [self._operand(t, place, slice_, lanes) for t in self.node.operands]
        return render_value(self.k, self.node.expr, [x, *operands], lanes)

    def _operand(self, tensor: Tensor, place: Sequence[Index], slice_: Index, lanes: int) -> Value:
        if tensor.data is not None and tensor.data.size == 1:
            number = tensor.data.reshape(()).item()
            kind = BOOL if tensor.dtype is DType.BOOL else INT if isinstance(number, int) else FLOAT
            return self.k.value(number, kind).splat(lanes)
        return self.k.let(self.reads(tensor).repeated(place, slice_, lanes))

    def valid(self, slice_: Value, x: Value, channels: int, other: float = 0.0) -> Value:
        """A vector of four of a tensor with so many channels; `other` beyond the last of them."""
        if channels % 4 == 0:
            return x
        lanes = self.k.join([self.k.value(i) for i in range(4)])
        inside = (slice_ * 4).splat(4) + lanes < channels
        return self.k.select(inside, x, self.k.value(other, x.kind))


def _in_float(storage: Storage) -> Storage:
    return replace(storage, element="f32")


class Writer:
    """Steps of a part, one after the other.

    tensors, weights: how floats are kept. half: the nodes whose floats are computed in 16 bits.
    exact: tensors that are kept in 32 bits whatever the others are, and so is what their nodes
    keep for themselves. home: the tensor in whose memory one lies. most_vectors: of a memory object
    of the storage's form; what has more is kept in a buffer.
    """

    def __init__(
        self,
        device: DeviceClass,
        dialect: type,
        tensors: Storage,
        weights: Storage,
        half: frozenset[Node] = frozenset(),
        exact: frozenset[Tensor] = frozenset(),
        home: Callable[[Tensor], Tensor] = lambda tensor: tensor,
        most_vectors: int = 1 << 62,
    ) -> None:
        self.device, self._dialect = device, dialect
        self.tensors, self.weights, self._half = tensors, weights, half
        self._exact, self._home, self._most = exact, home, most_vectors
        self.steps: list[Step] = []
        self.scratch: list[Tensor] = []
        self._wide: set[Tensor] = set()

    def storage_of(self, tensor: Tensor, node: Node | None = None) -> Storage:
        """How a tensor is kept. node: whose kernel asks, for tensors between its kernels."""
        own = tensor in self.scratch and node is not None and self._is_exact(node)
        exact = own or tensor in self._wide or self._home(tensor) in self._exact
        floats = self._fitting(self.tensors, layout.vectors(tensor.shape))
        return layout.storage_of(tensor, _in_float(floats) if exact else floats)

    def weights_of(self, node: Node, vectors: int) -> Storage:
        floats = self._fitting(self.weights, vectors)
        return _in_float(floats) if self._is_exact(node) else floats

    def _fitting(self, storage: Storage, vectors: int) -> Storage:
        return storage if vectors <= self._most else Storage(storage.element)

    def _is_exact(self, node: Node) -> bool:
        return any(self._home(tensor) in self._exact for tensor in node.outputs)

    def dialect(self, half: bool) -> Dialect:
        made: Dialect = self._dialect(half)
        return made

    @contextmanager
    def kernel(self, name: str, node: Node) -> Iterator[StepWriter]:
        """A kernel, which is a step once it has been written."""
        s = StepWriter(self, name, node, self.is_half(node))
        yield s
        self.steps.append(Step(name, s.k.source(), s.k, s.memory, node, s.k.size, s.macs, s.half))

    def temporary(self, name: str, shape: Sequence[int], wide: bool = False) -> Tensor:
        """A tensor between the kernels of one node. wide: it is kept in 32 bits whatever others
        are."""
        made = Tensor(name, DType.FLOAT32, tuple(shape))
        self.scratch.append(made)
        self._wide.update([made] if wide else [])
        return made

    def is_half(self, node: Node) -> bool:
        """Whether its floats are computed in 16 bits."""
        return node in self._half
