"""The tables by name; a module is loaded when one of its tables is asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib import import_module

from ..errors import InputError
from ..runtime.partition import Limits
from ..runtime.registry import did_you_mean, resolve
from .rule import Table

# The tables of each module.
HOMES = {
    "gpu": "gpu gpu:offline",
    "gpu_litert": "gpu:litert",
    "nnapi": "nnapi:27 nnapi:28 nnapi:29 nnapi:30 nnapi:31 nnapi:fl6 nnapi:fl7",
    "hexagon": "hexagon",
    "coreml": "coreml:2 coreml:3",
    "edgetpu": "edgetpu",
    "xnnpack": "xnnpack xnnpack:sparse",
}
MODULES = {name: module for module, held in HOMES.items() for name in held.split()}
# Delegates of ours, which answer themselves.
OURS = {"cpu": "cpu", "gpu:sanderling": "gpu"}
ALIASES = {"gpu:tflite": "gpu"}  # where `gpu` is taken by our own delegate


def names() -> list[str]:
    """The delegates whose rules are known, sorted."""
    return sorted({*MODULES, *OURS, *ALIASES})


def find_table(name: str) -> Table:
    """The rules of a delegate; the error lists what there is."""
    if name in OURS:
        return _own(name)
    if name in ALIASES:
        return replace(find_table(ALIASES[name]), name=name)
    if name not in MODULES:
        raise InputError(f"there are no rules of '{name}'", fix=suggestion(name))
    tables: tuple[Table, ...] = import_module(f".{MODULES[name]}", __package__).TABLES
    return next(table for table in tables if table.name == name)


def suggestion(name: str, others: Iterable[str] = ()) -> str:
    """What may have been meant by a name that is not known: the levels of a delegate, or a name
    that is alike (others: names that are known elsewhere), before the list."""
    kind = name.partition(":")[0]
    if levels := [n for n in names() if n.startswith(f"{kind}:")]:
        return f"the rules of {kind} are: {', '.join(n for n in names() if n in (kind, *levels))}"
    start = did_you_mean(kind, [*names(), *others])
    return f"{start}rules are known of: {', '.join(names())}"


def _own(name: str) -> Table:
    delegates = resolve(OURS[name])
    delegate = delegates[0]
    title = f"Sanderling's own delegate '{delegate.name}'"
    limits = Limits().of(delegate)
    source = f"sanderling/delegates/{delegate.name}"
    return Table(name, title, source, {}, limits=limits, delegates=delegates)
