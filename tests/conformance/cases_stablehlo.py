"""Conformance cases of the STABLEHLO_ operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from sanderling.ir import DType, Graph

from .harness import Case, T, case, const, f32, i32, u64

FLOATS = ("f16", "f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")

# -- elementwise --------------------------------------------------------------------------------

SHAPES = ((2, 3), (), (4, 1, 2, 2, 3))
NAN = const([1, np.nan, np.nan, np.inf, -np.inf, -0.0], "f32", fed=True)
REVERSED = const([np.nan, 1, np.nan, -np.inf, np.inf, 0.0], "f32", fed=True)

ELEMENTWISE = [
    *[
        case(f"STABLEHLO_{name}", T(s, d), T(s, d))
        for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")
        for d in (*FLOATS, *INTEGERS, "bool")
        for s in (SHAPES if d in ("f32", "i8") else SHAPES[:1])
    ],
    *[
        case(f"STABLEHLO_{name}", NAN, REVERSED, name="nan")
        for name in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM")
    ],
    *[case("STABLEHLO_AND", T(s, d), T(s, d)) for d in (*INTEGERS, "bool") for s in SHAPES[:2]],
    *[
        case("STABLEHLO_SHIFT_LEFT", T(s, d), T(s, d, low=0, high=high))
        for d, high in (("i8", 9), ("i16", 17), ("i32", 31))
        for s in SHAPES
    ],
]

# -- STABLEHLO_PAD ------------------------------------------------------------------------------


def pad(x: T, low: Any, high: Any, inside: Any, fill: Any = 7) -> Case:
    return case(
        "STABLEHLO_PAD",
        x,
        const(fill, x.dtype),
        edge_padding_low=low,
        edge_padding_high=high,
        interior_padding=inside,
    )


PAD = [
    *[
        pad(T((2, 3), d), [1, 0], [0, 2], [0, 1], fill=1)
        for d in (*FLOATS, *INTEGERS, "bool", "bf16", "c64")
    ],
    *[
        pad(f32(4, 5), low, high, inside)
        for low in ([0, 0], [2, 1], [-1, 0], [-2, -1])
        for high in ([0, 0], [1, 2], [0, -1])
        for inside in ([0, 0], [1, 0], [2, 3])
    ],
    pad(f32(5), [2], [-3], [1]),
    pad(f32(2, 1, 3), [0, 1, 2], [3, 2, 1], [0, 1, 2]),
]

# -- graphs of one op ---------------------------------------------------------------------------


def body(op: str, dtype: str) -> Graph:
    """A scalar computation; without an op, the second argument is the result."""
    g = Graph("body")
    kind = DType.parse(dtype)
    a, b = g.input("a", kind, ()), g.input("b", kind, ())
    g.outputs = [b]
    if op:
        out = g.tensor("out", kind, ())
        g.add(op, [a, b], [out])
        g.outputs = [out]
    return g


# -- STABLEHLO_REDUCE_WINDOW --------------------------------------------------------------------


def window(
    x: T,
    op: str,
    init: Any,
    size: list[int],
    strides: list[int],
    base: list[int],
    dilations: list[int],
    padding: list[int],
    name: str = "",
) -> Case:
    return case(
        "STABLEHLO_REDUCE_WINDOW",
        x,
        const(init, x.dtype),
        name=name or op,
        tol=1e-6,
        window_dimensions=size,
        window_strides=strides,
        base_dilations=base,
        window_dilations=dilations,
        padding=padding,
        body_subgraph_index=body(op, x.dtype),
    )


SMALL = ([2, 2], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0])
INITS = {"ADD": 0, "MULTIPLY": 1, "MAXIMUM": -100, "MINIMUM": 100}

WINDOW = [
    *[window(T((5, 4), d, low=-3, high=3), f"STABLEHLO_{op}", max(init, 0) if d == "u8" else init,
             *SMALL)
      for op, init in INITS.items()
      for d in ("f32", "f64", "i8", "i16", "i32", "i64")],
    *[window(T((5, 4), "u8"), f"STABLEHLO_{op}", 1, *SMALL) for op in INITS],
    *[window(T((5, 4), "bool"), op, init, *SMALL)
      for op, init in (("LOGICAL_AND", True), ("LOGICAL_OR", False))],
    *[window(f32(6, 5), "ADD", 0.5, *rest, name="window")
      for rest in [
          ([3, 2], [2, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
          ([2, 2], [1, 2], [2, 3], [1, 1], [0, 0, 0, 0]),
          ([2, 2], [1, 1], [1, 1], [3, 2], [0, 0, 0, 0]),
          ([2, 3], [1, 1], [1, 1], [1, 1], [1, 2, 0, 1]),
          ([2, 2], [1, 1], [1, 1], [1, 1], [-1, 0, 1, -2]),
          ([3, 2], [2, 2], [2, 2], [2, 1], [-1, 2, 1, 1]),
          ([1, 1], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
          ([6, 5], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
      ]],
    window(f32(7), "MUL", 1, [3], [2], [1], [1], [1, 1]),
    window(f32(2, 3, 4, 3), "MAXIMUM", -9, [1, 2, 2, 1], [1, 1, 2, 1], [1] * 4, [1] * 4, [0] * 8),
    window(f32(2, 3, 4), "MINIMUM", 9, [2, 2, 2], [1] * 3, [1] * 3, [1] * 3, [0, 1] * 3),
]  # fmt: skip

# -- STABLEHLO_GATHER ---------------------------------------------------------------------------


def gather(
    x: T,
    indices: T,
    offset: list[int],
    collapsed: list[int],
    starts: list[int],
    axis: int,
    sizes: list[int],
    name: str = "",
) -> Case:
    return case(
        "STABLEHLO_GATHER",
        x,
        indices,
        name=name,
        offset_dims=offset,
        collapsed_slice_dims=collapsed,
        start_index_map=starts,
        index_vector_dim=axis,
        slice_sizes=sizes,
    )


# Indices without an axis of vectors (index_vector_dim is the rank) crash LiteRT, here and in
# STABLEHLO_SCATTER.
SPEC = ([2, 3], [0], [1, 0], 2, [1, 2, 2])  # the example of the StableHLO specification

GATHER = [
    *[gather(T((3, 4, 2), d), T((2, 3, 2), i, low=-1, high=4), *SPEC)
      for d in (*FLOATS, *INTEGERS, "bool", "bf16", "c64") for i in ("i32", "i64")],
    gather(f32(5, 3), i32(4, 1, low=-2, high=7), [1], [0], [0], 1, [1, 3], name="rows"),
    gather(f32(5, 3), i32(4, 1, low=0, high=4), [0], [0], [0], 1, [1, 3], name="rows first"),
    gather(f32(5, 3), i32(2, 4, low=0, high=4), [0, 2], [], [0, 1], 0, [2, 2], name="columns"),
    gather(f32(5, 3), i32(2, low=0, high=4), [0, 1], [], [0, 1], 0, [2, 3], name="one slice"),
    gather(f32(6), i32(3, 2, 1, low=0, high=6), [], [0], [0], 2, [1], name="elements"),
    gather(f32(4, 5, 6), i32(2, 2, 2, low=0, high=5), [1, 3], [1], [2, 1], 1, [3, 1, 2]),
]  # fmt: skip

# -- STABLEHLO_SCATTER --------------------------------------------------------------------------


def scatter(
    x: T,
    indices: T,
    updates: T,
    op: str,
    windows: list[int],
    inserted: list[int],
    dims: list[int],
    axis: int,
    name: str = "",
) -> Case:
    return case(
        "STABLEHLO_SCATTER",
        x,
        indices,
        updates,
        name=f"{name} {op}".strip(),
        tol=1e-6,
        update_window_dims=windows,
        inserted_window_dims=inserted,
        scatter_dims_to_operand_dims=dims,
        index_vector_dim=axis,
        update_computation_subgraph_index=body(op, x.dtype),
    )


BODIES = ("", "STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")

SCATTER = [
    *[scatter(T((3, 4, 2), d), T((2, 3, 2), i, low=0, high=2), T((2, 3, 2, 2), d), op,
              [2, 3], [0], [1, 0], 2, name=i)
      for op in BODIES for d in (*FLOATS, *INTEGERS, "bool")
      for i in (("i32", "i64") if d == "f32" else ("i32",))],
    *[scatter(f32(5, 3), i32(4, 1, low=-2, high=7), f32(4, 3), op, [1], [0], [0], 1, name="rows")
      for op in BODIES],
    scatter(f32(5, 3), i32(2, 4, low=-1, high=4), f32(2, 4, 2), "STABLEHLO_ADD", [0, 2], [], [0, 1],
            0, name="vectors first"),
    scatter(f32(5, 3), i32(2, low=0, high=4), f32(2, 2), "", [0, 1], [], [0, 1], 0, name="one"),
    scatter(f32(6), i32(3, 2, 1, low=0, high=6), f32(3, 2), "STABLEHLO_ADD", [], [0], [0], 2,
            name="elements"),
    scatter(const([1, np.nan, 2, np.nan], "f32", fed=True), const([[0], [1], [2], [3]], "i32"),
            const([np.nan, 5, 3, np.nan], "f32", fed=True), "STABLEHLO_MAXIMUM", [], [0], [0], 1,
            name="nan"),
]  # fmt: skip

# -- STABLEHLO_RNG_BIT_GENERATOR ----------------------------------------------------------------


def bits(algorithm: str, state: Any, out: T) -> Case:
    x = state if isinstance(state, T) else const(state, "u64", fed=True)
    return case("STABLEHLO_RNG_BIT_GENERATOR", x, out=[u64(), out], algorithm=algorithm)


def words(count: int) -> T:
    return T((count,), "u64", make=lambda rng: rng.integers(0, 2**64, count, np.uint64))


RANDOM = [
    bits(algorithm, state, T(shape, d))
    for algorithm, states in [
        ("PHILOX", (words(2), words(3), [1, 2**64 - 2], [0, 2**32 - 1, 5])),
        ("DEFAULT", (words(2), words(3))),
        ("THREEFRY", (words(2), [1, 2**64 - 2], [2**64 - 1, 2**32 - 1])),
    ]
    for state in states
    for shape, d in [((2, 3), "u64"), ((5,), "u32"), ((4, 4), "i32"), ((1,), "i64"), ((0,), "i32")]
]

CASES: list[Case] = [*ELEMENTWISE, *PAD, *WINDOW, *GATHER, *SCATTER, *RANDOM]
