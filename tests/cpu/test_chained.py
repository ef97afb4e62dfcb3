"""8-bit products in chains of 16-bit sums: exact for any weights and activations."""

from __future__ import annotations

import numpy as np
import pytest

from sanderling.delegates.cpu.delegate import CpuDelegate
from sanderling.delegates.cpu.isa.targets import TARGETS, emulatable
from sanderling.delegates.cpu.kernels.products import conv
from sanderling.delegates.cpu.kernels.products.chained import (
    QUAD,
    ChainCore,
    chain_core,
    cut,
    overflows,
    pack_chains,
)
from sanderling.delegates.cpu.kernels.products.tiles import Panels
from sanderling.ir import Array, DType, Graph, Model, Quant, Tensor

RNG = np.random.default_rng(7)
# What 9 bits hold: uint8 weights without their zero point.
WEIGHTS = {
    "lowest": lambda shape: np.full(shape, -128),
    "highest": lambda shape: np.full(shape, 127),
    "alternating": lambda shape: np.where(np.arange(np.prod(shape)).reshape(shape) % 2, 127, -128),
    "in pairs": lambda shape: np.where(
        np.arange(np.prod(shape)).reshape(shape) // 2 % 2, 127, -128
    ),
    "any": lambda shape: RNG.integers(-128, 128, shape),
    "small": lambda shape: np.clip(RNG.normal(size=shape) * 20, -128, 127).astype(int),
    "rarely large": lambda shape: np.where(RNG.random(shape) < 0.01, 127, 3),
}


@pytest.mark.parametrize("chain", (1, 2))
@pytest.mark.parametrize("name", [*WEIGHTS, "nine bits"])
def test_parts_keep_the_limit_and_add_up(name: str, chain: int) -> None:
    """The worst activations are 255 beside the weights of one sign, and 0 beside the others."""
    make = WEIGHTS.get(name, lambda shape: RNG.choice([-255, 255, 0, 128], shape))
    quads = np.asarray(make((12, 16, QUAD)), np.int32)
    kept, numbers, left = cut(chain, quads)
    total = kept.copy()
    np.add.at(total, numbers, left)
    assert (total == quads).all()
    assert not overflows(chain, kept).any() and not overflows(1, left).any()
    for sums in (kept.reshape(-1, chain, 16, 2, 2), left.reshape(-1, 1, 16, 2, 2)):
        assert sums.min(initial=0) >= -128 and sums.max(initial=0) <= 127
        for worst in (np.where(sums > 0, 255, 0), np.where(sums < 0, 255, 0)):
            pairs = (sums * worst).sum(axis=4)  # each is saturated, then they are added
            assert np.abs(pairs).max(initial=0) < 2**15
            assert np.abs(pairs.sum(axis=1)).max(initial=0) < 2**15


def test_the_limit_is_exact() -> None:
    """The largest sums that fit, and one more."""
    for weights, is_too_much in (([127, 1], 0), ([127, 2], 1), ([-128, 0], 0), ([-128, -1], 1)):
        quad = np.array([[[*weights, 0, 0]]], np.int32)
        assert overflows(1, quad).tolist() == [bool(is_too_much)]
    assert 255 * 128 < 2**15 <= 255 * 129


def test_packed_weights_have_lists_by_panel() -> None:
    weights = np.asarray(WEIGHTS["any"]((2, 20, 24)), np.int32)
    found = pack_chains(ChainCore(depth=8), weights, Panels(20, 2, 8))
    assert len(found.starts) == 2 * 2 + 1 and found.starts[-1] == len(found.quads)
    assert found.more.shape == (len(found.quads), 16, QUAD)
    assert found.weights.shape == (2 * 24 * 24,) and (np.diff(found.starts) > 0).all()


def test_chains_are_chosen_by_their_weights() -> None:
    """Small weights make long chains, large ones none; a dot product instruction needs none."""
    avx2 = TARGETS["avx2"]
    shape = (64, 256)
    assert chain_core(avx2, np.ones(shape, np.int32)) == ChainCore(depth=8)
    assert chain_core(avx2, np.full(shape, 60, np.int32)) == ChainCore(depth=4)
    assert chain_core(avx2, np.full(shape, 127, np.int32)) is None
    assert chain_core(TARGETS["generic"], np.ones(shape, np.int32)) is None
    for name, kind in (("avx2", ChainCore), ("avx512vnni", conv.DotCore)):
        core = conv.core_for(DType.UINT8, TARGETS[name], np.ones(shape, np.int32), chains=True)
        assert type(core) is kind


def convolution(
    weights: Array, x: tuple[int, ...], dtype: DType, stride: int = 1, zero: int = 0
) -> Model:
    """uint8 weights have a zero point."""
    graph, units = Graph("main"), len(weights)
    out = (x[0], -(-x[1] // stride), -(-x[2] // stride), units)
    scales = 0.01 if dtype is DType.UINT8 else np.full(units, 0.01, np.float32)
    spread = float(np.sqrt(weights[0].size)) * max(np.abs(weights - zero).mean(), 1)
    given = graph.input("x", dtype, x, quant=Quant.of(0.02, 3))
    w = graph.constant("w", weights.astype(dtype.numpy), quant=Quant.of(scales, zero))
    bias = RNG.integers(-1000, 1000, units).astype(np.int32)
    b = graph.constant("b", bias, quant=Quant.of(np.float32(0.02) * np.float32(scales)))
    y = Tensor("y", dtype, out, quant=Quant.of(0.0002 * spread, 3))
    graph.tensors.append(y)
    attrs = {"padding": "SAME", "stride_h": stride, "stride_w": stride}
    graph.add("CONV_2D", [given, w, b], [y], **attrs)
    graph.outputs = [y]
    return Model([graph])


# Input, kernel, units, stride: rows as they lie, lines of taps, patches; panels that end early,
# depths that end within a quad or a chain.
SHAPES = {
    "rows": ((1, 5, 5, 24), 1, 40, 1),
    "rows that end early": ((3, 4, 4, 13), 1, 9, 1),
    "lines": ((2, 6, 6, 16), 3, 20, 1),
    "patches": ((1, 9, 9, 3), 3, 16, 2),
}
CASES = [
    pytest.param(target, chain, weights, shape, id=f"{target}|{chain}|{weights}|{shape}")
    for index, weights in enumerate(WEIGHTS)
    for number, shape in enumerate(SHAPES)
    for target, chain in (("avx2", 1 + index % 2), ("avx512", 2))
    if (index + number) % (2 if target == "avx2" else 4) == 0
]


@pytest.mark.parametrize(("target", "chain", "weights", "shape"), CASES)
def test_answers_are_the_definitions(
    target: str, chain: int, weights: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever would be chosen: this chain, on the worst activations."""
    if not emulatable(TARGETS[target]):
        pytest.skip("the machine has no AVX2")
    monkeypatch.setenv("SANDERLING_HOST", target)
    monkeypatch.setattr(conv, "chain_core", lambda *_: ChainCore(depth=QUAD * chain))
    size, kernel, units, stride = SHAPES[shape]
    dtype, zero = (DType.UINT8, 100) if weights == "any" else (DType.INT8, 0)
    filters = np.asarray(WEIGHTS[weights]((units, kernel, kernel, size[3])))
    filters = filters + 128 if zero else np.maximum(filters, -127)
    model = convolution(filters, size, dtype, stride, zero)
    low, high = dtype.bounds
    x = RNG.choice([low, high, low, high, 5], size=size).astype(dtype.numpy)
    ours = np.array(model.compile([CpuDelegate()], threads=1)(x))
    expected = np.array(model.compile(["reference"])(x))
    assert (ours == expected).all() and expected.std() > 0
