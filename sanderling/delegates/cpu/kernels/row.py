"""The row of a kernel: all that the rest of the compiler may know of it.

A pass, the placement or a report asks the row; none keeps a list of operators of its own. Passes
turn 8-bit activations into one type (passes/unify_bytes.py), so that a row meets an op twice:
`refuses` sees it as it stands in the user's graph, with int8 for example, and all other functions
as it stands when the passes are done, with uint8 on x86. `handles` must answer alike for both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ....errors import DelegateError
from ....ir import Op, Tensor
from ..dialect.fused import operator
from ..dialect.guards import Condition
from ..isa.targets import Target

if TYPE_CHECKING:
    from ..codegen.program import StepEmitter

# Asks the table why an op is refused; None if it is taken.
Ask = Callable[[Op], "str | None"]


class Shared(NamedTuple):
    """An operand that may lie where the result lies.

    condition: the branch that computes the operand as the result; None for a variable, which may be
    read where it lies until it is assigned.
    """

    tensor: Tensor
    condition: Condition | None = None


@dataclass(frozen=True)
class Kernel:
    """A row of the kernel table."""

    # Writes the step of an op.
    emit: Callable[[StepEmitter, Op], None]
    # Why an op of the user's graph is not taken; None if it is.
    refuses: Callable[[Op, Target], str | None] = lambda op, target: None
    # The kernel's name in profiles and dumps.
    name: Callable[[Op], str] = lambda op: operator(op).lower().replace(".", "_")

    # -- which ops ------------------------------------------------------------------------------

    # The ops of this name that the row is for, by their types. One row of a name has None: it is
    # for all that no other row handles.
    handles: Callable[[Op], bool] | None = None
    # The ops that mean the same and stand in this one's place from the first pass on; None if there
    # are none for these operands, and the op is refused.
    becomes: Callable[[Op], Sequence[Op] | None] | None = None
    # Why the ops of the graphs that it calls are not taken: they stand in its place later.
    inner: Callable[[Op, Ask], str | None] | None = None

    # -- where its tensors lie ------------------------------------------------------------------

    # The inputs whose rows may lie apart from each other, and whether all outputs' may. The kernel
    # asks k.pitch for the distance.
    reads: Callable[[Op], Collection[int]] = lambda op: ()
    writes: Callable[[Op], bool] = lambda op: False
    # Its output shows its input's bytes: nothing is done where both lie in the same place.
    is_view: bool = False
    # It moves elements between these pairs of views (kernels/move/views.py).
    pairs: Callable[[Op], list[Any]] | None = None
    # The operands that may lie where its result lies. Nothing is done if all of them do.
    lies_with: Callable[[Op], Sequence[Shared]] = lambda op: ()
    # The operands whose bytes its result may overwrite while it reads them.
    overwrites: Callable[[Op], Sequence[Tensor]] = lambda op: ()

    # -- its operands ---------------------------------------------------------------------------

    # Operands that keep their 8-bit type: the other side of a product, and numbers that count
    # elements. Floats among them that are too small for fast arithmetic become zero.
    weights: tuple[int, ...] = ()
    # The operand whose codes mean what those of the first operand mean, though it may not say so.
    value: int | None = None
    # Codes are plain numbers to it, or stand beside an implicit code 0, or share a type with states
    # and weights: its 8-bit operands keep their types.
    plain_codes: bool = False
    # It rounds int8 and uint8 in different ways: Fused.signed says which it was.
    sign_matters: bool = False
    # It changes variables that it reads, or copies a variable, whose type alone is kept then.
    changes_state: bool = False
    copies_state: bool = False

    # -- what goes into it ----------------------------------------------------------------------

    # What passes may make part of it: "pad", "residual", "map", "map of two"
    # (passes/fuse_into_kernels.py), "dynamic", "bf16", "zeros" (the passes of those names).
    fuses: frozenset[str] = frozenset()


def emit_never(k: StepEmitter, op: Op) -> None:
    raise DelegateError("a pass was to put other ops in its place", where=op.where)


# The row of an op that has none: nothing is known of it.
UNKNOWN = Kernel(emit_never)
