"""Where the time of a run on our own delegates goes: ticks counted inside native code, and the
clock around what Python calls."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from ..delegates.cpu.delegate import CpuDelegate
from ..delegates.cpu.targets import problem
from ..delegates.reference import ReferenceExecutable
from ..errors import FallbackWarning, SanderlingError
from ..ir import Array, DType, Graph, Model, Op
from ..ops import cost
from ..ops.base import DATA_ERRORS, Cost
from ..ops.execute import evaluate, run_ops
from ..runtime.delegate import Delegate
from ..runtime.plan import Plan, Step
from ..runtime.session import Session
from .record import Setting
from .roofline import roofline
from .statistics import Floats

WARM = 2  # runs before what counts
CALL, LOST = "call into native code", "not accounted for"
# Ops that touch as many elements of their table as they return.
LOOKUPS = {"EMBEDDING_LOOKUP", "GATHER", "GATHER_ND"}


@dataclass
class Row:
    """A step, or an op where ops are run one by one. Sizes are in bytes, times in seconds."""

    type: str
    name: str
    delegate: str
    kernel: str
    part: int = 0
    nodes: list[int] = field(default_factory=list)  # places in the file's graph
    helps: int | None = None  # the row that it prepares for, where it stands for no op of its own
    macs: int = 0
    weights: int = 0
    read: int = 0
    written: int = 0
    kind: str = ""  # the type that it multiplies in
    first: float = 0.0
    times: list[float] = field(default_factory=list)  # by run: the slowest worker's
    idle: list[float] = field(default_factory=list)  # by run: what the others waited, a worker
    called: float = 1.0


@dataclass
class Taken:
    """What an engine told. A row's times and `others` (what is no step: calls, barriers, gaps)
    belong to the runs of `whole`, one by one."""

    rows: list[Row]
    whole: list[float] = field(default_factory=list)
    first: float = 0.0
    others: dict[str, list[float]] = field(default_factory=dict)
    workers: int = 1
    notes: list[str] = field(default_factory=list)
    method: str = "ticks counted inside the native code"


# -- a part of a plan, watched ------------------------------------------------------------------


class Native:
    """The steps of compiled code: it counts their ticks itself."""

    def __init__(self, executable: Any, ticks: float) -> None:
        self.executable, self.ticks = executable, ticks
        self.workers: int = executable.workers

    def take(self) -> Floats:
        """Seconds of [worker, step] since the last time."""
        found: Floats = self.executable.times / self.ticks
        self.executable.reset_times()
        return found


class Reference:
    """The ops of a part that Python evaluates, one by one."""

    workers = 1

    def __init__(self, executable: ReferenceExecutable) -> None:
        self.place = {op: i for i, op in enumerate(executable.part.ops)}
        self.spent = np.zeros((1, len(self.place)))
        executable._run = partial(self._run)

    def _run(self, *args: Any) -> list[Array]:
        ops, values, wanted, state = args[:4]
        return run_ops(ops, values, wanted, state, self._evaluate)

    def _evaluate(self, op: Op, inputs: Sequence[Array | None], state: Any) -> list[Array]:
        begin = time.perf_counter()
        try:
            return evaluate(op, inputs, state)
        finally:
            self.spent[0, self.place[op]] += time.perf_counter() - begin

    def take(self) -> Floats:
        found, self.spent = self.spent, np.zeros_like(self.spent)
        return found


class Opaque:
    """A part of another delegate: only its whole time is known."""

    workers = 1

    def __init__(self, clock: Clock) -> None:
        self.clock, self.before = clock, 0.0

    def take(self) -> Floats:
        found = self.clock.spent - self.before
        self.before = self.clock.spent
        return np.array([[found]])


class Clock:
    """Stands around an executable and adds up the time of its runs."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.spent = inner, 0.0

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        begin = time.perf_counter()
        self.inner.run(inputs, outputs)
        self.spent += time.perf_counter() - begin

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Callable[[], None]:
        bind = getattr(self.inner, "bind", None)
        call = partial(self.inner.run, inputs, outputs) if bind is None else bind(inputs, outputs)

        def timed() -> None:
            begin = time.perf_counter()
            call()
            self.spent += time.perf_counter() - begin

        return timed


Part = Native | Reference | Opaque


# -- rows: what the parts consist of ------------------------------------------------------------


class _Writer:
    """Writes the rows of a plan's parts, in run order."""

    def __init__(self, graph: Graph, plan: Plan, precision: str) -> None:
        self.precision = precision
        self.node = {plan.twins[t]: i for i, op in enumerate(graph.ops) for t in op.outputs}
        self.rows: list[Row] = []

    def part(self, number: int, step: Step, watched: Part) -> None:
        name, ops = step.part.delegate.name, step.part.ops
        if isinstance(watched, Native):
            self._native(number, name, ops, watched.executable.compiled.report)
        elif isinstance(watched, Reference):
            self.rows += [self._op(number, name, [op]) for op in ops]
        else:
            self.rows.append(self._op(number, name, ops))

    def _op(self, number: int, delegate: str, ops: Sequence[Op]) -> Row:
        main = main_op(ops)
        first = next((t for t in main.inputs if t is not None), None)
        made = {t for op in ops for t in op.outputs}
        inner = {t for op in ops for t in op.inputs if t in made}
        inputs = {t for op in ops for t in op.inputs if t is not None} - made
        return self._finished(Row(
            type=main.name, name="", delegate=delegate, part=number,
            kernel="numpy" if delegate == "reference" else delegate,
            weights=sum(t.nbytes for t in inputs if t.is_constant),
            read=sum(t.nbytes for t in inputs if not t.is_constant),
            written=sum(t.nbytes for t in made - inner),
            kind=_kind(first.dtype.short if first else ""),
        ), ops)  # fmt: skip

    def _native(self, number: int, delegate: str, ops: Sequence[Op],
                report: Iterable[Mapping[str, str]]) -> None:  # fmt: skip
        begin = len(self.rows)
        for about in report:
            mine = [ops[int(i)] for i in about["places"].split(",") if i]
            row = Row(
                type=main_op(mine).name if mine else about["kernel"], name="", delegate=delegate,
                part=number, kernel=about["kernel"], weights=int(about["weights"]),
                read=int(about["reads"]), written=int(about["writes"]),
                kind=_kind(about["inputs"].partition("[")[0]),
            )  # fmt: skip
            if row.kind == "f32" and self.precision != "f32":
                row.kind = self.precision
            self.rows.append(self._finished(row, mine))
        _find_helped(self.rows, begin)

    def _finished(self, row: Row, ops: Sequence[Op]) -> Row:
        """With what the file's ops say: places, name, multiply-adds."""
        nodes = {self.node.get(op.outputs[0], -1): op for op in ops if op.outputs}
        row.nodes = sorted(n for n in nodes if n >= 0)
        row.macs = sum(work(op).macs for op in ops)
        main = main_op(ops) if ops else None
        if main is not None and main.outputs:
            row.name = node_name(main, self.node.get(main.outputs[0], -1))
        if row.type in LOOKUPS:
            row.weights, row.read = min(row.weights, row.written), min(row.read, row.written)
        return row


def _find_helped(rows: list[Row], begin: int) -> None:
    """Steps without ops of their own quantise or copy for the next that has some (or the last)."""
    owners = [i for i in range(begin, len(rows)) if rows[i].nodes]
    for i in range(begin, len(rows)):
        if not rows[i].nodes and owners:
            row = rows[i]
            row.helps = next((o for o in owners if o > i), owners[-1])
            row.name = f"for {rows[row.helps].name}"


def node_name(op: Op, index: int) -> str:
    """As TensorFlow Lite's profile names a node."""
    return f"[{', '.join(t.name for t in op.outputs)}]:{index}"


def main_op(ops: Sequence[Op]) -> Op:
    """The op that a step is called after: most multiply-adds, else the last."""
    return max(enumerate(ops), key=lambda pair: (work(pair[1]).macs, pair[0]))[1]


def work(op: Op) -> Cost:
    try:
        return cost(op)
    except (SanderlingError, *DATA_ERRORS):  # shapes that are known only when it runs
        return Cost(0, 0, 0)


def _kind(short: str) -> str:
    return {"u8": "i8", "i4": "i8", "f16": "f32"}.get(short, short)


# -- the run ------------------------------------------------------------------------------------


def delegates(names: Sequence[str]) -> list[str | Delegate]:
    """These, with the compiler counting ticks; it stands last before Python where nobody says."""
    wanted = list(names) or ["cpu"]
    if not {"cpu", "reference"} & set(wanted):
        wanted.append("cpu")
    return [CpuDelegate(timed=True) if n == "cpu" else n for n in wanted]


class Ours:
    """A session whose parts are watched."""

    def __init__(self, model: Model, setting: Setting, feeds: Mapping[str, Array],
                 signature: str | None, ticks: float) -> None:  # fmt: skip
        options = {"precision": setting.precision} if setting.precision != "f32" else {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            self.session = Session(model, delegates(setting.delegates), setting.threads,
                                   options=options)  # fmt: skip
            entry = self.session.entry(signature)
            by_tensor = {t: feeds[n] for n, t in entry.inputs.items()}
            shapes = [by_tensor[t].shape for t in entry.graph.inputs]
            plan = self.session.plan(entry.graph, shapes)
        self.notes = [str(w.message).splitlines()[0] for w in caught]
        # A run that is more than one call has Python in it, told apart by clocks. One part is the
        # whole run, which is timed anyway: a clock would cost as much as a small model's step.
        self.clocked = len(plan.steps) > 1 or plan.resources is not None
        self.clocks = [Clock(s.executable) for s in plan.steps]
        self.parts = [_watch(s, c, ticks) for s, c in zip(plan.steps, self.clocks, strict=True)]
        self.rows = self._rows(entry.graph, plan, setting.precision)
        for step, part, clock in zip(plan.steps, self.parts, self.clocks, strict=True):
            if self.clocked or not isinstance(part, Native):
                step.executable = clock
        self.bound = self.session.bind(feeds, signature=signature)
        self._spent = [0.0] * len(self.clocks)
        self.whole: list[float] = []
        self.gaps: list[float] = []  # between parts
        self.left: list[list[float]] = []  # of each part, beside its steps

    def _rows(self, graph: Graph, plan: Plan, precision: str) -> list[Row]:
        writer = _Writer(graph, plan, precision)
        for number, (step, part) in enumerate(zip(plan.steps, self.parts, strict=True)):
            writer.part(number, step, part)
        return writer.rows

    @property
    def workers(self) -> int:
        return max((p.workers for p in self.parts), default=1)

    def run(self) -> float:
        begin = time.perf_counter()
        self.bound.run()
        return time.perf_counter() - begin

    def first(self) -> float:
        whole = self.run()
        found = np.concatenate([p.take().max(axis=0) for p in self.parts] or [np.zeros(0)])
        for row, spent in zip(self.rows, found, strict=True):
            row.first = float(spent)
        self._walls(whole)
        return whole

    def sample(self) -> None:
        """One run, with all that it tells."""
        whole = self.run()
        walls = self._walls(whole)
        sums, at = [], 0
        for part in self.parts:
            spent = part.take()
            slowest = spent.max(axis=0)
            for row, most, mine in zip(self.rows[at:], slowest, spent.T, strict=False):
                row.times.append(float(most))
                row.idle.append(float(most - mine.mean()))
            at += len(slowest)
            sums.append(float(slowest.sum()))
        self.whole.append(whole)
        self.gaps.append(whole - sum(walls))
        self.left.append([w - s for w, s in zip(walls, sums, strict=True)])

    def _walls(self, whole: float) -> list[float]:
        """Seconds that each part took in the last run."""
        if not self.clocked:
            return [whole] * len(self.parts)
        found = [c.spent - before for c, before in zip(self.clocks, self._spent, strict=True)]
        self._spent = [c.spent for c in self.clocks]
        return found

    def others(self, call: float) -> dict[str, list[float]]:
        """What is no step's time, by run. call: what a call costs, known from a model that does
        nothing; what then remains of compiled parts is barriers, or nobody's."""
        found: dict[str, Floats] = {}
        if self.clocked:
            name = "between parts" if len(self.parts) > 1 else "around the call"
            found[name] = np.array(self.gaps)
        for part, rest in zip(self.parts, np.array(self.left).T, strict=True):
            for name, seconds in _pieces(part, rest, call, self.clocked):
                found[name] = found.get(name, np.zeros(len(rest))) + seconds
        return {name: seconds.tolist() for name, seconds in found.items()}

    def forget(self) -> None:
        """What was measured so far only warmed up."""
        self.whole.clear()
        self.left.clear()
        self.gaps.clear()
        for row in self.rows:
            row.times.clear()
            row.idle.clear()


def _pieces(part: Part, rest: Floats, call: float,
            clocked: bool) -> Iterator[tuple[str, Floats]]:  # fmt: skip
    if isinstance(part, Opaque):
        return
    if isinstance(part, Reference):
        yield "around the reference's ops", rest
    elif clocked and part.workers == 1:  # the clock stands around the call and nothing else
        yield CALL, rest
    else:
        yield CALL, np.full_like(rest, call)
        yield "barriers" if part.workers > 1 else LOST, rest - call


def _watch(step: Step, clock: Clock, ticks: float) -> Part:
    executable = step.executable
    if isinstance(executable, ReferenceExecutable):
        return Reference(executable)
    compiled = getattr(executable, "compiled", None)
    if compiled is not None and getattr(compiled, "timed", False):
        return Native(executable, ticks)
    return Opaque(clock)


class Nothing:
    """Finds what a call costs: from Python to native code and back, by a model that does next to
    nothing, sampled as any other and in turns with the model itself. So it is no guess from the
    sum that it is to explain."""

    FEWEST = 50

    def __init__(self) -> None:
        self.ours = _nothing()
        self.ours.forget()

    def sample(self) -> None:
        self.ours.sample()

    def call(self) -> float:
        while len(self.ours.left) < self.FEWEST:
            self.sample()
        return max(0.0, float(np.median([left for (left,) in self.ours.left])))


@cache
def _nothing() -> Ours:
    graph = Graph("nothing")
    x = graph.input("x", DType.FLOAT32, (1, 4))
    y = graph.tensor("y", DType.FLOAT32, (1, 4))
    graph.add("SOFTMAX", [x], [y], beta=1.0)
    graph.outputs = [y]
    feeds = {"x": np.zeros((1, 4), np.float32)}
    return Ours(Model([graph]), Setting(), feeds, None, roofline(1).ticks)


def profile_ours(model: Model, setting: Setting, feeds: Mapping[str, Array],
                 signature: str | None, ticks: float, turns: Callable[[Callable[[], None]], None],
                 ) -> Taken:  # fmt: skip
    """turns(sample) decides how many runs are measured."""
    ours = Ours(model, setting, feeds, signature, ticks)
    first = ours.first()
    for _ in range(WARM):
        ours.sample()
    ours.forget()
    nothing = Nothing() if problem() is None else None

    def sample() -> None:
        ours.sample()
        if nothing is not None:
            nothing.sample()

    turns(sample)
    others = ours.others(nothing.call() if nothing is not None else 0.0)
    return Taken(ours.rows, ours.whole, first, others, ours.workers, ours.notes)
