"""`diff`: does the test still give the reference's answers? Outputs and latency of two settings of
one model, or of two models of one network; on request layer by layer, or down to the ops to blame.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, SanderlingError
from ...format import load
from ...ir import Array, Model, Shape, Tensor
from ...measure.benchmark_model.flags import Values
from ...measure.benchmark_model.providers import carried, session_arguments
from ...measure.engines import check_engines, import_engine, job_for, load_engine
from ...measure.record import Setting
from ...measure.sample_statistics import Summary, summarised
from ...runtime.coverage import idle_delegates, ops_by_delegate
from ...runtime.delegate import PlainDelegate
from ...runtime.inputs import Picture, is_quantized
from ...runtime.partition import has_state
from ...runtime.registry import find_delegate
from ...runtime.session import Session
from ..error_measures import ErrorLimits, Errors, Tally, TopTally
from ..images.preprocess import Pipeline
from ..output_kinds import OutputKind, read_kinds
from ..output_kinds import output_kind as kind_of
from ..setting_delegates import as_computed, delegates_of
from .bisection import Answers, Bisection, bisect_delegate, bisect_layers
from .diff_inputs import Couples, FeedSource, as_real, comparable, couple, input_names, source
from .layer_diff import LayerComparison, LayerDiffs, Progress, compare_layers, own_couples
from .op_by_op import OpByOpRunner

SCHEMA = "sanderling.diff/1"
SIDES = ("reference", "test")
LAYER_RUNS, BISECT_RUNS = 5, 3
# What is right where the user states no limit, for the search.
RIGHT_FLOAT, RIGHT_QUANTISED = ErrorLimits(max_relative=1e-3), ErrorLimits(max_relative=0.05)
ENGINES_HERE = ("sanderling", "litert", "openvino")


@dataclass
class OutputDiff:
    """One output. raw: in units of the integers, where both sides have the same type and
    parameters; top: by k, the share of the best classes that are the same, which means something
    only of scores and masks (see `kind`)."""

    index: int
    name: str
    test_name: str
    type: str
    test_type: str
    real: Errors
    raw: Errors | None
    top: dict[int, float]
    kind: OutputKind

    @property
    def title(self) -> str:
        return f"output {self.index} '{self.name}'"

    @property
    def guide(self) -> Errors:
        """The figures of the guide's tool: raw values where they can be compared."""
        return self.raw or self.real


@dataclass
class Diff:
    """The result of `diff`. `failed` holds a sentence for each limit that does not hold."""

    reference: dict[str, Any]
    test: dict[str, Any]
    runs: int
    inputs: str
    latency: tuple[Summary, Summary]  # seconds
    outputs: list[OutputDiff]
    limits: ErrorLimits
    failed: list[str]
    layers: LayerDiffs | None = None
    bisection: Bisection | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.failed

    def guide_lines(self) -> list[str]:
        """What the guide's tool prints, letter by letter."""
        lines = [f"Num evaluation runs: {self.runs}"]
        for title, found in zip(("Reference", "Test"), self.latency, strict=True):
            lines.append(
                f"{title} run latency: avg={found.mean * 1e6:g}(us), "
                f"std_dev={int(found.std * 1e6)}(us)"
            )
        return lines + [
            f"OutputDiff[{o.index}]: avg_error={o.guide.avg_error:g}, std_dev={o.guide.std_dev:g}"
            for o in self.outputs
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "reference": self.reference,
            "test": self.test,
            "runs": self.runs,
            "inputs": self.inputs,
            "latency": dict(zip(SIDES, (s.to_json() for s in self.latency), strict=True)),
            "outputs": [asdict(o) for o in self.outputs],
            "limits": self.limits.given(),
            "ok": self.ok,
            "failed": self.failed,
            "layers": self.layers and self.layers.to_json(),
            "bisect": self.bisection and self.bisection.to_json(),
            "notes": self.notes,
        }


class DiffInterrupted(KeyboardInterrupt):
    """Ctrl-C while layers were compared or ops searched: `found` is what was done until then."""

    def __init__(self, found: Diff) -> None:
        super().__init__("interrupted")
        self.found = found


def diff(
    a: str | Path | Model,
    b: str | Path | Model | None = None,
    *,
    delegate_a: str | PlainDelegate | Sequence[str | PlainDelegate] = (),
    delegate_b: str | PlainDelegate | Sequence[str | PlainDelegate] = (),
    engine_a: str = "sanderling",
    engine_b: str = "sanderling",
    threads_a: int = 1,
    threads_b: int = 1,
    precision_a: str = "f32",
    precision_b: str = "f32",
    flags_b: Mapping[str, Any] | None = None,
    runs: int | None = None,
    seed: int = 0,
    data: str | Path | Array | Mapping[str, Array] | None = None,
    picture: Picture | Pipeline | None = None,
    shapes: Mapping[str, Shape] | None = None,
    output_kind: str | Mapping[str, str] | None = None,
    limits: ErrorLimits | None = None,
    per_tensor: bool = False,
    bisect: bool = False,
    layer_runs: int | None = None,
    bisect_runs: int | None = None,
    progress: Progress | None = None,
    **more: float | None,
) -> Diff:
    """Compare a test (b) with a reference (a): two models, or two settings of one.

    Without b, or where b is a, one model is compared at two settings; if those are the same too,
    the reference runs on the delegate `reference`, the definition of every operator. data: a file,
    a folder, an array, or arrays by input name; default are `runs` (50) random inputs. picture:
    how pictures become inputs, simply or as a preset of `load_pipeline` has it. shapes: of inputs,
    by name, for open dimensions. output_kind: what outputs are (see evaluate.output_kinds), for all
    or by name, where the model does not tell. flags_b: of TensorFlow Lite's tools, about the test's
    partitions and delegates (first_delegate_node_index=3). Limits are given as `limits` or by name:
    max_error=..., min_cosine=...
    """
    show = progress or (lambda what, done, total: None)
    wanted = limits or _limits(more)
    models = _models(a, b)
    one = models[0] is models[1]
    settings = (
        _setting(engine_a, delegate_a, threads_a, precision_a),
        _setting(engine_b, delegate_b, threads_b, precision_b, flags_b),
    )
    if one and not delegate_a and _runs_alike(*settings):
        settings = (_setting("sanderling", ("reference",), 1, "f32"), settings[1])
    settings = (as_computed(settings[0]), as_computed(settings[1]))
    inputs, outputs = (couple(*models, what) for what in ("inputs", "outputs"))
    values = source(inputs, data, runs, seed, picture, input_names(models[0]), shapes)
    kinds = read_kinds(output_kind, [a.name for a, _ in outputs])
    sides = [DiffSide(m, s, t) for m, s, t in zip(models, settings, SIDES, strict=True)]
    sides[1].keep = (layer_runs or LAYER_RUNS) if per_tensor else 0
    latency, found, badness = _measure(sides, values, outputs, kinds, show)
    failed = [s for o in found for s in wanted.broken(o.title, o.real, o.raw, o.top)]
    reference, test = (side.describe() for side in sides)
    idle = idle_lines(reference, test)
    made = Diff(
        reference,
        test,
        values.count,
        values.text,
        latency,
        found,
        wanted,
        [*failed, *(idle if wanted.given() else [])],
        notes=[*idle, *_strange(found), *_unjudged(found, wanted)],
    )
    if per_tensor or bisect:
        try:
            close = Closer(made, models, settings, values, inputs, outputs, show)
            if per_tensor:
                close.compare(sides[1].kept)
            if bisect:
                close.search(badness, bisect_runs or BISECT_RUNS)
        except KeyboardInterrupt as error:
            raise DiffInterrupted(made) from error
    return made


def _runs_alike(a: Setting, b: Setting) -> bool:
    """Return whether both settings are Sanderling's and run a model alike."""
    plain = replace(b, delegates=() if b.delegates == ("cpu",) else b.delegates, flags=())
    return a == plain and a.engine == "sanderling"


def _limits(given: Mapping[str, float | None]) -> ErrorLimits:
    known = set(ErrorLimits.__dataclass_fields__)
    for name in given:
        if name not in known:
            raise InputError(
                f"there is no limit '{name}'",
                where="diff",
                fix=f"the limits are {', '.join(sorted(known))}",
            )
    return ErrorLimits(**given)


def _models(a: str | Path | Model, b: str | Path | Model | None) -> tuple[Model, Model]:
    first = a if isinstance(a, Model) else load(a)
    if (
        b is None
        or b is a
        or (
            not isinstance(b, Model)
            and not isinstance(a, Model)
            and Path(b).resolve() == Path(a).resolve()
        )
    ):
        return first, first
    return first, b if isinstance(b, Model) else load(b)


def _setting(
    engine: str,
    delegates: str | PlainDelegate | Sequence[str | PlainDelegate],
    threads: int,
    precision: str,
    flags: Mapping[str, Any] | None = None,
) -> Setting:
    check_engines([engine])
    if engine not in ENGINES_HERE:
        raise InputError(
            f"the engine '{engine}' does not read .tflite files",
            where="engine",
            fix=f"one of {', '.join(ENGINES_HERE)}",
        )
    chosen = [delegates] if isinstance(delegates, str | PlainDelegate) else list(delegates)
    if engine != "sanderling" and chosen:
        name = chosen[0] if isinstance(chosen[0], str) else chosen[0].name
        raise InputError(
            f"the engine '{engine}' takes no delegate",
            where=f"delegate {name}",
            fix="leave the delegate or the engine out",
        )
    import_engine(engine)
    for delegate in chosen:
        find_delegate(delegate)
    if threads < 1:
        raise InputError(f"{threads} threads run nothing", fix="give 1 or more")
    named: tuple[Any, ...] = tuple(chosen)
    return Setting(engine, threads, named, precision, flags=carried(Values(flags)))


# -- running both ---------------------------------------------------------------------------------


class DiffSide:
    """One of the two: a model at a setting, with its inputs bound."""

    def __init__(self, model: Model, setting: Setting, title: str) -> None:
        self.model, self.setting, self.title = model, setting, title
        self.seconds: list[float] = []
        self.keep = 0  # so many of the first answers are kept
        self.kept: list[list[Array]] = []
        self.note = ""
        self._kept: object = None
        self._run: Callable[[], object]
        self._answers: Callable[[], list[Array]]
        self._refresh: Callable[[], None] = lambda: None
        self._counts: Callable[[], dict[str, int]] = dict  # ops by delegate
        self._idle: Callable[[], list[str]] = list

    def describe(self) -> dict[str, Any]:
        delegates = [d if isinstance(d, str) else d.name for d in self.setting.delegates]
        return {
            "model": self.model.source or "in memory",
            "engine": self.setting.engine,
            "delegates": delegates,
            "ops_by_delegate": self._counts(),
            "idle_delegates": self._idle(),
            "threads": self.setting.threads,
            "precision": self.setting.precision,
            "note": self.note,
        }

    def load(self, feeds: Sequence[Array]) -> None:
        self.arrays = [np.array(f) for f in feeds]
        try:
            own = self.setting.engine == "sanderling"
            self._bind() if own else self._load_peer()
        except SanderlingError:
            raise
        except Exception as error:  # a peer's own
            raise InputError(
                f"the engine cannot run the model: {error}",
                where=f"{self.title} ({self.setting.engine})",
                fix="choose another engine",
            ) from error

    def _bind(self) -> None:
        setting = self.setting
        session = Session(
            self.model, delegates_of(setting), setting.threads, **session_arguments(setting.flags)
        )
        graph = self.model.main
        entry = session.entry(None)
        places = {t: i for i, t in enumerate(graph.inputs)}
        feeds = {n: self.arrays[places[t]] for n, t in entry.inputs.items()}
        self._kept = bound = session.bind(feeds)
        wanted, shapes = setting.delegates, [a.shape for a in self.arrays]
        self._counts = lambda: ops_by_delegate(session, wanted, bound.binding.plan)
        self._idle = lambda: idle_delegates(session, wanted, graph, shapes)
        names = {t: n for n, t in entry.outputs.items()}
        self._run = bound.run
        self._answers = lambda: [bound.outputs[names[t]] for t in graph.outputs]

    def _load_peer(self) -> None:
        if not self.model.source or not Path(self.model.source).is_file():
            raise InputError(
                "the model is in memory, other engines read files",
                where=self.title,
                fix="save it first: sanderling.save(model, path)",
            )
        self._kept = loaded = load_engine(job_for(self.model, self.setting, self.arrays))
        self._run, self._answers, self.note = loaded.run, loaded.answers, loaded.note
        self._refresh = loaded.refresh

    def run(self, feeds: Sequence[Array], timed: bool = True) -> dict[Tensor, Array]:
        """The outputs by the model's tensors; the next run overwrites them."""
        for own, given in zip(self.arrays, feeds, strict=True):
            np.copyto(own, given)
        self._refresh()
        begin = time.perf_counter()
        self._run()
        seconds = time.perf_counter() - begin
        answers = self._answers()
        if timed:
            self.seconds.append(seconds)
            if len(self.kept) < self.keep:
                self.kept.append([np.array(a) for a in answers])
        return dict(zip(self.model.main.outputs, answers, strict=True))


def idle_lines(*sides: Mapping[str, Any]) -> list[str]:
    """Sentences about delegates that were asked for and took no op: no limit holds for them."""
    return [
        f"{title}: {sentence}; nothing was compared on it"
        for title, side in zip(SIDES, sides, strict=True)
        for sentence in side["idle_delegates"]
    ]


@dataclass
class _OutputTallies:
    """Tallies of one output."""

    real: Tally = field(default_factory=Tally)
    raw: Tally = field(default_factory=Tally)
    top: TopTally = field(default_factory=TopTally)
    shape: Shape = ()  # of the reference's last answer

    def add(self, a: Tensor, b: Tensor, x: Array, y: Array) -> None:
        self.shape = x.shape
        reals = as_real(x, a), as_real(y, b)
        self.real.add(*reals)
        self.top.add(*reals)
        if comparable(a, b):
            self.raw.add(x, y)


Measured = tuple[tuple[Summary, Summary], list[OutputDiff], Array]


def _measure(
    sides: Sequence[DiffSide],
    values: FeedSource,
    outputs: Couples,
    kinds: Mapping[str, str],
    show: Progress,
) -> Measured:
    """Both sides on every sample, in turns; who goes first changes, so that neither always finds
    the caches as the other left them. The first sample is run once more before, untimed. Also
    tells how bad each sample is, in terms of the average."""
    tallies = [_OutputTallies() for _ in outputs]
    for index, feeds in enumerate(values.feeds()):
        show("comparing outputs", index, values.count)
        if not index:
            for side, fed in zip(sides, feeds, strict=True):
                side.load(fed)
                side.run(fed, timed=False)
        order = (0, 1) if index % 2 else (1, 0)
        answers: dict[int, dict[Tensor, Array]] = {i: sides[i].run(feeds[i]) for i in order}
        for tally, (a, b) in zip(tallies, outputs, strict=True):
            tally.add(a, b, answers[0][a], answers[1][b])
    show("comparing outputs", values.count, values.count)
    made = [
        _output(i, *pair, tally, kind_of(pair[0], kinds, tally.shape))
        for i, (pair, tally) in enumerate(zip(outputs, tallies, strict=True))
    ]
    first, second = (summarised(side.seconds) for side in sides)
    means = np.array([t.real.means for t in tallies]).reshape(len(tallies), -1)
    usual = np.nanmean(means, axis=1, keepdims=True) if np.isfinite(means).any() else 1.0
    badness = np.nan_to_num(means / np.where(usual > 0, usual, 1.0), nan=np.inf).sum(axis=0)
    return (first, second), made, badness


def _output(
    index: int, a: Tensor, b: Tensor, tally: _OutputTallies, kind: OutputKind
) -> OutputDiff:
    raw = tally.raw.errors() if is_quantized(b) and tally.raw.means else None
    return OutputDiff(
        index,
        a.name,
        b.name,
        a.type_text,
        b.type_text,
        tally.real.errors(),
        raw,
        tally.top.shares(),
        kind,
    )


def _strange(outputs: Sequence[OutputDiff]) -> Iterator[str]:
    """Return sentences about values that an average would hide, such as NaN."""
    for o in outputs:
        if o.real.nan_reference or o.real.nan_test or o.real.unlike:
            alone = o.real.nan_test > o.real.nan_reference == 0
            yield (
                f"{o.title}: of {o.real.elements} values {o.real.nan_reference} are NaN in "
                f"the reference and {o.real.nan_test} in the test; {o.real.unlike} cannot be "
                "compared and are left out of the errors"
                f"{'; NaN is made by the test alone: per_tensor shows where' if alone else ''}"
            )


def _unjudged(outputs: Sequence[OutputDiff], limits: ErrorLimits) -> Iterator[str]:
    for o in outputs:
        for what in limits.unjudged(o.real, o.raw, o.top):
            yield f"{o.title}: there is no {what} to judge, that limit says nothing of it"


# -- looking closer -------------------------------------------------------------------------------


@dataclass
class Closer:
    """What is done on request after the outputs were compared; results go into `made`."""

    made: Diff
    models: tuple[Model, Model]
    settings: tuple[Setting, Setting]
    values: FeedSource
    inputs: Couples
    outputs: Couples
    show: Progress

    @cached_property
    def comparison(self) -> LayerComparison:
        fed = self.values.at(0)
        a, b = (
            OpByOpRunner(m, s, shapes=[array.shape for array in feeds])
            for m, s, feeds in zip(self.models, self.settings, fed, strict=True)
        )
        for runner, feeds in zip((a, b), fed, strict=True):
            runner.prepare(feeds)
        return LayerComparison(
            a,
            b,
            own_couples(self.inputs, a, b, self.models, "inputs"),
            own_couples(self.outputs, a, b, self.models, "outputs"),
        )

    def compare(self, whole: Sequence[Sequence[Array]]) -> None:
        self.made.layers = compare_layers(self.comparison, self.values, whole, self.show)

    def search(self, badness: Array, runs: int) -> None:
        """On the worst samples, or on the first ones where state makes their order matter."""
        order = np.argsort(-badness, kind="stable")
        if any(has_state(op) for op in self.models[0].main.ops):
            order = np.arange(len(badness))
        samples = [self.values.at(int(i)) for i in sorted(order[:runs])]
        expected = self._expected([ours for ours, _ in samples])
        given = self.made.limits
        limits = given if given.given() else _default_limits(self.made.outputs)
        layers = self.made.layers
        guess = [r.index for r in layers.rows if r.suspect] if layers else []
        if self.models[0] is self.models[1]:
            self.made.bisection = bisect_delegate(
                self.models[1],
                *self.settings,
                samples,
                self.outputs,
                expected,
                limits,
                self.show,
                guess,
            )
        else:
            self.made.bisection = bisect_layers(
                self.comparison, samples, expected, limits, self.show, guess
            )

    def _expected(self, feeds: Sequence[list[Array]]) -> list[Answers]:
        """The reference's answers, from a fresh start as every test of the search has."""
        side = DiffSide(self.models[0], self.settings[0], SIDES[0])
        side.load(feeds[0])
        answers = (side.run(fed, timed=False) for fed in feeds)
        return [[np.array(as_real(found[a], a)) for a, _ in self.outputs] for found in answers]


def _default_limits(outputs: Sequence[OutputDiff]) -> ErrorLimits:
    floats = all(o.type[0] == "f" and o.test_type[0] == "f" for o in outputs)
    return RIGHT_FLOAT if floats else RIGHT_QUANTISED
