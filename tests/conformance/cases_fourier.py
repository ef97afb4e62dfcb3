"""Conformance cases of the Fourier transform and of complex parts."""

from __future__ import annotations

import numpy as np

from .harness import Case, T, c64, case, const, f32, f64


def fourier() -> list[Case]:
    # LiteRT refuses lengths that are not powers of two.
    rows = [
        ((4, 4), (4, 4)),
        ((8, 16), (8, 16)),
        ((5, 7), (8, 8)),
        ((9, 9), (4, 8)),
        ((2, 3, 6, 8), (8, 8)),
        ((1, 16), (1, 16)),
        ((1, 1, 512), (1, 512)),
        ((4, 4), (2, 2)),
        ((32, 64), (32, 64)),
    ]
    return [
        case("RFFT2D", f32(*shape), const(lengths, "i32", fed=fed), out=[c64()], tol=1e-6)
        for shape, lengths in rows
        for fed in (False, True)
    ]


def parts() -> list[Case]:
    special = np.array([3 + 4j, complex(np.inf, 1), complex(0, np.nan), -0j, 1e30 + 1e30j])
    return [
        case(op, T(shape, kind), out=[real()])
        for op in ("REAL", "IMAG", "COMPLEX_ABS")
        for kind, real in (("c64", f32), ("c128", f64))
        for shape in ((5,), (2, 3, 4), ())
    ] + [
        case(op, const(special, kind, fed=True), out=[real()], name="special")
        for op in ("REAL", "IMAG", "COMPLEX_ABS")
        for kind, real in (("c64", f32), ("c128", f64))
    ]


CASES: list[Case] = [*fourier(), *parts()]
