"""`rewrite`: what an accelerator refuses is rewritten until it is taken, or nothing helps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import SanderlingError
from ..format import load
from ..ir import Graph, Model, Op, Tensor
from ..ir.graph import reachable
from ..ir.rewrite import rewrite as apply_rules
from ..optimize.correcting.calibrated import Data
from ..passes.common import has_effects
from ..passes.simplify import CHAIN_RULES, IDENTITY_RULES, remove_dead
from ..rules import judge
from ..rules.judgement import Verdict
from .steps import Rewrite
from .table import REWRITES
from .whole_model import FLOAT, WholeRewrite, as_int8, entries, if_int8
from .whole_model import REWRITES as WHOLE

SCHEMA = "sanderling.rewrite/1"
DEPTH = 4  # rewrites on top of each other, until the ops that the first one made are taken
QUICK = 1  # of them where a rewrite is only named
# What rewrites leave behind: chains of views and views that change nothing.
TIDY = tuple(
    r
    for r in (*IDENTITY_RULES, *CHAIN_RULES)
    if r.name in ("identity RESHAPE", "identity TRANSPOSE", "views merged")
)
# Refusals that follow from those of other ops.
CONSEQUENCES = ("partition", "graph")
INT8 = "int8 model"
ENOUGH = 0.5  # another type for all values is worth it if it mends this share of the refused ops


@dataclass(frozen=True)
class Change:
    """An op that was refused, and what was done about it."""

    op: str
    reason: str
    rewrites: list[str]
    does: str


@dataclass(frozen=True)
class Refusal:
    """An op that is refused. is_own: by a rule about it, not because of other ops."""

    op: str
    reason: str
    source: str
    is_own: bool


@dataclass(frozen=True)
class BorderChange:
    """An input or output that has another type or other sizes than before."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"'{self.name}' is {self.after} in place of {self.before}"


@dataclass
class Rewritten:
    """The result of `rewrite`. before, after: ops that are refused; ops: how many there are.

    is_exact: the numbers that inputs and outputs stand for are the same but for rounding. border:
    those that hold them in another type, codes for example, or take other sizes.
    """

    model: Model
    accelerator: str
    ops: tuple[int, int]
    before: list[Refusal]
    after: list[Refusal]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_exact: bool = True
    border: list[BorderChange] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Every op is taken."""
        return not self.after

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "for": self.accelerator,
            "source": self.model.source,
            "ops": dict(zip(("before", "after"), self.ops, strict=True)),
            "refused_before": [asdict(r) for r in self.before],
            "refused_after": [asdict(r) for r in self.after],
            "changes": [asdict(c) for c in self.changes],
            "exact": self.is_exact,
            "border": [asdict(b) for b in self.border],
            "notes": self.notes,
        }


def rewrite(
    model: Model | str | os.PathLike[str],
    for_: str,
    data: Data | None = None,
    progress: Callable[[str, int, int], object] = lambda what, done, total: None,
) -> Rewritten:
    """Make a model acceptable to an accelerator ("gpu", "edgetpu", "nnapi:29"; see rules.names()).

    Only what is refused is rewritten, and a rewrite is kept only if fewer ops are refused with it.
    data: samples for a model that has to be quantised; without them ranges come from noise. The
    given model is not touched. `compare_answers` says how far the answers are off.
    """
    source = model if isinstance(model, Model) else load(model)
    return _Rewriting(source.copy(), for_, data, progress).run()


def rewrites_to_try(model: Model, for_: str) -> list[str]:
    """Name the rewrites that mend something. Each kind of refusal is tried once, and nothing is
    measured or kept, so that this is quick; `rewrite` does the work."""
    return _Rewriting(model.copy(), for_, None, lambda *_: None).helpful()


Seen = Callable[[Graph], Graph]
Score = tuple[int, int]


class _Rewriting:
    """One model on its way. `seen`: what the judge is shown in place of a graph."""

    def __init__(
        self, model: Model, for_: str, data: Data | None, progress: Callable[..., object]
    ) -> None:
        self.model, self.for_, self.data, self.show = model, for_, data, progress
        self.seen: Seen = lambda graph: graph
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.is_exact = True

    def run(self) -> Rewritten:
        given, before = self.model, self._refusals(self.model)
        if before:
            self._sizes_and_border()
            self._ops()
            self._types()
        after = self._refusals(self.model)
        counts = _op_count(given), _op_count(self.model)
        if len(after) > len(before):  # taken ops that stand among refused ones run on the CPU too
            note = "rewrites of some ops make more ops run on the CPU in all: none is kept"
            return Rewritten(given, self.for_, (counts[0],) * 2, before, before, notes=[note])
        self.model.graphs = _still_called(self.model)
        facts = self.changes, self.notes, self.is_exact, _border(given, self.model)
        return Rewritten(self.model, self.for_, counts, before, after, *facts)

    def helpful(self) -> list[str]:
        """The names of rewrites that would be kept: of the model, then of ops, with codes for
        values if that is what the accelerator wants."""
        refused = self._score(self.model)
        found = [row.name for row in WHOLE if self._helps(row)]
        self.seen = if_int8
        if FLOAT.name not in found and _is_better(refused, self._score(self.model), ENOUGH):
            found.append(INT8)
        else:
            self.seen = lambda graph: graph
        return list(dict.fromkeys(found + self._helpful_to_ops()))

    def _helps(self, row: WholeRewrite) -> bool:
        kept = self.model
        is_kept = self._try_whole(row, ENOUGH if row is FLOAT else 0.0)
        self.model = kept
        return is_kept

    def _helpful_to_ops(self) -> list[str]:
        base, found = self._score(self.model), list[Rewrite]()
        for number, graph in enumerate(entries(self.model)):
            pairs = _candidates(graph, self._verdicts(graph))
            kinds = {(v.op.name, v.rule and v.rule.says): place for place, v in reversed(pairs)}
            for place in reversed(kinds.values()):
                made = self._mended(self.model, number, place, base, QUICK)
                found += made[1] if made else []
        return [row.name for row in found]

    # -- the judge --------------------------------------------------------------------------

    def _verdicts(self, graph: Graph) -> list[Verdict]:
        return judge(self.seen(graph), self.for_).verdicts

    def _refusals(self, model: Model) -> list[Refusal]:
        return [
            _refusal(op, verdict)
            for graph in entries(model)
            for op, verdict in zip(graph.ops, self._verdicts(graph), strict=True)
            if not verdict.is_taken
        ]

    def _score(self, model: Model) -> Score:
        """(refused by a rule of their own, all that are refused): less is better."""
        found = self._refusals(model)
        return sum(r.is_own for r in found), len(found)

    # -- whole models -----------------------------------------------------------------------

    def _sizes_and_border(self) -> None:
        for row in WHOLE:
            if row is not FLOAT:
                self._try_whole(row)

    def _try_whole(self, row: WholeRewrite, share: float = 0.0) -> bool:
        """Keep the rewrite if fewer ops are refused, by this share of them at least."""
        trial = self.model.copy()
        said = row.write(trial)
        if said is None:
            return False
        if not _is_better(self._score(self.model), self._score(trial), share):
            return False
        reasons = sorted({r.reason for r in self._refusals(self.model)})
        self.model = trial
        self.notes.append(said)
        self.changes.append(Change("the model", "; ".join(reasons[:3]), [row.name], row.does))
        self.is_exact &= row.exact
        return True

    def _types(self) -> None:
        """Another type for all values, where that is what the accelerator wants."""
        if self._score(self.model) == (0, 0):
            return
        if self._try_whole(FLOAT, ENOUGH):
            self._ops()
        else:
            self._quantise()

    def _quantise(self) -> None:
        """Rewrite as if values were codes, while they are floats and exact; then quantise."""
        refused = self._score(self.model)
        kept = self.model, list(self.changes)
        self.seen = if_int8
        mended = _is_better(refused, self._score(self.model), 0.0)
        if mended:
            self._ops()
            mended = _is_better(refused, self._score(self.model), ENOUGH)
        self.seen = lambda graph: graph
        if not mended or not self._to_int8(refused):
            self.model, self.changes = kept

    def _to_int8(self, refused: Score) -> bool:
        try:
            trial, said = as_int8(self.model, self.data)
        except SanderlingError as error:
            self.notes.append(
                f"int8 would mend most of it, but the model is not quantised: {error}"
            )
            return False
        if not _is_better(refused, self._score(trial), ENOUGH):
            return False
        reasons = sorted({r.reason for r in self._refusals(self.model) if r.is_own})
        does = "int8 values and weights, codes at the border"
        self.changes.append(Change("the model", "; ".join(reasons[:3]), [INT8], does))
        self.model, self.is_exact = trial, False
        self.notes += said
        self._ops()
        return True

    # -- ops --------------------------------------------------------------------------------

    def _ops(self) -> None:
        """Mend op after op until nothing that is left can be mended."""
        hopeless: set[str] = set()
        while found := self._next_mended(hopeless):
            self.model, change = found
            self.changes.append(change)

    def _next_mended(self, hopeless: set[str]) -> tuple[Model, Change] | None:
        base = self._score(self.model)
        for number, graph in enumerate(entries(self.model)):
            for place, verdict in _candidates(graph, self._verdicts(graph)):
                op = graph.ops[place]
                if op.where in hopeless:
                    continue
                self.show("rewriting ops", place, len(graph.ops))
                if made := self._mended(self.model, number, place, base, DEPTH):
                    model, rows = made
                    names = list(dict.fromkeys(r.name for r in rows))
                    return model, Change(op.where, verdict.reason or "", names, rows[0].does)
                hopeless.add(op.where)
        return None

    def _mended(
        self, model: Model, number: int, place: int, base: Score, depth: int
    ) -> tuple[Model, list[Rewrite]] | None:
        """The model with the op rewritten by what mends it best; None if nothing does."""
        best: tuple[Score, Model, list[Rewrite]] | None = None
        name = entries(model)[number].ops[place].name
        for row in REWRITES:
            if name not in row.pattern.names:
                continue
            trial = model.copy()
            if (made := self._attempt(trial, number, place, row, depth)) is None:
                continue
            trial, rows = made
            score = self._score(trial)
            if score[0] < base[0] and (best is None or score < best[0]):
                best = score, trial, rows
        return best and best[1:]

    def _attempt(
        self, trial: Model, number: int, place: int, row: Rewrite, depth: int
    ) -> tuple[Model, list[Rewrite]] | None:
        """Apply one rewrite, then mend the ops that it made, if they are refused in turn."""
        graph = entries(trial)[number]
        before = set(graph.ops)
        if row.apply(graph, graph.ops[place]) is None:
            return None
        tidy(graph)
        rows, tried = [row], set[str]()
        fresh = {op.where for op in graph.ops if op not in before}
        while depth and (at := self._refused_place(trial, number, fresh - tried)) is not None:
            where = entries(trial)[number].ops[at].where
            tried.add(where)
            known = {op.where for op in entries(trial)[number].ops}
            if made := self._mended(trial, number, at, self._score(trial), depth - 1):
                trial, more = made
                rows += more
                fresh |= {op.where for op in entries(trial)[number].ops} - known
        return trial, rows

    def _refused_place(self, model: Model, number: int, names: set[str]) -> int | None:
        graph = entries(model)[number]
        verdicts = self._verdicts(graph)
        places = (i for i, v in enumerate(verdicts) if _is_own(v) and graph.ops[i].where in names)
        return next(places, None)


def _is_better(before: Score, after: Score, share: float) -> bool:
    """Say whether this share of the refusals is gone, and one at least. If no op is refused by
    itself, the graph is as a whole."""
    place = 0 if before[0] else 1
    return after[place] < before[place] and after[place] <= (1 - share) * before[place]


def _candidates(graph: Graph, verdicts: Sequence[Verdict]) -> list[tuple[int, Verdict]]:
    """The places of ops to rewrite: those that are refused, then their neighbours that run on the
    CPU too (a tensor of five dimensions goes with the op that made it)."""
    own = [op for op, v in zip(graph.ops, verdicts, strict=True) if _is_own(v)]
    near = {t for op in own for t in (*op.inputs, *op.outputs) if t is not None}
    pairs = list(enumerate(verdicts))
    beside = [
        (place, v)
        for place, v in pairs
        if not v.is_taken and not _is_own(v) and near.intersection(_computed(graph.ops[place]))
    ]
    return [(place, v) for place, v in pairs if _is_own(v)] + beside


def _computed(op: Op) -> list[Tensor]:
    return [t for t in (*op.inputs, *op.outputs) if t is not None and not t.is_constant]


def tidy(graph: Graph) -> None:
    apply_rules(graph, TIDY, has_side_effects=has_effects)
    remove_dead(graph)


def _refusal(op: Op, verdict: Verdict) -> Refusal:
    return Refusal(op.where, verdict.reason or "", verdict.source, _is_own(verdict))


def _is_own(verdict: Verdict) -> bool:
    rule = verdict.rule
    return not verdict.is_taken and (rule is None or rule.kind not in CONSEQUENCES)


def _border(before: Model, after: Model) -> list[BorderChange]:
    pairs = [
        (a, b)
        for old, new in zip(entries(before), entries(after), strict=True)
        for a, b in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True)
    ]
    return [
        BorderChange(b.name, a.type_text, b.type_text)
        for a, b in pairs
        if a.type_text != b.type_text
    ]


def _op_count(model: Model) -> int:
    return sum(len(graph.ops) for graph in entries(model))


def _still_called(model: Model) -> list[Graph]:
    """The graphs that are left in their order: what was called may be inlined now."""
    called = set(reachable(entries(model)))
    return [graph for graph in model.graphs if graph in called]
