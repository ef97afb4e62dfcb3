"""Stored bytes <-> NumPy arrays: plain types, sub-byte integers, strings, sparse tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import ModelError
from .types import Array, DType, Shape, SparseDim, Sparsity

# A sparse tensor may be this much larger than its stored values; real ones stay below 100.
MOST_EXPANSION = 4096

_DAMAGED = "the file is damaged; get it again"


def decode(raw: memoryview, dtype: DType, shape: Shape) -> Array:
    """An array over the bytes: a view where the layout allows it, read-only."""
    count = math.prod(shape)
    if dtype is DType.STRING:
        strings = decode_strings(raw)
        if strings.size != count:
            raise ModelError(
                f"shape {shape} takes {count} strings, the buffer has {strings.size}", fix=_DAMAGED
            )
        return strings.reshape(shape)
    if not dtype.is_fixed_size:
        raise ModelError(f"a constant cannot be of type {dtype.short}", fix=_DAMAGED)
    if min(shape, default=0) < 0:
        raise ModelError(f"shape {shape} has a negative size", fix=_DAMAGED)
    need = dtype.nbytes(shape)
    if need > raw.nbytes:
        what = f"{dtype.short}{list(shape)} takes {need} bytes, the buffer has {raw.nbytes}"
        raise ModelError(what, fix=_DAMAGED)
    if dtype.is_packed:
        return unpack_bits(np.frombuffer(raw, np.uint8), dtype, count).reshape(shape)
    return np.frombuffer(raw, dtype.numpy, count).reshape(shape)


def encode(array: Array, dtype: DType) -> memoryview:
    """The bytes a file stores for the array."""
    if dtype is DType.STRING:
        return memoryview(encode_strings(array.reshape(-1)))
    if dtype.is_packed:
        return memoryview(pack_bits(array, dtype).data)
    flat = np.ascontiguousarray(array, dtype.numpy).reshape(-1)
    return memoryview(flat.view(np.uint8).data)


def unpack_bits(packed: Array, dtype: DType, count: int) -> Array:
    """Sub-byte integers, lowest bits first, widened to a byte each."""
    bits = dtype.bits
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[:, None] >> shifts & (2**bits - 1)).reshape(-1)[:count]
    if dtype.numpy.kind == "u":
        return codes.astype(np.uint8)
    return (codes << (8 - bits)).view(np.int8) >> (8 - bits)


def pack_bits(array: Array, dtype: DType) -> Array:
    """The inverse of unpack_bits; the last byte is filled up with zeros."""
    bits, per_byte = dtype.bits, 8 // dtype.bits
    codes = np.ascontiguousarray(array, dtype.numpy).reshape(-1).view(np.uint8) & (2**bits - 1)
    codes = np.pad(codes, (0, -codes.size % per_byte)).reshape(-1, per_byte)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.bitwise_or.reduce(codes << shifts, axis=1).astype(np.uint8)


def decode_strings(raw: memoryview) -> Array:
    """TFLite's string layout: count, count+1 offsets, then the bytes."""
    data = bytes(raw)
    if len(data) < 4:
        return np.empty(0, np.object_)
    count = int(np.frombuffer(data, "<i4", 1)[0])
    if count < 0 or 4 * (count + 2) > len(data):
        raise ModelError(f"string tensor claims {count} strings in {len(data)} bytes")
    ends = np.frombuffer(data, "<i4", count + 1, 4)
    if count and (ends[0] < 0 or ends[-1] > len(data) or np.any(np.diff(ends) < 0)):
        raise ModelError("string tensor has offsets outside its buffer")
    strings = np.empty(count, np.object_)
    strings[:] = [data[a:b] for a, b in pairwise(ends)]
    return strings


def encode_strings(strings: Sequence[Any] | Array) -> bytes:
    blobs = [s.encode() if isinstance(s, str) else bytes(s) for s in strings]
    header = 4 * (len(blobs) + 2)
    ends = header + np.cumsum([0, *map(len, blobs)], dtype=np.int64)
    return np.array([len(blobs), *ends], "<i4").tobytes() + b"".join(blobs)


def densify(values: Array, sparsity: Sparsity, shape: Shape) -> Array:
    """Expand compressed values to the dense tensor of this shape."""
    _check_expansion(values, sparsity, shape)
    rank = len(shape)
    # Coordinates are built level by level: position p of a level has a parent and an index.
    parents: Array = np.zeros(1, np.int64)
    coords: list[Array] = []
    for dim in sparsity.dims:
        owner, index = _expand_level(dim, len(parents))
        coords = [c[owner] for c in coords] + [index]
        parents = owner
    if len(parents) > values.size:
        raise ModelError(f"sparse tensor has {values.size} values for {len(parents)} positions")
    return _scatter(values[: len(parents)], coords, sparsity, shape, rank)


def _check_expansion(values: Array, sparsity: Sparsity, shape: Shape) -> None:
    """Refuse a hostile shape: the work must be in proportion to what the file stores."""
    dense = math.prod(shape)
    if dense > MOST_EXPANSION * (values.size + 1024):
        raise ModelError(
            f"sparse tensor of {values.size} values claims {dense} elements",
            fix="the file is damaged; get it again",
        )
    room = max([values.size, *(d.segments.size for d in sparsity.dims if d.segments is not None)])
    positions = 1
    for dim in sparsity.dims:
        positions = positions * dim.dense_size if dim.indices is None else dim.indices.size
        if not 0 <= positions <= room:
            raise ModelError(
                f"sparse tensor of {values.size} values has {positions} positions",
                fix="the file is damaged; get it again",
            )


def _expand_level(dim: SparseDim, parents: int) -> tuple[Array, Array]:
    """For each position of this level: which parent it belongs to, and its index there."""
    if dim.segments is None or dim.indices is None:
        owner = np.repeat(np.arange(parents), dim.dense_size)
        return owner, np.tile(np.arange(dim.dense_size), parents)
    segments = dim.segments.astype(np.int64)
    if segments.size != parents + 1 or np.any(np.diff(segments) < 0) or segments[0] < 0:
        raise ModelError(f"sparse dimension has {segments.size} segments for {parents} parents")
    if segments[-1] > dim.indices.size:
        raise ModelError("sparse dimension has segments past the end of its indices")
    owner = np.repeat(np.arange(parents), np.diff(segments))
    return owner, dim.indices.astype(np.int64)[segments[0] : segments[-1]]


def _scatter(
    values: Array, coords: list[Array], sparsity: Sparsity, shape: Shape, rank: int
) -> Array:
    """Put values where their level coordinates point; block dimensions add to their outer one."""
    blocks = [
        sparsity.dims[sparsity.traversal_order.index(rank + b)].dense_size
        for b in range(len(sparsity.block_map))
    ]
    place: list[Array] = [np.zeros(values.size, np.int64) for _ in range(rank)]
    for level, axis in enumerate(sparsity.traversal_order):
        if axis >= rank:
            place[sparsity.block_map[axis - rank]] += coords[level]
        elif axis in sparsity.block_map:
            place[axis] += coords[level] * blocks[sparsity.block_map.index(axis)]
        else:
            place[axis] += coords[level]
    if any(p.size and (p.min() < 0 or p.max() >= n) for p, n in zip(place, shape, strict=True)):
        raise ModelError("sparse tensor has indices outside its shape")
    dense = np.zeros(shape, values.dtype)
    dense[tuple(place)] = values if rank else values[0]
    return dense
