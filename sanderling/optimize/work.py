"""The work of one quantisation: its data, the ways to quantise that it tries, and their judge.

Ways are tried in order of cost, each on top of the best so far. What judges them calibrated
nothing: a part of the samples is held out, and which ones depends on what they hold, not on when
they come.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ..delegates.cpu.delegate import CpuDelegate
from ..delegates.cpu.runtime.executable import cores
from ..errors import InputError
from ..evaluate.output_kinds import output_kind
from ..format import dump
from ..ir import Array, Graph, Model, Op, Tensor
from ..progress import Estimate
from ..runtime.delegate import Delegate
from ..runtime.inputs import quantize_array
from ..runtime.session import Session
from .calibrate import (
    Calibration,
    Floats,
    Progress,
    Sample,
    Statistics,
    calibrate,
    digest,
    glance,
    synthetic,
)
from .correct import BiasCorrection, layers, mean_sums, own_name
from .equalise import divided, equalise, regions, stretched
from .graphs import Nest, entry_statistics
from .ranges import method_of
from .recipe import all_modes
from .report import Candidate
from .rounding import AdaRound, effort
from .scaling import ScaleCorrection
from .solve import SOFTMAX_REACH
from .threads import one_thread_each
from .walk import Beside, Visit, Walk, mean_maps, reals

if TYPE_CHECKING:
    from .quantize import Job, Quantised

Data = Iterable[Sample] | Mapping[str, Iterable[Sample]]
# Samples that the corrections look at, and bytes that their values may take: in either model a few
# of the largest tensors are alive at a time, as float32 and as codes.
CORRECTING, LEAST_CORRECTING = 64, 8
CORRECTING_BYTES = 1 << 30
ALIVE = 3 * (4 + 1)
# A sample has one chance in so many to be held out, by what it holds: it judges the candidates and
# calibrates nothing, whatever else is given beside it, also when a kept calibration goes on with
# more samples. Of few samples it may therefore be more or fewer than this share.
HELD_OUT = 5
MOST_HELD = 64  # of more that are held out these judge
# Multiply-adds that "auto" spends on AdaRound: about half a minute.
MOST_EFFORT = 6e11


class DataWarning(UserWarning):
    """Ranges come from made-up data."""


# -- ways -----------------------------------------------------------------------------------------


CORRECTIONS = ("equalise", "adaround", "scale", "bias")  # in the order in which they are done


@dataclass(frozen=True)
class Plan:
    """One way to quantise."""

    ranges: str = "minmax"
    weights: str = "max"
    corrections: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " + ".join([f"{self.ranges} ranges", f"{self.weights} weights", *self.corrections])

    def plus(self, correction: str) -> Plan:
        made = (c for c in CORRECTIONS if c in (*self.corrections, correction))
        return replace(self, corrections=tuple(made))


Step = Callable[[Plan], Plan]


@dataclass(frozen=True)
class Wish:
    """What the user stated, and what is left to try."""

    first: Plan
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, ranges: str, weights: str, corrections: str | Sequence[str]) -> Wish:
        if ranges != "auto":
            method_of(ranges)
        if weights not in ("auto", "max", "mse"):
            raise InputError(f"there is no weight method '{weights}'", fix="one of auto, max, mse")
        named = corrections.split(",") if isinstance(corrections, str) else list(corrections)
        stated = [c.strip() for c in named if c.strip() not in ("auto", "none", "")]
        unknown = [c for c in stated if c not in CORRECTIONS]
        if unknown:
            raise InputError(f"there is no correction '{unknown[0]}'",
                             fix=f"auto, none, or of {', '.join(CORRECTIONS)}")  # fmt: skip
        first = Plan("minmax" if ranges == "auto" else ranges, "max" if weights == "auto" else
                     weights, tuple(c for c in CORRECTIONS if c in stated))  # fmt: skip
        auto = any(c.strip() == "auto" for c in named)
        steps: list[Step] = []
        if auto:
            steps += [lambda p: p.plus("bias"), lambda p: p.plus("scale"),
                      lambda p: p.plus("equalise")]  # fmt: skip
        if ranges == "auto":
            steps.append(lambda p: replace(p, ranges="l3"))
        if weights == "auto":
            steps.append(lambda p: replace(p, weights="mse"))
        if auto:
            steps.append(lambda p: p.plus("adaround"))
        return cls(first, tuple(steps))


@dataclass
class Variant:
    """The float model that is quantised: as given, or equalised."""

    job: Job
    factors: dict[str, Floats] = field(default_factory=dict)  # what divided its channels, by tensor


# -- the work -------------------------------------------------------------------------------------


class Work:
    """One float model with its data. Ranges are found once, and as many ways tried as one likes."""

    def __init__(self, job: Job, data: Data | None, keep: str | Path | None = None,
                 threads: int | None = None, progress: Progress | None = None,
                 kinds: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self.progress, self.threads = progress, threads or cores()
        self.way = ""  # that is being tried, for who waits
        self.away = 0  # samples that were held out
        self.notes: list[str] = []
        model, graph = job.float_model, job.float_model.main
        by_channel = {t.name for region in regions(graph) for t in region.tensors}
        self.watcher = Nest(model.copy(), self.threads, by_channel)
        self.held_out, self.kept = _Least(MOST_HELD), _Least(_correcting(graph))
        given = self._made_up(model) if data is None else _of_signatures(data, model)
        total = len(given) if isinstance(given, Sequence) else 0
        identity = hashlib.sha256(dump(model)).hexdigest()
        found = calibrate(self.watcher, given, keep, identity, progress, total, self._take)
        if not found.samples:  # so few that all were held out
            found, self.away = calibrate(self.watcher, self.held_out.sorted()), 0
        for key, part in _others(data, model).items():
            found.tensors |= entry_statistics(model, key, part, self.threads, progress)
        self.job = replace(job, calibration=found)
        self.samples = found.samples
        self.correcting = _alike(self.kept.sorted() or self.held_out.sorted())
        self.held = self.held_out.sorted() or self.kept.sorted()
        if not self.away:
            self.notes.append("So few samples that none could be held out: the figures are of those"
                              " that calibrated.")  # fmt: skip
        self.judged = [judged(t).name for t in graph.outputs]
        self.kinds = {t.name: output_kind(t, kinds) for t in graph.outputs}
        self.softened = {judged(t).name for t in graph.outputs
                         if t.producer is not None and t.producer.name == "SOFTMAX"}  # fmt: skip
        self.plan = Plan()  # the one chosen
        self._variants: dict[bool, Variant] = {}

    def _take(self, name: str, feeds: dict[str, Array]) -> bool:
        held = int(name, 16) % HELD_OUT == 0
        self.away += held
        (self.held_out if held else self.kept).add(name, feeds)
        return not held

    def _made_up(self, model: Model) -> Iterable[Sample]:
        warnings.warn("no calibration data: ranges come from noise, which is good for a quick look "
                      "at size and speed, not for accuracy", DataWarning, stacklevel=4)  # fmt: skip
        self.notes.append("Ranges come from made-up data: do not ship this model.")
        return list(synthetic(model))

    # -- trying -------------------------------------------------------------------------------

    def choose(self, wish: Wish) -> tuple[Quantised, list[Candidate]]:
        """Each step on top of the best so far; kept if it is better beyond chance."""
        plan, ways = wish.first, 1 + len(wish.steps)
        ahead = Estimate(f"trying up to {ways} ways to quantise", ways)
        ahead.step(0)
        self._enter(f"way 1 of {ways}: {plan.name}")
        best = self.make(plan)
        candidates = [self.judge(plan.name, best.model)]
        leader = candidates[0]
        for number, step in enumerate(wish.steps, 1):
            ahead.step(number)
            following = step(plan)
            if following == plan or not self._worth(following):
                continue
            self._enter(f"way {number + 1} of {ways}: {following.name}")
            made = self.make(following)
            candidates.append(self.judge(following.name, made.model))
            if candidates[-1].beats(leader):
                plan, best, leader = following, made, candidates[-1]
        leader.chosen, self.plan, self.way = True, plan, ""
        self.notes += self._story(candidates, leader)
        return best, candidates

    def _enter(self, way: str) -> None:
        self.way = ""
        self._show(way, 0, 0)
        self.way = way

    def _show(self, what: str, done: int, total: int) -> None:
        if self.progress:
            self.progress(f"{self.way}, {what}" if self.way else what, done, total)

    def _worth(self, plan: Plan) -> bool:
        """Not what changes nothing, nor what takes too long without being asked for."""
        if "equalise" in plan.corrections and not self.variant(True).factors:
            return False
        if plan.ranges != "minmax" and self._bits == {16}:
            return False
        if "adaround" in plan.corrections and effort(self.job.float_model.main) > MOST_EFFORT:
            self.notes.append("AdaRound was not tried: the layers are so large that it takes "
                              f"minutes (corrections: {', '.join(CORRECTIONS)}).")  # fmt: skip
            return False
        return True

    @property
    def _bits(self) -> set[int]:
        chosen = all_modes(self.job.float_model.graphs, self.job.recipe).values()
        return {m.activations.bits for m in chosen if m.activations}

    def _story(self, candidates: Sequence[Candidate], leader: Candidate) -> list[str]:
        if len(candidates) == 1:
            return []
        first = candidates[0]
        start = f"Of {len(candidates)} ways, judged on {self._judges}, {leader.name} is kept: "
        if leader is not first:
            return [f"{start}{leader.snr:.1f} dB, {leader.snr - first.snr:+.1f} dB over "
                    f"{first.name}."]  # fmt: skip
        nearest = max(candidates[1:], key=lambda c: (c.gain or 0.0) - (c.needed or 0.0))
        return [f"{start}none of the others gains what the rule asks. The nearest, {nearest.name}, "
                f"gains {nearest.gain:+.2f} dB and needed {nearest.needed:.2f}."]  # fmt: skip

    @property
    def _judges(self) -> str:
        if not self.away:
            return f"{len(self.held)} samples"
        some = "" if len(self.held) == self.away else f" of {self.away}"
        return f"{len(self.held)}{some} samples held out of {self.away + self.samples}"

    def make(self, plan: Plan) -> Quantised:
        variant = self.variant("equalise" in plan.corrections)
        options = replace(variant.job.weights, method=plan.weights)
        # The recipe is the work's: a search changes it from trial to trial.
        job = replace(variant.job, recipe=self.job.recipe, ranges=plan.ranges, weights=options)
        made = job.run()
        visits: list[Visit] = []
        graph = variant.job.float_model.main
        weights = {name: twin.weights for name, twin in layers(graph).items()}
        if "adaround" in plan.corrections:
            visits.append(AdaRound(weights))
        if "scale" in plan.corrections:
            visits.append(ScaleCorrection(weights, Beside(graph, self.correcting)))
        if "bias" in plan.corrections:
            visits.append(BiasCorrection(divided(self.sums, variant.factors)))
        if visits:
            feeds = [as_codes(made.model, f) for f in self.correcting]
            Walk(made.model.main, feeds).run(_each(visits), self._show)
        made.float_model, made.factors = variant.job.float_model, variant.factors
        return made

    def variant(self, equalised: bool) -> Variant:
        if equalised not in self._variants:
            self._variants[equalised] = self._equalised() if equalised else Variant(self.job)
        return self._variants[equalised]

    @cached_property
    def sums(self) -> dict[str, Array]:
        """The mean sums of the float model's layers."""
        twins = layers(self.job.float_model.main)
        names = {twin.source for twin in twins.values()}
        maps = mean_maps(self.watcher, self.correcting, names)
        with one_thread_each():
            return mean_sums(twins, maps)

    def _equalised(self) -> Variant:
        calibration = self.job.calibration
        assert calibration is not None
        model = self.job.float_model.copy()
        by = equalise(model.main, calibration)
        if not by:
            return Variant(self.job)
        tensors = calibration.tensors | self._rescaled(calibration, by)
        found = Calibration(tensors, calibration.samples)
        job = replace(self.job, float_model=model, calibration=found)
        return Variant(job, by)

    def _rescaled(self, calibration: Calibration,
                  by: Mapping[str, Floats]) -> dict[str, Statistics]:  # fmt: skip
        """Histograms are found anew, on the samples of the corrections."""
        made = {name: Statistics() for name in by}
        for feeds in self.correcting:
            phase, values = int(digest(feeds), 16), self.watcher.run(feeds)
            for name, factors in by.items():
                one = glance(values[name] / factors.astype(np.float32), phase)
                if one is not None:
                    made[name].add(one)
        return {name: stretched(made[name], calibration.tensors[name], factors)
                for name, factors in by.items()}  # fmt: skip

    # -- judging ------------------------------------------------------------------------------

    @cached_property
    def wanted(self) -> list[dict[str, Array]]:
        """What the float model says of the samples held out."""
        names = {*self.judged, *self.kinds}
        said = ({n: np.array(a) for n, a in self.watcher.run(f).items() if n in names}
                for f in self.held)  # fmt: skip
        return [self._heard(one, one) for one in said]

    def judge(self, name: str, model: Model) -> Candidate:
        shown = Shown(model, self.judged, self.threads)
        given = self.heard([shown.run(f) for f in self.held])
        return Candidate.of(name, self.wanted, given, self.judged, self.kinds)

    def heard(self, given: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Of the samples held out, what a softmax makes something of: a range that leaves out
        scores far below the largest (see SOFTMAX_REACH) does no harm, and is not to be blamed."""
        return [self._heard(g, w) for g, w in zip(given, self.wanted, strict=True)]

    def _heard(self, given: Mapping[str, Array], wanted: Mapping[str, Array]) -> dict[str, Array]:
        return {n: np.maximum(a, wanted[n].max(axis=-1, keepdims=True) - SOFTMAX_REACH / 2)
                if n in self.softened else a for n, a in given.items()}  # fmt: skip


def judged(tensor: Tensor) -> Tensor:
    """What a quantised model is judged by: an output, or what its softmax reads. Probabilities near
    0 and 1 hide errors that the next picture shows."""
    made = tensor.producer
    if made is not None and made.name in ("SOFTMAX", "LOGISTIC", "LOG_SOFTMAX"):
        source = made.inputs[0]
        if source is not None and not source.is_constant:
            return source
    return tensor


class Shown:
    """Runs a copy of a quantised model that shows these tensors too, as reals, under the names they
    have in the float model; all of them if no names are given."""

    # Nothing of it comes again: the cache is for models that users run.
    delegates: ClassVar[Sequence[str | Delegate]] = (CpuDelegate(cache=False), "reference")

    def __init__(self, model: Model, names: Sequence[str] | None, threads: int) -> None:
        copy = model.copy()
        graph = copy.main
        # Weights that are expanded are folded into their readers, unless they are to be seen.
        made = dict.fromkeys(t for op in graph.ops for t in op.outputs
                             if not all(i is None or i.is_constant for i in op.inputs))  # fmt: skip
        # An output's own name is the outer world's; the codes behind it come first.
        inner = [t for t in made if names is None or own_name(t.name) in names]
        graph.outputs, copy.signatures = list(dict.fromkeys([*inner, *graph.outputs])), []
        self.tensors = {t.name: t for t in graph.outputs}
        self.inputs = {t.name: t for t in graph.inputs}
        self.session = Session(copy, self.delegates, threads)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self.session.reset_variables()  # as in calibration: each sample by itself
        outputs = self.session.run(coded(self.inputs, feeds))
        found: dict[str, Array] = {}
        for name, tensor in self.tensors.items():
            if own_name(name) not in found or name == own_name(name):
                found[own_name(name)] = np.array(reals(outputs[name], tensor))
        return found


def coded(inputs: Mapping[str, Tensor], feeds: Mapping[str, Array]) -> dict[str, Array]:
    return {n: a if a.dtype == inputs[n].dtype.numpy else quantize_array(a, inputs[n])
            for n, a in feeds.items()}  # fmt: skip


def as_codes(model: Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """A float model's sample as the quantised one takes it."""
    return coded({t.name: t for t in model.main.inputs}, feeds)


def _correcting(graph: Graph) -> int:
    """How many samples the corrections can look at."""
    largest = max((math.prod(t.shape) for op in graph.ops for t in op.outputs), default=1)
    return min(max(CORRECTING_BYTES // max(ALIVE * largest, 1), LEAST_CORRECTING), CORRECTING)


def _each(visits: Sequence[Visit]) -> Visit:
    def visit(op: Op, walk: Walk) -> None:
        for one in visits:
            one(op, walk)

    return visit


def _alike(feeds: Sequence[dict[str, Array]]) -> list[dict[str, Array]]:
    """Those with the shapes of the first: means are taken over them."""
    shapes = [{n: a.shape for n, a in f.items()} for f in feeds]
    return [f for f, s in zip(feeds, shapes, strict=True) if s == shapes[0]]


class _Least:
    """The few samples with the least names."""

    def __init__(self, most: int) -> None:
        self.most, self.items = most, dict[str, dict[str, Array]]()

    def add(self, name: str, feeds: dict[str, Array]) -> None:
        if len(self.items) == self.most and name > max(self.items):
            return
        self.items[name] = {n: np.array(a) for n, a in feeds.items()}
        if len(self.items) > self.most:
            del self.items[max(self.items)]

    def sorted(self) -> list[dict[str, Array]]:
        return [self.items[name] for name in sorted(self.items)]


def _of_signatures(data: Data, model: Model) -> Iterable[Sample]:
    """The samples of the main graph's signatures."""
    if not isinstance(data, Mapping):
        return data
    known = {s.key: s for s in model.signatures}
    for key in data:
        if key not in known:
            raise InputError(f"there is no signature '{key}'", where="calibration data",
                             fix=f"the signatures: {', '.join(known) or 'none'}; arrays by input "
                             "name go into a list of samples")  # fmt: skip
    return _chained(part for key, part in data.items() if known[key].graph is model.main)


def _others(data: Data | None, model: Model) -> dict[str, Iterable[Sample]]:
    """The samples of signatures that run graphs of their own."""
    if not isinstance(data, Mapping):
        return {}
    return {key: part for key, part in data.items() if model.signature(key).graph is not model.main}


def _chained(parts: Iterable[Iterable[Sample]]) -> Iterator[Sample]:
    for part in parts:
        yield from part
