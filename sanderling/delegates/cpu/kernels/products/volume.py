"""CONV_3D and CONV_3D_TRANSPOSE: products whose rows are boxes of a volume, packed into scratch.

A box is a pile of patches, one for each tap along the depth; sources.py packs patches. A transposed
convolution is one convolution for each phase of the strides, as in transposed.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .....ir import Array, DType, Op
from .....ops.base import attr
from .....ops.geometry import Axis, axis, padding_before
from ...codegen.emit import I8, I32, I64, PTR, Emitter, Int, Value
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel
from .conv import Spread, arithmetic, refuses_product
from .gemm import Operands, Product, block_product, walk
from .packed_weights import columns, packed
from .sources import DirectRows, PackedRows, Packer, RowSource, Window, copy_of, fill, packed_stride
from .transposed import StridePhase, phases, refuses_phases

FLOAT = copy_of(np.float32)


@dataclass(frozen=True)
class Volume:
    """A convolution's geometry, NDHWC: along the depth, and of a plane."""

    batch: int
    depth: Axis
    plane: Window

    @property
    def voxels(self) -> int:
        return self.depth.out * self.plane.pixels

    @property
    def patch(self) -> int:
        """Elements that a tap of the depth brings."""
        return self.plane.kernel[0] * self.plane.kernel[1] * self.plane.channels

    @property
    def is_rows(self) -> bool:
        """Each output voxel reads just the input voxel of its place."""
        d = self.depth
        plain = d.taps == d.stride == 1 and d.before == 0 and d.out == d.size
        return plain and self.plane.is_rows

    @property
    def name(self) -> str:
        d = self.depth
        return f"{d.size}k{d.taps}s{d.stride}d{d.dilation}p{d.before}to{d.out}_{self.plane.name}"


@dataclass(frozen=True)
class VolumeRows(PackedRows):
    """A row source: boxes packed block by block."""

    pointer: Value
    volume: Volume
    packs: bool = True

    @property
    def stride(self) -> int:
        return packed_stride(self.volume.depth.taps * self.volume.patch * 4)

    def fill(self, k: StepEmitter, memory: Value, start: Int, end: Int, group: Int) -> None:
        name = f"boxes_{self.volume.name}_{self.stride}".replace("-", "m")
        function = k.program.function(name, [PTR, PTR, I64, I64], self._build)
        k.b.call(function, [memory, self.pointer, k.i64(start), k.i64(end)])

    def _build(self, e: Emitter) -> None:
        """(target, source, start, end): pack the boxes of these voxels, in order."""
        v = self.volume
        target, source, start, end = e.args
        w, d = v.plane, v.depth
        patches = Packer(w, FLOAT, self.stride, 0)
        size = w.height * w.width * w.channels * 4
        with e.loop(start, end) as row:
            line, x = e.div(row, w.out_width), e.rem(row, w.out_width)
            sheet, y = e.div(line, w.out_height), e.rem(line, w.out_height)
            image, z = e.div(sheet, d.out), e.rem(sheet, d.out)
            here = e.at(target, e.mul(e.sub(row, start), self.stride), I8)
            first = e.sub(e.mul(z, d.stride), d.before)
            with e.loop(0, d.taps) as tap:
                level = e.add(first, e.mul(tap, d.dilation))
                there = e.at(here, e.mul(tap, v.patch * 4), I8)
                plane = e.at(source, e.mul(e.add(e.mul(image, d.size), level), size), I8)
                # A negative number is large when read without sign.
                inside = e.b.icmp_unsigned("<", e.i64(level), I64(d.size))
                with e.b.if_else(inside) as (then, otherwise):
                    with then:
                        patches._patch(e, there, plane, I32(0), y, x)
                    with otherwise:
                        fill(e, FLOAT, there, I32(0), v.patch)


def emit_product(
    k: StepEmitter, op: Op, weights: Array, v: Volume, spread: Spread | None = None
) -> None:
    """op has a convolution's operands; weights [O, taps * channels]."""
    x = op.operand(0)
    kind = arithmetic(op, weights, k.target)
    rows: RowSource = (
        DirectRows(k.ptr(x), v.plane.channels * 4) if v.is_rows else VolumeRows(k.ptr(x), v)
    )
    lines = v.batch * v.depth.out * v.plane.out_height
    outer = 1 if spread is None else lines
    inner = v.batch * v.voxels // outer
    size = Product(outer, inner, len(weights), weights.shape[1])
    plan = block_product(k.target, kind.core, size, rows.packs, inner * rows.stride)
    at = Operands(
        k.constant(packed(kind, size, plan)),
        k.constant(columns(kind, size, plan)),
        k.constant(kind.common),
        k.ptr(op.outputs[0]),
        size.n * kind.epilogue.out_bytes * (1 if spread is None else spread.pixel),
        place=None if spread is None else spread.place,
    )
    walk(k, kind.core, kind.epilogue, size, plan, rows, at)


def _axes(op: Op, sizes: Sequence[int], taps: Sequence[int]) -> list[Axis]:
    return [
        axis(
            op,
            attr(op, "padding"),
            size,
            tap,
            int(attr(op, f"stride_{c}")),
            int(attr(op, f"dilation_{c}_factor")),
        )
        for c, size, tap in zip("dhw", sizes, taps, strict=True)
    ]


def emit_conv_3d(k: StepEmitter, op: Op) -> None:
    x, weights = op.operand(0), op.operand(1).values.transpose(4, 0, 1, 2, 3)
    deep, high, wide = _axes(op, x.shape[1:4], weights.shape[1:4])
    plane = Window(
        x.shape[0],
        high.size,
        wide.size,
        x.shape[4],
        high.out,
        wide.out,
        (high.taps, wide.taps),
        (high.stride, wide.stride),
        (high.dilation, wide.dilation),
        (high.before, wide.before),
    )
    matrix = np.ascontiguousarray(weights).reshape(len(weights), -1)
    emit_product(k, op, matrix, Volume(x.shape[0], deep, plane))


def refuses_conv_3d(op: Op, target: Target) -> str | None:
    return _refuses_floats(op, *op.inputs[:2]) or refuses_product(op, target)


def _refuses_floats(op: Op, *tensors: object) -> str | None:
    kinds = {t.dtype for t in (*op.outputs, *tensors) if t is not None}  # type: ignore[attr-defined]
    return None if kinds == {DType.FLOAT32} else "only a product of floats has a kernel"


# -- transposed ---------------------------------------------------------------------------------


def as_conv(op: Op) -> Op:
    """The op with a convolution's operands, in no graph."""
    attrs = {n: v for n, v in op.attrs.items() if n == "fused_activation_function"}
    return Op("CONV_3D", [op.inputs[2], op.inputs[1], *op.inputs[3:4]], op.outputs, attrs)


def _strides(op: Op) -> list[int]:
    return [int(attr(op, f"stride_{c}")) for c in "dhw"]


def emit_transposed(k: StepEmitter, op: Op) -> None:
    made, x = as_conv(op), op.operand(2)
    weights, same = op.operand(1).values.transpose(3, 0, 1, 2, 4), attr(op, "padding") == "SAME"
    batch, *sizes, channels = x.shape
    _, *outs, units = op.outputs[0].shape
    strides = _strides(op)
    each = []
    for out, size, taps, stride in zip(outs, sizes, weights.shape[1:4], strides, strict=True):
        before = padding_before(out, taps, stride, 1, size) if same else 0
        each.append(list(phases(out, taps, stride, before)))
    for zs, ys, xs in itertools.product(*each):
        part = weights[:, zs.taps][:, :, ys.taps][:, :, :, xs.taps]
        if not part.size:  # where no tap reaches, one that says nothing stands in
            counts = [max(len(p.taps), 1) for p in (zs, ys, xs)]
            part = np.zeros((units, *counts, channels), weights.dtype)
        deep = Axis(sizes[0], part.shape[1], 1, 1, zs.count, zs.pad)
        plane = Window(
            batch,
            sizes[1],
            sizes[2],
            channels,
            ys.count,
            xs.count,
            (part.shape[2], part.shape[3]),
            pad=(ys.pad, xs.pad),
        )
        spread = Spread(strides[2], _placer((zs, ys, xs), outs, strides, units * 4))
        matrix = np.ascontiguousarray(part).reshape(units, -1)
        emit_product(k, made, matrix, Volume(batch, deep, plane), spread)


class _placer:
    """Where a phase's row lies in the whole output, in bytes."""

    def __init__(
        self, parts: Sequence[StridePhase], outs: Sequence[int], strides: Sequence[int], pixel: int
    ) -> None:
        self.parts, self.outs, self.strides, self.pixel = parts, outs, strides, pixel

    def __call__(self, k: StepEmitter, row: Int) -> Int:
        places: list[Int] = []
        for part in reversed(self.parts):
            places.insert(0, k.rem(row, part.count))
            row = k.div(row, part.count)
        for part, out, stride, place in zip(
            self.parts, self.outs, self.strides, places, strict=True
        ):
            row = k.add(k.mul(row, out), k.add(k.mul(place, stride), part.first))
        return k.mul(row, self.pixel)


def refuses_transposed(op: Op, target: Target) -> str | None:
    shape = op.operand(0)
    if not shape.is_constant:
        return "the output's shape is computed at run time"
    if any(int(attr(op, f"dilation_{c}_factor")) != 1 for c in "dhw"):
        return "a dilated transposed convolution has no kernel"
    said = refuses_phases(op, op.outputs[0].shape[1:4], _strides(op))
    return said or _refuses_floats(op, *op.inputs[1:3]) or refuses_product(as_conv(op), target)


KERNELS = {
    "CONV_3D": Kernel(emit_conv_3d, refuses_conv_3d, weights=(1,)),
    "CONV_3D_TRANSPOSE": Kernel(emit_transposed, refuses_transposed),
}
