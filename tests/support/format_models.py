"""Models that tests build: one with everything the format can hold, and small ones."""

from __future__ import annotations

import numpy as np

from sanderling.ir import (
    Blockwise,
    DType,
    Graph,
    Model,
    Op,
    Quant,
    Signature,
    SparseDim,
    Sparsity,
    Tensor,
)

RNG = np.random.default_rng(11)


def values(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Random values of any type, within its stored range."""
    if dtype is DType.STRING:
        return np.array([f"s{i}".encode() for i in range(int(np.prod(shape)))], object).reshape(
            shape
        )
    if dtype.numpy.kind in "iu":
        low = 0 if dtype.numpy.kind == "u" else -(2 ** (dtype.bits - 1))
        return RNG.integers(low, low + 2 ** min(dtype.bits, 62), shape).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return RNG.integers(0, 2, shape).astype(bool)
    return RNG.normal(size=shape).astype(dtype.numpy)


def sparse_tensor(name: str = "sparse") -> tuple[Tensor, np.ndarray]:
    """A 4x8 matrix in 1x4 blocks, rows dense, block columns compressed."""
    dense = np.zeros((4, 8), np.float32)
    blocks = {(0, 1): [1, 2, 3, 4], (2, 0): [5, 6, 7, 8], (3, 1): [9, 0, 11, 12]}
    for (row, block), numbers in blocks.items():
        dense[row, 4 * block : 4 * block + 4] = numbers
    dims = (
        SparseDim(4),
        SparseDim(0, np.array([0, 1, 1, 2, 3], np.uint8), np.array([1, 0, 1], np.uint8)),
        SparseDim(4),
    )
    stored = Tensor(
        name, DType.FLOAT32, (12,), data=np.float32([n for b in blocks.values() for n in b])
    )
    tensor = Tensor(
        name, DType.FLOAT32, (4, 8), buffer=stored.buffer, sparsity=Sparsity((0, 1, 2), (1,), dims)
    )
    return tensor, dense


def everything() -> Model:
    """Uses each corner of the schema once."""
    main, body = Graph("main"), Graph("body")
    x = main.input("x", DType.FLOAT32, (1, 4), signature=(-1, 4))
    for dtype in DType:
        if dtype not in (DType.RESOURCE, DType.VARIANT):
            main.constant(f"const_{dtype.short}", values(dtype, (3, 5)), dtype)
    main.constant(
        "per_axis", values(DType.INT8, (2, 3)), quant=Quant.of([0.1, 0.2], [0, 0], axis=0)
    )
    scales = main.constant("block_scales", values(DType.FLOAT16, (2, 2)))
    main.constant(
        "blocks",
        values(DType.INT4, (2, 64)),
        DType.INT4,
        quant=Quant(
            np.zeros(0, np.float32), np.zeros(0, np.int64), 0, block=Blockwise(scales, None, 32)
        ),
    )
    main.constant(
        "odd_quant",
        values(DType.UINT8, (2,)),
        quant=Quant(
            np.float32([0.5]),
            np.int64([3]),
            0,
            np.float32([-1]),
            np.float32([1]),
            custom=b"\x01\x02",
        ),
    )
    main.tensors.append(sparse_tensor()[0])
    main.tensor("state", DType.FLOAT32, (1, 4), is_variable=True)
    main.tensor("handle", DType.RESOURCE)
    main.tensor(
        "list", DType.VARIANT, (), has_rank=False, variant_types=(Tensor("", DType.INT32, (2,)),)
    )
    shared = main.constant("one", np.float32([1]))
    twin = Tensor("one_again", DType.FLOAT32, (1,), buffer=shared.buffer)
    y, z, w = (main.tensor(n, DType.FLOAT32, (1, 4)) for n in "yzw")
    main.add("ADD", [x, shared], [y], fused_activation_function="RELU6", pot_scale_int16=False)
    main.insert(
        Op(
            "custom.Mystery",
            [y, None, twin],
            [z],
            {"options": b"opaque"},
            version=2,
            intermediates=[main.tensor("between", DType.INT16, (1,))],
            mutating=[False, False, True],
            debug_index=7,
        )
    )
    c = main.tensor("c", DType.BOOL, (1,))
    main.add("IF", [c, z], [w], then_subgraph_index=body, else_subgraph_index=body)
    main.inputs.append(c)
    main.outputs = [w]
    bx = body.input("bx", DType.FLOAT32, (1, 4))
    by = body.tensor("by", DType.FLOAT32, (1, 4))
    body.add("SQUEEZE", [bx], [by], squeeze_dims=[])
    body.outputs = [by]
    signatures = [
        Signature("serve", main, {"in": x, "flag": c}, {"out": w}),
        Signature("body", body, {"a": bx}, {"b": by}),
    ]
    return Model([main, body], signatures, {"note": b"hello", "empty": b""}, "everything")
