"""Chooses techniques: they are tried in order of cost, each on top of the best so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...progress import Estimate
from ..calibration.calibrate import Progress
from ..correcting.adaround import effort
from ..correcting.calibrated import Calibrated
from ..correcting.corrections import CorrectedQuantiser
from ..correcting.techniques import CORRECTIONS, SearchSpace, Techniques
from ..modes.recipe import all_modes
from ..writing.apply import Quantised
from .judge import Candidate, Judge

# Multiply-adds that "auto" spends on AdaRound: about half a minute.
MOST_EFFORT = 6e11


@dataclass
class Selected:
    """The model that the judge liked best, and what was tried on the way."""

    made: Quantised
    techniques: Techniques
    candidates: list[Candidate]
    notes: list[str]


class Selection:
    """The search for the best techniques of one calibrated model."""

    def __init__(self, quantiser: CorrectedQuantiser, judge: Judge) -> None:
        self.quantiser, self.judge = quantiser, judge
        self.calibrated: Calibrated = quantiser.calibrated
        self.notes: list[str] = []

    def choose(self, space: SearchSpace) -> Selected:
        """Try the variations; one is kept if it is better beyond chance."""
        techniques, count = space.first, 1 + len(space.variations)
        estimate = Estimate(f"trying up to {count} ways to quantise", count)
        estimate.step(0)
        made = self._run(techniques, f"way 1 of {count}: {techniques.name}")
        candidates = [self.judge.judge(techniques.name, made.model)]
        leader = candidates[0]
        for number, vary in enumerate(space.variations, 1):
            estimate.step(number)
            following = vary(techniques)
            if following == techniques or not self._is_worth(following):
                continue
            other = self._run(following, f"way {number + 1} of {count}: {following.name}")
            candidates.append(self.judge.judge(following.name, other.model))
            if candidates[-1].beats(leader):
                techniques, made, leader = following, other, candidates[-1]
        leader.chosen = True
        notes = self.notes + self._summary(candidates, leader)
        return Selected(made, techniques, candidates, notes)

    def _run(self, techniques: Techniques, title: str) -> Quantised:
        shown = self.calibrated.progress
        if shown:
            shown(title, 0, 0)
        return self.quantiser.run(techniques, progress=shown and _titled(shown, title))

    def _is_worth(self, techniques: Techniques) -> bool:
        """Refuse what changes nothing, and what takes too long without being asked for."""
        if "equalise" in techniques.corrections and not self.quantiser.can_equalise:
            return False
        if techniques.ranges != "minmax" and self._bits == {16}:
            return False
        graph = self.calibrated.float_model.main
        if "adaround" in techniques.corrections and effort(graph) > MOST_EFFORT:
            self.notes.append(
                "AdaRound was not tried: the layers are so large that it takes minutes "
                f"(corrections: {', '.join(CORRECTIONS)})."
            )
            return False
        return True

    @property
    def _bits(self) -> set[int]:
        graphs, recipe = self.calibrated.float_model.graphs, self.calibrated.quantiser.recipe
        return {m.activations.bits for m in all_modes(graphs, recipe).values() if m.activations}

    def _summary(self, candidates: Sequence[Candidate], leader: Candidate) -> list[str]:
        if len(candidates) == 1:
            return []
        first = candidates[0]
        start = f"Of {len(candidates)} ways, judged on {self._judges}, {leader.name} is kept: "
        if leader is not first:
            gain = leader.snr - first.snr
            return [f"{start}{leader.snr:.1f} dB, {gain:+.1f} dB over {first.name}."]
        nearest = max(candidates[1:], key=lambda c: (c.gain or 0.0) - (c.needed or 0.0))
        return [
            f"{start}none of the others gains what the rule asks. The nearest, {nearest.name}, "
            f"gains {nearest.gain:+.2f} dB and needed {nearest.needed:.2f}."
        ]

    @property
    def _judges(self) -> str:
        count, away = len(self.judge.samples), self.calibrated.away
        if not away:
            return f"{count} samples"
        some = "" if count == away else f" of {away}"
        return f"{count}{some} samples held out of {away + self.calibrated.samples}"


def _titled(progress: Progress, title: str) -> Progress:
    return lambda what, done, total: progress(f"{title}, {what}", done, total)
