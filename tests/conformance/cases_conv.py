"""Convolutions: every type and variant over a table of geometries."""

from __future__ import annotations

from typing import Any

import numpy as np

from .harness import Case, T, case, const, f32, i8, i16, u8, weights

SUM = 2e-6  # long float sums are ordered differently


def _scales(count: int, low: float = 0.002, high: float = 0.02) -> list[float]:
    return np.random.default_rng(count).uniform(low, high, count).astype(np.float32).tolist()  # type: ignore[no-any-return]


# Input shape, filter [O, taps..., C], attributes.
SAME: dict[str, Any] = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
VALID: dict[str, Any] = SAME | {"padding": "VALID"}
STRIDED: dict[str, Any] = {"padding": "SAME", "stride_h": 2, "stride_w": 3}
DILATED: dict[str, Any] = SAME | {"dilation_h_factor": 2, "dilation_w_factor": 3}
GEOMETRY: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 5, 6, 4), (8, 1, 1, 4), SAME),
    ((2, 7, 5, 3), (4, 3, 3, 3), SAME),
    ((1, 8, 9, 4), (5, 3, 2, 4), VALID | {"fused_activation_function": "RELU"}),
    ((2, 9, 8, 2), (3, 3, 5, 2), STRIDED | {"fused_activation_function": "RELU6"}),
    ((1, 10, 10, 3), (4, 3, 3, 3), DILATED),
    ((1, 9, 9, 2), (6, 2, 2, 2), VALID | {"dilation_h_factor": 3, "stride_w": 2}),
    ((1, 6, 6, 6), (4, 3, 3, 3), SAME | {"fused_activation_function": "RELU_N1_TO_1"}),  # 2 groups
    ((1, 4, 4, 4), (8, 3, 3, 1), VALID),  # one group a channel
    ((1, 2, 3, 2), (2, 5, 4, 2), SAME),  # larger than the image
    ((1, 3, 3, 2), (2, 3, 3, 2), SAME | {"dilation_h_factor": 100, "dilation_w_factor": 7}),
    ((3, 1, 1, 16), (1, 1, 1, 16), STRIDED),
]
PLAIN = [g for g in GEOMETRY if g[0][3] == g[1][3]]


def _bias(channels: int, dtype: str, scale: Any, spread: int = 2000, axis: int = 0) -> T:
    if dtype == "f32":
        return weights(channels, low=-1, high=1)
    return weights(channels, dtype=dtype, low=-spread, high=spread, scale=scale, axis=axis)


def _float(op: str, x: Any, w: Any, attrs: dict[str, Any], channels: int) -> Case:
    return case(op, f32(*x), weights(*w, seed=3), _bias(channels, "f32", None), tol=SUM, version=6 if op == "CONV_2D" else 2, **attrs)  # fmt: skip


CONV_FLOAT = [_float("CONV_2D", x, w, a, w[0]) for x, w, a in GEOMETRY]
CONV_UINT8 = [
    case("CONV_2D", u8(*x, scale=0.03, zp=zx), weights(*w, dtype="u8", scale=0.02, zp=zw),
         _bias(w[0], "i32", 0.0006), out=[u8(scale=so, zp=zo)], **a)
    for (x, w, a), (zx, zw, so, zo) in zip(
        GEOMETRY, [(128, 120, 0.2, 100), (0, 0, 0.6, 0), (255, 255, 0.15, 255), (3, 130, 0.07, 10)] * 3)
]  # fmt: skip
CONV_INT8 = [
    case("CONV_2D", i8(*x, scale=0.03, zp=zx), weights(*w, dtype=kind, scale=scale),
         _bias(w[0], "i32", 0.0003), out=[i8(scale=so, zp=zo)], name=f"{'channel' if per else 'tensor'}",
         version=7 if kind == "i4" else 3, **a)
    for kind in ("i8", "i4") for per in (True, False)
    for (x, w, a), (zx, so, zo) in zip(
        GEOMETRY, [(1, 0.1, -3), (-128, 0.02, -128), (127, 0.05, 127), (0, 0.3, 5)] * 3)
    for scale in [_scales(w[0]) if per else 0.01]
]  # fmt: skip
CONV_INT16 = [
    case("CONV_2D", i16(*x, scale=0.001), weights(*w, dtype=kind, scale=_scales(w[0])),
         _bias(w[0], bias, 1e-5, 100000), out=[i16(scale=0.0007)], name=bias,
         version=8 if bias == "i32" else 4, **more, **a)
    for kind, bias, more in [("i8", "i64", {}), ("i8", "i32", {"quantized_bias_type": "INT32"}),
                             ("i8", "i64", {"quantized_bias_type": "INT64"}), ("i4", "i64", {})]
    for x, w, a in GEOMETRY[:8]
]  # fmt: skip
CONV_HYBRID = [
    case("CONV_2D", f32(*x), weights(*w, dtype=kind, scale=scale), _bias(w[0], "f32", None),
         name="hybrid" + ("_channel" if per else ""), tol=SUM, version=7 if kind == "i4" else 5, **a)
    for kind in ("i8", "i4") for per in (True, False)
    for x, w, a in (GEOMETRY if per else PLAIN)
    if not per or w[0] > 1
    for scale in [_scales(w[0]) if per else 0.01]
]  # fmt: skip
CASES: list[Case] = CONV_FLOAT + CONV_UINT8 + CONV_INT8 + CONV_INT16 + CONV_HYBRID
