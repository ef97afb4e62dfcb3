"""A drop-in for `ai_edge_litert.compiled_model.CompiledModel`: the same methods, dictionaries and
exception types; and asynchronous runs, a report of the parts, a profile, and a proof of
acceleration beyond it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import InputError, ModelError, UnsupportedError
from ..forks import renews
from ..format import known_models, load
from ..ir import Array, Graph, Model, Shape, Signature, Tensor
from ..runtime.interpreter_checks import InvokeError, check_strict, runtime_errors
from ..runtime.plan import Plan, aligned_bytes, unpacked_bytes
from ..runtime.session import BoundRun, OfThisProcess, Session
from .accelerators import accelerators
from .environment import Environment, EnvironmentOptions
from .hardware_accelerator import HardwareAccelerator
from .options import (
    CpuKernelMode,
    CpuOptions,
    GpuOptions,
    IntelOpenVinoOptions,
    Options,
    QualcommOptions,
)
from .run_queue import PendingRun, RunQueue
from .tensor_buffer import TensorBuffer

__all__ = [
    "CompiledModel",
    "CpuKernelMode",
    "CpuOptions",
    "Environment",
    "EnvironmentOptions",
    "GpuOptions",
    "HardwareAccelerator",
    "IntelOpenVinoOptions",
    "Options",
    "PendingRun",
    "QualcommOptions",
    "TensorBuffer",
]

# What LiteRT calls the only entry of a model that names none.
PLACEHOLDER = "<placeholder signature>"
# Sets of buffers whose binding is kept; the longest unused makes room.
MOST_BOUND = 16
HOST_MEMORY = 1  # in 'supported_types'

Key = tuple[int, ...]  # of a binding: the signature's index, and the buffers' identities


class CompiledModel(OfThisProcess):
    """A model, compiled for the accelerators that were asked for. Made by from_file or from_buffer.

    One run goes on at a time. Others that are asked for meanwhile, by other threads or
    asynchronously, wait for their turn.
    """

    def __init__(self, model: Model, options: Options, environment: Environment) -> None:
        chosen = accelerators(options)
        threads = options.cpu_options.num_threads
        self._environment, self._chosen = environment, chosen
        session = Session(
            model,
            chosen.delegates,
            threads if threads > 0 else None,
            require_full_delegation=chosen.alone,
        )
        self._session: Session | None = session
        self._signatures = [_in_order(s) for s in model.signatures] or [_unnamed(session)]
        self._shapes = {g: [t.shape for t in g.inputs] for g in model.graphs}
        self._plans: dict[Graph, Plan] = {}  # at these shapes
        self._bindings: dict[Key, _Binding] = {}
        self.renew_lock()
        renews(self)

    def renew_lock(self) -> None:
        """In a forked child nobody runs this model, and the thread of the queue is not there."""
        self._queue, self._turn = RunQueue(), threading.RLock()

    @classmethod
    def from_file(
        cls,
        model_path: str | os.PathLike[str],
        hardware_accel: HardwareAccelerator | None = None,
        environment: Environment | None = None,
        options: Options | None = None,
    ) -> CompiledModel:
        """Compile a .tflite file, for the CPU if nothing else is said. hardware_accel is short for
        options with these accelerators and one thread."""
        return cls._made(os.fspath(model_path), "file", hardware_accel, environment, options)

    @classmethod
    def from_buffer(
        cls,
        model_data: bytes,
        hardware_accel: HardwareAccelerator | None = None,
        environment: Environment | None = None,
        options: Options | None = None,
    ) -> CompiledModel:
        """As from_file, from the bytes of a .tflite file."""
        return cls._made(model_data, "buffer", hardware_accel, environment, options)

    @classmethod
    def _made(
        cls,
        source: str | bytes,
        kind: str,
        accelerator: HardwareAccelerator | None,
        environment: Environment | None,
        options: Options | None,
    ) -> CompiledModel:
        if options is not None and accelerator is not None:
            raise InputError("Pass either options or hardware_accel, not both.", fix="give one")
        if options is None:
            wanted = HardwareAccelerator.CPU if accelerator is None else accelerator
            options = Options(HardwareAccelerator(wanted), CpuOptions(num_threads=1))
        shared: Environment = (environment or Environment.create()).capsule
        try:
            model = load(source)
        except (InputError, ModelError) as error:
            raise InvokeError(
                f"Failed to load model from {kind}: {error.what}", where=error.where, fix=error.fix
            ) from error
        with runtime_errors():
            return cls(model, options, shared)

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for runs that were asked for, and let everything go but the buffers."""
        self._queue.close()
        self._bindings.clear()
        self._plans.clear()
        self._session = None

    @property
    def environment(self) -> Environment:
        """The environment that it was made with."""
        return self._environment

    # -- describing -------------------------------------------------------------------------------

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """The signatures: {key: {'inputs': names, 'outputs': names}}, in the graph's order."""
        return {
            s.key: {"inputs": list(s.inputs), "outputs": list(s.outputs)} for s in self._signatures
        }

    def get_signature_by_index(self, index: int) -> dict[str, Any]:
        """{'key': ..., 'inputs': names, 'outputs': names} of one signature."""
        found = self._signature(index)
        return {"key": found.key, "inputs": list(found.inputs), "outputs": list(found.outputs)}

    def get_num_signatures(self) -> int:
        """How many signatures there are; a model without any has one that stands for its graph."""
        return len(self._signatures)

    def get_signature_index(self, key: str) -> int:
        """The place of the signature with this key, or -1."""
        return next((i for i, s in enumerate(self._signatures) if s.key == key), -1)

    def get_input_tensor_details(self, signature_key: str) -> dict[str, dict[str, Any]]:
        """{name: {'name', 'index', 'dtype', 'shape'}} of the inputs, at their current shapes."""
        found = self._signature(self._index(signature_key))
        return self._details(found, found.inputs)

    def get_output_tensor_details(self, signature_key: str) -> dict[str, dict[str, Any]]:
        """As get_input_tensor_details, of the outputs."""
        found = self._signature(self._index(signature_key))
        return self._details(found, found.outputs)

    def get_input_buffer_requirements(
        self, input_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """{'buffer_size': bytes, 'supported_types': kinds of memory} of an input."""
        found = self._signature(signature_index)
        return self._requirements(found, _at(found.inputs, input_index, "input"))

    def get_output_buffer_requirements(
        self, output_index: int, signature_index: int = 0
    ) -> dict[str, Any]:
        """As get_input_buffer_requirements, of an output."""
        found = self._signature(signature_index)
        return self._requirements(found, _at(found.outputs, output_index, "output"))

    def _details(
        self, signature: Signature, tensors: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Any]]:
        places = known_models.places_of(signature.graph)
        return {
            name: {
                "name": tensor.name,
                "index": places[tensor],
                "dtype": tensor.dtype.numpy.name,
                "shape": list(self._twin(signature, tensor).shape),
            }
            for name, tensor in tensors.items()
        }

    def _requirements(self, signature: Signature, tensor: Tensor) -> dict[str, Any]:
        twin = self._twin(signature, tensor)
        size = 0 if twin.is_dynamic else unpacked_bytes(twin)
        return {"buffer_size": size, "supported_types": [HOST_MEMORY]}

    # -- what LiteRT's interface lacks ------------------------------------------------------------

    def is_fully_accelerated(self) -> bool:
        """Whether the accelerator that was asked for runs every op: the strongest, if several were.
        It is read from the compiled parts that run, of every shape and every graph that was run so
        far; before the first run, of those that will."""
        accelerated = self._chosen.accelerated
        return bool(accelerated) and set(self.ops_by_delegate()) <= accelerated

    def ops_by_delegate(self) -> dict[str, int]:
        """How many ops each delegate runs, as in is_fully_accelerated: the proof."""
        with self._turn:
            if not self._open.plans_made():
                self._plan(self._signature(0))
            found: dict[str, int] = {}
            for plan in self._open.plans_made():
                for step in plan.steps:
                    name = step.part.delegate.name
                    found[name] = found.get(name, 0) + len(step.part.nodes)
            return found

    def explain(self, signature_index: int = 0) -> str:
        """Which ops run where at the current shapes, and why the others do not run on the
        accelerators before."""
        graph = self._signature(signature_index).graph
        with self._turn, runtime_errors():
            return self._open.plan(graph, self._shapes[graph]).partition.table()

    def profile(
        self,
        signature_index: int = 0,
        input_buffers: Sequence[TensorBuffer] = (),
        runs: int | None = None,
        with_roofline: bool = False,
    ) -> dict[str, Any]:
        """What each step takes, on these inputs or random ones: the record of sanderling.profile,
        taken in a session of its own with the same delegates and threads."""
        from ..measure.profiling import profile

        found, session = self._signature(signature_index), self._open
        given = zip(found.inputs.items(), input_buffers, strict=False)
        return profile(
            session.model,
            threads=session.threads,
            runs=runs,
            delegates=[d.name for d in self._chosen.delegates],
            inputs={name: self._input(found, tensor, buffer) for (name, tensor), buffer in given},
            signature=None if found.key == PLACEHOLDER else found.key,
            with_roofline=with_roofline,
        )

    # -- buffers ----------------------------------------------------------------------------------

    def create_input_buffers(self, signature_index: int) -> list[TensorBuffer]:
        """A buffer for each input, of its current shape."""
        found = self._signature(signature_index)
        return [self._buffer(found, tensor) for tensor in found.inputs.values()]

    def create_output_buffers(self, signature_index: int) -> list[TensorBuffer]:
        """A buffer for each output, of its current shape."""
        found = self._signature(signature_index)
        return [self._buffer(found, tensor) for tensor in found.outputs.values()]

    def create_input_buffer_by_name(self, signature_key: str, input_name: str) -> TensorBuffer:
        """A buffer for one input."""
        found = self._signature(self._index(signature_key))
        return self._buffer(found, _named(found.inputs, input_name, "input"))

    def create_output_buffer_by_name(self, signature_key: str, output_name: str) -> TensorBuffer:
        """A buffer for one output."""
        found = self._signature(self._index(signature_key))
        return self._buffer(found, _named(found.outputs, output_name, "output"))

    def _buffer(self, signature: Signature, tensor: Tensor) -> TensorBuffer:
        twin = self._twin(signature, tensor)
        dtype = tensor.dtype.numpy
        if not tensor.dtype.is_fixed_size:
            raise UnsupportedError(
                f"a buffer cannot hold {tensor.dtype.name.lower()}",
                where=f"tensor '{tensor.name}'",
                fix="sanderling.Interpreter and model.compile() take it",
            )
        if twin.is_dynamic:
            return TensorBuffer(None, dtype, twin.shape)
        raw = aligned_bytes(unpacked_bytes(twin))
        return TensorBuffer(raw.view(dtype).reshape(twin.shape), dtype, twin.shape)

    def resize_input_tensor(
        self,
        input_index: int,
        dims: Sequence[int],
        signature_index: int = 0,
        strict: bool = True,
    ) -> None:
        """Give an input another shape. strict: only dimensions that the file leaves open change."""
        found = self._signature(signature_index)
        tensor = _at(found.inputs, input_index, "input")
        shape = tuple(int(n) for n in dims)
        if any(n < 0 for n in shape):
            raise InvokeError(
                f"Cannot resize to {list(shape)}: a size is negative", fix="give sizes of 0 or more"
            )
        if strict:
            check_strict(tensor, shape, input_index)
        self._queue.wait()
        with self._turn:
            self._shapes[found.graph][found.graph.inputs.index(tensor)] = shape
            self._plans.pop(found.graph, None)
            self._bindings.clear()

    def resize_input_tensor_by_name(
        self, signature_key: str, input_name: str, dims: Sequence[int], strict: bool = True
    ) -> None:
        """As resize_input_tensor, by names."""
        index = self.get_signature_index(signature_key)
        if index < 0:
            raise InputError(f"Unknown signature: {signature_key}", fix=self._keys())
        names = list(self._signatures[index].inputs)
        if input_name not in names:
            raise InputError(
                f"Unknown input '{input_name}' for signature '{signature_key}'",
                fix=f"the inputs are {', '.join(names)}",
            )
        self.resize_input_tensor(names.index(input_name), dims, index, strict)

    # -- running ----------------------------------------------------------------------------------

    def run_by_index(
        self,
        signature_index: int,
        input_buffers: Sequence[TensorBuffer],
        output_buffers: Sequence[TensorBuffer],
    ) -> None:
        """Run a signature on buffers in the order of its inputs and outputs."""
        call = self._call(signature_index, input_buffers, output_buffers)
        if self._queue.is_idle:
            call()
        else:  # behind the runs that were asked for before
            self._queue.add(call).result()

    def run_by_name(
        self,
        signature_key: str,
        input_map: Mapping[str, TensorBuffer],
        output_map: Mapping[str, TensorBuffer],
    ) -> None:
        """Run a signature on buffers by the names of its inputs and outputs."""
        self.run_by_index(*self._by_name(signature_key, input_map, output_map))

    def run_async_by_index(
        self,
        signature_index: int,
        input_buffers: Sequence[TensorBuffer],
        output_buffers: Sequence[TensorBuffer],
    ) -> PendingRun:
        """As run_by_index, but it returns at once. `result()` of what it returns waits for the end
        of the run, `await` does so in a coroutine. Runs are carried out in the order in which they
        were asked for; buffers can be read and written when the last run that uses them has ended,
        and those who try earlier wait for it."""
        run = self._queue.add(self._call(signature_index, input_buffers, output_buffers))
        for buffer in (*input_buffers, *output_buffers):
            buffer.wait_for(run)
        return run

    def run_async_by_name(
        self,
        signature_key: str,
        input_map: Mapping[str, TensorBuffer],
        output_map: Mapping[str, TensorBuffer],
    ) -> PendingRun:
        """As run_async_by_index, by names."""
        return self.run_async_by_index(*self._by_name(signature_key, input_map, output_map))

    def _by_name(
        self,
        key: str,
        inputs: Mapping[str, TensorBuffer],
        outputs: Mapping[str, TensorBuffer],
    ) -> tuple[int, list[TensorBuffer], list[TensorBuffer]]:
        """In the order of the signature. Names that it does not have are left out, as in LiteRT."""
        index = self._index(key)
        found = self._signatures[index]
        picked = _picked(found.inputs, inputs, "input")
        return index, picked, _picked(found.outputs, outputs, "output")

    def _call(
        self, index: int, inputs: Sequence[TensorBuffer], outputs: Sequence[TensorBuffer]
    ) -> Callable[[], None]:
        """A run of these buffers, whose number is right."""
        found = self._signature(index)
        for kind, wanted, given in (
            ("input", found.inputs, inputs),
            ("output", found.outputs, outputs),
        ):
            if len(given) != len(wanted):
                raise InvokeError(
                    f"Failed to invoke the compiled model: {len(given)} {kind} buffers",
                    where=f"signature '{found.key}'",
                    fix=f"give {len(wanted)}: {', '.join(wanted)}",
                )
        # Runs of other models that these buffers are waiting for; those of this one come first.
        earlier = [run for b in (*inputs, *outputs) if (run := b.pending) is not None]
        return partial(self._run, index, list(inputs), list(outputs), earlier)

    def _run(
        self,
        index: int,
        inputs: list[TensorBuffer],
        outputs: list[TensorBuffer],
        earlier: Sequence[PendingRun],
    ) -> None:
        key = (index, *map(id, inputs), *map(id, outputs))
        for run in earlier:
            run.settle()
        with self._turn, runtime_errors():
            found = self._bindings.pop(key, None) or self._bound(index, inputs, outputs)
            found.run()
            if len(self._bindings) >= MOST_BOUND:
                self._bindings.pop(next(iter(self._bindings)), None)
            self._bindings[key] = found

    def _bound(
        self, index: int, inputs: list[TensorBuffer], outputs: list[TensorBuffer]
    ) -> _Binding:
        signature = self._signature(index)
        feeds = {
            name: self._input(signature, tensor, buffer)
            for (name, tensor), buffer in zip(signature.inputs.items(), inputs, strict=True)
        }
        in_place: dict[str, Array] = {}
        copied: dict[str, TensorBuffer] = {}
        for (name, tensor), buffer in zip(signature.outputs.items(), outputs, strict=True):
            array = self._output(signature, tensor, buffer)
            taken = (*feeds.values(), *in_place.values())
            if array is None or any(np.may_share_memory(array, a) for a in taken):
                copied[name] = buffer
            else:
                in_place[name] = array
        key = None if signature.key == PLACEHOLDER else signature.key
        made = self._open.bind(feeds, in_place, signature=key)
        for buffer in (*inputs, *outputs):
            buffer.keep_for(self)
        return _Binding(made, copied)

    def forget(self, buffer: TensorBuffer) -> None:
        """The memory of a buffer goes: whatever was bound to it goes too."""
        for key in [k for k in list(self._bindings) if id(buffer) in k[1:]]:
            self._bindings.pop(key, None)

    def _input(self, signature: Signature, tensor: Tensor, buffer: TensorBuffer) -> Array:
        found = _fitting(buffer, tensor, self._twin(signature, tensor).shape, "input")
        if found is None:
            raise InvokeError(
                "Failed to invoke the compiled model: a buffer without memory",
                where=f"input '{tensor.name}'",
                fix="it is an output's of unknown shape: run the model that fills it first",
            )
        return found

    def _output(self, signature: Signature, tensor: Tensor, buffer: TensorBuffer) -> Array | None:
        """None if the run makes the array."""
        twin = self._twin(signature, tensor)
        return None if twin.is_dynamic else _fitting(buffer, tensor, twin.shape, "output")

    # -- looking up -------------------------------------------------------------------------------

    @property
    def _open(self) -> Session:
        if self._session is None:
            raise InvokeError("the compiled model is closed", fix="make another one")
        return self._session

    def _signature(self, index: int) -> Signature:
        if self._session is None or not 0 <= index < len(self._signatures):
            self._open  # noqa: B018  # a closed one says so
            raise InvokeError(f"there is no signature {index}", fix=self._keys())
        return self._signatures[index]

    def _index(self, key: str) -> int:
        index = self.get_signature_index(key)
        if index < 0:
            raise InvokeError(f"Signature not found: {key}", fix=self._keys())
        return index

    def _keys(self) -> str:
        return f"the signatures are {', '.join(repr(s.key) for s in self._signatures)}"

    def _twin(self, signature: Signature, tensor: Tensor) -> Tensor:
        """The tensor at the current shapes."""
        return self._plan(signature).twins[tensor]

    def _plan(self, signature: Signature) -> Plan:
        """Looked up once: while a run goes on, buffers can be made for the next."""
        graph = signature.graph
        found = self._plans.get(graph)
        if found is None:
            with self._turn, runtime_errors():
                found = self._open.runnable_plan(graph, self._shapes[graph])
            self._plans[graph] = found
        return found


class _Binding:
    """Arrays bound once. copied: outputs that cannot be written where they lie, because an input
    lies there or their shape is not known."""

    def __init__(self, bound: BoundRun, copied: Mapping[str, TensorBuffer]) -> None:
        self.bound, self.copied = bound, copied

    def run(self) -> None:
        self.bound.run()
        if not self.copied:
            return
        results = self.bound.outputs
        for name, buffer in self.copied.items():
            own = buffer.array
            if own is None or own.size != results[name].size:
                buffer.take(results[name].copy())
            else:
                own.reshape(results[name].shape)[...] = results[name]


def _in_order(signature: Signature) -> Signature:
    """Names in the order of the graph's tensors, as LiteRT has them."""

    def ordered(names: Mapping[str, Tensor], tensors: Sequence[Tensor]) -> dict[str, Tensor]:
        place = {t: i for i, t in enumerate(tensors)}
        return dict(sorted(names.items(), key=lambda item: place[item[1]]))

    graph = signature.graph
    inputs = ordered(signature.inputs, graph.inputs)
    return Signature(signature.key, graph, inputs, ordered(signature.outputs, graph.outputs))


def _unnamed(session: Session) -> Signature:
    """The main graph, by the tensors' names."""
    entry = session.entry(None)
    return Signature(PLACEHOLDER, entry.graph, entry.inputs, entry.outputs)


def _at(tensors: Mapping[str, Tensor], index: int, kind: str) -> Tensor:
    if not 0 <= index < len(tensors):
        raise InvokeError(
            f"there is no {kind} {index}", fix=f"the {kind}s are {', '.join(tensors)}, from 0"
        )
    return list(tensors.values())[index]


def _named(tensors: Mapping[str, Tensor], name: str, kind: str) -> Tensor:
    if name not in tensors:
        raise InvokeError(
            f"there is no {kind} '{name}'", fix=f"the {kind}s are {', '.join(tensors)}"
        )
    return tensors[name]


def _picked(
    wanted: Mapping[str, Tensor], given: Mapping[str, TensorBuffer], kind: str
) -> list[TensorBuffer]:
    missing = [name for name in wanted if name not in given]
    if missing:
        raise InvokeError(
            f"The given map is missing some {kind} TensorBuffers",
            fix=f"give {', '.join(missing)}",
        )
    return [given[name] for name in wanted]


def _fitting(buffer: TensorBuffer, tensor: Tensor, shape: Shape, kind: str) -> Array | None:
    """The buffer's memory in the tensor's shape; None if it has none."""
    array, dtype = buffer.array, tensor.dtype.numpy
    if array is None:
        return None
    if array.dtype != dtype or array.size != int(np.prod(shape, dtype=np.int64)):
        raise InvokeError(
            f"Failed to invoke the compiled model: a buffer of {array.size} x {array.dtype}",
            where=f"{kind} '{tensor.name}'",
            fix=f"it is {dtype} {list(shape)}: create its buffer after the last resize",
        )
    return array.reshape(shape)
