"""What a model file says of a Flex operator: which operator of TensorFlow it is, and how it is set.

The custom options are a flexbuffer of two elements: the operator's name, and its NodeDef (a message
of TensorFlow's). Of that only `op` is read here, without TensorFlow, to decide who runs it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flatbuffers import flexbuffers

from ...errors import ModelError
from ...ir import CUSTOM, DType, Op
from ...protobuf import decode
from .allowed import ALLOWED

PREFIX = CUSTOM + "Flex"
# Handles of things that live in TensorFlow: no array of ours can hold them.
_HANDLES = (DType.RESOURCE, DType.VARIANT)


@dataclass(frozen=True)
class FlexNode:
    """An operator of TensorFlow in a model file."""

    name: str
    node_def: bytes


def is_flex(op: Op) -> bool:
    return op.name.startswith(PREFIX)


def flex_node(op: Op) -> FlexNode:
    """The op's custom options, checked: all three places that name the operator agree."""
    try:
        said, message = flexbuffers.GetRoot(bytearray(op.attrs.get("options") or b"")).AsVector
        # A string to flexbuffers, but a message need not be one in UTF-8.
        name, node_def = said.AsString, bytes(message.AsStringBytes)
        found = decode("NodeDef", node_def).get("op")
    except Exception as error:  # the reader trusts its input: a damaged one may raise anything
        raise _damaged(op, "its options are not a name and a NodeDef") from error
    if not name == found == op.name.removeprefix(PREFIX):
        raise _damaged(op, f"its options name {name!r} and {found!r}")
    return FlexNode(name, node_def)


def _damaged(op: Op, what: str) -> ModelError:
    return ModelError(what, where=op.where, fix="the model is damaged: convert it again")


def refusal(op: Op, trusted: Collection[str] = ()) -> str | None:
    """Why TensorFlow is not to run the op; None if it is. trusted: operators that the user allows
    beyond those that any file may ask for."""
    if not is_flex(op):
        return f"{op.name} is no Flex operator"
    try:
        name = flex_node(op).name
    except ModelError as error:
        return error.what
    if name not in ALLOWED and name not in trusted:
        return f"TensorFlow's {name} may do more than compute, and the model file is not trusted"
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    handle = next((t for t in tensors if t.dtype in _HANDLES), None)
    if handle is not None:
        return f"'{handle.name}' is a {handle.dtype.short}, which no array can hold"
    if None in op.inputs:
        return "an operand is absent"
    return None
