"""A session: a model made ready to run with a list of delegates."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import DELEGATES
from ..errors import BusyError, InputError, ModelError
from ..ir import Array, DType, Graph, Model, Shape, Signature, Tensor
from ..ir.verify import verify
from ..ops import State
from ..ops.execute import initial_value
from .delegate import Delegate, Limits, Options, resolve
from .plan import Binding, Plan, Planner, has_storage

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
        delegates: Iterable[str | Delegate] = (),
        threads: int | None = None,
        *,
        max_delegated_partitions: int = 0,
        min_nodes_per_partition: int = 0,
        require_full_delegation: bool = False,
        delegate_clustering: bool = True,
        preserve_all_tensors: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise InputError(f"threads is {threads}", fix="give 1 or more, or None for a default")
        verify(model)
        self.model = model
        wanted = list(delegates) or [n for n in DELEGATES.text().split(",") if n]
        self.delegates = resolve(wanted)
        self.state = State(call=self._call)
        self.variables: dict[Tensor, Array] = {}
        limits = Limits(max_delegated_partitions, min_nodes_per_partition, delegate_clustering,
                        single_ops=preserve_all_tensors)  # fmt: skip
        settings = Options(threads or 1, self.state, dict(options or {}))
        self._planner = Planner(self.delegates, limits, settings, require_full_delegation,
                                self.variables)  # fmt: skip
        self._plans: dict[tuple[Graph, tuple[Shape, ...]], Plan] = {}
        self._busy = threading.Lock()

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
        with self._alone():
            entry = self.entry(signature)
            arrays = _take(entry.inputs, feeds or {}, "input")
            bound = _check_outputs(entry.outputs, outputs or {})
            results = self._run(entry.graph, arrays, entry, bound)
            return dict(zip(entry.outputs, results, strict=True))

    def __call__(self, *arrays: npt.ArrayLike, **named: npt.ArrayLike) -> Any:
        """Run on arrays in the order of the inputs, or by name: one result, or a tuple."""
        names = list(self.entry(None).inputs)
        if len(arrays) > len(names):
            raise InputError(f"{len(arrays)} arrays for {len(names)} inputs",
                             fix=f"the inputs are {', '.join(names)}")  # fmt: skip
        results = tuple(self.run(dict(zip(names, arrays, strict=False)) | named).values())
        return results[0] if len(results) == 1 else results

    def bind(
        self,
        feeds: Mapping[str, Array],
        outputs: Mapping[str, Array] | None = None,
        *,
        signature: str | None = None,
    ) -> BoundRun:
        """Fix the arrays once, run many times: `bound.run()` does no look-up and no check."""
        entry = self.entry(signature)
        arrays = _take(entry.inputs, feeds, "input", copy=False)
        given = _check_outputs(entry.outputs, outputs or {})
        order, binding = self._prepare(entry.graph, arrays, entry, given)
        return BoundRun(self, binding, list(entry.outputs), order)

    def _run(self, graph: Graph, arrays: Mapping[Tensor, Array], entry: Signature,
             bound: Mapping[Tensor, Array]) -> list[Array]:  # fmt: skip
        order, binding = self._prepare(graph, arrays, entry, bound)
        results = binding.run()
        return [results[i] for i in order]

    def _prepare(self, graph: Graph, arrays: Mapping[Tensor, Array], entry: Signature,
                 bound: Mapping[Tensor, Array]) -> tuple[list[int], Binding]:  # fmt: skip
        """A binding for these arrays, and where each named output stands among the graph's."""
        inputs = [arrays[t] for t in graph.inputs]
        plan = self.plan(graph, [a.shape for a in inputs])
        outputs = [bound[t] if t in bound else _fresh(plan.twins[t]) for t in graph.outputs]
        _check_bound(plan, graph, bound)
        order = [graph.outputs.index(t) for t in entry.outputs.values()]
        return order, plan.bind(inputs, outputs)

    def _call(self, graph: Graph, arrays: Sequence[Array]) -> list[Array]:
        """How control flow runs a subgraph: the same delegates, the same state."""
        if len(arrays) != len(graph.inputs):
            raise ModelError(f"called with {len(arrays)} values, it takes {len(graph.inputs)}",
                             where=f"graph '{graph.name}'")  # fmt: skip
        plan = self.plan(graph, [a.shape for a in arrays])
        outputs = [_fresh(plan.twins[t]) for t in graph.outputs]
        results = plan.bind(arrays, outputs).run()
        return [r.copy() if any(r is a for a in arrays) else r for r in results]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise BusyError(
                "this session is running in another thread",
                fix="give each thread its own session: model.compile(...) shares the weights",
            )
        try:
            yield
        finally:
            self._busy.release()

    # -- planning -------------------------------------------------------------------------------

    def plan(self, graph: Graph | None = None, shapes: Sequence[Shape] | None = None) -> Plan:
        """The plan for these input shapes (default: the file's), made when first asked for."""
        graph = graph or self.model.main
        wanted = tuple(tuple(s) for s in shapes or [t.shape for t in graph.inputs])
        key = (graph, wanted)
        if key not in self._plans:
            while len(self._plans) >= MOST_PLANS * len(self.model.graphs):
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = self._planner.plan(graph, wanted)
        return self._plans[key]

    def explain(self) -> str:
        """Which ops run where, and why the others do not run on the delegates before."""
        return self.plan().partition.table()

    def reset_variables(self) -> None:
        """Variable tensors start again from their initial values."""
        for tensor, array in self.variables.items():
            array[...] = initial_value(tensor)

    # -- names ----------------------------------------------------------------------------------

    def entry(self, key: str | None) -> Signature:
        """The signature with this key, or the only one, or the main graph's tensor names."""
        signatures = self.model.signatures
        if key is not None:
            try:
                return self.model.signature(key)
            except KeyError as error:
                raise InputError(str(error.args[0])) from error
        if len(signatures) == 1 and _covers(signatures[0]):
            return signatures[0]
        main = self.model.main
        return Signature("", main, _by_name(main.inputs), _by_name(main.outputs))


class BoundRun:
    """A run whose arrays are fixed."""

    def __init__(self, session: Session, binding: Binding, names: list[str],
                 order: list[int]) -> None:  # fmt: skip
        self.session, self.binding, self.names, self._order = session, binding, names, order

    def run(self) -> None:
        with self.session._alone():
            self.binding.run()

    @property
    def outputs(self) -> dict[str, Array]:
        """What the last run wrote: the bound buffers, or arrays that the next run overwrites."""
        found = [self.binding.outputs[i] for i in self._order]
        return {n: a for n, a in zip(self.names, found, strict=True) if a is not None}


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
    return np.empty(tensor.shape, tensor.dtype.numpy) if has_storage(tensor) else None


def _take(wanted: Mapping[str, Tensor], feeds: Mapping[str, npt.ArrayLike], what: str,
          copy: bool = True) -> dict[Tensor, Array]:  # fmt: skip
    """Match arrays to tensors by name, and check them."""
    unknown = [name for name in feeds if name not in wanted]
    missing = [name for name in wanted if name not in feeds]
    if unknown or missing:
        raise InputError(
            " and ".join([f"there is no {what} '{n}'" for n in unknown]
                         + [f"{what} '{n}' is missing" for n in missing]),
            fix=f"the {what}s are " + ", ".join(f"{n} {t.type_text}" for n, t in wanted.items()),
        )  # fmt: skip
    return {t: as_fed(t, feeds[name], name, copy) for name, t in wanted.items()}


def as_fed(tensor: Tensor, value: npt.ArrayLike, name: str, copy: bool = True) -> Array:
    """The caller's array itself where type and layout fit; a safe conversion otherwise.

    copy=False insists on the caller's own array, for bindings.
    """
    array = np.asarray(value)
    wanted = tensor.dtype.numpy
    if array.dtype != wanted:
        exact = np.can_cast(array.dtype, wanted, "same_kind") or not isinstance(value, np.ndarray)
        if not copy or not (exact or tensor.dtype is DType.STRING):
            raise InputError(
                f"an array of {array.dtype}, the model takes {wanted}",
                where=f"input '{name}'",
                fix=_type_hint(tensor, name),
            )
        array = array.astype(wanted)
    check_shape(tensor, array.shape, name)
    if not array.flags.c_contiguous:
        if not copy:
            raise InputError("the array is not contiguous", where=f"input '{name}'",
                             fix="bind np.ascontiguousarray(x)")  # fmt: skip
        array = np.ascontiguousarray(array)
    return array


def _type_hint(tensor: Tensor, name: str) -> str:
    if tensor.quant is not None and tensor.quant.scale.size == 1 and not tensor.dtype.is_float:
        return ("quantise it first: sanderling.quantize_array(x, tensor), that is "
                f"round(x / {tensor.quant.scale[0]:g}) + {tensor.quant.zero_point[0]}")  # fmt: skip
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


def _check_outputs(wanted: Mapping[str, Tensor], given: Mapping[str, Array]) -> dict[Tensor, Array]:
    for name, array in given.items():
        if name not in wanted:
            raise InputError(f"there is no output '{name}'",
                             fix=f"the outputs are {', '.join(wanted)}")  # fmt: skip
        tensor = wanted[name]
        if array.dtype != tensor.dtype.numpy or not array.flags.c_contiguous:
            raise InputError(
                f"a buffer of {array.dtype}, contiguous: {array.flags.c_contiguous}",
                where=f"output '{name}'",
                fix=f"bind a contiguous array of {tensor.dtype.numpy}",
            )
        if not array.flags.writeable:
            raise InputError("the buffer is read-only", where=f"output '{name}'")
    return {wanted[name]: array for name, array in given.items()}


def _check_bound(plan: Plan, graph: Graph, bound: Mapping[Tensor, Array]) -> None:
    for tensor, array in bound.items():
        planned = plan.twins[tensor]
        if has_storage(planned) and planned.shape != array.shape:
            raise InputError(f"a buffer of shape {array.shape}, the result has {planned.shape}",
                             where=f"output '{tensor.name}'")  # fmt: skip
