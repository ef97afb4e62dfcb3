"""What `sanderling.bench` found: from launches to a result, results compared, and the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from .engine_agreement import compare_all, tolerance
from .interleaving import Launch
from .machine import machine
from .noise import Disturbance
from .part_times import FOREIGN_OPS, PartTime
from .payoff import Payoff, payoffs
from .record import Result, Setting
from .sample_statistics import Launches, Ratio, ratio_of_launches
from .sweep import Recommendation, recommend

SCHEMA = "sanderling.bench/1"


@dataclass(frozen=True)
class Comparison:
    """One setting of a model against the first: how many times as long it takes."""

    model: str
    setting: str
    against: str
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.2f} [{self.low:.2f}, {self.high:.2f}]"


@dataclass(frozen=True)
class Gap:
    """How far a setting's answers are from the first's."""

    model: str
    setting: str
    gap: str
    fits: bool


@dataclass
class Bench:
    """What `bench` found: `to_json` is the record."""

    results: list[Result] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    answers: list[Gap] = field(default_factory=list)
    payoffs: list[Payoff] = field(default_factory=list)
    recommendations: list[Recommendation] = field(default_factory=list)
    warnings: list[Disturbance] = field(default_factory=list)
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=machine)
    settings: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    def of(self, model: str) -> list[Result]:
        return [r for r in self.results if r.model == model]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "machine": self.machine,
            "settings": self.settings,
            "models": self.models,
            "results": [r.to_json() for r in self.results],
            "comparisons": [asdict(c) for c in self.comparisons],
            "answers": [asdict(g) for g in self.answers],
            "payoffs": [p.to_json() for p in self.payoffs],
            "recommendations": [r.to_json() for r in self.recommendations],
            "warnings": [w.to_json() for w in self.warnings],
            "interrupted": self.interrupted,
        }


# -- from launches to a result --------------------------------------------------------------------


def result_of(
    model: str,
    facts: Mapping[str, Any],
    setting: Setting,
    launches: Sequence[Launch],
    why: str,
) -> Result:
    """What the launches of a setting gave together. facts: of the model; why: the reason why there
    are none."""
    made = Result(model, setting, error=why)
    failed = [x.error for x in launches if x.error]
    if failed or not launches:
        made.error = made.error or (failed[0] if failed else "")
        return made
    made.rounds = [r for x in launches for r in x.rounds]
    made.launches = [len(x.rounds) for x in launches]
    made.begun = [b for x in launches for b in x.begun]
    made.warmup = [s for x in launches for s in x.warm.samples]
    made.stable = sum(x.warm.stable for x in launches) * 2 > len(launches)
    made.block = max(x.block for x in launches)
    made.cpu_times = [seconds for x in launches for seconds in x.cpu]
    made.cpu_seconds = sum(x.usage.cpu_seconds for x in launches)
    made.switches = sum(x.usage.switches for x in launches)
    made.facts["parts"] = _parts([x.usage.parts for x in launches if x.usage.parts])
    _starts(made, facts, launches)
    return made


def _parts(found: Sequence[Sequence[PartTime]]) -> list[dict[str, Any]]:
    """What each part takes: medians over the processes, where they agree on the parts."""
    alike = [parts for parts in found if len(parts) == len(found[0])]
    return [
        asdict(several[0])
        | {name: median(getattr(p, name) for p in several) for name in ("seconds", "copying")}
        for several in zip(*alike, strict=True)
    ]


def forget_starts(made: Result) -> None:
    """Processes that started together took each other's time."""
    made.init = made.first = made.imports = None
    made.inits, made.firsts = [], []


def _starts(made: Result, facts: Mapping[str, Any], launches: Sequence[Launch]) -> None:
    """Init, the first inference, memory: medians over the processes. One that compiled holds the
    compiler, too, and is no middle between that and the others: they count where there are any."""
    ready = [x.ready for x in launches if x.ready is not None]
    made.inits, made.firsts = [r.init for r in ready], [r.first for r in ready]
    made.facts |= {"starts": [r.facts.get("start", "") for r in ready]}
    made.facts |= {FOREIGN_OPS: ready[0].facts.get(FOREIGN_OPS, 0)}
    made.facts |= {"idle_delegates": ready[0].facts.get("idle", [])}
    made.setting = replace(made.setting, ran=str(ready[0].facts.get("ran", "")))
    alike = [x for x in launches if x.ready and x.ready.facts.get("start") == "from the cache"]
    alike = alike or [x for x in launches if x.ready]
    alike = [x for x in alike if not x.cut] or alike  # what its runs took is not known
    typical = [x.ready for x in alike if x.ready is not None]
    made.init, made.first = median(r.init for r in typical), median(r.first for r in typical)
    made.imports = median(r.imports for r in ready)
    made.notes = [n for n in ready[0].note.split("; ") if n]
    held = [x.ready.memory | x.usage.memory for x in alike if x.ready is not None]
    keys = [k for k in dict.fromkeys(k for h in held for k in h) if all(k in h for h in held)]
    made.memory = {"file": facts["file"], "weights": facts["weights"]}
    made.memory |= {k: int(median(h[k] for h in held)) for k in keys}


def ratio(slow: Result, fast: Result) -> Ratio:
    """How many times as long for a sample; settings that were launched together shared their
    rounds."""
    return _ratio(slow, fast, slow.by_launch, fast.by_launch)


def cpu_ratio(more: Result, less: Result) -> Ratio | None:
    """How many times as many CPU seconds for a sample; None where they are not known."""
    used = more.cpu_by_launch, less.cpu_by_launch
    return _ratio(more, less, *used) if all(used) else None


def _ratio(above: Result, below: Result, its: Launches, others: Launches) -> Ratio:
    together = above.facts.get("batch") == below.facts.get("batch")
    found = ratio_of_launches(its, others, paired=together)
    return found.times(below.setting.batch / above.setting.batch)


def judge(
    made: Bench,
    model: str,
    kind: str,
    results: Sequence[Result],
    found: Mapping[Setting, Sequence[Launch]],
) -> None:
    """Compare a model's settings with the first, their times and answers, and recommend one. kind:
    how it is quantised, which says how far answers may be apart."""
    ran = [r for r in results if r.rounds]
    sound = [r for r in ran if not r.setting.contend] or ran
    for other in sound[1:]:
        one = ratio(other, sound[0])
        made.comparisons.append(
            Comparison(
                model,
                other.setting.name,
                sound[0].setting.name,
                one.value,
                one.low,
                one.high,
            )
        )
    answers = {
        r.setting.name: [a[: len(a) // r.setting.batch] if a.ndim else a for a in ready.answers]
        for r in sound
        if (ready := found[r.setting.asked][0].ready) is not None
    }
    limits = {r.setting.name: tolerance(kind, r.setting.precision) for r in sound}
    base = sound[0].setting.name if sound else ""
    gaps = [
        Gap(model, name, gap, fits)
        for name, (gap, fits) in compare_all(answers, base, limits).items()
    ]
    made.answers += gaps
    found_out = list(payoffs(sound, ratio))
    made.payoffs += found_out
    chosen = recommend(sound, ratio, [g.setting for g in gaps if not g.fits], found_out)
    made.recommendations += [chosen] if chosen else []
