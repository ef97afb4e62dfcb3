"""Elementwise operators of two or three operands: arithmetic, comparison, logic, selection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sanderling.ir import Array
from sanderling.ops.base import MOVABLE

from .harness import (
    Case,
    T,
    bf16,
    boolean,
    c64,
    case,
    const,
    f16,
    f32,
    i8,
    i16,
    i32,
    string,
)

Shapes = tuple[tuple[int, ...], tuple[int, ...]]

SAME: list[Shapes] = [((2, 3), (2, 3)), ((), ()), ((0, 3), (0, 3)), ((1, 2, 1, 3, 1, 2),) * 2]
BROADCAST: list[Shapes] = [
    ((2, 3, 4), (4,)), ((), (3,)), ((5, 1), ()), ((1, 3, 1), (2, 1, 4)), ((1, 4, 4, 3), (3,)),
    ((3,), (2, 2, 1, 3)), ((0, 3), (1, 3)), ((2, 1, 3, 1, 2), (4, 1, 3, 2)),
    ((2, 1, 2, 1, 3, 1), (1, 3, 1, 2, 3, 2)), ((2, 3), (1, 2, 3)), ((1,), ()),
]  # fmt: skip
SHAPES = SAME + BROADCAST
FEW: list[Shapes] = [((2, 3), (2, 3)), ((1, 4, 4, 3), (3,)), ((1, 3, 1), (2, 1, 4))]
ACTIVATIONS = ("RELU", "RELU6", "RELU_N1_TO_1", "TANH")
APART = [3.4e38, -3e38, 1e30, -1e20, 1e15, 1e12, 96704.0, -104.0, 7.0, 0.3, -1e-3, 3e-30, 1.2e-38]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5, 3e38, -3e38, 1e-40]


def pairs(values: Sequence[float], dtype: str = "f32") -> tuple[T, T]:
    """Every value with every other."""
    a, b = np.meshgrid(values, values)
    return T(a.shape, dtype, data=a, fed=True), T(a.shape, dtype, data=b, fed=True)


def nonzero(shape: tuple[int, ...], low: int, high: int, zero: int = 0) -> Callable[..., Array]:
    """Codes in range, none of them the zero point."""

    def make(rng: np.random.Generator) -> Array:
        x = rng.integers(low, high + 1, shape)
        return np.where(x == zero, high if zero != high else low, x)

    return make


def large(shape: tuple[int, ...]) -> Callable[..., Array]:
    return lambda rng: rng.choice([-1, 1], shape) * rng.integers(9000, 32768, shape)


def ints(kind: str, shapes: Shapes, **more: Any) -> tuple[T, T]:
    return T(shapes[0], kind, **more), T(shapes[1], kind, **more)


# -- ADD, SUB, MUL, DIV: (scale, zero point) of both inputs and the output -------------------------

QUANT8: list[tuple[tuple[float, int], ...]] = [
    ((0.1, 0), (0.1, 0), (0.2, 0)),
    ((0.05, -128), (0.3, 127), (0.4, 17)),
    ((0.9, 3), (0.01, -5), (0.5, -128)),
    ((1.0, 0), (1.0, 1), (1.0, 127)),
    ((3.7, 10), (2.2, -10), (6.0, 2)),
    ((0.02, 5), (0.02, 6), (0.001, 0)),  # saturates nearly everywhere
]
QUANT16 = [(0.001, 0.002, 0.004), (0.3, 0.0007, 0.25), (2.5, 1.1, 3.0), (0.001, 0.001, 0.00001)]


def eight(kind: str, shapes: Shapes, params: tuple[tuple[float, int], ...]) -> dict[str, Any]:
    shift = 128 if kind == "u8" else 0
    a, b, c = (
        T(s, kind, scale=scale, zp=zp + shift)
        for s, (scale, zp) in zip((*shapes, ()), params, strict=True)
    )
    return {"inputs": (a, b), "out": [c]}


def quantized(op: str, kind: str, shapes: Shapes, params: Any, **more: Any) -> Case:
    made = eight(kind, shapes, params)
    return case(op, *made["inputs"], out=made["out"], name=str(params), version=2, **more)


def _arith() -> list[Case]:
    rows: list[Case] = []
    for op in ("ADD", "SUB", "MUL"):
        rows += [case(op, f32(*a), f32(*b)) for a, b in SHAPES]
        rows += [
            case(op, f32(2, 3, low=-9, high=9), f32(3), fused_activation_function=name)
            for name in ACTIVATIONS
        ]
        rows += [
            case(op, i32(4, 3), i32(3), fused_activation_function=name) for name in ACTIVATIONS
        ]
        rows += [
            case(
                op,
                *ints(
                    kind,
                    s,
                    low=-(2**62) if kind == "i64" else -(2**31 - 1),
                    high=2**62 if kind == "i64" else 2**31 - 1,
                ),
                name="wraps",
                version=4,
            )
            for kind in ("i32", "i64")
            for s in FEW
        ]
        rows += [quantized(op, kind, s, QUANT8[1]) for kind in ("i8", "u8") for s in SHAPES]
        rows += [
            quantized(op, kind, ((64, 16), (64, 16)), p) for kind in ("i8", "u8") for p in QUANT8
        ]
        rows += [
            quantized(op, kind, ((8, 16), (16,)), QUANT8[2], fused_activation_function=name)
            for kind in ("i8", "u8")
            for name in ACTIVATIONS
        ]
        rows += [
            case(
                op,
                i16(*s[0], scale=a),
                i16(*s[1], scale=b),
                out=[i16(scale=c)],
                name=f"general {a} {b} {c}",
                version=5,
                **({} if op == "MUL" else {"pot_scale_int16": False}),
            )
            for a, b, c in QUANT16
            for s in [*FEW, ((32, 32), (32, 32))]
        ]
        rows += [case(op, *pairs(SPECIAL), name="special")]
    rows += [
        case(op, i16(*a), i16(*b), version=5, name="plain", fused_activation_function=name)
        for op in ("ADD", "MUL")
        for a, b in FEW
        for name in ("NONE", "RELU6")
    ]
    rows += [
        case(
            op,
            i16(9, low=-32768, high=32767),
            i16(9, low=-32768, high=32767),
            version=5,
            name="plain wraps",
        )
        for op in ("ADD", "MUL")
    ]
    return rows


def _arith_special() -> list[Case]:
    """Types and scale rules that only some of the four have."""
    rows = [
        case(op, f16(*a), f16(*b), version=7 if op == "MUL" else 5)
        for op in ("ADD", "MUL")
        for a, b in SHAPES
    ]
    rows += [
        case(
            op,
            f16(4, 4, low=-9, high=9),
            f16(4, low=-9, high=9),
            version=5,
            fused_activation_function=name,
        )
        for op in ("ADD", "MUL")
        for name in ACTIVATIONS
    ]
    halves = [np.nan, np.inf, -np.inf, 0.0, 6e4, -6e4, 1.5, 1e-7]
    rows += [case(op, *pairs(halves, "f16"), version=5, name="special") for op in ("ADD", "MUL")]
    rows += [
        case("MUL", *ints("u32", s, high=2**32 - 1), version=6, fused_activation_function=name)
        for s in FEW
        for name in ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
    ]
    rows += [case("MUL", c64(*a), c64(*b), version=4) for a, b in SHAPES]
    # Both constant: LiteRT multiplies once, when it prepares.
    rows += [
        case("MUL", f32(2, 3), const([[2.0], [-3.0]])),
        case("MUL", const([1.5, 2.5]), const([[2.0], [-3.0]])),
    ]
    magnified = ((2.0, 1), (3.0, 2), (0.3, 3)), ((9.0, 0), (9.0, 0), (0.001, 5))
    rows += [
        quantized("MUL", kind, ((20, 20), (20, 20)), p) for kind in ("i8", "u8") for p in magnified
    ]
    # int16 x int16 to 8 bits knows no broadcasting (LiteRT reads past the end).
    rows += [
        case(
            "MUL",
            i16(9, 40, scale=1 / 32768),
            i16(9, 40, scale=1 / 32768),
            out=[T((), kind, scale=1 / 128, zp=zp)],
            fused_activation_function=name,
        )
        for kind, zp in (("i8", 0), ("i8", 9), ("u8", 128), ("u8", 0))
        for name in ("NONE", "RELU", "RELU_N1_TO_1")
    ]
    extremes = np.array([-32768, 32767, 0, 1, -1, 255, -256], np.int16)
    a, b = np.meshgrid(extremes, extremes)
    rows += [
        case(
            "MUL",
            T(a.shape, "i16", data=a, fed=True, scale=1 / 32768),
            T(a.shape, "i16", data=b, fed=True, scale=1 / 32768),
            out=[i8(scale=1 / 128)],
            name="extremes",
        )
    ]
    # Power-of-two scales: one input has the output's. LiteRT's ADD cannot broadcast these.
    rows += [
        case(
            op,
            i16(*s[0], scale=2.0**first),
            i16(*s[1], scale=2.0**second),
            out=[i16(scale=2.0**-10)],
            name=f"pot {first} {second}",
            fused_activation_function=name,
        )
        for op in ("ADD", "SUB")
        for first, second in ((-10, -10), (-13, -10), (-10, -14))
        for s in (FEW if op == "SUB" else [((40, 20), (40, 20))])
        for name in ("NONE", "RELU6")
    ]
    # Not a power of two after all: the flag is overruled.
    rows += [
        case(
            op,
            i16(40, 20, scale=0.3),
            i16(40, 20, scale=2.0**-3),
            out=[i16(scale=0.5)],
            name="pot asked",
        )
        for op in ("ADD", "SUB")
    ]
    return rows


def _divide_codes(kind: str, low: int, params: tuple[tuple[float, int], ...]) -> Case:
    """Every pair of codes whose quotient is a step of the output or more.

    Where it rounds to zero LiteRT shifts 32-bit numbers by 32 and more, which C leaves undefined:
    it answers with any code, often the largest. We answer zero.
    """
    shift = 128 + low
    (s1, z1), (s2, z2), (s3, z3) = ((scale, zp + shift) for scale, zp in params)
    a, b = (x.reshape(-1) for x in np.meshgrid(np.arange(256) + low, np.arange(256) + low))
    with np.errstate(all="ignore"):
        kept = (b != z2) & (np.abs((a - z1) * s1 / ((b - z2) * s2 * s3)) >= 1)
    a, b = a[kept], b[kept]
    return case(
        "DIV",
        T(a.shape, kind, data=a, fed=True, scale=s1, zp=z1),
        T(b.shape, kind, data=b, fed=True, scale=s2, zp=z2),
        out=[T((), kind, scale=s3, zp=z3)],
        version=2,
        name=f"all codes {s1} {s2} {s3}",
    )


def _div() -> list[Case]:
    rows = [case("DIV", f32(*a), f32(*b)) for a, b in SHAPES]
    rows += [
        case("DIV", f32(2, 3, low=-9, high=9), f32(3), fused_activation_function=name)
        for name in ACTIVATIONS
    ]
    rows += [case("DIV", *pairs(SPECIAL), name="special")]
    rows += [
        case("DIV", i32(*a), i32(*b, make=nonzero(b, -9, 9)), fused_activation_function=name)
        for a, b in SHAPES
        for name in ("NONE", "RELU")
    ]
    rows += [
        _divide_codes(kind, low, params)
        for kind, low in (("i8", -128), ("u8", 0))
        for params in QUANT8
    ]
    # Numerators large enough for quotients of a step and more (see _divide_codes).
    rows += [
        case(
            "DIV",
            i8(*a, scale=0.4, zp=-128, low=-60),
            i8(*b, scale=0.2, zp=-128, low=-127),
            out=[i8(scale=0.1, zp=-99)],
            version=2,
            fused_activation_function=name,
        )
        for a, b in SHAPES
        for name in ("NONE", "RELU6")
    ]
    rows += [
        case(
            "DIV",
            i16(*a, scale=s1, make=large(a)),
            i16(*b, scale=s2, make=nonzero(b, -1000, 1000)),
            out=[i16(scale=s3)],
            version=2,
            name=f"{s1} {s2} {s3}",
        )
        for s1, s2, s3 in QUANT16
        for a, b in FEW
    ]
    return rows


# -- the other arithmetic -------------------------------------------------------------------------

LARGE = [-(2**31), -(2**31) + 1, -7, -2, -1, 1, 2, 3, 7, 2**31 - 1]


def _extremes() -> list[Case]:
    rows: list[Case] = []
    for op in ("MAXIMUM", "MINIMUM"):
        rows += [
            case(op, *ints(kind, s), version=4)
            for kind in ("f32", "f16", "bf16", "i8", "u8", "i16", "i32", "i64")
            for s in (SHAPES if kind in ("f32", "i8") else FEW)
        ]
        rows += [case(op, *pairs(SPECIAL), name="special")]
        # Codes are compared as they are: the converter gives all three the same scale.
        rows += [
            case(
                op,
                i8(5, 6, scale=0.1, zp=3),
                i8(6, scale=0.2, zp=-3),
                out=[i8(scale=0.1, zp=3)],
                version=2,
            )
        ]
    return rows


def _power() -> list[Case]:
    rows = [case("POW", f32(*a, low=0.1), f32(*b)) for a, b in SHAPES]
    rows += [case("POW", *pairs([*SPECIAL, 2.0, 0.5, 3.0, -3.0]), name="special")]
    rows += [
        case("POW", f32(4, 5, low=-9, high=9), f32(data=e, fed=True), name=f"to {e}")
        for e in (1, 2, 3, 7, 30, 1e6, 3e38, 2.000002, 2.5, 0, -1, -2, np.nan, np.inf)
    ]
    rows += [
        case(
            "POW",
            T((len(SPECIAL),), data=SPECIAL, fed=True),
            f32(1, data=[2], fed=True),
            name="special squared",
        )
    ]
    rows += [case("POW", i32(*a, low=-9, high=9), i32(*b, low=0, high=9)) for a, b in SHAPES]
    rows += [
        case("POW", *pairs([0, 1, 2, 3, 10, 12, 31, 40, 46340], "i32"), name="overflow"),
        case(
            "POW",
            T((len(LARGE),), "i32", data=LARGE, fed=True),
            i32(data=3, fed=True),
            name="wraps",
        ),
    ]
    return rows


def _floor() -> list[Case]:
    rows: list[Case] = []
    for op in ("FLOOR_DIV", "FLOOR_MOD"):
        whole = ("i8", "i16", "i32") if op == "FLOOR_DIV" else ("i8", "i16", "i32", "i64")
        rows += [case(op, f32(*a), f32(*b), version=2) for a, b in SHAPES]
        rows += [
            case(op, T(a, kind), T(b, kind, make=nonzero(b, -9, 9)), version=2)
            for kind in whole
            for a, b in SHAPES
        ]
        close = [0.1, 0.3, 0.7, 1.1, 2.9, 16777216.0, -0.1, -0.3, -0.7, -1.1]
        rows += [
            case(op, *pairs(close), name="close to whole", version=2),
            case(
                op,
                i8(64, scale=0.1, zp=3),
                i8(64, scale=0.3, make=nonzero((64,), -128, 127)),
                out=[i8(scale=0.5)],
                name="codes",
                version=2,
            ),
        ]
    rows += [
        case("FLOOR_DIV", *pairs([x for x in SPECIAL if x != 0]), name="special", version=2),
        case("FLOOR_MOD", *pairs(SPECIAL), name="special", version=2),
        case("FLOOR_MOD", *pairs(APART), name="large quotients", version=2),
    ]
    rows += [case("FLOOR_DIV", *pairs(LARGE, "i32"), name="overflow", version=2)]
    rows += [
        case("FLOOR_DIV", T((2, 3, 5), kind), const(by, kind), name="known divisor", version=2)
        for kind in ("f32", "i32")
        for by in (7, [2, -3, 5, -48, 1])
    ]
    # INT_MIN % -1 is a trap of the processor.
    rows += [case("FLOOR_MOD", *pairs(LARGE[1:], "i32"), name="extremes", version=2)]
    return rows


def _differences_and_sums() -> list[Case]:
    rows = [case("SQUARED_DIFFERENCE", *ints(kind, s)) for kind in ("f32", "i32") for s in SHAPES]
    rows += [
        case("SQUARED_DIFFERENCE", *pairs(SPECIAL), name="special"),
        case("SQUARED_DIFFERENCE", *pairs(LARGE, "i32"), name="wraps"),
    ]
    rows += [quantized("SQUARED_DIFFERENCE", "i8", s, QUANT8[1]) for s in SHAPES]
    rows += [quantized("SQUARED_DIFFERENCE", "i8", ((40, 40), (40, 40)), p) for p in QUANT8]
    rows += [
        case("ADD_N", *(T(shape, kind),) * n)
        for kind in ("f32", "i32")
        for n in (2, 3, 7)
        for shape in ((2, 3), (), (0, 2), (1, 2, 1, 2, 3))
    ]
    rows += [case("ATAN2", *ints(kind, s)) for kind in ("f32", "f16", "bf16", "f64") for s in SAME]
    rows += [case("ATAN2", *pairs(SPECIAL), name="special")]
    return rows


def _bits() -> list[Case]:
    kinds = ("i8", "u8", "i16", "u16", "i32", "u32")
    rows = [case("BITWISE_XOR", *ints(kind, s)) for kind in kinds for s in FEW]
    rows += [
        case("RIGHT_SHIFT", T(a, kind), T(b, kind, low=0, high=40))
        for kind in kinds
        for a, b in FEW
    ]
    rows += [
        case("RIGHT_SHIFT", *ints(kind, ((99,), (99,))), name="any distance") for kind in kinds
    ]
    rows += [case("BITWISE_XOR", *ints("i32", s)) for s in SHAPES]
    rows += [case("RIGHT_SHIFT", *ints("u8", s)) for s in SHAPES]
    return rows


# -- comparison, logic, selection -----------------------------------------------------------------

WORDS = np.array([[b"", b"a", b"ab"], [b"b", b"a", b"\xc3\xa9"]], object)


def _compare() -> list[Case]:
    rows: list[Case] = []
    for op in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        equality = op.endswith("EQUAL") and op[0] in "EN"
        version = 4 if equality else 2
        rows += [
            case(op, *ints(kind, s, low=-2, high=2), version=version)
            for kind in ("f32", "f16", "i32", "i64")
            for s in SHAPES
        ]
        rows += [case(op, *pairs(SPECIAL), name="special", version=version)]
        # Not 1.0 and above: LiteRT aborts at 1 and shifts by a negative distance above.
        rows += [
            case(
                op,
                T((24, 32), kind, scale=s1, zp=z1),
                T((24, 32), kind, scale=s2, zp=z2),
                name=f"{s1} {s2}",
                version=version,
            )
            for kind, z in (("i8", 0), ("u8", 128))
            for s1, z1, s2, z2 in (
                (0.1, z, 0.1, z),
                (0.05, z - 128, 0.3, z + 127),
                (0.9, z, 0.01, z),
                (0.0005, z, 0.0007, z + 3),
            )
        ]
        near = {"low": -3, "high": 3}
        rows += [
            case(op, i8(*a, scale=0.3, zp=1, **near), i8(*b, scale=0.6, **near), version=version)
            for a, b in SHAPES
        ]
        rows += [
            case(op, *ints("i16", s, low=-2, high=2), name="plain", version=version)
            for s in FEW
            if op != "NOT_EQUAL"
        ]  # NOT_EQUAL leaves its output unwritten
        rows += [
            case(
                op,
                i16(*a, scale=0.3, low=-9, high=9),
                i16(*b, scale=0.6, low=-9, high=9),
                version=version,
            )
            for a, b in FEW
        ]
        if op in ("LESS", "GREATER"):
            rows += [case(op, bf16(*a), bf16(*b), version=version) for a, b in FEW]
        if equality:
            rows += [case(op, boolean(*a), boolean(*b), version=version) for a, b in SHAPES]
            rows += [
                case(
                    op,
                    string(*WORDS.shape, data=WORDS, fed=True),
                    string(*np.shape(other), data=other, fed=True),
                    version=version,
                )
                for other in (WORDS[::-1], WORDS[1], WORDS[0, 1:2])
            ]
    for op in ("LOGICAL_AND", "LOGICAL_OR"):
        rows += [case(op, boolean(*a), boolean(*b)) for a, b in SHAPES]
    rows += [case("LOGICAL_NOT", boolean(*a)) for a, _ in SAME]
    return rows


def _select() -> list[Case]:
    rows = [
        case(op, boolean(2, 3), T((2, 3), kind), T((2, 3), kind), out=[T((2, 3), kind)])
        for op in ("SELECT", "SELECT_V2")
        for kind in MOVABLE.split()
    ]
    rows += [
        case("SELECT", boolean(*c), T(x, kind), T(x, kind), out=[T(x, kind)])
        for kind in ("f32", "i8", "i64")
        for c, x in (
            ((), (2, 3)),
            ((4,), (4, 2, 3)),
            ((4,), (4,)),
            ((), ()),
            ((0,), (0, 2)),
            ((2, 2, 1, 2, 1, 3),) * 2,
        )
    ]
    rows += [
        case("SELECT_V2", boolean(*c), T(x, kind), T(y, kind), out=[T((7,), kind)])
        for kind in ("f32", "i8", "i16", "i64", "bool")
        for c, x, y in (
            ((), (2, 3), (2, 3)),
            ((2, 1), (3,), ()),
            ((2, 3, 1), (3, 4), (2, 1, 4)),
            ((4,), (), (4,)),
            ((0, 1), (1, 3), (3,)),
            ((2, 1, 1, 2, 3), (3,), (1, 2, 4, 1, 1)),
            ((2, 1, 1, 2, 1, 3), (3, 1, 2, 1), (1, 2, 1, 1, 2, 1)),
        )
    ]
    # Single elements: the output keeps the rank that the file states.
    rows += [
        case(op, boolean(), f32(1), f32(1, 1), out=[f32(*shape)], name=f"single {shape}")
        for op in ("SELECT", "SELECT_V2")
        for shape in ((), (1,), (1, 1, 1))
    ]
    rows += [
        case(
            "SELECT_V2",
            boolean(2),
            i8(2, scale=0.1),
            i8(2, scale=0.2),
            out=[i8(2, scale=0.3)],
            name="codes as they are",
        )
    ]
    return rows


FAMILIES = (_arith, _arith_special, _div, _extremes, _power, _floor, _differences_and_sums, _bits,
            _compare, _select)  # fmt: skip
CASES: list[Case] = [row for family in FAMILIES for row in family()]
