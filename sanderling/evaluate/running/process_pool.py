"""Processes that answer jobs. One that dies is replaced, and what it worked on is done again."""

from __future__ import annotations

import pickle
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from ...child_process import ChildProcess
from ...errors import SanderlingError, UnsupportedError

MOST_TRIES = 3
START = 60.0  # seconds for a child to say that it is there
Handler = Callable[[Any], Any]
Warned = tuple[str, type[Warning]]
is_child = False  # this process is one that answers


class Lost(NamedTuple):
    """The answer to a job on which process after process died."""

    how: str


@dataclass
class Child:
    started: ChildProcess
    jobs: deque[tuple[Any, Any]] = field(default_factory=deque)

    @property
    def pipe(self) -> Connection:
        return self.started.pipe

    def send(self, key: Any, job: Any) -> None:
        self.jobs.append((key, job))
        with suppress(OSError):  # it is dead: its end of the connection will say so
            self.pipe.send_bytes(pickle.dumps(job, 5))

    def close(self) -> None:
        self.pipe.close()
        self.started.end(patience=1)

    def fate(self) -> str:
        how = self.started.how_it_ended()
        if not how:
            return "its process closed the connection"
        by = "ended with" if how.startswith("status") else "was ended by"
        return f"its process {by} {how}"


class Pool:
    """`count` processes, each with the handler that `factory` makes there (it must be picklable).

    depth: jobs that a process has at a time; with 2 it does not wait for the parent's next one.
    """

    def __init__(self, count: int, factory: Callable[[], Handler], depth: int = 2) -> None:
        self.depth, self.deaths = depth, 0
        self._factory = pickle.dumps(factory, 5)
        self._children = [_launch() for _ in range(count)]
        try:
            for child in self._children:
                self._begin(child)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for child in self._children:
            child.pipe.close()  # all at once, then wait for each
        for child in self._children:
            child.close()
        self._children.clear()

    def run(self, jobs: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """(key, answer) as answers come. A SanderlingError of the handler is raised here."""
        waiting: Iterator[tuple[Any, Any]] = iter(jobs)
        again: deque[tuple[Any, Any]] = deque()
        tries: dict[Any, int] = {}
        for child in self._children:
            self._fill(child, again, waiting)
        while busy := [c for c in self._children if c.jobs]:
            for pipe in wait([c.pipe for c in busy]):
                child = next(c for c in busy if c.pipe is pipe)
                try:
                    key, (answer, said) = child.jobs[0][0], pickle.loads(child.pipe.recv_bytes())
                except (EOFError, OSError):
                    lost = self._bury(child, again, tries)
                    if lost is not None:
                        yield lost
                    for other in self._children:
                        self._fill(other, again, waiting)
                    break  # the list of pipes has changed
                child.jobs.popleft()
                _warn(said)
                self._fill(child, again, waiting)
                if isinstance(answer, SanderlingError):
                    raise answer
                yield key, answer

    def _fill(
        self, child: Child, again: deque[tuple[Any, Any]], waiting: Iterator[tuple[Any, Any]]
    ) -> None:
        while len(child.jobs) < self.depth:
            job = again.popleft() if again else next(waiting, None)
            if job is None:
                return
            child.send(*job)

    def _bury(
        self, child: Child, again: deque[tuple[Any, Any]], tries: dict[Any, int]
    ) -> tuple[Any, Lost] | None:
        """Replace a dead child. Its first job may be what killed it; the others were waiting."""
        how = child.fate()
        self.deaths += 1
        self._children.remove(child)
        child.pipe.close()
        self._children.append(_launch())
        self._begin(self._children[-1])
        (key, job), *others = child.jobs
        again.extend(others)
        tries[key] = tries.get(key, 0) + 1
        if tries[key] >= MOST_TRIES:
            return key, Lost(f"{how}, {tries[key]} times")
        again.append((key, job))
        return None

    def _begin(self, child: Child) -> None:
        """Wait for its word that it is there, and give it the handler's factory."""
        with suppress(EOFError, OSError):
            if child.pipe.poll(START):
                child.pipe.recv()
                child.pipe.send_bytes(self._factory)
                return
        child.started.process.kill()
        raise UnsupportedError(
            "a worker process did not start, its message is above",
            fix="workers=1 and decoders=0 use no other process",
        )


def _warn(said: Iterable[Warned]) -> None:
    """What a child warns of, as this process's own: Python shows once what several of them say."""
    for text, category in said:
        warnings.warn(text, category, stacklevel=3)


def _launch() -> Child:
    return Child(ChildProcess(serve, stdout=2))


# -- in the child -------------------------------------------------------------------------------


def serve(pipe: Connection) -> None:
    """Answer jobs until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    with suppress(EOFError, OSError):
        pipe.send("started")
        with warnings.catch_warnings(record=True) as said:
            handle, broken = _handler(pipe.recv_bytes())
            while True:
                job = pipe.recv_bytes()
                answer = broken or _answer(handle, job)
                pipe.send_bytes(pickle.dumps((answer, _taken(said)), 5))


def _taken(said: list[warnings.WarningMessage]) -> list[Warned]:
    """The warnings since the answer before."""
    taken: list[Warned] = [(str(w.message), w.category) for w in said]
    said.clear()
    return taken


def _handler(factory: bytes) -> tuple[Handler, SanderlingError | None]:
    global is_child
    is_child = True
    try:
        return pickle.loads(factory)(), None
    except Exception as error:
        return _nothing, _sentence(error)


def _nothing(_: Any) -> None:
    """Do nothing, in place of a handler that could not be made."""


def _answer(handle: Handler, job: bytes) -> Any:
    try:
        return handle(pickle.loads(job))
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> SanderlingError:
    if isinstance(error, SanderlingError):
        return error
    return UnsupportedError(
        f"a worker process failed: {type(error).__name__}: {error}",
        fix="run with workers=1 and decoders=0 to see where",
    )
