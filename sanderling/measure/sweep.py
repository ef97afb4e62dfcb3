"""Settings to be tried, and the one to be taken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import SanderlingError
from ..ir import Graph, Shape
from ..passes.simplify import fold_constants
from ..processors import usable_cpu_count
from ..progress import plural
from ..runtime.registry import delegate_names, find_delegate, usable_delegate
from ..runtime.specialise import specialise
from ..units import byte_size
from .engine_agreement import group
from .engines import TITLES
from .machine import cpu_flags
from .payoff import Payoff
from .process_memory import growth
from .record import Result, Setting, is_default
from .sample_statistics import Ratio

BF16 = {"avx512_bf16", "amx_bf16", "bf16"}
PRECISIONS = ("f32", "bf16")
HAS_BF16 = ("sanderling", "openvino")  # the engines that have it on a CPU
SLOW = ("reference", "litert-reference", "litert-builtin")
AS_GOOD = 1.02  # slower by less is not worth a thread
NEAR = 1.1  # slower by more is no equal, however wide the interval


def thread_counts() -> list[int]:
    """1, 2, 4, ... up to the CPUs that may be used, and their number itself."""
    cpus = usable_cpu_count()
    return sorted({1, cpus, *(1 << n for n in range(cpus.bit_length()) if 1 << n <= cpus)})


def delegate_choices() -> list[tuple[str, ...]]:
    """The delegates that are worth a try here. Others are there to be exact, and take many times as
    long, or have the processor itself for a device."""
    found = [(name, usable_delegate(name)[0]) for name in delegate_names() if name not in SLOW]
    return [
        (name,) for name, delegate in found if delegate is not None and not delegate.is_software
    ]


def combinations(
    engines: Sequence[str],
    threads: Sequence[int],
    delegates: Sequence[tuple[str, ...]],
    precisions: Sequence[str],
    contend: int = 0,
) -> list[Setting]:
    """Every combination that means something: peers have no delegates of ours."""
    made = [
        Setting(engine, count, chosen, precision, contend=busy)
        for engine in engines
        for precision in precisions
        for chosen in (delegates if engine == "sanderling" else [()])
        for count in threads
        for busy in ([0, contend] if contend else [0])
    ]
    unique: dict[str, Setting] = {}
    for setting in made:
        unique.setdefault(setting.name, setting)
    return list(unique.values())


def heeds_no_setting(delegates: tuple[str, ...], graph: Graph, shapes: Sequence[Shape]) -> bool:
    """Whether the first of these runs the whole graph, and threads and precision change nothing
    there."""
    first = find_delegate(delegates[0]) if delegates else None
    if first is None or first.uses_threads:
        return False
    try:
        special, _ = specialise(graph, shapes, [first])
        fold_constants(special)
        return not any(first.refuses_each(special.ops))
    except SanderlingError:  # whoever measures it says so
        return False


def why_not(setting: Setting, kind: str) -> str:
    """Why a setting makes no sense for a model of this kind, or ""."""
    if setting.precision == "f32":
        return ""
    if setting.engine not in HAS_BF16:
        return f"{TITLES[setting.engine]} has no {setting.precision} on a CPU"
    if group(kind) != "float":
        return f"a quantised model ({kind}) does not run at {setting.precision}"
    if not cpu_flags() & BF16:
        return f"this CPU has no instructions for {setting.precision}"
    return ""


@dataclass(frozen=True)
class Recommendation:
    """The setting to take for a model, and why that one."""

    model: str
    setting: str
    seconds: float
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def recommend(
    results: Sequence[Result],
    compare: Callable[[Result, Result], Ratio],
    unlike: Sequence[str] = (),
    payoffs: Sequence[Payoff] = (),
) -> Recommendation | None:
    """The fastest of one model's results or, among those that cannot be told from it, the one that
    takes least: threads, then precision lost, then other packages, then memory. unlike: names of
    settings whose answers are off. payoffs: what the delegates among them gain."""
    sound = [
        r for r in results if r.summary and not r.setting.contend and r.setting.name not in unlike
    ]
    if len(sound) < 2:
        return None
    fastest = min(sound, key=_median)
    near = [r for r in sound if r is fastest or is_as_good(compare(r, fastest))]
    chosen = min(near, key=_cost)
    unsure = [r for r in sound if not any(r is n for n in near) and compare(r, fastest).low <= 1]
    return Recommendation(
        chosen.model,
        chosen.setting.name,
        _median(chosen),
        _reason(chosen, fastest, near, unsure, compare) + _borders(chosen, payoffs),
    )


def _borders(chosen: Result, payoffs: Sequence[Payoff]) -> str:
    """What was counted of delegates: conversion at the borders of the one that is taken, or who is
    slower than the cpu."""
    own = next((p for p in payoffs if p.setting == chosen.setting.name and p.parts), None)
    if own is not None:
        return (
            f"; what crosses its borders in a run, {plural(own.tensors, 'tensor')} of "
            f"{byte_size(own.nbytes)}, is counted"
        )
    slower = [p.delegates for p in payoffs if p.is_slower and is_default(chosen.setting)]
    return f"; slower than the cpu alone: {', '.join(dict.fromkeys(slower))}" if slower else ""


def _median(result: Result) -> float:
    return result.measured.median


def is_as_good(slower: Ratio) -> bool:
    """Whether nobody would notice the difference, or none was measured."""
    return slower.value <= AS_GOOD or (slower.low <= 1.0 and slower.value <= NEAR)


def _cost(result: Result) -> tuple[int, bool, bool, float, float]:
    memory = growth(result.memory, "peak.runs") or growth(result.memory, "ready.rss") or 0
    # A megabyte more or less is no reason.
    return (
        result.setting.threads,
        result.setting.precision != "f32",
        result.setting.engine == "sanderling" and not is_default(result.setting),
        round(memory / 1e6),
        _median(result),
    )


def _reason(
    chosen: Result,
    fastest: Result,
    near: Sequence[Result],
    unsure: Sequence[Result],
    compare: Callable[[Result, Result], Ratio],
) -> str:
    if chosen is fastest:
        if len(near) == 1 and unsure:
            return (
                f"its median is the lowest, but {unsure[0].setting.name} cannot be told from "
                f"it (ratio {compare(unsure[0], fastest)}): measure longer, or on a quieter "
                f"machine"
            )
        if len(near) == 1:
            return "it is the fastest, beyond the noise"
        return f"the fastest; {len(near) - 1} more cannot be told from it and take no less"
    ratio = compare(chosen, fastest)
    gains = _gains(chosen, fastest)
    return (
        f"{fastest.setting.name} is not surely faster (ratio {ratio}), and this one takes "
        f"{' and '.join(gains)}"
    )


def _gains(chosen: Result, fastest: Result) -> list[str]:
    threads = fastest.setting.threads - chosen.setting.threads
    found = [f"{threads} thread{'s' * (threads > 1)} fewer"] if threads > 0 else []
    if fastest.setting.precision != "f32" == chosen.setting.precision:
        found.append("no lower precision")
    if is_default(chosen.setting) and not is_default(fastest.setting):
        found.append("no engine of others")
    return found or ["less memory"]
