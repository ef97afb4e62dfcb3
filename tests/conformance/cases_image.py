"""Conformance cases of image resizing."""

from __future__ import annotations

import numpy as np

from .harness import Case, bf16, boolean, case, const, f16, f32, i8, i16, i32, u8, u16, u32

# old height and width, new height and width
SIZES = [
    ((4, 4), (8, 8)),
    ((5, 7), (3, 2)),
    ((3, 2), (7, 9)),
    ((6, 5), (6, 5)),
    ((1, 1), (4, 3)),
    ((4, 6), (1, 1)),
    ((2, 3), (1, 17)),
    ((13, 9), (31, 8)),
    ((17, 33), (64, 10)),
]
MODES = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
BOTH = {"align_corners": True, "half_pixel_centers": True}
EXTREMES = {i8: (-128, 127), u8: (0, 255), i16: (-32768, 32767)}


def resizes(op: str, modes: list[dict[str, bool]]) -> list[Case]:
    cases = [
        case(op, make(2, *old, 3), const(new, "i32", fed=fed), version=version, **mode)
        for make, version in ((f32, 3), (u8, 3), (i8, 3), (i16, 4))
        for old, new in SIZES
        for mode in modes
        for fed in ((False, True) if old == (5, 7) else (False,))
    ]
    # Quantisation plays no part, and the ends of the range do not overflow.
    shape = (1, 4, 4, 1)
    cases += [
        case(
            op,
            make(*shape, scale=0.1, make=lambda rng, e=ends: rng.choice(e, shape)),
            const([9, 7], "i32"),
            out=[make(scale=0.1)],
            version=4,
            name="extremes",
            **mode,
        )
        for make, ends in EXTREMES.items()
        for mode in modes
    ]
    odd = np.arange(12.0).reshape(1, 3, 4, 1)
    odd[0, 1, 1], odd[0, 2, 3] = np.inf, np.nan
    return [
        *cases,
        case(op, const(odd, fed=True), const([5, 5], "i32"), version=3, name="inf, NaN"),
    ]


def other_types() -> list[Case]:
    return [
        case("RESIZE_NEAREST_NEIGHBOR", make(1, 3, 4, 2), const([5, 3], "i32"), version=3)
        for make in (f16, bf16, u16, i32, u32, boolean)
    ]


CASES: list[Case] = [
    *resizes("RESIZE_BILINEAR", MODES),
    *resizes("RESIZE_NEAREST_NEIGHBOR", [*MODES, BOTH]),
    *other_types(),
]
