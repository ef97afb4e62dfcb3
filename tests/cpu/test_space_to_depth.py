"""Convolutions over blocks of a picture: read from the picture itself, or left alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.passes.space_to_depth import read_blocks_directly
from sanderling.ir import DType, Graph, Model, Quant, Tensor
from sanderling.ir.graph import copy_graph
from tests.support.cpu_conformance import run

pytestmark = pytest.mark.filterwarnings("error::sanderling.errors.FallbackWarning")
SIZE = (1, 12, 8, 3)
Cut = Callable[[Graph, Tensor], Tensor]


def new(g: Graph, like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return g.tensor(f"t{len(g.tensors)}", like.dtype, shape, quant=like.quant)


def ints(g: Graph, *values: int) -> Tensor:
    return g.constant(f"c{len(g.tensors)}", np.array(values, np.int32))


def every(g: Graph, x: Tensor, first: tuple[int, ...], step: tuple[int, ...]) -> Tensor:
    shape = tuple(-(-(n - f) // s) for n, f, s in zip(x.shape, first, step, strict=True))
    y = new(g, x, shape)
    g.add(
        "STRIDED_SLICE",
        [x, ints(g, *first), ints(g, *x.shape), ints(g, *step)],
        [y],
        begin_mask=0,
        end_mask=0,
        ellipsis_mask=0,
        new_axis_mask=0,
        shrink_axis_mask=0,
        offset=False,
    )
    return y


def join(g: Graph, parts: list[Tensor], axis: int) -> Tensor:
    shape = list(parts[0].shape)
    shape[axis] = sum(p.shape[axis] for p in parts)
    y = new(g, parts[0], tuple(shape))
    g.add("CONCATENATION", parts, [y], axis=axis, fused_activation_function="NONE")
    return y


def sliced(g: Graph, x: Tensor, wrong: bool = False) -> Tensor:
    """Four pictures of every second pixel; wrong: one of them twice."""
    places = [(0, 0), (1, 0), (0, 1), (0, 1) if wrong else (1, 1)]
    return join(g, [every(g, x, (0, i, j, 0), (1, 2, 2, 1)) for i, j in places], 3)


def twice_sliced(g: Graph, x: Tensor) -> Tensor:
    """Channels first; rows, then columns; then transposed."""
    parts = [
        every(g, every(g, x, (0, 0, i, 0), (1, 1, 2, 1)), (0, 0, 0, j), (1, 1, 1, 2))
        for j in (0, 1)
        for i in (0, 1)
    ]
    whole = join(g, parts, 1)
    y = new(g, x, tuple(whole.shape[i] for i in (0, 2, 3, 1)))
    g.add("TRANSPOSE", [whole, ints(g, 0, 2, 3, 1)], [y])
    return y


def to_depth(g: Graph, x: Tensor) -> Tensor:
    n, h, w, c = x.shape
    y = new(g, x, (n, h // 4, w // 4, 16 * c))
    g.add("SPACE_TO_DEPTH", [x], [y], block_size=4)
    return y


def model(
    cut: Cut,
    shape: tuple[int, ...] = SIZE,
    quantised: bool = False,
    stride: int = 1,
    padding: str = "SAME",
) -> Model:
    g = Graph()
    rng = np.random.default_rng(0)
    dtype = DType.INT8 if quantised else DType.FLOAT32
    quant = (lambda s, z=0: Quant.of(s, z)) if quantised else (lambda s, z=0: None)
    x = g.input("x", dtype, shape, quant=quant(0.05, 7))
    blocks = cut(g, x)
    _, h, w, c = blocks.shape
    values = rng.integers(-127, 128, (5, 3, 3, c)) if quantised else rng.normal(size=(5, 3, 3, c))
    taps = g.constant("w", values.astype(dtype.numpy), quant=quant(np.full(5, 0.01)))
    bias = g.constant("b", np.arange(5), DType.INT32 if quantised else DType.FLOAT32)
    h, w = (
        (n - 3 * (padding == "VALID") + stride) // stride if padding == "VALID" else -(-n // stride)
        for n in (h, w)
    )
    y = g.tensor("y", dtype, (shape[0], h, w, 5), quant=quant(0.1, -3))
    g.add(
        "CONV_2D",
        [blocks, taps, bias],
        [y],
        padding=padding,
        stride_w=stride,
        stride_h=stride,
        dilation_w_factor=1,
        dilation_h_factor=1,
        fused_activation_function="RELU",
    )
    g.outputs = [y]
    return Model([g])


def names(given: Model) -> list[str]:
    g = given.main
    graph, _ = copy_graph(g, g.ops, g.inputs, g.outputs)
    read_blocks_directly(graph)
    return [op.name for op in graph.ops]


def check(given: Model) -> None:
    x = given.main.inputs[0]
    rng = np.random.default_rng(1)
    feed = rng.normal(size=x.shape) if x.dtype.is_float else rng.integers(-128, 128, x.shape)
    feed = feed.astype(x.dtype.numpy)
    ours, theirs = (
        run(given.compile([d]), [feed]) for d in (CpuDelegate(cache=False), "reference")
    )
    for a, b in zip(ours, theirs, strict=True):
        assert np.abs(a.astype(np.float64) - b).max() <= (1e-4 if a.dtype == np.float32 else 1)


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("stride, padding", [(1, "SAME"), (2, "SAME"), (1, "VALID")])
@pytest.mark.parametrize("cut", [sliced, to_depth])
def test_blocks_are_read_from_the_picture(
    cut: Cut, stride: int, padding: str, quantised: bool
) -> None:
    made = model(cut, (2, 24, 16, 3), quantised, stride, padding)
    assert names(made) == ["CONV_2D" if padding == "VALID" else "cpu.CONV_2D"]
    check(made)


def test_channels_first() -> None:
    made = model(twice_sliced, (1, 3, 12, 8))
    assert names(made) == ["TRANSPOSE", "cpu.CONV_2D"]
    check(made)


def test_what_is_not_all_blocks() -> None:
    """A pixel twice, a picture that is not whole blocks, blocks that somebody else reads."""
    twice = model(lambda g, x: sliced(g, x, wrong=True))
    assert len(names(twice)) == 6
    check(twice)
    odd = model(
        lambda g, x: join(g, [every(g, x, (0, i, 0, 0), (1, 2, 1, 1)) for i in (1, 1)], 3),
        (1, 7, 8, 3),
    )
    assert len(names(odd)) == 4
    check(odd)
    read = model(sliced)
    read.main.outputs.append(read.main.ops[-1].inputs[0])
    assert len(names(read)) == 6
    check(read)
