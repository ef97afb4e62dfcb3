"""Whether a run is shared or its caller computes alone: what was faster before decides.

What sharing gains depends on what no compiler knows: whether a worker is still awake, whether
others use its core, where a hypervisor has put it, who else shares its cache. So each executable
takes the time of its runs. It prefers one manner, tries the other now and then (the longer the
preference holds, the seldomer), and changes its preference when the other is faster. What it has
learnt of runs that follow each other closely, where workers are awake or soon will be, says nothing
of runs after a pause, where they sleep and caches are cold: it learns both apart.

A run is close to the one before if the pause between them is not longer than that run was.
Workers who sleep are woken for the first step that is shared when runs are close: they spin between
runs (waiting.py) and are awake for those that follow. After a pause they are woken only for steps
with WAKES (division.py).
"""

from __future__ import annotations

import llvmlite.ir as ir

from ..codegen.emit import I32, I64, PTR, Emitter, Value
from ..codegen.program import Program
from ..isa.base import isa_of
from ..runtime.abi import ALWAYS, FOR_ASLEEP, FOR_AWAKE, HABITS, LINE, RUN, WAKES
from .waiting import word

SHARED, ALONE = 0, 1
# The words of the line RUN: when the last run ended and how long it took, in ticks; when this one
# began, the address of its habits, in which manner it runs, and the one before did.
ENDED, LASTED, BEGAN, HABIT, MANNER, BEFORE = range(6)
# The words of a line of habits: the usual ticks of a run in either manner (0: not known), which one
# is preferred, runs since the last trial, between which two there is one, and runs of it to come.
USUAL, PREFERRED, SINCE, EVERY, TRIAL = 0, 2, 3, 4, 5
# Runs before the first trial, and the fewest and most between two.
FIRST, FEWEST, MOST = 8, 32, 1024
# How long a trial is. A worker that slept is late for the first run, which does not count.
TRIAL_ALONE, TRIAL_SHARED = 1, 3
NEVER = 2**30  # no word of CHUNKS is so large
SHARES = 2  # words of CHUNKS from here on are of steps with several chunks


class _Words:
    """64-bit words of a line."""

    def __init__(self, e: Emitter, base: Value) -> None:
        self.e, self.base = e, base

    def at(self, index: Value | int) -> Value:
        return self.e.at(self.base, index, I64)

    def get(self, index: Value | int) -> Value:
        return self.e.load(self.at(index), I64, 8)

    def set(self, index: Value | int, value: Value | int) -> None:
        self.e.store(self.e.i64(value), self.at(index), 8)


def choose(program: Program) -> ir.Function:
    """choose(context): a run of several workers begins."""

    def build(e: Emitter) -> None:
        (context,) = e.args
        run = _Words(e, word(e, context, RUN))
        now = isa_of(e.target).clock(e)
        run.set(BEGAN, now)
        pause, last = e.b.sub(now, run.get(ENDED)), run.get(LASTED)
        close = e.b.icmp_unsigned("<", pause, last)
        line = e.b.select(close, I64(HABITS + LINE), I64(HABITS))
        habit = _Words(e, word(e, context, line))
        run.set(HABIT, e.b.ptrtoint(habit.base, I64))
        tries = e.b.zext(e.b.icmp_signed(">", habit.get(TRIAL), I64(0)), I64)
        found = e.b.xor(habit.get(PREFERRED), tries)
        always = e.b.icmp_signed("!=", e.load(word(e, context, ALWAYS), I32, 4), I32(0))
        manner = e.b.select(always, I64(SHARED), found)
        run.set(MANNER, manner)
        alone = e.b.icmp_signed("==", manner, I64(ALONE))
        wakes = e.b.select(close, I32(SHARES), I32(WAKES))
        for place, least in ((FOR_AWAKE, I32(SHARES)), (FOR_ASLEEP, wakes)):
            _set(e, word(e, context, place), e.b.select(alone, I32(NEVER), least))

    return program.function("choose", [PTR], build, trusted=True)


def _set(e: Emitter, at: Value, value: Value) -> None:
    """Others read this line: it is written to only if something changes."""
    with e.when(e.b.icmp_signed("!=", e.load(at, I32, 4), value)):
        e.store(value, at, 4)


def learn(program: Program) -> ir.Function:
    """learn(context): the run is over."""

    def build(e: Emitter) -> None:
        (context,) = e.args
        run = _Words(e, word(e, context, RUN))
        now = isa_of(e.target).clock(e)
        lasted, manner = e.b.sub(now, run.get(BEGAN)), run.get(MANNER)
        before = run.get(BEFORE)
        for place, value in ((ENDED, now), (LASTED, lasted), (BEFORE, manner)):
            run.set(place, value)
        habit = _Words(e, e.b.inttoptr(run.get(HABIT), PTR))
        # Not a shared run behind one alone.
        with e.when(e.b.icmp_signed(">=", manner, before)):
            _note(e, _Words(e, habit.at(manner)), lasted)
        _next_trial(e, habit)
        _prefer(e, habit)

    return program.function("learn", [PTR], build, trusted=True)


def _note(e: Emitter, usual: _Words, lasted: Value) -> None:
    """Half way to what this run took, but by no more than an eighth: one that somebody interrupted
    says little."""
    old = usual.get(0)
    most = e.b.ashr(old, I64(3))
    half = e.b.ashr(e.b.sub(lasted, old), I64(1))
    moved = e.b.add(old, e.smax(e.smin(half, most), e.b.neg(most)))
    known = e.b.icmp_signed("!=", old, I64(0))
    usual.set(0, e.b.select(known, moved, lasted))


def _next_trial(e: Emitter, habit: _Words) -> None:
    """Count runs to the next trial, or runs of it. A trial begins without what was known before."""
    trial, since, every = habit.get(TRIAL), habit.get(SINCE), habit.get(EVERY)
    preferred = habit.get(PREFERRED)
    with e.b.if_else(e.b.icmp_signed(">", trial, I64(0))) as (tries, waits):
        with tries:
            left = e.b.sub(trial, I64(1))
            habit.set(TRIAL, left)
            with e.when(e.b.icmp_signed("==", left, I64(0))):
                doubled = e.b.shl(every, I64(1))
                habit.set(EVERY, e.smax(I64(FEWEST), e.smin(I64(MOST), doubled)))
        with waits:
            habit.set(SINCE, e.b.add(since, I64(1)))
            with e.when(e.b.icmp_signed(">=", since, e.smax(every, I64(FIRST)))):
                habit.set(SINCE, 0)
                other = e.b.xor(preferred, I64(1))
                habit.set(other, 0)
                alone = e.b.icmp_signed("==", other, I64(ALONE))
                habit.set(TRIAL, e.b.select(alone, I64(TRIAL_ALONE), I64(TRIAL_SHARED)))


def _prefer(e: Emitter, habit: _Words) -> None:
    """Change to the other manner if it takes a thirty-second less."""
    preferred = habit.get(PREFERRED)
    other = e.b.xor(preferred, I64(1))
    mine, its = habit.get(preferred), habit.get(other)
    with_margin = e.b.add(its, e.b.ashr(its, I64(5)))
    less = e.b.icmp_signed("<", with_margin, mine)
    with e.when(e.b.and_(e.b.icmp_signed("!=", its, I64(0)), less)):
        habit.set(PREFERRED, other)
        for place in (SINCE, EVERY, TRIAL):
            habit.set(place, 0)
