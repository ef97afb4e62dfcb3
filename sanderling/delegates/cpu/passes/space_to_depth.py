"""A picture cut into blocks before a convolution: the convolution reads the picture itself.

Space to depth, however it is written (strided slices that are joined, transposes, SPACE_TO_DEPTH),
only renames pixels: a kernel of k x k taps over blocks of b x b pixels is one of kb x kb taps that
moves by b, with the same products. What the ops do is found by moving the numbers of the picture's
elements along with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....ir import Array, Graph, Op, Tensor
from ....ops import OPS
from ....passes.common import Fired, is_static, same_quant, transpose, twin
from ....passes.simplify import remove_dead
from ..dialect.fused import either, fuse
from ..kernels.window import window_of

# Ops that rename elements and leave none out.
RENAMES = frozenset({
    "CONCATENATION", "RESHAPE", "SLICE", "SPACE_TO_DEPTH", "SPLIT", "STRIDED_SLICE", "TRANSPOSE",
})  # fmt: skip
# Elements of a picture whose numbers are still moved along.
MOST = 1 << 23
# Where height, width and channels stand in the picture.
ORDERS = {"NHWC": (1, 2, 3), "NCHW": (2, 3, 1)}


@dataclass(frozen=True)
class Blocks:
    """Channel c of the blocks is pixel (rows[c], columns[c]) of a block, channel channels[c]."""

    size: tuple[int, int]
    rows: Array
    columns: Array
    channels: Array
    order: str


def read_blocks_directly(graph: Graph) -> Fired:
    """Convolutions over blocks of a picture become convolutions over the picture."""
    fired: Fired = Counter()
    for op in list(graph.ops):
        source = _picture(graph, op) if op.name in either("CONV_2D") else None
        found = None if source is None else _blocks(op, source)
        if source is not None and found is not None:
            _replace(graph, op, source, found)
            fired["blocks read directly"] += 1
    if fired:
        remove_dead(graph)
    return fired


def _picture(graph: Graph, op: Op) -> Tensor | None:
    """What the convolution's input is made of, if renaming is all that happens to one tensor."""
    x, w = op.inputs[0], op.inputs[1]
    if x is None or w is None or w.data is None or not is_static(x, *op.outputs):
        return None
    if window_of(op).dilation != (1, 1) or w.shape[3] != x.shape[3]:
        return None
    cone = list(_cone(x))
    leaves = {
        t
        for one in cone
        for t in one.inputs
        if t is not None and not t.is_constant and t.producer not in cone
    }
    if len(cone) < 1 or len(leaves) != 1 or all(o.name in ("RESHAPE", "TRANSPOSE") for o in cone):
        return None
    (source,) = leaves
    made = {t for one in cone for t in one.outputs}
    alone = all(user is op or user in cone for t in made for user in t.users)
    alike = all(t.dtype is source.dtype and same_quant(t, source) for t in made)
    plain = all(one.attrs.get("fused_activation_function", "NONE") == "NONE" for one in cone)
    small = source.nbytes <= 4 * MOST and len(source.shape) == 4 and is_static(source)
    kept = made & set(graph.outputs)
    return source if alone and alike and plain and small and not kept else None


def _cone(x: Tensor) -> Iterator[Op]:
    """The renaming ops that x comes from, last first."""
    seen: dict[Op, None] = {}
    left = [x]
    while left:
        op = left.pop().producer
        if op is None or op in seen or op.name not in RENAMES:
            continue
        constants = [t for i, t in enumerate(op.inputs) if i != (op.name == "SPLIT")]
        if op.name != "CONCATENATION" and not all(t is None or t.is_constant for t in constants):
            continue
        seen[op] = None
        left += [t for t in op.inputs if t is not None and not t.is_constant]
    yield from seen


def _numbers(x: Tensor, source: Tensor) -> Array:
    """For each element of x the number of the source's element that it is."""
    known = {source: np.arange(np.prod(source.shape), dtype=np.int32).reshape(source.shape)}

    def number(t: Tensor) -> Array:
        if t not in known:
            op = t.producer
            assert op is not None
            args = [
                None if i is None else i.data if i.is_constant else number(i) for i in op.inputs
            ]
            found = OPS[op.name].evaluate(op, args)
            arrays = [found] if isinstance(found, np.ndarray) else list(found)
            known.update(zip(op.outputs, arrays, strict=True))
        return known[t].reshape(t.shape)

    return number(x)


def _blocks(op: Op, source: Tensor) -> Blocks | None:
    """The arrangement, if every pixel of the input is a block of the picture, in order."""
    x = op.operand(0)
    _, height, width, depth = x.shape
    numbers = _numbers(x, source)
    for order, axes in ORDERS.items():
        h, w, c = (source.shape[a] for a in axes)
        size = (h // height, w // width)
        if x.shape[0] != source.shape[0] or (size[0] * height, size[1] * width) != (h, w):
            continue
        if size[0] * size[1] * c != depth or size == (1, 1):
            continue
        if len(np.unique(numbers[0, 0, 0])) < depth:
            continue
        block = [p[0] for p in np.unravel_index(numbers[:1, 0, 0], source.shape)]
        rows, columns, channels = (block[a] for a in axes)
        found = Blocks(size, rows, columns, channels, order)
        if np.array_equal(numbers, _expected(found, source.shape, x.shape)):
            return found
    return None


def _expected(b: Blocks, source: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """The numbers that an input in blocks has."""
    axes = ORDERS[b.order]
    n, y, x = (
        np.arange(size).reshape([-1 if i == a else 1 for i in range(4)])
        for a, size in enumerate(shape[:3])
    )
    place: list[Array] = [n] * 4
    for axis, index in zip(
        axes, (y * b.size[0] + b.rows, x * b.size[1] + b.columns, b.channels), strict=True
    ):
        place[axis] = index
    # A block that reaches into the next one is none.
    if b.rows.max() >= b.size[0] or b.columns.max() >= b.size[1]:
        return np.empty(0)
    return np.ravel_multi_index(np.broadcast_arrays(*place), source)


def _replace(graph: Graph, op: Op, source: Tensor, b: Blocks) -> None:
    weights = op.operand(1)
    n, kh, kw, _ = weights.shape
    channels = source.shape[ORDERS[b.order][2]]
    spread = np.zeros((n, kh, b.size[0], kw, b.size[1], channels), weights.values.dtype)
    spread[:, :, b.rows, :, b.columns, b.channels] = weights.values.transpose(3, 0, 1, 2)
    taps = graph.constant(
        f"{weights.name}/spread",
        spread.reshape(n, kh * b.size[0], kw * b.size[1], channels),
        weights.dtype,
        quant=weights.quant,
    )
    picture = source
    if b.order == "NCHW":
        picture = twin(graph, source, "nhwc", [source.shape[a] for a in (0, 2, 3, 1)])
        graph.insert(transpose(graph, source, (0, 2, 3, 1), picture), before=op)
    g = window_of(op)
    graph.set_input(op, 0, picture)
    graph.set_input(op, 1, taps)
    op.attrs |= {
        "padding": "VALID",
        "stride_h": g.stride[0] * b.size[0],
        "stride_w": g.stride[1] * b.size[1],
    }
    if any(g.pads):
        top, bottom, left, right = (p * b.size[i // 2] for i, p in enumerate(g.pads))
        fuse(op, padding=(top, bottom, left, right))
