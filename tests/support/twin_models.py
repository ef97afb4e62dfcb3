"""Two models of one network that look unlike: float and int8, fused and not, under other names; and
a delegate that computes some ops wrongly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sanderling.evaluate.differences.op_by_op import OpByOpRunner
from sanderling.ir import Array, DType, Graph, Model, Op, Quant, Tensor
from sanderling.measure.record import Setting
from sanderling.ops.execute import evaluate
from sanderling.runtime.delegate import Executable, Options

RNG = np.random.default_rng(3)
WEIGHTS = {
    "stem": RNG.normal(size=(8, 3, 3, 4)) / 6,
    "left": RNG.normal(size=(8, 1, 1, 8)) / 3,
    "right": RNG.normal(size=(8, 1, 1, 8)) / 3,
    "down": RNG.normal(size=(16, 3, 3, 8)) / 8,
    "head": RNG.normal(size=(5, 16)) / 4,
}
BIASES = {name: RNG.normal(size=w.shape[0]) / 4 for name, w in WEIGHTS.items()}


class Twin:
    """stem -> (left + right) -> down -> mean -> head. Tensors are known by what they hold.

    fused: activations inside of ops, borders inside of convolutions, biases inside of products.
    ranges: of each value, to quantise it; without, the model is float. clamped: a ReLU is nothing
    but a range that begins at 0, as some converters write it.
    """

    def __init__(
        self,
        fused: bool = True,
        ranges: dict[str, tuple[float, float]] | None = None,
        prefix: str = "",
        swap: bool = False,
        clamped: bool = False,
    ) -> None:
        self.clamped = clamped
        self.graph, self.fused, self.ranges, self.prefix = Graph(), fused, ranges, prefix
        self.holds: dict[Tensor, str] = {}
        x = self.graph.input(f"{prefix}x", DType.FLOAT32, (1, 8, 8, 4))
        self.holds[x] = "x"
        if ranges:
            x = self.emit("QUANTIZE", [x], "x", x.shape)
        x = self.product("stem", x, (1, 8, 8, 8), relu=True)
        both = {
            n: self.product(n, x, (1, 8, 8, 8))
            for n in (("right", "left") if swap else ("left", "right"))
        }
        x = self.activated("ADD", [both["left"], both["right"]], "sum", (1, 8, 8, 8))
        x = self.product("down", x, (1, 4, 4, 16), relu=True, stride=2)
        axes = self.graph.constant(f"{prefix}axes", np.int32([1, 2]))
        x = self.emit("MEAN", [x, axes], "mean", (1, 16), keep_dims=False)
        x = self.product("head", x, (1, 5))
        if ranges:
            x = self.emit("DEQUANTIZE", [x], "head", x.shape, DType.FLOAT32)
        self.graph.outputs = [x]
        self.model = Model([self.graph])

    def emit(
        self,
        kind: str,
        inputs: Sequence[Tensor],
        holds: str,
        shape: Sequence[int],
        dtype: DType | None = None,
        **attrs: Any,
    ) -> Tensor:
        name = f"{self.prefix}{len(self.graph.tensors)}" if self.prefix else f"{holds}_{kind}"
        quant = self.quant(holds) if dtype is None else None
        dtype = dtype or (DType.INT8 if self.ranges else DType.FLOAT32)
        out = self.graph.tensor(name, dtype, tuple(shape), quant=quant)
        self.graph.add(kind, inputs, [out], **attrs)
        self.holds[out] = holds
        return out

    def quant(self, holds: str) -> Quant | None:
        if not self.ranges:
            return None
        low, high = self.ranges[holds]
        scale = max((high - low) / 255, 1e-6)
        return Quant.of(scale, round(-128 - low / scale))

    def activated(
        self,
        kind: str,
        inputs: list[Tensor],
        holds: str,
        shape: Sequence[int],
        relu: bool = True,
        **attrs: Any,
    ) -> Tensor:
        act = "RELU" if relu and self.fused and not self.clamped else "NONE"
        within = holds if self.fused or not relu else f"{holds} before"
        x = self.emit(kind, inputs, within, shape, fused_activation_function=act, **attrs)
        return x if self.fused or not relu else self.emit("RELU", [x], holds, shape)

    def product(
        self, name: str, x: Tensor, shape: Sequence[int], relu: bool = False, stride: int = 1
    ) -> Tensor:
        weights, bias = self.constants(name, x)
        if WEIGHTS[name].ndim == 2:
            return self.emit(
                "FULLY_CONNECTED", [x, weights, bias], name, shape, fused_activation_function="NONE"
            )
        padding = "SAME"
        if not self.fused and stride == 1 and WEIGHTS[name].shape[1] == 3:
            border = self.graph.constant(
                f"{self.prefix}border", np.int32([[0, 0], [1, 1], [1, 1], [0, 0]])
            )
            wide = (1, x.shape[1] + 2, x.shape[2] + 2, x.shape[3])
            x, padding = self.emit("PAD", [x, border], f"{name} padded", wide), "VALID"
        return self.activated(
            "CONV_2D",
            [x, weights, bias],
            name,
            shape,
            relu,
            padding=padding,
            stride_w=stride,
            stride_h=stride,
        )

    def constants(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        w, b = WEIGHTS[name], BIASES[name]
        if not self.ranges:
            return (
                self.graph.constant(f"{self.prefix}{name}_w", w, DType.FLOAT32),
                self.graph.constant(f"{self.prefix}{name}_b", b, DType.FLOAT32),
            )
        assert x.quant is not None
        scale = np.abs(w).reshape(len(w), -1).max(1) / 127
        codes = np.round(w / scale.reshape(-1, *[1] * (w.ndim - 1)))
        both = scale * x.quant.scale[0]
        return (
            self.graph.constant(f"{self.prefix}{name}_w", codes, DType.INT8, quant=Quant.of(scale)),
            self.graph.constant(
                f"{self.prefix}{name}_b", np.round(b / both), DType.INT32, quant=Quant.of(both)
            ),
        )


def calibrated() -> dict[str, tuple[float, float]]:
    """The ranges of all values, from random inputs, with room for others."""
    twin = Twin(fused=False)
    runner = OpByOpRunner(twin.model, Setting(delegates=("reference",)))
    names = {t.name: holds for t, holds in twin.holds.items()}
    found: dict[str, tuple[float, float]] = {}
    for _ in range(8):
        for tensor, value in runner.run([RNG.uniform(-1, 1, (1, 8, 8, 4)).astype("f4")]).items():
            low, high = found.get(names[tensor.name], (0.0, 0.0))
            found[names[tensor.name]] = min(low, float(value.min())), max(high, float(value.max()))
    wide = {name: (1.4 * low, 1.4 * high) for name, (low, high) in found.items()}
    return wide | {"x": (-1.0, 1.0), "stem padded": (-1.0, 1.0)}


@dataclass(eq=False)
class Wrong:
    """Takes every op and computes those whose output is in `names` wrongly."""

    names: Collection[str] = ()
    name: str = "wrong"

    def refuses(self, op: Op) -> str | None:
        return None

    def compile(self, part: Graph, options: Options) -> Executable:
        return WrongExecutable(part, options, self.names)


@dataclass(eq=False)
class WrongExecutable:
    part: Graph
    options: Options
    names: Collection[str]

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        values = dict(zip(self.part.inputs, inputs, strict=True))
        for op in self.part.ops:
            read = [None if t is None else values.get(t, t.data) for t in op.inputs]
            made = evaluate(op, read, self.options.state)
            if op.outputs[0].name in self.names:
                made = [(0.8 * a).astype(a.dtype) for a in made]
            values.update(zip(op.outputs, made, strict=True))
        for place, tensor in enumerate(self.part.outputs):
            target = outputs[place]
            assert target is not None
            target[...] = values[tensor]
