"""Winograd's way for windows of 3x3: 4x4 points of the result are made of 6x6 of the input with 36
products for each pair of channels instead of 144.

Three kernels: patches of the input are transformed, 36 products of matrices, and back. Lavin and
Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from ....ir import Array, Tensor
from ....ops.geometry import Axis
from .. import layout
from ..language import Value
from ..options import DeviceClass
from ..steps import Node, StepWriter, View, Writer
from .products import Product, add_lines, block_of, clamp, constant_bias, panels
from .tiles import choose_tile, widest

POINTS, TAPS = 4, 3
PATCH = POINTS + TAPS - 1
# The thresholds stand in options.py. Those of a CPU were measured on PoCL 3.1 (Zen 5, one core), as
# how many times faster than the window's own products: 64 channels on 56x56 points 1.9, on 28x28
# 1.4, on 14x14 0.9; 32 channels on 56x56 1.1, on 28x28 0.8; 128 on 14x14 1.1, on 7x7 0.8.
# Where the polynomials are evaluated, infinity beside them. These lose fewer digits than 0, 1, -1,
# 2, -2: the worst error of 64 channels is a fifth of theirs, the middle one two fifths.
NODES = (0.0, 0.5**0.5, -(0.5**0.5), 2**0.5, -(2**0.5))


@cache
def matrices() -> tuple[Array, Array, Array]:
    """What transforms patches [6, 6], windows [6, 3] and results [4, 6] along an axis."""
    patch, window, result = np.zeros((6, 6)), np.zeros((6, 3)), np.zeros((4, 6))
    for i, node in enumerate(NODES):
        others = [n for n in NODES if n != node]
        patch[i, : PATCH - 1] = np.poly(others)[::-1]
        window[i] = np.power(node, range(TAPS)) / np.prod([node - n for n in others])
        result[:, i] = np.power(node, range(POINTS))
    patch[-1] = np.poly(NODES)[::-1]
    window[-1, -1] = result[-1, -1] = 1.0
    return patch, window, result


def tiles_of(y: Axis, x: Axis) -> tuple[int, int]:
    return -(-y.out // POINTS), -(-x.out // POINTS)


def is_winograd(
    device: DeviceClass, shape: Sequence[int], weights: Array, y: Axis, x: Axis
) -> bool:
    """Whether it applies, and the device's table says that it is worth its transforms. shape: of
    the result."""
    fits = all((a.taps, a.stride, a.dilation) == (TAPS, 1, 1) for a in (y, x))
    if device.winograd is None or not fits:
        return False
    out, *_, depth = weights.shape
    high, wide = tiles_of(y, x)
    found = layout.slices((depth,)), layout.slices((out,)), shape[0] * high * wide
    return all(has >= least for has, least in zip(found, device.winograd, strict=True))


def emit_winograd(w: Writer, node: Node, weights: Array, y: Axis, x: Axis) -> None:
    out, *_, depth = weights.shape
    high, wide = tiles_of(y, x)
    count = node.output.shape[0] * high * wide
    name = node.output.name
    patches = w.temporary(f"{name}/patches", (PATCH * PATCH, count, depth))
    sums = w.temporary(f"{name}/sums", (PATCH * PATCH, count, out))
    _emit_patches(w, node, patches, y, x)
    _emit_products(w, node, patches, sums, weights)
    _emit_results(w, node, sums, y, x)


def _emit_patches(w: Writer, node: Node, patches: Tensor, y: Axis, x: Axis) -> None:
    source, count = node.first(), patches.shape[1]
    lanes = widest(w.device, layout.slices(source.shape))
    with w.kernel("winograd_patch", node) as s:
        k = s.k
        read, written = s.reads(source), s.scratch(patches, written=True)
        column, tile = k.grid(read.slices * 4 // lanes, count)
        slice_ = k.let(column * (lanes // 4), "s")
        image, row, left = s.places(tile, (source.shape[0], *tiles_of(y, x)))
        lines = _inside(s, row * POINTS - y.before, y)
        columns = _inside(s, left * POINTS - x.before, x)
        grid = [[_element(s, read, image, a, b, slice_, lanes) for b in columns] for a in lines]
        s.macs = count * source.shape[-1] * _count(matrices()[0])
        for number, value in enumerate(_both_ways(s, matrices()[0], grid)):
            k.store(written.argument, written.index([number, tile], slice_), value)


At = tuple[Value, Value | None]


def _inside(s: StepWriter, first: Value, a: Axis) -> list[At]:
    """The places of a patch along an axis, and whether each lies in the input."""
    k, found = s.k, list[At]()
    first = k.let(first)
    last_tile = (-(-a.out // POINTS) - 1) * POINTS - a.before
    for n in range(PATCH):
        at = k.let(first + n)
        if n >= a.before and last_tile + n < a.size:
            found.append((at, None))
        else:
            safe = k.let(k.maximum(k.minimum(at, a.size - 1), 0))
            found.append((safe, k.let((at >= 0) & (at < a.size))))
    return found


def _element(
    s: StepWriter, read: View, image: Value, line: At, column: At, slice_: Value, lanes: int
) -> Value:
    """Zero outside of the image."""
    k = s.k
    found = read.at([image, line[0], column[0]], slice_, lanes)
    tests = [test for test in (line[1], column[1]) if test is not None]
    if tests:
        found = k.select(tests[0] if len(tests) == 1 else tests[0] & tests[1], found, 0.0)
    return k.let(found)


def _both_ways(s: StepWriter, matrix: Array, grid: Sequence[Sequence[Value]]) -> list[Value]:
    """matrix @ grid @ matrix.T, line by line."""
    lines = [_transformed(s, matrix, line) for line in grid]
    columns = [_transformed(s, matrix, column) for column in zip(*lines, strict=True)]
    return [value for line in zip(*columns, strict=True) for value in line]


def _transformed(s: StepWriter, matrix: Array, values: Sequence[Value]) -> list[Value]:
    return [s.k.let(_weighted(s, row, values)) for row in matrix]


def _count(matrix: Array) -> int:
    """Multiply-adds of a patch in one channel, both ways."""
    return int((np.abs(matrix) > TINY).sum()) * sum(matrix.shape)


# Factors below it are zeros that were computed.
TINY = 1e-12


def _weighted(s: StepWriter, factors: Array, values: Sequence[Value]) -> Value:
    """The sum of values times factors, most of which are 0 or 1."""
    found: Value | None = None
    for factor, value in zip(factors.tolist(), values, strict=True):
        if abs(factor) < TINY:
            continue
        if found is None:
            found = value if factor == 1.0 else value * factor
        elif abs(factor) == 1.0:
            found = found + value if factor > 0 else found - value
        else:
            found = s.k.fma(value, s.k.value(factor).splat(value.lanes), found)
    assert found is not None, "no line of these matrices is zero"
    return found


def _emit_products(w: Writer, node: Node, patches: Tensor, sums: Tensor, weights: Array) -> None:
    """36 matrices [tiles, depth] times [depth, out]."""
    _, count, depth = patches.shape
    packed = transformed_weights(weights)
    tile = choose_tile(w.device, count, len(weights), depth)
    with w.kernel("winograd_product", node) as s:
        k = s.k
        read, written = s.reads(patches), s.scratch(sums, written=True)
        column, block, plane = k.grid(
            written.slices // tile.slices, -(-count // tile.rows), PATCH * PATCH
        )
        kept = panels(s, packed, tile, column)
        product = Product(s, tile, k.let(column * tile.slices, "s"), None)
        point, own = block_of(s, block, tile.rows, count)
        rows = k.let(plane * (read.slices * 4))
        add_lines(
            s,
            product,
            read,
            lambda row, slice_, lanes: kept(rows + row, slice_, lanes),
            point,
            plane * (count * read.slices),
        )
        s.macs = PATCH * PATCH * count * depth * len(weights)
        for m, totals in enumerate(product.sums):
            with k.when(own(m)):
                for n, total in enumerate(totals):
                    at = written.index([plane, point + m], product.column(n))
                    k.store(written.argument, at, total)


def transformed_weights(weights: Array) -> Array:
    """[out, 3, 3, in] as [36, in slices * 4, out slices * 4], zeros beyond."""
    _, window, _ = matrices()
    found = np.einsum("ay,oyxi,bx->abio", window, weights.astype(np.float64), window)
    out, depth = len(weights), weights.shape[-1]
    sizes = [layout.slices((n,)) * 4 for n in (depth, out)]
    packed = np.zeros((PATCH * PATCH, *sizes), np.float32)
    packed[:, :depth, :out] = found.reshape(PATCH * PATCH, depth, out)
    return packed


def _emit_results(w: Writer, node: Node, sums: Tensor, y: Axis, x: Axis) -> None:
    batch = node.output.shape[0]
    lanes = widest(w.device, layout.slices(node.output.shape))
    with w.kernel("winograd_result", node) as s:
        k = s.k
        read, result = s.reads(sums), s.result()
        column, tile = k.grid(result.slices * 4 // lanes, sums.shape[1])
        bias = constant_bias(s, node)
        slice_ = k.let(column * (lanes // 4), "s")
        image, high, wide = s.places(tile, (batch, *tiles_of(y, x)))
        grid = [
            [k.let(read.at([a * PATCH + b, tile], slice_, lanes)) for b in range(PATCH)]
            for a in range(PATCH)
        ]
        start = None if bias is None else k.let(bias.at([], slice_, lanes))
        row, left = k.let(high * POINTS), k.let(wide * POINTS)
        s.macs = sums.shape[1] * node.output.shape[-1] * _count(matrices()[2])
        for number, total in enumerate(_both_ways(s, matrices()[2], grid)):
            m, n = divmod(number, POINTS)
            total = total if start is None else k.let(total + start)
            at_y, at_x = row + m, left + n
            with k.when(k.all_of([*_ends(at_y, m, y.out), *_ends(at_x, n, x.out)])):
                s.put([image, at_y, at_x], slice_, clamp(s, node.op, total))


def _ends(at: Value, n: int, out: int) -> list[Value]:
    """Whether the n-th point of a tile lies inside of the result, if that is a question."""
    return [] if out % POINTS == 0 or n < out % POINTS else [at < out]
