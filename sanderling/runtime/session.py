"""A session: a model made ready to run with a list of delegates."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..config import DELEGATES
from ..errors import BusyError, InputError, ModelError, SanderlingError
from ..format import known
from ..ir import Array, DType, Graph, Model, Shape, Signature, Tensor
from ..spans import Follower, followers, span, tape
from .delegate import Delegate, Limits, Options, resolve
from .direct import Direct
from .direct import direct as find_direct
from .plan import Binding, Plan, Planner
from .remember import Memory

if TYPE_CHECKING:
    from ..ops import State

# Plans kept for shapes that come back; an old one is dropped for a new one.
MOST_PLANS = 8


class Session:
    """Runs a model. Each plan (shapes, delegates, arena) is made once and kept.

    A session belongs to one thread at a time: a second one gets a BusyError. For parallel work
    give each thread its own session; weights are shared through the model.
    """

    def __init__(
        self,
        model: Model,
        delegates: str | Delegate | Iterable[str | Delegate] = (),
        threads: int | None = None,
        *,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 0,
        require_full_delegation: bool = False,
        delegate_clustering: bool = True,
        preserve_all_tensors: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise InputError(f"threads is {threads!r}", where="threads",
                             fix="give 1 or more, or None for a default")  # fmt: skip
        self.model = model
        self._verified = False
        if not known.content_of(model):
            self._verify()
        self.delegates = resolve(delegates or [n for n in DELEGATES.text().split(",") if n])
        self.variables: dict[Tensor, Array] = {}
        self.threads = threads or 1
        self._limits = Limits(max_delegated_partitions, min_nodes_per_partition,
                              delegate_clustering, single_ops=preserve_all_tensors)  # fmt: skip
        self._require_full = require_full_delegation
        self._extra = dict(options or {})
        for delegate in self.delegates:
            if hasattr(delegate, "check_options"):
                delegate.check_options(self._extra)
        settings = self._require_full, sorted(self._extra.items())
        self._memory = Memory(self.delegates, self._limits, self.threads, settings)
        self._plans: dict[tuple[Graph, tuple[Shape, ...]], Plan] = {}
        self._direct: dict[str | None, Direct | None] = {}
        self._busy = threading.Lock()
        # Those who keep a binding, and hear when recording begins or ends.
        self.lasting: weakref.WeakSet[Follower] = weakref.WeakSet()
        followers.add(self)

    @cached_property
    def state(self) -> State:
        """What operators keep from run to run."""
        from ..ops import State

        return State(call=self._call)

    @cached_property
    def _planner(self) -> Planner:
        settings = Options(self.threads, self.state, self._extra)
        return Planner(self.delegates, self._limits, settings, self._require_full, self.variables)

    def _verify(self) -> None:
        """Once: before the first plan that is made from the graph itself."""
        if not self._verified:
            from ..ir.verify import verify

            with span("verify", "load"):
                verify(self.model)
            self._verified = True

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
        direct = self._direct.get(signature)
        taken = direct.accepts(feeds) if direct is not None and not outputs else None
        if direct is not None and taken is not None:
            self._occupy()
            try:
                return direct.run(taken)
            finally:
                self._busy.release()
        with self._alone(), span("session.run", "api"):
            entry = self.entry(signature)
            arrays = _take(entry.inputs, {} if feeds is None else feeds)
            binding = self._prepare(entry, arrays, outputs or {})
            results = binding.run()
            if tape.recorder is None:
                self._direct[signature] = find_direct(entry, binding)
            return dict(zip(entry.outputs, results, strict=True))

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Any:
        """Run on arrays in the order of the inputs, or by name: one result, or a tuple."""
        names = list(self.entry(None).inputs)
        if len(arrays) > len(names):
            raise InputError(f"{len(arrays)} arrays for {len(names)} inputs",
                             fix=f"the inputs are {', '.join(names)}")  # fmt: skip
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
            arrays = _take(entry.inputs, feeds, copy=False)
            binding = self._prepare(entry, arrays, outputs or {})
            made = BoundRun(self, binding, list(entry.outputs))
            self.lasting.add(made)
            return made

    def _prepare(self, entry: Signature, arrays: Mapping[Tensor, Array],
                 bound: Mapping[str, Array]) -> Binding:  # fmt: skip
        """A binding of these arrays; its results are in the order of the entry's outputs."""
        _check_outputs(entry.outputs, bound, arrays.values())
        graph = entry.graph
        absent = [t.name for t in graph.inputs if t not in arrays]
        if absent:
            raise InputError(f"signature '{entry.key}' has no name for tensor '{absent[0]}'",
                             where=f"inputs of graph '{graph.name}'",
                             fix="the model was saved wrongly: name every input")  # fmt: skip
        inputs = [arrays[t] for t in graph.inputs]
        plan = self._plan_for(entry, [a.shape for a in inputs])
        twins = [plan.twins[t] for t in entry.outputs.values()]
        outputs = [bound[name] if name in bound else _fresh(twin)
                   for name, twin in zip(entry.outputs, twins, strict=True)]  # fmt: skip
        for name, twin in zip(entry.outputs, twins, strict=True):
            if name in bound and not twin.is_dynamic and twin.shape != bound[name].shape:
                raise InputError(
                    f"a buffer of shape {list(bound[name].shape)}, the result has "
                    f"{list(twin.shape)}", where=f"output '{name}'",
                    fix="bind a buffer of the result's shape",
                )  # fmt: skip
        return Binding(plan, inputs, outputs, twins)

    def _plan_for(self, entry: Signature, shapes: list[Shape]) -> Plan:
        """A plan; where shapes do not go through the model, the error speaks of the inputs."""
        try:
            return self._plan(entry.graph, shapes)
        except ModelError as error:
            fed = dict(zip(entry.graph.inputs, shapes, strict=True))
            changed = {n: t for n, t in entry.inputs.items() if fed[t] != t.shape}
            if not changed:
                unset = _unset(entry, error)
                if unset is None:
                    raise
                raise unset from error
            given = ", ".join(f"'{n}' {list(fed[t])}" for n, t in changed.items())
            takes = ", ".join(f"'{n}' {t.type_text}" for n, t in changed.items())
            raise InputError(
                f"the model does not run on this shape: {error.where}: {error.what}",
                where=f"input {given}",
                fix=f"it takes {takes}",
            ) from error

    def _call(self, graph: Graph, arrays: Sequence[Array]) -> list[Array]:
        """How control flow runs a subgraph: the same delegates, the same state."""
        if len(arrays) != len(graph.inputs):
            raise ModelError(f"called with {len(arrays)} values, it takes {len(graph.inputs)}",
                             where=f"graph '{graph.name}'")  # fmt: skip
        plan = self._plan(graph, [a.shape for a in arrays])
        outputs = [_fresh(plan.twins[t]) for t in graph.outputs]
        return plan.bind(arrays, outputs).run()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._occupy()
        try:
            yield
        finally:
            self._busy.release()

    def _occupy(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise BusyError(
                "this session is running in another thread",
                fix="give each thread its own session: model.compile(...) shares the weights",
            )

    def _run_alone(self, run: Callable[[], object]) -> None:
        """`with self._alone(): run()` without the microsecond that the context manager takes."""
        if not self._busy.acquire(False):
            self._occupy()
        try:
            run()
        finally:
            self._busy.release()

    # -- planning -------------------------------------------------------------------------------

    def plan(self, graph: Graph | None = None, shapes: Sequence[Shape] | None = None) -> Plan:
        """The plan for these input shapes (default: the file's), made when first asked for."""
        graph = graph or self.model.main
        with self._alone():
            return self._plan(graph, shapes or [t.shape for t in graph.inputs], whole=True)

    def runnable_plan(self, graph: Graph, shapes: Sequence[Shape]) -> Plan:
        """As plan, but one that may know no more than what a run needs (`is_whole`)."""
        with self._alone():
            return self._plan(graph, shapes)

    def _plan(self, graph: Graph, shapes: Sequence[Shape], whole: bool = False) -> Plan:
        """A plan to run; whole: also to look at."""
        key = (graph, tuple(map(tuple, shapes)))
        made = self._plans.pop(key, None)
        if made is None or (whole and not made.is_whole):
            made = self._new_plan(*key, whole)
            made.again = _maker(weakref.ref(self), *key)
        while len(self._plans) >= MOST_PLANS * len(self.model.graphs):
            self._plans.pop(next(iter(self._plans)))
        self._plans[key] = made  # the latest stands last: the first is the longest unused
        return made

    def _new_plan(self, graph: Graph, shapes: tuple[Shape, ...], whole: bool) -> Plan:
        with span("plan", "plan") as told:
            told.note({"graph": graph.name, "inputs": shapes, "threads": self.threads,
                       "delegates": [d.name for d in self.delegates]})  # fmt: skip
            with span("recall a plan", "plan"):
                made = None if whole else self._memory.recall(self.model, graph, shapes)
            return made or self._make(graph, shapes)

    def follow(self) -> None:
        """Recording has begun or ended: the next run goes the long way, which tells of itself if
        somebody listens. No lock is needed: a run that goes on meanwhile ends as it began."""
        self._direct.clear()
        if tape.recorder is None:
            for made in list(self._plans.values()):
                made.hush()
        for keeper in list(self.lasting):
            keeper.follow()

    def _make(self, graph: Graph, shapes: tuple[Shape, ...]) -> Plan:
        content = known.content_of(self.model)
        self._verify()
        made = self._planner.plan(graph, shapes)
        with span("remember the plan", "plan"):
            self._memory.keep(self.model, content, graph, shapes, made)
        return made

    def explain(self) -> str:
        """Which ops run where, and why the others do not run on the delegates before."""
        return self.plan().partition.table()

    def memory(self) -> dict[str, int]:
        """Bytes that the plans made so far hold: arena, packed_weights, code. The file's own
        weights are the model's, mapped, and read by delegates that do not pack them."""
        total: dict[str, int] = {}
        for made in self._plans.values():
            for name, size in made.memory().items():
                total[name] = total.get(name, 0) + size
        return total

    def reset_variables(self, graph: Graph | None = None) -> None:
        """Variable tensors (of one graph, or all) start again from their initial values."""
        with self._alone():
            for tensor, array in self.variables.items():
                if graph is None or tensor in graph.tensors:
                    from ..ops.execute import initial_value

                    array[...] = initial_value(tensor)

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
        if len(signatures) == 1 and _covers(signatures[0]):
            return signatures[0]
        main = self.model.main
        return Signature("", main, _by_name(main.inputs), _by_name(main.outputs))


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


def _maker(session: weakref.ref[Session], graph: Graph, shapes: tuple[Shape, ...]
           ) -> Callable[[], Plan | None]:  # fmt: skip
    """Makes a plan anew. It does not keep the session: workers leave with its last user."""

    def again() -> Plan | None:
        found = session()
        return None if found is None else found._new_plan(graph, shapes, False)

    return again


class BoundRun:
    """A run whose arrays are fixed."""

    def __init__(self, session: Session, binding: Binding, names: list[str]) -> None:
        self.session, self.binding, self.names = session, binding, names
        self._call: Callable[[], object] | None = None

    def run(self) -> None:
        call = self._call
        if call is None:
            self.session._run_alone(self.binding.run)
            self._call = self.binding.only_call()
            return
        try:
            self.session._run_alone(call)
        except SanderlingError:
            raise
        except Exception as error:
            self.binding.blame(0, error)

    def follow(self) -> None:
        self.binding.follow()
        self._call = None

    @property
    def outputs(self) -> dict[str, Array]:
        """What the last run wrote: the bound buffers, or arrays that the next run overwrites."""
        return dict(zip(self.names, self.binding.outputs, strict=False))


def _covers(signature: Signature) -> bool:
    return set(signature.inputs.values()) == set(signature.graph.inputs)


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


def _take(wanted: Mapping[str, Tensor], feeds: Mapping[str, npt.ArrayLike],
          copy: bool = True) -> dict[Tensor, Array]:  # fmt: skip
    """Match arrays to tensors by name, and check them."""
    if not isinstance(feeds, Mapping):
        names = ", ".join(f"{n!r}: array" for n in wanted)
        raise InputError(
            f"feeds is of type {type(feeds).__name__}, not arrays by name",
            where="session.run",
            fix=f"write session.run({{{names}}}), or session({', '.join(wanted)}) by place",
        )
    unknown = [name for name in feeds if name not in wanted]
    missing = [name for name in wanted if name not in feeds]
    if unknown or missing:
        raise InputError(
            " and ".join([f"there is no input '{n}'" for n in unknown]
                         + [f"input '{n}' is missing" for n in missing]),
            fix="the inputs are " + ", ".join(f"{n} {t.type_text}" for n, t in wanted.items()),
        )  # fmt: skip
    return {t: as_fed(t, feeds[name], name, copy) for name, t in wanted.items()}


def as_fed(tensor: Tensor, value: npt.ArrayLike, name: str, copy: bool = True) -> Array:
    """The caller's array itself where type and layout fit; a safe conversion otherwise.

    copy=False insists on the caller's own array, for bindings.
    """
    array = _as_array(value, name)
    if tensor.dtype is DType.STRING and copy:
        array = as_bytes(array)
    elif array.dtype != tensor.dtype.numpy:
        if not copy or not converts(array, tensor.dtype.numpy):
            raise InputError(
                f"an array of {array.dtype}, the model takes {tensor.dtype.numpy}",
                where=f"input '{name}'",
                fix=_type_hint(tensor, name, array),
            )
        array = array.astype(tensor.dtype.numpy)
    check_shape(tensor, array.shape, name)
    if not array.flags.c_contiguous:
        if not copy:
            raise InputError("the array is not contiguous", where=f"input '{name}'",
                             fix="bind np.ascontiguousarray(x)")  # fmt: skip
        array = np.ascontiguousarray(array)
    return array


def _as_array(value: npt.ArrayLike, name: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of unequal length
        raise InputError(f"it is not an array: {error}", where=f"input '{name}'",
                         fix="give an array, or lists of equal length") from error  # fmt: skip


def converts(array: Array, wanted: np.dtype[Any]) -> bool:
    """Reals convert to reals (and losing digits is fine); integers where every value fits."""
    if array.dtype.kind in "iu" and wanted.kind in "iu":
        limits = np.iinfo(wanted)
        return not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)
    return array.dtype.kind != "O" and np.can_cast(array.dtype, wanted, "same_kind")


def as_bytes(array: Array) -> Array:
    """Strings as TFLite holds them: bytes objects."""
    made = np.empty(array.shape, np.object_)
    made.reshape(-1)[:] = [_text(s) for s in array.flat]
    return made


def _text(value: object) -> bytes:
    if isinstance(value, str | bytes):
        return value.encode() if isinstance(value, str) else bytes(value)
    raise InputError(f"{value!r} is not a string", fix="give an array of str or bytes")


def _type_hint(tensor: Tensor, name: str, array: Array) -> str:
    quant, reals = tensor.quant, array.dtype.kind == "f" and not tensor.dtype.is_float
    if reals and quant is not None and quant.scale.size == 1:
        return (f"quantise it first: sanderling.quantize_array(x, session.entry(None).inputs"
                f"[{name!r}]), that is round(x / {quant.scale[0]:g}) + {quant.zero_point[0]}"
                )  # fmt: skip
    if array.dtype.kind in "iu" and tensor.dtype.is_integer:
        low, high = tensor.dtype.bounds
        return f"its values must be {low} to {high}"
    return f"convert it: x.astype(np.{tensor.dtype.numpy})"


def check_shape(tensor: Tensor, shape: Shape, name: str) -> None:
    """Open dimensions take any size; the others may be resized too, as TFLite allows, but not the
    number of dimensions of a tensor whose rank is known."""
    if len(shape) != len(tensor.shape) and tensor.shape:
        raise InputError(
            f"an array of shape {list(shape)}, the model takes {tensor.type_text}",
            where=f"input '{name}'",
            fix=f"reshape it to {len(tensor.shape)} dimensions",
        )


def _check_outputs(wanted: Mapping[str, Tensor], given: Mapping[str, Array],
                   inputs: Iterable[Array]) -> None:  # fmt: skip
    """Buffers to write to: of the right type and layout, and apart from each other and the inputs
    (a part may write its output before another has read its input)."""
    taken = list(inputs)
    for name, array in given.items():
        problem, fix = _output_problem(wanted, name, array, taken)
        if problem:
            raise InputError(problem, where=f"output '{name}'", fix=fix)
        taken.append(array)


def _output_problem(wanted: Mapping[str, Tensor], name: str, array: Array,
                    taken: Iterable[Array]) -> tuple[str, str]:  # fmt: skip
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
