"""How control flow runs a graph, time and again: a plan with arrays of its own."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ..ir import Array, DType
from ..spans import tape
from .binding import Binding, bind_outputs
from .plan import Plan, has_storage


def subgraph_of(plan: Plan) -> Subgraph:
    """The plan as a graph to be called: made once, and kept with the plan."""
    if plan.subgraph is None:
        plan.subgraph = Subgraph(plan)
    return plan.subgraph


class Subgraph:
    """A plan that is called. What its arrays are bound to is kept."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._called: tuple[list[Array], Binding] | None = None
        self._looped: tuple[Plan, Loop | None] | None = None

    def call(self, arrays: Sequence[Array]) -> list[Array]:
        """The results for these arrays, as arrays of their own."""
        if self._called is None or tape.recorder is not None:
            inputs = [np.empty(a.shape, a.dtype) for a in arrays]
            self._called = inputs, bind_outputs(self.plan, inputs)
        inputs, binding = self._called
        _set(inputs, arrays)
        return [a.copy() for a in binding.run()]

    def loop(self, condition: Plan, arrays: Sequence[Array]) -> list[Array] | None:
        """The values at which the condition, a plan for the same shapes, no longer holds; None if
        types or shapes may change on the way there."""
        if tape.recorder is not None:
            return None
        if self._looped is None or self._looped[0] is not condition:
            able = _is_loop(condition, self.plan)
            self._looped = condition, Loop(condition, self.plan, arrays) if able else None
        loop = self._looped[1]
        return None if loop is None else loop.run(arrays)


class Loop:
    """A condition and a body on the same arrays: what the body gives goes back into them."""

    def __init__(self, condition: Plan, body: Plan, arrays: Sequence[Array]) -> None:
        self._values = [np.empty(a.shape, a.dtype) for a in arrays]
        self._condition = bind_outputs(condition, self._values)
        self._body = bind_outputs(body, self._values)

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        _set(self._values, arrays)
        while self._condition.run()[0].item():
            _set(self._values, self._body.run())
        return [a.copy() for a in self._values]


def _set(targets: Sequence[Array], sources: Sequence[Array]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target[...] = source


def _is_loop(condition: Plan, body: Plan) -> bool:
    ends = condition.graph.outputs
    known = [has_storage(t) or t in body.graph.inputs for t in (*body.graph.outputs, *ends)]
    one = [prod(t.shape) for t in ends] == [1] and ends[0].dtype is DType.BOOL
    types = [
        [(t.dtype, t.shape) for t in tensors] for tensors in (body.graph.inputs, body.graph.outputs)
    ]
    return one and all(known) and types[0] == types[1]
