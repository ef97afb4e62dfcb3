"""A small network like MobileNet, for the tests of quantisation: its shape and its trouble."""

from __future__ import annotations

import numpy as np

from sanderling.ir import Array, DType, Graph, Model, Op, Tensor
from sanderling.optimize.correcting.equalise import regions

SIDE = 12


def mobile(act: str = "RELU", seed: int = 5, widths: tuple[int, ...] = (12, 16)) -> Model:
    """A convolution, blocks of depthwise and pointwise ones with a residual, pooling, a matrix."""
    rng = np.random.default_rng(seed)
    graph = Graph("main")
    x = graph.input("x", DType.FLOAT32, (1, SIDE, SIDE, 3))
    x = _conv(graph, x, "stem", widths[0], 3, 2, act, rng)
    for i, width in enumerate(widths):
        first = x
        x = _depthwise(graph, x, f"deep{i}", act, rng)
        x = _conv(graph, x, f"point{i}", width, 1, 1, "NONE", rng)
        if first.shape == x.shape:
            total = graph.tensor(f"sum{i}", DType.FLOAT32, x.shape)
            graph.append(Op("ADD", [first, x], [total], {"fused_activation_function": "NONE"}))
            x = total
        x = _conv(graph, x, f"wide{i}", 2 * width, 1, 1, act, rng)
    axes = graph.constant("axes", np.array([1, 2], np.int32))
    pooled = graph.tensor("pooled", DType.FLOAT32, (1, x.shape[-1]))
    graph.append(Op("MEAN", [x, axes], [pooled], {"keep_dims": False}))
    weights = graph.constant("fc/w", rng.normal(0, 0.3, (10, x.shape[-1])).astype(np.float32))
    bias = graph.constant("fc/b", rng.normal(0, 0.1, 10).astype(np.float32))
    logits = graph.tensor("logits", DType.FLOAT32, (1, 10))
    graph.append(
        Op(
            "FULLY_CONNECTED",
            [pooled, weights, bias],
            [logits],
            {"fused_activation_function": "NONE"},
        )
    )
    out = graph.tensor("probabilities", DType.FLOAT32, (1, 10))
    graph.append(Op("SOFTMAX", [logits], [out], {"beta": 1.0}))
    graph.outputs = [out]
    return Model([graph])


def _conv(
    graph: Graph,
    x: Tensor,
    name: str,
    channels: int,
    taps: int,
    stride: int,
    act: str,
    rng: np.random.Generator,
) -> Tensor:
    shape = (channels, taps, taps, x.shape[-1])
    weights = rng.normal(0, np.sqrt(2 / (taps * taps * x.shape[-1])), shape).astype(np.float32)
    return _layer(graph, "CONV_2D", x, name, weights, channels, stride, act, rng)


def _depthwise(graph: Graph, x: Tensor, name: str, act: str, rng: np.random.Generator) -> Tensor:
    weights = rng.normal(0.1, 0.4, (1, 3, 3, x.shape[-1])).astype(np.float32)
    return _layer(graph, "DEPTHWISE_CONV_2D", x, name, weights, x.shape[-1], 1, act, rng)


def _layer(
    graph: Graph,
    kind: str,
    x: Tensor,
    name: str,
    weights: Array,
    channels: int,
    stride: int,
    act: str,
    rng: np.random.Generator,
) -> Tensor:
    bias = graph.constant(f"{name}/b", rng.normal(0, 0.1, channels).astype(np.float32))
    side = -(-x.shape[1] // stride)
    out = graph.tensor(name, DType.FLOAT32, (1, side, side, channels))
    attrs = {
        "padding": "SAME",
        "stride_h": stride,
        "stride_w": stride,
        "dilation_h_factor": 1,
        "dilation_w_factor": 1,
        "fused_activation_function": act,
    }
    attrs |= {"depth_multiplier": 1} if kind == "DEPTHWISE_CONV_2D" else {}
    graph.append(Op(kind, [x, graph.constant(f"{name}/w", weights), bias], [out], attrs))
    return out


def twist(model: Model, spread: float, seed: int = 1) -> None:
    """Channels between two layers are scaled by up to 2**spread either way, and back behind."""
    rng = np.random.default_rng(seed)
    for region in regions(model.main):
        by = np.exp2(rng.uniform(-spread, spread, region.channels)).astype(np.float32)
        for op in region.writers:
            _times(op, 1, by[:, None, None, None] if op.name == "CONV_2D" else by)
            _times(op, 2, by)
        for op in region.readers:
            _times(op, 1, 1 / by)


def _times(op: Op, place: int, factors: Array) -> None:
    tensor = op.inputs[place]
    assert tensor is not None and tensor.data is not None
    tensor.data = tensor.data * factors


def samples(count: int, seed: int = 3) -> list[Array]:
    """Smooth pictures: neighbours are alike, as in real ones."""
    rng = np.random.default_rng(seed)
    coarse = rng.normal(size=(count, SIDE // 3, SIDE // 3, 3))
    fine = 0.3 * rng.normal(size=(count, SIDE, SIDE, 3))
    made = coarse.repeat(3, axis=1).repeat(3, axis=2) + fine
    return list(made[:, None].astype(np.float32))
