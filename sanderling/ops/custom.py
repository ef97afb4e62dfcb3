"""Custom operators: those that LiteRT registers by itself, and MediaPipe's.

LiteRT's read their options from a flexbuffer map, MediaPipe's from a raw C struct.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from flatbuffers import flexbuffers

from ..errors import ModelError
from ..ir import Array, DType, Op, Shape, Tensor
from .base import (
    Spec,
    Specs,
    check_same_shape,
    define,
    elements,
    fitting,
    on,
    operand,
    out_spec,
    require,
    scale_zero,
    single,
    sized,
    unknown_outputs,
)
from .fixed import ACTIVATION_BOUNDS, finite_bounds, limits
from .geometry import Axis, axis, padding_before
from .index import Boxes


def _raw_options(op: Op) -> bytes:
    return bytes(op.attrs.get("options") or b"")


def flex_options(op: Op, **defaults: Any) -> dict[str, Any]:
    """A flexbuffer map, with defaults for what it leaves out."""
    try:
        found = flexbuffers.Loads(_raw_options(op))
    except Exception as error:  # the reader trusts its input: a damaged one may raise anything
        raise ModelError(
            "its options are not a flexbuffer", where=op.where, fix="the model is damaged"
        ) from error
    require(isinstance(found, dict), op, "its options are not a map")
    return defaults | {k: v for k, v in found.items() if v is not None}


def _shape(op: Op, specs: Specs, index: int, rank: int) -> Shape | None:
    shape = operand(op, specs, index).shape
    require(shape is None or len(shape) == rank, op, f"input {index} must have rank {rank}")
    return shape


# -- TFLite_Detection_PostProcess ---------------------------------------------------------------


def detection_options(op: Op) -> dict[str, Any]:
    found = flex_options(
        op,
        max_detections=0,
        max_classes_per_detection=0,
        detections_per_class=100,
        use_regular_nms=False,
        nms_score_threshold=0.0,
        nms_iou_threshold=0.0,
        num_classes=0,
        y_scale=0.0,
        x_scale=0.0,
        h_scale=0.0,
        w_scale=0.0,
    )
    counts = ("max_detections", "max_classes_per_detection", "detections_per_class", "num_classes")
    require(all(int(found[name]) >= 0 for name in counts), op, "an option is negative")
    require(0 < found["nms_iou_threshold"] <= 1, op, "nms_iou_threshold is not in (0, 1]")
    return found


def _detection_rows(op: Op, options: dict[str, Any]) -> int:
    wanted = int(options["max_detections"]) * int(options["max_classes_per_detection"])
    return sized(op, (wanted, 4))[0]


def _infer_detection(op: Op, specs: Specs) -> list[Spec]:
    rows = _detection_rows(op, detection_options(op))
    shapes: list[Shape] = [(1, rows, 4), (1, rows), (1, rows), (1,)]
    return [out_spec(op, shape, i) for i, shape in enumerate(shapes)]


def _real(tensor: Tensor | None, x: Array) -> Array:
    """Codes to float32; floats as they are."""
    if x.dtype == np.float32:
        return x
    scale, zero = scale_zero(tensor)
    return (x.astype(np.float32) - np.float32(zero)) * np.float32(scale)


def _decode_boxes(boxes: Array, anchors: Array, scales: Sequence[float]) -> Array:
    """Offsets from anchors (y, x, height, width) to corners (top, left, bottom, right)."""
    b, a = boxes[:, :4].astype(np.float64), anchors.astype(np.float64)
    y, x, h, w = np.asarray(scales, np.float32).astype(np.float64)
    centre = np.stack([b[:, 0] / y * a[:, 2] + a[:, 0], b[:, 1] / x * a[:, 3] + a[:, 1]], axis=1)
    half = 0.5 * np.exp(b[:, 2:] / (h, w)) * a[:, 2:]
    centre, half = centre.astype(np.float32), half.astype(np.float32)
    return np.concatenate([centre - half, centre + half], axis=1)


def _suppress(boxes: Array, scores: Array, most: int, options: dict[str, Any]) -> list[int]:
    """Indices of the best boxes that do not overlap a better one too much."""
    shapes = Boxes(boxes)
    kept = np.flatnonzero(scores >= np.float32(options["nms_score_threshold"]))
    order = kept[np.argsort(-scores[kept], kind="stable")]
    chosen: list[int] = []
    while order.size and len(chosen) < most:
        best, order = int(order[0]), order[1:]
        chosen.append(best)
        over = shapes.overlap(best, order)
        order = order[~(over > np.float32(options["nms_iou_threshold"]))]
    return chosen


Found = tuple[Array, Array, Array, int]  # places in the output, boxes, classes; how many


def _detect_fast(boxes: Array, scores: Array, options: dict[str, Any]) -> Found:
    """One suppression, on each box's best class."""
    slots = int(options["max_classes_per_detection"])
    count = min(slots, scores.shape[1])
    # LiteRT's partial sort leaves the order of equal scores open, but for the first.
    classes = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    best = np.take_along_axis(scores, classes[:, :1], axis=1)[:, 0]
    chosen = np.array(_suppress(boxes, best, int(options["max_detections"]), options), np.int64)
    place = (np.arange(chosen.size)[:, None] * slots + np.arange(count)).reshape(-1)
    return place, np.repeat(chosen, count), classes[chosen].reshape(-1), chosen.size


def _detect_regular(boxes: Array, scores: Array, options: dict[str, Any]) -> Found:
    """A suppression for each class, then the best of all."""
    most = int(options["max_detections"])
    each = [
        _suppress(boxes, scores[:, k], min(int(options["detections_per_class"]), most), options)
        for k in range(scores.shape[1])
    ]
    kind = np.repeat(np.arange(scores.shape[1]), [len(chosen) for chosen in each])
    box = np.array([i for chosen in each for i in chosen], np.int64)
    order = np.argsort(-scores[box, kind], kind="stable")[:most]
    return np.arange(order.size), box[order], kind[order], order.size


def _check_detection(op: Op, boxes: Shape, scores: Shape, anchors: Shape) -> int:
    """How many scores of a box are of no class: the background's, or none."""
    require(boxes[0] == scores[0] == 1, op, "only a batch of one is supported")
    fits = boxes[1] == scores[1] <= anchors[0] and boxes[2] >= 4 and anchors[1] == 4
    require(fits, op, "boxes, scores and anchors do not fit")
    options = detection_options(op)
    classes = int(options["num_classes"])
    background = scores[2] - classes
    fits = classes > 0 and background in (0, 1)
    require(fits, op, f"{scores[2]} scores a box for {classes} classes")
    some = _detection_rows(op, options) > 0 or bool(options["use_regular_nms"])
    require(some, op, "max_classes_per_detection must be positive")
    return background


def _detection(op: Op, boxes: Array, scores: Array, anchors: Array) -> list[Array]:
    options = detection_options(op)
    rows = _detection_rows(op, options)
    background = _check_detection(op, boxes.shape, scores.shape, anchors.shape)
    corners = _decode_boxes(
        _real(op.inputs[0], boxes)[0],
        _real(op.inputs[2], anchors)[: boxes.shape[1]],
        [float(options[f"{name}_scale"]) for name in "yxhw"],
    )
    require(not np.any(corners[:, :2] > corners[:, 2:]), op, "a box has a negative size")
    points = _real(op.inputs[1], scores)[0, :, background:]
    regular = bool(options["use_regular_nms"])
    found = (_detect_regular if regular else _detect_fast)(corners, points, options)
    return _detections(op, rows, corners, points, found)


def _detections(op: Op, rows: int, corners: Array, points: Array, found: Found) -> list[Array]:
    """The four outputs; rows without a detection are zero."""
    place, box, kind, count = found
    require(not place.size or int(place[-1]) < rows, op, "more detections than the outputs hold")
    where = np.zeros((1, rows, 4), np.float32)
    what, how_sure = np.zeros((1, rows), np.float32), np.zeros((1, rows), np.float32)
    where[0, place], what[0, place], how_sure[0, place] = corners[box], kind, points[box, kind]
    return [where, what, how_sure, np.array([count], np.float32)]


define(
    "custom.TFLite_Detection_PostProcess",
    infer=fitting(_check_detection, [0, 1, 2], _infer_detection),
    evaluate=on(_detection),
    family="custom",
    takes="x[3]: f32 u8q, scores[3]: f32 u8q, anchors[2]: f32 u8q -> f32, f32, f32, f32",
    notes="fast and regular suppression",
)


# -- audio: AudioSpectrogram and Mfcc -----------------------------------------------------------


def spectrogram_sizes(op: Op, samples: int) -> tuple[int, int, int, int]:
    """Window, stride, number of frames, length of the transform."""
    options = flex_options(op, window_size=0, stride=0)
    window, stride = int(options["window_size"]), int(options["stride"])
    require(window >= 2 and stride >= 1, op, f"window_size {window}, stride {stride}")
    frames = 0 if samples < window else 1 + (samples - window) // stride
    return window, stride, frames, 1 << (window - 1).bit_length()


def _infer_spectrogram(op: Op, specs: Specs) -> Spec:
    shape = _shape(op, specs, 0, 2)
    if shape is None:
        return out_spec(op, None)
    _, _, frames, length = spectrogram_sizes(op, shape[0])
    return out_spec(op, sized(op, (shape[1], frames, 1 + length // 2)))


def _spectrogram(op: Op, x: Array) -> Array:
    """Squared (or plain) magnitudes of Hann-windowed frames, [channel, frame, frequency]."""
    window, stride, frames, length = spectrogram_sizes(op, x.shape[0])
    shape = sized(op, (x.shape[1], frames, 1 + length // 2))
    if not elements(shape):
        return np.zeros(shape, np.float32)
    hann = 0.5 - 0.5 * np.cos(2.0 * np.pi * np.arange(window) / window)
    views = np.lib.stride_tricks.sliding_window_view(x.T, window, axis=1)[:, ::stride]
    spectrum = np.fft.rfft(views * hann, n=length, axis=2)
    power = (spectrum.real**2 + spectrum.imag**2).astype(np.float32)
    return power if flex_options(op).get("magnitude_squared") else np.sqrt(power)


define(
    "custom.AudioSpectrogram",
    infer=_infer_spectrogram,
    evaluate=on(_spectrogram),
    family="custom",
    takes="x[2]: f32 -> f32",
)


def mfcc_options(op: Op) -> dict[str, int]:
    """LiteRT reads the frequencies as integers too."""
    found = flex_options(
        op,
        upper_frequency_limit=0,
        lower_frequency_limit=0,
        filterbank_channel_count=0,
        dct_coefficient_count=0,
    )
    whole = {name: int(value) for name, value in found.items() if isinstance(value, int | float)}
    fits = 0 < whole["dct_coefficient_count"] <= whole["filterbank_channel_count"]
    require(fits, op, "it needs at least as many channels as coefficients")
    fits = 0 <= whole["lower_frequency_limit"] < whole["upper_frequency_limit"]
    require(fits, op, "the frequency limits are wrong")
    return whole


def _infer_mfcc(op: Op, specs: Specs) -> Spec:
    shape = _shape(op, specs, 0, 3)
    count = mfcc_options(op)["dct_coefficient_count"]
    return out_spec(op, None if shape is None else sized(op, (*shape[:2], count)))


def _mel(hertz: Any) -> Any:
    return 1127.0 * np.log1p(np.asarray(hertz, np.float64) / 700.0)


def mel_weights(op: Op, bins: int, rate: float) -> tuple[int, Array] | None:
    """The first bin that is read, and triangular filters [bins that are read, channels]; None where
    the spectrum ends below the upper limit. What lies outside, be it no number, does not count."""
    options = mfcc_options(op)
    channels = options["filterbank_channel_count"]
    low, high = options["lower_frequency_limit"], options["upper_frequency_limit"]
    require(rate > 0 and bins >= 2, op, "the sample rate or the spectrum is empty")
    sized(op, (bins, channels + 1))
    hertz = 0.5 * rate / (bins - 1)
    first, last = int(1.5 + low / hertz), int(high / hertz)
    if last >= bins:
        return None
    centres = _mel(low) + (_mel(high) - _mel(low)) / (channels + 1) * np.arange(1, channels + 2)
    places = np.arange(first, last + 1)
    mels = _mel(places * hertz)
    band = np.searchsorted(centres[:channels], mels) - 1  # the channel on whose falling side it is
    edges = np.concatenate([[_mel(low)], centres])
    falling = (edges[band + 2] - mels) / (edges[band + 2] - edges[band + 1])
    weights = np.zeros((bins, channels + 2))  # a column too many on both sides
    weights[places, band + 1] = falling
    weights[places, band + 2] += 1 - falling
    return first, weights[first : last + 1, 1:-1]


def _check_rate(op: Op, x: Shape, rate: Shape) -> None:
    single(op, rate, "the sample rate")
    require(elements(x) > 0, op, f"an input of shape {x} is empty")


def _mfcc(op: Op, x: Array, rate: Array) -> Array:
    _check_rate(op, x.shape, rate.shape)
    options = mfcc_options(op)
    channels, count = options["filterbank_channel_count"], options["dct_coefficient_count"]
    found = mel_weights(op, x.shape[2], float(rate.reshape(())))
    if found is None:
        return np.zeros((*x.shape[:2], count), np.float32)
    first, weights = found
    energy = np.sqrt(x[:, :, first : first + len(weights)].astype(np.float64)) @ weights
    logs = np.log(np.where(energy < 1e-12, 1e-12, energy))
    angles = np.pi / channels * np.arange(count)[:, None] * (np.arange(channels) + 0.5)
    cosines = np.sqrt(2.0 / channels) * np.cos(angles)
    made: Array = (logs @ cosines.T).astype(np.float32)
    return made


define(
    "custom.Mfcc",
    infer=fitting(_check_rate, [0, 1], _infer_mfcc),
    evaluate=on(_mfcc),
    family="custom",
    takes="x[3]: f32, rate: i32 -> f32",
)


# -- NumericVerify and aeq.hadamard_rotation ----------------------------------------------------


def _numeric_verify(op: Op, x: Array, reference: Array) -> Array:
    """Quantised minus reference; an error where the difference is more than the tolerance."""
    check_same_shape(op, x.shape, reference.shape)
    options = flex_options(op, tolerance=0.0, log_if_failed=False)
    quantised = op.inputs[0]
    if quantised is None or quantised.dtype is DType.FLOAT16:
        return x.astype(np.float32) - reference
    difference = _real(quantised, x) - reference
    if options["log_if_failed"] and options["tolerance"] >= 0.1:
        most = np.float32(options["tolerance"]) * np.float32(scale_zero(quantised)[0])
        require(
            not np.any(np.abs(difference) > most),
            op,
            f"a quantised value is more than {most} away from its reference",
            "quantise with better ranges, or raise the tolerance",
        )
    return difference


define(
    "custom.NumericVerify",
    infer=fitting(check_same_shape, [0, 1]),
    evaluate=on(_numeric_verify),
    family="custom",
    takes="x: u8q i8q i16q f16, reference: f32 -> f32",
)


def _hadamard(x: Array) -> Array:
    """The normalised Walsh-Hadamard transform of rows whose length is a power of two."""
    count, size = x.shape
    step = 1
    while step < size:
        pairs = x.reshape(count, -1, 2, step)
        a, b = pairs[:, :, 0], pairs[:, :, 1]
        x = np.stack([a + b, a - b], axis=2).reshape(count, size)
        step *= 2
    scaled: Array = x * np.float32(1.0 / np.sqrt(np.float64(size)))
    return scaled


def _hadamard_size(op: Op, shape: Shape) -> int:
    size = int(flex_options(op, hadamard_size=0)["hadamard_size"])
    fits = size > 0 and size & (size - 1) == 0 and shape[-1] % size == 0
    require(fits, op, f"blocks of {size} do not divide rows of {shape[-1]}")
    return size


def _hadamard_rotation(op: Op, x: Array) -> Array:
    size = _hadamard_size(op, x.shape)
    return _hadamard(x.reshape(-1, size)).reshape(x.shape)


define(
    "custom.aeq.hadamard_rotation",
    infer=fitting(_hadamard_size, [0]),
    evaluate=on(_hadamard_rotation),
    family="custom",
    takes="x[2-3]: f32 -> f32",
    macs=lambda op: elements(op.outputs[0].shape),
)


# -- MediaPipe ----------------------------------------------------------------------------------

_ACTIVATIONS = {1: "RELU", 2: "RELU_N1_TO_1", 3: "RELU6"}
_PADDINGS = {1: "SAME", 2: "VALID"}


def _struct_options(op: Op, count: int) -> tuple[int, ...]:
    """The first fields, all int32, of the C struct that the file holds."""
    raw = _raw_options(op)
    fits = len(raw) >= 4 * count
    require(fits, op, f"its options have {len(raw)} bytes, too few", "the model is damaged")
    return struct.unpack_from(f"<{count}i", raw)


def transposed_sizes(op: Op, x: Shape, w: Shape) -> list[tuple[int, int, int]]:
    """Stride, output size and cropping at the start, for both axes."""
    padding, stride_x, stride_y = _struct_options(op, 3)
    require(stride_x > 0 and stride_y > 0, op, f"strides {stride_y}, {stride_x}")
    require(w[3] == x[3], op, f"{x[3]} channels, the filter takes {w[3]}")
    found = []
    for size, taps, stride in zip(x[1:3], w[1:3], (stride_y, stride_x), strict=True):
        same = _PADDINGS.get(padding) == "SAME"
        crop = max(0, taps - (size - 1) % stride - 1) if same else 0
        found.append((stride, stride * (size - 1) + taps - crop, crop // 2))
    return found


def _infer_transposed(op: Op, specs: Specs) -> Spec:
    x, w = _shape(op, specs, 0, 4), _shape(op, specs, 1, 4)
    if x is None or w is None:
        return out_spec(op, None)
    (_, height, _), (_, width, _) = transposed_sizes(op, x, w)
    return out_spec(op, sized(op, (x[0], height, width, w[0])))


def _check_transposed(op: Op, x: Shape, w: Shape, bias: Shape) -> None:
    require(bias == w[:1], op, f"bias {bias} for filter {w}")
    require(elements(x) > 0 and elements(w) > 0, op, "an input is empty")


def _transposed(op: Op, x: Array, w: Array, bias: Array) -> Array:
    """A transposed convolution that starts from the bias."""
    _check_transposed(op, x.shape, w.shape, bias.shape)
    (sy, height, top), (sx, width, left) = transposed_sizes(op, x.shape, w.shape)
    rows, columns = x.shape[1:3]
    taps_y, taps_x = w.shape[1:3]
    whole = sy * (rows - 1) + taps_y, sx * (columns - 1) + taps_x
    result = np.empty(sized(op, (x.shape[0], *whole, w.shape[0])), np.float32)
    result[:] = bias
    for ky, kx in itertools.product(range(taps_y), range(taps_x)):
        result[:, ky : ky + sy * rows : sy, kx : kx + sx * columns : sx] += x @ w[:, ky, kx].T
    return np.ascontiguousarray(result[:, top : top + height, left : left + width])


def _transposed_macs(op: Op) -> int:
    x, w = op.input(0), op.input(1)
    return 0 if x is None or w is None else elements(x.shape[:3]) * elements(w.shape)


define(
    "custom.Convolution2DTransposeBias",
    infer=fitting(_check_transposed, [0, 1, 2], _infer_transposed),
    evaluate=on(_transposed),
    family="custom",
    takes="x[4]: f32, w[4]: f32, bias[1]: f32 -> f32",
    macs=_transposed_macs,
    notes="MediaPipe",
)


def pool_options(op: Op) -> tuple[str, tuple[int, int], tuple[int, int], str]:
    """Padding, strides and filter (vertical first), activation."""
    padding, sx, sy, fx, fy, activation = _struct_options(op, 6)
    require(min(sx, sy, fx, fy) > 0, op, f"strides {(sy, sx)}, filter {(fy, fx)}")
    # The kernel ignores activations that it does not know.
    return _PADDINGS.get(padding, "VALID"), (sy, sx), (fy, fx), _ACTIVATIONS.get(activation, "NONE")


def pool_axes(op: Op, x: Shape) -> list[Axis]:
    padding, strides, taps, _ = pool_options(op)
    return [
        axis(op, padding, size, tap, stride)
        for size, tap, stride in zip(x[1:3], taps, strides, strict=True)
    ]


def _infer_argmax_pool(op: Op, specs: Specs) -> list[Spec]:
    x = _shape(op, specs, 0, 4)
    if x is None:
        return unknown_outputs(op)
    shape = sized(op, (x[0], *(a.out for a in pool_axes(op, x)), x[3]))
    return [out_spec(op, shape), out_spec(op, shape, 1)]


def _argmax_pool(op: Op, x: Array) -> list[Array]:
    """Maxima, and where in the window they were (plus 0.1, for those who truncate)."""
    _, _, (_, width), activation = pool_options(op)
    axes = pool_axes(op, x.shape)
    shape = sized(op, (x.shape[0], *(a.out for a in axes), x.shape[3]))
    low, _ = limits(x.dtype)
    best, place = np.full(shape, low, np.float32), np.zeros(shape, np.float32)
    for ky, kx in itertools.product(*(a.live_taps() for a in axes)):
        (rows, from_rows), (columns, from_columns) = axes[0].slices(ky), axes[1].slices(kx)
        seen, now = x[:, from_rows, from_columns], best[:, rows, columns]
        better = seen > now
        now[better] = seen[better]
        place[:, rows, columns][better] = ky * width + kx
    bounds = finite_bounds(ACTIVATION_BOUNDS[activation])
    return [np.clip(best, *bounds), place + np.float32(0.1)]


define(
    "custom.MaxPoolingWithArgmax2D",
    infer=_infer_argmax_pool,
    evaluate=on(_argmax_pool),
    family="custom",
    takes="x[4]: f32 -> f32, f32",
    notes="MediaPipe",
)


def _infer_unpool(op: Op, specs: Specs) -> Spec:
    x = _shape(op, specs, 0, 4)
    _, _, (fy, fx), _ = pool_options(op)
    return out_spec(op, None if x is None else sized(op, (x[0], x[1] * fy, x[2] * fx, x[3])))


def _unpool(op: Op, x: Array, indices: Array) -> Array:
    """Every value at the place that its index names; the rest is zero."""
    check_same_shape(op, x.shape, indices.shape)
    _, strides, taps, _ = pool_options(op)
    n, rows, columns, depth = x.shape
    sizes = rows * taps[0], columns * taps[1]
    result = np.zeros(sized(op, (n, *sizes, depth)), np.float32)
    nowhere = -(2.0**31)  # what a processor makes of a NaN
    index = np.nan_to_num(np.trunc(indices.astype(np.float64)), nan=nowhere, posinf=nowhere)
    first_y, first_x = (
        np.arange(count) * s - padding_before(size, f, s, 1, count)
        for count, s, size, f in zip((rows, columns), strides, sizes, taps, strict=True)
    )
    # C divides toward zero, so that the remainder of a negative index is negative.
    y = first_y[:, None, None] + np.trunc(index / taps[1])
    z = first_x[:, None] + np.fmod(index, taps[1])
    inside = (y >= 0) & (y < sizes[0]) & (z >= 0) & (z < sizes[1])
    batch, channel = np.broadcast_arrays(np.arange(n)[:, None, None, None], np.arange(depth), x)[:2]
    place = (batch[inside], y[inside].astype(np.int64), z[inside].astype(np.int64), channel[inside])
    result[place] = x[inside]
    return result


define(
    "custom.MaxUnpooling2D",
    infer=fitting(check_same_shape, [0, 1], _infer_unpool),
    evaluate=on(_unpool),
    family="custom",
    takes="x[4]: f32, indices[4]: f32 -> f32",
    notes="MediaPipe",
)


def _resampled_shape(op: Op, specs: Specs) -> Spec:
    x, places = _shape(op, specs, 0, 4), _shape(op, specs, 1, 4)
    return out_spec(op, None if x is None or places is None else (*places[:3], x[3]))


def _check_resampler(op: Op, x: Shape, places: Shape) -> None:
    require(x[0] == places[0], op, f"{x[0]} images, places for {places[0]}")
    require(places[3] >= 2, op, f"places have {places[3]} channels, x and y are two")
    require(elements(x) > 0, op, "the image is empty")


def _resample(op: Op, x: Array, places: Array) -> Array:
    """Each place (x, y) between four neighbours; outside of the image all is zero."""
    _check_resampler(op, x.shape, places.shape)
    (columns, dx), (rows, dy) = (
        _resampler_axis(places[..., channel], x.shape[axis]) for channel, axis in ((0, 2), (1, 1))
    )
    batch = np.arange(len(x))[:, None, None]
    padded = np.pad(x, ((0, 0), (1, 2), (1, 2), (0, 0)))
    corners = [padded[batch, rows + i, columns + j] for i in (0, 1) for j in (0, 1)]
    top, bottom = (a + (b - a) * dx for a, b in (corners[:2], corners[2:]))
    found: Array = top + (bottom - top) * dy
    return found


def _resampler_axis(places: Array, extent: int) -> tuple[Array, Array]:
    """The first of two neighbours, counted from the zeros before the image, and the share of the
    second. Whatever lies outside is among the zeros, NaN too."""
    near = np.clip(np.nan_to_num(places, nan=-1.0), np.float32(-1), np.float32(extent))
    first = np.floor(near)
    return first.astype(np.int64) + 1, (near - first)[..., None].astype(np.float32)


define(
    "custom.Resampler",
    infer=fitting(_check_resampler, [0, 1], _resampled_shape),
    evaluate=on(_resample),
    family="custom",
    takes="x[4]: f32, places[4]: f32 -> f32",
    notes="of TensorFlow Lite's GPU delegate",
)
