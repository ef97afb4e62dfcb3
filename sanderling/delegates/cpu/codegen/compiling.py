"""Threads that compile texts to object code, while others are being written."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from ....forks import renews
from ....processors import usable_cpu_count
from ..isa.targets import Target
from .jit import compile_object

# LLVM recurses over long functions; some systems give a thread no more than 128 KiB.
STACK = 16 << 20
# Seconds that a thread which comes back from LLVM waits at most for the one that writes texts. A
# piece comes back some fifty times: with Python's 5 ms, the others hardly moved meanwhile.
SWITCH = 0.0002
Job = tuple[bytes, str, bool]  # key, text, brief


class _Interpreter:
    """What holds for the whole interpreter while anybody compiles: threads of Python take turns
    more often, and those that start here have a large stack."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0
        renews(self)

    def renew_lock(self) -> None:
        """In a forked child nobody compiles."""
        self._lock = threading.Lock()
        if self._users:
            self._users = 0
            sys.setswitchinterval(self._before)

    def begin(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH, self._before))

    def end(self) -> None:
        with self._lock:
            self._users = max(self._users - 1, 0)  # in a forked child it may be nobody's
            if not self._users:
                sys.setswitchinterval(self._before)

    def start(self, thread: threading.Thread) -> None:
        with self._lock, _stack_size(STACK):
            thread.start()


_interpreter = _Interpreter()


class Crew:
    """Compiles in as many threads as there are processors, the caller's among them: it helps when
    it has nothing else to do. The threads end with the `with` block, also after an error."""

    def __init__(self, target: Target, quick: bool = False, threads: int | None = None) -> None:
        self.target, self.quick = target, quick
        self.made: dict[bytes, bytes] = {}
        self._most = usable_cpu_count() if threads is None else threads
        self._threads: list[threading.Thread] = []
        self._asked: set[bytes] = set()
        self._queue: deque[Job] = deque()
        self._busy = 0
        self._errors: list[BaseException] = []
        self._has_ended = False
        self._changed = threading.Condition()

    def __enter__(self) -> Crew:
        _interpreter.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        """What has begun is waited for: LLVM must not run while a process ends."""
        with self._changed:
            self._has_ended = True
            self._queue.clear()
            self._changed.notify_all()
        try:
            for thread in self._threads:
                thread.join()
        finally:  # also where somebody interrupts the wait
            _interpreter.end()

    def compile(self, key: bytes, text: str, brief: bool = False) -> None:
        """made[key] will be the object code of this text, after `finish`."""
        if key in self._asked:
            return
        self._asked.add(key)
        with self._changed:
            self._queue.append((key, text, brief))
            self._changed.notify()
        if len(self._threads) < self._most - 1:
            self._begin_thread()

    def finish(self) -> None:
        """Help until all is compiled, what is longest first; raises what a thread has raised."""
        with self._changed:
            self._queue = deque(sorted(self._queue, key=lambda job: -len(job[1])))
        while (job := self._next(wait=False)) is not None:
            self._do(*job)
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
        if self._errors:
            raise self._errors[0]

    def _begin_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="sanderling-compiler", daemon=True)
        _interpreter.start(thread)
        self._threads.append(thread)

    def _serve(self) -> None:
        while (job := self._next(wait=True)) is not None:
            self._do(*job)

    def _next(self, wait: bool) -> Job | None:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._queue or self._has_ended)
            if not self._queue:
                return None
            self._busy += 1
            return self._queue.popleft()

    def _do(self, key: bytes, text: str, brief: bool) -> None:
        try:
            if not self._errors:
                self.made[key] = compile_object(text, self.target, self.quick, brief)
        except BaseException as error:
            self._errors.append(error)
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()


@contextmanager
def _stack_size(size: int) -> Iterator[None]:
    """For the threads that begin here."""
    before = threading.stack_size()
    try:
        threading.stack_size(size)
    except (ValueError, RuntimeError):  # the system's own limits
        yield
        return
    try:
        yield
    finally:
        threading.stack_size(before)
