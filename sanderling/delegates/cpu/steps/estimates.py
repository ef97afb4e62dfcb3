"""How long a step may take: enough to tell what is worth sharing."""

from __future__ import annotations

from ....ir import Op
from ....ops import cost
from ..dialect.fused import unfused
from ..isa.base import isa_of
from ..isa.targets import Target

# Multiply-adds a nanosecond of one 32-bit lane: of floats, fused or in two instructions, and of
# bytes by a dot product instruction, in pairs of words, and as single words. So much do layers of
# middling networks reach on cores of 3 GHz: 60 of floats and 240 of bytes on AVX512 with VNNI. New
# cores do more (benchmarks/fit_workers.py tells how much).
FUSED, APART = 3.75, 1.9
DOT, PAIRS, WORDS = 15.0, 7.5, 3.75
# Bytes a nanosecond that a step reads and writes.
BYTES = 20


def nanoseconds(op: Op, target: Target) -> int:
    """On one core of the target's kind."""
    found = cost(unfused(op), lowered=True)
    size = op.outputs[0].dtype.nbytes((1,)) if op.outputs else 1
    rate = (_of_bytes(target) if size == 1 else _of_floats(target)) * target.lanes
    return 1 + int(found.macs / rate + (found.bytes_read + found.bytes_written) / BYTES)


def _of_floats(target: Target) -> float:
    return FUSED if target.fma else APART


def _of_bytes(target: Target) -> float:
    isa = isa_of(target)
    if isa.has_dot:
        return DOT
    return PAIRS if isa.has_pairs else WORDS
