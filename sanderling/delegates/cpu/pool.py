"""Pools over windows, and the mean of pictures: channels in vector lanes, a window at a time.

    pool_<function>_<type>_<vectors>x<lanes>[_n<stored>]   one output pixel for a run of blocks

What hangs over the picture does not count: the window's rows and columns are cut to what is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import Array, DType, Op, Tensor
from ...ops.base import attr, scale_zero
from ...ops.fixed import ACTIVATION_BOUNDS, fused_range
from .abi import FIRST_ARG
from .emit import F32, I8, I16, I32, I64, PTR, Emitter, Int, Type, Value, vector
from .geometry import Geometry, window_of
from .program import Kernel, StepEmitter
from .targets import Target

# Quotients of sums by counts up to this are exact in float32 (see Average.finish).
MOST_COUNT = 1 << 15
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Function:
    """What becomes of a window's elements. params: numbers of the step that `finish` reads."""

    element: Type  # in memory
    signed: bool = False

    name = ""
    item = property(lambda self: 4 if self.element == F32 else 1)
    type_name = property(lambda self: "f32" if self.element == F32 else "us"[self.signed] + "8")

    def lanes(self, target: Target) -> int:
        return target.lanes

    def start(self, e: Emitter, lanes: int) -> Value:
        return e.const(vector(F32 if self.element == F32 else I32, lanes), 0)

    def step(self, e: Emitter, acc: Value, x: Value) -> Value:
        if self.element == F32:
            return e.b.fadd(acc, x)
        return e.b.add(acc, (e.b.sext if self.signed else e.b.zext)(x, acc.type))

    def finish(self, e: Emitter, acc: Value, count: Value, params: Value) -> Value:
        raise NotImplementedError


class Max(Function):
    name = "max"

    def lanes(self, target: Target) -> int:
        return target.width // self.item

    def start(self, e: Emitter, lanes: int) -> Value:
        """The lowest finite value: -inf becomes that, as in the definition, and NaN is ignored."""
        lowest = -LARGEST if self.element == F32 else -128 if self.signed else 0
        return e.const(vector(self.element, lanes), lowest)

    def step(self, e: Emitter, acc: Value, x: Value) -> Value:
        if self.element == F32:
            return e.fmax(x, acc)
        compare = e.b.icmp_signed if self.signed else e.b.icmp_unsigned
        return e.b.select(compare(">", x, acc), x, acc)

    def finish(self, e: Emitter, acc: Value, count: Value, params: Value) -> Value:
        low, high = (number(e, params, i, self.element, acc.type.count) for i in (0, 1))
        if self.element == F32:
            return e.fmin(high, e.fmax(low, acc))
        compare = e.b.icmp_signed if self.signed else e.b.icmp_unsigned
        acc = e.b.select(compare("<", acc, low), low, acc)
        return e.b.select(compare(">", acc, high), high, acc)


class Average(Function):
    name = "average"

    def finish(self, e: Emitter, acc: Value, count: Value, params: Value) -> Value:
        lanes = acc.type.count
        real = vector(F32, lanes)
        divisor = e.b.sitofp(e.splat(e.b.trunc(count, I32), lanes), real)
        if self.element == F32:  # constants first, so that NaN passes
            low, high = (number(e, params, i, F32, lanes) for i in (0, 1))
            return e.fmin(high, e.fmax(low, e.b.fdiv(acc, divisor)))
        low, high, offset = (number(e, params, i, I32, lanes) for i in range(3))
        # Back to the codes that the definition divides; half away from zero. The division is exact:
        # both numbers are below 2**24, and no quotient comes closer to the next whole number than
        # 1 / count, which is more than its rounding error.
        whole = e.splat(e.b.trunc(count, I32), lanes)
        total = e.b.add(acc, e.b.mul(whole, offset))
        zero = e.const(total.type, 0)
        below = e.b.icmp_signed("<", total, zero)
        size = e.b.select(below, e.b.sub(zero, total), total)
        size = e.b.add(size, e.b.lshr(whole, e.const(whole.type, 1)))
        mean = e.b.fptosi(e.b.fdiv(e.b.sitofp(size, real), divisor), total.type)
        mean = e.b.sub(e.b.select(below, e.b.sub(zero, mean), mean), offset)
        return e.b.trunc(_limit(e, mean, low, high), vector(I8, lanes))


class Mean(Function):
    """The mean of a whole picture, requantised."""

    name = "mean"

    def finish(self, e: Emitter, acc: Value, count: Value, params: Value) -> Value:
        lanes = acc.type.count
        real = vector(F32, lanes)
        if self.element == F32:
            divisor = e.b.sitofp(e.splat(e.b.trunc(count, I32), lanes), real)
            return e.b.fdiv(acc, divisor)
        low, high, rounding, factor = (number(e, params, i, F32, lanes) for i in range(4))
        total = e.b.sub(acc, number(e, params, 4, I32, lanes))
        value = e.b.fmul(e.b.sitofp(total, real), factor)
        value = e.b.fadd(e.fmin(e.fmax(value, low), high), rounding)
        return e.b.trunc(e.b.bitcast(value, total.type), vector(I8, lanes))


ROUNDING = 1.5 * 2**23  # leaves the nearest whole number in the low bits of a small float


def number(e: Emitter, params: Value, index: int, t: Type, lanes: int) -> Value:
    """A number of the step, in all lanes; small integers are stored as int32."""
    stored = F32 if t == F32 else I32
    value = e.load(e.at(params, index, I32), stored, 4)
    return e.splat(e.b.trunc(value, t) if t in (I8, I16) else value, lanes)


def _limit(e: Emitter, value: Value, low: Value, high: Value) -> Value:
    value = e.b.select(e.b.icmp_signed("<", value, low), low, value)
    return e.b.select(e.b.icmp_signed(">", value, high), high, value)


# -- one output pixel -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run of equal blocks of channels: vectors * lanes each, of which `stored` count."""

    first: int
    count: int
    vectors: int
    lanes: int
    stored: int


def runs_of(channels: int, lanes: int) -> list[Run]:
    """Blocks of four vectors, single vectors, and what is left."""
    found, first = [], 0
    for vectors in (4, 1):
        size = vectors * lanes
        count = (channels - first) // size
        if count:
            found.append(Run(first, count, vectors, lanes, size))
        first += count * size
    if first < channels:
        found.append(Run(first, 1, 1, lanes, channels - first))
    return found


@dataclass(frozen=True)
class PixelCode:
    """(source, rows, columns, row_pitch, pitch, out, params, count, first, last) -> one pixel."""

    function: Function
    run: Run
    exact: bool  # nothing may be read behind the last channel

    @property
    def is_part(self) -> bool:
        return self.run.stored < self.run.vectors * self.run.lanes

    @property
    def name(self) -> str:
        f, r = self.function, self.run
        name = f"pool_{f.name}_{f.type_name}_{r.vectors}x{r.lanes}"
        return name + (f"_n{r.stored}" + "_exact" * self.exact) * self.is_part

    types = (PTR, I64, I64, I64, I64, PTR, PTR, I64, I64, I64)

    def build(self, e: Emitter) -> None:
        source, rows, columns, row_pitch, pitch, out, params, count, first, last = e.args
        out.add_attribute("noalias")
        run, f = self.run, self.function
        with e.loop(first, last) as block:
            place = e.mul(block, run.vectors * run.lanes * f.item)
            here = e.at(source, place, I8)
            acc = [f.start(e, run.lanes)] * run.vectors
            with e.loop(0, rows, carry=acc) as (y, outer):
                line = e.at(here, e.mul(y, row_pitch), I8)
                with e.loop(0, columns, carry=outer) as (x, inner):
                    pixel = e.at(line, e.mul(x, pitch), I8)
                    e.carry([f.step(e, a, self._load(e, pixel, v)) for v, a in enumerate(inner)])
                e.carry(e.carried)
            for v, total in enumerate(e.carried):
                target = e.at(e.at(out, place, I8), v * run.lanes * f.item, I8)
                value = f.finish(e, total, count, params)
                e.store_part(value, target, run.stored if self.is_part else run.lanes)

    def _load(self, e: Emitter, pixel: Value, index: int) -> Value:
        t = vector(self.function.element, self.run.lanes)
        pointer = e.at(pixel, index * self.run.lanes * self.function.item, I8)
        if self.is_part and self.exact:
            return e.load_part(pointer, t, self.run.stored)
        return e.load(pointer, t)


# -- the step -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picture:
    """[batch, height, width, channels] and the windows over it."""

    batch: int
    size: tuple[int, int]
    out: tuple[int, int]
    channels: int
    window: Geometry


def emit_windows(k: StepEmitter, x: Tensor, out: Tensor, picture: Picture, function: Function,
                 params: Array) -> None:  # fmt: skip
    """Units of (picture, output row, group of channel blocks)."""
    if not out.nbytes:
        return
    source, target, numbers = k.ptr(x), k.ptr(out), k.constant(params)
    runs = runs_of(picture.channels, function.lanes(k.target))
    exact = k.program.places[x].slot >= FIRST_ARG
    lines = picture.batch * picture.out[0]
    groups = 1 if lines >= 8 else min(max(r.count for r in runs), math.ceil(8 / lines))
    begin, end = k.share(lines * groups)
    pitch = picture.channels * function.item
    with k.loop(begin, end) as unit:
        group, line = k.rem(unit, groups), k.div(unit, groups)
        n, y = k.div(line, picture.out[0]), k.rem(line, picture.out[0])
        top, rows = _cut(k, y, picture, 0)
        with k.loop(0, picture.out[1]) as column:
            left, columns = _cut(k, column, picture, 1)
            at = k.add(k.mul(k.add(k.mul(n, picture.size[0]), top), picture.size[1]), left)
            place = k.add(k.mul(line, picture.out[1]), column)
            for run in runs:
                code = PixelCode(function, run, exact)
                skip = run.first * function.item
                first = k.div(k.mul(group, run.count), groups)
                last = k.div(k.mul(k.add(group, 1), run.count), groups)
                k.b.call(k.program.function(code.name, code.types, code.build), [
                    k.at(source, k.add(k.mul(at, pitch), skip), I8), k.i64(rows), k.i64(columns),
                    I64(picture.size[1] * pitch), I64(pitch),
                    k.at(target, k.add(k.mul(place, pitch), skip), I8), numbers,
                    k.i64(k.mul(rows, columns)), k.i64(first), k.i64(last),
                ])  # fmt: skip


def _cut(k: StepEmitter, index: Int, picture: Picture, axis: int) -> tuple[Int, Int]:
    """Where a window begins inside the picture, and how much of it is inside."""
    w = picture.window
    begin = k.sub(k.mul(index, w.stride[axis]), w.before[axis])
    first = k.max(begin, 0)
    return first, k.sub(k.min(k.add(begin, w.kernel[axis]), picture.size[axis]), first)


def _tensor(op: Op) -> Tensor:
    tensor = op.inputs[0]
    assert tensor is not None
    return tensor


def _element(x: Tensor) -> tuple[Type, bool]:
    return (F32, False) if x.dtype is DType.FLOAT32 else (I8, x.dtype is DType.INT8)


def _numbers(floats: Sequence[float] = (), whole: Sequence[int] = ()) -> Array:
    """Float and integer numbers of a step, 32 bits each, floats first."""
    return np.concatenate(
        [np.array(floats, np.float32).view(np.int32), np.array(whole, np.int32)]
    ).astype(np.int32)


def emit_pool(k: StepEmitter, op: Op) -> None:
    x, out = _tensor(op), op.outputs[0]
    function: Function = (Max if op.name == "MAX_POOL_2D" else Average)(*_element(x))
    if x.dtype is DType.FLOAT32:
        act = ACTIVATION_BOUNDS.get(attr(op, "fused_activation_function"), (-np.inf, np.inf))
        params = _numbers([max(act[0], -LARGEST), min(act[1], LARGEST)])
    else:
        # Averages round as the user's type would have it.
        was_signed = bool(op.attrs.get("was_signed"))
        offset = 128 * (int(x.dtype is DType.INT8) - int(was_signed))
        params = _numbers(whole=[*fused_range(op), offset])
    batch, height, width, channels = x.shape
    picture = Picture(batch, (height, width), (out.shape[1], out.shape[2]), channels, window_of(op))
    emit_windows(k, x, out, picture, function, params)


def emit_mean(k: StepEmitter, op: Op) -> None:
    """MEAN over height and width: one window, whose rows are one."""
    x, out = _tensor(op), op.outputs[0]
    batch, height, width, channels = x.shape
    whole = Geometry((1, height * width), (1, 1), (1, 1), (0, 0, 0, 0))
    picture = Picture(batch, (1, height * width), (1, 1), channels, whole)
    params = _numbers()
    if x.dtype is not DType.FLOAT32:
        (scale, zero), (out_scale, out_zero) = scale_zero(x), scale_zero(out)
        low, high = (-128, 127) if x.dtype is DType.INT8 else (0, 255)
        count = height * width
        params = _numbers([low - out_zero, high - out_zero, ROUNDING + out_zero,
                           scale / out_scale / count], [zero * count])  # fmt: skip
    emit_windows(k, x, out, picture, Mean(*_element(x)), params)


def refuses_pool(op: Op, target: Target) -> str | None:
    x = _tensor(op)
    if x.dtype not in (DType.FLOAT32, DType.INT8, DType.UINT8):
        return f"input type {x.dtype.short} has no kernel"
    if op.name == "AVERAGE_POOL_2D" and x.shape[1] * x.shape[2] > MOST_COUNT:
        return f"an average over more than {MOST_COUNT} pixels has no kernel"
    return None


def refuses_mean(op: Op, target: Target) -> str | None:
    x, axes = _tensor(op), op.inputs[1]
    if x.dtype not in (DType.FLOAT32, DType.INT8, DType.UINT8):
        return f"input type {x.dtype.short} has no kernel"
    if axes is None or axes.data is None or len(x.shape) != 4:
        return "only the mean of pictures has a kernel"
    if sorted(int(a) % 4 for a in axes.data.reshape(-1)) != [1, 2] or not x.nbytes:
        return "only the mean over height and width has a kernel"
    return None


POOL = Kernel(emit_pool, refuses_pool)
KERNELS = {
    "AVERAGE_POOL_2D": POOL,
    "MAX_POOL_2D": POOL,
    "MEAN": Kernel(emit_mean, refuses_mean),
}
