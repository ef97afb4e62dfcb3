"""The error that each op of a quantised model adds by itself.

An op's result is off for two reasons: what it reads is off already, and it rounds, clips and has
rounded weights. The limits that one knows (1/sqrt(12) of a step is rounding) are about the second.
So each op is run on the float model's values, as its operands can hold them, and held against the
float model's op on those very numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import SanderlingError
from ..ir import Array, Op, Tensor
from ..ops.execute import evaluate, new_state
from .correct import own_name
from .rules import RULES
from .walk import Product, codes, is_layer, real_bias_of, reals


@dataclass(frozen=True)
class Couple:
    """An op with codes, and the float model's."""

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
                given.append(codes(floats[own_name(tensor.name)], tensor))
                known.append(reals(given[-1], tensor))
        made, wanted = _evaluated(self.op, given), evaluate(self.twin, known, new_state())
        for tensor, ours, theirs in zip(self.op.outputs, made, wanted, strict=True):
            yield own_name(tensor.name), theirs, reals(ours, tensor)


def _evaluated(op: Op, given: list[Array | None]) -> list[Array]:
    """A layer in float on what its codes stand for, which is much faster (see `walk`)."""
    if not is_layer(op) or op.outputs[0].dtype.is_float:
        return evaluate(op, given, new_state())
    product, row = Product(op), RULES[op.name]
    source, weights = op.inputs[row.data[0]], op.inputs[product.place]
    bias = op.input(row.bias) if row.bias is not None else None
    values = given[row.data[0]]
    assert source is not None and weights is not None and weights.data is not None
    assert values is not None
    added = None if bias is None or bias.data is None else real_bias_of(bias)
    return [codes(product(reals(values, source), reals(weights.data, weights), added),
                  op.outputs[0])]  # fmt: skip


def couples(ops: list[Op], twins: Mapping[str, Tensor], known: set[str]) -> list[Couple]:
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
            found.append(Couple(op, twin))
    return found


def run(couple: Couple, floats: Mapping[str, Array]) -> list[tuple[str, Array, Array]]:
    """Nothing of an op that cannot be run by itself."""
    try:
        return list(couple.run(floats))
    except SanderlingError:
        return []
