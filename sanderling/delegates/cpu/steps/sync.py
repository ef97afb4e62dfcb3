"""Threads without Python on the path: the barrier between steps, and the loop of parked workers.

Both spin for a while and then sleep on a futex, so an idle session burns no CPU and more threads
than cores degrade gently. Where there is no futex (other systems than Linux) they spin on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby

import llvmlite.ir as ir

from ..codegen.emit import I1, I8, I32, I64, PTR, VOID, Emitter, Value, plain
from ..codegen.program import Program, Step
from ..isa.base import isa_of
from ..kernels.control import Guard, guard_of
from ..runtime.abi import (
    ARRIVED,
    ASLEEP,
    EPOCH,
    FAULT,
    LINE,
    LOG,
    MOST_SPINS,
    PHASE,
    STOP,
    SYNC,
    SYSCALL,
    TIMES,
)
from .pycall_code import emit_call

# futex(2): its private wait and wake operations.
_WAIT, _WAKE, _ALL = 128, 129, 2**31 - 1


def emit_run(program: Program) -> None:
    """run(worker, workers, context): all steps, a barrier behind each."""
    barrier = _barrier(program)
    run = plain(ir.Function(program.module, ir.FunctionType(VOID, [I64, I64, PTR]), "run"))
    e = Emitter(program.module, run, program.target)
    worker, workers, context = run.args

    times = _Times(e, program, context) if program.timed and not program.traced else None

    def mark() -> None:
        if times is not None:
            times.mark()

    def wait() -> None:
        with e.when(e.b.icmp_signed(">", workers, I64(1))):
            e.b.call(barrier, [workers, context])
            mark()

    def steps(numbered: Iterable[tuple[int, Step]]) -> None:
        mark()
        for index, step in numbered:
            begin = isa_of(e.target).clock(e) if program.traced else None
            e.b.call(program.module.globals[step.function], [worker, workers, context])
            if begin is not None:
                _log(e, program, context, worker, index, begin)
            elif times is not None:
                times.add(worker, index)
            wait()
            if program.traced:
                _log_wait(e, program, context, worker, workers, index)

    if program.traced:
        _log_thread(e, program, context, worker)
    for guard, group in groupby(enumerate(program.steps), lambda pair: guard_of(pair[1].op)):
        if not guard:
            steps(group)
            continue
        with e.b.if_else(_holds(e, program, context, guard)) as (then, otherwise):
            with then:
                steps(group)
            with otherwise:
                wait()  # nobody goes on to overwrite the condition before all have seen it
    e.b.ret_void()
    emit_call(program, _emit_invoke(program, run))
    _emit_serve(program, run)
    _emit_stop(program)
    if program.traced:
        _emit_clock(program)


def _holds(e: Emitter, program: Program, context: Value, guard: Guard) -> Value:
    """All conditions are as they should be; it is the same for all workers."""
    found = I1(1)
    for tensor, polarity in guard:
        place = program.places[tensor]
        base = e.load(e.at(context, place.slot, PTR), PTR, 8)
        value = e.load(e.at(base, place.offset, I8), I8)
        found = e.b.and_(found, e.b.icmp_signed("!=" if polarity else "==", value, I8(0)))
    return found


class _Times:
    """Ticks, added to the table of times. Reading the clock takes as long as a tiny step: a step
    begins when the one before it ended, unless there was a barrier. A run without a table is not
    counted: a branch a step is all that it pays."""

    def __init__(self, e: Emitter, program: Program, context: Value) -> None:
        self.e, self.program = e, program
        self.since = e.b.alloca(I64)
        self.table = e.load(e.at(context, TIMES, PTR), PTR, 8)
        self.counts = e.b.icmp_unsigned("!=", e.b.ptrtoint(self.table, I64), I64(0))

    def mark(self) -> None:
        with self.e.when(self.counts):
            self.e.store(isa_of(self.e.target).clock(self.e), self.since, 8)

    def add(self, row: Value, index: int) -> None:
        """What passed since the mark, to a cell; the next begins here."""
        e = self.e
        with e.when(self.counts):
            cell = e.at(self.table, e.add(e.mul(row, len(self.program.steps)), index), I64)
            now = isa_of(e.target).clock(e)
            ticks = e.b.sub(now, e.load(self.since, I64, 8))
            e.store(e.b.add(e.load(cell, I64, 8), ticks), cell, 8)
            e.store(now, self.since, 8)


def _log_row(e: Emitter, program: Program, context: Value, worker: Value, index: int) -> Value:
    """A worker's row for a step; -1 is its own."""
    log = e.load(e.at(context, TIMES, PTR), PTR, 8)
    row = e.add(e.mul(worker, len(program.steps) + 1), index + 1)
    return e.at(log, e.mul(row, LOG), I64)


def _log(
    e: Emitter, program: Program, context: Value, worker: Value, index: int, begin: Value
) -> None:
    row = _log_row(e, program, context, worker, index)
    for place, value in enumerate((begin, isa_of(e.target).clock(e))):
        e.store(value, e.at(row, place, I64), 8)


def _log_wait(
    e: Emitter, program: Program, context: Value, worker: Value, workers: Value, index: int
) -> None:
    """The end of the wait behind a step. Behind the last one the caller goes on and reads the log:
    nobody else may write it any more."""
    several = e.b.icmp_signed(">", workers, I64(1))
    if index == len(program.steps) - 1:
        several = e.b.and_(several, e.b.icmp_signed("==", worker, I64(0)))
    with e.when(several):
        row = _log_row(e, program, context, worker, index)
        e.store(isa_of(e.target).clock(e), e.at(row, LOG - 1, I64), 8)


def _log_thread(e: Emitter, program: Program, context: Value, worker: Value) -> None:
    """The number under which the system knows this thread."""
    row = _log_row(e, program, context, worker, -1)

    def ask(call: Callable[..., Value]) -> None:
        e.store(call(I64(isa_of(e.target).gettid)), row, 8)

    _with_syscall(e, context, ask)


def _emit_clock(program: Program) -> None:
    """clock(): the ticks that the log is written in."""
    clock = plain(ir.Function(program.module, ir.FunctionType(I64, []), "clock"))
    e = Emitter(program.module, clock, program.target)
    e.b.ret(isa_of(e.target).clock(e))


def _word(e: Emitter, context: Value, index: int) -> Value:
    return e.at(e.load(e.at(context, SYNC, PTR), PTR, 8), index, I32)


def _read(e: Emitter, word: Value) -> Value:
    return e.b.load_atomic(word, "acquire", 4, typ=I32)


def _futex(e: Emitter, context: Value, word: Value, operation: int, value: Value) -> None:
    number = I64(isa_of(e.target).futex)

    def ask(call: Callable[..., Value]) -> None:
        wide = e.b.zext(value, I64)
        call(number, e.b.ptrtoint(word, I64), I64(operation), wide, I64(0))

    _with_syscall(e, context, ask)


def _with_syscall(e: Emitter, context: Value, ask: Callable[[Callable[..., Value]], None]) -> None:
    """Through libc's syscall(), the one function outside the module: its address stands in the sync
    block (0 where there is none), so that code needs no inline assembly and no relocation."""
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    syscall = e.load(_word(e, context, SYSCALL), kind.as_pointer(), 8)
    with e.when(e.b.icmp_unsigned("!=", e.b.ptrtoint(syscall, I64), I64(0))):
        ask(lambda *args: e.b.call(syscall, args))


def _waiter(program: Program) -> ir.Function:
    """await(context, index, old): return when the word at this index differs from old.

    Spin, then sleep. Sleepers are counted, so that nobody makes a system call to wake no one. How
    long a spin may last adapts: where the one waited for has no core to run on (others use the
    machine, or both were put on one core), spinning only delays it. A vain spin divides the limit
    by 8, a spin that was worth it doubles it, and every 64th vain one tries the whole length again.
    Measured on 2 cores, 12 convolutions of 75 us: 820 us with 4000 spins, 1140 us on one worker;
    both workers on one core: 2030 us with 4000 spins, 1120 us with a limit that adapts.
    """

    def build(e: Emitter) -> None:
        context, index, old = e.args
        word = e.at(_word(e, context, 0), index, I32)
        limit = e.at(word, LINE, I32)
        names = ("head", "spin", "sleep", "wake", "done")
        head, spin, sleep, wake, done = map(e.function.append_basic_block, names)
        entry = e.b.block
        most = e.load(limit, I32, 4)
        e.b.branch(head)
        e.b.position_at_end(head)
        count = e.b.phi(I32)
        count.add_incoming(I32(0), entry)
        e.b.cbranch(e.b.icmp_signed("!=", _read(e, word), old), done, spin)
        e.b.position_at_end(spin)
        isa_of(e.target).pause(e)
        after = e.b.add(count, I32(1))
        count.add_incoming(after, spin)
        e.b.cbranch(e.b.icmp_signed("<", after, most), head, sleep)
        e.b.position_at_end(sleep)
        _sleep(e, context, word, old)
        changed = e.b.icmp_signed("!=", _read(e, word), old)
        e.b.cbranch(changed, wake, sleep)
        e.b.position_at_end(wake)
        _shorten(e, context, limit)
        e.b.ret_void()
        e.b.position_at_end(done)
        with e.when(e.b.icmp_signed(">", count, I32(0))):
            _set_limit(e, context, limit, e.b.shl(most, I32(1)))

    return program.function("await", [PTR, I64, I32], build, trusted=True)


def _sleep(e: Emitter, context: Value, word: Value, old: Value) -> None:
    asleep = _word(e, context, ASLEEP)
    e.b.atomic_rmw("add", asleep, I32(1), "seq_cst")
    with e.when(e.b.icmp_signed("==", _read(e, word), old)):
        _futex(e, context, word, _WAIT, old)
    e.b.atomic_rmw("sub", asleep, I32(1), "seq_cst")


def _shorten(e: Emitter, context: Value, limit: Value) -> None:
    """After a vain spin. Workers may write at once: any of their values will do."""
    vain = e.at(limit, 1, I32)
    count = e.b.add(e.load(vain, I32, 4), I32(1))
    e.store(count, vain, 4)
    again = e.b.icmp_signed("==", e.b.and_(count, I32(63)), I32(0))
    shorter = e.b.lshr(e.load(limit, I32, 4), I32(3))
    _set_limit(e, context, limit, e.b.select(again, I32(2**30), shorter))


def _set_limit(e: Emitter, context: Value, limit: Value, value: Value) -> None:
    most = e.load(_word(e, context, MOST_SPINS), I32, 4)
    value = e.b.select(e.b.icmp_signed("<", value, most), value, most)
    low = I32(16)
    e.store(e.b.select(e.b.icmp_signed(">", value, low), value, low), limit, 4)


def _announce(e: Emitter, context: Value, word: Value) -> None:
    """Change the word, and wake whoever sleeps on it."""
    e.b.atomic_rmw("add", word, I32(1), "seq_cst")
    with e.when(e.b.icmp_signed("!=", _read(e, _word(e, context, ASLEEP)), I32(0))):
        _futex(e, context, word, _WAKE, I32(_ALL))


def _barrier(program: Program) -> ir.Function:
    """Everybody waits for the last one."""

    def build(e: Emitter) -> None:
        workers, context = e.args
        phase = _word(e, context, PHASE)
        old = _read(e, phase)
        arrived = _word(e, context, ARRIVED)
        before = e.b.atomic_rmw("add", arrived, I32(1), "acq_rel")
        last = e.b.icmp_signed("==", e.b.zext(before, I64), e.b.sub(workers, I64(1)))
        with e.b.if_else(last) as (then, otherwise):
            with then:
                e.b.atomic_rmw("xchg", arrived, I32(0), "release")
                _announce(e, context, phase)
            with otherwise:
                e.b.call(_waiter(program), [context, I64(PHASE), old])

    return program.function("barrier", [I64, PTR], build, trusted=True)


def _emit_invoke(program: Program, run: ir.Function) -> ir.Function:
    """invoke(workers, context), called by the user's thread: it is worker 0. Returns the fault."""
    invoke = plain(ir.Function(program.module, ir.FunctionType(I64, [I64, PTR]), "invoke"))
    e = Emitter(program.module, invoke, program.target)
    workers, context = invoke.args
    e.store(I64(0), e.at(context, FAULT, I64), 8)
    times = _Times(e, program, context) if program.timed and not program.traced else None
    if times is not None:
        times.mark()
    with e.when(e.b.icmp_signed(">", workers, I64(1))):
        _announce(e, context, _word(e, context, EPOCH))
    restore = isa_of(e.target).flush_tiny(e)
    e.b.call(run, [I64(0), workers, context])
    restore()
    if times is not None:
        times.add(workers, 0)  # the cell behind the last worker's
    e.b.ret(e.load(e.at(context, FAULT, I64), I64, 8))
    return invoke


def _emit_serve(program: Program, run: ir.Function) -> None:
    """serve(record): wait for work, do it, until told to stop. The record holds worker, workers and
    context: one pointer is all that a thread's first function is given."""
    serve = plain(ir.Function(program.module, ir.FunctionType(PTR, [PTR]), "serve"))
    e = Emitter(program.module, serve, program.target)
    (record,) = serve.args
    worker, workers, context = (
        e.load(e.at(record, i, I64), t, 8) for i, t in enumerate((I64, I64, PTR))
    )
    isa_of(e.target).flush_tiny(e)
    head, work, out = (serve.append_basic_block(n) for n in ("head", "work", "out"))
    entry = e.b.block
    e.b.branch(head)
    e.b.position_at_end(head)
    seen = e.b.phi(I32)
    seen.add_incoming(I32(0), entry)
    e.b.call(_waiter(program), [context, I64(EPOCH), seen])
    stop = e.b.icmp_signed("!=", _read(e, _word(e, context, STOP)), I32(0))
    e.b.cbranch(stop, out, work)
    e.b.position_at_end(work)
    e.b.call(run, [worker, workers, context])
    seen.add_incoming(e.b.add(seen, I32(1)), work)
    e.b.branch(head)
    e.b.position_at_end(out)
    e.b.ret(ir.Constant(PTR, None))


def _emit_stop(program: Program) -> None:
    """stop(context): the workers leave `serve`."""
    stop = plain(ir.Function(program.module, ir.FunctionType(VOID, [PTR]), "stop"))
    e = Emitter(program.module, stop, program.target)
    (context,) = stop.args
    e.b.atomic_rmw("xchg", _word(e, context, STOP), I32(1), "release")
    _announce(e, context, _word(e, context, EPOCH))
    e.b.ret_void()
