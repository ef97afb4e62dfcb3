"""The packages of other engines: what they are called, and whether they are installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from ...errors import MissingExtraError

# An engine's package as pip knows it, and what is imported of it.
PACKAGES = {
    "litert": ("ai-edge-litert", "ai_edge_litert.interpreter"),
    "openvino": ("openvino", "openvino"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
}


def is_installed(engine: str) -> bool:
    """Without importing it. Our own engine is."""
    try:
        return engine not in PACKAGES or find_spec(PACKAGES[engine][1].split(".")[0]) is not None
    except ValueError:  # a module that was put there by hand has no spec
        return True


def require_package(engine: str, purpose: str) -> None:
    """One that is not installed is a sentence with the command that installs it."""
    if not is_installed(engine):
        raise MissingExtraError(PACKAGES[engine][0], "peers", purpose)


def import_package(engine: str, purpose: str) -> None:
    """Import it; one that is there and cannot be loaded is as good as absent."""
    package, module = PACKAGES[engine]
    try:
        import_module(module)
    except ImportError as error:
        raise MissingExtraError(package, "peers", purpose) from error
