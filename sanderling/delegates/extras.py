"""Packages of others that a delegate needs."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import MissingExtraError


def require_extra(package: str, extra: str, delegate: str) -> None:
    """Raise MissingExtraError where it is not installed. It is not imported: that may take
    seconds."""
    if find_spec(package) is None:
        raise MissingExtraError(package, extra, f"the delegate '{delegate}'")
