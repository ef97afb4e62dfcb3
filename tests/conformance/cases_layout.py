"""Conformance cases: transpose, pad, reverse, blocks, diagonals."""

from __future__ import annotations

from .cases_shape import ANY, QUANTIZED, every, index, of
from .harness import Case, case, const, f32, i4, i8, i16, i32, i64, u8

FEEDS = [("i32", False), ("i64", False), ("i32", True), ("i64", True)]

TURNED = [
    *every(f"{ANY} i4 u4", lambda d: case("TRANSPOSE", of(d, 3, 5), index([1, 0]))),
    *(case("TRANSPOSE", f32(*shape), index(perm, fed=fed)) for fed in (False, True)
      for shape, perm in [
          ((4,), [0]), ((2, 3, 4), [2, 0, 1]), ((2, 3, 4), [-1, 1, -3]),
          ((1, 2, 3, 4), [0, 3, 1, 2]),
          ((2, 3, 1, 2, 3, 2), [5, 3, 1, 0, 2, 4]), ((2, 0, 3), [1, 2, 0]),
      ]),
    *(case("TRANSPOSE", make(4, 3, **q), index([1, 0]), out=[make(**q)]) for make, q in QUANTIZED),
    case("TRANSPOSE", i4(3, 3, 3), index([2, 1, 0]), name="odd size"),
    *every("f32 f16 bf16 u8 i8 i16 i32 i64 bool",
           lambda d: case("REVERSE_V2", of(d, 3, 5), index([1]))),
    # LiteRT takes neighbouring axes only.
    *(case("REVERSE_V2", f32(*shape), index(axes, fed=fed)) for fed in (False, True)
      for shape, axes in [((4,), [0]), ((2, 3, 4), [0]), ((2, 3, 4), [-1]), ((2, 3, 4), [1, 2]),
                          ((2, 3, 4), [2, 0, 1]), ((2, 1, 3), [1]), ((0, 3), [1])]),
    case("REVERSE_V2", f32(2, 3, 4), index([0, 2]), name="axes apart", litert=False,
         expect=lambda x: [x[::-1, :, ::-1]]),
    *every("f32 u8 i16 i32 i64",
           lambda d: case("REVERSE_SEQUENCE", of(d, 3, 5), index([2, 0, 5]), seq_dim=1)),
    *(case("REVERSE_SEQUENCE", f32(*shape), const(lengths, kind, fed=fed), seq_dim=s, batch_dim=b)
      for kind, fed in FEEDS
      for shape, lengths, s, b in [((4, 3), [1, 4, 2], 0, 1), ((2, 5, 3), [5, 3], 1, 0),
                                   ((5, 2, 3), [1, 4], 0, 1), ((2, 3, 4, 2), [0, 4, 3], 2, 1),
                                   ((2, 3, 4, 2), [2, 0], 2, 3), ((2, 3, 4), [1, 2, 0, 2], 0, 2)]),
]  # fmt: skip

PADS = [
    *every("f32 f16 bf16 u8 i8 i16 i32 i64 bool",
           lambda d: case("PAD", of(d, 3, 5), index([[1, 2], [0, 3]]))),
    *every("f32 f16 bf16 u8 i8 i16 i32 i64 bool",
           lambda d: case("PADV2", of(d, 3, 5), index([[1, 2], [0, 3]]), of(d))),
    *(case("PAD", f32(*shape), const(pads, kind, fed=fed), version=4)
      for kind, fed in [*FEEDS, ("i8", False), ("i16", False)]
      for shape, pads in [
          ((4,), [[0, 0]]), ((4,), [[3, 1]]), ((1, 3, 4, 2), [[0, 0], [1, 1], [2, 0], [0, 0]]),
          ((2, 3, 4, 2), [[1, 0], [0, 2], [0, 0], [1, 3]]), ((0, 2), [[0, 2], [1, 0]]),
          ((1, 2, 1, 2, 3), [[0, 1], [1, 0], [2, 0], [0, 0], [1, 1]]),
      ]),
    *(case("PADV2", f32(*shape), const(pads, "i32", fed=fed), const(-7.5, fed=fed))
      for fed in (False, True)
      for shape, pads in [((1, 3, 4, 2), [[0, 0], [1, 1], [2, 0], [0, 0]]),
                          ((2, 3), [[1, 0], [0, 2]])]),
    *(case("PAD", make(1, 3, 4, 2, **q), index(pads), out=[make(**q)]) for make, q in QUANTIZED
      for pads in ([[0, 0], [1, 1], [2, 0], [0, 0]], [[1, 0], [1, 1], [2, 0], [0, 2]])),
    *(case("PADV2", make(2, 3, **q), index([[1, 0], [0, 2]]), make(**q), out=[make(**q)])
      for make, q in QUANTIZED),
    *every(ANY, lambda d: case("MIRROR_PAD", of(d, 3, 5), index([[1, 2], [0, 3]]))),
    *(case("MIRROR_PAD", f32(*shape), const(pads, kind, fed=fed), mode=mode)
      for mode in ("REFLECT", "SYMMETRIC") for kind, fed in FEEDS
      for shape, pads in [((4,), [[3, 2]]), ((4, 3), [[0, 0], [2, 2]]),
                          ((2, 3, 4), [[1, 1], [2, 0], [0, 3]]),
                          ((1, 2, 3, 2), [[0, 0], [1, 1], [2, 2], [0, 0]])]),
    case("MIRROR_PAD", f32(4), index([[4, 4]]), mode="SYMMETRIC"),
    *(case("MIRROR_PAD", make(4, 3, **q), index([[1, 1], [2, 0]]), out=[make(**q)])
      for make, q in QUANTIZED),
    *every(f"{ANY} c128", lambda d: case("DILATE", of(d, 3, 5), index([2, 3]), of(d))),
    *(case("DILATE", f32(*shape), index(factors, fed=fed), f32()) for fed in (False, True)
      for shape, factors in [((4,), [1]), ((4,), [3]), ((1, 3), [5, 2]), ((2, 3, 4), [2, 1, 1]),
                             ((2, 3, 4), [1, 3, 1]), ((2, 3, 4), [2, 2, 2]),
                             ((2, 3, 2, 2), [1, 1, 1, 1])]),
]  # fmt: skip

BLOCKS = [
    *every("f32 u8 i8 i32 i64",
           lambda d: case("SPACE_TO_DEPTH", of(d, 2, 4, 6, 3), block_size=2)),
    *every("f32 u8 i8 i32 i64",
           lambda d: case("DEPTH_TO_SPACE", of(d, 2, 3, 2, 12), block_size=2)),
    *(case("SPACE_TO_DEPTH", f32(*shape), block_size=b)
      for shape, b in [((1, 6, 3, 2), 3), ((1, 2, 3, 4), 1), ((2, 4, 4, 1), 4), ((0, 2, 2, 1), 2)]),
    *(case("DEPTH_TO_SPACE", f32(*shape), block_size=b)
      for shape, b in [((1, 2, 1, 18), 3), ((1, 2, 3, 4), 1), ((2, 1, 1, 16), 4),
                       ((0, 2, 2, 4), 2)]),
    *(case(op, make(1, 4, 4, 4, **q), block_size=2, out=[make(**q)])
      for op in ("SPACE_TO_DEPTH", "DEPTH_TO_SPACE") for make, q in QUANTIZED if make is not i16),
    *every(ANY, lambda d: case("SPACE_TO_BATCH_ND", of(d, 2, 3, 4, 3), index([2, 3]),
                               index([[1, 0], [2, 0]]))),
    *every(ANY, lambda d: case("BATCH_TO_SPACE_ND", of(d, 12, 3, 4, 3), index([2, 3]),
                               index([[1, 0], [2, 3]]))),
    *(case("SPACE_TO_BATCH_ND", f32(*shape), index(block, fed=fed), index(pads, fed=fed))
      for fed in (False, True)
      for shape, block, pads in [
          ((1, 4, 4, 1), [2, 2], [[0, 0], [0, 0]]), ((3, 5, 2), [3], [[1, 0]]),
          ((2, 4, 3), [2], [[2, 2]]),
          ((1, 2, 3, 2), [1, 1], [[0, 0], [0, 0]]), ((2, 5, 7, 1), [4, 2], [[1, 2], [0, 1]]),
      ]),
    *(case("BATCH_TO_SPACE_ND", f32(*shape), index(block, fed=fed), index(crops, fed=fed))
      for fed in (False, True)
      for shape, block, crops in [
          ((4, 2, 2, 1), [2, 2], [[0, 0], [0, 0]]), ((6, 2, 3), [3], [[1, 2]]),
          ((4, 2, 3), [2], [[0, 1]]),
          ((2, 2, 3, 2), [1, 1], [[0, 0], [0, 0]]), ((16, 2, 2, 2), [4, 2], [[3, 2], [1, 0]]),
      ]),
    *(case("SPACE_TO_BATCH_ND", make(1, 3, 3, 2, **q), index([2, 2]), index([[1, 0], [0, 1]]),
           out=[make(**q)]) for make, q in QUANTIZED),
    *(case("BATCH_TO_SPACE_ND", make(4, 3, 3, 2, **q), index([2, 2]), index([[1, 0], [0, 1]]),
           out=[make(**q)]) for make, q in QUANTIZED),
]  # fmt: skip

# LiteRT treats other types (f16, f64, bool ...) as float32, reading and writing past the end.
DIAGONALS = [
    *every("f32 u8 i8 i16 i32 u32 i64", lambda d: case("MATRIX_DIAG", of(d, 2, 3))),
    *(case("MATRIX_DIAG", f32(*shape)) for shape in [(4,), (1,), (2, 3, 4), (2, 0), (0, 2)]),
    *every(
        "f32 u8 i8 i16 i32 u32 i64", lambda d: case("MATRIX_SET_DIAG", of(d, 2, 3, 4), of(d, 2, 3))
    ),
    *(
        case("MATRIX_SET_DIAG", make(*shape), make(*diagonal))
        for make in (f32, i32, i64, u8, i8)
        for shape, diagonal in [
            ((3, 3), (3,)),
            ((4, 2), (2,)),
            ((2, 2, 3, 1), (2, 2, 1)),
            ((2, 0, 3), (2, 0)),
        ]
    ),
    *(
        case("MATRIX_DIAG", make(3, **q), out=[make(**q)], name="0, not the zero point")
        for make, q in QUANTIZED
    ),
]

CASES: list[Case] = [*TURNED, *PADS, *BLOCKS, *DIAGONALS]
