"""An interpreter's memory: one graph with its arrays, and the views of them that users hold."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..ir import Array, Tensor
from .binding import bind_outputs
from .plan import Plan, has_storage


class Allocation:
    """One graph with its plan, and the arrays that set_tensor, invoke and get_tensor touch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Strings have no place in an arena; they are held here.
        self.inputs = [_input_place(plan, t) for t in plan.graph.inputs]
        self.binding = bind_outputs(plan, self.inputs)
        # Arrays that stay where they are, by the tensor's index: looked up once.
        self.places: dict[int, Array] = {}
        self.shown: dict[int, Shown] = {}  # how views of them are made

    def follow(self) -> None:
        self.binding.follow()

    def find(self, twin: Tensor) -> Array | None:
        """The live array of a tensor, if it has one now."""
        if twin in self.plan.graph.inputs:
            return self.inputs[self.plan.graph.inputs.index(twin)]
        if twin in self.plan.variables:
            return self.plan.variables[twin]
        if has_storage(twin):
            return self.plan.array(twin)
        return self._late(twin)

    def _late(self, twin: Tensor) -> Array | None:
        """A value whose shape only the run could tell."""
        for (_, _, outputs), step in zip(self.binding.steps, self.plan.steps, strict=True):
            if twin in step.outputs:
                return outputs[step.outputs.index(twin)]
        return None


def _input_place(plan: Plan, tensor: Tensor) -> Array:
    place = plan.variables[tensor] if tensor in plan.variables else plan.array(tensor)
    return np.full(tensor.shape, b"", np.object_) if place is None else place


class Lender:
    """A tensor's memory, of which NumPy makes an array that is nobody's view."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


# An array that every view and slice in a user's hands holds on to, because it is itself a view of
# no array; and the tensor's type: small floats have no code in an array interface.
Shown = tuple[Array, np.dtype[Any]]


def show(array: Array) -> Shown:
    """What views of this array are made of."""
    return np.asarray(Lender(array)), array.dtype


def holders(shown: Shown) -> int:
    """NOBODY, or more if somebody has a view or a slice of one."""
    return sys.getrefcount(shown[0])


NOBODY = holders(show(np.empty(1)))
