"""Small models for the cpu delegate's tests: stacks of convolutions."""

from __future__ import annotations

import numpy as np

from sanderling.ir import Array, DType, Graph, Model, Quant


def stack(
    quantised: bool = True, layers: int = 4, size: int = 14, channels: int = 32, seed: int = 0
) -> Model:
    """A stack of 1x1 convolutions, int8 or float32."""
    rng = np.random.default_rng(seed)
    graph = Graph()
    dtype = DType.INT8 if quantised else DType.FLOAT32
    quant = Quant.of(0.05, 10) if quantised else None
    x = graph.input("x", dtype, (1, size, size, channels), quant=quant)
    for layer in range(layers):
        w = rng.normal(size=(channels, 1, 1, channels)) / np.sqrt(channels)
        b = rng.normal(size=channels)
        if quantised:
            scale = 0.02
            codes = np.clip(np.round(w / scale), -127, 127)
            weights = graph.constant(
                f"w{layer}", codes, DType.INT8, quant=Quant.of(np.full(channels, scale))
            )
            bias = graph.constant(
                f"b{layer}",
                np.round(b / (scale * 0.05)),
                DType.INT32,
                quant=Quant.of(np.full(channels, scale * 0.05)),
            )
        else:
            weights = graph.constant(f"w{layer}", w, DType.FLOAT32)
            bias = graph.constant(f"b{layer}", b, DType.FLOAT32)
        y = graph.tensor(f"y{layer}", dtype, x.shape, quant=quant)
        graph.add(
            "CONV_2D",
            [x, weights, bias],
            [y],
            padding="SAME",
            stride_w=1,
            stride_h=1,
            fused_activation_function="RELU6",
        )
        x = y
    graph.outputs = [x]
    return Model([graph])


def feed(model: Model, seed: int = 0) -> Array:
    tensor = model.main.inputs[0]
    rng = np.random.default_rng(seed)
    if tensor.dtype.is_float:
        return rng.normal(size=tensor.shape).astype(np.float32)
    return rng.integers(-128, 128, tensor.shape).astype(np.int8)
