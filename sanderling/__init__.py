"""Sanderling: run, measure, shrink, accelerate and verify .tflite models."""

from .errors import (
    BusyError,
    DelegateError,
    FallbackWarning,
    FormatWarning,
    InputError,
    MissingExtraError,
    ModelError,
    SanderlingError,
    TextError,
    UnsupportedError,
)  # fmt: skip
from .format import dump, load, save
from .ir import DType, Graph, Model, Op, Quant, Signature, Tensor
from .ir.verify import verify
from .ops import OPS, Spec, register_custom
from .runtime.delegate import Delegate, Executable, delegate_names, register_delegate
from .runtime.interpreter import (
    Interpreter,
    InterpreterWithCustomOps,
    OpResolverType,
    SignatureRunner,
    load_delegate,
)  # fmt: skip
from .runtime.session import Session
from .version import __version__

__all__ = [
    "OPS", "BusyError", "DType", "Delegate", "DelegateError", "Executable", "FallbackWarning",
    "FormatWarning", "Graph", "InputError", "Interpreter", "InterpreterWithCustomOps",
    "MissingExtraError", "Model", "ModelError", "Op", "OpResolverType", "Quant", "SanderlingError",
    "Session", "Signature", "SignatureRunner", "Spec", "Tensor", "TextError", "UnsupportedError",
    "__version__", "delegate_names", "dump", "load", "load_delegate", "register_custom",
    "register_delegate", "save", "verify",
]  # fmt: skip
