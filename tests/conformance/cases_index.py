"""Conformance cases of gathering, scattering, searching and choosing."""

from __future__ import annotations

from typing import Any

import numpy as np

from sanderling.ir import DType, Graph, Model, Quant, SparseDim, Sparsity, Tensor
from sanderling.ir.graph import Buffer
from sanderling.ir.packing import encode

from .harness import (
    Case,
    T,
    bf16,
    boolean,
    case,
    const,
    f16,
    f32,
    f64,
    i4,
    i8,
    i16,
    i32,
    i64,
    string,
    u8,
    u16,
    u32,
)

WORDS = np.array([b"a", b"", "kieloranta-\u00e4".encode(), b"xyz" * 9, b"tern"], object)
ALL = (f32, f16, bf16, u8, i8, i16, i32, i64, boolean)


def gather() -> list[Case]:
    # (input shape, indices, axis, batch_dims)
    rows: list[tuple[tuple[int, ...], Any, int, int]] = [
        ((5, 3), [4, 0, 0, 2], 0, 0),
        ((5, 3), 2, 0, 0),
        ((5, 3), [[0, 2], [1, 1]], 1, 0),
        ((2, 3, 4), [[3, 0], [1, 2]], -1, 0),
        ((2, 3, 4), [[2, 0], [1, 1]], 1, 1),
        ((2, 3, 4), [[1, 0, 3], [0, 1, 2]], 2, 1),
        ((2, 3, 4), [[[1], [0], [3]], [[0], [1], [2]]], 2, 2),
        ((2, 3, 4), [[2, 0], [1, 1]], 1, -1),
        ((4,), np.zeros((0,)), 0, 0),
    ]
    whole = [
        case(
            "GATHER",
            f32(*shape),
            const(places, "i32", fed=fed),
            axis=axis,
            batch_dims=batch,
            version=5,
            name=f"fed {fed} {np.shape(places)}",
        )
        for shape, places, axis, batch in rows
        for fed in (True, False)
    ]
    types = [
        case("GATHER", make(2, 3, 4), const([2, 0], index, fed=True), axis=1, version=5)
        for make in ALL
        for index in ("i16", "i32", "i64")
    ]
    words = [
        case("GATHER", string(5, data=WORDS, fed=True), const(places, index, fed=True), version=5)
        for places in ([4, 2, 0, 1, 1], [[0, 3], [2, 2]])
        for index in ("i16", "i32", "i64")
    ]
    both = case("GATHER", const([7, 8, 9], "i32"), const([2, 0], "i32"), name="constant")
    # Newer than LiteRT 2.3.
    unsigned = case(
        "GATHER", u16(3, 4), const([2, 0], "i32"), litert=False, expect=lambda x: [x[[2, 0]]]
    )
    return [*whole, *types, *words, both, unsigned]


def nibbles() -> list[Case]:
    """int4 has no Python type to be read as: a DEQUANTIZE follows.

    Rows have an even number of elements: LiteRT copies whole bytes, and gets odd ones wrong.
    """

    def build(shape: tuple[int, ...], places: Any, axis: int) -> Model:
        graph, rng = Graph("main"), np.random.default_rng(3)
        quant = Quant.of(0.5)
        table = graph.constant(
            "table", rng.integers(-8, 8, shape).astype(np.int8), DType.INT4, quant=quant
        )
        at = graph.input("at", DType.INT32, np.shape(places))
        made = shape[:axis] + np.shape(places) + shape[axis + 1 :]
        packed = graph.tensor("packed", DType.INT4, made, quant=quant)
        real = graph.tensor("real", DType.FLOAT32, made)
        graph.add("GATHER", [table, at], [packed], axis=axis).version = 4
        graph.add("DEQUANTIZE", [packed], [real]).version = 6
        graph.outputs = [real]
        return Model([graph])

    rows = [((5, 4), [4, 0, 2], 0), ((3, 2, 6), [2, 2], 0), ((2, 3, 4), [2, 0, 1], 1)]
    return [
        Case(
            "GATHER",
            (i4(*shape),),
            name=f"then DEQUANTIZE {axis}",
            build=lambda r=(shape, places, axis): build(*r),
            feeds=lambda rng, p=places: [np.asarray(p, np.int32)],
        )
        for shape, places, axis in rows
    ]


def gather_nd() -> list[Case]:
    rows: list[tuple[tuple[int, ...], Any]] = [
        ((3, 4), [[0, 1], [2, 3]]),
        ((3, 4), [[2], [0]]),
        ((2, 3, 4), [[[0, 1], [1, 2]]]),
        ((2, 3, 4), [1, 2, 3]),
        ((2, 3, 4), [[1, 2, 3], [0, 0, 0]]),
    ]
    cases = [
        case(
            "GATHER_ND",
            f32(*shape),
            const(places, "i32", fed=True),
            version=3,
            name=f"{np.shape(places)}",
        )
        for shape, places in rows
    ]
    cases += [
        case(
            "GATHER_ND", make(2, 3, 4), const([[1, 2], [0, 1], [1, 0]], index, fed=True), version=5
        )
        for make in ALL
        for index in ("i16", "i32", "i64")
    ]
    cases += [
        case(
            "GATHER_ND",
            string(5, data=WORDS, fed=True),
            const([[4], [0]], "i32", fed=True),
            version=3,
        ),
        case(
            "GATHER_ND",
            string(2, 2, data=WORDS[:4].reshape(2, 2), fed=True),
            const([[1], [0], [1]], "i64", fed=True),
            version=3,
        ),
        # Newer than LiteRT 2.3.
        case(
            "GATHER_ND",
            u16(3, 4),
            const([[2], [0]], "i32"),
            litert=False,
            expect=lambda x: [x[[2, 0]]],
        ),
    ]
    return cases


def scatter() -> list[Case]:
    rows: list[tuple[Any, tuple[int, ...], list[int]]] = [
        ([[4], [3], [1], [7]], (4,), [8]),
        ([[0], [2], [0]], (3, 4), [3, 4]),
        ([[0, 1], [1, 0], [0, 1]], (3,), [2, 2]),
        ([[[0], [1]], [[1], [1]]], (2, 2, 3), [2, 3]),
    ]
    return [
        case(
            "SCATTER_ND",
            const(at, "i32", fed=True),
            make(*updates),
            const(shape, "i32", fed=fed),
            out=[make()],
            tol=1e-6,
        )
        for at, updates, shape in rows
        for make in (f32, u8, i8, i32, i64, boolean)
        for fed in (False, True)
    ]


def one_hot() -> list[Case]:
    cases = [
        case(
            "ONE_HOT",
            T(shape, index, low=-1, high=5),
            const(depth, "i32", fed=fed),
            const(1, make().dtype),
            const(0, make().dtype),
            out=[make()],
            axis=axis,
        )
        for make in (f32, i8, u8, i32, i64, boolean)
        for index in ("i32", "i64")
        for shape, axis, depth in (((4,), -1, 5), ((2, 3), 0, 4), ((2, 3), 1, 3), ((), -1, 4))
        for fed in (False, True)
    ]
    return [
        *cases,
        case(
            "ONE_HOT",
            const([2**32, 1], "i64", fed=True),
            const(3, "i32"),
            const(2.5),
            const(-1.5),
            out=[f32()],
            axis=-1,
            name="index wraps to 32 bits",
        ),
        case(
            "ONE_HOT",
            i32(3, low=0, high=1),
            const(0, "i32"),
            const(1.0),
            const(0.0),
            out=[f32()],
            axis=-1,
            name="depth 0",
        ),
    ]


def sparse_to_dense() -> list[Case]:
    rows: list[tuple[Any, list[int], int]] = [
        ([1, 3, 4], [6], 3),
        ([[0, 1], [2, 3]], [3, 4], 2),
        ([[0, 1, 2], [1, 0, 0], [0, 1, 2]], [2, 3, 4], 3),
        ([[0, 0, 1, 2]], [1, 2, 2, 3], 1),
    ]
    return [
        case(
            "SPARSE_TO_DENSE",
            const(at, index, fed=True),
            const(shape, index, fed=fed),
            make(n),
            const(3, make().dtype),
            out=[make()],
            version=3,
        )
        for at, shape, n in rows
        for make in (f32, i8, u8, i32, i64)
        for index in ("i32", "i64")
        for fed in (False, True)
    ] + [
        case(
            "SPARSE_TO_DENSE",
            const([2], "i32"),
            const([5], "i32"),
            f32(),
            const(-1.0),
            out=[f32()],
            name="scalar value",
        ),
    ]


def topk() -> list[Case]:
    cases = [
        case("TOPK_V2", make(*shape), const(k, kind, fed=fed), out=[make(), index()], version=3)
        for make in (f32, u8, i8, i16, i32, i64)
        for shape, k in (((7,), 3), ((2, 3, 9), 9), ((4, 5), 1), ((2, 1), 1))
        for kind, index in (("i32", i32), ("i16", i16))
        for fed in (False, True)
    ]
    few = i8(6, 40, low=-3, high=3)
    cases += [
        case("TOPK_V2", few, const(k, "i32"), out=[i8(), i32()], name="ties") for k in (1, 17, 40)
    ]
    odd = const([np.inf, -np.inf, 3, 0.0, -0.0, np.inf], fed=True)
    cases.append(case("TOPK_V2", odd, const(6, "i32"), out=[f32(), i32()], name="inf"))
    return cases


def searching() -> list[Case]:
    unique = [
        case(
            "UNIQUE",
            make(n, low=0 if make is u8 else -4, high=4),
            out=[make(), index()],
            idx_out_type=index().dtype.replace("i", "INT"),
        )
        for make in (i8, u8, i16, i32, i64)
        for n in (1, 30)
        for index in (i32, i64)
    ]
    unique.append(case("UNIQUE", const([2, 1.5, 2, -1, 1.5, np.inf], fed=True), out=[f32(), i32()]))
    where = [
        case("WHERE", make(*shape, low=0, high=2), out=[i64()], version=version)
        for make, version in ((boolean, 1), (i8, 2), (u8, 2), (i32, 2), (u32, 2), (i64, 2))
        for shape in ((5,), (3, 4), (2, 3, 2))
    ]
    where += [
        case("WHERE", const([[0, 1.5], [np.nan, -0.0]], fed=True), out=[i64()], version=2),
        # LiteRT's Python interface cannot read an empty dynamic tensor.
        case(
            "WHERE",
            const([[False, False]], "bool", fed=True),
            out=[i64()],
            litert=False,
            name="none",
            expect=lambda x: [np.zeros((0, 2), np.int64)],
        ),
        case("WHERE", const([True, False, True], "bool"), out=[i64()], name="constant"),
    ]
    buckets = [
        case(
            "BUCKETIZE",
            make(*shape, low=-20, high=20),
            out=[i32()],
            boundaries=[-10.0, -1.5, 0.0, 0.0, 3.0, 12.5],
        )
        for make in (f32, f64, i32, i64)
        for shape in ((9,), (2, 3, 4), ())
    ]
    edges = [-1.5, 0, 3, np.inf, -np.inf, 2**24 + 1, np.nan]
    buckets += [
        case("BUCKETIZE", const(edges, fed=True), out=[i32()], boundaries=[-1.5, 0.0, 3.0]),
        case(
            "BUCKETIZE",
            const([2**24 + 1, 2**24], "i32", fed=True),
            out=[i32()],
            boundaries=[2.0**24],
            name="rounds to float32",
        ),
    ]
    return [*unique, *where, *buckets]


def boxes(rng: np.random.Generator, count: int, levels: int) -> list[np.ndarray[Any, Any]]:
    """Random boxes, some degenerate, some with swapped corners; few levels make equal scores."""
    corner, size = rng.uniform(0, 10, (count, 2)), rng.uniform(-3, 3, (count, 2))
    size[::11] = 0
    scores = rng.integers(0, levels, count) / levels
    return [np.hstack([corner, corner + size]).astype(np.float32), scores.astype(np.float32)]


def suppression() -> list[Case]:
    hard = [
        case(
            "NON_MAX_SUPPRESSION_V4",
            f32(n, 4),
            f32(n),
            const(most, "i32"),
            const(iou),
            const(score),
            out=[i32(), i32()],
            name=f"{levels} levels {most} {iou} {score}",
            feeds=lambda rng, n=n, levels=levels: boxes(rng, n, levels),
        )
        for n, most, levels in ((60, 20, 10**6), (60, 100, 7), (333, 40, 16), (5, 0, 9), (1, 3, 9))
        for iou, score in ((0.5, 0.2), (0.1, -1.0), (0.0, 0.0), (1.0, 0.5), (0.5, 2.0))
    ]
    soft = [
        case(
            "NON_MAX_SUPPRESSION_V5",
            f32(n, 4),
            f32(n),
            const(most, "i32"),
            const(iou),
            const(score),
            const(sigma),
            out=[i32(), f32(), i32()],
            name=f"{levels} levels {most} {iou} {score} {sigma}",
            feeds=lambda rng, n=n, levels=levels: boxes(rng, n, levels),
        )
        for n, most, levels in ((60, 20, 10**6), (60, 100, 7), (200, 30, 10**6))
        for iou, score in ((0.5, 0.2), (1.0, 0.0), (0.3, -1.0))
        for sigma in (0.0, 0.5, 0.1)
    ]
    fed = [
        case(
            op,
            f32(40, 4),
            f32(40),
            i32(),
            const(0.5),
            const(0.3),
            *more,
            out=out,
            name=f"{number} fed",
            feeds=lambda rng, number=number: [*boxes(rng, 40, 50), np.asarray(number, np.int32)],
        )
        for op, more, out in (
            ("NON_MAX_SUPPRESSION_V4", [], [i32(), i32()]),
            ("NON_MAX_SUPPRESSION_V5", [const(0.0)], [i32(), f32(), i32()]),
        )
        for number in (30, 4)
    ]
    return [*hard, *soft, *fed]


def sparse_model(dtype: DType, shape: tuple[int, ...], sparsity: Sparsity, count: int) -> Model:
    """DENSIFY of a really sparse constant with `count` stored values."""
    graph, rng = Graph("main"), np.random.default_rng(5)
    values = rng.integers(1, 100, count).astype(dtype.numpy)
    weight = Tensor("weight", dtype, shape, buffer=Buffer(encode(values, dtype)), sparsity=sparsity)
    dense = graph.tensor("dense", dtype, shape)
    graph.add("DENSIFY", [weight], [dense])
    graph.outputs = [dense]
    return Model([graph])


def densify() -> list[Case]:
    def csr(segments: list[int], indices: list[int]) -> SparseDim:
        return SparseDim(0, np.array(segments, np.int32), np.array(indices, np.int32))

    pair, triple, four = SparseDim(2), SparseDim(3), SparseDim(4)
    columns = csr([0, 2, 2, 3], [0, 3, 1])
    rows = csr([0, 1, 1, 3, 3], [2, 0, 1])
    # shape, layout, stored values
    layouts: dict[str, tuple[tuple[int, ...], Sparsity, int]] = {
        "rows": ((3, 4), Sparsity((0, 1), (), (triple, columns)), 3),
        "columns": ((3, 4), Sparsity((1, 0), (), (four, rows)), 3),
        "blocks 2x2": (
            (4, 4),
            Sparsity((0, 1, 2, 3), (0, 1), (pair, csr([0, 1, 3], [1, 0, 1]), pair, pair)),
            12,
        ),
        "blocks 1x4": (
            (4, 16),
            Sparsity((0, 1, 2), (1,), (four, csr([0, 1, 2, 2, 4], [3, 0, 1, 2]), four)),
            16,
        ),
        "rank 3": (
            (2, 2, 4),
            Sparsity((0, 1, 2), (), (pair, pair, csr([0, 1, 1, 3, 4], [2, 0, 3, 1]))),
            4,
        ),
    }
    return [
        Case(
            "DENSIFY",
            (T(shape, dtype.short),),
            name=name,
            feeds=lambda rng: [],
            build=lambda a=(dtype, shape, sparsity, count): sparse_model(*a),
        )
        for name, (shape, sparsity, count) in layouts.items()
        for dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT8)
    ]


CASES: list[Case] = [
    *gather(), *nibbles(), *gather_nd(), *scatter(), *one_hot(), *sparse_to_dense(), *topk(),
    *searching(), *suppression(), *densify(),
]  # fmt: skip
