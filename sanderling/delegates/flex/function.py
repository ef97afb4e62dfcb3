"""Flex operators as a function of TensorFlow, made with its public interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...errors import DelegateError, ModelError
from ...ir import Array, DType, Graph, Op, Tensor
from ...ops.base import FOLD_ELEMENTS, Spec, check_results
from .node import flex_node

DEVICE = "/CPU:0"


@cache
def _tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # notes on CUDA and oneDNN at each import
    return import_module("tensorflow")


class _Nodes:
    """A graph of TensorFlow's that grows by operands and operators."""

    def __init__(self) -> None:
        self.tf = _tensorflow()
        self.message = self.tf.compat.v1.GraphDef()
        self.message.versions.producer = self.tf.version.GRAPH_DEF_VERSION

    def fed(self, dtype: DType, shape: Sequence[int] | None) -> str:
        """A value that is given in each run."""
        node = self._add("Placeholder")
        node.attr["dtype"].type = self.type_of(dtype)
        node.attr["shape"].shape.CopyFrom(self.tf.TensorShape(shape).as_proto())
        return str(node.name)

    def constant(self, dtype: DType, value: Array) -> str:
        node = self._add("Const")
        node.attr["dtype"].type = self.type_of(dtype)
        proto = self.tf.make_tensor_proto(value, self.type_of(dtype), value.shape)
        node.attr["value"].tensor.CopyFrom(proto)
        return str(node.name)

    def operator(self, op: Op, inputs: Sequence[str]) -> list[str]:
        """The names of its results. Of the file's node the operator and its attributes are taken:
        names, devices and what TensorFlow notes for itself are not the file's to say."""
        said = self.tf.compat.v1.NodeDef.FromString(flex_node(op).node_def)
        node = self._add(said.op)
        node.input.extend(inputs)
        for name, value in said.attr.items():
            if not name.startswith("_"):
                node.attr[name].CopyFrom(value)
        return [f"{node.name}:{place}" for place in range(len(op.outputs))]

    def _add(self, kind: str) -> Any:
        count = len(self.message.node)
        return self.message.node.add(op=kind, name=f"{kind}_{count}", device=DEVICE)

    def type_of(self, dtype: DType) -> int:
        return int(self.tf.as_dtype(dtype.name.lower()).as_datatype_enum)

    def imported(self) -> None:
        """Put the nodes into the graph that is current."""
        self.tf.graph_util.import_graph_def(self.message, name="")


def result_specs(op: Op, specs: Sequence[Spec | None]) -> list[Spec]:
    """What TensorFlow says of the op's results before a run; a shape that it leaves open, if only
    in one dimension, depends on data."""
    nodes = _Nodes()
    names = nodes.operator(op, [_operand(nodes, spec) for spec in specs if spec is not None])
    with nodes.tf.Graph().as_default() as graph:
        try:
            nodes.imported()
            node = graph.get_operation_by_name(names[0].split(":")[0]) if names else None
        except Exception as error:  # whatever TensorFlow has against the file's node
            raise _refused(op, error) from error
    found = [_spec(result) for result in (node.outputs if node is not None else ())]
    check_results(op, found)
    return found


def _operand(nodes: _Nodes, spec: Spec) -> str:
    if spec.value is not None and spec.value.size <= FOLD_ELEMENTS:
        return nodes.constant(spec.dtype, spec.value)
    return nodes.fed(spec.dtype, spec.shape)


def _spec(result: Any) -> Spec:
    shape = tuple(result.shape.as_list()) if result.shape.is_fully_defined() else None
    return Spec(DType[result.dtype.name.upper()], shape)


def _refused(op: Op, error: Exception) -> ModelError:
    return ModelError(
        f"TensorFlow does not take it: {_reason(error)}",
        where=op.where,
        fix="the model is damaged, or made for another version of TensorFlow",
    )


def _reason(error: Exception) -> str:
    """What went wrong, without the traceback before it and the names of nodes behind it."""
    paragraphs = str(error).strip().split("\n\n")
    return paragraphs[-1].splitlines()[0] if paragraphs[-1] else type(error).__name__


class PartFunction:
    """A part, all of it Flex operators, as one function of TensorFlow."""

    def __init__(self, part: Graph) -> None:
        nodes = _Nodes()
        self.tf, self.types = nodes.tf, [nodes.type_of(t.dtype) for t in part.inputs]
        names = {t: nodes.fed(t.dtype, None if t.is_dynamic else t.shape) for t in part.inputs}
        fed = [f"{name}:0" for name in names.values()]
        for op in part.ops:
            for tensor in op.inputs:
                if tensor is not None and tensor not in names:
                    names[tensor] = nodes.constant(tensor.dtype, tensor.values)
            given = [names[t] for t in op.inputs if t is not None]
            names.update(zip(op.outputs, nodes.operator(op, given), strict=True))
        whole = self.tf.compat.v1.wrap_function(nodes.imported, [])
        self._call = whole.prune(fed, [names[t] for t in part.outputs])

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Results whose memory is TensorFlow's."""
        arrays = zip(inputs, self.types, strict=True)
        try:
            with self.tf.device(DEVICE):
                made = self._call(*(self.tf.constant(array, kind) for array, kind in arrays))
        except self.tf.errors.OpError as error:
            raise DelegateError(
                f"TensorFlow failed: {_reason(error)}",
                fix="an operand has a value that the operator does not take",
            ) from error
        return [np.asarray(result.numpy()) for result in made]


def settle(made: Array, tensor: Tensor, target: Array | None) -> Array:
    """The result where the caller wants it, or in memory of its own."""
    if target is None:
        target = np.empty(made.shape, tensor.dtype.numpy)
    target[...] = made
    return target
