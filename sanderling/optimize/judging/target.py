"""An accuracy target: what the quantised model must hold, and how it is measured.

The best of many suits the samples that chose it a little too well. So one half of the samples
chooses, and what holds there is judged by the other half, which can only refuse.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ArgumentError, InputError, SanderlingError
from ...evaluate.output_kinds import AGREEING, SCORES, OutputKind
from ...evaluate.task import Metrics, Task
from ...format import dump
from ...ir import Array, Model
from ..correcting.held_out import HELD_OUT
from ..correcting.probe import coded
from ..modes.scheme import mode_of
from .accuracy import evaluated
from .judge import Candidate, Judge
from .report import Report, Trial

LITTLE_LEFT = 0.75  # of float's size: more is hardly worth it
TIMED = 0.1  # seconds that a trial is timed for
LEAST_HALF = 10  # samples; of fewer than two such halves all choose and all judge


class TargetMissedError(SanderlingError):
    """No choice of modes met the target; `model` and `report` are the best that was reached."""

    def __init__(self, what: str, model: Model, report: Report, *, fix: str = "") -> None:
        super().__init__(what, where="target", fix=fix)
        self.model, self.report = model, report


@dataclass
class Target:
    """What the quantised model must hold. One of:

    min_agreement: the share of held-out samples whose largest output is the float model's; of
                   masks, of their pixels
    min_snr:       dB of the outputs on held-out samples
    max_drop:      of a task's figure, float's minus the quantised model's; task: as `make_task`
                   gives it; metric: which figure, default the task's headline; limit: at most so
                   many of its samples
    finer: the modes to fall back on, first is best; default: by the mode.
    """

    min_agreement: float | None = None
    min_snr: float | None = None
    max_drop: float | None = None
    task: Task | None = None
    metric: str = ""
    limit: int = 0
    finer: Sequence[str] = ()
    _counts: tuple[int, int] = field(default=(0, 0), init=False, repr=False)  # choose, judge

    def __post_init__(self) -> None:
        given = (self.min_agreement, self.min_snr, self.max_drop)
        count = sum(g is not None for g in given)
        if count != 1:
            raise ArgumentError(
                f"{count} targets are given",
                fix="give one of `min_agreement`, `min_snr`, `max_drop`",
            )
        if (self.max_drop is not None) != (self.task is not None):
            raise ArgumentError(
                "a drop is measured on a task",
                where="`max_drop`",
                fix="give `max_drop` and `task`, or `min_agreement`",
            )
        if self.min_agreement is not None and not 0 < self.min_agreement <= 1:
            raise ArgumentError(
                f"`min_agreement` is {self.min_agreement}",
                fix="it is a share of the samples: above 0, up to 1",
            )
        if self.max_drop is not None and not 0 <= self.max_drop < 1:
            raise ArgumentError(
                f"`max_drop` is {self.max_drop}",
                fix="it is a share: 0.01 is one point of a hundred",
            )
        for mode in self.finer:
            mode_of(mode)

    @property
    def text(self) -> str:
        if self.task is not None:
            return f"{self.metric or self.task.headline} at most {self.max_drop:g} below float"
        if self.min_snr is not None:
            return f"output SNR of {self.min_snr:g} dB"
        return f"agreement of {self.min_agreement:g} with float"

    @property
    def figure(self) -> str:
        if self.task is not None:
            return self.metric or self.task.headline
        return "snr" if self.min_snr is not None else "agreement"

    def holds(self, score: float, of_float: float = 0.0) -> bool:
        if self.max_drop is None:
            least = self.min_agreement if self.min_agreement is not None else self.min_snr
            return score >= (least or 0.0)
        return score >= of_float - self.max_drop - 1e-12

    def suits(self, trial: Trial, reference: Trial) -> bool:
        """Say whether the trial holds the target on the samples that choose; reference: float's."""
        if trial.choice is None:
            return self.holds(trial.score, reference.score)
        return self.holds(trial.choice, reference.choice or 0.0)

    def meets(self, trial: Trial, reference: Trial) -> bool:
        """Say whether it holds on those that choose and on those that judge."""
        return self.suits(trial, reference) and self.holds(trial.score, reference.score)

    # -- measuring ----------------------------------------------------------------------------

    def trial(self, judge: Judge, model: Model, name: str) -> Trial:
        """Measure a model: its score, its size and the time of a run."""
        given, seconds = _timed(judge, model)
        if self.task is None:
            scores = self._on_held(judge, given)
        else:
            scores = self._on_task(self.task, model)
        choice = scores[0] if len(scores) == 2 else None
        return Trial(name, scores[-1], len(dump(model)), seconds, choice)

    def _on_held(self, judge: Judge, given: Sequence[Mapping[str, Array]]) -> list[float]:
        parts = self._parts(len(given))
        kinds = self._kinds(judge.kinds)
        found = [Candidate.of("", judge.wanted[p], given[p], judge.judged, kinds) for p in parts]
        return [c.snr if self.min_snr is not None else c.agreement or 0.0 for c in found]

    def _kinds(self, kinds: Mapping[str, OutputKind]) -> Mapping[str, OutputKind]:
        """Who asks for agreement wants the largest output compared, whatever the outputs are."""
        if any(kind.agrees for kind in kinds.values()):
            return kinds
        return dict.fromkeys(kinds, OutputKind(SCORES, "agreement is the target"))

    def _on_task(self, task: Task, model: Model) -> list[float]:
        found = evaluated(model, task, self.limit)
        samples, predictions = found.came_through
        parts = self._parts(len(samples))
        if len(parts) == 1:
            return [self._figure_of(task, found.metrics)]
        metrics = (found.task.metric(samples[p], predictions[p]) for p in parts)
        return [self._figure_of(task, one) for one in metrics]

    def _figure_of(self, task: Task, metrics: Metrics) -> float:
        score = metrics.get(self.figure)
        if not isinstance(score, int | float):
            there = [k for k, v in metrics.items() if isinstance(v, int | float)]
            raise InputError(
                f"the task '{task.name}' gives no figure '{self.figure}'",
                where="target",
                fix=f"it gives {', '.join(there)}",
            )
        return float(score)

    def _parts(self, count: int) -> list[slice]:
        """Samples that choose and samples that judge, every other one; or all, for both."""
        parts = halves(count)
        sizes = [len(range(count)[p]) for p in parts]
        self._counts = sizes[0], sizes[-1]
        return parts

    # -- telling ------------------------------------------------------------------------------

    def conclude(self, trials: list[Trial], model: Model, report: Report) -> None:
        """Put the search into the report; a target that was missed is an error.

        trials: float's first, then in the order in which they were made; one is chosen.
        """
        report.trials, reference = trials, trials[0]
        chosen = next(t for t in trials if t.chosen)
        report.target = {
            "text": self.text,
            "figure": self.figure,
            "met": chosen.meets,
            "reached": chosen.score,
            "float": reference.score,
            "kept": chosen.kept,
            "task": self.task.name if self.task else None,
            "settings": self.task.settings() if self.task else None,
            **self._judgement(trials[1:], reference),
        }
        report.notes += self._summary(report.target) + self._doubt(report)
        share = chosen.size / reference.size
        if chosen.kept and share > LITTLE_LEFT:
            report.notes.append(
                f"Little is left of the quantisation: {len(chosen.kept)} ops are "
                f"finer and the file is {share:.0%} of float's. More corrections "
                "or a lower target give more."
            )
        if not chosen.meets:
            raise TargetMissedError(
                f"{self.text} was not reached: the best of {len(trials) - 1} has "
                f"{chosen.score:.4g} ({chosen.name}), float has {reference.score:.4g}",
                model,
                report,
                fix="relax the target, give more samples, or choose a finer mode",
            )

    def _judgement(self, trials: Sequence[Trial], reference: Trial) -> dict[str, Any]:
        """Which samples the figure is of, and how often those that judge were asked."""
        asked = [t for t in trials if self.suits(t, reference)]
        return {
            "chosen_on": self._counts[0],
            "judged_on": self._counts[1],
            "apart": trials[0].choice is not None,
            "tried": len(trials),
            "judged": len(asked),
            "refused": sum(not t.meets for t in asked),
        }

    def _doubt(self, report: Report) -> list[str]:
        if self.min_agreement is None or any(k["kind"] in AGREEING for k in report.kinds.values()):
            return []
        said = ", ".join(f"'{name}' ({k['why']})" for name, k in report.kinds.items())
        return [
            f"Nothing tells that the outputs are scores of classes: {said}. If they are not, "
            "agreement means nothing: give --min-snr instead."
        ]

    def _summary(self, found: Mapping[str, Any]) -> list[str]:
        if found["apart"] and found["tried"] == 1 and found["met"]:
            return [
                f"It holds on both halves of the samples; figures are of the second, "
                f"{found['judged_on']} of them."
            ]
        if found["apart"]:
            refused = f"{found['refused']} of them refused" if found["refused"] else "none refused"
            return [
                f"{found['chosen_on']} samples chose among {found['tried']} models; what held "
                f"there was judged by {found['judged_on']} others, which can only refuse: "
                f"{found['judged']}, {refused}. Figures are of the latter."
            ]
        if found["tried"] == 1:
            return []
        needed = 2 * LEAST_HALF
        more = "" if self.task else f" (of {needed * HELD_OUT} samples about so many are held out)"
        return [
            f"The {found['judged_on']} samples that chose are those that judge, so the figure "
            f"flatters: {needed} or more are divided into halves, one to choose and one to "
            f"judge{more}."
        ]


def halves(count: int) -> list[slice]:
    """Divide the samples into those that choose and those that judge, if they are enough."""
    return [slice(0, None, 2), slice(1, None, 2)] if count >= 2 * LEAST_HALF else [slice(None)]


def _timed(judge: Judge, model: Model) -> tuple[list[dict[str, Array]], float]:
    """Run the model on the samples that judge, and take the seconds of its fastest run by our
    runtime, in this process: one compilation for both. Trials lie minutes apart; of their times the
    least depends least on what else the machine does."""
    probe = judge.probe(model)
    given = judge.given(probe)
    codes = coded(probe.inputs, judge.samples[0])
    taken: list[float] = []
    end = time.perf_counter() + TIMED
    while not taken or time.perf_counter() < end:
        begin = time.perf_counter()
        probe.session.run(codes)
        taken.append(time.perf_counter() - begin)
    return given, min(taken)
