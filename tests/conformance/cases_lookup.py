"""Conformance cases of the look-ups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sanderling.ir import Array, Blockwise, DType, Graph, Model, Op, Quant, Tensor
from sanderling.ops.base import MOVABLE

from .harness import Case, T, case, const, f16, f32, i8, i16, i32, i64, string, u8, weights


def ids(count: int, rows: int) -> T:
    return i32(count, low=0, high=rows - 1)


# -- EMBEDDING_LOOKUP ---------------------------------------------------------------------------

# Rows of i4 tables have an even and of i2 tables a four-fold number of elements: LiteRT starts
# every row at a byte, whatever the layout of the tensor.
ROW_SCALES = np.linspace(0.01, 0.2, 5)

EMBEDDING = [
    *[
        case("EMBEDDING_LOOKUP", ids(n, 5), weights(5, *row, dtype=d), out=[T((), d)])
        for n, row in ((1, (3,)), (7, (2, 3)), (4, (2, 2, 2)))
        for d in MOVABLE.split()
    ],
    case("EMBEDDING_LOOKUP", ids(3, 4), f32(4, 6), out=[f32()], name="table is fed"),
    case(
        "EMBEDDING_LOOKUP",
        ids(3, 4),
        weights(4, 6, dtype="i8", scale=0.1),
        out=[i8(scale=0.1)],
        name="stays quantised",
    ),
    *[
        case(
            "EMBEDDING_LOOKUP",
            ids(n, 5),
            weights(5, *row, dtype=d, scale=s),
            out=[out()],
            version=v,
            name=f"hybrid {out().dtype} {np.size(s)} scales",
        )
        for d, v in (("i8", 3), ("u8", 1), ("i4", 4), ("i2", 5))
        for n, row in ((6, (4,)), (3, (2, 8)))
        for s in (0.125, 0.037, ROW_SCALES)
        for out in (f32, f16)
    ],
]


def blockwise(out: DType) -> Callable[[], Model]:
    def build() -> Model:
        rng = np.random.default_rng(5)
        g = Graph("main")
        index = g.input("ids", DType.INT32, (4,))
        scales = g.constant("scales", rng.uniform(0.01, 0.2, (6, 2)).astype(np.float16))
        quant = Quant(
            np.zeros(0, np.float32), np.zeros(0, np.int64), block=Blockwise(scales, None, 8)
        )
        table = g.constant("table", rng.integers(-8, 8, (6, 16)), DType.INT4, quant=quant)
        y = g.tensor("y", out, (4, 16))
        g.insert(Op("EMBEDDING_LOOKUP", [index, table], [y], version=5))
        g.outputs = [y]
        return Model([g])

    return build


EMBEDDING += [
    Case(
        "EMBEDDING_LOOKUP",
        name=f"blocks to {out.short}",
        build=blockwise(out),
        feeds=lambda rng: [rng.integers(0, 6, 4).astype(np.int32)],
    )
    for out in (DType.FLOAT32, DType.FLOAT16)
]

# -- EMBEDDING_LOOKUP_SPARSE --------------------------------------------------------------------


def sparse(name: str, places: Any, dense: Any, table: T, **more: Any) -> Case:
    """Weighted look-ups at sorted places."""
    count = len(places)
    return case(
        "EMBEDDING_LOOKUP_SPARSE",
        ids(count, table.shape[0]),
        const(places, "i32"),
        const(dense, "i32"),
        f32(count, low=0.1, high=2),
        table,
        out=[f32()],
        name=name,
        tol=1e-6,
        **more,
    )


SPARSE = [
    row
    for kind in ("SUM", "MEAN", "SQRTN")
    for row in [
        sparse("matrix", [[0, 0], [0, 1], [1, 0], [3, 2]], [4, 3], f32(6, 5), combiner=kind),
        sparse(
            "cube",
            [[0, 0, 0], [0, 2, 1], [1, 1, 0], [1, 1, 1]],
            [2, 3, 2],
            weights(4, 2, 3),
            combiner=kind,
        ),
        sparse("vector", [[0], [1], [2]], [3], weights(4, 3), combiner=kind),
    ]
]

# -- HASHTABLE_LOOKUP ---------------------------------------------------------------------------

KEYS = const([-11, 0, 3, 7, 40], "i32")
WORDS = [b"zero", b"", b"two", b"drei", "vier \u20ac".encode()]

LOOKUP = [
    *[
        case(
            "HASHTABLE_LOOKUP",
            i32(n, low=-12, high=8),
            KEYS,
            weights(5, *row, dtype=d),
            out=[T((), d), u8()],
        )
        for n, row in ((6, ()), (1, (2,)), (9, (2, 3)))
        for d in MOVABLE.split()
    ],
    case(
        "HASHTABLE_LOOKUP",
        const([7, 8, 40, -11, -12], "i32", fed=True),
        KEYS,
        const(WORDS, "str"),
        out=[string(), u8()],
        name="strings",
    ),
]

# -- LSH_PROJECTION -----------------------------------------------------------------------------

# Keys are 4 bytes of seed and an item: the items' sizes reach every branch of the hash.
LSH = [
    case("LSH_PROJECTION", weights(3, 4), item, *more, out=[i32()], type=kind)
    for kind in ("SPARSE", "DENSE")
    for item in (
        i8(5),
        i8(5, 3),
        i16(4),
        i32(6),
        f32(4, 2),
        i64(3, 3),
        i32(2, 8),
        f32(3, 14),
        i32(2, 15),
        i32(2, 16),
        u8(3, 60),
        u8(3, 61),
        f32(2, 4, 9),
        i64(2, 20),
    )
    for more in ([], [f32(item.shape[0])])
]
LSH += [
    case("LSH_PROJECTION", weights(3, 4), T((5, 3), d), out=[i32()], type="SPARSE")
    for d in MOVABLE.split()
]
LSH += [
    case("LSH_PROJECTION", f32(2, 31), i32(3), out=[i32()], type="SPARSE", name="31 bits"),
    case("LSH_PROJECTION", f32(2, 32), i32(3), out=[i32()], type="DENSE", name="32 bits"),
]

# -- SKIP_GRAM ----------------------------------------------------------------------------------

TEXTS = (b"The quick\tbrown fox\n jumps over the lazy dog!", b" leading blank", b"one", b"", b" ",
         b"a b c d", b"trailing  ")  # fmt: skip

SKIP_GRAM = [
    case(
        "SKIP_GRAM",
        const([text], "str", fed=True),
        out=[string()],
        ngram_size=n,
        max_skip_size=skip,
        include_all_ngrams=whole,
        name=text.decode()[:8].strip(),
    )
    for text in TEXTS
    for n, skip, whole in ((1, 0, False), (2, 0, False), (2, 1, True), (3, 2, True), (3, 1, False))
]

# -- HASHTABLE ----------------------------------------------------------------------------------


def table_model(
    keys: DType,
    values: DType,
    pairs: tuple[Any, Any],
    default: Any,
    probe: tuple[int, ...],
    runs_init: bool,
) -> Model:
    """A table filled by an initialiser (or in the main graph), its size, and look-ups."""
    main, init = Graph("main"), Graph("init")
    fill = init if runs_init else main

    def made(g: Graph) -> Tensor:
        out = g.tensor(f"table{len(g.tensors)}", DType.RESOURCE, (1,))
        g.add("HASHTABLE", [], [out], table_id=3, key_dtype=keys.name, value_dtype=values.name)
        return out

    x = main.input("x", keys, probe)
    table = made(fill)
    fill.add(
        "HASHTABLE_IMPORT",
        [table, fill.constant("keys", pairs[0], keys), fill.constant("values", pairs[1], values)],
        [],
    )
    if runs_init:
        main.insert(Op("CALL_ONCE", [], [], {"init_subgraph_index": init}))
        table = made(main)
    size, found = main.tensor("size", DType.INT64, (1,)), main.tensor("found", values, probe)
    main.add("HASHTABLE_SIZE", [table], [size])
    main.add("HASHTABLE_FIND", [table, x, main.constant("default", default, values)], [found])
    main.outputs = [size, found]
    return Model([main, init] if runs_init else [main])


def objects(values: list[bytes]) -> Array:
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


NAMES = objects([b"one", b"two", b"three", b"two"])
NUMBERS = np.array([1, -2, 3 << 40, 22], np.int64)

TABLES = [
    Case(
        op,
        name=f"{row[0].short} to {row[1].short}, {'once' if init else 'each run'}",
        runs=2,
        build=lambda row=row, init=init: table_model(*row, init),
        feeds=feeds,
        resolver="BUILTIN_WITHOUT_DEFAULT_DELEGATES",
    )
    for op, *row, feeds in [
        (
            "HASHTABLE_FIND",
            DType.STRING,
            DType.INT64,
            (NAMES, NUMBERS),
            [-7],
            (2, 2),
            lambda rng: [rng.choice(objects([b"one", b"two", b"", b"four"]), (2, 2))],
        ),
        (
            "HASHTABLE_SIZE",
            DType.INT64,
            DType.STRING,
            (NUMBERS, NAMES),
            objects([b"none"]),
            (5,),
            lambda rng: [rng.choice(np.array([1, -2, 3 << 40, 5]), 5)],
        ),
        (
            "HASHTABLE_IMPORT",
            DType.INT64,
            DType.STRING,
            (np.array([4, 4, 4, 5]), NAMES),
            objects([b""]),
            (3,),
            lambda rng: [rng.integers(3, 7, 3)],
        ),
    ]
    for init in (False, True)
]

CASES: list[Case] = [*EMBEDDING, *SPARSE, *LOOKUP, *LSH, *SKIP_GRAM, *TABLES]
