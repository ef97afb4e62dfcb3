"""A session: a model made ready to run with a list of delegates."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..config import DELEGATES
from ..errors import (
    ArgumentError,
    BusyError,
    DelegateError,
    InputError,
    ModelError,
    SanderlingError,
)
from ..forks import renews
from ..format import known_models
from ..ir import Array, Graph, Model, Shape, Signature, Tensor
from ..spans import Follower, followers, span, tape
from . import plan_recording
from .binding import Binding
from .delegate import PlainDelegate
from .feeds import take
from .partition import LAST_NODE, Limits
from .plan import Plan
from .plans import Plans, verify_model
from .registry import FALLBACK, resolve
from .settings import Settings
from .steady import SteadyRun, steady_run

if TYPE_CHECKING:
    from ..ops import State


class OfThisProcess:
    """Not to be copied: what it holds (code, threads, memory, state) belongs to this process."""

    def __reduce__(self) -> NoReturn:
        raise InputError(
            "it cannot be pickled or copied: it holds compiled code, threads and state of this "
            "process",
            where=type(self).__name__,
            fix="hand on the model, which pickles by its bytes, or its path, and compile it there",
        )


class Session(OfThisProcess):
    """Runs a model. Each plan (shapes, delegates, arena) is made once and kept.

    A session belongs to one thread at a time: a second one gets a BusyError. For parallel work
    give each thread its own session; weights are shared through the model.
    """

    def __init__(
        self,
        model: Model,
        delegates: str | PlainDelegate | Iterable[str | PlainDelegate] = (),
        threads: int | None = None,
        *,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 0,
        first_delegate_node_index: int = 0,
        last_delegate_node_index: int = LAST_NODE,
        require_full_delegation: bool = False,
        delegate_clustering: bool = True,
        preserve_all_tensors: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ArgumentError(
                f"`threads` is {threads!r}", fix="give 1 or more, or leave it out for a default"
            )
        self.model = model
        is_known = bool(known_models.content_of(model))
        if not is_known:
            verify_model(model)
        self.delegates = resolve(delegates or [n for n in DELEGATES.text().split(",") if n])
        self.threads = threads or 1
        limits = Limits(
            max_delegated_partitions,
            min_nodes_per_partition,
            delegate_clustering,
            preserve_all_tensors,
            first_delegate_node_index,
            last_delegate_node_index,
        )
        extra = dict(options or {})
        for delegate in self.delegates:
            delegate.check_options(extra)
        settings = Settings(self.delegates, limits, self.threads, require_full_delegation, extra)
        self._plans = Plans(model, settings, verified=not is_known)
        self._steady: dict[str | None, SteadyRun | None] = {}
        self._busy = threading.Lock()
        renews(self)
        # Those who keep a binding, and hear when recording begins or ends.
        self.lasting: weakref.WeakSet[Follower] = weakref.WeakSet()
        followers.add(self)
        if require_full_delegation or any(d.name not in FALLBACK for d in self.delegates):
            self._plan_early()

    def renew_lock(self) -> None:
        """In a forked child nobody runs this session, whoever did in the parent."""
        self._busy = threading.Lock()

    @property
    def state(self) -> State:
        """What operators keep from run to run."""
        return self._plans.state

    @property
    def has_kept(self) -> bool:
        """Whether operators keep something beyond the variable tensors: resources, random
        generators."""
        return self._plans.has_kept

    @property
    def variables(self) -> dict[Tensor, Array]:
        """The arrays of variable tensors, by the model's own tensor."""
        return self._plans.variables

    def _plan_early(self) -> None:
        """Let delegates of others, and who insists on one, complain now and not at the first run.
        That needs shapes; if the model has some that it cannot run on, that is for the run to say,
        which may bring others."""
        graph = self.entry(None).graph
        if any(t.is_dynamic for t in graph.inputs):
            return
        try:
            self.runnable_plan(graph, [t.shape for t in graph.inputs])
        except DelegateError:
            raise
        except SanderlingError:
            return

    def __repr__(self) -> str:
        return f"<Session of {self.model!r} on {', '.join(d.name for d in self.delegates)}>"

    # -- running --------------------------------------------------------------------------------

    def run(
        self,
        feeds: Mapping[str, npt.ArrayLike] | None = None,
        *,
        signature: str | None = None,
        outputs: Mapping[str, Array] | None = None,
    ) -> dict[str, Array]:
        """Run once. Arrays of the right type are read in place; `outputs` are written in place.

        Names are the signature's where the model has one, otherwise the tensors'.
        """
        steady = self._steady.get(signature)
        if steady is not None and not outputs:
            with self._alone():
                found = steady.run(feeds)
            if found is not None:
                return found
        with self._alone(), span("session.run", "api"):
            entry = self.entry(signature)
            arrays = take(entry.inputs, {} if feeds is None else feeds)
            binding = self._binding(entry, arrays, outputs or {})
            results = binding.run()
            if tape.recorder is None:
                self._steady[signature] = steady_run(entry, binding)
            return dict(zip(entry.outputs, results, strict=True))

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Any:
        """Run on arrays in the order of the inputs, or by name: one result, or a tuple."""
        names = list(self.entry(None).inputs)
        if len(arrays) > len(names):
            raise InputError(
                f"{len(arrays)} arrays for {len(names)} inputs",
                fix=f"the inputs are {', '.join(names)}",
            )
        given = dict(zip(names, arrays, strict=False))
        twice = [name for name in named if name in given]
        if twice:
            raise InputError(
                f"input '{twice[0]}' is given by place and by name", fix="give it once"
            )
        results = tuple(self.run(given | named).values())
        return results[0] if len(results) == 1 else results

    def bind(
        self,
        feeds: Mapping[str, Array],
        outputs: Mapping[str, Array] | None = None,
        *,
        signature: str | None = None,
    ) -> BoundRun:
        """Fix the arrays once, run many times: `bound.run()` does no look-up and no check."""
        with self._alone():
            entry = self.entry(signature)
            arrays = take(entry.inputs, feeds, copy=False)
            binding = self._binding(entry, arrays, outputs or {})
            made = BoundRun(self, binding, list(entry.outputs))
            self.lasting.add(made)
            return made

    def _binding(
        self, entry: Signature, arrays: Mapping[Tensor, Array], bound: Mapping[str, Array]
    ) -> Binding:
        """A binding of these arrays; its results are in the order of the entry's outputs."""
        _check_outputs(entry.outputs, bound, arrays.values())
        graph = entry.graph
        absent = [t.name for t in graph.inputs if t not in arrays]
        if absent:
            raise InputError(
                f"signature '{entry.key}' has no name for tensor '{absent[0]}'",
                where=f"inputs of graph '{graph.name}'",
                fix="the model was saved wrongly: name every input",
            )
        inputs = [arrays[t] for t in graph.inputs]
        try:
            plan = self._plans.find(graph, [a.shape for a in inputs])
        except ModelError as error:
            told = _of_inputs(entry, [a.shape for a in inputs], error)
            if told is None:
                raise
            raise told from error
        twins = [plan.twins[t] for t in entry.outputs.values()]
        outputs = [
            bound[name] if name in bound else _fresh(twin)
            for name, twin in zip(entry.outputs, twins, strict=True)
        ]
        for name, twin in zip(entry.outputs, twins, strict=True):
            if name in bound and not twin.is_dynamic and twin.shape != bound[name].shape:
                raise InputError(
                    f"a buffer of shape {list(bound[name].shape)}, the result has "
                    f"{list(twin.shape)}",
                    where=f"output '{name}'",
                    fix="bind a buffer of the result's shape",
                )
        return Binding(plan, inputs, outputs, twins)

    def _alone(self) -> threading.Lock:
        """The lock, to run under: `with self._alone()`. Entered and left by `with` itself, which
        Ctrl-C cannot part from what it holds; between acquire() and `try` it could, and the session
        would be busy for ever. Two threads that pass here at once run one after the other."""
        busy = self._busy
        if busy.locked():
            raise BusyError(
                "this session is running in another thread",
                fix="give each thread its own session: model.compile(...) shares the weights",
            )
        return busy

    # -- planning -------------------------------------------------------------------------------

    def plan(self, graph: Graph | None = None, shapes: Sequence[Shape] | None = None) -> Plan:
        """The plan for these input shapes (default: the file's), made when first asked for. A run
        that was bound before may have another one, from disk (`BoundRun.plan`)."""
        graph = graph or self.model.main
        with self._alone():
            return self._plans.find(graph, shapes or [t.shape for t in graph.inputs], whole=True)

    def runnable_plan(self, graph: Graph, shapes: Sequence[Shape]) -> Plan:
        """As plan, but one that may know no more than what a run needs (`is_whole`)."""
        with self._alone():
            return self._plans.find(graph, shapes)

    def follow(self) -> None:
        """Recording has begun or ended: the next run goes the long way, which tells of itself if
        somebody listens. No lock is needed: a run that goes on meanwhile ends as it began."""
        self._steady.clear()
        if tape.recorder is None:
            for made in self._plans:
                plan_recording.end(made)
        for keeper in list(self.lasting):
            keeper.follow()

    def plans_made(self) -> list[Plan]:
        """The plans in memory: of shapes that ran, and of graphs that control flow called."""
        return list(self._plans)

    @property
    def compile_seconds(self) -> float:
        """What planning and compiling took so far, for shapes that were met in runs too."""
        return self._plans.seconds

    def explain(self) -> str:
        """Which ops run where, why the others do not run on the delegates before, and what these
        remark."""
        made = self.plan()
        remarks = [f"part {i}: {r}" for i, s in enumerate(made.steps) for r in s.executable.remarks]
        return "\n".join([made.partition.table(), *remarks])

    def memory(self) -> dict[str, int]:
        """Bytes that the plans made so far hold: arena, packed_weights, code. The file's own
        weights are the model's, mapped, and read by delegates that do not pack them."""
        total: dict[str, int] = {}
        for made in self._plans:
            for name, size in made.memory().items():
                total[name] = total.get(name, 0) + size
        return total

    def reset_variables(self, graph: Graph | None = None) -> None:
        """Variable tensors (of one graph, or all) start again from their initial values."""
        with self._alone():
            for tensor, array in self.variables.items():
                if graph is None or tensor in graph.tensors:
                    from ..ops.execute import initial_value

                    array[...] = initial_value(tensor, array.shape)

    # -- names ----------------------------------------------------------------------------------

    def entry(self, key: str | None) -> Signature:
        """The signature with this key, or the only one, or the main graph's tensor names."""
        signatures = self.model.signatures
        if key is not None:
            try:
                return self.model.signature(key)
            except KeyError as error:
                names = ", ".join(f"'{s.key}'" for s in signatures)
                raise InputError(
                    f"there is no signature '{key}'",
                    fix=f"the signatures are {names}"
                    if names
                    else "the model has none: leave it out",
                ) from error
        if len(signatures) == 1 and signatures[0].feeds_all:
            return signatures[0]
        main = self.model.main
        return Signature("", main, _by_name(main.inputs), _by_name(main.outputs))


def _of_inputs(entry: Signature, shapes: Sequence[Shape], error: ModelError) -> InputError | None:
    """What to say of the inputs, where their shapes do not go through the model."""
    fed = dict(zip(entry.graph.inputs, shapes, strict=True))
    changed = {n: t for n, t in entry.inputs.items() if fed[t] != t.shape}
    if not changed:
        return _unset(entry, error)
    given = ", ".join(f"'{n}' {list(fed[t])}" for n, t in changed.items())
    takes = ", ".join(f"'{n}' {t.type_text}" for n, t in changed.items())
    return InputError(
        f"the model does not run on this shape: {error.where}: {error.what}",
        where=f"input {given}",
        fix=f"it takes {takes}",
    )


def _unset(entry: Signature, error: ModelError) -> InputError | None:
    """Where dimensions are open and the file's stand-ins for them do not go through the model."""
    left = {n: t for n, t in entry.inputs.items() if t.is_dynamic}
    if not left:
        return None
    stand_ins = ", ".join(str(list(t.shape)) for t in left.values())
    stated = " ".join(f"--shape {n}={_example(t)}" for n, t in left.items())
    return InputError(
        f"sizes are left open, and on the file's stand-ins for them, {stand_ins}, the model does "
        f"not run: {error.where}: {error.what}",
        where=", ".join(f"input '{n}' {t.type_text}" for n, t in left.items()),
        fix=f"feed arrays of the sizes that you need, or state them, for example {stated}",
    )


def _example(tensor: Tensor) -> str:
    """A batch of one, and some size for every other open dimension."""
    signature = tensor.signature or ()
    return ",".join(str(n if n >= 0 else 64 if i else 1) for i, n in enumerate(signature))


class BoundRun(OfThisProcess):
    """A run whose arrays are fixed. NumPy refuses to resize them while it lives."""

    def __init__(self, session: Session, binding: Binding, names: list[str]) -> None:
        self.session, self.binding, self.names = session, binding, names

    def run(self) -> None:
        steady, busy = self.binding.steady, self.session._busy
        # As _alone, written out: a call less, and a small model takes no longer than a call.
        if steady is None or busy.locked():
            with self.session._alone():
                self.binding.run()
            return
        with busy:
            try:
                steady()
            except Exception as error:
                self.binding.plan.blame(0, error)

    def follow(self) -> None:
        self.binding.follow()

    @property
    def plan(self) -> Plan:
        """What is run: it may know no more than that (`is_whole`)."""
        return self.binding.plan

    @property
    def outputs(self) -> dict[str, Array]:
        """What the last run wrote: the bound buffers, or arrays that the next run overwrites."""
        return dict(zip(self.names, self.binding.outputs, strict=False))


def _by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    """Tensors by name; a name that comes twice gets a number."""
    named: dict[str, Tensor] = {}
    for tensor in tensors:
        name, count = tensor.name, 1
        while name in named:
            name, count = f"{tensor.name}:{count}", count + 1
        named[name] = tensor
    return named


def _fresh(tensor: Tensor) -> Array | None:
    """A new array for an output, so that the caller may keep it; None if its shape is unknown."""
    known = not tensor.is_dynamic and tensor.dtype.is_fixed_size
    return np.empty(tensor.shape, tensor.dtype.numpy) if known else None


def _check_outputs(
    wanted: Mapping[str, Tensor], given: Mapping[str, Array], inputs: Iterable[Array]
) -> None:
    """Buffers to write to: of the right type and layout, and apart from each other and the inputs
    (a part may write its output before another has read its input)."""
    taken = list(inputs)
    for name, array in given.items():
        problem, fix = _output_problem(wanted, name, array, taken)
        if problem:
            raise InputError(problem, where=f"output '{name}'", fix=fix)
        taken.append(array)


def _output_problem(
    wanted: Mapping[str, Tensor], name: str, array: Array, taken: Iterable[Array]
) -> tuple[str, str]:
    if name not in wanted:
        return "there is no such output", f"the outputs are {', '.join(wanted)}"
    dtype = wanted[name].dtype.numpy
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        return f"a buffer of {kind}, the result is {dtype}", f"bind an array of {dtype}"
    if not array.flags.c_contiguous:
        return "the buffer is not contiguous", "bind an array made by np.empty"
    if not array.flags.writeable:
        return "the buffer is read-only", "bind an array that may be written"
    if any(np.may_share_memory(array, other) for other in taken):
        return "the buffer overlaps an input or another output", "bind an array of its own"
    return "", ""
