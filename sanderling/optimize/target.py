"""An accuracy target: as few ops as needed get a finer mode, and the result is measured, not hoped.

Ops are ranked by the noise that each adds to the signal of held-out samples; one pass over the
quantised model tells. As many of the worst get the finer mode as the target needs (doubling, then
halving the interval); then ops are given back that turn out not to need it.

The best of many suits the samples that chose it a little too well. So one half of the samples
chooses, and what holds there is judged by the other half, which can only refuse.
"""

from __future__ import annotations

import glob
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import InputError, SanderlingError
from ..evaluate.output_kinds import AGREEING, SCORES, OutputKind
from ..evaluate.task import Metrics, Task
from ..format import dump
from ..ir import Array, Model, Op
from ..progress import Estimate
from .accuracy import evaluated
from .correct import own_name
from .recipe import Choice, all_modes
from .report import Candidate, Trial, stored_weights, tensor_errors
from .scheme import mode_of
from .work import HELD_OUT, Shown, coded

if TYPE_CHECKING:
    from .quantize import Quantised
    from .report import Report
    from .work import Plan, Work

# What an op gets where its own mode is too coarse, by preference: integers first.
FINER = {"int8": ("int16x8", "float"), "int16x8": ("float",), "dynamic": ("float",),
         "dynamic-int4": ("dynamic", "float"), "block-int4": ("dynamic", "float"),
         "weight-int4": ("weight-int8", "float"), "weight-int8": ("float",),
         "float16": ("float",)}  # fmt: skip
MOST_GIVEN_BACK = 12  # attempts; each is a whole judgement
LITTLE_LEFT = 0.75  # of float's size: more is hardly worth it
TIMED = 0.1  # seconds that a trial is timed for
LEAST_HALF = 10  # samples; of fewer than two such halves all choose and all judge
Unit = tuple[str, ...]  # ops that only help together, by their first outputs


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
    _float: Trial | None = field(default=None, init=False, repr=False)
    _counts: tuple[int, int] = field(default=(0, 0), init=False, repr=False)  # choose, judge

    def __post_init__(self) -> None:
        given = (self.min_agreement, self.min_snr, self.max_drop)
        count = sum(g is not None for g in given)
        if count != 1:
            raise InputError(f"{count} targets are given", where="target",
                             fix="give one of min_agreement, min_snr, max_drop")  # fmt: skip
        if (self.max_drop is not None) != (self.task is not None):
            raise InputError("a drop is measured on a task", where="target",
                             fix="give max_drop and task, or min_agreement")  # fmt: skip
        if self.min_agreement is not None and not 0 < self.min_agreement <= 1:
            raise InputError(f"an agreement of {self.min_agreement}", where="target",
                             fix="it is a share of the samples: above 0, up to 1")  # fmt: skip
        if self.max_drop is not None and not 0 <= self.max_drop < 1:
            raise InputError(f"a drop of {self.max_drop}", where="target",
                             fix="it is a share: 0.01 is one point of a hundred")  # fmt: skip
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

    def suits(self, trial: Trial) -> bool:
        """On the samples that choose."""
        assert self._float is not None
        if trial.choice is None:
            return self.holds(trial.score, self._float.score)
        return self.holds(trial.choice, self._float.choice or 0.0)

    def meets(self, trial: Trial) -> bool:
        """On those that choose and on those that judge."""
        assert self._float is not None
        return self.suits(trial) and self.holds(trial.score, self._float.score)

    # -- measuring ----------------------------------------------------------------------------

    def measure_float(self, work: Work) -> Trial:
        """The reference: its own agreement is 1."""
        model = work.job.float_model
        self._float = self._trial(work, model, "float")
        self._float.meets = True
        return self._float

    def _trial(self, work: Work, model: Model, name: str) -> Trial:
        given, seconds = _ran(work, model)
        scores = self._on_held(work, given) if self.task is None else self._on_task(model)
        choice = scores[0] if len(scores) == 2 else None
        return Trial(name, scores[-1], len(dump(model)), seconds, choice)

    def _on_held(self, work: Work, given: Sequence[Mapping[str, Array]]) -> list[float]:
        parts = self._parts(len(given))
        kinds = self._kinds(work)
        found = [Candidate.of("", work.wanted[p], given[p], work.judged, kinds) for p in parts]
        return [c.snr if self.min_snr is not None else c.agreement or 0.0 for c in found]

    def _kinds(self, work: Work) -> Mapping[str, OutputKind]:
        """Who asks for agreement wants the largest output compared, whatever the outputs are."""
        if any(kind.agrees for kind in work.kinds.values()):
            return work.kinds
        return dict.fromkeys(work.kinds, OutputKind(SCORES, "agreement is the target"))

    def _on_task(self, model: Model) -> list[float]:
        assert self.task is not None
        found = evaluated(model, self.task, self.limit)
        samples, predictions = found.came_through
        parts = self._parts(len(samples))
        if len(parts) == 1:
            return [self._figure_of(found.metrics)]
        return [self._figure_of(found.task.metric(samples[p], predictions[p])) for p in parts]

    def _figure_of(self, metrics: Metrics) -> float:
        assert self.task is not None
        score = metrics.get(self.figure)
        if not isinstance(score, int | float):
            there = [k for k, v in metrics.items() if isinstance(v, int | float)]
            raise InputError(f"the task '{self.task.name}' gives no figure '{self.figure}'",
                             where="target", fix=f"it gives {', '.join(there)}")  # fmt: skip
        return float(score)

    def _parts(self, count: int) -> list[slice]:
        """Samples that choose and samples that judge, every other one; or all, for both."""
        parts = halves(count)
        sizes = [len(range(count)[p]) for p in parts]
        self._counts = sizes[0], sizes[-1]
        return parts

    # -- the way to it ------------------------------------------------------------------------

    def reach(self, work: Work, best: Quantised, plan: Plan) -> Reached:
        """The model that meets the target with the fewest finer ops, or the best there was."""
        way = _Way(self, work, plan)
        way.trials.append(self.measure_float(work))
        first = way.add(self._trial(work, best.model, plan.name), best, way.rules)
        if not first.meets:
            # A task has samples of its own: then none of those held out judges.
            part = slice(None) if self.task is not None else halves(len(work.held))[0]
            way.search(orders(work, best, work.held[part]))
        assert way.best is not None
        way.best.trial.chosen = True
        mark_pareto(way.trials)
        return Reached(way.best.made, way.best.rules, way.trials)

    def conclude(self, reached: Reached, report: Report) -> None:
        """Put it into the report; a target that was missed is an error."""
        report.trials, chosen = reached.trials, reached.chosen
        report.target = {
            "text": self.text, "figure": self.figure, "met": chosen.meets,
            "reached": chosen.score, "float": reached.trials[0].score, "kept": chosen.kept,
            "task": self.task.name if self.task else None,
            "settings": self.task.settings() if self.task else None,
            **self._judgement(reached.trials[1:]),
        }  # fmt: skip
        report.notes += self._story(report.target) + self._doubt(report)
        share = chosen.size / reached.trials[0].size
        if chosen.kept and share > LITTLE_LEFT:
            report.notes.append(f"Little is left of the quantisation: {len(chosen.kept)} ops are "
                                f"finer and the file is {share:.0%} of float's. More corrections "
                                "or a lower target give more.")  # fmt: skip
        if not chosen.meets:
            raise TargetMissedError(
                f"{self.text} was not reached: the best of {len(reached.trials) - 1} has "
                f"{chosen.score:.4g} ({chosen.name}), float has {reached.trials[0].score:.4g}",
                reached.made.model, report,
                fix="relax the target, give more samples, or choose a finer mode",
            )  # fmt: skip

    def _judgement(self, trials: Sequence[Trial]) -> dict[str, Any]:
        """Whom the figure is of, and how often the samples that judge were asked."""
        asked = [t for t in trials if self.suits(t)]
        return {"chosen_on": self._counts[0], "judged_on": self._counts[1],
                "apart": trials[0].choice is not None, "tried": len(trials),
                "judged": len(asked), "refused": sum(not t.meets for t in asked)}  # fmt: skip

    def _doubt(self, report: Report) -> list[str]:
        if self.min_agreement is None or any(k["kind"] in AGREEING for k in report.kinds.values()):
            return []
        said = ", ".join(f"'{name}' ({k['why']})" for name, k in report.kinds.items())
        return [f"Nothing tells that the outputs are scores of classes: {said}. If they are not, "
                "agreement means nothing: give --min-snr instead."]  # fmt: skip

    def _story(self, found: Mapping[str, Any]) -> list[str]:
        if found["apart"] and found["tried"] == 1 and found["met"]:
            return [f"It holds on both halves of the samples; figures are of the second, "
                    f"{found['judged_on']} of them."]  # fmt: skip
        if found["apart"]:
            refused = f"{found['refused']} of them refused" if found["refused"] else "none refused"
            return [f"{found['chosen_on']} samples chose among {found['tried']} models; what held "
                    f"there was judged by {found['judged_on']} others, which can only refuse: "
                    f"{found['judged']}, {refused}. Figures are of the latter."]  # fmt: skip
        if found["tried"] == 1:
            return []
        needed = 2 * LEAST_HALF
        more = "" if self.task else f" (of {needed * HELD_OUT} samples about so many are held out)"
        return [f"The {found['judged_on']} samples that chose are those that judge, so the figure "
                f"flatters: {needed} or more are divided into halves, one to choose and one to "
                f"judge{more}."]  # fmt: skip


def halves(count: int) -> list[slice]:
    return [slice(0, None, 2), slice(1, None, 2)] if count >= 2 * LEAST_HALF else [slice(None)]


@dataclass
class Reached:
    """Where the search ended: the model, the rules that make it again, all trials; float first."""

    made: Quantised
    rules: list[Choice]
    trials: list[Trial]

    @property
    def chosen(self) -> Trial:
        return next(t for t in self.trials if t.chosen)


@dataclass
class _Found:
    trial: Trial
    made: Quantised
    rules: list[Choice]

    @property
    def rank(self) -> tuple[float, ...]:
        """Of those that meet the target the fewest finer ops, then the smallest; else the score."""
        trial = self.trial
        if trial.meets:
            return 1, -len(trial.kept), -trial.size
        both = trial.score if trial.choice is None else min(trial.score, trial.choice)
        return 0, both, -trial.size


class _Way:
    """The trials of one search."""

    def __init__(self, target: Target, work: Work, plan: Plan) -> None:
        self.target, self.work, self.plan = target, work, plan
        self.rules = list(work.job.recipe)
        self.trials: list[Trial] = []
        self.best: _Found | None = None
        self.ops = 0  # that may be made finer
        self.expected, self.ahead = 0, Estimate("", 0)
        self.tried: dict[tuple[str, tuple[str, ...]], Trial] = {}

    def add(self, trial: Trial, made: Quantised, rules: list[Choice]) -> Trial:
        trial.meets = self.target.meets(trial)
        self.trials.append(trial)
        found = _Found(trial, made, rules)
        if self.best is None or found.rank > self.best.rank:
            self.best = found  # the others' models are not kept
        return trial

    def attempt(self, finer: str, kept: Sequence[str], how: str) -> Trial:
        key = finer, tuple(sorted(kept))
        if key not in self.tried:
            self.ahead.step(len(self.trials))
            if self.work.progress:
                total = max(self.expected, len(self.trials) + 1)
                self.work.progress("searching", len(self.trials), total)
            rules = [*self.rules, *(Choice(finer, name=glob.escape(name)) for name in kept)]
            made = self._made(rules)
            name = f"{len(kept)} op{'s' * (len(kept) != 1)} {finer}, {how}"
            trial = self.target._trial(self.work, made.model, name)
            trial.kept = list(kept)
            self.tried[key] = self.add(trial, made, rules)
        return self.tried[key]

    def _made(self, rules: list[Choice]) -> Quantised:
        before = self.work.job
        self.work.job = replace(before, recipe=rules)
        try:
            return self.work.make(self.plan)
        finally:
            self.work.job = before

    def search(self, found: Mapping[str, Sequence[Unit]]) -> None:
        """The first finer mode that is enough for some order of ops; a later order counts if it
        needs fewer."""
        self.ops = max(len(_union(units)) for units in found.values())
        # Each order is searched by doubling and halving; then some ops are given back.
        steps = 2 * max(len(units) for units in found.values()).bit_length() + 1
        self.expected = len(self.trials) + len(found) * steps + MOST_GIVEN_BACK
        self.ahead = Estimate(f"searching {self.ops} ops for those that need a finer mode, at most "
                              f"about {self.expected} trials,", self.expected)  # fmt: skip
        for mode in self.target.finer or self._finer():
            best: list[str] | None = None
            for how, units in found.items():
                fewer = units if best is None else units[: len(best) - 1]
                best = self._fewest(mode, fewer, how) or best
            if best:
                place = {name: i for i, name in enumerate(_union(found["last first"]))}
                return self._give_back(mode, sorted(best, key=lambda name: place[name]))

    def _finer(self) -> Sequence[str]:
        """By the mode that most ops have."""
        chosen = list(all_modes(self.work.job.float_model.graphs, self.rules).values())
        name = max({m.name for m in chosen}, key=[m.name for m in chosen].count)
        return FINER.get(name, ("float",))

    def _fewest(self, mode: str, units: Sequence[Unit], how: str) -> list[str] | None:
        """The ops of the first units, as few as meet the target; None if all do not."""

        def meets(count: int) -> bool:
            return self.attempt(mode, _union(units[:count]), how).meets

        while mode == "float" and units and len(_union(units)) == self.ops:
            units = units[:-1]  # or nothing would be left of the quantisation
        if not units or (mode != "float" and not meets(len(units))):
            return None  # one trial says that these are not enough
        enough = 1
        while enough < len(units) and not meets(enough):
            enough *= 2
        enough, too_few = min(enough, len(units)), enough // 2
        if not meets(enough):
            return None
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            enough, too_few = (middle, too_few) if meets(middle) else (enough, middle)
        return _union(units[:enough])

    def _give_back(self, mode: str, kept: list[str]) -> None:
        """Ops whose finer mode turns out not to be needed. Neighbours go together, in ever shorter
        stretches: a lone coarse op between finer ones costs two roundings, a stretch too."""
        left, length, start = MOST_GIVEN_BACK, len(kept) // 2, 0
        while left and length:
            fewer = kept[:start] + kept[start + length :]
            if self.attempt(mode, fewer, "some given back").meets:
                kept = fewer
            else:
                start += length
            left -= 1
            if start >= len(kept) or length >= len(kept):
                length, start = min(length, len(kept)) // 2, 0


def _union(units: Sequence[Unit]) -> list[str]:
    return list(dict.fromkeys(name for unit in units for name in unit))


def mark_pareto(trials: Sequence[Trial]) -> None:
    """Those that no other beats: better in one of score, size and latency, no worse in the rest."""
    for trial in trials:
        trial.pareto = not any(_beats(other, trial) for other in trials)


def _beats(one: Trial, other: Trial) -> bool:
    ours, theirs = ((t.score, -t.size, -t.latency) for t in (one, other))
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def _ran(work: Work, model: Model) -> tuple[list[dict[str, Array]], float]:
    """What the model says of the samples held out, and the seconds of the fastest run by our
    runtime, in this process: one compilation for both. Trials lie minutes apart; of their times the
    least depends least on what else the machine does."""
    shown = Shown(model, work.judged, work.threads)
    given = work.heard([shown.run(feeds) for feeds in work.held])
    codes = coded(shown.inputs, work.held[0])
    taken: list[float] = []
    end = time.perf_counter() + TIMED
    while not taken or time.perf_counter() < end:
        begin = time.perf_counter()
        shown.session.run(codes)
        taken.append(time.perf_counter() - begin)
    return given, min(taken)


# -- which ops add the noise ----------------------------------------------------------------------


def orders(work: Work, made: Quantised, samples: Sequence[Mapping[str, Array]],
           ) -> dict[str, list[Unit]]:  # fmt: skip
    """Which ops to make finer, first the most promising. A value keeps its bits only if the ops
    that read it are as fine as the one that makes it, so a unit is an op and its readers. Two
    orders: by the noise that ops add, and from the outputs backwards, where units meet at once."""
    noise = own_noise(work, made, samples)
    graph = work.job.float_model.main
    stay = {own_name(op.outputs[0].name) for op in made.solution.reasons if op.outputs}
    chosen = all_modes(work.job.float_model.graphs, work.job.recipe)
    moved = {op.outputs[0].name for op, mode in chosen.items()
             if mode.name != "float" and op.outputs and op.outputs[0].name not in stay}  # fmt: skip
    ops = [op for op in graph.ops if op.outputs and op.outputs[0].name in moved]
    noisy = sorted(ops, key=lambda op: -max(noise.get(t.name, 0.0) for t in op.outputs))
    backwards: list[Unit] = [(op.outputs[0].name,) for op in reversed(ops)]
    return {"noisiest first": [_unit(op, moved) for op in noisy], "last first": backwards}


def _unit(op: Op, moved: Collection[str]) -> Unit:
    readers = [user for t in op.outputs for user in t.users if user.outputs]
    names = dict.fromkeys(o.outputs[0].name for o in (op, *readers))
    return tuple(n for n in names if n in moved)


def own_noise(work: Work, made: Quantised, samples: Sequence[Mapping[str, Array]],
              ) -> dict[str, float]:  # fmt: skip
    """Noise over signal that each layer itself adds, by what it makes: the rounding of its result,
    and that of its weights. What came in with its operands is not its own."""
    errors = tensor_errors(work, made, samples)
    signals = {n: e.power / max(e.count, 1) for n, e in errors.items()}
    found = {name: 10 ** (-snr / 10) for name, (_, snr) in stored_weights(made).items()}
    for tensor in (t for op in made.model.main.ops for t in op.outputs):
        name = own_name(tensor.name)
        if tensor.quant is not None and tensor.quant.is_set and signals.get(name):
            rounding = float(tensor.quant.scale[0]) ** 2 / 12
            found[name] = found.get(name, 0.0) + rounding / signals[name]
    return found
