"""Delegates by name: those of the package, those that users register, and who stands last."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from ..errors import DelegateError, InputError, SanderlingError
from .delegate import Delegate, PlainDelegate, as_delegate
from .delegate_options import ALONE, flag, given_twice, read_options, seconds

# Delegates that come with the package, found when they are named.
BUILTIN = {
    "gpu": "sanderling.delegates.gpu.delegate:GpuDelegate",
    "coreml": "sanderling.delegates.coreml.delegate:CoremlDelegate",
    "cpu": "sanderling.delegates.cpu.delegate:CpuDelegate",
    "flex": "sanderling.delegates.flex.delegate:FlexDelegate",
    "reference": "sanderling.delegates.reference:ReferenceDelegate",
    "litert": "sanderling.delegates.engines.litert:LiteRtDelegate",
    "litert-builtin": "sanderling.delegates.engines.litert:LiteRtBuiltinDelegate",
    "litert-gpu": "sanderling.delegates.engines.litert_gpu:LiteRtGpuDelegate",
    "litert-reference": "sanderling.delegates.engines.litert:LiteRtReferenceDelegate",
    "external": "sanderling.delegates.engines.external:ExternalDelegate",
    "openvino": "sanderling.delegates.engines.openvino:OpenVinoDelegate",
    "onnxruntime": "sanderling.delegates.engines.onnxruntime:OnnxRuntimeDelegate",
}
# Accelerators of which only the rules are known (sanderling/rules), and what runs a model on one.
RULES_ONLY = {
    "nnapi": "",
    "hexagon": "",
    "edgetpu": "external:path=libedgetpu.so.1",
    "xnnpack": "litert",
}
# Tables of rules that look like a delegate of ours with an option.
RULES_BEHIND_A_COLON = {
    "gpu": ("litert", "offline", "sanderling", "tflite"),
    "coreml": ("2", "3"),
}
_registered: dict[str, Callable[[], PlainDelegate]] = {}
# Always stand last; the very last takes every op, so that every model runs.
FALLBACK = ("cpu", "reference")
EXTERNAL = "external"
# Files that are delegates: libedgetpu.so.1
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib|dll)$")
# Options that all delegates have.
_ISOLATION = {
    "isolated": flag("whether it runs in a process of its own"),
    "isolated_timeout": seconds("that a run may take there"),
}


def register_delegate(name: str, factory: Callable[[], PlainDelegate]) -> None:
    """Make a delegate available by name."""
    _registered[name] = factory


def delegate_names() -> list[str]:
    """The delegates that can be named, sorted; `external` is none without a library."""
    return sorted({*BUILTIN, *_registered} - {EXTERNAL})


def is_delegate_name(text: str) -> bool:
    """Whether it names one, with or without options behind a colon."""
    return text in _registered or text.partition(":")[0] in {*BUILTIN, *_registered}


def find_delegate(wanted: str | PlainDelegate) -> Delegate:
    """The delegate itself, or the one of this name, with options behind a colon (_spelled); the
    error lists what there is."""
    if isinstance(wanted, str):  # asked first: asking a Protocol takes 20 us
        is_plain = ":" not in wanted or wanted in _registered
        return as_delegate(factory_of(wanted)()) if is_plain else _spelled(wanted)
    if isinstance(wanted, PlainDelegate) and not isinstance(wanted, type):
        return as_delegate(wanted)
    raise InputError(
        f"{wanted!r} is not a delegate",
        fix=f"give a Delegate or a name: {', '.join(delegate_names())}",
    )


def usable_delegate(name: str) -> tuple[Delegate | None, str]:
    """The delegate of this name; or None, and why it cannot be used: it is not there, or lacks its
    package or its device."""
    try:
        found = find_delegate(name)
    except SanderlingError as error:
        return None, error.what
    problem = found.lacks()
    return (None, problem) if problem else (found, "")


def factory_of(name: str) -> Callable[[], PlainDelegate]:
    """What makes the delegate of this name."""
    if name in _registered:
        return _registered[name]
    if name not in BUILTIN:
        raise InputError(_absent(name), fix=_suggestion(name))
    module, _, kind = BUILTIN[name].partition(":")
    found: Callable[[], PlainDelegate] = getattr(import_module(module), kind)
    return found


def _suggestion(name: str) -> str:
    """What may have been meant, before the list of what there is."""
    known = f"known delegates: {', '.join(delegate_names())}"
    kind = name.lower()
    if kind in RULES_ONLY:
        does = f"; to run on it here: {RULES_ONLY[kind]}" if RULES_ONLY[kind] else ""
        return f"only the rules of {kind} are known, for `inspect` and `rewrite`{does}; {known}"
    return f"{did_you_mean(name, delegate_names())}{known}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about the known name that is most like this one, whatever its case; or ""."""
    from difflib import get_close_matches  # not for those who make no mistakes

    near = get_close_matches(name.lower(), known, 1)
    return f"did you mean {near[0]}? " if near else ""


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
    """A delegate by name (`sanderling.delegate_names()` lists them), or the library of one, which
    LiteRT loads, with options of its own.

    Two options are the same for all: `isolated` runs it in a process of its own, where a run may
    take `isolated_timeout` seconds (runtime/isolated.py).
    """
    name, rest = os.fspath(library), dict(options or {})
    asked = str(rest.get("path", name)) if name == EXTERNAL else name
    if name not in delegate_names() and (_LIBRARY.search(name) or os.sep in name):
        name, rest = EXTERNAL, {"path": name, **rest}
    try:
        found = _configured(name, dict(rest))
    except (InputError, DelegateError) as error:
        raise _not_loaded(asked, error) from error
    if rest:
        found.spelling = f"{name}:{';'.join(f'{k}={v}' for k, v in rest.items())}"
    return found


def _not_loaded(asked: str, error: SanderlingError) -> LoadDelegateError:
    """The error begins as LiteRT's does, and has the name once."""
    is_its_own = not error.where or error.where.startswith(("delegate ", "library "))
    reason = error.what if is_its_own else f"{error.where}: {error.what}"
    reason = "there is no such delegate" if reason == _absent(asked) else reason
    return LoadDelegateError(
        f"Failed to load delegate from {asked or repr(asked)}: {reason.removeprefix(f'{asked}: ')}",
        fix=error.fix,
    )


def _absent(name: str) -> str:
    return f"there is no delegate '{name}'"


def _configured(name: str, options: dict[str, Any]) -> Delegate:
    given = {key: options.pop(key) for key in _ISOLATION if key in options}
    apart = read_options(name, _ISOLATION, given)
    if not apart.get("isolated"):
        return as_delegate(find_delegate(name).configure(options))
    from .isolated import TIMEOUT, Isolated

    return Isolated(name, options, timeout=apart.get("isolated_timeout", TIMEOUT))


def _spelled(text: str) -> Delegate:
    """NAME:KEY=VALUE;KEY=VALUE, as a command line has it; a key alone is true."""
    name, _, rest = text.partition(":")
    if rest in RULES_BEHIND_A_COLON.get(name, ()):
        raise InputError(
            f"'{text}' is a table of rules, for `inspect` and `rewrite`, and runs nothing",
            fix=f"to run a model here, name the delegate: {name}",
        )
    pairs = [item.partition("=") for item in rest.split(";") if item]
    keys = [key for key, _, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise given_twice(name, twice)
    return load_delegate(name, {key: value if equals else ALONE for key, equals, value in pairs})
