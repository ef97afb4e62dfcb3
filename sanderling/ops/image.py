"""Resizing images."""

from __future__ import annotations

import numpy as np

from ..ir import Array, Op, Shape
from .base import (
    attr,
    define,
    elements,
    ints,
    on,
    require,
    shaped,
    sized,
)
from .fixed import round_away, truncated


def _resized(op: Op, shape: Shape, size: list[int]) -> Shape:
    require(len(shape) == 4, op, f"the input has rank {len(shape)}, not 4")
    require(len(size) == 2, op, f"the new size has {len(size)} numbers, not 2")
    require(shape[1] > 0 and shape[2] > 0, op, f"an input of shape {shape} has no pixels")
    return (shape[0], *size, shape[3])


def _ratio(op: Op, old: int, new: int) -> tuple[int, int]:
    """Old pixels to new pixels; with align_corners, old gaps to new gaps."""
    return (old - 1, new - 1) if attr(op, "align_corners") and new > 1 else (old, new)


# -- bilinear -----------------------------------------------------------------------------------

# Along one axis: lower neighbour, upper neighbour, their weights. The kernels work in float32 for
# f32 and u8, and with 10 fractional bits for the signed integers.
Taps = tuple[Array, Array, Array, Array]


def float_taps(op: Op, old: int, new: int) -> Taps:
    top, bottom = _ratio(op, old, new)
    scale = np.float32(top) / np.float32(bottom)
    places = np.arange(new, dtype=np.float32)
    half = np.float32(0.5)
    at = (places + half) * scale - half if attr(op, "half_pixel_centers") else places * scale
    low = np.maximum(np.floor(at).astype(np.int64), 0)
    high = np.minimum(np.ceil(at).astype(np.int64), old - 1)
    part = at - low.astype(np.float32)
    return low, high, 1 - part, part


def fixed_taps(op: Op, old: int, new: int) -> Taps:
    top, bottom = _ratio(op, old, new)
    scale = (1024 * top + bottom // 2) // bottom
    at = np.arange(new, dtype=np.int64) * scale
    if attr(op, "half_pixel_centers"):
        at += scale // 2 - 512
    # C divides toward zero; below zero that and a shift differ, but the clamp hides it.
    low = np.maximum(at >> 10, 0)
    high = np.minimum(truncated(at + 1023, 1024), old - 1)
    part = at - 1024 * low
    return low, high, 1024 - part, part


def _blend(x: Array, rows: Taps, columns: Taps) -> Array:
    """The weighted sum of four neighbours, in the kernel's order of operations."""
    top, bottom, near_y, far_y = rows
    left, right, near_x, far_x = columns
    near_y, far_y = near_y[:, None, None], far_y[:, None, None]
    near_x, far_x = near_x[:, None], far_x[:, None]
    upper, lower = x[:, top], x[:, bottom]
    result = upper[:, :, left] * near_y * near_x + lower[:, :, left] * far_y * near_x
    result += upper[:, :, right] * near_y * far_x
    result += lower[:, :, right] * far_y * far_x
    return result


def _blended(op: Op, shape: Shape, size: list[int]) -> Shape:
    found = _resized(op, shape, size)
    require(min(size) > 0, op, f"the new size {size} is not positive")
    fits = not (attr(op, "align_corners") and attr(op, "half_pixel_centers"))
    require(fits, op, "align_corners and half_pixel_centers exclude each other")
    return found


def _bilinear(op: Op, x: Array, size: Array) -> Array:
    _, height, width, _ = sized(op, _blended(op, x.shape, ints(size)))
    sizes = (x.shape[1], height), (x.shape[2], width)
    if x.dtype == np.int8 or x.dtype == np.int16:
        rows, columns = (fixed_taps(op, old, new) for old, new in sizes)
        total = _blend(x.astype(np.int64), rows, columns)
        half = np.where(total > 0, 1 << 19, -(1 << 19))
        return truncated(total + half, 1 << 20).astype(x.dtype)
    rows, columns = (float_taps(op, old, new) for old, new in sizes)
    blended = _blend(x.astype(np.float32), rows, columns)
    return blended if x.dtype == np.float32 else (blended + np.float32(0.5)).astype(x.dtype)


define(
    "RESIZE_BILINEAR",
    infer=shaped(_blended, by=[1]),
    evaluate=on(_bilinear),
    family="image",
    takes="x[4]: f32 u8 i8 i16, size[1]: i32 -> x",
    macs=lambda op: 4 * elements(op.outputs[0].shape),
)


# -- nearest neighbour --------------------------------------------------------------------------


def nearest_places(op: Op, old: int, new: int) -> Array:
    top, bottom = _ratio(op, old, new)
    scale = np.float32(top) / np.float32(max(bottom, 1))
    offset = np.float32(0.5 if attr(op, "half_pixel_centers") else 0)
    at = (np.arange(new, dtype=np.float32) + offset) * scale
    whole = round_away(at) if attr(op, "align_corners") else np.floor(at)
    return np.clip(whole.astype(np.int64), 0, old - 1)


def _nearest(op: Op, x: Array, size: Array) -> Array:
    _, height, width, _ = sized(op, _resized(op, x.shape, ints(size)))
    rows = nearest_places(op, x.shape[1], height)
    columns = nearest_places(op, x.shape[2], width)
    return x[:, rows[:, None], columns]


define(
    "RESIZE_NEAREST_NEIGHBOR",
    infer=shaped(_resized, by=[1]),
    evaluate=on(_nearest),
    family="image",
    takes="x[4]: f32 f16 bf16 u8 i8 u16 i16 i32 u32 bool, size[1]: i32 -> x",
)
