"""Kernels at the border of a part: from the caller's arrays to the device's layout, and back.

Codes become floats on the way in and codes again on the way out.
"""

from __future__ import annotations

from ...ir import DType, Op, Tensor
from . import layout
from .language import BOOL, FLOAT, INT, Storage, Value
from .passes.float_view import Border
from .passes.stored import bounds, is_codes
from .steps import Memory, Node, StepWriter, Writer


def raw_storage(tensor: Tensor) -> Storage:
    """As the caller has it; a complex number is two floats."""
    return Storage("f32" if tensor.dtype is DType.COMPLEX64 else tensor.dtype.short)


def is_raw(border: Border, kept: Storage) -> bool:
    """Whether the caller's bytes are the device's already. kept: how the tensor inside is."""
    outside = border.outside
    fits = layout.dims(border.inside.shape)[-1] % 4 == 0 and kept.form == "buffer"
    return fits and outside.dtype.short == kept.element


def emit_import(w: Writer, border: Border) -> None:
    """Read the caller's elements and store vectors."""
    outside, inside = border.outside, border.inside
    shape = layout.dims(inside.shape)
    with w.kernel("import", _node(inside)) as s:
        k = s.k
        raw = k.argument("raw", raw_storage(outside))
        s.memory.append(Memory(raw.storage, tensor=outside))
        y = s.result()
        *at, slice_ = s.each_vector(shape)
        base = k.let(_flat(s, at, shape) * shape[-1])
        lanes = []
        for lane in range(4):
            channel = slice_ * 4 + lane
            near = channel if shape[-1] % 4 == 0 else k.minimum(channel, shape[-1] - 1)
            lanes.append(k.let(k.load_one(raw, base + near)))
        x = k.let(k.join(lanes))
        if is_codes(outside):
            x = k.cast(x - bounds(outside)[1], FLOAT)
        elif outside.dtype is DType.BOOL:
            x = k.cast(k.cast(x, BOOL), FLOAT)
        if shape[-1] % 4 and x.kind == FLOAT:
            x = s.valid(slice_, k.let(x), shape[-1])
        k.store(y.argument, y.index(at, slice_), x)


def emit_export(w: Writer, border: Border) -> None:
    """Read vectors and store the caller's elements."""
    outside, inside = border.outside, border.inside
    shape = layout.dims(inside.shape)
    with w.kernel("export", _node(inside)) as s:
        k = s.k
        x = s.scratch(inside)
        raw = k.argument("raw", raw_storage(outside), written=True)
        s.memory.append(Memory(raw.storage, tensor=outside))
        *at, slice_ = s.each_vector(shape)
        base = k.let(_flat(s, at, shape) * shape[-1])
        vector = k.let(k.load(x.argument, x.index(at, slice_)))
        if is_codes(outside):
            vector = _codes(s, vector, outside)
        elif outside.dtype is DType.BOOL:
            vector = k.let(k.cast(vector, INT))
        for lane in range(min(4, shape[-1])):
            channel = slice_ * 4 + lane
            with k.when(None if shape[-1] % 4 == 0 else channel < shape[-1]):
                k.store_one(raw, base + channel, vector.lane(lane))


def _codes(s: StepWriter, x: Value, tensor: Tensor) -> Value:
    """The codes of units, which are whole numbers already."""
    _, zero, low, high = bounds(tensor)
    units = x + float(zero)
    bounded = s.k.maximum(s.k.minimum(units, float(high)), float(low))
    return s.k.let(s.k.cast(bounded, INT))


def _flat(s: StepWriter, at: list[Value], shape: tuple[int, ...]) -> Value:
    flat = s.k.value(0)
    for place, extent in zip(at, shape[:-1], strict=True):
        flat = flat * extent + place
    return flat


def _node(tensor: Tensor) -> Node:
    return Node(Op("gpu.BORDER", [], [tensor]), [tensor])
