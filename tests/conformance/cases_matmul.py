"""FULLY_CONNECTED and BATCH_MATMUL over every mix of types."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from sanderling.ir import (
    Array,
    Blockwise,
    DType,
    Graph,
    Model,
    Op,
    Quant,
    SparseDim,
    Sparsity,
    Tensor,
)

from .harness import Case, T, biases, case, f32, i8, i16, i32, scales, u8, weights

SUM = 2e-6


# Input, weights [O, K], attributes.
GEOMETRY: list[tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = [
    ((1, 8), (4, 8), {}),
    ((3, 16), (5, 16), {"fused_activation_function": "RELU"}),
    ((2, 3, 4), (6, 12), {"fused_activation_function": "RELU6"}),
    ((2, 3, 10), (1, 10), {"keep_num_dims": True}),
    ((1, 2, 1, 33), (7, 33), {"keep_num_dims": True, "fused_activation_function": "RELU_N1_TO_1"}),
    ((4, 1), (3, 1), {}),
    ((2, 1200), (3, 1200), {}),
]
# Zero points of input and weights; scale and zero point of the output.
UINT8_CODES = [(128, 120, 0.2, 100), (0, 0, 0.6, 0), (255, 255, 0.15, 255), (3, 130, 0.07, 10)]
INT8_CODES = [(1, 0.1, -3), (-128, 0.02, -128), (127, 0.05, 127), (0, 0.3, 5)]
KIND_VERSION = {"i8": 12, "i4": 12, "i2": 13}


def _fc(*operands: T | None, **more: Any) -> Case:
    return case("FULLY_CONNECTED", *operands, **more)


def _low(kind: str) -> int:
    """No weight of -128: LiteRT's SSE kernels for hybrid products get its sign wrong."""
    return {"i8": -127, "i4": -8, "i2": -2}[kind]


FLOAT = [
    _fc(f32(*x), weights(*w), *bias, tol=1e-5, version=5 if a.get("keep_num_dims") else 1, **a)
    for x, w, a in GEOMETRY
    for bias in ((), (None,), (biases(w[0]),))
]
UINT8 = [
    _fc(
        u8(*x, scale=0.03, zp=zx),
        weights(*w, dtype="u8", scale=0.02, zp=zw),
        bias,
        out=[T((), out, scale=so, zp=zo if out == "u8" else 0)],
        version=5,
        **a,
    )
    for (x, w, a), (zx, zw, so, zo) in zip(GEOMETRY, cycle(UINT8_CODES), strict=False)
    for out in ("u8", "i16")
    for bias in (biases(w[0], "i32", 0.0006), *((None,) if out == "u8" else ()))
]
INT8 = [
    _fc(
        i8(*x, scale=0.03, zp=zx),
        weights(
            *w, dtype=kind, scale=scales(w[0]) if per else 0.01, zp=0 if per or kind != "i8" else 3
        ),
        bias,
        out=[i8(scale=so, zp=zo)],
        name="channel" if per else "tensor",
        version=KIND_VERSION[kind],
        **a,
    )
    for kind in ("i8", "i4", "i2")
    for per in (True, False)
    for (x, w, a), (zx, so, zo) in zip(GEOMETRY, cycle(INT8_CODES), strict=False)
    if not per or w[0] > 1
    for bias in (biases(w[0], "i32", 0.0003), None)
]
INT16 = [
    _fc(
        i16(*x, scale=0.001),
        weights(*w, dtype=kind, scale=scales(w[0]) if per else 0.01),
        bias,
        out=[i16(scale=0.0007)],
        name="channel" if per else "tensor",
        version=KIND_VERSION[kind],
        **more,
        **a,
    )
    for kind in ("i8", "i4", "i2")
    for per in (True, False)
    for x, w, a in GEOMETRY
    if not per or w[0] > 1
    for bias, more in (
        (None, {}),
        (biases(w[0], "i64", 1e-5, 100000), {}),
        (biases(w[0], "i32", 1e-5, 100000), {"quantized_bias_type": "INT32"}),
    )
]
HYBRID = [
    _fc(
        f32(*x),
        weights(*w, dtype=kind, low=_low(kind), scale=scales(w[0]) if per else 0.01),
        bias,
        name="hybrid" + "_channel" * per,
        tol=SUM,
        version=KIND_VERSION[kind],
        asymmetric_quantize_inputs=asymmetric,
        **a,
    )
    for kind in ("i8", "i4", "i2")
    for per in (True, False)
    for asymmetric in (True, False)
    for x, w, a in GEOMETRY
    if not per or w[0] > 1
    for bias in (biases(w[0]), None)
]
# Sums of 8-bit codes that leave 32 bits, by their depth and by the bias. (Results that leave them
# are undefined in LiteRT's kernel.)
WIDE = [
    _fc(
        make(2, depth, scale=0.5, zp=zx, low=low),
        weights(5, depth, dtype=kind, scale=0.5, zp=zw, low=low),
        bias,
        out=[T((), out, scale=2e6, zp=zo)],
        name="wraps",
        version=5,
    )
    for make, kind, out, low, zx, zw, zo in (
        (u8, "u8", "u8", 250, 0, 0, 100),
        (u8, "u8", "i16", 250, 0, 0, 0),
        (i8, "i8", "i8", -128, 7, 0, -3),
    )
    for depth in (35000, 6)
    for bias in (biases(5, "i32", 0.25, 2**31 - 1), *((None,) if kind == out == "u8" else ()))
]
ODD = [
    _fc(f32(2, 3, 0), weights(4, 0), name="no_depth"),
    _fc(f32(0, 3), weights(4, 3), name="no_rows"),
    _fc(f32(2, 8), weights(4, 8, dtype="u8", scale=0.01, zp=3), biases(4), version=3, tol=SUM,
        name="hybrid_old"),  # stored as uint8, read as int8
    *(_fc(f32(3, 8), weights(4, 8, dtype="i8", low=-127, scale=0.01), biases(4), version=3, tol=SUM,
          name="hybrid", fused_activation_function=act) for act in ("TANH", "SIGN_BIT")),
    *(_fc(T((2, 4), "f32", data=[[0, 0, 0, 0], last], fed=True),
          weights(4, 4, dtype="i8", scale=0.01), biases(4), version=9, tol=SUM,
          name="hybrid_zero_row", asymmetric_quantize_inputs=True)
      for last in ([1, 2, 3, 4], [0, 0, 0, 0])),
    *(_fc(u8(rows, 32, scale=0.03, zp=128), weights(8, 32, dtype="u8", scale=0.02, zp=128),
          biases(8, "i32", 0.0006), out=[i16(scale=0.01), u8()], version=2,
          weights_format="SHUFFLED4x16INT8", name="shuffled") for rows in (1, 4)),
    # LiteRT takes an int64 bias for int32 here unless the type is stated.
    *(_fc(i16(*x, scale=0.001),
          weights(*w, dtype="i16", scale=scales(w[0] if per else 1, 1e-5, 1e-4)), bias,
          out=[i16(scale=0.0007)], version=13, **more, **a)
      for per in (True, False) for x, w, a in GEOMETRY if not per or w[0] > 1
      for bias, more in ((None, {}),
                         (biases(w[0], "i64", 1e-8, 10**8), {"quantized_bias_type": "INT64"}),
                         (biases(w[0], "i32", 1e-8, 10**8), {"quantized_bias_type": "INT32"}))),
    _fc(i8(2, 8, scale=0.03, zp=1), i8(4, 8, scale=0.01), i32(4, low=-99, high=99, scale=0.0003),
        out=[i8(scale=0.05, zp=3)], version=4, name="all_fed"),
]  # fmt: skip


def _sparse(
    kind: str,
    rows: int,
    units: int,
    depth: int,
    block: int = 1,
    per_channel: bool = False,
    asymmetric: bool = False,
) -> Case:
    """Weights stored by rows in 1 x block blocks, about half of them present.

    kind: f32, i8, or hybrid (float activations, int8 weights).
    """
    whole = kind == "i8"

    def build() -> Model:
        rng = np.random.default_rng(5)
        place = rng.random((units, depth // block)) < 0.5
        values = rng.integers(-127, 128, int(place.sum()) * block)
        segments = np.concatenate([[0], np.cumsum(place.sum(axis=1))]).astype(np.int32)
        dims = [SparseDim(units), SparseDim(0, segments, np.nonzero(place)[1].astype(np.int32))]
        blocks = [SparseDim(block)] if block > 1 else []
        order = tuple(range(2 + len(blocks)))
        graph = Graph("main")
        wide = DType.INT8 if whole else DType.FLOAT32
        x = graph.input("x", wide, (rows, depth), quant=Quant.of(0.03, 2) if whole else None)
        w = graph.constant(
            "w",
            values.astype(np.float32 if kind == "f32" else np.int8),
            quant=Quant.of(scales(units) if per_channel else 0.01),
        )
        w.quant = None if kind == "f32" else w.quant
        w.shape, w.sparsity = (units, depth), Sparsity(order, (1,) * len(blocks), (*dims, *blocks))
        bias = rng.integers(-900, 900, units).astype(np.int32 if whole else np.float32)
        b = graph.constant("b", bias, quant=Quant.of(0.0003) if whole else None)
        out = Tensor("out", wide, (rows, units), quant=Quant.of(0.05, -4) if whole else None)
        attrs = {"asymmetric_quantize_inputs": asymmetric}
        graph.insert(Op("FULLY_CONNECTED", [x, w, b], [out], attrs, version=8))
        graph.outputs = [out]
        return Model([graph])

    name = f"sparse_{kind}_{rows}x{units}x{depth}_{block}_{per_channel:d}{asymmetric:d}"
    feed = i8(rows, depth) if whole else f32(rows, depth)
    return Case(
        "FULLY_CONNECTED", name=name, build=build, feeds=lambda rng: [feed.random(rng)], tol=1e-5
    )


SPARSE = [
    _sparse("f32", 2, 6, 10),
    _sparse("f32", 1, 8, 16, 4),
    *(_sparse("i8", 3, 6, 48, 16, per) for per in (True, False)),
    *(_sparse("hybrid", 2, 8, 64, 16, per, False) for per in (True, False)),
    *(_sparse("hybrid", 2, 8, 64, 16, per, True) for per in (True, False)),
]


def _blockwise(rows: int, units: int, depth: int, block: int, dtype: DType = DType.INT4) -> Case:
    """Weights with a scale a block: LiteRT's reference kernels give nonsense, so the judge is the
    float product. (Its default kernel for int4 without XNNPACK agrees with ours to 2e-7.)"""
    rng = np.random.default_rng(11)
    low, high = dtype.bounds
    codes = rng.integers(low, high + 1, (units, depth)).astype(np.int8)
    steps = rng.uniform(0.01, 0.1, (units, depth // block)).astype(np.float16)
    bias = rng.uniform(-1, 1, units).astype(np.float32)

    def build() -> Model:
        graph = Graph("main")
        x = graph.input("x", DType.FLOAT32, (rows, depth))
        scales = graph.constant("scales", steps)
        none = np.zeros(0, np.float32)
        quant = Quant(none, none.astype(np.int64), block=Blockwise(scales, None, block))
        w = graph.constant("w", codes, dtype, quant=quant)
        out = Tensor("out", DType.FLOAT32, (rows, units))
        operands = [x, w, graph.constant("bias", bias)]
        graph.insert(Op("FULLY_CONNECTED", operands, [out], version=13))
        graph.outputs = [out]
        return Model([graph])

    real = codes * np.repeat(steps.astype(np.float32), block, axis=1)
    name = f"blockwise_{dtype.short}_{rows}x{units}x{depth}_{block}"
    return Case(
        "FULLY_CONNECTED",
        name=name,
        build=build,
        litert=False,
        tol=0.02,
        feeds=lambda rng: [f32(rows, depth).random(rng)],
        expect=lambda x: [x @ real.T + bias],
    )


BLOCKWISE = [
    _blockwise(3, 8, 64, 32),
    _blockwise(1, 75, 512, 64),
    _blockwise(19, 40, 256, 128),
    _blockwise(2, 21, 512, 256, DType.INT8),
    _blockwise(7, 9, 96, 32, DType.INT8),
    _blockwise(4, 17, 96, 48, DType.INT2),
]


# Left, right, adj_x, adj_y.
PRODUCTS: list[tuple[tuple[int, ...], tuple[int, ...], bool, bool]] = [
    ((3, 4), (4, 5), False, False),
    ((2, 3, 4), (2, 4, 5), False, False),
    ((4, 3), (2, 5, 4), True, True),
    ((2, 1, 3, 7), (5, 7, 2), False, False),
    ((3, 1, 2, 6, 5), (1, 4, 2, 4, 5), False, True),
    ((2, 4, 3), (4, 1), True, False),
    ((1, 1), (1, 1), False, False),
    ((2, 1, 3, 4), (2, 1, 4, 5), False, False),
]
ONE_BATCH = [p for p in PRODUCTS if max(map(len, p[:2])) <= 3]


def _bmm(x: T, y: T, adj_x: bool, adj_y: bool, **more: Any) -> Case:
    return case("BATCH_MATMUL", x, y, adj_x=adj_x, adj_y=adj_y, **more)


BATCHED = [
    *(_bmm(f32(*x), f32(*y), a, b, tol=SUM) for x, y, a, b in PRODUCTS),
    *(_bmm(f32(*x), weights(*y), a, b, tol=SUM, name="constant") for x, y, a, b in PRODUCTS),
    *(_bmm(i8(*x, scale=0.02, zp=zx), i8(*y, scale=0.03, zp=zo), a, b, out=[i8(scale=so, zp=zo)],
           version=2)
      for (x, y, a, b), (zx, so, zo) in zip(PRODUCTS, cycle(INT8_CODES), strict=False)),
    *(_bmm(i8(*x, scale=0.02), i8(*y, scale=0.03), a, b, out=[i32()], version=4)
      for x, y, a, b in PRODUCTS),
    *(_bmm(i16(*x, scale=0.002), T(y, kind, scale=0.003), a, b, out=[i16(scale=0.01)],
           version=4 if kind == "i8" else 3) for kind in ("i16", "i8") for x, y, a, b in PRODUCTS),
    # One batch dimension only: LiteRT takes wrong scales and row sums where there are several.
    *(_bmm(f32(*x), weights(*y, dtype="i8", scale=scales(y[axis]) if per else 0.01, axis=axis),
           a, b, tol=SUM, name="hybrid" + "_channel" * per, asymmetric_quantize_inputs=asym,
           version=4)
      for per in (True, False) for asym in (True, False) for x, y, a, b in ONE_BATCH
      for axis in [len(y) - (2 if b else 1)] if not per or y[axis] > 1),
]  # fmt: skip


def _by_column(kind: str, adj_y: bool) -> Case:
    """LiteRT answers zeros: the judge is the product of the reals."""
    shape, axis = ((7, 40), 0) if adj_y else ((40, 7), 1)
    x = T((2, 3, 40), kind, scale=0.002)
    y = weights(*shape, dtype="i8", scale=scales(7), axis=axis)
    out = 0.05 if kind == "i8" else 0.01

    def expect(codes: Array) -> list[Array]:
        steps = np.expand_dims(scales(7).astype(np.float64), 1 - axis)
        real = (0.002 * codes) @ ((y.data * steps).T if adj_y else y.data * steps)
        low, high = DType.parse(kind).bounds
        return [np.clip(np.round(real / out), low, high).astype(codes.dtype)]

    return _bmm(
        x,
        y,
        False,
        adj_y,
        out=[T((), kind, scale=out)],
        name="by_column",
        version=4,
        litert=False,
        expect=expect,
        off_by=1,
        why="ties of codes round away",
    )


BY_COLUMN = [_by_column(kind, adj_y) for kind in ("i16", "i8") for adj_y in (False, True)]

CASES: list[Case] = [
    *FLOAT, *UINT8, *INT8, *INT16, *HYBRID, *WIDE, *ODD, *SPARSE, *BLOCKWISE, *BATCHED, *BY_COLUMN,
]  # fmt: skip
