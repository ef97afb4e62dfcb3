"""`sanderling.bench`: latency, init and memory of models on engines at settings, with its noise."""

from __future__ import annotations

import os
import random
import resource
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..config import CACHE
from ..delegates.engines.packages import PACKAGES, is_installed
from ..errors import ArgumentError, InputError, MissingExtraError, SanderlingError, UnsupportedError
from ..format import load
from ..ir import Graph, Model, Shape
from ..ir.types import Array
from ..processors import usable_cpus
from ..runtime.plugins import load_plugins
from ..runtime.registry import find_delegate
from ..runtime.session import Session
from . import noise
from .background_load import Busy
from .bench_results import Bench, forget_starts, judge, result_of
from .engines import EngineJob, check_engines, job_for
from .inputs import Feeding
from .inspection import inspect
from .interleaving import Beside, Budget, Launch, Pace, launch
from .noise import Disturbance, Look, disturbances
from .record import Setting
from .sweep import (
    PRECISIONS,
    combinations,
    delegate_choices,
    heeds_no_setting,
    thread_counts,
    why_not,
)

LAUNCHES, ROUNDS = 5, 5
BLOCK = 20e-6  # seconds: runs that take longer are measured one by one
ONE_LAUNCH = Disturbance(
    "launches",
    "one process says nothing of how processes differ, and the intervals are too narrow",
    "use --launches 5",
)
TOGETHER = 8  # processes that live at a time; more settings are measured in batches
Progress = Callable[[str, int, int], None]
ModelPath = str | os.PathLike[str]


class BenchInterrupted(KeyboardInterrupt):
    """Ctrl-C; what was measured by then is in `bench`."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench


@dataclass(frozen=True)
class Procedure:
    """How the measurement goes, apart from what is measured."""

    runs: int = 50
    min_secs: float = 1.0
    max_secs: float = 30.0
    warmup_runs: int = 1
    warmup_secs: float = 1.0
    launches: int = LAUNCHES
    run_frequency: float = 0.0
    run_delay: float = 0.0
    cpus: tuple[int, ...] = ()
    cold: bool = False
    verbose: bool = False
    timeout: float = 180.0
    seed: int = 0
    require_full_delegation: bool = False
    at_once: int = 1  # processes that start together; with several, starts are no figures

    def check(self) -> None:
        least = {
            "runs": 1,
            "launches": 1,
            "at_once": 1,
            "warmup_runs": 0,
            "min_secs": 0,
            "warmup_secs": 0,
            "run_frequency": 0,
            "run_delay": 0,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ArgumentError(
                    f"`{name}` is {getattr(self, name)}", fix=f"give {bound} or more"
                )
        if self.max_secs <= 0 or self.max_secs < self.min_secs:
            raise ArgumentError(
                f"at most {self.max_secs:g} s, at least {self.min_secs:g}",
                where="`max_secs`",
                fix="give `max_secs` above `min_secs`",
            )
        strange = [c for c in self.cpus if c not in usable_cpus()]
        if strange:
            raise ArgumentError(
                f"CPU {strange[0]} may not be used here",
                where="`cpus`",
                fix=f"these may: {', '.join(map(str, usable_cpus()))}",
            )
        if self.cpus and not hasattr(os, "sched_setaffinity"):
            raise UnsupportedError("this system cannot pin a process to CPUs", where="cpus")

    @property
    def budget(self) -> Budget:
        """The budget of one launch."""
        share = 1 / self.launches
        pace = Pace(BLOCK, self.run_frequency, self.run_delay)
        return Budget(
            self.min_secs * share,
            -(-self.runs // self.launches),
            self.max_secs * share,
            ROUNDS,
            0.0,
            self.warmup_secs,
            self.warmup_runs,
            pace,
        )


def bench(
    models: ModelPath | Sequence[ModelPath],
    *,
    engines: Sequence[str] = ("sanderling",),
    threads: Sequence[int] = (),
    delegates: Sequence[tuple[str, ...]] = (),
    precision: Sequence[str] = (),
    sweep: bool = False,
    contend: int = 0,
    signature: str = "",
    shapes: Mapping[str, Shape] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
    inputs: Mapping[str, str | Path] | None = None,
    plugins: Sequence[str | Path] = (),
    progress: Progress = lambda what, done, total: None,
    **plan: Any,
) -> Bench:
    """Measure models on engines, every configuration in fresh processes and in turns.

    engines, threads, delegates and precision are lists: each combination is one configuration, and
    the first is what the others are compared with. sweep fills those that are not given with all
    that this machine has. contend: each again beside so many busy processes. shapes, ranges and
    inputs (files) are by the input's name, "" for the only one. Further names are those of
    `sanderling.measure.bench.Procedure`: runs, min_secs, max_secs, warmup_runs, warmup_secs,
    launches, run_frequency, run_delay, cpus, cold, verbose, timeout, seed, at_once,
    require_full_delegation (of settings that name a delegate).

    A configuration that fails is in the results with its reason. Interrupted, it raises
    BenchInterrupted, which has what was measured so far.
    """
    paths = [models] if isinstance(models, str | os.PathLike) else list(models)
    how = _plan(plan)
    check_engines(engines)
    load_plugins(plugins)  # they may bring delegates
    axes = _axes(engines, threads, delegates, precision, sweep, contend)
    feeding = Feeding(shapes or {}, ranges or {}, inputs or {}, how.seed)
    files = tuple(str(Path(p).absolute()) for p in plugins)
    subjects = [BenchedModel.of(p, n, feeding, signature, files, axes) for p, n in _names(paths)]
    if not subjects:
        raise InputError("no model is given", fix="give one .tflite file or more")
    made = Bench(settings=vars(how) | {"engines": list(engines), "signature": signature})
    return measure_models(subjects, how, progress, made)


def measure_models(
    subjects: Sequence[BenchedModel],
    how: Procedure,
    progress: Progress = lambda what, done, total: None,
    made: Bench | None = None,
    together: bool = False,
) -> Bench:
    """Measure models at the settings that each of them has. made: what the results go into.
    together: settings of all models take turns, not only those of each model, so that models can be
    compared with each other."""
    made = Bench(settings=dict(vars(how))) if made is None else made
    bar = _Bar(progress, how, subjects)
    try:
        for group in [subjects] if together else [[subject] for subject in subjects]:
            _measure(made, group, how, bar)
    except KeyboardInterrupt as error:
        made.interrupted = True
        _warn_of_one(made)
        raise BenchInterrupted(made) from error
    _refuse_nothing(made)
    _warn_of_one(made)
    return made


def _warn_of_one(made: Bench) -> None:
    few = any(len(r.launches) == 1 for r in made.results)
    made.warnings += [ONE_LAUNCH] if few and made.comparisons else []


def _names(paths: Sequence[ModelPath]) -> Iterator[tuple[ModelPath, str]]:
    """What models are called: the file's name, or the path where two files have the same."""
    short = [Path(p).name for p in paths]
    for path, name in zip(paths, short, strict=True):
        yield path, name if short.count(name) == 1 else str(path)


def _plan(given: Mapping[str, Any]) -> Procedure:
    unknown = sorted(set(given) - set(Procedure.__dataclass_fields__))
    if unknown:
        raise TypeError(f"bench() has no argument '{unknown[0]}'")
    how = Procedure(**given)
    how = replace(how, cpus=tuple(how.cpus))
    how.check()
    return how


@dataclass(frozen=True)
class Axes:
    """What is combined; `swept` are those that nobody asked for by name."""

    engines: Sequence[str]
    threads: Sequence[int]
    delegates: Sequence[tuple[str, ...]]
    precision: Sequence[str]
    contend: int
    swept: bool  # the precision
    sweeps_threads: bool = False

    def without_moot(
        self, settings: Sequence[Setting], graph: Graph, shapes: Sequence[Shape]
    ) -> list[Setting]:
        """The settings that differ in what their delegate heeds: where it heeds nothing, the first
        is enough."""
        own = [d for d in self.delegates if heeds_no_setting(d, graph, shapes)]
        threads = set(self.threads[1:] if self.sweeps_threads else ())
        precision = set(self.precision[1:] if self.swept else ())
        return [
            s
            for s in settings
            if s.delegates not in own or not (s.threads in threads or s.precision in precision)
        ]


def _axes(
    engines: Sequence[str],
    threads: Sequence[int],
    delegates: Sequence[tuple[str, ...]],
    precision: Sequence[str],
    sweep: bool,
    contend: int,
) -> Axes:
    for count in threads:
        if count < 1:
            raise ArgumentError(f"`threads` is {count}", fix="give 1 or more")
    for name in precision:
        if name not in PRECISIONS:
            raise InputError(
                f"there is no precision '{name}'", fix=f"one of {', '.join(PRECISIONS)}"
            )
    for chosen in delegates:
        for delegate in chosen:
            find_delegate(delegate)  # its error lists what there is
    if contend < 0:
        raise ArgumentError(f"`contend` is {contend}", fix="give 0 or more")
    counts = threads or (thread_counts() if sweep or contend else [1])
    return Axes(
        engines,
        counts,
        delegates or (delegate_choices() if sweep else [()]),
        precision or (PRECISIONS if sweep else PRECISIONS[:1]),
        contend,
        swept=sweep and not precision,
        sweeps_threads=sweep and not threads,
    )


# -- one model ----------------------------------------------------------------------------------


@dataclass(eq=False)
class BenchedModel:
    """A model, its inputs, and the settings that it is to be measured at."""

    name: str
    model: Model
    inputs: list[Array]
    signature: str
    plugins: tuple[str, ...]
    settings: list[Setting]
    kind: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        path: ModelPath,
        name: str,
        feeding: Feeding,
        signature: str,
        plugins: tuple[str, ...],
        axes: Axes,
    ) -> BenchedModel:
        model = load(path)
        entry = Session(model, ("reference",)).entry(signature or None)
        about = inspect(model, shapes=feeding.shapes if entry.graph is model.main else None)
        kind = str(about["quantisation"])
        wanted = combinations(
            axes.engines, axes.threads, axes.delegates, axes.precision, axes.contend
        )
        if axes.swept:
            wanted = [s for s in wanted if not why_not(s, kind)]
        inputs = feeding.arrays(entry)
        if axes.swept or axes.sweeps_threads:
            wanted = axes.without_moot(wanted, entry.graph, [a.shape for a in inputs])
        facts = {
            "path": str(path),
            "quantisation": kind,
            "macs": about["macs"],
            "parameters": about["parameters"],
            "file": about["file_bytes"],
            "weights": about["weight_bytes"],
            "inputs": {n: t.type_text for n, t in entry.inputs.items()},
        }
        return cls(name, model, inputs, signature, plugins, wanted, kind, facts)

    def why_not(self, setting: Setting) -> str:
        reason = why_not(setting, self.kind)
        if not reason and not is_installed(setting.engine):
            package = PACKAGES[setting.engine][0]
            reason = _cause(_missing(setting.engine, package))
        return reason

    def job(self, setting: Setting, how: Procedure, onnx: str) -> EngineJob:
        more = {"cpus": how.cpus, "plugins": self.plugins, "onnx": onnx, "verbose": how.verbose}
        more["require_full"] = how.require_full_delegation and bool(setting.delegates)
        return job_for(self.model, setting, self.batch(setting.batch), self.signature, **more)

    def batch(self, size: int) -> list[Array]:
        """The inputs so many times over, along their first dimension."""
        return [np.concatenate([a] * size) if a.ndim else a for a in self.inputs]


def _cause(error: SanderlingError) -> str:
    return f"{error.what}: {error.fix}"


def _missing(engine: str, package: str) -> MissingExtraError:
    return MissingExtraError(package, "peers", f"the engine {engine}")


class _Bar:
    """Counts steps; a configuration that fails makes the bar jump, no more."""

    def __init__(self, show: Progress, how: Procedure, subjects: Sequence[BenchedModel]) -> None:
        self.show, self.done, self.model = show, 0, ""
        self.total = sum(len(s.settings) for s in subjects) * how.launches * (1 + ROUNDS)

    def step(self, what: str) -> None:
        named = what if ": " in what.removesuffix(": load") else f"{self.model}: {what}"
        self.show(named, min(self.done, self.total), self.total)
        self.done += 1


Cell = tuple[BenchedModel, Setting]


def _measure(made: Bench, group: Sequence[BenchedModel], how: Procedure, bar: _Bar) -> None:
    """Models whose settings take turns together: all in batches, then what they are to each
    other."""
    made.models |= {subject.name: subject.facts for subject in group}
    refused: dict[Cell, str] = {}
    jobs: dict[Cell, EngineJob] = {}
    for subject in group:
        bar.model = subject.name
        found_jobs, reasons = _jobs(subject, how, bar)
        jobs |= found_jobs
        refused |= reasons
    found: dict[Cell, list[Launch]] = {}
    batch: dict[Cell, str] = {}
    before, used = Look.now(), _used()
    try:
        for number, cells in enumerate(_batches(list(jobs), random.Random(how.seed))):
            batch |= dict.fromkeys(cells, f"{number} of {group[0].name}")
            _launches({cell: jobs[cell] for cell in cells}, how, bar, found)
    finally:
        results = {
            (subject, s): result_of(
                subject.name,
                subject.facts,
                s,
                found.get((subject, s), []),
                refused.get((subject, s), ""),
            )
            for subject in group
            for s in subject.settings
        }
        origin = min((r.begun[0] for r in results.values() if r.begun), default=0.0)
        for cell, result in results.items():
            result.facts["batch"] = batch.get(cell, "")
            if result.rounds:
                mine = found[cell]
                result.partial = len(mine) < how.launches or mine[-1].cut
            result.begun = [b - origin for b in result.begun]
            if how.at_once > 1:
                forget_starts(result)
        made.results += [r for r in results.values() if r.error or r.rounds]
        for subject in group:
            own = {s: found[subject, s] for s in subject.settings if (subject, s) in found}
            ran = [results[subject, s] for s in subject.settings]
            judge(made, subject.name, subject.kind, ran, own)
        made.warnings += [w for r in results.values() for w in noise.of_result(r)]
    made.warnings += disturbances(before, Look.now(), _used() - used)


def _jobs(
    subject: BenchedModel, how: Procedure, bar: _Bar
) -> tuple[dict[Cell, EngineJob], dict[Cell, str]]:
    """What is to be run of a model, and why the rest is not."""
    refused = {s: why for s in subject.settings if (why := subject.why_not(s))}
    onnx, why = _export(subject, [s for s in subject.settings if s not in refused], bar)
    refused |= {s: why for s in subject.settings if s.engine == "onnxruntime" and why}
    open_ = [s for s in subject.settings if s not in refused]
    jobs = {(subject, s): subject.job(s, how, onnx) for s in open_}
    return jobs, {(subject, s): why for s, why in refused.items()}


def _used() -> float:
    """CPU seconds of this process and of all that have ended below it."""
    found = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(f.ru_utime + f.ru_stime for f in found)


def _export(subject: BenchedModel, settings: Iterable[Setting], bar: _Bar) -> tuple[str, str]:
    if not any(s.engine == "onnxruntime" for s in settings):
        return "", ""
    from ..delegates.engines.to_onnx import cached

    bar.show(f"{subject.name}: ONNX export", bar.done, bar.total)
    made, why = cached(Path(subject.model.source))
    if "No module named" in why:
        needed = MissingExtraError("tf2onnx", "onnx", "an ONNX file for the engine onnxruntime")
        why = _cause(needed)
    return made, why


def _batches(cells: Sequence[Cell], rng: random.Random) -> Iterator[list[Cell]]:
    """All at once if they are few; otherwise shuffled, then as many as may live together."""
    order = list(cells)
    if len(order) > TOGETHER:
        rng.shuffle(order)
    for start in range(0, len(order), TOGETHER):
        yield order[start : start + TOGETHER]


def _launches(
    jobs: Mapping[Cell, EngineJob], how: Procedure, bar: _Bar, found: dict[Cell, list[Launch]]
) -> None:
    """Several times fresh processes for all of them; who fails is not tried again."""
    names = _cell_names(jobs)
    with ExitStack() as opened:
        beside: dict[str, Beside] = {}
        for count in {s.contend for _, s in jobs if s.contend}:
            busy = opened.enter_context(Busy(count, how.cpus))
            beside |= {names[cell]: busy.on for cell in jobs if cell[1].contend == count}
        for number in range(how.launches):
            living = {c: j for c, j in jobs.items() if not any(x.error for x in found.get(c, []))}
            rng = random.Random(how.seed * 1000 + number)
            done: dict[str, Launch] = {}
            try:
                with _cache(how.cold):
                    done = launch(
                        {names[cell]: job for cell, job in living.items()},
                        how.budget,
                        rng,
                        bar.step,
                        beside,
                        how.timeout,
                        done,
                        how.at_once,
                    )
            finally:  # interrupted, it has given something all the same
                for cell in living:
                    one = done.get(names[cell], Launch())
                    if one.rounds or one.error:
                        found.setdefault(cell, []).append(one)


def _cell_names(cells: Iterable[Cell]) -> dict[Cell, str]:
    """What each is called while it is measured: the model's name too where there are several."""
    models = {id(subject) for subject, _ in cells}
    return {c: c[1].name if len(models) == 1 else f"{c[0].name}: {c[1].name}" for c in cells}


@contextmanager
def _cache(cold: bool) -> Iterator[None]:
    """Give cold starts an empty cache of compiled code, so that init does all of the work."""
    if not cold:
        yield
        return
    before = os.environ.get(CACHE.name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[CACHE.name] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE.name)
            os.environ |= {} if before is None else {CACHE.name: before}


def _refuse_nothing(made: Bench) -> None:
    """Where nothing at all could be measured, the reason is an error."""
    if any(r.rounds for r in made.results):
        return
    first = made.results[0]
    engine = first.setting.engine
    if not is_installed(engine):
        raise _missing(engine, PACKAGES[engine][0])
    raise SanderlingError(
        first.error,
        where=f"{first.model}, {first.setting.name}",
        fix="no other setting was measured either",
    )
