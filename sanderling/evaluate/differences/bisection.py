"""A minimal set of ops that must change sides for the answer to be right.

Two settings of one model: ops that must leave the test's delegates and run where the reference
runs them. Two models: layers that must be the reference's (stay float), while all others are the
test's. The set found is one-minimal: with any one op less the answer is wrong again. Where ops go
wrong independently of each other it is the smallest there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir import Array, Graph, Model, Op, Tensor
from ...measure.record import Setting
from ...runtime.delegate import Delegate, Options, PlainExecutable
from ...runtime.inputs import is_quantized
from ...runtime.registry import resolve
from ...runtime.session import Session
from ..error_measures import ErrorLimits, Tally, TopTally
from ..setting_delegates import delegates_of
from .diff_inputs import Couples, Feeds, as_real, comparable, translated
from .layer_diff import LayerComparison, Progress, first_name
from .op_by_op import RunnableOp, Values, own_graph
from .tensor_matching import FORMS

Answers = list[Array]  # as reals, one an output
Right = Callable[[frozenset[int]], bool]


@dataclass
class Bisection:
    """ops: the places in the test's graph and names of those that must change sides."""

    kind: str  # delegate, or layers
    limits: str
    candidates: int
    tests: int = 0
    runs: int = 0
    ops: list[dict[str, Any]] = field(default_factory=list)
    verdict: str = ""  # found, right already, or not these ops

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"text": str(self)}

    def __str__(self) -> str:
        side = (
            "must leave the delegate"
            if self.kind == "delegate"
            else "must be taken from the reference"
        )
        cost = f"{self.tests} tests of {self.runs} run{'s' * (self.runs != 1)}"
        if self.verdict == "right already":
            return f"the answer is right already ({self.limits}): nothing to bisect"
        if self.verdict == "not these ops":
            return (
                f"the answer is wrong even if all {self.candidates} ops that could change "
                f"sides do ({self.limits}): the error is not in them"
            )
        named = ", ".join(
            f"{o['op']} '{first_name(o['name'])}' (op {o['index']})" for o in self.ops
        )
        count = f"{len(self.ops)} of {self.candidates} ops"
        return f"{count} {side} for the answer to be right ({self.limits}; {cost}): {named}"


def minimal(items: Sequence[int], right: Right) -> list[int]:
    """A smallest part of items for which right holds; it holds for all of them and not for none.

    Each round halves its way to the shortest beginning of what is left that is enough with what
    was found: its last item is needed. k items of n take about k log2(n) + 2k tests; were they
    tried in pieces, as delta debugging does, it would be several times that.
    """
    found: list[int] = []
    rest = list(items)
    while not right(frozenset(found)):
        short, enough = 0, len(rest)
        while enough - short > 1:
            middle = (short + enough) // 2
            if right(frozenset((*found, *rest[:middle]))):
                enough = middle
            else:
                short = middle
        found.append(rest[enough - 1])
        rest = rest[: enough - 1]
    for item in list(found):  # one that came early may not be needed beside those that came later
        if right(frozenset(found) - {item}):
            found.remove(item)
    return sorted(found)


def _unit(a: Tensor, b: Tensor) -> float | None:
    """The real that one raw unit stands for, where both have the same."""
    both = is_quantized(b) and comparable(a, b)
    return float(b.quant.scale[0]) if both and b.quant is not None else None


class Judge:
    """Compares answers with the reference's and says whether they keep the limits."""

    def __init__(self, expected: Sequence[Answers], outputs: Couples, limits: ErrorLimits) -> None:
        self.expected, self.limits = expected, limits
        self.names = [b.name for _, b in outputs]
        self.scales = [_unit(a, b) for a, b in outputs]

    def right(self, answer: Callable[[int], Answers]) -> bool:
        real = [Tally() for _ in self.names]
        raw = [Tally() for _ in self.names]
        top = [TopTally() for _ in self.names]
        for run, expected in enumerate(self.expected):
            for place, (a, b) in enumerate(zip(expected, answer(run), strict=True)):
                real[place].add(a, b)
                top[place].add(a, b)
                scale = self.scales[place]
                if scale and a.shape == b.shape:
                    raw[place].add(np.rint(a / scale), np.rint(b / scale))
        return not any(
            sentence
            for name, r, w, t in zip(self.names, real, raw, top, strict=True)
            for sentence in self.limits.broken(
                name, r.errors(), w.errors() if w.means else None, t.shares()
            )
        )


def _search(
    found: Bisection,
    graph: Graph,
    candidates: Sequence[int],
    right: Right,
    progress: Progress,
    guess: Sequence[int] = (),
) -> Bisection:
    """guess: ops that are suspect; where they are enough the search begins with them."""
    known: dict[frozenset[int], bool] = {}
    guessed = int(2 * np.log2(len(candidates) + 1)) + 4  # tests that two ops to blame would take

    def asked(chosen: frozenset[int]) -> bool:
        if chosen not in known:
            progress("bisecting", found.tests, max(found.tests + 1, guessed))
            found.tests += 1
            known[chosen] = right(chosen)
        return known[chosen]

    start = sorted(set(guess) & set(candidates))
    if asked(frozenset()):
        found.verdict = "right already"
    elif start and asked(frozenset(start)):
        found.verdict = "found"
    elif asked(frozenset(candidates)):
        found.verdict, start = "found", list(candidates)
    else:
        found.verdict = "not these ops"
    if found.verdict == "found":
        numbered = {op.debug_index: op for op in graph.ops}
        found.ops = [_named(numbered[i]) for i in minimal(start, asked)]
    return found


def _named(op: Op) -> dict[str, Any]:
    return {
        "index": op.debug_index,
        "op": op.name,
        "name": op.outputs[0].name if op.outputs else "",
    }


# -- two settings of one model --------------------------------------------------------------------


class Without(Delegate):
    """A delegate that refuses some ops: those whose `debug_index` is held back from it."""

    def __init__(self, inner: Delegate, held: frozenset[int]) -> None:
        self.inner, self.held, self.name = inner, held, inner.name

    def refuses(self, op: Op) -> str | None:
        if op.debug_index in self.held:
            return "it is held back by the search"
        return self.inner.refuses(op)

    def compile(self, part: Graph, options: Options) -> PlainExecutable:
        return self.inner.compile(part, options)


def bisect_delegate(
    model: Model,
    a: Setting,
    b: Setting,
    samples: Sequence[Feeds],
    outputs: Couples,
    expected: Sequence[Answers],
    limits: ErrorLimits,
    progress: Progress,
    guess: Sequence[int] = (),
) -> Bisection:
    """Which ops must leave b's delegates, and run on a's, for the answers to be as expected."""
    tried, trusted = delegates_of(b), delegates_of(a)
    judge = Judge(expected, outputs, limits)
    feeds = [theirs for _, theirs in samples]
    own = own_graph(model, [f.shape for f in feeds[0]])
    candidates = _taken(own, tried, b.threads, [f.shape for f in feeds[0]])
    if not candidates:
        names = ", ".join(d.name for d in tried)
        raise InputError(
            f"{names} runs none of the model's ops",
            where="--bisect",
            fix="see why: sanderling inspect MODEL --delegate NAME",
        )

    def right(held: frozenset[int]) -> bool:
        mixed = [*(Without(d, held) for d in tried), *trusted]
        session = Session(own, mixed, b.threads)
        graph = own.main

        def answer(run: int) -> Answers:
            named = dict(zip(session.entry(None).inputs, feeds[run], strict=True))
            made = list(session.run(named).values())
            return [as_real(x, t) for x, t in zip(made, graph.outputs, strict=True)]

        return judge.right(answer)

    found = Bisection("delegate", str(limits), len(candidates), runs=len(expected))
    return _search(found, own.main, candidates, right, progress, guess)


def _taken(
    model: Model, delegates: Sequence[Delegate], threads: int, shapes: Sequence[tuple[int, ...]]
) -> list[int]:
    """Return the places of the ops that a session would run on one of these delegates."""
    watched = [Without(d, frozenset()) for d in delegates]
    plan = Session(model, resolve(watched), threads).plan(model.main, shapes)
    return sorted(
        {
            op.debug_index
            for part in plan.partition.parts
            if part.delegate in watched
            for op in part.ops
            if op.debug_index >= 0
        }
    )


# -- two models -----------------------------------------------------------------------------------


class Mixed:
    """The test's model with some layers computed by the reference's: a chosen op's outputs come
    from the reference, fed with what the mixed run has so far. Neighbouring chosen layers pass
    reals to each other; the test's ops get them in their own types."""

    def __init__(self, found: LayerComparison) -> None:
        self.found, self.a, self.b = found, found.a, found.b
        self.partner = {p.a: p.b for p in reversed(found.pairs)} | dict(found.inputs)
        self.makers = dict(self.a.producers())

    @property
    def candidates(self) -> list[int]:
        return [
            n.op.debug_index
            for n in self.b.nodes
            if n.op.name not in FORMS and all(t in self.found.of_b for t in n.outputs)
        ]

    def run(self, feeds: Feeds, chosen: frozenset[int]) -> Answers:
        theirs = self.b.start(feeds[1])
        ours = self.a.start(feeds[0])
        taken: set[Tensor] = set()
        for node in self.b.nodes:
            if node.op.debug_index not in chosen:
                theirs.update(zip(node.outputs, self.b.step(node, theirs), strict=True))
                continue
            taken.update(node.outputs)
            for tensor in node.outputs:
                pair = self.found.of_b[tensor]
                value = self._ours(pair.a, ours, theirs, taken)
                theirs[tensor] = np.asarray(translated(value, pair.a, tensor), order="C")
        return [self._answer(a, b, ours, theirs, taken) for a, b in self.found.outputs]

    def _ours(
        self, tensor: Tensor, ours: Values, theirs: Mapping[Tensor, Array], taken: set[Tensor]
    ) -> Array:
        """The reference's value of a tensor: its own where the layer was chosen, or where the test
        has no counterpart; else the test's."""
        waiting = [tensor]
        while waiting:
            wanted = waiting[-1]
            twin = self.partner.get(wanted)
            if wanted in ours:
                waiting.pop()
            elif twin is not None and twin not in taken and twin in theirs:
                value = translated(theirs[twin], twin, wanted)
                ours[wanted] = np.asarray(value, order="C")
            else:
                self._compute(self.makers[wanted], ours, waiting)
        return ours[tensor]

    def _compute(self, node: RunnableOp, ours: Values, waiting: list[Tensor]) -> None:
        missing = [t for t in node.inputs if t not in ours]
        if missing:
            waiting.extend(missing)
        else:
            ours.update(zip(node.outputs, self.a.step(node, ours), strict=True))

    def _answer(
        self, a: Tensor, b: Tensor, ours: Values, theirs: Values, taken: set[Tensor]
    ) -> Array:
        """A chosen last layer answers in reals, without the test's rounding."""
        source = b
        while source.producer is not None and source.producer.name in FORMS:
            source = source.producer.inputs[0] or source
        if source in taken and a in ours:
            return as_real(ours[a], a)
        return as_real(self.b.value(b, theirs), b)


def bisect_layers(
    found: LayerComparison,
    samples: Sequence[Feeds],
    expected: Sequence[Answers],
    limits: ErrorLimits,
    progress: Progress,
    guess: Sequence[int] = (),
) -> Bisection:
    """Which layers of the test must be the reference's for the answers to be as expected."""
    for runner in (found.a, found.b):
        if runner.has_state:
            raise InputError(
                "the model keeps state between runs",
                where="bisect",
                fix="use per_tensor, which shows where the error enters",
            )
    mixed = Mixed(found)
    judge = Judge(expected, found.outputs, limits)

    def right(chosen: frozenset[int]) -> bool:
        return judge.right(lambda run: mixed.run(samples[run], chosen))

    bisection = Bisection("layers", str(limits), len(mixed.candidates), runs=len(expected))
    return _search(bisection, found.b.graph, mixed.candidates, right, progress, guess)
