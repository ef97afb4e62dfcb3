"""Conformance cases: reshape, make from a shape, join, split, cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sanderling.ir import Array

from .harness import (
    Case,
    T,
    boolean,
    case,
    const,
    f32,
    i4,
    i8,
    i16,
    i32,
    i64,
    u8,
)

ANY = "f32 f16 bf16 f64 i8 u8 i16 u16 i32 u32 i64 u64 bool c64"


def of(dtype: str, *shape: int, **more: Any) -> T:
    """An operand of any type; strings are random words of 0 to 4 letters."""
    if dtype != "str":
        return T(shape, dtype, **more)

    def words(rng: np.random.Generator) -> Array:
        made = [bytes(rng.integers(97, 123, n).astype(np.uint8)) for n in rng.integers(0, 5, 999)]
        return np.array(made, object)[: int(np.prod(shape))].reshape(shape)

    return T(shape, dtype, make=words, **more)


def index(data: Any, **more: Any) -> T:
    return const(data, "i32", **more)


def every(types: str, make: Callable[[str], Case]) -> list[Case]:
    return [make(d) for d in types.split()]


# A quantised operand and an output of the same quantisation.
QUANTIZED = [
    (i8, {"scale": 0.1, "zp": -128}),
    (i8, {"scale": 0.5, "zp": 7}),
    (u8, {"scale": 0.1, "zp": 255}),
    (i16, {"scale": 0.01}),
]


def strided(
    shape: tuple[int, ...],
    begin: list[int],
    end: list[int],
    strides: list[int],
    dtype: str = "i32",
    fed: bool = False,
    **attrs: Any,
) -> Case:
    spec = (index(v, fed=fed) for v in (begin, end, strides))
    return case("STRIDED_SLICE", of(dtype, *shape), *spec, **attrs)


RESHAPES = [
    *every(f"{ANY} c128 str i4 u4", lambda d: case("RESHAPE", of(d, 3, 5), index([5, -1]))),
    *(case("RESHAPE", make(2, 6, **q), index([3, 4]), out=[make(**q)]) for make, q in QUANTIZED),
    *(case("RESHAPE", f32(*shape), new_shape=list(target)) for shape, target in [
        ((2, 6), (4, 3)), ((2, 6), (-1,)), ((2, 6), (2, -1, 3)), ((1, 1), ()), ((5,), (1, 1, 5, 1)),
        ((), (1, 1)), ((0, 4), (-1, 4)), ((0, 3), (-1, 2)), ((3, 0), (0, 5)),
    ]),
    case("RESHAPE", f32(1, 1), new_shape=[0], name="legacy scalar"),
    case("RESHAPE", f32(1), name="no shape at all"),
    case("RESHAPE", f32(1), index([]), name="empty vector"),
    case("RESHAPE", f32(0, 3), index([0]), name="[0] in a tensor is no scalar"),
    case("RESHAPE", f32(0, 3), index([-1, 0])),
    case("RESHAPE", f32(2, 6), index([[3, 4]]), new_shape=[4, 3], name="matrix: attribute"),
    case("RESHAPE", f32(2, 6), const([3, 4], "i64"), new_shape=[4, 3], name="i64: attribute"),
    case("RESHAPE", f32(2, 6), index([3, 4]), new_shape=[12], name="tensor wins"),
    case("RESHAPE", f32(2, 6), index([3, -1], fed=True), name="fed"),
    case("RESHAPE", f32(2, 0), index([0, -1], fed=True), name="fed"),
    *every(f"{ANY} c128 str i4 u4", lambda d: case("SQUEEZE", of(d, 1, 3, 1, 5))),
    *(case("SQUEEZE", f32(*shape), squeeze_dims=dims) for shape, dims in [
        ((1, 3, 1), [0]), ((1, 3, 1), [-1]), ((1, 3, 1), [0, 2]), ((1, 3, 1), [-1, 2, 2]),
        ((1, 1), []), ((1, 1), [0, 1]), ((), []), ((1, 0), []), ((2, 3), []), ((1, 0, 2), [0]),
    ]),
    *(case("SQUEEZE", make(1, 6, **q), out=[make(**q)]) for make, q in QUANTIZED),
    *every(f"{ANY} c128 str i4 u4", lambda d: case("EXPAND_DIMS", of(d, 3, 5), index(1))),
    *(case("EXPAND_DIMS", f32(2, 3), index(axis)) for axis in (-3, -2, -1, 0, 1, 2)),
    *(case("EXPAND_DIMS", make(2, 6, **q), index(0), out=[make(**q)]) for make, q in QUANTIZED),
    case("EXPAND_DIMS", f32(2, 3), const([1], "i64")),
    case("EXPAND_DIMS", f32(2, 3), index([-1], fed=True), name="fed"),
    case("EXPAND_DIMS", f32(), index(0)),
    case("EXPAND_DIMS", f32(0, 2), index(-1)),
]  # fmt: skip

SHAPES = [
    *every(
        f"{ANY} c128 str i4", lambda d: case("SHAPE", of(d, 3, 5), out=[i32()], out_type="INT32")
    ),
    *(
        case("SHAPE", f32(*shape), out=[make()], out_type=kind)
        for shape in [(), (1,), (0, 3), (1, 2, 3, 4, 5, 6)]
        for make, kind in [(i32, "INT32"), (i64, "INT64")]
    ),
    *every(f"{ANY} c128 str i4", lambda d: case("RANK", of(d, 3, 5), out=[i32()])),
    *(case("RANK", f32(*shape), out=[i32()]) for shape in [(), (1,), (0, 3), (1, 2, 3, 4, 5, 6)]),
    *(
        case("BROADCAST_ARGS", const(a, kind, fed=fed), const(b, kind, fed=fed))
        for kind in ("i32", "i64")
        for fed in (False, True)
        for a, b in [([2, 1], [3]), ([4], [2, 3, 1]), ([0, 1], [1, 5]), ([7, 1, 2], [7, 3, 2])]
    ),
]

MADE = [
    *every(f"{ANY} c128",
           lambda d: case("BROADCAST_TO", of(d, 2, 1, 3), index([4, 2, 5, 3]), version=2)),
    *(case("BROADCAST_TO", f32(*shape), const(to, kind, fed=fed), version=3)
      for kind, fed in [("i32", False), ("i64", False), ("i32", True), ("i64", True)]
      for shape, to in [((), (2, 3)), ((1, 1), (3, 1)), ((2, 3), (2, 3)), ((1,), (0, 2)),
                        ((), (1,))]),
    case("BROADCAST_TO", i32(1, 2, 1, 2, 1, 1), index([2, 2, 3, 2, 1, 2]), version=2),
    # LiteRT 2.3 reads a string that is fed as a scalar wrongly; a constant is well.
    *every(ANY, lambda d: case("FILL", index([2, 3]), of(d), out=[T((), d)])),
    case("FILL", index([2, 3]), const(b"word", "str"), out=[of("str")]),
    *(case("FILL", const(dims, kind, fed=fed), f32(), out=[f32()])
      for kind, fed in [("i32", False), ("i64", False), ("i32", True), ("i64", True)]
      for dims in ([4], [2, 0, 3], [1, 1], [2, 1, 2, 3, 2])),
    case("FILL", index([]), f32(), out=[f32()], name="scalar"),
    *(case("FILL", index([2, 3]), make(**q), out=[make(**q)]) for make, q in QUANTIZED),
    *every(f"{ANY} str", lambda d: case("TILE", of(d, 2, 3), index([2, 3]))),
    *(case("TILE", f32(*shape), const(times, kind, fed=fed))
      for kind, fed in [("i32", False), ("i64", False), ("i32", True), ("i64", True)]
      for shape, times in [((3,), [4]), ((2, 1, 3), [1, 5, 2]), ((2, 2), [0, 3]), ((0, 2), [2, 2]),
                           ((1, 2, 1, 2, 1), [2, 1, 3, 1, 2])]),
    case("TILE", of("str", 2, 1, 2), index([2, 2, 1])),
    *(case("RANGE", *(const(v, kind, fed=fed) for v in spec), out=[T((), kind)])
      for kind, fed in [("i32", False), ("i64", False), ("i32", True), ("i64", True)]
      for spec in [(0, 7, 1), (2, 9, 3), (9, 2, -3), (5, 5, 1), (-4, -4, -1), (0, 9, 100)]),
    case("RANGE", *(const(v, "i32") for v in (2**31 - 6, 2**31 - 1, 4)), name="near the end"),
    # 0.1 added a thousand times: the kernel's rounding, step by step.
    *(case("RANGE", *(const(v, fed=fed) for v in spec), ulps=0) for fed in (False, True)
      for spec in [(0, 100, 0.1), (1, -1, -0.3), (0.5, 3, 0.7), (2, 2, 1), (0, 1e-3, 3e-7)]),
]  # fmt: skip

JOINED = [
    *every("f32 f16 bf16 i4 u8 i8 i16 i32 u32 i64 bool",
           lambda d: case("CONCATENATION", of(d, 3, 2), of(d, 3, 3), of(d, 3, 1), axis=1)),
    *(case("CONCATENATION", *(f32(*s) for s in shapes), axis=axis) for shapes, axis in [
        ([(2, 3), (4, 3)], 0), ([(2, 3, 4), (2, 3, 5)], -1), ([(2, 3, 4), (2, 1, 4)], -2),
        ([(3,)], 0), ([(2, 0), (2, 3)], 1), ([(0,), (0,)], 0), ([(1, 2, 2, 3, 1)] * 3, 2),
    ]),
    case("CONCATENATION", const(3, "i32"), const(4, "i32"), axis=0, name="constant scalars"),
    case("CONCATENATION", const([3], "i32"), const([4, 5], "i32"), axis=0, name="constants"),
    case("CONCATENATION", i4(3, 3), i4(3, 4), axis=1, name="odd sizes"),
    *(case("CONCATENATION", make(2, 3, **q), make(2, 5, **q), axis=1, out=[make(**q)])
      for make, q in QUANTIZED),
    *(case("CONCATENATION", u8(16, 16, scale=a, zp=za), u8(16, 32, scale=b, zp=zb), axis=1,
           out=[u8(scale=c, zp=zc)], name=f"rescaled {c}")
      for a, za, b, zb, c, zc in [(0.1, 3, 0.1, 3, 0.1, 3), (0.1, 0, 0.25, 128, 0.2, 10),
                                  (0.5, 255, 0.3, 7, 0.1, 0), (0.007, 100, 1.0, 0, 0.03, 250)]),
    case("CONCATENATION", i16(4, scale=0.1), i16(4, scale=0.3), axis=0, out=[i16(scale=0.2)],
         name="i16 is not rescaled"),
    # LiteRT refuses a fused activation here.
    case("CONCATENATION", f32(2, 3, low=-9, high=9), f32(2, 3), axis=0, litert=False,
         fused_activation_function="RELU6",
         expect=lambda a, b: [np.clip(np.concatenate([a, b]), 0, np.float32(6))]),
    *every("f32 u8 i8 i16 i32 u32 i64",
           lambda d: case("PACK", of(d, 3, 2), of(d, 3, 2), axis=1, values_count=2)),
    *(case("PACK", *[f32(2, 3)] * n, axis=axis, values_count=n)
      for n, axis in [(1, 0), (2, -1), (3, 2), (3, -3), (2, -2)]),
    case("PACK", i32(), i32(), i32(), values_count=3, name="scalars"),
    case("PACK", f32(0, 2), f32(0, 2), values_count=2, axis=1),
    *(case("PACK", make(2, **q), make(2, **q), values_count=2, out=[make(**q)])
      for make, q in QUANTIZED),
    *every("f32 f16 bf16 u8 i8 i16 i32 bool",
           lambda d: case("UNPACK", of(d, 3, 2), axis=1, num=2, out=[T((), d)] * 2)),
    *(case("UNPACK", f32(*shape), axis=axis, num=n, out=[f32()] * n)
      for shape, axis, n in [((3,), 0, 3), ((2, 3, 4), -1, 4), ((2, 3, 4), -2, 3), ((1, 5), 0, 1)]),
    *(case("UNPACK", make(2, 3, **q), num=2, out=[make(**q)] * 2) for make, q in QUANTIZED),
]  # fmt: skip

SPLITS = [
    *every("f32 u8 i8 i16 i32 i64",
           lambda d: case("SPLIT", index(1), of(d, 3, 4), num_splits=2, out=[T((), d)] * 2)),
    *(case("SPLIT", index(axis, fed=fed), f32(*shape), num_splits=n, out=[f32()] * n)
      for fed in (False, True)
      for axis, shape, n in [([0], (6,), 3), (-1, (2, 3, 4), 4), (-2, (2, 6, 1), 2), (0, (4, 2), 1),
                             (0, (0, 3), 2), (3, (1, 2, 2, 4, 2), 2)]),
    *(case("SPLIT", index(0), make(4, 3, **q), num_splits=2, out=[make(**q)] * 2)
      for make, q in QUANTIZED),
    *every("f32 u8 i8 i16 i32 i64",
           lambda d: case("SPLIT_V", of(d, 3, 4), index([1, 3]), index(1), num_splits=2,
                          out=[T((), d)] * 2)),
    *(case("SPLIT_V", f32(*shape), const(sizes, kind, fed=fed), index(axis, fed=fed),
           num_splits=len(sizes), out=[f32()] * len(sizes))
      for kind, fed in [("i32", False), ("i64", False), ("i32", True)]
      for shape, sizes, axis in [((6,), [1, 2, 3], 0), ((2, 5), [-1, 2], -1),
                                 ((2, 5, 2), [2, -1, 3], 1), ((4, 3), [4], 0),
                                 ((4, 3), [0, 4], 0)]),
    *(case("SPLIT_V", make(4, 3, **q), index([1, 3]), index(0), num_splits=2, out=[make(**q)] * 2)
      for make, q in QUANTIZED),
]  # fmt: skip

CUTS = [
    *every(f"{ANY} i4 str", lambda d: case("SLICE", of(d, 3, 5), index([1, 1]), index([2, 3]))),
    *(case("SLICE", f32(*shape), const(begin, kind, fed=fed), const(size, kind, fed=fed))
      for kind, fed in [("i32", False), ("i64", False), ("i32", True), ("i64", True)]
      for shape, begin, size in [
          ((6,), [2], [-1]), ((3, 4), [0, 0], [3, 4]), ((3, 4, 5), [2, 1, 0], [1, -1, 2]),
          ((3, 4), [3, 0], [-1, 2]), ((3, 4), [1, 4], [2, 0]),
          ((2, 3, 2, 3, 2), [1, 0, 1, 1, 0], [1, 2, 1, 2, -1]),
      ]),
    *(case("SLICE", make(4, 3, **q), index([1, 0]), index([2, 2]), out=[make(**q)])
      for make, q in QUANTIZED),
    *every(f"{ANY} i4 c128",
           lambda d: case("DYNAMIC_UPDATE_SLICE", of(d, 3, 5), of(d, 2, 3), index([1, 1]))),
    *(case("DYNAMIC_UPDATE_SLICE", f32(*shape), f32(*update), const(start, kind, fed=fed))
      for kind, fed in [("i32", False), ("i64", True)]
      for shape, update, start in [
          ((6,), (2,), [1]), ((6,), (2,), [9]), ((6,), (2,), [-3]), ((3, 4), (3, 4), [1, 2]),
          ((3, 4), (1, 4), [2, 3]), ((3, 4), (0, 2), [1, 1]),
          ((2, 3, 4, 5), (1, 2, 2, 3), [1, 1, 1, -1]),
      ]),
    case("DYNAMIC_UPDATE_SLICE", boolean(3, 3), boolean(2, 1), index([0, 2])),
]  # fmt: skip

STRIDED = [
    *every(f"{ANY} str", lambda d: strided((4, 5), [0, 1], [4, 5], [2, 3], d)),
    *(strided(*row) for row in [
        ((6,), [1], [5], [2]), ((6,), [-3], [-1], [1]), ((6,), [-99], [99], [1]),
        ((6,), [4], [2], [1]), ((6,), [5], [0], [-2]), ((6,), [-1], [-7], [-1]),
        ((6,), [9], [-99], [-1]), ((6,), [2], [4], [-1]), ((0,), [0], [3], [1]),
        ((0, 2), [0, 0], [0, 2], [-1, 1]), ((3, 4), [1], [3], [1]), ((3, 4), [], [], []),
        ((3, 4), [0, -1], [3, 0], [2, -2]),
        ((2, 3, 4, 5), [0, 1, 1, 4], [2, 3, 4, 0], [1, 1, 2, -1]),
    ]),
    *(strided((3, 4, 5), begin, end, strides, **masks) for begin, end, strides, masks in [
        ([1, 1, 1], [2, 2, 2], [1, 1, 1], {"begin_mask": 5}),
        ([1, 1, 1], [2, 2, 2], [1, 1, 1], {"end_mask": 3}),
        ([1, 1, 1], [2, 2, 2], [-1, 1, -2], {"begin_mask": 7, "end_mask": 7}),
        ([1, 1, 1], [2, 2, 2], [1, 1, 1], {"shrink_axis_mask": 2}),
        ([1, -1, 1], [2, 0, 2], [1, 1, 1], {"shrink_axis_mask": 7}),
        ([-99, 1, 1], [2, 2, 2], [1, 1, 1], {"shrink_axis_mask": 1}),
        ([2, 1, 1], [2, 2, 2], [1, 1, 1], {"shrink_axis_mask": 1, "begin_mask": 1}),
        ([1, 1], [2, 3], [1, 1], {"ellipsis_mask": 1}),
        ([1, 1], [2, 3], [1, 1], {"ellipsis_mask": 2}),
        ([1, 0, 1], [2, 0, 3], [1, 1, 1], {"ellipsis_mask": 2}),
        # An ellipsis that stands for no axis is left out: LiteRT lets it swallow one all the same.
        ([0, 1], [0, 2], [1, 1], {"ellipsis_mask": 1, "shrink_axis_mask": 2}),
        ([0], [0], [1], {"ellipsis_mask": 1}),
        ([0, 1], [1, 2], [1, 1], {"new_axis_mask": 1}),
        ([1, 0], [2, 1], [1, 1], {"new_axis_mask": 2}),
        ([0, 0, 0, 1], [1, 1, 2, 3], [1, 1, 1, 1], {"new_axis_mask": 3}),
        ([0, 0], [1, 1], [1, 1], {"new_axis_mask": 1, "ellipsis_mask": 2}),
        ([0, 0], [1, 1], [1, 1], {"new_axis_mask": 2, "ellipsis_mask": 1}),
        ([0, 0], [1, 1], [1, 1], {"new_axis_mask": 3, "ellipsis_mask": 1}),
        ([0, 1, 0, 1], [0, 2, 0, 2], [1, 1, 1, 1], {"new_axis_mask": 4, "ellipsis_mask": 1}),
        ([0, 1], [0, 2], [1, 1], {"new_axis_mask": 1, "shrink_axis_mask": 3}),
        ([1, 0, 2], [2, 0, 3], [1, 1, -1], {"ellipsis_mask": 2, "end_mask": 4, "begin_mask": 1}),
    ]),
    *(strided((6, 5), [1, 2], [3, 2], [1, 1], fed=fed, offset=True) for fed in (False, True)),
    strided((6, 5), [1, 0], [5, 3], [2, 1], offset=True),
    strided((6, 5), [-2, 0], [2, 5], [1, 1], fed=True, offset=True),
    *(strided((4, 5), [0, 1], [4, 5], [2, 3], fed=True, **masks)
      for masks in ({}, {"shrink_axis_mask": 1}, {"ellipsis_mask": 1}, {"begin_mask": 3})),
    *(case("STRIDED_SLICE", make(4, 3, **q), index([1, 0]), index([4, 2]), index([2, 1]),
           out=[make(**q)]) for make, q in QUANTIZED),
]  # fmt: skip

CASES: list[Case] = [*RESHAPES, *SHAPES, *MADE, *JOINED, *SPLITS, *CUTS, *STRIDED]
