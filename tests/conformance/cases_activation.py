"""Cases of the activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases_unary import ALL8, ALL16, SHAPES, every, special, typed
from .harness import Case, T, case, const, f32, i8, i16, u8, weights

ALLU8 = np.arange(256)
CODES = {"i8": ALL8, "u8": ALLU8, "i16": ALL16}

# -- float ----------------------------------------------------------------------------------------

FLOAT = [("RELU", {}), ("RELU6", {}), ("RELU_N1_TO_1", {}), ("RELU_0_TO_1", {}), ("LOGISTIC", {}),
         ("TANH", {}), ("ELU", {}), ("GELU", {"approximate": False}),
         ("GELU", {"approximate": True}), ("HARD_SWISH", {}), ("LEAKY_RELU", {"alpha": 0.2}),
         ("LEAKY_RELU", {"alpha": -1.5})]  # fmt: skip
# Eigen's erfc and tanh of a vector are a few ulps off, and cancel below zero.
TOLERANCE = {"GELU": 1e-6, "ELU": 1e-7}

CASES: list[Case] = [
    case(op, f32(*shape, low=-8, high=8), tol=TOLERANCE.get(op, 0.0), **attrs)
    for op, attrs in FLOAT
    for shape in SHAPES
]
CASES += [
    case(op, special(), name="special", ulps=64 if op == "GELU" else 4, **attrs)
    for op, attrs in FLOAT
]
CASES += [
    case(op, typed(dtype, 4, 9, low=-8, high=8), ulps=2, tol=tol, **attrs)
    for op, dtype, attrs, tol in (
        ("LOGISTIC", "f16", {}, 0),
        ("LOGISTIC", "bf16", {}, 0),
        ("TANH", "f16", {}, 0),
        ("TANH", "bf16", {}, 0),
        ("GELU", "f16", {"approximate": False}, 1e-3),
        ("GELU", "f16", {"approximate": True}, 1e-3),
    )
]

# -- quantised, every code ------------------------------------------------------------------------

RELUS = ["RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"]
# type; input scale, zero point; output scale, zero point
SCALED = [
    ("i8", (0.1, 3), (0.1, 3)), ("i8", (0.07, -20), (0.03, -128)), ("i8", (0.5, 127), (0.9, 0)),
    ("u8", (0.1, 128), (0.05, 0)), ("u8", (0.02, 0), (0.02, 255)), ("u8", (3.0, 9), (0.01, 40)),
]  # fmt: skip
SCALED16 = [
    ("i16", (1e-3, 0), (1e-3, 0)),
    ("i16", (1e-3, 0), (3e-4, 0)),
    ("i16", (2e-4, 0), (7e-3, 0)),
]
LIBM = "the int16 GELU table is made with the host's tanhf and erfcf, which may be an ulp off"
# op, attributes, has an int16 kernel
QUANTISED = [
    *((op, {}, op in ("RELU", "RELU6")) for op in RELUS),
    ("LEAKY_RELU", {"alpha": 0.1}, True), ("LEAKY_RELU", {"alpha": 1.7}, True),
    ("LEAKY_RELU", {"alpha": -0.3}, True), ("LEAKY_RELU", {"alpha": 0.0}, True),
    ("GELU", {"approximate": False}, True), ("GELU", {"approximate": True}, True),
]  # fmt: skip


def coded(
    op: str, dtype: str, source: tuple[float, int], target: tuple[float, int], **more: Any
) -> Case:
    """All codes of the type through one operator."""
    name = f"{source[0]:.3g},{source[1]}to{target[0]:.3g},{target[1]}"
    return case(
        op,
        every(CODES[dtype], dtype, *source),
        out=[typed(dtype, scale=target[0], zp=target[1])],
        name=name,
        **more,
    )


CASES += [
    coded(
        op,
        dtype,
        source,
        target,
        version=1 if op.endswith("_TO_1") else 2,
        off_by=int(op == "GELU" and dtype == "i16"),
        why=LIBM,
        **attrs,
    )
    for op, attrs, has16 in QUANTISED
    for dtype, source, target in (SCALED + SCALED16 if has16 else SCALED)
]
CASES += [coded("ELU", *row) for row in SCALED if row[0] == "i8"]
CASES += [
    coded("HARD_SWISH", *row)
    for row in (
        ("i8", (0.05, 0), (0.05, 0)),
        ("i8", (0.1, -10), (0.06, -120)),
        ("i8", (0.4, 100), (0.3, -100)),
        ("i8", (0.001, -128), (0.02, 5)),
        ("u8", (0.05, 128), (0.03, 16)),
        ("u8", (0.004, 0), (0.004, 0)),
        ("u8", (2.0, 255), (2.0, 255)),
    )
]
CASES += [
    coded("LOGISTIC", dtype, source, (1 / 256, zp), version=2)
    for dtype, zp in (("i8", -128), ("i8", 0), ("u8", 0))
    for source in ((0.05, 3), (0.2, 100), (1.5, 0), (0.001, 10))
]
CASES += [
    coded("TANH", dtype, source, target, version=2)
    for dtype, target in (("i8", (1 / 128, 0)), ("u8", (1 / 128, 128)), ("i8", (0.01, -5)))
    for source in ((0.05, 3), (0.2, 100), (1.5, 0), (0.001, 10))
]
CASES += [
    coded(op, "i16", (scale, 0), (1 / 32768, 0), version=3)
    for op in ("LOGISTIC", "TANH")
    for scale in (1 / 4096, 1 / 2048, 1 / 8192, 1 / 32768, 1e-3, 1e-4, 0.01, 3e-5, 1.0)
]

# -- prelu ----------------------------------------------------------------------------------------

ALPHAS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 4, 5), (1, 1, 5)), ((2, 3, 4, 5), (5,)), ((2, 3, 4, 5), (2, 3, 4, 5)), ((4, 3), (3,)),
    ((4, 3), (4, 1)), ((2, 3, 4), ()), ((0, 3), (3,)),
]  # fmt: skip
CASES += [case("PRELU", f32(*x), weights(*a)) for x, a in ALPHAS]
CASES += [
    case(
        "PRELU",
        typed(t, *x, scale=0.1, zp=z),
        T(a, ta, scale=0.02, zp=za),
        out=[typed(t, scale=0.07, zp=zo)],
        name=t,
        version=1,
    )
    for t, ta, z, za, zo in (
        ("i8", "i8", 3, -7, -20),
        ("u8", "u8", 128, 0, 200),
        ("i8", "i8", 127, 127, -128),
        ("i16", "i8", 0, 0, 0),
        ("i16", "i8", 9, 3, -50),
    )
    for x, a in ALPHAS
]
CASES += [
    case("PRELU", f32(2, 6), f32(6), name="fed alpha"),
    case("PRELU", special(), const([0.5]), name="special"),
]

# -- softmax --------------------------------------------------------------------------------------

ROWS: list[tuple[int, ...]] = [
    (2, 3, 4, 5), (3, 10), (7,), (2, 1), (1, 1000), (0, 3), (2, 2, 2, 2, 3),
]  # fmt: skip
BETAS = (1.0, 0.3, 2.5)
CASES += [case("SOFTMAX", f32(*s, low=-10, high=10), beta=b, tol=1e-6) for s in ROWS for b in BETAS]
CASES += [case("LOG_SOFTMAX", f32(*s, low=-10, high=10), tol=1e-6) for s in ROWS]
CASES += [
    case("SOFTMAX", f32(3, 5, low=-1e4, high=1e4), beta=1.0, tol=1e-6, name="wide"),
    case("LOG_SOFTMAX", f32(3, 5, low=-1e4, high=1e4), tol=1e-6, name="wide"),
    case("SOFTMAX", typed("f16", 3, 9), beta=1.0, ulps=4),
    # LiteRT divides infinity by infinity there.
    *(case("SOFTMAX", f32(3, 5, low=-3, high=3), beta=b, tol=1e-6) for b in (-0.3, -100.0, -1e30)),
]
INTO8 = {"i8": (1 / 256, -128), "u8": (1 / 256, 0)}
INPUTS = [(0.1, 3, 1.0), (0.02, 0, 1.0), (1.0, 10, 0.7), (0.1, -5, 10.0), (1e-3, 7, 1.0)]
CASES += [
    case(
        "SOFTMAX",
        typed(t, *s, scale=scale, zp=abs(zp)),
        beta=beta,
        out=[typed(into, scale=out[0], zp=out[1])],
        name=f"{scale},{into}",
        version=2,
    )
    for t in ("i8", "u8")
    for into, out in ((t, INTO8[t]), ("i16", (1 / 65536, -32768)))
    for scale, zp, beta in INPUTS
    for s in (ROWS if scale == 0.1 else ROWS[1:2])
]
CASES += [
    case(
        "SOFTMAX",
        typed("i16", *s, scale=scale),
        out=[i16(scale=1 / 32768)],
        beta=beta,
        name=f"{scale}",
        version=3,
    )
    for scale, beta in ((1e-3, 1.0), (1e-4, 0.5), (1 / 32768, 2.0), (0.01, 1.0))
    for s in ROWS
    if len(s) < 5
]
CASES += [
    case(
        "LOG_SOFTMAX",
        typed(t, *s, scale=scale, zp=zp),
        out=[typed(t, scale=1 / 16, zp=top)],
        name=f"{scale}",
        version=2,
    )
    for t, top in (("i8", 127), ("u8", 255))
    for scale, zp in ((0.1, 3), (0.02, 0), (1.0, 10), (0.5, 0), (1e-3, 7))
    for s in (ROWS if scale == 0.1 else ROWS[1:2])
]
CASES += [
    case(
        "SOFTMAX",
        const(np.zeros((2, 4)), "i8", fed=True, scale=0.1),
        beta=1.0,
        version=2,
        out=[i8(scale=1 / 256, zp=-128)],
        name="equal",
    ),
    case(
        "SOFTMAX",
        const([[255, 0, 0], [255, 255, 1]], "u8", fed=True, scale=2.0),
        beta=1.0,
        out=[u8(scale=1 / 256)],
        name="ends",
        version=2,
    ),
    case(
        "SOFTMAX",
        const([[32767, -32768, 0], [5, 5, 5]], "i16", fed=True, scale=0.1),
        beta=1.0,
        out=[i16(scale=1 / 32768)],
        name="ends",
        version=3,
    ),
]
