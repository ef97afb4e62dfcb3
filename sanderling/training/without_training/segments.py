"""A graph in pieces that follow each other, each run on all samples before the next begins.

Between two pieces the values are kept that later ones read. A cut is made behind a layer only where
these fit into a bound of memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ...ir import Graph, Model, Op, Tensor
from ...ir.graph import copy_graph
from ..differentiable.twin import Twin

MOST_BYTES = 1 << 28  # of values between two segments, in one model
BATCH = 8

Values = dict[int, torch.Tensor]  # by a tensor's place in its graph's list


@dataclass
class Segment:
    """Places of ops in their graph, and of the tensors that come in and go out."""

    ops: list[int]
    layers: list[int]  # of the ops, those that are looked at
    reads: list[int]
    keeps: list[int]  # what later segments read, of what this one makes
    passes: list[int]  # what they read, of what was there before


def segments(graph: Graph, layers: Collection[Op], samples: int) -> list[Segment]:
    """Up to the last of the layers; what comes behind it is not run."""
    chosen = set(layers)
    constant = constant_ops(graph)
    ops = [op for op in graph.ops if op not in constant]
    last = max(i for i, op in enumerate(ops) if op in chosen)
    cuts = [
        i + 1
        for i, op in enumerate(ops[: last + 1])
        if op in chosen and (i == last or _bytes(_alive(graph, ops, i + 1), samples) <= MOST_BYTES)
    ]
    starts = [0, *cuts[:-1]]
    return [_segment(graph, ops, a, b, chosen) for a, b in zip(starts, cuts, strict=True)]


def _segment(graph: Graph, ops: Sequence[Op], first: int, end: int, chosen: set[Op]) -> Segment:
    own = ops[first:end]
    place = {op: i for i, op in enumerate(graph.ops)}
    of = {t: i for i, t in enumerate(graph.tensors)}
    made = {t for op in own for t in op.outputs}
    computed = {t for op in constant_ops(graph) for t in op.outputs}
    read = dict.fromkeys(
        t
        for op in own
        for t in op.inputs
        if t is not None and not t.is_constant and t not in made and t not in computed
    )
    alive = _alive(graph, ops, end)
    return Segment(
        [place[op] for op in own],
        [place[op] for op in own if op in chosen],
        [of[t] for t in read],
        [of[t] for t in alive if t in made],
        [of[t] for t in alive if t not in made],
    )


def constant_ops(graph: Graph) -> set[Op]:
    """Ops that read constants alone, such as those that expand 16-bit weights."""
    found: set[Op] = set()
    known: set[Tensor] = set()
    for op in graph.ops:
        if op.inputs and all(t is None or t.is_constant or t in known for t in op.inputs):
            found.add(op)
            known.update(op.outputs)
    return found


def _alive(graph: Graph, ops: Sequence[Op], end: int) -> list[Tensor]:
    """What is there before the op at this place and is read by it or later."""
    there = {t for op in ops[:end] for t in op.outputs} | set(graph.inputs)
    return list(dict.fromkeys(t for op in ops[end:] for t in op.inputs if t in there))


def _bytes(tensors: Sequence[Tensor], samples: int) -> int:
    return sum(t.dtype.nbytes(t.shape) * samples for t in tensors)


class Runner:
    """Runs a segment of a model, as its weights are now."""

    def __init__(self, graph: Graph, segment: Segment, wanted: Sequence[int]) -> None:
        """wanted: places of tensors that are to be seen."""
        self.wanted, self.reads = list(wanted), segment.reads
        inputs = [graph.tensors[i] for i in segment.reads]
        outputs = [graph.tensors[i] for i in wanted]
        ops = [*_needed(graph, segment), *(graph.ops[i] for i in segment.ops)]
        part, _ = copy_graph(graph, ops, inputs, outputs)
        self.twin = Twin(Model([part]))

    def batches(self, values: Values, count: int) -> Iterator[Values]:
        """What is wanted, for a few samples at a time."""
        for first in range(0, count, BATCH):
            given = [values[i][first : first + BATCH] for i in self.reads]
            with torch.no_grad():
                found = self.twin(*given)
            yield dict(zip(self.wanted, found, strict=True))


def _needed(graph: Graph, segment: Segment) -> list[Op]:
    """The constant ops whose results the segment reads, in order."""
    constant = constant_ops(graph)
    needed: set[Op] = set()
    waiting = [graph.ops[i] for i in segment.ops]
    while waiting:
        op = waiting.pop()
        makers = [t.producer for t in op.inputs if t is not None and t.producer in constant]
        new = [m for m in makers if m is not None and m not in needed]
        needed.update(new)
        waiting += new
    return [op for op in graph.ops if op in needed]


def joined(parts: Sequence[Values], wanted: Sequence[int]) -> Values:
    return {i: torch.cat([p[i] for p in parts]) for i in wanted}


def home_of(tensor: Tensor) -> Tensor | None:
    """The float constant of the file that holds a weight: itself, or one behind an expansion."""
    if tensor.is_constant:
        return tensor if tensor.dtype.is_float else None
    op = tensor.producer
    if op is None or op.name not in ("DEQUANTIZE", "DENSIFY"):
        return None
    return home_of(op.operand(0))


def _known_home(tensor: Tensor) -> Tensor:
    home = home_of(tensor)
    assert home is not None, "weights without a home are not looked at"
    return home


def store(tensor: Tensor, values: torch.Tensor) -> None:
    """Write a weight back to where the file keeps it, in the type that it has there."""
    home = _known_home(tensor)
    home.data = values.numpy().reshape(home.shape).astype(home.dtype.numpy)


def weight_values(tensor: Tensor) -> torch.Tensor:
    """A weight as float32."""
    home = _known_home(tensor)
    return torch.from_numpy(np.array(home.values, np.float32))
