"""The engines: how each loads a model, binds its inputs once, and runs.

An engine is a function from a Job to a Loaded. Only `Loaded.run` is timed, and each engine gets the
cheapest call it offers: bound buffers, no copies of inputs or outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import FallbackWarning, InputError, MissingExtraError
from ..format import load
from ..ir import Model
from ..ir.types import Array
from ..runtime.session import Session
from .record import Setting


@dataclass(frozen=True)
class Job:
    """What an engine is to run. Inputs and outputs are in the order of the file's main graph, or of
    the signature where one is named."""

    path: str
    setting: Setting
    inputs: list[Array]
    input_names: list[str]
    output_names: list[str]
    signature: str = ""
    onnx: str = ""  # the export, for engines that read ONNX


class Loaded(NamedTuple):
    run: Callable[[], object]
    answers: Callable[[], list[Array]]  # of the last run
    note: str = ""
    keep: object = None  # what lives as long as the engine: a session, an interpreter


def job_for(model: Model, setting: Setting, inputs: list[Array]) -> Job:
    """The main graph's job; the model was loaded from a file."""
    return Job(model.source, setting, inputs, [t.name for t in model.main.inputs],
               [t.name for t in model.main.outputs])  # fmt: skip


@contextmanager
def _needs(package: str, purpose: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(package, "peers", purpose) from error


def sanderling(job: Job) -> Loaded:
    model = load(job.path)
    setting = job.setting
    options = {"precision": setting.precision} if setting.precision != "f32" else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        session = Session(model, setting.delegates or ("cpu",), setting.threads, options=options)
        entry = session.entry(job.signature or None)
        feeds = dict(zip(job.input_names, job.inputs, strict=True))
        by_tensor = {t.name: n for n, t in entry.inputs.items()}
        bound = session.bind({by_tensor.get(n, n): a for n, a in feeds.items()})
    names = {t.name: n for n, t in entry.outputs.items()}

    def answers() -> list[Array]:
        return [bound.outputs[names.get(n, n)] for n in job.output_names]

    note = "; ".join([_coverage(session, setting), *_sentences(caught)])
    return Loaded(bound.run, answers, note, session)


def _coverage(session: Session, setting: Setting) -> str:
    first = setting.delegates[0] if setting.delegates else "cpu"
    parts = session.plan().partition.parts
    ours = sum(len(p.ops) for p in parts if p.delegate.name == first)
    return f"{ours}/{sum(len(p.ops) for p in parts)} ops on {first}"


def _sentences(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    fell = [w for w in caught if issubclass(w.category, FallbackWarning)]
    return [str(w.message).splitlines()[0].replace(";", ",") for w in fell]


def litert(job: Job) -> Loaded:
    with _needs("ai-edge-litert", "the engine litert"):
        from ai_edge_litert.interpreter import Interpreter
    interpreter = Interpreter(job.path, num_threads=job.setting.threads)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), job.inputs, strict=True):
        if tuple(detail["shape"]) != array.shape:
            interpreter.resize_tensor_input(detail["index"], array.shape)
            interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), job.inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)

    def answers() -> list[Array]:
        return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]

    return Loaded(interpreter.invoke, answers, keep=interpreter)


def openvino(job: Job) -> Loaded:
    with _needs("openvino", "the engine openvino"):
        import openvino as ov
    core = ov.Core()
    model = core.read_model(job.path)
    order = _ports(model.inputs, job.input_names)
    # An open batch dimension stands for 0 .. n: without this the engine would time an empty input.
    shapes = {port: list(a.shape) for port, a in zip(order, job.inputs, strict=True)}
    if any(port.partial_shape.is_dynamic for port in order):
        model.reshape(shapes)
    compiled = core.compile_model(model, "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": job.setting.threads,
        "INFERENCE_PRECISION_HINT": job.setting.precision,
    })  # fmt: skip
    request = compiled.create_infer_request()
    kept = [ov.Tensor(a, shared_memory=True) for a in job.inputs]
    for port, tensor in zip(_ports(compiled.inputs, job.input_names), kept, strict=True):
        request.set_tensor(port, tensor)
    outputs = _ports(compiled.outputs, job.output_names)

    def answers() -> list[Array]:
        return [np.array(request.get_tensor(port).data) for port in outputs]

    return Loaded(partial(request.infer, share_outputs=True), answers, keep=compiled)


def _ports(ports: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The ports in the order of these names; in their own order where the names are not theirs."""
    named = {name: port for port in ports for name in port.get_names()}
    if all(name in named for name in names) and len(ports) == len(names):
        return [named[name] for name in names]
    return list(ports)


def onnxruntime(job: Job) -> Loaded:
    with _needs("onnxruntime", "the engine onnxruntime"):
        import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = job.setting.threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(job.onnx, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    inputs = _in_order([i.name for i in session.get_inputs()], job.input_names)
    outputs = _in_order([o.name for o in session.get_outputs()], job.output_names)
    for name, array in zip(inputs, job.inputs, strict=True):
        binding.bind_cpu_input(name, array)
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    # Bind what the first run made, so that no later run allocates. A stateful model has no export,
    # so that this first run changes no answer.
    for name, value in zip(outputs, binding.get_outputs(), strict=True):
        binding.bind_ortvalue_output(name, value)

    def answers() -> list[Array]:
        return [v.numpy() for v in binding.get_outputs()]

    return Loaded(partial(session.run_with_iobinding, binding), answers, keep=session)


def _in_order(have: list[str], wanted: list[str]) -> list[str]:
    return list(wanted) if sorted(have) == sorted(wanted) else have


ENGINES: dict[str, Callable[[Job], Loaded]] = {
    "sanderling": sanderling,
    "litert": litert,
    "openvino": openvino,
    "onnxruntime": onnxruntime,
}


def check_engines(names: Iterable[str]) -> None:
    """A wrong name is refused before any work, with the names that there are."""
    for name in names:
        if name not in ENGINES:
            raise InputError(f"there is no engine '{name}'",
                             fix=f"the engines are {', '.join(ENGINES)}")  # fmt: skip


TITLES = {"sanderling": "Sanderling", "litert": "LiteRT", "openvino": "OpenVINO",
          "onnxruntime": "ONNX Runtime"}  # fmt: skip
