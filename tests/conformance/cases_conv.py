"""Convolutions: every type and variant over a table of geometries."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from .harness import Case, T, biases, case, const, f32, i8, i16, scales, u8, weights

SUM = 2e-6  # long float sums are ordered differently


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


def _float(op: str, x: Any, w: Any, attrs: dict[str, Any], channels: int) -> Case:
    return case(
        op,
        f32(*x),
        weights(*w, seed=3),
        biases(channels, "f32", None),
        tol=SUM,
        version=6 if op == "CONV_2D" else 2,
        **attrs,
    )


# Zero points of input and filter; scale and zero point of the output.
UINT8_CODES = [(128, 120, 0.2, 100), (0, 0, 0.6, 0), (255, 255, 0.15, 255), (3, 130, 0.07, 10)]
INT8_CODES = [(1, 0.1, -3), (-128, 0.02, -128), (127, 0.05, 127), (0, 0.3, 5)]

CONV_FLOAT = [_float("CONV_2D", x, w, a, w[0]) for x, w, a in GEOMETRY]
CONV_UINT8 = [
    case(
        "CONV_2D",
        u8(*x, scale=0.03, zp=zx),
        weights(*w, dtype="u8", scale=0.02, zp=zw),
        biases(w[0], "i32", 0.0006),
        out=[u8(scale=so, zp=zo)],
        **a,
    )
    for (x, w, a), (zx, zw, so, zo) in zip(GEOMETRY, cycle(UINT8_CODES), strict=False)
]
CONV_INT8 = [
    case(
        "CONV_2D",
        i8(*x, scale=0.03, zp=zx),
        weights(*w, dtype=kind, scale=scale),
        biases(w[0], "i32", 0.0003),
        out=[i8(scale=so, zp=zo)],
        name="channel" if per else "tensor",
        version=7 if kind == "i4" else 3,
        **a,
    )
    for kind in ("i8", "i4")
    for per in (True, False)
    for (x, w, a), (zx, so, zo) in zip(GEOMETRY, cycle(INT8_CODES), strict=False)
    for scale in [scales(w[0]) if per else 0.01]
]
CONV_INT16 = [
    case(
        "CONV_2D",
        i16(*x, scale=0.001),
        weights(*w, dtype=kind, scale=scales(w[0])),
        biases(w[0], bias, 1e-5, 100000),
        out=[i16(scale=0.0007)],
        name=bias,
        version=8 if bias == "i32" else 4,
        **more,
        **a,
    )
    for kind, bias, more in [
        ("i8", "i64", {}),
        ("i8", "i32", {"quantized_bias_type": "INT32"}),
        ("i8", "i64", {"quantized_bias_type": "INT64"}),
        ("i4", "i64", {}),
    ]
    for x, w, a in GEOMETRY[:8]
]
# No weight of -128: LiteRT's SSE kernel for a single scale gets its sign wrong.
CONV_HYBRID = [
    case(
        "CONV_2D",
        f32(*x),
        weights(*w, dtype=kind, scale=scale, low=low),
        biases(w[0], "f32", None),
        name="hybrid" + "_channel" * per,
        tol=SUM,
        version=version,
        **a,
    )
    for kind, low, version in (("i8", -127, 5), ("i4", -8, 7))
    for per in (True, False)
    for x, w, a in (GEOMETRY if per else PLAIN)
    if not per or w[0] > 1
    for scale in [scales(w[0]) if per else 0.01]
]
SPECIAL = np.array([np.inf, -np.inf, np.nan, 1, -2, 3e38], np.float32).reshape(1, 1, 6, 1)
CONV_ODD = [
    # Infinities are clamped to the largest finite values; TANH is ignored.
    *(
        case(
            "CONV_2D",
            T((1, 1, 6, 1), "f32", data=SPECIAL, fed=True),
            const([[[[1]]]]),
            const([2]),
            fused_activation_function=act,
            **SAME,
        )
        for act in ("NONE", "RELU", "TANH")
    ),
    *(
        case("CONV_2D", f32(n, 2, 2, 2), weights(4, 3, 3, 2), weights(4), name="empty", **a)
        for n, a in ((1, VALID), (0, SAME))
    ),
    # Multipliers above one; sums and biases that leave 32 bits.
    *(
        case(
            "CONV_2D",
            i8(1, 4, 4, 3, scale=0.03, zp=-5),
            weights(5, 3, 3, 3, dtype="i8", scale=0.02),
            biases(5, "i32", 0.0006, spread),
            out=[i8(scale=so, zp=3)],
            version=3,
            **SAME,
        )
        for spread, scales in ((2, (1e-4, 3e-7)), (2**31 - 1, (0.1, 1e-5, 1e5)))
        for so in scales
    ),
    *(
        case(
            "CONV_2D",
            i16(1, 4, 4, 3, scale=0.03),
            weights(5, 3, 3, 3, dtype="i8", scale=0.02),
            biases(5, bias, 0.0006, 2**30),
            out=[i16(scale=so)],
            version=8,
            quantized_bias_type="INT32" if bias == "i32" else "INT64",
            **SAME,
        )
        for bias in ("i32", "i64")
        for so in (1e-4, 0.1, 2.0)
    ),
    # A zero point of int8 weights counts for nothing.
    case(
        "CONV_2D",
        i8(1, 4, 4, 3, scale=0.03),
        weights(5, 3, 3, 3, dtype="i8", scale=0.02, zp=3),
        biases(5, "i32", 0.0006),
        out=[i8(scale=0.1)],
        version=3,
        name="zero_point",
        **SAME,
    ),
]

# Input shape, filter [1, taps, O], attributes.
DEPTHWISE: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (x, w, a | {"depth_multiplier": w[3] // x[3]})
    for x, w, a in [
        ((1, 6, 5, 4), (1, 3, 3, 4), SAME),
        ((2, 7, 8, 3), (1, 3, 2, 6), VALID | {"fused_activation_function": "RELU6"}),
        ((1, 9, 9, 1), (1, 5, 5, 8), STRIDED),
        ((2, 8, 10, 5), (1, 3, 3, 5), DILATED | {"fused_activation_function": "RELU"}),
        ((1, 4, 3, 2), (1, 7, 6, 4), SAME),
        ((1, 3, 3, 16), (1, 1, 1, 16), SAME),
        ((1, 5, 4, 3), (1, 3, 3, 3), SAME | {"dilation_h_factor": 1000}),
    ]
]
DEPTHWISE_ALL = [
    *(_float("DEPTHWISE_CONV_2D", x, w, a, w[3]) for x, w, a in DEPTHWISE),
    case("DEPTHWISE_CONV_2D", f32(1, 4, 4, 2), weights(1, 3, 3, 2), tol=SUM, name="no_bias",
         **DEPTHWISE[0][2]),
    case("DEPTHWISE_CONV_2D", i8(1, 3, 3, 2, scale=0.1),
         weights(1, 3, 3, 2, dtype="i8", scale=0.01), out=[i8(scale=0.1)], version=3,
         name="no_bias", **DEPTHWISE[0][2]),
    *(case("DEPTHWISE_CONV_2D", u8(*x, scale=0.03, zp=zx),
           weights(*w, dtype="u8", scale=0.02, zp=zw), biases(w[3], "i32", 0.0006),
           out=[u8(scale=so, zp=zo)], version=2, **a)
      for (x, w, a), (zx, zw, so, zo) in zip(DEPTHWISE, cycle(UINT8_CODES), strict=False)),
    *(case("DEPTHWISE_CONV_2D", i8(*x, scale=0.03, zp=zx),
           weights(*w, dtype=kind, scale=scales(w[3]) if per else 0.01, axis=3 if per else 0),
           biases(w[3], "i32", 0.0003), out=[i8(scale=so, zp=zo)],
           name="channel" if per else "tensor", version=6 if kind == "i4" else 3, **a)
      for kind in ("i8", "i4") for per in (True, False)
      for (x, w, a), (zx, so, zo) in zip(DEPTHWISE, cycle(INT8_CODES), strict=False)),
    *(case("DEPTHWISE_CONV_2D", i16(*x, scale=0.001),
           weights(*w, dtype="i8", scale=scales(w[3]), axis=3), biases(w[3], "i64", 1e-5, 100000),
           out=[i16(scale=0.0007)], version=5, **a)
      for x, w, a in DEPTHWISE),
    # A hybrid filter needs a scale for each channel: LiteRT reads past the end of a single one.
    *(case("DEPTHWISE_CONV_2D", f32(*x), weights(*w, dtype="i8", scale=scales(w[3]), axis=3),
           biases(w[3], "f32", None), name="hybrid", tol=SUM, version=6, **a)
      for x, w, a in DEPTHWISE),
]  # fmt: skip

# Input, filter [O, taps, C], output size, attributes.
TRANSPOSED: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((1, 3, 4, 2), (3, 3, 3, 2), (6, 8), {"padding": "SAME", "stride_h": 2, "stride_w": 2}),
    ((2, 3, 2, 4), (2, 2, 3, 4), (6, 8), {"padding": "VALID", "stride_h": 2, "stride_w": 5}),
    ((1, 4, 4, 3), (5, 3, 3, 3), (4, 4), SAME | {"fused_activation_function": "RELU"}),
    ((1, 2, 2, 2), (1, 1, 1, 2), (5, 6), {"padding": "VALID", "stride_h": 3, "stride_w": 4}),
    (
        (1, 3, 3, 1),
        (4, 4, 4, 1),
        (5, 6),
        {"padding": "SAME", "stride_h": 2, "stride_w": 2, "fused_activation_function": "RELU6"},
    ),
]


def _transposed(
    x: T, w: T, size: tuple[int, int], bias: T | None, version: int = 4, **more: Any
) -> Case:
    shape = const([x.shape[0], *size, w.shape[0]], "i32")
    tail = () if bias is None else (bias,)
    return case("TRANSPOSE_CONV", shape, w, x, *tail, version=version, **more)


TRANSPOSED_ALL = [
    _transposed(i8(2, 3, 2, 4, scale=0.03, zp=-128),
                weights(2, 2, 3, 4, dtype="i8", scale=0.003, zp=3), (6, 8), None,
                out=[i8(scale=0.05, zp=-128)], name="zero_point", **TRANSPOSED[1][3]),
    *(_transposed(f32(*x), weights(*w), size, bias, out=[f32()], tol=SUM, **a)
      for x, w, size, a in TRANSPOSED for bias in (None, biases(w[0], "f32", None))),
    *(_transposed(u8(*x, scale=0.03, zp=zx), weights(*w, dtype="u8", scale=0.02, zp=zw), size,
                  bias, out=[u8(scale=0.1, zp=zo)], **a)
      for (x, w, size, a), (zx, zw, _, zo) in zip(TRANSPOSED, cycle(UINT8_CODES), strict=False)
      for bias in (None, biases(w[0], "i32", 0.0006))),
    *(_transposed(i8(*x, scale=0.03, zp=zx),
                  weights(*w, dtype="i8", scale=scales(w[0]) if per else 0.01), size,
                  bias, out=[i8(scale=0.05, zp=zo)], name="channel" if per else "tensor", **a)
      for per in (True, False)
      for (x, w, size, a), (zx, _, zo) in zip(TRANSPOSED, cycle(INT8_CODES), strict=False)
      for bias in (None, biases(w[0], "i32", 0.0003))),
    *(_transposed(i16(*x, scale=0.001), weights(*w, dtype="i8", scale=scales(w[0])), size,
                  bias, out=[i16(scale=0.0007)], version=5 if more else 4, **more, **a)
      for x, w, size, a in TRANSPOSED
      for bias, more in ((None, {}), (biases(w[0], "i64", 1e-5, 100000), {}),
                         (biases(w[0], "i32", 1e-5, 100000), {"quantized_bias_type": "INT32"}),
                         (None, {"quantized_bias_type": "INT32"}))),
    *(_transposed(f32(*x), weights(*w, dtype="i8", scale=scales(w[0]) if per else 0.01), size,
                  bias, out=[f32()], name="hybrid", tol=SUM, **a)
      for per in (True, False) for x, w, size, a in TRANSPOSED
      for bias in (None, biases(w[0], "f32", None))),
    case("TRANSPOSE_CONV", T((4,), "i32", data=[1, 5, 5, 2], fed=True), weights(2, 3, 3, 3),
         f32(1, 3, 3, 3), out=[f32()], name="shape_at_run_time", tol=SUM,
         padding="SAME", stride_h=2, stride_w=2),
]  # fmt: skip

CUBE: dict[str, Any] = {"padding": "SAME", "stride_d": 1, "stride_h": 1, "stride_w": 1}
CUBE_ATTRS: list[dict[str, Any]] = [
    CUBE,
    CUBE | {"padding": "VALID", "stride_h": 2, "fused_activation_function": "RELU"},
    CUBE | {"stride_d": 2, "stride_w": 3, "fused_activation_function": "RELU6"},
    CUBE | {"dilation_d_factor": 2, "dilation_h_factor": 3},
]
CONV_3D = [
    *(
        case("CONV_3D", f32(2, 5, 6, 7, 2), weights(2, 3, 3, 2, 4), *bias, tol=SUM, **a)
        for a in CUBE_ATTRS
        for bias in ((), (biases(4, "f32", None),))
    ),
    *(
        case(
            "CONV_3D_TRANSPOSE",
            const([2, *size, 3], "i32"),
            weights(2, 3, 3, 3, 2),
            f32(2, *small, 2),
            *bias,
            out=[f32()],
            tol=SUM,
            **a,
        )
        for size, small, a in [
            ((4, 5, 6), (4, 5, 6), CUBE),
            ((4, 7, 5), (3, 3, 3), CUBE_ATTRS[1]),
            ((4, 5, 6), (2, 5, 2), CUBE_ATTRS[2]),
            ((4, 5, 6), (4, 5, 6), CUBE_ATTRS[3]),
        ]
        for bias in ((), (biases(3, "f32", None),))
    ),
]

CASES: list[Case] = [
    *CONV_FLOAT, *CONV_UINT8, *CONV_INT8, *CONV_INT16, *CONV_HYBRID, *CONV_ODD, *DEPTHWISE_ALL,
    *TRANSPOSED_ALL, *CONV_3D,
]  # fmt: skip
