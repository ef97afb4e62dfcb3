"""The row of a kernel: all that the rest of the delegate may know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....ir import Op
from ..steps import Node, Writer

Refusal = Callable[[Op], "str | None"]


def _emit_never(w: Writer, node: Node) -> None:
    raise AssertionError(f"{node.op.name} becomes other ops before kernels are written")


@dataclass(frozen=True)
class Row:
    """emit writes the steps of a node. refuses: why an op of the user's graph is not taken; codes
    are floats to it. fuses: an elementwise op that alone reads the result becomes part of it.
    keeps_state: it takes variable tensors (passes/states.py).
    becomes: the chain of ops that stands for an op (passes/decompose.py), None if it stands for
    itself; a chain is taken if all of its ops are."""

    emit: Callable[[Writer, Node], None]
    refuses: Callable[[Op], str | None] = lambda op: None
    fuses: bool = True
    becomes: Callable[[Op], list[Op] | None] = lambda op: None
    keeps_state: bool = False

    @classmethod
    def made_of(
        cls, becomes: Callable[[Op], list[Op] | None], refuses: Refusal = lambda op: None
    ) -> Row:
        """An operator without a kernel of its own."""
        return cls(_emit_never, refuses, becomes=becomes)


def need_constant(*places: int) -> Callable[[Op], str | None]:
    """Operands that must be known when the model is compiled."""

    def refuses(op: Op) -> str | None:
        for place in places:
            tensor = op.input(place)
            if tensor is not None and not tensor.is_constant:
                return f"its operand {place} must be constant"
        return None

    return refuses


def first_of(*rules: Callable[[Op], str | None]) -> Callable[[Op], str | None]:
    """The first reason that one of the rules has."""
    return lambda op: next((reason for rule in rules if (reason := rule(op))), None)
