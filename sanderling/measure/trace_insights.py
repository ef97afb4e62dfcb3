"""What a trace shows, in sentences: what is lost, why, and what to do about it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from statistics import median

from ..findings import Finding, Rule, findings
from ..runtime.trace_data import BARRIER, NO_CORE, Instant, Slice, Trace
from ..spans import Args
from ..units import byte_size

# Shares from which on a thing is worth a sentence.
WAITING, DOMINATING, COPYING = 0.10, 0.40, 0.02
# Workers of an evenly split step that are at work at the same time: less, and they take turns.
TOGETHER = 0.65
# Nanoseconds of work a step and worker below which a barrier (1 to 2 us) costs as much.
SMALL_STEP = 3000
MOST_OPS = 3  # that are named one by one
CPU = "cpu"  # what a capture's ops that are on no delegate run on


def insights(trace: Trace) -> list[Finding]:
    """What stands out in a trace, the structural things first."""
    return list(findings(RULES, Facts(trace)))


class Facts:
    """A trace as the rules look at it: its steady runs, and what lies in them."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.cores = int(trace.about["cores"])
        # Control flow invokes graphs within a run.
        self.all_runs = _outermost(trace.of_kind("run"))
        # The first one is cold, and so is the first of every other thread that invokes.
        first = {r.thread: r for r in reversed(self.all_runs)}
        later = [r for r in self.all_runs if r is not first[r.thread]]
        self.runs = later or self.all_runs[1:] or self.all_runs

    @property
    def count(self) -> int:
        return max(len(self.runs), 1)

    @cached_property
    def _begins(self) -> list[int]:
        return [r.begin for r in self.runs]

    def run_of(self, begin: int) -> int:
        """Which run this moment is in, or behind."""
        return bisect_right(self._begins, begin) - 1

    @cached_property
    def _of_threads(self) -> dict[int, tuple[list[int], list[int]]]:
        """Begins and ends of runs, by the thread that invokes: theirs may overlap."""
        found: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for run in self.runs:
            found[run.thread][0].append(run.begin)
            found[run.thread][1].append(run.end)
        return dict(found)

    def _in_a_run(self, thread: int, begin: int, end: int) -> bool:
        """A thread that invokes works in runs of its own, a worker in anybody's."""
        own = self._of_threads.get(thread)
        candidates = self._of_threads.values() if own is None else [own]
        places = ((bisect_right(begins, begin) - 1, ends) for begins, ends in candidates)
        return any(place >= 0 and end <= ends[place] for place, ends in places)

    def within(self, kind: str) -> list[Slice]:
        return [s for s in self.trace.of_kind(kind) if self._in_a_run(*s[:3])]

    def moments(self, kind: str) -> list[Instant]:
        return [i for i in self.trace.instants if i.kind == kind]

    @cached_property
    def ops(self) -> list[Slice]:
        """Without those that only call others."""
        return [s for s in self.within("op") if s.name not in ("IF", "WHILE", "CALL", "CALL_ONCE")]

    @cached_property
    def waits(self) -> list[Slice]:
        return self.within(BARRIER)

    @cached_property
    def parts(self) -> list[Slice]:
        return self.within("part")

    @cached_property
    def total(self) -> int:
        """Nanoseconds of all steady runs."""
        return sum(map(_length, self.runs)) or 1

    @cached_property
    def workers(self) -> int:
        return max((int(p.args["workers"]) for p in self.parts), default=1)


def _length(found: Slice) -> int:
    return found.end - found.begin


def _outermost(slices: Iterable[Slice]) -> list[Slice]:
    """On each thread, those that lie in no other."""
    ends: dict[int, int] = defaultdict(int)
    found = []
    for s in slices:
        if s.begin >= ends[s.thread]:
            found.append(s)
            ends[s.thread] = s.end
    return found


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"


def _time(ns: float) -> str:
    for unit, name in ((1e9, "s"), (1e6, "ms")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns / 1e3:.3g} us"


# -- threads --------------------------------------------------------------------------------------


def more_threads_than_cores(facts: Facts) -> Iterator[Finding]:
    """A finding about more threads at once than cores, of one session or of several."""
    borders = sorted(
        b
        for p in facts.parts
        for b in ((p.begin, int(p.args["workers"])), (p.end, -int(p.args["workers"])))
    )
    most = now = 0
    for _, change in borders:
        now += change
        most = max(most, now)
    if 0 < facts.cores < most:
        yield Finding(
            "threads",
            f"{most} threads compute at once, {facts.cores} cores are there for them",
            "threads without a core wait for one, and the others wait for them in barriers",
            f"use threads={facts.cores} or fewer; keep other heavy work out of the inference",
        )


def without_a_core(facts: Facts) -> Iterator[Finding]:
    """What a capture of the whole system shows: threads that could go on, and no core is free."""
    lost = sum(map(_length, facts.within(NO_CORE)))
    held = sum(_length(p) * int(p.args["workers"]) for p in facts.parts)
    if lost > WAITING * held:
        yield Finding(
            "no core",
            f"the inference's threads wait for a core for {_percent(lost, held)} of their time",
            "other threads of the app, or other apps, use the cores meanwhile",
            "let the app's other heavy work not overlap with the inference, or use fewer threads",
        )


def taking_turns(facts: Facts) -> Iterator[Finding]:
    """Steps whose work is split evenly, and whose workers still do not overlap."""
    busy = span = 0
    for group in _by_step(facts):
        workers = _by_thread(group)
        if len(workers) > 1 and 4 * min(workers.values()) > max(workers.values()):
            busy += sum(workers.values())
            span += len(workers) * (max(s.end for s in group) - min(s.begin for s in group))
    if span and facts.workers <= facts.cores and busy < TOGETHER * span:
        yield Finding(
            "turns",
            f"the {facts.workers} workers take turns: of evenly split steps only "
            f"{_percent(busy, span)} of the workers' time is work",
            "each worker has no core to itself: other programs use the machine, or the process may "
            "use less than it seems (containers, affinity, two threads of one core)",
            "stop the other load, or use fewer threads",
        )


def _by_step(facts: Facts) -> Iterator[list[Slice]]:
    """The op slices of each step of each run of a part."""
    groups: dict[tuple[int, str, str], list[Slice]] = defaultdict(list)
    begins = [p.begin for p in facts.parts]
    for s in facts.ops:
        part = bisect_right(begins, s.begin)
        groups[part, s.args["step"], s.args.get("writes", "")].append(s)
    yield from groups.values()


def _by_thread(slices: Iterable[Slice]) -> Counter[int]:
    found: Counter[int] = Counter()
    for s in slices:
        found[s.thread] += _length(s)
    return found


def time_in_barriers(facts: Facts) -> Iterator[Finding]:
    held = sum(_length(p) * int(p.args["workers"]) for p in facts.parts)
    lost = sum(map(_length, facts.waits))
    if facts.workers < 2 or lost < WAITING * held:
        return
    behind: Counter[str] = Counter()
    for wait in facts.waits:
        behind[str(wait.args["behind"])] += _length(wait)
    ((worst, most),) = behind.most_common(1)
    own = _by_thread(s for s in facts.ops if s.args["step"] == worst)
    alone = len(own) < 2 or 10 * min(own.values()) < max(own.values())
    reason = "only one worker has work in it" if alone else "its workers do not end together"
    yield Finding(
        "barriers",
        f"{_percent(lost, held)} of the workers' time is waiting in barriers; the largest "
        f"share ({_percent(most, lost)}) behind step {worst}",
        f"a step ends when its last worker does; of that step, {reason}",
        f"try fewer than {facts.workers} threads: `sanderling bench MODEL --sweep` measures which "
        "number is best",
    )


def too_small(facts: Facts) -> Iterator[Finding]:
    asked = max(
        (int(p.args["threads"]) for p in facts.trace.of_kind("plan") if "threads" in p.args),
        default=1,
    )
    if facts.parts and asked > facts.workers:
        yield Finding(
            "small",
            f"{asked} threads were asked for, there is work for {facts.workers}",
            "a part gets a worker for each 10 us of work that the compiler expects, and no more "
            "than there are CPUs: beyond that, a worker costs more than it saves (delegates that "
            "do not compute in threads use one)",
            f"threads={facts.workers} does the same; for more throughput run several sessions or "
            "larger batches",
        )
    if facts.workers > 1 and facts.ops:
        mean = sum(map(_length, facts.ops)) / len(facts.ops)
        if mean < SMALL_STEP:
            yield Finding(
                "small steps",
                f"a step takes {_time(mean)} of a worker's time on average",
                "handing a step on to the workers costs about 1 us",
                "try threads=1, or larger batches",
            )


# -- delegates ------------------------------------------------------------------------------------


def fallen_back(facts: Facts) -> Iterator[Finding]:
    groups: dict[tuple[str, str, str], dict[int, Instant]] = defaultdict(dict)
    for i in facts.moments("refusal"):
        about = i.args
        groups[about["delegate"], about["runs on"], about["reason"]][int(about["node"])] = i
    for (delegate, runs_on, reason), found in groups.items():
        nodes = set(found)
        spent = sum(
            _length(s)
            for s in facts.ops
            if s.args["delegate"] == runs_on and int(s.args["node"]) in nodes
        )
        named = [f"{i.args['op']} (node {n})" for n, i in sorted(found.items())[:MOST_OPS]]
        more = f" and {len(found) - MOST_OPS} more" if len(found) > MOST_OPS else ""
        yield Finding(
            "fallback",
            f"'{delegate}' does not run {', '.join(named)}{more}: on '{runs_on}' they take "
            f"{_percent(spent, facts.total)} of a run",
            reason,
            _remedy(delegate, runs_on, any(i.args.get("how") == "failed" for i in found.values())),
        )


def _remedy(delegate: str, runs_on: str, has_failed: bool) -> str:
    if has_failed:
        return f"mend what the reason names, or leave '{delegate}' out: the ops are not at fault"
    return (
        "replace them by similar ops that it takes (`sanderling inspect MODEL --delegate "
        f"{delegate}` lists who takes what), or put another delegate before '{runs_on}'"
    )


def in_turns_with_the_cpu(facts: Facts) -> Iterator[Finding]:
    """A finding about a capture, which has no refusals: what no delegate ran, and how often it
    changed."""
    if "captured" not in facts.trace.about:
        return
    taken = [p for p in facts.parts if p.args["delegate"] != CPU]
    left = [p for p in facts.parts if p.args["delegate"] == CPU]
    if not taken or not left:
        return
    names = " and ".join(dict.fromkeys(str(p.args["delegate"]) for p in taken))
    spent: Counter[tuple[str, int]] = Counter()
    for s in facts.ops:
        if s.args["delegate"] == CPU:
            spent[s.args["op"], int(s.args["node"])] += _length(s)
    named = [f"{op} (node {node})" for (op, node), _ in spent.most_common(MOST_OPS)]
    more = f" and {len(spent) - MOST_OPS} more" if len(spent) > MOST_OPS else ""
    own = _accelerator(names)
    yield Finding(
        "fallback",
        f"{names} and the CPU take turns: {len(taken) / facts.count:.3g} and "
        f"{len(left) / facts.count:.3g} parts in a run; on the CPU run {', '.join(named)}{more}, "
        f"{_percent(sum(map(_length, left)), facts.total)} of a run",
        "these ops are not delegated; at each change one waits for the other, and values are "
        "copied",
        "replace them by similar ops that the delegate takes: `sanderling inspect MODEL "
        f"--delegate {own}` gives the reason of each",
    )


def _accelerator(name: str) -> str:
    """Our name of a delegate, by the one that it has in TensorFlow Lite's events."""
    known = {"gpu": "gpu:tflite"} | {
        n: n for n in ("nnapi", "hexagon", "coreml", "edgetpu", "xnnpack")
    }
    return next((ours for theirs, ours in known.items() if theirs in name.lower()), "NAME")


def borders_and_copies(facts: Facts) -> Iterator[Finding]:
    crossed = [i for i in facts.moments("border") if facts._in_a_run(i.thread, i.at, i.at)]
    copied = facts.within("copy")
    spent = sum(map(_length, copied))
    if crossed:
        size = sum(int(i.args["bytes"]) for i in crossed) / facts.count
        yield Finding(
            "borders",
            f"in a run, values cross borders between parts {len(crossed) / facts.count:.3g} times "
            f"({byte_size(size)}); copying takes {_percent(spent, facts.total)} of it",
            "every border ends one delegate's work, and fused ops and threads with it",
            "make the refused ops ones that the delegate takes, so that parts become one; or allow "
            "fewer parts: Session(max_delegated_partitions=1)",
        )
    elif spent > COPYING * facts.total:
        yield Finding(
            "copies",
            f"copying results takes {_percent(spent, facts.total)} of a run",
            "results lie in the runtime's arrays and are copied into the caller's",
            "bind buffers of the results' shapes once: session.bind(feeds, outputs)",
        )


# -- work -----------------------------------------------------------------------------------------


def one_op_dominates(facts: Facts) -> Iterator[Finding]:
    spent: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    about = {}
    for s in facts.ops:
        key = str(s.args["step"]), str(s.args.get("writes", ""))
        spent[key][facts.run_of(s.begin)] += _length(s)
        about[key] = s
    if len(spent) < 3:
        return
    # Of the runs the typical one: a step that was interrupted once is no slow step.
    typical = {k: median(runs.values()) for k, runs in spent.items()}
    key = max(typical, key=lambda k: typical[k])
    args, most, whole = about[key].args, typical[key], sum(typical.values())
    if args["op"] == args["delegate"]:  # a capture's delegate that tells nothing of its ops
        return
    if most > DOMINATING * whole:
        named = f"takes {_percent(most, whole)} of the time in ops"
        is_border = int(args["node"]) < 0
        yield _border(args, named) if is_border else _largest(args, named, len(spent))


def _border(args: Args, share: str) -> Finding:
    """The finding about a step that is no op of the model: a delegate's own memory and its form
    begin there."""
    return Finding(
        "dominating",
        f"{args['op']} ({_kernel(args)}on {args['delegate']}) {share}",
        "it brings values across the border of a part, and there is little work inside of the part",
        "see whether the delegate pays: `sanderling bench MODEL --delegates "
        f"{args['delegate']},{CPU}`; larger batches have more work for each border",
    )


def _largest(args: Args, share: str, count: int) -> Finding:
    return Finding(
        "dominating",
        f"{args['op']} (node {args['node']}, {_kernel(args)}on {args['delegate']}) {share}",
        f"it is the largest of {count} steps: making others faster hardly shows",
        "see with `sanderling profile MODEL` how far it is from what the machine can do; "
        f"{'quantise it, or ' if _is_float(args) else ''}give it fewer channels or a smaller "
        "input",
    )


def _kernel(args: Args) -> str:
    """A capture does not tell it."""
    return f"kernel {args['kernel']} " if "kernel" in args else ""


def _is_float(args: Args) -> bool:
    """Whether a step's tensors, weights among them, are floats; not where they are not told."""
    types = re.findall(r"\b[a-z]+\d+(?=\[)", f"{args.get('inputs', '')} {args.get('outputs', '')}")
    return "f32" in types and not {"i4", "i8", "u8", "i16"} & set(types)


def compiled_anew(facts: Facts) -> Iterator[Finding]:
    made = [s for s in facts.trace.of_kind("compile") if s.name.startswith("compiling ")]
    spent = sum(map(_length, made))
    if spent > max(facts.total / facts.count, 1e8):
        is_cpu = any(s.args.get("delegate", CPU) == CPU for s in made)
        apart = " (the cpu's code that is traced is kept apart from other code)" if is_cpu else ""
        yield Finding(
            "compiling",
            f"{_time(spent)} went into compiling",
            f"this code was not in the cache{apart}",
            "nothing, if a second trace does not show it; otherwise let SANDERLING_CACHE be a "
            "folder that stays",
        )


def cut_short(facts: Facts) -> Iterator[Finding]:
    dropped = int(facts.trace.about.get("dropped", 0))
    if dropped:
        yield Finding(
            "dropped",
            f"{dropped} slices at the end are missing",
            "the recording was full",
            "record fewer runs, or a shorter time",
        )


TRACE = "a trace"
RULES: tuple[Rule[Facts, Finding], ...] = (
    Rule("threads", TRACE, "more threads than cores compute at once", more_threads_than_cores),
    Rule("no core", TRACE, "threads of the inference wait for a core", without_a_core),
    Rule("turns", TRACE, "workers of evenly split steps do not overlap", taking_turns),
    Rule("barriers", TRACE, "workers wait for each other", time_in_barriers),
    Rule("small", TRACE, "there is too little work for the threads", too_small),
    Rule("fallback", TRACE, "a delegate does not run some ops", fallen_back),
    Rule("fallback", TRACE, "a delegate and the CPU take turns", in_turns_with_the_cpu),
    Rule("borders", TRACE, "values cross borders, or results are copied", borders_and_copies),
    Rule("dominating", TRACE, "one op takes most of the time", one_op_dominates),
    Rule("compiling", TRACE, "code was compiled while the trace was recorded", compiled_anew),
    Rule("dropped", TRACE, "the recording was full", cut_short),
)
