"""Jobs under way: one after the other, since measurements disturb each other, and what they said.

A job is a process of the command `sanderling` in a session of its own; to cancel it is Ctrl-C, and
after some seconds the end.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..errors import InputError
from .job_forms import Command, Values, command

MOST_WAITING = 20
MOST_KEPT = 200  # jobs that are over and still listed
LINES = 300  # of what a job said
LETTERS = 2000  # of a line
PATIENCE = 5.0  # seconds from Ctrl-C to the end
WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
OVER = (DONE, FAILED, CANCELLED)
_SHARE = re.compile(r"(\d+) of (\d+)")


@dataclass
class Job:
    """One job. said: lines of stderr; result: those of stdout."""

    id: int
    command: Command
    shown: str
    state: str = WAITING
    said: list[str] = field(default_factory=list)
    result: list[str] = field(default_factory=list)
    dropped: int = 0  # lines of `said` that are no longer kept
    share: float | None = None  # of the work that is done
    begun: float = field(default_factory=time.time)
    ended: float | None = None
    status: int | None = None
    process: subprocess.Popen[bytes] | None = None

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def told(self, since: int) -> dict[str, Any]:
        """What a page is to know that has seen so many lines."""
        start = max(0, since - self.dropped)
        return {
            "state": self.state,
            "lines": self.said[start:],
            "seen": self.dropped + len(self.said),
            "share": self.share,
            "seconds": round((self.ended or time.time()) - self.begun, 1),
            "result": self.result if self.is_over else [],
        }

    def hear(self, line: str) -> None:
        self.said.append(line)
        found = _SHARE.search(line)
        if found and int(found[2]):
            self.share = min(1.0, int(found[1]) / int(found[2]))
        if len(self.said) > LINES:
            self.dropped += len(self.said) - LINES
            del self.said[:-LINES]


class Jobs:
    """The queue and its one worker, which starts with the first job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: dict[int, Job] = {}
        self.count = 0  # of jobs so far, those included that are no longer listed
        self.is_stopping = False
        self._waiting: queue.Queue[Job] = queue.Queue()
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None

    def start(self, verb: str, values: Values) -> Job:
        """Check a form and put its job into the queue."""
        made = command(verb, values, self.folder, time.strftime("%Y%m%d-%H%M%S"))
        with self._lock:
            if sum(not j.is_over for j in self.all.values()) >= MOST_WAITING:
                raise InputError("too many jobs wait already", fix="wait, or cancel some")
            self.count += 1
            job = Job(self.count, made, made.shown(self.folder))
            self._drop_oldest()
            self.all[job.id] = job
            self._waiting.put(job)
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="jobs", daemon=True)
                self._worker.start()
        return job

    def _drop_oldest(self) -> None:
        """Forget jobs that are over, so that MOST_KEPT of them stay listed."""
        over = [job.id for job in self.all.values() if job.is_over]
        for number in over[: max(0, len(over) - MOST_KEPT)]:
            del self.all[number]

    def cancel(self, number: int) -> None:
        job = self.all.get(number)
        if job is None or job.is_over:
            return
        job.state = CANCELLED
        job.ended = time.time()
        if job.process is not None:
            threading.Thread(target=_end, args=[job.process], daemon=True).start()

    def stop(self) -> None:
        """Cancel everything and wait for the processes to be gone."""
        self.is_stopping = True
        running = [j.process for j in list(self.all.values()) if j.process is not None]
        for number in list(self.all):
            self.cancel(number)
        for process in running:
            _end(process)

    def _work(self) -> None:
        while not self.is_stopping:
            job = self._waiting.get()
            if not job.is_over:
                self._run(job)

    def _run(self, job: Job) -> None:
        try:
            job.process = _started(job.command.words, self.folder)
        except OSError as error:
            job.hear(f"it could not be started: {error.strerror or error}")
            job.state, job.ended = FAILED, time.time()
            return
        job.begun = time.time()
        if job.is_over:  # cancelled in the moment of its start
            _end(job.process)
            return
        job.state = RUNNING
        readers = [
            _reader(job.process.stderr, job.hear),
            _reader(job.process.stdout, lambda line: _keep(job.result, line)),
        ]
        job.status = job.process.wait()
        for reader in readers:
            reader.join(PATIENCE)
        job.ended = time.time()
        if not job.is_over:
            job.state = DONE if job.status == 0 else FAILED
            job.share = 1.0 if job.status == 0 else job.share


def _started(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """Found under the name that this package has here, whatever the folder holds: -P would need
    Python 3.11, and the folder may hold a file sanderling.py."""
    home = str(Path(__file__).parents[2])
    environment = os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": _path(home)}
    return subprocess.Popen(
        [sys.executable, "-m", "sanderling.web.job_process", *words],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _path(home: str) -> str:
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, (home, given)))


def _reader(stream: IO[bytes] | None, hear: Callable[[str], None]) -> threading.Thread:
    """Lines as they come; one without an end comes in pieces."""

    def read() -> None:
        assert stream is not None
        with stream, suppress(OSError, ValueError):
            while line := stream.readline(LETTERS):
                hear(line.decode("utf-8", "replace").rstrip())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _keep(lines: list[str], line: str) -> None:
    if len(lines) < LINES:
        lines.append(line)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
            return
