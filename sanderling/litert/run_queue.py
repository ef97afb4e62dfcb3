"""Runs that are waited for later: one after the other, in the order in which they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any


class PendingRun(Future[None]):
    """A run that was asked for. `result()` waits for its end and raises what it raised; `await`
    does so in a coroutine, and `asyncio.gather` takes several."""

    def __await__(self) -> Generator[Any, None, None]:
        return asyncio.wrap_future(self).__await__()


class RunQueue:
    """A thread that carries runs out. It is started with the first one."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._last: PendingRun | None = None

    @property
    def is_idle(self) -> bool:
        return self._last is None or self._last.done()

    def add(self, call: Callable[[], None]) -> PendingRun:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "sanderling-run")
        self._last = run = PendingRun()
        self._thread.submit(_carry_out, run, call)
        return run

    def wait(self) -> None:
        """Until all runs that were asked for have ended."""
        if self._last is not None:
            wait([self._last])

    def close(self) -> None:
        """Wait for the runs that were asked for."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None


def _carry_out(run: PendingRun, call: Callable[[], None]) -> None:
    if not run.set_running_or_notify_cancel():
        return
    try:
        call()
    except BaseException as error:
        run.set_exception(error)
    else:
        run.set_result(None)
