"""Code that tells of its steps: ticks added up in a table, or a log of begins and ends."""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ..codegen.emit import I32, I64, PTR, Emitter, Value, plain
from ..codegen.program import Program
from ..isa.base import isa_of
from ..runtime.abi import LOG, LOGGED, STATE, TIMES, WORKERS
from .waiting import of_worker, with_syscall, word


class Silent:
    """Nothing is told."""

    def mark(self) -> None:
        """The next step begins here."""

    def end(self, worker: Value, index: Value) -> None:
        """A step, or a chunk of it, has ended."""

    def begin(self, worker: Value, index: Value) -> None:
        """A step, or the first chunk of it on this worker, begins."""


def teller(e: Emitter, program: Program, context: Value) -> Silent:
    """What this program's code tells with."""
    if program.traced:
        return Log(e, program, context)
    return Times(e, program, context) if program.timed else Silent()


class Times(Silent):
    """Ticks, added to the table of times. Reading the clock takes as long as a tiny step: a step
    begins when the one before it ended, unless there was a wait. A run without a table is not
    counted: a branch a step is all that it pays."""

    def __init__(self, e: Emitter, program: Program, context: Value) -> None:
        self.e, self.program = e, program
        self.since = e.b.alloca(I64)
        self.table = e.load(e.at(context, TIMES, PTR), PTR, 8)
        self.counts = e.b.icmp_unsigned("!=", e.b.ptrtoint(self.table, I64), I64(0))

    def mark(self) -> None:
        with self.e.when(self.counts):
            self.e.store(isa_of(self.e.target).clock(self.e), self.since, 8)

    def end(self, worker: Value, index: Value) -> None:
        """What passed since the mark, to a cell; the next begins here."""
        e = self.e
        with e.when(self.counts):
            cell = e.at(self.table, e.add(e.mul(worker, len(self.program.steps)), index), I64)
            now = isa_of(e.target).clock(e)
            ticks = e.b.sub(now, e.load(self.since, I64, 8))
            e.store(e.b.add(e.load(cell, I64, 8), ticks), cell, 8)
            e.store(now, self.since, 8)


class Log(Silent):
    """Rows of a traced run. Who has nothing more to do may wake when the run is over and somebody
    reads the log: a wait is written down when the worker has work again, not when it ends."""

    def __init__(self, e: Emitter, program: Program, context: Value) -> None:
        self.e, self.program, self.context = e, program, context

    def _row(self, worker: Value, index: Value) -> Value:
        """A worker's row for a step; -1 is its own."""
        e = self.e
        log = e.load(e.at(self.context, TIMES, PTR), PTR, 8)
        row = e.add(e.mul(worker, len(self.program.steps) + 1), e.add(index, 1))
        return e.at(log, e.mul(row, LOG), I64)

    def _now(self, row: Value, place: int) -> None:
        self.e.store(isa_of(self.e.target).clock(self.e), self.e.at(row, place, I64), 8)

    def _run(self) -> Value:
        """A number that no other run of several workers has."""
        e = self.e
        state = e.b.load_atomic(word(e, self.context, STATE), "monotonic", 8, typ=I64)
        return e.b.add(e.b.sub(state, e.b.urem(state, I64(len(self.program.phases) + 1))), I64(1))

    def begin(self, worker: Value, index: Value) -> None:
        e = self.e
        thread, run, last = self._own(worker)
        row = self._row(worker, index)
        self.released(worker, self._run())
        self._now(row, 0)
        e.store(e.load(thread, I64, 8), self._row(worker, I64(-1)), 8)
        e.store(self._run(), run, 8)
        e.store(row, last, 8)

    def end(self, worker: Value, index: Value) -> None:
        self._now(self._row(worker, index), 1)

    def released(self, worker: Value, now: Value) -> None:
        """The wait behind the worker's last step is over, if it had one in this run."""
        e = self.e
        _, run, last = self._own(worker)
        several = e.b.icmp_signed(">", e.load(word(e, self.context, WORKERS), I32, 4), I32(1))
        known = e.b.icmp_signed("==", e.load(run, I64, 8), now)
        with e.when(e.b.and_(several, known)):
            self._now(e.load(last, PTR, 8), LOG - 1)

    def _own(self, worker: Value) -> tuple[Value, ...]:
        """Thread, run, row: where this worker notes them."""
        e = self.e
        base = of_worker(e, self.context, worker, LOGGED)
        return tuple(e.at(base, place, I64) for place in range(3))

    def thread(self, worker: Value) -> None:
        """Note the number under which the system knows this thread."""

        def ask(call: Callable[..., Value]) -> None:
            self.e.store(call(I64(isa_of(self.e.target).gettid)), self._own(worker)[0], 8)

        with_syscall(self.e, self.context, ask)


def emit_clock(program: Program) -> None:
    """clock(): the ticks that the log is written in."""
    clock = plain(ir.Function(program.module, ir.FunctionType(I64, []), "clock"))
    e = Emitter(program.module, clock, program.target)
    e.b.ret(isa_of(e.target).clock(e))
