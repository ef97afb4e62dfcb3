"""Which channels of a graph belong together: what has to go, if one of them goes.

Every channel of every tensor (its last axis) has a number. An op that carries channels on gives its
result the numbers of its operand; one that adds two tensors makes pairs of numbers one; a product
makes new ones. Channels that nobody may remove are pinned, with the reason: those of the model's
inputs and outputs, and of ops that this module does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod

import numpy as np

from ...ir import Array, Graph, Op, Tensor
from ...ops.base import attr
from .segments import constant_ops, home_of

ROWS = {"CONV_2D": (0, 1), "FULLY_CONNECTED": (0, 1), "TRANSPOSE_CONV": (2, 1)}  # input, weights


class ChannelFlow:
    """Numbers of channels, by tensor; `same` brings a number to the one that stands for all of its
    kind."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.numbers: dict[Tensor, Array] = {}
        self.pinned: dict[int, str] = {}
        self.products: list[Op] = []
        self._parent: list[int] = []
        for tensor in graph.inputs:
            self.pin(self.fresh(tensor), "it is fed")
        constant = constant_ops(graph)
        for op in graph.ops:
            if op not in constant:
                self._follow(op)
        for tensor in graph.outputs:
            if tensor in self.numbers:
                self.pin(self.numbers[tensor], "it is a result of the model")
        self.pinned = {self.same(n): why for n, why in self.pinned.items()}

    # -- numbers ----------------------------------------------------------------------------------

    def fresh(self, tensor: Tensor) -> Array:
        """New numbers for a tensor's channels."""
        self.numbers[tensor] = made = self._new(tensor.shape[-1] if tensor.shape else 1)
        return made

    def _new(self, count: int) -> Array:
        first = len(self._parent)
        self._parent += range(first, first + count)
        return np.arange(first, first + count)

    def same(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return int(number)

    def of(self, tensor: Tensor) -> Array:
        """The numbers of a tensor's channels, those that stand for all."""
        return np.array([self.same(int(n)) for n in self.numbers[tensor]], np.int64)

    def tie(self, ours: Array, theirs: Array) -> None:
        for a, b in zip(ours, theirs, strict=True):
            self._parent[self.same(int(a))] = self.same(int(b))

    def pin(self, numbers: Iterable[int], why: str) -> None:
        for number in numbers:
            self.pinned.setdefault(int(number), why)

    # -- ops --------------------------------------------------------------------------------------

    def _follow(self, op: Op) -> None:
        handler = HANDLERS.get(op.name)
        why = handler(self, op) if handler else f"{op.name} is not known to carry channels"
        if why is not None:
            self._stop(op, why)

    def _stop(self, op: Op, why: str) -> None:
        """Nothing that the op reads or makes may change."""
        for tensor in op.inputs:
            if tensor is not None and tensor in self.numbers:
                self.pin(self.numbers[tensor], f"{op.where}: {why}")
        for tensor in op.outputs:
            self.pin(self.fresh(tensor), f"{op.where}: {why}")


Handler = Callable[[ChannelFlow, Op], "str | None"]  # the reason, if it cannot be followed


def _carried(flow: ChannelFlow, op: Op) -> str | None:
    """The result has the channels of the first operand."""
    source, out = op.operand(0), op.outputs[0]
    if source not in flow.numbers or not out.shape or source.shape[-1] != out.shape[-1]:
        return "its channels are not those of its operand"
    flow.numbers[out] = flow.numbers[source]
    return None


def _reduced(flow: ChannelFlow, op: Op) -> str | None:
    axes = op.operand(1)
    rank = len(op.operand(0).shape)
    if not axes.is_constant or rank - 1 in {int(a) % rank for a in axes.values.reshape(-1)}:
        return "it reduces channels"
    return _carried(flow, op)


def _padded(flow: ChannelFlow, op: Op) -> str | None:
    """Channels of zeros, before and behind, are new ones."""
    pads = op.operand(1)
    if not pads.is_constant or op.operand(0) not in flow.numbers:
        return "its padding is not constant"
    before, after = (int(n) for n in pads.values[-1])
    parts = [flow._new(before), flow.numbers[op.operand(0)], flow._new(after)]
    flow.numbers[op.outputs[0]] = np.concatenate(parts)
    return None


def _pair(flow: ChannelFlow, op: Op) -> str | None:
    """Elementwise: channels of both operands are the same; one of a single channel is spread."""
    out = op.outputs[0]
    known = [t for t in op.inputs if t is not None and t in flow.numbers]
    if not known or not out.shape:
        return "its operands have no channels"
    whole = [t for t in known if t.shape and t.shape[-1] == out.shape[-1]]
    constants = [t for t in op.inputs if t is not None and t not in flow.numbers]
    if not whole or any(t.is_constant and len(t.shape) > len(out.shape) for t in constants):
        return "its operands are spread over channels"
    if any(home_of(t) is None and not t.is_constant for t in constants):
        return "an operand is computed from constants"
    for tensor in known:
        if tensor not in whole:
            flow.pin(flow.numbers[tensor], f"{op.where}: it is spread over channels")
    flow.numbers[out] = flow.numbers[whole[0]]
    for tensor in whole[1:]:
        flow.tie(flow.numbers[tensor], flow.numbers[whole[0]])
    return None


def _depthwise(flow: ChannelFlow, op: Op) -> str | None:
    source, weight, out = op.operand(0), op.operand(1), op.outputs[0]
    if source not in flow.numbers or not _is_own(weight):
        return "its weights are not its own constants"
    times = out.shape[-1] // source.shape[-1]
    if times != 1:
        return "it makes several channels of one"
    flow.numbers[out] = flow.numbers[source]
    return None


def _product(flow: ChannelFlow, op: Op) -> str | None:
    place, at = ROWS[op.name]
    source, weight, bias = (
        op.operand(place),
        op.operand(at),
        op.input(place + 2 if place == 0 else 3),
    )
    if source not in flow.numbers or not all(_is_own(t) for t in (weight, bias) if t is not None):
        return "its weights are not its own constants"
    if source.shape[-1] != weight.shape[-1]:
        return "its operand has other channels than its weights: groups, or a view"
    flow.fresh(op.outputs[0])
    flow.products.append(op)
    return None


def _is_own(tensor: Tensor) -> bool:
    """A constant of the file; behind an expansion, one that nobody else reads."""
    home = home_of(tensor)
    if home is None:
        return False
    return home is tensor or len(tensor.users) == len(home.users) == 1


def _concatenated(flow: ChannelFlow, op: Op) -> str | None:
    out, known = op.outputs[0], [t for t in op.inputs if t is not None]
    if any(t not in flow.numbers for t in known):
        return "an operand has no channels"
    rank = len(out.shape)
    if int(attr(op, "axis")) % rank == rank - 1:
        flow.numbers[out] = np.concatenate([flow.numbers[t] for t in known])
        return None
    flow.numbers[out] = flow.numbers[known[0]]
    for tensor in known[1:]:
        flow.tie(flow.numbers[tensor], flow.numbers[known[0]])
    return None


def _reshaped(flow: ChannelFlow, op: Op) -> str | None:
    """Channels stay the last axis, or all of a sample becomes one row."""
    source, out = op.operand(0), op.outputs[0]
    if source not in flow.numbers or not out.shape:
        return "its operand has no channels"
    own = flow.numbers[source]
    if out.shape[-1] == len(own) and prod(out.shape[1:]) == prod(source.shape[1:]):
        flow.numbers[out] = own
        return None
    if out.shape[-1] == prod(source.shape[1:]):
        flow.numbers[out] = np.tile(own, prod(source.shape[1:-1]))
        return None
    return "it mixes channels with other axes"


_UNARY = ("RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "LOGISTIC", "TANH", "HARD_SWISH",
          "LEAKY_RELU", "ELU", "GELU", "ABS", "NEG", "EXP", "SQRT", "RSQRT", "SQUARE", "CAST",
          "AVERAGE_POOL_2D", "MAX_POOL_2D", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR",
          "STRIDED_SLICE", "SLICE")  # fmt: skip
_BINARY = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "PRELU")

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(_UNARY, _carried),
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"), _reduced),
    **dict.fromkeys(("PAD", "PADV2"), _padded),
    **dict.fromkeys(_BINARY, _pair),
    **dict.fromkeys(ROWS, _product),
    **dict.fromkeys(("RESHAPE", "SQUEEZE", "EXPAND_DIMS"), _reshaped),
    "CONCATENATION": _concatenated,
    "DEPTHWISE_CONV_2D": _depthwise,
}
