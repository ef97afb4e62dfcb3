"""The short way through `session.run`: a plan of one step, arrays that need no conversion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..ir import Array, Signature, Tensor
from .plan import Binding, has_storage

_ARRAY, _EMPTY = np.ndarray, np.empty
Row = tuple[str, np.dtype[Any], tuple[int, ...]]  # name, type and shape of an array


class Direct:
    """Runs on the caller's arrays where types, shapes and layouts are those of the binding before.

    The general way looks names up, converts, checks and plans, which takes longer than a small
    model does.
    """

    def __init__(self, binding: Binding, inputs: list[Row], outputs: list[Row],
                 order: list[str]) -> None:  # fmt: skip
        """inputs and outputs in the step's order; order: the caller's outputs."""
        self._binding, self._inputs, self._outputs = binding, inputs, outputs
        self._run = binding.steps[0][0]
        self._order = None if order == [name for name, _, _ in outputs] else order

    # Loops instead of comprehensions, and names looked up once: this is a third of the time of a
    # run that does next to nothing.

    def accepts(self, feeds: object) -> list[Array] | None:
        """The arrays in the step's order; None if the general way has to look at them."""
        if type(feeds) is not dict or len(feeds) != len(self._inputs):
            return None
        arrays = []
        for name, dtype, shape in self._inputs:
            array = feeds.get(name)
            if (
                type(array) is not _ARRAY
                or array.dtype is not dtype
                or array.shape != shape
                or not array.flags.c_contiguous
            ):
                return None
            arrays.append(array)
        return arrays

    def run(self, arrays: list[Array]) -> dict[str, Array]:
        made = {}
        results: list[Array | None] = []
        for name, dtype, shape in self._outputs:
            made[name] = array = _EMPTY(shape, dtype)
            results.append(array)
        try:
            self._run(arrays, results)
        except Exception as error:
            self._binding.blame(0, error)
        return made if self._order is None else {name: made[name] for name in self._order}


def direct(entry: Signature, binding: Binding) -> Direct | None:
    """The short way for this entry, if there is one."""
    plan = binding.plan
    if len(plan.steps) != 1 or plan.variables or plan.resources is not None:
        return None
    (step,) = plan.steps
    fed = _named(entry.inputs, plan.twins)
    wanted = _named(entry.outputs, plan.twins)
    plain = len(fed) == len(entry.inputs) and len(wanted) == len(entry.outputs)
    all_known = all(map(has_storage, (*step.inputs, *step.outputs)))
    whole = set(wanted) == set(step.outputs) and set(fed) == set(step.inputs)
    if not plain or not all_known or not whole:
        return None
    return Direct(binding, _rows(step.inputs, fed), _rows(step.outputs, wanted),
                  list(wanted.values()))  # fmt: skip


def _named(named: Mapping[str, Tensor], twins: Mapping[Tensor, Tensor]) -> dict[Tensor, str]:
    return {twins[t]: name for name, t in named.items()}


def _rows(tensors: Iterable[Tensor], names: Mapping[Tensor, str]) -> list[Row]:
    return [(names[t], t.dtype.numpy, t.shape) for t in tensors]
