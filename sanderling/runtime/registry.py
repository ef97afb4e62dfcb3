"""Delegates by name: those of the package, those that users register, and who stands last."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ..errors import InputError
from .delegate import Delegate, PlainDelegate, as_delegate

# Delegates that come with the package, found when they are named.
BUILTIN = {
    "coreml": "sanderling.delegates.coreml.delegate:CoremlDelegate",
    "cpu": "sanderling.delegates.cpu.delegate:CpuDelegate",
    "flex": "sanderling.delegates.flex.delegate:FlexDelegate",
    "reference": "sanderling.delegates.reference:ReferenceDelegate",
}
_registered: dict[str, Callable[[], PlainDelegate]] = {}
# Always stand last; the very last takes every op, so that every model runs.
FALLBACK = ("cpu", "reference")


def register_delegate(name: str, factory: Callable[[], PlainDelegate]) -> None:
    """Make a delegate available by name."""
    _registered[name] = factory


def delegate_names() -> list[str]:
    """The delegates that can be named, sorted."""
    return sorted({*BUILTIN, *_registered})


def find_delegate(wanted: str | PlainDelegate) -> Delegate:
    """The delegate itself, or the one of this name; the error lists what there is."""
    if isinstance(wanted, str):  # asked first: asking a Protocol takes 20 us
        return as_delegate(_factory(wanted)())
    if isinstance(wanted, PlainDelegate) and not isinstance(wanted, type):
        return as_delegate(wanted)
    raise InputError(
        f"{wanted!r} is not a delegate",
        fix=f"give a Delegate or a name: {', '.join(delegate_names())}",
    )


def _factory(name: str) -> Callable[[], PlainDelegate]:
    if name in _registered:
        return _registered[name]
    if name not in BUILTIN:
        raise InputError(
            f"there is no delegate '{name}'", fix=f"known delegates: {', '.join(delegate_names())}"
        )
    module, _, kind = BUILTIN[name].partition(":")
    found: Callable[[], PlainDelegate] = getattr(import_module(module), kind)
    return found


def resolve(wanted: str | PlainDelegate | Iterable[str | PlainDelegate]) -> list[Delegate]:
    """Delegates in order of preference, the fallback last."""
    several: Iterable[Any] = (
        wanted
        if isinstance(wanted, list | tuple) or not isinstance(wanted, str | PlainDelegate)
        else [wanted]
    )
    chosen = [find_delegate(w) for w in several]
    names = {d.name for d in chosen}
    if FALLBACK[-1] in names:  # it takes every op: nobody after it gets one
        return chosen
    return chosen + [find_delegate(n) for n in FALLBACK if n not in names]


class LoadDelegateError(InputError, OSError):
    """TFLite raises ValueError or OSError where a delegate cannot be loaded; this is both."""


def load_delegate(library: str, options: Mapping[str, Any] | None = None) -> Delegate:
    """A delegate by name (`sanderling.delegate_names()` lists them), with options of its own.

    TFLite loads a shared library here; those link against its own runtime and cannot be used.
    """
    try:
        return as_delegate(find_delegate(os.fspath(library)).configure(dict(options or {})))
    except InputError as error:
        raise LoadDelegateError(
            f"Failed to load delegate from {library}: {error.what}",
            where=error.where,
            fix=error.fix,
        ) from error
