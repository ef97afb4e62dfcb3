"""From a graph and the shapes of its inputs to something that runs: specialise, partition, compile,
allocate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..config import MAX_MEMORY
from ..errors import DelegateError, FallbackWarning, InputError, SanderlingError
from ..ir import Array, Graph, Op, Shape, Tensor
from .arena import ALIGNMENT, ArenaPlan, Item, plan
from .delegate import (
    Delegate,
    Executable,
    Limits,
    Options,
    Part,
    Partition,
    Refusal,
    copy_graph,
    partition,
)  # fmt: skip

if TYPE_CHECKING:
    from ..ops import Spec
    from .resources import Resources

# What operators mean is not needed to run what is planned already: it is imported in functions.
UNKNOWN_SHAPE = (-1,)


def specialise(graph: Graph, shapes: Sequence[Shape]) -> tuple[Graph, dict[Tensor, Tensor]]:
    """A copy of the graph with every tensor's shape worked out from these input shapes.

    A tensor whose shape depends on data is marked dynamic. Also returns original -> copy.
    """
    from ..ops import Spec, infer

    made, twins = copy_graph(graph, graph.ops, graph.inputs, graph.outputs)
    specs: dict[Tensor, Spec] = {}
    for tensor, shape in zip(made.inputs, shapes, strict=True):
        tensor.shape, tensor.signature = tuple(shape), None
        specs[tensor] = Spec(tensor.dtype, tensor.shape)
    for op in made.ops:
        # A constant or a variable is as the file says.
        given = [None if t is None else specs.get(t) or Spec(t.dtype, t.shape, t.data)
                 for t in op.inputs]  # fmt: skip
        for tensor, spec in zip(op.outputs, infer(op, given), strict=True):
            specs[tensor] = spec
            _set_shape(tensor, spec)
    return made, twins


def _set_shape(tensor: Tensor, spec: Spec) -> None:
    if spec.shape is None:
        tensor.shape, tensor.signature = (0,), UNKNOWN_SHAPE
    else:
        tensor.shape, tensor.signature = spec.shape, None


def has_storage(tensor: Tensor) -> bool:
    """It gets a place in the arena: fixed size, known shape, not a constant or variable."""
    return not (tensor.is_dynamic or tensor.is_constant or tensor.is_variable) and (
        tensor.dtype.is_fixed_size
    )


@dataclass(eq=False)
class Step:
    """A compiled part and the tensors at its border."""

    part: Part
    executable: Executable
    inputs: list[Tensor]
    outputs: list[Tensor]


@dataclass(eq=False)
class Plan:
    """One graph at one set of input shapes, ready to be bound to arrays."""

    graph: Graph
    partition: Partition
    steps: list[Step]
    arena: ArenaPlan[Tensor]
    twins: dict[Tensor, Tensor]
    variables: dict[Tensor, Array] = field(default_factory=dict)
    resources: Resources | None = None
    # Otherwise it came from a record: it runs, but the graph is a shell without the real ops.
    is_whole: bool = True
    _memory: Array | None = None

    def array(self, tensor: Tensor) -> Array | None:
        """This tensor's place in the arena, as a view; None if it has none."""
        place = self.arena.offsets.get(tensor)
        if place is None:
            return None
        if self._memory is None:
            self._memory = _aligned_bytes(self.arena.size)
        raw = self._memory[place : place + _unpacked_bytes(tensor)]
        return raw.view(tensor.dtype.numpy).reshape(tensor.shape)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> Binding:
        """A binding whose results are the graph's outputs, in order."""
        return Binding(self, inputs, outputs, self.graph.outputs)


def _aligned_bytes(size: int) -> Array:
    """Zeroed memory whose first byte lies on an arena boundary."""
    block = np.zeros(size + ALIGNMENT, np.uint8)
    skip = -block.ctypes.data % ALIGNMENT
    return block[skip : skip + size]


class Binding:
    """A plan with its arrays in place: `run` is one call a step and nothing else.

    inputs are read where they lie. A wanted tensor is written into the array given for it, or,
    where None is given, into its arena place; one of unknown shape appears in `outputs` after the
    run. A tensor may be wanted more than once.
    """

    def __init__(self, plan: Plan, inputs: Sequence[Array], outputs: Sequence[Array | None],
                 wanted: Sequence[Tensor]) -> None:  # fmt: skip
        self.plan = plan
        self.wanted = wanted
        arrays: dict[Tensor, Array | None] = dict(zip(plan.graph.inputs, inputs, strict=True))
        for tensor, array in zip(wanted, outputs, strict=True):
            if array is not None and tensor.producer is not None and tensor not in arrays:
                arrays[tensor] = array
        self._arrays = arrays
        self.steps = [
            (s.executable.run, [self._array(t) for t in s.inputs],
             [self._array(t) for t in s.outputs])
            for s in plan.steps
        ]  # fmt: skip
        self._moves = [list(self._late_values(i)) for i in range(len(self.steps))]
        self._given = list(outputs)
        self.outputs: list[Array] = []
        # Where no array changes between runs, all that a second run does is to make these calls.
        self._is_static = False
        self._calls: list[Callable[[], None]] = []
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
                yield place, [(self.steps[later][1], slot)
                              for later in range(index + 1, len(steps))
                              for slot, read in enumerate(steps[later].inputs)
                              if read is tensor]  # fmt: skip

    def run(self) -> list[Array]:
        shared = self.plan.resources
        if shared is not None and shared.state.version != self._version:
            self._calls = []
            self._version = shared.settle(
                [(s.inputs, arrays) for s, (_, arrays, _) in zip(self.plan.steps, self.steps,
                                                                 strict=True)])  # fmt: skip
        if not self._is_static:
            return self._first_run()
        if not self._calls:
            self._calls = [_bound(*step) for step in self.steps]
        call = None
        try:
            for call in self._calls:
                call()
        except Exception as error:
            self.blame(next(i for i, c in enumerate(self._calls) if c is call), error)
        return self.outputs.copy()

    def only_call(self) -> Callable[[], None] | None:
        """All that a further run has to do, if it is one call."""
        if not self._is_static or self.plan.resources is not None or len(self.steps) != 1:
            return None
        run, inputs, outputs = self.steps[0]
        bind = getattr(getattr(run, "__self__", None), "bind", None)
        return None if bind is None else bind(inputs, outputs)

    def _first_run(self) -> list[Array]:
        """Also every other run of a plan whose arrays are made anew or copied in each."""
        index = 0
        try:
            for index, (run, inputs, outputs) in enumerate(self.steps):
                for place, _ in self._moves[index]:
                    outputs[place] = None
                run(inputs, outputs)  # type: ignore[arg-type]
                for place, readers in self._moves[index]:
                    for target, slot in readers:
                        target[slot] = outputs[place]
        except Exception as error:
            self.blame(index, error)
        results = self._collect()
        self._is_static = not any(self._moves) and self._results_are_in_place(results)
        return results

    def _results_are_in_place(self, results: Sequence[Array]) -> bool:
        written = [a for _, _, outputs in self.steps for a in outputs]
        return all(any(a is w for w in written) for a in results)

    def blame(self, index: int, error: Exception) -> NoReturn:
        """Re-raise with the place: what a delegate raises is a DelegateError for the user."""
        if isinstance(error, SanderlingError) and error.where:
            raise error
        part = self.plan.steps[index].part
        where = (
            f"part {index} ({len(part.ops)} ops from {part.ops[0].where}) on '{part.delegate.name}'"
        )
        if isinstance(error, SanderlingError):
            error.where = where
            raise error
        raise DelegateError(f"it failed with {type(error).__name__}: {error}", where=where,
                            fix="leave this delegate out, and report the failure to its author",
                            ) from error  # fmt: skip

    def _collect(self) -> list[Array]:
        """Outputs in the graph's order; what no step computes is passed through."""
        made = {t: a for (_, _, outs), s in zip(self.steps, self.plan.steps, strict=True)
                for t, a in zip(s.outputs, outs, strict=True)}  # fmt: skip
        results = []
        for tensor, given in zip(self.wanted, self._given, strict=True):
            value = made.get(tensor)
            if value is None:
                value = self._array(tensor)
                value = tensor.data if value is None else value
                assert value is not None
                value = value.copy() if given is None else value
            if given is not None and given is not value:
                _copy_into(given, value, tensor)
                value = given
            results.append(value)
        self.outputs = list(results)
        return results


def _bound(run: Callable[[Sequence[Array], list[Array | None]], None], inputs: list[Array | None],
           outputs: list[Array | None]) -> Callable[[], None]:  # fmt: skip
    """The step as a call without arguments; an executable that can prepare one does."""
    bind = getattr(getattr(run, "__self__", None), "bind", None)
    made: Callable[[], None] = (bind or partial(partial, run))(inputs, outputs)
    return made


def _copy_into(given: Array, value: Array, tensor: Tensor) -> None:
    if given.shape != value.shape:
        raise InputError(
            f"the bound buffer has shape {given.shape}, the result {value.shape}",
            where=f"output '{tensor.name}'",
            fix="bind a buffer of that shape, or none for an output whose shape varies",
        )
    np.copyto(given, value)


class Planner:
    """Makes plans for one session's graphs."""

    def __init__(self, delegates: Sequence[Delegate], limits: Limits, options: Options,
                 require_full: bool, variables: dict[Tensor, Array]) -> None:  # fmt: skip
        self.delegates = list(delegates)
        self.limits = limits
        self.options = options
        self.require_full = require_full
        self.variables = variables  # by the original graph's tensor: they outlive a plan

    def plan(self, graph: Graph, shapes: Sequence[Shape]) -> Plan:
        from ..passes.simplify import fold_constants
        from .resources import lift

        special, twins = specialise(graph, shapes)
        if not self.limits.single_ops:
            # Weights that are stored as float16 or sparse are constants to every delegate.
            fold_constants(special)
        resources = None
        if not self.limits.single_ops and len(self.delegates) > 1:
            resources = lift(special, self.options.state)
        _check_memory(special)
        found, steps = self._compile(special)
        made = Plan(special, found, steps, plan_borders(special, steps, self.limits.single_ops),
                    twins, resources=resources)  # fmt: skip
        for tensor, twin in twins.items():
            if tensor.is_variable:
                made.variables[twin] = self._variable(tensor)
        return made

    def _variable(self, tensor: Tensor) -> Array:
        from ..ops.execute import initial_value

        if tensor not in self.variables:
            self.variables[tensor] = initial_value(tensor)
        return self.variables[tensor]

    def _compile(self, graph: Graph) -> tuple[Partition, list[Step]]:
        """Partition and compile; a part that fails is refused to its delegate, and all is shared
        out again. What was compiled is kept for parts that come out the same."""
        failed: dict[Op, list[Refusal]] = {}
        compiled: dict[tuple[object, ...], Executable] = {}
        while True:
            found = partition(graph, self.delegates, self.limits, failed)
            if self.require_full:
                self._check_full(graph, found)
            for part in found.parts:
                if part.key not in compiled:
                    try:
                        compiled[part.key] = self._executable(graph, part)
                    except DelegateError as error:
                        self._give_up(part, error, failed)
            if all(part.key in compiled for part in found.parts):
                return found, [Step(p, compiled[p.key], p.inputs, p.outputs) for p in found.parts]

    def _executable(self, graph: Graph, part: Part) -> Executable:
        own, _ = copy_graph(graph, part.ops, part.inputs, part.outputs)
        try:
            return part.delegate.compile(own, self.options)
        except SanderlingError:
            raise
        except Exception as error:
            raise DelegateError(f"compiling failed with {type(error).__name__}: {error}",
                                where=f"delegate '{part.delegate.name}'",
                                fix="report it to the delegate's author") from error  # fmt: skip

    def _give_up(self, part: Part, error: DelegateError, failed: dict[Op, list[Refusal]]) -> None:
        """Remember that this delegate failed on these ops, or re-raise if nobody is left."""
        if self.require_full or part.delegate is self.delegates[-1]:
            raise error
        warnings.warn(
            f"delegate '{part.delegate.name}' could not compile {len(part.ops)} ops and they run "
            f"elsewhere: {error}", FallbackWarning, stacklevel=2,
        )  # fmt: skip
        refusal = Refusal(part.delegate.name, f"it failed to compile them: {error.what}")
        for op in part.ops:
            failed.setdefault(op, []).append(refusal)

    def _check_full(self, graph: Graph, found: Partition) -> None:
        first = self.delegates[0]
        strangers = [op for part in found.parts if part.delegate is not first for op in part.ops]
        if strangers or len(found.parts) > 1:
            reasons = [f"{op.where}: {found.refusals[op][0].reason}" for op in strangers[:5]
                       if op in found.refusals]  # fmt: skip
            more = f" (and {len(strangers) - 5} more)" if len(strangers) > 5 else ""
            change = f", or change these ops: {'; '.join(reasons)}{more}" if reasons else ""
            raise DelegateError(
                f"'{first.name}' does not run the whole graph: {len(strangers)} of "
                f"{len(graph.ops)} ops are left out, {len(found.parts)} parts",
                where=f"graph '{graph.name}'",
                fix=f"leave out require_full_delegation{change}",
            )


def _check_memory(graph: Graph) -> None:
    most = MAX_MEMORY.size()
    for tensor in graph.tensors:
        size = tensor.dtype.nbytes(tensor.shape)
        if size > most:
            raise InputError(
                f"it would take {size} bytes, more than the limit of {most}",
                where=f"tensor '{tensor.name}' {tensor.type_text}",
                fix=f"use smaller input shapes, or set {MAX_MEMORY.name}",
            )


def plan_borders(graph: Graph, steps: Sequence[Step], keep: bool) -> ArenaPlan[Tensor]:
    """Places for what crosses a border. Inputs keep theirs for the whole run, so that they can be
    set once and run again; with `keep` all do, so that they can be looked at."""
    end = len(steps)
    first: dict[Tensor, int] = dict.fromkeys(graph.inputs, 0)
    last: dict[Tensor, int] = dict.fromkeys(graph.inputs, end)
    for index, step in enumerate(steps):
        for tensor in step.outputs:
            first.setdefault(tensor, index)
        for tensor in (*step.inputs, *step.outputs):
            last[tensor] = max(index, last.get(tensor, 0))
    last |= dict.fromkeys((t for t in (first if keep else graph.outputs) if t in first), end)
    items = [Item(t, _unpacked_bytes(t), first[t], last[t]) for t in first if has_storage(t)]
    made = plan(items)
    if made.size > MAX_MEMORY.size():
        raise InputError(
            f"the tensors take {made.size} bytes, more than the limit of {MAX_MEMORY.size()}",
            where=f"graph '{graph.name}'",
            fix=f"use smaller input shapes, or set {MAX_MEMORY.name}",
        )
    return made


def _unpacked_bytes(tensor: Tensor) -> int:
    return tensor.dtype.numpy.itemsize * prod(tensor.shape)
