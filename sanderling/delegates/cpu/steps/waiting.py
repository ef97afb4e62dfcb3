"""How a worker waits for the state to change, and is woken.

It spins for a while and then sleeps on a futex, so that an idle session burns no CPU and the core
goes to whoever holds what is waited for. Where there is no futex (other systems than Linux) it
spins on.
"""

from __future__ import annotations

from collections.abc import Callable

import llvmlite.ir as ir

from ..codegen.emit import I32, I64, PTR, Emitter, Int, Value
from ..codegen.program import Program
from ..isa.base import isa_of
from ..runtime.abi import CREW, LIMITS, MOST_SPINS, NAP, OF_WORKER, STATE, SYNC, SYSCALL

# futex(2): its private wait and wake operations.
_WAIT, _WAKE = 128, 129
# Limits of spins do not fall below this. Within a run: as long as a worker waits at the end of a
# step for another that runs; one that sleeps at each of them is as good as absent. Between runs:
# nobody knows how long that is.
FEWEST_SPINS, FEWEST_BETWEEN = 512, 128


def word(e: Emitter, context: Value, index: Int) -> Value:
    """The address of a word of the sync block."""
    return e.at(e.load(e.at(context, SYNC, PTR), PTR, 8), index, I32)


def of_worker(e: Emitter, context: Value, worker: Value, place: int) -> Value:
    """The address of one of a worker's own words."""
    return word(e, context, e.add(e.mul(worker, OF_WORKER), CREW + place))


def read_state(e: Emitter, context: Value, order: str = "acquire") -> Value:
    return e.b.load_atomic(word(e, context, STATE), order, 8, typ=I64)


def _futex(e: Emitter, context: Value, at: Value, operation: int) -> None:
    """Wait while the word is 1, or wake one who waits."""
    number = I64(isa_of(e.target).futex)

    def ask(call: Callable[..., Value]) -> None:
        call(number, e.b.ptrtoint(at, I64), I64(operation), I64(1), I64(0))

    with_syscall(e, context, ask)


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
    e.b.atomic_rmw("xchg", nap, I32(1), "seq_cst")
    with e.when(e.b.icmp_signed("==", read_state(e, context, "seq_cst"), old)):
        _futex(e, context, nap, _WAIT)
    e.b.atomic_rmw("xchg", nap, I32(0), "seq_cst")


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
    sleep. A worker that was woken and has no core yet is not woken again."""

    def build(e: Emitter) -> None:
        context, state, first, last = e.args
        e.b.atomic_rmw("xchg", word(e, context, STATE), state, "seq_cst")
        with e.loop(first, last) as worker:
            nap = of_worker(e, context, worker, NAP)
            asleep = e.b.load_atomic(nap, "seq_cst", 4, typ=I32)
            with e.when(e.b.icmp_signed("!=", asleep, I32(0))):
                before = e.b.atomic_rmw("xchg", nap, I32(0), "seq_cst")
                with e.when(e.b.icmp_signed("!=", before, I32(0))):
                    _futex(e, context, nap, _WAKE)

    return program.function("announce", [PTR, I64, I64, I64], build, trusted=True)
