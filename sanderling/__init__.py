"""Sanderling: run, measure, shrink, accelerate and verify .tflite models.

Names are imported when they are first used, so that `sanderling --version` does not wait for NumPy.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
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
    )
    from .format import dump, load, save
    from .ir import DType, Graph, Model, Op, Quant, Signature, Tensor
    from .ir.text import from_text, to_text
    from .ir.verify import verify
    from .ops import OPS, Spec, register_custom
    from .runtime.delegate import Delegate, Executable, delegate_names, register_delegate
    from .runtime.inputs import dequantize_array, quantize_array
    from .runtime.interpreter import (
        Interpreter,
        InterpreterWithCustomOps,
        OpResolverType,
        SignatureRunner,
        load_delegate,
    )
    from .runtime.session import Session

_HOMES = {
    "errors": "BusyError DelegateError FallbackWarning FormatWarning InputError MissingExtraError "
              "ModelError SanderlingError TextError UnsupportedError",
    "runtime.inputs": "dequantize_array quantize_array",
    "format": "dump load save",
    "ir": "DType Graph Model Op Quant Signature Tensor",
    "ir.text": "from_text to_text",
    "ir.verify": "verify",
    "ops": "OPS Spec register_custom",
    "runtime.delegate": "Delegate Executable delegate_names register_delegate",
    "runtime.interpreter": "Interpreter InterpreterWithCustomOps OpResolverType SignatureRunner "
                           "load_delegate",
    "runtime.session": "Session",
}  # fmt: skip
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_PACKAGES = ("cli", "config", "delegates", "errors", "evaluate", "format", "ir", "measure", "ops",
             "passes", "runtime")  # fmt: skip

__all__ = [
    "OPS", "BusyError", "DType", "Delegate", "DelegateError", "Executable", "FallbackWarning",
    "FormatWarning", "Graph", "InputError", "Interpreter", "InterpreterWithCustomOps",
    "MissingExtraError", "Model", "ModelError", "Op", "OpResolverType", "Quant", "SanderlingError",
    "Session", "Signature", "SignatureRunner", "Spec", "Tensor", "TextError", "UnsupportedError",
    "__version__", "delegate_names", "dequantize_array", "dump", "from_text", "load",
    "load_delegate", "quantize_array", "register_custom", "register_delegate", "save", "to_text",
    "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return _import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'sanderling' has no attribute '{name}'")
    found = globals()[name] = getattr(_import_module(f".{_HOME[name]}", __name__), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
