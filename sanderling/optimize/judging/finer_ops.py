"""The search for the ops that need a finer mode to hold a target.

Ops are ranked by the noise that each adds to the signal of held-out samples; one pass over the
quantised model tells. As many of the worst get the finer mode as the target needs (doubling, then
halving the interval); then ops are given back that turn out not to need it.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...ir import Op
from ...progress import Estimate
from ..correcting.calibrated import Calibrated
from ..correcting.corrections import CorrectedQuantiser
from ..correcting.linear import own_name
from ..modes.recipe import Choice, all_modes
from ..writing.apply import Quantised
from .judge import Judge
from .layer_error import Samples, stored_weights, tensor_errors
from .report import Trial
from .selection import Selected
from .target import Target, halves

# What an op gets where its own mode is too coarse, by preference: integers first.
FINER = {"int8": ("int16x8", "float"), "int16x8": ("float",), "dynamic": ("float",),
         "dynamic-int4": ("dynamic", "float"), "block-int4": ("dynamic", "float"),
         "weight-int4": ("weight-int8", "float"), "weight-int8": ("float",),
         "float16": ("float",)}  # fmt: skip
MOST_GIVEN_BACK = 12  # attempts; each is a whole judgement
OpGroup = tuple[str, ...]  # ops that only help together, by their first outputs


@dataclass
class Reached:
    """Where the search ended."""

    made: Quantised
    rules: list[Choice]  # that make the model again
    trials: list[Trial]  # float's first


def reach(
    target: Target, quantiser: CorrectedQuantiser, judge: Judge, selected: Selected
) -> Reached:
    """Find the model that meets the target with the fewest finer ops, or the best there is."""
    search = FinerSearch(target, quantiser, judge, selected)
    if not search.best.trial.meets:
        # A task has samples of its own: then none of those held out judges.
        part = slice(None) if target.task is not None else halves(len(judge.samples))[0]
        samples, rules = judge.samples[part], search.rules
        search.run(orders(quantiser.calibrated, selected.made, rules, samples))
    search.best.trial.chosen = True
    mark_pareto(search.trials)
    return Reached(search.best.made, search.best.rules, search.trials)


@dataclass
class _Tried:
    trial: Trial
    made: Quantised
    rules: list[Choice]

    @property
    def rank(self) -> tuple[float, ...]:
        """The greatest is best. A trial that meets the target stands above one that does not: with
        the fewest finer ops first, then the smallest. Where none does, the score counts."""
        trial = self.trial
        if trial.meets:
            return 1, -len(trial.kept), -trial.size
        both = trial.score if trial.choice is None else min(trial.score, trial.choice)
        return 0, both, -trial.size


class FinerSearch:
    """The trials of one search, float's first."""

    def __init__(
        self, target: Target, quantiser: CorrectedQuantiser, judge: Judge, selected: Selected
    ) -> None:
        self.target, self.quantiser, self.judge = target, quantiser, judge
        self.calibrated, self.techniques = quantiser.calibrated, selected.techniques
        self.rules = list(self.calibrated.quantiser.recipe)
        self.ops = 0  # that may be made finer
        self.expected, self.estimate = 0, Estimate("", 0)
        self.tried: dict[tuple[str, tuple[str, ...]], Trial] = {}
        self.reference = target.trial(judge, self.calibrated.float_model, "float")
        self.reference.meets = True
        self.trials = [self.reference]
        first = target.trial(judge, selected.made.model, selected.techniques.name)
        self.best = _Tried(first, selected.made, self.rules)
        self._add(self.best)

    def _add(self, tried: _Tried) -> Trial:
        tried.trial.meets = self.target.meets(tried.trial, self.reference)
        self.trials.append(tried.trial)
        if tried.rank > self.best.rank:
            self.best = tried  # the others' models are not kept
        return tried.trial

    def attempt(self, finer: str, kept: Sequence[str], how: str) -> Trial:
        key = finer, tuple(sorted(kept))
        if key not in self.tried:
            self.estimate.step(len(self.trials))
            if self.calibrated.progress:
                total = max(self.expected, len(self.trials) + 1)
                self.calibrated.progress("searching", len(self.trials), total)
            rules = [*self.rules, *(Choice(finer, name=glob.escape(name)) for name in kept)]
            made = self.quantiser.run(self.techniques, rules, self.calibrated.progress)
            name = f"{len(kept)} op{'s' * (len(kept) != 1)} {finer}, {how}"
            trial = self.target.trial(self.judge, made.model, name)
            trial.kept = list(kept)
            self.tried[key] = self._add(_Tried(trial, made, rules))
        return self.tried[key]

    def run(self, found: Mapping[str, Sequence[OpGroup]]) -> None:
        """Take the first finer mode that is enough for some order of ops. A later order counts if
        it needs fewer."""
        self.ops = max(len(_union(groups)) for groups in found.values())
        # Each order is searched by doubling and halving; then some ops are given back.
        steps = 2 * max(len(groups) for groups in found.values()).bit_length() + 1
        self.expected = len(self.trials) + len(found) * steps + MOST_GIVEN_BACK
        self.estimate = Estimate(
            f"searching {self.ops} ops for those that need a finer mode, at most about "
            f"{self.expected} trials,",
            self.expected,
        )
        for mode in self.target.finer or self._finer():
            best: list[str] | None = None
            for how, groups in found.items():
                fewer = groups if best is None else groups[: len(best) - 1]
                best = self._fewest(mode, fewer, how) or best
            if best:
                place = {name: i for i, name in enumerate(_union(found["last first"]))}
                return self._give_back(mode, sorted(best, key=lambda name: place[name]))

    def _finer(self) -> Sequence[str]:
        """The modes to fall back on, by the mode that most ops have."""
        chosen = list(all_modes(self.calibrated.float_model.graphs, self.rules).values())
        name = max({m.name for m in chosen}, key=[m.name for m in chosen].count)
        return FINER.get(name, ("float",))

    def _fewest(self, mode: str, groups: Sequence[OpGroup], how: str) -> list[str] | None:
        """Find the fewest ops of the first groups that meet the target; None if all of them do
        not."""

        def meets(count: int) -> bool:
            return self.attempt(mode, _union(groups[:count]), how).meets

        while mode == "float" and groups and len(_union(groups)) == self.ops:
            groups = groups[:-1]  # or nothing would be left of the quantisation
        if not groups or (mode != "float" and not meets(len(groups))):
            return None  # one trial says that these are not enough
        enough = 1
        while enough < len(groups) and not meets(enough):
            enough *= 2
        enough, too_few = min(enough, len(groups)), enough // 2
        if not meets(enough):
            return None
        while enough - too_few > 1:
            middle = (enough + too_few) // 2
            enough, too_few = (middle, too_few) if meets(middle) else (enough, middle)
        return _union(groups[:enough])

    def _give_back(self, mode: str, kept: list[str]) -> None:
        """Give ops back whose finer mode turns out not to be needed. Neighbours go together, in
        ever shorter stretches: a lone coarse op between finer ones costs two roundings, a stretch
        too."""
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


def _union(groups: Sequence[OpGroup]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group))


def mark_pareto(trials: Sequence[Trial]) -> None:
    """Mark the trials that no other beats: one beats another if it is better in one of score, size
    and latency and no worse in the rest."""
    for trial in trials:
        trial.pareto = not any(_beats(other, trial) for other in trials)


def _beats(one: Trial, other: Trial) -> bool:
    ours, theirs = ((t.score, -t.size, -t.latency) for t in (one, other))
    return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


# -- which ops add the noise ----------------------------------------------------------------------


def orders(
    calibrated: Calibrated, made: Quantised, recipe: Sequence[Choice], samples: Samples
) -> dict[str, list[OpGroup]]:
    """Which ops to make finer, first the most promising. A value keeps its bits only if the ops
    that read it are as fine as the one that makes it, so a group is an op and its readers. There
    are two orders: by the noise that ops add, and from the outputs backwards, where groups meet at
    once."""
    noise = own_noise(calibrated, made, samples)
    model = calibrated.float_model
    stay = {own_name(op.outputs[0].name) for op in made.solution.reasons if op.outputs}
    moved = {
        op.outputs[0].name
        for op, mode in all_modes(model.graphs, recipe).items()
        if mode.name != "float" and op.outputs and op.outputs[0].name not in stay
    }
    ops = [op for op in model.main.ops if op.outputs and op.outputs[0].name in moved]
    noisy = sorted(ops, key=lambda op: -max(noise.get(t.name, 0.0) for t in op.outputs))
    backwards: list[OpGroup] = [(op.outputs[0].name,) for op in reversed(ops)]
    return {"noisiest first": [_with_readers(op, moved) for op in noisy], "last first": backwards}


def _with_readers(op: Op, moved: Collection[str]) -> OpGroup:
    readers = [user for t in op.outputs for user in t.users if user.outputs]
    names = dict.fromkeys(o.outputs[0].name for o in (op, *readers))
    return tuple(n for n in names if n in moved)


def own_noise(calibrated: Calibrated, made: Quantised, samples: Samples) -> dict[str, float]:
    """Noise over signal that each layer itself adds, by the name of its result: the rounding of the
    result and that of the weights. What came in with its operands is not its own."""
    errors = tensor_errors(calibrated, made, samples)
    signals = {n: e.power / max(e.count, 1) for n, e in errors.items()}
    found = {name: 10 ** (-snr / 10) for name, (_, snr) in stored_weights(made).items()}
    for tensor in (t for op in made.model.main.ops for t in op.outputs):
        name = own_name(tensor.name)
        if tensor.quant is not None and tensor.quant.is_set and signals.get(name):
            rounding = float(tensor.quant.scale[0]) ** 2 / 12
            found[name] = found.get(name, 0.0) + rounding / signals[name]
    return found
