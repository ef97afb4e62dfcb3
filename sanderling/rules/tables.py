"""The tables by name."""

from __future__ import annotations

from ..errors import InputError
from ..runtime.registry import find_delegate
from . import coreml, edgetpu, gpu, hexagon, nnapi, xnnpack
from .rule import Table

MODULES = (gpu, nnapi, hexagon, coreml, edgetpu, xnnpack)
TABLES: dict[str, Table] = {table.name: table for module in MODULES for table in module.TABLES}
OURS = "cpu"  # answers itself


def names() -> list[str]:
    """The delegates whose rules are known, sorted."""
    return sorted({*TABLES, OURS})


def find_table(name: str) -> Table:
    """The rules of a delegate; the error lists what there is."""
    if name == OURS:
        return _own(name)
    if name not in TABLES:
        raise InputError(
            f"there are no rules of '{name}'", fix=f"known are those of: {', '.join(names())}"
        )
    return TABLES[name]


def _own(name: str) -> Table:
    delegate = find_delegate(name)
    source = f"sanderling/delegates/{name}"
    return Table(name, "Sanderling's own compiler", source, {}, ask=delegate.refuses_each)
