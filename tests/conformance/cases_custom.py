"""Conformance cases of the custom operators."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from sanderling.ir import Array

from .harness import Case, T, case, const, f16, f32, i8, i16, u8, weights


def options(**values: Any) -> bytes:
    return bytes(flexbuffers.Dumps(values))


# -- TFLite_Detection_PostProcess ---------------------------------------------------------------


def anchors(count: int) -> Array:
    """Boxes with centres in the unit square, (y, x, height, width)."""
    rng = np.random.default_rng(3)
    sizes = rng.uniform(0.1, 0.4, (count, 2))
    return np.concatenate([rng.uniform(0, 1, (count, 2)), sizes], axis=1).astype(np.float32)


def distinct(*shape: int) -> T:
    """Scores without ties: LiteRT's partial sort leaves the order of equal classes open."""

    def make(rng: np.random.Generator) -> Array:
        size = int(np.prod(shape))
        return ((rng.permutation(size) + 0.5) / size).reshape(shape).astype(np.float32)

    return T(shape, "f32", make=make)


DETECTION = {"max_classes_per_detection": 1, "nms_score_threshold": 0.0, "nms_iou_threshold": 0.5,
             "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0}  # fmt: skip
OUTPUTS = [f32(), f32(), f32(), f32()]


def detection(name: str, boxes: T, scores: T, table: T, **more: Any) -> Case:
    return case(
        "custom.TFLite_Detection_PostProcess",
        boxes,
        scores,
        table,
        out=OUTPUTS,
        name=name,
        options=options(**(DETECTION | more)),
        ulps=8,
    )


def detections(count: int, columns: int, width: int = 4) -> tuple[T, T, T]:
    return f32(1, count, width), distinct(1, count, columns), const(anchors(count), "f32")


CODES = np.random.default_rng(4).integers(20, 236, (40, 4))

# The fast variant does not write rows for which it has no detection: these cases fill all.
DETECTIONS = [
    detection("fast", *detections(30, 6), max_detections=5, num_classes=5),
    detection("fast, no background", *detections(30, 5), max_detections=5, num_classes=5),
    detection("fast, keypoints", *detections(30, 4, 8), max_detections=4, num_classes=3),
    detection("fast, 3 classes a box", *detections(20, 8), max_detections=4, num_classes=7,
              max_classes_per_detection=3),
    detection("fast, one class", *detections(20, 2), max_detections=3, num_classes=1),
    detection("fast, strict overlap", *detections(60, 4), max_detections=3, num_classes=3,
              nms_iou_threshold=0.05),
    detection("fast, u8", u8(1, 40, 4, scale=0.05, zp=128), u8(1, 40, 6, scale=1 / 256),
              const(CODES, "u8", scale=1 / 300, zp=3), max_detections=5, num_classes=5),
    detection("fast, u8 scores", f32(1, 40, 4), u8(1, 40, 6, scale=1 / 256),
              const(anchors(40), "f32"), max_detections=5, num_classes=5),
    *[detection(f"regular, {name}", *detections(30, 6), num_classes=5, use_regular_nms=True,
                **more)
      for name, more in {
          "plain": {"max_detections": 10},
          "few a class": {"max_detections": 10, "detections_per_class": 1},
          "threshold": {"max_detections": 40, "nms_score_threshold": 0.6},
          "nothing found": {"max_detections": 4, "nms_score_threshold": 2.0},
          "more rows than boxes": {"max_detections": 200},
      }.items()],
    detection("regular, no background", *detections(25, 3), max_detections=8, num_classes=3,
              use_regular_nms=True),
    detection("regular, u8", u8(1, 40, 4, scale=0.05, zp=128), u8(1, 40, 6, scale=1 / 256),
              const(CODES, "u8", scale=1 / 300, zp=3), max_detections=20, num_classes=5,
              use_regular_nms=True),
]  # fmt: skip

# -- audio --------------------------------------------------------------------------------------

SPECTROGRAM = [
    case(
        "custom.AudioSpectrogram",
        f32(samples, channels),
        tol=1e-6,
        ulps=16,
        name=f"window {window}, stride {stride}, {'' if squared else 'not '}squared",
        options=options(window_size=window, stride=stride, magnitude_squared=squared),
    )
    for samples, channels in ((64, 1), (100, 2), (16, 1))
    for window, stride in ((16, 8), (10, 3), (7, 12), (2, 1))
    for squared in (True, False)
]


def odd_spectrum(rng: np.random.Generator) -> Array:
    """A negative number where it is read, which is from bin 1 to 32, and where it is not, too."""
    spectrum = rng.uniform(0, 50, (1, 5, 65))
    spectrum[0, range(4), [0, 20, 33, 64]] = [-1, -1, np.nan, np.inf]
    return spectrum


MFCC = [
    case(
        "custom.Mfcc",
        f32(1, 5, 65, make=odd_spectrum),
        const([16000], "i32"),
        tol=1e-6,
        ulps=16,
        name="negative, infinite, no number",
        options=options(
            upper_frequency_limit=4000,
            lower_frequency_limit=20,
            filterbank_channel_count=20,
            dct_coefficient_count=13,
        ),
    ),
    *(
        case(
            "custom.Mfcc",
            f32(*shape, low=0, high=50),
            const([rate], "i32"),
            tol=1e-6,
            ulps=16,
            name=f"{bank} channels, {count} coefficients, {low}-{high} Hz",
            options=options(
                upper_frequency_limit=high,
                lower_frequency_limit=low,
                filterbank_channel_count=bank,
                dct_coefficient_count=count,
            ),
        )
        for shape in ((1, 3, 65), (2, 1, 129))
        for rate, bank, count, low, high in (
            (16000, 20, 13, 20, 4000),
            (8000, 10, 10, 0, 4000),
            (8000, 40, 13, 300, 3500),
            (16000, 5, 1, 20.9, 7999.5),
            (4000, 10, 5, 20, 4000),
        )
    ),
]

# -- NumericVerify, aeq.hadamard_rotation -------------------------------------------------------

VERIFY = [
    case(
        "custom.NumericVerify",
        x,
        f32(2, 3),
        out=[f32()],
        name=f"log {log}",
        options=options(tolerance=tolerance, log_if_failed=log),
    )
    for x in (
        i8(2, 3, scale=0.1, zp=-5),
        u8(2, 3, scale=0.07, zp=130),
        i16(2, 3, scale=0.001),
        f16(2, 3),
    )
    for tolerance, log in ((5.0, False), (0.01, True))
]
VERIFY.append(
    case(
        "custom.NumericVerify",
        const([[10, -3]], "i8", scale=0.5, zp=1, fed=True),
        const([[4.4, -2.1]], "f32", fed=True),
        out=[f32()],
        name="within the tolerance",
        options=options(tolerance=0.5, log_if_failed=True),
    )
)

HADAMARD = [
    case(
        "custom.aeq.hadamard_rotation",
        f32(*shape),
        name=f"blocks of {size}",
        tol=1e-6,
        options=options(hadamard_size=size, random_binary_vector=[1] * size),
    )
    for shape, size in [
        ((3, 8), 8),
        ((2, 3, 8), 2),
        ((1, 64), 64),
        ((2, 32), 16),
        ((2, 2, 32), 32),
        ((4, 8), 1),
        ((1, 256), 128),
    ]
]

# -- MediaPipe: LiteRT has no kernels; plain loops judge ----------------------------------------

SAME, VALID = 1, 2


def loop_transposed(x: Array, w: Array, bias: Array, padding: int, sx: int, sy: int) -> Array:
    n, height, width, depth = x.shape
    channels, fy, fx, _ = w.shape
    py = max(0, fy - (height - 1) % sy - 1) if padding == SAME else 0
    px = max(0, fx - (width - 1) % sx - 1) if padding == SAME else 0
    shape = (n, sy * (height - 1) + fy - py, sx * (width - 1) + fx - px, channels)
    out = np.zeros(shape) + bias.astype(np.float64)
    for b, y, z, i, ky, kx in product(*map(range, (n, height, width, depth, fy, fx))):
        oy, ox = y * sy - py // 2 + ky, z * sx - px // 2 + kx
        if 0 <= oy < shape[1] and 0 <= ox < shape[2]:
            out[b, oy, ox] += float(x[b, y, z, i]) * w[:, ky, kx, i]
    return out.astype(np.float32)


def transposed(x: T, w: T, padding: int, sx: int, sy: int) -> Case:
    bias = weights(w.shape[0], seed=9)
    return case(
        "custom.Convolution2DTransposeBias",
        x,
        w,
        bias,
        tol=1e-6,
        litert=False,
        name=f"padding {padding}, strides {sy} {sx}",
        options=struct.pack("<3i", padding, sx, sy),
        expect=lambda a: [loop_transposed(a, w.data, bias.data, padding, sx, sy)],
    )


TRANSPOSED = [
    transposed(f32(*shape), weights(*kernel), padding, sx, sy)
    for shape, kernel in [
        ((1, 3, 4, 2), (3, 2, 2, 2)),
        ((2, 2, 3, 1), (2, 3, 4, 1)),
        ((1, 1, 1, 3), (1, 1, 1, 3)),
    ]
    for padding, (sx, sy) in product((SAME, VALID), ((1, 1), (2, 2), (3, 1)))
]


def margin(stride: int, size: int, taps: int, out: int) -> int:
    return max(0, (out - 1) * stride + taps - size) // 2


def loop_argmax(
    x: Array, padding: int, sx: int, sy: int, fx: int, fy: int, limit: float
) -> list[Array]:
    n, height, width, depth = x.shape
    rows = -(-height // sy) if padding == SAME else (height - fy + sy) // sy
    columns = -(-width // sx) if padding == SAME else (width - fx + sx) // sx
    top, left = margin(sy, height, fy, rows), margin(sx, width, fx, columns)
    best = np.full((n, rows, columns, depth), np.finfo(np.float32).min, np.float32)
    place = np.zeros(best.shape, np.float32)
    for b, y, z, c, ky, kx in product(*map(range, (n, rows, columns, depth, fy, fx))):
        iy, ix = y * sy - top + ky, z * sx - left + kx
        if 0 <= iy < height and 0 <= ix < width and x[b, iy, ix, c] > best[b, y, z, c]:
            best[b, y, z, c] = x[b, iy, ix, c]
            place[b, y, z, c] = ky * fx + kx
    return [np.clip(best, 0, limit) if limit else best, place + np.float32(0.1)]


def loop_unpool(x: Array, indices: Array, sx: int, sy: int, fx: int, fy: int) -> list[Array]:
    n, rows, columns, depth = x.shape
    out = np.zeros((n, rows * fy, columns * fx, depth), np.float32)
    top, left = margin(sy, rows * fy, fy, rows), margin(sx, columns * fx, fx, columns)
    for b, y, z, c in np.ndindex(*x.shape):
        index = int(indices[b, y, z, c])
        oy, ox = y * sy - top + index // fx, z * sx - left + index % fx
        if 0 <= oy < out.shape[1] and 0 <= ox < out.shape[2]:
            out[b, oy, ox, c] = x[b, y, z, c]
    return [out]


def pool(
    op: str,
    inputs: list[T],
    fields: tuple[int, ...],
    expect: Callable[..., list[Array]],
    outputs: int = 1,
) -> Case:
    return case(
        f"custom.{op}",
        *inputs,
        out=[f32()] * outputs,
        litert=False,
        expect=expect,
        name=f"struct {fields}",
        options=struct.pack("<6i8x", *fields),
    )


# The fields of TfLitePoolParams: padding, strides and filter (horizontal first), activation.
POOLS = [
    (SAME, 2, 2, 2, 2, 0),
    (VALID, 2, 2, 2, 2, 0),
    (SAME, 1, 1, 3, 3, 1),
    (VALID, 1, 2, 3, 2, 3),
    (SAME, 3, 2, 2, 3, 0),
]
LIMITS = {0: 0.0, 1: np.inf, 3: 6.0}

MEDIAPIPE = [
    *[
        pool(
            "MaxPoolingWithArgmax2D",
            [f32(*shape, low=-9, high=9)],
            p,
            lambda x, p=p: loop_argmax(x, *p[:5], LIMITS[p[5]]),
            outputs=2,
        )
        for shape in ((1, 4, 6, 2), (2, 5, 7, 1))
        for p in POOLS
    ],
    *[
        pool(
            "MaxUnpooling2D",
            [f32(*shape), f32(*shape, low=0, high=p[3] * p[4] - 0.01)],
            p,
            lambda x, i, p=p: loop_unpool(x, i, *p[1:5]),
        )
        for shape in ((1, 2, 3, 2), (2, 3, 3, 1))
        for p in POOLS
    ],
]


def loop_resample(x: Array, places: Array) -> list[Array]:
    """Point by point, as TensorFlow Lite's kernel for GPUs mixes four neighbours."""
    batch, rows, columns, _ = places.shape
    out = np.zeros((batch, rows, columns, x.shape[3]), np.float32)

    def pixel(image: int, row: int, column: int) -> Array:
        inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
        return x[image, row, column] if inside else np.zeros(x.shape[3], np.float32)

    for b, i, j in np.ndindex(batch, rows, columns):
        px, py = float(places[b, i, j, 0]), float(places[b, i, j, 1])
        left, top = math.floor(px), math.floor(py)
        for row, column in product((0, 1), (0, 1)):
            share = (px - left if column else left + 1 - px) * (py - top if row else top + 1 - py)
            out[b, i, j] += np.float32(share) * pixel(b, top + row, left + column)
    return [out]


RESAMPLER = [
    case(
        "custom.Resampler",
        f32(batch, *size, depth),
        f32(batch, *result, more, low=-2, high=max(size) + 1),
        litert=False,
        expect=loop_resample,
        tol=1e-5,
        why="LiteRT has it on GPUs alone",
    )
    for batch, size, depth, result, more in (
        (1, (5, 4), 3, (3, 6), 2),
        (2, (3, 7), 4, (4, 4), 2),
        (1, (1, 1), 5, (2, 3), 4),
        (1, (8, 9), 6, (5, 5), 2),
    )
]

CASES: list[Case] = [*DETECTIONS, *SPECTROGRAM, *MFCC, *VERIFY, *HADAMARD, *TRANSPOSED, *MEDIAPIPE,
                     *RESAMPLER]  # fmt: skip
