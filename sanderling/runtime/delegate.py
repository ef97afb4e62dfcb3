"""The delegate contract: all that the runtime asks of whoever runs a part of a graph.

Three methods are required: a delegate's `refuses` and `compile`, and the `run` of what it compiles
to. A plain class that has them is enough (`PlainDelegate`, `PlainExecutable`). All else is
optional: who wants to offer more inherits from `Delegate` or `Executable` and overrides methods of
the groups below (reasons, operators, device, options, caching; binding, caching, reporting). Every
optional method has its default here, and the default is right, only slower or less informative.

The rest of the package knows `Delegate` and `Executable` alone: `as_delegate` and `as_executable`
put the defaults around a plain class. docs/delegates.md has a complete example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from ..errors import DelegateError, InputError
from ..ir import Array, Graph, Op

if TYPE_CHECKING:
    from ..ops import Spec, State
    from ..ops.execute import Evaluate

Call = Callable[[], object]  # a run on arrays that are known already


@dataclass(frozen=True)
class Options:
    """What a delegate is told when it compiles a part.

    threads: how many it may use. state: what operators keep from run to run, for a delegate that
    evaluates operators itself. extra: the session's options by name, model.compile(options=...).
    elsewhere: what an executable can do when a run fails: elsewhere(part, error) warns and gives
    the part, state and all, on the other delegates of the session. None: the user insists on
    this one (require_full_delegation), or it is the last.
    before: the ops that stand before the part, as a graph from the model's inputs to the part's.
    """

    threads: int
    state: State
    extra: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: Callable[[Graph, DelegateError], Executable] | None = None
    before: Callable[[], Graph] | None = None


# -- what is required -----------------------------------------------------------------------------


@runtime_checkable
class PlainExecutable(Protocol):
    """What a compiled part must have."""

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        """Compute the part, as Executable.run says."""


@runtime_checkable
class PlainDelegate(Protocol):
    """What a delegate must have: a name and two methods, as Delegate says."""

    name: str

    def refuses(self, op: Op) -> str | None: ...
    def compile(self, part: Graph, options: Options) -> PlainExecutable: ...


# -- what is there to be overridden ---------------------------------------------------------------


class Executable(ABC):
    """A part that a delegate has compiled. It frees what it holds when its last user has gone:
    there is no method to close it."""

    @abstractmethod
    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        """Compute the part. Arrays are the caller's: read and written in place, never kept.

        inputs and outputs are in the order of the part's, C-contiguous and of the tensors' types
        and shapes. An output whose shape is not known before the run is None; the executable puts
        the array it made there. Variable tensors are inputs that the executable updates in place.
        One thread runs it at a time. What it raises becomes a DelegateError that names the part.
        """

    # Binding: runs on the same arrays, time and again.

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Call:
        """A run on these arrays as a call without arguments, which somebody may keep.

        The arrays stay where they are, and of the same size, for as long as the call is kept, so
        that an engine can hand their addresses to its library once and copy nothing in a run.
        Arrays between parts begin on a boundary of 64 bytes, those of the user where NumPy put
        them. Asked for after the first run, if no output is None.
        Default: `run` with these arrays.
        """
        return partial(self.run, inputs, outputs)

    # Caching: see Delegate.restore.

    key: str | None = None
    """The name under which its delegate can restore it in another process. Default None: it cannot,
    and plans that have it are made anew in every process."""

    sizes: Sequence[int] | None = None
    """Bytes of its inputs and outputs, in order: a plan that is read from disk is refused if they
    differ. Default None: they are not compared. Code that trusts its caller should tell them."""

    restored: bool = False
    """Whether it came from what its delegate had kept: a measurement says how it was made. Default
    False: it was compiled now, or does not tell."""

    # Reporting: what is shown to people.

    workers: int = 1
    """Threads that take part in a run. Default: the caller's alone."""

    nodes: Sequence[int] = ()
    """The part's ops as places in the file's graph, -1 for one that the file has not. The runtime
    sets it before the first run; an executable that reports on ops can name them."""

    traced: bool | None = None
    """True: it was compiled while a trace was recorded, and tells the recorder of its steps. False:
    it cannot tell, and another takes its place while a trace is recorded. Default None: it is the
    same in both cases, and a trace shows its part as one slice, and what it says with spans.span.
    """

    def memory(self) -> dict[str, int]:
        """Bytes that it holds, by what they are for: arena, packed_weights, code, or words of its
        own. Default: nothing is known."""
        return {}

    remarks: Sequence[str] = ()
    """Sentences about what became of the part, such as what was decided on samples: they stand
    beside the partition where that is explained. Default: nothing is to be said."""

    copies: BorderCopies | None = None
    """What its runs have copied between the caller's arrays and memory of its own, counted. Default
    None: it computes on the caller's arrays, or does not tell."""

    def step_times(self) -> StepTimes | None:
        """Where a profile reads the time of each step. Default None: only the time of the whole
        part is shown."""
        return None

    def watch_ops(self, evaluate: Evaluate) -> Sequence[Op]:
        """Have each op evaluated by this function from now on, which a profile takes the time of.
        The answer is the ops that it will be given. Default: none, as it does not evaluate its ops
        one by one in Python."""
        return ()

    device: Any = None
    """The device of its own that it runs on, whose peaks a profile can measure (gpu/peaks.py).
    Default None: it has none, or does not tell."""


@dataclass
class BorderCopies:
    """Copies at the borders of a part, added up over runs."""

    runs: int = 0
    tensors: int = 0
    nbytes: int = 0

    def count(self, *sides: Iterable[Array | None]) -> None:
        """One more run, which copied these arrays."""
        copied = [array.nbytes for side in sides for array in side if array is not None]
        self.runs += 1
        self.tensors += len(copied)
        self.nbytes += sum(copied)


class StepTimes(Protocol):
    """The time of each step of an executable, added up over runs."""

    @property
    def report(self) -> Sequence[Mapping[str, str]]:
        """A row for each step: `kernel`; `places`, the part's ops that it stands for, counted from
        0 and separated by commas; `inputs`, types as text; `weights`, `reads`, `writes` in bytes.
        """

    @property
    def workers(self) -> int: ...
    @property
    def times(self) -> Array:
        """[worker, step], since the last reset_times()."""

    @property
    def inside(self) -> Array:
        """One element: the same of the whole call."""

    @property
    def rate(self) -> float | None:
        """What a second is in these times; None for ticks of the CPU's clock, which the profile
        measures."""

    @property
    def method(self) -> str:
        """How they are taken, for people."""

    def reset_times(self) -> None: ...
    def count(self, on: bool) -> None:
        """Whether runs from now on are counted. It begins with True."""


class Delegate(ABC):
    """Something that runs parts of a graph: it says which ops it takes, and compiles them."""

    name: str

    @abstractmethod
    def refuses(self, op: Op) -> str | None:
        """None if it takes the op, otherwise the reason, for people.

        Shapes are concrete; a tensor whose shape depends on data has `is_dynamic`. Ops are legal:
        delegates need not check what the operator's definition demands.
        """

    @abstractmethod
    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        """Make the part runnable; the graph is the delegate's own copy, to be changed at will.

        Engines that read files get one with submodel.as_tflite(part). Raises DelegateError: the ops
        then run elsewhere, with a warning; its `ops`, places in the part, names those to blame if
        the others can stay.
        """

    # Reasons for many ops at once.

    def refuses_each(self, ops: Sequence[Op]) -> Sequence[str | None]:
        """The answers of `refuses` for ops in execution order. An engine that is slow to ask can
        look at them together, or remember its answers. Raises DelegateError: it gets none of them,
        with a warning. Default: it is asked op by op."""
        return [self.refuses(op) for op in ops]

    # Limits of partitions, where a session states none.

    max_delegated_partitions: int = 0
    """Parts that it gets at most, the largest of them. Default 0: all."""

    min_nodes_per_partition: int = 0
    """Ops that a part of it has at least. Default 0: any number."""

    # What of a session's settings it heeds.

    uses_threads: bool = True
    """Whether `threads` and `precision` of a session change how it runs: where it takes every op,
    they are not tried out if they do not. Default True."""

    # Operators of its own.

    def infer(self, op: Op, specs: Sequence[Spec | None]) -> Sequence[Spec] | None:
        """What is known, before a run, of the results of an operator that the operator table does
        not have: a Spec for each, whose shape is None where it depends on data. None: it does not
        know this operator. Asked in the order of the delegates, until one knows. Raises
        SanderlingError where it knows the operator, and that it cannot run.
        Default: it knows no operators but those of the table."""
        return None

    def lacks(self) -> str:
        """Why it can run no op on this machine, such as a device that is not there, or that cannot
        do what an option asks for: who looks for a delegate takes another one. Default "": it can.
        """
        return ""

    # The device behind it.

    @property
    def is_software(self) -> bool:
        """Whether its device is the processor itself, which the cpu's own compiler uses better: it
        is no choice beside the cpu then. Default False."""
        return False

    def device_name(self) -> str:
        """What its device is called, for people. Default "": it has none, or does not tell."""
        return ""

    # Options, by name.

    options: ClassVar[Collection[str]] = ()
    """The names of its options where those are how it takes flags of the tools and LiteRT's
    settings: through configure(), beside what was `chosen` before. Default: none, and flags come
    through take_flags()."""

    chosen: Mapping[str, Any] = MappingProxyType({})
    """The options that it was given, by name. Default: none, or it does not tell."""

    spelling: str = ""
    """How another process names it, options included: load_delegate sets it. Default: by name."""

    def configure(self, options: Mapping[str, Any]) -> PlainDelegate:
        """This delegate, or another one, with these options of its own: what load_delegate(name,
        options) returns. Values from a command line are text. Raises InputError.
        Default: it takes no options."""
        if options:
            raise InputError(
                "it takes no options",
                where=f"delegate '{self.name}'",
                fix=f"leave out {', '.join(map(str, options))}",
            )
        return self

    def check_options(self, options: Mapping[str, Any]) -> None:  # noqa: B027
        """A look at a session's options (Options.extra) when the session is made: raises InputError
        or warns. Names that it does not know may be another delegate's. Default: nothing is
        checked before compile()."""

    def take_flags(self, flags: Mapping[str, Any]) -> None:  # noqa: B027
        """The flags of `benchmark_model` that were set and belong to it, such as gpu_... for the
        delegate `gpu`. Default: they have no effect."""

    # Caching: plans that a later process takes from disk, without looking at a single op.

    @property
    def identity(self) -> str | None:
        """A text that is another one wherever settings lead to another executable. Default None:
        plans with this delegate are not remembered."""
        return None

    def restore(self, key: str, threads: int) -> PlainExecutable | None:
        """The executable that had this `key`, made again from what the delegate has kept (in the
        folder of store.Store, for example); None if it is there no longer, and the plan is made
        anew. All that it depends on, the threads apart, must be part of the key. Default: nothing
        is kept."""
        return None


# -- from plain to whole --------------------------------------------------------------------------


class _Completed(Delegate):
    """A plain delegate with the defaults."""

    def __init__(self, plain: PlainDelegate) -> None:
        self.plain, self.name = plain, plain.name

    def refuses(self, op: Op) -> str | None:
        return self.plain.refuses(op)

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        return self.plain.compile(part, options)


class _CompletedExecutable(Executable):
    """A plain executable with the defaults."""

    def __init__(self, plain: PlainExecutable) -> None:
        self.plain = plain

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        self.plain.run(inputs, outputs)

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Call:
        return partial(self.plain.run, inputs, outputs)


def as_delegate(given: PlainDelegate) -> Delegate:
    """The delegate itself, or a plain one with the defaults."""
    return given if isinstance(given, Delegate) else _Completed(given)


def as_executable(given: PlainExecutable) -> Executable:
    """The executable itself, or a plain one with the defaults."""
    if isinstance(given, Executable):
        return given
    if isinstance(given, PlainExecutable):
        return _CompletedExecutable(given)
    raise DelegateError(
        f"compile() returned {given!r}, which has no run(inputs, outputs)",
        fix="return an object with this method",
    )


def check_kept(outputs: Sequence[Array | None], given: Sequence[Array | None]) -> None:
    """outputs: the caller's arrays. given: the list of them that a run was given, afterwards."""
    if any(own is not None and own is not found for own, found in zip(outputs, given, strict=True)):
        raise DelegateError(
            "run() put another array in the place of an output's, where nobody reads it",
            fix="write into the array that is there: outputs[0][...] = result",
        )
