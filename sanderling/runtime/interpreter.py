"""A drop-in for `tf.lite.Interpreter` and `ai_edge_litert.interpreter.Interpreter`.

The same constructor, methods, dictionaries and exception types, so that existing code changes its
import and nothing else. Tensor indices are places in the file, as they are there.
"""

from __future__ import annotations

import enum
import gc
import inspect
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import InputError, ModelError, SanderlingError
from ..format import known_models, load
from ..ir import Array, DType, Graph, Model, Quant, Shape, Signature, Tensor
from ..spans import span
from .delegate import Delegate, find_delegate
from .feeds import as_array, as_bytes, type_hint
from .plan import Binding, Plan, has_storage
from .session import OfThisProcess, Session

Details = dict[str, Any]


class InvokeError(SanderlingError, RuntimeError):
    """TFLite raises RuntimeError where a graph cannot be allocated or invoked."""


class LoadDelegateError(InputError, OSError):
    """TFLite raises ValueError or OSError where a delegate cannot be loaded; this is both."""


class WrongTypeError(InputError, TypeError):
    """TFLite's binding raises TypeError where an argument has a type it cannot take."""


@contextmanager
def _runtime_errors() -> Iterator[None]:
    try:
        yield
    except SanderlingError as error:
        if isinstance(error, RuntimeError):
            raise
        raise InvokeError(error.what, where=error.where, fix=error.fix) from error


@enum.unique
class OpResolverType(enum.Enum):
    """Which kernels to use. BUILTIN_REF asks for the reference delegate alone."""

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3


def load_delegate(library: str, options: Mapping[str, Any] | None = None) -> Delegate:
    """A delegate by name (`sanderling.delegate_names()` lists them).

    TFLite loads a shared library here; those link against its own runtime and cannot be used.
    """
    try:
        delegate = find_delegate(os.fspath(library))
    except InputError as error:
        raise LoadDelegateError(f"Failed to load delegate from {library}: {error.what}",
                                fix=error.fix) from error  # fmt: skip
    configure = getattr(delegate, "configure", None)
    if options and configure is None:
        raise LoadDelegateError(f"Failed to load delegate from {library}: it takes no options",
                                fix=f"leave out {', '.join(map(str, options))}")  # fmt: skip
    if configure is not None:
        configure(dict(options or {}))
    return delegate


class _Allocation:
    """One graph with its plan, and the arrays that set_tensor, invoke and get_tensor touch."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        # Strings have no place in an arena; they are held here.
        self.inputs = [_input_place(plan, t) for t in plan.graph.inputs]
        self.binding: Binding | None = None
        # Arrays that stay where they are, by the tensor's index: looked up once.
        self.places: dict[int, Array] = {}
        self.shown: dict[int, _Shown] = {}  # how views of them are made
        # All that a further run has to do, if it is one call.
        self.call: Callable[[], None] | None = None

    def run(self) -> None:
        if self.binding is None:
            blank: list[Array | None] = [None] * len(self.plan.graph.outputs)
            self.binding = self.plan.bind(self.inputs, blank)
        self.binding.run()
        self.call = self.binding.only_call()

    def follow(self) -> None:
        self.call = None
        if self.binding is not None:
            self.binding.follow()

    def find(self, twin: Tensor) -> Array | None:
        """The live array of a tensor, if it has one now."""
        if twin in self.plan.graph.inputs:
            return self.inputs[self.plan.graph.inputs.index(twin)]
        if twin in self.plan.variables:
            return self.plan.variables[twin]
        if has_storage(twin):
            return self.plan.array(twin)
        return self._late(twin)

    def _late(self, twin: Tensor) -> Array | None:
        """A value whose shape only the run could tell."""
        if self.binding is None:
            return None
        for (_, _, outputs), step in zip(self.binding.steps, self.plan.steps, strict=True):
            if twin in step.outputs:
                return outputs[step.outputs.index(twin)]
        return None


def _input_place(plan: Plan, tensor: Tensor) -> Array:
    place = plan.variables[tensor] if tensor in plan.variables else plan.array(tensor)
    return np.full(tensor.shape, b"", np.object_) if place is None else place


class _Lender:
    """A tensor's memory, of which NumPy makes an array that is nobody's view."""

    __slots__ = ("__array_interface__", "array")

    def __init__(self, array: Array) -> None:
        self.array, self.__array_interface__ = array, array.__array_interface__


# An array that every view and slice in a user's hands holds on to, because it is itself a view of
# no array; and the tensor's type: small floats have no code in an array interface.
_Shown = tuple[Array, np.dtype[Any]]


def _shown(array: Array) -> _Shown:
    return np.asarray(_Lender(array)), array.dtype


def _holders(shown: _Shown) -> int:
    return sys.getrefcount(shown[0])


_NOBODY = _holders(_shown(np.empty(1)))


class Interpreter(OfThisProcess):
    """Runs a .tflite model; see TensorFlow Lite's documentation of the same class."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        model_content: bytes | bytearray | memoryview | None = None,
        experimental_delegates: Sequence[str | Delegate] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        experimental_compress_quantization_zero_points: bool = False,
        experimental_disable_delegate_node_fusion: bool = False,
        experimental_force_delegate_node_profiling: bool = False,
    ) -> None:
        _check_threads(num_threads)
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
        model = _model(model_path, model_content)
        self._session = Session(
            model,
            delegates,
            num_threads,
            delegate_clustering=not experimental_disable_delegate_clustering,
            preserve_all_tensors=self._preserve or experimental_disable_delegate_node_fusion,
        )
        self._main = model.main
        self._shapes = {g: [t.shape for t in g.inputs] for g in model.graphs}
        self._ready: dict[Graph, _Allocation] = {}
        # What views were made of since it was known that nobody has one, by its identity.
        self._lent: dict[int, _Shown] = {}

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
        return all(_holders(shown) == _NOBODY for shown in self._lent.values())

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
        with _runtime_errors(), span("allocate_tensors", "allocate"):
            plan = self._session.runnable_plan(graph, self._shapes[graph])
        before = self._ready.get(graph)
        if before is not None and before.plan is plan:
            return
        self._ready[graph] = now = _Allocation(plan)
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
            raise InvokeError(f"Attempting to resize tensor {index}, which is not an input",
                              fix=f"the inputs are {[graph.tensors.index(t) for t in graph.inputs]}"
                              )  # fmt: skip
        shape = tuple(int(n) for n in np.asarray(size, np.int32).reshape(-1))
        if any(n < 0 for n in shape):
            raise InvokeError(f"Cannot resize to {list(shape)}: a size is negative",
                              where=f"input {index}", fix="give sizes of 0 or more")  # fmt: skip
        place = graph.inputs.index(tensor)
        if strict:
            _check_strict(tensor, shape, index)
        if shape != self._shapes[graph][place]:
            self._shapes[graph][place] = shape
            self._ready.pop(graph, None)

    # -- running --------------------------------------------------------------------------------

    def invoke(self) -> None:
        """Run once on what set_tensor has written."""
        if self._lent:
            self._ensure_safe()
        ready = self._ready.get(self._main)
        call = None if ready is None else ready.call
        busy = self._session._busy
        # The quick way, written out: every call less counts. All that is not as it was before, and
        # all that goes wrong, takes the long one.
        if call is None or busy.locked():
            self._invoke(self._main)
            return
        with busy:
            try:
                call()
            except Exception as error:
                self._blame(error)

    def _blame(self, error: Exception) -> NoReturn:
        binding = self._ready[self._main].binding
        assert binding is not None
        with _runtime_errors():
            binding.blame(0, error)

    def _invoke(self, graph: Graph) -> None:
        if graph not in self._ready:
            raise InvokeError("Invoke called on model that is not ready",
                              fix="call allocate_tensors() first")  # fmt: skip
        try:
            with self._session._alone():
                self._ready[graph].run()
        except SanderlingError as error:
            with _runtime_errors():
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
            raise InputError("Cannot set tensor: Tensor is unallocated. Try calling "
                             "allocate_tensors() first")  # fmt: skip
        target = self._live(graph, index)
        array = as_array(tensor, value, tensor.name)
        if tensor.dtype is DType.STRING and array.dtype.kind in "OSU":
            array = as_bytes(array)
        elif array.dtype != tensor.dtype.numpy:
            raise InputError(
                f"Cannot set tensor: Got value of type {_type_name(array.dtype)} but expected type "
                f"{tensor.dtype.name} for input {index}, name: {tensor.name}",
                fix=type_hint(tensor, array),
            )
        _check_dimensions(array.shape, target.shape, index)
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

    def _show(self, index: int, found: Array) -> _Shown:
        """What views of a tensor are made of: once, if it stays where it is."""
        self._lent = {key: lent for key, lent in self._lent.items() if _holders(lent) > _NOBODY}
        made, ready = _shown(found), self._ready.get(self._main)
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
                fix=_keys_text(signatures),
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
            raise InputError(f"Tensor with no shape found. {_no_tensor(graph, tensor_index)}")
        return self._details(graph, tensor_index)

    def _details(self, graph: Graph, index: int) -> Details:
        tensor = self._tensor(graph, index)
        shape = self._shape(graph, tensor)
        return {
            "name": tensor.name,
            "index": int(index),
            "shape": np.array(shape, np.int32),
            "shape_signature": np.array(tensor.signature or shape, np.int32),
            "dtype": _OWN_TYPES.get(tensor.dtype, tensor.dtype.numpy.type),
            "quantization": _per_tensor(tensor),
            "quantization_parameters": self._quantization(tensor),
            "sparsity_parameters": _sparsity(tensor),
        }

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

    def _quantization(self, tensor: Tensor) -> Details:
        scales, zeros = _scales(tensor.quant)
        if self._compress_zero_points and zeros.size > 1 and (zeros == zeros[0]).all():
            zeros = zeros[:1]
        quant = tensor.quant
        return {
            "scales": np.array(scales),
            "zero_points": zeros,
            "quantized_dimension": 0 if quant is None else quant.axis,
            "block_size": quant.block.block_size if quant is not None and quant.block else 0,
        }

    def _get_op_details(self, op_index: int) -> Details:
        graph = self._main
        if not 0 <= op_index < len(graph.ops):
            raise InputError(f"Invalid node index {op_index}",
                             fix=f"the model has {len(graph.ops)} nodes")  # fmt: skip
        op = graph.ops[op_index]
        places = {t: i for i, t in enumerate(graph.tensors)}
        inputs = [-1 if t is None else places[t] for t in op.inputs]
        outputs = [places[t] for t in op.outputs]
        return {
            "index": int(op_index),
            "op_name": op.name.removeprefix("custom."),
            "inputs": np.array(inputs, np.int32),
            "outputs": np.array(outputs, np.int32),
            "operand_types": [self._details(graph, i)["dtype"] for i in inputs if i != -1],
            "result_types": [self._details(graph, i)["dtype"] for i in outputs],
        }

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
            raise InputError(f"subgraph_index is out of range: {index} for the model, which has "
                             f"{len(graphs)} subgraphs.")  # fmt: skip
        return graphs[index]

    def _tensor(self, graph: Graph, index: int) -> Tensor:
        found = known_models.tensor_at(graph, _index(index))
        if found is None:
            raise InputError(_no_tensor(graph, index))
        return found


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


class SignatureRunner(OfThisProcess):
    """Runs one signature of an Interpreter's model, by the names its author gave."""

    def __init__(self, interpreter: Interpreter | None = None,
                 signature_key: str | None = None) -> None:  # fmt: skip
        if not interpreter:
            raise InputError("None interpreter provided.")
        if not signature_key:
            raise InputError("None signature_key provided.")
        try:
            self._signature = interpreter._session.model.signature(signature_key)
        except KeyError:
            raise InputError(f'Invalid signature_key provided: "{signature_key}".',
                             fix=_keys_text(interpreter._session.model.signatures)
                             ) from None  # fmt: skip
        self._interpreter = interpreter
        self._index = known_models.places_of(self._signature.graph)

    def __call__(self, **arrays: Any) -> dict[str, Array]:
        wanted = self._signature.inputs
        if len(arrays) != len(wanted):
            raise InputError("Invalid number of inputs provided for running a SignatureDef, "
                             f"expected {len(wanted)} vs provided {len(arrays)}",
                             fix=f"the inputs are {', '.join(wanted)}")  # fmt: skip
        for name in arrays:
            if name not in wanted:
                raise InputError(f"Invalid Input name ({name}) for SignatureDef",
                                 fix=f"the inputs are {', '.join(wanted)}")  # fmt: skip
        graph, interpreter = self._signature.graph, self._interpreter
        places = {name: self._index[wanted[name]] for name in arrays}
        for name, value in arrays.items():
            interpreter._resize(graph, places[name], np.shape(value), False)
        interpreter._allocate(graph)
        for name, value in arrays.items():
            interpreter._set(graph, places[name], value)
        interpreter._invoke(graph)
        return {
            name: interpreter._value(graph, self._index[tensor])
            for name, tensor in sorted(self._signature.outputs.items())
        }

    def get_input_details(self) -> dict[str, Details]:
        """A dict for each input by the signature's names, as Interpreter.get_input_details."""
        return self._named_details(self._signature.inputs)

    def get_output_details(self) -> dict[str, Details]:
        """A dict for each output by the signature's names."""
        return self._named_details(self._signature.outputs)

    def _named_details(self, tensors: Mapping[str, Tensor]) -> dict[str, Details]:
        graph = self._signature.graph
        return {n: self._interpreter._details(graph, self._index[tensors[n]])
                for n in sorted(tensors)}  # fmt: skip


def _check_threads(threads: int | None) -> None:
    if threads is not None and not isinstance(threads, int):
        raise InputError("type of num_threads should be int", where="num_threads",
                         fix=f"it is {threads!r}: give int(...)")  # fmt: skip
    if threads is not None and threads < 1:
        raise InputError("num_threads should >= 1", where="num_threads",
                         fix="give 1 or more, or None for a default")  # fmt: skip


def _model(path: str | os.PathLike[str] | None, content: Any) -> Model:
    """From the one of the two that is given; the errors say what LiteRT's say first."""
    if path and content is not None:
        raise InputError("Can't both provide `model_path` and `model_content`", fix="give one")
    if not path and (content is None or len(content) == 0):
        raise InputError("`model_path` or `model_content` must be specified.",
                         fix="give a path or the bytes of a .tflite file")  # fmt: skip
    try:
        return load(os.fsdecode(path) if path else _buffer(content))
    except ModelError as error:
        raise ModelError(f"The model is not a valid Flatbuffer buffer: {error.what}",
                         where=error.where, fix=error.fix) from error  # fmt: skip
    except InputError as error:
        if isinstance(error, WrongTypeError):
            raise
        raise InputError(f"Could not open '{os.fsdecode(path or '')}': {error.what}",
                         fix=error.fix) from error  # fmt: skip


def _buffer(content: Any) -> bytes | bytearray | memoryview:
    """Anything that shows its memory: bytes, a bytearray, an mmap, an array of bytes."""
    if isinstance(content, bytes | bytearray):
        return content
    try:
        return memoryview(content)
    except TypeError as error:
        raise WrongTypeError(f"model_content is of type {type(content).__name__}",
                             fix="give the file's bytes, or model_path=...") from error  # fmt: skip


def _index(index: object) -> int:
    try:
        return operator.index(index)  # type: ignore[arg-type]
    except TypeError as error:
        raise WrongTypeError(f"a tensor index of type {type(index).__name__}",
                             fix="give the 'index' of get_input_details() and its like"
                             ) from error  # fmt: skip


def _no_tensor(graph: Graph, index: int) -> str:
    return f"Invalid tensor index {index} exceeds max tensor index {len(graph.tensors) - 1}"


def _keys_text(signatures: Sequence[Signature]) -> str:
    return f"the keys are {', '.join(repr(s.key) for s in signatures) or 'none'}"


def _copied(array: Array) -> Array:
    """As LiteRT returns it: a tensor without dimensions is a NumPy scalar."""
    copy = array.copy()
    return copy if copy.ndim or copy.dtype == np.object_ else copy[()]


def _check_strict(tensor: Tensor, shape: Shape, index: int) -> None:
    """Only dimensions that the file leaves open may change."""
    fixed = tensor.signature or tensor.shape
    if len(shape) != len(fixed):
        raise InvokeError(f"Attempting to resize tensor {index} of {len(fixed)} dimensions to "
                          f"{len(shape)}", fix="leave out strict=True")  # fmt: skip
    for axis, (stated, wanted) in enumerate(zip(fixed, shape, strict=True)):
        if stated not in (-1, wanted):
            raise InvokeError(
                f"Attempting to resize dimension {axis} of tensor {index} with value {stated} to "
                f"{wanted}. ResizeInputTensorStrict only allows mutating unknown dimensions "
                "identified by -1.",
                fix="leave out strict=True",
            )


def _check_dimensions(got: Shape, wanted: Shape, index: int) -> None:
    mismatch = "Cannot set tensor: Dimension mismatch. "
    if len(got) != len(wanted):
        raise InputError(f"{mismatch}Got {len(got)} but expected {len(wanted)} for input {index}.",
                         fix=f"reshape it to {list(wanted)}")  # fmt: skip
    for axis, (size, expected) in enumerate(zip(got, wanted, strict=True)):
        if size != expected:
            raise InputError(
                f"{mismatch}Got {size} but expected {expected} for dimension {axis} of input "
                f"{index}.",
                fix=f"give an array of shape {list(wanted)}, or call resize_tensor_input() and "
                "allocate_tensors() first",
            )


def _type_name(dtype: np.dtype[Any]) -> str:
    """TFLite's name for a NumPy type."""
    try:
        return DType.of(dtype).name
    except TypeError:
        return "NOTYPE"


# Types that TFLite's binding shows otherwise than as they are held here.
_OWN_TYPES: dict[DType, Any] = {DType.STRING: np.bytes_}


def _scales(quant: Quant | None) -> tuple[Array, Array]:
    """Scales and zero points; those of blocks lie in tensors of their own."""
    if quant is None:
        return np.zeros(0, np.float32), np.zeros(0, np.int32)
    if quant.block is None:
        return quant.scale, quant.zero_point.astype(np.int32)
    scales, zeros = (None if t is None else t.data
                     for t in (quant.block.scales, quant.block.zero_points))  # fmt: skip
    flat = quant.scale if scales is None else scales.reshape(-1)
    return flat, np.zeros(flat.size, np.int32) if zeros is None else zeros.reshape(-1).astype("i4")


def _per_tensor(tensor: Tensor) -> tuple[float, int]:
    if tensor.quant is None or tensor.quant.scale.size != 1:
        return 0.0, 0
    return float(tensor.quant.scale[0]), int(tensor.quant.zero_point[0])


def _sparsity(tensor: Tensor) -> Details:
    if tensor.sparsity is None:
        return {}
    found: Details = {"traversal_order": np.array(tensor.sparsity.traversal_order, np.int32)}
    if tensor.sparsity.block_map:
        found["block_map"] = np.array(tensor.sparsity.block_map, np.int32)
    return found | {"dim_metadata": [_sparse_dim(d) for d in tensor.sparsity.dims]}


def _sparse_dim(dim: Any) -> Details:
    if dim.is_dense:
        return {"format": 0, "dense_size": dim.dense_size}
    return {
        "format": 1,
        "array_segments": np.array(dim.segments, np.int32),
        "array_indices": np.array(dim.indices, np.int32),
    }
