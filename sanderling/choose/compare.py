"""`sanderling.compare`: the model for a task, from the user's own models, data and machine.

The two graphs of TensorFlow Lite's guide: size against accuracy, accuracy against latency. Accuracy
is judged on the same samples for all, pair by pair; latency is measured in turns over all models
and settings. Budgets turn the graphs into an answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, SanderlingError
from ..evaluate.running.evaluation import Evaluation, compare_evaluations, evaluate_task
from ..evaluate.task import Task, make_task
from ..files import read_data
from ..format import load
from ..measure.bench import Axes, BenchedModel, Procedure, measure_models
from ..measure.bench_results import Bench
from ..measure.inputs import Feeding
from ..measure.inspection import inspect
from ..measure.machine import machine
from ..measure.process_memory import growth
from ..measure.record import Result, Setting
from ..measure.sample_statistics import median_interval
from ..runtime.plugins import load_plugins
from .candidates import Answer, Budgets, Candidate, Difference, answer, mark_front

SCHEMA = "sanderling.compare/1"
BENCHES = "sanderling.bench/"
Progress = Callable[[str, int, int], None]
ModelPath = str | os.PathLike[str]


@dataclass
class Compared:
    """What `compare` found. left_out: models and settings without a figure, with the reason.
    notes: what a reader has to know of the figures."""

    task: str
    headline: str
    samples: int
    candidates: list[Candidate]
    answer: Answer | None
    left_out: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[Any] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "task": self.task,
            "headline": self.headline,
            "samples": self.samples,
            "candidates": [c.to_json() for c in self.candidates],
            "answer": self.answer and vars(self.answer),
            "left_out": self.left_out,
            "notes": self.notes,
            "machine": machine(),
            "warnings": [w.to_json() for w in self.warnings],
        }


def compare(
    models: Sequence[ModelPath],
    task: str,
    *,
    task_settings: Mapping[str, Any] | None = None,
    model_settings: Mapping[str, Mapping[str, Any]] | None = None,
    threads: Sequence[int] = (1,),
    delegates: Sequence[tuple[str, ...]] = ((),),
    precision: Sequence[str] = ("f32",),
    budgets: Budgets | None = None,
    limit: int = 0,
    workers: int = 1,
    records: Sequence[ModelPath] = (),
    plugins: Sequence[str | Path] = (),
    progress: Progress = lambda what, done, total: None,
    **procedure: Any,
) -> Compared:
    """Compare models on a task of `sanderling eval`, each at every setting.

    task_settings: of the task, as `make_task` takes them. model_settings: those of single models,
    by a word of their file name. records: JSON files of `bench` (a phone's too), whose latencies
    are taken instead of measuring here. Further names are those of
    `sanderling.measure.bench.Procedure`.
    """
    paths = [Path(p) for p in models]
    if len(paths) < 2:
        raise InputError("a comparison needs two models or more", fix="name further .tflite files")
    load_plugins(plugins)
    settings = [
        Setting(threads=count, delegates=tuple(chosen), precision=kind)
        for chosen in delegates
        for kind in precision
        for count in threads
    ]
    names = _names(paths)
    tasks = {
        p: make_task(task, **_settings_of(p, task_settings or {}, model_settings or {}))
        for p in paths
    }
    given = {"limit": limit, "workers": workers, "plugins": plugins, "progress": progress}
    left_out: dict[str, str] = {}
    judged = _judged(paths, names, tasks, settings, given, left_out)
    if records:
        found = _recorded(records)
    else:
        found = _measured(paths, names, settings, Procedure(**procedure), progress, left_out)
    placed = _candidates(paths, names, judged, found, left_out)
    candidates = [candidate for candidate, _ in placed]
    mark_front(candidates)
    one = next(iter(judged.values()))
    asked = budgets or Budgets()
    return Compared(
        task,
        one.task.headline,
        len(one.samples),
        candidates,
        answer(candidates, asked, _pairing(placed, judged)) if asked.are_given else None,
        left_out,
        _notes(placed),
        list(found.warnings),
    )


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    stems = [p.stem for p in paths]
    return {p: p.stem if stems.count(p.stem) == 1 else str(p) for p in paths}


def _settings_of(
    path: Path, common: Mapping[str, Any], special: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    found = dict(common)
    for word, more in special.items():
        if word in path.name:
            found |= more
    return found


# -- accuracy -------------------------------------------------------------------------------------

# What decides a model's answers: the threads do not.
Way = tuple[Path, tuple[str, ...], str]
Placed = tuple[Candidate, Way]


def _way(path: Path, setting: Setting) -> Way:
    return path, setting.delegates, setting.precision


def _judged(
    paths: Sequence[Path],
    names: Mapping[Path, str],
    tasks: Mapping[Path, Task],
    settings: Sequence[Setting],
    given: Mapping[str, Any],
    left_out: dict[str, str],
) -> dict[Way, Evaluation]:
    found: dict[Way, Evaluation] = {}
    ways = dict.fromkeys(_way(p, s) for p in paths for s in settings)
    for path, delegates, precision in ways:
        task = tasks[path]
        task.detail = True  # models are compared sample by sample
        try:
            found[path, delegates, precision] = evaluate_task(
                path, task, delegates=delegates, precision=precision, **given
            )
        except SanderlingError as error:
            way = f"{names[path]} ({'+'.join(delegates) or 'cpu'}, {precision})"
            left_out[way] = f"it was not evaluated: {error.what}"
    if not found:
        raise InputError(
            f"no model could be evaluated: {next(iter(left_out.values()))}",
            fix="try one of them with `sanderling eval`",
        )
    return found


def _differences(judged: Mapping[Way, Evaluation]) -> dict[Way, dict[str, float] | None]:
    """From the most accurate one, on the same samples."""
    headline = next(iter(judged.values())).task.headline
    best = max(judged.values(), key=lambda e: float(e.metrics[headline]))
    return {way: _difference(one, best) for way, one in judged.items()}


def _difference(one: Evaluation, other: Evaluation) -> dict[str, float] | None:
    if one is other:
        return {"value": 0.0, "low": 0.0, "high": 0.0}
    pair = compare_evaluations(one, other).get(one.task.headline)
    return pair.get("difference") if isinstance(pair, dict) else None


def _pairing(placed: Sequence[Placed], judged: Mapping[Way, Evaluation]) -> Difference:
    """The difference of any two candidates, on the same samples."""
    ways = {candidate.name: way for candidate, way in placed}

    def difference(one: Candidate, other: Candidate) -> dict[str, float] | None:
        return _difference(judged[ways[one.name]], judged[ways[other.name]])

    return difference


def _notes(placed: Sequence[Placed]) -> list[str]:
    """A note on the candidates whose latency is a delegate's or a phone's, and whose accuracy is
    this machine's."""
    borrowed = [c.name for c, way in placed if c.is_judged_elsewhere]
    if not borrowed:
        return []
    return [
        f"the accuracy of {', '.join(borrowed)} was judged by this machine's CPU in float32; "
        "`sanderling eval --device` judges on a phone"
    ]


# -- latency --------------------------------------------------------------------------------------


def _measured(
    paths: Sequence[Path],
    names: Mapping[Path, str],
    settings: Sequence[Setting],
    how: Procedure,
    progress: Progress,
    left_out: dict[str, str],
) -> Bench:
    how.check()
    axes = Axes(("sanderling",), (1,), [()], ("f32",), 0, swept=False)
    subjects = []
    for path in paths:
        try:
            subject = BenchedModel.of(path, names[path], Feeding(), "", (), axes)
        except SanderlingError as error:
            left_out[names[path]] = error.what
            continue
        subject.settings = [s for s in settings if not subject.why_not(s)]
        subjects.append(subject)
    return measure_models(subjects, how, progress, together=True)


def _recorded(records: Sequence[ModelPath]) -> Bench:
    """Latencies that `bench --json` wrote, here or of a phone."""
    found = Bench()
    for path in records:
        fix = "write it with: sanderling bench MODELS --json FILE"
        content = read_data(path, "the record", fix)
        try:
            if not str(content["schema"]).startswith(BENCHES):
                raise ValueError(f"its schema is {content['schema']!r}")
            found.results += [Result.from_json(row) for row in content["results"]]
        except (KeyError, TypeError, ValueError) as error:
            what = f"it is no record of bench: {error}"
            raise InputError(what, where=os.fspath(path), fix=fix) from error
    return found


# -- candidates -----------------------------------------------------------------------------------


def _candidates(
    paths: Sequence[Path],
    names: Mapping[Path, str],
    judged: Mapping[Way, Evaluation],
    found: Bench,
    left_out: dict[str, str],
) -> list[Placed]:
    differences = _differences(judged)
    made = []
    for path in paths:
        results = _results_of(path, names[path], found)
        if not results:
            left_out.setdefault(names[path], "no record has its latency")
        for result in results:
            label = f"{names[path]} ({result.setting.name})"
            own = _way(path, result.setting)
            is_here = own in judged and _is_ours(result.setting)
            way = own if is_here else (path, (), "f32")  # a phone's latency, our accuracy
            if result.error or result.summary is None:
                left_out[label] = result.error or "it was not measured"
            elif way in judged:
                one = _candidate(path, names[path], result, judged[way], differences[way])
                one.is_judged_elsewhere = not is_here
                made.append((one, way))
            else:
                left_out[label] = "its accuracy was not judged"
    if not made:
        reason = next(iter(left_out.values()), "no record names one of these models")
        raise InputError(f"nothing can be compared: {reason}", fix="look at `sanderling bench`")
    return made


def _is_ours(setting: Setting) -> bool:
    """Whether what ran here gives the answers that are judged here."""
    return setting.device == "local" and setting.engine == "sanderling"


def _results_of(path: Path, name: str, found: Bench) -> list[Result]:
    known = (name, path.name, str(path))
    return [r for r in found.results if r.model in known]


def _candidate(
    path: Path,
    name: str,
    result: Result,
    judged: Evaluation,
    difference: dict[str, float] | None,
) -> Candidate:
    headline = judged.task.headline
    interval = judged.metrics.get("intervals", {}).get(headline)
    times = median_interval(result.by_launch) if result.by_launch else None
    return Candidate(
        name,
        str(path),
        result.setting.name,
        float(judged.metrics[headline]),
        tuple(interval) if interval else None,
        difference,
        result.measured.median,
        (times.low, times.high) if times else None,
        path.stat().st_size,
        growth(result.memory, "peak.runs") or growth(result.memory, "ready.rss"),
        str(inspect(load(path))["quantisation"]),
    )
