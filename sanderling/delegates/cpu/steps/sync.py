"""Threads without Python on the path: workers claim the chunks of a phase, and nobody waits for one
who holds none.

A phase is a step, or several that need nothing of each other (phases.py). STATE says where an
executable with P phases is: run * (P + 1), and one more than the number of the phase that is worked
on; 0 instead of that between runs. It only grows, so that whoever comes late sees that it is late.
Each worker owns an equal range of a phase's chunks and takes them from the front; who has none left
takes others' from the back. A word for each worker says which are taken:

    state (48 bits) | taken from the front (8) | taken from the back (8)

A word of an older state says that none is taken yet: nobody has to set the words up. To claim is to
compare and swap such a word. It succeeds only while a chunk of that very state is left, hence while
the phase is not complete: a late worker never touches what a later one, or the caller, has.

The worker whose count of done chunks completes a phase goes on to the next (`advance`): it does by
itself those that are not worth sharing, or that nobody is awake for, looks at the conditions of
branches, and announces the next that is shared, or the end of the run. What is computed goes from
one to the other through DONE and STATE: added to with release and acquire, and read with acquire.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import llvmlite.ir as ir

from ..codegen.emit import I1, I8, I32, I64, PTR, VOID, Emitter, Value, plain
from ..codegen.program import Phase, Program
from ..dialect.guards import Guard, guard_of
from ..isa.base import isa_of
from ..runtime.abi import (
    CHUNKS,
    CLAIM,
    DONE,
    FAULT,
    FOR_ASLEEP,
    FOR_AWAKE,
    NAP,
    STATE,
    STOP,
    WAKES,
    WORKERS,
)
from .choice import SHARES, choose, learn
from .pycall_code import emit_call
from .ticks import Log, Times, emit_clock, teller
from .waiting import announcer, of_worker, read_state, waiter, waker, word


def emit_run(program: Program) -> None:
    """All that runs the steps: invoke, serve, stop."""
    advance = _advance(program)
    toil = _toil(program, advance)
    emit_call(program, _emit_invoke(program, advance, toil))
    _emit_serve(program, toil)
    _emit_stop(program)
    if program.traced:
        emit_clock(program)


def _internal(program: Program, name: str, result: ir.Type, args: list[ir.Type]) -> ir.Function:
    function = plain(ir.Function(program.module, ir.FunctionType(result, args), name))
    function.linkage = "internal"
    return function


def _entry(e: Emitter, context: Value, index: Value) -> Value:
    """The phase's word of the table CHUNKS."""
    return e.load(e.at(e.load(e.at(context, CHUNKS, PTR), PTR, 8), index, I32), I32, 4)


def _chunks(e: Emitter, entry: Value) -> Value:
    return e.b.zext(e.b.and_(entry, I32(WAKES - 1)), I64)


def _advance(program: Program) -> ir.Function:
    """advance(at, worker, context): do the phases from here on, up to the first that is shared.
    Returns its number; that behind the last if there is none."""
    function = _internal(program, "advance", I64, [I64, I64, PTR])
    e = Emitter(program.module, function, program.target)
    at, worker, context = function.args
    tell = teller(e, program, context)
    tell.mark()
    least = _least(e, context)
    phases = program.phases
    starts = [function.append_basic_block("phase") for _ in range(len(phases) + 1)]
    resume = e.b.switch(at, starts[-1])
    for index, start in enumerate(starts[:-1]):
        resume.add_case(I64(index), start)
    for guard, group in groupby(range(len(phases)), lambda i: _guard(program, phases[i])):
        numbers = list(group)
        for index in numbers:
            e.b.position_at_end(starts[index])
            if guard and index == numbers[0]:
                body = function.append_basic_block("body")
                held = _holds(e, program, context, guard)
                e.b.cbranch(held, body, starts[numbers[-1] + 1])
                e.b.position_at_end(body)
            entry = _entry(e, context, I64(index))
            with e.when(e.b.icmp_unsigned(">=", entry, least)):
                e.b.ret(I64(index))
            for step in phases[index].steps:
                tell.begin(worker, I64(step))
                _call(e, program, step, [I64(0), I64(1), I64(1), worker, context])
                tell.end(worker, I64(step))
            e.b.branch(starts[index + 1])
    e.b.position_at_end(starts[-1])
    e.b.ret(I64(len(phases)))
    return function


def _guard(program: Program, phase: Phase) -> Guard:
    """The guard of a phase, which all its steps have."""
    return guard_of(program.steps[phase.steps[0]].op)


def _call(e: Emitter, program: Program, step: int, given: Sequence[Value]) -> None:
    e.b.call(program.module.globals[program.steps[step].function], given)


def _least(e: Emitter, context: Value) -> Value:
    """The least word of CHUNKS that is worth announcing: it depends on whether anybody is awake."""
    names = ("head", "look", "asleep", "awake", "known")
    head, look, asleep, awake, known = map(e.function.append_basic_block, names)
    workers, entry = _workers(e, context), e.b.block
    e.b.branch(head)
    e.b.position_at_end(head)
    # Whoever asks is awake, too: others are looked for from the next on.
    other = e.b.phi(I64)
    other.add_incoming(I64(1), entry)
    e.b.cbranch(e.b.icmp_signed("<", other, workers), look, asleep)
    e.b.position_at_end(look)
    around = e.b.add(e.args[1], other)
    beyond = e.b.sub(around, workers)
    around = e.b.select(e.b.icmp_signed("<", beyond, I64(0)), around, beyond)
    nap = e.b.load_atomic(of_worker(e, context, around, NAP), "monotonic", 4, typ=I32)
    other.add_incoming(e.b.add(other, I64(1)), look)
    e.b.cbranch(e.b.icmp_signed("==", nap, I32(0)), awake, head)
    found = []
    for block, place in ((asleep, FOR_ASLEEP), (awake, FOR_AWAKE)):
        e.b.position_at_end(block)
        found.append((e.load(word(e, context, place), I32, 4), block))
        e.b.branch(known)
    e.b.position_at_end(known)
    least = e.b.phi(I32)
    for value, block in found:
        least.add_incoming(value, block)
    return e.smax(least, I32(SHARES))  # where one worker runs, nobody has set them


def _holds(e: Emitter, program: Program, context: Value, guard: Guard) -> Value:
    """All conditions are as they should be."""
    found = I1(1)
    for tensor, polarity in guard:
        place = program.places[tensor]
        base = e.load(e.at(context, place.slot, PTR), PTR, 8)
        value = e.load(e.at(base, place.offset, I8), I8)
        found = e.b.and_(found, e.b.icmp_signed("!=" if polarity else "==", value, I8(0)))
    return found


def _perform(program: Program) -> ir.Function:
    """perform(phase, chunk, chunks, worker, context): compute a chunk."""
    function = _internal(program, "perform", VOID, [I64, I64, I64, I64, PTR])
    e = Emitter(program.module, function, program.target)
    number, *given = function.args
    after = function.append_basic_block("after")
    choice = e.b.switch(number, after)
    for index, phase in enumerate(program.phases):
        block = function.append_basic_block("phase")
        choice.add_case(I64(index), block)
        e.b.position_at_end(block)
        if len(phase.steps) > 1:
            _pieces(e, program, phase, given)
        else:
            chunk, *others = given
            _call(e, program, phase.steps[0], [chunk, e.b.add(chunk, I64(1)), *others])
        e.b.branch(after)
    e.b.position_at_end(after)
    e.b.ret_void()
    return function


def _pieces(e: Emitter, program: Program, phase: Phase, given: Sequence[Value]) -> None:
    """The chunk's range of the pieces of all steps, one step's behind the other's."""
    chunk, chunks, worker, context = given
    most = I64(sum(phase.pieces))
    begin = e.b.udiv(e.b.mul(chunk, most), chunks)
    end = e.b.udiv(e.b.mul(e.b.add(chunk, I64(1)), most), chunks)
    for step, pieces in zip(phase.steps, phase.pieces, strict=True):
        first, behind = e.smax(begin, I64(0)), e.smin(end, I64(pieces))
        with e.when(e.b.icmp_signed("<", first, behind)):
            _call(e, program, step, [first, behind, I64(pieces), worker, context])
        begin, end = (e.b.sub(n, I64(pieces)) for n in (begin, end))


def _toil(program: Program, advance: ir.Function) -> ir.Function:
    """toil(state, worker, context): take part in the phase of this state until the state has
    changed, or is seen to have changed."""
    function = _internal(program, "toil", VOID, [I64, I64, PTR])
    e = Emitter(program.module, function, program.target)
    state, worker, context = function.args
    phase = e.b.sub(_place(e, program, state), I64(1))
    chunks = _chunks(e, _entry(e, context, phase))
    workers = _workers(e, context)
    done = e.b.alloca(I64)
    e.store(I64(0), done, 8)
    _claim_all(e, program, (state, phase, chunks, worker, workers, context), done)
    mine = e.load(done, I64, 8)
    with e.when(e.b.icmp_signed(">", mine, I64(0))):
        count = word(e, context, DONE)
        before = e.b.atomic_rmw("add", count, mine, "acq_rel")
        with e.when(e.b.icmp_signed("==", e.b.add(before, mine), chunks)):
            e.b.atomic_rmw("xchg", count, I64(0), "monotonic")
            following = e.b.call(advance, [e.b.add(phase, I64(1)), worker, context])
            new = e.b.add(e.b.sub(state, phase), following)
            _publish(e, program, context, new, following)
            e.b.ret_void()
    e.b.call(waiter(program), [context, worker, I64(0), state])
    e.b.ret_void()
    return function


def _workers(e: Emitter, context: Value) -> Value:
    return e.b.zext(e.load(word(e, context, WORKERS), I32, 4), I64)


def _publish(e: Emitter, program: Program, context: Value, state: Value, phase: Value) -> None:
    """Announce a phase: also to those who sleep if it is worth waking them, but to no more than
    there are chunks; at the end to the caller alone."""
    over = e.b.icmp_signed("==", phase, I64(len(program.phases)))
    entry = _entry(e, context, phase)
    wakes = e.b.icmp_unsigned(">=", entry, e.load(word(e, context, FOR_ASLEEP), I32, 4))
    some = e.b.select(wakes, e.min(_workers(e, context), _chunks(e, entry)), I64(0))
    last = e.b.select(over, I64(1), some)
    e.b.call(announcer(program), [context, state, I64(0), last])


def _claim_all(e: Emitter, program: Program, given: tuple[Value, ...], done: Value) -> None:
    """Claim and compute chunks, this worker's first, until none is left. Code that tells has a
    step in each phase: their numbers are the same."""
    state, phase, chunks, worker, workers, context = given
    perform = _perform(program)
    tell = teller(e, program, context)
    tag = e.b.shl(state, I64(16))
    with e.loop(0, workers) as turn:
        own = e.b.icmp_signed("==", turn, I64(0))
        owner = e.b.add(worker, turn)
        around = e.b.sub(owner, workers)
        owner = e.b.select(e.b.icmp_signed("<", around, I64(0)), owner, around)
        first = e.b.udiv(e.b.mul(owner, chunks), workers)
        last = e.b.udiv(e.b.mul(e.b.add(owner, I64(1)), chunks), workers)
        claim = of_worker(e, context, owner, CLAIM)
        names = ("look", "try", "work", "none")
        look, attempt, work, none = map(e.function.append_basic_block, names)
        e.b.branch(look)
        e.b.position_at_end(look)
        seen = e.b.load_atomic(claim, "monotonic", 8, typ=I64)
        # In an older state none is taken; in a newer one this phase is over.
        old, new = (e.b.icmp_unsigned(o, e.b.lshr(seen, I64(16)), state) for o in ("<", ">"))
        taken = e.b.select(old, I64(0), e.b.and_(seen, I64(0xFFFF)))
        front, back = e.b.lshr(taken, I64(8)), e.b.and_(taken, I64(0xFF))
        begin, end = e.b.add(first, front), e.b.sub(last, back)
        empty = e.b.or_(new, e.b.icmp_signed(">=", begin, end))
        e.b.cbranch(empty, none, attempt)
        e.b.position_at_end(attempt)
        chunk = e.b.select(own, begin, e.b.sub(end, I64(1)))
        one = e.b.select(own, I64(1 << 8), I64(1))
        wanted = e.b.add(e.b.or_(tag, taken), one)
        swapped = e.b.cmpxchg(claim, seen, wanted, "acq_rel", "monotonic")
        e.b.cbranch(e.b.extract_value(swapped, 1), work, look)
        e.b.position_at_end(work)
        before = e.load(done, I64, 8)
        with e.when(e.b.icmp_signed("==", before, I64(0))):
            tell.begin(worker, phase)
        tell.mark()
        e.b.call(perform, [phase, chunk, chunks, worker, context])
        tell.end(worker, phase)
        e.store(e.b.add(before, I64(1)), done, 8)
        e.b.branch(look)
        e.b.position_at_end(none)


def _emit_invoke(program: Program, advance: ir.Function, toil: ir.Function) -> ir.Function:
    """invoke(workers, context), called by the user's thread: it is worker 0. Returns the fault."""
    invoke = plain(ir.Function(program.module, ir.FunctionType(I64, [I64, PTR]), "invoke"))
    e = Emitter(program.module, invoke, program.target)
    workers, context = invoke.args
    me = I64(0)
    e.store(I64(0), e.at(context, FAULT, I64), 8)
    tell = teller(e, program, context)
    tell.mark()
    if isinstance(tell, Log):
        tell.thread(me)
    restore = isa_of(e.target).flush_tiny(e)
    several = e.b.icmp_signed(">", workers, I64(1))
    with e.when(several):
        e.b.call(choose(program), [context])
    before = read_state(e, context, "monotonic")
    phase = e.b.call(advance, [I64(0), me, context])
    with e.when(e.b.icmp_signed("!=", phase, I64(len(program.phases)))):
        _publish(e, program, context, e.b.add(e.b.add(before, I64(1)), phase), phase)
        head, work, over = map(invoke.append_basic_block, ("head", "work", "over"))
        e.b.branch(head)
        e.b.position_at_end(head)
        state = read_state(e, context)
        e.b.cbranch(_is_idle(e, program, state), over, work)
        e.b.position_at_end(work)
        e.b.call(toil, [state, me, context])
        e.b.branch(head)
        e.b.position_at_end(over)
        if isinstance(tell, Log):
            tell.released(me, e.b.add(before, I64(1)))
    with e.when(several):
        e.b.call(learn(program), [context])
    restore()
    if isinstance(tell, Times):
        tell.end(workers, I64(0))  # the cell behind the last worker's
    e.b.ret(e.load(e.at(context, FAULT, I64), I64, 8))
    return invoke


def _is_idle(e: Emitter, program: Program, state: Value) -> Value:
    return e.b.icmp_signed("==", _place(e, program, state), I64(0))


def _place(e: Emitter, program: Program, state: Value) -> Value:
    """0 between runs, else one more than the number of the phase."""
    return e.b.urem(state, I64(len(program.phases) + 1))


def _emit_serve(program: Program, toil: ir.Function) -> None:
    """serve(record): take part in every run, until told to stop. The record holds worker, workers
    and context: one pointer is all that a thread's first function is given."""
    serve = plain(ir.Function(program.module, ir.FunctionType(PTR, [PTR]), "serve"))
    e = Emitter(program.module, serve, program.target)
    (record,) = serve.args
    worker, context = (e.load(e.at(record, i, I64), t, 8) for i, t in ((0, I64), (2, PTR)))
    isa_of(e.target).flush_tiny(e)
    if program.traced:
        Log(e, program, context).thread(worker)
    names = ("head", "idle", "rest", "work", "out")
    head, idle, rest, work, out = map(serve.append_basic_block, names)
    e.b.branch(head)
    e.b.position_at_end(head)
    state = read_state(e, context)
    e.b.cbranch(_is_idle(e, program, state), idle, work)
    e.b.position_at_end(idle)
    stop = e.b.load_atomic(word(e, context, STOP), "acquire", 4, typ=I32)
    e.b.cbranch(e.b.icmp_signed("!=", stop, I32(0)), out, rest)
    e.b.position_at_end(rest)
    e.b.call(waiter(program), [context, worker, I64(2), state])
    e.b.branch(head)
    e.b.position_at_end(work)
    e.b.call(toil, [state, worker, context])
    e.b.branch(head)
    e.b.position_at_end(out)
    e.b.ret(ir.Constant(PTR, None))


def _emit_stop(program: Program) -> None:
    """stop(context): the workers leave `serve` when no run is on. While one is, the state is the
    run's, and who sleeps is not told: ask again (executable.py, at the end of the program)."""
    stop = plain(ir.Function(program.module, ir.FunctionType(VOID, [PTR]), "stop"))
    e = Emitter(program.module, stop, program.target)
    (context,) = stop.args
    e.b.atomic_rmw("xchg", word(e, context, STOP), I32(1), "release")
    state = read_state(e, context)
    with e.when(_is_idle(e, program, state)):
        after = e.b.add(state, I64(len(program.phases) + 1))
        place = word(e, context, STATE)
        swapped = e.b.cmpxchg(place, state, after, "seq_cst", "monotonic")
        with e.when(e.b.extract_value(swapped, 1)):
            e.b.call(waker(program), [context, I64(0), _workers(e, context)])
    e.b.ret_void()
