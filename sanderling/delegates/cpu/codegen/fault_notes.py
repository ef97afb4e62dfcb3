"""How compiled code notes what it must not accept: see faults.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import llvmlite.ir as ir

from ..runtime.abi import FAULT, LIMIT, VALUE
from .emit import I64, PTR, Emitter, Type


class Functions(Protocol):
    """The functions of a program (program.py): each is written when it is first asked for."""

    def function(
        self,
        name: str,
        args: Sequence[Type],
        build: Callable[[Emitter], None],
        trusted: bool = False,
    ) -> ir.Function: ...


def note(program: Functions) -> ir.Function:
    """note(context, number, value, limit): the first of a run is kept, whoever it comes from."""

    def build(e: Emitter) -> None:
        context, number, value, limit = e.args
        fault = e.at(context, FAULT, I64)
        old = e.b.cmpxchg(fault, I64(0), e.b.add(number, I64(1)), "monotonic", "monotonic")
        with e.when(e.b.extract_value(old, 1)):
            e.store(value, e.at(context, VALUE, I64), 8)
            e.store(limit, e.at(context, LIMIT, I64), 8)

    found = program.function("note", [PTR, I64, I64, I64], build, trusted=True)
    found.attributes.add("noinline")
    return found
