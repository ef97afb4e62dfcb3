"""A model planned ahead of time for one target: parts of machine code, and where their arguments
lie. The planner is the session's, so a library computes what a session on that target computes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..delegates.cpu.delegate import CpuDelegate
from ..delegates.cpu.isa.targets import Target
from ..delegates.cpu.runtime.division import most_workers
from ..delegates.cpu.runtime.executable import Compiled
from ..errors import DelegateError, FallbackWarning, UnsupportedError
from ..ir import Array, Graph, Op, Shape, Signature, Tensor
from ..ops import OPS, Spec
from ..ops.execute import new_state
from ..runtime.arena import ALIGNMENT, Item
from ..runtime.arena import plan as plan_arena
from ..runtime.delegate import Delegate, Executable, Options
from ..runtime.plan import Plan, Step
from ..runtime.planner import Planner
from ..runtime.registry import resolve
from ..runtime.settings import Settings

CUSTOM = "custom."


# -- delegates that compile and do not run --------------------------------------------------------


class Kept(Executable):
    """Compiled code for another place. Nobody runs it here."""

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        raise DelegateError("this code was built for a library")


class AheadDelegate(Delegate):
    """The compiler, for any row of the table: the code need not run here."""

    name = CpuDelegate.name

    def __init__(self, target: Target, timed: bool) -> None:
        self._cpu = CpuDelegate(timed=timed)
        self._cpu.target, self._cpu.problem = target, None

    def refuses(self, op: Op) -> str | None:
        return self._cpu.refuses(op)

    def refuses_each(self, ops: Sequence[Op]) -> list[str | None]:
        return self._cpu.refuses_each(ops)

    def compile(self, part: Graph, options: Options) -> Kept:
        return Kept(self._cpu.compiled(part))


class FunctionDelegate(Delegate):
    """Custom operators that the user has as functions in C, by custom code."""

    name = "c"

    def __init__(self, functions: Mapping[str, str]) -> None:
        self.functions = functions

    def refuses(self, op: Op) -> str | None:
        if function_of(op, self.functions) is None:
            return "it is no function in C"
        tensors = [*op.outputs, *(t for t in op.inputs if t is not None)]
        if any(t.is_dynamic or not t.dtype.is_fixed_size or t.dtype.is_packed for t in tensors):
            return "a function in C takes tensors whose sizes are known, of whole bytes"
        return None

    def infer(self, op: Op, specs: Sequence[Spec | None]) -> Sequence[Spec] | None:
        """The file says what the function gives."""
        if function_of(op, self.functions) is None:
            return None
        return [Spec(t.dtype, None if t.is_dynamic else t.shape) for t in op.outputs]

    def compile(self, part: Graph, options: Options) -> Executable:
        return _Called()


class _Called(Executable):
    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        raise DelegateError("this function is called by the library")


def function_of(op: Op, functions: Mapping[str, str]) -> str | None:
    return functions.get(op.name.removeprefix(CUSTOM)) if op.is_custom else None


# -- what cannot be built -------------------------------------------------------------------------


@dataclass(frozen=True)
class RefusedOp:
    """An op that cannot be built, with the reason and what to do about it."""

    op: str
    reason: str
    fix: str


class NotBuiltError(UnsupportedError):
    """The model cannot be built ahead of time; refused: every op that stands in the way."""

    refused: tuple[RefusedOp, ...] = ()


# Words of a reason, and what to do.
_FIXES = (
    ("strings", "do the work on text in the program, and give the model numbers"),
    ("a shape is not known", "state the shapes of inputs with --shape, or cut the model before it"),
    ("custom", "give it as a function in C: --custom NAME=function"),
)
_ELSEWHERE = "run this model with Python (sanderling run), or replace the op (sanderling rewrite)"
MOST_TOLD = 5


UNKNOWN_SHAPE = "a shape is not known before the run: it depends on data"


def _has_unknown(op: Op) -> bool:
    return any(t is not None and t.is_dynamic for t in (*op.inputs, *op.outputs))


def _refused(op: Op, reason: str) -> RefusedOp:
    said = f"custom: {reason}" if op.is_custom else reason
    fix = next((fix for words, fix in _FIXES if words in said), _ELSEWHERE)
    return RefusedOp(op.where, reason, fix)


def _not_built(graph: Graph, refused: Sequence[RefusedOp]) -> NotBuiltError:
    told = "; ".join(f"{r.op}: {r.reason}" for r in refused[:MOST_TOLD])
    more = f" (and {len(refused) - MOST_TOLD} more)" if len(refused) > MOST_TOLD else ""
    error = NotBuiltError(
        f"{len(refused)} of {len(graph.ops)} ops cannot be built ahead of time: {told}{more}",
        where=f"graph '{graph.name}'",
        fix="; ".join(dict.fromkeys(r.fix for r in refused)),
    )
    error.refused = tuple(refused)
    return error


# -- where values lie -----------------------------------------------------------------------------

NOWHERE, INPUT, OUTPUT, MEMORY, CONSTANT = range(5)  # as in runtime.c


@dataclass(frozen=True)
class ArgumentPlace:
    kind: int
    at: int = 0
    tensor: Tensor | None = None


@dataclass(frozen=True)
class Copy:
    to: ArgumentPlace
    source: ArgumentPlace
    nbytes: int


@dataclass(frozen=True)
class AheadPart:
    """Machine code, or a call of a function."""

    places: list[ArgumentPlace]
    input_count: int
    compiled: Compiled | None = None
    function: str = ""
    op: Op | None = None

    @property
    def most_workers(self) -> int:
        """As the delegate has it: workers that the work is worth."""
        return 1 if self.compiled is None else most_workers(self.compiled.works)


@dataclass
class Version:
    """A model for one target. state: variables as they begin; memory: bytes of them and of what
    lies between parts; inputs and outputs: as the plan has them, in the order of the interface."""

    target: Target
    parts: list[AheadPart] = field(default_factory=list)
    state: bytes = b""
    memory: int = 0
    constants: bytes = b""
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def compiled(self) -> list[Compiled]:
        return [p.compiled for p in self.parts if p.compiled is not None]


def plan_ahead(
    entry: Signature,
    shapes: Sequence[Shape],
    target: Target,
    functions: Mapping[str, str],
    timed: bool = False,
) -> Version:
    """The model for one target; NotBuiltError names the ops that stand in the way."""
    graph = entry.graph
    unknown = [
        _refused(op, "nobody has defined this operator")
        for op in graph.ops
        if op.is_custom and op.name not in OPS and function_of(op, functions) is None
    ]
    if unknown:
        raise _not_built(graph, unknown)
    ahead = AheadDelegate(target, timed)
    delegates = [FunctionDelegate(functions)] if functions else []
    settings = Settings([*delegates, ahead, *resolve(["reference"])])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # what falls back is refused below
        plan = Planner(settings, new_state(), {}).plan(graph, shapes)
    _check_built(graph, plan, ahead)
    return _Layout(entry, plan, target, functions).version()


def _check_built(graph: Graph, plan: Plan, ahead: Delegate) -> None:
    refused = []
    for step in plan.steps:
        if isinstance(step.executable, Kept | _Called):
            continue
        for op in step.part.ops:
            said = plan.partition.refusals.get(op, [])
            reason = next((r.reason for r in said if r.delegate == ahead.name), "it has no kernel")
            refused.append(_refused(op, UNKNOWN_SHAPE if _has_unknown(op) else reason))
    if refused:
        raise _not_built(graph, refused)


class _Layout:
    """Gives every value that crosses a border its place."""

    def __init__(
        self, entry: Signature, plan: Plan, target: Target, functions: Mapping[str, str]
    ) -> None:
        self.entry, self.plan, self.functions = entry, plan, functions
        self.inputs = plan.graph.inputs
        self.wanted = [plan.twins[t] for t in entry.outputs.values()]
        self.made = Version(target, inputs=list(self.inputs), outputs=self.wanted)
        self.places: dict[Tensor, ArgumentPlace] = {}
        self.constants = bytearray()

    def version(self) -> Version:
        calls = list(self._calls())
        for index, tensor in enumerate(self.inputs):
            self.places[tensor] = ArgumentPlace(INPUT, index, tensor)
        self._place_variables()
        written = {t for _, _, outputs in calls for t in outputs}
        for index, tensor in enumerate(self.wanted):
            if tensor in written:
                self.places.setdefault(tensor, ArgumentPlace(OUTPUT, index, tensor))
        self._place_borders(calls)
        self.made.parts = [self._part(*call) for call in calls]
        for index, tensor in enumerate(self.wanted):
            to, source = ArgumentPlace(OUTPUT, index), self._place(tensor)
            if (source.kind, source.at) != (to.kind, to.at):
                self.made.after.append(Copy(to, source, tensor.nbytes))
        self.made.constants = bytes(self.constants)
        return self.made

    def _calls(self) -> Sequence[tuple[Step | Op, Sequence[Tensor | None], Sequence[Tensor]]]:
        """Code, and functions one by one, in order, with what they read and write."""
        found: list[tuple[Step | Op, Sequence[Tensor | None], Sequence[Tensor]]] = []
        for step in self.plan.steps:
            if isinstance(step.executable, Kept):
                found.append((step, step.inputs, step.outputs))
            else:
                found += [(op, op.inputs, op.outputs) for op in step.part.ops]
        return found

    def _place_variables(self) -> None:
        """Variables lie in the memory of the instance, with their first values in the library."""
        arrays = dict(self.plan.variables)
        resources = self.plan.resources
        if resources is not None:
            tensors = list(resources.names)
            slots: list[Array | None] = [None] * len(tensors)
            resources.settle([(tensors, slots)])
            arrays |= {t: a for t, a in zip(tensors, slots, strict=True) if a is not None}
        state = bytearray()
        for tensor, array in arrays.items():
            fed = self.places.get(tensor)
            state += bytes(-len(state) % ALIGNMENT)
            self.places[tensor] = ArgumentPlace(MEMORY, len(state), tensor)
            if fed is not None:  # an input that is a variable: its value before each run
                self.made.before.append(Copy(self.places[tensor], fed, array.nbytes))
            state += np.ascontiguousarray(array).tobytes()
        self.made.state = bytes(state)

    def _place_borders(
        self, calls: Sequence[tuple[Step | Op, Sequence[Tensor | None], Sequence[Tensor]]]
    ) -> None:
        first: dict[Tensor, int] = {}
        last: dict[Tensor, int] = {}
        for index, (_, inputs, outputs) in enumerate(calls):
            for tensor in outputs:
                first.setdefault(tensor, index)
            last |= dict.fromkeys((t for t in (*inputs, *outputs) if t is not None), index)
        items = [Item(t, t.nbytes, first[t], last[t]) for t in first if t not in self.places]
        arena = plan_arena(items)
        begin = -(-len(self.made.state) // ALIGNMENT) * ALIGNMENT
        for tensor, at in arena.offsets.items():
            self.places[tensor] = ArgumentPlace(MEMORY, begin + at, tensor)
        self.made.memory = begin + arena.size

    def _place(self, tensor: Tensor | None) -> ArgumentPlace:
        if tensor is None:
            return ArgumentPlace(NOWHERE)
        if tensor not in self.places:
            self.constants += bytes(-len(self.constants) % ALIGNMENT)
            self.places[tensor] = ArgumentPlace(CONSTANT, len(self.constants), tensor)
            self.constants += np.ascontiguousarray(tensor.values).tobytes()
        return self.places[tensor]

    def _part(
        self, call: Step | Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]
    ) -> AheadPart:
        places = [self._place(t) for t in (*inputs, *outputs)]
        if isinstance(call, Op):
            name = function_of(call, self.functions)
            assert name is not None, "a plan has ops that have functions alone"
            return AheadPart(places, len(inputs), function=name, op=call)
        assert isinstance(call.executable, Kept)
        return AheadPart(places, len(inputs), call.executable.compiled)
