"""Who runs a session's ops: the delegates that were asked for, or those behind them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from ..ir import Graph, Shape
from ..progress import plural
from .delegate import Delegate, PlainDelegate
from .plan import Plan
from .registry import FALLBACK
from .session import Session

LONGEST = 24  # letters of a delegate with its options that a table shows as they were written
Wanted = Sequence[str | PlainDelegate]


def ops_by_delegate(session: Session, wanted: Wanted, plan: Plan) -> dict[str, int]:
    """How many ops each delegate runs in this plan. Those that are wanted stand first, also with 0:
    a fallback that ran everything must not pass for them."""
    titles = [shown_name(d) for d in wanted or ("cpu",)]
    names = dict(zip(map(id, session.delegates), titles, strict=False))
    counts = dict.fromkeys(titles, 0)
    for step in plan.steps:
        delegate = step.part.delegate
        name = names.get(id(delegate), delegate.name)
        counts[name] = counts.get(name, 0) + len(step.part.nodes)
    return counts


def runs_on(wanted: Wanted, counts: Mapping[str, int]) -> str:
    """Who runs a model, as a table has it: "cpu (litert-gpu took 0 of 16 ops)". Without counts,
    those that are wanted."""
    took = [name for name, count in counts.items() if count] or [shown_name(w) for w in wanted]
    total = sum(counts.values())
    some = ", ".join(f"{name} took {count}" for name, count in counts.items() if count < total)
    return "+".join(took) + (f" ({some} of {plural(total, 'op')})" if some else "")


def shown_name(wanted: str | PlainDelegate) -> str:
    """A delegate's name with its options, if that is short; else without them, but with the name of
    the library's file."""
    if not isinstance(wanted, str):
        return wanted.name
    if len(wanted) <= LONGEST:
        return wanted
    name, _, options = wanted.partition(":")
    path = dict(o.partition("=")[::2] for o in options.split(";")).get("path")
    return f"{name}:{Path(path).name}" if path else name


def idle_delegates(
    session: Session, wanted: Wanted, graph: Graph, shapes: Sequence[Shape]
) -> list[str]:
    """A sentence for each delegate that was asked for and runs nothing, though those behind it do:
    what was run says nothing of it. Graphs that control flow called count as well."""
    plan = session.runnable_plan(graph, shapes)
    idle = list(_idle(session, wanted, plan))
    if not idle:
        return []
    whole = session.plan(graph, shapes)  # one from disk knows no reasons
    count = plural(len(whole.graph.ops), "op")
    return [
        f"delegate '{shown_name(name)}' took 0 of {count}{_why(whole, delegate)}"
        for name, delegate in idle
    ]


def _idle(
    session: Session, wanted: Wanted, plan: Plan
) -> Iterator[tuple[str | PlainDelegate, Delegate]]:
    at_work = {id(s.part.delegate) for p in (plan, *session.plans_made()) for s in p.steps}
    for place, (name, delegate) in enumerate(zip(wanted, session.delegates, strict=False)):
        is_spare = place > 0 and delegate.name in FALLBACK
        behind = session.delegates[place + 1 :]
        if not is_spare and id(delegate) not in at_work and any(id(d) in at_work for d in behind):
            yield name, delegate


def _why(plan: Plan, delegate: Delegate) -> str:
    """The reason that most of its refusals have."""
    refused = [r for refusals in plan.partition.refusals.values() for r in refusals]
    refused += [s.part.left for s in plan.steps if s.part.left is not None]
    reasons = Counter(r.reason for r in refused if r.delegate == delegate.name)
    if not reasons:
        return ""
    more = plural(len(reasons) - 1, "more reason")
    return f": {reasons.most_common(1)[0][0]}" + (f" (and {more})" if len(reasons) > 1 else "")
