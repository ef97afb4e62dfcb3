"""How a worker waits for the state to change, and is woken.

It spins for a while and then sleeps on a futex, so that an idle session burns no CPU and the core
goes to whoever holds what is waited for. Where there is no futex (other systems than Linux) it
spins on.

Linux leaves a thread that slept where it was, also if whoever wakes it is there now and computes:
it looks for an idle core only where few are busy, which of two cores one is not. Both then took
turns on one core for up to 16 ms, with the other idle. So who wakes a worker that last was on its
own core forbids it that core while it wakes it.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ..codegen.emit import I8, I32, I64, PTR, Emitter, Int, Value
from ..codegen.program import Program
from ..isa.base import isa_of
from ..runtime.abi import (
    CORE,
    CREW,
    KEPT_OFF,
    LIMITS,
    MOST_SPINS,
    NAP,
    OF_WORKER,
    STATE,
    SYNC,
    SYSCALL,
    THREAD,
)

# futex(2): its private wait and wake operations.
_WAIT, _WAKE = 128, 129
# Limits of spins do not fall below this. Within a run: as long as a worker waits at the end of a
# step for another that runs; one that sleeps at each of them is as good as absent. Between runs:
# nobody knows how long that is.
FEWEST_SPINS, FEWEST_BETWEEN = 512, 128
# Bytes of a set of CPUs: for 1024 of them.
CPU_SET = 128


def word(e: Emitter, context: Value, index: Int) -> Value:
    """The address of a word of the sync block."""
    return e.at(e.load(e.at(context, SYNC, PTR), PTR, 8), index, I32)


def of_worker(e: Emitter, context: Value, worker: Value, place: int) -> Value:
    """The address of one of a worker's own words."""
    return word(e, context, e.add(e.mul(worker, OF_WORKER), CREW + place))


def read_state(e: Emitter, context: Value, order: str = "acquire") -> Value:
    return e.b.load_atomic(word(e, context, STATE), order, 8, typ=I64)


class _System:
    """System calls, with their numbers for the target."""

    def __init__(self, e: Emitter, call: Callable[..., Value]) -> None:
        self.e, self.isa, self._call = e, isa_of(e.target), call

    def wait(self, at: Value) -> None:
        """Sleep while the word is 1."""
        self._futex(at, _WAIT)

    def wake(self, at: Value) -> None:
        """Wake one who waits."""
        self._futex(at, _WAKE)

    def _futex(self, at: Value, operation: int) -> None:
        self._call(I64(self.isa.futex), self._int(at), I64(operation), I64(1), I64(0))

    def thread(self) -> Value:
        """The number under which the system knows this thread."""
        return self._call(I64(self.isa.gettid))

    def core(self, at: Value) -> Value:
        """The CPU that this thread is on, by way of that word."""
        self.e.store(I32(-1), at, 4)
        self._call(I64(self.isa.getcpu), self._int(at), I64(0), I64(0))
        return self.e.load(at, I32, 4)

    def allowed(self, thread: Value, cpus: Value) -> Value:
        """Ask for the CPUs that a thread may use. Returns the set's length in bytes, or -1."""
        number = I64(self.isa.sched_getaffinity)
        return self._call(number, thread, I64(CPU_SET), self._int(cpus))

    def allow(self, thread: Value, cpus: Value, size: Value) -> None:
        self._call(I64(self.isa.sched_setaffinity), thread, size, self._int(cpus))

    def _int(self, at: Value) -> Value:
        return self.e.b.ptrtoint(at, I64)


def with_system(e: Emitter, context: Value, ask: Callable[[_System], None]) -> None:
    with_syscall(e, context, lambda call: ask(_System(e, call)))


def with_syscall(e: Emitter, context: Value, ask: Callable[[Callable[..., Value]], None]) -> None:
    """Through libc's syscall(), the one function outside the module: its address stands in the sync
    block (0 where there is none), so that code needs no inline assembly and no relocation."""
    kind = ir.FunctionType(I64, [I64], var_arg=True)
    syscall = e.load(word(e, context, SYSCALL), kind.as_pointer(), 8)
    with e.when(e.b.icmp_unsigned("!=", e.b.ptrtoint(syscall, I64), I64(0))):
        ask(lambda *args: e.b.call(syscall, args))


def waiter(program: Program) -> ir.Function:
    """await(context, worker, kind, old): return when the state differs from old. kind: 0 within a
    run, 2 between runs, where the limits lie.

    How long a spin may last adapts: where the one waited for has no core to run on (others use the
    machine, or both were put on one core), spinning only delays it; a core that falls idle is given
    to it. A vain spin divides the limit by 8, a spin that was worth it doubles it, and every 64th
    vain one tries the whole length again.
    """

    def build(e: Emitter) -> None:
        context, worker, kind, old = e.args
        limit = e.at(of_worker(e, context, worker, LIMITS), kind, I32)
        names = ("head", "spin", "sleep", "wake", "done")
        head, spin, sleep, wake, done = map(e.function.append_basic_block, names)
        entry = e.b.block
        most = e.load(limit, I32, 4)
        whole = e.load(word(e, context, MOST_SPINS), I32, 4)
        most = e.b.select(e.b.icmp_signed("==", most, I32(0)), whole, most)
        e.b.branch(head)
        e.b.position_at_end(head)
        count = e.b.phi(I32)
        count.add_incoming(I32(0), entry)
        e.b.cbranch(e.b.icmp_signed("!=", read_state(e, context), old), done, spin)
        e.b.position_at_end(spin)
        isa_of(e.target).pause(e)
        after = e.b.add(count, I32(1))
        count.add_incoming(after, spin)
        e.b.cbranch(e.b.icmp_signed("<", after, most), head, sleep)
        e.b.position_at_end(sleep)
        _sleep(e, context, worker, old)
        e.b.cbranch(e.b.icmp_signed("!=", read_state(e, context), old), wake, sleep)
        e.b.position_at_end(wake)
        within = e.b.icmp_signed("==", kind, I64(0))
        fewest = e.b.select(within, I32(FEWEST_SPINS), I32(FEWEST_BETWEEN))
        _shorten(e, context, limit, e.smax(e.b.lshr(most, I32(3)), fewest))
        e.b.ret_void()
        e.b.position_at_end(done)
        with e.when(e.b.icmp_signed(">", count, I32(0))):
            _set_limit(e, context, limit, e.b.shl(most, I32(1)))

    return program.function("await", [PTR, I64, I64, I64], build, trusted=True)


def _sleep(e: Emitter, context: Value, worker: Value, old: Value) -> None:
    """NAP is set before the state is looked at, and who changes the state does so before it looks
    at NAP: one of the two sees the other."""
    nap = of_worker(e, context, worker, NAP)
    caller = e.b.icmp_signed("==", worker, I64(0))
    with e.b.if_else(caller) as (silent, open_):
        with silent:
            e.store(I32(-1), e.at(nap, CORE - NAP, I32), 4)
        with open_:
            with_system(e, context, lambda system: _say_where(e, system, nap))
    e.b.atomic_rmw("xchg", nap, I32(1), "seq_cst")
    with e.when(e.b.icmp_signed("==", read_state(e, context, "seq_cst"), old)):
        with_system(e, context, lambda system: system.wait(nap))
    e.b.atomic_rmw("xchg", nap, I32(0), "seq_cst")


def _say_where(e: Emitter, system: _System, nap: Value) -> None:
    e.store(system.thread(), e.at(nap, THREAD - NAP, I32), 8)
    system.core(e.at(nap, CORE - NAP, I32))


def _shorten(e: Emitter, context: Value, limit: Value, shorter: Value) -> None:
    """After a vain spin."""
    vain = e.at(limit, 1, I32)
    count = e.b.add(e.load(vain, I32, 4), I32(1))
    e.store(count, vain, 4)
    again = e.b.icmp_signed("==", e.b.and_(count, I32(63)), I32(0))
    _set_limit(e, context, limit, e.b.select(again, I32(2**30), shorter))


def _set_limit(e: Emitter, context: Value, limit: Value, value: Value) -> None:
    most = e.load(word(e, context, MOST_SPINS), I32, 4)
    e.store(e.smin(value, most), limit, 4)


def announcer(program: Program) -> ir.Function:
    """announce(context, state, first, last): change the state, and wake those of these workers who
    sleep."""

    def build(e: Emitter) -> None:
        context, state, first, last = e.args
        e.b.atomic_rmw("xchg", word(e, context, STATE), state, "seq_cst")
        e.b.call(waker(program), [context, first, last])

    return program.function("announce", [PTR, I64, I64, I64], build, trusted=True)


def waker(program: Program) -> ir.Function:
    """wake(context, first, last): those of these workers who sleep. A worker that was woken and has
    no core yet is not woken again."""

    def build(e: Emitter) -> None:
        context, first, last = e.args
        with e.loop(first, last) as worker:
            nap = of_worker(e, context, worker, NAP)
            asleep = e.b.load_atomic(nap, "seq_cst", 4, typ=I32)
            with e.when(e.b.icmp_signed("!=", asleep, I32(0))):
                before = e.b.atomic_rmw("xchg", nap, I32(0), "seq_cst")
                with e.when(e.b.icmp_signed("!=", before, I32(0))):
                    e.b.call(_rouser(program), [context, nap])

    return program.function("wake", [PTR, I64, I64], build, trusted=True)


def _rouser(program: Program) -> ir.Function:
    """rouse(context, nap): wake a worker, and not on the core of whoever wakes it. Where a program
    has left it no other one, the system refuses to forbid it."""

    def build(e: Emitter) -> None:
        context, nap = e.args
        cpus, mine = e.b.alloca(I8, CPU_SET), e.b.alloca(I32)
        with_system(e, context, lambda system: _rouse(e, system, nap, (cpus, mine)))

    return program.function("rouse", [PTR, PTR], build, trusted=True)


def _rouse(e: Emitter, system: _System, nap: Value, room: tuple[Value, Value]) -> None:
    cpus, mine = room
    core = e.load(e.at(nap, CORE - NAP, I32), I32, 4)
    kept_off = e.at(nap, KEPT_OFF - NAP, I32)
    names = ("here", "first", "apart", "back", "plain", "done")
    here, first, apart, back, plain, done = map(e.function.append_basic_block, names)
    e.b.cbranch(e.b.icmp_signed("==", system.core(mine), core), here, plain)
    e.b.position_at_end(here)
    others = e.b.atomic_rmw("xchg", kept_off, I32(1), "acquire")
    e.b.cbranch(e.b.icmp_signed("==", others, I32(0)), first, plain)
    e.b.position_at_end(first)
    thread = e.load(e.at(nap, THREAD - NAP, I32), I64, 8)
    # With signs: a system that refuses to say (-1), or has more CPUs than the set, is left alone.
    size, index = system.allowed(thread, cpus), e.b.zext(e.b.lshr(core, I32(3)), I64)
    e.b.cbranch(e.b.icmp_signed("<", index, size), apart, back)
    e.b.position_at_end(apart)
    byte = e.at(cpus, index, I8)
    before = e.load(byte, I8)
    bit = e.b.shl(I8(1), e.b.trunc(e.b.and_(core, I32(7)), I8))
    e.store(e.b.and_(before, e.b.not_(bit)), byte)
    system.allow(thread, cpus, size)
    system.wake(nap)
    e.store(before, byte)
    system.allow(thread, cpus, size)
    e.b.atomic_rmw("xchg", kept_off, I32(0), "release")
    e.b.branch(done)
    e.b.position_at_end(back)
    e.b.atomic_rmw("xchg", kept_off, I32(0), "release")
    e.b.branch(plain)
    e.b.position_at_end(plain)
    system.wake(nap)
    e.b.branch(done)
    e.b.position_at_end(done)
