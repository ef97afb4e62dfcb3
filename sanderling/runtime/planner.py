"""From a graph and the shapes of its inputs to a plan: partition, compile, allocate."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..errors import DelegateError, FallbackWarning, SanderlingError
from ..ir import Array, Graph, Op, Shape, Tensor
from ..ir.graph import copy_graph
from ..ops import State
from ..ops.execute import initial_value
from ..progress import plural
from ..spans import span
from .delegate import Executable, Options, as_executable
from .partition import Part, Partition, Refusal, partition
from .partitionable import partitionable
from .plan import Plan, Step, plan_borders
from .plan_executable import PlanExecutable
from .plan_recording import tell_refusals
from .settings import Settings

# Ops that are left out one by one: each costs another attempt at what is behind it.
MOST_LEFT_OUT = 16


class Planner:
    """Makes plans for one session's graphs."""

    def __init__(self, settings: Settings, state: State, variables: dict[Tensor, Array]) -> None:
        """variables: by the original graph's tensor; they outlive a plan."""
        self._settings = settings
        self.delegates, self.limits = settings.delegates, settings.limits
        self.require_full = settings.require_full
        self.options = Options(settings.threads, state, settings.extra)
        self.variables = variables
        self._told: set[str] = set()  # what was warned of: plans for other shapes fail alike

    def plan(self, graph: Graph, shapes: Sequence[Shape]) -> Plan:
        state, single = self.options.state, self.limits.single_ops
        ready = partitionable(graph, shapes, self.delegates, state, single)
        special, twins = ready.graph, ready.twins
        found, steps = self._compile(special, {op: i for i, op in enumerate(ready.ops)})
        with span("allocate tensors", "allocate") as told:
            arena = plan_borders(special, steps, single)
            told.note({"tensors": len(arena.offsets), "bytes": arena.size})
        made = Plan(special, found, steps, arena, twins, resources=ready.resources)
        for tensor, twin in twins.items():
            if twin.is_variable:
                made.variables[twin] = self._variable(tensor, twin.shape)
        return made

    def _variable(self, tensor: Tensor, shape: Shape) -> Array:
        """A variable that is an input takes the shape that the caller gives it."""
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
        compiled: dict[tuple[object, ...], Step] = {}
        while True:
            with span("partition", "partition") as told:
                found = partition(graph, self.delegates, self.limits, failed, numbers)
                told.note({"ops": len(graph.ops), "parts": [_part_text(p) for p in found.parts]})
            if self.require_full:
                self._check_full(graph, found)
            for part in found.parts:
                part.nodes = [numbers.get(op, -1) for op in part.ops]
                if part.key not in compiled:
                    try:
                        made = self._executable(graph, part)
                        compiled[part.key] = Step(part, made, part.inputs, part.outputs)
                    except DelegateError as error:
                        self._give_up(part, error, failed)
                        errors.setdefault(part.delegate.name, error)
            if all(part.key in compiled for part in found.parts):
                steps = [compiled[part.key] for part in found.parts]
                found.parts = [step.part for step in steps]  # what executables were made of
                tell_refusals(found)
                self._warn(errors, failed)
                return found, steps

    def _executable(self, graph: Graph, part: Part) -> Executable:
        own, _ = copy_graph(graph, part.ops, part.inputs, part.outputs)
        about = {"delegate": part.delegate.name, "ops": len(part.ops)}
        insists = self.require_full or part.delegate is self.delegates[-1]
        options = replace(
            self.options,
            elsewhere=None if insists else partial(self._move, part),
            before=partial(ops_before, graph, part),
        )
        try:
            with span(f"compile for {part.delegate.name}", "compile", about):
                made = as_executable(part.delegate.compile(own, options))
            made.nodes = part.nodes
            return made
        except SanderlingError:
            raise
        except Exception as error:
            raise DelegateError(
                f"compiling failed with {type(error).__name__}: {error}",
                where=f"delegate '{part.delegate.name}'",
                fix="report it to the delegate's author",
            ) from error

    def _move(self, part: Part, graph: Graph, error: DelegateError) -> Executable:
        """The part on the other delegates, after a run of it has failed. graph: the part."""
        others = [d for d in self.delegates if d is not part.delegate]
        settings = replace(self._settings, delegates=others, limits=self.limits.lifted())
        # Variables are the caller's arrays, whatever this planner makes for them.
        planner = Planner(settings, self.options.state, {})
        plan = planner.plan(graph, [t.shape for t in graph.inputs])
        left, part.delegate = part.delegate, plan.partition.parts[0].delegate
        part.left = Refusal(left.name, error.what, has_failed=True)
        self._tell(
            f"a part of '{left.name}' runs on '{part.delegate.name}' from now on, because it "
            f"failed: {error}"
        )
        return PlanExecutable(plan)

    def _give_up(self, part: Part, error: DelegateError, failed: dict[Op, list[Refusal]]) -> None:
        """Remember that this delegate failed on these ops, or re-raise if nobody is left. The ops
        that it names are left out; the whole part, if that has not helped often enough."""
        if self.require_full or part.delegate is self.delegates[-1]:
            raise error
        why = f"it failed to compile them: {error.what}"
        refusal = Refusal(part.delegate.name, why, has_failed=True)
        at_fault = error.ops if len(failed) < MOST_LEFT_OUT else ()
        named = [op for place, op in enumerate(part.ops) if place in at_fault]
        for op in named or part.ops:
            failed.setdefault(op, []).append(refusal)

    def _warn(
        self, errors: Mapping[str, DelegateError], failed: Mapping[Op, list[Refusal]]
    ) -> None:
        """Say of each delegate once what it could not do."""
        for name, error in errors.items():
            count = sum(any(r.delegate == name for r in refusals) for refusals in failed.values())
            text = (
                f"delegate '{name}' could not compile {plural(count, 'op')}, which "
                f"{'runs' if count == 1 else 'run'} elsewhere: {error}"
            )
            self._tell(text)

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            warnings.warn(text, FallbackWarning, stacklevel=3)

    def _check_full(self, graph: Graph, found: Partition) -> None:
        first = self.delegates[0]
        strangers = [op for part in found.parts if part.delegate is not first for op in part.ops]
        if strangers or len(found.parts) > 1:
            reasons = [
                f"{op.where}: {found.refusals[op][0].reason}"
                for op in strangers[:5]
                if op in found.refusals
            ]
            more = f" (and {len(strangers) - 5} more)" if len(strangers) > 5 else ""
            change = f", or change these ops: {'; '.join(reasons)}{more}" if reasons else ""
            raise DelegateError(
                f"'{first.name}' does not run the whole graph: {len(strangers)} of "
                f"{len(graph.ops)} ops are left out, {plural(len(found.parts), 'part')}",
                where=f"graph '{graph.name}'",
                fix=f"leave out require_full_delegation{change}",
            )


def ops_before(graph: Graph, part: Part) -> Graph:
    """The ops that a part's inputs depend on, as a graph of its own."""
    wanted, needed = list(part.inputs), set[Op]()
    while wanted:
        producer = wanted.pop().producer
        if producer is not None and producer not in needed:
            needed.add(producer)
            wanted += [t for t in producer.inputs if t is not None]
    ops = [op for op in graph.ops if op in needed]
    return copy_graph(graph, ops, graph.inputs, part.inputs)[0]


def _part_text(part: Part) -> str:
    return f"{plural(len(part.ops), 'op')} on {part.delegate.name}"
