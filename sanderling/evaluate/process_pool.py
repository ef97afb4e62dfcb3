"""Processes that answer jobs. One that dies is replaced, and what it worked on is done again.

A child is a fresh interpreter that does not run the user's main script again, as multiprocessing's
would: `evaluate(...)` in a script needs no `if __name__ == "__main__"`. It ends when its connection
does, so that no child outlives a parent that was killed.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SanderlingError, UnsupportedError

MOST_TRIES = 3
START = 60.0  # seconds for a child to say that it is there
Handler = Callable[[Any], Any]
is_child = False  # this process is one that answers


class Lost(NamedTuple):
    """The answer to a job on which process after process died."""

    how: str


@dataclass
class Child:
    process: subprocess.Popen[bytes]
    pipe: Connection
    jobs: deque[tuple[Any, Any]] = field(default_factory=deque)

    def send(self, key: Any, job: Any) -> None:
        self.jobs.append((key, job))
        with suppress(OSError):  # it is dead: its end of the connection will say so
            self.pipe.send_bytes(pickle.dumps(job, 5))

    def close(self) -> None:
        self.pipe.close()
        try:
            self.process.wait(1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fate(self) -> str:
        try:
            code = self.process.wait(5)
        except subprocess.TimeoutExpired:
            return "its process closed the connection"
        return f"its process was ended by {signal.Signals(-code).name}" if code < 0 else (
            f"its process ended with status {code}")  # fmt: skip


class Pool:
    """`count` processes, each with the handler that `factory` makes there (it must be picklable).

    depth: jobs that a process has at a time; with 2 it does not wait for the parent's next one.
    """

    def __init__(self, count: int, factory: Callable[[], Handler], depth: int = 2) -> None:
        self.depth, self.deaths = depth, 0
        # The path goes first: what the factory is made of may lie on it.
        self._first = [pickle.dumps(sys.path, 5), pickle.dumps(factory, 5)]
        self._key = os.urandom(16)
        self._children: list[Child] = []
        self._listener = Listener(authkey=self._key, backlog=count)
        starting = [self._launch() for _ in range(count)]
        try:
            while starting:
                self._children.append(self._accept(starting))
        except BaseException:
            for process in starting:
                process.kill()
            self.close()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._listener.close()
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
                    key, answer = child.jobs[0][0], pickle.loads(child.pipe.recv_bytes())
                except (EOFError, OSError):
                    lost = self._bury(child, again, tries)
                    if lost is not None:
                        yield lost
                    for other in self._children:
                        self._fill(other, again, waiting)
                    break  # the list of pipes has changed
                child.jobs.popleft()
                self._fill(child, again, waiting)
                if isinstance(answer, SanderlingError):
                    raise answer
                yield key, answer

    def _fill(self, child: Child, again: deque[tuple[Any, Any]],
              waiting: Iterator[tuple[Any, Any]]) -> None:  # fmt: skip
        while len(child.jobs) < self.depth:
            job = again.popleft() if again else next(waiting, None)
            if job is None:
                return
            child.send(*job)

    def _bury(self, child: Child, again: deque[tuple[Any, Any]],
              tries: dict[Any, int]) -> tuple[Any, Lost] | None:  # fmt: skip
        """Replace a dead child. Its first job may be what killed it; the others were waiting."""
        how = child.fate()
        self.deaths += 1
        self._children.remove(child)
        child.pipe.close()
        starting = [self._launch()]
        self._children.append(self._accept(starting))
        (key, job), *others = child.jobs
        again.extend(others)
        tries[key] = tries.get(key, 0) + 1
        if tries[key] >= MOST_TRIES:
            return key, Lost(f"{how}, {tries[key]} times")
        again.append((key, job))
        return None

    # -- starting -------------------------------------------------------------------------------

    def _launch(self) -> subprocess.Popen[bytes]:
        code = (
            "import sys; sys.path[:0] = [sys.argv[1]]; "
            "from sanderling.evaluate.process_pool import serve; "
            "serve(sys.argv[2], sys.stdin.buffer)"
        )
        home = str(Path(__file__).parents[2])
        process = subprocess.Popen([sys.executable, "-c", code, home, str(self._listener.address)],
                                   stdin=subprocess.PIPE, stdout=2)  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(self._key)
        process.stdin.close()
        return process

    def _accept(self, starting: list[subprocess.Popen[bytes]]) -> Child:
        """The next child that calls. It says who it is, because they come in any order."""
        pipe, pid = self._called(starting)
        process = next(p for p in starting if p.pid == pid)
        starting.remove(process)
        for message in self._first:
            pipe.send_bytes(message)
        return Child(process, pipe)

    def _called(self, starting: list[subprocess.Popen[bytes]]) -> tuple[Connection, int]:
        listener: Any = self._listener
        with suppress(AttributeError):  # private; without it, a child that dies early is awaited
            listener._listener._socket.settimeout(0.5)
        end = time.monotonic() + START
        while time.monotonic() < end and all(p.poll() is None for p in starting):
            with suppress(TimeoutError, EOFError):
                pipe = listener.accept()
                return pipe, pipe.recv()
        for process in starting:
            process.kill()
        raise UnsupportedError("a worker process did not start, its message is above",
                               fix="workers=1 and decoders=0 use no other process")  # fmt: skip


# -- in the child -------------------------------------------------------------------------------


def serve(address: str, key: Any) -> None:
    """Answer jobs until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to hear
    pipe = Client(address, authkey=key.read())
    pipe.send(os.getpid())
    with suppress(EOFError, OSError):
        sys.path[:] = pickle.loads(pipe.recv_bytes())
        handle, broken = _handler(pipe.recv_bytes())
        while True:
            job = pipe.recv_bytes()
            pipe.send_bytes(pickle.dumps(broken or _answer(handle, job), 5))


def _handler(factory: bytes) -> tuple[Handler, SanderlingError | None]:
    global is_child
    is_child = True
    try:
        return pickle.loads(factory)(), None
    except Exception as error:
        return _nothing, _sentence(error)


def _nothing(_: Any) -> None:
    """Stands for a handler that could not be made."""


def _answer(handle: Handler, job: bytes) -> Any:
    try:
        return handle(pickle.loads(job))
    except Exception as error:
        return _sentence(error)


def _sentence(error: Exception) -> SanderlingError:
    if isinstance(error, SanderlingError):
        return error
    return UnsupportedError(f"a worker process failed: {type(error).__name__}: {error}",
                            fix="run with workers=1 and decoders=0 to see where")  # fmt: skip
