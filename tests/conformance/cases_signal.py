"""Conformance cases of the Fourier transform, complex parts and random numbers."""

from __future__ import annotations

import numpy as np

from .harness import Case, T, c64, case, const, f32, f64, i32, i64


def fourier() -> list[Case]:
    # LiteRT refuses lengths that are not powers of two.
    rows = [((4, 4), (4, 4)), ((8, 16), (8, 16)), ((5, 7), (8, 8)), ((9, 9), (4, 8)),
            ((2, 3, 6, 8), (8, 8)), ((1, 16), (1, 16)), ((1, 1, 512), (1, 512)), ((4, 4), (2, 2)),
            ((32, 64), (32, 64))]  # fmt: skip
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


SEEDS = [(1, 0), (0, 1), (87654321, 12345), (-5, -7), (2**63 - 1, 2**40 + 3)]


def random_numbers() -> list[Case]:
    shapes = [[10], [4, 3], [2, 3, 5], [1], [1000], []]
    return [
        case(op, const(shape, "i32", fed=fed), out=[f32()], seed=seed, seed2=seed2, runs=3,
             name=f"{shape} fed {fed}")
        for op in ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
        for shape in shapes
        for seed, seed2 in (SEEDS if shape == [10] else SEEDS[2:3])
        for fed in (False, True)
    ]  # fmt: skip


def multinomial() -> list[Case]:
    odd = [[0.0, np.inf, 1.0], [-np.inf, 2.0, np.nan]]
    cases = [
        case("MULTINOMIAL", f32(*shape), const(number, "i32", fed=fed), out=[index()], seed=seed,
             seed2=seed2, runs=3, name=f"{number} fed {fed}")
        for index in (i32, i64)
        for shape, number in (((1, 5), 12), ((3, 4), 7), ((2, 1), 3), ((4, 100), 33))
        for seed, seed2 in (SEEDS if number == 7 else SEEDS[2:3])
        for fed in (False, True)
    ]  # fmt: skip
    cases.append(case("MULTINOMIAL", const(odd, fed=True), const(20, "i32"), out=[i32()], seed=3,
                      seed2=4, runs=3, name="not finite"))  # fmt: skip
    return cases


CASES: list[Case] = [*fourier(), *parts(), *random_numbers(), *multinomial()]
