"""How near a new model is to its float one, on samples that had no part in making it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ...errors import InputError
from ...evaluate.output_kinds import MEASURES, SCORES, VALUES, OutputKind, output_kind
from ...evaluate.paired_statistics import paired, wilson
from ...evaluate.task import Task
from ...format import dump
from ...ir import Array, Model
from ...measure.inputs import feeds
from ...measure.inspection import quantisation_kind
from ...optimize.calibration.canonical import QUANTISED
from ...optimize.correcting.linear import own_name
from ...optimize.correcting.probe import Probe
from ...optimize.judging.accuracy import evaluated
from ...optimize.judging.judge import Candidate
from ...optimize.judging.report import Trial
from ...optimize.judging.target import halves
from ..constraint import Rows
from ..differentiable.twin import Twin
from .batches import checked_labels
from .checkpoint import Journal
from .samples import TrainingData

BATCH = 32
TIMED = 0.1  # seconds that a trial is timed for


def check_float(model: Model) -> None:
    """Refuse a model whose weights are codes: they are to be trained before they are quantised."""
    kind = quantisation_kind(model)
    if any(word in kind for word in QUANTISED):
        raise InputError(
            f"the model is quantised already: {kind}",
            where=model.source,
            fix="start from the float model it was made from, and quantise the result",
        )


def check_judged(held: TrainingData, max_drop: float | None, task: Task | None) -> None:
    """Refuse a target that nothing would judge."""
    if max_drop is not None and task is None and not len(held):
        raise InputError(
            "no samples are held out, and these judge a target",
            where="held_out",
            fix="hold some out (a share such as 0.2), or give a task",
        )


def with_classes(data: TrainingData, model: Model) -> TrainingData:
    """The samples with labels that are classes of the model's first output, one for each."""
    if data.labels is None:
        return data
    shape = model.main.outputs[0].shape
    classes = int(np.prod(shape[1:] or shape))
    return replace(data, labels=checked_labels(data.labels, len(data), classes))


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """PyTorch with so many threads, and with as many as before afterwards. On a busy machine
    several threads wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def split(data: TrainingData, held_out: float, seed: int) -> tuple[TrainingData, TrainingData]:
    """Samples that make the model, and samples that judge it."""
    order = np.random.default_rng(seed).permutation(len(data))
    away = min(len(data) - 1, max(1, round(held_out * len(data)))) if held_out > 0 else 0
    return data.part(np.sort(order[away:])), data.part(np.sort(order[:away]))


def answers(model: Model, inputs: Sequence[Rows]) -> list[Array]:
    """The outputs for all samples, in the order of the graph's."""
    twin, found = Twin(model), []
    with torch.no_grad():
        for first in range(0, len(inputs[0]), BATCH):
            found.append(twin(*(x[first : first + BATCH] for x in inputs)))
    return [torch.cat(parts).numpy() for parts in zip(*found, strict=True)]


def runtime_answers(model: Model, inputs: Sequence[Rows]) -> list[Array]:
    """The same by our runtime, sample by sample, also of a model whose inputs and outputs are
    codes: these are given as the numbers that they stand for."""
    probe, found = Probe(model, [], 1), []
    names = [t.name for t in model.main.inputs]
    for i in range(len(inputs[0])):
        outputs = probe.run({n: x[i : i + 1] for n, x in zip(names, inputs, strict=True)})
        found.append([outputs[own_name(t.name)] for t in model.main.outputs])
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


@dataclass
class Judging:
    """Compares models with the float one, on these samples; or by a task. answer: what a model says
    to samples."""

    model: Model
    data: TrainingData
    task: Task | None = None
    limit: int = 0
    metric: str = ""
    answer: Callable[[Model, Sequence[Rows]], list[Array]] = answers
    _wanted: list[Array] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._wanted = self.answer(self.model, self.data.inputs) if len(self.data) else []
        self.kinds = {t.name: output_kind(t) for t in self.model.main.outputs}
        if self.data.labels is not None and not self._is_single:
            first = self.model.main.outputs[0].name
            self.kinds[first] = OutputKind(SCORES, "there are labels of classes")

    @property
    def figure(self) -> str:
        """What a target is about."""
        if self.task is not None:
            return self.metric or self.task.headline
        if self.data.labels is not None:
            return "accuracy"
        return "agreement" if any(k.agrees for k in self.kinds.values()) else "snr"

    def compared(self, model: Model) -> dict[str, Any]:
        """Agreement with float, SNR, and with labels accuracy, each with its statistics."""
        if not self._wanted:
            return {}
        given = self.answer(model, self.data.inputs)
        found: dict[str, Any] = {"samples": len(self.data), "judged_by": self.judged_by}
        candidate = self._candidate(given, slice(None))
        found["snr_db"] = candidate.snr
        if candidate.agreement is not None:
            agreeing = round(candidate.agreement * len(self.data))
            low, high = wilson(agreeing, len(self.data))
            found["agreement"] = {"value": candidate.agreement, "low": low, "high": high}
        if self.data.labels is not None:
            right = [self._right(outputs) for outputs in (given, self._wanted)]
            found["accuracy"] = {
                "before": float(right[1].mean()),
                "after": float(right[0].mean()),
                **paired(right[0], right[1]),
            }
        return found

    @property
    def judged_by(self) -> str:
        """What an answer is, for people. One number alone has no first class."""
        kind = self.kinds[self.model.main.outputs[0].name]
        if not self._is_single:
            return MEASURES[kind.name]
        if self.data.labels is None:
            return f"{MEASURES[VALUES]}: the output {kind.why.removeprefix('it ')}"
        return f"a score above {self._threshold:g} means class 1, since it is a single number"

    @property
    def _is_single(self) -> bool:
        shape = self.model.main.outputs[0].shape
        return int(np.prod(shape[1:] or shape)) == 1

    @property
    def _threshold(self) -> float:
        """The threshold of one score alone: a half behind a sigmoid, else zero, where a sigmoid has
        its half."""
        made = self.model.main.outputs[0].producer
        return 0.5 if made is not None and made.name == "LOGISTIC" else 0.0

    def _right(self, outputs: Sequence[Array]) -> Array:
        scores = outputs[0].reshape(len(outputs[0]), -1)
        classes = scores[:, 0] > self._threshold if self._is_single else scores.argmax(1)
        return np.asarray(classes == np.asarray(self.data.labels).reshape(-1))

    def _candidate(self, given: Sequence[Array], part: slice) -> Candidate:
        names = [t.name for t in self.model.main.outputs]
        wanted, found = (
            [
                dict(zip(names, sample, strict=True))
                for sample in zip(*(a[part] for a in arrays), strict=True)
            ]
            for arrays in (self._wanted, given)
        )
        floats = [t.name for t in self.model.main.outputs if t.dtype.is_float]
        return Candidate.of("", wanted, found, floats or names, self.kinds)

    # -- a target ---------------------------------------------------------------------------------

    def trial(self, name: str, model: Model) -> Trial:
        """The figure of the samples that judge (and of those that choose), size and time."""
        task = self.task
        scores = self._on_samples(model) if task is None else self._on_task(model, task)
        choice = scores[0] if len(scores) == 2 else None
        return Trial(name, scores[-1], len(dump(model)), self._seconds(model), choice)

    def _on_task(self, model: Model, task: Task) -> list[float]:
        score = evaluated(model, task, self.limit).metrics.get(self.figure)
        if not isinstance(score, int | float):
            raise InputError(
                f"the task gives no figure '{self.figure}'", where="target", fix="name another"
            )
        return [float(score)]

    def _on_samples(self, model: Model) -> list[float]:
        given = self.answer(model, self.data.inputs)
        parts = halves(len(self.data))
        if self.figure == "accuracy":
            return [float(self._right(given)[p].mean()) for p in parts]
        found = [self._candidate(given, p) for p in parts]
        return [c.snr if self.figure == "snr" else float(c.agreement or 0.0) for c in found]

    def _seconds(self, model: Model) -> float:
        """The time of the fastest run by our runtime; trials lie apart, and the least depends least
        on what else the machine does."""
        session = model.compile(threads=1)
        given = feeds(model)
        taken: list[float] = []
        session(*given)
        end = time.perf_counter() + TIMED
        while not taken or time.perf_counter() < end:
            begin = time.perf_counter()
            session(*given)
            taken.append(time.perf_counter() - begin)
        return min(taken)


@dataclass
class Sought:
    """What a search came to: the models that were tried, and the one that is kept."""

    model: Model
    level: float
    trials: list[Trial]
    target: dict[str, Any]
    made: Any = None  # whatever belongs to the model that is kept


def furthest(
    judging: Judging,
    make: Callable[[float], tuple[Model, Any]],
    name: Callable[[float], str],
    max_drop: float,
    levels: Sequence[float],
    journal: Journal | None = None,
) -> Sought:
    """The last of these levels, from gentle to harsh, at which the figure falls by no more than
    max_drop: by bisection, since a harsher level is as good only by chance. A level that holds on
    the samples that choose is judged by the others, which can only refuse it. journal: trials that
    are done already; only the model that is kept is made again."""
    if not 0 <= max_drop < 1:
        raise InputError(f"a drop of {max_drop}", where="max_drop", fix="0.01 is one point of 100")
    if judging.figure == "snr":
        raise InputError(
            "a drop of what? The outputs are no scores of classes",
            where="max_drop",
            fix="give labels, or a task with a figure",
        )
    journal = journal or Journal()
    reference = journal.trial("float", lambda: judging.trial("float", judging.model))
    reference.meets = True
    tried, found = dict[int, Trial](), dict[int, tuple[Model, Any]]()

    def judged(place: int) -> Trial:
        found[place] = make(levels[place])
        return judging.trial(name(levels[place]), found[place][0])

    low, high = -1, len(levels)
    while high - low > 1:
        middle = (low + high) // 2
        trial = journal.trial(name(levels[middle]), partial(judged, middle))
        trial.meets = _holds(trial, reference, max_drop)
        tried[middle] = trial
        low, high = (middle, high) if trial.meets else (low, middle)
    place = low if low >= 0 else min(tried)
    if place not in found:  # it was judged before an interruption
        found[place] = make(levels[place])
    best, trials = tried[place], [reference, *tried.values()]
    best.chosen = True
    _mark_pareto(trials)
    target = {
        "text": f"{judging.figure} at most {max_drop:g} below float",
        "figure": judging.figure,
        "met": best.meets,
        "reached": best.score,
        "float": reference.score,
        "task": judging.task.name if judging.task else None,
    }
    return Sought(found[place][0], levels[place], trials, target, found[place][1])


def _holds(trial: Trial, reference: Trial, drop: float) -> bool:
    pairs = [(trial.score, reference.score)]
    if trial.choice is not None and reference.choice is not None:
        pairs.append((trial.choice, reference.choice))
    return all(ours >= floats - drop - 1e-12 for ours, floats in pairs)


def _mark_pareto(trials: Sequence[Trial]) -> None:
    for trial in trials:
        trial.pareto = not any(
            other.score >= trial.score
            and other.latency <= trial.latency
            and other.size <= trial.size
            and (other.score, other.latency, other.size) != (trial.score, trial.latency, trial.size)
            for other in trials
        )
