"""What `ai_edge_litert.interpreter` has, under the same names."""

from __future__ import annotations

from ..runtime.delegate import Delegate
from ..runtime.interpreter import Interpreter, InterpreterWithCustomOps, OpResolverType
from ..runtime.registry import load_delegate
from ..runtime.signature_runner import SignatureRunner

__all__ = [
    "Delegate",
    "Interpreter",
    "InterpreterWithCustomOps",
    "OpResolverType",
    "SignatureRunner",
    "load_delegate",
]
