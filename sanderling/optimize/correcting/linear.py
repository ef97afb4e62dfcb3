"""Linear ops: one product with constant weights and a bias, such as CONV_2D and FULLY_CONNECTED.

Corrections change them, and they are computed here in float on the numbers that codes stand for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...ir import Array, DType, Graph, Op, Tensor
from ...ir.graph import copy_graph
from ...ops.execute import evaluate, new_state
from ..modes.rules import RULES

SUFFIXES = ("/i8", "/i16")  # of codes whose own name the outer world has


def is_linear(op: Op) -> bool:
    """Say whether the op is one product with constant weights, and a bias."""
    row = RULES.get(op.name)
    if row is None or len(row.weights) != 1 or row.bias is None:
        return False
    weights = op.input(next(iter(row.weights)))
    return weights is not None and weights.is_constant


def source_of(op: Op) -> Tensor:
    """The operand that the weights are multiplied with."""
    return op.operand(RULES[op.name].data[0])


def weights_of(op: Op) -> Tensor:
    return op.operand(next(iter(RULES[op.name].weights)))


def bias_of(op: Op) -> Tensor | None:
    place = RULES[op.name].bias
    return None if place is None else op.input(place)


def own_name(name: str) -> str:
    """The float model's name of a quantised model's tensor."""
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


@dataclass(frozen=True)
class WeightedOp:
    """A linear op of a graph, with its weights as they are stored."""

    op: Op
    weights: Array

    @property
    def source(self) -> str:
        return source_of(self.op).name


def weighted_ops(graph: Graph) -> dict[str, WeightedOp]:
    """The linear ops by the name of their result."""
    found = filter(is_linear, graph.ops)
    return {op.outputs[0].name: WeightedOp(op, weights_of(op).values) for op in found}


# -- codes and the numbers that they stand for ----------------------------------------------------


def reals(codes: Array, tensor: Tensor) -> Array:
    """The numbers that a tensor's codes stand for."""
    quant = tensor.quant
    if codes.dtype.kind == "f" or quant is None or not quant.scale.size:
        return codes
    shape = [1] * codes.ndim
    if quant.scale.size > 1:
        shape[quant.axis] = -1
    zero = quant.zero_point.astype(np.float32).reshape(shape)
    return np.asarray((codes.astype(np.float32) - zero) * quant.scale.reshape(shape))


def real_weights(op: Op) -> Array:
    """The numbers that the op's weights stand for."""
    weights = weights_of(op)
    return reals(weights.values, weights)


def real_bias(bias: Tensor) -> Array:
    """The numbers that a bias stands for, in the precision that its 32 or 64 bits need."""
    return np.asarray(bias.values.astype(np.float64) * bias.quantisation.scale.astype(np.float64))


def codes(values: Array, tensor: Tensor) -> Array:
    """Numbers as a tensor's codes; the tensor has one scale for all of them."""
    quant = tensor.quant
    if tensor.dtype.is_float or quant is None:
        return values
    # Of a scalar, NumPy's operators make a number that has no place to write to.
    made = np.asarray(np.rint(values * np.float32(1 / float(quant.scale[0]))))
    made += int(quant.zero_point[0])
    return np.clip(made, *tensor.dtype.bounds, out=made).astype(tensor.dtype.numpy)


# -- evaluation -----------------------------------------------------------------------------------


class FloatLinear:
    """A linear op as a function of float arrays. bare: without bias and activation."""

    def __init__(self, op: Op, bare: bool = False) -> None:
        self.row = RULES[op.name]
        piece, _ = copy_graph(Graph(), [op], [source_of(op)], op.outputs)
        self.op = piece.ops[0]
        self.place = next(iter(self.row.weights))
        if bare:
            self.op.attrs["fused_activation_function"] = "NONE"
        self.rest = [None if t is None else t.data for t in self.op.inputs]
        for i in (*self.row.data, self.place, self.row.bias):
            tensor = None if i is None else self.op.input(i)
            if tensor is not None:
                tensor.dtype, tensor.quant = DType.FLOAT32, None
        self.op.outputs[0].dtype, self.op.outputs[0].quant = DType.FLOAT32, None

    def __call__(self, source: Array, weights: Array, bias: Array | None = None) -> Array:
        inputs = list(self.rest)
        inputs[self.row.data[0]] = source.astype(np.float32, copy=False)
        inputs[self.place] = weights.astype(np.float32, copy=False)
        if self.row.bias is not None and len(inputs) > self.row.bias:
            inputs[self.row.bias] = None if bias is None else bias.astype(np.float32)
        return evaluate(self.op, inputs, new_state())[0]


class CodedLinear:
    """A quantised linear op, computed in float and rounded to its codes.

    The result is at most one unit from what an integer kernel gives, and much faster.
    """

    def __init__(self, op: Op) -> None:
        bias = bias_of(op)
        self.source, self.out, self.product = source_of(op), op.outputs[0], FloatLinear(op)
        self.weights = real_weights(op)
        self.bias = None if bias is None or bias.data is None else real_bias(bias)

    def __call__(self, source: Array) -> Array:
        """The codes of the result from the codes of the operand."""
        return codes(self.product(reals(source, self.source), self.weights, self.bias), self.out)
