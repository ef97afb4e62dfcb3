"""The engines: how each loads a model, binds its inputs once, and runs.

An engine is a function from a job to a LoadedEngine. Only its `run` is timed, and each engine gets
the cheapest call it offers: bound buffers, no copies of inputs or outputs. It says when it has read
the file (`mark("loaded")`), so that memory can be told apart; what it does after that is its init.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..delegates.engines.messages import captured_stderr
from ..delegates.engines.onnxruntime import in_order, session_of
from ..delegates.engines.openvino import compile_file, ports
from ..delegates.engines.packages import PACKAGES, import_package
from ..errors import FallbackWarning, InputError, UnsupportedError
from ..format import load
from ..ir import Model
from ..ir.types import Array
from ..runtime.coverage import idle_delegates, ops_by_delegate, runs_on
from ..runtime.plan import Plan
from ..runtime.registry import BUILTIN
from ..runtime.session import Session
from .part_times import FOREIGN_OPS, PartTime, foreign_ops, part_times
from .record import Setting


@dataclass(frozen=True)
class EngineJob:
    """What an engine is to run. Inputs and outputs are in the order of the graph that is run: the
    file's main graph, or that of the signature which is named."""

    path: str
    setting: Setting
    inputs: list[Array]
    input_names: list[str]
    output_names: list[str]
    signature: str = ""
    onnx: str = ""  # the export, for engines that read ONNX
    graph: int = 0  # the place of that graph in the file
    cpus: tuple[int, ...] = ()  # to run on; () is all that the process may use
    plugins: tuple[str, ...] = ()  # files that are run first
    require_full: bool = False  # its first delegate has to take every op
    verbose: bool = False  # let through what the engine prints


Mark = Callable[[str], None]


def _ignore(stage: str) -> None:
    """Nobody wants to know."""


class LoadedEngine(NamedTuple):
    run: Callable[[], object]
    answers: Callable[[], list[Array]]  # of the last run
    note: str = ""
    keep: object = None  # what lives as long as the engine: a session, an interpreter
    refresh: Callable[[], None] = lambda: None  # to be called when the job's arrays were changed
    reset: Callable[[], None] = lambda: None  # variables as the file has them, where it keeps any
    request: Any = None  # OpenVINO's InferRequest, which has the counters of a profile
    memory: Callable[[], dict[str, int]] = dict  # bytes by what holds them, where it tells
    facts: dict[str, object] = {}  # noqa: RUF012
    parts: Callable[[], list[PartTime]] = list  # after runs: what each part takes, where it tells


def job_for(
    model: Model, setting: Setting, inputs: list[Array], signature: str = "", **more: Any
) -> EngineJob:
    """The job of the main graph, or of a signature's; the model was loaded from a file."""
    graph = model.signature(signature).graph if signature else model.main
    return EngineJob(
        model.source,
        setting,
        inputs,
        [t.name for t in graph.inputs],
        [t.name for t in graph.outputs],
        signature,
        graph=model.graphs.index(graph),
        **more,
    )


TITLES = {
    "sanderling": "Sanderling",
    "litert": "LiteRT",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
}


def import_engine(name: str) -> None:
    """Import the engine's package; one that is not installed is a sentence. Of our own it is the
    delegates, which are otherwise imported when a session is made: no engine's init holds that."""
    if name == "sanderling":
        for home in BUILTIN.values():
            import_module(home.partition(":")[0])
    if name in PACKAGES:
        import_package(name, f"the engine {name}")


def _only_main(job: EngineJob) -> None:
    if job.graph:
        raise UnsupportedError(
            f"{TITLES[job.setting.engine]} reads a file's main graph only, and signature "
            f"'{job.signature}' is another"
        )


def sanderling(job: EngineJob, mark: Mark = _ignore) -> LoadedEngine:
    model = load(job.path)
    setting = job.setting
    options = {"precision": setting.precision} if setting.precision != "f32" else {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        session = Session(
            model,
            setting.delegates or ("cpu",),
            setting.threads,
            options=options,
            require_full_delegation=job.require_full,
        )
        signature = job.signature or None
        entry = session.entry(signature)
        mark("loaded")
        feeds = dict(zip(job.input_names, job.inputs, strict=True))
        bound = session.bind(
            {n: feeds[t.name] for n, t in entry.inputs.items()}, signature=signature
        )
    names = {t.name: n for n, t in entry.outputs.items()}

    def answers() -> list[Array]:
        return [bound.outputs[names.get(n, n)] for n in job.output_names]

    plan = bound.binding.plan
    counts = ops_by_delegate(session, setting.delegates, plan)
    note = "; ".join([_coverage(counts), *_sentences(caught)])
    idle = idle_delegates(
        session, setting.delegates, entry.graph, [feeds[t.name].shape for t in entry.graph.inputs]
    )
    facts: dict[str, object] = {
        "start": "compiled now" if plan.is_whole and not _is_kept(plan) else "from the cache",
        FOREIGN_OPS: foreign_ops(plan),
        "idle": idle,
        "ran": runs_on(setting.delegates, counts) if idle else "",
    }
    return LoadedEngine(
        bound.run,
        answers,
        note,
        session,
        memory=session.memory,
        facts=facts,
        parts=partial(part_times, bound.binding),
    )


def _is_kept(plan: Plan) -> bool:
    """All that was to be compiled was taken from what its delegates had kept."""
    return bool(plan.steps) and all(step.executable.restored for step in plan.steps)


def _coverage(counts: Mapping[str, int]) -> str:
    """Which share of the ops the wanted delegate runs, which stands first."""
    first, total = next(iter(counts)), sum(counts.values())
    if counts[first] == total:
        return f"all ops on {first}"
    return f"{counts[first]}/{total} ops on {first}"


def _sentences(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    fell = [w for w in caught if issubclass(w.category, FallbackWarning)]
    return [str(w.message).splitlines()[0].replace(";", ",") for w in fell]


def litert(job: EngineJob, mark: Mark = _ignore) -> LoadedEngine:
    import_engine("litert")
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(job.path, num_threads=job.setting.threads)
    mark("loaded")
    graph = job.graph
    inputs, outputs = _litert_places(interpreter, job)

    def core() -> Any:
        """The wrapper below the Python class takes the number of a graph everywhere. Who keeps it
        keeps the interpreter from running."""
        return interpreter._interpreter

    core().AllocateTensors(graph)
    sizes = [interpreter._get_tensor_details(i, graph)["shape"] for i in inputs]
    for place, size, array in zip(inputs, sizes, job.inputs, strict=True):
        if tuple(size) != array.shape:
            core().ResizeInputTensor(place, np.array(array.shape, np.int32), False, graph)
            core().AllocateTensors(graph)

    def feed() -> None:
        for place, array in zip(inputs, job.inputs, strict=True):
            core().SetTensor(place, array, graph)

    def answers() -> list[Array]:
        return [core().GetTensor(place, graph) for place in outputs]

    feed()
    run = (lambda: core().Invoke(graph)) if graph else interpreter.invoke
    return LoadedEngine(
        run, answers, keep=interpreter, refresh=feed, reset=interpreter.reset_all_variables
    )


def _litert_places(interpreter: Any, job: EngineJob) -> tuple[list[int], list[int]]:
    """The numbers of the inputs and outputs, in the job's order."""
    if not job.graph:
        sides = interpreter.get_input_details(), interpreter.get_output_details()
        inputs, outputs = ([int(d["index"]) for d in side] for side in sides)
        return inputs, outputs
    signature = interpreter._get_full_signature_list()[job.signature]
    found = []
    for side, names in (("inputs", job.input_names), ("outputs", job.output_names)):
        places = signature[side].values()
        by_name = {interpreter._get_tensor_details(i, job.graph)["name"]: i for i in places}
        found.append([by_name[name] for name in names])
    return found[0], found[1]


def openvino(job: EngineJob, mark: Mark = _ignore, **more: Any) -> LoadedEngine:
    """more: properties of the compiled model."""
    import_engine("openvino")
    from openvino import Tensor

    _only_main(job)
    shapes = [(name, a.shape) for name, a in zip(job.input_names, job.inputs, strict=True)]
    precision = {"INFERENCE_PRECISION_HINT": job.setting.precision}
    properties = {"PERFORMANCE_HINT": "LATENCY", **precision, **more}
    compiled = compile_file(
        job.path, shapes, job.setting.threads, properties, when_read=lambda: mark("loaded")
    )
    request = compiled.create_infer_request()
    kept = [Tensor(a, shared_memory=True) for a in job.inputs]
    for port, tensor in zip(ports(compiled.inputs, job.input_names), kept, strict=True):
        request.set_tensor(port, tensor)
    outputs = ports(compiled.outputs, job.output_names)

    def answers() -> list[Array]:
        return [np.array(request.get_tensor(port).data) for port in outputs]

    run = partial(request.infer, share_outputs=True)
    return LoadedEngine(run, answers, keep=compiled, request=request)


def onnxruntime(job: EngineJob, mark: Mark = _ignore) -> LoadedEngine:
    import_engine("onnxruntime")
    _only_main(job)
    session = session_of(job.onnx, job.setting.threads)
    mark("loaded")
    binding = session.io_binding()
    inputs = in_order([i.name for i in session.get_inputs()], job.input_names)
    outputs = in_order([o.name for o in session.get_outputs()], job.output_names)
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

    return LoadedEngine(partial(session.run_with_iobinding, binding), answers, keep=session)


ENGINES: dict[str, Callable[[EngineJob, Mark], LoadedEngine]] = {
    "sanderling": sanderling,
    "litert": litert,
    "openvino": openvino,
    "onnxruntime": onnxruntime,
}


def load_engine(job: EngineJob) -> LoadedEngine:
    """The job's engine, for those who do not ask how far it is with its start. LiteRT tells of its
    delegates meanwhile; what is wrong with a model is in the error."""
    with captured_stderr() if job.setting.engine == "litert" else nullcontext():
        return ENGINES[job.setting.engine](job, _ignore)


def check_engines(names: Iterable[str]) -> None:
    """A wrong name is refused before any work, with the names that there are."""
    for name in names:
        if name not in ENGINES:
            raise InputError(
                f"there is no engine '{name}'", fix=f"the engines are {', '.join(ENGINES)}"
            )
