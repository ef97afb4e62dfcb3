"""Who runs the ops of a setting: the delegates of ours that it names, or the other engine's."""

from __future__ import annotations

from dataclasses import replace

from ..measure.benchmark_model.providers import flagged
from ..measure.record import Setting
from ..runtime.delegate import Delegate, as_delegate
from ..runtime.registry import find_delegate


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
