"""What a plan says of itself while somebody records, and who runs its parts meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from ..spans import Span, instant, span, tape
from .partition import Partition
from .plan import Plan, Step, has_storage, unpacked_bytes


def begin(plan: Plan) -> None:
    """Executables that tell of their steps run from now on."""
    plan.subgraph = None
    other = None if plan.is_traced or plan.again is None else plan.again()
    plan.is_traced = True
    if other is not None and len(other.steps) == len(plan.steps):
        for step, traced in zip(plan.steps, other.steps, strict=True):
            step.executable, step.plain = traced.executable, step.executable


def end(plan: Plan) -> None:
    """Nobody listens any more."""
    plan.is_traced, plan.subgraph = False, None
    for step in plan.steps:
        step.executable, step.plain = step.plain or step.executable, None


def part_span(step: Step, index: int) -> Span:
    name = step.part.delegate.name
    about = {
        "delegate": name,
        "ops": len(step.part.nodes),
        "workers": step.executable.workers,
    }
    return span(f"part {index} on {name}", "part", about)


def tell_border(steps: Sequence[Step], index: int) -> None:
    """Say which values come from parts on other delegates."""
    mine = steps[index].part
    for place, other in enumerate(steps[:index]):
        crossing = [t for t in steps[index].inputs if t in other.outputs]
        if crossing:
            size = sum(unpacked_bytes(t) for t in crossing if has_storage(t))
            instant(
                f"border: part {place} to part {index}",
                "border",
                {
                    "from": other.part.delegate.name,
                    "to": mine.delegate.name,
                    "bytes": size,
                    "tensors": [t.name for t in crossing],
                },
            )


def tell_refusals(found: Partition) -> None:
    """Say which ops a delegate did not take, and why."""
    if tape.recorder is None:
        return
    home = {op: (part, place) for part in found.parts for place, op in enumerate(part.ops)}
    for op, refusals in found.refusals.items():
        part, place = home[op]
        for refusal in refusals:
            instant(
                f"{refusal.delegate} refuses {op.name}",
                "refusal",
                {
                    "op": op.name,
                    "node": part.nodes[place],
                    "writes": op.where,
                    "delegate": refusal.delegate,
                    "runs on": part.delegate.name,
                    "reason": refusal.reason,
                    "how": "failed" if refusal.has_failed else "refused",
                },
            )
