"""Who runs the ops of a setting: the delegates of ours that it names, or the other engine's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..measure.benchmark_model.providers import flagged
from ..measure.record import Setting
from ..progress import plural
from ..runtime.delegate import Delegate, PlainDelegate, as_delegate
from ..runtime.plan import Plan
from ..runtime.registry import find_delegate
from ..runtime.session import Session

LONGEST = 24  # letters of a delegate with its options that a table shows as they were written


def delegates_of(setting: Setting) -> list[Delegate]:
    """Who runs the ops of this setting, in order of preference. The precision is the delegate's
    own, so that two of one kind can stand in one session."""
    if setting.engine != "sanderling":
        return [_at(setting.engine, setting.precision)]
    found = [_at(name, setting.precision) for name in setting.delegates or ("cpu",)]
    return [flagged(delegate, setting.flags) for delegate in found]


def as_computed(setting: Setting) -> Setting:
    """The setting at the precision that its delegates compute in: one that has no instructions for
    what is asked warns of it, and takes f32."""
    if setting.engine != "sanderling":
        return setting
    from ..delegates.cpu.delegate import CpuDelegate

    found = [d.target.precision for d in delegates_of(setting) if isinstance(d, CpuDelegate)]
    return replace(setting, precision=found[0] if found else "f32")


# Delegates that take a setting's precision.
_PRECISE = ("cpu", "openvino")


def _at(name: str | Delegate, precision: str) -> Delegate:
    found = find_delegate(name)
    if name not in _PRECISE or precision == "f32":
        return found
    return as_delegate(found.configure({"precision": precision}))


# -- who did run them ------------------------------------------------------------------------------


def ops_by_delegate(session: Session, setting: Setting, plan: Plan) -> dict[str, int]:
    """How many ops each delegate runs in this plan. Those that the setting wants stand first, also
    with 0: a fallback that ran everything must not pass for them."""
    wanted = [shown_name(d) for d in setting.delegates or ("cpu",)]
    names = dict(zip(map(id, session.delegates), wanted, strict=False))
    counts = dict.fromkeys(wanted, 0)
    for step in plan.steps:
        delegate = step.part.delegate
        name = names.get(id(delegate), delegate.name)
        counts[name] = counts.get(name, 0) + len(step.part.nodes)
    return counts


def runs_on(wanted: Sequence[str], counts: Mapping[str, int]) -> str:
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
