"""Under which conditions an op runs.

An IF of pure branches becomes their ops (passes/inline.py), each under a guard: a row of
(condition, polarity), and the op is passed over unless all of them hold. Any op may have one,
those of the schema too.
"""

from __future__ import annotations

from ....ir import Op, Tensor

GUARD = "guard"  # the attribute that holds it
Condition = tuple[Tensor, bool]
Guard = tuple[Condition, ...]


def guard_of(op: Op) -> Guard:
    """The conditions of an op; none where it always runs."""
    found: Guard = op.attrs.get(GUARD, ())
    return found
