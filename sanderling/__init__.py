"""Sanderling: run, measure, shrink, accelerate and verify .tflite models.

Names are imported when they are first used, so that `sanderling --version` does not wait for NumPy.
"""

from importlib import import_module as _import_module
from os import environ as _environ
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .build.library import Library, build_library
    from .build.planned_parts import NotBuiltError
    from .choose.advice import Advised
    from .choose.advise import advise
    from .choose.compare import Compared, compare
    from .choose.retrain import Retrained, retrain
    from .choose.tune import Tuning, tune
    from .delegates.coreml.package import Package, export
    from .errors import (
        BusyError,
        DelegateError,
        FallbackWarning,
        FormatWarning,
        InputError,
        IsolatedError,
        MissingExtraError,
        ModelError,
        SanderlingError,
        TextError,
        UnsupportedError,
    )
    from .evaluate.differences.diff import diff
    from .evaluate.running.evaluation import compare_evaluations, evaluate_task
    from .evaluate.task import Prepared, Sample, Task, make_task, register_task, setting
    from .evaluate.tasks.coco import evaluate_results
    from .format import dump, load, save
    from .ir import DType, Graph, Model, Op, Quant, Signature, Tensor
    from .ir.text import from_text, to_text
    from .ir.verify import verify
    from .litert.compiled_model import CompiledModel
    from .measure.analyzer import analyze
    from .measure.bench import bench
    from .measure.benchmark_model import benchmark_model
    from .measure.model_trace import trace_model
    from .measure.profiling import profile
    from .measure.trace_insights import insights
    from .ops import OPS, Spec, register_custom
    from .optimize.calibration.samples import read_samples
    from .optimize.judging.report import Report
    from .optimize.judging.target import Target, TargetMissedError
    from .optimize.modes.recipe import Choice
    from .optimize.quantize import quantize
    from .optimize.suggest import suggest
    from .rewrites.answers import compare_answers
    from .rewrites.driver import Rewritten, rewrite
    from .rewrites.simplified import simplify
    from .runtime import recorder as trace
    from .runtime.delegate import Delegate, Executable
    from .runtime.inputs import dequantize_array, quantize_array
    from .runtime.interpreter import Interpreter, InterpreterWithCustomOps, OpResolverType
    from .runtime.isolated import Isolated
    from .runtime.registry import delegate_names, load_delegate, register_delegate
    from .runtime.session import Session
    from .runtime.signature_runner import SignatureRunner
    from .training.cluster import Clustering, cluster
    from .training.constraints.clusters import Clusters
    from .training.constraints.quantisation import Quantisation
    from .training.constraints.sparsity import Sparsity
    from .training.differentiable.twin import Twin
    from .training.loop.train import Schedule, train
    from .training.prune import Pruning, prune
    from .training.qat import qat
    from .web.server import serve

_HOMES = {
    "build.planned_parts": "NotBuiltError",
    "build.library": "Library build_library",
    "choose.advice": "Advised",
    "choose.advise": "advise",
    "choose.compare": "Compared compare",
    "choose.retrain": "Retrained retrain",
    "choose.tune": "Tuning tune",
    "delegates.coreml.package": "Package export",
    "errors": "BusyError DelegateError FallbackWarning FormatWarning InputError IsolatedError "
              "MissingExtraError ModelError SanderlingError TextError UnsupportedError",
    "runtime.inputs": "dequantize_array quantize_array",
    "evaluate.tasks.coco": "evaluate_results",
    "evaluate.differences.diff": "diff",
    "evaluate.running.evaluation": "compare_evaluations evaluate_task",
    "evaluate.task": "Prepared Sample Task make_task register_task setting",
    "format": "dump load save",
    "ir": "DType Graph Model Op Quant Signature Tensor",
    "ir.text": "from_text to_text",
    "ir.verify": "verify",
    "litert.compiled_model": "CompiledModel",
    "measure.analyzer": "analyze",
    "measure.bench": "bench",
    "measure.benchmark_model": "benchmark_model",
    "measure.trace_insights": "insights",
    "measure.profiling": "profile",
    "measure.model_trace": "trace_model",
    "ops": "OPS Spec register_custom",
    "optimize.calibration.samples": "read_samples",
    "optimize.quantize": "quantize",
    "optimize.modes.recipe": "Choice",
    "optimize.judging.report": "Report",
    "optimize.suggest": "suggest",
    "optimize.judging.target": "Target TargetMissedError",
    "rewrites.answers": "compare_answers",
    "rewrites.driver": "Rewritten rewrite",
    "rewrites.simplified": "simplify",
    "runtime.delegate": "Delegate Executable",
    "runtime.interpreter": "Interpreter InterpreterWithCustomOps OpResolverType",
    "runtime.isolated": "Isolated",
    "runtime.registry": "delegate_names load_delegate register_delegate",
    "runtime.session": "Session",
    "runtime.signature_runner": "SignatureRunner",
    "training.cluster": "Clustering cluster",
    "training.constraints.clusters": "Clusters",
    "training.prune": "Pruning prune",
    "training.qat": "qat",
    "training.constraints.quantisation": "Quantisation",
    "training.constraints.sparsity": "Sparsity",
    "training.loop.train": "Schedule train",
    "training.differentiable.twin": "Twin",
    "web.server": "serve",
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_PACKAGES = ("choose", "cli", "config", "delegates", "errors", "evaluate", "format", "ir", "litert",
             "measure", "ops", "optimize", "passes", "rewrites", "rules", "runtime",
             "training", "web", "build")  # fmt: skip
_MODULES = {"trace": "runtime.recorder"}  # under a name of their own

__all__ = [
    "Advised", "BusyError", "Choice", "Clustering", "Clusters", "Compared", "CompiledModel",
    "DType", "Delegate", "DelegateError", "Executable", "FallbackWarning", "FormatWarning", "Graph",
    "InputError", "Interpreter", "InterpreterWithCustomOps", "Isolated", "IsolatedError", "Library",
    "MissingExtraError", "Model", "ModelError", "NotBuiltError", "OPS", "Op", "OpResolverType",
    "Package", "Prepared", "Pruning", "Quant", "Quantisation", "Report", "Retrained", "Rewritten",
    "Sample", "SanderlingError", "Schedule", "Session", "Signature", "SignatureRunner", "Sparsity",
    "Spec", "Target", "TargetMissedError", "Task", "Tensor", "TextError", "Tuning", "Twin",
    "UnsupportedError", "__version__", "advise", "analyze", "bench", "benchmark_model",
    "build_library", "cluster", "compare", "compare_answers", "compare_evaluations",
    "delegate_names", "dequantize_array", "diff", "dump", "evaluate_results", "evaluate_task",
    "export", "from_text", "insights", "load", "load_delegate", "make_task", "profile", "prune",
    "qat", "quantize", "quantize_array", "read_samples", "register_custom", "register_delegate",
    "register_task", "retrain", "rewrite", "save", "serve", "setting", "simplify", "suggest",
    "to_text", "trace", "trace_model", "train", "tune", "verify",
]  # fmt: skip


# What a warm start of a model takes: who imports these names is about to run one, and waits for
# modules now, once, and not with the first model.
_RUNS_MODELS = ("runtime.session", "delegates.reference", "delegates.cpu.delegate",
                "delegates.cpu.runtime.cache", "delegates.cpu.runtime.executable")  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return _import_module(f".{name}", __name__)
    if name in _MODULES:
        found = globals()[name] = _import_module(f".{_MODULES[name]}", __name__)
        return found
    if name not in _HOME:
        raise AttributeError(f"module 'sanderling' has no attribute '{name}'")
    for module in _RUNS_MODELS if name in ("Interpreter", "load") else ():
        _import_module(f".{module}", __name__)
    found = globals()[name] = getattr(_import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if _environ.get("SANDERLING_TRACE"):  # config.TRACE, read here without importing anything
    _import_module(".runtime.recorder", __name__).record_until_exit(_environ["SANDERLING_TRACE"])
