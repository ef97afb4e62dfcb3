"""A graph without some of its channels: the same ops on smaller tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ...ir import Array, Model, Op, Tensor
from ...ir.verify import verify
from .channel_flow import ROWS, ChannelFlow
from .segments import constant_ops, home_of

# Where an op has sizes of its result as a constant: the operand, and the element for channels.
_SIZES = {"RESHAPE": 1, "SLICE": 2, "STRIDED_SLICE": 2, "TRANSPOSE_CONV": 0}


def without_channels(model: Model, removed: Collection[int]) -> Model:
    """A model without the channels of these numbers (see ChannelFlow; those that stand for all)."""
    made = model.copy()
    flow = ChannelFlow(model.main)
    twins = dict(zip(model.main.tensors, made.main.tensors, strict=True))
    gone = set(removed)
    kept = {t: np.flatnonzero([n not in gone for n in flow.of(t)]) for t in flow.numbers}
    _Cut(made, flow, kept, twins).all()
    made.main.prune()
    verify(made)
    return made


class _Cut:
    """One rewriting on its way. Constants are cut once for each set of channels."""

    def __init__(
        self,
        made: Model,
        flow: ChannelFlow,
        kept: Mapping[Tensor, Array],
        twins: Mapping[Tensor, Tensor],
    ) -> None:
        self.graph, self.flow, self.kept, self.twins = made.main, flow, kept, twins
        self.cut: dict[tuple[Tensor, int, bytes], Tensor] = {}

    def all(self) -> None:
        constant = constant_ops(self.flow.graph)
        pairs = zip(self.flow.graph.ops, list(self.graph.ops), strict=True)
        for op, twin in pairs:
            if op not in constant:
                self._op(op, twin)
        for tensor, places in self.kept.items():
            twin_tensor = self.twins[tensor]
            if len(places) == len(self.flow.numbers[tensor]):
                continue
            twin_tensor.shape = (*tensor.shape[:-1], len(places))
            if tensor.signature is not None:
                twin_tensor.signature = (*tensor.signature[:-1], len(places))

    def _op(self, op: Op, twin: Op) -> None:
        out = op.outputs[0] if op.outputs else None
        if out is None or out not in self.kept:
            return
        if op.name in ROWS:
            self._product(op, twin)
        elif op.name == "DEPTHWISE_CONV_2D":
            self._constant(twin, 1, -1, self.kept[out])
            self._constant(twin, 2, -1, self.kept[out])
        elif op.name in ("PAD", "PADV2"):
            self._padding(op, twin)
        else:
            self._spread(op, twin)
        if op.name in _SIZES:
            self._sizes(op, twin, len(self.kept[out]))

    def _product(self, op: Op, twin: Op) -> None:
        place, at = ROWS[op.name]
        self._constant(twin, at, 0, self.kept[op.outputs[0]])
        self._constant(twin, at, -1, self.kept[op.operand(place)])
        self._constant(twin, 2 if place == 0 else 3, -1, self.kept[op.outputs[0]])

    def _spread(self, op: Op, twin: Op) -> None:
        """Constants of an elementwise op that have a value for each channel."""
        out = op.outputs[0]
        for place, tensor in enumerate(op.inputs):
            if tensor is None or tensor in self.kept or not tensor.dtype.is_float:
                continue
            if tensor.shape and tensor.shape[-1] == out.shape[-1] > 1:
                self._constant(twin, place, -1, self.kept[out])

    def _padding(self, op: Op, twin: Op) -> None:
        pads = np.array(op.operand(1).values)
        before, size = int(pads[-1][0]), len(self.flow.numbers[op.operand(0)])
        places = self.kept[op.outputs[0]]
        pads[-1] = (places < before).sum(), (places >= before + size).sum()
        self._replace(twin, 1, pads)

    def _sizes(self, op: Op, twin: Op, channels: int) -> None:
        if op.name == "RESHAPE" and isinstance(op.attrs.get("new_shape"), list | np.ndarray):
            stated = np.array(op.attrs["new_shape"])
            twin.attrs["new_shape"] = _with_last(stated, channels)
        sizes = op.input(_SIZES[op.name])
        if sizes is None or not sizes.is_constant or not sizes.values.size:
            return
        is_open = op.name == "STRIDED_SLICE" and self._to_the_end(op)
        if not is_open:
            self._replace(twin, _SIZES[op.name], _with_last(np.array(sizes.values), channels))

    def _to_the_end(self, op: Op) -> bool:
        rank = len(op.operand(0).shape)
        return bool(int(op.attrs.get("end_mask", 0)) >> (rank - 1) & 1)

    # -- constants --------------------------------------------------------------------------------

    def _constant(self, op: Op, place: int, axis: int, places: Array) -> None:
        tensor = op.input(place)
        if tensor is None or tensor.shape[axis] == len(places):
            return
        home = home_of(tensor)
        if home is not None and home is not tensor:  # a 16-bit weight that only this op reads
            home.data = np.take(home.values, places, axis)
            tensor.shape = home.shape
            return
        key = tensor, axis, places.tobytes()
        if key not in self.cut:
            data = np.take(tensor.values, places, axis)
            self.cut[key] = self.graph.constant(tensor.name, data, tensor.dtype)
        self.graph.set_input(op, place, self.cut[key])

    def _replace(self, op: Op, place: int, data: Array) -> None:
        old = op.operand(place)
        if not np.array_equal(data, old.values):
            self.graph.set_input(op, place, self.graph.constant(old.name, data, old.dtype))


def _with_last(sizes: Array, channels: int) -> Array:
    """-1 stands for what is left over, and stays."""
    if sizes.size and sizes[-1] != -1:
        sizes[-1] = channels
    return sizes
