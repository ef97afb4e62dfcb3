"""Recording what the package and the user's own sections do, on every thread.

    with sanderling.trace.record() as trace:
        session = sanderling.load("model.tflite").compile(threads=2)
        with sanderling.trace.section("recognise"):
            session.run(feeds)
    trace.save("run.perfetto-trace")  # or run.json; open either at https://ui.perfetto.dev

Sessions, bound runs and interpreters that are there already take part: while somebody records they
run code that notes when each step begins and ends on each worker.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ..config import TRACE
from ..errors import InputError, SanderlingError
from ..processors import usable_cpu_count
from ..spans import Args, Span, Times, followers, instant, span, tape
from ..spans import counter as count
from ..version import __version__
from .trace_data import BARRIER, Count, Instant, Slice, Trace
from .tracefile import encoder_for

now = time.perf_counter_ns
# Behind spans of these kinds the resident set may have changed; it is asked for at most so often.
SAMPLED = frozenset({"load", "plan", "compile", "allocate", "run", "section"})
SAMPLE_NS = 1_000_000
# A recording that is left on for long ends up full, and counts what it leaves out.
MOST_SLICES = 2_000_000
# Numbers that no thread has: Linux counts up to 2**22.
FIRST_TRACK = 1 << 24


# -- the user's own marks -------------------------------------------------------------------------


def section(name: str, args: Args | None = None) -> Span:
    """`with section("preprocess"):` shows the block under this name. Sections nest. While nobody
    records, it does nothing."""
    return span(name, "section", args)


def counter(name: str, value: float) -> None:
    """Show a quantity of your own: a queue's length, frames dropped."""
    count(name, value)


def mark(name: str, args: Args | None = None) -> None:
    """Show a moment: a frame has arrived."""
    instant(name, "mark", args)


def is_recording() -> bool:
    return tape.recorder is not None


# -- recording ------------------------------------------------------------------------------------


@contextmanager
def record(path: str | os.PathLike[str] | None = None) -> Iterator[Trace]:
    """Record what happens in the block; with a path, save it at the end, also after an error.

    Recordings may overlap: each has what happened between its own beginning and end.
    """
    if path is not None:
        check_target(path)
    trace = start()
    try:
        yield trace
    finally:
        stop(trace)
        if path is not None:
            trace.save(path)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise now what saving there would raise later."""
    encoder_for(path)
    target = Path(path)
    if target.is_dir() or not os.access(target.parent, os.W_OK):
        raise InputError(
            "cannot write there", where=str(path), fix="check the folder and its permissions"
        )


_changing = threading.Lock()
_traces: list[Trace] = []


def start() -> Trace:
    """Begin a recording, for code that has no `with` block; stop(trace) ends it."""
    trace = Trace()
    with _changing:
        _traces.append(trace)
        first = len(_traces) == 1
        if first:
            tape.recorder = Recorder()
        trace.begin = now()
    try:
        if first:
            _tell_followers()
    except BaseException:
        stop(trace)
        raise
    return trace


def stop(trace: Trace) -> None:
    """End a recording and fill its trace."""
    with _changing:
        recorder = tape.recorder
        if trace not in _traces or not isinstance(recorder, Recorder):
            return
        _traces.remove(trace)
        last = not _traces
        if last:
            tape.recorder = None
        recorder.fill(trace, now())
    if last:
        _tell_followers()


def _tell_followers() -> None:
    for follower in list(followers):
        follower.follow()


def _forget() -> None:
    """A forked child does not go on with its parent's recordings."""
    global _changing
    tape.recorder, _changing = None, threading.Lock()
    _traces.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def record_until_exit(path: str) -> None:
    """What the environment variable asks for. The program is not to suffer from it: a file that
    cannot be written is a warning. A forked child leaves the file to its parent."""
    path = path.replace("{pid}", str(os.getpid()))
    try:
        check_target(path)
    except SanderlingError as error:
        warnings.warn(f"{TRACE.name}: nothing is recorded: {error}", stacklevel=2)
        return
    trace, process = start(), os.getpid()

    def finish() -> None:
        if os.getpid() == process:
            stop(trace)
            _save_at_exit(trace, path)

    atexit.register(finish)


def _save_at_exit(trace: Trace, path: str) -> None:
    try:
        trace.save(path)
    except SanderlingError as error:
        print(f"sanderling: the trace is lost: {error}", file=sys.stderr)
    else:
        print(f"sanderling: wrote {path}; open it at https://ui.perfetto.dev", file=sys.stderr)


class _Span:
    """A span that is recorded. It belongs to the thread that entered it."""

    __slots__ = ("args", "begin", "kind", "name", "recorder", "thread")

    def __init__(self, recorder: Recorder, name: str, kind: str, args: Args | None) -> None:
        self.recorder, self.name, self.kind = recorder, name, kind
        self.args: Args = {} if args is None else args
        self.begin = 0

    def __enter__(self) -> Span:
        self.thread = self.recorder.thread()
        self.recorder.open[self] = None
        self.begin = now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
        /,
    ) -> None:
        end = now()
        self.recorder.open.pop(self, None)
        if kind is not None:
            self.args = self.args | {"error": kind.__name__}
        self.recorder.keep(self.until(end))
        if self.kind in SAMPLED:
            self.recorder.sample(end)

    def until(self, end: int) -> Slice:
        return Slice(self.thread, self.begin, end, self.name, self.kind, self.args)

    def note(self, args: Args) -> None:
        self.args = self.args | args


class _Native(NamedTuple):
    thread: int
    rows: Sequence[Args]
    times: Times
    threads: Sequence[int]


class Recorder:
    """Everything that is said between the first `start` and the last `stop`. Threads only append
    to lists and dictionaries, which needs no lock."""

    def __init__(self) -> None:
        self.threads: dict[int, str] = {}
        self.slices: list[Slice] = []
        self.instants: list[Instant] = []
        self.counts: list[Count] = []
        self.natives: list[_Native] = []
        self.open: dict[_Span, None] = {}
        self.taken = self.dropped = 0  # slices
        self._held: dict[str, int] = {}
        self._tracks: dict[str, int] = {}
        self._memory = _resident_file()
        self._sampled = 0
        self.sample(now())

    def span(self, name: str, kind: str, args: Args | None = None) -> Span:
        return _Span(self, name, kind, args)

    def instant(self, name: str, kind: str, args: Args | None = None) -> None:
        self.instants.append(Instant(self.thread(), now(), name, kind, args or {}))

    def counter(self, name: str, value: float) -> None:
        self.counts.append(Count(now(), name, value))

    def hold(self, owner: object, name: str, size: int) -> None:
        self.add(name, size)
        # The owner may outlive the recording by far, and is not to keep it.
        weakref.finalize(owner, _release, weakref.ref(self), name, size).atexit = False

    def add(self, name: str, size: int) -> None:
        self._held[name] = self._held.get(name, 0) + size
        self.counter(name, self._held[name])

    def native(self, rows: Sequence[Args], times: Times, threads: Sequence[int]) -> None:
        if self._has_room(2 * len(rows) * len(threads)):
            self.natives.append(_Native(self.thread(), rows, times, threads))

    def track(self, name: str) -> int:
        number = self._tracks.setdefault(name, FIRST_TRACK + len(self._tracks))
        self.threads[number] = name
        return number

    def keep(self, found: Slice) -> None:
        if self._has_room(1):
            self.slices.append(found)

    def _has_room(self, count: int) -> bool:
        fits = self.taken + count <= MOST_SLICES
        self.taken += count if fits else 0
        self.dropped += 0 if fits else count
        return fits

    def thread(self) -> int:
        """This thread's number in the system."""
        found = threading.get_native_id()
        if found not in self.threads:
            self.threads[found] = threading.current_thread().name
        return found

    def sample(self, at: int) -> None:
        """The resident set, unless it was asked for just now."""
        if self._memory is not None and at - self._sampled >= SAMPLE_NS:
            self._sampled = at
            self.counts.append(Count(at, "resident set (bytes)", _resident(self._memory)))

    def __del__(self) -> None:  # and not before: spans of other threads may still end
        if self._memory is not None:
            os.close(self._memory)

    # -- what a trace gets ------------------------------------------------------------------------

    def fill(self, trace: Trace, end: int) -> None:
        """What happened since the trace began; what has not ended yet is cut here and says so."""
        self._sampled = 0
        self.sample(end)
        begin = trace.begin
        cut = [
            s.until(end)._replace(args=s.args | {"unfinished": True})
            for s in list(self.open)
            if s.begin
        ]
        whole = [*self.slices, *cut, *(s for n in list(self.natives) for s in self._expanded(n))]
        trace.slices = sorted(
            (s._replace(begin=max(s.begin, begin)) for s in whole if s.end >= begin), key=_by_time
        )
        trace.instants = [i for i in self.instants if i.at >= begin]
        trace.counts = [c for c in self.counts if c.at >= begin]
        used = {s.thread for s in trace.slices} | {i.thread for i in trace.instants}
        trace.threads = {t: name for t, name in self.threads.items() if t in used}
        trace.about = about() | {"dropped": self.dropped}
        trace.end = end

    def _expanded(self, run: _Native) -> Iterator[Slice]:
        """One slice a step and worker, and one for each wait behind a step."""
        for worker, steps in enumerate(run.times().tolist()):
            thread = run.thread if worker == 0 else run.threads[worker]
            self.threads.setdefault(thread, f"sanderling worker {worker}")
            for row, (begin, end, released) in zip(run.rows, steps, strict=True):
                if begin:
                    yield Slice(thread, begin, end, row["op"], "op", row)
                if begin and released:
                    yield Slice(thread, end, released, BARRIER, BARRIER, {"behind": row["step"]})


def _release(recorder: weakref.ref[Recorder], name: str, size: int) -> None:
    found = recorder()
    if found is not None:
        found.add(name, -size)


def _by_time(found: Slice) -> tuple[int, int]:
    """A slice before those within it."""
    return found.begin, -found.end


def about() -> dict[str, Any]:
    """The process and its machine."""
    return {
        "process": os.getpid(),
        "command": " ".join(map(str, sys.argv))[:200],
        "cores": usable_cpu_count(),
        "sanderling": __version__,
        "clocks": _clocks(),
    }


def _clocks() -> Mapping[str, int]:
    """The same moment on the system's clocks, so that traces of other tools can be laid beside."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    clocks = {"monotonic": now(), "realtime": time.time_ns()}
    return clocks if boot is None else clocks | {"boottime": time.clock_gettime_ns(boot)}


def _resident_file() -> int | None:
    with suppress(OSError):
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    return None


def _resident(handle: int) -> int:
    """Bytes of the resident set. The file is read anew from its beginning each time."""
    return int(os.pread(handle, 200, 0).split()[1]) * os.sysconf("SC_PAGE_SIZE")
