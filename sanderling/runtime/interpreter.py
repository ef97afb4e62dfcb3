"""A drop-in for `tf.lite.Interpreter` and `ai_edge_litert.interpreter.Interpreter`.

The same constructor, methods, dictionaries and exception types, so that existing code changes its
import and nothing else. Tensor indices are places in the file, as they are there.
"""

from __future__ import annotations

import enum
import gc
import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import InputError, SanderlingError
from ..format import known_models
from ..ir import Array, DType, Graph, Shape, Signature, Tensor
from ..spans import span
from .delegate import PlainDelegate
from .feeds import as_array, as_bytes, type_hint
from .interpreter_checks import (
    InvokeError,
    as_index,
    check_dimensions,
    check_strict,
    check_threads,
    keys_text,
    no_tensor,
    open_model,
    runtime_errors,
    type_name,
)
from .interpreter_details import Details, op_details, tensor_details
from .interpreter_memory import NOBODY, Allocation, Shown, holders, show
from .plan import has_storage
from .session import OfThisProcess, Session
from .signature_runner import SignatureRunner


@enum.unique
class OpResolverType(enum.Enum):
    """Which kernels to use. BUILTIN_REF asks for the reference delegate alone."""

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


class Interpreter(OfThisProcess):
    """Runs a .tflite model; see TensorFlow Lite's documentation of the same class."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        model_content: bytes | bytearray | memoryview | None = None,
        experimental_delegates: Sequence[str | PlainDelegate] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        experimental_compress_quantization_zero_points: bool = False,
        experimental_disable_delegate_node_fusion: bool = False,
        experimental_force_delegate_node_profiling: bool = False,
    ) -> None:
        check_threads(num_threads)
        resolver = getattr(experimental_op_resolver_type, "name", "")
        if resolver not in OpResolverType.__members__:
            raise InputError(
                f"Unrecognized passed in op resolver type: {experimental_op_resolver_type}",
                fix=f"an OpResolverType: {', '.join(OpResolverType.__members__)}",
            )
        self._compress_zero_points = experimental_compress_quantization_zero_points
        self._preserve = experimental_preserve_all_tensors
        delegates = list(experimental_delegates or ())
        if resolver == "BUILTIN_REF" and not delegates:
            delegates = ["reference"]
        model = open_model(model_path, model_content)
        self._session = Session(
            model,
            delegates,
            num_threads,
            delegate_clustering=not experimental_disable_delegate_clustering,
            preserve_all_tensors=self._preserve or experimental_disable_delegate_node_fusion,
        )
        self._main = model.main
        self._shapes = {g: [t.shape for t in g.inputs] for g in model.graphs}
        self._ready: dict[Graph, Allocation] = {}
        # What views were made of since it was known that nobody has one, by its identity.
        self._lent: dict[int, Shown] = {}

    # -- preparing ------------------------------------------------------------------------------

    def allocate_tensors(self) -> None:
        """Plan at the current input shapes. Call it first, and again after a resize."""
        self._ensure_safe()
        self._allocate(self._main)

    def resize_tensor_input(
        self, input_index: int, tensor_size: Sequence[int], strict: bool = False
    ) -> None:
        """Give an input another shape, before allocate_tensors(). strict: open dimensions only."""
        self._ensure_safe()
        self._resize(self._main, input_index, tensor_size, strict)

    def _safe_to_run(self) -> bool:
        """Nobody holds an array that tensor(...)() has returned, or a slice of one."""
        return all(holders(shown) == NOBODY for shown in self._lent.values())

    def _ensure_safe(self) -> None:
        if not self._safe_to_run():
            gc.collect()  # a circle of rubbish, such as a kept traceback's, holds nothing
        if not self._safe_to_run():
            raise InvokeError(
                "There is at least 1 reference to internal data in the interpreter in the form of "
                "a numpy array or slice",
                fix="hold the function that tensor() returns, not the array that it returns: "
                "del the array, or copy it",
            )
        self._lent.clear()

    def _allocate(self, graph: Graph) -> None:
        """Plan at the current shapes. Inputs that were set before are kept if they still fit;
        variables start again, as TFLite's do."""
        with runtime_errors(), span("allocate_tensors", "allocate"):
            plan = self._session.runnable_plan(graph, self._shapes[graph])
        before = self._ready.get(graph)
        if before is not None and before.plan is plan:
            return
        self._ready[graph] = now = Allocation(plan)
        self._session.lasting.add(now)
        self._session.reset_variables(graph)
        for tensor, place in zip(graph.inputs, now.inputs, strict=True):
            if tensor.data is not None and tensor.shape == place.shape:
                place[...] = tensor.data  # what it is until it is set
        if before is not None:
            for old, new in zip(before.inputs, now.inputs, strict=True):
                if old.shape == new.shape:
                    new[...] = old

    def _resize(self, graph: Graph, index: int, size: Sequence[int], strict: bool) -> None:
        tensor = known_models.tensor_at(graph, index)
        if tensor is None or tensor not in graph.inputs:
            raise InvokeError(
                f"Attempting to resize tensor {index}, which is not an input",
                fix=f"the inputs are {[graph.tensors.index(t) for t in graph.inputs]}",
            )
        shape = tuple(int(n) for n in np.asarray(size, np.int32).reshape(-1))
        if any(n < 0 for n in shape):
            raise InvokeError(
                f"Cannot resize to {list(shape)}: a size is negative",
                where=f"input {index}",
                fix="give sizes of 0 or more",
            )
        place = graph.inputs.index(tensor)
        if strict:
            check_strict(tensor, shape, index)
        if shape != self._shapes[graph][place]:
            self._shapes[graph][place] = shape
            self._ready.pop(graph, None)

    # -- running --------------------------------------------------------------------------------

    def invoke(self) -> None:
        """Run once on what set_tensor has written."""
        if self._lent:
            self._ensure_safe()
        ready = self._ready.get(self._main)
        steady = None if ready is None else ready.binding.steady
        busy = self._session._busy
        # As _invoke, written out: a call less. All that is not as it was before, and all that goes
        # wrong, takes the long way.
        if steady is None or busy.locked():
            self._invoke(self._main)
            return
        with busy:
            try:
                steady()
            except Exception as error:
                self._blame(error)

    def _blame(self, error: Exception) -> NoReturn:
        with runtime_errors():
            self._ready[self._main].plan.blame(0, error)

    def _invoke(self, graph: Graph) -> None:
        if graph not in self._ready:
            raise InvokeError(
                "Invoke called on model that is not ready", fix="call allocate_tensors() first"
            )
        try:
            with self._session._alone():
                self._ready[graph].binding.run()
        except SanderlingError as error:
            with runtime_errors():
                raise error from error.__cause__

    def set_tensor(self, tensor_index: int, value: npt.ArrayLike) -> None:
        """Copy a value of exactly the tensor's type and shape in."""
        ready = self._ready.get(self._main)
        whole = type(tensor_index) is int
        place = None if ready is None or not whole else ready.places.get(tensor_index)
        # A plain array of the same type and shape needs no second look. Here, and in get_tensor,
        # every call less counts.
        if (
            place is not None
            and type(value) is np.ndarray
            and value.dtype is place.dtype
            and value.shape == place.shape
        ):
            place[...] = value
            return
        self._set(self._main, tensor_index, value)

    def _set(self, graph: Graph, index: int, value: npt.ArrayLike) -> None:
        tensor = self._tensor(graph, index)
        if graph not in self._ready:
            raise InputError(
                "Cannot set tensor: Tensor is unallocated. Try calling allocate_tensors() first"
            )
        target = self._live(graph, index)
        array = as_array(tensor, value, tensor.name)
        if tensor.dtype is DType.STRING and array.dtype.kind in "OSU":
            array = as_bytes(array)
        elif array.dtype != tensor.dtype.numpy:
            raise InputError(
                f"Cannot set tensor: Got value of type {type_name(array.dtype)} but expected type "
                f"{tensor.dtype.name} for input {index}, name: {tensor.name}",
                fix=type_hint(tensor, array),
            )
        check_dimensions(array.shape, target.shape, index)
        target[...] = array

    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Array:
        """A copy of the tensor's value."""
        ready = self._ready.get(self._main)
        if ready is not None and not subgraph_index and type(tensor_index) is int:
            place = ready.places.get(tensor_index)
            if place is not None and place.ndim:
                return place.copy()
        graph = self._graph(subgraph_index) if subgraph_index else self._main
        return self._value(graph, tensor_index)

    def _value(self, graph: Graph, index: int) -> Array:
        return _copied(self._held(graph, index))

    def _held(self, graph: Graph, index: int) -> Array:
        ready = self._ready.get(graph)
        if ready is not None and type(index) is int and index in ready.places:
            return ready.places[index]
        tensor = self._tensor(graph, index)
        data = None if tensor in graph.inputs else tensor.data
        return data if data is not None else self._live(graph, index)

    def tensor(self, tensor_index: int) -> Callable[[], Array]:
        """A function that returns a view of the tensor's memory. Hold the function and not the
        view: nothing can be invoked, allocated or resized while a view lives. Scalars and strings
        have no memory that can be shown: they come as copies."""
        return partial(self._view, tensor_index)

    def _view(self, index: int) -> Array:
        ready = self._ready.get(self._main)
        shown = None if ready is None or type(index) is not int else ready.shown.get(index)
        if shown is None:
            found = self._held(self._main, index)
            if not found.ndim or found.dtype == np.object_:
                return _copied(found)
            shown = self._show(index, found)
        self._lent[id(shown)] = shown
        return shown[0].view(shown[1])

    def _show(self, index: int, found: Array) -> Shown:
        """What views of a tensor are made of: once, if it stays where it is."""
        self._lent = {key: lent for key, lent in self._lent.items() if holders(lent) > NOBODY}
        made, ready = show(found), self._ready.get(self._main)
        if ready is not None and index in ready.places:
            ready.shown[index] = made
        return made

    def _live(self, graph: Graph, index: int) -> Array:
        tensor = self._tensor(graph, index)
        if graph not in self._ready:
            raise InputError("Tensor data is null. Run allocate_tensors() first")
        ready = self._ready[graph]
        twin = self._twin(graph, tensor)
        found = None if twin is None else ready.find(twin)
        if found is None:
            raise InputError(
                f"Tensor data is null: '{tensor.name}' is not kept",
                fix="run invoke() first; for a tensor inside the graph use "
                "experimental_preserve_all_tensors=True",
            )
        if twin is not None and has_storage(twin):
            ready.places[index] = found
        return found

    def reset_all_variables(self) -> None:
        """Variable tensors start again from their initial values."""
        self._session.reset_variables()

    # -- describing -----------------------------------------------------------------------------

    def get_input_details(self) -> list[Details]:
        """A dict for each input: name, index, shape, dtype, quantization."""
        return self._details_of(self._main, self._main.inputs)

    def get_output_details(self) -> list[Details]:
        """A dict for each output, as get_input_details."""
        return self._details_of(self._main, self._main.outputs)

    def get_tensor_details(self, subgraph_index: int = 0) -> list[Details]:
        """A dict for each tensor of a graph, as get_input_details."""
        graph = self._graph(subgraph_index)
        return [self._details(graph, i) for i in range(len(graph.tensors))]

    def num_subgraphs(self) -> int:
        """The number of graphs in the model."""
        return len(self._session.model.graphs)

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """The signatures: {key: {'inputs': names, 'outputs': names}}."""
        return {
            s.key: {"inputs": sorted(s.inputs), "outputs": sorted(s.outputs)}
            for s in self._session.model.signatures
        }

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A function of named arrays that runs a signature; no key is needed for the only one."""
        signatures = self._session.model.signatures
        if signature_key is None and len(signatures) != 1:
            raise InputError(
                f"SignatureDef signature_key is None and model has {len(signatures)} Signatures. "
                "None is only allowed when the model has 1 SignatureDef",
                fix=keys_text(signatures),
            )
        return SignatureRunner(self, signature_key if signature_key else signatures[0].key)

    @property
    def experimental_compress_quantization_zero_points(self) -> bool:
        """Whether equal zero points are shown as one."""
        return self._compress_zero_points

    def _details_of(self, graph: Graph, tensors: Iterable[Tensor]) -> list[Details]:
        places = known_models.places_of(graph)
        return [self._details(graph, places[t]) for t in tensors]

    def _get_tensor_details(self, tensor_index: int, subgraph_index: int) -> Details:
        graph = self._graph(subgraph_index)
        if known_models.tensor_at(graph, tensor_index) is None:
            raise InputError(f"Tensor with no shape found. {no_tensor(graph, tensor_index)}")
        return self._details(graph, tensor_index)

    def _details(self, graph: Graph, index: int) -> Details:
        tensor = self._tensor(graph, index)
        shape = self._shape(graph, tensor)
        return tensor_details(tensor, int(index), shape, self._compress_zero_points)

    def _shape(self, graph: Graph, tensor: Tensor) -> Shape:
        """As resized and, once the graph is allocated, as planned."""
        if graph in self._ready:
            twin = self._twin(graph, tensor)
            if twin is not None:
                late = self._ready[graph].find(twin) if twin.is_dynamic else None
                shape = tensor.shape if twin.is_dynamic else twin.shape
                return shape if late is None else late.shape
        if tensor in graph.inputs:
            return self._shapes[graph][graph.inputs.index(tensor)]
        return tensor.shape

    def _twin(self, graph: Graph, tensor: Tensor) -> Tensor | None:
        """The tensor in the graph's plan; a plan from a record knows inputs and outputs alone."""
        plan = self._ready[graph].plan
        if tensor not in plan.twins and not plan.is_whole:
            plan = self._session.plan(graph, self._shapes[graph])
        return plan.twins.get(tensor)

    def _get_op_details(self, op_index: int) -> Details:
        graph = self._main
        if not 0 <= op_index < len(graph.ops):
            raise InputError(
                f"Invalid node index {op_index}", fix=f"the model has {len(graph.ops)} nodes"
            )
        op = graph.ops[op_index]
        places = {t: i for i, t in enumerate(graph.tensors)}
        return op_details(op, op_index, places)

    def _get_ops_details(self) -> list[Details]:
        return [self._get_op_details(i) for i in range(len(self._main.ops))]

    def _get_full_signature_list(self) -> dict[str, dict[str, dict[str, int]]]:
        def places(signature: Signature, tensors: Mapping[str, Tensor]) -> dict[str, int]:
            found = known_models.places_of(signature.graph)
            return {n: found[tensors[n]] for n in sorted(tensors)}

        return {
            s.key: {"inputs": places(s, s.inputs), "outputs": places(s, s.outputs)}
            for s in self._session.model.signatures
        }

    # -- looking up -----------------------------------------------------------------------------

    def _graph(self, index: int) -> Graph:
        graphs = self._session.model.graphs
        if not 0 <= index < len(graphs):
            raise InputError(
                f"subgraph_index is out of range: {index} for the model, which has "
                f"{len(graphs)} subgraphs."
            )
        return graphs[index]

    def _tensor(self, graph: Graph, index: int) -> Tensor:
        found = known_models.tensor_at(graph, as_index(index))
        if found is None:
            raise InputError(no_tensor(graph, index))
        return found


def _copied(array: Array) -> Array:
    """As LiteRT returns it: a tensor without dimensions is a NumPy scalar."""
    copy = array.copy()
    return copy if copy.ndim or copy.dtype == np.object_ else copy[()]


class InterpreterWithCustomOps(Interpreter):
    """An Interpreter whose custom operators are registered first.

    A registerer is a function without arguments to call, or a tuple (name, evaluate, infer).
    """

    def __init__(
        self,
        custom_op_registerers: Iterable[Callable[[], Any] | tuple[str, Any, Any]] | None = None,
        **more: Any,
    ) -> None:
        for registerer in custom_op_registerers or ():
            _register(registerer)
        super().__init__(**more)


def _register(registerer: object) -> None:
    from ..ops import register_custom

    native = "TFLite's own registerers are native code of its runtime, which is not used here: "
    fix = f"{native}give a function without arguments, or (name, evaluate, infer)"
    if isinstance(registerer, str):
        raise InputError(f"Looking up symbol '{registerer}' failed", fix=fix)
    if isinstance(registerer, tuple) and len(registerer) == 3:
        name, evaluate, infer = registerer
        register_custom(name, evaluate=evaluate, infer=infer)
    elif callable(registerer) and _takes_nothing(registerer):
        registerer()
    else:
        raise InputError(f"{registerer!r} cannot register an operator", fix=fix)


def _takes_nothing(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # it has no signature, or it needs arguments
        return False
    return True
