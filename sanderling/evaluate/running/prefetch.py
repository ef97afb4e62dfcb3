"""Samples prepared for the session of this process, by its threads while the session infers.

Decoding a picture and running a model both happen outside of Python's lock, so that threads do as
well as processes here: they start at once, and nothing has to be sent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Generator, Sequence
from queue import Empty, SimpleQueue

from ..task import Prepared, Sample, Task
from .sample_inputs import prepare

# Samples that a thread prepares, or infers, before it does the other: whoever goes to and fro finds
# the caches full of the other's code and data. Groups of 8 took a quarter of the processor's time
# off each picture with MobileNetV1 0.25, a fifth with an int8 MobileNetV2; 16 gained little more.
GROUP = 8
AHEAD = 2 * GROUP  # samples that wait for the session, beside two for each thread
Job = tuple[int, Sample]
Made = tuple[int, Prepared | str | BaseException]


def prepared(
    task: Task, jobs: Sequence[Job], threads: int = 0
) -> Generator[tuple[int, Prepared | str], None, None]:
    """Each job's inputs, or why it has none, as they are ready. Whoever asks for the next when none
    is ready prepares one too: no thread waits where there is work."""
    bench = _Prefetcher(task, jobs, threads)
    crew = [threading.Thread(target=bench.work, daemon=True) for _ in range(threads)]
    try:
        for thread in crew:
            thread.start()
        for _ in jobs:
            index, made = bench.next()
            if isinstance(made, BaseException):
                raise made
            yield index, made
    finally:
        bench.close()
        for thread in crew:
            thread.join()


class _Prefetcher:
    def __init__(self, task: Task, jobs: Sequence[Job], threads: int) -> None:
        self.task, self.threads = task, threads
        # A task that makes no promise may hand out the same array again and again.
        self._group = GROUP if task.runs_in_threads() else 1
        self._own: deque[Made] = deque()
        self._jobs, self._lock = iter(jobs), threading.Lock()
        self._ready: SimpleQueue[Made] = SimpleQueue()
        self._room = threading.Semaphore(AHEAD + 2 * threads)
        self._closed = False

    def work(self) -> None:
        """What a thread does, until there are no jobs."""
        while self._room.acquire() and not self._closed:
            made = self._take()
            if made is None:
                return
            self._ready.put(made)

    def next(self) -> Made:
        if self._own:
            return self._own.popleft()
        try:
            made = self._ready.get_nowait()
        except Empty:
            self._own.extend(m for _ in range(self._group) if (m := self._take()) is not None)
            if self._own:
                return self._own.popleft()
            made = self._ready.get()
        self._room.release()
        return made

    def _take(self) -> Made | None:
        with self._lock:
            job = next(self._jobs, None)
        if job is None:
            return None
        try:
            return job[0], prepare(self.task, job[1])
        except KeyboardInterrupt:  # comes to the main thread alone, which is to end at once
            raise
        except BaseException as error:  # raised where somebody listens
            return job[0], error

    def close(self) -> None:
        self._closed = True
        self._room.release(max(self.threads, 1))
