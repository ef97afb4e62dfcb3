"""`sanderling.tune`: the best setting of a model for this machine, by successive halving.

All settings are measured shortly, the best quarter of them for longer, and so on; each stage has as
many seconds as every other. The last two and the default are measured as `bench` does, in several
fresh processes each, so that what is said of the gain has an interval.

Most of the time goes into starting processes, not into measuring: that is why a quarter goes on and
not a half, and why processes start together, one for each CPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, InputError, SanderlingError
from ..ir import Shape
from ..measure.bench import Axes, BenchedModel, Procedure, measure_models
from ..measure.bench_results import Bench, cpu_ratio, ratio
from ..measure.inputs import Feeding
from ..measure.machine import machine
from ..measure.part_times import FOREIGN_OPS
from ..measure.process_memory import growth
from ..measure.record import Result, Setting
from ..measure.sample_statistics import Ratio
from ..measure.sweep import PRECISIONS, delegate_choices, is_as_good, thread_counts
from ..processors import usable_cpu_count
from ..progress import plural
from ..runtime.plugins import load_plugins
from ..runtime.registry import FALLBACK
from ..runtime.session import Session
from ..runtime.settings_file import KeptSettings
from ..units import MIB

SCHEMA = "sanderling.tune/1"
Progress = Callable[[str, int, int], None]
FINALISTS = 2  # settings beside the default that are measured at length
KEPT = 4  # one of so many goes on to the next stage
LAUNCHES = 3  # processes of each finalist
SECONDS = 4.0  # of measuring, unless others are given
LEAST, MOST = 0.05, 4.0  # seconds of a setting in a stage
WORTH = 1.02  # memory within this factor is as good
DEFAULT = Setting()


@dataclass(frozen=True)
class Goal:
    """What is made small, and how people call it. compared: one result's figure over another's,
    with its interval."""

    figure: Callable[[Result], float]
    compared: Callable[[Result, Result], Ratio]
    unit: str


def _latency(result: Result) -> float:
    return result.measured.median / result.setting.batch


def _cpu(result: Result) -> float:
    return (result.cpu_time or _latency(result)) / result.setting.batch


def _memory(result: Result) -> float:
    held = growth(result.memory, "peak.runs") or growth(result.memory, "ready.rss")
    return float(held) if held else math.inf  # not known


def _compared_cpu(one: Result, other: Result) -> Ratio:
    return cpu_ratio(one, other) or _exact(_cpu(one), _cpu(other))


def _compared_memory(one: Result, other: Result) -> Ratio:
    return _exact(_memory(one), _memory(other))


def _exact(one: float, other: float) -> Ratio:
    """The ratio of two figures that are measured once: what is within WORTH is the same."""
    value = one / other if 0 < other < math.inf else 1.0
    return Ratio(value, value / WORTH, value * WORTH, np.zeros(1))


GOALS = {
    "latency": Goal(_latency, ratio, "time for a sample"),
    "energy": Goal(_cpu, _compared_cpu, "CPU time for a sample"),
    "memory": Goal(_memory, _compared_memory, "memory"),
}


@dataclass(frozen=True)
class Stage:
    """One round of the halving: what was measured, and what went on."""

    seconds: float
    measured: list[str]
    kept: list[str]


@dataclass
class Tuning:
    """What `tune` found. gain: the chosen setting's figure (that of the goal) over the default's,
    with its interval; None where the default itself was chosen."""

    model: str
    goal: str
    default: Result
    chosen: Result
    gain: Ratio | None
    verdict: str
    stages: list[Stage]
    refused: dict[str, str]
    results: list[Result] = field(default_factory=list)
    warnings: list[Any] = field(default_factory=list)

    @property
    def settings(self) -> KeptSettings:
        """As a file that `compile`, `run`, `bench` and `eval` take."""
        setting = self.chosen.setting
        found = {
            "model": self.model,
            "goal": self.goal,
            "verdict": self.verdict,
            "machine": machine(),
        }
        return KeptSettings(
            setting.delegates, setting.threads, setting.precision, setting.batch, found
        )

    def to_json(self) -> dict[str, Any]:
        gain = self.gain
        return {
            "schema": SCHEMA,
            "model": self.model,
            "goal": self.goal,
            "verdict": self.verdict,
            "gain": gain and {"ratio": gain.value, "low": gain.low, "high": gain.high},
            "default": self.default.setting.name,
            "chosen": self.chosen.setting.name,
            "settings": self.settings.to_json(),
            "stages": [vars(stage) for stage in self.stages],
            "refused": self.refused,
            "results": [r.to_json() for r in self.results],
            "machine": machine(),
            "warnings": [w.to_json() for w in self.warnings],
        }


def tune(
    model: str | os.PathLike[str],
    *,
    threads: Sequence[int] = (),
    delegates: Sequence[tuple[str, ...]] = (),
    precision: Sequence[str] = (),
    batches: Sequence[int] = (1,),
    goal: str = "latency",
    contend: int = 0,
    signature: str = "",
    shapes: Mapping[str, Shape] | None = None,
    inputs: Mapping[str, str | Path] | None = None,
    plugins: Sequence[str | Path] = (),
    seconds: float = SECONDS,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Tuning:
    """The best setting of a model for this machine: threads, delegate, precision, batch.

    What is not given is tried out with all that this machine has; the batch is 1 unless more are
    given. goal: latency (of a sample), energy (CPU seconds of a sample) or memory. contend: beside
    so many busy processes, as on a machine that has other work. seconds: about how long it may
    take. Settings whose answers are off, or that fail, are in `refused` with their reasons.
    """
    if goal not in GOALS:
        raise InputError(f"there is no goal '{goal}'", fix=f"one of {', '.join(GOALS)}")
    for name, counts in (("threads", threads), ("batches", batches)):
        for count in counts:
            if count < 1:
                raise ArgumentError(f"`{name}` is {count}", fix="give 1 or more")
    if seconds <= 0 or contend < 0:
        what = f"`seconds` is {seconds:g}" if seconds <= 0 else f"`contend` is {contend}"
        raise ArgumentError(what, fix="give a larger number")
    load_plugins(plugins)  # they may bring delegates
    axes = Axes(
        ("sanderling",),
        threads or thread_counts(),
        delegates or delegate_choices(),
        precision or PRECISIONS,
        0,
        swept=not precision,
        sweeps_threads=not threads,
    )
    feeding = Feeding(shapes or {}, {}, inputs or {}, seed)
    files = tuple(str(Path(p).absolute()) for p in plugins)
    subject = BenchedModel.of(model, Path(model).name, feeding, signature, files, axes)
    search = _Search(subject, GOALS[goal], seconds, contend, seed, progress)
    return search.found(list(batches), goal)


class _Search:
    """The halving on its way."""

    def __init__(
        self,
        subject: BenchedModel,
        goal: Goal,
        seconds: float,
        contend: int,
        seed: int,
        progress: Progress,
    ) -> None:
        self.subject, self.goal, self.seconds = subject, goal, seconds
        self.contend, self.seed, self.progress = contend, seed, progress
        self.refused: dict[str, str] = {}
        self.stages: list[Stage] = []
        self.default = replace(DEFAULT, contend=contend)

    def found(self, batches: Sequence[int], goal: str) -> Tuning:
        left = self._candidates(batches)
        stages = _stages(len(left))
        for _ in range(stages - 1):
            made = self._measured(left, self._share(left, stages), launches=1)
            left = self._better(made, _kept(len(left)))
        last = self._measured(left, self._share(left, stages), LAUNCHES)
        sound = [r for r in last.results if self._is_sound(r, last)]
        return self._judged(sound, last, goal)

    def _candidates(self, batches: Sequence[int]) -> list[Setting]:
        """The default first, then every other combination that the model and the machine take."""
        made = {self.default.name: self.default}
        for batch in batches:
            why = self._why_no_batch(batch)
            for setting in self.subject.settings:
                one = replace(setting, batch=batch, contend=self.contend)
                if why:
                    self.refused[one.name] = why
                else:
                    made.setdefault(one.name, one)
        return list(made.values())

    def _why_no_batch(self, batch: int) -> str:
        if batch == 1:
            return ""
        try:
            session = Session(self.subject.model, ("reference",))
            graph = session.entry(self.subject.signature or None).graph
            session.plan(graph, [a.shape for a in self.subject.batch(batch)])
        except SanderlingError as error:
            return f"the model does not take a batch of {batch}: {error.what}"
        return ""

    def _share(self, left: Sequence[Setting], stages: int) -> float:
        """Seconds for each setting of a stage."""
        return max(LEAST, min(MOST, self.seconds / stages / len(left)))

    def _measured(self, settings: Sequence[Setting], seconds: float, launches: int) -> Bench:
        how = Procedure(
            runs=5 * launches,
            min_secs=seconds,
            max_secs=max(2.0, 4 * seconds),
            warmup_secs=min(0.2, seconds),
            launches=launches,
            seed=self.seed,
            at_once=usable_cpu_count(),
        )
        subject = replace(self.subject, settings=list(settings))
        made = measure_models([subject], how, self.progress)
        self.refused |= {r.setting.name: r.error for r in made.results if r.error}
        names = [s.name for s in settings]
        self.stages.append(Stage(seconds, names, names))
        return made

    def _is_sound(self, result: Result, made: Bench) -> bool:
        off = {gap.setting: gap.gap for gap in made.answers if not gap.fits}
        name = result.setting.asked.name
        if result.setting.name in off:
            self.refused[name] = f"its answers are off: {off[result.setting.name]}"
        if _takes_nothing(result):
            why = "; ".join(["its delegate takes no op", *result.notes[1:]])
            self.refused[name] = why
        return bool(result.rounds) and name not in self.refused

    def _better(self, made: Bench, count: int) -> list[Setting]:
        """The default, and the best of the others."""
        sound = [r for r in made.results if self._is_sound(r, made)]
        order = sorted(sound, key=self.goal.figure)
        best = [r.setting for r in order if r.setting != self.default][:count]
        kept = [self.default, *best]
        self.stages[-1] = replace(self.stages[-1], kept=[s.name for s in kept])
        return kept

    def _judged(self, sound: Sequence[Result], last: Bench, goal: str) -> Tuning:
        default = next((r for r in sound if r.setting == self.default), None)
        if default is None:
            raise SanderlingError(
                self.refused.get(self.default.name, "the default setting gave no result"),
                where=self.subject.name,
                fix="see whether `sanderling run` works on it",
            )
        chosen = _cheapest(sound, self.goal)
        gain, verdict = self._verdict(chosen, default)
        chosen = default if gain is None else chosen
        self.stages[-1] = replace(self.stages[-1], kept=[chosen.setting.name])
        return Tuning(
            self.subject.name,
            goal,
            default,
            chosen,
            gain,
            verdict,
            self.stages,
            self.refused,
            list(last.results),
            list(last.warnings),
        )

    def _verdict(self, chosen: Result, default: Result) -> tuple[Ratio | None, str]:
        """What is gained, if it can be measured, and what to do."""
        name = chosen.setting.name
        if chosen is default:
            return None, f"keep the default ({name}): nothing that was tried is better"
        found = self.goal.compared(chosen, default)
        said = f"{found} of the default's {self.goal.unit}"
        if found.high >= 1:
            return None, (
                f"no difference you could measure: {name} takes {said}; "
                f"keep the default ({default.setting.name})"
            )
        return found, f"take {name}: {said}"


def _stages(count: int) -> int:
    """In how many stages so many settings are measured."""
    return 1 if count <= FINALISTS + 1 else 1 + _stages(1 + _kept(count))


def _kept(count: int) -> int:
    """How many go on beside the default."""
    return max(FINALISTS, round(count / KEPT))


def _takes_nothing(result: Result) -> bool:
    """Whether a delegate of others was asked for and all ops run without it."""
    asked = any(name.partition(":")[0] not in FALLBACK for name in result.setting.delegates)
    return asked and result.facts.get(FOREIGN_OPS) == 0


def _cheapest(sound: Sequence[Result], goal: Goal) -> Result:
    """The best by the goal; of those that are as good, the one with the fewest threads, the full
    precision and no delegate of others."""
    best = min(sound, key=goal.figure)
    near = [r for r in sound if r is best or is_as_good(goal.compared(r, best))]
    return min(
        near,
        key=lambda r: (
            r.setting.threads,
            r.setting.precision != "f32",
            bool(r.setting.delegates) and r.setting.delegates != ("cpu",),
            r.setting.batch,
            goal.figure(r),
        ),
    )


def summary_rows(found: Tuning) -> list[list[str]]:
    """The finalists, for a table: setting, time for a sample, CPU time, memory, the goal's figure
    over the default's."""
    rows = []
    for result in found.results:
        if not result.rounds:
            continue
        is_default = result is found.default
        times = "1" if is_default else str(GOALS[found.goal].compared(result, found.default))
        memory = _memory(result)
        rows.append(
            [
                ("* " if result.setting == found.chosen.setting else "") + result.setting.name,
                f"{_latency(result) * 1e3:.3f}",
                f"{_cpu(result) * 1e3:.3f}",
                f"{memory / MIB:.1f}" if memory < math.inf else "",
                times,
            ]
        )
    return rows


def told(found: Tuning) -> str:
    """How it was found, in a sentence."""
    tried = len({name for stage in found.stages for name in stage.measured})
    return f"{plural(tried, 'setting')} tried in {plural(len(found.stages), 'stage')}"
