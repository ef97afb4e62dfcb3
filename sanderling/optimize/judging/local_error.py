"""The error that each op of a quantised model adds by itself.

An op's result is off for two reasons: what it reads is off already, and it rounds, clips and has
rounded weights. The limits that one knows (1/sqrt(12) of a step is rounding) are about the second.
So each op is run on the float model's values, as its operands can hold them, and held against the
float model's op on those very numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ...errors import SanderlingError
from ...ir import Array, Op, Tensor
from ...ops.execute import evaluate, new_state
from ..correcting.linear import CodedLinear, codes, is_linear, own_name, reals
from ..modes.rules import RULES


@dataclass(frozen=True)
class OpPair:
    """An op with codes, and the op of the float model that it stands for."""

    op: Op
    twin: Op

    def run(self, floats: Mapping[str, Array]) -> Iterator[tuple[str, Array, Array]]:
        """For each result: its name, what the float op makes, what this one does; from the float
        model's values by name."""
        given: list[Array | None] = []
        known: list[Array | None] = []
        for place, tensor in enumerate(self.op.inputs):
            other = self.twin.input(place)
            if tensor is None or tensor.data is not None:
                given.append(None if tensor is None else tensor.data)
                known.append(None if other is None else other.data)
            else:
                held = codes(floats[own_name(tensor.name)], tensor)
                given.append(held)
                known.append(reals(held, tensor))
        made, wanted = _evaluated(self.op, given), evaluate(self.twin, known, new_state())
        for tensor, ours, theirs in zip(self.op.outputs, made, wanted, strict=True):
            if theirs.dtype.kind == "f":  # a comparison's result has no size of error
                yield own_name(tensor.name), theirs, reals(ours, tensor)


def _evaluated(op: Op, given: list[Array | None]) -> list[Array]:
    """A linear op is computed in float on what its codes stand for, which is much faster."""
    if not is_linear(op) or op.outputs[0].dtype.is_float:
        return evaluate(op, given, new_state())
    values = given[RULES[op.name].data[0]]
    return [CodedLinear(op)(np.asarray(values))]


def op_pairs(ops: list[Op], twins: Mapping[str, Tensor], known: set[str]) -> list[OpPair]:
    """The ops that have a twin of the same operator, and read nothing but constants and values that
    the float model has. Ops with states or graphs of their own are left out."""
    found = []
    for op in ops:
        made = twins.get(own_name(op.outputs[0].name)) if op.outputs else None
        twin = None if made is None else made.producer
        if twin is None or twin.name != op.name or op.subgraphs:
            continue
        reads = [t for t in op.inputs if t is not None and t.data is None]
        if all(not t.is_variable and own_name(t.name) in known for t in reads):
            found.append(OpPair(op, twin))
    return found


def run(couple: OpPair, floats: Mapping[str, Array]) -> list[tuple[str, Array, Array]]:
    """Run the pair; an op that cannot be run by itself gives nothing."""
    try:
        return list(couple.run(floats))
    except SanderlingError:
        return []
