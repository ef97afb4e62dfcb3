"""Pooling: every type over a table of windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from .harness import Case, T, case, f32


def _window(
    height: int,
    width: int,
    stride_h: int = 1,
    stride_w: int = 1,
    padding: str = "SAME",
    activation: str = "NONE",
) -> dict[str, Any]:
    return {
        "filter_height": height,
        "filter_width": width,
        "padding": padding,
        "stride_h": stride_h,
        "stride_w": stride_w,
        "fused_activation_function": activation,
    }


GEOMETRY: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((1, 4, 5, 3), _window(2, 2, 2, 2)),
    ((2, 7, 6, 2), _window(3, 2, 2, 1, "VALID", "RELU")),
    ((1, 7, 7, 4), _window(7, 7, 1, 1, "VALID")),
    ((1, 5, 5, 1), _window(3, 4, 1, 3, "SAME", "RELU6")),
    ((1, 3, 2, 5), _window(9, 8, 2, 2, "SAME", "RELU_N1_TO_1")),
    ((3, 1, 1, 2), _window(1, 1)),
    ((1, 6, 9, 2), _window(1, 3, 4, 5, "SAME")),
]
POOLS = ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
CODES = [("u8", 0.05, 3), ("u8", 0.02, 255), ("i8", 0.05, -3), ("i8", 0.1, -128), ("i16", 0.001, 0)]


def _special(rng: np.random.Generator) -> Any:
    values = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1, -3e38, 3e38], np.float32)
    return rng.choice(values, (1, 6, 6, 3))


CASES: list[Case] = [
    *(case(op, f32(*x), tol=3e-7, **a) for op in POOLS for x, a in GEOMETRY),
    *(
        case(
            op,
            T(x, kind, scale=scale, zp=zero),
            out=[T((), kind, scale=scale, zp=zero)],
            version=3 if kind == "i16" else 2,
            **a,
        )
        for op in POOLS[:2]
        for kind, scale, zero in CODES
        for x, a in GEOMETRY
    ),
    *(
        case(
            op,
            T((1, 6, 6, 3), "f32", make=_special),
            name="special",
            **_window(1, 1, activation=act),
        )
        for op in POOLS
        for act in ("NONE", "RELU", "TANH")
    ),
    # The kernel's maximum ignores NaN and starts at the lowest finite value.
    case("MAX_POOL_2D", T((1, 6, 6, 3), "f32", make=_special), name="special", **_window(2, 2)),
    case("AVERAGE_POOL_2D", f32(1, 5, 4, 2), name="huge_window", tol=3e-7, **_window(30000, 20000)),
]
