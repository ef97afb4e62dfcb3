"""ONNX Runtime as a delegate. A part is exported to ONNX; it computes on the caller's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, ClassVar

from ...errors import DelegateError, InputError, MissingExtraError
from ...ir import Array, Graph
from ...runtime.delegate import Executable, Options
from ...runtime.delegate_options import Option, one_of, text
from ...runtime.submodel import as_tflite
from .base import THREADS, EngineDelegate, PointingExecutable, check_type
from .packages import import_package
from .to_onnx import exported

LEVELS = {
    "none": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
# Its names of types, where NumPy has the same and where not.
NUMPY = {
    f"tensor({n})": n
    for n in (
        "float16",
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
    )
}
NUMPY |= {"tensor(float)": "float32", "tensor(double)": "float64"}
CPU = "CPUExecutionProvider"


class OnnxRuntimeDelegate(EngineDelegate):
    """ONNX Runtime, on its CPU provider if no other is asked for."""

    name, engine, title = "onnxruntime", "onnxruntime", "ONNX Runtime"
    options: ClassVar[Mapping[str, Option]] = {
        "threads": THREADS,
        "providers": text("its execution providers, in order, with / between them"),
        "optimization": one_of("how far it rewrites the graph", *LEVELS),
    }

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if find_spec("tf2onnx") is None:
            raise MissingExtraError("tf2onnx", "onnx", f"the delegate {self.name}")
        self.providers = self.chosen.get("providers", CPU).split("/")
        if "providers" in self.chosen:  # only then: ONNX Runtime has to be imported
            self._check_providers()

    def _check_providers(self) -> None:
        """A name that no build of ONNX Runtime has is misspelt. One that only this build has not
        is no mistake: parts go to other delegates (session_of)."""
        import_package(self.engine, f"the delegate {self.name}")
        from onnxruntime import get_all_providers

        known = get_all_providers()
        strange = [name for name in self.providers if name not in known]
        if strange:
            raise InputError(
                f"its option 'providers' cannot have {strange[0]!r}: there is no such provider",
                where=f"delegate '{self.name}'",
                fix=f"ONNX Runtime's providers: {', '.join(known)}",
            )

    def load(self, part: Graph, options: Options) -> Executable:
        path, why = exported(as_tflite(part), "part")
        if why:
            raise RuntimeError(why)
        level = self.chosen.get("optimization", "all")
        session = session_of(path, options.threads, self.providers, level)
        return OnnxRuntimeExecutable(part, session, options.threads)


def session_of(
    path: str, threads: int, providers: Sequence[str] = (CPU,), optimization: str = "all"
) -> Any:
    """An .onnx file as ONNX Runtime's session."""
    import onnxruntime as ort

    there = ort.get_available_providers()
    absent = [name for name in providers if name not in there]
    if absent:
        raise DelegateError(
            f"this build of ONNX Runtime has no provider {absent[0]}",
            where="delegate 'onnxruntime'",
            fix=f"its providers: {', '.join(there)}",
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[optimization])
    options.log_severity_level = 3
    return ort.InferenceSession(path, options, providers=list(providers))


def in_order(have: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The wanted names where they are those that there are, and these otherwise."""
    return list(wanted) if sorted(have) == sorted(wanted) else list(have)


class OnnxRuntimeExecutable(PointingExecutable):
    def __init__(self, part: Graph, session: Any, threads: int) -> None:
        super().__init__()
        self.session, self.workers = session, threads
        sides = (session.get_inputs(), part.inputs), (session.get_outputs(), part.outputs)
        self.names = [in_order([p.name for p in h], [t.name for t in w]) for h, w in sides]
        self._binding: Any = None
        types = {port.name: port.type for side, _ in sides for port in side}
        border = zip(chain(*self.names), (*part.inputs, *part.outputs), strict=True)
        for name, tensor in border:
            check_type("onnxruntime", tensor, NUMPY.get(types[name], types[name]))

    def point(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Any:
        from onnxruntime import OrtValue

        binding = self.session.io_binding()
        fed, made = self.names
        for name, array in zip(fed, inputs, strict=True):
            binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
        for name, array in zip(made, outputs, strict=True):
            binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
        return binding

    def attach(self, pointed: Any) -> None:
        self._binding = pointed

    def detach(self) -> None:
        self._binding = None

    def compute(self) -> object:
        return self.session.run_with_iobinding(self._binding)
