"""Data movement on the cpu delegate: the conformance table, then shapes that reach every core."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.kernels.move import gather, views
from sanderling.delegates.cpu.kernels.vision import resize
from sanderling.ir import DType, Graph
from tests.conformance.harness import Case, T, case, const, f32, i8, i16, i32, i64, u8
from tests.support.cpu_conformance import (
    RUNNABLE,
    cases_of,
    check_cpu,
    in_turns,
    run,
    share_of,
)

OPS = (*views.KERNELS, *gather.KERNELS, *resize.KERNELS)
# Every case runs on the cpu, unless one of these is the reason.
EXCUSES = ("known at run time only", "no place of their own", "quantised table", "table of bytes",
           "indices of type i16", "fused activation", "do not fit together", "shape is not known",
           "strings and handles", "less than a byte")  # fmt: skip
BY_SIZE: dict[int, Callable[..., T]] = {1: u8, 2: i16, 4: f32, 8: i64}


@pytest.mark.parametrize(("row", "target"), in_turns(cases_of(*OPS)))
def test_conformance(row: Case, target: str) -> None:
    said = [reason for reason in check_cpu(row, target).split("; ") if reason.startswith(OPS)]
    assert all(any(e in reason for e in EXCUSES) for reason in said), said


# -- the cores of the strided copy -----------------------------------------------------------------

# Rows and columns around every tile and vector size; few of one and many of the other.
MATRICES = [(100, 3), (3, 100), (2, 77), (130, 4), (65, 64), (16, 16), (17, 31), (5, 200), (1, 9),
            (15, 300), (150, 161)]  # fmt: skip
LENGTHS = (1, 3, 12, 31, 64, 65, 129, 513, 600, 20000, 70001)


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("size", BY_SIZE)
def test_transpositions(size: int, target: str) -> None:
    for index, (a, b) in share_of([*enumerate(MATRICES)], target, place=size, host=2):
        row = case("TRANSPOSE", BY_SIZE[size](2, a, b), const([0, 2, 1], "i32"))
        assert check_cpu(row, target, threads=1 + index % 3) == ""


@pytest.mark.parametrize("size", BY_SIZE)
def test_permutations(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(12):
        shape = [int(n) for n in rng.choice([1, 2, 3, 5, 8, 17, 33], 4)]
        order = const(rng.permutation(4), "i32")
        assert check_cpu(case("TRANSPOSE", BY_SIZE[size](*shape), order), threads=2) == ""


def lengthy(size: int, n: int) -> list[Case]:
    """Operators on rows of n elements."""
    x = BY_SIZE[size]
    found = [
        case("SLICE", x(3, n + 2), const([0, 1], "i32"), const([3, n], "i32")),
        case("BROADCAST_TO", x(3, 1), const([3, n], "i32")),
        case("REVERSE_V2", x(3, n), const([1], "i32")) if size < 8 else None,
        case("PAD", x(2, 3, n), const([[1, 0], [2, 1], [1, 3]], "i32")),
        case(
            "STRIDED_SLICE",
            x(3, n + 5),
            const([0, n + 3], "i32"),
            const([3, 0], "i32"),
            const([1, -2], "i32"),
        ),
        case("CONCATENATION", x(4, n), x(4, 7), x(4, n + 1), axis=1),
        case("GATHER", x(3, n), const([0, n - 1, n // 2], "i32"), axis=1),
        case("GATHER", x(5, n), i32(4, low=0, high=4), axis=0),
    ]
    return [row for row in found if row is not None]


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("size", BY_SIZE)
def test_lengths(size: int, target: str) -> None:
    rows = [row for n in LENGTHS for row in lengthy(size, n)]
    for row in share_of(rows, target, place=size, host=5):
        assert check_cpu(row, target, threads=2) == "", row.id


# -- resizing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", (1, 2, 3, 5, 8, 21, 64, 100))
@pytest.mark.parametrize("x", (f32, i8, u8), ids=("f32", "i8", "u8"))
def test_bilinear(x: Callable[..., T], channels: int) -> None:
    quant: dict[str, Any] = {} if x is f32 else {"scale": 0.1, "zp": 3}
    choices: list[dict[str, Any]] = [{}, {"align_corners": True}, {"half_pixel_centers": True}]
    every = [*itertools.product(choices, ((26, 40), (7, 9)))]
    for options, new in share_of(every, RUNNABLE[0], place=channels, host=3):
        row = case(
            "RESIZE_BILINEAR",
            x(2, 13, 20, channels, **quant),
            const(new, "i32"),
            out=[x(**quant)],
            **options,
        )
        assert check_cpu(row, threads=2) == ""


@pytest.mark.parametrize("x", (i8, u8), ids=("i8", "u8"))
@pytest.mark.parametrize("shape, new", [((1, 33, 33, 21), (65, 70)), ((1, 4, 4, 1), (1000, 7))])
def test_bilinear_of_codes_is_exact(
    x: Callable[..., T], shape: tuple[int, ...], new: tuple[int, int]
) -> None:
    row = case(
        "RESIZE_BILINEAR",
        x(*shape, scale=0.1, zp=3),
        const(new, "i32"),
        out=[x(scale=0.1, zp=3)],
        half_pixel_centers=True,
    )
    model = row.model()
    arrays = row.arrays(model, np.random.default_rng(0))
    ours = run(model.compile([CpuDelegate(cache=False)]), arrays)
    theirs = run(model.compile(["reference"]), arrays)
    assert np.array_equal(ours[0], theirs[0])


# -- indices that lie outside ----------------------------------------------------------------------


def test_constant_index_outside_is_left_to_the_reference() -> None:
    graph = Graph()
    x = graph.input("x", DType.FLOAT32, (4, 5))
    index = graph.constant("i", np.array([9], np.int32))
    y = graph.tensor("y", DType.FLOAT32, (1, 5))
    op = graph.add("GATHER", [x, index], [y], axis=0, batch_dims=0)
    assert CpuDelegate(cache=False).refuses(op) == "an index is out of range"


@pytest.mark.parametrize("kind", ("i4", "u4"))
def test_elements_that_share_a_byte_are_left_to_the_reference(kind: str) -> None:
    """The views copied the bytes that the file takes, half of those in memory."""
    for row in (
        case("RESHAPE", T((3, 5), kind), const([15], "i32"), new_shape=[15]),
        case("SQUEEZE", T((1, 3, 5), kind), squeeze_dims=[0]),
        case("EXPAND_DIMS", T((3, 5), kind), const([0], "i32")),
    ):
        assert "less than a byte" in check_cpu(row)


# -- rescaling -------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", RUNNABLE)
@pytest.mark.parametrize("axis", (0, 1, 3))
def test_concatenation_rescales_uint8(axis: int, target: str) -> None:
    parts: Sequence[T] = [
        u8(2, 3, 5, 37, scale=s, zp=z) for s, z in ((0.1, 3), (0.5, 128), (0.02, 0))
    ]
    row = case("CONCATENATION", *parts, out=[u8(scale=0.1, zp=7)], axis=axis)
    assert check_cpu(row, target, threads=2) == ""
