"""Proposals tried out: the changed model, or the changed setting, against the model as it is.

All are measured shortly in turns; what seems to gain is measured again in several fresh processes,
so that its gain has an interval.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

from ..errors import SanderlingError
from ..evaluate.differences.diff import Diff, diff
from ..format import dump, save
from ..ir import Array, Model
from ..measure.bench import Axes, BenchedModel, Procedure, measure_models
from ..measure.bench_results import Bench, cpu_ratio, ratio
from ..measure.inputs import Feeding
from ..measure.noise import sentences
from ..measure.process_memory import growth
from ..measure.record import Result, Setting
from ..measure.sample_statistics import Ratio
from ..rewrites.answers import sample_arrays
from .advice import BOUNDS, CLOSE, GOALS, Cost, Gain, Proposal, Tried
from .evidence import Evidence

PROMISING = 0.985  # of the figure in the short round: what is less seems to gain
SHORT = 0.12  # seconds of a setting in the short round
LAUNCHES = 4  # fresh processes of each in the long round
START = 0.5  # seconds until a process has loaded its model, about
COMPARED = 24  # samples that answers are compared on
NOISE_RUNS = 5
AS_GIVEN = "as it is"


class Trials(AbstractContextManager["Trials"]):
    """The proposals of one model, with a folder for the models that they make."""

    def __init__(self, evidence: Evidence, seconds: float) -> None:
        self.evidence, self.seconds = evidence, seconds
        self.folder = tempfile.TemporaryDirectory(prefix="sanderling-")
        self.made: dict[str, Model] = {}
        self.paths: dict[str, Path] = {}
        self.warnings: list[str] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.folder.cleanup()

    @property
    def figure(self) -> str:
        return GOALS[self.evidence.goal][0]

    # -- models -----------------------------------------------------------------------------

    def prepared(self, proposals: Iterable[Proposal]) -> list[Tried]:
        """Make the models; what cannot be made has a problem."""
        found = []
        for proposal in proposals:
            one = Tried(proposal)
            try:
                self._make(one)
            except SanderlingError as error:
                one.problem = error.what
            found.append(one)
        return found

    def _make(self, one: Tried) -> None:
        trial = one.proposal.trial
        if trial.make is None:
            return
        made = trial.make()
        path = Path(self.folder.name) / f"{len(self.paths)}.tflite"
        save(made, path)
        self.made[trial.name], self.paths[trial.name] = made, path
        one.gains["size"] = Gain.exact(path.stat().st_size, self._given_size)

    @cached_property
    def _given_size(self) -> int:
        """Bytes as our writer stores it: what only it saves is no gain of a trial."""
        return min(self.evidence.path.stat().st_size, len(dump(self.evidence.model)))

    # -- time -------------------------------------------------------------------------------

    def measure(self, tried: Sequence[Tried]) -> None:
        """Write the gains into what was tried."""
        sound = [one for one in tried if not one.problem]
        self._round(sound, SHORT, 1)
        near = [one for one in sound if not one.problem and self._may_gain(one)]
        if near and self.figure != "size":  # bytes have no interval
            spent = (len(near) + 1) * LAUNCHES * START
            share = max(0.4, min(3.0, (self.seconds - spent) / (len(near) + 1)))
            self._round(near, share, LAUNCHES)

    def _may_gain(self, one: Tried) -> bool:
        gain = one.gains.get(self.figure)
        return gain is not None and gain.value <= PROMISING

    def _round(self, tried: Sequence[Tried], seconds: float, launches: int) -> None:
        if not tried:
            return
        how = Procedure(
            runs=5 * launches,
            min_secs=seconds,
            max_secs=max(1.5, 3 * seconds),
            warmup_secs=min(0.2, seconds),
            launches=launches,
            timeout=60.0,
        )
        subjects = self._subjects(tried)
        made = measure_models(subjects, how, self.evidence.progress, together=True)
        if launches > 1:
            self.warnings = [str(text) for text in sentences(made.warnings)]
        by_cell = {(r.model, r.setting.asked.name): r for r in made.results}
        base = by_cell[AS_GIVEN, self.evidence.base.name]
        if base.error:
            raise SanderlingError(
                base.error,
                where=str(self.evidence.path),
                fix="see whether `sanderling run` works on it",
            )
        for one in tried:
            self._judge(one, base, by_cell, made)

    def _subjects(self, tried: Sequence[Tried]) -> list[BenchedModel]:
        base = self.evidence.base
        settings = [s for t in tried if (s := t.proposal.trial.setting) is not None]
        subjects = [self._subject(self.evidence.path, AS_GIVEN, [base, *settings])]
        for one in tried:
            name = one.proposal.trial.name
            if name in self.paths:
                subjects.append(self._subject(self.paths[name], name, [base]))
        return subjects

    def _subject(self, path: Path, name: str, settings: list[Setting]) -> BenchedModel:
        axes = Axes((self.evidence.base.engine,), (1,), ((),), ("f32",), 0, swept=False)
        made = BenchedModel.of(path, name, Feeding(), "", (), axes)
        return replace(made, settings=settings)

    def _judge(
        self, one: Tried, base: Result, found: Mapping[tuple[str, str], Result], made: Bench
    ) -> None:
        trial = one.proposal.trial
        setting = trial.setting or self.evidence.base
        result = found.get((AS_GIVEN if trial.setting else trial.name, setting.name))
        if result is None or result.error:
            one.problem = "it was not measured" if result is None else result.error
            return
        off = [g.gap for g in made.answers if g.setting == setting.name and not g.fits]
        if trial.setting and off:
            one.problem = f"its answers are off: {off[0]}"
            return
        one.gains |= gains(result, base)

    # -- answers ----------------------------------------------------------------------------

    def compare_answers(self, one: Tried) -> None:
        """What the trial costs, on the user's samples or on noise."""
        trial = one.proposal.trial
        setting = trial.setting or self.evidence.base
        self.evidence.progress(f"answers of {trial.name}", 0, 0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = diff(
                    self.evidence.model,
                    self.made.get(trial.name, self.evidence.model),
                    delegate_a="cpu",
                    delegate_b=setting.delegates or "cpu",
                    precision_b=setting.precision,
                    runs=None if self._arrays else NOISE_RUNS,
                    data=self._arrays or None,
                )
        except SanderlingError as error:
            one.problem = f"its answers cannot be compared: {error.what}"
            return
        one.cost = cost_of(result, bool(self._arrays))
        if not (CLOSE if self.evidence.goal == "accuracy" else BOUNDS).allow(one.cost):
            one.problem = f"it changes the answers too much: {one.cost}"

    @cached_property
    def _arrays(self) -> Mapping[str, Array]:
        samples = self.evidence.samples
        if samples is None:
            return {}
        step = max(1, len(samples) // COMPARED)
        return sample_arrays(samples[::step], COMPARED)


def gains(after: Result, before: Result) -> dict[str, Gain]:
    """In every figure that both have. One thread computes as long as its CPU time, and other
    programs disturb that less: where the interval of CPU times is narrower, it is the latency's."""
    found = {"latency": _gain(ratio(after, before))}
    energy = cpu_ratio(after, before)
    if energy is not None:
        found["energy"] = _gain(energy)
        if _is_one_thread(after.setting) and _is_one_thread(before.setting):
            found["latency"] = min(found["latency"], found["energy"], key=lambda g: g.width)
    held = [growth(r.memory, "peak.runs") or growth(r.memory, "ready.rss") for r in (after, before)]
    if held[0] and held[1]:
        found["memory"] = Gain.exact(held[0], held[1])
    return found


def _is_one_thread(setting: Setting) -> bool:
    """Other delegates may compute elsewhere."""
    return setting.threads == 1 and not setting.delegates


def _gain(found: Ratio) -> Gain:
    return Gain(found.value, found.low, found.high)


def cost_of(result: Diff, has_samples: bool) -> Cost:
    """The figure that judges each output by its kind, of the worst. First classes of noise mean
    nothing: there only the signal-to-noise ratio counts."""
    shares = [o.top[1] for o in result.outputs if has_samples and o.kind.agrees and 1 in o.top]
    snr = min(o.real.snr_db for o in result.outputs)
    on = f"on {result.runs} samples" if has_samples else "on random inputs (see --data)"
    return Cost(min(shares) if shares else None, snr, on)
