"""What every capture comes down to: sections of threads, and when threads ran or waited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


class Section(NamedTuple):
    """A named piece of a thread's time; nanoseconds of the capture's clock."""

    thread: int
    begin: int
    end: int
    name: str


class Stretch(NamedTuple):
    begin: int
    end: int


Stretches = dict[int, list[Stretch]]  # by thread, in the order of time


@dataclass
class Timeline:
    """A capture. Where nobody recorded the scheduler, running and waiting are empty; cores is 0
    where the capture does not tell."""

    tool: str
    sections: list[Section] = field(default_factory=list)
    running: Stretches = field(default_factory=lambda: defaultdict(list))
    waiting: Stretches = field(default_factory=lambda: defaultdict(list))  # for a core
    threads: dict[int, str] = field(default_factory=dict)  # names
    processes: dict[int, int] = field(default_factory=dict)  # of threads
    cores: int = 0

    def process_of(self, thread: int) -> int:
        return self.processes.get(thread, thread)


class TimelineEvents:
    """Events as tools write them, in whatever order; `timeline` makes sense of them.

    Each processor has a buffer of its own, and a thread moves between processors: only sorted by
    time do begins and ends meet.
    """

    def __init__(self, tool: str) -> None:
        self.made = Timeline(tool)
        self._events: list[tuple[int, Callable[..., None], tuple[object, ...]]] = []
        self._open: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        self._on_cpu: dict[int, tuple[int, int]] = {}  # thread, since when
        self._ready: dict[int, int] = {}  # threads that wait, since when

    def mark(self, at: int, thread: int, text: str) -> None:
        """What an app writes: `B|process|name` and `E|process`, or only `E`."""
        kind, _, rest = text.strip().partition("|")
        process, _, name = rest.partition("|")
        if kind == "B":
            self.begin(at, thread, name)
            if process.isdecimal():
                self.made.processes[thread] = int(process)
        elif kind == "E":
            self.end(at, thread)

    def begin(self, at: int, thread: int, name: str, track: int = 0) -> None:
        """track: tells apart what nests in itself on one thread."""
        self._events.append((at, self._begin, (thread, track, name)))

    def end(self, at: int, thread: int, track: int = 0) -> None:
        self._events.append((at, self._end, (thread, track)))

    def switch(self, at: int, cpu: int, before: int, is_ready: bool, after: int) -> None:
        """A processor goes from one thread to another. is_ready: the first would have gone on."""
        self._events.append((at, self._switch, (cpu, before, is_ready, after)))

    def wake(self, at: int, thread: int) -> None:
        self._events.append((at, self._wake, (thread,)))

    def timeline(self) -> Timeline:
        for at, take, facts in sorted(self._events, key=lambda event: event[0]):
            take(at, *facts)
        self.made.sections.sort(key=lambda s: (s.begin, -s.end))
        return self.made

    def _begin(self, at: int, thread: int, track: int, name: str) -> None:
        self._open[thread, track].append((at, name))

    def _end(self, at: int, thread: int, track: int) -> None:
        """The end of a section that began before the recording tells nothing."""
        if self._open[thread, track]:
            begin, name = self._open[thread, track].pop()
            self.made.sections.append(Section(thread, begin, at, name))

    def _switch(self, at: int, cpu: int, before: int, is_ready: bool, after: int) -> None:
        thread, since = self._on_cpu.get(cpu, (0, at))
        if thread and thread == before:
            self.made.running[thread].append(Stretch(since, at))
        if before and is_ready:
            self._ready[before] = at
        self._on_cpu[cpu] = after, at
        since = self._ready.pop(after, at)
        if since < at:
            self.made.waiting[after].append(Stretch(since, at))

    def _wake(self, at: int, thread: int) -> None:
        if all(thread != on for on, _ in self._on_cpu.values()):
            self._ready.setdefault(thread, at)
