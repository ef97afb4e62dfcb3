"""Cases of the unary family: functions of one operand, casts, quantisation, normalisations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from sanderling.ir import Array

from .harness import Case, T, case, const, f32, i8, i16, i32, u8, weights

SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-40, 3e38, -1.0, 7.0]


def special(dtype: str = "f32") -> T:
    values = [6e4 if dtype == "f16" and v == 3e38 else v for v in SPECIAL]
    return const(values, dtype, fed=True)


def typed(dtype: str, *shape: int, **more: Any) -> T:
    # LiteRT's Python interface cannot be fed int2
    return weights(*shape, dtype=dtype, **more) if dtype == "i2" else T(shape, dtype, **more)


def picked(dtype: str, values: list[float], *shape: int) -> T:
    """Random choices among interesting values, all of them at least once."""

    def make(rng: np.random.Generator) -> Array:
        flat = rng.choice(np.asarray(values), int(np.prod(shape)))
        flat[: len(values)] = values
        return flat.reshape(shape)

    return T(shape, dtype, make=make)


# -- plain functions ------------------------------------------------------------------------------

# op, types, bounds of the random values
PLAIN: list[tuple[str, str, float, float]] = [
    ("ABS", "f32 i32", -9, 9),
    ("SIN", "f32 f16", -9, 9),
    ("COS", "f32 f16", -9, 9),
    ("LOG", "f32", 1e-3, 50),
    ("EXP", "f32", -20, 20),
    ("SQRT", "f32", 0, 50),
    ("RSQRT", "f32", 1e-3, 50),
    ("SQUARE", "f32", -9, 9),
    ("NEG", "f32 f16 bf16 i8 i16 i32 i64", -128, 127),
    ("ROUND", "f32 f16 bf16", -9, 9),
    ("CEIL", "f32", -9, 9),
    ("FLOOR", "f32 f16 bf16", -9, 9),
    ("SIGN", "f32 f64 i32", -2, 2),
    ("ZEROS_LIKE", "f32 i32 i64", -9, 9),
]
SHAPES: list[tuple[int, ...]] = [(2, 3, 4, 5), (7,), (), (3, 0, 2)]

CASES: list[Case] = [
    case(op, typed(dtype, *shape, low=low, high=high))
    for op, types, low, high in PLAIN
    for dtype in types.split()
    for shape in (SHAPES if dtype == "f32" else SHAPES[:1])
]
CASES += [case(op, special(), name="special") for op, *_ in PLAIN]
CASES += [
    case("ROUND", const(np.arange(-8, 8) + 0.5, t, fed=True), name="ties")
    for t in ("f32", "f16", "bf16")
]
CASES += [
    case("ABS", const([-(2**31), 2**31 - 1, 0, -1], "i32", fed=True), name="ends"),
    case("NEG", const([-(2**31), 2**31 - 1, 0, -1], "i32", fed=True), name="ends"),
    case("NEG", const([-128, 127, 0, 5], "i8", fed=True), name="ends"),
    case("NEG", i8(6, scale=0.1, zp=3), out=[i8(scale=0.1, zp=3)], name="quantised"),
]

# -- quantised functions --------------------------------------------------------------------------

ALL8 = np.arange(-128, 128)
ALL16 = np.arange(-32768, 32768, 7)


def every(codes: Array, dtype: str, scale: float, zp: int) -> T:
    return const(codes, dtype, fed=True, scale=scale, zp=zp)


# op; input scale, zero point; output scale, zero point
TABLE8 = [
    ("ABS", (0.1, 3), (0.1, -128)),
    ("ABS", (0.1, 3), (0.07, -5)),
    ("ABS", (0.02, -128), (0.5, 127)),
    ("LOG", (0.05, -128), (0.03, 10)),
    ("LOG", (1.0, 0), (0.05, -128)),
    ("EXP", (0.03, 5), (0.2, -128)),
    ("EXP", (0.5, 0), (0.01, 0)),  # many results are beyond int32
    ("SQRT", (0.1, -128), (0.02, -128)),
    ("SQRT", (3.0, -128), (0.05, 7)),
    ("RSQRT", (0.1, -128), (0.01, -128)),
    ("RSQRT", (2.5, -128), (0.003, -10)),
    ("RSQRT", (0.007, -128), (0.1, 20)),
]
TABLE16 = [
    ("ABS", 1 / 1000, 1 / 1000),
    ("ABS", 1 / 1000, 1 / 3000),
    ("LOG", 1 / 1000, 1 / 5000),
    ("EXP", 1 / 8000, 1 / 500),
    ("EXP", 1 / 32768, 1 / 8192),
    ("SQRT", 1 / 1000, 1 / 4000),
    ("RSQRT", 1 / 1000, 1 / 2000),
    ("RSQRT", 1 / 100, 1 / 2000),
]
ROOTS = ("SQRT", "RSQRT")
CASES += [
    case(
        op,
        every(ALL8[source[1] <= ALL8] if op in ROOTS else ALL8, "i8", *source),
        out=[i8(scale=target[0], zp=target[1])],
        name=f"{source}to{target}",
        version=2,
    )
    for op, source, target in TABLE8
]
CASES += [
    case(
        op,
        every(ALL16[ALL16 >= 0] if op in ROOTS else ALL16, "i16", source, 0),
        out=[i16(scale=target)],
        name=f"{source:.2g}to{target:.2g}",
        version=2,
    )
    for op, source, target in TABLE16
]
CASES += [case("ABS", const([-32768, 32767, 0, -7], "i16", fed=True), name="plain", version=3)]

# -- casts ----------------------------------------------------------------------------------------

CASTS = ["f32", "f16", "bf16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "bool", "c64"]
INTERESTING: dict[str, list[float]] = {
    "f": [np.nan, np.inf, -np.inf, 3e9, -3e9, 300.7, -300.7, 2.5, -2.5, -0.3, 65535.9, 70000.0],
    "i": [-129, -128, -1, 0, 1, 127, 128, 255, 256, 32768, 65535, 65536, -32769, 2049, 4097],
}


def cast_input(dtype: str) -> T:
    kind = "f" if dtype in ("f32", "f16", "bf16", "f64") else "i"
    if dtype in ("bool", "c64", "i8", "u8"):
        return typed(dtype, 2, 3, 5, **({"low": -200, "high": 200} if dtype == "c64" else {}))
    unsigned = dtype[0] == "u"
    values = [v for v in INTERESTING[kind] if not unsigned or v >= 0]
    if dtype in ("i16", "u16"):
        info = np.iinfo(np.int16 if dtype == "i16" else np.uint16)
        values = [v for v in values if info.min <= v <= info.max]
    if dtype == "f16":
        values = [v for v in values if not 65504 < abs(v) < np.inf]
    return picked(dtype, values, 2, 3, 5)


CASES += [
    case("CAST", cast_input(a), out=[typed(b)], name=f"{a}to{b}", ulps=0)
    for a in CASTS
    for b in CASTS
]
CASES += [
    case("CAST", typed(t, 3, 5), out=[f32()], name=f"{t}tof32", version=6)
    for t in ("i4", "u4", "i2")
]
CASES += [
    case("CAST", f32(3, 5, low=-20, high=20), out=[typed(t)], name=f"f32to{t}", version=6)
    for t in ("i4", "u4", "i2")
]


def by_numpy(target: Any) -> Callable[..., list[Array]]:
    return lambda x: [x.astype(np.float32).astype(target)]


F8 = {"f8e4m3fn": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
WHY8 = "LiteRT has float8 kernels in its source, but not in its wheel"
CASES += [
    row
    for name, target in F8.items()
    for row in (
        case("CAST", f32(3, 5), out=[typed(name)], litert=False, expect=by_numpy(target), why=WHY8),
        case(
            "CAST",
            typed(name, 3, 5),
            out=[f32()],
            litert=False,
            expect=by_numpy(np.float32),
            why=WHY8,
        ),
        case(
            "DEQUANTIZE",
            typed(name, 3, 5),
            out=[f32()],
            litert=False,
            expect=by_numpy(np.float32),
            why=WHY8,
        ),
    )
]
CASES += [
    case("CAST", f32(), out=[i32()], name="scalar"),
    case("CAST", f32(0, 3), out=[i32()], name="empty"),
]

BITCASTS: list[tuple[str, str, tuple[int, ...]]] = [
    ("f32", "i32", (2, 3)), ("f32", "i16", (2, 3)), ("f32", "u8", (2,)), ("i64", "i32", (3,)),
    ("i16", "i32", (3, 2)), ("u8", "f32", (2, 4)), ("i32", "u32", (4,)), ("i8", "i64", (8,)),
    ("f64", "i64", (2,)), ("i32", "f32", ()), ("bool", "u8", (2, 3)), ("bool", "i32", (2, 4)),
    ("u16", "f32", (3, 2)), ("u32", "f32", (4,)), ("u64", "i32", (3,)), ("f16", "u16", (4,)),
    ("f16", "i8", (4,)), ("bf16", "f32", (3, 2)), ("c64", "f32", (3,)), ("c64", "i64", (3,)),
    ("c128", "f64", (2,)),
]  # fmt: skip
CASES += [case("BITCAST", typed(a, *s), out=[typed(b)], name=f"{a}to{b}") for a, b, s in BITCASTS]
# LiteRT's binding cannot feed the 8-bit floats, so they are constants.
CASES += [
    case("BITCAST", weights(*s, dtype=a), out=[typed(b)], name=f"{a}to{b}")
    for a in ("f8e4m3fn", "f8e5m2")
    for b, s in (("u8", (4,)), ("i16", (3, 2)))
]

# -- quantisation ---------------------------------------------------------------------------------

INTO = [("i8", 0.1, 3), ("i8", 0.02, -128), ("u8", 0.1, 0), ("u8", 0.05, 255), ("i16", 0.001, 0),
        ("i16", 0.0001, 5), ("i4", 0.5, 1), ("u4", 0.5, 9)]  # fmt: skip
CASES += [
    case(
        "QUANTIZE",
        f32(3, 4, 5, low=-9, high=9),
        out=[typed(t, scale=s, zp=z)],
        name=f"{t},{s},{z}",
        version=4,
    )
    for t, s, z in INTO
]
CASES += [
    case(
        "QUANTIZE",
        const((np.arange(-20, 20) + 0.5) * 0.25, fed=True),
        out=[i8(scale=0.25, zp=1)],
        name="ties",
    ),
    case(
        "QUANTIZE",
        const([1e6, -1e6, 1e8, -1e8], fed=True),
        out=[u8(scale=0.1, zp=3)],
        name="far out",
    ),
    # LiteRT 2.3.0 casts to int32 and turns what does not fit into the smallest code; its later
    # source, XNNPACK and we saturate.
    case(
        "QUANTIZE",
        const([1e30, -1e30, np.inf, -np.inf], fed=True),
        out=[i8(scale=0.1, zp=-3)],
        name="overflow",
        litert=False,
        expect=lambda x: [np.array([127, -128, 127, -128], np.int8)],
        why="a cast of a float beyond int32 is undefined in C",
    ),
    case("QUANTIZE", f32(), out=[i8(scale=0.1, zp=3)], name="scalar"),
    case("QUANTIZE", f32(0, 3), out=[i8(scale=0.1, zp=3)], name="empty"),
]
SCALES = [0.05, 0.1, 0.02, 0.3]
CASES += [
    case(
        "QUANTIZE",
        f32(*shape),
        out=[typed(t, scale=SCALES, zp=zp, axis=axis)],
        name=f"channels {t} axis {axis}",
        version=3,
    )
    for t, zp in (("i8", 0), ("i8", [1, -3, 0, 127]), ("u8", [0, 255, 128, 3]), ("i16", 0))
    for shape, axis in (((2, 3, 4), 2), ((4, 3), 0))
]
BETWEEN = [
    ("i8", "i8"), ("i8", "u8"), ("u8", "i8"), ("u8", "u8"), ("i16", "i8"), ("i16", "i16"),
    ("i16", "i32"), ("i32", "i8"), ("i32", "i16"), ("i8", "i16"), ("u8", "i16"),
]  # fmt: skip
RATIOS = [(0.1, 0.1), (0.1, 0.03), (0.02, 0.5), (0.5, 0.001)]


def zero_point(dtype: str, other: str) -> int:
    symmetric = (dtype, other) == ("i16", "i16") or dtype == "i32"
    return {"i8": -7, "u8": 121, "i16": 0, "i32": 0}[dtype] if not symmetric else 0


CASES += [
    case(
        "QUANTIZE",
        typed(a, 5, 40, scale=x, zp=zero_point(a, b)),
        out=[typed(b, scale=y, zp=zero_point(b, a))],
        name=f"{a}to{b} {x}to{y}",
        version=2,
    )
    for a, b in BETWEEN
    for x, y in RATIOS
]
CASES += [
    case("QUANTIZE", every(ALL8, "i8", 0.1, -5), out=[u8(scale=0.1, zp=123)], version=2),
    case(
        "QUANTIZE",
        i32(40, scale=1e-4, low=-(2**31), high=2**31 - 1),
        out=[i16(scale=3.0)],
        name="whole i32",
        version=2,
    ),
]

FROM = [("i8", 0.1, 3), ("u8", 0.02, 255), ("i16", 0.001, 0), ("i4", 0.5, 0), ("i4", 0.3, -3),
        ("u4", 0.5, 7), ("i2", 0.5, 0)]  # fmt: skip
CASES += [
    case(
        "DEQUANTIZE",
        typed(t, 3, 15, scale=s, zp=z),
        out=[f32()],
        name=f"{t},{s},{z}",
        version=6,
        ulps=0,
    )
    for t, s, z in FROM
]
CASES += [
    case(
        "DEQUANTIZE",
        typed(t, 3, 4, scale=SCALES, zp=zp, axis=1),
        out=[f32()],
        name=f"channels {zp}",
        version=6,
        ulps=0,
    )
    for t, zp in (
        ("i8", 0),
        ("i8", [1, -3, 0, 127]),
        ("u8", [0, 255, 128, 3]),
        ("i4", 0),
        ("u4", 8),
        ("i2", 0),
    )
]
CASES += [
    case("DEQUANTIZE", i8(4, 2, 3, scale=SCALES, axis=0), out=[f32()], version=5, ulps=0),
    case("DEQUANTIZE", typed("f16", 3, 5), out=[f32()], version=3, ulps=0),
    case("DEQUANTIZE", special("f16"), out=[f32()], version=3, ulps=0, name="special"),
    case(
        "DEQUANTIZE", const([1.5, -2.0, 6e-8], "f16"), out=[f32()], version=3, ulps=0, name="const"
    ),
    case("DEQUANTIZE", i8(scale=0.1, zp=3), out=[f32()], name="scalar", version=2),
    case("DEQUANTIZE", i8(0, 2, scale=0.1, zp=3), out=[f32()], name="empty", version=2),
]

CASES += [
    case("FAKE_QUANT", f32(3, 40, low=-8, high=8), min=low, max=high, num_bits=bits, version=2)
    for low, high, bits in (
        (-6.0, 6.0, 8),
        (0.0, 6.0, 8),
        (-1.0, 3.3, 4),
        (-6.0, 0.0, 8),
        (-2.0, 2.5, 16),
        (-0.1, 4.0, 2),
        (-5.0, 5.0, 7),
    )
]
CASES += [
    case(
        "FAKE_QUANT",
        const([-3.0, -1.1, 0.0, 0.4, 9.0], fed=True),
        min=-1.0,
        max=1.0,
        num_bits=2,
        narrow_range=True,
        litert=False,
        expect=lambda x: [np.array([-1, -1, 0, 0, 1], np.float32)],
        why="LiteRT refuses narrow_range",
    ),
]

# -- normalisations -------------------------------------------------------------------------------

DEEP: list[tuple[int, ...]] = [(2, 3, 4, 8), (3, 64), (5,), (2, 1), (0, 3), (2, 3, 2, 2, 4)]
CASES += [case("L2_NORMALIZATION", f32(*s), tol=1e-6) for s in DEEP]
CASES += [
    case(
        "L2_NORMALIZATION",
        T(s, t, scale=0.1, zp=zin),
        out=[typed(t, scale=1 / 128, zp=zout)],
        name=f"{zin}",
        version=2,
    )
    for t, zin, zout in (
        ("i8", 0, 0),
        ("i8", -128, 0),
        ("i8", 127, 0),
        ("u8", 128, 128),
        ("u8", 0, 128),
    )
    for s in DEEP
]
CASES += [
    case("L2_NORMALIZATION", const(np.zeros((2, 4)), fed=True), name="zeros"),
    case(
        "L2_NORMALIZATION",
        every(np.array([[5, 5, 5], [5, 6, 5], [6, 6, 5]]), "i8", 0.1, 5),
        out=[i8(scale=1 / 128)],
        name="small",
        version=2,
    ),
    case(
        "L2_NORMALIZATION",
        i8(2, 5000, scale=0.1, zp=-128),
        out=[i8(scale=1 / 128)],
        name="long",
        version=2,
    ),
]
CASES += [
    case(
        "LOCAL_RESPONSE_NORMALIZATION",
        f32(2, 2, 3, depth),
        radius=radius,
        bias=bias,
        alpha=alpha,
        beta=beta,
        tol=2e-6,
        resolver="BUILTIN_WITHOUT_DEFAULT_DELEGATES",
        why="the reference kernel loses the last channel of its window",
    )
    for depth, radius, bias, alpha, beta in (
        (12, 2, 1.0, 1e-2, 0.75),
        (12, 5, 2.0, 1e-4, 0.75),
        (7, 20, 1.0, 0.5, 0.5),
        (5, 0, 1.0, 1.0, 1.0),
        (1, 3, 1.0, 2.0, 0.5),
    )
]
