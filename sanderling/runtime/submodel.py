"""A part as a .tflite file of its own, for delegates whose engine reads files."""

from __future__ import annotations

from collections.abc import Sequence

from ..format import dump
from ..ir import Graph, Model, Op
from ..ir.graph import copy_graph
from ..ops import OPS


def refuses_alone(op: Op) -> str | None:
    """Why an op cannot be part of such a file; None if it can. A file knows no control flow into
    other graphs of the model, no state of the session, no shape that depends on data."""
    tensors = [t for t in (*op.inputs, *op.outputs) if t is not None]
    if op.subgraphs or op.name not in OPS or OPS[op.name].stateful:
        return f"{op.name} does not stand on its own"
    if any(t.is_variable or t.is_dynamic or not t.dtype.is_fixed_size for t in tensors):
        return "a tensor has state, no fixed shape or no fixed size"
    if all(t.is_constant for t in tensors if t not in op.outputs):
        return "it computes a constant"
    return None


def as_tflite(part: Graph) -> bytes:
    """The file's bytes. Inputs and outputs, in the order of the part's, are renamed to t0, t1 and
    so on: engines that go by name need unique ones."""
    for place, tensor in enumerate((*part.inputs, *part.outputs)):
        tensor.name = f"t{place}"
    return dump(Model([part]))


def graph_of(ops: Sequence[Op]) -> Graph:
    """These ops, in execution order, as a graph of their own, for an engine that is asked about
    many at once. It shows what somebody else reads, or nobody."""
    mine = set(ops)
    made = {t for op in ops for t in op.outputs}
    read = dict.fromkeys(t for op in ops for t in op.inputs if t is not None)
    inputs = [t for t in read if not t.is_constant and t not in made]
    outputs = [t for op in ops for t in op.outputs if not mine.issuperset(t.users) or not t.users]
    return copy_graph(Graph(), ops, inputs, outputs)[0]
