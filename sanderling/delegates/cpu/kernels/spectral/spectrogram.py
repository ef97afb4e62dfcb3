"""AudioSpectrogram: windowed frames through the real Fourier transform, as powers or magnitudes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .....errors import SanderlingError
from .....ir import DType, Op
from .....ops.custom import flex_options, spectrogram_sizes
from ...codegen import vector_math as vmath
from ...codegen.emit import F32, I64, PTR, Emitter, vector
from ...codegen.program import StepEmitter
from ...isa.targets import Target
from ..row import Kernel
from .fourier import RealRows


def emit_spectrogram(k: StepEmitter, op: Op) -> None:
    x, y = op.operand(0), op.outputs[0]
    window, stride, frames, length = spectrogram_sizes(op, x.shape[0])
    channels, bins = x.shape[1], 1 + length // 2
    if 0 in y.shape:
        return
    squared = bool(flex_options(op).get("magnitude_squared"))
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(window) / window)
    curve = k.constant(hann.astype(np.float32))
    source, target = k.ptr(x), k.ptr(y)
    rows = RealRows(length, length)
    frame = k.scratch(4 * (rows.floats + 4 * length + 64))
    spectrum = k.at(frame, length, F32)
    memory = k.at(spectrum, 2 * length + 32, F32)
    k.fill(k.at(frame, window, F32), 4 * (length - window), 0)
    lanes = k.target.lanes if bins > k.target.lanes else 1
    powers = k.program.function(
        f"powers_x{lanes}" + "_root" * (not squared),
        [PTR, PTR, I64],
        partial(_build_powers, lanes=lanes, root=not squared),
    )
    shaped = k.program.function("windowed", [PTR, PTR, PTR, I64, I64], _build_windowed)
    begin, end = k.share(channels * frames)
    with k.loop(begin, end) as unit:
        channel, number = k.div(unit, frames), k.rem(unit, frames)
        first = k.add(k.mul(number, stride * channels), channel)
        k.b.call(shaped, [frame, k.at(source, first, F32), curve, I64(window), I64(channels)])
        rows.emit(k, spectrum, frame, memory)
        k.b.call(powers, [k.at(target, k.mul(unit, bins), F32), spectrum, I64(bins)])


def _build_windowed(e: Emitter) -> None:
    """(to, by, curve, count, step): samples, `step` apart, times the curve."""
    to, by, curve, count, step = e.args
    with e.loop(0, count) as i:
        value = e.load(e.at(by, e.mul(i, step), F32), F32)
        e.store(e.b.fmul(value, e.load(e.at(curve, i, F32), F32, 4)), e.at(to, i, F32), 4)


def _build_powers(e: Emitter, lanes: int, root: bool) -> None:
    """(to, by, count): squared magnitudes, or magnitudes; the last vector reaches back."""
    to, by, count = e.args
    with e.loop(0, count, lanes) as i:
        place = e.min(i, e.sub(count, lanes))
        both = e.load(e.at(by, e.mul(place, 2), F32), vector(F32, 2 * lanes), 4)
        real, imaginary = (e.shuffle(both, None, range(j, 2 * lanes, 2)) for j in (0, 1))
        power = e.b.fadd(e.b.fmul(real, real), e.b.fmul(imaginary, imaginary))
        e.store(vmath.sqrt(e, power) if root else power, e.at(to, place, F32))


def refuses_spectrogram(op: Op, target: Target) -> str | None:
    x = op.operand(0)
    if x.dtype is not DType.FLOAT32 or len(x.shape) != 2 or not math.prod(x.shape):
        return f"a spectrogram of {x.dtype.short} of {len(x.shape)} dimensions has no kernel"
    try:
        spectrogram_sizes(op, x.shape[0])
    except SanderlingError as error:
        return f"its options do not fit: {error}"
    return None


KERNELS = {
    "custom.AudioSpectrogram": Kernel(
        emit_spectrogram, refuses_spectrogram, lambda op: "spectrogram"
    )
}
