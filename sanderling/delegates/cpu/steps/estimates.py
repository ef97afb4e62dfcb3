"""How long a step may take: enough to tell what is worth sharing."""

from __future__ import annotations

from ....ir import Op
from ....ops import cost
from ..dialect.fused import unfused
from ..isa.targets import Target


def nanoseconds(op: Op, target: Target) -> int:
    """On one core of the target's kind."""
    found = cost(unfused(op), lowered=True)
    size = op.outputs[0].dtype.nbytes((1,)) if op.outputs else 1
    macs = found.macs / (240 if size == 1 else 60)
    return 1 + int(macs + (found.bytes_read + found.bytes_written) / 20)
