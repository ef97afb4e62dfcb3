"""TensorFlow Lite's own events in a capture, as the runs, parts and ops of a Trace.

Every event is called `name@node/graph`: `CONV_2D@12/0`, `TfLiteGpuDelegateV2@66/0`, `Invoke@0/0`.
A delegate's part is one event on the thread that invokes; what the delegate tells of its inside
lies within. Which other threads computed is known from the scheduler's events only.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from ...errors import InputError
from ...runtime.trace_data import NO_CORE, Slice, Trace
from ...runtime.tracefile import WRITER
from ..trace_insights import CPU
from .timeline import Section, Stretch, Timeline

EVENT = re.compile(r"(?P<what>.+)@(?P<node>-?\d+)/(?P<graph>-?\d+)")
DELEGATE = re.compile(r"delegate|edgetpu-custom-op", re.I)
RUN = "invoke"  # of the interpreter; within it, `Invoke` of a graph
KINDS = {RUN: "run", "allocatetensors": "allocate", "modifygraphwithdelegate": "plan"}
# A thread that is busy for less of a part than this is none of its workers.
HELPING = 0.1


class Event(NamedTuple):
    """A section by its meaning. inside: the delegate whose part it lies in."""

    section: Section
    what: str
    node: int
    graph: int
    inside: str = ""

    @property
    def kind(self) -> str:
        return KINDS.get(self.what.lower(), "op")

    @property
    def delegate(self) -> str:
        return self.inside or (self.what if DELEGATE.search(self.what) else CPU)


def as_trace(timeline: Timeline, where: str) -> Trace:
    """The trace of what TensorFlow Lite did. Sections of the app that lie on its threads are kept
    as the user's own."""
    events = list(_events(timeline.sections))
    if not events:
        raise InputError(
            f"no event of TensorFlow Lite is in this capture of {timeline.tool}",
            where=where,
            fix="TensorFlow Lite 2.4 (iOS: 2.5) and later writes them if the property "
            "debug.tflite.trace is 1 (iOS: if an environment variable of that name is set) when "
            f"the interpreter is made; of our own traces, only what {WRITER} writes can be read",
        )
    made = _Maker(timeline, events).trace()
    made.about["command"] = where
    return made


def _events(sections: Sequence[Section]) -> Iterator[Event]:
    """In the order of time."""
    open_: dict[int, list[Event]] = defaultdict(list)
    for section in sections:
        found = EVENT.fullmatch(section.name)
        if found is None:
            continue
        around = open_[section.thread]
        while around and around[-1].section.end <= section.begin:
            around.pop()
        inside = next((e.delegate for e in reversed(around) if e.delegate != CPU), "")
        event = Event(section, found["what"], int(found["node"]), int(found["graph"]), inside)
        around.append(event)
        yield event


class _Maker:
    def __init__(self, timeline: Timeline, events: list[Event]) -> None:
        self.timeline, self.events = timeline, events
        self.own = {e.section.thread for e in events}  # threads that invoke
        self.runs = self._runs()
        self.helpers = self._helpers()

    def trace(self) -> Trace:
        first = self.events[0].section
        cores = self.timeline.cores
        about = {"process": self.timeline.process_of(first.thread), "cores": cores, "clocks": {}}
        made = Trace(about | {"captured": self.timeline.tool})
        made.slices = sorted(self._slices(), key=lambda s: (s.begin, -s.end))
        made.begin = made.slices[0].begin
        made.end = max(s.end for s in made.slices)
        names = self.timeline.threads
        made.threads = {
            t: names.get(t, f"thread {t}") for t in dict.fromkeys(s.thread for s in made.slices)
        }
        return made

    def _slices(self) -> Iterator[Slice]:
        for thread, runs in self.runs.items():
            ops = [e for e in self.events if e.section.thread == thread and e.kind == "op"]
            begins = [e.section.begin for e in ops]
            for run in runs:
                yield Slice(thread, *run, RUN, "run", {})
                inside = slice(bisect_left(begins, run.begin), bisect_left(begins, run.end))
                yield from self._parts(ops[inside])
        for event in self.events:
            if event.kind not in ("op", "run"):
                yield _slice(event.section, event.kind)
        yield from self._sections()
        yield from self._waits()

    # -- runs -------------------------------------------------------------------------------------

    def _runs(self) -> dict[int, list[Stretch]]:
        """By thread. A capture that has only ops is cut where an op comes round again."""
        found = {}
        for thread in self.own:
            mine = [e for e in self.events if e.section.thread == thread]
            stated = list(_outermost(e.section for e in mine if e.kind == "run"))
            found[thread] = stated or list(_rounds(e for e in mine if e.kind == "op"))
        return found

    def _parts(self, ops: Sequence[Event]) -> Iterator[Slice]:
        """Neighbours on one delegate are a part; each event of a delegate's own is one by itself,
        and the ops that it tells of take the place of the event."""
        outer = [e for e in ops if not e.inside]
        for delegate, group in groupby(outer, key=lambda e: e.delegate):
            for part in [list(group)] if delegate == CPU else [[e] for e in group]:
                begin, end = part[0].section.begin, max(e.section.end for e in part)
                thread = part[0].section.thread
                workers = self._workers(thread, Stretch(begin, end))
                about = {"delegate": delegate, "ops": len(part), "workers": workers}
                yield Slice(thread, begin, end, part[0].what, "part", about)
        told = {e.inside for e in ops}
        for event in ops:
            if event.inside or event.delegate not in told:
                yield _op(event)

    # -- threads ----------------------------------------------------------------------------------

    def _helpers(self) -> dict[int, list[int]]:
        """By the thread that invokes, those of its process that are busiest during its runs."""
        found = defaultdict(list)
        for thread, busy in self.timeline.running.items():
            process = self.timeline.process_of(thread)
            callers = [t for t in self.own if self.timeline.process_of(t) == process]
            if thread in self.own or not callers:
                continue
            shared = Counter({t: sum(_overlap(busy, r) for r in self.runs[t]) for t in callers})
            ((caller, most),) = shared.most_common(1)
            if most:
                found[caller].append(thread)
        return found

    def _workers(self, caller: int, part: Stretch) -> int:
        """Threads that compute or would like to, the caller among them."""
        least = HELPING * (part.end - part.begin)
        wanting = (
            _overlap(self.timeline.running[t], part) + _overlap(self.timeline.waiting[t], part)
            for t in self.helpers.get(caller, ())
        )
        return 1 + sum(time > least for time in wanting)

    def _waits(self) -> Iterator[Slice]:
        """Threads of an inference that could go on, and have no core."""
        for caller, runs in self.runs.items():
            for thread in (caller, *self.helpers.get(caller, ())):
                waits = self.timeline.waiting[thread]
                for begin, end in (w for run in runs for w in _common(waits, run)):
                    yield Slice(thread, begin, end, "no core is free", NO_CORE, {})

    def _sections(self) -> Iterator[Slice]:
        for section in self.timeline.sections:
            if section.thread in self.own and not EVENT.fullmatch(section.name):
                yield _slice(section, "section")


def _slice(section: Section, kind: str) -> Slice:
    return Slice(section.thread, section.begin, section.end, section.name, kind, {})


def _op(event: Event) -> Slice:
    graph = f"graph {event.graph} " if event.graph > 0 and not event.inside else ""
    about = {
        "op": event.what,
        "node": event.node,
        "step": f"{graph}{event.node} {event.what}",
        "delegate": event.delegate,
    }
    section = event.section
    return Slice(section.thread, section.begin, section.end, event.what, "op", about)


def _outermost(sections: Iterable[Section]) -> Iterator[Stretch]:
    end = -1
    for section in sections:
        if section.begin >= end:
            end = section.end
            yield Stretch(section.begin, end)


def _rounds(ops: Iterable[Event]) -> Iterator[Stretch]:
    seen: set[tuple[str, int]] = set()
    begin = end = 0
    for event in (e for e in ops if not e.inside):
        if (event.what, event.node) in seen:
            yield Stretch(begin, end)
            seen.clear()
        begin = begin if seen else event.section.begin
        end = event.section.end
        seen.add((event.what, event.node))
    if seen:
        yield Stretch(begin, end)


def _overlap(stretches: Sequence[Stretch], with_: Stretch) -> int:
    return sum(end - begin for begin, end in _common(stretches, with_))


def _common(stretches: Sequence[Stretch], with_: Stretch) -> Iterator[Stretch]:
    """What stretches, in the order of time, have in common with one."""
    at = max(bisect_left(stretches, (with_.begin, 0)) - 1, 0)
    while at < len(stretches) and stretches[at].begin < with_.end:
        begin, end = max(stretches[at].begin, with_.begin), min(stretches[at].end, with_.end)
        if begin < end:
            yield Stretch(begin, end)
        at += 1
