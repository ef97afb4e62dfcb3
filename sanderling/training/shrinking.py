"""What pruning and clustering have in common: from samples and terms to a model and its report.

A `Job` says how one model is made; here it is trained, judged, searched for, measured and told of.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..evaluate.task import Task
from ..ir import Array, Model
from ..optimize.judging.accuracy import compare_accuracy
from ..optimize.judging.latency import compare_latency
from .constraint import Constraint
from .loop import checkpoint as checkpoints
from .loop.judging import (
    Judging,
    Sought,
    check_float,
    check_judged,
    furthest,
    split,
    torch_threads,
    with_classes,
)
from .loop.samples import Given, TrainingData, no_samples, read_training_data
from .loop.train import Schedule, train
from .report import TrainingReport

LOOKED_AT = 512  # samples at most whose statistics are taken; all are trained on


@dataclass(frozen=True)
class Terms:
    """What a job is done and judged with, whatever it does; see `prune`."""

    labels: str | os.PathLike[str] | Array | None = None
    schedule: Schedule | None = None
    held_out: float = 0.2
    max_drop: float | None = None
    task: Task | None = None
    task_limit: int = 0
    checkpoint: str | Path | None = None
    latency: bool = False
    threads: int = 1

    @property
    def plan(self) -> Schedule:
        return self.schedule or Schedule(epochs=0)

    @property
    def needs(self) -> list[str]:
        """What samples are needed for."""
        wanted = {
            "training needs some": self.plan.epochs > 0,
            "a target is judged on some": self.max_drop is not None,
        }
        return [why for why, is_needed in wanted.items() if is_needed]


@dataclass
class Made:
    """A model that was made, with errors of its layers, notes on them, and what the file is to
    hold. trained_under: constraints of the training afterwards."""

    model: Model
    rule: Constraint | None = None
    trained_under: Sequence[Constraint] = ()
    errors: dict[str, float | None] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    epochs: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Levels:
    """How far a job may go, from gentle to harsh, and what each is called."""

    places: Sequence[float]
    name: Callable[[float], str]


class Job(ABC):
    """Makes one model smaller, perhaps several times."""

    verb: str

    def __init__(self, model: Model, data: TrainingData, how: Any, terms: Terms) -> None:
        self.model, self.data, self.how, self.terms = model, data, how, terms

    @cached_property
    def seen(self) -> list[Array]:
        """Samples whose statistics are taken."""
        return self.data.spread(LOOKED_AT)

    @abstractmethod
    def begun(self, level: float | None) -> Made:
        """The model before training. level: of a search; None: as asked."""

    @abstractmethod
    def levels(self) -> Levels:
        """What a search goes through."""

    @abstractmethod
    def stored(self, made: Made) -> list[str]:
        """Put the model into the form of the file; what there is to say of that."""

    @abstractmethod
    def tell(self, report: TrainingReport, made: Made, sought: Sought | None) -> None:
        """What this job alone has to say."""

    def made(self, level: float | None, checkpoint: str | Path | None) -> Made:
        made = self.begun(level)
        if not self.terms.plan.epochs:
            return made
        found = train(
            self.model,
            self.data.inputs,
            made.trained_under,
            self.data.labels,
            schedule=self.terms.plan,
            checkpoint=checkpoint,
        )
        made.model, made.epochs = found.model, [dict(vars(e)) for e in found.epochs]
        return made

    def searched(self, judging: Judging, max_drop: float) -> Sought:
        levels, kept = self.levels(), self.terms.checkpoint

        def make(level: float) -> tuple[Model, Made]:
            made = self.made(level, checkpoints.of_trial(kept, f"{level:.3g}"))
            return made.model, made

        journal = checkpoints.Journal.of(kept, self._identity())
        return furthest(judging, make, levels.name, max_drop, levels.places, journal)

    def _identity(self) -> str:
        """What a search is known by. How far the figure may fall does not change what was tried."""
        terms = self.terms
        settings = {
            "verb": self.verb,
            "how": vars(self.how),
            "plan": asdict(terms.plan),
            "judged": [terms.held_out, terms.task and terms.task.name, terms.task_limit],
        }
        return checkpoints.identity(self.model, self.data.inputs, self.data.labels, (), settings)

    def report(self, made: Made, judging: Judging, sought: Sought | None) -> TrainingReport:
        compared = judging.compared(made.model)
        problems = made.rule.problems(made.model) if made.rule else []
        notes = self.stored(made)
        report = TrainingReport.of(self.verb, self.model, made.model, _plain(vars(self.how)))
        report.compared, report.problems = compared, problems
        report.epochs, report.notes, report.samples = made.epochs, notes, len(self.data)
        for row in report.layers:
            row.error, row.note = made.errors.get(row.name), made.notes.get(row.name, "")
        if sought is not None:
            report.target, report.trials = sought.target, sought.trials
        self.tell(report, made, sought)
        return report


def carried_out(
    begin: Callable[[Model, TrainingData, Any, Terms], Job],
    source: Model,
    data: Given | TrainingData | None,
    how: Any,
    terms: Terms,
    needs: Sequence[str],
    fix: str,
) -> tuple[Model, TrainingReport]:
    """Do a job. needs: what samples are needed for, a clause each; fix: what to do without."""
    check_float(source)
    given = with_classes(_samples(source, data, terms, needs, fix), source)
    own, away = split(given, terms.held_out, how.seed)
    check_judged(away, terms.max_drop, terms.task)
    with torch_threads(terms.threads):
        job = begin(source, own, how, terms)
        judging = Judging(source, away, terms.task, terms.task_limit)
        sought = None if terms.max_drop is None else job.searched(judging, terms.max_drop)
        made = job.made(None, terms.checkpoint) if sought is None else sought.made
        report = job.report(made, judging, sought)
    if terms.task is not None:
        report.accuracy = compare_accuracy(source, made.model, terms.task, terms.task_limit)
    if terms.latency:
        report.latency = compare_latency(source, made.model, terms.threads)
    return made.model, report


def _samples(
    model: Model,
    data: Given | TrainingData | None,
    terms: Terms,
    needs: Sequence[str],
    fix: str,
) -> TrainingData:
    if isinstance(data, TrainingData):
        return data
    if data is not None:
        return read_training_data(data, model, terms.labels)
    if needs:
        raise InputError(f"there are no samples: {needs[0]}", where="data", fix=fix)
    return no_samples(model, terms.labels)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
