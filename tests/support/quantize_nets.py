"""Nets that the tests of quantisation are about, and the check of what is made of them."""

from __future__ import annotations

import numpy as np

from sanderling.ir import Array, DType, Graph, Model, Signature, Tensor
from sanderling.optimize.modes.recurrent import WEIGHTS
from sanderling.optimize.modes.rules import RULES, STORED
from sanderling.optimize.writing.write import WeightOptions

from ..conformance.cases import CASES
from .quantize_engines import ENGINES, litert, ours

RNG = [np.random.default_rng(5)]
EVERYTHING = WeightOptions(minimum=0)


def noise(*shape: int) -> Array:
    return RNG[0].normal(size=shape).astype(np.float32)


class Net:
    """A float model, built op by op."""

    def __init__(self, *shape: int, inputs: int = 1) -> None:
        RNG[0] = np.random.default_rng(5)  # whatever tests there were before it
        self.graph = Graph()
        self.inputs = [
            self.graph.input(f"x{i}" if i else "x", DType.FLOAT32, shape) for i in range(inputs)
        ]
        self.x = self.inputs[0]

    def add(
        self,
        name: str,
        inputs: list[Tensor | None],
        shape: tuple[int, ...],
        out: str,
        **attrs: object,
    ) -> Tensor:
        made = self.graph.tensor(out, DType.FLOAT32, shape)
        self.graph.add(name, inputs, [made], **attrs)
        return made

    def const(self, name: str, values: object) -> Tensor:
        return self.graph.constant(name, np.asarray(values, np.float32))

    def dense(
        self,
        x: Tensor,
        units: int,
        out: str,
        weights: Array | None = None,
        bias: Array | None = None,
        clamp: str = "NONE",
    ) -> Tensor:
        w = noise(units, x.shape[-1]) if weights is None else weights
        b = noise(units) if bias is None else bias
        return self.add(
            "FULLY_CONNECTED",
            [x, self.const(f"{out}/w", w), self.const(f"{out}/b", b)],
            (x.shape[0], units),
            out,
            fused_activation_function=clamp,
            keep_num_dims=False,
        )

    def conv(self, x: Tensor, channels: int, out: str, clamp: str = "NONE") -> Tensor:
        w = self.const(f"{out}/w", noise(channels, 3, 3, x.shape[3]))
        return self.add(
            "CONV_2D",
            [x, w, self.const(f"{out}/b", noise(channels))],
            (*x.shape[:3], channels),
            out,
            padding="SAME",
            stride_h=1,
            stride_w=1,
            fused_activation_function=clamp,
        )

    def unary(self, name: str, x: Tensor, out: str, **attrs: object) -> Tensor:
        return self.add(name, [x], x.shape, out, **attrs)

    def model(self, *outputs: Tensor) -> Model:
        self.graph.outputs = list(outputs)
        entry = Signature(
            "serve",
            self.graph,
            {t.name: t for t in self.inputs},
            {f"out{i}": t for i, t in enumerate(outputs)},
        )
        return Model([self.graph], [entry])


def feeds(model: Model, count: int = 4) -> list[list[Array]]:
    return [[noise(*t.shape) for t in model.main.inputs] for _ in range(count)]


def kinds(graph: Graph) -> dict[str, str]:
    """The type of each op's result, by its name."""
    return {t.name: t.dtype.short for op in graph.ops for t in op.outputs}


def readers(model: Model, name: str) -> list[str]:
    return [op.name for op in model.main.find(name).users]


def check(model: Model, samples: list[list[Array]], made: Model, steps: float = 10.0) -> None:
    """LiteRT on both engines gives what we give, and nearly what the float model gives."""
    wanted = litert(model, samples[0])
    mine = ours(made, samples[0])
    for engine in ENGINES:
        for given, own, ideal in zip(litert(made, samples[0], engine), mine, wanted, strict=True):
            span = float(np.abs(ideal).max()) or 1.0
            # One code of a wide layer may round otherwise: several of a narrow one behind it.
            np.testing.assert_allclose(given, own, rtol=0, atol=span / 25)
            np.testing.assert_allclose(given, ideal, rtol=0, atol=steps * span / 127)


def weighted() -> list[tuple[str, Model, list[Array]]]:
    """A model of each operator whose weights can be stored as codes."""
    found = []
    for name in [*STORED, *WEIGHTS]:
        for case in (c for c in CASES if c.op == name):
            model = case.model()
            plain = not any(t.quant is not None and t.quant.is_set for t in model.main.tensors)
            held = [
                t for t in model.main.constants if t.dtype is DType.FLOAT32 and len(t.shape) > 1
            ]
            if plain and held and model.main.inputs and case.attrs.get("kernel_type") != "BASIC":
                arrays = case.arrays(model, np.random.default_rng(0))
                found.append((name, model, [np.asarray(a) for a in arrays]))
                break
    return found


WEIGHTED = weighted()


def tower() -> tuple[Model, list[list[Array]]]:
    net = Net(1, 8, 8, 4)
    a = net.conv(net.x, 8, "block_1/conv", "RELU")
    b = net.conv(a, 8, "block_2/conv", "RELU")
    c = net.add("ADD", [a, b], b.shape, "block_2/add", fused_activation_function="NONE")
    flat = net.add(
        "RESHAPE", [c, net.graph.constant("to", np.array([1, 512], np.int32))], (1, 512), "flat"
    )
    logits = net.dense(flat, 5, "head/logits", noise(5, 512) / 100)
    model = net.model(net.unary("SOFTMAX", logits, "head/out", beta=1.0))
    return model, feeds(model)


def equal_scales(graph: Graph) -> None:
    """Node by node: what kernels want equal is equal, what they want fixed is fixed."""
    for op in graph.ops:
        row = RULES.get(op.name)
        first = op.input(0)
        if row is None or not any(t.dtype in (DType.INT8, DType.INT16) for t in row.flowing(op)):
            continue
        values = [*row.flowing(op), *(op.outputs if row.real_out else [])]
        quants = [t.quant for t in values]
        assert all(q is not None and q.is_set for q in quants), op.where
        assert len({t.dtype for t in values}) == 1, op.where
        if row.same:
            assert all(q.same_as(quants[0]) for q in quants if q), op.where
        for place, axis in row.weights.items():
            weight = op.inputs[place]
            assert weight is not None and weight.quant is not None and first is not None
            assert not weight.quant.zero_point.any() and weight.quant.axis == axis
            bias = op.input(row.bias) if row.bias is not None else None
            source = op.inputs[row.data[0]]
            if bias is not None and source is not None and source.quant is not None:
                assert bias.quant is not None
                np.testing.assert_array_equal(
                    bias.quant.scale, source.quant.scale * weight.quant.scale
                )


def coded(tensor: Tensor, values: Array) -> Array:
    from sanderling.runtime.inputs import quantize_array

    return values if tensor.dtype.is_float else quantize_array(values, tensor)


def decoded(tensor: Tensor, codes: Array) -> Array:
    from sanderling.runtime.inputs import dequantize_array

    return codes if tensor.dtype.is_float else dequantize_array(codes, tensor)
