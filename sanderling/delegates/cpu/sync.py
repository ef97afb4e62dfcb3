"""Threads without Python on the path: the barrier between steps, and the loop of parked workers.

Both spin for a while and then sleep on a futex, so an idle session burns no CPU and more threads
than cores degrade gently. Where there is no futex (other systems than Linux) they yield instead.
"""

from __future__ import annotations

import sys

import llvmlite.ir as ir

from .emit import I32, I64, PTR, VOID, Emitter, Value
from .program import SYNC, TIMES, Program, plain

# Words of the sync block, each on a cache line of its own.
LINE = 16
ARRIVED, PHASE, EPOCH, STOP, ASLEEP = (i * LINE for i in range(5))
SYNC_WORDS = 5 * LINE
# About 20 to 50 microseconds: longer than a step, shorter than a scheduler's slice.
SPINS = 4000

# The system call's number, instruction and registers.
_FUTEX = {
    "x86_64": (202, "syscall", "={rax},{rax},{rdi},{rsi},{rdx},{r10},~{rcx},~{r11},~{memory}"),
    "aarch64": (98, "svc #0", "={x0},{x8},{x0},{x1},{x2},{x3},~{memory}"),
}
_WAIT, _WAKE, _ALL = 128, 129, 2**31 - 1  # private futex operations
_PAUSE = {"x86_64": "pause", "aarch64": "yield"}


def emit_run(program: Program) -> None:
    """run(worker, workers, context): all steps, a barrier behind each."""
    barrier = _barrier(program)
    run = plain(ir.Function(program.module, ir.FunctionType(VOID, [I64, I64, PTR]), "run"))
    e = Emitter(program.module, run, program.target)
    worker, workers, context = run.args
    for index, step in enumerate(program.steps):
        begin = _clock(e) if program.timed else None
        e.b.call(program.module.globals[step.function], [worker, workers, context])
        if begin is not None:
            _record(e, context, worker, index, len(program.steps), begin)
        with e.when(e.b.icmp_signed(">", workers, I64(1))):
            e.b.call(barrier, [workers, context])
    e.b.ret_void()
    _emit_invoke(program, run)
    _emit_serve(program, run)
    _emit_stop(program)


def _clock(e: Emitter) -> Value:
    return e.call("llvm.readcyclecounter", I64)


def _record(
    e: Emitter, context: Value, worker: Value, index: int, steps: int, begin: Value
) -> None:
    """Add the cycles of this step on this worker to the table of times."""
    times = e.load(e.at(context, TIMES, PTR), PTR, 8)
    cell = e.at(times, e.add(e.mul(worker, steps), index), I64)
    e.store(e.b.add(e.load(cell, I64, 8), e.b.sub(_clock(e), begin)), cell, 8)


def _machine(program: Program) -> str:
    return program.target.triple.split("-")[0]


def _word(e: Emitter, context: Value, index: int) -> Value:
    return e.at(e.load(e.at(context, SYNC, PTR), PTR, 8), index, I32)


def _read(e: Emitter, word: Value) -> Value:
    return e.b.load_atomic(word, "acquire", 4, typ=I32)


def _futex(e: Emitter, program: Program, word: Value, operation: int, value: Value) -> None:
    if not sys.platform.startswith("linux"):
        return
    number, text, constraints = _FUTEX[_machine(program)]
    kind = ir.FunctionType(I64, [I64, I64, I64, I64, I64])
    asm = ir.InlineAsm(kind, text, constraints, side_effect=True)
    wide = e.b.zext(value, I64)
    e.b.call(asm, [I64(number), e.b.ptrtoint(word, I64), I64(operation), wide, I64(0)])


def _pause(e: Emitter, program: Program) -> None:
    asm = ir.InlineAsm(ir.FunctionType(VOID, []), _PAUSE[_machine(program)], "~{memory}",
                       side_effect=True)  # fmt: skip
    e.b.call(asm, [])


def _await_change(e: Emitter, program: Program, context: Value, word: Value, old: Value) -> None:
    """Return when the word differs from old: spin, then sleep. Sleepers are counted, so that nobody
    makes a system call to wake no one."""
    spin, check, sleep, done = (e.function.append_basic_block(n)
                                for n in ("spin", "check", "sleep", "done"))  # fmt: skip
    entry = e.b.block
    e.b.branch(spin)
    e.b.position_at_end(spin)
    count = e.b.phi(I32)
    count.add_incoming(I32(0), entry)
    e.b.cbranch(e.b.icmp_signed("!=", _read(e, word), old), done, check)
    e.b.position_at_end(check)
    _pause(e, program)
    after = e.b.add(count, I32(1))
    count.add_incoming(after, check)
    e.b.cbranch(e.b.icmp_signed("<", after, I32(SPINS)), spin, sleep)
    e.b.position_at_end(sleep)
    asleep = _word(e, context, ASLEEP)
    e.b.atomic_rmw("add", asleep, I32(1), "seq_cst")
    with e.when(e.b.icmp_signed("==", _read(e, word), old)):
        _futex(e, program, word, _WAIT, old)
    e.b.atomic_rmw("sub", asleep, I32(1), "seq_cst")
    count.add_incoming(I32(0), e.b.block)
    e.b.branch(spin)
    e.b.position_at_end(done)


def _announce(e: Emitter, program: Program, context: Value, word: Value) -> None:
    """Change the word, and wake whoever sleeps on it."""
    e.b.atomic_rmw("add", word, I32(1), "seq_cst")
    with e.when(e.b.icmp_signed("!=", _read(e, _word(e, context, ASLEEP)), I32(0))):
        _futex(e, program, word, _WAKE, I32(_ALL))


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
                _announce(e, program, context, phase)
            with otherwise:
                _await_change(e, program, context, phase, old)

    return program.function("barrier", [I64, PTR], build)


def _emit_invoke(program: Program, run: ir.Function) -> None:
    """invoke(workers, context), called by the user's thread: it is worker 0."""
    invoke = plain(ir.Function(program.module, ir.FunctionType(VOID, [I64, PTR]), "invoke"))
    e = Emitter(program.module, invoke, program.target)
    workers, context = invoke.args
    with e.when(e.b.icmp_signed(">", workers, I64(1))):
        _announce(e, program, context, _word(e, context, EPOCH))
    e.b.call(run, [I64(0), workers, context])
    e.b.ret_void()


def _emit_serve(program: Program, run: ir.Function) -> None:
    """serve(worker, workers, context): wait for work, do it, until told to stop."""
    serve = plain(ir.Function(program.module, ir.FunctionType(VOID, [I64, I64, PTR]), "serve"))
    e = Emitter(program.module, serve, program.target)
    worker, workers, context = serve.args
    epoch = _word(e, context, EPOCH)
    head, work, out = (serve.append_basic_block(n) for n in ("head", "work", "out"))
    entry = e.b.block
    e.b.branch(head)
    e.b.position_at_end(head)
    seen = e.b.phi(I32)
    seen.add_incoming(I32(0), entry)
    _await_change(e, program, context, epoch, seen)
    stop = e.b.icmp_signed("!=", _read(e, _word(e, context, STOP)), I32(0))
    e.b.cbranch(stop, out, work)
    e.b.position_at_end(work)
    e.b.call(run, [worker, workers, context])
    seen.add_incoming(e.b.add(seen, I32(1)), work)
    e.b.branch(head)
    e.b.position_at_end(out)
    e.b.ret_void()


def _emit_stop(program: Program) -> None:
    """stop(context): the workers leave `serve`."""
    stop = plain(ir.Function(program.module, ir.FunctionType(VOID, [PTR]), "stop"))
    e = Emitter(program.module, stop, program.target)
    (context,) = stop.args
    e.b.atomic_rmw("xchg", _word(e, context, STOP), I32(1), "release")
    _announce(e, program, context, _word(e, context, EPOCH))
    e.b.ret_void()
