"""One type for 8-bit activations, which the target's dot product wants."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ....ir import DType, Graph, Op, Quant, Tensor, link
from ....passes import Fired
from ..dialect.fused import Fused, fuse
from ..isa.targets import Target
from ..kernels.row import Kernel
from ..table import row_of

# How codes move to become the type that a target keeps activations in.
SHIFTS = {"u8": (DType.INT8, DType.UINT8, 128), "i8": (DType.UINT8, DType.INT8, -128)}


def mark_signed(graph: Graph, target: Target) -> None:
    """Operators that compute int8 and uint8 differently remember what they were."""
    for op in graph.ops:
        x = op.input(0)
        if row_of(op).sign_matters and x is not None and x.dtype is DType.INT8:
            fuse(op, signed=True)


def unify_bytes(graph: Graph, target: Target) -> Fired:
    """One type for 8-bit activations: codes and zero points of the other move by 128.

    The caller's arrays keep their type: cpu.FLIP stands at the border, and around ops that see
    codes as they are.
    """
    unifier = _Unifier(graph, *SHIFTS[target.activation])
    return unifier.run() if unifier.moves else Counter()


class _Unifier:
    """Writes the graph's ops anew, each with the version of its tensors that it wants."""

    def __init__(self, graph: Graph, old: DType, new: DType, by: int) -> None:
        self.graph = graph
        self.old, self.new, self.by = old, new, by
        self.moves = {
            t for t in graph.tensors if t.dtype is old and _has_one_scale(t) and not t.is_variable
        }
        self.border = {*graph.inputs, *graph.outputs}
        self.ops: list[Op] = []
        self.moved: dict[Tensor, Tensor] = {}  # tensor -> its version in the new type
        self.kept: dict[Tensor, Tensor] = {}  # a tensor that was moved -> its old version
        self.fired: Fired = Counter()

    def run(self) -> Fired:
        for op in list(self.graph.ops):
            self.rewrite(op)
        for tensor in self.graph.tensors:
            tensor.users, tensor.producer = [], None
        self.graph.ops = self.ops
        for op in self.ops:
            self.graph.enlist(*(t for t in (*op.inputs, *op.outputs) if t is not None))
            link(op)
        return self.fired

    def rewrite(self, op: Op) -> None:
        row = row_of(op)
        state = any(t is not None and t.is_variable for t in op.inputs)
        as_is = row.plain_codes or (state and not row.copies_state) or self.mixes(op, row)
        stay = row.weights
        for place, t in enumerate(op.inputs):  # in place: value_of looks at those before
            old = as_is or place in stay
            op.inputs[place] = self.old_of(t) if old else self.new_of(op, place, t, row)
        self.ops.append(op)
        for place, tensor in enumerate(op.outputs):
            if tensor in self.moves and not as_is:
                self.move_output(op, place, tensor)

    def mixes(self, op: Op, row: Kernel) -> bool:
        """A view whose two sides would not move alike."""
        return row.is_view and (op.inputs[0] in self.moves) != (op.outputs[0] in self.moves)

    def move_output(self, op: Op, place: int, tensor: Tensor) -> None:
        self.fired["tensor moved"] += 1
        alone = Fused.of(op).inner
        if alone is not None:
            fuse(op, inner=(alone[0], alone[1] + self.by))
        if tensor not in self.border:
            self.moved[tensor] = tensor
            self.shift(tensor)
            return
        op.outputs[place] = inner = self.moved[tensor] = self.version(tensor)
        self.flip(inner, tensor)

    def old_of(self, tensor: Tensor | None) -> Tensor | None:
        """The tensor in its first type."""
        if tensor is None or self.moved.get(tensor) is not tensor:
            return tensor
        if tensor not in self.kept:
            self.kept[tensor] = back = tensor.copy()
            back.name = f"{tensor.name}/{self.old.short}"
            back.dtype, back.quant = self.old, _offset(back.quantisation, -self.by)
            self.flip(tensor, back)
        return self.kept[tensor]

    def new_of(self, op: Op, place: int, tensor: Tensor | None, row: Kernel) -> Tensor | None:
        """The tensor in the type of activations."""
        if tensor is not None and row.value == place:
            return self.value_of(op, tensor)
        if tensor is None or tensor not in self.moves:
            return tensor
        if tensor not in self.moved:
            self.moved[tensor] = inner = self.version(tensor)
            if not tensor.is_constant:
                self.flip(tensor, inner)
        return self.moved[tensor]

    def value_of(self, op: Op, tensor: Tensor) -> Tensor:
        """A constant beside data that moves: with or without parameters of its own it moves too."""
        data = op.inputs[0]  # the operands before have been replaced already
        if tensor.dtype is not self.old or data is None or data.dtype is not self.new:
            return tensor
        made = tensor.copy()
        made.quant = made.quant or data.quant
        made.name = f"{tensor.name}/{self.new.short}"
        self.shift(made, quant=data.quant)
        return made

    def version(self, tensor: Tensor) -> Tensor:
        made = tensor.copy()
        made.name = f"{tensor.name}/{self.new.short}"
        self.shift(made)
        return made

    def shift(self, tensor: Tensor, quant: Quant | None = None) -> None:
        """Move the tensor itself: type, zero point and, of a constant, codes."""
        data = tensor.data
        tensor.dtype = self.new
        tensor.quant = quant or _offset(tensor.quantisation, self.by)
        if data is not None:
            tensor.data = (data.astype(np.int16) + self.by).astype(self.new.numpy)

    def flip(self, source: Tensor, result: Tensor) -> None:
        self.ops.append(Op("cpu.FLIP", [source], [result]))
        self.fired["flip at a border"] += 1


def _offset(quant: Quant, by: int) -> Quant:
    return Quant(quant.scale, quant.zero_point + by, quant.axis)


def _has_one_scale(tensor: Tensor) -> bool:
    return tensor.quant is not None and tensor.quant.scale.size == 1
