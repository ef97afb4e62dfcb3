"""A model made ready as the flags say: loaded, delegated, compiled, bound to its inputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from ...errors import FallbackWarning, InputError, ModelError
from ...format import load
from ...ir import DType, Model, Tensor
from ...ir.types import Array, Shape
from ...runtime.plan import Plan
from ...runtime.session import BoundRun, Session
from .. import process_memory
from .flags import Values
from .inputs import InputLayer, InputMaker, layers
from .op_profile import NodeProfile, NodeRecorder, ProfiledNode
from .providers import Chosen, application, choose, gpu_lines, session_limits

Say = Callable[[str, str], None]  # severity (INFO, WARN), text


class SignaturesListed(Exception):
    """--list_signatures: they were printed, nothing else is to be done."""


@dataclass
class Stage:
    """A stage of the initialisation."""

    name: str
    seconds: float = 0.0
    grown: int = 0  # bytes resident

    @contextmanager
    def timed(self) -> Iterator[None]:
        before, begin = process_memory.resident(), perf_counter()
        yield
        self.seconds += perf_counter() - begin
        self.grown += process_memory.resident() - before


class ReadyModel:
    """What is measured. `init` seconds: load, delegate, compile, allocate; not the making of
    inputs."""

    def __init__(self, values: Values, say: Say) -> None:
        self.values, self.say = values, say
        self.load, self.modify, self.allocate = map(
            Stage, ("LoadModel", "ModifyGraphWithDelegate", "AllocateTensors")
        )
        described = layers(values)
        with self.load.timed():
            self.model = open_model(values.text("graph"))
        say("INFO", f"Loaded model {values['graph']}")
        if values.on("list_signatures"):
            list_signatures(self.model, say)
        profiled = values.on("enable_op_profiling")
        self.chosen = choose(values, profiled)
        for line in self.chosen.absent:
            say("WARN", line)
        for line in self.chosen.said:
            say("INFO", line)
        with self._told(), self.modify.timed():
            self.session = _session(self.model, self.chosen, values)
            self.key = signature_key(self.model, values.text("signature_to_run_for"))
            self.entry = self.session.entry(self.key)
            by_input = self._layers(described)
            # Whoever asks for the GPU is told of each op that it refuses.
            self.plan = self._plan(by_input, whole=profiled or values.on("use_gpu"))
        if self.key:
            say("INFO", f"Using signature: {self.key}")
        for severity, line in gpu_lines(self.chosen, self.plan):
            say(severity, line)
        for line in application(self.chosen, self.plan, values.on("require_full_delegation")):
            say("INFO", line)
        source = InputMaker()
        self.sources = [source.array(t, by_input.get(t)) for t in self.entry.graph.inputs]
        self.recorder = None
        if profiled:
            self.recorder = NodeRecorder(self.entry.graph, self.plan, values.text("precision"))
        with self._told(), self.allocate.timed():
            self.inputs = [a.copy() for a in self.sources]
            self.bound = self._bind()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What delegates warn of becomes lines of the log."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            yield
        for warning in caught:
            self.say("WARN", " ".join(str(warning.message).split()))

    def _layers(self, described: list[InputLayer]) -> dict[Tensor, InputLayer]:
        inputs = self.entry.graph.inputs
        if described and len(described) != len(inputs):
            raise InputError(
                f"Inputs mismatch: Model inputs #:{len(described)} expected: {len(inputs)}",
                where="--input_layer",
                fix="name every input: " + ",".join(t.name for t in inputs),
            )
        for number, (layer, tensor) in enumerate(zip(described, inputs, strict=False)):
            if layer.name != tensor.name:
                self.say(
                    "WARN",
                    f"Tensor # {number} is named {tensor.name} but flags call it {layer.name}",
                )
            if tensor.dtype is not DType.STRING and len(layer.shape) != len(tensor.shape):
                raise InputError(
                    f"Input tensor #{number} should have {len(tensor.shape)} dimensions!",
                    where="--input_layer_shape",
                    fix=f"it is {tensor.type_text}",
                )
        return dict(zip(inputs, described, strict=False))

    def _plan(self, by_input: dict[Tensor, InputLayer], whole: bool) -> Plan:
        graph = self.entry.graph
        shapes: list[Shape] = [
            by_input[t].shape if t in by_input and t.dtype is not DType.STRING else t.shape
            for t in graph.inputs
        ]
        make = self.session.plan if whole else self.session.runnable_plan
        try:
            return make(graph, shapes)
        except ModelError as error:
            if not by_input:
                raise
            takes = ", ".join(f"{t.name} {t.type_text}" for t in graph.inputs)
            raise InputError(
                f"the model does not run on this shape: {error.where}: {error.what}",
                where="--input_layer_shape",
                fix=f"it takes {takes}",
            ) from error

    def _bind(self) -> BoundRun:
        names = {t: name for name, t in self.entry.inputs.items()}
        feeds = {
            names.get(t, t.name): a
            for t, a in zip(self.entry.graph.inputs, self.inputs, strict=True)
        }
        return self.session.bind(feeds, signature=self.key)

    def reset_inputs(self) -> None:
        """Before each run, untimed: the inputs' values."""
        for array, source in zip(self.inputs, self.sources, strict=True):
            np.copyto(array, source)

    @property
    def init(self) -> float:
        return self.load.seconds + self.modify.seconds + self.allocate.seconds

    @property
    def init_profile(self) -> NodeProfile:
        nodes = [
            ProfiledNode(s.name, f"{s.name}/0", [s.seconds * 1e6], s.grown / 1000)
            for s in (self.modify, self.allocate)
        ]
        return NodeProfile(nodes, runs=1)

    @property
    def input_bytes(self) -> int:
        return sum(a.nbytes for a in self.inputs)

    @property
    def outputs(self) -> dict[Tensor, Array]:
        """The outputs of the last run."""
        arrays = self.bound.outputs
        return {t: arrays[name] for name, t in self.entry.outputs.items() if name in arrays}


def _session(model: Model, chosen: Chosen, values: Values) -> Session:
    threads = values.number("num_threads")
    precision = values.text("precision")
    return Session(
        model,
        chosen.delegates,
        None if threads == -1 else threads,
        **session_limits(values),
        options={"precision": precision} if precision != "f32" else {},
    )


def signature_key(model: Model, wanted: str) -> str | None:
    """The tool's rule: the only signature, or the one that is named."""
    keys = [s.key for s in model.signatures]
    if not keys:
        if wanted:
            raise InputError(
                "Signature key is specified, but the model does not have any signatures",
                where="--signature_to_run_for",
                fix="leave it out",
            )
        return None
    if not wanted and len(keys) == 1:
        return keys[0] if model.signatures[0].feeds_all else None
    if wanted not in keys:
        raise InputError(
            "Signature not specified or incorrect",
            where="--signature_to_run_for",
            fix=f"pass one of {', '.join(keys)}",
        )
    return wanted


def list_signatures(model: Model, say: Say) -> None:
    say("INFO", f"The Model contains {len(model.signatures)} signature key(s).")
    if model.signatures:
        say("INFO", "They are listed below: ")
    for signature in model.signatures:
        say("INFO", f"-> Signature Key: {signature.key}")
    raise SignaturesListed


def open_model(graph: str) -> Model:
    """A path, or fd:DESCRIPTOR:OFFSET:SIZE."""
    return load(_descriptor(graph)) if graph.startswith("fd:") else load(graph)


def model_bytes(graph: str) -> int:
    if graph.startswith("fd:"):
        return _place(graph)[2]
    return Path(graph).stat().st_size if Path(graph).is_file() else 0


def _descriptor(graph: str) -> bytes:
    descriptor, offset, size = _place(graph)
    try:
        found = os.pread(descriptor, size, offset)
    except OSError as error:
        raise InputError(
            f"the descriptor cannot be read: {error.strerror}",
            where=f"--graph={graph}",
            fix="give a path",
        ) from error
    if len(found) < size:
        raise InputError(
            f"it holds {len(found)} of {size} bytes",
            where=f"--graph={graph}",
            fix="check offset and size",
        )
    return found


def _place(graph: str) -> tuple[int, int, int]:
    parts = graph.split(":")
    if len(parts) != 4 or not all(p.isdecimal() for p in parts[1:]):
        raise InputError(
            f"Failed to parse model file size: {graph}",
            where="--graph",
            fix="write fd:DESCRIPTOR:OFFSET:SIZE",
        )
    return int(parts[1]), int(parts[2]), int(parts[3])
