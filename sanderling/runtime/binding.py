"""A plan with its arrays in place, ready to run."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import InputError
from ..ir import Array, Tensor
from ..spans import span, tape
from . import plan_recording
from .delegate import Call, Executable, check_kept
from .plan import Plan, has_storage
from .steady import Repeat

# An executable with the arrays that it reads and those that it writes.
Bound = tuple[Executable, list[Array | None], list[Array | None]]


class Binding:
    """A plan on arrays that stay where they are.

    inputs are read where they lie. A wanted tensor is written into the array given for it, or,
    where None is given, into its arena place; one of unknown shape appears in `outputs` after the
    run. A tensor may be wanted more than once.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: Sequence[Array],
        outputs: Sequence[Array | None],
        wanted: Sequence[Tensor],
    ) -> None:
        self.plan = plan
        self.wanted = wanted
        arrays: dict[Tensor, Array | None] = dict(zip(plan.graph.inputs, inputs, strict=True))
        for tensor, array in zip(wanted, outputs, strict=True):
            if array is not None and tensor.producer is not None and tensor not in arrays:
                arrays[tensor] = array
        self._arrays = arrays
        # NumPy moves no array to which somebody has a weak reference, not even when it is told not
        # to count references: resize(..., refcheck=False) raises instead of freeing what is bound.
        # (A scalar of NumPy's, which complex inputs may be, has no memory of its own to move.)
        held = (*inputs, *outputs)
        self._pins = [weakref.ref(a) for a in held if isinstance(a, np.ndarray)]
        # An input that is a variable too: what the caller gives is its value before each run.
        self._fed = [
            (plan.variables[t], a)
            for t, a in zip(plan.graph.inputs, inputs, strict=True)
            if t in plan.variables and plan.variables[t] is not a
        ]
        self.steps: list[Bound] = [
            (s.executable, [self._array(t) for t in s.inputs], [self._array(t) for t in s.outputs])
            for s in plan.steps
        ]
        self._moves = [list(self._late_values(i)) for i in range(len(self.steps))]
        self._given = list(outputs)
        self._makers = self._find_makers()
        self.outputs: list[Array] = []
        self._copies: list[tuple[Array, Array]] = []  # target, source
        # No array changed in the run before: all of a further run can be prepared.
        self._is_static = False
        # All of a further run as one call, once two runs have shown that there will be more.
        self.steady: Call | None = None
        self._version = -1  # of the state whose arrays are bound

    def _array(self, tensor: Tensor) -> Array | None:
        if tensor in self.plan.variables:
            return self.plan.variables[tensor]
        if tensor not in self._arrays:
            self._arrays[tensor] = self.plan.array(tensor)
        return self._arrays[tensor]

    def _late_values(
        self, index: int
    ) -> Iterator[tuple[int, list[tuple[list[Array | None], int]]]]:
        """For each output that the step makes itself: which later inputs wait for it."""
        steps = self.plan.steps
        for place, tensor in enumerate(steps[index].outputs):
            if not has_storage(tensor):
                readers = [
                    (self.steps[later][1], slot)
                    for later in range(index + 1, len(steps))
                    for slot, read in enumerate(steps[later].inputs)
                    if read is tensor
                ]
                yield place, readers

    @property
    def is_one_call(self) -> bool:
        """A run is a call of one executable on these arrays, and nothing else."""
        more = self._fed or self._copies or self.plan.resources is not None
        return len(self.steps) == 1 and not more

    def run(self) -> list[Array]:
        steady = self.steady
        if steady is None and self._is_static:
            steady = self.steady = self._prepare()
        if steady is None:
            self.run_all()
        else:
            try:
                steady()
            except Exception as error:
                self.plan.blame(0, error)
        return self.outputs.copy()

    def _prepare(self) -> Call:
        calls = [executable.bind(*arrays) for executable, *arrays in self.steps]  # type: ignore[arg-type]
        if self.is_one_call:
            return calls[0]
        return Repeat(self, calls, self._fed, self._copies)

    def is_current(self) -> bool:
        """The session's state has the arrays that are bound."""
        shared = self.plan.resources
        return shared is None or shared.state.version == self._version

    def follow(self) -> None:
        """Recording has begun or ended."""
        self._is_static, self.steady = False, None
        self._renew()

    def _renew(self) -> None:
        """Take the executables that the plan has now."""
        self.steps = [
            (s.executable, inputs, outputs)
            for s, (_, inputs, outputs) in zip(self.plan.steps, self.steps, strict=True)
        ]

    def run_all(self) -> None:
        """The first run, every run of a plan whose arrays are made anew in each, and every run that
        is recorded."""
        for variable, array in self._fed:
            np.copyto(variable, array)
        shared = self.plan.resources
        if shared is not None and not self.is_current():
            self.steady = None
            places = zip(self.plan.steps, self.steps, strict=True)
            self._version = shared.settle([(s.inputs, inputs) for s, (_, inputs, _) in places])
        if tape.recorder is None:
            self._run_steps()
            return
        plan_recording.begin(self.plan)
        self._renew()
        with span("invoke", "run", {"graph": self.plan.graph.name}):
            self._run_steps()

    def _run_steps(self) -> None:
        index = 0
        try:
            for index in range(len(self.steps)):
                self._run_step(index)
        except Exception as error:
            self.plan.blame(index, error)
        self._collect()
        self._is_static = not any(self._moves) and tape.recorder is None

    def _run_step(self, index: int) -> None:
        executable, inputs, outputs = self.steps[index]
        moves = self._moves[index]
        for place, _ in moves:
            outputs[place] = None
        given = outputs.copy()
        if tape.recorder is None:
            executable.run(inputs, given)  # type: ignore[arg-type]
        else:
            plan_recording.tell_border(self.plan.steps, index)
            with plan_recording.part_span(self.plan.steps[index], index):
                executable.run(inputs, given)  # type: ignore[arg-type]
        check_kept(outputs, given)
        for place, readers in moves:
            outputs[place] = given[place]
            for target, slot in readers:
                target[slot] = outputs[place]

    def _find_makers(self) -> list[tuple[list[Array | None], int] | None]:
        """For each wanted tensor the outputs of the step that makes it, and its place there."""
        found = {
            tensor: (outputs, place)
            for (_, _, outputs), step in zip(self.steps, self.plan.steps, strict=True)
            for place, tensor in enumerate(step.outputs)
        }
        return [found.get(t) for t in self.wanted]

    def _collect(self) -> None:
        """Results in the order in which they are wanted; what no step computes is passed on."""
        self._copies, results = [], []
        for tensor, given, maker in zip(self.wanted, self._given, self._makers, strict=True):
            value = None if maker is None else maker[0][maker[1]]
            if value is None:
                value = self._array(tensor)
                value = tensor.values if value is None else value
                given = np.empty(value.shape, value.dtype) if given is None else given
            if given is not None and given is not value:
                self._copies.append((given, value))
                with span("copy a result", "copy", {"tensor": tensor.name, "bytes": value.nbytes}):
                    _copy_into(given, value, tensor)
                value = given
            results.append(value)
        self.outputs = results


def _copy_into(given: Array, value: Array, tensor: Tensor) -> None:
    if given.shape != value.shape:
        raise InputError(
            f"the bound buffer has shape {given.shape}, the result {value.shape}",
            where=f"output '{tensor.name}'",
            fix="bind a buffer of that shape, or none for an output whose shape varies",
        )
    np.copyto(given, value)


def bind_outputs(plan: Plan, inputs: Sequence[Array]) -> Binding:
    """A binding whose results are the graph's outputs, in order, where the arena has them."""
    return Binding(plan, inputs, [None] * len(plan.graph.outputs), plan.graph.outputs)
