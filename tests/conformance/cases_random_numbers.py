"""Conformance cases of random numbers."""

from __future__ import annotations

import numpy as np

from .harness import Case, case, const, f32, i32, i64

SEEDS = [(1, 0), (0, 1), (87654321, 12345), (-5, -7), (2**63 - 1, 2**40 + 3)]


def random_numbers() -> list[Case]:
    shapes = [[10], [4, 3], [2, 3, 5], [1], [1000], []]
    return [
        case(
            op,
            const(shape, "i32", fed=fed),
            out=[f32()],
            seed=seed,
            seed2=seed2,
            runs=3,
            name=f"{shape} fed {fed}",
        )
        for op in ("RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL")
        for shape in shapes
        for seed, seed2 in (SEEDS if shape == [10] else SEEDS[2:3])
        for fed in (False, True)
    ]


def multinomial() -> list[Case]:
    odd = [[0.0, np.inf, 1.0], [-np.inf, 2.0, np.nan]]
    cases = [
        case(
            "MULTINOMIAL",
            f32(*shape),
            const(number, "i32", fed=fed),
            out=[index()],
            seed=seed,
            seed2=seed2,
            runs=3,
            name=f"{number} fed {fed}",
        )
        for index in (i32, i64)
        for shape, number in (((1, 5), 12), ((3, 4), 7), ((2, 1), 3), ((4, 100), 33))
        for seed, seed2 in (SEEDS if number == 7 else SEEDS[2:3])
        for fed in (False, True)
    ]
    cases.append(
        case(
            "MULTINOMIAL",
            const(odd, fed=True),
            const(20, "i32"),
            out=[i32()],
            seed=3,
            seed2=4,
            runs=3,
            name="not finite",
        )
    )
    return cases


CASES: list[Case] = [*random_numbers(), *multinomial()]
