"""Pools over windows, and the mean of pictures: channels in vector lanes, a window at a time.

    pool_<function>_<type>_<vectors>x<lanes>[_k<window>][_n<stored>]   pixels for a run of blocks

What hangs over the picture does not count: the window's rows and columns are cut to what is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .....ir import Array, DType, Op, Tensor
from .....ops.fixed import finite_bounds, fused_bounds, fused_range
from ...codegen.emit import F32, F64, I8, I16, I32, I64, PTR, Emitter, Int, Type, Value, vector
from ...codegen.program import StepEmitter
from ...codegen.vector_math import sqrt
from ...dialect.fused import Fused, either, operator
from ...isa.targets import Target
from ...runtime.abi import FIRST_ARG
from ..row import Kernel
from ..window import Geometry, window_of

# Quotients of sums by counts up to this are exact in float32 (see Average.finish).
MOST_COUNT = 1 << 15
LARGEST = float(np.finfo(np.float32).max)
ITEMS = {F32: 4, I16: 2, I8: 1}
# Taps of a window that is written out: 3x3 ran 1.9 times as fast with 16 or 32 channels, and 2x2
# with 16; with 64 and more there was no difference.
MOST_TAPS = 16


@dataclass(frozen=True)
class Function:
    """What becomes of a window's elements. params: numbers of the step that `finish` reads."""

    element: Type  # in memory
    signed: bool = False

    name = ""
    item = property(lambda self: ITEMS[self.element])
    type_name = property(
        lambda self: "f32" if self.element == F32 else f"{'us'[self.signed]}{8 * self.item}"
    )

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
        lowest = -LARGEST if self.element == F32 else -(1 << (8 * self.item - 1)) * self.signed
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
        # both numbers are below 2**24 (of 16-bit codes, they are doubles), and no quotient comes
        # closer to the next whole number than 1 / count, which is more than its rounding error.
        whole = e.splat(e.b.trunc(count, I32), lanes)
        total = e.b.add(acc, e.b.mul(whole, offset))
        zero = e.const(total.type, 0)
        below = e.b.icmp_signed("<", total, zero)
        size = e.b.select(below, e.b.sub(zero, total), total)
        size = e.b.add(size, e.b.lshr(whole, e.const(whole.type, 1)))
        if self.element == I16:
            real = vector(F64, lanes)
            divisor = e.b.sitofp(whole, real)
        mean = e.b.fptosi(e.b.fdiv(e.b.sitofp(size, real), divisor), total.type)
        mean = e.b.sub(e.b.select(below, e.b.sub(zero, mean), mean), offset)
        return e.b.trunc(_limit(e, mean, low, high), vector(self.element, lanes))


class Squares(Average):
    """The root of the mean square, of floats."""

    name = "squares"

    def step(self, e: Emitter, acc: Value, x: Value) -> Value:
        return e.b.fadd(acc, e.b.fmul(x, x))

    def finish(self, e: Emitter, acc: Value, count: Value, params: Value) -> Value:
        divisor = e.b.sitofp(e.splat(e.b.trunc(count, I32), acc.type.count), acc.type)
        low, high = (number(e, params, i, F32, acc.type.count) for i in (0, 1))
        return e.fmin(high, e.fmax(low, sqrt(e, e.b.fdiv(acc, divisor))))


class Mean(Function):
    """The mean of a whole picture of floats."""

    name = "mean"

    def finish(self, e: Emitter, acc: Value, count: Value, params: Value) -> Value:
        lanes = acc.type.count
        divisor = e.b.sitofp(e.splat(e.b.trunc(count, I32), lanes), acc.type)
        return e.b.fdiv(acc, divisor)


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
class BlockRun:
    """A run of equal blocks of channels: vectors * lanes each, of which `stored` count."""

    first: int
    count: int
    vectors: int
    lanes: int
    stored: int


def runs_of(channels: int, lanes: int) -> list[BlockRun]:
    """Blocks of four vectors, single vectors, and what is left."""
    found, first = [], 0
    for vectors in (4, 1):
        size = vectors * lanes
        count = (channels - first) // size
        if count:
            found.append(BlockRun(first, count, vectors, lanes, size))
        first += count * size
    if first < channels:
        found.append(BlockRun(first, 1, 1, lanes, channels - first))
    return found


@dataclass(frozen=True)
class PixelCode:
    """(source, rows, columns, row_pitch, pitch, out, params, count, first, last, pixels, step,
    out_pitch): pixels of a row whose windows are equally large, `step` bytes apart."""

    function: Function
    run: BlockRun
    exact: bool  # nothing may be read behind the last channel
    taps: tuple[int, int] | None = None  # the window, where it is known

    @property
    def is_part(self) -> bool:
        return self.run.stored < self.run.vectors * self.run.lanes

    @property
    def name(self) -> str:
        f, r = self.function, self.run
        name = f"pool_{f.name}_{f.type_name}_{r.vectors}x{r.lanes}"
        name += "" if self.taps is None else "_k{}x{}".format(*self.taps)
        return name + (f"_n{r.stored}" + "_exact" * self.exact) * self.is_part

    types = (PTR, I64, I64, I64, I64, PTR, PTR, I64, I64, I64, I64, I64, I64)

    def build(self, e: Emitter) -> None:
        source, rows, columns, row_pitch, pitch, out, params, count, first, last, *rest = e.args
        pixels, step, out_pitch = rest
        out.add_attribute("noalias")
        run, f = self.run, self.function
        with e.loop(0, pixels) as number, e.loop(first, last) as block:
            place = e.mul(block, run.vectors * run.lanes * f.item)
            here = e.at(source, e.add(place, e.mul(number, step)), I8)
            there = e.at(out, e.add(place, e.mul(number, out_pitch)), I8)
            for v, total in enumerate(self._total(e, here, rows, columns, row_pitch, pitch)):
                value = f.finish(e, total, count, params)
                e.store_part(
                    value,
                    e.at(there, v * run.lanes * f.item, I8),
                    run.stored if self.is_part else run.lanes,
                )

    def _total(
        self, e: Emitter, here: Value, rows: Value, columns: Value, row_pitch: Value, pitch: Value
    ) -> list[Value]:
        def add(acc: Sequence[Value], line: Value, x: Int) -> list[Value]:
            pixel = e.at(line, e.mul(x, pitch), I8)
            return [self.function.step(e, a, self._load(e, pixel, v)) for v, a in enumerate(acc)]

        acc = [self.function.start(e, self.run.lanes)] * self.run.vectors
        if self.taps is not None:
            for y, x in np.ndindex(*self.taps):
                acc = add(acc, e.at(here, e.mul(row_pitch, y), I8), x)
            return acc
        with e.loop(0, rows, carry=acc) as (y, outer):
            line = e.at(here, e.mul(y, row_pitch), I8)
            with e.loop(0, columns, carry=outer) as (x, inner):
                e.carry(add(inner, line, x))
            e.carry(e.carried)
        return e.carried

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

    @property
    def whole(self) -> range:
        """The columns whose windows do not hang over the sides."""
        size, w = self.size[1], self.window
        first = min(-(-w.before[1] // w.stride[1]), self.out[1])
        stop = (size - w.kernel[1] + w.before[1]) // w.stride[1] + 1
        return range(first, max(first, min(stop, self.out[1])))


def emit_windows(
    k: StepEmitter, x: Tensor, out: Tensor, picture: Picture, function: Function, params: Array
) -> None:
    """Units of (picture, output row, group of channel blocks)."""
    if not out.nbytes:
        return
    source, target, numbers = k.ptr(x), k.ptr(out), k.constant(params)
    runs = runs_of(picture.channels, function.lanes(k.target))
    exact = k.program.places[x].slot >= FIRST_ARG
    lines = picture.batch * picture.out[0]
    groups = 1 if lines >= 8 else min(max(r.count for r in runs), math.ceil(8 / lines))
    begin, end = k.share(lines * groups)
    dense = picture.channels * function.item
    pitch, out_pitch = k.pitch(x, dense), k.pitch(out, dense)
    with k.loop(begin, end) as unit:
        group, line = k.rem(unit, groups), k.div(unit, groups)
        n, y = k.div(line, picture.out[0]), k.rem(line, picture.out[0])
        top, rows = _cut(k, y, picture, 0)

        def pixels(column: Int, count: int, taps: tuple[int, int] | None = None) -> None:
            left, columns = _cut(k, column, picture, 1)
            at = k.add(k.mul(k.add(k.mul(n, picture.size[0]), top), picture.size[1]), left)
            place = k.add(k.mul(line, picture.out[1]), column)
            for run in runs:
                code = PixelCode(function, run, exact, taps)
                skip = run.first * function.item
                first = k.div(k.mul(group, run.count), groups)
                last = k.div(k.mul(k.add(group, 1), run.count), groups)
                k.b.call(
                    k.program.function(code.name, code.types, code.build),
                    [
                        k.at(source, k.add(k.mul(at, pitch), skip), I8),
                        k.i64(rows),
                        k.i64(columns),
                        I64(picture.size[1] * pitch),
                        I64(pitch),
                        k.at(target, k.add(k.mul(place, out_pitch), skip), I8),
                        numbers,
                        k.i64(k.mul(rows, columns)),
                        k.i64(first),
                        k.i64(last),
                        I64(count),
                        I64(picture.window.stride[1] * pitch),
                        I64(out_pitch),
                    ],
                )

        whole = picture.whole
        after: Int = whole.start
        if whole and math.prod(picture.window.kernel) <= MOST_TAPS:
            full = k.b.icmp_signed("==", k.i64(rows), I64(picture.window.kernel[0]))
            with k.when(full):
                pixels(whole.start, len(whole), picture.window.kernel)
            after = k.b.select(full, I64(whole.stop), I64(whole.start))
        for start, stop in ((0, whole.start), (after, picture.out[1])):
            with k.loop(start, stop) as column:
                pixels(column, 1)


def _cut(k: StepEmitter, index: Int, picture: Picture, axis: int) -> tuple[Int, Int]:
    """Where a window begins inside the picture, and how much of it is inside."""
    w = picture.window
    begin = k.sub(k.mul(index, w.stride[axis]), w.before[axis])
    first = k.max(begin, 0)
    return first, k.sub(k.min(k.add(begin, w.kernel[axis]), picture.size[axis]), first)


def _tensor(op: Op) -> Tensor:
    tensor = op.operand(0)
    return tensor


def _element(x: Tensor) -> tuple[Type, bool]:
    return ELEMENTS[x.dtype]


ELEMENTS = {
    DType.FLOAT32: (F32, False),
    DType.UINT8: (I8, False),
    DType.INT8: (I8, True),
    DType.INT16: (I16, True),
}
FUNCTIONS: dict[str, type[Function]] = {
    "AVERAGE_POOL_2D": Average,
    "L2_POOL_2D": Squares,
    "MAX_POOL_2D": Max,
}


def _numbers(floats: Sequence[float] = (), whole: Sequence[int] = ()) -> Array:
    """Float and integer numbers of a step, 32 bits each, floats first."""
    return np.concatenate(
        [np.array(floats, np.float32).view(np.int32), np.array(whole, np.int32)]
    ).astype(np.int32)


def emit_pool(k: StepEmitter, op: Op) -> None:
    x, out = _tensor(op), op.outputs[0]
    function = FUNCTIONS[operator(op)](*_element(x))
    if x.dtype is DType.FLOAT32:
        params = _numbers(list(map(float, finite_bounds(fused_bounds(op)))))
    else:
        # Averages round as the user's type would have it.
        offset = 128 * (int(x.dtype is DType.INT8) - int(Fused.of(op).signed))
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
    emit_windows(k, x, out, picture, Mean(*_element(x)), _numbers())


def refuses_pool(op: Op, target: Target) -> str | None:
    x = _tensor(op)
    if x.dtype not in ELEMENTS or (op.name == "L2_POOL_2D" and x.dtype is not DType.FLOAT32):
        return f"input type {x.dtype.short} has no kernel"
    if op.name != "MAX_POOL_2D" and x.shape[1] * x.shape[2] > MOST_COUNT:
        return f"an average over more than {MOST_COUNT} pixels has no kernel"
    return None


def is_mean_of_images(op: Op) -> bool:
    """A mean of floats over height and width, which is a pool. That of codes has to be rounded as
    the definition rounds."""
    x, axes = op.input(0), op.input(1)
    if x is None or axes is None or axes.data is None or len(x.shape) != 4:
        return False
    return x.dtype is DType.FLOAT32 and {int(a) % 4 for a in axes.data.reshape(-1)} == {1, 2}


def refuses_mean(op: Op, target: Target) -> str | None:
    return None if _tensor(op).nbytes else "an empty tensor has no kernel"


POOL = Kernel(emit_pool, refuses_pool, reads=lambda op: (0,), writes=lambda op: True)
KERNELS = {
    **dict.fromkeys(either("AVERAGE_POOL_2D"), replace(POOL, sign_matters=True)),
    "L2_POOL_2D": POOL,
    "MAX_POOL_2D": POOL,
    "MEAN": Kernel(emit_mean, refuses_mean, handles=is_mean_of_images),
}
