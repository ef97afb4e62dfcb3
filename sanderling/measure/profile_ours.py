"""Where the time of a run on our own delegates goes: ticks counted inside native code, and the
clock around what Python calls."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..delegates.cpu.delegate import CpuDelegate
from ..errors import FallbackWarning
from ..ir import Array, Graph, Model, Op
from ..ops.base import known_cost
from ..ops.execute import evaluate
from ..progress import plural
from ..runtime.delegate import Delegate, Executable, StepTimes
from ..runtime.plan import Plan, Step
from ..runtime.session import Session
from .record import Setting
from .sample_statistics import Floats

if TYPE_CHECKING:
    from ..delegates.gpu.devices.device import Device

WARM = 2  # runs before what counts
# Seconds: shorter runs are timed together, about so long: the clock must not count, nor what is
# done between samples, and what is measured is a model that is in the caches.
SHORT, BLOCK = 20e-6, 500e-6
QUICK, TRIES = 1e-3, 20  # of a run that is shorter, the best of several says how long it takes
# Counting may add this share to a run, on average over all: where it is more, only one of several
# runs is counted, of RAREST at least. READING: seconds that it takes a step, most of them for the
# clock (8 to 10 ns on Ice Lake, in a virtual machine).
MOST_COST, READING, RAREST = 0.01, 10e-9, 16
CALL, LOST = "call into native code", "not accounted for"
BARRIERS = "barriers"
BETWEEN, AROUND = "between parts", "around the call"
QUEUE, HANDED = "launches and waits for the device", "borders of the device"
# Ops that touch as many elements of their table as they return.
LOOKUPS = {"EMBEDDING_LOOKUP", "GATHER", "GATHER_ND"}


@dataclass
class ProfileRow:
    """A step, or an op where ops are run one by one. Sizes are in bytes, times in seconds."""

    type: str
    name: str
    delegate: str
    kernel: str
    part: int = 0
    nodes: list[int] = field(default_factory=list)  # places in the file's graph
    helps: int | None = None  # the row that it prepares for, where it stands for no op of its own
    is_opaque: bool = False  # several ops of another engine, of which only the sum is known
    macs: int = 0
    weights: int = 0
    read: int = 0
    written: int = 0
    kind: str = ""  # the type that it multiplies in
    zeros: str = ""  # of a product with many: how many, and whether they are left out
    first: float = 0.0
    times: list[float] = field(default_factory=list)  # by run: the slowest worker's
    idle: list[float] = field(default_factory=list)  # by run: what the others waited, a worker
    called: float = 1.0


@dataclass
class Counting:
    """How runs were counted: a sample is the mean of `together` of them, and one run of `every` is
    counted. plain: seconds of those that are not, by sample."""

    together: int = 1
    every: int = 1
    plain: list[float] = field(default_factory=list)


@dataclass
class Taken:
    """What an engine told. A row's times and `others` (what is no step: calls, barriers, gaps)
    belong to the runs of `whole`, one by one."""

    rows: list[ProfileRow]
    whole: list[float] = field(default_factory=list)
    first: float = 0.0
    others: dict[str, list[float]] = field(default_factory=dict)
    workers: int = 1
    notes: list[str] = field(default_factory=list)
    method: str = ""
    counting: Counting = field(default_factory=Counting)
    devices: dict[str, Device] = field(default_factory=dict)  # by delegate: what ran its parts


# -- a part of a plan, watched ------------------------------------------------------------------


class NativeSteps:
    """The steps of compiled code: it counts their ticks itself, and those of the whole call."""

    def __init__(self, clock: StepTimes, ticks: float) -> None:
        """ticks: of the CPU's clock, in a second."""
        self.clock, self.rate = clock, clock.rate or ticks
        self.workers = clock.workers

    @property
    def method(self) -> str:
        return self.clock.method

    def take(self) -> tuple[Floats, float]:
        """Return the seconds since the last call, by [worker, step] and of the whole part."""
        found: Floats = self.clock.times / self.rate
        wall = float(self.clock.inside[0]) / self.rate
        self.clock.reset_times()
        return found, wall

    def count(self, on: bool) -> None:
        self.clock.count(on)


class DeviceSteps(NativeSteps):
    """The steps of a part on a device, which has a clock of its own."""


class ReferenceOps:
    """The ops of a part that Python evaluates, one by one."""

    method = "the clock around each op that Python evaluates"
    workers = 1

    def __init__(self, executable: Executable, clock: TimedExecutable) -> None:
        self.clock = clock
        self.place = {op: i for i, op in enumerate(executable.watch_ops(self._evaluate))}
        self.spent = np.zeros((1, len(self.place)))

    def _evaluate(self, op: Op, inputs: Sequence[Array | None], state: Any) -> list[Array]:
        begin = time.perf_counter()
        try:
            return evaluate(op, inputs, state)
        finally:
            self.spent[0, self.place[op]] += time.perf_counter() - begin

    def take(self) -> tuple[Floats, float]:
        found, self.spent = self.spent, np.zeros_like(self.spent)
        return found, self.clock.take()

    def count(self, on: bool) -> None:
        """Do nothing: every run is counted, since the clock costs little beside Python."""


class OpaquePart:
    """A part of another delegate: only its whole time is known."""

    method = "the clock around the whole call of another engine's part"
    workers = 1

    def __init__(self, clock: TimedExecutable) -> None:
        self.clock = clock

    def take(self) -> tuple[Floats, float]:
        found = self.clock.take()
        return np.array([[found]]), found

    def count(self, on: bool) -> None:
        """Do nothing: every run is counted."""


class TimedExecutable(Executable):
    """Stands around an executable and adds up the time of its runs."""

    def __init__(self, inner: Executable) -> None:
        self.inner, self.spent = inner, 0.0

    def take(self) -> float:
        found, self.spent = self.spent, 0.0
        return found

    def run(self, inputs: Sequence[Array], outputs: list[Array | None]) -> None:
        begin = time.perf_counter()
        self.inner.run(inputs, outputs)
        self.spent += time.perf_counter() - begin

    def bind(self, inputs: Sequence[Array], outputs: list[Array | None]) -> Callable[[], None]:
        call = self.inner.bind(inputs, outputs)

        def timed() -> None:
            begin = time.perf_counter()
            call()
            self.spent += time.perf_counter() - begin

        return timed


Part = NativeSteps | ReferenceOps | OpaquePart


# -- rows: what the parts consist of ------------------------------------------------------------


class RowWriter:
    """Writes the rows of a plan's parts, in run order."""

    def __init__(self, graph: Graph, plan: Plan, precision: str) -> None:
        self.precision = precision
        self.node = {plan.twins[t]: i for i, op in enumerate(graph.ops) for t in op.outputs}
        self.rows: list[ProfileRow] = []

    def part(self, number: int, step: Step, watched: Part) -> None:
        name, ops = step.part.delegate.name, step.part.ops
        if isinstance(watched, NativeSteps):
            self._native(number, name, ops, watched.clock.report)
        elif isinstance(watched, ReferenceOps):
            self.rows += [self._op(number, name, [op]) for op in ops]
        elif len(ops) == 1:
            self.rows.append(self._op(number, name, ops))
        else:
            self.rows.append(self._opaque(number, name, ops))

    def _opaque(self, number: int, delegate: str, ops: Sequence[Op]) -> ProfileRow:
        """The row is called after no single op, since nobody knows what that one takes."""
        row = self._op(number, delegate, ops)
        row.is_opaque, row.type = True, f"{delegate} part, {plural(len(ops), 'op')}"
        made = ", ".join(t.name for t in ops[-1].outputs)
        row.name = f"[{made}]:{row.nodes[0]}-{row.nodes[-1]}" if row.nodes else f"[{made}]"
        return row

    def _op(self, number: int, delegate: str, ops: Sequence[Op]) -> ProfileRow:
        main = main_op(ops)
        first = next((t for t in main.inputs if t is not None), None)
        made = {t for op in ops for t in op.outputs}
        inner = {t for op in ops for t in op.inputs if t in made}
        inputs = {t for op in ops for t in op.inputs if t is not None} - made
        return self._finished(
            ProfileRow(
                type=main.name,
                name="",
                delegate=delegate,
                part=number,
                kernel="numpy" if delegate == "reference" else delegate,
                weights=sum(t.nbytes for t in inputs if t.is_constant),
                read=sum(t.nbytes for t in inputs if not t.is_constant),
                written=sum(t.nbytes for t in made - inner),
                kind=_kind(first.dtype.short if first else ""),
            ),
            ops,
        )

    def _native(
        self, number: int, delegate: str, ops: Sequence[Op], report: Iterable[Mapping[str, str]]
    ) -> None:
        begin = len(self.rows)
        for about in report:
            mine = [ops[int(i)] for i in about["places"].split(",") if i]
            row = ProfileRow(
                type=main_op(mine).name if mine else about["kernel"],
                name="",
                delegate=delegate,
                part=number,
                kernel=about["kernel"],
                weights=int(about["weights"]),
                read=int(about["reads"]),
                written=int(about["writes"]),
                kind=_kind(about["inputs"].partition("[")[0]),
                zeros=about.get("zeros", ""),  # only compiled code leaves some out
            )
            if row.kind == "f32" and self.precision != "f32":
                row.kind = self.precision
            self.rows.append(self._finished(row, mine))
        _find_helped(self.rows, begin)

    def _finished(self, row: ProfileRow, ops: Sequence[Op]) -> ProfileRow:
        """Complete a row by what the file's ops say: places, name, multiply-adds."""
        nodes = {self.node.get(op.outputs[0], -1): op for op in ops if op.outputs}
        row.nodes = sorted(n for n in nodes if n >= 0)
        row.macs = sum(known_cost(op).macs for op in ops)
        main = main_op(ops) if ops else None
        if main is not None and main.outputs:
            row.name = node_name(main, self.node.get(main.outputs[0], -1))
        if row.type in LOOKUPS:
            row.weights, row.read = min(row.weights, row.written), min(row.read, row.written)
        return row


def _find_helped(rows: list[ProfileRow], begin: int) -> None:
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
    return max(enumerate(ops), key=lambda pair: (known_cost(pair[1]).macs, pair[0]))[1]


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

    def __init__(
        self,
        model: Model,
        setting: Setting,
        feeds: Mapping[str, Array],
        signature: str | None,
        ticks: float,
        require_full: bool = False,
    ) -> None:
        options = {"precision": setting.precision} if setting.precision != "f32" else {}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", FallbackWarning)
            self.session = Session(
                model,
                delegates(setting.delegates),
                setting.threads,
                options=options,
                require_full_delegation=require_full,
            )
            entry = self.session.entry(signature)
            by_tensor = {t: feeds[n] for n, t in entry.inputs.items()}
            shapes = [by_tensor[t].shape for t in entry.graph.inputs]
            plan = self.session.plan(entry.graph, shapes)
        self.notes = [str(w.message).splitlines()[0] for w in caught]
        self.notes += [remark for s in plan.steps for remark in s.executable.remarks]
        self.devices = devices_of(plan)
        self.parts = [watch(s, ticks) for s in plan.steps]
        self.rows = self._rows(entry.graph, plan, setting.precision)
        self.bound = self.session.bind(feeds, signature=signature)
        self.counting = Counting()
        self.whole: list[float] = []
        self.gaps: list[float] = []  # what is no part's
        self.left: list[list[float]] = []  # of each part, beside its steps

    def _rows(self, graph: Graph, plan: Plan, precision: str) -> list[ProfileRow]:
        writer = RowWriter(graph, plan, precision)
        for number, (step, part) in enumerate(zip(plan.steps, self.parts, strict=True)):
            writer.part(number, step, part)
        return writer.rows

    @property
    def workers(self) -> int:
        return max((p.workers for p in self.parts), default=1)

    @property
    def method(self) -> str:
        """How times were taken, by all parts."""
        return "; ".join(dict.fromkeys(p.method for p in self.parts)) or "there are no parts"

    def run(self, times: int = 1) -> float:
        """Seconds of a run, the mean of so many."""
        run = self.bound.run
        begin = time.perf_counter()
        for _ in range(times):
            run()
        return (time.perf_counter() - begin) / times

    def count(self, on: bool) -> None:
        for part in self.parts:
            part.count(on)

    def first(self) -> float:
        whole = self.run()
        found = [part.take()[0].max(axis=0) for part in self.parts]
        for row, spent in zip(self.rows, np.concatenate([*found, np.zeros(0)]), strict=True):
            row.first = float(spent)
        return whole

    def runs(self) -> float:
        """The runs of a sample: seconds of one that is counted."""
        how = self.counting
        if how.every > 1:
            self.count(False)
            how.plain.append(self.run(how.together * (how.every - 1)))
            self.count(True)
        return self.run(how.together)

    def sample(self) -> None:
        """Runs, with all that they tell."""
        how, whole = self.counting, self.runs()
        sums, walls, at = [], [], 0
        for part in self.parts:
            spent, wall = part.take()
            spent, wall = spent / how.together, wall / how.together
            slowest = spent.max(axis=0)
            for row, most, mine in zip(self.rows[at:], slowest, spent.T, strict=False):
                row.times.append(float(most))
                row.idle.append(float(most - mine.mean()))
            at += len(slowest)
            sums.append(float(slowest.sum()))
            walls.append(wall)
        self.whole.append(whole)
        self.gaps.append(whole - sum(walls))
        self.left.append([w - s for w, s in zip(walls, sums, strict=True)])

    def settle(self) -> None:
        """How many runs make a sample, and which of them are counted."""
        once = min(self.run() for _ in range(3))
        if once < QUICK:  # one that was interrupted says nothing
            once = max(min(self.run(3) for _ in range(TRIES)), 1e-7)
        cost = len(self.rows) * READING / once
        self.counting.every = min(max(1, math.ceil(cost / MOST_COST)), RAREST)
        self.counting.together = max(1, round(BLOCK / once)) if once < SHORT else 1
        for part in self.parts:
            part.take()

    def others(self) -> dict[str, list[float]]:
        """What is no step's time, by run: all of it is measured where it is spent. Around a call,
        by the clock around the run and the ticks of the call; within, by those and the steps'."""
        native = [isinstance(part, NativeSteps) for part in self.parts]
        name = BETWEEN if len(native) > 1 else CALL if any(native) else AROUND
        if name == CALL and isinstance(self.parts[0], DeviceSteps):
            name = HANDED
        found = {name: np.array(self.gaps)}
        for part, rest in zip(self.parts, np.array(self.left).T, strict=True):
            if not isinstance(part, OpaquePart):
                name = _rest(part)
                found[name] = found.get(name, np.zeros(len(rest))) + rest
        return {name: seconds.tolist() for name, seconds in found.items()}

    def forget(self) -> None:
        """Drop what was measured so far: those runs only warmed up."""
        for kept in (self.whole, self.left, self.gaps, self.counting.plain):
            kept.clear()
        for row in self.rows:
            row.times.clear()
            row.idle.clear()


def _rest(part: Part) -> str:
    """What a part does beside its steps."""
    if isinstance(part, ReferenceOps):
        return "around the reference's ops"
    if isinstance(part, DeviceSteps):
        return QUEUE
    return BARRIERS if part.workers > 1 else LOST


def devices_of(plan: Plan) -> dict[str, Device]:
    """The devices that parts of a plan run on, by the name of their delegate."""
    return {
        step.part.delegate.name: step.executable.device
        for step in plan.steps
        if step.executable.device is not None
    }


def watch(step: Step, ticks: float) -> Part:
    """Before the plan is bound: a part that does not time itself is wrapped."""
    executable = step.executable
    times = executable.step_times()
    if times is not None:
        return NativeSteps(times, ticks) if times.rate is None else DeviceSteps(times, ticks)
    clock = step.executable = TimedExecutable(executable)
    ops = ReferenceOps(executable, clock)
    return ops if ops.place else OpaquePart(clock)


def profile_ours(
    model: Model,
    setting: Setting,
    feeds: Mapping[str, Array],
    signature: str | None,
    ticks: float,
    turns: Callable[[Callable[[], None]], None],
    require_full: bool = False,
) -> Taken:
    """turns(sample) decides how many samples are taken."""
    ours = Ours(model, setting, feeds, signature, ticks, require_full)
    first = ours.first()
    for _ in range(WARM):
        ours.sample()
    ours.settle()
    ours.forget()
    turns(ours.sample)
    return Taken(
        ours.rows,
        ours.whole,
        first,
        ours.others(),
        ours.workers,
        ours.notes,
        ours.method,
        counting=ours.counting,
        devices=ours.devices,
    )
