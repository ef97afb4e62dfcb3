"""The fast path: what is left to do in a run that is like the one before.

Nothing is looked up, checked or made a second time. Where the arrays stay the same (a bound run,
the interpreter's invoke, a loop's body) that is `Binding.steady`, a call without arguments: the
executable's own, if it does all, or a `Repeat`. session.run gets other arrays each time; if they
are like those before, and one executable does all, it hands them to that one (`SteadyRun`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ir import Array, Signature, Tensor
from .delegate import Call
from .plan import Plan, has_storage

if TYPE_CHECKING:
    from .binding import Binding

_ARRAY, _EMPTY = np.ndarray, np.empty
Copies = Sequence[tuple[Array, Array]]  # target, source
Row = tuple[str, np.dtype[Any], tuple[int, ...]]  # name, type and shape of an array


class Repeat:
    """A further run of a binding: some calls, with copies before and behind them."""

    def __init__(
        self, binding: Binding, calls: Sequence[Call], before: Copies, behind: Copies
    ) -> None:
        # Without a circle: what the binding holds goes with its last user, who makes the calls.
        self._binding = weakref.ref(binding)
        self._plan, self._calls = binding.plan, calls
        self._before, self._behind = before, behind

    def __call__(self) -> None:
        if self._plan.resources is not None and self._is_outdated():
            return
        for target, source in self._before:
            np.copyto(target, source)
        done = 0
        try:
            for call in self._calls:
                call()
                done += 1
        except Exception as error:
            self._plan.blame(done, error)
        for target, source in self._behind:
            np.copyto(target, source)

    def _is_outdated(self) -> bool:
        """The session's state has other arrays now: then the binding has run on those."""
        binding = self._binding()
        assert binding is not None, "whoever calls holds it"
        if binding.is_current():
            return False
        binding.run_all()
        return True


class SteadyRun:
    """session.run on arrays whose types, shapes and layouts are those of the run before.

    The general way looks names up, converts, checks and plans, which takes longer than a small
    model does.
    """

    def __init__(self, plan: Plan, inputs: list[Row], outputs: list[Row], order: list[str]) -> None:
        """inputs and outputs in the step's order; order: the caller's outputs."""
        self._plan, self._inputs, self._outputs = plan, inputs, outputs
        self._run = plan.steps[0].executable.run
        self._order = None if order == [name for name, _, _ in outputs] else order

    def run(self, feeds: object) -> dict[str, Array] | None:
        """The results; None if the general way has to look at what is fed.

        Loops instead of comprehensions, and names looked up once: this is a third of the time of a
        run that does next to nothing.
        """
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
        made = {}
        results: list[Array | None] = []
        for name, dtype, shape in self._outputs:
            made[name] = array = _EMPTY(shape, dtype)
            results.append(array)
        try:
            self._run(arrays, results)
        except Exception as error:
            self._plan.blame(0, error)
        return made if self._order is None else {name: made[name] for name in self._order}


def steady_run(entry: Signature, binding: Binding) -> SteadyRun | None:
    """The fast path for this entry, if there is one."""
    if not binding.is_one_call:
        return None
    plan = binding.plan
    (step,) = plan.steps
    fed = _named(entry.inputs, plan.twins)
    wanted = _named(entry.outputs, plan.twins)
    plain = len(fed) == len(entry.inputs) and len(wanted) == len(entry.outputs)
    all_known = all(map(has_storage, (*step.inputs, *step.outputs)))
    whole = set(wanted) == set(step.outputs) and set(fed) == set(step.inputs)
    if not plain or not all_known or not whole:
        return None
    return SteadyRun(
        plan, _rows(step.inputs, fed), _rows(step.outputs, wanted), list(wanted.values())
    )


def _named(named: Mapping[str, Tensor], twins: Mapping[Tensor, Tensor]) -> dict[Tensor, str]:
    return {twins[t]: name for name, t in named.items()}


def _rows(tensors: Iterable[Tensor], names: Mapping[Tensor, str]) -> list[Row]:
    return [(names[t], t.dtype.numpy, t.shape) for t in tensors]
