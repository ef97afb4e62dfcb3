"""From a graph and the shapes of its inputs to something that runs: specialise, partition, compile,
allocate."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..config import MAX_MEMORY
from ..errors import DelegateError, FallbackWarning, InputError, SanderlingError
from ..ir import Array, DType, Graph, Op, Shape, Tensor
from ..ir.graph import copy_graph
from ..progress import plural
from ..spans import Span, hold, instant, span, tape
from .arena import ALIGNMENT, ArenaPlan, Item, plan
from .delegate import (
    Delegate,
    Executable,
    Limits,
    Options,
    Part,
    Partition,
    Refusal,
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
        # It is what the caller gives, whatever the file holds for it.
        tensor.shape, tensor.signature = tuple(shape), None
        tensor.buffer, tensor.sparsity = None, None
        specs[tensor] = Spec(tensor.dtype, tensor.shape)
    for op in made.ops:
        # A constant or a variable is as the file says.
        given = [None if t is None else specs.get(t) or Spec(t.dtype, t.shape, t.data)
                 for t in op.inputs]  # fmt: skip
        for tensor, spec in zip(op.outputs, infer(op, given), strict=True):
            specs[tensor] = spec
            tensor.is_variable = False  # it is computed in every run
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
    # What runs while nobody records, where another stands in for it now.
    plain: Executable | None = None


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
    # Makes it anew. While runs are recorded, executables that tell of their steps stand in.
    again: Callable[[], Plan | None] | None = None
    tells: bool = field(default_factory=lambda: tape.recorder is not None)
    _memory: Array | None = None
    _called: tuple[list[Array], Binding] | None = None
    _looped: tuple[Plan, Loop | None] | None = None

    @property
    def held(self) -> int:
        """Bytes of its arena, and of what callers' arrays are copied to."""
        given = (*self.graph.inputs, *self.graph.outputs)
        return self.arena.size + sum(_unpacked_bytes(t) for t in given if has_storage(t))

    def let_go(self) -> None:
        """Of what refers back to it, so that it goes when its last user does."""
        self._called = self._looped = None

    def array(self, tensor: Tensor) -> Array | None:
        """This tensor's place in the arena, as a view; None if it has none."""
        place = self.arena.offsets.get(tensor)
        if place is None:
            return None
        if self._memory is None:
            self._memory = _aligned_bytes(self.arena.size)
            hold(self, "arena (bytes)", self.arena.size)
        raw = self._memory[place : place + _unpacked_bytes(tensor)]
        return raw.view(tensor.dtype.numpy).reshape(tensor.shape)

    def memory(self) -> dict[str, int]:
        """Bytes that the plan holds, by what they are for; executables may have memory() too."""
        arena = 0 if self._memory is None else self._memory.nbytes
        found = {"arena": arena + sum(a.nbytes for a in self.variables.values())}
        for step in self.steps:
            tell = getattr(step.executable, "memory", dict)
            for name, size in tell().items():
                found[name] = found.get(name, 0) + size
        return found

    def tell(self) -> None:
        """Run what tells of its steps from now on."""
        self._called = self._looped = None
        other = None if self.tells or self.again is None else self.again()
        self.tells = True
        if other is not None and len(other.steps) == len(self.steps):
            for step, telling in zip(self.steps, other.steps, strict=True):
                step.executable, step.plain = telling.executable, step.executable

    def hush(self) -> None:
        """Nobody listens any more."""
        self.tells, self._called, self._looped = False, None, None
        for step in self.steps:
            step.executable, step.plain = step.plain or step.executable, None

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array | None]) -> Binding:
        """A binding whose results are the graph's outputs, in order."""
        return Binding(self, inputs, outputs, self.graph.outputs)

    def loop(self, condition: Plan, arrays: Sequence[Array]) -> list[Array] | None:
        """The values at which the condition, a plan for the same shapes, no longer holds; None if
        types or shapes may change on the way there."""
        if tape.recorder is not None:
            return None
        if self._looped is None or self._looped[0] is not condition:
            able = self._is_loop(condition)
            self._looped = condition, Loop(condition, self, arrays) if able else None
        loop = self._looped[1]
        return None if loop is None else loop.run(arrays)

    def _is_loop(self, condition: Plan) -> bool:
        ends = condition.graph.outputs
        known = [has_storage(t) or t in self.graph.inputs for t in (*self.graph.outputs, *ends)]
        one = [prod(t.shape) for t in ends] == [1] and ends[0].dtype is DType.BOOL
        types = [[(t.dtype, t.shape) for t in tensors]
                 for tensors in (self.graph.inputs, self.graph.outputs)]  # fmt: skip
        return one and all(known) and types[0] == types[1]

    def call(self, arrays: Sequence[Array]) -> list[Array]:
        """The results for these arrays, as arrays of their own: how control flow runs a graph, time
        and again, so that what the arrays are bound to is kept."""
        if self._called is None or tape.recorder is not None:
            inputs = [np.empty(a.shape, a.dtype) for a in arrays]
            self._called = inputs, self.bind(inputs, [None] * len(self.graph.outputs))
        inputs, binding = self._called
        for target, source in zip(inputs, arrays, strict=True):
            np.copyto(target, source)
        return [a.copy() for a in binding.run()]


class Loop:
    """A condition and a body on the same arrays: what the body gives goes back into them."""

    def __init__(self, condition: Plan, body: Plan, arrays: Sequence[Array]) -> None:
        self._values = [np.empty(a.shape, a.dtype) for a in arrays]
        self._condition = condition.bind(self._values, [None])
        self._body = body.bind(self._values, [None] * len(arrays))

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        self._set(arrays)
        while self._condition.run()[0].item():
            self._set(self._body.run())
        return [a.copy() for a in self._values]

    def _set(self, arrays: Sequence[Array]) -> None:
        for target, source in zip(self._values, arrays, strict=True):
            np.copyto(target, source)


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
        # An input that is a variable too: what the caller gives is its value before each run.
        self._fed = [(plan.variables[t], a) for t, a in zip(plan.graph.inputs, inputs, strict=True)
                     if t in plan.variables and plan.variables[t] is not a]  # fmt: skip
        self.steps = [
            (s.executable.run, [self._array(t) for t in s.inputs],
             [self._array(t) for t in s.outputs])
            for s in plan.steps
        ]  # fmt: skip
        self._moves = [list(self._late_values(i)) for i in range(len(self.steps))]
        self._given = list(outputs)
        self._makers = self._find_makers()
        self.outputs: list[Array] = []
        # Where no array changes between runs, all that a second run does is to make these calls and
        # to copy what no step writes where it is wanted.
        self._is_static = False
        self._calls: list[Callable[[], None]] = []
        self._copies: list[tuple[Array, Array]] = []  # target, source
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
        for variable, array in self._fed:
            np.copyto(variable, array)
        shared = self.plan.resources
        if shared is not None and shared.state.version != self._version:
            self._calls, self._is_static = [], False
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
        for target, source in self._copies:
            np.copyto(target, source)
        return self.outputs.copy()

    def only_call(self) -> Callable[[], None] | None:
        """All that a further run has to do, if it is one call."""
        alone = self._is_static and len(self.steps) == 1 and not self._fed
        if not alone or self.plan.resources is not None:
            return None
        if self._copies:
            return None
        run, inputs, outputs = self.steps[0]
        bind = getattr(getattr(run, "__self__", None), "bind", None)
        return None if bind is None else bind(inputs, outputs)

    def follow(self) -> None:
        """Recording has begun or ended."""
        self._is_static, self._calls = False, []
        self._renew()

    def _renew(self) -> None:
        """Take the executables that the plan has now."""
        self.steps = [(s.executable.run, inputs, outputs) for s, (_, inputs, outputs)
                      in zip(self.plan.steps, self.steps, strict=True)]  # fmt: skip

    def _first_run(self) -> list[Array]:
        """Also every other run of a plan whose arrays are made anew or copied in each, and every
        run that is recorded."""
        if tape.recorder is None:
            return self._run_steps()
        self.plan.tell()
        self._renew()
        with span("invoke", "run", {"graph": self.plan.graph.name}):
            return self._run_steps()

    def _run_steps(self) -> list[Array]:
        index = 0
        try:
            for index, (run, inputs, outputs) in enumerate(self.steps):
                for place, _ in self._moves[index]:
                    outputs[place] = None
                if tape.recorder is None:
                    run(inputs, outputs)  # type: ignore[arg-type]
                else:
                    tell_border(self.plan.steps, index)
                    with part_span(self.plan.steps[index], index):
                        run(inputs, outputs)  # type: ignore[arg-type]
                for place, readers in self._moves[index]:
                    for target, slot in readers:
                        target[slot] = outputs[place]
        except Exception as error:
            self.blame(index, error)
        results = self._collect()
        self._is_static = not any(self._moves) and tape.recorder is None
        return results

    def blame(self, index: int, error: Exception) -> NoReturn:
        """Re-raise with the place: what a delegate raises is a DelegateError for the user."""
        if isinstance(error, SanderlingError) and error.where:
            raise error
        part = self.plan.steps[index].part
        ops = f"{plural(len(part.ops), 'op')} from {part.ops[0].where}"
        where = f"part {index} ({ops}) on '{part.delegate.name}'"
        if isinstance(error, SanderlingError):
            error.where = where
            raise error
        raise DelegateError(f"it failed with {type(error).__name__}: {error}", where=where,
                            fix="leave this delegate out, and report the failure to its author",
                            ) from error  # fmt: skip

    def _find_makers(self) -> list[tuple[list[Array | None], int] | None]:
        """For each wanted tensor the outputs of the step that makes it, and its place there."""
        found = {t: (outs, place)
                 for (_, _, outs), s in zip(self.steps, self.plan.steps, strict=True)
                 for place, t in enumerate(s.outputs)}  # fmt: skip
        return [found.get(t) for t in self.wanted]

    def _collect(self) -> list[Array]:
        """Outputs in the graph's order; what no step computes is passed through."""
        self._copies, results = [], []
        for tensor, given, maker in zip(self.wanted, self._given, self._makers, strict=True):
            value = None if maker is None else maker[0][maker[1]]
            if value is None:
                value = self._array(tensor)
                value = tensor.data if value is None else value
                assert value is not None
                given = np.empty(value.shape, value.dtype) if given is None else given
            if given is not None and given is not value:
                self._copies.append((given, value))
                with span("copy a result", "copy", {"tensor": tensor.name, "bytes": value.nbytes}):
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


def part_span(step: Step, index: int) -> Span:
    part, workers = step.part, getattr(step.executable, "workers", 1)
    name = part.delegate.name
    return span(f"part {index} on {name}", "part",
                {"delegate": name, "ops": len(part.nodes), "workers": workers})  # fmt: skip


def tell_border(steps: Sequence[Step], index: int) -> None:
    """Say which values come from parts on other delegates."""
    mine = steps[index].part
    for place, other in enumerate(steps[:index]):
        crossing = [t for t in steps[index].inputs if t in other.outputs]
        if crossing:
            size = sum(_unpacked_bytes(t) for t in crossing if has_storage(t))
            instant(f"border: part {place} to part {index}", "border", {
                "from": other.part.delegate.name, "to": mine.delegate.name, "bytes": size,
                "tensors": [t.name for t in crossing]})  # fmt: skip


# Ops that are left out one by one: each costs another attempt at what is behind it.
MOST_LEFT_OUT = 16


class Planner:
    """Makes plans for one session's graphs."""

    def __init__(self, delegates: Sequence[Delegate], limits: Limits, options: Options,
                 require_full: bool, variables: dict[Tensor, Array]) -> None:  # fmt: skip
        self.delegates = list(delegates)
        self.limits = limits
        self.options = options
        self.require_full = require_full
        self.variables = variables  # by the original graph's tensor: they outlive a plan
        self._told: set[str] = set()  # what was warned of: plans for other shapes fail alike

    def plan(self, graph: Graph, shapes: Sequence[Shape]) -> Plan:
        from ..passes.simplify import fold_constants
        from .resources import lift

        with span("infer shapes", "plan", {"ops": len(graph.ops)}):
            special, twins = specialise(graph, shapes)
        numbers = {op: i for i, op in enumerate(special.ops)}
        _check_memory(special)
        if not self.limits.single_ops:
            # Weights that are stored as float16 or sparse are constants to every delegate.
            with span("fold constants", "pass"):
                fold_constants(special)
        resources = None
        if not self.limits.single_ops and len(self.delegates) > 1:
            resources = lift(special, self.options.state)
        found, steps = self._compile(special, numbers)
        with span("allocate tensors", "allocate") as told:
            arena = plan_borders(special, steps, self.limits.single_ops)
            told.note({"tensors": len(arena.offsets), "bytes": arena.size})
        made = Plan(special, found, steps, arena, twins, resources=resources)
        for tensor, twin in twins.items():
            if twin.is_variable:
                made.variables[twin] = self._variable(tensor, twin.shape)
        return made

    def _variable(self, tensor: Tensor, shape: Shape) -> Array:
        """A variable that is an input takes the shape that the caller gives it."""
        from ..ops.execute import initial_value

        found = self.variables.get(tensor)
        if found is None or found.shape != shape:
            found = self.variables[tensor] = initial_value(tensor, shape)
        return found

    def _compile(self, graph: Graph, numbers: Mapping[Op, int]) -> tuple[Partition, list[Step]]:
        """Partition and compile; what fails is refused to its delegate, and all is shared out
        again. What was compiled is kept for parts that come out the same. numbers: the ops'
        places in the file's graph."""
        failed: dict[Op, list[Refusal]] = {}
        errors: dict[str, DelegateError] = {}  # the first of each delegate that failed
        compiled: dict[tuple[object, ...], Executable] = {}
        while True:
            with span("partition", "partition") as told:
                found = partition(graph, self.delegates, self.limits, failed)
                told.note({"ops": len(graph.ops), "parts": [_part_text(p) for p in found.parts]})
            if self.require_full:
                self._check_full(graph, found)
            for part in found.parts:
                part.nodes = [numbers.get(op, -1) for op in part.ops]
                if part.key not in compiled:
                    try:
                        compiled[part.key] = self._executable(graph, part)
                    except DelegateError as error:
                        self._give_up(part, error, failed)
                        errors.setdefault(part.delegate.name, error)
            if all(part.key in compiled for part in found.parts):
                _tell_refusals(found)
                self._warn(errors, failed)
                return found, [Step(p, compiled[p.key], p.inputs, p.outputs) for p in found.parts]

    def _executable(self, graph: Graph, part: Part) -> Executable:
        own, _ = copy_graph(graph, part.ops, part.inputs, part.outputs)
        about = {"delegate": part.delegate.name, "ops": len(part.ops)}
        try:
            with span(f"compile for {part.delegate.name}", "compile", about):
                made = part.delegate.compile(own, self.options)
            return name_steps(made, part.nodes)
        except SanderlingError:
            raise
        except Exception as error:
            raise DelegateError(f"compiling failed with {type(error).__name__}: {error}",
                                where=f"delegate '{part.delegate.name}'",
                                fix="report it to the delegate's author") from error  # fmt: skip

    def _give_up(self, part: Part, error: DelegateError, failed: dict[Op, list[Refusal]]) -> None:
        """Remember that this delegate failed on these ops, or re-raise if nobody is left. The ops
        that it names are left out; the whole part, if that has not helped often enough."""
        if self.require_full or part.delegate is self.delegates[-1]:
            raise error
        refusal = Refusal(part.delegate.name, f"it failed to compile them: {error.what}")
        at_fault = error.ops if len(failed) < MOST_LEFT_OUT else ()
        named = [op for place, op in enumerate(part.ops) if place in at_fault]
        for op in named or part.ops:
            failed.setdefault(op, []).append(refusal)

    def _warn(self, errors: Mapping[str, DelegateError], failed: Mapping[Op, list[Refusal]]
              ) -> None:  # fmt: skip
        """Say of each delegate once what it could not do."""
        for name, error in errors.items():
            count = sum(any(r.delegate == name for r in refusals) for refusals in failed.values())
            text = (f"delegate '{name}' could not compile {plural(count, 'op')}, which "
                    f"{'runs' if count == 1 else 'run'} elsewhere: {error}")  # fmt: skip
            if text not in self._told:
                self._told.add(text)
                warnings.warn(text, FallbackWarning, stacklevel=2)

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


def name_steps(executable: Executable, nodes: Sequence[int]) -> Executable:
    """Tell an executable that speaks of its ops which ops of the file they are."""
    if hasattr(executable, "nodes"):
        executable.nodes = nodes
    return executable


def _part_text(part: Part) -> str:
    return f"{plural(len(part.ops), 'op')} on {part.delegate.name}"


def _tell_refusals(found: Partition) -> None:
    if tape.recorder is None:
        return
    home = {op: (part, place) for part in found.parts for place, op in enumerate(part.ops)}
    for op, refusals in found.refusals.items():
        part, place = home[op]
        for refusal in refusals:
            instant(f"{refusal.delegate} refuses {op.name}", "refusal", {
                "op": op.name, "node": part.nodes[place], "writes": op.where,
                "delegate": refusal.delegate, "runs on": part.delegate.name,
                "reason": refusal.reason})  # fmt: skip


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
