"""Flex operators as calls of TensorFlow, made with its public interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from ...errors import DelegateError, ModelError, SanderlingError, UnsupportedError
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

    def operator(self, op: Op, inputs: Sequence[str]) -> str:
        """Add the op's node, whose name is the answer. Only the operator and its attributes are the
        file's: names, devices and what TensorFlow notes for itself are not the file's to say."""
        said = self.tf.compat.v1.NodeDef.FromString(flex_node(op).node_def)
        node = self._add(said.op)
        node.input.extend(inputs)
        for name, value in said.attr.items():
            if not name.startswith("_"):
                node.attr[name].CopyFrom(value)
        return str(node.name)

    def _add(self, kind: str) -> Any:
        count = len(self.message.node)
        return self.message.node.add(op=kind, name=f"{kind}_{count}", device=DEVICE)

    def type_of(self, dtype: DType) -> int:
        return int(self.tf.as_dtype(dtype.name.lower()).as_datatype_enum)


def result_specs(op: Op, specs: Sequence[Spec | None]) -> list[Spec]:
    """What TensorFlow says of the op's results before a run; a shape that it leaves open, if only
    in one dimension, depends on data."""
    node = imported(op, specs)
    _function(op, node.type)
    found = [_spec(result) for result in node.outputs]
    check_results(op, found)
    return found


def imported(op: Op, specs: Sequence[Spec | None]) -> Any:
    """The op in a graph of TensorFlow's, with its attributes complete and its shapes inferred."""
    nodes = _Nodes()
    given = [_operand(nodes, spec) for spec in specs if spec is not None]
    with nodes.tf.Graph().as_default() as graph:
        try:
            name = nodes.operator(op, given)
            nodes.tf.graph_util.import_graph_def(nodes.message, name="")
            return graph.get_operation_by_name(name)
        except SanderlingError:
            raise
        except Exception as error:  # whatever TensorFlow has against the file's node
            raise _refused(op, error) from error


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


def _function(op: Op, name: str) -> Any:
    found = getattr(_tensorflow().raw_ops, name, None)
    if found is None:
        raise UnsupportedError(
            f"TensorFlow has no tf.raw_ops.{name}",
            where=op.where,
            fix="convert the model without this operator",
        )
    return found


class OpCall:
    """One operator as a call of `tf.raw_ops`, which runs it at once, on the caller's thread. (One
    tf.function for a whole part was tried: 0.8 ms a call where an operator takes 0.05.)"""

    def __init__(self, tf: Any, op: Op, node: Any) -> None:
        """node: the operator in a graph of TensorFlow's, which has completed its attributes."""
        self.op, self._tf = op, tf
        self._function = _function(op, node.type)
        arguments = node.op_def.input_arg
        inferred = {
            name for a in arguments for name in (a.type_attr, a.number_attr, a.type_list_attr)
        }
        self._attributes = {
            a.name: node.get_attr(a.name) for a in node.op_def.attr if a.name not in inferred
        }
        self._counts = {a.name: _count(node, a) for a in arguments}

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        """The results of the operator. An argument may be a list: it takes several operands."""
        waiting = iter(values)
        given = {
            name: next(waiting) if count is None else [next(waiting) for _ in range(count)]
            for name, count in self._counts.items()
        }
        made = self._function(**given, **self._attributes)
        return [] if made is None else self._tf.nest.flatten(made)


def _count(node: Any, argument: Any) -> int | None:
    """How many operands an argument takes that is a list; None if it is not one."""
    if argument.number_attr:
        return int(node.get_attr(argument.number_attr))
    return len(node.get_attr(argument.type_list_attr)) if argument.type_list_attr else None


def _given(op: Op) -> list[Spec]:
    """What a planned graph says of the op's operands."""
    return [
        Spec(t.dtype, None if t.is_dynamic else t.shape, t.data) for t in op.inputs if t is not None
    ]


class PartCalls:
    """A part, all of it Flex operators, as calls of TensorFlow one after the other."""

    def __init__(self, part: Graph) -> None:
        self.tf, self.part = _tensorflow(), part
        self.calls = [OpCall(self.tf, op, imported(op, _given(op))) for op in part.ops]
        fixed = {t for op in part.ops for t in op.inputs if t is not None and t.is_constant}
        self._constants = {t: self._tensor(t, t.values) for t in fixed}

    def _tensor(self, tensor: Tensor, array: Array) -> Any:
        with self.tf.device(DEVICE):
            return self.tf.constant(array, tensor.dtype.name.lower())

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        """Results whose memory is TensorFlow's."""
        values = dict(self._constants)
        values.update(
            (t, self._tensor(t, a)) for t, a in zip(self.part.inputs, inputs, strict=True)
        )
        for call in self.calls:
            given = [values[t] for t in call.op.inputs if t is not None]
            values.update(zip(call.op.outputs, self._made(call, given), strict=True))
        return [np.asarray(values[t].numpy()) for t in self.part.outputs]

    def _made(self, call: OpCall, given: Sequence[Any]) -> list[Any]:
        try:
            with self.tf.device(DEVICE):
                return call(given)
        except (self.tf.errors.OpError, TypeError, ValueError) as error:
            raise DelegateError(
                f"TensorFlow failed: {_reason(error)}",
                where=call.op.where,
                fix="an operand has a value that the operator does not take",
            ) from error


def settle(made: Array, tensor: Tensor, target: Array | None) -> Array:
    """The result where the caller wants it, or in memory of its own."""
    if target is None:
        target = np.empty(made.shape, tensor.dtype.numpy)
    target[...] = made
    return target
