"""The classifier head of a model: where it begins, and another one in its place."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..format.class_labels import with_labels
from ..ir import Array, DType, Graph, Model, Op, Tensor
from ..ir.graph import copy_graph
from ..passes.simplify import remove_dead

# What may stand between the last product of a classifier and its output.
BEHIND = {"SOFTMAX", "LOG_SOFTMAX", "LOGISTIC", "RESHAPE", "SQUEEZE", "QUANTIZE", "DEQUANTIZE",
          "MEAN", "AVERAGE_POOL_2D"}  # fmt: skip
PRODUCTS = ("FULLY_CONNECTED", "CONV_2D")
SCORES = "scores"


@dataclass(frozen=True)
class Cut:
    """Where a model is cut. tensor: what a new head reads; is_head: a classifier was found behind
    it, in whose place the new one comes."""

    tensor: Tensor
    is_head: bool

    @property
    def features(self) -> int:
        return int(self.tensor.shape[-1])


def find_cut(graph: Graph) -> Cut:
    """What the last product reads; the output itself where no product stands right before it, as
    in a model that gives embeddings."""
    if len(graph.outputs) != 1:
        raise InputError(
            f"the model has {len(graph.outputs)} outputs, a classifier has one",
            where=f"graph '{graph.name}'",
            fix="give a classifier, or a model that gives one embedding",
        )
    tensor = graph.outputs[0]
    while (op := tensor.producer) is not None and op.name in BEHIND:
        tensor = op.operand(0)
    if op is None or op.name not in PRODUCTS or not _is_one_row(graph.outputs[0]):
        return Cut(_checked(graph.outputs[0]), is_head=False)
    return Cut(_checked(op.operand(0)), is_head=True)


def _is_one_row(tensor: Tensor) -> bool:
    return int(np.prod(tensor.shape)) == tensor.shape[-1]


def _checked(tensor: Tensor) -> Tensor:
    is_row = len(tensor.shape) == 4 or int(np.prod(tensor.shape)) == tensor.shape[-1]
    if not is_row or tensor.shape[-1] < 1:
        raise InputError(
            f"its shape is {list(tensor.shape)}, and features are needed for each sample",
            where=f"tensor '{tensor.name}'",
            fix="give a classifier of pictures, sounds or embeddings",
        )
    return tensor


@dataclass(frozen=True)
class Boundary:
    """All that ops behind it read: one tensor that depends on weights, and what is computed from
    the inputs without them, such as the mask of a text."""

    tensor: Tensor
    beside: tuple[Tensor, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.tensor, *self.beside)


def boundaries(graph: Graph, end: Tensor) -> list[Boundary]:
    """Where all that leads to `end` can be cut, one after another, each with weights of a product
    between it and the next one, or the end."""
    ops = [op for op in graph.ops if op.inputs and not _is_constant_op(op)]
    place = {op: i for i, op in enumerate(ops)}
    last = {}
    for op in ops:
        for tensor in op.inputs:
            if tensor is not None and not tensor.is_constant:
                last[tensor] = place[op]
    found: list[Boundary] = []
    plain = dict.fromkeys(graph.inputs)  # computed without weights
    alive: dict[Tensor, None] = dict(plain)
    products = 0
    for number, op in enumerate(ops):
        products += op.name in (*PRODUCTS, "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV")
        if all(t in plain or _is_no_weight(t) for t in op.inputs if t is not None):
            plain |= dict.fromkeys(op.outputs)
        alive = {t: None for t in (*alive, *op.outputs) if last.get(t, -1) > number or t is end}
        if end in op.outputs:
            break
        cut = _boundary(alive, plain)
        if cut is not None and products:
            found.append(cut)
            products = 0
    return found if products else found[:-1]  # behind the last one there may be nothing to train


def _is_no_weight(tensor: Tensor) -> bool:
    """Whether it is a constant that nobody learns: a shape, an axis, a single number."""
    is_single = int(np.prod(tensor.shape)) <= 1
    return tensor.is_constant and (is_single or not tensor.dtype.is_float)


def _boundary(alive: Iterable[Tensor], plain: Container[Tensor]) -> Boundary | None:
    """What is alive, if samples can be told apart in it and only one of it depends on weights."""
    learnt = [t for t in alive if t not in plain]
    if len(learnt) != 1 or not learnt[0].dtype.is_float:
        return None
    if any(t.shape[:1] != (1,) for t in alive):
        return None
    return Boundary(learnt[0], tuple(t for t in alive if t in plain))


def _is_constant_op(op: Op) -> bool:
    """Computed from constants alone, such as DEQUANTIZE of float16 weights."""
    return all(t is None or t.is_constant for t in op.inputs)


def feature_model(model: Model, cut: Cut) -> Model:
    """The part of the model that computes the features: floats [1, features]."""
    graph = _base(model, cut)
    graph.outputs = [_row_of_features(graph, _twin_of(graph, cut.tensor.name), cut)]
    return _as_model(graph, model)


def with_head(
    model: Model, cut: Cut, weights: Array, bias: Array, labels: list[str], description: str = ""
) -> Model:
    """The model with a new classifier: a fully connected layer and a softmax in floats."""
    graph = _base(model, cut)
    row = _row_of_features(graph, _twin_of(graph, cut.tensor.name), cut)
    count = len(labels)
    kernel = graph.constant("head/weights", np.asarray(weights, np.float32))
    offset = graph.constant("head/bias", np.asarray(bias, np.float32))
    logits = graph.tensor("head/logits", DType.FLOAT32, (1, count))
    graph.add("FULLY_CONNECTED", [row, kernel, offset], [logits])
    scores = graph.tensor(SCORES, DType.FLOAT32, (1, count))
    graph.add("SOFTMAX", [logits], [scores], beta=1.0)
    graph.outputs = [scores]
    return with_labels(_as_model(graph, model), SCORES, labels, description)


def _base(model: Model, cut: Cut) -> Graph:
    """A copy of the main graph up to the cut."""
    graph = model.main
    made, twins = copy_graph(graph, graph.ops, graph.inputs, [cut.tensor])
    assert twins[cut.tensor].name == cut.tensor.name
    remove_dead(made)
    return made


def _twin_of(graph: Graph, name: str) -> Tensor:
    assert graph.outputs[0].name == name
    return graph.outputs[0]


def _row_of_features(graph: Graph, tensor: Tensor, cut: Cut) -> Tensor:
    """As floats, the mean over places, in one row."""
    shape = tensor.shape
    if not tensor.dtype.is_float:
        real = graph.tensor("head/reals", DType.FLOAT32, shape)
        graph.add("DEQUANTIZE", [tensor], [real])
        tensor = real
    if len(shape) == 4 and shape[1] * shape[2] > 1:
        axes = graph.constant("head/places", np.array([1, 2], np.int32))
        mean = graph.tensor("head/mean", DType.FLOAT32, (shape[0], shape[3]))
        graph.add("MEAN", [tensor, axes], [mean], keep_dims=False)
        return mean
    if shape == (1, cut.features):
        return tensor
    size = graph.constant("head/size", np.array([1, cut.features], np.int32))
    row = graph.tensor("head/features", DType.FLOAT32, (1, cut.features))
    graph.add("RESHAPE", [tensor, size], [row], new_shape=np.array([1, cut.features], np.int32))
    return row


def _as_model(graph: Graph, model: Model) -> Model:
    return Model([graph], description=model.description, source=model.source)
